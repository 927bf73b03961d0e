"""What each worker of one model-parallel group runs in a step, in launch order, and who meets whom.

Enters: a `JobSpec`. Leaves: a `Programme`, the same for all steps and dp ranks. `compute_order` says in which order workers
compute; where transfers block, they are launched as Megatron-LM does for its schedules.
"""

import dataclasses
import itertools
from collections import defaultdict
from collections.abc import Sequence

import numpy as np

from diagnose.faults.compute_order import Compute, Part, count_warmup, order_computes, share_compute
from diagnose.faults.spec import JobSpec
from diagnose.model.optype import DP_COLLECTIVES, RECV_OF, SEND_OF, Op
from diagnose.model.trace import Bools, Ints

#: The model chunk that the output of a compute goes to.
AHEAD = {Op.FORWARD: 1, Op.BACKWARD: -1}


@dataclasses.dataclass(frozen=True, slots=True)
class Task:
    """One operation of one worker; `seq` counts those of its type on its stage, -1 stands for no microbatch or chunk.

    A transfer has the number of its compute. `share` is the part of a whole forward or backward that a compute takes, `part` what
    it does of a backward.
    """

    op: Op
    stage: int
    seq: int
    microbatch: int = -1
    chunk: int = -1
    share: float = 1.0
    part: Part = "whole"


@dataclasses.dataclass(frozen=True, slots=True)
class Gate:
    """A wait that no row records: until `sources`, on any stage, have ended on all dp ranks, or each on its own rank.

    `dp_ranks` says whom it holds up; None: everybody.
    """

    sources: tuple[int, ...]
    across_dp: bool
    dp_ranks: tuple[int, ...] | None = None


@dataclasses.dataclass(frozen=True, slots=True)
class Launch:
    """What a stream of a worker launches at once: the next launch waits until all its tasks have ended.

    `after` are tasks of other streams of the same worker that must have ended before, but for the part `within` of each that may be
    left. Where it is `together` all dp ranks start it when the last of them would. Computes of one launch end each by itself.
    """

    tasks: tuple[int, ...]
    after: tuple[int, ...] = ()
    gates: tuple[Gate, ...] = ()
    together: bool = False
    within: float = 0.0


@dataclasses.dataclass(frozen=True, slots=True)
class Meeting:
    """Tasks that move together, once the last of them has started."""

    members: tuple[int, ...]
    across_dp: bool


@dataclasses.dataclass(frozen=True, slots=True)
class Programme:
    """The tasks of one model-parallel group and the order in which they are launched."""

    tasks: tuple[Task, ...]
    #: All streams of all workers; a stream is sequential.
    streams: tuple[tuple[Launch, ...], ...]
    #: A communication task in none of them moves nothing (recorded by interleaved schedules at the ends of the model).
    meetings: tuple[Meeting, ...]
    #: Shape (n_tasks,). As in `tasks`, for choosing tasks by mask.
    op: Ints
    stage: Ints
    microbatch: Ints
    chunk: Ints
    #: Shape (pp,). By stage: the task that ends the step of its worker.
    last_tasks: Ints

    def is_op(self, *ops: Op) -> Bools:
        """Mark the tasks of some types, shape (n_tasks,)."""
        return np.isin(self.op, [int(op) for op in ops])

    def name(self, task: int) -> str:
        """Say which operation a task is."""
        found = self.tasks[task]
        return f"{found.op.name.lower()} {found.seq} of stage {found.stage}"


