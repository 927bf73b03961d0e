"""What `diagnose fleet --format json` prints, as types: writing and the JSON Schema come from them.

Fields are the keys of the JSON, in its order; other keys may be added.
"""

from typing import Annotated, Literal, get_args

from msgspec import Struct

from diagnose.model.diagnosis_document import Count
from diagnose.model.place import Where
from diagnose.model.plain import says

#: Verdicts of jobs whose figures count.
Counted = Literal["healthy", "noisy", "straggling"]
COUNTED: tuple[Counted, ...] = get_args(Counted)
Unit = Literal["share", "ratio", "correlation"]
Rank = Literal["lost", "recoverable"]
#: What may have become of a fault: never seen before; seen before, but not last time; as before; costs more; its jobs ran without
#: it; nobody could see it.
State = Literal["new", "worse", "back", "recurring", "gone", "unseen"]
STATES: tuple[State, ...] = get_args(State)


class Slice(Struct, frozen=True):
    """What jobs, or parts of their lost time, that have something in common add up to; GPU hours.

    Lost time sums over the slices to that of the fleet. What is recoverable does so but for causes, of which each is taken alone,
    and for hosts, where it is what the causes that name them give back alone.
    """

    key: Annotated[
        str | None,
        says("what they have in common; null where it is not known, or, of causes and hosts, where nothing is blamed"),
    ]
    n_jobs: Count
    hours_analysed: float
    hours_wasted: float
    hours_recoverable: Annotated[float, says("of causes and hosts: each alone")]


class Totals(Struct, frozen=True):
    """Counts of jobs, and GPU hours of those whose figures count."""

    n_jobs: Count
    n_counted: Annotated[
        int, says("jobs whose figures count: healthy, noisy or straggling; all sums are of these", ge=0)
    ]
    n_straggling: Count
    n_healthy: Count
    n_noisy: Count
    n_inconclusive: Count
    n_failed: Count
    hours_analysed: float
    hours_wasted: float
    hours_recoverable: Annotated[
        float, says("of those lost: given back by all fixes of each job's plan together, by replay")
    ]
    n_unpriced: Annotated[int, says("jobs with causes and no price: not in hours_recoverable", ge=0)]


class FleetBudget(Struct, frozen=True):
    """Where the GPU hours of all jobs go that have a budget: the sum of theirs, each weighted by its GPU hours."""

    n_jobs: Annotated[int, says("jobs with a budget: those that an earlier version diagnosed have none", ge=0)]
    hours_analysed: Annotated[float, says("GPU hours of these, which parts and lost add up to", ge=0)]
    parts: Annotated[dict[str, float], says("GPU hours by part of a budget; of jobs that measured it")]
    lost: Annotated[dict[str, float], says("GPU hours lost by cause, and unexplained")]


class Gap(Struct, frozen=True):
    """Jobs without a diagnosis that counts; one reason of many."""

    kind: Annotated[str, says("kind of failure as triage names it, document, or inconclusive")]
    n_jobs: Count
    example: str
    reason: str


class Figure(Struct, frozen=True):
    """One number of the study beside ours; null where there is no job to say it by."""

    key: str
    meaning: str
    ours: float | None
    published: float | None
    n: Annotated[int, says("jobs, or steps, that ours is of", ge=0)]
    unit: Unit
    source: Annotated[str, says("where it was published")]


class OpType(Struct, frozen=True):
    """Waste by one type of operation over jobs: 1 - 1/S_t at the median, the 90th percentile, and weighted by GPU hours."""

    optype: str
    n_jobs: Count
    p50: float
    p90: float
    of_hours: float | None


class SizeBin(Struct, frozen=True):
    """Slowdown of jobs with `least` to `most` GPUs."""

    least: Count
    most: Count
    n_jobs: Count
    p10: float
    p50: float
    p90: float


class Study(Struct, frozen=True):
    """The fleet on the axes of arXiv 2505.05713."""

    n_jobs: Annotated[int, says("jobs that count and pass the study's gate, a discrepancy of at most 5%", ge=0)]
    n_gated: Annotated[int, says("jobs that do not pass it", ge=0)]
    figures: tuple[Figure, ...]
    waste_quantiles: Annotated[
        tuple[float, ...], says("waste, 1 - 1/S, that 0, 1, ... 100% of the jobs do not exceed; empty without jobs")
    ]
    optypes: Annotated[tuple[OpType, ...], says("most waste first")]
    sizes: Annotated[tuple[SizeBin, ...], says("by size")]
    left_out: Annotated[tuple[str, ...], says("what the study shows and this cannot, and why")]


