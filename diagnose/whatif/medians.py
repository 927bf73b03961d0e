"""Medians over so few values that the ordinary one says the wrong thing."""

import numpy as np

from diagnose.model.trace import Seconds
from diagnose.numerics.robust import nan_median

#: Nothing is faster than its peers by more: logarithms of ratios stay finite where durations of 0 are recorded.
TINY_RATIO = 1e-9
#: Standard deviation of a median over that of a mean of as many values.
MEDIAN_ERROR = 1.2533
#: What is shared a third of the values have this part of, too.
SHARED_SHARE = 0.5


def nearest_zero_center(values: Seconds, *, axis: int) -> Seconds:
    """Take the median; of two values the one nearer to zero, of one that one."""
    if values.shape[axis] != 2:
        return np.asarray(nan_median(values, axis=axis))
    first, second = np.take(values, 0, axis=axis), np.take(values, 1, axis=axis)
    same_side = np.sign(first) == np.sign(second)
    nearer = np.where(np.abs(first) < np.abs(second), first, second)
    nearer = np.where(np.isnan(first), second, np.where(np.isnan(second), first, nearer))
    return np.where(same_side | np.isnan(first) | np.isnan(second), nearer, 0.0)


def find_shared(values: Seconds, *, apart: float) -> Seconds:
    """Say what values share: the median, or what a third of them have if that is less than half of it, and less by `apart`.

    They lie along the first axis. Up to two thirds may have more than the others for a reason of their own. Where a third is below
    zero and one above, nothing is shared. NaN are none.
    """
    ordered = np.sort(values, axis=0)  # NaN last
    last = np.maximum((~np.isnan(values)).sum(axis=0, keepdims=True), 1) - 1
    lower, upper = (np.take_along_axis(ordered, at, axis=0)[0] for at in (last // 3, last - last // 3))
    least = np.where(lower > 0.0, lower, np.minimum(upper, 0.0))
    center = nearest_zero_center(values, axis=0)
    is_own = (np.abs(least) < SHARED_SHARE * np.abs(center)) & (np.abs(center - least) > apart)
    return np.asarray(np.where(is_own, least, center))
