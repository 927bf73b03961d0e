"""Damaged files of ndtimeline and torchtitan, and damaged training logs: 60 of each, each a diagnosis or one clear line.

Run as a program it is the worker: `python -m tests.trace.producers.test_fuzz_logs FIRST END FORMAT...`. A crash names the seed; to
see one input again: the same with END = FIRST + 1.
"""

import dataclasses
import functools
import gzip
import itertools
import json
import subprocess
import sys
import tempfile
import traceback
import warnings
from collections.abc import Callable
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import cast

import numpy as np
import pandas as pd
import pytest

from diagnose.errors import DiagnoseError, TraceError
from diagnose.model.diagnosis import Diagnosis
from diagnose.model.request import Request
from diagnose.model.training_log import LogEventKind
from diagnose.pipeline import diagnose_job
from diagnose.report import json_lines, terminal
from diagnose.trace.find_log import find_log
from diagnose.trace.input_files import list_input_files
from diagnose.trace.producers import ndtimeline
from diagnose.trace.producers.catalogue import Producer
from diagnose.trace.producers.torchtitan import job as torchtitan
from tests.logs.runs import Attempt, Between, steady_run
from tests.trace.logs.test_round_trip import CASES
from tests.trace.producers.megatron_lines import argument_lines, detector_line, noisy, run, timer_lines
from tests.trace.producers.ndtimeline_files import raw_lines, timed, write_events
from tests.trace.producers.recordings import say_nothing, to_parquet
from tests.trace.producers.torchtitan_files import write_logs

ROOT = Path(__file__).resolve().parents[3]
N_INPUTS = 60
MAX_RSS_BYTES = 2**30
#: What numbers are replaced by.
ABSURD = (
    b"-1",
    b"0",
    b"1e308",
    b"NaN",
    b"Infinity",
    b"99999999999999999999",
    b'"x"',
    b"null",
    b"1e-320",
    b"4096",
    b"[]",
    b"",
)


@cache
def rows() -> pd.DataFrame:
    """Give two steps of a job of 2 x 4 workers."""
    found = pd.read_parquet(ROOT / "fixtures" / "worker-fault.parquet")
    return timed(found[found.step.isin([36, 37, 38]) & found.dp_rank.isin([0, 1])])


def events() -> list[bytes]:
    """Give the files of two hosts."""
    with tempfile.TemporaryDirectory() as folder:
        return [path.read_bytes() for path in sorted(write_events(Path(folder), rows()).rglob("trace_step*"))]


def raw() -> list[bytes]:
    """Give one raw log."""
    return ["\n".join(raw_lines(rows())).encode()]


def structured() -> list[bytes]:
    """Give the structured logs of four ranks."""
    with tempfile.TemporaryDirectory() as folder:
        fetch = {"fetch": lambda rank, step: 0.2 if (rank + step) % 3 == 0 else 0.0}
        return [
            path.read_bytes()
            for path in sorted(write_logs(Path(folder), n_ranks=4, steps=range(1, 9), **fetch).iterdir())
        ]


def training_log() -> list[bytes]:
    """Give a log with timers, reports of the straggler detector, and a restart."""
    lines = argument_lines(world_size=16, pipeline_model_parallel_size=4, tensor_model_parallel_size=1)
    for i, line in enumerate(run([*range(1, 61), *range(51, 101)], noisy([(60, 1.4), (50, 1.9)]))):
        lines.append(line)
        if i % 10 == 0:
            lines += [*timer_lines("forward-compute", [0.4 + 0.3 * (rank == 5) for rank in range(16)])]
            lines.append(detector_line(slowest=5, throttled=5))
    return ["\n".join(lines).encode()]


@cache
def console(name: str) -> list[bytes]:
    """Give the console of a run that was started twice, with saves and evaluations."""
    run = steady_run(120, 0.5)
    iteration = np.r_[run.iteration[:70], run.iteration[50:100]]
    kinds: tuple[LogEventKind, ...] = ("save", "evaluation", "cache-flush")
    between = tuple(Between(kind=kind, at=at, seconds=7.5) for at in (29, 89) for kind in kinds)
    attempts = (Attempt(at=0, hosts=("a-1",)), Attempt(at=70, hosts=("a-2",)))
    return [CASES[name].write(dataclasses.replace(run, iteration=iteration, between=between, attempts=attempts))]


FORMATS: dict[str, Callable[[], list[bytes]]] = {
    "events": cache(events),
    "raw": cache(raw),
    "structured": cache(structured),
    "log": cache(training_log),
    **{f"log of {name}": functools.partial(console, name) for name in CASES},
}


