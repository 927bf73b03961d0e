"""The verdict: what is reported, in which order, how the lost time is shared out, and what could not be said."""

import dataclasses
import functools
import json
import math
from collections.abc import Callable
from typing import Any

import msgspec.structs
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from scipy import stats

from diagnose.faults.checkpoint_stall import CheckpointStall
from diagnose.faults.decoys import Evaluation
from diagnose.faults.generate import generate
from diagnose.faults.inputs import draw_inputs
from diagnose.faults.network_fault import NetworkFault
from diagnose.faults.planned_work import PlannedWork
from diagnose.faults.sequence_imbalance import SequenceImbalance
from diagnose.faults.simulate import simulate
from diagnose.faults.spec import JobSpec
from diagnose.faults.stage_imbalance import StageImbalance
from diagnose.faults.worker_fault import WorkerFault
from diagnose.judge.alternatives import merge_alternatives
from diagnose.judge.caveats import list_caveats
from diagnose.judge.classifier import Prediction
from diagnose.judge.confidence import MAX_REPLAY_ERROR, chance_above, check_fidelity, student_below, trust_looks
from diagnose.judge.evidence import list_evidence
from diagnose.judge.rest import describe_unlooked
from diagnose.judge.rule import Condition, Group, RuleAlternative
from diagnose.judge.unchecked import name_unchecked
from diagnose.judge.unknown import UNKNOWN_SHARE
from diagnose.judge.verdict import (
    MIN_STEPS,
    Verdict,
    reach_verdict,
)
from diagnose.judge.worth import Benefit, measure_alone
from diagnose.model.analysis import Analysis
from diagnose.model.cause import Alternative
from diagnose.model.diagnosis import Diagnosis
from diagnose.model.diagnosis_document import Fidelity
from diagnose.model.feature import Feature
from diagnose.model.optype import Op
from diagnose.model.place import Where
from diagnose.model.recording import Account, Unobserved
from diagnose.model.transfers import SlowPlaces
from diagnose.model.whatif import WhatIf
from tests.judge.cases import built_in, causes, culprits, diagnose_table, diagnosed, judge, make, measure, measured
from tests.judge.given import prediction, priced, reach, silent, with_gains, with_rule

SPEC = JobSpec(pp=4, dp=4, microbatches=8, steps=10, seed=5)
SLOW = WorkerFault(places=((1, 2),), slowdown=1.6)
STAGE = StageImbalance(stage=-1, forward_slowdown=1.7, backward_slowdown=1.4)
SEQUENCES = SequenceImbalance(quadratic_share=0.5)
#: What removing the fault alone is worth in this job: little, some, much.
WEAK, STRONG = WorkerFault(places=((1, 2),), slowdown=1.05), WorkerFault(places=((1, 2),), slowdown=3.0)
SEVERAL = [(SLOW,), (STAGE,), (SEQUENCES,), (SLOW, SEQUENCES), (STAGE, SEQUENCES), (SLOW, STAGE, SEQUENCES)]


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


def test_what_gives_just_what_is_asked_for_is_there_too() -> None:
    """How sure a cause is falls little where it gives just what is asked for: that is another question than whether it is there."""
    analysis = measured(SPEC, SLOW).analysis
    gain = measure_alone(analysis.gains, ("worker",)).gain
    far, near, at = (
        reach(analysis, min_speedup=1.0 / (1.0 - part * gain)).causes[0].confidence for part in (0.1, 0.9, 1.0)
    )
    assert far >= near >= at > 0.9


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


#: Documents of many lengths, whole ones of which are packed.
LONG = SequenceImbalance(quadratic_share=0.8, length_spread=0.8, packed_tokens=65536)


@pytest.mark.parametrize(
    ("fault", "expected"),
    [
        (dataclasses.replace(LONG, layout="one-replica", replica=2), [(2, 0), (2, 1)]),
        (LONG, []),
    ],
    ids=["one replica", "all"],
)
def test_the_replica_of_the_long_documents_is_named(fault: SequenceImbalance, expected: list[tuple[int, int]]) -> None:
    """Where one data-parallel rank is the longest in each step it is the place; where they take turns, none is."""
    diagnosis = diagnosed(JobSpec(pp=2, dp=4, microbatches=16, steps=20, seed=3), fault)
    assert causes(diagnosis)[0] == "sequence-imbalance"
    assert culprits(diagnosis, "sequence-imbalance") == expected


def test_lost_time_is_against_the_clean_job() -> None:
    """The clean step time is near that of the job without its faults, and wasted hours are what lies above it."""
    for faults in SEVERAL:
        found, truth = diagnosed(SPEC, *faults), make(SPEC, *faults).truth
        assert found.step_time.clean == pytest.approx(truth.step_time_without_any_s, rel=0.03), names(faults)
        wasted = 1.0 - found.step_time.clean / found.step_time.recorded
        assert found.gpu_hours_wasted == pytest.approx(wasted * found.gpu_hours_analysed, rel=1e-9)


# ------------------------------------------------------------------------------------------ unknown, and not checked


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
    (check,) = (rule.check for rule in built_in().rules if component in rule.components)
    assert cause.check == check  # nothing says why: what would tell is said


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


def test_rows_lost_in_the_one_late_step_do_not_hide_what_it_waited_for() -> None:
    """Who waits for whom is told by the lanes that recorded both: a step that begins late makes all its others late, too."""
    spec = JobSpec(pp=8, vpp=4, dp=1, steps=8, seed=5, p2p="asynchronous", gathers=False)
    late = int(spec.step_numbers()[3])
    job = make(spec, CheckpointStall(period_steps=100, phase=late % 100, where="before", duration_s=10.0))
    rows = job.trace
    here = pc.and_(pc.equal(rows["step"], late), pc.equal(rows["stage"], 2))
    here = pc.and_(here, pc.equal(rows["optype"].cast(pa.string()), "backward-recv"))
    lost = np.flatnonzero(here.to_numpy())[:7]
    (cause,) = diagnose_table(rows.take(np.setdiff1d(np.arange(len(rows)), lost))).causes
    assert cause.cause == "checkpoint-stall"
    assert cause.recoverable == pytest.approx(job.truth.faults[0].recoverable, abs=0.01)


def test_one_dp_rank_leaves_slow_workers_unchecked() -> None:
    """Without peers nobody can say that a worker is slow: it is not checked, and the reason says why."""
    for faults in ((), (STAGE,)):
        found = diagnosed(dataclasses.replace(SPEC, dp=1), *faults)
        reasons = {entry.cause: entry.reason for entry in found.not_checked}
        assert "dp rank" in reasons["worker-fault"], faults
        assert "worker-fault" not in found.checked
    (doubt,) = [item.text for cause in found.causes for item in cause.evidence if item.id.endswith("/one-dp-rank")]
    assert doubt == "there is one dp rank: a worker that was slow from the first step would look the same"


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
        "sequence.stage_share": Feature.missing("lost"),
        "sequence.correlation": Feature.missing("lost"),
    }
    assert "sequence-imbalance" in reach(analysis, features=features).checked
    analysis = measured(SPEC, SEQUENCES).analysis
    features = analysis.features | {
        "sequence.stage_share": Feature.missing("lost"),
        "sequence.correlation": Feature.missing("lost"),
    }
    found = reach(analysis, features=features)
    assert [(e.cause, e.reason) for e in found.not_checked] == [
        ("sequence-imbalance", "sequence.correlation: lost; sequence.stage_share: lost")
    ]


