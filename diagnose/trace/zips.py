"""A job in a zip, as `diagnose bundle` writes it: unpacked into a folder of its own for as long as it is read.

Enters: a path. Leaves: the path of the job in that folder; what is no zip stays as it is. A zip is nobody's friend: its names may
lead out of the folder, and a few bytes may unpack to more than any disk. Nothing is written before all of its entries are checked.
"""

import contextlib
import dataclasses
import shutil
import stat
import tempfile
from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, BinaryIO

from diagnose.errors import TraceError
from diagnose.model.job_names import locate
from diagnose.trace.input_files import MAX_FILES

if TYPE_CHECKING:
    import zipfile

#: How a zip begins.
MAGIC = b"PK\x03\x04"
#: What `diagnose bundle` says of the files in a zip, and which of them is the job.
MANIFEST = "bundle.json"
MAX_MANIFEST_BYTES = 1 << 26
#: Names inside of files that are zips and no folders: weights, arrays.
_OTHER = ("data.pkl", ".npy")
#: Bytes that a zip may unpack to: as many as all files of a large job; or so many times its own size, from so many on. Text of
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


@contextlib.contextmanager
def open_zip(source: str | Path | BinaryIO, *, name: str) -> Iterator[Unpacked | None]:
    """Unpack the job that lies in a zip, until the end; None where it is something else.

    Raises
    ------
    TraceError
        It is damaged, or holds what no bundle does.
    """
    if not isinstance(source, (str, Path)) or not is_zip(Path(source)):
        yield None
        return
    with tempfile.TemporaryDirectory(prefix="diagnose-") as folder:
        yield extract(Path(source), Path(folder), name=name)


def is_zip(path: Path) -> bool:
    """Say whether a file is a zip of files, and neither weights nor arrays."""
    import zipfile

    try:
        with path.open("rb") as file:
            if not path.is_file() or file.read(len(MAGIC)) != MAGIC:
                return False
        with zipfile.ZipFile(path) as archive:
            return not any(entry.filename.endswith(_OTHER) for entry in archive.infolist())
    except (OSError, ValueError, NotImplementedError, zipfile.BadZipFile):
        return False


def extract(path: Path, folder: Path, *, name: str) -> Unpacked:
    """Unpack a zip into an empty folder, and give the job in it; raises as `open_zip` does."""
    return _find_job(folder, unpack(path, folder, name=name), path, name)


def unpack(path: Path, folder: Path, *, name: str) -> list[str]:
    """Unpack a zip into an empty folder, and name its files; raises as `open_zip` does."""
    import zipfile
    import zlib

    try:
        with zipfile.ZipFile(path) as archive:
            entries = _check(archive, path.stat().st_size, folder, name)
            for entry in entries:
                _extract_one(archive, entry, folder)
    except (OSError, EOFError, ValueError, NotImplementedError, RuntimeError, zipfile.BadZipFile, zlib.error) as error:
        reason = " ".join(str(error).split())[:200] or type(error).__name__
        raise TraceError(f"cannot be unpacked ({reason}); expected a whole zip: copy it again", where=name) from None
    return [entry.filename for entry in entries]


def _check(archive: "zipfile.ZipFile", n_packed: int, folder: Path, name: str) -> "list[zipfile.ZipInfo]":
    """List the files of a zip, when each has a name of its own below the folder and all of them have room."""
    import zipfile

    entries = [entry for entry in archive.infolist() if not entry.is_dir()]
    if len(entries) > MAX_FILES:
        raise TraceError(f"has {len(entries)} files; expected at most {MAX_FILES}, those of one job", where=name)
    seen = set()
    for entry in entries:
        where = f"{name}: entry {entry.filename[:200]!r}"
        parts = PurePosixPath(entry.filename).parts
        is_below = parts and not entry.filename.startswith("/") and not {"..", "."} & set(entry.filename.split("/"))
        if not is_below or any(char in entry.filename for char in "\\:\0") or not entry.filename.isprintable():
            raise TraceError("leads out of the zip; expected names of files below it: make it anew", where=where)
        if entry.filename in seen:
            raise TraceError("is there twice; expected each file once: make it anew", where=where)
        seen.add(entry.filename)
        kind = stat.S_IFMT(entry.external_attr >> 16)
        if kind not in (0, stat.S_IFREG):
            raise TraceError("is a link or a device; expected files alone: make it anew", where=where)
        if entry.flag_bits & 1:
            raise TraceError("is encrypted; expected a zip without a password: unpack it yourself", where=where)
        if entry.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
            raise TraceError("is packed in a way that is not read; expected deflate: unpack it yourself", where=where)
    n_bytes = sum(entry.file_size for entry in entries)
    if n_bytes > MAX_BYTES or (n_bytes > SMALL_BYTES and n_bytes > MAX_RATIO * n_packed):
        raise TraceError(
            f"unpacks to {n_bytes >> 20:,} MiB from {n_packed >> 20:,} MiB, more than files of a job do; unpack it yourself if you "
            "trust it, and give the folder",
            where=name,
        )
    free = shutil.disk_usage(folder).free - ROOM_BYTES
    if n_bytes > free:
        raise TraceError(
            f"unpacks to {n_bytes >> 20:,} MiB, and {folder.parent} has room for {max(0, free) >> 20:,}; set TMPDIR",
            where=name,
        )
    return entries


def _extract_one(archive: "zipfile.ZipFile", entry: "zipfile.ZipInfo", folder: Path) -> None:
    """Write one file; `zipfile` gives no more bytes of it than were counted."""
    target = folder / entry.filename
    target.parent.mkdir(parents=True, exist_ok=True)
    with archive.open(entry) as packed, target.open("xb") as file:
        shutil.copyfileobj(packed, file, _CHUNK)


def _find_job(folder: Path, names: list[str], path: Path, name: str) -> Unpacked:
    """Find the job: where the manifest says, else the one file or folder of the zip, else all of it."""
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
        raise TraceError("is an empty zip; expected the files of one job", where=name)
    location = locate(str(path)).removesuffix(".zip")
    tops = {PurePosixPath(each).parts[0] for each in names}
    if len(tops) == 1:
        return Unpacked(folder / tops.pop(), location)
    # All files lie at the top: they are one job, and it is called as the zip is.
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
