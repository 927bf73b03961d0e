"""What is followed beside the recorder's files: training logs, sessions of a profiler; and what looking costs."""

import os
import re
from collections.abc import Iterable
from pathlib import Path

import pyarrow.parquet as pq
import pytest

import diagnose
from diagnose.errors import UsageError
from diagnose.trace import growing
from diagnose.watch import files
from diagnose.watch.files import LineFiles, find_lines
from diagnose.watch.source import Mark
from diagnose.watch.steps import StepSource
from tests.trace.producers import kineto_traces, megatron_lines, pipelines, torchtitan_files
from tests.watch.recorded import RecordedJob, SimulatedClock
from tests.watch.watching import Watching, make_trace


@pytest.fixture
def clock() -> SimulatedClock:
    """Give a clock that stands."""
    return SimulatedClock()


@pytest.mark.parametrize("order", ["by step", "by rank", "in groups, without statistics"])
def test_one_file_that_is_written_anew(tmp_path, clock, order):
    """GIVEN a trace in one file that gets longer, its rows in any order, THEN each step is in one window, with all its rows."""
    trace = make_trace(90)
    by_rank = [("dp_rank", "ascending"), ("stage", "ascending"), ("step", "ascending")]
    trace = trace.sort_by(by_rank if order == "by rank" else [("step", "ascending")])
    steps = trace["step"].to_numpy()
    file = tmp_path / "job.parquet"
    more = {"row_group_size": 300, "write_statistics": False} if "groups" in order else {}
    watching = Watching(file, store=tmp_path / "store.db", clock=clock)
    for through in range(16 + 15, 16 + 91, 15):
        pq.write_table(trace.filter(steps < through), file, **more)
        watching.go()
    windows = watching.watch.jobs()[0].windows
    assert [(one.first_step, one.last_step) for one in windows] == [(16, 35), (36, 55), (56, 75), (76, 95)]
    assert [one.n_rows for one in windows] == [
        int(((steps >= one.first_step) & (steps <= one.last_step)).sum()) for one in windows
    ]
    watching.close()


def test_a_training_log_that_grows(tmp_path, clock):
    """GIVEN a log whose iterations take 1.3 times as long from one on, THEN that is told once, and when they are back."""
    pace = megatron_lines.noisy([(200, 1.0), (160, 1.3), (160, 1.0)])
    lines = megatron_lines.run(range(1, 521), pace)
    log = tmp_path / "train.log"
    log.write_text("")
    watching = Watching(log, store=tmp_path / "store.db", clock=clock)
    assert watching.go() == [] and not watching.complaints  # it may become anything
    for first in range(0, len(lines), 25):
        with log.open("a") as file:
            file.write("\n".join(lines[first : first + 25]) + "\n" + "half of a li")
        clock.at_s += 25.0
        watching.go()
        os.truncate(log, log.stat().st_size - len("half of a li"))
    [found] = watching.watch.jobs()
    began, over = watching.events("began"), watching.events("recovered")
    assert len(began) == len(over) == 1 and not watching.complaints
    assert 195 <= began[0].episode.first_step <= 225 and began[0].episode.delay_windows <= 3
    assert sum(len(window.steps) for window in found.windows) == 520
    watching.close()


def test_a_training_log_that_is_there_whole(tmp_path, clock):
    """GIVEN a log with a long first iteration that had ended before it is read, THEN its windows are those of one that grows."""
    pace = megatron_lines.noisy([(1, 35.0), (199, 1.0), (160, 1.3), (155, 1.0)])
    log = tmp_path / "train.log"
    log.write_text(
        "\n".join([*megatron_lines.argument_lines(world_size=8), *megatron_lines.run(range(1, 516), pace)]) + "\n"
    )
    watching = Watching(log, store=tmp_path / "store.db", clock=clock, once=True, window_steps=20)
    watching.go()
    [found] = watching.watch.jobs()
    began, over = watching.events("began"), watching.events("recovered")
    assert len(began) == len(over) == 1 and not watching.complaints
    assert 195 <= began[0].episode.first_step <= 205
    assert [(one.first_step, one.last_step) for one in found.windows] == [
        (n, min(n + 19, 515)) for n in range(1, 516, 20)
    ]
    watching.close()


