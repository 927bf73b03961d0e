"""Put every row into its cell of (operation, step, dp rank), and name the operations.

Enters: rows whose step, dp rank and stage are numbered. Leaves: `Dense`, still with all steps together. Nothing is sorted
unless `seq_id` is missing or wrong.
"""

import dataclasses
from typing import Any

import numpy as np
from numpy.typing import NDArray

from diagnose.errors import TraceError
from diagnose.model.columns import begins_run
from diagnose.model.optype import COMPUTE, DIRECTIONS, EVIDENCE, Op, of_types
from diagnose.model.trace import TOKEN_COLUMNS, Bools, Ints, Nodes, Seconds
from diagnose.trace.labels import count_rows, cut_rows, look_up, number_combinations, small_type
from diagnose.trace.lost_rows import number_around_lost
from diagnose.trace.placement import find_positions
from diagnose.trace.rows import GridSizes, RowIndex, Rows, derive_seq, row_key, take_index, take_rows

#: An operation that less than this part of the lanes has is a stray.
STRAY_SHARE = 0.05
#: Dense cells allowed for each row; above it most cells would be empty.
MAX_CELLS_PER_ROW = 6
SPARE_CELLS = 100_000
#: A file whose `seq_id` is wrong in more than this part of its rows is counted again; below, the odd rows are dropped.
MAX_WRONG_SHARE = 0.01

#: Model chunks a worker beyond which labels are damage (Megatron-LM runs with at most a few dozen).
MAX_CHUNKS = 1024

#: `seq_id` counts within a step: above this many times the operations of one type on a worker and step, it does something else.
MAX_SEQ_RATIO = 3
SPARE_SEQ = 4


@dataclasses.dataclass(slots=True)
class Dense:
    """Rows laid out over (node, step, dp rank); absolute times allowed, NaN where there is no row."""

    nodes: Nodes
    start_s: Seconds
    end_s: Seconds
    tokens: Seconds | None
    tokens_sq: Seconds | None
    expert_tokens: Seconds | None
    has_chunks: bool


@dataclasses.dataclass(frozen=True, slots=True)
class _Cells:
    """Where each row goes: the operations that occur, rows of each, and the cell of every row.

    Rows of evidence all go to one more plane, behind those of the nodes, and are forgotten with it.
    """

    op: Ints
    stage: Ints
    seq: Ints
    counts: Ints
    node_at: NDArray[Any]
    cell: NDArray[Any]
    shape: tuple[int, int, int]


def lay_out_rows(
    rows: Rows, at: RowIndex, sizes: GridSizes, *, name: str, vpp_size: int | None, warnings: list[str]
) -> tuple[Dense, Rows, RowIndex]:
    """Put every simulated row into its cell; give also the rows, and their indices, without duplicates.

    `vpp_size` is the number of model chunks a worker by the metadata.

    Raises
    ------
    TraceError
        Ranks and steps have too little in common.
    """
    rows, at = _count_operations(rows, at, sizes, warnings)
    cells, rows, at = _find_cells(rows, at, sizes, name, warnings)
    if _counts_what_is_left(cells):
        rows, at = _drop_repeated(rows, at, sizes, warnings)  # rows twice look as if all others lacked one
        rows = number_around_lost(rows, at, sizes)
        cells, rows, at = _find_cells(rows, at, sizes, name, warnings)
    start_s = _fill(cells, rows.start_s)
    if _is_wrong(start_s, cells):
        rows, at = _drop_repeated(rows, at, sizes, warnings)
        cells, rows, at = _find_cells(rows, at, sizes, name, warnings)
        start_s = _fill(cells, rows.start_s)
        if _is_wrong(start_s, cells):
            rows, at = _mend_counts(rows, at, sizes, cells, start_s, warnings)
            cells, rows, at = _find_cells(rows, at, sizes, name, warnings)
            start_s = _fill(cells, rows.start_s)
    end_s = _fill(cells, rows.duration_s)
    end_s += start_s
    tokens, tokens_sq, expert_tokens = (
        None if (column := getattr(rows, name)) is None else _fill(cells, column) for name in TOKEN_COLUMNS
    )
    for values in (tokens, tokens_sq, expert_tokens):
        if values is not None:
            values[values < 0] = np.nan
    nodes = _name_nodes(rows, at, cells, (start_s, end_s), vpp_size or 1, n_stages=sizes[2])
    return Dense(nodes, start_s, end_s, tokens, tokens_sq, expert_tokens, rows.chunk is not None), rows, at


