"""What is new, worse, back, the same, gone or unseen."""

import dataclasses

import pytest

from diagnose.fleet.periods import compare_periods
from diagnose.model.fleet import FleetJob
from diagnose.model.fleet_document import STATES

from .jobs import DAY_S, cause, job

UNTIL_S = 100 * DAY_S


def at(nights_ago: float, *causes: object, name: str = "j", **fields: object) -> FleetJob:
    """Make a job that ran so many nights ago; 0 is last night."""
    return job(f"/{name}-{nights_ago}", *causes, name=name, when_s=UNTIL_S - (nights_ago + 0.5) * DAY_S, **fields)


def states(*jobs: FleetJob) -> dict[str, str]:
    """Give the state of every fault by its fingerprint."""
    night = compare_periods(jobs, until_s=UNTIL_S, period_s=DAY_S)
    return {finding.fingerprint: finding.state for finding in night.findings}


@pytest.mark.parametrize(
    ("jobs", "state"),
    [
        ([at(1), at(0, cause())], "new"),
        ([at(1, cause()), at(0, cause())], "recurring"),
        ([at(1, cause(recoverable=0.1)), at(0, cause(recoverable=0.119))], "recurring"),
        ([at(1, cause(recoverable=0.1)), at(0, cause(recoverable=0.13))], "worse"),
        ([at(5, cause()), at(1), at(0, cause())], "back"),
        ([at(1, cause()), at(0)], "gone"),
        ([at(1, cause())], "unseen"),
        ([at(1, cause()), at(0, sizes=(8, 4, 8, 1, 1))], "unseen"),
        ([at(1, cause()), at(0, unseen=frozenset({"worker-fault"}))], "unseen"),
        ([at(1, cause()), at(0, name="other")], "unseen"),
        ([at(1, cause()), at(0, owner="bob")], "unseen"),
        ([at(1, cause(host="h1")), at(0, hosts=("h2",))], "unseen"),
        ([at(1, cause(host="h1")), at(0, hosts=("h1",), name="other")], "gone"),
        ([at(1, cause(host="h1")), at(0, hosts=("h1", "h2"))], "gone"),
        ([at(1, cause(host="h1", who="job owner")), at(0, hosts=("h2",))], "gone"),
    ],
)
def test_states(jobs: list[FleetJob], state: str) -> None:
    """A fault is what its occurrences make it; gone only where its jobs ran, could be looked at, and were on its host."""
    assert states(*jobs) == {"f": state}


def test_unseen_says_why() -> None:
    """What nobody can tell comes with its reason."""
    night = compare_periods([at(1, cause())], until_s=UNTIL_S, period_s=DAY_S)
    assert night.findings[0].note == "this job did not run"


def test_costs_and_first_sighting() -> None:
    """A finding has the mean cost of each night, the GPU hours of the last, its first occurrence, and its costliest job."""
    jobs = [
        at(9, cause(recoverable=0.5)),
        at(1, cause(recoverable=0.1), wasted=50.0),
        at(0, cause(recoverable=0.1), wasted=4.0, name="a"),
        at(0, cause(recoverable=0.2, share=0.5), wasted=20.0, name="b", owner="bob"),
    ]
    (finding,) = compare_periods(jobs, until_s=UNTIL_S, period_s=DAY_S).findings
    assert (finding.state, finding.n_now, finding.n_before) == ("worse", 2, 1)
    assert finding.recoverable_now == pytest.approx(0.15) and finding.recoverable_before == 0.1
    assert finding.hours_wasted == 14.0
    assert (finding.location, finding.owner) == ("/b-0", "bob")
    assert finding.first_seen_s == UNTIL_S - 9.5 * DAY_S


def test_edges_of_a_night() -> None:
    """The newest diagnosis belongs to the last night, and one a night older to the one before."""
    newest = job("/n", cause(fingerprint="n"), when_s=UNTIL_S)
    older = job("/o", cause(fingerprint="o"), when_s=UNTIL_S - DAY_S)
    night = compare_periods([newest, older], until_s=UNTIL_S, period_s=DAY_S)
    assert (night.n_now, night.n_before, night.n_earlier) == (1, 1, 0)


def test_urgent_first() -> None:
    """Findings stand by state, then by GPU hours."""
    jobs = [
        at(1, cause(fingerprint="r"), cause(fingerprint="g")),
        at(0, cause(fingerprint="r"), cause(fingerprint="n1", share=0.1), cause(fingerprint="n2", share=0.9)),
    ]
    night = compare_periods(jobs, until_s=UNTIL_S, period_s=DAY_S)
    assert [finding.fingerprint for finding in night.findings] == ["n2", "n1", "r", "g"]
    assert all(finding.state in STATES for finding in night.findings)


def test_times_shifted_change_nothing() -> None:
    """All that counts is the distance to the newest diagnosis."""
    jobs = [at(2, cause(fingerprint="a")), at(1, cause(fingerprint="b")), at(0, cause(fingerprint="a"))]
    later = [dataclasses.replace(one, when_s=one.when_s + 7.25 * DAY_S) for one in jobs]
    night = compare_periods(later, until_s=UNTIL_S + 7.25 * DAY_S, period_s=DAY_S)
    assert {finding.fingerprint: finding.state for finding in night.findings} == states(*jobs)
