"""What `nvidia-smi --query-gpu=timestamp,... --format=csv -l 1` writes.

Enters: text. Leaves: values in a `Gathering`.

Source: nvidia-smi(1).
"""

import contextlib
import csv
import math
import re
from collections.abc import Iterator
from typing import Final

from diagnose.errors import TraceError
from diagnose.telemetry.gather import Gathering
from diagnose.telemetry.names import CARD_COLUMNS, name_columns
from diagnose.telemetry.times import find_time

FORMAT: Final = "nvidia-smi CSV"
_NUMBER: Final = re.compile(r"^(-?\d+(?:\.\d+)?) ?[A-Za-z%]*$")
#: Columns that say which card a row is of, and what of it does not change.
_CARD: Final = (
    *CARD_COLUMNS,
    "pci.bus_id",
    "gpu_bus_id",
    "name",
    "gpu_name",
    "serial",
    "gpu_serial",
    "pstate",
    "timestamp",
)
_WORDS: Final = {"active": 1.0, "not active": 0.0, "yes": 1.0, "no": 0.0}


def read_csv(text: str, into: Gathering, *, host: str) -> None:
    """Read a table of nvidia-smi; a file may have several, one after the other, each with its header.

    Raises
    ------
    TraceError
        It has no column of times, or none that says which card a row is of, or no row.
    """
    header: list[str] = []
    columns: dict[tuple[str, str, str], tuple[list[float], list[float]]] = {}
    for cells in _list_rows(text):
        if "timestamp" in cells:
            header = name_columns(cells)
            _check_header(header)
            continue
        if not header or len(cells) != len(header):
            continue
        said = dict(zip(header, cells, strict=True))
        time = find_time(said["timestamp"])
        card = said.get("index") or said.get("uuid") or said.get("gpu_uuid") or ""
        if time is None or not card:
            continue
        uuid = said.get("uuid") or said.get("gpu_uuid") or ""
        for name in header:
            if name not in _CARD:
                times, values = columns.setdefault((name, card, uuid), ([], []))
                times.append(time)
                values.append(read_value(said[name]))
    if not columns:
        raise TraceError(
            "has no row of nvidia-smi that can be read; expected a header with timestamp and index, and rows with a time"
        )
    for (name, card, _), (times, values) in columns.items():
        into.add(name, {"gpu": card}, times, values, host=host)
    into.say_format(FORMAT)


def _list_rows(text: str) -> Iterator[list[str]]:
    """List the cells of each line; a quotation mark that nothing closes, or a cell without end, spoils its own line alone."""
    for line in text.replace("\0", "").splitlines():
        with contextlib.suppress(csv.Error):
            yield from ([cell.strip() for cell in row] for row in csv.reader([line], skipinitialspace=True))


def _check_header(header: list[str]) -> None:
    """Refuse a table whose rows nobody can tell apart."""
    if CARD_COLUMNS.isdisjoint(header):
        raise TraceError(
            f"has the columns {', '.join(header)[:120]}; expected index or uuid among them: ask for --query-gpu=timestamp,index,..."
        )


def read_value(text: str) -> float:
    """Read a value with its unit or without; NaN where a card has none.

    >>> read_value("1410 MHz"), read_value("0x0000000000000004"), read_value("[N/A]"), read_value("Not Active")
    (1410.0, 4.0, nan, 0.0)
    """
    found = _NUMBER.match(text)
    if found is not None:
        return float(found[1])
    if text.startswith("0x"):
        try:
            return float(int(text, 16))
        except ValueError:
            return math.nan
    return _WORDS.get(text.lower(), math.nan)
