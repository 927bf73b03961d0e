"""Judge a job by boosted trees: how probable each cause is, what that rests on, and whether any job in training was like it.

Enters: features, and `classifier.json`, which `python -m diagnose.train` writes. Leaves: a `Prediction`. The file is data: nothing
in it is executed, and every index in it is checked before a tree is walked.
"""

import dataclasses
import hashlib
import itertools
import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from diagnose.errors import RuleError
from diagnose.model.feature import Features

#: Where training writes the classifier that ships with the program.
PACKAGED = Path(__file__).with_name("classifier.json")
#: Version of the file's layout.
FORMAT = 1
#: A larger file is a mistake, or an attack: 400 kB are enough for a thousand trees.
MAX_FILE_BYTES = 4 * 1024 * 1024
#: Inputs are rounded, in training as here, so that the last bits of a replay decide nothing; and bounded.
INPUT_DIGITS = 6
INPUT_BOUND = 1e9
#: In the file, `feature` of a leaf.
LEAF = -1
#: Likeness looks at shares and ratios to the hundredth: what differs by less is the same job.
LIKENESS_DIGITS = 2
#: Distance between a feature that could be measured and the same feature missing; ranks lie in 0..1.
MISSING_DISTANCE = 1.0
#: A feature that was nearly constant in training counts as if it had had at least this range.
LEAST_RANGE = 0.1
#: Features that are named when a job is unlike any other.
N_NAMED = 3


class Contribution(NamedTuple):
    """What one feature adds to the log odds of a cause; `value` is as the trees saw it, None where it was missing."""

    feature: str
    value: float | None
    log_odds: float


@dataclasses.dataclass(frozen=True, slots=True)
class Prediction:
    """What the classifier makes of a job.

    Attributes
    ----------
    probability : dict of str to float
        Calibrated, 0..1, by cause; a cause that training had no jobs of is absent.
    score, bias : dict of str to float
        Log odds before calibration; and what they are before any feature is looked at.
    distance : float
        To the most similar job of training.
    unlike : str or None
        Why the job is unlike any in training, and the probabilities therefore mean little; None where it is like some.
    """

    probability: dict[str, float]
    score: dict[str, float]
    bias: dict[str, float]
    distance: float
    unlike: str | None
    _contributions: dict[str, tuple[Contribution, ...]]

    def contributions(self, cause: str) -> list[Contribution]:
        """List what features add to a cause's score, most first; with the bias they sum to it. None for an unknown cause."""
        return list(self._contributions.get(cause, ()))


