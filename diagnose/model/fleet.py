"""The fleet: what the store knows of all jobs, and what adds up over them.

Enters, as `FleetJob`s: one a job. Leaves, as a `Fleet`: totals, rankings, the study's figures beside ours, hosts, findings of the
night. GPU hours are those of the steps that a trace has, which is a sample of the job.
"""

import dataclasses
import datetime as dt
from typing import Any

from diagnose.model.diagnosis import Where

SCHEMA = "diagnose-fleet/1"
#: Who mends a fault that stays with the machine and not with the job.
HARDWARE = frozenset({"platform", "hardware"})


@dataclasses.dataclass(frozen=True, slots=True)
class FleetCause:
    """One cause of one job; `share` of its lost time, `recoverable` part of its step time when this alone is gone."""

    cause: str
    title: str
    where: Where
    share: float | None
    recoverable: float
    who: str
    fingerprint: str
    fix: str | None = None
    predicted_speedup: float | None = None

    @property
    def hosts(self) -> tuple[str, ...]:
        """Hosts that it blames, worst first, each once."""
        named = [*self.where.hosts, *(worker.host for worker in self.where.workers if worker.host)]
        return tuple(dict.fromkeys(named))


@dataclasses.dataclass(frozen=True, slots=True)
class FleetJob:
    """One job of the store.

    Attributes
    ----------
    location, folder : str
        Where its trace was, and the folder or bucket prefix that it lay in.
    when_s : float
        When it ran: seconds since 1970 of its end where its metadata says that, else of its diagnosis.
    diagnosed_at_s : float
    failure, reason : str or None
        Why it has no diagnosis; None where it has one.
    hours_analysed, hours_wasted, hours_recoverable : float or None
        GPU hours of the steps analysed; lost against clean steps; given back by all fixes of its plan together, by replay. The last
        is 0 where nothing is to be mended, and None where no replay says it.
    by_optype : dict of str to float
        S of each type of operation.
    step_ratio : tuple of float
        Slowdown of each step over that of the job.
    hosts : tuple of str or None
        All it ran on; None where its diagnosis does not say.
    unseen : frozenset of str
        Causes that could not be looked for.
    """

    location: str
    folder: str
    when_s: float
    diagnosed_at_s: float
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
    recorded_step_s: float | None = None
    hours_analysed: float | None = None
    hours_wasted: float | None = None
    hours_recoverable: float | None = None
    discrepancy: float | None = None
    m_w: float | None = None
    m_s: float | None = None
    correlation: float | None = None
    by_optype: dict[str, float] = dataclasses.field(default_factory=dict)
    step_ratio: tuple[float, ...] = ()
    causes: tuple[FleetCause, ...] = ()
    hosts: tuple[str, ...] | None = None
    unseen: frozenset[str] = frozenset()

    @property
    def counts(self) -> bool:
        """True where its figures can be trusted: it has a diagnosis that says something."""
        return self.failure is None and self.verdict in {"healthy", "straggling"}

    @property
    def family(self) -> tuple[object, ...]:
        """What runs of one job have in common: framework and parallelism, as fingerprints see it."""
        return (self.framework, *self.sizes)

    @property
    def wasted(self) -> float:
        """GPU hours lost; 0 where that is not known."""
        return self.hours_wasted or 0.0

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

    def to_dict(self) -> dict[str, Any]:
        """Give one entry of `jobs`."""
        first = self.causes[0] if self.causes else None
        return {
            "location": self.location,
            "job_id": self.job_id,
            "owner": self.owner,
            "framework": self.framework,
            "gpu_type": self.gpu_type,
            "folder": self.folder,
            "when_s": self.when_s,
            "gpus": self.n_gpus,
            "verdict": self.verdict,
            "slowdown": self.slowdown,
            "gpu_hours": {
                "analysed": self.hours_analysed,
                "wasted": self.hours_wasted,
                "recoverable": self.hours_recoverable,
            },
            "causes": [
                {
                    "cause": cause.cause,
                    "title": cause.title,
                    "share": cause.share,
                    "recoverable": cause.recoverable,
                    "gpu_hours_wasted": self.lost_to(cause),
                    "hosts": list(cause.hosts),
                    "fingerprint": cause.fingerprint,
                }
                for cause in self.causes
            ],
            "fix": None if first is None else first.fix,
        }


