"""Since when: an onset only where the silence before it is no chance."""

import numpy as np
import pytest

from diagnose.model.diagnosis import When
from diagnose.model.onset import find_when
from tests.features.hand import N_STEPS, STEPS


def series(hits: str) -> np.ndarray:
    """Turn a picture such as `...####` into an effect a step."""
    return np.array([1.0 if mark == "#" else 0.0 for mark in hits])


@pytest.mark.parametrize(
    ("hits", "pattern", "onset"),
    [
        ("##########", "constant", None),
        (".....#####", "onset", 105),
        (".#########", "onset", 101),
        (".........#", "onset", 109),
        ("#.#..#.#.#", "sporadic", None),
        ("####.#####", "constant", None),
        ("#####.....", "sporadic", None),
        (".#..#..#..", "sporadic", None),
        ("......#.##", "onset", 106),
    ],
)
def test_patterns(hits: str, pattern: str, onset: int | None) -> None:
    """Constant where nearly all steps have it, an onset where the silence before is no chance, else sporadic."""
    found = find_when(STEPS, series(hits))
    assert (found.pattern, found.onset_step) == (pattern, onset)


@pytest.mark.parametrize(
    "effect", [np.zeros(N_STEPS), np.zeros(0), -np.ones(N_STEPS)], ids=["zero", "no steps", "negative"]
)
def test_no_effect_has_no_pattern(effect: np.ndarray) -> None:
    """Where nothing is there, nothing is said of when."""
    assert find_when(STEPS[: len(effect)], effect) == When()


@pytest.mark.parametrize("unit", [1e-6, 1.0, 1e6])
def test_the_unit_does_not_matter(unit: float) -> None:
    """An effect in microseconds has the pattern that it has in days."""
    assert find_when(STEPS, unit * series(".....#####")) == find_when(STEPS, series(".....#####"))


@pytest.mark.parametrize("seed", range(20))
def test_what_is_there_from_the_first_step_has_no_onset(seed: int) -> None:
    """A noisy effect that begins with the first step is constant, whatever the noise."""
    rng = np.random.default_rng(seed)
    effect = 1.0 + 0.15 * rng.standard_normal(40)
    found = find_when(np.arange(40), effect)
    assert (found.pattern, found.onset_step) == ("constant", None)


@pytest.mark.parametrize("seed", range(20))
def test_an_onset_is_found_in_noise(seed: int) -> None:
    """A noisy effect that begins somewhere begins there."""
    rng = np.random.default_rng(seed)
    first = int(rng.integers(1, 35))
    effect = np.where(np.arange(40) >= first, 1.0, 0.0) + 0.1 * rng.standard_normal(40)
    found = find_when(np.arange(40), effect)
    assert (found.pattern, found.onset_step) == ("onset", first)
