"""Check rules without a job: whether their files are right, and whether they judge the cases beside them as these say.

Enters: a folder of rule files. Leaves: faults, and cases that fail, each with the conditions that decided.
"""

import dataclasses
import re
from collections.abc import Iterable, Sequence
from pathlib import Path

from diagnose.errors import RuleError
from diagnose.judge.rule import Condition, Group, Rule, RuleTest
from diagnose.judge.rules import read_folder, read_own_severities
from diagnose.model.feature import Feature, Features

#: A comparison in words.
COMPARISONS = {"at_least": "at least", "at_most": "at most", "above": "above", "below": "below"}


def check_folder(folder: Path, known_features: Iterable[str]) -> tuple[list[Rule], list[str]]:
    """Find all faults of all rule files of a folder, `*.yaml` or `*.yml`: `file:line: what`, by file and line.

    The rules are those without faults. Thresholds of severities are checked where the folder has them.
    """
    faults: list[str] = []
    rules = read_folder(folder, faults, sorted(known_features), complete=True)
    read_own_severities(folder, faults)
    return rules, sorted(faults, key=_place)


def _place(fault: str) -> tuple[str, int]:
    """Read file and line of a fault."""
    found = re.match(r"(.*?):(\d+): ", fault, re.DOTALL)
    return (found[1], int(found[2])) if found else (fault, 0)


@dataclasses.dataclass(frozen=True, slots=True)
class Trial:
    """A case beside a rule, and what the rule makes of it; `deciding` are the conditions that it turns on."""

    rule: Rule
    case: RuleTest
    fires: bool | None
    deciding: tuple[Condition, ...]

    @property
    def passes(self) -> bool:
        """True where the rule does as the case says; a case that must not fire has to name all that is needed to see that."""
        if self.fires is None:
            return not self.case.fires and all(part.feature in self.case.features for part in self.deciding)
        return self.fires == self.case.fires

    def explain(self) -> list[str]:
        """Write in lines what was expected, what happened, and which conditions decided."""
        expected = "expected to fire" if self.case.fires else "expected not to fire"
        actual = {True: "it fires", False: "it does not fire", None: "it cannot tell"}[self.fires]
        lines = [f"{self.rule.path}:{self.case.line}: {self.rule.id}: {self.case.name}: {expected}, and {actual}"]
        for part in self.deciding:
            wanted = f"{part.feature} {COMPARISONS[part.comparison]} {part.threshold:g} (line {part.line})"
            value = self.case.features.get(part.feature)
            if part.feature not in self.case.features:
                lines.append(
                    f"    decided by {wanted}: the case does not name it; add it, null where it is not measured"
                )
            else:
                lines.append(f"    decided by {wanted}: {'not measured' if value is None else f'it is {value:g}'}")
        return lines


def try_cases(folder: Path) -> list[Trial]:
    """Judge every case beside the rules of a folder.

    Raises
    ------
    RuleError
        A file is wrong; all faults of all files.
    """
    faults: list[str] = []
    rules = read_folder(folder, faults)
    if faults:
        raise RuleError("\n".join(faults))
    return [try_case(rule, case) for rule in rules for case in rule.tests]


def try_case(rule: Rule, case: RuleTest) -> Trial:
    """Judge one case."""
    features: Features = {
        name: Feature.missing("null in the case") if value is None else Feature(value)
        for name, value in case.features.items()
    }
    deciding = rule.vetoes if rule.vetoes.holds(features) else rule.conditions
    return Trial(rule, case, rule.fires(features), tuple(find_deciding(deciding, features)))


def find_deciding(part: Condition | Group, features: Features) -> Sequence[Condition]:
    """List the conditions that a group turns on: those that hold where it holds, and likewise where not or not known.

    Where they are under `all` that does not hold, or `any` that does, all of them would have to change; else one is enough.
    """
    if isinstance(part, Condition):
        return [part]
    holds = part.holds(features)
    wanted = not holds if part.kind == "none" and holds is not None else holds
    return [
        found for inner in part.parts if inner.holds(features) is wanted for found in find_deciding(inner, features)
    ]
