"""Finding lines by their marks: what is searched and read grows with the file and no faster, whatever its shape."""

import dataclasses
import gzip
from pathlib import Path

import numpy as np
import pytest

from diagnose.errors import TraceError
from diagnose.trace.find_log import find_log
from diagnose.trace.input_files import list_input_files
from diagnose.trace.logs import lines
from diagnose.trace.logs.builder import LogBuilder
from diagnose.trace.logs.catalogue import list_formats
from diagnose.trace.logs.load import is_log, load_log
from diagnose.trace.logs.log_format import LogFormat
from diagnose.trace.logs.scan import LONG_LINE_BYTES, Scan
from diagnose.trace.logs.stamps import find_stamp
from diagnose.trace.logs.wrappers import unpack_json, unwrap
from tests.logs.formats import FORMATS as WRITTEN
from tests.logs.runs import steady_run
from tests.logs.writers.consoles import TEMPLATES
from tests.logs.writers.megatron import write_megatron
from tests.logs.writers.nanogpt import write_llm_c, write_nanogpt
from tests.logs.writers.tqdm_bars import Bar
from tests.trace.logs.test_round_trip import CASES
from tests.trace.producers.recordings import say_nothing

FORMATS = [found for found in list_formats() if isinstance(found, LogFormat)]
STEPS = write_megatron(steady_run(3, 0.5)) + write_nanogpt(steady_run(3, 0.5)) + write_llm_c(steady_run(3, 0.5))
SHAPES = {
    "lines": STEPS,
    "one line": STEPS.replace(b"\n", b" "),
    "marks": b"".join(mark for found in FORMATS for mark in found.step_marks),
    "marks of lines": b"\n".join(mark for found in FORMATS for mark in (*found.step_marks, *found.marks)) + b"\n",
    "iterations without times": b"iteration 1/ 2 | ",
    "times without iterations": b"elapsed time per iteration (ms): 1 | ",
    "escapes": b"\x1b[",
    "spaces": b" ",
    "digits": b"1",
    "ends of lines": b"\r\n",
    "JSON": b'{"log": "',
    "ranks": b"[rank3]: ",
    "nothing": b"a warning that nobody reads\n",
}


class _Counted:
    """Counts what a reader is given."""

    def __init__(self, inner: Scan) -> None:
        self.inner, self.n_bytes, self.take_own = inner, 0, inner._own.take

    def take(self, line: bytes) -> bool:
        """Take one line."""
        self.n_bytes += len(line)
        assert len(line) <= LONG_LINE_BYTES
        return self.take_own(line)


