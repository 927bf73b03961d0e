"""What is found again and again in the runs of a job, or on a host, and the ticket that tells of it."""

import dataclasses
import datetime as dt
from typing import Annotated, Literal, cast

from msgspec import Meta, Struct

from diagnose.model.cause import Cause, CauseId, EvidenceItem, Fix, Severity, When
from diagnose.model.place import Where
from diagnose.model.plain import says

Event = Literal["opened", "reopened", "reminded", "grew", "fixed"]
TicketState = Literal["open", "acked", "fixed"]
#: A moment, UTC.
Moment = Annotated[str, Meta(pattern=r"^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ$", extra_json_schema={"format": "date-time"})]


@dataclasses.dataclass(frozen=True, slots=True)
class Finding:
    """A cause at a place in a job, or on a host, through all runs that had it.

    An episode is the time from when it came until it was fixed; when it comes back another begins. All moments in seconds
    since 1970.
    """

    #: Of the cause, as the diagnosis gives it.
    fingerprint: str
    #: `cause`, `title`, `family`: `title` is the cause in a few words, `family` the framework and the parallelism.
    cause: str
    title: str
    family: str
    #: `open` or `fixed`.
    state: str
    #: How this episode began: `opened` or `reopened`.
    event: str
    #: The first run of this episode; names its ticket, with the fingerprint.
    opened_at: float
    #: When an acknowledgement of this episode ran out.
    reminded_at: float | None
    #: `first_seen_at`, `last_seen_at`: the first run with it ever, and the last.
    first_seen_at: float
    last_seen_at: float
    #: When the last run with it ended, by the metadata of the jobs; None where one of this episode does not say.
    last_ended_at: float | None
    #: When the last run with it came into the store.
    last_noted_at: float
    #: Runs that had it, in all episodes.
    n_seen: int
    #: `severity`, `who`, `owner`: as the worst run said when the episode began: they are how alerts are told apart, and stay.
    severity: str | None
    who: str | None
    owner: str | None
    #: The run that loses most, of those that had it last.
    worst_location: str
    #: Over all jobs that had it last, while they run: GPUs x 24 hours x the part of the step time that comes back.
    gpu_hours_lost_per_day: float | None
    #: The highest of this episode.
    confidence: float
    #: The entry of `causes` in the diagnosis of that run, as JSON.
    particulars: str
    #: `fixed_at`, `fixed_because`: None while it is open.
    fixed_at: float | None = None
    fixed_because: str | None = None
    #: `name`, `job`: what the job of that run is called, and the key that its runs share.
    name: str | None = None
    job: str | None = None
    #: The host that the fault stays with, whatever job runs there.
    machine: str | None = None

    @property
    def ticket(self) -> str:
        """Name the ticket of this episode."""
        return f"{self.fingerprint}-{int(self.opened_at)}"

    @property
    def latest_event(self) -> str:
        """Say what happened last: opened, reopened, reminded or fixed."""
        if self.state == "fixed":
            return "fixed"
        return self.event if self.reminded_at is None else "reminded"

    @property
    def key(self) -> str:
        """Name the message about what happened last; however often it is sent, it has this name."""
        when = f"-{int(self.reminded_at)}" if self.latest_event == "reminded" and self.reminded_at is not None else ""
        return f"{self.ticket}-{self.latest_event}{when}"


@dataclasses.dataclass(frozen=True, slots=True)
class Ack:
    """Somebody knows of a finding, and why it need not be told until when; None: until cleared."""

    fingerprint: str
    reason: str
    until_at: float | None
    acked_at: float


@dataclasses.dataclass(frozen=True, slots=True)
class JobWithFinding:
    """A job that the store knows to have a finding; `report` is the address of its page on the fleet's site."""

    job_id: str | None
    location: str
    owner: str | None
    gpus: int | None
    gpu_hours_lost_per_day: float | None
    seen_at: float
    report: str | None = None


@dataclasses.dataclass(frozen=True, slots=True)
class Ticket:
    """What is told of a finding: to programs as `to_document` gives it.

    `title` and `summary` are one line each that is safe to show; `particulars` is what the worst run says of the cause, None where
    its diagnosis was gone; `n_jobs` counts jobs in the store that have the finding now, and `jobs` are the first of them, the
    costliest first.
    """

    finding: Finding
    ack: Ack | None
    title: str
    summary: str
    particulars: Cause | None
    n_jobs: int
    jobs: tuple[JobWithFinding, ...]
    report: str | None

    def to_document(self) -> "TicketDocument":
        """Give what `diagnose tickets` prints."""
        finding, ack, found = self.finding, self.ack, self.particulars
        return TicketDocument(
            schema="diagnose-ticket/1",
            id=finding.ticket,
            key=finding.key,
            event=cast("Event", finding.latest_event),
            state=cast("TicketState", "acked" if ack is not None and finding.state == "open" else finding.state),
            fingerprint=finding.fingerprint,
            cause=finding.cause,
            title=self.title,
            summary=self.summary,
            severity=cast("Severity | None", finding.severity),
            owner=finding.owner,
            who=finding.who,
            name=finding.name,
            family=finding.family,
            machine=finding.machine,
            gpu_hours_lost_per_day=finding.gpu_hours_lost_per_day,
            confidence=finding.confidence,
            recoverable=None if found is None else found.recoverable,
            where=None if found is None else found.where,
            when=None if found is None else found.when,
            first_seen=iso(finding.first_seen_at),
            last_seen=iso(finding.last_seen_at),
            opened_at=iso(finding.opened_at),
            fixed_at=_iso_or_none(finding.fixed_at),
            fixed_because=finding.fixed_because,
            ack=None if ack is None else AckDocument(ack.reason, _iso_or_none(ack.until_at)),
            n_seen=finding.n_seen,
            n_jobs=self.n_jobs,
            jobs=tuple(TicketJob(**dataclasses.asdict(job) | {"seen_at": iso(job.seen_at)}) for job in self.jobs),
            evidence=() if found is None else found.evidence,
            fixes=() if found is None else found.fixes,
            report=self.report,
        )


