"""When something is there, and the change points that say so."""

import dataclasses

from diagnose.model.cause import When


@dataclasses.dataclass(frozen=True, slots=True)
class Change:
    """A step from which on a series is on another level; `chance` is that of a permuted series to change as much."""

    step: int
    before: float
    after: float
    chance: float


@dataclasses.dataclass(frozen=True, slots=True)
class Course:
    """When something is there, the change points that say so, and, of what comes and goes, the steps that have it."""

    when: When
    changes: tuple[Change, ...] = ()
    steps: tuple[int, ...] = ()
