"""The page that people see first: it fits a screen of 80 columns and 24 lines, whatever the job. `terminal` draws the long one.

Enters: a `Diagnosis`. Leaves: text that reads at any width from 40 columns, with or without colour; a command is never broken.
"""

import itertools
import math
from collections.abc import Sequence

from rich.cells import cell_len
from rich.console import Console
from rich.text import Text

from diagnose.model.diagnosis import Diagnosis
from diagnose.report.escape import escape, name
from diagnose.report.gist import MOST_CAUSES, Row, describe_pace, list_commands, list_rows
from diagnose.report.layout import PROSE_WIDTH, draw
from diagnose.report.styles import SEVERITY_STYLES, VERDICT_STYLES

#: Lines of a page at 80 columns: a prompt fits below.
MOST_LINES = 22
#: Columns that `Row.n_lines` is counted at.
_USUAL_WIDTH = 80
_STYLES = {"Do": "bold", "If so": "bold", "Note": "dim"}
#: Columns of a job's name in the headline.
_MOST_NAME = 32
_GAP = 2
#: Columns of labels.
_INDENT = 8


def render(
    diagnosis: Diagnosis,
    *,
    width: int,
    color: bool,
    path: str | None = None,
    links: Sequence[tuple[str, str]] = (),
) -> str:
    """Write the gist of a diagnosis; `path` is what the user called the job by, `links` what else was written of it, and where."""
    columns = min(width, PROSE_WIDTH)

    rest = [*list_commands(diagnosis, path), *(Row(name(what), escape(where), n_lines=99) for what, where in links)]

    def write(console: Console) -> None:
        headline = _headline(diagnosis, columns, console)
        for n_causes, is_tight in itertools.product(range(MOST_CAUSES, 0, -1), (False, True)):
            rows = [*list_rows(diagnosis, n_causes, is_tight=is_tight), *rest]
            laid = [_lay_out(row, columns, console) for row in rows]
            spare = MOST_LINES - len(headline) - sum(map(len, laid))
            if spare >= 0:
                break
        for n, row in enumerate(rows):  # no sentence is cut while there is room
            if spare > 0 and not row.result:
                longer = _lay_out(row, columns, console, spare - bool(row.aside))  # which may get a line of its own
                spare -= len(longer) - len(laid[n])
                laid[n] = longer
        for line in (*headline, *itertools.chain.from_iterable(laid)):
            console.print(line, no_wrap=True, overflow="ignore", crop=False)

    return draw(write, width=width, color=color)


def _headline(diagnosis: Diagnosis, columns: int, console: Console) -> list[Text]:
    """Say which job, the verdict, and how slow it is."""
    job = name(diagnosis.job.job_id) or "job"
    if cell_len(job) > _MOST_NAME:
        job = f"{job[: _MOST_NAME // 2 - 1]}…{job[-(_MOST_NAME // 2) :]}"
    verdict = (f"  {escape(diagnosis.verdict).upper()}", VERDICT_STYLES.get(diagnosis.verdict, "bold"))
    first = Text.assemble((job, "bold"), verdict)
    pace = Text(describe_pace(diagnosis), style="bold")
    if first.cell_len + _GAP + pace.cell_len <= columns:
        return [first.append(" " * _GAP).append_text(pace)]
    return [*_wrap(first, columns, 2, console), *_wrap(pace, columns, 2, console)]


def _lay_out(row: Row, columns: int, console: Console, spare: int = 0) -> list[Text]:
    """Lay out a row: its label, the text beside it, and what stands at the right; so many lines are to spare."""
    indent = max(_INDENT, cell_len(row.label) + 1)
    room = columns - indent
    style = _STYLES.get(row.label, "") if row.severity is None else SEVERITY_STYLES.get(row.severity, "bold")
    text = row.text
    for extra in row.extras:
        if len(Text(f"{text}; {extra}").wrap(console, room)) <= row.n_lines:
            text = f"{text}; {extra}"
    if row.result:
        text = _shorten_before(row.result, text, room, _most_lines(row.n_lines, room), console)
    lines = (
        [Text(text, style=style)]
        if row.is_command
        else _wrap(Text(text, style=style), room, row.n_lines, console, spare)
    )
    if row.aside:
        last = cell_len(lines[-1].plain)
        if last + _GAP + cell_len(row.aside) <= room:
            lines[-1] = Text.assemble(lines[-1], " " * (room - last - cell_len(row.aside)), row.aside)
        else:
            lines += _wrap(Text(row.aside), room, 1, console)
    return [Text.assemble(((row.label if n == 0 else "").ljust(indent), "dim"), line) for n, line in enumerate(lines)]


def _shorten_before(result: str, text: str, columns: int, most: int, console: Console) -> str:
    """Leave out the last words of a text so that its result fits behind."""
    parts = text.split(" ")
    said = f"{text}{result}"
    for n in range(len(parts) - 1, 0, -1):
        if len(Text(said).wrap(console, columns, overflow="fold")) <= most:
            break
        said = f"{' '.join(parts[:n]).rstrip(',;:')} …{result}"
    return said


def _wrap(text: Text, columns: int, n_lines: int, console: Console, spare: int = 0) -> list[Text]:
    """Break a text into lines; what is longer than so many lines at 80 columns, and those to spare, ends in a mark."""
    most = _most_lines(n_lines, columns) + spare
    lines = list(text.wrap(console, columns, overflow="fold"))
    for line in lines:
        line.rstrip()
    if len(lines) <= most:
        return lines
    last = lines[most - 1]
    last.truncate(columns - 1)
    return [*lines[: most - 1], last.append("…")]


def _most_lines(n_lines: int, columns: int) -> int:
    """Say how many lines take what so many take at 80 columns."""
    usual = _USUAL_WIDTH - _INDENT
    return math.ceil(n_lines * usual / columns) if columns < usual else n_lines
