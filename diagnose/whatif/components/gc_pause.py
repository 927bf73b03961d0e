"""Pauses for garbage collection: Python stops one worker in a forward now and then."""

import numpy as np

from diagnose.model.components import Traits
from diagnose.model.stalls import StallKind
from diagnose.whatif.components.attribution import MAX_COLLECTIONS_A_STEP, LongStalls
from diagnose.whatif.components.component import Component, Part


def attribute_to_collection(found: LongStalls) -> None:
    """Attribute what is left in forwards to collections, on workers where it is no more frequent than they are."""
    long, n_stages = found.long, found.n_stages
    forward = long[0].any(axis=1)  # (n_virtual, n_steps, n_dp): one a step counts once
    n_virtual, n_steps, n_dp = forward.shape
    count = long[0].sum(axis=(1, 2)).reshape(n_virtual // n_stages, n_stages, n_dp).sum(axis=0)
    sparse = count <= MAX_COLLECTIONS_A_STEP * max(n_steps, 1)  # (n_stages, n_dp)
    mask = np.tile(sparse, (n_virtual // n_stages, 1))[:, None, None, :]
    at = long & mask[None]
    at[1] = False
    found.assign(at, StallKind.COLLECTION)


COMPONENT = Component(
    "gc-pause",
    Part,
    inside=StallKind.COLLECTION,
    before=StallKind.COLLECTION,
    traits=Traits(seldom=True, stall_kind=StallKind.COLLECTION),
)
