"""Put what files and servers tell together: one series for each metric of each device, whatever exporter wrote it.

Enters: values under an exporter's name, with its labels. Leaves: `Telemetry`.
"""

import dataclasses
import math
import re
from collections.abc import Mapping, Sequence
from typing import Final

import numpy as np

from diagnose.errors import TraceError
from diagnose.model.telemetry import METRICS, Metric, Series, Telemetry
from diagnose.model.trace import Seconds
from diagnose.telemetry.names import BETTER, Known, find_known, plain_name

#: Labels that name a machine, the surest first. `instance` is where it was scraped.
_HOSTS: Final = ("node", "nodename", "kubernetes_node", "Hostname", "hostname", "host")
#: What says how the machine of an address is called.
_NAMES_HOST: Final = "node_uname_info"
#: Labels that name parts of a device whose counters add up: CPUs, lanes of a link, priorities.
_PARTS: Final = ("cpu", "mode", "link", "nvlink", "lane", "priority", "export", "mountaddr", "protocol")
#: Ports and disks that are none: of the kernel, of containers, of volumes that lie on disks that are counted.
_VIRTUAL: Final = re.compile(
    r"^(?:lo|veth|docker|br-|virbr|cali|cilium|flannel|cni|tunl|dummy|ifb|loop|ram|zram|sr\d|dm-|md\d)"
)
_PORT: Final = re.compile(r"^(?:\[.*\]|[^\[\]:]+)(?P<port>:\d+)$")
#: Values that are kept, 16 bytes each: of what is larger a user wants a part.
MAX_VALUES: Final = 64_000_000
#: Later ones are no seconds since 1970: milliseconds have been more since 1973.
_LAST_S: Final = 1e11
#: Names of unknown metrics that are kept.
MAX_UNREAD: Final = 1000


@dataclasses.dataclass(frozen=True, slots=True)
class _Part:
    """Values of one part of a device as they came: under an exporter's name, with what tells it from other parts."""

    name: str
    known: Known
    key: tuple[str, ...]
    times: Seconds
    values: Seconds


