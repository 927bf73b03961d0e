"""What is planned work: forwards alone, at a period, and what all workers do at once; and what is not."""

import numpy as np
import pytest

from diagnose.model.stalls import StallKind, Stalls
from diagnose.numerics.period import is_interval
from diagnose.whatif.components.evaluation import (
    attribute_planned_collections,
    find_evaluations,
    is_planned,
)

STEPS = np.arange(24)
JOB_S = 10.0 * len(STEPS)
STAGES, MICROBATCHES, DP = 4, 8, 4


def slow(forward: float, backward: float, at: np.ndarray) -> np.ndarray:
    """Make computes of some steps longer by these ratios."""
    ratio = np.ones((2, len(STEPS)))
    ratio[0, at], ratio[1, at] = forward, backward
    return ratio


def collections(at: np.ndarray, *, recorded: bool = False) -> Stalls:
    """Let the workers marked, shape (n_stages, n_steps, n_dp), collect in their fourth forward."""
    zeros = np.zeros((2, STAGES, MICROBATCHES, len(STEPS), DP))
    inside = zeros.copy()
    inside[0, :, 3] = np.where(at, 0.5, 0.0)
    kinds = np.where(inside > 0, int(StallKind.COLLECTION), 0).astype(np.int8)
    nothing = np.zeros(zeros.shape, dtype=bool)
    return Stalls(inside, zeros, kinds, np.zeros(zeros.shape, dtype=np.int8), (inside > 0) & recorded, nothing)


@pytest.mark.parametrize("period", [2, 3, 5])
def test_forwards_alone_at_a_period_are_evaluations(period: int) -> None:
    """Every so many steps forwards take twice as long on all workers, and backwards do not."""
    at = STEPS % period == 1
    np.testing.assert_array_equal(find_evaluations(slow(2.0, 1.0, at), STEPS), at)


def test_slow_steps_of_both_directions_are_none() -> None:
    """What makes backwards longer, too, is no evaluation, whatever its period."""
    assert not find_evaluations(slow(2.0, 1.8, STEPS % 4 == 0), STEPS).any()


def test_forwards_alone_without_a_period_are_none() -> None:
    """Steps at no period are slow, whatever is slow in them; one alone may be the only evaluation of a short trace."""
    assert not find_evaluations(slow(2.0, 1.0, np.isin(STEPS, [1, 2, 7, 12, 20])), STEPS).any()
    assert find_evaluations(slow(2.0, 1.0, STEPS == 9), STEPS).sum() == 1


def test_what_is_there_in_most_steps_is_no_plan() -> None:
    """A plan is at most every second step."""
    assert is_planned(STEPS, STEPS % 2 == 0)
    assert not is_planned(STEPS, STEPS % 4 != 0)
    assert not is_planned(STEPS, np.zeros(len(STEPS), dtype=bool))
    # Four of five lie on it; three of four are too few.
    assert is_planned(STEPS, np.isin(STEPS, (0, 6, 12, 15, 18)))
    assert not is_planned(STEPS, np.isin(STEPS, (0, 6, 12, 15)))


@pytest.mark.parametrize(("period", "found"), [(8, True), (12, False), (3, False)])
def test_an_interval_shows_from_three_times_on(period: int, found: bool) -> None:
    """Two times are a chance, and every third step is no interval that anybody chooses."""
    assert is_interval(STEPS, STEPS % period == period - 1) == found


def test_collections_of_all_workers_in_the_same_steps_are_planned() -> None:
    """`gc.collect` on all ranks every sixth step is a plan; each worker in its own steps is not."""
    together = np.broadcast_to((STEPS % 6 == 0)[None, :, None], (STAGES, len(STEPS), DP))
    stalls = collections(together)
    attribute_planned_collections(stalls, STEPS, JOB_S, STAGES)
    assert (stalls.inside[stalls.inside_s > 0] == StallKind.PLANNED).all()
    turn = np.arange(STAGES)[:, None, None] + STAGES * np.arange(DP)
    stalls = collections((STEPS[None, :, None] - turn) % 16 == 0)
    attribute_planned_collections(stalls, STEPS, JOB_S, STAGES)
    assert (stalls.inside[stalls.inside_s > 0] == StallKind.COLLECTION).all()


def test_a_few_collections_beside_the_plan_change_nothing() -> None:
    """Where most collections are of single workers the job has no plan."""
    at = np.random.default_rng(0).random((STAGES, len(STEPS), DP)) < 0.5
    at[:, STEPS % 12 == 0] = True
    stalls = collections(at)
    attribute_planned_collections(stalls, STEPS, JOB_S, STAGES)
    assert not (stalls.inside == StallKind.PLANNED).any()


@pytest.mark.parametrize(
    ("recorded", "step_s", "kind"),
    [
        (True, 2.0, StallKind.COLLECTION),
        (True, 10.0, StallKind.PLANNED),
        (False, 2.0, StallKind.COLLECTION),
        (False, 10.0, StallKind.PLANNED),
    ],
    ids=["dear", "cheap", "dear without rows", "cheap without rows"],
)
def test_a_plan_that_costs_much_is_no_good_one(recorded: bool, step_s: float, kind: StallKind) -> None:
    """0.5 s every sixth step are 4% of steps of 2 s: collections then come too often, planned or not."""
    together = np.broadcast_to((STEPS % 6 == 0)[None, :, None], (STAGES, len(STEPS), DP))
    for others in (1.0, 0.1):  # all wait for the slowest
        stalls = collections(together, recorded=recorded)
        stalls.inside_s[:, 1:] *= others
        attribute_planned_collections(stalls, STEPS, step_s * len(STEPS), STAGES)
        assert (stalls.inside[stalls.inside_s > 0] == kind).all()
