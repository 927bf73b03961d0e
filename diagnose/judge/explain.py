"""Explain one cause: why it is said of a job or not, with every condition, figure and opinion that decided.

Enters: all that was measured and judged, and the verdict. Leaves: an `Explanation`. Nothing is judged anew.
"""

import dataclasses
import difflib
import math
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from diagnose.errors import UsageError
from diagnose.judge.check import find_deciding
from diagnose.judge.classifier import Contribution, Opinion
from diagnose.judge.examination import Examination
from diagnose.judge.rules import Condition, Group, Judgement, Rule, built_in_rules, say
from diagnose.judge.verdict import (
    NO_GAIN,
    UNKNOWN_SHARE,
    Case,
    Verdict,
    _blamed,
    _open_components,
    _unsaid_causes,
    _when,
    _where,
    gain_of,
)
from diagnose.model.cause import Cause, When
from diagnose.model.components import COMPONENTS
from diagnose.model.course import Course
from diagnose.model.explanation import Checked, CheckedGroup, Details, Explanation, Opined, RuleCheck, Weight, Worth
from diagnose.model.feature import Feature, Features
from diagnose.model.place import Where

#: What is said of time that no rule explains.
UNKNOWN = "unknown"
#: Features named for a cause, and against it.
N_WEIGHTS = 5
#: What is worth less than this part of the step is nowhere in particular, and of no time.
LEAST_PLACED = 0.005


def check_cause(cause: str, rules: Iterable[Rule]) -> None:
    """Refuse a cause that no rule is of.

    Raises
    ------
    UsageError
        With the nearest cause there is, or all of them.
    """
    known = [*(rule.id for rule in rules), UNKNOWN]
    if cause not in known:
        near = difflib.get_close_matches(cause, known, n=1)
        hint = f"did you mean {near[0]!r}?" if near else f"expected one of {', '.join(known)}"
        raise UsageError(f"there is no cause {cause!r}; {hint}")


def explain_cause(cause: str, examination: Examination, verdict: Verdict, *, min_speedup: float) -> Explanation:
    """Explain why a cause is said, or not.

    Parameters
    ----------
    cause : str
        Id of a rule, or `unknown`: what costs most of all that no rule explains.
    examination : Examination
        With the courses of all that is material, whatever speedup is asked for.
    verdict : Verdict
        Reached with it.
    min_speedup : float
        That the verdict was asked for.

    Returns
    -------
    Explanation
    """
    case, judgements, opinion = examination.case, examination.judgements, examination.opinion
    said = next((found for found in verdict.causes if found.cause == cause), None)
    judgement = next((found for found in judgements if found.rule.id == cause), None)
    least = max(1.0 - 1.0 / min_speedup, NO_GAIN)
    components = judgement.rule.components if judgement else (_open_component(case, judgements, said, least),)
    worth = _worth_of(case, components, None if said is None else said.share)
    gain = worth[-1].gain
    if judgement is None:  # an unknown is measured by what it gives back alone
        gain, least = worth[-1].alone, max(UNKNOWN_SHARE, least)
    because: tuple[str, ...] = ()
    unsaid = _unsaid_causes(case, {cause}).get(cause, "")
    if unsaid:
        because = ("unsaid",)
    elif said is None:
        fires = True if judgement is None else judgement.fires
        because = tuple(_reasons(verdict, gain, least, fires=fires)) or (
            "explained" if opinion is None else "classifier",
        )
    course = case.courses.get("+".join(components), Course(When()))
    placed = (gain or 0.0) >= LEAST_PLACED
    return Explanation(
        job_id=case.trace.job.job_id,
        cause=cause,
        title=judgement.rule.title if judgement else f"unexplained: {COMPONENTS[components[0]]}",
        said=said is not None,
        because=because,
        verdict=verdict.verdict,
        doubt=unsaid or ("; ".join(verdict.warnings) if verdict.verdict == "inconclusive" else ""),
        confidence=None if said is None else said.confidence,
        gain=gain,
        least_gain=least,
        rule=_file_of(judgement.rule) if judgement else "",
        fires=judgement.fires if judgement else None,
        conditions=_check_all(judgement.rule.conditions, case.features) if judgement else None,
        opinion=None if opinion is None else _opinion_of(opinion, cause),
        changes=course.changes if placed else (),
        changes_in="log-ratio" if components == ("worker",) and case.slow_workers else "seconds",
        when=_since(case, judgement, said, course) if placed else When(),
        where=_place(case, judgement, said, components) if placed else Where(),
        recorded_s=case.gains.recorded_s,
        worth=worth,
        made_by=examination.made_by,
        warnings=examination.warnings,
    )


def list_details(judgements: Iterable[Judgement], features: Features) -> Details:
    """List how every condition of every rule turned out, and why features are missing."""
    return Details(
        rules=tuple(RuleCheck(j.rule.id, j.fires, _check_all(j.rule.conditions, features)) for j in judgements),
        missing={name: feature.reason or "not measured" for name, feature in features.items() if feature.value is None},
    )


