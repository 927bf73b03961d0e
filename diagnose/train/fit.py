"""Train the classifier: trees on some jobs, calibration and limits on others, figures on both sides of a cut through those.

Enters: measured jobs. Leaves: the content of `classifier.json`.
"""

import dataclasses
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from diagnose.errors import UsageError
from diagnose.judge.classifier import FORMAT
from diagnose.judge.rule import Rule
from diagnose.judge.trees import Trees
from diagnose.model.trace import Bools
from diagnose.train.calibrate import fit_calibration, probabilities
from diagnose.train.likeness import learn_likeness
from diagnose.train.measure import MeasuredJob
from diagnose.train.table import Table, choose_inputs, inputs_of, list_patterns, make_table
from diagnose.train.trees import TreeSettings, export_trees, fit_trees, library_version, write_number

#: A cause is said from this probability on.
SAID = 0.5
_N_BINS = 10
_DIGITS = 4
_Floats = NDArray[np.float64]


def train(
    jobs: Sequence[MeasuredJob],
    calibration_jobs: Sequence[MeasuredJob],
    rules: Sequence[Rule],
    *,
    settings: TreeSettings | None = None,
    seed: int = 0,
    left_out: Sequence[MeasuredJob] = (),
) -> dict[str, Any]:
    """Train a classifier.

    Parameters
    ----------
    jobs : sequence of MeasuredJob
        For the trees; those that failed are left out, here as below.
    calibration_jobs : sequence of MeasuredJob
        Of other seeds and another noise level: for the calibration, the limit of likeness and the figures.
    rules : sequence of Rule
        Of the causes, each with what its trees may see and its components: the more they give back, the more probable the cause.
    left_out : sequence of MeasuredJob
        More jobs to give figures of.

    Returns
    -------
    dict
        What `judge.classifier` reads, for `write_model`.

    Raises
    ------
    UsageError
        There are no jobs, no cause has jobs with it and without, or an input is unknown.
    """
    known = [values for job in jobs for values in job.features]
    if not known or not any(job.features for job in calibration_jobs):
        raise UsageError(
            "no job could be measured; expected some for the trees and some for the calibration", where="jobs"
        )
    names, ids = choose_inputs(known[0], list_patterns(rules)), [rule.id for rule in rules]
    table, other = make_table(jobs, names, ids), make_table(calibration_jobs, names, ids)
    settings = settings or TreeSettings()
    causes: dict[str, Any] = {}
    for rule in rules:
        there, clear = table.truth(rule.id), table.known(rule.id)
        if len(np.unique(there[clear])) < 2:
            continue
        owned = {f"{kind}.{component}" for kind in ("gain", "last") for component in rule.components}
        rising = [name in owned for name in names]
        inputs = np.where(inputs_of(rule, names), table.inputs[clear], np.nan)
        grown = fit_trees(inputs, there[clear], rising, settings=settings, seed=seed)
        causes[rule.id] = export_trees(grown)
    if not causes:
        raise UsageError("no cause has jobs with it and jobs without; expected more jobs", where="jobs")
    scores = score_table(causes, other)
    for cause, part in causes.items():
        clear = other.known(cause)
        slope, intercept = fit_calibration(scores[cause][clear], other.truth(cause)[clear])
        part["calibration"] = {"slope": write_number(slope, 6), "intercept": write_number(intercept, 6)}
    figures: dict[str, Any] = {
        "jobs": {"trees": _count(jobs), "calibration": _count(calibration_jobs)},
        "causes_without_jobs": [cause for cause in ids if cause not in causes],
        "settings": dataclasses.asdict(settings),
        "scikit_learn": library_version(),
        "held_out": measure_figures(other, scores, _calibrate_across(scores, other)),
    }
    if left_out:
        rest = make_table(left_out, names, ids)
        rest_scores = score_table(causes, rest)
        rated = measure_figures(rest, rest_scores, calibrate(causes, rest_scores))
        figures["left_out"] = {"jobs": _count(left_out)} | rated
    likeness = learn_likeness(table.inputs, other.inputs)
    return {"format": FORMAT, "inputs": list(names), "training": figures, "causes": causes, "likeness": likeness}


def write_model(model: Mapping[str, Any], path: Path) -> None:
    """Write a model; the file appears under its name when it is whole."""
    partial = path.with_name(f".{path.name}.partial")
    partial.write_text(dump_model(model), encoding="utf-8")
    partial.replace(path)