def test_sessions_of_a_profiler(tmp_path, clock):
    """A session is a window once every rank has written its file; one that is still written is waited for."""
    folder = tmp_path / "profiles"

    def write(session: int, rank: int) -> None:
        at = folder / f"iteration_{session}" / f"rank{rank}_trace.json"
        at.parent.mkdir(parents=True, exist_ok=True)
        trace = kineto_traces.data_parallel_rank(n_steps=8)
        trace.write(at, **kineto_traces.distributed(rank, 2))
        os.utime(at, (clock.at_s, clock.at_s))

    write(100, 0), write(100, 1)
    watching = Watching(folder, store=tmp_path / "store.db", clock=clock)
    assert [len(job.windows) for job in watching.go()] == [1]
    write(200, 0)
    assert len(watching.go()[0].windows) == 1
    write(200, 1)
    [found] = watching.go()
    assert len(found.windows) == 2 and not found.windows[-1].why, found.windows[-1].why
    assert not watching.complaints
    watching.close()


def grow(whole: Path, folder: Path, part: float) -> None:
    """Let the logs of a folder be as long as they were at some time; the last line may be half there."""
    for file in whole.iterdir():
        text = file.read_bytes()
        folder.mkdir(exist_ok=True)
        (folder / file.name).write_bytes(text[: int(len(text) * part)])


def steps_of(watching: Watching) -> list[int]:
    """Give the steps of all windows of the one job."""
    [job] = watching.watch.jobs()
    return [step for window in job.windows for step in window.steps]


def test_structured_logs_that_grow(tmp_path, clock):
    """GIVEN torchtitan's logs, one rank slow to read from a step on, THEN each step is in one window, and that is told once."""
    slow = {"fetch": lambda rank, step: 0.25 * (rank == 2 and step >= 100), "n_ranks": 4}
    whole = torchtitan_files.write_logs(tmp_path / "whole", steps=range(1, 182), **slow)
    folder = tmp_path / "structured_logs"
    watching = Watching(folder.parent / "structured_logs", store=tmp_path / "store.db", clock=clock)
    for n in range(1, 26):
        grow(whole, folder, n / 25)
        clock.at_s += 60.0
        watching.go()
    assert steps_of(watching) == list(range(1, 181))
    [began] = watching.events("began")
    assert began.episode.cause == "data-loading" and not watching.complaints
    assert abs(began.episode.first_step - 100) <= 1 and began.episode.delay_windows <= 1
    # Started again, each rank writes a new file: what was left is one window, then the steps of the new start.
    torchtitan_files.write_logs(folder, steps=range(175, 196), attempt=1, **slow)
    clock.at_s += 60.0
    watching.go()
    assert steps_of(watching) == [*range(1, 181), *range(175, 195)]
    watching.close()


@pytest.mark.parametrize("is_one", [False, True])
def test_event_timers_that_grow(tmp_path, clock, is_one):
    """GIVEN logs of event timers, a file a rank or one of all, THEN windows hold whole iterations, whoever watches."""
    made = pipelines.write_event_timer(tmp_path / "made", pipelines.Pipeline(n_steps=45).run())
    whole = tmp_path / "whole"
    whole.mkdir()
    texts = {file.name: file.read_text() for file in sorted(made.iterdir())}
    if is_one:
        texts = {"all.log": mix_by_iteration(texts.values())}
    for name, text in texts.items():  # all of it twice: the job was started again
        (whole / name).write_text(text + text)
    folder = tmp_path / "logs"
    for n in range(1, 21):
        grow(whole, folder, n / 20)
        clock.at_s += 60.0
        watching = Watching(folder / "all.log" if is_one else folder, store=tmp_path / "store.db", clock=clock)
        watching.go()
        found = steps_of(watching)
        assert not watching.complaints
        watching.close()
    assert found == [*range(1, 41), *range(1, 41)]  # a quarter of a window was left of the first start


def write_one_log(path: Path, n_steps: int) -> str:
    """Write the log of all ranks of an event timer into one file."""
    path.parent.mkdir(exist_ok=True)
    made = pipelines.write_event_timer(path.parent.parent / "made", pipelines.Pipeline(n_steps=n_steps).run())
    text = mix_by_iteration(file.read_text() for file in sorted(made.iterdir()))
    path.write_text(text)
    return text


def test_a_folder_with_one_log(tmp_path, clock):
    """GIVEN a folder with one log, still empty when the watch begins, THEN it is followed once it says what it is."""
    path = tmp_path / "logs" / "all.log"
    text = write_one_log(path, 22)
    path.write_text("")
    watching = Watching(path.parent, store=tmp_path / "store.db", clock=clock)
    watching.go()
    path.write_text(text)
    watching.go()
    assert steps_of(watching) == [*range(1, 21)]
    watching.close()


