"""Since when each component costs time."""

import numpy as np

from diagnose.features.onset import find_course
from diagnose.features.stalls import stall_course
from diagnose.features.workers import slow_steps
from diagnose.model.analysis import Suspects
from diagnose.model.components import Components, Gains
from diagnose.model.course import Course
from diagnose.model.stalls import StallKind

#: Components that are stalls of one kind.
STALLS = {"gc-pause": StallKind.COLLECTION, "malloc-pause": StallKind.ALLOCATION, "input-delay": StallKind.INPUT}


def find_courses(components: Components, gains: Gains, suspects: Suspects, *, least: float) -> dict[str, Course]:
    """Say since when a component, or several joined, costs time, by what its removal gives back in each step.

    A slow worker's pace says more than that. What gives back less than `least` of the step is left out: fitting costs.
    """
    order = np.argsort(components.steps, kind="stable")
    found = {}
    for name, without_s in gains.alone_steps_s.items():
        if max(gains.recoverable(name), gains.recoverable_last(name)) < least:
            continue
        if name == "worker" and suspects.workers:
            found[name] = find_course(*slow_steps(components, suspects.workers[0]))
        elif name in STALLS:
            found[name] = stall_course(components, STALLS[name])
        else:
            found[name] = find_course(components.steps[order], (gains.replayed_steps_s - without_s)[order])
    return found
