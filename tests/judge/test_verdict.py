"""The verdict: what is reported, in which order, how the lost time is shared out, and what could not be said."""

import dataclasses
from typing import Any

import numpy as np
import pyarrow.compute as pc
import pytest

from diagnose.faults.checkpoint_stall import CheckpointStall
from diagnose.faults.network_fault import NetworkFault
from diagnose.faults.sequence_imbalance import SequenceImbalance
from diagnose.faults.spec import JobSpec
from diagnose.faults.stage_imbalance import StageImbalance
from diagnose.faults.worker_fault import WorkerFault
from diagnose.judge.classifier import Prediction
from diagnose.judge.confidence import MAX_REPLAY_ERROR
from diagnose.judge.unchecked import name_unchecked
from diagnose.judge.unknown import UNKNOWN_SHARE
from diagnose.judge.verdict import (
    MIN_STEPS,
    Verdict,
    reach_verdict,
)
from diagnose.judge.worth import measure_alone
from diagnose.model.analysis import Analysis
from diagnose.model.diagnosis import Diagnosis
from diagnose.model.diagnosis_document import Fidelity
from diagnose.model.feature import Feature
from diagnose.model.recording import Account, Unobserved
from tests.judge.cases import built_in, causes, culprits, diagnose_table, diagnosed, judge, make, measured

SPEC = JobSpec(pp=4, dp=4, microbatches=8, steps=10, seed=5)
SLOW = WorkerFault(places=((1, 2),), slowdown=1.6)
STAGE = StageImbalance(stage=-1, forward_slowdown=1.7, backward_slowdown=1.4)
SEQUENCES = SequenceImbalance(quadratic_share=0.5)
#: What removing the fault alone is worth in this job: little, some, much.
WEAK, STRONG = WorkerFault(places=((1, 2),), slowdown=1.05), WorkerFault(places=((1, 2),), slowdown=3.0)
SEVERAL = [(SLOW,), (STAGE,), (SEQUENCES,), (SLOW, SEQUENCES), (STAGE, SEQUENCES), (SLOW, STAGE, SEQUENCES)]


def reach(
    analysis: Analysis, *, min_speedup: float = 1.02, prediction: Prediction | None = None, **changes: Any
) -> Verdict:
    """Judge a case by the built-in rules, some of it changed."""
    changed = dataclasses.replace(analysis, **changes)
    return reach_verdict(changed, judge(changed), min_speedup=min_speedup, prediction=prediction)


def names(faults: tuple[Any, ...]) -> str:
    """Name a combination of faults."""
    return "+".join(fault.cause for fault in faults)


# ------------------------------------------------------------------------------------------ what is reported


@pytest.mark.parametrize("faults", SEVERAL, ids=names)
def test_each_fault_of_a_job_is_reported_and_no_other(faults: tuple[Any, ...]) -> None:
    """One, two or three faults in one job are one, two or three causes."""
    found = diagnosed(SPEC, *faults)
    assert found.verdict == "straggling"
    assert set(causes(found)) == {fault.cause for fault in faults}


@pytest.mark.parametrize("faults", SEVERAL, ids=names)
def test_causes_are_sorted_by_share(faults: tuple[Any, ...]) -> None:
    """The cause with the largest part of the lost time stands first."""
    shares = [cause.share for cause in diagnosed(SPEC, *faults).causes]
    assert None not in shares
    assert shares == sorted(shares, reverse=True)


def test_the_order_follows_the_shares_alone() -> None:
    """Where the shares are swapped, so are the causes."""
    analysis = measured(SPEC, SLOW, STAGE, SEQUENCES).analysis
    for worker, stage, microbatch in ((0.6, 0.3, 0.1), (0.1, 0.6, 0.3), (0.3, 0.1, 0.6)):
        share = {"worker": worker, "stage": stage, "microbatch": microbatch}
        found = reach(analysis, gains=dataclasses.replace(analysis.gains, share=share))
        expected = {"worker-fault": worker, "stage-imbalance": stage, "sequence-imbalance": microbatch}
        assert [cause.cause for cause in found.causes] == sorted(expected, key=lambda name: -expected[name])