@dataclasses.dataclass(frozen=True, slots=True)
class Slice:
    """What jobs, or parts of their lost time, that have something in common add up to.

    Attributes
    ----------
    key : str or None
        What they have in common; None where it is not known, or, of causes and hosts, where nothing is blamed.
    hours_analysed, hours_wasted, hours_recoverable : float
        GPU hours. Lost time sums over the slices to that of the fleet. What is recoverable does so but for causes, of which each
        is taken alone, and for hosts, where it is what the causes that name them give back alone.
    """

    key: str | None
    n_jobs: int
    hours_analysed: float
    hours_wasted: float
    hours_recoverable: float


@dataclasses.dataclass(frozen=True, slots=True)
class Totals:
    """Counts of jobs, and GPU hours of those whose figures count.

    `n_unpriced` of them have causes and no fix with a price: what they would give back is not in `hours_recoverable`.
    """

    n_jobs: int
    n_counted: int
    n_straggling: int
    n_healthy: int
    n_inconclusive: int
    n_failed: int
    hours_analysed: float
    hours_wasted: float
    hours_recoverable: float
    n_unpriced: int


@dataclasses.dataclass(frozen=True, slots=True)
class Gap:
    """Jobs without a diagnosis that counts: `kind` as triage names it, or `inconclusive`; one reason of many."""

    kind: str
    n_jobs: int
    example: str
    reason: str


@dataclasses.dataclass(frozen=True, slots=True)
class Figure:
    """One number of the study beside ours.

    Attributes
    ----------
    key, meaning : str
    ours, published : float or None
        None where there is no job to say it by.
    n : int
        Jobs, or steps, that ours was made from.
    unit : str
        `share`, `ratio` or `correlation`.
    source : str
        Where it was published.
    """

    key: str
    meaning: str
    ours: float | None
    published: float | None
    n: int
    unit: str
    source: str


@dataclasses.dataclass(frozen=True, slots=True)
class OpType:
    """Waste by one type of operation over jobs: 1 - 1/S_t at the median, the 90th percentile, and weighted by GPU hours."""

    optype: str
    n_jobs: int
    p50: float
    p90: float
    of_hours: float


@dataclasses.dataclass(frozen=True, slots=True)
class SizeBin:
    """Slowdown of jobs with `least` to `most` GPUs."""

    least: int
    most: int
    n_jobs: int
    p10: float
    p50: float
    p90: float


@dataclasses.dataclass(frozen=True, slots=True)
class Study:
    """The fleet on the axes of arXiv 2505.05713.

    Attributes
    ----------
    n_jobs : int
        Jobs that count and pass the study's gate, a discrepancy of at most 5%; `n_gated` do not pass it.
    figures : tuple of Figure
    waste_quantiles : tuple of float
        Waste (1 - 1/S) that 0, 1, ... 100% of the jobs do not exceed; empty without jobs.
    optypes, sizes : tuple
        Most waste first; by size.
    left_out : tuple of str
        What the study shows and this cannot, and why.
    """

    n_jobs: int
    n_gated: int
    figures: tuple[Figure, ...]
    waste_quantiles: tuple[float, ...]
    optypes: tuple[OpType, ...]
    sizes: tuple[SizeBin, ...]
    left_out: tuple[str, ...]


@dataclasses.dataclass(frozen=True, slots=True)
class HostCount:
    """A host that is blamed, and how likely that is by chance.

    Attributes
    ----------
    n_blamed, n_ran : int
        Jobs in which it is blamed, of those that it took part in.
    expected : float
        In how many it would be blamed by chance.
    p_value, p_adjusted : float
        Probability of at least so many by chance, and after correction for the number of hosts looked at.
    n_places : int
        Places in jobs (parallelism, dp rank, stage) at which it is blamed: one alone may be a fault of the place.
    hours_wasted : float
        GPU hours lost to causes that blame it.
    jobs : tuple of str
        Locations, the costliest first.
    proposal : str
        What to think about; nothing is done. Empty where chance explains it.
    """

    host: str
    n_blamed: int
    n_ran: int
    expected: float
    p_value: float
    p_adjusted: float
    n_places: int
    hours_wasted: float
    jobs: tuple[str, ...]
    proposal: str


