"""The recorder of a training job: hooks, a clock, a log and a thread that writes.

Enters: a folder, and the steps of a training loop. Leaves: one Parquet file a rank. Whatever goes wrong in here is logged once
and ends the recording, never the training.
"""

import atexit
import contextlib
import datetime as dt
import functools
import logging
import math
import os
import sys
import weakref
from collections.abc import Callable, Iterator, Sequence
from multiprocessing.util import Finalize
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from diagnose.model.optype import BY_NAME, DIRECTIONS, EVIDENCE, NAMES, Op
from diagnose.record import deepspeed_hooks, megatron_hooks, ray_hooks
from diagnose.record.clock import Clock
from diagnose.record.communication import hook_communication
from diagnose.record.cost import Cost
from diagnose.record.data_parallel import Autograd, hook_data_parallel
from diagnose.record.ending import Ending
from diagnose.record.frameworks import OPERATIONS, hook_operations
from diagnose.record.graphs import hook_captures, keep_out_compiler
from diagnose.record.hooks import Hooks
from diagnose.record.host import Retries, describe_loader, hook_host, hook_pause
from diagnose.record.log import Compute, Log
from diagnose.record.parallel_state import count_hosts, find_parallel_state
from diagnose.record.pipelining import hook_pipelining
from diagnose.record.planned_gc import PlannedCollections
from diagnose.record.report import report_job
from diagnose.record.sampling import Sampling
from diagnose.record.start import find_start
from diagnose.record.steps import Steps, hook_steps
from diagnose.record.trackers import Trackers
from diagnose.record.writer_thread import PATIENCE_AFTER_ERROR_S, PATIENCE_S, WriterThread

#: Libraries that read data beside torch's loaders: where one is in use, nobody knows whether the job waits for input.
OTHER_LOADERS = frozenset({"ffcv", "grain", "nvidia.dali", "streaming", "tensorflow", "webdataset"})
LOGGER = logging.getLogger("diagnose.record")

#: While the folder has a file of this name nothing is recorded.
PAUSE = "pause"
#: Where the environment sets the CUDA allocator: the name since torch 2.9, and that before it.
ALLOCATOR_SETTINGS = ("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF")


class _Step(contextlib.ContextDecorator, contextlib.AbstractContextManager[None]):
    """One step of the loop; a generator would take as long as all else of a step that is not recorded."""

    def __init__(self, guard: Callable[..., Any], steps: Steps, number: int | None) -> None:
        self._guard, self._steps, self._number = guard, steps, number

    def __enter__(self) -> None:
        self._guard(self._steps.begin, self._number)

    def __exit__(self, kind: type[BaseException] | None, *_more: object) -> None:
        self._guard(self._steps.end if kind is None else self._steps.abandon)


