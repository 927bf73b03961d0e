"""Hooks for Megatron-LM's schedules, by the names of its public functions.

Enters: `megatron.core.pipeline_parallel` as it runs. Leaves: computes, transfers and the reduction of gradients. Written by the
names and signatures of Megatron-Core 0.6 to 0.16; where a function has another name in some version, it is not hooked.
"""

import importlib
import sys
from typing import Any

from diagnose.model.optype import Op
from diagnose.record.clock import Mark
from diagnose.record.hooks import Hooks
from diagnose.record.log import Compute, Log, Transfer
from diagnose.record.parallel_state import ParallelState

#: Functions of `p2p_communication`, or of its `P2PCommunicator`: what they do, in this order.
TRANSFERS: dict[str, tuple[Op, ...]] = {
    "recv_forward": (Op.FORWARD_RECV,),
    "recv_backward": (Op.BACKWARD_RECV,),
    "send_forward": (Op.FORWARD_SEND,),
    "send_backward": (Op.BACKWARD_SEND,),
    "send_forward_recv_backward": (Op.FORWARD_SEND, Op.BACKWARD_RECV),
    "send_backward_recv_forward": (Op.BACKWARD_SEND, Op.FORWARD_RECV),
    "send_forward_recv_forward": (Op.FORWARD_SEND, Op.FORWARD_RECV),
    "send_backward_recv_backward": (Op.BACKWARD_SEND, Op.BACKWARD_RECV),
    "send_forward_backward_recv_forward_backward": (
        Op.FORWARD_SEND,
        Op.BACKWARD_SEND,
        Op.FORWARD_RECV,
        Op.BACKWARD_RECV,
    ),
}
#: Transfers with the stage before this one, and with the one after it.
WITH_PREVIOUS = (Op.FORWARD_RECV, Op.BACKWARD_SEND)
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


def hook_megatron(hooks: Hooks, log: Log, state: ParallelState) -> None:
    """Note what Megatron-LM's schedules do, if it has been imported."""
    if "megatron.core" not in sys.modules:
        return
    core = importlib.import_module("megatron.core")
    schedules = importlib.import_module("megatron.core.pipeline_parallel.schedules")
    p2p = importlib.import_module("megatron.core.pipeline_parallel.p2p_communication")
    megatron = _Megatron(log, state, core.parallel_state)
    hooks.around(schedules, "forward_step", log.inside, megatron.before_forward, megatron.after_compute)
    hooks.around(schedules, "backward_step", log.inside, megatron.before_backward, megatron.after_compute)
    for owner in (p2p, getattr(p2p, "P2PCommunicator", None)):
        for name, ops in TRANSFERS.items():
            if owner is not None and name in vars(owner):
                hooks.around(owner, name, log.inside, megatron.before_transfer(ops), megatron.after_transfer)
    distributed = importlib.import_module("megatron.core.distributed")
    # Schedules call it through `config.finalize_model_grads_func`, which training sets from this module after this is run.
    hooks.around(distributed, "finalize_model_grads", log.inside, megatron.before_reduction, megatron.after_reduction)


class _Megatron:
    """What the hooks share."""

    def __init__(self, log: Log, state: ParallelState, parallel_state: Any) -> None:
        self.log = log
        self.state = state
        self.parallel_state = parallel_state
        self.is_placed = False

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
        return True

    def _begin(self, op: Op) -> Compute | None:
        """Begin a compute; with several chunks a rank its number in the step does not tell the microbatch."""
        if not self._enter() or self.log.step is None:
            return None
        if self.state.vpp > 1:
            return self.log.begin(op, -1, -1)
        number = sum(compute.op == op for compute in self.log.step.computes)
        return self.log.begin(op, number, self.state.stage)

    def before_forward(self, *_args: Any, **_kwargs: Any) -> Compute | None:
        return self._begin(Op.FORWARD)

    def before_backward(self, *_args: Any, **_kwargs: Any) -> Compute | None:
        return self._begin(Op.BACKWARD)

    def after_compute(self, compute: Compute | None, _result: Any) -> None:
        if compute is not None:
            self.log.end(compute)

    def before_transfer(self, ops: tuple[Op, ...]) -> Any:
        def before(*_args: Any, **_kwargs: Any) -> Transfer | None:
            if self.log.in_transfer or not self._enter():
                return None  # a list of shapes is sent one by one through functions of the same name
            at_ends = self.state.vpp == 1
            members = [(op, -1, -1) for op in ops if not (at_ends and self._has_no_peer(op))]
            if not members:
                return None
            self.log.in_transfer = True
            return Transfer(members, self.log.clock.now(), self.log.n_computes)

        return before

    def _has_no_peer(self, op: Op) -> bool:
        """True for transfers beyond the ends of the pipeline, which return at once."""
        return self.state.stage == (0 if op in WITH_PREVIOUS else self.state.pp_size - 1)

    def after_transfer(self, transfer: Transfer | None, _result: Any) -> None:
        if transfer is None or self.log.step is None:
            return
        self.log.in_transfer = False
        self.log.launch(transfer)

    def before_reduction(self, *_args: Any, **_kwargs: Any) -> Mark | None:
        if not self._enter():
            return None
        self.log.in_transfer = True  # the collectives within are noted here as one
        return self.log.clock.now()

    def after_reduction(self, start: Mark | None, _result: Any) -> None:
        if start is None or self.log.step is None:
            return
        self.log.in_transfer = False
        self.log.note_reduction(start, self.log.clock.now())
