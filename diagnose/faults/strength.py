"""How strong a fault must be to cost a given part of the step: transfers are a tiny part of some jobs and a large one of others.

Enters: a `JobSpec`, and what makes a fault of a strength. Leaves: the strength. Each candidate is tried on one quiet step.
"""

import dataclasses
from collections.abc import Callable

import numpy as np

from diagnose.faults.fault import Fault
from diagnose.faults.inputs import draw_inputs
from diagnose.faults.simulate import simulate
from diagnose.faults.spec import JobSpec

#: Strengths tried between the limits, in equal ratios.
N_TRIED = 8
#: Microbatches for each stage beyond which a step is more of the same.
MICROBATCHES_PER_STAGE = 2
MIN_MICROBATCHES = 8


def quiet_step(spec: JobSpec) -> JobSpec:
    """Cut a job down to one step without noise; many microbatches become fewer, and what a step does once shrinks alike.

    >>> quiet_step(JobSpec(pp=4, microbatches=32, steps=9, collective_s=0.4)).collective_s
    0.1
    """
    stride = spec.unit
    n_enough = -(-max(MICROBATCHES_PER_STAGE * spec.pp, MIN_MICROBATCHES) // stride) * stride
    n_kept = min(spec.microbatches, n_enough)
    share = n_kept / spec.microbatches
    return dataclasses.replace(
        spec,
        steps=1,
        microbatches=n_kept,
        collective_s=spec.collective_s * share,
        optimizer_s=spec.optimizer_s * share,
        host_gap_s=spec.host_gap_s * share,
        noise=0.0,
        tail_noise=0.0,
        drift=0.0,
        host_drift=0.0,
        network_tide=0.0,
    )


def estimate_step(spec: JobSpec) -> float:
    """Estimate the time of a healthy step, seconds."""
    quiet = quiet_step(spec)
    return float(simulate(draw_inputs(quiet)).step_s[0]) * spec.microbatches / quiet.microbatches


def measure_cost(spec: JobSpec, fault: Fault) -> float:
    """Measure how much longer a fault makes a quiet step, in parts of the step with the fault mended."""
    healthy = draw_inputs(quiet_step(spec))
    faulty_s, mended_s = (float(simulate(inputs).step_s[0]) for inputs in (fault.apply(healthy), fault.mend(healthy)))
    return faulty_s / mended_s - 1.0


def find_strength(
    spec: JobSpec, make: Callable[[float], Fault], *, cost: float, lowest: float, highest: float
) -> tuple[float, float]:
    """Find how strong a fault must be to make steps longer by a part of them.

    Parameters
    ----------
    make : callable
        Makes the fault of a strength; it must happen in the first step.
    cost : float
        That part.
    lowest, highest : float
        Limits of the strength, above 0.

    Returns
    -------
    strength, cost : float
        The strength, and what it costs. Where none costs as much, the one that costs most: very slow communication is
        so much of a step that computes no longer matter.
    """
    strengths = np.geomspace(lowest, highest, N_TRIED).tolist()
    costs: list[float] = []
    for strength in strengths:
        costs.append(measure_cost(spec, make(strength)))
        if costs[-1] >= cost:
            break
    last = len(costs) - 1
    if costs[last] < cost or last == 0:
        best = int(np.argmax(costs))
        return strengths[best], costs[best]
    return float(np.interp(cost, costs[last - 1 :], strengths[last - 1 : last + 1])), cost
