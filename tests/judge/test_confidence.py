"""How often rare events may come: the limits that tables of the Poisson distribution give."""

import pytest

from diagnose.judge.confidence import how_often_at_most


@pytest.mark.parametrize(("n_seen", "limit"), [(1, 5.5716), (2, 7.2247), (5, 11.6683), (10, 18.3904), (100, 121.6266)])
def test_limits_are_those_of_tables(n_seen: int, limit: float) -> None:
    """Garwood's upper limits, 97.5% on one side, over what was seen."""
    assert how_often_at_most(n_seen) == pytest.approx(limit / n_seen, abs=5e-5)
