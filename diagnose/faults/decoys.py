"""The decoys: evaluation and warm-up steps, slowness that all share or nobody waits for, and rows that explain nothing.

Enters: `Inputs` of a job without one. Leaves: `Inputs` of the job with it.
"""

import dataclasses
from typing import ClassVar

import numpy as np

from diagnose.faults.decoy import Decoy, HiddenDecoy, mark_multiples
from diagnose.faults.example import LookAlike
from diagnose.faults.inputs import Inputs, Pause
from diagnose.model.optype import Op


@dataclasses.dataclass(frozen=True, kw_only=True)
class Evaluation(Decoy):
    """Every so many steps all workers run an evaluation too, which nobody records: their forwards are longer."""

    name: ClassVar[str] = "evaluation"
    period_steps: int
    slowdown: float

    def apply(self, inputs: Inputs) -> Inputs:
        """Make all forwards of those steps longer."""
        slow = np.where(mark_multiples(inputs.spec, self.period_steps), self.slowdown, 1.0)
        return inputs.with_work(inputs.programme.is_op(Op.FORWARD), slow[:, None])


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
        here = inputs.programme.is_op(Op.FORWARD, Op.BACKWARD) & (inputs.programme.stage == self.stage)
        is_slow = np.arange(inputs.spec.dp) == self.dp
        longer = np.where(is_slow, 1.0 + self.excess * self.strengths[0], 1.0)
        return inputs.with_work(here, 1.0 - self.shorter).with_work(here, longer)


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
        return inputs.with_pauses(Pause(kind, seconds, "inside", recorded=self.kind is not None))


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
        seconds = np.where(here[:, None, None] & mark_multiples(spec, self.period_steps)[:, None], length_s, 0.0)
        return inputs.with_pauses(Pause(Op.GC, seconds, "inside", recorded=self.recorded))


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
        return inputs.with_pauses(Pause(Op.GC, seconds, "inside", recorded=True))


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
        tail_s = np.where(mark_multiples(inputs.spec, self.period_steps)[None, :, None], length_s, 0.0)
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
        changed = dataclasses.replace(inputs, delay_s=delay_s)
        return changed.with_pauses(Pause(Op.DATA_LOAD, seconds, "before", recorded=True))


@dataclasses.dataclass(frozen=True, kw_only=True)
class LongerComputes(Decoy):
    """Computes that take longer by chance, on all workers alike: processors that are shared with somebody."""

    name: ClassVar[str] = "longer-computes"
    #: Part of the computes that do, and by how much on average.
    share: float = 0.4
    excess: float

    def apply(self, inputs: Inputs) -> Inputs:
        """Make a share of the computes longer, each by an exponential draw."""
        rng, computes = self.random(inputs.spec), inputs.programme.is_op(Op.FORWARD, Op.BACKWARD)
        shape = (int(computes.sum()), *inputs.lanes)
        longer = np.where(rng.random(shape) < self.share, rng.exponential(self.excess, shape), 0.0)
        return inputs.with_work(computes, 1.0 + longer)


@dataclasses.dataclass(frozen=True, kw_only=True)
class BusyHosts(Decoy):
    """More processes than processors on every host: for some steps at a time its workers' computes have heavy tails."""

    name: ClassVar[str] = "busy-hosts"
    unlike: ClassVar[frozenset[str]] = frozenset({"worker-fault"})
    workers_per_host: int
    #: Part of the steps in which a host is busy, and the mean length of such a burst, steps.
    busy_share: float
    burst_steps: float
    #: Scale of the excess of a compute there, a Lomax variable of 3 degrees, part of the compute.
    scale: float

    def apply(self, inputs: Inputs) -> Inputs:
        """Make the computes of busy hosts longer, each by itself."""
        spec, rng = inputs.spec, self.random(inputs.spec)
        host = dataclasses.replace(spec, workers_per_host=self.workers_per_host).hosts()
        n_hosts = int(host.max()) + 1
        busy = np.zeros((n_hosts, spec.steps), dtype=bool)
        now = rng.random(n_hosts) < self.busy_share
        end = 1.0 / self.burst_steps
        begin = end * self.busy_share / max(1.0 - self.busy_share, end)
        for step in range(spec.steps):
            busy[:, step] = now
            now = np.where(now, rng.random(n_hosts) >= end, rng.random(n_hosts) < begin)
        here = busy[host].transpose(0, 2, 1)[inputs.programme.stage]  # (n_tasks, n_steps, n_dp)
        longer = np.where(here, self.scale * rng.pareto(3.0, here.shape), 0.0)
        computes = inputs.programme.is_op(Op.FORWARD, Op.BACKWARD)
        return inputs.with_work(computes, 1.0 + longer[computes])


#: Those that look like no cause in particular.
LOOK_ALIKES = {
    "evaluation": LookAlike(Evaluation(period_steps=4, slowdown=2.0)),
    "warm-up": LookAlike(WarmUp(n_steps=2, slowdown=3.0)),
    "uniformly slow": LookAlike(UniformlySlow(slowdown=2.0)),
    "long computes at random": LookAlike(LongerComputes(share=0.4, excess=0.06)),
    "busy hosts": LookAlike(BusyHosts(workers_per_host=8, busy_share=0.4, burst_steps=3.0, scale=0.06)),
    "hidden pause of a forward": LookAlike(
        HiddenPause(dp=1, stage=2, op=Op.FORWARD, number=1, seconds=0.1, kind=None, strengths=(0.0, 0.0, 1.0) * 8)
    ),
}
