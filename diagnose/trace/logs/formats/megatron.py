"""The log that Megatron-LM, and what is built on it, prints: step times, restarts, timers, lines of the straggler detector.

Enters: lines. Leaves: steps, times of ranks, saves, sizes.
"""

import re

from diagnose.trace.logs.builder import LogBuilder
from diagnose.trace.logs.log_format import LogFormat
from diagnose.trace.logs.stamps import find_stamp

#: Seconds in each unit that the log names.
UNITS = {b"ms": 1e-3, b"s": 1.0}
SIZES = {
    b"world_size": "world_size",
    b"data_parallel_size": "dp_size",
    b"tensor_model_parallel_size": "tp_size",
    b"pipeline_model_parallel_size": "pp_size",
    b"context_parallel_size": "cp_size",
}
#: Timers whose ranks do different work where they are slow; all others wait for peers.
TIMERS = (b"forward-compute", b"backward-compute", b"batch-generator")
#: Lines of a list of ranks that are passed over before it is taken for ended: another rank wrote them.
LINES_BETWEEN = 16

_MARK = b"elapsed time per iteration"
_COUNTER = re.compile(rb"iteration\s{1,20}(\d{1,12})\s{0,20}/\s{0,20}(\d{1,12})\s{0,20}\|")
_TIME = re.compile(_MARK + rb" \((ms|s)\):?\s{0,20}(\d{1,12}(?:\.\d{1,9})?)")
_BATCH = re.compile(rb"global batch size:\s{0,20}(\d{1,9})\b")
_TIMER = re.compile(rb"(?:^|[\s:\]])([a-z][a-z0-9-]{2,60}):\s*$")
_RANK_TIME = re.compile(rb"(?:^|[\s:\]])rank\s{1,10}(\d{1,7}):\s{0,20}(\d{1,12}(?:\.\d{1,9})?)\s*$")
_SAVE = re.compile(
    rb"\bsave-checkpoint(?:-non-persistent)? \.{1,80}:\s{0,20}\(\s{0,20}[\d.]{1,15},\s{0,20}(\d{1,12}(?:\.\d{1,9})?)\)"
)
_EXTREME = re.compile(rb"\b(Mn|Mx)(Rtt|Pwr|Tmp|Utl|Clk)/Rnk:\s{0,20}(\d{1,12}(?:\.\d{1,9})?)[A-Za-z%]{0,4}/(\d{1,7})\b")
_SIZE = re.compile(rb"(?:^|[\s:\]])([a-z_]{2,60}) \.{2,80} (\d{1,12})\s*$")


class _Reader:
    def __init__(self, log: LogBuilder) -> None:
        self.log = log
        self.timer: bytes | None = None
        self.between = 0

    def take(self, line: bytes) -> bool:
        """Take one line."""
        if _MARK in line:
            self._add_steps(line)
            self.timer = None
        elif self.timer is not None and (said := _RANK_TIME.search(line)):
            self.log.add_rank_time(self.timer.decode(), int(said[1]), float(said[2]) * UNITS[b"ms"])
            self.between = 0
        elif b"/Rnk:" in line:
            self._add_extremes(line)
        elif b"..." in line:
            self._add_dotted(line)
        elif said := _TIMER.search(line):
            self.timer = said[1] if said[1] in TIMERS else None
            self.between = 0
        else:
            self.between += 1
        return self.timer is not None and self.between <= LINES_BETWEEN

    def _add_steps(self, line: bytes) -> None:
        """Add the iterations of a line; another rank may have written into it, and no time is given to the wrong iteration."""
        begin = 0
        for time in _TIME.finditer(line):
            counter = _last_counter(line, begin, time.start())
            if counter is not None:
                behind = line.find(_MARK, time.end())
                batch = _BATCH.search(line, time.end(), len(line) if behind < 0 else behind)
                stamp_s = find_stamp(line[max(begin, counter.start() - 40) : counter.start()])
                step_s = float(time[2]) * UNITS[time[1]]
                if step_s > 0:
                    self.log.total = int(counter[2])
                self.log.add_step(int(counter[1]), step_s, batch_size=int(batch[1]) if batch else 0, stamp_s=stamp_s)
            begin = time.end()

    def _add_extremes(self, line: bytes) -> None:
        """Add a report of the straggler detector; of a measure that is not whole nothing."""
        seen = {(key, end): (float(value), int(rank)) for end, key, value, rank in _EXTREME.findall(line)}
        for key in dict.fromkeys(key for key, _ in seen):
            low, high = seen.get((key, b"Mn")), seen.get((key, b"Mx"))
            if low is not None and high is not None:
                self.log.add_extreme(key.decode(), low, high)

    def _add_dotted(self, line: bytes) -> None:
        """Add an argument, or a timer of all ranks."""
        if said := _SAVE.search(line):
            self.log.add_event("save", seconds=float(said[1]) * UNITS[b"ms"], text=line)
        elif (said := _SIZE.search(line)) and said[1] in SIZES:
            self.log.sizes[SIZES[said[1]]] = int(said[2])


def _last_counter(line: bytes, begin: int, end: int) -> re.Match[bytes] | None:
    """Find the last `iteration  N/ M |` before a time and behind the time before it."""
    at = end
    while (at := line.rfind(b"iteration", begin, at)) >= 0:
        if said := _COUNTER.match(line, at, end):
            return said
    return None


FORMAT = LogFormat(
    name="megatron-log",
    title="Megatron-LM",
    reads="elapsed time per iteration (ms)",
    example="iteration N/ M | .. elapsed time per iteration (ms): ..",
    is_mean=True,
    step_marks=(_MARK,),
    marks=(
        b"_size ....",
        b"save-checkpoint",
        b"/Rnk:",
        *(timer + b":" for timer in TIMERS),
    ),
    opening_marks=(b"time to initialize megatron", b"---- arguments ----", b"using world size: "),
    reader=_Reader,
)
