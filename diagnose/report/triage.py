"""The summary of a triage as a page of text, or as one JSON object.

Enters: a `TriageRun`. Leaves: text that reads at any width from 40 columns, with or without colour.
"""

from collections.abc import Iterator

from rich.console import Console, RenderableType
from rich.table import Table
from rich.text import Text

from diagnose.model.job_names import tell_apart
from diagnose.model.plain import to_json
from diagnose.model.triage_run import Progress, TriageRun
from diagnose.report import words
from diagnose.report.escape import escape
from diagnose.report.layout import draw, draw_facts, print_sections

#: Failed jobs listed on the page; the JSON has all.
N_FAILED = 20


def render(run: TriageRun, *, width: int, color: bool) -> str:
    """Write the summary of a triage as a page."""

    def write(console: Console) -> None:
        console.print(_headline(run), style="bold")
        console.print()
        console.print(draw_facts(_counts(run)))
        console.print()
        print_sections(console, _sections(run))

    return draw(write, width=width, color=color)


def render_json(run: TriageRun) -> str:
    """Write the summary as one JSON object on one line, without the line end."""
    return to_json(run.to_dict())


def describe_progress(progress: Progress) -> str:
    """Say in a few words how far a triage has come.

    >>> describe_progress(Progress(n_jobs=300, n_done=60, n_failed=2, n_running=4, took_s=30.0))
    '60 of 300 jobs, 2 failed, 4 in work, 2.0 a second, 2 min left'
    """
    parts = [f"{progress.n_done:,} of {progress.n_jobs:,} jobs"]
    if progress.n_failed:
        parts.append(f"{progress.n_failed:,} failed")
    parts.append(f"{progress.n_running} in work")
    if progress.remaining_s is not None:
        parts += [f"{progress.rate:.1f} a second", f"{_duration(progress.remaining_s)} left"]
    return ", ".join(parts)


def _headline(run: TriageRun) -> Text:
    """Say in one line what came of it."""
    if run.wanted:
        return Text(f"{words.count(run.n_left, 'job')} would be diagnosed; nothing was done")
    done = f"{words.count(run.n_diagnosed, 'job')} diagnosed"
    return Text(f"{done}, {run.n_failed:,} failed" if run.n_failed else done)


def _counts(run: TriageRun) -> Iterator[tuple[str, str]]:
    """Say where all jobs went."""
    yield "Found", words.count(run.n_found, "job")
    if run.n_logs:
        yield (
            "Logs",
            f"{words.count(run.n_logs, 'file')} that may be training logs left out: name them, as 'FOLDER/*.log'",
        )
    if run.by_verdict:
        yield "Verdicts", ", ".join(f"{n:,} {verdict}" for verdict, n in run.by_verdict.items())
        n_out = run.by_verdict.get("inconclusive", 0)
        left_out = f"; {words.count(n_out, 'inconclusive job')} left out" if n_out else ""
        yield (
            "GPU hours",
            f"{words.hours(run.gpu_hours_analysed)} analysed, {words.hours(run.gpu_hours_wasted)} wasted{left_out}",
        )
    if run.n_known:
        how = f"{run.n_known:,} unchanged and not done again: {run.n_known_by_time:,} by size and time of their files"
        how += f", {run.n_known - run.n_known_by_time:,} by their content" if run.n_known > run.n_known_by_time else ""
        how += f"; {run.n_known_failed:,} had failed (--retry-failed)" if run.n_known_failed else ""
        yield "Known", how
    if run.n_elsewhere:
        yield "Elsewhere", f"{run.n_elsewhere:,} done or in work by another triage"
    if run.n_older:
        yield "Older", f"{run.n_older:,} older than --since"
    if run.n_left:
        yield "Left", f"{run.n_left:,} left for another time"
    yield "Store", escape(run.store) or "none yet"
    if run.n_diagnosed + run.n_failed and run.took_s > 0:  # a dry run takes none
        rate = (run.n_diagnosed + run.n_failed) / run.took_s
        yield "Time", f"{_duration(run.took_s)}, {rate:.2g} jobs a second, store {run.store_s / run.took_s:.1%}"


def _sections(run: TriageRun) -> Iterator[tuple[str, RenderableType]]:
    """Give the lists below the counts."""
    if run.costly:
        table = Table.grid(padding=(0, 2))
        names = tell_apart((job.location, job.job_id) for job in run.costly)
        for job in run.costly:
            table.add_row(
                Text(words.hours(job.gpu_hours_wasted), justify="right"),
                Text(escape(names[job.location]), overflow="fold"),
                Text("" if job.slower is None else f"{words.times(job.slower)} slower"),
                Text(escape(job.cause or "")),
            )
        yield "Most GPU hours wasted", table
    if run.failed:
        lines = [
            f"{escape(failed.location)}: {escape(failed.reason.removeprefix(f'{failed.location}: '))}"
            for failed in run.failed[:N_FAILED]
        ]
        if len(run.failed) > N_FAILED:
            lines.append(f"and {len(run.failed) - N_FAILED:,} more: --format json lists all")
        yield "Failed", Text("\n".join(lines), overflow="fold")
    if run.wanted:
        yield "Would be diagnosed", Text("\n".join(map(escape, run.wanted)), overflow="fold")


def _duration(seconds: float) -> str:
    """Write a time in the unit that suits.

    >>> _duration(4.21), _duration(120), _duration(9000)
    ('4.2 s', '2 min', '2.5 h')
    """
    if seconds < 100:
        return f"{seconds:.1f} s"
    return f"{seconds / 60:.0f} min" if seconds < 6000 else f"{seconds / 3600:.1f} h"
