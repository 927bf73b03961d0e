"""Jobs that are watched while they run."""

import dataclasses
import json
import shutil

import pyarrow.parquet as pq
import pytest

from diagnose.cli.main import main
from diagnose.errors import ServiceError
from diagnose.faults.decoys import Evaluation
from diagnose.faults.generate import generate
from diagnose.model.live import WatchedJob
from diagnose.model.plain import to_json
from diagnose.model.request import Request
from diagnose.pipeline import diagnose_job
from diagnose.watch import watch as watch_module
from diagnose.watch import window
from diagnose.watch.compare import SLOWER
from tests.watch.recorded import RecordedJob, SimulatedClock
from tests.watch.watching import SMALL, Watching, make_trace, slow_worker, stretch


@pytest.fixture
def clock() -> SimulatedClock:
    """Give a clock that stands."""
    return SimulatedClock()


@pytest.fixture
def watch(tmp_path, clock):
    """Give what watches a folder of the scratch folder; it is ended with the test."""
    opened = []

    def begin(folder: str, **asked) -> Watching:
        opened.append(Watching(tmp_path / folder, store=tmp_path / "store.db", clock=clock, **asked))
        return opened[-1]

    yield begin
    for watching in opened:
        watching.close()


def write_on(job: RecordedJob, watching: Watching, through: int, **which) -> WatchedJob:
    """Let a job go on up to its n-th step, and the watch look at it."""
    last = int(job.steps[through - 1])
    watching.clock.at_s = max(watching.clock.at_s, job.ends_s[last])
    job.write(last, **which)
    return watching.go()[0]


class Kept:
    """A view that keeps what it is shown."""

    def __init__(self):
        self.diagnoses = []
        self.shown = []

    def diagnosed(self, job, diagnosis, _data):
        """Keep a window."""
        self.diagnoses.append((job.windows[-1], diagnosis))

    def show(self, jobs, events, _now_s):
        """Keep a round."""
        self.shown.append((tuple(jobs), tuple(events)))

    def close(self):
        """Keep that it ended."""
        self.shown.append("closed")


def test_a_fault_from_its_onset_to_its_end(tmp_path, watch):
    """GIVEN a worker that is slow from step 65 to 140 of 240, THEN that is told once, at once, with its end."""
    job = RecordedJob(make_trace(240, slow_worker(240, 50, 125)), tmp_path / "job")
    watching = watch("job")
    for through in range(20, 241, 20):
        found = write_on(job, watching, through)
    [began], [recovered] = watching.events("began"), watching.events("recovered")
    assert began.episode.cause == "worker-fault" and began.episode.delay_windows <= 1
    assert 56 <= began.episode.first_step <= 67 and 136 <= recovered.episode.recovered_step <= 156
    assert recovered.text.endswith(f", steps {began.episode.first_step} to {recovered.episode.recovered_step - 1}")
    assert not watching.events("grew") and not watching.complaints
    assert len(found.windows) == 12 and [window.number for window in found.windows] == list(range(12))
    assert found.course_steps[0] == 16 and len(found.course_slowdowns) == len(found.course_steps)
    assert began.episode.began_s == pytest.approx(job.ends_s[began.episode.first_step - 1], abs=0.2)
    assert began.episode.delay_s > 0


def test_a_worker_that_gets_faster_is_no_fault_of_the_others(tmp_path, watch):
    """GIVEN one of two workers that is faster from step 147 on, THEN windows blame the other one, and no episode is told."""
    fault = dataclasses.replace(
        slow_worker(300, 147, None, dp=2), places=((0, 0),), slowdown=0.7, backward_slowdown=None
    )
    job = RecordedJob(make_trace(300, fault, dp=2), tmp_path / "job")
    watching = watch("job")
    found = write_on(job, watching, 300)
    assert [window.verdict for window in found.windows[9:]] == ["straggling"] * 6
    assert found.episodes == () and not watching.events("began") and not watching.complaints


def test_each_window_is_what_diagnose_says_of_its_rows(tmp_path, watch):
    """GIVEN a job that was watched, THEN its files with the steps of one window alone give the same diagnosis, byte for byte."""
    trace = make_trace(80, slow_worker(80, 30, None))
    job = RecordedJob(trace, tmp_path / "job")
    view = Kept()
    watching = watch("job", views=(view,))
    for through in range(10, 81, 10):
        write_on(job, watching, through)
    assert len(view.diagnoses) == 4
    for of, diagnosis in view.diagnoses:
        alone = tmp_path / "alone" / "job"
        alone.mkdir(parents=True)
        for file in job.folder.iterdir():
            table = pq.read_table(file)
            steps = table["step"].to_numpy()
            pq.write_table(table.filter((steps >= of.first_step) & (steps <= of.last_step)), alone / file.name)
        offline = diagnose_job(Request(alone, location=str(tmp_path / "job")))
        assert to_json(offline.to_dict()) == to_json(diagnosis.to_dict())
        shutil.rmtree(tmp_path / "alone")


