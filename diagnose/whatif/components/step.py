"""Slow computes of whole steps: all workers compute longer in one step than in the usual one."""

import numpy as np

from diagnose.model.stalls import Whose
from diagnose.model.trace import Seconds
from diagnose.whatif.components.component import Component, Lanes, Part, mix
from diagnose.whatif.computes import Place

#: A step is slow as a whole beyond this.
SLOW_WHOLE_STEP_RATIO = 1.03


class StepPart(Part):
    """Without it a slow step takes as long as the usual one."""

    changes_work = True

    def is_present(self) -> bool:
        """Say whether a step is slow, or all stall in one together."""
        slow = (self.job.components.step_ratio > SLOW_WHOLE_STEP_RATIO).any()
        return bool(slow) or super().is_present()

    def ease_work(self, work: Seconds, place: Place, steps: slice, lanes: Lanes) -> Seconds:
        """Give a compute of a slow step the work of the usual one."""
        ratio = self.job.components.step_ratio[place[0], steps, None]
        return work / mix(lanes, np.where(ratio > SLOW_WHOLE_STEP_RATIO, ratio, 1.0), 1.0)


COMPONENT = Component("step", StepPart, inside=Whose.TOGETHER, before=Whose.TOGETHER)
