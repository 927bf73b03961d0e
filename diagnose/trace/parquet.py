"""Read a Parquet file into columns, only those that are needed, each checked for its type.

Enters: a path or a buffer. Leaves: `Rows`, one numpy array a column, and the key-value metadata. This module and
`triage/` are where pyarrow is imported.
"""

import dataclasses
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from diagnose.errors import TraceError
from diagnose.model.optype import BY_NAME
from diagnose.model.trace import Bools, Ints
from diagnose.trace.account import read_account
from diagnose.trace.arrow_arrays import read_numbers
from diagnose.trace.labels import look_up, number_combinations
from diagnose.trace.list_column import LISTS, UNREADABLE, ListColumn, describe_damage
from diagnose.trace.rows import Rows
from diagnose.trace.sample import BATCH_ROWS
from diagnose.trace.streams import read_stream
from diagnose.trace.watched_file import WatchedFile, refuse_changed

#: Column -> kind, required columns first.
REQUIRED = {
    "step": "int",
    "dp_rank": "int",
    "stage": "int",
    "optype": "string",
    "start_ts": "float",
    "duration": "float",
}
OPTIONAL = {
    "seq_id": "int",
    "mb_id": "int",
    "mc": "int",
    "gmc": "int",
    "rank": "int",
    "tp_rank": "int",
    "cp_rank": "int",
    "host": "string",
    "tokens": "float",
    "tokens_sq": "float",
}
#: Columns of strings, read as the dictionaries that most writers make of them.
STRINGS = [column for column, kind in (REQUIRED | OPTIONAL).items() if kind == "string"]
#: Lists of whole numbers, added up as they are read.
EXPERT_TOKENS = "expert_tokens"
#: Rows a file may claim; above it a damaged footer is likelier than a job (100 steps of 100,000 GPUs are 10 times less).
MAX_ROWS = 2_000_000_000

#: Whole numbers beyond this are damage, and not exact in floating point.
MAX_INTEGER = 2**53
#: What each kind of column holds, in words.
WANTED = {
    "int": "whole numbers",
    "float": "seconds as a number",
    "string": "strings",
    "list": "lists of whole numbers",
}
#: Key-value metadata: about the job, and about the files of another producer that it was converted from.
JOB_KEY = "diagnose.job"
RECORDING_KEY = "diagnose.recording"
#: Rows in which names are looked for at a time.
CODES_AT_A_TIME = 1 << 16
#: Rows read at a time, at least.
ROWS_AT_A_TIME = 1 << 20
#: How a row is called that says no type.
NO_TYPE = "(null)"


def read_parquet(source: str | Path | BinaryIO, *, name: str, steps: Ints | None = None) -> Rows:
    """Read the columns of one trace file: all rows, or those of `steps`, with a piece of the file in memory at a time.

    Raises
    ------
    TraceError
        Not Parquet, truncated, a required column missing, a column of the wrong type, or no rows.
    """
    try:
        if isinstance(source, (str, Path)):
            source = _open(Path(source))
        footer = pq.read_metadata(source)
        with pq.ParquetFile(
            source, metadata=footer, read_dictionary=strings_in(footer), page_checksum_verification=False
        ) as file:
            schema = file.schema_arrow
            _check_schema(file, name)
            columns = [c for c in (*REQUIRED, *OPTIONAL, EXPERT_TOKENS) if c in schema.names]
            table, number = _read_table(file, columns, steps)
            table.validate()
    except TraceError:
        raise
    except FileNotFoundError:
        raise TraceError(
            "no such file; expected a trace, a log, or a folder with the files of one job", where=name
        ) from None
    except IsADirectoryError:
        raise TraceError("is a folder; expected a Parquet file: name the file in it", where=name) from None
    except UNREADABLE as error:
        refuse_changed(source, name)
        raise describe_damage(error, name) from None
    refuse_changed(source, name)
    if table.num_rows == 0:
        raise TraceError("has no rows; expected one row for each operation", where=name)
    rows = _rows(table, schema.metadata or {}, name)
    if LISTS not in schema.names or pa.types.is_null(schema.field(LISTS).type):
        return rows
    number = np.arange(len(rows), dtype=np.int32) if number is None else number
    return dataclasses.replace(rows, number=number, lists=ListColumn(source, name))