def test_a_fault_worth_less_than_asked_for_is_not_reported() -> None:
    """A worker 2% behind costs less than 2%: it is not reported, and the job is healthy."""
    truth = make(SPEC, WorkerFault(places=((1, 2),), slowdown=1.02)).truth.faults[0]
    assert 0.0 < truth.recoverable < 0.015
    found = diagnosed(SPEC, WorkerFault(places=((1, 2),), slowdown=1.02))
    assert (found.verdict, found.causes) == ("healthy", ())


@pytest.mark.parametrize("fault", [WEAK, SLOW, STRONG, STAGE, SEQUENCES], ids=lambda f: f"{f.cause} {f.strength}")
def test_the_least_speedup_is_honoured(fault: Any) -> None:
    """A cause is reported just below the speedup that its removal gives, and not just above."""
    analysis = measured(SPEC, fault).analysis
    (rule,) = [j.rule for j in judge(analysis) if j.rule.id == fault.cause]
    speedup = 1.0 / (1.0 - measure_alone(analysis.gains, rule.components).gain)
    assert fault.cause in [c.cause for c in reach(analysis, min_speedup=speedup - 1e-6).causes]
    assert fault.cause not in [c.cause for c in reach(analysis, min_speedup=speedup + 1e-6).causes]


def test_the_least_speedup_is_an_option_of_the_diagnosis() -> None:
    """The same job is straggling where 5% are asked for, and healthy where three times as fast is."""
    table = make(SPEC, SLOW).trace
    assert diagnose_table(table, min_speedup=1.05).verdict == "straggling"
    assert diagnose_table(table, min_speedup=3.0).verdict == "healthy"


def test_no_gain_at_all_is_never_reported() -> None:
    """Even where every speedup is asked for, a healthy job's causes give something back."""
    found = diagnose_table(make(SPEC).trace, min_speedup=1.0)
    assert all(cause.recoverable > 0 or (cause.share or 0) > 0 for cause in found.causes)


@pytest.mark.parametrize("faults", SEVERAL, ids=names)
def test_figures_of_a_cause_fit_together(faults: tuple[Any, ...]) -> None:
    """A fix's speedup is recorded over predicted step time; one that takes the cause away gives back what is recoverable."""
    found = diagnosed(SPEC, *faults)
    for cause in found.causes:
        assert 0.0 <= cause.confidence <= 1.0
        assert cause.evidence
        assert cause.fixes
        for fix in cause.fixes:
            if fix.fix == "replace-worker":
                without_s = found.step_time.recorded * (1 - cause.recoverable)
                assert fix.predicted_step_time == pytest.approx(without_s, rel=1e-6)
            assert fix.predicted_speedup == pytest.approx(found.step_time.recorded / fix.predicted_step_time, rel=1e-9)


def test_confidence_falls_near_the_least_speedup() -> None:
    """A fault far above what is asked for is surer than one at the limit, which is an even chance at most."""
    analysis = measured(SPEC, SLOW).analysis
    speedup = 1.0 / (1.0 - measure_alone(analysis.gains, ("worker",)).gain)
    far, near = (reach(analysis, min_speedup=s).causes[0].confidence for s in (1.02, speedup - 1e-9))
    assert far > 0.9
    assert near <= 0.5


# ------------------------------------------------------------------------------------------ nothing to be said


@pytest.mark.parametrize("n_steps", [1, 2])
@pytest.mark.parametrize("faults", [(), (STRONG,)], ids=["healthy", "slow worker"])
def test_too_few_steps_are_inconclusive(n_steps: int, faults: tuple[Any, ...]) -> None:
    """One step or two say nothing, whatever they look like, and the report says why."""
    found = diagnosed(dataclasses.replace(SPEC, steps=n_steps), *faults)
    assert n_steps < MIN_STEPS
    assert (found.verdict, found.causes, found.ledger) == ("inconclusive", (), None)
    assert any("step" in warning for warning in found.warnings)


def test_enough_steps_are_conclusive() -> None:
    """From the least number of steps on a slow worker is named."""
    assert causes(diagnosed(dataclasses.replace(SPEC, steps=MIN_STEPS), STRONG)) == ["worker-fault"]


