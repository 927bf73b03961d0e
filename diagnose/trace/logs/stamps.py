"""Read when a line was written, and how long something took.

Enters: a line, or words. Leaves: Unix seconds, in whatever zone the job ran where the line does not say which; or seconds.
"""

import datetime as dt
import functools
import math
import re

#: A stamp is looked for in so many bytes: what stands behind is what the line says.
HEAD_BYTES = 300
#: `2026-01-31 23:59:59`, `2026-01-31T23:59:59.123456789Z`, `2026/01/31:23:59:59,123`, with `+08:00` or `+0800`.
_STAMP = re.compile(rb"(?<!\d)(\d{4}[-/]\d\d[-/]\d\d[ T:]\d\d:\d\d:)(\d\d)(?:[.,](\d{1,9}))?(Z|[+-]\d\d:?\d\d(?!\d))?")
#: `10/17/2025 16:31:56`, as Hugging Face's scripts write it.
_AMERICAN = re.compile(rb"(?<!\d)(\d\d)/(\d\d)/(\d{4})[ ,]{1,2}(\d\d:\d\d:)(\d\d)(?!\d)")
#: `1:02:03`, `1 day, 2:03:04`, `1d 2h 3m 4s`, `18m 26s`.
_DURATION = re.compile(
    r"(?:(\d{1,5}) ?d(?:ays?,)? ?)?(?:(\d{1,5}):(\d\d):(\d\d)|(?:(\d{1,5})h ?)?(?:(\d{1,3})m ?)?(?:(\d{1,3})s)?)\Z"
)


def find_stamp(line: bytes, *, within: int = HEAD_BYTES) -> float:
    """Give the first date and time within so many bytes of a line or a text; NaN where there is none."""
    said = _STAMP.search(line, 0, within)
    if said is None:
        american = _AMERICAN.search(line, 0, within)
        if american is None:
            return math.nan
        month, day, year, minute, second = american.groups()
        return _minute_s(b"%s-%s-%s %s" % (year, month, day, minute)) + int(second)
    minute, second, fraction, zone = said.groups()
    stamp_s = _minute_s(minute) + int(second)
    if fraction is not None:
        stamp_s += int(fraction) / 10 ** len(fraction)
    if zone is not None and zone != b"Z":
        offset_s = 3600.0 * int(zone[1:3]) + 60.0 * int(zone[-2:])
        stamp_s -= offset_s if zone[:1] == b"+" else -offset_s
    return stamp_s


def read_duration(text: str) -> float:
    """Read how long something took, in whole seconds; NaN where no duration is written.

    >>> [read_duration(text) for text in ("0:02:03", "1 day, 0:00:01", "18m 26s", "1h 0m 5s", "7", "")]
    [123.0, 86401.0, 1106.0, 3605.0, nan, nan]
    """
    said = _DURATION.match(text)
    if said is None or not said[0]:
        return math.nan
    days, *parts = (int(part or 0) for part in said.groups())
    hours, minutes, seconds = (a + b for a, b in zip(parts[:3], parts[3:], strict=True))
    return 86400.0 * days + 3600.0 * hours + 60.0 * minutes + seconds


@functools.lru_cache(maxsize=1024)
def _minute_s(minute: bytes) -> float:
    """Give the Unix seconds of `2026-01-31 23:59:`; NaN where there is no such minute."""
    numbers = (minute[:4], minute[5:7], minute[8:10], minute[11:13], minute[14:16])
    try:
        year, month, day, hour, minutes = map(int, numbers)
        return dt.datetime(year, month, day, hour, minutes, tzinfo=dt.UTC).timestamp()
    except ValueError:
        return math.nan
