"""Since when something is there, and until when: the course of an effect over the steps.

Enters: how much a cause costs in each step, the workload taken out. Leaves: `Course`.
"""

import itertools

import numpy as np

from diagnose.model.cause import When
from diagnose.model.course import Change, Course
from diagnose.model.trace import Bools, Ints, Seconds
from diagnose.numerics.change_points import fit_changes
from diagnose.numerics.period import find_exact_period

#: Steps above this part of the effect have it.
HALF = 0.5
#: Before it came, and once it has gone, steps have less than this part of it: less is not gone.
SILENT = 0.25
#: The size of the effect is that of this quantile of the steps.
TOP_QUANTILE = 0.9
#: Steps without the effect, before or after it, must be this improbable at its hit rate, and a change of level this improbable
#: in permutations of the series (found by a prototype on jobs with known onsets).
CHANCE = 0.02
#: A hit rate is not above 1 minus this over the number of steps: a few hits in a row prove no rate of 1.
UNSEEN = 0.15
#: Hit rate from which on an effect counts as steady.
STEADY_SHARE = 0.8
#: A single step with the effect is sporadic, and hits are neighbours at this distance.
MIN_HITS = 2


def find_course(steps: Ints, effect: Seconds, *, least: float = HALF) -> Course:
    """Find since when, until when and how steadily an effect is there.

    Where the effect is steady, levels are fitted to the series; else the steps that have the effect say it by where they lie.

    Parameters
    ----------
    steps : ndarray of int64, shape (n_steps,)
        Step numbers, increasing.
    effect : ndarray of float64, shape (n_steps,)
        Size of the effect in each step, any unit, about 0 where it is not there.
    least : float
        Part of the effect from which on a step has it: a small one for what begins small and grows.

    Returns
    -------
    Course
        Pattern `constant`, `onset` with its step, `transient` with the step of recovery, `sporadic`, or `periodic` where the
        steps that have it keep an interval without exception; None where there is no effect.

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
    inner = hits[first : last + 1]
    rate = min(float(inner.mean()), 1.0 - UNSEEN / len(inner))
    steady = float(inner.mean()) >= STEADY_SHARE
    if not steady:  # what comes in stretches stays away in stretches, too
        rate = min(rate, int((np.diff(inner.astype(int)) > 0).sum()) / int((~inner).sum()))
    if least >= HALF and hits.mean() < 1.0 and steady:
        course = _course_of(_date_changes(steps, effect), top)
        if course is not None:
            return course
    if hits.sum() < MIN_HITS:
        return Course(When("sporadic"), steps=tuple(steps[hits].tolist()))
    there = () if steady else tuple(steps[hits].tolist())
    onset = int(steps[first]) if _is_silent(effect[:first], rate, top) else None
    recovery = int(steps[last + 1]) if _is_silent(effect[last + 1 :], rate, top) else None
    if recovery is not None and last > first:
        return Course(When("transient", onset, recovery), steps=there)
    if onset is not None:
        return Course(When("onset", onset), steps=there)
    always = float((effect > HALF * top).mean()) >= STEADY_SHARE
    if always:
        return Course(When("constant"))
    period = find_exact_period(steps, hits)
    return Course(When("sporadic") if period is None else When("periodic", period_steps=float(period)), steps=there)


def _without_lone_hits(hits: Bools) -> Bools:
    """Leave out hits far from all others, where the others are steady: one extreme step is no onset."""
    at = np.flatnonzero(hits)
    if len(at) < MIN_HITS + 1:
        return hits
    gap = np.diff(at, prepend=-np.inf, append=np.inf)
    near = at[np.minimum(gap[:-1], gap[1:]) <= MIN_HITS]
    if len(near) < STEADY_SHARE * len(at) or len(near) < STEADY_SHARE * (near[-1] - near[0] + 1):
        return hits
    return np.isin(np.arange(len(hits)), near)


def _is_silent(effect: Seconds, rate: float, top: float) -> bool:
    """Say whether it is improbable that steps without a hit are so by chance, and they have next to nothing of the effect."""
    return bool(len(effect)) and (1.0 - rate) ** len(effect) < CHANCE and float(np.median(effect)) < SILENT * top


def _date_changes(steps: Ints, effect: Seconds) -> tuple[Change, ...]:
    """Fit one change of level or two, with the mean of the effect on both sides of each."""
    positions, chance = fit_changes(effect, chance=CHANCE)
    levels = [float(effect[a:b].mean()) for a, b in itertools.pairwise([0, *positions, len(effect)])]
    return tuple(
        Change(int(steps[at]), before, after, chance)
        for at, (before, after) in zip(positions, itertools.pairwise(levels), strict=True)
    )


def _course_of(changes: tuple[Change, ...], top: float) -> Course | None:
    """Turn levels into a course: rising over half of the effect is an onset, falling below it a recovery."""
    onset = recovery = None
    kept = []
    for change in changes:
        if change.before < HALF * top <= change.after:
            onset, recovery = change.step, None
            kept.append(change)
        elif change.after < HALF * top <= change.before:
            recovery = change.step
            kept.append(change)
    if recovery is not None:
        return Course(When("transient", onset, recovery), tuple(kept))
    return Course(When("onset", onset), tuple(kept)) if onset is not None else None
