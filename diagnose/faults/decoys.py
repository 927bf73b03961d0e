"""The decoys: evaluation and warm-up steps, slowness that all share or nobody waits for, and rows that explain nothing.

Enters: a `JobSpec` and the causes of its faults. Leaves: what else happens to the job.
"""

import dataclasses
from collections.abc import Callable, Sequence
from typing import ClassVar

import numpy as np

from diagnose.faults.decoy import Decoy, HiddenDecoy
from diagnose.faults.inputs import Inputs, Pause
from diagnose.faults.spec import JobSpec
from diagnose.model.optype import Op
from diagnose.model.trace import Bools

#: How many of ten jobs have none, one, two decoys.
N_DECOYS_SHARES = (0.25, 0.45, 0.3)
#: Evaluations and collections happen every so many steps, and in so large a part of the sampled steps at most.
PERIODS, MOST_STEPS = (2, 25), 0.4
#: Steps that a job needs to have a warm-up: its mean is not all warm-up then.
WARM_UP_STEPS = 12
#: A stage that is shorter by this part for each stage of the job gains less than a reportable part if evened out.
SHORT_STAGE = 0.012


@dataclasses.dataclass(frozen=True, kw_only=True)
class Evaluation(Decoy):
    """Every so many steps all workers run an evaluation too, which nobody records: their forwards are longer."""

    name: ClassVar[str] = "evaluation"
    period_steps: int
    slowdown: float

    def apply(self, inputs: Inputs) -> Inputs:
        """Make all forwards of those steps longer."""
        work_s = inputs.work_s.copy()
        slow = np.where(_every(inputs.spec, self.period_steps), self.slowdown, 1.0)
        work_s[inputs.programme.is_op(Op.FORWARD)] *= slow[:, None]
        return dataclasses.replace(inputs, work_s=work_s)


@dataclasses.dataclass(frozen=True, kw_only=True)
class WarmUp(Decoy):
    """In the first steps of a job everything takes longer on all workers: kernels are compiled, links are opened."""

    name: ClassVar[str] = "warm-up"
    n_steps: int
    slowdown: float

    def apply(self, inputs: Inputs) -> Inputs:
        """Make everything in the first steps longer."""
        slow = np.where(np.arange(inputs.spec.steps) < self.n_steps, self.slowdown, 1.0)[:, None]
        return dataclasses.replace(
            inputs, work_s=inputs.work_s * slow, transfer_s=inputs.transfer_s * slow, delay_s=inputs.delay_s * slow
        )


@dataclasses.dataclass(frozen=True, kw_only=True)
class UniformlySlow(Decoy):
    """All workers compute slowly all the time: slow machines, but no straggler."""

    name: ClassVar[str] = "uniformly-slow"
    slowdown: float

    def apply(self, inputs: Inputs) -> Inputs:
        """Make all computes longer."""
        return dataclasses.replace(inputs, work_s=inputs.work_s * self.slowdown)


@dataclasses.dataclass(frozen=True, kw_only=True)
class HiddenWorker(HiddenDecoy):
    """A worker slower than its peers, on a stage with so much less work that nobody waits for it.

    The stage is shorter than the others by so little that evening the stages out gains next to nothing.
    """

    name: ClassVar[str] = "hidden-worker"
    unlike: ClassVar[frozenset[str]] = frozenset({"stage-imbalance"})
    dp: int
    stage: int
    shorter: float
    excess: float

    def apply(self, inputs: Inputs) -> Inputs:
        """Make the computes of the stage shorter, and those of its worker longer."""
        work_s = inputs.work_s.copy()
        here = inputs.programme.is_op(Op.FORWARD, Op.BACKWARD) & (inputs.programme.stage == self.stage)
        work_s[here] *= 1.0 - self.shorter
        work_s[here, :, self.dp] *= 1.0 + self.excess * self.strengths[0]
        return dataclasses.replace(inputs, work_s=work_s)


@dataclasses.dataclass(frozen=True, kw_only=True)
class HiddenTransfer(HiddenDecoy):
    """A link whose forward-sends, from number `first` on, are slow in some steps, but come in time."""

    name: ClassVar[str] = "hidden-transfer"
    unlike: ClassVar[frozenset[str]] = frozenset({"network-fault"})
    dp: int
    stage: int
    first: int
    seconds: float

    def apply(self, inputs: Inputs) -> Inputs:
        """Make the sends of that stage and rank longer."""
        transfer_s, programme = inputs.transfer_s.copy(), inputs.programme
        longer_s = self.seconds * np.array(self.strengths)
        real = {task for meeting in programme.meetings for task in meeting.members}
        for task in np.flatnonzero(programme.is_op(Op.FORWARD_SEND) & (programme.stage == self.stage)).tolist():
            if task in real and programme.tasks[task].seq >= self.first:
                transfer_s[task, :, self.dp] += longer_s
        return dataclasses.replace(inputs, transfer_s=transfer_s)


