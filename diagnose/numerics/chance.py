"""How probable it is that events lie together in one place, or in one part of the time, by chance: bursts count once.

Enters: counts of events and of what they could hit, in time. Leaves: probabilities.
"""

import numpy as np
from numpy.typing import NDArray

Counts = NDArray[np.int64]

#: What comes in bursts differs from one span of time to the next; so many spans at least tell.
MIN_SPANS = 6


def chance_of_excess(found: Counts, tried: Counts, found_elsewhere: Counts, tried_elsewhere: Counts) -> float:
    """Say how probable it is that so large a part of all events lies in one place, were they at home nowhere.

    Parameters
    ----------
    found, tried, found_elsewhere, tried_elsewhere : ndarray of int64, shape (n_steps,)
        Events in the place and what they could hit there, and the same elsewhere; in time.

    Returns
    -------
    float
        0..1: a binomial tail of bursts, whose size is how far the number of events varies over time by more than counting.
    """
    n_here, n = float(tried.sum()), float(tried.sum() + tried_elsewhere.sum())
    size = max(measure_bursts(found), measure_bursts(found_elsewhere))
    bursts, all_bursts = float(found.sum()) / size, float(found.sum() + found_elsewhere.sum()) / size
    if bursts <= 0 or n_here >= n:
        return 1.0
    return chance_of_many(bursts, all_bursts, n_here / n)


def chance_of_many(found: float, n: float, probability: float) -> float:
    """Say how probable at least so many of n are, each with some probability; numbers need not be whole.

    >>> round(chance_of_many(3, 3, 0.5), 3)
    0.125
    """
    from scipy.special import betainc

    return float(betainc(found, n - found + 1.0, probability)) if found > 0 else 1.0


def chance_of_growth(found: Counts, tried: Counts) -> float:
    """Say how probable it is that events get so much more frequent to the end, were they as frequent since the first of them.

    Each third of the time since then must have more than the one before; shape of both (n_steps,), in time.
    """
    if not found.any():
        return 1.0
    found, tried = (counts[int(np.flatnonzero(found)[0]) :] for counts in (found, tried))
    early, middle, late = np.array_split(np.arange(len(found)), 3)
    rates = [found[part].sum() / max(tried[part].sum(), 1) for part in (early, middle, late)]
    if not rates[0] < rates[1] < rates[2]:
        return 1.0
    before = np.concatenate([early, middle])
    return chance_of_excess(found[late], tried[late], found[before], tried[before])


def measure_bursts(found: Counts) -> float:
    """Say how many events come together, at least 1; shape (n_steps,), in time.

    >>> round(measure_bursts(np.array([0, 0, 0, 0, 8, 8, 0, 0, 0, 0, 0, 0])), 1)
    19.2
    """
    size, length = 1.0, 1
    while (n_spans := len(found) // length) >= min(MIN_SPANS, len(found)) and n_spans > 1:
        count = found[: n_spans * length].reshape(n_spans, length).sum(axis=1).astype(np.float64)
        # Neighbours, as a rate that grows is no burst; the variance of what counts alone scatter is their mean.
        if count.any():
            size = max(size, float((np.diff(count) ** 2).mean()) / 2.0 / float(count.mean()))
        length *= 2
    return size
