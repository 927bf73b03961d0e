"""The slowdown of a job by step since its start, in so many points whatever its length.

Enters: the steps of one window after the other. Leaves: a curve that is thinned as it grows; a point is the mean of as many steps.
"""

import math
from collections.abc import Sequence

from msgspec import Struct

#: Points of a curve at most; half as many after it was thinned.
MOST_POINTS = 512


class Curve(Struct, frozen=True, kw_only=True):
    """Points of so many steps each, oldest first; the last one may be of fewer."""

    #: The first step of each point.
    steps: tuple[int, ...] = ()
    #: `sums`, `counts`: of the slowdowns that are known, and of the steps of each point.
    sums: tuple[float, ...] = ()
    known: tuple[int, ...] = ()
    counts: tuple[int, ...] = ()
    #: Steps of a whole point.
    n_each: int = 1

    def add(self, steps: Sequence[int], slowdowns: Sequence[float | None]) -> "Curve":
        """Add steps.

        >>> Curve().add([1, 2], [1.0, None]).add([3], [1.5]).slowdowns()
        (1.0, None, 1.5)
        """
        at, sums, known, counts = list(self.steps), list(self.sums), list(self.known), list(self.counts)
        for step, slowdown in zip(steps, slowdowns, strict=True):
            if not counts or counts[-1] >= self.n_each:
                at.append(step)
                sums.append(0.0)
                known.append(0)
                counts.append(0)
            is_known = slowdown is not None and math.isfinite(slowdown)
            sums[-1] += slowdown if slowdown is not None and is_known else 0.0
            known[-1] += is_known
            counts[-1] += 1
        curve = Curve(steps=tuple(at), sums=tuple(sums), known=tuple(known), counts=tuple(counts), n_each=self.n_each)
        return curve if len(at) <= MOST_POINTS else curve._thin()

    def slowdowns(self) -> tuple[float | None, ...]:
        """Give the mean of each point; None where none of its steps is known."""
        return tuple(total / n if n else None for total, n in zip(self.sums, self.known, strict=True))

    def _thin(self) -> "Curve":
        """Make one point of two."""
        at = range(0, len(self.steps), 2)
        return Curve(
            steps=self.steps[::2],
            sums=tuple(sum(self.sums[i : i + 2]) for i in at),
            known=tuple(sum(self.known[i : i + 2]) for i in at),
            counts=tuple(sum(self.counts[i : i + 2]) for i in at),
            n_each=2 * self.n_each,
        )
