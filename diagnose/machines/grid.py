"""Telemetry of many machines on one grid of time.

Enters: `Telemetry`. Leaves: a `Grid`: for each metric an array of machine x device x bin. Counters become rates. Costs a few
passes over all samples.
"""

import dataclasses
from collections.abc import Sequence
from typing import Final

import numpy as np
from numpy.typing import NDArray

from diagnose.model.telemetry import Metric, Series, Telemetry
from diagnose.telemetry.match import by_number

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

#: Seconds of a bin, where samples are not further apart: a few steps of most jobs are in it, so that it matters less where in
#: its step a machine was when it was asked.
BIN_S: Final = 10.0
#: A machine is silent, or of another clock, whose last sample is so many seconds, and so many intervals, from that of most.
SILENT_S, SILENT_INTERVALS = 60.0, 3.0
#: A counter that was not read for so many intervals has no rate there.
LONG_GAP: Final = 4.0


@dataclasses.dataclass(frozen=True, slots=True)
class Level:
    """One metric of all machines; `values` has shape (n_hosts, n_devices, n_bins), NaN where there is no sample."""

    metric: Metric
    devices: tuple[str, ...]
    values: Floats


@dataclasses.dataclass(frozen=True, slots=True)
class Grid:
    """All metrics of a span of time."""

    hosts: tuple[str, ...]
    #: `from_s`, `to_s`: Unix seconds.
    from_s: float
    to_s: float
    #: `bin_s`, `interval_s`: seconds of a bin, and from one sample to the next.
    bin_s: float
    interval_s: float
    n_bins: int
    #: Gauges and rates of counters, by metric.
    levels: dict[str, Level]
    #: What they were made of, cut to the span.
    series: dict[str, list[Series]]
    #: Shape (n_hosts,): when each machine was last heard of.
    last_s: Floats

    def time_of(self, at: int) -> float:
        """Give the beginning of a bin, Unix seconds."""
        return self.from_s + at * self.bin_s


def make_grid(
    telemetry: Telemetry, *, seconds: float, until_s: float | None = None, bin_s: float = BIN_S
) -> Grid | None:
    """Put the last part of telemetry on a grid of bins no shorter than its samples; None where nothing is in that time."""
    ends = last_of_hosts(telemetry)
    if not ends:
        return None
    if until_s is None:
        ahead = list_ahead(telemetry)
        until_s = max(last for host, last in ends.items() if host not in ahead)
    to_s = until_s
    cut = [kept for one in telemetry.series if (kept := _cut(one, to_s - seconds, to_s)) is not None]
    if not cut:
        return None
    from_s = min(float(one.times[0]) for one in cut)
    interval_s = _usual_interval(cut)
    bin_s = max(bin_s, interval_s * 1.0001)
    hosts = tuple(sorted({one.host for one in cut}))
    number = {host: i for i, host in enumerate(hosts)}
    n_bins = int((to_s - from_s) / bin_s) + 1
    by_metric: dict[str, list[Series]] = {}
    last_s = np.full(len(hosts), -np.inf)
    for one in cut:
        by_metric.setdefault(one.metric.name, []).append(one)
        last_s[number[one.host]] = max(last_s[number[one.host]], one.times[-1])
    levels = {
        name: _bin(series, number, from_s, bin_s, n_bins, interval_s)
        for name, series in by_metric.items()
        if series[0].metric.kind != "code"
    }
    return Grid(hosts, from_s, to_s, bin_s, interval_s, n_bins, levels, by_metric, last_s)


def last_of_hosts(telemetry: Telemetry) -> dict[str, float]:
    """Give the time of the last sample of each machine, Unix seconds."""
    last_s: dict[str, float] = {}
    for one in telemetry.series:
        if len(one.times):
            last_s[one.host] = max(last_s.get(one.host, -np.inf), float(one.times[-1]))
    return last_s


def list_ahead(telemetry: Telemetry) -> dict[str, float]:
    """Say of machines whose clocks are ahead of most others' by how many seconds."""
    last_s = last_of_hosts(telemetry)
    usual_s = sorted(last_s.values())[len(last_s) // 2]
    ahead_s = max(SILENT_S, SILENT_INTERVALS * _usual_interval(telemetry.series))
    return {host: last - usual_s for host, last in sorted(last_s.items()) if last > usual_s + ahead_s}


def _cut(one: Series, from_s: float, to_s: float) -> Series | None:
    """Keep the samples of a span that are numbers; None where there are none."""
    known = np.isfinite(one.values)
    if not known.all():
        one = dataclasses.replace(one, times=one.times[known], values=one.values[known])
    times = one.times
    if not len(times) or times[-1] <= from_s or times[0] > to_s:
        return None
    if times[0] > from_s and times[-1] <= to_s:
        return one
    at = slice(int(np.searchsorted(times, from_s, side="right")), int(np.searchsorted(times, to_s, side="right")))
    return dataclasses.replace(one, times=times[at], values=one.values[at]) if at.stop > at.start else None


def _usual_interval(series: Sequence[Series]) -> float:
    """Give the usual time from one sample to the next; of many series a few say it."""
    some = [one for one in series[:: max(1, len(series) // 64)] if len(one.times) > 1]
    return float(np.median([np.median(np.diff(one.times)) for one in some])) if some else BIN_S


def _bin(
    series: Sequence[Series], number: dict[str, int], from_s: float, bin_s: float, n_bins: int, interval_s: float
) -> Level:
    """Average all series of one metric over bins."""
    metric = series[0].metric
    devices = tuple(sorted({one.device for one in series}, key=by_number))
    place = {device: i for i, device in enumerate(devices)}
    row = np.array([number[one.host] * len(devices) + place[one.device] for one in series])
    lengths = np.array([len(one.times) for one in series])
    times = np.concatenate([one.times for one in series])
    values = np.concatenate([one.values for one in series])
    of_row = np.repeat(row, lengths)
    if metric.kind == "counter":
        values = _rates(times, values, lengths, LONG_GAP * interval_s)
        known = np.isfinite(values)
        times, values, of_row = times[known], values[known], of_row[known]
    at = of_row * n_bins + np.clip(((times - from_s) / bin_s).astype(np.int64), 0, n_bins - 1)
    size = len(number) * len(devices) * n_bins
    count = np.bincount(at, minlength=size)
    with np.errstate(invalid="ignore"):
        mean = np.bincount(at, weights=values, minlength=size) / count
    return Level(metric, devices, mean.reshape(len(number), len(devices), n_bins))


def _rates(times: Floats, values: Floats, lengths: Ints, longest_s: float) -> Floats:
    """Turn counters that lie one behind the other into growth a second before each sample; NaN where that is not known.

    A counter that falls was started again: what it has since is its growth.
    """
    grown = np.diff(values, prepend=values[:1])
    grown = np.where(grown < 0, values, grown)
    elapsed = np.diff(times, prepend=times[:1])
    elapsed[np.r_[0, np.cumsum(lengths)[:-1]]] = np.inf
    with np.errstate(invalid="ignore", divide="ignore"):
        return np.asarray(np.where((elapsed > 0) & (elapsed <= longest_s), grown / elapsed, np.nan))