@dataclasses.dataclass(frozen=True, slots=True)
class Trees:
    """Boosted trees of one cause, all nodes in one row; children come after their parents, in the same tree.

    Attributes
    ----------
    baseline : float
        Log odds without any tree.
    roots : list of int
        Node at which each tree begins.
    feature, left, right : list of int
        Input that a node looks at (`LEAF` where none), and its children.
    threshold : list of float
        Up to this value a job goes to the left.
    missing_left : list of bool
        Whether it goes there when the input is missing.
    expected : list of float
        Log odds of a leaf; elsewhere their mean over the jobs of training below the node.
    bias : float
        Baseline and the expected values of all roots.
    """

    baseline: float
    roots: list[int]
    feature: list[int]
    left: list[int]
    right: list[int]
    threshold: list[float]
    missing_left: list[bool]
    expected: list[float]
    bias: float

    @classmethod
    def read(cls, part: Any, place: str, n_inputs: int) -> "Trees":
        """Check and read the trees of a cause.

        Raises
        ------
        ValueError
            They are damaged; the message says where.
        """
        baseline = _number(_get(part, "baseline", place), f"{place}/baseline")
        feature = _integers(part, "feature", place, low=LEAF, high=n_inputs - 1)
        n_nodes = len(feature)
        roots = _integers(part, "roots", place, low=0, high=n_nodes - 1)
        left = _integers(part, "left", place, low=0, high=n_nodes - 1, n=n_nodes)
        right = _integers(part, "right", place, low=0, high=n_nodes - 1, n=n_nodes)
        missing_left = _integers(part, "missing_left", place, low=0, high=1, n=n_nodes)
        cover = _integers(part, "cover", place, low=1, high=2**31, n=n_nodes)
        threshold = _numbers(part, "threshold", place, n=n_nodes)
        expected = _numbers(part, "value", place, n=n_nodes)
        if roots[0] != 0 or any(a >= b for a, b in itertools.pairwise(roots)):
            raise ValueError(f"{place}/roots: expected 0 first, then increasing numbers")
        for root, end in zip(roots, [*roots[1:], n_nodes], strict=True):
            children = []
            for node in range(end - 1, root - 1, -1):
                if feature[node] == LEAF:
                    continue
                a, b = left[node], right[node]
                if not (node < a < end and node < b < end):
                    raise ValueError(
                        f"{place}: node {node} has children {a} and {b}; expected nodes after it, below {end}"
                    )
                if cover[node] != cover[a] + cover[b]:
                    raise ValueError(f"{place}/cover: {cover[node]} at node {node}; expected {cover[a] + cover[b]}")
                expected[node] = (cover[a] * expected[a] + cover[b] * expected[b]) / cover[node]
                children += [a, b]
            if sorted(children) != list(range(root + 1, end)):
                raise ValueError(f"{place}: the tree at node {root} has nodes with no parent, or with two")
        bias = baseline + math.fsum(expected[root] for root in roots)
        return cls(baseline, roots, feature, left, right, threshold, [m == 1 for m in missing_left], expected, bias)

    def explain(self, inputs: Sequence[float]) -> tuple[float, dict[int, float]]:
        """Score a job, and say what each input adds.

        Parameters
        ----------
        inputs : sequence of float
            NaN where missing.

        Returns
        -------
        score : float
            Log odds, before calibration.
        added : dict of int to float
            By input: how much the expected value changes at the nodes that look at it. With `bias` they sum to the score.

        Source: Saabas, "Random forest interpretation" (2014), for boosted trees.
        """
        added: dict[int, float] = {}
        score = self.baseline
        for root in self.roots:
            node = root
            while (feature := self.feature[node]) != LEAF:
                value = inputs[feature]
                # A missing value is NaN, which is at most nothing.
                goes_left = value <= self.threshold[node] or (self.missing_left[node] and math.isnan(value))
                child = self.left[node] if goes_left else self.right[node]
                added[feature] = added.get(feature, 0.0) + self.expected[child] - self.expected[node]
                node = child
            score += self.expected[node]
        return score, added


@dataclasses.dataclass(frozen=True, slots=True)
class Likeness:
    """Where the jobs of training lie, each feature as its rank among them.

    Attributes
    ----------
    knots : list of (ndarray, ndarray)
        For each input increasing values and their ranks, 0..1; empty where it was missing in all jobs. The first and the last
        are the range in training.
    prototypes : ndarray of float64, shape (n_prototypes, n_inputs)
        Ranks of jobs that are far from each other; NaN where missing.
    limit : float
        Jobs up to this distance from the nearest prototype are like those of training,
    reach : float
        unless one feature is further than this outside of its range there (as a logarithm, see `place`).
    """

    knots: list[tuple[NDArray[np.float64], NDArray[np.float64]]]
    prototypes: NDArray[np.float64]
    limit: float
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
        for i, pair in enumerate(_list(_get(part, "knots", place), f"{place}/knots", n=n_inputs)):
            here = f"{place}/knots/{i}"
            values, ranks = _numbers(pair, "value", here, empty=True), _numbers(pair, "rank", here, empty=True)
            rising = np.diff(values) > 0 if len(values) > 1 else np.array([True])
            falling = np.diff(ranks) < 0 if len(ranks) > 1 else np.array([False])
            if len(values) != len(ranks) or not rising.all() or falling.any() or any(not 0 <= r <= 1 for r in ranks):
                raise ValueError(
                    f"{here}: expected increasing values, and for each a rank from 0 to 1 that does not fall"
                )
            knots.append((np.array(values), np.array(ranks)))
        rows = _list(_get(part, "prototypes", place), f"{place}/prototypes")
        prototypes = [
            [math.nan if x is None else _number(x, f"{here}/{j}") for j, x in enumerate(_list(row, here, n=n_inputs))]
            for row, here in ((row, f"{place}/prototypes/{i}") for i, row in enumerate(rows))
        ]
        limit, reach = (_positive(part, name, place) for name in ("limit", "reach"))
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


