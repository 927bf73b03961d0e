"""Find the jobs: traces in folders, globs, list files and object stores.

Enters: what the user names. Leaves: one `FoundJob` a trace, or a folder with one file a rank, by location, without doubles. Only
names, sizes and times are read, and in each local folder a few files are looked at to tell whether they are the pieces of
one job; what is wrong with a file is found by who reads it.
"""

import dataclasses
import datetime as dt
import glob
import hashlib
import os
import re
import stat
from collections.abc import Collection, Iterable, Iterator
from pathlib import Path
from typing import Any

from diagnose.errors import UsageError
from diagnose.trace.logs_beside import may_be_console

#: Names of traces in a folder; a file that is named itself may be called anything.
SUFFIXES = (".parquet",)
#: Files with one location a line.
LIST_SUFFIXES = (".txt", ".lst", ".list")
#: Package that reads each kind of object store, and the extra that brings it.
PROTOCOLS = {
    "s3": ("s3fs", "s3"),
    "s3a": ("s3fs", "s3"),
    "gs": ("gcsfs", "gs"),
    "gcs": ("gcsfs", "gs"),
    "memory": ("fsspec", "s3"),  # for tests
}
_URL = re.compile(r"^([a-z][a-z0-9+.-]+)://")


@dataclasses.dataclass(frozen=True, slots=True)
class FoundJob:
    """One trace to diagnose, or a folder with the files of one job."""

    location: str  # Absolute path, or URL; the key of the job in the store
    size_bytes: int = 0  # Of all files of a folder together
    modified_s: float | None = None  # Seconds since 1970, of the newest file; None where the object store does not say
    #: Changes when the trace or the metadata beside it does, as far as the listing tells; None where the file is not
    #: there.
    stamp: str | None = None
    beside: tuple[str, ...] = ()  # Locations of metadata files that belong to it
    is_folder: bool = False  # True where the files of a folder are the job; `list_pieces` names them
    refused: str = ""  # Why nobody knows which jobs are there: it cannot be listed, as a folder of somebody else


@dataclasses.dataclass(frozen=True, slots=True)
class _Entry:
    """One file of a listing; `mark` is what changes with its content: time in nanoseconds, or an etag."""

    location: str
    size_bytes: int
    modified_s: float | None
    mark: str


def list_jobs(sources: Iterable[str], logs: list[str] | None = None) -> list[FoundJob]:
    """List the jobs that the sources name, by location, each once.

    Sources are folders (all jobs in them, at any depth; a folder with one file a rank is one), files, globs, list files (`.txt`,
    `.lst`, `.list`: a source a line, `#` begins a comment) and prefixes of object stores. To `logs` are added the local files that
    are called as the output of a program is, in folders that have no job: who names them gets them diagnosed.

    Raises
    ------
    UsageError
        A source is not there, or no installed package reads it.
    """
    found = [] if logs is None else logs
    jobs = {job.location: job for source in sources for job in _list_source(source, found, listed=False)}
    return [jobs[location] for location in sorted(jobs)]


def open_remote(location: str) -> tuple[Any, str]:
    """Give the filesystem of a URL, from fsspec, and the path in it.

    Raises
    ------
    UsageError
        The package that reads it is not installed, or the URL has credentials in it.
    """
    match = _URL.match(location)
    protocol = match[1] if match else ""
    if protocol not in PROTOCOLS:
        raise UsageError(f"{protocol}:// is not known; expected a path, s3:// or gs://")
    package, extra = PROTOCOLS[protocol]
    if "@" in location.split("://", 1)[1].split("/", 1)[0]:
        raise UsageError(f"{protocol}://: credentials in a URL can be seen by everyone; give them in the environment")
    try:
        import fsspec

        return fsspec.core.url_to_fs(location)  # type: ignore[no-any-return] # it brings no types
    except ImportError:
        raise UsageError(f"{protocol}:// needs {package}: pip install 'diagnose-training[{extra}]'") from None


def is_remote(location: str) -> bool:
    """Say whether a location is a URL."""
    return _URL.match(location) is not None


def list_again(job: FoundJob) -> FoundJob:
    """List a local job anew: what a listing said may be old. Remote ones are given back as they are."""
    if is_remote(job.location):
        return job
    if job.is_folder:
        pieces = list_pieces(job.location)
        return _folder_job(job.location, pieces) if pieces else FoundJob(job.location)
    return next(iter(_local_jobs([job.location])), FoundJob(job.location))


def list_pieces(folder: str) -> tuple[str, ...]:
    """Name the files of a local folder that are one job together; none where it is no such folder, or no longer there."""
    for where, _, files in os.walk(folder):
        return _pick_pieces(where, files)
    return ()


