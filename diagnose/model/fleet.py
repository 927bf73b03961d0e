"""The fleet: what the store knows of all jobs, and what adds up over them.

Enters, as `FleetJob`s: one a job. Leaves, as a `Fleet`: totals, rankings, the study's figures beside ours, hosts, findings of the
night. GPU hours are those of the steps that a trace has, which is a sample of the job.
"""

import dataclasses
import datetime as dt
from typing import cast

from diagnose.model.budget import Budget
from diagnose.model.fingerprint import HOURS_A_DAY, find_machine, name_family
from diagnose.model.fleet_document import (
    COUNTED,
    Counted,
    FleetBudget,
    FleetCauseDocument,
    FleetDocument,
    FleetJobDocument,
    Gap,
    Hosts,
    JobGpuHours,
    LastNight,
    NotAnalysed,
    Rank,
    Slice,
    Slices,
    Study,
    Totals,
)
from diagnose.model.named import measure_slower
from diagnose.model.place import Where


@dataclasses.dataclass(frozen=True, slots=True)
class FleetCause:
    """One cause of one job; `share` of its lost time, `recoverable` part of its step time when this alone is gone.

    What `is_over` was lost and is no fault of a night: nobody has to mend it.
    """

    cause: str
    title: str
    where: Where
    share: float | None
    recoverable: float
    who: str
    fingerprint: str
    fix: str | None = None
    is_over: bool = False

    @property
    def machine(self) -> str | None:
        """The host that it stays with; None where it is the job's."""
        return find_machine(self.who, self.hosts)

    @property
    def hosts(self) -> tuple[str, ...]:
        """Hosts that it blames, worst first, each once."""
        named = [*self.where.hosts, *(worker.host for worker in self.where.workers if worker.host)]
        return tuple(dict.fromkeys(named))


