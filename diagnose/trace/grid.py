"""Lay the rows out densely over (operation, step, dp rank) and group the steps that share one structure.

Enters: `Rows` in any order. Leaves: blocks of steps, evidence rows, and a warning for each kind of damage. Costs a
few passes over the rows; nothing is sorted unless `seq_id` is missing or wrong.
"""

import dataclasses
from typing import Any

import numpy as np
from numpy.typing import NDArray

from diagnose.errors import TraceError
from diagnose.model.optype import EVIDENCE, NAMES, Op
from diagnose.model.trace import Block, Bools, Evidence, Ints, Nodes, Seconds
from diagnose.trace.parquet import Rows

#: Longest duration, and latest start, that is taken for a measurement: a third of a year, and the year 5138 in unix time.
MAX_DURATION_S = 1e7
MAX_START_S = 1e11
#: A rank, stage or step with less than this part of the rows of a typical one is a stray.
STRAY_SHARE = 0.05
#: A step with a larger part of its operations missing is dropped; below, the gaps are filled by usual values.
MAX_MISSING_SHARE = 0.20
#: A first step this much longer than nearly all others is a warm-up.
WARM_UP_RATIO = 1.3
#: Steps that a warm-up lasts at most, and steps needed to tell one.
MAX_WARM_UP_STEPS = 3
MIN_STEPS_FOR_WARM_UP = 8
#: Dense cells allowed for each row; above it most cells would be empty.
MAX_CELLS_PER_ROW = 6
#: Rows after a worker's last compute may start this much before its end and still follow it.
TOLERANCE_S = 1e-3

_PIPELINED = (Op.FORWARD, Op.BACKWARD, Op.FORWARD_SEND, Op.FORWARD_RECV, Op.BACKWARD_SEND, Op.BACKWARD_RECV)


@dataclasses.dataclass(frozen=True, slots=True)
class Grid:
    """Rows laid out densely: what a `Trace` needs from them."""

    blocks: tuple[Block, ...]
    evidence: Evidence
    dp_labels: Ints
    stage_labels: Ints
    ranks: Ints
    has_ranks: bool
    hosts: tuple[str, ...] | None
    n_chunks: int | None
    n_tp: int | None
    step_origin_s: Seconds | None
    n_ops: int
    steps_dropped: int
    warm_up_steps: tuple[int, ...]
    warnings: tuple[str, ...]


def build_grid(rows: Rows, *, name: str, vpp_size: int | None, pick_steps: Ints | None = None) -> Grid:
    """Lay out the rows of one job.

    Parameters
    ----------
    rows : Rows
    name : str
        How errors call the file.
    vpp_size : int or None
        Model chunks a worker by the metadata; used where the rows have no `mc`.
    pick_steps : ndarray of int64, optional
        Analyse only these steps.

    Raises
    ------
    TraceError
        No forward and backward compute at all, more than half of the steps unusable, or none of the picked steps there.
    """
    warnings: list[str] = []
    if rows.unknown_ops:
        listed = ", ".join(f"{text!r} ({n})" for text, n in list(rows.unknown_ops.items())[:5])
        warnings.append(f"{sum(rows.unknown_ops.values())} rows of unknown operation types are not simulated: {listed}")
    rows = _usable(rows, name, warnings)
    if pick_steps is not None:
        wanted = np.isin(rows.step, pick_steps)
        if not wanted.any():
            low, high = int(rows.step.min()), int(rows.step.max())
            raise TraceError(f"none of the steps asked for is in the trace; expected some of {low}..{high}", where=name)
        rows = _take(rows, wanted)
    rows, (steps, dp_labels, stage_labels), (step_at, dp_at, stage_at) = _number(rows, warnings)
    n_steps, n_dp, n_stages = len(steps), len(dp_labels), len(stage_labels)

    rows, (step_at, dp_at, stage_at), n_tp = _merge_members(rows, (step_at, dp_at, stage_at), (n_steps, n_dp, n_stages))
    ranks, has_ranks, hosts = _workers(rows, dp_at, stage_at, n_dp, n_stages)
    dense, rows, (step_at, dp_at, stage_at) = _scatter(
        rows, (step_at, dp_at, stage_at), (n_steps, n_dp, n_stages), name, vpp_size, warnings
    )
    evidence_rows = np.flatnonzero(rows.op >= int(min(EVIDENCE)))
    evidence = Evidence(
        op=rows.op[evidence_rows].astype(np.int64),
        step=step_at[evidence_rows].astype(np.int64),
        dp=dp_at[evidence_rows].astype(np.int64),
        stage=stage_at[evidence_rows].astype(np.int64),
        start_s=rows.start_s[evidence_rows].astype(np.float64),
        end_s=rows.start_s[evidence_rows].astype(np.float64) + rows.duration_s[evidence_rows],
    )
    origin, evidence = _shift_origin(dense, evidence)
    _add_collections(dense, evidence, n_stages)
    blocks, kept = _split(steps, dense, warnings)
    warm_up_steps = _find_warm_up(blocks, warnings)
    if 2 * int(kept.sum()) < n_steps:
        raise TraceError(
            f"{n_steps - int(kept.sum())} of {n_steps} steps are unusable (operations missing); expected at least half of "
            "the steps complete: check that every rank's rows are in the file",
            where=name,
        )
    at_kept = kept[evidence.step]
    fields = {f.name: getattr(evidence, f.name)[at_kept] for f in dataclasses.fields(evidence)}
    fields["step"] = steps[fields["step"]]
    n_chunks = int(dense.nodes.chunk.max()) + 1 if dense.has_chunks else None
    return Grid(
        blocks=tuple(blocks),
        evidence=Evidence(**fields),
        dp_labels=dp_labels,
        stage_labels=stage_labels,
        ranks=ranks,
        has_ranks=has_ranks,
        hosts=hosts,
        n_chunks=n_chunks,
        n_tp=n_tp,
        step_origin_s=None if origin is None else origin[kept],
        n_ops=int(sum(np.count_nonzero(~np.isnan(block.start_s)) for block in blocks)),
        steps_dropped=n_steps - int(kept.sum()),
        warm_up_steps=warm_up_steps,
        warnings=tuple(warnings),
    )


