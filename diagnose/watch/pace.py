"""How long the steps of a job usually take, and whether a window's take longer.

Enters: the step time of one window after the other. Leaves: what is usual, and which part of a step time is more than that.

Within a window nothing shows what slows every worker and every step alike: a power cap on all nodes, a slower driver. Only the
job's own history does. Nor does a window show whether its slowest worker got slower or another one faster: a fault is only what
lengthens steps. Steps that hold more work take longer for it, or, padded to one length, do not: slower is what is slower both by
the step and by its work. Where a step holds much more or less than before, the history begins anew.
"""

import statistics
from collections.abc import Mapping, Sequence

from msgspec import Struct

from diagnose.numerics.robust import MAD_TO_SIGMA

#: Windows from which the usual pace is known, and the last so many of those without an episode that it is taken from.
MIN_WINDOWS = 5
OF_LAST = 100
#: Spread of the usual pace, in standard deviations, that is no change.
N_DEVIATIONS = 4.0
#: Work that differs by more than this makes another pace: attention grows faster than the number of tokens.
WORK_RATIO = 1.1
#: A part of a step is named where it takes more than this part of what steps are longer by.
MOST = 0.6


class Pace(Struct, frozen=True):
    """A window in which the job ran as usual."""

    #: `step_s`, `work`: seconds of a step, and what it holds; 1 where nobody knows that.
    step_s: float
    work: float = 1.0
    #: What each cause costs, as a part of the step time.
    gains: Mapping[str, float] = {}
    #: Seconds of each part of a step, as its `Budget` has them; empty where nobody knows.
    parts_s: Mapping[str, float] = {}


class Paces(Struct, frozen=True, kw_only=True):
    """Windows in which the job ran as usual, oldest first."""

    usual: tuple[Pace, ...] = ()

    def usual_gain(self, cause: str) -> float:
        """What a cause costs as a rule: the job always had it."""
        return statistics.median(one.gains.get(cause, 0.0) for one in self.usual) if self.usual else 0.0

    def usual_s(self, work: float | None) -> float | None:
        """Say how long a step takes as a rule, or took of late where that is less, seconds; None where that is not known yet."""
        if len(self.usual) < MIN_WINDOWS or self._differs(work):
            return None
        return min(
            statistics.median(paces)
            for usual in (self.usual, self.usual[-MIN_WINDOWS:])
            for paces in ([one.step_s for one in usual], [one.step_s / one.work * (work or 1.0) for one in usual])
        )

    def excess(self, step_s: float, work: float | None) -> float | None:
        """Say which part of a step time is more than usual, 0 within the spread; None where nothing can be compared yet."""
        if len(self.usual) < MIN_WINDOWS or self._differs(work):
            return None
        by_step, by_work = [one.step_s for one in self.usual], [one.step_s / one.work for one in self.usual]
        return min(_excess(step_s, by_step), _excess(step_s / (work or 1.0), by_work))

    def find_longer(self, now: Pace) -> str | None:
        """Name the part of a step that most of what it is longer by is in; None where there is no such part."""
        if not self.usual:
            return None
        rises_s = {
            part: seconds - statistics.median(one.parts_s.get(part, 0.0) for one in self.usual)
            for part, seconds in now.parts_s.items()
        }
        rise_s = now.step_s - statistics.median(one.step_s for one in self.usual)
        longest = max(rises_s, key=lambda part: rises_s[part], default=None)
        return longest if longest is not None and rises_s[longest] > MOST * rise_s > 0 else None

    def add(self, now: Pace) -> "Paces":
        """Take a window in which the job ran as usual; where the work is another, the history begins anew."""
        usual = () if self._differs(now.work) else self.usual
        return Paces(usual=(*usual, now)[-OF_LAST:])

    def _differs(self, work: float | None) -> bool:
        """Say whether a step holds much more or less than in the history."""
        usual = statistics.median(one.work for one in self.usual) if self.usual else work or 1.0
        return max(usual, work or 1.0) > WORK_RATIO * min(usual, work or 1.0)


def _excess(pace: float, usual: Sequence[float]) -> float:
    """Say which part of a pace is more than the usual one, 0 where it is within its spread."""
    return max(1.0 - statistics.median(usual) / pace, 0.0) if pace > highest_usual(usual) else 0.0


def highest_usual(usual: Sequence[float]) -> float:
    """Say up to where a pace is no change: the median and its spread.

    >>> highest_usual([1.0, 1.0, 1.2]), round(highest_usual([1.0, 1.1, 1.2]), 2)
    (1.0, 1.69)
    """
    middle = statistics.median(usual)
    return middle + N_DEVIATIONS * MAD_TO_SIGMA * statistics.median(abs(one - middle) for one in usual)
