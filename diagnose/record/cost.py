"""What recording costs a job: measured on the training's own thread while the first steps are recorded.

Enters: what hooks take, call by call, and when steps end. Leaves: by which part a recorded step is longer.
"""

import statistics
import time
from collections.abc import Callable
from typing import Any

#: What is timed is called by what wraps a function of the job: with that a hook takes so many times as long.
WRAPPED = 1.3


class Cost:
    """Sums what the recorder takes of the steps; what stands out (a first write, a planned collection) does not count.

    Parameters
    ----------
    now : function
        Gives nanoseconds.
    """

    def __init__(self, now: Callable[[], int] = time.perf_counter_ns) -> None:
        self.now = now
        #: Nanoseconds that the recorder has taken so far, while hooks are timed.
        self.taken_ns = 0
        #: Have all hooks run timed, or no longer.
        self.time_hooks: Callable[[bool], None] = lambda _on: None
        self._ended_ns = 0
        self._taken_before_ns = 0
        #: Of each recorded step: nanoseconds that it took, and how many of these the recorder did.
        self._steps: list[tuple[int, int]] = []

    def timed(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """Make a function whose time counts."""

        def call(*args: Any, **kwargs: Any) -> Any:
            began = self.now()
            try:
                return function(*args, **kwargs)
            finally:
                self.taken_ns += self.now() - began

        return call

    def start(self) -> None:
        """Begin to measure, between two steps."""
        self.time_hooks(True)  # noqa: FBT003 - as a switch is called
        self._ended_ns, self._taken_before_ns = self.now(), self.taken_ns

    def end_step(self, *, is_recorded: bool) -> None:
        """Note that a step has ended."""
        ended_ns, taken_ns = self.now(), self.taken_ns
        if is_recorded:
            self._steps.append((ended_ns - self._ended_ns, taken_ns - self._taken_before_ns))
        self._ended_ns, self._taken_before_ns = ended_ns, taken_ns

    def stop(self) -> float:
        """Measure no longer, and say by which part of it a step is longer that is recorded; 0 where none was seen."""
        self.time_hooks(False)  # noqa: FBT003 - as a switch is called
        if not self._steps:
            return 0.0
        step_ns, taken_ns = (statistics.median(column) for column in zip(*self._steps, strict=True))
        self._steps.clear()
        taken_ns *= WRAPPED
        return float(taken_ns / max(step_ns - taken_ns, 1.0))
