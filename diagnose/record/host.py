"""Hooks for what stops the host: collections, the allocator's retries, waits for input, evaluations, saved checkpoints.

Enters: Python's collector, the CUDA allocator's counters, data loaders, evaluations and saving functions as they run. Leaves:
evidence.
"""

import gc
import sys
import time
import weakref
from typing import Any

from diagnose.model.optype import Op
from diagnose.record.hooks import Hooks
from diagnose.record.log import Log

#: Young collections happen all the time and take microseconds; only those of at least this length are rows, and full ones.
SHORT_COLLECTION_NS = 200_000
FULL_GENERATION = 2
#: Counters of torch's CUDA allocator. A plain cudaMalloc, of which a job that grows has many, says little of what a compute lost.
RETRY_COUNTERS = ("num_alloc_retries", "num_ooms")
#: A batch that was ready when it was asked for is no wait.
SHORT_WAIT_NS = 50_000
#: A loop asks for its first batch so soon after it has made the loader's iterator.
SHORT_BREAK_NS = 10_000_000


def hook_host(hooks: Hooks, log: Log) -> None:
    """Note what stops the host."""
    _hook_collections(hooks, log)
    _hook_loaders(hooks, log)
    _hook_evaluation(hooks, log)
    _hook_saving(hooks, log)


def _hook_collections(hooks: Hooks, log: Log) -> None:
    """Note collections; the collector runs on whatever thread allocates."""
    started = [0]

    def collecting(phase: str, info: dict[str, int]) -> None:
        now = time.perf_counter_ns()
        if phase == "start":
            started[0] = now
        else:
            start, started[0] = started[0], 0
            if start and (now - start >= SHORT_COLLECTION_NS or info["generation"] == FULL_GENERATION):
                log.evidence(Op.GC, start, now)

    callback = hooks.guarded(collecting, log.beside)

    def undo() -> None:
        if callback in gc.callbacks:
            gc.callbacks.remove(callback)

    gc.callbacks.append(callback)
    hooks.on_undo(undo)


def _hook_loaders(hooks: Hooks, log: Log) -> None:
    """Note how long the training waited for a batch; before a step, the wait is that step's."""
    from torch.utils.data import dataloader

    #: The iterator that was made last for the training, and from when until when.
    made: weakref.ref[Any] | None = None
    made_ns = 0, 0

    def is_waited_for(source: Any) -> bool:
        if log.is_outside():
            return False  # read ahead by another thread: the training does not wait
        if log.evaluates(source):
            log.note_evaluation()
            return False
        return True

    def making(source: Any) -> int | None:
        return time.perf_counter_ns() if is_waited_for(source) else None

    def after_making(start: int | None, iterator: Any) -> None:
        nonlocal made, made_ns
        if start is not None:
            made, made_ns = weakref.ref(iterator), (start, time.perf_counter_ns())

    def before(source: Any) -> int | None:
        nonlocal made
        if not is_waited_for(source):
            return None
        log.reads = True
        log.training_input = weakref.ref(source)
        now = time.perf_counter_ns()
        is_first, made = made is not None and made() is source, None
        return made_ns[0] if is_first and now - made_ns[1] < SHORT_BREAK_NS else now

    def after(start: int | None, _batch: Any) -> None:
        if start is None:
            return
        now = time.perf_counter_ns()
        log.batch_came(start, now, is_row=now - start >= SHORT_WAIT_NS)

    def ended() -> None:
        if log.evaluation is not None:
            log.note_evaluation()

    hooks.around(dataloader._BaseDataLoaderIter, "__next__", log.beside, before, after, ended)  # noqa: SLF001
    # Each epoch starts the loader's workers anew, unless they persist: that is part of the wait for its first batch.
    hooks.around(dataloader.DataLoader, "__iter__", log.beside, making, after_making, ended)


def describe_loader(source: Any) -> dict[str, Any]:
    """Say how the loader of an iterator is set up, in the words of `DataLoader`; what it does not say is left out."""
    names = ("num_workers", "prefetch_factor", "pin_memory", "persistent_workers")
    said = {name: getattr(source, f"_{name}", None) for name in names}
    return {name: value for name, value in said.items() if isinstance(value, int)}


def _hook_evaluation(hooks: Hooks, log: Log) -> None:
    """Note which models are put into evaluation."""
    import torch

    log.is_grad_enabled = torch.is_grad_enabled
    hooks.around(torch.nn.Module, "eval", log.always, log.note_evaluated)


def _hook_saving(hooks: Hooks, log: Log) -> None:
    """Note how long saving held up the training."""
    import torch
    import torch.distributed as dist

    def before(*_args: Any, **_kwargs: Any) -> int | None:
        log.saves = True
        if log.is_outside() or not log.beside.on:
            return None  # saved beside the training, which goes on, or a part of what has a row already
        log.end_evaluation()
        log.saving_depth += 1
        return time.perf_counter_ns()

    def after(start: int | None, _result: Any) -> None:
        if start is None:
            return
        log.saving_depth -= 1
        if not log.saving_depth:
            log.pause(Op.CHECKPOINT, start, time.perf_counter_ns())

    hooks.around(torch, "save", log.always, before, after)
    if (
        "safetensors.torch" in sys.modules
    ):  # what its own functions call, so that who imported those by name is seen, too
        hooks.around(sys.modules["safetensors.torch"], "serialize_file", log.always, before, after)
    if dist.is_available():
        from torch.distributed import checkpoint

        for name in ("save", "async_save"):
            hooks.around(checkpoint, name, log.always, before, after)


def hook_pause(hooks: Hooks, log: Log, owner: Any, name: str, op: Op) -> None:
    """Note calls on the training's thread that are no training, such as an evaluation."""
    running: list[tuple[Op | str, int]] = []

    def before(*_args: Any, **_kwargs: Any) -> None:
        if log.is_training_thread():
            running.append(log.begin_named(op))

    def after(*_args: Any) -> None:
        if running and log.is_training_thread():
            log.end_named(running.pop())

    hooks.around(owner, name, log.always, before, after, after)


class Retries:
    """Counts the allocator's retries and failures; 0 for ever without a GPU."""

    def __init__(self) -> None:
        self._cuda: Any = None
        self._seen = 0

    def use_cuda(self, cuda: Any) -> None:
        """Read the counters of this module (`torch.cuda`)."""
        self._cuda = cuda
        try:
            self._seen = self._count()
        except RuntimeError:
            self._cuda = None  # an allocator without counters, such as one that is plugged in

    def _count(self) -> int:
        stats = self._cuda.memory_stats_as_nested_dict()
        return sum(int(stats.get(name, 0)) for name in RETRY_COUNTERS)

    def since(self) -> int:
        """Say how many there were since this was last asked; torch makes a table of all its counters for it."""
        if self._cuda is None:
            return 0
        before, self._seen = self._seen, self._count()
        return self._seen - before
