"""What a microbatch costs by the lengths of its documents, and a fit of that to measured times.

Enters: lengths of documents, or sums over microbatches with their seconds. Leaves: a `Cost`, and costs.
"""

import dataclasses
import itertools
from typing import Any

import numpy as np
from numpy.typing import NDArray

from diagnose.errors import UsageError
from diagnose.model.trace import Seconds
from diagnose.numerics.robust import MAD_TO_SIGMA

#: Rows below which a fit says nothing.
_LEAST_ROWS = 6
#: Larger numbers would overflow when multiplied by squared lengths.
_LARGEST = 1e100
#: Rounds of reweighting; the weights settle in fewer.
_ROUNDS = 20
#: A residual beyond so many standard deviations counts less (Huber's constant: 95% efficient on normal noise).
_HUBER = 1.345
#: Rounding noise of a perfect fit, as part of the typical time; residuals below it are no outliers.
_EXACT = 1e-9


@dataclasses.dataclass(frozen=True, slots=True)
class Cost:
    """Cost of a microbatch: fixed + linear x tokens + quadratic x sum of squared document lengths.

    Notes
    -----
    The unit is the caller's: seconds where the numbers are fitted, tokens where `linear` is 1. Packers look at ratios only.

    >>> Cost(1.0, 1 / 26_000).of([26_000, 13_000]).tolist()
    [52000.0, 19500.0]
    """

    #: Cost of a token (matrix products, element-wise work, communication).
    linear: float
    #: Cost of a squared token: attention inside each document.
    quadratic: float
    #: Cost of a microbatch that does not depend on its documents.
    fixed: float = 0.0

    def __post_init__(self) -> None:
        numbers = (self.linear, self.quadratic, self.fixed)
        if not all(0 <= number <= _LARGEST for number in numbers):
            raise UsageError(
                f"a cost of {self.linear:g} x tokens + {self.quadratic:g} x tokens_sq + {self.fixed:g} makes no sense; "
                f"expected numbers from 0 to {_LARGEST:g}"
            )
        if self.linear + self.quadratic <= 0:
            raise UsageError("a cost that does not grow with the tokens balances nothing; expected one number above 0")

    def of(self, lengths: Any) -> Seconds:
        """Give the cost of each document, without the fixed part; `lengths` are tokens, of any shape."""
        tokens = np.asarray(lengths, dtype=np.float64)
        return tokens * (self.linear + self.quadratic * tokens)


#: The cost of the published packing table, in tokens: attention weighs as much as the rest at 26,000 tokens.
PUBLISHED_COST = Cost(linear=1.0, quadratic=1.0 / 26_000.0)


@dataclasses.dataclass(frozen=True, slots=True)
class CostFit:
    """A fitted cost and how well it says the times."""

    #: In seconds.
    cost: Cost
    #: Share of the variance of the times that the cost says, 1 = all; below 0 it is worse than the mean.
    r_squared: float


def fit_cost(tokens: Any, tokens_sq: Any, seconds: Any) -> CostFit | None:
    """Fit the cost of a microbatch to measured times: least squares, no number below 0, outliers counted less.

    Parameters
    ----------
    tokens, tokens_sq : array_like, shape (n,)
        Sum of the document lengths and of their squares in each microbatch.
    seconds : array_like, shape (n,)
        Time of each microbatch. Rows where anything is missing, or the time is not above 0, are left out.

    Returns
    -------
    CostFit or None
        None where fewer than 6 rows are left, or the times do not grow with the tokens.

    Raises
    ------
    UsageError
        The three are not equally long.

    Notes
    -----
    Numbers that may not be negative are fitted exactly by trying every set of them that may be above 0. Outliers are held down by
    Huber's weights, whose scale is the median absolute residual.
    """
    x1, x2, y = (np.asarray(values, dtype=np.float64).ravel() for values in (tokens, tokens_sq, seconds))
    if not len(x1) == len(x2) == len(y):
        raise UsageError(f"{len(x1)} tokens, {len(x2)} tokens_sq and {len(y)} seconds; expected as many of each")
    good = np.isfinite(x1) & np.isfinite(x2) & np.isfinite(y) & (x1 >= 0) & (x2 >= 0) & (y > 0)
    if good.sum() < _LEAST_ROWS:
        return None
    y = y[good]
    columns = np.column_stack([x1[good], x2[good]])
    numbers = _reweight(columns, y)
    if numbers.sum() <= 0:
        return None
    predicted = columns @ numbers
    spread = float(((y - y.mean()) ** 2).sum())
    missed = float(((y - predicted) ** 2).sum())
    flat = 1.0 if missed <= (_EXACT * y.mean()) ** 2 * len(y) else 0.0
    return CostFit(
        Cost(*numbers.tolist()),
        r_squared=1.0 - missed / spread if spread > 0 else flat,
    )


def _reweight(columns: Seconds, y: Seconds) -> Seconds:
    """Fit again and again with less weight on what lies far off; give the last numbers."""
    numbers = _fit_non_negative(columns, y)
    for _ in range(_ROUNDS):
        off = np.abs(columns @ numbers - y)
        scale = _HUBER * max(MAD_TO_SIGMA * float(np.median(off)), _EXACT * float(np.median(y)))
        root = np.sqrt(np.minimum(1.0, scale / np.maximum(off, scale)))
        last, numbers = numbers, _fit_non_negative(columns * root[:, None], y * root)
        if np.allclose(last, numbers, rtol=1e-9, atol=0.0):
            break
    return numbers


def _fit_non_negative(columns: Seconds, y: Seconds) -> Seconds:
    """Solve non-negative least squares of few columns by trying every set of columns, the best feasible wins."""
    n = columns.shape[1]
    scale = np.maximum(np.abs(columns).max(axis=0), np.finfo(np.float64).tiny)
    scaled: NDArray[np.float64] = columns / scale
    best, least = np.zeros(n), float(y @ y)
    for size in range(1, n + 1):
        for chosen in itertools.combinations(range(n), size):
            found = np.linalg.lstsq(scaled[:, chosen], y, rcond=None)[0]
            missed = float(((scaled[:, chosen] @ found - y) ** 2).sum())
            if (found >= 0).all() and missed < least:
                best, least = np.zeros(n), missed
                best[list(chosen)] = found
    rescaled: Seconds = best / scale
    return rescaled
