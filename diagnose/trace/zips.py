"""A job in a zip, as `diagnose bundle` writes it, or in a tar: unpacked into a folder of its own for as long as it is read.

Enters: a path. Leaves: the path of the job in that folder; what is neither stays as it is. An archive is nobody's friend: its
names may lead out of the folder, and a few bytes may unpack to more than any disk. Nothing is written before all files are checked.
"""

import contextlib
import dataclasses
import functools
import shutil
import stat
import tempfile
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path, PurePosixPath
from typing import IO, TYPE_CHECKING, BinaryIO, cast

from diagnose.errors import TraceError, shorten
from diagnose.model.job_names import locate
from diagnose.trace.input_files import GZIP, MAX_FILES

if TYPE_CHECKING:
    import tarfile
    import zipfile

#: How a zip begins.
MAGIC = b"PK\x03\x04"
#: What a tar has at a place of its first block.
TAR, TAR_AT, TAR_BLOCK = b"ustar", 257, 512
#: How a file begins that bzip2 or xz packed.
_BZIP2, _XZ = b"BZh", b"\xfd7zXZ\0"
#: What `diagnose bundle` says of the files in a zip, and which of them is the job.
MANIFEST = "bundle.json"
MAX_MANIFEST_BYTES = 1 << 26
#: Names inside of files that are zips and no folders: weights, arrays, sheets.
_OTHER = ("data.pkl", ".npy", "[Content_Types].xml")
#: How names of archives end.
_ENDINGS = (".zip", ".tar", ".tgz", ".tar.gz", ".tar.bz2", ".tar.xz")
#: Bytes that an archive may unpack to: as many as all files of a large job; or so many times its own size, from so many on. Text of
#: one line again and again packs to a thousandth, and no job has that.
MAX_BYTES = 1 << 36
MAX_RATIO, SMALL_BYTES = 200, 1 << 28
#: Room that is left on the disk.
ROOM_BYTES = 1 << 26
_CHUNK = 1 << 20


@dataclasses.dataclass(frozen=True, slots=True)
class Unpacked:
    """The job of a zip: its path as long as the zip is open, and where it was, which names it."""

    path: Path
    location: str


@dataclasses.dataclass(frozen=True, slots=True)
class _Entry:
    """A file of an archive: its name, how many bytes it has, how it is opened, and what keeps it from being unpacked."""

    name: str
    n_bytes: int
    open: Callable[[], IO[bytes]]
    refusal: str = ""


@contextlib.contextmanager
def open_zip(source: str | Path | BinaryIO, *, name: str) -> Iterator[Unpacked | None]:
    """Unpack the job that lies in a zip or a tar, until the end; None where it is something else.

    Raises
    ------
    TraceError
        It is damaged, or holds what no bundle does.
    """
    if not isinstance(source, (str, Path)) or not (is_zip(Path(source)) or is_tar(Path(source))):
        yield None
        return
    with tempfile.TemporaryDirectory(prefix="diagnose-") as folder:
        yield extract(Path(source), Path(folder), name=name)


def is_zip(path: Path) -> bool:
    """Say whether a file is a zip of files, and neither weights nor arrays nor a sheet."""
    import zipfile

    try:
        with path.open("rb") as file:
            if not path.is_file() or file.read(len(MAGIC)) != MAGIC:
                return False
        with zipfile.ZipFile(path) as archive:
            return not any(entry.filename.endswith(_OTHER) for entry in archive.infolist())
    except (OSError, ValueError, NotImplementedError, zipfile.BadZipFile):
        return False


def is_tar(path: Path) -> bool:
    """Say whether a file is a tar, packed by gzip, bzip2 or xz or not."""
    with contextlib.suppress(OSError, EOFError, ValueError, zlib.error):
        with path.open("rb") as raw:
            first = raw.read(TAR_BLOCK) if path.is_file() else b""
        if first.startswith((GZIP, _BZIP2, _XZ)):
            first = _unpack_first(path, first)
        return first[TAR_AT:].startswith(TAR)
    return False


def _unpack_first(path: Path, first: bytes) -> bytes:
    """Unpack the first bytes of a file that begins so."""
    import bz2
    import gzip
    import lzma

    opened = gzip.open if first.startswith(GZIP) else bz2.open if first.startswith(_BZIP2) else lzma.open
    with contextlib.suppress(lzma.LZMAError), opened(path, "rb") as content:
        return bytes(content.read(TAR_BLOCK))
    return b""


def extract(path: Path, folder: Path, *, name: str) -> Unpacked:
    """Unpack an archive into an empty folder, and give the job in it; raises as `open_zip` does."""
    return _find_job(folder, unpack(path, folder, name=name), path, name)


def unpack(path: Path, folder: Path, *, name: str) -> list[str]:
    """Unpack an archive into an empty folder, and name its files; raises as `open_zip` does."""
    import lzma
    import tarfile
    import zipfile

    kind = "tar" if is_tar(path) else "zip"
    damage = (tarfile.TarError, zipfile.BadZipFile, zlib.error, lzma.LZMAError)
    try:
        with contextlib.ExitStack() as stack:
            n_packed = path.stat().st_size
            if kind == "tar":
                entries = _list_tar(stack.enter_context(tarfile.open(path)), n_packed, name)
            else:
                entries = _list_zip(stack.enter_context(zipfile.ZipFile(path)))
            _check(entries, n_packed, folder, name, kind)
            for entry in entries:
                target = folder / entry.name
                target.parent.mkdir(parents=True, exist_ok=True)
                with entry.open() as packed, target.open("xb") as file:
                    shutil.copyfileobj(packed, file, _CHUNK)
    except (OSError, EOFError, ValueError, NotImplementedError, RuntimeError, *damage) as error:
        raise TraceError(
            f"cannot be unpacked ({shorten(error)}); expected a whole {kind}: copy it again", where=name
        ) from None
    return [entry.name for entry in entries]