def _file_of(rule: Rule) -> str:
    """Name the file of a rule: the same on every machine where it ships with the program."""
    path = Path(rule.path)
    return f"{path.name} (built-in)" if path.parent == built_in_rules() else rule.path


def _open_component(case: Case, judgements: Sequence[Judgement], said: Cause | None, least: float) -> str:
    """Name the component that is said to be unexplained, or else the one that costs most of those no rule explains."""
    evidence = () if said is None else said.evidence
    named = [name for name in COMPONENTS if any(f"gain.{name}" in item.values for item in evidence)]
    fired = [j for j in judgements if j.fires and gain_of(case.gains, j.rule.components) >= least]
    explained = {name for j in fired for name in j.rule.components}
    named += _open_components(case, explained, least)
    # What costs enough and is not open has its reason to be there, as evaluations have.
    small = [name for name in COMPONENTS if case.gains.recoverable(name) < max(UNKNOWN_SHARE, least)]
    left = [name for name in small if name not in explained and case.features[f"gain.{name}"].value is not None]
    return (named or sorted(left or COMPONENTS, key=lambda name: -case.gains.recoverable(name)))[0]


def _worth_of(case: Case, components: Sequence[str], share: float | None) -> tuple[Worth, ...]:
    """Say what removing each component gives back, and last of all the whole cause; `share` is the cause's, where it is said."""
    gains = case.gains
    found = []
    for name in components if len(components) == 1 else [*components, "+".join(components)]:
        parts = name.split("+")
        missing = dict.fromkeys(reason for part in parts if (reason := case.features[f"gain.{part}"].reason))
        words = COMPONENTS.get(name, "all of these together")
        if missing:
            found.append(Worth(name, words, None, None, None, None, "; ".join(missing)))
            continue
        of_ledger = sum(gains.share.get(part, 0.0) for part in parts) if gains.share else None
        without_s = gains.alone_s.get(name, gains.recorded_s)
        found.append(
            Worth(name, words, gains.recoverable(name), gains.recoverable_last(name), of_ledger, without_s, "")
        )
    # Of a component that several causes claim the ledger gives each only a part.
    return (*found[:-1], found[-1] if share is None else dataclasses.replace(found[-1], share=share))


def _reasons(verdict: Verdict, gain: float | None, least: float, *, fires: bool | None) -> Iterable[str]:
    """Say in codes what keeps a cause from being said; nothing where the rule and its gain would have it said."""
    if verdict.verdict == "inconclusive":
        yield "inconclusive"
    if gain is None:
        yield "unmeasured"
    elif gain < least:
        yield "gain"
    if fires is False:
        yield "conditions"
    elif fires is None and (gain is None or gain >= least):
        yield "unknown-conditions"


def _check_all(group: Group, features: Features) -> CheckedGroup:
    """Say of every condition of a rule whether it holds, and whether the rule turns on it."""
    deciding = set(find_deciding(group, features))

    def check(part: Condition | Group) -> Checked | CheckedGroup:
        return _check(part, features, deciding=part in deciding) if isinstance(part, Condition) else check_group(part)

    def check_group(part: Group) -> CheckedGroup:
        return CheckedGroup(part.kind, part.holds(features), tuple(map(check, part.parts)))

    return check_group(group)


def _check(condition: Condition, features: Features, *, deciding: bool) -> Checked:
    """Say whether one condition holds."""
    feature = features.get(condition.feature, Feature.missing("not measured"))
    value = feature.value if feature.value is not None and math.isfinite(feature.value) else None
    holds = condition.holds(features)
    return Checked(
        feature=condition.feature,
        comparison=condition.comparison,
        threshold=condition.threshold,
        holds=holds,
        value=value,
        reason="" if value is not None else feature.reason or "not measured",
        says=say(condition, value) if holds and condition.says and value is not None else "",
        origin=condition.origin,
        deciding=deciding,
    )


def _opinion_of(opinion: Opinion, cause: str) -> Opined:
    """Take from the classifier's opinion what it says of one cause."""
    found = opinion.contributions(cause)

    def strongest(wanted: Callable[[Contribution], bool]) -> tuple[Weight, ...]:
        return tuple(Weight(c.feature, c.value, c.log_odds) for c in [c for c in found if wanted(c)][:N_WEIGHTS])

    return Opined(
        probability=opinion.probability.get(cause),
        speaks_for=strongest(lambda c: c.log_odds > 0),
        speaks_against=strongest(lambda c: c.log_odds < 0),
        unlike=opinion.unlike,
    )


def _since(case: Case, judgement: Judgement | None, said: Cause | None, course: Course) -> When:
    """Say since when the cause is there."""
    if said is not None:
        return said.when
    return course.when if judgement is None else _when(case, judgement.rule)


def _place(case: Case, judgement: Judgement | None, said: Cause | None, components: Sequence[str]) -> Where:
    """Name the culprits."""
    if said is not None:
        return said.where
    return Where(workers=_blamed(case, components[0])) if judgement is None else _where(case, judgement.rule)
