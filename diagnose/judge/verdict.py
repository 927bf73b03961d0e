"""Bring rules, classifier, gains and places together: which causes are there, how sure, where, since when, and the ledger.

Enters: an `Analysis`, and what each judge says. Leaves: a `Verdict`. A cause is reported when its removal, alone or after those
reported before it, makes the job faster by the least speedup asked for, and rule and classifier together find it more probable
than not.
"""

import dataclasses
import itertools
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import cast

import msgspec.structs

from diagnose.judge.alternatives import TOLD_FROM, list_impossible, merge_alternatives, split_confidence
from diagnose.judge.classifier import Prediction
from diagnose.judge.confidence import CERTAINTY, MAX_REPLAY_ERROR, THERE_SHARE, be_sure, believe, overlaps_too_much
from diagnose.judge.evidence import list_evidence, tie_machines
from diagnose.judge.lone import is_lone_rank, only_waits
from diagnose.judge.places import locate_and_price
from diagnose.judge.rest import describe_noise, describe_rest, describe_unlooked
from diagnose.judge.rule import Judgement
from diagnose.judge.timing import date_cause
from diagnose.judge.unchecked import list_unseen
from diagnose.judge.unknown import UNKNOWN, list_unexplained, report_unknown
from diagnose.judge.worth import (
    Benefit,
    is_unmeasured,
    least_gain,
    measure_after,
    measure_alone,
    most_gain,
    share_of,
)
from diagnose.model.analysis import Analysis
from diagnose.model.cause import Alternative, Cause, EvidenceItem, Kind, NotChecked
from diagnose.model.diagnosis_document import Ledger, VerdictName
from diagnose.model.fingerprint import name_fault
from diagnose.numerics.figures import write_percent

#: Steps below which nothing that varies can be told from chance.
MIN_STEPS = 3
#: ... but for stages, which differ in each of so many microbatches of a step.
MIN_MICROBATCHES = 4
#: Of so many causes, those that take most, it is asked whether two hide each other: each pair costs four replays.
MOST_HIDDEN = 3
#: As sure as an experimental rule whose cause gives back what is asked for as probably as not. Of less sure findings, with
#: their alternatives, 2 of 9 were right on 800 generated jobs, and none on the recorded ones.
SAID_FROM = CERTAINTY["experimental"] / 2.0


@dataclasses.dataclass(frozen=True, slots=True)
class Verdict:
    """The judged part of a diagnosis; `why` says in a sentence why it is `noisy` or `inconclusive`."""

    verdict: VerdictName
    causes: tuple[Cause, ...]
    ledger: Ledger | None
    checked: tuple[str, ...]
    not_checked: tuple[NotChecked, ...]
    warnings: tuple[str, ...]
    why: str = ""


@dataclasses.dataclass(frozen=True, slots=True)
class _Said:
    """A cause that is said: by which judgement, how sure that is at most, and what mending it gives back."""

    judgement: Judgement
    certain: float
    benefit: Benefit


def reach_verdict(
    analysis: Analysis, judgements: Sequence[Judgement], *, min_speedup: float, prediction: Prediction | None = None
) -> Verdict:
    """Judge a job by what each rule and the classifier say; a cause must make it at least `min_speedup` faster when removed."""
    least = least_gain(min_speedup)
    owners = {name: j.rule for j in reversed(judgements) for name in j.rule.components}
    unobservable = list_unobservable_causes(analysis, {j.rule.id for j in judgements})
    not_checked = [NotChecked(cause, reason) for cause, reason in unobservable.items()]
    # What looks like a cause that nobody can look for may be nobody's fault: who waits inside it seems slow.
    unlooked = {name: j.rule.id for j in judgements if j.rule.id in unobservable for name in j.rule.components}
    judgements = [j for j in judgements if j.rule.id not in unobservable]
    unlooked = {
        name: cause for name, cause in unlooked.items() if all(name not in j.rule.components for j in judgements)
    }
    lacking = [j for j in judgements if _could_not_look(analysis, j, least)]
    not_checked += [NotChecked(j.rule.id, _why_not(analysis, j)) for j in lacking]
    unseen = list_unseen(analysis.trace, [j for j in judgements if j not in lacking])
    not_checked += [NotChecked(cause, reason) for cause, reason in unseen.items()]
    checked = tuple(j.rule.id for j in judgements if j not in lacking and j.rule.id not in unseen)
    few = len(analysis.breakdown.steps) < MIN_STEPS
    sure = [j for j in judgements if few and analysis.fidelity.ok and _shows_stage(analysis, j, least, prediction)]
    if (few and not sure) or not is_replayed(analysis):
        why = _why_inconclusive(analysis)
        return Verdict("inconclusive", (), None, checked, tuple(not_checked), (why,), why)
    if few:
        # What differs between stages does so in every microbatch of a step; of all that varies over steps nobody can tell.
        too_few = _describe_few(analysis)
        not_checked += [NotChecked(cause, too_few) for cause in checked if cause not in {j.rule.id for j in sure}]
        judgements, checked = sure, tuple(j.rule.id for j in sure)
    said = _choose(analysis, judgements, least, prediction)
    causes, explained = _list_causes(analysis, said, least, prediction, list_impossible(judgements))
    unexplained = [] if few else list_unexplained(analysis, explained | set(unlooked), least)
    causes += [report_unknown(analysis, name, least, owners.get(name)) for name in unexplained]
    causes.sort(key=lambda cause: (-(cause.share or 0.0), -cause.recoverable, cause.cause))
    causes = tie_machines(causes)
    named = {cause.cause for cause in causes}
    checked = (*checked, *(entry.cause for entry in not_checked if entry.cause in named))
    not_checked = [entry for entry in not_checked if entry.cause not in named]
    warnings = []
    if prediction and prediction.unlike:
        warnings.append(
            f"the classifier was not asked, and no cause is surer than a rule new to such jobs: {prediction.unlike}"
        )
    open_question = "" if few else describe_unlooked(analysis, explained, unlooked, unobservable, least)
    verdict, why = _name_verdict(analysis, causes, open_question, explained, least)
    warnings += [text for text in dict.fromkeys((open_question, why if verdict == "inconclusive" else "")) if text]
    return Verdict(
        verdict,
        tuple(causes),
        _share_out(analysis, causes),
        tuple(sorted(checked)),
        tuple(not_checked),
        tuple(warnings),
        why,
    )


