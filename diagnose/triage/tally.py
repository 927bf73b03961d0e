"""The counts of a triage run as it goes on.

Enters: rows of jobs that were done, and jobs that were left alone. Leaves: a `TriageRun`.
"""

import dataclasses
from collections import Counter
from collections.abc import Sequence

from diagnose.model.fleet_document import COUNTED
from diagnose.model.named import measure_slower
from diagnose.model.triage_run import Costly, Failed, TriageRun
from diagnose.triage.rows import CauseRow, JobRow
from diagnose.triage.store import KnownJob

#: Jobs listed as the most wasteful: what fits on a screen.
N_COSTLY = 10


@dataclasses.dataclass(slots=True)
class Tally:
    """The counts of a triage run."""

    n_done: int = 0
    n_older: int = 0
    n_known: int = 0
    n_known_by_time: int = 0
    n_known_failed: int = 0
    n_elsewhere: int = 0
    verdicts: Counter[str] = dataclasses.field(default_factory=Counter)
    hours: float = 0.0
    wasted: float = 0.0
    failed: list[Failed] = dataclasses.field(default_factory=list)
    costly: list[Costly] = dataclasses.field(default_factory=list)

    def add(self, row: JobRow, causes: Sequence[CauseRow]) -> None:
        """Count a job that was done, with its causes."""
        if row.status == "failed":
            self.failed.append(Failed(row.location, row.failure or "", row.reason or ""))
            return
        self.verdicts[row.verdict or ""] += 1
        if row.verdict not in COUNTED:  # as in `diagnose fleet`
            return
        self.hours += row.gpu_hours_analysed or 0.0
        self.wasted += row.gpu_hours_wasted or 0.0
        if row.verdict == "straggling" and row.gpu_hours_wasted:
            lost = row.gpu_hours_wasted / row.gpu_hours_analysed if row.gpu_hours_analysed else 0.0
            slower = measure_slower(lost, causes, is_log=not row.n_ops) if lost else None
            cost = Costly(
                row.location,
                row.job_id or "",
                row.gpu_hours_wasted,
                row.slowdown or 0.0,
                slower,
                row.top_cause,
            )
            self.costly = sorted([*self.costly, cost], key=lambda job: (-job.gpu_hours_wasted, job.location))[:N_COSTLY]

    def count_known(self, known: KnownJob | None, *, by_time: bool) -> None:
        """Count a job that was left alone."""
        self.n_known += 1
        self.n_known_by_time += by_time
        self.n_known_failed += known is not None and known.status == "failed"

    def sum_up(self, n_found: int, *, store: str, took_s: float, store_s: float) -> TriageRun:
        """Say what came of the run."""
        n_diagnosed, n_failed = sum(self.verdicts.values()), len(self.failed)
        n_seen = n_diagnosed + n_failed + self.n_known + self.n_elsewhere + self.n_older
        return TriageRun(
            store=store,
            n_found=n_found,
            n_diagnosed=n_diagnosed,
            n_failed=n_failed,
            n_known=self.n_known,
            n_known_by_time=self.n_known_by_time,
            n_known_failed=self.n_known_failed,
            n_elsewhere=self.n_elsewhere,
            n_older=self.n_older,
            n_left=n_found - n_seen,
            by_verdict=dict(sorted(self.verdicts.items())),
            gpu_hours_analysed=self.hours,
            gpu_hours_wasted=self.wasted,
            took_s=took_s,
            store_s=store_s,
            failed=tuple(sorted(self.failed, key=lambda job: job.location)),
            costly=tuple(self.costly),
        )
