"""Read when a line was written.

Enters: a line. Leaves: Unix seconds, in whatever zone the job ran where the line does not say which.
"""

import datetime as dt
import functools
import math
import re

#: A stamp is looked for in so many bytes: what stands behind is what the line says.
HEAD_BYTES = 300
#: `2026-01-31 23:59:59`, `2026-01-31T23:59:59.123456789Z`, `2026/01/31 23:59:59,123`, with `+08:00` or `+0800`.
_STAMP = re.compile(rb"(?<!\d)(\d{4}[-/]\d\d[-/]\d\d[ T]\d\d:\d\d:)(\d\d)(?:[.,](\d{1,9}))?(Z|[+-]\d\d:?\d\d(?!\d))?")


def find_stamp(line: bytes, *, within: int = HEAD_BYTES) -> float:
    """Give the first date and time within so many bytes of a line or a text; NaN where there is none."""
    said = _STAMP.search(line, 0, within)
    if said is None:
        return math.nan
    minute, second, fraction, zone = said.groups()
    stamp_s = _minute_s(minute) + int(second)
    if fraction is not None:
        stamp_s += int(fraction) / 10 ** len(fraction)
    if zone is not None and zone != b"Z":
        offset_s = 3600.0 * int(zone[1:3]) + 60.0 * int(zone[-2:])
        stamp_s -= offset_s if zone[:1] == b"+" else -offset_s
    return stamp_s


@functools.lru_cache(maxsize=1024)
def _minute_s(minute: bytes) -> float:
    """Give the Unix seconds of `2026-01-31 23:59:`; NaN where there is no such minute."""
    numbers = (minute[:4], minute[5:7], minute[8:10], minute[11:13], minute[14:16])
    try:
        year, month, day, hour, minutes = map(int, numbers)
        return dt.datetime(year, month, day, hour, minutes, tzinfo=dt.UTC).timestamp()
    except ValueError:
        return math.nan
