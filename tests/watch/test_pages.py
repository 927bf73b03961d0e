"""The live pages: what is on them, that hostile names stay text, and which files are written when."""

import json
import re
from pathlib import Path

import jsonschema
import msgspec.structs
import pytest

from diagnose.errors import UsageError
from diagnose.report.html.live import Served, render_index, render_job
from diagnose.report.live_words import describe_now
from diagnose.report.schemas import make_schema
from diagnose.watch.folder import PageFolder
from diagnose.watch.pages import INDEX, STATES, Pages
from tests.fixture_jobs import diagnosed
from tests.report.hostile import HOSTILE
from tests.watch import made

SLOW, WELL = "worker-fault", "healthy"


def test_an_episode_is_told_first() -> None:
    """The first heading says what costs time, where and since when; below stand what to do, the history and the heat map."""
    slow = diagnosed(SLOW)
    episodes = [made.episode_of(slow, 700), made.episode_of(slow, 120, recovered=300, gain=0.06)]
    job = made.job("one", slow, episodes=episodes)
    page = render_job(job, made.last(job, slow), now_s=made.NOW_S)
    first = re.search(r"<h1[^>]*>(.*?)</h1>", page)
    assert first and first[1] == "Slow worker at dp 1, stage 0 since step 700, costs 15% of the step time."
    assert page.count("<h1") == 1
    for said in (
        'id="course"',
        'id="workers"',
        "steps 120 to 299",
        slow.causes[0].fixes[0].summary,
        "2026-03-01 03:00:20 UTC",
    ):
        assert said in page, said
    assert page.index(slow.causes[0].fixes[0].summary) < page.index('id="course"'), (
        "what to do stands above the pictures"
    )


def test_the_workers_are_drawn_before_a_watch_that_was_started_again_has_a_window() -> None:
    """GIVEN a job as the store has it, without a diagnosis, THEN each worker has its slowdown, and nothing is said of causes."""
    slow = diagnosed(SLOW)
    job = made.job("one", slow)
    page = render_job(job, None, now_s=made.NOW_S)
    known = render_job(job, made.last(job, slow), now_s=made.NOW_S)
    cells = re.compile(r'<g id="workers-(n\d+-\d+)">\s*<text[^>]*>([^<]+)<')
    assert cells.findall(page) == cells.findall(known) and len(cells.findall(page)) == slow.what_if.by_worker.size
    assert "The worst is dp" in page and "Ranks are counted from 0" in page and "culprit" not in page
    windows = tuple(msgspec.structs.replace(window, worker_slowdowns=((1.0, 1.004),)) for window in job.windows)
    well = render_job(msgspec.structs.replace(job, windows=windows), None, now_s=made.NOW_S)
    assert "No worker slows the job." in well and "The worst is" not in well
    hidden = [msgspec.structs.replace(window, worker_slowdowns=()) for window in job.windows]
    assert 'id="workers"' not in render_job(msgspec.structs.replace(job, windows=tuple(hidden)), None, now_s=made.NOW_S)


def test_an_episode_that_the_last_windows_do_not_show() -> None:
    """It is open until it has been gone for a while; until then nobody says that it costs time now."""
    slow = diagnosed(SLOW)
    job = made.job("one", slow, episodes=[made.episode_of(slow, 700)])
    gone = msgspec.structs.replace(job.episodes[0], last_step=job.windows[-1].first_step - 1)
    said = describe_now(msgspec.structs.replace(job, episodes=(gone,)))
    assert said.endswith(f"since step 700, cost 15% of the step time; not seen after step {gone.last_step}")


def test_a_job_without_slowdowns() -> None:
    """A job by its log alone has no S: its step time by window stands in its place, and the page claims no S."""
    job = made.job("one", diagnosed(WELL))
    windows = [msgspec.structs.replace(window, slowdown=None, worker_slowdowns=()) for window in job.windows]
    job = msgspec.structs.replace(job, windows=tuple(windows), course_steps=(), course_slowdowns=())
    page = render_job(job, None, now_s=made.NOW_S)
    assert 'id="step-time"' in page and 'id="course"' not in page and "not known" in page
    assert render_job(msgspec.structs.replace(job, windows=()), None, now_s=made.NOW_S).count("<figure") == 0


