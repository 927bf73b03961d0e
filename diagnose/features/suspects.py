"""Which workers, cards, links and stages stand out."""

import numpy as np

from diagnose.features.members import find_late_members
from diagnose.features.stages import long_stages
from diagnose.features.workers import slow_workers
from diagnose.model.analysis import Suspects
from diagnose.model.components import Breakdown
from diagnose.model.trace import Bools, Trace
from diagnose.model.transfers import SlowPlaces, Transfers


def find_suspects(trace: Trace, breakdown: Breakdown, transfers: Transfers) -> Suspects:
    """Find the places that stand out in the times of a job."""
    slow = transfers.slow or SlowPlaces.nowhere(trace.n_stages, trace.n_dp)
    return Suspects(
        workers=slow_workers(breakdown),
        late_members=find_late_members(trace, breakdown),
        cards=_list_true(slow.cards),
        ways=[] if slow.in_time else list_ways(slow),
        rings=slow.rings,
        groups=[] if slow.in_time and len(slow.groups) > 1 else list_groups(slow),
        long_stages=long_stages(breakdown, trace.n_stages) if trace.n_stages > 1 else (),
    )


def list_ways(slow: SlowPlaces) -> list[tuple[int, int, int]]:
    """List the slow links that no slow card has, (direction, stage index, dp index): 0 forwards, 1 backwards, 2 both."""
    cards, n_stages = slow.cards.T, slow.cards.shape[1]  # (n_stages, n_dp)
    free = slow.ways & ~(cards | np.roll(cards, -1, axis=0))
    both = np.asarray(free.all(axis=0))
    found = [(2, stage, dp) for stage, dp in _list_true(both)]
    found += [(way, stage, dp) for way, stage, dp in np.argwhere(free & ~both).tolist()]
    return sorted(found, key=lambda at: (at[2], at[1], at[0])) if n_stages > 1 else []


def list_groups(slow: SlowPlaces) -> list[int]:
    """List the stages whose collectives are slow, and where neither a card nor a link of their ring is."""
    of_rings = [stage for stage, _, _ in slow.rings]
    return [stage for stage in np.flatnonzero(slow.groups & ~slow.cards.any(axis=0)).tolist() if stage not in of_rings]


def _list_true(mask: Bools) -> list[tuple[int, int]]:
    """List where a mask of two axes is true."""
    return [(int(a), int(b)) for a, b in np.argwhere(mask)]
