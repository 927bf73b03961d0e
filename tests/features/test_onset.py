"""Since when and until when: an onset or a recovery only where the silence before or after is no chance."""

import dataclasses
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from diagnose.features.courses import find_courses
from diagnose.features.onset import find_course
from diagnose.model.analysis import Suspects
from diagnose.model.cause import When
from diagnose.model.course import Course
from diagnose.model.optype import Op
from tests.features.hand import N_STEPS, STEPS, components, gains

#: Longer series.
MANY = np.arange(40)
SEEDS = range(20)


def series(hits: str) -> np.ndarray:
    """Turn a picture such as `...####` into an effect a step."""
    return np.array([1.0 if mark == "#" else 0.0 for mark in hits])


def noisy(seed: int, first: int = 0, last: int = len(MANY)) -> np.ndarray:
    """Draw an effect of about 1 from a step on, and until another, with a tenth of noise."""
    there = (first <= MANY) & (last > MANY)
    return np.where(there, 1.0, 0.0) + 0.1 * np.random.default_rng(seed).standard_normal(len(MANY))


@pytest.mark.parametrize(
    ("hits", "pattern", "onset", "recovery"),
    [
        ("##########", "constant", None, None),
        ("####.#####", "constant", None, None),
        (".....#####", "onset", 105, None),
        (".#########", "onset", 101, None),
        (".........#", "sporadic", None, None),
        ("......#.##", "onset", 106, None),
        ("#####.....", "transient", None, 105),
        ("...####...", "transient", 103, 107),
        ("#.#..#.#.#", "sporadic", None, None),
        (".#..#..#..", "sporadic", None, None),
        ("#.........", "sporadic", None, None),
    ],
)
def test_patterns(hits: str, pattern: str, onset: int | None, recovery: int | None) -> None:
    """An onset or a recovery where the silence beside it is no chance, else constant or sporadic."""
    assert find_course(STEPS, series(hits)).when == When(pattern, onset, recovery)


@pytest.mark.parametrize(
    ("hits", "period"),
    [
        (".........#" * 3, 10),
        (("." * 10 + "#" * 10) * 2, None),
        ("#####....." * 3 + "####", 10),
        ("..........#.........#.........#.........", 10),
        (".........#" * 2 + "........#.", None),
        (".........#...#.....#.........#", None),
    ],
)
def test_an_interval_kept_without_exception_is_told(hits: str, period: float | None) -> None:
    """Single steps and stretches that come every so many steps, the first of all perhaps left out."""
    when = When("sporadic") if period is None else When("periodic", period_steps=period)
    assert find_course(np.arange(len(hits)), series(hits)).when == when


def test_few_sampled_steps_keep_many_intervals_by_chance() -> None:
    """Where hardly two steps share a place in it, no interval is told."""
    steps = np.array([16, 17, 40, 41, 64, 65, 88, 89, 112, 113, 136, 137])
    assert find_course(steps, series("#.....#..#..")).when == When("sporadic")


@pytest.mark.parametrize(
    "effect", [np.zeros(N_STEPS), np.zeros(0), -np.ones(N_STEPS)], ids=["zero", "no steps", "negative"]
)
def test_no_effect_has_no_course(effect: np.ndarray) -> None:
    """Where nothing is there, nothing is said of when."""
    assert find_course(STEPS[: len(effect)], effect) == Course(When())


@pytest.mark.parametrize("unit", [1e-6, 1.0, 1e6])
def test_the_unit_does_not_matter(unit: float) -> None:
    """An effect in microseconds has the course that it has in days."""
    assert find_course(STEPS, unit * series(".....#####")).when == find_course(STEPS, series(".....#####")).when


@pytest.mark.parametrize("seed", SEEDS)
def test_what_is_there_from_the_first_step_has_no_onset(seed: int) -> None:
    """A noisy effect that begins with the first step is constant, whatever the noise."""
    effect = 1.0 + 0.15 * np.random.default_rng(seed).standard_normal(len(MANY))
    assert find_course(MANY, effect).when == When("constant")


