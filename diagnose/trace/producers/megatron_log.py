"""The log that Megatron-LM, and what is built on it, prints: step times, restarts, timers, lines of the straggler detector.

Enters: a text file of any size, plain or packed by gzip, as one rank or all of them wrote it. Leaves: a `TrainingLog`. It has no
operations, so there is no `Recording` to be read from it: `read` says so.
"""

import datetime as dt
import re
from array import array
from pathlib import Path
from typing import NoReturn

import numpy as np

from diagnose.errors import TraceError
from diagnose.model.diagnosis_document import LogRestart
from diagnose.model.training_log import Extremes, LogEvent, RankTimes, TrainingLog
from diagnose.trace.producers.catalogue import Report
from diagnose.trace.producers.contents import name_in
from diagnose.trace.producers.input_files import InputFiles
from diagnose.trace.producers.lines import read_lines

NAME = "megatron-log"
TITLE = "Megatron-LM log: step times, onset and restarts; alone, or beside a trace with --log"

#: Files looked at before a folder is taken for something else, and bytes at the end of each.
FILES_ASKED = 16
TAIL_BYTES = 1 << 16
#: Lines between two reports of progress.
REPORT_LINES = 1 << 20
#: Longer than any step.
MAX_STEP_S = 1e6
#: Seconds in a millisecond, the unit of the log.
MS = 1e-3

#: `iteration  10/  1200 | .. elapsed time per iteration (ms): 1851.0`; a line that another rank wrote into gives neither its
#: time to the wrong iteration nor the reverse.
_ITERATION = re.compile(
    rb"iteration\s+(\d{1,12})\s*/\s*(\d{1,12})\s*\|(?:(?!iteration\s+\d+\s*/).){0,4000}?"
    rb"elapsed time per iteration \(ms\):\s*(\d{1,12}(?:\.\d{1,9})?)"
)
_MARK = b"elapsed time per iteration"
_STAMP = re.compile(rb"\[(\d{4}-\d\d-\d\d[ T]\d\d:\d\d:\d\d(?:\.\d{1,6})?)\]\s*$")
_BATCH = re.compile(rb"global batch size:\s*(\d{1,9})\b")
_TIMER = re.compile(rb"(?:^|[\s:\]])([a-z][a-z0-9-]{2,60}):\s*$")
_RANK_TIME = re.compile(rb"(?:^|[\s:\]])rank\s+(\d{1,7}):\s*(\d{1,12}(?:\.\d{1,9})?)\s*$")
_SAVE = re.compile(rb"\bsave-checkpoint(?:-non-persistent)? \.*:\s*\(\s*[\d.]{1,15},\s*(\d{1,12}(?:\.\d{1,9})?)\)")
_EXTREME = re.compile(rb"\b(Mn|Mx)(Rtt|Pwr|Tmp|Utl|Clk)/Rnk:\s*(\d{1,12}(?:\.\d{1,9})?)[A-Za-z%]{0,4}/(\d{1,7})\b")
_SIZE = re.compile(
    rb"(?:^|[\s:\]])(world_size|data_parallel_size|tensor_model_parallel_size|pipeline_model_parallel_size|context_parallel_size)"
    rb" \.+ (\d{1,7})\s*$"
)
_BEGINS = re.compile(rb"-{4,} arguments -{4,}|time to initialize megatron|using world size: \d+")
SIZES = {
    b"world_size": "world_size",
    b"data_parallel_size": "dp_size",
    b"tensor_model_parallel_size": "tp_size",
    b"pipeline_model_parallel_size": "pp_size",
    b"context_parallel_size": "cp_size",
}
#: Timers whose ranks do different work where they are slow; all others wait for peers.
TIMERS = (b"forward-compute", b"backward-compute", b"batch-generator")


def recognise(inputs: InputFiles) -> bool:
    """Say whether one of the first files begins as Megatron-LM does, or has a line of an iteration near its begin or end."""
    return any(_is_log(inputs, file) for file in inputs.files[:FILES_ASKED])


def read(inputs: InputFiles, *, name: str, report: Report) -> NoReturn:  # noqa: ARG001 - what every producer takes
    """Say that a log holds no operations: always raises a `TraceError`."""
    raise TraceError(
        "is a training log, which has step times and no operations; expected a trace: `diagnose LOG` tells since when steps are "
        "slow, `diagnose TRACE --log LOG` joins it to a trace",
        where=name,
    )


def read_log(inputs: InputFiles, *, name: str, report: Report) -> TrainingLog:
    """Read the lines of one run: a file, or a folder with the logs of all nodes.

    Raises
    ------
    TraceError
        There is no line of an iteration, or a file cannot be read.
    """
    found = _Lines()
    for file in inputs.files:
        where = name_in(inputs.path, file, name)
        for n, line in enumerate(read_lines(file, name=where)):
            if not n % REPORT_LINES:
                report(f"{file.name}, line {n:,}")
            found.take(line)
    if not found.iteration:
        raise TraceError(
            "has no line with `iteration N/ M | .. elapsed time per iteration (ms): ..`; expected the log of the last rank of "
            "Megatron-LM, or of all ranks",
            where=name,
        )
    return found.finish(name)


def _is_log(inputs: InputFiles, file: Path) -> bool:
    """Say whether a file is a log, by both its ends."""
    head = inputs.head(file)
    if head.startswith(b"PAR1") or b"\0" in head[:1024]:
        return False
    if _BEGINS.search(head) or _ITERATION.search(head):
        return True
    try:
        with file.open("rb") as content:
            content.seek(max(0, file.stat().st_size - TAIL_BYTES))
            return _ITERATION.search(content.read(TAIL_BYTES)) is not None
    except OSError:
        return False