def dump_model(model: Mapping[str, Any]) -> str:
    """Write a model as JSON, a line a part and a cause; same model, same bytes."""
    lines = []
    for key, part in model.items():
        if key == "causes":
            inner = ",\n".join(f"{_dump(name)}:{_dump(value)}" for name, value in part.items())
            lines.append(f"{_dump(key)}:{{\n{inner}\n}}")
        else:
            lines.append(f"{_dump(key)}:{_dump(part)}")
    return "{" + ",\n".join(lines) + "}\n"


def score_table(causes: Mapping[str, Any], table: Table) -> dict[str, _Floats]:
    """Score all rows as the diagnosing side will: log odds before calibration, by cause, shape (n_rows,)."""
    found = {}
    for cause, part in causes.items():
        trees = Trees.read(part, cause, len(table.names))
        found[cause] = np.array([trees.explain(row)[0] for row in table.inputs.tolist()])
    return found


def calibrate(causes: Mapping[str, Any], scores: Mapping[str, _Floats]) -> dict[str, _Floats]:
    """Turn scores into probabilities by each cause's calibration."""
    fits = {cause: part["calibration"] for cause, part in causes.items()}
    return {cause: probabilities(fits[cause]["slope"] * s + fits[cause]["intercept"]) for cause, s in scores.items()}


def measure_figures(table: Table, scores: Mapping[str, _Floats], after: Mapping[str, _Floats]) -> dict[str, Any]:
    """Say how good probabilities are.

    Parameters
    ----------
    table : Table
        Jobs that the trees have not seen.
    scores : dict of str to ndarray of float64, shape (n_rows,)
        Log odds by cause, not calibrated.
    after : dict of str to ndarray of float64, shape (n_rows,)
        Probabilities by cause, calibrated.

    Returns
    -------
    dict
        `macro_f1`, and `f1` by cause (None where no job has it), of causes said from one half on. `log_loss` and `ece` (expected
        calibration error in ten bins), `before` calibration and `after`, over all jobs and causes. `said`: how many were said, how
        sure that was, and the part of them that was true.
    """
    clear = {cause: table.known(cause) for cause in after}
    truth = np.concatenate([table.truth(cause)[clear[cause]] for cause in after])
    by = {
        "before": np.concatenate([probabilities(scores[cause])[clear[cause]] for cause in after]),
        "after": np.concatenate([after[cause][clear[cause]] for cause in after]),
    }
    f1 = {cause: _f1(after[cause][clear[cause]] >= SAID, table.truth(cause)[clear[cause]]) for cause in after}
    rated = [value for value in f1.values() if value is not None]
    said = by["after"] >= SAID
    return {
        "macro_f1": round(float(np.mean(rated)), _DIGITS) if rated else None,
        "f1": f1,
        "log_loss": {name: round(_log_loss(p, truth), _DIGITS) for name, p in by.items()},
        "ece": {name: round(_calibration_error(p, truth), _DIGITS) for name, p in by.items()},
        "said": {
            "n": int(said.sum()),
            "mean_probability": round(float(by["after"][said].mean()), _DIGITS) if said.any() else None,
            "true_share": round(float(truth[said].mean()), _DIGITS) if said.any() else None,
        },
    }


def _calibrate_across(scores: Mapping[str, _Floats], table: Table) -> dict[str, _Floats]:
    """Calibrate each half of the jobs by the other half: a figure of what was fitted on itself would flatter."""
    found = {}
    for cause, score in scores.items():
        found[cause] = np.empty_like(score)
        for half in (0, 1):
            here = table.job % 2 == half
            there = ~here & table.known(cause)
            slope, intercept = fit_calibration(score[there], table.truth(cause)[there])
            found[cause][here] = probabilities(slope * score[here] + intercept)
    return found


def _f1(said: Bools, truth: Bools) -> float | None:
    """Harmonic mean of precision and recall; None where the cause is nowhere."""
    if not truth.any():
        return None
    return round(float(2 * (said & truth).sum() / (said.sum() + truth.sum())), _DIGITS)


def _log_loss(probability: _Floats, truth: Bools) -> float:
    p = np.clip(probability, 1e-12, 1 - 1e-12)
    return float(-np.log(np.where(truth, p, 1 - p)).mean())


def _calibration_error(probability: _Floats, truth: Bools) -> float:
    """Mean distance of probability and frequency over bins, weighted by the rows in them."""
    bins = np.minimum((probability * _N_BINS).astype(int), _N_BINS - 1)
    gaps = [abs(float((probability[bins == b] - truth[bins == b]).sum())) for b in range(_N_BINS)]
    return sum(gaps) / len(probability)


def _count(jobs: Sequence[MeasuredJob]) -> int:
    return sum(bool(job.features) for job in jobs)


def _dump(part: Any) -> str:
    return json.dumps(part, separators=(",", ":"), allow_nan=False)
