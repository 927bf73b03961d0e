"""Thresholds of the what-if, just below and just above, on arrays that one can read."""

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from diagnose.model.optype import Op
from diagnose.whatif.medians import nearest_zero_center
from diagnose.whatif.overlaps import find_overlaps, measure_beside
from diagnose.whatif.slow_places import (
    _above_equals,
    _above_noise,
    _find_innocent,
    _find_slow_steps,
    _find_worst,
    _is_steady,
    _is_stretch,
    _Lost,
)
from diagnose.whatif.stalls import _length_apart
from tests.whatif.test_by_hand import nodes

NAN = float("nan")


def computes(start_s: Any, took_s: Any, *, stages: Any = None) -> Any:
    """Give a block of computes of one rank; start and length of each, shape (n, n_steps)."""
    kinds = nodes(*[(Op.FORWARD, stage) for stage in (stages or [0] * len(start_s))])
    kinds.seq[:] = np.arange(len(start_s))
    begin = np.asarray(start_s, dtype=float)[:, :, None]
    return SimpleNamespace(nodes=kinds, start_s=begin, end_s=begin + np.asarray(took_s, dtype=float)[:, :, None])


# ------------------------------------------------------------------------------------------ computes side by side


def test_how_much_computes_run_beside_each_other() -> None:
    """0..2 and 1..3 s on one stage, 0..4 s on another: 1 s of 8 s; in a second step, one after the other, nothing: 1 of 16."""
    took = [[2.0], [2.0], [4.0]]
    one = computes([[0.0], [1.0], [0.0]], took, stages=[0, 0, 1])
    assert measure_beside([one]) == pytest.approx(1 / 8)
    two = computes([[0.0, 0.0], [1.0, 2.0], [0.0, 0.0]], np.repeat(took, 2, axis=1), stages=[0, 0, 1])
    assert measure_beside([two]) == pytest.approx(1 / 16)
    assert measure_beside([one, one, two]) == pytest.approx(3 / 32)
    assert measure_beside([computes([[0.0], [1.0]], [[2.0], [NAN]])]) == 0.0
    assert measure_beside([]) == 0.0


@pytest.mark.parametrize(("begins_s", "n_steps", "found"), [(0.69, 9, True), (0.71, 9, False), (0.69, 8, False)])
def test_side_by_side_is_a_third_of_the_shorter_in_nearly_all_steps(
    begins_s: float, n_steps: int, *, found: bool
) -> None:
    """Of two computes, 1 s and 2 s, the second begins before the first ends: by 0.3 s at least, in nine of ten steps."""
    second = np.where(np.arange(10) < n_steps, begins_s, 1.0)
    block = computes([np.zeros(10), second], [np.ones(10), np.full(10, 2.0)])
    assert find_overlaps(block, np.array([0.0, 0.7])) == ({0: {1}, 1: {0}} if found else {})


def test_a_long_compute_runs_beside_three_that_follow() -> None:
    """10 s beside computes of 1 s: the next three are looked at; what lanes lack counts for nothing, and stages are apart."""
    start, took = np.repeat(np.arange(6.0)[:, None], 10, axis=1), np.ones((6, 10))
    took[0] = 10.0
    assert find_overlaps(computes(start, took), np.arange(6.0)) == {0: {1, 2, 3}, 1: {0}, 2: {0}, 3: {0}}
    took[1, 3:] = NAN
    assert find_overlaps(computes(start, took), np.arange(6.0))[0] == {1, 2, 3}
    assert find_overlaps(computes(start, took, stages=[0, 1, 0, 1, 1, 1]), np.arange(6.0)) == {0: {2}, 2: {0}}


@pytest.mark.parametrize(("begins_s", "n_computes", "found"), [(0.24, 10, True), (0.26, 10, False), (0.24, 11, False)])
def test_in_few_steps_both_begin_together_and_many_do(begins_s: float, n_computes: int, *, found: bool) -> None:
    """Within a quarter of the shorter one of each other, and a fifth of all computes in such pairs."""
    at = 2.0 * np.arange(n_computes)
    at[1] = begins_s
    block = computes(np.repeat(at[:, None], 4, axis=1), np.ones((n_computes, 4)))
    assert bool(find_overlaps(block, at)) == found


