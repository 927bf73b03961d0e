"""Structured logs of torchtitan: JSON Lines of each rank, with the spans of its training loop as the host saw them.

Enters: `{source}.global_rank_{rank}.*.jsonl`, one or a folder of all ranks. Leaves: a `Recording` of one stage, each rank a
data-parallel one. The host launches work and goes on: what a rank computes, and for whom it waits in `fwd_bwd`, is not told;
what stops the loop itself is: input, collections, saving.
"""

import dataclasses
from array import array
from collections import Counter
from collections.abc import Sequence

import msgspec
import numpy as np
from numpy.typing import NDArray

from diagnose.errors import TraceError
from diagnose.model.optype import Op
from diagnose.model.recording import ClockOffset, Dropped, Recording, Unobserved
from diagnose.model.trace import Ints, Seconds
from diagnose.trace.producers.catalogue import Report
from diagnose.trace.producers.contents import name_in
from diagnose.trace.producers.lines import read_lines
from diagnose.trace.producers.peek import Peek

NAME = "torchtitan"
TITLE = "torchtitan structured logs: JSON Lines a rank (structured_logs/*.jsonl)"

FILES_ASKED = 16
MAX_NUMBER = 2**53
#: A span is at most this long; seconds.
MAX_SPAN_S = 1e6
#: A forward takes one part of `fwd_bwd`, a backward two: only their sum is measured.
FORWARD_PART = 1.0 / 3.0
#: Saving is called in each step and mostly does nothing: shorter than this part of a step it did not save.
SAVED_SHARE = 0.01
#: Ranks end together when they are this much closer than they were before; and were so far apart that one can tell.
TOGETHER_RATIO = 0.25
LEAST_SPREAD_S = 2e-3
#: Clocks are moved by another point of a step than the last one only if that brings ranks this much closer still.
PREFERRED_RATIO = 0.9
#: Spread over ranks is that of all but this part of them.
SPREAD_QUANTILE = 0.9
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
NOT_KNOWN = "a span that this version knows nothing of; its time is between others"
TOKENS = "local_valid_tokens"
MARKS = (b'"log_type_name"', b'"time_us"')
#: Where ranks may be seen to wait for each other, in words.
MEETINGS = {
    "tokens": "before fwd_bwd, for the count of tokens (which stands as waiting for what the last rank waits for)",
    "compute": "in fwd_bwd, which they begin apart and end together (until the last begins it, it stands as such waiting, too)",
    "optimizer": "at the end of optim, for the norm of gradients (it stands as optimizer-clip-main-grad)",
}


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


@dataclasses.dataclass(slots=True)
class _Spans:
    """Spans of all ranks, one entry a span; seconds in unix time."""

    kind: Ints
    rank: Ints
    step: Ints
    attempt: Ints
    start_s: Seconds
    end_s: Seconds

    def take(self, keep: NDArray[np.bool_] | Ints) -> "_Spans":
        """Keep some spans."""
        return _Spans(*(getattr(self, field.name)[keep] for field in dataclasses.fields(self)))


class _Found:
    """Columns that grow."""

    def __init__(self) -> None:
        self.whole, self.times = array("q"), array("d")  # kind, rank, step, attempt; start, end
        self.tokens: dict[tuple[int, int], float] = {}
        self.hosts: dict[int, str] = {}
        self.other: Counter[str] = Counter()
        self.broken = 0


def recognise(peek: Peek) -> bool:
    """Say whether one of the first files begins with a structured record."""
    return any(_is_structured(peek.head(file)) for file in peek.files[:FILES_ASKED])


def read(peek: Peek, *, name: str, report: Report) -> Recording:
    """Read the logs of all ranks.

    Raises
    ------
    TraceError
        No rank has a whole training step.
    """
    found = _Found()
    files = [file for file in peek.files if _is_structured(peek.head(file))]
    others = len(peek.files) - len(files)
    for attempt, file in enumerate(sorted(files, key=lambda file: (_begin_of(peek.head(file)), file))):
        report(f"file {attempt + 1} of {len(files)}")
        for line in read_lines(file, name=name_in(peek.path, file, name)):
            if line.strip():
                _take(line, attempt, found)
    if others:
        found.other["files without structured records"] = others
    kind, rank, step, attempts = np.array(found.whole, dtype=np.int64).reshape(-1, 4).T
    start_s, end_s = np.array(found.times, dtype=np.float64).reshape(-1, 2).T
    spans, warnings = _last_attempt(_Spans(kind, rank, step, attempts, start_s, end_s))
    whole = _whole_steps(spans)
    if not whole.any():
        raise TraceError(
            "has no training step with fwd_bwd and optim; expected the logs of a trainer: name the folder structured_logs of a run",
            where=name,
        )
    return _record(spans.take(whole), found, warnings)


