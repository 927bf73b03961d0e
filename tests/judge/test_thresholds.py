"""Thresholds of the judge, each just below, at, and just above: numbers stand here as they are, so that none changes unnoticed."""

import dataclasses
import math
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import msgspec.structs
import numpy as np
import pytest

from diagnose.judge.alternatives import list_impossible, split_confidence
from diagnose.judge.caveats import list_caveats
from diagnose.judge.conditions import check_conditions
from diagnose.judge.confidence import (
    be_sure,
    believe,
    chance_above,
    check_fidelity,
    has_one_rank_doubt,
    is_rare,
    overlaps_too_much,
    probability_of,
    trust_looks,
)
from diagnose.judge.describe import describe_rule, tabulate_rules
from diagnose.judge.evidence import list_evidence
from diagnose.judge.explain import _choose_unexplained, _worth_of
from diagnose.judge.likeness import Likeness
from diagnose.judge.log import _is_outside, _join_when
from diagnose.judge.lone import is_lone_rank, only_waits
from diagnose.judge.places import find_culprits, list_blamed, locate, locate_and_price
from diagnose.judge.rest import _measure_structure, describe_noise, describe_rest
from diagnose.judge.rule import Condition, Group, RuleAlternative
from diagnose.judge.timing import date_cause
from diagnose.judge.unchecked import _describe_gaps
from diagnose.judge.unknown import list_unexplained, report_unknown
from diagnose.judge.verdict import _lead_with_unknown, _share_out, reach_verdict
from diagnose.judge.worth import Benefit, is_unmeasured, least_gain, measure_after, measure_alone, most_gain, share_of
from diagnose.model.analysis import Analysis
from diagnose.model.cause import Alternative, When
from diagnose.model.course import Course
from diagnose.model.diagnosis_document import Fidelity
from diagnose.model.feature import Feature
from diagnose.model.optype import Op
from diagnose.model.recording import Account, Unobserved
from diagnose.model.stalls import StallKind
from diagnose.model.trace import Evidence
from diagnose.report import words
from tests.fixture_jobs import FIXTURES
from tests.judge.cases import built_in, judge, measured_file
from tests.judge.given import prediction, priced, reach, silent, with_gains, with_rule

RULES = {rule.id: rule for rule in built_in().rules}
#: The part of the step that a speedup of 1.02 gives back.
LEAST = 1.0 - 1.0 / 1.02


def job(name: str = "worker-fault") -> Analysis:
    """Measure a fixture, once."""
    return measured_file(FIXTURES[name]).analysis


def with_steps(analysis: Analysis, n_steps: int) -> Analysis:
    """Give the same job with fewer steps analysed."""
    breakdown = dataclasses.replace(analysis.breakdown, steps=analysis.breakdown.steps[:n_steps])
    return dataclasses.replace(analysis, breakdown=breakdown)


def with_microbatches(analysis: Analysis, n_microbatches: int) -> Analysis:
    """Give the same job with fewer microbatches."""
    breakdown = dataclasses.replace(analysis.breakdown, compute_s=analysis.breakdown.compute_s[:, :, :n_microbatches])
    return dataclasses.replace(analysis, breakdown=breakdown)


def with_features(analysis: Analysis, **values: float | None) -> Analysis:
    """Give the same job with other values of features; `_` stands for the dot."""
    changed = {
        name.replace("__", "."): Feature.missing("nobody looked") if value is None else Feature(value)
        for name, value in values.items()
    }
    return dataclasses.replace(analysis, features=analysis.features | changed)


def judged(analysis: Analysis, cause: str) -> Any:
    """Let one built-in rule judge."""
    return RULES[cause].judge(analysis.features)


# ------------------------------------------------------------------------------------------ how few steps


@pytest.mark.parametrize(("n_steps", "verdict"), [(1, "inconclusive"), (2, "inconclusive"), (3, "straggling")])
def test_three_steps_are_enough(n_steps: int, verdict: str) -> None:
    """Of what varies over steps nobody can tell with one or two; from three on a slow worker is named."""
    found = reach(with_steps(job(), n_steps))
    assert found.verdict == verdict
    if n_steps < 3:
        assert (
            found.why
            == f"only {words.count(n_steps, 'step')} could be analysed, fewer than 3: nothing that varies can be told from chance"
        )
        assert found.warnings == (found.why,)
    else:
        assert (found.why, [cause.cause for cause in found.causes]) == ("", ["worker-fault"])


@pytest.mark.parametrize(
    ("hosts", "known", "is_one"),
    [
        (("a",), {"has_cuda": False}, True),
        (("a", "b"), {"has_cuda": False}, False),
        (("a", ""), {"has_cuda": False}, False),
        ((), {"has_cuda": False, "n_hosts": 1}, True),
        ((), {"has_cuda": False, "n_hosts": 2}, False),
        ((), {"has_cuda": False}, False),
        (("a",), {"has_cuda": True}, False),
    ],
)
def test_between_processes_of_one_host_is_no_network(hosts: tuple[str, ...], known: dict, is_one: bool) -> None:
    """Where slow transfers have no known cause, it says where to look: at the host, if all is on the CPUs of one."""
    analysis = job("network-fault")
    n_workers = analysis.trace.n_dp * analysis.trace.n_stages
    of_workers = tuple(hosts[i % len(hosts)] for i in range(n_workers)) if hosts else None
    said = dataclasses.replace(analysis.trace.job, **{"gpu_type": None} | known)
    trace = dataclasses.replace(analysis.trace, hosts=of_workers, job=said)
    assert trace.is_on_one_cpu is is_one
    text = report_unknown(dataclasses.replace(analysis, trace=trace), "transfer", LEAST).evidence[0].text
    assert ("takes its cores" in text) is is_one
    assert ("counters of ports" in text) is not is_one


@pytest.mark.parametrize(
    ("known", "asks_gpu"),
    [
        ({}, True),
        ({"gpu_type": "cpu"}, False),
        ({"has_cuda": False}, False),
        ({"has_cuda": False, "gpu_type": "H100"}, True),
    ],
)
def test_a_job_on_cpus_is_not_asked_for_its_gpus(known: dict, asks_gpu: bool) -> None:
    """What makes sure of a slow worker is what its host has."""
    analysis = job()
    trace = dataclasses.replace(analysis.trace, job=dataclasses.replace(analysis.trace.job, **known))
    (cause,) = reach(dataclasses.replace(analysis, trace=trace)).causes
    assert cause.check is not None and ("nvidia-smi" in cause.check) is asks_gpu
    assert ("turbostat" in cause.check) is not asks_gpu


@pytest.mark.parametrize(("n_microbatches", "said"), [(3, []), (4, ["stage-imbalance"])])
def test_four_microbatches_of_few_steps_show_a_stage(n_microbatches: int, said: list[str]) -> None:
    """Two steps are enough for an uneven stage where each has four microbatches; all other causes are not checked then."""
    found = reach(with_microbatches(with_steps(job("stage-imbalance"), 2), n_microbatches))
    assert [cause.cause for cause in found.causes] == said
    assert (found.verdict, found.ledger is None) == (("straggling", False) if said else ("inconclusive", True))
    reasons = {entry.cause: entry.reason for entry in found.not_checked}
    too_few = "only 2 steps could be analysed, fewer than 3"
    assert (reasons.get("worker-fault") == too_few) == bool(said)
    assert (found.checked == tuple(said)) == bool(said)


def test_few_steps_show_a_stage_only_in_a_faithful_replay() -> None:
    """Where the replay misses the recorded steps, not even an uneven stage is said; what is said is why."""
    analysis = with_steps(job("stage-imbalance"), 2)
    found = reach(analysis, fidelity=Fidelity(0.0, 0.08, ok=False))
    assert (found.verdict, found.causes) == ("inconclusive", ())
    assert found.why.startswith("only 2 steps")
    found = reach(job("stage-imbalance"), fidelity=Fidelity(0.0, 0.08, ok=False))
    assert found.why == "the replay misses the recorded step time by 8%: no figure is to be trusted"


@pytest.mark.parametrize(("gain", "said"), [(LEAST - 1e-4, []), (LEAST + 1e-4, ["stage-imbalance"])])
def test_a_stage_of_few_steps_is_worth_saying(gain: float, said: list[str]) -> None:
    """What it costs must be as much as of any cause."""
    found = reach(with_gains(with_steps(job("stage-imbalance"), 2), stage=(gain, gain)))
    assert [cause.cause for cause in found.causes] == said


# ------------------------------------------------------------------------------------------ is the replay faithful


