"""Why one cause is said of a job, or not: every condition of its rule, what the classifier makes of it, and what it is worth."""

import dataclasses
from typing import Any

from diagnose.model.cause import Alternative, When
from diagnose.model.course import Change
from diagnose.model.diagnosis_document import MadeBy
from diagnose.model.place import Where
from diagnose.model.plain import to_plain

SCHEMA = "diagnose-explain/1"

#: What keeps a cause from being said, by the code that `Explanation.because` has for it.
REASONS = {
    "inconclusive": "the trace does not let anyone judge",
    "unsaid": "what another tool recorded cannot show it",
    "unmeasured": "nobody can tell what its components cost",
    "gain": "too little comes back without it",
    "conditions": "a condition that must hold does not",
    "alternative": "it is told as what else another cause may be",
    "unknown": "its time is said as `unknown`, which is more probable",
    "veto": "something holds that forbids it",
    "unknown-conditions": "conditions that decide could not be measured",
    "classifier": "the rule says yes, and the verdict no, as the classifier objects",
    "explained": "other causes account for the lost time",
}


@dataclasses.dataclass(frozen=True, slots=True)
class Checked:
    """A condition of a rule, with what was found; `holds` is None where that cannot be said."""

    #: `feature`, `comparison`, `threshold`: the comparison is `at_least`, `at_most`, `above` or `below`.
    feature: str
    comparison: str
    threshold: float
    holds: bool | None
    #: None where the feature could not be measured; `reason` then says why.
    value: float | None
    reason: str
    #: The sentence that it bears out, where it holds and has one.
    says: str
    #: Where the threshold is from.
    origin: str
    #: The rule as a whole turns on it.
    deciding: bool


@dataclasses.dataclass(frozen=True, slots=True)
class CheckedGroup:
    """Conditions under `all`, `any` or `none`."""

    kind: str
    holds: bool | None
    parts: tuple["Checked | CheckedGroup", ...]

    def conditions(self) -> list[Checked]:
        """List all conditions below."""
        found: list[Checked] = []
        for part in self.parts:
            found += [part] if isinstance(part, Checked) else part.conditions()
        return found


@dataclasses.dataclass(frozen=True, slots=True)
class RuleCheck:
    """What a rule, named by its cause, makes of a job: `fires` is None where it could not look; `vetoes` forbid it."""

    cause: str
    fires: bool | None
    conditions: CheckedGroup
    vetoes: CheckedGroup


@dataclasses.dataclass(frozen=True, slots=True)
class Details:
    """What a thorough reader asks for: every rule with its conditions, and why a feature could not be measured, by its name."""

    rules: tuple[RuleCheck, ...]
    missing: dict[str, str]


@dataclasses.dataclass(frozen=True, slots=True)
class Weight:
    """What a feature adds to the classifier's log odds; `value` is None where it was missing."""

    feature: str
    value: float | None
    log_odds: float


@dataclasses.dataclass(frozen=True, slots=True)
class CausePrediction:
    """What the classifier makes of a cause."""

    #: Calibrated, 0..1; None where it was trained on no job with this cause.
    probability: float | None
    #: `speaks_for`, `speaks_against`: the strongest features, most first.
    speaks_for: tuple[Weight, ...]
    speaks_against: tuple[Weight, ...]
    #: Why the job is unlike any in training; None where it is like some.
    unlike: str | None


@dataclasses.dataclass(frozen=True, slots=True)
class Worth:
    """What removing one component, or several joined by `+`, gives back; parts of the step time."""

    component: str
    #: What it is.
    words: str
    #: `alone`, `last`: gain when it is removed alone, and after all others; None where nobody can tell, and `reason` says why.
    alone: float | None
    last: float | None
    #: Of the lost time, in the ledger; None where it was not shared out.
    share: float | None
    #: Seconds a step without it.
    without_s: float | None
    reason: str