def _list_zip(archive: "zipfile.ZipFile") -> list[_Entry]:
    """List the files of a zip; `zipfile` gives no more bytes of each than were counted."""
    import zipfile

    entries = []
    for found in archive.infolist():
        refusal = ""
        if stat.S_IFMT(found.external_attr >> 16) not in (0, stat.S_IFREG):
            refusal = "is a link or a device; expected files alone: make it anew"
        elif found.flag_bits & 1:
            refusal = "is encrypted; expected a zip without a password: unpack it yourself"
        elif found.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
            refusal = "is packed in a way that is not read; expected deflate: unpack it yourself"
        if not found.is_dir():
            opened = functools.partial(archive.open, found)
            entries.append(_Entry(found.filename, found.file_size, opened, refusal))
    return entries


def _list_tar(archive: "tarfile.TarFile", n_packed: int, name: str) -> list[_Entry]:
    """List the files of a tar, until they are more than a job has: sizes stand before each, and are known only as it is read."""
    entries: list[_Entry] = []
    n_bytes = 0
    for found in archive:
        if found.isdir():
            continue
        n_bytes += found.size
        _check_size(n_bytes, n_packed, name)
        refusal = "" if found.isreg() else "is a link or a device; expected files alone: make it anew"
        opened = functools.partial(archive.extractfile, found)
        entries.append(
            _Entry(found.name.removeprefix("./"), found.size, cast("Callable[[], IO[bytes]]", opened), refusal)
        )
        if len(entries) > MAX_FILES:
            break
    return entries


def _check(entries: list[_Entry], n_packed: int, folder: Path, name: str, kind: str) -> None:
    """Refuse the files of an archive, unless each has a name of its own below the folder and all of them have room."""
    if len(entries) > MAX_FILES:
        raise TraceError(f"has {len(entries)} files; expected at most {MAX_FILES}, those of one job", where=name)
    seen = set()
    for entry in entries:
        where = f"{name}: entry {entry.name[:200]!r}"
        parts = PurePosixPath(entry.name).parts
        is_below = parts and not entry.name.startswith("/") and not {"..", "."} & set(entry.name.split("/"))
        if not is_below or any(char in entry.name for char in "\\:\0") or not entry.name.isprintable():
            raise TraceError(f"leads out of the {kind}; expected names of files below it: make it anew", where=where)
        if entry.name in seen:
            raise TraceError("is there twice; expected each file once: make it anew", where=where)
        seen.add(entry.name)
        if entry.refusal:
            raise TraceError(entry.refusal, where=where)
    n_bytes = sum(entry.n_bytes for entry in entries)
    _check_size(n_bytes, n_packed, name)
    free = shutil.disk_usage(folder).free - ROOM_BYTES
    if n_bytes > free:
        raise TraceError(
            f"unpacks to {n_bytes >> 20:,} MiB, and {folder.parent} has room for {max(0, free) >> 20:,}; set TMPDIR",
            where=name,
        )


def _check_size(n_bytes: int, n_packed: int, name: str) -> None:
    """Refuse what unpacks to more than files of a job do."""
    if n_bytes > MAX_BYTES or (n_bytes > SMALL_BYTES and n_bytes > MAX_RATIO * n_packed):
        raise TraceError(
            f"unpacks to {n_bytes >> 20:,} MiB from {n_packed >> 20:,} MiB, more than files of a job do; unpack it yourself if you "
            "trust it, and give the folder",
            where=name,
        )


def _find_job(folder: Path, names: list[str], path: Path, name: str) -> Unpacked:
    """Find the job: where the manifest says, else the one file or folder of the archive, else all of it."""
    import json

    manifest = folder / MANIFEST
    if MANIFEST in names and manifest.stat().st_size <= MAX_MANIFEST_BYTES:
        with contextlib.suppress(ValueError, TypeError, KeyError, RecursionError):
            found = json.loads(manifest.read_bytes())
            job, location = str(found["job"]), str(found["location"])
            if job in {part for each in names for part in _parents(each)}:
                return Unpacked(folder / job, location)
        raise TraceError(
            "does not say which of its files is the job; expected what `diagnose bundle` writes", where=name
        )
    if not names:
        raise TraceError("is an empty archive; expected the files of one job", where=name)
    location = locate(str(path))
    location = location.removesuffix(next((end for end in reversed(_ENDINGS) if location.endswith(end)), ""))
    tops = {PurePosixPath(each).parts[0] for each in names}
    if len(tops) == 1:
        return Unpacked(folder / tops.pop(), location)
    # All files lie at the top: they are one job, and it is called as the archive is.
    inside = folder / (path.stem or "job")
    if inside.exists():
        return Unpacked(folder, location)
    inside.mkdir()
    for top in sorted(tops):
        (folder / top).rename(inside / top)
    return Unpacked(inside, location)


def _parents(each: str) -> list[str]:
    """Give the name of a file and of all folders that it lies in."""
    path = PurePosixPath(each)
    return [path.as_posix(), *(parent.as_posix() for parent in path.parents)]
