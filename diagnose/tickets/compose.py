"""Write the ticket of a finding: what a person needs to act, and a program to file it.

Enters: findings, who knows of them, and the store with their jobs. Leaves: a `Ticket` each.
"""

import dataclasses
import json
from collections.abc import Iterable

import msgspec

from diagnose.model.cause import Cause, KeptCause
from diagnose.model.job_names import tell_apart
from diagnose.model.pages import page_path
from diagnose.model.place import Where
from diagnose.model.ticket import Ack, Finding, JobWithFinding, Ticket
from diagnose.report import words
from diagnose.report.escape import name, prose
from diagnose.triage.findings import jobs_with
from diagnose.triage.store import Store

#: Jobs listed in a ticket; it counts the others.
MOST_JOBS = 20
#: Jobs named to people.
MOST_NAMED = 5


def compose(store: Store, findings: Iterable[Finding], acks: dict[str, Ack], site: str | None) -> list[Ticket]:
    """Write tickets in the order of the findings; `site` is the address of the fleet's site, to link to."""
    wanted = list(findings)
    jobs = jobs_with(store, [finding.fingerprint for finding in wanted], MOST_JOBS)
    return [
        _compose_one(finding, acks.get(finding.fingerprint), jobs.get(finding.fingerprint, (0, [])), site)
        for finding in wanted
    ]


def _compose_one(finding: Finding, ack: Ack | None, jobs: tuple[int, list[JobWithFinding]], site: str | None) -> Ticket:
    """Write one ticket."""
    try:
        particulars = msgspec.convert(json.loads(finding.particulars), KeptCause)
    except (
        msgspec.ValidationError,
        UnicodeEncodeError,
    ):  # none are kept, or no longer those of a cause: the ticket goes without them
        particulars = None
    n_jobs, first = jobs
    linked = tuple(dataclasses.replace(job, report=_link(site, job)) for job in first)
    report = next((job.report for job in linked if job.location == finding.worst_location), None)
    return Ticket(
        finding=finding,
        ack=ack,
        title=(title := write_title(finding, particulars)),
        summary=summarize(finding, title),
        particulars=particulars,
        n_jobs=n_jobs,
        jobs=linked,
        report=report or next((job.report for job in linked), None),
    )


def write_title(finding: Finding, particulars: Cause | None) -> str:
    """Say the job, the cause, its place, and how many times as long steps take for it; safe to show."""
    said = f"{name(finding.name or '') or 'a job'}: {prose(finding.title)}"
    if finding.machine is not None:
        said += f" on {name(finding.machine)}"
    elif particulars is not None and particulars.where != Where():
        said += f" {words.spot(particulars.where)}"
    if particulars is None or not 0 < particulars.recoverable < 1:  # a job that hangs has no steps
        return said
    return f"{said}, steps {words.times(1 / (1 - particulars.recoverable))}"


def summarize(finding: Finding, title: str) -> str:
    """Give the first line of a ticket: how severe it is, its title, and what it costs."""
    severe = f"{name(finding.severity.upper())} " if finding.severity else ""
    lost = finding.gpu_hours_lost_per_day
    return f"{severe}{title}" + ("" if lost is None else f"; {words.hours(lost)} GPU hours a day")


def _link(site: str | None, job: JobWithFinding) -> str | None:
    """Give the address of a job's page."""
    return None if site is None else f"{site.rstrip('/')}/{page_path(job.job_id or '', job.location)}"


def describe(ticket: Ticket) -> list[str]:
    """Say in lines for people what a ticket says; safe to show, whatever names it holds."""
    finding = ticket.finding
    lost = finding.gpu_hours_lost_per_day
    lines = [] if lost is None else [f"Loses {words.hours(lost)} GPU hours a day while its jobs run."]
    lines.append(f"Confidence {words.confidence(finding.confidence)}; seen in {words.count(finding.n_seen, 'run')}.")
    if finding.fixed_because is not None:
        lines.append(f"Fixed: {prose(finding.fixed_because)}.")
    if finding.who:
        lines.append(f"Who acts: {name(finding.who)}" + (f" ({name(finding.owner)})" if finding.owner else ""))
    if ticket.particulars is not None:
        lines += [f"- {prose(item.text)}" for item in ticket.particulars.evidence]
        lines += [f"What to do: {prose(fix.summary)}" for fix in ticket.particulars.fixes[:1]]
    names = tell_apart((job.location, job.job_id or "") for job in ticket.jobs[:MOST_NAMED])
    lines += [f"Job: {name(called)}" for called in names.values()]
    left = ticket.n_jobs - min(len(ticket.jobs), MOST_NAMED)
    lines += [f"and {words.count(left, 'more job')}"] if left > 0 else []
    lines += [f"Report: {ticket.report}"] if ticket.report else []
    return lines
