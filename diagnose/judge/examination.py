"""What stands before a verdict: a job measured, and judged by each rule and by the classifier on its own."""

import dataclasses

from diagnose.judge.classifier import Opinion
from diagnose.judge.rules import Judgement, RuleSet
from diagnose.judge.verdict import Case
from diagnose.model.change import Price
from diagnose.model.diagnosis_document import MadeBy
from diagnose.model.timeline import Timelines
from diagnose.model.trace import Trace
from diagnose.model.whatif import WhatIf


@dataclasses.dataclass(frozen=True, slots=True)
class Examination:
    """All that was measured of a job and made of it by each judge on its own, before a verdict.

    Attributes
    ----------
    what_if : WhatIf
    case : Case
    rule_set : RuleSet
    judgements : tuple of Judgement
        One a rule, in the order of `rule_set.rules`.
    opinion : Opinion or None
        The classifier's; None where there is none, or nobody asked it.
    made_by : MadeBy
    price, sample : Price
        Replay the job, or some of its steps, with changes.
    timelines : Timelines
        Draws single steps.
    warnings : tuple of str
        About the input.
    """

    what_if: WhatIf
    case: Case
    rule_set: RuleSet
    judgements: tuple[Judgement, ...]
    opinion: Opinion | None
    made_by: MadeBy
    price: Price
    sample: Price
    timelines: Timelines
    warnings: tuple[str, ...]

    @property
    def trace(self) -> Trace:
        """The job as read."""
        return self.case.trace
