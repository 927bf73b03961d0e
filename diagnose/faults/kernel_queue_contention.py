"""Kernels that queue behind communication: a compute that has started does no work while a transfer is in flight.

With one hardware queue (CUDA_DEVICE_MAX_CONNECTIONS=1, or a software version that behaves so) it happens on all workers in
every step. What is in flight takes longer, too, since both want the same processors. Mended, with more queues, computes
run beside the communication, which is as long as before.
"""

import dataclasses
from collections.abc import Sequence
from typing import ClassVar, Literal

import numpy as np

from diagnose.errors import UsageError
from diagnose.faults.compute_order import Compute, order_computes
from diagnose.faults.example import CLEAR_ASYNCHRONOUS, PLAIN_JOB, Example, Fixture, LookAlike
from diagnose.faults.fault import Fault, choose_kind
from diagnose.faults.inputs import Hold, Inputs, draw_inputs
from diagnose.faults.programme import Programme, build_programme
from diagnose.faults.simulate import simulate
from diagnose.faults.spec import JobSpec, draw_log_uniform
from diagnose.faults.strength import find_strength
from diagnose.model.optype import SEND_OF, Op
from diagnose.model.trace import Seconds

Rivals = Literal["sends", "recvs", "reduce-scatter", "all-gather"]
#: How often a random fault has each, where the job has it.
RIVALS_WEIGHT: dict[Rivals, float] = {"sends": 0.35, "recvs": 0.2, "reduce-scatter": 0.3, "all-gather": 0.15}
#: What can be held behind transfers, and how often.
HELD_OPS = ((Op.BACKWARD,), (Op.FORWARD,), (Op.FORWARD, Op.BACKWARD))
HELD_WEIGHT = (0.6, 0.15, 0.25)
#: Which computes run beside each.
HOLDABLE: dict[Rivals, tuple[Op, ...]] = {
    "sends": (Op.FORWARD, Op.BACKWARD),
    "recvs": (Op.BACKWARD,),
    "reduce-scatter": (Op.BACKWARD,),
    "all-gather": (Op.FORWARD,),
}
#: Times as long that the communication in flight takes.
SLOWDOWN = (1.0, 40.0)
#: Limits of the part of a step that a random fault adds to it; a job in which it cannot add the last has nothing to contend.
COST = (0.02, 1.0)
MIN_COST = 0.005
ONSET_CHANCE = LATE_CHANCE = 0.3
PARTLY_CHANCE = 0.4
HELD_SHARE = (0.5, 1.0)
#: Part of the computes that wait where few do.
FEW_SHARE = (0.03, 0.3)

#: Rounding of times that are the same, seconds.
SAME_S = 1e-9

#: A compute, and the communication launched before it on its worker that may be in flight when it starts.
Queue = tuple[int, tuple[int, ...]]


@dataclasses.dataclass(frozen=True, kw_only=True)
class KernelQueueContention(Fault):
    """Computes held up by communication; `strength` is how many times as long that communication takes."""

    cause: ClassVar[str] = "kernel-queue-contention"
    strength_field: ClassVar[str] = "slowdown"
    #: What computes wait for: the last sends launched before (transfers must be asynchronous); the recv of the next
    #: forward, which only backwards wait for; the gradients of the model chunk before, which only backwards wait for
    #: (jobs with `separate`); the parameters of later model chunks, which only forwards wait for.
    rivals: Rivals = "sends"
    #: Forwards, backwards or both.
    held_ops: tuple[Op, ...] = (Op.BACKWARD,)
    #: That communication takes this many times as long, with the fault and when it is mended.
    slowdown: float = 1.0
    #: Part of the computes that wait.
    held_share: float = 1.0
    #: They start late, instead of taking long.
    late: bool = False

    def tellable(self, spec: JobSpec) -> bool:
        """Computes that always start when parameters are there look like those of a framework that waits on purpose.

        What they wait for must have rows.
        """
        on_purpose = self.late and self.rivals == "all-gather" and self.onset is None
        return not on_purpose and (spec.records_transfers or self.rivals not in ("sends", "recvs"))

    def apply(self, inputs: Inputs) -> Inputs:
        """Make the communication longer, and computes wait for it.

        Raises
        ------
        UsageError
            The job runs nothing of that kind beside its computes.
        """
        spec, active = inputs.spec, self.active(inputs.spec)
        queues = self._list_queues(inputs)
        rng = self.random(spec)
        holds = tuple(
            Hold(task, sources, active & (rng.random(inputs.lanes) < self.held_share), late=self.late)
            for task, sources in queues
        )
        return dataclasses.replace(self._slow_down(inputs, queues), holds=(*inputs.holds, *holds))

    def mend(self, inputs: Inputs) -> Inputs:
        """Keep the longer communication, and let computes run beside it."""
        return self._slow_down(inputs, self._list_queues(inputs))

    def _list_queues(self, inputs: Inputs) -> list[Queue]:
        """List who may wait for what."""
        queues = list_queues(inputs.spec, inputs.programme, self.rivals, self.held_ops)
        if not queues:
            held = " or ".join(op.name.lower() for op in self.held_ops)
            raise UsageError(f"no {held} of this job runs beside {self.rivals}", where=self.cause)
        return queues

    def _slow_down(self, inputs: Inputs, queues: list[Queue]) -> Inputs:
        """Lengthen what computes wait for."""
        transfer_s = inputs.transfer_s.copy()
        sources = sorted({source for _, of_task in queues for source in of_task})
        # Also before an onset, or it would be a network that becomes slow.
        transfer_s[sources] *= self.slowdown
        return dataclasses.replace(inputs, transfer_s=transfer_s)


