"""What shows on a terminal how far the work has come.

Enters: the name of a stage, or how far a triage is. Leaves: a line on standard error that goes when the work is done.
"""

import threading
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

if TYPE_CHECKING:
    from rich.status import Status

    from diagnose.model.triage_run import Progress

#: A job that is diagnosed sooner shows no progress.
PROGRESS_AFTER_S = 1.0


class StageDisplay:
    """Shows on standard error which stage of the pipeline runs, once a job takes longer than a second."""

    def __init__(self, job: str, *, shown: bool) -> None:
        self._job = job
        self._stage = "reading"
        self._status: Status | None = None
        self._ended = False
        self._lock = threading.Lock()
        self._timer = threading.Timer(PROGRESS_AFTER_S, self._show) if shown else None

    def __enter__(self) -> Self:
        if self._timer:
            self._timer.daemon = True
            self._timer.start()
        return self

    def __call__(self, stage: str) -> None:
        """Take the name of the stage that begins."""
        with self._lock:
            self._stage = stage
            if self._status:
                self._status.update(self._text())

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None
    ) -> None:
        if self._timer:
            self._timer.cancel()
        with self._lock:
            self._ended = True
            if self._status:
                self._status.stop()

    def _show(self) -> None:
        """Begin to show the stage; runs in the thread of the timer."""
        from rich.console import Console

        with self._lock:
            if not self._ended:
                self._status = Console(stderr=True).status(self._text())
                self._status.start()

    def _text(self) -> Any:
        """Say what is being done to which job."""
        from rich.text import Text

        from diagnose.report.escape import escape

        return Text(f"{escape(self._job)}: {escape(self._stage)}")


class TriageDisplay:
    """Shows on standard error how far a triage has come, with its rate and the time that remains."""

    def __init__(self, *, shown: bool) -> None:
        self._shown = shown
        self._status: Status | None = None

    def __enter__(self) -> Self:
        return self

    def __call__(self, progress: "Progress") -> None:
        """Take how far it has come."""
        if not self._shown:
            return
        from rich.console import Console
        from rich.text import Text

        from diagnose.report.triage import describe_progress

        text = Text(describe_progress(progress))
        if self._status is None:
            self._status = Console(stderr=True).status(text)
            self._status.start()
        self._status.update(text)

    def __exit__(self, *_error: object) -> None:
        if self._status is not None:
            self._status.stop()
