"""A long series as pieces: levels and ramps, as many as the noise justifies.

Enters: positive values in time, of any unit, up to millions of them. Leaves: pieces that follow each other without a gap.

Three steps. Medians of neighbours are fitted with levels, whatever number costs least. Levels that noise explains are taken away:
the noise of means of neighbours counts, so that what drifts makes no level, and a few slow values in a row are none where slow
values are frequent anyway. Levels that climb, or fall, one after the other become a ramp where that fits better.

Source of the fit: Jackson et al., An algorithm for optimal partitioning of data on an interval, 2005. Source of the test of short
levels: Karlin and Altschul, Methods for assessing the statistical significance of molecular sequence features, 1990.
"""

import dataclasses
import itertools
import math
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from diagnose.numerics.chance import divergence
from diagnose.numerics.robust import Floats, noise_of_differences

#: Values that levels are fitted to at most: medians of neighbours in a longer series. The fit takes their square.
MAX_BINS = 1500
#: A level lasts at least so many values.
MIN_LEVEL = 3
#: Neighbours of which the median is taken: a lone slow step is no level.
WINDOW = 5
#: Each change costs so many times the noise's variance and the logarithm of the number of values: the 2 of BIC, one more for the
#: search over all positions, and one as a series of thousands of values has room for more changes by chance.
LEVEL_PENALTY = 4.0
#: Noise below this part of a value is that of rounding to a tenth of a millisecond in a step of 50 ms.
LEAST_NOISE_RATIO = 2e-3
#: A reading of a clock is off by its step at most, which is so many times its standard deviation.
DEAD_DEVIATIONS = 1.75
#: Neighbouring levels differ by so many standard deviations of their means; a long series has room for more by chance.
DEVIATIONS = 6.0
#: Values further than this from the levels they are compared with count as this far: one extreme step makes no level.
CLIP_DEVIATIONS = 3.0
#: Numbers of neighbours whose means are compared to see noise that lasts, and how many such means there must be.
LASTING = (2, 4, 8, 16)
MIN_BLOCKS = 32
#: Beyond these quantiles single slow values lie, which say nothing of how long noise lasts.
LASTING_QUANTILES = (0.1, 0.9)
#: The part of the differences that is taken for the noise of means: more than half may be changes of level. And this quantile of
#: the absolute value of a normal distribution.
LOW_QUANTILE, LOW_SIGMA = 0.3, 0.3853
#: Differences beyond this quantile count as much as this quantile.
BOUNDED = 0.95
#: Levels of fewer values than this may be a few slow values in a row.
SHORT_LEVEL = 64
#: What readings of a clock may add to means that show how frequent slow values are: half of the least ratio.
CALM = 0.01
#: A change of level is moved by so many values where they are read off a clock.
CLOCK_REACH = 30
#: How probable a short level may be by chance, in the whole series.
CHANCE = 0.01
#: A ramp takes at least so many values, else it is a change of level.
MIN_RAMP = 8
#: What is off it by so many standard deviations of the noise, and by this part of how values differ, is up and down, and no ramp.
RAMP_DEVIATIONS, UNEXPLAINED_SHARE = 3.0, 0.5
#: A flat end, which is one of noise as a rule, belongs to a ramp where it is shorter than this part of it.
FLAT_SHARE = 0.05
#: The slope of a short series is sure from so many standard errors on: noise that lasts has them too small.
LINE_DEVIATIONS = 12.0
#: Positions that a ramp is tried to begin and to end at.
RAMP_GRID = 32


class Piece(NamedTuple):
    """Values that are on one level, or climb or fall evenly: a slice of the series, and the value at its two ends."""

    start: int
    end: int
    first: float
    last: float

    @property
    def is_ramp(self) -> bool:
        """True where the two ends differ."""
        return self.first != self.last

    def values(self) -> Floats:
        """Give the values of the piece, shape (end - start,)."""
        return np.linspace(self.first, self.last, self.end - self.start)


