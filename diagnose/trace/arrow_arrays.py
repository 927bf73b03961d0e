"""Turn columns of pyarrow into numpy arrays.

pyarrow's own `to_numpy` imports pandas wherever that is installed, for 0.3 s of CPU: this module reads the buffers instead. Enters:
columns of numbers. Leaves: views of their buffers, where there is one piece without nulls; else copies.
"""

from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from diagnose.model.trace import Bools


def read_numbers(column: pa.Array | pa.ChunkedArray) -> tuple[NDArray[Any], Bools | None]:
    """Give the values of a column of numbers, 0 where one is null, and where that is; None where none is.

    Parameters
    ----------
    column : pyarrow Array or ChunkedArray, length n
        Whole or floating-point numbers of any width, or a dictionary of them.

    Returns
    -------
    values, missing : ndarrays of the width of the column and of bool, shape (n,)
    """
    if pa.types.is_dictionary(column.type):
        column = column.cast(column.type.value_type)
    chunks = column.chunks if isinstance(column, pa.ChunkedArray) else [column]
    dtype = np.dtype(column.type.to_pandas_dtype())
    parts = [_view(chunk, dtype) for chunk in chunks]
    values = parts[0] if len(parts) == 1 else np.concatenate([np.zeros(0, dtype), *parts])
    if not column.null_count:
        return values, None
    missing = np.concatenate([find_nulls(chunk) for chunk in chunks])
    return np.where(missing, dtype.type(0), values), missing


def _view(array: pa.Array, dtype: np.dtype[Any]) -> NDArray[Any]:
    """See the values of an array as they lie in memory; anything stands where one is null."""
    data = array.buffers()[1]
    return np.frombuffer(data, dtype, len(array), array.offset * dtype.itemsize) if len(array) else np.zeros(0, dtype)


def find_nulls(array: pa.Array) -> Bools:
    """Say which entries of an array of any type are null, shape (n,)."""
    is_valid = array.buffers()[0] if array.null_count < len(array) else None
    if is_valid is None:
        return np.full(len(array), array.null_count > 0)
    bits = np.frombuffer(is_valid, np.uint8)
    n = array.offset + len(array)
    return np.asarray(np.unpackbits(bits, count=n, bitorder="little")[array.offset :] == 0)
