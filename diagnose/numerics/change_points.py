"""Since when a series is on another level: how surely it changes, and where.

Enters: series of float64, one value a step, in time. Leaves: positions. A position is the index of the first value after a change.

Which function answers which question (`pieces` has as many levels and ramps as there are):

* `find_rise`: since when is each of many series above zero, if one change says it all? Known noise, one pass for all of them.
* `fit_changes`: one change or two, and how probable is that by chance? For a series with at most a beginning and an end.
"""

import itertools
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from diagnose.numerics.robust import Floats, noise_of_differences

Positions = NDArray[np.int64]


class Split(NamedTuple):
    """A series parted in two at each position: shape of the series, with one less on the last axis."""

    before: Floats
    """Mean before the position."""
    after: Floats
    """Mean from the position on."""
    deviations: Floats
    """Difference of the two, in its standard deviations."""


def split_in_two(series: Floats, sigma: Floats | float) -> Split:
    """Part series in two at each position from 1 on; `sigma` is the standard deviation of single values, one a series."""
    n = series.shape[-1]
    n_before = np.arange(1, n)
    n_after = n - n_before
    summed = np.cumsum(series, axis=-1)
    before = summed[..., :-1] / n_before
    after = (summed[..., -1:] - summed[..., :-1]) / n_after
    scatter = np.asarray(sigma)[..., None] * np.sqrt(1.0 / n_before + 1.0 / n_after)
    return Split(before, after, (after - before) / scatter)


# ------------------------------------------------------------------------------------------ many series, one rise each


class Rise(NamedTuple):
    """What `find_rise` takes for a rise."""

    bound: tuple[float, Floats | float]
    """Values beyond these two count as these: one extreme step makes no level; the upper one broadcastable, too."""
    least_level: Floats | float
    """The mean after the rise is above this, and more than twice that before; broadcastable to the shape of the series."""
    min_after: int
    """The new level lasts at least so many steps."""
    deviations: float
    """The rise is more than this many standard deviations."""


def find_rise(series: Floats, sigma: float, rise: Rise) -> Positions:
    """Find the position from which on each series is on a higher level: the split that is least by chance.

    Parameters
    ----------
    series : ndarray of float64, shape (..., n_steps)
        About 0 before the rise.
    sigma : float
        Standard deviation of single values, of the unit of `series`.
    rise : Rise

    Returns
    -------
    ndarray of int64, shape (...)
        Position of the first step on the new level; n_steps where there is none.
    """
    n = series.shape[-1]
    if n < 2 * rise.min_after or sigma <= 0:
        return np.full(series.shape[:-1], n)
    before, after, deviations = split_in_two(np.clip(series, *rise.bound), sigma)
    n_after = n - np.arange(1, n)
    enough = (n_after >= rise.min_after) & (after > rise.least_level) & (before < after / 2)
    score = np.where(enough, deviations, -np.inf)
    best = score.argmax(axis=-1)
    found = np.take_along_axis(score, best[..., None], axis=-1)[..., 0] > rise.deviations
    return np.asarray(np.where(found, best + 1, n))


# ------------------------------------------------------------------------------------------ one change or two

#: A level of `fit_changes` lasts at least so many steps: one extreme step is no level of its own.
MIN_STEPS = 2
#: Quantiles beyond which values count as these: the lowest and highest steps of a hundred make no level.
BOUND_QUANTILES = (0.02, 0.98)
#: Each change costs so many times the noise's variance and the logarithm of the number of values (the 2 of BIC, and one more for
#: the search over all positions).
CHANGE_PENALTY = 3.0
#: Noise below this part of the standard deviation justifies no more changes.
LEAST_FIT_NOISE = 0.05
#: Positions that are tried; on longer series every so many, and then those between: the cost grows with their square.
MAX_POSITIONS = 256
#: Permutations of the series that it is compared with: probabilities down to 0.005.
PERMUTATIONS = 199
#: Costs that differ by less than this part of the whole are told apart exactly.
NEAR = 1e-9


