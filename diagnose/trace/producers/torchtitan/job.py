"""Structured logs of torchtitan: JSON Lines of each rank, with the spans of its training loop as the host saw them.

Enters: `{source}.global_rank_{rank}.*.jsonl`, one or a folder of all ranks. Leaves: a `Recording` of one stage, each rank a
data-parallel one. The host launches work and goes on: what a rank computes, and for whom it waits in `fwd_bwd`, is not told;
what stops the loop itself is: input, collections, saving.
"""

import dataclasses
from collections import Counter
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from diagnose.errors import TraceError
from diagnose.model.optype import Op
from diagnose.model.recording import ClockOffset, Dropped, Recording, Unobserved
from diagnose.model.trace import Ints, Seconds
from diagnose.trace.input_files import InputFiles, name_in
from diagnose.trace.logs.lines import read_lines
from diagnose.trace.producers.catalogue import Report
from diagnose.trace.producers.torchtitan.meetings import (
    Grid,
    align_spans,
    choose_clocks,
    cut_waits,
    find_begins,
    find_meetings,
)
from diagnose.trace.producers.torchtitan.spans import (
    COLLECT,
    COMPUTE,
    EVALUATE,
    FETCH,
    OPTIMIZER,
    SAVE,
    LogColumns,
    Spans,
    find_begin,
    is_structured,
    keep_last_attempt,
    mark_whole_steps,
    take_line,
)

NAME = "torchtitan"
TITLE = "torchtitan structured logs: JSON Lines a rank (structured_logs/*.jsonl)"

#: First files of a folder of which one must begin with a structured record: other logs may lie beside them.
FILES_ASKED = 16
#: A forward takes one part of `fwd_bwd`, a backward two: only their sum is measured.
FORWARD_PART = 1.0 / 3.0
#: Saving is called in each step and mostly does nothing: shorter than this part of a step it did not save.
SAVED_SHARE = 0.01
NOT_KNOWN = "a span that this version knows nothing of; its time is between others"
#: Where ranks may be seen to wait for each other, in words.
MEETINGS = {
    "tokens": "before fwd_bwd, for the count of tokens (which stands as waiting for what the last rank waits for)",
    "compute": "in fwd_bwd, which they begin apart and end together (until the last begins it, it stands as such waiting, too)",
    "optimizer": "at the end of optim, for the norm of gradients (it stands as optimizer-clip-main-grad)",
}


def recognise(inputs: InputFiles) -> bool:
    """Say whether one of the first files begins with a structured record."""
    return any(is_structured(inputs.head(file)) for file in inputs.files[:FILES_ASKED])


def read(inputs: InputFiles, *, name: str, report: Report) -> Recording:
    """Read the logs of all ranks, of which one must have a whole training step."""
    found = LogColumns()
    files = [file for file in inputs.files if is_structured(inputs.head(file))]
    others = len(inputs.files) - len(files)
    for attempt, file in enumerate(sorted(files, key=lambda file: (find_begin(inputs.head(file)), file))):
        report(f"file {attempt + 1} of {len(files)}")
        for line in read_lines(file, name=name_in(inputs.path, file, name)):
            if line.strip():
                take_line(line, attempt, found)
    if others:
        found.other["files without structured records"] = others
    kind, rank, step, attempts = np.array(found.whole, dtype=np.int64).reshape(-1, 4).T
    start_s, end_s = np.array(found.times, dtype=np.float64).reshape(-1, 2).T
    spans, warnings = keep_last_attempt(Spans(kind, rank, step, attempts, start_s, end_s))
    whole = mark_whole_steps(spans)
    if not whole.any():
        raise TraceError(
            "has no training step with fwd_bwd and optim; expected the logs of a trainer: name the folder structured_logs of a run",
            where=name,
        )
    return _record(spans.take(whole), found, warnings)


class _Rows:
    """Rows that grow; rank and step by index, seconds on one clock."""

    def __init__(self) -> None:
        self.whole: list[Ints] = []  # shape (3, n): type, rank, step
        self.times: list[Seconds] = []  # shape (2, n): start, end

    def add(self, op: Op, rank: Ints, step: Ints, start_s: Seconds, end_s: Seconds) -> None:
        """Add rows of one type."""
        self.whole.append(np.stack([np.full(len(rank), int(op)), rank, step]))
        self.times.append(np.stack([start_s, end_s]))


