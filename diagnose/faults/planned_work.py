"""Planned work that stops all workers every so many steps: evaluation, logging, a profiler; it is no fault.

Enters: `Inputs` of a job without it. Leaves: `Inputs` of the job with it.
"""

import dataclasses
from typing import ClassVar, Literal

import numpy as np

from diagnose.faults.decoy import Decoy, mark_multiples
from diagnose.faults.first_tasks import delay_first_tasks
from diagnose.faults.inputs import Inputs
from diagnose.model.optype import Op


@dataclasses.dataclass(frozen=True, kw_only=True)
class PlannedWork(Decoy):
    """Every so many steps all workers do something else, after the optimizer or before they begin a step."""

    name: ClassVar[str] = "planned-work"
    #: Without rows it looks like a save.
    unlike: ClassVar[frozenset[str]] = frozenset({"checkpoint-stall"})
    period_steps: int
    seconds: float
    kind: Op = Op.EVAL
    where: Literal["between", "before"] = "between"
    recorded: bool = True

    def apply(self, inputs: Inputs) -> Inputs:
        """Keep all workers busy; the last to be ready lets the others go on."""
        spec = inputs.spec
        unsteady = np.exp(0.03 * self.random(spec).standard_normal((spec.pp, *inputs.lanes)))
        busy_s = np.where(mark_multiples(spec, self.period_steps)[None, :, None], self.seconds * unsteady, 0.0)
        if self.where == "before":
            pauses = delay_first_tasks(inputs.programme, self.kind, busy_s, recorded=self.recorded, together=True)
            return inputs.with_pauses(*pauses)
        busy_s = np.broadcast_to(busy_s.max(axis=(0, 2), keepdims=True), busy_s.shape)
        kind = self.kind if self.recorded else inputs.tail_kind
        return dataclasses.replace(inputs, tail_s=inputs.tail_s + busy_s, tail_kind=kind)