def _list_source(source: str, logs: list[str], *, listed: bool) -> Iterator[FoundJob]:
    """List what one source names; in a list file, what is not there becomes a job that cannot be read."""
    if is_remote(source):
        yield from _list_remote(source)
        return
    path = Path(source).expanduser()
    try:
        if "\0" in source:
            raise ValueError("it has a NUL in it")  # noqa: TRY301 - told as what the system says is
        if path.is_dir():
            yield from _walk(path, logs, is_named=not listed)
        elif path.exists():
            if path.suffix.lower() in LIST_SUFFIXES and not listed:
                for line in _read_list(path):
                    yield from _list_source(line, logs, listed=True)
            else:
                yield from _local_jobs([str(path)])
        elif glob.has_magic(source):
            for name in sorted(glob.glob(str(path), recursive=True)):  # noqa: PTH207 - absolute ones too
                if Path(name).is_dir():
                    yield from _walk(Path(name), logs, is_named=False)
                else:
                    yield from _local_jobs([name])
        elif listed or path.is_symlink():
            yield FoundJob(os.path.abspath(path))  # noqa: PTH100 - a link that leads nowhere keeps its name
        else:
            raise UsageError(f"{source} is not there; expected a folder, a file, a glob, a list file, s3:// or gs://")
    except (OSError, ValueError) as error:
        said = getattr(error, "strerror", None) or error
        if not listed:
            raise UsageError(f"cannot list {source}: {said}") from None
        yield FoundJob(source, refused=f"cannot be listed: {said}; expected a path")


def _read_list(path: Path) -> list[str]:
    """Read a list file: one source a line."""
    lines = (line.strip() for line in path.read_text(encoding="utf-8", errors="surrogateescape").splitlines())
    return [line for line in lines if line and not line.startswith("#")]


def _walk(folder: Path, logs: list[str], *, is_named: bool) -> Iterator[FoundJob]:
    """Make the jobs of a folder, at any depth, hidden files left out: the pieces of one job are one, other traces one each.

    A folder that cannot be listed, as another team's or `lost+found`, becomes a job that says so, unless the user named it; one
    that is gone by now is left out.
    """
    refused: list[FoundJob] = []

    def keep(error: OSError) -> None:
        if is_named and error.filename == str(folder):
            raise error
        if not isinstance(error, FileNotFoundError):
            reason = f"the folder cannot be listed: {error.strerror or error}; expected one that you may read"
            refused.append(FoundJob(os.path.abspath(error.filename), refused=reason))  # noqa: PTH100 - no link is followed

    for where, folders, files in os.walk(str(folder), onerror=keep):
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        pieces = _pick_pieces(where, files)
        if pieces:
            yield _folder_job(where, pieces)
        elif any(map(_is_trace, files)):
            yield from _jobs_in(where, files, {*files, *folders})
        else:
            logs += [str(file) for name in files if may_be_console(file := Path(where, name))]
    yield from refused


def _pick_pieces(folder: str, files: list[str]) -> tuple[str, ...]:
    """Look at a few of the files of a folder, and name those that are one job together."""
    from diagnose.trace.rank_files import pick_rank_files  # late: object stores need none of it

    return pick_rank_files(Path(folder), sorted(name for name in files if not name.startswith(".")))


def _is_trace(name: str) -> bool:
    """Say whether a file in a folder is a trace, by its name."""
    return name.endswith(SUFFIXES) and not name.startswith(".")


def _jobs_in(folder: str, files: Iterable[str], names: Collection[str]) -> Iterator[FoundJob]:
    """Make jobs of the traces among the files of a local folder, of which all names are known.

    Each is looked at once: a file system on the network takes half a millisecond to answer, and a folder has thousands.
    """
    at = os.path.realpath(folder)
    for name in sorted(filter(_is_trace, files)):
        location = os.path.join(at, name)  # noqa: PTH118 - this runs for every file of a large folder
        entry = _stat(location, follows=False)
        if entry is None:  # a link, or gone by now
            yield from _local_jobs([os.path.join(folder, name)])  # noqa: PTH118 - as above
        else:
            yield _make_job(location, [entry], _stat_beside(location, names))


def _local_jobs(paths: Iterable[str]) -> Iterator[FoundJob]:
    """Make jobs of local files."""
    for path in paths:
        location = os.path.realpath(path)
        entry = _stat(location)
        if entry is None:
            yield FoundJob(os.path.abspath(path))  # noqa: PTH100 - as above
            continue
        yield _make_job(location, [entry], _stat_beside(location))


