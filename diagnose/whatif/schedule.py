"""The same work under another pipeline schedule: the graph of it, own times and launch delays.

Enters: an observed block and what to run instead. Leaves: a `Rebuilt`, which turns the block's own times and launch delays
(changed or not) into those of the new graph. Computes keep their stage, microbatch and lane; transfers keep their link; what
opens and closes a step stays as it was recorded. Costs O(nodes) once, and O(operations) element operations a use.
"""

import dataclasses
from collections.abc import Sequence

import numpy as np

from diagnose.model.change import Reschedule
from diagnose.model.optype import Op
from diagnose.model.schedule import BACKWARD, WEIGHT, order_launches, refuse_schedule
from diagnose.model.trace import Ints, Seconds
from diagnose.whatif.graph import Graph
from diagnose.whatif.levels import OfNodes, list_shapes, stack
from diagnose.whatif.observed import Observed
from diagnose.whatif.recorded import MOVES, NewClosing, Recorded, read_recorded
from diagnose.whatif.rewrite import GraphWriter


@dataclasses.dataclass(frozen=True, slots=True)
class Rebuilt:
    """A block under another schedule; `computes` and `moves` are its nodes, axes as in `Recorded`."""

    graph: Graph
    recorded: Recorded
    chunks: int
    computes: Ints
    moves: Ints
    closed: Sequence[NewClosing]

    def times(self, own: OfNodes, delay: OfNodes, change: Reschedule) -> tuple[Seconds, Seconds]:
        """Give own times and launch delays of the new graph's nodes from those of the recorded one's.

        Seconds; one array a node, or all in one of shape (n_nodes, n_steps, n_dp), which the results have.
        """
        shape = tuple(
            max(sizes) for sizes in zip(*(s for arrays in (own, delay) for s in list_shapes(arrays)), strict=True)
        )
        own, delay = stack(own, shape), stack(delay, shape)
        new_own, new_delay = np.zeros((2, self.graph.n_nodes, *shape))
        self._put(new_own, self.computes, self._work(own, change))
        self._put(new_delay, self.computes, self._late(delay))
        self._put(new_own, self.moves, self._move(own))
        late = self._move(delay)
        # The first of all recvs of a stage is posted as late as the first one now.
        recv, n_stages = MOVES.index(int(Op.FORWARD_RECV)), self.recorded.n_stages
        if self.chunks != self.recorded.chunks:
            for stage in range(n_stages):
                new, old = self.moves[recv, stage::n_stages], self.recorded.layout.of(Op.FORWARD_RECV, stage)
                if old and (new >= 0).any():
                    first = self.moves[recv] == new[new >= 0].min()
                    late[recv, first] = delay[old[0]]
        self._put(new_delay, self.moves, late)
        new_own /= change.pieces
        for closed in self.closed:
            new_own[closed.node] = own[list(closed.own)].sum(axis=0) * closed.part
            new_delay[closed.node] = delay[closed.delay[0]] if closed.delay else 0.0
        return new_own, new_delay

    @staticmethod
    def _put(of_nodes: Seconds, nodes: Ints, seconds: Seconds) -> None:
        """Write seconds by place down at the nodes there."""
        there = nodes >= 0
        of_nodes[nodes[there]] = seconds[there]

    def _work(self, own: Seconds, change: Reschedule) -> Seconds:
        """Share the computes out anew, axes as in `computes` and the lanes: backwards whole if they are so now.

        What is usual on a virtual stage moves with the work; how a lane differs from the usual stays with its worker.
        """
        r, same = self.recorded, self.chunks == self.recorded.chunks
        found = np.zeros((*self.computes.shape, *own.shape[1:]))
        for direction in range(3 if r.splits else 2):
            # A weight gradient of several microbatches stands at one of them.
            at = np.where(r.computes[direction][..., None, None] < 0, 0.0, own[r.computes[direction]])
            share = change.share[direction]
            if same and np.array_equal(share, np.eye(len(at))):
                found[direction] = at
                continue
            usual = np.median(at, axis=(1, 2, 3))
            ratios = at * (1.0 / np.where(usual > 0, usual, np.inf))[:, None, None, None]
            if not same:
                of_stages = ratios.reshape(r.chunks, r.n_stages, *ratios.shape[1:])
                ratios = np.tile(of_stages.sum(axis=0) / r.chunks, (self.chunks, 1, 1, 1))
            found[direction] = (share @ usual)[:, None, None, None] * ratios
        splits = bool((self.computes[WEIGHT] >= 0).any())
        if r.splits and not splits:
            found[BACKWARD] += found[WEIGHT]
        elif splits and not r.splits:
            found[WEIGHT] = found[BACKWARD] * change.weight_share
            found[BACKWARD] *= 1.0 - change.weight_share
        return found

    def _late(self, delay: Seconds) -> Seconds:
        """Give the launch delays of computes, axes as in `computes` and the lanes.

        Where the number of chunks changes the first keep those of the recorded ones; all others are launched as late as usual.
        """
        r, n_stages = self.recorded, self.recorded.n_stages
        found = np.zeros((*self.computes.shape, *delay.shape[1:]))
        kept = min(len(r.computes[0]), len(self.computes[0]))
        known = np.zeros(self.computes.shape, dtype=bool)
        known[:, :kept] = r.computes[:, :kept] >= 0
        found[:, :kept] = delay[r.computes[:, :kept]]
        for part, stage in np.ndindex(len(self.computes), n_stages):
            unknown = ~known[part, stage::n_stages] & (self.computes[part, stage::n_stages] >= 0)
            if unknown.any():
                like = r.computes[min(part, BACKWARD), stage::n_stages]
                found[part, stage::n_stages][unknown] = np.median(delay[like.ravel()], axis=0)
        return found

    def _move(self, seconds: Seconds) -> Seconds:
        """Give seconds of transfers, axes as in `moves` and the lanes: their own, or the usual of their link, or of their type."""
        r, n_stages = self.recorded, self.recorded.n_stages
        same = self.chunks == r.chunks
        found = seconds[r.moves] if same else np.zeros((*self.moves.shape, *seconds.shape[1:]))
        for kind, stage in np.ndindex(len(self.moves), n_stages):
            unknown = self.moves[kind, stage::n_stages] >= 0
            if same:
                unknown &= r.moves[kind, stage::n_stages] < 0
            if unknown.any():
                of_type = r.moves[kind]
                alike = of_type[stage::n_stages] if (of_type[stage::n_stages] >= 0).any() else of_type
                found[kind, stage::n_stages][unknown] = np.median(seconds[alike[alike >= 0]], axis=0)
        return found