def fit_pieces(
    series: Floats, *, least_ratio: float, noise: float = LEAST_NOISE_RATIO, clock: float = 0.0
) -> list[Piece]:
    """Fit levels and ramps to a long series.

    Parameters
    ----------
    series : ndarray of float64, shape (n,)
        Positive, any unit.
    least_ratio : float
        Medians of neighbouring levels, and ends of a ramp, differ by at least this factor.
    noise : float
        A part of a value that it may be wrong by, at least.
    clock : float
        The part of it that is due to readings of a clock, each of which ends one value and begins the next: in the mean of
        several only the first and the last count. A standard deviation.

    Returns
    -------
    list of Piece
        From 0 to n. The value of a level is the median of its values.
    """
    n = len(series)
    if n == 0:
        return []
    bins = _Bins.of(series, noise, clock)
    bounds = bins.fit()
    if bins.n_calm > 1:  # weak changes show in means only, which leave little of the clock
        bounds = _join_bounds(bounds, _fit_calm(bins), bins.n_calm)
    bounds = bins.prune(bounds)
    if len(bounds) == 2 and MIN_RAMP <= n < SHORT_LEVEL and (line := _fit_line(series, least_ratio)) is not None:
        return [line]
    ramps = _find_ramps(bins, bounds, least_ratio)
    return _place(series, bins, bounds, ramps, least_ratio)


def _fit_calm(bins: "_Bins") -> list[int]:
    """Give where levels begin that means of neighbours show, in which the readings of a clock cancel."""
    size = bins.n_calm
    n = len(bins.raw) // size
    if n < 2 * MIN_LEVEL:
        return [0, len(bins.raw)]
    means = np.exp(bins.raw[: n * size].reshape(n, size).mean(axis=1))
    calm = _Bins.of(means, LEAST_NOISE_RATIO, bins.clock / size)
    return [0, *(at * size for at in calm.prune(calm.fit())[1:-1]), len(bins.raw)]


def _join_bounds(bounds: list[int], others: list[int], near: int) -> list[int]:
    """Add the changes of level that no other one is near to."""
    added = [at for at in others if min(abs(at - bound) for bound in bounds) > max(near, MIN_LEVEL)]
    return sorted([*bounds, *added])


def lasting_noise(series: Floats, clock: float = 0.0) -> float:
    """Estimate the standard deviation of a series as its means over some values show it: noise that lasts counts more.

    Means over m values of independent noise scatter by the root of m less; those of noise that lasts do not. The largest of what
    several m show is given, and changes of level count for little. What readings of a `clock` add is taken out.
    """
    found = _without_clock(_noise_of(series, clock), clock, 1)
    for size in LASTING:
        n = len(series) // size
        if n < MIN_BLOCKS:
            break
        apart = np.diff(series[: n * size].reshape(n, size).mean(axis=1))
        scatter = np.quantile(np.abs(apart - np.median(apart)), LOW_QUANTILE) / LOW_SIGMA / np.sqrt(2.0)
        if clock:
            scatter = min(scatter, _bounded_deviation(apart))
        found = max(found, _without_clock(float(scatter * np.sqrt(size)), clock, size))
    return found


def noise_of_means(series: Floats, size: NDArray[np.int64], noise: float, clock: float) -> Floats:
    """Estimate the standard deviation of means of so many neighbours of a series, in which readings of a `clock` cancel."""
    own = _without_clock(max(_noise_of(series, clock), noise), clock, 1)
    return np.asarray(np.hypot(own / np.sqrt(size), clock / size))


def _noise_of(series: Floats, clock: float) -> float:
    """Estimate the noise of single values; a coarse clock shows few different ones, whose median difference may be any of these."""
    noise = float(noise_of_differences(series))
    return min(noise, _bounded_deviation(np.diff(series))) if clock and len(series) > 1 else noise


def _bounded_deviation(apart: Floats) -> float:
    """Give the standard deviation that differences show, the largest of them bounded: those are changes of level."""
    bound = float(np.quantile(np.abs(apart), BOUNDED))
    return float(np.sqrt(np.mean(np.clip(apart, -bound, bound) ** 2) / 2.0))


def _without_clock(sigma: float, clock: float, size: int) -> float:
    """Take out of a deviation, as differences of means over so many values show it, what readings of a clock add.

    The difference has the reading between the two means twice, so that their squares are 3 in place of the 2 of independent ones.
    """
    return math.sqrt(max(sigma**2 - 1.5 * clock**2 / size, 0.0))


