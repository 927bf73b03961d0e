"""The explanation of a cause: it agrees with the verdict, and names what decided."""

import dataclasses
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from diagnose.errors import UsageError
from diagnose.judge.classifier import Contribution, Prediction, load_classifier
from diagnose.judge.explain import N_WEIGHTS, check_cause, explain_cause
from diagnose.judge.judged import Judged
from diagnose.judge.rule import Condition, Group, RuleAlternative
from diagnose.judge.unknown import UNKNOWN
from diagnose.judge.verdict import Verdict, reach_verdict
from diagnose.judge.worth import measure_alone
from diagnose.model.analysis import Analysis
from diagnose.model.diagnosis_document import Fidelity
from diagnose.model.explanation import REASONS, Explanation
from diagnose.model.feature import Feature
from diagnose.model.request import Request
from diagnose.pipeline import examine
from diagnose.report.explain import describe_why
from tests.judge.cases import built_in, judge, measured_file

FIXTURES = sorted((Path(__file__).resolve().parents[2] / "fixtures").glob("*.parquet"))
SLOW = FIXTURES[[path.stem for path in FIXTURES].index("worker-fault")]
CAUSES = [*(rule.id for rule in built_in().rules), UNKNOWN]
DOUBTS = Prediction({"worker-fault": 0.1}, {}, {}, "it is Tuesday", {})


@cache
def examined() -> tuple[Analysis, Judged]:
    """Examine the job with a slow worker, once."""
    return examine(Request(SLOW, min_speedup=1.0))


def explain(
    cause: str,
    analysis: Analysis,
    *,
    min_speedup: float = 1.02,
    prediction: Prediction | None = None,
    without: str = "",
    verdict: Verdict | None = None,
    **changes: Any,
) -> Explanation:
    """Explain a cause of a case of which some is changed, by the built-in rules but one."""
    features = analysis.features | changes.pop("features", {})
    analysis = dataclasses.replace(analysis, features=features, **changes)
    judgements = tuple(judgement for judgement in judge(analysis) if judgement.rule.id != without)
    verdict = verdict or reach_verdict(analysis, judgements, min_speedup=min_speedup, prediction=prediction)
    changed = dataclasses.replace(examined()[1], judgements=judgements, prediction=prediction)
    return explain_cause(cause, analysis, changed, verdict, min_speedup=min_speedup)


def prediction_of(analysis: Analysis) -> Prediction | None:
    """Ask the classifier that ships with the program, if one does."""
    classifier = load_classifier()
    return None if classifier is None else classifier.judge(analysis.features)


@pytest.mark.parametrize("path", FIXTURES, ids=lambda path: path.stem)
def test_an_explanation_agrees_with_the_diagnosis(path: Path) -> None:
    """For every cause there is: it is said where the diagnosis says it, with the same figures, and else something keeps it away."""
    job = measured_file(path)
    said = {cause.cause: cause for cause in job.diagnosis.causes}
    for cause in CAUSES:
        found = explain(cause, job.analysis, prediction=prediction_of(job.analysis))
        assert found.said == (cause in said)
        assert found.said == (not found.because)
        assert set(found.because) <= set(REASONS)
        if found.said:
            assert found.confidence == said[cause].confidence
            assert (found.where, found.when) == (said[cause].where, said[cause].when)
            assert found.worth[-1].alone == said[cause].recoverable
            assert found.worth[-1].share == said[cause].share
            recorded_s = job.diagnosis.step_time.recorded
            assert found.worth[-1].without_s == pytest.approx((1.0 - said[cause].recoverable) * recorded_s)


@pytest.mark.parametrize(
    ("changes", "because"),
    [
        ({}, ()),
        ({"min_speedup": 2.0}, ("gain",)),
        ({"features": {"worker.ratio": Feature(1.0)}}, ("conditions",)),
        ({"features": {"worker.ratio": Feature.missing("nobody looked")}}, ("unknown-conditions",)),
        ({"features": {"gain.worker": Feature.missing("no peers")}}, ("inconclusive", "unmeasured")),
        ({"fidelity": Fidelity(0.0, 0.5, ok=False)}, ("inconclusive",)),
        ({"min_speedup": 2.0, "features": {"worker.ratio": Feature(1.0)}}, ("gain", "conditions")),
        ({"min_speedup": 2.0, "features": {"worker.ratio": Feature.missing("nobody looked")}}, ("gain",)),
        ({"verdict": Verdict("healthy", (), None, (), (), ()), "prediction": DOUBTS}, ("classifier",)),
        ({"verdict": Verdict("healthy", (), None, (), (), ())}, ("explained",)),
    ],
    ids=lambda value: "+".join(value) or "nothing" if isinstance(value, tuple) else "",
)
def test_what_keeps_a_cause_from_being_said_is_named(changes: dict[str, Any], because: tuple[str, ...]) -> None:
    """Each thing that can go against a slow worker is in the explanation, and nothing else."""
    assert explain("worker-fault", measured_file(SLOW).analysis, **changes).because == because


