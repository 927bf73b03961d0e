"""What stands around a slow worker: its waits and its neighbours on the host."""

import dataclasses

import pytest

from diagnose.faults.spec import JobSpec
from diagnose.faults.worker_fault import WorkerFault
from tests.judge.cases import measured

SPEC = JobSpec(pp=2, dp=4, microbatches=4, steps=8, seed=7)
SLOW = WorkerFault(places=((2, 1),), slowdown=1.6)


def test_the_culprit_waits_least() -> None:
    """The slow worker spends far less time in collectives than its peers, who wait for it there."""
    share = measured(SPEC, SLOW).analysis.features["worker.wait_share"].value
    assert share is not None and share < 0.5


def test_all_workers_of_a_host() -> None:
    """Where a host is slow all of its workers are; one slow worker of two is half of them."""
    spec = dataclasses.replace(SPEC, workers_per_host=2)
    neighbours = WorkerFault(places=((2, 1), (3, 1)), slowdown=1.6)
    for fault, share in ((neighbours, 1.0), (SLOW, 0.5)):
        assert measured(spec, fault).analysis.features["host.slow_share"].value == pytest.approx(share)


@pytest.mark.parametrize(
    ("spec", "faults", "name", "reason"),
    [
        (SPEC, (), "worker.wait_share", "no worker is slow"),
        (SPEC, (SLOW,), "host.slow_share", "host"),
        (dataclasses.replace(SPEC, dp=1), (WorkerFault(places=((0, 1),), slowdown=2.0),), "worker.wait_share", "peers"),
    ],
)
def test_what_cannot_be_measured_is_missing(
    spec: JobSpec, faults: tuple[WorkerFault, ...], name: str, reason: str
) -> None:
    """Without a slow worker, a host column or peers there is nothing to compare, and the reason says so."""
    found = measured(spec, *faults).analysis.features[name]
    assert found.value is None
    assert reason in found.reason
