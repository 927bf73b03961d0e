"""Where the steps of a job begin and end: at its optimizer, whatever its loop says.

Enters: what the loop says of its steps, optimizers as they run, and the work that follows them. Leaves: the steps that are
recorded, each whole, in the clock's queue.
"""

import logging
import weakref
from collections.abc import Callable, Hashable
from typing import Any

from diagnose.model.optype import Op
from diagnose.record.clock import Mark, Window
from diagnose.record.cost import Cost
from diagnose.record.hooks import Hooks
from diagnose.record.log import Log, StepLog, merge
from diagnose.record.sampling import DENSE_STEPS, MEASURED_STEPS, Sampling

LOGGER = logging.getLogger("diagnose.record")
#: Steps are left out while so many events wait to be read: the GPU, or the folder's disk, hangs.
MAX_MOMENTS = 100_000
#: After so many calls of `step()` without any optimizer the job has none, or none any more, and each call was a step.
MAX_PARTS = 1000
#: An optimizer that runs so often while another one does not run is all that there is to wait for.
MAX_RUNS = 16


class Steps:
    """Tells steps apart; a step is over when its optimizers have run.

    Parameters
    ----------
    log : Log
    sampling : Sampling
        Which steps are recorded, counted from the first that this process saw.
    cost : Cost
        Says what recording the first of them costs.
    wake : function
        Called when a run of recorded steps begins, when its first has been handed over, and with each that has events to be seen.
    """

    def __init__(self, log: Log, sampling: Sampling, cost: Cost, wake: Callable[[], None]) -> None:
        self.log = log
        self.sampling = sampling
        self.cost = cost
        self.wake = wake
        #: Called with the number of each step that is over, before what was recorded of it is handed over.
        self.on_end: Callable[[int], None] | None = None
        #: True where steps are found by the optimizers that run; else the loop says where they begin and end.
        self.follows = False
        #: Steps that are over, recorded or not.
        self.n_done = 0
        #: Number of the step that runs, or comes next.
        self.number = 0
        #: The loop says that a step runs; or, where optimizers are followed, work of a step has begun.
        self.is_open = False
        #: An optimizer has run in this step.
        self.is_updated = False
        #: Whether the job has optimizers; None while nobody knows.
        self.has_optimizer: bool | None = None
        #: What was recorded of this step: one part for each time that the loop said a step runs.
        self._parts: list[StepLog] = []
        self._n_parts = 0
        self._window: tuple[int, Window] | None = None
        #: From which step to before which one the window is the same that was asked for last, and that window.
        self._found: tuple[int, int, int | None] = (0, 0, None)
        #: No step before this one is recorded, nor does anything ask for those that end until then.
        self._rests_until = 0
        #: None of its steps has been handed over yet.
        self._is_new_window = False
        #: Somebody wants nothing to be recorded now; a run of steps that has begun is recorded to its end.
        self.is_paused = False
        #: How often each optimizer ran in this step, and which the job has.
        self._runs: dict[Hashable, int] = {}
        self._known: set[Hashable] = set()
        #: One ran for the first time: those that ran before it have had a step of their own.
        self._has_new = False
        #: The optimizer that runs now; since when, and how many computes had begun.
        self._running: Hashable = None
        self._started: tuple[Mark, int] | None = None
        #: An optimizer has begun within it.
        self._is_within = False
        self._look_ahead(n_more=0)

    def begin(self, number: int | None) -> None:
        """Begin a step of this number, or go on with the last where no optimizer has run in it."""
        if self._n_parts and self.is_updated and not self.is_open and self.n_done + 2 < self._rests_until:
            # Far from all that is recorded it is only counted: what a call touches is not in the processor's caches.
            self.n_done += 1
            self.number = self.number + 1 if number is None else number
            self.is_open, self.is_updated, self._has_new, self._n_parts = True, False, False, 1
            self._runs.clear()
            return
        self.follows = self.log.between.on = False
        if self.is_open:
            self.end()
        if self._n_parts and (self.is_updated or self.has_optimizer is False):
            self.finish()
        elif self._n_parts >= MAX_PARTS:
            self._part()
        self._open(number)

    def end(self) -> None:
        """End what `begin` began."""
        self.is_open = False
        if self.n_done + 1 >= self._rests_until:
            self.log.shut()
            self._look_ahead(n_more=1)

    def abandon(self) -> None:
        """Leave out the step that runs: an exception ended it."""
        if self.is_open:
            self.end()
            self._parts.clear()
            self.finish()

    def follow(self, number: int | None) -> None:
        """From now on a step is over when its optimizers have run and the next work begins."""
        if self.is_open:
            self.end()
        if self.is_updated:
            self.finish()
        self._hand_over([])
        self._rests_until = 0
        self.follows = self.log.between.on = True
        self.log.ahead.clear()
        if number is not None:
            self.number = number
        self._look_ahead(n_more=0)
        self.log.idle_since = self.log.clock.now() if self.log.beside.on else None

    def work_begins(self, *_args: Any, **_kwargs: Any) -> None:
        """Begin the next step with this work, where the last is over and optimizers are followed; an evaluation is none."""
        if not self.log.evaluates():
            self.training_begins()

    def training_begins(self, *_args: Any, **_kwargs: Any) -> None:
        """Begin the next step with work that is surely no evaluation, although the model may still be put for one."""
        if self.follows and not self.is_open and not self.log.is_outside():
            self._begin_next()

    def batch_is_asked_for(self, source: Any) -> None:
        """Begin the next step with a batch, if it is for the training."""
        if self.follows and not self.is_open and not (self.log.is_outside() or self.log.evaluates(source)):
            self.log.training_input = weakref.ref(source)
            self._begin_next()

    def schedule_begins(self, schedule: Any, *_args: Any, **_kwargs: Any) -> None:
        """Begin the next step with a pipeline's schedule, unless it evaluates, whatever mode its model is in."""
        if schedule._has_backward:  # noqa: SLF001
            self.training_begins()

    def _begin_next(self) -> None:
        if self._n_parts:
            self.finish()
        self._open(None)
        self.log.between.on = False

    def finish(self) -> None:
        """Hand the step that is over to the thread that writes."""
        if self.log.evaluation is not None:
            self.log.end_evaluation()
        if self.on_end is not None:
            self.on_end(self.number)
        if self.log.between.on:
            self.log.put_off()
        whole = self._parts if len(self._parts) < 2 else [merge(self._parts)]
        for step in whole:
            step.n_retries = self.log.count_retries()
        self.n_done += 1
        self.number += 1
        if self.n_done <= DENSE_STEPS:
            self._measure(is_recorded=bool(whole))
        self._hand_over(whole)

    def _measure(self, *, is_recorded: bool) -> None:
        """Measure what recording the last of the first steps costs, and record fewer of the others where it is much."""
        n_left = DENSE_STEPS - self.n_done
        if n_left == MEASURED_STEPS:
            self.cost.start()
        elif n_left < MEASURED_STEPS:
            self.cost.end_step(is_recorded=is_recorded)
        if not n_left:
            cost_share = self.cost.stop()
            self.sampling = self.sampling.cut(cost_share)
            self._found = 0, 0, None
            if self.sampling.n_cuts:
                LOGGER.info(
                    "diagnose records %.2g%% of the steps from now on: recording takes %.2g%% of each that it records",
                    100.0 * self.sampling.part,
                    100.0 * cost_share,
                )

    def _find_window(self, step: int) -> int | None:
        """Say which window a step is recorded in; asked when the one before it ends and again when it begins."""
        first, end, window = self._found
        if not first <= step < end:
            window, end = self.sampling.span(step)
            self._found = step, end, window
        return window

    def hand_over_ended(self) -> None:
        """Hand over the step that has ended, if any, before the next one begins."""
        if self.is_updated and not self.is_open:
            self.finish()

    def close(self) -> None:
        """Hand over what is whole when the job ends."""
        if self.is_open and not self.follows:
            self.end()
        if self.is_updated:
            self.finish()
        elif not self.has_optimizer:
            self._part()  # with an optimizer, the rest is no whole step

    def _part(self) -> None:
        """Take each part as a step: the job has no optimizer."""
        self.has_optimizer = False
        self.n_done += self._n_parts
        self.number += self._n_parts
        self._hand_over(self._parts)

    def _hand_over(self, steps: list[StepLog]) -> None:
        self.log.clock.moments.extend(steps)
        self.log.step = None
        self._parts, self._n_parts = [], 0
        self.is_updated = False
        self._runs.clear()
        self._has_new = False
        if steps and (self._is_new_window or self.log.clock.is_device):
            self._is_new_window = False
            self.wake()

    def follow_update(self, hooks: Hooks, owner: Any, name: str) -> None:
        """Take a method of a framework for an optimizer, around those of torch that it runs, or skips for an overflow."""

        def before(optimizer: Any, *_args: Any, **_kwargs: Any) -> Hashable:
            self.before_optimizer(id(optimizer), optimizer)
            return id(optimizer)

        def after(optimizer: Hashable, _result: Any) -> None:
            self.after_optimizer(optimizer)

        hooks.around(owner, name, self.log.always, before, after)

    def _open(self, number: int | None) -> None:
        """Begin a step, or a part of one; recorded, if it is to be."""
        if number is None:
            number = self.number + self._n_parts  # of a part that turns out to be a step
        elif not self._n_parts:
            self.number = number
        self.is_open = True
        self._n_parts += 1
        log, clock = self.log, self.log.clock
        if not self.follows and self.n_done + self._n_parts == 1:
            log.ahead.clear()  # what the job waited for before its first step is of none
        is_held_up = clock.is_paused or len(clock.moments) > MAX_MOMENTS
        window = None if is_held_up else self._find_window(self.n_done)
        if self.is_paused and (self._window is None or self._window[0] != window):
            window = None
        if window is None:
            log.close_switches()
            log.step = None
            log.ahead.clear()
            rests = not self.follows and self.on_end is None and self._found[2] is None
            self._rests_until = self._found[1] if rests else 0
            return
        self._rests_until = 0
        if self._window is None or self._window[0] != window:
            self._window = (window, Window())
            self._is_new_window = True
            log.count_retries()  # what came before is of no recorded step
            self.wake()
        log.open(number, self._window[1])
        assert log.step is not None
        self._parts.append(log.step)

    def _look_ahead(self, n_more: int) -> None:
        """Keep looking between steps where the last or the next is recorded."""
        is_next = self._find_window(self.n_done + n_more) is not None
        if not is_next:
            self.log.ahead.clear()
        self.log.beside.on = is_next or self.log.step is not None

    def before_optimizer(self, optimizer: Hashable, owner: object = None) -> None:
        """Note that an optimizer begins to run; `optimizer` is whatever tells it from others, for as long as `owner` is there."""
        if self._running not in (None, optimizer):
            # One within another: what came before it is a norm, or another computation of the framework's own.
            if not self._is_within and self._started is not None and self.log.step is not None:
                self._started = self.log.clock.now(), self._started[1]
            self._is_within = True
            return
        self._is_within = False
        self._running = optimizer
        if self.follows and not self.is_open and (optimizer in self._known or not self._n_parts):
            self._begin_next()  # it asks for the loss itself; another one belongs to the step before
        if optimizer not in self._known:
            self._has_new = True
            self._known.add(optimizer)
            if owner is not None:
                weakref.finalize(owner, self._forget, optimizer).atexit = False
        self.has_optimizer = True
        self._started = None
        if self.log.step is not None:
            self.log.idle_since = self.log.clock.now()
            self._started = self.log.idle_since, self.log.n_computes

    def _forget(self, optimizer: Hashable) -> None:
        """No longer wait for an optimizer that is gone: its training is over, and another may begin."""
        self._known.discard(optimizer)

    def after_optimizer(self, optimizer: Hashable) -> None:
        """Note that an optimizer has run: with that the step is over, unless the job has others."""
        if self._running != optimizer:
            return
        self._running = None
        log = self.log
        self.is_updated = True
        if log.step is not None and self._started is not None:
            start, n_computes = self._started
            if log.n_computes > n_computes and log.idle_since is not None:
                start = log.idle_since  # it asked for the loss itself; it is what was left to do after that
            log.idle_since = log.clock.now()
            if not log.backward_depth:  # else each weight has its optimizer, within the backward
                log.step.others.append((Op.OPTIMIZER, start, log.idle_since))
        runs = self._runs[optimizer] = self._runs.get(optimizer, 0) + 1
        if runs > MAX_RUNS:
            self._known = set(self._runs)
        if self.follows and self.is_open and (self._has_new or self._known <= self._runs.keys()):
            self.is_open = False
            log.between.on = True
            self._look_ahead(n_more=1)
            if log.step is None and log.beside.on:
                log.idle_since = log.clock.now()


