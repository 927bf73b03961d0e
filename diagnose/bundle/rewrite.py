"""One file of a job, without what nobody may see: text, text that gzip packed, a trace, or a dump that Python pickled.

Enters: a file, and what cleans bytes of text. Leaves: the bytes to put into a bundle, of which nothing else has changed.
"""

import gzip
import io
import pickletools
import shutil
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO, Any, BinaryIO, cast

import pyarrow as pa
import pyarrow.parquet as pq

from diagnose.trace.input_files import GZIP, PARQUET, open_unpacked
from diagnose.trace.sources import COLUMNS

#: Takes a text apart from its neighbours; the same bytes where nothing has to change.
Clean = Callable[[bytes], bytes]
#: Bytes of text taken at a time, and how many may have no place to cut.
BLOCK_BYTES = 1 << 20
MAX_UNCUT = 1 << 23
#: A private key is not cut, up to so many bytes.
_KEY, _KEY_BYTES = b"-----BEGIN", 1 << 15
#: How a pickle begins.
PICKLE = tuple(b"\x80" + bytes([protocol]) for protocol in range(2, 6))
#: Opcodes with a text of counted length: how many bytes count it.
_COUNTED = {"SHORT_BINUNICODE": 1, "BINUNICODE": 4, "BINUNICODE8": 8}


def read_texts(file: Path) -> Iterator[bytes]:
    """Give all text of a file, a block at a time, for who looks for names in it.

    Raises whatever a damaged file makes its reader raise.
    """
    with file.open("rb") as raw:
        head = raw.read(4)
    if head == PARQUET:
        yield from _read_parquet_texts(file)
    elif head[:2] in PICKLE:
        for _, arg, _, _ in _list_opcodes(file.read_bytes()):
            if isinstance(arg, str):
                yield arg.encode("utf-8", "replace")
    else:
        with open_unpacked(file) as text:
            yield from _cut(text)


def read_hosts(file: Path) -> list[str]:
    """Give the hosts of a trace."""
    with pq.ParquetFile(file) as trace:
        if "host" not in trace.schema_arrow.names:
            return []
        return sorted({host for host in _unique(trace, "host") if host})


def rewrite(file: Path, target: IO[bytes], clean: Clean, clean_about: Clean, *, only_known: bool) -> None:
    """Write a file with its text cleaned; `clean_about` cleans the metadata in a trace, too.

    Of a trace only the columns of the format are kept where `only_known`. A file without anything to clean is copied byte for byte.
    Raises whatever a damaged file makes its reader raise.
    """
    with file.open("rb") as raw:
        head = raw.read(4)
    if head == PARQUET:
        _rewrite_parquet(file, target, clean, clean_about, only_known=only_known)
    elif head[:2] in PICKLE:
        target.write(_rewrite_pickle(file.read_bytes(), clean))
    elif head[:2] == GZIP:
        _rewrite_gzip(file, target, clean)
    else:
        with open_unpacked(file) as text:
            target.writelines(clean(block) for block in _cut(text))


def _cut(text: BinaryIO) -> Iterator[bytes]:
    """Cut a text at ends of lines, or where JSON without lines has a comma; never within a private key."""
    rest = b""
    while chunk := text.read(BLOCK_BYTES):
        block = rest + chunk
        cut = next((at for at in (block.rfind(end) + len(end) for end in (b"\n", b"},", b'",', b",")) if at > 1), 0)
        key = block.rfind(_KEY, max(0, cut - _KEY_BYTES), cut)
        if key >= 0 and block.find(b"-----END", key, cut) < 0:
            cut = key
        if not cut and len(block) > MAX_UNCUT:
            cut = len(block)
        if cut:
            yield block[:cut]
        rest = block[cut:]
    if rest:
        yield rest


def _rewrite_gzip(file: Path, target: IO[bytes], clean: Clean) -> None:
    """Unpack, clean and pack a text again; where nothing changed its packed bytes stay, too."""
    is_changed = False
    with tempfile.TemporaryFile() as beside:
        with (
            open_unpacked(file) as text,
            gzip.GzipFile(filename="", mode="wb", compresslevel=6, fileobj=beside, mtime=0) as packed,
        ):
            for block in _cut(text):
                new = clean(block)
                is_changed = is_changed or new != block
                packed.write(new)
        beside.seek(0)
        with file.open("rb") as raw:
            shutil.copyfileobj(beside if is_changed else raw, target, BLOCK_BYTES)


def _list_opcodes(content: bytes) -> list[tuple[str, Any, int, int]]:
    """List the steps of a pickle, none of which is taken: name, argument, and where it begins and ends."""
    steps = [(opcode.name, arg, cast("int", at)) for opcode, arg, at in pickletools.genops(io.BytesIO(content))]
    ends = [at for _, _, at in steps[1:]] + [len(content)]
    return [(name, arg, at, end) for (name, arg, at), end in zip(steps, ends, strict=True)]


