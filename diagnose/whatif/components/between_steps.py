"""Time between or at the end of steps: after the last optimizer, until the next step began."""

import numpy as np

from diagnose.model.optype import Op
from diagnose.model.trace import Seconds
from diagnose.whatif.components.component import Component, Part
from diagnose.whatif.delays import ORDINARY_SHARE


class BetweenStepsPart(Part):
    """Without it the time between steps is at most the ordinary one, which no job is without."""

    def find(self) -> None:
        """Say what time between steps is ordinary in this job."""
        job = self.job
        self._ordinary_s = float(np.median(job.between_s))
        # Where no optimizer was recorded it lies between the steps, with all else that ends one.
        if any((o.block.nodes.op == Op.OPTIMIZER).any() for o in job.observed):
            self._ordinary_s = min(self._ordinary_s, ORDINARY_SHARE * (job.total_s / job.n_steps))

    def is_present(self) -> bool:
        """Say whether a step is followed by more than that."""
        return bool((self.job.between_s > self._ordinary_s).any())

    def ease_between(self, between_s: Seconds) -> Seconds:
        """Cut what is more than ordinary."""
        return np.minimum(between_s, self._ordinary_s)

    def blame(self) -> Seconds | None:
        """Add up the seconds in which rows say that a worker was busy, of the gaps that are more than ordinary."""
        job = self.job
        if job.tail_s is None or not job.tail_s.any():
            return None
        long = job.between_s > self._ordinary_s
        busy_s = np.minimum(job.tail_s, job.between_s[:, None, None])
        return np.asarray(busy_s[long].sum(axis=0) / job.n_steps)


COMPONENT = Component("between-steps", BetweenStepsPart)
