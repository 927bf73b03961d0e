"""Jobs that the file of a cause brings along: clear ones, one for names and units, what looks like it, and its fixture.

Tests run over them: the fault of an example is found, alone, in its place and with its true gain; a job that looks like it is
healthy.
"""

import dataclasses
from typing import Any

from diagnose.faults.decoy import Decoy
from diagnose.faults.fault import Fault
from diagnose.faults.spec import JobSpec

#: A job in which most clear faults are made, and the same with transfers that do not block.
CLEAR = JobSpec(pp=4, dp=4, microbatches=8, steps=24, seed=71)
CLEAR_ASYNCHRONOUS = dataclasses.replace(CLEAR, p2p="asynchronous")
#: A job whose names, units of time and order of rows are changed in tests.
PLAIN_JOB = JobSpec(pp=4, dp=4, microbatches=8, steps=16, seed=61)
#: The job of the fixtures.
SMALL = JobSpec(pp=4, dp=4, microbatches=8, steps=12)


@dataclasses.dataclass(frozen=True, slots=True)
class Example:
    """A job with one fault."""

    fault: Fault
    spec: JobSpec = CLEAR


@dataclasses.dataclass(frozen=True, slots=True)
class LookAlike:
    """A job with nothing but something that looks like a fault and is none."""

    decoy: Decoy
    spec: JobSpec = CLEAR


@dataclasses.dataclass(frozen=True, slots=True)
class Fixture:
    """The small job of a cause that lies in `fixtures/`."""

    #: What happens in it, for people.
    what: str
    seed: int
    #: As for `draw_fault`.
    strength: float | None = None
    onset: int | None = None
    kind: str | None = None
    #: Fields in which its job differs from `SMALL`.
    changes: dict[str, Any] = dataclasses.field(default_factory=dict)
