"""The console of MaxText.

Enters: lines. Leaves: steps, evaluations, saves.

`completed step: 9, seconds: 5.667, TFLOP/s/device: 134.924, Tokens/s/device: 8672.758, total_weights: 196608, loss: 10.374`, every
step, with its own time; shapes are fixed, so weights (tokens that are no padding) change no time.
Source: AI-Hypercomputer/maxtext, src/MaxText/metric_logger.py and docs/guides/understand_logs_and_metrics.md.
"""

import re

from diagnose.trace.logs.builder import LogBuilder
from diagnose.trace.logs.log_format import LogFormat

_STEP = re.compile(rb"completed step: (\d{1,12}), seconds: (\d{1,12}(?:\.\d{1,9})?)")
_AT_STEP = re.compile(rb"\bstep (\d{1,12})\b")
_EVALUATION = b"Completed eval after train step"
_SAVE = b"saved a checkpoint at step"


class _Reader:
    def __init__(self, log: LogBuilder) -> None:
        self.log = log

    def take(self, line: bytes) -> bool:
        """Take one line."""
        if said := _STEP.search(line):
            self.log.add_step(int(said[1]), float(said[2]))
        elif said := _AT_STEP.search(line):
            if _EVALUATION in line:
                self.log.add_event("evaluation", iteration=int(said[1]), text=line)
            elif _SAVE in line.lower():
                self.log.add_event("save", iteration=int(said[1]), text=line)
        return False


FORMAT = LogFormat(
    name="maxtext",
    title="MaxText",
    reads="seconds of each step",
    example="completed step: N, seconds: .., TFLOP/s/device: .., Tokens/s/device: ..",
    step_marks=(b"completed step: ",),
    marks=(_EVALUATION, b"aved a checkpoint at step"),
    reader=_Reader,
)
