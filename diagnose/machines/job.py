"""What the job did, as most of its machines show it: it runs, it stopped and waits, it ended.

Enters: a `Grid`. Leaves: a `Course`.
"""

import dataclasses
import math
from typing import Final

import numpy as np
from numpy.typing import NDArray

from diagnose.machines.grid import Floats, Grid
from diagnose.model.machines import JobState
from diagnose.numerics.robust import MAD_TO_SIGMA, nan_median

#: Metrics that tell work from waiting, the clearest first, and the part of their usual level below which nobody works. A GPU
#: that waits in a collective is busy and draws a third of its power or more, but its tensor cores and links are idle.
WORK: Final = {
    "gpu_tensor_active": 0.12,
    "gpu_nvlink_bytes": 0.12,
    "gpu_dram_active": 0.2,
    "net_sent_bytes": 0.05,
    "gpu_power_w": 0.55,
    "gpu_utilization": 0.3,
}
#: Tensor cores, and GPUs, of a job that trains are never this idle, and GPUs that are at least so busy hold processes.
NO_TENSOR, BUSY = 0.01, 0.5
#: Seconds without work that are more than a save or an evaluation: jobs save for up to a minute. A longer pause seen before
#: in the same job, times this, is needed where there was one.
STOPPED_S, LONGER = 90.0, 2.0
#: A job that evaluates works and exchanges no gradients: metrics that tell it, the clearest first, the part of their usual level
#: below which nothing is exchanged, and seconds without that are no part of a step.
EXCHANGE: Final = {"net_pfc_sent": 0.15, "net_sent_bytes": 0.3}
APART_S: Final = 20.0
#: Processes are gone where GPUs have less than this part of their usual level, whose metric it is.
GONE: Final = {"gpu_utilization": 0.1, "gpu_graphics_active": 0.1, "cpu_used": 0.2}
#: Level of work, 0..1, among all bins, that is taken as usual.
_USUAL: Final = 0.95


@dataclasses.dataclass(frozen=True, slots=True)
class Course:
    """What the job did."""

    #: See `JobState`.
    state: JobState
    #: Which tells it.
    metric: str | None
    #: Shape (n_bins,): how much of its usual work is done.
    work: Floats
    #: Shape (n_bins,): nobody works: a save, or a wait; they work and exchange nothing: an evaluation.
    idle: NDArray[np.bool_]
    evaluates: NDArray[np.bool_]
    #: `began`, `stopped`, `ended`: bins: the first with work; the first of those without that last to the end; the first
    #: without processes. `n_bins` where that did not happen.
    began: int
    stopped: int
    ended: int


def follow_job(grid: Grid) -> Course:
    """Say what the job did; without any metric that tells work, or any work, `unseen`."""
    n = grid.n_bins
    never = np.zeros(n, dtype=bool)
    if _stands_still(grid):
        return Course("stopped", "gpu_tensor_active", np.zeros(n), np.ones(n, dtype=bool), never, 0, 0, n)
    if _is_at_rest(grid):
        return Course("unseen", "gpu_utilization", np.full(n, np.nan), never, never, 0, n, n)
    for name, share in WORK.items():
        level = grid.levels.get(name)
        if level is None:
            continue
        middle = nan_median(level.values, axis=(0, 1))
        known = np.isfinite(middle)
        usual = float(np.quantile(middle[known], _USUAL)) if known.any() else 0.0
        if usual <= 0.0:
            continue
        work = np.where(known, middle / usual, np.nan)
        return _judge(grid, name, work, share)
    return Course("unseen", None, np.full(n, np.nan), never, never, 0, n, n)


def _stands_still(grid: Grid) -> bool:
    """Say whether GPUs are busy and compute nothing, all the time: the job stopped before."""
    tensor, busy = (grid.levels.get(name) for name in ("gpu_tensor_active", "gpu_utilization"))
    if tensor is None or busy is None:
        return False
    most = nan_median(tensor.values, axis=(0, 1))
    usual = float(nan_median(busy.values, axis=(0, 1, 2)))
    return bool(np.isfinite(most).any() and np.nanmax(most) < NO_TENSOR and usual > BUSY)


def _is_at_rest(grid: Grid) -> bool:
    """Say whether the GPUs of most machines are never busy: the power that they draw is no work then."""
    busy = grid.levels.get("gpu_utilization")
    most = np.full(1, np.nan) if busy is None else nan_median(busy.values, axis=(0, 1))
    return bool(np.isfinite(most).any() and np.nanmax(most) < NO_TENSOR)


def _judge(grid: Grid, name: str, work: Floats, share: float) -> Course:
    """Find out when the job began, stopped and ended."""
    n = grid.n_bins
    works = work >= share
    evaluates = _find_evaluations(grid, works)
    if not works.any():
        return Course("unseen", name, work, ~works, evaluates, 0, n, n)
    began, last = int(np.flatnonzero(works)[0]), int(np.flatnonzero(works)[-1])
    n_idle = n - 1 - last
    idle = np.diff(np.flatnonzero(works[began : last + 1]))
    longest = int(idle.max(initial=1)) - 1
    if n_idle * grid.bin_s < max(STOPPED_S, LONGER * longest * grid.bin_s):
        return Course("running", name, work, ~works, evaluates, began, n, n)
    stopped = last + 1
    ended = _find_end(grid, stopped)
    # Processes that all end at once, or after a last save, are no fault of a machine; GPUs that wait for one are busy.
    is_short = (ended - stopped) * grid.bin_s < STOPPED_S / 3
    state: JobState = "ended" if is_short or (ended < n and not _is_busy(grid, stopped, ended)) else "stopped"
    return Course(state, name, work, ~works, evaluates, began, stopped, ended)


