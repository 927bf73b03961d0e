"""Whether a job is slower than it was."""

import numpy as np
import pytest

from diagnose.watch.pace import MIN_WINDOWS, Paces


def history(seconds: list[float], works: list[float | None]) -> Paces:
    """Make the history of windows in which nothing was wrong."""
    paces = Paces()
    for step_s, work in zip(seconds, works, strict=True):
        paces = paces.add(step_s, 0.0, work)
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
    paces = paces.add(2.0, 0.0, 2000.0)
    assert paces.seconds == (2.0,) and paces.excess(2.0, 2000.0) is None
