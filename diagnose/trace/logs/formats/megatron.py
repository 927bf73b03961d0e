"""The log that Megatron-LM, and what is built on it, prints: step times, restarts, timers, lines of the straggler detector.

Enters: lines. Leaves: steps, times of ranks and of parts, saves, evaluations, sizes, intervals.

* A step, every `--log-interval` iterations, the mean since the line before: `iteration  10/ 1200 | .. elapsed time per iteration
  (ms): 1851.0 | .. global batch size:  512 | ..`. Megatron-DeepSpeed, BigScience and GPT-NeoX print it as well, BigScience in
  seconds, Megatron-DeepSpeed with `actual seqlen:  2048`. Sources: NVIDIA/Megatron-LM, megatron/training/training.py;
  microsoft/Megatron-DeepSpeed and bigscience-workshop/Megatron-DeepSpeed, megatron/training.py.
* Arguments, `save_interval .......... 500` each in a line, and above them `using world size: 8, data-parallel size: 2,
  context-parallel size: 1, tensor-model-parallel size: 2, pipeline-model-parallel size: 2`. Source:
  megatron/training/arguments.py; Megatron Core 0.12 puts words before and behind that may have no comma between them.
* Timers, `(min, max) time across ranks (ms):` and then `evaluate .......: (57313.42, 57314.02)`, or with
  `--timing-log-option all` a list `forward-compute:`, `rank  0: 12.34`. Source: megatron/core/timers.py.
* Reports of `--log-straggler`, `MnRtt/Rnk: 3453.08ms/8`. Source: megatron/core/utils.py.
"""

import math
import re

import numpy as np

from diagnose.model.training_log import LogIntervalKind, LogPart
from diagnose.trace.logs.builder import LogBuilder
from diagnose.trace.logs.log_format import LogFormat
from diagnose.trace.logs.stamps import find_stamp

#: Seconds in each unit that the log names.
UNITS = {b"ms": 1e-3, b"s": 1.0}
MS = UNITS[b"ms"]
SIZES = {
    b"world_size": "world_size",
    b"data_parallel_size": "dp_size",
    b"tensor_model_parallel_size": "tp_size",
    b"pipeline_model_parallel_size": "pp_size",
    b"context_parallel_size": "cp_size",
}
#: The line of sizes; an encoder's own are not those of the job.
_WORLD = b"using world size: "
_SIZES = {
    "world_size": re.compile(_WORLD + rb"(\d{1,7})\b"),
    "cp_size": re.compile(rb"context-parallel size: (\d{1,7})\b"),
    "tp_size": re.compile(rb"(?<!encoder-)tensor-model-parallel size: (\d{1,7})\b"),
    "pp_size": re.compile(rb"(?<!encoder-)pipeline-model-parallel size: (\d{1,7})\b"),
}
INTERVALS: dict[bytes, LogIntervalKind] = {
    b"log_interval": "log",
    b"save_interval": "save",
    b"eval_interval": "evaluation",
    b"manual_gc_interval": "collection",
    b"num_workers": "loader-workers",
}
#: Intervals that hold only where another argument is neither False nor None.
ONLY_WITH = {b"save_interval": b"save", b"manual_gc_interval": b"manual_gc"}
#: Timers whose ranks do different work where they are slow; all others wait for peers.
RANK_TIMERS = (b"forward-compute", b"backward-compute", b"batch-generator")
PARTS: dict[bytes, LogPart] = {
    b"batch-generator": "data",
    b"forward-compute": "forward",
    b"backward-compute": "backward",
    b"all-grads-sync": "communication",
    b"grads-all-reduce": "communication",
    b"optimizer": "optimizer",
}
#: Bytes of a line that are looked at for what stands between two iterations.
STAMP_BYTES = 48
#: Lines of a list of ranks that are passed over before it is taken for ended: another rank wrote them.
LINES_BETWEEN = 16

