"""Which machines cannot be compared with the others: their clock is wrong, nothing came of them, their exporter hangs.

Enters: `Telemetry`, and its `Grid`. Leaves: why, by machine.
"""

from collections.abc import Iterable

import numpy as np

from diagnose.machines.deviate import SCALES
from diagnose.machines.grid import Grid, last_of_hosts, list_ahead
from diagnose.model.telemetry import Telemetry

#: An exporter hangs where all that changes on most machines stays as it is for so long, to within rounding; two such metrics at
#: least.
FROZEN_S, SAME, MIN_METRICS = 180.0, 1e-9, 2


def list_unlike(telemetry: Telemetry, grid: Grid) -> dict[str, str]:
    """Say of each machine that cannot be compared why."""
    gone = dict.fromkeys(
        sorted(last_of_hosts(telemetry).keys() - set(grid.hosts)),
        "sent nothing in these minutes: it is gone, or its clock is wrong",
    )
    ahead = {
        host: f"sends samples of {s:,.0f} s later than most: its clock is wrong"
        for host, s in list_ahead(telemetry).items()
    }
    frozen = (grid.hosts[host] for host in _list_frozen(grid))
    return dict.fromkeys(frozen, "sends the same numbers again and again: its exporter hangs") | gone | ahead


def _list_frozen(grid: Grid) -> Iterable[int]:
    """List machines of which nothing changes any more that changes elsewhere; cards that do nothing are at rest."""
    last = slice(max(0, grid.n_bins - round(FROZEN_S / grid.bin_s)), grid.n_bins)
    n_metrics = np.zeros(len(grid.hosts), dtype=np.int64)
    moves = np.zeros(len(grid.hosts), dtype=bool)
    works = np.zeros(len(grid.hosts), dtype=bool)
    rests = np.zeros(len(grid.hosts), dtype=bool)
    for name in SCALES.keys() & grid.levels.keys():
        level = grid.levels[name]
        values = level.values[:, :, last]
        known = np.isfinite(values)
        low, high = np.where(known, values, np.inf).min(axis=2), np.where(known, values, -np.inf).max(axis=2)
        seen = 2 * known.sum(axis=2) >= max(values.shape[2], 4)
        changes = seen & (high - low > SAME * np.abs(high))
        if 2 * changes.sum() > seen.sum():
            n_metrics += seen.any(axis=1)
            moves |= changes.any(axis=1)
            is_above = (seen & (high > 0.0)).any(axis=1)
            works |= is_above & (level.metric.kind == "gauge")
            rests |= ~is_above & (level.metric.kind == "gauge") & (level.metric.of == "gpu")
    return np.flatnonzero(~moves & works & ~rests & (n_metrics >= MIN_METRICS)).tolist()
