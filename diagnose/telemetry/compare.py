"""Read metrics of suspects beside those of their peers over the same time, and beside themselves before.

Enters: `Telemetry`, a `Span` and a `Suspect`. Leaves: a `Reading` for each device; a `Curve` for a picture. Medians and median
absolute deviations throughout: one peer that is odd as well moves nothing.
"""

import math
from collections.abc import Sequence
from typing import Final

import numpy as np

from diagnose.model.telemetry import METRICS, REASONS, How, Metric, Reading, Series, Span, Suspect, Telemetry
from diagnose.model.telemetry_document import Curve
from diagnose.model.trace import Bools, Ints, Seconds
from diagnose.numerics.robust import MAD_TO_SIGMA

#: Devices of peers that are read at most, spread over all.
MAX_PEERS: Final = 64
#: Sets of flags lie below this: floating point has each whole number up to here.
_FLAGS: Final = 2.0**53
#: XIDs that a program's own error gives, and stay for the next one to see (NVIDIA, XID errors, "common XID errors").
_OF_PROGRAMS: Final = (13, 31, 43, 45)
#: Points of a curve.
_POINTS: Final = 60
#: What rests while a card does nothing, and how busy it is at least while these count.
_RESTING: Final = frozenset({"gpu_sm_clock_mhz", "gpu_pcie_generation", "gpu_pcie_width"})
_BUSY: Final = 0.3
#: Part of the time before an onset that surely is: steps show a fault some of them late.
_SURELY_BEFORE: Final = 0.8


class Comparison:
    """Reads one job's telemetry."""

    def __init__(self, telemetry: Telemetry) -> None:
        self._series: dict[str, dict[tuple[str, str], Series]] = {}
        for one in telemetry.series:
            self._series.setdefault(one.metric.name, {})[one.host, one.device] = one

    def read(self, suspect: Suspect, span: Span, metric: str, how: How, bits: int = 0) -> list[Reading]:
        """Read a metric of each device of a suspect; nothing where it was not measured in that time."""
        kind = METRICS[metric]
        found = []
        for key in self._devices(suspect, kind):
            value = self._measure(key, metric, how, bits, span)
            if math.isnan(value):
                continue
            before = math.nan if span.before is None else self._measure_before(key, metric, how, bits, *span.before)
            peers = [
                peer
                for one in self._peers(suspect, kind, key[1])
                if not math.isnan(peer := self._measure(one, metric, how, bits, span))
            ]
            middle = float(np.median(peers)) if peers else math.nan
            spread = MAD_TO_SIGMA * float(np.median(np.abs(np.asarray(peers) - middle))) if peers else math.nan
            found.append(Reading(kind, suspect.name, *key, value, middle, spread, len(peers), before))
        return found

    def cover(self, suspect: Suspect, span: Span) -> float:
        """Say of which part of a span a machine has any values."""
        begins = [
            (one.times[0], one.times[-1])
            for of in self._series.values()
            for key, one in of.items()
            if key[0] == suspect.host
        ]
        if not begins:
            return 0.0
        first, last = max(span.begin_s, min(b for b, _ in begins)), min(span.end_s, max(e for _, e in begins))
        return float(max(0.0, last - first) / max(span.end_s - span.begin_s, 1e-9))

    def draw(self, suspect: Suspect, reading: Reading, span: Span) -> Curve:
        """Give the course of what was read, from before the span where that is known."""
        metric = reading.metric
        begin_s = span.begin_s if span.before is None else span.before[0]
        edges = np.linspace(begin_s, max(span.end_s, begin_s + 1e-3), self._count(reading, begin_s, span.end_s) + 1)
        rows = [
            _course(self._series[metric.name][key], edges)
            for key in self._peers(suspect, metric, reading.device)
            if key in self._series[metric.name]
        ]
        own = _course(self._series[metric.name][reading.host, reading.device], edges)
        table = np.stack(rows) if rows else np.full((1, len(own)), math.nan)
        empty = np.isnan(table).all(axis=0)
        filled = np.where(empty, 0.0, table)
        return Curve(
            metric=metric.name,
            words=metric.words,
            unit=metric.unit if metric.kind != "counter" else f"{metric.unit}/s",
            host=reading.name,
            device=reading.device,
            times=tuple(np.round((edges[1:] + edges[:-1]) / 2.0, 3).tolist()),
            values=_plain(own),
            peers=_plain(np.where(empty, math.nan, np.nanmedian(filled, axis=0))),
            low=_plain(np.where(empty, math.nan, np.nanmin(filled, axis=0))),
            high=_plain(np.where(empty, math.nan, np.nanmax(filled, axis=0))),
            n_peers=len(rows),
        )

    def _count(self, reading: Reading, begin_s: float, end_s: float) -> int:
        """Say how many points a curve has: no more than values were measured."""
        times = self._series[reading.metric.name][reading.host, reading.device].times
        return int(np.clip(((times >= begin_s) & (times <= end_s)).sum(), 1, _POINTS))

    def _devices(self, suspect: Suspect, metric: Metric) -> list[tuple[str, str]]:
        """List what of a suspect has a metric."""
        keys = [key for key in self._series.get(metric.name, {}) if key[0] == suspect.host]
        if metric.of == "gpu" and suspect.cards:
            keys = [key for key in keys if key[1] in suspect.cards]
        return sorted(keys)

    def _peers(self, suspect: Suspect, metric: Metric, device: str) -> list[tuple[str, str]]:
        """List the devices of others that have a metric: cards of the same work, ports and disks of the same name."""
        there = self._series.get(metric.name, {})
        if metric.of == "gpu":
            keys = [key for key in suspect.peers if key in there]
        else:
            keys = [(host, device) for host in suspect.hosts if (host, device) in there]
            if not keys:
                others = set(suspect.hosts)
                keys = sorted(key for key in there if key[0] in others)
        if len(keys) <= MAX_PEERS:
            return keys
        return [keys[i] for i in np.linspace(0, len(keys) - 1, MAX_PEERS).astype(int).tolist()]

    def _measure_before(
        self, key: tuple[str, str], metric: str, how: How, bits: int, begin_s: float, end_s: float
    ) -> float:
        """Read one device before a fault; the last part is left out: it may have begun a little earlier than it shows."""
        surely = Span(begin_s, begin_s + _SURELY_BEFORE * (end_s - begin_s))
        return self._measure(key, metric, how, bits, surely, is_over=True)

    def _measure(
        self, key: tuple[str, str], metric: str, how: How, bits: int, span: Span, *, is_over: bool = False
    ) -> float:
        """Read one device over a span; NaN where nothing was measured. A value tells of the time before it."""
        begin_s, end_s = span.begin_s, span.end_s
        one = self._series[metric][key]
        interval_s = float(np.median(np.diff(one.times))) if len(one.times) > 1 else 0.0
        inside = (one.times >= begin_s) & (one.times <= end_s + (0.0 if is_over else interval_s))
        if how in {"rate", "growth"}:
            inside |= (one.times >= begin_s - interval_s) & (one.times < begin_s)
            return _grow(one.times[inside], one.values[inside], is_rate=how == "rate")
        if how != "code" and (during := inside & _within(one.times, span.spells)).any():
            inside = during
        if how in {"median", "wavering"} and metric in _RESTING:
            busy = inside & self._busy(key, one.times)
            inside = busy if busy.any() else inside
        values = one.values[inside]
        return _summarize(values, how, bits) if len(values) else math.nan

    def _busy(self, key: tuple[str, str], times: Seconds) -> Bools:
        """Mark times at which a card works: clocks and links of one that does nothing rest, and say nothing."""
        is_busy = np.ones(len(times), dtype=bool)
        reasons = self._series.get("gpu_throttle_reasons", {}).get(key)
        if reasons is not None:
            is_busy &= (_whole(_nearest(reasons, times)) & REASONS["gpu_idle"]) == 0
        activity = next(
            (
                self._series[name][key]
                for name in ("gpu_graphics_active", "gpu_utilization")
                if key in self._series.get(name, {})
            ),
            None,
        )
        return is_busy if activity is None else is_busy & (_nearest(activity, times) >= _BUSY)


