"""Read what any job prints, whatever trains it: the hosts it runs on, that its memory is short, and that it failed.

Enters: lines. Leaves: hosts, events and scores of ranks in a builder.

* `node-3:811:811 [0] NCCL INFO Bootstrap : Using eth0:10.0.0.3<0>`, with `NCCL_DEBUG=INFO`. Source: NVIDIA/nccl, src/bootstrap.cc
  and src/debug.cc.
* `[stage3.py:2069:step] 2 pytorch allocator cache flushes since last step. this happens when ..`: DeepSpeed's, under any trainer.
  Source: deepspeedai/DeepSpeed, deepspeed/runtime/zero/stage3.py.
* `Traceback (most recent call last):`, then lines that begin with a space, then the error.
* `[Rank 3] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=4211, OpType=ALLREDUCE, ..`. Source: pytorch/pytorch,
  torch/csrc/distributed/c10d/ProcessGroupNCCL.cpp.
* `"num_experts": 128,` or `"num_local_experts": 8,` of the configuration of a model as Hugging Face's libraries print it, and
  `num_experts ..... 8` of Megatron-LM's arguments. Sources: huggingface/transformers, models/qwen3_moe and models/mixtral;
  NVIDIA/Megatron-LM, megatron/training/arguments.py.
* `GPU relative performance:`, then `  Rank=3 Node=node-1 Score=0.52`: how fast ranks are beside the fastest, the slowest first.
  Source: NVIDIA/nvidia-resiliency-ext, ptl_resiliency/straggler_det_callback.py (`_format_gpu_scores`); NeMo and
  Megatron Bridge print it.
"""

import re

from diagnose.trace.logs.builder import LogBuilder

_TRACEBACK = b"Traceback (most recent call last)"
_BOOTSTRAP = b"NCCL INFO Bootstrap"
_FLUSHES = b"pytorch allocator cache flushes since last step"
_SCORES = b"GPU relative performance:"
_EXPERTS = b"_experts"
_TIMEOUT = b"Watchdog caught collective operation timeout"
MARKS = (_BOOTSTRAP, _TRACEBACK, _TIMEOUT, _FLUSHES, _SCORES, _EXPERTS)
#: Lines of a traceback at most; a deep recursion prints a thousand.
MAX_LINES = 2_000
_RANK = re.compile(rb"\[Rank (\d{1,7})\]")
_HOST = re.compile(rb"([A-Za-z0-9][\w.-]{0,120}):\d{1,10}:\d{1,10} \[\d{1,4}\] " + _BOOTSTRAP)
_N_EXPERTS = re.compile(rb"\bnum_(?:local_|routed_)?experts[\"']?(?:: | \.{2,80} )(\d{1,6})\b")
_SCORE = re.compile(rb"\bRank=(\d{1,7}) Node=\S{1,250} Score=(\d\.\d{1,6})\s*$")


class AnyJobReader:
    """Reads such lines; a `LineReader`."""

    def __init__(self, log: LogBuilder) -> None:
        self.log = log
        self.left = 0
        self.scores: list[tuple[float, int]] | None = None

    def take(self, line: bytes) -> bool:
        """Take one line."""
        if self.scores is not None and self._take_score(line, self.scores):
            return True
        if _SCORES in line:
            self.scores = []
            return True
        if said := _HOST.search(line):
            self.log.add_host(said[1].decode())
        elif _FLUSHES in line:
            rank = _RANK.search(line)
            self.log.add_event("cache-flush", rank=int(rank[1]) if rank else self.log.rank, text=line)
        elif _EXPERTS in line:
            if said := _N_EXPERTS.search(line):
                self.log.sizes["experts"] = int(said[1])
        elif _TIMEOUT in line:
            rank = _RANK.search(line)
            self.log.add_event("error", rank=int(rank[1]) if rank else self.log.rank, text=line[line.index(_TIMEOUT) :])
        elif _TRACEBACK in line:
            self.left = MAX_LINES
        elif self.left and line.strip() and not line.startswith((b" ", b"\t")):
            self.log.add_event("error", rank=self.log.rank, text=line)
            self.left = 0
        self.left = max(self.left - 1, 0)
        return self.left > 0

    def _take_score(self, line: bytes, scores: list[tuple[float, int]]) -> bool:
        """Take a line of a report of scores; of a whole report the lowest and the highest are kept. False where it has ended."""
        if (said := _SCORE.search(line)) and len(scores) < MAX_LINES:
            scores.append((float(said[2]), int(said[1])))
            return True
        if b" performing " in line:
            return True
        self.scores = None
        if len(scores) > 1:
            self.log.add_extreme("Score", min(scores), max(scores))
        return False
