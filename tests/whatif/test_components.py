"""Compute times taken apart: the factors that faults put in come out again, and each gain is the true one."""

import dataclasses
from functools import cache
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from diagnose.faults.allocator_stall import AllocatorStall
from diagnose.faults.fault import Fault
from diagnose.faults.first_tasks import delay_first_tasks
from diagnose.faults.generate import Job, generate, random_faults
from diagnose.faults.inputs import Inputs, Pause, draw_inputs
from diagnose.faults.record import record
from diagnose.faults.sequence_imbalance import SequenceImbalance
from diagnose.faults.simulate import simulate
from diagnose.faults.spec import JobSpec, random_spec
from diagnose.faults.stage_imbalance import StageImbalance
from diagnose.faults.worker_fault import WorkerFault
from diagnose.model.optype import Op
from diagnose.whatif.components.microbatch import find_microbatches
from tests.jobs import hand_job, to_table
from tests.judge.cases import (
    Measured,
    causes,
    diagnosed,
    make,
    measure,
    measured,
    shapley_of_two,
)

SPEC = JobSpec(pp=4, dp=4, microbatches=8, steps=12, seed=41)
COMPONENT = {"worker-fault": "worker", "stage-imbalance": "stage", "sequence-imbalance": "microbatch"}
SEEDS = range(62)
#: A predicted gain must come that near to the true one; on average nearer.
GAIN_TOLERANCE, MEAN_TOLERANCE = 0.02, 0.01
SHARE_TOLERANCE = 0.05


def run(inputs: Inputs) -> tuple[pa.Table, float]:
    """Run a job; give its trace and mean step time."""
    times = simulate(inputs)
    return record(inputs, times), float(times.step_s.mean())


# ------------------------------------------------------------------------------------------ factors


@pytest.mark.parametrize("slowdown", [1.1, 1.5, 3.0])
@pytest.mark.parametrize("place", [(0, 0), (3, 2), (1, 3)], ids=str)
def test_a_workers_factor_comes_out(slowdown: float, place: tuple[int, int]) -> None:
    """A slow worker, forward by one factor and backward by another, has those factors, and nobody else has any."""
    backward = 1.0 + (slowdown - 1.0) * 0.9
    fault = WorkerFault(places=(place,), slowdown=slowdown, backward_slowdown=backward)
    c = measured(SPEC, fault).breakdown
    assert np.argwhere(c.slow_workers).tolist() == [list(place)]
    found = np.median(c.worker_ratio[:, place[1], :, place[0]], axis=1)
    np.testing.assert_allclose(found, [slowdown, backward], rtol=0.03)
    others = np.delete(c.worker_ratio.reshape(2, SPEC.pp, SPEC.steps, SPEC.dp).transpose(0, 2, 1, 3).reshape(2, SPEC.steps, -1),
                       place[1] * SPEC.dp + place[0], axis=2)  # fmt: skip
    assert (others == 1.0).all()


@pytest.mark.parametrize("onset", [3, 8])
def test_a_workers_factor_begins_with_its_onset(onset: int) -> None:
    """Before its onset a slow worker's factor is 1, after it the fault's."""
    c = measured(SPEC, WorkerFault(places=((2, 1),), slowdown=1.5, onset=onset)).breakdown
    ratio = c.worker_ratio[:, 1, :, 2].mean(axis=0)
    np.testing.assert_allclose(ratio[:onset], 1.0, atol=1e-12)
    np.testing.assert_allclose(ratio[onset:], 1.5, rtol=0.06)


@pytest.mark.parametrize("stage", [0, 2, -1])
def test_a_stages_factor_comes_out(stage: int) -> None:
    """A long stage takes longer than the others by its factors, and no worker is called slow."""
    c = measured(SPEC, StageImbalance(stage=stage, forward_slowdown=1.8, backward_slowdown=1.4)).breakdown
    others = np.delete(c.typical_s, stage, axis=1)
    np.testing.assert_allclose(c.typical_s[:, stage] / others.mean(axis=1), [1.8, 1.4], rtol=0.02)
    np.testing.assert_allclose(others / others.mean(axis=1, keepdims=True), 1.0, atol=0.02)
    assert not c.slow_workers.any()


