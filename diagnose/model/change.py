"""What a fix changes about a job, as data that a replay understands."""

import dataclasses
from collections.abc import Callable, Sequence

import numpy as np

from diagnose.model.trace import Bools, Ints, Seconds


@dataclasses.dataclass(frozen=True, slots=True)
class Remove:
    """Take a component out of the times."""

    #: One of `COMPONENTS`.
    component: str
    #: Shape (n_dp, n_stages): on these workers only (of a transfer: where one end, or one member, is among them); None:
    #: everywhere.
    workers: Bools | None = None


@dataclasses.dataclass(frozen=True, slots=True)
class Scale:
    """Multiply the own times of operations of some types, by their `Op` codes, whatever they consist of.

    The factor is broadcastable to (n_stages, n_steps, n_dp).
    """

    ops: frozenset[int]
    factor: Seconds

    def factor_of(self, stage: int | Ints) -> Seconds:
        """Give the factor of a stage, shape broadcastable to (n_steps, n_dp), or of several, the first axis."""
        return np.asarray(self.factor[stage if len(self.factor) > 1 else 0])


@dataclasses.dataclass(frozen=True, slots=True)
class Work:
    """Give computes other work, multiplied by a factor; their stalls stay.

    The factor is broadcastable to (n_directions, n_virtual, n_microbatches, n_steps, n_dp), axes as in `Breakdown`.
    """

    factor: Seconds


@dataclasses.dataclass(frozen=True, slots=True)
class Spend:
    """Add time between the steps, in which everybody does the same: seconds, broadcastable to (n_steps,)."""

    seconds: Seconds


@dataclasses.dataclass(frozen=True, slots=True)
class Reschedule:
    """Run the same work under another pipeline schedule."""

    #: One of `diagnose.model.schedule.SCHEDULES`.
    schedule: str
    #: Model chunks of each stage afterwards.
    chunks: int
    #: Shape (n_directions, n_virtual_after, n_virtual_before): which part of the work of each virtual stage, forward and
    #: backward, each of the new ones does; columns sum to 1.
    share: Seconds
    #: Part of a backward that computes weight gradients, where the schedule does them later and the job does not do them apart.
    weight_share: float = 0.5
    #: How many times as long computes take that run at the same time as another; None: they run one after the other instead.
    overlap_cost: float | None = None
    #: Cut each microbatch into so many: computes and transfers take that part of their time, and are launched as late as
    #: before.
    pieces: int = 1


Change = Remove | Scale | Work | Spend | Reschedule

#: Says how long each step takes with some changes, all at once: seconds, shape (n_steps,), in the order of the blocks.
Price = Callable[[Sequence[Change]], Seconds]