def _read_table(
    file: pq.ParquetFile, columns: list[str], steps: Ints | None
) -> tuple[pa.Table, NDArray[np.int32] | None]:
    """Read some columns: all rows, or those of some steps with their numbers in the file."""
    if steps is None:
        return _read_all(file, columns), None
    parts, numbers, first = [], [], 0
    for batch in file.iter_batches(batch_size=BATCH_ROWS, columns=columns):
        found, missing = read_numbers(batch.column("step"))
        is_wanted = np.isin(found, steps)
        rows = np.flatnonzero(is_wanted if missing is None else is_wanted & ~missing)
        if len(rows):
            parts.append(batch.take(pa.array(rows)))
            numbers.append((first + rows).astype(np.int32))
        first += len(batch)
    if not parts:
        return file.schema_arrow.empty_table().select(columns), np.zeros(0, dtype=np.int32)
    table = pa.Table.from_batches(parts).combine_chunks()
    del parts, batch
    pa.default_memory_pool().release_unused()
    return table, np.concatenate(numbers)


def _read_all(file: pq.ParquetFile, columns: list[str]) -> pa.Table:
    """Read all rows, some row groups at a time, numbers into one piece: what reading needs besides is used again for the next."""
    n_of_group = [file.metadata.row_group(group).num_rows for group in range(file.num_row_groups)]
    parts = np.cumsum([0, *n_of_group])[:-1] // ROWS_AT_A_TIME
    if not parts.any():
        return file.read(columns=columns, use_threads=True)
    n_rows, first = sum(n_of_group), 0
    types = {name: file.schema_arrow.field(name).type for name in columns}
    numbers = {name: np.empty(n_rows, of.to_pandas_dtype()) for name, of in types.items() if pa.types.is_primitive(of)}
    missing: dict[str, Bools] = {}
    others: dict[str, list[pa.Array]] = {name: [] for name in columns if name not in numbers}
    for part in np.unique(parts):
        table = file.read_row_groups(np.flatnonzero(parts == part).tolist(), columns=columns, use_threads=True)
        here = slice(first, first + len(table))
        for name, values in numbers.items():
            values[here], none = read_numbers(table[name])
            if none is not None:
                missing.setdefault(name, np.zeros(n_rows, dtype=bool))[here] = none
        for name, chunks in others.items():
            chunks.extend(table[name].chunks)
        first += len(table)
    found = {name: pa.chunked_array(chunks, types[name]) for name, chunks in others.items()}
    for name, values in numbers.items():
        there = pa.py_buffer(np.packbits(~missing[name], bitorder="little")) if name in missing else None
        found[name] = pa.Array.from_buffers(types[name], first, [there, pa.py_buffer(values)])
    return pa.table(found)


def strings_in(footer: Any) -> list[str]:
    """List the columns of a file that are read as dictionaries.

    The schema says so: what a footer tells of single columns ends the process where it is damaged (pyarrow 26).
    """
    # Not `footer.schema`, which is a circle and stays until garbage is looked for.
    names = pq.ParquetSchema(footer).to_arrow_schema().names
    return [name for name in STRINGS if name in names]


def _open(path: Path) -> Any:
    """Open a file; read what is none (a pipe, `<(...)`), since it has no size and cannot seek."""
    if path.is_file() and path.stat().st_size:
        return WatchedFile(path)
    with path.open("rb") as pipe:
        return read_stream(pipe, name=str(path))


def check_names(names: Sequence[str], name: str) -> None:
    """Refuse columns that are missing, or there twice."""
    missing = [column for column in REQUIRED if column not in names]
    if missing:
        raise TraceError(
            f"column {missing[0]!r} is missing (columns found: {', '.join(names[:12]) or 'none'}); expected "
            f"{', '.join(REQUIRED)}: rename the columns, or use `diagnose convert` if it is another tool's trace",
            where=name,
        )
    for column in (*REQUIRED, *OPTIONAL, LISTS, EXPERT_TOKENS):
        if names.count(column) > 1:
            raise TraceError(
                "appears more than once; expected one column of that name", where=f"{name}: column {column!r}"
            )


