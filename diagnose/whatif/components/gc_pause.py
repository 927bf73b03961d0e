"""Pauses for garbage collection: Python stops one worker in a forward now and then."""

import numpy as np

from diagnose.model.components import Traits
from diagnose.model.stalls import StallKind
from diagnose.model.trace import Bools
from diagnose.whatif.components.attribution import MAX_COLLECTIONS_A_STEP, LongStalls, more_than_chance
from diagnose.whatif.components.component import Component, Part

#: Forwards stall so many times as often as backwards where collections stop them: noise stops both, and a long pause sometimes
#: reaches into the backward that follows.
FORWARD_RATE_RATIO = 3.0


def attribute_to_collection(found: LongStalls) -> None:
    """Attribute what is left in forwards to collections, on workers where it is no more frequent than they are.

    Where backwards stall as well, by as many seconds, forwards must do so far more often than chance explains, or on single stages.
    Backwards right after such a forward do not count, and go with it.
    """
    long, there, n_stages = found.long, found.there, found.n_stages
    n_virtual, n_steps, n_dp = long.shape[1], *long.shape[3:]
    # A worker may collect twice in a step: the step counts once.
    in_step = long[0].any(axis=1).reshape(n_virtual // n_stages, n_stages, n_steps, n_dp).any(axis=0)
    sparse = in_step.sum(axis=1) <= MAX_COLLECTIONS_A_STEP * max(n_steps, 1)  # (n_stages, n_dp)
    mask = np.tile(sparse, (n_virtual // n_stages, 1))[:, None, None, :]
    at = long & mask[None]
    reached = found.reached_by(at[0])
    at[1:] &= ~reached
    exists = there & mask
    # Beside longer collections shorter stalls are none that are few, in backwards, too, or mostly where they are frequent.
    known = any(of.any() for of in found.stalls.of_kind(StallKind.COLLECTION))
    if known and 2 * at[0].sum() < long[0].sum():
        return
    if (known or at[1:].any()) and not _is_forwards_alone(at, exists):
        # Something stalls both directions; on stages where it does not, forwards may still be collections.
        for stage in range(n_stages):
            of_stage = slice(stage, None, n_stages)
            at[0, of_stage] &= not known and _is_forwards_alone(at[:, of_stage], exists[:, of_stage])
    at[1:] = found.reached_by(at[0])
    found.assign(at, StallKind.COLLECTION)


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
