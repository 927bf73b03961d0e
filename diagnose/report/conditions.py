"""The conditions of a rule with what was found, as a tree of text.

Enters: a `CheckedGroup`. Leaves: a table for a page of text, user strings escaped.
"""

from collections.abc import Iterator

from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from diagnose.model.explanation import Checked, CheckedGroup
from diagnose.report.escape import escape, prose
from diagnose.report.layout import make_grid

#: How a condition turned out, in words and colour.
_OUTCOMES = {True: ("holds", "green"), False: ("does not hold", "red"), None: ("cannot be said", "yellow")}


def draw_conditions(group: CheckedGroup, *, brief: bool = False) -> Table:
    """Draw the conditions of a rule as a tree, how each turned out before it; where brief, without where thresholds are from."""
    table = make_grid("mark", "text")
    for holds, body, depth in _branches(group, 0, brief=brief):
        word, style = _OUTCOMES[holds]
        table.add_row(Text(word, style=style), Padding(body, (0, 0, 0, 2 * depth)))
    return table


def _branches(group: CheckedGroup, depth: int, *, brief: bool) -> Iterator[tuple[bool | None, RenderableType, int]]:
    """Give a group, and all below it, each with how it turned out and how far in it stands."""
    yield group.holds, Text(f"{group.kind} of:"), depth
    for part in group.parts:
        if isinstance(part, CheckedGroup):
            yield from _branches(part, depth + 1, brief=brief)
        else:
            yield part.holds, _about_condition(part, brief=brief), depth + 1


def _about_condition(part: Checked, *, brief: bool) -> RenderableType:
    """Say what a condition asks for, what was found, what it bears out, and where its threshold is from."""
    found = f"it is {format_number(part.value)}" if part.value is not None else f"not measured: {prose(part.reason)}"
    lines = [Text(f"{escape(part.feature)} {describe_wanted(part)}: {found}")]
    if part.says and not brief:
        lines.append(Text(f"so {prose(part.says)}"))
    if part.origin and not brief:
        lines.append(Text(f"threshold from: {prose(part.origin)}", style="dim"))
    return Group(*lines)


def describe_wanted(part: Checked) -> str:
    """Say what a condition asks for."""
    return f"{part.comparison.replace('_', ' ')} {part.threshold:g}"


def format_number(value: float) -> str:
    """Write a value to three digits, thousands in full.

    >>> format_number(0.12345), format_number(1234.5), format_number(-0.0)
    ('0.123', '1,234', '0')
    """
    if abs(value) >= 1000:
        return f"{value:,.0f}"
    return f"{value:z.3g}" if abs(value) >= 1e-4 or not value else f"{value:.1e}"