def _is_structured(head: bytes) -> bool:
    """Say whether a file begins with a record of a structured log."""
    first = head.lstrip()[:8192].split(b"\n", 1)[0]
    return first.startswith(b"{") and all(mark in first for mark in MARKS)


def _begin_of(head: bytes) -> float:
    """Say when a file begins, so that of two attempts at a step the later one counts."""
    try:
        return msgspec.json.decode(head.lstrip().split(b"\n", 1)[0], type=_Record, strict=False).time_us or 0.0
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return 0.0


def _take(line: bytes, attempt: int, found: _Found) -> None:
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


def _last_attempt(spans: _Spans) -> tuple[_Spans, tuple[str, ...]]:
    """Keep the last attempt of each rank at each step."""
    _, key = np.unique(np.stack([spans.rank, spans.step]), axis=1, return_inverse=True)
    key = key.ravel()
    last = np.full(int(key.max(initial=-1)) + 1, -1, dtype=np.int64)
    np.maximum.at(last, key, spans.attempt)
    keep = spans.attempt == last[key]
    if keep.all():
        return spans, ()
    n_steps = len(np.unique(spans.step[~keep]))
    return spans.take(keep), (
        f"{n_steps} steps are in the logs more than once (a restart): the last attempt is analysed",
    )


def _whole_steps(spans: _Spans) -> NDArray[np.bool_]:
    """Mark the spans of (rank, step) that have computed and stepped."""
    _, key = np.unique(np.stack([spans.rank, spans.step]), axis=1, return_inverse=True)
    key = key.ravel()
    whole = np.ones(int(key.max(initial=-1)) + 1, dtype=bool)
    for kind in (COMPUTE, OPTIMIZER):
        whole &= np.bincount(key[spans.kind == kind], minlength=len(whole)) > 0
    return np.asarray(whole[key])


class _Grid:
    """When each rank reaches each point of each step: shape (n_ranks, n_steps), NaN where it has none."""

    def __init__(self, spans: _Spans) -> None:
        self.ranks, self.rank_at = np.unique(spans.rank, return_inverse=True)
        self.steps, self.step_at = np.unique(spans.step, return_inverse=True)
        self.spans = spans

    def first(self, kind: int) -> Seconds:
        """Give the begin of the first span of a kind."""
        return -self._reduce(kind, -self.spans.start_s)

    def last(self, kind: int) -> Seconds:
        """Give the end of the last span of a kind."""
        return self._reduce(kind, self.spans.end_s)

    def first_end(self, kind: int) -> Seconds:
        """Give the end of the first span of a kind."""
        return -self._reduce(kind, -self.spans.end_s)

    def _reduce(self, kind: int, values: Seconds) -> Seconds:
        """Take the largest value of each rank and step."""
        here = self.spans.kind == kind
        found = np.full((len(self.ranks), len(self.steps)), -np.inf)
        np.maximum.at(found, (self.rank_at[here], self.step_at[here]), values[here])
        return np.where(np.isneginf(found), np.nan, found)


def _apart(reached: Seconds, offset_s: Seconds) -> float:
    """Say how far apart ranks are at a point, clocks aligned; seconds."""
    late = reached - offset_s[:, None]
    late = np.abs(late - np.nanmedian(late, axis=0))
    return float(np.nanquantile(late, SPREAD_QUANTILE))


def _clock_offsets(reached: Seconds, host: Ints) -> Seconds:
    """Say by how much each host's clock is ahead, if all reach a point together; seconds, shape (n_ranks,)."""
    late = reached - np.nanmedian(reached, axis=0)
    by_host = np.array([np.nanmedian(late[host == code]) for code in range(int(host.max()) + 1)])
    return np.asarray(by_host[host])


