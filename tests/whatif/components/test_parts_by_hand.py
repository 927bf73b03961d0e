"""Components on arrays that one can read: what they weigh against what, and how they go."""

import dataclasses
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest

from diagnose.model.optype import Op
from diagnose.model.stalls import StallKind
from diagnose.model.trace import Evidence, Nodes, Seconds
from diagnose.numerics.slow_steps import find_slow_steps
from diagnose.numerics.turns import do_turn_round
from diagnose.whatif.components.attribution import more_than_chance
from diagnose.whatif.components.between_steps import BetweenStepsPart
from diagnose.whatif.components.component import Component, Extent, Members, Part, find_parts, mix
from diagnose.whatif.components.end_delay import _long_optimizers
from diagnose.whatif.components.evaluation import EvaluationPart, attribute_planned_collections, find_evaluations
from diagnose.whatif.components.expert import (
    _agree,
    _deviations_above_zero,
    _find_group,
    _fit_tokens,
    _gather_tokens,
    _price,
    _without_documents,
)
from diagnose.whatif.components.input_delay import _all_above, _come_together, _is_each
from diagnose.whatif.components.malloc_pause import _as_long_as_backwards, _find_subset, _grow, _is_apart
from diagnose.whatif.components.microbatch import (
    Microbatches,
    MicrobatchPart,
    _center,
    _compare_stages,
    _find_busy,
    _halve,
    _measure_ordinary,
    _share_of_stages,
    _slope_of,
    find_microbatches,
)
from diagnose.whatif.components.other_work import OtherWorkPart, _measure_around, find_excess
from diagnose.whatif.components.pause import _keep_in_work, _measure_noise, find_pauses
from diagnose.whatif.components.queue import QueuePart
from diagnose.whatif.components.stage import StagePart, _usual_ranks, find_usual_durations, without_stalls
from diagnose.whatif.components.start_delay import _is_beginning, find_late_starts
from diagnose.whatif.components.step import (
    StepPart,
    attribute_to_plan,
    find_usual_steps,
    without_microbatches,
)
from diagnose.whatif.components.worker import _are_slow_often, _why_unmeasured, told_by_member
from diagnose.whatif.graph import Ragged
from tests.features.hand import N_STEPS, components

NAN = float("nan")
ALL = slice(None)
#: A job of 10 steps of 10 s, 2 stages, 2 dp ranks.
TOTAL_S = 100.0


def part(kind: type[Part], breakdown: Any, *, inside: Any = None, before: Any = None, **job: Any) -> Any:
    """Find a component in a job that has nothing but this breakdown."""
    given = {
        "breakdown": breakdown, "observed": [], "n_stages": 2, "n_dp": 2, "n_steps": N_STEPS, "total_s": TOTAL_S,
        "inside_s": {}, "before_s": {}, "gap_s": {}, "between_s": np.zeros(N_STEPS), "tail_s": None,
    }  # fmt: skip
    job = SimpleNamespace(**(given | job))
    job.could_matter = lambda seconds: seconds > 1e-3 * job.total_s
    job.by_worker = lambda seconds: seconds.sum(axis=(0, 2, 3)).T / N_STEPS
    return kind(SimpleNamespace(inside=inside, before=before, name="some"), job, [])


# ------------------------------------------------------------------------------------------ any component


def test_where_a_component_goes() -> None:
    """On some workers; at an operation of all dp ranks where any of its members is among them."""
    workers = np.array([[True, False], [False, False]])
    some, everywhere = Extent(workers), Extent(None)
    assert (everywhere.lanes(0), some.lanes(0).tolist(), some.lanes(1).tolist()) == (
        True,
        [[True, False]],
        [[False, False]],
    )
    seconds = np.array([[1.0, 2.0]])
    for stages, across, found in (
        ((0,), False, [[1, 0]]),
        ((1,), False, [[0, 0]]),
        ((0, 1), True, [[1, 2]]),
        ((1,), True, [[0, 0]]),
    ):
        assert some.part(Members(stages, across), seconds).tolist() == found
    assert everywhere.part(Members((1,), across_dp=False), seconds).tolist() == [[1, 2]]
    assert some.join(everywhere).workers is None
    assert some.join(Extent(~workers)).workers.all()
    assert (mix(True, 1.0, 2.0), mix(False, 1.0, 2.0)) == (1.0, 2.0)
    assert mix(workers[0], 1.0, 2.0).tolist() == [1.0, 2.0]


@pytest.mark.parametrize(("seconds", "present"), [(0.1, False), (0.1001, True)])
def test_what_could_not_matter_is_not_there(seconds: float, present: bool) -> None:
    """A thousandth of all steps, on the worst lanes: inside computes, before them, between steps, in other operations."""
    kind = StallKind.INPUT
    for where in (
        {"inside_s": {kind: seconds}},
        {"before_s": {kind: seconds}},
        {"gap_s": {kind: np.array([seconds / 2] * 2)}},
    ):
        assert part(Part, components(), inside=kind, before=kind, **where).is_present() == present
        assert not part(Part, components(), **where).is_present()
    late = part(Part, components())
    late.late_s = [{3: np.array([[seconds, 0.0], [0.0, 0.0]])}, {}]
    assert late.is_present() == present
    late.late_s, late.own_s = [], [{3: np.array([[seconds / 2, 0.0], [0.01, seconds / 2]])}]
    assert late.is_present() == present
    late.own_s = [{3: np.array([[seconds / 2, 0.0], [0.0, seconds / 2]])}]
    assert late.worst_s() == pytest.approx(seconds)
    late.own_s = [{3: np.array([[seconds / 2, 0.0, 1.0], [0.0, seconds / 2, 2.0]])}]
    assert late.worst_s() == pytest.approx(3.0)


# ------------------------------------------------------------------------------------------ slow steps, evaluations


def test_a_slow_step_against_the_usual_one() -> None:
    """By its quickest third: 3 of 9 workers that are not slow say that the step is not."""
    pace = np.ones((2, 1, 5, 9))
    pace[:, :, 1] = 2.0
    pace[:, 0, 2, 3:] = 2.0
    pace[:, 0, 3, 2:] = 2.0
    pace[0, 0, 4] = NAN
    assert find_slow_steps(pace)[1].tolist() == [1.0, 2.0, 1.0, 2.0, 1.0]
    assert find_slow_steps(pace)[0, 4] == 1.0


@pytest.mark.parametrize(
    ("slow", "times", "quick_ones", "forwards_only", "n_usual"),
    [
        ((12, 40), 1.3, 0, False, 12),
        ((12, 40), 1.3, 2, False, 12),
        ((12, 40), 1.3, 8, False, 40),
        ((12, 40), 1.3, 0, True, 40),
        ((12, 40), 1.04, 0, False, 40),
        ((5, 40), 1.3, 0, False, 40),
        ((24, 40), 1.3, 0, False, 40),
        ((0, 24), 1.3, 0, False, 40),
        ((7, 40), 1.3, 0, False, 7),
    ],
    ids=[
        "most steps",
        "but for a few",
        "now and then",
        "forwards",
        "hardly",
        "all but the first",
        "few steps",
        "until then",
        "few before",
    ],
)
def test_a_job_that_gets_slower_for_good(
    slow: tuple[int, int], times: float, quick_ones: int, *, forwards_only: bool, n_usual: int
) -> None:
    """What most steps take is usual, unless they are slow, in both directions, from one step on to the end."""
    rng, order = np.random.default_rng(4), np.random.default_rng(5).permutation(40)
    pace = rng.normal(1.0, 0.01, (2, 2, 40, 4))
    pace[: 1 if forwards_only else 2, :, slice(*slow)] *= times
    pace[:, :, 14 : 14 + 3 * quick_ones : 3] /= times
    usual = find_usual_steps(find_slow_steps(pace[:, :, np.argsort(order)]), order)
    assert usual.sum() == n_usual
    assert usual[order[:n_usual]].all()


