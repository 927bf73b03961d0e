"""How uneven microbatches are: passed on from the components, missing where there are too few."""

import dataclasses

import numpy as np
import pytest

from diagnose.faults.inputs import draw_inputs
from diagnose.faults.record import record
from diagnose.faults.sequence_imbalance import SequenceImbalance
from diagnose.faults.simulate import simulate
from diagnose.faults.spec import JobSpec
from diagnose.faults.worker_fault import WorkerFault
from diagnose.features.sequences import BUSY_CHANCE, LASTING_CHANCE, _share_told, measure_sequences
from diagnose.model.stalls import StallKind
from diagnose.numerics.chance import TOSS_UP
from tests.features.hand import N_STEPS, STEPS, components, stalls
from tests.judge.cases import measure, measured


def test_uneven_microbatches() -> None:
    """Correlation and spread are the components', the worst ratio is that of the longest forward."""
    ratio = components().microbatch_ratio.copy()
    ratio[0, 1, 4, 0], ratio[1, 1, 4, 0] = 2.5, 3.0
    parts = components(forward_backward_correlation=0.9, microbatch_spread=0.22, microbatch_ratio=ratio)
    found = measure_sequences(parts, measured(JobSpec(pp=2, dp=2, microbatches=2, steps=6)).trace)
    assert found["sequence.correlation"].value == pytest.approx(0.9)
    assert found["sequence.spread"].value == pytest.approx(0.22)
    assert found["sequence.worst_ratio"].value == pytest.approx(2.5)


def test_too_few_microbatches() -> None:
    """Where neither could be measured all are missing, with the reason."""
    trace = measured(JobSpec(pp=2, dp=2, microbatches=2, steps=6)).trace
    found = measure_sequences(components(forward_backward_correlation=None, microbatch_spread=None), trace)
    assert len(found) == 10
    assert all(feature.value is None and "microbatches" in feature.reason for feature in found.values())


def test_tokens_explain_uneven_microbatches() -> None:
    """Recorded tokens and their squares explain nearly all variation of the forwards; unrecorded, nothing is fitted."""
    spec = JobSpec(pp=2, dp=4, microbatches=8, steps=8, seed=3)
    fitted = measured(spec, SequenceImbalance(quadratic_share=0.5, records_tokens=True)).analysis.features[
        "sequence.tokens_fit"
    ]
    assert fitted.value is not None and fitted.value > 0.95
    without = measured(spec, SequenceImbalance(quadratic_share=0.5)).analysis.features["sequence.tokens_fit"]
    assert without.value is None and "tokens" in without.reason


@pytest.mark.parametrize("recorded", [True, False], ids=["more work", "slow"])
def test_steps_with_more_work_are_not_slow(recorded: bool) -> None:
    """Every third step takes twice as long: its documents say so, or they are as in other steps and nothing explains it."""
    spec = JobSpec(pp=2, dp=4, microbatches=8, steps=24, seed=3)
    inputs = SequenceImbalance(quadratic_share=0.3, records_tokens=True).apply(draw_inputs(spec))
    assert inputs.tokens is not None and inputs.tokens_sq is not None
    more = np.where(np.arange(spec.steps) % 3 == 0, 2.0, 1.0)[:, None]
    told = more if recorded else 1.0
    inputs = dataclasses.replace(
        inputs, work_s=inputs.work_s * more, tokens=inputs.tokens * told, tokens_sq=inputs.tokens_sq * told
    )
    job = measure(record(inputs, simulate(inputs)))
    assert (job.analysis.features["sequence.slow_steps"].value > 0.8) == recorded
    assert ("unknown" in [cause.cause for cause in job.diagnosis.causes]) != recorded


def test_steps_that_grow_with_their_tokens_are_more_work() -> None:
    """By 60% during the job: the fit is held against steps that are as long as usual, and all of it is computing, nothing lost."""
    spec = JobSpec(pp=2, dp=4, microbatches=8, steps=30, seed=3, contiguous=True)
    inputs = SequenceImbalance(quadratic_share=0.3, records_tokens=True).apply(draw_inputs(spec))
    assert inputs.tokens is not None and inputs.tokens_sq is not None
    more = np.linspace(1.0, 1.6, spec.steps)[:, None]
    even = dataclasses.replace(
        inputs,
        work_s=draw_inputs(spec).work_s * more,
        tokens=np.round(np.full(inputs.tokens.shape, 4096.0) * more),
        tokens_sq=np.round(np.full(inputs.tokens_sq.shape, 4096.0**2) * more),
    )
    job = measure(record(even, simulate(even)))
    assert job.analysis.features["sequence.slow_steps"].value > 0.8
    assert job.diagnosis.causes == () and job.diagnosis.why.startswith("steps with more tokens take longer")
    assert job.diagnosis.why not in job.diagnosis.warnings
    assert job.diagnosis.budget is not None and job.diagnosis.budget.lost["unexplained"] < 0.03


