"""Collectives of one rank that lie between its computes: the reduction of gradients, and the first gathering of parameters.

Enters: what was collected of one file, and the computes of its steps. Leaves: operations, added to the others.
"""

import numpy as np

from diagnose.model.optype import P2P, Op
from diagnose.model.trace import Seconds
from diagnose.trace.producers.kineto.collect import Collected, Exchange
from diagnose.trace.producers.kineto.gpu import GpuTime, is_inside, measure_alone, merge
from diagnose.trace.producers.kineto.operations import Operation, OperationList

#: How annotations of models that are wrapped for data parallelism begin.
WRAPPERS = ("DistributedDataParallel", "FullyShardedDataParallel")
#: Parts of the names of operators that wait for a collective, and of one in whose hooks a gradient is ready.
WAITS, GRADIENT_IS_READY = "c10d", "AccumulateGrad"
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
#: ... and groups over which sequences are split.
SPLITS_SEQUENCES = ("CONTEXT", "SEQUENCE", "mesh_cp", "mesh_sp", "ulysses")


class Collectives:
    """The collectives of one rank that may be data-parallel.

    `asked` has each with when the host asked for it; `sharded` says that parameters are gathered inside computes (FSDP),
    `parallel` that the model is wrapped for data parallelism of any kind; `expert_group` names the group that shares experts, ""
    where it has no name, None where there is none.
    """

    def __init__(self, found: Collected, gpu: GpuTime, main: int) -> None:
        self.gpu = gpu
        self.asked = self._list_asked(found)
        reductions = [exchange for _, exchange in self.asked if exchange.collective in GRADIENTS]
        self.reducing = merge(np.array([one.start for one in reductions]), np.array([one.end for one in reductions]))
        self.parallel = any(name.startswith(("FSDP::", *WRAPPERS)) for name in found.names)
        self.sharded = any(name.startswith(("FSDP::", "FullyShardedDataParallel")) for name in found.names)
        self.expert_group = _find_expert_group(found)
        self.busy = gpu.busy if gpu.is_there else _find_busy(found, main)
        self.running = self._find_running(found)

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

    def _find_running(self, found: Collected) -> tuple[Seconds, Seconds]:
        """Find when collectives ran that computes may stand still for, as those of tensor-parallel layers, experts or a loss.

        These are all, but gradients that a wrapper reduces beside its backwards: hooks ask for these as a gradient is ready.
        """
        asked = self.gpu.launched if self.gpu.is_there else _pair_works(found)
        if not self.sharded:
            ready = np.array([GRADIENT_IS_READY in name for name in found.operator_names], dtype=bool)
            hooks = found.autograd.take(ready[found.autograd.key])
            called = np.array([at for at, _ in asked])
            reduces = is_inside(called, merge(hooks.start, hooks.end))
            asked = [pair for pair, is_reduction in zip(asked, reduces.tolist(), strict=True) if not is_reduction]
        return merge(np.array([one.start for _, one in asked]), np.array([one.end for _, one in asked]))

    def _asked_in(self, start: float, end: float) -> list[tuple[float, Exchange]]:
        """List the collectives that the host asked for in one step."""
        return [(asked, exchange) for asked, exchange in self.asked if start <= asked < end]

    def add_reductions(self, made: OperationList, *, joins_waits: bool) -> None:
        """Add the part of each step's reduction of gradients that comes after its last backward.

        With `joins_waits` what a step waits between its computes, and a sharded job inside of them, is put before that reduction.
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
            if joins_waits:
                self._join_waits(made, number, made.listed[-1])

    def _join_waits(self, made: OperationList, step: int, reduction: Operation) -> None:
        """Put what a step waited for others to its end, before its gradients are reduced.

        Each layer's parameters of a sharded job are waited for by all, and so are the gradients of each microbatch where nobody
        says `no_sync`, and what layers exchange: a slow rank is the one that waits least. As one wait at the end of the step that
        is a barrier of the trace's own kind.
        """
        listed = [one for one in made.listed if one.step == step]
        computes = sorted((one for one in listed if one.op in (Op.FORWARD, Op.BACKWARD)), key=lambda one: one.start)
        alone = not any(
            one.op in P2P for one in listed
        )  # else the gap before a compute may be a wait for another stage
        before, earlier = computes[0].start, 0.0
        for compute in computes:
            between = self._waited_between(before, compute.start) if alone else 0.0
            waited = self._waited(compute) if self.sharded or alone else 0.0
            before, earlier = compute.end, earlier + between
            compute.start, compute.end = compute.start - earlier, compute.end - earlier - waited
            compute.earlier = earlier
            earlier += waited
        reduction.start = min(reduction.start, max(reduction.start - earlier, computes[-1].end))

    def _waited_between(self, start: float, end: float) -> float:
        """Say how long nothing but the reduction of gradients ran between two computes."""
        return measure_alone(self.reducing, self.busy, start, end)

    def _waited(self, compute: Operation) -> float:
        """Say how long a compute stood still for collectives."""
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


def _find_expert_group(found: Collected) -> str | None:
    """Name the group whose ranks send tokens to experts and take them back, all to all.

    Attention that is split over a sequence exchanges so, too, in a group whose name says so.
    """
    calls = [one for one in found.exchanges if one.collective == "all_to_all" and one.by in ("call", "kernel")]
    calls = [one for one in calls if not any(part in one.description for part in SPLITS_SEQUENCES)]
    return calls[0].group if calls else None


def _find_busy(found: Collected, main: int) -> tuple[Seconds, Seconds]:
    """Find when the main thread computed: its operators but calls of collectives, waits for them, and what holds these."""
    on_main = found.operators.take(found.operators.thread == main)
    waits = np.array([WAITS in name for name in found.operator_names], dtype=bool)[on_main.key]
    calls = [one.start for one in found.exchanges if one.by == "call" and one.thread == main]
    at = np.sort(np.concatenate([on_main.start[waits], np.array(calls)]))
    computing = on_main.take(np.searchsorted(at, on_main.end) == np.searchsorted(at, on_main.start))
    return merge(computing.start, computing.end)


def _pair_works(found: Collected) -> list[tuple[float, Exchange]]:
    """List works with when the host called for each, in their order; where calls are missing, with their own start."""
    paired: list[tuple[float, Exchange]] = []
    by_kind: dict[str, tuple[list[Exchange], list[float]]] = {}
    until = -np.inf
    for one in sorted(found.exchanges, key=lambda one: one.start):
        works, calls = by_kind.setdefault(one.collective, ([], []))
        if one.by == "work":
            works.append(one)
        elif one.start >= until:  # else record_param_comms inside the call it belongs to
            calls.append(one.start)
            until = one.end
    for works, calls in by_kind.values():
        starts = calls if len(calls) == len(works) else [work.start for work in works]
        paired += zip(starts, works, strict=True)
    return paired