@pytest.mark.parametrize(("n_starting", "n_usual"), [(0, 12), (4, 12), (5, 40)])
def test_a_job_that_starts_slowly_and_gets_slower_for_good(n_starting: int, n_usual: int) -> None:
    """Its first steps are as slow as its last ones, and most of those between are not: a third at most."""
    pace = np.random.default_rng(4).normal(1.0, 0.01, (2, 2, 40, 4))
    pace[:, :, :n_starting] *= 1.3
    pace[:, :, 12:] *= 1.3
    assert find_usual_steps(find_slow_steps(pace), np.arange(40)).sum() == n_usual


def test_long_documents_make_steps_long() -> None:
    """What both directions have is the documents' as far as four deviations of drawing them go; 3% is no slow step."""
    ratio = np.array([[1.2, 1.2, 1.5, 1.03], [1.2, 1.0, 1.5, 1.0]])
    found = without_microbatches(ratio, np.log(1.2) / 4.0 * 1.0001)
    np.testing.assert_allclose(found, [[1.0, 1.2, 1.25, 1.0], [1.0, 1.0, 1.25, 1.0]], rtol=1e-3)


def test_a_slow_step_takes_as_long_as_the_usual_one() -> None:
    """Where it is slow by more than 3% and no evaluation; on some ranks alone if asked."""
    ratio = np.ones((2, N_STEPS))
    ratio[:, 2], ratio[:, 3], ratio[0, 5] = 1.5, 1.029, 2.0  # step 5 has an evaluation: once, and forwards alone
    step = part(StepPart, components(step_ratio=ratio))
    assert step.is_present()
    work = step.ease_work(np.full((N_STEPS, 2), 3.0), (1, 0, 0), ALL, lanes=True)
    assert work[:, 0].tolist() == [3.0, 3.0, 2.0, *[3.0] * 7]
    assert step.ease_work(np.full((2, 2), 3.0), (0, 0, 0), slice(2, 4), np.array([True, False])).tolist() == [
        [2, 3],
        [3, 3],
    ]
    assert step.ease_work(np.full((N_STEPS, 2), 3.0), (0, 0, 0), ALL, lanes=True)[5].tolist() == [3.0, 3.0]
    evaluation = part(EvaluationPart, components(step_ratio=ratio))
    assert evaluation.is_present()
    assert evaluation.ease_work(np.full((N_STEPS, 2), 3.0), (0, 0, 0), ALL, lanes=True)[[2, 5]].tolist() == [
        [3, 3],
        [1.5, 1.5],
    ]
    assert evaluation.ease_work(np.full((1, 2), 3.0), (0, 0, 0), slice(5, 6), np.array([False, True])).tolist() == [
        [3, 1.5]
    ]
    quick = part(EvaluationPart, components(step_ratio=np.ones((2, N_STEPS))))
    assert not quick.is_present()


@pytest.mark.parametrize(("backward", "found"), [(1.125, True), (1.13, False)])
def test_an_evaluation_is_in_forwards(backward: float, found: bool) -> None:
    """Four fifths of what the step is longer by, at least."""
    ratio = np.ones((2, N_STEPS))
    ratio[0, 4], ratio[1, 4] = 1.5, backward
    assert find_evaluations(ratio, np.arange(N_STEPS)).any() == found


@pytest.mark.parametrize(("elsewhere_s", "planned"), [(0.2, True), (0.3, False)])
def test_most_collections_are_those_of_the_plan(elsewhere_s: float, planned: bool) -> None:
    """At a period four fifths of all seconds, or nothing is planned."""
    at = np.zeros((2, 4, 2, 12, 4))
    at[0, :, 0, ::3] = 1.0
    at[0, 0, 0, 1, 0] = elsewhere_s * at.sum()
    kinds = np.where(at > 0, StallKind.COLLECTION, 0).astype(np.int8)
    none = np.zeros(at.shape, dtype=bool)
    stalls = SimpleNamespace(
        seconds_of=lambda _: at, recorded_inside=none, recorded_before=none, inside=kinds, before=kinds * 0
    )
    attribute_planned_collections(stalls, np.arange(12), 1e6, 4)
    assert (kinds[0, 1, 0, 0, 0] == StallKind.PLANNED) == planned
    assert kinds[0, 0, 0, 1, 0] == StallKind.COLLECTION


@pytest.mark.parametrize(("n_dp", "planned"), [(1, False), (2, True)])
def test_two_workers_collect_by_a_plan(n_dp: int, planned: bool) -> None:
    """In the same steps, at a period; one alone may do so as its own objects ask for it."""
    at = np.zeros((2, 1, 2, 12, n_dp))
    at[0, :, 0, ::3] = 1.0
    kinds = np.where(at > 0, StallKind.COLLECTION, 0).astype(np.int8)
    none = np.zeros(at.shape, dtype=bool)
    stalls: Any = SimpleNamespace(
        seconds_of=lambda _: at, recorded_inside=none, recorded_before=none, inside=kinds, before=kinds * 0
    )
    attribute_planned_collections(stalls, np.arange(12), 1e6, 1)
    assert set(kinds[at > 0]) == {StallKind.PLANNED if planned else StallKind.COLLECTION}


def test_tokens_of_experts_are_of_each_token_of_the_batch() -> None:
    """Twice the tokens in a microbatch twice as long are no hot expert; of as many tokens they are. Filler has none."""
    kinds = Nodes(*np.array([(Op.FORWARD, 0, 0, 0, -1), (Op.FORWARD, 0, 1, 1, -1), (Op.FORWARD, 0, 2, 2, -1)]).T)
    given = np.array([100.0, 200.0, 0.0])[:, None, None] * np.ones((3, 4, 2))

    def load(tokens: list[float] | None) -> Any:
        each = None if tokens is None else np.array(tokens)[:, None, None] * np.ones((3, 4, 2))
        block = SimpleNamespace(nodes=kinds, expert_tokens=given, tokens=each, steps=np.arange(4))
        return _gather_tokens([SimpleNamespace(block=block)], (2, 1, 3, 4, 2), 1)  # type: ignore[list-item]

    assert load([1000.0, 2000.0, 0.0]) is None
    assert load([1000.0, 1000.0, 0.0])[0, 0, :2, 0, 0].tolist() == [0.1, 0.2]
    assert np.isnan(load([1000.0, 1000.0, 0.0])[0, 0, 2]).all()
    assert load(None)[0, 0, :, 3, 1].tolist() == [100.0, 200.0, 0.0]


@pytest.mark.parametrize(
    ("n_dp", "n_quiet", "kind"), [(2, 0, 0), (3, 0, StallKind.PLANNED), (3, 1, 0), (4, 1, StallKind.PLANNED)]
)
def test_three_workers_do_something_together(n_dp: int, n_quiet: int, kind: int) -> None:
    """What all have at a period in the same microbatch, or three of four, is planned; at none it is together."""
    long = np.zeros((2, 1, 4, 12, n_dp), dtype=bool)
    long[0, 0, 2, ::3, n_quiet:] = True
    for at, expected in (
        (long, kind),
        (np.roll(long, 1, axis=3) & (np.arange(12) == 4)[:, None], kind and StallKind.TOGETHER),
    ):
        given: dict[int, Any] = {}
        found = SimpleNamespace(
            long=at,
            n_stages=1,
            steps=np.arange(12),
            reads_input=False,
            assign=lambda at, kind, given=given: given.update({kind: at} if at.any() else {}),
            late_or_long=lambda at=at: (at, ~at),
        )
        attribute_to_plan(found)
        assert list(given) == ([expected] if expected else [])
        if expected:
            assert (given[expected] == at).all()


# ------------------------------------------------------------------------------------------ stages, microbatches


