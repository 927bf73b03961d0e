"""The classifier: that its file says what was trained, that it explains itself, and that it knows what it has not seen."""

import copy
import hashlib
import json
import subprocess
import sys
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from diagnose.errors import RuleError
from diagnose.judge import classifier as module
from diagnose.judge.checked_json import take_integers, take_numbers
from diagnose.judge.classifier import Prediction, load_classifier, logistic, read_classifier, round_input
from diagnose.judge.trees import Trees
from diagnose.model.feature import Feature
from diagnose.train.fit import dump_model
from diagnose.train.trees import TreeSettings, export_trees, fit_trees
from tests.judge.measured_jobs import as_features, classifier, draw_jobs, trained

ABSENT = Feature.missing("for a test")


@cache
def seen() -> list[Prediction]:
    """Judge the jobs of training."""
    return [classifier().judge(as_features(values)) for job in draw_jobs(80, seed=1) for values in job.features]


@cache
def others() -> list[Prediction]:
    """Judge jobs of another seed."""
    return [classifier().judge(as_features(values)) for job in draw_jobs(150, seed=3) for values in job.features]


def some_features(**changes: Feature) -> dict[str, Feature]:
    """Give the features of a job with a slow worker, some of them changed; `__` stands for the dot."""
    (job, *_) = [job for job in draw_jobs(20, seed=4) if set(job.worth) == {"worker-fault"}]
    return as_features(job.features[0]) | {name.replace("__", "."): value for name, value in changes.items()}


# ------------------------------------------------------------------------------------------ what was trained


@pytest.mark.parametrize("seed", range(4))
def test_the_file_gives_the_probabilities_of_scikit_learn(seed: int) -> None:
    """Trees read back from JSON predict what scikit-learn does, to a millionth, for jobs seen and unseen, some values missing."""
    rng = np.random.default_rng(seed)
    inputs = np.vectorize(round_input)(rng.normal(size=(900, 5)) * [1, 1e-3, 1e3, 1, 1])
    inputs[:, 3] = inputs[:, 3].round(1)  # many equal values
    inputs[rng.random(inputs.shape) < 0.2] = np.nan
    inputs[:20, 4] = 1e9
    # One input tells by being missing: scikit-learn then puts the threshold at infinity.
    odds = inputs[:, 0] + 0.8 * (np.nan_to_num(inputs[:, 1]) > 0) + 2.0 * np.isnan(inputs[:, 2])
    present = np.nan_to_num(odds) + rng.normal(size=len(odds)) > 0.7
    known = slice(0, 500)
    settings = TreeSettings(iterations=60, leaf_rows=10, l2=1.0)
    model = fit_trees(inputs[known], present[known], [True] + 4 * [False], settings=settings, seed=0)
    trees = Trees.read(json.loads(json.dumps(export_trees(model))), "trees", 5)
    found = [logistic(trees.explain(row)[0]) for row in inputs.tolist()]
    assert found == pytest.approx(model.predict_proba(inputs)[:, 1], abs=1e-6)


def test_causes_are_told_apart() -> None:
    """Of jobs it has not seen it says the cause that is there, and no other, nearly always."""
    jobs = [job for job in draw_jobs(150, seed=3) for _ in job.features]
    for cause in classifier().trees:
        right = [
            (prediction.probability[cause] > 0.5) == (cause in job.worth)
            for prediction, job in zip(others(), jobs, strict=True)
        ]
        assert np.mean(right) > 0.97


def test_what_it_has_no_jobs_of_it_does_not_judge() -> None:
    """A cause that no job of training had gets no probability, and no contributions."""
    prediction = classifier().judge(some_features())
    assert set(prediction.probability) == set(classifier().trees) == {"worker-fault", "stage-imbalance"}
    assert prediction.contributions("network-fault") == []


def test_more_gain_is_never_less_probable() -> None:
    """Raising what a cause's own component gives back never lowers its probability."""
    gains = np.linspace(-0.5, 2.0, 120)
    values = [Feature(float(x)) for x in gains]
    predictions = [classifier().judge(some_features(gain__worker=x, last__worker=x)) for x in values]
    found = [prediction.probability["worker-fault"] for prediction in predictions]
    assert np.all(np.diff(found) >= 0)
    assert found[-1] > found[0] + 0.1


