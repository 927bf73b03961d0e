"""The same work under another pipeline schedule: the graph of it, own times and launch delays.

Enters: an observed block and what to run instead. Leaves: a `Rebuilt`, which turns the block's own times and launch delays
(changed or not) into those of the new graph. Computes keep their stage, microbatch and lane; transfers keep their link; what
opens and closes a step stays as it was recorded. Costs O(nodes) once, and O(operations) element operations a use.
"""

import dataclasses
from collections.abc import Sequence

import numpy as np

from diagnose.model.change import Reschedule
from diagnose.model.optype import SENDS, Op
from diagnose.model.schedule import BACKWARD, SPLITTING, WEIGHT, order_launches, positions_under, refuse_schedule
from diagnose.model.trace import Bools, Ints, Seconds
from diagnose.numerics.robust import median
from diagnose.whatif.graph import Graph
from diagnose.whatif.levels import OfNodes, list_shapes, stack
from diagnose.whatif.recorded import MOVES, NewClosing, Recorded
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
    #: Where in the model each model chunk stands, and which computes run at the same time as another.
    positions: Ints
    beside: Ints

    @property
    def same(self) -> bool:
        """Model chunks stand where they did."""
        return np.array_equal(self.positions, self.recorded.positions)

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
        if change.overlap_cost is not None:
            new_own[self.beside] *= change.overlap_cost
        self._put(new_delay, self.computes, self._late(delay))
        links = self._list_links()
        self._put(new_own, self.moves, self._move(own, links))
        late = self._move(delay, links)
        # The first of all recvs of a stage is posted as late as the first one now.
        recv, n_stages = MOVES.index(int(Op.FORWARD_RECV)), self.recorded.n_stages
        if not self.same:
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
        r = self.recorded
        found = np.zeros((*self.computes.shape, *own.shape[1:]))
        for part, at in enumerate(self._read_work(own, change.weight_share)):
            share = change.share[min(part, len(change.share) - 1)]
            if self.same and np.array_equal(share, np.eye(len(at))):
                found[part] = at
                continue
            usual = median(at, axis=(1, 2, 3))
            ratios = at * (1.0 / np.where(usual > 0, usual, np.inf))[:, None, None, None]
            if not self.same:
                of_stages = ratios.reshape(r.chunks, r.n_stages, *ratios.shape[1:])
                ratios = np.tile(of_stages.sum(axis=0) / r.chunks, (self.chunks, 1, 1, 1))
            found[part] = (share @ usual)[:, None, None, None] * ratios
        found[BACKWARD] += np.where((self.computes[WEIGHT] < 0)[..., None, None], found[WEIGHT], 0.0)
        return found

    def _read_work(self, own: Seconds, weight_share: float) -> Seconds:
        """Read forwards, gradients of inputs and of weights by themselves, as if each ran alone, for each microbatch its own.

        Axes as in `Recorded.computes` and the lanes. Where backwards are whole, weights have their usual part of them.
        """
        r = self.recorded
        there, ratio = r.computes >= 0, r.variants[..., None, None]
        found: Seconds = np.where(there[..., None, None], own[r.computes], 0.0) / ratio
        if not r.splits:
            found[WEIGHT] = found[BACKWARD] * weight_share
            found[BACKWARD] *= 1.0 - weight_share
            return found
        # Gradients of weights that were computed with those of a later microbatch take as long as these each; whole backwards are
        # as many times the input's as the others of their virtual stage.
        split = there[WEIGHT] | (r.variants[BACKWARD] == 1.0)
        for virtual, of_stage in enumerate(there[WEIGHT]):
            if not of_stage.any():
                continue
            at = np.flatnonzero(of_stage)
            nearest = at[np.minimum(np.searchsorted(at, np.arange(len(of_stage))), len(at) - 1)]
            found[WEIGHT, virtual] = found[WEIGHT, virtual][nearest]
            whole = ~of_stage & ~split[virtual]
            weights = median(found[WEIGHT, virtual][at]) / median(found[BACKWARD, virtual][split[virtual]])
            found[WEIGHT, virtual][whole] = found[BACKWARD, virtual][whole] * weights
        return found

    def _late(self, delay: Seconds) -> Seconds:
        """Give the launch delays of computes, axes as in `computes` and the lanes.

        Where the number of chunks changes the first keep those of the recorded ones; all others, and those that ran at the same
        time as another, are launched as late as usual.
        """
        r, n_stages = self.recorded, self.recorded.n_stages
        found = np.zeros((*self.computes.shape, *delay.shape[1:]))
        kept = min(len(r.computes[0]), len(self.computes[0]))
        known = np.zeros(self.computes.shape, dtype=bool)
        known[:, :kept] = (r.computes[:, :kept] >= 0) & ~r.beside[:, :kept]
        found[:, :kept] = delay[r.computes[:, :kept]]
        for part, stage in np.ndindex(len(self.computes), n_stages):
            unknown = ~known[part, stage::n_stages] & (self.computes[part, stage::n_stages] >= 0)
            if unknown.any():
                of_part, beside = (a[min(part, BACKWARD), stage::n_stages] for a in (r.computes, r.beside))
                like = of_part[~beside] if not beside.all() else of_part.ravel()
                found[part, stage::n_stages][unknown] = median(delay[like], axis=0)
        return found

    def _move(self, seconds: Seconds, links: Sequence[tuple[int, Bools, Ints]]) -> Seconds:
        """Give seconds of transfers, axes as in `moves` and the lanes: their own, or the usual of their link, or of their type."""
        found = seconds[self.recorded.moves] if self.same else np.zeros((*self.moves.shape, *seconds.shape[1:]))
        of_lengths: dict[int, list[tuple[int, Bools, Ints]]] = {}
        for link in links:
            of_lengths.setdefault(len(link[2]), []).append(link)
        for of_length in of_lengths.values():  # as many at a time as are made of as many
            usual = median(seconds[np.stack([alike for *_, alike in of_length])], axis=1)
            for (kind, at, _), of_link in zip(of_length, usual, strict=True):
                found[kind][at] = of_link
        return found

    def _list_links(self) -> list[tuple[int, Bools, Ints]]:
        """List transfers that are not recorded, by type and link: which they are, and the recorded ones that are alike."""
        r, found, sends = self.recorded, [], [kind in SENDS for kind in MOVES]
        new, old = (_list_ends(r.n_stages, positions) for positions in (self.positions, r.positions))
        unknown = (self.moves >= 0) & (r.moves < 0) if self.same else self.moves >= 0
        for kind, is_send in enumerate(sends):
            for ends in sorted({*new[kind][unknown[kind].any(axis=1)].tolist()}):
                alike = r.moves[(old == ends) & (np.array(sends) == is_send)[:, None]]
                if not (alike >= 0).any():
                    alike = r.moves[kind]
                found.append((kind, unknown[kind] & (new[kind] == ends)[:, None], alike[alike >= 0]))
        return found


