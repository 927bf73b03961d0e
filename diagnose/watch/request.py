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
    """What the user asks for."""

    #: Folders, files and globs, as `diagnose triage` takes them.
    sources: tuple[str, ...]
    #: Steps that are diagnosed together, of what is written step by step.
    window_steps: int = WINDOW_STEPS
    #: Seconds between two looks.
    interval_s: float = INTERVAL_S
    #: Diagnose what is there, and stop; else go on until somebody ends it.
    once: bool = False
    #: What the machines of all jobs measure: a file, a folder, or the address of a Prometheus server, asked for each window.
    telemetry: str | None = None
    #: `rules`, `min_speedup`, `memory_bytes`: as in `Request`.
    rules: Path | None = None
    min_speedup: float = MIN_SPEEDUP
    memory_bytes: int | None = None
