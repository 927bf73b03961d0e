"""Jobs as if measured, drawn without any pipeline: two causes that gains tell, all else chance, some of it missing."""

from functools import cache
from typing import Any

import numpy as np

from diagnose.judge.classifier import Classifier, read_classifier
from diagnose.model.feature import Feature, Features
from diagnose.train.fit import dump_model, train
from diagnose.train.measure import MeasuredJob
from diagnose.train.table import list_patterns
from diagnose.train.trees import TreeSettings
from tests.judge.cases import built_in

RULES = built_in().rules
#: The components of the two causes.
OWNED = {"worker-fault": ("worker",), "stage-imbalance": ("stage",)}
#: Few, so that training takes no time.
SMALL = TreeSettings(iterations=12, leaf_rows=8, l2=1.0)
MISSING_SHARE = 0.15


def draw_jobs(n_jobs: int, seed: int) -> list[MeasuredJob]:
    """Draw jobs; without evidence, one feature more is missing."""
    names = [name for pattern in list_patterns(RULES) for name in _expand(pattern)]
    jobs = []
    for index in range(n_jobs):
        rng = np.random.default_rng([seed, index])
        worth = {cause: float(rng.uniform(0.05, 0.4)) for cause in OWNED if rng.random() < 0.4}
        # Each feature draws from its own stream: one more changes no other.
        own = {name: np.random.default_rng([seed, index, *name.encode()]) for name in names}
        values: dict[str, Any] = {name: float(own[name].normal(1.0, 0.1)) for name in names}
        for name in names:
            if own[name].random() < MISSING_SHARE:
                values[name] = None
        for cause, (component,) in OWNED.items():
            for kind in ("gain", "last"):
                values[f"{kind}.{component}"] = worth.get(cause, 0.0) + float(rng.normal(0.0, 0.02))
        values["noise"] = 0.01
        bare = values | {"collection.recorded_share": None}
        kinds, world = tuple(f"{cause}/drawn" for cause in worth), ("interleaved",) if index % 2 else ()
        jobs.append(MeasuredJob(seed, index, kinds, world, worth, (values, bare)))
    return jobs


def as_features(values: dict[str, float | None]) -> Features:
    """Give values as the pipeline does."""
    return {name: Feature(x) if x is not None else Feature.missing("as drawn") for name, x in values.items()}


@cache
def trained() -> dict[str, Any]:
    """Train on a few jobs, once."""
    return train(draw_jobs(80, seed=1), draw_jobs(80, seed=2), RULES, settings=SMALL)


@cache
def classifier() -> Classifier:
    """Read what was trained."""
    return read_classifier(dump_model(trained()).encode())


def _expand(pattern: str) -> list[str]:
    return [pattern.replace("*", name) for name in ("worker", "stage", "pause")] if "*" in pattern else [pattern]
