"""A triage run does what is new or changed, each job once, whatever happens to it."""

import dataclasses
import os
import shutil
import time
from collections.abc import Callable
from concurrent.futures import Future
from pathlib import Path

import pytest

from diagnose.errors import ServiceError, UsageError
from diagnose.model.triage_run import TriageRun
from diagnose.triage import run as run_module
from diagnose.triage import triage as triages
from diagnose.triage import worker
from diagnose.triage.identity import Judge
from diagnose.triage.rows import JobRow
from diagnose.triage.run import run_triage
from diagnose.triage.settings import RunSettings
from diagnose.triage.source import FoundJob, list_jobs
from diagnose.triage.store import Store
from diagnose.triage.triage import TriageRequest, read_bytes, triage
from diagnose.triage.worker import Outcome, Task, do_job

from .conftest import dump


class Here:
    """A place to work without processes: each task is done when it is given."""

    n_workers = 2
    limits_memory = False

    def __init__(self, do: Callable[[Task], Outcome] = do_job) -> None:
        self.do = do
        self.done: list[str] = []

    def has_room(self) -> bool:
        """Say yes."""
        return True

    def submit(self, task: Task) -> Future[Outcome]:
        """Do it."""
        future: Future[Outcome] = Future()
        outcome = self.do(task)
        if outcome.row is not None:
            self.done.append(Path(task.job.location).name)
        future.set_result(outcome)
        return future

    def end(self, future: object, *, kill: bool) -> None:
        """Forget it."""

    def memory_of(self, future: object) -> None:
        """Know nothing."""

    def close(self) -> None:
        """Do nothing."""


@pytest.fixture
def run_on(store_url: str, monkeypatch: pytest.MonkeyPatch) -> Callable[..., tuple[TriageRun, list[str]]]:
    """Give what runs a triage run on a folder, and says what came of it and what was done."""

    def run(source: Path | str, **request: object) -> tuple[TriageRun, list[str]]:
        here = Here()
        monkeypatch.setattr(triages, "_open_pool", lambda *_: here)
        found = triage(TriageRequest((str(source),), store_url, **request))
        return found, sorted(here.done)

    return run


def test_only_what_is_new_or_changed(run_on, make_folder, small_jobs, tmp_path: Path) -> None:
    """The second run does nothing; later ones what has come or changed, by content and not by time."""
    folder = make_folder(tmp_path / "jobs", 3)
    assert run_on(folder)[1] == ["job-0000.parquet", "job-0001.parquet", "job-0002.parquet"]
    found, done = run_on(folder)
    assert done == [] and (found.n_known, found.n_known_by_time) == (3, 3)
    os.utime(folder / "job-0001.parquet", (1_600_000_000, 1_600_000_000))
    found, done = run_on(folder)
    assert done == [] and (found.n_known, found.n_known_by_time) == (3, 2)
    assert run_on(folder)[0].n_known_by_time == 3
    make_folder(tmp_path / "jobs", 4)
    shutil.copy(small_jobs[3], folder / "job-0001.parquet")
    assert run_on(folder)[1] == ["job-0001.parquet", "job-0003.parquet"]
    (folder / "job-0002.yaml").write_text("owner: somebody\n")
    assert run_on(folder)[1] == ["job-0002.parquet"]


def test_written_a_moment_ago(run_on, small_jobs, tmp_path: Path) -> None:
    """The time of a file that may still be written proves nothing: its content is read."""
    shutil.copy(small_jobs[0], tmp_path / "a.parquet")
    assert run_on(tmp_path)[1] == ["a.parquet"]
    found, done = run_on(tmp_path)
    assert done == [] and found.n_known == 1


def test_another_judge(run_on, make_folder, tmp_path: Path) -> None:
    """Other rules, another version or another threshold: done again."""
    folder = make_folder(tmp_path / "jobs", 1)
    assert len(run_on(folder)[1]) == 1
    assert len(run_on(folder, min_speedup=1.05)[1]) == 1
    assert len(run_on(folder, min_speedup=1.05)[1]) == 0
    assert len(run_on(folder)[1]) == 1