def list_queues(spec: JobSpec, programme: Programme, rivals: Rivals, held_ops: tuple[Op, ...]) -> list[Queue]:
    """List the computes of some types, and what was surely launched before each on its worker.

    Whatever a compute waits for was launched once an earlier compute of the same worker had ended, or at the start of the
    step, and moves without anything that comes later: nobody waits in a circle.
    """
    runs_beside = {"reduce-scatter": spec.separate, "all-gather": not spec.gathers_last}.get(
        rivals, spec.p2p == "asynchronous"
    )
    if not runs_beside:
        return []
    moves = {task for meeting in programme.meetings for task in meeting.members}
    ids = {(t.op, t.stage, t.seq): i for i, t in enumerate(programme.tasks)}
    find = {"sends": _sends, "recvs": _recvs, "reduce-scatter": _scatters, "all-gather": _gathers}[rivals]
    begins_s = _begin(spec, programme)
    queues = []
    for stage in range(spec.pp):
        order = order_computes(spec, stage)
        for i, compute in enumerate(order):
            if compute.op in HOLDABLE[rivals] and compute.op in held_ops:
                task = ids[compute.op, stage, compute.number]
                keys = [(source, stage, seq) for source, seq in find(spec, order, i)]
                sources = [ids[key] for key in keys if ids.get(key) in moves]
                sources = [
                    source for source in sources if begins_s is None or begins_s[source] <= begins_s[task] + SAME_S
                ]
                if sources:
                    queues.append((task, tuple(sources)))
    return queues


def _begin(spec: JobSpec, programme: Programme) -> Seconds | None:
    """Say when each task of a quiet step begins, and a transfer its move; shape (n_tasks,).

    What has begun to move when a compute begins cannot wait for it. None where Megatron-LM's orders see to that.
    """
    if spec.schedule in ("1f1b", "eager", "gpipe"):
        return None
    quiet = dataclasses.replace(spec, steps=1, noise=0.0, tail_noise=0.0, drift=0.0, host_drift=0.0, network_tide=0.0)
    begins_s = simulate(draw_inputs(quiet)).start_s[:, 0].max(axis=1)
    for meeting in programme.meetings:
        members = list(meeting.members)
        begins_s[members] = begins_s[members].max()
    return np.asarray(begins_s)


def _sends(_spec: JobSpec, order: Sequence[Compute], i: int) -> list[tuple[Op, int]]:
    """Find the last send of each type that earlier computes launched; those before it have ended by then."""
    moved = {c.op: c.number for c in order[:i] if c.part != "weight"}
    return [(SEND_OF[op], moved[op]) for op in (Op.FORWARD, Op.BACKWARD) if op in moved]


def _recvs(_spec: JobSpec, order: Sequence[Compute], i: int) -> list[tuple[Op, int]]:
    """Find the recv of the next forward, posted when the last one ended."""
    return [(Op.FORWARD_RECV, c.number) for c in order[i:] if c.op == Op.FORWARD][:1]


def _scatters(spec: JobSpec, order: Sequence[Compute], i: int) -> list[tuple[Op, int]]:
    """Find the gradients of the last model chunk that is through; chunks are through from the last to the first."""
    n_through = spec.vpp - len({c.chunk for c in order[i:] if c.op == Op.BACKWARD})
    return [(Op.REDUCE_SCATTER, n_through - 1)]


