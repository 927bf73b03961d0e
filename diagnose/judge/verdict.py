"""Bring rules, classifier, gains and places together: which causes are there, how sure, where, since when, and the ledger.

Enters: an `Analysis`, and what each judge says. Leaves: a `Verdict`. A cause is reported when its removal makes the job faster by
the least speedup asked for, and rule and classifier together find it more probable than not.
"""

import dataclasses
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import cast

from diagnose.judge.classifier import Prediction
from diagnose.judge.confidence import be_sure
from diagnose.judge.evidence import list_evidence
from diagnose.judge.places import locate, name_fault
from diagnose.judge.rule import Judgement
from diagnose.judge.timing import date_cause
from diagnose.judge.unknown import list_unexplained, report_unknown
from diagnose.judge.worth import gain_of, is_unmeasured, least_gain, share_of
from diagnose.model.analysis import Analysis
from diagnose.model.cause import Cause, NotChecked, Severity
from diagnose.model.diagnosis_document import Ledger, VerdictName

#: Steps below which nothing that varies can be told from chance.
MIN_STEPS = 3
#: ... but for stages, which differ in each of so many microbatches of a step.
MIN_MICROBATCHES = 4


@dataclasses.dataclass(frozen=True, slots=True)
class Verdict:
    """The judged part of a diagnosis."""

    verdict: VerdictName
    causes: tuple[Cause, ...]
    ledger: Ledger | None
    checked: tuple[str, ...]
    not_checked: tuple[NotChecked, ...]
    warnings: tuple[str, ...]


def reach_verdict(
    analysis: Analysis, judgements: Sequence[Judgement], *, min_speedup: float, prediction: Prediction | None = None
) -> Verdict:
    """Judge a job by what each rule and the classifier say; a cause must make it at least `min_speedup` faster when removed."""
    least = least_gain(min_speedup)
    unobservable = list_unobservable_causes(analysis, {j.rule.id for j in judgements})
    not_checked = [NotChecked(cause, reason) for cause, reason in unobservable.items()]
    unlooked = {name for j in judgements if j.rule.id in unobservable for name in j.rule.components}
    judgements = [j for j in judgements if j.rule.id not in unobservable]
    unlooked -= {name for j in judgements for name in j.rule.components}
    not_checked += [
        NotChecked(j.rule.id, _why_not(analysis, j)) for j in judgements if _could_not_look(analysis, j, least)
    ]
    checked = tuple(j.rule.id for j in judgements if not _could_not_look(analysis, j, least))
    few = len(analysis.breakdown.steps) < MIN_STEPS
    sure = [j for j in judgements if few and analysis.fidelity.ok and _shows_stage(analysis, j, least, prediction)]
    if (few and not sure) or not analysis.fidelity.ok:
        return Verdict("inconclusive", (), None, checked, tuple(not_checked), (_why_inconclusive(analysis),))
    if few:
        # What differs between stages does so in every microbatch of a step; of all that varies over steps nobody can tell.
        why = _describe_few(analysis)
        not_checked += [NotChecked(cause, why) for cause in checked if cause not in {j.rule.id for j in sure}]
        judgements, checked = sure, tuple(j.rule.id for j in sure)
    causes, explained = _list_causes(analysis, judgements, least, prediction)
    # What looks like a cause that nobody can look for may be nobody's fault: who waits inside it seems slow.
    unexplained = [] if few else list_unexplained(analysis, explained | unlooked, least)
    causes += [report_unknown(analysis, name, least) for name in unexplained]
    causes.sort(key=lambda cause: (-(cause.share or 0.0), -cause.recoverable, cause.cause))
    verdict: VerdictName = "straggling" if causes else "healthy"
    warnings = (f"the classifier was not asked: {prediction.unlike}",) if prediction and prediction.unlike else ()
    return Verdict(verdict, tuple(causes), _share_out(analysis, causes), checked, tuple(not_checked), warnings)


def list_unobservable_causes(analysis: Analysis, known: set[str]) -> dict[str, str]:
    """Give the causes that nobody can look for in what another producer recorded, each with the reason."""
    found: dict[str, str] = {}
    for entry in analysis.trace.recording.unobserved if analysis.trace.recording else ():
        for cause in known.intersection(entry.causes):
            found.setdefault(cause, f"{entry.what}: {entry.reason}")
    return dict(sorted(found.items()))


def _describe_few(analysis: Analysis) -> str:
    """Say that there are too few steps."""
    return f"only {len(analysis.breakdown.steps)} steps could be analysed, fewer than {MIN_STEPS}"


def _why_inconclusive(analysis: Analysis) -> str:
    """Say why nobody can judge the job."""
    if len(analysis.breakdown.steps) < MIN_STEPS:
        return f"{_describe_few(analysis)}: nothing that varies can be told from chance"
    error = analysis.fidelity.replay_error
    return f"the replay misses the recorded step time by {error:.3g} of it: no figure is to be trusted"


def _could_not_look(analysis: Analysis, judgement: Judgement, least: float) -> bool:
    """Say whether a cause can be neither found nor ruled out: what its rule asks for is missing, and time may be lost to it."""
    if is_unmeasured(analysis, judgement.rule.components):
        return True
    return judgement.fires is None and gain_of(analysis.gains, judgement.rule.components) >= least


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
        and gain_of(analysis.gains, judgement.rule.components) >= least
        and be_sure(analysis, judgement, least, prediction) is not None
    )


def _list_causes(
    analysis: Analysis, judgements: Sequence[Judgement], least: float, prediction: Prediction | None
) -> tuple[list[Cause], set[str]]:
    """Report the causes that are there, and name the components that they explain."""
    found = [
        (j, sure)
        for j in judgements
        if not is_unmeasured(analysis, j.rule.components)
        and (sure := be_sure(analysis, j, least, prediction)) is not None
    ]
    claims = Counter(name for j, _ in found for name in j.rule.components)
    return [_report(analysis, j, sure, claims, prediction, least) for j, sure in found], set(claims)


def _report(
    analysis: Analysis,
    judgement: Judgement,
    sure: float,
    claims: Mapping[str, int],
    prediction: Prediction | None,
    least: float,
) -> Cause:
    """Report one cause; `claims` says how many reported rules share each component."""
    rule, gains = judgement.rule, analysis.gains
    where = locate(analysis, rule)
    return Cause(
        cause=rule.id,
        title=rule.title,
        confidence=sure,
        share=share_of(gains, rule.components, claims),
        recoverable=gains.recoverable("+".join(rule.components)),
        where=where,
        when=date_cause(analysis, rule),
        evidence=tuple(list_evidence(analysis, judgement, prediction, least)),
        fixes=(),
        fingerprint=name_fault(analysis.trace.job, rule.id, where),
        severity=cast("Severity | None", rule.severity or None),
        who=rule.who or None,
    )


def _share_out(analysis: Analysis, causes: Sequence[Cause]) -> Ledger | None:
    """Share the lost time out among causes, and among components; both sum to 1 with what is unexplained."""
    if not causes:
        return None
    by_cause = {cause.cause: cause.share or 0.0 for cause in causes}
    components = dict(analysis.gains.share)
    return Ledger(by_cause, components, 1.0 - sum(by_cause.values()), 1.0 - sum(components.values()))
