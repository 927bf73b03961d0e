"""Keep the memory allocator from stalling: segments that grow, less memory in use.

The replay takes the allocator's pauses out of the computes.
"""

import re
from collections.abc import Mapping

from diagnose.fixes.frameworks import choose_how
from diagnose.model.analysis import Analysis
from diagnose.model.change import Remove
from diagnose.model.remedy import FaultLocation, Refusal, Remedy
from diagnose.model.stalls import StallKind

NAME = "expandable-segments"
TITLE = "let the memory allocator grow its segments"
SETTINGS: dict[str, str] = {}
_HOW = {
    "any": "PYTORCH_ALLOC_CONF=expandable_segments:True in the environment of every rank (PYTORCH_CUDA_ALLOC_CONF before "
    "torch 2.9; not with NCCL user buffers: then max_split_size_mb). Look at torch.cuda.memory_stats(): num_alloc_retries above 0 "
    "means that memory is full, and then only a "
    "smaller microbatch or more recomputation helps",
    "megatron": "--empty-unused-memory-level 1, --recompute-granularity",
    "torchtitan": "--activation_checkpoint.mode full",
}
#: How the environment says that they are on.
_IS_ON = re.compile(r"expandable_segments\s*:\s*true", re.IGNORECASE)


def propose(analysis: Analysis, place: FaultLocation, settings: Mapping[str, str]) -> Remedy | Refusal:  # noqa: ARG001 - a fix's interface
    """Take out what the allocator stalls."""
    stall_s = analysis.breakdown.stalls.seconds_of(StallKind.ALLOCATION)
    if not stall_s.any():
        return Refusal("no pause looks like the memory allocator's")
    settings_now = analysis.trace.job.alloc_conf
    if settings_now is not None and _IS_ON.search(settings_now):
        return Refusal(
            f"segments are expandable already (the environment says {settings_now}): memory is full, and a smaller microbatch or "
            "more recomputation helps"
        )
    return Remedy(
        summary="let the allocator grow its segments",
        how=("" if settings_now is None else f"Now: {settings_now}. ") + choose_how(_HOW, analysis.trace.job),
        changes=(Remove("malloc-pause"),),
        assumptions=("the stalls come from fragmented memory, and not from memory that is full",),
        risks=("where memory is full, expandable segments only put off the next retry",),
        figures={"stalls": float((stall_s > 0).sum()), "longest_s": float(stall_s.max())},
    )
