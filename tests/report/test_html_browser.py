"""The page in a real browser: Debian's Chromium through Playwright. Skipped, with the reason, where either is absent."""

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Self

import numpy as np
import pytest

from diagnose.model.request import Request
from diagnose.pipeline import prepare_report
from diagnose.report.html import page as html_page
from tests.report.test_html import hostile

ROOT = Path(__file__).resolve().parents[2]
FIXTURES = sorted((ROOT / "fixtures").glob("*.parquet"))
JOBS = [*(path.stem for path in FIXTURES), "AR"]
#: Jobs that are looked at in more ways than one.
FEW = ["worker-fault", "sequence-imbalance", "AR"]


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    """Start a browser, or skip."""
    program = shutil.which("chromium")
    if program is None:
        pytest.skip("no chromium on this machine (apt-get install chromium)")
    sync_api = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    with sync_api.sync_playwright() as playwright:
        try:
            found = playwright.chromium.launch(executable_path=program, args=["--no-sandbox"])
        except sync_api.Error as error:
            pytest.skip(f"chromium does not start here: {str(error).splitlines()[0]}")
        yield found
        found.close()


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Write the page of every fixture, of AR where it is here, and of a hostile job."""
    folder = tmp_path_factory.mktemp("pages")
    sources = {path.stem: path for path in FIXTURES}
    shared = ROOT.parent / "shared/artifact/trace-AR.parquet"
    if shared.is_file():
        sources["AR"] = shared
    scenes = {name: prepare_report(Request(path)) for name, path in sources.items()}
    scenes["hostile"] = hostile(scenes["worker-fault"])
    for name, data in scenes.items():
        (folder / f"{name}.html").write_text(html_page.render(data), encoding="utf-8")
    return {name: folder / f"{name}.html" for name in scenes}


class Visit:
    """A page in the browser with everything that it complained about or asked for."""

    def __init__(self, browser: Any, path: Path, **look: Any) -> None:
        self.context = browser.new_context(**({"viewport": {"width": 1280, "height": 900}} | look))
        self.page = self.context.new_page()
        self.said: list[str] = []
        self.asked: list[str] = []
        self.page.on("console", lambda message: self.said.append(message.text))
        self.page.on("pageerror", lambda error: self.said.append(str(error)))
        self.page.on("dialog", lambda dialog: (self.said.append("dialog"), dialog.dismiss()))
        self.page.on("request", lambda request: self.asked.append(request.url))
        self.page.goto(path.as_uri())

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.context.close()

    def follow(self, link: Any) -> None:
        """Click a link and wait until the page behind it is there."""
        with self.page.expect_navigation():
            link.click()

    def overflow(self) -> int:
        """Give by how many pixels the page is wider than the window."""
        return self.page.evaluate("document.documentElement.scrollWidth - document.documentElement.clientWidth")

    def tip(self) -> str:
        """Give what the tip shows; empty where it is hidden."""
        return self.page.evaluate("(t => t.hidden ? '' : t.textContent)(document.getElementById('tip'))")


def file_of(files: dict[str, Path], name: str) -> Path:
    """Give a page, or skip."""
    if name not in files:
        pytest.skip("the published trace is not here")
    return files[name]


@pytest.mark.parametrize("name", [*JOBS, "hostile"])
def test_opens_in_silence(browser: Any, files: dict[str, Path], name: str) -> None:
    """No console message, no request but the file itself, no page wider than the window."""
    path = file_of(files, name)
    with Visit(browser, path) as visit:
        assert visit.page.locator("h1").inner_text()
        for figure in visit.page.locator("figure .plot").all():
            figure.focus()
            figure.press("ArrowRight")
        assert visit.said == []
        assert [url for url in visit.asked if not url.startswith("data:")] == [path.as_uri()]
        assert visit.overflow() <= 0


@pytest.mark.parametrize(
    ("name", "scheme"), [*((name, "light") for name in [*JOBS, "hostile"]), ("worker-fault", "dark"), ("AR", "dark")]
)
def test_accessible(browser: Any, files: dict[str, Path], name: str, scheme: str) -> None:
    """Find nothing with axe; of a few jobs with all tables open."""
    axe = pytest.importorskip("axe_playwright_python.sync_playwright", reason="axe is not installed")
    with Visit(browser, file_of(files, name), color_scheme=scheme) as visit:
        if name in FEW:
            visit.page.evaluate("document.querySelectorAll('details').forEach(d => { d.open = true; })")
        found = axe.Axe().run(visit.page, options={"resultTypes": ["violations"]})
        assert found.violations_count == 0, found.generate_report()


def settles(visit: Visit, holds: Callable[[], bool]) -> bool:
    """Say whether something comes true; a busy machine delivers events of the pointer late."""
    for _ in range(50):
        if holds():
            return True
        visit.page.wait_for_timeout(100)
    return False


def test_hover(browser: Any, files: dict[str, Path]) -> None:
    """The pointer over the culprit's cell shows its value, and leaving hides it."""
    with Visit(browser, files["worker-fault"]) as visit:
        visit.page.locator("#workers-n1-0 text").hover()
        assert settles(visit, lambda: visit.tip() == "dp 1, stage 0: S 1.17 (all steps)")
        visit.page.locator("h1").hover()
        assert settles(visit, lambda: visit.tip() == "")
        for key in ("pace", "steps", "ledger"):
            plot = visit.page.locator(f"#{key} .plot")
            plot.focus()
            visit.page.mouse.move(0, 0)  # focus scrolls, and what comes under a resting pointer shows its own value
            assert settles(visit, lambda: (plot.press("ArrowRight"), visit.tip())[1] != ""), key  # noqa: B023 - called at once
            assert settles(visit, lambda: (plot.press("Escape"), visit.tip())[1] == ""), key  # noqa: B023