class Gathering:
    """Takes values in any order, and gives them as series; of a time before `begin_s` or after `end_s` they are let go."""

    def __init__(self, begin_s: float | None = None, end_s: float | None = None) -> None:
        self._begin_s = -math.inf if begin_s is None else begin_s
        self._end_s = math.inf if end_s is None else end_s
        self._first_s, self._last_s = math.inf, -math.inf
        self._parts: dict[tuple[str, str, str], list[_Part]] = {}
        self._nodenames: dict[str, str] = {}
        self._unread: set[str] = set()
        self._formats: set[str] = set()
        self._shared: dict[bytes, Seconds] = {}
        self._n_values = 0

    def say_format(self, name: str) -> None:
        """Note what something was read from."""
        self._formats.add(name)

    def leave_out(self, name: str) -> None:
        """Note a metric that nobody here knows."""
        if len(self._unread) < MAX_UNREAD and name.isprintable():
            self._unread.add(name[:200])

    def is_known(self, name: str) -> bool:
        """Say whether a metric is worth adding; one that is not is noted."""
        if name == _NAMES_HOST or find_known(name) is not None:
            return True
        self.leave_out(name or "a metric without a name")
        return False

    def list_instances(self) -> tuple[str, ...]:
        """List where machines were scraped whose own names are known."""
        return tuple(sorted(self._nodenames))

    @property
    def is_empty(self) -> bool:
        """True where no value was taken."""
        return not self._parts

    def add(
        self, name: str, labels: Mapping[str, str], times: Sequence[float], values: Sequence[float], *, host: str = ""
    ) -> None:
        """Take values of a metric of one device.

        Parameters
        ----------
        name : str
            As the exporter calls it.
        labels : mapping
            What it says of the device: card, port, disk, CPU, ...
        times, values : sequence of float, length n
            Unix seconds, and what was measured then, in the exporter's unit.
        host : str
            The machine, where no label names one.
        """
        if name == _NAMES_HOST and labels.get("instance") and labels.get("nodename"):
            self._nodenames[_without_port(labels["instance"])] = labels["nodename"]
            return
        known = find_known(name) if self.is_known(name) else None
        if known is None or (known.only is not None and labels.get(known.only[0]) != known.only[1]):
            return
        metric = METRICS[known.metric]
        device = _name_device(metric, labels)
        machine = name_machine(labels, host)
        if device is None or not machine:
            return
        when, what = np.asarray(times, dtype=np.float64), np.asarray(values, dtype=np.float64)
        fine = np.isfinite(when) & np.isfinite(what)
        when, what = (when, what) if fine.all() else (when[fine], what[fine])
        if not len(when):
            return
        if when.max() > _LAST_S:
            raise TraceError(f"has a sample at {when.max():.0f}; expected seconds since 1970, not milliseconds or less")
        self._first_s, self._last_s = min(self._first_s, float(when.min())), max(self._last_s, float(when.max()))
        asked = (when >= self._begin_s) & (when <= self._end_s)
        when, what = (when, what) if asked.all() else (when[asked], what[asked])
        if not len(when):
            return
        self._n_values += len(when)
        if self._n_values > MAX_VALUES:
            raise TraceError(
                f"has more than {MAX_VALUES:,} values; expected those of one job: give fewer metrics, hosts or hours"
            )
        when = self._shared.setdefault(when.tobytes(), when) if len(when) > 1 else when
        key = (name, *(labels.get(part, "") for part in _PARTS))
        self._parts.setdefault((known.metric, machine, device), []).append(
            _Part(plain_name(name), known, key, when, what)
        )

    def finish(self, name: str, warnings: Sequence[str] = ()) -> Telemetry:
        """Give all that was taken as `Telemetry`."""
        grouped: dict[tuple[str, str, str], list[_Part]] = {}
        for (metric, host, device), parts in self._parts.items():
            grouped.setdefault((metric, self._nodenames.get(host, host), device), []).extend(parts)
        found = []
        for (metric, host, device), parts in sorted(grouped.items()):
            made = _split_cpu(parts) if metric == "cpu_used" else {metric: _join(METRICS[metric], parts)}
            for key, (times, values) in made.items():
                if len(times):
                    found.append(Series(METRICS[key], host, device, times, values))
        found.sort(key=lambda one: (one.metric.name, one.host, _in_order(one.device)))
        has_any = self._first_s <= self._last_s
        return Telemetry(
            name=name,
            formats=tuple(sorted(self._formats)),
            series=tuple(found),
            unread=tuple(sorted(self._unread)),
            warnings=tuple(warnings),
            first_s=self._first_s if has_any else math.nan,
            last_s=self._last_s if has_any else math.nan,
        )


def name_machine(labels: Mapping[str, str], otherwise: str = "") -> str:
    """Name the machine of a series by its labels; where none names it `otherwise`, or where it was scraped.

    >>> name_machine({"instance": "10.0.0.7:9400", "Hostname": "node-7"}), name_machine({"instance": "node-3:9100"})
    ('node-7', 'node-3')
    """
    named = next((labels[key] for key in _HOSTS if labels.get(key)), "")
    return named or otherwise or _without_port(labels.get("instance", ""))


def _in_order(device: str) -> tuple[int, str]:
    """Sort cards by number, and all else by name."""
    return (int(device), "") if device.isdecimal() else (-1, device)


def _without_port(instance: str) -> str:
    """Give the machine of a scraped address.

    >>> _without_port("node-3.rack:9100"), _without_port("[::1]:9100"), _without_port("node-3")
    ('node-3.rack', '[::1]', 'node-3')
    """
    found = _PORT.match(instance)
    return instance if found is None else instance.removesuffix(found["port"])


def read_number(text: str | float) -> float:
    """Read a number; NaN where it is none."""
    try:
        return float(text)
    except ValueError:
        return math.nan


def _name_device(metric: Metric, labels: Mapping[str, str]) -> str | None:
    """Name what has a metric; None where it is nothing that counts."""
    if metric.of == "host":
        return ""
    if metric.of == "gpu":
        if labels.get("GPU_I_ID"):
            return None  # a part of a card, which shares its clocks and power with the others
        return labels.get("gpu") or labels.get("index") or labels.get("minor_number") or labels.get("UUID") or None
    device = labels.get("device") or labels.get("interface") or ""
    return None if not device or _VIRTUAL.match(device) else device


