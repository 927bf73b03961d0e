"""Which fixes the rules name for the causes found, and where these act."""

from collections.abc import Sequence

from diagnose.judge.rules import RuleSet
from diagnose.model.cause import Cause
from diagnose.model.remedy import CauseToFix, FaultLocation, NamedFix


def list_fixes_to_price(causes: Sequence[Cause], rule_set: RuleSet) -> list[CauseToFix]:
    """List the causes that a rule is of, each with the fixes that its rule names."""
    rules = {rule.id: rule for rule in rule_set.rules}
    return [
        CauseToFix(
            cause.cause,
            rules[cause.cause].components,
            FaultLocation(cause.where, cause.when),
            tuple(NamedFix(fix.fix, fix.summary, fix.how) for fix in rules[cause.cause].fixes),
            is_hidden=cause.recoverable_after_others is not None,
        )
        for cause in causes
        if cause.cause in rules
    ]


def locate_fix(fix: str, causes: Sequence[Cause], rule_set: RuleSet) -> FaultLocation:
    """Say where a fix acts: where the first cause sits that it mends."""
    mended = {rule.id for rule in rule_set.rules if fix in {one.fix for one in rule.fixes}}
    places = (FaultLocation(cause.where, cause.when) for cause in causes if cause.cause in mended)
    return next(places, FaultLocation())
