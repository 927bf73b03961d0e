"""The cost of a microbatch and its fit; the synthetic lengths; what is measured of a packing; ranks."""

import numpy as np
import pytest

from diagnose.errors import UsageError
from diagnose.packing.cost import PUBLISHED_COST, Cost, fit_cost
from diagnose.packing.greedy import pack_greedy
from diagnose.packing.lengths import WINDOW, cut_stream
from diagnose.packing.measure import measure
from diagnose.packing.plan import Packing, check_documents
from diagnose.packing.ranks import deal_ranks, sum_ranks
from tests.packing.streams import draw_lengths, draw_stream


def sums(seed: int, n: int = 200) -> tuple[np.ndarray, np.ndarray]:
    """Draw tokens and squares of microbatches."""
    rng = np.random.default_rng(seed)
    return rng.uniform(50_000, 130_000, n), rng.uniform(1e8, 1.6e10, n)


@pytest.mark.parametrize("numbers", [(2e-6, 3e-11), (2e-6, 0.0), (0.0, 3e-11)])
def test_fit_finds_the_numbers(numbers: tuple[float, float]) -> None:
    """Without noise the numbers come back, zeros as zeros."""
    tokens, squares = sums(0)
    fit = fit_cost(tokens, squares, numbers[0] * tokens + numbers[1] * squares)
    assert fit is not None
    assert (fit.cost.linear, fit.cost.quadratic) == pytest.approx(numbers, rel=1e-6, abs=1e-16)
    assert fit.r_squared == pytest.approx(1.0)


@pytest.mark.parametrize("seed", range(5))
def test_fit_is_robust(seed: int) -> None:
    """One microbatch in ten that takes three times as long moves the numbers by less than 5%."""
    tokens, squares = sums(seed)
    rng = np.random.default_rng(seed)
    seconds = (2e-6 * tokens + 3e-11 * squares) * rng.normal(1.0, 0.01, len(tokens))
    seconds[rng.random(len(tokens)) < 0.1] *= 3.0
    fit = fit_cost(tokens, squares, seconds)
    assert fit is not None
    assert fit.cost.linear == pytest.approx(2e-6, rel=0.05)
    assert fit.cost.quadratic == pytest.approx(3e-11, rel=0.05)
    predicted = fit.cost.linear * tokens + fit.cost.quadratic * squares
    assert np.median(np.abs(predicted - seconds) / seconds) < 0.02


def test_no_number_is_negative() -> None:
    """Times that fall with the squares give a quadratic cost of 0, not below."""
    tokens, squares = sums(1)
    fit = fit_cost(tokens, squares, 2e-6 * tokens - 2e-12 * squares)
    assert fit is not None
    assert fit.cost.quadratic == 0.0


def test_thin_data_has_no_fit() -> None:
    """Five rows, only missing ones, or times that do not depend on the documents give None."""
    tokens, squares = sums(2)
    assert fit_cost(tokens[:5], squares[:5], np.ones(5)) is None
    assert fit_cost(tokens, squares, np.full(len(tokens), np.nan)) is None
    assert fit_cost(np.zeros(20), np.zeros(20), np.ones(20)) is None
    with pytest.raises(UsageError, match="as many of each"):
        fit_cost(tokens, squares[:5], tokens)


def test_alike_microbatches_still_fit() -> None:
    """Microbatches that are all alike leave the split open but not the sum."""
    fit = fit_cost(np.full(30, 100.0), np.full(30, 5_000.0), np.full(30, 0.5))
    assert fit is not None
    assert fit.r_squared == 1.0
    assert 100 * fit.cost.linear + 5_000 * fit.cost.quadratic == pytest.approx(0.5)


@pytest.mark.parametrize("numbers", [(-1.0, 1.0), (0.0, 0.0), (float("nan"), 1.0), (float("inf"), 1.0)])
def test_a_cost_makes_sense(numbers: tuple[float, float]) -> None:
    """Negative, infinite or constant costs are refused."""
    with pytest.raises(UsageError):
        Cost(*numbers)


def test_lengths_have_their_tail() -> None:
    """The share and the quantiles of long documents are those asked for, the same for a seed and others for another."""
    lengths = draw_lengths(400_000, 7)
    assert (lengths == draw_lengths(400_000, 7)).all()
    assert not (lengths == draw_lengths(400_000, 8)).all()
    assert lengths.min() >= 1 and lengths.max() <= WINDOW
    long = lengths[lengths > 6_966 * 1.0486 + 1]
    assert len(long) / len(lengths) == pytest.approx(0.0275 * 0.95, rel=0.05)
    assert np.median(lengths[lengths <= 6_873]) == pytest.approx(3_436, rel=0.02)
    assert (long > 93_065 * 1.0486).sum() / len(lengths) == pytest.approx(0.0275 * 0.10, rel=0.1)


def test_stream_keeps_every_token() -> None:
    """A stream holds whole batches, and what is left is counted."""
    lengths = draw_lengths(2_000, 1)
    stream = cut_stream(lengths, 4, window=WINDOW)
    assert stream.lengths.sum() + stream.tokens_left == lengths.sum()
    assert np.bincount(stream.arrives, weights=stream.lengths).tolist() == [4 * WINDOW] * stream.n_batches
    assert stream.lengths.max() <= WINDOW
    assert draw_stream(7, 4, 0).n_batches == 7


def test_measure_by_hand() -> None:
    """Two batches of two microbatches: imbalance, its weighted form, and memory."""
    packing = Packing(
        np.array([4, 2, 3, 3]), np.array([0, 0, 1, 1]), np.array([0, 0, 1, 1]), np.array([0, 1, 0, 1]), 2, 2
    )
    found = measure(packing, Cost(1.0, 0.0), 4)
    assert found.costs.tolist() == [[4.0, 2.0], [3.0, 3.0]]
    assert (found.mean_imbalance, found.max_imbalance) == pytest.approx((7 / 6, 4 / 3))
    assert found.slowdown == pytest.approx(7 / 6)
    assert found.memory_ratio == 1.0
    fixed = measure(packing, Cost(1.0, 0.0, fixed=1.0), 4)
    assert (fixed.mean_imbalance, fixed.max_imbalance) == pytest.approx((9 / 8, 5 / 4))


def test_an_empty_batch_is_left_out() -> None:
    """A batch without documents has no imbalance and costs nothing."""
    packing = pack_greedy(check_documents(np.array([4, 4]), np.array([0, 2]), 2, Cost(1.0, 0.0, fixed=1.0), 4))
    found = measure(packing, Cost(1.0, 0.0, fixed=1.0), 4)
    assert found.mean_imbalance == pytest.approx(5 / 3)


def test_ranks_cost_alike() -> None:
    """Dealing keeps every microbatch whole, gives each rank as many, and evens their sums."""
    stream = draw_stream(20, 16, 2)
    packing = pack_greedy(check_documents(stream.lengths, stream.arrives, 16, PUBLISHED_COST, WINDOW))
    dealt = deal_ranks(packing, PUBLISHED_COST, 4)
    before, after = measure(packing, PUBLISHED_COST, WINDOW), measure(dealt, PUBLISHED_COST, WINDOW)
    assert np.sort(before.costs, axis=1) == pytest.approx(np.sort(after.costs, axis=1))
    uneven, even = sum_ranks(before.costs, 4), sum_ranks(after.costs, 4)
    assert (even.max(axis=1) <= uneven.max(axis=1) + 1e-6).all()
