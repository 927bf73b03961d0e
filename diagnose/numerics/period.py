"""The interval at which something happens in sampled steps.

Enters: step numbers and which of them are hit. Leaves: the period, how exactly it is kept, and the chance of that.
"""

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from diagnose.numerics.chance import divergence

#: Hits needed for a period.
MIN_HITS = 2
#: Twice always looks periodic: it is told from so many on.
MIN_PERIODIC_HITS = 3
#: What is done every so many steps is done in this part of them at most, so often at least, and keeps its interval by no chance.
MAX_INTERVAL_SHARE, INTERVAL_CHANCE, INTERVAL_HITS, REGULAR = 0.3, 0.05, 3, 0.8
#: Steps keep an interval without exception where chance does so rarely. Longer ones are not looked at.
EXACT_CHANCE, MAX_EXACT = 0.05, 1000
#: Distances looked at: the candidates grow with their square.
MAX_GAPS = 64
#: Periods that are always tried, as sampled steps miss some multiples.
SHORT_PERIODS = np.arange(2, 65)
#: A longer period is better by more than this, else the shorter one is the period.
BETTER = 1e-9


def find_period(steps: NDArray[np.int64], hits: NDArray[np.bool_]) -> tuple[int, float, float]:
    """Find the interval on whose multiples, from some step on, the steps hit lie, and no others.

    Parameters
    ----------
    steps : ndarray of int64, shape (n_steps,)
        Step numbers, increasing; sampled, so that some are left out.
    hits : ndarray of bool, shape (n_steps,)

    Returns
    -------
    period : int
        In steps; 1 where no longer one is as good.
    regularity : float
        The smaller of two parts: of the hits, those on the period; of the sampled steps on the period between the first hit and
        the last, those hit.
    chance : float
        Probability that so many hits lie on one period of that length by chance.

    >>> find_period(np.arange(20), np.arange(20) % 5 == 2)[:2]
    (5, 1.0)
    """
    at = steps[hits]
    if len(at) < MIN_HITS:
        return 1, 0.0, 1.0
    inside = steps[(steps >= at[0]) & (steps <= at[-1])]
    best = (0.0, 1, 1.0)
    # A period divides some distance of neighbours, or two of them: no others need be tried.
    gaps = np.unique(np.diff(at))[:MAX_GAPS]
    candidates = np.unique(np.concatenate([gaps, np.gcd.outer(gaps, gaps).ravel(), SHORT_PERIODS]))
    for period in candidates[(candidates > 1) & (candidates <= at[-1] - at[0])].tolist():
        phases, counts = np.unique(at % period, return_counts=True)
        phase, count = int(phases[counts.argmax()]), int(counts.max())
        n_there = int((inside % period == phase).sum())
        regularity = min(count / len(at), count / n_there)
        # That the others of a phase are hit, too, is what chance has to explain.
        chance = min(1.0, period * (1.0 / period) ** count)
        if regularity > best[0] + BETTER and count >= MIN_HITS:
            best = (regularity, period, chance)
    return best[1], best[0], best[2]


def is_interval(steps: NDArray[np.int64], hits: NDArray[np.bool_]) -> bool:
    """Say whether something happens every so many steps, which nobody would do in each second or third, and by no chance.

    >>> is_interval(np.arange(20), np.arange(20) % 5 == 2)
    True
    """
    order = np.argsort(steps, kind="stable")
    if hits.sum() < INTERVAL_HITS or hits.mean() > MAX_INTERVAL_SHARE:
        return False
    _, regularity, chance = find_period(steps[order], hits[order])
    return regularity >= REGULAR and chance <= INTERVAL_CHANCE


def keeps_interval(steps: NDArray[np.int64], hits: NDArray[np.bool_]) -> bool:
    """Say whether something happens every so many steps, each second or third as well, by no chance of all periods tried.

    >>> keeps_interval(np.arange(30), np.arange(30) % 3 == 2), keeps_interval(np.arange(12), np.arange(12) % 4 == 2)
    (True, False)
    """
    order = np.argsort(steps, kind="stable")
    _, regularity, chance = find_period(steps[order], hits[order])
    return regularity >= REGULAR and chance <= TRAIN_CHANCE


def find_exact_period(steps: NDArray[np.int64], hits: NDArray[np.bool_]) -> int | None:
    """Find the interval that steps keep without exception, whether one or several of each are hit; None where there is none.

    Parameters
    ----------
    steps : ndarray of int64, shape (n_steps,)
        Step numbers, increasing.
    hits : ndarray of bool, shape (n_steps,)

    >>> find_exact_period(np.arange(34), np.arange(34) % 10 < 5)
    10
    """
    if not hits.any():
        return None
    first = int(hits.argmax())
    since, hit = steps[first:] - steps[first], hits[first:]
    n_steps, n_hits = len(since), int(hit.sum())
    # The first of all may be left out, as that of step 0.
    least, most = max(2, int(steps[first] - steps[0])), int(since[-1]) // (MIN_PERIODIC_HITS - 1)
    for period in range(least, min(most, MAX_EXACT) + 1):
        rounds, phase = np.divmod(since, period)
        there, n_hit = np.bincount(phase), np.bincount(phase, weights=hit)
        if len(np.unique(rounds[hit])) < MIN_PERIODIC_HITS or ((n_hit > 0) & (n_hit < there)).any():
            continue
        # Of the ways to choose as many hits, the first one given, those that keep the interval.
        ways = _count_choices(there[1:][there[1:] > 0].tolist(), n_hits - int(there[0]))
        if (period - 1) * ways / math.comb(n_steps - 1, n_hits - 1) <= EXACT_CHANCE:
            return period
    return None


