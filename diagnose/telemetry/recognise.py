"""Tell telemetry by how it begins.

Enters: a file, or a folder. Leaves: which format it is; the files of a folder that are telemetry.
"""

import gzip
import re
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Final, Literal

from diagnose.telemetry.names import CARD_COLUMNS, find_known, name_columns

Format = Literal["json", "csv", "dmon", "snapshot", "text"]
#: Bytes that tell what a file is; of one among a thousand others fewer do.
HEAD_BYTES: Final = 1 << 16
_FIRST_BYTES: Final = 1 << 12
#: Files of a folder that are looked at.
MAX_ASKED: Final = 4096
#: How names of files end that may be telemetry.
_NAMES: Final = re.compile(r"\.(?:json|jsonl|csv|prom|txt|log|out|dmon)(?:\.gz)?$", re.IGNORECASE)


def recognise(head: str) -> Format | None:
    """Say which format a text is of by its beginning; None where it is none that is known."""
    return next((name for name, is_one in _FORMATS if is_one(head)), None)


def _has_table(head: str) -> bool:
    """Say whether a line is the header of a table of nvidia-smi."""
    names = _find_header(head)
    return not CARD_COLUMNS.isdisjoint(names) or any(find_known(name) is not None for name in names)


def _find_header(head: str) -> frozenset[str]:
    """Give the columns of the first line that has one of times; none where no line has."""
    lines = (line for line in head.splitlines() if "timestamp" in line)
    headers = (frozenset(name_columns(line.split(","))) for line in lines)
    return next((names for names in headers if "timestamp" in names), frozenset())


#: Anybody's file is asked: each of these looks at no character more than a few times.
_FORMATS: Final[tuple[tuple[Format, Callable[[str], object]], ...]] = (
    ("json", re.compile(r'\A\s*[\[{](?s:.*?)"(?:resultType|metric)"\s*:').search),
    ("csv", _has_table),
    ("dmon", re.compile(r"#\s*Entity\b").search),
    ("snapshot", re.compile(r"^# diagnose snapshot\b|^=+NVSMI LOG=+", re.MULTILINE).search),
    (
        "text",
        re.compile(
            r"^# (?:HELP|TYPE) \w|^[A-Za-z_:][A-Za-z0-9_:]*(?:\{[^\n]*\})? +[-+]?(?:\d[\d.eE+-]*|NaN|[+-]?Inf)(?: +\d+)?\s*$",
            re.MULTILINE,
        ).search,
    ),
)


def find_telemetry(folder: Path) -> tuple[Path, ...]:
    """Find the files of telemetry in the folder of a job, by name."""
    named = sorted(
        file
        for file in folder.rglob("*")
        if _NAMES.search(file.name) and not any(part.startswith(".") for part in file.relative_to(folder).parts)
    )
    return tuple(file for file in named[:MAX_ASKED] if file.is_file() and _is_telemetry(file))


def _is_telemetry(file: Path) -> bool:
    """Say whether a file among others is telemetry; text counts only where it has the name of a metric that exporters have."""
    try:
        with file.open("rb") as raw:
            is_packed = raw.read(2) == b"\x1f\x8b"
            raw.seek(0)
            with gzip.GzipFile(fileobj=raw) as packed:
                head = (packed if is_packed else raw).read(_FIRST_BYTES).decode("utf-8", "replace")
    except (OSError, EOFError, zlib.error):
        return False
    form = recognise(head)
    if form == "csv":
        names = _find_header(head)
        return not CARD_COLUMNS.isdisjoint(names) and any(find_known(name) is not None for name in names)
    if form == "text":
        return re.search(r"^(?:# (?:HELP|TYPE) )?(?:node|DCGM_FI)_\w+", head, re.MULTILINE) is not None
    return form is not None and (form != "json" or ('"metric"' in head and '"__name__"' in head))
