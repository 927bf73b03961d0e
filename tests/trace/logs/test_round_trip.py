"""Each format of the Megatron family, and consoles alike: a run comes back as it was written, whatever stands around."""

import dataclasses
import gzip
import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from tests.logs.runs import Attempt, Between, LoggedRun, steady_run
from tests.logs.writers.deepspeed import write_deepspeed
from tests.logs.writers.maxtext import write_maxtext
from tests.logs.writers.megatron import write_megatron
from tests.logs.writers.moments import windows
from tests.logs.writers.nanogpt import write_build_nanogpt, write_llm_c, write_modded_nanogpt, write_nanogpt
from tests.logs.writers.nemo import write_nemo
from tests.logs.writers.olmo import write_olmo
from tests.trace.logs.reading import read_content


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """A writer, and what of a run its format tells."""

    title: str
    write: Callable[[LoggedRun], bytes]
    #: Half of the last digit of a step time, in seconds; relative where the format writes so many digits.
    digits_s: float
    relative: float = 0.0
    #: What a line stands for: the mean of its steps, their mean with what lies between, the last step; or every step has a line.
    line: str = "mean"
    stamped: bool = True
    restarts: bool = True


MS = 1e-3
CASES = {
    "megatron": Case(title="Megatron-LM", write=write_megatron, digits_s=0.06 * MS),
    "megatron-deepspeed": Case(
        title="Megatron-DeepSpeed", write=lambda run: write_megatron(run, deepspeed=True), digits_s=0.06 * MS
    ),
    "megatron-seconds": Case(
        title="Megatron-DeepSpeed",
        write=lambda run: write_megatron(run, seconds=True, stamped=False),
        digits_s=6 * MS,
        stamped=False,
    ),
    "deepspeed": Case(title="DeepSpeed", write=write_deepspeed, digits_s=1.1 * MS, line="passed"),
    "deepspeed-old": Case(
        title="DeepSpeed", write=lambda run: write_deepspeed(run, old=True), digits_s=1.1 * MS, line="passed"
    ),
    "nemo": Case(title="NeMo", write=write_nemo, digits_s=0, relative=6e-4, line="last", stamped=False),
    "nemo-bar": Case(
        title="NeMo", write=lambda run: write_nemo(run, bar=True), digits_s=6e-6, line="last", stamped=False
    ),
    "olmo": Case(title="OLMo", write=write_olmo, digits_s=1.1 * MS, line="passed"),
    "olmo-core": Case(title="OLMo", write=lambda run: write_olmo(run, core=True), digits_s=1.1 * MS, line="passed"),
    "maxtext": Case(title="MaxText", write=write_maxtext, digits_s=0.6 * MS, line="every", stamped=False),
    "nanogpt": Case(title="nanoGPT", write=write_nanogpt, digits_s=0.006 * MS, line="last", stamped=False),
    "llama2.c": Case(
        title="llama2.c",
        write=lambda run: write_nanogpt(run, llama=True),
        digits_s=0.006 * MS,
        line="last",
        stamped=False,
    ),
    "llm.c": Case(title="llm.c", write=write_llm_c, digits_s=0.006 * MS, line="every", stamped=False),
    "build-nanogpt": Case(
        title="build-nanogpt", write=write_build_nanogpt, digits_s=0.006 * MS, line="every", stamped=False
    ),
    "build-nanogpt, seconds": Case(
        title="build-nanogpt",
        write=lambda run: write_build_nanogpt(run, seconds=True),
        digits_s=0.006 * MS,
        line="every",
        stamped=False,
    ),
    "modded-nanogpt": Case(
        title="modded-nanogpt",
        write=write_modded_nanogpt,
        digits_s=1.1 * MS,
        line="mean",
        stamped=False,
        restarts=False,
    ),
}
WRAPPERS: dict[str, Callable[[bytes], bytes]] = {
    "rank": lambda text: b"".join(b"[rank3]: " + line for line in text.splitlines(keepends=True)),
    "torchrun": lambda text: b"".join(b"[default0]:" + line for line in text.splitlines(keepends=True)),
    "srun": lambda text: b"".join(b" 0: " + line for line in text.splitlines(keepends=True)),
    "kubernetes": lambda text: b"".join(
        b"2026-01-01T00:00:00.123456789Z stdout F " + line for line in text.splitlines(keepends=True)
    ),
    "docker": lambda text: b"".join(
        json.dumps({"log": line.decode(), "stream": "stdout", "time": "2026-01-01T00:00:00Z"}).encode() + b"\n"
        for line in text.splitlines(keepends=True)
    ),
    "windows": lambda text: text.replace(b"\n", b"\r\n"),
    "powershell": lambda text: text.decode().encode("utf-16"),
    "UTF-16 without a mark": lambda text: text.decode().encode("utf-16-le"),
    "gzip": gzip.compress,
    "zstd": lambda text: pa.compress(text, "zstd", asbytes=True),
    "bars": lambda text: b"".join(
        f"\rLoading: {n}%|#  | {n}/100 [00:01<00:02]\r".encode() + line
        for n, line in enumerate(text.splitlines(keepends=True))
    ),
    "noise": lambda text: b"a warning that nobody reads\n" * 4_000 + text + b"  File x.py, line 3, in f\n" * 3_000,
}