def test_a_microbatchs_factor_comes_out() -> None:
    """Long microbatches have the factor that their documents give them, each in its step, on its rank."""
    fault = SequenceImbalance(quadratic_share=0.5, backward_ratio=1.0)
    c = measured(SPEC, fault).breakdown
    cost = fault.draw_cost(SPEC)
    for direction in range(2):
        ratio = c.microbatch_ratio[direction] / np.median(c.microbatch_ratio[direction])
        true = cost / np.median(cost)
        assert np.corrcoef(ratio.ravel(), true.ravel())[0, 1] > 0.99
        np.testing.assert_allclose(ratio, true, rtol=0.12)
    assert not c.slow_workers.any()


@pytest.mark.parametrize("backward_ratio", [0.7, 1.4])
def test_forward_and_backward_have_slopes_of_their_own(backward_ratio: float) -> None:
    """Where backward grows less, or more, with length than forward, its factors do so too."""
    c = measured(SPEC, SequenceImbalance(quadratic_share=0.4, backward_ratio=backward_ratio)).breakdown
    forward, backward = (c.microbatch_ratio[i].ravel() / np.median(c.microbatch_ratio[i]) for i in range(2))
    slope = float(np.polyfit(forward - 1.0, backward - 1.0, 1)[0])
    assert slope == pytest.approx(backward_ratio, rel=0.15)


@pytest.mark.parametrize(
    "spec", [SPEC, dataclasses.replace(SPEC, noise=3.0), dataclasses.replace(SPEC, dp=2, pp=2)], ids=str
)
def test_a_healthy_job_has_no_factors(spec: JobSpec) -> None:
    """Without a fault nobody is slow, microbatches differ as ordinary ones do, and stages are alike to a hundredth."""
    c = measured(spec).breakdown
    assert not c.slow_workers.any()
    assert (c.worker_ratio == 1.0).all()
    np.testing.assert_allclose(c.microbatch_ratio ** (1.0 - c.microbatch_ordinary), 1.0, atol=0.01)
    np.testing.assert_allclose(c.typical_s / c.typical_s.mean(axis=1, keepdims=True), 1.0, atol=0.02)


def test_one_fault_is_not_taken_for_another() -> None:
    """Beside long documents and a long stage the slow worker keeps its factor, and so does the stage."""
    worker, stage = (
        WorkerFault(places=((1, 0),), slowdown=1.6),
        StageImbalance(forward_slowdown=1.7, backward_slowdown=1.4),
    )
    c = measured(SPEC, worker, stage, SequenceImbalance(quadratic_share=0.4)).breakdown
    assert np.argwhere(c.slow_workers).tolist() == [[1, 0]]
    assert float(np.median(c.worker_ratio[:, 0, :, 1])) == pytest.approx(1.6, rel=0.05)
    np.testing.assert_allclose(c.typical_s[:, -1] / c.typical_s[:, :-1].mean(axis=1), [1.7, 1.4], rtol=0.04)


# ------------------------------------------------------------------------------------------ pauses are seconds


def pausing(
    inputs: Inputs, op: Op, stage: int, dp: int, seconds: float, steps: slice
) -> tuple[Inputs, tuple[int, int]]:
    """Pause one worker inside its third compute of a type, in some steps; give (microbatch, stage) of the operation."""
    programme = inputs.programme
    task = int(np.flatnonzero(programme.is_op(op) & (programme.stage == stage))[2])
    pause_s = np.zeros(inputs.work_s.shape)
    pause_s[task, steps, dp] = seconds
    kind = Op.GC if op == Op.FORWARD else Op.CUDA_MALLOC
    pauses = (*inputs.pauses, Pause(kind, pause_s, "inside", recorded=False))
    return dataclasses.replace(inputs, pauses=pauses), (int(programme.microbatch[task]), stage)


