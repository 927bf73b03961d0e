"""Fixes priced by hand as a page of text, or as one JSON object.

Enters: a `HandPrices`. Leaves: text that reads at any width from 40 columns, with or without colour.
"""

from rich.console import Console
from rich.padding import Padding
from rich.text import Text

from diagnose.model.plain import to_json
from diagnose.model.priced import HandFixPrice, HandPrices
from diagnose.report import words
from diagnose.report.escape import escape, prose
from diagnose.report.layout import PROSE_WIDTH, draw, make_grid
from diagnose.report.terminal import fix_lines


def render(found: HandPrices, *, width: int, color: bool) -> str:
    """Write what was priced as a page for a terminal or a plain file."""

    def write(console: Console) -> None:
        console.print(Text(f"What if: {escape(found.job_id)}", style="bold"))
        console.print()
        before = f"{words.seconds(found.recorded_s)} a step as recorded"
        console.print(before + f" (the replay misses it by {words.percent(found.replay_error)})")
        for n, one in enumerate(found.asked):
            _print_one(console, one, is_first=n == 0)
        console.print()
        if all(one.fix is None for one in found.asked):
            console.print(Text("nothing of this is for this job: steps stay as they are", style="bold yellow"))
            return
        together = f"{words.seconds(found.predicted_s)} a step with all of it, {words.speedup(found.speedup)}"
        console.print(Text(together, style="bold green"))

    return draw(write, width=min(width, PROSE_WIDTH), color=color)


def _print_one(console: Console, one: HandFixPrice, *, is_first: bool) -> None:
    """Print one fix with its price alone and after those before it."""
    console.print()
    console.print(Text(escape(one.text), style="bold"))
    table = make_grid("text", gap=1)
    if one.fix is None:
        table.add_row(Text(f"not for this job: {prose(one.refused or '')}", style="yellow"))
    else:
        for line in fix_lines(one.fix):
            table.add_row(line)
        if not is_first:
            after = words.pace(one.after_step_time, one.after_speedup)
            table.add_row(Text(f"after those before it: {after}", style="green"))
    console.print(Padding(table, (0, 0, 0, 2)))


def render_json(found: HandPrices) -> str:
    """Write what was priced as one JSON object on one line, without the line end; ASCII."""
    return to_json(found.to_dict())