def _find_evaluations(grid: Grid, works: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """Mark bins in which most machines work and exchange nothing, for longer than a step does."""
    for name, share in EXCHANGE.items():
        level = grid.levels.get(name)
        if level is None:
            continue
        middle = nan_median(level.values, axis=(0, 1))
        usual = float(nan_median(middle[works], axis=0)) if works.any() else 0.0
        if usual > 0.0:
            return _drop_short(works & (middle < share * usual), math.ceil(APART_S / grid.bin_s))
    return np.zeros(grid.n_bins, dtype=bool)


def _drop_short(marked: NDArray[np.bool_], least: int) -> NDArray[np.bool_]:
    """Keep what is marked for so many bins in a row."""
    edges = np.flatnonzero(np.diff(np.r_[False, marked, False].astype(np.int8)))
    kept = np.zeros(len(marked), dtype=bool)
    for first, last in zip(edges[::2].tolist(), edges[1::2].tolist(), strict=True):
        kept[first:last] = last - first >= least
    return kept


def _is_busy(grid: Grid, first: int, last: int) -> bool:
    """Say whether most GPUs are busy in some bins; without a metric that says it they may be."""
    level = grid.levels.get("gpu_utilization")
    return level is None or not float(nan_median(level.values[:, :, first:last], axis=(0, 1, 2))) < BUSY


def _find_end(grid: Grid, stopped: int) -> int:
    """Say from which bin on the processes of most machines are gone."""
    gone = np.zeros(grid.n_bins, dtype=bool)
    for name, share in GONE.items():
        level = grid.levels.get(name)
        if level is None:
            continue
        middle = nan_median(level.values, axis=(0, 1))
        usual = float(np.nanmedian(middle[:stopped])) if np.isfinite(middle[:stopped]).any() else 0.0
        gone |= middle < share * usual
    there = np.flatnonzero(~gone[stopped:])
    return stopped + (int(there[-1]) + 1 if len(there) else 0)


@dataclasses.dataclass(frozen=True, slots=True)
class Slowing:
    """The job does less work since a bin: `share` is what it lost."""

    since: int
    share: float


#: A job is slowed when it does so much less, and by so many standard deviations.
SLOWER, SURELY = 0.05, 5.0
#: Seconds that are averaged over to measure how much the work of a steady job varies, and the least that is taken for it.
BLOCK_S, LEAST_SCATTER = 60.0, 0.005
#: Where nearly all of them hold idle bins it is not for saves, which leave some even where one of a minute comes every two.
NOT_SAVES: Final = 0.95
#: Seconds before and after, at least: in less than three and a half minutes one save looks like a slower job.
BEFORE_S, AFTER_S = 120.0, 210.0


def find_slowing(course: Course, bin_s: float) -> Slowing | None:
    """Find the moment since which a running job does less work; None where there is none."""
    work = course.work[course.began : course.stopped]
    known = np.isfinite(work)
    n, n_before, n_after = len(work), max(2, round(BEFORE_S / bin_s)), max(2, round(AFTER_S / bin_s))
    if n < n_before + n_after or not known.any():
        return None
    work = np.where(known, work, np.median(work[known]))
    # Means of a minute hold whole steps; those with bins of a save or an evaluation say nothing of the pace. Where most
    # have such bins steps are like that, be it only since they are slow; then medians leave out what is rare.
    width = max(1, round(BLOCK_S / bin_s))
    smooth = np.convolve(work, np.ones(width) / width, mode="valid")
    says_nothing = course.idle | course.evaluates
    is_idle = np.convolve(says_nothing[course.began : course.stopped], np.ones(width), mode="valid") > 0
    is_rare = np.convolve(is_idle, np.ones(n_after) / n_after, mode="same") < NOT_SAVES
    if 2 * is_idle.sum() < len(is_idle):
        smooth[is_idle & is_rare] = np.nan

    def part(place: int) -> tuple[Floats, Floats]:
        before, after = smooth[: place - width + 1], smooth[place:]
        return before[np.isfinite(before)], after[np.isfinite(after)]

    best, at = np.inf, n_before
    for place in range(max(n_before, width), n - n_after + 1):
        misfit = sum(float(np.abs(side - np.median(side)).sum()) for side in part(place) if len(side))
        if misfit < best:
            best, at = misfit, place
    before, after = part(at)
    if not len(before) or not len(after):
        return None
    usual, now = float(np.median(before)), float(np.median(after))
    scatter = MAD_TO_SIGMA * float(np.median(np.abs(np.r_[before - usual, after - now])))
    noise = max(scatter, LEAST_SCATTER * usual) * np.sqrt(width / at + width / (n - at))
    if usual <= 0.0 or usual - now < max(SURELY * noise, SLOWER * usual):
        return None
    return Slowing(course.began + at, 1.0 - now / usual)
