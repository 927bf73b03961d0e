"""What is found again and again in the runs of a job family, and the ticket that tells of it."""

import dataclasses
import datetime as dt
from typing import Any

SCHEMA = "diagnose-ticket/1"


@dataclasses.dataclass(frozen=True, slots=True)
class Finding:
    """A cause at a place in a job family, through all runs that had it.

    An episode is the time from when it came until it was fixed; when it comes back another begins. All moments in seconds
    since 1970.

    Attributes
    ----------
    fingerprint : str
        Of the cause, as the diagnosis gives it.
    cause, title, family : str
        `family` is the framework and the parallelism in words.
    state : str
        `open` or `fixed`.
    event : str
        How this episode began: `opened` or `reopened`.
    opened_at : float
        The first run of this episode; names its ticket, with the fingerprint.
    reminded_at : float or None
        When an acknowledgement of this episode ran out.
    first_seen_at, last_seen_at : float
        The first run with it ever, and the last.
    last_ended_at : float or None
        When the last run with it ended, by the metadata of the jobs; None where one of this episode does not say.
    last_noted_at : float
        When the last run with it came into the store.
    n_seen : int
        Runs that had it, in all episodes.
    severity, who, owner : str or None
        As the worst run said when the episode began: they are how alerts are told apart, and stay.
    worst_location : str
        The run of this episode that loses most.
    gpu_hours_lost_per_day : float or None
        In that run: its GPUs x 24 hours x the part of the step time that comes back.
    confidence : float
        The highest of this episode.
    particulars : str
        The entry of `causes` in the diagnosis of that run, as JSON.
    fixed_at, fixed_because
        None while it is open.
    """

    fingerprint: str
    cause: str
    title: str
    family: str
    state: str
    event: str
    opened_at: float
    reminded_at: float | None
    first_seen_at: float
    last_seen_at: float
    last_ended_at: float | None
    last_noted_at: float
    n_seen: int
    severity: str | None
    who: str | None
    owner: str | None
    worst_location: str
    gpu_hours_lost_per_day: float | None
    confidence: float
    particulars: str
    fixed_at: float | None = None
    fixed_because: str | None = None

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
    """What is told of a finding: to programs as `to_dict` gives it.

    `particulars` is the entry of `causes` of the worst run; `summary` one line that is safe to show; `n_jobs` counts jobs in
    the store that have the finding now, and `jobs` are the first of them, the costliest first.
    """

    finding: Finding
    ack: Ack | None
    summary: str
    particulars: dict[str, Any]
    n_jobs: int
    jobs: tuple[JobWithFinding, ...]
    report: str | None

    def to_dict(self) -> dict[str, Any]:
        """Give the object that `diagnose tickets` prints; it validates against `diagnose schema ticket`."""
        finding, ack, found = self.finding, self.ack, self.particulars
        return {
            "schema": SCHEMA,
            "id": finding.ticket,
            "key": finding.key,
            "event": finding.latest_event,
            "state": "acked" if ack is not None and finding.state == "open" else finding.state,
            "fingerprint": finding.fingerprint,
            "cause": finding.cause,
            "title": finding.title,
            "summary": self.summary,
            "severity": finding.severity,
            "owner": finding.owner,
            "who": finding.who,
            "family": finding.family,
            "gpu_hours_lost_per_day": finding.gpu_hours_lost_per_day,
            "confidence": finding.confidence,
            "recoverable": found.get("recoverable"),
            "where": found.get("where"),
            "when": found.get("when"),
            "first_seen": iso(finding.first_seen_at),
            "last_seen": iso(finding.last_seen_at),
            "opened_at": iso(finding.opened_at),
            "fixed_at": None if finding.fixed_at is None else iso(finding.fixed_at),
            "fixed_because": finding.fixed_because,
            "ack": None
            if ack is None
            else {"reason": ack.reason, "until": None if ack.until_at is None else iso(ack.until_at)},
            "n_seen": finding.n_seen,
            "n_jobs": self.n_jobs,
            "jobs": [dataclasses.asdict(job) | {"seen_at": iso(job.seen_at)} for job in self.jobs],
            "evidence": found.get("evidence", []),
            "fixes": found.get("fixes", []),
            "report": self.report,
        }


def iso(at_s: float) -> str:
    """Write a moment as people and programs read it.

    >>> iso(1.5e9)
    '2017-07-14T02:40:00Z'
    """
    return dt.datetime.fromtimestamp(int(at_s), dt.UTC).isoformat().replace("+00:00", "Z")