def build_programme(spec: JobSpec) -> Programme:
    """Lay down what each worker of a model-parallel group launches in a step."""
    draft = _Draft(spec)
    workers = [_Worker(draft, stage) for stage in range(spec.pp)]
    for worker in workers:
        worker.write()
    _add_barriers(spec, [worker.main for worker in workers])
    ids = draft.ids
    meetings = [
        *_pairs(draft),
        *(Meeting((t,), across_dp=True) for (op, _, _), t in ids.items() if op in DP_COLLECTIVES),
        Meeting(tuple(ids[Op.EMBEDDING, s, 0] for s in sorted({0, spec.pp - 1})), across_dp=False),
    ]
    if spec.clip != "none":
        clips = tuple(ids[Op.CLIP, s, 0] for s in range(spec.pp))
        meetings.append(Meeting(clips, across_dp=spec.clip == "all"))
    tasks = draft.tasks
    return Programme(
        tasks=tuple(tasks),
        streams=tuple(tuple(stream) for stream in draft.streams if stream),
        meetings=tuple(meetings),
        op=np.array([int(t.op) for t in tasks], dtype=np.int64),
        stage=np.array([t.stage for t in tasks], dtype=np.int64),
        microbatch=np.array([t.microbatch for t in tasks], dtype=np.int64),
        chunk=np.array([t.chunk for t in tasks], dtype=np.int64),
        last_tasks=np.array([worker.main[-1].tasks[-1] for worker in workers], dtype=np.int64),
    )


def _add_barriers(spec: JobSpec, mains: Sequence[list[Launch]]) -> None:
    """Let workers wait for each other at the start of a step and before the optimizer, where the job does."""
    if spec.starts_together:
        for main in mains if spec.blocks else mains[:1]:
            main[0] = dataclasses.replace(main[0], together=True)
    if spec.optimizer_waits:
        gate = Gate(tuple(main[-2].tasks[-1] for main in mains), across_dp=True)
        for main in mains:
            main[-1] = dataclasses.replace(main[-1], gates=(gate,))


def _pairs(draft: "_Draft") -> list[Meeting]:
    """Match every send with the recv of the model chunk that comes next."""
    pairs: list[Meeting] = []
    for stage, order in enumerate(draft.orders):
        for compute in order:
            to = draft.spec.neighbour(stage, compute.chunk, AHEAD[compute.op])
            sender = draft.ids.get((SEND_OF[compute.op], stage, compute.number))
            if compute.part == "weight" or sender is None or to is None:
                continue
            number = draft.numbers[compute.op, *to, compute.microbatch]
            pairs.append(Meeting((sender, draft.ids[RECV_OF[compute.op], to[0], number]), across_dp=False))
    return pairs


class _Draft:
    """Where the programmes of all workers are written."""

    def __init__(self, spec: JobSpec) -> None:
        self.spec = spec
        self.tasks: list[Task] = []
        self.ids: dict[tuple[Op, int, int], int] = {}
        self.streams: list[list[Launch]] = []
        self.last_computes: list[int] = []
        self.orders = [order_computes(spec, stage) for stage in range(spec.pp)]
        #: By type, stage, model chunk and microbatch; without weight gradients.
        self.numbers: dict[tuple[Op, int, int, int], int] = {}
        for stage, order in enumerate(self.orders):
            for compute, then in itertools.zip_longest(order, order[1:]):
                share = share_compute(spec, compute)
                if compute.beside or (then is not None and then.beside):
                    share *= spec.overlap_cost
                if compute.part != "weight":
                    self.numbers[compute.op, stage, compute.chunk, compute.microbatch] = compute.number
                place = compute.microbatch, compute.chunk
                self._add(Task(compute.op, stage, compute.number, *place, share, compute.part))
            self.last_computes.append(len(self.tasks) - 1)

    def add(self, op: Op, stage: int, seq: int, *, chunk: int = -1) -> int:
        """Write down a task once and give its number."""
        return self._add(Task(op, stage, seq, chunk=chunk))

    def _add(self, task: Task) -> int:
        key = (task.op, task.stage, task.seq)
        if key not in self.ids:
            self.ids[key] = len(self.tasks)
            self.tasks.append(task)
        return self.ids[key]


