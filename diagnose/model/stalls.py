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

    def of_kind(self, kind: StallKind) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
        """Mark the stalls of one kind, inside and before."""
        number = int(kind)  # with a member of an enumeration it takes ten times as long
        return self.inside == number, self.before == number

    def told_of(self, kind: StallKind) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
        """Mark those of one kind of which an evidence row says so."""
        inside, before = self.of_kind(kind)
        return inside & self.recorded_inside, before & self.recorded_before

    def seconds_of(self, kind: StallKind) -> Seconds:
        """Give the stalls of one kind, inside and before together; seconds, 0 elsewhere."""
        return self._seconds_at(*self.of_kind(kind))

    def told_seconds_of(self, kind: StallKind) -> Seconds:
        """Give those of one kind of which an evidence row says so."""
        return self._seconds_at(*self.told_of(kind))

    def _seconds_at(self, inside: NDArray[np.bool_], before: NDArray[np.bool_]) -> Seconds:
        """Give the stalls at some places; not to be written to where there are none."""
        found = np.broadcast_to(0.0, self.inside_s.shape)
        for of_kind, seconds in ((inside, self.inside_s), (before, self.before_s)):
            if of_kind.any():  # most jobs have few kinds, and few stalls of each
                at = np.flatnonzero(of_kind)
                found = found if found.flags.writeable else np.zeros(found.shape)
                found.reshape(-1)[at] += seconds.reshape(-1)[at]
        return found