def _check_schema(file: pq.ParquetFile, name: str) -> None:
    """Refuse missing columns and wrong types before any data is read."""
    schema = file.schema_arrow
    check_names(schema.names, name)
    for column, kind in (REQUIRED | OPTIONAL | {LISTS: "list", EXPERT_TOKENS: "list"}).items():
        if column not in schema.names:
            continue
        found = schema.field(column).type
        if not _fits(found, kind):
            found = found.value_type if column in STRINGS and pa.types.is_dictionary(found) else found
            wanted = WANTED[kind]
            if column in ("tokens", "tokens_sq"):
                wanted = "numbers"
            raise TraceError(f"has type {found}; expected {wanted}", where=f"{name}: column {column!r}")
    if not 0 <= file.metadata.num_rows <= MAX_ROWS:
        raise TraceError(f"claims {file.metadata.num_rows} rows; the footer is damaged: copy it again", where=name)


def _fits(found: pa.DataType, kind: str) -> bool:
    """Say whether a column of that type can hold that kind of value."""
    if kind == "list":
        if pa.types.is_null(found):
            return True  # nothing but nulls: all unknown
        is_list = pa.types.is_list(found) or pa.types.is_large_list(found) or pa.types.is_fixed_size_list(found)
        return bool(is_list and (pa.types.is_integer(found.value_type) or pa.types.is_null(found.value_type)))
    if pa.types.is_dictionary(found):
        found = found.value_type
    if kind == "string":
        return bool(pa.types.is_string(found) or pa.types.is_large_string(found))
    return bool(pa.types.is_integer(found) or pa.types.is_floating(found))


class _Columns:
    """The columns of a table as arrays; `bad` collects the rows where a required value is unusable."""

    def __init__(self, table: pa.Table) -> None:
        self.table = table
        self.bad: Bools | None = None

    def _integers(self, column: str) -> tuple[NDArray[Any], Bools | None]:
        """Give a column's whole numbers, and where they are none."""
        values, wrong = read_numbers(self.table[column])
        odd: Bools | None = None
        if values.dtype.kind == "f":
            values = values.astype(np.float64)
            odd = ~(np.isfinite(values) & (values == np.floor(values)) & (np.abs(values) < MAX_INTEGER))
        elif values.dtype == np.uint64:
            odd = values >= MAX_INTEGER
        if odd is None:
            return values, wrong
        return np.where(odd, 0, values).astype(np.int64), odd if wrong is None else wrong | odd

    def _note(self, found: tuple[NDArray[Any], Bools | None]) -> NDArray[Any]:
        """Note the unusable rows of a required column."""
        values, wrong = found
        if wrong is not None and wrong.any():
            self.bad = wrong if self.bad is None else self.bad | wrong
        return values

    def integers(self, column: str) -> NDArray[Any]:
        """Read a required column of whole numbers."""
        return self._note(self._integers(column))

    def seconds(self, column: str) -> NDArray[Any]:
        """Read a required column of numbers; halves are widened, as no bound of ours fits into one."""
        values = self._note(read_numbers(self.table[column]))
        return values.astype(np.float64) if values.dtype == np.float16 else values

    def optional(self, column: str) -> NDArray[Any] | None:
        """Read a column of whole numbers, -1 where there is none; None where the column is missing."""
        if column not in self.table.column_names:
            return None
        values, wrong = self._integers(column)
        return values if wrong is None else np.where(wrong, -1, values)

    def measured(self, column: str) -> NDArray[Any] | None:
        """Read a column of numbers, NaN where there is none; None where the column is missing."""
        if column not in self.table.column_names:
            return None
        values, wrong = read_numbers(self.table[column])
        return values if wrong is None else np.where(wrong, np.nan, values.astype(np.float64))