@dataclasses.dataclass(frozen=True, slots=True)
class Classifier:
    """What training has learned, by cause.

    Attributes
    ----------
    inputs : tuple of str
        Names of the features that it looks at.
    trees : dict of str to Trees
    calibration : dict of str to (slope, intercept)
        Probability is the logistic function of slope x score + intercept.
    likeness : Likeness
    training : dict
        What it was trained on, and how good it is on other jobs.
    digest : str
        Of the file.
    """

    inputs: tuple[str, ...]
    trees: dict[str, Trees]
    calibration: dict[str, tuple[float, float]]
    likeness: Likeness
    training: dict[str, Any]
    digest: str

    @property
    def causes(self) -> tuple[str, ...]:
        """The causes it knows."""
        return tuple(self.trees)

    def judge(self, features: Features) -> Prediction:
        """Judge a job.

        Parameters
        ----------
        features : dict of str to Feature
            All features of a job; a value may be missing, a name may not.

        Returns
        -------
        Prediction

        Raises
        ------
        RuleError
            The classifier was trained on a feature that this version does not measure.
        """
        unknown = [name for name in self.inputs if name not in features]
        if unknown:
            raise RuleError(
                f"asks for {', '.join(unknown)}, which this version does not measure; train again: python -m diagnose.train",
                where="classifier",
            )
        inputs = [round_input(features[name].value) for name in self.inputs]
        probability, score, bias, contributions = {}, {}, {}, {}
        for cause, trees in self.trees.items():
            score[cause], added = trees.explain(inputs)
            bias[cause] = trees.bias
            slope, intercept = self.calibration[cause]
            probability[cause] = logistic(slope * score[cause] + intercept)
            found = [
                Contribution(self.inputs[i], _or_none(inputs[i]), log_odds) for i, log_odds in added.items() if log_odds
            ]
            contributions[cause] = tuple(sorted(found, key=lambda c: (-abs(c.log_odds), c.feature)))
        distance, apart = self.likeness.measure(self.likeness.place(inputs))
        return Prediction(probability, score, bias, distance, self._why_unlike(inputs, distance, apart), contributions)

    def _why_unlike(self, inputs: Sequence[float], distance: float, apart: NDArray[np.float64]) -> str | None:
        """Say which features are outside of what training has seen, or else furthest from the most similar job."""
        outside = self.likeness.outside(inputs)
        if distance <= self.likeness.limit and max(outside.values(), default=0.0) <= self.likeness.reach:
            return None
        named = list(outside) or [int(i) for i in np.argsort(-apart, kind="stable")]
        texts = [self._say_range(i, inputs[i]) for i in named[:N_NAMED]]
        more = f"; and {len(outside) - N_NAMED} more" if len(outside) > N_NAMED else ""
        why = "" if outside else " with all of this at once"
        return f"the classifier was trained on no job like this one{why}: {'; '.join(texts)}{more}"

    def _say_range(self, i: int, value: float) -> str:
        """Say a feature's value and its range in training."""
        values, _ = self.likeness.knots[i]
        found = "missing" if math.isnan(value) else f"{value:.3g}"
        seen = f"{values[0]:.3g} to {values[-1]:.3g}" if len(values) else "missing"
        return f"{self.inputs[i]} is {found}, in training {seen}"


def load_classifier(path: Path | None = None) -> Classifier | None:
    """Read a classifier.

    Parameters
    ----------
    path : Path, optional
        The one that ships with the program when left out.

    Returns
    -------
    Classifier or None
        None where no path was given and this version ships without one.

    Raises
    ------
    RuleError
        The file cannot be read or is damaged; the message says where.
    """
    file = path or PACKAGED
    try:
        with file.open("rb") as stream:
            data = stream.read(MAX_FILE_BYTES + 1)
    except FileNotFoundError:
        if path is None:
            return None
        raise RuleError(
            "no such file; expected a classifier as python -m diagnose.train writes it", where=str(file)
        ) from None
    except OSError as error:
        raise RuleError(f"cannot be read ({error.strerror})", where=str(file)) from None
    try:
        if len(data) > MAX_FILE_BYTES:
            raise ValueError(f"more than {MAX_FILE_BYTES:,} bytes; expected a classifier of a few hundred thousand")  # noqa: TRY301
        return read_classifier(data)
    except (ValueError, RecursionError) as error:
        raise RuleError(
            f"no classifier, or damaged: {error}; install diagnose again, or train with python -m diagnose.train",
            where=str(file),
        ) from None


