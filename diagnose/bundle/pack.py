"""Collect what somebody else needs to diagnose a job, in one zip: traces, logs, dumps, telemetry, metadata and the diagnosis.

Enters: folders and files. Leaves: a zip that `diagnose` reads as the job, and a `Bundle` that says what is in it and what is not.
The same files give the same bytes. What opens a door is masked in every file; with `anonymous`, hosts, users, addresses and paths
have other names, the same in every file.
"""

import dataclasses
import hashlib
import io
import json
import os
import re
import stat
import tempfile
import zipfile
import zlib
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Sequence
from pathlib import Path
from typing import IO

import pyarrow as pa
import pyarrow.parquet as pq

from diagnose._version import __version__
from diagnose.bundle.names import Names
from diagnose.bundle.rewrite import read_hosts, read_texts, rewrite
from diagnose.bundle.secrets import Secrets
from diagnose.errors import TraceError, shorten
from diagnose.model.job_names import locate
from diagnose.trace.input_files import MAX_FILES, InputFiles, is_trace
from diagnose.trace.kinds import FileKind, sort_file
from diagnose.trace.parquet import REQUIRED
from diagnose.trace.zips import MANIFEST

#: A larger file is left out unless somebody asks for it.
MAX_BYTES = 1 << 30
#: What a bundle calls itself, and its diagnosis.
SCHEMA = "diagnose-bundle/1"
DIAGNOSIS = "diagnosis.json"
#: Files that are of use to nobody who has no trace, log or dump.
_NOT_ALONE = ("metadata", "console", "report", "other")
#: Kinds that go in.
_KEPT = ("trace", "log", "dump", "telemetry", "metadata", "console")
#: Names of files that hold keys, or may.
_SECRET_NAMES = re.compile(
    r"(?:^|[._-])(?:env|netrc|pgpass|htpasswd|kubeconfig|credentials?|secrets?|passwords?|authorized_keys|known_hosts)(?:\.\w{1,10})?$"
    r"|\.(?:pem|key|p12|pfx|jks|kdbx|gpg|asc|ppk)$|^id_(?:rsa|dsa|ecdsa|ed25519)",
    re.IGNORECASE,
)
_SECRET_TEXT = re.compile(rb"(?m)^kind:\s*Secret\b|-----BEGIN [A-Z ]{0,40}PRIVATE KEY-----")
#: What all files of a zip have in common, so that the same files give the same bytes.
_DATE = (1980, 1, 1, 0, 0, 0)
#: Files that are packed already.
_PACKED = (".gz", ".parquet")
_DAMAGED = (
    OSError,
    EOFError,
    ValueError,
    KeyError,
    IndexError,
    OverflowError,
    MemoryError,
    zlib.error,
    pa.ArrowException,
)


@dataclasses.dataclass(frozen=True, slots=True)
class LeftOut:
    """A file that is not in a bundle, as it is called in the job, and why."""

    path: str
    reason: str


@dataclasses.dataclass(frozen=True, slots=True)
class Bundle:
    """What is in a bundle."""

    #: Path of the job in the zip.
    job: str
    #: Where the job was, as far as that names it.
    location: str
    #: Path in the zip, and what each is of use for.
    files: tuple[tuple[str, FileKind], ...]
    left_out: tuple[LeftOut, ...]
    #: Secrets by kind.
    masked: dict[str, int]
    #: Names that were replaced, by kind.
    renamed: dict[str, int]
    #: New name -> old one, for who made the bundle and nobody else.
    names: dict[str, str]


@dataclasses.dataclass(frozen=True, slots=True)
class _Found:
    """A file of the job: where it lies, what it is called in the zip, and what it is."""

    path: Path
    inside: str
    kind: FileKind


