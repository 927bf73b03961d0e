"""Read back what the tests printed, and an answer of `diagnose machines` that was saved.

Enters: a folder of results, or a file with one a line, as `kubectl logs` gives them. Leaves: one `HostResult` a machine.
"""

import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec

from diagnose.errors import TraceError, shorten
from diagnose.model.confirmation import RESULT_SCHEMA, HostResult
from diagnose.model.machines import MachinesDocument

#: A file that is larger is no result, and nobody tests more machines than this at once.
_MAX_BYTES = 16 * 1024 * 1024
_MAX_FILES = 1000


def read_results(path: Path) -> list[HostResult]:
    """Read the results of a run.

    Parameters
    ----------
    path : Path
        Folder with a `.json` for each machine, or a file with JSON Lines; other lines in it are left out.

    Returns
    -------
    list of HostResult
        One for each machine, the latest where there are several; by name.

    Raises
    ------
    TraceError
        Nothing can be read, or a result is not what the tests print.
    """
    try:
        files = sorted(path.glob("*.json")) if path.is_dir() else [path]
    except OSError as error:
        raise TraceError(f"cannot be read: {error.strerror}", where=str(path)) from None
    latest: dict[str, HostResult] = {}
    for file in files[:_MAX_FILES]:
        for result in _read_file(file):
            before = latest.get(result.host)
            if before is None or before.ended_s <= result.ended_s:
                latest[result.host] = result
    if not latest:
        raise TraceError(
            f"no result of a test is there; expected what the script of `diagnose confirm` leaves ({RESULT_SCHEMA})",
            where=str(path),
        )
    return [latest[host] for host in sorted(latest)]


def read_machines(entry: dict[str, Any], name: str) -> MachinesDocument:
    """Check an answer about machines.

    Raises
    ------
    TraceError
        Something is missing, or of a wrong type.
    """
    try:
        return msgspec.convert(entry, MachinesDocument)
    except (msgspec.ValidationError, UnicodeEncodeError) as error:
        raise TraceError(
            f"it is no answer about machines ({shorten(error)}); save it again with --format json", where=name
        ) from None


def _read_file(file: Path) -> Iterator[HostResult]:
    """Read the results in one file."""
    try:
        with file.open("rb") as opened:
            data = opened.read(_MAX_BYTES + 1)
    except OSError as error:
        raise TraceError(f"cannot be read: {error.strerror}", where=str(file)) from None
    if len(data) > _MAX_BYTES:
        raise TraceError("it is larger than 16 MiB; expected results of `diagnose confirm`", where=str(file))
    for n, line in enumerate(data.split(b"\n"), start=1):
        if line.lstrip().startswith(b"{"):
            yield _read_line(line, f"{file}:{n}")


def _read_line(line: bytes, where: str) -> HostResult:
    """Read one result."""
    try:
        found = msgspec.json.decode(line, type=HostResult)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:  # a ValidationError is a DecodeError
        raise TraceError(
            f"it is no result of a test ({shorten(error)}); run the test of this machine again", where=where
        ) from None
    if not (math.isfinite(found.began_s) and math.isfinite(found.ended_s)):
        raise TraceError("its times are no numbers; run the test of this machine again", where=where)
    return found
