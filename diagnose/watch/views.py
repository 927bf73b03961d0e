"""What shows jobs while they run: what it is told, and when.

Enters: jobs as they are now. Leaves: nothing; a view draws, writes or serves them.
"""

from collections.abc import Sequence
from typing import Protocol

from diagnose.model.analysis import ReportData
from diagnose.model.diagnosis import Diagnosis
from diagnose.model.live import LiveEvent, WatchedJob


class View(Protocol):
    """Shows watched jobs. What it raises is told once, and the watch goes on without it."""

    def diagnosed(self, job: WatchedJob, diagnosis: Diagnosis, data: ReportData | None) -> None:
        """Take note of a window: `job.windows[-1]` is of this diagnosis; `data` is None where nothing was replayed."""

    def show(self, jobs: Sequence[WatchedJob], events: Sequence[LiveEvent], now_s: float) -> None:
        """Show all jobs, by location, once a round: `events` are what is new since the last; often there are none."""

    def close(self) -> None:
        """End; nothing is shown any more."""
