"""Telemetry that does not fit its trace: other clocks, machines, names, cards. Nobody is blamed or cleared by what is not his."""

import dataclasses
from collections.abc import Callable
from functools import cache

import numpy as np
import pytest

from diagnose.errors import TraceError
from diagnose.faults.generate import generate
from diagnose.faults.spec import JobSpec
from diagnose.faults.worker_fault import WorkerFault
from diagnose.judge.rules import load_rules
from diagnose.model.diagnosis import Diagnosis
from diagnose.model.request import Request
from diagnose.model.telemetry import Series, Telemetry
from diagnose.pipeline import diagnose_job
from diagnose.report import brief
from diagnose.telemetry_beside import add_telemetry
from tests.clusters.bridge import telemetry_of
from tests.telemetry_beside.cases import Case
from tests.telemetry_beside.table import is_weakened, times_of

SPEC = JobSpec(pp=4, dp=4, steps=24, workers_per_host=4, contiguous=True, absolute_times=True)
#: dp 1 of stage 2 is on host-002, card 1, and slow from the ninth step on.
PLACE, HOST, CARD = (1, 2), "host-002", "1"


@cache
def slow_worker(sub_cause: str) -> tuple[Case, Diagnosis]:
    """Make a job with a slow worker, its telemetry, and what its trace says."""
    fault = WorkerFault(places=(PLACE,), slowdown=1.8, onset=8)
    job = generate(SPEC, [fault])
    case = Case("sub-cause", job, (fault,), sub_cause, telemetry_of(job, [fault], [sub_cause]), is_stock=False)
    return case, diagnose_job(Request(case.write_trace(), name="job"))


def changed(telemetry: Telemetry, change: Callable[[Series], Series | None]) -> Telemetry:
    """Change or drop each series."""
    series = [one for one in map(change, telemetry.series) if one is not None]
    order = tuple(sorted(series, key=lambda one: (one.metric.name, one.host, one.device)))
    return dataclasses.replace(telemetry, series=order)


def moved(telemetry: Telemetry, seconds: float) -> Telemetry:
    """Shift the clock of the telemetry."""
    at = changed(telemetry, lambda one: dataclasses.replace(one, times=one.times + seconds))
    ends = [one.times[[0, -1]] for one in at.series]
    return dataclasses.replace(at, first_s=float(min(e[0] for e in ends)), last_s=float(max(e[1] for e in ends)))


def named(telemetry: Telemetry, name: Callable[[str], str]) -> Telemetry:
    """Give machines other names."""
    return changed(telemetry, lambda one: dataclasses.replace(one, host=name(one.host)))


def numbered(telemetry: Telemetry, number: Callable[[int], str]) -> Telemetry:
    """Give cards other numbers."""
    return changed(
        telemetry,
        lambda one: dataclasses.replace(one, device=number(int(one.device))) if one.metric.of == "gpu" else one,
    )


def kept(telemetry: Telemetry, *hosts: str) -> Telemetry:
    """Leave only some machines."""
    return changed(telemetry, lambda one: one if one.host in hosts else None)


def cut(telemetry: Telemetry, keep: Callable[[Series], np.ndarray]) -> Telemetry:
    """Leave only some samples."""

    def change(one: Series) -> Series | None:
        at = keep(one)
        return dataclasses.replace(one, times=one.times[at], values=one.values[at]) if at.any() else None

    return changed(telemetry, change)


def join(sub_cause: str, attack: Callable[[Case, Telemetry], Telemetry]) -> Diagnosis:
    """Join telemetry that was tampered with."""
    case, found = slow_worker(sub_cause)
    telemetry = attack(case, case.beside.telemetry)
    return add_telemetry(found, telemetry, times_of(case), severities=load_rules().severities)


