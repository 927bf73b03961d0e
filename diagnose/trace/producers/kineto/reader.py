"""Make operations of the events of one rank: what its annotations name, else what its operators show.

Enters: what was collected of one file. Leaves: operations by step, timed by the GPU where there is one, and
what explains them.
"""

from collections import Counter

import numpy as np

from diagnose.model.optype import DIRECTIONS, EVIDENCE, RECV_OF, SEND_OF, Op
from diagnose.model.trace import Seconds
from diagnose.trace.producers.kineto.annotations import Dialect, NamedOperation, is_fetch, parse_annotation, parse_step
from diagnose.trace.producers.kineto.collect import Collected, Exchange, Spans, list_steps
from diagnose.trace.producers.kineto.collectives import WRAPPERS, Collectives
from diagnose.trace.producers.kineto.computes import (
    HostOperators,
    Run,
    find_evaluations,
    find_main_thread,
    find_runs,
    list_operators,
)
from diagnose.trace.producers.kineto.evidence import add_evidence, add_host_gaps
from diagnose.trace.producers.kineto.gpu import GpuTime, is_inside, merge
from diagnose.trace.producers.kineto.host_time import measure_host_time
from diagnose.trace.producers.kineto.operations import Operation, OperationList
from diagnose.trace.producers.kineto.steps import Computes, Steps, cut_steps

