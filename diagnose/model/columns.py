"""Tables of arrays: dataclasses whose fields are columns of one length, one entry a row."""

import dataclasses
from collections.abc import Sequence
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray


@dataclasses.dataclass(frozen=True, slots=True)
class ColumnTable:
    """What every such table can do."""

    def __len__(self) -> int:
        return len(getattr(self, dataclasses.fields(self)[0].name))

    def take(self, at: NDArray[Any]) -> Self:
        """Give some of the rows, by mask or by position."""
        at = np.flatnonzero(at) if at.dtype == bool else at  # found once for all columns
        return type(self)(*(getattr(self, field.name)[at] for field in dataclasses.fields(self)))

    @classmethod
    def join(cls, parts: Sequence[Self]) -> Self:
        """Put the rows of several tables, at least one, one after the other."""
        return cls(*(np.concatenate([getattr(part, f.name) for part in parts]) for f in dataclasses.fields(cls)))


def begins_run(*columns: NDArray[Any]) -> NDArray[np.bool_]:
    """Mark the rows, shape (n_rows,), that differ from the row before in any of some columns, and the first one."""
    found = np.zeros(len(columns[0]), dtype=bool)
    found[:1] = True
    for column in columns:
        found[1:] |= column[1:] != column[:-1]
    return found
