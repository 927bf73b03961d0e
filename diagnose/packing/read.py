"""Read document lengths from a Parquet, CSV or text file; the only file here that imports pyarrow.

Enters: a path. Leaves: `Lengths`, checked.
"""

import csv
import re
from pathlib import Path
from typing import Any

import numpy as np

from diagnose.errors import TraceError, UsageError
from diagnose.model.trace import Ints

#: Columns that hold lengths, by name, first wins.
_NAMES = ("doc_lengths", "lengths", "length")
#: Documents a file may hold; packers walk over each.
_MAX_DOCUMENTS = 50_000_000
#: Tokens of one document; beyond it is damage.
_MAX_LENGTH = 2**40
#: Which rows of a trace name each microbatch once: one operation type, and the first of every rank that shares the microbatch.
_ONE_OPTYPE = "forward-compute"
_FIRST_OF = ("stage", "mc", "tp_rank", "cp_rank")
_WHOLE_NUMBER = re.compile(r"[+-]?[0-9]{1,15}")
_EXPECTED = "expected a column doc_lengths (lists), lengths or length, or a single column of whole numbers; name one with --column"


def read_lengths(path: Path, *, column: str | None = None) -> Ints:
    """Read the document lengths in a file.

    Parameters
    ----------
    path : Path
        `.csv` and `.txt`: one length a line, or columns with a header; anything else is read as Parquet. Of a trace (with
        columns `optype` and `stage`) each microbatch counts once: the forward computations of the first stage.
    column : str, optional
        Which column; found by name or type when left out.

    Raises
    ------
    TraceError
        The file cannot be read, or has no lengths.
    UsageError
        There is no such column.
    """
    if path.is_dir():
        raise TraceError("is a folder; expected a file with document lengths", where=str(path))
    if not path.exists():
        raise TraceError("no such file; expected a file with document lengths", where=str(path))
    found = _read_text(path, column) if path.suffix.lower() in {".csv", ".txt"} else _read_parquet(path, column)
    _check(found, path)
    return found


def _check(lengths: Ints, path: Path) -> None:
    """Refuse lengths that cannot be."""
    if not len(lengths):
        raise TraceError("holds no document; expected lengths of 1 token or more", where=str(path))
    if len(lengths) > _MAX_DOCUMENTS:
        raise TraceError(f"{len(lengths):,} documents; expected at most {_MAX_DOCUMENTS:,}", where=str(path))
    bad = np.flatnonzero((lengths < 1) | (lengths > _MAX_LENGTH))
    if len(bad):
        raise TraceError(
            f"document {bad[0] + 1} has {lengths[bad[0]]} tokens; expected 1 to {_MAX_LENGTH}", where=str(path)
        )


def _read_parquet(path: Path, column: str | None) -> Ints:
    """Read the column from Parquet."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        with pq.ParquetFile(path) as file:
            schema = file.schema_arrow
            name = _choose(schema, column, path)
            keys = [key for key in ("optype", *_FIRST_OF) if key in schema.names and key != name]
            table = file.read(columns=[name, *keys])
            table.validate()
        return _flatten(table, name, path)
    except OSError as error:
        what = error.strerror or "cannot be read as Parquet"
        raise TraceError(
            f"{what}; expected a Parquet, .csv or .txt file with document lengths", where=str(path)
        ) from None
    except (pa.ArrowException, OverflowError, MemoryError, KeyError) as error:
        first = " ".join(str(error).split())[:200]
        raise TraceError(f"cannot be read as Parquet ({first})", where=str(path)) from None


def _choose(schema: Any, column: str | None, path: Path) -> str:
    """Find the column with the lengths."""
    fitting = [field.name for field in schema if _is_lengths(field.type)]
    if column is not None:
        if column not in schema.names:
            known = ", ".join(schema.names[:10])
            raise UsageError(f"{path} has no column {column!r}; it has {known}")
        if column not in fitting:
            raise UsageError(
                f"column {column!r} of {path} is {schema.field(column).type}; expected whole numbers, or lists of them"
            )
        return column
    named = [name for name in _NAMES if name in fitting]
    if not named and len(fitting) != 1:
        raise TraceError(f"{len(fitting)} columns could be lengths; {_EXPECTED}", where=str(path))
    return str((named or fitting)[0])


def _is_lengths(kind: Any) -> bool:
    """Say whether a column holds whole numbers or lists of them."""
    from pyarrow import types

    if types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind):
        kind = kind.value_type
    return bool(types.is_integer(kind))


def _flatten(table: Any, name: str, path: Path) -> Ints:
    """Take the rows that name a microbatch once, and all their documents in order."""
    import pyarrow as pa
    import pyarrow.compute as pc

    if "optype" in table.column_names:
        table = table.filter(pc.equal(table["optype"].cast(pa.string()), _ONE_OPTYPE))
        for key in _FIRST_OF:
            if key in table.column_names and table.num_rows:
                table = table.filter(pc.equal(table[key], pc.min(table[key])))
    values = table[name].combine_chunks()
    if isinstance(values, pa.ChunkedArray):
        values = pa.concat_arrays(values.chunks) if values.num_chunks else pa.array([], values.type)
    values = values.drop_null()
    if not pa.types.is_integer(values.type):
        values = values.flatten()
    if values.null_count:
        raise TraceError(f"column {name!r} holds lists with missing lengths; expected whole numbers", where=str(path))
    lengths: Ints = values.cast(pa.int64()).to_numpy(zero_copy_only=False)
    return lengths


def _read_text(path: Path, column: str | None) -> Ints:
    """Read one length a line, or a column of comma-separated text."""
    try:
        text = path.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError:
        raise TraceError("is not UTF-8 text; expected one length a line", where=str(path)) from None
    except OSError as error:
        raise TraceError(f"{error.strerror}; expected one length a line", where=str(path)) from None
    try:
        rows = [(n, row) for n, row in enumerate(csv.reader(text.splitlines()), start=1) if any(map(str.strip, row))]
    except csv.Error as error:
        raise TraceError(f"cannot be read as comma-separated text ({error})", where=str(path)) from None
    if not rows:
        return np.empty(0, dtype=np.int64)
    header = rows[0][1]
    if all(_WHOLE_NUMBER.fullmatch(cell.strip()) for cell in header):
        if column is not None:
            raise UsageError(f"{path} has no column names, so none is {column!r}; leave --column out")
        return _column(rows, _single(len(header), path), path)
    names = [cell.strip() for cell in header]
    if column is not None and column not in names:
        raise UsageError(f"{path} has no column {column!r}; it has {', '.join(names[:10])}")
    name = column or next((known for known in _NAMES if known in names), None)
    at = names.index(name) if name is not None else _single(len(names), path)
    return _column(rows[1:], at, path)


def _single(n_columns: int, path: Path) -> int:
    """Give the only column."""
    if n_columns != 1:
        raise TraceError(f"{n_columns} columns could be lengths; {_EXPECTED}", where=str(path))
    return 0


def _column(rows: list[tuple[int, list[str]]], at: int, path: Path) -> Ints:
    """Read one column of whole numbers."""
    values = []
    for n, row in rows:
        cell = row[at].strip() if at < len(row) else ""
        if not _WHOLE_NUMBER.fullmatch(cell):
            raise TraceError(f"found {cell[:40]!r}; expected a whole number of tokens", where=f"{path}:{n}")
        values.append(int(cell))
    return np.array(values, dtype=np.int64)