@pytest.mark.parametrize("log_format", FORMATS, ids=lambda found: found.name)
@pytest.mark.parametrize("shape", SHAPES)
def test_work_grows_with_the_file(log_format: LogFormat, shape: str) -> None:
    """Each mark is searched once in each byte, and no byte is given to a reader twice."""
    unit = SHAPES[shape]
    content = unit * (100_000 // len(unit) + 1)
    scan = Scan(log_format, LogBuilder("", "", is_mean=True))
    counted = _Counted(scan)
    scan._own = counted
    for block in (content, content):
        scan.take(block)
    assert scan.n_searched <= 2 * len(content) * len(scan._marks)
    assert scan.n_lines <= 2 * len(content)
    assert counted.n_bytes <= 2 * len(content)


@pytest.mark.parametrize("prefix", [b"", b"[rank3]: ", b"2026-01-01T00:00:00Z stdout F "])
@pytest.mark.parametrize("name", ["megatron", "nanogpt", "llama2.c", "llm.c", "progress-bars"])
def test_lines_at_once_tell_the_same(name: str, prefix: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    """What many lines tell at once is what they tell one after the other, also where some are damaged or of somebody else."""
    (log_format,) = (found for found in FORMATS if found.name == name)
    plain = CASES[name].write(steady_run(400, 0.5)).splitlines() if name in CASES else _paint_bars()
    plain += [line.replace(b": 0.123 |", b": 2026-01-01 00:00:00 |") for line in plain[-20:]]
    rng = np.random.default_rng(5)
    at_once: list[bool] = []
    take_rows = Scan._take_rows
    monkeypatch.setattr(Scan, "_take_rows", lambda *asked: at_once.append(take_rows(*asked)) or at_once[-1])
    for n_damaged in (0, 1, 3, 30):
        damaged = [prefix + line for line in plain]
        for at in rng.integers(len(plain), size=n_damaged).tolist():
            line, cut = bytearray(damaged[at]), int(rng.integers(len(damaged[at]) + 1))
            line[cut : cut + int(rng.integers(3))] = rng.choice([b":", b"|", b"9", b" ", b"\x1b[0m", b"", b"\n", b"q"])
            damaged[at] = bytes(line)
        told = []
        for with_rows in (True, False):
            scan = Scan(log_format, LogBuilder("", "", is_mean=True))
            if not with_rows:
                scan._row_reader = None
            scan.take(b"\n".join(damaged))
            scan.end()
            log = scan.log
            assert log.n_steps > 20
            columns = (log._iteration, log._step_s, log._batch, log._tokens, log._stamp_s, log._source)
            told.append((log.total, log.format, log._events, log._sources, *map(bytes, columns)))
        assert told[0] == told[1]
    assert any(at_once) == (not prefix.startswith(b"2026"))


def _paint_bars() -> list[bytes]:
    """Paint the bars of three epochs, some twice, the first with a loss behind them."""
    lines, now_s = [], 0.0
    for epoch, step_s in enumerate((0.55, 0.6, 1.6)):
        bar = Bar(300, now_s, name=f"Epoch {epoch}")
        for n in range(300):
            now_s += step_s + 0.01 * (n % 3)
            bar.update(now_s)
            lines += [bar.paint(now_s, "" if epoch else "v_num=0, train/loss=2.5").encode()[1:]] * (1 + (n % 50 == 7))
    return lines


def test_a_mark_is_found_anywhere(tmp_path: Path) -> None:
    """Steps in the middle of much other text are found, also where a sample has none of them; triage asks for a sample only."""
    path = tmp_path / "job.out"
    noise = b"a warning that nobody reads\n"
    path.write_bytes(noise * 150_000 + write_megatron(steady_run(20, 0.5)) + noise * 50_000)
    inputs = list_input_files(path, name="x")
    assert sum(map(len, lines.read_sample(path))) <= lines.PIECES * lines.PIECE_BYTES
    assert not is_log(inputs)
    assert find_log(path) == inputs
    assert len(load_log(inputs, name="x", report=say_nothing).iteration) == 20
    path.write_bytes(noise * 200_000)
    assert find_log(path) is None


def test_a_sample_has_whole_lines_from_all_over(tmp_path: Path) -> None:
    """Its pieces begin and end with a line, the first and the last of the file among them."""
    path = tmp_path / "job.out"
    path.write_bytes(b"".join(b"line %07d\n" % n for n in range(300_000)))
    found = [line for piece in lines.read_sample(path) for line in piece.splitlines()]
    assert {len(line) for line in found} == {12}
    assert (found[0], found[-1]) == (b"line 0000000", b"line 0299999")
    path.with_suffix(".gz").write_bytes(gzip.compress(path.read_bytes()))
    assert lines.read_sample(path.with_suffix(".gz"))[0].startswith(b"line 0000000\nline 0000001\n")


@pytest.mark.parametrize(
    ("line", "source", "rank", "said"),
    [
        (b"step: 1", b"", None, b"step: 1"),
        (b"[rank3]: step: 1", b"[rank3]: ", 3, b"step: 1"),
        (b"[default7]:step: 1", b"[default7]:", 7, b"step: 1"),
        (b" 12: step: 1", b" 12: ", 12, b"step: 1"),
        (b"[1,5]<stdout>:step: 1", b"[1,5]<stdout>:", 5, b"step: 1"),
        (b"(TrainWorker pid=77, ip=10.0.0.1) step: 1", b"(TrainWorker pid=77, ip=10.0.0.1) ", None, b"step: 1"),
        (b"node-17: [rank3]: step: 1", b"node-17: [rank3]: ", 3, b"step: 1"),
        (b"10.0.0.7: step: 1", b"10.0.0.7: ", None, b"step: 1"),
        (b"[pod/job-3/train] step: 1", b"[pod/job-3/train] ", None, b"step: 1"),
        (b"2026-01-01T00:00:00.5Z stderr F [rank0]: step: 1", b"[rank0]: ", 0, b"step: 1"),
        (b"step10: loss", b"", None, b"step10: loss"),
        (b"2026-01-01 00:00:00,500 - step: 1", b"", None, b"2026-01-01 00:00:00,500 - step: 1"),
    ],
)
def test_who_wrote_a_line(line: bytes, source: bytes, rank: int | None, said: bytes) -> None:
    """What launchers and collectors put before a line is taken off, and says whose it is; a program's own words stay."""
    assert unwrap(line) == (source, rank, said)


def test_json_of_collectors() -> None:
    """The line is under one of the keys that collectors use; other JSON has none."""
    assert unpack_json(b'{"log":"a\\nb\\n","stream":"stdout","time":"2026-01-01T00:00:00Z"}') == (
        [b"a", b"b"],
        b"2026-01-01T00:00:00Z",
    )
    for other in (b'{"step": 3, "loss": 2.5}', b"{", b'["log"]', b'{"log": 3}', b"{" * 5_000):
        assert unpack_json(other)[0] == []


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        (b"2026-01-01 00:00:01", 1.0),
        (b"[2026-01-01 00:00:01,250] [INFO]", 1.25),
        (b"2026/01/01 00:00:01.5 x", 1.5),
        (b"2026-01-01T02:00:01.000000001+02:00", 1.000000001),
        (b"2025-12-31T19:00:01-0500", 1.0),
        (b"2026-13-01 00:00:01", np.nan),
        (b"1.2026-01", np.nan),
        (b"", np.nan),
    ],
)
def test_stamps(text: bytes, seconds: float) -> None:
    """Dates with a time of day in the forms that loggers write; zones count where they are said."""
    assert find_stamp(text) == pytest.approx(1_767_225_600 + seconds, abs=1e-6, nan_ok=True)