def _choose_clocks(points: Sequence[Seconds], host: Ints) -> tuple[Seconds, int | None]:
    """Say by how much each rank's clock is ahead: what brings ranks closest together at all points, by meeting at one of them.

    Whoever is late by the same time in each step may as well have a clock that is ahead; so the last point of a step, at which all
    have waited, goes before the others, and ranks of a host have one clock.

    Returns
    -------
    offset_s : ndarray of float64, shape (n_ranks,)
    at : int or None
        The point; None where clocks need no moving.
    """
    none = np.zeros(len(host))
    best: tuple[float, Seconds, int | None] = (sum(_apart(point, none) for point in points), none, None)
    for at in reversed(range(len(points))):
        offset_s = _clock_offsets(points[at], host)
        if not _is_closer(_apart(points[at], none), _apart(points[at], offset_s)):
            continue
        apart_s = sum(_apart(point, offset_s) for point in points)
        if apart_s < best[0] * (1.0 if best[2] is None else PREFERRED_RATIO):
            best = (apart_s, offset_s, at)
    return best[1], best[2]


def _meet(before: Seconds, after: Seconds) -> bool:
    """Say whether ranks that come to a point apart leave it together; not where they were never apart."""
    none = np.zeros(len(before))
    return _is_closer(_apart(before, none), _apart(after, none))


def _is_closer(before_s: float, after_s: float) -> bool:
    """Say whether ranks that were apart are together; seconds."""
    return before_s >= LEAST_SPREAD_S and after_s <= TOGETHER_RATIO * before_s


class _Rows:
    """Rows that grow; rank and step by index, seconds on one clock."""

    def __init__(self) -> None:
        self.whole: list[Ints] = []  # shape (3, n): type, rank, step
        self.times: list[Seconds] = []  # shape (2, n): start, end

    def add(self, op: Op, rank: Ints, step: Ints, start_s: Seconds, end_s: Seconds) -> None:
        """Add rows of one type."""
        self.whole.append(np.stack([np.full(len(rank), int(op)), rank, step]))
        self.times.append(np.stack([start_s, end_s]))


def _record(spans: _Spans, found: _Found, warnings: tuple[str, ...]) -> Recording:
    """Turn spans into operations."""
    dropped = [Dropped(what, n, NOT_KNOWN) for what, n in sorted(found.other.items())]
    if (n_evaluations := int((spans.kind == EVALUATE).sum())) > 0:
        dropped.append(Dropped("eval", n_evaluations, "an evaluation is no training: its time is cut out of the clock"))
    grid = _Grid(_cut_evaluations(spans))
    names = tuple(dict.fromkeys(found.hosts.values()))
    codes = np.array([names.index(found.hosts[r]) if r in found.hosts else -1 for r in grid.ranks.tolist()])
    offsets: tuple[ClockOffset, ...] = ()
    met: list[str] = []
    if len(grid.ranks) > 1:
        clocks = codes if codes.min() >= 0 else np.arange(len(codes))
        points = [_begins(grid), grid.first(COMPUTE), grid.first_end(COMPUTE), grid.last(OPTIMIZER)]
        offset_s, at = _choose_clocks(points, clocks)
        if at is not None:
            offsets = _say_offsets(grid, offset_s, points[at])
            grid = _Grid(_align(grid, offset_s))
        met = _find_meetings(grid)
        if "compute" in met and "tokens" not in met:
            grid = _Grid(_cut_waits(grid))
    fetched, begun = grid.last(FETCH), grid.first(COMPUTE)
    rows = _Rows()
    _add_begins(grid, begun, rows)
    if "tokens" in met or "compute" in met:
        last = _add_waits(grid, fetched, begun, rows)
        warnings = (*warnings, _say_last(grid, last, fetched))
    n_idle = _add_spans(grid, rows, meets_at_optimizer="optimizer" in met)
    if n_idle:
        dropped.append(Dropped("checkpoint_save", n_idle, "it did not save in that step"))
    if found.broken:
        dropped.append(Dropped("lines that are no whole record", found.broken, "damaged"))
    op, rank, step = np.concatenate(rows.whole, axis=1)
    start_s, end_s = np.concatenate(rows.times, axis=1)
    base_s = float(np.floor(start_s.min()))
    return Recording(
        producer=NAME,
        op=op.astype(np.int8),
        step=grid.steps[step],
        dp=grid.ranks[rank],
        stage=np.zeros(len(op), dtype=np.int64),
        start_s=start_s - base_s,
        duration_s=end_s - start_s,
        rank=grid.ranks[rank],
        host=codes[rank] if names else None,
        host_names=names,
        tokens=_tokens(found, grid, op, rank, step),
        job={"framework": "torchtitan", "world_size": len(grid.ranks)},
        dropped=tuple(dropped),
        unobserved=_list_unobserved(len(grid.ranks), met),
        offsets=offsets,
        warnings=warnings,
    )


