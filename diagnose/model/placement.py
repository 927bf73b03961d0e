"""Where the model chunks of each stage stand in the model, and which computes the transfers of a stage serve.

Enters: the nodes of a block. Leaves: positions, and the compute of each transfer. Costs a pass over the nodes.
"""

import itertools

import numpy as np

from diagnose.model.optype import Op, of_types
from diagnose.model.trace import Ints, Nodes

#: By direction (0 forward, 1 backward): the compute, what it receives and sends, and how far ahead its data go.
WAYS = (
    (Op.FORWARD, Op.FORWARD_RECV, Op.FORWARD_SEND, 1),
    (Op.BACKWARD, Op.BACKWARD_RECV, Op.BACKWARD_SEND, -1),
)


def positions_of(nodes: Nodes) -> Ints:
    """Say where in the model the chunk of each node stands, shape (n_nodes,): position p passes its output on to p + 1.

    Unless the trace says otherwise chunks are dealt out in turn: the first of all stages, then the second of all.
    """
    if nodes.position is not None:
        return nodes.position
    return np.asarray(np.maximum(nodes.chunk, 0) * (int(nodes.stage.max(initial=0)) + 1) + nodes.stage)


def stage_at(nodes: Nodes) -> dict[int, int]:
    """Say which stage holds each position of the model."""
    forwards = np.flatnonzero(of_types(nodes.op, (Op.FORWARD, Op.BACKWARD)))
    found: dict[int, int] = dict(
        zip(positions_of(nodes)[forwards].tolist(), nodes.stage[forwards].tolist(), strict=True)
    )
    return found


def list_by_place(nodes: Nodes) -> dict[tuple[int, int], list[int]]:
    """List the nodes of each (type, stage) by `seq`."""
    order = np.lexsort((nodes.seq, nodes.op, nodes.stage))
    op, stage = nodes.op[order], nodes.stage[order]
    is_first = np.ones(len(order), dtype=bool)
    is_first[1:] = (op[1:] != op[:-1]) | (stage[1:] != stage[:-1])
    places = zip(op[is_first].tolist(), stage[is_first].tolist(), strict=True)
    in_order, begins = order.tolist(), [*np.flatnonzero(is_first).tolist(), len(order)]
    return {place: in_order[a:b] for place, (a, b) in zip(places, itertools.pairwise(begins), strict=True)}


def match_transfers(nodes: Nodes) -> dict[int, int]:
    """Name the compute that each send and recv serves, by node.

    The n-th transfer of a type on a stage is that of the n-th compute that has one. That are all computes, or those whose data
    come from another stage, or go there. Else the first send is that of the first compute, and the last recv that of the last.
    """
    by_place = list_by_place(nodes)
    holder, position = stage_at(nodes), positions_of(nodes)
    found: dict[int, int] = {}
    for (op, stage), computes in by_place.items():
        for compute_op, recv_op, send_op, ahead in WAYS:
            if op != compute_op:
                continue
            for move_op, toward in ((recv_op, -ahead), (send_op, ahead)):
                moves = by_place.get((int(move_op), stage), [])
                served = computes
                if moves and len(moves) != len(computes):
                    apart = [n for n in computes if holder.get(int(position[n]) + toward, stage) != stage]
                    if len(apart) == len(moves):
                        served = apart
                    elif move_op == recv_op:
                        served = computes[max(len(computes) - len(moves), 0) :]
                found.update(zip(moves, served, strict=False))
    return found