@pytest.mark.parametrize("faults", [(), (SLOW,)], ids=["healthy", "slow worker"])
def test_an_unfaithful_replay_is_inconclusive(faults: tuple[Any, ...]) -> None:
    """Where the replay misses the recorded step time by more than 5%, nothing is reported, and the report says so."""
    analysis = measured(SPEC, *faults).analysis
    error = MAX_REPLAY_ERROR + 0.001
    found = reach(analysis, fidelity=Fidelity(analysis.fidelity.discrepancy, error, ok=False))
    assert (found.verdict, found.causes, found.ledger) == ("inconclusive", (), None)
    assert any("replay" in warning for warning in found.warnings)
    assert reach(analysis).verdict == ("straggling" if faults else "healthy")


# ------------------------------------------------------------------------------------------ the ledger


@pytest.mark.parametrize("faults", SEVERAL, ids=names)
def test_the_ledger_sums_to_one(faults: tuple[Any, ...]) -> None:
    """Causes and unexplained are all of the lost time, and so are components and immaterial."""
    found = diagnosed(SPEC, *faults)
    ledger = found.ledger
    assert ledger is not None
    assert sum(ledger.causes.values()) + ledger.unexplained == pytest.approx(1.0, abs=1e-9)
    assert sum(ledger.components.values()) + ledger.immaterial == pytest.approx(1.0, abs=1e-9)
    assert ledger.causes == {cause.cause: cause.share for cause in found.causes}
    assert ledger.unexplained < 0.25


def test_the_ledger_of_a_healthy_job_is_null() -> None:
    """Nothing was lost, so nothing is shared out."""
    found = diagnosed(SPEC)
    assert (found.verdict, found.ledger, found.to_dict()["ledger"]) == ("healthy", None, None)


def test_lost_time_is_against_the_clean_job() -> None:
    """The clean step time is near that of the job without its faults, and wasted hours are what lies above it."""
    for faults in SEVERAL:
        found, truth = diagnosed(SPEC, *faults), make(SPEC, *faults).truth
        assert found.step_time.clean == pytest.approx(truth.step_time_without_any_s, rel=0.03), names(faults)
        wasted = 1.0 - found.step_time.clean / found.step_time.recorded
        assert found.gpu_hours_wasted == pytest.approx(wasted * found.gpu_hours_analysed, rel=1e-9)


# ------------------------------------------------------------------------------------------ unknown, and not checked


def silent(analysis: Analysis) -> Verdict:
    """Judge a case by rules of which none fires."""
    judgements = [dataclasses.replace(j, fires=False, missing=()) for j in judge(analysis)]
    return reach_verdict(analysis, judgements, min_speedup=1.02)


@pytest.mark.parametrize(("fault", "component"), [(SLOW, "worker"), (STAGE, "stage"), (SEQUENCES, "microbatch")])
def test_lost_time_without_a_rule_is_unknown(fault: Any, component: str) -> None:
    """A component worth 5% or more that no rule explains is a finding, with its own gain and share."""
    analysis = measured(SPEC, fault).analysis
    assert analysis.gains.recoverable(component) > UNKNOWN_SHARE
    found = silent(analysis)
    assert [cause.cause for cause in found.causes] == ["unknown"]
    (cause,) = found.causes
    assert cause.recoverable == pytest.approx(analysis.gains.recoverable(component))
    assert cause.share == pytest.approx(analysis.gains.share[component])
    assert found.ledger is not None
    assert set(found.ledger.causes) == {"unknown"}


def test_the_unknown_is_not_named_twice() -> None:
    """Where a rule fires for the component that costs most, nothing is unknown."""
    found = reach(measured(SPEC, SLOW).analysis)
    assert [cause.cause for cause in found.causes] == ["worker-fault"]


def test_what_cannot_be_looked_for_is_not_blamed_as_unknown() -> None:
    """Where a recording cannot show slow workers, what looks like one is not checked, and nobody is named for it."""
    analysis = measured(SPEC, SLOW).analysis
    account = Account(
        "theirs", unobserved=(Unobserved("ends of computes", "only the host's times", ("worker-times",)),)
    )
    recording = name_unchecked(account, built_in().rules)
    found = reach(analysis, trace=dataclasses.replace(analysis.trace, recording=recording))
    assert [worker for cause in found.causes for worker in cause.where.workers] == []
    assert [cause.cause for cause in found.causes] == []
    assert [entry.reason for entry in found.not_checked if entry.cause == "worker-fault"] == [
        "ends of computes: only the host's times"
    ]