def _begins(grid: _Grid) -> Seconds:
    """Say when each rank begins each step."""
    begins = grid.first(STEP)
    return np.where(np.isnan(begins), np.fmin(grid.first(FETCH), grid.first(COMPUTE)), begins)


def _find_meetings(grid: _Grid) -> list[str]:
    """Say where ranks are seen to wait for each other."""
    begun = grid.first(COMPUTE)
    pairs = {
        "tokens": (grid.last(FETCH), begun),
        "compute": (begun, grid.first_end(COMPUTE)),
        "optimizer": (grid.last(COMPUTE), grid.last(OPTIMIZER)),
    }
    found = []
    for where, (before, after) in pairs.items():
        there = ~(np.isnan(before) | np.isnan(after)).any(axis=0)
        if there.any() and _meet(before[:, there], after[:, there]):
            found.append(where)
    return found


def _align(grid: _Grid, offset_s: Seconds) -> _Spans:
    """Put all ranks on one clock."""
    spans, shift_s = grid.spans, offset_s[grid.rank_at]
    return dataclasses.replace(spans, start_s=spans.start_s - shift_s, end_s=spans.end_s - shift_s)


def _cut_waits(grid: _Grid) -> _Spans:
    """Let the first fwd_bwd of a step begin when the last rank begins it: all end it together, so who was there before waited."""
    spans, begun = grid.spans, grid.first(COMPUTE)
    last_s = np.nanmax(np.where(np.isnan(begun), -np.inf, begun), axis=0)[grid.step_at]
    first = (spans.kind == COMPUTE) & (spans.start_s <= begun[grid.rank_at, grid.step_at]) & (last_s < spans.end_s)
    return dataclasses.replace(spans, start_s=np.where(first, last_s, spans.start_s))


def _add_begins(grid: _Grid, begun: Seconds, rows: _Rows) -> None:
    """Let a step begin when all ranks have begun it: without this row, what a rank does before its first forward is in no step."""
    begins = _begins(grid)
    rank, step = np.nonzero(~np.isnan(begun))
    rows.add(
        Op.ALL_GATHER,
        rank,
        step,
        begins[rank, step],
        np.nanmax(np.where(np.isnan(begun), np.nan, begins), axis=0)[step],
    )


def _add_waits(grid: _Grid, fetched: Seconds, begun: Seconds, rows: _Rows) -> Ints:
    """Let all ranks wait for what the last one waits for; give that rank of each step."""
    last, by_collection = _find_last(grid, fetched)
    for op, at in ((Op.GC, by_collection), (Op.DATA_LOAD, ~by_collection)):
        waits = ~np.isnan(fetched) & ~np.isnan(begun) & at & (np.arange(len(fetched))[:, None] != last)
        rank, step = np.nonzero(waits)
        rows.add(op, rank, step, fetched[waits], begun[waits])
    return last


def _add_spans(grid: _Grid, rows: _Rows, *, meets_at_optimizer: bool) -> int:
    """Add what the spans stand for; give how many calls to save did not save."""
    spans = grid.spans
    step_s = float(np.nanmedian(grid.last(OPTIMIZER) - grid.first(COMPUTE)))
    idle = (spans.kind == SAVE) & (spans.end_s - spans.start_s < SAVED_SHARE * step_s)
    turn_s = spans.start_s + FORWARD_PART * (spans.end_s - spans.start_s)
    for kind, op, start_s, end_s in (
        (COMPUTE, Op.FORWARD, spans.start_s, turn_s),
        (COMPUTE, Op.BACKWARD, turn_s, spans.end_s),
        (OPTIMIZER, Op.CLIP if meets_at_optimizer else Op.OPTIMIZER, spans.start_s, spans.end_s),
        (FETCH, Op.DATA_LOAD, spans.start_s, spans.end_s),
        (COLLECT, Op.GC, spans.start_s, spans.end_s),
        (SAVE, Op.CHECKPOINT, spans.start_s, spans.end_s),
    ):
        here = (spans.kind == kind) & ~idle
        rows.add(op, grid.rank_at[here], grid.step_at[here], start_s[here], end_s[here])
    return int(idle.sum())


def _cut_evaluations(spans: _Spans) -> _Spans:
    """Let each step follow the one before without the evaluation between them; all ranks evaluate at once."""
    here = spans.kind == EVALUATE
    if not here.any():
        return spans
    grid = _Grid(spans)
    seconds = np.zeros((len(grid.ranks), len(grid.steps)))
    np.add.at(seconds, (grid.rank_at[here], grid.step_at[here]), (spans.end_s - spans.start_s)[here])
    of_step_s = np.median(seconds, axis=0)
    cut_s = (np.cumsum(of_step_s) - of_step_s)[grid.step_at]
    return dataclasses.replace(spans, start_s=spans.start_s - cut_s, end_s=spans.end_s - cut_s)


