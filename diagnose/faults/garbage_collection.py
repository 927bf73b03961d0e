"""Python's garbage collection stops a rank's process now and then: a forward takes longer, or begins later, or a step does.

Collections come when enough objects were allocated, so that every rank has a period and a phase of its own. The fault
adds time: mended (all ranks collect together between steps, or hardly ever), nothing is left.
"""

import dataclasses
import itertools
from typing import ClassVar

import numpy as np

from diagnose.faults.compute_order import order_computes
from diagnose.faults.decoys import PlannedCollections, TinyCollections
from diagnose.faults.example import PLAIN_JOB, Example, Fixture, LookAlike
from diagnose.faults.fault import Fault, Worker, choose_kind, draw_times
from diagnose.faults.first_tasks import delay_first_tasks
from diagnose.faults.inputs import Inputs
from diagnose.faults.spec import JobSpec, draw_log_uniform
from diagnose.faults.strength import estimate_step
from diagnose.model.optype import Op
from diagnose.model.trace import Bools, Ints, Seconds

#: Steps between two collections of a rank.
PERIOD_STEPS = (3.0, 40.0)
#: A production job paused for 0.2 to 0.33 s; what papers tell of goes up to a second.
PAUSE_S = (0.05, 1.0)
#: Length of a pause in units of a forward, where it is drawn to suit the job.
PAUSE_RATIO = (0.3, 20.0)
#: Seconds that all collections together cost, roughly, for each second of a healthy step, where drawn to suit the job.
COST_SHARE = (0.015, 2.0)


@dataclasses.dataclass(frozen=True, kw_only=True)
class GarbageCollection(Fault):
    """Pauses of one forward now and then, on every worker in other steps; `strength` is the seconds of a pause."""

    cause: ClassVar[str] = "garbage-collection"
    strength_field: ClassVar[str] = "pause_s"
    #: Median length of a collection at the beginning of the trace, seconds.
    pause_s: float = 0.25
    #: Standard deviation of the logarithm of the length, drawn for each collection.
    spread: float = 0.15
    #: By how much pauses are longer in the last sampled step than in the first, 1 is twice as long: a job that gets old
    #: has more objects to look at.
    growth: float = 0.0
    #: Median over workers of the steps from one collection of a worker to its next; a step has at most one. The job as
    #: a whole has no period.
    worker_period_steps: float = 8.0
    #: Standard deviation of the logarithm of the workers' periods.
    period_spread: float = 0.1
    #: Standard deviation of the logarithm of a worker's interval from one collection to the next.
    jitter: float = 0.1
    #: Part of the workers that allocate enough to collect at all; one of them does in any case.
    allocating_share: float = 1.0
    #: Only these workers allocate enough, as (dp rank, stage); None: `allocating_share` of all.
    on_workers: tuple[Worker, ...] | None = None
    #: Collections in a step that has any.
    a_step: int = 1
    #: Every so-manieth collection of a worker is one of the oldest generation, and takes so many times as long; 0: all are alike.
    full_every: int = 0
    full_ratio: float = 4.0
    #: Part of the collections that reach into the backward of the microbatch, with half of their length.
    spill_share: float = 0.0
    #: Part of the collections that make the forward longer; the others delay its start.
    inside_share: float = 1.0
    #: They come before a worker begins a step with anything: it is the loop that allocates, and not the model.
    between_steps: bool = False
    #: The trace has a gc row of each.
    records: bool = False

    def tellable(self, spec: JobSpec) -> bool:
        """Who begins a step late may as well have waited for input: only rows tell."""
        return not self.between_steps or (self.records and spec.evidence)

    def apply(self, inputs: Inputs) -> Inputs:
        """Let each collection hit a forward of its step, whichever, or what its worker begins the step with."""
        spec = inputs.spec
        rng = self.random(spec)
        hits = self._draw_hits(spec, rng)
        length_s = np.where(hits, self._draw_lengths(spec, rng, hits), 0.0)
        if self.between_steps:
            pauses = delay_first_tasks(inputs.programme, Op.GC, length_s, recorded=self.records, together=False)
            return inputs.with_pauses(*pauses)
        for _ in range(self.a_step):
            inputs = self._pause(inputs, length_s, rng)
        return inputs

    def _pause(self, inputs: Inputs, length_s: Seconds, rng: np.random.Generator) -> Inputs:
        """Stop one forward of each worker and step that collects, and at times the backward after it; (n_stages, n_steps, n_dp)."""
        spec, lanes = inputs.spec, (inputs.spec.pp, *inputs.lanes)
        forwards, backwards = _order_tasks(inputs)
        number = rng.integers(0, spec.microbatches * spec.vpp, lanes)
        is_inside = rng.random(lanes) < self.inside_share
        stage, step, dp = hits = np.nonzero(length_s)
        task, after, seconds = forwards[stage, number[hits]], backwards[stage, number[hits]], length_s[hits]
        spills = (
            (after >= 0) & (rng.random(len(seconds)) < self.spill_share)
            if self.spill_share
            else np.zeros(len(stage), bool)
        )
        inputs = inputs.with_pauses_at(
            (task, step, dp), np.where(spills, seconds / 2, seconds), is_inside[hits], kind=Op.GC, recorded=self.records
        )
        rest = after[spills], step[spills], dp[spills]
        inside = np.ones(int(spills.sum()), dtype=bool)
        return inputs.with_pauses_at(rest, seconds[spills] / 2, inside, kind=Op.GC, recorded=self.records)

    def _draw_hits(self, spec: JobSpec, rng: np.random.Generator) -> Bools:
        """Draw in which steps each worker collects, shape (n_stages, n_steps, n_dp); steps not sampled count, too."""
        workers = (spec.pp, spec.dp)
        numbers = spec.step_numbers()
        period = np.maximum(self.worker_period_steps * np.exp(self.period_spread * rng.standard_normal(workers)), 1.0)
        due = numbers[0] + period * rng.random(workers)
        rank = rng.random(workers)
        allocates = (rank < self.allocating_share) | (rank == rank.min())
        if self.on_workers is not None:
            allocates = np.array([[(d, stage) in self.on_workers for d in range(spec.dp)] for stage in range(spec.pp)])
        hits = np.zeros((spec.pp, spec.steps, spec.dp), dtype=bool)
        for i, number in enumerate(numbers):
            due += period * np.maximum(np.ceil((number - due) / period), 0.0)
            hits[:, i] = due < number + 1
            due += np.where(hits[:, i], period * np.exp(self.jitter * rng.standard_normal(workers)), 0.0)
        return np.asarray(hits & allocates[:, None] & self.active(spec))

    def _draw_lengths(self, spec: JobSpec, rng: np.random.Generator, hits: Bools) -> Seconds:
        """Draw how long a collection takes on each worker in each step, shape (n_stages, n_steps, n_dp)."""
        numbers = spec.step_numbers()
        age = (numbers - numbers[0]) / max(int(numbers[-1] - numbers[0]), 1)
        log = self.spread * rng.standard_normal((spec.pp, spec.steps, spec.dp))
        length_s = self.pause_s * (1.0 + self.growth * age[:, None]) * np.exp(log)
        if self.full_every:
            length_s = np.where(hits.cumsum(axis=1) % self.full_every == 0, self.full_ratio * length_s, length_s)
        return np.asarray(length_s)