@pytest.mark.parametrize(
    ("replayed", "ok"), [(0.949, False), (0.951, True), (1.0, True), (1.049, True), (1.051, False)]
)
def test_the_replay_may_miss_by_five_percent(replayed: float, ok: bool) -> None:
    """Too long or too short: beyond 5% no figure is to be trusted."""
    analysis = job()
    gains = dataclasses.replace(analysis.gains, replayed_s=replayed * analysis.gains.recorded_s)
    what_if = dataclasses.replace(analysis.what_if, discrepancy=0.0)
    found = check_fidelity(what_if, gains, lambda: 0.0)
    assert found == Fidelity(0.0, pytest.approx(abs(replayed - 1.0)), ok)


@pytest.mark.parametrize(
    ("simulated", "too_much"), [(1.0, False), (1.049, False), (1.051, True), (0.5, False), (1.5, True)]
)
def test_simulated_steps_may_be_five_percent_longer(simulated: float, too_much: bool) -> None:
    """The discrepancy is that of recorded over simulated steps: shorter simulated ones are no overlap."""
    assert overlaps_too_much(1.0 / simulated - 1.0) == too_much


# ------------------------------------------------------------------------------------------ how sure a rule is at most


@pytest.mark.parametrize(
    ("filled", "certain"),
    [(0.0, 0.97), (0.01, 0.97 * 0.98), (0.2, 0.97 * 0.6), (0.25, 0.485), (0.4, 0.485), (1.0, 0.485)],
)
def test_each_percent_of_filled_rows_takes_two(filled: float, certain: float) -> None:
    """A stable rule is 97% sure at most; filled rows take twice their share of that, up to half of it."""
    analysis = dataclasses.replace(job(), filled_share=filled)
    assert believe(analysis, judged(analysis, "worker-fault"), None) == pytest.approx(certain)


def test_an_experimental_rule_is_less_sure() -> None:
    """Its status bounds it; and so does a job unlike all of training, times that."""
    analysis = job()
    (judgement,) = [
        j for j in with_rule(analysis, "worker-fault", status="experimental") if j.rule.id == "worker-fault"
    ]
    assert believe(analysis, judgement, None) == pytest.approx(0.85)
    unlike = prediction("worker-fault", 0.001, unlike="nothing like it")
    assert believe(analysis, judged(analysis, "worker-fault"), unlike) == pytest.approx(0.97 * 0.85)
    assert believe(analysis, judgement, unlike) == pytest.approx(0.85 * 0.85)


@pytest.mark.parametrize(
    ("probability", "gain", "certain"),
    [(0.899, 0.2, None), (0.9, 0.2, 0.25), (0.99, 0.0499, None), (0.99, 0.0501, 0.25)],
)
def test_a_classifier_alone_must_be_sure_of_much(probability: float, gain: float, certain: float | None) -> None:
    """Where the rule is silent: from 0.9 on, and where a twentieth of the step comes back; never without a classifier."""
    analysis = with_gains(job(), worker=(gain, gain))
    unheard = dataclasses.replace(judged(analysis, "worker-fault"), fires=False)
    assert believe(analysis, unheard, prediction("worker-fault", probability)) == certain
    assert believe(analysis, unheard, None) is None
    vetoed = dataclasses.replace(unheard, is_vetoed=True)
    assert believe(analysis, vetoed, prediction("worker-fault", probability)) is None


def test_a_classifier_alone_makes_a_toss_up_at_most() -> None:
    """It knows made jobs, and the rule speaks against it."""
    judgements = [dataclasses.replace(one, fires=False, missing=()) for one in judge(job())]
    asked = prediction("worker-fault", 0.999)
    verdict = reach_verdict(job(), judgements, min_speedup=1.02, prediction=asked)
    (cause,) = [cause for cause in verdict.causes if cause.cause == "worker-fault"]
    assert 0.4 < cause.confidence <= 0.5


@pytest.mark.parametrize(("alone", "last", "known"), [(0.019, 0.019, False), (0.0197, 0.0, True), (0.0, 0.0197, True)])
def test_the_classifier_is_asked_of_what_it_was_trained_on(alone: float, last: float, known: bool) -> None:
    """Training called absent what gives back less than a speedup of 1.02, alone and after all others."""
    analysis = with_gains(job(), worker=(alone, last))
    asked = prediction("worker-fault", 0.7)
    assert probability_of(analysis, asked, RULES["worker-fault"]) == (0.7 if known else None)
    assert probability_of(analysis, None, RULES["worker-fault"]) is None
    assert probability_of(analysis, prediction("worker-fault", 0.7, "so unlike"), RULES["worker-fault"]) is None
    assert probability_of(analysis, asked, RULES["network-fault"]) is None


@pytest.mark.parametrize(
    ("hits", "share", "rare"),
    [
        (1, 0.0, True),
        (2, 0.0, True),
        (3, 0.0, False),
        (2, 0.49, True),
        (2, 0.5, False),
        (2, None, True),
        (None, 0.0, False),
    ],
)
def test_a_stall_seen_twice_is_a_guess(hits: float | None, share: float | None, rare: bool) -> None:
    """Unless rows tell of at least half of it; only what stops all workers is asked for a period."""
    analysis = with_features(job("checkpoint-stall"), stall__hits=hits, stall__checkpoint_share=share)
    assert is_rare(analysis, ("between-steps",)) == rare
    assert not is_rare(analysis, ("worker",))


def test_confidence_is_certainty_times_chance_times_looks() -> None:
    """Without a classifier; with one, the mean of log odds, no probability counted as surer than 99.5%."""
    analysis, rule = job(), RULES["worker-fault"]
    benefit = Benefit(0.3, np.full(8, 0.3))
    looks = trust_looks(analysis, rule.place)
    assert be_sure(analysis, rule, 0.8, benefit, 0.02, None) == round(0.8 * looks, 4)
    odds = math.sqrt((0.8 / 0.2) * (0.6 / 0.4))
    asked = prediction(rule.id, 0.6)
    assert be_sure(analysis, rule, 0.8, benefit, 0.02, asked) == pytest.approx(odds / (1 + odds) * looks, abs=1e-4)
    certain = math.sqrt((0.8 / 0.2) * (0.995 / 0.005))
    for p in (0.995, 1.0):
        found = be_sure(analysis, rule, 0.8, benefit, 0.02, prediction(rule.id, p))
        assert found == pytest.approx(certain / (1 + certain) * looks, abs=1e-4)
    least = math.sqrt((0.8 / 0.2) * (0.005 / 0.995))
    found = be_sure(analysis, rule, 0.8, benefit, 0.02, prediction(rule.id, 0.0))
    assert found == pytest.approx(least / (1 + least) * looks, abs=1e-4)


@pytest.mark.parametrize(
    ("place", "n_microbatches", "n_steps", "n_dp", "looks"),
    [
        ("workers", 1, 3, 4, 3.0),
        ("workers", 4, 3, 4, 3 * 4 / 2.5),
        ("stages", 4, 3, 2, 3 * 8 / 4.5),
        ("spread", 1, 5, 2, 5 * 4 / 2.5),
        ("workers", 1, 1, 1, 1.0),
    ],
)
def test_looks_are_those_of_a_sample_of_clusters(
    place: str, n_microbatches: int, n_steps: int, n_dp: int, looks: float
) -> None:
    """So many looks, n, within a step count as n / (1 + (n - 1) / 2); a share that was 1 in k looks is (k + 0.5) / (k + 1)."""
    analysis = SimpleNamespace(
        breakdown=SimpleNamespace(compute_s=np.zeros((2, 2, n_microbatches, n_steps, n_dp))),
        trace=SimpleNamespace(n_stages=2),
    )
    assert trust_looks(analysis, place) == pytest.approx((looks + 0.5) / (looks + 1.0))


def test_one_step_is_as_sure_as_the_taking_apart() -> None:
    """The chance that a gain is above the least one is, without a spread, that of an error of half a percent."""
    for n_steps in (1, 6):
        benefit = Benefit(0.025, np.full(n_steps, 0.025))
        assert chance_above(benefit, 0.02) == pytest.approx(0.8413, abs=1e-4)
        assert chance_above(benefit, 0.03) == pytest.approx(0.1587, abs=1e-4)
    # Two steps 0.01 apart: the mean has an error of 0.005 with one degree of freedom, beside the same without: four together.
    assert chance_above(Benefit(0.02 + math.hypot(0.005, 0.005), np.array([0.015, 0.025])), 0.02) == pytest.approx(
        0.813, abs=2e-3
    )


@pytest.mark.parametrize(
    ("n_dp", "cause", "onset", "doubt"),
    [
        (1, "worker-fault", None, True),
        (1, "worker-fault", 7, False),
        (2, "worker-fault", None, False),
        (1, "stage-imbalance", None, True),
        (2, "stage-imbalance", None, False),
        (1, "checkpoint-stall", None, False),
    ],
)
def test_one_dp_rank_cannot_tell_worker_from_stage(n_dp: int, cause: str, onset: int | None, doubt: bool) -> None:
    """Unless the worker became slow within the recording."""
    course = Course(When() if onset is None else When("onset", onset_step=onset))
    analysis = SimpleNamespace(trace=SimpleNamespace(n_dp=n_dp), gains=job().gains, courses={"worker": course})
    assert has_one_rank_doubt(analysis, RULES[cause]) == doubt