@pytest.mark.parametrize(
    ("state", "why"),
    [("blind", "no new rows since 02:41:07"), ("ended", "the recording ended"), ("waiting", "no rows yet")],
)
def test_other_states(state: str, why: str) -> None:
    """A job that nobody can see, that is over, or of which nothing came yet says so first, and claims nothing else."""
    well = diagnosed(WELL) if state != "waiting" else None
    job = made.job("one", well, state=state, why=why, n_windows=9 if well else 0)
    page = render_job(job, made.last(job, well), now_s=made.NOW_S)
    first = re.search(r"<h1[^>]*>(.*?)</h1>", page)
    assert first and first[1].lower().startswith(f"{state}: {why}")
    assert ("the job may be otherwise now" in page) == (state in {"blind", "ended"})
    assert ('http-equiv="refresh"' in page) == (state != "ended"), "what is over does not change"


def test_pages_on_a_disk_ask_nobody() -> None:
    """A page on a disk has no address in it; one that is served names its own server's stream alone."""
    well = diagnosed(WELL)
    job = made.job("one", well)
    alone = render_job(job, made.last(job, well), now_s=made.NOW_S)
    assert "connect-src" not in alone and "data-events" not in alone
    served = render_job(job, made.last(job, well), now_s=made.NOW_S, served=Served("jobs/one.html", "a-7"))
    assert "connect-src &#39;self&#39;" in served or "connect-src 'self'" in served
    assert 'data-events="../events?since=a-7"' in served
    assert "<noscript><meta http-equiv" in served and "<noscript><meta http-equiv" in alone
    assert 'data-refresh="15"' in alone and "data-refresh" not in served
    for page in (alone, served):
        assert not re.search(r'(src|href)="(https?:)?//', page)


@pytest.mark.parametrize("kind", ["script", "image", "escape", "right to left", "long words", "lines", "xml"])
def test_hostile_names(kind: str) -> None:
    """What a trace may hold stays text in the page of the job and in the index."""
    slow = diagnosed(SLOW)
    job = made.hostile(HOSTILE[kind], slow)
    for page in (
        render_job(job, made.last(job, slow), now_s=made.NOW_S, in_site=True),
        render_index([job, job], {job.location: "jobs/a.html"}, now_s=made.NOW_S),
    ):
        assert page.count("<script") == 2
        assert "<img" not in page and "onerror=alert(1)>" not in page.replace("&gt;", "")
        assert not set("\x1b\x07\x9b\u202e\u2066\u2028") & set(page)
        assert len(page) < 600_000


def test_states_obey_their_schema() -> None:
    """`watch.json` is what its schema says, whatever jobs and their folders are called."""
    slow = diagnosed(SLOW)
    jobs = [*made.many({SLOW: slow, WELL: diagnosed(WELL)}), *(made.hostile(text, slow) for text in HOSTILE.values())]
    pages = Pages()
    pages.update(jobs, made.NOW_S)
    states = json.loads(pages.draw(STATES) or b"")
    jsonschema.validate(states, make_schema("watch-states"), jsonschema.Draft202012Validator)
    assert len(states["jobs"]) == len(jobs)
    assert pages.draw(INDEX)


def test_the_index_puts_the_worst_first() -> None:
    """Jobs with episodes come first, by cost, then those that nobody can see; what is over comes last."""
    jobs = made.many({name: diagnosed(name) for name in (SLOW, WELL)})
    page = render_index(jobs, {job.location: f"jobs/{job.name}.html" for job in jobs}, now_s=made.NOW_S)
    order = re.findall(r'<a href="jobs/(run-\d+)\.html">', page)
    assert len(order) == 64
    assert order[:7] == ["run-53", "run-37", "run-21", "run-05", "run-07", "run-27", "run-47"]
    assert order[-2:] == ["run-11", "run-12"]
    assert "64 jobs: 4 with an episode, 3 blind" in page


def test_only_what_changed_is_drawn_again() -> None:
    """A round in which nothing changed changes no page; a job that changed changes its own page, the index and the states."""
    well = diagnosed(WELL)
    pages, jobs = Pages("e"), [made.job(f"run-{n}", well) for n in range(3)]
    pages.update(jobs, 1.0)
    path = {job.name: path for path, job in pages.jobs.items()}
    first, kept = pages.last, pages.draw(path["run-0"])
    pages.update(list(jobs), 2.0)
    assert pages.last == first and pages.now_s == 2.0
    assert pages.draw(path["run-0"]) is kept
    jobs[1] = msgspec.structs.replace(jobs[1], state="blind", why="gone")
    pages.update(jobs, 3.0)
    assert set(pages.changed_since(first)) == {path["run-1"], INDEX, STATES}
    pages.update(jobs[:2], 4.0)
    assert len(pages.jobs) == 2
    assert pages.draw("jobs/../../etc/passwd") is None