def expect(run: LoggedRun, case: Case) -> tuple[list[int], list[float]]:
    """Give iterations and step times as the format tells them."""
    if case.line == "every":
        return run.iteration.tolist(), run.step_s.tolist()
    found = []
    for first, last, passed_s in windows(run):
        mean_s = {
            "mean": run.step_s[first : last + 1].mean(),
            "passed": passed_s / (last + 1 - first),
            "last": run.step_s[last],
        }
        found.append((int(run.iteration[last]), float(mean_s[case.line])))
    return [number for number, _ in found], [seconds for _, seconds in found]


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("interval", [1, 10])
def test_steps_come_back(name: str, interval: int, tmp_path: Path) -> None:
    """Iterations are those of the run, and step times within the last digit."""
    case = CASES[name]
    run = steady_run(400, 0.5, interval=interval)
    log = read_content(tmp_path, case.write(run))
    numbers, seconds = expect(run, case)
    first = numbers.index(int(log.iteration[0]))  # a time from line to line begins with the second
    assert first <= 1
    assert (log.format, log.iteration.tolist()) == (case.title, numbers[first:])
    assert not np.isnan(log.step_s).any()
    steady = slice(1, None) if case.line == "passed" else slice(None)  # the first may be told by a rate alone
    assert np.allclose(log.step_s[steady], np.array(seconds[first:])[steady], atol=case.digits_s, rtol=case.relative)
    assert (log.restarts, log.attempt.tolist()) == ((), [0] * len(log.iteration))
    if case.stamped:
        logged = [last for _, last, _ in windows(run)][first:]
        assert np.allclose(log.stamp_s, run.ends_s()[logged], atol=1.1 * MS)


@pytest.mark.parametrize("wrapper", WRAPPERS)
@pytest.mark.parametrize("name", CASES)
def test_whatever_stands_around(name: str, wrapper: str, tmp_path: Path) -> None:
    """Launchers, collectors, progress bars, other ends of lines and other encodings change nothing."""
    case = CASES[name]
    content = case.write(steady_run(60, 0.5))
    plain, wrapped = read_content(tmp_path, content), read_content(tmp_path, WRAPPERS[wrapper](content))
    assert wrapped.iteration.tolist() == plain.iteration.tolist()
    assert wrapped.step_s.tolist() == plain.step_s.tolist()
    assert wrapped.format == plain.format