# ------------------------------------------------------------------------------------------ what it is worth


@pytest.mark.parametrize(("speedup", "gain"), [(1.02, LEAST), (2.0, 0.5), (1.0, 1e-9), (0.5, 1e-9)])
def test_the_least_gain_of_a_speedup(speedup: float, gain: float) -> None:
    """Something must come back whatever is asked for: less than a billionth is rounding."""
    assert least_gain(speedup) == pytest.approx(gain, rel=1e-12)


def test_what_comes_back_after_others() -> None:
    """Part of the step that is left without the others; each step's as part of the mean one."""
    base = job()
    price = priced(base, {frozenset({"stage"}): 0.8, frozenset({"stage", "worker"}): 0.6})
    analysis = dataclasses.replace(base, price=price)
    found = measure_after(analysis, ("worker",), ("stage", "stage"))
    assert found.gain == pytest.approx(0.25)
    assert found.after == ("stage",)
    steps = base.gains.replayed_steps_s
    np.testing.assert_allclose(found.by_step, 0.25 * steps / steps.mean())


def test_what_comes_back_alone() -> None:
    """Of each step, as part of the mean one; components that the job does not have give nothing."""
    gains = job().gains
    found = measure_alone(gains, ("worker",))
    assert found.by_step.mean() == pytest.approx(found.gain) == pytest.approx(gains.recoverable("worker"))
    assert found.after == ()
    none = measure_alone(gains, ("malloc-pause",))
    assert (none.gain, none.by_step.any()) == (0.0, False)


def test_the_larger_gain_counts() -> None:
    """Alone, or after all others."""
    for alone, last in ((0.1, 0.3), (0.3, 0.1)):
        assert most_gain(with_gains(job(), worker=(alone, last)).gains, ("worker",)) == pytest.approx(0.3)


def test_a_share_is_divided_among_those_that_claim_it() -> None:
    """Two causes of one component have half of it each; where nothing was lost nobody has a share."""
    gains = dataclasses.replace(job().gains, share={"worker": 0.6, "stage": 0.2})
    assert share_of(gains, ("worker", "stage")) == pytest.approx(0.8)
    assert share_of(gains, ("worker", "stage"), {"worker": 2, "stage": 1}) == pytest.approx(0.5)
    assert share_of(gains, ("pause",)) == 0.0
    assert share_of(dataclasses.replace(gains, share={}), ("worker",)) is None


def test_a_cause_is_unmeasured_where_any_of_its_components_is() -> None:
    """Nobody can tell what both cost together."""
    analysis = with_features(job(), gain__worker=0.1, gain__stage=None)
    assert is_unmeasured(analysis, ("worker", "stage"))
    assert is_unmeasured(analysis, ("stage",))
    assert not is_unmeasured(analysis, ("worker",))


# ------------------------------------------------------------------------------------------ what is said


@pytest.mark.parametrize(("gain", "said"), [(LEAST - 1e-6, []), (LEAST + 1e-6, ["worker-fault"])])
def test_a_cause_is_said_from_the_least_gain_on(gain: float, said: list[str]) -> None:
    """A rule that fires is not enough: the cause must give back as much as was asked for."""
    assert [cause.cause for cause in reach(with_gains(job(), worker=(gain, 0.0))).causes] == said


@pytest.mark.parametrize(
    ("gain", "probability", "said"),
    [
        (LEAST + 1e-6, 0.42, ["worker-fault"]),
        (LEAST + 1e-6, 0.36, []),
        (0.3, 0.025, ["worker-fault"]),
        (0.3, 0.012, ["unknown"]),
    ],
)
def test_what_is_hardly_there_is_not_said(gain: float, probability: float, said: list[str]) -> None:
    """Less than 0.425: even on the gain with a classifier below one half, or sure of it with one that is all against it."""
    found = reach(with_gains(job(), worker=(gain, gain)), prediction=prediction("worker-fault", probability))
    assert [cause.cause for cause in found.causes] == said
    assert found.verdict == ("straggling" if said else "noisy")


def test_what_nobody_knows_gives_back_as_much_after_the_others() -> None:
    """A cause that matters after the others only, and is more probably something unknown, is told with that gain."""
    analysis = job()
    (known,) = reach(with_gains(analysis, worker=(0.3, 0.0))).causes
    nobody = Alternative("unknown", 0.6, "a profile")
    cause = msgspec.structs.replace(known, confidence=0.2, alternatives=(nobody,), recoverable_after_others=0.03)
    said = SimpleNamespace(judgement=judged(analysis, "worker-fault"))
    found = _lead_with_unknown(analysis, cause, said, LEAST)  # type: ignore[arg-type] # of it nothing else is asked
    assert (found.cause, found.recoverable_after_others) == ("unknown", 0.03)
    assert [other.cause for other in found.alternatives] == ["worker-fault"]


@pytest.mark.parametrize(
    ("own", "experts", "stage", "confidence"),
    [(0.13, 0.45, 0.36, None), (0.09, 0.45, 0.36, 0.19), (0.03, 0.2, 0.1, 0.2)],
)
def test_what_all_else_is_likelier_than_does_not_lead(
    own: float, experts: float, stage: float, confidence: float | None
) -> None:
    """Nobody is sent to change a card for what is five times as probably experts, and four times an uneven stage."""
    analysis = job()
    (known,) = reach(with_gains(analysis, worker=(0.3, 0.0))).causes
    others = (
        Alternative("expert-imbalance", experts, "a column"),
        Alternative("stage-imbalance", stage, "another run"),
    )
    cause = msgspec.structs.replace(known, confidence=own, alternatives=others)
    said = SimpleNamespace(judgement=judged(analysis, "worker-fault"))
    found = _lead_with_unknown(analysis, cause, said, LEAST)  # type: ignore[arg-type] # of it nothing else is asked
    assert (found.cause, found.alternatives) == ("unknown" if confidence else "worker-fault", others)
    assert found.confidence == pytest.approx(confidence or own)


def test_several_that_nobody_knows_have_all_their_shares() -> None:
    """Causes of one name, as `unknown`, are added up in the ledger."""
    analysis = job()
    (known,) = reach(with_gains(analysis, worker=(0.3, 0.0))).causes
    causes = [msgspec.structs.replace(known, cause="unknown", share=share) for share in (0.5, 0.25)]
    ledger = _share_out(analysis, causes)
    assert ledger is not None
    assert (ledger.causes, ledger.unexplained) == ({"unknown": 0.75}, pytest.approx(0.25))


@pytest.mark.parametrize(("unknown", "lead"), [(0.4, "network-fault"), (0.7, "unknown")])
def test_the_same_cause_elsewhere_is_no_reason_to_say_unknown(unknown: float, lead: str) -> None:
    """A slow network at one place or at another is a slow network, and is told once where nobody knows."""
    analysis = job()
    (known,) = reach(with_gains(analysis, worker=(0.3, 0.0))).causes
    others = (Alternative("unknown", unknown, "a profile"), Alternative("network-fault", 0.27, "its links"))
    cause = msgspec.structs.replace(known, cause="network-fault", confidence=0.32, alternatives=others)
    said = SimpleNamespace(judgement=judged(analysis, "network-fault"))
    found = _lead_with_unknown(analysis, cause, said, LEAST)  # type: ignore[arg-type] # of it nothing else is asked
    assert found.cause == lead
    if lead == "unknown":
        assert [(other.cause, other.confidence) for other in found.alternatives] == [("network-fault", 0.59)]


def test_what_is_there_may_give_less_than_was_asked_for() -> None:
    """That a cause is there is surer than that it gives quite as much as was asked for: half of it counts."""
    (cause,) = reach(with_gains(job(), worker=(LEAST + 1e-6, 0.0))).causes
    assert cause.confidence > 0.9
    assert be_sure(job(), RULES["worker-fault"], 0.97, Benefit(LEAST, np.full(9, LEAST)), LEAST, None) < 0.5


@pytest.mark.parametrize(("gain", "checked"), [(LEAST - 1e-6, True), (LEAST + 1e-6, False)])
def test_what_could_not_be_looked_for_matters_from_the_least_gain_on(gain: float, checked: bool) -> None:
    """A rule that could not look leaves its cause unchecked where as much may be lost to it, alone or after others."""
    for alone, last in ((gain, 0.0), (0.0, gain)):
        analysis = with_gains(job("healthy"), worker=(alone, last))
        blind = dataclasses.replace(judged(analysis, "worker-fault"), fires=None, missing=("worker.ratio: lost",))
        found = reach_verdict(analysis, [blind], min_speedup=1.02)
        assert (found.checked == ("worker-fault",)) == checked
        assert [(e.cause, e.reason) for e in found.not_checked] == (
            [] if checked else [("worker-fault", "worker.ratio: lost")]
        )


