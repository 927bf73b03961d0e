"""What a rule is, and how it judges features: found, not there, or could not look.

Enters: features. Leaves: a `Judgement`, with the sentences that hold.
"""

import dataclasses
import math
import re

from diagnose.model.feature import Feature, Features


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
        value = features.get(self.feature, Feature.missing("not measured")).value
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


@dataclasses.dataclass(frozen=True, slots=True)
class RuleFix:
    """What mends a cause: the name of a fix of `diagnose.fixes`, which says how, or one of the rule's own with `how`."""

    fix: str
    summary: str
    how: str = ""


@dataclasses.dataclass(frozen=True, slots=True)
class RuleTest:
    """A case beside the rule: features, each with its line in the file, and whether the rule must fire."""

    name: str
    features: dict[str, float | None]
    fires: bool
    line: int
    lines: dict[str, int] = dataclasses.field(default_factory=dict)


#: Headings that a rule in the place of another may leave out: they say what is so of the cause, not when the rule fires.
_KEPT = ("needs", "pictures", "dated_by_log", "classifier")


@dataclasses.dataclass(frozen=True, slots=True)
class Rule:
    """The room of one cause; `severity` and `false_positives` are empty where its file says nothing of them.

    Attributes
    ----------
    needs : tuple of str
        Of `CAPABILITIES`: where a recording lacks one the cause is not checked.
    pictures : tuple of str
        Of `PICTURES`: those that make the cause obvious, the best first.
    dated_by_log : bool
        A change of pace in a training log may be this cause's onset; False for what is so from the first step on.
    classifier : tuple of str
        Patterns of the features that the classifier is trained to see for this cause; none: all that it sees for others.
    given : frozenset of str
        The headings of its file.
    """

    id: str
    title: str
    status: str
    severity: str
    who: str
    story: str
    components: tuple[str, ...]
    place: str
    needs: tuple[str, ...]
    pictures: tuple[str, ...]
    dated_by_log: bool
    classifier: tuple[str, ...]
    conditions: Group
    fixes: tuple[RuleFix, ...]
    looks_like: tuple[str, ...]
    false_positives: str
    source: str
    tests: tuple[RuleTest, ...]
    path: str
    given: frozenset[str] = frozenset()

    def replace(self, other: "Rule") -> "Rule":
        """Give this rule in the place of another of its id: what its file does not say of recordings and pages stays as it was."""
        kept = {key: getattr(other, key) for key in _KEPT if key not in self.given}
        return dataclasses.replace(self, **kept)

    def judge(self, features: Features) -> "Judgement":
        """Say whether the rule fires on these features, with the sentences that hold and what could not be measured."""
        held, missing = [], []
        for condition in self.conditions.conditions():
            holds = condition.holds(features)
            feature = features.get(condition.feature, Feature.missing("not measured"))
            if holds and condition.says and feature.value is not None:
                held.append((condition, write_sentence(condition, feature.value)))
            if holds is None:
                missing.append(f"{condition.feature}: {feature.reason or 'not measured'}")
        return Judgement(self, self.conditions.holds(features), tuple(held), tuple(dict.fromkeys(missing)))


@dataclasses.dataclass(frozen=True, slots=True)
class Judgement:
    """What a rule makes of a job: `fires` is None where it could not look."""

    rule: Rule
    fires: bool | None
    held: tuple[tuple[Condition, str], ...]
    missing: tuple[str, ...]


def write_sentence(condition: Condition, value: float) -> str:
    """Write a condition's sentence with `{value}`, `{value%}` and `{threshold}` filled in.

    >>> write_sentence(Condition("worker.ratio", "at_least", 1.03, "{value} times its peers", 1), 2.0)
    '2 times its peers'
    """
    texts = {
        "{value}": f"{value:.3g}",
        "{value%}": f"{100 * value:.3g}%",
        "{threshold}": f"{condition.threshold:g}",
    }
    return re.sub(r"\{(value%?|threshold)\}", lambda match: texts[match.group(0)], condition.says)