def test_probability_follows_the_score() -> None:
    """The job with the higher score has the higher probability: calibration changes no order."""
    for cause in classifier().trees:
        ordered = sorted((prediction.score[cause], prediction.probability[cause]) for prediction in others())
        assert [p for _, p in ordered] == sorted(p for _, p in ordered)


# ------------------------------------------------------------------------------------------ how it explains itself


def test_contributions_sum_to_the_score() -> None:
    """Bias and contributions make up the score of every job, missing values or not."""
    for prediction in seen() + others():
        for cause, score in prediction.score.items():
            added = sum(c.log_odds for c in prediction.contributions(cause))
            assert prediction.bias[cause] + added == pytest.approx(score, abs=1e-9)


def test_the_bias_is_the_mean_score_of_training() -> None:
    """Before any feature is looked at, a job has the mean score of the jobs of training."""
    for cause in classifier().trees:
        assert classifier().trees[cause].bias == pytest.approx(np.mean([o.score[cause] for o in seen()]), abs=1e-6)


def test_the_strongest_reason_comes_first() -> None:
    """A slow worker is believed in because of what removing it gives back, and that stands first, with its value."""
    features = some_features()
    first, *rest = classifier().judge(features).contributions("worker-fault")
    assert first.feature in {"gain.worker", "last.worker"}
    assert first.value == pytest.approx(features[first.feature].value, abs=1e-6)
    assert first.log_odds > 0
    assert [abs(c.log_odds) for c in rest] == sorted((abs(c.log_odds) for c in rest), reverse=True)


def test_a_missing_feature_is_an_input() -> None:
    """Without its gains a slow worker is less probable, and a contribution of theirs says that they were missing."""
    measured = classifier().judge(some_features())
    missing = classifier().judge(some_features(gain__worker=ABSENT, last__worker=ABSENT))
    assert missing.probability["worker-fault"] < measured.probability["worker-fault"]
    assert {c.value for c in missing.contributions("worker-fault") if c.feature in {"gain.worker", "last.worker"}} == {
        None
    }


def test_a_feature_that_is_gone_is_an_error() -> None:
    """A classifier that asks for a feature which this version does not measure says so, and what to do."""
    features = some_features()
    del features["gain.worker"]
    with pytest.raises(RuleError, match=r"asks for gain\.worker.*python -m diagnose\.train"):
        classifier().judge(features)


# ------------------------------------------------------------------------------------------ what it has not seen


@pytest.mark.parametrize(
    ("name", "value"), [("gain.worker", 40.0), ("worker.ratio", -1e300), ("network.link_ratio", 1e12)]
)
def test_absurd_values_are_unlike_training(name: str, value: float) -> None:
    """A feature far outside of its range in training is named, with that range."""
    unlike = classifier().judge(some_features() | {name: Feature(value)}).unlike
    assert unlike is not None
    assert f"{name} is " in unlike
    assert "in training" in unlike


def test_of_many_absurd_values_three_are_named() -> None:
    """The others are counted."""
    names = sorted(some_features())[:5]
    unlike = classifier().judge(some_features() | dict.fromkeys(names, Feature(9e8))).unlike or ""
    assert (unlike.count("in training "), unlike.endswith(" more")) == (3, True)


@pytest.mark.parametrize("value", [-2e9, 2e9, np.inf, "1"])
def test_a_number_that_is_none_is_told_by_its_place(value: Any) -> None:
    """Too small, too large, or no number at all."""
    with pytest.raises(ValueError, match="here/x/1"):
        take_numbers({"x": [0.0, value]}, "x", "here")


def test_an_unseen_company_of_missing_features_is_unlike_training() -> None:
    """A job of which nearly nothing could be measured is unlike all others, though no value of it is out of range."""
    features = dict.fromkeys(some_features(), ABSENT) | {"gain.worker": Feature(0.1)}
    assert "at once" in (classifier().judge(features).unlike or "")


