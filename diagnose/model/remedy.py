"""What a fix proposes for one job, before and after it is priced."""

import dataclasses
from collections.abc import Mapping

from diagnose.model.cause import When
from diagnose.model.change import Change
from diagnose.model.place import Where


@dataclasses.dataclass(frozen=True, slots=True)
class FaultLocation:
    """Where and when the fault sits that a fix is to mend, by the labels of the file; all empty: wherever it is found."""

    where: Where = dataclasses.field(default_factory=Where)
    when: When = dataclasses.field(default_factory=When)


@dataclasses.dataclass(frozen=True, slots=True)
class NamedFix:
    """A fix that a rule, or a user, names; `summary` and `how` are used where no file of `fixes` has that fix."""

    fix: str
    summary: str = ""
    how: str = ""
    settings: Mapping[str, str] = dataclasses.field(default_factory=dict)


@dataclasses.dataclass(frozen=True, slots=True)
class CauseToFix:
    """A cause that was found, what it costs, where it sits, and the fixes that its rule names.

    One that is hidden gives nothing back before others are gone, and so do its fixes.
    """

    cause: str
    components: tuple[str, ...]
    place: FaultLocation
    fixes: tuple[NamedFix, ...]
    is_hidden: bool = False


@dataclasses.dataclass(frozen=True, slots=True)
class Remedy:
    """What to change, and what of it a replay can know."""

    #: One line: what to do, with its place and numbers.
    summary: str
    #: Flags and environment for the job's framework, or for all known ones where that is not said.
    how: str
    #: What the replay is told.
    changes: tuple[Change, ...]
    #: As `--fix NAME:key=value` would give them, resolved.
    settings: Mapping[str, str] = dataclasses.field(default_factory=dict)
    #: `assumptions`, `risks`: what the prediction takes for granted; what may go wrong or cost elsewhere.
    assumptions: tuple[str, ...] = ()
    risks: tuple[str, ...] = ()
    #: Numbers worth knowing beside the step time, by name with the unit at its end (`break_even_steps`).
    figures: Mapping[str, float | None] = dataclasses.field(default_factory=dict)


@dataclasses.dataclass(frozen=True, slots=True)
class Refusal:
    """Why a fix is not for this job; `obvious` where nobody would expect it to be: a report leaves that out."""

    reason: str
    obvious: bool = False
