"""Turn scores into probabilities that come true: two numbers a cause.

Enters: scores of jobs that the trees have not seen. Leaves: slope and intercept.
"""

import numpy as np
from numpy.typing import NDArray

from diagnose.model.trace import Bools

#: Scores that sort jobs the wrong way, or not at all, give nearly everyone the same probability; the order is never turned round.
LEAST_SLOPE = 0.05
#: With fewer rows of either kind a fit would be chance: the scores are taken as they are.
LEAST_ROWS = 20
_N_NEWTON = 100
#: Smallest change of the loss that is worth another step.
_TOLERANCE = 1e-12
_Floats = NDArray[np.float64]


def fit_calibration(score: _Floats, present: Bools) -> tuple[float, float]:
    """Fit probability = logistic(slope x score + intercept).

    Parameters
    ----------
    score : ndarray of float64, shape (n_rows,)
        Log odds.
    present : ndarray of bool, shape (n_rows,)

    Returns
    -------
    slope, intercept : float
        Slope above 0.

    Source: Platt, "Probabilistic outputs for support vector machines" (1999), with his targets, which are never quite 0 or 1;
    Newton steps after Lin, Lin and Weng (2007).
    """
    n_there, n_not = int(present.sum()), int((~present).sum())
    if min(n_there, n_not) < LEAST_ROWS:
        return 1.0, 0.0
    target = np.where(present, (n_there + 1.0) / (n_there + 2.0), 1.0 / (n_not + 2.0))
    columns = np.stack([score, np.ones_like(score)])
    base = float(np.log((n_there + 1.0) / (n_not + 1.0)))
    fit = np.array([0.0, base])
    loss = _loss(fit @ columns, target)
    for _ in range(_N_NEWTON):
        probability = probabilities(fit @ columns)
        gradient = columns @ (probability - target)
        hessian = (columns * (probability * (1.0 - probability))) @ columns.T + 1e-9 * np.eye(2)
        step = np.linalg.solve(hessian, gradient)
        scale = 1.0
        while scale > 1e-6 and _loss((fit - scale * step) @ columns, target) > loss:
            scale /= 2.0
        fit = fit - scale * step
        before, loss = loss, _loss(fit @ columns, target)
        if before - loss < _TOLERANCE * len(score):
            break
    if fit[0] < LEAST_SLOPE:
        return LEAST_SLOPE, base - LEAST_SLOPE * float(score.mean())
    return float(fit[0]), float(fit[1])


def probabilities(log_odds: _Floats) -> _Floats:
    """Turn log odds into probabilities, without overflow."""
    return np.exp(-np.logaddexp(0.0, -log_odds))


def _loss(log_odds: _Floats, target: _Floats) -> float:
    """Sum the logarithmic loss."""
    return float((np.logaddexp(0.0, log_odds) - target * log_odds).sum())