def _within(times: Seconds, spells: Sequence[tuple[float, float]]) -> Bools:
    """Mark times that are within a spell."""
    if not spells:
        return np.ones(len(times), dtype=bool)
    begins_s, ends_s = np.array(spells).T
    at = np.searchsorted(begins_s, times, side="right") - 1
    return np.asarray((at >= 0) & (times <= ends_s[at]))


def _whole(values: Seconds) -> Ints:
    """Read sets of flags; 0 where a value can be none."""
    return np.where((values >= 0) & (values < _FLAGS), values, 0.0).astype(np.int64)


def _nearest(one: Series, times: Seconds) -> Seconds:
    """Give the value that was measured nearest to each time."""
    after = np.clip(np.searchsorted(one.times, times), 0, len(one.times) - 1)
    before = np.maximum(after - 1, 0)
    is_before = np.abs(times - one.times[before]) <= np.abs(one.times[after] - times)
    return one.values[np.where(is_before, before, after)]


def _summarize(values: Seconds, how: How, bits: int) -> float:
    """Bring the values of a span to one number."""
    match how:
        case "bits":
            return float(((_whole(values) & bits) != 0).mean())
        case "wavering":
            middle = float(np.median(values))
            return float(np.quantile(values, 0.9) - np.quantile(values, 0.1)) / middle if middle > 0 else math.nan
        case "code":
            codes = values[(values != 0) & ~np.isin(values, _OF_PROGRAMS)]
            return float(codes[-1]) if len(codes) else 0.0
        case _:
            return float(np.median(values))


def _grow(times: Seconds, values: Seconds, *, is_rate: bool) -> float:
    """Say how much a counter grew, restarts left out; NaN with fewer than two values."""
    if len(times) < 2:
        return math.nan
    steps = np.diff(values)
    grown = float(np.where(steps < 0, np.maximum(values[1:], 0.0), steps).sum())
    return grown / float(times[-1] - times[0]) if is_rate else grown


def _course(one: Series, edges: Seconds) -> Seconds:
    """Give the mean of a gauge, or the growth of a counter a second, between each two edges; NaN where nothing was measured."""
    times, values = one.times, one.values
    if one.metric.kind == "counter":
        if len(times) < 2:
            return np.full(len(edges) - 1, math.nan)
        steps = np.diff(values)
        whole = np.concatenate([[0.0], np.cumsum(np.where(steps < 0, np.maximum(values[1:], 0.0), steps))])
        at = np.interp(edges, times, whole, left=math.nan, right=math.nan)
        return np.asarray(np.diff(at) / np.diff(edges))
    inside = (times >= edges[0]) & (times <= edges[-1])
    cell = np.clip(np.searchsorted(edges, times[inside], side="right") - 1, 0, len(edges) - 2)
    n = np.bincount(cell, minlength=len(edges) - 1)
    if one.metric.kind == "code":
        found = np.full(len(edges) - 1, math.nan)
        found[cell] = values[inside]
        return found
    total = np.bincount(cell, weights=values[inside], minlength=len(edges) - 1)
    return np.asarray(np.where(n > 0, total / np.maximum(n, 1), math.nan))


def _plain(values: Seconds) -> tuple[float | None, ...]:
    """Give numbers of a few digits; None where there is none."""
    return tuple(None if math.isnan(value) else float(f"{value:.5g}") for value in values.tolist())