def _folder_job(folder: str, pieces: Iterable[str]) -> FoundJob:
    """Make the job of a folder of which these files are the pieces."""
    location = os.path.realpath(folder)
    found = [_stat(os.path.join(location, name)) for name in pieces]  # noqa: PTH118 - one a rank
    return _make_job(location, [entry for entry in found if entry], _stat_beside(location), is_folder=True)


def _stat_beside(location: str, names: Collection[str] | None = None) -> list[_Entry]:
    """Look at the metadata files beside a local trace or folder, of all names there where these are known."""
    folder = os.path.dirname(location)  # noqa: PTH120 - this runs for every file of a large folder
    wanted = [name for name in _names_beside(location) if names is None or name in names]
    found = [_stat(os.path.join(folder, name)) for name in wanted]  # noqa: PTH118 - as above
    return [entry for entry in found if entry]


def _stat(location: str, *, follows: bool = True) -> _Entry | None:
    """Look at a local file; None where there is none, or where it is a link that is not to be followed."""
    try:
        found = os.stat(location, follow_symlinks=follows)  # noqa: PTH116 - this runs for every file of a large folder
    except OSError:
        return None
    if stat.S_ISLNK(found.st_mode):
        return None
    return _Entry(location, found.st_size, found.st_mtime, f"{found.st_mtime_ns}-{found.st_ino}")


def _names_beside(location: str) -> list[str]:
    """Name the metadata files that may lie beside a trace, as `trace.metadata` looks for them."""
    stem = location.rsplit("/", 1)[-1].removesuffix(".parquet")
    names = [f"{stem}.yaml", f"{stem}.yml"]
    return [f"meta-{stem.removeprefix('trace-')}.yaml", *names] if stem.startswith("trace-") else names


def _make_job(location: str, entries: list[_Entry], beside: list[_Entry], *, is_folder: bool = False) -> FoundJob:
    """Join the files of a job and its metadata files."""
    marks = [(found.location, found.size_bytes, found.mark) for found in (*entries, *beside)]
    stamp = hashlib.blake2b(repr(marks).encode("utf-8", "surrogateescape"), digest_size=16).hexdigest()
    modified = [found.modified_s for found in (*entries, *beside) if found.modified_s is not None]
    return FoundJob(
        location,
        sum(entry.size_bytes for entry in entries),
        max(modified) if modified else None,
        stamp if entries and all(entry.mark for entry in entries) else None,
        tuple(found.location for found in beside),
        is_folder,
    )


def _list_remote(source: str) -> Iterator[FoundJob]:
    """List the traces below a prefix of an object store, or those that a glob there matches."""
    files, root = open_remote(source)
    try:
        if glob.has_magic(root):
            details = {
                name: detail for name, detail in files.glob(root, detail=True).items() if detail["type"] == "file"
            }
            folders = {name.rsplit("/", 1)[0] for name in details}
            around = {name: d for folder in folders for name, d in files.find(folder, maxdepth=1, detail=True).items()}
        else:
            around = files.find(root, detail=True)
            exact = {name: detail for name, detail in around.items() if name == root}
            details = exact or {name: d for name, d in around.items() if _is_trace(name.rsplit("/", 1)[-1])}
            if exact:
                around = files.find(root.rsplit("/", 1)[0], maxdepth=1, detail=True)
    except Exception as error:  # noqa: BLE001 - every store raises its own
        raise UsageError(f"cannot list {source}: {_one_line(error)}") from None
    for name in sorted(details):
        folder = name.rsplit("/", 1)[0]
        beside = [f"{folder}/{other}" for other in _names_beside(name)]
        entry = _remote_entry(files, name, details[name])
        yield _make_job(
            entry.location, [entry], [_remote_entry(files, other, around[other]) for other in beside if other in around]
        )


def _remote_entry(files: Any, name: str, detail: dict[str, Any]) -> _Entry:
    """Read what an object store says of one object."""
    modified = next((detail[key] for key in ("LastModified", "mtime", "updated", "created") if key in detail), None)
    if isinstance(modified, str):
        modified = dt.datetime.fromisoformat(modified)
    if isinstance(modified, dt.datetime):
        modified = modified.timestamp()
    mark = next((str(detail[key]) for key in ("ETag", "etag", "md5Hash", "generation") if detail.get(key)), "")
    return _Entry(files.unstrip_protocol(name), int(detail.get("size") or 0), modified, mark or str(modified or ""))


def _one_line(error: BaseException) -> str:
    """Write an error of a library in one line."""
    return " ".join(f"{type(error).__name__}: {error}".split())[:300]