@dataclasses.dataclass(frozen=True, kw_only=True)
class HiddenPause(HiddenDecoy):
    """A worker that pauses in one of its computes in some steps, and then would have waited anyway."""

    name: ClassVar[str] = "hidden-pause"
    dp: int
    stage: int
    op: Op
    number: int
    seconds: float
    kind: Op | None

    def apply(self, inputs: Inputs) -> Inputs:
        """Make the compute longer, with a row that says why or without."""
        programme = inputs.programme
        tasks = np.flatnonzero(programme.is_op(self.op) & (programme.stage == self.stage))
        seconds = np.zeros(inputs.work_s.shape)
        seconds[tasks[self.number], :, self.dp] = self.seconds * np.array(self.strengths)
        kind = Op.GC if self.kind is None else self.kind
        pause = Pause(kind, seconds, "inside", recorded=self.kind is not None)
        return dataclasses.replace(inputs, pauses=(*inputs.pauses, pause))


@dataclasses.dataclass(frozen=True, kw_only=True)
class PlannedCollections(HiddenDecoy):
    """All workers collect garbage in the same step every so many steps, after the last compute or in one forward each.

    It costs too little to be worth a longer interval.
    """

    name: ClassVar[str] = "planned-collections"
    unlike: ClassVar[frozenset[str]] = frozenset({"garbage-collection"})
    most: ClassVar[float] = 0.014
    period_steps: int
    seconds: float
    microbatch: int | None
    recorded: bool

    def apply(self, inputs: Inputs) -> Inputs:
        """Pause all workers."""
        spec, programme = inputs.spec, inputs.programme
        here = programme.is_op(Op.GC)
        if self.microbatch is not None:
            here = programme.is_op(Op.FORWARD) & (programme.microbatch == self.microbatch) & (programme.chunk == 0)
        length_s = self.seconds * self.strengths[0] * np.exp(0.05 * self.random(spec).standard_normal(inputs.lanes))
        seconds = np.where(here[:, None, None] & _every(spec, self.period_steps)[:, None], length_s, 0.0)
        pause = Pause(Op.GC, seconds, "inside", recorded=self.recorded)
        return dataclasses.replace(inputs, pauses=(*inputs.pauses, pause))


@dataclasses.dataclass(frozen=True, kw_only=True)
class TinyCollections(Decoy):
    """Collections of garbage, recorded in some computes of all workers, that take next to nothing."""

    name: ClassVar[str] = "tiny-collections"
    unlike: ClassVar[frozenset[str]] = frozenset({"garbage-collection"})
    share: float
    seconds: float

    def apply(self, inputs: Inputs) -> Inputs:
        """Let a share of the computes have one, of at most `seconds` each."""
        rng = self.random(inputs.spec)
        has_one = rng.random(inputs.work_s.shape) < self.share
        has_one &= inputs.programme.is_op(Op.FORWARD, Op.BACKWARD)[:, None, None]
        seconds = np.where(has_one, self.seconds * rng.uniform(0.1, 1.0, inputs.work_s.shape), 0.0)
        pause = Pause(Op.GC, seconds, "inside", recorded=True)
        return dataclasses.replace(inputs, pauses=(*inputs.pauses, pause))


@dataclasses.dataclass(frozen=True, kw_only=True)
class EvenDocuments(Decoy):
    """A trace that records the documents of each microbatch, all of about one length."""

    name: ClassVar[str] = "even-documents"
    unlike: ClassVar[frozenset[str]] = frozenset({"sequence-imbalance"})
    packed_tokens: int
    document_tokens: int
    spread: float

    def apply(self, inputs: Inputs) -> Inputs:
        """Note the documents; they take what they took."""
        rng, shape = self.random(inputs.spec), (inputs.spec.microbatches, *inputs.lanes)
        lengths = self.document_tokens * np.exp(self.spread * rng.standard_normal(shape))
        tokens = np.full(shape, float(self.packed_tokens))
        return dataclasses.replace(inputs, tokens=tokens, tokens_sq=tokens * np.minimum(lengths, self.packed_tokens))