def _find_last(grid: _Grid, fetched: Seconds) -> tuple[Ints, NDArray[np.bool_]]:
    """Say which rank all others wait for in each step, and whether that is for a collection rather than for its batch."""
    last = np.argmax(np.where(np.isnan(fetched), -np.inf, fetched), axis=0)
    spans = grid.spans
    seconds = np.zeros((2, *fetched.shape))
    for of_kind, kind in zip(seconds, (COLLECT, FETCH), strict=True):
        here = spans.kind == kind
        np.add.at(of_kind, (grid.rank_at[here], grid.step_at[here]), (spans.end_s - spans.start_s)[here])
    longer = seconds - np.median(seconds, axis=1, keepdims=True)
    collected, loaded = longer[:, last, np.arange(len(last))]
    return last, np.asarray(collected > loaded)


def _say_last(grid: _Grid, last: Ints, fetched: Seconds) -> str:
    """Say who is last most often: all others wait for him, and causes cannot name him."""
    rank, n = Counter(last.tolist()).most_common(1)[0]
    behind_s = float(np.nanmedian((fetched - np.nanmedian(fetched, axis=0))[rank, last == rank]))
    text = f"rank {int(grid.ranks[rank])} is it in {n} of {len(last)} steps, {behind_s:.2g} s behind the median"
    return f"all ranks wait for the last one to be ready for fwd_bwd: {text}"


def _tokens(found: _Found, grid: _Grid, op: Ints, rank: Ints, step: Ints) -> Seconds | None:
    """Share the tokens of a rank's step out over its computes; NaN elsewhere."""
    if not found.tokens:
        return None
    of_cell = np.full((len(grid.ranks), len(grid.steps)), np.nan)
    rank_at = {rank: i for i, rank in enumerate(grid.ranks.tolist())}
    step_at = {step: i for i, step in enumerate(grid.steps.tolist())}
    for (of_rank, of_step), tokens in found.tokens.items():
        if of_rank in rank_at and of_step in step_at:
            of_cell[rank_at[of_rank], step_at[of_step]] = tokens
    n_computes = np.zeros(of_cell.shape)
    forwards = op == Op.FORWARD
    np.add.at(n_computes, (rank[forwards], step[forwards]), 1)
    computes = forwards | (op == Op.BACKWARD)
    return np.where(computes, of_cell[rank, step] / np.maximum(n_computes[rank, step], 1), np.nan)


def _say_offsets(grid: _Grid, offset_s: Seconds, reached: Seconds) -> tuple[ClockOffset, ...]:
    """Say how far the clock of each rank was moved."""
    late = reached - np.nanmedian(reached, axis=0) - offset_s[:, None]
    spread = np.nanquantile(late, [0.25, 0.75], axis=1)
    half = (spread[1] - spread[0]) / 2
    return tuple(
        ClockOffset(f"rank {rank}", float(offset), float(width), "collectives")
        for rank, offset, width in zip(grid.ranks.tolist(), offset_s.tolist(), half.tolist(), strict=True)
    )


def _list_unobserved(n_ranks: int, met: Sequence[str]) -> tuple[Unobserved, ...]:
    """Say what a host's times leave open, by where ranks are seen to wait for each other."""
    seen = "optimizer" in met and "compute" not in met
    said = [
        Unobserved(
            "what GPUs do",
            "the times are those of the host, which launches work and goes on"
            + (
                ""
                if seen
                else "; a rank waits for a slow one inside its own fwd_bwd, so nobody can be told from who waits for him"
            )
            + "; profile some steps and diagnose the profile to see it",
            ("device-times",) if seen else ("device-times", "worker-times"),
        ),
        Unobserved(
            "where a forward ends",
            "fwd_bwd is one span: a third of it stands as forward-compute, the rest as backward-compute; their sum is measured",
        ),
        Unobserved("stages and microbatches", "each rank stands as a data-parallel one of a single stage"),
    ]
    if n_ranks > 1:
        text = (
            f"ranks are seen to wait for each other {' and '.join(MEETINGS[where] for where in met)}"
            if met
            else "ranks are nowhere seen to wait for each other: input or a collection that is late on one rank alone is not "
            "seen to delay the others"
        )
        said.append(Unobserved("collectives", text))
    return tuple(said)
