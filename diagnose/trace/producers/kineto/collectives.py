"""Collectives of one rank between its computes, as the reduction of gradients, and what it waits for others within them.

Enters: what was collected of one file, and the computes of its steps. Leaves: operations, added to the others.
"""

import dataclasses
from collections.abc import Iterable

import numpy as np

from diagnose.model.groups import may_share_experts, splits_sequence
from diagnose.model.optype import DIRECTIONS, P2P, Op
from diagnose.model.trace import Seconds
from diagnose.trace.producers.kineto.collect import Collected, Exchange
from diagnose.trace.producers.kineto.computes import merge_calls
from diagnose.trace.producers.kineto.gpu import GpuTime, is_inside, merge, overlap, take_off
from diagnose.trace.producers.kineto.operations import WAIT, Operation, OperationList

#: What moves between two ranks of a pipeline, and is no collective.
TO_PEERS = frozenset({"send", "recv", "send_recv"})
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


class Collectives:
    """The collectives of one rank that may be data-parallel.

    `asked` has each with when the host asked for it; `sharded` says that parameters are gathered inside computes (FSDP),
    `parallel` that the model is wrapped for data parallelism of any kind; `expert_group` names the group that shares experts, ""
    where it has no name, None where there is none.
    """

    def __init__(self, found: Collected, gpu: GpuTime, main: int, *, is_ring: bool) -> None:
        self.gpu = gpu
        self.asked = self._list_asked(found)
        self.parallel = any(name.startswith(("FSDP::", *WRAPPERS)) for name in found.names)
        self.sharded = any(name.startswith(("FSDP::", "FullyShardedDataParallel")) for name in found.names)
        self.expert_group = _find_expert_group(found)
        self.busy = gpu.busy if gpu.is_there else _find_busy(found, main)
        self.running = [
            one
            for one in self._list_running(found)
            if is_ring or one.collective not in TO_PEERS or splits_sequence(one.description)
        ]
        self.waits = self._waits_in(self.running)
        self.reducing = self._waits_in([exchange for _, exchange in self.asked if exchange.collective in GRADIENTS])

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

    def _list_running(self, found: Collected) -> list[Exchange]:
        """List the collectives that computes may stand still for, as those of tensor-parallel layers, experts or a loss.

        These are all, but gradients that a wrapper reduces beside its backwards: hooks ask for these as a gradient is ready.
        """
        asked = self.gpu.launched if self.gpu.is_there else _pair_works(found)
        if not self.sharded:
            ready = np.array([GRADIENT_IS_READY in name for name in found.operator_names], dtype=bool)
            hooks = found.autograd.take(ready[found.autograd.key])
            called = np.array([at for at, _ in asked])
            reduces = is_inside(called, merge(hooks.start, hooks.end))
            asked = [pair for pair, is_reduction in zip(asked, reduces.tolist(), strict=True) if not is_reduction]
        return [one for _, one in asked]

    def _waits_in(self, exchanges: Iterable[Exchange]) -> tuple[Seconds, Seconds]:
        """Find when nothing but one of some collectives ran: merged spans."""
        listed = list(exchanges)
        running = merge(np.array([one.start for one in listed]), np.array([one.end for one in listed]))
        return take_off(running, self.busy)

    def _asked_in(self, start: float, end: float) -> list[tuple[float, Exchange]]:
        """List the collectives that the host asked for in one step."""
        return [(asked, exchange) for asked, exchange in self.asked if start <= asked < end]

    def add_reductions(self, made: OperationList, *, joins_waits: bool) -> None:
        """Add the part of each step's reduction of gradients that comes after its last backward.

        With `joins_waits` what a step waits between and within its computes is put before that reduction, where there is no other
        stage that it may wait for.
        """
        if any(one.op in (Op.REDUCE_SCATTER, Op.SEPARATE) for one in made.listed):
            return
        last = {one.step: one for one in made.listed if one.op == Op.BACKWARD}
        first = {one.step: one for one in reversed(made.listed) if one.op == Op.FORWARD}
        updates = {one.step: one for one in made.listed if one.op == Op.OPTIMIZER}
        has_peers = any(one.op in P2P for one in made.listed)
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
            if joins_waits and not has_peers:
                self._join_waits(made, number, made.listed[-1])

    def _join_waits(self, made: OperationList, step: int, reduction: Operation) -> None:
        """Put what a step waited for others to its end, before its gradients are reduced.

        Each layer's parameters of a sharded job are waited for by all, and so are the gradients of each microbatch where nobody
        says `no_sync`, and what layers exchange: a slow rank is the one that waits least. As one wait at the end of the step that
        is a barrier of the trace's own kind.
        """
        computes = [one for one in made.listed if one.step == step and one.op in (Op.FORWARD, Op.BACKWARD)]
        computes.sort(key=lambda one: one.start)
        start, end = (np.array([getattr(one, side) for one in computes]) for side in ("start", "end"))
        between = np.maximum(
            overlap(np.r_[start[0], end[:-1]], start, self.reducing), 0.0
        )  # those that overlap have none
        waited = overlap(start, end, self.waits)
        earlier = np.cumsum(between + np.r_[0.0, waited[:-1]])
        for compute, by, shorter in zip(computes, earlier.tolist(), waited.tolist(), strict=True):
            compute.start, compute.end = compute.start - by, compute.end - by - shorter
            compute.earlier, compute.shorter = by, shorter
        by = float(earlier[-1] + waited[-1])
        reduction.start = min(reduction.start, max(reduction.start - by, computes[-1].end))

    def add_waits(self, made: OperationList) -> None:
        """Add how long each compute stands still for the collectives of each process group, at its end.

        Of every compute, so that those of all ranks of a group can be compared; "" is the group where the trace does not name it.
        """
        computes = [one for one in made.listed if one.op in DIRECTIONS]
        earlier = np.array([one.earlier for one in computes])
        start = np.array([one.start for one in computes]) + earlier  # as they ran
        end = np.array([one.end + one.shorter for one in computes]) + earlier
        for group in sorted({one.group for one in self.running}):
            waits = self._waits_in(one for one in self.running if one.group == group)
            waited = overlap(start, end, waits)
            if not waited.any():
                continue
            last = np.searchsorted(waits[0], end) - 1
            until = np.where(waited > 0, np.minimum(waits[1][np.maximum(last, 0)], end), end) - earlier
            for compute, begins, ends in zip(computes, (until - waited).tolist(), until.tolist(), strict=True):
                made.listed.append(dataclasses.replace(compute, op=WAIT, start=begins, end=ends, group=group))

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

    Attention that is split over a sequence exchanges so, too, and layers that are, in groups whose names say so.
    """
    calls = [one for one in found.exchanges if one.collective == "all_to_all" and one.by in ("call", "kernel")]
    calls = [one for one in calls if may_share_experts(one.description)]
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
    """List works with when the host called for each and in which group; where calls are missing, as they are, with their start."""
    paired: list[tuple[float, Exchange]] = []
    by_kind: dict[str, tuple[list[Exchange], list[Exchange]]] = {}
    outer: Exchange | None = None
    for one in sorted(found.exchanges, key=lambda one: one.start):
        works, calls = by_kind.setdefault(one.collective, ([], []))
        if one.by == "work":
            works.append(one)
        elif outer is None or one.start >= outer.end:
            calls.append(one)
            outer = one
        elif one.collective == outer.collective:  # record_param_comms inside the call it belongs to
            calls[-1] = merge_calls(calls[-1], one)
    for works, calls in by_kind.values():
        if len(calls) == len(works):
            paired += [(call.start, merge_calls(work, call)) for call, work in zip(calls, works, strict=True)]
        else:
            paired += [(work.start, work) for work in works]
    return paired