#: Of so many operations found last, one is what a compute received: its schedule receives just before it computes.
N_RECENT = 64


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

    `made` holds them after `read`, with evidence, in no order. `dialect` says whose names, or what, told the computes;
    `steps_named` that annotations number the steps; `n_on_host` how many computes the host timed though there is a GPU.
    """

    def __init__(self, found: Collected, *, in_pipeline: bool) -> None:
        self.found = found
        self.gpu = GpuTime(found)
        numbers, starts, ends, main = list_steps(found)
        self.main = main = main if len(numbers) else find_main_thread(found)
        self.operators: HostOperators = list_operators(found, main, may_be_ring=not in_pipeline)
        works = [exchange for exchange in found.exchanges if exchange.by == "work"]
        self.works = _Ordered([work for work in works if work.thread == main])
        self.calls = _Ordered(list(self.operators.calls))
        self.outer = self._list_annotations()
        self.free = np.sort(np.concatenate([self.outer.end, np.array([exchange.end for exchange in found.exchanges])]))
        self.collectives = Collectives(found, self.gpu, main, is_ring=self.operators.is_ring)
        self.n_on_host = 0
        self.phases: Counter[tuple[int, int]] = Counter()
        self.named = self._list_named()
        self.dialect: str = self._choose_dialect([entry for entry, *_ in self.named])
        self.runs: list[Run] = []
        self.steps = self._cut_steps(Steps(numbers, starts, ends))
        self.made = OperationList(self.steps.numbers, self.steps.starts, self.steps.ends)
        fetches = found.annotations.take(
            np.array([is_fetch(name) for name in found.names], bool)[found.annotations.key]
        )
        self.fetches = merge(fetches.start, fetches.end)  # a trainer's own names lie around those of PyTorch
        wraps = np.array([name.startswith(WRAPPERS) and name.endswith(".forward") for name in found.names], dtype=bool)
        wrapped = self.outer.take(wraps[self.outer.key])
        self.wrappers = merge(wrapped.start, wrapped.end)
        self.host_time = measure_host_time(found, self.fetches)

    def read(self) -> None:
        """Read operations, then what explains them."""
        waits = self.fetches
        if self.dialect == "runs":
            waits = self._read_evaluations()
            for step in range(len(self.made.numbers)):
                self._read_runs(step)
        else:
            for entry, start, end, name, nth in self.named:
                if entry.dialect == self.dialect or (entry.dialect == "own" and entry.op in EVIDENCE):
                    self._read_named(entry, start, end, name, nth)
        if self.dialect != "own":
            for entry, start, end, *_ in self.named if self.dialect == "runs" else ():
                if entry.op in EVIDENCE:
                    self.made.add(entry.op, start, end)
            self._read_optimizers()
            self.collectives.add_reductions(self.made, joins_waits=self.dialect in ("runs", "phases"))
            self.collectives.add_first_gathers(self.made)
        add_evidence(self.found, self.gpu, list(zip(waits[0].tolist(), waits[1].tolist(), strict=True)), self.made)
        if len(self.fetches[0]):
            add_host_gaps(self.host_time.gaps, self.made)
        if self.dialect != "own":
            # After what explains computes, which is not to be put into their waits.
            self.collectives.add_waits(self.made)

    def _cut_steps(self, marked: Steps) -> Steps:
        """Cut the time of this rank into steps, by its computes where marks do not."""
        if self.dialect == "runs":
            self.runs = runs = find_runs(self.operators)
            start = np.array([run.start for run in runs])
            end = np.array([run.end for run in runs])
            forward = np.array([run.forward for run in runs], dtype=bool)
            n_operators = [
                np.searchsorted(of, end, side="right") - np.searchsorted(of, start)
                for of in (self.operators.forward[0], self.found.autograd.start)
            ]
            computes = Computes(start, end, forward, np.where(forward, *n_operators))
        elif len(marked.numbers):
            return marked
        else:
            spans = [(a, b, e.op) for e, a, b, *_ in self.named if e.dialect == self.dialect]
            of = [(a, b, op == Op.FORWARD) for a, b, op in spans if op in (Op.FORWARD, Op.BACKWARD)]
            columns = np.array(of, dtype=np.float64).reshape(len(of), 3).T
            computes = Computes(columns[0], columns[1], columns[2] > 0, np.ones(len(of), dtype=np.int64))
        cycles = self.dialect in ("runs", "phases") and not self.operators.calls
        return cut_steps(marked, computes, self.operators.updates, np.array(self.operators.apart), cycles=cycles)

    # -- annotations

    def _list_named(self) -> list[tuple[NamedOperation, float, float, int, int]]:
        """List the annotations that name operations: what, start, end, number of the name, and how often it came before."""
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
        """Choose whose names mark the forwards and backwards."""
        for dialect in ("own", "staged", "unstaged", "phases"):
            ops = Counter(entry.op for entry in named if entry.dialect == dialect)
            # A "forward" of the job's own code may also be that of an evaluation, or of a part of the model.
            alike = dialect != "phases" or ops[Op.FORWARD] == ops[Op.BACKWARD]
            if ops[Op.FORWARD] and ops[Op.BACKWARD] and alike:
                return dialect
        return "runs"

    def _read_named(self, entry: NamedOperation, start: float, end: float, name: int, nth: int) -> None:
        """Read one annotated operation."""
        op = entry.op
        if op is None:
            self.made.dropped[entry.what, "has no place in the trace format"] += 1
            return
        if entry.with_other:
            start, end = self._part_of(op, start, end)
            nth = -1  # the annotation of the GPU has both
        made = self.made.add(op, start, end)
        if made is None:
            return
        made.stage = -1 if entry.stage is None else entry.stage
        compute = entry.op in DIRECTIONS
        if entry.microbatch is not None and (compute or entry.dialect != "own"):
            made.microbatch = entry.microbatch
        made.chunk = -1 if entry.chunk is None else entry.chunk
        if compute or op in (Op.OPTIMIZER, Op.CLIP):
            if entry.dialect == "phases":
                made.microbatch = self.phases[made.step, made.op]
                self.phases[made.step, made.op] += 1
                self._cut_reduction(made)
            self._time_on_gpu(made, name, nth)
            if compute and op != Op.WEIGHT and not self.gpu.is_there and entry.dialect in ("staged", "unstaged"):
                self._cut_waits(made, entry.dialect)
            if entry.dialect == "unstaged":
                self._read_inner_exchanges(made, start, end)
        elif op not in EVIDENCE:
            moved = self._time_exchange(made)
            if not moved and entry.dialect == "staged":
                self.made.listed.pop()
                self.made.dropped[f"{entry.what} without communication", "nothing is moved"] += 1

    def _part_of(self, op: int, start: float, end: float) -> tuple[float, float]:
        """Give the forward's, or the backward's, part of an annotation over both: the backward's lies around its operators."""
        starts, ends = self.operators.backward
        first, last = np.searchsorted(starts, (start, end))
        if first == last:
            return start, end
        begun, ended = float(starts[first]), min(float(ends[last - 1]), end)
        is_first = begun - start < end - ended
        if op == Op.BACKWARD:
            return (start, ended) if is_first else (begun, end)
        return (ended, end) if is_first else (start, begun)

    def _cut_reduction(self, made: Operation) -> None:
        """Let a backward end with its last operator: then it may stand waiting for its gradients to be reduced."""
        starts, ends = self.operators.backward
        at = int(np.searchsorted(starts, made.returned)) - 1
        if made.op == Op.BACKWARD and at >= 0 and starts[at] >= made.asked:
            made.returned = made.end = min(made.end, float(ends[at]))

    def _time_on_gpu(self, made: Operation, name: int = -1, nth: int = -1) -> None:
        """Take the time of the GPU for an operation, where it is known."""
        if not self.gpu.is_there:
            return
        ran = self.gpu.of(made.asked, made.returned, name, nth)
        if ran is not None:
            made.start, made.end = ran
        elif made.op in DIRECTIONS:
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
                for o in self.made.listed[-N_RECENT:]
                if o.stage == made.stage and o.microbatch == made.microbatch and o.op == RECV_OF[Op(made.op)]
            ]
        sent = [e.start for e in own if e.collective == "send"]
        sent += [call.start for call in self.calls.between(made.asked, made.returned) if call.collective == "send"]
        made.start = min(max([made.start, *received]), made.end)
        made.end = max(min([made.end, *sent]), made.start)

    def _read_inner_exchanges(self, made: Operation, start: float, end: float) -> None:
        """Read what is received and sent inside the annotation of a compute."""
        for call in self.calls.between(start, end):
            table = RECV_OF if call.collective == "recv" else SEND_OF
            exchange = self.made.add(table[Op(made.op)], call.start, call.end)
            if exchange is not None:
                exchange.microbatch = made.microbatch
                self._time_exchange(exchange)

    # -- what operators show

    def _read_evaluations(self) -> tuple[Seconds, Seconds]:
        """Read what is an evaluation, and give the waits for input that are of none."""
        found = find_evaluations(self.operators, self.fetches, self.runs, self.outer)
        for start, end in zip(found[0].tolist(), found[1].tolist(), strict=True):
            made = self.made.add(Op.EVAL, start, end)
            if made is not None:
                self._time_on_gpu(made)
        self.free = np.sort(np.r_[self.free, found[1]])
        own = ~is_inside(self.fetches[0], found)
        return self.fetches[0][own], self.fetches[1][own]

    def _read_runs(self, step: int) -> None:
        """Read forwards and backwards of one step, and what was received and sent between them."""
        start, end = float(self.made.starts[step]), float(self.made.ends[step])
        runs = find_runs(self.operators, start, end)
        run_starts = np.array([run.start for run in runs])
        counts: Counter[Op] = Counter()
        at_run: list[int] = []
        for run in runs:
            op = Op.FORWARD if run.forward else Op.BACKWARD
            made = Operation(
                op, int(self.made.numbers[step]), run.start, run.end, run.start, run.end, microbatch=counts[op]
            )
            counts[op] += 1
            at_run.append(made.microbatch)
            self.made.listed.append(made)
            if run.forward:
                made.asked = self._wrapped_since(run)
            self._time_on_gpu(made)
            if run.forward:
                free = self._free_since(run, start)
                # What nothing trains, as layers that are frozen, no backward comes back to.
                before = self.gpu.back_to_back(free, made.asked, made.start) if self.gpu.is_there else free
                made.start = min(before, made.start)
        for call in self.calls.between(start, end):
            after = int(np.searchsorted(run_starts, call.start))
            self._read_call(call, (runs, after), at_run, int(self.made.numbers[step]))

    def _wrapped_since(self, run: Run) -> float:
        """Say when the wrapper for data parallelism began this forward: it sends buffers around before."""
        at = int(np.searchsorted(self.wrappers[0], run.start, side="right")) - 1
        return float(self.wrappers[0][at]) if at >= 0 and run.start < self.wrappers[1][at] else run.start

    def _free_since(self, run: Run, start: float) -> float:
        """Say since when the host was free to run this forward, as far as the trace shows."""
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
            self.made.dropped["sends and receives beside every compute", "no forward or backward goes with them"] += 1
            return
        op = Op.FORWARD if runs[at].forward else Op.BACKWARD
        table = RECV_OF if call.collective == "recv" else SEND_OF
        made = Operation(table[op], step, call.start, call.end, call.start, call.end, microbatch=microbatches[at])
        self.made.listed.append(made)
        until = runs[after].start if after < len(runs) else float(self.made.ends[self.made.step_at(call.start)])
        kernels = self.gpu.communication(call.start, max(until, call.end))[:1]
        if kernels:
            made.start, made.end = kernels[0].start, kernels[0].end
            return
        works = [w for w in self.works.between(call.start, max(until, call.end)) if w.collective == call.collective]
        if works:
            made.end = max(made.end, works[0].end)

    def _read_optimizers(self) -> None:
        """Read the update of each step: the last ones, those that no backward follows."""
        last = {one.step: one for one in self.made.listed if one.op == Op.BACKWARD}
        for step, number in enumerate(self.made.numbers.tolist()):
            start, end = float(self.made.starts[step]), float(self.made.ends[step])
            after = last[number].asked if number in last else start
            spans = self.operators.updates
            if not len(spans[0]) and self.dialect == "runs" and number in last:
                spans, after = (
                    self.operators.other,
                    last[number].returned,
                )  # done by hand: what follows the last backward
            first, behind = np.searchsorted(spans[0], (max(start, after), end))
            if behind > first:
                begun, ended = float(spans[0][first]), float(spans[1][behind - 1])
                made = Operation(Op.OPTIMIZER, number, begun, ended, begun, ended)
                self.made.listed.append(made)
                self._time_on_gpu(made)
