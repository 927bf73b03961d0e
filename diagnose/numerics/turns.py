"""Whether ranks that are slow in some steps are quick in others.

Enters: how far ranks are apart in each step. Leaves: whether their order turns round.
"""

import numpy as np
from numpy.typing import NDArray

#: One order of the ranks has this part of how far they are apart; this part of the steps' weight is on either side of it. Of three
#: ranks that differ at random one order has half of it or more, of more ranks less.
ONE_ORDER, EACH_WAY = 0.8, 0.25
#: Of two ranks nobody says which one is as usual.
MIN_RANKS = 3


def do_turn_round(pace: NDArray[np.float64]) -> bool:
    """Say whether all ranks have one order, which is now this way round, now the other.

    Batches that are sorted by length and dealt in turns do that. A slow machine does not: it is never quicker than its peers.

    Parameters
    ----------
    pace : ndarray of float64, shape (n_steps, n_dp)
        Log of how long each rank takes in each step.

    >>> order = np.linspace(-1.0, 1.0, 4)
    >>> do_turn_round(np.array([order, -order, order, -order]))
    True
    >>> do_turn_round(np.array([order, order, order, order]))
    False
    """
    pace = pace[np.isfinite(pace).all(axis=1)]
    if pace.shape[1] < MIN_RANKS or len(pace) < MIN_RANKS:
        return False
    apart = pace - np.median(pace, axis=1, keepdims=True)
    steps, sizes, _ = np.linalg.svd(apart, full_matrices=False)
    squares, total = sizes**2, float((sizes**2).sum())
    first = steps[:, 0]
    each_way = min(float((first[first > 0] ** 2).sum()), float((first[first < 0] ** 2).sum()))
    return total > 0 and bool(squares[0] >= ONE_ORDER * total) and each_way >= EACH_WAY
