"""Modules by the names of Megatron-Core's, with its public functions and their signatures, that sleep instead of training.

Megatron-LM cannot be installed here (it needs a GPU); its schedules call these functions by these names through their modules.
"""

import sys
import time
import types

STAGE, N_STAGES = 1, 3
TRANSFER_S, FORWARD_S = 0.002, 0.005


def install(monkeypatch, *, as_class):
    """Put the stand-in among the imported modules; `as_class`: transfers are methods of `P2PCommunicator`, as since 0.14."""
    names = ("megatron", "megatron.core", "megatron.core.parallel_state", "megatron.core.distributed")
    p2p_name = "megatron.core.pipeline_parallel.p2p_communication"
    schedules_name = "megatron.core.pipeline_parallel.schedules"
    modules = {
        name: types.ModuleType(name) for name in (*names, "megatron.core.pipeline_parallel", p2p_name, schedules_name)
    }
    for name, module in modules.items():
        monkeypatch.setitem(sys.modules, name, module)
    modules["megatron.core"].parallel_state = modules["megatron.core.parallel_state"]
    _fill_parallel_state(modules["megatron.core.parallel_state"])
    transfers = _transfers()
    if as_class:
        methods = {name: _as_method(function) for name, function in transfers.items()}
        modules[p2p_name].P2PCommunicator = type("P2PCommunicator", (), methods)
    else:
        vars(modules[p2p_name]).update(transfers)

    def finalize_model_grads(model, num_tokens=None):
        time.sleep(TRANSFER_S)

    modules["megatron.core.distributed"].finalize_model_grads = finalize_model_grads
    return _fill_schedules(modules[schedules_name], modules[p2p_name], modules["megatron.core.distributed"])


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


def _transfers():
    """Make the functions of `p2p_communication`."""

    def recv_forward(tensor_shape, config):
        time.sleep(TRANSFER_S)

    def recv_backward(tensor_shape, config):
        time.sleep(TRANSFER_S)

    def send_forward(output_tensor, config):
        time.sleep(TRANSFER_S)

    def send_backward(input_tensor_grad, config):
        time.sleep(TRANSFER_S)

    def send_forward_recv_backward(output_tensor, tensor_shape, config):
        time.sleep(TRANSFER_S)

    def send_backward_recv_forward(input_tensor_grad, tensor_shape, config):
        time.sleep(TRANSFER_S)

    return {name: function for name, function in locals().items() if callable(function)}


def _as_method(function):
    """Give a function of the module the signature of a method."""
    return lambda _self, *args: function(*args, None)


def _fill_schedules(schedules, p2p, distributed):
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
        return None, 0

    def backward_step(input_tensor, output_tensor, output_tensor_grad, config):
        time.sleep(2 * FORWARD_S)

    schedules.forward_step, schedules.backward_step = forward_step, backward_step

    def forward_backward_pipelining_without_interleaving(num_microbatches):
        """One warm-up forward, then one forward and one backward in turn, as stage 1 of 3 does; blocking batches."""
        if hasattr(p2p, "P2PCommunicator"):
            of, more = p2p.P2PCommunicator(), ()
        else:
            of, more = p2p, (None,)

        def forward(number):
            schedules.forward_step(None, None, None, num_microbatches, None, [], None, 1, current_microbatch=number)

        of.recv_forward(None, *more)
        forward(0)
        of.send_forward(None, *more)
        of.recv_forward(None, *more)
        for number in range(1, num_microbatches):
            forward(number)
            of.send_forward_recv_backward(None, None, *more)
            schedules.backward_step(None, None, None, None)
            if number < num_microbatches - 1:
                of.send_backward_recv_forward(None, None, *more)
            else:
                of.send_backward(None, *more)
        of.recv_backward(None, *more)
        schedules.backward_step(None, None, None, None)
        of.send_backward(None, *more)
        distributed.finalize_model_grads([None])

    return forward_backward_pipelining_without_interleaving
