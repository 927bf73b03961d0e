"""The budget of a fleet: sums that one can add in the head."""

import pytest

from diagnose.fleet.totals import add_up_budgets
from diagnose.model.budget import Budget

from .jobs import failed, job

PARTS = dict.fromkeys(Budget.PARTS, 0.0)
#: Half computing, a quarter waiting, a quarter lost.
ONE = Budget(
    **PARTS | {"compute": 0.5, "bubble": 0.25}, lost={"worker-fault": 0.2, "unexplained": 0.05}, not_measured={}
)
OTHER = Budget(
    **PARTS | {"compute": 0.8, "host": 0.1, "input": None},
    lost={"network-fault": 0.0, "unexplained": 0.1},
    not_measured={"input": "no data-load rows"},
)


def test_jobs_count_by_their_gpu_hours() -> None:
    """100 hours of one job and 300 of another; jobs without a budget or a diagnosis are left out."""
    jobs = [job("/a", budget=ONE), job("/b", hours_analysed=300.0, budget=OTHER), job("/c"), failed("/f")]
    found = add_up_budgets(jobs)
    assert found is not None and (found.n_jobs, found.hours_analysed) == (2, 400.0)
    assert (found.parts["compute"], found.parts["bubble"], found.parts["host"]) == (290.0, 25.0, 30.0)
    assert found.parts["input"] == 0.0
    assert found.lost == pytest.approx({"network-fault": 0.0, "unexplained": 35.0, "worker-fault": 20.0})
    assert sum(found.parts.values()) + sum(found.lost.values()) == pytest.approx(400.0)


def test_the_order_of_jobs_changes_nothing() -> None:
    """Sums are exact."""
    jobs = [job(f"/{i}", hours_analysed=0.1 * i + 1e-9, budget=ONE if i % 3 else OTHER) for i in range(50)]
    assert add_up_budgets(jobs) == add_up_budgets(jobs[::-1])


def test_a_store_of_an_earlier_version_has_none() -> None:
    """Nobody makes up what was not measured."""
    assert add_up_budgets([job("/a"), failed("/f")]) is None
