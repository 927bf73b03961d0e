"""Uneven microbatches: one microbatch takes longer on every stage, forward and backward, than the others of its step."""

import numpy as np

from diagnose.model.trace import Seconds
from diagnose.whatif.components.component import Component, Lanes, Part, mix
from diagnose.whatif.computes import Place


class MicrobatchPart(Part):
    """Without it all microbatches of a step take the mean of all: imbalance moves work, and the work is kept."""

    changes_work = True

    def find(self) -> None:
        """Weigh each microbatch, ordinary variation left out, against the mean of its step."""
        c = self.job.components
        self._weight = weight = c.microbatch_ratio ** (1.0 - c.microbatch_ordinary)
        there = ~np.isnan(c.compute_s).all(axis=1)
        self._mean = np.where(there, weight, 0.0).sum(axis=(1, 3)) / np.maximum(there.sum(axis=(1, 3)), 1)

    def is_present(self) -> bool:
        """Say whether any microbatch differs from the others."""
        return bool((self.job.components.microbatch_ratio != 1.0).any())

    def ease_work(self, work: Seconds, place: Place, steps: slice, lanes: Lanes) -> Seconds:
        """Give a compute the work of a mean microbatch of its step."""
        direction, _, microbatch = place
        even = self._mean[direction, steps, None] / self._weight[direction, microbatch, steps]
        return work * mix(lanes, even, 1.0)


COMPONENT = Component("microbatch", MicrobatchPart)