@pytest.mark.parametrize("seed", SEEDS)
def test_an_onset_is_found_in_noise(seed: int) -> None:
    """A noisy effect that begins somewhere begins there."""
    first = int(np.random.default_rng([seed, 1]).integers(1, 35))
    assert find_course(MANY, noisy(seed, first)).when == When("onset", first)


@pytest.mark.parametrize("seed", SEEDS)
def test_what_comes_and_goes_is_transient(seed: int) -> None:
    """A noisy effect of at least six steps that ends again has both steps."""
    rng = np.random.default_rng([seed, 2])
    first = int(rng.integers(4, 20))
    last = first + int(rng.integers(6, 15))
    assert find_course(MANY, noisy(seed, first, last)).when == When("transient", first, last)


@pytest.mark.parametrize("seed", SEEDS)
def test_what_was_there_at_first_has_a_recovery_alone(seed: int) -> None:
    """A noisy effect that ends somewhere was there from the beginning: no onset."""
    last = int(np.random.default_rng([seed, 3]).integers(6, 34))
    assert find_course(MANY, noisy(seed, 0, last)).when == When("transient", None, last)


@pytest.mark.parametrize("where", ["before", "after"])
def test_one_extreme_step_moves_no_onset(where: str) -> None:
    """A single step twenty times as bad, before the onset or after it, leaves it where it is in at least 19 of 20 series."""
    moved = {}
    for seed in SEEDS:
        rng = np.random.default_rng([seed, 4])
        first = int(rng.integers(10, 30))
        extreme = int(rng.integers(0, first - 4) if where == "before" else rng.integers(first, len(MANY)))
        effect = noisy(seed, first)
        effect[extreme] += 20.0
        when = find_course(MANY, effect).when
        if when.onset_step != first:
            moved[seed] = (first, extreme, when)
    assert len(moved) <= 1, moved