@pytest.mark.parametrize("n_starts", [1, 2])
def test_a_log_that_was_begun_anew_while_nobody_watched(tmp_path, clock, n_starts):
    """GIVEN a log of which more was taken than it has now, THEN it is of another start, and read as one."""
    path = tmp_path / "all.log"
    text = write_one_log(path, 42)
    for part, windows in ((text * n_starts, [*range(1, 41)] * n_starts), (text[: len(text) * 3 // 5], [*range(1, 21)])):
        path.write_text(part)
        watching = Watching(path, store=tmp_path / "store.db", clock=clock)
        watching.go()
        assert steps_of(watching)[-len(windows) :] == windows
        watching.close()


def test_files_that_are_no_logs_are_asked_once(tmp_path, clock, monkeypatch):
    """GIVEN files beside logs that do not change, THEN they are not opened at each look; one that was empty is asked again."""
    logs = pipelines.write_event_timer(tmp_path / "logs", pipelines.Pipeline(n_steps=22).run())
    (logs / "notes").write_text("none")
    (logs / "empty").write_text("")
    asked = []
    monkeypatch.setattr(files, "find_lines", lambda path: asked.append(path.name) or find_lines(path))
    found = LineFiles(logs, "event-timer", Mark())
    for _ in range(3):
        assert len(found.list_starts()["000000"]) == 4
    assert sorted(asked) == sorted(path.name for path in logs.iterdir())
    (logs / "empty").write_bytes((logs / "GPU0.log").read_bytes())
    assert len(found.list_starts()["000000"]) == 5


def test_logs_of_one_name_in_folders_of_ranks(tmp_path):
    """GIVEN a folder a rank, in each a log of the same name, THEN a window has the lines of all of them."""
    made = pipelines.write_event_timer(tmp_path / "made", pipelines.Pipeline(n_steps=30).run())
    for file in made.iterdir():
        (tmp_path / "logs" / file.stem).mkdir(parents=True)
        (tmp_path / "logs" / file.stem / "timer.log").write_bytes(file.read_bytes())
    logs = tmp_path / "logs"
    source = StepSource(logs, Mark(), files=LineFiles(logs, "event-timer", Mark()), window_steps=20)
    source.look()
    delivery = source.deliver(0.0)
    assert delivery is not None and delivery.n_ranks == 4
    with delivery.lay_out() as window:
        assert len(list(window.rglob("timer.log"))) == 4
        assert diagnose.diagnose(window).job.pp_size == 4


def test_both_logs_of_a_scheduler_that_switches_are_refused(tmp_path, clock):
    """Iterations of two modes are counted apart: nobody knows which is next, and that is said in a line."""
    logs = pipelines.write_event_timer(tmp_path / "logs", pipelines.Pipeline().run())
    for file in list(logs.iterdir()):
        (logs / f"{file.stem}_CPU.log").write_bytes(file.read_bytes())
    watching = Watching(logs, store=tmp_path / "store.db", clock=clock)
    with pytest.raises(UsageError, match="holds nothing that can be followed"):
        watching.go()
    watching.close()


def mix_by_iteration(texts: Iterable[str]) -> str:
    """Mix the logs of all ranks as they come: iteration by iteration."""
    parts = [re.split(r"(?m)^(?=.*Iteration)", text)[1:] for text in texts]
    return "".join("".join(of) for of in zip(*parts, strict=True))


def test_jobs_that_write_nothing_cost_a_look(tmp_path, clock, monkeypatch):
    """GIVEN 12 jobs that stand still, THEN no file of theirs is opened in an hour, and looks get rarer."""
    for number in range(12):
        RecordedJob(make_trace(20), tmp_path / "traces" / f"job-{number}").write(30)
    watching = Watching(tmp_path / "traces", store=tmp_path / "store.db", clock=clock, once=False)
    clock.at_s = (tmp_path / "traces" / "job-0").stat().st_mtime
    watching.go()
    reads, looks = [], []
    monkeypatch.setattr(growing, "_read_lasts", reads.append)
    look = growing.GrowingTrace.look
    monkeypatch.setattr(growing.GrowingTrace, "look", lambda part: (looks.append(part), look(part))[1])
    for _ in range(720):
        clock.at_s += 5.0
        watching.watch.round()
    assert len(watching.watch.jobs()) == 12 and not reads
    assert len(looks) <= 12 * 4 * 70  # of 12 jobs of 4 ranks, once a minute
    watching.close()