class HostCount(Struct, frozen=True):
    """A host that is blamed, and how likely that is by chance."""

    host: str
    n_blamed: Annotated[int, says("jobs in which it is blamed", ge=0)]
    n_ran: Annotated[int, says("jobs that it took part in", ge=0)]
    expected: Annotated[float, says("in how many it would be blamed by chance")]
    p_value: Annotated[float, says("probability of at least so many by chance", ge=0, le=1)]
    p_adjusted: Annotated[float, says("the same after correction for the number of hosts looked at", ge=0, le=1)]
    n_places: Annotated[
        int,
        says(
            "places in jobs (parallelism, dp rank, stage) at which it is blamed: one alone may be a fault of the place",
            ge=0,
        ),
    ]
    hours_wasted: Annotated[float, says("GPU hours lost to causes that blame it")]
    jobs: Annotated[tuple[str, ...], says("locations, the costliest first")]
    proposal: Annotated[str, says("what to think about, never an action; empty where chance explains it")]


class Hosts(Struct, frozen=True):
    """Hosts blamed in more jobs than chance says."""

    n_jobs: Annotated[int, says("jobs that say which hosts they ran on, copies left out", ge=0)]
    n_hosts: Annotated[int, says("hosts among them", ge=0)]
    n_unknown: Annotated[int, says("jobs that do not say their hosts: in no test", ge=0)]
    n_copies: Annotated[int, says("jobs left out because another has the same content", ge=0)]
    assumption: str
    blamed: Annotated[tuple[HostCount, ...], says("hosts blamed in at least two jobs, least likely first")]


class Finding(Struct, frozen=True, kw_only=True):
    """One fault, by its fingerprint, now and before."""

    state: State
    fingerprint: str
    cause: str
    title: str
    where: Where
    n_now: Annotated[int, says("jobs that have it in this period", ge=0)]
    n_before: Annotated[int, says("jobs that had it in the one before", ge=0)]
    recoverable_now: Annotated[float | None, says("mean part of the step time that it costs in them")]
    recoverable_before: float | None
    hours_wasted: Annotated[float, says("GPU hours lost to it in this period; where it is gone, in the one before")]
    gpu_hours_lost_per_day: Annotated[
        float | None, says("over all jobs that had it last, while they run: GPUs x 24 x recoverable; as in its ticket")
    ]
    first_seen_s: float
    location: Annotated[str, says("the job that lost most to it")]
    job_id: str
    owner: str | None
    note: Annotated[str | None, says("why it is unseen")] = None


class LastNight(Struct, frozen=True):
    """What changed between the period up to the newest diagnosis and the one before, both `hours` long."""

    until_s: float
    hours: float
    n_now: Count
    n_before: Count
    n_earlier: Count
    findings: tuple[Finding, ...]


class JobGpuHours(Struct, frozen=True):
    """GPU hours of one job."""

    analysed: float | None
    wasted: float | None
    recoverable: Annotated[float | None, says("null where no replay says it")]


class FleetCauseDocument(Struct, frozen=True):
    """One cause of one job."""

    cause: str
    title: str
    share: float | None
    recoverable: float | None
    gpu_hours_wasted: float
    hosts: tuple[str, ...]
    fingerprint: str


class FleetJobDocument(Struct, frozen=True, kw_only=True):
    """One job whose figures count."""

    location: str
    job_id: str
    owner: str | None
    framework: str | None
    gpu_type: str | None
    folder: str
    when_s: Annotated[float, says("when it ended by its metadata, else when it was diagnosed")]
    gpus: Count | None
    verdict: Counted
    slowdown: float | None
    gpu_hours: JobGpuHours
    causes: tuple[FleetCauseDocument, ...]
    fix: Annotated[str | None, says("best fix of the first cause")]


class NotAnalysed(Struct, frozen=True):
    """A job whose figures do not count, and why."""

    location: str
    job_id: str
    kind: str | None
    reason: str | None


class Slices(Struct, frozen=True):
    """Lost time shared out; every list sums to the fleet's, and days are in order."""

    cause: tuple[Slice, ...]
    owner: tuple[Slice, ...]
    folder: tuple[Slice, ...]
    host: tuple[Slice, ...]
    framework: tuple[Slice, ...]
    gpu_type: tuple[Slice, ...]
    day: tuple[Slice, ...]


class FleetDocument(Struct, frozen=True, kw_only=True):
    """What `diagnose fleet --format json` prints.

    GPU hours are those of the steps that traces have; shares and ratios are plain numbers, times seconds since 1970, missing is
    null. Other keys may be added.
    """

    schema: Literal["diagnose-fleet/1"]
    store: Annotated[str, says("its URL without the password")]
    asked: Annotated[dict[str, str], says("which jobs were asked for: owner, cause, framework, folder, since")]
    ranked_by: Rank
    totals: Totals
    jobs: Annotated[tuple[FleetJobDocument, ...], says("those that count, in the order asked for")]
    by: Slices
    coverage: tuple[Gap, ...]
    not_analysed: tuple[NotAnalysed, ...]
    study: Study
    hosts: Hosts
    night: LastNight | None
    budget: Annotated[FleetBudget | None, says("where the GPU hours go; null where no job has a budget")] = None
