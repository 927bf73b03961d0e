"""A long series as levels and ramps."""

import itertools

import numpy as np
import pytest

from diagnose.numerics.pieces import find_crowds, fit_pieces

SEEDS = range(20)


def bounds(series: np.ndarray, *, least_ratio: float) -> list[int]:
    """Give where the levels of a series begin, and its length."""
    found = fit_pieces(series, least_ratio=least_ratio)
    assert not any(piece.is_ramp for piece in found)
    return [0, *(piece.end for piece in found)]


def by_clock(step_s: np.ndarray, every: int) -> np.ndarray:
    """Give the mean seconds of so many steps each, as a clock of whole seconds shows them."""
    shown = np.floor(np.r_[0.0, np.cumsum(step_s)])
    return np.diff(shown[::every]) / every


#: Standard deviation of what `by_clock` adds to means of 20 steps of 0.43 s, as a part of them.
CLOCK = 1.0 / np.sqrt(6.0) / 8.6


def levels(*parts: tuple[int, float], noise: float = 0.1, seed: int = 0) -> np.ndarray:
    """Draw a series of levels, each as many steps long and as high as said."""
    series = np.concatenate([np.full(n, height) for n, height in parts])
    return series + noise * np.random.default_rng(seed).standard_normal(len(series))


def test_levels_begin_where_they_do() -> None:
    """Four levels in 12,000 values, fitted to medians of 6 neighbours each, begin to the value in 19 of 20 series at least."""
    sizes = (3001, 2000, 4003, 2996)
    parts = tuple(zip(sizes, (1.0, 1.2, 1.0, 1.5), strict=True))
    found = [bounds(levels(*parts, noise=0.01, seed=seed), least_ratio=1.02) for seed in SEEDS]
    expected = [0, *itertools.accumulate(sizes)]
    assert sum(len(f) == len(expected) and bool(np.allclose(f, expected, rtol=0, atol=1)) for f in found) >= 19


def test_levels_that_are_nearly_alike_are_one() -> None:
    """A pace that differs by 1% is another one, and is not where neighbours must differ by 2%."""
    series = levels((300, 1.0), (300, 1.01), noise=0.002)
    assert bounds(series, least_ratio=1.005) == [0, 300, 600]
    assert bounds(series, least_ratio=1.02) == [0, 600]


@pytest.mark.parametrize("n", range(1, 8))
def test_a_few_values_are_one_level(n: int) -> None:
    """Shorter series than two levels, and constant ones, are one level."""
    assert bounds(np.ones(n), least_ratio=1.02) == [0, n]


@pytest.mark.parametrize("seed", SEEDS)
def test_a_ramp_is_no_stairs(seed: int) -> None:
    """A series that climbs from 11 to 40 after 30 values is one level and one ramp."""
    series = np.r_[np.full(30, 11.0), np.linspace(11.0, 40.0, 300)]
    series *= np.exp(0.02 * np.random.default_rng(seed).standard_normal(330))
    flat, ramp = fit_pieces(series, least_ratio=1.02)
    assert (flat.is_ramp, ramp.is_ramp, ramp.end) == (False, True, 330)
    assert ramp.start == pytest.approx(30, abs=8)
    assert (ramp.first, ramp.last) == (pytest.approx(11.0, rel=0.05), pytest.approx(40.0, rel=0.03))


def test_stairs_are_no_ramp() -> None:
    """Two levels with a sharp change stay two, however far apart."""
    pieces = fit_pieces(levels((50, 1.0), (50, 3.0), noise=0.02), least_ratio=1.02)
    assert [(piece.start, piece.end, piece.is_ramp) for piece in pieces] == [(0, 50, False), (50, 100, False)]


@pytest.mark.parametrize("share", [0.07, 0.3, 0.5])
@pytest.mark.parametrize("seed", range(10))
def test_slow_values_at_random_are_no_level(seed: int, share: float) -> None:
    """Where slow values are frequent, a few of them in a row are chance."""
    rng = np.random.default_rng(seed)
    series = np.where(rng.random(1000) < share, 4.0, 1.0) * np.exp(0.01 * rng.standard_normal(1000))
    assert len(fit_pieces(series, least_ratio=1.02)) == 1