def test_stages_are_made_even() -> None:
    """Each takes the mean of all; computes that the schedule makes longer are even among themselves."""
    typical_s = np.array([[1.0, 3.0], [2.0, 6.0]])
    even = part(StagePart, components(typical_s=typical_s))
    assert [
        even.ease_work(np.array([[6.0]]), (d, v, 0), ALL, lanes=True)[0, 0] for d, v in ((0, 0), (0, 1), (1, 1))
    ] == [12.0, 4.0, 4.0]
    assert even.ease_work(np.array([[6.0, 6.0]]), (0, 0, 0), ALL, np.array([True, False])).tolist() == [[12.0, 6.0]]
    assert even.is_present()
    assert not part(StagePart, components(n_stages=1)).is_present()
    variant = np.ones((2, 2, 2, 1, 1))
    variant[1, :, 1] = 2.0  # the second backward of each stage is a whole one
    variant[1, 1, 1] = 4.0
    split = part(StagePart, components(typical_s=typical_s, variant_ratio=variant))
    # Whole backwards take 4 and 24 s, 14 in the mean.
    for virtual, ratio in ((0, 14.0 / 4.0), (1, 14.0 / 24.0)):
        assert split.ease_work(np.array([[1.0]]), (1, virtual, 1), ALL, lanes=True)[0, 0] == pytest.approx(ratio)
    assert split.ease_work(np.array([[1.0]]), (1, 0, 0), ALL, lanes=True)[0, 0] == 2.0


def test_a_stage_is_as_long_as_both_parts_of_its_backwards() -> None:
    """One stage splits its backwards, the other does not: 4 s and 6 s, whichever part they are in."""
    typical_s = np.array([[1.0, 1.0], [1.5, 5.5], [2.5, 0.5]])
    even = part(StagePart, components(typical_s=typical_s))
    for direction in (1, 2):
        for virtual, ratio in ((0, 5.0 / 4.0), (1, 5.0 / 6.0)):
            assert even.ease_work(np.array([[1.0]]), (direction, virtual, 0), ALL, lanes=True)[0, 0] == ratio


def test_usual_durations() -> None:
    """The lower median of the ranks; a stage that took no time is as usual as the others, and nothing is below TINY_S."""
    by_step = np.ones((2, 3, 5, 2)) * np.array([1.0, 3.0, 0.0])[:, None, None]
    typical_s, told = find_usual_durations([], by_step, np.arange(5), 3)
    assert typical_s.tolist() == [[1.0, 3.0, 1.0], [1.0, 3.0, 1.0]]
    assert told.tolist() == [False] * 3
    assert (find_usual_durations([], by_step * 0.0, np.arange(5), 3)[0] == 1e-12).all()
    uneven = np.ones((1, 1, 4, 4)) * np.array([4.0, 1.0, 2.0, 3.0])
    assert find_usual_durations([], uneven, np.arange(4), 1)[0].tolist() == [[2.0]]
    alone = np.ones((2, 4, 5, 1)) * np.array([1.0, 3.0, 1.0, 3.0])[:, None, None]
    typical_s, told = find_usual_durations([], alone, np.arange(5), 2, by_member=np.array([0.0, 0.5]))
    assert typical_s.tolist() == [[1.0, 1.5, 1.0, 1.5]] * 2, "a member takes half of what its worker does"
    assert told.tolist() == [False, True]


def test_a_stage_that_stalls_in_half_of_its_computes_has_no_more_work() -> None:
    """Its quicker computes take what those of other stages do; those of a stage with more work are all longer."""
    rng = np.random.default_rng(4)
    even_s = rng.lognormal(0.0, 0.03, (2, 4, 8, 12, 2)) * np.array([1.0, 1.0, 1.2, 1.0])[:, None, None, None]
    even_s[:, 0] += np.where(rng.random((2, 8, 12, 2)) < 0.55, rng.exponential(0.4, (2, 8, 12, 2)) + 0.1, 0.0)
    typical_s = np.median(even_s, axis=(2, 3)).min(axis=-1)
    assert (typical_s[:, 0] > 1.1).all()
    found = without_stalls(even_s, typical_s)
    assert found[:, 0] == pytest.approx(1.0, abs=0.05)
    assert found[:, 1:] == pytest.approx(typical_s[:, 1:])


def waiting(*seconds: list[float], n_steps: int = N_STEPS) -> Any:
    """Give the members of the workers of two stages, of which each waits so long in each step."""
    wait_s = np.broadcast_to(np.array(seconds), (n_steps, 1, 2, len(seconds[0]))).copy()
    return SimpleNamespace(steps=np.arange(n_steps), wait_s=wait_s, n_members=len(seconds[0]))


def test_a_member_that_the_others_wait_for() -> None:
    """It waits 2 s a step less than whoever waits least of the others, of 20 s that its worker computes."""
    compute_s, steps = np.ones((2, 4, 5, N_STEPS, 1)), np.arange(N_STEPS)
    members = waiting([5.0, 3.0, 6.0], [4.0, 4.1, 4.2])
    assert told_by_member(members, compute_s, steps, 2) == pytest.approx([0.1, 0.0])
    assert told_by_member(members, compute_s[..., :3, :], steps[[4, 2, 0]], 2) == pytest.approx([0.1, 0.0])
    assert told_by_member(members, compute_s[..., :2, :], steps[:2], 2).tolist() == [0.0, 0.0], "two steps tell nothing"
    members.wait_s[:3, 0, 0, 0] = 1.0  # another one in a third of the steps
    assert told_by_member(members, compute_s, steps, 2).tolist() == [0.0, 0.0]
    members.wait_s[:, 0, 0, 2] = NAN  # not recorded alike
    assert told_by_member(members, compute_s, steps, 2).tolist() == [0.0, 0.0]
    members.wait_s = None
    assert told_by_member(members, compute_s, steps, 2).tolist() == [0.0, 0.0]
    assert told_by_member(None, compute_s, steps, 2).tolist() == [0.0, 0.0]


@pytest.mark.parametrize(
    ("ranks", "other", "since", "usual"),
    [
        ([1.0] * 2 + [2.0] * 6, None, 0, "all"),
        ([1.0] * 2 + [2.0] * 6, None, 8, "quick"),
        ([1.0] * 2 + [2.0] * 6, 1.0, 0, "quick"),
        ([1.0] * 2 + [2.0] * 6, 2.0, 0, "all"),
        ([1.0] * 1 + [2.0] * 7, 1.0, 0, "all"),
        ([1.0] * 5 + [2.0] * 3, 1.0, 0, "all"),
        ([1.0] * 2 + [1.01] * 6, 1.0, 0, "all"),
        ([1.0] * 3 + [2.0] * 5, None, 0, "quick"),
        ([1.0] * 2 + [2.0] * 3, None, 0, "quick"),
        ([1.0, 2.0, 2.0, 2.0], None, 0, "all"),
        ([1.0, 2.0, 2.0, 2.0], None, 8, "quick"),
        ([1.0, 2.0], None, 0, "all"),
        ([1.0, 2.0], 1.0, 0, "all"),
        ([1.0, 2.0], 2.0, 0, "slow"),
        ([1.0, 2.0], 1.5, 0, "all"),
    ],
)
def test_few_quick_ranks_say_nothing_of_most(ranks: list[float], other: float | None, since: int, usual: str) -> None:
    """Where most are slow since the first step they are usual; not so where they fell behind, or other stages tell."""
    by_step = np.ones((2, 1 if other is None else 3, 24, len(ranks))) * (other or 1.0)
    by_step[:, 0, since:] = ranks
    by_rank = np.median(by_step, axis=2)
    found = np.broadcast_to(_usual_ranks(by_step, by_rank, by_step.shape[1]), by_rank.shape[1:])[0]
    level = np.array(ranks)
    expected = {"all": level > 0.0, "quick": level == level.min(), "slow": level == level.max()}
    assert found.tolist() == expected[usual].tolist()


def lengths(spread: float = 0.2, n: int = 6, noise: float = 0.0, *, seed: int = 1) -> np.ndarray:
    """Draw logs of microbatches' lengths: 3 stages, n microbatches, 10 steps, 2 ranks; the same on every stage."""
    rng = np.random.default_rng(seed)
    shared = rng.normal(0.0, spread, (1, 1, n, 10, 2))
    return np.exp(shared * np.array([1.0, 0.5])[:, None, None, None, None] + rng.normal(0.0, noise, (2, 3, n, 10, 2)))


