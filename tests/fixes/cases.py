"""What tests of fixes share: measured jobs as fixes see them, and the truth of a job with its fault mended."""

from functools import cache

from diagnose.faults.fault import Fault
from diagnose.faults.generate import Truth
from diagnose.faults.spec import JobSpec
from diagnose.model.cause import Cause, Fix, When
from diagnose.model.place import Where, Worker
from diagnose.model.remedy import Place, Situation
from tests.judge.cases import Measured, make, measured


def situation_of(m: Measured) -> Situation:
    """Give a measured job as fixes see it."""
    case = m.case
    return Situation(
        case.trace,
        case.components,
        case.gains,
        case.transfers,
        case.features,
        case.courses,
        m.removal.price,
        m.removal.sample,
    )


@cache
def situation(spec: JobSpec, *faults: Fault) -> Situation:
    """Generate and measure a job, once."""
    return situation_of(measured(spec, *faults))


def truth(spec: JobSpec, *faults: Fault) -> Truth:
    """Say what is true about a generated job."""
    return make(spec, *faults).truth


def said(spec: JobSpec, *faults: Fault, cause: str | None = None) -> Cause:
    """Give what the diagnosis says of the first fault, or of a cause."""
    (found,) = [c for c in measured(spec, *faults).diagnosis.causes if c.cause == (cause or faults[0].cause)]
    return found


def best_fix(spec: JobSpec, *faults: Fault, cause: str | None = None) -> Fix:
    """Give the best fix of the first fault, or of a cause."""
    return said(spec, *faults, cause=cause).fixes[0]


def at(*workers: tuple[int, int], period: float | None = None) -> Place:
    """Make a place of workers."""
    return Place(Where(workers=tuple(Worker(dp, pp) for dp, pp in workers)), When(period_steps=period))
