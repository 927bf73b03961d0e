"""The allocator's memory is fragmented: it frees and asks the driver again, and an operation takes longer meanwhile.

It happens where memory is full, mostly on the first stages, which hold the most activations, in forward and backward,
and ever more. The fault adds time: mended, nothing is left.
"""

import dataclasses
from typing import ClassVar

import numpy as np

from diagnose.errors import UsageError
from diagnose.faults.decoys import HiddenPause
from diagnose.faults.example import PLAIN_JOB, Example, Fixture, LookAlike
from diagnose.faults.fault import Fault, Worker, choose_kind, draw_times
from diagnose.faults.inputs import Inputs
from diagnose.faults.spec import JobSpec, draw_log_uniform
from diagnose.faults.strength import estimate_step
from diagnose.model.optype import Op
from diagnose.model.trace import Bools, Ints, Seconds

#: Chance of an operation to stall.
PROBABILITY = (0.01, 0.3)
#: No operation stalls for certain, however fragmented memory gets.
MOST_PROBABLE = 0.9
#: Of stalls that get more frequent by fewer standard deviations of chance nobody can say that they do.
VISIBLE_DEVIATIONS = 3.0
#: Length of a stall in units of a typical forward.
STALL_RATIO = (0.2, 10.0)
#: Seconds that all stalls together cost, roughly, for each second of a healthy step.
COST_SHARE = (0.015, 2.0)


