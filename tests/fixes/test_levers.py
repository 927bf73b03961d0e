"""Levers: what makes a job without a fault faster, against the generator's job that has it."""

import dataclasses

import numpy as np
import pyarrow as pa
import pytest

from diagnose.faults.decoy import Decoy, mark_multiples
from diagnose.faults.generate import generate
from diagnose.faults.inputs import Inputs, Pause, draw_inputs
from diagnose.faults.simulate import simulate
from diagnose.faults.spec import JobSpec
from diagnose.faults.worker_fault import WorkerFault
from diagnose.judge.caveats import list_caveats
from diagnose.model.budget import Lever
from diagnose.model.optype import Op
from diagnose.model.schedule import SCHEDULES, V_SHAPED
from tests.judge.cases import measure

#: Nothing varies, and what closes a step is short.
SPEC = JobSpec(pp=4, dp=2, microbatches=8, steps=6, noise=0.0, collective_s=1e-3, host_gap_s=0.0, optimizer_s=1e-3)


def levers_of(spec: JobSpec, *faults: WorkerFault) -> dict[str, Lever]:
    """Generate a job, diagnose it, and give its levers by name."""
    return {lever.lever: lever for lever in measure(generate(spec, faults).trace).diagnosis.levers}


def step_s(spec: JobSpec) -> float:
    """Mean seconds of a step that the generator gives."""
    return float(simulate(draw_inputs(spec)).step_s.mean())


def test_smaller_microbatches_come_true() -> None:
    """Twice as many of half the size: the job of the generator that runs them is as fast as said."""
    found = levers_of(SPEC)["microbatches"]
    cut = dataclasses.replace(SPEC, microbatches=16, forward_s=SPEC.forward_s / 2, transfer_s=SPEC.transfer_s / 2)
    assert found.predicted_step_time == pytest.approx(step_s(cut), rel=0.01)
    assert found.predicted_speedup == pytest.approx(step_s(SPEC) / step_s(cut), rel=0.01)
    assert not found.at_most and any("half the time" in text for text in found.assumes)


def test_another_schedule_comes_true() -> None:
    """Interleaving is what Megatron-LM has: the job of the generator that runs so is as fast as said."""
    found = levers_of(SPEC)["schedule"]
    assert "4 model chunks" in found.summary and "--num-layers-per-virtual-pipeline-stage" in found.how
    other = dataclasses.replace(SPEC, vpp=4, forward_s=SPEC.forward_s / 4)
    assert found.predicted_step_time == pytest.approx(step_s(other), rel=0.02)


def test_hidden_communication_is_a_bound() -> None:
    """All but the norm of the gradients, for which everybody waits, can hide: the job is nearly as one without collectives."""
    spec = dataclasses.replace(SPEC, pp=1, collective_s=0.1)
    found = levers_of(spec)["overlap-collectives"]
    assert found.at_most
    without_s = step_s(dataclasses.replace(spec, collective_s=0.0))
    assert without_s < found.predicted_step_time < 1.05 * without_s
    assert found.predicted_speedup > 1.1


def test_a_fault_is_no_credit_of_a_lever() -> None:
    """Of the collectives in which everybody waits for a slow worker, overlap hides what they take without that worker."""
    spec = dataclasses.replace(SPEC, pp=1, collective_s=0.1)
    healthy = levers_of(spec)["overlap-collectives"]
    slow = levers_of(spec, WorkerFault(places=((0, 0),), slowdown=2.0))["overlap-collectives"]
    saved_s = healthy.predicted_step_time * (healthy.predicted_speedup - 1)
    assert slow.predicted_step_time * (slow.predicted_speedup - 1) == pytest.approx(saved_s, rel=0.05)


def test_slow_transfers_are_worth_hiding() -> None:
    """They are a lever where they are exposed, and none where they are short."""
    assert "overlap-transfers" not in levers_of(SPEC)
    assert levers_of(dataclasses.replace(SPEC, transfer_s=0.03))["overlap-transfers"].predicted_speedup > 1.05