def test_slider(browser: Any, files: dict[str, Path]) -> None:
    """A step before the onset shows the culprit as its peers, by numbers, colours and words; the keyboard moves it."""
    with Visit(browser, files["worker-fault"]) as visit:
        cell = visit.page.locator("#workers-n1-0 text")
        hot = visit.page.locator("#workers-heat8 path").get_attribute("d")
        assert float(cell.text_content()) > 1.1
        slider = visit.page.locator("#step-slider")
        slider.focus()
        slider.press("ArrowRight")
        assert visit.page.locator("#step-shown").inner_text() == "step 16"
        assert float(cell.text_content()) < 1.05
        assert visit.page.locator("#workers-heat8 path").get_attribute("d") != hot
        slider.press("Home")
        assert float(cell.text_content()) > 1.1


def test_steps_choose_the_step_of_the_map(browser: Any, files: dict[str, Path]) -> None:
    """Enter on a step of the curve shows that step in the map."""
    with Visit(browser, files["worker-fault"]) as visit:
        plot = visit.page.locator("#steps .plot")
        plot.focus()
        for key in ("ArrowRight", "ArrowRight", "Enter"):
            plot.press(key)
        assert visit.page.locator("#step-shown").inner_text() == "step 17"


def test_zoom(browser: Any, files: dict[str, Path]) -> None:
    """Zooming in changes bars and the numbers of the axis, and the whole step brings them back."""
    with Visit(browser, files["worker-fault"]) as visit:
        bars, marks = visit.page.locator("#timeline-kind0 path"), visit.page.locator("#timeline .tick")
        visit.page.click('[data-zoom="all"]')
        before, drawn = bars.get_attribute("d"), visit.page.locator("#timeline-xtick_2")
        assert marks.count() == 0 and drawn.is_visible()
        visit.page.click('[data-zoom="in"]')
        assert bars.get_attribute("d") != before
        times = [float(text.removesuffix(" s")) for text in marks.all_text_contents()]
        assert 4 <= len(times) <= 12 and not drawn.is_visible()
        assert np.diff(times) == pytest.approx(0.1), "a half of a step of 2.1 s in round tenths"
        visit.page.click('[data-zoom="all"]')
        assert bars.get_attribute("d") == before and marks.count() == 0 and drawn.is_visible()
        box = visit.page.locator("#timeline svg").bounding_box()
        visit.page.mouse.move(box["x"] + box["width"] * 0.3, box["y"] + 60)
        visit.page.mouse.down()
        visit.page.mouse.move(box["x"] + box["width"] * 0.5, box["y"] + 60, steps=3)
        visit.page.mouse.up()
        assert max(float(text.removesuffix(" s")) for text in marks.all_text_contents()) < 1.3


