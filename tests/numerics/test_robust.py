"""Medians and quantiles without NaN equal numpy's, bit by bit; the lower median and the spreads by hand."""

import warnings

import hypothesis.extra.numpy as arrays_of
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from diagnose.numerics.robust import (
    FEW,
    LONG_LANE,
    MANY,
    lower_median,
    median,
    nan_median,
    nan_quantile,
    noise_of_differences,
    robust_deviation,
    upper_level,
    upper_stretch,
)

#: Sizes at which no sum or difference of two values overflows; a zero has one sign, as sorting does not tell them apart.
VALUES = st.one_of(
    st.just(np.nan),
    st.integers(0, 3).map(float),
    st.floats(-1e300, 1e300).map(lambda value: value + 0.0),
)
ARRAYS = arrays_of.arrays(np.float64, arrays_of.array_shapes(min_dims=1, max_dims=4, max_side=6), elements=VALUES)


def axes_of(array: np.ndarray) -> st.SearchStrategy[int | tuple[int, ...]]:
    """Draw one axis, or several."""
    one = st.integers(-array.ndim, array.ndim - 1)
    several = arrays_of.valid_tuple_axes(array.ndim, min_size=1)
    return st.one_of(one, several)


def assert_same_bits(found: object, expected: object) -> None:
    """Compare values by their bits, any NaN with any NaN."""
    found, expected = np.asarray(found), np.asarray(expected)
    assert found.shape == expected.shape
    np.testing.assert_array_equal(np.isnan(found), np.isnan(expected))
    there = ~np.isnan(found)
    np.testing.assert_array_equal(found[there].view(np.int64), expected[there].view(np.int64))


@given(array=ARRAYS, data=st.data(), keepdims=st.booleans())
def test_the_median_is_numpys(array: np.ndarray, data: st.DataObject, keepdims: bool) -> None:
    """Any shape, any axes, with NaN or without, lanes of nothing but NaN included: the bits of `numpy.nanmedian`."""
    axis = data.draw(axes_of(array))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # numpy's, about lanes without any value
        expected = np.nanmedian(array, axis=axis, keepdims=keepdims)
    assert_same_bits(nan_median(array, axis=axis, keepdims=keepdims), expected)


@given(array=ARRAYS, data=st.data(), keepdims=st.booleans())
def test_a_median_of_all_values_is_numpys(array: np.ndarray, data: st.DataObject, keepdims: bool) -> None:
    """Any shape, any axes or none named: the bits of `numpy.median`, NaN where a lane has one."""
    axis = data.draw(st.one_of(st.none(), axes_of(array)))
    assert_same_bits(median(array, axis=axis, keepdims=keepdims), np.median(array, axis=axis, keepdims=keepdims))


@given(array=ARRAYS, q=st.one_of(st.sampled_from([0.0, 0.25, 0.5, 0.75, 0.9, 1.0]), st.floats(0, 1)), data=st.data())
def test_a_quantile_is_numpys(array: np.ndarray, q: float, data: st.DataObject) -> None:
    """Any quantile of the same arrays: the bits of `numpy.nanquantile`."""
    axis = data.draw(axes_of(array))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # numpy's, about lanes without any value
        expected = np.nanquantile(array, q, axis=axis)
    assert_same_bits(nan_quantile(array, q, axis=axis), expected)