def test_conditions_have_their_values_and_reasons() -> None:
    """Every condition of the rule is there in its order, with value or reason, sentence and origin; what decides is marked."""
    missing, low = Feature.missing("nobody looked"), Feature(1.0)
    changes = {"worker.forward_ratio": low, "worker.backward_ratio": low, "worker.slow_share": missing}
    found = explain("worker-fault", measured_file(SLOW).analysis, features=changes)
    (rule,) = [rule for rule in built_in().rules if rule.id == "worker-fault"]
    tree = found.conditions
    assert (found.fires, tree.kind, tree.holds) == (False, "any", False)
    conditions = tree.conditions()
    assert [(c.feature, c.comparison, c.threshold, c.origin) for c in conditions] == [
        (c.feature, c.comparison, c.threshold, c.origin) for c in rule.conditions.conditions()
    ]
    assert [condition.holds for condition in conditions] == [False, True, False, False, None, True]
    assert [condition.deciding for condition in conditions] == [True, False, True, True, False, False]
    assert conditions[1].says.startswith("the same work takes 1.6")
    assert (conditions[2].value, conditions[2].says) == (1.0, "")
    assert (conditions[4].value, conditions[4].reason) == (None, "nobody looked")


def test_groups_within_groups_keep_their_shape() -> None:
    """The tree of an explanation is the tree of the rule, and each group has its own outcome."""
    found = explain(
        "garbage-collection", measured_file(SLOW).analysis, features={"collection.recorded_share": Feature(0.9)}
    )
    outer = found.conditions
    inner = outer.parts[1]
    assert (outer.kind, outer.holds) == ("any", True)
    assert (inner.kind, inner.holds) == ("all", None)
    assert len(inner.parts) >= 2


def test_time_that_no_rule_explains() -> None:
    """Without the rule for it, a slow worker is the unexplained component, said, with its place."""
    found = explain(UNKNOWN, measured_file(SLOW).analysis, without="worker-fault")
    assert found.said
    assert found.worth[-1].component == "worker"
    assert found.title == "unknown cause: slow workers"
    assert [(worker.dp, worker.pp) for worker in found.where.workers] == [(1, 0)]
    assert (found.conditions, found.rule) == (None, "")


def test_little_that_no_rule_explains() -> None:
    """Where all that matters is explained, `unknown` is what is largest of the rest, and it is too little."""
    found = explain(UNKNOWN, measured_file(SLOW).analysis)
    assert found.because == ("gain",)
    assert found.worth[-1].component != "worker"
    assert found.gain < found.least_gain


def test_a_cause_of_several_components() -> None:
    """Each component of such a rule has its gain, and the last line is that of all of them together."""
    analysis = measured_file(SLOW).analysis
    (rule, *_) = [rule for rule in built_in().rules if len(rule.components) > 1]
    found = explain(rule.id, analysis)
    assert [worth.component for worth in found.worth] == [*rule.components, "+".join(rule.components)]
    assert found.gain >= measure_alone(analysis.gains, rule.components).gain


def test_the_strongest_features_of_the_classifier() -> None:
    """What speaks for a cause and what against it is parted, strongest first, and no more than a few of each."""
    weights = [Contribution(f"f{n}", None if n % 3 else float(n), (-1.0) ** n * (20.0 - n)) for n in range(20)]
    prediction = Prediction({"worker-fault": 0.9}, {}, {}, "it is Tuesday", {"worker-fault": tuple(weights)})
    found = explain("worker-fault", measured_file(SLOW).analysis, prediction=prediction).prediction
    assert [weight.log_odds for weight in found.speaks_for] == [20.0, 18.0, 16.0, 14.0, 12.0]
    assert [weight.log_odds for weight in found.speaks_against] == [-19.0, -17.0, -15.0, -13.0, -11.0]
    assert len(found.speaks_for) == N_WEIGHTS
    assert (found.speaks_for[0].feature, found.speaks_for[0].value) == ("f0", 0.0)
    assert (found.probability, found.unlike) == (0.9, "it is Tuesday")
    assert explain("data-loading", measured_file(SLOW).analysis, prediction=prediction).prediction.probability is None


