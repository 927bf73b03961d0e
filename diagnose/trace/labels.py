"""Number the labels of a column: ranks, stages, steps.

Enters: a column of whole numbers. Leaves: its distinct values, and which of them each row has. Costs one pass where the values lie
close together.
"""

from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from diagnose.model.trace import Bools, Ints

#: Labels are numbered by a table where they span no more than this; else they are sorted.
MAX_LABEL_RANGE = 1 << 20
#: Rows counted at a time.
CHUNK_ROWS = 1 << 17


def number_labels(values: NDArray[Any]) -> tuple[Ints, NDArray[Any], Ints]:
    """Number the distinct values of a column in order, shape (n_rows,).

    Returns
    -------
    labels, index, counts : ndarray of int, shapes (n_labels,), (n_rows,), (n_labels,)
        The distinct values, increasing; the position of each row's value among them; the rows of each.
    """
    low, high = int(values.min()), int(values.max())
    if high - low < MAX_LABEL_RANGE:
        # What a small type cannot hold wraps around, twice; the difference is small.
        small = small_type(high - low)
        offset = np.subtract(values, np.asarray(low, values.dtype), dtype=small, casting="unsafe")
        counts = count_rows(offset, high - low + 1)
        labels = np.flatnonzero(counts)
        if len(labels) == len(counts):
            return labels + low, offset, counts
        lookup = np.zeros(len(counts), dtype=small)
        lookup[labels] = np.arange(len(labels))
        return labels + low, look_up(lookup, offset), counts[labels]
    labels, index, counts = np.unique(values, return_inverse=True, return_counts=True)
    return labels.astype(np.int64), index, counts


def small_type(most: int) -> type[np.signedinteger[Any]]:
    """Give a type in which numbers up to `most` take little memory; not the smallest, which hardly any arithmetic fits into."""
    return next(of for of in (np.int16, np.int32, np.int64) if most <= np.iinfo(of).max)


def count_rows(index: NDArray[Any], n: int) -> Ints:
    """Count the rows of each of n numbers, as `bincount` does."""
    if n > CHUNK_ROWS:
        return np.bincount(index, minlength=n)
    counts = np.zeros(n, dtype=np.int64)
    for some in cut_rows(len(index)):
        counts += np.bincount(index[some], minlength=n)
    return counts


def cut_rows(n_rows: int) -> Iterator[slice]:
    """Cut rows into as many as stay within the cache: numpy widens what counts or indexes before it does anything."""
    return (slice(first, first + CHUNK_ROWS) for first in range(0, n_rows, CHUNK_ROWS))


def look_up(table: NDArray[Any], index: NDArray[Any]) -> NDArray[Any]:
    """Take a value of a small table for each row."""
    found = np.empty(len(index), table.dtype)
    for some in cut_rows(len(index)):
        found[some] = table.take(index[some])
    return found


def number_combinations(*columns: NDArray[Any]) -> Ints:
    """Number the distinct combinations of some columns, in their order."""
    found = np.zeros(len(columns[0]), dtype=np.int64)
    for column in columns:
        values, index = np.unique(column, return_inverse=True)
        found = np.unique(found * max(len(values), 1) + index, return_inverse=True)[1]
    return found


def mark_last_attempts(attempt: Ints, *place: Ints) -> Bools:
    """Mark the rows, shape (n_rows,), of the last attempt at each place, such as a step, or a step of a rank."""
    key = number_combinations(*place)
    last = np.full(int(key.max(initial=-1)) + 1, -1, dtype=np.int64)
    np.maximum.at(last, key, attempt)
    return np.asarray(attempt == last[key])
