"""Which causes cannot be checked in a recording: those whose rules need what it lacks.

Enters: the account of a recording, and rules. Leaves: the same account with the causes filled in.
"""

import dataclasses
from collections.abc import Sequence

from diagnose.judge.rule import Rule
from diagnose.model.recording import Account, Unobserved


def name_unchecked(account: Account | None, rules: Sequence[Rule]) -> Account | None:
    """Fill in the causes that cannot be checked for what a recording does not show, by what is lacking, then by rule."""
    if account is None:
        return None
    return dataclasses.replace(account, unobserved=tuple(_name_causes(entry, rules) for entry in account.unobserved))


def _name_causes(entry: Unobserved, rules: Sequence[Rule]) -> Unobserved:
    """Add the causes whose rules need what is lacking to those that the recording's own file names."""
    needing = [rule.id for name in entry.lacks for rule in rules if name in rule.needs]
    return dataclasses.replace(entry, causes=tuple(dict.fromkeys((*entry.causes, *needing))))
