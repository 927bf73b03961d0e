"""The summary of a triage as a page of text, or as one JSON object.

Enters: a `Night`. Leaves: text that reads at any width from 40 columns, with or without colour.
"""

from collections.abc import Iterator

from rich.console import Console, RenderableType
from rich.table import Table
from rich.text import Text

from diagnose.model.night import Headway, Night
from diagnose.report.escape import escape
from diagnose.report.json_lines import to_json
from diagnose.report.layout import draw, draw_facts, print_sections

#: Failed jobs listed on the page; the JSON has all.
N_FAILED = 20


def render(night: Night, *, width: int, color: bool) -> str:
    """Write the summary of a triage as a page.

    Parameters
    ----------
    night : Night
    width : int
        Columns, at least 40.
    color : bool
        With ANSI colours.
    """

    def write(console: Console) -> None:
        console.print(_headline(night), style="bold")
        console.print()
        console.print(draw_facts([(name, Text(text)) for name, text in _counts(night)]))
        console.print()
        print_sections(console, _sections(night))

    return draw(write, width=width, color=color)


def render_json(night: Night) -> str:
    """Write the summary as one JSON object on one line, without the line end."""
    return to_json(night.to_dict())


def describe_progress(headway: Headway) -> str:
    """Say in a few words how far a triage has come.

    >>> describe_progress(Headway(n_jobs=300, n_done=60, n_failed=2, n_running=4, took_s=30.0))
    '60 of 300 jobs, 2 failed, 4 in work, 2.0 a second, 2 min left'
    """
    parts = [f"{headway.n_done:,} of {headway.n_jobs:,} jobs"]
    if headway.n_failed:
        parts.append(f"{headway.n_failed:,} failed")
    parts.append(f"{headway.n_running} in work")
    if headway.remaining_s is not None:
        parts += [f"{headway.rate:.1f} a second", f"{_duration(headway.remaining_s)} left"]
    return ", ".join(parts)


def _headline(night: Night) -> Text:
    """Say in one line what came of it."""
    if night.wanted:
        return Text(f"{_count(night.n_left)} would be diagnosed; nothing was done")
    done = f"{_count(night.n_diagnosed)} diagnosed"
    return Text(f"{done}, {night.n_failed:,} failed" if night.n_failed else done)


def _counts(night: Night) -> Iterator[tuple[str, str]]:
    """Say where all jobs went."""
    yield "Found", _count(night.n_found)
    if night.by_verdict:
        yield "Verdicts", ", ".join(f"{n:,} {verdict}" for verdict, n in night.by_verdict.items())
        yield "GPU hours", f"{night.gpu_hours_analysed:,.1f} analysed, {night.gpu_hours_wasted:,.1f} wasted"
    if night.n_known:
        how = (
            f"{night.n_known:,} unchanged and not done again: {night.n_known_by_time:,} by size and time of their files"
        )
        how += (
            f", {night.n_known - night.n_known_by_time:,} by their content"
            if night.n_known > night.n_known_by_time
            else ""
        )
        how += f"; {night.n_known_failed:,} had failed (--retry-failed)" if night.n_known_failed else ""
        yield "Known", how
    if night.n_elsewhere:
        yield "Elsewhere", f"{night.n_elsewhere:,} done or in work by another triage"
    if night.n_older:
        yield "Older", f"{night.n_older:,} older than --since"
    if night.n_left:
        yield "Left", f"{night.n_left:,} left for another time"
    yield "Store", escape(night.store) or "none yet"
    if night.n_diagnosed + night.n_failed:
        rate = (night.n_diagnosed + night.n_failed) / night.took_s if night.took_s else 0.0
        yield "Time", f"{_duration(night.took_s)}, {rate:.2g} jobs a second, store {night.store_s / night.took_s:.1%}"


def _sections(night: Night) -> Iterator[tuple[str, RenderableType]]:
    """Give the lists below the counts."""
    if night.costly:
        table = Table.grid(padding=(0, 2))
        for job in night.costly:
            table.add_row(
                Text(f"{job.gpu_hours_wasted:,.2f}", justify="right"),
                Text(escape(job.job_id), overflow="fold"),
                Text(f"S {job.slowdown:.2f}"),
                Text(escape(job.cause or "")),
            )
        yield "Most GPU hours wasted", table
    if night.failed:
        lines = Table.grid()
        for failed in night.failed[:N_FAILED]:
            reason = failed.reason.removeprefix(f"{failed.location}: ")
            lines.add_row(Text(f"{escape(failed.location)}: {escape(reason)}", overflow="fold"))
        if len(night.failed) > N_FAILED:
            lines.add_row(Text(f"and {len(night.failed) - N_FAILED:,} more: --format json lists all"))
        yield "Failed", lines
    if night.wanted:
        lines = Table.grid()
        for location in night.wanted:
            lines.add_row(Text(escape(location), overflow="fold"))
        yield "Would be diagnosed", lines


def _duration(seconds: float) -> str:
    """Write a time in the unit that suits.

    >>> _duration(4.21), _duration(120), _duration(9000)
    ('4.2 s', '2 min', '2.5 h')
    """
    if seconds < 100:
        return f"{seconds:.1f} s"
    return f"{seconds / 60:.0f} min" if seconds < 6000 else f"{seconds / 3600:.1f} h"


def _count(n: int) -> str:
    """Write a number of jobs."""
    return "1 job" if n == 1 else f"{n:,} jobs"
