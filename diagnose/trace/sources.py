"""What a program hands over as a job: a path, bytes, an open file, or a table.

Enters: anything. Leaves: what `read_rows` reads, and how errors call it; or a `DiagnoseError` that says what was expected.
"""

import io
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, BinaryIO, cast

import pyarrow as pa
import pyarrow.parquet as pq

from diagnose.errors import TraceError, UsageError, shorten
from diagnose.trace.list_column import LISTS
from diagnose.trace.parquet import EXPERT_TOKENS, OPTIONAL, REQUIRED, check_names
from diagnose.trace.streams import read_stream

#: All that a trace may have; other columns of a table are not looked at, whatever they hold.
COLUMNS = (*REQUIRED, *OPTIONAL, EXPERT_TOKENS, LISTS)
EXPECTED = "expected a path, bytes of a file, a file opened with 'rb', a pandas DataFrame or a pyarrow Table"


def open_source(source: object) -> tuple[str | Path | BinaryIO, str]:
    """Turn what a caller gives into a path or a binary file that can seek, and name it as errors do.

    Parameters
    ----------
    source : path, bytes, binary file, pandas DataFrame, pyarrow Table, or what hands out Arrow columns (`__arrow_c_stream__`)
        A file is read from its beginning, wherever it stands, and stays open.

    Raises
    ------
    TraceError
        A table lacks a column, has one twice, or values that no file can hold; a file cannot be read.
    UsageError
        It is nothing of this.
    """
    if isinstance(source, str | os.PathLike):
        return _check_path(source)
    if isinstance(source, bytes | bytearray | memoryview):
        return io.BytesIO(source), "bytes"
    kind = type(source).__name__
    if _is_frame(source) or isinstance(source, pa.Table | pa.RecordBatch) or hasattr(source, "__arrow_c_stream__"):
        return table_to_file(source, kind), kind
    if hasattr(source, "read"):
        return _check_file(source)
    raise UsageError(f"the job is of type {kind}; {EXPECTED}")


def table_to_file(table: Any, name: str) -> BinaryIO:
    """Write the columns of a trace that a table has as Parquet in memory, so that all that is checked of files is checked of it."""
    is_frame = _is_frame(table)
    if is_frame:
        in_index = [level for level in table.index.names if level in REQUIRED and level not in table.columns]
        if in_index:
            raise TraceError(f"{in_index[0]!r} is in the index; expected a column: call reset_index()", where=name)
        names = list(map(str, table.columns))
    else:
        table = _try(name, lambda: pa.table(table))
        names = table.schema.names
    check_names(names, name)
    kept = [column for column in COLUMNS if column in names]
    columns = _try(
        name, lambda: pa.Table.from_pandas(table[kept], preserve_index=False) if is_frame else table.select(kept)
    )
    columns = _try(name, lambda: _write_out(columns))
    file = io.BytesIO()
    _try(name, lambda: pq.write_table(columns, file, compression="none", write_statistics=False))
    file.seek(0)
    return file


def _write_out(table: pa.Table) -> pa.Table:
    """Replace strings that point into buffers, as polars has them: Parquet takes them, dictionaries of them it does not."""
    for at, field in enumerate(table.schema):
        if "string_view" not in str(field.type):  # no release of pyarrow before 16 has a name for the type
            continue
        column = table.column(at)
        if pa.types.is_dictionary(field.type):
            kind = pa.dictionary(field.type.index_type, pa.string())
            chunks = [
                pa.DictionaryArray.from_arrays(chunk.indices, chunk.dictionary.cast(pa.string()))
                for chunk in column.chunks
            ]
            column = pa.chunked_array(chunks, type=kind)
        else:
            column = column.cast(pa.string())
        table = table.set_column(at, field.name, column)
    return table


def _try(name: str, convert: Callable[[], Any]) -> Any:
    """Convert a table, or say that it cannot be."""
    try:
        return convert()
    except (pa.ArrowException, TypeError, ValueError, OverflowError, KeyError, AttributeError) as error:
        raise TraceError(
            f"cannot be turned into columns ({shorten(error)}); expected whole numbers, seconds as numbers, and strings",
            where=name,
        ) from None


def _is_frame(source: object) -> bool:
    """Say whether it is a DataFrame, without an import of pandas: who has one has imported it."""
    pandas = sys.modules.get("pandas")
    return pandas is not None and isinstance(source, pandas.DataFrame)


def _check_path(path: str | os.PathLike[Any]) -> tuple[Path, str]:
    """Refuse a path that names nothing."""
    name = os.fspath(path)
    if not isinstance(name, str) or not name or "\0" in name:
        raise UsageError(f"the job is the path {name!r}; {EXPECTED}")
    return Path(name), name


def _check_file(file: Any) -> tuple[BinaryIO, str]:
    """Refuse a file that gives no bytes; read one that cannot seek, such as a pipe, into memory."""
    said = getattr(file, "name", None)
    name = said if isinstance(said, str) and said else "file"
    if getattr(file, "closed", False):
        raise UsageError("the file is closed; open it with 'rb', and close it after the diagnosis", where=name)
    try:
        if file.read(0) != b"":
            raise UsageError("the file is opened for text; open it with 'rb'", where=name)
        if not file.seekable():
            return read_stream(file, name=name), name
        file.seek(0)
    except OSError as error:  # also one that is open for writing only
        raise TraceError(f"cannot be read: {error.strerror or error}; open it with 'rb'", where=name) from None
    except (AttributeError, TypeError, ValueError) as error:
        raise UsageError(f"it does not read as a file does ({error}); {EXPECTED}", where=name) from None
    return cast("BinaryIO", file), name