def test_a_rank_that_is_late_vanishes_and_comes_back(tmp_path, clock, watch):
    """A late rank is waited for; then windows go on without it, and it is silent until it writes again."""
    job = RecordedJob(make_trace(200), tmp_path / "job")
    watching = watch("job")
    assert len(write_on(job, watching, 20).windows) == 1
    assert len(write_on(job, watching, 40, ranks=[0, 1, 2]).windows) == 1
    assert len(write_on(job, watching, 40).windows) == 2  # it was only late
    assert not any(window.silent for window in watching.watch.jobs()[0].windows)
    write_on(job, watching, 80, ranks=[0, 1, 2])
    clock.at_s += 3600
    found = watching.go()[0]
    assert [window.silent for window in found.windows[2:]] == [(3,), (3,)]
    assert found.state == "running" and "1 of 4 ranks silent" in found.why
    write_on(job, watching, 100, ranks=[0, 1, 2])  # nobody waits for it now
    assert len(watching.watch.jobs()[0].windows) == 5
    found = write_on(job, watching, 160)
    assert [window.silent for window in found.windows[5:]] == [(), (), ()]
    assert not watching.complaints


def test_half_of_the_ranks_are_silent(tmp_path, clock, watch):
    """With half of its ranks nobody sees a job, and nothing is told as found; when they are back it is seen again."""
    job = RecordedJob(make_trace(120), tmp_path / "job")
    watching = watch("job")
    write_on(job, watching, 20)
    write_on(job, watching, 60, ranks=[0, 1])
    clock.at_s += 3600
    found = watching.go()[0]
    assert found.state == "blind" and found.why == "2 of 4 ranks write nothing"
    assert write_on(job, watching, 120).state == "running"
    states = [event.state for event in watching.events("state")]
    assert states == ["running", "blind", "running"]


def test_nothing_new_is_told_as_blind_and_the_end_as_ended(tmp_path, clock, watch):
    """GIVEN a job that writes nothing, THEN it is blind, once; a job that says that it ended has ended."""
    job = RecordedJob(make_trace(80), tmp_path / "job")
    watching = watch("job")
    write_on(job, watching, 40)
    for _ in range(100):
        found = watching.go()[0]
    assert found.state == "blind" and "no new rows since" in found.why
    assert write_on(job, watching, 45).state == "running"  # rows come, though they are no window yet
    clock.at_s += 7200.0
    assert watching.go()[0].state == "blind"
    found = write_on(job, watching, 75, ended=True)
    assert (
        found.state == "ended" and found.windows[-1].last_step == job.steps[74]
    )  # the last 15 steps are a window, too
    clock.at_s += 1e6
    assert watching.go()[0].state == "ended"
    assert [event.state for event in watching.events("state")] == [*["running", "blind"] * 2, "running", "ended"]


def test_a_job_that_is_started_again(tmp_path, watch):
    """Steps go back with a new start; what is left of the one before is diagnosed first."""
    trace = make_trace(100)
    job = RecordedJob(trace, tmp_path / "job")
    watching = watch("job")
    write_on(job, watching, 55)
    again = RecordedJob(trace, tmp_path / "job", start="start-2", shift=30)
    found = write_on(again, watching, 40)
    assert [(window.first_step, window.last_step) for window in found.windows] == [
        (16, 35),
        (36, 55),
        (56, 70),
        (46, 65),
        (66, 85),
    ]
    assert not watching.complaints


@pytest.mark.parametrize("restarts", [False, True])
def test_all_of_a_job_gets_slower(tmp_path, watch, restarts):
    """GIVEN a job that takes a third longer from some step on, THEN that is told as it is, but not where it was started again."""
    trace, slower = make_trace(160), stretch(make_trace(320), 1.33, 176)
    job = RecordedJob(trace if restarts else slower, tmp_path / "job")
    watching = watch("job")
    found = write_on(job, watching, 160)
    if restarts:
        job = RecordedJob(stretch(make_trace(160, seed=1), 1.33), tmp_path / "job", start="start-2", shift=160)
    found = write_on(job, watching, 160 if restarts else 320)
    assert len(found.windows) == 16 and not watching.complaints
    assert [event.episode.title for event in watching.events("began")] == (
        [] if restarts else [f"{SLOWER}, most of it in computing"]
    )
    if not restarts:
        assert found.episodes[0].first_step == 176 and found.episodes[0].gain == pytest.approx(0.25, abs=0.02)