def test_other_jobs_of_the_kind_are_not_unlike() -> None:
    """Of jobs of another seed at most one in a hundred is called unlike training, and of those it was trained on none is."""
    assert np.mean([prediction.unlike is not None for prediction in others()]) <= 0.01
    assert not any(prediction.unlike for prediction in seen())


# ------------------------------------------------------------------------------------------ its file


def damage(path: str, value: Any) -> Callable[[dict[str, Any]], None]:
    """Replace the entry at a path (`a/b/0`); with `...` take it away."""

    def change(model: dict[str, Any]) -> None:
        *way, last = [int(part) if part.isdigit() else part for part in path.split("/")]
        part: Any = model
        for step in way:
            part = part[step]
        if value is ...:
            del part[last]
        else:
            part[last] = value

    return change


WORKER = "causes/worker-fault"


@pytest.mark.parametrize(
    ("path", "value", "says"),
    [
        ("format", 2, "format: 2; expected 1"),
        ("format", ..., "'format'"),
        ("inputs", [], "inputs: expected a list"),
        ("inputs/1", "gain.worker", "none twice"),
        ("causes", {}, "at least one cause"),
        ("causes", [], "at least one cause"),
        (f"{WORKER}/left/0", 0, "node 0 has children 0"),
        (f"{WORKER}/left", "first right", "no parent, or with two"),
        (f"{WORKER}/right/0", 10**6, "right/0: '1000000'"),
        (f"{WORKER}/right/0", 10**400, "right/0"),
        (f"{WORKER}/left", "leaf", r"left/\d\d?: '\d\d?'; expected an integer from 0 to \d\d?;"),
        (f"{WORKER}/left/0", 1.0, "left/0: '1.0'; expected an integer"),
        (f"{WORKER}/left/0", True, "left/0: 'True'; expected an integer"),
        (f"{WORKER}/feature/0", 999, "feature/0: '999'"),
        (f"{WORKER}/feature/0", -2, "feature/0: '-2'"),
        (f"{WORKER}/cover/0", 3, "cover: 3 at node 0"),
        (f"{WORKER}/cover/2", 0, "cover/2: '0'"),
        (f"{WORKER}/value", [0.5], "value: expected a list of"),
        (f"{WORKER}/threshold/0", None, "threshold/0: 'None'; expected a number"),
        (f"{WORKER}/threshold/0", 1e300, "threshold/0: '1e+300'; expected a number"),
        (f"{WORKER}/roots/0", 1, "roots: expected 0 first"),
        (f"{WORKER}/roots/1", 0, "roots: expected 0 first"),
        (f"{WORKER}/roots/1", 2, "children|no parent"),
        (f"{WORKER}/baseline", "0", "baseline: '0'; expected a number"),
        (f"{WORKER}/calibration/slope", -1.0, "slope: -1.0; expected a number above 0"),
        (f"{WORKER}/calibration", None, "'intercept'"),
        ("likeness/knots/0/rank/0", 2.0, "knots/0: expected increasing values"),
        ("likeness/knots/0/value/1", -1e6, "knots/0: expected increasing values"),
        ("likeness/knots", [], "knots: expected a list of"),
        ("likeness/prototypes/0", [0.5], "prototypes/0: expected a list of"),
        ("likeness/prototypes/0/0", "a", "prototypes/0/0: 'a'"),
        ("likeness/limit", 0, "limit: 0.0; expected a number above 0"),
        ("training", None, "training: expected figures"),
    ],
)
def test_damage_is_named(tmp_path: Path, path: str, value: Any, says: str) -> None:
    """A damaged file is refused with its name, the place of the damage and the next step."""
    model = copy.deepcopy(trained())
    if value == "first right":  # both children of the first node are one, and its cover is right
        part = model["causes"]["worker-fault"]
        value = [part["right"][0], *part["left"][1:]]
        part["cover"][0] = 2 * part["cover"][part["right"][0]]
    if value == "leaf":  # has a child behind the last node, which nobody goes to
        part = model["causes"]["worker-fault"]
        leaf, n_nodes = part["feature"].index(-1), len(part["left"])
        value = [n_nodes if i == leaf else left for i, left in enumerate(part["left"])]
    damage(path, value)(model)
    file = tmp_path / "classifier.json"
    file.write_text(json.dumps(model))
    with pytest.raises(RuleError, match=says.replace("+", r"\+")) as error:
        load_classifier(file)
    assert str(error.value).startswith(f"{file}: ")
    assert "python -m diagnose.train" in str(error.value)


