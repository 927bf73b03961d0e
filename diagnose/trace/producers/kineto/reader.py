"""Make operations of the events of one rank: what its annotations name, else what its operators show.

Enters: what was collected of one file. Leaves: operations by step, timed by the GPU where there is one, and
what explains them.
"""

from collections import Counter
from typing import Any

import numpy as np

from diagnose.model.optype import EVIDENCE, Op
from diagnose.trace.producers.kineto.annotations import Dialect, NamedOperation, parse_annotation, parse_step
from diagnose.trace.producers.kineto.collect import Collected, Exchange, Spans, list_steps
from diagnose.trace.producers.kineto.computes import HostOperators, Run, find_runs, list_operators
from diagnose.trace.producers.kineto.gpu import GpuTime, measure_alone, merge
from diagnose.trace.producers.kineto.operations import Operation
from diagnose.trace.producers.weights import WEIGHTS

#: Collections of Python that took less are counted, not kept: the youngest generation is collected all the time.
LEAST_COLLECTION_US = 100.0
#: What reduces gradients, and what groups never do.
GRADIENTS = {"reduce_scatter": Op.REDUCE_SCATTER, "all_reduce": Op.SEPARATE}
NOT_DATA_PARALLEL = (
    "TENSOR",
    "EXPERT",
    "EMBEDDING",
    "PIPELINE",
    "MODEL_PARALLEL",
    "CONTEXT",
    "mesh_tp",
    "mesh_pp",
    "mesh_ep",
    "mesh_cp",
)

_RECV_OF = {Op.FORWARD: Op.FORWARD_RECV, Op.BACKWARD: Op.BACKWARD_RECV}
_SEND_OF = {Op.FORWARD: Op.FORWARD_SEND, Op.BACKWARD: Op.BACKWARD_SEND}


class _Ordered:
    """Calls or works of the communication library, by start."""

    def __init__(self, exchanges: list[Exchange]) -> None:
        self._exchanges = exchanges
        self._start = np.array([exchange.start for exchange in exchanges])

    def between(self, start: float, end: float) -> list[Exchange]:
        """List those that begin from `start` on and before `end`."""
        first, last = np.searchsorted(self._start, (start, end))
        return self._exchanges[first:last]


