"""The first stage waits for its batch: its forwards, mostly the first of a step, begin later or take longer.

Who is late is another rank in each step, or one whose loader is bad, or everybody where the storage they share is slow.
The fault adds time: mended (batches are fetched ahead), nothing is left.
"""

import dataclasses
from typing import Any, ClassVar, Literal

import numpy as np

from diagnose.errors import UsageError
from diagnose.faults.decoys import OrdinaryLoads
from diagnose.faults.example import PLAIN_JOB, Example, Fixture, LookAlike
from diagnose.faults.fault import Fault, Worker, choose_kind, draw_times
from diagnose.faults.first_tasks import delay_first_tasks
from diagnose.faults.inputs import Inputs, Pause
from diagnose.faults.spec import JobSpec, draw_log_uniform
from diagnose.faults.strength import estimate_step
from diagnose.model.optype import Op
from diagnose.model.trace import Bools, Seconds

#: Chance of a step to be late.
PROBABILITY = (0.2, 1.0)
#: Steps from one shard of data to the next.
SHARD_STEPS = (2, 10)
#: Mean wait in units of a typical forward.
WAIT_RATIO = (0.1, 20.0)
#: Seconds that all waits together cost, roughly, for each second of a healthy step.
COST_SHARE = (0.025, 2.5)

Where = Literal["before", "inside", "step"]
#: What is slow in these first steps alone is a warm-up.
WARM_UP_STEPS = 3
#: Steps that a burst lasts, and how much longer its waits are.
BURST_STEPS, BURST_RATIO = (2, 4), 4.0


@dataclasses.dataclass(frozen=True, kw_only=True)
class DataLoading(Fault):
    """Waits of the first stage for its input; `strength` is the mean wait in units of a forward."""

    cause: ClassVar[str] = "data-loading"
    strength_field: ClassVar[str] = "wait_ratio"
    #: Mean wait over the typical forward of the job.
    wait_ratio: float = 2.0
    #: Standard deviation of the logarithm of a wait; None: waits are exponential.
    spread: float | None = None
    #: Chance of a step to be late.
    probability: float = 0.7
    #: Instead of by chance, steps are late whose number is a multiple of this: a shard of the data is opened.
    period_steps: int | None = None
    #: Those with a bad loader; none: see the next two.
    dp_ranks: tuple[int, ...] = ()
    #: All dp ranks wait equally long in a late step, for a storage they share.
    is_common: bool = False
    #: Otherwise: part of the dp ranks, others in each step, that are late in a late step; one is in any case.
    late_share: float = 0.0
    #: Every forward of a late step waits, each for its own batch, and not the first alone.
    every_microbatch: bool = False
    #: The last stage reads data, too: labels; or it alone is late.
    reads_last: bool = False
    reads_first: bool = True
    #: The forward begins later, or takes longer; or the worker asks for its batch before it begins the step with anything.
    where: Where = "before"
    #: Where workers ask before they begin the step, all wait until the last has its batch: a barrier that no row records.
    held_together: bool = False
    #: The trace has a data-load row of each wait.
    records: bool = False

    def workers(self, spec: JobSpec) -> tuple[Worker, ...]:
        """List the workers with a bad loader."""
        stages = dict.fromkeys(stage for stage, _ in self._readers(spec))
        return tuple((dp, stage) for dp in self.dp_ranks for stage in stages)

    def _readers(self, spec: JobSpec) -> list[tuple[int, int]]:
        """List who is late, (stage, chunk): the beginning of the model, and perhaps its end, or that alone."""
        ends = [spec.place(spec.n_virtual - 1)] if self.reads_last and spec.pp > 1 else []
        return [(0, 0), *ends] if self.reads_first or not ends else ends

    def tellable(self, spec: JobSpec) -> bool:
        """What is always there, and what all wait for between the steps of a job's own clock, only rows tell."""
        is_constant = self.spread == 0.0 and self.probability >= 1.0 and self.is_common and self.period_steps is None
        hidden = is_constant or (self.held_together and spec.absolute_times)
        return not hidden or (self.records and spec.evidence)

    def place_tellable(self, spec: JobSpec) -> bool:
        """Where all wait for the last batch only rows say who waited for input."""
        waits_for_all = spec.starts_together and self.where != "inside" and not self.every_microbatch
        return not (self.held_together or waits_for_all) or (self.records and spec.evidence)

    def apply(self, inputs: Inputs) -> Inputs:
        """Let forwards of the first stage wait; of model chunks, the first alone reads data.

        Raises
        ------
        UsageError
            A dp rank that the job does not have.
        """
        spec, programme = inputs.spec, inputs.programme
        for dp in self.dp_ranks:
            if not 0 <= dp < spec.dp:
                raise UsageError(f"no dp rank {dp}; the job has {spec.dp}", where=self.cause)
        rng = self.random(spec)
        late = self._draw_late(spec, rng)
        readers = self._readers(spec)
        if self.where == "step":
            busy_s = np.zeros((spec.pp, *inputs.lanes))
            busy_s[[stage for stage, _ in readers]] = np.where(late, self._draw_waits(spec, rng, len(readers)), 0.0)
            pauses = delay_first_tasks(
                programme, Op.DATA_LOAD, busy_s, recorded=self.records, together=self.held_together
            )
            return inputs.with_pauses(*pauses)
        reads = np.zeros(len(programme.tasks), dtype=bool)
        for stage, chunk in readers:
            reads |= programme.is_op(Op.FORWARD) & (programme.stage == stage) & (programme.chunk == chunk)
        tasks = np.flatnonzero(reads & (self.every_microbatch | (programme.microbatch == 0)))
        seconds = np.zeros((len(programme.tasks), *inputs.lanes))
        seconds[tasks] = np.where(late, self._draw_waits(spec, rng, len(tasks)), 0.0)
        return inputs.with_pauses(Pause(Op.DATA_LOAD, seconds, self.where, recorded=self.records))

    def _draw_late(self, spec: JobSpec, rng: np.random.Generator) -> Bools:
        """Draw who is late in which step, shape (n_steps, n_dp)."""
        chance, turn = rng.random((spec.steps, 1)), rng.random((spec.steps, spec.dp))
        is_late = chance < self.probability
        if self.period_steps is not None:
            is_late = (spec.step_numbers() % self.period_steps == 0)[:, None]
        who = (turn < self.late_share) | (turn == turn.min(axis=1, keepdims=True)) | self.is_common
        if self.dp_ranks:
            who = np.broadcast_to(np.isin(np.arange(spec.dp), self.dp_ranks), turn.shape)
        return np.asarray(is_late & who & self.active(spec))

    def _draw_waits(self, spec: JobSpec, rng: np.random.Generator, n_tasks: int) -> Seconds:
        """Draw how long each wait takes, shape (n_tasks, n_steps, n_dp)."""
        shape = (n_tasks, spec.steps, spec.dp)
        if self.spread is None:
            ratio = rng.exponential(size=shape)
        else:
            ratio = np.exp(self.spread * rng.standard_normal(shape) - self.spread**2 / 2)
        if self.is_common:
            ratio = np.broadcast_to(ratio[:, :, :1], shape)
        return self.wait_ratio * spec.forward_s * ratio


