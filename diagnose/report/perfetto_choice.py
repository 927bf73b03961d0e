"""Which steps and dp ranks are drawn unless somebody says so.

Enters: what was measured of a job, and what was asked for. Leaves: a `Choice`, what matters most first.
"""

import dataclasses
import math

import numpy as np

from diagnose.errors import UsageError
from diagnose.model.analysis import ReportData
from diagnose.model.trace import Ints
from diagnose.report import words
from diagnose.report.perfetto_step import culprits_of

#: Dp ranks of culprits drawn unless asked for.
MAX_CULPRITS = 3


@dataclasses.dataclass(frozen=True, slots=True)
class Choice:
    """What is drawn: numbers of steps, and indices of dp ranks; of both what matters most is first."""

    steps: tuple[int, ...]
    dp: tuple[int, ...]


def choose_steps(data: ReportData) -> tuple[int, ...]:
    """Choose the step that is slowest against its ideal, launch delays included, and the one nearest to the median."""
    w = data.diagnosis.what_if
    at = np.flatnonzero(np.isin(w.steps, data.analysis.breakdown.steps))
    slowdown = w.recorded_s[at] / w.ideal_s[at]
    worst = int(np.argmax(slowdown))
    distance = np.abs(slowdown - np.median(slowdown))
    distance[worst] = np.inf
    found = [worst] if len(at) == 1 else [worst, int(np.argmin(distance))]
    return tuple(int(w.steps[at[i]]) for i in found)


def choose_dp(data: ReportData) -> tuple[int, ...]:
    """Choose the dp ranks of the culprits, or the slowest one where no cause names any, and a sound peer."""
    slowdown = data.diagnosis.what_if.by_dp
    named = [dp for cause in data.diagnosis.causes for dp in culprits_of(cause, data)]
    found = list(dict.fromkeys(named))[:MAX_CULPRITS] or [int(np.argmax(slowdown))]
    distance = np.abs(slowdown - np.median(slowdown))
    distance[sorted({*named, *found})] = np.inf
    peer = int(np.argmin(distance))
    return (*found, peer) if math.isfinite(distance[peer]) else tuple(found)


def known_steps(data: ReportData, steps: Ints) -> tuple[int, ...]:
    """Refuse steps that were not analysed."""
    analysed = set(data.analysis.breakdown.steps.tolist())
    for step in steps.tolist():
        if step not in analysed:
            some = words.some_of([str(known) for known in sorted(analysed)])
            raise UsageError(f"--perfetto-steps: step {step} is not analysed; expected one of {', '.join(some)}")
    first = [step for step in choose_steps(data) if step in steps]
    return tuple(dict.fromkeys([*first, *steps.tolist()]))


def known_dp(data: ReportData, dp: Ints) -> tuple[int, ...]:
    """Refuse dp ranks that the job does not have."""
    labels = data.diagnosis.dp_labels.tolist()
    for label in dp.tolist():
        if label not in labels:
            some = words.some_of([str(known) for known in labels])
            raise UsageError(f"--perfetto-dp: the job has no dp rank {label}; expected one of {', '.join(some)}")
    asked = [labels.index(label) for label in dp.tolist()]
    first = [place for place in choose_dp(data) if place in asked]
    return tuple(dict.fromkeys([*first, *asked]))


def leave_out(choice: Choice, part: float) -> Choice:
    """Leave out ranks and steps, of the longer list the last, until so large a part of the file is left."""
    steps, dp = list(choice.steps), list(choice.dp)
    most = max(1, int(0.95 * part * len(steps) * len(dp)))
    while len(steps) * len(dp) > most:
        (dp if len(dp) >= len(steps) else steps).pop()
    return Choice(tuple(steps), tuple(dp))