class OperationReader:
    """Makes operations of what was collected of one file.

    Attributes
    ----------
    operations : list of Operation
        After `read`, with evidence, in no order.
    dialect : str
        Whose names, or what, told the computes.
    numbers : ndarray of int64, shape (n_steps,)
        Of the steps; `steps_named` says that annotations number them.
    n_on_host : int
        Computes timed by the host though there is a GPU.
    sharded : bool
        Parameters are gathered inside computes (FSDP).
    """

    def __init__(self, found: Collected) -> None:
        self.found = found
        self.gpu = GpuTime(found)
        self.numbers, self.starts, self.ends, main = list_steps(found)
        self.steps_named = bool(len(self.numbers))
        self.optimizers = self._named("Optimizer.step#")
        if not self.steps_named:
            self._steps_by_optimizer()
            main = self._busiest_thread()
        self.operators: HostOperators = list_operators(found, main)
        self.main = main
        works = [exchange for exchange in found.exchanges if exchange.by == "work"]
        self.works = _Ordered([work for work in works if work.thread == main])
        self.calls = _Ordered(list(self.operators.calls))
        self.outer = self._list_annotations()
        self.free = np.sort(np.concatenate([self.outer.end, np.array([exchange.end for exchange in found.exchanges])]))
        self.collectives = self._list_collectives()
        self.running = merge(np.array([work.start for work in works]), np.array([work.end for work in works]))
        on_main = found.operators.take(found.operators.thread == main)
        self.busy = merge(on_main.start, on_main.end)
        self.operations: list[Operation] = []
        self.dropped: Counter[tuple[str, str]] = Counter()
        self.n_on_host = 0
        self.phases: Counter[tuple[int, int]] = Counter()
        self.dialect: str = "runs"
        self.sharded = any(name.startswith(("FSDP::", "FullyShardedDataParallel")) for name in found.names)

    def read(self) -> None:
        """Read operations, then what explains them."""
        named = self._list_named()
        self.dialect = self._choose_dialect([entry for entry, *_ in named])
        if self.dialect == "runs":
            for step in range(len(self.numbers)):
                self._read_runs(step)
        else:
            for entry, start, end, name, nth in named:
                if entry.dialect == self.dialect or (entry.dialect == "own" and entry.op in EVIDENCE):
                    self._read_named(entry, start, end, name, nth)
        if self.dialect != "own":
            for entry, start, end, *_ in named if self.dialect == "runs" else ():
                if entry.op in EVIDENCE:
                    self._add(entry.op, start, end)
            self._read_optimizers()
            self._read_gradients()
            self._read_first_gather()
        self._read_evidence()

    # -- steps

    def _steps_by_optimizer(self) -> None:
        """Cut steps after each update, where none is annotated."""
        if not self.optimizers:
            return
        ends = np.array([end for _, end in self.optimizers])
        self.starts, self.ends = np.r_[-np.inf, ends[:-1]], ends
        self.numbers = np.arange(len(ends))

    def _busiest_thread(self) -> int:
        """Take the thread with most operators for the main one."""
        threads = self.found.operators.thread
        return int(np.bincount(threads).argmax()) if len(threads) else -1

    def _step_at(self, time: float) -> int:
        """Say in which step a time of the host lies; -1: in none."""
        at = int(np.searchsorted(self.starts, time, side="right")) - 1
        return at if at >= 0 and time < self.ends[at] else -1

    # -- annotations

    def _named(self, prefix: str) -> list[tuple[float, float]]:
        """List the annotations whose name begins so, by start."""
        keys = np.array([name.startswith(prefix) for name in self.found.names], dtype=bool)
        spans = self.found.annotations
        at = np.flatnonzero(keys[spans.key]) if len(spans) else np.zeros(0, dtype=np.int64)
        return list(zip(spans.start[at].tolist(), spans.end[at].tolist(), strict=True))

    def _list_named(self) -> list[tuple[NamedOperation, float, float, int, int]]:
        """List the annotations that name operations: what, start, end, number of the name, and the how manieth of it."""
        meanings = [parse_annotation(name) for name in self.found.names]
        spans = self.found.annotations
        if not any(meanings[key] for key in np.unique(spans.key).tolist()):
            spans = self.found.gpu_annotations  # a trace of the GPU alone
        count: Counter[int] = Counter()
        listed = []
        for key, start, end in zip(spans.key.tolist(), spans.start.tolist(), spans.end.tolist(), strict=True):
            listed += [(entry, start, end, key, count[key]) for entry in meanings[key]]
            count[key] += 1
        return listed

    def _choose_dialect(self, named: list[NamedOperation]) -> str:
        """Choose whose names tell the forwards and backwards."""
        for dialect in ("own", "staged", "unstaged", "phases"):
            ops = Counter(entry.op for entry in named if entry.dialect == dialect)
            # Somebody's "forward" may also be that of an evaluation, or of a part of the model.
            alike = dialect != "phases" or ops[Op.FORWARD] == ops[Op.BACKWARD]
            if ops[Op.FORWARD] and ops[Op.BACKWARD] and alike:
                return dialect
        return "runs"

    def _read_named(self, entry: NamedOperation, start: float, end: float, name: int, nth: int) -> None:
        """Read one annotated operation."""
        op = WEIGHTS if entry.weights else entry.op
        if op is None:
            self.dropped[entry.what, "has no place in the trace format"] += 1
            return
        made = self._add(op, start, end)
        if made is None:
            return
        made.stage = -1 if entry.stage is None else entry.stage
        compute = entry.op in (Op.FORWARD, Op.BACKWARD)
        if entry.microbatch is not None and (compute or entry.dialect != "own"):
            made.microbatch = entry.microbatch
        made.chunk = -1 if entry.chunk is None else entry.chunk
        if compute or op in (Op.OPTIMIZER, Op.CLIP, WEIGHTS):
            if entry.dialect == "phases":
                made.microbatch = self.phases[made.step, made.op]
                self.phases[made.step, made.op] += 1
                self._cut_reduction(made)
            self._time_on_gpu(made, name, nth)
            if compute and not self.gpu.is_there and entry.dialect in ("staged", "unstaged"):
                self._cut_waits(made, entry.dialect)
            if entry.dialect == "unstaged":
                self._read_inner_exchanges(made, start, end)
        elif op not in EVIDENCE:
            moved = self._time_exchange(made)
            if not moved and entry.dialect == "staged":
                self.operations.pop()
                self.dropped[f"{entry.what} without communication", "nothing is moved"] += 1

    def _cut_reduction(self, made: Operation) -> None:
        """Let a backward end with its last operator: then it may stand waiting for its gradients to be reduced."""
        starts, ends = self.operators.backward
        at = int(np.searchsorted(starts, made.returned)) - 1
        if made.op == Op.BACKWARD and at >= 0 and starts[at] >= made.asked:
            made.returned = made.end = min(made.end, float(ends[at]))

    def _add(self, op: int, start: float, end: float) -> Operation | None:
        """Add an operation where it lies in a step."""
        step = self._step_at(start)
        if step < 0:
            self.dropped["operations outside every step", "the profiler's first and last steps are cut"] += 1
            return None
        made = Operation(op, int(self.numbers[step]), start, end, start, end)
        self.operations.append(made)
        return made

    def _time_on_gpu(self, made: Operation, name: int = -1, nth: int = -1) -> None:
        """Take the time of the GPU for an operation, where it is known."""
        if not self.gpu.is_there:
            return
        ran = self.gpu.of(made.asked, made.returned, name, nth)
        if ran is not None:
            made.start, made.end = ran
        elif made.op in (Op.FORWARD, Op.BACKWARD):
            self.n_on_host += 1

    def _time_exchange(self, made: Operation) -> bool:
        """Take the time of the kernels, or of the work that was begun inside, which may end later; say whether there is any."""
        kernels = self.gpu.communication(made.asked, made.returned)
        if kernels:
            made.start, made.end = min(k.start for k in kernels), max(k.end for k in kernels)
            made.seq = kernels[-1].seq
            return True
        works = self.works.between(made.asked, made.returned)
        if works:
            made.end = max(made.end, *(work.end for work in works))
        return bool(works)

    def _cut_waits(self, made: Operation, dialect: Dialect) -> None:
        """Let a compute begin after what it received, and end before what it sent."""
        own = self.works.between(made.asked, made.returned)
        if dialect == "unstaged":
            received = [w.end for w in own if w.collective == "recv"]
        else:
            received = [
                o.end
                for o in self.operations[-64:]
                if o.stage == made.stage and o.microbatch == made.microbatch and o.op == _RECV_OF[Op(made.op)]
            ]
        sent = [e.start for e in own if e.collective == "send"]
        sent += [call.start for call in self.calls.between(made.asked, made.returned) if call.collective == "send"]
        made.start = min(max([made.start, *received]), made.end)
        made.end = max(min([made.end, *sent]), made.start)

    def _read_inner_exchanges(self, made: Operation, start: float, end: float) -> None:
        """Read what is received and sent inside the annotation of a compute."""
        for call in self.calls.between(start, end):
            table = _RECV_OF if call.collective == "recv" else _SEND_OF
            exchange = self._add(table[Op(made.op)], call.start, call.end)
            if exchange is not None:
                exchange.microbatch = made.microbatch
                self._time_exchange(exchange)

    # -- what operators show

    def _read_runs(self, step: int) -> None:
        """Read forwards and backwards of one step, and what was received and sent between them."""
        start, end = float(self.starts[step]), float(self.ends[step])
        runs = find_runs(self.operators, start, end)
        run_starts = np.array([run.start for run in runs])
        counts: Counter[Op] = Counter()
        at_run: list[int] = []
        for run in runs:
            op = Op.FORWARD if run.forward else Op.BACKWARD
            made = Operation(op, int(self.numbers[step]), run.start, run.end, run.start, run.end, microbatch=counts[op])
            counts[op] += 1
            at_run.append(made.microbatch)
            self.operations.append(made)
            self._time_on_gpu(made)
            if not self.gpu.is_there and run.forward:
                made.start = min(self._free_since(run, start), made.start)
        for call in self.calls.between(start, end):
            after = int(np.searchsorted(run_starts, call.start))
            self._read_call(call, (runs, after), at_run, int(self.numbers[step]))

    def _free_since(self, run: Run, start: float) -> float:
        """Say since when the host had nothing else to do than this forward, as far as is seen."""
        free = start if np.isfinite(start) else run.start
        for begins, ends in (self.operators.forward, self.operators.backward):
            at = int(np.searchsorted(begins, run.start)) - 1
            free = max(free, float(ends[at])) if at >= 0 else free
        at = int(np.searchsorted(self.free, run.start, side="right")) - 1
        free = max(free, float(self.free[at])) if at >= 0 else free
        first, last = np.searchsorted(self.outer.start, (free, run.start))
        holding = self.outer.start[first:last][self.outer.end[first:last] > run.start]
        return float(holding[0]) if len(holding) else free

    def _list_annotations(self) -> Spans:
        """List the annotations of the main thread but for the steps."""
        spans = self.found.annotations
        steps = np.array([parse_step(name) is not None for name in self.found.names], dtype=bool)
        return spans.take((spans.thread == self.main) & ~steps[spans.key])

    def _read_call(self, call: Exchange, place: tuple[list[Run], int], microbatches: list[int], step: int) -> None:
        """Read one send, which belongs to the run before it, or one receive, which belongs to the one after."""
        runs, after = place
        at = after if call.collective == "recv" else after - 1
        if not 0 <= at < len(runs):
            self.dropped["sends and receives beside every compute", "no forward or backward goes with them"] += 1
            return
        op = Op.FORWARD if runs[at].forward else Op.BACKWARD
        table = _RECV_OF if call.collective == "recv" else _SEND_OF
        made = Operation(table[op], step, call.start, call.end, call.start, call.end, microbatch=microbatches[at])
        self.operations.append(made)
        until = runs[after].start if after < len(runs) else float(self.ends[self._step_at(call.start)])
        kernels = self.gpu.communication(call.start, max(until, call.end))[:1]
        if kernels:
            made.start, made.end = kernels[0].start, kernels[0].end
            return
        works = [w for w in self.works.between(call.start, max(until, call.end)) if w.collective == call.collective]
        if works:
            made.end = max(made.end, works[0].end)

    def _read_optimizers(self) -> None:
        """Read the update of each step, from the first optimizer to the last."""
        by_step: dict[int, tuple[float, float]] = {}
        for start, end in self.optimizers:
            step = self._step_at(start)
            if step >= 0:
                first, last = by_step.get(step, (start, end))
                by_step[step] = (min(first, start), max(last, end))
        for step, (start, end) in by_step.items():
            made = Operation(Op.OPTIMIZER, int(self.numbers[step]), start, end, start, end)
            self.operations.append(made)
            self._time_on_gpu(made)

    def _list_collectives(self) -> list[tuple[float, Exchange]]:
        """List the collectives that may be data-parallel by when the host asked for them: kernels, else works, else calls."""
        listed = self.gpu.launched()
        for by in ("work", "call"):
            if not listed:
                listed = [(exchange.start, exchange) for exchange in self.found.exchanges if exchange.by == by]
        return [
            (asked, exchange)
            for asked, exchange in listed
            if not any(part in exchange.description for part in NOT_DATA_PARALLEL)
        ]

    def _collectives(self, step: int) -> list[tuple[float, Exchange]]:
        """List the collectives that the host asked for in one step."""
        start, end = float(self.starts[step]), float(self.ends[step])
        return [(asked, exchange) for asked, exchange in self.collectives if start <= asked < end]

    def _read_gradients(self) -> None:
        """Read the part of each step's reduction of gradients that comes after its last backward."""
        if any(made.op in (Op.REDUCE_SCATTER, Op.SEPARATE) for made in self.operations):
            return
        last = {made.step: made for made in self.operations if made.op == Op.BACKWARD}
        first = {made.step: made for made in reversed(self.operations) if made.op == Op.FORWARD}
        updates = {made.step: made for made in self.operations if made.op == Op.OPTIMIZER}
        for step, number in enumerate(self.numbers.tolist()):
            if number not in last or number not in first:
                continue
            backward = last[number]
            until = updates[number].asked if number in updates else float(self.ends[step])
            listed = [
                exchange
                for asked, exchange in self._collectives(step)
                if exchange.collective in GRADIENTS and first[number].asked <= asked < until
            ]
            if not listed:
                continue
            scattered = [exchange for exchange in listed if exchange.collective == "reduce_scatter"]
            listed = scattered or listed
            op = Op.REDUCE_SCATTER if self.sharded else GRADIENTS[listed[-1].collective]
            start = max(backward.end, min(exchange.start for exchange in listed))
            end = max(start, *(exchange.end for exchange in listed))
            self.operations.append(
                Operation(op, number, start, end, backward.returned, max(backward.returned, end), seq=listed[-1].seq)
            )
            if self.sharded and self.dialect in ("runs", "phases"):
                self._gather_waits(number, self.operations[-1])

    def _gather_waits(self, step: int, reduction: Operation) -> None:
        """Put what a step of a sharded job waited inside its computes to its end, before its gradients are reduced.

        Each layer's parameters are waited for by all: a slow rank is the one that waits least. As one wait at the end of the
        step that is a barrier of the trace's own kind.
        """
        computes = [made for made in self.operations if made.step == step and made.op in (Op.FORWARD, Op.BACKWARD)]
        earlier = 0.0
        for made in computes:
            waited = self._waited(made)
            made.start, made.end = made.start - earlier, made.end - earlier - waited
            earlier += waited
        reduction.start = min(reduction.start, max(reduction.start - earlier, computes[-1].end))

    def _waited(self, made: Operation) -> float:
        """Say how long a compute stood still for collectives."""
        if self.gpu.is_there:
            return self.gpu.waited(made.start, made.end)
        return measure_alone(self.running, self.busy, made.start, made.end)

    def _read_first_gather(self) -> None:
        """Read the gathering of parameters that comes before each step's first forward."""
        if any(made.op == Op.ALL_GATHER for made in self.operations) or not self.sharded:
            return
        first = {made.step: made for made in reversed(self.operations) if made.op == Op.FORWARD}
        for step, number in enumerate(self.numbers.tolist()):
            if number not in first:
                continue
            forward = first[number]
            listed = [
                e for asked, e in self._collectives(step) if e.collective == "all_gather" and asked < forward.asked
            ]
            if listed and listed[0].start < forward.start:
                start, end = listed[0].start, min(listed[0].end, forward.start)
                self.operations.append(Operation(Op.ALL_GATHER, number, start, end, start, end, seq=listed[0].seq))

    # -- evidence

    def _read_evidence(self) -> None:
        """Read what explains operations: allocator calls, collections, waits for input."""
        by_start = sorted((o for o in self.operations if o.op not in EVIDENCE), key=lambda o: o.asked)
        asked = np.array([o.asked for o in by_start])
        spans = self.found.allocations
        for start, end in zip(spans.start.tolist(), spans.end.tolist(), strict=True):
            self._explain(Op.CUDA_MALLOC, start, end, by_start, asked)
        spans = self.found.collections
        for start, end in zip(spans.start.tolist(), spans.end.tolist(), strict=True):
            if end - start < LEAST_COLLECTION_US:
                self.dropped["collections of Python", f"each took less than {LEAST_COLLECTION_US:.0f} us"] += 1
            else:
                self._explain(Op.GC, start, end, by_start, asked)
        for start, end in self._named("enumerate(Data"):
            self._read_wait_for_input(start, end, by_start, asked)

    def _explain(self, op: Op, start: float, end: float, by_start: list[Operation], asked: Any) -> None:
        """Add evidence; where it lies in an operation on the host, put it into that operation on the GPU."""
        made = self._add(op, start, end)
        at = int(np.searchsorted(asked, start, side="right")) - 1
        if made is None or at < 0 or start >= by_start[at].returned:
            return
        holds = by_start[at]
        length = min(end - start, holds.end - holds.start)
        made.start = min(max(start + holds.start - holds.asked, holds.start), holds.end - length)
        made.end = made.start + length

    def _read_wait_for_input(self, start: float, end: float, by_start: list[Operation], asked: Any) -> None:
        """Read a wait for input: what the GPU did not work through lengthens the forward that follows.

        Megatron-LM's forward-compute fetches its batch, too.
        """
        made = self._add(Op.DATA_LOAD, start, end)
        at = int(np.searchsorted(asked, end))
        if made is None or at >= len(by_start):
            return
        follows = by_start[at]
        if follows.op != Op.FORWARD or follows.step != made.step:
            return
        before = max((o.end for o in by_start[max(0, at - 8) : at]), default=-np.inf)
        exposed = max(start, before)
        if exposed >= end:
            self.operations.pop()
            self.dropped["waits for input", "the GPU had work for as long as they took"] += 1
            return
        made.start = exposed
        made.end = min(end, follows.end)
        follows.start = min(follows.start, exposed)