@pytest.mark.parametrize("sub_cause", ["thermal", "cpu-contention"])
@pytest.mark.parametrize(
    "attack",
    [
        lambda c, t: moved(t, 3 * c.beside.interval_s),
        lambda c, t: moved(t, -3 * c.beside.interval_s),
        lambda _, t: kept(t, HOST, "host-001"),
        lambda _, t: named(t, lambda host: f"{host.upper()}.cluster.local"),
        lambda _, t: named(t, lambda host: host if host != "host-001" else "<script>alert(1)</script>\x1b[31m"),
        lambda _, t: numbered(t, lambda card: str(3 - card)),  # as by UUID
        lambda _, t: numbered(t, lambda card: str((card + 1) % 4)),
        lambda _, t: numbered(t, lambda card: str(card + 8)),
        lambda _, t: numbered(t, lambda card: f"{card}/1"),  # MIG
        lambda _, t: cut(t, lambda one: np.arange(len(one.times)) % 40 == 0),
    ],
    ids=["late", "early", "half", "domain", "hostile", "reversed", "rotated", "from-8", "mig", "few"],
)
def test_the_sub_cause_is_still_found(sub_cause: str, attack: Callable[[Case, Telemetry], Telemetry]) -> None:
    """A clock that is off a little, half of the machines, other names and other numbers of cards hide nothing."""
    (cause,) = join(sub_cause, attack).causes
    assert cause.subcause.kind == sub_cause and cause.subcause.hosts == (HOST,)


@pytest.mark.parametrize("sub_cause", ["thermal", "cpu-contention"])
@pytest.mark.parametrize(
    "attack",
    [
        lambda _, t: moved(t, -0.5 * float(np.ptp(t.series[0].times))),
        lambda _, t: kept(t, "host-000", "host-001"),
        lambda _, t: kept(t, "host-003"),
        lambda c, t: cut(t, lambda one: one.times < c.beside.began_s - 1),
        lambda c, t: cut(t, lambda one: (one.host != HOST) | (one.times < c.beside.reasons[0].from_s)),
    ],
    ids=["half-the-time", "without-the-suspect", "one-other-host", "before-it-began", "stops-at-the-onset"],
)
def test_where_nothing_can_be_seen_nothing_is_said(
    sub_cause: str, attack: Callable[[Case, Telemetry], Telemetry]
) -> None:
    """What was not measured blames nobody and clears nobody."""
    found = join(sub_cause, attack)
    (cause,) = found.causes
    assert not hasattr(cause.subcause, "kind") and not is_weakened(cause)
    assert cause.confidence == slow_worker(sub_cause)[1].causes[0].confidence
    assert attack.__name__ and len(brief.render(found, width=80, color=False)) > 0


def test_it_is_said_that_nothing_was_measured() -> None:
    """A suspect without a value of the time of its finding is named in a warning."""
    found = join("thermal", lambda c, t: cut(t, lambda one: one.times < c.beside.began_s - 1))
    assert f"telemetry: no value of {HOST} from the time of its finding" in found.warnings


@pytest.mark.parametrize("name", ["job-b-{}", "10.0.0.{}"])
def test_other_machines(name: str) -> None:
    """Telemetry of another job, or with addresses in place of names, is an error that lists both."""
    with pytest.raises(
        TraceError, match=r"is of other machines than the job: it has .*; the job ran on host-000, host-001"
    ):
        join("thermal", lambda _, t: named(t, lambda host: name.format(int(host[-3:]))))


@pytest.mark.parametrize("hours", [1, -2, 24])
def test_another_time(hours: float) -> None:
    """Telemetry of other hours is an error; a zone that would fit is named."""
    with pytest.raises(TraceError, match="is of another time than the trace") as error:
        join("thermal", lambda _, t: moved(t, 3600.0 * hours))
    assert ("moved by" in str(error.value)) == (abs(hours) < 15)


def test_nonsense() -> None:
    """Values that are no measurement at all are no sub-cause."""
    for value in (0.0, 1e300, -1.0):
        (cause,) = join(
            "thermal",
            lambda _, t, value=value: changed(
                t, lambda one: dataclasses.replace(one, values=np.full(len(one.values), value))
            ),
        ).causes
        assert not hasattr(cause.subcause, "kind")
