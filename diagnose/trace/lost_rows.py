"""Number operations where rows were lost: counted by start alone, all that follow a lost row would pass for the one before.

Enters: rows whose `seq` was counted by start. Leaves: them, as labels of microbatch and model chunk say, and as the gaps say that
lost rows left in time; transfers and collectives that neither tells of, as the computes say that they ran beside.
"""

import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from diagnose.model.optype import DIRECTIONS, EVIDENCE, P2P, Op, of_types
from diagnose.model.trace import Bools, Ints, Seconds
from diagnose.numerics.robust import median, nan_median
from diagnose.trace.labels import number_combinations
from diagnose.trace.lost_beside import MAX_COMPARED, number_beside_computes
from diagnose.trace.rows import GridSizes, RowIndex, Rows, row_key

#: Where rows were lost there is room for this part of them. Where there never were as many there is none.
MIN_ROOM = 0.5
#: Transfers that run beside a compute for this part of one, usually, are not told by gaps.
OVERLAP_SHARE = 0.1


def number_around_lost(rows: Rows, at: RowIndex, sizes: GridSizes) -> Rows:
    """Leave out the numbers of lost rows, in workers and steps that have fewer of a type than others of their stage.

    Labels count where they are those of a fuller worker, in order, with gaps, in a step of as many microbatches. Computes without,
    and transfers, are those of which the gaps in time leave room for what is missing. Where that does not tell, computes stay
    counted.

    Costs two sorts of the rows, and of each worker and step with lost rows the square of how many are lost an operation.
    """
    assert rows.seq is not None
    key = row_key(rows, at, sizes)
    n_steps, n_dp, n_stages = sizes
    n_kinds = n_stages * len(Op)
    counts = np.bincount(key, minlength=n_steps * n_dp * n_kinds).reshape(n_steps * n_dp, n_kinds)
    op = np.arange(n_kinds) % len(Op)
    is_compute = of_types(op, (Op.FORWARD, Op.BACKWARD))
    labels = [column for column in (rows.microbatch, rows.chunk, rows.position) if column is not None]
    known = np.zeros(len(rows), dtype=bool)
    if labels:
        n_microbatches = _count_microbatches(rows, at, n_steps, int(counts[:, is_compute].max())).repeat(n_dp)
        rows, known = _leave_gaps(rows, key, np.where(op < int(min(EVIDENCE)), counts, 0), labels, n_microbatches)
    for types in ((*DIRECTIONS, *P2P), DIRECTIONS):
        rows, known = _number_by_gaps(rows, key, counts, types, known, n_dp)
    return number_beside_computes(rows, key, counts, known, sizes)


