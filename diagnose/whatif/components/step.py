"""Slow computes of whole steps: all workers compute longer in one step than in the usual one."""

from collections.abc import Collection

import numpy as np

from diagnose.model.components import Traits
from diagnose.model.feature import Features
from diagnose.model.stalls import StallKind
from diagnose.model.trace import Bools, Seconds
from diagnose.whatif.components.attribution import MANY_A_STEP, TOGETHER_SHARE, LongStalls
from diagnose.whatif.components.component import Component, Lanes, Part, mix
from diagnose.whatif.computes import Place
from diagnose.whatif.medians import TINY_RATIO, nearest_zero_center

#: A step is slow as a whole beyond this.
SLOW_WHOLE_STEP_RATIO = 1.03
#: Documents make a step long by so many standard deviations at most.
DRAWN_DEVIATIONS = 4.0
#: Fewer workers than this do nothing together.
MIN_TOGETHER = 4
#: Steps whose forwards alone are slow on all workers, on one period to this part, are evaluations.
EVALUATION_FORWARD_SHARE = 0.8
EVALUATION_REGULARITY = 0.8


class StepPart(Part):
    """Without it a slow step takes as long as the usual one."""

    changes_work = True

    def is_present(self) -> bool:
        """Say whether a step is slow, or all stall in one together."""
        slow = (self.job.breakdown.step_ratio > SLOW_WHOLE_STEP_RATIO).any()
        return bool(slow) or super().is_present()

    def ease_work(self, work: Seconds, place: Place, steps: slice, lanes: Lanes) -> Seconds:
        """Give a compute of a slow step the work of the usual one."""
        ratio = self.job.breakdown.step_ratio[place[0], steps, None]
        return work / mix(lanes, np.where(ratio > SLOW_WHOLE_STEP_RATIO, ratio, 1.0), 1.0)


def find_slow_steps(pace: Seconds) -> Seconds:
    """Say how long all computes of a step are against the usual step: shape (2, n_steps)."""
    n_steps = pace.shape[2]
    ordered = np.sort(np.moveaxis(pace, 2, 1).reshape(2, n_steps, -1), axis=2)  # NaN last
    count = np.maximum((~np.isnan(ordered)).sum(axis=2, keepdims=True), 1)
    # Of the quickest third: a fault may slow more than half of the workers, and is none of the step's.
    ratio = np.take_along_axis(ordered, (count - 1) // 3, axis=2)[:, :, 0]
    ratio = np.where(ratio > 0, ratio, 1.0)
    return np.asarray(ratio / np.median(ratio, axis=1, keepdims=True))


def without_microbatches(step_ratio: Seconds, error: float) -> Seconds:
    """Say how slow steps are where microbatches are uneven: long documents make whole steps long, too.

    As far as drawing them explains, a step is as long as its microbatches; `error` is what it does to the usual one of a step,
    as standard deviation of the log. What only one direction has, as an evaluation, stays with the step.
    """
    shared = nearest_zero_center(np.log(np.maximum(step_ratio, TINY_RATIO)), axis=0)
    shared = np.clip(shared, -DRAWN_DEVIATIONS * error, DRAWN_DEVIATIONS * error)
    step_ratio = step_ratio / np.exp(shared)
    return np.where(step_ratio > SLOW_WHOLE_STEP_RATIO, step_ratio, 1.0)


def attribute_to_plan(found: LongStalls) -> None:
    """Attribute stalls that nearly all workers have in one step to a plan, or to a batch that all wait for."""
    long, n_stages = found.long, found.n_stages
    n_virtual, n_dp = long.shape[1], long.shape[-1]
    n_workers = n_stages * n_dp
    if n_workers < MIN_TOGETHER:
        return
    shape = (2, n_virtual // n_stages, n_stages, *long.shape[2:])
    by_worker: Bools = np.any(long.reshape(shape)[0], axis=0)  # (n_stages, n_microbatches, n_steps, n_dp)
    at_once = by_worker.sum(axis=(0, 3))  # (n_microbatches, n_steps): workers
    by_step = at_once.max(axis=0)
    planned = by_step >= TOGETHER_SHARE * n_workers
    planned &= by_step > np.median(by_step) + TOGETHER_SHARE / 2 * n_workers
    if not planned.any():
        return
    # A plan stops the same microbatch everywhere, once; a batch that all wait for stops the first, or all.
    total = by_worker[:, :, planned].sum()
    if n_stages == 1 and (total > MANY_A_STEP * by_step[planned].sum() or at_once[0, planned].sum() > total / 2):
        at = long & planned[None, None, None, :, None]
        at[1] = False
        # If most start late, or most stand still, whoever does the other has a reason of its own.
        for alike in found.late_or_long():
            if (at & alike).sum() >= TOGETHER_SHARE * at.sum():
                at &= alike
                break
        found.assign(at, StallKind.INPUT)
        return
    at = long & planned[None, None, None, :, None] & (at_once == by_step)[None, None, :, :, None]
    found.assign(at, StallKind.TOGETHER)


def _is_evaluation(features: Features, _explained: Collection[str]) -> bool:
    """Say whether the slow steps are evaluations: forwards only, on all workers, at regular intervals. That is no loss."""
    forward, regular = features.get("step.forward_only"), features.get("step.regularity")
    if forward is None or regular is None or forward.value is None or regular.value is None:
        return False
    return forward.value >= EVALUATION_FORWARD_SHARE and regular.value >= EVALUATION_REGULARITY


COMPONENT = Component(
    "step",
    StepPart,
    inside=StallKind.TOGETHER,
    before=StallKind.TOGETHER,
    traits=Traits(is_excused=_is_evaluation),
)
