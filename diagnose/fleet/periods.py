"""What is new, worse, back, the same or gone since the night before, fault by fault.

Enters: jobs, each with the night it came in. Leaves: findings. A fault is a fingerprint: the same cause at the same place of one
job, whichever run, or on one host, whichever job.
"""

from collections import defaultdict
from collections.abc import Sequence

from diagnose.model.fingerprint import sum_losses
from diagnose.model.fleet import FleetCause, FleetJob
from diagnose.model.fleet_document import STATES, Finding, LastNight, State

#: A fault is worse when it costs so much more of the step time; less is not even reported as a cause.
WORSE_BY = 0.02

_Occurrence = tuple[FleetJob, FleetCause]


def compare_periods(jobs: Sequence[FleetJob], *, until_s: float, period_s: float) -> LastNight:
    """Compare the period up to `until_s`, seconds since 1970, with the one before, by the jobs whose figures count.

    Findings come by state, as `STATES` has them, then by GPU hours lost.
    """
    began_s = until_s - period_s
    now = [job for job in jobs if began_s < job.night_s <= until_s]
    before = [job for job in jobs if began_s - period_s < job.night_s <= began_s]
    earlier = [job for job in jobs if job.night_s <= began_s - period_s]
    seen_now, seen_before, seen_earlier = _occurrences(now), _occurrences(before), _occurrences(earlier)
    findings = []
    for fingerprint in seen_now.keys() | seen_before.keys():
        occurrences = [seen.get(fingerprint, []) for seen in (seen_now, seen_before, seen_earlier)]
        findings.append(_find(fingerprint, now, *occurrences))
    return LastNight(
        until_s=until_s,
        hours=period_s / 3600.0,
        n_now=len(now),
        n_before=len(before),
        n_earlier=len(earlier),
        findings=tuple(
            sorted(findings, key=lambda entry: (STATES.index(entry.state), -entry.hours_wasted, entry.fingerprint))
        ),
    )


def _occurrences(jobs: Sequence[FleetJob]) -> dict[str, list[_Occurrence]]:
    """Give the jobs that have each fault."""
    found: dict[str, list[_Occurrence]] = defaultdict(list)
    for job in jobs:
        for cause in job.causes:
            if cause.is_over:
                continue
            found[cause.fingerprint].append((job, cause))
    return found


def _find(
    fingerprint: str,
    jobs_now: Sequence[FleetJob],
    now: list[_Occurrence],
    before: list[_Occurrence],
    earlier: list[_Occurrence],
) -> Finding:
    """Say what became of one fault."""
    latest = now or before
    job, cause = max(latest, key=lambda occurrence: (occurrence[0].lost_to(occurrence[1]), occurrence[0].location))
    cost_now, cost_before = _mean_cost(now), _mean_cost(before)
    note = "" if now else _why_unseen(job, cause, jobs_now)
    state: State
    if not now:
        state = "unseen" if note else "gone"
    elif cost_now is not None and cost_before is not None:
        state = "worse" if cost_now - cost_before >= WORSE_BY else "recurring"
    else:
        state = "back" if earlier else "new"
    return Finding(
        state=state,
        fingerprint=fingerprint,
        cause=cause.cause,
        title=cause.title,
        where=cause.where,
        n_now=_n_jobs(now),
        n_before=_n_jobs(before),
        recoverable_now=cost_now,
        recoverable_before=cost_before,
        hours_wasted=sum(one.lost_to(seen) for one, seen in latest),
        gpu_hours_lost_per_day=_loses_a_day([*now, *before, *earlier]),
        first_seen_s=min(one.when_s for one, _ in (*now, *before, *earlier)),
        location=job.location,
        job_id=job.job_id,
        owner=job.owner,
        note=note or None,
    )


def _n_jobs(occurrences: list[_Occurrence]) -> int:
    """Count the jobs that have a fault."""
    return len({job.location for job, _ in occurrences})


def _loses_a_day(occurrences: list[_Occurrence]) -> float | None:
    """Give the GPU hours that a fault loses a day over all jobs that have it; a cause further up in a report counts."""
    first: dict[str, _Occurrence] = {}
    for job, cause in occurrences:
        first.setdefault(job.location, (job, cause))
    return sum_losses((job.family, job.night_s, job.loses_a_day(cause)) for job, cause in first.values())


def _mean_cost(occurrences: list[_Occurrence]) -> float | None:
    """Give the mean part of the step time that a fault costs; None where it is not seen."""
    return sum(cause.recoverable for _, cause in occurrences) / len(occurrences) if occurrences else None


def _why_unseen(job: FleetJob, cause: FleetCause, jobs_now: Sequence[FleetJob]) -> str:
    """Say why nobody can know whether a fault is gone; empty where its jobs ran and do not have it."""
    machine = cause.machine
    if machine is None:
        alike, said = [other for other in jobs_now if other.family == job.family], "this job did not run"
    else:
        alike, said = [other for other in jobs_now if machine in (other.hosts or ())], f"no job ran on {machine}"
    if not alike:
        return said
    return "no run of it lets anyone look for it" if all(cause.cause in other.unseen for other in alike) else ""
