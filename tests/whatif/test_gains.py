"""Gains and shares of jobs whose step times are a formula of what is removed, and prices that one can add up in the head."""

from collections.abc import Callable, Iterable, Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from diagnose.errors import TraceError
from diagnose.model.change import Change, Remove, Scale, Spend, Work
from diagnose.model.components import NOTHING_SPECIAL
from diagnose.model.optype import Op
from diagnose.whatif.removal import Removal
from tests.jobs import hand_job, to_table
from tests.judge.cases import measure
from tests.whatif.test_removal import hand_ranks

META = {"dp_size": 1, "pp_size": 2, "tp_size": 1, "cp_size": 1, "vpp_size": 1, "world_size": 2, "job_id": "hand"}


class Formula(Removal):
    """A job of two steps whose components exist in name alone; `step_s` gives its step time without some of them."""

    def __init__(self, names: Iterable[str], step_s: Callable[[frozenset[str]], float]) -> None:
        self.step_s = step_s
        self.observed = []
        self.between_s = np.array([1.0, 3.0])
        self.breakdown = SimpleNamespace(steps=np.array([0, 1]))
        part = SimpleNamespace(
            is_present=lambda: True, blame=lambda: None, component=SimpleNamespace(traits=NOTHING_SPECIAL)
        )
        self._parts = dict.fromkeys(names, part)
        self._first_step = [0]
        self.sampled = [slice(0, 2, 1)]

    def _replay_all(self, sets: Sequence[Iterable[str]], pick: Any = None) -> list[np.ndarray]:
        """Give two steps for each set, the second twice as long as the first."""
        steps_s = np.array([2.0, 4.0])[slice(None) if pick is None else pick[0]] / 3.0
        return [self.step_s(frozenset(gone)) * steps_s for gone in sets]

    def sample_steps(self) -> list[slice]:
        """Give the steps on which the shares are replayed."""
        return self.sampled


def additive(**cost: float) -> Formula:
    """Give a job in which each component costs a part of the step, whatever else is there."""
    return Formula(cost, lambda gone: 1.0 - sum(cost[name] for name in gone))


# ------------------------------------------------------------------------------------------ gains and shares


def test_what_components_cost_alone_and_last() -> None:
    """Of steps of 1 s mean, one component costs 0.3, another 0.1; what was recorded is the mean of rows and gaps."""
    gains = additive(worker=0.3, stage=0.1).gains([("worker", "stage"), ("stage", "pause"), ("pause",)])
    assert (gains.recorded_s, gains.replayed_s, gains.clean_s) == (2.0, 1.0, pytest.approx(0.6))
    together = {"worker+stage": 0.6, "stage+pause": 0.9}
    assert gains.alone_s == pytest.approx({"worker": 0.7, "stage": 0.9} | together)
    assert gains.last_s == pytest.approx({"worker": 0.9, "stage": 0.7, "worker+stage": 1.0, "stage+pause": 0.7})
    assert gains.share == pytest.approx({"worker": 0.75, "stage": 0.25})
    np.testing.assert_allclose(gains.replayed_steps_s, [2.0 / 3.0, 4.0 / 3.0])
    np.testing.assert_allclose(gains.clean_steps_s, [0.4, 0.8])
    np.testing.assert_allclose(gains.alone_steps_s["stage+pause"], [0.6, 1.2])
    assert set(gains.alone_steps_s) == {"worker", "stage", *together}
    assert gains.blame_s == {}


@pytest.mark.parametrize(("cost", "has_share"), [(0.0049, False), (0.0051, True)])
def test_half_a_percent_of_the_step_matters(cost: float, has_share: bool) -> None:
    """A component that costs less, alone and last, has no share: its part of the lost time is unexplained."""
    share = additive(worker=0.3, stage=cost).gains().share
    assert set(share) == ({"worker", "stage"} if has_share else {"worker"})
    assert share["worker"] == pytest.approx(0.3 / (0.3 + cost))


def test_shares_of_a_sample_are_those_of_its_steps() -> None:
    """What is known of all steps, and what is replayed on a sample of them, are of the same steps."""
    job = additive(worker=0.3, stage=0.1, pause=0.1)
    job.sampled = [slice(0, 2, 2)]
    assert job.gains().share == pytest.approx({"worker": 0.6, "stage": 0.2, "pause": 0.2})


def test_what_shows_only_last_or_only_alone_matters() -> None:
    """One of two that hide each other gives nothing alone; one of two that give the same back gives nothing last."""
    hidden = Formula(("worker", "stage"), lambda gone: 0.8 if len(gone) == 2 else 1.0).gains()
    either = Formula(("worker", "stage"), lambda gone: 0.8 if gone else 1.0).gains()
    assert hidden.share == either.share == pytest.approx({"worker": 0.5, "stage": 0.5})
    assert (hidden.recoverable_last("worker"), either.alone_s["worker"]) == pytest.approx((0.2, 0.8))


def test_six_components_have_shares() -> None:
    """The six that cost most; the others together are one more, unexplained."""
    cost = {f"c{n}": 0.01 * (n + 1) for n in range(8)}
    share = additive(**cost).gains().share
    assert set(share) == {f"c{n}" for n in range(2, 8)}
    assert share == pytest.approx({name: cost[name] / 0.36 for name in share})


