"""Hooks for Megatron-LM, by the names of Megatron-Core's classes and functions.

Enters: its schedules, DDP, optimizers and saving as they run. Leaves: computes, transfers, the reduction and clipping of gradients,
the end of each step. What scripts import by name is hooked where no import evades it: in classes, and in functions that schedules
look up when they call them. Written by the names and signatures of Megatron-Core 0.6 to 0.16; where a function has another name in
some version, it is not hooked.
"""

import importlib
from typing import Any

from diagnose.model.optype import Op
from diagnose.record.clock import Mark
from diagnose.record.data_parallel import Clipping
from diagnose.record.hooks import Hooks
from diagnose.record.log import Compute, Log, StepLog, Transfer
from diagnose.record.parallel_state import ParallelState
from diagnose.record.steps import Steps

#: Imported by every job that trains with Megatron-Core.
MODULE = "megatron.core.pipeline_parallel.schedules"

#: Functions of `p2p_communication`, or of its `P2PCommunicator`, that schedules call: each is one transfer, or several at once.
CALLS = (
    "recv_forward",
    "recv_backward",
    "send_forward",
    "send_backward",
    "send_forward_recv_backward",
    "send_backward_recv_forward",
    "send_forward_recv_forward",
    "send_backward_recv_backward",
    "send_forward_backward_recv_forward_backward",
)
#: What `_communicate`, which all of these call, is asked to do: its arguments, and the keys of the works that it gives.
DIRECTIONS = {
    "tensor_send_next": ("send_next", Op.FORWARD_SEND),
    "tensor_send_prev": ("send_prev", Op.BACKWARD_SEND),
    "recv_prev": ("recv_prev", Op.FORWARD_RECV),
    "recv_next": ("recv_next", Op.BACKWARD_RECV),
}
#: Fields of `ParallelState`, and the functions of `parallel_state` that know them.
PLACES = {
    "dp": "get_data_parallel_rank",
    "dp_size": "get_data_parallel_world_size",
    "stage": "get_pipeline_model_parallel_rank",
    "pp_size": "get_pipeline_model_parallel_world_size",
    "tp": "get_tensor_model_parallel_rank",
    "tp_size": "get_tensor_model_parallel_world_size",
    "cp": "get_context_parallel_rank",
    "cp_size": "get_context_parallel_world_size",
    "vpp": "get_virtual_pipeline_model_parallel_world_size",
}


def hook_megatron(hooks: Hooks, log: Log, state: ParallelState, steps: Steps) -> None:
    """Note what Megatron-LM does; to be called once it has been imported."""
    core = importlib.import_module("megatron.core")
    schedules = importlib.import_module(MODULE)
    p2p = importlib.import_module("megatron.core.pipeline_parallel.p2p_communication")
    megatron = _Megatron(log, state, core.parallel_state)

    def around(owner: Any, name: str, before: Any, after: Any) -> None:
        hooks.around(owner, name, log.inside, before, after)
        hooks.around(owner, name, log.between, steps.work_begins)
        hooks.around(owner, name, log.beside, log.before_evaluating, log.after_evaluating)

    around(schedules, "forward_step", megatron.before_forward, megatron.after_forward)
    hooks.around(schedules, "backward_step", log.inside, megatron.before_backward, log.end)
    for owner in (p2p, getattr(p2p, "P2PCommunicator", None)):
        if owner is None:
            continue
        for name in CALLS:
            if name in vars(owner):
                around(owner, name, megatron.before_call, megatron.after_call)
        hooks.around(owner, "_communicate", log.inside, megatron.before_communication, megatron.after_communication)
    # Not `finalize_model_grads`, which calls it: that is a function which scripts import by name.
    replica = importlib.import_module("megatron.core.distributed").DistributedDataParallel
    hooks.around(replica, "finish_grad_sync", log.inside, megatron.before_reduction, log.end_reduction)
    _hook_optimizers(hooks, log, steps)


def _hook_optimizers(hooks: Hooks, log: Log, steps: Steps) -> None:
    """Note the norm of gradients, which all stages take together, and where the step ends, be it skipped for an overflow or not."""
    optimizer = importlib.import_module("megatron.core.optimizer.optimizer")
    clipping = Clipping(log)
    for owner in vars(optimizer).values():
        if not (isinstance(owner, type) and issubclass(owner, optimizer.MegatronOptimizer)):
            continue
        for name in ("get_grad_norm", "clip_grad_norm"):
            if name in vars(owner):
                hooks.around(owner, name, log.inside, clipping.before, clipping.after)
        if "step" in vars(owner):
            steps.follow_update(hooks, owner, "step")


