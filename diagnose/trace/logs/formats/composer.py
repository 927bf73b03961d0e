"""The console of MosaicML Composer, as LLM Foundry prints it.

Enters: lines. Leaves: steps.

`[batch=10/1000]:` every `console_log_interval`, and below it ` Train time/train: 0.0123`, ` Train throughput/batches_per_sec:
0.39`, a line a metric. `time/train` is the time since the begin of the run without evaluations, in hours unless somebody says
otherwise (before 2023 `wall_clock/train`, in seconds); with four digits it tells what passed over several batches. Where it is
missing, the rate is taken, which is a mean of the last batches.

Source: mosaicml/composer, composer/loggers/console_logger.py, composer/callbacks/speed_monitor.py.
"""

import itertools
import math
import re
from array import array

import numpy as np

from diagnose.model.trace import Seconds
from diagnose.trace.logs.builder import LogBuilder
from diagnose.trace.logs.log_format import LogFormat

_BATCH = re.compile(rb"(?<!Eval )\[batch=(\d{1,12})(?:/(\d{1,12}))?\]")
_EPOCH = re.compile(rb"\[epoch=(\d{1,9})\]\[batch=(\d{1,12})/(\d{1,12})\]")
_TOKENS = re.compile(rb"\[(?:token|sample|second|iteration|time)=\d")
_METRIC = re.compile(
    rb"Train (time/batch|trainer/global_step|(?:time|wall_clock)/(?:train|val)|throughput/(?:batches|tokens|samples)_per_sec)"
    rb": (\d{1,15}(?:\.(\d{1,20}))?)\s*$"
)
_INTERVAL = re.compile(rb"\b(console_log_interval|save_interval|eval_interval): ['\"]?(\d{1,9})ba\b")
_KINDS = {b"console_log_interval": "log", b"save_interval": "save", b"eval_interval": "evaluation"}
#: Seconds in the units that its SpeedMonitor may be told to use.
_UNITS = {"hours": 3600.0, "seconds": 1.0, "minutes": 60.0, "days": 86400.0}
#: A unit is told by the rate where the two agree so well: the units are 24 times apart and more.
AGREE = 3.0


