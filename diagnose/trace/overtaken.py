"""Number transfers that overtake each other as the computes that they serve: those with each neighbour have a stream of their own.

Enters: a block whose transfers count by their start. Leaves: it, where the n-th transfer of a type on a stage is that of the n-th
compute that has one, in every lane. Costs O(transfers), and nothing where model chunks are dealt out in turn.
"""

import dataclasses
from collections.abc import Iterable

import numpy as np

from diagnose.model.optype import DIRECTIONS, Op, of_types
from diagnose.model.placement import match_transfers, stage_at
from diagnose.model.trace import Block, Bools, Ints, Seconds
from diagnose.numerics.robust import nan_median
from diagnose.trace.labels import number_combinations

#: A send that waits for its recv ends with it, to this part of a typical compute.
APART_SHARE = 0.02
#: Transfers may overtake each other where more than this part of the sends seem to end apart from their recv ...
OVERTAKEN_SHARE = 0.01
#: ... and did if at most this part of those still do when they are numbered so. What is buffered never ends with its recv (real
#: zero-bubble jobs had up to 0.62 left, and replayed exactly then).
LEFT_SHARE = 2.0 / 3.0
#: Times that differ by less are the same, and by at most so many ticks of the clock: starts and lengths are both rounded.
ROUNDING_S = 1e-6
TICKS = 2.0
MAX_TICK_S = 0.01


def number_overtaken(block: Block) -> Block:
    """Give each transfer the place of the compute that it serves, if transfers overtake each other; else the block as it is."""
    if block.nodes.position is None:
        return block
    transfers = _Transfers(block)
    apart = transfers.share_apart(block)
    if apart <= OVERTAKEN_SHARE:
        return block
    # Sends may have overtaken each other, or recvs alone, which are posted ahead.
    followed = transfers.number(block)
    found = min((transfers.number_recvs(each) for each in (block, followed)), key=transfers.share_apart)
    found = min((followed, found), key=transfers.share_apart)
    return found if transfers.share_apart(found) <= LEFT_SHARE * apart else block


class _Transfers:
    """The transfers of a block: whom each serves, and with which stage it is."""

    def __init__(self, block: Block) -> None:
        nodes = block.nodes
        assert nodes.position is not None
        self.moves, self.computes = np.array([*match_transfers(nodes).items()], dtype=np.int64).reshape(-1, 2).T
        self.is_send = of_types(nodes.op[self.moves], (Op.FORWARD_SEND, Op.BACKWARD_SEND))
        op, position = nodes.op[self.computes], nodes.position[self.computes]
        ahead = np.where(op == Op.FORWARD, 1, -1)
        holder, there = stage_at(nodes), position + np.where(self.is_send, ahead, -ahead)
        between_s = np.diff(np.unique(block.start_s[:, 0]))
        self.tolerance_s = TICKS * float(between_s.min(where=between_s > ROUNDING_S, initial=MAX_TICK_S))
        #: The stage at the other end, -1 for none, and which type on which stage each is.
        self.peer = np.array([holder.get(at, -1) for at in there.tolist()], dtype=np.int64)
        self.place = number_combinations(nodes.op[self.moves], nodes.stage[self.moves])
        into = 1 + np.where(self.is_send, there, position)
        data = number_combinations(op, into, nodes.microbatch[self.computes])
        _, send, recv = np.intersect1d(data[self.is_send], data[~self.is_send], return_indices=True)
        self.send, self.recv = self.moves[self.is_send][send], self.moves[~self.is_send][recv]

    def share_apart(self, block: Block) -> float:
        """Say which part of the sends ends apart from its recv, whatever the clocks of two workers differ by."""
        computes, stage = of_types(block.nodes.op, DIRECTIONS), block.nodes.stage
        typical_s = float(nan_median((block.end_s - block.start_s)[computes], axis=(0, 1, 2)))
        limit_s = max(APART_SHARE * typical_s, self.tolerance_s)
        link = number_combinations(stage[self.send], stage[self.recv])
        n_apart = n_there = 0
        for of_link in (np.flatnonzero(link == one) for one in np.unique(link)):
            later_s = block.end_s[self.recv[of_link]] - block.end_s[self.send[of_link]]
            differs_s = np.abs(later_s - nan_median(later_s, axis=(0, 1)))
            n_apart += int(np.count_nonzero(differs_s > limit_s))
            n_there += int(np.count_nonzero(np.isfinite(differs_s)))
        return n_apart / max(n_there, 1)

    def number(self, block: Block) -> Block:
        """Number the transfers of each type on each stage as the streams with its neighbours can have begun them."""
        numbers: list[tuple[Ints, Ints]] = []
        for of_place in (np.flatnonzero(self.place == one) for one in np.unique(self.place)):
            moves, shape = self.moves[of_place], (len(of_place), *block.start_s.shape[1:])
            there_s = block.end_s[self.computes[of_place]] if self.is_send[of_place[0]] else np.full(shape, -np.inf)
            until_s = block.start_s[moves] + self.tolerance_s
            numbers.append((moves, _follow_streams(self.peer[of_place], until_s, block.end_s[moves], there_s)))
        return _renumber(block, numbers)

    def number_recvs(self, block: Block) -> Block:
        """Number the recvs of each type on each stage with two neighbours as they end with the sends of these."""
        of_send = dict(zip(self.recv.tolist(), self.send.tolist(), strict=True))
        numbers: list[tuple[Ints, Ints]] = []
        for of_place in (np.flatnonzero(self.place == one) for one in np.unique(self.place)):
            moves, streams = self.moves[of_place], np.unique(self.peer[of_place])
            if self.is_send[of_place[0]] or len(streams) != 2 or not all(recv in of_send for recv in moves.tolist()):
                continue
            is_second = self.peer[of_place] == streams[1]
            sent_s = block.end_s[[of_send[recv] for recv in moves.tolist()]]
            for of_stream in (is_second, ~is_second):  # clocks may differ
                sent_s[of_stream] += nan_median((block.end_s[moves] - sent_s)[of_stream], axis=(0, 1))
            numbers.append((moves, _match_ends(is_second, sent_s, block.end_s[moves])))
        return _renumber(block, numbers)