def _order_tasks(inputs: Inputs) -> tuple[Ints, Ints]:
    """Give the forwards of each stage, and the backward that its worker runs right after each, -1 where that is none.

    Shape of both (n_stages, n_forwards).
    """
    spec, programme = inputs.spec, inputs.programme
    ids = {(task.op, task.stage, task.seq): i for i, task in enumerate(programme.tasks)}
    shape = (spec.pp, spec.microbatches * spec.vpp)
    forwards, backwards = np.zeros(shape, dtype=np.int64), np.full(shape, -1, dtype=np.int64)
    for stage in range(spec.pp):
        order = order_computes(spec, stage)
        for compute, then in itertools.zip_longest(order, order[1:]):
            if compute.op == Op.FORWARD:
                forwards[stage, compute.number] = ids[compute.op, stage, compute.number]
                if then is not None and then.op == Op.BACKWARD:
                    backwards[stage, compute.number] = ids[then.op, stage, then.number]
    return forwards, backwards


#: How often a random fault is of each kind.
KINDS = {
    "own-periods": 0.35,
    "growing": 0.1,
    "by-generation": 0.1,
    "rank-0": 0.08,
    "twice-a-step": 0.07,
    "reaching-into-backwards": 0.1,
    "between-steps": 0.2,
}


def draw_fault(
    spec: JobSpec,
    rng: np.random.Generator,
    *,
    strength: float | None = None,
    onset: int | None = None,
    kind: str | None = None,
) -> GarbageCollection | None:
    """Draw collections that hit a trace at least a few times, half of them recorded, some only from a step on.

    A trace in which not one collection is to be expected, as it has so few steps and workers: None.
    """
    if spec.dp * spec.pp * spec.steps < PERIOD_STEPS[0]:
        return None
    onset, recovery = draw_times(spec, rng, onset)
    rest = spec.steps - (onset or 0)
    share = 1.0 if rng.random() < 0.7 else float(rng.uniform(0.1, 0.7))
    n_workers = max(share * spec.dp * spec.pp, 1.0)
    longest = float(np.clip(n_workers * rest / 3, PERIOD_STEPS[0] + 1.0, PERIOD_STEPS[1]))
    period_steps = draw_log_uniform(rng, PERIOD_STEPS[0], longest)
    pause_s = _draw_pause_s(spec, rng, n_workers / period_steps)
    inside = rng.random()
    kind = choose_kind(KINDS, rng, kind)
    drawn = GarbageCollection(
        kind=kind,
        pause_s=pause_s if strength is None else strength,
        spread=float(rng.uniform(0.05, 0.4)),
        growth=float(rng.uniform(0.0, 1.0)),
        worker_period_steps=period_steps,
        period_spread=float(rng.uniform(0.0, 0.4)),
        jitter=float(rng.uniform(0.0, 0.3)),
        allocating_share=share,
        inside_share=1.0 if inside < 0.6 else 0.0 if inside < 0.75 else float(rng.uniform(0.2, 0.9)),
        records=bool(rng.random() < 0.5),
        onset=onset,
        recovery=recovery,
    )
    own = rng.spawn(1)[0]
    match kind:
        case "growing":
            return dataclasses.replace(drawn, growth=float(own.uniform(1.0, 4.0)))
        case "by-generation":
            ratio = float(own.uniform(2.0, 8.0))
            return dataclasses.replace(drawn, full_every=int(own.integers(3, 9)), full_ratio=ratio)
        case "rank-0":
            pause_s = _draw_pause_s(spec, own, 1.0 / period_steps) if strength is None else strength
            return dataclasses.replace(drawn, on_workers=((0, 0),), pause_s=pause_s)
        case "twice-a-step":
            return dataclasses.replace(drawn, a_step=2)
        case "reaching-into-backwards":
            return dataclasses.replace(drawn, spill_share=float(own.uniform(0.1, 0.5)))
        case "between-steps":
            return dataclasses.replace(drawn, between_steps=True)
    return drawn