def _name_verdict(
    analysis: Analysis, causes: Sequence[Cause], open_question: str, explained: set[str], least: float
) -> tuple[VerdictName, str]:
    """Give the verdict on what was found, and why where that is not plain from the causes."""
    if causes:
        return "straggling", ""
    if is_lone_rank(analysis.trace):
        return "inconclusive", "one rank of several was recorded: those that it waits for are not there"
    if open_question:
        return "inconclusive", open_question
    if rest := describe_rest(analysis, least):
        return "inconclusive", rest
    noise = describe_noise(analysis, explained, least)
    return ("noisy", noise) if noise else ("healthy", "")


def list_unobservable_causes(analysis: Analysis, known: set[str]) -> dict[str, str]:
    """Give the causes that nobody can look for in what another producer recorded, each with the reason."""
    found: dict[str, str] = {}
    for entry in analysis.trace.recording.unobserved if analysis.trace.recording else ():
        for cause in known.intersection(entry.causes):
            found.setdefault(cause, f"{entry.what}: {entry.reason}")
    return dict(sorted(found.items()))


def is_replayed(analysis: Analysis) -> bool:
    """Say whether the replay gives the recorded steps, in seconds, so that what it says is lost is to be trusted."""
    return analysis.fidelity.ok and not analysis.trace.unit_doubt and not _is_filled_wrong(analysis)


def _describe_few(analysis: Analysis) -> str:
    """Say that there are too few steps."""
    n_steps = len(analysis.breakdown.steps)
    return f"only {n_steps} {'step' if n_steps == 1 else 'steps'} could be analysed, fewer than {MIN_STEPS}"


def _is_filled_wrong(analysis: Analysis) -> bool:
    """Say whether steps would take longer without what was found: then what stands for lost rows is not what was there."""
    gains = analysis.gains
    return analysis.filled_share > 0 and gains.clean_s > (1.0 + MAX_REPLAY_ERROR) * gains.replayed_s


def _why_inconclusive(analysis: Analysis) -> str:
    """Say why nobody can judge the job."""
    if analysis.trace.unit_doubt:
        return analysis.trace.unit_doubt
    if len(analysis.breakdown.steps) < MIN_STEPS:
        return f"{_describe_few(analysis)}: nothing that varies can be told from chance"
    fidelity = analysis.fidelity
    if fidelity.ok and _is_filled_wrong(analysis):
        return (
            "rows are missing, and what stands for them cannot be what was there: without the faults found steps would be "
            f"{write_percent(analysis.gains.clean_s / analysis.gains.replayed_s - 1.0)} longer; add the rows, or leave out the "
            "data-parallel ranks that lack them"
        )
    if overlaps_too_much(fidelity.discrepancy):
        longer = write_percent(1.0 / (1.0 + fidelity.discrepancy) - 1.0)
        return (
            f"simulated steps are {longer} longer than the recorded ones: operations run side by side that are taken to wait "
            "for each other, and no figure is to be trusted"
        )
    return f"the replay misses the recorded step time by {write_percent(fidelity.replay_error)}: no figure is to be trusted"


