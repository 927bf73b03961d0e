"""What lost GPU hours add up to: over all jobs, and by what jobs have in common.

Enters: jobs. Leaves: totals, their budget and slices. Lost time is shared out, never counted twice: each set of slices sums to the
fleet's.
"""

import math
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Sequence

from diagnose.model.fleet import FleetJob
from diagnose.model.fleet_document import FleetBudget, Gap, Slice, Totals

INCONCLUSIVE = "inconclusive"


def add_up(jobs: Sequence[FleetJob]) -> Totals:
    """Count jobs, and sum the GPU hours of those whose figures count."""
    counted = [job for job in jobs if job.counts]
    verdicts = Counter(job.verdict for job in jobs if job.failure is None)
    return Totals(
        n_jobs=len(jobs),
        n_counted=len(counted),
        n_straggling=verdicts["straggling"],
        n_healthy=verdicts["healthy"],
        n_noisy=verdicts["noisy"],
        n_inconclusive=verdicts[INCONCLUSIVE],
        n_failed=sum(job.failure is not None for job in jobs),
        hours_analysed=_sum(job.hours_analysed for job in counted),
        hours_wasted=_sum(job.hours_wasted for job in counted),
        hours_recoverable=_sum(job.hours_recoverable for job in counted),
        n_unpriced=sum(job.hours_recoverable is None for job in counted),
    )


def add_up_budgets(jobs: Sequence[FleetJob]) -> FleetBudget | None:
    """Add up the budgets of jobs that have one, each weighted by its GPU hours; None where none has."""
    counted = [(job.budget, job.hours_analysed) for job in jobs if job.budget is not None and job.hours_analysed]
    if not counted:
        return None
    parts, lost = defaultdict[str, list[float]](list), defaultdict[str, list[float]](list)
    for budget, hours in counted:
        for found, shares in ((parts, budget.measured()), (lost, budget.lost)):
            for name, share in shares.items():
                found[name].append(share * hours)
    return FleetBudget(
        n_jobs=len(counted),
        hours_analysed=math.fsum(hours for _, hours in counted),
        parts={name: math.fsum(parts[name]) for name in budget.PARTS if name in parts},
        lost={name: math.fsum(values) for name, values in sorted(lost.items())},
    )


def slice_all(jobs: Sequence[FleetJob]) -> dict[str, tuple[Slice, ...]]:
    """Slice the lost time of jobs that count in every way: `Fleet.by`."""
    counted = [job for job in jobs if job.counts]
    return {
        "cause": slice_causes(counted),
        "owner": slice_jobs(counted, lambda job: job.owner),
        "folder": slice_jobs(counted, lambda job: job.folder),
        "host": slice_hosts(counted),
        "framework": slice_jobs(counted, lambda job: job.framework),
        "gpu_type": slice_jobs(counted, lambda job: job.gpu_type),
        "day": tuple(sorted(slice_jobs(counted, lambda job: job.day), key=lambda entry: entry.key or "")),
    }


def slice_jobs(jobs: Iterable[FleetJob], key: Callable[[FleetJob], str | None]) -> tuple[Slice, ...]:
    """Put together jobs with the same key; an empty one is not known."""
    groups: dict[str | None, list[FleetJob]] = defaultdict(list)
    for job in jobs:
        groups[key(job) or None].append(job)
    return _ranked(
        Slice(
            name,
            len(group),
            _sum(job.hours_analysed for job in group),
            _sum(job.hours_wasted for job in group),
            _sum(job.hours_recoverable for job in group),
        )
        for name, group in groups.items()
    )


def slice_causes(jobs: Iterable[FleetJob]) -> tuple[Slice, ...]:
    """Share the lost time out among causes as each job's ledger does; what no cause explains has the key None."""
    parts: list[tuple[str | None, FleetJob, float, float]] = []
    for job in jobs:
        for cause in job.causes:
            recoverable = cause.recoverable * (job.hours_analysed or 0.0)
            parts.append((cause.cause, job, job.lost_to(cause), recoverable))
        rest = job.wasted - _sum(job.lost_to(cause) for cause in job.causes)
        parts.append((None, job, rest, 0.0))
    return _slice_parts(parts)


def slice_hosts(jobs: Iterable[FleetJob]) -> tuple[Slice, ...]:
    """Share the lost time out among the hosts that causes blame, evenly among those of one; the rest has the key None."""
    parts: list[tuple[str | None, FleetJob, float, float]] = []
    for job in jobs:
        rest = job.wasted
        for cause in job.causes:
            for host in cause.hosts:
                lost = job.lost_to(cause) / len(cause.hosts)
                gain = cause.recoverable * (job.hours_analysed or 0.0) / len(cause.hosts)
                parts.append((host, job, lost, gain))
                rest -= lost
        parts.append((None, job, rest, 0.0))
    return _slice_parts(parts)


def find_gaps(jobs: Sequence[FleetJob]) -> tuple[Gap, ...]:
    """Group the jobs that have no diagnosis, or none that says anything, by why; the most frequent first."""
    groups: dict[str, list[FleetJob]] = defaultdict(list)
    for job in jobs:
        if not job.counts:
            groups[job.failure or INCONCLUSIVE].append(job)
    gaps = [
        Gap(kind, len(group), group[0].location, group[0].reason or "the trace does not say enough to judge")
        for kind, group in groups.items()
    ]
    return tuple(sorted(gaps, key=lambda gap: (-gap.n_jobs, gap.kind)))


def _slice_parts(parts: Iterable[tuple[str | None, FleetJob, float, float]]) -> tuple[Slice, ...]:
    """Put together parts of jobs with the same key: key, job, GPU hours lost, GPU hours given back."""
    groups: dict[str | None, list[tuple[FleetJob, float, float]]] = defaultdict(list)
    for key, job, lost, gain in parts:
        groups[key].append((job, lost, gain))
    return _ranked(
        Slice(
            key,
            len({job.location for job, _, _ in group}),
            _sum({job.location: job.hours_analysed for job, _, _ in group}.values()),
            _sum(lost for _, lost, _ in group),
            _sum(gain for _, _, gain in group),
        )
        for key, group in groups.items()
    )


def _ranked(slices: Iterable[Slice]) -> tuple[Slice, ...]:
    """Put the largest loss first, and what has no key last."""
    return tuple(sorted(slices, key=lambda entry: (entry.key is None, -entry.hours_wasted, entry.key or "")))


def _sum(values: Iterable[float | None]) -> float:
    """Sum what is known; exactly, so that the order of the jobs does not matter."""
    return math.fsum(value for value in values if value is not None)