_MARK = b"elapsed time per iteration"
_NUMBER = rb"(\d{1,12}(?:\.\d{1,9})?)"
_COUNTER = re.compile(rb"iteration\s{1,20}(\d{1,12})\s{0,20}/\s{0,20}(\d{1,12})\s{0,20}\|")
_TIME = re.compile(_MARK + rb" ?\((ms|s)\):?\s{0,20}" + _NUMBER)
#: A field without a date and without `seqlen`, which is read otherwise.
_FIELD = rb"[^:|q\n]{1,60}:[^:|q\n]{1,60}\|"
#: The whole line of a step in milliseconds.
_ROW = (
    rb" ?(\[[\d-]{10} [\d:.]{8,18}\])? ?iteration {1,20}(\d{1,12})/ {0,20}(\d{1,12}) \|"
    rb"(?: consumed [a-z]{6,7}: {1,20}\d{1,20} \|){0,2} "
    + _MARK
    + rb" \(ms\): "
    + _NUMBER
    + rb" \|(?:"
    + _FIELD
    + rb"){0,8}?[^:|q\n]{0,40}?global batch size: {1,20}(\d{1,9}) \|(?:"
    + _FIELD
    + rb"){0,40} ?"
)
_BATCH = re.compile(rb"global batch size:\s{0,20}(\d{1,9})\b")
_SEQUENCE = re.compile(rb"\b(?:actual |curriculum )?seqlen:\s{0,20}(\d{1,9})\b")
_TIMER = re.compile(rb"(?:^|[\s:\]])([a-z][a-z0-9-]{2,60}):\s*$")
_RANK_TIME = re.compile(rb"(?:^|[\s:\]])rank\s{1,10}(\d{1,7}):\s{0,20}" + _NUMBER + rb"\s*$")
_EXTREME = re.compile(rb"\b(Mn|Mx)(Rtt|Pwr|Tmp|Utl|Clk)/Rnk:\s{0,20}" + _NUMBER + rb"[A-Za-z%]{0,4}/(\d{1,7})\b")
_DOTTED = re.compile(rb"(?:^|[\s:\]])([a-z][a-z0-9_-]{1,60}) \.{2,80}:? ?(\S[^\n]{0,200})")
_RANGE = re.compile(rb"\(\s{0,9}" + _NUMBER + rb",\s{0,9}" + _NUMBER + rb"\)|" + _NUMBER)
_AT_ITERATION = re.compile(rb"iteration\s{1,20}(\d{1,12})\b")