def _gathers(spec: JobSpec, order: Sequence[Compute], i: int) -> list[tuple[Op, int]]:
    """Find the parameters of model chunks that have not begun; all are asked for when the step starts."""
    n_begun = len({c.chunk for c in order[: i + 1] if c.op == Op.FORWARD})
    return [(Op.ALL_GATHER, chunk) for chunk in range(n_begun, spec.vpp)]


#: How often a random fault is of each kind.
KINDS = {"queued": 0.7, "few": 0.3}


def draw_fault(
    spec: JobSpec,
    rng: np.random.Generator,
    *,
    strength: float | None = None,
    onset: int | None = None,
    kind: str | None = None,
) -> KernelQueueContention | None:
    """Draw computes that wait for communication, which takes as long as it must to be felt.

    A job that runs nothing beside its computes, or nothing that matters, cannot have it: None.
    """
    rivals = list(RIVALS_WEIGHT)
    weight = np.array(list(RIVALS_WEIGHT.values()))
    in_turn = [rivals[i] for i in rng.choice(len(rivals), size=len(rivals), replace=False, p=weight)]
    drawn_ops = HELD_OPS[int(rng.choice(len(HELD_OPS), p=HELD_WEIGHT))]
    held_share = float(rng.uniform(*HELD_SHARE)) if rng.random() < PARTLY_CHANCE else 1.0
    late, cost = bool(rng.random() < LATE_CHANCE), draw_log_uniform(rng, *COST)
    drawn_onset = int(rng.integers(1, spec.steps)) if rng.random() < ONSET_CHANCE and spec.steps > 3 else None
    onset = drawn_onset if onset is None else onset
    cost *= spec.steps / (spec.steps - (onset or 0))
    chosen = choose_kind(KINDS, rng, kind)
    if chosen == "few":
        held_share = draw_log_uniform(rng.spawn(1)[0], *FEW_SHARE)
    for rival in in_turn:
        suiting = tuple(op for op in drawn_ops if op in HOLDABLE[rival]) or HOLDABLE[rival]
        fault = KernelQueueContention(kind=chosen, rivals=rival, held_ops=suiting, held_share=held_share, late=late)
        slowdown = _choose_slowdown(spec, fault, cost, strength)
        if slowdown is not None:
            return dataclasses.replace(fault, slowdown=slowdown, onset=onset)
    return None


def _choose_slowdown(spec: JobSpec, fault: KernelQueueContention, cost: float, strength: float | None) -> float | None:
    """Choose how long the communication takes to add that part to a step; None where it cannot add any to speak of."""
    if not list_queues(spec, build_programme(spec), fault.rivals, fault.held_ops):
        return None
    if strength is not None:
        return strength
    lowest, highest = SLOWDOWN
    slowdown, reached = find_strength(
        spec, lambda s: dataclasses.replace(fault, slowdown=s), cost=cost, lowest=lowest, highest=highest
    )
    return slowdown if reached >= MIN_COST else None


EXAMPLES = {
    "backwards behind recvs": Example(KernelQueueContention(rivals="recvs", slowdown=20.0), CLEAR_ASYNCHRONOUS),
    "backwards behind gradients": Example(
        KernelQueueContention(rivals="reduce-scatter", slowdown=25.0),
        dataclasses.replace(CLEAR_ASYNCHRONOUS, vpp=2, separate=True),
    ),
    "one backward of ten late behind recvs": Example(
        KernelQueueContention(rivals="recvs", slowdown=30.0, held_share=0.1, late=True), CLEAR_ASYNCHRONOUS
    ),
    "one backward of ten behind gradients": Example(
        KernelQueueContention(rivals="reduce-scatter", slowdown=40.0, held_share=0.1),
        dataclasses.replace(CLEAR_ASYNCHRONOUS, vpp=2, separate=True),
    ),
}
PLAIN = Example(
    KernelQueueContention(rivals="recvs", slowdown=20.0), dataclasses.replace(PLAIN_JOB, p2p="asynchronous")
)
LOOK_ALIKES: dict[str, LookAlike] = {}
FIXTURE = Fixture(
    "backwards queue behind the recv in flight",
    seed=1,
    kind="queued",
    changes={"p2p": "asynchronous", "transfer_s": 0.02},
)
