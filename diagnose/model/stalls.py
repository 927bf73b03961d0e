"""Time in which computes stood still, or started late: how long, and what of."""

import dataclasses
import enum

import numpy as np
from numpy.typing import NDArray

from diagnose.model.trace import Seconds

Kinds = NDArray[np.int8]

#: Fewer stalls are chance.
MIN_STALLS = 3
#: In one step and on this part of the workers: planned.
TOGETHER_SHARE = 0.6


class StallKind(enum.IntEnum):
    """What a stall is attributed to."""

    NOBODY = 0
    COLLECTION = 1  #: garbage collection of Python
    ALLOCATION = 2  #: the memory allocator
    INPUT = 3  #: waiting for input data
    SAVING = 4  #: writing a checkpoint
    WORKER = 5  #: a worker that is slow anyway
    TOGETHER = 6  #: all workers in the same step: planned
    QUEUE = 7  #: communication in flight
    PLANNED = 8  #: evaluation, logging and other work of all workers at regular intervals
    OTHER = 9  #: work of a type that the format does not name


@dataclasses.dataclass(frozen=True, slots=True)
class Stalls:
    """Seconds in computes, or before them, that their work does not explain.

    All arrays have shape (2, n_virtual, n_microbatches, n_steps, n_dp), axes as in `Breakdown`.
    """

    #: Seconds by which a compute was longer than its work, where they stand out; 0 elsewhere.
    inside_s: Seconds
    #: Seconds by which it started later than all that it waits for, beyond the ordinary.
    before_s: Seconds
    #: `inside`, `before`: what of: a `StallKind` where there is a stall.
    inside: Kinds
    before: Kinds
    #: `recorded_inside`, `recorded_before`: True where an evidence row says so.
    recorded_inside: NDArray[np.bool_]
    recorded_before: NDArray[np.bool_]

    def seconds_of(self, kind: StallKind) -> Seconds:
        """Give the stalls of one kind, inside and before together; seconds, 0 elsewhere."""
        found = np.zeros(self.inside_s.shape)
        for kinds, seconds in ((self.inside, self.inside_s), (self.before, self.before_s)):
            of_kind = kinds == kind
            if of_kind.any():  # most jobs have few kinds, and few stalls of each
                at = np.flatnonzero(of_kind)
                found.reshape(-1)[at] += seconds.reshape(-1)[at]
        return found
