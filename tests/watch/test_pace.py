"""Whether a job is slower than it was."""

import numpy as np
import pytest

from diagnose.watch.pace import MIN_WINDOWS, Pace, Paces


def history(seconds: list[float], works: list[float | None]) -> Paces:
    """Make the history of windows in which nothing was wrong."""
    paces = Paces()
    for step_s, work in zip(seconds, works, strict=True):
        paces = paces.add(Pace(step_s, work or 1.0))
    return paces


def test_what_is_within_the_spread_is_no_change():
    """A window as slow as others were is none; one beyond that is told with what it costs."""
    rng = np.random.default_rng(0)
    paces = history((1 + 0.01 * rng.standard_normal(50)).tolist(), [None] * 50)
    assert paces.excess(1.02, None) == 0.0
    assert paces.excess(1.25, None) == pytest.approx(0.2, abs=0.01)
    assert paces.excess(0.5, None) == 0.0


def test_too_short_a_history_says_nothing():
    """Nobody knows yet what is usual."""
    assert history([1.0] * (MIN_WINDOWS - 1), [None] * (MIN_WINDOWS - 1)).excess(2.0, None) is None


@pytest.mark.parametrize("grows", [True, False])
def test_more_work_is_no_slowness(grows):
    """GIVEN steps of varying work, which take longer for it or do not, THEN 8% more work is nothing, and 30% more time is."""
    rng = np.random.default_rng(1)
    works = (1000 * (1 + 0.03 * rng.standard_normal(50))).tolist()
    paces = history([work / 1000 if grows else 1.0 for work in works], works)
    assert paces.excess(1.08 if grows else 1.0, 1080.0) == 0.0
    assert paces.excess(1.30, 1000.0) == pytest.approx(0.23, abs=0.02)


def test_much_more_work_begins_anew():
    """Sequences twice as long are another pace: nothing is compared until that is known."""
    paces = history([1.0] * 20, [1000.0] * 20)
    assert paces.excess(2.0, 2000.0) is None
    paces = paces.add(Pace(2.0, 2000.0))
    assert [one.step_s for one in paces.usual] == [2.0] and paces.excess(2.0, 2000.0) is None


def test_the_usual_pace_is_that_of_late_where_it_got_better():
    """GIVEN a hundred windows of which the last ones are faster, or slower, THEN the usual pace is the faster one."""
    assert history([1.0] * 30 + [0.8] * MIN_WINDOWS, [None] * 35).usual_s(None) == 0.8
    assert history([0.8] * 30 + [1.0] * MIN_WINDOWS, [None] * 35).usual_s(None) == 0.8
    assert history([1.0] * (MIN_WINDOWS - 1), [None] * 4).usual_s(None) is None
    assert history([1.0] * 10, [1000.0] * 10).usual_s(950.0) == pytest.approx(0.95)  # less work
    assert history([1.0] * 10, [1000.0] * 10).usual_s(1050.0) == 1.0  # more, which may cost nothing


def test_what_a_cause_costs_as_a_rule():
    """The median over windows, in which it may not be there."""
    paces = Paces()
    for gain in (0.1, 0.2, 0.3):
        paces = paces.add(Pace(1.0, gains={"stage-imbalance": gain}))
    assert paces.usual_gain("stage-imbalance") == 0.2 and paces.usual_gain("worker-fault") == 0.0


def test_the_part_of_a_step_that_is_longer():
    """It is named where it takes most of what steps are longer by; what is shorter, or spread, is not."""
    paces = Paces()
    for _ in range(MIN_WINDOWS):
        paces = paces.add(Pace(1.0, parts_s={"compute": 0.7, "exposed_collectives": 0.3}))
    assert paces.find_longer(Pace(1.2, parts_s={"compute": 0.69, "exposed_collectives": 0.51})) == "exposed_collectives"
    assert paces.find_longer(Pace(1.2, parts_s={"compute": 0.8, "exposed_collectives": 0.4})) is None
    assert (
        paces.find_longer(Pace(1.2, parts_s={"compute": 0.7, "exposed_collectives": 0.3})) is None
    )  # it is lost elsewhere
    assert paces.find_longer(Pace(0.9, parts_s={"compute": 0.7, "exposed_collectives": 0.2})) is None
    assert paces.find_longer(Pace(1.2)) is None and Paces().find_longer(Pace(1.0, parts_s={"compute": 1.0})) is None
