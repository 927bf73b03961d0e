"""Pauses for garbage collection: Python stops one worker in a forward now and then."""

import numpy as np

from diagnose.model.components import Traits
from diagnose.model.stalls import StallKind, Stalls, find_counted
from diagnose.model.trace import Bools
from diagnose.numerics.robust import weighted_median
from diagnose.whatif.components.attribution import MAX_COLLECTIONS_A_STEP, LongStalls, more_than_chance
from diagnose.whatif.components.component import Component, Part

#: Forwards stall so many times as often as backwards where collections stop them: noise stops both, and a long pause sometimes
#: reaches into the backward that follows.
FORWARD_RATE_RATIO = 3.0
#: Waits for input are as long as collections but for such a factor, and these cost so much of what they cost.
ALIKE_RATIO, MUCH_SHARE = 1.5, 0.5
#: A worker collects in this part of the steps at most.
MOST_STEPS_SHARE = 0.75


def attribute_to_collection(found: LongStalls) -> None:
    """Attribute what is left in forwards to collections, on workers where it is no more frequent, or comes by a count.

    Where backwards stall as well, by as many seconds, forwards must do so far more often than chance explains, or on single stages.
    Backwards right after such a forward, or after one that is known to collect, do not count, and go with it.
    """
    long, there, n_stages = found.long, found.there, found.n_stages
    n_virtual, n_steps, n_dp = long.shape[1], *long.shape[3:]
    # A worker may collect twice in a step: the step counts once.
    in_step = long[0].any(axis=1).reshape(n_virtual // n_stages, n_stages, n_steps, n_dp).any(axis=0)
    sparse = in_step.sum(axis=1) <= MAX_COLLECTIONS_A_STEP * max(n_steps, 1)  # (n_stages, n_dp)
    if not sparse.all():
        sparse |= find_counted(found.stalls, found.steps, n_stages)
    mask = np.tile(sparse, (n_virtual // n_stages, 1))[:, None, None, :]
    at = long & mask[None]
    collects = np.logical_or(*found.stalls.of_kind(StallKind.COLLECTION))
    reached = found.reached_by(at[0] | collects[0])
    at[1:] &= ~reached
    exists = there & mask
    # Beside longer collections shorter stalls are none that are few, in backwards, too, or mostly where they are frequent.
    known = bool(collects.any())
    if known and 2 * at[0].sum() < long[0].sum():
        return
    if (known or at[1:].any()) and not _is_forwards_alone(at, exists):
        # Something stalls both directions; on stages where it does not, forwards may still be collections.
        for stage in range(n_stages):
            of_stage = slice(stage, None, n_stages)
            at[0, of_stage] &= not known and _is_forwards_alone(at[:, of_stage], exists[:, of_stage])
    at[1:] = found.reached_by(at[0] | collects[0])
    found.assign(at, StallKind.COLLECTION)


def attribute_waits_to_collections(stalls: Stalls) -> None:
    """Attribute waits for input that are as long as collections, if these cost much beside them, to these, unless rows tell.

    One mechanism explains both: collections choose no microbatch, and some fall into the first forwards of steps. All lie within
    forwards, or all before them. Who waits in most steps has a loader that is late.
    """
    waits, pauses = (np.logical_or(*stalls.of_kind(kind)) for kind in (StallKind.INPUT, StallKind.COLLECTION))
    if not waits.any() or not pauses.any():
        return
    if (stalls.recorded_inside | stalls.recorded_before)[waits | pauses].any():
        return
    seldom: Bools = waits.any(axis=(0, 2)).mean(axis=1) <= MOST_STEPS_SHARE  # (n_virtual, n_dp)
    for seconds, kinds in ((stalls.inside_s, stalls.inside), (stalls.before_s, stalls.before)):
        theirs = (kinds == StallKind.INPUT) & seldom[None, :, None, None, :], kinds == StallKind.COLLECTION
        shorter_s, longer_s = sorted(weighted_median(seconds[at], seconds[at]) or 0.0 for at in theirs)
        # Many wait in one step: who waits longest is who counts.
        waited_s, collected_s = (
            float(np.where(at, seconds, 0.0).sum(axis=(0, 1, 2)).max(axis=-1).sum()) for at in theirs
        )
        if collected_s > MUCH_SHARE * waited_s and longer_s < ALIKE_RATIO * shorter_s:
            kinds[theirs[0]] = StallKind.COLLECTION


def _is_forwards_alone(stalled: Bools, there: Bools) -> bool:
    """Say whether forwards stall far more often than backwards; shape of both (2, n_virtual, n_microbatches, n_steps, n_dp).

    Several in one step of a virtual stage count once.
    """
    (forward, *backwards), (n_forward, *n_backwards) = (a.any(axis=2).sum(axis=(1, 2, 3)) for a in (stalled, there))
    usual = (float(sum(backwards)) + 0.5) / max(float(sum(n_backwards)), 1.0)
    return more_than_chance(int(forward), int(n_forward), usual, FORWARD_RATE_RATIO)


COMPONENT = Component(
    "gc-pause",
    Part,
    inside=StallKind.COLLECTION,
    before=StallKind.COLLECTION,
    traits=Traits(seldom=True, stall_kind=StallKind.COLLECTION),
)
