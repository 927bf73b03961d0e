"""What a user asked to be priced by hand, and what came out."""

import dataclasses
from typing import Any

from diagnose.model.cause import Fix
from diagnose.model.change import Change
from diagnose.model.plain import to_plain


@dataclasses.dataclass(frozen=True, slots=True)
class HandFixes:
    """What a user wants to be priced, as text."""

    #: `NAME` or `NAME:key=value,key=value`; without a place a fix acts where the diagnosis sees its cause.
    fixes: tuple[str, ...] = ()
    #: `TYPE [stage=N] [dp=N] [step=N] xFACTOR`.
    scales: tuple[str, ...] = ()


@dataclasses.dataclass(frozen=True, slots=True)
class HandFixPrice:
    """One fix, or one scaling, of those that the user gave, in their order."""

    #: As the user wrote it.
    text: str
    #: The fix priced alone; None where it is refused.
    fix: Fix | None
    #: Why it is not for this job.
    refused: str | None
    #: `after_step_time`, `after_speedup`: with it and all before it: seconds, and against the recorded step time.
    after_step_time: float | None
    after_speedup: float | None
    #: Part of the step time after those before it that it gives back.
    gain: float | None


@dataclasses.dataclass(frozen=True, slots=True)
class HandPrices:
    """A job before and after some fixes; times in seconds a step, launch delays in."""

    job_id: str
    recorded_s: float
    #: With all that were not refused.
    predicted_s: float
    #: By which part of it the replay misses the recorded step time: no prediction is better than that.
    replay_error: float
    asked: tuple[HandFixPrice, ...]
    #: All that was not refused, for pictures.
    changes: tuple[Change, ...]

    @property
    def speedup(self) -> float | None:
        """How many times as fast the job will run."""
        return self.recorded_s / self.predicted_s if self.predicted_s > 0 else None

    def to_dict(self) -> dict[str, Any]:
        """Give the object that `diagnose what-if --format json` prints."""
        plain: dict[str, Any] = to_plain(
            {
                "schema": "diagnose-what-if/1",
                "job": self.job_id,
                "recorded_step_time": self.recorded_s,
                "predicted_step_time": self.predicted_s,
                "predicted_speedup": self.speedup,
                "replay_error": self.replay_error,
                "asked": self.asked,
            }
        )
        return plain