def _count_operations(rows: Rows, at: RowIndex, sizes: GridSizes, warnings: list[str]) -> tuple[Rows, RowIndex]:
    """Make sure that there is a `seq_id` of a possible size."""
    n_evidence = int(min(EVIDENCE))
    of_type = count_rows(rows.op, len(Op))[:n_evidence]
    bound = MAX_SEQ_RATIO * -(-int(of_type.max()) // (sizes[0] * sizes[1] * sizes[2])) + SPARE_SEQ
    if rows.seq is not None and rows.seq.min() >= 0 and rows.seq.max() < bound:
        return rows, at
    if rows.seq is not None:
        simulated = rows.seq[rows.op < n_evidence]
        if len(simulated) and simulated.min() >= 0 and simulated.max() < bound:
            # Many evidence rows in a step are no fault; their numbers are not used.
            return dataclasses.replace(rows, seq=np.clip(rows.seq, 0, int(simulated.max()))), at
        warnings.append("seq_id is negative or far too large in some rows; counted again by start time")
    rows, at = _drop_repeated(dataclasses.replace(rows, seq=None), at, sizes, warnings)
    return dataclasses.replace(rows, seq=derive_seq(row_key(rows, at, sizes), rows.start_s, rows.duration_s)), at


def _counts_what_is_left(cells: _Cells) -> bool:
    """Say whether `seq_id` may have been counted when rows had been lost: then it is the last ones that all seem to lack."""
    same = (cells.op[1:] == cells.op[:-1]) & (cells.stage[1:] == cells.stage[:-1])
    fewer = np.diff(cells.counts)[same]
    return bool((fewer < 0).any() and (fewer <= 0).all())


def _find_cells(
    rows: Rows, at: RowIndex, sizes: GridSizes, name: str, warnings: list[str]
) -> tuple[_Cells, Rows, RowIndex]:
    """Say which cell each row goes to, leaving out operations that hardly any lane has where they would blow up the grid."""
    n_steps, n_dp, n_stages = sizes
    for _ in range(2):
        node_at, op, stage, seq, counts = _find_nodes(rows, at, n_stages)
        if not of_types(op, (Op.FORWARD, Op.BACKWARD)).any():
            raise TraceError("has no usable forward-compute row on any worker", where=name)
        n_cells = (len(op) + 1) * n_steps * n_dp
        if n_cells <= MAX_CELLS_PER_ROW * len(rows) + SPARE_CELLS:
            # Nodes vary fastest: rows of one worker and step mostly lie together in the file, and so do their cells.
            cell = at[0].astype(small_type(n_cells))
            np.multiply(cell, n_dp, out=cell)
            np.add(cell, at[1], out=cell, casting="unsafe")
            np.multiply(cell, len(op) + 1, out=cell)
            np.add(cell, node_at, out=cell, casting="unsafe")
            return _Cells(op, stage, seq, counts, node_at, cell, (len(op) + 1, n_steps, n_dp)), rows, at
        rare = np.r_[counts < STRAY_SHARE * n_steps * n_dp, False]
        keep = ~rare[node_at]
        if keep.all() or not keep.any():
            break
        warnings.append(f"{int((~keep).sum())} rows of operations that hardly any rank has are left out")
        rows, at = take_rows(rows, keep), take_index(at, keep)
    raise TraceError(
        f"{len(rows)} rows would fill {n_cells} cells of (operation, step, dp rank): the ranks and steps have too little in "
        "common; check step, dp_rank, stage and seq_id",
        where=name,
    )


def _fill(cells: _Cells, column: NDArray[Any]) -> Seconds:
    """Lay a column out: shape (n_nodes, n_steps, n_dp), NaN where there is no row."""
    n_planes, n_steps, n_dp = cells.shape
    of_file = column.dtype if column.dtype.kind == "f" else np.float64
    by_lane = np.full((n_steps, n_dp, n_planes), np.nan, dtype=of_file)
    flat = by_lane.reshape(-1)
    for some in cut_rows(len(column)):
        flat[cells.cell[some]] = column[some]
    values = np.empty((n_planes - 1, n_steps, n_dp))
    for step in range(n_steps):  # one step at a time stays within the cache
        values[:, step] = by_lane[step, :, :-1].T
    return values


def _is_wrong(start_s: Seconds, cells: _Cells) -> bool:
    """Say whether rows share a cell, or `seq_id` contradicts the start times (a few steps looked at)."""
    if int(np.count_nonzero(~np.isnan(start_s))) < int(cells.counts.sum()):
        return True
    looked_at = start_s[:, :: max(1, start_s.shape[1] // 8)]
    same = (cells.op[1:] == cells.op[:-1]) & (cells.stage[1:] == cells.stage[:-1])
    with np.errstate(invalid="ignore"):
        backwards = np.count_nonzero((looked_at[1:] < looked_at[:-1])[same])
    return bool(backwards > MAX_WRONG_SHARE * looked_at[1:][same].size)


def _mend_counts(
    rows: Rows, at: RowIndex, sizes: GridSizes, cells: _Cells, start_s: Seconds, warnings: list[str]
) -> tuple[Rows, RowIndex]:
    """Drop a few rows that claim another's place; where `seq_id` is wrong throughout, count again by start time."""
    simulated = cells.node_at < len(cells.op)
    first = np.zeros(len(rows), dtype=bool)
    first[np.unique(cells.cell, return_index=True)[1]] = True
    doubled = simulated & ~first
    n_filled = int(np.count_nonzero(~np.isnan(start_s)))
    if (
        doubled.any()
        and doubled.sum() <= MAX_WRONG_SHARE * len(rows)
        and n_filled + int(doubled.sum()) == int(cells.counts.sum())
    ):
        warnings.append(f"{int(doubled.sum())} rows claim the place of another operation and are left out")
        return take_rows(rows, ~doubled), take_index(at, ~doubled)
    warnings.append("seq_id does not count the operations by start time; counted again")
    return dataclasses.replace(rows, seq=derive_seq(row_key(rows, at, sizes), rows.start_s, rows.duration_s)), at


def _find_nodes(rows: Rows, at: RowIndex, n_stages: int) -> tuple[NDArray[Any], Ints, Ints, Ints, Ints]:
    """Number the operations that occur: node of each row (one too many for evidence), type, stage, seq, and rows of each."""
    assert rows.seq is not None
    n_seq = int(rows.seq.max()) + 1
    key = rows.op.astype(small_type((int(rows.op.max()) + 1) * n_stages * n_seq))
    key *= n_stages
    key += at[2]
    key *= n_seq
    np.add(key, rows.seq, out=key, casting="unsafe")
    counts = count_rows(key, max(int(key.max()) + 1, int(min(EVIDENCE)) * n_stages * n_seq))
    used = np.flatnonzero(counts[: int(min(EVIDENCE)) * n_stages * n_seq])
    lookup = np.full(len(counts), len(used), dtype=small_type(len(used)))
    lookup[used] = np.arange(len(used))
    place, number = np.divmod(used, n_seq)
    op, stage = np.divmod(place, n_stages)
    return look_up(lookup, key), op, stage, number, counts[used]


def _drop_repeated(rows: Rows, at: RowIndex, sizes: GridSizes, warnings: list[str]) -> tuple[Rows, RowIndex]:
    """Drop rows that say the same of the same operation twice; of two that differ in `duration` the longer stays.

    On a clock of 1 ms two recvs that waited begin together as well: without numbers transfers are dropped that others do not have.
    """
    key = row_key(rows, at, sizes)
    order = np.lexsort((rows.duration_s, rows.start_s, key))
    key, start_s = key[order], rows.start_s[order]
    same = (key[1:] == key[:-1]) & (start_s[1:] == start_s[:-1])
    if rows.seq is not None:
        seq = rows.seq[order]
        same &= seq[1:] == seq[:-1]
    if not same.any():
        return rows, at
    repeated = np.flatnonzero(same)
    if rows.seq is None:
        is_exact = np.diff(rows.duration_s[order])[repeated] == 0
        repeated = repeated[_are_beyond_others(key, repeated, is_exact, rows.op[order], at[2][order])]
        if not len(repeated):
            return rows, at
    keep = np.ones(len(rows), dtype=bool)
    keep[order[repeated]] = False
    warnings.append(f"{len(repeated)} rows are duplicates and are left out")
    return take_rows(rows, keep), take_index(at, keep)


def _are_beyond_others(key: Ints, repeated: Ints, is_exact: Bools, op: NDArray[Any], stage: NDArray[Any]) -> Bools:
    """Mark the repeated rows by which a worker has more of a type in a step than its stage has otherwise.

    Computes of one worker never begin together, and rows that are no operations need not be complete: there it is all of them.
    `key`, `op` and `stage` are of all rows, sorted by `key`; exact copies are beyond first.
    """
    first = np.flatnonzero(begins_run(key))
    counts = np.diff(np.r_[first, len(key)])
    lane = np.searchsorted(first, repeated, side="right") - 1
    distinct = counts - np.bincount(lane, minlength=len(first))
    place = op[first].astype(np.int64) * (int(stage.max()) + 1) + stage[first]
    usual = np.zeros(int(place.max()) + 1, dtype=np.int64)
    for here in np.unique(place[lane]).tolist():
        # Two that begin together are one of these: it is not the median that tells how many there are.
        usual[here] = np.quantile(distinct[place == here], 1.0 - STRAY_SHARE, method="inverted_cdf")
    beyond = of_types(op[repeated], (*COMPUTE, *EVIDENCE))
    beyond |= derive_seq(lane, ~is_exact) < (counts - usual[place])[lane]
    return beyond


def _name_nodes(
    rows: Rows, at: RowIndex, cells: _Cells, times: tuple[Seconds, Seconds], n_chunks: int, *, n_stages: int
) -> Nodes:
    """Say which microbatch and model chunk each compute is on: from the fullest lane, else another, else the launch order."""
    op, stage, number = cells.op, cells.stage, cells.seq
    microbatch = np.full(len(op), -1, dtype=np.int64)
    chunk, position = microbatch.copy(), microbatch.copy()
    columns = ((microbatch, rows.microbatch), (chunk, rows.chunk), (position, rows.position))
    if any(column is not None for _, column in columns):
        present = np.count_nonzero(~np.isnan(times[0]), axis=0)
        fullest = np.unravel_index(int(present.argmax()), present.shape)
        is_told = (at[0] == fullest[0]) & (at[1] == fullest[1]) & (cells.node_at < len(op))
        lost = np.r_[np.isnan(times[0][:, fullest[0], fullest[1]]), False]
        if lost.any():  # any other worker tells
            is_told |= lost[cells.node_at]
        in_lane = np.flatnonzero(is_told)
        for found, column in columns:
            if column is not None:
                found[cells.node_at[in_lane]] = column[in_lane]
    compute = of_types(op, DIRECTIONS)
    if rows.chunk is None:
        chunk = _rank_positions(stage, position)
    chunk = _number_chunks(op, stage, chunk)
    if (chunk[compute] < 0).any():
        # Interleaved 1F1B launches groups of n_stages microbatches, chunk after chunk (arXiv 2104.04473, section 2.2).
        turn = number // n_stages % n_chunks
        chunk = np.where(compute, np.where(op == Op.FORWARD, turn, n_chunks - 1 - turn), -1)
    for of_op, order in ((Op.ALL_GATHER, number), (Op.REDUCE_SCATTER, n_chunks - 1 - number)):
        unknown = (op == of_op) & (chunk < 0)
        chunk[unknown] = np.clip(order, 0, n_chunks - 1)[unknown]
    if not _alike(op, stage, chunk, microbatch):
        place = (op * (int(stage.max()) + 1) + stage) * (int(chunk.max()) + 2) + chunk
        microbatch = np.where(compute, derive_seq(place, number.astype(np.float64)), -1)
    microbatch[~compute] = -1
    nodes = Nodes(op=op, stage=stage, seq=number, microbatch=microbatch, chunk=chunk)
    return dataclasses.replace(nodes, position=find_positions(nodes, *times, position))


def _rank_positions(stage: Ints, position: Ints) -> Ints:
    """Number the model chunks of each stage by where they stand in the model; -1 where nobody says."""
    chunk = np.full(len(stage), -1, dtype=np.int64)
    for of_stage in np.unique(stage).tolist():
        here = (stage == of_stage) & (position >= 0)
        chunk[here] = np.unique(position[here], return_inverse=True)[1]
    return chunk


def _number_chunks(op: Ints, stage: Ints, labels: Ints) -> Ints:
    """Number the model chunks from 0; all -1 where the labels are missing or make no sense for the computes of a stage."""
    compute = of_types(op, (Op.FORWARD, Op.BACKWARD))  # a weight gradient may be of several microbatches
    unknown = np.full(len(op), -1, dtype=np.int64)
    known = np.unique(labels[compute])
    if known[0] < 0 or len(known) > MAX_CHUNKS:
        return unknown
    chunk = np.searchsorted(known, labels)
    chunk = np.where((chunk < len(known)) & (known[np.minimum(chunk, len(known) - 1)] == labels), chunk, -1)
    runs = np.bincount(((op * (int(stage.max()) + 1) + stage) * len(known) + chunk)[compute])
    if len(known) * int(runs.max()) > MAX_CELLS_PER_ROW * int(runs[runs > 0].min()) * len(known):
        return unknown
    chunked = of_types(op, (*DIRECTIONS, Op.ALL_GATHER, Op.REDUCE_SCATTER))
    return np.where(chunked, chunk, -1)


def _alike(op: Ints, stage: Ints, chunk: Ints, microbatch: Ints) -> bool:
    """Say whether every stage and chunk runs each microbatch exactly once in each direction.

    A weight gradient may be of several microbatches, and whole backwards have none.
    """
    seen = set()
    for of_op in (Op.FORWARD, Op.BACKWARD):
        for of_stage in range(int(stage.max()) + 1):
            here = (op == of_op) & (stage == of_stage)
            for of_chunk in np.unique(chunk[here]).tolist():
                seen.add(tuple(np.sort(microbatch[here & (chunk == of_chunk)]).tolist()))
    if len(seen) != 1 or max(next(iter(seen))) > len(op):
        return False
    first = next(iter(seen))
    place = number_combinations(stage, chunk, microbatch)[op == Op.WEIGHT]
    known = bool(np.isin(microbatch[op == Op.WEIGHT], first).all()) and len(np.unique(place)) == len(place)
    return known and len(set(first)) == len(first) and min(first) >= 0
