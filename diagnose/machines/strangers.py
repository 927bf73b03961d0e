"""Which machines are of another job: in one job nobody works on while others do nothing, as each step needs all of them.

Enters: a `Grid`. Leaves: machines that do not work and rest together with most others. Two jobs that both work all the time look
alike; then there is no harm in it, as roles part machines that do different work.
"""

from typing import Final

import numpy as np

from diagnose.machines.grid import Floats, Grid, Ints
from diagnose.machines.job import WORK
from diagnose.numerics.robust import nan_median

#: A machine that breaks stops the others within three minutes (`blame.EARLIER_S`): who works on for longer is of another job.
APART_S: Final = 240.0
#: Means of so many seconds hold whole steps and most saves.
MEAN_S: Final = 120.0
#: The usual level of a machine that does little is no less than this part of that of those that do most.
LEAST_USUAL: Final = 0.25
#: One machine alone is odd, and no job.
MIN_MACHINES: Final = 2


def find_strangers(grid: Grid) -> Ints:
    """Give the numbers of the machines that are not of the largest group of those that work and rest together."""
    none = np.zeros(0, dtype=np.int64)
    # A GPU that waits is busy: its use does not tell who works.
    name = next((name for name in WORK if name in grid.levels and name != "gpu_utilization"), None)
    if name is None or grid.n_bins * grid.bin_s <= APART_S:
        return none
    work = _mean(nan_median(grid.levels[name].values, axis=1), max(1, round(MEAN_S / grid.bin_s)))
    known = np.isfinite(work)
    usual = np.quantile(np.where(known, work, 0.0), 0.95, axis=1)
    most = float(np.quantile(usual, 0.95))
    if most <= 0.0:
        return none
    part = work / np.maximum(usual, LEAST_USUAL * most)[:, None]
    # Between the two nobody can tell.
    rests, works = (known & there for there in (part < WORK[name], part >= (1.0 + WORK[name]) / 2.0))
    rests, works = rests.astype(float), works.astype(float)
    apart_s = grid.bin_s * (rests @ works.T + works @ rests.T)
    group = _group(apart_s <= APART_S)
    sizes = np.bincount(group)
    odd = sizes < MIN_MACHINES
    return np.flatnonzero((group != np.argmax(sizes)) & ~odd[group])


def _group(alike: np.ndarray[tuple[int, ...], np.dtype[np.bool_]]) -> Ints:
    """Put each machine to the one that most are like, then the rest among themselves; shape (n_hosts,)."""
    group = np.full(len(alike), -1, dtype=np.int64)
    while (left := group < 0).any():
        first = int(np.argmax((alike & left).sum(axis=1) * left))
        group[alike[first] & left] = group.max() + 1
    return group


def _mean(values: Floats, width: int) -> Floats:
    """Average over so many bins; NaN where fewer than half of them have a value."""
    known = np.isfinite(values)
    edge = [(0, 0), (1, 0)]
    total = np.cumsum(np.pad(np.where(known, values, 0.0), edge), axis=1)
    count = np.cumsum(np.pad(known, edge), axis=1)
    total, count = total[:, width:] - total[:, :-width], count[:, width:] - count[:, :-width]
    return np.where(2 * count >= width, total / np.maximum(count, 1), np.nan)
