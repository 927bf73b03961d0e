"""Collectives of one rank that lie between its computes: the reduction of gradients, and the first gathering of parameters.

Enters: what was collected of one file, and the computes of its steps. Leaves: operations, added to the others.
"""

import numpy as np

from diagnose.model.optype import Op
from diagnose.trace.producers.kineto.collect import Collected, Exchange
from diagnose.trace.producers.kineto.gpu import GpuTime, measure_alone, merge
from diagnose.trace.producers.kineto.operations import Operation, OperationList

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


class Collectives:
    """The collectives of one rank that may be data-parallel.

    `asked` has each with when the host asked for it; `sharded` says that parameters are gathered inside computes (FSDP),
    `parallel` that the model is wrapped for data parallelism of any kind.
    """

    def __init__(self, found: Collected, gpu: GpuTime, main: int) -> None:
        self.gpu = gpu
        self.asked = self._list_asked(found)
        works = [exchange for exchange in found.exchanges if exchange.by == "work"]
        self.running = merge(np.array([work.start for work in works]), np.array([work.end for work in works]))
        on_main = found.operators.take(found.operators.thread == main)
        self.busy = merge(on_main.start, on_main.end)
        self.parallel = any(
            name.startswith(("FSDP::", "FullyShardedDataParallel", "DistributedDataParallel")) for name in found.names
        )
        self.sharded = any(name.startswith(("FSDP::", "FullyShardedDataParallel")) for name in found.names)

    def _list_asked(self, found: Collected) -> list[tuple[float, Exchange]]:
        """List the collectives that may be data-parallel by when the host asked for them: kernels, else works, else calls."""
        listed = self.gpu.launched
        for by in ("work", "call"):
            if not listed:
                listed = [(exchange.start, exchange) for exchange in found.exchanges if exchange.by == by]
        return [
            (asked, exchange)
            for asked, exchange in listed
            if not any(part in exchange.description for part in NOT_DATA_PARALLEL)
        ]

    def _asked_in(self, start: float, end: float) -> list[tuple[float, Exchange]]:
        """List the collectives that the host asked for in one step."""
        return [(asked, exchange) for asked, exchange in self.asked if start <= asked < end]

    def add_reductions(self, made: OperationList, *, joins_waits: bool) -> None:
        """Add the part of each step's reduction of gradients that comes after its last backward.

        With `joins_waits` a sharded job's waits inside its computes are put together before that reduction.
        """
        if any(one.op in (Op.REDUCE_SCATTER, Op.SEPARATE) for one in made.listed):
            return
        last = {one.step: one for one in made.listed if one.op == Op.BACKWARD}
        first = {one.step: one for one in reversed(made.listed) if one.op == Op.FORWARD}
        updates = {one.step: one for one in made.listed if one.op == Op.OPTIMIZER}
        for step, number in enumerate(made.numbers.tolist()):
            if number not in last or number not in first:
                continue
            backward = last[number]
            until = updates[number].asked if number in updates else float(made.ends[step])
            listed = [
                exchange
                for asked, exchange in self._asked_in(float(made.starts[step]), float(made.ends[step]))
                if exchange.collective in GRADIENTS and first[number].asked <= asked < until
            ]
            if not listed:
                continue
            scattered = [exchange for exchange in listed if exchange.collective == "reduce_scatter"]
            listed = scattered or listed
            op = Op.REDUCE_SCATTER if self.sharded else GRADIENTS[listed[-1].collective]
            start = max(backward.end, min(exchange.start for exchange in listed))
            end = max(start, *(exchange.end for exchange in listed))
            made.listed.append(
                Operation(op, number, start, end, backward.returned, max(backward.returned, end), seq=listed[-1].seq)
            )
            if self.sharded and joins_waits:
                self._join_waits(made, number, made.listed[-1])

    def _join_waits(self, made: OperationList, step: int, reduction: Operation) -> None:
        """Put what a step of a sharded job waited inside its computes to its end, before its gradients are reduced.

        Each layer's parameters are waited for by all: a slow rank is the one that waits least. As one wait at the end of the
        step that is a barrier of the trace's own kind.
        """
        computes = [one for one in made.listed if one.step == step and one.op in (Op.FORWARD, Op.BACKWARD)]
        earlier = 0.0
        for compute in computes:
            waited = self._waited(compute)
            compute.start, compute.end = compute.start - earlier, compute.end - earlier - waited
            earlier += waited
        reduction.start = min(reduction.start, max(reduction.start - earlier, computes[-1].end))

    def _waited(self, compute: Operation) -> float:
        """Say how long a compute stood still for collectives."""
        if self.gpu.is_there:
            return self.gpu.waited(compute.start, compute.end)
        return measure_alone(self.running, self.busy, compute.start, compute.end)

    def add_first_gathers(self, made: OperationList) -> None:
        """Add the gathering of parameters that comes before each step's first forward."""
        if any(one.op == Op.ALL_GATHER for one in made.listed) or not self.sharded:
            return
        first = {one.step: one for one in reversed(made.listed) if one.op == Op.FORWARD}
        for step, number in enumerate(made.numbers.tolist()):
            if number not in first:
                continue
            forward = first[number]
            listed = [
                e
                for asked, e in self._asked_in(float(made.starts[step]), float(made.ends[step]))
                if e.collective == "all_gather" and asked < forward.asked
            ]
            if listed and listed[0].start < forward.start:
                start, end = listed[0].start, min(listed[0].end, forward.start)
                made.listed.append(Operation(Op.ALL_GATHER, number, start, end, start, end, seq=listed[0].seq))