@pytest.mark.parametrize(
    ("share", "gain", "order"),
    [
        ((0.3, 0.6), (0.3, 0.2), ["stage-imbalance", "worker-fault"]),
        ((0.4, 0.4), (0.3, 0.2), ["worker-fault", "stage-imbalance"]),
        ((0.4, 0.4), (0.2, 0.3), ["stage-imbalance", "worker-fault"]),
        ((0.4, 0.4), (0.2, 0.2), ["stage-imbalance", "worker-fault"]),
        ((0.0, 0.3), (0.3, 0.2), ["stage-imbalance", "worker-fault"]),
    ],
    ids=["share", "gain", "gain the other way", "name", "no share"],
)
def test_causes_are_sorted_by_share_then_gain_then_name(
    share: tuple[float, float], gain: tuple[float, float], order: list[str]
) -> None:
    """The report of a job is the same whatever the order of the rules, and the ledger adds up."""
    analysis = with_gains(job(), worker=(gain[0], gain[0]), stage=(gain[1], gain[1]))
    gains = dataclasses.replace(analysis.gains, share=dict(zip(("worker", "stage"), share, strict=True)))
    analysis = dataclasses.replace(analysis, gains=gains, price=lambda _: gains.alone_steps_s["worker"])
    for causes in (order, order[::-1]):
        judgements = [dataclasses.replace(judged(analysis, cause), fires=True) for cause in causes]
        found = reach_verdict(analysis, judgements, min_speedup=1.02)
        assert [cause.cause for cause in found.causes] == order
        assert found.ledger is not None
        assert (found.ledger.unexplained, found.ledger.immaterial) == pytest.approx((1.0 - sum(share),) * 2)


# ------------------------------------------------------------------------------------------ where no cause was found


@pytest.mark.parametrize(("gain", "said"), [(0.0499, []), (0.0501, ["unknown"])])
def test_what_no_rule_explains_is_a_finding_from_a_twentieth_on(gain: float, said: list[str]) -> None:
    """Or from as much as is asked for, where that is more."""
    analysis = with_gains(job("healthy"), microbatch=(gain, gain))
    assert [cause.cause for cause in silent(analysis).causes] == said
    assert list_unexplained(analysis, (), 0.0501 + 1e-3) == []
    assert list_unexplained(analysis, ("microbatch",), LEAST) == []


@pytest.mark.parametrize(
    ("gain", "pattern", "component", "alone", "verdict"),
    [
        (0.06, "sporadic", "step", False, "noisy"),
        (0.06, "sporadic", "pause", False, "noisy"),
        (0.06, "sporadic", "transfer", False, "straggling"),
        (0.06, "onset", "step", False, "straggling"),
        (0.06, "sporadic", "step", True, "straggling"),
        (0.0905, "sporadic", "step", False, "noisy"),
        (0.0915, "sporadic", "step", False, "straggling"),
    ],
)
def test_what_is_long_now_and_then_everywhere_is_variation(
    gain: float, pattern: Any, component: str, alone: bool, verdict: str
) -> None:
    """Unless it makes the job straggle by itself, has a beginning or a place, or is none of the computes'."""
    lost = [[1.0, 0.0], [0.0, 0.0]] if alone else [[1.0, 1.0], [1.0, 1.0]]
    analysis = blamed(lost, component, gain)
    found = silent(dataclasses.replace(analysis, courses={component: Course(When(pattern))}))
    assert (found.verdict, [cause.cause for cause in found.causes]) == (
        verdict,
        ["unknown"] * (verdict == "straggling"),
    )
    assert ("now and then, on nobody more than on others" in found.why) == (verdict == "noisy")


def test_the_largest_of_what_no_rule_explains_is_said() -> None:
    """One finding, six tenths as sure as that its gain is above the least one."""
    analysis = with_gains(job("healthy"), microbatch=(0.1, 0.1), stage=(0.3, 0.3))
    (cause,) = silent(analysis).causes
    assert (cause.title, cause.confidence) == ("unknown cause: uneven pipeline stages", 0.6)
    assert report_unknown(analysis, "stage", 0.3).confidence == pytest.approx(0.3)  # as probably below it


@pytest.mark.parametrize(("silent_share", "silent"), [(None, False), (0.79, False), (0.81, True)])
def test_forwards_that_are_late_without_a_row_that_says_so(silent_share: float | None, *, silent: bool) -> None:
    """Where four fifths of what waits for input have no row, though others have, it is late forwards; else input."""
    base = job("healthy")
    features = {**base.features, "input.silent_share": Feature(silent_share, "")}
    found = report_unknown(dataclasses.replace(base, features=features), "input-delay", LEAST)
    assert (found.title == "unknown cause: late forwards where data is read") == silent


@pytest.mark.parametrize(("inside_s", "which"), [(0.9, "late"), (1.1, "long")])
def test_forwards_that_stand_still_are_not_late(inside_s: float, which: str) -> None:
    """Where more of it lies in forwards than before them they have begun, and the batch is there."""
    base = job("healthy")
    zeros = base.breakdown.stalls.inside_s * 0.0
    places = np.full(zeros.shape, StallKind.INPUT, dtype=np.int8)
    inside, before = zeros.copy(), zeros.copy()
    inside[0, 0, 0, 0, 0], before[0, 0, 0, 1, 0] = inside_s, 1.0
    stalls = dataclasses.replace(base.breakdown.stalls, inside_s=inside, before_s=before, inside=places, before=places)
    breakdown = dataclasses.replace(base.breakdown, stalls=stalls)
    features = {**base.features, "input.silent_share": Feature(1.0)}
    analysis = dataclasses.replace(base, breakdown=breakdown, features=features)
    assert report_unknown(analysis, "input-delay", LEAST).title == f"unknown cause: {which} forwards where data is read"


@pytest.mark.parametrize(
    ("ranks", "collectives_s", "least", "unsure"),
    [
        (17, 0.101, LEAST, True),
        (17, 0.099, LEAST, False),
        (16, 0.9, LEAST, False),
        (0, 0.9, LEAST, False),
        (17, 0.2, 0.3, False),
    ],
    ids=["missing", "hardly waits", "all there", "nobody says", "not worth it"],
)
def test_ranks_that_are_not_there_may_be_waited_for(
    ranks: int, collectives_s: float, least: float, *, unsure: bool
) -> None:
    """Where the others spend a tenth of a step and more in collectives nobody can say that the job is healthy."""
    base = job("healthy")
    trace = dataclasses.replace(base.trace, ranks_told=ranks)
    clean = SimpleNamespace(collectives_s=collectives_s, step_s=1.0)
    found = describe_rest(dataclasses.replace(base, trace=trace, split_clean=lambda: clean), least)
    assert found.startswith("1 of 17 ranks were not recorded, and ") == unsure


@pytest.mark.parametrize(
    ("slowdown", "rest", "noise"),
    [(1.0995, False, False), (1.1005, False, True), (1.2495, False, True), (1.2505, True, True), (0.9, False, False)],
)
def test_ideal_times_give_back_much(slowdown: float, rest: bool, noise: bool) -> None:
    """From S = 1.1 on it is noise, from 1.25 on more than noise ever costs."""
    base = with_gains(job("healthy"), microbatch=(0.0, 0.0))
    gains = dataclasses.replace(
        base.gains, clean_s=base.gains.replayed_s, replayed_steps_s=np.full(20, base.gains.replayed_s)
    )
    what_if = dataclasses.replace(base.what_if, simulated_s=slowdown * base.what_if.ideal_s)
    price = lambda _: gains.replayed_steps_s  # noqa: E731 - one line: nothing is the schedule's
    analysis = dataclasses.replace(base, gains=gains, what_if=what_if, price=price)
    assert (bool(describe_rest(analysis, LEAST)), bool(describe_noise(analysis, (), LEAST))) == (rest, noise)
    ideal = f"if each operation took its usual time, steps would be {100 * (1 - 1 / slowdown):.2g}% shorter"
    assert (ideal in describe_noise(analysis, (), LEAST)) == noise
    assert not describe_noise(analysis, (), 0.5)