def test_an_evaluation_now_and_then_is_no_slowness(tmp_path, watch):
    """GIVEN a job that evaluates in two of five windows, which are longer for it, THEN nothing is told."""
    spec = dataclasses.replace(SMALL, steps=240, seed=900, noise=0.5)
    job = RecordedJob(generate(spec, decoys=[Evaluation(period_steps=50, slowdown=4)]).trace, tmp_path / "job")
    watching = watch("job")
    found = write_on(job, watching, 240)
    steps_s = [window.step_s for window in found.windows]
    assert len(steps_s) == 12 and max(steps_s) > 1.04 * min(steps_s)
    assert not watching.events("began") and not watching.complaints


@pytest.mark.parametrize("is_killed", [False, True])
def test_files_that_begin_anew_in_the_same_place(tmp_path, watch, is_killed):
    """GIVEN a job that is started again and replaces its files, THEN its steps from the beginning count, of every rank."""
    trace = make_trace(100)
    job = RecordedJob(trace, tmp_path / "job", start="")
    watching = watch("job")
    write_on(job, watching, 80)
    if is_killed:
        watching.kill()
        watching = watch("job")
    again = RecordedJob(trace, tmp_path / "job", start="")
    again.metadata["started_at"] = "2027"
    write_on(again, watching, 20, ranks=[0, 2])
    assert len(watching.watch.jobs()[0].windows) == 4
    found = write_on(again, watching, 40)
    assert [window.first_step for window in found.windows] == [16, 36, 56, 76, 16, 36]
    assert not any(window.silent for window in found.windows)


