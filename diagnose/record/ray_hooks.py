"""Hooks for Ray Train and Ray Data.

Enters: workers as they report, and batches as they are asked for. Leaves: saves, logging, and waits for input. Written by the names
of Ray 2.60.
"""

import importlib
import time
from typing import Any

from diagnose.model.optype import Op
from diagnose.record.hooks import Hooks
from diagnose.record.host import SHORT_WAIT_NS
from diagnose.record.log import Log
from diagnose.record.steps import Steps

#: Imported in a worker of Ray Train, and where Ray Data gives batches.
TRAIN = "ray.train.v2._internal.execution.context"
DATA = "ray.data._internal.block_batching.iter_batches"


def hook_ray_train(hooks: Hooks, log: Log) -> None:
    """Note reports: a save where they hand over a checkpoint, else logging.

    Within a report the workers wait for each other. Where one of them saves before it reports, that is no logging of the others.
    """
    owner = importlib.import_module(TRAIN).TrainContext
    running: list[tuple[Op | str, int]] = []

    def before(_context: Any, _metrics: Any, checkpoint: Any = None, *_args: Any, **_kwargs: Any) -> None:
        if log.is_training_thread():
            running.append(log.begin_named(Op.LOG if checkpoint is None else Op.CHECKPOINT))

    def waited(*_args: Any) -> None:
        if running and log.is_training_thread():
            running.append((running.pop()[0], time.perf_counter_ns()))

    def after(*_args: Any) -> None:
        if running and log.is_training_thread():
            log.end_named(running.pop())

    hooks.around(owner, "report", log.always, before, after, after)
    hooks.around(owner, "_sync_checkpoint_dir_name_across_ranks", log.always, lambda *_args, **_kwargs: None, waited)


def hook_ray_data(hooks: Hooks, log: Log, steps: Steps) -> None:
    """Note how long the training waited for a batch of Ray Data."""
    owner = importlib.import_module(DATA).BatchIterator
    asked_ns = [0]

    def asks(*_args: Any, **_kwargs: Any) -> None:
        log.reads = True
        asked_ns[0] = 0 if log.is_outside() or log.evaluates() else time.perf_counter_ns()

    def gets(*_args: Any, **_kwargs: Any) -> None:
        now = time.perf_counter_ns()
        if asked_ns[0] and now - asked_ns[0] >= SHORT_WAIT_NS:
            log.pause(Op.DATA_LOAD, asked_ns[0], now)
        asked_ns[0] = 0

    hooks.around(owner, "get_next_batch_context", log.beside, asks)
    hooks.around(owner, "get_next_batch_context", log.between, steps.work_begins)
    hooks.around(owner, "yield_batch_context", log.beside, gets)
