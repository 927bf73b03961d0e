"""How probable it is that events lie together in one place, or in one part of the time, by chance: bursts count once.

Enters: counts of events and of what they could hit, in time. Leaves: probabilities.
"""

import math

import numpy as np
from numpy.typing import NDArray

Counts = NDArray[np.int64]
Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]

#: Something else is as probable as the cause that is named: a shade less, so that the cause stays first.
TOSS_UP = 0.495
#: What comes in bursts differs from one span of time to the next; so many spans at least tell.
MIN_SPANS = 6
#: Fewer lengths have no spread that says anything; keeps a division by none finite.
MIN_EACH, TINY = 5, 1e-12
#: Events before those that come more and more: this part of all.
STRAY_SHARE = 0.02
#: Less than this part of a compute is its ordinary variation; nearly all that stand out are longer than this quantile of them.
LEAST_PART, SHORTEST = 0.1, 0.05
#: Far shorter ones than those that half of all seconds are in, by this part of them, are no stops of the same kind.
ALIKE_SHARE = 0.1
#: By the clock forwards are stopped as often as backwards; by chance, at least this part of it.
LEAST_FORWARD = 1.0 / 3.0
#: Terms of a continued fraction: it has converged when one changes less than what a float can tell.
MAX_TERMS, EPSILON = 100_000, 1e-15


def chance_of_excess(found: Counts, tried: Counts, found_elsewhere: Counts, tried_elsewhere: Counts) -> float:
    """Say how probable it is that so large a part of all events lies in one place, were they at home nowhere.

    Parameters
    ----------
    found, tried, found_elsewhere, tried_elsewhere : ndarray of int64, shape (n_steps,)
        Events in the place and what they could hit there, and the same elsewhere; in time.

    Returns
    -------
    float
        0..1: a binomial tail of bursts, whose size is how far the number of events in the place varies over time by more than
        counting: what strikes others many at a time makes events that come one by one no fewer.
    """
    n_here, n = float(tried.sum()), float(tried.sum() + tried_elsewhere.sum())
    size = measure_bursts(found)
    bursts, all_bursts = float(found.sum()) / size, float(found.sum() + found_elsewhere.sum()) / size
    if bursts <= 0 or n_here >= n:
        return 1.0
    return chance_of_many(bursts, all_bursts, n_here / n)


def chance_of_many(found: float, n: float, probability: float) -> float:
    """Say how probable at least so many of n are, each with some probability; numbers need not be whole.

    >>> round(chance_of_many(3, 3, 0.5), 3)
    0.125
    """
    return incomplete_beta(found, n - found + 1.0, probability) if found > 0 else 1.0


def incomplete_beta(a: float, b: float, x: float) -> float:
    """Give the regularized incomplete beta function: scipy has it, too, but to import that costs a quarter of a small job.

    Parameters
    ----------
    a, b : float
        Above 0.
    x : float
        0..1.

    >>> round(incomplete_beta(2.5, 4.0, 0.3), 12)
    0.352197585907

    Source: DLMF 8.17.22, its continued fraction from the front: A_n and B_n by their recurrence, scaled so that B_n is 1.
    """
    if not 0.0 < x < 1.0:
        return float(x >= 1.0)
    if x > (a + 1.0) / (a + b + 2.0):  # there the other tail converges fast
        return 1.0 - incomplete_beta(b, a, 1.0 - x)
    front = math.exp(math.lgamma(a + b) - math.lgamma(a) - math.lgamma(b) + a * math.log(x) + b * math.log1p(-x)) / a
    before, now = (1.0, 0.0), (1.0, 1.0)
    for term in range(1, MAX_TERMS):
        half = term // 2
        if term % 2:
            part = -(a + half) * (a + b + half) * x / ((a + 2 * half) * (a + 2 * half + 1.0))
        else:
            part = half * (b - half) * x / ((a + 2 * half - 1.0) * (a + 2 * half))
        above, below = now[0] + part * before[0], now[1] + part * before[1]
        before, now = (now[0] / below, now[1] / below), (above / below, 1.0)
        if abs(now[0] * before[1] - before[0]) <= EPSILON * abs(before[0]):
            break
    return front / now[0]