def fit_changes(series: Floats, *, chance: float) -> tuple[list[int], float]:
    """Fit one change of level or two, as many as the noise justifies.

    Parameters
    ----------
    series : ndarray of float64, shape (n_steps,)
        Any unit.
    chance : float
        Changes that permutations of the series show more often than this are none.

    Returns
    -------
    changes : list of int
        Positions, increasing; none, one or two.
    chance : float
        Part of the permutations, and of the series itself, that change as much; 1 where nothing changes.

    Source of cost and penalty: Truong et al., Selective review of offline change point detection methods, 2020.
    """
    n = len(series)
    if n < 2 * MIN_STEPS + 1:
        return [], 1.0
    low, high = np.quantile(series, BOUND_QUANTILES)
    bounded = np.clip(series, low, high) / (float(np.std(series)) or 1.0)
    penalty = _penalty(CHANGE_PENALTY, max(float(noise_of_differences(bounded)), LEAST_FIT_NOISE), n)
    found: list[int] = []
    least = float(((bounded - bounded.mean()) ** 2).sum())
    for n_changes in (1, 2):
        if n < (n_changes + 1) * MIN_STEPS:
            break
        changes = _place_between(bounded, place_changes(bounded, n_changes))
        bounds = itertools.pairwise([0, *changes, n])
        cost = sum(float(((bounded[a:b] - bounded[a:b].mean()) ** 2).sum()) for a, b in bounds) + n_changes * penalty
        if cost < least:
            found, least = changes, cost
    by_chance = _chance_of_change(bounded) if found else 1.0
    return (found, by_chance) if by_chance <= chance else ([], by_chance)


def place_changes(series: Floats, n_changes: int) -> list[int]:
    """Place one change or two so that the levels leave the least sum of squares: as ruptures' `Dynp` with `l2`, ties included.

    Costs of all placements come from running sums at once; those that rounding cannot tell apart are summed up one by one, and
    the first of the least is taken.
    """
    n = len(series)
    every = _every(n)
    at = np.arange(-(-MIN_STEPS // every) * every, n - MIN_STEPS + 1, every)
    if n_changes == 1:
        bounds = np.stack([np.zeros_like(at), at, np.full_like(at, n)])
    else:
        last, first = (grid.ravel() for grid in np.meshgrid(at, at, indexing="ij"))
        apart = last - first >= MIN_STEPS
        last, first = last[apart], first[apart]
        bounds = np.stack([np.zeros_like(first), first, last, np.full_like(first, n)])
    centred = series - series.mean()
    summed, squared = (np.concatenate([[0.0], np.cumsum(values)]) for values in (centred, centred**2))
    cost = (-(np.diff(summed[bounds], axis=0) ** 2) / np.diff(bounds, axis=0)).sum(axis=0)
    near = np.flatnonzero(cost <= cost.min() + NEAR * squared[-1])
    if len(near) > 1:
        near = near[[min(range(len(near)), key=lambda i: _exact_cost(series, bounds[:, near[i]].tolist()))]]
    return [int(change) for change in bounds[1:-1, near[0]]]


def _exact_cost(series: Floats, bounds: list[int]) -> list[float]:
    """Order placements by their sum of squares; among equals the earlier change comes first, the last change looked at first."""
    parts = (float(series[a:b].var() * (b - a)) for a, b in itertools.pairwise(bounds))
    sums = list(itertools.accumulate(parts))
    return [value for i in range(len(bounds) - 2, 0, -1) for value in (sums[i], float(bounds[i]))]


def _every(n: int) -> int:
    """Say which positions of a long series are tried at first: every so many."""
    return max(1, -(-n // MAX_POSITIONS))


def _place_between(series: Floats, changes: list[int]) -> list[int]:
    """Move each change to the best position between those that were tried."""
    n, every = len(series), _every(len(series))
    found = [0, *changes, n]
    summed = np.concatenate([[0.0], np.cumsum(series)])
    for i in range(1, len(found) - 1 if every > 1 else 1):
        low, high = found[i - 1], found[i + 1]
        at = np.arange(max(low + MIN_STEPS, found[i] - every), min(high - MIN_STEPS, found[i] + every) + 1)
        if len(at):
            before, after = summed[at] - summed[low], summed[high] - summed[at]
            found[i] = int(at[np.argmax(before**2 / (at - low) + after**2 / (high - at))])
    return found[1:-1]


def _chance_of_change(series: Floats) -> float:
    """Say how often a permuted series changes as much as this one.

    Noise is the same for all of them: that of neighbours would grow with the permutation.
    """
    n = series.size
    rng = np.random.default_rng(0)
    permuted = rng.permuted(np.tile(series, (PERMUTATIONS, 1)), axis=1)
    summed = np.cumsum(np.concatenate([series[None], permuted]) - series.mean(), axis=1)[:, :-1]
    position = np.arange(1, n)
    score = (np.abs(summed) / np.sqrt(position * (n - position) / n)).max(axis=1)
    return float((1 + (score[1:] >= score[0]).sum()) / (1 + PERMUTATIONS))


def _penalty(weight: float, sigma: float, n: int) -> float:
    """Say how much a change must save: squares of the unit of `sigma`."""
    return float(weight * sigma**2 * np.log(n))
