"""What `dcgmi dmon -e ...` prints, each line with a time before it, as `ts` puts there.

Enters: text. Leaves: values in a `Gathering`.

Source: `dcgmi dmon --help`; the short names of fields in dcgm_fields.cpp of DCGM.
"""

import re
from typing import Final

from diagnose.errors import TraceError
from diagnose.telemetry.gather import Gathering, read_number
from diagnose.telemetry.times import find_time

FORMAT: Final = "dcgmi dmon"
_HEADER: Final = re.compile(r"#\s*Entity\s+(?P<names>\S.*)$")
_ROW: Final = re.compile(r"^(?P<before>.*?)\bGPU\s+(?P<card>\d+)\s+(?P<values>\S.*)$")


def read_dmon(text: str, into: Gathering, *, host: str, when_s: float | None) -> None:
    """Read the lines of `dcgmi dmon`; one without a time has that of the last that had one, or else `when_s`.

    Raises
    ------
    TraceError
        It has no header, no row, or no time.
    """
    names: list[str] = []
    columns: dict[tuple[str, str], tuple[list[float], list[float]]] = {}
    n_timeless = 0
    for line in text.splitlines():
        header = _HEADER.search(line)
        if header is not None:
            names = header["names"].split()
            continue
        row = _ROW.match(line)
        if row is None:
            when_s = find_time(line) or when_s
            continue
        when_s = find_time(row["before"]) or when_s
        values = row["values"].split()
        if when_s is None or len(values) != len(names):
            n_timeless += when_s is None
            continue
        for name, value in zip(names, values, strict=True):
            times, found = columns.setdefault((name, row["card"]), ([], []))
            times.append(when_s)
            found.append(read_number(value))
    if not columns:
        raise TraceError(
            f"has {n_timeless:,} lines without a time; expected one before each: dcgmi dmon ... | ts '%Y-%m-%dT%H:%M:%S%z'"
            if n_timeless
            else "has no line of dcgmi dmon that can be read; expected its header and lines of GPUs"
        )
    for (name, card), (times, found) in columns.items():
        into.add(name, {"gpu": card}, times, found, host=host)
    into.say_format(FORMAT)
