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
#: Steps that a job needs for a fault that changes with time.
MIN_COURSE_STEPS = 6
#: A fault that comes and goes is there in this part of the steps, so many at a time.
ON_SHARE, ON_STEPS = 0.4, (1, 6)


@dataclasses.dataclass(frozen=True, kw_only=True)
class WorkerFault(Fault):
    """One worker or several, slower by a factor; `strength` is that factor."""

    cause: ClassVar[str] = "worker-fault"
    strength_field: ClassVar[str] = "slowdown"
    has_exact_onset: ClassVar[bool] = True
    #: Each (dp rank, stage).
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
        rng, level = self.random(spec), self.level(spec)
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

    def level(self, spec: JobSpec) -> Seconds:
        """Give the part of its strength, 0..1, that it has in each step, shape (n_steps,)."""
        active = self.active(spec)[:, 0]
        if self.course == "ramp":
            return np.asarray(active * active.cumsum() / max(active.sum(), 1))
        if self.course == "on-off":
            rng = spec.random("fault", *f"{self.cause}/on-off".encode())
            lengths = rng.integers(*ON_STEPS, size=spec.steps + 2)
            on = np.repeat(rng.random(len(lengths)) < ON_SHARE, lengths)[: spec.steps]
            return np.asarray((active & on).astype(np.float64))
        return active.astype(np.float64)


#: How often a random fault is of each kind: where, then how it goes; a lone worker is slow from the first step or a drawn one on.
KINDS = {
    "worker": 0.26,
    "worker-ramp": 0.06,
    "worker-on-off": 0.06,
    "worker-burst": 0.06,
    "forwards": 0.1,
    "replica": 0.06,
    "replica-onset": 0.06,
    "replica-ramp": 0.06,
    "host": 0.05,
    "host-onset": 0.05,
    "host-ramp": 0.03,
    "hosts": 0.03,
    "hosts-onset": 0.03,
    "most-of-stage": 0.04,
    "most-of-stage-onset": 0.05,
}
#: Workers of a host where the job does not say how many it has, and hosts of a group.
HOST_WORKERS, GROUP_HOSTS = (2, 9), 2
#: Slow workers are at most this part of all: else they are how the job is laid out.
MOST_SLOW = 0.5


def draw_fault(
    spec: JobSpec,
    rng: np.random.Generator,
    *,
    strength: float | None = None,
    onset: int | None = None,
    kind: str | None = None,
) -> WorkerFault | None:
    """Draw a slow worker anywhere, or two, or the workers of a larger place.

    A job of one worker has no peers that could be faster, and a short one no step to begin in: None.
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
    kind = choose_kind(KINDS, rng, kind)
    fault = WorkerFault(
        kind=kind,
        places=tuple((int(p) // spec.pp, int(p) % spec.pp) for p in picked),
        slowdown=slowdown,
        backward_slowdown=1.0 + (slowdown - 1.0) * similar,
        spread=spread,
        sends_slowdown=sends_slowdown,
        onset=drawn_onset if onset is None else onset,
    )
    return fault if kind == "worker" else _draw_kind(spec, rng, fault, onset)


def _draw_kind(spec: JobSpec, rng: np.random.Generator, fault: WorkerFault, onset: int | None) -> WorkerFault | None:
    """Make of a slow worker one of the other kinds; None where the job has no such place, or too few steps."""
    place = next(
        name
        for name in ("worker", "forwards", "replica", "hosts", "host", "most-of-stage")
        if fault.kind.startswith(name)
    )
    course = fault.kind.removeprefix(place).removeprefix("-")
    places = _draw_places(spec, rng, place, fault.places)
    if not places or (course and spec.steps < MIN_COURSE_STEPS):
        return None
    fault = dataclasses.replace(fault, places=places, onset=onset)
    if place == "forwards":
        return dataclasses.replace(fault, backward_slowdown=1.0, slows_optimizer=False, sends_slowdown=1.0)
    if course == "burst":
        length = min(int(rng.integers(1, 5)), spec.steps // 3)
        first = int(rng.integers(1, spec.steps - length)) if onset is None else min(onset, spec.steps - length - 1)
        return dataclasses.replace(fault, onset=first, recovery=first + length)
    if course == "on-off":
        return dataclasses.replace(fault, course="on-off")
    if course and onset is None:
        first = int(rng.integers(spec.steps // 5, spec.steps // 2 if course == "ramp" else 4 * spec.steps // 5))
        fault = dataclasses.replace(fault, onset=first)
    return dataclasses.replace(fault, course="ramp") if course == "ramp" else fault


def _draw_places(spec: JobSpec, rng: np.random.Generator, place: str, drawn: tuple[Worker, ...]) -> tuple[Worker, ...]:
    """Draw the workers of a place; none where the job has no such place."""
    if place in ("worker", "forwards"):
        return drawn[:1]
    every = [(dp, stage) for dp in range(spec.dp) for stage in range(spec.pp)]
    if place == "replica":
        dp = int(rng.integers(spec.dp))
        return tuple(worker for worker in every if worker[0] == dp) if spec.dp > 1 < spec.pp else ()
    if place == "most-of-stage":
        # A quarter of the stage, and one of its workers at least, says what is usual.
        fewest, most = spec.dp // 2 + 1, spec.dp - max(-(-spec.dp // 4), 1)
        if fewest > most or spec.pp == 1:
            return ()
        picked = rng.choice(spec.dp, size=int(rng.integers(fewest, most + 1)), replace=False)
        return tuple((int(dp), drawn[0][1]) for dp in np.sort(picked))
    n_workers = (spec.workers_per_host or int(rng.integers(*HOST_WORKERS))) * (GROUP_HOSTS if place == "hosts" else 1)
    if not 1 < n_workers <= MOST_SLOW * len(every) or (n_workers == MOST_SLOW * len(every) and spec.dp > 2):
        return ()
    first = n_workers * int(rng.integers(len(every) // n_workers))
    return tuple(every[first : first + n_workers])


EXAMPLES = {
    "a slow worker": Example(WorkerFault(places=((1, 2),), slowdown=1.6)),
    "a slow worker since step 9": Example(WorkerFault(places=((3, 0),), slowdown=2.0, onset=9)),
    "a slow replica since step 9": Example(WorkerFault(places=tuple((1, p) for p in range(4)), slowdown=1.4, onset=9)),
    "a replica that gets slower": Example(
        WorkerFault(places=tuple((2, p) for p in range(4)), slowdown=1.6, onset=6, course="ramp")
    ),
    "a worker slow in forwards only": Example(
        WorkerFault(places=((1, 2),), slowdown=1.6, backward_slowdown=1.0, slows_optimizer=False)
    ),
    "a worker slow for three steps": Example(WorkerFault(places=((1, 2),), slowdown=2.5, onset=9, recovery=12)),
    "a worker slow now and then": Example(WorkerFault(places=((1, 2),), slowdown=1.6, course="on-off")),
    "three of four workers of a stage": Example(WorkerFault(places=((0, 1), (1, 1), (3, 1)), slowdown=1.4)),
    "two slow workers": Example(WorkerFault(places=((1, 2), (2, 0)), slowdown=1.6, spread=0.03)),
}
PLAIN = Example(WorkerFault(places=((2, 1),), slowdown=1.8), PLAIN_JOB)
LOOK_ALIKES: dict[str, LookAlike] = {}
FIXTURE = Fixture(
    "dp rank 1 of stage 0 computes 1.60 times as long from step 37 on", seed=5, kind="worker", strength=1.6, onset=4
)