def hook_steps(hooks: Hooks, log: Log, steps: Steps) -> None:
    """Note optimizers, and the work that comes after them; put in place after the hooks that note the work itself."""
    import torch
    from torch.optim import optimizer

    always, between = log.always, log.between

    def before(optimizer: Any, *_args: Any) -> None:
        steps.before_optimizer(id(optimizer), optimizer)

    def after(optimizer: Any, *_args: Any) -> None:
        steps.after_optimizer(id(optimizer))

    def before_scaled(scaler: Any, optimizer: Any, *_args: Any, **_kwargs: Any) -> Hashable:
        steps.before_optimizer((id(scaler), id(optimizer)), optimizer)
        return id(scaler), id(optimizer)

    def after_scaled(scaled: Hashable, _result: Any) -> None:
        steps.after_optimizer(scaled)

    hooks.on_undo(optimizer.register_optimizer_step_pre_hook(hooks.guarded(before, always)).remove)
    hooks.on_undo(optimizer.register_optimizer_step_post_hook(hooks.guarded(after, always)).remove)
    # Where gradients overflow the optimizer does not run, and the step is over nevertheless.
    hooks.around(torch.amp.GradScaler, "step", always, before_scaled, after_scaled)
    from torch.utils.data import dataloader

    hooks.around(dataloader._BaseDataLoaderIter, "__next__", between, steps.batch_is_asked_for)  # noqa: SLF001
    hooks.around(torch.nn.parallel.DistributedDataParallel, "forward", between, steps.work_begins)
    hooks.around(torch.autograd, "backward", between, steps.training_begins)
    from torch.distributed.fsdp import FSDPModule, _runtime_utils
    from torch.distributed.fsdp._fully_shard import _fsdp_param_group

    hooks.around(FSDPModule, "unshard", between, steps.work_begins)
    hooks.around(_fsdp_param_group.FSDPParamGroup, "pre_forward", between, steps.work_begins)
    hooks.around(_runtime_utils, "_pre_forward_unshard", between, steps.work_begins)
    from torch.distributed.pipelining import schedules

    for schedule in (schedules.PipelineScheduleSingle, schedules.PipelineScheduleMulti):
        hooks.around(schedule, "step", between, steps.schedule_begins)
