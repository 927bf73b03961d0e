"""What the hooks note while a step runs: as little as possible, on the training's own thread.

Enters: computes, transfers, collectives and pauses as they begin and end. Leaves: a `StepLog` for each recorded step.
Nothing here waits, writes or calls torch but for marks of the clock.
"""

import dataclasses
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable
from typing import Any

from diagnose.model.optype import Op
from diagnose.record.clock import Clock, Mark, Window
from diagnose.record.hooks import Switch

#: Asked of the class each takes 3 us between computes, where nothing is in the processor's caches.
FORWARD, BACKWARD = Op.FORWARD, Op.BACKWARD
#: Elements of a reduction of which nothing more is known than that it is one of gradients.
MANY = 1 << 40
#: No step has so many computes: none of its optimizers is one that a hook sees.
MAX_COMPUTES = 20_000
NO_OPTIMIZER = f"no optimizer has run in {MAX_COMPUTES:,} computes; expected one of torch's, or steps named by `step`"
#: Of the pauses before a step (an evaluation waits for as many batches as it has) the last are kept.
MAX_PAUSES = 1000


@dataclasses.dataclass(slots=True, init=False)
class Compute:
    """What is computed of one microbatch."""

    op: Op
    microbatch: int
    #: Pipeline stage within the model, 0 where there is no pipeline; -1 where the framework does not say.
    virtual: int
    #: `end` is None while it runs, or where nothing says when it ended.
    start: Mark
    end: Mark | None
    #: Times within in which it waited for parameters or gradients of other ranks.
    waits: list[tuple[Mark, Mark]]
    #: ... and within a pipeline, or for tensor- or context-parallel members, by what such a wait is called in a trace.
    beside: dict[str, list[tuple[Mark, Mark]]]
    #: A backward of the input's gradient alone: that of the weights comes later.
    is_split: bool

    def __init__(
        self,
        op: Op,
        microbatch: int,
        virtual: int,
        start: Mark,
        end: Mark | None = None,
        waits: list[tuple[Mark, Mark]] | None = None,
        is_split: bool = False,  # noqa: FBT001, FBT002 - as a dataclass makes it, whose own takes half as long again
    ) -> None:
        self.op, self.microbatch, self.virtual, self.start, self.end = op, microbatch, virtual, start, end
        self.waits = [] if waits is None else waits
        self.beside = {}
        self.is_split = is_split


@dataclasses.dataclass(slots=True)
class Transfer:
    """Point-to-point operations that were launched together."""

    #: Type, microbatch and virtual stage of each.
    members: list[tuple[Op, int, int]]
    #: Before they were launched, and how many computes had begun in the step by then.
    posted: Mark
    posted_at: int
    #: After they were launched.
    launched: Mark | None = None
    #: When the worker first waited for one of them, and when it had waited for all; None where it never did.
    wait_start: Mark | None = None
    wait_end: Mark | None = None
    #: How many computes had begun in the step when `wait_start` was.
    waited_at: int = -1


@dataclasses.dataclass(slots=True)
class Collective:
    """A collective outside the computes, or one that was launched within a compute, from where it is waited for."""

    #: It collects parameters, or reduces gradients; None where it does neither.
    gathers: bool | None
    n_elements: int
    #: How many computes had begun in the step.
    n_computes: int
    start: Mark
    end: Mark | None = None
    is_within: bool = False
    #: What a wait for it is called in a trace, where it is told beside its compute; empty where it is taken out.
    wait: str = ""

    def note_within(self, compute: Compute, start: Mark, end: Mark) -> None:
        """Note that a compute waited for it."""
        (compute.beside.setdefault(self.wait, []) if self.wait else compute.waits).append((start, end))


@dataclasses.dataclass(slots=True)
class StepLog:
    """One recorded step."""

    number: int
    window: Window
    begun: Mark
    computes: list[Compute] = dataclasses.field(default_factory=list)
    transfers: list[Transfer] = dataclasses.field(default_factory=list)
    collectives: list[Collective] = dataclasses.field(default_factory=list)
    #: Optimizer and clipping.
    others: list[tuple[Op, Mark, Mark]] = dataclasses.field(default_factory=list)
    #: Pauses on the host's clock: type, start and end in nanoseconds.
    evidence: list[tuple[Op | str, int, int]] = dataclasses.field(default_factory=list)
    #: By microbatch: tokens, sum of squared document lengths (NaN where unknown), document lengths.
    lengths: dict[int, tuple[float, float, list[int] | None]] = dataclasses.field(default_factory=dict)
    #: Retries of the allocator while it ran.
    n_retries: int = 0
    #: How many backwards have begun that autograd ran for no schedule.
    n_backwards: int = 0

    @property
    def n_microbatches(self) -> int:
        """How many microbatches have been noted."""
        return max([*self.lengths, *(compute.microbatch for compute in self.computes)], default=-1) + 1


