"""Several fixes: the order in which to do them, what each gives after those before it, and what helps nothing."""

import dataclasses

import pytest

from diagnose.faults.data_loading import DataLoading
from diagnose.faults.garbage_collection import GarbageCollection
from diagnose.faults.spec import JobSpec
from diagnose.faults.worker_fault import WorkerFault
from diagnose.fixes.plan import Priced, Prices, _refuse_if_useless, price_causes
from diagnose.model.remedy import CauseToFix, FaultLocation, NamedFix, Refusal
from tests.fixes.cases import analysis, truth
from tests.judge.cases import measured

SPEC = JobSpec(pp=4, dp=4, microbatches=8, steps=24, seed=72)
SLOW = WorkerFault(places=((1, 2),), slowdown=2.0)
PAUSES = GarbageCollection(pause_s=0.4, worker_period_steps=6.0, records=True)
LOADS = DataLoading(wait_ratio=8.0, records=True)


def test_both_together_are_the_truth() -> None:
    """The plan of two causes ends where the generator's simulation without both does; the gains multiply to that."""
    diagnosis = measured(SPEC, SLOW, PAUSES).diagnosis
    plan, true = diagnosis.plan, truth(SPEC, SLOW, PAUSES)
    assert plan is not None
    assert {step.cause for step in plan.steps} == {"worker-fault", "garbage-collection"}
    assert plan.predicted_step_time == pytest.approx(true.step_time_without_any_s, rel=0.02)
    left = 1.0
    for step in plan.steps:
        left *= 1.0 - step.gain
        assert step.predicted_step_time == pytest.approx(left * diagnosis.step_time.recorded, rel=1e-6)
    assert plan.predicted_speedup == pytest.approx(diagnosis.step_time.recorded / plan.predicted_step_time, rel=1e-3)


def test_the_most_rewarding_comes_first() -> None:
    """The first step of a plan gains more than any other would."""
    plan = measured(SPEC, SLOW, PAUSES).diagnosis.plan
    assert plan is not None
    assert plan.steps[0].gain == max(step.gain_alone for step in plan.steps)
    assert plan.steps[0].gain == plan.steps[0].gain_alone


def test_a_hidden_fix_says_so() -> None:
    """Pauses that all fall into the wait for a much slower worker gain nothing before that is replaced."""
    hidden = GarbageCollection(pause_s=0.05, worker_period_steps=2.0, records=True)
    job = analysis(SPEC, dataclasses.replace(SLOW, slowdown=6.0), hidden)
    wanted = [
        CauseToFix("garbage-collection", ("gc-pause",), FaultLocation(), (NamedFix("planned-gc"),)),
        CauseToFix("worker-fault", ("worker",), FaultLocation(), (NamedFix("replace-worker"),)),
    ]
    plan = price_causes(job, wanted).plan
    assert plan is not None
    first, second = plan.steps
    assert first.fix == "replace-worker"
    assert second.gain_alone < second.gain
    assert second.note is not None
    assert "only after replace-worker" in second.note


def test_one_fix_twice_leaves_nothing() -> None:
    """What one fix has mended the other cannot, and the plan says that nothing is left."""
    job = analysis(SPEC, SLOW)
    wanted = [
        CauseToFix("worker-fault", ("worker",), FaultLocation(), (NamedFix("replace-worker"),)),
        CauseToFix("other", ("worker",), FaultLocation(), (NamedFix("a-fix-of-mine", "mend it", "somehow"),)),
    ]
    prices = price_causes(job, wanted)
    plan = prices.plan
    assert plan is not None
    assert plan.steps[1].note == f"nothing is left to gain after {plan.steps[0].fix}"
    ((own,), _) = prices.fixes[1]
    assert (own.summary, own.how) == ("mend it", "somehow")


def test_fixes_come_best_first() -> None:
    """Of several fixes of one cause the one with the shortest step is first; refused ones stand beside."""
    job = analysis(SPEC, SLOW, PAUSES)
    wanted = [
        CauseToFix(
            "x",
            ("worker",),
            FaultLocation(),
            (NamedFix("planned-gc"), NamedFix("raise-connections"), NamedFix("replace-worker")),
        )
    ]
    prices = price_causes(job, wanted)
    [(fixes, refused)], plan = prices.fixes, prices.plan
    assert [fix.fix for fix in fixes] == ["replace-worker", "planned-gc"]
    assert [fix.fix for fix in refused] == ["raise-connections"]
    assert plan is not None
    assert len(plan.steps) == 1


def test_a_fix_that_is_no_good_is_not_listed() -> None:
    """A fix with which steps would be no shorter is refused with its price; of a cause that others hide it stays."""
    job = analysis(SPEC, SLOW)
    wanted = CauseToFix("x", (), FaultLocation(), (NamedFix("a-fix-of-mine", "change nothing", "somehow"),))
    prices = price_causes(job, [wanted])
    [(fixes, refused)] = prices.fixes
    assert fixes == () and prices.plan is None
    assert [fix.reason for fix in refused] == ["by the replay steps would be no shorter with it"]
    [(fixes, refused)] = price_causes(job, [dataclasses.replace(wanted, is_hidden=True)]).fixes
    assert [fix.fix for fix in fixes] == ["a-fix-of-mine"] and refused == ()
    worse = _refuse_if_useless(job, Priced(fixes[0], (), 1.031 * job.gains.replayed_s), 0.0)
    assert isinstance(worse, Refusal) and worse.reason == "by the replay steps would be 3.1% longer with it"
    little = _refuse_if_useless(job, Priced(fixes[0], (), 0.998 * job.gains.replayed_s), 0.005)
    assert isinstance(little, Refusal) and little.reason == "by the replay steps would be only 0.2% shorter with it"


def test_nothing_to_do_no_plan() -> None:
    """A healthy job has no plan."""
    assert measured(SPEC).diagnosis.plan is None
    assert price_causes(analysis(SPEC), []) == Prices((), None, ())


def test_same_input_same_prices() -> None:
    """Pricing twice gives the same figures."""
    job = analysis(SPEC, LOADS)
    wanted = [CauseToFix("data-loading", ("input-delay",), FaultLocation(), (NamedFix("prefetch-input"),))]
    assert price_causes(job, wanted) == price_causes(job, wanted)
