"""Workers whose clocks are throttled: everything they compute takes longer, on every microbatch.

One worker, a data-parallel replica, the workers of a host or of several, more than half of a stage; all the time, from a step on,
growing, on and off, for a few steps; everything or forwards only, where the host's processor is what is slow.

The fault adds work: mended, the worker does what its peers do.
"""

import dataclasses
from typing import ClassVar, Literal

import numpy as np

from diagnose.errors import UsageError
from diagnose.faults.example import PLAIN_JOB, Example, Fixture, LookAlike
from diagnose.faults.fault import Fault, Worker, choose_kind
from diagnose.faults.inputs import Inputs
from diagnose.faults.members import LateMember
from diagnose.faults.spec import JobSpec, draw_log_uniform
from diagnose.model.optype import Op
from diagnose.model.trace import Seconds

#: How a fault goes over the steps in which it happens.
Course = Literal["steady", "ramp", "on-off"]
#: A fault that comes and goes is there in this part of the steps, so many at a time.
ON_SHARE, ON_STEPS = 0.4, (1, 6)


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
    #: How it goes over the steps in which it happens: the same all the time, growing evenly to its strength, or in some steps only.
    course: Course = "steady"
    #: Its optimizer is as slow as its forward.
    slows_optimizer: bool = True
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
        rng, level = self.random(spec), self._level(spec)
        backward = self.slowdown if self.backward_slowdown is None else self.backward_slowdown
        factors = {Op.FORWARD: self.slowdown, Op.BACKWARD: backward}
        factors |= {Op.OPTIMIZER: self.slowdown} if self.slows_optimizer else {}
        for dp, stage in self.places:
            if not (0 <= dp < spec.dp and 0 <= stage < spec.pp):
                raise UsageError(
                    f"no worker (dp {dp}, stage {stage}); the job has {spec.dp} x {spec.pp}", where=self.cause
                )
            here = programme.stage == stage
            for op, factor in factors.items():
                tasks = np.flatnonzero(here & programme.is_op(op))
                unsteady = np.exp(self.spread * rng.standard_normal((len(tasks), spec.steps)))
                work_s[tasks, :, dp] *= np.where(level > 0, (1.0 + (factor - 1.0) * level) * unsteady, 1.0)
            if self.member is not None:
                late.append(LateMember(dp, stage, self.member, work_s[:, :, dp] - inputs.work_s[:, :, dp]))
            sends = np.flatnonzero(here & programme.is_op(Op.FORWARD_SEND, Op.BACKWARD_SEND))
            transfer_s[sends, :, dp] *= 1.0 + (self.sends_slowdown - 1.0) * level
        return dataclasses.replace(inputs, work_s=work_s, transfer_s=transfer_s, late_members=tuple(late))

    def _level(self, spec: JobSpec) -> Seconds:
        """Give the part of its strength that it has in each step, shape (n_steps,)."""
        active = self.active(spec)[:, 0]
        if self.course == "ramp":
            return np.asarray(active * active.cumsum() / max(active.sum(), 1))
        if self.course == "on-off":
            rng = spec.random("fault", *f"{self.cause}/on-off".encode())
            lengths = rng.integers(*ON_STEPS, size=spec.steps + 2)
            on = np.repeat(rng.random(len(lengths)) < ON_SHARE, lengths)[: spec.steps]
            return np.asarray((active & on).astype(np.float64))
        return active.astype(np.float64)


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