def test_three_that_overlap_have_the_shares_of_all_orders() -> None:
    """The step is as long as the longest of three: of 0.6 s each shares what it has in common with the longer ones."""
    length = {"worker": 0.9, "stage": 0.6, "pause": 0.3}

    def step_s(gone: frozenset[str]) -> float:
        return max([0.1, *(s for name, s in length.items() if name not in gone)])

    # The airport problem: the first 0.2 s are shared by three, the next 0.3 by two, the last 0.3 are the longest's own.
    assert Formula(length, step_s).gains().share == pytest.approx(
        {"worker": (0.2 / 3 + 0.3 / 2 + 0.3) / 0.8, "stage": (0.2 / 3 + 0.3 / 2) / 0.8, "pause": 0.2 / 3 / 0.8}
    )


@pytest.mark.parametrize("cost", [{}, {"worker": 0.0}, {"worker": -0.1}, {"worker": 0.1, "stage": -0.1}], ids=str)
def test_where_nothing_is_lost_nobody_has_a_share(cost: dict[str, float]) -> None:
    """No component, one that costs nothing, or all of them together a gain."""
    assert additive(**cost).gains().share == {}


def test_a_job_without_time_is_refused() -> None:
    """All operations of all steps start and end at once: no part of that can be told."""
    with pytest.raises(TraceError, match="all operations of a step start at once"):
        Formula(("worker",), lambda _: 0.0).gains()


@pytest.mark.parametrize(("n_ops", "stride"), [(749_999, 1), (750_000, 1), (750_001, 2), (2_250_000, 3)])
def test_large_jobs_are_sampled(n_ops: int, stride: int) -> None:
    """Three quarters of a million operations are replayed at most, spread evenly over the steps of each block."""
    blocks = [(n_ops - 100, 9), (100, 4)]
    job = additive()
    job.observed = [
        SimpleNamespace(block=SimpleNamespace(start_s=SimpleNamespace(size=size), steps=np.zeros(n)))
        for size, n in blocks
    ]
    assert Removal.sample_steps(job) == [slice(0, 9, stride), slice(0, 4, stride)]


# ------------------------------------------------------------------------------------------ prices


@pytest.fixture(scope="module")
def hand() -> Removal:
    """Give two steps of 9 s: 2 stages x 2 microbatches, all forwards before the backwards."""
    return measure(to_table(hand_job(), META)).removal


@pytest.fixture(scope="module")
def ranks() -> Removal:
    """Give two dp ranks, of which the second has a stage 1 that takes twice as long: steps of 15 s, of 9 s without."""
    return hand_ranks().removal


FORWARD = frozenset({int(Op.FORWARD)})


def scale(factor: Any) -> Scale:
    """Make forwards longer."""
    return Scale(FORWARD, np.asarray(factor, dtype=float).reshape(np.shape(factor) or (1, 1, 1)))


def work(factor: float, *, stages: Sequence[int] = (0, 1), steps: Sequence[int] = (0, 1)) -> Work:
    """Make computes longer."""
    found = np.ones((2, 2, 2, 2, 1))
    found[np.ix_((0, 1), stages, (0, 1), steps, (0,))] = factor
    return Work(found)


STAGE_1 = [[[1.0]], [[2.0]]]


@pytest.mark.parametrize(
    ("changes", "seconds"),
    [
        ([], [9.0, 9.0]),
        ([scale(2.0)], [12.0, 12.0]),
        ([scale(2.0), scale(0.5)], [9.0, 9.0]),
        ([scale(STAGE_1)], [11.0, 11.0]),
        ([Scale(FORWARD, np.array([[[1.0], [2.0]]]))], [9.0, 12.0]),
        ([work(2.0)], [18.0, 18.0]),
        ([work(2.0, stages=[1])], [15.0, 15.0]),
        ([work(2.0, stages=[0], steps=[1])], [9.0, 15.0]),
        ([work(2.0), work(0.25)], [4.5, 4.5]),
        ([Work(np.full((1, 1, 1, 1, 1), 3.0))], [27.0, 27.0]),
        ([Spend(np.array([1.0, 2.0])), Spend(np.asarray(0.5))], [10.5, 11.5]),
        ([scale(2.0), work(2.0), Spend(np.asarray(1.0))], [25.0, 25.0]),
    ],
    ids=[
        "nothing", "forwards", "and back", "one stage's forwards", "one step's forwards", "computes", "one stage", "one step",
        "factors multiply", "one factor for all", "time between steps", "all of it",
    ],
)  # fmt: skip
def test_prices_of_changes(hand: Removal, changes: list[Change], seconds: list[float]) -> None:
    """What several changes do to the same operation is joined; a sample of steps costs what it costs in all of them."""
    np.testing.assert_allclose(hand.price(changes), seconds)
    for step in (0, 1):
        np.testing.assert_allclose(hand.price(changes, [slice(step, step + 1)]), seconds[step : step + 1])
    np.testing.assert_allclose(hand.sample(changes), seconds)


@pytest.mark.parametrize(
    ("masks", "seconds"),
    [
        ([[[0, 0], [0, 1]]], 9.0),
        ([[[1, 1], [1, 0]]], 15.0),
        ([[[0, 0], [0, 1]], [[1, 0], [0, 0]]], 9.0),
        ([[[1, 0], [0, 0]], [[0, 0], [0, 1]]], 9.0),
        ([[[1, 0], [0, 0]], None], 9.0),
        ([None, [[1, 0], [0, 0]]], 9.0),
        ([[[1, 0], [0, 0]], [[0, 1], [0, 0]]], 15.0),
    ],
    ids=str,
)
def test_places_of_a_removal_add_up(ranks: Removal, masks: list[Any], seconds: float) -> None:
    """A component goes on the workers of any of the changes; the slow worker is dp 1, stage 1, and its peers wait for it."""
    changes = [Remove("worker", None if mask is None else np.array(mask, dtype=bool)) for mask in masks]
    np.testing.assert_allclose(ranks.price(changes), seconds)