def test_a_step_has_the_work_of_all_or_of_the_ranks_that_say_how_long_it_is() -> None:
    """One rank in three says it, by its usual microbatch: where the others have less, or its next ones, the mean is no measure."""
    fitted_s = np.ones((4, 12, 4))  # (n_microbatches, n_steps, n_dp)
    fitted_s[:, 1] = 1.5
    fitted_s[:, 2, 0], fitted_s[:, 2, 1:] = 0.2, 1.5
    fitted_s[0, 3], fitted_s[1:, 3] = 0.2, 1.5
    fitted_s[:, 4, :2] = 2.0
    for step, told in ((1, 1.0), (2, 1.0), (3, 1.0), (4, 1.0), (5, 0.0)):
        assert _share_told(fitted_s, np.where(np.arange(12) == step, 1.5, 1.0)) == pytest.approx(told)
    assert _share_told(fitted_s, np.ones(12)) is None


def test_few_microbatches_are_not_fitted() -> None:
    """Seven forwards with tokens are too few for a fit, which would explain nearly any seven; eight are fitted."""
    spec = JobSpec(pp=2, dp=4, microbatches=8, steps=8, seed=3)
    job = measured(spec, SequenceImbalance(quadratic_share=0.5, records_tokens=True))
    for n_left, is_fitted in ((7, False), (8, True)):
        compute_s = job.breakdown.compute_s.copy()
        compute_s[0, 0].reshape(-1)[n_left:] = np.nan
        found = measure_sequences(dataclasses.replace(job.breakdown, compute_s=compute_s), job.trace)
        assert (found["sequence.tokens_fit"].value is not None) == is_fitted


@pytest.mark.parametrize(
    ("microbatches", "steps", "doubt"),
    [
        (slice(1), slice(None, None, 3), 0.0),
        (slice(None), slice(None, None, 3), LASTING_CHANCE),
        (slice(None), slice(3, None), LASTING_CHANCE),
    ],
    ids=["one now and then", "all now and then", "all for a while"],
)
def test_ranks_that_are_slow_for_a_while_have_no_long_documents(
    microbatches: slice, steps: slice, doubt: float
) -> None:
    """Documents are dealt anew for each microbatch; what a rank has in all, or in one step and in the next, is its machine's."""
    ratio = components().microbatch_ratio.copy()
    ratio[:, microbatches, steps, 0] = 1.3
    parts = components(forward_backward_correlation=0.9, microbatch_spread=0.22, microbatch_ratio=ratio)
    trace = measured(JobSpec(pp=2, dp=2, microbatches=2, steps=6)).trace
    assert measure_sequences(parts, trace)["sequence.other_doubt"].value == doubt
    assert (
        measure_sequences(dataclasses.replace(parts, has_token_costs=True), trace)["sequence.other_doubt"].value is None
    )


def test_batches_that_are_dealt_by_turns_are_documents() -> None:
    """Who is slow in one step is as quick in the next: no machine is quicker than its peers."""
    spec = JobSpec(pp=2, dp=4, microbatches=4, steps=16, seed=5)
    inputs = draw_inputs(spec)
    batches = np.linspace(0.7, 1.3, spec.dp) * np.ones((spec.steps, 1))
    batches[1::2] = batches[1::2, ::-1]
    job = measure(record(even := dataclasses.replace(inputs, work_s=inputs.work_s * batches), simulate(even)))
    assert [cause.cause for cause in job.diagnosis.causes] == ["sequence-imbalance"]
    assert job.diagnosis.causes[0].recoverable == pytest.approx(0.23, abs=0.05)
    assert job.analysis.features["sequence.other_doubt"].value == 0.0


