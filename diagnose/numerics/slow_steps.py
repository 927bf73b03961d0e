"""How slow each step is as a whole.

Enters: how long workers take in each step. Leaves: how long the step is against the usual one.
"""

import numpy as np
from numpy.typing import NDArray

from diagnose.numerics.robust import median

#: One in three workers says how slow a step is; where some are slow one in four is asked, too: of two stages one and half of the
#: other may be.
QUICKEST, FEW_QUICKEST = 3, 4


def find_slow_steps(
    pace: NDArray[np.float64], usual: NDArray[np.bool_] | None = None, quickest: int = QUICKEST
) -> NDArray[np.float64]:
    """Say how long all computes of a step are against the usual step: shape (2, n_steps); `usual` are those that count as such.

    Of one in so many workers that are the quickest: a fault may slow more than half of them, and is none of the step's.
    """
    n_steps = pace.shape[2]
    ordered = np.sort(np.moveaxis(pace, 2, 1).reshape(len(pace), n_steps, -1), axis=2)  # NaN last
    count = np.maximum((~np.isnan(ordered)).sum(axis=2, keepdims=True), 1)
    ratio = np.take_along_axis(ordered, (count - 1) // quickest, axis=2)[:, :, 0]
    ratio = np.where(ratio > 0, ratio, 1.0)
    return np.asarray(ratio / median(ratio if usual is None else ratio[:, usual], axis=1, keepdims=True))
