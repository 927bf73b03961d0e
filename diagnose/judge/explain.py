"""Explain one cause: why it is said of a job or not, with every condition, figure and prediction that decided.

Enters: all that was measured and judged, and the verdict. Leaves: an `Explanation`. Nothing is judged anew.
"""

import dataclasses
import difflib
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from diagnose.errors import UsageError
from diagnose.judge.caveats import list_caveats
from diagnose.judge.classifier import Contribution, Prediction
from diagnose.judge.conditions import check_conditions
from diagnose.judge.judged import Judged
from diagnose.judge.places import locate
from diagnose.judge.rule import Judgement, Rule
from diagnose.judge.rules import built_in_rules
from diagnose.judge.timing import date_cause
from diagnose.judge.unknown import UNKNOWN, UNKNOWN_SHARE, list_unexplained, place_of
from diagnose.judge.verdict import Verdict, list_unobservable_causes
from diagnose.judge.worth import is_unmeasured, least_gain, measure_best, most_gain
from diagnose.model.analysis import Analysis
from diagnose.model.cause import Cause, When
from diagnose.model.components import COMPONENTS
from diagnose.model.course import Course
from diagnose.model.explanation import CausePrediction, Explanation, Weight, Worth
from diagnose.model.place import Where

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


def explain_cause(
    cause: str, analysis: Analysis, judged: Judged, verdict: Verdict, *, min_speedup: float
) -> Explanation:
    """Explain why a cause, the id of a rule or `unknown`, is reported, or not.

    `unknown` is what costs most of all that no rule explains. The analysis has the courses of all that is material, whatever
    speedup the verdict was asked for.
    """
    said = next((found for found in verdict.causes if found.cause == cause), None)
    judgement = next((found for found in judged.judgements if found.rule.id == cause), None)
    least = least_gain(min_speedup)
    components = judgement.rule.components if judgement else (_choose_unexplained(analysis, judged, said, least),)
    worth = _worth_of(analysis, components, None if said is None else said.share)
    gain, after = worth[-1].alone, False
    if judgement is None:
        least = max(UNKNOWN_SHARE, least)
    elif gain is not None:
        rules = [
            j.rule for j in judged.judgements if j.rule.id != cause and j.rule.id in {c.cause for c in verdict.causes}
        ]
        benefit = measure_best(analysis, components, [name for rule in rules for name in rule.components])
        gain, after = benefit.gain, bool(benefit.after)
    unsaid = list_unobservable_causes(analysis, {cause}).get(cause, "")
    fires = True if judgement is None else judgement.fires
    vetoed = judgement is not None and judgement.is_vetoed
    is_told = any(other.cause == cause for one in verdict.causes for other in one.alternatives)
    is_led = any(item.id == f"{UNKNOWN}/{cause}" for one in verdict.causes for item in one.evidence)
    against = (
        tuple(_reasons(verdict, gain, least, fires=fires, vetoed=vetoed))
        or (("unknown",) if is_led else ())
        or (("alternative",) if is_told else ())
        or ("explained" if judged.prediction is None else "classifier",)
    )
    course = analysis.courses.get("+".join(components), Course(When()))
    placed = (gain or 0.0) >= LEAST_PLACED
    is_pace = analysis.gains.traits_of(components).whom == "workers" and bool(analysis.suspects.workers)
    return Explanation(
        job_id=analysis.trace.job.job_id,
        cause=cause,
        title=judgement.rule.title if judgement else f"unknown cause: {COMPONENTS[components[0]]}",
        said=said is not None,
        because=("unsaid",) if unsaid else against if said is None else (),
        verdict=verdict.verdict,
        doubt=unsaid or (verdict.why if verdict.verdict == "inconclusive" else ""),
        confidence=None if said is None else said.confidence,
        alternatives=() if said is None else said.alternatives,
        gain=gain,
        after_others=after,
        least_gain=least,
        rule=_file_of(judgement.rule) if judgement else "",
        fires=judgement.fires if judgement else None,
        conditions=check_conditions(judgement.rule.conditions, analysis.features) if judgement else None,
        vetoes=check_conditions(judgement.rule.vetoes, analysis.features) if judgement else None,
        prediction=None if judged.prediction is None else _predict_cause(judged.prediction, cause),
        changes=course.changes if placed else (),
        changes_in="log-ratio" if is_pace else "seconds",
        when=_since(analysis, judgement, said, course) if placed else When(),
        where=_place(analysis, components, judgement, said) if placed else Where(),
        recorded_s=analysis.gains.recorded_s,
        worth=worth,
        made_by=judged.made_by,
        warnings=list_caveats(analysis),
    )