@dataclasses.dataclass(frozen=True, kw_only=True)
class QuickCheckpoints(Decoy):
    """Every so many steps the state is copied and saved in the background: a row, and next to no time."""

    name: ClassVar[str] = "quick-checkpoints"
    unlike: ClassVar[frozenset[str]] = frozenset({"checkpoint-stall"})
    period_steps: int
    seconds: float

    def apply(self, inputs: Inputs) -> Inputs:
        """Let all workers copy their state after the optimizer."""
        length_s = self.seconds * self.random(inputs.spec).uniform(0.7, 1.0, (inputs.spec.pp, *inputs.lanes))
        tail_s = np.where(_every(inputs.spec, self.period_steps)[None, :, None], length_s, 0.0)
        return dataclasses.replace(inputs, tail_s=inputs.tail_s + tail_s, tail_kind=Op.CHECKPOINT)


@dataclasses.dataclass(frozen=True, kw_only=True)
class OrdinaryLoads(Decoy):
    """Rows of loading that say what a part of the ordinary delay before the first forward is."""

    name: ClassVar[str] = "ordinary-loads"
    unlike: ClassVar[frozenset[str]] = frozenset({"data-loading"})
    share: float

    def apply(self, inputs: Inputs) -> Inputs:
        """Record that part of the delay; nothing happens later or earlier."""
        programme, delay_s = inputs.programme, inputs.delay_s.copy()
        first = np.flatnonzero(programme.is_op(Op.FORWARD) & (programme.stage == 0))[0]
        seconds = np.zeros(delay_s.shape)
        seconds[first] = self.share * delay_s[first]
        delay_s[first] -= seconds[first]
        pause = Pause(Op.DATA_LOAD, seconds, "before", recorded=True)
        return dataclasses.replace(inputs, delay_s=delay_s, pauses=(*inputs.pauses, pause))


def draw_decoys(spec: JobSpec, rng: np.random.Generator, causes: Sequence[str]) -> list[Decoy]:
    """Draw none, one or two decoys of different kinds that suit a job and the causes of its faults.

    Parameters
    ----------
    spec : JobSpec
    rng : numpy.random.Generator
    causes : sequence of str
        Of the job's faults.

    Returns
    -------
    list of Decoy
    """
    n_decoys = int(rng.choice(len(N_DECOYS_SHARES), p=N_DECOYS_SHARES))
    shares = np.array(list(_DRAWN.values()))
    drawn: list[Decoy] = []
    for kind in rng.choice(len(_DRAWN), size=len(_DRAWN), replace=False, p=shares / shares.sum()).tolist():
        if len(drawn) == n_decoys:
            break
        decoy = list(_DRAWN)[kind](spec, rng)
        if decoy is not None and not decoy.unlike & set(causes) and not _explains(decoy) & set(causes):
            drawn.append(decoy)
    return drawn


def _draw_evaluation(spec: JobSpec, rng: np.random.Generator) -> Decoy | None:
    period = _draw_period(spec, rng)
    slowdown = float(rng.uniform(1.3, 3.0))
    return None if period is None else Evaluation(period_steps=period, slowdown=slowdown)


def _draw_warm_up(spec: JobSpec, rng: np.random.Generator) -> Decoy | None:
    if spec.steps < WARM_UP_STEPS:
        return None
    return WarmUp(n_steps=int(rng.integers(1, 3)), slowdown=float(rng.uniform(1.5, 4.0)))


def _draw_uniformly_slow(spec: JobSpec, rng: np.random.Generator) -> Decoy | None:  # noqa: ARG001 - as the others
    return UniformlySlow(slowdown=float(rng.uniform(1.2, 3.0)))


def _draw_hidden(spec: JobSpec, rng: np.random.Generator) -> Decoy | None:
    """Draw something slow that is to be hidden: of the ways that the job has, any."""
    dp, stage = int(rng.integers(spec.dp)), int(rng.integers(spec.pp))
    total = spec.vpp * spec.microbatches
    in_step = np.where(rng.random(spec.steps) < rng.uniform(0.1, 1.0), rng.uniform(0.3, 1.0, spec.steps), 0.0)
    in_step[int(rng.integers(spec.steps))] = 1.0
    strengths = tuple(in_step.tolist())
    length_s = spec.forward_s * float(np.exp(rng.uniform(np.log(0.3), np.log(6.0))))
    way = rng.choice(["worker", "transfer", "pause"], p=[0.25, 0.25, 0.5])
    if way == "worker" and spec.pp >= 4 and spec.dp > 1:
        shorter = SHORT_STAGE * spec.pp
        return HiddenWorker(dp=dp, stage=stage, shorter=shorter, excess=1.5 * shorter)
    if way == "transfer" and spec.p2p == "asynchronous" and spec.pp > 1 and total > 1:
        before_last, first = (
            int(rng.integers(spec.pp - 1)),
            int(rng.integers(1, total)),
        )  # number 0 always is waited for
        return HiddenTransfer(dp=dp, stage=before_last, first=first, seconds=length_s, strengths=strengths)
    if spec.pp == 1 and spec.dp == 1:
        return None
    op = Op.FORWARD if rng.random() < 0.8 else Op.BACKWARD
    early = rng.random() < 0.7  # most room is before the first backward
    number = int(rng.integers(min(total, spec.pp) if early else total))
    kind = (None, None, Op.GC, Op.CUDA_MALLOC)[int(rng.integers(4))]
    return HiddenPause(dp=dp, stage=stage, op=op, number=number, seconds=length_s, kind=kind, strengths=strengths)