def test_redrawing_is_the_drawing(browser: Any, files: dict[str, Path]) -> None:
    """What the script draws for the whole step and for all steps lies where matplotlib drew it."""
    boxes = "keys => keys.map(k => (b => [b.x, b.y, b.width, b.height])(document.querySelector(k).getBBox()))"
    keys = ["#timeline-kind0 path", "#timeline-kind2 path", "#workers-heat0 path", "#workers-heat8 path"]
    with Visit(browser, files["worker-fault"]) as visit:
        drawn = visit.page.evaluate(boxes, keys)
        visit.page.click('[data-zoom="all"]')
        slider = visit.page.locator("#step-slider")
        slider.focus()
        slider.press("ArrowRight")
        slider.press("Home")
        for before, after in zip(drawn, visit.page.evaluate(boxes, keys), strict=True):
            assert after == pytest.approx(before, abs=0.7)


@pytest.mark.parametrize("name", FEW)
def test_without_javascript(browser: Any, files: dict[str, Path], name: str) -> None:
    """Without scripts all words, drawings and tables are there, and nothing offers what would not work."""
    with Visit(browser, file_of(files, name), java_script_enabled=False) as visit:
        page = visit.page
        assert page.locator("figure svg").count() == page.locator("figure").count() == 6
        assert page.locator("h1").is_visible() and page.locator("#ledger svg").is_visible()
        assert not page.locator("#step-slider").is_visible()
        assert not page.locator("button").first.is_visible()
        details = page.locator("#steps details")
        details.locator("summary").click()
        assert details.locator("td").first.is_visible()


@pytest.mark.parametrize("width", [375, 320])
@pytest.mark.parametrize("name", [*FEW, "hostile"])
def test_narrow(browser: Any, files: dict[str, Path], name: str, width: int) -> None:
    """On a phone, and on 1280 pixels at 400%, only drawings and tables scroll sideways, within themselves."""
    with Visit(browser, file_of(files, name), viewport={"width": width, "height": 640}) as visit:
        visit.page.evaluate("document.querySelectorAll('details').forEach(d => { d.open = true; })")
        assert visit.overflow() <= 0
        assert visit.page.locator("h1").is_visible()


def test_prints(browser: Any, files: dict[str, Path]) -> None:
    """On paper the page is light, without controls, and its tables are open."""
    with Visit(browser, files["worker-fault"], color_scheme="dark") as visit:
        visit.page.emulate_media(media="print", color_scheme="dark")
        ground = "getComputedStyle(document.documentElement).getPropertyValue('--bg').trim()"
        assert visit.page.evaluate(ground) == "#ffffff"
        assert not visit.page.locator("#step-slider").is_visible()
        visit.page.evaluate("dispatchEvent(new Event('beforeprint'))")
        assert visit.page.locator("#steps td").first.is_visible()
        assert len(visit.page.pdf()) > 20_000


def test_keyboard_reaches_everything(browser: Any, files: dict[str, Path]) -> None:
    """Tab leads through link, slider, drawing, button and table of every figure, and the focus can be seen."""
    with Visit(browser, files["worker-fault"]) as visit:
        seen = set()
        for _ in range(120):
            visit.page.keyboard.press("Tab")
            seen.add(visit.page.evaluate("(e => e.id || e.className || e.tagName)(document.activeElement)"))
        assert {"skip", "step-slider", "plot", "BUTTON", "SUMMARY"} <= seen
