"""Which pictures make each cause obvious: what reports take from the rules."""

from diagnose.judge.rules import RuleSet
from diagnose.model.pictured import Pictured


def list_pictured(rule_set: RuleSet) -> dict[str, Pictured]:
    """Give the components and pictures of every rule, by cause."""
    return {rule.id: Pictured(rule.components, rule.pictures) for rule in rule_set.rules}
