"""Medians over so few values that the ordinary one says the wrong thing."""

import numpy as np

from diagnose.model.trace import Seconds

#: From median absolute deviation to standard deviation of a normal distribution.
MAD_TO_SIGMA = 1.4826
#: Nothing is faster than its peers by more: logarithms of ratios stay finite where durations of 0 are recorded.
TINY_RATIO = 1e-9


def lower_median(values: Seconds, *, axis: int) -> Seconds:
    """Take the median, of an even number the lower of the two: with two ranks the faster one is the reference."""
    ordered = np.sort(values, axis=axis)  # NaN last
    count = np.sum(~np.isnan(values), axis=axis)
    at = np.expand_dims(np.maximum(count - 1, 0) // 2, axis)
    found: Seconds = np.take_along_axis(ordered, at, axis=axis).squeeze(axis)
    return found


def nearest_zero_center(values: Seconds, *, axis: int) -> Seconds:
    """Take the median; of two values the one nearer to zero, of one that one."""
    if values.shape[axis] != 2:
        found: Seconds = np.nanmedian(values, axis=axis)
        return found
    first, second = np.take(values, 0, axis=axis), np.take(values, 1, axis=axis)
    same_side = np.sign(first) == np.sign(second)
    nearer = np.where(np.abs(first) < np.abs(second), first, second)
    nearer = np.where(np.isnan(first), second, np.where(np.isnan(second), first, nearer))
    return np.where(same_side | np.isnan(first) | np.isnan(second), nearer, 0.0)
