"""Operations of one rank as they are found, and in columns.

Enters: nothing. Leaves: `Operation`, which is changed while its rank is read, and `Operations`, which travel between processes.
"""

import dataclasses
from collections import Counter
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from diagnose.model.columns import ColumnTable
from diagnose.model.trace import Ints, Seconds

#: Stands for the type of an operation that is the wait, within a compute, for the others of a process group.
WAIT = -1
#: What is dropped with a step that is not whole, and why.
CUT = ("operations outside every step", "the profiler's first and last steps are cut")


@dataclasses.dataclass(slots=True)
class Operation:
    """One operation of one rank; times are microseconds of the file."""

    op: int
    step: int
    start: float  # when it ran, on the GPU where there is one
    end: float
    asked: float  # when the host launched it
    returned: float  # when the host went on
    stage: int = -1  # of the model, virtual ones counted through; -1 where it is not said
    microbatch: int = -1  # -1 where there is none, as for `chunk`
    chunk: int = -1
    seq: int = -1  # count of a collective in its group; -1 where unknown
    group: str = ""  # of the process group that it is a wait for
    earlier: float = 0.0  # it is put so much before the time that it ran
    shorter: float = 0.0  # it is made so much shorter than it was


class OperationList:
    """Operations of one rank as they are found, in no order, and what was dropped on the way.

    Its steps have `numbers`, `starts` and `ends`, shape (n_steps,) each; microseconds of the file.
    """

    def __init__(self, numbers: Ints, starts: Seconds, ends: Seconds) -> None:
        self.listed: list[Operation] = []
        self.numbers, self.starts, self.ends = numbers, starts, ends
        self.dropped: Counter[tuple[str, str]] = Counter()

    def step_at(self, time: float) -> int:
        """Say in which step a time of the host lies; -1: in none."""
        at = int(np.searchsorted(self.starts, time, side="right")) - 1
        return at if at >= 0 and time < self.ends[at] else -1

    def add(self, op: int, start: float, end: float) -> Operation | None:
        """Add an operation where it lies in a step."""
        step = self.step_at(start)
        if step < 0:
            self.dropped[CUT] += 1
            return None
        made = Operation(op, int(self.numbers[step]), start, end, start, end)
        self.listed.append(made)
        return made


@dataclasses.dataclass(frozen=True, slots=True)
class Operations(ColumnTable):
    """Operations of one rank, one entry each, in any order, with what `Operation` says of them; shape (n,) each."""

    op: NDArray[np.int8]  # `Op`, or `WAIT`
    step: Ints
    stage: Ints
    microbatch: Ints
    chunk: Ints
    seq: Ints
    group: NDArray[np.str_]
    start: Seconds  # microseconds of the file
    end: Seconds

    @classmethod
    def of(cls, listed: Sequence[Operation]) -> "Operations":
        """Put operations into columns."""
        kinds: dict[str, type] = {"op": np.int8, "group": np.str_, "start": np.float64, "end": np.float64}
        names = [field.name for field in dataclasses.fields(cls)]
        return cls(*(np.array([getattr(o, name) for o in listed], kinds.get(name, np.int64)) for name in names))
