"""Medians, quantiles and spreads that a few wild values do not move.

Enters: arrays of float64, of any unit, NaN where nothing was measured. Leaves: arrays without the axes asked for.
"""

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]

#: From the median absolute deviation to the standard deviation of a normal distribution: 1 / its 0.75 quantile.
MAD_TO_SIGMA = 1.4826
#: Lanes of more values than this are parted where the quantile is, and not sorted: a fifth of the time.
LONG_LANE = 500
#: Lanes of so few values, of so many in all, are sorted side by side: a quarter of the time.
FEW, MANY = 8, 1 << 14
#: Values are on two levels when these are so many standard deviations within them apart; of fewer values nobody can tell.
LEVELS_APART = 4.0
MIN_ON_LEVELS = 4
#: A series is smoothed by the median of so many values before levels in time are looked for. By themselves they are so many
#: standard deviations apart, and smoothed that many times as many.
SMOOTHED = 5
STRETCHES_APART = 2.5
SMOOTHER_RATIO = 1.6


def robust_deviation(residuals: Floats) -> float:
    """Estimate the standard deviation of values around zero by their median absolute deviation."""
    return float(MAD_TO_SIGMA * median(np.abs(residuals)))


def noise_of_differences(values: Floats, *, axis: int = -1) -> Floats:
    """Estimate the standard deviation of a series by how much neighbours along an axis differ: a few changes of level do not count.

    Series of fewer than two values have none: 0.
    """
    if values.shape[axis] < 2:
        return np.zeros(np.delete(values.shape, axis))
    return np.asarray(MAD_TO_SIGMA * median(np.abs(np.diff(values, axis=axis)), axis=axis) / np.sqrt(2.0))


def lower_median(values: Floats, *, axis: int = -1) -> Any:
    """Take the median, of an even number the lower of the two: with two ranks the faster one is the reference.

    NaN does not count; where there is no value the median is NaN.

    >>> float(lower_median(np.array([4.0, 1.0, 3.0, np.nan, 2.0])))
    2.0
    """
    return _around(values, axis, 0.5)[0]


def weighted_median(values: Floats, weights: Floats) -> float | None:
    """Take the value up to which half of the weight lies; None where there is no weight.

    >>> weighted_median(np.array([1.0, 1.0, 1.0, 50.0]), np.array([1.0, 1.0, 1.0, 50.0]))
    50.0
    """
    total = float(weights.sum())
    if total <= 0.0:
        return None
    order = np.argsort(values, kind="stable")
    return float(values[order][int(np.searchsorted(np.cumsum(weights[order]), total / 2.0))])


def upper_level(values: Floats, *, apart: float = LEVELS_APART) -> NDArray[np.bool_]:
    """Mark the values that are on the upper one of two levels along the last axis; none where there are no two.

    >>> upper_level(np.array([1.0, 1.1, 3.0, 0.9, 3.1, 1.0])).tolist()
    [False, False, True, False, True, False]

    Source of the levels: Otsu, A Threshold Selection Method, IEEE Transactions on Systems, Man, and Cybernetics 9 (1979).
    """
    ordered = np.sort(values, axis=-1)
    n = ordered.shape[-1]
    if n < MIN_ON_LEVELS:
        return np.zeros(values.shape, dtype=bool)
    count = np.arange(1, n)
    total, square = np.cumsum(ordered, axis=-1), np.cumsum(ordered**2, axis=-1)
    low, high = total[..., :-1] / count, (total[..., -1:] - total[..., :-1]) / (n - count)
    within = np.maximum(square[..., -1:] - count * low**2 - (n - count) * high**2, 0.0)
    at = np.argmin(within, axis=-1)
    between, within, limit = (_pick(of, at)[..., None] for of in (high - low, within, ordered))
    return np.asarray((values > limit) & (between > apart * np.sqrt(within / n)))


