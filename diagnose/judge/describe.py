"""Write rules down for people: one as a page, all as a table.

Enters: rules. Leaves: plain text.
"""

import textwrap
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from diagnose.judge.check import COMPARISONS
from diagnose.judge.rule import Condition, Group, Rule
from diagnose.judge.rules import built_in_rules
from diagnose.model.components import COMPONENTS

WIDTH = 80
#: A blank at which no line is broken.
_GLUE = "\N{NO-BREAK SPACE}"
#: How a group of conditions begins, on its own and within another.
_GROUPS = {"all": "all of these hold", "any": "any of these holds", "none": "none of these holds"}
_PLACES = {
    "workers": "names the workers it lies on",
    "stages": "names the stage it lies on",
    "spread": "is spread over the job",
}


def describe_rule(rule: Rule, titles: Mapping[str, str], features: Mapping[str, str]) -> str:
    """Write everything that a rule says as a page of at most 80 columns.

    `titles` are those of the rules there are, by id; `features` says what each feature reads as.
    """
    facts = [rule.status, f"severity {rule.severity}" if rule.severity else "", f"{rule.who} acts", _PLACES[rule.place]]
    looks_like = [f"{name} ({titles[name]})" if name in titles else name for name in rule.looks_like]
    parts = [
        "\n".join([*_wrap(f"{rule.id}: {rule.title}"), *_wrap("; ".join(fact for fact in facts if fact))]),
        _section("Story", _wrap(rule.story, "  ")),
        _section("Fires when " + _GROUPS[rule.conditions.kind], _conditions(rule.conditions, features, "  ")),
        _section("Never said where " + _GROUPS["any"], _conditions(rule.vetoes, features, "  ")),
        _section(
            "Reported only where the job is faster without", _bullets(COMPONENTS[name] for name in rule.components)
        ),
        _section("Looks like, but is not", _bullets(looks_like)),
        _section(
            "Told together with",
            _bullets(f"{other.cause}, as {other.feature} says; {other.tells_apart}" for other in rule.alternatives),
        ),
        _section("False positives", _wrap(rule.false_positives, "  ")),
        _section("How to make sure", _wrap(rule.check, "  ")),
        _section("How to make sure on CPUs", _wrap(rule.check_cpu, "  ")),
        _section("What to do", [line for fix in rule.fixes for line in _fix(fix.fix, fix.summary, fix.how)]),
        _section(
            "Cases beside it",
            [line for case in rule.tests for line in _case(case.name, case.features, fires=case.fires)],
        ),
        _section("Source", _wrap(rule.source, "  ")),
        _section("File", [f"  {rule.path}"]),
    ]
    return "\n\n".join(part for part in parts if part) + "\n"


def _section(title: str, lines: Sequence[str]) -> str:
    """Put a title above some lines; nothing where there are none."""
    return "\n".join([title, *lines]) if lines else ""


def _wrap(text: str, indent: str = "", first: str | None = None) -> list[str]:
    """Break a text at blanks only, so that options and names can be copied."""
    return textwrap.wrap(
        text,
        WIDTH,
        initial_indent=indent if first is None else first,
        subsequent_indent=indent,
        break_long_words=False,
        break_on_hyphens=False,
    )


def _bullets(texts: Iterable[str]) -> list[str]:
    """Write a list."""
    return [line for text in texts for line in _wrap(text, "    ", "  - ")]


def _conditions(group: Group, features: Mapping[str, str], indent: str) -> list[str]:
    """Write the conditions of a group, and those of the groups within it further in."""
    lines: list[str] = []
    for part in group.parts:
        if isinstance(part, Condition):
            lines += _condition(part, features, indent)
        else:
            lines += [f"{indent}- {_GROUPS[part.kind]}:", *_conditions(part, features, indent + "  ")]
    return lines


def _condition(condition: Condition, features: Mapping[str, str], indent: str) -> list[str]:
    """Write a condition with what it measures, where its threshold comes from, and what it says."""
    lines = [f"{indent}- {condition.feature} is {COMPARISONS[condition.comparison]} {condition.threshold:g}"]
    for label, text in (
        ("reads as", features.get(condition.feature, "")),
        ("from", condition.origin),
        ("says", condition.says),
    ):
        if text:
            lines += _wrap(f"{label}: {text}", f"{indent}      ", f"{indent}    ")
    return lines


def _fix(name: str, summary: str, how: str) -> list[str]:
    """Write a fix."""
    return [*_wrap(f"{name}: {summary}", "    ", "  - "), *(_wrap(how, "    ") if how else [])]


def _case(name: str, features: Mapping[str, float | None], *, fires: bool) -> list[str]:
    """Write a case beside a rule, no feature parted from its value."""
    values = [f"{key}{_GLUE}{'null' if value is None else f'{value:g}'}" for key, value in features.items()]
    lines = [*_wrap(f"{'fires' if fires else 'silent'}: {name}", "    ", "  - "), *_wrap(", ".join(values), "    ")]
    return [line.replace(_GLUE, " ") for line in lines]


def tabulate_rules(rules: Iterable[Rule]) -> str:
    """Write one line a rule: id, title, status, who acts, severity, number of cases, and where it comes from."""
    cells = [["id", "title", "status", "who acts", "severity", "tests", "from"]]
    for rule in rules:
        folder = Path(rule.path).parent
        origin = "built-in" if folder == built_in_rules() else str(folder)
        cells.append([rule.id, rule.title, rule.status, rule.who, rule.severity or "-", str(len(rule.tests)), origin])
    widths = [max(len(row[i]) for row in cells) for i in range(len(cells[0]))]
    return "".join(
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() + "\n" for row in cells
    )
