"""The interval at which something happens in sampled steps.

Enters: step numbers and which of them are hit. Leaves: the period, how exactly it is kept, and the chance of that.
"""

import numpy as np
from numpy.typing import NDArray

#: Hits needed for a period.
MIN_HITS = 2
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