def test_a_little_lost_time_without_a_rule_is_ordinary() -> None:
    """Below 5% what no rule explains is variation, and the job is healthy."""
    analysis = measured(SPEC, WEAK).analysis
    assert 0.01 < analysis.gains.recoverable("worker") < UNKNOWN_SHARE
    assert silent(analysis).verdict == "healthy"


def test_one_dp_rank_leaves_slow_workers_unchecked() -> None:
    """Without peers nobody can say that a worker is slow: it is not checked, and the reason says why."""
    for faults in ((), (STAGE,)):
        found = diagnosed(dataclasses.replace(SPEC, dp=1), *faults)
        reasons = {entry.cause: entry.reason for entry in found.not_checked}
        assert "dp rank" in reasons["worker-fault"], faults
        assert "worker-fault" not in found.checked


@pytest.mark.parametrize("spec", [SPEC, dataclasses.replace(SPEC, dp=1), dataclasses.replace(SPEC, pp=1)], ids=str)
def test_each_rule_is_checked_or_not_and_says_so(spec: JobSpec) -> None:
    """Every rule is in exactly one of the lists, and each that was not checked has a reason."""
    found = diagnosed(spec)
    not_checked = [entry.cause for entry in found.not_checked]
    ids = sorted(j.rule.id for j in judge(measured(spec).analysis))
    assert sorted([*found.checked, *not_checked]) == ids
    assert all(entry.reason for entry in found.not_checked)


def test_a_missing_feature_of_a_cause_worth_nothing_is_no_gap() -> None:
    """What could not be measured matters only where time may be lost to it."""
    analysis = measured(SPEC).analysis
    features = analysis.features | {
        "sequence.spread": Feature.missing("lost"),
        "sequence.correlation": Feature.missing("lost"),
    }
    assert "sequence-imbalance" in reach(analysis, features=features).checked
    analysis = measured(SPEC, SEQUENCES).analysis
    features = analysis.features | {
        "sequence.spread": Feature.missing("lost"),
        "sequence.correlation": Feature.missing("lost"),
    }
    found = reach(analysis, features=features)
    assert [(e.cause, e.reason) for e in found.not_checked] == [
        ("sequence-imbalance", "sequence.correlation: lost; sequence.spread: lost")
    ]


# ------------------------------------------------------------------------------------------ fingerprints


def fingerprint(found: Diagnosis) -> str:
    """Give the fingerprint of the first cause."""
    return found.causes[0].fingerprint


@pytest.mark.parametrize("fault", [SLOW, STAGE, SEQUENCES], ids=lambda fault: fault.cause)
def test_a_fingerprint_is_of_the_family_and_not_of_the_run(fault: Any) -> None:
    """Another run of the same family, other seed, name, steps and strength, has the same fingerprint."""
    again = dataclasses.replace(SPEC, seed=99, job_id="another-run", steps=14, forward_s=0.07, noise=0.7)
    field = "slowdown" if fault is SLOW else "forward_slowdown" if fault is STAGE else "quadratic_share"
    other = dataclasses.replace(fault, **{field: fault.strength * 1.1})
    assert fingerprint(diagnosed(SPEC, fault)) == fingerprint(diagnosed(again, other))


def test_fingerprints_differ_by_cause_place_and_family() -> None:
    """Another cause, another worker, another stage or another layout is another fault."""
    found = [
        diagnosed(SPEC, SLOW),
        diagnosed(SPEC, WorkerFault(places=((2, 2),), slowdown=1.6)),
        diagnosed(SPEC, WorkerFault(places=((1, 1),), slowdown=1.6)),
        diagnosed(SPEC, STAGE),
        diagnosed(SPEC, StageImbalance(stage=1, forward_slowdown=1.7, backward_slowdown=1.4)),
        diagnosed(SPEC, SEQUENCES),
        diagnosed(dataclasses.replace(SPEC, dp=3), SLOW),
        diagnosed(dataclasses.replace(SPEC, tp_size=2), SLOW),
    ]
    assert len({fingerprint(diagnosis) for diagnosis in found}) == len(found)


def test_a_fingerprint_is_the_same_beside_another_fault() -> None:
    """A slow worker is the same slow worker whether documents are long or not."""
    alone, beside = diagnosed(SPEC, SLOW), diagnosed(SPEC, SLOW, SEQUENCES)
    assert fingerprint(alone) in [cause.fingerprint for cause in beside.causes]
    assert culprits(alone, "worker-fault") == culprits(beside, "worker-fault") == [(1, 2)]