@dataclasses.dataclass(frozen=True, slots=True)
class _Bins:
    """Logarithms of medians of neighbours, shape (n_bins,), smoothed and as they are; values in each, and their noise."""

    width: int
    n_values: int
    smooth: Floats
    raw: Floats
    sigma: float
    lasting: float
    #: Residuals below this say nothing: times are read off a coarse clock.
    dead: float
    #: What readings of a clock add to `sigma`; `calm` are means of so many neighbours that little of it is left.
    clock: float
    calm: Floats
    n_calm: int

    @classmethod
    def of(cls, series: Floats, noise: float = LEAST_NOISE_RATIO, clock: float = 0.0) -> "_Bins":
        """Take the medians of neighbours."""
        logs = np.log(series)
        width = -(-len(logs) // MAX_BINS)
        smooth, raw = (_take_medians(values, width) for values in (_smooth(logs), logs))
        clock = clock if clock > LEAST_NOISE_RATIO else 0.0
        white = max(_noise_of(logs, clock), noise) / float(np.sqrt(width))
        low, high = np.quantile(raw, LASTING_QUANTILES)
        bounded = np.clip(raw, low - CLIP_DEVIATIONS * white, high + CLIP_DEVIATIONS * white)
        dead = DEAD_DEVIATIONS * noise if noise > LEAST_NOISE_RATIO else 0.0
        clock /= width
        least = white if not clock else max(_without_clock(white, clock, 1), LEAST_NOISE_RATIO)
        lasting = max(least, lasting_noise(bounded, clock))
        n_calm = min(max(1, math.ceil(clock / CALM)), len(raw))
        padded = np.pad(raw, n_calm // 2, mode="edge")
        calm = np.convolve(padded, np.full(n_calm, 1.0 / n_calm), mode="valid")[: len(raw)]
        return cls(width, len(logs), smooth, raw, white, lasting, dead, clock, calm if n_calm > 1 else raw, n_calm)

    def to_value(self, at: int) -> int:
        """Give the first value of a bin."""
        return min(at * self.width, self.n_values)

    def fit(self) -> list[int]:
        """Fit levels to the smoothed bins, as many as cost least: where each begins, and the number of bins."""
        n = len(self.smooth)
        if n < 2 * MIN_LEVEL:
            return [0, n]
        values = self.smooth - self.smooth.mean()
        penalty = LEVEL_PENALTY * self.sigma**2 * np.log(n)
        summed, squared = (np.concatenate([[0.0], np.cumsum(part)]) for part in (values, values**2))
        cost, before = np.full(n + 1, np.inf), np.zeros(n + 1, dtype=np.int64)
        cost[0] = -penalty
        position = np.arange(n + 1)
        for end in range(MIN_LEVEL, n + 1):
            start = slice(0, end - MIN_LEVEL + 1)
            within = squared[end] - squared[start] - (summed[end] - summed[start]) ** 2 / (end - position[start])
            whole = cost[start] + within + penalty
            best = int(np.argmin(whole))
            cost[end], before[end] = whole[best], best
        bounds = [n]
        while bounds[-1] > 0:
            bounds.append(int(before[bounds[-1]]))
        return bounds[::-1]

    def prune(self, bounds: list[int]) -> list[int]:
        """Take away changes, the least first, until noise explains none of them."""
        bounds = list(bounds)
        scores = [self._score(bounds, i) for i in range(1, len(bounds) - 1)]
        while scores:
            least = int(np.argmin(scores))
            if scores[least] >= 1.0:
                at = self._find_by_chance(bounds)
                if at is None:
                    break
                least = at - 1
            del bounds[least + 1], scores[least]
            for i in (least, least + 1):
                if 1 <= i < len(bounds) - 1:
                    scores[i - 1] = self._score(bounds, i)
        return bounds

    def _score(self, bounds: list[int], i: int) -> float:
        """Say how surely two neighbouring levels differ: from 1 on they do."""
        a, b = self.raw[bounds[i - 1] : bounds[i]], self.raw[bounds[i] : bounds[i + 1]]
        low, high = sorted((float(np.median(a)), float(np.median(b))))
        slack = CLIP_DEVIATIONS * self.sigma
        a, b = (np.clip(values, low - slack, high + slack) for values in (a, b))
        apart = np.concatenate([np.diff(a), np.diff(b)])
        mixed = float(np.sqrt(np.mean(apart**2) / 2.0)) if len(apart) else 0.0
        own = max(self.lasting, _without_clock(mixed, self.clock, 1))
        own *= math.sqrt(1.0 / len(a) + 1.0 / len(b))
        noise = math.hypot(own, self.clock * math.sqrt(_of_readings(len(a), len(b))))
        return abs(float(a.mean() - b.mean())) / (noise * DEVIATIONS)

    def _find_by_chance(self, bounds: list[int]) -> int | None:
        """Find a short level that is a few slow values in a row, as frequent ones make by chance: the change to take away."""
        for i in range(len(bounds) - 1):
            start, end = bounds[i], bounds[i + 1]
            around = [at for at in (i, i + 1) if 0 < at < len(bounds) - 1]
            if end - start >= SHORT_LEVEL or not around:
                continue
            level = float(np.median(self.raw[start:end]))
            beside = {at: float(np.median(self._beside(self.raw, bounds, i, at))) for at in around}
            if len(around) == 2 and (beside[i] > level) != (beside[i + 1] > level):
                continue  # between the two beside it, as on a ramp
            nearest = min(around, key=lambda at: abs(beside[at] - level))
            middle, sign = (level + beside[nearest]) / 2.0, 1.0 if level > beside[nearest] else -1.0
            if len(around) == 1 and 0 <= (beyond := i + 2 if i == 0 else i - 2) < len(bounds) - 1:
                there = self.raw[bounds[beyond] : bounds[beyond + 1]]
                is_longer = len(there) > len(self._beside(self.raw, bounds, i, nearest))
                if is_longer and sign * (float(np.median(there)) - middle) > 0:
                    continue  # it goes on behind the one beside it, which is asked itself
            # Single values show short levels, means of neighbours weak ones.
            for size, values in {1: self.raw, self.n_calm: self.calm}.items():
                outside = np.concatenate([self._beside(values, bounds, i, at) for at in around])
                inside = float(np.mean(sign * (values[start:end] - middle) > 0))
                frequent = (float(np.count_nonzero(sign * (outside - middle) > 0)) + 0.5) / (len(outside) + 1)
                least = 2.0 * np.log(len(values) / size) - np.log(CHANCE)
                if (end - start) / size * divergence(inside, frequent) >= least:
                    break
            else:
                return nearest
        return None

    @staticmethod
    def _beside(values: Floats, bounds: list[int], i: int, at: int) -> Floats:
        """Give the bins of the level on the other side of a change of level `i`."""
        return values[bounds[at - 1] : bounds[at]] if at == i else values[bounds[at] : bounds[at + 1]]


def _of_readings(n_before: int, n_after: int) -> float:
    """Give the variance of the difference of two means one after the other, over that of a value between two readings.

    >>> _of_readings(1, 1)
    3.0
    """
    a, b = 1.0 / n_before, 1.0 / n_after
    return (a**2 + (a + b) ** 2 + b**2) / 2.0


def find_crowds(hits: NDArray[np.bool_]) -> list[tuple[int, int]]:
    """Find where hits stand so close that their frequency elsewhere does not explain it: slices of the series.

    >>> hits = np.zeros(1000, dtype=bool)
    >>> hits[[50, 300, 301, 302, 303, 304, 305, 306, 700]] = True
    >>> find_crowds(hits)
    [(300, 307)]
    """
    n = len(hits)
    if n < WINDOW or not hits.any():
        return []
    summed = np.concatenate([[0], np.cumsum(hits)])
    dense = np.flatnonzero(summed[WINDOW:] - summed[:-WINDOW] >= WINDOW - 1)
    if not len(dense):
        return []
    parts = np.split(dense, np.flatnonzero(np.diff(dense) > WINDOW) + 1)
    found = []
    for part in parts:
        at = np.flatnonzero(hits[part[0] : part[-1] + WINDOW]) + part[0]
        found.append((int(at[0]), int(at[-1]) + 1))
    n_inside = sum(int(summed[b] - summed[a]) for a, b in found)
    length = sum(b - a for a, b in found)
    frequent = (float(summed[-1]) - n_inside + 0.5) / (n - length + 1)
    least = 2.0 * np.log(n) - np.log(CHANCE)
    return [(a, b) for a, b in found if (b - a) * divergence(float(summed[b] - summed[a]) / (b - a), frequent) >= least]


def _take_medians(values: Floats, width: int) -> Floats:
    """Take the median of every so many values; the last are fewer."""
    if width == 1:
        return values
    n = len(values) // width
    medians = np.median(values[: n * width].reshape(n, width), axis=1)
    return medians if n * width == len(values) else np.append(medians, np.median(values[n * width :]))


def _smooth(values: Floats) -> Floats:
    """Take the median of each value and its neighbours: edges stay."""
    if len(values) < WINDOW:
        return values
    padded = np.pad(values, WINDOW // 2, mode="edge")
    return np.asarray(np.median(np.lib.stride_tricks.sliding_window_view(padded, WINDOW), axis=1))


# ------------------------------------------------------------------------------------------ ramps


def _fit_line(values: Floats, least_ratio: float) -> Piece | None:
    """Fit a line to all of a short series, too short for levels; None where its slope is not sure, or too little.

    >>> _fit_line(np.array([1.0, 1.1, 1.2, 1.28, 1.4, 1.5, 1.6, 1.72]), 1.02) is not None
    True
    """
    n = len(values)
    at = np.arange(n) - (n - 1) / 2.0
    slope = float((at * values).sum() / (at**2).sum())
    first, last = (float(values.mean()) + slope * edge for edge in (at[0], at[-1]))
    rest = values - values.mean() - slope * at
    error = math.sqrt(float((rest**2).sum()) / (n - 2) / float((at**2).sum()))
    if (
        min(first, last) <= 0.0
        or abs(slope) < LINE_DEVIATIONS * error
        or max(first, last) < least_ratio * min(first, last)
    ):
        return None
    return Piece(0, n, first, last)


class _Ramp(NamedTuple):
    """Bins that climb or fall evenly, and the levels that this stands for: positions in the list of bounds."""

    start: int
    end: int
    first: float
    last: float
    left: int
    right: int


def _find_ramps(bins: _Bins, bounds: list[int], least_ratio: float) -> list[_Ramp]:
    """Find levels that climb, or fall, one after the other, and that a ramp fits better."""
    levels = [float(np.median(bins.raw[a:b])) for a, b in itertools.pairwise(bounds)]
    rises = np.sign(np.diff(levels))
    found = []
    left = 0
    while left < len(levels) - 1:
        right = left + 1
        while right < len(levels) - 1 and rises[right] == rises[left]:
            right += 1
        ramp = _fit_ramp(bins, bounds, left, right)
        if ramp is not None and abs(ramp.last - ramp.first) >= np.log(least_ratio):
            found.append(ramp)
        left = right
    return found


def _fit_ramp(bins: _Bins, bounds: list[int], left: int, right: int) -> _Ramp | None:
    """Fit a ramp between two levels to bins; None where levels fit better."""
    first, end = bounds[left], bounds[right + 1]
    n = end - first
    if n < MIN_RAMP + 2:
        return None
    values = np.exp(bins.smooth[first:end])
    parts = [(a - first, b - first) for a, b in itertools.pairwise(bounds[left : right + 2])]
    levels = [float(np.median(values[a:b])) for a, b in parts]
    parts = _part_best(values, parts, levels)
    steps = np.repeat(levels, [b - a for a, b in parts])
    noise = max(bins.lasting, bins.sigma)
    slack = np.exp(CLIP_DEVIATIONS * noise)
    values = np.clip(values, min(levels) / slack, max(levels) * slack)
    if bins.clock:  # medians of whole seconds are whole seconds
        steps = np.repeat([float(values[a:b].mean()) for a, b in parts], [b - a for a, b in parts])
    weight = 1.0 / steps**2  # noise is a part of the value
    penalty = LEVEL_PENALTY * noise**2 * np.log(len(bins.raw))
    # A value that a change lies in is between the two levels: it may be a mean of several steps, or between two readings.
    for at in (a + side for a, _ in parts[1:] for side in (-1, 0)):
        low, high = sorted(steps[max(at - 1, 0) : at + 2][[0, -1]])
        steps[at] = np.clip(values[at], low, high)
    best = _cost(values, steps, weight, bins.dead) + (right - left) * penalty
    span = (0, n)
    found = None
    step = max(1, n // RAMP_GRID)
    grid = (np.arange(0, n, step), np.append(np.arange(step, n, step), n))
    for _ in range(3):  # around the best again, more finely
        cost, a, b, low, high = _try_ramps(values, weight, *grid)
        if bins.dead:
            ramp = np.interp(np.arange(n) + 0.5, (a, b), (low, high))
            cost = _cost(values, ramp, weight, bins.dead)
        if cost + 2 * penalty < best - 1e-12 or (found is not None and cost + 2 * penalty <= best):
            best, found, span = cost + 2 * penalty, (low, high), (a, b)
        step = max(1, step // 4)
        near = np.arange(-4, 5) * step
        grid = (np.unique(np.clip(a + near, 0, n - 1)), np.unique(np.clip(b + near, 1, n)))
    if found is None:
        return None
    of_ramp = np.interp(np.arange(*span) + 0.5, span, found)
    apart = values[slice(*span)] / of_ramp - 1.0
    around = values[slice(*span)] / values[slice(*span)].mean() - 1.0
    if float((apart**2).mean()) > max((RAMP_DEVIATIONS * noise) ** 2, UNEXPLAINED_SHARE * float((around**2).mean())):
        return None
    a = 0 if span[0] < MIN_RAMP else span[0]
    b = n if n - span[1] < max(MIN_RAMP, FLAT_SHARE * n) else span[1]
    slope = (found[1] - found[0]) / (span[1] - span[0])
    low, high = found[0] - slope * (span[0] - a), found[1] + slope * (b - span[1])
    if a and not bins.dead:  # from the first value on, unless a flat begin is worth what the BIC asks for its place
        cost, _, end, *ends = _try_ramps(values, weight, np.array([0]), grid[1])
        if cost + 2 * penalty <= best + penalty / LEVEL_PENALTY:
            a, b, (low, high) = 0, end, ends
    return _Ramp(
        first + a, first + b, float(np.log(max(low, found[0] / 2))), float(np.log(max(high, found[1] / 2))), left, right
    )


def _part_best(values: Floats, parts: list[tuple[int, int]], levels: list[float]) -> list[tuple[int, int]]:
    """Move each change, by the reach of smoothing at most, to where it parts its two levels best."""
    at = [0, *(a for a, _ in parts[1:]), parts[-1][1]]
    for i in range(1, len(at) - 1):
        low, high = max(at[i - 1] + 1, at[i] - WINDOW), min(at[i + 1] - 1, at[i] + WINDOW)
        near = values[low:high]
        gained = np.cumsum((near - levels[i - 1]) ** 2 - (near - levels[i]) ** 2)
        at[i] = low + int(np.argmin(np.concatenate([[0.0], gained])))
    return list(itertools.pairwise(at))


def _cost(values: Floats, fitted: Floats, weight: Floats, dead: float) -> float:
    """Add up squared residuals, as parts of the level; what is below `dead` is nothing."""
    apart = np.maximum(np.sqrt(weight) * np.abs(values - fitted) - dead, 0.0)
    return float((apart**2).sum())


def _try_ramps(
    values: Floats, weight: Floats, begins: NDArray[np.int64], ends: NDArray[np.int64]
) -> tuple[float, int, int, float, float]:
    """Fit ramps from each begin to each end by least squares: cost, begin, end and the two levels of the best."""
    a, b = (grid.ravel() for grid in np.meshgrid(begins, ends, indexing="ij"))
    wide = b - a >= MIN_RAMP
    if not wide.any():
        return np.inf, 0, len(values), 1.0, 1.0
    a, b = a[wide], b[wide]
    at = np.arange(len(values)) + 0.5
    part = np.clip((at - a[:, None]) / (b - a)[:, None], 0.0, 1.0)
    rest = 1.0 - part
    ll, lh, hh = ((weight * x * y).sum(axis=1) for x, y in ((rest, rest), (rest, part), (part, part)))
    lv, hv = ((weight * x * values).sum(axis=1) for x in (rest, part))
    det = np.maximum(ll * hh - lh**2, 1e-300)
    low, high = (lv * hh - hv * lh) / det, (hv * ll - lv * lh) / det
    cost = (weight * (values - low[:, None] * rest - high[:, None] * part) ** 2).sum(axis=1)
    cost = np.where((low > 0) & (high > 0), cost, np.inf)
    i = int(np.argmin(cost))
    return float(cost[i]), int(a[i]), int(b[i]), float(low[i]), float(high[i])


# ------------------------------------------------------------------------------------------ back to values


def _place(series: Floats, bins: _Bins, bounds: list[int], ramps: list[_Ramp], least_ratio: float) -> list[Piece]:
    """Place pieces at values: changes of level where they part the values best, ramps as they were fitted."""
    inner = {at for ramp in ramps for at in range(ramp.left + 1, ramp.right + 1)}
    edges = [(bins.to_value(bound), i in inner) for i, bound in enumerate(bounds)]
    plain = [at for at, within in edges if not within]
    fixed = {bins.to_value(at) for ramp in ramps for at in (ramp.start, ramp.end)} | {0, len(series)}
    spans = [(bins.to_value(ramp.start), bins.to_value(ramp.end)) for ramp in ramps]
    plain = [at for at in plain if not any(a < at < b for a, b in spans)]
    at = sorted({*plain, *fixed})
    reach = CLOCK_REACH if bins.clock else 2 * bins.width + WINDOW
    for i in range(1, len(at) - 1):
        if at[i] not in fixed:
            at[i] = _place_at_value(series, at[i - 1], at[i], at[i + 1], reach, bins.clock)
    at = _join_alike(series, at, {a for a, _ in spans} | {b for _, b in spans}, least_ratio)
    ends = {
        span: (float(np.exp(ramp.first)), float(np.exp(ramp.last))) for span, ramp in zip(spans, ramps, strict=True)
    }
    pieces = []
    for a, b in itertools.pairwise(at):
        level = float(np.median(series[a:b])) if (a, b) not in ends else 0.0
        pieces.append(Piece(a, b, *ends.get((a, b), (level, level))))
    return pieces


def _place_at_value(series: Floats, low: int, at: int, high: int, reach: int, clock: float) -> int:
    """Move a change to the value that parts the two levels best.

    By absolute deviations; of readings of a clock by sums of the values, in which all readings but the first and the last cancel.
    """
    before, after = float(np.median(series[low:at])), float(np.median(series[at:high]))
    first, last = max(low + 1, at - reach), min(high - 1, at + reach)
    if clock:
        slack = 1.0 + CLIP_DEVIATIONS * clock
        near = np.clip(series[first:last], min(before, after) / slack, max(before, after) * slack)
        gained = np.r_[0.0, np.cumsum(np.sign(after - before) * (near - (before + after) / 2.0))]
        return first + int(np.argmin(gained)) if last > first else at
    near = np.clip(series[first:last], min(before, after), max(before, after))
    # Cost of parting before each value: those left of it against the level before, the others against that after.
    left = np.r_[0.0, np.cumsum(np.abs(near - before))]
    right = np.r_[0.0, np.cumsum(np.abs(near - after))]
    return first + int(np.argmin(left + right[-1] - right)) if last > first else at


def _join_alike(series: Floats, bounds: list[int], kept: set[int], least_ratio: float) -> list[int]:
    """Take away changes, the least first, until medians of neighbours differ by the least ratio; ends of ramps are kept."""
    bounds = list(bounds)
    while len(bounds) > 2:
        levels = np.array([np.median(series[a:b]) for a, b in itertools.pairwise(bounds)])
        apart = np.abs(np.diff(np.log(levels)))
        apart[[i for i, bound in enumerate(bounds[1:-1]) if bound in kept]] = np.inf
        least = int(np.argmin(apart))
        if apart[least] >= np.log(least_ratio):
            break
        del bounds[least + 1]
    return bounds