class _Lines:
    """What was found so far; numbers only, so that a log of any length fits."""

    def __init__(self) -> None:
        self.iteration, self.step_s, self.batch_size = array("q"), array("d"), array("q")
        self.attempt, self.stamp = array("q"), array("d")
        self.restarts: list[LogRestart] = []
        self.total: int | None = None
        self.timers = {timer: (array("q"), array("l"), array("f")) for timer in TIMERS}
        self.timer: bytes | None = None
        self.extremes: dict[bytes, tuple[array[int], array[float]]] = {}
        self.events: list[LogEvent] = []
        self.sizes: dict[str, int] = {}

    def take(self, line: bytes) -> None:
        """Take one line; most say nothing that is wanted."""
        if _MARK in line:
            for match in _ITERATION.finditer(line):
                self._add_iteration(line, match)
            self.timer = None
        elif b"rank" in line and self.timer is not None and (said := _RANK_TIME.search(line)):
            self._add_rank(int(said[1]), float(said[2]) * MS)
        elif b"/Rnk:" in line:
            self._add_extremes(line)
        elif b"save-checkpoint" in line and (said := _SAVE.search(line)):
            iteration = self.iteration[-1] if self.iteration else 0
            self.events.append(LogEvent("save", iteration, float(said[1]) * MS))
        elif b"_size .." in line and (said := _SIZE.search(line)):
            self.sizes[SIZES[said[1]]] = int(said[2])
        elif line.rstrip().endswith(b":") and (said := _TIMER.search(line)):
            self.timer = said[1] if said[1] in self.timers else None

    def _add_iteration(self, line: bytes, match: re.Match[bytes]) -> None:
        """Add the line of an iteration; one that falls back begins another attempt."""
        iteration, step_s = int(match[1]), float(match[3]) * MS
        if not 0 < step_s < MAX_STEP_S:
            return
        said = _STAMP.search(line, 0, match.start())
        stamp = _seconds(said[1]) if said else float("nan")
        if self.iteration and iteration <= self.iteration[-1]:
            if iteration == self.iteration[-1] and step_s == self.step_s[-1]:
                return  # the same line by two ways
            gap_s = stamp - self.stamp[-1]
            self.restarts.append(LogRestart(self.iteration[-1], iteration, gap_s if gap_s >= 0 else None))
        batch = _BATCH.search(line, match.end())
        self.total = int(match[2])
        self.iteration.append(iteration)
        self.step_s.append(step_s)
        self.batch_size.append(int(batch[1]) if batch else 0)
        self.attempt.append(len(self.restarts))
        self.stamp.append(stamp)

    def _add_rank(self, rank: int, seconds: float) -> None:
        """Add the time of one rank in the timer that is being listed."""
        assert self.timer is not None
        iterations, ranks, values = self.timers[self.timer]
        iterations.append(self.iteration[-1] if self.iteration else 0)
        ranks.append(rank)
        values.append(seconds)

    def _add_extremes(self, line: bytes) -> None:
        """Add a report of the straggler detector; of a measure that is not whole nothing."""
        seen = {(key, end): (float(value), int(rank)) for end, key, value, rank in _EXTREME.findall(line)}
        for key in {key for key, _ in seen}:
            low, high = seen.get((key, b"Mn")), seen.get((key, b"Mx"))
            if low is None or high is None:
                continue
            whole, real = self.extremes.setdefault(key, (array("q"), array("d")))
            whole.extend((self.iteration[-1] if self.iteration else 0, low[1], high[1]))
            real.extend((low[0], high[0]))

    def finish(self, name: str) -> TrainingLog:
        """Give all that was found."""
        timers = {
            timer.decode(): RankTimes(
                np.array(iterations, dtype=np.int64),
                np.array(ranks, dtype=np.int64),
                np.array(values, dtype=np.float64),
            )
            for timer, (iterations, ranks, values) in self.timers.items()
            if ranks
        }
        extremes = {}
        for key, (whole, real) in self.extremes.items():
            numbers = np.array(whole, dtype=np.int64).reshape(-1, 3).T
            values = np.array(real, dtype=np.float64).reshape(-1, 2).T
            extremes[key.decode()] = Extremes(numbers[0], values[0], numbers[1], values[1], numbers[2])
        return TrainingLog(
            name=name,
            format="Megatron-LM",
            reads="elapsed time per iteration (ms)",
            is_mean=True,
            stamp_s=np.array(self.stamp, dtype=np.float64),
            tokens=np.full(len(self.iteration), np.nan),
            iteration=np.array(self.iteration, dtype=np.int64),
            step_s=np.array(self.step_s, dtype=np.float64),
            batch_size=np.array(self.batch_size, dtype=np.int64),
            attempt=np.array(self.attempt, dtype=np.int64),
            restarts=tuple(self.restarts),
            total=self.total,
            timers=timers,
            extremes=extremes,
            events=tuple(self.events),
            sizes=self.sizes,
        )


def _seconds(stamp: bytes) -> float:
    """Read a time of day, in whatever zone the job ran; NaN where it is none."""
    try:
        return dt.datetime.fromisoformat(stamp.decode()).replace(tzinfo=dt.UTC).timestamp()
    except ValueError:
        return float("nan")
