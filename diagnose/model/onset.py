"""Since when something is there: the first step above half the effect, if the silence before it is no chance."""

import numpy as np

from diagnose.model.diagnosis import When
from diagnose.model.trace import Ints, Seconds

#: Steps above this part of the effect have it.
HALF = 0.5
#: Earlier silence must be this improbable at the later hit rate (prototype, LESSONS).
CHANCE = 0.02
#: Hit rate from which on a thing that is there counts as constant.
CONSTANT_SHARE = 0.8


def find_when(steps: Ints, effect: Seconds) -> When:
    """Say since when, and how steadily, an effect is there.

    Parameters
    ----------
    steps : ndarray of int64, shape (n_steps,)
        Step numbers, increasing.
    effect : ndarray of float64, shape (n_steps,)
        Size of the effect in each step, any unit, 0 where it is not there.

    Returns
    -------
    When
        `onset` with its step, `constant`, `sporadic`; pattern None where there is no effect.

    >>> find_when(np.arange(10), np.array([0., 0, 0, 0, 0, 1, 1, 1, 1, 1])).onset_step
    5
    """
    top = float(np.quantile(effect, 0.9)) if len(effect) else 0.0
    if top <= 0:
        return When()
    hits = effect > HALF * top
    first = int(hits.argmax())
    rate = float(hits[first:].mean())
    silence = (1.0 - min(rate, 0.999)) ** first
    onset = int(steps[first]) if first > 0 and silence < CHANCE else None
    if onset is not None:
        return When("onset", onset)
    return When("constant" if hits.mean() >= CONSTANT_SHARE else "sporadic")
