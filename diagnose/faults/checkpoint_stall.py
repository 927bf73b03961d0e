"""Saving checkpoints while training waits: every so many steps workers write their state, and nobody computes meanwhile.

The fault adds time: mended (saved in the background), nothing of it is left.
"""

import dataclasses
from typing import ClassVar, Literal

import numpy as np

from diagnose.errors import UsageError
from diagnose.faults.decoys import QuickCheckpoints
from diagnose.faults.example import CLEAR, PLAIN_JOB, Example, Fixture, LookAlike
from diagnose.faults.fault import Fault, Worker, choose_kind
from diagnose.faults.first_tasks import delay_first_tasks
from diagnose.faults.inputs import Inputs, Pause
from diagnose.faults.planned_work import PlannedWork
from diagnose.faults.spec import JobSpec, draw_log_uniform
from diagnose.faults.strength import estimate_step
from diagnose.model.optype import Op
from diagnose.model.trace import Bools

Where = Literal["between", "before", "inside"]
#: Steps from one checkpoint to the next, and what one takes in units of a healthy step.
PERIOD_STEPS = (2, 20)
DURATION_STEPS = (0.1, 20.0)
#: Limits of the part of the mean step that random checkpoints add to it.
COST = (0.02, 1.0)
FIRST_RANK_CHANCE, RECORDED_CHANCE = 0.35, 0.5
#: Without a barrier the wait for the slowest shows in the job's time alone, so jobs without absolute times have one.
BARRIER_CHANCE = 0.5
SPREAD = (0.05, 0.30)
#: Part of the first by which each save takes longer than the one before, where they grow; steps that a save in the background
#: pauses for.
GROWTH, BACKGROUND_STEPS = (0.05, 0.5), (0.05, 0.4)
WHERE_WEIGHT: dict[Where, float] = {"between": 0.5, "before": 0.3, "inside": 0.2}


@dataclasses.dataclass(frozen=True, kw_only=True)
class CheckpointStall(Fault):
    """Workers that save their state every few steps; `strength` is the seconds of one checkpoint."""

    cause: ClassVar[str] = "checkpoint-stall"
    strength_field: ClassVar[str] = "duration_s"
    #: A checkpoint is taken in each step whose number leaves this rest when divided by `period_steps`.
    period_steps: int = 5
    phase: int = 0
    #: Typical seconds in which a worker saves.
    duration_s: float = 1.0
    #: Of each stage only dp rank 0 saves, and the others wait for it where they meet it next.
    first_rank_only: bool = False
    #: After the optimizer, so that the next step begins later; before the worker's first operations of the step, which
    #: come later; in the optimizer, which takes longer.
    where: Where = "between"
    #: Standard deviation of the logarithm of the duration, drawn for each worker and checkpoint.
    spread: float = 0.1
    #: Between steps, those who save wait for the slowest of them at a barrier, which belongs to the save (Megatron-LM).
    barrier: bool = True
    #: Each save takes so much longer than the one before, part of the first: the state grows, or the disk fills up.
    growth: float = 0.0
    #: Where they begin the step with a save, all workers wait for the slowest; no row records whom they wait for.
    held_together: bool = False
    #: The trace has checkpoint rows. Without them, and without absolute times, nothing shows a checkpoint between steps.
    recorded: bool = True

    def workers(self, spec: JobSpec) -> tuple[Worker, ...]:
        """List the workers that save, where not all of them do."""
        return tuple((0, stage) for stage in range(spec.pp)) if self.first_rank_only and spec.dp > 1 else ()

    def saves(self, spec: JobSpec) -> Bools:
        """Mark the steps with a checkpoint, shape (n_steps, 1).

        Raises
        ------
        UsageError
            An interval below 1 step.
        """
        if self.period_steps < 1:
            raise UsageError(f"period_steps is {self.period_steps}; expected at least 1", where=self.cause)
        return np.asarray(self.active(spec) & (spec.step_numbers() % self.period_steps == self.phase)[:, None])

    def tellable(self, spec: JobSpec) -> bool:
        """Between steps only rows show it, or the job's own clock where the next step is sampled, too.

        On that clock only rows show what all begin a step with.
        """
        if self.recorded and spec.evidence:
            return True
        if self.where == "between":
            is_followed = np.diff(spec.step_numbers()) == 1
            return spec.absolute_times and bool((self.saves(spec)[:-1, 0] & is_followed).any())
        return not (self.held_together and self.where == "before" and spec.absolute_times)

    def place_tellable(self, spec: JobSpec) -> bool:
        """Between steps, or where all wait, only rows say who saves: all begin the next step late, together."""
        shown = self.where == "inside" or (self.where == "before" and not self.held_together)
        return shown or (self.recorded and spec.evidence)

    def apply(self, inputs: Inputs) -> Inputs:
        """Let the workers save."""
        spec, programme = inputs.spec, inputs.programme
        unsteady = np.exp(self.spread * self.random(spec).standard_normal((spec.pp, *inputs.lanes)))
        saver = (np.arange(spec.dp) == 0) | (not self.first_rank_only)
        is_saved = self.saves(spec)
        longer = 1.0 + self.growth * np.maximum(np.cumsum(is_saved, axis=0) - 1, 0)
        saved_s = np.where(is_saved & saver, self.duration_s * longer * unsteady, 0.0)  # by stage
        if self.where == "between":
            if self.barrier:
                saved_s = np.where(saved_s > 0, saved_s.max(axis=(0, 2), keepdims=True), 0.0)
            kind = Op.CHECKPOINT if self.recorded else inputs.tail_kind
            return dataclasses.replace(inputs, tail_s=inputs.tail_s + saved_s, tail_kind=kind)
        if self.where == "before":
            held = self.held_together
            pauses = delay_first_tasks(programme, Op.CHECKPOINT, saved_s, recorded=self.recorded, together=held)
            return inputs.with_pauses(*pauses)
        optimizers = np.flatnonzero(programme.is_op(Op.OPTIMIZER))
        seconds = np.zeros((len(programme.tasks), *inputs.lanes))
        seconds[optimizers] = saved_s[programme.stage[optimizers]]
        return inputs.with_pauses(Pause(Op.CHECKPOINT, seconds, "inside", recorded=self.recorded))