def merge(parts: list[StepLog]) -> StepLog:
    """Join the parts of one step, in order: microbatches are counted on."""
    whole = parts[0]
    for part in parts[1:]:
        n_computes = len(whole.computes)
        n_microbatches = whole.n_microbatches
        for compute in part.computes:
            compute.microbatch += n_microbatches if compute.microbatch >= 0 else 0
        for transfer in part.transfers:
            transfer.members = [(op, n + n_microbatches if n >= 0 else n, at) for op, n, at in transfer.members]
            transfer.posted_at += n_computes
            transfer.waited_at += n_computes if transfer.waited_at >= 0 else 0
        for collective in part.collectives:
            collective.n_computes += n_computes
        whole.computes += part.computes
        whole.transfers += part.transfers
        whole.collectives += part.collectives
        whole.others += part.others
        whole.evidence += part.evidence
        whole.lengths |= {n + n_microbatches: lengths for n, lengths in part.lengths.items()}
    return whole


def is_in_evaluation(model: Any) -> bool:
    """True where neither a model nor what it wraps is in training mode: frameworks switch back without telling the wrapper."""
    while not model.training:
        inner = list(model.children())
        if len(inner) != 1:
            return not any(one.training for one in inner)
        model = inner[0]
    return False


class Log:
    """The step that runs now."""

    def __init__(self, clock: Clock) -> None:
        self.clock = clock
        #: On while a recorded step runs.
        self.inside = Switch()
        #: On while a recorded step runs, but for what a hook notes as one: what that calls is not noted again.
        self.apart = Switch()
        #: On also between a recorded step and its neighbours.
        self.beside = Switch()
        #: On after a step whose optimizers have run, where the next work begins the next one.
        self.between = Switch()
        #: On until the recorder stops.
        self.always = Switch()
        self.always.on = True
        #: The recorded step, also for a while after it has ended.
        self.step: StepLog | None = None
        #: The compute that runs now.
        self.current: Compute | None = None
        #: Who says what is a compute: "" (autograd does), "pipelining", "megatron" or "own".
        self.driver = ""
        self.backward_depth = 0
        self.saving_depth = 0
        #: How many operations that the job has named (an evaluation, a save) run now, one within another.
        self.named_depth = 0
        #: The models that were put into evaluation, by id (to ask a set of these takes long in each compute), and those that were
        #: still in it at a backward, so that it says nothing.
        self.evaluated: dict[int, weakref.ref[Any]] = {}
        self.left_in_evaluation: weakref.WeakSet[Any] = weakref.WeakSet()
        #: The loader's iterator that the training reads from.
        self.training_input: Callable[[], Any] = lambda: None
        #: The evaluation that runs: when it began, and when something of it was seen last, by the host's counter.
        self.evaluation: tuple[int, int] | None = None
        #: Whether anything was saved, and whether a loader was asked for a batch, in this job.
        self.saves = self.reads = False
        self.idle_since: Mark | None = None
        #: `idle_since` as a batch came, or as the loop said that a step begins: from then on the training computes on it.
        self.given_since: Mark | None = None
        self.pending: dict[int, tuple[Any, Transfer | Collective]] = {}
        #: Pauses that belong to the step that comes next: waits for its input, and what stops its first forward.
        self.ahead: deque[tuple[Op | str, int, int]] = deque(maxlen=MAX_PAUSES)
        self.thread = threading.get_ident()
        #: How many retries of the allocator there were since it was last asked.
        self.count_retries: Callable[[], int] = int
        #: Whether gradients are computed.
        self.is_grad_enabled: Callable[[], bool] = lambda: True

    def open(self, number: int, window: Window) -> None:
        """Begin a recorded step."""
        self.thread = threading.get_ident()
        begun = self.clock.now()
        self.step = StepLog(number, window, begun)
        if not self.between.on or self.idle_since is None:
            # Else it computes since the last optimizer, unless something else is seen.
            self.idle_since = self.given_since = begun
        self.evaluation = None
        self.backward_depth = self.saving_depth = 0  # what an exception left behind
        self.step.evidence += self.ahead
        self.ahead.clear()
        self.inside.on = self.apart.on = self.beside.on = True

    def close_switches(self) -> None:
        """Note nothing of what runs now."""
        self.inside.on = self.apart.on = self.beside.on = False

    def begin_one(self) -> Mark:
        """Mark where something begins that is noted as one."""
        self.apart.on = False
        return self.clock.now()

    def end_one(self) -> Mark:
        """Mark where it ends."""
        self.reopen()
        return self.clock.now()

    def reopen(self) -> None:
        """Note again what runs, after what was noted as one, or failed."""
        self.apart.on = self.inside.on

    def is_training_thread(self) -> bool:
        """True on the thread that runs the steps; false on others of the job, which save or read ahead beside it."""
        return threading.get_ident() == self.thread

    def is_outside(self) -> bool:
        """True beside the thread that runs the steps, and within what the job has named: nothing there has a row of its own."""
        return self.named_depth > 0 or not self.is_training_thread()

    def evaluates(self, source: Any = None) -> bool:
        """True where no gradients are computed, or a batch is read from a new source for a model that is in evaluation."""
        if not self.is_grad_enabled():
            return True
        if not self.evaluated:
            return False
        return (source is None or self.training_input() is not source) and any(map(is_in_evaluation, self._evaluated()))

    def note_evaluated(self, model: Any) -> None:
        """Note that a model is put into evaluation; one without anything to train (a teacher) never leaves it."""
        if self.is_outside() or model in self.left_in_evaluation:
            return
        if any(parameter.requires_grad for parameter in model.parameters()):
            self.evaluated[id(model)] = weakref.ref(model)

    def _evaluated(self) -> list[Any]:
        return [model for found in self.evaluated.values() if (model := found()) is not None]

    def trains(self) -> None:
        """Note a backward: what is in evaluation nevertheless (frozen layers, a second model, all that is tuned) tells nothing."""
        left = [model for model in self._evaluated() if is_in_evaluation(model)]
        self.evaluated.clear()
        if left:
            self.left_in_evaluation.update(left)
            self.evaluation = None

    def note_evaluation(self) -> None:
        """Note that something of an evaluation begins or ends now; within a compute (a teacher's forward) it is part of that."""
        if self.step is not None and self.current is None and not self.is_outside():
            now = time.perf_counter_ns()
            self.evaluation = (now if self.evaluation is None else self.evaluation[0]), now

    def before_evaluating(self, *_args: Any, **_kwargs: Any) -> bool:
        """Note an evaluation before something that the training does, too."""
        is_evaluation = self.evaluates()
        if is_evaluation:
            self.note_evaluation()
        return is_evaluation

    def after_evaluating(self, _is_evaluation: bool, _result: Any) -> None:  # noqa: FBT001 - as hooks are called
        """Note it after that."""
        self.note_evaluation()

    def begin_named(self, op: Op | str) -> tuple[Op | str, int]:
        """Note that something begins which somebody has named, and which is no compute; `end_named` gets what this gives."""
        self.end_evaluation()
        self.named_depth += 1
        self.saves |= op == Op.CHECKPOINT
        self.reads |= op == Op.DATA_LOAD
        return op, time.perf_counter_ns()

    def end_named(self, begun: tuple[Op | str, int]) -> None:
        """Note that it ends; within another it is part of that."""
        self.named_depth = max(self.named_depth - 1, 0)
        if not self.named_depth:
            self.pause(*begun, time.perf_counter_ns())

    def end_evaluation(self) -> None:
        """Note the evaluation that ran, if one did: something else begins."""
        if self.evaluation is not None:
            (start, end), self.evaluation = self.evaluation, None
            if end > start:
                self.pause(Op.EVAL, start, end)

    def shut(self) -> None:
        """End the step; what comes before the next one still belongs to it."""
        self.end_evaluation()
        self.inside.on = self.apart.on = False
        self.current = None
        self.driver = ""
        self.pending.clear()

    def begin(self, op: Op, microbatch: int, virtual: int = 0, mark: Mark | None = None) -> Compute:
        """Begin a compute, now or at a mark."""
        assert self.step is not None
        if self.evaluated and op == BACKWARD:
            self.trains()
        if self.evaluation is not None:
            self.end_evaluation()
        self.current = compute = Compute(op, microbatch, virtual, self.clock.now() if mark is None else mark)
        computes = self.step.computes
        computes.append(compute)
        if len(computes) > MAX_COMPUTES:
            raise RuntimeError(NO_OPTIMIZER)
        return compute

    def batch_came(self, start_ns: int, end_ns: int, *, is_row: bool) -> None:
        """Note that a loader gave the training a batch, and that it waited for it."""
        if is_row:
            self.pause(Op.DATA_LOAD, start_ns, end_ns)
        if self.inside.on and self.current is None:
            if not is_row:
                self.idle_since = self.clock.now()
            self.given_since = self.idle_since

    def take_waits(self, compute: Compute) -> None:
        """Make collectives since a compute began waits within it: it is seen only now that it had begun."""
        assert self.step is not None
        collectives, since_ns = self.step.collectives, self.clock.host_ns(compute.start)
        while collectives and self.clock.host_ns(collectives[-1].start) >= since_ns:
            collective = collectives.pop()
            collective.is_within = True
            compute.waits.append((collective.start, collective.end or collective.start))

    def turn(self, forward: Compute) -> Compute:
        """End a forward and begin its backward, at one moment."""
        assert self.step is not None
        if self.evaluated:
            self.trains()
        if self.evaluation is not None:
            self.end_evaluation()
        forward.end = self.idle_since = mark = self.clock.now()
        self.current = backward = Compute(BACKWARD, forward.microbatch, 0, mark)
        computes = self.step.computes
        computes.append(backward)
        if len(computes) > MAX_COMPUTES:
            raise RuntimeError(NO_OPTIMIZER)
        return backward

    def end(self, compute: Compute | None, _result: Any = None) -> None:
        """End a compute, where a hook saw it begin."""
        if compute is not None:
            compute.end = self.idle_since = self.clock.now()
            if self.current is compute:
                self.current = None

    def launch(self, transfer: Transfer | None, works: Any = None) -> None:
        """Note a transfer that has been launched, where a hook saw it, and look for its end where its works are waited for."""
        if transfer is not None and self.step is not None:
            transfer.launched = self.clock.now()
            self.step.transfers.append(transfer)
            self.watch(works, transfer)

    def watch(self, works: Any, noted: Transfer | Collective) -> None:
        """Look for the end of what was launched where its works are waited for."""
        for work in works if isinstance(works, list) else [works]:
            if work is not None:
                # Not kept alive: a work that nobody waits for holds its tensors. Another may get its id.
                self.pending[id(work)] = (weakref.ref(work), noted)

    def note_reduction(self, start: Mark, end: Mark) -> None:
        """Note a reduction of gradients of which nothing more is known."""
        if self.step is not None:
            self.step.collectives.append(
                Collective(gathers=False, n_elements=MANY, n_computes=self.n_computes, start=start, end=end)
            )

    def end_reduction(self, start: Mark | None, _result: Any) -> None:
        """End a reduction of gradients as `note_reduction` notes it, where a hook saw it begin."""
        if start is not None:
            self.note_reduction(start, self.end_one())

    @property
    def n_computes(self) -> int:
        """How many computes have begun in this step."""
        return len(self.step.computes) if self.step else 0

    @property
    def n_microbatches(self) -> int:
        """How many microbatches have been computed in this step."""
        return max((compute.microbatch for compute in self.step.computes), default=-1) + 1 if self.step else 0

    def evidence(self, op: Op, start_ns: int, end_ns: int) -> None:
        """Note a pause of the host in whatever it did."""
        if self.step is not None:
            self.step.evidence.append((op, start_ns, end_ns))
        elif self.between.on:
            self.ahead.append((op, start_ns, end_ns))

    def put_off(self) -> None:
        """Keep for the next step what has stopped the host since that step computes: nothing else says where its forward began."""
        if self.step is None or self.idle_since is None:
            return
        since_ns = self.clock.host_ns(self.idle_since)
        self.ahead += [pause for pause in self.step.evidence if pause[1] >= since_ns]
        self.step.evidence = [pause for pause in self.step.evidence if pause[1] < since_ns]

    def pause(self, op: Op | str, start_ns: int, end_ns: int) -> None:
        """Note what the training did instead of computing; a wait for input before a step is that step's."""
        if op == Op.DATA_LOAD and not self.inside.on:
            self.ahead.append((op, start_ns, end_ns))
        elif self.step is not None:
            self.step.evidence.append((op, start_ns, end_ns))
        if self.beside.on and self.current is None:
            self.idle_since = self.clock.now()
