"""Find point-to-point operations that were launched together and end together: blocking batches.

Enters: a block. Leaves: groups of nodes. What is asked of the times is asked of a few lanes only.
"""

import itertools

import numpy as np

from diagnose.model.optype import P2P, Op
from diagnose.model.trace import Block, Nodes

#: Lanes (step x dp rank) looked at when waits are learned; more would not change a share of 97%.
MAX_LANES = 512
#: A wait holds if it does in this part of the lanes (prototype, LESSONS: a launch delay that tracks an end is an edge).
HELD_SHARE = 0.97
#: Clock granularity: seconds, and part of a typical forward (production trace: starts up to 40 us before the end waited for
#: at forwards of 0.22 s).
TOLERANCE_S = 20e-6
TOLERANCE_SHARE = 1e-3
#: One batch is recorded with one start and one end; float32 seconds late in a long step are coarser than this.
GRANULARITY_S = 2e-7


class Look:
    """A few lanes of the block, evenly spread, on which waits are learned: shape (n_nodes, n_lanes)."""

    def __init__(self, block: Block) -> None:
        n_nodes, n_steps, n_dp = block.start_s.shape
        stride = max(1, n_steps * n_dp // MAX_LANES)
        stride += 1 if stride > 1 and n_dp % stride == 0 else 0
        self.start_s = block.start_s.reshape(n_nodes, -1)[:, ::stride]
        self.end_s = block.end_s.reshape(n_nodes, -1)[:, ::stride]
        self.granularity_s = GRANULARITY_S + 4.0 * float(np.spacing(np.float32(self.end_s.max())))
        forwards = block.nodes.op == Op.FORWARD
        self.tolerance_s = max(TOLERANCE_S, TOLERANCE_SHARE * float(np.median((self.end_s - self.start_s)[forwards])))

    def held_share(self, source: int, waiter: int) -> float:
        """Part of the lanes in which `waiter` never started before `source` had ended."""
        return float(np.mean(self.start_s[waiter] >= self.end_s[source] - self.tolerance_s))


def find_batches(nodes: Nodes, look: Look, order: list[int]) -> list[tuple[int, ...]]:
    """Find point-to-point operations of one worker that start and end as one: a blocking batch of several transfers.

    `order` lists the worker's nodes in launch order.
    """
    batches: list[list[int]] = []
    p2p = [node for node in order if Op(int(nodes.op[node])) in P2P]
    for earlier, later in itertools.pairwise(p2p):
        together = np.abs(look.start_s[earlier] - look.start_s[later]) <= look.granularity_s
        together &= np.abs(look.end_s[earlier] - look.end_s[later]) <= look.granularity_s
        if together.mean() < HELD_SHARE:
            continue
        if batches and batches[-1][-1] == earlier:
            batches[-1].append(later)
        else:
            batches.append([earlier, later])
    return [tuple(batch) for batch in batches]