@pytest.mark.parametrize("name", [name for name, case in CASES.items() if case.restarts])
def test_a_restart_comes_back(name: str, tmp_path: Path) -> None:
    """A counter that falls back is one restart, from the last line before to the first after."""
    case = CASES[name]
    run = steady_run(300, 0.5)
    again = np.r_[run.iteration[:160], run.iteration[100:240]]
    run = dataclasses.replace(run, iteration=again, attempts=(Attempt(at=0), Attempt(at=160, gap_s=90.0)))
    log = read_content(tmp_path, case.write(run))
    (restart,) = log.restarts
    assert (restart.after, restart.resumed_at) == (160, 101)
    assert np.bincount(log.attempt).tolist() in ([160, 140], [159, 139], [160, 139], [159, 140])
    if case.stamped:
        assert restart.lost_s == pytest.approx(90.0 + run.step_s[160], abs=0.01)


@pytest.mark.parametrize("name", ["deepspeed", "maxtext", "megatron", "nanogpt", "nemo", "nemo-bar"])
def test_what_lies_between_comes_back(name: str, tmp_path: Path) -> None:
    """Saves and evaluations are told of the step they follow, with their seconds where the format has them."""
    case = CASES[name]
    kinds = {"deepspeed": ("save",), "nemo": ("save",), "nanogpt": ("evaluation",)}.get(name, ("save", "evaluation"))
    between = tuple(Between(kind=kind, at=at, seconds=7.5) for at in (99, 199) for kind in kinds)
    log = read_content(tmp_path, case.write(dataclasses.replace(steady_run(300, 0.5), between=between)))
    for kind in kinds:
        events = [event for event in log.events if event.kind == kind]
        assert [event.iteration for event in events] == [100, 200]
        if name in ("deepspeed", "megatron"):
            assert [event.seconds for event in events] == pytest.approx([7.5, 7.5], abs=0.01)


def test_megatron_tells_its_arguments(tmp_path: Path) -> None:
    """Intervals, sizes, tokens of a growing sequence, parts, and hosts of each start are read."""
    run = steady_run(200, 0.5)
    grows = run.batch_size * np.linspace(1024, 4096, 200).astype(int)
    intervals = {"log": 1, "save": 50, "evaluation": 100, "collection": 20, "loader-workers": 8}
    attempts = (Attempt(at=0, hosts=("node-1", "node-2")), Attempt(at=120, hosts=("node-1", "node-9")))
    parts = {"data": run.step_s * 0.1, "forward": run.step_s * 0.3, "optimizer": run.step_s * 0.05}
    run = dataclasses.replace(
        run,
        intervals=intervals,
        tokens=grows.astype(float),
        attempts=attempts,
        parts=parts,
        world_size=16,
        tp_size=2,
        pp_size=4,
    )
    log = read_content(tmp_path, write_megatron(run, deepspeed=True))
    assert log.intervals == intervals
    assert log.sizes == {"world_size": 16, "tp_size": 2, "pp_size": 4}
    assert log.tokens.tolist() == grows.tolist()
    assert log.hosts == (("node-1", "node-2"), ("node-1", "node-9"))
    assert [(found.after, found.resumed_at) for found in log.restarts] == [(120, 121)]
    assert log.batch_size.tolist() == run.batch_size.tolist()
    assert log.total == run.total
    for part, seconds in parts.items():
        assert np.allclose(log.parts[part], seconds, atol=6e-6)


def test_deepspeed_tells_parts_and_flushes(tmp_path: Path) -> None:
    """With the breakdown every step has a line, numbered by those that have a number; flushes of the allocator are events."""
    run = steady_run(100, 0.5, interval=10)
    shares = {"forward": 0.3, "backward": 0.5, "communication": 0.1, "optimizer": 0.1}
    parts = {part: run.step_s * share for part, share in shares.items()}
    flushes = tuple(Between(kind="cache-flush", at=at, seconds=0.0) for at in (33, 66))
    hosts = (Attempt(at=0, hosts=("worker-0", "worker-1")),)
    run = dataclasses.replace(run, parts=parts, between=flushes, attempts=hosts)
    log = read_content(tmp_path, write_deepspeed(run, breakdown=True))
    assert log.iteration.tolist() == run.iteration.tolist()
    for part, seconds in parts.items():
        assert np.allclose(log.parts[part], seconds, atol=6e-6)
    assert [(event.kind, event.iteration) for event in log.events] == [("cache-flush", 34), ("cache-flush", 67)]
    assert log.hosts == (("worker-0", "worker-1"),)
    assert log.intervals == {"log": 10}


