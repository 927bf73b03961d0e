"""Decoys: what they change, that they cost what they may, and that the truth about faults is told with them in the job."""

import dataclasses

import numpy as np
import pytest

from diagnose.faults.decoy import Decoy, HiddenDecoy, settle
from diagnose.faults.decoys import (
    Evaluation,
    EvenDocuments,
    HiddenPause,
    HiddenTransfer,
    HiddenWorker,
    LongerComputes,
    OrdinaryLoads,
    PlannedCollections,
    QuickCheckpoints,
    TinyCollections,
    UniformlySlow,
    WarmUp,
)
from diagnose.faults.draw_decoys import draw_decoys
from diagnose.faults.generate import generate, strip_evidence
from diagnose.faults.inputs import draw_inputs
from diagnose.faults.record import record
from diagnose.faults.sequence_imbalance import SequenceImbalance
from diagnose.faults.simulate import simulate
from diagnose.faults.spec import JobSpec, random_spec
from diagnose.faults.worker_fault import WorkerFault
from diagnose.model.optype import Op
from tests.scoring.swept_decoys import OlderMachines, UnevenExperts

SPEC = JobSpec(pp=4, dp=3, microbatches=6, steps=16, seed=21)
NUMBERS = SPEC.step_numbers()
#: A period that some sampled steps are multiples of, and not all.
PERIOD = 4
WORKER = WorkerFault(places=((1, 2),), slowdown=1.6)
PAUSE = HiddenPause(dp=0, stage=0, op=Op.FORWARD, number=3, seconds=1.0, kind=Op.GC, strengths=(1.0,) * SPEC.steps)
#: Of each kind that may cost nothing, one that would cost much at full strength.
HIDDEN: tuple[tuple[JobSpec, HiddenDecoy], ...] = (
    (SPEC, PAUSE),
    (SPEC, HiddenWorker(dp=0, stage=2, shorter=0.05, excess=0.5)),
    (
        dataclasses.replace(SPEC, p2p="asynchronous"),
        HiddenTransfer(dp=2, stage=1, first=2, seconds=0.3, strengths=(1.0,) * SPEC.steps),
    ),
    (SPEC, PlannedCollections(period_steps=PERIOD, seconds=0.5, microbatch=2, recorded=True)),
    (SPEC, PlannedCollections(period_steps=PERIOD, seconds=0.5, microbatch=None, recorded=False)),
)
#: Those that leave the step time as it is, to a part in 300.
HARMLESS = (
    TinyCollections(share=0.3, seconds=1e-4),
    EvenDocuments(packed_tokens=8192, document_tokens=1024, spread=0.02),
    QuickCheckpoints(period_steps=PERIOD, seconds=1e-3),
    OrdinaryLoads(share=0.5),
)
LOUD = (
    Evaluation(period_steps=PERIOD, slowdown=2.0),
    WarmUp(n_steps=2, slowdown=3.0),
    UniformlySlow(slowdown=1.5),
    LongerComputes(excess=0.2),
)


def changed(decoy: Decoy) -> tuple[np.ndarray, np.ndarray]:
    """Give how many times as long a decoy makes each forward and backward, and its job."""
    before = draw_inputs(SPEC)
    computes = before.programme.is_op(Op.FORWARD, Op.BACKWARD)
    ratio = decoy.apply(before).work_s[computes] / before.work_s[computes]
    return ratio, before.programme.op[computes] == int(Op.FORWARD)


def test_an_evaluation_makes_forwards_longer_in_its_steps() -> None:
    """An evaluation lengthens all forwards alike in the steps that are multiples of its period, and nothing else."""
    ratio, forward = changed(LOUD[0])
    here = NUMBERS % PERIOD == 0
    assert here.any() and not here.all()
    assert ratio[forward][:, here] == pytest.approx(2.0)
    assert (ratio[forward][:, ~here] == 1.0).all() and (ratio[~forward] == 1.0).all()


def test_a_warm_up_is_over_after_its_steps() -> None:
    """The first two steps take three times as long, those after them what they took."""
    before, after = draw_inputs(SPEC), LOUD[1].apply(draw_inputs(SPEC))
    ratio = simulate(after).step_s / simulate(before).step_s
    assert ratio == pytest.approx([3.0] * 2 + [1.0] * (SPEC.steps - 2))


