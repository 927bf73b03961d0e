"""The operations of all ranks in one table, and what only all of them together show: transfers, weight gradients, collectives.

Enters: rows of all ranks with their places, on one base of time. Leaves: the same table, with sends that end with their recvs, with
the empty transfers that interleaved schedules have at the ends of the model, and without what is not the same everywhere.
"""

import dataclasses

import numpy as np
from numpy.typing import NDArray

from diagnose.model.columns import ColumnTable
from diagnose.model.optype import DIRECTIONS, Op
from diagnose.model.recording import Dropped
from diagnose.model.trace import Bools, Ints, Seconds
from diagnose.trace.labels import number_combinations


@dataclasses.dataclass(frozen=True, slots=True)
class OperationTable(ColumnTable):
    """Operations of all ranks, one entry each; shape (n,) each."""

    op: NDArray[np.int8]  # `Op`
    step: Ints
    rank: Ints
    dp: Ints
    stage: Ints
    tp: Ints
    cp: Ints
    host: Ints
    virtual: Ints  # stage of the model, counted through all model chunks
    microbatch: Ints  # -1 where there is none, as for `chunk` and `seq`
    chunk: Ints
    seq: Ints
    other: Ints  # position in `WAITS` where `op` is `WAIT`; -1 elsewhere
    start_s: Seconds
    end_s: Seconds

    def is_op(self, *ops: Op) -> Bools:
        """Mark the rows of some types."""
        return np.isin(self.op, [int(op) for op in ops])


#: How far before the next one an empty transfer begins at least, so that their order is beyond doubt.
APART_S = 1e-7
#: Type of a transfer, with the compute it belongs to.
_COMPUTE_OF = {
    Op.FORWARD_RECV: Op.FORWARD,
    Op.FORWARD_SEND: Op.FORWARD,
    Op.BACKWARD_RECV: Op.BACKWARD,
    Op.BACKWARD_SEND: Op.BACKWARD,
}


def begin_receives(table: OperationTable) -> OperationTable:
    """Let a recv begin once its worker has nothing else to do: on the CPU it is known to have ended once it was waited for.

    What was asked for before a compute, and waited for after it, may have come while that ran.
    """
    start_s = table.start_s.copy()
    for rank in np.unique(table.rank).tolist():
        computes = np.flatnonzero((table.rank == rank) & table.is_op(*DIRECTIONS))
        computed_s = np.r_[-np.inf, np.sort(table.end_s[computes])]
        for op in (Op.FORWARD_RECV, Op.BACKWARD_RECV):
            rows = np.flatnonzero((table.rank == rank) & (table.op == op))
            rows = rows[np.argsort(table.start_s[rows], kind="stable")]
            begun_s = np.maximum(
                table.start_s[rows], computed_s[np.searchsorted(computed_s, table.end_s[rows], side="right") - 1]
            )
            apart_s = APART_S * np.arange(len(rows))  # their order stays beyond doubt
            start_s[rows] = np.maximum.accumulate(begun_s - apart_s) + apart_s
    return dataclasses.replace(table, start_s=np.minimum(start_s, table.end_s))


def end_sends(table: OperationTable) -> OperationTable:
    """Let a send that its host only waited for much later end with its recv.

    On the CPU a send is known to have ended once it was waited for, which may be at the end of the step. The ranks must share a
    clock.
    """
    end_s = table.end_s.copy()
    lane = number_combinations(table.dp, table.tp, table.cp, table.step)
    for send, recv, ahead in ((Op.FORWARD_SEND, Op.FORWARD_RECV, 1), (Op.BACKWARD_SEND, Op.BACKWARD_RECV, -1)):
        a, b = np.flatnonzero(table.op == send), np.flatnonzero(table.op == recv)
        both = np.r_[a, b]
        key = number_combinations(lane[both], np.r_[table.virtual[a] + ahead, table.virtual[b]], table.microbatch[both])
        _, at_a, at_b = np.intersect1d(key[: len(a)], key[len(a) :], return_indices=True)
        a, b = a[at_a], b[at_b]
        end_s[a] = np.clip(table.end_s[b], table.start_s[a], table.end_s[a])
    return dataclasses.replace(table, end_s=end_s)