def read_classifier(data: bytes) -> Classifier:
    """Check and read a classifier.

    Raises
    ------
    ValueError
        It is no JSON, or not a sound classifier; the message says where.
    """
    found = json.loads(data, parse_constant=_refuse_constant)
    version = _get(found, "format", "file")
    if version != FORMAT or isinstance(version, bool):
        raise ValueError(f"format: {version!r}; expected {FORMAT}")
    inputs = _list(_get(found, "inputs", "file"), "inputs")
    if not all(isinstance(name, str) for name in inputs) or len(set(inputs)) != len(inputs):
        raise ValueError("inputs: expected names of features, none twice")
    parts = _get(found, "causes", "file")
    if not isinstance(parts, dict) or not parts:
        raise ValueError("causes: expected at least one cause by name")
    trees, calibration = {}, {}
    for cause, part in parts.items():
        trees[cause] = Trees.read(part, f"causes/{cause}", len(inputs))
        place = f"causes/{cause}/calibration"
        fit = _get(part, "calibration", f"causes/{cause}")
        intercept = _number(_get(fit, "intercept", place), f"{place}/intercept")
        calibration[cause] = (_positive(fit, "slope", place), intercept)
    likeness = Likeness.read(_get(found, "likeness", "file"), "likeness", len(inputs))
    training = _get(found, "training", "file")
    if not isinstance(training, dict):
        raise ValueError("training: expected figures by name")  # noqa: TRY004 - as all that is wrong with the file
    return Classifier(tuple(inputs), trees, calibration, likeness, training, hashlib.sha256(data).hexdigest()[:12])


def round_input(value: float | None) -> float:
    """Give a feature to the trees: rounded and bounded; NaN where missing.

    >>> round_input(0.12345678), round_input(1e300), round_input(None)
    (0.123457, 1000000000.0, nan)
    """
    if value is None or math.isnan(value):
        return math.nan
    return round(min(max(float(value), -INPUT_BOUND), INPUT_BOUND), INPUT_DIGITS) + 0.0  # no negative zero


def logistic(log_odds: float) -> float:
    """Turn log odds into a probability, without overflow.

    >>> logistic(0.0), logistic(-1e6), logistic(1e6)
    (0.5, 0.0, 1.0)
    """
    if log_odds >= 0:
        return 1.0 / (1.0 + math.exp(-log_odds))
    odds = math.exp(max(log_odds, -745.0))  # below, exp is 0 all the same
    return odds / (1.0 + odds) if log_odds > -745.0 else 0.0


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


def _or_none(value: float) -> float | None:
    return None if math.isnan(value) else value


def _refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is no number")


def _get(part: Any, name: str, place: str) -> Any:
    """Take an entry of an object."""
    if not isinstance(part, dict) or name not in part:
        raise ValueError(f"{place}: expected an object with {name!r}")
    return part[name]


def _list(found: Any, place: str, *, n: int | None = None) -> list[Any]:
    """Take a list of that length, or of at least one."""
    if not isinstance(found, list) or (len(found) != n if n is not None else not found):
        raise ValueError(f"{place}: expected a list of {n if n is not None else 'at least one'}")
    return found


def _number(found: Any, place: str) -> float:
    """Take a number that is finite."""
    if isinstance(found, bool) or not isinstance(found, int | float) or not abs(found) <= INPUT_BOUND:
        raise ValueError(f"{place}: {str(found)[:40]!r}; expected a number up to {INPUT_BOUND:g}")
    return float(found)


def _positive(part: Any, name: str, place: str) -> float:
    """Take a number above 0."""
    found = _number(_get(part, name, place), f"{place}/{name}")
    if found <= 0:
        raise ValueError(f"{place}/{name}: {found}; expected a number above 0")
    return found


def _numbers(part: Any, name: str, place: str, *, n: int | None = None, empty: bool = False) -> list[float]:
    """Take a list of numbers."""
    found = _get(part, name, place)
    here = f"{place}/{name}"
    if empty and found == []:
        return []
    return [_number(x, f"{here}/{i}") for i, x in enumerate(_list(found, here, n=n))]


def _integers(part: Any, name: str, place: str, *, low: int, high: int, n: int | None = None) -> list[int]:
    """Take a list of integers within bounds."""
    found = _list(_get(part, name, place), f"{place}/{name}", n=n)
    for i, x in enumerate(found):
        if type(x) is not int or not low <= x <= high:
            raise ValueError(f"{place}/{name}/{i}: {str(x)[:40]!r}; expected an integer from {low} to {high}")
    return found
