"""Read what has no size: a pipe, a device, standard input. It may have no end either.

Enters: an open binary file. Leaves: its bytes, in a file that can seek, or in one that has a path.
"""

import contextlib
import io
import shutil
import stat
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

from diagnose.errors import TraceError

#: Bytes of a stream: a trace of a hundred million operations. Files end by themselves, and may be longer.
MAX_BYTES = 1 << 30
#: Bytes read at a time.
CHUNK_BYTES = 1 << 20


def read_stream(stream: BinaryIO, *, name: str) -> BinaryIO:
    """Read a stream to its end.

    Raises
    ------
    TraceError
        It does not end where the largest job would.
    """
    found = io.BytesIO()
    while chunk := stream.read(CHUNK_BYTES):
        found.write(chunk)
        refuse_endless(found.tell(), name)
    found.seek(0)
    return found


def read_pipe(path: Path, *, name: str) -> BinaryIO:
    """Read what `is_stream` to its end.

    Raises
    ------
    TraceError
        It cannot be opened, as a socket, or does not end.
    """
    try:
        with path.open("rb") as pipe:
            return read_stream(pipe, name=name)
    except OSError as error:
        raise TraceError(f"cannot be read: {error.strerror or error}; expected a file or a pipe", where=name) from None


def is_stream(path: Path) -> bool:
    """Say whether a path leads to a pipe or a device: what can be read once, and is no file."""
    try:
        mode = path.stat().st_mode
    except (OSError, ValueError):
        return False
    return not (stat.S_ISREG(mode) or stat.S_ISDIR(mode))


@contextlib.contextmanager
def write_down(stream: BinaryIO) -> Iterator[Path]:
    """Write what is left of a stream into a file of its own, for those who look at files, until the end."""
    with tempfile.TemporaryDirectory(prefix="diagnose-") as folder:
        path = Path(folder, "job")
        with path.open("wb") as copy:
            shutil.copyfileobj(stream, copy)
        yield path


def refuse_endless(n_bytes: int, name: str) -> None:
    """Refuse a stream that has given more than any job has."""
    if n_bytes > MAX_BYTES:
        raise TraceError(
            f"gives more than {MAX_BYTES >> 20} MiB, and may never end; expected one job: write it to a file, and name that",
            where=name,
        )
