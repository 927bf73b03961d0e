"""Collections of garbage that all workers make at a planned place, after their last compute: every how many steps, and how long."""

import dataclasses

import numpy as np

from diagnose.model.optype import Op
from diagnose.model.stalls import TOGETHER_SHARE
from diagnose.model.trace import Bools, Ints, Trace

#: Of fewer collections nobody knows how far apart they are: a trace of three steps may hold one of every hundred.
LEAST_COLLECTIONS = 2
#: Beside pauses of which half of the time is lost to longer ones, those below this part of them are nothing.
LEAST_SHARE = 0.1
#: All ranks pause together, and wait for the longest pause: this quantile of those seen last.
LONGEST_QUANTILE = 0.9


@dataclasses.dataclass(frozen=True, slots=True)
class PlannedCollections:
    """Collections that most workers make in the same steps."""

    #: From one to the next.
    interval_steps: float
    #: Seconds of a long one, on the worker that others wait for.
    pause_s: float


def find_planned_collections(trace: Trace) -> PlannedCollections | None:
    """Find the steps after whose last compute most workers collect; None where they are too few to show an interval."""
    by_block = [np.nan_to_num((b.end_s - b.start_s)[b.nodes.op == Op.GC]) for b in trace.blocks]
    least_s = LEAST_SHARE * max((float(seconds.max(initial=0.0)) for seconds in by_block), default=0.0)
    most = TOGETHER_SHARE * trace.n_dp * trace.n_stages
    hits = np.concatenate([(seconds > least_s).sum(axis=(0, 2)) >= most for seconds in by_block])  # (n_steps,)
    if hits.sum() < LEAST_COLLECTIONS:
        return None
    pause_s = np.concatenate([seconds.max(axis=(0, 2), initial=0.0) for seconds in by_block])
    interval = find_interval(np.concatenate([b.steps for b in trace.blocks]), hits)
    return PlannedCollections(interval, float(np.quantile(pause_s[hits], LONGEST_QUANTILE)))


def find_interval(steps: Ints, hits: Bools) -> float:
    """Say every how many steps something happens; of one time alone nobody knows, and it is as often as there are steps."""
    at = np.sort(steps[hits])
    return float(np.median(np.diff(at))) if len(at) > 1 else float(len(steps))
