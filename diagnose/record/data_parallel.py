"""Hooks for training without a pipeline schedule, and for DDP and FSDP in it or in a stage.

Enters: backward passes, DDP and FSDP as they run. Leaves: a forward and a backward a microbatch, the reduction of gradients
that no compute hides, and clipping.

A backward computes until autograd has nothing left to run; then DDP waits for its buckets. A callback put into autograd's queue
at the start of the backward, before DDP puts its own there, sees that moment.
"""

from typing import Any

from diagnose.model.optype import Op
from diagnose.record.clock import Mark
from diagnose.record.hooks import Hooks
from diagnose.record.log import FORWARD, Collective, Compute, Log


class Reductions:
    """Reductions of gradients that DDP or FSDP do within a backward or right after it."""

    def __init__(self, log: Log) -> None:
        self.log = log
        self.expected = False
        self.computed: Mark | None = None

    def expect(self, module: Any, *, last_backward: bool) -> None:
        """Say whether the backward of this module that now begins reduces gradients at its end."""
        from torch.nn.parallel import DistributedDataParallel

        self.expected = last_backward and isinstance(module, DistributedDataParallel)
        self.computed = None

    @staticmethod
    def is_sharded(module: Any) -> bool:
        """True for a module that `fully_shard` or `replicate` was called on."""
        from torch.distributed.fsdp import FSDPModule

        return isinstance(module, FSDPModule)

    def close(self, backward: Compute) -> None:
        """Cut off what a backward waited for at its end."""
        if self.computed is not None and backward.end is not None:
            self.log.note_reduction(self.computed, backward.end)
            backward.end = self.computed
        self.expected, self.computed = False, None

    def close_within(self) -> None:
        """Note what a backward within another waited for at its end: of checkpoints, one of them has the last bucket."""
        if self.computed is not None and self.log.current is not None:
            self.log.current.waits.append((self.computed, self.log.clock.now()))
        self.computed = None


def hook_data_parallel(hooks: Hooks, log: Log, autograd: "Autograd") -> None:
    """Note backward passes, DDP, FSDP and clipping."""
    import torch

    hooks.around(torch.autograd, "backward", log.inside, autograd.before_backward, autograd.after_backward)
    hooks.around(
        torch.nn.parallel.DistributedDataParallel,
        "forward",
        log.beside,
        autograd.begin_forward,
        autograd.after_replica,
    )
    hooks.around(torch.distributed.Reducer, "prepare_for_backward", log.inside, autograd.prepares)
    # Statistics of batch normalisation come from rank 0, for which the others wait in their forwards.
    hooks.around(
        torch.nn.parallel.DistributedDataParallel,
        "_sync_buffers",
        log.inside,
        autograd.begin_wait,
        autograd.end_wait,
    )
    _hook_sharded(hooks, log, autograd)
    clipping = Clipping(log)
    for name in ("clip_grad_norm_", "get_total_norm", "clip_grads_with_norm_"):
        hooks.around(torch.nn.utils, name, log.inside, clipping.before, clipping.after)