def test_what_longer_microbatches_and_stages_cost_is_structure() -> None:
    """Forwards of 1, 1 and 2 s on one virtual stage, of 1, 1 and 4 s on another: the long ones are priced at 1 s."""
    alike_s = (
        np.ones((2, 2, 3, 4, 2)) * np.array([[[1.0, 1.0, 2.0], [1.0, 1.0, 4.0]], np.full((2, 3), 3.0)])[..., None, None]
    )
    asked: list[Any] = []

    def price(changes: Any) -> Any:
        asked.extend(changes)
        return np.full(4, 6.0)

    parts: Any = SimpleNamespace(
        breakdown=SimpleNamespace(alike_s=alike_s), price=price, gains=SimpleNamespace(replayed_s=8.0)
    )
    assert _measure_structure(parts) == pytest.approx(0.25)
    (work,) = asked
    assert work.factor[0, :, :, 0, 0].tolist() == [[1.0, 1.0, 0.5], [1.0, 1.0, 0.25]]
    assert work.factor.shape[3:] == (1, 1) and (work.factor[1] == 1.0).all()


@pytest.mark.parametrize(("longer", "rest", "noise"), [(1.5, False, False), (4.0, False, True), (9.0, True, True)])
def test_one_step_of_twenty_is_long_for_no_reason(longer: float, rest: bool, noise: bool) -> None:
    """What nothing accounts for is no health: from a tenth of the step time on noise, from a fifth on nobody can tell."""
    base = with_gains(job("healthy"), microbatch=(0.0, 0.0))
    steps_s = np.where(np.arange(20) == 7, longer, 1.0)
    gains = dataclasses.replace(
        base.gains, clean_s=steps_s.mean(), clean_steps_s=steps_s, replayed_s=steps_s.mean(), replayed_steps_s=steps_s
    )
    what_if = dataclasses.replace(base.what_if, simulated_s=base.what_if.ideal_s)
    analysis = dataclasses.replace(base, gains=gains, what_if=what_if)
    assert (bool(describe_rest(analysis, LEAST)), bool(describe_noise(analysis, (), LEAST))) == (rest, noise)
    assert describe_noise(analysis, (), LEAST).startswith("steps vary by 0%, computes by ") == noise
    assert (
        f"; steps longer than usual cost {100 * (1 - 20 / (19 + longer)):.2g}%" in describe_noise(analysis, (), LEAST)
    ) == noise


@pytest.mark.parametrize("clean", [0.95, 0.85])
def test_many_small_losses_are_noise(clean: float) -> None:
    """Where they cost a tenth together, and nothing varies by as much, the sentence says that."""
    base = with_gains(job("healthy"), microbatch=(0.0, 0.0))
    gains = dataclasses.replace(base.gains, clean_s=clean * base.gains.replayed_s, replayed_steps_s=np.ones(20))
    what_if = dataclasses.replace(base.what_if, simulated_s=base.what_if.ideal_s)
    said = describe_noise(dataclasses.replace(base, gains=gains, what_if=what_if), (), LEAST)
    assert said.endswith("; many small losses cost 15% together; no cause can be named") == (clean < 0.9) == bool(said)


@pytest.mark.parametrize(
    ("tells", "why"),
    [
        (
            None,
            "steps slow on most workers cost 8% of the step time, and all their computes are longer alike, as with more",
        ),
        (1.0, "steps with more tokens take longer: 8% of the time is more work, by the columns, and no fault"),
    ],
)
def test_more_work_is_claimed_only_where_tokens_tell(tells: float | None, why: str) -> None:
    """Slow steps in which all computes are longer alike may have more work; where tokens say that they have, they have."""
    base = with_gains(job("healthy"), step=(0.08, 0.08))
    features = {**base.features, "step.shared": Feature(0.95), "sequence.slow_steps": Feature(tells, "")}
    said = describe_noise(dataclasses.replace(base, features=features), (), LEAST)
    assert said.startswith(why)


@pytest.mark.parametrize(
    ("saves", "slow", "told"),
    [
        ((1, 7), (2, 3, 8, 9), True),
        ((1, 7), (2, 3, 8, 9, 11), True),
        ((1, 7), (2, 3, 8, 10, 11), False),
        ((1, 7), (1, 7), False),
        ((1,), (2, 3), False),
        ((), (2, 3, 8, 9), False),
        (range(12), range(12), False),
    ],
    ids=["after each", "nearly all", "some", "the saves themselves", "one save", "no save", "always"],
)
def test_steps_that_are_slow_after_saves_are_told(saves: Sequence[int], slow: Sequence[int], told: bool) -> None:
    """A save that goes on in the background is in the way of the two steps after it, or most of what is slow is elsewhere."""
    base = with_gains(job("healthy"), step=(0.08, 0.08))
    steps, lost_s = np.sort(base.breakdown.steps), np.zeros(len(base.breakdown.steps))
    lost_s[list(slow)] = 0.1
    gains = base.gains
    alone = {**gains.alone_steps_s, "step": gains.replayed_steps_s - lost_s}
    n, zero = len(saves), np.zeros(len(saves), dtype=np.int64)
    rows = Evidence(zero + int(Op.CHECKPOINT), steps[list(saves)], zero, zero, np.zeros(n), np.ones(n))
    analysis = dataclasses.replace(
        base,
        features={**base.features, "step.shared": Feature(0.95), "sequence.slow_steps": Feature.missing("no tokens")},
        gains=dataclasses.replace(gains, alone_steps_s=alone),
        breakdown=dataclasses.replace(base.breakdown, steps=steps),
        trace=dataclasses.replace(base.trace, evidence=rows),
    )
    assert ("nearly all in the 2 steps after one that saves" in describe_noise(analysis, (), LEAST)) == told


@pytest.mark.parametrize(("spread", "noisy"), [(0.08, False), (0.2, True)])
def test_steps_that_vary_are_noise(spread: float, noisy: bool) -> None:
    """By a tenth of the typical step, half of the steps longer and half of them shorter."""
    base = with_gains(job("healthy"), microbatch=(0.0, 0.0))
    gains = base.gains
    steps = gains.replayed_s * (1.0 + spread * np.array([-1.0, 1.0] * 10) / 1.4826)
    analysis = dataclasses.replace(
        base,
        gains=dataclasses.replace(gains, clean_s=gains.replayed_s, replayed_steps_s=steps),
        what_if=dataclasses.replace(base.what_if, simulated_s=base.what_if.ideal_s),
    )
    assert describe_noise(analysis, (), LEAST).startswith("steps vary by 20%") == noisy
    assert bool(describe_noise(analysis, (), LEAST)) == noisy


@pytest.mark.parametrize(("share", "waits"), [(None, True), (0.0, True), (0.49, True), (0.5, False)])
def test_a_lone_rank_may_wait_for_others(share: float | None, waits: bool) -> None:
    """What its own rows explain at least half of are no waits; nor is what it computes."""
    analysis = with_features(job(), stall__checkpoint_share=share)
    assert only_waits(analysis, ("between-steps", "start-delay")) == waits
    assert not only_waits(analysis, ("between-steps", "worker"))


@pytest.mark.parametrize(
    ("n_dp", "told", "lacks", "lone"),
    [(1, 8, (), True), (1, 4, (), False), (2, 8, (), False), (1, 4, ("peers",), True), (1, 4, ("transfers",), False)],
)
def test_one_rank_of_several_is_lone(n_dp: int, told: int, lacks: tuple[str, ...], lone: bool) -> None:
    """Where the metadata tell of more ranks than the rows are of, or the recording says that it has no peers."""
    account = Account("theirs", unobserved=(Unobserved("others", "not there", lacks),))
    trace = SimpleNamespace(
        n_dp=n_dp, n_stages=4, ranks_told=told, job=SimpleNamespace(world_size=4), recording=account
    )
    assert is_lone_rank(trace) == lone
    trace.recording = None
    assert is_lone_rank(trace) == (lone and not lacks)


@pytest.mark.parametrize(
    ("n_stages", "told", "op", "lone"),
    [
        (1, 0, Op.FORWARD_SEND, True),
        (2, 0, Op.FORWARD_SEND, False),
        (1, 1, Op.BACKWARD_RECV, True),
        (1, 0, Op.REDUCE_SCATTER, True),
        (1, 1, Op.REDUCE_SCATTER, False),
        (1, 0, Op.OPTIMIZER, False),
    ],
)
def test_rows_of_one_worker_show_that_there_are_others(n_stages: int, told: int, op: Op, lone: bool) -> None:
    """It sends to a stage that is not there; it reduces, and nobody says that it does so alone."""
    block = SimpleNamespace(nodes=SimpleNamespace(op=np.array([Op.FORWARD, op])))
    one = SimpleNamespace(world_size=1)
    trace = SimpleNamespace(n_dp=1, n_stages=n_stages, ranks_told=told, job=one, recording=None, blocks=(block,))
    assert is_lone_rank(trace) == lone


# ------------------------------------------------------------------------------------------ since when


