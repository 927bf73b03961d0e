"""Logs of the event timer in zero-bubble schedulers (zero-bubble-pipeline-parallelism, PipeMorph): a line an operation.

Enters: the logs of all ranks, one a file or all in one. Leaves: a `Recording` of forwards, backwards and weight gradients. Times
are those of the host, which waits for the device at the end of each operation. Other lines are passed over. Of an iteration that
was run again, after a restart into the same log, the last attempt is kept.
"""

import dataclasses
import itertools
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

from diagnose.errors import TraceError
from diagnose.model.optype import Op
from diagnose.model.recording import Dropped, Recording, Unobserved
from diagnose.model.trace import Ints, Seconds
from diagnose.trace.clocks import align
from diagnose.trace.labels import mark_last_attempts
from diagnose.trace.producers.absent import find_absent
from diagnose.trace.producers.catalogue import Report
from diagnose.trace.producers.contents import name_in, read_bytes
from diagnose.trace.producers.input_files import InputFiles
from diagnose.trace.producers.weights import Computes

NAME = "event-timer"
TITLE = "event-timer logs of zero-bubble and PipeMorph: lines such as `[RANK1] F @ 12.5 (ms) to 45.0 (ms), cudaEventElapsed = ..`"

_OPS = {b"F": int(Op.FORWARD), b"B": int(Op.BACKWARD), b"W": int(Op.WEIGHT)}
#: `4W`: the weight gradients of four microbatches, computed one after the other.
_SEVERAL = re.compile(rb"(\d{1,4})W")
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


def recognise(inputs: InputFiles) -> bool:
    """Say whether any of the files has such a line."""
    return any(_EVENT.search(inputs.head(file)) for file in inputs.files)


def read(inputs: InputFiles, *, name: str, report: Report) -> Recording:
    """Read all logs, of which one must have a whole line."""
    files = [file for file in inputs.files if _EVENT.search(inputs.head(file))]
    left_out: Counter[bytes] = Counter()
    found, attempts = _read_files(files, left_out, inputs, name, report)
    columns = np.array(found, dtype=np.float64).T
    attempt_of = np.array(attempts, dtype=np.int64)
    is_last = mark_last_attempts(attempt_of, columns[1])  # of all ranks, at each iteration
    n_again = len(np.unique(columns[1, ~is_last]))
    columns = _close_gaps(columns[:, is_last], attempt_of[is_last])
    op, step, rank = (column.astype(np.int64) for column in columns[:3])
    unknown = np.full(len(op), -1, dtype=np.int64)
    # Unix time: a common base taken away keeps the digits.
    base_s = float(np.floor(columns[3].min() / 1e3))
    start_s, end_s = columns[3] / 1e3 - base_s, columns[4] / 1e3 - base_s
    computes = Computes(op.astype(np.int8), step, rank, start_s, end_s, unknown, unknown)
    why = "no operation of a pipeline that this version knows"
    dropped = [Dropped(what.decode("ascii", "replace"), n, why) for what, n in sorted(left_out.items())]
    if n_again:
        why = f"{n_again} iterations were run again: the last attempt counts, and not the time between attempts"
        dropped.append(Dropped("operations", int((~is_last).sum()), why))
    others = len(inputs.files) - len(files)
    if others:
        dropped.append(Dropped("files", others, "have no line of the event timer"))
    recording = computes.recorded(
        producer=NAME,
        rank=computes.stage,
        job={"framework": "zero-bubble"},
        dropped=tuple(dropped),
        unobserved=(
            Unobserved("parallelism", "the lines number ranks; each rank is taken for a pipeline stage"),
            Unobserved("microbatches", "the n-th forward, or backward, of a rank is taken for microbatch n"),
            Unobserved("collectives", "the event timer records computes only", ("communication-in-flight",)),
        ),
    )
    recording = dataclasses.replace(
        recording, unobserved=(*recording.unobserved, *find_absent(recording, numbered=False))
    )
    return align(recording, "rank")


def _read_files(
    files: Sequence[Path], left_out: Counter[bytes], inputs: InputFiles, name: str, report: Report
) -> tuple[list[tuple[int, int, int, float, float]], list[int]]:
    """Read the operations of all logs (type, iteration, rank, start, end), and the attempt of each; count what is left out."""
    found: list[tuple[int, int, int, float, float]] = []
    attempts: list[int] = []
    seen: dict[tuple[int, int], Path] = {}
    for n, file in enumerate(files, start=1):
        report(f"log {n} of {len(files)}")
        where = name_in(inputs.path, file, name)
        for attempt, operation in _read_log(file, left_out, where=where):
            first = seen.setdefault(operation[1:3], file)
            if first is not file:
                raise TraceError(
                    f"has iteration {operation[1]} of rank {operation[2]}, as {name_in(inputs.path, first, name)} has; expected "
                    "the logs of one job, each iteration of a rank in one file: name the folder of one job",
                    where=where,
                )
            attempts.append(attempt)
            found.append(operation)
    if not found:
        raise TraceError("has no operation after a line `Iteration`; expected `[RANK1] Iteration 3`", where=name)
    return found, attempts


def _close_gaps(columns: Seconds, attempt: Ints) -> Seconds:
    """Let each attempt follow the one before as an iteration follows another: what lies between is no time of the job.

    `columns` has shape (5, n_operations): type, iteration, rank, start and end. The clock of one rank tells for all.
    """
    closed = columns.copy()
    attempts = np.unique(attempt)
    if len(attempts) < 2:
        return closed
    of_rank = columns[2] == columns[2].min()
    own_step, own_start, own_end = columns[1][of_rank], columns[3][of_rank], columns[4][of_rank]
    steps, at = np.unique(own_step, return_inverse=True)
    begun, ended = np.full(len(steps), np.inf), np.full(len(steps), -np.inf)
    np.minimum.at(begun, at, own_start)
    np.maximum.at(ended, at, own_end)
    usual = float(np.median(begun[1:] - ended[:-1])) if len(steps) > 1 else 0.0
    for before, after in zip(attempts[:-1].tolist(), attempts[1:].tolist(), strict=True):
        first, last = closed[3][of_rank & (attempt == after)], closed[4][of_rank & (attempt == before)]
        if len(first) and len(last):
            closed[3:, attempt >= after] -= first.min() - last.max() - usual
    return closed


def _read_log(
    file: Path, left_out: Counter[bytes], *, where: str
) -> Iterator[tuple[int, tuple[int, int, int, float, float]]]:
    """Give the attempt, and type, iteration, rank, start and end (ms), of each operation of a log; ranks may be mixed."""
    iteration: dict[int, int] = {}
    attempt: Counter[int] = Counter()
    for match in _LINE.finditer(read_bytes(file, name=where)):
        rank = int(match[1])
        if match[2] is not None:
            # A counter that does not rise is a restart.
            attempt[rank] += int(match[2]) <= iteration.get(rank, -1)
            iteration[rank] = int(match[2])
            continue
        what = match[3].upper()
        several = _SEVERAL.fullmatch(what)
        what, n = (b"W", max(int(several[1]), 1)) if several else (what, 1)
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
            end = max(end, start + elapsed)
            times = [*(start + i * (end - start) / n for i in range(n)), end]
            for begun, ended in itertools.pairwise(times):
                yield attempt[rank], (_OPS[what], iteration[rank], rank, begun, ended)