def write_bundle(
    sources: Sequence[Path],
    target: Path,
    *,
    title: str,
    anonymous: bool = False,
    max_bytes: int = MAX_BYTES,
    excluded: Collection[Path] = (),
    diagnosis: Callable[[str, str], str | None] | None = None,
    report: Callable[[str], None],
) -> Bundle:
    """Write a bundle.

    Parameters
    ----------
    sources : sequence of Path
        A folder, a file, or several that are of one job.
    target : Path
        Written when all of it is known; it does not have to exist.
    title : str
        What the job is called in the zip where there are several sources.
    max_bytes : int
        Larger files are left out.
    excluded : collection of Path
        What is being written, wherever it lies.
    diagnosis : callable, optional
        Asked for the JSON of the diagnosis, once all files are written; it is told the path of the job in
        the zip, and where the job was.

    Raises
    ------
    TraceError
        There is nothing of a job, or far too many files.
    """
    report("looking at files")
    job, listed, left_out = _list(sources, "job" if anonymous else title, anonymous=anonymous)
    listed = [each for each in listed if each[0].resolve() not in excluded]
    found: list[_Found] = []
    for n, (path, inside, inputs) in enumerate(listed):
        report(f"file {n + 1} of {len(listed)}")
        kind, reason = _look(inputs, path, max_bytes)
        if reason is None:
            found.append(_Found(path, inside, kind))
        else:
            left_out.append(LeftOut(inside, reason))
    if not any(file.kind not in _NOT_ALONE for file in found):
        what = "; ".join(f"{each.path}: {each.reason}" for each in left_out[:3]) or "no files"
        raise TraceError(
            f"holds nothing that a diagnosis is made from ({what}); expected traces, logs or dumps",
            where=str(sources[0]),
        )
    names = _find_names(found, left_out, report) if anonymous else None
    secrets = Secrets()
    with zipfile.ZipFile(target, "w", zipfile.ZIP_DEFLATED, compresslevel=6) as archive:
        files = _write_files(archive, found, names, secrets, left_out, report)
    report("diagnosing")
    location = _locate(sources, job, anonymous=anonymous)
    text = None if diagnosis is None else diagnosis(job, location)
    left_out = sorted(left_out, key=lambda each: each.path)
    if names is not None:
        left_out = [LeftOut(_rename(names, each.path), _rename(names, each.reason)) for each in left_out]
    made = Bundle(
        job=job,
        location=location,
        files=tuple((inside, kind) for inside, kind, _, _ in files),
        left_out=tuple(left_out),
        masked=dict(sorted(secrets.counts.items())),
        renamed={} if names is None else names.counts,
        names={} if names is None else names.table(),
    )
    with zipfile.ZipFile(target, "a", zipfile.ZIP_DEFLATED, compresslevel=6) as archive:
        if text is not None:
            archive.writestr(_entry(DIAGNOSIS), text)
        archive.writestr(
            _entry(MANIFEST), _write_manifest(made, files, anonymous=anonymous, diagnosed=text is not None)
        )
    return made


def _locate(sources: Sequence[Path], job: str, *, anonymous: bool) -> str:
    """Give what names a job without metadata: the last two parts of its path."""
    if anonymous or len(sources) != 1:
        return job
    return "/".join(Path(locate(str(sources[0]))).parts[-2:]).strip("/") or job


def _list(
    sources: Sequence[Path], title: str, *, anonymous: bool
) -> tuple[str, list[tuple[Path, str, InputFiles]], list[LeftOut]]:
    """List the files of all sources with their names in the zip, sorted; first the path of the job there."""
    listed: list[tuple[Path, str, InputFiles]] = []
    left_out: list[LeftOut] = []
    alone = sources[0] if len(sources) == 1 else None
    if alone is not None and not alone.is_dir():
        job = f"job{''.join(alone.suffixes[-2:])}" if anonymous else alone.name
        listed.append((alone, job, InputFiles(alone, (alone,))))
        listed += [(beside, name, InputFiles(beside, (beside,))) for beside, name in _list_beside(alone, job)]
        return job, listed, left_out
    job = title if anonymous or alone is None else (alone.resolve().name or title)
    taken: set[str] = set()
    for source in sources:
        name = source.resolve().name if source.is_dir() else source.name
        top = job if alone is not None else f"{job}/{_give_free(name, taken)}"
        if source.is_dir():
            inside = list(_walk(source, left_out, top))
            inputs = InputFiles(source, tuple(path for path, _ in inside))
            listed += [(path, each, inputs) for path, each in inside]
        else:
            listed.append((source, top, InputFiles(source, (source,))))
    if alone is not None:
        listed += [(beside, name, InputFiles(beside, (beside,))) for beside, name in _list_beside(alone, job)]
    if len(listed) > MAX_FILES:
        raise TraceError(
            f"has {len(listed)} files; expected at most {MAX_FILES}, those of one job", where=str(sources[0])
        )
    return job, sorted(listed, key=lambda each: each[1]), left_out