def _take(rows: Rows, keep: NDArray[Any]) -> Rows:
    """Keep some rows, by mask or by position."""
    changed = {}
    for field in dataclasses.fields(rows):
        value = getattr(rows, field.name)
        if isinstance(value, np.ndarray):
            changed[field.name] = value[keep]
    return dataclasses.replace(rows, **changed)


def _usable(rows: Rows, name: str, warnings: list[str]) -> Rows:
    """Leave out rows that cannot be placed or measured, and refuse a trace without computes."""
    bad = rows.bad
    with np.errstate(invalid="ignore"):
        start_ok = np.abs(rows.start_s) <= MAX_START_S
        duration_ok = (rows.duration_s >= 0) & (rows.duration_s <= MAX_DURATION_S)
    unmeasured = ~(start_ok & duration_ok)
    if bad is not None:
        unmeasured &= ~bad
        warnings.append(f"{int(bad.sum())} rows lack a required value and are left out")
    n_unmeasured = int(np.count_nonzero(unmeasured))
    if n_unmeasured:
        warnings.append(f"{n_unmeasured} rows have a start or duration that is negative, not a number or absurd; left out")
    drop = unmeasured if bad is None else unmeasured | bad
    if rows.unknown_ops:
        drop = drop | (rows.op < 0)
    if drop.any():
        rows = dataclasses.replace(_take(rows, ~drop), bad=None)
    for op in (Op.FORWARD, Op.BACKWARD):
        if not (rows.op == op).any():
            raise TraceError(
                f"has no usable {NAMES[op]} row; expected one for each microbatch: see the operation types of the trace format",
                where=name,
            )
    return rows


def _index(values: NDArray[Any]) -> tuple[Ints, NDArray[Any], Ints]:
    """Number the distinct values in order: labels, index of each row, rows of each label."""
    low, high = int(values.min()), int(values.max())
    if high - low < max(4 * len(values), 1 << 16) and high - low < 1 << 26:
        offset = values.astype(np.int64) - low if values.dtype.itemsize > 4 else values.astype(np.int32) - np.int32(low)
        counts = np.bincount(offset, minlength=high - low + 1)
        labels = np.flatnonzero(counts)
        if len(labels) == high - low + 1:
            return labels + low, offset, counts[labels]
        lookup = np.zeros(len(counts), dtype=np.int32)
        lookup[labels] = np.arange(len(labels))
        return labels + low, lookup[offset], counts[labels]
    labels, index, counts = np.unique(values, return_inverse=True, return_counts=True)
    return labels.astype(np.int64), index, counts