#: How often a random fault is of each kind.
KINDS = {
    "late-batches": 0.47,
    "late-labels": 0.1,
    "late-labels-alone": 0.05,
    "before-steps": 0.1,
    "behind-barrier": 0.12,
    "constant": 0.08,
    "burst": 0.08,
}


def draw_fault(
    spec: JobSpec,
    rng: np.random.Generator,
    *,
    strength: float | None = None,
    onset: int | None = None,
    kind: str | None = None,
) -> DataLoading:
    """Draw waits for data, mostly before the first forward of a step; half of the jobs record them.

    Every job reads data: never None.
    """
    onset, recovery = draw_times(spec, rng, onset)
    first = onset or 0
    drawn_period = int(rng.integers(SHARD_STEPS[0], SHARD_STEPS[1] + 1))
    opens_shard = (spec.step_numbers()[first:recovery] % drawn_period == 0).any()
    period_steps = drawn_period if rng.random() < 0.2 and opens_shard else None
    who, bad = rng.random(), int(rng.integers(0, spec.dp))
    is_common = period_steps is not None or who < 0.3
    dp_ranks = (bad,) if not is_common and who < 0.55 and spec.dp > 1 else ()
    late_share = float(rng.uniform(0.0, 0.5)) if rng.random() < 0.5 else 0.0
    # At least about three late steps, where there are so many.
    least = min(3.0 / ((recovery or spec.steps) - first), 1.0)
    probability = max(float(rng.uniform(*PROBABILITY)), least)
    every_microbatch = bool(rng.random() < 0.35)
    step_ratio = estimate_step(spec) / spec.forward_s
    n_late = 1.0 if is_common or dp_ranks else max(late_share * spec.dp, 1.0)
    n_waits = (1.0 / period_steps if period_steps else probability) * (1.0 + np.log(n_late))
    n_waits *= spec.microbatches if every_microbatch else 1
    ratio = float(np.clip(draw_log_uniform(rng, *COST_SHARE) * step_ratio / n_waits, *WAIT_RATIO))
    kind = choose_kind(KINDS, rng, kind)
    fault = DataLoading(
        kind=kind,
        wait_ratio=ratio if strength is None else strength,
        spread=None if rng.random() < 0.4 else float(rng.uniform(0.1, 0.9)),
        probability=probability,
        period_steps=period_steps,
        dp_ranks=dp_ranks,
        is_common=is_common,
        late_share=late_share,
        every_microbatch=every_microbatch,
        where="inside" if rng.random() < 0.2 else "before",
        records=bool(rng.random() < 0.5),
        onset=onset,
        recovery=recovery,
    )
    return fault if kind == "late-batches" else _change_kind(spec, rng, fault)


