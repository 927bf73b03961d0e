"""How every condition of a rule turned out, and which of them decided.

Enters: rules and features. Leaves: the conditions, checked.
"""

import math
from collections.abc import Iterable
from collections.abc import Set as AbstractSet

from diagnose.judge.check import find_deciding
from diagnose.judge.rule import Condition, Group, Judgement, write_sentence
from diagnose.model.explanation import Checked, CheckedGroup, Details, RuleCheck
from diagnose.model.feature import Feature, Features


def list_details(judgements: Iterable[Judgement], features: Features) -> Details:
    """List how every condition of every rule turned out, and why features are missing."""
    return Details(
        rules=tuple(
            RuleCheck(
                j.rule.id,
                j.fires,
                check_conditions(j.rule.conditions, features),
                check_conditions(j.rule.vetoes, features),
            )
            for j in judgements
        ),
        missing={name: feature.reason or "not measured" for name, feature in features.items() if feature.value is None},
    )


def check_conditions(group: Group, features: Features) -> CheckedGroup:
    """Say of every condition of a rule whether it holds, and whether the rule turns on it."""
    return _check_group(group, features, frozenset(find_deciding(group, features)))


def _check_group(group: Group, features: Features, deciding: AbstractSet[Condition]) -> CheckedGroup:
    """Say of every condition of a group whether it holds."""
    parts = (
        _check(part, features, deciding=part in deciding)
        if isinstance(part, Condition)
        else _check_group(part, features, deciding)
        for part in group.parts
    )
    return CheckedGroup(group.kind, group.holds(features), tuple(parts))


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
        says=write_sentence(condition, value) if holds and condition.says and value is not None else "",
        origin=condition.origin,
        deciding=deciding,
    )