def _renumber(block: Block, numbers: Iterable[tuple[Ints, Ints]]) -> Block:
    """Give transfers other numbers: nodes, and which of them each is, shape (n, n_steps, n_dp)."""
    names = ("start_s", "end_s") if block.absent is None else ("start_s", "end_s", "absent")
    new = {name: getattr(block, name).copy() for name in names}
    for moves, number in numbers:
        for values in new.values():
            of_moves = values[moves]
            np.put_along_axis(of_moves, number, values[moves], axis=0)
            values[moves] = of_moves
    return dataclasses.replace(block, **new)


def _match_ends(is_second: Bools, sent_s: Seconds, end_s: Seconds) -> Ints:
    """Say for recvs from two neighbours, in order of their start, which of them each is, so that they end as near to their sends.

    Those of one neighbour keep their order. Costs one step for each pair of a recv from the one and one from the other.

    Parameters
    ----------
    is_second : ndarray of bool, shape (n,)
        Which are from the second neighbour, in order of their computes.
    sent_s, end_s : ndarray of float64, shape (n, n_steps, n_dp)
        When the send of each ends, in that order; and the recvs, in order of their start: seconds, NaN unknown.

    Returns
    -------
    ndarray of int64, shape (n, n_steps, n_dp)
    """
    first, second = np.flatnonzero(~is_second), np.flatnonzero(is_second)
    shape, nowhere = end_s.shape[1:], np.full(end_s.shape[1:], np.inf)
    from_second = np.zeros((len(first) + 1, len(second) + 1, *shape), dtype=bool)
    cost = [nowhere] * (len(second) + 1)  # of so many from the first neighbour and j from the second
    for i in range(len(first) + 1):
        for j in range(len(second) + 1):
            at_s = end_s[i + j - 1]
            by_first = cost[j] + np.nan_to_num(np.abs(at_s - sent_s[first[i - 1]])) if i else nowhere
            by_second = cost[j - 1] + np.nan_to_num(np.abs(at_s - sent_s[second[j - 1]])) if j else nowhere
            from_second[i, j] = by_second < by_first
            cost[j] = np.minimum(by_first, by_second) if i + j else np.zeros(shape)
    found = np.empty(end_s.shape, dtype=np.int64)
    i_left, j_left = np.full(shape, len(first)), np.full(shape, len(second))
    step, dp = np.ogrid[: shape[0], : shape[1]]
    for of_recv in found[::-1]:
        is_last_second = from_second[i_left, j_left, step, dp]
        of_recv[:] = np.where(is_last_second, second[j_left - 1], first[i_left - 1])
        i_left, j_left = i_left - ~is_last_second, j_left - is_last_second
    return found


def _follow_streams(stream: Ints, until_s: Seconds, end_s: Seconds, there_s: Seconds) -> Ints:
    """Say for transfers of one type on one worker, in order of their start, which of them each is, in that of their computes.

    Those of a stream keep their order. Of the streams that are free, and whose data are there, the one whose compute comes first
    begins; lost rows, NaN, hold up nothing.

    Parameters
    ----------
    stream : ndarray of int64, shape (n,)
        In order of the computes.
    until_s, end_s, there_s : ndarray of float64, shape (n, n_steps, n_dp)
        When each transfer begins at the latest and ends, and when the data of each compute are there: seconds.

    Returns
    -------
    ndarray of int64, shape (n, n_steps, n_dp)
    """
    n, *lanes = until_s.shape
    streams = np.unique(stream)
    in_turn = np.full((len(streams), n + 1), n)
    for row, one in zip(in_turn, streams.tolist(), strict=True):
        row[: np.count_nonzero(stream == one)] = np.flatnonzero(stream == one)
    there_s = np.concatenate([there_s, np.full((1, *lanes), np.inf)])
    each, step, dp = np.ogrid[: len(streams), : lanes[0], : lanes[1]]
    n_begun, free_s = np.zeros((len(streams), *lanes), dtype=np.int64), np.full((len(streams), *lanes), -np.inf)
    found = np.empty((n, *lanes), dtype=np.int64)
    for at, begun_s, ended_s in zip(found, until_s, end_s, strict=True):
        following = in_turn[each, n_begun]
        held: Bools = (free_s > begun_s) | (there_s[following, step, dp] > begun_s)
        chosen = (following + (n + 1) * held).argmin(axis=0)[None]
        at[:] = following[chosen, step, dp][0]
        n_begun[chosen, step, dp] += 1
        free_s[chosen, step, dp] = np.fmax(free_s[chosen, step, dp], ended_s)
    return found
