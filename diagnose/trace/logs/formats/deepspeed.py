"""What DeepSpeed logs of its own: progress, throughput, its breakdown of a step, saves, flushes of the allocator.

Enters: lines. Leaves: steps, their parts, events, sizes, hosts.

* Every `steps_per_print` steps `[2023-07-25 21:03:17,269] [INFO] [logging.py:96:log_dist] [Rank 0] step=34, skipped=0, lr=[..]` and
  `[..] [timer.py:215:stop] epoch=0/micro_step=34/global_step=34, RunningAvgSamplesPerSec=7.86, CurrSamplesPerSec=8.01, ..`
  (before 2022 `0/34, SamplesPerSec=7.86`). The rates leave out what is outside of the engine, as the loader; what passed from stamp
  to stamp is the mean since the line before, and is taken.
* With `wall_clock_breakdown`, of every step `time (ms) | fwd: 652.41 | bwd: 2164.52 | bwd_inner: 2001.89 | bwd_allreduce: 162.60 |
  step: 1172.13` (before 2023 `forward: .. | backward: ..`), behind the lines of its step where there are such.
* `2 pytorch allocator cache flushes since last step`.

Sources: deepspeedai/DeepSpeed, deepspeed/utils/timer.py, deepspeed/runtime/engine.py, deepspeed/runtime/zero/stage3.py,
deepspeed/launcher/launch.py.
"""

import re

from diagnose.model.training_log import LogPart
from diagnose.trace.logs.builder import LogBuilder
from diagnose.trace.logs.log_format import LogFormat

MS = 1e-3
_NUMBER = rb"(\d{1,12}(?:\.\d{1,20})?)"
_PROGRESS = re.compile(rb"\bstep=(\d{1,12}), skipped=")
_THROUGHPUT = re.compile(rb"\b(?:global_step=|\d{1,9}/)(\d{1,12}), (?:Running(?:Avg)?)?SamplesPerSec=")
_CURRENT = re.compile(rb"CurrSamplesPerSec=" + _NUMBER)
_BREAKDOWN = re.compile(rb"\btime \(ms\) ((?:\| [a-z_]{1,40}: [\d.]{1,20} ?){2,12})")
_TIMER = re.compile(rb"\| ([a-z_]{1,40}): " + _NUMBER)
_FLUSHES = b"pytorch allocator cache flushes since last step"
_CHECKPOINT = re.compile(rb"\bCheckpoint \S{0,40}?(\d{1,12}) is (about to be saved|ready now)")
_BATCH = re.compile(rb"\btrain_batch_size \.{2,60} (\d{1,9})\b")
_PRINT = re.compile(rb"\bsteps_per_print \.{2,60} (\d{1,9})\b")
_HOSTS = re.compile(rb"WORLD INFO DICT: \{(.{1,4000})\}")
_HOST = re.compile(rb"'([\w.-]{1,80})': \[")
_RANK = re.compile(rb"\[Rank (\d{1,7})\]")
PARTS: dict[bytes, LogPart] = {
    b"fwd": "forward",
    b"forward": "forward",
    b"bwd_inner": "backward",
    b"backward_inner": "backward",
    b"bwd_allreduce": "communication",
    b"backward_allreduce": "communication",
    b"step": "optimizer",
}
#: What a step consists of, as far as DeepSpeed times it.
WHOLE = (b"fwd", b"forward", b"bwd", b"backward", b"step")


class _Reader:
    def __init__(self, log: LogBuilder) -> None:
        self.log = log
        self.batch = 0
        #: True where the line of a step was read and its breakdown was not.
        self.is_open = False
        self.save_began_s = float("nan")

    def take(self, line: bytes) -> bool:
        """Take one line."""
        if said := _THROUGHPUT.search(line) or _PROGRESS.search(line):
            self._add_step(line, int(said[1]))
        elif said := _BREAKDOWN.search(line):
            self._add_breakdown({name: float(ms) * MS for name, ms in _TIMER.findall(said[1])})
        elif _FLUSHES in line:
            rank = _RANK.search(line)
            self.log.add_event("cache-flush", rank=int(rank[1]) if rank else self.log.rank, text=line)
        elif said := _CHECKPOINT.search(line):
            self._add_save(line, int(said[1]), is_begin=said[2] != b"ready now")
        elif said := _BATCH.search(line):
            self.batch = int(said[1])
        elif said := _PRINT.search(line):
            self.log.set_interval("log", int(said[1]))
        elif said := _HOSTS.search(line):
            self.log.begin()
            for host in _HOST.findall(said[1]):
                self.log.add_host(host.decode())
        return False

    def _add_step(self, line: bytes, iteration: int) -> None:
        """Add a step, once where two lines tell it."""
        said = _CURRENT.search(line)
        if not self.log.n_steps or iteration != self.log.last:
            self.log.add_step(iteration, batch_size=self.batch)
            self.is_open = True
        if said and self.batch and float(said[1]) > 0:
            self.log.set_fallback(self.batch / float(said[1]))

    def _add_breakdown(self, seconds: dict[bytes, float]) -> None:
        """Add the parts of a step; one that no other line tells is the next one."""
        whole_s = sum(seconds.get(name, 0.0) for name in WHOLE)
        if not whole_s:
            return  # of a microbatch, or of a part of the optimizer
        if not self.is_open:
            self.log.add_step(self.log.last + 1, batch_size=self.batch)
        self.log.set_fallback(whole_s)
        self.is_open = False
        for name, part in PARTS.items():
            if name in seconds:
                self.log.add_part(part, seconds[name])

    def _add_save(self, line: bytes, iteration: int, *, is_begin: bool) -> None:
        """Add a save, which two lines tell."""
        now_s = self.log.find_stamp()
        if is_begin:
            self.save_began_s = now_s
        self.log.add_event("save", iteration=iteration, seconds=now_s - self.save_began_s, text=line)


FORMAT = LogFormat(
    name="deepspeed",
    title="DeepSpeed",
    reads="the time of each line, from line to line",
    example="[..] epoch=E/micro_step=N/global_step=N, RunningAvgSamplesPerSec=.., CurrSamplesPerSec=..",
    is_mean=True,
    step_marks=(b"SamplesPerSec=", b", skipped=", b"time (ms) | "),
    marks=(
        _FLUSHES,
        b"is about to be saved",
        b"is ready now",
        b"train_batch_size .",
        b"steps_per_print .",
        b"WORLD INFO DICT",
    ),
    opening_marks=(b"DeepSpeed info: version=",),
    reader=_Reader,
)