class _Megatron:
    """What the hooks share."""

    def __init__(self, log: Log, state: ParallelState, parallel_state: Any) -> None:
        self.log = log
        self.state = state
        self.parallel_state = parallel_state
        self.is_placed = False
        #: Model chunk and microbatch that a forward's output is of, by its `id`; the schedule keeps it until its backward.
        self.outputs: dict[int, tuple[int, int]] = {}
        self.step: StepLog | None = None
        #: What is communicated at once.
        self.batch: Transfer | None = None

    def _enter(self) -> bool:
        """Say whether this is training, and find out which worker this is before the first operation."""
        import torch

        if not self.is_placed and not self.state.is_said:
            for field, name in PLACES.items():
                ask = getattr(self.parallel_state, name, None)
                found = ask() if ask is not None else None
                if found is not None:
                    setattr(self.state, field, found)
        self.is_placed = True
        if not torch.is_grad_enabled() or self.log.step is None:
            return False
        self.log.driver = "megatron"
        self.state.schedule = "interleaved" if self.state.vpp > 1 else "1f1b"
        if self.step is not self.log.step:
            self.step = self.log.step
            self.outputs.clear()
            self.batch = None  # what an exception left behind
        return True

    def _begin(self, op: Op, chunk: int, microbatch: int) -> Compute:
        return self.log.begin(op, microbatch, chunk * self.state.pp_size + self.state.stage)

    def before_forward(self, *_args: Any, vp_stage: int | None = None, **_kwargs: Any) -> Compute | None:
        """Begin a forward; those of a model chunk follow each other by microbatch."""
        if not self._enter() or self.log.step is None:
            return None
        if vp_stage is None and self.state.vpp > 1:
            vp_stage = self.parallel_state.get_virtual_pipeline_model_parallel_rank()  # as before Megatron-Core 0.13
        chunk = vp_stage or 0
        virtual = chunk * self.state.pp_size + self.state.stage
        return self._begin(
            Op.FORWARD, chunk, sum(c.op == Op.FORWARD and c.virtual == virtual for c in self.log.step.computes)
        )

    def after_forward(self, compute: Compute | None, result: Any) -> None:
        """End a forward, and keep in mind of which microbatch its output is."""
        if compute is None:
            return
        self.log.end(compute)
        chunk = (compute.virtual - self.state.stage) // self.state.pp_size
        for tensor in _tensors(result[0] if isinstance(result, tuple) else result):
            self.outputs[id(tensor)] = chunk, compute.microbatch

    def before_backward(self, _input_tensor: Any, output_tensor: Any, *_args: Any, **_kwargs: Any) -> Compute | None:
        """Begin a backward: of the microbatch whose output it is given."""
        if not self._enter() or self.log.step is None:
            return None
        known = [self.outputs.pop(id(tensor)) for tensor in _tensors(output_tensor) if id(tensor) in self.outputs]
        if not known:
            return self.log.begin(Op.BACKWARD, -1, -1)  # then its place in the order must tell
        return self._begin(Op.BACKWARD, *known[0])

    def before_call(self, *_args: Any, **_kwargs: Any) -> Transfer | None:
        """Take together what one call of a schedule communicates, be it in several parts."""
        if not self._enter() or self.batch is not None:
            return None
        self.batch = Transfer([], self.log.begin_one(), self.log.n_computes)
        return self.batch

    def after_call(self, transfer: Transfer | None, _result: Any) -> None:
        """Note what was waited for within the call; what is waited for later has been noted already."""
        if transfer is None:
            return
        self.batch = None
        self.log.reopen()
        if transfer.members:
            self.log.launch(transfer)

    def before_communication(self, *_args: Any, **kwargs: Any) -> list[tuple[str, Op]] | None:
        """See what is sent and received: nothing beyond the ends of the pipeline, and not always both."""
        if self.batch is None:
            return None
        return [to for name, to in DIRECTIONS.items() if kwargs.get(name) is not None and kwargs[name] is not False]

    def after_communication(self, asked: list[tuple[str, Op]] | None, result: Any) -> None:
        """Note works that are left to be waited for as transfers of their own; the call has waited for the others."""
        if not asked or self.batch is None:
            return
        works = result[-1] if isinstance(result, tuple) else None
        if isinstance(works, dict):
            for name, op in asked:
                self._launch([op], works.get(name))
        elif works:
            self._launch([op for _, op in asked], works)
        else:
            members = [(op, -1, -1) for _, op in asked]
            self.batch.members += [member for member in members if member not in self.batch.members]

    def _launch(self, ops: list[Op], works: Any) -> None:
        """Note a transfer that is waited for later."""
        assert self.batch is not None
        members = [(op, -1, -1) for op in ops]
        self.log.launch(Transfer(members, self.batch.posted, self.batch.posted_at), works)

    def before_reduction(self, *_args: Any, **_kwargs: Any) -> Mark | None:
        if not self._enter():
            return None
        return self.log.begin_one()  # the collectives within


def _tensors(found: Any) -> list[Any]:
    """List the tensors that a schedule passes on: one, or a list of them."""
    return list(found) if isinstance(found, (list, tuple)) else [found]