# ------------------------------------------------------------------------------------------ places and times


@pytest.mark.parametrize("onset", [None, 4], ids=["from the start", "from the fifth step"])
def test_a_slow_worker_is_dated(onset: int | None) -> None:
    """A worker that is slow from a step on has that step as its onset; one that always was has none."""
    spec = dataclasses.replace(SPEC, steps=16)
    fault = dataclasses.replace(SLOW, onset=onset)
    (cause,) = diagnosed(spec, fault).causes
    expected = None if onset is None else int(spec.step_numbers()[onset])
    assert (cause.when.pattern, cause.when.onset_step) == ("constant" if onset is None else "onset", expected)


def test_two_slow_workers_are_named_worst_first() -> None:
    """The worker that loses more is named first, though its number is higher."""
    faults = (WorkerFault(places=((0, 0),), slowdown=1.5), WorkerFault(places=((3, 1),), slowdown=2.0))
    assert culprits(diagnosed(dataclasses.replace(SPEC, dp=8), *faults), "worker-fault") == [(3, 1), (0, 0)]


def test_hosts_are_named_where_the_trace_has_them() -> None:
    """The host of the slow worker is named, and its fingerprint says so."""
    job = make(SPEC, SLOW)
    table = job.trace
    where = [f"node-{dp}-{s}" for dp, s in zip(table["dp_rank"].to_pylist(), table["stage"].to_pylist(), strict=True)]
    found = diagnose_table(table.append_column("host", [np.array(where)]))
    (cause,) = found.causes
    assert cause.where.hosts == ("node-1-2",)
    assert cause.where.workers[0].host == "node-1-2"
    assert fingerprint(found) != fingerprint(diagnosed(SPEC, SLOW))


# ------------------------------------------------------------------------------------------ rule, classifier and doubts


def prediction(cause: str, probability: float, unlike: str | None = None) -> Prediction:
    """Give a classifier's prediction on one cause."""
    return Prediction({cause: probability}, {cause: 0.0}, {cause: 0.0}, 0.0, unlike, {})


def slow_job() -> Analysis:
    """Measure a job with a slow worker."""
    return measured(SPEC, WorkerFault(places=((1, 2),), slowdown=1.6)).analysis


def test_agreement_and_disagreement() -> None:
    """The surer the classifier the surer the cause; where it objects the evidence says so, and at last it is not said."""
    analysis = slow_job()
    said = {p: reach(analysis, prediction=prediction("worker-fault", p)).causes for p in (0.99, 0.2, 0.001)}
    alone = reach(analysis).causes[0].confidence
    assert said[0.2][0].confidence < alone < said[0.99][0].confidence
    texts = [item.text for item in said[0.2][0].evidence if item.source == "classifier"]
    assert len(texts) == 1
    assert "disagree" in texts[0]
    assert "worker-fault" not in [cause.cause for cause in said[0.001]]


def forwards_only() -> Analysis:
    """Measure a job with a slow worker whose backwards, as the features have it, are not slow."""
    analysis = slow_job()
    return dataclasses.replace(analysis, features=analysis.features | {"worker.backward_ratio": Feature(1.0)})


def test_a_sure_classifier_is_heard_where_the_rule_is_silent() -> None:
    """What gives back much is named with less confidence, and the evidence says which condition fails."""
    (cause,) = reach(forwards_only(), prediction=prediction("worker-fault", 0.97)).causes
    assert cause.cause == "worker-fault"
    assert cause.confidence < 0.8 < reach(slow_job(), prediction=prediction("worker-fault", 0.97)).causes[0].confidence
    (silent,) = [item for item in cause.evidence if item.id == "worker-fault/silent"]
    assert "worker.backward_ratio to be at least 1.015, and it is 1;" in silent.text
    assert not any("the rule holds" in item.text for item in cause.evidence)


@pytest.mark.parametrize(("probability", "unlike"), [(0.8, None), (0.97, "nothing like it")], ids=["unsure", "unlike"])
def test_a_classifier_that_does_not_know_says_nothing(probability: float, unlike: str | None) -> None:
    """Where the rule is silent, an unsure classifier, or one that knows no such job, names no cause: the time is unknown."""
    found = reach(forwards_only(), prediction=prediction("worker-fault", probability, unlike))
    assert [cause.cause for cause in found.causes] == ["unknown"]