# ------------------------------------------------------------------------------------------ slow places


@pytest.mark.parametrize(
    ("seconds", "stand_out"),
    [
        # Three times what a quarter of them lose.
        ([[1.0] * 4, [1.0] * 4, [1.0] * 4, [2.9] * 4], []),
        ([[1.0] * 4, [1.0] * 4, [1.0] * 4, [3.1] * 4], [3]),
        # Not less than a fifth of the worst.
        ([[1.0] * 4] * 4 + [[3.9] * 4, [20.0] * 4], [5]),
        ([[1.0] * 4] * 4 + [[4.1] * 4, [20.0] * 4], [4, 5]),
        # 2 s in one of four steps: 2 s, and a standard deviation of 1.73 s, four of which are 6.93 s.
        ([[2.0, 0, 0, 0]] * 4 + [[8.8, 0, 0, 0]], []),
        ([[2.0, 0, 0, 0]] * 4 + [[9.1, 0, 0, 0]], [4]),
        ([[0.0] * 4] * 4, []),
    ],
)
def test_who_stands_out(seconds: list[list[float]], stand_out: list[int]) -> None:
    """Places far above their equals, by more than chance, and not far below the worst."""
    assert np.flatnonzero(_above_equals(np.array(seconds))).tolist() == stand_out


def test_what_equals_lose_is_no_loss_of_a_place() -> None:
    """Of 8 s, where equals lose 2 s, three quarters come back; of 1 s nothing; without equals all does."""
    seconds, there = np.array([8.0, 1.0, 2.0, 3.0, 0.0]), np.array([True, True, True, True, False])
    slow = np.array([True, False, False, False, False])
    assert _above_noise(seconds, there, slow).tolist() == pytest.approx([0.75, 0.0, 0.0, 1 / 3, 0.0])
    assert _above_noise(seconds[:4], there[:4], there[:4]).tolist() == [1.0] * 4


@pytest.mark.parametrize(
    ("slow", "stretch"),
    [
        ("1111111111..........", True),
        ("111...1111...111....", True),
        # Ten of twenty begin 5.5 times by chance: six tenths of that are 3.3.
        ("11..111...1.1111....", False),
        ("1...................", False),
        ("11111111111111111111", False),
        ("..11................", True),
        ("1..1................", False),
    ],
)
def test_what_comes_in_stretches(slow: str, *, stretch: bool) -> None:
    """Rather than here and there: by how often slow steps begin anew."""
    assert _is_stretch(np.array([one == "1" for one in slow])) == stretch


@pytest.mark.parametrize(("last", "slow"), [(0.79, 3), (0.81, 4)])
def test_slow_steps_of_a_place(last: float, slow: int) -> None:
    """Those that lose a quarter of what steps do that lose anything: three lose 4 s, and the mean of four is just above 3 s."""
    assert _find_slow_steps(np.array([4.0, 4.0, 4.0, last, 0.0])).sum() == slow


@pytest.mark.parametrize(("n", "steady"), [(8, True), (7, False)])
def test_a_place_is_slow_throughout(n: int, *, steady: bool) -> None:
    """In four of five steps from the first slow one to the last."""
    slow = np.zeros(20, dtype=bool)
    slow[4 : 4 + n - 1] = slow[13] = True
    assert _is_steady(slow) == steady


@pytest.mark.parametrize(("quick_s", "innocent"), [(1.9, True), (2.1, False)])
def test_a_link_beside_a_slow_one_is_innocent_below_a_fifth(quick_s: float, *, innocent: bool) -> None:
    """Of what the other loses, where each is alone; whichever of them comes first."""
    ways = np.zeros((2, 4, 1), dtype=bool)
    ways[0, :2, 0] = True
    for at in ((0, 1), (1, 0)):
        alone_s = np.full((2, 4, 1), NAN)
        alone_s[0, at, 0] = quick_s, 10.0
        assert np.argwhere(ways & _find_innocent(ways, alone_s)).tolist() == ([[0, at[0], 0]] if innocent else [])


