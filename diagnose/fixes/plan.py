"""Price what is proposed: each fix by itself, and the best of each cause one after the other.

Enters: a measured job, and which fixes its causes name. Leaves: priced fixes, and a plan. Costs one replay a fix, what fixes that
search ask for, and n (n + 1) / 2 - 1 replays for the order of n causes.
"""

import dataclasses
from collections.abc import Sequence

import msgspec.structs

from diagnose.fixes.catalogue import Weigh, check_settings, look_up_fix
from diagnose.model.analysis import Analysis
from diagnose.model.cause import Cause, Fix, RefusedFix
from diagnose.model.change import Change, Remove
from diagnose.model.diagnosis_document import Plan, PlanStep
from diagnose.model.remedy import CauseToFix, FaultLocation, NamedFix, Refusal, Remedy
from diagnose.numerics.figures import write_percent

#: A fix that gives back less than this part of the step does not help.
HELPS_FROM = 0.005


@dataclasses.dataclass(frozen=True, slots=True)
class Priced:
    """A fix with its price: mean seconds a step of the replay with it alone."""

    fix: Fix
    changes: tuple[Change, ...]
    step_s: float


@dataclasses.dataclass(frozen=True, slots=True)
class Prices:
    """What the fixes of some causes give.

    The fixes of each cause are the best first, and apart those that are not for this job; there is no plan where no cause has a
    fix; `changes` is what the fixes of the plan change together.
    """

    fixes: tuple[tuple[tuple[Fix, ...], tuple[RefusedFix, ...]], ...]
    plan: Plan | None
    changes: tuple[Change, ...]


def price_causes(analysis: Analysis, wanted: Sequence[CauseToFix]) -> Prices:
    """Price the fixes of each cause, best first, and say in which order to do the best ones."""
    found, best = [], []
    for cause in wanted:
        priced, refused = [], []
        for named in cause.fixes:
            one = price_fix(analysis, named, cause.place, cause.components)
            if isinstance(one, Priced) and not cause.is_hidden:
                one = _refuse_if_useless(analysis, one, 0.0 if len(wanted) > 1 else HELPS_FROM)
            if isinstance(one, Priced):
                priced.append(one)
            elif not one.obvious:
                refused.append(RefusedFix(named.fix, one.reason, named.summary))
        priced.sort(key=lambda one: one.step_s)  # stable: the rule's order where they are equal
        found.append((tuple(one.fix for one in priced), tuple(refused)))
        if priced:
            best.append((cause.cause, priced[0]))
    plan = order_fixes(analysis, best) if best else None
    return Prices(tuple(found), plan, tuple(change for _, one in best for change in one.changes))


def _refuse_if_useless(analysis: Analysis, one: Priced, least: float) -> Priced | Refusal:
    """Refuse a fix with which steps are not shorter, by `least` of the step: of several causes each may hide the others."""
    gain = 1.0 - one.step_s / analysis.gains.replayed_s
    if gain > least:
        return one
    how = "no shorter"
    if gain:
        how = f"only {write_percent(gain)} shorter" if gain > 0 else f"{write_percent(-gain)} longer"
    return Refusal(f"by the replay steps would be {how} with it")


def add_fixes(causes: Sequence[Cause], wanted: Sequence[CauseToFix], prices: Prices) -> tuple[Cause, ...]:
    """Give each cause its fixes, and those that are not for this job."""
    priced = dict(zip([one.cause for one in wanted], prices.fixes, strict=True))
    return tuple(
        msgspec.structs.replace(cause, fixes=priced[cause.cause][0], refused_fixes=priced[cause.cause][1])
        if cause.cause in priced
        else cause
        for cause in causes
    )


def price_fix(analysis: Analysis, named: NamedFix, place: FaultLocation, components: Sequence[str]) -> Priced | Refusal:
    """Price one fix; one without a file here is taken to remove the components of its cause.

    Raises
    ------
    UsageError
        The fix has no such setting, or not that value.
    """
    module = look_up_fix(named.fix)
    if module is None:
        remedy: Remedy | Refusal = Remedy(named.summary, named.how, tuple(Remove(name) for name in components))
        weigh: Weigh | None = None
    else:
        check_settings(module, named.settings)
        remedy = module.propose(analysis, place, named.settings)
        weigh = getattr(module, "weigh", None)
    if isinstance(remedy, Refusal):
        return remedy
    step_s = float(analysis.price(remedy.changes).mean())
    if weigh is not None:
        gain = 1.0 - step_s / analysis.gains.replayed_s
        remedy = weigh(analysis, remedy, gain * analysis.gains.recorded_s)
    return Priced(_to_fix(analysis, named.fix, remedy, step_s), remedy.changes, step_s)


def _to_fix(analysis: Analysis, name: str, remedy: Remedy, step_s: float) -> Fix:
    """Put a priced remedy into words and numbers of the report."""
    predicted, speedup = predict(analysis, step_s)
    return Fix(
        fix=name,
        summary=remedy.summary,
        how=remedy.how,
        predicted_step_time=predicted,
        predicted_speedup=speedup,
        settings=dict(remedy.settings),
        assumptions=remedy.assumptions,
        risks=remedy.risks,
        figures=dict(remedy.figures),
    )


def predict(analysis: Analysis, step_s: float) -> tuple[float, float | None]:
    """Turn replayed seconds into what will be recorded, and its speedup: what the replay misses now it misses then."""
    gains = analysis.gains
    return gains.recorded_s * step_s / gains.replayed_s, gains.replayed_s / step_s if step_s > 0 else None


def order_fixes(analysis: Analysis, fixes: Sequence[tuple[str, Priced]]) -> Plan:
    """Put the fixes of causes in order: at each turn the one that makes the job fastest together with those before it."""
    left = list(fixes)
    done: tuple[Change, ...] = ()
    before_s = analysis.gains.replayed_s
    steps: list[PlanStep] = []
    while left:
        after_s = [one.step_s if not done else float(analysis.price((*done, *one.changes)).mean()) for _, one in left]
        at = min(range(len(left)), key=after_s.__getitem__)
        cause, one = left.pop(at)
        done = (*done, *one.changes)
        gain = 1.0 - after_s[at] / before_s
        predicted, speedup = predict(analysis, after_s[at])
        steps.append(
            PlanStep(
                fix=one.fix.fix,
                cause=cause,
                predicted_step_time=predicted,
                predicted_speedup=speedup,
                gain=gain,
                gain_alone=1.0 - one.step_s / analysis.gains.replayed_s,
                note=_note(gain, one.step_s / analysis.gains.replayed_s, [step.fix for step in steps]),
            )
        )
        before_s = after_s[at]
    return Plan(tuple(steps), steps[-1].predicted_step_time, steps[-1].predicted_speedup)


def _note(gain: float, alone_ratio: float, earlier: Sequence[str]) -> str | None:
    """Say what a reader might not expect of a fix beside others."""
    alone = 1.0 - alone_ratio
    if gain < HELPS_FROM and alone < HELPS_FROM:
        return "it does not make the job faster: what it mends is hidden behind something slower"
    if gain < HELPS_FROM:
        return f"nothing is left to gain after {' and '.join(earlier)}"
    if alone < HELPS_FROM:
        return f"it helps only after {' and '.join(earlier)}: until then it is hidden"
    return None
