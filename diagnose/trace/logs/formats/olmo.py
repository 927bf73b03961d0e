"""The consoles of OLMo and OLMo-core.

Enters: lines. Leaves: steps, tokens, time in the loader.

A step is told in several lines::

    2024-08-06 10:00:05.520 host:0  olmo.train:908  INFO    [step=2/739328,epoch=0]
        throughput/total_tokens=2,097,152
        throughput/device/batches_per_second=0.0254

The rates are those of a window of steps; what passed from stamp to stamp is the mean since the line before, and is taken.
Sources: allenai/OLMo, olmo/train.py (`log_metrics_to_console`); allenai/OLMo-core, src/olmo_core/train/callbacks, console_logger.py
and speed_monitor.py.
"""

import re

from diagnose.trace.logs.builder import LogBuilder
from diagnose.trace.logs.log_format import LogFormat

#: Lines of metrics of a step, and lines among them that are of others.
MAX_METRICS = 2_000
LINES_BETWEEN = 16

_HEAD = re.compile(rb"\[step=(\d{1,12})(?:/(\d{1,12}))?[\],]")
_METRIC = re.compile(rb"^\s{2,40}([A-Za-z][^=]{1,150})=([\d.,]{1,40})(?:e[+-]?\d{1,3})?\s*$")
_TOTAL_TOKENS = (b"throughput/total_tokens", b"throughput/total tokens")
_RATES = (b"throughput/device/batches_per_second", b"throughput/device/BPS")
_LOADING = b"throughput/device/data loading (s)"


class _Reader:
    def __init__(self, log: LogBuilder) -> None:
        self.log = log
        self.wanted = self.between = 0
        self.total: tuple[int, float] | None = None

    def take(self, line: bytes) -> bool:
        """Take one line."""
        if said := _HEAD.search(line):
            if said[2]:
                self.log.total = int(said[2])
            self.log.add_step(int(said[1]))
            self.wanted, self.between = MAX_METRICS, 0
        elif self.wanted and (said := _METRIC.match(line)):
            self.wanted -= 1
            self.between = 0
            self._add_metric(said[1], said[2].replace(b",", b""))
        else:
            self.between += 1
            if self.between > LINES_BETWEEN:
                self.wanted = 0
        return self.wanted > 0

    def _add_metric(self, name: bytes, digits: bytes) -> None:
        """Add what is said of the last step."""
        try:
            value = float(digits)
        except ValueError:
            return
        if name in _TOTAL_TOKENS:
            before, self.total = self.total, (self.log.last, value)
            if before is not None and self.log.last > before[0]:
                self.log.set_tokens((value - before[1]) / (self.log.last - before[0]))
        elif name == _LOADING:
            self.log.add_part("data", value)
        elif name in _RATES and value > 0:
            self.log.set_fallback(1 / value)


FORMAT = LogFormat(
    name="olmo",
    title="OLMo",
    reads="the time of each line, from line to line",
    example="[step=N/M,epoch=E] and indented lines throughput/device/batches_per_second=..",
    is_mean=True,
    step_marks=(b"[step=",),
    reader=_Reader,
)
