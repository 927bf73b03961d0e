"""Labels are numbered as `numpy.unique` numbers them, whatever their width and wherever they lie."""

import numpy as np
import pytest

from diagnose.trace.labels import CHUNK_ROWS, MAX_LABEL_RANGE, count_rows, look_up, number_labels


@pytest.mark.parametrize("kind", ["i1", "i2", "i4", "i8", "u1", "u2", "u4"])
@pytest.mark.parametrize("where", ["lowest", "zero", "highest"])
@pytest.mark.parametrize("gaps", [1, 3])
def test_as_unique_has_it(kind: str, where: str, gaps: int) -> None:
    """The differences to the least label fit 32 bits, also where labels themselves do not."""
    bounds = np.iinfo(kind)
    first = {"lowest": bounds.min, "zero": 0, "highest": int(bounds.max) - 99}[where]
    values = np.array([first + gaps * int(n) for n in np.random.default_rng(1).integers(0, 33, 1000)], dtype=kind)
    check(values)


def test_labels_far_apart() -> None:
    """A range too wide for a table is sorted."""
    check(np.array([5, 2 * MAX_LABEL_RANGE, 5, -7, 2**40]))


@pytest.mark.parametrize("n_rows", [0, 1, CHUNK_ROWS, CHUNK_ROWS + 1, 2 * CHUNK_ROWS + 7])
@pytest.mark.parametrize("n", [9, CHUNK_ROWS, CHUNK_ROWS + 1])
def test_rows_are_counted_and_looked_up_in_parts(n_rows: int, n: int) -> None:
    """As all at once, to the last row; the last number has none."""
    index = np.random.default_rng(n_rows).integers(0, n - 1, n_rows).astype(np.int32)
    np.testing.assert_array_equal(count_rows(index, n), np.bincount(index, minlength=n))
    table = np.arange(n, dtype=np.int16)[::-1]
    found = look_up(table, index)
    assert found.dtype == np.int16
    np.testing.assert_array_equal(found, table[index])


def check(values: np.ndarray) -> None:
    """Compare with the slow way."""
    labels, index, counts = number_labels(values)
    expected = np.unique(values, return_inverse=True, return_counts=True)
    for found, wanted in zip((labels, index, counts), expected, strict=True):
        np.testing.assert_array_equal(found, wanted)