def test_uneven_microbatches_are_found_with_their_slopes() -> None:
    """The backward grows half as much; where stages agree and directions do, all of it is found."""
    left = lengths()
    found = find_microbatches(left)
    np.testing.assert_allclose(found.ratio, left[:, 0], rtol=0.02)
    assert found.correlation == pytest.approx(1.0)
    assert found.stage_share == pytest.approx(1.0)
    assert found.spread == pytest.approx(np.std(np.log(left[0, 0])), rel=0.1)
    assert found.ordinary.tolist() == pytest.approx([0.0, 0.0], abs=1e-6)
    alone = find_microbatches(left[:, :, :1, :4, :1])
    assert (alone.correlation, alone.ratio.tolist()) == (None, np.ones((2, 1, 4, 1)).tolist())
    assert find_microbatches(left[:, :, :1, :8, :1]).correlation is not None
    apart = find_microbatches(np.stack([left[0], lengths(seed=2)[1]]))
    assert apart.correlation is not None and apart.correlation < 0.5
    assert (apart.ratio == 1.0).all()
    noisy = find_microbatches(lengths(0.0, noise=0.1))
    assert (noisy.ratio == 1.0).all()


@pytest.mark.parametrize(("group", "agree"), [(1, True), (8, False)])
def test_ranks_that_are_long_together_are_one_look(group: int, agree: bool) -> None:
    """Stages agree by what is chance where eight ranks of one group say the same, and none where all of them say it."""
    rng = np.random.default_rng(9)
    documents, own = rng.standard_normal((1, 2, 6, 16 // group)), rng.standard_normal((2, 2, 6, 16 // group))
    logs = np.repeat(0.2 * (0.6 * documents + 0.8 * own), group, axis=-1)
    left = np.exp(np.stack([logs, logs]) + 0.01 * rng.standard_normal((2, 2, 2, 6, 16)))
    found = find_microbatches(left)
    assert (found.stage_share or 0.0) > 0.35
    assert (found.ratio != 1.0).any() == agree


@pytest.mark.parametrize(
    ("length", "n_ranks", "busy"),
    [(4, 1, [True, False, False]), (1, 1, [False] * 3), (4, 3, [False] * 3)],
    ids=["moments of one rank", "documents of one rank", "moments of all"],
)
def test_a_machine_is_slow_for_moments(length: int, n_ranks: int, busy: list[bool]) -> None:
    """Where one microbatch after the other of one rank is long on all stages that is its machine, and no document."""
    rng = np.random.default_rng(2)
    slow = np.repeat(rng.random((24 // length, 10, 3)) < 0.3, length, axis=0)  # (n_microbatches, n_steps, n_dp)
    slow[..., n_ranks:] = False
    left = np.exp(0.5 * slow[None, None] + 0.01 * rng.standard_normal((2, 2, 24, 10, 3)))
    found = find_microbatches(left)
    assert found.busy is not None and found.busy.tolist() == busy
    assert (found.ratio[..., 0] == 1.0).all() == busy[0]


@pytest.mark.parametrize("n_stages", [1, 2])
def test_documents_that_fill_whole_steps_of_ranks(n_stages: int) -> None:
    """Batches are sorted and dealt the other way round in each step: who is slow in one step is quick in the next."""
    rng = np.random.default_rng(3)
    batches = 0.4 * np.linspace(-1.0, 1.0, 5) * np.where(np.arange(16) % 2, 1.0, -1.0)[:, None]  # (n_steps, n_dp)
    logs = batches + 0.01 * rng.standard_normal((2, n_stages, 6, 16, 5))
    assert do_turn_round(logs.mean(axis=(0, 1, 2)))
    found = find_microbatches(np.exp(logs), turn_round=True)
    assert found.busy is not None and not found.busy.any()
    assert np.log(found.ratio).mean(axis=(0, 1)) == pytest.approx(batches, abs=0.03)


@pytest.mark.parametrize(
    "on", [[[0], []], [[0], [1]], [[0, 1], [2, 3]]], ids=["now and then", "by turns", "two by turns"]
)
def test_slow_machines_do_not_turn_round(on: list[list[int]]) -> None:
    """They are never quicker than their peers, whichever of them are slow in a step."""
    pace = 0.01 * np.random.default_rng(4).standard_normal((16, 5))
    for step in range(16):
        pace[step, on[step % 2]] += 0.5
    assert not do_turn_round(pace)


def test_pauses_of_forwards_are_no_busy_machine() -> None:
    """Long forwards of one rank beside backwards that vary as all do have nothing in common with these."""
    rng = np.random.default_rng(6)
    logs = 0.01 * rng.standard_normal((2, 2, 8, 10, 3))
    logs[0, :, ..., 0] += np.where(rng.random((8, 10)) < 0.1, 2.0, 0.0)
    logs[:, :, 2:8, 3, 0] += 0.2
    assert not _find_busy(logs).any()
    logs[0, :, ..., 0] = logs[1, :, ..., 0]
    assert _find_busy(logs).tolist() == [True, False, False]


def test_microbatches_take_the_mean_of_their_step() -> None:
    """The work is kept: what is longer than the mean gets shorter, and the other way; those that are not there do not count."""
    ratio = np.ones((2, 2, N_STEPS, 2))
    ratio[:, 0] = 3.0
    uneven = part(MicrobatchPart, components(microbatch_ratio=ratio))
    assert uneven.is_present()
    assert [uneven.ease_work(np.array([[6.0]]), (0, 0, m), slice(0, 1), lanes=True)[0, 0] for m in (0, 1)] == [
        4.0,
        12.0,
    ]
    # Half of the logarithm is ordinary: of 9 and 1 they keep 3 to 1, and the 10 in all.
    half = part(MicrobatchPart, components(microbatch_ratio=ratio**2, microbatch_ordinary=0.5))
    assert [
        half.ease_work(np.array([[work]]), (0, 0, m), slice(0, 1), lanes=True)[0, 0] for m, work in ((0, 9.0), (1, 1.0))
    ] == pytest.approx([7.5, 2.5])
    compute_s = components().compute_s.copy()
    compute_s[:, :, 1, :, 1] = NAN
    fewer = part(MicrobatchPart, components(microbatch_ratio=ratio, compute_s=compute_s))
    assert fewer.ease_work(np.array([[6.0]]), (0, 0, 0), slice(0, 1), lanes=True)[0, 0] == pytest.approx(
        6.0 * 7.0 / 9.0
    )
    assert not part(MicrobatchPart, components()).is_present()


def test_ordinary_variation_has_no_long_tail() -> None:
    """A microbatch 50 times as long as others is so by its documents, whatever part of the others' differences is ordinary."""
    logs = np.random.default_rng(2).normal(0.0, 0.1, (2, 8, N_STEPS, 2))
    logs[:, 0, 0, 0] = np.log(50.0)
    uneven = Microbatches(np.exp(logs), np.full(2, 0.5)).uneven()
    assert uneven[0, 0, 0, 0] > 40.0
    np.testing.assert_allclose(uneven[:, 1, 0], np.exp(0.5 * logs[:, 1, 0]))


def test_what_tokens_tell_of_ranks_is_no_ordinary_variation() -> None:
    """All other differences are ordinary, and a rank with twice the work stays uneven."""
    told = np.where(np.arange(2) == 1, 2.0, 1.0) * np.ones((8, N_STEPS, 1))
    logs = np.random.default_rng(2).normal(0.0, 0.01, (2, 8, N_STEPS, 2))
    found = find_microbatches(np.exp(logs + np.log(told))[:, None], told)
    np.testing.assert_allclose(Microbatches(found.ratio, np.ones(2), told=told).uneven()[:, :, :, 1], 2.0, rtol=0.03)
    parts = components(
        microbatch_ratio=np.stack([told, told])[:, :2], microbatch_told=told[:2], microbatch_ordinary=1.0
    )
    assert part(MicrobatchPart, parts).is_present()


def of_halves(forward: Seconds, backward: Seconds) -> Seconds:
    """Put forwards and backwards, (n_virtual, n_microbatches, n_dp) each, into the logs of one step, and halve the stages."""
    return _halve(np.stack([forward, backward])[:, :, :, None])


def center_halves(forward: Seconds, backward: Seconds) -> list[Seconds]:
    """Put them as `of_halves` does, each direction around its median."""
    return [_center(of) for of in of_halves(forward, backward)]


def compare_stages(halves: Seconds) -> tuple[float, float]:
    """Say what stages share, by halves around their medians."""
    return _compare_stages(halves, [_center(of) for of in halves])


@pytest.mark.parametrize("n_virtual", [1, 2, 4])
def test_how_much_backwards_grow(n_virtual: int) -> None:
    """By what stages agree on: forwards long by themselves do not make it less. At least a tenth; 1 where nobody can tell."""
    rng = np.random.default_rng(1)
    length, own = rng.normal(0.0, 0.2, (1, 400, 2)), rng.normal(0.0, 0.1, (n_virtual, 400, 2)) * (n_virtual > 1)
    assert _slope_of(*center_halves(length + own, 5.0 + 0.5 * length + 0.0 * own)) == pytest.approx(0.5, rel=0.05)
    gone = np.where(np.arange(400)[:, None] == 7, NAN, 0.5 * length + 0.0 * own)  # lost rows of one step tell nothing
    assert _slope_of(*center_halves(length + own, gone)) == pytest.approx(0.5, rel=0.05)
    assert _slope_of(*center_halves(length + own, -length + 0.0 * own)) == 0.1
    assert _slope_of(*center_halves(length + own, NAN * own)) == 1.0
    assert _slope_of(*center_halves(0.0 * own, length + own)) == 1.0


@pytest.mark.parametrize(("n", "by_rank"), [(48, True), (47, False)])
def test_ordinary_variation_is_what_directions_do_not_share(n: int, by_rank: bool) -> None:
    """Of each rank where it has 48 microbatches, else of all together; apart by 0.6 of what is shared is all of it."""
    rng = np.random.default_rng(3)
    shared = rng.normal(0.0, 0.03, (1, n, 2)) * np.ones((2, 1, 1))
    apart = rng.normal(0.0, 0.03, (1, n, 2)) * np.array([1.0, 0.0])
    found = _measure_ordinary(of_halves(shared, (shared + apart) * 2.0), 2.0, one_stage=False)
    if by_rank:
        assert found[0] == 1.0
        assert found[1] == pytest.approx(0.0, abs=1e-9)
    else:
        assert found[0] == found[1]


def test_computes_that_are_long_by_themselves_are_no_ordinary_variation() -> None:
    """On several stages; on one nobody can tell, but more than a job without documents has is not ordinary."""
    rng = np.random.default_rng(4)
    length, own = rng.normal(0.0, 0.2, (1, 2000, 1)), rng.normal(0.0, 0.3, (2, 4, 2000, 1))
    quiet = _measure_ordinary(of_halves(length + 0.1 * own[0], length + 0.1 * own[1]), 1.0, one_stage=False)
    assert quiet[0] < 0.1
    noisy = _measure_ordinary(of_halves(length + own[0], length + own[1]), 1.0, one_stage=False)
    assert noisy[0] <= 0.05 / 0.2 * 1.05
    one = _measure_ordinary(of_halves(length + own[0, :1], length + own[1, :1]), 1.0, one_stage=True)[0]
    assert one == pytest.approx(0.15 / 0.2, rel=0.1)
    # What all stages share and forward and backward do not: at most 0.05 of it.
    host = rng.normal(0.0, 0.15, (1, 2000, 1)) * np.ones((4, 1, 1))
    most = _measure_ordinary(of_halves(length + host, length - 0.0 * host), 1.0, one_stage=False)[0]
    assert most == pytest.approx(0.05 / 0.2, rel=0.1)


def test_what_stages_share() -> None:
    """Documents are the same on all stages: all of it; experts are not: none. With one stage nobody can tell."""
    shared, own = (
        np.log(lengths()),
        np.random.default_rng(5).normal(0.0, 0.2, (1, 3, 6, 10, 2)) * np.ones((2, 1, 1, 1, 1)),
    )
    assert compare_stages(_halve(shared)) == (pytest.approx(1.0), pytest.approx(1.0))
    several = np.array([1.0, 3.0])[:, None, None, None] * _halve(shared)  # one half three times as long with them
    assert compare_stages(several)[1] == pytest.approx(1.0)
    assert compare_stages(_halve(own)) == pytest.approx((0.0, 0.0), abs=0.25)
    assert find_microbatches(np.exp(shared[:, :1])).stage_share is None
    assert np.allclose(_share_of_stages(shared, 0.5), 1.0)
    assert np.all(np.asarray(_share_of_stages(own, 1.0)) < 0.3)
    for few in (shared[:, :1], shared[:, :, :1], np.where(np.arange(3)[:, None, None, None] > 0, NAN, shared)):
        assert _share_of_stages(few, 0.5) == 1.0


# ------------------------------------------------------------------------------------------ pauses, waits, other work


def test_a_pause_stands_out() -> None:
    """By more than 3% of the work, and six deviations of the noise; not by rows, which say what they are."""
    work_s = np.full((2, 2, 4, 6, 2), 2.0)
    free_s = work_s.copy()
    free_s[0, 0, 0, 0, 0], free_s[0, 1, 0, 0, 0] = 2.061, 2.059
    pause_s, noise = find_pauses(work_s, free_s, np.ones_like(work_s), 2)
    assert (noise, np.count_nonzero(pause_s)) == (0.0, 1)
    assert pause_s[0, 0, 0, 0, 0] == pytest.approx(0.061)
    left = 1.0 + 0.01 / 1.4826 * np.where(np.arange(6)[:, None] % 2, 1.0, -1.0) * np.ones_like(work_s)
    assert find_pauses(work_s, free_s, left, 2)[1] == pytest.approx(0.01)
    assert not find_pauses(work_s, free_s, left, 2)[0].any()
    assert np.count_nonzero(find_pauses(work_s * left, 1.07 * work_s * left, left, 2)[0]) == work_s.size


@pytest.mark.parametrize(
    ("in_backwards", "two_sided", "found"),
    [(True, False, True), (False, False, False), (True, True, False)],
    ids=["both directions", "forwards alone", "backwards that vary as much either way"],
)
def test_pauses_that_do_not_stand_out_in_longer_computes(*, in_backwards: bool, two_sided: bool, found: bool) -> None:
    """A pause of 0.6 of a forward is a fourth of a backward, which varies by a twentieth; as many are that long."""
    rng = np.random.default_rng(11)
    usual_s = np.broadcast_to(np.array([1.0, 2.5])[:, None, None, None, None], (2, 2, 8, 20, 4))
    left = np.exp(rng.normal(scale=0.05, size=usual_s.shape))
    pauses = rng.random(usual_s.shape) < 0.15
    if not in_backwards:
        pauses[1] = False
    longer_s = np.where(pauses, 0.6, 0.0)
    if two_sided:
        longer_s[1] *= rng.choice([-1.0, 1.0], size=longer_s[1].shape)
    left += longer_s / usual_s
    pause_s, _ = find_pauses(usual_s * left, usual_s * left, left, 2)
    share = np.mean(pause_s > 0, axis=(1, 2, 3, 4))
    assert share[0] == pytest.approx(0.15, abs=0.02)
    assert (share[1] > 0.1) == found
    assert found or share[1] < 0.01


def test_noise_is_that_of_the_usual_worker() -> None:
    """The lower median over workers; nothing where nothing is known."""
    rest = np.zeros((1, 2, 1, 4, 2))  # one direction, two stages, two ranks
    spread = np.array([-1.0, 1.0, -0.2, 0.2])
    for (stage, rank), size in {(0, 0): 0.01, (0, 1): 0.02, (1, 0): 0.3, (1, 1): 0.4}.items():
        rest[0, stage, 0, :, rank] = size * spread
    assert _measure_noise(rest, 2) == pytest.approx(1.4826 * 0.6 * 0.02)
    assert _measure_noise(rest[:, :0], 2) == 0.0
    assert _measure_noise(np.append(rest[..., :1], np.full((1, 2, 1, 4, 1), NAN), axis=4), 2) == pytest.approx(
        1.4826 * 0.6 * 0.01
    )


@pytest.mark.parametrize(
    ("n_steps", "n_hits", "others", "left"),
    [(10, 9, 0, 0), (10, 8, 0, 8), (5, 5, 0, 0), (4, 4, 0, 4), (10, 9, 9, 18), (10, 9, 8, 8)],
    ids=["nine of ten", "eight", "five steps", "four steps", "two microbatches", "one and nearly another"],
)
def test_what_one_backward_always_has_is_work(n_steps: int, n_hits: int, others: int, left: int) -> None:
    """In nine tenths of its steps, of five at least, and no other microbatch of its worker; forwards are let alone."""
    pause_s = np.zeros((2, 1, 3, n_steps, 1))
    pause_s[1, 0, 2, :n_hits], pause_s[1, 0, 1, :others], pause_s[0, 0, 0] = 1.0, 1.0, 1.0
    _keep_in_work(pause_s, np.ones(pause_s.shape, dtype=bool))
    assert (pause_s[1].sum(), pause_s[0, 0, 0].sum()) == (left, n_steps)
    single = np.ones((2, 1, 1, n_steps, 1))
    _keep_in_work(single, np.ones(single.shape, dtype=bool))
    assert single.all()


def test_queue_waits_count_on_the_worst_lane() -> None:
    """Those inside computes, and late starts."""
    wait_s = np.zeros((2, 2, 2, N_STEPS, 2))
    wait_s[0, 0, 0, 0] = [0.3, 0.1]
    found = part(QueuePart, components(queue_wait_s=wait_s), before=StallKind.QUEUE, before_s={StallKind.QUEUE: 0.5})
    assert found.worst_s() == pytest.approx(0.8)


def test_what_is_left_between_steps() -> None:
    """The median of what no row explains is ordinary; blame is of rows in gaps that are longer, no more than these."""
    between_s = np.array([1.0] * 8 + [4.0, 1.0])
    gap_s = {StallKind.PLANNED: np.array([0.0] * 7 + [0.5, 1.0, 0.0])}
    tail_s = np.zeros((N_STEPS, 2, 2))
    tail_s[0], tail_s[8, 1, 0], tail_s[8, 0, 0] = 0.5, 9.0, 2.0
    found = part(BetweenStepsPart, components(), between_s=between_s, gap_s=gap_s, tail_s=tail_s)
    assert found.is_present()
    assert found.ease_between(between_s, ALL).tolist() == [1.0] * 8 + [2.0, 1.0]
    assert found.blame().tolist() == [[0.2, 0.0], [0.4, 0.0]]
    assert part(BetweenStepsPart, components(), between_s=between_s).blame() is None
    assert not part(BetweenStepsPart, components(), between_s=between_s * 0.0 + 1.0).is_present()


@pytest.mark.parametrize(
    ("short_s", "long_s", "found"), [(1.0, 1.24, False), (1.0, 1.26, True), (0.9, 1.53, False), (0.9, 1.54, True)]
)
def test_a_long_optimizer_stands_out(short_s: float, long_s: float, *, found: bool) -> None:
    """By a quarter of its worker's usual, and by six deviations, which the shorter ones tell: those of 10% here are 0.54 s."""
    own = np.ones((20, 2))
    own[:5], own[7, 1] = short_s, long_s
    nodes = SimpleNamespace(op=np.array([int(Op.FORWARD), int(Op.OPTIMIZER)]), stage=np.zeros(2, dtype=int))
    block = SimpleNamespace(nodes=nodes, start_s=np.zeros((2, 20, 2)), filled=None)
    o = SimpleNamespace(block=block, own=[own, own])
    excess = _long_optimizers(o, None)
    assert not _long_optimizers(o, np.ones((20, 2, 1), dtype=bool))  # those of a slow worker are its own
    assert list(excess) == ([1] if found else [])
    assert not found or np.argwhere(excess[1]).tolist() == [[7, 1]]


def test_work_of_other_types_that_is_longer_than_usual() -> None:
    """Than the quicker half of the ranks that have any in their usual step."""
    busy_s = np.full((5, 3), 1.0)
    busy_s[:, 1], busy_s[2, 0], busy_s[:, 2] = 1.1, 3.0, 0.0
    found = find_excess(busy_s)
    assert found[2, 0] == 2.0
    assert (found > 0).sum() == 1
    assert not find_excess(np.zeros((3, 2))).any()


@pytest.mark.parametrize(("n_long", "in_a_row"), [(8, True), (12, True), (12, False)])
def test_work_of_other_types_that_is_longer_in_most_steps(n_long: int, *, in_a_row: bool) -> None:
    """The shorter steps are usual where it got longer for a while; where it is now long, now short, most steps are."""
    noise = 1.0 + 0.1 * np.random.default_rng(0).random((20, 2))
    long = np.zeros(20, dtype=bool)
    long[(4 + np.arange(n_long)) if in_a_row else np.argsort(7 * np.arange(20) % 20)[:n_long]] = True
    found = find_excess(np.where(long[:, None], 3.0, 1.0) * noise)
    assert np.array_equal(found[:, 0] > 0, long & in_a_row)
    assert not found.any() or found.max() == pytest.approx(2.0, abs=0.5)


def test_rows_around_a_step_keep_its_worker() -> None:
    """As long as they reach before its begin and beyond its end: the longest of each counts."""
    block = SimpleNamespace(steps=np.array([4, 7]), n_dp=2, step_ends_s=np.array([10.0, 12.0]))
    rows = Evidence(
        op=np.full(4, -2),
        step=np.array([7, 7, 7, 4]),
        dp=np.array([1, 1, 1, 0]),
        stage=np.array([0, 0, 0, 1]),
        start_s=np.array([-0.5, -2.0, 11.0, 3.0]),
        end_s=np.array([0.0, 0.0, 15.0, 4.0]),
    )
    found = _measure_around(SimpleNamespace(block=block), rows, 2)
    assert found.tolist() == [[0.0, 0.0, 0.0, 0.0], [0.0, 0.0, 5.0, 0.0]]


def test_blame_for_other_work_between_steps() -> None:
    """Added to what lies within them; mean seconds a step."""
    found = part(OtherWorkPart.__mro__[1], components())
    found.__class__ = OtherWorkPart
    found._excess_s, found._lost_s = np.zeros((N_STEPS, 4)), np.zeros(N_STEPS)
    found.late_s, found.component.inside = [], None
    assert found.blame() is None
    found._excess_s[0] = [10.0, 0.0, 0.0, 20.0]
    assert found.blame().tolist() == [[1.0, 0.0], [0.0, 2.0]]
    stalls = np.zeros((2, 2, 2, N_STEPS, 2))
    stalls[0, 0, 0, 0, 0] = 5.0
    found.component.inside = StallKind.OTHER
    found.job.inside_s = {StallKind.OTHER: 5.0}
    found.job.breakdown = components(
        stalls=SimpleNamespace(inside=np.full(stalls.shape, StallKind.OTHER), inside_s=stalls)
    )
    assert found.blame().tolist() == [[1.5, 0.0], [0.0, 2.0]]


@pytest.mark.parametrize(("n_late", "late"), [(1, False), (2, False), (3, True)])
def test_a_step_begins_late_where_most_of_what_opens_it_is(n_late: int, late: bool) -> None:
    """More than half of the operations that wait for nothing, forwards left out."""
    op = np.array([Op.ALL_GATHER] * 4 + [Op.FORWARD])
    graph = SimpleNamespace(moves=SimpleNamespace(members=Ragged.of([(n,) for n in range(5)])), sources=Ragged.empty(5))
    o = SimpleNamespace(block=SimpleNamespace(nodes=SimpleNamespace(op=op), steps=[0, 1]), graph=graph)
    late_s = {n: np.array([[0.0, 1.0], [0.0, 0.0]]) for n in (*range(n_late), 4)}
    assert find_late_starts([o], [late_s], (2, 1, 1, 2, 2)).tolist() == [[False, late], [False, False]]
    graph.sources = Ragged.of([(), (), (), (0,), ()])
    assert find_late_starts([o], [late_s], (2, 1, 1, 2, 2))[0, 1] == (n_late > 1)


def test_one_late_first_step_is_a_beginning() -> None:
    """Once, and with no regularity to speak of."""

    def feature(value: float | None) -> SimpleNamespace:
        return SimpleNamespace(value=value)

    for hits, regular, found in ((1.0, None, True), (2.0, None, False), (1.0, 0.5, False)):
        assert _is_beginning({"stall.hits": feature(hits), "stall.regularity": feature(regular)}, ()) == found
    assert not _is_beginning({}, ())
    assert not _is_beginning({"stall.hits": feature(1.0)}, ())


# ------------------------------------------------------------------------------------------ chance


@pytest.mark.parametrize(
    ("n_hits", "slow"),
    [
        ((7, 1, 1, 1), True),
        ((6, 1, 1, 1), False),
        ((1, 0, 0, 0), True),
        ((8, 3, 3, 2), False),
        ((6, 1), False),
        ((7, 1), True),
    ],
)
def test_a_worker_is_slow_more_often_than_its_peers(n_hits: tuple[int, ...], slow: bool) -> None:
    """Three times as often as the others' mean, and by more than five deviations of it."""
    hits = np.arange(30) < np.array(n_hits)[:, None]
    assert _are_slow_often(hits * 1.0, hits).tolist() == [slow, *[False] * (len(n_hits) - 1)]


@pytest.mark.parametrize(("n_hits", "apart", "slow"), [(6, 0, True), (6, 1, True), (6, 3, False), (2, 0, False)])
def test_who_is_slow_in_the_same_steps_shares_a_fault(n_hits: int, apart: int, *, slow: bool) -> None:
    """Workers of one host are slow together; others are in steps of their own, or by chance in one or two of the same."""
    hits = np.zeros((1, 3, 30), dtype=bool)
    hits[0, 0, :n_hits] = hits[0, 1, apart : apart + n_hits] = True
    assert _are_slow_often(hits * 1.0, hits).tolist() == [[slow, slow, False]]


@pytest.mark.parametrize(("of_others", "n_others", "slow"), [(0.4, 3, True), (0.6, 0, True), (0.6, 1, False)])
def test_others_count_that_are_about_as_slow_on_any_stage(of_others: float, n_others: int, *, slow: bool) -> None:
    """A burst of three steps: the other rank has some, on the other stage; that of its own rank does not count."""
    hits = np.zeros((2, 2, 30), dtype=bool)
    hits[0, 0, :3] = hits[1, 0, :3] = hits[1, 1, 10 : 10 + 2 * n_others] = True
    own = np.where(hits, np.array([1.0, of_others])[:, None], 0.0)
    assert _are_slow_often(own, hits)[0, 0] == slow


@pytest.mark.parametrize(("expected", "most"), [(0.1, 2), (10.0, 22), (100.0, 200)])
def test_more_than_chance(expected: float, most: int) -> None:
    """Three at least, twice the number expected, and four deviations of it more."""
    assert not more_than_chance(most, 1000, expected / 1000, 2.0)
    assert more_than_chance(most + 1, 1000, expected / 1000, 2.0)


@pytest.mark.parametrize(
    ("n_forwards", "n_late", "each"), [(8, 2, False), (8, 3, True), (2, 2, True), (2, 1, False), (1, 1, False)]
)
def test_a_loader_is_late_for_each_forward(n_forwards: int, n_late: int, *, each: bool) -> None:
    """In a third of the steps: for more than collect twice, or for most of the forwards; in most steps one is enough."""
    forward = np.zeros((n_forwards, 30, 2), dtype=bool)
    forward[:n_late, ::3] = True
    assert _is_each(forward) == each
    forward[:n_late, 1::3] = True
    assert _is_each(forward)
    forward[:, :, 1] = False  # one rank's loader alone
    assert _is_each(forward)
    assert not _is_each(forward & False)


@pytest.mark.parametrize(
    ("n_dp", "slow", "measured"), [(2, (), True), (1, (), False), (1, (1,), True), (1, (0, 1), True)]
)
def test_who_has_no_peer_is_measured_by_what_it_was_before(n_dp: int, slow: tuple[int, ...], *, measured: bool) -> None:
    """With one dp rank slow workers are known where any of them fell behind itself."""
    workers = np.isin(np.arange(2), slow)[None] * np.ones((n_dp, 1), dtype=bool)
    parts = components(n_dp=n_dp, slow_workers=workers)
    assert (_why_unmeasured(parts) == "") == measured
    # Who stops now and then is compared with himself at other times.
    assert not _why_unmeasured(dataclasses.replace(parts, frozen_s={StallKind.WORKER: ({0: np.ones((1, 1))},)}))


def test_what_tokens_cost() -> None:
    """A price of a direction is of all stages, whatever their own load, and 0..1; a mean is as far above zero as its error says."""
    load, mean = (
        np.array([-0.5, 0.0, 0.5]),
        np.array([[0.0, 1.0]] * 4),
    )  # of a stage with even tokens, and one with twice as many
    price = np.array([0.0, 0.4, 1.0, 3.0])[:, None]
    products = (price / (1.0 + price * mean))[:, :, None] * load**2
    found = _price(products, np.broadcast_to(load**2, products.shape), mean)
    assert found == pytest.approx([0.0, 0.4, 1.0, 1.0])
    assert _price(-products, np.broadcast_to(load**2, products.shape), mean).tolist() == [0.0] * 4
    assert _deviations_above_zero(np.array([1.0, 3.0])) == pytest.approx(2.0)
    assert _deviations_above_zero(np.array([-1.0, -3.0])) == pytest.approx(-2.0)


@pytest.mark.parametrize(("ep_size", "group", "shared"), [(None, 2, 1.0), (2, 2, 1.0), (4, 1, 1 / 3)])
def test_ranks_that_share_experts_are_long_together(ep_size: int | None, group: int, shared: float) -> None:
    """Pairs of four ranks; where the metadata say another size, that is asked."""
    pairs = np.random.default_rng(2).normal(size=(200, 2))
    contrast = np.repeat(pairs, 2, axis=1)[None] * np.ones((2, 1, 1))
    size, alike = _find_group(contrast, ep_size)
    assert (size, alike) == (group, pytest.approx(shared, abs=0.15))
    assert _find_group(contrast[..., :1], None) == (1, None)
    threes = np.repeat(pairs, 3, axis=1)[None] * np.ones((2, 1, 1))
    assert _find_group(threes, None)[0] == 3
    # Forwards of one rank and backwards of the other: more alike than each with itself, which is all of it.
    crossed = np.array([[[2.0, 1.0]], [[1.0, 2.0]]])
    assert _find_group(crossed, None) == (2, 1.0)


def test_the_first_stage_stalls_more_often_than_all_others() -> None:
    """Most of its workers more than nearly all others; with few workers nothing is said."""
    often, seldom = np.arange(20)[:, None] < np.full(6, 8), np.arange(20)[:, None] < np.full(6, 2)
    others = np.stack([seldom[None]] * 3)
    assert _all_above(often[None], others)
    assert not _all_above(seldom[None], np.stack([often[None], seldom[None], seldom[None]]))
    assert not _all_above(seldom[None], others)
    assert not _all_above(often[None, :, :1], others)


def test_tokens_that_say_nothing_explain_nothing() -> None:
    """Where the load of experts predicts no time in steps that were not fitted, or there are too few computes."""
    rng = np.random.default_rng(6)
    load, excess = rng.normal(size=(2, 2, 2, 4, 12, 2))
    assert _fit_tokens(load, 1.0 + 0.05 * excess) == (0.0, None)
    assert _fit_tokens(load[:, :, :1, :3], 1.0 + 0.05 * load[:, :, :1, :3]) == (0.0, None)
    explained, ratio = _fit_tokens(load, 1.0 + 0.05 * load)
    assert ratio is not None
    assert explained == pytest.approx(1.0, abs=0.05)
    np.testing.assert_allclose(ratio, 1.0 + 0.05 * load, atol=0.02)
    # Where some rows have no load, or no time, the others say as much.
    excess = 0.05 * load
    load[:, 0, 0, 0, 0], excess[:, 0, 1, 1, 1] = np.nan, np.nan
    explained, ratio = _fit_tokens(load, 1.0 + excess)
    assert ratio is not None
    assert explained == pytest.approx(1.0, abs=0.05)
    np.testing.assert_allclose(ratio[:, 1], 1.0 + 0.05 * load[:, 1], atol=0.02)


@pytest.mark.parametrize(("response", "kept"), [(-0.4, 0.0), (0.1, 0.0), (0.5, 0.0), (0.9, 0.4)])
def test_documents_are_taken_out_of_what_is_there(response: float, kept: float) -> None:
    """By half of what all stages are long with them at most, however many of a stage's computes were not recorded.

    One rank that is not asked, and is long for something else, changes nothing.
    """
    rng = np.random.default_rng(7)
    documents, asked = rng.normal(scale=0.1, size=(1, 8, 12, 4)), np.arange(4) < 3
    for chance in (1.0, 0.3):
        there = rng.random(documents.shape) < chance
        logs = np.where(there, response * (documents - documents.mean()), np.nan)
        logs[..., 3] -= 2.0 * documents[..., 3]
        left = _without_documents(np.stack([logs, logs]), documents, there, asked)
        assert np.nanstd(left[..., asked]) == pytest.approx(0.1 * kept, abs=0.01)


def test_directions_that_are_far_apart_do_not_agree() -> None:
    """What lengthens one alone by so much that no noise does is no expert's; the mean of others is, but for its noise."""
    forward, backward = 0.1 + np.random.default_rng(8).normal(scale=0.01, size=(2, 2000))
    backward[:2] = 0.1
    forward[:2] = backward[:2] + np.array([2.0, 6.0]) * 0.01 * np.sqrt(2.0)
    found = _agree(forward, backward)
    assert found[0] == pytest.approx((forward[0] + backward[0]) / 2.0, rel=0.02)
    assert found[1] == backward[1]


@pytest.mark.parametrize(("together", "found"), [(True, True), (False, False)])
def test_stalls_come_together(together: bool, found: bool) -> None:
    """In the same steps far more than by chance: from the fifth step on whoever stalls does so with all others, or by itself."""
    rng = np.random.default_rng(4)
    stalled = np.repeat(rng.random((40, 1)) < 0.3, 8, axis=1) if together else rng.random((40, 8)) < 0.3
    there = np.ones((40, 8), dtype=bool)
    assert _come_together(stalled, there) == found
    assert not _come_together(stalled & (np.arange(40) < 2)[:, None], there)
    assert not _come_together(there, there)
    assert not _come_together(stalled[:, :1], there[:, :1])
    there[20, 1:] = False  # a step of which one worker alone has rows tells nothing
    assert _come_together(stalled, there) == found


def counts(*by_worker: int, n_steps: int = 40) -> np.ndarray:
    """Give so many stalls a worker in all steps, spread evenly: 4 stages x n steps x 1 rank."""
    at = [[(step * n) // n_steps - ((step - 1) * n) // n_steps for step in range(1, n_steps + 1)] for n in by_worker]
    return np.array(at)[:, :, None]


@pytest.mark.parametrize(
    ("stalls", "marked"),
    [((30, 1, 0, 1), [0]), ((30, 28, 0, 1), [0, 1]), ((30, 29, 28, 1), []), ((8, 7, 8, 7), []), ((2, 0, 0, 0), [])],
    ids=["one", "half", "most", "all alike", "too few"],
)
def test_stages_that_stall_far_more_often_than_others(stalls: tuple[int, ...], marked: list[int]) -> None:
    """At most half of them: three times as often as all that are not marked."""
    there = np.full((4, 40, 1), 4)
    assert (
        np.flatnonzero(
            _find_subset(counts(*stalls), there, np.zeros((len(there), there.shape[2]), dtype=bool))[:, 0]
        ).tolist()
        == marked
    )


def test_single_workers_that_stall_far_more_often() -> None:
    """Where no whole stage does: the most stalled first."""
    stalled = np.zeros((2, 40, 4), dtype=np.int64)
    stalled[1, ::2, 2], stalled[0, 1::2, 1], stalled[:, 7] = 2, 2, 1
    found = _find_subset(stalled, np.full(stalled.shape, 4), np.zeros((len(stalled), stalled.shape[2]), dtype=bool))
    assert np.argwhere(found).tolist() == [[0, 1], [1, 2]]


def test_workers_are_apart_from_others() -> None:
    """By rate, not by number: with as many computes, three times as often."""
    stalled, there = counts(30, 5, 5, 5), np.full((4, 40, 1), 4)
    here = np.array([[True], [False], [False], [False]])
    assert _is_apart(stalled, there, here, ~here, 4)
    assert not _is_apart(counts(120, 48, 48, 48), there, here, ~here, 4)
    assert not _is_apart(stalled, there, here, here & False, 4)


def test_stalls_get_more_frequent() -> None:
    """From third to third of the steps, in both directions, and by more than chance."""
    rate = np.arange(60) // 12
    there = np.full((2, 60), 8)
    assert _grow(np.stack([rate, rate]), there)
    assert not _grow(np.stack([rate, rate])[:, ::-1], there)
    assert not _grow(np.stack([rate, rate[::-1]]), there)
    assert not _grow(np.stack([rate[::-1], rate * 3]), there)
    assert not _grow(np.full((2, 60), 2), there)
    # As many more computes: no more frequent.
    assert not _grow(np.stack([rate, rate]), np.stack([rate, rate]) * 2)


@pytest.mark.parametrize(("n_short", "kept"), [(2, True), (20, False)])
def test_forwards_stall_as_long_as_backwards(n_short: int, kept: bool) -> None:
    """Forwards of a length, by doublings, that backwards have three times less often are somebody else's."""
    at = np.zeros((2, 1, 1, 40, 1), dtype=bool)
    seconds = np.zeros(at.shape)
    at[1, 0, 0, :4], seconds[1] = True, 0.5
    at[0, 0, 0, :4], seconds[0, 0, 0, :4] = True, 0.5
    at[0, 0, 0, 4 : 4 + n_short], seconds[0, 0, 0, 4:] = True, 0.01
    found = _as_long_as_backwards(at, SimpleNamespace(inside_s=seconds, before_s=seconds * 0.0))
    assert found[0, 0, :4, 0].all()
    assert found[0, 0, 4 : 4 + n_short, 0].all() == kept
    assert not _as_long_as_backwards(
        at & [[[[[True]]]], [[[[False]]]]], SimpleNamespace(inside_s=seconds, before_s=seconds)
    ).any()


def test_of_a_late_operation_some_ranks_may_be_known_and_others_their_owners() -> None:
    """A row tells of one rank what it is late for, the other is late by itself: a component that owns both takes both."""
    by_itself, told = np.array([[0.0, 0.4]]), np.array([[0.1, 0.0]])
    job: Any = SimpleNamespace(observed=[None], late_s=[{3: by_itself}], late_by_kind_s=[{StallKind.SAVING: {3: told}}])

    def give(_component: Component, _job: Any, late_s: Any) -> Any:
        return late_s

    given: Any = give
    catalogue = [
        Component("start-delay", given, before=StallKind.SAVING, owns_delay=lambda _o, _node: True),
        Component("launch-delay", given, before=StallKind.NOBODY),
    ]
    saving, nobodys = (cast("Any", part) for part in find_parts(job, catalogue))
    np.testing.assert_array_equal(saving[0][3], [[0.1, 0.4]])
    assert nobodys == [{}]
