"""Chance: events of one place in burst after burst are no chance; one burst is, and so are events as frequent everywhere."""

import numpy as np
import pytest
from scipy.special import betainc

from diagnose.numerics.chance import (
    chance_of_excess,
    chance_of_growth,
    incomplete_beta,
    measure_bursts,
    weigh_part_against_length,
    weigh_time_against_count,
)

N_STEPS = 40
TRIED = np.full(N_STEPS, 50)


def bursts(*begins: int) -> np.ndarray:
    """Give ten events in each of three steps from some on."""
    found = np.zeros(N_STEPS, dtype=np.int64)
    for begin in begins:
        found[begin : begin + 3] = 10
    return found


def at_random(rate: float, seed: int) -> np.ndarray:
    """Give events that know nothing of each other."""
    return np.random.default_rng(seed).binomial(TRIED, rate)


@pytest.mark.parametrize("seed", range(5))
def test_as_often_everywhere_is_chance(seed: int) -> None:
    """One place of four with a fourth of all events has no more than its part."""
    assert chance_of_excess(at_random(0.1, seed), TRIED, at_random(0.1, seed + 100) * 3, TRIED * 3) > 0.02


@pytest.mark.parametrize("seed", range(5))
def test_events_of_one_place_alone_are_no_chance(seed: int) -> None:
    """A dozen single events that all lie in one place of four are there for a reason."""
    assert chance_of_excess(at_random(0.006, seed), TRIED, np.zeros(N_STEPS), TRIED * 3) < 1e-3


def test_one_burst_lies_somewhere() -> None:
    """Thirty events of one burst say no more of their place than one event does; of five bursts, more."""
    nothing = np.zeros(N_STEPS, dtype=np.int64)
    assert chance_of_excess(bursts(17), TRIED, nothing, TRIED * 3) > 0.1
    assert chance_of_excess(bursts(1, 8, 15, 24, 33), TRIED, nothing, TRIED * 3) < 0.02


def test_what_begins_late_is_still_in_its_place() -> None:
    """Events of one place from a step on, to the end, are steady since then, and no burst."""
    found = np.where(np.arange(N_STEPS) >= 25, at_random(0.1, 3), 0)
    assert chance_of_excess(found, TRIED, np.zeros(N_STEPS), TRIED * 3) < 1e-3


def test_growth_is_more_and_more() -> None:
    """Events that get ever more frequent grow; those that begin once, or are as frequent all the time, do not."""
    rising = np.random.default_rng(1).binomial(TRIED, np.linspace(0.01, 0.2, N_STEPS))
    assert chance_of_growth(rising, TRIED) < 1e-3
    assert chance_of_growth(np.where(np.arange(N_STEPS) >= 25, at_random(0.1, 3), 0), TRIED) > 0.02
    assert min(chance_of_growth(at_random(0.1, seed), TRIED) for seed in range(5)) > 0.02
    assert chance_of_growth(np.zeros(N_STEPS), TRIED) == 1.0


@pytest.mark.parametrize(("stray", "grows"), [(2, False), (20, True)])
def test_stray_events_are_no_beginning(stray: int, grows: bool) -> None:
    """Two of a hundred long before all others make these no growth; a fifth of them do."""
    found = np.where(np.arange(N_STEPS) >= 20, 5, 0)
    found[1] = stray
    found[25:30] += 1
    found[30:] += 2
    assert (chance_of_growth(found, TRIED) < 0.02) == grows


def test_single_events_are_no_bursts() -> None:
    """Counts that scatter by counting alone come one by one."""
    assert measure_bursts(at_random(0.1, 1)) < 2.0
    assert measure_bursts(bursts(4, 20)) > 10.0
    assert measure_bursts(np.zeros(1, dtype=np.int64)) == 1.0


