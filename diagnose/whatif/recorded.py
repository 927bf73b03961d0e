"""A recorded block by what its operations are for, so that they can be put in another order.

Enters: an observed block. Leaves: a `Recorded`; and what nodes of a new graph take from it.
"""

import dataclasses

import numpy as np

from diagnose.model.optype import DIRECTIONS, P2P, Op
from diagnose.model.placement import WAYS
from diagnose.model.trace import Nodes
from diagnose.whatif.computes import COMPUTES
from diagnose.whatif.graph import Layout
from diagnose.whatif.observed import Observed, usual_start

#: A worker blocks on its sends where this part of them is waited for by what follows on the worker.
BLOCKED_SHARE = 0.5

MOVES = tuple(int(op) for op in P2P)
#: (part, virtual stage, microbatch) of a compute; (type, virtual stage, microbatch) of a transfer, by the compute it serves.
ComputeKey = tuple[str, int, int]
MoveKey = tuple[int, int, int]


@dataclasses.dataclass(frozen=True, slots=True)
class Recorded:
    """A block's nodes by what they are for.

    Attributes
    ----------
    computes : dict of (part, virtual stage, microbatch) to int
        Backwards are whole, or the gradients of inputs where those of weights are there, too: one a microbatch, or one for several.
    moves : dict of (type, virtual stage, microbatch) to int
        Transfers, those without a peer left out.
    closings : tuple of int
        All other nodes of the graph.
    last_compute : tuple of int, length n_stages
    splits : bool
        Whether the gradients of weights are computed apart.
    """

    observed: Observed
    layout: Layout
    chunks: int
    computes: dict[ComputeKey, int]
    moves: dict[MoveKey, int]
    closings: tuple[int, ...]
    microbatches: tuple[int, ...]
    last_compute: tuple[int, ...]
    splits: bool

    @property
    def n_stages(self) -> int:
        """Number of pipeline stages."""
        return self.layout.n_stages

    @property
    def nodes(self) -> Nodes:
        """Nodes of the block."""
        return self.layout.nodes

    def cut(self, pieces: int) -> "Recorded":
        """Let each microbatch be so many, one after the other, with the nodes of the whole; the last keeps its number."""
        if pieces == 1:
            return self
        beyond = max(self.microbatches) + 1
        names = {m: [m + beyond * (pieces - 1 - i) for i in range(pieces)] for m in self.microbatches}
        return dataclasses.replace(
            self,
            computes={(part, u, new): node for (part, u, m), node in self.computes.items() for new in names[m]},
            moves={(op, u, new): node for (op, u, m), node in self.moves.items() for new in names[m]},
            microbatches=tuple(new for m in self.microbatches for new in names[m]),
        )

    def blocks(self) -> bool:
        """Say whether workers wait for their sends before they go on, by what the observed graph has learned of most of them."""
        graph, op, stage = self.observed.graph, self.nodes.op, self.nodes.stage
        sent = {int(Op.FORWARD_SEND), int(Op.BACKWARD_SEND)}
        sends = {node for (kind, _, _), node in self.moves.items() if kind in sent}
        held = {node for event in graph.events if event.awaits for node in event.completes}
        for node in (*self.computes.values(), *self.moves.values()):
            if int(op[node]) not in sent:  # sends of one stream wait for each other whatever else does
                held.update(source for source in graph.waits[node] if stage[source] == stage[node])
        return len(sends & held) > BLOCKED_SHARE * len(sends)

    def list_held_stages(self) -> set[int]:
        """List the stages whose first transfers wait for their parameters."""
        graph, stage = self.observed.graph, self.nodes.stage
        gathers = set(np.flatnonzero(self.nodes.op == Op.ALL_GATHER).tolist())
        held = [node for node in self.moves.values() if not gathers.isdisjoint(graph.waits[node])] if gathers else []
        return set(stage[held].tolist())


def read_recorded(o: Observed) -> Recorded | None:
    """Sort the nodes of a block by what they are for; None where a microbatch does not run both ways on every stage."""
    layout = Layout(o.block.nodes, usual_start(o.block))
    nodes, n_stages = layout.nodes, layout.n_stages
    in_graph = {node for event in o.graph.events for node in event.completes}
    paired = {node for event in o.graph.events if len(event.members) > 1 for node in event.members}
    computes: dict[ComputeKey, int] = {}
    moves: dict[MoveKey, int] = {}
    for stage in range(n_stages):
        for compute_op, recv_op, send_op, _ in WAYS:
            of_type = layout.of(compute_op, stage)
            places = [(layout.chunk(n) * n_stages + stage, int(nodes.microbatch[n])) for n in of_type]
            computes |= {(compute_op.name.lower(), *place): n for place, n in zip(places, of_type, strict=True)}
            for n in (*layout.of(recv_op, stage), *layout.of(send_op, stage)):
                if n in paired and n in layout.served:
                    c = layout.served[n]
                    place = (layout.chunk(c) * n_stages + stage, int(nodes.microbatch[c]))
                    moves[int(nodes.op[n]), *place] = n
    chunks = 1 + max((u // n_stages for _, u, _ in computes), default=0)
    weights = {
        ("weight", layout.chunk(n) * n_stages + stage, int(nodes.microbatch[n])): n
        for stage in range(n_stages)
        for n in layout.of(Op.WEIGHT, stage)
    }
    microbatches = tuple(sorted({m for _, _, m in computes}))
    if not computes or len(computes) != 2 * chunks * n_stages * len(microbatches):
        return None
    skipped = {*COMPUTES, *MOVES}
    last = [layout.by_start(DIRECTIONS, stage)[-1] for stage in range(n_stages)]
    closings = tuple(node for node in sorted(in_graph) if int(nodes.op[node]) not in skipped)
    return Recorded(o, layout, chunks, computes | weights, moves, closings, microbatches, tuple(last), bool(weights))


@dataclasses.dataclass(frozen=True, slots=True)
class NewCompute:
    """A compute of the new graph: its direction, virtual stage and microbatch; `part` as in `Launch`."""

    node: int
    direction: int
    virtual: int
    microbatch: int
    part: str


@dataclasses.dataclass(frozen=True, slots=True)
class NewMove:
    """A transfer of the new graph: recorded nodes that say how long it takes (their median), and how late it is launched."""

    node: int
    own: tuple[int, ...]
    delay: tuple[int, ...]


@dataclasses.dataclass(frozen=True, slots=True)
class NewClosing:
    """Something that opens or closes a step: the recorded nodes whose time it takes, in part, and whose launch delay it has."""

    node: int
    own: tuple[int, ...]
    part: float
    delay: tuple[int, ...]