def _give_free(path: str, taken: set[str]) -> str:
    """Give a name that nothing before has, in the same folder of the zip."""
    folder, slash, name = path.rpartition("/")
    n, free = 1, path
    while free in taken:
        n += 1
        free = f"{folder}{slash}{n}-{name}"
    taken.add(free)
    return free


def _list_beside(source: Path, job: str) -> Iterator[tuple[Path, str]]:
    """Give the metadata that lies beside a trace or its folder, and what it is called in the zip."""
    stem, new = source.resolve().name.removesuffix(".parquet"), job.removesuffix(".parquet")
    places = [(f"{stem}.yaml", f"{new}.yaml"), (f"{stem}.yml", f"{new}.yml")]
    if stem.startswith("trace-"):
        places.insert(0, (f"meta-{stem.removeprefix('trace-')}.yaml", f"{new}.yaml"))
    for old, name in places:
        beside = source.resolve().parent / old
        if beside.is_file():
            yield beside, name
            return


def _walk(folder: Path, left_out: list[LeftOut], top: str) -> Iterator[tuple[Path, str]]:
    """List the files of a folder as a reader does: without hidden ones, and without links that lead out of it."""
    root = folder.resolve()
    for at, folders, names in os.walk(folder):
        here = Path(at)
        for name in sorted(folders):
            inside = f"{top}/{(here / name).relative_to(folder).as_posix()}"
            if name.startswith("."):
                left_out.append(LeftOut(inside, "hidden"))
            elif (here / name).is_symlink():
                left_out.append(LeftOut(inside, "a link to a folder"))
        folders[:] = sorted(name for name in folders if not name.startswith(".") and not (here / name).is_symlink())
        for name in sorted(names):
            path = here / name
            inside = f"{top}/{path.relative_to(folder).as_posix()}"
            try:
                is_file = stat.S_ISREG(path.stat().st_mode)
            except OSError:
                left_out.append(LeftOut(inside, "a link that leads nowhere" if path.is_symlink() else "cannot be read"))
                continue
            if name.startswith("."):
                left_out.append(LeftOut(inside, "hidden"))
            elif not is_file:
                left_out.append(LeftOut(inside, "no file but a pipe, a socket or a device"))
            elif path.is_symlink() and root not in path.resolve().parents:
                left_out.append(LeftOut(inside, "a link that leads out of the folder"))
            else:
                yield path, inside


def _look(inputs: InputFiles, path: Path, max_bytes: int) -> tuple[FileKind, str | None]:
    """Say what a file is of use for, and why it is left out; None where it goes in."""
    if _SECRET_NAMES.search(path.name):
        return "other", "may hold keys or passwords, by its name"
    try:
        n_bytes = path.stat().st_size
        kind, what = sort_file(inputs, path)
        head = inputs.head(path)
    except OSError as error:
        return "other", f"cannot be read: {error.strerror or error}"
    if kind == "report":
        return kind, "a report: the bundle has a diagnosis of its own"
    if kind not in _KEPT:
        return kind, f"not needed: {what}"
    if is_trace(path) and not _has_columns(path):
        return kind, "Parquet without the columns of a trace"
    if kind == "metadata" and _SECRET_TEXT.search(head):
        return kind, "may hold keys or passwords, by what is in it"
    if n_bytes > max_bytes:
        return kind, f"too large: {n_bytes / 2**20:,.0f} MiB, more than --max-size"
    return kind, None


def _has_columns(path: Path) -> bool:
    """Say whether a Parquet file is a trace; a damaged one may be."""
    try:
        return set(REQUIRED) <= set(pq.read_schema(path).names)
    except _DAMAGED:
        return False


