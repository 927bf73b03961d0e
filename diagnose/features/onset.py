"""Since when something is there, and until when: change points of a series of one value a step.

Enters: how much a cause costs in each step, the workload taken out. Leaves: `When`, and the change points behind it. A cheap
test of the whole series comes first; the fit (ruptures, which takes long to import) only where that finds a change.
"""

import itertools

import numpy as np

from diagnose.model.cause import When
from diagnose.model.course import Change, Course
from diagnose.model.trace import Bools, Ints, Seconds

#: Steps above this part of the effect have it.
HALF = 0.5
#: The size of the effect is that of this quantile of the steps.
TOP_QUANTILE = 0.9
#: Earlier, or later, silence must be this improbable at the hit rate in between (prototype, LESSONS).
CHANCE = 0.02
#: Steps without it that as many steps with it, and none without, leave possible.
UNSEEN = 0.15
#: Hit rate from which on a thing that is there counts as steady.
STEADY_SHARE = 0.8
#: A level lasts at least so many steps.
MIN_SEGMENT = 2
#: A change is at least this part of the effect.
LEAST_CHANGE = 0.1
#: Positions of a change that are tried; on longer series every so many, and then those between.
MAX_POSITIONS = 256
#: Permutations of the series that the change is compared with.
PERMUTATIONS = 199
#: A change of level is no chance from here on (standard deviations of the difference of two means): the cheap test.
CHEAP_DEVIATIONS = 3.0
MAD_TO_SIGMA = 1.4826


def find_course(steps: Ints, effect: Seconds, *, least: float = HALF) -> Course:
    """Say since when, until when and how steadily an effect is there.

    Parameters
    ----------
    steps : ndarray of int64, shape (n_steps,)
        Step numbers, increasing.
    effect : ndarray of float64, shape (n_steps,)
        Size of the effect in each step, any unit, about 0 where it is not there.
    least : float
        Part of the effect from which on a step has it. What begins small and grows is there from its first sign.

    Returns
    -------
    Course
        Pattern `constant`, `onset` with its step, `transient` with the step of recovery, `sporadic`; None where there is no effect.

    Source of the fit: Truong et al., Selective review of offline change point detection methods, 2020 (ruptures).

    >>> find_course(np.arange(10), np.array([0., 0, 0, 0, 0, 1, 1, 1, 1, 1])).when.onset_step
    5
    """
    top = float(np.quantile(effect, TOP_QUANTILE)) if len(effect) else 0.0
    if top <= 0:
        top = float(effect.max(initial=0.0))
        if top <= 0:
            return Course(When())
    hits = _without_lone_hits(effect > least * top)
    first, last = int(hits.argmax()), len(hits) - 1 - int(hits[::-1].argmax())
    n_there = last - first + 1
    rate = min(float(hits[first : last + 1].mean()), 1.0 - UNSEEN / n_there)  # a few hits prove no rate
    steady = float(hits[first : last + 1].mean()) >= STEADY_SHARE
    if least >= HALF and hits.mean() < 1.0 and steady and _seems_to_change(effect):
        changes = _fit_changes(steps, effect)
        course = _course_of(changes, top)
        if course is not None:
            return course
    if hits.sum() < MIN_SEGMENT:
        return Course(When("sporadic"))
    onset = int(steps[first]) if first > 0 and _silence(rate, first) < CHANCE else None
    n_after = len(hits) - 1 - last
    recovery = int(steps[last + 1]) if n_after and _silence(rate, n_after) < CHANCE else None
    if recovery is not None and last > first:
        return Course(When("transient", onset, recovery))
    if onset is not None:
        return Course(When("onset", onset))
    always = float((effect > HALF * top).mean()) >= STEADY_SHARE
    return Course(When("constant" if always else "sporadic"))


def _without_lone_hits(hits: Bools) -> Bools:
    """Leave out steps hit far from all others, where the others are steady: one extreme step is no level of its own."""
    at = np.flatnonzero(hits)
    if len(at) < MIN_SEGMENT + 1:
        return hits
    gap = np.diff(at, prepend=-np.inf, append=np.inf)
    near = at[np.minimum(gap[:-1], gap[1:]) <= MIN_SEGMENT]
    if len(near) < STEADY_SHARE * len(at) or len(near) < STEADY_SHARE * (near[-1] - near[0] + 1):
        return hits
    return np.isin(np.arange(len(hits)), near)


def _silence(rate: float, n_steps: int) -> float:
    """Say how probable so many steps without a hit are."""
    return float((1.0 - rate) ** n_steps)


def _seems_to_change(effect: Seconds) -> bool:
    """Test cheaply whether the series is on two levels at all: the best split against the noise of its differences."""
    return bool(_best_split(effect[None])[0] > CHEAP_DEVIATIONS)