@dataclasses.dataclass(frozen=True, slots=True)
class Hosts:
    """Hosts blamed in more jobs than chance says.

    Attributes
    ----------
    n_jobs, n_hosts : int
        Jobs that say which hosts they ran on, copies left out, and hosts among them.
    n_unknown : int
        Jobs that count and do not say it: they are in no test.
    n_copies : int
        Jobs left out because another has the same content.
    assumption : str
    blamed : tuple of HostCount
        All that are blamed at least twice, least likely first.
    """

    n_jobs: int
    n_hosts: int
    n_unknown: int
    n_copies: int
    assumption: str
    blamed: tuple[HostCount, ...]


#: What may have become of a fault: never seen before; seen before, but not last time; as before; costs more; its jobs ran without
#: it; nobody could see it.
STATES = ("new", "worse", "back", "recurring", "gone", "unseen")


@dataclasses.dataclass(frozen=True, slots=True)
class Finding:
    """One fault, by its fingerprint, now and before.

    Attributes
    ----------
    state : str
        One of `STATES`.
    n_now, n_before : int
        Jobs that have it in this period and in the one before.
    recoverable_now, recoverable_before : float or None
        Mean part of the step time that it costs in them.
    hours_wasted : float
        GPU hours lost to it in this period; where it is gone, in the one before.
    first_seen_s : float
        Seconds since 1970.
    location : str
        The job that lost most to it, and its owner and id.
    note : str
        Why it is unseen.
    """

    state: str
    fingerprint: str
    cause: str
    title: str
    where: Where
    n_now: int
    n_before: int
    recoverable_now: float | None
    recoverable_before: float | None
    hours_wasted: float
    first_seen_s: float
    location: str
    job_id: str
    owner: str | None
    note: str = ""

    def to_dict(self) -> dict[str, Any]:
        """Give one entry of `findings`."""
        fields = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}
        return fields | {"where": self.where.to_dict(), "note": self.note or None}


@dataclasses.dataclass(frozen=True, slots=True)
class LastNight:
    """What changed between the period up to the newest diagnosis and the one before, both `hours` long."""

    until_s: float
    hours: float
    n_now: int
    n_before: int
    n_earlier: int
    findings: tuple[Finding, ...]

    def to_dict(self) -> dict[str, Any]:
        """Give the `night` of the JSON."""
        fields = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}
        return fields | {"findings": [finding.to_dict() for finding in self.findings]}


@dataclasses.dataclass(frozen=True, slots=True)
class Fleet:
    """All that adds up over the jobs of a store.

    Attributes
    ----------
    store : str
        Its URL without the password.
    asked : dict of str to str
        What was asked for: only jobs since, of an owner, with a cause, ...
    jobs : tuple of FleetJob
        Those whose figures count, in the order asked for.
    uncounted : tuple of FleetJob
        The others, by location.
    by : dict of str to tuple of Slice
        `cause`, `owner`, `folder`, `host`, `framework`, `gpu_type`, most lost first, and `day`, in order.
    """

    store: str
    asked: dict[str, str]
    ranked_by: str
    totals: Totals
    jobs: tuple[FleetJob, ...]
    uncounted: tuple[FleetJob, ...]
    by: dict[str, tuple[Slice, ...]]
    coverage: tuple[Gap, ...]
    study: Study
    hosts: Hosts
    night: LastNight | None

    def to_dict(self, limit: int | None = None) -> dict[str, Any]:
        """Give the object that `diagnose fleet --format json` prints: plain types.

        Parameters
        ----------
        limit : int, optional
            List at most so many jobs.
        """
        return {
            "schema": SCHEMA,
            "store": self.store,
            "asked": self.asked,
            "ranked_by": self.ranked_by,
            "totals": dataclasses.asdict(self.totals),
            "jobs": [job.to_dict() for job in self.jobs[:limit]],
            "by": {name: [dataclasses.asdict(entry) for entry in entries] for name, entries in self.by.items()},
            "coverage": [dataclasses.asdict(gap) for gap in self.coverage],
            "not_analysed": [
                {
                    "location": job.location,
                    "job_id": job.job_id,
                    "kind": job.failure or job.verdict,
                    "reason": job.reason,
                }
                for job in self.uncounted
            ],
            "study": dataclasses.asdict(self.study),
            "hosts": dataclasses.asdict(self.hosts),
            "night": None if self.night is None else self.night.to_dict(),
        }