@pytest.mark.parametrize(
    ("alike", "near_in_time", "doubt"),
    [(0.6, True, BUSY_CHANCE), (0.75, True, 0.5 * BUSY_CHANCE), (0.9, True, 0.0), (0.6, False, 0.0)],
)
def test_with_one_stage_busy_hosts_look_like_documents(alike: float, *, near_in_time: bool, doubt: float) -> None:
    """A busy host slows what is near in time, so that a backward is like the forward after it, too; documents are anew in it."""
    rng = np.random.default_rng(0)
    n_microbatches, n_steps, n_dp = 6, len(STEPS), 8
    if near_in_time:
        noise = rng.standard_normal((2 * n_microbatches + 1, n_steps, n_dp))
        logs = np.swapaxes((noise[1:] + noise[:-1]).reshape(n_microbatches, 2, n_steps, n_dp), 0, 1)
    else:
        logs = np.repeat(rng.standard_normal((1, n_microbatches, n_steps, n_dp)), 2, axis=0)
    parts = components(
        n_stages=1,
        n_dp=n_dp,
        n_microbatches=n_microbatches,
        compute_s=np.exp(0.1 * logs)[:, None],
        forward_backward_correlation=alike,
        microbatch_spread=0.22,
    )
    trace = measured(JobSpec(pp=2, dp=2, microbatches=2, steps=6)).trace
    assert measure_sequences(parts, trace)["sequence.other_doubt"].value == pytest.approx(doubt)


@pytest.mark.parametrize(
    ("n_ranks", "n_stages", "doubt"), [(2, 1, TOSS_UP), (6, 1, 0.0), (2, 2, 0.0)], ids=["few", "all", "stages agree"]
)
def test_documents_of_few_ranks_may_be_their_machines(n_ranks: int, n_stages: int, doubt: float) -> None:
    """Documents are dealt to all ranks: where the microbatches of most are even, those of two are long or their machines slow."""
    rng = np.random.default_rng(1)
    logs = 0.02 * rng.standard_normal((4, len(STEPS), 6))
    logs[..., :n_ranks] += np.where(rng.random((4, len(STEPS), n_ranks)) < 0.5, 0.5, 0.0)
    parts = components(
        n_stages=n_stages,
        n_dp=6,
        n_microbatches=4,
        forward_backward_correlation=0.9,
        microbatch_spread=0.22,
        microbatch_ratio=np.exp(np.stack([logs, logs])),
    )
    trace = measured(JobSpec(pp=2, dp=2, microbatches=2, steps=6)).trace
    assert measure_sequences(parts, trace)["sequence.worker_doubt"].value == doubt


def test_most_replicas_that_fall_behind_have_no_long_documents() -> None:
    """Three of four replicas get slow: who they are is not known, and documents are not blamed for it."""
    spec = JobSpec(pp=2, dp=4, microbatches=4, steps=16, seed=5)
    slow = WorkerFault(places=tuple((dp, stage) for dp in range(3) for stage in range(2)), slowdown=1.5, onset=4)
    causes = measured(spec, slow).diagnosis.causes
    assert causes[0].cause == "unknown"
    assert all(cause.cause != "sequence-imbalance" for cause in causes)
    assert "tokens" in causes[0].evidence[-1].text


@pytest.mark.parametrize(
    ("stopped", "stopped_s", "n_long", "recorded", "doubt"),
    [
        (1.0, 5.0, 4, False, TOSS_UP),
        (1.0, 5.0, 4, True, 0.0),
        (0.25, 5.0, 4, False, 0.0),
        (0.0, 5.0, 4, False, 0.0),
        (1.0, 1.0, 4, False, 0.0),
        (1.0, 20.0, 4, False, 0.0),
        (1.0, 5.0, 6, False, 0.0),
    ],
    ids=["as many", "gc rows tell of them", "few", "none", "shorter ones", "longer ones", "many long documents"],
)
def test_stopped_processes_look_like_few_long_documents(
    stopped: float, stopped_s: float, n_long: int, *, recorded: bool, doubt: float
) -> None:
    """With one stage some microbatches are long both ways; where as many forwards alone are, for as long, a process was stopped."""
    rng = np.random.default_rng(7)
    compute_s = rng.normal([[[[[1.0]]]], [[[[2.0]]]]], 0.01, (2, 1, 2, N_STEPS, 4))
    compute_s[:, 0, 1, 2 : 2 + n_long, [0, 2]] += 3.0  # as long as the documents of a microbatch say, both ways
    n_stopped = int(stopped * 8)
    compute_s[0, 0, 0, 1 : 1 + n_stopped, 1] += stopped_s
    places = {(0, 0, 0, step, 1): (stopped_s, StallKind.COLLECTION) for step in range(1, 1 + n_stopped)}
    parts = components(
        n_stages=1,
        n_dp=4,
        compute_s=compute_s,
        stalls=stalls(compute_s.shape, places, recorded=places if recorded else ()),
        forward_backward_correlation=0.9,
        microbatch_spread=0.2,
    )
    trace = measured(JobSpec(pp=2, dp=2, microbatches=2, steps=6)).trace
    assert measure_sequences(parts, trace)["sequence.paused_doubt"].value == doubt