class _Worker:
    """One stage's worker: its main stream, its dp communication, and streams for point-to-point where they run apart."""

    def __init__(self, draft: _Draft, stage: int) -> None:
        self.draft, self.stage, self.spec = draft, stage, draft.spec
        self.main: list[Launch] = []
        self.collectives: list[Launch] = []
        #: By type, and by the stage at the other end.
        self.apart: dict[tuple[Op, int], list[Launch]] = defaultdict(list)
        self.total = self.spec.microbatches * self.spec.vpp
        self.order = draft.orders[stage]
        self.computes = {(compute.op, compute.number): compute for compute in self.order}
        self.gathers: list[int] = []
        draft.streams += [self.main, self.collectives]

    def write(self) -> None:
        """Write the worker's step from all-gather to optimizer."""
        if self.spec.has_dp and self.spec.gathers and not self.spec.gathers_last:
            n_gathers = len(self.order) if self.spec.shards else self.spec.vpp
            self.gathers = [self._task(Op.ALL_GATHER, i, chunk=i % self.spec.vpp) for i in range(n_gathers)]
            if not self.spec.shards:
                self.collectives += [Launch((gather,)) for gather in self.gathers]
        if self.spec.pp == 1:
            for compute in self.order:
                self._launch((compute,))
            self._collect_garbage()
        elif not self.spec.blocks:
            self._write_asynchronous()
        elif self.spec.schedule == "gpipe":
            self._write_blocking_gpipe()
        elif self.spec.vpp == 1:
            self._write_blocking()
        else:
            self._write_blocking_interleaved()
        self._close_step()

    def _task(self, op: Op, seq: int = 0, chunk: int = -1) -> int:
        return self.draft.add(op, self.stage, seq, chunk=chunk)

    def _find_peer(self, op: Op, number: int) -> int | None:
        """Name the stage at the other end of the transfer of a compute; None where there is no row of it."""
        is_forward, is_send = op in (Op.FORWARD_SEND, Op.FORWARD_RECV), op in (Op.FORWARD_SEND, Op.BACKWARD_SEND)
        ahead = 1 if is_forward == is_send else -1
        compute = self.computes[Op.FORWARD if is_forward else Op.BACKWARD, number]
        to = self.spec.neighbour(self.stage, compute.chunk, ahead)
        if self.spec.records_no_moves:
            return (self.stage + ahead) % self.spec.pp
        return None if to is None or to[0] == self.stage else to[0]

    def _compute(self, op: Op, number: int) -> None:
        """Launch a compute."""
        self._launch((self.computes[op, number],))

    def _launch(self, computes: Sequence[Compute], after: Sequence[int] = ()) -> None:
        """Launch a compute, or two at the same time; the first forward of a chunk needs its parameters, or each compute does."""
        if self.spec.shards:
            opening = {self.order.index(compute) for compute in computes}
        else:
            opening = {compute.chunk for compute in computes if compute.op == Op.FORWARD and compute.microbatch == 0}
        needs = [*after, *(gather for i, gather in enumerate(self.gathers) if i in opening)]
        tasks = tuple(self.draft.ids[compute.op, self.stage, compute.number] for compute in computes)
        self.main.append(Launch(tasks, after=tuple(needs)))

    def _batch(self, *transfers: tuple[Op, int]) -> None:
        """Launch a batch of sends and recvs that blocks the worker; leaves out those that this stage does not have.

        Pairs are launched one by one: neighbours must not both begin with a send, so that odd stages begin with the recv.
        """
        tasks = tuple(
            self._task(op, number)
            for op, number in transfers
            if number < self.total and self._find_peer(op, number) is not None
        )
        if self.spec.p2p == "pairs":
            turned = self.stage % 2 and self.spec.schedule == "1f1b"
            batches: list[tuple[int, ...]] = [(task,) for task in (tasks[::-1] if turned else tasks)]
        else:
            batches = [tasks] if tasks else []
        for batch in batches:
            first = not self.main
            self.main.append(Launch(batch, after=tuple(self.gathers[:1]) if first else ()))

    def _write_blocking(self) -> None:
        """1F1B as Megatron's forward_backward_pipelining_without_interleaving."""
        warmup = self._count_warmup()
        for k in range(warmup):
            self._batch((Op.FORWARD_RECV, k))
            self._compute(Op.FORWARD, k)
            self._batch((Op.FORWARD_SEND, k))
        self._batch((Op.FORWARD_RECV, warmup))
        steady = self.total - warmup
        for k in range(steady):
            self._compute(Op.FORWARD, warmup + k)
            self._batch((Op.FORWARD_SEND, warmup + k), (Op.BACKWARD_RECV, k))
            self._backward(k)
            if k < steady - 1:
                self._batch((Op.BACKWARD_SEND, k), (Op.FORWARD_RECV, warmup + k + 1))
            else:
                self._batch((Op.BACKWARD_SEND, k))
        for k in range(steady, self.total):
            self._batch((Op.BACKWARD_RECV, k))
            self._backward(k)
            self._batch((Op.BACKWARD_SEND, k))

    def _write_blocking_gpipe(self) -> None:
        """All forwards, then all backwards; between them the last send and the first recv are one batch."""
        last = self.total - 1
        for k in range(self.total):
            self._batch((Op.FORWARD_RECV, k))
            self._compute(Op.FORWARD, k)
            self._batch((Op.FORWARD_SEND, k), *([(Op.BACKWARD_RECV, 0)] if k == last else []))
        for k in range(self.total):
            self._backward(k)
            self._batch((Op.BACKWARD_SEND, k))
            self._batch((Op.BACKWARD_RECV, k + 1))

    def _write_blocking_interleaved(self) -> None:
        """Interleaved 1F1B as Megatron's forward_backward_pipelining_with_interleaving without overlap of transfers."""
        warmup = self._count_warmup()
        steady = self.total - warmup
        self._batch((Op.FORWARD_RECV, 0))
        for k in range(warmup):
            self._compute(Op.FORWARD, k)
            transfers = [(Op.FORWARD_SEND, k), (Op.FORWARD_RECV, k + 1)]
            if k == warmup - 1 and steady:
                transfers.append((Op.BACKWARD_RECV, 0))
            self._batch(*transfers)
        for k in range(steady):
            self._compute(Op.FORWARD, warmup + k)
            self._backward(k)
            self._batch(
                (Op.FORWARD_SEND, warmup + k),
                (Op.BACKWARD_SEND, k),
                (Op.FORWARD_RECV, warmup + k + 1),
                (Op.BACKWARD_RECV, k + 1),
            )
        if not steady:
            self._batch((Op.BACKWARD_RECV, 0))
        for k in range(steady, self.total):
            self._backward(k)
            self._batch((Op.BACKWARD_SEND, k), (Op.BACKWARD_RECV, k + 1))

    def _count_warmup(self) -> int:
        spec = self.spec
        return count_warmup(spec.schedule, spec.pp, spec.vpp, spec.microbatches, self.stage)

    def _backward(self, number: int) -> None:
        """Launch a backward; the collection of garbage stands right after the last one."""
        self._compute(Op.BACKWARD, number)
        if number == self.total - 1:
            self._collect_garbage()

    def _collect_garbage(self) -> None:
        self.main.append(Launch((self._task(Op.GC),)))

    def _write_asynchronous(self) -> None:
        """Computes in one stream, each type of transfer with a stage in its own.

        A recv is posted once the compute of its type before has ended. A lazy recv is posted when the worker has nothing else to
        do, and blocks it.
        """
        ids, stage = self.draft.ids, self.stage
        warmup = next(i for i, compute in enumerate(self.order) if compute.op == Op.BACKWARD)
        # The host posts the first backward transfers together with the last forwards before the first backward.
        before_last = self.order[warmup - 2]
        opening = (ids[before_last.op, stage, before_last.number],) if warmup >= 2 else ()
        at = 0
        while at < len(self.order):
            n_together = 2 if at + 1 < len(self.order) and self.order[at + 1].beside else 1
            computes = self.order[at : at + n_together]
            received: list[int] = []
            sends: list[tuple[tuple[Op, int], Launch]] = []
            for op, number, _, _, part, *_ in computes:
                if part == "weight":  # moves nothing
                    continue
                recv, send = RECV_OF[op], SEND_OF[op]
                held = opening if op == Op.BACKWARD and number == 0 else ()
                source, target = self._find_peer(recv, number), self._find_peer(send, number)
                if source is not None:
                    received.append(self._task(recv, number))
                    before = (ids[op, stage, number - 1],) if number else ()
                    if self.spec.p2p == "lazy":
                        self.main.append(Launch((received[-1],)))
                    else:
                        self.apart[recv, source].append(Launch((received[-1],), after=before + held))
                if target is not None:
                    launch = Launch((self._task(send, number),), after=(ids[op, stage, number], *held))
                    sends.append(((send, target), launch))
            self._launch(computes, after=received)
            for stream, launch in sends:
                self.apart[stream].append(launch)
            at += n_together
        self._collect_garbage()
        self.draft.streams += list(self.apart.values())

    def _close_step(self) -> None:
        """Write what follows the last compute: gradients, clip, optimizer."""
        spec = self.spec
        overlapped = spec.overlaps_scatters
        scatters: tuple[int, ...] = ()
        if spec.shards and spec.has_dp:
            scatters = self._write_shards()
        elif spec.has_dp:
            chunks = range(spec.vpp - 1, -1, -1) if overlapped else range(spec.vpp)
            scatters = tuple(self._task(Op.REDUCE_SCATTER, i, chunk=chunk) for i, chunk in enumerate(chunks))
            if overlapped:
                self.collectives += [
                    Launch((s,), after=(self._last_backward(c),), within=spec.scatters_within)
                    for s, c in zip(scatters, chunks, strict=True)
                ]
        layernorm = Launch((self._task(Op.LAYERNORM),), after=scatters[-1:] if overlapped else (), gates=self._gates())
        self.main.append(layernorm)
        if self.stage in (0, spec.pp - 1):
            self.main.append(Launch((self._task(Op.EMBEDDING),)))
        if spec.separate and spec.has_dp:
            self.main.append(Launch((self._task(Op.SEPARATE),)))
        if not overlapped:
            self.main += [Launch((scatter,)) for scatter in scatters]
        closing = (Op.OPTIMIZER,) if spec.clip == "none" else (Op.CLIP, Op.OPTIMIZER)
        self.main += [Launch((self._task(op),)) for op in closing]
        if spec.has_dp and spec.gathers and spec.gathers_last:
            self.main += [Launch((self._task(Op.ALL_GATHER, i, chunk=i),)) for i in range(spec.vpp)]

    def _write_shards(self) -> tuple[int, ...]:
        """Write gathers, each while the compute before its own runs, and in another stream the scatter behind each backward."""
        computes = [self.draft.ids[compute.op, self.stage, compute.number] for compute in self.order]
        for i, gather in enumerate(self.gathers):
            self.collectives.append(Launch((gather,), after=tuple(computes[max(i - 2, 0) : max(i - 1, 0)])))
        backwards = [compute for compute, (op, *_) in zip(computes, self.order, strict=True) if op == Op.BACKWARD]
        scatters = tuple(self._task(Op.REDUCE_SCATTER, i, chunk=0) for i in range(len(backwards)))
        self.draft.streams.append(
            [
                Launch((scatter,), after=(backward,), within=self.spec.scatters_within)
                for scatter, backward in zip(scatters, backwards, strict=True)
            ]
        )
        return scatters

    def _last_backward(self, chunk: int) -> int:
        """Find the backward after which a chunk's gradients are complete."""
        last = next(c for c in reversed(self.order) if c.op == Op.BACKWARD and c.chunk == chunk)
        return self.draft.ids[last.op, self.stage, last.number]

    def _gates(self) -> tuple[Gate, ...]:
        """List the waits before layernorm-grads that no row records."""
        gates: list[Gate] = []
        if self.spec.averages_loss and self.stage == self.spec.pp - 1:
            gates.append(Gate((self.draft.last_computes[-1],), across_dp=True))
        if self.spec.rank_0_waits:
            gates.append(Gate(tuple(self.draft.last_computes), across_dp=False, dp_ranks=(0,)))
        if self.spec.gradients_wait:
            gates.append(Gate((self.draft.last_computes[self.stage],), across_dp=True))
        return tuple(gates)
