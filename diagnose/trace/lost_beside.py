"""Number transfers and collectives of which rows were lost by when they ran beside the computes of their worker.

Enters: rows of which computes are numbered. Leaves: them, with the numbers of lost transfers and collectives left out.
"""

import dataclasses

import numpy as np
from numpy.typing import NDArray

from diagnose.model.optype import DIRECTIONS, EVIDENCE, Op, of_types
from diagnose.model.trace import Bools, Ints, Seconds
from diagnose.numerics.robust import median, nan_median
from diagnose.trace.rows import GridSizes, Rows

#: Rows, or gaps, of some lanes times what may be lost there, beyond which nobody looks: those stay counted.
MAX_COMPARED = 50_000_000
#: Keeps a division by anchors at the same time finite.
TINY_S = 1e-12


def number_beside_computes(rows: Rows, key: Ints, counts: Ints, known: Bools, sizes: GridSizes) -> Rows:
    """Number what a worker and step has fewer of than others of its stage as those that usually run when they do.

    When that is the computes beside them tell, however long those take. A step of which no worker has all computes of a direction
    has fewer microbatches, and lacks nothing. `key` is `row_key`; `counts` has the shape (n_steps * n_dp, n_stages * n_types), and
    `known` says which rows are numbered, shape (n_rows,).
    """
    assert rows.seq is not None
    n_steps, n_dp, _ = sizes
    lane, kind = np.divmod(key, counts.shape[1])
    op, has_all = np.arange(counts.shape[1]) % len(Op), counts == counts.max(axis=0)
    numbered = has_all | (np.bincount(key[known], minlength=counts.size).reshape(counts.shape) > 0)
    is_compute = of_types(op, DIRECTIONS)
    is_whole = (has_all & is_compute & (counts > 0)).reshape(n_steps, -1).any(axis=1).repeat(n_dp)
    asked = ~numbered & (counts > 0) & is_whole[:, None] & ~is_compute & (op < int(min(EVIDENCE)))
    seq = rows.seq.copy()
    for stage in np.unique(np.flatnonzero(asked.any(axis=0)) // len(Op)).tolist():
        here = np.flatnonzero((kind // len(Op) == stage) & (rows.op < int(min(EVIDENCE))))
        here = here[np.lexsort((rows.seq[here], key[here]))]
        start_s = rows.start_s[here].astype(np.float64)
        times_s = np.stack([start_s, start_s + rows.duration_s[here]], axis=1)
        times_s -= _begin_steps(start_s, lane[here] // n_dp, n_steps)[:, None]
        is_anchor = is_compute[kind[here]] & numbered[lane[here], kind[here]]
        anchors = here[is_anchor]
        place = rows.op[anchors].astype(np.int64) * (int(rows.seq.max()) + 1) + rows.seq[anchors]
        times_s = _put_on_usual(times_s, lane[here], is_anchor, place, (n_steps, n_dp))
        for of_kind in np.flatnonzero(asked.any(axis=0) & (np.arange(len(op)) // len(Op) == stage)).tolist():
            mine, n_all = np.flatnonzero(kind[here] == of_kind), int(counts[:, of_kind].max())
            n_left, is_asked = counts[lane[here[mine]], of_kind], asked[lane[here[mine]], of_kind]
            whole_s = median(times_s[mine[n_left == n_all]].reshape(-1, n_all, 2), axis=0)
            for n in np.unique(n_left[is_asked]).tolist():
                left = mine[is_asked & (n_left == n)].reshape(-1, n)
                if left.size * (n_all - n + 1) <= MAX_COMPARED:
                    seq[here[left]] = _match_times(times_s[left], whole_s)
    return dataclasses.replace(rows, seq=seq)


def _begin_steps(start_s: Seconds, step: Ints, n_steps: int) -> Seconds:
    """Say when the step of each row begins: seconds, shape (n_rows,)."""
    begin_s = np.full(n_steps, np.inf)
    np.minimum.at(begin_s, step, start_s)
    return begin_s[step]


def _put_on_usual(times_s: Seconds, lane: Ints, is_anchor: Bools, place: Ints, lanes: tuple[int, int]) -> Seconds:
    """Say when rows would run if the computes of their worker and step ran when they usually do: seconds, shape (n_rows, 2).

    Beside computes that the worker lacks, those of other dp ranks in that step tell. `place` says which compute each anchor is;
    `lanes` is (n_steps, n_dp).
    """
    places, at = np.unique(place, return_inverse=True)
    anchors_s = np.full((lanes[0] * lanes[1], len(places), 2), np.nan)
    anchors_s[lane[is_anchor], at] = times_s[is_anchor]
    of_lane_s = anchors_s.reshape(*lanes, -1)
    of_step_s = nan_median(of_lane_s, axis=1)
    usual_s = nan_median(of_step_s, axis=0)
    step = lane // lanes[1]
    times_s = _move_along(times_s, lane, of_lane_s.reshape(len(anchors_s), -1), np.repeat(of_step_s, lanes[1], axis=0))
    return _move_along(times_s, step, of_step_s, np.broadcast_to(usual_s, of_step_s.shape))


def _move_along(times_s: Seconds, lane: Ints, from_s: Seconds, to_s: Seconds) -> Seconds:
    """Move times, shape (n_rows, 2), as the anchors of their lane are, shapes (n_lanes, n_anchors), and those between in between.

    Before the first anchor and after the last they are moved as far as that one is; where there is none, not at all.
    """
    of, at = np.nonzero(np.isfinite(from_s) & np.isfinite(to_s))
    if not len(of):
        return times_s
    order = np.lexsort((from_s[of, at], of))
    of, at = of[order], at[order]
    anchor_s, moved_s = from_s[of, at], (to_s - from_s)[of, at]
    span_s = 2.0 * (1.0 + np.abs(anchor_s).max() + np.abs(times_s).max())
    begin, end = np.searchsorted(of, lane), np.searchsorted(of, lane, side="right") - 1
    there = (end >= begin)[:, None]
    after = np.searchsorted(of * span_s + anchor_s, (lane * span_s)[:, None] + times_s)
    after = np.where(there, np.clip(after, begin[:, None], end[:, None]), 0)
    before = np.where(there, np.maximum(after - 1, begin[:, None]), 0)
    part = (times_s - anchor_s[before]) / np.maximum(anchor_s[after] - anchor_s[before], TINY_S)
    shift_s = moved_s[before] + np.clip(part, 0.0, 1.0) * (moved_s[after] - moved_s[before])
    return np.where(there, times_s + shift_s, times_s)


def _match_times(times_s: Seconds, whole_s: Seconds) -> NDArray[np.int64]:
    """Say which of all operations those that are left are, in order, so that their times differ by the least sum.

    Shapes (n_lanes, n, 2) and (n_all, 2); gives numbers, (n_lanes, n).
    """
    n, skipped = times_s.shape[1], np.arange(len(whole_s) - times_s.shape[1] + 1)
    differs_s = np.zeros((len(times_s), len(skipped)))
    number = np.empty((len(times_s), n), dtype=np.int64)
    came_from = np.empty((n, *differs_s.shape), dtype=np.int64)
    for i in range(n):
        least_s = np.minimum.accumulate(differs_s, axis=1)
        came_from[i] = np.maximum.accumulate(np.where(differs_s == least_s, skipped, 0), axis=1)
        differs_s = least_s + np.abs(times_s[:, i, None] - whole_s[i + skipped]).sum(axis=2)
    at = differs_s.argmin(axis=1)
    for i in range(n - 1, -1, -1):
        number[:, i] = i + at
        at = came_from[i, np.arange(len(at)), at]
    return number
