"""What a triage run is to do, and which jobs it need not do again.

Enters: what the user asked for, checked. Leaves: yes or no for a job and what is known of it.
"""

import dataclasses

from diagnose.triage.identity import Judge
from diagnose.triage.source import FoundJob
from diagnose.triage.store import KnownJob
from diagnose.triage.worker import Failure, limit_key


@dataclasses.dataclass(frozen=True, slots=True)
class RunSettings:
    """What is asked of a triage run."""

    judge: Judge
    rules: str | None  # Folder with rules of the user's
    memory_bytes: int  # What all jobs together may take
    timeout_s: float  # Seconds for one job
    since_s: float | None = None  # Leave out what was last modified before
    limit: int | None = None  # Do at most so many jobs, the newest
    #: Do known jobs too; do those that failed too.
    force: bool = False
    retry_failed: bool = False

    @property
    def given_up(self) -> set[str]:
        """Identities of jobs that were given up under the same limits."""
        limits = [
            limit_key(Failure.TIMEOUT, self.timeout_s),
            limit_key(Failure.MEMORY, self.memory_bytes),
            limit_key(Failure.MEMORY),
            limit_key(Failure.CRASH),
        ]
        return {self.judge.identify(limit) for limit in limits}

    def is_current(self, known: KnownJob) -> bool:
        """Say whether a job need not be done again while its content is the same."""
        if self.force or (self.retry_failed and known.status == "failed"):
            return False
        if known.status == "pruned":
            return True
        if known.content is None:
            return known.identity in self.given_up
        return self.judge.identify(known.content) == known.identity

    def is_unchanged(self, job: FoundJob, known: KnownJob | None) -> bool:
        """Say whether a job is as it was, by the stamp of its file, and need not be done again."""
        if known is None or job.stamp is None or job.stamp != known.stamp:
            return False
        return self.is_current(known)

    def is_done_since(self, began_at: float, known: KnownJob | None) -> bool:
        """Say whether another triage has done a job, with the same judge, since a moment by the clock of the store."""
        if known is None or known.status == "pruned" or known.diagnosed_at < began_at:
            return False
        return known.content is None or self.judge.identify(known.content) == known.identity
