"""Telemetry beside a trace, on jobs whose faults are known: sub-causes, vetoes, and sound findings left alone."""

import pytest

from tests.telemetry_beside.cases import PURPOSES
from tests.telemetry_beside.table import judge_many, render, share

#: Of the acceptance: nobody tunes to these.
SEED = 20260


def test_a_case_is_the_same_each_time() -> None:
    """Whatever else is drawn."""
    first, again = (render(list(judge_many(5, n, ("veto",)))).splitlines() for n in (1, 1))
    assert first == again


@pytest.mark.parametrize("purpose", PURPOSES)
def test_some_cases(purpose: str) -> None:
    """Four of each: nothing sound is weakened or blamed on another machine, most sub-causes are right, most vetoes come."""
    rows = list(judge_many(SEED, 4, (purpose,)))
    assert sum(row.counts for row in rows) >= 3, render(rows)
    assert share(rows, "wrong machine", "accused") == 0, render(rows)
    good = {"sub-cause": ("right",), "veto": ("weakened",), "sound": ("right", "wrong", "nothing")}[purpose]
    assert share(rows, *good) >= 0.7, render(rows)


@pytest.mark.benchmark
@pytest.mark.parametrize(
    ("purpose", "n", "least"), [("sub-cause", 400, 0.95), ("veto", 200, 0.95), ("sound", 200, 1.0)]
)
def test_acceptance(purpose: str, n: int, least: float) -> None:
    """Sub-causes right in 95% of 400, 95% of 200 false suspects weakened, and of 200 sound findings none."""
    rows = list(judge_many(SEED, n, (purpose,)))
    print(render(rows))
    if purpose == "sound":
        assert 1.0 - share(rows, "weakened") >= least
    else:
        assert share(rows, "right" if purpose == "sub-cause" else "weakened") >= least