@dataclasses.dataclass(frozen=True, slots=True)
class Explanation:
    """Why one cause is said of a job, or not."""

    job_id: str
    cause: str
    title: str
    #: True where the diagnosis has it among its causes.
    said: bool
    #: What keeps it from being said, as in `REASONS`; empty where it is said.
    because: tuple[str, ...]
    #: Of the whole job.
    verdict: str
    #: Why nobody can judge, where the verdict is `inconclusive` or the recording cannot show the cause.
    doubt: str
    #: Of the cause, where it is said.
    confidence: float | None
    #: `gain`, `least_gain`: part of the step time that comes back without it, alone or after the causes that are said, and the
    #: part that must for it to be said.
    gain: float | None
    least_gain: float
    #: File of its rule; empty for `unknown`, which has none.
    rule: str
    #: Whether the rule's conditions hold, and no veto; None where that cannot be said, or there is no rule.
    fires: bool | None
    #: `conditions`, `vetoes`: what must hold, and what must not; None where there is no rule.
    conditions: CheckedGroup | None
    #: None where there is no classifier.
    prediction: CausePrediction | None
    #: Steps at which it began or ended to cost time.
    changes: tuple[Change, ...]
    #: Unit of what they change: `seconds` a step, or `log-ratio` of a worker's time over its peers'.
    changes_in: str
    when: When
    where: Where
    #: Seconds a step.
    recorded_s: float
    #: One a component, and one of all of them together where there are several; the last one is that of the cause.
    worth: tuple[Worth, ...]
    made_by: MadeBy
    warnings: tuple[str, ...]
    vetoes: CheckedGroup | None = None
    #: What else may explain the same time, where it is said.
    alternatives: tuple[Alternative, ...] = ()
    #: More comes back after the causes that are said than alone.
    after_others: bool = False

    def to_dict(self) -> dict[str, Any]:
        """Give plain types: what `diagnose explain --format json` prints, but for the sentence `why`.

        Returns
        -------
        dict
            Keys are stable, others may be added; times in seconds, ratios as plain numbers, missing is None.

            - `schema`: `diagnose-explain/1`; `made_by`: as in the diagnosis; `job_id`
            - `cause`, `title`; `said`: whether the diagnosis has it among its causes
            - `because`: codes of what keeps it from being said, as in `REASONS`; empty where it is said
            - `verdict` of the job; `doubt`: why nobody can judge; `confidence` of the cause: null where it is not said;
              `alternatives`: as in the diagnosis
            - `gain`: part of the step time that comes back, alone or after the causes that are said; `least_gain`: the part that
              must, for it to be said
            - `rule`: null for `unknown`, else `file`, `fires` (null where that cannot be said), `conditions` and `vetoes`, trees of
              groups (`kind`: `all`, `any` or `none`; `holds`, `parts`) and conditions (`feature`, `comparison`, `threshold`,
              `holds`, `value`, `reason`, `says`, `origin`, `deciding`), `holds` null where that cannot be said
            - `classifier`: null where there is none, else `probability`, `for` and `against` (lists, strongest first, of `feature`,
              `value`, `log_odds`), and `unlike`
            - `when`, `where`: as in the diagnosis
            - `changes`: list of `step`, `before`, `after`, `chance`; `changes_in`: the unit of `before` and `after`, `seconds` a
              step or `log-ratio` of a worker's time over its peers'
            - `step_time`: `recorded`, `without`
            - `gains`: list of `component`, `words`, `alone`, `last`, `share`, `without_s`, `reason`; the last one is the cause's
            - `warnings` about the input
        """
        prediction = self.prediction
        found: dict[str, Any] = {
            "schema": SCHEMA,
            "made_by": self.made_by,
            "job_id": self.job_id,
            "cause": self.cause,
            "title": self.title,
            "said": self.said,
            "because": self.because,
            "verdict": self.verdict,
            "doubt": self.doubt or None,
            "confidence": self.confidence,
            "alternatives": self.alternatives,
            "gain": self.gain,
            "least_gain": self.least_gain,
            "rule": None
            if self.conditions is None
            else {"file": self.rule, "fires": self.fires, "conditions": self.conditions, "vetoes": self.vetoes},
            "classifier": None
            if prediction is None
            else {
                "probability": prediction.probability,
                "for": prediction.speaks_for,
                "against": prediction.speaks_against,
                "unlike": prediction.unlike,
            },
            "when": self.when,
            "where": self.where,
            "changes": self.changes,
            "changes_in": self.changes_in,
            "step_time": {"recorded": self.recorded_s, "without": self.worth[-1].without_s if self.worth else None},
            "gains": self.worth,
            "warnings": self.warnings,
        }
        plain: dict[str, Any] = to_plain(found)
        return plain
