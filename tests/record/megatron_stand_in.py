"""Modules by the names of Megatron-Core's, with its public functions and their signatures, that sleep instead of training.

For tests without Megatron-Core, and for its versions whose transfers are functions of a module; `test_megatron_core.py` has the
real one.
"""

import sys
import time
import types

STAGE, N_STAGES = 1, 3
TRANSFER_S, FORWARD_S = 0.002, 0.005


def install(monkeypatch, *, as_class):
    """Put the stand-in among the imported modules; `as_class`: transfers are methods of `P2PCommunicator`, as since 0.14."""
    names = ("megatron", "megatron.core", "megatron.core.parallel_state", "megatron.core.distributed")
    names += ("megatron.core.optimizer", "megatron.core.optimizer.optimizer")
    p2p_name = "megatron.core.pipeline_parallel.p2p_communication"
    schedules_name = "megatron.core.pipeline_parallel.schedules"
    modules = {
        name: types.ModuleType(name) for name in (*names, "megatron.core.pipeline_parallel", p2p_name, schedules_name)
    }
    for name, module in modules.items():
        monkeypatch.setitem(sys.modules, name, module)
    modules["megatron.core"].parallel_state = modules["megatron.core.parallel_state"]
    _fill_parallel_state(modules["megatron.core.parallel_state"])
    p2p = modules[p2p_name]
    transfers = _transfers(lambda: p2p.P2PCommunicator() if as_class else p2p)
    if as_class:
        methods = {name: _as_method(function) for name, function in transfers.items()}
        methods["_communicate"] = lambda _self, **asked: transfers["_communicate"](**asked)
        p2p.P2PCommunicator = type("P2PCommunicator", (), methods)
    else:
        vars(modules[p2p_name]).update(transfers)

    class DistributedDataParallel:
        def finish_grad_sync(self):
            time.sleep(TRANSFER_S)

    modules["megatron.core.distributed"].DistributedDataParallel = DistributedDataParallel
    vars(modules["megatron.core.optimizer.optimizer"]).update(
        MegatronOptimizer=MegatronOptimizer, ChainedOptimizer=ChainedOptimizer
    )
    return _fill_schedules(modules[schedules_name], modules[p2p_name], DistributedDataParallel())


class MegatronOptimizer:
    """The base of its optimizers."""

    def get_grad_norm(self):
        """Wait for the other stages."""
        time.sleep(TRANSFER_S)


class ChainedOptimizer(MegatronOptimizer):
    """Several optimizers in one; here one of torch, which is run so often."""

    def __init__(self, inner):
        self.inner = inner

    def step(self, n_runs):
        """Take the norm, and update."""
        self.get_grad_norm()
        for _ in range(n_runs):
            self.inner.step()


def _fill_parallel_state(module):
    """Say that this is stage 1 of 3 of the second of two replicas."""
    module.get_data_parallel_rank = lambda **_kwargs: 1
    module.get_data_parallel_world_size = lambda **_kwargs: 2
    module.get_pipeline_model_parallel_rank = lambda: STAGE
    module.get_pipeline_model_parallel_world_size = lambda: N_STAGES
    module.get_tensor_model_parallel_rank = lambda: 0
    module.get_tensor_model_parallel_world_size = lambda: 1
    module.get_context_parallel_rank = lambda: 0
    module.get_context_parallel_world_size = lambda: 1
    module.get_virtual_pipeline_model_parallel_world_size = lambda: None


def _transfers(owner):
    """Make the functions of `p2p_communication`, which all call its `_communicate` through `owner()`."""

    def _communicate(*, tensor_send_next, tensor_send_prev, recv_prev, recv_next):
        time.sleep(TRANSFER_S)
        return None, None, None

    def communicate(*asked):
        names = ("tensor_send_next", "tensor_send_prev", "recv_prev", "recv_next")
        sends = {name: "a tensor" if name in asked else None for name in names[:2]}
        owner()._communicate(**sends, **{name: name in asked for name in names[2:]})

    def recv_forward(tensor_shape, config):
        communicate("recv_prev")

    def recv_backward(tensor_shape, config):
        communicate("recv_next")

    def send_forward(output_tensor, config):
        communicate("tensor_send_next")

    def send_backward(input_tensor_grad, config):
        communicate("tensor_send_prev")

    def send_forward_recv_backward(output_tensor, tensor_shape, config):
        communicate("tensor_send_next", "recv_next")

    def send_backward_recv_forward(input_tensor_grad, tensor_shape, config):
        communicate("tensor_send_prev", "recv_prev")

    return {name: function for name, function in locals().items() if name.endswith(("ward", "_communicate"))}


def _as_method(function):
    """Give a function of the module the signature of a method."""
    return lambda _self, *args: function(*args, None)


def _fill_schedules(schedules, p2p, replica):
    """Make `schedules`, and give its 1F1B."""

    def forward_step(  # noqa: PLR0917 - as it is called
        forward_step_func,
        data_iterator,
        model,
        num_microbatches,
        input_tensor,
        forward_data_store,
        config,
        cp_group_size,
        collect_non_loss_data=False,
        checkpoint_activations_microbatch=None,
        is_first_microbatch=False,
        current_microbatch=None,
        vp_stage=None,
        is_last_stage=True,
    ):
        time.sleep(FORWARD_S)
        return object(), 0

    def backward_step(input_tensor, output_tensor, output_tensor_grad, config):
        time.sleep(2 * FORWARD_S)

    schedules.forward_step, schedules.backward_step = forward_step, backward_step

    def forward_backward_pipelining_without_interleaving(num_microbatches):
        """One warm-up forward, then one forward and one backward in turn, as stage 1 of 3 does; blocking batches."""
        if hasattr(p2p, "P2PCommunicator"):
            of, more = p2p.P2PCommunicator(), ()
        else:
            of, more = p2p, (None,)

        outputs = []

        def forward(number):
            asked = None, None, None, num_microbatches, None, [], None, 1
            outputs.append(schedules.forward_step(*asked, current_microbatch=number)[0])

        of.recv_forward(None, *more)
        forward(0)
        of.send_forward(None, *more)
        of.recv_forward(None, *more)
        for number in range(1, num_microbatches):
            forward(number)
            of.send_forward_recv_backward(None, None, *more)
            schedules.backward_step(None, outputs.pop(0), None, None)
            if number < num_microbatches - 1:
                of.send_backward_recv_forward(None, None, *more)
            else:
                of.send_backward(None, *more)
        of.recv_backward(None, *more)
        schedules.backward_step(None, outputs.pop(0), None, None)
        of.send_backward(None, *more)
        replica.finish_grad_sync()

    return forward_backward_pipelining_without_interleaving
