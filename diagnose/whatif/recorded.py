"""A recorded block by what its operations are for, so that they can be put in another order.

Enters: an observed block. Leaves: a `Recorded`; and what nodes of a new graph take from it.
"""

import dataclasses

import numpy as np

from diagnose.model.optype import DIRECTIONS, P2P, Op, of_types
from diagnose.model.trace import Bools, Ints, Nodes, Seconds
from diagnose.whatif.computes import COMPUTES
from diagnose.whatif.graph import Layout
from diagnose.whatif.observed import Observed, usual_start
from diagnose.whatif.overlaps import find_overlaps

#: A worker blocks on its sends where this part of them is waited for by what follows on the worker.
BLOCKED_SHARE = 0.5

#: Transfers; the place of each type is its first index in arrays of them.
MOVES = tuple(int(op) for op in P2P)


@dataclasses.dataclass(frozen=True, slots=True)
class Recorded:
    """A block's nodes by what they are for; -1 where there is none."""

    observed: Observed
    layout: Layout
    chunks: int
    #: Shape (3, n_virtual, n_microbatches): by part (`diagnose.model.schedule.Part`). Backwards are whole, or the gradients of
    #: inputs where those of weights are there, too: one a microbatch, or one for several.
    computes: Ints
    #: Shape (len(MOVES), n_virtual, n_microbatches): transfers by the compute that they serve, those without
    #: a peer left out.
    moves: Ints
    #: All other nodes of the graph.
    closings: tuple[int, ...]
    #: Shape (n_microbatches,): their numbers, rising.
    microbatches: Ints
    #: Length n_stages.
    last_compute: tuple[int, ...]
    #: Whether the gradients of weights are computed apart.
    splits: bool
    #: Shape (n_virtual,): where in the model each model chunk stands.
    positions: Ints
    #: Shape (3, n_virtual, n_microbatches): how long each compute is against the ordinary one of its part and virtual stage, by
    #: what the schedule makes of it.
    variants: Seconds
    #: Axes as in `computes`: whether each runs at the same time as another of its worker, launched with that
    #: one once all is there that both wait for.
    beside: Bools
    #: So many microbatches in turn are pieces of one.
    pieces: int = 1

    @property
    def n_stages(self) -> int:
        """Number of pipeline stages."""
        return self.layout.n_stages

    @property
    def nodes(self) -> Nodes:
        """Nodes of the block."""
        return self.layout.nodes

    def cut(self, pieces: int) -> "Recorded":
        """Let each microbatch be so many, one after the other, with the nodes of the whole."""
        computes, moves = (np.repeat(nodes, pieces, axis=2) for nodes in (self.computes, self.moves))
        return dataclasses.replace(
            self,
            computes=computes,
            moves=moves,
            variants=np.repeat(self.variants, pieces, axis=2),
            beside=np.repeat(self.beside, pieces, axis=2),
            microbatches=np.repeat(self.microbatches, pieces),
            pieces=self.pieces * pieces,
        )

    def blocks(self) -> bool:
        """Say whether workers wait for their sends before they go on, by what the observed graph has learned of most of them."""
        graph, op, stage = self.observed.graph, self.nodes.op, self.nodes.stage
        is_send = of_types(op, (Op.FORWARD_SEND, Op.BACKWARD_SEND))
        moves, here, held = np.zeros((3, len(op)), dtype=bool)
        moves[self.moves[self.moves >= 0]] = True
        here[self.computes[self.computes >= 0]] = True
        together = graph.moves.awaits.lengths > 0
        held[graph.moves.completes.take(np.flatnonzero(together)).flat] = True
        # Sends of one stream wait for each other whatever else does.
        source, waiter = graph.sources.flat, graph.sources.row_of()
        held[source[((here | moves) & ~is_send)[waiter] & (stage[source] == stage[waiter])]] = True
        sends = moves & is_send
        return bool((sends & held).sum() > BLOCKED_SHARE * sends.sum())

    def list_held_stages(self) -> set[int]:
        """List the stages whose first transfers wait for their parameters."""
        graph, moves = self.observed.graph, np.zeros(len(self.nodes), dtype=bool)
        moves[self.moves[self.moves >= 0]] = True
        waiter = graph.sources.row_of()[self.nodes.op[graph.sources.flat] == Op.ALL_GATHER]
        return set(self.nodes.stage[waiter[moves[waiter]]].tolist())


def read_recorded(o: Observed, variants: Seconds | float = 1.0) -> Recorded | None:
    """Sort the nodes of a block by what they are for; None where a microbatch does not run both ways on every stage.

    That is an evaluation, or a stage whose rows are lost. `variants` are those of the job, as `Breakdown` has them.
    Neither can be put in another order what records only some types of transfers.
    """
    layout = Layout(o.block.nodes, usual_start(o.block))
    nodes, n_stages, events = layout.nodes, layout.n_stages, o.graph.moves
    is_compute = of_types(nodes.op, COMPUTES)
    both_ways = np.flatnonzero(of_types(nodes.op, COMPUTES[:2]))
    microbatches = np.unique(nodes.microbatch[both_ways])
    virtual = np.maximum(nodes.chunk, 0) * n_stages + nodes.stage
    n_virtual = n_stages * (1 + int((virtual[both_ways] // n_stages).max(initial=0)))
    computes = np.full((len(COMPUTES), n_virtual, len(microbatches)), -1)
    there = np.flatnonzero(is_compute & np.isin(nodes.microbatch, microbatches) & (virtual < n_virtual))
    at = np.searchsorted(microbatches, nodes.microbatch)
    computes[np.searchsorted(COMPUTES, nodes.op[there]), virtual[there], at[there]] = there
    if not len(both_ways) or (computes[:2] < 0).any():
        return None
    paired = np.zeros(len(nodes), dtype=bool)
    paired[events.members.take(np.flatnonzero(events.members.lengths > 1)).flat] = True
    moves = np.full((len(MOVES), n_virtual, len(microbatches)), -1)
    move, served = np.array([*layout.served.items()], dtype=np.int64).reshape(-1, 2).T
    move, served = move[paired[move]], served[paired[move]]
    moves[[MOVES.index(op) for op in nodes.op[move].tolist()], virtual[served], at[served]] = move
    recorded_types = (moves >= 0).any(axis=(1, 2))
    if recorded_types.any() and not recorded_types.all():
        return None
    in_graph = np.zeros(len(nodes), dtype=bool)
    in_graph[events.completes.flat] = True
    last = [layout.by_start(DIRECTIONS, stage)[-1] for stage in range(n_stages)]
    closings = tuple(np.flatnonzero(in_graph & ~is_compute & ~of_types(nodes.op, MOVES)).tolist())
    splits = bool((computes[2] >= 0).any())
    positions = np.arange(n_virtual)
    positions[virtual[both_ways]] = layout.position[both_ways]
    beside = np.isin(computes, [*find_overlaps(o.block, layout.start_s)])
    chunks, ratio = n_virtual // n_stages, np.ones(computes.shape)
    if not isinstance(variants, float):
        ratio[: len(variants)] = variants[:, :n_virtual, microbatches, 0, 0]
    return Recorded(
        o, layout, chunks, computes, moves, closings, microbatches, tuple(last), splits, positions, ratio, beside
    )


@dataclasses.dataclass(frozen=True, slots=True)
class NewClosing:
    """Something that opens or closes a step: the recorded nodes whose time it takes, in part, and whose launch delay it has."""

    node: int
    own: tuple[int, ...]
    part: float
    delay: tuple[int, ...]