def test_olmo_tells_tokens_and_the_loader(tmp_path: Path) -> None:
    """Tokens of a step are what the total grew by, and the time in the loader is a part."""
    run = steady_run(50, 0.5)
    run = dataclasses.replace(run, tokens=np.linspace(1 << 20, 1 << 21, 50).round(), parts={"data": run.step_s * 0.1})
    log = read_content(tmp_path, write_olmo(run, core=True))
    assert np.allclose(log.tokens[1:], run.tokens[-len(log.tokens) + 1 :], atol=2)
    assert np.allclose(log.parts["data"], run.parts["data"][-len(log.tokens) :], atol=6e-5)


@pytest.mark.parametrize("labelled", [True, False])
def test_every_rank_prints(labelled: bool, tmp_path: Path) -> None:
    """Where four ranks print every step, interleaved and not quite in order, each step is read once and nothing restarted."""
    rng = np.random.default_rng(3)
    run = steady_run(100, 0.5)
    lines = [
        (i + 0.4 * rng.random() + (0.7 if rank == 3 else 0.0), f"[rank{rank}]: ".encode() * labelled + line)
        for rank in range(4)
        for i, line in enumerate(write_llm_c(dataclasses.replace(run, step_s=run.step_s + 1e-4 * rank)).splitlines())
    ]
    log = read_content(tmp_path, b"\n".join(line for _, line in sorted(lines)))
    assert log.iteration.tolist() == run.iteration.tolist()
    assert log.restarts == ()
    assert (log.notes != ()) == labelled


def test_the_format_that_tells_most_wins(tmp_path: Path) -> None:
    """A log of Megatron-LM on DeepSpeed, which logs each tenth step as well, is Megatron-LM's, and says what was passed over."""
    run = steady_run(100, 0.5)
    some = dataclasses.replace(run, interval=10)
    log = read_content(tmp_path, write_deepspeed(some) + write_megatron(run))
    assert (log.format, len(log.iteration)) == ("Megatron-LM", 100)
    assert log.notes == ("10 step lines of DeepSpeed in it are passed over: Megatron-LM tells 100",)


def test_an_error_is_told(tmp_path: Path) -> None:
    """What ended an attempt is an event with the words of the error, whichever rank raised it."""
    lines = write_megatron(steady_run(20, 0.5)).decode()
    error = (
        "[rank3]: Traceback (most recent call last):\n[rank3]:   File 'a.py', line 1\n[rank3]: RuntimeError: it broke\n"
    )
    log = read_content(tmp_path, (lines + error).encode())
    assert [(event.kind, event.iteration, event.rank, event.text) for event in log.events] == [
        ("error", 20, 3, "RuntimeError: it broke")
    ]
    assert log.failures == log.events


def test_an_error_that_steps_came_after_ends_nothing(tmp_path: Path) -> None:
    """A collective that timed out is the end of a log only where no step follows."""
    run = write_megatron(steady_run(20, 0.5)).decode()
    error = (
        "[rank3]:[E1218 20:27:21.4 ProcessGroupNCCL.cpp:629] [Rank 3] Watchdog caught collective operation timeout: "
        "WorkNCCL(SeqNum=7, OpType=ALLREDUCE, Timeout(ms)=600000) ran for 600081 milliseconds before timing out.\n"
    )
    (failure,) = read_content(tmp_path, (run + error).encode()).failures
    assert (failure.iteration, failure.rank, failure.text[:17]) == (20, 3, "Watchdog caught c")
    assert read_content(tmp_path, (error + run).encode()).failures == ()