@pytest.mark.parametrize("n", [LONG_LANE // 2, LONG_LANE, LONG_LANE + 1])
def test_long_lanes_are_numpys_too(n: int) -> None:
    """Lanes are sorted up to a length, and parted above it: the same bits."""
    values = np.random.default_rng(n).standard_normal((2, n, 3))
    values[values > 1.5] = np.nan
    assert_same_bits(nan_median(values, axis=1), np.nanmedian(values, axis=1))
    assert_same_bits(median(values, axis=1), np.median(values, axis=1))
    assert_same_bits(nan_quantile(values, 0.9, axis=(0, 1)), np.nanquantile(values, 0.9, axis=(0, 1)))


@pytest.mark.parametrize("n", [LONG_LANE - 1, LONG_LANE, LONG_LANE + 1, LONG_LANE + 2])
@pytest.mark.parametrize("axis", [0, 1, (0, 1), None])
def test_whole_lanes_are_numpys(n: int, axis: int | tuple[int, int] | None) -> None:
    """Of an even number of values and of an odd one, without NaN and with one in one lane."""
    values = np.random.default_rng(n).standard_normal((n, 3))
    for _ in range(2):
        assert_same_bits(median(values, axis=axis), np.median(values, axis=axis))
        axes = (0, 1) if axis is None else axis
        assert_same_bits(nan_median(values, axis=axes), np.nanmedian(values, axis=axes))
        assert_same_bits(nan_quantile(values, 0.3, axis=axes), np.nanquantile(values, 0.3, axis=axes))
        values[n // 3, 1] = np.nan


@pytest.mark.parametrize("n", [1, 2, 3, 4, 7, FEW, FEW + 1])
@pytest.mark.parametrize("axis", [0, 1, 2])
def test_many_lanes_of_few_values_are_numpys(n: int, axis: int) -> None:
    """Along any axis, in lanes of so few values that they are sorted side by side, and of one more; the values stay as they are."""
    values = np.moveaxis(np.random.default_rng(n).standard_normal((n, 3, MANY)), 0, axis)
    kept = values.copy()
    assert_same_bits(nan_median(values, axis=axis), np.median(values, axis=axis))
    assert_same_bits(lower_median(values, axis=axis), np.sort(values, axis=axis).take((n - 1) // 2, axis=axis))
    assert_same_bits(nan_quantile(values, 0.9, axis=axis), np.quantile(values, 0.9, axis=axis))
    np.testing.assert_array_equal(values, kept)


def test_no_lanes_have_no_medians() -> None:
    """An array without lanes gives one without values."""
    assert nan_median(np.zeros((4, 5, 0)), axis=(0, 1)).shape == (0,)
    assert nan_quantile(np.zeros((0, 5)), 0.9, axis=1).shape == (0,)
    assert lower_median(np.zeros((4, 0)), axis=0).shape == (0,)


@pytest.mark.parametrize("n", [3, LONG_LANE + 1])
def test_a_lane_without_values_has_no_median(n: int) -> None:
    """NaN and no warning, warnings being errors."""
    assert np.isnan(nan_median(np.full((n, 2), np.nan), axis=0)).all()
    assert np.isnan(nan_quantile(np.full((n, 2), np.nan), 0.9, axis=0)).all()
    assert np.isnan(lower_median(np.full((3, 2), np.nan), axis=0)).all()


@pytest.mark.parametrize(
    ("values", "expected"), [([5.0, 1.0], 1.0), ([5.0, 1.0, 3.0], 3.0), ([4.0, 1.0, 3.0, 2.0, np.nan], 2.0)]
)
def test_the_lower_median(values: list[float], expected: float) -> None:
    """The middle of an odd number of values, the lower of the two of an even number."""
    assert lower_median(np.array(values)) == expected
    assert lower_median(np.array([values, values]).T, axis=0).tolist() == [expected] * 2


def test_spreads_are_those_of_a_normal_distribution() -> None:
    """Of 100,000 normal values, some of them wild, both spreads are 1 within a hundredth."""
    values = np.random.default_rng(3).standard_normal(100_000)
    values[::1000] = 1e6
    assert robust_deviation(values) == pytest.approx(1.0, abs=0.01)
    assert noise_of_differences(values) == pytest.approx(1.0, abs=0.01)


def test_a_change_of_level_is_no_noise() -> None:
    """Neighbours differ once in a series of two levels: no noise; each series of many has its own."""
    levels = np.repeat([0.0, 7.0], 10)
    found = noise_of_differences(np.stack([levels, np.tile([0.0, 1.0], 10)]), axis=1)
    np.testing.assert_allclose(found, [0.0, 1.4826 / np.sqrt(2.0)])


def test_levels_that_overlap_are_told_by_the_order_of_time() -> None:
    """Times of two levels that overlap are one lot by themselves, and two stretches in their order; noise alone seldom is."""
    rng = np.random.default_rng(11)
    later = np.arange(60) >= 30
    series = rng.lognormal(np.where(later, 1.4, 0.0), 0.4, (200, 60))
    told = (upper_stretch(np.sqrt(series)) != later).sum(axis=1) <= 4
    by_themselves = (upper_level(series) != later).sum(axis=1) <= 4
    assert np.mean(told) > 0.9
    assert np.mean(by_themselves) < 0.1
    assert np.mean(upper_stretch(np.sqrt(rng.lognormal(0.0, 0.3, (200, 60)))).any(axis=1)) < 0.05