@pytest.mark.parametrize("scale", [1.0, 30.0, 1e3, 1e5])
def test_the_beta_function_is_that_of_scipy(scale: float) -> None:
    """Numbers of any size, whole or not, near the middle and far out; also where nothing or everything is probable."""
    rng = np.random.default_rng(int(scale))
    for a, b, shift in zip(
        rng.uniform(0.1, scale, 100), rng.uniform(1.0, scale + 1.0, 100), rng.uniform(0.2, 1.8, 100), strict=True
    ):
        x = min(a / (a + b) * shift, 1.0)
        assert incomplete_beta(a, b, x) == pytest.approx(float(betainc(a, b, x)), rel=1e-8, abs=1e-200)
    assert (incomplete_beta(2.0, scale, 0.0), incomplete_beta(2.0, scale, 1.0)) == (0.0, 1.0)


@pytest.mark.parametrize("seen_from", [0.0, 0.35], ids=["all", "only long ones stand out"])
@pytest.mark.parametrize("seed", range(3))
def test_a_part_is_told_from_a_length(seed: int, seen_from: float) -> None:
    """Half of a forward of 1 s and of a backward of 2 s, or 0.5 s of both; a length is no part where short ones are not seen."""
    rng = np.random.default_rng(seed)
    drawn, work_s = 0.5 * rng.lognormal(0.0, 0.4, (2, 80)), np.array([[1.0], [2.0]])
    for part, is_part in ((drawn, True), (drawn / work_s, False)):
        odds = weigh_part_against_length(part > seen_from, part, part * work_s)
        assert odds > 4.0 if is_part else odds < (2.0 if seen_from else -4.0)


@pytest.mark.parametrize("seed", range(3))
def test_long_stops_among_many_little_longer_computes_are_weighed_by_seconds(seed: int) -> None:
    """Twenty stops of 10 s in each direction, beside eighty computes that are a fifth longer by chance: no part of a compute."""
    rng = np.random.default_rng(seed)
    work_s = np.array([[1.0], [2.0]])
    part = np.concatenate(
        [10.0 * rng.lognormal(0.0, 0.4, (2, 20)) / work_s, 0.2 * rng.lognormal(0.0, 0.4, (2, 80))], axis=1
    )
    assert weigh_part_against_length(part > 0, part, part * work_s) < -2.0


@pytest.mark.parametrize("n", [(4, 30), (30, 4), (0, 0)])
def test_few_lengths_tell_nothing(n: tuple[int, int]) -> None:
    """Five of either direction are asked for."""
    part = np.random.default_rng(0).lognormal(0.0, 0.4, (2, 30))
    at = np.arange(30) < np.array(n)[:, None]
    assert weigh_part_against_length(at, part, part * np.array([[1.0], [2.0]])) == 0.0


@pytest.mark.parametrize(("of_backward", "by_clock"), [(2.0, True), (1.0, False)])
def test_who_is_stopped_by_the_clock_stops_in_longer_computes_more_often(of_backward: float, *, by_clock: bool) -> None:
    """Backwards take twice as long: twice as many stops are a clock's, as many are not; four at once are one."""
    work_s = np.ones((2, 4, 5, 100, 1)) * np.array([1.0, 2.0])[:, None, None, None, None]
    stops = (
        np.random.default_rng(0).random((2, 1, 5, 100, 1))
        < 0.1 * np.array([1.0, of_backward])[:, None, None, None, None]
    )
    alone, at = np.zeros(work_s.shape), np.ones(work_s.shape, dtype=bool)
    alone[:, :1] = stops
    odds = weigh_time_against_count(at & (np.arange(4) < 1)[:, None, None, None], alone, work_s)
    assert odds > 4.0 if by_clock else odds < -2.0
    assert weigh_time_against_count(at, np.broadcast_to(stops, work_s.shape) * 1.0, work_s) == pytest.approx(odds)
    assert weigh_time_against_count(at, np.zeros(work_s.shape), work_s) == 0.0
    assert weigh_time_against_count(at, alone, np.where(at, 1.0, 0.0) * [[[[[0.0]]]], [[[[1.0]]]]]) == 0.0