def test_files_that_are_truncated_and_whole_again(tmp_path, watch):
    """A file that is cut off is looked at again; no step is diagnosed twice, or left out."""
    job = RecordedJob(make_trace(120), tmp_path / "job")
    watching = watch("job")
    write_on(job, watching, 30)
    file = job.folder / "rank-00002.parquet"
    whole = file.read_bytes()
    for cut in (0, 3, len(whole) // 2, len(whole) - 1):
        file.write_bytes(whole[:cut])
        assert len(watching.go()[0].windows) == 1
    file.unlink()
    watching.go()
    found = write_on(job, watching, 120)
    assert [window.first_step for window in found.windows] == [16, 36, 56, 76, 96, 116]
    assert not any(window.silent for window in found.windows) and not watching.complaints


def test_started_again_it_goes_on_where_it_was(tmp_path, watch):
    """GIVEN a watch that is killed after every window, THEN all that is told is told once, and no window is diagnosed twice."""
    job = RecordedJob(make_trace(240, slow_worker(240, 50, 125)), tmp_path / "job")
    told = []
    for through in range(20, 241, 20):
        watching = watch("job")
        found = write_on(job, watching, through)
        told += watching.printed
        watching.kill()
    kinds = [event.event for event in told]
    assert (kinds.count("window"), kinds.count("began"), kinds.count("recovered")) == (12, 1, 1)
    assert [window.number for window in found.windows] == list(range(12))


def test_one_broken_job_stops_nobody(tmp_path, clock, watch):
    """A folder with rubbish, a file that is no trace, and a job whose rows are nonsense: the sound job is watched."""
    job = RecordedJob(make_trace(40), tmp_path / "traces" / "sound")
    (tmp_path / "traces" / "rubbish").mkdir(parents=True)
    (tmp_path / "traces" / "rubbish" / "rank-00000.parquet").write_bytes(b"PAR1 and no more")
    odd = RecordedJob(make_trace(40), tmp_path / "traces" / "odd")
    odd.types = ["optimizer"] * len(odd.types)
    odd.write(int(odd.steps[-1]))
    watching = watch("traces")
    clock.at_s = (odd.folder / "rank-00000.parquet").stat().st_mtime
    job.write(int(job.steps[-1]))
    watching.go()
    found = {one.name: one for one in watching.watch.jobs()}
    assert len(found["sound"].windows) == 2 and found["sound"].windows[0].verdict == "healthy"
    broken = next(one for one in watching.watch.jobs() if one.location.endswith("odd"))
    assert broken.windows[-1].verdict == "inconclusive" and "forward-compute" in broken.windows[-1].why


def test_two_do_not_watch_one_job(tmp_path, watch):
    """A second watch with the same store leaves the job to the first, and takes it over when that is dead."""
    job = RecordedJob(make_trace(60), tmp_path / "job")
    first, second = watch("job"), watch("job")
    assert len(write_on(job, first, 20).windows) == 1
    assert second.go() == [] and second.complaints == [f"{tmp_path / 'job'}: another process watches it"]
    first.kill()
    second.store.expire_leases()
    assert len(write_on(job, second, 60).windows) == 3


def test_a_window_that_cannot_be_diagnosed_is_left_behind(tmp_path, watch, monkeypatch):
    """What fails in a way that nobody thought of is told with the window, and the next one is diagnosed."""
    job = RecordedJob(make_trace(60), tmp_path / "job")
    watching = watch("job")
    write_on(job, watching, 20)
    with monkeypatch.context() as patch:
        patch.setattr(window, "diagnose_and_keep", lambda _request: 1 // 0)
        found = write_on(job, watching, 40)
    assert found.windows[-1].why == "internal error: ZeroDivisionError: integer division or modulo by zero"
    assert write_on(job, watching, 60).windows[-1].verdict == "healthy" and not watching.complaints


def test_a_store_that_cannot_be_written_loses_nothing(tmp_path, watch, monkeypatch):
    """GIVEN a full disk for a while, THEN that is said once, and each window and episode is there when there is room."""
    job = RecordedJob(make_trace(160, slow_worker(160, 50, None)), tmp_path / "job")
    watching = watch("job")

    def refuse(*_args):
        raise ServiceError("database or disk is full")

    write_on(job, watching, 20)
    with monkeypatch.context() as patch:
        patch.setattr(watch_module, "write_watched", refuse)
        for through in (40, 80, 120):
            assert len(write_on(job, watching, through).windows) == 1
    assert len(watching.complaints) == 1 and "disk is full" in watching.complaints[0]
    assert not watching.events("began")
    assert len(write_on(job, watching, 160).windows) == 8 and len(watching.events("began")) == 1


def test_a_view_that_fails_is_shown_no_more(tmp_path, watch):
    """What cannot be drawn is told once, and the watch goes on."""

    class Broken(Kept):
        def show(self, _jobs, _events, _now_s):
            raise ValueError("no pen")

    view = Kept()
    job = RecordedJob(make_trace(40), tmp_path / "job")
    watching = watch("job", views=(Broken(), view))
    write_on(job, watching, 20)
    write_on(job, watching, 40)
    watching.close()
    assert watching.complaints == ["ValueError: no pen; shown no more"]
    assert view.shown[-1] == "closed" and len(view.diagnoses) == 2


def test_on_the_command_line(tmp_path, monkeypatch, capsys):
    """`--once` diagnoses what is there and stops; a second time nothing is new; JSON is an event a line."""
    monkeypatch.chdir(tmp_path)
    job = RecordedJob(make_trace(60, slow_worker(60, 20, None)), tmp_path / "job")
    job.write(int(job.steps[-1]))
    assert main(["watch", "job", "--once", "--format", "json"]) == 0
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [line["event"] for line in lines].count("window") == 3
    [began] = [line for line in lines if line["event"] == "began"]
    assert began["schema"] == "diagnose-watch/1" and began["episode"]["cause"] == "worker-fault"
    assert main(["watch", "job", "--once"]) == 0
    assert capsys.readouterr().out == ""


@pytest.mark.parametrize(
    ("args", "said"),
    [
        (["nothing-there"], "nothing-there is not there"),
        (["empty"], "no job that can be followed"),
        (["notes.md"], "holds nothing that can be followed"),
        (["s3://bucket/traces"], "object stores cannot be followed"),
    ],
)
def test_what_cannot_be_followed_is_refused_in_a_line(tmp_path, monkeypatch, capsys, args, said):
    """One line, without a traceback, and without a store."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "empty").mkdir()
    (tmp_path / "notes.md").write_text("# Notes\n\nNothing here.\n")
    assert main(["watch", *args, "--once"]) == 2
    error = capsys.readouterr().err
    assert said in error and "Traceback" not in error
    assert not (tmp_path / "diagnose.db").exists(), "no store is made for what is refused"
