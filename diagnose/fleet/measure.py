"""All that adds up over the jobs of a store.

Enters: the jobs, and which of them are asked for. Leaves: a `Fleet`.
"""

import dataclasses
from collections.abc import Sequence

from diagnose.fleet.hosts import count_hosts
from diagnose.fleet.periods import compare_periods
from diagnose.fleet.study import compare_with_study
from diagnose.fleet.totals import add_up, add_up_budgets, find_gaps, slice_all
from diagnose.model.fleet import Fleet, FleetJob
from diagnose.model.fleet_document import Rank
from diagnose.model.job_names import tell_apart


@dataclasses.dataclass(frozen=True, slots=True)
class FleetQuery:
    """Which jobs are asked for, None for any, and how."""

    since_s: float | None = None  # Only jobs that ran since, seconds since 1970. What is new is judged by all
    owner: str | None = None
    cause: str | None = None
    framework: str | None = None
    folder: str | None = None  # Only jobs in it, at any depth
    rank: Rank = "lost"
    period_s: float = 86_400.0  # Length of the period whose findings are compared with those of the one before, seconds
    said: dict[str, str] = dataclasses.field(default_factory=dict)  # The same in the words of who asked

    def wants(self, job: FleetJob) -> bool:
        """Say whether a job is asked for, whenever it ran."""
        folder = None if self.folder is None else f"{self.folder.rstrip('/')}/"
        return (
            (self.owner is None or job.owner == self.owner)
            and (self.framework is None or job.framework == self.framework)
            and (folder is None or f"{job.folder}/".startswith(folder))
            and (self.cause is None or any(cause.cause == self.cause for cause in job.causes))
        )


def measure_fleet(jobs: Sequence[FleetJob], asked: FleetQuery, *, store: str = "") -> Fleet:
    """Add up all that is asked for, of all jobs of a store; `store` is its URL, for the page."""
    wanted = [job for job in jobs if asked.wants(job)]
    names = tell_apart((job.location, job.job_id) for job in wanted)
    wanted = [dataclasses.replace(job, called=names[job.location]) for job in wanted]
    recent = [job for job in wanted if asked.since_s is None or job.when_s >= asked.since_s]
    counted = [job for job in recent if job.counts]
    ever = [job for job in wanted if job.counts]
    return Fleet(
        store=store,
        asked=asked.said,
        ranked_by=asked.rank,
        totals=add_up(recent),
        jobs=tuple(sorted(counted, key=lambda job: (-_weight(job, asked.rank), -job.wasted, job.location))),
        uncounted=tuple(job for job in recent if not job.counts),
        by=slice_all(counted),
        coverage=find_gaps(recent),
        study=compare_with_study(counted, len(recent)),
        hosts=count_hosts(counted),
        budget=add_up_budgets(counted),
        night=compare_periods(ever, until_s=newest_s(jobs), period_s=asked.period_s) if ever else None,
    )


def newest_s(jobs: Sequence[FleetJob]) -> float:
    """Give the time of the newest diagnosis, which all ages are counted back from; 0 where there is none."""
    return max((job.diagnosed_at_s for job in jobs), default=0.0)


def _weight(job: FleetJob, rank: str) -> float:
    """Give the GPU hours by which jobs are ranked."""
    return job.wasted if rank == "lost" else job.hours_recoverable or 0.0