def _find_names(found: list[_Found], left_out: list[LeftOut], report: Callable[[str], None]) -> Names:
    """Find all names in all files; a file that cannot be read is left out."""
    names = Names()
    for n, file in enumerate(list(found)):
        report(f"looking for names, file {n + 1} of {len(found)}")
        try:
            if is_trace(file.path):
                names.add_hosts(read_hosts(file.path))
            for text in read_texts(file.path):
                names.find(text)
        except _DAMAGED as error:
            found.remove(file)
            left_out.append(LeftOut(file.inside, _describe(error)))
    return names


def _rename(names: Names, text: str) -> str:
    """Replace the names in a name of a file."""
    return names.replace(text.encode("utf-8", "surrogateescape")).decode("utf-8", "replace")


def _write_files(
    archive: zipfile.ZipFile,
    found: list[_Found],
    names: Names | None,
    secrets: Secrets,
    left_out: list[LeftOut],
    report: Callable[[str], None],
) -> list[tuple[str, FileKind, int, str]]:
    """Write all files cleaned, and list what is in the zip: name, kind, bytes, and their digest."""

    def clean(text: bytes) -> bytes:
        masked = secrets.mask(text)
        return masked if names is None else names.replace(masked)

    def clean_about(text: bytes) -> bytes:
        return clean(text) if names is None else clean(names.replace_jobs(text))

    written: list[tuple[str, FileKind, int, str]] = []
    taken: set[str] = set()
    for n, file in enumerate(found):
        report(f"writing file {n + 1} of {len(found)}")
        inside = file.inside if names is None else _rename(names, file.inside)
        # Backslashes and colons are letters here and folders elsewhere.
        inside = re.sub(r"[\\:\0-\x1f\x7f-\x9f]", "_", inside.encode("utf-8", "replace").decode())
        inside = _give_free(inside, taken)
        with tempfile.TemporaryFile() as spool:  # what turns out to be damaged leaves nothing in the zip
            try:
                of_text = clean_about if file.kind == "metadata" else clean
                rewrite(file.path, spool, of_text, clean_about, only_known=names is not None)
            except _DAMAGED as error:
                left_out.append(LeftOut(file.inside, _describe(error)))
                continue
            written.append((inside, file.kind, *_copy(spool, archive, inside)))
    return written


def _copy(spool: IO[bytes], archive: zipfile.ZipFile, inside: str) -> tuple[int, str]:
    """Put a file into a zip; how many bytes it has, and their digest."""
    n_bytes, digest = spool.seek(0, io.SEEK_END), hashlib.sha256()
    spool.seek(0)
    with archive.open(_entry(inside), "w", force_zip64=n_bytes >= 1 << 31) as packed:
        while chunk := spool.read(1 << 20):
            digest.update(chunk)
            packed.write(chunk)
    return n_bytes, digest.hexdigest()


def _entry(inside: str) -> zipfile.ZipInfo:
    """Describe a file of the zip, whatever the clock, the user and the system."""
    entry = zipfile.ZipInfo(inside, _DATE)
    entry.create_system = 3
    entry.external_attr = (stat.S_IFREG | 0o644) << 16
    entry.compress_type = zipfile.ZIP_STORED if inside.lower().endswith(_PACKED) else zipfile.ZIP_DEFLATED
    return entry


def _describe(error: Exception) -> str:
    """Say why a file cannot be cleaned."""
    return f"damaged, and cannot be searched for secrets ({shorten(error)})"


def _write_manifest(
    made: Bundle, files: list[tuple[str, FileKind, int, str]], *, anonymous: bool, diagnosed: bool
) -> str:
    """Write what is in the zip, for programs and people."""
    reasons = Counter(each.reason.partition(":")[0] for each in made.left_out)
    manifest = {
        "schema": SCHEMA,
        "made_by": {"version": __version__},
        "job": made.job,
        "location": made.location,
        "diagnosis": DIAGNOSIS if diagnosed else None,
        "anonymous": anonymous,
        "masked": made.masked,
        "renamed": made.renamed,
        "files": [
            {"path": inside, "kind": kind, "bytes": n_bytes, "sha256": digest}
            for inside, kind, n_bytes, digest in files
        ],
        "left_out": [dataclasses.asdict(each) for each in made.left_out],
        "left_out_by_reason": dict(sorted(reasons.items())),
    }
    return json.dumps(manifest, indent=1, ensure_ascii=True) + "\n"