# ------------------------------------------------------------------------------------------ fingerprints


def fingerprint(found: Diagnosis) -> str:
    """Give the fingerprint of the first cause."""
    return found.causes[0].fingerprint


@pytest.mark.parametrize("fault", [SLOW, STAGE, SEQUENCES], ids=lambda fault: fault.cause)
def test_a_fingerprint_is_of_the_family_and_not_of_the_run(fault: Any) -> None:
    """Another run of the same job, other seed, steps, speed and strength, has the same fingerprint."""
    again = dataclasses.replace(SPEC, seed=99, job_id=SPEC.name, steps=14, forward_s=0.07, noise=0.7)
    field = "slowdown" if fault is SLOW else "forward_slowdown" if fault is STAGE else "quadratic_share"
    other = dataclasses.replace(fault, **{field: fault.strength * 1.1})
    assert fingerprint(diagnosed(SPEC, fault)) == fingerprint(diagnosed(again, other))


def test_fingerprints_differ_by_cause_place_and_family() -> None:
    """Another cause, another worker, another stage, another layout or another job is another fault."""
    found = [
        diagnosed(SPEC, SLOW),
        diagnosed(SPEC, WorkerFault(places=((2, 2),), slowdown=1.6)),
        diagnosed(SPEC, WorkerFault(places=((1, 1),), slowdown=1.6)),
        diagnosed(SPEC, STAGE),
        diagnosed(SPEC, StageImbalance(stage=1, forward_slowdown=1.7, backward_slowdown=1.4)),
        diagnosed(SPEC, SEQUENCES),
        diagnosed(dataclasses.replace(SPEC, dp=3), SLOW),
        diagnosed(dataclasses.replace(SPEC, job_id="another"), SLOW),
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


#: What no job fulfils.
NEVER = Group("all", (Condition("worker.ratio", "at_least", 9.0, "", 1),))


def reach_unheard(analysis: Analysis, asked: Prediction) -> Verdict:
    """Judge a job where the rule of slow workers is silent."""
    return reach_verdict(
        analysis, with_rule(analysis, "worker-fault", conditions=NEVER), min_speedup=1.02, prediction=asked
    )


def test_a_sure_classifier_is_heard_where_the_rule_is_silent() -> None:
    """What gives back much is named with less confidence, and the evidence says which condition fails."""
    analysis = slow_job()
    (cause,) = reach_unheard(analysis, prediction("worker-fault", 0.97)).causes
    assert cause.cause == "worker-fault"
    assert cause.confidence < 0.8 < reach(analysis, prediction=prediction("worker-fault", 0.97)).causes[0].confidence
    (silent,) = [item for item in cause.evidence if item.id == "worker-fault/silent"]
    assert "asks for worker.ratio to be at least 9, and it is 1." in silent.text
    assert not any("the rule holds" in item.text for item in cause.evidence)


@pytest.mark.parametrize(("probability", "unlike"), [(0.8, None), (0.97, "nothing like it")], ids=["unsure", "unlike"])
def test_a_classifier_that_does_not_know_says_nothing(probability: float, unlike: str | None) -> None:
    """Where the rule is silent, an unsure classifier, or one that knows no such job, names no cause: the time is unknown."""
    found = reach_unheard(slow_job(), prediction("worker-fault", probability, unlike))
    assert [cause.cause for cause in found.causes] == ["unknown"]


def test_a_classifier_alone_names_nothing_small() -> None:
    """Below 5% of the step a silent rule is not overruled."""
    assert reach_unheard(measured(SPEC, WEAK).analysis, prediction("worker-fault", 0.999)).causes == ()


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
    seen = {"stall.hits": Feature(hits), "stall.planned_doubt": Feature(0.0)}
    seen["stall.rare_doubt"] = Feature(0.495 if doubted else 0.0)
    analysis = dataclasses.replace(analysis, features=analysis.features | seen)
    (cause,) = [c for c in reach(analysis).causes if c.cause == "checkpoint-stall"]
    said = {item.id.removeprefix("checkpoint-stall/") for item in cause.evidence}
    assert ("rare" in said, "stall.regularity" in said) == (doubted, not doubted)
    assert (cause.confidence < 0.5) == doubted
    assert [other.cause for other in cause.alternatives] == ["unknown"] * doubted
    assert (cause.when.pattern == "periodic") != doubted


def test_one_pause_of_all_is_no_save_to_mend() -> None:
    """Nobody knows what stopped everybody once: it is said when and for how long, and a save is what it may be, too."""
    analysis = measured(
        SPEC, CheckpointStall(period_steps=3, duration_s=2.0, where="before", phase=0, recorded=False)
    ).analysis
    seen = {"stall.hits": Feature(1.0), "stall.planned_doubt": Feature(0.2475), "stall.rare_doubt": Feature(0.495)}
    analysis = dataclasses.replace(analysis, features=analysis.features | seen)
    (cause,) = [c for c in reach(analysis).causes if "pause" in c.title]
    assert cause.cause == "unknown" and not cause.fixes and cause.when.pattern == "transient"
    assert cause.evidence[0].text.startswith("everybody stands still once, for 2")
    assert [other.cause for other in cause.alternatives] == ["checkpoint-stall"]


def test_what_stops_everybody_within_one_step_is_said_with_it() -> None:
    """All processes stand still for a while in the middle of a step: nobody knows why, but when and for how long."""
    rows = make(dataclasses.replace(SPEC, steps=20)).trace.to_pandas()
    here = rows.step == 38
    middle_s = float((rows.start_ts + rows.duration)[here].max()) / 2.0
    rows.loc[here & (rows.start_ts < middle_s) & (rows.start_ts + rows.duration > middle_s), "duration"] += 30.0
    rows.loc[here & (rows.start_ts >= middle_s), "start_ts"] += 30.0
    (cause,) = diagnose_table(pa.Table.from_pandas(rows, preserve_index=False)).causes
    assert cause.cause == "unknown" and cause.when.span == "in step 38"
    assert "nearly all of it in step 38, 30 s" in cause.evidence[0].text


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


# ------------------------------------------------------------------------------------------ worth saying


def with_metadata(table: pa.Table, metadata: dict[str, int]) -> pa.Table:
    """Give a table metadata as a trace has it."""
    return table.replace_schema_metadata({"diagnose.job": json.dumps(metadata)})


def measured_table(table: pa.Table) -> Analysis:
    """Measure a table."""
    return measure(table).analysis


BOTH = (SLOW, STAGE)
WORKER, STAGES = frozenset({"worker"}), frozenset({"stage"})


@pytest.mark.parametrize(
    ("after", "said"),
    [(0.9, ["worker-fault", "stage-imbalance"]), (0.79, ["worker-fault"])],
    ids=["worth it", "nothing"],
)
def test_a_cause_that_others_hide_is_said_after_those_said_before_it(after: float, said: list[str]) -> None:
    """What gives nothing alone is said where it gives enough once the causes said before it are gone, not only all others."""
    base = measured(SPEC, *BOTH).analysis
    price = priced(base, {WORKER: 0.8, WORKER | STAGES: 0.8 * 0.9 if after == 0.9 else after})
    analysis = with_gains(base, price=price, worker=(0.2, 0.2), stage=(0.0, 0.3))
    found = reach(analysis)
    assert {cause.cause for cause in found.causes} == set(said)
    texts = [item.text for cause in found.causes for item in cause.evidence if item.id.endswith("/after")]
    assert texts == (["alone it gives back 0% of the step; without slow workers it is 10%"] if len(said) > 1 else [])


@pytest.mark.parametrize(("share", "is_said"), [(0.05, True), (0.0, True), (-0.05, False)])
def test_what_costs_more_than_it_gives_is_not_said(share: float, is_said: bool) -> None:
    """Removing moves work: what gives enough after others, and takes more in the mean of all orders, is no cause of lost time."""
    base = measured(SPEC, *BOTH).analysis
    analysis = with_gains(
        base, price=priced(base, {WORKER: 0.8, WORKER | STAGES: 0.72}), worker=(0.2, 0.2), stage=(-0.1, 0.3)
    )
    gains = dataclasses.replace(analysis.gains, share={"worker": 0.9, "stage": share})
    causes = reach(dataclasses.replace(analysis, gains=gains)).causes
    assert {cause.cause for cause in causes} == {"worker-fault", *(["stage-imbalance"] * is_said)}


def test_a_cause_gives_back_what_mending_the_named_workers_gives() -> None:
    """Where a component lies on others than the named workers too, `recoverable` is the price of the named ones."""
    faults = (WorkerFault(places=((1, 2),), slowdown=1.6), WorkerFault(places=((3, 0),), slowdown=1.02))
    base = measured(SPEC, faults[0]).analysis
    lost = np.zeros((SPEC.dp, SPEC.pp))
    lost[1, 2], lost[3, 0] = 1.0, 0.01
    gains = dataclasses.replace(base.gains, blame_s=base.gains.blame_s | {"worker": lost})
    masks = []

    def price(changes: Any) -> Any:
        masks.extend(change.workers for change in changes)
        return base.gains.replayed_steps_s * 0.85

    (cause,) = reach(base, gains=gains, price=price).causes
    assert [(worker.dp, worker.pp) for worker in cause.where.workers] == [(1, 2)]
    assert cause.recoverable == pytest.approx(0.15 * gains.replayed_s / gains.recorded_s)
    (mask,) = masks
    assert np.argwhere(mask).tolist() == [[1, 2]]


@pytest.mark.parametrize(
    ("prices", "workers", "recoverable"),
    [
        ([0.805], [(1, 2)], 0.195),
        ([0.9, 0.805], [(1, 2), (0, 0), (0, 1)], 0.195),
        ([0.9, 0.85], [], 0.2),
    ],
    ids=["the worst", "with those that bear less", "spread"],
)
def test_named_workers_bear_nearly_all_of_it(
    prices: list[float], workers: list[tuple[int, int]], recoverable: float
) -> None:
    """Where mending the worst workers leaves much of it those that bear less are named, too; or nobody, if that is not enough."""
    base = measured(SPEC).analysis
    lost = np.full((SPEC.dp, SPEC.pp), 0.05)
    lost[1, 2], lost[0, 0], lost[0, 1] = 1.0, 0.4, 0.3
    gains = dataclasses.replace(base.gains, blame_s=base.gains.blame_s | {"pause": lost})
    analysis = with_gains(dataclasses.replace(base, gains=gains), pause=(0.2, 0.2))
    left = iter([*prices, prices[-1]])
    price = lambda _: base.gains.replayed_steps_s * next(left)  # noqa: E731 - one line
    (cause,) = reach(dataclasses.replace(analysis, price=price)).causes
    assert [(worker.dp, worker.pp) for worker in cause.where.workers] == workers
    assert cause.recoverable == pytest.approx(recoverable, abs=1e-6)


# ------------------------------------------------------------------------------------------ healthy, noisy, inconclusive


def with_slowdown(analysis: Analysis, slowdown: float) -> WhatIf:
    """Give what-if measures of a job that takes so many times as long as with ideal times."""
    return dataclasses.replace(analysis.what_if, simulated_s=slowdown * analysis.what_if.ideal_s)


def unseen(analysis: Analysis) -> Analysis:
    """Give a job of a recording that cannot show transfers."""
    account = Account("theirs", unobserved=(Unobserved("transfers", "they are guessed", ("transfers",)),))
    recording = name_unchecked(account, built_in().rules)
    return dataclasses.replace(analysis, trace=dataclasses.replace(analysis.trace, recording=recording))


def test_what_could_not_be_looked_for_is_not_healthy() -> None:
    """Where slow transfers would give back much and their cause cannot be looked for, nobody can say; little is healthy."""
    base = unseen(measured(SPEC).analysis)
    found = reach(with_gains(base, transfer=(0.45, 0.45)))
    assert (found.verdict, found.causes) == ("inconclusive", ())
    assert found.why.startswith("slow transfers would give back 45% of the step time, and network-fault could not be")
    assert found.why in found.warnings
    assert reach(with_gains(base, transfer=(0.04, 0.04))).verdict == "healthy"
    both = describe_unlooked(
        with_gains(base, worker=(0.2, 0.2), transfer=(0.4, 0.4)),
        (),
        dict.fromkeys(("worker", "transfer"), "x"),
        {"x": "y"},
        0.02,
    )
    assert both.startswith("slow transfers would give back 40%")


def test_what_could_not_be_looked_for_is_told_beside_causes() -> None:
    """A job with a cause is straggling all the same, and a warning tells of what else may be lost."""
    found = reach(with_gains(unseen(measured(SPEC, SLOW).analysis), worker=(0.2, 0.2), transfer=(0.3, 0.3)))
    assert [cause.cause for cause in found.causes] == ["worker-fault"]
    assert any(text.startswith("slow transfers would give back 30%") for text in found.warnings)


def test_a_job_whose_lone_worker_may_be_slow_is_not_healthy() -> None:
    """With one dp rank it may be the layout, and moving layers gives nothing with one microbatch: another worker would."""
    spec = JobSpec(pp=6, dp=1, microbatches=1, steps=20, seed=3)
    fault = WorkerFault(places=((0, 2),), slowdown=1.5, slows_optimizer=False)
    job = generate(spec, [fault])
    found = diagnose_table(job.trace)
    assert (found.verdict, found.causes) == ("inconclusive", ())
    assert found.why.startswith("stage 2 computes 1.5 times as long as the others")
    assert f"if its worker is slow another one {100 * job.truth.faults[0].recoverable:.1f}%" in found.why
    last = dataclasses.replace(fault, places=((0, 5),))
    assert diagnose_table(generate(spec, [last]).trace).verdict == "healthy"  # what ends a model takes longer


@pytest.mark.parametrize(("slowdown", "verdict"), [(1.06, "healthy"), (1.15, "noisy"), (2.31, "inconclusive")])
def test_a_large_slowdown_that_nothing_explains_is_not_healthy(slowdown: float, verdict: str) -> None:
    """Up to 5% is any job's; up to a quarter may be noise; beyond that nobody knows, and the sentence says how much it is."""
    base = measured(SPEC).analysis
    what_if = with_slowdown(base, slowdown)
    found = reach(base, what_if=what_if)
    assert (found.verdict, found.causes, found.ledger) == (verdict, (), None)
    assert f"{100 * (1 - 1 / slowdown):.2g}%" in found.why or verdict == "healthy"
    assert found.why.endswith("no cause can be named") == (verdict == "noisy")


def test_steps_that_vary_are_noisy() -> None:
    """Where steps vary by a tenth and more, and no component is large, the job is noisy; two levels are not asked for."""
    base = measured(SPEC).analysis
    gains = base.gains
    rough = gains.replayed_steps_s * np.where(np.arange(SPEC.steps) % 2, 0.85, 1.15)
    found = reach(base, gains=dataclasses.replace(gains, replayed_steps_s=rough))
    assert (found.verdict, found.causes) == ("noisy", ())
    assert found.why.startswith("steps vary by 2")


@pytest.mark.parametrize(("cost", "verdict"), [(0.06, "noisy"), (0.03, "healthy")])
def test_a_late_first_step_is_no_cause_and_not_nothing(cost: float, verdict: str) -> None:
    """What is excused as the beginning of the recording is no cause; where it cost much the job is not healthy without a word."""
    analysis = with_gains(measured(SPEC).analysis, start_delay=(cost, cost))
    features = analysis.features | {"stall.hits": Feature(1.0), "stall.regularity": Feature.missing("once")}
    found = reach(analysis, features=features)
    assert (found.verdict, found.causes) == (verdict, ())
    assert found.why == (
        "late workers at the start of a step cost 6% of the step time, in one step; no cause can be named"
        if found.why
        else ""
    )


def test_what_all_ranks_and_steps_have_alike_is_no_noise() -> None:
    """A large S that only says that computes of one kind differ, in all steps and on all ranks alike, makes no job noisy."""
    base = measured(SPEC).analysis
    what_if = with_slowdown(base, 1.15)
    alike = lambda changes: base.gains.replayed_steps_s * (0.9 if changes else 1.0)  # noqa: E731 - one line
    assert reach(base, what_if=what_if).verdict == "noisy"
    assert reach(base, what_if=what_if, price=alike).verdict == "healthy"


def test_who_asks_for_a_large_speedup_calls_less_healthy() -> None:
    """What is below the speedup asked for is no noise either."""
    base = measured(SPEC).analysis
    what_if = with_slowdown(base, 1.2)
    assert reach(base, what_if=what_if, min_speedup=1.5).verdict == "healthy"


@pytest.mark.parametrize("metadata", [{}, {"dp_size": 1, "pp_size": 1, "world_size": 1}], ids=["untold", "alone"])
def test_one_rank_alone_may_be_healthy(metadata: dict[str, int]) -> None:
    """A job of one rank is judged like any other."""
    table = make(dataclasses.replace(SPEC, dp=1, pp=1)).trace.replace_schema_metadata(None)
    file = with_metadata(table, metadata)
    assert diagnose_table(file).verdict == "healthy"


@pytest.mark.parametrize("metadata", [{"dp_size": 4}, {"world_size": 16, "tp_size": 1}], ids=str)
def test_a_lone_rank_of_several_is_inconclusive(metadata: dict[str, int]) -> None:
    """Where the rows are of one rank of several, what it waits for is not there: never healthy, and no late optimizer."""
    table = make(dataclasses.replace(SPEC, dp=1, pp=1)).trace.replace_schema_metadata(None)
    found = diagnose_table(with_metadata(table, metadata))
    assert (found.verdict, found.causes) == ("inconclusive", ())
    assert found.why.startswith("one rank of several")
    analysis = measured_table(with_metadata(table, metadata))
    for component in ("end-delay", "transfer", "between-steps"):
        late = with_gains(analysis, **{component.replace("-", "_"): (0.3, 0.3)})
        assert (reach(late).verdict, reach(late).causes) == ("inconclusive", ())
        told = dataclasses.replace(late, trace=dataclasses.replace(late.trace, ranks_told=1))
        assert reach(told).verdict != "inconclusive"


def test_one_rank_that_reduces_with_others_is_lone() -> None:
    """Where only the number of ranks is told, collectives over data-parallel ranks say that these are what is missing."""
    one = pc.equal(make(SPEC).trace["dp_rank"], 0)
    table = with_metadata(make(SPEC).trace.filter(one), {"world_size": 16})
    found = diagnose_table(table)
    assert (found.verdict, found.causes, found.job.world_size) == ("inconclusive", (), SPEC.pp)
    without = with_metadata(make(dataclasses.replace(SPEC, dp=1)).trace, {"world_size": 16})
    assert diagnose_table(without).job.tp_size == 16 // SPEC.pp


@pytest.mark.parametrize(
    ("filled_share", "longer", "verdict"),
    [(0.01, 0.06, "inconclusive"), (0.01, 0.04, "straggling"), (0.0, 0.06, "straggling")],
)
def test_lost_rows_that_make_the_clean_job_slower_are_filled_wrong(
    filled_share: float, longer: float, verdict: str
) -> None:
    """No job is slower without its faults: what stands for lost rows is not what was there, and the reader is told what to do."""
    analysis = slow_job()
    gains = dataclasses.replace(analysis.gains, clean_s=(1.0 + longer) * analysis.gains.replayed_s)
    found = reach(analysis, gains=gains, filled_share=filled_share)
    assert found.verdict == verdict
    assert found.why.startswith("rows are missing, and what stands for them") == (verdict == "inconclusive")


def test_simulated_steps_longer_than_recorded_ones_are_not_trusted() -> None:
    """Where computes overlap that the graph puts one after the other the replay is not faithful; a little of it is nothing."""
    analysis = slow_job()
    verdicts = {}
    for discrepancy, beside_share in ((0.5, 0.06), (-0.03, 0.06), (-0.1, 0.04), (-0.1, 0.06)):
        what_if = dataclasses.replace(analysis.what_if, discrepancy=discrepancy)
        fidelity = check_fidelity(what_if, analysis.gains, functools.partial(float, beside_share))
        found = reach(analysis, what_if=what_if, fidelity=fidelity)
        verdicts[discrepancy, beside_share] = (fidelity.ok, found.verdict)
    straggles = (True, "straggling")
    assert verdicts == {
        (0.5, 0.06): straggles,
        (-0.03, 0.06): straggles,
        (-0.1, 0.04): straggles,
        (-0.1, 0.06): (False, "inconclusive"),
    }
    assert found.why.startswith("simulated steps are 11% longer than the recorded ones")


def test_communication_beside_computes_is_told_and_less_sure() -> None:
    """As gradients that are reduced while the last backward runs: S is off, the replay is not, and rules were not tried there."""
    analysis = slow_job()
    beside = dataclasses.replace(analysis, fidelity=msgspec.structs.replace(analysis.fidelity, discrepancy=-0.1))
    sure = [reach(of).causes[0].confidence for of in (analysis, beside)]
    assert sure[1] == pytest.approx(0.85 * sure[0], abs=1e-3)
    assert [text[:25] for text in list_caveats(beside)] == ["causes and gains are less"]
    # The first page has room for so much of it.
    (said,) = list_caveats(beside)
    assert (
        said.partition(";")[0]
        == "causes and gains are less sure: communication runs beside what S takes it to wait for"
    )


# ------------------------------------------------------------------------------------------ how sure


def test_confidence_grows_with_steps() -> None:
    """The same fault is surer the more steps show it; of three steps nobody is almost certain."""
    found = [diagnosed(dataclasses.replace(SPEC, steps=steps), STRONG).causes[0].confidence for steps in (3, 6, 12, 48)]
    assert found == sorted(found)
    assert found[0] < 0.93
    assert found[-1] > found[0] + 0.04


def test_looks_within_a_step_count_less_than_steps() -> None:
    """Twice the steps say more than twice the microbatches."""
    analysis = slow_job()
    few, more_steps, more_microbatches = (
        dataclasses.replace(
            analysis,
            breakdown=dataclasses.replace(analysis.breakdown, compute_s=np.zeros((2, 4, n_microbatches, n_steps, 4))),
        )
        for n_microbatches, n_steps in ((4, 5), (4, 10), (8, 5))
    )
    looks = [trust_looks(job, "workers") for job in (few, more_microbatches, more_steps)]
    assert looks == sorted(looks)
    assert trust_looks(few, "workers") < trust_looks(few, "spread") < trust_looks(more_steps, "workers") < 1.0


def test_the_chance_is_that_of_students_t() -> None:
    """With three steps a gain two standard errors above the least one is less sure than with many; without spread it is certain."""
    rng = np.random.default_rng(1)
    for n_steps, expected in ((3, 0.908), (400, 0.977)):
        draws = rng.normal(size=n_steps)
        draws = (draws - draws.mean()) / draws.std(ddof=1) * 10.0  # so wide that the constant error is nothing
        benefit = Benefit(0.5 + 20.0 / np.sqrt(n_steps), draws)
        assert chance_above(benefit, 0.5) == pytest.approx(expected, abs=2e-3)
    assert chance_above(Benefit(0.1, np.full(5, 0.1)), 0.02) > 0.999
    assert chance_above(Benefit(0.02, np.full(5, 0.02)), 0.02) == 0.5


@pytest.mark.parametrize("freedom", [2, 3, 5, 10, 100, math.inf])
def test_students_t_is_that_of_scipy(freedom: float) -> None:
    """The approximation is as near as it says, on both sides, and exact at its middle and for many steps."""
    for t in np.linspace(-6.0, 6.0, 49).tolist():
        expected = stats.norm.cdf(t) if math.isinf(freedom) else stats.t.cdf(t, freedom)
        assert student_below(t, freedom) == pytest.approx(expected, abs=1e-12 if math.isinf(freedom) else 3e-3)
    assert student_below(0.0, freedom) == 0.5


# ------------------------------------------------------------------------------------------ vetoes and alternatives


def test_a_veto_silences_rule_and_classifier() -> None:
    """However sure the classifier is and whatever the rule says, what a veto rules out is not said: the time is unknown."""
    analysis = slow_job()
    veto = Group("any", (Condition("worker.ratio", "at_least", 1.5, "it is too slow", 1, "a test"),))
    judgements = with_rule(analysis, "worker-fault", vetoes=veto)
    found = reach_verdict(analysis, judgements, min_speedup=1.02, prediction=prediction("worker-fault", 0.999))
    assert [cause.cause for cause in found.causes] == ["unknown"]
    assert "worker-fault" in found.checked


TELL = RuleAlternative("sequence-imbalance", "story.other", "the documents of that replica")


@pytest.mark.parametrize(("probability", "told"), [(0.1, False), (0.25, True), (0.6, True), (None, False)])
def test_an_alternative_takes_its_part_of_the_confidence(probability: float | None, told: bool) -> None:
    """From a quarter on another cause is told, with what would tell them apart; its part of the confidence is lost in any case."""
    analysis = slow_job()
    whole = reach(analysis).causes[0].confidence
    feature = Feature.missing("nobody looked") if probability is None else Feature(probability)
    analysis = dataclasses.replace(analysis, features=analysis.features | {"story.other": feature})
    judgements = with_rule(analysis, "worker-fault", alternatives=(TELL,))
    (cause,) = reach_verdict(analysis, judgements, min_speedup=1.02).causes
    assert cause.confidence == pytest.approx((1.0 - (probability or 0.0)) * whole, abs=1e-4)
    assert bool(cause.alternatives) == told
    if not told:
        return
    (other,) = cause.alternatives
    assert (other.cause, other.tells_apart) == ("sequence-imbalance", "the documents of that replica")
    assert other.confidence == pytest.approx((probability or 0.0) * whole, abs=1e-4)


@pytest.mark.parametrize(("probability", "said"), [(0.4, "worker-fault"), (0.6, "unknown")])
def test_what_is_rather_unknown_is_said_to_be(probability: float, said: str) -> None:
    """Where it is more probable that nobody knows the cause, that is the finding: with the same place, and what would tell."""
    analysis = slow_job()
    whole = reach(analysis).causes[0]
    analysis = dataclasses.replace(analysis, features=analysis.features | {"story.other": Feature(probability)})
    judgements = with_rule(analysis, "worker-fault", alternatives=(dataclasses.replace(TELL, cause="unknown"),))
    (cause,) = reach_verdict(analysis, judgements, min_speedup=1.02).causes
    assert (cause.cause, cause.where, cause.share) == (said, whole.where, whole.share)
    assert cause.confidence == pytest.approx(max(probability, 1.0 - probability) * whole.confidence, abs=1e-4)
    assert any(TELL.tells_apart in item.text for item in cause.evidence) == (said == "unknown")
    assert [other.cause for other in cause.alternatives] == ["unknown" if said == "worker-fault" else "worker-fault"]


@pytest.mark.parametrize(
    ("probability", "reverse", "n_said", "n_told"),
    [(0.55, 0.5, 1, 1), (0.55, 0.1, 1, 0), (0.3, 0.0, 2, 1), (0.1, 0.1, 2, 0)],
)
def test_causes_that_exclude_each_other_are_one_finding(
    probability: float, reverse: float, n_said: int, n_told: int
) -> None:
    """Two causes of which one is told as the other's alternative are one finding, but where they are surer than that.

    The surer one stays, and what is told of it is never more than certain; what is rather the other is not told then.
    """
    analysis = measured(SPEC, SLOW, SEQUENCES).analysis
    doubts = {"story.other": Feature(probability), "story.reverse": Feature(reverse)}
    analysis = dataclasses.replace(analysis, features=analysis.features | doubts)
    causes = ("worker-fault", "sequence-imbalance")
    for cause, other in (causes, causes[::-1]):
        by_rule = {
            cause: dataclasses.replace(TELL, cause=other, tells_apart="look"),
            other: dataclasses.replace(TELL, cause=cause, feature="story.reverse", tells_apart="look again"),
        }
        rules = [
            dataclasses.replace(rule, alternatives=(by_rule[rule.id],)) if rule.id in by_rule else rule
            for rule in built_in().rules
        ]
        judgements = [rule.judge(analysis.features) for rule in rules]
        found = reach_verdict(analysis, judgements, min_speedup=1.02).causes
        assert len(found) == n_said
        assert sum(len(one.alternatives) for one in found) == n_told
        assert all(one.confidence + sum(a.confidence for a in one.alternatives) <= 1.0 for one in found)
        if n_said == 1:
            assert found[0].cause == other


@pytest.mark.parametrize(
    ("recoverable", "share", "stages", "said"),
    [
        (0.3, 0.4, (), ["worker-fault"]),
        (0.09, 0.4, (), ["worker-fault", "sequence-imbalance"]),
        # Beside a second fault mending the large one alone gives little.
        (0.3, 0.1, (), ["worker-fault", "sequence-imbalance"]),
        (0.3, None, (), ["worker-fault"]),  # nobody knows a share
        (0.3, 0.4, (2,), ["worker-fault"]),
        (0.3, 0.4, (3,), ["worker-fault", "sequence-imbalance"]),
    ],
)
def test_a_small_cause_is_not_what_a_large_one_may_be(
    recoverable: float, share: float | None, stages: tuple[int, ...], said: list[str]
) -> None:
    """The surer of two that compete stays for both where it has half of the other's seconds, and is at its place."""
    analysis = measured(SPEC, SLOW, SEQUENCES).analysis
    analysis = dataclasses.replace(analysis, features=analysis.features | {"story.other": Feature(0.6)})
    judgements = with_rule(
        analysis, "sequence-imbalance", alternatives=(dataclasses.replace(TELL, cause="worker-fault"),)
    )
    (found,) = reach_verdict(analysis, judgements, min_speedup=1.02).causes
    large = msgspec.structs.replace(
        found,
        cause="sequence-imbalance",
        recoverable=0.2,
        share=0.5 if share is not None else None,
        confidence=0.45,
        alternatives=(Alternative("worker-fault", 0.45, "look"),),
        where=Where(stages=stages),
    )
    sure = msgspec.structs.replace(found, recoverable=recoverable, share=share, confidence=0.5, alternatives=())
    merged = merge_alternatives([sure, large])
    assert [cause.cause for cause in merged] == said


# ------------------------------------------------------------------------------------------ the unknown has its place


@pytest.mark.parametrize("since", [0, 3])
def test_who_is_slow_in_its_optimizers_alone_is_named(since: int) -> None:
    """One worker takes longer for its optimizers in all steps, or from one on: slow, or it does something that others do not."""
    inputs = draw_inputs(SPEC)
    of_stage = inputs.programme.is_op(Op.OPTIMIZER) & (inputs.programme.stage == 2)
    work_s = inputs.work_s.copy()
    work_s[of_stage, since:, 1] += 0.3
    job = generate(SPEC, healthy=dataclasses.replace(inputs, work_s=work_s))
    (cause,) = diagnose_table(job.trace).causes
    assert (cause.cause, [(worker.dp, worker.pp) for worker in cause.where.workers]) == ("worker-fault", [(1, 2)])
    assert [other.cause for other in cause.alternatives] == ["unknown"]
    assert cause.confidence < 0.5
    assert cause.proof is not None
    assert cause.proof.kind == "steps"  # their computes are as quick as those of peers
    mended_s = generate(SPEC, healthy=inputs).truth.step_time_s
    assert cause.recoverable == pytest.approx(1.0 - mended_s / job.truth.step_time_s, abs=0.01)


def test_who_is_slow_in_the_same_microbatch_alone_is_placed() -> None:
    """One worker takes longer for one microbatch of every step: no document and no machine does that."""
    inputs = draw_inputs(SPEC)
    of_microbatch = (inputs.programme.microbatch == 1) & (inputs.programme.stage == 2)
    work_s = inputs.work_s.copy()
    work_s[of_microbatch, :, 1] *= 3.0
    (cause,) = diagnose_table(generate(SPEC, healthy=dataclasses.replace(inputs, work_s=work_s)).trace).causes
    assert (cause.title, [(worker.dp, worker.pp) for worker in cause.where.workers]) == (
        "unknown cause: slow in the same microbatch of each step",
        [(1, 2)],
    )
    assert cause.evidence[0].text.startswith("the same microbatches take longer there")


def test_unknown_time_has_place_and_onset() -> None:
    """What no rule explains is placed and dated as a cause would be: workers, stage, or the steps from which on it is there."""
    spec = dataclasses.replace(SPEC, steps=16)
    analysis = measured(spec, dataclasses.replace(SLOW, onset=4)).analysis
    (cause,) = silent(analysis).causes
    assert [(worker.dp, worker.pp) for worker in cause.where.workers] == [(1, 2)]
    assert (cause.when.pattern, cause.when.onset_step) == ("onset", int(spec.step_numbers()[4]))
    (cause,) = silent(measured(SPEC, STAGE).analysis).causes
    assert cause.where.stages == (SPEC.pp - 1,)


@pytest.mark.parametrize("onset", [10, 22], ids=["most steps", "few steps"])
def test_a_job_that_gets_slower_for_good_says_since_when(onset: int) -> None:
    """All computes take 1.3 times as long from a step on, as with less power: what that costs is known whenever it began."""
    spec = dataclasses.replace(SPEC, steps=32)
    inputs = draw_inputs(spec)
    slower = dataclasses.replace(inputs, work_s=inputs.work_s * np.where(np.arange(32) >= onset, 1.3, 1.0)[:, None])
    (cause,) = diagnose_table(generate(spec, healthy=slower).trace).causes
    assert (cause.cause, cause.when.pattern) == ("unknown", "onset")
    assert cause.when.onset_step == int(spec.step_numbers()[onset])
    with_s, without_s = (float(simulate(one).step_s.sum()) for one in (slower, inputs))
    assert cause.recoverable == pytest.approx(1.0 - without_s / with_s, abs=0.01)


@pytest.mark.parametrize(
    ("pp", "dp", "slow", "cause"),
    [
        (1, 4, [(0, 0), (1, 0), (2, 0)], "worker-fault"),
        (2, 2, [(0, 0), (1, 0), (0, 1)], "worker-fault"),
        (1, 2, [(0, 0), (1, 0)], "unknown"),
    ],
    ids=["all but one", "a stage and half of another", "all"],
)
def test_most_workers_are_slow_for_most_steps(pp: int, dp: int, slow: list[tuple[int, int]], cause: str) -> None:
    """Whoever is not slow says who is; where nobody does, what all took before says what is lost."""
    spec = JobSpec(pp=pp, dp=dp, microbatches=4, steps=40, seed=7)
    case = measured(spec, WorkerFault(places=tuple(slow), slowdown=1.4, onset=12))
    (found,) = case.diagnosis.causes
    assert (found.cause, found.when.pattern) == (cause, "onset")
    assert {(worker.dp, worker.pp) for worker in found.where.workers} == (
        set(slow) if cause == "worker-fault" else set()
    )
    assert found.recoverable == pytest.approx(0.19, abs=0.01)


@pytest.mark.parametrize(("waits_s", "named"), [((0.56, 0.66, 0.5), []), ((0.0, 0.66, 0.0), [(1, 0)])])
def test_who_waits_for_input_while_nobody_has_begun(waits_s: tuple[float, ...], named: list[tuple[int, int]]) -> None:
    """All loaders are slow where all wait, though one waits longest; one is where the others have begun."""
    rows, now_s = [], 1_000.0
    for step in range(40):
        begins_s = [now_s + (wait_s if step % 4 == 0 else 0.0) for wait_s in waits_s]
        ends_s = max(begins_s) + 0.16
        for dp, begin_s in enumerate(begins_s):
            spans = [("forward-compute", begin_s, 0.06, 0), ("backward-compute", begin_s + 0.06, 0.09, 0)]
            spans += [
                ("grads-reduce-scatter", begin_s + 0.15, ends_s - begin_s - 0.15, -1),
                ("optimizer", ends_s, 0.01, -1),
            ]
            spans += [("data-load", now_s, begin_s - now_s, -1)] if begin_s > now_s else []
            rows += [(step, dp, 0, *span) for span in spans]
        now_s = ends_s + 0.011
    names = ("step", "dp_rank", "stage", "optype", "start_ts", "duration", "mb_id")
    found = diagnose_table(pa.table(dict(zip(names, map(list, zip(*rows, strict=True)), strict=True))))
    assert found.causes[0].cause == "data-loading"
    assert culprits(found, "data-loading") == named


def pause_between_steps(n_steps: int, pauses_s: Callable[[int, int], float], *, gathers: bool = False) -> pa.Table:
    """Make a job of three ranks that pause after their optimizers, by step and rank, with a `gc` row that says so."""
    rows, ready_s = [], [1_000.0] * 3
    for step in range(n_steps):
        gathered_s = max(ready_s)
        begins_s = [gathered_s + 0.01] * 3 if gathers else ready_s
        ends_s = max(begins_s) + 0.16
        for dp, begin_s in enumerate(begins_s):
            spans = [("params-all-gather", ready_s[dp], gathered_s + 0.01 - ready_s[dp], -1)] if gathers else []
            for i in range(2):
                spans += [("forward-compute", begin_s + 0.075 * i, 0.03, i)]
                spans += [("backward-compute", begin_s + 0.03 + 0.075 * i, 0.045, i)]
            spans += [("grads-reduce-scatter", begin_s + 0.15, ends_s - begin_s - 0.15, -1)]
            spans += [("optimizer", ends_s, 0.01, -1), ("gc", ends_s + 0.02, 0.0002, -1)]
            spans += [("gc", ends_s + 0.03, pauses_s(step, dp), -1)] if pauses_s(step, dp) else []
            rows += [(step, dp, 0, *span) for span in spans]
            ready_s[dp] = ends_s + 0.03 + pauses_s(step, dp)
    names = ("step", "dp_rank", "stage", "optype", "start_ts", "duration", "mb_id")
    return pa.table(dict(zip(names, map(list, zip(*rows, strict=True)), strict=True)))


@pytest.mark.parametrize("gathers", [False, True])
def test_collections_after_the_optimizer_cost_what_the_others_wait(gathers: bool) -> None:
    """They are no part of the step that they follow: the next one begins late, with its parameters where they are gathered."""
    table = pause_between_steps(38, lambda step, dp: 0.4 if step % 9 == 3 * dp else 0.0, gathers=gathers)
    found = diagnose_table(table)
    step_s = 0.16 + 0.03 + 0.01 * gathers + 13 / 38 * 0.4
    assert found.step_time.recorded == pytest.approx(step_s, rel=0.02)
    (cause,) = found.causes
    assert (cause.cause, cause.when.onset_step, cause.confidence >= 0.9) == ("garbage-collection", None, True)
    assert cause.recoverable == pytest.approx(13 / 38 * 0.4 / step_s, rel=0.06)


@pytest.mark.parametrize(
    ("pauses_s", "sure"),
    [
        pytest.param(lambda step, dp: 0.4 if step % 9 == 3 * dp else 0.0, False, id="each rank now and then"),
        pytest.param(lambda step, dp: 0.4 if dp == 1 and step % 5 == 0 else 0.0, True, id="one rank"),
        pytest.param(lambda step, dp: 0.4 if dp == step % 3 and step % 9 else 0.0, False, id="one after the other"),
        pytest.param(lambda step, dp: 0.4 if dp > 0 and step % 4 < 3 else 0.0, True, id="mostly"),
    ],
)
def test_pauses_between_steps_are_loaders_or_collections(pauses_s: Callable[[int, int], float], sure: bool) -> None:
    """Without rows who begins steps late waits for a loader where one rank does, or mostly; else Python may collect."""
    table = pause_between_steps(40, pauses_s)
    (cause, *_) = diagnose_table(table.filter(pc.not_equal(table["optype"], "gc"))).causes
    assert (cause.cause, cause.confidence > 0.5) == ("data-loading", sure)
    assert [one.cause for one in cause.alternatives] == ([] if sure else ["garbage-collection"])


def test_collections_that_all_ranks_plan_too_often_are_to_be_rarer() -> None:
    """Between steps nothing but their rows tells of them: 0.3 s after every tenth step of 0.19 s are 14%."""
    found = diagnose_table(pause_between_steps(60, lambda step, _: 0.3 if step % 10 == 9 else 0.0))
    cause = found.causes[0]
    assert (cause.cause, cause.confidence >= 0.9) == ("garbage-collection", True)
    assert cause.recoverable == pytest.approx(5 * 0.3 / (60 * 0.19 + 5 * 0.3), rel=0.2)
    assert "not every 10" in cause.fixes[0].summary


#: Rows that say what is done every fifth step.
LOGGED = PlannedWork(period_steps=5, seconds=1e-4)


@pytest.mark.parametrize(
    ("microbatches", "slowdown", "rows", "verdict"),
    [(1, 5.0, (), "inconclusive"), (1, 5.0, (LOGGED,), "healthy"), (2, 5.0, (), "healthy"), (1, 1.2, (), "healthy")],
)
def test_dear_forwards_every_so_many_steps_are_an_evaluation_where_all_of_a_step_are_long(
    microbatches: int, slowdown: float, rows: tuple[PlannedWork, ...], verdict: str
) -> None:
    """One forward a step may as well stop as evaluate: where that costs much nobody can tell, and it is not called planned."""
    spec = JobSpec(pp=1, dp=4, microbatches=microbatches, steps=20, contiguous=True, seed=5)
    job = generate(spec, decoys=[Evaluation(period_steps=5, slowdown=slowdown), *rows])
    found = diagnose_table(job.trace)
    assert (found.verdict, found.causes) == (verdict, ())
    assert any("that is no fault" in warning for warning in found.warnings) == (verdict == "healthy" and slowdown > 2.0)


def test_two_that_hide_each_other_are_both_said() -> None:
    """A slow worker beside a stage that is as long costs nothing by itself, nor does the stage: without both much comes back."""
    spec = JobSpec(pp=2, vpp=2, dp=8, microbatches=16, steps=16, p2p="asynchronous", seed=8)
    slow = WorkerFault(places=((5, 0),), slowdown=1.6)
    job = generate(spec, [slow, StageImbalance(stage=-1, forward_slowdown=2.2, backward_slowdown=2.2)])
    truth = job.truth
    assert all(fault.recoverable < 0.02 and fault.recoverable_last > 0.1 for fault in truth.faults)
    diagnosis = diagnose_table(job.trace)
    assert sorted(causes(diagnosis)) == ["stage-imbalance", "worker-fault"] and diagnosis.verdict == "straggling"
    for cause in diagnosis.causes:
        (fault,) = (fault for fault in truth.faults if fault.cause == cause.cause)
        assert cause.recoverable_after_others == pytest.approx(fault.recoverable_last, abs=0.02)


def test_nothing_comes_back_where_mending_a_cause_alone_makes_steps_longer() -> None:
    """Layers of a long stage go to one whose worker is slow: dear before that is mended, worth much after it."""
    slow = WorkerFault(places=((1, 0),), slowdown=2.0)
    long = StageImbalance(stage=-1, forward_slowdown=1.5, backward_slowdown=1.5)
    job = generate(JobSpec(pp=4, dp=2, microbatches=8, steps=12, seed=8), [slow, long])
    (truth,) = (fault for fault in job.truth.faults if fault.cause == "stage-imbalance")
    (found,) = (cause for cause in diagnose_table(job.trace).causes if cause.cause == "stage-imbalance")
    assert truth.recoverable < -0.05 and found.recoverable == 0.0
    assert found.recoverable_after_others == pytest.approx(truth.recoverable_last, abs=0.02)


@pytest.mark.parametrize(
    ("place", "onset", "is_tied"), [((2, 1), None, True), ((1, 1), None, False), ((2, 1), 6, False)]
)
def test_two_faults_of_one_worker_may_be_one_of_its_machine(
    place: tuple[int, int], onset: int | None, *, is_tied: bool
) -> None:
    """A worker computes slowly and its card is slow since the same step: each says so of the other, the smaller one at once."""
    dp, stage = place
    card = NetworkFault(scope="card", dp_rank=dp, stage=stage, slowdown=20.0, onset=onset)
    job = generate(JobSpec(pp=3, dp=4, microbatches=8, steps=12, seed=8), [WorkerFault(places=((2, 1),)), card])
    found = diagnose_table(job.trace).causes
    assert sorted(cause.cause for cause in found) == ["network-fault", "worker-fault"]
    tied = [[item.id.endswith("/same-machine") for item in cause.evidence] for cause in found]
    assert [any(items) for items in tied] == [is_tied, is_tied]
    assert tied[1][0] == is_tied and not tied[0][0]


def test_who_waits_for_a_slow_link_that_no_row_tells_of_is_not_named_for_it() -> None:
    """A slow link in a trace without transfers: its ends begin late for what nobody recorded, and the finding says what lacks."""
    spec = JobSpec(pp=4, dp=2, microbatches=6, steps=20, seed=5)
    table = make(spec, NetworkFault(scope="link", stage=1, slowdown=100.0)).trace
    without = table.filter(pc.invert(pc.match_substring_regex(table["optype"].cast(pa.string()), "-send|-recv")))
    (found,) = diagnose_table(without).causes
    assert found.cause == "unknown"
    assert "no row tells of transfers between stages" in found.evidence[0].text
    (named,) = diagnose_table(table).causes
    assert named.cause == "network-fault"


def test_messages_that_no_row_tells_of_make_the_gain_of_a_slow_card_a_lower_bound() -> None:
    """The collectives of a slow card are recorded, its messages are not: what waits for these comes back, too, and is told."""
    spec = JobSpec(pp=4, dp=2, microbatches=6, steps=20, seed=5)
    table = make(spec, NetworkFault(scope="card", stage=1, dp_rank=1, slowdown=100.0)).trace
    without = table.filter(pc.invert(pc.match_substring_regex(table["optype"].cast(pa.string()), "-send|-recv")))
    told = []
    for rows in (table, without):
        (named,) = [cause for cause in diagnose_table(rows).causes if cause.cause == "network-fault"]
        told.append([item.id for item in named.evidence if "lower bound" in item.text])
    assert told == [[], ["network-fault/unseen"]]


@pytest.mark.parametrize(
    ("slow", "in_ring", "is_bound"),
    [
        pytest.param((True, True), False, True, id="all groups"),
        pytest.param((True, False), False, False, id="another one is quick"),
        pytest.param((True, True), True, False, id="its ring tells how quick they can be"),
    ],
)
def test_collectives_without_quick_ones_beside_them(slow: tuple[bool, bool], in_ring: bool, is_bound: bool) -> None:
    """Where all groups are slow from the first step on nobody knows how quick they can be: the gain is a lower bound."""
    analysis = measured(JobSpec(pp=2, dp=3, microbatches=4, steps=10, seed=5)).analysis
    places = dataclasses.replace(SlowPlaces.nowhere(2, 3), groups=np.array(slow), in_ring=in_ring)
    analysis = dataclasses.replace(analysis, transfers=dataclasses.replace(analysis.transfers, slow=places))
    (judgement,) = [j for j in judge(analysis) if j.rule.id == "network-fault"]
    evidence = list_evidence(analysis, judgement, measure_alone(analysis.gains, judgement.rule.components), None)
    assert any(item.id == "network-fault/no-peers" for item in evidence) == is_bound


@pytest.mark.parametrize("steps_share", [0.9, 0.3])
def test_slow_transfers_without_a_place_are_measured_against_themselves(steps_share: float) -> None:
    """What is so in nearly all steps may be so in all of them: more may come back than is said."""
    analysis = with_gains(measured(SPEC).analysis, transfer=(0.2, 0.2))
    features = {**analysis.features, "network.steps_share": Feature(steps_share)}
    (found,) = silent(dataclasses.replace(analysis, features=features)).causes
    assert found.cause == "unknown"
    assert ("more comes back" in found.evidence[0].text) == (steps_share > 0.5)