def rebuild(observed: Observed, schedule: str, chunks: int, pieces: int = 1) -> Rebuilt | None:
    """Build the graph of a block under one of `SCHEDULES`, with so many model chunks a stage, each microbatch cut into pieces.

    None where these steps cannot run so: not every microbatch runs forward and backward on every stage (an evaluation, a
    stage whose rows are lost), or the schedule asks for another number of microbatches. Workers block on transfers where the
    recorded ones do, except under `zero-bubble`, whose published implementations do not.

    Raises
    ------
    TraceError
        Operations would wait for each other in a circle.
    """
    recorded = read_recorded(observed)
    if recorded is None:
        return None
    recorded = recorded.cut(pieces)
    sizes = {"n_stages": recorded.n_stages, "chunks": chunks, "n_microbatches": len(recorded.microbatches)}
    if refuse_schedule(schedule, **sizes):
        return None
    orders = [order_launches(schedule, stage, **sizes) for stage in range(recorded.n_stages)]
    writer = GraphWriter(recorded, chunks, orders)
    blocking = schedule != "zero-bubble" and recorded.blocks()
    graph = writer.write(blocking=blocking, interleaved=schedule == "interleaved")
    return Rebuilt(graph, recorded, chunks, writer.computes, writer.moves, tuple(writer.closed))
