"""Whether a job is slower than it used to be, though no cause in it says why: all of it slows down alike.

Enters: the step time of one window after the other, without what its causes cost. Leaves: which part of it is more than usual.

Within a window nothing shows what slows every worker and every step alike: a power cap on all nodes, a slower driver. Only the
job's own history does. Steps that hold more work take longer for it, or, padded to one length, do not: slower is what is slower
both by the step and by its work. Where a step holds much more or less than before, the history begins anew.
"""

import statistics
from collections.abc import Sequence

from msgspec import Struct

#: Windows from which the usual pace is known, and the last so many of those without an episode that it is taken from.
MIN_WINDOWS = 5
OF_LAST = 100
#: Spread of the usual pace, in standard deviations, that is no change.
N_DEVIATIONS = 4.0
#: Median absolute deviation to standard deviation, of a normal distribution.
MAD_TO_DEVIATION = 1.4826
#: Work that differs by more than this makes another pace: attention grows faster than the number of tokens.
WORK_RATIO = 1.1


class Paces(Struct, frozen=True, kw_only=True):
    """Windows in which the job ran as usual: step times, seconds, the gain of their largest cause, and the work of a step.

    Work is 1 everywhere where nobody knows it.
    """

    seconds: tuple[float, ...] = ()
    gains: tuple[float, ...] = ()
    works: tuple[float, ...] = ()

    @property
    def usual_gain(self) -> float:
        """What the largest cause of a window costs as a rule: the job always had it."""
        return statistics.median(self.gains) if self.gains else 0.0

    def excess(self, step_s: float, work: float | None) -> float | None:
        """Say which part of a step time is more than usual, 0 within the spread; None where nothing can be compared yet."""
        if len(self.seconds) < MIN_WINDOWS or self._differs(work):
            return None
        by_work = [seconds / work for seconds, work in zip(self.seconds, self.works, strict=True)]
        return min(_excess(step_s, self.seconds), _excess(step_s / (work or 1.0), by_work))

    def add(self, step_s: float, gain: float, work: float | None) -> "Paces":
        """Take a window in which the job ran as usual; where the work is another, the history begins anew."""
        if self._differs(work):
            return Paces(seconds=(step_s,), gains=(gain,), works=(work or 1.0,))
        return Paces(
            seconds=(*self.seconds, step_s)[-OF_LAST:],
            gains=(*self.gains, gain)[-OF_LAST:],
            works=(*self.works, work or 1.0)[-OF_LAST:],
        )

    def _differs(self, work: float | None) -> bool:
        """Say whether a step holds much more or less than in the history."""
        usual = statistics.median(self.works) if self.works else work or 1.0
        return max(usual, work or 1.0) > WORK_RATIO * min(usual, work or 1.0)


def _excess(pace: float, usual: Sequence[float]) -> float:
    """Say which part of a pace is more than the usual one, 0 where it is within its spread."""
    middle = statistics.median(usual)
    spread = MAD_TO_DEVIATION * statistics.median(abs(one - middle) for one in usual)
    return max(1.0 - middle / pace, 0.0) if pace - middle > N_DEVIATIONS * spread else 0.0
