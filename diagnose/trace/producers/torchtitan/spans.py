"""The spans of a torchtitan log: what each rank timed in each step, as the host saw it.

Enters: lines of JSON. Leaves: `Spans` of the last attempt of each rank at each step, and counts of what is no span.
"""

import dataclasses
from array import array
from collections import Counter

import msgspec
import numpy as np
from numpy.typing import NDArray

from diagnose.model.columns import ColumnTable
from diagnose.model.trace import Ints, Seconds
from diagnose.trace.labels import mark_last_attempts, number_combinations

#: Whole numbers beyond this are damage, and not exact in floating point.
MAX_NUMBER = 2**53
#: A span is at most this long; seconds.
MAX_SPAN_S = 1e6
#: What a loop times, by name of its span.
STEP, FETCH, COMPUTE, OPTIMIZER, COLLECT, SAVE, EVALUATE = range(7)
SPANS = {
    "step": STEP,
    "fetching_batch": FETCH,
    "fwd_bwd": COMPUTE,
    "optim": OPTIMIZER,
    "gc_collect": COLLECT,
    "checkpoint_save": SAVE,
    "eval": EVALUATE,
    "validate": EVALUATE,
    "validation": EVALUATE,
}
TOKENS = "local_valid_tokens"
MARKS = (b'"log_type_name"', b'"time_us"')


class _Record(msgspec.Struct):
    """One line, as far as it is wanted."""

    log_type_name: str | None = None
    event_name: str | None = None
    value: float | None = None
    step: int | None = None
    time_us: float | None = None
    rank: int | None = None
    global_rank: int | None = None
    host_name: str | None = None


@dataclasses.dataclass(frozen=True, slots=True)
class Spans(ColumnTable):
    """Spans of all ranks, one entry a span; seconds in unix time."""

    kind: Ints
    rank: Ints
    step: Ints
    attempt: Ints
    start_s: Seconds
    end_s: Seconds


class LogColumns:
    """Columns that grow."""

    def __init__(self) -> None:
        self.whole, self.times = array("q"), array("d")  # kind, rank, step, attempt; start, end
        self.tokens: dict[tuple[int, int], float] = {}
        self.hosts: dict[int, str] = {}
        self.other: Counter[str] = Counter()
        self.broken = 0


def is_structured(head: bytes) -> bool:
    """Say whether a file begins with a record of a structured log."""
    first = head.lstrip()[:8192].split(b"\n", 1)[0]
    return first.startswith(b"{") and all(mark in first for mark in MARKS)


def find_begin(head: bytes) -> float:
    """Say when a file begins, so that of two attempts at a step the later one counts."""
    try:
        return msgspec.json.decode(head.lstrip().split(b"\n", 1)[0], type=_Record, strict=False).time_us or 0.0
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return 0.0


def place_line(line: bytes) -> tuple[int, int | None] | None:
    """Give rank and step of a record; no step where it is of the one that the rank is in, None where it is no whole record."""
    try:
        record = msgspec.json.decode(line, type=_Record, strict=False)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None
    rank = record.rank if record.global_rank is None else record.global_rank
    numbers = (rank, record.step or 0)
    return (
        None if rank is None or not all(0 <= n < MAX_NUMBER for n in numbers if n is not None) else (rank, record.step)
    )


def take_line(line: bytes, attempt: int, found: LogColumns) -> None:
    """Take one record: the end of a span, or a count of tokens."""
    try:
        record = msgspec.json.decode(line, type=_Record, strict=False)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        found.broken += 1
        return
    rank = record.rank if record.global_rank is None else record.global_rank
    kind = record.log_type_name or ""
    if record.step is None or rank is None or record.value is None or record.time_us is None:
        return  # the start of a span, or outside the loop
    if not (0 <= rank < MAX_NUMBER and 0 <= record.step < MAX_NUMBER and 0 <= record.time_us < MAX_NUMBER):
        found.broken += 1
        return
    if kind == "metric_value":
        if record.event_name == TOKENS:
            found.tokens[rank, record.step] = record.value
        return
    span = kind.removesuffix("_end")
    if not kind.endswith("_end") or not 0 <= record.value * 1e-3 < MAX_SPAN_S:
        return
    if span not in SPANS:
        found.other[span] += 1
        return
    end_s = record.time_us * 1e-6
    found.whole.extend((SPANS[span], rank, record.step, attempt))
    found.times.extend((end_s - record.value * 1e-3, end_s))
    if record.host_name:
        found.hosts[rank] = record.host_name


def keep_last_attempt(spans: Spans) -> tuple[Spans, tuple[str, ...]]:
    """Keep the last attempt of each rank at each step."""
    keep = mark_last_attempts(spans.attempt, spans.rank, spans.step)
    if keep.all():
        return spans, ()
    n_steps = len(np.unique(spans.step[~keep]))
    return spans.take(keep), (
        f"{n_steps} steps are in the logs more than once (a restart): the last attempt is analysed",
    )


def mark_whole_steps(spans: Spans) -> NDArray[np.bool_]:
    """Mark the spans of (rank, step) that have computed and stepped."""
    key = number_combinations(spans.rank, spans.step)
    whole = np.ones(int(key.max(initial=-1)) + 1, dtype=bool)
    for kind in (COMPUTE, OPTIMIZER):
        whole &= np.bincount(key[spans.kind == kind], minlength=len(whole)) > 0
    return np.asarray(whole[key])