def test_a_classifier_alone_names_nothing_small() -> None:
    """Below 5% of the step a silent rule is not overruled."""
    analysis = measured(SPEC, WEAK).analysis
    features = analysis.features | {"worker.backward_ratio": Feature(1.0)}
    assert reach(analysis, features=features, prediction=prediction("worker-fault", 0.999)).causes == ()


def test_a_job_unlike_any_other_is_judged_by_rules_and_less_sure() -> None:
    """Where the job is unlike training the classifier's probability does not count, confidence falls, and a warning says why."""
    verdict = reach(slow_job(), prediction=prediction("worker-fault", 0.001, unlike="nothing like it"))
    assert 0.5 < verdict.causes[0].confidence < 0.9 * reach(slow_job()).causes[0].confidence
    assert any("nothing like it" in warning for warning in verdict.warnings)


@pytest.mark.parametrize(("hits", "doubted"), [(1.0, True), (2.0, True), (3.0, False)])
def test_a_stall_that_happened_too_seldom_is_a_guess(hits: float, doubted: bool) -> None:
    """Without rows, once or twice shows no period: the checkpoint is less sure, no period is said, and the evidence says so."""
    analysis = measured(
        SPEC, CheckpointStall(period_steps=3, duration_s=2.0, where="before", phase=0, recorded=False)
    ).analysis
    analysis = dataclasses.replace(analysis, features=analysis.features | {"stall.hits": Feature(hits)})
    (cause,) = [c for c in reach(analysis).causes if c.cause == "checkpoint-stall"]
    assert any(item.id.endswith("/rare") for item in cause.evidence) == doubted
    assert (cause.confidence < 0.8) == doubted
    assert (cause.when.pattern == "periodic") != doubted


def test_faults_of_different_links_have_different_fingerprints() -> None:
    """Two slow links, neither of which names a worker, are two faults."""
    spec = JobSpec(pp=4, dp=4, microbatches=8, steps=10, seed=5)
    found = [diagnosed(spec, NetworkFault(scope="link", dp_rank=2, stage=stage, slowdown=60.0)) for stage in (0, 1)]
    causes_found = [next(c for c in one.causes if c.cause == "network-fault") for one in found]
    assert all(not c.where.workers and c.where.links for c in causes_found)
    assert causes_found[0].fingerprint != causes_found[1].fingerprint


def test_a_rank_without_a_microbatch_is_no_short_one() -> None:
    """A dp rank that runs one microbatch fewer makes the microbatches no more uneven."""
    table = make(JobSpec(pp=1, dp=4, microbatches=8, steps=10, seed=2)).trace
    gone = pc.and_(pc.equal(table["dp_rank"], 3), pc.equal(table["mb_id"], 7))
    found = diagnose_table(table.filter(pc.invert(gone)))
    assert causes(found) == []
    assert found.features["sequence.spread"] < 0.06


SAVING = JobSpec(pp=3, dp=4, microbatches=4, steps=12, absolute_times=True, seed=8)


@pytest.mark.parametrize("where", ["between", "before", "inside"])
def test_the_rank_that_saves_alone_is_named(where: Any) -> None:
    """Where only dp rank 0 saves, it is named on all its stages, and nobody else."""
    fault = CheckpointStall(period_steps=3, duration_s=3.0, first_rank_only=True, where=where)
    found = diagnosed(SAVING, fault)
    assert set(culprits(found, "checkpoint-stall")) == {(0, stage) for stage in range(SAVING.pp)}


def test_nobody_is_named_for_what_no_row_tells_of() -> None:
    """A gap between steps without rows is nobody's, though some worker is always a little late; one of all ranks is all's."""
    for fault in (
        CheckpointStall(period_steps=3, duration_s=3.0, first_rank_only=True, recorded=False),
        CheckpointStall(period_steps=3, duration_s=3.0),
    ):
        analysis = measured(SAVING, fault).analysis
        late = np.zeros((SAVING.dp, SAVING.pp))
        late[2, 1] = 1e-6
        gains = dataclasses.replace(analysis.gains, blame_s={"start-delay": late} | analysis.gains.blame_s)
        (cause,) = reach(analysis, gains=gains).causes
        assert (cause.cause, cause.where.workers) == ("checkpoint-stall", ())
