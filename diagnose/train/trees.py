"""Grow the trees of one cause, and write them as flat arrays; the one file that knows scikit-learn, private parts of it included.

Enters: inputs and truth of jobs. Leaves: the arrays that `judge.classifier.Trees` reads.
"""

import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from diagnose.judge.classifier import INPUT_BOUND, INPUT_DIGITS
from diagnose.judge.trees import LEAF
from diagnose.model.trace import Bools

#: Thresholds lie halfway between two rounded inputs, or on one: one more digit keeps every input on its side.
_THRESHOLD_DIGITS = INPUT_DIGITS + 1
#: A hundred leaves rounded to this move no probability by more than a millionth.
_VALUE_DIGITS = 7


@dataclasses.dataclass(frozen=True, slots=True)
class TreeSettings:
    """How the trees grow: few, small, and slow to believe."""

    iterations: int = 80
    learning_rate: float = 0.1
    #: At most so many a tree.
    leaves: int = 6
    #: Rows a leaf has at least; a job has two.
    leaf_rows: int = 40
    #: Pulls the values of leaves to 0, as that many rows of weight 1.
    l2: float = 5.0


def fit_trees(
    inputs: NDArray[np.float64], present: Bools, rising: Sequence[bool], *, settings: TreeSettings, seed: int
) -> Any:
    """Grow the trees of one cause.

    Parameters
    ----------
    inputs : ndarray of float64, shape (n_rows, n_inputs)
        Rounded as by `round_input`; NaN where missing.
    present : ndarray of bool, shape (n_rows,)
        Both values occur.
    rising : sequence of bool
        Inputs of which more never makes the cause less probable.

    Returns
    -------
    sklearn.ensemble.HistGradientBoostingClassifier
    """
    from sklearn.ensemble import HistGradientBoostingClassifier
    from threadpoolctl import threadpool_limits  # type: ignore[import-untyped] # comes with scikit-learn, without types

    model = HistGradientBoostingClassifier(
        max_iter=settings.iterations,
        learning_rate=settings.learning_rate,
        max_leaf_nodes=settings.leaves,
        min_samples_leaf=settings.leaf_rows,
        l2_regularization=settings.l2,
        monotonic_cst=[int(r) for r in rising],
        early_stopping=False,
        random_state=seed,
    )
    # What is missing in all rows has no thresholds, which scikit-learn does not expect; a constant is never split by.
    inputs = np.where(np.isnan(inputs).all(axis=0), 0.0, inputs)
    # For a few thousand rows threads wait for each other longer than they work.
    with threadpool_limits(limits=1, user_api="openmp"):
        return model.fit(inputs, present)


def export_trees(model: Any) -> dict[str, Any]:
    """Write the trees of a model as flat arrays of numbers, rounded.

    Parameters
    ----------
    model : HistGradientBoostingClassifier
        Of two classes.

    Returns
    -------
    dict
        As `judge.classifier.Trees.read` expects.
    """
    found: dict[str, Any] = {
        "baseline": write_number(float(model._baseline_prediction.item()), _VALUE_DIGITS),  # noqa: SLF001 - the only way
        "roots": [],
    } | {name: [] for name in ("feature", "threshold", "left", "right", "missing_left", "value", "cover")}
    for (tree,) in model._predictors:  # noqa: SLF001 - the only way
        root = len(found["feature"])
        found["roots"].append(root)
        for node in tree.nodes:
            leaf = bool(node["is_leaf"])
            found["feature"].append(LEAF if leaf else int(node["feature_idx"]))
            found["threshold"].append(0 if leaf else _write_threshold(float(node["num_threshold"])))
            found["left"].append(0 if leaf else root + int(node["left"]))
            found["right"].append(0 if leaf else root + int(node["right"]))
            found["missing_left"].append(0 if leaf else int(node["missing_go_to_left"]))
            found["value"].append(write_number(float(node["value"]), _VALUE_DIGITS) if leaf else 0)
            found["cover"].append(int(node["count"]))
    return found


def library_version() -> str:
    """Name the version of scikit-learn."""
    import sklearn

    return str(sklearn.__version__)


def write_number(value: float, digits: int) -> float | int:
    """Round a number so that it is short in JSON.

    >>> write_number(-0.0000001, 3), write_number(0.12345, 3)
    (0, 0.123)
    """
    rounded = round(value, digits)
    return int(rounded) if rounded.is_integer() else rounded


def _write_threshold(threshold: float) -> float | int:
    """Shorten a threshold, downwards: 1.7999999999999998 must not become 1.8, which is an input to the right of it."""
    # A split that only parts measured from missing has an infinite threshold: no input is beyond the bound.
    threshold = min(threshold, INPUT_BOUND)
    rounded = write_number(threshold, _THRESHOLD_DIGITS)
    return rounded if rounded <= threshold else write_number(rounded - 10.0**-_THRESHOLD_DIGITS, _THRESHOLD_DIGITS)
