"""Look at the beginning of files, so that a producer is recognised by what is in them and not by their names.

Enters: a path. Leaves: `InputFiles`: the files, and the first bytes of each, unpacked where gzip or zstd packed them.
"""

import contextlib
import dataclasses
import functools
import gzip
import io
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO, cast

from diagnose.errors import TraceError

#: Bytes that tell what a file is.
HEAD_BYTES = 1 << 16
#: Of a file that breaks off fewer tell nothing.
TELLING_BYTES = 64
#: Files of a folder that are looked at; a folder of one job has one a rank.
MAX_FILES = 20_000
#: How a file begins that gzip packed, or zstd.
GZIP = b"\x1f\x8b"
ZSTD = b"\x28\xb5\x2f\xfd"
#: How a file of Parquet begins.
PARQUET = b"PAR1"


@dataclasses.dataclass(frozen=True)
class InputFiles:
    """A file, or a folder with files of one job, before anything of it is read."""

    path: Path
    #: The file itself, or all files of the folder and its folders by name; hidden ones are left out.
    files: tuple[Path, ...]

    @property
    def is_folder(self) -> bool:
        """True where several files make the job."""
        return self.files != (self.path,)

    def head(self, file: Path) -> bytes:
        """Give the first bytes of a file, unpacked; empty where it cannot be read."""
        return _head(file)


def forget_heads() -> None:
    """Forget the first bytes of all files: who reads new ones all the time has no use for those of the old."""
    _head.cache_clear()


@functools.lru_cache(maxsize=1024)
def _head(file: Path) -> bytes:
    head = b""
    try:
        with open_unpacked(file) as content:
            while len(head) < HEAD_BYTES and (piece := content.read1(HEAD_BYTES - len(head))):
                head += piece
    except (OSError, EOFError, zlib.error):
        return head if len(head) >= TELLING_BYTES else b""
    return head


@contextlib.contextmanager
def open_unpacked(file: Path) -> Iterator[io.BufferedReader]:
    """Open a file, packed by gzip or zstd or not, and give its unpacked bytes.

    Of one that breaks off `read1` gives what there is before it raises `EOFError`.
    """
    with file.open("rb") as raw:
        first = raw.read(len(ZSTD))
        raw.seek(0)
        if first == ZSTD:
            yield _open_zstd(raw)
        else:
            yield cast("io.BufferedReader", gzip.GzipFile(fileobj=raw)) if first.startswith(GZIP) else raw


def _open_zstd(raw: BinaryIO) -> io.BufferedReader:
    """Give the unpacked bytes of what zstd packed; of what breaks off there are as many as there were."""
    import pyarrow as pa

    return io.BufferedReader(cast("io.RawIOBase", pa.CompressedInputStream(raw, "zstd")))


def list_input_files(path: Path, *, name: str) -> InputFiles:
    """List the files of a path: a file, or a folder with files of one job.

    Raises
    ------
    TraceError
        There is nothing, or far too many files for one job.
    """
    if not path.exists():
        raise TraceError("no such file; expected a trace, or a folder with the files of one job", where=name)
    if not path.is_dir():
        return InputFiles(path, (path,))
    files = sorted(
        file
        for file in path.rglob("*")
        if file.is_file() and not any(part.startswith(".") for part in file.relative_to(path).parts)
    )
    if not files:
        raise TraceError("is an empty folder; expected the files of one job", where=name)
    if len(files) > MAX_FILES:
        raise TraceError(
            f"has {len(files)} files; expected at most {MAX_FILES}, those of one job: name the folder of one job",
            where=name,
        )
    return InputFiles(path, tuple(files))


def name_in(folder: Path, file: Path, name: str) -> str:
    """Name a file as errors do: as the path given, with what lies below it."""
    return name if file == folder else f"{name.rstrip('/')}/{file.relative_to(folder).as_posix()}"


def is_trace(file: Path) -> bool:
    """Say whether a file is Parquet, by its first bytes."""
    try:
        with file.open("rb") as content:
            return content.read(len(PARQUET)) == PARQUET
    except OSError:
        return False
