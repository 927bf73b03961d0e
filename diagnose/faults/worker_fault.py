"""A worker whose clock is throttled: everything it computes takes longer, on every microbatch.

The fault adds work: mended, the worker does what its peers do.
"""

import dataclasses
from typing import ClassVar

import numpy as np

from diagnose.errors import UsageError
from diagnose.faults.example import PLAIN_JOB, Example, Fixture, LookAlike
from diagnose.faults.fault import Fault, Worker, choose_kind
from diagnose.faults.inputs import Inputs
from diagnose.faults.members import LateMember
from diagnose.faults.spec import JobSpec, draw_log_uniform
from diagnose.model.optype import Op


@dataclasses.dataclass(frozen=True, kw_only=True)
class WorkerFault(Fault):
    """One worker or several, slower by a factor; `strength` is that factor."""

    cause: ClassVar[str] = "worker-fault"
    has_exact_onset: ClassVar[bool] = True
    #: Tuple of (dp rank, stage).
    places: tuple[Worker, ...]
    #: Forward and optimizer take this many times as long.
    slowdown: float = 1.5
    #: The same for backward; None: as forward. AR's slowed worker: forward 2.5, backward 2.3.
    backward_slowdown: float | None = None
    #: Standard deviation of the logarithm of the factor, drawn for each compute: a throttled clock is unsteady.
    spread: float = 0.0
    #: Its sends take this many times as long.
    sends_slowdown: float = 1.0
    #: It is this tensor- and context-parallel member of each worker alone (`cp * tp_size + tp`) that is slow, and the
    #: others wait for it; None: all members are slow alike.
    member: int | None = None

    @property
    def strength(self) -> float:
        """Slowdown of forward."""
        return self.slowdown

    def workers(self, spec: JobSpec) -> tuple[Worker, ...]:  # noqa: ARG002 - of the base class
        """List the slow workers."""
        return self.places

    def apply(self, inputs: Inputs) -> Inputs:
        """Slow the computes of the workers down, and their sends.

        Raises
        ------
        UsageError
            A worker, or a member, that the job does not have.
        """
        spec, programme = inputs.spec, inputs.programme
        if self.member is not None and not 0 <= self.member < spec.n_members:
            raise UsageError(f"no member {self.member}; workers have {spec.n_members}", where=self.cause)
        work_s, transfer_s, late = inputs.work_s.copy(), inputs.transfer_s.copy(), list(inputs.late_members)
        rng, active = self.random(spec), self.active(spec)[:, 0]
        backward = self.slowdown if self.backward_slowdown is None else self.backward_slowdown
        factors = {Op.FORWARD: self.slowdown, Op.BACKWARD: backward, Op.OPTIMIZER: self.slowdown}
        for dp, stage in self.places:
            if not (0 <= dp < spec.dp and 0 <= stage < spec.pp):
                raise UsageError(
                    f"no worker (dp {dp}, stage {stage}); the job has {spec.dp} x {spec.pp}", where=self.cause
                )
            here = programme.stage == stage
            for op, factor in factors.items():
                tasks = np.flatnonzero(here & programme.is_op(op))
                unsteady = np.exp(self.spread * rng.standard_normal((len(tasks), spec.steps)))
                work_s[tasks, :, dp] *= np.where(active, factor * unsteady, 1.0)
            if self.member is not None:
                late.append(LateMember(dp, stage, self.member, work_s[:, :, dp] - inputs.work_s[:, :, dp]))
            sends = np.flatnonzero(here & programme.is_op(Op.FORWARD_SEND, Op.BACKWARD_SEND))
            transfer_s[sends, :, dp] *= np.where(active, self.sends_slowdown, 1.0)
        return dataclasses.replace(inputs, work_s=work_s, transfer_s=transfer_s, late_members=tuple(late))


#: How often a random fault is of each kind.
KINDS = {"worker": 1.0}


def draw_fault(
    spec: JobSpec,
    rng: np.random.Generator,
    *,
    strength: float | None = None,
    onset: int | None = None,
    kind: str | None = None,
) -> WorkerFault | None:
    """Draw a slow worker anywhere, or two, some of them only from a step on.

    A job of one worker has no peers that could be faster: None.
    """
    if spec.dp * spec.pp == 1:
        return None
    n_places = 2 if spec.dp * spec.pp >= 16 and rng.random() < 0.15 else 1
    picked = rng.choice(spec.dp * spec.pp, size=n_places, replace=False)
    slowdown = draw_log_uniform(rng, 1.08, 4.0)
    similar = float(rng.uniform(0.85, 1.1))
    drawn_onset = int(rng.integers(1, spec.steps)) if rng.random() < 0.3 and spec.steps > 3 else None
    spread, sends_slowdown = float(rng.uniform(0.0, 0.04)), float(rng.uniform(1.0, 1.3))
    slowdown = slowdown if strength is None else strength
    return WorkerFault(
        kind=choose_kind(KINDS, rng, kind),
        places=tuple((int(p) // spec.pp, int(p) % spec.pp) for p in picked),
        slowdown=slowdown,
        backward_slowdown=1.0 + (slowdown - 1.0) * similar,
        spread=spread,
        sends_slowdown=sends_slowdown,
        onset=drawn_onset if onset is None else onset,
    )


EXAMPLES = {
    "a slow worker": Example(WorkerFault(places=((1, 2),), slowdown=1.6)),
    "a slow worker since step 9": Example(WorkerFault(places=((3, 0),), slowdown=2.0, onset=9)),
    "two slow workers": Example(WorkerFault(places=((1, 2), (2, 0)), slowdown=1.6, spread=0.03)),
}
PLAIN = Example(WorkerFault(places=((2, 1),), slowdown=1.8), PLAIN_JOB)
LOOK_ALIKES: dict[str, LookAlike] = {}
FIXTURE = Fixture(
    "dp rank 1 of stage 0 computes 1.60 times as long from step 37 on", seed=5, kind="worker", strength=1.6, onset=4
)
