"""Which causes cannot be checked in a recording: those whose rules need what it lacks.

Enters: the account of a recording, or a trace, and rules. Leaves: the same account with the causes filled in; the causes of which
a trace may show nothing, with the reason.
"""

import dataclasses
from collections.abc import Sequence

import numpy as np

from diagnose.judge.rule import Judgement, Rule
from diagnose.model.optype import Op
from diagnose.model.recording import Account, Unobserved
from diagnose.model.trace import Trace

#: What rules need whose causes lie between steps. Waits for input do, too, where a barrier holds all workers, but most are within
#: steps: who looks for these there has looked.
_NEEDED = "between-steps"
_HIDDEN = "the trace shows neither the time between steps nor what all workers wait for before one, as for input"
#: Steps begin with their first operation where those begin at the same time of each step, to this: less than any timer tells.
SAME_START_S = 1e-9


def name_unchecked(account: Account | None, rules: Sequence[Rule]) -> Account | None:
    """Fill in the causes that cannot be checked for what a recording does not show, by what is lacking, then by rule."""
    if account is None:
        return None
    return dataclasses.replace(account, unobserved=tuple(_name_causes(entry, rules) for entry in account.unobserved))


def _name_causes(entry: Unobserved, rules: Sequence[Rule]) -> Unobserved:
    """Add the causes whose rules need what is lacking to those that the recording's own file names."""
    needing = [rule.id for name in entry.lacks for rule in rules if name in rule.needs]
    return dataclasses.replace(entry, causes=tuple(dict.fromkeys((*entry.causes, *needing))))


def list_unseen(trace: Trace, judgements: Sequence[Judgement]) -> dict[str, str]:
    """Give the causes that mostly lie between the steps, where a trace shows nothing of that; each with the reason.

    They are looked for within steps, and may be found there; that they are not found clears nobody. Rows of saves tell, and so does
    a veto: what the metadata rule out cannot lie there either.
    """
    reason = _describe_gaps(trace)
    if not reason or (trace.evidence.op == Op.CHECKPOINT).any():
        return {}
    return {
        j.rule.id: f"looked for within steps only: {reason}"
        for j in judgements
        if not j.is_vetoed and _NEEDED in j.rule.needs
    }


def _describe_gaps(trace: Trace) -> str:
    """Say why nothing that all workers wait for between steps can be seen in a trace; empty where it can."""
    if trace.step_origin_s is not None:
        if (np.diff(np.sort(trace.steps)) == 1).any():
            return ""
        return f"no two steps of the trace follow each other, so that {_HIDDEN}"
    first_s = np.concatenate([np.fmin.reduce(np.fmin.reduce(b.start_s, axis=0), axis=1) for b in trace.blocks])
    if np.ptp(first_s) > SAME_START_S:
        return ""
    return f"each step's times begin with its first operation, so that {_HIDDEN}"