def test_options(run_on, make_folder, tmp_path: Path) -> None:
    """--dry-run does nothing, --limit takes the newest, --since leaves out what is old, --force does all."""
    folder = make_folder(tmp_path / "jobs", 4)
    found, done = run_on(folder, dry_run=True, limit=2)
    assert done == [] and [Path(name).name for name in found.wanted] == ["job-0002.parquet", "job-0003.parquet"]
    assert run_on(folder, limit=2)[1] == ["job-0002.parquet", "job-0003.parquet"]
    found, done = run_on(folder, since="2023-11-14T22:13:21")
    assert done == ["job-0001.parquet"] and (found.n_older, found.n_known) == (1, 2)
    assert len(run_on(folder, force=True)[1]) == 4
    found, _ = run_on(folder, dry_run=True)
    assert (found.n_known, found.wanted) == (4, ())


def test_a_dry_run_makes_no_store(tmp_path: Path, make_folder) -> None:
    """Nothing is written."""
    folder = make_folder(tmp_path / "jobs", 1)
    found = triage(TriageRequest((str(folder),), f"sqlite:///{tmp_path}/none.db", dry_run=True))
    assert len(found.wanted) == 1 and not (tmp_path / "none.db").exists()


def test_broken_jobs_become_rows(run_on, store_url: str, make_folder, tmp_path: Path) -> None:
    """Corrupt, empty, absent and unreadable files: a row with its reason each, and all others are diagnosed."""
    folder = make_folder(tmp_path / "jobs", 4)
    good = (folder / "job-0000.parquet").read_bytes()
    (folder / "empty.parquet").write_bytes(b"")
    (folder / "cut.parquet").write_bytes(good[:1000])
    (folder / "noise.parquet").write_bytes(bytes(i * 37 % 256 for i in range(5000)))
    (folder / "meta.parquet").write_bytes(good)
    (folder / "meta.yaml").write_text("- : [")
    os.mkfifo(folder / "pipe.parquet")
    (folder / "nowhere.parquet").symlink_to("/nowhere/at/all.parquet")
    found, _ = run_on(folder)
    kinds = {Path(failed.location).name: failed.failure for failed in found.failed}
    assert kinds == {
        "empty.parquet": "input",
        "cut.parquet": "input",
        "noise.parquet": "input",
        "meta.parquet": "metadata",
        "pipe.parquet": "unreadable",
        "nowhere.parquet": "unreadable",
    }
    assert all(failed.reason and "\n" not in failed.reason for failed in found.failed)
    assert (found.n_diagnosed, found.n_failed, found.n_found) == (4, 6, 10)
    rows = dump(store_url)["jobs"]
    assert [row["status"] for row in rows].count("failed") == 6 and len(rows) == 10
    found, done = run_on(folder)
    assert done == ["nowhere.parquet", "pipe.parquet"]
    assert (found.n_known, found.n_known_failed) == (8, 4)
    assert len(run_on(folder, retry_failed=True)[1]) == 6


def test_a_mended_file(run_on, store_url: str, make_folder, small_jobs, tmp_path: Path) -> None:
    """A diagnosis takes the place of a failure."""
    folder = make_folder(tmp_path / "jobs", 1)
    (folder / "job-0000.parquet").write_bytes(b"half")
    assert run_on(folder)[0].n_failed == 1
    shutil.copy(small_jobs[0], folder / "job-0000.parquet")
    assert run_on(folder)[0].n_diagnosed == 1
    (row,) = dump(store_url)["jobs"]
    assert row["status"] == "diagnosed" and row["failure"] is None