def _record(spans: Spans, found: LogColumns, warnings: tuple[str, ...]) -> Recording:
    """Turn spans into operations."""
    dropped = [Dropped(what, n, NOT_KNOWN) for what, n in sorted(found.other.items())]
    if (n_evaluations := int((spans.kind == EVALUATE).sum())) > 0:
        dropped.append(Dropped("eval", n_evaluations, "an evaluation is no training: its time is cut out of the clock"))
    grid = Grid(_cut_evaluations(spans))
    names = tuple(dict.fromkeys(found.hosts.values()))
    codes = np.array([names.index(found.hosts[r]) if r in found.hosts else -1 for r in grid.ranks.tolist()])
    grid, met, offsets = _align_ranks(grid, codes)
    fetched, begun = grid.last(FETCH), grid.first(COMPUTE)
    rows = _Rows()
    _add_begins(grid, begun, rows)
    if "tokens" in met or "compute" in met:
        last = _add_waits(grid, fetched, begun, rows)
        warnings = (*warnings, _describe_last(grid, last, fetched))
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


def _align_ranks(grid: Grid, hosts: Ints) -> tuple[Grid, list[str], tuple[ClockOffset, ...]]:
    """Put all ranks on one clock, and say where they are seen to wait for each other; `hosts`, shape (n_ranks,)."""
    if len(grid.ranks) == 1:
        return grid, [], ()
    offsets: tuple[ClockOffset, ...] = ()
    points = [find_begins(grid), grid.first(COMPUTE), grid.first_end(COMPUTE), grid.last(OPTIMIZER)]
    offset_s, at = choose_clocks(points, hosts if hosts.min() >= 0 else np.arange(len(hosts)))
    if at is not None:
        offsets = _list_offsets(grid, offset_s, points[at])
        grid = Grid(align_spans(grid, offset_s))
    met = find_meetings(grid)
    if "compute" in met and "tokens" not in met:
        grid = Grid(cut_waits(grid))
    return grid, met, offsets


def _add_begins(grid: Grid, begun: Seconds, rows: _Rows) -> None:
    """Let a step begin when all ranks have begun it: without this row, what a rank does before its first forward is in no step."""
    begins = find_begins(grid)
    rank, step = np.nonzero(~np.isnan(begun))
    rows.add(
        Op.ALL_GATHER,
        rank,
        step,
        begins[rank, step],
        np.nanmax(np.where(np.isnan(begun), np.nan, begins), axis=0)[step],
    )


def _add_waits(grid: Grid, fetched: Seconds, begun: Seconds, rows: _Rows) -> Ints:
    """Let all ranks wait for what the last one waits for; give that rank of each step."""
    last, by_collection = _find_last(grid, fetched)
    for op, at in ((Op.GC, by_collection), (Op.DATA_LOAD, ~by_collection)):
        waits = ~np.isnan(fetched) & ~np.isnan(begun) & at & (np.arange(len(fetched))[:, None] != last)
        rank, step = np.nonzero(waits)
        rows.add(op, rank, step, fetched[waits], begun[waits])
    return last


def _add_spans(grid: Grid, rows: _Rows, *, meets_at_optimizer: bool) -> int:
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


def _cut_evaluations(spans: Spans) -> Spans:
    """Let each step follow the one before without the evaluation between them; all ranks evaluate at once."""
    here = spans.kind == EVALUATE
    if not here.any():
        return spans
    grid = Grid(spans)
    seconds = np.zeros((len(grid.ranks), len(grid.steps)))
    np.add.at(seconds, (grid.rank_at[here], grid.step_at[here]), (spans.end_s - spans.start_s)[here])
    of_step_s = np.median(seconds, axis=0)
    cut_s = (np.cumsum(of_step_s) - of_step_s)[grid.step_at]
    return dataclasses.replace(spans, start_s=spans.start_s - cut_s, end_s=spans.end_s - cut_s)


def _find_last(grid: Grid, fetched: Seconds) -> tuple[Ints, NDArray[np.bool_]]:
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


def _describe_last(grid: Grid, last: Ints, fetched: Seconds) -> str:
    """Say who is last most often: all others wait for him, and causes cannot name him."""
    rank, n = Counter(last.tolist()).most_common(1)[0]
    behind_s = float(np.nanmedian((fetched - np.nanmedian(fetched, axis=0))[rank, last == rank]))
    text = f"rank {int(grid.ranks[rank])} is it in {n} of {len(last)} steps, {behind_s:.2g} s behind the median"
    return f"all ranks wait for the last one to be ready for fwd_bwd: {text}"


def _tokens(found: LogColumns, grid: Grid, op: Ints, rank: Ints, step: Ints) -> Seconds | None:
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


def _list_offsets(grid: Grid, offset_s: Seconds, reached: Seconds) -> tuple[ClockOffset, ...]:
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