@pytest.mark.parametrize("schedule", sorted(SCHEDULES))
def test_what_is_listed_is_better(schedule: str) -> None:
    """The best first, never more than two, each at least 2% faster; the present schedule is none. A V leaves little to gain."""
    spec = dataclasses.replace(SPEC, noise=1.0, host_gap_s=2e-3)
    change = (
        {"vpp": 2} if schedule == "interleaved" else {"schedule": schedule, "vpp": 2 if schedule in V_SHAPED else 1}
    )
    spec = dataclasses.replace(spec, **change)
    found = tuple(levers_of(spec).values())
    speedups = [lever.predicted_speedup for lever in found]
    assert (found or schedule in V_SHAPED) and len(found) <= 2
    assert speedups == sorted(speedups, reverse=True) and min(speedups, default=2.0) > 1.02


@dataclasses.dataclass(frozen=True)
class CollectAtTheEnd(Decoy):
    """All workers collect garbage behind the last compute of every so many steps; rows say so."""

    period_steps: int
    seconds: float = 0.2
    name = "collect-at-the-end"

    def apply(self, inputs: Inputs) -> Inputs:
        """Let the collections of a step's end take that long."""
        due = inputs.programme.is_op(Op.GC)[:, None, None] & mark_multiples(inputs.spec, self.period_steps)[:, None]
        return inputs.with_pauses(
            Pause(Op.GC, np.where(due, self.seconds, np.zeros(inputs.work_s.shape)), "inside", recorded=True)
        )


def test_planned_collections_are_worth_spacing_where_they_come_often() -> None:
    """At the end of every second step: without them the job is as fast as said. Every twentieth is next to nothing."""
    spec = dataclasses.replace(SPEC, pp=1, steps=40, contiguous=True)
    often, seldom = (
        {lever.lever: lever for lever in measure(generate(spec, [], [CollectAtTheEnd(n)]).trace).diagnosis.levers}
        for n in (2, 20)
    )
    lever = often["collect-less-often"]
    assert "not every 2" in lever.summary and not lever.at_most
    assert lever.predicted_step_time == pytest.approx(step_s(spec), rel=0.005)
    assert "collect-less-often" not in seldom


def test_one_collection_does_not_tell_how_often_they_come() -> None:
    """One of every hundred steps, in a trace of three or of that one, is no collection every three steps, or every step."""
    spec = dataclasses.replace(SPEC, pp=1, steps=40, contiguous=True)
    table = generate(spec, [], [CollectAtTheEnd(20)]).trace
    step = np.asarray(table["step"])
    (hit, *_) = np.unique(step[np.asarray(table["duration"]) * (np.asarray(table["optype"]) == "gc") > 0.1])
    for steps in ([hit], [hit, hit + 1, hit + 2]):
        levers = measure(table.filter(pa.array(np.isin(step, steps)))).diagnosis.levers
        assert "collect-less-often" not in {lever.lever for lever in levers}


def test_no_lever_where_nothing_waits() -> None:
    """One stage whose communication is short."""
    assert levers_of(dataclasses.replace(SPEC, pp=1)) == {}


def test_planned_collections_are_named_and_no_noise() -> None:
    """Steps longer than usual for them are planned work, by its share; the job is healthy, and the lever is there."""
    spec = dataclasses.replace(SPEC, pp=1, steps=40, contiguous=True)
    measured = measure(generate(spec, [], [CollectAtTheEnd(8, seconds=30 * spec.forward_s)]).trace)
    found = measured.diagnosis
    assert found.verdict == "healthy" and found.budget is not None
    share = 1.0 - step_s(spec) / found.step_time.recorded
    assert found.budget.evaluation == pytest.approx(share, abs=0.01) and share > 0.1
    assert any(text.startswith("planned collections every 8 steps take") for text in list_caveats(measured.analysis))
