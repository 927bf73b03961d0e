"""Hooks for DeepSpeed: its engine with ZeRO, and its pipeline.

Enters: `deepspeed.runtime` as it runs. Leaves: the engine's forwards, reductions and clipping, the computes and transfers of its
pipeline, evaluations, saves, the end of each step, and which worker this is. Written by the names of DeepSpeed 0.19.
"""

import importlib
import types
from typing import Any

from diagnose.model.optype import Op
from diagnose.record.clock import Mark
from diagnose.record.data_parallel import Autograd, Clipping
from diagnose.record.hooks import Hooks
from diagnose.record.host import hook_pause
from diagnose.record.log import Compute, Log, Transfer
from diagnose.record.parallel_state import ParallelState
from diagnose.record.steps import Steps

#: Imported with DeepSpeed.
MODULE = "deepspeed.runtime.pipe.engine"
#: Where DeepSpeed takes the norm of all gradients: modules, classes in them (or the module itself), functions.
NORMS = (
    ("deepspeed.runtime.engine", "DeepSpeedEngine", "clip_fp32_gradients"),
    ("deepspeed.runtime.zero.stage_1_and_2", "DeepSpeedZeroOptimizer", "scaled_global_norm"),
    ("deepspeed.runtime.bf16_optimizer", "", "get_global_norm_of_tensors"),
)
#: Instructions of the pipeline's schedule that send or receive.
TRANSFERS = {
    "SendActivation": Op.FORWARD_SEND,
    "RecvActivation": Op.FORWARD_RECV,
    "SendGrad": Op.BACKWARD_SEND,
    "RecvGrad": Op.BACKWARD_RECV,
}


def hook_deepspeed(hooks: Hooks, log: Log, state: ParallelState, steps: Steps, autograd: Autograd) -> None:
    """Note what DeepSpeed does; to be called once it has been imported."""
    engine = importlib.import_module("deepspeed.runtime.engine").DeepSpeedEngine
    ours = _Engine(log, state, autograd)
    hooks.around(engine, "forward", log.inside, ours.before_forward)
    hooks.around(engine, "forward", log.between, steps.work_begins)
    hooks.around(engine, "forward", log.beside, log.before_evaluating, log.after_evaluating)
    hooks.around(
        engine, "eval", log.always, lambda engine: log.note_evaluated(engine.module)
    )  # has its own, not a module's
    hooks.around(engine, "allreduce_gradients", log.apart, ours.before_reduction, ours.after_reduction)
    zero = importlib.import_module("deepspeed.runtime.zero.stage_1_and_2").DeepSpeedZeroOptimizer
    hooks.around(zero, "reduce_ipg_grads", log.apart, ours.before_reduction, ours.after_reduction)
    steps.follow_update(hooks, engine, "_take_model_step")
    clipping = Clipping(log)
    for module, owner, name in NORMS:
        found = importlib.import_module(module)
        hooks.around(getattr(found, owner) if owner else found, name, log.inside, clipping.before, clipping.after)
    hook_pause(hooks, log, engine, "save_checkpoint", Op.CHECKPOINT)
    _hook_pipeline(hooks, log, state, steps)


def find_place(engine: Any) -> dict[str, int | None]:
    """Say which worker an engine runs on, in the fields of `ParallelState`; nothing where data parallelism is all there is."""
    grid = getattr(engine, "grid", None)
    if grid is not None:
        return {
            "dp": grid.get_data_parallel_rank(),
            "dp_size": grid.get_data_parallel_world_size(),
            "stage": grid.get_pipe_parallel_rank(),
            "pp_size": grid.get_pipe_parallel_world_size(),
            "tp": grid.get_slice_parallel_rank(),
            "tp_size": grid.get_slice_parallel_world_size(),
        }
    if getattr(engine, "mpu", None) is None:
        return {}
    bwc = importlib.import_module("deepspeed.utils.bwc")
    return {
        "dp": engine.mpu.get_data_parallel_rank(),
        "dp_size": engine.mpu.get_data_parallel_world_size(),
        "tp": bwc.bwc_tensor_model_parallel_rank(engine.mpu),
        "tp_size": bwc.bwc_tensor_model_parallel_world_size(engine.mpu),
    }