@pytest.mark.parametrize("seed", SEEDS)
def test_now_and_then_is_sporadic(seed: int) -> None:
    """What hits every fifth step, here earlier, there later, has no beginning and no end."""
    rng = np.random.default_rng([seed, 5])
    effect = np.zeros(len(MANY))
    effect[np.arange(0, len(MANY), 5) + rng.integers(0, 3, len(MANY) // 5)] = rng.uniform(0.7, 1.3, len(MANY) // 5)
    assert find_course(MANY, effect).when == When("sporadic")


def test_what_comes_in_stretches_is_seldom_dated() -> None:
    """What is there for four steps, and away for eight, again and again, began and ended at no step: a quarter is dated at most."""
    rng, dated = np.random.default_rng(7), 0
    for _ in range(100):
        lengths = rng.geometric([1.0 / 8.0, 1.0 / 4.0], size=(len(MANY), 2)).ravel()
        on = np.repeat(np.arange(len(lengths)) % 2, lengths)[rng.integers(12) :][: len(MANY)]
        when = find_course(MANY, on + 0.02 * rng.standard_normal(len(MANY))).when
        dated += when.onset_step is not None or when.recovery_step is not None
    assert dated <= 25


def test_noise_alone_is_seldom_dated() -> None:
    """Of a hundred series about zero no more than 15 get an onset or a recovery, and none is called constant."""
    rng = np.random.default_rng(6)
    found = [find_course(MANY, rng.standard_normal(len(MANY))).when for _ in range(100)]
    dated = [when for when in found if when.onset_step is not None or when.recovery_step is not None]
    assert len(dated) <= 15
    assert all(when.pattern != "constant" for when in found)


@pytest.mark.parametrize("seed", SEEDS)
def test_what_grows_by_half_was_there_all_the_time(seed: int) -> None:
    """An effect that begins with the first step and grows steadily by half of it is constant."""
    effect = 1.0 + 0.5 * MANY / len(MANY) + 0.05 * np.random.default_rng(seed).standard_normal(len(MANY))
    assert find_course(MANY, effect).when == When("constant")


@pytest.mark.parametrize("seed", SEEDS)
def test_what_grows_from_nothing_never_recovers(seed: int) -> None:
    """An effect that grows steadily from nothing begins somewhere in the first two thirds, and does not end."""
    effect = MANY / len(MANY) + 0.03 * np.random.default_rng(seed).standard_normal(len(MANY))
    when = find_course(MANY, effect).when
    assert when.pattern == "onset"
    assert when.onset_step is not None
    assert 0 < when.onset_step < len(MANY) * 2 / 3


@pytest.mark.parametrize("first", [12, 25])
def test_the_change_points_say_what_changed(first: int) -> None:
    """An onset far from both ends is one change, from about 0 to about 1, less probable by chance than the test allows."""
    course = find_course(MANY, noisy(7, first))
    (change,) = course.changes
    assert change.step == first
    assert (change.before, change.after) == pytest.approx((0.0, 1.0), abs=0.1)
    assert change.chance < 0.02


def test_steps_are_called_by_their_numbers() -> None:
    """Sampled steps with gaps between them: the onset is the number of the step, not its place."""
    steps = np.array([16, 17, 18, 40, 41, 90, 91, 92, 300, 301])
    assert find_course(steps, series(".....#####")).when == When("onset", 90)


@pytest.mark.parametrize(("alone", "pattern"), [(0.05, "constant"), (0.3, "onset")], ids=["hidden", "not hidden"])
def test_what_others_hide_is_dated_by_what_it_gives_after_them(alone: float, pattern: str) -> None:
    """GIVEN transfers that cost as much in all steps once others are gone, THEN when they show alone is not since when."""
    shows = np.where(np.arange(N_STEPS) < N_STEPS // 2, 0.0, alone)
    found = gains({"transfer": shows})
    found = dataclasses.replace(found, last_s={"transfer": 10.5}, last_steps_s={"transfer": np.full(N_STEPS, 10.5)})
    assert find_courses(components(), found, Suspects(), [], least=0.01)["transfer"].when.pattern == pattern


def test_what_has_less_of_it_at_the_end_is_not_gone() -> None:
    """The last two steps have 0.44 of what all others have: it is there all the time."""
    effect = np.array(
        [0.095, 0.07, 0.08, 0.092, 0.094, 0.09, 0.091, 0.092, 0.039, 0.093, 0.09, 0.096, 0.09, 0.041, 0.041]
    )
    assert find_course(np.arange(len(effect)), effect).when == When("constant")
    gone = np.concatenate([effect[:-2], [0.001, 0.002]])
    assert find_course(np.arange(len(effect)), gone).when == When("transient", None, 13)


@pytest.mark.parametrize(
    ("suspects", "pattern"),
    [
        (Suspects(ways=[(0, 0, 1)]), "constant"),
        (Suspects(cards=[(1, 1)]), "constant"),
        (Suspects(groups=[1]), "onset"),
        (Suspects(rings=[(1, 0, 1)]), "onset"),
        (Suspects(ways=[(0, 0, 0)]), "transient"),
    ],
    ids=["a link", "a card", "a group", "a ring's link", "another link"],
)
def test_a_link_is_slow_whether_or_not_it_costs_anything(suspects: Suspects, pattern: str) -> None:
    """Its transfers are long in all steps, those of its group from the middle on: what they give back is another thing."""
    first = np.arange(N_STEPS) < N_STEPS // 2
    nodes = SimpleNamespace(
        op=np.array([Op.FORWARD_SEND, Op.REDUCE_SCATTER, Op.FORWARD_RECV]), stage=np.array([0, 1, 1])
    )
    on_rank = np.stack([np.zeros(N_STEPS), np.ones(N_STEPS)], axis=1)
    of_all = np.where(first, 0.0, 1e-3)[:, None] * np.ones(2)
    parts = dataclasses.replace(components(), transfers=(({0: on_rank, 1: of_all, 2: on_rank}, {}),))
    found = gains({"transfer": np.where(first, 0.3, 0.0)})
    blocks: Any = [SimpleNamespace(steps=parts.steps, nodes=nodes)]
    assert find_courses(parts, found, suspects, blocks, least=0.01)["transfer"].when.pattern == pattern
