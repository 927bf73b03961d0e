"""Join the parts of computes that were recorded around what is no compute: an expert all-to-all in the middle of a forward.

Enters: rows whose step, dp rank and stage are numbered, and rows of other types. Leaves: one row a compute, from the start of its
first part to the end of its last; what lies between is then inside. Costs a sort of the computes where there are such rows.
"""

import dataclasses

import numpy as np

from diagnose.model.columns import begins_run
from diagnose.model.optype import DIRECTIONS, of_types
from diagnose.model.trace import Ints
from diagnose.trace.rows import RowIndex, Rows, take_index, take_rows

#: Rows begin this much before what they follow has ended, as clocks go.
TOLERANCE_S = 1e-4
#: Of computes of one microbatch that follow each other so many have a row between them, if they are parts of one.
PARTED_SHARE = 0.9


def join_parts(
    rows: Rows, at: RowIndex, lane: Ints, others: Rows, other_lane: Ints, warnings: list[str]
) -> tuple[Rows, RowIndex]:
    """Join computes of one microbatch that follow each other on a worker with a row of another type between them.

    `lane` and `other_lane`, shape (n_rows,), number step and worker (each of its members) of the rows.
    """
    if rows.microbatch is None or not len(others):
        return rows, at
    order = np.flatnonzero(of_types(rows.op, DIRECTIONS))
    order = order[np.lexsort((rows.start_s[order], lane[order]))]
    chunk = rows.microbatch if rows.chunk is None else rows.chunk
    begins = begins_run(*(column[order] for column in (lane, rows.op, rows.microbatch, chunk)))
    begins |= rows.microbatch[order] < 0
    if begins.all():
        return rows, at
    start_s = rows.start_s.astype(np.float64)
    end_s = start_s + rows.duration_s
    later = np.flatnonzero(~begins)
    width = max(float(end_s.max()), float(others.start_s.max())) - min(
        float(start_s.min()), float(others.start_s.min())
    )
    known = np.sort(other_lane * (width + 1.0) + others.start_s)
    gap = [lane[order[later]] * (width + 1.0) + times for times in (end_s[order[later - 1]], start_s[order[later]])]
    parted = np.searchsorted(known, gap[1] + TOLERANCE_S) > np.searchsorted(known, gap[0] - TOLERANCE_S)
    parted &= gap[1] >= gap[0] - TOLERANCE_S
    if parted.mean() < PARTED_SHARE:
        return rows, at
    begins[later[~parted]] = True
    first = np.flatnonzero(begins)
    duration_s = rows.duration_s.astype(np.float64)
    duration_s[order[first]] = np.maximum.reduceat(end_s[order], first) - start_s[order[first]]
    seq = rows.seq
    if seq is not None:
        seq = seq.copy()
        for op in np.unique(rows.op[order]).tolist():
            mine = rows.op[order] == op
            seq[order[mine]] //= max(round(int(mine.sum()) / max(int((begins & mine).sum()), 1)), 1)
    warnings.append(f"{len(later)} computes were recorded in parts, with rows of other types between; each is one")
    keep = np.ones(len(rows), dtype=bool)
    keep[order[~begins]] = False
    return take_rows(dataclasses.replace(rows, duration_s=duration_s, seq=seq), keep), take_index(at, keep)
