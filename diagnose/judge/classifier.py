"""Judge a job by boosted trees: how probable each cause is, what that rests on, and whether any job in training was like it.

Enters: features, and `classifier.json`, which `python -m diagnose.train` writes. Leaves: a `Prediction`. The file is data: nothing
in it is executed, and every index in it is checked before a tree is walked.
"""

import dataclasses
import hashlib
import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from diagnose.errors import RuleError
from diagnose.judge.checked_json import MOST, take_entry, take_list, take_number, take_positive
from diagnose.judge.likeness import Likeness
from diagnose.judge.trees import Trees
from diagnose.model.feature import Features

#: Where training writes the classifier that ships with the program.
PACKAGED = Path(__file__).with_name("classifier.json")
#: Version of the file's layout.
FORMAT = 1
#: A larger file is a mistake, or an attack: 400 kB are enough for a thousand trees.
MAX_FILE_BYTES = 4 * 1024 * 1024
#: Inputs are rounded, in training as here, so that the last bits of a replay decide nothing; and bounded.
INPUT_DIGITS = 6
INPUT_BOUND = MOST
#: Features that are named when a job is unlike any other.
N_NAMED = 3


class Contribution(NamedTuple):
    """What one feature adds to the log odds of a cause; `value` is as the trees saw it, None where it was missing."""

    feature: str
    value: float | None
    log_odds: float


@dataclasses.dataclass(frozen=True, slots=True)
class Prediction:
    """What the classifier makes of a job."""

    #: Calibrated, 0..1, by cause; a cause that training had no jobs of is absent.
    probability: dict[str, float]
    #: `score`, `bias`: log odds before calibration; and what they are before any feature is looked at.
    score: dict[str, float]
    bias: dict[str, float]
    #: Why the job is unlike any in training, and the probabilities therefore mean little; None where it is like some.
    unlike: str | None
    _contributions: dict[str, tuple[Contribution, ...]]

    def contributions(self, cause: str) -> list[Contribution]:
        """List what features add to a cause's score, most first; with the bias they sum to it. None for an unknown cause."""
        return list(self._contributions.get(cause, ()))


@dataclasses.dataclass(frozen=True, slots=True)
class Classifier:
    """What training has learned, by cause.

    A probability is the logistic function of slope x score + intercept of `calibration`; `digest` is that of the file.
    """

    inputs: tuple[str, ...]
    trees: dict[str, Trees]
    calibration: dict[str, tuple[float, float]]
    likeness: Likeness
    digest: str

    def judge(self, features: Features) -> Prediction:
        """Judge a job by all its features: a value may be missing, a name may not.

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
        return Prediction(probability, score, bias, self._why_unlike(inputs, distance, apart), contributions)

    def _why_unlike(self, inputs: Sequence[float], distance: float, apart: NDArray[np.float64]) -> str | None:
        """Say which features are outside of what training has seen, or else furthest from the most similar job."""
        outside = self.likeness.outside(inputs)
        if distance <= self.likeness.limit and max(outside.values(), default=0.0) <= self.likeness.reach:
            return None
        named = list(outside) or [int(i) for i in np.argsort(-apart, kind="stable")]
        texts = [self._describe_range(i, inputs[i]) for i in named[:N_NAMED]]
        more = f"; and {len(outside) - N_NAMED} more" if len(outside) > N_NAMED else ""
        why = "" if outside else " with all of this at once"
        return f"the classifier was trained on no job like this one{why}: {'; '.join(texts)}{more}"

    def _describe_range(self, i: int, value: float) -> str:
        """Say a feature's value and its range in training."""
        values, _ = self.likeness.knots[i]
        found = "missing" if math.isnan(value) else f"{value:.3g}"
        seen = f"{values[0]:.3g} to {values[-1]:.3g}" if len(values) else "missing"
        return f"{self.inputs[i]} is {found}, in training {seen}"


def load_classifier(path: Path | None = None) -> Classifier | None:
    """Read a classifier; without a path the one that ships with the program, or None where this version ships without one.

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
    version = take_entry(found, "format", "file")
    if version != FORMAT or isinstance(version, bool):
        raise ValueError(f"format: {version!r}; expected {FORMAT}")
    inputs = take_list(take_entry(found, "inputs", "file"), "inputs")
    if not all(isinstance(name, str) for name in inputs) or len(set(inputs)) != len(inputs):
        raise ValueError("inputs: expected names of features, none twice")
    parts = take_entry(found, "causes", "file")
    if not isinstance(parts, dict) or not parts:
        raise ValueError("causes: expected at least one cause by name")
    trees, calibration = {}, {}
    for cause, part in parts.items():
        trees[cause] = Trees.read(part, f"causes/{cause}", len(inputs))
        place = f"causes/{cause}/calibration"
        fit = take_entry(part, "calibration", f"causes/{cause}")
        intercept = take_number(take_entry(fit, "intercept", place), f"{place}/intercept")
        calibration[cause] = (take_positive(fit, "slope", place), intercept)
    likeness = Likeness.read(take_entry(found, "likeness", "file"), "likeness", len(inputs))
    if not isinstance(take_entry(found, "training", "file"), dict):
        raise ValueError("training: expected figures by name")  # noqa: TRY004 - as all that is wrong with the file
    return Classifier(tuple(inputs), trees, calibration, likeness, hashlib.sha256(data).hexdigest()[:12])


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
    odds = math.exp(log_odds)
    return odds / (1.0 + odds)


def _or_none(value: float) -> float | None:
    return None if math.isnan(value) else value


def _refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is no number")
