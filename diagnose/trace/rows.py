"""The rows of a trace as columns, and what is done with rows alone: taking some, and counting operations.

Enters: what a reader found. Leaves: `Rows`, one numpy array a column.
"""

import dataclasses
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from diagnose.model.columns import begins_run
from diagnose.model.optype import Op
from diagnose.model.recording import Account
from diagnose.model.trace import Bools, Ints

if TYPE_CHECKING:  # a log is read without pyarrow
    from diagnose.trace.list_column import ListColumn

#: Index of the step, dp rank and stage of every row.
RowIndex = tuple[NDArray[Any], NDArray[Any], NDArray[Any]]
#: Numbers of steps, dp ranks and stages.
GridSizes = tuple[int, int, int]


@dataclasses.dataclass(frozen=True, slots=True)
class Rows:
    """The columns of a trace, one entry a row: arrays of shape (n_rows,), whole numbers in the width of the file."""

    step: NDArray[Any]
    dp: NDArray[Any]
    stage: NDArray[Any]
    op: NDArray[np.int8]  # `Op`; -1 where the type is none of these
    start_s: NDArray[Any]
    duration_s: NDArray[Any]
    seq: NDArray[Any] | None
    microbatch: NDArray[Any] | None
    chunk: NDArray[Any] | None
    rank: NDArray[Any] | None
    tp_rank: NDArray[Any] | None
    cp_rank: NDArray[Any] | None
    host: NDArray[Any] | None
    host_names: tuple[str, ...]
    tokens: NDArray[Any] | None
    tokens_sq: NDArray[Any] | None
    expert_tokens: NDArray[Any] | None
    bad: Bools | None  # where a required value is null, not finite or impossible; None: nowhere
    job: dict[str, Any]
    position: NDArray[Any] | None = None  # of the model chunk within the model; -1 where there is none
    number: NDArray[np.int32] | None = None  # which row of the file it is; None without `lists`
    lists: "ListColumn | None" = None  # document lengths, read later
    other: NDArray[np.int32] | None = None  # of rows of other types than `Op`: position in `other_types`, -1 elsewhere
    other_types: tuple[str, ...] = ()
    recording: Account | None = None  # what another producer's files could not bring along; None where there were none
    recording_warnings: tuple[str, ...] = ()  # what the reader of those files warned of
    restarts: tuple[int, ...] = ()  # steps with which the job was started again, where the files say so

    def __len__(self) -> int:
        return len(self.op)


def take_rows(rows: Rows, keep: NDArray[Any]) -> Rows:
    """Keep some rows, by mask or by position."""
    changed = {}
    for field in dataclasses.fields(rows):
        value = getattr(rows, field.name)
        if isinstance(value, np.ndarray):
            changed[field.name] = value[keep]
    return dataclasses.replace(rows, **changed)


def take_index(at: RowIndex, keep: NDArray[Any]) -> RowIndex:
    """Keep the indices of some rows."""
    step, dp, stage = at
    return step[keep], dp[keep], stage[keep]


def row_key(rows: Rows, at: RowIndex, sizes: GridSizes) -> Ints:
    """Number each (step, dp rank, stage, type)."""
    step_at, dp_at, stage_at = at
    worker = (step_at.astype(np.int64) * sizes[1] + dp_at) * sizes[2] + stage_at
    return np.asarray(worker * len(Op) + rows.op)


def derive_seq(key: Ints, start_s: NDArray[Any], duration_s: NDArray[Any] | None = None) -> Ints:
    """Count the operations of each key by start, and those that start together by end, where durations are given."""
    order = np.lexsort((start_s, key) if duration_s is None else (duration_s, start_s, key))
    ordered = key[order]
    first = np.flatnonzero(begins_run(ordered))
    seq = np.empty(len(key), dtype=np.int64)
    seq[order] = np.arange(len(key)) - np.repeat(first, np.diff(np.r_[first, len(key)]))
    return seq
