"""The catalogue of features: what it lists is what jobs have."""

from collections import Counter
from pathlib import Path

import pytest

from diagnose.faults.spec import JobSpec
from diagnose.features.catalogue import list_features, list_groups
from tests.judge.cases import measured, measured_file

FIXTURES = sorted((Path(__file__).resolve().parents[2] / "fixtures").glob("*.parquet"))
SHAPES = [
    JobSpec(pp=pp, dp=dp, microbatches=microbatches, steps=4)
    for pp, dp, microbatches in [(2, 2, 4), (1, 2, 1), (2, 1, 4)]
]


@pytest.mark.parametrize("spec", SHAPES, ids=lambda spec: f"pp {spec.pp}, dp {spec.dp}")
def test_the_catalogue_lists_what_jobs_of_any_shape_have(spec: JobSpec) -> None:
    """A diagnosed job has every feature of the catalogue, measured or missing with its reason, and no other."""
    features = measured(spec).analysis.features
    assert set(features) == set(list_features())
    assert all((feature.value is None) == bool(feature.reason) for feature in features.values())


@pytest.mark.parametrize("path", FIXTURES, ids=lambda path: path.stem)
def test_the_catalogue_lists_what_traces_on_disk_have(path: Path) -> None:
    """The same holds where something is slow, and features are measured that otherwise are missing."""
    assert set(measured_file(path).analysis.features) == set(list_features())


def test_every_feature_says_what_it_reads_as() -> None:
    """Each name has one sentence, on one line; the names are in order."""
    features = list_features()
    assert list(features) == sorted(features)
    assert all(text.strip() and "\n" not in text for text in features.values())


def test_no_feature_has_two_homes() -> None:
    """No two files measure a feature of the same name."""
    homes = Counter(name for names in (group.reads_as for group in list_groups()) for name in names)
    assert [name for name, count in homes.items() if count > 1] == []
