"""Computes queued behind communication in flight: seconds in which a compute waits for a transfer of its own worker."""

from diagnose.model.stalls import Whose
from diagnose.whatif.components.component import Component, Part
from diagnose.whatif.waits import WaitGraph, add_waits


class QueuePart(Part):
    """What computes wait for is in the graph where it can be: then a scenario with shorter transfers has shorter waits."""

    def find(self) -> None:
        """Take the waits inside computes from the components, and put waits into the graphs."""
        components, observed = self.job.components, self.job.observed
        self.held_s = components.hold_s
        held_by = components.held_by or ({},) * len(observed)
        self._waits = [add_waits(o, of_block) for o, of_block in zip(observed, held_by, strict=True)]

    def worst_s(self) -> float:
        """Add up the waits inside computes and the late starts."""
        held = 0.0 if self.held_s is None else float(self.held_s.max(axis=-1).sum())
        return held + super().worst_s()

    def waits(self, i: int) -> WaitGraph | None:
        """Give the graph in which computes wait for the communication in flight."""
        return self._waits[i]


COMPONENT = Component("queue", QueuePart, inside=Whose.QUEUE, before=Whose.QUEUE)