#: How often a random fault is of each kind.
KINDS = {"saves": 0.6, "growing": 0.15, "behind-barrier": 0.15, "background": 0.1}


def draw_fault(
    spec: JobSpec,
    rng: np.random.Generator,
    *,
    strength: float | None = None,
    onset: int | None = None,
    kind: str | None = None,
) -> CheckpointStall | None:
    """Draw an interval of which a sampled step has a checkpoint, anywhere where the trace shows it; half are recorded.

    With one step nothing tells a checkpoint from a step: None.
    """
    if spec.steps < 2:
        return None
    numbers = spec.step_numbers()[onset or 0 :]
    period_steps = int(rng.integers(PERIOD_STEPS[0], PERIOD_STEPS[1] + 1))
    phase = int(rng.choice(numbers)) % period_steps
    recorded = bool(rng.random() < RECORDED_CHANCE and spec.evidence)
    first_rank_only = bool(rng.random() < FIRST_RANK_CHANCE and spec.dp > 1)
    # What only some do after the optimizer shows within the job's time, or in the next step as waiting for them.
    shows = spec.absolute_times or (recorded and not first_rank_only)
    places = [w for w in WHERE_WEIGHT if w != "between" or shows]
    weight = np.array([WHERE_WEIGHT[w] for w in places])
    where = places[int(rng.choice(len(places), p=weight / weight.sum()))]
    barrier = not spec.absolute_times or bool(rng.random() < BARRIER_CHANCE)
    cost, spread = draw_log_uniform(rng, *COST), float(rng.uniform(*SPREAD))
    if strength is None:
        step_s, n_saves = estimate_step(spec), int((numbers % period_steps == phase).sum())
        strength = step_s * float(np.clip(cost * len(numbers) / n_saves, *DURATION_STEPS))
    kind = choose_kind(KINDS, rng, kind)
    fault = CheckpointStall(
        kind=kind,
        period_steps=period_steps,
        phase=phase,
        duration_s=strength,
        first_rank_only=first_rank_only,
        where=where,
        spread=spread,
        barrier=barrier,
        recorded=recorded,
        onset=onset,
    )
    if kind == "growing":
        return dataclasses.replace(fault, growth=float(rng.uniform(*GROWTH)))
    if kind == "behind-barrier":
        # What all wait for before the step begins only rows show on the job's own clock.
        recorded |= spec.absolute_times and spec.evidence
        return dataclasses.replace(fault, where="before", held_together=True, recorded=recorded)
    if kind == "background":
        pause_s = estimate_step(spec) * float(rng.uniform(*BACKGROUND_STEPS))
        return dataclasses.replace(fault, duration_s=min(pause_s, strength))
    return fault


EXAMPLES = {
    "checkpoints between steps": Example(
        CheckpointStall(period_steps=5, phase=2, duration_s=3.0), dataclasses.replace(CLEAR, absolute_times=True)
    ),
    "checkpoints before steps": Example(CheckpointStall(period_steps=4, duration_s=2.5, where="before")),
    "checkpoints in optimizers": Example(
        CheckpointStall(period_steps=4, duration_s=2.5, where="inside", recorded=False)
    ),
    "checkpoints of dp rank 0": Example(
        CheckpointStall(period_steps=4, duration_s=2.5, where="before", first_rank_only=True)
    ),
    "checkpoints of dp rank 0 that all wait for": Example(
        CheckpointStall(
            period_steps=4, duration_s=2.5, where="before", first_rank_only=True, held_together=True, recorded=False
        )
    ),
    "growing checkpoints": Example(CheckpointStall(period_steps=4, duration_s=1.0, growth=0.5, where="before")),
    "short pauses of saves in the background": Example(
        CheckpointStall(period_steps=3, duration_s=0.6), dataclasses.replace(CLEAR, absolute_times=True)
    ),
}
PLAIN = Example(CheckpointStall(period_steps=4, duration_s=1.0, where="inside"), PLAIN_JOB)
LOOK_ALIKES = {
    "quick checkpoints": LookAlike(QuickCheckpoints(period_steps=5, seconds=2e-3)),
    "evaluation with rows": LookAlike(PlannedWork(period_steps=4, seconds=1.0)),
    "logging before steps": LookAlike(PlannedWork(period_steps=5, seconds=0.5, kind=Op.LOG, where="before")),
}
FIXTURE = Fixture("dp rank 0 writes checkpoints inside the optimizer; with `checkpoint` rows", seed=8, kind="saves")