class Recorder:
    """Records a training job, one Parquet file a rank, for `diagnose FOLDER`.

    Make it once a process; every rank must make one. Ranks leave their files in `FOLDER/start-<time>`, so that a job that is
    started again replaces nothing.

    Parameters
    ----------
    folder : path
        Where the files go; a folder that all ranks share, or copied together later.
    sample : float
        Part of the steps that are recorded, in short runs of consecutive steps, the same on all ranks.
    job_id : str
        Name of the job; the folder's name when left out.
    mesh : torch.distributed.DeviceMesh, optional
        Says which worker this is, where it is more than a pipeline times data-parallel replicas.
    dp_rank, dp_size, stage, pp_size, tp_rank, tp_size, cp_rank, cp_size : int, optional
        The same by hand.
    stage_ranks : sequence of int
        For a pipeline schedule of your own: the global rank of each stage of this pipeline.
    report : bool
        Diagnose the job when it ends: rank 0 prints the page to the log, leaves `diagnosis.html` and `diagnosis.json` in the
        folder, and a summary in Weights & Biases, MLflow or TensorBoard where the job logs to them.
    planned_gc : int, optional
        Collect Python's garbage on all ranks in the same step, after every so many steps, and not in between. From the end of the
        first step on the collector is off, and what is there by then is frozen; closing the recorder undoes both.
    metadata : dict, optional
        More of the job's metadata, such as `layers_per_stage` or `owner`.

    Raises
    ------
    ValueError
        `sample` is no part, `planned_gc` no number of steps, or what is said of the worker's place does not fit together. Nothing
        raises later.
    """

    def __init__(  # noqa: PLR0913 - what a job may have to say, by name
        self,
        folder: str | Path,
        *,
        sample: float = 0.1,
        job_id: str | None = None,
        mesh: Any = None,
        dp_rank: int | None = None,
        dp_size: int | None = None,
        stage: int | None = None,
        pp_size: int | None = None,
        tp_rank: int | None = None,
        tp_size: int | None = None,
        cp_rank: int | None = None,
        cp_size: int | None = None,
        stage_ranks: Sequence[int] = (),
        report: bool = False,
        planned_gc: int | None = None,
        metadata: dict[str, Any] | None = None,
    ) -> None:
        self._folder = Path(folder)
        self._reports = report
        self._trackers = Trackers()
        self._is_on = True
        self._clock = Clock()
        self._log = Log(self._clock)
        self._retries = Retries()
        self._cost = Cost()
        self._hooks = Hooks(self._fail, self._cost.timed)
        self._cost.time_hooks = self._hooks.time
        said = {"dp": dp_rank, "stage": stage, "tp": tp_rank, "cp": cp_rank}
        said |= {"dp_size": dp_size, "pp_size": pp_size, "tp_size": tp_size, "cp_size": cp_size}
        self._find_state = functools.partial(find_parallel_state, mesh, said, list(stage_ranks))
        self._state = self._find_state()
        self._has_arrived = False
        self._metadata = {
            "job_id": job_id,
            "started_at": dt.datetime.now(dt.UTC).isoformat(timespec="seconds"),
            **(metadata or {}),
        }
        self._writer = WriterThread(self._folder, self._clock, self._state, self._metadata, self._fail)
        self._writer.look = self._look
        #: What hooks a framework, by the module that says that it is used, for those that are not imported yet.
        self._frameworks: dict[str, tuple[Any, ...]] = {}
        self._steps = Steps(self._log, Sampling(sample), self._cost, self._progress)
        self._ending = Ending(self._flush)
        self._planned = PlannedCollections(planned_gc, self._log) if planned_gc is not None else None
        self._guard(self._start, list(stage_ranks))
        # Where the job does not close it: the thread must finish its file. Forked processes of multiprocessing run no `atexit`.
        atexit.register(self.close)
        self._at_end = Finalize(None, self.close, exitpriority=100)
        if hasattr(os, "register_at_fork"):
            # Never taken away again, so it must not keep the recorder alive.
            forked = weakref.WeakMethod(self._forked)
            os.register_at_fork(after_in_child=lambda: (found := forked()) and found())

    def _start(self, stage_ranks: list[int]) -> None:
        """Put the hooks in place and start the thread."""
        import torch

        self._metadata.setdefault("framework", f"torch {torch.__version__}")
        self._folder = self._writer.folder = self._folder.resolve()  # the job may go to another folder
        self._metadata["job_id"] = self._metadata["job_id"] or self._folder.name
        self._folder.mkdir(parents=True, exist_ok=True)
        with contextlib.suppress(AttributeError):  # another version of torch
            keep_out_compiler(self._hooks, torch)
        self._metadata.setdefault("has_cuda", torch.cuda.is_available())
        self._metadata.setdefault("records_gc", True)
        for name in ALLOCATOR_SETTINGS:
            if name in os.environ:
                self._metadata.setdefault("alloc_conf", os.environ[name])
        if torch.cuda.is_available():
            self._clock.use_cuda(torch.cuda)
            self._retries.use_cuda(torch.cuda)
            hook_captures(self._hooks, self._log, torch.cuda.CUDAGraph)
            if torch.cuda.is_initialized():  # else asking would take memory of whichever GPU comes first
                self._metadata.setdefault("gpu_type", torch.cuda.get_device_name())
        autograd = Autograd(self._log)
        for hook, more in (
            (hook_host, ()),
            (hook_communication, (self._state, stage_ranks)),
            (hook_data_parallel, (autograd,)),
            (hook_pipelining, (self._state, autograd.reductions)),
            (hook_steps, (self._steps,)),
        ):
            self._hook(hook, *more)
        self._frameworks = {
            megatron_hooks.MODULE: (megatron_hooks.hook_megatron, self._state, self._steps),
            deepspeed_hooks.MODULE: (deepspeed_hooks.hook_deepspeed, self._state, self._steps, autograd),
            ray_hooks.TRAIN: (ray_hooks.hook_ray_train,),
            ray_hooks.DATA: (ray_hooks.hook_ray_data, self._steps),
            **{name: (hook_operations, name) for name in OPERATIONS},
        }
        if self._reports and self._state.rank == 0:
            self._frameworks |= self._trackers.frameworks
        self._hook_frameworks()
        self._log.count_retries = self._retries.since
        self._look()
        if self._planned is not None:
            self._steps.on_end = self._planned.step_ended
            self._hooks.on_undo(self._planned.restore)
        self._writer.start()
        self._ending.listen()

    def _hook(self, hook: Callable[..., None], *more: Any) -> None:
        """Put hooks in place as far as this version of what they hook has it."""
        try:
            hook(self._hooks, self._log, *more)
        except (ImportError, AttributeError) as error:
            # Another version of torch, or one without distributed: the rest is recorded.
            LOGGER.info("diagnose does not record what %s hooks: %s", hook.__module__, error)

    def _hook_frameworks(self) -> None:
        """Hook frameworks that have been imported by now; the others are looked for again with each step."""
        for name in self._frameworks.keys() & sys.modules.keys():
            self._hook(*self._frameworks.pop(name))

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._close(PATIENCE_S if kind is None else PATIENCE_AFTER_ERROR_S, reports=self._reports and kind is None)

    def step(self, number: int | None = None) -> contextlib.AbstractContextManager[None]:
        """Say that one training step runs: its forwards, backwards and optimizer.

        Around a microbatch, it is a part of a step: the step ends with the first part in which an optimizer runs.

        Parameters
        ----------
        number : int, optional
            The step's number in the job, the same on all ranks; counted from 0 when left out.
        """
        return _Step(self._guard, self._steps, number)

    def begin_step(self, number: int | None = None) -> None:
        """Say that a training step begins; the same as entering `step`.

        Parameters
        ----------
        number : int, optional
            The step's number in the job, the same on all ranks; counted from 0 when left out.
        """
        self._guard(self._steps.begin, number)

    def end_step(self) -> None:
        """Say that the training step ends which `begin_step` began."""
        self._guard(self._steps.end)

    def follow_optimizer(self, number: int | None = None) -> None:
        """From now on find steps by the optimizers that run; no `step` is needed.

        A step ends where its optimizers have ended, and the next one begins with the next work: a batch is asked for, or a
        forward or a backward runs.

        Parameters
        ----------
        number : int, optional
            Number of the next step, the same on all ranks; counted on when left out.
        """
        self._guard(self._steps.follow, number)

    def place(
        self,
        *,
        dp_rank: int | None = None,
        dp_size: int | None = None,
        stage: int | None = None,
        pp_size: int | None = None,
        tp_rank: int | None = None,
        tp_size: int | None = None,
        cp_rank: int | None = None,
        cp_size: int | None = None,
    ) -> None:
        """Say which worker this is, where it is not known when the recorder is made; before the first file is written.

        Parameters
        ----------
        dp_rank, dp_size, stage, pp_size, tp_rank, tp_size, cp_rank, cp_size : int, optional
            As of `Recorder`; what is left out stays as it is.
        """
        said = {"dp": dp_rank, "stage": stage, "tp": tp_rank, "cp": cp_rank}
        said |= {"dp_size": dp_size, "pp_size": pp_size, "tp_size": tp_size, "cp_size": cp_size}
        self._guard(self._join)
        self._guard(self._state.place, said)

    def microbatch(
        self, index: int | None = None, *, tokens: float | None = None, doc_lengths: Sequence[int] | None = None
    ) -> None:
        """Say what a microbatch of the running step holds; call it within `step`, before or after it is computed.

        Parameters
        ----------
        index : int, optional
            Its number in the step; the next one when left out.
        tokens : float, optional
            Sum of the document lengths; taken from them when left out.
        doc_lengths : sequence of int, optional
            Length of each document in tokens.
        """
        self._guard(self._note_microbatch, index, tokens, doc_lengths)

    @contextlib.contextmanager
    def operation(self, optype: str, *, microbatch: int = 0, chunk: int = 0) -> Iterator[None]:
        """Name what runs within: for schedules of your own, which no hook knows.

        Parameters
        ----------
        optype : str
            `"forward-compute"`, `"backward-compute"`, or any other type of the trace format. A name of your own, as `"rollout"`, is
            work that occupies the worker.
        microbatch, chunk : int
            Of a compute.
        """
        token = self.begin_operation(optype, microbatch=microbatch, chunk=chunk)
        try:
            yield
        finally:
            self.end_operation(token)

    def begin_operation(self, optype: str, *, microbatch: int = 0, chunk: int = 0) -> Any:
        """Say that an operation begins, in a step or between steps; what this gives is for `end_operation`.

        Parameters
        ----------
        optype, microbatch, chunk
            As of `operation`.
        """
        return self._guard(self._begin_operation, optype, microbatch, chunk)

    def end_operation(self, token: Any) -> None:
        """Say that the operation ends whose beginning gave this."""
        if token is not None:
            self._guard(self._end_operation, token)

    def mark(self, owner: Any, name: str, optype: str) -> None:
        """From now on take each call of a function on the training's thread for an operation.

            recorder.mark(trainer, "evaluate", "eval")

        Parameters
        ----------
        owner, name
            The object, class or module where the function is found, and its name there. One that is not there is left out.
        optype : str
            `"eval"`, `"checkpoint"`, `"log"` or another type of evidence.
        """
        self._guard(self._mark, owner, name, optype)

    def close(self) -> None:
        """Write what is left and take all hooks away; done by leaving the context."""
        self._close(PATIENCE_S, reports=self._reports)

    def _close(self, patience_s: float, *, reports: bool) -> None:
        atexit.unregister(self.close)
        self._at_end.cancel()
        self._guard(self._steps.close)
        if self._has_arrived:
            self._progress()
        was_on = self._is_on and not self._steps.is_paused
        self._stop()
        self._metadata["finished_at"] = dt.datetime.now(dt.UTC).isoformat(timespec="seconds")
        if self._writer.is_alive():
            self._writer.finish(patience_s)  # what was recorded before a failure is written, too
        self._ending.stop()
        if (
            was_on
            and self._steps.has_optimizer
            and self._state.rank == 0
            and NAMES[Op.FORWARD] not in self._writer.kept.types
        ):
            LOGGER.warning(
                "diagnose recorded no whole step, though optimizers ran: put all of a step (its forwards, backwards and optimizer) "
                "in `with recorder.step():`, or call `recorder.follow_optimizer()` once before the first"
            )
        if reports and self._state.rank == 0 and len(self._writer.kept):
            self._report()

    def _report(self) -> None:
        """Diagnose the job, once."""
        self._reports = False
        try:
            report_job(self._folder, self._writer.folder, self._state.world, self._trackers)
        except Exception as error:  # noqa: BLE001 - the job ends as it would
            LOGGER.warning(
                "diagnose could not report (%s: %s); `diagnose %s` does", type(error).__name__, error, self._folder
            )

    def _flush(self, patience_s: float) -> None:
        """Write the file while the job is told to end."""
        if self._log.is_training_thread():
            self._guard(self._steps.hand_over_ended)
            self._guard(self._progress)
        if self._writer.is_alive():
            self._writer.flush(patience_s)

    def _look(self) -> None:
        """See whether somebody wants nothing to be recorded now."""
        self._steps.is_paused = (self._folder / PAUSE).exists()

    def _join(self) -> None:
        """Take the rank from the process group, where that was made after the recorder."""
        if not self._state.has_group:
            found = self._find_state()
            if found.has_group:
                self._state.join(found)

    def _progress(self) -> None:
        """Tell the thread that writes that there is work, and what is known of the job by now."""
        if not self._has_arrived:
            self._has_arrived = True
            self._join()
            self._writer.folder = find_start(self._folder, n_ranks=self._state.world)
            if (n_hosts := count_hosts(self._state.world)) is not None:
                self._metadata.setdefault("n_hosts", n_hosts)
        self._metadata["steps_total"] = self._steps.number
        self._metadata["sample"] = self._steps.sampling.part
        self._hook_frameworks()
        self._metadata["saves"] = self._log.saves
        source = self._log.training_input()
        if source is not None:
            self._metadata["loader"] = describe_loader(source)
        if self._log.reads or not OTHER_LOADERS & sys.modules.keys():
            self._metadata["reads_input"] = self._log.reads
        if self._clock.is_device:
            self._writer.wake()  # to see events pass; else it comes by itself, and the training need not take turns with it

    def _guard(self, function: Callable[..., Any], *args: Any) -> Any:
        """Call a function of the recorder's own; what it raises ends the recording."""
        if not self._is_on:
            return None
        began = self._cost.now()
        try:
            return function(*args)
        except Exception as error:  # noqa: BLE001 - the training goes on
            self._fail(error)
            return None
        finally:
            self._cost.taken_ns += self._cost.now() - began

    def _fail(self, error: Exception) -> None:
        """Stop recording after an error, and say so once."""
        if not self._is_on:
            return
        self._stop()
        with contextlib.suppress(Exception):  # a handler of the job's own that raises
            LOGGER.warning(
                "diagnose stopped recording on rank %d (%s: %s); the training is not affected",
                self._state.rank,
                type(error).__name__,
                error,
            )

    def _forked(self) -> None:
        """In a process that the job forks (a worker of a data loader) nothing is recorded: it is the parent's trace."""
        self._switch_off()
        self._ending.forget()
        if self._planned is not None:
            self._planned.switch_on()
        atexit.unregister(self.close)
        self._at_end.cancel()

    def _stop(self) -> None:
        """Stop recording and remove the hooks."""
        self._switch_off()
        try:
            self._hooks.undo()
        except Exception:
            LOGGER.debug("a hook of diagnose stays in place, switched off", exc_info=True)

    def _switch_off(self) -> None:
        """Have the hooks that are in place note nothing."""
        self._is_on = False
        self._log.close_switches()
        self._log.between.on = self._log.always.on = False
        self._log.step = None

    def _note_microbatch(self, index: int | None, tokens: float | None, doc_lengths: Sequence[int] | None) -> None:
        step = self._log.step
        if step is None or not self._log.inside.on:
            return
        if any(
            getattr(one, "is_cuda", False)
            for one in (tokens, doc_lengths, *(() if doc_lengths is None else doc_lengths))
        ):
            raise TypeError(
                "tokens or doc_lengths are on the GPU; expected numbers: reading them would wait for the GPU"
            )
        lengths = None if doc_lengths is None else [int(length) for length in doc_lengths]
        n_tokens = tokens if tokens is not None else float(sum(lengths)) if lengths is not None else math.nan
        squares = math.nan if lengths is None else float(sum(length * length for length in lengths))
        step.lengths[len(step.lengths) if index is None else index] = (float(n_tokens), squares, lengths)

    def _begin_operation(self, optype: str, microbatch: int, chunk: int) -> Any:
        op, log = BY_NAME.get(optype, optype), self._log
        if op in (Op.FORWARD, Op.DATA_LOAD):
            self._steps.work_begins()
        if op in (Op.BACKWARD, Op.WEIGHT):
            self._steps.training_begins()
        if isinstance(op, str) or op in EVIDENCE:
            return log.begin_named(op)
        if op == Op.OPTIMIZER:
            self._steps.before_optimizer(optype)
            return op, None
        if not log.inside.on or log.named_depth:
            return None
        if op in DIRECTIONS:
            log.driver = "own"
            return log.begin(op, microbatch, chunk * self._state.pp_size + self._state.stage)
        return op, log.clock.now()

    def _mark(self, owner: Any, name: str, optype: str) -> None:
        if BY_NAME.get(optype) not in EVIDENCE:
            raise ValueError(f"operation type {optype!r}; expected one of {', '.join(NAMES[op] for op in EVIDENCE)}")
        hook_pause(self._hooks, self._log, owner, name, BY_NAME[optype])

    def _end_operation(self, token: Any) -> None:
        log = self._log
        if isinstance(token, Compute):
            log.end(token)
            return
        op, start = token
        if isinstance(op, str) or op in EVIDENCE:
            log.end_named(token)
        elif op == Op.OPTIMIZER:
            self._steps.after_optimizer(NAMES[op])
        elif log.step is not None:
            log.step.others.append((op, start, log.clock.now()))