def chance_of_growth(found: Counts, tried: Counts) -> float:
    """Say how probable it is that events get so much more frequent to the end, were they as frequent since the first of them.

    Each third of the time since then must have more than the one before; shape of both (n_steps,), in time. A few stray ones, up
    to `STRAY_SHARE` of all, come before the first.
    """
    if not found.any():
        return 1.0
    first = int(np.searchsorted(np.cumsum(found), max(STRAY_SHARE * found.sum(), 1.0)))
    found, tried = found[first:], tried[first:]
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


def divergence(share: float, expected: float) -> float:
    """Give how little probable a share is where another is expected: nats a value (Kullback-Leibler); 0 where it is smaller."""
    if share <= expected:
        return 0.0
    left = (1.0 - share) * np.log((1.0 - share) / (1.0 - expected)) if share < 1.0 else 0.0
    return float(share * np.log(share / expected) + left)


def _least_alike(seconds: Floats) -> float:
    """Give the length from which on stops are of the kind that takes most of all seconds; 0 of none."""
    ordered = np.sort(seconds)[::-1]
    return float(ALIKE_SHARE * ordered[int((2.0 * ordered.cumsum() < ordered.sum()).sum())]) if len(ordered) else 0.0


def weigh_part_against_length(at: Bools, part: Floats, seconds: Floats) -> float:
    """Give the log odds that what lengthens forwards and backwards takes the same part of both, and not the same seconds.

    By medians of logs, as of lengths that are lognormal; of those that stand out in both directions, each by its own measure. All
    have directions as their first axis, forwards first; `at` marks what is lengthened. 0 where fewer than five of either are. In
    each direction those count that are not far shorter than those with most of its seconds: beside a few long stops any number of
    computes may be a little longer.
    """
    at = at & (part > LEAST_PART)
    at = np.concatenate(
        [at[d] & (seconds[d] >= _least_alike(seconds[d][at[d]])) for d in (slice(0, 1), slice(1, None))]
    )
    apart, variance = [], []
    for of_all in (part, seconds):
        each = [of_all[0][at[0]], of_all[1:][at[1:]]]
        if min(map(len, each)) < MIN_EACH:
            return 0.0
        shortest = max(float(np.quantile(of, SHORTEST)) for of in each)
        longer = [of[of >= shortest] for of in each]
        # Where hardly any of one direction are as long as those of the other they are far apart, and nothing was out of sight.
        forward, backward = map(np.log, longer if min(map(len, longer)) >= MIN_EACH else each)
        apart.append(float(np.median(backward) - np.median(forward)))
        variance.append(float(sum(np.var(of) / len(of) for of in (forward, backward))))
    return (apart[1] ** 2 - apart[0] ** 2) / (2.0 * max(*variance, TINY))


def weigh_time_against_count(at: Bools, stopped_s: Floats, work_s: Floats) -> float:
    """Give the log odds that stops come by the clock, as those of a whole process, and not with every so many-th compute.

    By the clock directions are stopped for as long as their work takes, of an allocator each compute has its part. All have
    directions as their first axis, forwards first; `at` marks the computes of one worker or more, `work_s` is 0 where there is
    none. A host stops all of its processes at once: of several workers each stop counts for one of as many. Where forwards hardly
    stop at all neither explains it: 0.
    """
    n_workers = int(at.any(axis=(0, 2, 3)).sum())
    lost_s = np.where(at, stopped_s, 0.0)
    if not n_workers or not lost_s.any():
        return 0.0
    n = float(lost_s.sum() ** 2 / (lost_s**2).sum()) / n_workers
    back, by_time, by_count = (
        float(of[1:].sum() / of.sum()) for of in (lost_s, np.where(at, work_s, 0.0), at & (work_s > 0))
    )
    if not (0.0 < by_time < 1.0 and 0.0 < by_count < 1.0):
        return 0.0
    if (1.0 - back) / (1.0 - by_time) < LEAST_FORWARD * back / by_time:
        return 0.0
    return n * (back * math.log(by_time / by_count) + (1.0 - back) * math.log((1.0 - by_time) / (1.0 - by_count)))
