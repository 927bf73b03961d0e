"""What is lost to the causes that are named: the one base of what reports say a job loses, and of how much slower it is.

What is lost and has no name stays; the JSON's `clean` and `wasted` count it as lost.
"""

from collections.abc import Sequence
from typing import Protocol


def measure_named(lost: float, share: float, alone: float) -> float:
    """Give the part of the step time that is lost to what is named.

    By the shares of the lost time, and never less than the cause alone that gives back most.

    >>> measure_named(0.5, 0.6, 0.1), measure_named(0.5, 0.6, 0.4), measure_named(0.5, 0.6, 0.9)
    (0.3, 0.4, 0.5)
    """
    return min(max(lost * min(max(share, 0.0), 1.0), alone), lost)


class Priced(Protocol):
    """What is kept of a cause: its share of the lost time, and the part of the step time that comes back without it alone."""

    @property
    def share(self) -> float | None:
        """None where it is not known."""

    @property
    def recoverable(self) -> float | None:
        """None where it is not known."""


def measure_slower(lost: float, causes: Sequence[Priced], *, is_log: bool) -> float | None:
    """Say how many times as long steps are as without the causes; by a log, as at its good pace: without all that is lost."""
    share = 1.0 if is_log else sum(cause.share or 0.0 for cause in causes)
    left = 1.0 - measure_named(lost, share, max((cause.recoverable or 0.0 for cause in causes), default=0.0))
    return 1.0 / left if left > 0 else None
