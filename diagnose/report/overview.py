"""What several jobs end with: a table of them, the one that loses most first.

Enters: diagnoses, and the jobs that could not be read. Leaves: text that reads at any width from 40 columns.
"""

import dataclasses
from collections.abc import Iterable

from rich.text import Text

from diagnose.model.diagnosis import Diagnosis
from diagnose.report import gist, markdown, words
from diagnose.report.escape import escape, name
from diagnose.report.layout import PROSE_WIDTH, draw, make_grid
from diagnose.report.styles import VERDICT_STYLES

#: Columns of the title of each column.
_HEAD = ("job", "verdict", "slower", "GPU h/day", "cause")


@dataclasses.dataclass(frozen=True, slots=True)
class JobInBrief:
    """A job as a line of the table: all that is kept of it. `hours_a_day` are GPU hours lost; None where not known."""

    job: str
    verdict: str
    slower: str
    hours_a_day: float | None
    cause: str


def sum_up(diagnosis: Diagnosis) -> JobInBrief:
    """Keep of a job what the table says."""
    is_slow = diagnosis.verdict == "straggling"
    recorded, without_s = diagnosis.step_time.recorded, diagnosis.without_named_s
    return JobInBrief(
        job=name(diagnosis.job.job_id) or "job",
        verdict=escape(diagnosis.verdict),
        slower=words.slower(recorded / without_s) if is_slow and without_s is not None else "",
        hours_a_day=gist.hours_lost_a_day(diagnosis) if is_slow else None,
        cause=gist.name_causes(diagnosis.told, diagnosis.shape),
    )


def fail(job: str) -> JobInBrief:
    """Give the line of a job that could not be diagnosed."""
    return JobInBrief(name(job), "not read", "", None, "")


def render(jobs: Iterable[JobInBrief], *, width: int, color: bool) -> str:
    """Write the table."""
    table = make_grid("text", "mark", "number", "number", "text")
    table.add_row(*(Text(head, style="dim") for head in _HEAD))
    for job in sorted(jobs, key=_rank):
        hours = "" if job.hours_a_day is None else words.hours(job.hours_a_day)
        table.add_row(
            job.job, Text(job.verdict, style=VERDICT_STYLES.get(job.verdict, "")), job.slower, hours, job.cause
        )
    return draw(lambda console: console.print(table), width=min(width, PROSE_WIDTH), color=color)


def render_markdown(jobs: Iterable[JobInBrief]) -> str:
    """Write the table as Markdown."""
    rows = [
        [
            markdown.code(job.job),
            job.verdict,
            job.slower,
            "" if job.hours_a_day is None else words.hours(job.hours_a_day),
            markdown.text(job.cause),
        ]
        for job in sorted(jobs, key=_rank)
    ]
    return f"## {len(rows)} jobs\n\n{markdown.table(_HEAD, rows)}\n"


def _rank(job: JobInBrief) -> tuple[int, float, str]:
    """Put jobs that straggle first, those that lose most GPU hours a day before others, healthy ones last."""
    order = ["straggling", "noisy", "inconclusive", "not read"]
    return order.index(job.verdict) if job.verdict in order else len(order), -(job.hours_a_day or 0.0), job.job
