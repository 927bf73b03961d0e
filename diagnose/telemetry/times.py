"""Times of day as tools write them.

Enters: text. Leaves: Unix seconds.
"""

import datetime as dt
import math
import re
from typing import Final

_ISO: Final = re.compile(
    r"(?P<date>\d{4}[-/]\d\d[-/]\d\d)[T _](?P<time>\d\d:\d\d:\d\d(?:[.,]\d{1,9})?) ?(?P<zone>Z|UTC|[+-]\d\d:?\d\d)?"
)
#: "Mon Nov 23 12:00:00 2026", as `date` and nvidia-smi -q write it.
_CTIME: Final = re.compile(r"\b[A-Z][a-z]{2} ([A-Z][a-z]{2}) +(\d{1,2}) (\d\d:\d\d:\d\d)(?: (?:[A-Z]{3,4}))? (\d{4})\b")
_UNIX: Final = re.compile(r"(?<![\w.])1[5-9]\d{8}(?:\.\d+)?(?![\w.])")


def find_time(text: str) -> float | None:
    """Find the first time in a line, as Unix seconds; None where there is none.

    A time without a zone is one of the zone of this machine (`TZ`): tools write that of theirs.

    >>> find_time("# 2026-01-31T12:00:00Z node-3"), find_time("1769860800 x"), find_time("2026/01/31 12:00:00.500+0000")
    (1769860800.0, 1769860800.0, 1769860800.5)
    """
    found = _ISO.search(text)
    if found is not None:
        said = f"{found['date'].replace('/', '-')}T{found['time'].replace(',', '.')[:15]}"
        zone = {"Z": "+00:00", "UTC": "+00:00"}.get(found["zone"] or "", found["zone"] or "")
        return _to_unix(said + zone, "")
    found = _CTIME.search(text)
    if found is not None:
        return _to_unix(f"{found[4]} {found[1]} {found[2]} {found[3]}", "%Y %b %d %H:%M:%S")
    found = _UNIX.search(text)
    return None if found is None else float(found[0])


def _to_unix(text: str, pattern: str) -> float | None:
    """Read a time; None where there is no such day or hour."""
    try:
        moment = dt.datetime.strptime(text, pattern) if pattern else dt.datetime.fromisoformat(text)  # noqa: DTZ007
        seconds = moment.timestamp()
    except (ValueError, OverflowError, OSError):
        return None
    return seconds if math.isfinite(seconds) else None
