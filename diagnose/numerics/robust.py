"""Medians, quantiles and spreads that a few wild values do not move.

Enters: arrays of float64, of any unit, NaN where nothing was measured. Leaves: arrays without the axes asked for.
"""

import math
import warnings
from typing import Any

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]

#: From the median absolute deviation to the standard deviation of a normal distribution: 1 / its 0.75 quantile.
MAD_TO_SIGMA = 1.4826
#: Lanes of more values than this are left to numpy, which takes them one by one and need not sort them. Of 7.5 million values in
#: lanes of 32 to 100, sorting takes 0.2 s and numpy 2 s (median) or 13 to 30 s (quantile); in 100 lanes 1.8 s and 0.5 s.
LONG_LANE = 2000
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
    ordered, count = _order(values, (axis,))
    return _pick(ordered, np.maximum(count - 1, 0) // 2)


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
    """Take medians as `numpy.median` does, bit by bit, in half of the time where lanes are short; NaN in lanes with one.

    >>> float(median(np.array([4.0, 1.0, 3.0, 2.0])))
    2.5
    """
    axes = tuple(range(values.ndim)) if axis is None else axis
    n = _length_of_lanes(values, axes)
    if not 0 < n <= LONG_LANE:
        return np.median(values, axis=axis, keepdims=keepdims)
    ordered, count = _order(np.asarray(values, dtype=np.float64), axes)
    found = _middle(ordered, count)
    if count.ndim or count < n:
        found = np.where(count < n, np.nan, found)
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
    if _length_of_lanes(values, axis) > LONG_LANE:
        with warnings.catch_warnings(action="ignore", category=RuntimeWarning):  # about lanes without any value
            return np.nanmedian(values, axis=axis, keepdims=keepdims)
    found = _middle(*_order(values, axis))
    return np.expand_dims(found, axis) if keepdims else found[()]


def nan_quantile(values: Floats, q: float, *, axis: int | tuple[int, ...], keepdims: bool = False) -> Any:
    """Take a quantile, from 0 to 1 and linear between two values, as `nan_median` takes the median: `numpy.nanquantile` bit by bit.

    >>> float(nan_quantile(np.array([4.0, 1.0, 3.0, np.nan, 2.0]), 0.5, axis=0))
    2.5
    """
    if _length_of_lanes(values, axis) > LONG_LANE:
        with warnings.catch_warnings(action="ignore", category=RuntimeWarning):  # about lanes without any value
            return np.nanquantile(values, q, axis=axis, keepdims=keepdims)
    ordered, count = _order(values, axis)
    at = np.maximum(count - 1, 0) * q
    below = np.floor(at).astype(np.int64)
    low, high = _pick(ordered, below), _pick(ordered, np.minimum(below + 1, np.maximum(count - 1, 0)))
    part = at - below
    # From the nearer of the two, as numpy does: then neither rounding nor order of the values moves the result.
    found = np.where(part >= 0.5, high - (high - low) * (1.0 - part), low + (high - low) * part)
    return np.expand_dims(found, axis) if keepdims else found[()]


def _length_of_lanes(values: Floats, axis: int | tuple[int, ...]) -> int:
    """Give the number of values that one result is taken from."""
    return math.prod(values.shape[i] for i in ((axis,) if isinstance(axis, int) else axis))


def _order(values: Floats, axis: int | tuple[int, ...]) -> tuple[Floats, NDArray[np.int64]]:
    """Sort over some axes, made one and put last, NaN at the end; and count the values of each lane, once where none is NaN."""
    axes = [i % values.ndim for i in ((axis,) if isinstance(axis, int) else axis)]
    kept = [i for i in range(values.ndim) if i not in axes]
    n = _length_of_lanes(values, axis)
    ordered = np.sort(values.transpose(*kept, *axes).reshape(*(values.shape[i] for i in kept), n), axis=-1)
    if n and not np.isnan(ordered[..., -1]).any():
        return ordered, np.array(n)
    return ordered, np.asarray(n - np.isnan(ordered).sum(axis=-1))


def _middle(ordered: Floats, count: NDArray[np.int64]) -> Floats:
    """Take the median of each lane."""
    high = _pick(ordered, count // 2)
    if not count.ndim and count % 2:
        return high
    low = _pick(ordered, np.maximum(count - 1, 0) // 2)
    # Of an odd number the middle one is both; their sum could overflow.
    return (low + high) / 2.0 if not count.ndim else np.where(count % 2 == 1, low, (low + high) / 2.0)


def _pick(ordered: Floats, at: NDArray[np.int64]) -> Floats:
    """Take one value of each lane, the same of all where one place is given; `take_along_axis` costs three times as much."""
    if not at.ndim and ordered.ndim > 1:
        return ordered[..., int(at)].copy()
    lanes = ordered.reshape(math.prod(ordered.shape[:-1]), ordered.shape[-1])
    found: Floats = lanes[np.arange(len(lanes)), at.ravel()].reshape(ordered.shape[:-1])
    return found


def quantile(values: Floats, q: float) -> float:
    """Take a quantile of a few numbers, shape (n,), as `numpy.quantile` does, to the bit, in a fraction of the time.

    >>> quantile(np.array([3.0, 1.0, 2.0, 5.0]), 0.5)
    2.5
    """
    ordered = np.sort(values)
    at = q * (len(ordered) - 1)
    below = math.floor(at)
    low, high = float(ordered[below]), float(ordered[min(below + 1, len(ordered) - 1)])
    part = at - below
    return high - (high - low) * (1.0 - part) if part >= 0.5 else low + (high - low) * part