class _Reader:
    row = _ROW

    def __init__(self, log: LogBuilder) -> None:
        self.log = log
        self.timer: bytes | None = None
        self.between = 0
        self.arguments: dict[bytes, bytes] = {}

    def take(self, line: bytes) -> bool:
        """Take one line."""
        if _MARK in line:
            self._add_steps(line)
            self.timer = None
        elif self.timer is not None and (said := _RANK_TIME.search(line)):
            self.log.add_rank_time(self.timer.decode(), int(said[1]), float(said[2]) * MS)
            self.between = 0
        elif b"/Rnk:" in line:
            self._add_extremes(line)
        elif b" ..." in line:
            self._add_dotted(line)
        elif said := _TIMER.search(line):
            self.timer = said[1] if said[1] in RANK_TIMERS else None
            self.between = 0
        else:
            self.between += 1
            self._add_event(line)
        return self.timer is not None and self.between <= LINES_BETWEEN

    def take_rows(self, rows: list[tuple[bytes, ...]]) -> bool:
        """Take the groups of lines of steps below each other."""
        stamp, iteration, total, time, batch = zip(*rows, strict=True)
        batch_size = np.array(list(map(int, batch)))
        sequence = self._sequence()
        self.log.total = int(total[-1])
        self.log.add_steps(
            np.array(list(map(int, iteration))),
            np.array(list(map(float, time))) * MS,
            batch_size=batch_size,
            tokens=batch_size * float(sequence),
            stamp_s=np.array(list(map(find_stamp, stamp))),
        )
        self.timer = None
        return True

    def _sequence(self) -> int:
        """Give the length of a sequence by the arguments; 0 where they do not state it."""
        said = self.arguments.get(b"seq_length", b"")
        return int(said[:12]) if said.isdigit() else 0

    def _add_steps(self, line: bytes) -> None:
        """Add the iterations of a line; another rank may have written into it, and no time is given to the wrong iteration."""
        begin = 0
        for time in _TIME.finditer(line):
            counter = _last_counter(line, begin, time.start())
            if counter is not None:
                behind = line.find(_MARK, time.end())
                self._add_step(line, counter, time, begin, len(line) if behind < 0 else behind)
            begin = time.end()

    def _add_step(self, line: bytes, counter: re.Match[bytes], time: re.Match[bytes], begin: int, end: int) -> None:
        """Add one iteration; what else its line says stands behind its time, its stamp before its number."""
        said = _BATCH.search(line, time.end(), end)
        batch = int(said[1]) if said else 0
        sequence = 0
        if b"seqlen" in line and (said := _SEQUENCE.search(line, time.end(), end)):
            sequence = int(said[1])
            self.log.format = "Megatron-DeepSpeed"
        elif time[1] == b"s":
            self.log.format = "Megatron-DeepSpeed"
        else:
            sequence = self._sequence()
        stamp_s = find_stamp(line[max(begin, counter.start() - STAMP_BYTES) : counter.start()])
        if time[1] == b"s":
            self.log.reads = "elapsed time per iteration (s)"
        self.log.total = int(counter[2])
        self.log.add_step(
            int(counter[1]),
            float(time[2]) * UNITS[time[1]],
            batch_size=batch,
            tokens=float(batch * sequence) or math.nan,
            stamp_s=None if math.isnan(stamp_s) else stamp_s,
        )

    def _add_extremes(self, line: bytes) -> None:
        """Add a report of the straggler detector; of a measure that is not whole nothing."""
        seen = {(key, end): (float(value), int(rank)) for end, key, value, rank in _EXTREME.findall(line)}
        for key in dict.fromkeys(key for key, _ in seen):
            low, high = seen.get((key, b"Mn")), seen.get((key, b"Mx"))
            if low is not None and high is not None:
                self.log.add_extreme(key.decode(), low, high)

    def _add_dotted(self, line: bytes) -> None:
        """Add an argument, or a timer of all ranks."""
        said = _DOTTED.search(line)
        if said is None:
            return
        name, value = said[1], said[2].strip()
        if (of_all := _RANGE.match(value)) and (name in PARTS or name.startswith((b"save-checkpoint", b"evaluate"))):
            seconds = float(of_all[2] or of_all[3]) * MS
            if name in PARTS:
                self.log.add_part(PARTS[name], seconds)
            elif name.startswith(b"save"):
                self.log.add_event("save", seconds=seconds, text=line)
            else:
                self.log.add_event("evaluation", seconds=seconds, text=line)
        elif name in SIZES and value[:7].isdigit():
            self.log.sizes[SIZES[name]] = int(value[:7])
        elif name in INTERVALS and value[:12].isdigit():
            only_with = ONLY_WITH.get(name)
            if only_with is None or self.arguments.get(only_with) not in (None, b"None", b"False"):
                self.log.set_interval(INTERVALS[name], int(value[:12]))
        elif name in (b"save", b"manual_gc", b"seq_length"):
            self.arguments[name] = value

    def _add_event(self, line: bytes) -> None:
        """Add a start, a save or an evaluation."""
        said = _AT_ITERATION.search(line)
        iteration = None if said is None else int(said[1])
        if b"--- arguments ---" in line:
            self.log.begin()
            self.arguments.clear()
        elif b"saving checkpoint" in line or b"successfully saved" in line:
            self.log.add_event("save", iteration=iteration, text=line)
        elif b"validation loss at" in line:
            self.log.add_event("evaluation", iteration=iteration, text=line)
        elif _WORLD in line:
            self.log.sizes.update(
                {size: int(said[1]) for size, found in _SIZES.items() if (said := found.search(line))}
            )


def _last_counter(line: bytes, begin: int, end: int) -> re.Match[bytes] | None:
    """Find the last `iteration  N/ M |` before a time and behind the time before it."""
    at = end
    while (at := line.rfind(b"iteration", begin, at)) >= 0:
        if said := _COUNTER.match(line, at, end):
            return said
    return None


FORMAT = LogFormat(
    name="megatron",
    title="Megatron-LM",
    reads="elapsed time per iteration (ms)",
    example="iteration N/ M | .. elapsed time per iteration (ms): ..",
    is_mean=True,
    step_marks=(_MARK,),
    marks=(
        b" .......",
        b"Rtt/Rnk: ",
        b"--- arguments ---",
        _WORLD,
        b"saving checkpoint",
        b"successfully saved",
        b"validation loss at",
        b"-compute:",
        b"batch-generator:",
    ),
    opening_marks=(b"time to initialize megatron", b"--- arguments ---", _WORLD),
    reader=_Reader,
)
