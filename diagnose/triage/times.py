"""Moments and ages as people and metadata files write them.

Enters: text. Leaves: seconds since 1970.
"""

import datetime as dt
import re

from diagnose.errors import UsageError

_AGE = re.compile(r"(\d{1,9}(?:\.\d{1,9})?)([mhdw])")
_SECONDS = {"m": 60.0, "h": 3600.0, "d": 86400.0, "w": 604800.0}


def read_time(text: str | None) -> float | None:
    """Read a date and time; one without a zone is UTC, and None is what is none.

    >>> read_time("1970-01-02T00:00:00Z"), read_time("1970-01-02"), read_time("tomorrow")
    (86400.0, 86400.0, None)
    """
    try:
        when = dt.datetime.fromisoformat((text or "").strip())
        return (when if when.tzinfo else when.replace(tzinfo=dt.UTC)).timestamp()
    except (ValueError, OverflowError):
        return None


def parse_since(text: str, now_s: float) -> float:
    """Read `--since` and `--older`: an age such as 90m, 12h, 2d or 1w, or a date in UTC.

    >>> parse_since("2d", 1_000_000.0), parse_since("1970-01-02", 0.0)
    (827200.0, 86400.0)
    """
    age = _AGE.fullmatch(text.strip())
    if age:
        return now_s - float(age[1]) * _SECONDS[age[2]]
    when_s = read_time(text)
    if when_s is None:
        raise UsageError(f"{text!r} is no age such as 12h, 2d or 1w and no date such as 2026-01-31")
    return when_s


def parse_until(text: str, now_s: float) -> float:
    """Read `--until`: an age from now, or a date in UTC, which must be to come.

    >>> parse_until("2d", 1_000_000.0), parse_until("1970-01-02", 0.0)
    (1172800.0, 86400.0)
    """
    given_s = parse_since(text, now_s)
    until_s = 2 * now_s - given_s if _AGE.fullmatch(text.strip()) else given_s
    if until_s <= now_s:
        raise UsageError(f"{text!r} is over; expected an age such as 2w or a date to come")
    return until_s