def _rows(table: pa.Table, footer: dict[bytes, bytes], name: str) -> Rows:
    """Turn the table into arrays and mark the rows whose required values are unusable."""
    columns = _Columns(table)
    step, dp, stage = (columns.integers(column) for column in ("step", "dp_rank", "stage"))
    start_s, duration_s = columns.seconds("start_ts"), columns.seconds("duration")
    codes, names = _strings(table, "optype", name)
    if not BY_NAME.keys() >= set(names):  # types that are not known are listed
        codes, names = _order_of_appearance(codes, names)
    host: Ints | None = None
    host_names: tuple[str, ...] = ()
    if "host" in table.column_names:
        host, host_names = _order_of_appearance(*_strings(table, "host", name))
    return Rows(
        step=step,
        dp=dp,
        stage=stage,
        op=look_up(np.array([BY_NAME.get(text, -1) for text in names] + [-1], dtype=np.int8), codes),
        start_s=start_s,
        duration_s=duration_s,
        seq=_count_together(codes, names, (stage, step, dp), start_s, columns.optional("seq_id")),
        microbatch=columns.optional("mb_id"),
        chunk=columns.optional("mc"),
        position=columns.optional("gmc"),
        rank=columns.optional("rank"),
        tp_rank=columns.optional("tp_rank"),
        cp_rank=columns.optional("cp_rank"),
        host=host,
        host_names=host_names,
        tokens=columns.measured("tokens"),
        tokens_sq=columns.measured("tokens_sq"),
        expert_tokens=_add_up(table, EXPERT_TOKENS),
        bad=columns.bad,
        job=_footer_object(footer, JOB_KEY, name),
        **_list_others(codes, names),
        **_footer_recording(footer, name),
    )


def _count_together(
    codes: Ints, names: tuple[str, ...], lane: tuple[Ints, ...], start_s: NDArray[Any], seq: NDArray[Any] | None
) -> NDArray[Any] | None:
    """Let the operations of one type be counted together where they have two names, of which `seq_id` counts each by itself.

    An operation has its own number, and as many more as were launched before it under the other name, in most lanes: rows may be
    lost. `lane` are the columns that say which worker and step a row is of, the stage first.
    """
    known = [BY_NAME[text] for text in names if text in BY_NAME]
    if seq is None or len(set(known)) == len(known):
        return seq
    found = np.array(seq, dtype=np.int64)
    for op in {op for op in known if known.count(op) > 1}:
        aliases = [code for code, text in enumerate(names) if BY_NAME.get(text) == op]
        rows = np.flatnonzero(np.isin(codes, aliases))
        if len(np.unique(codes[rows])) < 2:
            continue
        of_lane = number_combinations(*(column[rows] for column in lane))
        order = np.lexsort((start_s[rows], of_lane))
        rows, of_lane = rows[order], of_lane[order]
        own, together = found[rows], found[rows].copy()
        base = of_lane * (int(own.max()) + 2)
        for code in aliases:
            others = np.where(codes[rows] == code, 0, own + 1)
            together += np.where(codes[rows] == code, np.maximum.accumulate(base + others) - base, 0)
        of_place = number_combinations(lane[0][rows], codes[rows], own)
        order = np.lexsort((together, of_place))
        first = np.searchsorted(of_place[order], np.arange(int(of_place.max()) + 1))
        middle = first + (np.diff(np.r_[first, len(order)]) - 1) // 2
        found[rows] = together[order][middle][of_place]
    return found


def _add_up(table: pa.Table, column: str) -> NDArray[np.float64] | None:
    """Add up the lists of a column, NaN where there is none or one is damaged; None where the column is missing or empty."""
    if column not in table.column_names or pa.types.is_null(table[column].type):
        return None
    import pyarrow.compute as pc  # makes all of its functions when it is imported; only such jobs need it

    lists = table[column]
    n_each, flat = read_numbers(pc.list_value_length(lists))[0], pc.list_flatten(lists)
    found = np.full(len(n_each), np.nan)
    if pa.types.is_null(flat.type) or not len(flat):
        return found
    values, missing = read_numbers(flat)
    wrong = (values < 0) | (values >= MAX_INTEGER)
    some = np.flatnonzero(n_each > 0)
    first = np.concatenate([[0], np.cumsum(n_each[some])[:-1]]).astype(np.int64)
    found[some] = np.add.reduceat(np.where(wrong if missing is None else wrong | missing, np.nan, values), first)
    return found


