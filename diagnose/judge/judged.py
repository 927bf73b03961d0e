"""What each judge makes of a job on its own, before a verdict."""

import dataclasses

from diagnose.judge.classifier import Prediction
from diagnose.judge.rule import Judgement
from diagnose.judge.rules import RuleSet
from diagnose.model.diagnosis_document import MadeBy


@dataclasses.dataclass(frozen=True, slots=True)
class Judged:
    """What the rules, in the order of the rule set, and the classifier, if there is one, say of one job."""

    rule_set: RuleSet
    judgements: tuple[Judgement, ...]
    prediction: Prediction | None
    made_by: MadeBy
