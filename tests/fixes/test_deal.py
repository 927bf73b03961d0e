"""Dealing microbatches out: each goes somewhere, ranks get as much, and a rank's are in the order asked for."""

import itertools

import numpy as np
import pytest

from diagnose.fixes.deal import arrange, deal_evenly, measure_imbalance, measure_load, take_dealt

SHAPES = [(1, 3, 4), (4, 5, 1), (3, 7, 5), (8, 12, 4), (2, 6, 16)]


def draw(shape: tuple[int, int, int], *, gaps: bool = False, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Draw costs with a long tail, and which places there are."""
    rng = np.random.default_rng([seed, *shape])
    there = rng.random(shape) > 0.2 if gaps else np.ones(shape, dtype=bool)
    there[0] = True
    return np.exp(0.6 * rng.standard_normal(shape)), there


def by_step(values: np.ndarray, there: np.ndarray) -> list[list[float]]:
    """List what each step has, sorted."""
    return [sorted(values[:, step][there[:, step]].tolist()) for step in range(values.shape[1])]


@pytest.mark.parametrize("gaps", [False, True], ids=["full", "gaps"])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("weight", [0.0, 3.0])
def test_every_microbatch_goes_somewhere_in_its_step(shape: tuple[int, int, int], gaps: bool, weight: float) -> None:
    """What a step has it has afterwards, and what is not there stays where it is."""
    cost, there = draw(shape, gaps=gaps)
    source = deal_evenly(cost, there, longest_weight=weight)
    assert by_step(take_dealt(cost, source), there) == by_step(cost, there)
    everything = np.sort(source.transpose(1, 0, 2).reshape(shape[1], -1), axis=1)
    assert (everything == np.arange(shape[0] * shape[2])).all()
    for order in ("arrival", "falling", "middle"):
        within = arrange(cost, there, order)
        moved = take_dealt(cost, within)
        for dp in range(shape[2]):
            assert by_step(moved[:, :, [dp]], there[:, :, [dp]]) == by_step(cost[:, :, [dp]], there[:, :, [dp]])


@pytest.mark.parametrize("weight", [0.0, 3.0])
@pytest.mark.parametrize("shape", [s for s in SHAPES if s[2] > 1], ids=str)
def test_ranks_get_as_much(shape: tuple[int, int, int], weight: float) -> None:
    """The busiest rank of a step is never busier than before, and nearly as busy as the mean where there is a choice."""
    cost, there = draw(shape)
    before = measure_load(cost, there, longest_weight=weight)
    dealt = take_dealt(cost, deal_evenly(cost, there, longest_weight=weight))
    after = measure_load(dealt, there, longest_weight=weight)
    assert (after.max(axis=1) <= before.max(axis=1) * (1 + 1e-12)).all()
    if shape == (8, 12, 4):
        assert np.median(after.max(axis=1) / after.mean(axis=1)) < 1.01
    assert measure_imbalance(dealt, there) == pytest.approx(measure_imbalance(cost, there))


def test_dealing_is_near_the_best_there_is() -> None:
    """On jobs small enough to try everything the busiest rank is within 3% of the best, and mostly the best."""
    ratios = []
    for seed in range(40):
        cost, there = draw((3, 1, 2), seed=seed)
        items = cost[:, 0].ravel()
        best = min(
            max(items[list(one)].sum(), items.sum() - items[list(one)].sum())
            for one in itertools.combinations(range(6), 3)
        )
        dealt = take_dealt(cost, deal_evenly(cost, there, longest_weight=0.0))
        ratios.append(measure_load(dealt, there).max() / best)
    assert max(ratios) < 1.03
    assert np.median(ratios) == pytest.approx(1.0)


@pytest.mark.parametrize("gaps", [False, True], ids=["full", "gaps"])
def test_orders(gaps: bool) -> None:
    """`falling` falls, `middle` rises to the longest and falls again, `arrival` changes nothing."""
    cost, there = draw((7, 9, 3), gaps=gaps)
    for step, dp in np.ndindex(9, 3):
        run = there[:, step, dp]
        falling = take_dealt(cost, arrange(cost, there, "falling"))[run, step, dp]
        assert (np.diff(falling) <= 0).all()
        middle = take_dealt(cost, arrange(cost, there, "middle"))[run, step, dp]
        top = int(middle.argmax())
        assert (np.diff(middle[: top + 1]) >= 0).all() and (np.diff(middle[top:]) <= 0).all()
        assert abs(2 * top - len(middle) + 1) <= 2
    np.testing.assert_array_equal(take_dealt(cost, arrange(cost, there, "arrival")), cost)


def test_ranks_that_run_fewer_keep_their_number() -> None:
    """A rank with two of three microbatches gets two again."""
    cost, there = draw((3, 4, 2))
    there[2, :, 1] = False
    source = deal_evenly(cost, there, longest_weight=0.0)
    absent = 2 * 2 + 1
    assert (source[2, :, 1] == absent).all()
    assert not (source[there] == absent).any()