@pytest.mark.parametrize("op", [Op.FORWARD, Op.BACKWARD], ids=str)
@pytest.mark.parametrize("slowdown", [1.0, 2.0])
def test_a_pause_is_seconds_and_not_a_factor(op: Op, slowdown: float) -> None:
    """0.3 s of standing still are 0.3 s of pause on a healthy worker and on one that takes twice as long."""
    spec = dataclasses.replace(SPEC, steps=20)
    inputs, paused = draw_inputs(spec), 2 if op == Op.FORWARD else 0  # memory is fullest on the first stage
    if slowdown > 1.0:
        inputs = WorkerFault(places=((1, paused),), slowdown=slowdown).apply(inputs)
    without_s = simulate(inputs).step_s.mean()
    inputs, (microbatch, stage) = pausing(inputs, op, paused, 1, 0.3, slice(4, 20, 5))
    table, with_s = run(inputs)
    m = measure(table)
    found = m.breakdown.stalls.inside_s[int(op == Op.BACKWARD), stage, microbatch, :, 1]
    np.testing.assert_allclose(found[4::5], 0.3, rtol=0.05)
    assert (np.delete(found, [4, 9, 14, 19]) < 0.02).all()
    assert m.breakdown.slow_workers.sum() == (slowdown > 1.0)
    assert with_s > without_s * 1.02
    without = m.gains.alone_s["gc-pause" if op == Op.FORWARD else "malloc-pause"]
    assert without == pytest.approx(without_s, rel=0.005)


def test_removing_the_stage_leaves_a_pause_as_long_as_it_was() -> None:
    """A pause on a stage twice as long is no shorter once the work is evenly spread: gains are those of the simulation."""
    spec = dataclasses.replace(SPEC, steps=20)
    fault = StageImbalance(stage=2, forward_slowdown=2.0, backward_slowdown=2.0)
    healthy = draw_inputs(spec)
    broken, _ = pausing(fault.apply(healthy), Op.FORWARD, 2, 1, 0.4, slice(4, 20, 5))
    mended, _ = pausing(fault.mend(healthy), Op.FORWARD, 2, 1, 0.4, slice(4, 20, 5))
    table, _ = run(broken)
    assert measure(table).gains.alone_s["stage"] == pytest.approx(run(mended)[1], rel=0.01)


# ------------------------------------------------------------------------------------------ predicted gains are true


def random_single_fault(seed: int) -> tuple[JobSpec, Fault, Job] | None:
    """Make a random job with one fault that its trace can tell: of workers only beside peers, and worth something."""
    rng = np.random.default_rng([6, seed])
    spec = random_spec(rng)
    spec = dataclasses.replace(spec, steps=min(spec.steps, 16))
    cause = list(COMPONENT)[seed % 3]
    if cause == "worker-fault" and spec.dp < 3:
        spec = dataclasses.replace(spec, dp=3)
    faults = random_faults(spec, rng, [cause])
    return (spec, faults[0], generate(spec, faults)) if faults else None


@cache
def random_errors() -> dict[int, tuple[str, float]]:
    """Compare predicted with true gains over random jobs: by seed, the fault and the error."""
    errors = {}
    for seed in SEEDS:
        drawn = random_single_fault(seed)
        if drawn is not None:
            _, fault, job = drawn
            found = measure(job.trace).gains.recoverable(COMPONENT[fault.cause])
            errors[seed] = (fault.cause, found - job.truth.faults[0].recoverable)
    return errors


def test_predicted_gains_are_true_on_average() -> None:
    """Over random jobs with one fault each, the gain of removing it is predicted to 0.01 on average."""
    errors = random_errors()
    assert len(errors) >= 50
    assert np.mean([abs(error) for _, error in errors.values()]) < MEAN_TOLERANCE


