"""The metrics of torchtune's loggers for disk and console.

Enters: lines. Leaves: the pace of steps.

`Step 12 | loss:0.97 lr:2e-05 tokens_per_second_per_gpu:414.7`: the rate of the logged step alone. How many tokens a step has is
nowhere, and it varies from step to step; so only the pace is known, seconds of a million tokens. Its console has a bar of tqdm
besides, which tells the time of steps: `progress_bars.py`.

Source: pytorch/torchtune, torchtune/training/metric_logging.py (`DiskLogger`, `StdoutLogger`).
"""

import re

from diagnose.trace.logs.builder import LogBuilder
from diagnose.trace.logs.log_format import LogFormat

_STEP = re.compile(rb"\bStep (\d{1,12}) \| [^\n]{0,400}?tokens_per_second_per_gpu:(\d{1,12}(?:\.\d{1,20})?)")
#: Tokens that seconds are told of.
NOMINAL_TOKENS = 1_000_000


class _Reader:
    def __init__(self, log: LogBuilder) -> None:
        self.log = log
        log.of = "1,000,000 tokens of a GPU"

    def take(self, line: bytes) -> bool:
        """Take one line."""
        if (said := _STEP.search(line)) and float(said[2]) > 0:
            self.log.add_step(int(said[1]), NOMINAL_TOKENS / float(said[2]))
        return False


FORMAT = LogFormat(
    name="torchtune-metrics",
    title="torchtune",
    reads="tokens_per_second_per_gpu: how many tokens a step has is not stated",
    example="Step 12 | loss:.. lr:.. tokens_per_second_per_gpu:..",
    step_marks=(b"tokens_per_second_per_gpu:",),
    reader=_Reader,
)
