"""How strong a fault must be so that a given part of a job's mean step time is lost to it.

Enters: a `JobSpec`, and what makes a fault of a strength. Leaves: the fault. Each candidate is tried on the whole job.
"""

from collections.abc import Callable

import numpy as np

from diagnose.faults.fault import Fault
from diagnose.faults.inputs import Inputs, draw_inputs
from diagnose.faults.simulate import simulate
from diagnose.faults.spec import JobSpec

#: What is added to no fault at all: least and most, first tried, and in which ratio the others follow.
ADDED, FIRST_ADDED, ADDED_RATIO = (1e-4, 1e3), 0.2, 4.0
#: How often the strength between two is tried, unless what is lost is right to this part of it before.
N_BETWEEN, CLOSE = 8, 0.02


def lost_share(healthy: Inputs, fault: Fault) -> float:
    """Measure which part of a job's mean step time is lost to a fault: what comes back with it mended."""
    faulty_s, mended_s = (float(simulate(i).step_s.mean()) for i in (fault.apply(healthy), fault.mend(healthy)))
    return 1.0 - mended_s / faulty_s


def find_losing(spec: JobSpec, make: Callable[[float], Fault], lost: float) -> tuple[Fault, float]:
    """Find the fault of a job to which a given part of its mean step time is lost.

    Parameters
    ----------
    make : callable
        Makes the fault of a strength, as its cause counts it.
    lost : float
        That part.

    Returns
    -------
    fault : Fault
    lost : float
        What is lost to it: as asked for to a few percent of it, or what it can cost at most.
    """
    healthy = draw_inputs(spec)
    # Where the strength is a factor, 1 is none at all; elsewhere 0 is.
    none = 1.0 if lost_share(healthy, make(1.0)) < lost else 0.0
    tried: dict[float, tuple[Fault, float]] = {}

    def try_added(added: float) -> float:
        fault = make(none + added)
        tried[added] = fault, lost_share(healthy, fault)
        return tried[added][1]

    low = high = FIRST_ADDED
    if try_added(FIRST_ADDED) < lost:
        while tried[high][1] < lost and high < ADDED[1]:
            low, high = high, ADDED_RATIO * high
            try_added(high)
    else:
        while tried[low][1] >= lost and low > ADDED[0]:
            low, high = low / ADDED_RATIO, low
            try_added(low)
    for _ in range(N_BETWEEN if tried[low][1] < lost <= tried[high][1] else 0):
        shares = np.maximum([tried[low][1], tried[high][1]], 1e-6)
        # What is lost grows about as a power of what is added; a step of the middle at least keeps the range shrinking.
        part = float(np.clip(np.log(lost / shares[0]) / np.log(shares[1] / shares[0]), 0.1, 0.9))
        between = float(low ** (1.0 - part) * high**part)
        if try_added(between) >= lost:
            high = between
        else:
            low = between
        if abs(tried[between][1] - lost) <= CLOSE * lost:
            break
    return min(tried.values(), key=lambda pair: abs(pair[1] - lost))