def _number(
    rows: Rows, warnings: list[str]
) -> tuple[Rows, tuple[Ints, Ints, Ints], tuple[NDArray[Any], NDArray[Any], NDArray[Any]]]:
    """Number steps, dp ranks and stages, leaving out those with hardly any rows."""
    columns = {"step": rows.step, "dp rank": rows.dp, "stage": rows.stage}
    numbered = [_index(column) for column in columns.values()]
    drop: Bools | None = None
    for word, (labels, index, counts) in zip(columns, numbered, strict=True):
        stray = counts < STRAY_SHARE * np.median(counts)
        if stray.any():
            listed = ", ".join(str(int(label)) for label in labels[stray][:5])
            warnings.append(
                f"{int(counts[stray].sum())} rows of {int(stray.sum())} {word}s with hardly any rows are left out ({listed})"
            )
            drop = stray[index] if drop is None else drop | stray[index]
    if drop is not None:
        rows = _take(rows, ~drop)
        numbered = [_index(column) for column in (rows.step, rows.dp, rows.stage)]
    (steps, step_at, _), (dps, dp_at, _), (stages, stage_at, _) = numbered
    return rows, (steps, dps, stages), (step_at, dp_at, stage_at)


def _key(rows: Rows, at: tuple[NDArray[Any], ...], sizes: tuple[int, int, int]) -> Ints:
    """Number each (step, dp rank, stage, type)."""
    step_at, dp_at, stage_at = at
    worker = (step_at.astype(np.int64) * sizes[1] + dp_at) * sizes[2] + stage_at
    return worker * len(Op) + rows.op


def _merge_members(
    rows: Rows, at: tuple[NDArray[Any], ...], sizes: tuple[int, int, int]
) -> tuple[Rows, tuple[NDArray[Any], ...], int | None]:
    """Let one row stand for all tensor- and context-parallel members: from the first start to the last end."""
    columns = [column for column in (rows.tp_rank, rows.cp_rank) if column is not None and column.min() != column.max()]
    n_tp = None
    if rows.tp_rank is not None and len(np.unique(rows.tp_rank)) > 1:
        n_tp = len(np.unique(rows.tp_rank))
    if not columns and rows.rank is not None and rows.tp_rank is None:
        labels, member, _ = _index(rows.rank)
        n_workers = sizes[1] * sizes[2]
        if len(labels) > n_workers and len(labels) % n_workers == 0:
            columns, n_tp = [member], len(labels) // n_workers
    if not columns:
        return rows, at, n_tp
    member = np.zeros(len(rows), dtype=np.int64)
    for column in columns:
        _, index, counts = _index(column)
        member = member * len(counts) + index
    key = _key(rows, at, sizes)
    seq = rows.seq if rows.seq is not None else _derive_seq(key * (int(member.max()) + 1) + member, rows.start_s)
    order = np.lexsort((seq, key))
    key, seq = key[order], seq[order]
    first = np.flatnonzero(np.r_[True, (key[1:] != key[:-1]) | (seq[1:] != seq[:-1])])
    start_s = rows.start_s[order].astype(np.float64)
    end_s = start_s + rows.duration_s[order]
    start_s = np.minimum.reduceat(start_s, first)
    merged = dataclasses.replace(
        _take(rows, order[first]),
        start_s=start_s,
        duration_s=np.maximum.reduceat(end_s, first) - start_s,
        seq=seq[first],
    )
    return merged, tuple(index[order[first]] for index in at), n_tp


def _derive_seq(key: Ints, start_s: NDArray[Any]) -> Ints:
    """Count the operations of each key by start."""
    order = np.lexsort((start_s, key))
    ordered = key[order]
    first = np.flatnonzero(np.r_[True, ordered[1:] != ordered[:-1]])
    seq = np.empty(len(key), dtype=np.int64)
    seq[order] = np.arange(len(key)) - np.repeat(first, np.diff(np.r_[first, len(key)]))
    return seq


def _workers(
    rows: Rows, dp_at: NDArray[Any], stage_at: NDArray[Any], n_dp: int, n_stages: int
) -> tuple[Ints, bool, tuple[str, ...] | None]:
    """Say which global rank and host each worker is."""
    ranks = np.arange(n_dp * n_stages, dtype=np.int64).reshape(n_stages, n_dp).T.copy()
    has_ranks = rows.rank is not None
    if rows.rank is not None:
        ranks[dp_at, stage_at] = rows.rank
    hosts = None
    if rows.host is not None:
        codes = np.full((n_dp, n_stages), -1, dtype=np.int64)
        codes[dp_at, stage_at] = rows.host
        hosts = tuple("" if code < 0 else rows.host_names[code] for code in codes.ravel().tolist())
    return ranks, has_ranks, hosts