class _Reader:
    def __init__(self, log: LogBuilder) -> None:
        self.log = log
        self.batch, self.train, self.validated = array("q"), array("d"), array("d")
        self.rate, self.tokens = array("d"), array("d")
        self.begins: list[int] = []
        self.is_wall_clock = False
        self.digits = 0
        self.in_block = False

    def take(self, line: bytes) -> bool:
        """Take one line."""
        if b"Train " in line and self.in_block and (said := _METRIC.search(line)):
            self._take_metric(said[1], float(said[2]), len(said[3] or b""))
        elif b"batch=" in line:
            self._take_batch(line)
        elif said := _INTERVAL.search(line):
            self.log.set_interval(_KINDS[said[1]], int(said[2]))  # type: ignore[arg-type]
        elif b"Loading checkpoint from" in line and self.batch:
            self.begins.append(len(self.batch))
            self.in_block = False
        return False

    def _take_batch(self, line: bytes) -> None:
        """Begin the metrics of a batch."""
        if b"[Eval batch=" in line:
            self.log.add_event("evaluation", iteration=self.batch[-1] if self.batch else 0, text=line)
            self.in_block = False
            return
        if said := _EPOCH.search(line):
            batch, total = (int(said[1]) - 1) * int(said[3]) + int(said[2]), None
            self.log.set_interval("epoch", int(said[3]))
        elif said := _BATCH.search(line):
            batch, total = int(said[1]), int(said[2]) if said[2] else None
        elif _TOKENS.search(line):
            batch, total = -1, None  # time/batch below it says which
        else:
            return
        self.log.total = total or self.log.total
        self.in_block = True
        self.batch.append(batch)
        self.log.seen = max(batch, 0)
        for values in (self.train, self.validated, self.rate, self.tokens):
            values.append(math.nan)

    def _take_metric(self, name: bytes, value: float, digits: int) -> None:
        """Take one metric of the batch."""
        what = name.rpartition(b"/")[2]
        if what in (b"batch", b"global_step"):
            if self.batch[-1] < 0:
                self.batch[-1] = int(value) + 1
        elif what == b"train":
            self.train[-1] = value
            self.is_wall_clock = name.startswith(b"wall")
            self.digits = max(self.digits, digits)
        elif what == b"val":
            self.validated[-1] = value
        elif what == b"batches_per_sec":
            self.rate[-1] = value
        elif what == b"tokens_per_sec":
            self.tokens[-1] = value

    def end(self) -> None:
        """Tell all steps: the unit of the clock is known only now."""
        if not self.batch:
            return
        batch, rate = np.array(self.batch), np.array(self.rate)
        begins = sorted({0, *self.begins, *(np.flatnonzero(np.diff(batch) < 0) + 1).tolist(), len(batch)})
        clock_s, error_s = self._read_clock(batch, rate)
        for low, high in itertools.pairwise(begins):
            if low:
                self.log.begin()
            timed = np.flatnonzero(np.isfinite(clock_s[low:high])) + low
            if len(timed) > 1:
                self._tell_clock(batch, clock_s, error_s, timed)
            else:
                self._tell_rate(batch, rate, range(low, high))

    def _read_clock(self, batch: np.ndarray, rate: Seconds) -> tuple[Seconds, float]:
        """Give the clock of all lines in seconds, and half of its last digit."""
        clock = np.array(self.train)
        unit = "seconds" if self.is_wall_clock else "hours"
        with np.errstate(divide="ignore", invalid="ignore"):
            passed = np.diff(clock) / np.diff(batch) * rate[1:]
        passed = passed[np.isfinite(passed) & (passed > 0)]
        if len(passed):
            seconds = 1.0 / float(np.median(passed))
            near = min(_UNITS, key=lambda name: abs(math.log(_UNITS[name] / seconds)))
            unit = near if abs(math.log(_UNITS[near] / seconds)) < math.log(AGREE) else unit
        self.log.reads = f"{'wall_clock' if self.is_wall_clock else 'time'}/train ({unit})"
        return clock * _UNITS[unit], 0.5 * 10.0**-self.digits * _UNITS[unit]

    def _tell_clock(self, batch: np.ndarray, clock_s: Seconds, error_s: float, lines: np.ndarray) -> None:
        """Tell the windows between readings of the clock that are far enough apart."""
        if batch[lines[0]] == 1 and lines[0] == 0 and clock_s[lines[0]] > 0:
            self.log.add_step(1, float(clock_s[lines[0]]), stamp_s=math.nan)
        for low, high, mean_s in self.log.read_clock(batch[lines], clock_s[lines], np.full(len(lines), error_s)):
            if batch[lines[high]] > batch[lines[low]]:
                self.log.add_step(int(batch[lines[high]]), mean_s, stamp_s=math.nan)

    def _tell_rate(self, batch: np.ndarray, rate: Seconds, lines: range) -> None:
        """Tell the rates of lines that have no clock."""
        self.log.reads = "throughput/batches_per_sec, a mean of the last batches"
        for n in lines:
            if rate[n] > 0:
                self.log.add_step(int(batch[n]), float(1.0 / rate[n]), stamp_s=math.nan)


FORMAT = LogFormat(
    name="composer-console",
    title="MosaicML Composer",
    reads="time/train",
    example="[batch=10/1000]: .. Train throughput/batches_per_sec: ..",
    step_marks=(b"batch=", b"Train time/", b"Train wall_clock/", b"Train throughput/", b"Train trainer/global_step"),
    marks=(b"_interval: ", b"Loading checkpoint from"),
    reader=_Reader,
    is_mean=True,
)