class _Engine:
    """An engine without a pipeline: autograd says what is computed; ZeRO reduces in the backward and after it."""

    def __init__(self, log: Log, state: ParallelState, autograd: Autograd) -> None:
        self.log = log
        self.state = state
        self.autograd = autograd

    def before_forward(self, engine: Any, *_args: Any, **_kwargs: Any) -> None:
        if self.log.evaluates():
            return
        if not self.state.is_said:
            self.state.place(find_place(engine))
        self.autograd.begin_forward()

    def before_reduction(self, *_args: Any, **_kwargs: Any) -> Mark | None:
        """Gradients are reduced, in or after a backward, be it the step's last or not: the ranks wait for each other."""
        log = self.log
        if log.driver or log.step is None or not log.step.computes:
            return None
        return log.begin_one()

    def after_reduction(self, start: Mark | None, _result: Any) -> None:
        log = self.log
        if start is None or log.step is None:
            return
        end = log.end_one()
        compute = log.current or log.step.computes[-1]
        compute.waits.append((start, end))
        if compute.end is not None:
            compute.end = log.idle_since = end


def _hook_pipeline(hooks: Hooks, log: Log, state: ParallelState, steps: Steps) -> None:
    """Note what a pipeline does: its engine keeps the functions of its instructions by themselves."""
    owner = importlib.import_module(MODULE).PipelineEngine
    pipeline = _Pipeline(log, state)
    found = owner._INSTRUCTION_MAP  # noqa: SLF001
    functions = types.SimpleNamespace(**{kind.__name__: function for kind, function in found.items()})

    def around(name: str, before: Any, after: Any) -> None:
        hooks.around(functions, name, log.inside, before, after)

    around("ForwardPass", pipeline.before_compute(Op.FORWARD), log.end)
    around("BackwardPass", pipeline.before_compute(Op.BACKWARD), log.end)
    for name, op in TRANSFERS.items():
        around(name, pipeline.before_transfer(op), pipeline.after_transfer)
    for name in ("ReduceTiedGrads", "ReduceGrads"):
        around(name, pipeline.before_reduction, log.end_reduction)
    around("LoadMicroBatch", pipeline.before_loading, pipeline.after_loading)
    owner._INSTRUCTION_MAP = {kind: getattr(functions, kind.__name__) for kind in found}  # noqa: SLF001
    hooks.on_undo(lambda: setattr(owner, "_INSTRUCTION_MAP", found))
    hooks.around(owner, "train_batch", log.inside, pipeline.before_batch, pipeline.after_batch)
    hooks.around(owner, "train_batch", log.between, steps.training_begins)
    hook_pause(hooks, log, owner, "eval_batch", Op.EVAL)


class _Pipeline:
    """What the hooks of the pipeline's instructions share."""

    def __init__(self, log: Log, state: ParallelState) -> None:
        self.log = log
        self.state = state

    def before_batch(self, engine: Any, *_args: Any, **_kwargs: Any) -> None:
        if not self.state.is_said:
            self.state.place(find_place(engine))
        self.state.schedule = "1f1b"
        self.log.named_depth = 0  # what an exception left behind, such as the end of the input
        self.log.reopen()
        self.log.driver = "deepspeed"

    def after_batch(self, _token: None, _result: Any) -> None:
        self.log.driver = ""

    def _is_training(self) -> bool:
        return self.log.driver == "deepspeed" and not self.log.named_depth

    def before_compute(self, op: Op) -> Any:
        """Make a hook that begins a compute; those of one kind follow each other by microbatch."""

        def before(*_args: Any, **_kwargs: Any) -> Compute | None:
            log = self.log
            if not self._is_training() or log.step is None:
                return None
            return log.begin(op, sum(compute.op == op for compute in log.step.computes), self.state.stage)

        return before

    def before_transfer(self, op: Op) -> Any:
        """Make a hook around all tensors of one activation or gradient."""

        def before(*_args: Any, **_kwargs: Any) -> Transfer | None:
            if not self._is_training():
                return None
            return Transfer([(op, -1, -1)], self.log.begin_one(), self.log.n_computes)

        return before

    def after_transfer(self, transfer: Transfer | None, _result: Any) -> None:
        if transfer is not None:
            self.log.reopen()
            self.log.launch(transfer)

    def before_reduction(self, *_args: Any, **_kwargs: Any) -> Mark | None:
        if not self._is_training():
            return None
        return self.log.begin_one()

    def before_loading(self, *_args: Any, **_kwargs: Any) -> tuple[Op | str, int] | None:
        """The first and the last stage ask for input, whatever it comes from; what a data loader within waits is part of it."""
        return self.log.begin_named(Op.DATA_LOAD) if self._is_training() else None

    def after_loading(self, begun: tuple[Op | str, int] | None, _result: Any) -> None:
        if begun is not None:
            self.log.end_named(begun)