@pytest.mark.parametrize(
    ("period", "regularity", "hits", "pattern"),
    [
        (5.0, 0.5, 3, "periodic"),
        (5.0, 0.49, 3, None),
        (5.0, None, 3, None),
        (1.0, 0.9, 3, None),
        (2.0, 0.75, 3, "periodic"),
        (2.0, 0.74, 11, None),  # a gap in every step: half of them keep a period of two
        (3.0, 0.5, 3, "periodic"),
        (5.0, 0.9, 2, None),
        (None, 0.9, 3, None),
    ],
)
def test_stalls_at_a_period_are_periodic(
    period: float | None, regularity: float | None, hits: int, pattern: str | None
) -> None:
    """Half of them on the period, more than of stalls in every step, and at least three; only of what stops all workers."""
    values = {"stall__period_steps": period, "stall__regularity": regularity, "stall__hits": hits}
    analysis = with_features(job(), **values, stall__checkpoint_share=0.0)
    analysis = dataclasses.replace(analysis, courses={})
    when = date_cause(analysis, ("between-steps",), "spread")
    assert (when.pattern, when.period_steps) == (pattern, period if pattern == "periodic" else None)
    assert date_cause(analysis, ("worker",), "workers") == When()
    assert date_cause(analysis, ("gc-pause",), "workers") == When("sporadic")
    assert date_cause(analysis, ("between-steps",), "stages") == When("constant")


# ------------------------------------------------------------------------------------------ where


def blamed(lost: list[list[float]], component: str = "pause", gain: float = 0.2) -> Analysis:
    """Give a job that loses a part of its steps to a component, of which these workers bear so many parts of all."""
    base = with_gains(job(), **{component.replace("-", "_"): (gain, gain)})
    seconds = np.array(lost) * gain * base.gains.recorded_s
    gains = dataclasses.replace(base.gains, blame_s={component: seconds})
    return dataclasses.replace(base, gains=gains)


@pytest.mark.parametrize(
    ("lost", "share", "named"),
    [
        ([[0.1, 0.5, 0.24, 0.0]], 0.5, [(0, 1)]),
        ([[0.1, 0.5, 0.26, 0.0]], 0.5, [(0, 1), (0, 2)]),
        ([[0.1, 0.5, 0.26, 0.0], [0.0] * 4], 0.2, [(0, 1), (0, 2), (0, 0)]),
        ([[0.0, 0.249], [0.0, 0.0]], 0.5, []),
        ([[0.0, 0.251], [0.0, 0.0]], 0.5, [(0, 1)]),
        ([[0.3, 0.3], [0.3, 0.1]], 0.5, []),
        ([[0.3, 0.3], [0.0, 0.1]], 0.5, [(0, 0), (0, 1)]),
        ([[0.5]], 0.5, [(0, 0)]),
        ([[0.0, 0.0]], 0.5, []),
    ],
    ids=["half", "just half", "a fifth", "mostly nobody's", "a quarter", "spread", "half of all", "alone", "nothing"],
)
def test_who_bears_a_share_of_the_worst_is_named(
    lost: list[list[float]], share: float, named: list[tuple[int, int]]
) -> None:
    """Worst first; nobody where they are more than half of all workers, or bear less than a quarter of the gain together."""
    assert list_blamed(blamed(lost), ("pause",), share) == named


@pytest.mark.parametrize(
    ("lost", "component", "n_pauses", "named"),
    [
        ([[0.91, 0.09], [0.0, 0.0]], "gc-pause", 0, [(0, 0)]),
        ([[0.89, 0.11], [0.0, 0.0]], "gc-pause", 2, []),
        ([[0.89, 0.11], [0.0, 0.0]], "gc-pause", 4, [(0, 0)]),
        ([[0.74, 0.26], [0.0, 0.0]], "gc-pause", 9, []),
        ([[0.4, 0.4], [0.1, 0.0]], "gc-pause", 8, []),
        ([[0.4, 0.4], [0.1, 0.0]], "gc-pause", 9, [(0, 0), (0, 1)]),
        ([[0.0, 0.0, 1.0]], "gc-pause", 0, []),
        ([[0.001] * 1000, [0.0] * 1000], "gc-pause", 9, []),
        ([[0.96, 0.04], [0.0, 0.0]], "microbatch", 9, []),
        ([[0.0, 0.0], [0.0, 0.0]], "gc-pause", 9, []),
    ],
    ids=[
        "one",
        "others, too",
        "others hardly",
        "half",
        "two by chance",
        "two",
        "few workers",
        "thousands",
        "sequences",
        "nobody",
    ],
)
def test_the_only_ones_that_collect_are_named(
    lost: list[list[float]], component: str, n_pauses: int, named: list[tuple[int, int]]
) -> None:
    """Collections are spread over a job, but for those of a rank that alone has them, or of a few that chance did not choose."""
    base = blamed(lost, component)
    stalls = base.breakdown.stalls
    seconds, kinds = np.zeros(stalls.inside_s.shape), np.zeros(stalls.inside.shape, dtype=np.int8)
    seconds[0, 0, 0, :n_pauses, 0], kinds[0, 0, 0, :, 0] = 1.0, StallKind.COLLECTION
    stalls = dataclasses.replace(stalls, inside_s=seconds, inside=kinds, before=np.zeros_like(kinds))
    where = locate(
        dataclasses.replace(base, breakdown=dataclasses.replace(base.breakdown, stalls=stalls)), (component,), "spread"
    )
    assert [(worker.dp, worker.pp) for worker in where.workers] == named


@pytest.mark.parametrize(("gap", "named"), [(0.0, [(0, 0), (0, 1)]), (0.2, [])])
def test_a_gap_of_everybody_is_not_theirs_who_are_late_after_it(gap: float, named: list[tuple[int, int]]) -> None:
    """Workers that begin a little later side by side lose, added up, as much as all do in the gap: that is nobody's."""
    base = with_gains(job(), start_delay=(0.02, 0.02), between_steps=(gap, gap))
    alone = {
        **base.gains.alone_s,
        "start-delay+between-steps": base.gains.replayed_s - (gap + 0.02) * base.gains.recorded_s,
    }
    seconds = np.array([[0.04, 0.04, 0.0, 0.0]]) * base.gains.recorded_s
    gains = dataclasses.replace(base.gains, alone_s=alone, blame_s={"start-delay": seconds})
    assert list_blamed(dataclasses.replace(base, gains=gains), ("start-delay", "between-steps")) == named


def test_who_can_have_it_counts() -> None:
    """Where only workers of some stages can lose time, half of those that can is spread."""
    lost = [[0.3, 0.0], [0.3, 0.0], [0.3, 0.0], [0.0, 0.0]]
    assert list_blamed(blamed(lost), ("pause",)) == [(0, 0), (1, 0), (2, 0)]
    assert list_blamed(blamed(lost, "input-delay"), ("input-delay",)) == []
    lost[2][0] = 0.0
    assert list_blamed(blamed(lost, "input-delay"), ("input-delay",)) == [(0, 0), (1, 0)]


@pytest.mark.parametrize(
    ("second", "named"), [(0.249, [(1, 0)]), (0.251, [(1, 0), (0, 0)])], ids=["a little", "a quarter"]
)
def test_slow_workers_that_lose_little_are_not_named(second: float, named: list[tuple[int, int]]) -> None:
    """Beside the worst: a quarter of it, where that is less than 10% of the step."""
    for gain, is_large in ((0.4, False), (0.9, True)):
        analysis = blamed([[second, 0.0], [1.0, 0.0]], "worker", gain)
        analysis = dataclasses.replace(
            analysis, suspects=dataclasses.replace(analysis.suspects, workers=((1, 0), (0, 0)))
        )
        assert find_culprits(analysis, ("worker",)) == ([(1, 0), (0, 0)] if is_large else named)


def test_the_slow_worker_is_named_where_all_stall_as_much() -> None:
    """Of two workers one is a little slow and the other stalls: nobody bears most of it, and the slow one is the culprit."""
    analysis = blamed([[0.55], [0.45]], "worker")
    analysis = dataclasses.replace(analysis, suspects=dataclasses.replace(analysis.suspects, workers=((1, 0),)))
    assert find_culprits(analysis, ("worker",)) == [(1, 0)]


@pytest.mark.parametrize(("slowest", "other"), [((1, 0), False), ((0, 1), True)])
def test_figures_of_a_worker_that_is_not_named_are_not_told(slowest: tuple[int, int], other: bool) -> None:
    """Where others than the slowest worker bear the seconds, the evidence is their part of these, and not its ratios."""
    analysis = blamed([[0.0, 0.1], [0.9, 0.0]], "worker")
    analysis = dataclasses.replace(analysis, suspects=dataclasses.replace(analysis.suspects, workers=(slowest,)))
    found = list_evidence(analysis, judged(analysis, "worker-fault"), Benefit(0.2, np.full(8, 0.2)), None)
    values = {item.id.removeprefix("worker-fault/"): item.values for item in found}
    assert ("worker.ratio" in values) != other
    assert values.get("named") == ({"worker.named_share": pytest.approx(0.9)} if other else None)


