"""What else may lie in a folder that is watched, and what may happen to a machine meanwhile."""

import gc
import itertools
import os
import time

import msgspec

from diagnose.report.live_words import moment
from diagnose.triage.watched import read_watched
from diagnose.watch.files import TraceFiles
from diagnose.watch.folder import PageFolder
from diagnose.watch.job import JobState
from diagnose.watch.source import Mark
from diagnose.watch.steps import StepSource
from diagnose.watch.tell import list_news
from tests.watch.recorded import RecordedJob, SimulatedClock
from tests.watch.watching import Watching, make_trace, slow_worker, stretch


def test_what_is_no_file_is_not_waited_for(tmp_path):
    """A pipe, a folder and a link in a circle, named as traces are, stop nobody."""
    job = RecordedJob(make_trace(60), tmp_path / "job")
    job.write(int(job.steps[-1]), ended=True)
    os.mkfifo(job.folder / "rank-9.parquet")
    (job.folder / "folder.parquet").mkdir()
    (job.folder / "circle.parquet").symlink_to("circle.parquet")
    watching = Watching(tmp_path / "job", store=tmp_path / "s.db", clock=SimulatedClock())
    assert len(watching.go()[0].windows) == 3
    watching.close()


def test_a_clock_that_is_set_back(tmp_path):
    """Jobs go on being looked at when the clock of the machine is two hours earlier than it was."""
    job, clock = RecordedJob(make_trace(60), tmp_path / "job"), SimulatedClock()
    watching = Watching(tmp_path / "job", store=tmp_path / "s.db", clock=clock)
    job.write(int(job.steps[19]))
    assert len(watching.go()[0].windows) == 1
    clock.at_s -= 7200.0
    job.write(int(job.steps[-1]), ended=True)
    assert len(watching.go()[0].windows) == 3
    watching.close()


def test_a_busy_machine_puts_no_job_off(tmp_path, monkeypatch):
    """GIVEN looks that wait for seconds until other processes let them, THEN a job is looked at as soon as otherwise."""
    job, clock = RecordedJob(make_trace(60), tmp_path / "job"), SimulatedClock()
    watching = Watching(tmp_path / "job", store=tmp_path / "s.db", clock=clock)
    job.write(int(job.steps[19]))
    assert len(watching.go()[0].windows) == 1
    waited = itertools.count(step=30)
    monkeypatch.setattr(time, "perf_counter", lambda: float(next(waited)))
    assert len(watching.go()[0].windows) == 1
    job.write(int(job.steps[-1]), ended=True)
    assert len(watching.go()[0].windows) == 3
    watching.close()


def test_a_job_that_hangs_is_not_forgotten(tmp_path):
    """Started again hours after a job hung, the watch shows it with its episode; after a week it gives it up."""
    clock = SimulatedClock(time.time())
    job = RecordedJob(make_trace(120, slow_worker(120, 30, None)), tmp_path / "jobs/hangs", began_s=clock.at_s)
    other = RecordedJob(make_trace(30), tmp_path / "jobs/over", began_s=clock.at_s)
    first = Watching(tmp_path / "jobs", store=tmp_path / "s.db", clock=clock)
    job.write(int(job.steps[99]))
    other.write(int(other.steps[-1]), ended=True)
    assert [found.state for found in first.go()] == ["running", "ended"]
    clock.at_s += 900.0
    first.go()
    first.close()
    clock.at_s += 7200.0
    again = Watching(tmp_path / "jobs", store=tmp_path / "s.db", clock=clock)
    hangs, over = again.go()
    assert (hangs.state, over.state) == ("blind", "ended")
    assert [episode.recovered_step for episode in hangs.episodes] == [None]
    clock.at_s += 86_400.0
    assert [found.name for found in again.go()] == ["hangs"]
    clock.at_s += 8 * 86_400.0
    assert again.go() == []
    again.close()


def test_files_that_are_written_between_a_look_and_the_reading(tmp_path):
    """GIVEN ranks that write anew just after they were looked at, THEN none of them is called silent, and no row is lost."""
    job = RecordedJob(make_trace(60), tmp_path / "job")
    job.write(int(job.steps[24]))
    source, found = StepSource(tmp_path / "job", Mark(), files=TraceFiles(tmp_path / "job"), window_steps=20), []
    for through in (39, 59, 59, 59, 59):
        source.look()
        job.write(int(job.steps[through]), ranks=[1, 2])
        if (delivery := source.deliver(0.0)) is not None:
            found.append((delivery.mark.position, delivery.silent, delivery.n_rows))
            source.take(delivery, 0.0)
        job.write(int(job.steps[through]))
    rows = found[0][2]
    assert found == [(int(job.steps[n]), (), rows) for n in (19, 39, 59)]