def test_uniform_slowness_has_no_straggler() -> None:
    """Where all machines are slow every compute takes as many times as long."""
    assert changed(LOUD[2])[0] == pytest.approx(1.5)


def test_computes_that_are_longer_by_chance_are_so_on_all_workers() -> None:
    """As many computes as asked for are longer, by as much on average, whoever runs them."""
    ratio, _ = changed(LongerComputes(share=0.4, excess=0.2))
    assert (ratio > 1.0).mean() == pytest.approx(0.4, abs=0.02)
    assert ratio.mean(axis=(0, 1)) == pytest.approx([1.08] * 3, abs=0.015)


def test_older_machines_are_half_of_the_ranks() -> None:
    """The last half of the dp ranks computes more slowly, in every step alike."""
    ratio, _ = changed(OlderMachines(slowdown=1.3))
    assert np.unique(ratio[:, :, :2]).tolist() == [1.0]
    assert ratio[:, :, 2] == pytest.approx(1.3)


def test_uneven_experts_differ_from_stage_to_stage() -> None:
    """All dp ranks of a stage take as many times as long for a microbatch, forward as backward; other stages do not follow."""
    ratio, forward = changed(UnevenExperts(spread=0.2))
    assert np.ptp(ratio, axis=2).max() < 1e-9
    before = draw_inputs(SPEC).programme
    order = np.lexsort((before.microbatch, before.stage, before.op))
    by_place = ratio[np.argsort(np.argsort(order[np.isin(before.op[order], (0, 1))]))]
    assert forward.sum() == len(ratio) / 2
    assert np.log(ratio).std() == pytest.approx(0.2, rel=0.1)
    assert by_place.shape == ratio.shape


@pytest.mark.parametrize(("spec", "decoy"), HIDDEN, ids=lambda x: getattr(x, "name", ""))
def test_what_hides_costs_nothing(spec: JobSpec, decoy: HiddenDecoy) -> None:
    """A decoy that would cost much at full strength is there, and costs no more than it may, with a fault and mended."""
    faulty, mended = WORKER.apply(draw_inputs(spec)), draw_inputs(spec)
    runs = [lambda d, job=job: simulate(d.apply(job)).step_s for job in (faulty, mended)]
    settled = settle(decoy, runs)
    assert isinstance(settled, HiddenDecoy)
    without_s = [run(decoy.with_strengths(np.zeros(1))) for run in runs]
    assert max(run(decoy).mean() / s.mean() for run, s in zip(runs, without_s, strict=True)) > 1.0 + decoy.most
    for run, without in zip(runs, without_s, strict=True):
        with_it = run(settled)
        assert with_it.mean() / without.mean() <= 1.0 + decoy.most
        if len(decoy.strengths) > 1:
            assert (with_it / without).max() <= 1.0 + decoy.most


def test_a_hidden_pause_is_long_though_it_costs_nothing() -> None:
    """In the bubble a pause longer than a forward hides, step by step as long as it can be."""
    healthy = draw_inputs(SPEC)
    settled = settle(PAUSE, [lambda d: simulate(d.apply(healthy)).step_s])
    assert isinstance(settled, HiddenPause)
    assert settled.seconds * max(settled.strengths) > SPEC.forward_s
    trace = record(settled.apply(healthy), simulate(settled.apply(healthy))).to_pandas()
    rows = trace[(trace["optype"] == "gc") & (trace["duration"] > 0)]
    assert set(rows["dp_rank"]) == {0} and set(rows["stage"]) == {0}


def test_what_cannot_hide_is_left_out() -> None:
    """A job of one worker has no room for a pause: it has none, and its truth names none."""
    spec = dataclasses.replace(SPEC, pp=1, dp=1)
    assert generate(spec, [], [PAUSE]).truth.decoys == ()
    assert generate(SPEC, [], [PAUSE]).truth.decoys == ("hidden-pause",)