@pytest.mark.parametrize(("in_a_step", "told"), [(3.25, ["a_step"]), (3.5, ["a_step", "in_a_step"])])
def test_waits_in_every_step_are_told_once(in_a_step: float, told: list[str]) -> None:
    """Where a loader is late in every step, waits a step and waits in such a step are one figure."""
    base = job("healthy")
    waits = {"input.a_step": Feature(3.25), "input.in_a_step": Feature(in_a_step)}
    analysis = dataclasses.replace(base, features={**base.features, **waits})
    found = list_evidence(analysis, judged(analysis, "data-loading"), Benefit(0.2, np.full(8, 0.2)), None)
    assert [item.id.partition("input.")[2] for item in found if "input." in item.id] == told


@pytest.mark.parametrize(
    ("elsewhere", "without", "named", "recoverable"),
    [
        (0.0009, 0.0, [(0, 0)], 0.2),
        (0.0011, 0.19, [(0, 0)], 0.19),
        (0.08, 0.181, [(0, 0)], 0.181),
        (0.08, 0.179, [], 0.2),
    ],
    ids=["rounding elsewhere", "priced", "nine tenths", "less"],
)
def test_the_named_workers_are_priced(
    elsewhere: float, without: float, named: list[tuple[int, int]], recoverable: float
) -> None:
    """Where a thousandth lies on others, by a replay; and where mending them gives back less than 0.9 of all, nobody is named."""
    analysis = blamed([[1.0 - elsewhere, 0.0], [elsewhere, 0.0]])
    analysis = dataclasses.replace(analysis, price=lambda _: analysis.gains.replayed_steps_s * (1.0 - without))
    where, gain = locate_and_price(analysis, ("pause",), "workers", LEAST)
    assert [(worker.dp, worker.pp) for worker in where.workers] == named
    assert gain == pytest.approx(recoverable)


@pytest.mark.parametrize(("without", "named", "recoverable"), [(0.02, [(1, 0)], 0.02), (0.005, [], 0.026)])
def test_a_slow_worker_whose_mending_gives_too_little_is_not_named(
    without: float, named: list[tuple[int, int]], recoverable: float
) -> None:
    """Where others stall as much, mending the slow one may give less than a cause must: all of it is spread over the job then."""
    analysis = blamed([[0.45], [0.55]], "worker", 0.026)
    suspects = dataclasses.replace(analysis.suspects, workers=((1, 0),))
    analysis = dataclasses.replace(
        analysis, suspects=suspects, price=lambda _: analysis.gains.replayed_steps_s * (1.0 - without)
    )
    where, gain = locate_and_price(analysis, ("worker",), "workers", LEAST)
    assert [(worker.dp, worker.pp) for worker in where.workers] == named
    assert gain == pytest.approx(recoverable)


# ------------------------------------------------------------------------------------------ what else it may be


@pytest.mark.parametrize(
    ("values", "left", "others"),
    [
        ({"a": 0.249}, 0.6008, []),
        ({"a": 0.25}, 0.6, [("a", 0.2)]),
        ({"a": None, "b": 0.5}, 0.4, [("b", 0.4)]),
        ({"a": 0.25, "b": 0.5}, 0.2, [("b", 0.4), ("a", 0.2)]),
        ({"a": 1.0, "b": 1.0}, 0.0, [("a", 0.4), ("b", 0.4)]),
        ({"a": 3.0}, 0.0, [("a", 0.8)]),
        ({"a": 3.0, "b": 0.5}, 0.0, [("a", 1.6 / 3.0), ("b", 0.8 / 3.0)]),
    ],
    ids=str,
)
def test_confidence_is_split_with_what_is_told(
    values: dict[str, float | None], left: float, others: list[tuple[str, float]]
) -> None:
    """Told from a quarter on, less sure in any case; above one is one, and where they sum to more all are scaled."""
    alternatives = tuple(RuleAlternative(name, f"story.{name}", "look") for name in ("a", "b"))
    rule = dataclasses.replace(RULES["worker-fault"], alternatives=alternatives)
    features = {
        f"story.{name}": Feature.missing("nobody looked") if value is None else Feature(value)
        for name, value in values.items()
    }
    found, told = split_confidence(rule, features, 0.8)
    assert found == pytest.approx(left)
    assert [(other.cause, other.confidence) for other in told] == [
        (name, pytest.approx(p, abs=1e-4)) for name, p in others
    ]


def test_what_is_impossible_is_no_alternative() -> None:
    """What looks like stalls of CUDA's allocator in a job without CUDA is something that nobody knows, beside what else is."""
    alternatives = tuple(RuleAlternative(name, f"story.{name}", "look") for name in ("unknown", "allocator-stall"))
    rule = dataclasses.replace(RULES["worker-fault"], alternatives=alternatives)
    features = {"story.unknown": Feature(0.3), "story.allocator-stall": Feature(0.4), "job.has_cuda": Feature(0.0)}
    impossible = list_impossible(one.judge(features) for one in RULES.values())
    assert impossible == {"allocator-stall"}
    left, told = split_confidence(rule, features, 1.0, impossible)
    assert (left, [(other.cause, other.confidence) for other in told]) == (pytest.approx(0.3), [("unknown", 0.7)])


# ------------------------------------------------------------------------------------------ what is said of it


@pytest.mark.parametrize(("probability", "disagrees"), [(0.499, True), (0.5, False)])
def test_rule_and_classifier_disagree_below_one_half(probability: float, disagrees: bool) -> None:
    """The evidence says so where the rule holds all the same."""
    asked = prediction("worker-fault", probability)
    (cause,) = reach(job(), prediction=asked).causes
    (text,) = [item.text for item in cause.evidence if item.source == "classifier"]
    assert ("they disagree" in text) == disagrees


def test_a_stage_of_one_chunk_has_no_long_chunk() -> None:
    """Nor has one whose chunks are 3% apart; beyond that the chunk is named, with how long it is against the others."""
    base = job("stage-imbalance")
    (stage,), n_stages = base.suspects.long_stages, base.trace.n_stages
    for typical, said in (([40.0], None), ([40.0, 41.1], None), ([40.0, 41.3], 1.0325), ([60.0, 40.0, 40.0], 1.5)):
        typical_s = np.ones((2, n_stages * len(typical)))
        typical_s[:, stage::n_stages] = np.array(typical) / 2.0
        analysis = dataclasses.replace(base, breakdown=dataclasses.replace(base.breakdown, typical_s=typical_s))
        found = list_evidence(analysis, judged(analysis, "stage-imbalance"), Benefit(0.2, np.full(8, 0.2)), None)
        ratios = [item.values["ratio"] for item in found if item.id.endswith("/chunk")]
        assert ratios == ([] if said is None else [pytest.approx(said)])


def test_why_a_condition_could_not_be_checked() -> None:
    """The feature's own reason, or that nobody measured it; none where it has a value."""
    condition = Condition("a.b", "at_least", 1.0, "it is {value}", 1)
    for features, reason, value in (
        ({"a.b": Feature.missing("lost")}, "lost", None),
        ({"a.b": Feature.missing("")}, "not measured", None),
        ({}, "not measured", None),
        ({"a.b": Feature(2.0)}, "", 2.0),
        ({"a.b": Feature(math.inf)}, "not measured", None),
    ):
        (checked,) = check_conditions(Group("all", (condition,)), features).parts
        assert (checked.reason, checked.value) == (reason, value)
        assert checked.says == ("it is 2" if value else "")


def test_the_clock_that_is_furthest_off_is_told() -> None:
    """Ahead or behind; nothing where no clock was moved."""
    base = dataclasses.replace(job(), clock_offset_s=np.zeros_like(job().clock_offset_s))
    assert not any("clocks differ" in text for text in list_caveats(base))
    off_s = base.clock_offset_s.copy()
    off_s[1, 0], off_s[0, 1] = -0.25, 0.125
    (said,) = [text for text in list_caveats(dataclasses.replace(base, clock_offset_s=off_s)) if "clocks" in text]
    assert said == (
        "clocks differ: the worker at dp 1, stage 0 is off by -0.25 s; corrected for causes and gains, S is on times as recorded"
    )
    apart = dataclasses.replace(base, clock_offset_s=off_s, clocks_apart=True)
    assert "clocks differ: the worker at dp 1, stage 0 is off by -0.25 s; corrected" in list_caveats(apart)