def _draw_pause_s(spec: JobSpec, rng: np.random.Generator, n_pauses: float) -> float:
    """Draw a pause in seconds as real ones are, where such a one suits the job with that many in a step; else to suit it."""
    # Pauses of dp ranks in one step pass at the same time, those of stages partly one after the other.
    cost_s = estimate_step(spec) / (1.0 - np.exp(-n_pauses) + 0.3 * n_pauses / spec.dp)
    real_s, suitable_s = draw_log_uniform(rng, *PAUSE_S), draw_log_uniform(rng, *COST_SHARE) * cost_s
    if COST_SHARE[0] <= real_s / cost_s <= COST_SHARE[1] and rng.random() < 0.7:
        return real_s
    return float(np.clip(suitable_s, PAUSE_RATIO[0] * spec.forward_s, PAUSE_RATIO[1] * spec.forward_s))


EXAMPLES = {
    "collections with rows": Example(GarbageCollection(pause_s=0.4, worker_period_steps=6.0, records=True)),
    "collections since step 10": Example(GarbageCollection(pause_s=0.6, worker_period_steps=6.0, onset=10)),
    "collections of rank 0": Example(GarbageCollection(pause_s=0.8, worker_period_steps=3.0, on_workers=((0, 0),))),
    "two collections in a step": Example(GarbageCollection(pause_s=0.3, worker_period_steps=6.0, a_step=2)),
    "collections by generation": Example(
        GarbageCollection(pause_s=0.15, worker_period_steps=4.0, full_every=4, full_ratio=4.0)
    ),
    "collections that reach into backwards": Example(
        GarbageCollection(pause_s=0.4, worker_period_steps=6.0, spill_share=0.3)
    ),
    "collections between steps": Example(
        GarbageCollection(pause_s=0.4, worker_period_steps=6.0, between_steps=True, records=True)
    ),
    "collections that grow": Example(GarbageCollection(pause_s=0.2, worker_period_steps=6.0, growth=3.0)),
}
PLAIN = Example(GarbageCollection(pause_s=0.4, worker_period_steps=5.0, records=True), PLAIN_JOB)
LOOK_ALIKES = {
    "planned collections": LookAlike(PlannedCollections(period_steps=5, seconds=0.05, microbatch=None, recorded=True)),
    "planned collections in a forward": LookAlike(
        PlannedCollections(period_steps=5, seconds=0.08, microbatch=3, recorded=False)
    ),
    "tiny collections": LookAlike(TinyCollections(share=0.02, seconds=1e-3)),
}
FIXTURE = Fixture("each rank collects in steps of its own, about every 21; no rows", seed=5, kind="own-periods")