def _draw_planned_collections(spec: JobSpec, rng: np.random.Generator) -> Decoy | None:
    period = _draw_period(spec, rng)
    inside = rng.random() < 0.4
    if period is None:
        return None
    return PlannedCollections(
        period_steps=period,
        seconds=float(rng.uniform(0.003, 0.02)) * period * _guess_step_s(spec),
        microbatch=int(rng.integers(spec.microbatches)) if inside else None,
        recorded=bool(rng.random() < 0.5),
    )


def _draw_tiny_collections(spec: JobSpec, rng: np.random.Generator) -> Decoy | None:
    share = float(rng.uniform(0.1, 1.0)) / (2 * spec.vpp * spec.microbatches)
    return TinyCollections(share=share, seconds=min(2e-3, 2e-3 * spec.forward_s))


def _draw_even_documents(spec: JobSpec, rng: np.random.Generator) -> Decoy | None:  # noqa: ARG001 - as the others
    packed = int(2 ** rng.integers(12, 17))
    document = int(packed / 2 ** int(rng.integers(5)))
    return EvenDocuments(packed_tokens=packed, document_tokens=document, spread=float(rng.uniform(0.0, 0.03)))


def _draw_quick_checkpoints(spec: JobSpec, rng: np.random.Generator) -> Decoy | None:
    period = _draw_period(spec, rng)
    seconds = float(rng.uniform(3e-4, 2.5e-3)) * _guess_step_s(spec)
    return None if period is None else QuickCheckpoints(period_steps=period, seconds=seconds)


def _draw_ordinary_loads(spec: JobSpec, rng: np.random.Generator) -> Decoy | None:  # noqa: ARG001 - as the others
    return OrdinaryLoads(share=float(rng.uniform(0.1, 0.9)))


#: Ways to draw a decoy, one for each kind, and how often each comes first.
_DRAWN: dict[Callable[[JobSpec, np.random.Generator], Decoy | None], float] = {
    _draw_hidden: 2.5,
    _draw_evaluation: 1.5,
    _draw_warm_up: 1.5,
    _draw_planned_collections: 1.5,
    _draw_tiny_collections: 1.0,
    _draw_ordinary_loads: 1.0,
    _draw_quick_checkpoints: 1.0,
    _draw_uniformly_slow: 0.7,
    _draw_even_documents: 0.7,
}


def _explains(decoy: Decoy) -> frozenset[str]:
    """Say which cause the rows of a hidden pause would seem to explain."""
    causes = {Op.GC: "garbage-collection", Op.CUDA_MALLOC: "allocator-stall"}
    kind = decoy.kind if isinstance(decoy, HiddenPause) else None
    return frozenset({causes[kind]} if kind is not None else ())


def _every(spec: JobSpec, period_steps: int) -> Bools:
    """Mark the sampled steps whose number is a multiple of a period, shape (n_steps,)."""
    return np.asarray(spec.step_numbers() % period_steps == 0)


def _draw_period(spec: JobSpec, rng: np.random.Generator) -> int | None:
    """Draw a period that some sampled steps are multiples of, but not too many; None where none is found."""
    for period in rng.integers(PERIODS[0], PERIODS[1] + 1, size=20).tolist():
        if 0 < _every(spec, period).mean() <= MOST_STEPS:
            return int(period)
    return None


def _guess_step_s(spec: JobSpec) -> float:
    """Guess the step time from a job's typical times."""
    compute_s = spec.forward_s * (1.0 + spec.backward_ratio) * (spec.vpp * spec.microbatches + spec.pp - 1)
    return compute_s + spec.optimizer_s + 3.0 * spec.collective_s * spec.has_dp
