"""Pauses of the memory allocator: workers whose memory is nearly full stop, in backwards too."""

import numpy as np
from numpy.typing import NDArray

from diagnose.model.components import Traits
from diagnose.model.stalls import StallKind, Stalls
from diagnose.model.trace import Bools
from diagnose.whatif.components.attribution import (
    MAX_QUIET_RATIO,
    MIN_STALLS,
    TINY_S,
    LongStalls,
    more_than_chance,
    rate,
)
from diagnose.whatif.components.component import Component, Part

#: Workers on whose backwards stalls are so many times as frequent as on a usual worker have a bad allocator.
ALLOCATOR_RATE_RATIO = 3.0
#: Workers that share an allocator's trouble without being a whole stage, at most.
MAX_MARKED_WORKERS = 64
#: Lengths of stalls are compared in levels, so many for each doubling; so many times as many forwards as
#: backwards are not the allocator's.
LEVELS_A_DOUBLING = 1
FORWARD_RATIO = 3.0
#: Without a fixed subset, stalls in backwards are so many of those in forwards.
EVERYWHERE_SHARE = 0.2


def attribute_to_allocator(found: LongStalls) -> None:
    """Attribute stalls on workers whose backwards stall, too, to the allocator; collections never stop a backward."""
    long, there, share, n_stages = found.long, found.there, found.share, found.n_stages
    n_virtual, _, _, n_dp = long.shape[1:]
    shape = (n_virtual // n_stages, n_stages)
    backward = long[1].sum(axis=(1, 2)).reshape(*shape, n_dp).sum(axis=0)  # (n_stages, n_dp)
    exists = there[1].sum(axis=(1, 2)).reshape(*shape, n_dp).sum(axis=0)
    forward = long[0].sum(axis=(1, 2)).reshape(*shape, n_dp).sum(axis=0)
    total = int(backward.sum())
    if total < MIN_STALLS:
        return
    marked = _find_subset(backward, exists)
    if not marked.any():
        # No subset: everywhere, if backwards stall about as often as forwards, and by more than they vary.
        beyond = int((long[1] & (share[1] > MAX_QUIET_RATIO)).sum())
        if beyond < max(MIN_STALLS, EVERYWHERE_SHARE * float(forward.sum())):
            return
        marked[:] = True
    mask = np.tile(marked, (shape[0], 1))[:, None, None, :]
    at = long & mask[None]
    # Where forwards elsewhere start late as often, or stand still as often, collections do so here, too.
    for alike in found.late_or_long():
        kind = long[0] & alike[0]
        here, elsewhere = rate(kind & mask, there[0] & mask), rate(kind & ~mask, there[0] & ~mask)
        if here <= 2.0 * elsewhere:
            at[0] &= ~kind
    if at[0].any():
        at[0] &= _as_long_as_backwards(at, found.stalls)
    found.assign(at, StallKind.ALLOCATION)


def _find_subset(stalled: NDArray[np.int64], there: NDArray[np.int64]) -> Bools:
    """Mark the stages, and workers, whose backwards stall far more often than those of all that are not marked.

    Counts have shape (n_stages, n_dp).
    """
    marked = np.zeros(stalled.shape, dtype=bool)
    of_stage, n_of_stage = stalled.sum(axis=1), there.sum(axis=1)
    order = np.argsort(-of_stage, kind="stable")
    # As many as there are, together against the rest: where half of the stages stall, none does far more often than all others.
    # More than half have no full memory: it gets emptier from stage to stage.
    for n_marked in range(len(order) // 2 + len(order) % 2, 0, -1) if len(order) > 1 else ():
        rest, least = order[n_marked:], order[n_marked - 1]
        rate = (float(of_stage[rest].sum()) + 0.5) / max(float(n_of_stage[rest].sum()), 1.0)
        if more_than_chance(int(of_stage[least]), int(n_of_stage[least]), rate, ALLOCATOR_RATE_RATIO):
            marked[order[:n_marked]] = True
            return marked
    # Not a whole stage: single workers, most stalled first.
    for worker in np.argsort(-stalled, axis=None, kind="stable")[:MAX_MARKED_WORKERS].tolist():
        mask = np.zeros(marked.shape, dtype=bool)
        mask.flat[worker] = True
        others = ~(marked | mask)
        rate = (float(stalled[others].sum()) + 0.5) / max(float(there[others].sum()), 1.0)
        if not (
            others.any()
            and more_than_chance(int(stalled[mask].sum()), int(there[mask].sum()), rate, ALLOCATOR_RATE_RATIO)
        ):
            break
        marked = marked | mask
    return marked


def _as_long_as_backwards(at: Bools, stalls: Stalls) -> Bools:
    """Mark the forward stalls of a length that backward stalls have, too; longer or shorter ones are somebody else's.

    Shape (n_virtual, n_microbatches, n_steps, n_dp).
    """
    seconds = np.maximum(stalls.inside_s + stalls.before_s, TINY_S)
    level = np.floor(LEVELS_A_DOUBLING * np.log2(seconds))
    backward = level[1][at[1]]
    if not len(backward):
        return np.zeros(at[0].shape, dtype=bool)
    levels, forward_n = np.unique(level[0][at[0]], return_counts=True)
    # Neighbouring levels help: a handful of stalls falls on few of them.
    near = np.array([float((np.abs(backward - one) <= 1).sum()) / 2.0 for one in levels])
    too_many = levels[forward_n > FORWARD_RATIO * (near + 1.0)]
    return ~np.isin(level[0], too_many)


COMPONENT = Component(
    "malloc-pause",
    Part,
    inside=StallKind.ALLOCATION,
    before=StallKind.ALLOCATION,
    traits=Traits(stall_kind=StallKind.ALLOCATION),
)
