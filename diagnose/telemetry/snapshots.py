"""Counters of a machine at one moment, as a prolog and an epilog of Slurm write them down: before a job and after it.

Enters: text. Leaves: values in a `Gathering`.

A snapshot begins with a line `# diagnose snapshot TIME HOST`. What follows are outputs of commands as they are, each below a line
that says which: `# nvidia-smi -q`, `# ethtool -S eth0`, `# grep -H . /sys/class/infiniband/*/ports/*/*counters/*`. A page of
`nvidia-smi -q` alone is one as well: it has its time in itself.

Source: nvidia-smi(1); ethtool(8); sysfs of InfiniBand in the kernel's documentation.
"""

import re
from typing import Final

from diagnose.errors import TraceError
from diagnose.telemetry.gather import Gathering
from diagnose.telemetry.names import find_known
from diagnose.telemetry.nvidia_smi import read_value
from diagnose.telemetry.times import find_time

FORMAT: Final = "snapshots of counters"
_BEGIN: Final = re.compile(r"^# diagnose snapshot\b(?P<rest>.*)$")
_ETHTOOL: Final = re.compile(r"^#?.*\bethtool -S (?P<port>[\w.@-]+)")
_FILE: Final = re.compile(
    r"^/sys/class/(?:infiniband/(?P<card>[\w-]+)/ports/\d+/(?:hw_)?counters|net/(?P<port>[\w.@-]+)(?:/statistics)?)/(?P<name>\w+):(?P<value>\d+)$"
)
_CARD: Final = re.compile(r"^GPU [0-9A-Fa-f]{4,8}:[0-9A-Fa-f]{2}:")
#: Fields of `nvidia-smi -q` by the headings that they stand under, and the column of `--query-gpu` that is the same.
_FIELDS: Final = {
    ("Clocks", "SM"): "clocks.sm",
    ("Clocks", "Memory"): "clocks.mem",
    ("Temperature", "GPU Current Temp"): "temperature.gpu",
    ("Temperature", "Memory Current Temp"): "temperature.memory",
    ("GPU Power Readings", "Power Draw"): "power.draw",
    ("GPU Power Readings", "Average Power Draw"): "power.draw",
    ("GPU Power Readings", "Current Power Limit"): "enforced.power.limit",
    ("Power Readings", "Power Draw"): "power.draw",
    ("Power Readings", "Enforced Power Limit"): "enforced.power.limit",
    ("Utilization", "Gpu"): "utilization.gpu",
    ("Utilization", "GPU"): "utilization.gpu",
    ("PCIe Generation", "Current"): "pcie.link.gen.current",
    ("Link Width", "Current"): "pcie.link.width.current",
    ("PCI", "Replays Since Reset"): "DCGM_FI_DEV_PCIE_REPLAY_COUNTER",
    ("Volatile", "SRAM Correctable"): "ecc.errors.corrected.volatile.sram",
    ("Volatile", "DRAM Correctable"): "ecc.errors.corrected.volatile.dram",
    ("Volatile", "SRAM Uncorrectable"): "ecc.errors.uncorrected.volatile.sram",
    ("Volatile", "DRAM Uncorrectable"): "ecc.errors.uncorrected.volatile.dram",
    ("Remapped Rows", "Correctable Error"): "remapped_rows.correctable",
    ("Remapped Rows", "Uncorrectable Error"): "remapped_rows.uncorrectable",
    ("Remapped Rows", "Remapping Failure Occurred"): "remapped_rows.failure",
    ("Clocks Event Reasons", "SW Power Cap"): "clocks_event_reasons.sw_power_cap",
    ("Clocks Event Reasons", "HW Slowdown"): "clocks_event_reasons.hw_slowdown",
    ("Clocks Event Reasons", "HW Thermal Slowdown"): "clocks_event_reasons.hw_thermal_slowdown",
    ("Clocks Event Reasons", "HW Power Brake Slowdown"): "clocks_event_reasons.hw_power_brake_slowdown",
    ("Clocks Event Reasons", "SW Thermal Slowdown"): "clocks_event_reasons.sw_thermal_slowdown",
    ("Clocks Event Reasons", "Applications Clocks Setting"): "clocks_event_reasons.applications_clocks_setting",
}
_RENAMED: Final = {"Clocks Throttle Reasons": "Clocks Event Reasons"}


