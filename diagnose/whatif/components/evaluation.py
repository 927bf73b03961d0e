"""Planned work: evaluation, logging, and collections of all workers at once; it takes time and makes no job straggle.

It is known by rows, by forwards that alone take longer on all workers every so many steps, or by all workers pausing in the same
steps at regular intervals.
"""

from collections.abc import Collection

import numpy as np

from diagnose.model.components import Traits
from diagnose.model.feature import Features
from diagnose.model.stalls import TOGETHER_SHARE, StallKind, Stalls
from diagnose.model.trace import Bools, Ints, Seconds
from diagnose.numerics.period import MIN_HITS, find_period
from diagnose.whatif.components.component import Component, Lanes, Part, mix
from diagnose.whatif.computes import Place, Places

#: A step is slow as a whole beyond this.
SLOW_WHOLE_STEP_RATIO = 1.03
#: In an evaluation forwards have this part of what a step takes longer: they alone are longer, or there are more of them.
FORWARD_SHARE = 0.8
#: Planned work comes at a period, exact to this part, and not in more than this part of the steps.
REGULAR, MAX_SHARE = 0.8, 0.6
#: Planned pauses are these part of all pauses of their kind.
MOST_SHARE = 0.8
#: Collections that cost more than this part of the time come too often, planned or not: the least gain that is reported.
DEAR_SHARE = 0.02


class EvaluationPart(Part):
    """Without it steps with an evaluation take as long as others."""

    changes_work = True

    def find(self) -> None:
        """Find the steps whose forwards alone are longer."""
        breakdown = self.job.breakdown
        self._at = find_evaluations(breakdown.step_ratio, breakdown.steps)

    def is_present(self) -> bool:
        """Say whether there is any planned work."""
        return bool(self._at.any()) or super().is_present()

    def ease_work(self, work: Seconds, place: Place | Places, steps: slice, lanes: Lanes) -> Seconds:
        """Give a compute of a step with an evaluation the work of the usual one."""
        ratio = self.job.breakdown.step_ratio[place[0], steps, None]
        return work / mix(lanes, np.where(self._at[steps, None], np.maximum(ratio, 1.0), 1.0), 1.0)


def find_evaluations(step_ratio: Seconds, steps: Ints) -> Bools:
    """Mark the steps whose forwards alone take longer on all workers, at a period or once; shape (n_steps,).

    `step_ratio` says how long computes of each step are against those of the usual one, shape (2, n_steps).
    """
    excess = np.maximum(step_ratio - 1.0, 0.0)
    at = (step_ratio.max(axis=0) > SLOW_WHOLE_STEP_RATIO) & (excess[0] >= FORWARD_SHARE * excess.sum(axis=0))
    return at if is_planned(steps, at) or at.sum() == 1 else np.zeros(at.shape, dtype=bool)


def is_planned(steps: Ints, hits: Bools) -> bool:
    """Say whether something happens at a period, in not too many of the steps."""
    order = np.argsort(steps, kind="stable")
    if hits.sum() < MIN_HITS or hits.mean() > MAX_SHARE:
        return False
    return find_period(steps[order], hits[order])[1] >= REGULAR


def attribute_planned_collections(stalls: Stalls, steps: Ints, job_s: float, n_stages: int) -> None:
    """Attribute the collections that nearly all workers make in the same steps, at a period, to the plan.

    Where each worker collects when its own objects ask for it, steps differ from worker to worker. What costs much is no good plan:
    its interval is too short. `job_s` are the seconds of all steps.
    """
    seconds = stalls.seconds_of(StallKind.COLLECTION)
    if not seconds.any():
        return
    by_worker = seconds.sum(axis=(0, 2)).reshape(-1, n_stages, *seconds.shape[3:]).sum(axis=0)  # stages, steps, dp
    at_once = (by_worker > 0).mean(axis=(0, 2)) >= TOGETHER_SHARE
    by_step = by_worker.sum(axis=(0, 2))
    if (
        by_worker[:, 0].size < MIN_HITS
        or not is_planned(steps, at_once)
        or by_step[at_once].sum() < MOST_SHARE * by_step.sum()
        or by_worker.max(axis=(0, 2)).sum() > DEAR_SHARE * job_s
    ):
        return
    for kinds in (stalls.inside, stalls.before):
        here = (kinds == StallKind.COLLECTION) & at_once[None, None, None, :, None]
        kinds[here] = StallKind.PLANNED


def _always(_features: Features, _explained: Collection[str]) -> bool:
    """Say that planned work needs no explanation."""
    return True


COMPONENT = Component(
    "evaluation",
    EvaluationPart,
    inside=StallKind.PLANNED,
    before=StallKind.PLANNED,
    traits=Traits(is_excused=_always),
)
