"""Where the GPU-seconds of a step go: jobs whose parts can be worked out by hand, and what holds for every job."""

import dataclasses
import itertools
from pathlib import Path

import pytest

from diagnose.errors import DiagnoseError
from diagnose.faults.data_loading import DataLoading
from diagnose.faults.generate import generate
from diagnose.faults.planned_work import PlannedWork
from diagnose.faults.spec import JobSpec
from diagnose.faults.worker_fault import WorkerFault
from diagnose.model.budget import Budget
from diagnose.model.request import Request
from diagnose.pipeline import diagnose_job
from tests import fixture_jobs
from tests.judge.cases import measure
from tests.uneven_layers import UnevenLayers

SHARED = Path(__file__).parents[3] / "shared"
#: Forward 1 s, backward 2 s; communication, launches and the optimizer take some time, and nothing varies.
BY_HAND = JobSpec(
    pp=4,
    dp=2,
    microbatches=8,
    steps=4,
    forward_s=1.0,
    backward_ratio=2.0,
    transfer_s=0.01,
    collective_s=0.1,
    optimizer_s=0.5,
    launch_delay_s=0.001,
    host_gap_s=0.0,
    noise=0.0,
)


def budget_of(spec: JobSpec, *faults: object) -> Budget:
    """Generate a job, diagnose it, and give its budget."""
    found = measure(generate(spec, faults).trace).diagnosis.budget
    assert found is not None
    return found


def assert_adds_up(found: Budget) -> None:
    """Check that the parts sum to 1, that none is negative or infinite, and that each that is not there has a reason."""
    parts = [*found.measured().values(), *found.lost.values()]
    assert sum(parts) == pytest.approx(1.0, abs=1e-6)
    assert all(0.0 <= part <= 1.0 for part in parts)
    assert set(found.not_measured) == set(Budget.PARTS) - set(found.measured())


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"pp": 2},
        {"pp": 8, "microbatches": 4},
        {"p2p": "asynchronous"},
        {"schedule": "gpipe"},
        {"schedule": "eager", "p2p": "lazy"},
        {"vpp": 2},
        {"vpp": 4},
        {"vpp": 2, "pp": 8, "microbatches": 16},
    ],
)
def test_the_bubble_is_that_of_the_textbook(changes: dict) -> None:
    """Of forwards and backwards (pp - 1) / (vpp x microbatches + pp - 1), whatever transfers and the end of the step take."""
    spec = dataclasses.replace(BY_HAND, **changes)
    found = budget_of(spec)
    work_s = 3.0 * spec.microbatches * spec.vpp
    assert found.compute is not None and found.bubble is not None
    work = found.compute * work_s / (work_s + spec.optimizer_s)
    expected = (spec.pp - 1) / (spec.vpp * spec.microbatches + spec.pp - 1)
    assert found.bubble / (found.bubble + work) == pytest.approx(expected, rel=0.005)
    assert found.lost["unexplained"] < 1e-3


@pytest.mark.parametrize(("schedule", "vpp", "bubble"), [("zero-bubble", 1, 1 / 9), ("zb-v", 2, 1 / 17)])
def test_split_backwards_fill_the_bubble(schedule: str, vpp: int, bubble: float) -> None:
    """ZB-H1 leaves (pp - 1) (F + B - W) = 3 s of 27, ZB-V (pp - 1) of 51 s: forward, input and weight gradients last 1 s each."""
    spec = dataclasses.replace(BY_HAND, schedule=schedule, vpp=vpp, optimizer_s=0.0)
    found = budget_of(spec)
    assert found.compute is not None and found.bubble is not None
    assert found.bubble / (found.bubble + found.compute) == pytest.approx(bubble, rel=0.005)


def test_one_stage_has_no_bubble() -> None:
    """Who waits for other data-parallel ranks, as computes vary, waits in collectives."""
    found = budget_of(dataclasses.replace(BY_HAND, pp=1, noise=2.0, dp=4))
    assert found.bubble == pytest.approx(0.0, abs=1e-6) and found.exposed_p2p == 0.0
    assert found.exposed_collectives is not None and found.exposed_collectives > 0.01