def test_numbers_that_no_step_has(tmp_path: Path) -> None:
    """Damaged numbers are passed over, and the rest is read."""
    good = write_megatron(steady_run(10, 0.5)).splitlines()
    steps = [line for line in good if b" iteration " in line]
    bad = [
        steps[5].replace(b"(ms): ", b"(ms): 99999999999"),
        steps[5].replace(b"(ms): ", b"(ms): -"),
        steps[5].replace(b"(ms): ", b"(ms): nan"),
    ]
    path = tmp_path / "x"
    path.write_bytes(b"\n".join([*good, *bad]))
    log = load_log(list_input_files(path, name="x"), name="x", report=say_nothing)
    assert log.iteration.tolist() == list(range(1, 11))
    assert (log.step_s < 1).all()


def test_one_host_after_the_other(tmp_path: Path) -> None:
    """After a restart on another host the lines of both are one run: neither is taken for a second rank."""
    run = steady_run(100, 0.5)
    before = write_llm_c(dataclasses.replace(run, iteration=run.iteration)).splitlines()[:60]
    after = write_llm_c(run).splitlines()[50:]
    path = tmp_path / "x"
    path.write_bytes(b"\n".join([b"node-1: " + line for line in before] + [b"node-2: " + line for line in after]))
    log = load_log(list_input_files(path, name="x"), name="x", report=say_nothing)
    assert [(found.after, found.resumed_at) for found in log.restarts] == [(60, 51)]
    assert len(log.iteration) == 110


def test_what_is_no_log_is_refused_in_a_line(tmp_path: Path) -> None:
    """A log without a step names its writer and the line it lacks; other text what was looked for."""
    path = tmp_path / "x"
    path.write_bytes(b"------------------------ arguments ------------------------\n  seq_length ..... 4096\n")
    with pytest.raises(
        TraceError, match=r"is a log of Megatron-LM and has no line of a step; expected `iteration N/ M \|"
    ):
        load_log(list_input_files(path, name="x"), name="x", report=say_nothing)
    path.write_bytes(b"hello\n")
    with pytest.raises(TraceError, match=r"looked for those of Megatron-LM, .* and \d+ more"):
        load_log(list_input_files(path, name="x"), name="x", report=say_nothing)


def test_an_event_that_several_lines_tell_is_one() -> None:
    """A save has the iteration that one of its lines names and the seconds of another; flushes are counted one by one."""
    log = LogBuilder("", "", is_mean=True)
    log.add_step(10, 1.0)
    log.add_event("evaluation", seconds=5.0)
    log.add_event("evaluation", iteration=12)
    log.add_event("save", iteration=12)
    log.add_event("cache-flush")
    log.add_event("cache-flush")
    log.add_step(20, 1.0)
    log.add_event("save", iteration=12, seconds=9.0)
    log.add_event("save", seconds=3.0)
    log.add_event("save", iteration=20)
    found = log.finish("x")
    assert found is not None
    assert [(event.kind, event.iteration) for event in found.events] == [
        ("evaluation", 12),
        ("save", 12),
        ("cache-flush", 10),
        ("cache-flush", 10),
        ("save", 20),
    ]
    assert [event.seconds for event in found.events if event.kind != "cache-flush"] == [5.0, 9.0, 3.0]


def test_logs_of_all_nodes_in_a_folder(tmp_path: Path) -> None:
    """Files that were written at once are of several nodes, and one tells the run; one that was written later goes on with it."""
    run = steady_run(100, 0.5)
    for node in range(3):
        (tmp_path / f"node-{node}.log").write_bytes(write_megatron(run))
    later = dataclasses.replace(run, iteration=run.iteration + 80, began_s=run.began_s + 86_400)
    (tmp_path / "a-later.log").write_bytes(write_megatron(later))
    log = load_log(list_input_files(tmp_path, name="x"), name="x", report=say_nothing)
    assert [(found.after, found.resumed_at) for found in log.restarts] == [(100, 81)]
    assert len(log.iteration) == 200
    assert log.notes == ("step lines of 2 other ranks are left out",)


@pytest.mark.parametrize("name", ["MaxText", "nanoGPT", "llm.c", "modded-nanogpt", "torchtune, rates", *TEMPLATES])
def test_lines_read_at_once_are_read_as_one_by_one(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is learned from one line reads those below it as the pattern of the console does, line by line."""
    path = tmp_path / WRITTEN[name].file
    path.write_bytes(WRITTEN[name].write(steady_run(400, noise=0.03)))
    at_once = load_log(list_input_files(path, name="log"), name="log", report=say_nothing)
    monkeypatch.setattr(Scan, "_take_rows", lambda *_: False)
    one_by_one = load_log(list_input_files(path, name="log"), name="log", report=say_nothing)
    for field in dataclasses.fields(at_once):
        np.testing.assert_equal(getattr(at_once, field.name), getattr(one_by_one, field.name), err_msg=field.name)
