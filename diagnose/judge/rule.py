"""What a rule is, and how it judges features: found, not there, or could not look.

Enters: features. Leaves: a `Judgement`, with the sentences that hold.
"""

import dataclasses
import math
import re
from collections.abc import Iterable, Iterator

from diagnose.model.feature import Feature, Features
from diagnose.model.trace import Job
from diagnose.numerics.figures import write_figure, write_ratio

#: What is said of a feature that a job does not have.
NOT_MEASURED = Feature.missing("not measured")


@dataclasses.dataclass(frozen=True, slots=True)
class Condition:
    """One comparison of a feature with a threshold, the sentence that it bears out, and where the threshold comes from."""

    feature: str
    comparison: str
    threshold: float
    says: str
    line: int
    origin: str = ""

    def holds(self, features: Features) -> bool | None:
        """Compare; None where the feature could not be measured."""
        value = features.get(self.feature, NOT_MEASURED).value
        if value is None or math.isnan(value):
            return None
        return {
            "at_least": value >= self.threshold,
            "at_most": value <= self.threshold,
            "above": value > self.threshold,
            "below": value < self.threshold,
        }[self.comparison]


@dataclasses.dataclass(frozen=True, slots=True)
class Group:
    """Conditions under `all`, `any` or `none`."""

    kind: str
    parts: tuple["Condition | Group", ...]

    def holds(self, features: Features) -> bool | None:
        """Judge with three values: what could not be measured decides nothing, but leaves things open."""
        found = [part.holds(features) for part in self.parts]
        if self.kind == "all":
            return False if False in found else None if None in found else True
        any_holds = True if True in found else None if None in found else False
        if self.kind == "any":
            return any_holds
        return None if any_holds is None else not any_holds

    def conditions(self) -> list[Condition]:
        """List all conditions below."""
        found: list[Condition] = []
        for part in self.parts:
            found += [part] if isinstance(part, Condition) else part.conditions()
        return found


#: Of a rule that nothing forbids.
NO_VETO = Group("any", ())


@dataclasses.dataclass(frozen=True, slots=True)
class RuleAlternative:
    """Another cause that explains the same seconds, the feature that says how probably (0..1), and what would tell them apart."""

    cause: str
    feature: str
    tells_apart: str


@dataclasses.dataclass(frozen=True, slots=True)
class RuleFix:
    """What mends a cause: the name of a fix of `diagnose.fixes`, which says how, or one of the rule's own with `how`."""

    fix: str
    summary: str
    how: str = ""


@dataclasses.dataclass(frozen=True, slots=True)
class RuleTest:
    """A case beside the rule: features, and whether the rule must fire."""

    name: str
    features: dict[str, float | None]
    fires: bool
    line: int


#: Headings that a rule in the place of another may leave out: they say what is so of the cause, not when the rule fires.
_KEPT = ("needs", "vetoes", "alternatives", "pictures", "dated_by_log", "classifier", "check", "check_cpu")


@dataclasses.dataclass(frozen=True, slots=True)
class Rule:
    """The room of one cause; `severity`, `check`, `check_cpu` and `false_positives` are empty where its file says nothing."""

    id: str
    title: str
    status: str
    #: How bad the cause is as a rule; how bad it is in a job is what its gain says (`Severities`).
    severity: str
    #: One line: how to make sure of it by hand.
    check: str
    #: The same for a job on CPUs, where that is another.
    check_cpu: str
    who: str
    story: str
    components: tuple[str, ...]
    place: str
    #: Of `CAPABILITIES`: where a recording lacks one the cause is not checked.
    needs: tuple[str, ...]
    #: Of `PICTURES`: those that show the cause, the best first; empty: what its components show best.
    pictures: tuple[str, ...]
    #: A change of pace in a training log may be this cause's onset; False for what is so from the first step on.
    dated_by_log: bool
    #: Patterns of the features that the classifier is trained to see for this cause; none: all that it sees for others.
    classifier: tuple[str, ...]
    conditions: Group
    fixes: tuple[RuleFix, ...]
    looks_like: tuple[str, ...]
    false_positives: str
    source: str
    tests: tuple[RuleTest, ...]
    path: str
    #: The headings of its file.
    given: frozenset[str] = frozenset()
    #: Any of these that holds keeps the cause from being said, whatever the classifier says; what could not be measured does
    #: not.
    vetoes: Group = NO_VETO
    #: What else may explain the same seconds.
    alternatives: tuple[RuleAlternative, ...] = ()

    def replace(self, other: "Rule") -> "Rule":
        """Give this rule in the place of another of its id: what its file does not say of recordings and pages stays as it was."""
        kept = {key: getattr(other, key) for key in _KEPT if key not in self.given}
        return dataclasses.replace(self, **kept)

    def check_on(self, job: Job) -> str | None:
        """Say how to make sure of it by hand on the machines of a job; None where the file does not say."""
        return (self.check_cpu if job.is_on_cpu else "") or self.check or None

    def judge(self, features: Features) -> "Judgement":
        """Say whether the rule fires on these features, with the sentences that hold and what could not be measured."""
        conditions = self.conditions.conditions()
        missing = [
            f"{condition.feature}: {features.get(condition.feature, NOT_MEASURED).reason or 'not measured'}"
            for condition in conditions
            if condition.holds(features) is None
        ]
        vetoes = [part for part in self.vetoes.parts if part.holds(features)]
        forbidding = [found for part in vetoes for found in (part.conditions() if isinstance(part, Group) else [part])]
        return Judgement(
            self,
            self.fires(features),
            tuple(_list_sentences(conditions, features)),
            tuple(dict.fromkeys(missing)),
            is_vetoed=bool(vetoes),
            vetoes=tuple(_list_sentences(forbidding, features)),
        )

    def fires(self, features: Features) -> bool | None:
        """Say whether the conditions hold and no veto does; None where nobody can say."""
        return False if self.vetoes.holds(features) else self.conditions.holds(features)


@dataclasses.dataclass(frozen=True, slots=True)
class Judgement:
    """What a rule makes of a job: `fires` is None where it could not look, and False where a veto holds.

    `held` and `vetoes` are the conditions, and the vetoes, that hold, with their sentences.
    """

    rule: Rule
    fires: bool | None
    held: tuple[tuple[Condition, str], ...]
    missing: tuple[str, ...]
    is_vetoed: bool = False
    vetoes: tuple[tuple[Condition, str], ...] = ()


def _list_sentences(conditions: Iterable[Condition], features: Features) -> Iterator[tuple[Condition, str]]:
    """Give the conditions that hold, each with its sentence, where it has one."""
    for condition in conditions:
        value = features.get(condition.feature, NOT_MEASURED).value
        if condition.says and value is not None and condition.holds(features):
            yield condition, write_sentence(condition, value)


def write_sentence(condition: Condition, value: float) -> str:
    """Write a condition's sentence with `{value}`, `{value%}` and `{threshold}` filled in.

    >>> write_sentence(Condition("worker.ratio", "at_least", 1.03, "{value} times its peers", 1), 2.0)
    '2 times its peers'
    >>> write_sentence(Condition("gc.share", "at_most", 0.5, "{value%} of the pauses", 1), 0.0)
    'none of the pauses'
    """
    texts = {
        "{value%} of": f"{write_figure(100 * value)}% of" if value else "none of",
        "{value}": write_ratio(value) if "{value} times" in condition.says else write_figure(value),
        "{value%}": f"{write_figure(100 * value)}%",
        "{threshold}": f"{condition.threshold:g}",
    }
    return re.sub(r"\{value%\} of|\{(value%?|threshold)\}", lambda match: texts[match.group(0)], condition.says)
