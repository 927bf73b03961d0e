"""The live pages in a real browser: windows come in by themselves, what the reader opened stays open, and a lost server is told."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from diagnose.report.html.live import render_index, render_job
from diagnose.watch.serve import Server
from tests.fixture_jobs import diagnosed
from tests.report.hostile import HOSTILE
from tests.report.test_html_browser import Visit, browser, settles  # noqa: F401 - a fixture
from tests.watch import made

SLOW, WELL = "worker-fault", "healthy"


class Address:
    """An address, for a `Visit`."""

    def __init__(self, server: Server, path: str = "") -> None:
        self._uri = f"{server.address}{path}"

    def as_uri(self) -> str:
        """Give it."""
        return self._uri


@pytest.fixture
def server() -> Iterator[Server]:
    """Serve on any port that is free."""
    opened = Server(0)
    yield opened
    opened.close()


def show(server: Server, name: str, *, n_windows: int, at_s: float = 0.0, **more: Any) -> None:
    """Let one job have a new window."""
    diagnosis = diagnosed(name)
    job = made.job("one", diagnosis, n_windows=n_windows, **more)
    server.diagnosed(job, diagnosis, None)
    server.show([job], [], made.NOW_S + at_s)


def heading(visit: Visit) -> str:
    """Give the first heading."""
    return visit.page.locator("h1").inner_text()


def test_windows_come_in(browser: Any, server: Server) -> None:  # noqa: F811
    """A new window changes page, title and pictures without a reload, and nobody else is asked anything."""
    show(server, WELL, n_windows=41)
    with Visit(browser, Address(server)) as visit:
        assert heading(visit) == "No open episode; the last window is healthy."
        visit.page.evaluate("window.isTheSame = true")
        visit.page.locator("#windows summary").click()
        visit.page.locator("#course .plot").focus()
        slow = diagnosed(SLOW)
        show(server, SLOW, n_windows=42, episodes=[made.episode_of(slow, 820)])
        assert settles(visit, lambda: heading(visit).startswith("Slow worker at dp 1, stage 0 since step 820"))
        assert visit.page.evaluate("window.isTheSame"), "no reload"
        assert visit.page.evaluate("document.querySelector('#windows details').open"), "what was open stays open"
        assert visit.page.locator("#windows tbody tr").first.inner_text().startswith("41")
        assert "culprit" in visit.page.locator("#workers svg").inner_html()
        fill = "getComputedStyle(document.querySelector('#workers-heat8 path')).fill"
        assert visit.page.evaluate(fill) == "rgb(118, 15, 24)", "styles of the new page are obeyed"
        plot = visit.page.locator("#workers .plot")
        plot.focus()
        plot.press("ArrowRight")
        assert visit.tip().startswith("dp "), "the script knows the new pictures"
        show(server, WELL, n_windows=43, at_s=20)
        assert settles(visit, lambda: heading(visit) == "No open episode; the last window is healthy.")
        assert visit.said == []
        assert all(url.startswith((server.address, "data:")) for url in visit.asked)


def test_a_lost_server_is_told(browser: Any) -> None:  # noqa: F811
    """A page whose server is gone says that it may be old; one whose server is back goes on."""
    server = Server(0)
    port = int(server.address.rstrip("/").rpartition(":")[2])
    show(server, WELL, n_windows=41)
    with Visit(browser, Address(server)) as visit:
        link = visit.page.locator("#link")
        assert settles(visit, lambda: link.inner_text() == "")
        server.close()
        assert settles(visit, lambda: link.inner_text().startswith("Not connected since"))
        again = Server(port)
        try:
            show(again, WELL, n_windows=50, state="blind", why="no new rows")
            assert any(settles(visit, lambda: heading(visit) == "Blind: no new rows.") for _ in range(20))
            assert settles(visit, lambda: link.inner_text() == "")
        finally:
            again.close()


def test_the_index_follows(browser: Any, server: Server) -> None:  # noqa: F811
    """In the index a job that gets an episode goes to the top; its link leads to its page, and that one back."""
    jobs = made.many({name: diagnosed(name) for name in (SLOW, WELL)})
    server.show(jobs, [], made.NOW_S)
    with Visit(browser, Address(server)) as visit:
        first = visit.page.locator("tbody th").first
        assert first.inner_text() == "run-53"
        slow = diagnosed(SLOW)
        jobs[0] = made.job("run-00", slow, episodes=[made.episode_of(slow, 700, gain=0.5)])
        server.show(jobs, [], made.NOW_S + 5)
        assert settles(visit, lambda: first.inner_text() == "run-00")
        visit.follow(first.locator("a"))
        assert heading(visit).startswith("Slow worker")
        visit.follow(visit.page.locator("header a").first)
        assert "64 jobs" in visit.page.title()
        assert visit.said == [] and visit.overflow() <= 0


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_accessible(browser: Any, tmp_path: Path, scheme: str) -> None:  # noqa: F811
    """Find nothing with axe on pages of every state, from a disk; no request, no complaint, no page wider than the window."""
    axe = pytest.importorskip("axe_playwright_python.sync_playwright", reason="axe is not installed")
    slow, well = diagnosed(SLOW), diagnosed(WELL)
    jobs = {
        "episode": (
            made.job("one", slow, episodes=[made.episode_of(slow, 700), made.episode_of(slow, 9, recovered=30)]),
            slow,
        ),
        "blind": (made.job("one", well, state="blind", why="no new rows"), well),
        "waiting": (made.job("one", state="waiting", n_windows=0), None),
        "hostile": (made.hostile(HOSTILE["script"] + HOSTILE["long words"], slow), slow),
    }
    pages = {name: render_job(job, made.last(job, found), now_s=made.NOW_S) for name, (job, found) in jobs.items()}
    room = made.many({SLOW: slow, WELL: well})
    pages["index"] = render_index(room, {job.location: "jobs/x.html" for job in room}, now_s=made.NOW_S)
    for name in pages if scheme == "light" else ("episode", "index"):
        path = tmp_path / f"{name}.html"
        path.write_text(pages[name], encoding="utf-8")
        with Visit(browser, path, color_scheme=scheme) as visit:
            assert visit.overflow() <= 0, name
            found = axe.Axe().run(visit.page, options={"resultTypes": ["violations"]})
            assert found.violations_count == 0, (name, found.generate_report())
            assert visit.said == [] and [url for url in visit.asked if not url.startswith("data:")] == [path.as_uri()]


def test_without_scripts(browser: Any, server: Server) -> None:  # noqa: F811
    """Without JavaScript a page shows all of it, and loads itself again."""
    show(server, WELL, n_windows=41)
    with Visit(browser, Address(server), java_script_enabled=False) as visit:
        assert visit.page.locator("figure svg").count() >= 2
        assert visit.page.locator("meta[http-equiv=refresh]").count() == 1
        assert visit.page.locator("#windows tbody tr").count() == 8
