"""Time in which computes stood still, or started late: how long, and what of."""

import dataclasses
import enum

import numpy as np
from numpy.typing import NDArray

from diagnose.model.optype import of_types
from diagnose.model.trace import Bools, Ints, Seconds
from diagnose.numerics.period import find_even
from diagnose.numerics.robust import weighted_median

Kinds = NDArray[np.int8]

#: Fewer stalls are chance.
MIN_STALLS = 3
#: In one step and on this part of the workers: planned.
TOGETHER_SHARE = 0.6
#: Stalls shorter than this part of the length in which half of the time is lost are those of something else, and so are those of
#: workers that lose less than this part of what another does.
LONG_SHARE = 0.1


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


#: Stops of a process and transfers that they hold up differ by less than this; those that no row names, whatever they look like,
#: are of one or two workers that have so much of them.
AS_LONG_RATIO, MOSTLY_SHARE = 1.5, 0.75
UNTOLD = (StallKind.NOBODY, StallKind.COLLECTION, StallKind.ALLOCATION)


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


def find_counted(stalls: Stalls, steps: Ints, n_stages: int) -> Bools:
    """Mark the workers that pause every so many forwards, whichever microbatch comes then: as what fills up does, each on its own.

    By collections, and what nothing is attributed to, but for what is far shorter. A loader whose processes take turns keeps step
    on all ranks, and where a rank's inputs and labels are read. Shape (n_stages, n_dp); nobody where chunks take turns.
    """
    _, n_virtual, n_forwards, _, n_dp = stalls.inside.shape
    if n_virtual > n_stages:
        return np.zeros((n_stages, n_dp), dtype=bool)
    forward_s = np.zeros(stalls.inside_s[0].shape)
    for seconds, kinds in ((stalls.inside_s[0], stalls.inside[0]), (stalls.before_s[0], stalls.before[0])):
        forward_s += np.where(of_types(kinds, (StallKind.NOBODY, StallKind.COLLECTION)), seconds, 0.0)
    lengths = forward_s[forward_s > 0]
    forward_s[forward_s <= LONG_SHARE * (weighted_median(lengths, lengths) or 0.0)] = 0.0
    in_time = np.argsort(steps, kind="stable")
    numbers = (steps[in_time][:, None] * n_forwards + np.arange(n_forwards)).ravel()
    by_worker = forward_s[:, :, in_time].transpose(0, 3, 2, 1).reshape(n_stages * n_dp, -1)
    period, phase = (of.reshape(n_stages, n_dp) for of in find_even(numbers, by_worker))
    counted = (period % n_forwards > 0) & (n_forwards % np.maximum(period, 1) > 0)
    # Where most do so, one whose count is as many as a step has, or twice, does too, but for the first of a step.
    in_place = (period > 0) & ~counted & (phase % n_forwards > 0)
    counted |= in_place & (counted.sum() > in_place.sum())
    own = np.where(counted, period * (period.max(initial=0) + 1) + phase, -1 - np.arange(n_stages)[:, None])
    alike, of_rank = np.unique(own[counted], return_counts=True)[1], np.sort(own, axis=0)
    n_ends = 2 * int(np.count_nonzero(of_rank[1:] == of_rank[:-1]))
    n_alike = max(int(alike.max(initial=0)), n_ends)
    return np.zeros_like(counted) if 2 * n_alike > max(int(counted.sum()), 2) else counted
