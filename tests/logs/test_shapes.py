"""Forty runs of each shape: the right kind, onsets within a logged interval, exact periods, the lost time, and no false alarm."""

import dataclasses

import numpy as np
import pytest

from diagnose.features.paces import measure_log
from tests.logs.formats import FORMATS
from tests.logs.formats_table import run_cell
from tests.logs.score import Score, score
from tests.logs.shapes import SHAPES, draw_shape, write_exactly

N = 40
#: Seeds that nothing was chosen by.
FIRST = 5000
#: Parts of the runs of a shape: kinds and onsets, and runs in which nothing is.
RIGHT, QUIET = 0.95, 0.97


def score_runs(kind: str, seeds: range) -> list[Score]:
    """Score exact logs of runs of a shape."""
    shapes = (draw_shape(kind, seed) for seed in seeds)
    return [score(shape, measure_log(write_exactly(shape.run), min_speedup=1.02)) for shape in shapes]


def share_of(values: list[bool | None]) -> float:
    """Give the part that is right of those that say something; 1 where none does."""
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if known else 1.0


@pytest.mark.parametrize("kind", SHAPES)
def test_forty_runs(kind: str) -> None:
    """Of forty runs of a shape 95% are understood, 97% of those in which nothing is; lost time is within 2%, or the noise of it."""
    scores = score_runs(kind, range(FIRST, FIRST + N))
    said = [one.said for one in scores if not one.kind or one.onset is False or one.period is False]
    assert share_of([one.kind for one in scores]) >= (QUIET if kind in ("healthy", "sequence") else RIGHT), said
    assert share_of([one.onset for one in scores]) >= RIGHT, said
    assert share_of([one.period for one in scores]) >= RIGHT, said
    assert share_of([one.lost_right for one in scores]) >= RIGHT


@pytest.mark.parametrize("name", FORMATS)
def test_some_logs_of_every_format(name: str) -> None:
    """Of one log of each shape nothing false is said."""
    for kind in [kind for kind in SHAPES if kind not in FORMATS[name].never]:
        (one,) = run_cell(FORMATS[name], kind, [40_001])
        assert one.is_right or one.lacks, (kind, one.said)


@pytest.mark.parametrize("kind", SHAPES)
def test_some_runs(kind: str) -> None:
    """A few runs of each shape are understood."""
    scores = score_runs(kind, range(100, 103))
    assert share_of([one.kind for one in scores]) == 1.0
    assert share_of([one.period for one in scores]) == 1.0


@pytest.mark.parametrize("seed", [400_001, 400_014, 400_021, 400_029, 400_031])
def test_what_an_epoch_a_line_cannot_tell(seed: int) -> None:
    """Keras prints the same of single slow steps and of epochs that are slow throughout; half of these have some."""
    run = draw_shape("sporadic", seed).run
    epoch = np.arange(len(run.step_s)) // (10 * run.interval)
    even_s = np.bincount(epoch, run.step_s) / np.bincount(epoch)
    even = dataclasses.replace(run, step_s=even_s[epoch])
    assert FORMATS["Keras"].write(run) == FORMATS["Keras"].write(even)
    assert (even_s > 1.1 * np.median(run.step_s)).mean() >= 0.5
