"""Slow computes of whole steps: all workers compute longer in one step than in the usual one, and that is no evaluation."""

from collections.abc import Collection

import numpy as np

from diagnose.model.components import Traits
from diagnose.model.feature import Features
from diagnose.model.stalls import TOGETHER_SHARE, StallKind
from diagnose.model.trace import Bools, Ints, Seconds
from diagnose.numerics.change_points import BOUND_QUANTILES, place_changes
from diagnose.numerics.period import is_interval
from diagnose.numerics.robust import median
from diagnose.whatif.components.attribution import MANY_A_STEP, LongStalls
from diagnose.whatif.components.component import Component, Lanes, Part, mix
from diagnose.whatif.components.evaluation import SLOW_WHOLE_STEP_RATIO, find_evaluations, is_planned
from diagnose.whatif.computes import Place, Places
from diagnose.whatif.medians import TINY_RATIO, nearest_zero_center

#: Documents make a step long by so many standard deviations at most.
DRAWN_DEVIATIONS = 4.0
#: Slow steps have more work where tokens explain this part of what they take longer.
MORE_WORK_SHARE = 0.5
#: ... or where all workers and both directions have this part of it in common: 0.88 to 0.98 where the batches of all ranks were
#: longer in the same steps (real jobs), up to 0.77 on busy hosts.
SHARED_SHARE = 0.85
#: A job gets slower for good where at least so many steps, and this part of them, are quicker; all but a few steps are on their
#: side of the middle, and computes of both directions take so much longer.
LEAST_BEFORE, LEAST_BEFORE_SHARE, FEW_BETWEEN, LEAST_RISE = 6, 0.1, 0.1, 1.05
#: The first steps of a job are slow for its start: this part of the quicker ones at most.
STARTING_SHARE = 1.0 / 3.0
#: Fewer workers than this do nothing together.
MIN_TOGETHER = 3


class StepPart(Part):
    """Without it a slow step takes as long as the usual one."""

    changes_work = True

    def find(self) -> None:
        """Find the slow steps."""
        breakdown = self.job.breakdown
        evaluates = find_evaluations(breakdown.step_ratio, breakdown.steps)
        self._slow = (breakdown.step_ratio > SLOW_WHOLE_STEP_RATIO) & ~evaluates

    def is_present(self) -> bool:
        """Say whether a step is slow, or all stall in one together."""
        return bool(self._slow.any()) or super().is_present()

    def ease_work(self, work: Seconds, place: Place | Places, steps: slice, lanes: Lanes) -> Seconds:
        """Give a compute of a slow step the work of the usual one."""
        ratio = self.job.breakdown.step_ratio[place[0], steps, None]
        return work / mix(lanes, np.where(self._slow[place[0], steps, None], ratio, 1.0), 1.0)


def find_usual_steps(step_ratio: Seconds, order: Ints) -> Bools:
    """Mark the steps that say what is usual, shape (n_steps,): all, or those before most steps of the job are slow for good.

    What most steps take is no reference where that they take it is what was lost. `step_ratio` says how long steps are by the
    reference of most, `order` puts them in time.
    """
    log = np.log(step_ratio[:, order])
    n_steps = log.shape[1]
    usual = np.ones(n_steps, dtype=bool)
    both = log.mean(axis=0)
    if n_steps < 2 * LEAST_BEFORE:
        return usual
    (since,) = place_changes(np.clip(both, *np.quantile(both, BOUND_QUANTILES)), 1)
    if since < max(LEAST_BEFORE, LEAST_BEFORE_SHARE * n_steps) or 2 * since >= n_steps:
        return usual
    before, after = median(log[:, :since], axis=1), median(log[:, since:], axis=1)
    rises, middle = after - before, float((before + after).mean()) / 2.0
    is_quick = both[:since] <= middle
    starting = min(int(is_quick.argmax()), int(STARTING_SHARE * since))
    apart = max(np.mean(~is_quick[starting:]), np.mean(both[since:] < middle)) <= FEW_BETWEEN
    if apart and rises.mean() >= np.log(LEAST_RISE) and rises.min() >= rises.mean() / 2.0:
        usual[order[since:]] = False
    return usual


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
    """Attribute stalls that nearly all workers have in one step to a plan, or to a batch that all wait for.

    What is planned comes at a period; what all have in other steps is slow, whatever it is.
    """
    long, n_stages = found.long, found.n_stages
    n_virtual, n_dp = long.shape[1], long.shape[-1]
    n_workers = n_stages * n_dp
    if n_workers < MIN_TOGETHER:
        return
    by_chunk = long[0].reshape(n_virtual // n_stages, n_stages, *long.shape[2:])
    by_worker: Bools = np.any(by_chunk, axis=0)  # (n_stages, n_microbatches, n_steps, n_dp)
    at_once = by_worker.sum(axis=(0, 3))  # (n_microbatches, n_steps): workers
    by_step = at_once.max(axis=0)
    planned = by_step >= max(TOGETHER_SHARE * n_workers, MIN_TOGETHER)
    planned &= by_step > median(by_step) + TOGETHER_SHARE / 2 * n_workers
    if not planned.any():
        return
    # A plan stops the same microbatch everywhere, once; a batch that all wait for stops the first, or all.
    total = by_worker[:, :, planned].sum()
    # With two stages all workers read data, batches or labels; what comes at a period there is rather a plan.
    may_read = n_stages == 1 or (n_stages == 2 and not is_planned(found.steps, planned))
    may_read &= found.reads_input is not False
    if may_read and (total > MANY_A_STEP * by_step[planned].sum() or at_once[0, planned].sum() > total / 2):
        at = long & planned[None, None, None, :, None]
        at[1:] = False
        late, long_inside = found.late_or_long()
        # If most start late, or most stand still, whoever does the other has a reason of its own.
        begin_late = (at & late).sum() >= TOGETHER_SHARE * at.sum()
        if begin_late:
            at &= late
        elif (at & long_inside).sum() >= TOGETHER_SHARE * at.sum():
            at &= long_inside
        # All begin a step late at a period: whatever stops all between two steps, as a save does.
        stops_all = begin_late and not at[:, :, 1:].any() and is_interval(found.steps, planned)
        found.assign(at, StallKind.SAVING if stops_all else StallKind.INPUT)
        return
    at = long & planned[None, None, None, :, None] & (at_once == by_step)[None, None, :, :, None]
    if not is_planned(found.steps, planned):
        found.assign(at, StallKind.TOGETHER)
        return
    # Nobody evaluates within a forward; what Python does there every so many steps is to collect.
    inside = at & found.late_or_long()[1]
    inside[1:] = False
    found.assign(inside, StallKind.COLLECTION)
    found.assign(at & ~inside, StallKind.PLANNED)


def _has_more_work(features: Features, _explained: Collection[str]) -> bool:
    """Say whether slow steps are those with more work, by tokens or as all computes are longer alike: that is nobody's fault."""
    found = (features.get(name) for name in ("sequence.slow_steps", "step.shared"))
    told, shared = (None if one is None else one.value for one in found)
    return (shared or 0.0) >= SHARED_SHARE if told is None else told >= MORE_WORK_SHARE


COMPONENT = Component(
    "step",
    StepPart,
    inside=StallKind.TOGETHER,
    before=StallKind.TOGETHER,
    traits=Traits(is_excused=_has_more_work, varies=True, excuse="in steps with more work"),
)
