"""What the components that own stalls share: stalls of one size that nothing was attributed to yet, and chance.

Enters: stalls and the computes that they lie in. Leaves: kinds of stalls, in place.
"""

import dataclasses
from collections.abc import Sequence

import numpy as np

from diagnose.model.stalls import MIN_STALLS, StallKind, Stalls
from diagnose.model.trace import Bools, Ints, Seconds
from diagnose.whatif.computes import Place

#: Ordinary variation is never more than this part of the operation: no compute varies so much by itself.
MAX_QUIET_RATIO = 0.35
#: A collection stops a worker at most about once a step; more than so many stalls a step are something else.
MAX_COLLECTIONS_A_STEP = 0.5
#: A loader that is late before every forward stalls a worker so many times in the steps in which it does.
MANY_A_STEP = 1.4
#: Expected by chance from the other workers, the number found must be this many standard deviations above.
CHANCE_DEVIATIONS = 4.0
#: ... or it happens with less than this probability (as for onsets, prototype).
CHANCE = 0.02
TINY_S = 1e-12
#: Parts by which computes are longer are alike up to such a factor.
LIKE_RATIO = 1.5


@dataclasses.dataclass(frozen=True, slots=True)
class LongStalls:
    """Stalls that stand out and are of one size, to be attributed."""

    #: All stalls of the job; the kinds are filled in.
    stalls: Stalls
    #: `long`, `there`: shape (2, n_virtual, n_microbatches, n_steps, n_dp): which computes have such a stall, and which there
    #: are.
    long: Bools
    there: Bools
    #: Same shape: stalled seconds over the seconds of work, and these, NaN where there is no compute.
    share: Seconds
    work_s: Seconds
    n_stages: int
    #: Shape (n_steps,).
    steps: Ints
    #: Backwards and weight gradients, each with the forward that its worker runs right
    #: before it, in some steps.
    follow: Sequence[tuple[slice, Place, Place]]
    #: Whether any worker reads data; None where nobody says.
    reads_input: bool | None = None
    #: The virtual stage that ends the model; -1: the last one.
    last: int = -1
    #: Shape (n_virtual, n_steps, n_dp): the worker has met others in a collective of this step before its first forward.
    begun: Bools | None = None

    @property
    def in_time(self) -> Ints:
        """Put the steps in time."""
        return np.argsort(self.steps, kind="stable")

    def assign(self, at: Bools, kind: StallKind) -> None:
        """Attribute the stalls at some places, where nothing was attributed to them yet."""
        assign(self.stalls, at, kind)

    def reached_by(self, forward: Bools, *, alike: bool = True) -> Bools:
        """Mark the long backwards right after some forwards: a pause that begins in the one may end in the other.

        It splits anyhow. Not those that are longer by a part like their forward's, as on a slow machine, if `alike` is False.
        Forwards have shape (n_virtual, n_microbatches, n_steps, n_dp), backwards one more axis in front: all other directions.
        """
        found = np.zeros(self.long[1:].shape, dtype=bool)
        for steps, (direction, virtual, microbatch), before in self.follow:
            reached = forward[(*before[1:], steps)]
            if not alike:
                part, part_before = self.share[direction, virtual, microbatch, steps], self.share[(*before, steps)]
                reached = reached & ~((part < LIKE_RATIO * part_before) & (part_before < LIKE_RATIO * part))
            found[direction - 1, virtual, microbatch, steps] = reached
        return np.asarray(found & self.long[1:])

    def late_or_long(self, *place: int) -> tuple[Bools, Bools]:
        """Mark the computes at a place that mostly start late, and those that mostly stand still, by what is not attributed yet."""
        stalls = self.stalls
        before_s, inside_s = (
            np.where(kinds[place] == 0, seconds[place], 0.0)
            for seconds, kinds in ((stalls.before_s, stalls.before), (stalls.inside_s, stalls.inside))
        )
        return before_s > inside_s, before_s <= inside_s


def assign(stalls: Stalls, at: Bools, kind: StallKind) -> None:
    """Attribute the stalls at some places, where nothing was attributed to them yet."""
    places = np.flatnonzero(at)  # mostly few
    for seconds, kinds in ((stalls.inside_s, stalls.inside), (stalls.before_s, stalls.before)):
        np.put(kinds, places[(seconds.take(places) > 0) & (kinds.take(places) == 0)], kind)


def rate(stalled: Bools, there: Bools) -> float:
    """Say how frequent stalls are among the computes that there are."""
    return float(np.count_nonzero(stalled)) / max(float(np.count_nonzero(there)), 1.0)


def more_than_chance(found: int, n: int, rate: float, ratio: float) -> bool:
    """Say whether so many of n are far more than a rate explains."""
    expected = rate * n
    return found >= MIN_STALLS and found > ratio * expected and found > expected + CHANCE_DEVIATIONS * np.sqrt(expected)