@dataclasses.dataclass(slots=True)
class _Dense:
    """Rows laid out over (node, step, dp rank), before steps are grouped; absolute times allowed."""

    nodes: Nodes
    start_s: Seconds
    end_s: Seconds
    tokens: Seconds | None
    tokens_sq: Seconds | None
    has_chunks: bool


def _scatter(
    rows: Rows,
    at: tuple[NDArray[Any], ...],
    sizes: tuple[int, int, int],
    name: str,
    vpp_size: int | None,
    warnings: list[str],
) -> tuple[_Dense, Rows, tuple[NDArray[Any], ...]]:
    """Put every simulated row into its cell; duplicates are dropped, a wrong `seq_id` is counted again.

    Rows of evidence all go to one more plane, behind those of the nodes, and are forgotten with it.
    """
    n_steps, n_dp, n_stages = sizes
    seq = rows.seq
    per_worker = -(-len(rows) // (n_steps * n_dp * n_stages))
    if seq is not None and (seq.min() < 0 or seq.max() >= 2 * per_worker + 64):
        warnings.append("seq_id is negative or far too large in some rows; counted again by start time")
        seq = None
    repeats_dropped = seq is None
    if seq is None:
        rows, at = _drop_repeated(rows, at, sizes, warnings)
        seq = _derive_seq(_key(rows, at, sizes), rows.start_s)
    while True:
        node_at, op, stage, number, counts = _find_nodes(rows, at, seq, n_stages)
        cells = (len(op) + 1) * n_steps * n_dp
        if cells > MAX_CELLS_PER_ROW * len(rows) + 100_000:
            rare = np.r_[counts < STRAY_SHARE * n_steps * n_dp, False]
            if not rare.any():
                raise TraceError(
                    f"{len(rows)} rows would fill {cells} cells of (operation, step, dp rank): the ranks and steps have too "
                    "little in common; check step, dp_rank, stage and seq_id",
                    where=name,
                )
            keep = ~rare[node_at]
            warnings.append(f"{int((~keep).sum())} rows of operations that hardly any rank has are left out")
            rows, at, seq = _take(rows, keep), tuple(index[keep] for index in at), seq[keep]
            continue
        cell = node_at.astype(np.int32 if cells < 2**31 else np.int64, copy=False)
        cell *= n_steps
        cell += at[0]
        cell *= n_dp
        cell += at[1]
        start_s = np.full((len(op) + 1, n_steps, n_dp), np.nan)
        start_s.reshape(-1)[cell] = rows.start_s
        n_filled = int(np.count_nonzero(start_s[:-1] == start_s[:-1]))
        if n_filled == int(counts.sum()) and not _out_of_order(start_s[:-1], op, stage):
            break
        if not repeats_dropped:
            n_before = len(rows)
            rows, at = _drop_repeated(dataclasses.replace(rows, seq=seq), at, sizes, warnings)
            seq = rows.seq
            repeats_dropped = True
            if len(rows) < n_before and seq is not None:
                continue
        warnings.append("seq_id does not count the operations by start time; counted again")
        seq = _derive_seq(_key(rows, at, sizes), rows.start_s)
    end_s = np.full(start_s.shape, np.nan)
    end_s.reshape(-1)[cell] = rows.duration_s
    end_s += start_s
    extra: list[Seconds | None] = []
    for column in (rows.tokens, rows.tokens_sq):
        values = None
        if column is not None:
            values = np.full(start_s.shape, np.nan)
            values.reshape(-1)[cell] = column
            values[values < 0] = np.nan
            values = values[:-1]
        extra.append(values)
    microbatch, chunk = _name_microbatches(rows, at, node_at=cell // (n_steps * n_dp), op=op, stage=stage, number=number,
                                           start_s=start_s[:-1], vpp_size=vpp_size, n_stages=n_stages)
    nodes = Nodes(op=op, stage=stage, seq=number, microbatch=microbatch, chunk=chunk)
    has_chunks = rows.chunk is not None
    return _Dense(nodes, start_s[:-1], end_s[:-1], extra[0], extra[1], has_chunks), rows, at


def _find_nodes(
    rows: Rows, at: tuple[NDArray[Any], ...], seq: NDArray[Any], n_stages: int
) -> tuple[NDArray[Any], Ints, Ints, Ints, Ints]:
    """Number the operations that occur: node of each row (one too many for evidence), type, stage, seq, and rows of each."""
    n_seq = int(seq.max()) + 1
    key = rows.op.astype(np.int32)
    key *= n_stages
    key += at[2]
    key *= n_seq
    key += seq.astype(np.int32, copy=False)
    counts = np.bincount(key, minlength=int(min(EVIDENCE)) * n_stages * n_seq)
    used = np.flatnonzero(counts[: int(min(EVIDENCE)) * n_stages * n_seq])
    lookup = np.full(len(counts), len(used), dtype=np.int32)
    lookup[used] = np.arange(len(used))
    place, number = np.divmod(used, n_seq)
    op, stage = np.divmod(place, n_stages)
    return lookup[key], op, stage, number, counts[used]


def _out_of_order(start_s: Seconds, op: Ints, stage: Ints) -> bool:
    """Say whether operations of one type on one worker start in another order than `seq_id` says (a few steps looked at)."""
    looked_at = start_s[:, :: max(1, start_s.shape[1] // 8)]
    same = (op[1:] == op[:-1]) & (stage[1:] == stage[:-1])
    with np.errstate(invalid="ignore"):
        backwards = np.count_nonzero((looked_at[1:] < looked_at[:-1])[same])
    return bool(backwards > 0.01 * looked_at[1:][same].size)


def _drop_repeated(
    rows: Rows, at: tuple[NDArray[Any], ...], sizes: tuple[int, int, int], warnings: list[str]
) -> tuple[Rows, tuple[NDArray[Any], ...]]:
    """Drop rows that say the same of the same operation twice; of two that differ in `duration` the longer stays."""
    key = _key(rows, at, sizes)
    order = np.lexsort((rows.duration_s, rows.start_s, key))
    key, start_s = key[order], rows.start_s[order]
    same = (key[1:] == key[:-1]) & (start_s[1:] == start_s[:-1])
    if rows.seq is not None:
        seq = rows.seq[order]
        same &= seq[1:] == seq[:-1]
    if not same.any():
        return rows, at
    keep = np.ones(len(rows), dtype=bool)
    keep[order[:-1][same]] = False
    warnings.append(f"{int(same.sum())} rows are duplicates and are left out")
    return _take(rows, keep), tuple(index[keep] for index in at)


def _name_microbatches(
    rows: Rows,
    at: tuple[NDArray[Any], ...],
    *,
    node_at: NDArray[Any],
    op: Ints,
    stage: Ints,
    number: Ints,
    start_s: Seconds,
    vpp_size: int | None,
    n_stages: int,
) -> tuple[Ints, Ints]:
    """Say which microbatch and model chunk each compute node works on, from the fullest lane, else from the launch order."""
    present = np.count_nonzero(start_s == start_s, axis=0) if rows.chunk is not None or rows.microbatch is not None else None
    microbatch = np.full(len(op), -1, dtype=np.int64)
    chunk = np.full(len(op), -1, dtype=np.int64)
    chunked = np.isin(op, (Op.FORWARD, Op.BACKWARD, Op.ALL_GATHER, Op.REDUCE_SCATTER))
    if present is not None:
        fullest = np.unravel_index(int(present.argmax()), present.shape)
        in_lane = np.flatnonzero((at[0] == fullest[0]) & (at[1] == fullest[1]))
        in_lane = in_lane[node_at[in_lane] < len(op)]
        for found, column in ((microbatch, rows.microbatch), (chunk, rows.chunk)):
            if column is not None:
                found[node_at[in_lane]] = column[in_lane]
    chunk[~chunked] = -1
    n_chunks = vpp_size or 1
    compute = np.isin(op, (Op.FORWARD, Op.BACKWARD))
    if (chunk[compute] < 0).any():
        # Interleaved 1F1B launches groups of n_stages microbatches, chunk after chunk (arXiv 2104.04473, section 2.2).
        turn = number // n_stages % n_chunks
        chunk[compute] = np.where(op == Op.BACKWARD, n_chunks - 1 - turn, turn)[compute]
    for of_op, order in ((Op.ALL_GATHER, number), (Op.REDUCE_SCATTER, n_chunks - 1 - number)):
        unknown = (op == of_op) & (chunk < 0)
        chunk[unknown] = np.clip(order, 0, n_chunks - 1)[unknown]
    if not _alike(op, stage, chunk, microbatch):
        place = (op * (int(stage.max()) + 1) + stage) * (int(chunk.max()) + 2) + chunk
        microbatch = np.where(compute, _derive_seq(place, number.astype(np.float64)), -1)
    microbatch[~compute] = -1
    return microbatch, chunk


def _alike(op: Ints, stage: Ints, chunk: Ints, microbatch: Ints) -> bool:
    """Say whether every stage and chunk runs each microbatch exactly once in each direction."""
    seen = set()
    for of_op in (Op.FORWARD, Op.BACKWARD):
        for of_stage in range(int(stage.max()) + 1):
            here = (op == of_op) & (stage == of_stage)
            for of_chunk in np.unique(chunk[here]).tolist():
                seen.add(tuple(np.sort(microbatch[here & (chunk == of_chunk)]).tolist()))
    return len(seen) == 1 and len(set(first := next(iter(seen)))) == len(first) and min(first) >= 0


def _shift_origin(dense: _Dense, evidence: Evidence) -> tuple[Seconds | None, Evidence]:
    """Make times relative to the step in place; say where steps began if the file had times of the whole job."""
    first = np.fmin.reduce(np.fmin.reduce(dense.start_s, axis=0), axis=1)
    last = np.fmax.reduce(np.fmax.reduce(dense.end_s, axis=0), axis=1)
    length = float(np.median(last - first))
    if float(np.max(np.abs(first))) <= max(length, 1e-9):
        return None, evidence
    dense.start_s -= first[:, None]
    dense.end_s -= first[:, None]
    shift = first[evidence.step]
    moved = dataclasses.replace(evidence, start_s=evidence.start_s - shift, end_s=evidence.end_s - shift)
    return first, moved


def _add_collections(dense: _Dense, evidence: Evidence, n_stages: int) -> None:
    """Give each stage a `gc` node where collections follow the last compute; elsewhere they stay evidence."""
    rows = np.flatnonzero(evidence.op == Op.GC)
    if not len(rows):
        return
    nodes = dense.nodes
    compute = np.isin(nodes.op, (Op.FORWARD, Op.BACKWARD))
    step, dp, stage = evidence.step[rows], evidence.dp[rows], evidence.stage[rows]
    after = np.zeros(len(rows), dtype=bool)
    starts, ends = [], []
    for of_stage in range(n_stages):
        last = np.fmax.reduce(dense.end_s[compute & (nodes.stage == of_stage)], axis=0)
        here = stage == of_stage
        tail = here & (evidence.start_s[rows] >= last[step, dp] - TOLERANCE_S)
        after |= tail
        if not tail.any():
            continue
        start, end = last.copy(), last.copy()
        cell = (step[tail], dp[tail])
        order = np.lexsort((evidence.start_s[rows[tail]],))
        start[cell] = evidence.start_s[rows[tail]]
        np.minimum.at(start, cell, evidence.start_s[rows[tail]])
        np.maximum.at(end, cell, evidence.end_s[rows[tail]])
        del order
        starts.append((of_stage, start))
        ends.append(end)
    if not starts:
        return
    n_new = len(starts)
    dense.nodes = Nodes(
        op=np.r_[nodes.op, np.full(n_new, int(Op.GC))],
        stage=np.r_[nodes.stage, [of_stage for of_stage, _ in starts]],
        seq=np.r_[nodes.seq, np.zeros(n_new, dtype=np.int64)],
        microbatch=np.r_[nodes.microbatch, np.full(n_new, -1)],
        chunk=np.r_[nodes.chunk, np.full(n_new, -1)],
    )
    dense.start_s = np.concatenate([dense.start_s, [start for _, start in starts]])
    dense.end_s = np.concatenate([dense.end_s, ends])
    for column in ("tokens", "tokens_sq"):
        values = getattr(dense, column)
        if values is not None:
            setattr(dense, column, np.concatenate([values, np.full((n_new, *values.shape[1:]), np.nan)]))


def _split(steps: Ints, dense: _Dense, warnings: list[str]) -> tuple[list[Block], Bools]:
    """Group the steps by their number of microbatches and drop those that miss too much."""
    nodes = dense.nodes
    there = dense.start_s == dense.start_s
    everything = np.ones(len(steps), dtype=bool)
    if there.all():
        return [Block(steps, nodes, dense.start_s, dense.end_s, None, dense.tokens, dense.tokens_sq)], everything
    compute = np.isin(nodes.op, (Op.FORWARD, Op.BACKWARD))
    pipelined = np.isin(nodes.op, _PIPELINED)
    n_seq = int(nodes.seq.max()) + 1
    n_stages = int(nodes.stage.max()) + 1
    runs = np.zeros((n_seq, *there.shape[1:]), dtype=np.int64)
    np.add.at(runs, nodes.seq[compute], there[compute])
    is_there = runs >= n_stages
    count = np.where(is_there.any(axis=0), n_seq - is_there[::-1].argmax(axis=0), 0)
    per_step = count.max(axis=1)
    blocks: list[Block] = []
    kept = everything.copy()
    n_missing = n_stray = 0
    for n_of_type in np.unique(per_step).tolist():
        at = np.flatnonzero(per_step == n_of_type)
        cells = there[:, at]
        share = cells.mean(axis=(1, 2))
        enough = per_step > nodes.seq[:, None]
        overall = np.where(enough.any(axis=1), (there.mean(axis=2) * enough).sum(axis=1) / np.maximum(enough.sum(axis=1), 1), 0.0)
        kept_node = (share >= 0.5) | (pipelined & (nodes.seq < n_of_type) & (overall >= 0.5))
        n_stray += int(np.count_nonzero(cells[~kept_node]))
        absent = pipelined[:, None, None] & (nodes.seq[:, None, None] >= count[None, at])
        missing = ~cells & ~absent
        dropped = missing[kept_node].mean(axis=0).mean(axis=1) > MAX_MISSING_SHARE if kept_node.any() else np.ones(len(at), bool)
        kept[at[dropped]] = False
        at = at[~dropped]
        if not len(at):
            continue
        absent, missing = absent[kept_node][:, ~dropped], missing[kept_node][:, ~dropped]
        n_missing += int(np.count_nonzero(missing))
        fields = [getattr(nodes, f.name)[kept_node] for f in dataclasses.fields(nodes)]
        pick = np.ix_(kept_node, at)
        blocks.append(
            Block(
                steps[at],
                Nodes(*fields),
                dense.start_s[pick],
                dense.end_s[pick],
                absent if absent.any() else None,
                None if dense.tokens is None else dense.tokens[pick],
                None if dense.tokens_sq is None else dense.tokens_sq[pick],
            )
        )
    if n_missing:
        warnings.append(f"{n_missing} operations are missing; filled by their usual own time and launch delay")
    if n_stray:
        warnings.append(f"{n_stray} operations that most ranks do not have are left out")
    if not kept.all():
        listed = ", ".join(str(int(step)) for step in steps[~kept][:8])
        warnings.append(f"{int((~kept).sum())} steps miss too many operations and are dropped ({listed})")
    if len(blocks) > 1:
        sizes = ", ".join(f"{len(block.steps)} with {int(block.nodes.microbatch.max()) + 1}" for block in blocks)
        warnings.append(f"the number of microbatches changes between steps ({sizes}); each is replayed as its own group")
    return blocks, kept


def _find_warm_up(blocks: list[Block], warnings: list[str]) -> tuple[int, ...]:
    """Name the first steps where they are a warm-up: much longer than nearly all others."""
    steps = np.concatenate([block.steps for block in blocks]) if blocks else np.zeros(0, dtype=np.int64)
    if len(steps) < MIN_STEPS_FOR_WARM_UP:
        return ()
    order = np.argsort(steps)
    length_s = np.concatenate([np.fmax.reduce(np.fmax.reduce(block.end_s, axis=0), axis=1) for block in blocks])[order]
    usual = float(np.quantile(length_s[MAX_WARM_UP_STEPS:], 0.9))
    long = length_s[:MAX_WARM_UP_STEPS] > WARM_UP_RATIO * usual
    n_long = MAX_WARM_UP_STEPS if long.all() else int(long.argmin())
    if n_long:
        times = float(length_s[:n_long].max() / np.median(length_s[n_long:]))
        warnings.append(
            f"the first {n_long} steps are a warm-up (up to {times:.1f} times the usual time): they count in the slowdown as in "
            "the paper, causes are sought without them"
        )
    return tuple(int(step) for step in steps[order][:n_long])
