"""What came of a night of triage: the counts, and what failed or cost most."""

import dataclasses
from typing import Any

SCHEMA = "diagnose-triage/1"


@dataclasses.dataclass(frozen=True, slots=True)
class Failed:
    """A job without a diagnosis: `failure` is its kind, `reason` one line."""

    location: str
    failure: str
    reason: str


@dataclasses.dataclass(frozen=True, slots=True)
class Costly:
    """A job that wasted GPU hours, and the first of its causes, None where none was found.

    `slower` is how many times as long its steps are as without what is named, `slowdown` the paper's S.
    """

    location: str
    job_id: str
    gpu_hours_wasted: float
    slowdown: float
    slower: float | None
    cause: str | None


@dataclasses.dataclass(frozen=True, slots=True)
class TriageRun:
    """What a triage did."""

    #: Its URL without the password.
    store: str
    #: Jobs that the sources named; the next six counts sum to it.
    n_found: int
    #: `n_diagnosed`, `n_failed`: done now.
    n_diagnosed: int
    n_failed: int
    #: Left alone because neither they nor what judges them has changed, `n_known_by_time` of these by size and time of the file
    #: alone and the others by content; `n_known_failed` of them had failed.
    n_known: int
    n_known_by_time: int
    n_known_failed: int
    #: In work in another triage, or done by it meanwhile.
    n_elsewhere: int
    #: Older than `--since`.
    n_older: int
    #: Left for later: beyond `--limit`, in a dry run, or after an interruption.
    n_left: int
    #: Verdict -> jobs diagnosed now.
    by_verdict: dict[str, int]
    #: `gpu_hours_analysed`, `gpu_hours_wasted`: of the jobs diagnosed now, without the inconclusive ones: nobody knows what
    #: these lost.
    gpu_hours_analysed: float
    gpu_hours_wasted: float
    #: `took_s`, `store_s`: seconds, and those of them in which the store was waited for.
    took_s: float
    store_s: float
    #: `failed`, `costly`: all that failed, by location; the most wasteful first, at most ten.
    failed: tuple[Failed, ...] = ()
    costly: tuple[Costly, ...] = ()
    #: In a dry run, what would be done.
    wanted: tuple[str, ...] = ()
    #: Files in folders without a job that are called as logs are: they are done where they are named.
    n_logs: int = 0

    def to_dict(self) -> dict[str, Any]:
        """Give the object that `--format json` prints."""
        return {"schema": SCHEMA} | dataclasses.asdict(self)


@dataclasses.dataclass(frozen=True, slots=True)
class Progress:
    """How far a night has come: jobs to do, done and failed, seconds since the first began, and jobs in work."""

    n_jobs: int
    n_done: int
    n_failed: int
    n_running: int
    took_s: float

    @property
    def rate(self) -> float:
        """Jobs a second."""
        return self.n_done / self.took_s if self.took_s > 0 else 0.0

    @property
    def remaining_s(self) -> float | None:
        """Seconds left at this rate; None before a job is done."""
        return (self.n_jobs - self.n_done) / self.rate if self.rate else None