def _join(metric: Metric, parts: Sequence[_Part]) -> tuple[Seconds, Seconds]:
    """Make one series of all parts of a device: each joined over time, counters then added up."""
    names = {part.name for part in parts}
    by_key: dict[tuple[str, ...], list[_Part]] = {}
    for part in parts:
        if not any(better in names for better in BETTER.get(part.name, ())):
            by_key.setdefault(part.key, []).append(part)
    joined = [_rescale(metric, group[0].known, *_concatenate(group)) for group in by_key.values()]
    if len(joined) == 1:
        return joined[0]
    if metric.name == "gpu_throttle_reasons":
        times = joined[0][0]
        bits = np.zeros(len(times), dtype=np.int64)
        for when, what in joined:
            bits |= what[np.clip(np.searchsorted(when, times, side="right") - 1, 0, None)].astype(np.int64)
        return times, bits.astype(np.float64)
    if metric.kind != "counter":
        return max(joined, key=lambda pair: len(pair[0]))  # ports of one card, say: the one that is told most often
    return _add_up(joined)


def _concatenate(parts: Sequence[_Part]) -> tuple[Seconds, Seconds]:
    """Put parts that tell of the same thing one after the other; of two values at one time the last is kept."""
    if len(parts) == 1 and np.all(np.diff(parts[0].times) > 0):
        return parts[0].times, parts[0].values
    times = np.concatenate([part.times for part in parts])
    values = np.concatenate([part.values for part in parts])
    order = np.argsort(times, kind="stable")
    times, values = times[order], values[order]
    last = np.r_[times[1:] > times[:-1], True]
    return times[last], values[last]


def _rescale(metric: Metric, known: Known, times: Seconds, values: Seconds) -> tuple[Seconds, Seconds]:
    """Give values in our unit; of a rate what has come together since the first."""
    if known.how == "bit":
        return times, np.where(values != 0, float(known.bit), 0.0)
    values = values if known.scale == 1.0 else values * known.scale
    is_rate = known.how == "rate" or (known.how == "either" and bool((np.diff(values) < 0).mean() > 0.05))
    if metric.kind == "counter" and is_rate:
        mean = (values[1:] + values[:-1]) / 2.0
        values = np.r_[0.0, np.cumsum(mean * np.diff(times))]
    return times, values


def _add_up(counters: Sequence[tuple[Seconds, Seconds]]) -> tuple[Seconds, Seconds]:
    """Add counters up over the time that all of them tell of; between two values a counter grows evenly."""
    first = max(times[0] for times, _ in counters)
    last = min(times[-1] for times, _ in counters)
    longest = max((times for times, _ in counters), key=len)
    times = longest[(longest >= first) & (longest <= last)]
    total = np.zeros(len(times))
    for when, what in counters:
        total += what if when is times or np.array_equal(when, times) else np.interp(times, when, _without_resets(what))
    return times, total


def _without_resets(values: Seconds) -> Seconds:
    """Give a counter as if nobody had ever set it back to zero."""
    steps = np.diff(values)
    whole: Seconds = np.concatenate([values[:1], values[0] + np.cumsum(np.where(steps < 0, values[1:], steps))])
    return whole


def _split_cpu(parts: Sequence[_Part]) -> dict[str, tuple[Seconds, Seconds]]:
    """Make parts of the CPUs' time of their seconds by mode, from each value to the next."""
    at = 1 + _PARTS.index("mode")
    by_mode: dict[str, list[_Part]] = {}
    for part in parts:
        by_mode.setdefault(part.key[at], []).append(part)
    sums = {}
    for mode, group in by_mode.items():
        by_cpu: dict[tuple[str, ...], list[_Part]] = {}
        for part in group:
            by_cpu.setdefault(part.key, []).append(part)
        sums[mode] = _add_up([_concatenate(of_cpu) for of_cpu in by_cpu.values()])
    if "idle" not in sums:
        return {}
    times = sums["idle"][0]
    if len(times) < 2:
        return {}
    grown = {
        mode: np.diff(np.interp(times, when, _without_resets(what))) for mode, (when, what) in sums.items() if len(when)
    }
    total = np.sum([one for mode, one in grown.items() if mode not in {"guest", "guest_nice"}], axis=0)
    counted = total > 0
    part_of = {mode: one[counted] / total[counted] for mode, one in grown.items()}
    when = times[1:][counted]
    waiting = part_of.get("iowait", np.zeros(len(when)))
    made = {"cpu_used": (when, np.clip(1.0 - part_of["idle"] - waiting, 0.0, 1.0)), "cpu_io_wait": (when, waiting)}
    return made | ({"cpu_steal": (when, part_of["steal"])} if "steal" in part_of else {})
