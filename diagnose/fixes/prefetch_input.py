"""Load input ahead of the step.

The replay takes the waits for input out of the first stage.
"""

import dataclasses
import math
from collections.abc import Iterator, Mapping

import numpy as np

from diagnose.fixes.frameworks import choose_how
from diagnose.model.analysis import Analysis
from diagnose.model.change import Remove
from diagnose.model.remedy import FaultLocation, Refusal, Remedy
from diagnose.model.stalls import StallKind

NAME = "prefetch-input"
TITLE = "load input ahead of the step"
#: Workers of a loader of which nothing is known.
USUAL_WORKERS = 4
SETTINGS: dict[str, str] = {}
_HOW = {
    "megatron": "--num-workers {workers} or more, and pre-tokenised data on a disk near the node (--data-cache-path on local "
    "storage)",
    "pytorch": "DataLoader(num_workers={workers}, prefetch_factor=4, persistent_workers=True, pin_memory=True), copies with "
    "non_blocking=True, and the next batch fetched before the optimizer runs",
    "any": "Keep padding, packing and collation out of the training process, and look at the loader's own CPU time first",
}


def propose(analysis: Analysis, place: FaultLocation, settings: Mapping[str, str]) -> Remedy | Refusal:  # noqa: ARG001 - a fix's interface
    """Take out the waits for input."""
    if "input-delay" not in analysis.gains.alone_s:
        return Refusal("no worker waits for input")
    job = analysis.trace.job
    n_needed = _count_workers(analysis)
    n_workers = str(max(USUAL_WORKERS, n_needed or 0))
    recipe = choose_how({name: how.replace("{workers}", n_workers) for name, how in _HOW.items()}, job)
    hosts = [worker.host for worker in place.where.workers if worker.host]
    at = f"; look at the storage of {hosts[0]} first" if len(hosts) == 1 else ""
    stall_s = analysis.breakdown.stalls.seconds_of(StallKind.INPUT).max(axis=(0, 1, 2, 4))
    between_s = np.asarray(analysis.breakdown.between_s.get(StallKind.INPUT, 0.0))
    return Remedy(
        summary="load ahead of the step" + at,
        how=" ".join([*_describe(analysis, n_needed), recipe]),
        changes=(Remove("input-delay"),),
        assumptions=("the loader can keep up on average: it has time to work while the step runs",),
        risks=("each loader worker needs memory and a CPU core of the host",),
        figures={
            "longest_wait_a_step_s": float((stall_s + between_s).mean()),
            "loader_must_yield_batches_per_s": 1.0 / analysis.gains.clean_s,
            "loader_workers": None if job.loader is None else float(job.loader.num_workers),
            "loader_workers_needed": None if n_needed is None else float(n_needed),
        },
    )


def _count_workers(analysis: Analysis) -> int | None:
    """Say how many workers a loader needs to keep up; None where it is not known how many it has.

    Where the training waits its steps take as long as the loader needs for their batches: one worker needs as many steps for the
    batches of one step as there are workers. Without workers the training itself loads, and waits for as long as that takes.
    """
    loader, gains = analysis.trace.job.loader, analysis.gains
    if loader is None:
        return None
    waited_s = gains.replayed_s - gains.alone_s["input-delay"]
    busy_s = loader.num_workers * gains.replayed_s if loader.num_workers else waited_s
    return max(math.ceil(busy_s / gains.clean_s), loader.num_workers + 1)


def _describe(analysis: Analysis, n_needed: int | None) -> Iterator[str]:
    """Say how the loader is set up now, and what its waits say of it."""
    loader, period = analysis.trace.job.loader, analysis.features["input.period_steps"].value
    if loader is not None:
        said = dataclasses.asdict(loader).items()
        yield f"Now: {', '.join(f'{name}={value}' for name, value in said if value is not None)}."
    if period is not None and (loader is None or loader.num_workers == round(period)):
        yield (
            f"Waits come every {period:.0f} steps, as with {period:.0f} workers: all work at once, on a batch each, and the "
            "training waits for all."
        )
    if n_needed is not None:
        yield (
            f"At least num_workers={n_needed} keep up, if the host has as many free cores and the storage is as fast for all; else "
            "a batch must get cheaper."
        )