def _list_others(codes: Ints, names: tuple[str, ...]) -> dict[str, Any]:
    """List the operation types that are not known, and say which rows have them."""
    others = [text for text in names if text not in BY_NAME]
    if not others and not (codes < 0).any():
        return {}
    types = tuple(dict.fromkeys([*others, NO_TYPE]))
    position = {text: n for n, text in enumerate(types)}
    of_code = [-1 if text in BY_NAME else position[text] for text in names]
    return {"other": np.array([*of_code, position[NO_TYPE]], dtype=np.int32)[codes], "other_types": types}


def _strings(table: pa.Table, of: str, name: str) -> tuple[Ints, tuple[str, ...]]:
    """Turn a column of strings into codes (-1 for null) and their names."""
    column = table[of]
    if not pa.types.is_dictionary(column.type):
        column = column.dictionary_encode()
    column = column.unify_dictionaries()
    if column.num_chunks == 0:
        return np.zeros(0, dtype=np.int64), ()
    try:
        names = tuple("(null)" if text is None else str(text) for text in column.chunk(0).dictionary.to_pylist())
    except UnicodeDecodeError as error:  # what Parquet calls a string is checked by nobody
        raise TraceError(
            f"column {of}: {error.object[:40]!r} is no UTF-8 text; expected names: the file is damaged, or its writer is wrong",
            where=name,
        ) from None
    parts = []
    for chunk in column.chunks:
        codes, missing = read_numbers(chunk.indices)
        codes = codes.astype(np.int64) if codes.dtype.kind == "u" else codes
        parts.append(codes if missing is None else np.where(missing, -1, codes.astype(np.int64)))
    codes = parts[0] if len(parts) == 1 else np.concatenate(parts)
    return codes, names


def _order_of_appearance(codes: Ints, names: tuple[str, ...]) -> tuple[Ints, tuple[str, ...]]:
    """Number names in the order in which rows first have them, whatever order their writer gave; leave out what no row has."""
    seen: list[int] = []
    for first in range(0, len(codes), CODES_AT_A_TIME):
        some = codes[first : first + CODES_AT_A_TIME]
        new = set((np.flatnonzero(np.bincount(some + 1, minlength=len(names) + 1)) - 1).tolist()) - {-1, *seen}
        seen += sorted(new, key=lambda code: int(np.argmax(some == code)))
        if len(seen) == len(names):
            break
    if seen == list(range(len(names))):
        return codes, names
    lookup = np.full(len(names) + 1, -1, dtype=codes.dtype)
    lookup[seen] = np.arange(len(seen))
    return look_up(lookup, codes), tuple(names[code] for code in seen)


def _footer_recording(footer: dict[bytes, bytes], name: str) -> dict[str, Any]:
    """Read what a conversion kept beside the rows."""
    found = _footer_object(footer, RECORDING_KEY, name)
    if not found:
        return {}
    try:
        account, warnings = read_account(found)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise TraceError(
            f"is not what `diagnose convert` writes ({type(error).__name__}: {error}); convert the job again",
            where=f"{name}: metadata {RECORDING_KEY!r}",
        ) from None
    return {"recording": account, "recording_warnings": warnings}


def _footer_object(footer: dict[bytes, bytes], key: str, name: str) -> dict[str, Any]:
    """Read one JSON object of the metadata of a file; empty where there is none."""
    text = footer.get(key.encode())
    if text is None:
        return {}
    try:
        found = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise TraceError(f"is not JSON ({error}); expected an object", where=f"{name}: metadata {key!r}") from None
    if not isinstance(found, dict):
        raise TraceError("is not a JSON object", where=f"{name}: metadata {key!r}")
    return found
