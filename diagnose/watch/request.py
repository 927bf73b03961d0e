"""What is asked of a watch."""

import dataclasses
from pathlib import Path

from diagnose.model.request import MIN_SPEEDUP

#: Recorded steps of a window where nobody says another number: five of the runs of four steps that the recorder takes, so that
#: what lies between steps, and what comes only now and then, has several chances to show.
WINDOW_STEPS = 20
#: Seconds between two looks at the files of a job. The recorder writes once a minute.
INTERVAL_S = 5.0


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class WatchRequest:
    """What the user asks for.

    Attributes
    ----------
    sources : tuple of str
        Folders, files and globs, as `diagnose triage` takes them.
    window_steps : int
        Steps that are diagnosed together, of what is written step by step.
    interval_s : float
        Seconds between two looks.
    once : bool
        Diagnose what is there, and stop; else go on until somebody ends it.
    telemetry : str or None
        What the machines of all jobs measure: a file, a folder, or the address of a Prometheus server, asked for each window.
    rules, min_speedup, memory_bytes
        As in `Request`.
    """

    sources: tuple[str, ...]
    window_steps: int = WINDOW_STEPS
    interval_s: float = INTERVAL_S
    once: bool = False
    telemetry: str | None = None
    rules: Path | None = None
    min_speedup: float = MIN_SPEEDUP
    memory_bytes: int | None = None