def test_tickets_link_to_the_live_page(tmp_path):
    """A ticket of an episode has the address at which the page of its job lies, in a folder or on a server."""
    job = RecordedJob(make_trace(60, slow_worker(60, 10, None)), tmp_path / "a job")
    job.write(int(job.steps[-1]), ended=True)
    pages = PageFolder(tmp_path / "live", lambda _: None)
    watching = Watching(tmp_path / "a job", store=tmp_path / "s.db", clock=SimulatedClock(), views=(pages,))
    watching.go()
    state = msgspec.json.decode(read_watched(watching.store, str(tmp_path / "a job")), type=JobState)
    (news,) = list_news(str(tmp_path / "a job"), state, watching.clock.at_s, "https://jobs.example/live/")
    base, _, page = news.ticket.report.partition("/live/")
    assert base == "https://jobs.example" and (tmp_path / "live" / page).is_file()
    watching.close()


def test_a_job_that_hung_before_anybody_watched_is_blind_at_once(tmp_path):
    """GIVEN files that nobody wrote for two hours, THEN what is there is diagnosed, and the job is blind since then."""
    clock = SimulatedClock()
    job = RecordedJob(make_trace(80), tmp_path / "job")
    job.write(int(job.steps[79]))
    last_s = job.ends_s[int(job.steps[79])]
    clock.at_s = last_s + 7200.0
    watching = Watching(tmp_path / "job", store=tmp_path / "store.db", clock=clock)
    [found] = watching.go()
    assert len(found.windows) == 4 and found.state == "blind" and f"no new rows since {moment(last_s)}" in found.why
    watching.close()


def test_a_slow_job_that_was_caught_up_with_is_not_blind(tmp_path):
    """GIVEN windows of 20 minutes each, all there when the watch begins, THEN it waits an hour for the next one."""
    clock = SimulatedClock()
    job = RecordedJob(stretch(make_trace(100), 200.0), tmp_path / "job")
    job.write(int(job.steps[79]))
    clock.at_s = job.ends_s[int(job.steps[79])]
    watching = Watching(tmp_path / "job", store=tmp_path / "store.db", clock=clock)
    window_s = (job.ends_s[int(job.steps[79])] - job.ends_s[int(job.steps[19])]) / 3
    assert window_s > 1000.0 and watching.go()[0].state == "running"
    clock.at_s += 2.5 * window_s
    assert watching.go()[0].state == "running"
    clock.at_s += window_s
    assert watching.go()[0].state == "blind"
    watching.close()


def test_windows_leave_nothing_of_ours_in_circles(tmp_path):
    """What a window needed is freed with it: nothing of ours, and no footer of a file, waits until somebody looks for garbage.

    Footers are the largest of it: 130 KB a window of four ranks.
    """
    job = RecordedJob(make_trace(200, slow_worker(200, 100, None)), tmp_path / "job")
    watching = Watching(tmp_path / "job", store=tmp_path / "s.db", clock=SimulatedClock())
    job.write(int(job.steps[99]))
    watching.go()
    gc.collect()
    gc.disable()
    try:
        job.write(int(job.steps[-1]))
        assert len(watching.go()[0].windows) == 10
        gc.set_debug(gc.DEBUG_SAVEALL)
        gc.collect()
        left = {f"{type(one).__module__}.{type(one).__name__} {getattr(one, '__module__', '')}" for one in gc.garbage}
    finally:
        gc.set_debug(0)
        gc.garbage.clear()
        gc.enable()
    assert not [one for one in left if "diagnose" in one or "pyarrow" in one]
    watching.close()


def test_memory_goes_back_after_each_window(tmp_path, monkeypatch):
    """GIVEN a process that keeps what it frees, and looks for garbage seldom, THEN the watch gives back and looks itself."""
    given, looked = [], []
    monkeypatch.setattr("diagnose.watch.watch.GARBAGE_WINDOWS", 3)
    monkeypatch.setattr("diagnose.watch.watch.give_back", lambda: given.append(True))
    monkeypatch.setattr("diagnose.watch.watch.gc.collect", lambda: looked.append(True))
    job = RecordedJob(make_trace(140), tmp_path / "job")
    watching = Watching(tmp_path / "job", store=tmp_path / "s.db", clock=SimulatedClock())
    job.write(int(job.steps[-1]))
    assert len(watching.go()[0].windows) == len(given) == 7 and len(looked) == 2
    watching.close()