def _list_ends(n_stages: int, positions: Ints) -> Ints:
    """Number the links, from which stage to which, -1 beyond the model: by type and virtual stage, (len(MOVES), n_virtual)."""
    holder = np.append(np.argsort(positions) % n_stages, -1)
    here = np.arange(len(positions)) % n_stages
    found = []
    for kind in MOVES:
        ahead = 1 if kind in (Op.FORWARD_SEND, Op.BACKWARD_RECV) else -1
        peer = holder[np.where(positions + ahead < len(positions), positions + ahead, -1)]
        source, target = (here, peer) if kind in SENDS else (peer, here)
        found.append(source * (n_stages + 1) + target)
    return np.array(found)


def rebuild(recorded: Recorded | None, change: Reschedule) -> Rebuilt | None:
    """Build the graph of a block under another schedule.

    None where these steps cannot run so: `read_recorded` does not know them, or the schedule asks for another number of
    microbatches. Workers block on transfers where the recorded ones do, except under schedules that split backwards, whose
    published implementations do not.

    Raises
    ------
    TraceError
        Operations would wait for each other in a circle.
    """
    if recorded is None:
        return None
    recorded = recorded.cut(change.pieces)
    schedule, n_stages = change.schedule, recorded.n_stages
    sizes = {"n_stages": n_stages, "chunks": change.chunks, "n_microbatches": len(recorded.microbatches)}
    if refuse_schedule(schedule, **sizes):
        return None
    orders = [order_launches(schedule, stage, **sizes) for stage in range(n_stages)]
    if change.overlap_cost is None:
        orders = [order * np.array([1, 1, 1, 0]) for order in orders]
    positions = positions_under(schedule, n_stages, change.chunks)
    writer = GraphWriter(recorded, change.chunks, orders, positions)
    blocking = schedule not in SPLITTING and recorded.blocks()
    graph = writer.write(blocking=blocking, interleaved=schedule == "interleaved")
    beside = np.concatenate([_list_beside(*of_stage) for of_stage in zip(writer.launched, orders, strict=True)])
    return Rebuilt(
        graph, recorded, change.chunks, writer.computes, writer.moves, tuple(writer.closed), positions, beside
    )


def _list_beside(launched: Ints, order: Ints) -> Ints:
    """List the computes of a stage that run at the same time as another."""
    beside = order[:, 3] > 0
    found: Ints = launched[beside | np.r_[beside[1:], False]]
    return found