def _change_kind(spec: JobSpec, rng: np.random.Generator, fault: DataLoading) -> DataLoading:
    """Make of late batches one of the other kinds."""
    early = {"where": "step", "every_microbatch": False}
    changes: dict[str, dict[str, Any]] = {
        "late-labels": {"reads_last": True},
        # Of a whole step late labels alone show nothing; who writes logs, or collects, is late now and then.
        "late-labels-alone": {"reads_last": True, "reads_first": False, "probability": max(fault.probability, 0.7)},
        "before-steps": {"reads_last": bool(rng.random() < 0.5), **early},
        # What all wait for before the step begins only rows show on the job's own clock.
        "behind-barrier": {"held_together": True, "records": fault.records or spec.absolute_times, **early},
        # What is always as long only rows tell from how a job is.
        "constant": {"spread": 0.0, "probability": 1.0, "period_steps": None, "is_common": True, "records": True},
    }
    if fault.kind != "burst":
        return dataclasses.replace(fault, **changes[fault.kind])
    first = (
        fault.onset
        if fault.onset is not None
        else int(rng.integers(min(WARM_UP_STEPS, spec.steps // 3), max(spec.steps // 2, 2)))
    )
    last = min(first + int(rng.integers(BURST_STEPS[0], BURST_STEPS[1] + 1)), spec.steps - 1)
    longer = fault.wait_ratio * BURST_RATIO
    if last > first:
        fault = dataclasses.replace(fault, onset=first, recovery=last)
    return dataclasses.replace(fault, wait_ratio=longer, probability=1.0, period_steps=None)


EXAMPLES = {
    "late first batches": Example(DataLoading(wait_ratio=8.0, records=True)),
    "late batches in forwards": Example(DataLoading(wait_ratio=3.0, spread=0.3, every_microbatch=True, where="inside")),
    "one bad loader": Example(DataLoading(wait_ratio=12.0, probability=0.9, dp_ranks=(2,))),
    "late batches of the first and the last stage": Example(DataLoading(wait_ratio=6.0, where="step", reads_last=True)),
    "late labels of the last stage alone": Example(
        DataLoading(wait_ratio=9.0, spread=0.3, probability=0.9, dp_ranks=(1,), reads_last=True, reads_first=False)
    ),
    "late labels in forwards": Example(
        DataLoading(wait_ratio=3.0, spread=0.3, every_microbatch=True, late_share=0.6, where="inside", reads_last=True)
    ),
    "late batches that all wait for": Example(
        DataLoading(wait_ratio=6.0, where="step", held_together=True, records=True)
    ),
    "a shard opened every few steps": Example(DataLoading(wait_ratio=25.0, period_steps=4, is_common=True)),
    "a burst of late batches": Example(DataLoading(wait_ratio=30.0, spread=0.3, probability=1.0, onset=9, recovery=12)),
    "always late, with rows": Example(
        DataLoading(wait_ratio=3.0, spread=0.0, probability=1.0, is_common=True, records=True)
    ),
}
PLAIN = Example(DataLoading(wait_ratio=8.0, records=True), PLAIN_JOB)
LOOK_ALIKES = {"ordinary loads": LookAlike(OrdinaryLoads(share=0.6))}
FIXTURE = Fixture("stage 0 waits for input before the first forward; no rows", seed=1, kind="late-batches")
