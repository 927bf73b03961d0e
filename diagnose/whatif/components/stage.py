"""Uneven pipeline stages: computes of one stage take longer than those of others, on all ranks and in all steps."""

from diagnose.model.trace import Seconds
from diagnose.whatif.components.component import Component, Lanes, Part, mix
from diagnose.whatif.computes import Place


class StagePart(Part):
    """Without it every virtual stage takes the mean of all: imbalance moves work, and the work is kept."""

    changes_work = True

    def find(self) -> None:
        """Compare each stage with the mean of all."""
        typical_s = self.job.components.typical_s
        self._even_ratio = typical_s.mean(axis=1, keepdims=True) / typical_s

    def is_present(self) -> bool:
        """Say whether there are several stages."""
        return bool(self.job.components.typical_s.shape[1] > 1)

    def ease_work(self, work: Seconds, place: Place, steps: slice, lanes: Lanes) -> Seconds:
        """Give a compute the work of a mean stage."""
        del steps
        direction, virtual, _ = place
        return work * mix(lanes, self._even_ratio[direction, virtual], 1.0)


COMPONENT = Component("stage", StagePart)
