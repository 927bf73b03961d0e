"""Whether any job of training was like this one.

Enters: a part of the classifier's file; inputs of a job. Leaves: its distance to the most similar job of training, and which inputs
are outside of their range there.
"""

import dataclasses
import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from diagnose.judge.checked_json import take_entry, take_known_numbers, take_list, take_numbers, take_positive

#: Likeness looks at shares and ratios to the hundredth: what differs by less is the same job.
LIKENESS_DIGITS = 2
#: Distance between a feature that could be measured and the same feature missing; ranks lie in 0..1.
MISSING_DISTANCE = 1.0
#: A feature that was nearly constant in training counts as if it had had at least this range.
LEAST_RANGE = 0.1


@dataclasses.dataclass(frozen=True, slots=True)
class Likeness:
    """Where the jobs of training lie, each feature as its rank among them."""

    #: For each input increasing values and their ranks, 0..1; empty where it was missing in all
    #: jobs. The first and the last are the range in training.
    knots: list[tuple[NDArray[np.float64], NDArray[np.float64]]]
    #: Shape (n_prototypes, n_inputs): ranks of jobs that are far from each other; NaN where missing.
    prototypes: NDArray[np.float64]
    #: Jobs up to this distance from the nearest prototype are like those of training,
    limit: float
    #: unless one feature is further than this outside of its range there (as a logarithm, see `place`).
    reach: float

    @classmethod
    def read(cls, part: Any, place: str, n_inputs: int) -> "Likeness":
        """Check and read.

        Raises
        ------
        ValueError
            It is damaged; the message says where.
        """
        knots = []
        for i, pair in enumerate(take_list(take_entry(part, "knots", place), f"{place}/knots", n=n_inputs)):
            here = f"{place}/knots/{i}"
            values, ranks = take_numbers(pair, "value", here, empty=True), take_numbers(pair, "rank", here, empty=True)
            is_rising = (np.diff(values) > 0).all() and (np.diff(ranks) >= 0).all()
            if len(values) != len(ranks) or not is_rising or any(not 0 <= r <= 1 for r in ranks):
                raise ValueError(
                    f"{here}: expected increasing values, and for each a rank from 0 to 1 that does not fall"
                )
            knots.append((np.array(values), np.array(ranks)))
        rows = take_list(take_entry(part, "prototypes", place), f"{place}/prototypes")
        prototypes = [take_known_numbers(row, f"{place}/prototypes/{i}", n=n_inputs) for i, row in enumerate(rows)]
        limit, reach = (take_positive(part, name, place) for name in ("limit", "reach"))
        return cls(knots, np.array(prototypes), limit, reach)

    def place(self, inputs: Sequence[float]) -> NDArray[np.float64]:
        """Turn inputs into ranks among the jobs of training; beyond their range further out, as a logarithm; NaN where missing."""
        return np.array([_rank(x, *knots) for x, knots in zip(inputs, self.knots, strict=True)])

    def measure(self, place: NDArray[np.float64]) -> tuple[float, NDArray[np.float64]]:
        """Measure the distance to the nearest prototype, and how far each input is from it."""
        apart = distances(place, self.prototypes)
        total = np.sqrt((apart**2).sum(axis=1))
        nearest = int(total.argmin())
        return float(total[nearest]), apart[nearest]

    def outside(self, inputs: Sequence[float]) -> dict[int, float]:
        """Say how far inputs are outside of their range in training, furthest first."""
        out = {}
        for i, (x, (values, ranks)) in enumerate(zip(inputs, self.knots, strict=True)):
            if not math.isnan(rank := _rank(x, values, ranks)):
                out[i] = max(rank - float(ranks[-1]), float(ranks[0]) - rank)
        return {i: out[i] for i in sorted(out, key=lambda i: -out[i]) if out[i] > 0}


def distances(place: NDArray[np.float64], others: NDArray[np.float64]) -> NDArray[np.float64]:
    """Say how far a job is from others in each feature; a missing one is far from a measured one.

    Parameters
    ----------
    place : ndarray of float64, shape (n_inputs,)
    others : ndarray of float64, shape (n_others, n_inputs)
        Ranks; NaN where missing.

    Returns
    -------
    ndarray of float64, shape (n_others, n_inputs)
    """
    apart: NDArray[np.float64] = np.abs(others - place)
    one_missing = np.isnan(others) != np.isnan(place)
    return np.where(one_missing, MISSING_DISTANCE, np.nan_to_num(apart))


def _rank(value: float, values: NDArray[np.float64], ranks: NDArray[np.float64]) -> float:
    """Give the rank of a value among those of training; one that no job there had is one that no tree looks at."""
    if math.isnan(value) or not len(values):
        return math.nan
    value = round(value, LIKENESS_DIGITS)
    low, high = float(values[0]), float(values[-1])
    scale = max(high - low, LEAST_RANGE)
    if value > high:
        return float(ranks[-1]) + math.log1p((value - high) / scale)
    if value < low:
        return float(ranks[0]) - math.log1p((low - value) / scale)
    return float(np.interp(value, values, ranks))
