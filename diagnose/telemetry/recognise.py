"""Tell telemetry by how it begins.

Enters: a file, or a folder. Leaves: which format it is; the files of a folder that are telemetry.
"""

import gzip
import re
import zlib
from pathlib import Path
from typing import Final, Literal

from diagnose.telemetry.names import find_known

Format = Literal["json", "csv", "dmon", "snapshot", "text"]
#: Bytes that tell what a file is; of one among a thousand others fewer do.
HEAD_BYTES: Final = 1 << 16
_FIRST_BYTES: Final = 1 << 12
#: Files of a folder that are looked at.
MAX_ASKED: Final = 4096
#: How names of files end that may be telemetry.
_NAMES: Final = re.compile(r"\.(?:json|jsonl|csv|prom|txt|log|out|dmon)(?:\.gz)?$", re.IGNORECASE)
_FORMATS: Final[tuple[tuple[Format, re.Pattern[str]], ...]] = (
    ("json", re.compile(r'\A\s*[\[{](?s:.*?)"(?:resultType|metric)"\s*:')),
    (
        "csv",
        re.compile(
            r"^[^\n]*\btimestamp\b[^\n]*,[^\n]*\b(?:index|uuid|clocks|power|temperature|utilization|pcie|memory)\b",
            re.MULTILINE,
        ),
    ),
    ("dmon", re.compile(r"^[^\n]*#\s*Entity\b", re.MULTILINE)),
    ("snapshot", re.compile(r"^# diagnose snapshot\b|^=+NVSMI LOG=+", re.MULTILINE)),
    (
        "text",
        re.compile(
            r"^# (?:HELP|TYPE) \w|^[A-Za-z_:][A-Za-z0-9_:]*(?:\{[^\n]*\})? +[-+]?(?:\d[\d.eE+-]*|NaN|[+-]?Inf)(?: +\d+)?\s*$",
            re.MULTILINE,
        ),
    ),
)


def recognise(head: str) -> Format | None:
    """Say which format a text is of by its beginning; None where it is none that is known."""
    return next((name for name, pattern in _FORMATS if pattern.search(head)), None)


def find_telemetry(folder: Path) -> tuple[Path, ...]:
    """Find the files of telemetry in the folder of a job, by name."""
    named = sorted(
        file
        for file in folder.rglob("*")
        if _NAMES.search(file.name) and not any(part.startswith(".") for part in file.relative_to(folder).parts)
    )
    return tuple(file for file in named[:MAX_ASKED] if _is_telemetry(file))


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
        names = [re.sub(r"\s*\[.*", "", cell.strip()) for cell in head.splitlines()[0].split(",")]
        return {"index", "uuid", "gpu_uuid"} & set(names) != set() and any(find_known(name) for name in names)
    if form == "text":
        return re.search(r"^(?:# (?:HELP|TYPE) )?(?:node|DCGM_FI)_\w+", head, re.MULTILINE) is not None
    return form is not None and (form != "json" or ('"metric"' in head and '"__name__"' in head))