@pytest.mark.parametrize(("quick_s", "innocent"), [(0.9, True), (1.1, False)])
def test_one_direction_of_a_link_is_innocent_below_a_tenth(quick_s: float, *, innocent: bool) -> None:
    """Of what the other direction loses: full duplex, one may be slow alone."""
    ways, alone_s = np.zeros((2, 3, 1), dtype=bool), np.full((2, 3, 1), NAN)
    ways[:, 1] = True
    alone_s[:, 1, 0] = 10.0, quick_s
    assert np.argwhere(_find_innocent(ways, alone_s)).tolist() == ([[1, 1, 0]] if innocent else [])


def lost(links_s: list[float], group_s: float) -> _Lost:
    """Let the links of one rank of four stages lose so much, half each way, and the group of stage 1."""
    ways, groups = np.zeros((2, 4, 2, 1)), np.zeros((4, 1))
    ways[:, :3, 1, 0] = np.array(links_s) / 2
    groups[1] = group_s
    exists = np.broadcast_to(np.arange(4)[:, None] < 3, (2, 4, 2)).copy()
    return _Lost(ways, groups, exists, np.ones(4, dtype=bool), np.arange(1), 9.0, 9.0, 0.5, None)


@pytest.mark.parametrize(
    ("links_s", "group_s", "ways", "groups", "cards"),
    [
        ([1.0, 98.0, 0.0], 0.0, [1], [], []),  # a link that has 98 of 99 s
        ([10.0, 90.0, 0.0], 0.0, [0, 1], [1], [[1, 1]]),  # both of stage 1
        ([0.0, 50.0, 40.0], 0.0, [1, 2], [2], [[1, 2]]),
        ([1.0, 1.0, 0.0], 98.0, [], [1], []),
        ([5.0, 5.0, 0.0], 90.0, [0, 1], [1], [[1, 1]]),
    ],
)
def test_the_worst_place_is_a_link_a_group_or_all_of_a_card(
    links_s: list[float], group_s: float, ways: list[int], groups: list[int], cards: list[list[int]]
) -> None:
    """A link or a group that has all but three hundredths of what its worst worker loses is it alone."""
    found, of_groups, of_cards = _find_worst(lost(links_s, group_s))
    assert np.argwhere(found).tolist() == [[way, link, 1] for way in (0, 1) for link in ways]
    assert np.flatnonzero(of_groups).tolist() == groups
    assert np.argwhere(of_cards).tolist() == cards


# ------------------------------------------------------------------------------------------ lengths and medians


@pytest.mark.parametrize(
    ("forward_s", "backward_s", "least_s"),
    [
        ([9.0, 8.5, 8.1, 2.0, 1.0], [1.5], 8.1),  # more than four times the next
        ([9.0, 8.5, 7.9, 2.0, 1.0], [1.5], None),
        ([9.0, 8.5, 2.0, 1.0, 1.0], [1.5], None),  # three at least
        ([9.0, 8.5, 8.1, 2.0, 1.0], [8.2], None),  # none in backwards
        ([99.0, 9.0, 8.5, 2.0, 1.0], [1.5], 8.5),
    ],
)
def test_some_forwards_stall_far_longer_than_all_else(
    forward_s: list[float], backward_s: list[float], least_s: float | None
) -> None:
    """Three or more, four times as long as the longest other stall, which may be in a backward."""
    seconds = np.zeros((2, 6))
    seconds[0, : len(forward_s)], seconds[1, : len(backward_s)] = forward_s, backward_s
    assert _length_apart(seconds, seconds > 0) == least_s


@pytest.mark.parametrize(
    ("values", "center"),
    [
        ([2.0, 3.0], 2.0), ([-3.0, -2.0], -2.0), ([-1.0, 2.0], 0.0), ([NAN, 3.0], 3.0), ([3.0, NAN], 3.0), ([5.0], 5.0),
        ([1.0, 2.0, 9.0], 2.0), ([1.0, 2.0, NAN], 1.5),
    ],
)  # fmt: skip
def test_of_two_values_the_one_nearer_to_zero(values: list[float], center: float) -> None:
    """Of values on both sides of 0, neither; of more their median."""
    assert nearest_zero_center(np.array([values]), axis=1).tolist() == [center]