@pytest.mark.parametrize("decoy", HARMLESS, ids=lambda d: d.name)
def test_rows_that_explain_nothing(decoy: Decoy) -> None:
    """Rows of evidence without a fault come with step times that are what they were; without them it is the same job."""
    plain, decoyed = generate(SPEC), generate(SPEC, [], [decoy])
    assert decoyed.truth.step_time_s == pytest.approx(plain.truth.step_time_s, rel=1 / 300)
    assert decoyed.truth.decoys == (decoy.name,)
    assert decoyed.trace.num_rows > plain.trace.num_rows or "tokens" in decoyed.trace.column_names
    rest, without = strip_evidence(decoyed.trace), strip_evidence(plain.trace)
    assert rest.num_rows == without.num_rows and rest.column_names == without.column_names
    longest = np.abs(rest["duration"].to_numpy() - without["duration"].to_numpy()).max()
    assert longest <= plain.truth.step_time_s / 300


def test_planned_collections_are_simultaneous() -> None:
    """All workers pause after their last compute in the same steps, by a few percent as long, and the step grows by that."""
    decoy = PlannedCollections(period_steps=PERIOD, seconds=0.05, microbatch=None, recorded=True)
    inputs = decoy.apply(draw_inputs(SPEC))
    trace = record(inputs, simulate(inputs)).to_pandas()
    rows = trace[(trace["optype"] == "gc") & (trace["duration"] > 0)]
    here = NUMBERS[NUMBERS % PERIOD == 0]
    assert rows.groupby("step").size().to_dict() == dict.fromkeys(here.tolist(), SPEC.pp * SPEC.dp)
    assert rows["duration"].between(0.035, 0.07).all()


@pytest.mark.parametrize("decoy", [*LOUD, *HARMLESS], ids=lambda d: d.name)
def test_a_fault_is_mended_with_the_decoys_kept(decoy: Decoy) -> None:
    """Mended, a job with a fault and a decoy takes exactly as long as the job with the decoy alone."""
    both, alone = generate(SPEC, [WORKER], [decoy]).truth, generate(SPEC, [], [decoy]).truth
    assert both.step_time_without_any_s == both.faults[0].step_time_without_s == alone.step_time_s
    assert both.faults[0].recoverable == both.faults[0].recoverable_last > 0.1
    assert [fault.cause for fault in both.faults] == ["worker-fault"]
    assert both.decoys == alone.decoys == (decoy.name,)


def test_no_decoy_lies_about_a_fault() -> None:
    """Beside uneven documents no trace says that they are even, beside collections none that they take nothing."""
    rng = np.random.default_rng(1)
    for _ in range(150):
        spec = random_spec(rng)
        drawn = [d.name for d in draw_decoys(spec, rng, ["sequence-imbalance", "garbage-collection"])]
        assert not {"even-documents", "tiny-collections", "planned-collections"} & set(drawn)
        assert len(set(drawn)) == len(drawn) <= 2


def test_every_kind_of_decoy_is_drawn() -> None:
    """Over random jobs every kind occurs, and one job in four has none."""
    rng = np.random.default_rng(2)
    drawn = [draw_decoys(random_spec(rng), rng, []) for _ in range(600)]
    names = {decoy.name for decoys in drawn for decoy in decoys}
    assert names == {d.name for d in (*HARMLESS, *LOUD, *(decoy for _, decoy in HIDDEN))}
    assert sum(not decoys for decoys in drawn) / 600 == pytest.approx(0.25, abs=0.06)


def test_stripped_of_evidence_nothing_tells() -> None:
    """Without evidence a trace has simulated operations alone and no tokens; its times and truth are the same."""
    fault = SequenceImbalance(records_tokens=True)
    decoys = [QuickCheckpoints(period_steps=PERIOD, seconds=1e-3), TinyCollections(share=0.3, seconds=1e-4)]
    job = generate(SPEC, [fault], decoys)
    bare = generate(dataclasses.replace(SPEC, evidence=False), [fault], decoys)
    frame = job.trace.to_pandas()
    evidence = frame["optype"].isin(["gc", "cuda-malloc", "data-load", "checkpoint"])
    assert evidence.any() and "tokens_sq" in frame
    expected = frame[~evidence].drop(columns=["tokens", "tokens_sq"]).reset_index(drop=True)
    assert bare.trace.to_pandas().equals(expected)
    assert bare.trace.schema.metadata == job.trace.schema.metadata
    assert dataclasses.replace(bare.truth, spec=SPEC) == job.truth
