"""What a fix proposes for one job, before and after it is priced."""

import dataclasses
from collections.abc import Mapping

from diagnose.model.cause import When
from diagnose.model.change import Change, Price
from diagnose.model.components import Components, Gains
from diagnose.model.course import Course
from diagnose.model.feature import Features
from diagnose.model.place import Where
from diagnose.model.trace import Trace
from diagnose.model.transfers import Transfers


@dataclasses.dataclass(frozen=True, slots=True)
class Situation:
    """A measured job, as a fix sees it.

    Attributes
    ----------
    trace : Trace
    components : Components
    gains : Gains
    transfers : Transfers
    features : Features
    courses : dict of str to Course
        Since when each component costs time.
    price : callable
        Replays the job with some changes: seconds a step, shape (n_steps,). Costs one replay.
    sample : callable
        The same on an even sample of the steps of a large job, for searches: compare with `sample([])` only.
    """

    trace: Trace
    components: Components
    gains: Gains
    transfers: Transfers
    features: Features
    courses: Mapping[str, Course]
    price: Price
    sample: Price


@dataclasses.dataclass(frozen=True, slots=True)
class Place:
    """Where and when the cause sits that a fix is to mend, by the labels of the file; all empty: wherever it is found."""

    where: Where = dataclasses.field(default_factory=Where)
    when: When = dataclasses.field(default_factory=When)


@dataclasses.dataclass(frozen=True, slots=True)
class Remedy:
    """What to change, and what of it a replay can know.

    Attributes
    ----------
    summary : str
        One line: what to do, with its place and numbers.
    how : str
        Flags and environment for the job's framework, or for all known ones where that is not said.
    changes : tuple of Change
        What the replay is told.
    settings : dict of str to str
        As `--fix NAME:key=value` would give them, resolved.
    assumptions, risks : tuple of str
        What the prediction takes for granted; what may go wrong or cost elsewhere.
    figures : dict of str to float or None
        Numbers worth knowing beside the step time, by name with the unit at its end (`break_even_steps`).
    """

    summary: str
    how: str
    changes: tuple[Change, ...]
    settings: Mapping[str, str] = dataclasses.field(default_factory=dict)
    assumptions: tuple[str, ...] = ()
    risks: tuple[str, ...] = ()
    figures: Mapping[str, float | None] = dataclasses.field(default_factory=dict)


@dataclasses.dataclass(frozen=True, slots=True)
class Refusal:
    """Why a fix is not for this job; `obvious` where nobody would expect it to be: a report leaves that out."""

    reason: str
    obvious: bool = False
