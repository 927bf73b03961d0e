"""Damaged files of each format: a diagnosis, or one clear line."""

import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.trace.producers.damage import N_DAMAGED, assert_survives
from tests.trace.producers.pipelines import Pipeline, write_event_timer, write_megascan, write_primus

#: A small job of each format; another format adds itself here, or calls `assert_survives` in its own test.
FORMATS: dict[str, Callable[[Path], object]] = {
    "primus": lambda folder: write_primus(folder, Pipeline(3, 4, 5).run()),
    "event-timer": lambda folder: write_event_timer(folder, Pipeline(3, 4, 5).run()),
    "megascan": lambda folder: write_megascan(folder, Pipeline(3, 4, 5).run()),
}


@pytest.mark.skipif(sys.platform != "linux", reason="limits memory as Linux does")
@pytest.mark.parametrize("name", FORMATS)
def test_damage_ends_in_a_diagnosis_or_one_line(tmp_path: Path, name: str) -> None:
    """Of 200 damaged copies none ends in a traceback, in the wrong exit code, or takes time or memory without bounds."""
    FORMATS[name](tmp_path / "job")
    diagnosed, refused = assert_survives(tmp_path / "job", tmp_path, seed=len(name))
    assert diagnosed + refused == N_DAMAGED
    assert diagnosed > N_DAMAGED // 10 and refused > N_DAMAGED // 10