def read_snapshots(text: str, into: Gathering, *, host: str, when_s: float | None) -> None:
    """Read the snapshots of a file; `host` and `when_s` are those of one that does not say.

    Raises
    ------
    TraceError
        None of them says when it was taken, or none has a counter that is known.
    """
    n_read = n_timeless = 0
    for part, name, time in _list_parts(text, host, when_s):
        reader = _Part()
        for line in part:
            reader.take(line)
        when = time or reader.time_s
        n_timeless += when is None
        if when is None:
            continue
        for (counter, labels), value in reader.found.items():
            into.add(counter, dict(labels), [when], [value], host=name or host)
            n_read += 1
    if not n_read:
        raise TraceError(
            "has no counter that is known here with a time; expected # diagnose snapshot 2026-01-31T12:00:00Z node-3 "
            "before the output of nvidia-smi -q, ethtool -S or grep -H . /sys/class/infiniband/..."
            + (f" ({n_timeless} have none)" if n_timeless else "")
        )
    into.say_format(FORMAT)


def _list_parts(text: str, host: str, when_s: float | None) -> list[tuple[list[str], str, float | None]]:
    """Cut a file where snapshots begin: lines, machine and time of each."""
    parts: list[tuple[list[str], str, float | None]] = [([], host, when_s)]
    for line in text.splitlines():
        begin = _BEGIN.match(line)
        if begin is None:
            parts[-1][0].append(line)
            continue
        words = begin["rest"].split()
        named = [word for word in words if find_time(word) is None]
        parts.append(([], named[-1] if named else host, find_time(begin["rest"]) or when_s))
    return [part for part in parts if any(line.strip() for line in part[0])]


class _Part:
    """Reads the lines of one snapshot."""

    def __init__(self) -> None:
        self.time_s: float | None = None
        self.found: dict[tuple[str, tuple[tuple[str, str], ...]], float] = {}
        self._port = ""
        self._card: int | None = None
        self._headings: list[tuple[int, str]] = []

    def take(self, line: str) -> None:
        """Take a line."""
        at = _ETHTOOL.match(line)
        if at is not None:
            self._port, self._card = at["port"], None
            return
        if line.startswith("#"):
            self._port, self._card = "", None
            return
        if _CARD.match(line):
            self._card, self._port = -1 if self._card is None else self._card, ""
            self._card, self._headings = self._card + 1, []
            return
        file = _FILE.match(line)
        if file is not None:
            self._keep(file["name"], float(file["value"]), device=file["card"] or file["port"])
            return
        name, _, value = (part.strip() for part in line.partition(":"))
        if self._card is not None:
            self._take_field(line, name, value)
        elif self._port and value.isdecimal():
            self._keep(name, float(value), device=self._port)
        elif name == "Timestamp":
            self.time_s = find_time(value)

    def _take_field(self, line: str, name: str, value: str) -> None:
        """Take a line of `nvidia-smi -q`: a heading, or a field below those that stand further left."""
        depth = len(line) - len(line.lstrip())
        self._headings = [(at, name) for at, name in self._headings if at < depth]
        if not name or not value:
            self._headings.append((depth, line.strip().rstrip(":").strip()))
            return
        above = _RENAMED.get(self._headings[-1][1], self._headings[-1][1]) if self._headings else ""
        column = _FIELDS.get((above, name))
        if column is not None:
            self._keep(column, read_value(value), gpu=str(self._card))

    def _keep(self, counter: str, value: float, **labels: str) -> None:
        """Keep a value of a counter that is known."""
        if find_known(counter) is not None:
            self.found[counter, tuple(sorted(labels.items()))] = value