@pytest.mark.parametrize("memory", [0.3, 0.6, 0.9])
def test_noise_with_memory_is_no_level(memory: float) -> None:
    """Noise that lasts drifts for a while: in nine of ten series that makes no level."""
    found = 0
    for seed in SEEDS:
        rng = np.random.default_rng(seed)
        values = rng.standard_normal(1000)
        for i in range(1, 1000):
            values[i] = memory * values[i - 1] + np.sqrt(1 - memory**2) * values[i]
        found += len(fit_pieces(np.exp(0.03 * values), least_ratio=1.02)) > 1
    assert found <= 2


def test_hits_that_stand_close() -> None:
    """Eight slow values of ten among a million are a crowd; as many in a row are none where every second is slow."""
    hits = np.zeros(1_000_000, dtype=bool)
    hits[700_000:700_010] = True
    hits[[700_003, 700_007]] = False
    assert find_crowds(hits) == [(700_000, 700_010)]
    rng = np.random.default_rng(0)
    assert find_crowds(rng.random(1000) < 0.5) == []


@pytest.mark.parametrize("seed", SEEDS)
def test_a_steady_pace_by_a_coarse_clock_is_one_level(seed: int) -> None:
    """What whole seconds do to lines of 9 s is no change of pace."""
    step_s = 0.43 * np.exp(0.01 * np.random.default_rng(seed).standard_normal(1000))
    series = by_clock(step_s, 20)
    assert len(fit_pieces(series, least_ratio=1.02, noise=CLOCK, clock=CLOCK)) == 1


@pytest.mark.parametrize(("first", "last", "ratio"), [(205, 325, 1.5), (400, 700, 1.25)])
def test_a_window_by_a_coarse_clock(first: int, last: int, ratio: float) -> None:
    """A short one, and a long one, are levels and no ramps, in 19 of 20 series."""
    right = 0
    for seed in SEEDS:
        step_s = 0.43 * np.exp(0.01 * np.random.default_rng(seed).standard_normal(1000))
        step_s[first:last] *= ratio
        pieces = fit_pieces(by_clock(step_s, 20), least_ratio=1.02, noise=CLOCK, clock=CLOCK)
        bounds = [piece.end * 20 for piece in pieces[:-1]]
        right += len(bounds) == 2 and bool(np.allclose(bounds, [first, last], rtol=0, atol=20))
        assert not any(piece.is_ramp for piece in pieces)
    assert right >= 19


@pytest.mark.parametrize("n", [8, 10, 20, 60])
def test_a_short_series_that_climbs(n):
    """GIVEN a few values that climb evenly, THEN that is a ramp, too few for levels as they are; noise alone is none."""
    rng = np.random.default_rng(n)
    noise = np.exp(rng.normal(0.0, 0.01, n))
    [found] = fit_pieces(np.linspace(0.28, 0.5, n) * noise, least_ratio=1.02)
    assert found.is_ramp and found.first == pytest.approx(0.28, rel=0.03) and found.last == pytest.approx(0.5, rel=0.03)
    assert [piece.is_ramp for piece in fit_pieces(0.4 * noise, least_ratio=1.02)] == [False]


def test_a_short_level_that_goes_on_behind_the_next_one_is_kept() -> None:
    """Four values, six that are half as long again, and forty like the first: the six are a level, and nothing is a ramp."""
    rng = np.random.default_rng(3)
    series = np.concatenate([np.full(4, 1.0), np.full(6, 1.6), np.full(40, 1.0)]) * rng.normal(1.0, 2e-3, 50)
    pieces = fit_pieces(series, least_ratio=1.02)
    assert [(piece.start, piece.end) for piece in pieces] == [(0, 4), (4, 10), (10, 50)]
    assert [piece.first for piece in pieces] == [piece.last for piece in pieces]