@dataclasses.dataclass(frozen=True, slots=True)
class FleetJob:
    """One job of the store."""

    #: `location`, `folder`: where its trace was, and the folder or bucket prefix that it lay in.
    location: str
    folder: str
    #: When it ran: seconds since 1970 of its end where its metadata says that, else of its diagnosis.
    when_s: float
    diagnosed_at_s: float
    #: `failure`, `reason`: why it has no diagnosis; None where it has one.
    failure: str | None = None
    reason: str | None = None
    content: str | None = None
    job_id: str = ""
    owner: str | None = None
    framework: str | None = None
    gpu_type: str | None = None
    n_gpus: int | None = None
    sizes: tuple[int | None, ...] = ()
    verdict: str | None = None
    slowdown: float | None = None
    #: `hours_analysed`, `hours_wasted`, `hours_recoverable`: GPU hours of the steps analysed; lost against clean steps; of
    #: these, given back by all fixes of its plan together, by replay. The last is 0 where nothing is to be mended, and None
    #: where no replay says it.
    hours_analysed: float | None = None
    hours_wasted: float | None = None
    hours_recoverable: float | None = None
    discrepancy: float | None = None
    m_w: float | None = None
    m_s: float | None = None
    correlation: float | None = None
    #: S of each type of operation.
    by_optype: dict[str, float] = dataclasses.field(default_factory=dict)
    #: Slowdown of each step over that of the job.
    step_ratio: tuple[float, ...] = ()
    causes: tuple[FleetCause, ...] = ()
    #: All it ran on; None where its diagnosis does not say.
    hosts: tuple[str, ...] | None = None
    #: Causes that could not be looked for.
    unseen: frozenset[str] = frozenset()
    #: Its id, and where others of the fleet have that too enough of its path to be told from them.
    called: str = ""
    #: What all its runs are called.
    name: str = ""
    #: When the triage run began that brought it, which is its night; None where that is not known.
    came_s: float | None = None
    #: Where its GPU-seconds go; None where an earlier version diagnosed it.
    budget: Budget | None = None

    @property
    def counts(self) -> bool:
        """True where its figures can be trusted: it has a diagnosis that says something."""
        return self.failure is None and self.verdict in COUNTED

    @property
    def family(self) -> str:
        """What runs of one job have in common, as fingerprints see it."""
        name = self.name or self.job_id
        return name_family(name=name, owner=self.owner, framework=self.framework, sizes=self.sizes)

    @property
    def night_s(self) -> float:
        """When it came: with the night's triage, or where that is not known when it ran."""
        return self.when_s if self.came_s is None else self.came_s

    @property
    def wasted(self) -> float:
        """GPU hours lost; 0 where that is not known."""
        return self.hours_wasted or 0.0

    @property
    def slower(self) -> float | None:
        """How many times as long its steps are as without what is named; None where that is not known."""
        if not self.hours_analysed:
            return None
        return measure_slower(self.wasted / self.hours_analysed, self.causes, is_log=self.slowdown is None)

    @property
    def day(self) -> str:
        """Give the day on which it ran, UTC.

        >>> FleetJob("/a", "/", when_s=86400.0, diagnosed_at_s=0.0).day
        '1970-01-02'
        """
        return (dt.datetime(1970, 1, 1, tzinfo=dt.UTC) + dt.timedelta(seconds=self.when_s)).date().isoformat()

    def lost_to(self, cause: FleetCause) -> float:
        """Give the GPU hours that it lost to one of its causes."""
        return self.wasted * (cause.share or 0.0)

    def loses_a_day(self, cause: FleetCause) -> float | None:
        """Give the GPU hours that it loses a day to one of its causes while it runs."""
        return None if self.n_gpus is None else HOURS_A_DAY * self.n_gpus * cause.recoverable

    def to_document(self) -> FleetJobDocument:
        """Give one entry of `jobs`."""
        return FleetJobDocument(
            location=self.location,
            job_id=self.job_id,
            owner=self.owner,
            framework=self.framework,
            gpu_type=self.gpu_type,
            folder=self.folder,
            when_s=self.when_s,
            gpus=self.n_gpus,
            verdict=cast("Counted", self.verdict),
            slowdown=self.slowdown,
            gpu_hours=JobGpuHours(self.hours_analysed, self.hours_wasted, self.hours_recoverable),
            causes=tuple(
                FleetCauseDocument(
                    cause.cause,
                    cause.title,
                    cause.share,
                    cause.recoverable,
                    self.lost_to(cause),
                    cause.hosts,
                    cause.fingerprint,
                )
                for cause in self.causes
            ),
            fix=self.causes[0].fix if self.causes else None,
        )


@dataclasses.dataclass(frozen=True, slots=True)
class Fleet:
    """All that adds up over the jobs of a store."""

    #: Its URL without the password.
    store: str
    #: What was asked for: only jobs since, of an owner, with a cause, ...
    asked: dict[str, str]
    ranked_by: Rank
    totals: Totals
    #: Those whose figures count, in the order asked for.
    jobs: tuple[FleetJob, ...]
    #: The others, by location.
    uncounted: tuple[FleetJob, ...]
    #: `cause`, `owner`, `folder`, `host`, `framework`, `gpu_type`, most lost first, and `day`, in order.
    by: dict[str, tuple[Slice, ...]]
    coverage: tuple[Gap, ...]
    study: Study
    hosts: Hosts
    night: LastNight | None
    budget: FleetBudget | None = None

    def to_document(self, limit: int | None = None) -> FleetDocument:
        """Give what `diagnose fleet --format json` prints, at most `limit` jobs of it."""
        return FleetDocument(
            schema="diagnose-fleet/1",
            store=self.store,
            asked=self.asked,
            ranked_by=self.ranked_by,
            totals=self.totals,
            jobs=tuple(job.to_document() for job in self.jobs[:limit]),
            by=Slices(**self.by),
            coverage=self.coverage,
            not_analysed=tuple(
                NotAnalysed(job.location, job.job_id, job.failure or job.verdict, job.reason) for job in self.uncounted
            ),
            study=self.study,
            hosts=self.hosts,
            night=self.night,
            budget=self.budget,
        )