@pytest.mark.parametrize(("times", "told"), [(0.99, []), (1.01, ["clocks of members differ", "clocks differ"])])
@pytest.mark.parametrize("has_transfers", [True, False])
def test_clocks_are_told_that_are_off_by_more_than_a_transfer(
    times: float, told: list[str], *, has_transfers: bool
) -> None:
    """Or by half a percent of the step where none is: less is corrected, and makes no message arrive before it is sent."""
    base = job()
    links_s, group_s = np.array([[0.001], [0.003], [np.nan]]), np.full(3, 0.01)
    if not has_transfers:
        links_s[:], group_s[:] = np.nan, np.nan
    off_s = np.zeros((*base.clock_offset_s.shape, 2))
    off_s[1, 0, 1] = times * (0.002 if has_transfers else 0.005 * base.gains.recorded_s)
    members: Any = SimpleNamespace(clock_s=off_s)
    found = dataclasses.replace(
        base,
        trace=dataclasses.replace(base.trace, members=members),
        transfers=dataclasses.replace(base.transfers, link_s=links_s, group_s=group_s),
        clock_offset_s=off_s[..., 1],
    )
    assert [text.split(":")[0] for text in list_caveats(found) if "clocks" in text] == told


@pytest.mark.parametrize(("share", "told"), [(0.0099, False), (0.0101, True)])
def test_planned_work_is_told_from_a_percent_on(share: float, told: bool) -> None:
    """It is no fault, and said as such."""
    found = list_caveats(with_gains(job(), evaluation=(share, share)))
    assert any("takes 1% of the time; that is no fault" in text for text in found) == told


@pytest.mark.parametrize(("longer_s", "told"), [(2.0, True), (0.02, False)])
def test_who_has_more_of_the_planned_work_is_told(longer_s: float, told: bool) -> None:
    """Evaluations of one dp rank are longer than those of the others in every step: they wait for it, and nobody is at fault."""
    base = with_gains(job(), evaluation=(0.2, 0.2))
    at = np.repeat(base.breakdown.steps, base.trace.n_dp)
    dp = np.tile(np.arange(base.trace.n_dp), len(base.breakdown.steps))
    zero = np.zeros(len(at))
    seconds = (np.where(dp == 1, longer_s, 0.0) + 0.1) * base.gains.recorded_s
    rows = Evidence(np.full(len(at), int(Op.EVAL)), at, dp, np.zeros_like(dp), zero, seconds)
    analysis = dataclasses.replace(base, trace=dataclasses.replace(base.trace, evidence=rows))
    first = next(text for text in list_caveats(analysis) if "planned" in text)
    assert first.startswith("planned work is longer on dp rank 1 than on others") == told
    assert (describe_noise(analysis, (), 0.02) == first) == told
    assert ("that is no fault" not in first) == told


def test_the_page_of_a_rule_says_how_severe_it_is() -> None:
    """Where its file does."""
    rule = RULES["worker-fault"]
    assert f"severity {rule.severity};" in describe_rule(rule, {}, {})
    assert "severity" not in describe_rule(dataclasses.replace(rule, severity=""), {}, {}).split("Story")[0]
    assert tabulate_rules([rule]).splitlines()[1].split()[-3] == rule.severity
    assert tabulate_rules([dataclasses.replace(rule, severity="")]).splitlines()[1].split()[-3] == "-"


def test_nobody_bears_nothing() -> None:
    """A lone worker that lost no time is not named for a component that costs none."""
    assert list_blamed(blamed([[0.0]], gain=0.0), ("pause",)) == []


@pytest.mark.parametrize(
    ("steps", "outside"), [((99, 100), True), ((99, 101), False), ((299, 300), False), ((301, 302), True)]
)
def test_a_slow_stretch_begins_with_its_onset_and_ends_before_its_recovery(
    steps: tuple[int, ...], outside: bool
) -> None:
    """Traced steps outside of it show nothing of it; of a log that is never slow none does."""
    at = np.array(steps)
    assert _is_outside(SimpleNamespace(windows=(), when=When("transient", 101, 301)), at) == outside
    assert _is_outside(SimpleNamespace(windows=(), when=When()), at)
    assert _is_outside(SimpleNamespace(windows=(), when=When("onset", 101)), at) == (steps[-1] < 101)
    assert _is_outside(SimpleNamespace(windows=(), when=When("transient", None, 301)), at) == (steps[0] >= 301)


@pytest.mark.parametrize(
    ("recovery", "steps", "when"),
    [
        (301, range(201, 301), When("transient", 101, 301)),
        (301, range(202, 302), When("onset", 101)),
        (None, range(202, 302), When("onset", 101)),
    ],
)
def test_a_recovery_within_the_trace_would_be_seen_there(recovery: int | None, steps: range, when: When) -> None:
    """So that the log's is taken only beyond the last traced step."""
    (base,) = reach(job()).causes
    cause = msgspec.structs.replace(base, when=When("constant"))
    log = SimpleNamespace(windows=(), when=When("onset" if recovery is None else "transient", 101, recovery))
    assert _join_when(cause, log, np.array(steps)) == when


def test_hosts_are_named_for_slow_workers_alone() -> None:
    """Who bears a pause is a worker; whose clock is slow is a host as well."""
    hosts = tuple(f"node-{n}" for n in range(job().trace.n_dp * job().trace.n_stages))
    for component, named in (("worker", ("node-2",)), ("pause", ())):
        analysis = blamed([[0.0, 0.0], [1.0, 0.0]], component)
        suspects = dataclasses.replace(analysis.suspects, workers=((1, 0),), late_members={})
        trace = dataclasses.replace(analysis.trace, hosts=hosts[: 2 * analysis.trace.n_stages], members=None)
        found = locate(dataclasses.replace(analysis, suspects=suspects, trace=trace), (component,), "workers")
        n_stages = analysis.trace.n_stages
        assert [worker.host for worker in found.workers] == [f"node-{n_stages}"]
        assert found.hosts == ((f"node-{n_stages}",) if named else ())


def test_what_is_removed_has_a_line_each() -> None:
    """One of a single component; of several also all of them together, with what keeps any from being measured."""
    analysis = with_features(job(), gain__stage=None, gain__worker=0.1)
    (one,) = _worth_of(analysis, ("worker",), 0.25)
    assert (one.component, one.alone, one.share) == ("worker", analysis.gains.recoverable("worker"), 0.25)
    found = _worth_of(analysis, ("worker", "stage"), None)
    assert [line.component for line in found] == ["worker", "stage", "worker+stage"]
    assert [line.reason for line in found] == ["", "nobody looked", "nobody looked"]


def test_what_is_unexplained_is_small_measured_and_unclaimed() -> None:
    """Where nothing large is open, the largest of what is small; what a rule that fires stands for is none of it."""
    analysis = with_gains(job(), worker=(0.3, 0.3), microbatch=(0.02, 0.02), pause=(0.04, 0.04), transfer=(0.03, 0.03))
    analysis = with_features(analysis, gain__pause=None)
    fires = dataclasses.replace(judged(analysis, "worker-fault"), fires=True)
    asked = SimpleNamespace(judgements=[fires])
    assert _choose_unexplained(analysis, asked, None, LEAST) == "transfer"
    asked.judgements = [fires, dataclasses.replace(judged(analysis, "network-fault"), fires=True)]
    assert _choose_unexplained(analysis, asked, None, LEAST) == "microbatch"
    asked.judgements = []
    assert _choose_unexplained(analysis, asked, None, LEAST) == "worker"


@pytest.mark.parametrize(("apart_s", "hidden"), [(0.0, True), (0.9e-9, True), (1.1e-9, False)])
def test_steps_that_begin_with_their_first_operation_hide_what_lies_between(apart_s: float, hidden: bool) -> None:
    """Where all first operations start at the same time of their step, to a nanosecond."""
    start_s = np.array([[[0.0], [apart_s]], [[1.0], [0.5]]])
    block = SimpleNamespace(start_s=start_s)
    assert bool(_describe_gaps(SimpleNamespace(step_origin_s=None, blocks=[block]))) == hidden
    for steps, between in (([4, 6, 8], True), ([8, 4, 5], False)):
        trace = SimpleNamespace(step_origin_s=np.zeros(3), steps=np.array(steps), blocks=[block])
        assert bool(_describe_gaps(trace)) == between


def test_inputs_outside_of_their_range() -> None:
    """However little they are outside, furthest first; missing ones, and those that training never had, are not."""
    knots = [(np.array([0.0, 1.0]), np.array([0.0, 1.0]))] * 4 + [(np.zeros(0), np.zeros(0))]
    likeness = Likeness(knots, np.zeros((1, 5)), 1.0, 1.0)
    found = likeness.outside([1.02, -0.5, 0.5, math.nan, 9.0])
    assert list(found) == [1, 0]
    assert 0.0 < found[0] < found[1] < 1.0
    assert likeness.outside([0.0, 1.0, 0.5, 0.5, 0.5]) == {}
    # A part of the range it is that counts, wherever that lies.
    far = Likeness([(np.array([7.0, 9.0]), np.array([0.0, 1.0]))] * 2, np.zeros((1, 2)), 1.0, 1.0)
    assert far.outside([10.0, 3.0]) == pytest.approx({0: math.log(1.5), 1: math.log(3.0)})