def _rewrite_pickle(content: bytes, clean: Clean) -> bytes:
    """Clean the texts of a pickle without making anything of it."""
    parts, is_changed = [], False
    for name, arg, at, end in _list_opcodes(content):
        if name == "FRAME":  # counts bytes that may change, and nobody needs it
            continue
        n_count = _COUNTED.get(name)
        part = content[at:end]
        if n_count is not None:
            old = part[1 + n_count :]
            new = clean(old)
            if new != old:
                is_changed = True
                if n_count == 1 and len(new) > 255:
                    part = b"X" + len(new).to_bytes(4, "little") + new
                else:
                    part = part[:1] + len(new).to_bytes(n_count, "little") + new
        elif isinstance(arg, str) and clean(arg.encode("utf-8", "replace")) != arg.encode("utf-8", "replace"):
            raise ValueError(f"a text in a place that cannot be cleaned ({name})")
        parts.append(part)
    return b"".join(parts) if is_changed else content


def _is_text(kind: pa.DataType) -> bool:
    """Say whether a column holds strings."""
    kind = kind.value_type if pa.types.is_dictionary(kind) else kind
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind))


def _unique(trace: pq.ParquetFile, column: str) -> set[str]:
    """Give all values of a column of strings."""
    found: set[str] = set()
    for group in range(trace.num_row_groups):
        for chunk in trace.read_row_group(group, columns=[column]).column(0).chunks:
            values = chunk.dictionary if pa.types.is_dictionary(chunk.type) else chunk.unique()
            found.update(value for value in values.to_pylist() if value is not None)
    return found


def _about(schema: pa.Schema) -> dict[bytes, bytes]:
    """Give what a file says of itself, without what pyarrow keeps there for itself."""
    return {key: text for key, text in (schema.metadata or {}).items() if key != b"ARROW:schema"}


def _read_parquet_texts(file: Path) -> Iterator[bytes]:
    """Give the strings of a trace, and its metadata."""
    with pq.ParquetFile(file) as trace:
        yield from _about(trace.schema_arrow).values()
        for field in trace.schema_arrow:
            if _is_text(field.type):
                yield from (value.encode() for value in sorted(_unique(trace, field.name)))


def _rewrite_parquet(file: Path, target: IO[bytes], clean: Clean, clean_about: Clean, *, only_known: bool) -> None:
    """Clean the strings and the metadata of a trace, a group of rows at a time."""
    with pq.ParquetFile(file) as trace:
        schema = trace.schema_arrow
        about = _about(schema)
        new_about = {clean(key): clean_about(text) for key, text in about.items()}
        kept = [field.name for field in schema if not only_known or field.name in COLUMNS]
        new = {
            column: {value: clean(value.encode()).decode("utf-8", "replace") for value in _unique(trace, column)}
            for column in kept
            if _is_text(schema.field(column).type)
        }
        is_same = all(old == value for values in new.values() for old, value in values.items())
        if is_same and new_about == about and len(kept) == len(schema.names):
            with file.open("rb") as raw:
                shutil.copyfileobj(raw, target, BLOCK_BYTES)
            return
        fields = [schema.field(column).remove_metadata() for column in kept]
        packed = trace.metadata.row_group(0).column(0).compression if trace.num_row_groups else "SNAPPY"
        codec = "none" if packed == "UNCOMPRESSED" else packed.lower()
        with pq.ParquetWriter(target, pa.schema(fields, metadata=new_about), compression=codec) as writer:
            for group in range(trace.num_row_groups):
                table = trace.read_row_group(group, columns=kept)
                columns = [_translate(table.column(i), new.get(column)) for i, column in enumerate(kept)]
                writer.write_table(pa.table(columns, schema=writer.schema))


def _translate(column: pa.ChunkedArray, new: dict[str, str] | None) -> pa.ChunkedArray:
    """Put new values in the place of old ones."""
    if new is None or all(old == value for old, value in new.items()):
        return column
    is_dictionary = pa.types.is_dictionary(column.type)
    kind = column.type.value_type if is_dictionary else column.type
    chunks = []
    for chunk in column.chunks:
        coded = chunk if is_dictionary else chunk.dictionary_encode()
        values = [None if value is None else new[value] for value in coded.dictionary.to_pylist()]
        plain = pa.array(values, kind).take(coded.indices)
        chunks.append(plain.dictionary_encode().cast(column.type) if is_dictionary else plain)
    return pa.chunked_array(chunks, type=column.type)
