"""A model whose layers lie unevenly over its stages: what fixes that move layers or change the schedule are judged by."""

import dataclasses
from typing import ClassVar

import numpy as np

from diagnose.errors import UsageError
from diagnose.faults.fault import Fault
from diagnose.faults.inputs import Inputs
from diagnose.faults.spec import JobSpec
from diagnose.model.optype import Op
from diagnose.model.trace import Seconds


@dataclasses.dataclass(frozen=True, kw_only=True)
class UnevenLayers(Fault):
    """A model laid out over its virtual stages layer by layer, with embedding and loss at its ends.

    The job's typical times are those of a virtual stage with the mean number of layers. The same job with other `layers` is that
    job repartitioned.
    """

    cause: ClassVar[str] = "stage-imbalance"
    #: Length n_virtual. Layers of each virtual stage, in the order of the model.
    layers: tuple[int, ...]
    #: What the first and the last virtual stage compute beside their layers, forward and backward, in units of a layer.
    first: tuple[float, float] = (0.0, 0.0)
    last: tuple[float, float] = (0.0, 0.0)

    @property
    def strength(self) -> float:
        """Longest forward in units of the mean one."""
        forward, _ = self._in_layers()
        return float(forward.max() / forward.mean())

    def stages(self, spec: JobSpec) -> tuple[int, ...]:
        """Name the stage with the longest virtual stage."""
        forward, backward = self._in_layers()
        return (int(np.argmax(forward + backward)) % spec.pp,)

    def apply(self, inputs: Inputs) -> Inputs:
        """Give each virtual stage the time of its layers.

        Raises
        ------
        UsageError
            Layers for another number of virtual stages.
        """
        spec = inputs.spec
        if len(self.layers) != spec.n_virtual:
            raise UsageError(
                f"layers of {len(self.layers)} virtual stages; the job has {spec.n_virtual}", where=self.cause
            )
        return self._scale(inputs, self._in_layers())

    def mend(self, inputs: Inputs) -> Inputs:
        """Spread all work evenly, in fractions of layers where it must be."""
        return self._scale(inputs, tuple(np.full(len(work), work.mean()) for work in self._in_layers()))

    def _in_layers(self) -> tuple[Seconds, Seconds]:
        """Give the work of each virtual stage in units of a layer, forward and backward, each of shape (n_virtual,)."""
        work = np.tile(np.array(self.layers, dtype=np.float64), (2, 1))
        work[:, 0] += self.first
        work[:, -1] += self.last
        return work[0], work[1]

    def _scale(self, inputs: Inputs, work: tuple[Seconds, ...]) -> Inputs:
        """Scale each compute by the work of its virtual stage over the mean number of layers."""
        spec, programme, work_s = inputs.spec, inputs.programme, inputs.work_s.copy()
        position = np.asarray(spec.position(programme.stage, programme.chunk))
        active = self.active(spec)
        for op, of_op in ((Op.FORWARD, work[0]), (Op.BACKWARD, work[1])):
            tasks = programme.is_op(op)
            factor = of_op[position[tasks]] / np.mean(self.layers)
            work_s[tasks] *= np.where(active, factor[:, None, None], 1.0)
        return dataclasses.replace(inputs, work_s=work_s)
