"""Find computes of one worker that run at the same time: a forward beside the backward of another microbatch.

Enters: a block. Leaves: for each compute those that run beside it. Costs a pass over the computes on a few lanes.
"""

import itertools
from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet

import numpy as np

from diagnose.model.optype import DIRECTIONS, of_types
from diagnose.model.trace import Block, Seconds

#: Lanes (step x dp rank) looked at.
MAX_LANES = 64
#: Two computes run side by side for this part of the shorter one at least, in this part of the lanes.
OVERLAP_SHARE, STEADY_SHARE = 0.3, 0.9
#: In fewer lanes than this clocks that are off look so, too: then both begin within this part of the shorter one of each other, and
#: this part of all computes does so.
FEW_LANES, TOGETHER_SHARE, MOST_SHARE = 8, 0.25, 0.2
#: So many computes launched after one may still run beside it.
MAX_AHEAD = 3

#: For each compute those that run beside it, by node.
Overlaps = Mapping[int, AbstractSet[int]]


def find_overlaps(block: Block, usual_s: Seconds) -> Overlaps:
    """Find the computes that steadily overlap on their worker; `usual_s` is the usual start of each node, shape (n_nodes,)."""
    nodes = block.nodes
    n_lanes = block.start_s[0].size
    stride = max(1, -(-n_lanes // MAX_LANES))
    start_s, end_s = (times.reshape(len(nodes), -1)[:, ::stride] for times in (block.start_s, block.end_s))
    computes = np.flatnonzero(of_types(nodes.op, DIRECTIONS))
    computes = computes[np.lexsort((nodes.seq[computes], usual_s[computes], nodes.stage[computes]))]
    found: dict[int, set[int]] = {}
    start_s, end_s, stage = start_s[computes], end_s[computes], nodes.stage[computes]
    took_s = end_s - start_s
    for ahead in range(1, MAX_AHEAD + 1):
        a, b = slice(None, -ahead), slice(ahead, None)
        shorter = np.minimum(took_s[a], took_s[b])
        beside = np.minimum(end_s[a], end_s[b]) - start_s[b] > OVERLAP_SHARE * shorter
        n_there = np.isfinite(shorter).sum(axis=1)
        steady = (stage[a] == stage[b]) & (n_there > 0) & (beside.sum(axis=1) >= STEADY_SHARE * n_there)
        if n_lanes < FEW_LANES:
            together = np.abs(start_s[b] - start_s[a]) < TOGETHER_SHARE * shorter
            steady &= together.sum(axis=1) >= STEADY_SHARE * n_there
            if 2 * steady.sum() < MOST_SHARE * len(computes):
                continue
        for earlier, later in zip(computes[a][steady].tolist(), computes[b][steady].tolist(), strict=True):
            found.setdefault(earlier, set()).add(later)
            found.setdefault(later, set()).add(earlier)
    return found


def measure_beside(blocks: Sequence[Block]) -> float:
    """Say for which part of the time that computes take one runs beside the one that its worker launched before; 0..1."""
    beside_s = took_s = 0.0
    for block in blocks:
        nodes = block.nodes
        computes = np.flatnonzero(of_types(nodes.op, DIRECTIONS))
        stride = max(1, -(-block.start_s[0].size // MAX_LANES)) if len(nodes) else 1
        start_s, end_s = (
            times[computes].reshape(len(computes), -1)[:, ::stride] for times in (block.start_s, block.end_s)
        )
        order = np.lexsort((start_s, np.broadcast_to(nodes.stage[computes][:, None], start_s.shape)), axis=0)
        start_s, end_s = (np.take_along_axis(times, order, axis=0) for times in (start_s, end_s))
        stage = nodes.stage[computes][order]
        earlier, later = slice(None, -1), slice(1, None)
        both_s = np.minimum(end_s[earlier], end_s[later]) - start_s[later]
        beside_s += float(np.nansum(np.where(stage[earlier] == stage[later], np.maximum(both_s, 0.0), 0.0)))
        took_s += float(np.nansum(end_s - start_s))
    return beside_s / took_s if took_s else 0.0


def chain_beside(waits: list[set[int]], computes: Sequence[int], overlaps: Overlaps) -> list[int]:
    """Let each compute of a worker wait for those before it, but for those that run beside it: then for what these waited for.

    Gives those that nothing waits for, the last one last.
    """
    if not overlaps:
        for earlier, later in itertools.pairwise(computes):
            waits[later].add(earlier)
        return list(computes[-1:])
    running: list[int] = []  # computes that nothing has waited for
    before: dict[int, set[int]] = {}
    for node in computes:
        beside = overlaps.get(node, set())
        before[node] = {other for other in running if other not in beside}
        for other in running:
            if other in beside:
                before[node] |= before[other] - beside
        waits[node] |= before[node]
        running = [*(other for other in running if other in beside), node]
    return running
