"""A pipeline stage with more layers, or more costly ones, than the others: mostly the last, with vocabulary and loss.

The work is in the wrong place, not too much: mended, all stages share it evenly.
"""

import dataclasses
from typing import ClassVar

import numpy as np

from diagnose.errors import UsageError
from diagnose.faults.decoys import HiddenWorker
from diagnose.faults.example import CLEAR_ASYNCHRONOUS, PLAIN_JOB, Example, Fixture, LookAlike
from diagnose.faults.fault import Fault, choose_kind
from diagnose.faults.inputs import Inputs
from diagnose.faults.spec import JobSpec
from diagnose.model.optype import Op
from diagnose.model.trace import Seconds


@dataclasses.dataclass(frozen=True, kw_only=True)
class StageImbalance(Fault):
    """One stage slower by a factor, on all dp ranks alike; `strength` is that of forward."""

    cause: ClassVar[str] = "stage-imbalance"
    strength_field: ClassVar[str] = "forward_slowdown"
    #: -1 is the last.
    stage: int = -1
    #: A loss over a large vocabulary costs forward more than backward (2.07 and 1.41 in a production job).
    forward_slowdown: float = 1.6
    backward_slowdown: float = 1.3
    #: Only this model chunk of the stage, -1 the last; None: all of them.
    chunk: int | None = None

    def stages(self, spec: JobSpec) -> tuple[int, ...]:
        """Name the slow stage."""
        return (self.stage % spec.pp,)

    def apply(self, inputs: Inputs) -> Inputs:
        """Make the stage's computes longer.

        Raises
        ------
        UsageError
            A stage that the job does not have.
        """
        spec, programme = inputs.spec, inputs.programme
        if not -spec.pp <= self.stage < spec.pp:
            raise UsageError(f"no stage {self.stage}; the job has {spec.pp}", where=self.cause)
        here = programme.stage == self.stage % spec.pp
        if self.chunk is not None:
            here &= programme.chunk == self.chunk % spec.vpp
        return self._scale(inputs, np.where(here, 1.0, 0.0))

    def mend(self, inputs: Inputs) -> Inputs:
        """Spread the excess over all model chunks of all stages: the same work, in the right place."""
        spec = inputs.spec
        n_chunks = spec.vpp if self.chunk is None else 1
        return self._scale(inputs, np.full(len(inputs.programme.tasks), n_chunks / spec.n_virtual))

    def _scale(self, inputs: Inputs, share: Seconds) -> Inputs:
        """Lengthen each compute by that share (shape (n_tasks,)) of the excess."""
        active = self.active(inputs.spec)
        for op, slowdown in ((Op.FORWARD, self.forward_slowdown), (Op.BACKWARD, self.backward_slowdown)):
            tasks = inputs.programme.is_op(op)
            factor = 1.0 + (slowdown - 1.0) * share[tasks]
            inputs = inputs.with_work(tasks, np.where(active, factor[:, None, None], 1.0))
        return inputs


#: How often a random fault is of each kind.
KINDS = {"stage": 1.0}


def draw_fault(
    spec: JobSpec,
    rng: np.random.Generator,
    *,
    strength: float | None = None,
    onset: int | None = None,
    kind: str | None = None,
) -> StageImbalance | None:
    """Draw an uneven stage, mostly the last; where interleaved, half of them in its last model chunk only.

    Without pipelining there is no other stage: None.
    """
    if spec.pp == 1:
        return None
    stage = -1 if rng.random() < 0.75 else int(rng.integers(0, spec.pp))
    chunk = -1 if spec.vpp > 1 and rng.random() < 0.5 else None
    if stage == -1:
        stage = spec.place(spec.n_virtual - 1)[0] - spec.pp
    forward = float(rng.uniform(1.1, 2.6)) if strength is None else strength
    return StageImbalance(
        kind=choose_kind(KINDS, rng, kind),
        stage=stage,
        chunk=chunk,
        forward_slowdown=forward,
        backward_slowdown=1.0 + (forward - 1.0) * float(rng.uniform(0.35, 0.9)),
        onset=onset,
    )


EXAMPLES = {
    "a long last stage": Example(StageImbalance(stage=-1, forward_slowdown=1.9, backward_slowdown=1.6)),
    "a long first stage": Example(
        StageImbalance(stage=0, forward_slowdown=1.7, backward_slowdown=1.7), CLEAR_ASYNCHRONOUS
    ),
}
PLAIN = Example(StageImbalance(stage=-1, forward_slowdown=1.8, backward_slowdown=1.5), PLAIN_JOB)
LOOK_ALIKES = {"hidden worker": LookAlike(HiddenWorker(dp=1, stage=2, shorter=0.05, excess=0.07))}
FIXTURE = Fixture("stage 3: forward 1.80, backward 1.45 times the others", seed=4, kind="stage", strength=1.8)
