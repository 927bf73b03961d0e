"""What happens to a machine at one moment: a code, a counter of errors that moves, a link that is slower, silence.

Enters: a `Grid`. Leaves: `Evidence`.
"""

from collections.abc import Iterable

import numpy as np

from diagnose.machines.deviate import SCALES
from diagnose.machines.grid import SILENT_INTERVALS, SILENT_S, Grid
from diagnose.machines.rules import Change, Evidence
from diagnose.model.telemetry import Series

#: A counter that grows says something where it grows so many times as fast as that of three of four peers: what more of them have
#: is no fault of a machine.
FASTER, PEERS = 10.0, 0.75


def list_events(grid: Grid) -> list[Evidence]:
    """List all events, in the order of machines."""
    found: list[Evidence] = []
    number = {host: i for i, host in enumerate(grid.hosts)}
    for name, series in grid.series.items():
        if name in SCALES or name.endswith("_temperature_c"):
            continue
        moving = [one for one in series if len(one.values) > 1 and one.values.min() != one.values.max()]
        if moving:
            found += _list_moves(series, moving, number)
    return sorted([*found, *_list_silent(grid, number)], key=lambda one: (one.host, one.metric, one.device))


def _list_moves(series: list[Series], moving: list[Series], number: dict[str, int]) -> Iterable[Evidence]:
    """List what moved in metrics that stand still on sound machines."""
    metric = series[0].metric
    if metric.kind == "counter":
        # What a counter lost when it was started again does not count.
        growth = np.array([np.maximum(np.diff(one.values), 0.0).sum() for one in series])
        usual = float(np.quantile(growth, PEERS)) if len(series) > 4 else 0.0
        for one, grown in zip(series, growth.tolist(), strict=True):
            if grown > FASTER * usual and grown > 0:
                first = int(np.flatnonzero(np.diff(one.values))[0]) + 1
                yield _happened(number, one, "grows", float(one.times[first]), grown, usual)
        return
    for one in moving:
        start, last = float(one.values[0]), float(one.values[-1])
        if start == last:
            continue
        at = int(np.flatnonzero(one.values != last)[-1]) + 1
        change: Change = "becomes" if metric.kind == "code" else "falls" if last < start else "rises"
        yield _happened(number, one, change, float(one.times[at]), last, start)


def _happened(
    number: dict[str, int], one: Series, change: Change, since_s: float, value: float = np.nan, before: float = np.nan
) -> Evidence:
    """Say what happened to a device of a machine."""
    devices = (one.device,) if one.device else ()
    return Evidence(number[one.host], one.metric.name, one.device, change, since_s, value, before, devices=devices)


def _list_silent(grid: Grid, number: dict[str, int]) -> Iterable[Evidence]:
    """List machines, and cards of machines, that were heard of no more."""
    enough_s = max(SILENT_S, SILENT_INTERVALS * grid.interval_s)
    silent = grid.to_s - grid.last_s > enough_s
    for host in np.flatnonzero(silent).tolist():
        yield Evidence(host, "cpu_used", "", "ends", float(grid.last_s[host]), np.nan, np.nan)
    for one in grid.series.get("gpu_utilization", ()):
        host = number[one.host]
        if not silent[host] and grid.last_s[host] - one.times[-1] > enough_s:
            yield _happened(number, one, "ends", float(one.times[-1]))
