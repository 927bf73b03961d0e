"""Columns of pyarrow become the arrays that pyarrow itself makes of them, nulls as 0."""

from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from diagnose.trace.arrow_arrays import find_nulls, read_numbers

TYPES = [pa.int8(), pa.int16(), pa.int32(), pa.int64(), pa.uint8(), pa.uint64(), pa.float32(), pa.float64()]
VALUES = [3, None, 1, 2, None, 0, 7, 7, None, 5, 6]


@pytest.mark.parametrize("kind", TYPES, ids=str)
@pytest.mark.parametrize("part", [slice(0, 11), slice(1, 9), slice(2, 4), slice(10, 11), slice(3, 3)], ids=str)
def test_values_and_nulls(kind: pa.DataType, part: slice) -> None:
    """Whatever part of an array is read, and wherever its validity begins within a byte."""
    column = pa.array(VALUES, kind)[part.start : part.stop]
    values, missing = read_numbers(column)
    assert values.dtype == np.dtype(kind.to_pandas_dtype())
    assert values.tolist() == [0 if value is None else value for value in VALUES[part]]
    expected = [value is None for value in VALUES[part]]
    assert (np.zeros(len(column), bool) if missing is None else missing).tolist() == expected
    assert (missing is None) == (not any(expected))
    assert find_nulls(column).tolist() == expected


def test_one_piece_without_nulls_is_no_copy() -> None:
    """Its array is the column's own memory."""
    column = pa.chunked_array([pa.array([1.0, 2.0, 3.0])])
    values, missing = read_numbers(column)
    assert missing is None
    assert values.ctypes.data == column.chunk(0).buffers()[1].address


@pytest.mark.parametrize("pieces", [[], [[]], [[1, 2], [3]], [[1], [], [None, 4]]], ids=str)
def test_pieces_are_joined(pieces: list[Any]) -> None:
    """Pieces are put one after the other, empty ones too."""
    column = pa.chunked_array(pieces, pa.int32())
    values, missing = read_numbers(column)
    flat = [value for piece in pieces for value in piece]
    assert values.tolist() == [value or 0 for value in flat]
    assert values.dtype == np.int32
    assert (missing is not None) == (None in flat)


def test_a_dictionary_is_what_it_stands_for() -> None:
    """Numbers that a writer put into a dictionary are read as numbers."""
    values, missing = read_numbers(pa.array([5.0, None, 5.0, 7.5]).dictionary_encode())
    assert values.tolist() == [5.0, 0.0, 5.0, 7.5]
    assert missing is not None
    assert missing.tolist() == [False, True, False, False]


def test_nothing_but_nulls() -> None:
    """An array without any value, whatever its type."""
    assert find_nulls(pa.nulls(3)).all()
    assert find_nulls(pa.array([None, None], pa.list_(pa.int32()))).all()