def damage(rng: np.random.Generator, content: bytes) -> bytes:
    """Damage one file in one of many ways."""
    kind = int(rng.integers(11))
    if kind == 0:  # flipped bits
        changed = bytearray(content)
        for _ in range(int(rng.choice([1, 3, 30]))):
            changed[int(rng.integers(len(changed)))] ^= 1 << int(rng.integers(8))
        return bytes(changed)
    if kind == 1:  # cut off, or a piece lost
        low, high = sorted(rng.integers(0, len(content), 2).tolist())
        return content[:low] if rng.random() < 0.5 else content[:low] + content[high:]
    if kind == 2:  # numbers that make no sense
        parts = np.array([at for at in range(len(content)) if content[at : at + 1].isdigit()])
        for _ in range(int(rng.choice([1, 5, 50]))):
            at = int(rng.choice(parts))
            end = at
            while content[end : end + 1].isdigit():
                end += 1
            content = content[:at] + bytes(rng.choice(np.array(ABSURD, dtype=object))) + content[max(end, at + 1) :]
            parts = parts[parts < min(at, len(content) - 1)] if (parts < at).any() else parts[:1]
        return content
    lines = content.split(b"\n")
    if kind == 3:  # in another order, some twice
        return b"\n".join(lines[i] for i in rng.integers(0, len(lines), len(lines)))
    if kind == 4:  # several ranks in one line
        return b"\n".join(
            line[: int(rng.integers(len(line) + 1))] + lines[int(rng.integers(len(lines)))]
            if rng.random() < 0.1
            else line
            for line in lines
        )
    if kind == 5:  # packed, and damaged
        packed = bytearray(gzip.compress(content, mtime=0))
        if rng.random() < 0.7:
            packed[int(rng.integers(len(packed)))] ^= 1 << int(rng.integers(8))
        return bytes(packed[: int(rng.integers(1, len(packed) + 1))])
    if kind == 6:  # a word that is another
        words = [
            b"rank",
            b"step",
            b"forward-compute",
            b"fwd_bwd",
            b"iteration",
            b"value",
            b"ph",
            b"tags",
            b"time_us",
            b"dur",
        ]
        old, new = (words[i] for i in rng.integers(0, len(words), 2))
        return content.replace(old, new, int(rng.choice([1, 100, -1])))
    return _damage_text(rng, content, kind)


def _damage_text(rng: np.random.Generator, content: bytes, kind: int) -> bytes:
    """Damage a text as other systems and other writers do."""
    if kind == 7:  # as PowerShell writes it, or cut within a character of that
        wide = content.decode("utf-8", "replace").encode("utf-16")
        return wide[: int(rng.integers(2, len(wide)))] if rng.random() < 0.5 else wide
    if kind == 8:  # zeros, as a full disk leaves them, and ends of lines of Windows
        at, zeros = int(rng.integers(len(content))), b"\0" * int(rng.choice([1, 4096]))
        return (content[:at] + zeros + content[at:]).replace(b"\n", b"\r\n")
    if kind == 10:  # a block of another file in its middle
        return content[: len(content) // 2] + rng.bytes(int(rng.choice([10, 10_000]))) + content[len(content) // 2 :]
    cuts = np.sort(rng.integers(0, len(content), 40)).tolist()  # two ranks write at once, in pieces
    pieces = [content[a:b] for a, b in itertools.pairwise([0, *cuts, len(content)])]
    return b"".join(piece + other for piece, other in zip(pieces, [b"", *pieces[:-1]], strict=True))


def write_damaged(name: str, seed: int, folder: Path) -> Path:
    """Write the files of one format, one of them damaged."""
    rng = np.random.default_rng([seed, *name.encode()])
    contents = list(FORMATS[name]())
    at = int(rng.integers(len(contents)))
    contents[at] = damage(rng, contents[at])
    for i, content in enumerate(contents):
        (folder / f"file{i}").write_bytes(content)
    return folder


def ask(path: Path) -> None:
    """Do with one job all that the program does; its answer is JSON without NaN, and a page."""
    found = _diagnose(path)
    json.loads(json_lines.render(found))
    terminal.render(found, width=100, color=False)


def _diagnose(path: Path) -> Diagnosis:
    """Read and diagnose."""
    if find_log(path) is not None:
        return diagnose_job(Request(path))
    inputs = list_input_files(path, name="fuzz")
    for module in (ndtimeline, torchtitan):
        producer = cast("Producer", cast("ModuleType", module))
        if producer.recognise(inputs):
            recording = producer.read(inputs, name="fuzz", report=say_nothing)
            return diagnose_job(Request(to_parquet(recording), name="fuzz"))
    raise TraceError("nobody knows these files", where="fuzz")


def ask_all(name: str, first: int, end: int) -> None:
    """Ask of each seed, and print how many were asked about, how many refused, and the peak of memory so far."""
    n_refused = 0
    for seed in range(first, end):
        with tempfile.TemporaryDirectory() as folder:
            try:
                ask(write_damaged(name, seed, Path(folder)))
            except DiagnoseError as error:
                n_refused += 1
                if "\n" in str(error) or not str(error):
                    raise AssertionError(f"seed {seed}: not one line: {error}") from error
            except Exception:  # noqa: BLE001 - whatever it is, the seed is told
                sys.stderr.write(f"{name} seed {seed}\n{traceback.format_exc()}")
                sys.exit(1)
    # ru_maxrss would begin with the memory of the process that started this one.
    peak_bytes = int(Path("/proc/self/status").read_text().split("VmHWM:")[1].split()[0]) * 1024
    print(end - first, n_refused, peak_bytes, flush=True)


@pytest.fixture(scope="module")
def answers() -> dict[str, str]:
    """Ask about all formats in one process, and in another after each crash; give what each format printed, or its crash."""
    said: dict[str, str] = {}
    while left := [name for name in FORMATS if name not in said]:
        command = [sys.executable, "-m", "tests.trace.producers.test_fuzz_logs", "0", str(N_INPUTS), *left]
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
        lines = done.stdout.splitlines()
        said |= zip(left, lines, strict=False)
        if len(lines) < len(left):
            said[left[len(lines)]] = f"exit {done.returncode}: {done.stderr}"
    return said


@pytest.mark.parametrize("name", FORMATS)
def test_damaged_files(name: str, answers: dict[str, str]) -> None:
    """Whatever is damaged: an answer or one clear line, in bounded memory, and most are still answered."""
    assert not answers[name].startswith("exit"), answers[name]
    n_inputs, n_refused, peak_bytes = map(int, answers[name].split())
    assert n_inputs == N_INPUTS
    assert n_refused < N_INPUTS
    assert peak_bytes < MAX_RSS_BYTES


if __name__ == "__main__":
    warnings.simplefilter("error")
    for one in sys.argv[3:]:
        ask_all(one, int(sys.argv[1]), int(sys.argv[2]))
