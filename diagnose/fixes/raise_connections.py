"""Give kernels more hardware queues, so that computes do not queue behind communication; where the parallelism allows it.

The replay takes the waits for communication in flight out of the computes.
"""

import re
from collections.abc import Mapping

from diagnose.fixes.frameworks import choose_how, identify_framework, identify_generation
from diagnose.fixes.places import read_whole
from diagnose.model.analysis import Analysis
from diagnose.model.change import Remove
from diagnose.model.remedy import FaultLocation, Refusal, Remedy
from diagnose.model.stalls import StallKind
from diagnose.model.trace import Job

NAME = "raise-connections"
TITLE = "raise CUDA_DEVICE_MAX_CONNECTIONS"
SETTINGS = {"connections": "value of CUDA_DEVICE_MAX_CONNECTIONS, 8 where not given"}
#: Megatron-LM's own advice where expert-parallel communication does not overlap; 32 where it does.
CONNECTIONS = 8
_HOW = {
    "any": "CUDA_DEVICE_MAX_CONNECTIONS={n} in the environment of every rank (32 where expert-parallel communication overlaps)",
}


def propose(analysis: Analysis, place: FaultLocation, settings: Mapping[str, str]) -> Remedy | Refusal:  # noqa: ARG001 - a fix's interface
    """Take out the waits for communication in flight, unless the job must have one queue, or ignores the setting."""
    inside_s = analysis.breakdown.queue_wait_s
    wait_s = analysis.breakdown.stalls.seconds_of(StallKind.QUEUE) + (0.0 if inside_s is None else inside_s)
    if not wait_s.any():
        return Refusal("no compute waits for communication in flight")
    n = read_whole(settings, "connections", NAME, least=1) if "connections" in settings else CONNECTIONS
    forbidden = _forbidden(analysis.trace.job)
    if forbidden:
        return Refusal(forbidden)
    return Remedy(
        summary=f"set CUDA_DEVICE_MAX_CONNECTIONS to {n}",
        how=choose_how({name: how.replace("{n}", str(n)) for name, how in _HOW.items()}, analysis.trace.job),
        changes=(Remove("queue"),),
        settings={"connections": str(n)},
        assumptions=(
            "with queues of their own computes do not wait for communication at all, and share the GPU at no cost",
        ),
        risks=(_risk(analysis.trace.job),),
        figures={"held_computes": float((wait_s > 0).sum())},
    )


def _forbidden(job: Job) -> str | None:
    """Say why the setting must stay as it is, or would change nothing."""
    generation = identify_generation(job)
    if generation == "Blackwell":
        return "Blackwell GPUs ignore CUDA_DEVICE_MAX_CONNECTIONS: look at the version of NCCL and at what overlaps instead"
    sharded = job.tp_size > 1 or job.cp_size > 1
    if generation in ("Hopper", "Ampere") and sharded and not _has_fsdp(job):
        return (
            f"{generation} with tensor or context parallelism and without FSDP requires CUDA_DEVICE_MAX_CONNECTIONS=1: without "
            "it kernels start in another order than they were launched in; overlap less instead (a run without "
            "--overlap-grad-reduce or --overlap-param-gather tells in a minute whether that helps)"
        )
    return None


def _has_fsdp(job: Job) -> bool:
    """Say whether the job shards its parameters with FSDP, as far as its metadata tell."""
    return identify_framework(job) == "torchtitan" or bool(re.search("fsdp", job.framework or "", re.IGNORECASE))


def _risk(job: Job) -> str:
    """Say what must be looked at first."""
    unknown = identify_generation(job) is None
    if unknown and (job.tp_size > 1 or job.cp_size > 1) and not _has_fsdp(job):
        return (
            "the type of GPU is not known: Hopper and Ampere with tensor or context parallelism and without FSDP require "
            "CUDA_DEVICE_MAX_CONNECTIONS=1, and Blackwell ignores it"
        )
    return "computes and communication that run at once share memory bandwidth"