@pytest.mark.parametrize("cause", COMPONENT)
def test_predicted_gains_are_true(cause: str) -> None:
    """For each cause, nine random jobs in ten have their gain predicted to 0.02, and there is no leaning to one side."""
    errors = {seed: error for seed, (name, error) in random_errors().items() if name == cause}
    wrong = {seed: round(error, 3) for seed, error in errors.items() if abs(error) > GAIN_TOLERANCE}
    assert len(wrong) <= len(errors) / 10, wrong
    assert abs(np.median(list(errors.values()))) < MEAN_TOLERANCE


# ------------------------------------------------------------------------------------------ two faults at once

SEQUENCES = SequenceImbalance(quadratic_share=0.5)
STAGE = StageImbalance(forward_slowdown=1.8, backward_slowdown=1.5)
WORKER = WorkerFault(places=((1, 0),), slowdown=1.5)
SHAPES = {
    "pp 4, dp 4": JobSpec(pp=4, dp=4, microbatches=8, steps=16, seed=42),
    "pp 2, dp 8, asynchronous": JobSpec(pp=2, dp=8, microbatches=6, steps=16, p2p="asynchronous", seed=43),
    "pp 8, dp 2": JobSpec(pp=8, dp=2, microbatches=16, steps=16, seed=44),
    "interleaved, blocking": JobSpec(pp=4, vpp=2, dp=4, microbatches=8, steps=16, seed=45),
    "interleaved, asynchronous": JobSpec(pp=4, vpp=2, dp=4, microbatches=8, steps=16, p2p="asynchronous", seed=46),
}


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize(
    "pair", [(SEQUENCES, STAGE), (WORKER, STAGE), (WORKER, SEQUENCES)], ids=lambda p: "+".join(f.cause for f in p)
)
def test_two_faults_share_the_lost_time_as_they_truly_do(shape: str, pair: tuple[Any, Any]) -> None:
    """The ledger of a job with two faults is near the Shapley shares of four simulations: both, either, and no fault."""
    spec = SHAPES[shape]
    truth = make(spec, *pair).truth
    without = [fault.step_time_without_s for fault in truth.faults]
    true = shapley_of_two(truth.step_time_s, without[0], without[1], truth.step_time_without_any_s)
    found = diagnosed(spec, *pair)
    assert found.ledger is not None
    for fault, share in zip(pair, true, strict=True):
        assert found.ledger.causes.get(fault.cause, 0.0) == pytest.approx(share, abs=SHARE_TOLERANCE), fault.cause


@pytest.mark.parametrize("shape", SHAPES)
def test_long_documents_and_a_long_stage_are_both_found(shape: str) -> None:
    """Both causes are reported, the stage in its place, each with its true gain, and nothing else."""
    spec = SHAPES[shape]
    truth, found = make(spec, SEQUENCES, STAGE).truth, diagnosed(spec, SEQUENCES, STAGE)
    assert sorted(causes(found)) == ["sequence-imbalance", "stage-imbalance"]
    by_cause = {cause.cause: cause for cause in found.causes}
    assert by_cause["stage-imbalance"].where.stages == (spec.pp - 1,)
    for fault in truth.faults:
        assert by_cause[fault.cause].recoverable == pytest.approx(fault.recoverable, abs=GAIN_TOLERANCE)


@pytest.mark.parametrize("stage", [0, SPEC.pp - 1])
def test_a_late_loader_of_one_stage_has_its_whole_gain(stage: int) -> None:
    """The first or the last stage waits for 6 forwards before each step; without that steps take what they truly would."""
    inputs = draw_inputs(SPEC)
    busy_s = np.zeros((SPEC.pp, *inputs.lanes))
    busy_s[stage] = 6.0 * SPEC.forward_s
    pauses = delay_first_tasks(inputs.programme, Op.DATA_LOAD, busy_s, recorded=True, together=False)
    table, with_s = run(inputs.with_pauses(*pauses))
    without_s = simulate(inputs).step_s.mean()
    assert with_s > 1.05 * without_s
    assert measure(table).gains.alone_s["input-delay"] == pytest.approx(without_s, rel=0.01)


