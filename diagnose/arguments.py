"""What a program asks of the functions of the package, checked before any work.

Enters: arguments as they are given. Leaves: a `Request` or a `TriageRequest`, or a `UsageError` that says what was expected.
"""

import math
import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from diagnose.errors import UsageError
from diagnose.model.request import Request
from diagnose.model.trace import Ints
from diagnose.trace.load import parse_steps
from diagnose.trace.sources import open_source

if TYPE_CHECKING:
    from diagnose.triage.triage import TriageRequest


def make_request(
    source: object,
    *,
    meta: object = None,
    steps: object = None,
    rules: object = None,
    min_speedup: object,
    log: object = None,
    telemetry: object = None,
) -> Request:
    """Say what is asked about one job.

    Raises
    ------
    TraceError
        A table or a file cannot be read.
    UsageError
        An argument makes no sense.
    """
    asked_steps = None if steps is None else _read_steps(steps)
    speedup = read_number("min_speedup", min_speedup, least=1.0)
    metadata = meta if meta is None or isinstance(meta, Mapping) else _read_path("meta", meta)
    folder, log_path = read_folder(rules), None if log is None else _read_path("log", log)
    if log_path is not None and not log_path.exists():
        raise UsageError(f"log: {log_path} does not exist")
    opened, name = open_source(source)
    measured = telemetry if telemetry is None or "://" in str(telemetry) else _read_path("telemetry", telemetry)
    return Request(
        opened, name, metadata, asked_steps, folder, speedup, log_path, None if measured is None else str(measured)
    )


def make_triage_request(sources: object, **asked: Any) -> "TriageRequest":
    """Say what is asked of a triage; `asked` are the fields of a `TriageRequest`, but for its sources.

    Raises
    ------
    UsageError
        An argument makes no sense.
    """
    from diagnose.triage.triage import TriageRequest

    given = [sources] if isinstance(sources, str | os.PathLike) else sources
    if not isinstance(given, Iterable):
        raise UsageError(f"sources are {sources!r}, expected paths of folders, globs, or addresses of buckets")
    paths = tuple(os.fspath(one) if isinstance(one, str | os.PathLike) else "" for one in given)
    if not paths or not all(isinstance(path, str) and path and "\0" not in path for path in paths):
        raise UsageError(f"sources are {sources!r}, expected paths of folders, globs, or addresses of buckets")
    for name, most in (("n_workers", 1024), ("limit", 2**53)):
        if asked.get(name) is not None:
            asked[name] = _read_count(name.removeprefix("n_"), asked[name], most)
    for name in ("store", "memory", "since", "dask"):
        if asked.get(name) is not None and not isinstance(asked[name], str):
            raise UsageError(f"{name} is {asked[name]!r}, expected text")
    asked["timeout_s"] = read_number("timeout", asked["timeout_s"], least=math.ulp(0.0))
    asked["min_speedup"] = read_number("min_speedup", asked["min_speedup"], least=1.0)
    asked["rules"] = read_folder(asked.get("rules"))
    return TriageRequest(paths, **asked)


def read_texts(name: str, given: object) -> tuple[str, ...]:
    """Read one text, or several."""
    found = (given,) if isinstance(given, str) else tuple(given) if isinstance(given, Iterable) else (given,)
    if not all(isinstance(text, str) for text in found):
        raise UsageError(f"{name} are {given!r}, expected texts as `diagnose what-if` takes them")
    return found


def read_text(name: str, given: object) -> str:
    """Read one text."""
    if not isinstance(given, str):
        raise UsageError(f"{name} is {given!r}, expected text")
    return given


def read_number(name: str, given: Any, *, least: float) -> float:
    """Read a finite number that is large enough."""
    try:
        found = math.nan if isinstance(given, str | bytes) else float(given)
    except (TypeError, ValueError, OverflowError):
        found = math.nan
    if not least <= found < math.inf:
        bound = "above 0" if least < 1e-300 else f"of at least {least:g}"
        raise UsageError(f"{name} is {given!r}, expected a finite number {bound}")
    return found


def _read_count(name: str, given: object, most: int) -> int:
    """Read a whole number from 1."""
    if isinstance(given, bool) or not isinstance(given, int | np.integer) or not 1 <= given <= most:
        raise UsageError(f"{name} is {given!r}, expected a whole number from 1 to {most}")
    return int(given)


def read_folder(given: object) -> Path | None:
    """Read the path of a folder with rules."""
    path = None if given is None else _read_path("rules", given)
    if path is not None and not path.is_dir():
        raise UsageError(f"rules: {path} is not a folder; expected one with rule files")
    return path


def _read_path(name: str, given: object) -> Path:
    """Read a path."""
    path = os.fspath(given) if isinstance(given, str | os.PathLike) else None
    if not isinstance(path, str) or not path or "\0" in path:
        raise UsageError(f"{name} is {given!r}, expected a path")
    return Path(path)


def _read_steps(steps: object) -> Ints:
    """Give the steps asked for, sorted."""
    expected = "expected steps and ranges such as '16-40,80', or integers"
    try:
        picked = parse_steps(steps) if isinstance(steps, str) else np.unique(np.asarray(steps))
    except (TypeError, ValueError, OverflowError):
        raise UsageError(f"steps are {steps!r}, {expected}") from None
    if picked.ndim != 1 or picked.dtype.kind not in "iu":
        raise UsageError(f"steps are {steps!r}, {expected}")
    return picked.astype(np.int64)
