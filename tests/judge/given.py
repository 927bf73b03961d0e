"""Jobs with some of what was measured changed, and what is made of them: for tests of thresholds."""

import dataclasses
from typing import Any

from diagnose.judge.classifier import Prediction
from diagnose.judge.verdict import Verdict, reach_verdict
from diagnose.model.analysis import Analysis
from tests.judge.cases import built_in, judge


def reach(
    analysis: Analysis, *, min_speedup: float = 1.02, prediction: Prediction | None = None, **changes: Any
) -> Verdict:
    """Judge a case by the built-in rules, some of it changed."""
    changed = dataclasses.replace(analysis, **changes)
    return reach_verdict(changed, judge(changed), min_speedup=min_speedup, prediction=prediction)


def silent(analysis: Analysis) -> Verdict:
    """Judge a case by rules of which none fires."""
    judgements = [dataclasses.replace(j, fires=False, missing=()) for j in judge(analysis)]
    return reach_verdict(analysis, judgements, min_speedup=1.02)


def prediction(cause: str, probability: float, unlike: str | None = None) -> Prediction:
    """Give a classifier's prediction on one cause."""
    return Prediction({cause: probability}, {cause: 0.0}, {cause: 0.0}, unlike, {})


#: Part of the step that is left without all components.
CLEAN = 0.95


def with_gains(analysis: Analysis, *, price: Any = None, **gains: tuple[float, float]) -> Analysis:
    """Give a job whose components give back these parts of the step, alone and after all others, and all others nothing."""
    old = analysis.gains
    replayed_s = old.replayed_s
    alone = {name.replace("_", "-"): replayed_s * (1.0 - alone) for name, (alone, _) in gains.items()}
    last = {name.replace("_", "-"): CLEAN * replayed_s / (1.0 - last) for name, (_, last) in gains.items()}
    steps = dict.fromkeys(old.alone_steps_s, old.replayed_steps_s)
    steps |= {name: old.replayed_steps_s * alone_s / replayed_s for name, alone_s in alone.items()}
    changed = dataclasses.replace(
        old,
        recorded_s=replayed_s,
        clean_s=CLEAN * replayed_s,
        alone_steps_s=steps,
        alone_s=dict.fromkeys(old.alone_s, replayed_s) | alone,
        last_s=dict.fromkeys(old.last_s, CLEAN * replayed_s) | last,
    )
    return dataclasses.replace(analysis, gains=changed, price=price or analysis.price)


def priced(analysis: Analysis, worth: dict[frozenset[str], float]) -> Any:
    """Replay nothing: the job without these components takes this part of its time."""
    return lambda changes: analysis.gains.replayed_steps_s * worth[frozenset(change.component for change in changes)]


def with_rule(analysis: Analysis, cause: str, **changes: Any) -> list[Any]:
    """Judge a job by the built-in rules, one of them changed."""
    rules = [dataclasses.replace(rule, **changes) if rule.id == cause else rule for rule in built_in().rules]
    return [rule.judge(analysis.features) for rule in rules]
