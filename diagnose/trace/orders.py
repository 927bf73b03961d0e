"""Part the steps of a job whose schedule changes while it runs: each order in which workers compute is a graph of its own.

Enters: blocks, each of steps with the same operations. Leaves: blocks of steps that run them in the same order, too.
"""

import numpy as np

from diagnose.model.optype import DIRECTIONS, of_types
from diagnose.model.trace import Block, Bools, Ints, Seconds
from diagnose.trace.restart import describe_steps

#: Neighbours in the order of one step of which so many stand the other way round in another step are of another schedule.
MAX_TURNED_SHARE = 0.03
#: Orders of a job at most: a schedule that is made anew for every step has none.
MAX_ORDERS = 8


def part_orders(blocks: list[Block], warnings: list[str]) -> list[Block]:
    """Part each block by the order of its computes on each worker."""
    parted = [part for block in blocks for part in _part(block)]
    if len(parted) > len(blocks):
        listed = "; ".join(describe_steps(block.steps) for block in parted)
        warnings.append(f"the schedule changes between steps ({listed}); each is replayed as its own group")
    return parted


def _part(block: Block) -> list[Block]:
    """Part one block; as it is where all steps run in one order, or each in its own."""
    computes = of_types(block.nodes.op, DIRECTIONS)
    start_s, end_s, stage = block.start_s[computes], block.end_s[computes], block.nodes.stage[computes]
    left = np.arange(len(block.steps))
    groups: list[Ints] = []
    while len(left):
        if len(groups) == MAX_ORDERS:
            return [block]
        differs = _differs(start_s, end_s, stage, left)
        groups.append(left[~differs])
        left = left[differs]
    return [block] if len(groups) == 1 else [block.take_steps(group) for group in groups]


def _differs(start_s: Seconds, end_s: Seconds, stage: Ints, steps: Ints) -> Bools:
    """Say which of some steps run in another order than the first of them: shape (len(steps),).

    Of two computes the later must have begun after the other's end: those that overlap have no order.
    """
    # Of one rank, that with the fewest lost rows: ranks differ in when they begin.
    lanes = start_s[:, steps[0], :]
    first = lanes[:, np.isfinite(lanes).sum(axis=0).argmax()]
    there: Bools = np.isfinite(first)
    order = np.lexsort((first, stage))
    order = order[there[order]]
    before, after = order[:-1], order[1:]
    on_one = stage[before] == stage[after]
    before, after = before[on_one], after[on_one]
    turned = end_s[np.ix_(after, steps)] <= start_s[np.ix_(before, steps)]
    n_turned = np.median(turned.sum(axis=0), axis=1)
    differs: Bools = np.asarray(n_turned > max(1.0, MAX_TURNED_SHARE * len(before)))
    differs[0] = False
    return differs
