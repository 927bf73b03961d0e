"""Watched jobs on a terminal, drawn anew in place; what else is written to the terminal meanwhile scrolls by above.

Enters: jobs as they are now. Leaves: nothing; where standard output is no terminal that can be drawn on, nobody makes a `Screen`.
"""

from collections.abc import Sequence

from rich.console import Console
from rich.live import Live

from diagnose.model.analysis import ReportData
from diagnose.model.diagnosis import Diagnosis
from diagnose.model.live import LiveEvent, WatchedJob
from diagnose.report.live import draw_job, draw_jobs


class Screen:
    """A view on a terminal: of one job all of it, of many a table."""

    def __init__(self, console: Console | None = None) -> None:
        self._console = console or Console(markup=False, emoji=False, highlight=False)
        self._live = Live(console=self._console, auto_refresh=False, vertical_overflow="crop")
        self._live.start()
        self._diagnoses: dict[str, Diagnosis] = {}

    def diagnosed(self, job: WatchedJob, diagnosis: Diagnosis, data: ReportData | None) -> None:
        """Keep the labels and culprits of the last window."""
        del data
        self._diagnoses[job.location] = diagnosis

    def show(self, jobs: Sequence[WatchedJob], events: Sequence[LiveEvent], now_s: float) -> None:
        """Draw all jobs anew."""
        del events
        width, height = self._console.size
        room = max(height - 1, 1)
        if len(jobs) == 1:
            drawn = draw_job(jobs[0], self._diagnoses.get(jobs[0].location), now_s=now_s, width=width, height=room)
        else:
            self._diagnoses.clear()
            drawn = draw_jobs(jobs, now_s=now_s, width=width, height=room)
        self._live.update(drawn, refresh=True)

    def close(self) -> None:
        """Leave the last picture on the screen."""
        self._live.stop()