def _could_not_look(analysis: Analysis, judgement: Judgement, least: float) -> bool:
    """Say whether a cause can be neither found nor ruled out: what its rule asks for is missing, and time may be lost to it."""
    if is_unmeasured(analysis, judgement.rule.components):
        return True
    return judgement.fires is None and most_gain(analysis.gains, judgement.rule.components) >= least


def _why_not(analysis: Analysis, judgement: Judgement) -> str:
    """Say what could not be measured."""
    reasons = [analysis.features[f"gain.{name}"].reason for name in judgement.rule.components]
    return "; ".join(dict.fromkeys([reason for reason in reasons if reason] + list(judgement.missing)))


def _shows_stage(analysis: Analysis, judgement: Judgement, least: float, prediction: Prediction | None) -> bool:
    """Say whether a cause is an uneven stage, and is shown by the many microbatches of a few steps."""
    return (
        judgement.rule.place == "stages"
        and int(analysis.breakdown.compute_s.shape[2]) >= MIN_MICROBATCHES
        and not is_unmeasured(analysis, judgement.rule.components)
        and most_gain(analysis.gains, judgement.rule.components) >= least
        and believe(analysis, judgement, prediction) is not None
    )


def _choose(
    analysis: Analysis, judgements: Sequence[Judgement], least: float, prediction: Prediction | None
) -> list[_Said]:
    """Choose the causes that are believed and worth saying, by what each gives back alone, or after those chosen before it.

    Those that give back enough alone come first, the largest first; then, one after the other, what gives back most once these are
    gone, or two that hide each other. Costs a few replays for each of the latter. What takes more than it gives back, in the mean
    of all orders, is none of them.
    """
    believed = [
        _Said(j, certain, measure_alone(analysis.gains, j.rule.components))
        for j in judgements
        if not is_unmeasured(analysis, j.rule.components)
        and (certain := believe(analysis, j, prediction)) is not None
        and not (is_lone_rank(analysis.trace) and only_waits(analysis, j.rule.components))
    ]
    # Where a rule fires, or its cause explains the time of others too, the classifier need not guess whose it is.
    claimed = {name for one in believed if one.judgement.fires for name in one.judgement.rule.components}
    believed = [one for one in believed if one.judgement.fires or not _is_claimed(analysis, one.judgement, claimed)]
    believed.sort(key=lambda one: -one.benefit.gain)  # stable: by id where they are equal
    said = [one for one in believed if one.benefit.gain >= least]
    hidden = [
        one
        for one in believed
        if one.benefit.gain < least <= analysis.gains.recoverable_last("+".join(one.judgement.rule.components))
        and (share_of(analysis.gains, one.judgement.rule.components) or 0.0) >= 0.0
    ]
    while hidden and (found := _uncover(analysis, hidden, said, least)):
        said += found
        shown = {one.judgement.rule.id for one in found}
        hidden = [one for one in hidden if one.judgement.rule.id not in shown]
    return said


def _uncover(analysis: Analysis, hidden: Sequence[_Said], said: Sequence[_Said], least: float) -> list[_Said]:
    """Find the cause that gives back most once those said are gone, or the two that do where each hides the other.

    A slow worker beside a long stage may cost nothing, as the stage is waited for anyway, and so the other way round: mending both
    gives back what neither does. Empty where nothing gives back enough.
    """
    gone = [name for one in said for name in one.judgement.rule.components]

    def after(one: _Said, *others: _Said) -> _Said:
        names = [*gone, *(name for other in others for name in other.judgement.rule.components)]
        return dataclasses.replace(one, benefit=measure_after(analysis, one.judgement.rule.components, names))

    if said:
        best = max((after(one) for one in hidden), key=lambda one: one.benefit.gain)
        if best.benefit.gain >= least:
            return [best]
    # In the mean of all orders those that hide each other give back most.
    first = sorted(hidden, key=lambda one: -(share_of(analysis.gains, one.judgement.rule.components) or 0.0))[
        :MOST_HIDDEN
    ]
    pairs = [(after(one, other), after(other, one)) for one, other in itertools.combinations(first, 2)]
    best_two = max(pairs, key=lambda two: two[0].benefit.gain + two[1].benefit.gain, default=())
    return [*best_two] if all(one.benefit.gain >= least for one in best_two) else []


def _is_claimed(analysis: Analysis, judgement: Judgement, claimed: set[str]) -> bool:
    """Say whether other causes stand for a cause's components, or explain their time."""
    traits = analysis.gains.traits
    return any(
        name in claimed or (name in traits and traits[name].is_excused(analysis.features, claimed))
        for name in judgement.rule.components
    )