def _best_split(series: Seconds) -> Seconds:
    """Give the largest difference of two means, in its standard deviations, over all splits; shape (n_series,)."""
    n = series.shape[1]
    if n < 2 * MIN_SEGMENT:
        return np.zeros(len(series))
    sigma = MAD_TO_SIGMA * np.median(np.abs(np.diff(series, axis=1)), axis=1) / np.sqrt(2.0)
    spread = np.std(series, axis=1)
    sigma = np.maximum(np.maximum(sigma, 1e-3 * spread), 1e-300)
    summed = np.cumsum(series, axis=1)
    before_n = np.arange(1, n)
    before = summed[:, :-1] / before_n
    after = (summed[:, -1:] - summed[:, :-1]) / (n - before_n)
    score = np.abs(after - before) / (sigma[:, None] * np.sqrt(1.0 / before_n + 1.0 / (n - before_n)))
    return np.asarray(score[:, MIN_SEGMENT - 1 : n - MIN_SEGMENT].max(axis=1))


def _fit_changes(steps: Ints, effect: Seconds) -> tuple[Change, ...]:
    """Fit levels to the series, one or two changes, as many as the noise justifies and permutations do not show."""
    import ruptures

    n = len(effect)
    if n < 2 * MIN_SEGMENT + 1:
        return ()
    spread = float(np.std(effect))
    # One extreme step is no level of its own.
    low, high = np.quantile(effect, [0.02, 0.98])
    series = np.clip(effect, low, high) / (spread or 1.0)
    sigma = MAD_TO_SIGMA * float(np.median(np.abs(np.diff(series)))) / np.sqrt(2.0)
    penalty = 3.0 * max(sigma, 0.05) ** 2 * np.log(n)
    jump = max(1, -(-n // MAX_POSITIONS))  # its cost grows with the square of the positions
    algorithm = ruptures.Dynp(model="l2", min_size=MIN_SEGMENT, jump=jump).fit(series)
    best: tuple[float, list[int]] = (float(((series - series.mean()) ** 2).sum()), [n])
    for n_changes in (1, 2):
        if n < (n_changes + 1) * MIN_SEGMENT:
            break
        ends = _refine(series, algorithm.predict(n_bkps=n_changes), jump)
        starts = [0, *ends[:-1]]
        cost = sum(float(((series[a:b] - series[a:b].mean()) ** 2).sum()) for a, b in zip(starts, ends, strict=True))
        if cost + n_changes * penalty < best[0]:
            best = (cost + n_changes * penalty, ends)
    ends = best[1]
    chance = _chance(series) if len(ends) > 1 else 1.0
    if chance > CHANCE:
        return ()
    bounds = [0, *ends]
    levels = [float(effect[a:b].mean()) for a, b in itertools.pairwise(bounds)]
    return tuple(
        Change(int(steps[at]), before, after, chance)
        for at, before, after in zip(bounds[1:-1], levels[:-1], levels[1:], strict=True)
    )


def _refine(series: Seconds, ends: list[int], jump: int) -> list[int]:
    """Move each change to the best position between those that were tried."""
    found = list(ends)
    summed = np.concatenate([[0.0], np.cumsum(series)])
    for i in range(len(found) - 1 if jump > 1 else 0):
        low, high = (found[i - 1] if i else 0), found[i + 1]
        at = np.arange(max(low + MIN_SEGMENT, found[i] - jump), min(high - MIN_SEGMENT, found[i] + jump) + 1)
        if len(at):
            before, after = summed[at] - summed[low], summed[high] - summed[at]
            found[i] = int(at[np.argmax(before**2 / (at - low) + after**2 / (high - at))])
    return found


def _chance(series: Seconds) -> float:
    """Say how often a permuted series changes as much as this one."""
    rng = np.random.default_rng(0)
    permuted = rng.permuted(np.tile(series, (PERMUTATIONS, 1)), axis=1)
    sigma_free = np.concatenate([series[None], permuted])
    # The same noise for all: that of the differences would grow with the permutation.
    n = series.size
    summed = np.cumsum(sigma_free - series.mean(), axis=1)[:, :-1]
    position = np.arange(1, n)
    score = (np.abs(summed) / np.sqrt(position * (n - position) / n)).max(axis=1)
    return float((1 + (score[1:] >= score[0]).sum()) / (1 + PERMUTATIONS))


def _course_of(changes: tuple[Change, ...], top: float) -> Course | None:
    """Turn levels into a course: rising over half of the effect is an onset, falling below it a recovery."""
    onset = recovery = None
    kept = []
    for change in changes:
        if abs(change.after - change.before) < LEAST_CHANGE * top:
            continue
        if change.before < HALF * top <= change.after:
            onset, recovery = change.step, None
            kept.append(change)
        elif change.after < HALF * top <= change.before:
            recovery = change.step
            kept.append(change)
    if recovery is not None:
        return Course(When("transient", onset, recovery), tuple(kept))
    return Course(When("onset", onset), tuple(kept)) if onset is not None else None
