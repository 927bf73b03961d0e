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
from diagnose.trace.input_files import InputFiles, name_in
from diagnose.trace.labels import mark_last_attempts
from diagnose.trace.logs.load import is_log, load_log
from diagnose.trace.producers.absent import find_absent
from diagnose.trace.producers.catalogue import Report
from diagnose.trace.producers.contents import read_bytes
from diagnose.trace.producers.switching import Iterations, order_iterations
from diagnose.trace.producers.weights import Computes

NAME = "event-timer"
TITLE = "event-timer logs of zero-bubble and PipeMorph: lines such as `[RANK1] F @ 12.5 (ms) to 45.0 (ms), cudaEventElapsed = ..`"

_OPS = {b"F": int(Op.FORWARD), b"B": int(Op.BACKWARD), b"W": int(Op.WEIGHT)}
#: How the name of the log of a second mode ends: a rank that sends over the CPU has `GPU0_rank0_CPU.log` beside `GPU0_rank0.log`.
_SECOND = "_CPU"
#: `4W`: the weight gradients of four microbatches, computed one after the other.
_SEVERAL = re.compile(rb"(\d{1,4})W")
_TIME = rb"(-?\d{1,15}(?:\.\d{1,20})?) ?\(?ms\)?"
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
_EVENT = re.compile(rb"(^[ \t]*)?\[RANK ?\d{1,9}\] ?\w{1,40} @ " + _TIME + rb" to ", re.IGNORECASE | re.MULTILINE)
_ITERATION = re.compile(rb"\[RANK ?\d{1,9}\] ?Iteration \d", re.IGNORECASE)
_PLACED = re.compile(rb"\[RANK ?(\d{1,9})\](?: ?Iteration (\d{1,9})\b)?", re.IGNORECASE)


def recognise(inputs: InputFiles) -> bool:
    """Say whether any of the files is such a log."""
    return any(_is_log(inputs.head(file)) for file in inputs.files)


def has_two_modes(file: Path) -> bool:
    """Say whether a log is of a scheduler that switches: its rank has a log for each of two modes."""
    stem = file.stem.removesuffix(_SECOND)
    return all(file.with_name(name + file.suffix).exists() for name in (stem, stem + _SECOND))


def place_line(line: bytes) -> tuple[int, int | None] | None:
    """Give rank and iteration of a line; no iteration where it is of the one that the rank is in, None for other lines."""
    found = _PLACED.search(line)
    return None if found is None else (int(found[1]), None if found[2] is None else int(found[2]))


def read(inputs: InputFiles, *, name: str, report: Report) -> Recording:
    """Read all logs, of which one must have a whole line."""
    files = [file for file in inputs.files if _is_log(inputs.head(file))]
    left_out: Counter[bytes] = Counter()
    found, attempts = _read_files(files, left_out, inputs, name, report)
    columns = np.array(found, dtype=np.float64).T
    attempt_of, mode_of = np.array(attempts, dtype=np.int64).T
    is_last = mark_last_attempts(attempt_of, columns[1], mode_of)  # of all ranks, at each iteration
    n_again = len(np.unique(columns[1, ~is_last]))
    columns, mode_of = _close_gaps(columns[:, is_last], attempt_of[is_last]), mode_of[is_last]
    warnings: tuple[str, ...] = ()
    if mode_of.any():
        logs = [file for file in inputs.files if file not in set(files)]
        columns, warnings = _order_modes(columns, mode_of, InputFiles(inputs.path, tuple(logs)), name)
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
        warnings=warnings,
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


def _is_log(head: bytes) -> bool:
    """Say whether a file begins as a log: where another text quotes a line it stands within a line, and no iteration begins."""
    event = _EVENT.search(head)
    return event is not None and (event[1] is not None or _ITERATION.search(head) is not None)


def _read_files(
    files: Sequence[Path], left_out: Counter[bytes], inputs: InputFiles, name: str, report: Report
) -> tuple[list[tuple[int, int, int, float, float]], list[tuple[int, int]]]:
    """Read the operations of all logs (type, iteration, rank, start, end), with attempt and mode; count what is left out."""
    found: list[tuple[int, int, int, float, float]] = []
    attempts: list[tuple[int, int]] = []
    seen: dict[tuple[int, int, int], Path] = {}
    for n, file in enumerate(files, start=1):
        report(f"log {n} of {len(files)}")
        where = name_in(inputs.path, file, name)
        mode = int(_is_second(file, files))
        for attempt, operation in _read_log(file, left_out, where=where):
            first = seen.setdefault((*operation[1:3], mode), file)
            if first is not file:
                raise TraceError(
                    f"has iteration {operation[1]} of rank {operation[2]}, as {name_in(inputs.path, first, name)} has; expected "
                    "the logs of one job, each iteration of a rank in one file: name the folder of one job",
                    where=where,
                )
            attempts.append((attempt, mode))
            found.append(operation)
    if not found:
        raise TraceError("has no operation after a line `Iteration`; expected `[RANK1] Iteration 3`", where=name)
    return found, attempts


def _is_second(file: Path, files: Sequence[Path]) -> bool:
    """Say whether a log is of the second mode of a scheduler that switches: the same rank has another log beside it."""
    stem = file.stem.removesuffix(_SECOND)
    return stem != file.stem and file.with_name(stem + file.suffix) in files


def _order_modes(columns: Seconds, mode: Ints, logs: InputFiles, name: str) -> tuple[Seconds, tuple[str, ...]]:
    """Number the iterations of two modes, which each counts from 1, through the job; evaluations come last.

    `columns` has shape (5, n_operations): type, iteration, rank, start and end in ms; `logs` are the other files.
    """
    # An iteration without any backward is an evaluation: no step of a training log.
    trained = np.unique(np.stack([mode, columns[1]])[:, columns[0] == Op.BACKWARD], axis=1)
    where, modes = [], []
    for n in range(2):
        iterations = trained[1, trained[0] == n]
        at = np.searchsorted(iterations, columns[1])
        is_in = (mode == n) & (at < len(iterations))
        is_in[is_in] = iterations[at[is_in]] == columns[1, is_in]
        begin_ms, end_ms = np.full(len(iterations), np.inf), np.full(len(iterations), -np.inf)
        np.minimum.at(begin_ms, at[is_in], columns[3, is_in])
        np.maximum.at(end_ms, at[is_in], columns[4, is_in])
        where.append((is_in, at))
        modes.append(Iterations(begin_ms / 1e3, end_ms / 1e3))
    numbers, warning = order_iterations(modes, _read_step_times(logs, name))
    numbered = columns.copy()
    numbered[1] += trained.shape[1]
    for (is_in, at), number in zip(where, numbers, strict=True):
        numbered[1, is_in] = number[at[is_in]]
    return numbered, () if warning is None else (warning,)


def _read_step_times(logs: InputFiles, name: str) -> Seconds | None:
    """Read the step times of the job from the training log beside; None where there is none."""
    files = tuple(file for file in logs.files if is_log(InputFiles(logs.path, (file,))))
    if not files:
        return None
    log = load_log(InputFiles(logs.path, files), name=name)
    return np.asarray(log.step_s[log.attempt == log.attempt.max()])


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
            if match[6] is not None:
                # The device says how long it took: it began late where the stream was still busy with a transfer, and the host
                # waited for its end; or the host did not wait, and it ended late.
                elapsed = max(float(match[6]), 0.0)
                end = max(end, start + elapsed)
                start = end - elapsed
            times = [*(start + i * (end - start) / n for i in range(n)), end]
            for begun, ended in itertools.pairwise(times):
                yield attempt[rank], (_OPS[what], iteration[rank], rank, begun, ended)
