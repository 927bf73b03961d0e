"""The site of a fleet in a real browser, opened from the disk: sorting, filtering, links, accessibility, narrow screens."""

from pathlib import Path
from typing import Any

import pytest

from diagnose.cli.site import write_site
from diagnose.fleet.measure import FleetQuery, measure_fleet
from diagnose.model.fleet import Fleet
from diagnose.triage.collect import collect
from diagnose.triage.store import Store
from tests.fleet.stores import fill
from tests.report.test_html_browser import Visit, browser  # noqa: F401 - a fixture

N_JOBS = 44
#: Columns of the table of jobs.
LOST, RECOVERABLE, S, GPUS, CAUSE = 1, 2, 3, 4, 5


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Fleet]:
    """Write the site of a store of jobs, each fixture several times."""
    folder = tmp_path_factory.mktemp("site")
    with Store(f"sqlite:///{folder / 'store.db'}") as store:
        fill(f"sqlite:///{folder / 'store.db'}", N_JOBS)
        fleet = measure_fleet(collect(store), FleetQuery(), store="sqlite:///store.db")
        write_site(store, fleet, folder / "site")
    return folder / "site", fleet


def column(visit: Visit, n: int) -> list[str]:
    """Give the shown values of a column of the table of jobs."""
    rows = "[...document.querySelectorAll('#jobs-table tbody tr')].filter(r => !r.hidden)"
    return visit.page.evaluate(f"n => {rows}.map(r => r.cells[n].textContent.trim())", n)


def test_sorts(browser: Any, site: tuple[Path, Fleet]) -> None:  # noqa: F811
    """Every column sorts, numbers by value and largest first; a second press turns the order; unknown ones stay last."""
    with Visit(browser, site[0] / "index.html") as visit:
        heads = visit.page.locator("#jobs-table thead th")
        for n in range(heads.count()):
            for press in (1, 2):
                heads.nth(n).locator("button").click()
                shown = [value.replace(",", "") for value in column(visit, n)]
                known = [value for value in shown if value]
                assert shown == known + [""] * (len(shown) - len(known))
                is_number = n in {LOST, RECOVERABLE, S, GPUS}
                keys = [
                    float(value.replace("under ", "").replace("over ", "").rstrip("x")) if is_number else value
                    for value in known
                ]
                down = (press == 1) == is_number
                assert keys == sorted(keys, reverse=down), n
                assert heads.nth(n).get_attribute("aria-sort") == ("descending" if down else "ascending")
        assert visit.page.locator("#jobs-table thead th[aria-sort]").count() == 1
        assert visit.said == []


def test_sorts_by_keyboard(browser: Any, site: tuple[Path, Fleet]) -> None:  # noqa: F811
    """A head of a column takes focus and Enter."""
    with Visit(browser, site[0] / "index.html") as visit:
        button = visit.page.locator("#jobs-table thead th").nth(GPUS).locator("button")
        button.focus()
        button.press("Enter")
        gpus = [int(value.replace(",", "")) for value in column(visit, GPUS)]
        assert gpus == sorted(gpus, reverse=True)


def test_filters(browser: Any, site: tuple[Path, Fleet]) -> None:  # noqa: F811
    """Words, verdict and cause choose rows together, and the number left is said."""
    _, fleet = site
    with Visit(browser, site[0] / "index.html") as visit:
        n_all = len(fleet.jobs)
        assert visit.page.locator("#jobs-shown").inner_text() == f"{n_all} of {n_all} jobs"
        visit.page.select_option("#filter-cause", "worker-fault")
        wanted = [job for job in fleet.jobs if any(cause.cause == "worker-fault" for cause in job.causes)]
        assert len(column(visit, 0)) == len(wanted) > 0
        owner, framework = next((job.owner, job.framework) for job in wanted if job.owner and job.framework)
        visit.page.fill("#filter-text", f"{owner.upper()} {framework}")
        both = [job for job in wanted if job.owner == owner and job.framework == framework]
        assert len(both) < len(wanted)
        assert sorted(column(visit, 0)) == sorted(job.job_id for job in both) != []
        assert visit.page.locator("#jobs-shown").inner_text() == f"{len(both)} of {n_all} jobs"
        visit.page.fill("#filter-text", "")
        visit.page.select_option("#filter-cause", "")
        visit.page.select_option("#filter-verdict", "healthy")
        assert len(column(visit, 0)) == fleet.totals.n_healthy
        visit.page.fill("#filter-text", "no such job")
        assert column(visit, 0) == []
        assert visit.said == []


def test_every_link_opens(browser: Any, site: tuple[Path, Fleet]) -> None:  # noqa: F811
    """Every job's page opens in silence, asks for nothing but itself, is about that job, and leads back."""
    folder, fleet = site
    with Visit(browser, folder / "index.html") as visit:
        links = visit.page.evaluate(
            "[...document.querySelectorAll('#jobs-table tbody a')].map(a => [a.href, a.textContent])"
        )
        assert len(links) == len(fleet.jobs)
        for href, name in links:
            visit.page.goto(href)
            assert visit.page.locator("header .job").inner_text() == f"All jobs / {name}"
        visit.follow(visit.page.locator("header .job a"))
        assert visit.page.url == (folder / "index.html").as_uri()
        assert visit.said == []
        asked = {url for url in visit.asked if not url.startswith("data:")}
        assert asked == {(folder / "index.html").as_uri(), *(href for href, _ in links)}


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [1280, 375])
def test_accessible(browser: Any, site: tuple[Path, Fleet], scheme: str, width: int) -> None:  # noqa: F811
    """Axe finds nothing on the index and on pages of jobs, with all tables open; no page is wider than the window."""
    axe = pytest.importorskip("axe_playwright_python.sync_playwright", reason="axe is not installed")
    folder, _ = site
    of_jobs = (min((folder / "jobs").glob(f"{name}-*")) for name in ("worker-fault", "healthy"))
    pages = [folder / "index.html", *of_jobs]
    for path in pages:
        with Visit(browser, path, color_scheme=scheme, viewport={"width": width, "height": 812}) as visit:
            visit.page.evaluate("document.querySelectorAll('details').forEach(d => { d.open = true; })")
            found = axe.Axe().run(visit.page, options={"resultTypes": ["violations"]})
            assert found.violations_count == 0, found.generate_report()
            assert visit.overflow() <= 0
            assert visit.said == []


def test_readable_without_script(browser: Any, site: tuple[Path, Fleet]) -> None:  # noqa: F811
    """Without JavaScript every job, figure and table is there, and nothing that does nothing."""
    folder, fleet = site
    with Visit(browser, folder / "index.html", java_script_enabled=False) as visit:
        assert visit.page.locator("#jobs-table tbody tr").count() == len(fleet.jobs)
        assert visit.page.locator("#jobs-table tbody tr").first.is_visible()
        assert not visit.page.locator("#filters").is_visible()
        assert visit.page.locator("#jobs-table button").count() == 0
        assert visit.page.locator("figure svg").count() == 6
