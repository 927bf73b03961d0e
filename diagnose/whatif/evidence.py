"""Attribute stalls by evidence rows: what a row in a compute, or before it, says of the time.

Enters: observed blocks, evidence rows and seconds of computes. Leaves: kinds of stalls, and computes without what rows say.
Costs O(rows x computes of a worker) comparisons.
"""

from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from diagnose.model.optype import Op, of_types
from diagnose.model.stalls import Kinds, StallKind
from diagnose.model.trace import Bools, Evidence, Seconds
from diagnose.numerics.robust import nan_median
from diagnose.whatif.computes import COMPUTES, iterate_blocks, place_of
from diagnose.whatif.observed import Observed

#: What the row of each type says of the operation that it lies in.
SAYS = {
    Op.GC: StallKind.COLLECTION,
    Op.CUDA_MALLOC: StallKind.ALLOCATION,
    Op.DATA_LOAD: StallKind.INPUT,
    Op.CHECKPOINT: StallKind.SAVING,
    Op.EVAL: StallKind.PLANNED,
    Op.LOG: StallKind.PLANNED,
}
#: A row counts where it covers this part of the stall.
COVERED_SHARE = 0.3
#: Rows of types that the format does not name fill this part of a stall if they are what it is.
FILLED_SHARE = 0.8
#: Rows of this part of a compute tell whether it was longer for them.
TELLING_SHARE = 0.1
#: Without what its rows say a compute took at least this part of the usual: else they lie beside it.
LEAST_WORK_SHARE = 0.5
#: Evidence rows handled at a time.
CHUNK_ROWS = 4096


def attribute_by_rows(
    observed: Sequence[Observed], evidence: Evidence, stall_s: Seconds, n_stages: int
) -> tuple[Kinds, Bools]:
    """Ask the evidence rows that cover each stall inside a compute."""
    found, said = np.zeros(stall_s.shape, dtype=np.int8), np.zeros(stall_s.shape, dtype=bool)
    rows = np.flatnonzero(evidence.end_s > evidence.start_s)
    if not len(rows) or not stall_s.any():
        return found, said
    covered = np.zeros(stall_s.shape)
    kinds = np.array([SAYS.get(Op(int(op)), StallKind.NOBODY) for op in evidence.op], dtype=np.int8)
    rows = rows[kinds[rows] > 0]
    for part, place, overlap in _computes_of(observed, evidence, rows, n_stages):
        seconds = stall_s[place]
        hit = np.nonzero((seconds > 0) & (overlap > COVERED_SHARE * seconds))
        # Where several rows cover one stall, the longest says: it comes last.
        order = np.argsort(overlap[hit], kind="stable")
        to = tuple(np.broadcast_to(axis, seconds.shape)[hit][order] for axis in place)
        longer = overlap[hit][order] > covered[to]
        to = tuple(axis[longer] for axis in to)
        covered[to] = overlap[hit][order][longer]
        found[to] = kinds[part[hit[1][order][longer]]]
        said[to] = True
    return found, said


def attribute_to_others(observed: Sequence[Observed], stall_s: Seconds, found: Kinds, n_stages: int) -> None:
    """Attribute stalls inside computes, in place, to rows of other types that nearly fill them and are not there usually.

    What is nobody's yet is theirs: neither place nor time of a stall says as much as a row that begins and ends with it.
    """
    for span, o in iterate_blocks(observed):
        for node, inside_s in (item for by_node in o.inside_s.values() for item in by_node.items()):
            if o.block.nodes.op[node] in COMPUTES:
                place = (*place_of(o.block.nodes, node, n_stages), span)
                theirs = (stall_s[place] > 0) & (inside_s >= FILLED_SHARE * stall_s[place])
                found[place] = np.where(theirs & (found[place] == StallKind.NOBODY), StallKind.OTHER, found[place])


def without_recorded_pauses(
    observed: Sequence[Observed], evidence: Evidence, compute_s: Seconds, n_stages: int
) -> Seconds:
    """Take the seconds of evidence rows out of the computes that they lie in, where they did make them longer.

    A loader may write rows of what it does beside the compute: then the compute is no longer than others, and stays.
    Takes and gives seconds of shape (2, n_virtual, n_microbatches, n_steps, n_dp).
    """
    rows = np.flatnonzero((evidence.end_s > evidence.start_s) & of_types(evidence.op, SAYS))
    if not len(rows):
        return compute_s
    found = compute_s
    for op in SAYS:
        said_s = np.zeros(compute_s.shape)
        of_type = rows[evidence.op[rows] == op]
        for _, place, overlap in _computes_of(observed, evidence, of_type, n_stages):
            hit = np.nonzero(overlap > 0)
            np.add.at(said_s, tuple(np.broadcast_to(axis, overlap.shape)[hit] for axis in place), overlap[hit])
        if not said_s.any():
            continue
        for direction in range(len(compute_s)):
            d, e = found[direction], said_s[direction]
            usual = nan_median(d - e, axis=(1, 2, 3), keepdims=True)  # a stage
            telling = e > TELLING_SHARE * usual
            if not telling.any():
                continue
            shorter = np.abs(d - e - usual)[telling] < np.abs(d - usual)[telling]
            explained = np.nanmedian(np.abs(d - e - usual)[telling]) < np.nanmedian(np.abs(d - usual)[telling])
            if shorter.mean() > 0.5 and explained:
                found = found.copy() if found is compute_s else found
                found[direction] = np.where(d - e > LEAST_WORK_SHARE * usual, d - e, d)
    return found


def _computes_of(
    observed: Sequence[Observed], evidence: Evidence, rows: NDArray[np.int64], n_stages: int
) -> Iterator[tuple[NDArray[np.int64], tuple[NDArray[np.int64], ...], Seconds]]:
    """Set evidence rows against the computes of their worker and step, some rows at a time.

    Yields
    ------
    rows : ndarray of int64, shape (n_rows,)
    place : tuple of five ndarray, broadcastable to (n_computes, n_rows)
        Where each compute stands in arrays as `Breakdown` has them.
    overlap_s : ndarray of float64, shape (n_computes, n_rows)
        Seconds for which both are under way; below 0 where they are apart.
    """
    for span, o in iterate_blocks(observed):
        block, nodes = o.block, o.block.nodes
        at = np.minimum(np.searchsorted(block.steps, evidence.step[rows]), len(block.steps) - 1)
        here = block.steps[at] == evidence.step[rows]
        for stage in range(n_stages):
            computes = np.flatnonzero((nodes.stage == stage) & of_types(nodes.op, COMPUTES))[:, None]
            mine = np.flatnonzero(here & (evidence.stage[rows] == stage))
            for start in range(0, len(mine), CHUNK_ROWS):
                part = rows[mine[start : start + CHUNK_ROWS]]
                step, dp = at[mine[start : start + CHUNK_ROWS]], evidence.dp[part]
                place = (
                    np.searchsorted(COMPUTES, nodes.op[computes]),
                    np.maximum(nodes.chunk[computes], 0) * n_stages + stage,
                    nodes.microbatch[computes],
                    step + span.start,
                    dp,
                )
                start_s, end_s = block.start_s[computes, step, dp], block.end_s[computes, step, dp]
                yield part, place, np.minimum(end_s, evidence.end_s[part]) - np.maximum(start_s, evidence.start_s[part])