@dataclasses.dataclass(frozen=True, kw_only=True)
class AllocatorStall(Fault):
    """Stalls of forwards and backwards in a fixed place; `strength` is the length of a stall in units of a forward."""

    cause: ClassVar[str] = "allocator-stall"
    strength_field: ClassVar[str] = "stall_ratio"
    on_stages: tuple[int, ...] = (0,)
    #: None: all of them.
    on_dp_ranks: tuple[int, ...] | None = None
    #: Median length of a stall when they begin, over the typical forward of the job (not of the stage).
    stall_ratio: float = 1.5
    #: Chance of each forward and backward there to stall when they begin.
    probability: float = 0.1
    #: Standard deviation of the logarithm of the length, drawn for each stall.
    spread: float = 0.3
    #: By how much they are more probable, and longer, in the last sampled step than in the first with stalls; 1 is twice.
    frequency_growth: float = 0.0
    length_growth: float = 0.0
    #: Memory is near its limit for so many steps at a time only, on each rank in other steps; 0: all the time.
    storm_steps: int = 0
    #: Part of the steps that have such a storm on a rank.
    storm_share: float = 0.3
    #: Part of the stalls that make the operation longer; the others delay its start.
    inside_share: float = 1.0
    #: The trace has a cuda-malloc row of each.
    records: bool = False

    def workers(self, spec: JobSpec) -> tuple[Worker, ...]:  # noqa: ARG002 - of the base class
        """List the workers that stall, where not all dp ranks of a stage do."""
        return tuple((dp, stage) for dp in self.on_dp_ranks or () for stage in self.on_stages)

    def stages(self, spec: JobSpec) -> tuple[int, ...]:
        """List the stages that stall on all dp ranks; none where that is the whole job."""
        everywhere = set(self.on_stages) == set(range(spec.pp))
        return () if everywhere or self.on_dp_ranks is not None else self.on_stages

    def tellable(self, spec: JobSpec) -> bool:
        """Stalls on all workers alike that get no more frequent look like noise, and on single ones like stops of their processes.

        Unless rows tell of them.
        """
        everywhere = set(self.on_stages) == set(range(spec.pp)) and self.on_dp_ranks in (None, tuple(range(spec.dp)))
        is_lone = self.on_dp_ranks is not None and len(self.on_dp_ranks) < spec.dp
        return (self.records and spec.evidence) or self._grows_visibly(spec) or not (everywhere or is_lone)

    def _grows_visibly(self, spec: JobSpec) -> bool:
        """Say whether as many more stalls are to be expected in the last third of the steps as chance does not explain."""
        _, probability = self._develop(spec)
        n_dp = spec.dp if self.on_dp_ranks is None else len(self.on_dp_ranks)
        per_step = 2 * spec.microbatches * spec.vpp * len(self.on_stages) * n_dp * probability[(self.onset or 0) :]
        before, late = per_step[: 2 * len(per_step) // 3], per_step[2 * len(per_step) // 3 :]
        alike = per_step.sum() * len(late) / max(len(per_step), 1)  # of a third of the steps, were all as many
        return bool(late.sum() - alike > VISIBLE_DEVIATIONS * np.sqrt(alike * len(before) / max(len(per_step), 1)))

    def apply(self, inputs: Inputs) -> Inputs:
        """Let some of the forwards and backwards there stall.

        Raises
        ------
        UsageError
            A stage or dp rank that the job does not have.
        """
        spec, programme = inputs.spec, inputs.programme
        dp_ranks = tuple(range(spec.dp)) if self.on_dp_ranks is None else self.on_dp_ranks
        for name, wanted, size in (("stage", self.on_stages, spec.pp), ("dp rank", dp_ranks, spec.dp)):
            for number in wanted:
                if not 0 <= number < size:
                    raise UsageError(f"no {name} {number}; the job has {size}", where=self.cause)
        tasks = np.flatnonzero(programme.is_op(Op.FORWARD, Op.BACKWARD) & np.isin(programme.stage, self.on_stages))
        at, length_s, is_inside = self._draw_stalls(spec, tasks)
        happens = self.active(spec)[at[1], 0] & np.isin(at[2], dp_ranks)
        stalls = at[0][happens], at[1][happens], at[2][happens]
        return inputs.with_pauses_at(
            stalls, length_s[happens], is_inside[happens], kind=Op.CUDA_MALLOC, recorded=self.records
        )

    def _draw_stalls(self, spec: JobSpec, tasks: Ints) -> tuple[tuple[Ints, Ints, Ints], Seconds, Bools]:
        """Draw which of some tasks stall, on which lanes, for how long, and whether inside; as if on all dp ranks."""
        rng, (age, probability) = self.random(spec), self._develop(spec)
        stalls = rng.random((len(tasks), spec.steps, spec.dp)) < probability[:, None]
        number, step, dp = np.nonzero(stalls & self._draw_storms(spec))
        log = self.spread * rng.standard_normal(len(number))
        length_s = self.stall_ratio * spec.forward_s * (1.0 + self.length_growth * age[step]) * np.exp(log)
        return (tasks[number], step, dp), length_s, rng.random(len(number)) < self.inside_share

    def _develop(self, spec: JobSpec) -> tuple[Seconds, Seconds]:
        """Say how far each step is from the first with stalls to the last, 0..1, and how probable a stall is; shape (n_steps,)."""
        numbers = spec.step_numbers()
        begin = numbers[self.onset or 0]
        age = np.maximum(numbers - begin, 0) / max(int(numbers[-1] - begin), 1)
        return age, np.minimum(self.probability * (1.0 + self.frequency_growth * age), MOST_PROBABLE)

    def _draw_storms(self, spec: JobSpec) -> Bools:
        """Draw in which steps memory is near its limit on each rank, shape (n_steps, n_dp)."""
        if not self.storm_steps:
            return np.ones((spec.steps, spec.dp), dtype=bool)
        rng = spec.random("fault", *self.cause.encode(), 1)
        length = min(self.storm_steps, spec.steps)
        begins = rng.random((spec.steps, spec.dp)) < self.storm_share / length
        begins[rng.integers(0, spec.steps - length + 1, spec.dp), np.arange(spec.dp)] = True  # each rank has one
        number = begins.cumsum(axis=0)
        return np.asarray(number > np.concatenate([np.zeros((length, spec.dp), dtype=np.int64), number[:-length]]))


#: How often a random fault is of each kind.
KINDS = {"full-memory": 0.6, "replicas": 0.12, "storms": 0.13, "growth": 0.15}


def draw_fault(
    spec: JobSpec,
    rng: np.random.Generator,
    *,
    strength: float | None = None,
    onset: int | None = None,
    kind: str | None = None,
) -> AllocatorStall | None:
    """Draw stalls on the first stage or stages, sometimes on some of their dp ranks or on a single worker.

    A trace in which not one stall is to be expected, as it has so few operations: None.
    """
    n_ops = 2 * spec.microbatches * spec.vpp
    if n_ops * spec.dp * spec.steps * PROBABILITY[1] < 1.0:
        return None
    onset, recovery = draw_times(spec, rng, onset)
    rest = spec.steps - (onset or 0)
    on_stages, on_dp_ranks = _draw_place(spec, rng)
    n_dp = spec.dp if on_dp_ranks is None else len(on_dp_ranks)
    least = float(np.clip(3.0 / (n_ops * n_dp * rest), PROBABILITY[0], PROBABILITY[1] / 2))
    probability = draw_log_uniform(rng, least, PROBABILITY[1])
    grows = rng.random() < 0.7
    frequency_growth, length_growth = (float(g) for g in rng.uniform(0.0, 3.0, size=2) * grows)
    step_ratio = estimate_step(spec) / spec.forward_s
    # Dp ranks that stall in one step wait for the one that stalls most, and stages partly hide each other's stalls.
    n_stalls = n_ops * probability * (1.0 + frequency_growth / 2) * (1.0 + length_growth / 2)
    n_lost = 0.7 * (n_stalls + np.sqrt(2.0 * n_stalls * np.log(n_dp)))
    ratio = float(np.clip(draw_log_uniform(rng, *COST_SHARE) * step_ratio / n_lost, *STALL_RATIO))
    inside = rng.random()
    kind = choose_kind(KINDS, rng, kind)
    drawn = AllocatorStall(
        kind=kind,
        on_stages=on_stages,
        on_dp_ranks=on_dp_ranks,
        stall_ratio=ratio if strength is None else strength,
        probability=probability,
        spread=float(rng.uniform(0.1, 0.7)),
        frequency_growth=frequency_growth,
        length_growth=length_growth,
        inside_share=1.0 if inside < 0.6 else float(rng.uniform(0.5, 1.0)) if inside < 0.9 else 0.0,
        records=bool(rng.random() < 0.5),
        onset=onset,
        recovery=recovery,
    )
    own = rng.spawn(1)[0]
    match kind:
        case "replicas" if spec.dp > 1:
            dp_ranks = own.permutation(spec.dp)[: int(own.integers(1, max(spec.dp // 2, 1) + 1))]
            return dataclasses.replace(drawn, on_dp_ranks=tuple(sorted(dp_ranks.tolist())))
        case "storms":
            share, often = float(own.uniform(0.2, 0.6)), float(own.uniform(0.3, 0.7))
            return dataclasses.replace(
                drawn,
                probability=often,
                stall_ratio=max(drawn.stall_ratio * min(probability / (share * often), 1.0), STALL_RATIO[0]),
                storm_steps=int(own.integers(2, 6)),
                storm_share=share,
                frequency_growth=0.0,
            )
        case "growth":
            return dataclasses.replace(drawn, frequency_growth=float(own.uniform(2.0, 6.0)), length_growth=1.0)
    return drawn


def _draw_place(spec: JobSpec, rng: np.random.Generator) -> tuple[tuple[int, ...], tuple[int, ...] | None]:
    """Draw the stages and dp ranks whose memory is full."""
    kind, n_first = rng.random(), int(rng.integers(2, max(spec.pp // 2, 2) + 1))
    n_dp = int(rng.integers(1, max(spec.dp // 2, 1) + 1))
    dp_ranks = tuple(sorted(int(dp) for dp in rng.permutation(spec.dp)[:n_dp]))
    worker = int(rng.integers(0, spec.pp)), int(rng.integers(0, spec.dp))
    if kind < 0.08 and spec.dp > 1:
        return (worker[0],), (worker[1],)
    if kind < 0.2 and spec.dp > 1:
        return (0,), dp_ranks
    return (tuple(range(n_first)) if kind < 0.4 and spec.pp > 2 else (0,)), None


EXAMPLES = {
    "an allocator on the first stage": Example(AllocatorStall(stall_ratio=6.0, probability=0.15, records=True)),
    "an allocator of two ranks": Example(
        AllocatorStall(on_dp_ranks=(1, 2), stall_ratio=8.0, probability=0.15, records=True)
    ),
    "an allocator that gets worse": Example(
        AllocatorStall(stall_ratio=4.0, probability=0.1, frequency_growth=2.0, length_growth=1.0)
    ),
    "an allocator that storms": Example(
        AllocatorStall(stall_ratio=5.0, probability=0.4, storm_steps=3, storm_share=0.4)
    ),
    "an allocator of one worker": Example(
        AllocatorStall(on_stages=(2,), on_dp_ranks=(1,), stall_ratio=6.0, probability=0.15, records=True)
    ),
    "an allocator since step 8, partly before computes": Example(
        AllocatorStall(stall_ratio=6.0, probability=0.15, inside_share=0.5, onset=8)
    ),
}
PLAIN = Example(AllocatorStall(stall_ratio=5.0, probability=0.15), PLAIN_JOB)
LOOK_ALIKES = {
    "hidden pause of a backward with rows": LookAlike(
        HiddenPause(
            dp=2, stage=1, op=Op.BACKWARD, number=5, seconds=0.1, kind=Op.CUDA_MALLOC, strengths=(0.0, 1.0) * 12
        )
    ),
}
FIXTURE = Fixture(
    "stage 0 stalls in both directions, more often as the job goes on; no rows", seed=7, kind="full-memory"
)