@pytest.mark.parametrize("version", ["", "e-", "f-3", "e-x", "e--1", "e-99999999999999999999", "é-³"])
def test_versions_of_others(version: str) -> None:
    """What is no version of this server counts as knowing nothing."""
    assert Pages("e").number(version) == 0


def fail(message: str) -> None:
    """Take a warning where there may be none."""
    raise AssertionError(message)


def test_a_folder_is_kept_and_cleaned(tmp_path: Path) -> None:
    """An index, the states and a page a job; a later watch takes the folder over and removes the pages of jobs that are gone."""
    well, folder = diagnosed(WELL), tmp_path / "live"
    jobs = [made.job(f"run-{n}", well) for n in range(3)]
    view = PageFolder(folder, fail)
    view.diagnosed(jobs[0], well, None)
    view.show(jobs, [], made.NOW_S)
    view.close()
    assert {path.name for path in folder.iterdir()} == {INDEX, STATES, "jobs"}
    assert len(list((folder / "jobs").iterdir())) == 3
    assert [entry["job"]["name"] for entry in json.loads((folder / STATES).read_text())["jobs"]] == [
        "run-0",
        "run-1",
        "run-2",
    ]
    (folder / "jobs/mine.txt").write_text("not ours")
    (folder / "jobs/.diagnose-0123456789abcdef.tmp").write_text("of a watch that was killed")
    again = PageFolder(folder, fail)
    again.show(jobs[:1], [], made.NOW_S)
    again.close()
    assert len(list((folder / "jobs").glob("*.html"))) == 1
    assert (folder / "jobs/mine.txt").exists() and not list(folder.glob("jobs/.diagnose-*"))


def test_somebody_elses_folder_is_refused(tmp_path: Path) -> None:
    """A folder that holds something else is left alone."""
    (tmp_path / "thesis.tex").write_text("years of work")
    with pytest.raises(UsageError, match="not empty and no folder of `diagnose watch`"):
        PageFolder(tmp_path, fail)


def test_one_file(tmp_path: Path) -> None:
    """A name that ends with .html is a file: the page of the one job, or an index without links where there are more."""
    well, path = diagnosed(WELL), tmp_path / "live.html"
    view = PageFolder(path, fail)
    view.show([made.job("one", well)], [], made.NOW_S)
    view.close()
    assert "<h1" in path.read_text() and "../index.html" not in path.read_text()
    more = PageFolder(path, fail)
    more.show([made.job("one", well), made.job("two", well)], [], made.NOW_S)
    more.close()
    assert "two" in path.read_text() and "jobs/" not in path.read_text()
    assert list(tmp_path.iterdir()) == [path]


def test_a_full_disk_is_told_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What cannot be written is told once, and written when it can be."""
    said: list[str] = []
    path = tmp_path / "gone" / "live.html"
    monkeypatch.setattr("diagnose.watch.folder._AGAIN_S", 0.0)
    view = PageFolder(path, said.append)
    for _ in range(3):
        view.show([made.job("one", diagnosed(WELL))], [], made.NOW_S)
        view._not_before = 0.0
    assert len(said) == 1 and said[0].startswith("--html: cannot write")
    path.parent.mkdir()
    view.close()
    assert path.is_file()


def test_news_goes_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where there is no time for all pages, the page of a job with news is written before others."""
    monkeypatch.setattr("diagnose.watch.folder._ROUND_S", 0.0)
    slow = diagnosed(SLOW)
    jobs = [made.job(f"run-{n}", slow) for n in range(4)]
    view = PageFolder(tmp_path, fail)

    def write_one() -> None:
        view._not_before = 0.0
        view.show(jobs, [], made.NOW_S)

    for _ in range(8):
        write_one()
    pages = {path.name[:5]: path for path in (tmp_path / "jobs").iterdir()}
    assert len(pages) == 4
    jobs[:] = [
        made.job(f"run-{n}", slow, n_windows=42, episodes=[made.episode_of(slow, 800)] if n == 3 else [])
        for n in range(4)
    ]
    before = {name: path.read_bytes() for name, path in pages.items()}
    while all(path.read_bytes() == before[name] for name, path in pages.items()):
        write_one()
    assert pages["run-3"].read_bytes() != before["run-3"]