def test_each_part_is_what_was_put_there() -> None:
    """Seconds of a step of 34.5 s and more: longer transfers, collectives and launches show in their parts alone."""
    parts = ("exposed_p2p", "exposed_collectives", "host")
    usual = budget_of(BY_HAND)
    changes = ({"transfer_s": 0.1}, {"collective_s": 1.0}, {"host_gap_s": 0.2})
    for part, change in zip(parts, changes, strict=True):
        found = budget_of(dataclasses.replace(BY_HAND, **change))
        ratio = {name: getattr(found, name) / found.compute - getattr(usual, name) / usual.compute for name in parts}
        assert ratio.pop(part) > 0.01
        assert max(abs(other) for other in ratio.values()) < 0.001


def test_a_slow_worker_is_lost_time() -> None:
    """With it the job takes longer, and the rest of the budget keeps its proportions."""
    usual, slow = budget_of(BY_HAND), budget_of(BY_HAND, WorkerFault(places=((1, 2),), slowdown=2.0))
    lost = sum(slow.lost.values())
    assert slow.lost["worker-fault"] > 0.3 and slow.lost["worker-fault"] == pytest.approx(lost, abs=0.01)
    for name in ("compute", "bubble"):
        assert getattr(slow, name) == pytest.approx(getattr(usual, name) * (1.0 - lost), rel=0.02)


def test_uneven_stages_are_lost_time() -> None:
    """The bubble is that of even stages, as in the clean step; what the longest stage costs is lost to it."""
    spec = dataclasses.replace(BY_HAND, steps=8)
    found = budget_of(spec, UnevenLayers(layers=(8, 8, 8, 12)))
    assert found.lost["stage-imbalance"] > 0.1
    assert found.compute is not None and found.bubble is not None
    assert found.bubble / (found.bubble + found.compute) == pytest.approx(3 / 11, rel=0.03)


def test_planned_work_is_not_lost() -> None:
    """An evaluation every few steps stands under its own name."""
    spec = dataclasses.replace(BY_HAND, steps=24, contiguous=True, absolute_times=True)
    decoy = PlannedWork(seconds=6.0, period_steps=4)
    found = measure(generate(spec, (), (decoy,)).trace).diagnosis
    assert found.budget is not None and found.causes == ()
    assert found.budget.evaluation == pytest.approx(6.0 / 4 / found.step_time.recorded, rel=0.2)
    assert found.budget.lost["unexplained"] < 0.01


def test_waits_for_input_that_a_cause_names_are_lost() -> None:
    """Nothing of them is counted twice."""
    spec = dataclasses.replace(BY_HAND, steps=12, noise=0.3)
    found = budget_of(spec, DataLoading(wait_ratio=6.0))
    assert found.lost["data-loading"] > 0.1
    assert found.input is None or found.input < 0.01


@pytest.mark.parametrize("name", fixture_jobs.FIXTURES)
def test_it_adds_up_on_the_fixtures(name: str) -> None:
    """Of each cause's fixture; what the cause cost is the largest entry of what is lost."""
    found = fixture_jobs.diagnosed(name).budget
    assert found is not None
    assert_adds_up(found)
    if name != "healthy":
        assert max(found.lost, key=lambda cause: found.lost[cause]) == name


def list_published() -> list[Path]:
    """List the recordings beside the repository: real jobs, the published traces, other formats."""
    formats = sorted(itertools.chain((SHARED / "formats").glob("*/*"), (SHARED / "formats").glob("*pipeline")))
    parquet = [
        *SHARED.glob("real/*.parquet"),
        *SHARED.glob("artifact/*.parquet"),
        *SHARED.glob("artifact/shapes/*.parquet"),
    ]
    return [*sorted(parquet), *formats]


def test_it_adds_up_on_recorded_jobs(shared: Path) -> None:
    """Every recording beside the repository that can be read has a budget."""
    n_read = 0
    for path in list_published():
        try:
            found = diagnose_job(Request(path))
        except DiagnoseError:
            continue  # one rank of several, results of the artifact
        n_read += 1
        assert found.budget is not None, path
        assert_adds_up(found.budget)
        assert all(lever.predicted_step_time < 0.99 * found.step_time.recorded for lever in found.levers), path
        assert found.fidelity.ok or not found.levers
    assert shared.exists() and n_read >= 30