def test_a_file_that_is_written(run_on, make_folder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What changes while it is read is not diagnosed, and tried again the next run."""
    folder = make_folder(tmp_path / "jobs", 1)
    diagnose = worker._diagnose
    ticks = iter(range(1, 100))

    def slow(task: Task, path: Path, content: str) -> Outcome:
        tick = next(ticks)
        os.utime(path, (tick, tick))
        return diagnose(task, path, content)

    with monkeypatch.context() as patch:
        patch.setattr(worker, "_diagnose", slow)
        assert [failed.failure for failed in run_on(folder)[0].failed] == ["changed"]
    assert run_on(folder)[0].n_diagnosed == 1


def test_pruned_jobs_stay_away(run_on, store_url: str, make_folder, small_jobs, tmp_path: Path) -> None:
    """What was pruned comes back when it changes, and not before."""
    folder = make_folder(tmp_path / "jobs", 2)
    run_on(folder)
    with Store(store_url) as store:
        assert store.prune(time.time() + 10).n_jobs == 2
    assert run_on(folder)[1] == []
    os.utime(folder / "job-0000.parquet")
    assert run_on(folder)[1] == []
    shutil.copy(small_jobs[3], folder / "job-0000.parquet")
    assert run_on(folder)[1] == ["job-0000.parquet"]


def test_one_done_elsewhere_meanwhile(store_url: str, make_folder, tmp_path: Path) -> None:
    """A job that another triage finished after the plan was made is not done again, even with force."""
    folder = make_folder(tmp_path / "jobs", 3)
    jobs = list_jobs([str(folder)])
    judge = triages.find_judge(None, 1.02)
    settings = RunSettings(judge, None, 2**30, 60.0, force=True)

    other = Here()

    def while_planning(_n: int) -> Here:
        with Store(store_url) as second:
            run_triage(jobs, second, lambda _: other, settings)
        return here

    here = Here()
    with Store(store_url) as store:
        found = run_triage(jobs, store, while_planning, settings)
    assert len(other.done) == 3 and here.done == [] and found.n_elsewhere == 3


def make_up(task: Task) -> Outcome:
    """Make the outcome of a small job without doing it."""
    return Outcome(JobRow(task.job.location, "diagnosed", identity="i", verdict="healthy"), took_s=0.001)


def list_made_up(n_jobs: int) -> list[FoundJob]:
    """List jobs that are nowhere."""
    return [FoundJob(f"/{i:03}", size_bytes=1000 - i, stamp="s") for i in range(n_jobs)]


SETTINGS = RunSettings(Judge("v", "r", None, 1.02), None, 2**30, 60.0)


def test_small_jobs_are_claimed_and_written_together(store_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two hundred small jobs cost the store a few dozen questions, and not four hundred."""
    calls: list[str] = []
    with Store(store_url) as store:
        for name in ("claim", "finish", "release"):
            ask = getattr(store, name)
            monkeypatch.setattr(store, name, lambda given, ask=ask, name=name: (calls.append(name), ask(given))[1])
        found = run_triage(list_made_up(200), store, lambda _: Here(make_up), SETTINGS)
    assert found.n_diagnosed == 200 and len(dump(store_url)["jobs"]) == 200
    assert 2 <= len(calls) < 60


def test_large_jobs_are_claimed_one_by_one(store_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where jobs take seconds, none is claimed that does not begin: another triage could do it."""
    claimed: list[int] = []
    with Store(store_url) as store:
        claim = store.claim
        monkeypatch.setattr(store, "claim", lambda given: (claimed.append(len(given)), claim(given))[1])
        large = Here(lambda task: dataclasses.replace(make_up(task), took_s=5.0))
        assert run_triage(list_made_up(12), store, lambda _: large, SETTINGS).n_diagnosed == 12
    assert claimed == [1] * 12


def test_what_was_claimed_too_early_is_given_back(store_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A job that hangs behind small ones keeps those claimed behind it from nobody, and they are done in the end."""
    monkeypatch.setattr(run_module, "CLAIM_AHEAD_S", 0.05)
    monkeypatch.setattr(run_module, "POLL_S", 0.02)
    jobs = list_made_up(40)
    hanging: list[tuple[Future[Outcome], Outcome]] = []
    with Store(store_url) as store, Store(store_url) as other:
        other.enter()
        theirs: dict[str, object] = {}

        class Slow(Here):
            """One place, in which the 20th job hangs until another triage has got a job that was claimed behind it."""

            n_workers = 1

            def has_room(self) -> bool:
                return not hanging or hanging[0][0].done()

            def submit(self, task: Task) -> Future[Outcome]:
                future = super().submit(task)
                if task.job.location != "/020":
                    return future
                hanging.append((Future(), future.result()))
                return hanging[0][0]

            def memory_of(self, future: object) -> None:  # noqa: ARG002 - the same as other places
                theirs.update(other.claim(["/021"]))
                if theirs and not hanging[0][0].done():
                    hanging[0][0].set_result(hanging[0][1])

        found = run_triage(jobs, store, lambda _: Slow(make_up), SETTINGS)
        assert theirs == {"/021": None}
        assert (found.n_diagnosed, found.n_elsewhere) == (39, 1)


@pytest.mark.parametrize("end", [KeyboardInterrupt, SystemExit, ServiceError])
def test_what_is_done_is_kept_when_it_ends(store_url: str, end: type[BaseException]) -> None:
    """Interrupted, terminated or left by its workers, a triage run writes what is done and gives back what is not."""

    class Ending(Here):
        """It ends as the eighth job begins, when the seventh has not come back."""

        def submit(self, task: Task) -> Future[Outcome]:
            if task.job.location == "/007":
                raise end("over")
            return super().submit(task)

    with Store(store_url) as store:
        with pytest.raises(end):
            run_triage(list_made_up(40), store, lambda _: Ending(make_up), SETTINGS)
        rows = dump(store_url)["jobs"]  # which says that nothing is claimed, too
        assert [row["location"] for row in rows] == [f"/{i:03}" for i in range(6)]


def test_same_as_one_by_one(store_url: str, run_on, make_folder, small_jobs, tmp_path: Path) -> None:
    """The JSON in the store is what `diagnose --format json` prints, byte for byte, and the rows say the same."""
    from diagnose.model.request import Request
    from diagnose.pipeline import diagnose_job
    from diagnose.report import json_lines

    folder = make_folder(tmp_path / "jobs", 2)
    run_on(folder)
    stored = dump(store_url)
    for row, document in zip(stored["jobs"], stored["documents"], strict=True):
        diagnosis = diagnose_job(Request(row["location"]))
        assert document["document"] == json_lines.render(diagnosis)
        assert row["slowdown"] == diagnosis.what_if.slowdown and row["n_gpus"] == diagnosis.job.world_size
        causes = [cause["cause"] for cause in stored["causes"] if cause["location"] == row["location"]]
        assert causes == [cause.cause for cause in diagnosis.causes]


def test_remote(store_url: str, small_jobs, tmp_path: Path) -> None:
    """A trace in an object store is diagnosed like one here, with the metadata beside it."""
    fsspec = pytest.importorskip("fsspec")
    files = fsspec.filesystem("memory")
    files.pipe("/bucket/a.parquet", small_jobs[1].read_bytes())
    files.pipe("/bucket/a.yaml", b"owner: somebody\n")
    files.pipe("/bucket/b.parquet", b"nothing")
    judge = Judge("v", "r", None, 1.02)
    try:
        jobs = list_jobs(["memory://bucket"])
        with Store(store_url) as store:
            found = run_triage(jobs, store, lambda _: Here(), RunSettings(judge, None, 2**30, 60.0))
    finally:
        files.rm("/bucket", recursive=True)
    assert (found.n_diagnosed, found.n_failed) == (1, 1)
    good, bad = dump(store_url)["jobs"]
    assert (good["job_id"], good["owner"]) == ("job-1", "somebody")
    assert bad["reason"].startswith("memory:///bucket/b.parquet: ")


def test_memory() -> None:
    """Amounts as people write them."""
    assert read_bytes("1.5GiB") == 3 * 2**29 and read_bytes("2000000") == 2_000_000
    for wrong in ("", "lots", "G", "-1G", "1P", "10"):
        with pytest.raises(UsageError, match="--memory"):
            read_bytes(wrong)
