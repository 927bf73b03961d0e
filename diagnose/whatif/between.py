"""Time after the optimizer until the next step began.

Enters: observed blocks and evidence. Leaves: seconds a step.
"""

from collections.abc import Sequence

import numpy as np

from diagnose.model.trace import Seconds, Trace
from diagnose.whatif.observed import Observed


def measure_between(trace: Trace, observed: Sequence[Observed]) -> Seconds:
    """Say how long after each step's end the next one began.

    Parameters
    ----------
    trace : Trace
    observed : sequence of Observed

    Returns
    -------
    ndarray of float64, shape (n_steps,)
        Seconds, in the order of the blocks: the gap to the next step where that is in the trace (where not, the median of the
        gaps that are, because a sampled trace says nothing of the steps it left out), if times are of the whole
        job; else until the first worker had done what its evidence rows say; else 0.
    """
    steps = np.concatenate([o.block.steps for o in observed])
    length_s = np.concatenate([o.block.end_s.max(axis=(0, 2)) for o in observed])
    order = np.argsort(steps)
    gap_s = np.zeros(len(steps))
    if len(trace.evidence):
        # What some workers do after the optimizer delays the next step's first collective and shows there; only what all of
        # them do lies between the steps.
        at = order[np.minimum(np.searchsorted(steps[order], trace.evidence.step), len(steps) - 1)]
        there = steps[at] == trace.evidence.step
        ends_s = np.zeros((len(steps), trace.n_dp, trace.n_stages))
        np.maximum.at(
            ends_s, (at[there], trace.evidence.dp[there], trace.evidence.stage[there]), trace.evidence.end_s[there]
        )
        gap_s = ends_s.min(axis=(1, 2)) - length_s
    if trace.step_origin_s is not None and len(trace.step_origin_s) > 1:
        every_step = np.sort(trace.steps)
        position = np.searchsorted(every_step, steps)
        following = np.append(np.diff(trace.step_origin_s), np.nan)[position] - length_s
        known = np.append(np.diff(every_step) == 1, False)[position]
        known &= ~np.isin(steps + 1, trace.restarted_steps)  # what lies before a restart is no time of the job
        if known.any():
            # Where the next step was not sampled rows may still say what followed.
            gap_s = np.where(known, following, np.maximum(np.median(following[known]), gap_s))
    return np.maximum(gap_s, 0.0)
