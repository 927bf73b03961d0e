"""Blocks and their computes: which steps a block has, and where each compute stands in the arrays of `Breakdown`.

Enters: observed blocks. Leaves: places of computes, and arrays of their seconds. Costs a pass over the computes.
"""

from collections.abc import Iterator, Sequence

import numpy as np

from diagnose.model.optype import DIRECTIONS, Op, of_types
from diagnose.model.placement import positions_of
from diagnose.model.trace import Ints, Nodes, Seconds
from diagnose.whatif.graph import split_nodes
from diagnose.whatif.levels import take
from diagnose.whatif.observed import Observed

COMPUTES = tuple(int(op) for op in DIRECTIONS)
#: Direction of each type of compute.
DIRECTION_OF = {op: direction for direction, op in enumerate(COMPUTES)}

#: Direction (0 forward, 1 backward, 2 weight gradient), virtual stage (chunk x n_stages + stage), microbatch.
Place = tuple[int, int, int]
#: The places of several computes, shape (n_computes,) each.
Places = tuple[Ints, Ints, Ints]


def iterate_blocks(observed: Sequence[Observed]) -> Iterator[tuple[slice, Observed]]:
    """Give each block with the place of its steps among the steps of all blocks."""
    first = 0
    for o in observed:
        steps = slice(first, first + len(o.block.steps))
        yield steps, o
        first = steps.stop


def find_computes(nodes: Nodes) -> Ints:
    """Find the nodes that are computes."""
    return np.flatnonzero(of_types(nodes.op, COMPUTES))


def list_computes(nodes: Nodes) -> list[int]:
    """List the nodes that are computes."""
    found: list[int] = find_computes(nodes).tolist()
    return found


def place_of(nodes: Nodes, node: int, n_stages: int) -> Place:
    """Say where a compute stands in the arrays of `Breakdown`."""
    virtual = max(int(nodes.chunk[node]), 0) * n_stages + int(nodes.stage[node])
    return DIRECTION_OF[int(nodes.op[node])], virtual, int(nodes.microbatch[node])


def places_of(nodes: Nodes, computes: Ints, n_stages: int) -> Places:
    """Say where several computes stand in the arrays of `Breakdown`."""
    virtual = np.maximum(nodes.chunk[computes], 0) * n_stages + nodes.stage[computes]
    return np.searchsorted(COMPUTES, nodes.op[computes]), virtual, nodes.microbatch[computes]


def find_last(observed: Sequence[Observed], n_stages: int) -> int:
    """Say which virtual stage ends the model, and reads labels: of a V it is on the first stage."""
    if not observed:
        return n_stages - 1
    nodes = observed[0].block.nodes
    computes = find_computes(nodes)
    return place_of(nodes, int(computes[positions_of(nodes)[computes].argmax()]), n_stages)[1]


def gather_computes(observed: Sequence[Observed], n_stages: int) -> Seconds:
    """Collect compute durations, shape (2, n_virtual, n_microbatches, n_steps, n_dp); NaN where there is none.

    Where there are weight gradients the first axis has 3 places.
    """
    n_directions = 3 if any((o.block.nodes.op == Op.WEIGHT).any() for o in observed) else 2
    n_chunks = 1 + max(int(o.block.nodes.chunk.max(initial=0)) for o in observed)
    n_microbatches = 1 + max(int(o.block.nodes.microbatch.max(initial=0)) for o in observed)
    n_steps = sum(len(o.block.steps) for o in observed)
    compute_s = np.full((n_directions, n_chunks * n_stages, n_microbatches, n_steps, observed[0].block.n_dp), np.nan)
    for steps, o in iterate_blocks(observed):
        for part in split_nodes(find_computes(o.block.nodes), o.block.start_s[0].size):
            own = take(o.own, part)
            # A rank that does not run the microbatch took no time for it, and what was filled in is nobody's.
            own[~(own > 0)] = np.nan
            if o.block.filled is not None:
                own[o.block.filled[part]] = np.nan
            compute_s[(*places_of(o.block.nodes, part, n_stages), steps)] = own
    return compute_s


def gather_seconds(
    observed: Sequence[Observed], by_node: Sequence[dict[int, Seconds]], shape: tuple[int, ...], n_stages: int
) -> Seconds | None:
    """Collect seconds of compute nodes as `gather_computes` does; None where there are none."""
    found: Seconds | None = None
    for (steps, o), seconds in zip(iterate_blocks(observed), by_node, strict=True):
        nodes = o.block.nodes
        for node, of_node in seconds.items():
            if nodes.op[node] not in COMPUTES:
                continue
            if found is None:
                found = np.zeros(shape)
            found[(*place_of(nodes, node, n_stages), steps)] = of_node
    return found