def _file_of(rule: Rule) -> str:
    """Name the file of a rule: the same on every machine where it ships with the program."""
    path = Path(rule.path)
    return f"{path.name} (built-in)" if path.parent == built_in_rules() else rule.path


def _choose_unexplained(analysis: Analysis, judged: Judged, said: Cause | None, least: float) -> str:
    """Name the component that is said to be unexplained, or else the one that costs most of those no rule explains."""
    evidence = () if said is None else said.evidence
    named = [name for name in COMPONENTS if any(f"gain.{name}" in item.values for item in evidence)]
    fired = [j for j in judged.judgements if j.fires and most_gain(analysis.gains, j.rule.components) >= least]
    explained = {name for j in fired for name in j.rule.components}
    named += list_unexplained(analysis, explained, least)
    # What costs enough and is not open has its reason to be there, as evaluations have.
    small = [name for name in COMPONENTS if analysis.gains.recoverable(name) < max(UNKNOWN_SHARE, least)]
    left = [name for name in small if name not in explained and not is_unmeasured(analysis, (name,))]
    return (named or sorted(left or COMPONENTS, key=lambda name: -analysis.gains.recoverable(name)))[0]


def _worth_of(analysis: Analysis, components: Sequence[str], share: float | None) -> tuple[Worth, ...]:
    """Say what removing each component gives back, and last of all the whole cause; `share` is the cause's, where it is said."""
    gains = analysis.gains
    found = []
    for name in components if len(components) == 1 else [*components, "+".join(components)]:
        parts = name.split("+")
        missing = dict.fromkeys(reason for part in parts if (reason := analysis.features[f"gain.{part}"].reason))
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


def _reasons(verdict: Verdict, gain: float | None, least: float, *, fires: bool | None, vetoed: bool) -> Iterable[str]:
    """Say in codes what keeps a cause from being said; nothing where the rule and its gain would have it said."""
    if verdict.verdict == "inconclusive":
        yield "inconclusive"
    if gain is None:
        yield "unmeasured"
    elif gain < least:
        yield "gain"
    if vetoed:
        yield "veto"
    elif fires is False:
        yield "conditions"
    elif fires is None and (gain is None or gain >= least):
        yield "unknown-conditions"


def _predict_cause(prediction: Prediction, cause: str) -> CausePrediction:
    """Take from the classifier's prediction what it says of one cause."""
    found = prediction.contributions(cause)

    def strongest(wanted: Callable[[Contribution], bool]) -> tuple[Weight, ...]:
        return tuple(Weight(c.feature, c.value, c.log_odds) for c in [c for c in found if wanted(c)][:N_WEIGHTS])

    return CausePrediction(
        probability=prediction.probability.get(cause),
        speaks_for=strongest(lambda c: c.log_odds > 0),
        speaks_against=strongest(lambda c: c.log_odds < 0),
        unlike=prediction.unlike,
    )


def _since(analysis: Analysis, judgement: Judgement | None, said: Cause | None, course: Course) -> When:
    """Say since when the cause is there."""
    if said is not None:
        return said.when
    return course.when if judgement is None else date_cause(analysis, judgement.rule.components, judgement.rule.place)


def _place(analysis: Analysis, components: Sequence[str], judgement: Judgement | None, said: Cause | None) -> Where:
    """Name the culprits."""
    if said is not None:
        return said.where
    return locate(analysis, components, place_of(components) if judgement is None else judgement.rule.place)
