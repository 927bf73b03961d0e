"""Learn where the jobs of training lie, so that a job unlike all of them is noticed.

Enters: inputs of jobs. Leaves: what `judge.likeness.Likeness` reads.
"""

import dataclasses
from typing import Any

import numpy as np
from numpy.typing import NDArray

from diagnose.judge.likeness import LIKENESS_DIGITS, Likeness, distances
from diagnose.train.trees import write_number

#: Quantiles between which ranks are interpolated; the first and the last are the range.
LEVELS = (0.0, 0.05, 0.1, 0.25, 0.5, 0.75, 0.9, 0.95, 0.99, 1.0)
N_PROTOTYPES = 200
#: So many of the jobs that were held out are as far away as the limit, before the margin.
LIMIT_QUANTILE = 0.999
MARGIN = 1.1
#: A limit of 0 (held-out jobs all as those of training) would make every other job unlike.
LEAST_LIMIT = 0.25
#: Beyond the range of training by less than its width is not absurd: there are more jobs in the world than in training.
LEAST_REACH = 0.7
_RANK_DIGITS = 3
_Floats = NDArray[np.float64]


def learn_likeness(inputs: _Floats, held_out: _Floats) -> dict[str, Any]:
    """Learn ranks, prototypes and the limit.

    Parameters
    ----------
    inputs, held_out : ndarray of float64, shape (n_rows, n_inputs)
        Of the jobs of training, and of others; NaN where missing.

    Returns
    -------
    dict
        As `judge.likeness.Likeness.read` expects.
    """
    knots = [_make_knots(column) for column in inputs.T]
    ruler = Likeness(
        [(np.array(k["value"]), np.array(k["rank"])) for k in knots], np.empty((0, inputs.shape[1])), 1.0, 1.0
    )
    columns = [_rank(column, *knot) for column, knot in zip(inputs.T, ruler.knots, strict=True)]
    places = np.round(np.stack(columns, axis=1), _RANK_DIGITS).astype(np.float64)
    prototypes = _spread_out(places)
    ruler = dataclasses.replace(ruler, prototypes=prototypes)
    rows = [row.tolist() for row in held_out]
    limit = _limit_above([ruler.measure(ruler.place(row))[0] for row in rows], LEAST_LIMIT)
    excess = [max(ruler.outside(row).values(), default=0.0) for row in rows]
    return {
        "knots": knots,
        "prototypes": [
            [None if np.isnan(x) else write_number(float(x), _RANK_DIGITS) for x in row] for row in prototypes
        ],
        "limit": limit,
        "reach": _limit_above(excess, LEAST_REACH),
    }


def _rank(column: _Floats, values: _Floats, ranks: _Floats) -> _Floats:
    """Turn an input of all jobs of training into ranks, as `Likeness.place` does for one job."""
    if not len(values):
        return np.full(len(column), np.nan)
    return np.where(np.isnan(column), np.nan, np.interp(np.round(column, LIKENESS_DIGITS), values, ranks))


def _limit_above(found: list[float], least: float) -> float:
    """Set a limit that held-out jobs keep, but for one in a thousand, with a margin."""
    limit = max(MARGIN * float(np.quantile(found, LIMIT_QUANTILE, method="higher")), least)
    return write_number(limit, _RANK_DIGITS)


def _make_knots(column: _Floats) -> dict[str, list[float | int]]:
    """Say which rank values have: of equal values, the middle of theirs."""
    values = np.sort(np.round(column[~np.isnan(column)], LIKENESS_DIGITS) + 0.0)
    if not len(values):
        return {"value": [], "rank": []}
    knots = np.unique(np.quantile(values, LEVELS, method="nearest"))
    ranks = (np.searchsorted(values, knots, "left") + np.searchsorted(values, knots, "right")) / (2 * len(values))
    return {
        "value": [write_number(float(x), LIKENESS_DIGITS) for x in knots],
        "rank": [write_number(float(x), _RANK_DIGITS) for x in ranks],
    }


def _spread_out(places: _Floats) -> _Floats:
    """Pick jobs so that every job is near one: the next is always the one that is furthest from all before.

    Source: Gonzalez, "Clustering to minimize the maximum intercluster distance" (1985).
    """
    middle = np.array([np.nan if np.isnan(c).mean() > 0.5 else np.nanmedian(c) for c in places.T])
    picked = [int((distances(middle, places) ** 2).sum(axis=1).argmin())]
    nearest = np.full(len(places), np.inf)
    while len(picked) < N_PROTOTYPES:
        nearest = np.minimum(nearest, (distances(places[picked[-1]], places) ** 2).sum(axis=1))
        if not nearest.any():
            break
        picked.append(int(nearest.argmax()))
    return places[picked]
