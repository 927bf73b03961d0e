"""What the hooks note while a step runs: as little as possible, on the training's own thread.

Enters: computes, transfers, collectives and pauses as they begin and end. Leaves: a `StepLog` for each recorded step.
Nothing here waits, writes or calls torch but for marks of the clock.
"""

import dataclasses
import threading
from collections import deque
from collections.abc import Callable
from typing import Any

from diagnose.model.optype import Op
from diagnose.record.clock import Clock, Mark, Window
from diagnose.record.hooks import Switch

#: Of the waits for input before a step (an evaluation has as many as it has batches) the last are kept.
MAX_WAITS = 1000


@dataclasses.dataclass(slots=True)
class Compute:
    """A forward or a backward of one microbatch.

    Attributes
    ----------
    op : Op or None
        None for the gradients of weights alone, which the trace format has no type for.
    virtual : int
        Pipeline stage within the model, 0 where there is no pipeline; -1 where the framework does not say.
    start, end : Mark or None
        `end` is None while it runs, or where nothing says when it ended.
    waits : list of (Mark, Mark)
        Times within in which it waited for parameters or gradients of other ranks.
    n_retries : int
        Retries of the allocator while it ran.
    """

    op: Op | None
    microbatch: int
    virtual: int
    start: Mark
    end: Mark | None = None
    waits: list[tuple[Mark, Mark]] = dataclasses.field(default_factory=list)
    n_retries: int = 0


@dataclasses.dataclass(slots=True)
class Transfer:
    """Point-to-point operations that were launched together.

    Attributes
    ----------
    members : list of (Op, int, int)
        Type, microbatch and virtual stage of each.
    posted, launched : Mark or None
        Before and after they were launched.
    wait_start, wait_end : Mark or None
        When the worker first waited for one of them, and when it had waited for all; None where it never did.
    posted_at, waited_at : int
        How many computes had begun in the step by then.
    """

    members: list[tuple[Op, int, int]]
    posted: Mark
    posted_at: int
    launched: Mark | None = None
    wait_start: Mark | None = None
    wait_end: Mark | None = None
    waited_at: int = -1


@dataclasses.dataclass(slots=True)
class Collective:
    """A collective outside the computes.

    Attributes
    ----------
    gathers : bool
        It collects parameters; else it reduces.
    n_computes : int
        How many computes had begun in the step.
    """

    gathers: bool
    n_elements: int
    n_computes: int
    start: Mark
    end: Mark | None = None


@dataclasses.dataclass(slots=True)
class StepLog:
    """One recorded step.

    Attributes
    ----------
    others : list of (Op, Mark, Mark)
        Optimizer and clipping.
    evidence : list of (Op, int, int)
        Pauses on the host's clock: type, start and end in nanoseconds.
    lengths : dict of int to (float, float, list of int or None)
        By microbatch: tokens, sum of squared document lengths (NaN where unknown), document lengths.
    """

    number: int
    window: Window
    begun: Mark
    computes: list[Compute] = dataclasses.field(default_factory=list)
    transfers: list[Transfer] = dataclasses.field(default_factory=list)
    collectives: list[Collective] = dataclasses.field(default_factory=list)
    others: list[tuple[Op, Mark, Mark]] = dataclasses.field(default_factory=list)
    evidence: list[tuple[Op, int, int]] = dataclasses.field(default_factory=list)
    lengths: dict[int, tuple[float, float, list[int] | None]] = dataclasses.field(default_factory=dict)
    n_left_out: int = 0


class Log:
    """The step that runs now.

    Attributes
    ----------
    inside : Switch
        On while a recorded step runs.
    beside : Switch
        On also between a recorded step and its neighbours.
    always : Switch
        On until the recorder stops.
    step : StepLog or None
        The recorded step, also for a while after it has ended.
    current : Compute or None
        The compute that runs now.
    driver : str
        Who says what is a compute: "" (autograd does), "pipelining", "megatron" or "own".
    retries : function
        How many retries of the allocator there were since it was last asked.
    in_transfer : bool
        A transfer that is already noted runs; what it calls is not noted again.
    """

    def __init__(self, clock: Clock) -> None:
        self.clock = clock
        self.inside = Switch()
        self.beside = Switch()
        self.always = Switch()
        self.always.on = True
        self.step: StepLog | None = None
        self.current: Compute | None = None
        self.driver = ""
        self.in_transfer = False
        self.backward_depth = 0
        self.saving_depth = 0
        self.idle_since: Mark | None = None
        self.pending: dict[int, tuple[Any, Transfer | Collective]] = {}
        self.waiting_input: deque[tuple[int, int]] = deque(maxlen=MAX_WAITS)
        self.thread = threading.get_ident()
        self.retries: Callable[[], int] = int

    def open(self, number: int, window: Window) -> None:
        """Begin a recorded step."""
        self.thread = threading.get_ident()
        self.step = StepLog(number, window, self.clock.now())
        self.idle_since = self.step.begun
        self.backward_depth = self.saving_depth = 0  # what an exception left behind
        self.step.evidence += [(Op.DATA_LOAD, start, end) for start, end in self.waiting_input]
        self.waiting_input.clear()
        self.inside.on = self.beside.on = True

    def is_training_thread(self) -> bool:
        """True on the thread that runs the steps; false on others of the job, which save or read ahead beside it."""
        return threading.get_ident() == self.thread

    def shut(self) -> None:
        """End the step; what comes before the next one still belongs to it."""
        self.inside.on = False
        self.current = None
        self.driver = ""
        self.in_transfer = False
        self.pending.clear()

    def begin(self, op: Op | None, microbatch: int, virtual: int = 0) -> Compute:
        """Begin a compute."""
        assert self.step is not None
        compute = Compute(op, microbatch, virtual, self.clock.now())
        self.step.computes.append(compute)
        self.current = compute
        return compute

    def end(self, compute: Compute) -> None:
        """End a compute."""
        compute.end = self.idle_since = self.clock.now()
        compute.n_retries = self.retries()
        if self.current is compute:
            self.current = None

    @property
    def n_computes(self) -> int:
        """How many computes have begun in this step."""
        return len(self.step.computes) if self.step else 0

    def evidence(self, op: Op, start_ns: int, end_ns: int) -> None:
        """Note a pause of the host."""
        if self.step is not None:
            self.step.evidence.append((op, start_ns, end_ns))
