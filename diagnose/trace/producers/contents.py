"""Read a whole file of bounded size, and JSON of a given shape from it.

Enters: a file. Leaves: its bytes, unpacked where gzip packed them, or the objects that were asked for.
"""

import zlib
from pathlib import Path
from typing import Any, TypeVar, cast

import msgspec

from diagnose.errors import TraceError, shorten
from diagnose.trace.input_files import open_unpacked

#: A larger file of one rank is no timeline of some steps; and what unpacks to more is meant to fill the memory.
MAX_BYTES = 1 << 30

_T = TypeVar("_T")


def read_bytes(file: Path, *, name: str, most: int = MAX_BYTES) -> bytes:
    """Read a file, packed by gzip or not, of at most so many bytes when unpacked.

    Raises
    ------
    TraceError
        It cannot be read, or has more bytes.
    """
    try:
        with open_unpacked(file) as unpacked:
            content = unpacked.read(most + 1)
    except (OSError, EOFError, zlib.error) as error:
        raise TraceError(
            f"cannot be read ({shorten(error)}); expected a whole file: copy it again", where=name
        ) from None
    if len(content) > most:
        raise TraceError(
            f"has more than {most >> 20} MiB; expected the timeline of some steps: record fewer", where=name
        )
    return content


def read_json(file: Path, kind: type[_T], *, name: str, expected: str, most: int = MAX_BYTES) -> _T:
    """Read a JSON file of a given shape; numbers may be written as strings.

    `kind` is what it holds, as `msgspec` describes types, and `expected` says the same in words, for the error.

    Raises
    ------
    TraceError
        It cannot be read, is no JSON, or holds something else.
    """
    content = read_bytes(file, name=name, most=most)
    try:
        return cast("_T", msgspec.json.decode(content, type=cast("Any", kind), strict=False))
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise TraceError(f"cannot be read ({shorten(error)}); expected {expected}: copy it again", where=name) from None