# ------------------------------------------------------------------------------------------ by hand


def hand_measured(**options: Any) -> Measured:
    """Measure the hand-made job."""
    meta = {"dp_size": 1, "pp_size": 2, "tp_size": 1, "cp_size": 1, "vpp_size": 1, "world_size": 2, "job_id": "hand"}
    return measure(to_table(hand_job(**options), meta))


def test_the_hand_made_stage() -> None:
    """A stage of F 2 s, B 4 s behind one of F 1 s, B 2 s; evenly spread both take F 1.5 s, B 3 s: 15 s become 13.5 s."""
    m = hand_measured(slow_stage=1)
    np.testing.assert_allclose(m.breakdown.typical_s, [[1.0, 2.0], [2.0, 4.0]])
    assert m.gains.recorded_s == pytest.approx(15.0)
    assert m.gains.alone_s["stage"] == pytest.approx(13.5)
    assert m.gains.recoverable("stage") == pytest.approx(0.1)


def test_the_hand_made_job_has_nothing_to_remove() -> None:
    """9 s a step with even stages are 9 s without any component."""
    m = hand_measured()
    assert m.gains.recorded_s == pytest.approx(9.0)
    assert m.gains.clean_s == pytest.approx(9.0)


def test_the_gain_reported_is_the_one_measured() -> None:
    """What a cause says is recoverable is the gain of its component."""
    m = measured(SPEC, WORKER)
    assert m.diagnosis.causes[0].recoverable == pytest.approx(m.gains.recoverable("worker"))


def test_what_stands_still_is_no_noise() -> None:
    """Where a third of the computes of one of two stages stall, ordinary variation is the other's, and the stalls stand out."""
    spec = JobSpec(pp=2, vpp=3, dp=6, microbatches=2, steps=16, seed=9)
    fault = AllocatorStall(on_stages=(0,), stall_ratio=0.3, probability=0.35, spread=0.3, records=False)
    healthy, found = measured(spec), measured(spec, fault)
    assert found.breakdown.noise_ratio < 1.5 * healthy.breakdown.noise_ratio
    assert causes(found.diagnosis) == ["allocator-stall"]


def test_lost_computes_hide_no_documents() -> None:
    """Where single computes were not recorded the microbatches that were still tell how long they are."""
    rng = np.random.default_rng(3)
    lengths = 0.3 * rng.standard_normal((8, 12, 4))
    left = np.exp(lengths + 0.01 * rng.standard_normal((2, 4, 8, 12, 4)))
    whole = find_microbatches(left)
    left[:, rng.random((4, 8, 12, 4)) < 0.05] = np.nan
    lost = find_microbatches(left)
    assert np.std(np.log(whole.ratio)) > 0.25
    np.testing.assert_allclose(np.log(lost.ratio), np.log(whole.ratio), atol=0.05)


def test_microbatches_of_two_lengths_are_as_long_in_both_directions() -> None:
    """A third of them is 5.5 times as long, on all stages: no pause, however far out, though forwards vary more than backwards."""
    rng = np.random.default_rng(4)
    long = rng.random((6, 30, 2)) < 1.0 / 3.0
    noise = np.array([0.05, 0.02]).reshape(2, 1, 1, 1, 1) * rng.standard_normal((2, 4, 6, 30, 2))
    ratio = find_microbatches(np.where(long, 5.5, 1.0) * np.exp(noise)).ratio
    np.testing.assert_allclose(ratio[:, long], 5.5, rtol=0.1)
    np.testing.assert_allclose(ratio[:, ~long], 1.0, rtol=0.1)