def _count_choices(sizes: Sequence[int], total: int) -> int:
    """Count the ways to choose some of several sizes so that they add up to a total.

    >>> _count_choices([1, 2, 3], 3)
    2
    """
    ways = [1] + [0] * total
    for size in sizes:
        for n in range(total, size - 1, -1):
            ways[n] += ways[n - size]
    return ways[total]


#: Of the hits of one that keeps an interval so much lies on it, and so many of its numbers are hits, by such a chance.
EVEN_SHARE, EVEN_CHANCE = 0.8, 0.02


def find_even(numbers: NDArray[np.int64], weights: NDArray[np.float64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Find the interval at which each of many is hit that keeps one, whatever else hits it now and then.

    Parameters
    ----------
    numbers : ndarray of int64, shape (n,)
        Increasing.
    weights : ndarray of float64, shape (n_rows, n)
        What each hit counts for; 0 for none.

    Returns
    -------
    period, phase : ndarray of int64, shape (n_rows,)
        The most frequent distance of hits, and where on it most are; period 0 where that does not hold most of what they count for.

    >>> find_even(np.arange(40), (np.arange(40) % 7 == 3)[None] * 1.0)
    (array([7]), array([3]))
    """
    n_rows = len(weights)
    row, at = np.nonzero(weights)
    weight, number = weights[row, at], numbers[at]
    same = np.flatnonzero(row[1:] == row[:-1])
    gaps, counts = np.unique(np.stack([row[same], number[same + 1] - number[same]], axis=1), axis=0, return_counts=True)
    # The last one of each row is the most frequent.
    order = np.lexsort((counts, gaps[:, 0]))
    period = np.zeros(n_rows, dtype=np.int64)
    period[gaps[order, 0]] = gaps[order, 1]
    of_hit = np.maximum(period[row], 1)
    places, place, n_on = np.unique(
        np.stack([row, number % of_hit], axis=1), axis=0, return_inverse=True, return_counts=True
    )
    order = np.lexsort((n_on, places[:, 0]))
    phase, most, chosen = np.zeros((3, n_rows), dtype=np.int64)
    chosen[places[order, 0]] = order
    phase[places[order, 0]], most[places[order, 0]] = places[order, 1], n_on[order]
    on = place.ravel() == chosen[row]
    first, last = np.full(n_rows, numbers[-1]), np.full(n_rows, numbers[0])
    np.minimum.at(first, row[on], number[on])
    np.maximum.at(last, row[on], number[on])
    n_there = (last - first) // np.maximum(period, 1) + 1
    total = weights.sum(axis=1)
    often = np.clip((weights > 0).mean(axis=1), 1.0 / len(numbers), None)
    by_chance = np.log(np.maximum(period, 1)) + (most - 1) * np.log(often)
    holds = (np.bincount(row[on], weight[on], n_rows) >= EVEN_SHARE * total) & (total > 0)
    holds &= (most >= EVEN_SHARE * n_there) & (by_chance <= np.log(EVEN_CHANCE)) & (period > 1)
    return np.where(holds, period, 0), np.where(holds, phase, 0)


class Train(NamedTuple):
    """Hits at even distances: every `period`-th number from `phase` on, and how exactly that holds."""

    period: int
    phase: int
    """Smallest number at least 0 that is a hit by this."""
    n_hits: int
    """Hits that lie on it."""
    kept: float
    """Part of the numbers on it, between its first hit and its last, that are hits."""
    hits: NDArray[np.bool_]
    """Which hits lie on it, in the order of `numbers`."""


#: Distances looked at in `find_train`: the most frequent ones between neighbouring hits.
MOST_DISTANCES = 24
#: Distances tried on each side of one that is a multiple of what a number stands for.
MOST_NEAR = 64
#: Numbers that candidates are tried on first, from the first hit on.
TRIED = 20_000
#: Candidates that are tried on all numbers.
FINALISTS = 6
#: A train has at least so many hits, and at least this part of its numbers are hits.
LEAST_HITS, LEAST_KEPT = 3, 0.75
#: How probable a train may be by chance.
TRAIN_CHANCE = 1e-3


def find_train(
    numbers: NDArray[np.int64], hits: NDArray[np.bool_], *, width: int = 1, stated: Sequence[int] = ()
) -> Train | None:
    """Find the distance at which hits come, among others that come at random; None where chance explains it.

    Parameters
    ----------
    numbers : ndarray of int64, shape (n,)
        Increasing. One stands for itself and those after the number before, `width` of them.
    hits : ndarray of bool, shape (n,)
        Where something happened, at any of the numbers that one stands for.
    stated : sequence of int
        Distances that are likelier than others.

    >>> hits = np.arange(1, 201) % 8 == 3
    >>> find_train(np.arange(1, 201), hits)[:2]
    (8, 3)
    """
    at = numbers[hits]
    if len(at) < LEAST_HITS:
        return None
    span = int(at[-1] - at[0])
    candidates = [p for p in _list_distances(at, width, stated) if width < p <= span // (LEAST_HITS - 1)]
    if not candidates:
        return None
    inside = (numbers >= at[0]) & (numbers <= at[-1])
    some = np.flatnonzero(inside)[: max(TRIED, 1)]
    if len(some) < int(inside.sum()):
        enough = [p for p in candidates if p * LEAST_HITS <= int(numbers[some[-1]] - at[0])] or candidates
        tried = sorted(enough, key=lambda p: -_rate(_try(numbers[some], hits[some], p, width)))
        candidates = [*tried[:FINALISTS], *(p for p in candidates if p not in enough)]
    frequent = float(hits[inside].mean())
    best: tuple[float, Train] | None = None
    for period in candidates:
        train = _try(numbers[inside], hits[inside], period, width)
        if train is None or train.kept < LEAST_KEPT or train.n_hits < LEAST_HITS:
            continue
        # Of the phases of numbers that stand for many only so many can be told apart.
        choices = len(stated) + 1 if period in stated else max(period // width, 1) * len(candidates)
        if is_chance(train, frequent=frequent, choices=choices):
            continue
        # Where several fit as well, as where one number stands for many, a stated one is likelier, and so is a round one.
        rate = _rate(train) * (1.0 + 0.02 * (period in stated) + 1e-4 * _roundness(period))
        if best is None or rate > best[0] * (1.0 + BETTER):
            best = (rate, train)
    if best is None:
        return None
    whole = np.zeros(len(numbers), dtype=bool)
    whole[inside] = best[1].hits
    return best[1]._replace(hits=whole[hits])


def is_chance(train: Train, *, frequent: float, choices: int) -> bool:
    """Say whether one of so many trains is as good by chance, where this part of the numbers are hits."""
    n_there = train.n_hits / train.kept
    return bool(n_there * divergence(train.kept, min(1.0 - 1e-9, frequent)) < np.log(choices) - np.log(TRAIN_CHANCE))


def _list_distances(at: NDArray[np.int64], width: int, stated: Sequence[int]) -> list[int]:
    """List distances worth trying: those stated, those between neighbours, their common divisors, and the mean."""
    gaps, counts = np.unique(np.diff(at), return_counts=True)
    frequent = gaps[np.argsort(-counts, kind="stable")[:MOST_DISTANCES]]
    found = {int(p) for p in stated} | {int(g) for g in frequent}
    found |= {int(p) for p in np.unique(np.gcd.outer(frequent, frequent))}
    mean = float(at[-1] - at[0]) / (len(at) - 1)
    found |= {int(mean), int(mean) + 1}
    if width > 1:  # a distance shows as a multiple of the width, now a larger one and now a smaller
        reach = min(width, MOST_NEAR)
        for near in {int(g) for g in frequent[:3]} | {int(mean)}:
            found |= set(range(max(2, near - reach + 1), near + reach))
    return sorted(found)


def _try(numbers: NDArray[np.int64], hits: NDArray[np.bool_], period: int, width: int) -> Train | None:
    """Choose the phase that most hits lie on, among those of which most numbers are hits."""
    phases = numbers % period
    there, hit = (np.bincount(phases[mask], minlength=period) for mask in (slice(None), hits))
    if width > 1:  # phase p is within what number n stands for where n - width < p <= n
        there, hit = (_sum_around(counts, width) for counts in (there, hit))
    kept = hit / np.maximum(there, 1)
    phase = int(np.argmax(np.where(kept >= LEAST_KEPT, hit, -1)))
    if kept[phase] < LEAST_KEPT:
        return None
    on = hits & ((phases - phase) % period < width)
    return Train(period, phase, int(hit[phase]), float(kept[phase]), on)


def _sum_around(counts: NDArray[np.int64], width: int) -> NDArray[np.int64]:
    """Add up each count and those of the next `width` - 1 phases, around the end."""
    period = len(counts)
    summed = np.concatenate([[0], np.cumsum(np.concatenate([counts, counts[: width % period]]))])
    whole = (width // period) * counts.sum()
    rest = width % period
    return np.asarray(summed[rest : rest + period] - summed[:period] + whole)


def _rate(train: Train | None) -> float:
    """Say how good a train is: by the hits on it and how exactly it is kept."""
    return 0.0 if train is None else train.n_hits * train.kept


def _roundness(number: int) -> int:
    """Count how round a number is: how many of 5, 10, 50, 100, 500, 1000 divide it."""
    return sum(number % unit == 0 for unit in (5, 10, 50, 100, 500, 1000))