@pytest.mark.parametrize("text", ["", "[]", "{", '{"format": NaN}', "[" * 100_000, "\x00\xff", '{"format": true}'])
def test_what_is_no_classifier_is_refused(tmp_path: Path, text: str) -> None:
    """Other files, empty ones and bottomless ones are refused in one line."""
    file = tmp_path / "classifier.json"
    file.write_bytes(text.encode("latin-1"))
    with pytest.raises(RuleError, match="no classifier, or damaged") as error:
        load_classifier(file)
    assert "\n" not in str(error.value)


def test_half_a_file_is_refused() -> None:
    """A file cut off anywhere is no classifier."""
    data = dump_model(trained()).encode()
    for end in range(0, len(data) - 2, 997):
        with pytest.raises(ValueError, match=r"."):
            read_classifier(data[:end])


def test_no_damage_hangs_or_crashes() -> None:
    """Whatever a number in the file is changed to: it is refused, or what is left still judges, and ends."""
    rng = np.random.default_rng(0)
    features = some_features()
    values = [None, -1, 0, 1, 2, 7, 10**9, -0.5, "x", [], {}, True]
    outcomes = set()
    for _ in range(150):
        model = copy.deepcopy(trained())
        part: Any = model
        while True:
            keys = list(part) if isinstance(part, dict) else list(range(len(part)))
            key = keys[int(rng.integers(len(keys)))]
            if not isinstance(part[key], dict | list) or not part[key] or rng.random() < 0.02:
                break
            part = part[key]
        part[key] = values[int(rng.integers(len(values)))]
        try:
            prediction = read_classifier(json.dumps(model).encode()).judge(features)
        except (ValueError, RuleError):
            outcomes.add("refused")
        else:
            outcomes.add("judged")
            assert all(0.0 <= p <= 1.0 for p in prediction.probability.values())
    assert outcomes == {"refused", "judged"}


def test_a_version_without_a_classifier_has_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where no classifier ships there is none; one that was asked for by its path must be there."""
    monkeypatch.setattr(module, "PACKAGED", tmp_path / "classifier.json")
    assert load_classifier() is None
    with pytest.raises(RuleError, match="no such file"):
        load_classifier(tmp_path / "classifier.json")
    with pytest.raises(RuleError, match="cannot be read"):
        load_classifier(tmp_path)


def test_a_huge_file_is_not_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file larger than any classifier is refused for its size."""
    monkeypatch.setattr(module, "MAX_FILE_BYTES", 1000)
    file = tmp_path / "classifier.json"
    file.write_text(dump_model(trained()))
    with pytest.raises(RuleError, match="more than 1,000 bytes"):
        load_classifier(file)


def test_the_digest_names_the_file(tmp_path: Path) -> None:
    """The digest is that of the file's bytes, and another file has another."""
    file = tmp_path / "classifier.json"
    file.write_text(dump_model(trained()))
    found = load_classifier(file)
    assert found is not None
    assert found.digest == hashlib.sha256(file.read_bytes()).hexdigest()[:12]
    file.write_text(dump_model(trained()) + "\n")
    again = load_classifier(file)
    assert again is not None
    assert again.digest != found.digest


def test_diagnosing_needs_no_scikit_learn() -> None:
    """Loading and judging imports neither scikit-learn nor pandas."""
    code = "import sys, diagnose.judge.classifier as c; c.load_classifier(); print(*sys.modules)"
    found = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert not {"sklearn", "scipy", "pandas", "pyarrow"} & set(found.stdout.split())


def test_the_number_that_is_out_of_bounds_is_named() -> None:
    """One on a bound is inside."""
    assert take_integers({"a": [0, 5]}, "a", "x", low=0, high=5) == [0, 5]
    with pytest.raises(ValueError, match="x/a/2: '6'; expected an integer from 0 to 5"):
        take_integers({"a": [0, 5, 6]}, "a", "x", low=0, high=5)
