"""The console of nanoGPT and of what descends from it.

Enters: lines. Leaves: steps.

`iter 120: loss 2.1234, time 123.45ms, mfu 30.12%`: every `log_interval` iterations, with the time of the last one alone.
Source: karpathy/nanoGPT, train.py.
"""

import re

from diagnose.trace.logs.builder import LogBuilder
from diagnose.trace.logs.log_format import LogFormat

_STEP = re.compile(rb"\biter (\d{1,12}): loss [^,\s]{1,30}, time (\d{1,12}(?:\.\d{1,9})?)ms")


class _Reader:
    def __init__(self, log: LogBuilder) -> None:
        self.log = log

    def take(self, line: bytes) -> bool:
        """Take one line."""
        if said := _STEP.search(line):
            self.log.add_step(int(said[1]), float(said[2]) * 1e-3)
        return False


FORMAT = LogFormat(
    name="nanogpt",
    title="nanoGPT",
    reads="time (ms) of the logged iteration",
    example="iter N: loss .., time ..ms, mfu ..%",
    step_marks=(b": loss ",),
    reader=_Reader,
)
