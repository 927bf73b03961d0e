"""Changes of level: where they are, that they equal those of a reference, and that noise has none."""

import numpy as np
import pytest
import ruptures
from hypothesis import example, given
from hypothesis import strategies as st

from diagnose.numerics.change_points import (
    MAX_POSITIONS,
    MIN_STEPS,
    Rise,
    find_rise,
    fit_changes,
    place_changes,
    split_in_two,
)
from tests.numerics.test_pieces import levels

SEEDS = range(20)
RISE = Rise(bound=(-4.0, 4.0), least_level=0.5, min_after=3, deviations=6.0)


def test_a_split_by_hand() -> None:
    """Of 0, 0, 3 the last step is 3 above the mean of the two before: with noise of 1, 3 over the root of 1.5 deviations."""
    split = split_in_two(np.array([0.0, 0.0, 3.0]), 1.0)
    assert split.before.tolist() == [0.0, 0.0]
    assert split.after.tolist() == [1.5, 3.0]
    np.testing.assert_allclose(split.deviations, [1.5 / np.sqrt(1.5), 3.0 / np.sqrt(1.5)])


# ------------------------------------------------------------------------------------------ find_rise


def test_each_series_has_its_own_rise() -> None:
    """Of four series one rises from step 12 on, one from the first of the last 3; one falls, one stays."""
    series = np.stack(
        [levels((12, 0.0), (18, 1.0)), levels((27, 0.0), (3, 1.0)), levels((9, 1.0), (21, 0.0)), levels((30, 0.0))]
    )
    assert find_rise(series, 0.1, RISE).tolist() == [12, 27, 30, 30]
    assert find_rise(series.reshape(2, 2, 30), 0.1, RISE).shape == (2, 2)


def test_one_extreme_step_is_no_rise() -> None:
    """A step as high as hundred others together moves nothing: values beyond the bound count as the bound."""
    series = levels((30, 0.0))
    series[25] = 100.0
    assert find_rise(series, 0.1, RISE._replace(bound=(-0.4, 0.4))).tolist() == 30


@pytest.mark.parametrize(
    ("series", "sigma"),
    [(levels((2, 0.0), (3, 1.0)), 0.1), (levels((12, 0.0), (18, 1.0)), 0.0), (levels((12, 0.5), (18, 0.9)), 0.01)],
    ids=["too few steps", "no noise known", "less than twice as high"],
)
def test_no_rise(series: np.ndarray, sigma: float) -> None:
    """Too few steps, noise of nothing, or a level that was nearly there before: no rise."""
    assert int(find_rise(series, sigma, RISE)) == len(series)


# ------------------------------------------------------------------------------------------ fit_changes


def reference_changes(series: np.ndarray, n_changes: int) -> list[int]:
    """Place changes as ruptures does: dynamic programming over all positions that are tried."""
    jump = max(1, -(-len(series) // MAX_POSITIONS))
    fitted = ruptures.Dynp(model="l2", min_size=MIN_STEPS, jump=jump).fit(series)
    return [int(end) for end in fitted.predict(n_bkps=n_changes)[:-1]]


@given(
    series=st.one_of(
        st.lists(st.integers(0, 2), min_size=6, max_size=30),  # ties
        st.lists(st.floats(-10, 10), min_size=6, max_size=30),
        st.lists(st.sampled_from([0.1, 0.2, 0.3, 1e6]), min_size=6, max_size=30),
    ).map(lambda values: np.array(values, dtype=np.float64)),
    n_changes=st.sampled_from([1, 2]),
)
@example(series=np.array([0.0, 0, 0, 1, 1, 1, 0, 0, 0]), n_changes=2)
@example(series=np.zeros(12), n_changes=2)
def test_changes_lie_where_ruptures_puts_them(series: np.ndarray, n_changes: int) -> None:
    """Among placements that cost the same, too, the one is taken that ruptures takes."""
    assert place_changes(series, n_changes) == reference_changes(series, n_changes)


@pytest.mark.parametrize("n", [255, 256, 257, 300, 600])
@pytest.mark.parametrize("n_changes", [1, 2])
def test_long_series_are_tried_where_ruptures_tries_them(n: int, n_changes: int) -> None:
    """Above the number of positions only every so many are tried, the same ones."""
    series = levels((n // 3, 0.0), (n // 3, 0.3), (n - 2 * (n // 3), 0.1), noise=0.2, seed=n)
    assert place_changes(series, n_changes) == reference_changes(series, n_changes)


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("n", [60, 700])
def test_what_comes_and_goes_has_two_changes(n: int, seed: int) -> None:
    """A level in the middle third begins and ends where it was put, to the step, in long series as in short ones."""
    first, last = n // 3 + seed % 7, 2 * n // 3 + seed % 5
    found, chance = fit_changes(levels((first, 0.0), (last - first, 1.0), (n - last, 0.0), seed=seed), chance=0.02)
    assert found == [first, last]
    assert chance <= 0.02


def test_noise_seldom_has_a_change() -> None:
    """Of a hundred series of noise, no more than a few have one; they are told how probable it is by chance."""
    found = [fit_changes(levels((40, 0.0), seed=seed), chance=0.02) for seed in range(100)]
    assert sum(bool(changes) for changes, _ in found) <= 5
    assert all(chance > 0.02 for changes, chance in found if not changes)


@pytest.mark.parametrize("series", [np.zeros(0), np.arange(4.0), np.ones(50)], ids=["none", "short", "constant"])
def test_nothing_changes_in_a_short_or_constant_series(series: np.ndarray) -> None:
    """Fewer than five steps, or steps without any difference, have no change."""
    assert fit_changes(series, chance=0.02) == ([], 1.0)