def _number_by_gaps(
    rows: Rows, key: Ints, counts: Ints, types: Sequence[Op], known: Bools, n_dp: int
) -> tuple[Rows, Bools]:
    """Number rows of some types, as those of workers of their stage that have all, where not all are known; and mark what is now.

    `counts` has the shape (n_steps * n_dp, n_stages * n_types), `known` (n_rows,).
    """
    assert rows.seq is not None
    n_stages = counts.shape[1] // len(Op)
    worker = key // len(Op)
    of_types_there = of_types(rows.op, types)
    of_worker = counts.reshape(-1, n_stages, len(Op))[:, :, list(types)]
    is_full = (of_worker == of_worker.max(axis=0)).all(axis=2).reshape(-1)
    is_short = ~is_full & (np.bincount(worker[of_types_there & ~known], minlength=len(is_full)) > 0)
    if not is_short.any():
        return rows, known
    step_s = _bound_steps(rows, worker // n_stages, n_dp)
    seq, known = rows.seq.copy(), known.copy()
    for stage in np.unique(np.flatnonzero(is_short) % n_stages):
        of_stage = np.flatnonzero((worker % n_stages == stage) & of_types_there)
        of_stage = of_stage[np.lexsort((rows.op[of_stage], rows.start_s[of_stage], worker[of_stage]))]
        full = of_stage[is_full[worker[of_stage]]].reshape(-1, int(of_worker[:, stage].max(axis=0).sum()))
        full = full[(rows.op[full] == rows.op[full[:1]]).all(axis=1)]
        if not len(full):
            continue
        usual_s = median(_gaps(rows, full, step_s), axis=0), median(rows.duration_s[full], axis=0)
        is_compute = of_types(rows.op[full[0]], DIRECTIONS)
        overlap_s = -usual_s[0][1:-1][is_compute[1:] != is_compute[:-1]]
        if (overlap_s > OVERLAP_SHARE * median(usual_s[1][is_compute])).any():
            continue  # what runs beside computes has no order among them
        lost = of_stage[is_short[worker[of_stage]]]
        _, first, n_left = np.unique(worker[lost], return_index=True, return_counts=True)
        for n in np.unique(n_left):
            left = lost[first[n_left == n][:, None] + np.arange(n)]
            placed, number = _place(rows, full[0], usual_s, left, step_s, known)
            seq[left[placed]], known[left[placed]] = number[placed], True
    return dataclasses.replace(rows, seq=seq), known


def _place(
    rows: Rows,
    whole: Ints,
    usual_s: tuple[Seconds, Seconds],
    left: Ints,
    step_s: tuple[Seconds, Seconds],
    known: Bools,
) -> tuple[Bools, NDArray[Any]]:
    """Say of which workers and steps the gaps tell what their rows are, shape (n_lanes,), and their numbers, (n_lanes, n).

    `whole` are the rows of a worker and step that has all, shape (n_all,), `left` of those that lack as many; `usual_s` are the
    gaps and the lengths of whole ones.
    """
    assert rows.seq is not None
    (n_lanes, n), n_all = left.shape, len(whole)
    if left.size * (n_all - n + 1) ** 2 > MAX_COMPARED:
        return np.zeros(n_lanes, dtype=bool), left
    may_be = np.arange(n)[:, None] + np.arange(n_all - n + 1)
    op, seq = rows.op[left], rows.seq[whole]
    fitting = (op[:, :, None] == rows.op[whole][may_be]) & (
        ~known[left][:, :, None] | (rows.seq[left][:, :, None] == seq[may_be])
    )
    place, fits, has_room = _fit_gaps(*usual_s, _gaps(rows, left, step_s), fitting)
    # Transfers may take no time: where no compute is lost nothing need have room.
    only_transfers = of_types(op, DIRECTIONS).sum(axis=1) == of_types(rows.op[whole], DIRECTIONS).sum()
    return fits & (has_room | only_transfers), seq[place]


def _bound_steps(rows: Rows, lane: Ints, n_dp: int) -> tuple[Seconds, Seconds]:
    """Say when the (step, dp rank) of each row begins and ends, if not before and after most of its step: seconds, (n_rows,).

    One that lost its first rows seems to begin late.
    """
    begins_s, ends_s = np.full((2, int(lane.max()) // n_dp + 1, n_dp), np.nan)
    np.fmin.at(begins_s.reshape(-1), lane, rows.start_s)
    np.fmax.at(ends_s.reshape(-1), lane, rows.start_s + rows.duration_s)
    begins_s = np.minimum(begins_s, nan_median(begins_s, axis=1, keepdims=True))
    ends_s = np.maximum(ends_s, nan_median(ends_s, axis=1, keepdims=True))
    return begins_s.reshape(-1)[lane], ends_s.reshape(-1)[lane]


def _gaps(rows: Rows, lanes: Ints, step_s: tuple[Seconds, Seconds]) -> Seconds:
    """Give the time before each of some operations in order, shape (n_lanes, n), and behind the last: shape (n_lanes, n + 1)."""
    start_s = rows.start_s[lanes].astype(np.float64)
    begins_s, ends_s = (bound[lanes[:, :1]] for bound in step_s)
    gaps_s: Seconds = np.hstack([start_s, ends_s]) - np.hstack([begins_s, start_s + rows.duration_s[lanes]])
    return gaps_s


def _fit_gaps(usual_gap_s: Seconds, usual_s: Seconds, gap_s: Seconds, may_be: Bools) -> tuple[Ints, Bools, Bools]:
    """Say which of the usual operations are left, in order, whether any may be, and whether gaps have room for the others.

    Where operations are lost the gap is as long as they and the usual gaps between them. Of all choices the one is taken from which
    gaps differ by the least sum.

    Parameters
    ----------
    usual_gap_s, usual_s : ndarray of float64, shapes (n + n_gone + 1,) and (n + n_gone,)
        Gaps and operations where all are there.
    gap_s : ndarray of float64, shape (n_lanes, n + 1)
    may_be : ndarray of bool, shape (n_lanes, n, n_gone + 1)
        Operation i may be the usual one i + j.

    Returns
    -------
    place : ndarray of int64, shape (n_lanes, n)
    fits, has_room : ndarray of bool, shape (n_lanes,)
    """
    n_lanes, n, n_skips = may_be.shape
    ends_s = np.r_[0.0, np.cumsum(usual_gap_s[:-1] + usual_s)]  # of what comes before each
    starts_s = ends_s + usual_gap_s
    skipped = np.arange(n_skips)
    differs_s = np.where(skipped == 0, 0.0, np.inf)[None].repeat(n_lanes, axis=0)  # before the first none is skipped
    came_from = np.empty((n + 1, n_lanes, n_skips), dtype=np.int64)
    for i in range(n + 1):
        expected_s = starts_s[i + skipped][None, :] - ends_s[i + skipped][:, None]
        expected_s[skipped[None, :] < skipped[:, None]] = np.inf
        total_s = differs_s[:, :, None] + np.abs(gap_s[:, i, None, None] - expected_s)
        came_from[i] = total_s.argmin(axis=1)
        differs_s = total_s.min(axis=1)
        if i < n:
            differs_s[~may_be[:, i]] = np.inf
    fits = np.isfinite(differs_s[:, -1])
    at = np.full((n_lanes, n + 2), n_skips - 1)  # how many are skipped before each; behind the last all are
    at[:, 0] = 0
    for i in range(n, 0, -1):
        at[:, i] = came_from[i, np.arange(n_lanes), at[:, i + 1]]
    place = np.arange(n) + at[:, 1:-1]
    is_hole = at[:, 1:] > at[:, :-1]
    lost_s = starts_s[np.arange(n + 1) + at[:, 1:]] - ends_s[np.arange(n + 1) + at[:, :-1]]
    room_s, needed_s = (np.where(is_hole, seconds, 0.0).sum(axis=1) for seconds in (gap_s, lost_s))
    return place, fits, room_s >= MIN_ROOM * needed_s


def _count_microbatches(rows: Rows, at: RowIndex, n_steps: int, most: int) -> Ints:
    """Say how many microbatches each step has, by the last that any of its workers names: shape (n_steps,).

    It is no more than `most`, so that labels that go on from step to step say nothing.
    """
    computes = np.flatnonzero(of_types(rows.op, (Op.FORWARD, Op.BACKWARD)))
    n_microbatches = np.zeros(n_steps, dtype=np.int64)
    if rows.microbatch is None or not len(computes):
        return n_microbatches
    labels = rows.microbatch[computes].astype(np.int64)
    np.maximum.at(n_microbatches, at[0][computes], labels - labels.min() + 1)
    return np.minimum(n_microbatches, most)


def _leave_gaps(
    rows: Rows, key: Ints, counts: Ints, labels: Sequence[NDArray[Any]], n_microbatches: Ints
) -> tuple[Rows, Bools]:
    """Number the rows of workers and steps with fewer of a type as those of the fullest with the same labels, and say which did.

    The fullest is one of a step with as many microbatches. `counts` has the shape (n_steps * n_dp, n_stages * n_types), 0 where a
    type is not asked about; `n_microbatches` (n_steps * n_dp,).
    """
    assert rows.seq is not None
    n_kinds = counts.shape[1]
    known = np.zeros(len(rows), dtype=bool)
    short = (counts > 0) & (counts < counts.max(axis=0))
    if not short.any():
        return rows, known
    fullest = np.zeros_like(short)
    for n in np.unique(n_microbatches).tolist():
        of_size = np.flatnonzero(n_microbatches == n)
        fullest[of_size[counts[of_size].argmax(axis=0)], np.arange(n_kinds)] = short.any(axis=0)
    in_short, in_fullest = (np.flatnonzero(where.reshape(-1)[key]) for where in (short, fullest))
    both = np.concatenate([in_fullest, in_short])
    lanes, kinds = np.divmod(key[both], n_kinds)
    label = number_combinations(n_microbatches[lanes], kinds, *(column[both] for column in labels))
    n_of_label = np.bincount(label[: len(in_fullest)], minlength=int(label.max()) + 1)
    seq_of_label = np.zeros(len(n_of_label), dtype=np.int64)
    seq_of_label[label[: len(in_fullest)]] = rows.seq[in_fullest]
    # In order of start, one worker, step and type after the other.
    order = np.lexsort((rows.seq[in_short], key[in_short]))
    of_row, lane, mine = in_short[order], key[in_short][order], label[len(in_fullest) :][order]
    number = seq_of_label[mine]
    wrong = n_of_label[mine] != 1
    wrong[1:] |= (lane[1:] == lane[:-1]) & (number[1:] <= number[:-1])
    is_known = ~np.isin(lane, lane[wrong])
    seq = rows.seq.copy()
    seq[of_row[is_known]] = number[is_known]
    known[of_row[is_known]] = True
    return dataclasses.replace(rows, seq=seq), known