class Autograd:
    """Forwards and backwards where no schedule says what they are: one of each a call of `backward`.

    Between computes nothing is in the processor's caches, and each function that is called there takes 3 us: there are few.
    """

    def __init__(self, log: Log) -> None:
        self.log = log
        self.reductions = Reductions(log)
        self.forward: Compute | None = None
        #: FSDP was seen to wait.
        self.is_sharded = False

    def begin_forward(self) -> bool:
        """Begin the forward of a microbatch, if no other says what is computed; True where it is one of an evaluation.

        It begins where its batch came from a loader: what lies between (a teacher, a copy to the GPU) is work on it.
        """
        log = self.log
        if (log.evaluated or not log.is_grad_enabled()) and log.evaluates():
            log.note_evaluation()
            return True
        step = log.step
        if not log.inside.on or log.driver or log.current is not None or step is None:
            return False
        if log.evaluation is not None:
            log.end_evaluation()
        is_given = log.reads and log.given_since is log.idle_since
        began = log.given_since if is_given and log.given_since is not None else log.clock.now()
        self.forward = log.current = forward = Compute(FORWARD, step.n_backwards, 0, began)
        step.computes.append(forward)
        if step.collectives:
            log.take_waits(forward)
        return False

    def prepares(self) -> None:
        """The next backward reduces gradients at its end: DDP prepares, or its user does after a forward under `no_sync`."""
        if not self.log.driver:
            self.reductions.expected, self.reductions.computed = True, None

    def after_replica(self, _is_evaluation: bool, _result: Any) -> None:  # noqa: FBT001 - as hooks are called
        """An evaluation goes on until here; a forward of the training ends where the backward begins: the loss is part of it."""
        self.log.note_evaluation()

    def before_backward(self, tensors: Any, *_args: Any, **_kwargs: Any) -> Any:
        """Begin a backward, and end the forward before it."""
        log = self.log
        log.backward_depth += 1
        if log.step is None or log.driver == "evaluation":
            return None
        backward = None
        if not log.driver and log.backward_depth == 1:
            forward, self.forward = self.forward, None
            if forward is None or forward is not log.current:
                forward = self._add_forward()
            log.step.n_backwards += 1
            backward = log.turn(forward)
        elif log.current is None:
            return None  # a schedule that says itself what it computes
        return backward, self._await_end(tensors) if self.reductions.expected else None

    def _await_end(self, tensors: Any) -> Any:
        """Have autograd say when the backward of these has computed; gives what takes that back."""
        root = tensors if hasattr(tensors, "grad_fn") else next(iter(tensors), None)
        node = getattr(root, "grad_fn", None)
        return node.register_prehook(self._queue) if node is not None else None

    def _add_forward(self) -> Compute:
        """Add the forward of which no wrapper was seen: it computes since the job last did something else."""
        log = self.log
        assert log.step is not None
        assert log.idle_since is not None
        forward = Compute(FORWARD, log.step.n_backwards, 0, log.idle_since)
        log.take_waits(forward)
        log.step.computes.append(forward)
        return forward

    def _queue(self, *_grads: Any) -> None:
        """Have autograd say when it has nothing left to run."""
        try:
            from torch.autograd import Variable

            Variable._execution_engine.queue_callback(self._has_computed)  # noqa: SLF001 - as DDP and FSDP do
        except Exception:  # noqa: BLE001 - then the reduction stays part of the backward
            self.reductions.expected = False

    def _has_computed(self) -> None:
        """Note it; what is raised here would be raised by the backward."""
        try:
            if self.log.step is not None:
                self.reductions.computed = self.log.clock.now()
        except Exception:  # noqa: BLE001 - then the reduction stays part of the backward
            self.reductions.expected = False

    def after_backward(self, token: Any, _result: Any) -> None:
        """End the backward."""
        log = self.log
        log.backward_depth -= 1
        if token is None:
            return
        backward, handle = token
        if handle is not None:
            handle.remove()
        if backward is not None:
            backward.end = log.idle_since = log.clock.now()
            if log.current is backward:
                log.current = None
            if self.reductions.expected:
                self.reductions.close(backward)
        elif log.backward_depth:
            self.reductions.close_within()

    def begin_wait(self) -> Mark | None:
        """A wait of FSDP for parameters or gradients begins."""
        log = self.log
        if log.driver or (log.current is None and not self._begins_with_wait()):
            return None
        if not log.apart.on:
            return None  # a part of one
        log.apart.on = False
        return log.clock.now()

    def _begins_with_wait(self) -> bool:
        """Begin the forward that first of all waits; False where it is none of the training."""
        if not self.begin_forward() and self.log.inside.on:
            self.is_sharded = True
        return self.log.current is not None

    def begin_wait_for_member(self, result: Any) -> Mark | None:
        """A wait for another tensor-parallel member begins: under FSDP, whose waits are taken out of computes, it may be for one.

        What one member waits for in FSDP the others wait for here, and all computes must be without it.
        """
        is_wait = self.is_sharded and self.log.current is not None and not result.completed
        return self.begin_wait() if is_wait else None

    def end_wait(self, start: Mark | None, _result: Any) -> None:
        """The wait is over: it is part of the compute that it began in."""
        if start is None:
            return
        log = self.log
        log.apart.on = log.inside.on
        if log.current is not None:
            log.current.waits.append((start, log.clock.now()))


def _hook_sharded(hooks: Hooks, log: Log, autograd: Autograd) -> None:
    """Note where FSDP, of either kind, waits for parameters and gradients."""
    from torch.distributed import _functional_collectives
    from torch.distributed.fsdp import _runtime_utils
    from torch.distributed.fsdp._fully_shard import _fsdp_param_group, _fsdp_state, _fully_shard

    # Not what these call for each collective: what a hook takes is taken as often as it runs.
    waits = [
        *((_fsdp_param_group.FSDPParamGroup, name) for name in ("pre_forward", "pre_backward", "post_backward")),
        (_fsdp_state.FSDPState, "_root_post_backward_final_callback"),
        (_fully_shard.FSDPModule, "unshard"),
        (_fully_shard._UnshardHandleImpl, "wait"),  # noqa: SLF001
        *(
            (_runtime_utils, name)
            for name in ("_pre_forward_unshard", "_unshard", "_reduce_grad", "_post_backward_final_callback")
        ),
    ]
    for owner, name in waits:
        hooks.around(owner, name, log.beside, autograd.begin_wait, autograd.end_wait, log.reopen)
    pending = _functional_collectives.AsyncCollectiveTensor
    for name in ("trigger_wait", "wait"):
        hooks.around(pending, name, log.apart, autograd.begin_wait_for_member, autograd.end_wait)


class Clipping:
    """The clipping of gradients: by one function, or by one that takes the norm and one that clips, with a reduction between."""

    def __init__(self, log: Log) -> None:
        self.log = log

    def before(self) -> Mark:
        """Mark when it begins."""
        return self.log.clock.now()

    def after(self, start: Mark, result: Any) -> None:
        """Note it; a norm of shards has been added up by the ranks that hold them."""
        step = self.log.step
        if step is None:
            return
        end = self.log.idle_since = self.log.clock.now()
        step.others.append((Op.CLIP, start, end))
        if hasattr(result, "device_mesh"):
            step.collectives.append(
                Collective(gathers=False, n_elements=1, n_computes=self.log.n_computes, start=start, end=end)
            )