class AckDocument(Struct, frozen=True):
    """Somebody knows of it."""

    reason: str
    until: Moment | None


class TicketJob(Struct, frozen=True):
    """A job in the store that has it now."""

    job_id: str | None
    location: str
    owner: str | None
    gpus: int | None
    gpu_hours_lost_per_day: float | None
    seen_at: Moment
    report: Annotated[str | None, says("address of its page; null without --site")]


class TicketDocument(Struct, frozen=True, kw_only=True):
    """One line of `diagnose tickets`, and the body of one message to a webhook."""

    schema: Literal["diagnose-ticket/1"]
    id: Annotated[
        str,
        says(
            "the ticket: one an episode of a finding, from when it came until it was fixed; the same in all messages "
            "about it"
        ),
    ]
    key: Annotated[str, says("this message; the same however often it is sent")]
    event: Annotated[
        Event,
        says(
            "what happened: it came, came back after it was fixed, is still there when its acknowledgement ran out, "
            "costs much more than when it was told (of jobs that are watched), or is fixed"
        ),
    ]
    state: TicketState
    fingerprint: Annotated[
        str,
        says(
            "the finding: the same over runs of one job with the same fault in the same place; of a fault of a "
            "machine, over all jobs on the same host"
        ),
    ]
    cause: CauseId
    title: Annotated[str, says("job, cause, place, and how many times as long steps take for it")]
    summary: Annotated[str, says("one line for people; nothing in it that a terminal would obey")]
    severity: Annotated[Severity | None, says("how bad it was when the ticket was opened; null where nothing says so")]
    owner: Annotated[str | None, says("owner of the job that lost most when the ticket was opened")]
    who: Annotated[str | None, says("who can mend it: job owner, platform or hardware; null where no rule says so")]
    name: Annotated[str | None, says("what the job that loses most is called from run to run")]
    family: Annotated[str, says("framework and parallelism of the job that lost most when the ticket was opened")]
    machine: Annotated[str | None, says("host that the fault stays with; null where it is the job's")]
    gpu_hours_lost_per_day: Annotated[
        float | None,
        says("over all jobs that had it last, while they run: GPUs x 24 x recoverable; as in `diagnose fleet`"),
    ]
    confidence: Annotated[float, says("the highest of all jobs with it", ge=0, le=1)]
    recoverable: Annotated[
        Annotated[float, Meta(le=1)] | None,
        says("part of the step time of the job that loses most, that comes back when this cause alone is gone"),
    ]
    where: Annotated[Where | None, says("in the job that loses most")]
    when: Annotated[When | None, says("in the job that loses most")]
    first_seen: Annotated[Moment, says("end of the first run with it ever, or when that was diagnosed")]
    last_seen: Annotated[Moment, says("the same of the last run")]
    opened_at: Annotated[Moment, says("the same of the first run of this ticket")]
    fixed_at: Moment | None
    fixed_because: str | None
    ack: AckDocument | None
    n_seen: Annotated[int, says("runs that had it, ever", ge=1)]
    n_jobs: Annotated[int, says("jobs in the store that have it now", ge=0)]
    jobs: Annotated[tuple[TicketJob, ...], says("of these the costliest, at most 20", max_length=20)]
    evidence: Annotated[tuple[EvidenceItem, ...], says("of the job that loses most")]
    fixes: Annotated[tuple[Fix, ...], says("for the job that loses most, best first")]
    report: Annotated[
        str | None,
        says("address of the page of the job that loses most, or of another that has it now; null without --site"),
    ]


def _iso_or_none(at_s: float | None) -> str | None:
    """Write a moment that may not be known."""
    return None if at_s is None else iso(at_s)


def iso(at_s: float) -> str:
    """Write a moment as people and programs read it.

    >>> iso(1.5e9)
    '2017-07-14T02:40:00Z'
    """
    return dt.datetime.fromtimestamp(int(at_s), dt.UTC).isoformat().replace("+00:00", "Z")