def _list_causes(
    analysis: Analysis,
    said: Sequence[_Said],
    least: float,
    prediction: Prediction | None,
    impossible: frozenset[str],
) -> tuple[list[Cause], set[str]]:
    """Report the causes that are said, and what they explain; those told as an alternative of another are one finding with it.

    What is less probable to give back what is asked for, with all that it may be instead, is not said: nobody is to be sent for it.
    How sure a cause is tells whether it is there, not whether it gives quite as much.
    """
    claims = Counter(name for one in said for name in one.judgement.rule.components)
    likely: list[Cause] = []
    explained: set[str] = set()
    for one in said:
        rule = one.judgement.rule
        sure, there = (
            be_sure(analysis, rule, one.certain, one.benefit, gain, prediction) for gain in (least, THERE_SHARE * least)
        )
        cause = _report(analysis, one, claims, prediction, there, least, impossible)
        lead = _lead_with_unknown(analysis, cause, one, least)
        told = min(of.confidence + sum(other.confidence for other in of.alternatives) for of in (cause, lead))
        if told * sure >= SAID_FROM * there:
            likely.append(lead)
            explained.update(one.judgement.rule.components)
    return merge_alternatives(likely), explained


def _lead_with_unknown(analysis: Analysis, cause: Cause, said: _Said, least: float) -> Cause:
    """Give a cause, or that nobody knows it where this is more probable: nobody is to be sent to mend what hardly is there.

    The same cause at other places is the cause all the same. Where it is hardly there beside what else it may be, these are told.
    """
    nobody = next((other for other in cause.alternatives if other.cause == UNKNOWN), None)
    own = cause.confidence + sum(other.confidence for other in cause.alternatives if other.cause == cause.cause)
    others = [other for other in cause.alternatives if other.cause not in (UNKNOWN, cause.cause)]
    if nobody is not None and nobody.confidence > own:
        confidence, tells_apart = nobody.confidence, nobody.tells_apart
        if own >= TOLD_FROM * confidence:
            others.append(Alternative(cause.cause, round(own, 4), tells_apart))
    elif others and own < TOLD_FROM * others[0].confidence:
        # No surer than the likeliest, nor all of them together than certain.
        confidence = round(min(1.0 - sum(other.confidence for other in others), others[0].confidence), 4)
        tells_apart = others[0].tells_apart
    else:
        return cause
    rule = said.judgement.rule
    unknown = report_unknown(analysis, max(rule.components, key=analysis.gains.recoverable), least, rule)
    text = f"what it looks like: {cause.title}; what would tell: {tells_apart}"
    return msgspec.structs.replace(
        unknown,
        confidence=confidence,
        share=cause.share,
        recoverable_after_others=cause.recoverable_after_others,
        alternatives=tuple(sorted(others, key=lambda other: -other.confidence)),
        evidence=(*unknown.evidence, EvidenceItem("rule", f"{UNKNOWN}/{cause.cause}", text, {})),
    )


def _report(
    analysis: Analysis,
    said: _Said,
    claims: Mapping[str, int],
    prediction: Prediction | None,
    sure: float,
    least: float,
    impossible: frozenset[str],
) -> Cause:
    """Report one cause, `sure` with all that it may be; `claims` says how many reported rules share each component."""
    rule = said.judgement.rule
    where, recoverable = locate_and_price(analysis, rule.components, rule.place, least)
    confidence, alternatives = split_confidence(rule, analysis.features, sure, impossible)
    return Cause(
        cause=rule.id,
        title=rule.title,
        confidence=confidence,
        share=share_of(analysis.gains, rule.components, claims),
        recoverable=recoverable,
        recoverable_after_others=said.benefit.gain if said.benefit.after else None,
        where=where,
        when=date_cause(analysis, rule.components, rule.place),
        evidence=tuple(list_evidence(analysis, said.judgement, said.benefit, prediction)),
        fixes=(),
        alternatives=alternatives,
        fingerprint=name_fault(analysis.trace.job, rule.id, rule.who or None, where),
        kind=cast("Kind | None", rule.severity or None),
        check=rule.check_on(analysis.trace.job),
        who=rule.who or None,
    )


def _share_out(analysis: Analysis, causes: Sequence[Cause]) -> Ledger | None:
    """Share the lost time out among causes, and among components; both sum to 1 with what is unexplained."""
    if not causes:
        return None
    by_cause: dict[str, float] = {}
    for cause in causes:  # of which several may be unknown
        by_cause[cause.cause] = by_cause.get(cause.cause, 0.0) + (cause.share or 0.0)
    components = dict(analysis.gains.share)
    return Ledger(by_cause, components, 1.0 - sum(by_cause.values()), 1.0 - sum(components.values()))