def upper_stretch(series: Floats, *, apart: float = STRETCHES_APART) -> NDArray[np.bool_]:
    """Mark the values of series, steps last, that are in stretches on the upper one of two levels; none where there are no two.

    What changes from one level to another and stays there is told from noise by the order of time: levels that overlap are apart
    when smoothed. Longer times vary more: give their roots or logs.

    >>> upper_stretch(np.array([3.0, 1.0, 2.0, 3.0, 1.0, 5.0, 7.0, 6.0, 8.0, 5.0, 6.0, 8.0])).nonzero()[0].tolist()
    [5, 6, 7, 8, 9, 10, 11]
    """
    n = series.shape[-1]
    if n < 2 * SMOOTHED:
        return np.zeros(series.shape, dtype=bool)
    padded = np.pad(series, [(0, 0)] * (series.ndim - 1) + [(SMOOTHED // 2,) * 2], mode="reflect")
    windows = np.lib.stride_tricks.sliding_window_view(padded, SMOOTHED, axis=-1)
    upper = upper_level(median(windows, axis=-1), apart=SMOOTHER_RATIO * apart)
    n_upper = upper.sum(axis=-1, keepdims=True)
    high = np.where(upper, series, 0.0).sum(axis=-1, keepdims=True) / np.maximum(n_upper, 1)
    low = np.where(upper, 0.0, series).sum(axis=-1, keepdims=True) / np.maximum(n - n_upper, 1)
    within = np.sqrt(np.mean((series - np.where(upper, high, low)) ** 2, axis=-1, keepdims=True))
    enough = np.minimum(n_upper, n - n_upper) >= SMOOTHED
    return np.asarray(upper & enough & (high - low > apart * within))


def median(values: Floats, *, axis: int | tuple[int, ...] | None = None, keepdims: bool = False) -> Any:
    """Take medians as `numpy.median` does, bit by bit, in a fraction of the time; NaN in lanes with one.

    >>> float(median(np.array([4.0, 1.0, 3.0, 2.0])))
    2.5
    """
    axes = tuple(range(values.ndim)) if axis is None else axis
    if not _length_of_lanes(values, axes):
        return np.median(values, axis=axis, keepdims=keepdims)
    found, count = _middle(np.asarray(values, dtype=np.float64), axes)
    if count.ndim or count < _length_of_lanes(values, axes):
        found = np.where(count < _length_of_lanes(values, axes), np.nan, found)
    return np.expand_dims(found, axes) if keepdims else found[()]


def nan_median(values: Floats, *, axis: int | tuple[int, ...], keepdims: bool = False) -> Any:
    """Take medians, NaN left out: `numpy.nanmedian` bit by bit, without its Python loop over lanes and without its warning.

    Parameters
    ----------
    values : ndarray of float64
    axis : int or tuple of int
    keepdims : bool
        Keep the axes with length 1.

    Returns
    -------
    ndarray of float64, or float64
        Shape of `values` without `axis`; NaN where there is no value.
    """
    found, _ = _middle(values, axis)
    return np.expand_dims(found, axis) if keepdims else found[()]


def nan_quantile(values: Floats, q: float, *, axis: int | tuple[int, ...]) -> Any:
    """Take a quantile, from 0 to 1 and linear between two values, as `nan_median` takes the median: `numpy.nanquantile` bit by bit.

    >>> float(nan_quantile(np.array([4.0, 1.0, 3.0, np.nan, 2.0]), 0.5, axis=0))
    2.5
    """
    low, high, part, _ = _around(values, axis, q)
    # From the nearer of the two, as numpy does: then neither rounding nor order of the values moves the result.
    return np.where(part >= 0.5, high - (high - low) * (1.0 - part), low + (high - low) * part)[()]


def fill_nan(values: Floats, by: float = 0.0) -> Floats:
    """Put a number in the place of NaN; without any it is the same array: `numpy.nan_to_num` takes five times as long."""
    missing = np.isnan(values)
    return np.where(missing, by, values) if missing.any() else values


def keep_where(there: NDArray[np.bool_], values: Floats, by: float = 0.0) -> Floats:
    """Put a number where something is not there, as `numpy.where` does; where all is there it is the same array."""
    return values if there.all() else np.where(there, values, by)


def take_where(there: NDArray[np.bool_], values: Floats) -> Floats:
    """Take what is there; where all is there it is the same array."""
    return values if there.all() else values[there]


def _length_of_lanes(values: Floats, axis: int | tuple[int, ...]) -> int:
    """Give the number of values that one result is taken from."""
    return math.prod(values.shape[i] for i in ((axis,) if isinstance(axis, int) else axis))


def _middle(values: Floats, axis: int | tuple[int, ...]) -> tuple[Floats, NDArray[np.int64]]:
    """Take the median of each lane, and count its values as `_around` does."""
    low, high, part, count = _around(values, axis, 0.5)
    # Of an odd number the middle one is both; their sum could overflow.
    return np.where(part == 0.0, low, (low + high) / 2.0) if part.ndim or part else low, count


def _around(values: Floats, axis: int | tuple[int, ...], q: float) -> tuple[Floats, Floats, Floats, NDArray[np.int64]]:
    """Give the two values of each lane that a quantile lies between, and where between them, from 0 to 1; NaN left out.

    The last is how many values each lane has: one number for all of them, and one place between, where none is NaN.
    """
    axes = [i % values.ndim for i in ((axis,) if isinstance(axis, int) else axis)]
    kept = [i for i in range(values.ndim) if i not in axes]
    n = _length_of_lanes(values, axis)
    if (
        1 < n <= FEW
        and len(axes) == 1
        and axes[0] < values.ndim - 1
        and values.size >= MANY
        and not np.isnan(values).any()
    ):
        ordered, at = _sort_few(np.moveaxis(values, axes[0], 0)), (n - 1) * q
        return ordered[int(at)], ordered[min(int(at) + 1, n - 1)], np.array(at - int(at)), np.array(n)
    lanes = values.transpose(*kept, *axes).reshape(*(values.shape[i] for i in kept), n)
    if np.may_share_memory(lanes, values):
        lanes = lanes.copy()
    count, is_parted = np.array(n), n > LONG_LANE and not np.isnan(lanes).any()
    if not is_parted:
        lanes.sort(axis=-1)
        if not n or np.isnan(lanes[..., -1]).any():
            count = np.asarray(n - np.isnan(lanes).sum(axis=-1))
    at = np.maximum(count - 1, 0) * q
    below = np.floor(at).astype(np.int64)
    part = at - below
    if not is_parted:
        return _pick(lanes, below), _pick(lanes, np.minimum(below + 1, np.maximum(count - 1, 0))), part, count
    lanes.partition(int(below), axis=-1)
    low = lanes[..., int(below)].copy()
    return low, lanes[..., int(below) + 1 :].min(axis=-1) if part else low, part, count


def _sort_few(values: Floats) -> list[Floats]:
    """Sort along the first axis by comparing neighbours, whole arrays at a time: there is nothing to be laid out anew."""
    ordered = list(values)
    for turn in range(len(ordered)):
        for i in range(turn % 2, len(ordered) - 1, 2):
            ordered[i], ordered[i + 1] = np.minimum(*ordered[i : i + 2]), np.maximum(*ordered[i : i + 2])
    return ordered


def _pick(ordered: Floats, at: NDArray[np.int64]) -> Floats:
    """Take one value of each lane, the same of all where one place is given; `take_along_axis` costs three times as much."""
    if not at.ndim and ordered.ndim > 1:
        return ordered[..., int(at)].copy()
    lanes = ordered.reshape(math.prod(ordered.shape[:-1]), ordered.shape[-1])
    found: Floats = lanes[np.arange(len(lanes)), at.ravel()].reshape(ordered.shape[:-1])
    return found
