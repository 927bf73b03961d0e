"""Read telemetry: a file, a folder of files, or a Prometheus server that the user names.

Enters: a path or an address. Leaves: `Telemetry`. Told by content, as everywhere; the name of a file, or of its folder, names the
machine where nothing in it does.
"""

import gzip
import os
import re
import zlib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

from diagnose.errors import TraceError
from diagnose.model.telemetry import Telemetry
from diagnose.telemetry import dmon, nvidia_smi, prometheus, snapshots
from diagnose.telemetry.gather import Gathering
from diagnose.telemetry.recognise import HEAD_BYTES, recognise
from diagnose.telemetry.times import find_time

#: Unpacked bytes of one file: what tells more is asked for in parts.
MAX_BYTES: Final = 1 << 28
#: Files of a folder.
MAX_FILES: Final = 20_000
_EXPECTED: Final = (
    "expected answers of Prometheus to range queries (JSON), text of an exporter with times, "
    "nvidia-smi --query-gpu=timestamp,index,... --format=csv, dcgmi dmon with times, or snapshots of counters"
)
#: Words of a file's name that name no machine.
_WORDS: Final = (
    r"nvidia[-_]?smi|gpus?|dcgmi?|dmon|dcgm[-_]exporter|node[-_]exporter|metrics|telemetry|counters|prolog|epilog|before|after|snapshots?"
    r"|prom(?:etheus)?|\d{8}(?:[-_T]?\d{4,6})?"
)
_WORD_BEFORE: Final = re.compile(rf"^(?:{_WORDS})[-_.]", re.IGNORECASE)
_WORD_BEHIND: Final = re.compile(rf"[-_.](?:{_WORDS})$", re.IGNORECASE)
_NO_HOST: Final = re.compile(rf"^(?:{_WORDS})$", re.IGNORECASE)


def read_telemetry(
    source: str | os.PathLike[str] | Sequence[Path],
    *,
    begin_s: float | None = None,
    end_s: float | None = None,
    hosts: Sequence[str] = (),
    report: Callable[[str], None] | None = None,
) -> Telemetry:
    """Read what machines measured of themselves.

    Parameters
    ----------
    source : str, path, or sequence of paths
        A file, a folder of them, several files, or the address of a Prometheus server.
    begin_s, end_s : float or None
        Unix seconds: values of other times are let go. A server is asked for the last quarter of an hour where left out.
    hosts : sequence of str
        What a server is asked for; all its machines where there are none.
    report : callable or None
        Told what is being read.

    Raises
    ------
    TraceError
        Nothing of it can be read, or it is too large.
    UsageError
        The address is none.
    ServiceError
        The server does not answer, or not as it should.
    """
    if not isinstance(source, (str, os.PathLike)):
        folder = Path(os.path.commonpath([file.parent for file in source]))
        return _read_files(source, folder, Gathering(begin_s, end_s), str(folder), report)
    text = os.fspath(source)
    if "://" in text:
        from diagnose.telemetry.server import ask_server

        return ask_server(text, begin_s=begin_s, end_s=end_s, hosts=hosts, report=report)
    path = Path(text)
    if not path.exists():
        raise TraceError(f"no such file; {_EXPECTED}", where=text)
    into = Gathering(begin_s, end_s)
    if path.is_dir():
        return _read_files(_list_files(path, text), path, into, text, report)
    _read_file(path, into, text)
    return into.finish(text)


def _read_files(
    files: Sequence[Path], folder: Path, into: Gathering, name: str, report: Callable[[str], None] | None
) -> Telemetry:
    """Read several files; a warning tells of one that cannot be read."""
    warnings: list[str] = []
    for file in files:
        called = f"{name}/{file.relative_to(folder).as_posix()}"
        if report is not None:
            report(f"reading {called}")
        try:
            _read_file(file, into, called)
        except TraceError as error:
            warnings.append(f"not read: {error}")
    if len(warnings) == len(files):
        raise TraceError(f"has {len(files)} files, and no telemetry; first: {warnings[0]}", where=name)
    return into.finish(name, warnings)


def _list_files(folder: Path, name: str) -> list[Path]:
    """List the files of a folder and its folders, by name; hidden ones are left out."""
    files = sorted(
        file
        for file in folder.rglob("*")
        if file.is_file() and not any(part.startswith(".") for part in file.relative_to(folder).parts)
    )
    if not 0 < len(files) <= MAX_FILES:
        raise TraceError(f"has {len(files)} files; {_EXPECTED}, at most {MAX_FILES} files", where=name)
    return files


def _read_file(file: Path, into: Gathering, name: str) -> None:
    """Read one file; each error names it."""
    try:
        read_content(_unpack(file), into, host=name_host(file), stem=file.name)
    except TraceError as error:
        raise TraceError(error.message, where=name) from None
    except (OSError, EOFError, zlib.error) as error:
        said = (error.strerror if isinstance(error, OSError) else None) or str(error)
        raise TraceError(f"cannot be read: {said}; expected a file of telemetry", where=name) from None


def _unpack(file: Path) -> bytes:
    """Give the bytes of a file, unpacked where gzip packed them."""
    with file.open("rb") as raw:
        is_packed = raw.read(2) == b"\x1f\x8b"
        raw.seek(0)
        with gzip.GzipFile(fileobj=raw) as packed:
            content = (packed if is_packed else raw).read(MAX_BYTES + 1)
    if len(content) > MAX_BYTES:
        raise TraceError(
            f"has more than {MAX_BYTES >> 20} MiB; expected that of one job: fewer metrics, hosts or hours"
        )
    return content


def read_content(content: bytes, into: Gathering, *, host: str, stem: str = "") -> None:
    """Read what a file holds, whatever format it is of; `host` names the machine where nothing in it does."""
    head = content[:HEAD_BYTES].decode("utf-8", "replace")
    if not head.strip():
        raise TraceError(f"is empty; {_EXPECTED}")
    if head.lstrip()[:1] in {"[", "{"}:
        prometheus.read_answers(content, into)
        return
    text = content.decode("utf-8", "replace")
    match recognise(head):
        case "csv":
            nvidia_smi.read_csv(text, into, host=host)
        case "dmon":
            dmon.read_dmon(text, into, host=host, when_s=find_time(stem))
        case "snapshot":
            snapshots.read_snapshots(text, into, host=host, when_s=find_time(stem))
        case "text":
            prometheus.read_text(text, into, host=host, when_s=find_time(stem))
        case _:
            raise TraceError(f"is nothing that is known here; {_EXPECTED}")


def name_host(file: Path) -> str:
    """Name the machine that a file is of, by its name, or by that of its folder where it says what the file is alone.

    >>> name_host(Path("job/nvidia-smi-node-17.csv")), name_host(Path("node-3.rack/gpu.csv.gz")), name_host(Path("n1.csv"))
    ('node-17', 'node-3.rack', 'n1')
    """
    stem = re.sub(r"(?:\.(?:csv|txt|log|prom|json|out|gz))+$", "", file.name, flags=re.IGNORECASE)
    while (shorter := _WORD_BEHIND.sub("", _WORD_BEFORE.sub("", stem))) != stem:
        stem = shorter
    return file.parent.name if not stem or _NO_HOST.match(stem) else stem
