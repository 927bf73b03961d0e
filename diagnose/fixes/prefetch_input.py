"""Load input ahead of the step.

The replay takes the waits for input out of the first stage.
"""

from collections.abc import Mapping

from diagnose.fixes.frameworks import choose_how
from diagnose.model.analysis import Analysis
from diagnose.model.change import Remove
from diagnose.model.remedy import FaultLocation, Refusal, Remedy
from diagnose.model.stalls import StallKind

NAME = "prefetch-input"
TITLE = "load input ahead of the step"
SETTINGS: dict[str, str] = {}
_HOW = {
    "megatron": "--num-workers 4 or more, and pre-tokenised data on a disk near the node (--data-cache-path on local storage)",
    "pytorch": "DataLoader(num_workers=4, prefetch_factor=4, persistent_workers=True, pin_memory=True), copies with "
    "non_blocking=True, and the next batch fetched before the optimizer runs",
    "any": "Keep padding, packing and collation out of the training process, and look at the loader's own CPU time first",
}


def propose(analysis: Analysis, place: FaultLocation, settings: Mapping[str, str]) -> Remedy | Refusal:  # noqa: ARG001 - a fix's interface
    """Take out the waits for input."""
    stall_s = analysis.breakdown.stalls.seconds_of(StallKind.INPUT)
    if not stall_s.any():
        return Refusal("no worker waits for input")
    hosts = [worker.host for worker in place.where.workers if worker.host]
    at = f"; look at the storage of {hosts[0]} first" if len(hosts) == 1 else ""
    a_step = float(stall_s.max(axis=(0, 1, 2, 4)).mean())  # the longest wait of each step
    return Remedy(
        summary="load ahead of the step" + at,
        how=choose_how(_HOW, analysis.trace.job),
        changes=(Remove("input-delay"),),
        assumptions=("the loader can keep up on average: it has time to work while the step runs",),
        risks=("each loader worker needs memory and a CPU core of the host",),
        figures={"longest_wait_a_step_s": a_step, "loader_must_yield_batches_per_s": 1.0 / analysis.gains.clean_s},
    )