def fill_ends(table: OperationTable, n_virtual: int) -> OperationTable | None:
    """Give each compute of an interleaved schedule its send and recv, as the trace format counts them.

    Stages at the ends of the model send or receive nothing; where a rank holds other stages, too, the n-th transfer is still to be
    that of the n-th compute. So those get a transfer that takes no time. None where transfers were begun in another order than
    computes.
    """
    filled = table
    for op, compute_op in _COMPUTE_OF.items():
        sends = op in (Op.FORWARD_SEND, Op.BACKWARD_SEND)
        last = op in (Op.FORWARD_SEND, Op.BACKWARD_RECV)
        computes = np.flatnonzero(table.op == compute_op)
        rows = np.flatnonzero(table.op == op)
        place = number_combinations(table.rank, table.step)
        computes = computes[np.lexsort((table.start_s[computes], place[computes]))]
        both = np.r_[computes, rows]
        key = number_combinations(place[both], table.virtual[both], table.microbatch[both])
        _, at, found = np.intersect1d(key[: len(computes)], key[len(computes) :], return_indices=True)
        begun_s = np.full(len(computes), np.inf)
        begun_s[at] = table.start_s[rows[found]]
        at_end = table.virtual[computes] == (n_virtual - 1 if last else 0)
        missing = np.isinf(begun_s) & at_end
        if (np.isinf(begun_s) & ~at_end).any():
            return None
        own_s = np.where(sends, table.end_s[computes], table.start_s[computes])
        later_s = _least_from_here(np.where(missing, own_s, begun_s), place[computes])
        begun_s = np.where(missing, np.minimum(own_s, later_s - APART_S * _until_next(~missing)), begun_s)
        same = place[computes][1:] == place[computes][:-1]
        if (np.diff(begun_s)[same] < 0).any():
            return None
        new = table.take(computes[missing])
        new = dataclasses.replace(
            new,
            op=np.full(len(new), int(op), dtype=np.int8),
            chunk=np.full(len(new), -1),
            seq=np.full(len(new), -1),
            start_s=begun_s[missing],
            end_s=begun_s[missing],
        )
        filled = OperationTable.join([filled, new])
    return filled


def _until_next(there: Bools) -> Ints:
    """Count the entries from each to the next that is there; those behind the last count to the end."""
    at = np.arange(len(there))
    following = np.where(there, at, len(there))
    return np.asarray(np.minimum.accumulate(following[::-1])[::-1] - at)


def _least_from_here(values: Seconds, place: Ints) -> Seconds:
    """Give the least of each value and those after it in its place; places stand one after the other."""
    if not len(values):
        return values
    span = float(np.ptp(values)) + 1.0
    shifted = values - values.min() + place * span
    return np.asarray(np.minimum.accumulate(shifted[::-1])[::-1] - place * span + values.min())


def drop_mismatched(table: OperationTable) -> tuple[OperationTable, list[Dropped]]:
    """Drop reductions of gradients that are not the same collective on all ranks, by their count in the group.

    Ranks may begin to count at different times: what differs alike in every step is the same collective.
    """
    rows = np.flatnonzero((table.seq >= 0) & table.is_op(Op.SEPARATE, Op.REDUCE_SCATTER))
    if not len(rows):
        return table, []
    first: dict[int, int] = {}
    rank, seq = table.rank[rows], table.seq[rows].copy()
    early = table.step[rows] == table.step[rows].min()
    for of, count in zip(rank[early].tolist(), seq[early].tolist(), strict=True):
        first[of] = min(first.get(of, count), count)
    seq -= np.array([first.get(of, 0) for of in rank.tolist()], dtype=np.int64)
    place = number_combinations(table.op[rows], table.step[rows], table.stage[rows], table.tp[rows], table.cp[rows])
    low, high = np.full(place.max() + 1, np.iinfo(np.int64).max), np.full(place.max() + 1, np.iinfo(np.int64).min)
    np.minimum.at(low, place, seq)
    np.maximum.at(high, place, seq)
    wrong = (low != high)[place]
    if not wrong.any():
        return table, []
    keep = np.ones(len(table), dtype=bool)
    keep[rows[wrong]] = False
    reason = "their counts in the process group differ from rank to rank: they are not the same ones"
    return table.take(keep), [Dropped("reductions of gradients", int(wrong.sum()), reason)]
