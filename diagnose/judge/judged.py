"""What each judge makes of a job on its own, before a verdict."""

import dataclasses

from diagnose.judge.classifier import Prediction
from diagnose.judge.rule import Judgement
from diagnose.judge.rules import RuleSet
from diagnose.model.diagnosis_document import MadeBy


@dataclasses.dataclass(frozen=True, slots=True)
class Judged:
    """What the rules and the classifier say of one job.

    Attributes
    ----------
    rule_set : RuleSet
    judgements : tuple of Judgement
        One a rule, in the order of `rule_set.rules`.
    prediction : Prediction or None
        The classifier's; None where there is no classifier.
    made_by : MadeBy
    """

    rule_set: RuleSet
    judgements: tuple[Judgement, ...]
    prediction: Prediction | None
    made_by: MadeBy