def test_change_points_say_in_which_unit() -> None:
    """The onset of a slow worker is a change of its pace against its peers; nothing else has changed."""
    analysis, _ = examined()
    found = explain("worker-fault", analysis)
    assert found.changes_in == "log-ratio"
    assert [change.step for change in found.changes] == [found.when.onset_step]
    assert explain("garbage-collection", analysis).changes == ()


def test_a_cause_that_does_not_exist() -> None:
    """A misspelt cause gets the nearest one, any other all there are."""
    rules = built_in().rules
    check_cause(UNKNOWN, rules)
    with pytest.raises(UsageError, match="did you mean 'worker-fault'"):
        check_cause("worker-fualt", rules)
    with pytest.raises(UsageError, match=r"expected one of allocator-stall, .*, unknown"):
        check_cause("xyz", rules)


def test_a_veto_is_explained() -> None:
    """What rules a cause out is the reason, with its sentence, and its tree stands beside that of the conditions."""
    analysis = measured_file(SLOW).analysis
    veto = Condition("worker.ratio", "at_least", 1.5, "{value} times is no fault", 1, "a test")
    rules = [dataclasses.replace(rule, vetoes=Group("any", (veto,))) for rule in built_in().rules]
    judgements = tuple(rule.judge(analysis.features) for rule in rules)
    judged = dataclasses.replace(examined()[1], judgements=judgements, prediction=None)
    verdict = reach_verdict(analysis, judgements, min_speedup=1.02)
    found = explain_cause("worker-fault", analysis, judged, verdict, min_speedup=1.02)
    assert (found.said, found.because) == (False, ("veto",))
    assert (found.conditions.holds, found.vetoes.holds, found.fires) == (True, True, False)
    assert [part.says for part in found.vetoes.conditions()] == ["1.61 times is no fault"]
    assert describe_why(found) == "Not said: it is ruled out: 1.61 times is no fault."


def test_an_alternative_that_is_not_said_is_explained() -> None:
    """A cause that is told as what else another may be says so; the one that is said has it among its alternatives."""
    analysis = measured_file(SLOW).analysis
    features = analysis.features | {"story.other": Feature(0.55)}
    analysis = dataclasses.replace(analysis, features=features)
    other = RuleAlternative("kernel-queue-contention", "story.other", "the connections")
    back = RuleAlternative("worker-fault", "story.other", "the clocks")
    fires = Group("all", (Condition("slowdown", "at_least", 1.0, "", 1),))
    rules = [
        dataclasses.replace(rule, alternatives=(other,))
        if rule.id == "worker-fault"
        else dataclasses.replace(rule, conditions=fires, components=("worker",), alternatives=(back,))
        if rule.id == other.cause
        else rule
        for rule in built_in().rules
    ]
    judgements = tuple(rule.judge(features) for rule in rules)
    judged = dataclasses.replace(examined()[1], judgements=judgements, prediction=None)
    verdict = reach_verdict(analysis, judgements, min_speedup=1.02)
    (cause,) = verdict.causes
    told = explain_cause(cause.alternatives[0].cause, analysis, judged, verdict, min_speedup=1.02)
    said = explain_cause(cause.cause, analysis, judged, verdict, min_speedup=1.02)
    assert (told.said, told.because, said.alternatives) == (False, ("alternative",), cause.alternatives)


def test_a_cause_whose_time_is_said_as_unknown_is_explained() -> None:
    """Where nobody knows is more probable than the cause, that is why it is not said."""
    analysis = measured_file(SLOW).analysis
    features = analysis.features | {"story.other": Feature(0.9)}
    analysis = dataclasses.replace(analysis, features=features)
    other = RuleAlternative(UNKNOWN, "story.other", "the clocks")
    rules = [
        dataclasses.replace(rule, alternatives=(other,)) if rule.id == "worker-fault" else rule
        for rule in built_in().rules
    ]
    judgements = tuple(rule.judge(features) for rule in rules)
    judged = dataclasses.replace(examined()[1], judgements=judgements, prediction=None)
    verdict = reach_verdict(analysis, judgements, min_speedup=1.02)
    found = explain_cause("worker-fault", analysis, judged, verdict, min_speedup=1.02)
    assert (found.said, found.because) == (False, ("unknown",))
    assert describe_why(found) == "Not said: its time is said as `unknown`, which is more probable."


def test_an_unknown_that_is_not_said_has_its_place() -> None:
    """What is largest of all that no rule explains has its workers, also where it is too little to be said."""
    analysis = measured_file(SLOW).analysis
    found = explain(UNKNOWN, analysis, without="worker-fault", min_speedup=1.5)
    assert (found.said, found.because) == (False, ("gain",))
    assert [(worker.dp, worker.pp) for worker in found.where.workers] == [(1, 0)]
