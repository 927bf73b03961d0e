"""Logs of the event timer in zero-bubble schedulers (zero-bubble-pipeline-parallelism, PipeMorph): a line an operation.

Enters: the logs of all ranks, one a file or all in one. Leaves: a `Recording` of forwards and backwards. Times are those of the
host, which waits for the device at the end of each operation. Other lines are passed over.
"""

import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from diagnose.errors import TraceError
from diagnose.model.optype import Op
from diagnose.model.recording import Dropped, Recording, Unsaid
from diagnose.trace.clocks import align
from diagnose.trace.producers.catalogue import Report
from diagnose.trace.producers.contents import name_in, read_bytes
from diagnose.trace.producers.peek import Peek
from diagnose.trace.producers.weights import WEIGHTS, Timeline, drop_weights

NAME = "event-timer"
TITLE = "event-timer logs of zero-bubble and PipeMorph: lines such as `[RANK1] F @ 12.5 (ms) to 45.0 (ms), cudaEventElapsed = ..`"

_OPS = {b"F": int(Op.FORWARD), b"B": int(Op.BACKWARD), b"W": WEIGHTS}
_TIME = rb"(-?\d{1,15}(?:\.\d{1,12})?) ?\(?ms\)?"
_LINE = re.compile(
    rb"\[RANK ?(\d{1,9})\] ?(?:Iteration (\d{1,9})\b|(\w{1,40}) @ "
    + _TIME
    + rb" to "
    + _TIME
    + rb"(?:, cudaEventElapsed = "
    + _TIME
    + rb")?)",
    re.IGNORECASE,
)
_EVENT = re.compile(rb"\[RANK ?\d{1,9}\] ?\w{1,40} @ " + _TIME + rb" to ", re.IGNORECASE)


def recognise(peek: Peek) -> bool:
    """Say whether any of the files has such a line."""
    return any(_EVENT.search(peek.head(file)) for file in peek.files)


def read(peek: Peek, *, name: str, report: Report) -> Recording:
    """Read all logs.

    Raises
    ------
    TraceError
        A log cannot be read, or none has a whole line.
    """
    files = [file for file in peek.files if _EVENT.search(peek.head(file))]
    found: list[tuple[int, int, int, float, float]] = []
    left_out: Counter[bytes] = Counter()
    for n, file in enumerate(files, start=1):
        report(f"log {n} of {len(files)}")
        found += _read_log(file, left_out, where=name_in(peek.path, file, name))
    if not found:
        raise TraceError("has no operation after a line `Iteration`; expected `[RANK1] Iteration 3`", where=name)
    columns = np.array(found, dtype=np.float64).T
    op, step, rank = (column.astype(np.int64) for column in columns[:3])
    unknown = np.full(len(op), -1, dtype=np.int64)
    # Unix time: a common base taken away keeps the digits.
    base_s = float(np.floor(columns[3].min() / 1e3))
    timeline, weights, unsaid = drop_weights(
        Timeline(op.astype(np.int8), step, rank, columns[3] / 1e3 - base_s, columns[4] / 1e3 - base_s, unknown, unknown)
    )
    why = "no operation of a pipeline that this version knows"
    dropped = [*weights, *(Dropped(_word(what), n, why) for what, n in sorted(left_out.items()))]
    others = len(peek.files) - len(files)
    if others:
        dropped.append(Dropped("files", others, "have no line of the event timer"))
    recording = Recording(
        producer=NAME,
        op=timeline.op,
        step=timeline.step,
        dp=np.zeros(len(timeline.op), dtype=np.int64),
        stage=timeline.stage,
        start_s=timeline.start_s,
        duration_s=timeline.end_s - timeline.start_s,
        rank=timeline.stage,
        job={"framework": "zero-bubble"},
        dropped=tuple(dropped),
        unsaid=(
            Unsaid("parallelism", "the lines number ranks; each rank is taken for a pipeline stage"),
            Unsaid("microbatches", "the n-th forward, or backward, of a rank is taken for microbatch n"),
            Unsaid("collectives", "the event timer records computes only", ("kernel-queue-contention",)),
            *unsaid,
        ),
    )
    return align(recording, "rank")


def _read_log(file: Path, left_out: Counter[bytes], *, where: str) -> Iterator[tuple[int, int, int, float, float]]:
    """Give type, iteration, rank, start and end (ms) of each operation of a log; ranks may be mixed."""
    iteration: dict[int, int] = {}
    for match in _LINE.finditer(read_bytes(file, name=where)):
        rank = int(match[1])
        if match[2] is not None:
            iteration[rank] = int(match[2])
            continue
        what = match[3].upper()
        start, end = float(match[4]), float(match[5])
        if rank not in iteration:
            left_out[b"operations before the first iteration"] += 1
        elif end < start:
            left_out[b"operations that end before they start"] += 1
        elif what not in _OPS:
            left_out[what] += 1
        else:
            # Where the host did not wait, the device says how long it took.
            elapsed = float(match[6]) if match[6] is not None else 0.0
            yield _OPS[what], iteration[rank], rank, start, max(end, start + elapsed)


def _word(what: bytes) -> str:
    """Write a word of the log."""
    return what.decode("ascii", "replace")
