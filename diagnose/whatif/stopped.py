"""Find the process that something stops now and then: in computes of either direction, and as long in what it sends.

Enters: observed blocks, stalls, and what transfers take beyond ordinary ones. Leaves: the stalls of that worker as its own, in
place, and for how long its transfers stood still. An allocator holds up no message, a link no compute, a collection no backward:
what holds up all of these, now one and, in other steps, another, stops the process, as whatever else its host runs may.
"""

from collections.abc import Mapping, Sequence

import numpy as np

from diagnose.model.optype import of_types
from diagnose.model.stalls import AS_LONG_RATIO, MIN_STALLS, MOSTLY_SHARE, UNTOLD, StallKind, Stalls
from diagnose.model.trace import Bools, Seconds
from diagnose.numerics.robust import weighted_median
from diagnose.whatif.components.attribution import assign
from diagnose.whatif.computes import iterate_blocks
from diagnose.whatif.observed import Observed

#: Seconds that transfers stand still, of shape (n_steps, n_dp), by node, one dict a block.
_Frozen = tuple[dict[int, Seconds], ...]
#: One late transfer may be as long as stalls by chance.
LEAST_LATE = 2


def attribute_to_stopped(
    observed: Sequence[Observed], stalls: Stalls, excesses: Sequence[Mapping[int, Seconds]], n_stages: int
) -> _Frozen:
    """Attribute what stops one process to its worker, in place, and give for how long its transfers stood still with it.

    `excesses` are as `transfer_excess` has them, by block; so is what is given, empty where no process is so.
    """
    nothing = tuple(dict[int, Seconds]() for _ in observed)
    at, stage, dp = _find_stops(stalls, n_stages)
    if not at.any():
        return nothing
    stopped_s = (stalls.inside_s + stalls.before_s)[at]
    frozen, late_s, all_s = _find_late(observed, excesses, stage, dp)
    usual_s = weighted_median(stopped_s, stopped_s) or 0.0
    are_late = late_s * AS_LONG_RATIO > usual_s
    alone = are_late & ~at.any(axis=(0, 1, 2, 4))
    # Messages that are late in most steps are so by a slow link, or as processes take turns on a device.
    if alone.sum() < LEAST_LATE or 2 * are_late.sum() > len(are_late) or late_s.sum() < MOSTLY_SHARE * all_s.sum():
        return nothing
    # Computes take most of a step: who stops for longer in messages has a slow link besides.
    if float(np.median(late_s[alone])) >= AS_LONG_RATIO * usual_s or late_s.sum() >= AS_LONG_RATIO * stopped_s.sum():
        return nothing
    for kinds in (stalls.inside, stalls.before):
        kinds[at & of_types(kinds, UNTOLD)] = StallKind.NOBODY
    assign(stalls, at, StallKind.WORKER)
    return frozen


def _find_stops(stalls: Stalls, n_stages: int) -> tuple[Bools, int, int]:
    """Mark the long stalls of the one worker that has most of them, in both directions; with its stage and dp rank."""
    stalled_s = np.zeros(stalls.inside_s.shape)
    for seconds, kinds, told in (
        (stalls.inside_s, stalls.inside, stalls.recorded_inside),
        (stalls.before_s, stalls.before, stalls.recorded_before),
    ):
        stalled_s += np.where(of_types(kinds, UNTOLD) & ~told, seconds, 0.0)
    lengths = stalled_s[stalled_s > 0]
    long = stalled_s * AS_LONG_RATIO >= max(weighted_median(lengths, lengths) or 0.0, np.finfo(float).tiny)
    by_worker = np.where(long, stalled_s, 0.0).sum(axis=(0, 2, 3)).reshape(-1, n_stages, long.shape[-1]).sum(axis=0)
    stage, dp = (int(i) for i in np.unravel_index(int(by_worker.argmax()), by_worker.shape))
    at = np.zeros(long.shape, dtype=bool)
    at[:, stage::n_stages, ..., dp] = long[:, stage::n_stages, ..., dp]
    is_one = at.sum() >= MIN_STALLS and by_worker[stage, dp] >= MOSTLY_SHARE * by_worker.sum()
    return at & bool(is_one and at[0].any() and at[1:].any()), stage, dp


def _find_late(
    observed: Sequence[Observed], excesses: Sequence[Mapping[int, Seconds]], stage: int, dp: int
) -> tuple[_Frozen, Seconds, Seconds]:
    """Give what transfers with an end at a worker take too long, and the most of that, and of all, in each step."""
    frozen = tuple(dict[int, Seconds]() for _ in observed)
    n_steps = sum(len(o.block.steps) for o in observed)
    late_s, all_s = np.zeros((2, n_steps))
    for (steps, o), excess, of_block in zip(iterate_blocks(observed), excesses, frozen, strict=True):
        across_dp = o.graph.moves.across_dp[o.graph.starts_in]
        for node, seconds in excess.items():
            all_s[steps] = np.maximum(all_s[steps], seconds.max(axis=1))
            if stage in o.block.nodes.stage[o.graph.members_of(node)]:
                own = across_dp[node] | (np.arange(seconds.shape[1]) == dp)
                of_block[node] = np.where(own, seconds, 0.0)
                late_s[steps] = np.maximum(late_s[steps], of_block[node].max(axis=1))
    return frozen, late_s, all_s
