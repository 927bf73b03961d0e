"""Decoys that sweeps alone have: they cost time, and are nobody's fault.

Enters: `Inputs` of a job without one. Leaves: `Inputs` of the job with it.
"""

import dataclasses
from typing import ClassVar

import numpy as np

from diagnose.faults.decoy import Decoy
from diagnose.faults.inputs import Inputs
from diagnose.model.optype import Op


@dataclasses.dataclass(frozen=True, kw_only=True)
class OlderMachines(Decoy):
    """Half of the dp ranks, the last ones, run on older machines: everybody waits for them, as the job was laid out."""

    name: ClassVar[str] = "older-machines"
    unlike: ClassVar[frozenset[str]] = frozenset({"worker-fault", "sequence-imbalance"})
    slowdown: float

    def apply(self, inputs: Inputs) -> Inputs:
        """Make all computes of those ranks longer."""
        is_old = np.arange(inputs.spec.dp) >= inputs.spec.dp - inputs.spec.dp // 2
        return dataclasses.replace(inputs, work_s=inputs.work_s * np.where(is_old, self.slowdown, 1.0))


@dataclasses.dataclass(frozen=True, kw_only=True)
class UnevenExperts(Decoy):
    """Experts that are given more tokens than others: a microbatch takes longer on a stage, forward and backward alike."""

    name: ClassVar[str] = "uneven-experts"
    unlike: ClassVar[frozenset[str]] = frozenset({"expert-imbalance", "sequence-imbalance"})
    #: Standard deviation of the logarithm of what computes take, drawn for each microbatch and virtual stage of a step; all dp
    #: ranks of a stage share the experts.
    spread: float

    def apply(self, inputs: Inputs) -> Inputs:
        """Scale the computes."""
        spec, programme = inputs.spec, inputs.programme
        log = self.random(spec).standard_normal((spec.n_virtual, spec.microbatches, spec.steps, 1))
        computes = np.flatnonzero(programme.is_op(Op.FORWARD, Op.BACKWARD))
        virtual = programme.chunk[computes] * spec.pp + programme.stage[computes]
        return inputs.with_work(computes, np.exp(self.spread * log[virtual, programme.microbatch[computes]]))
