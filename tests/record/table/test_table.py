"""The fastest column of the table: one fault a framework. All of it: `python -m tests.record.table`."""

import dataclasses

import pytest

from tests.record.table.__main__ import describe, run_cell
from tests.record.table.fault import FAULTS
from tests.record.table.framework import Framework, list_frameworks
from tests.record.table.plan import Plan

FRAMEWORKS = list_frameworks()
#: Two stages, two times data-parallel.
PIPELINE = Framework(
    title="", places=((0, 0), (1, 0), (0, 1), (1, 1)), slow_rank=3, microbatches=4, forward_s=0.05, backward_s=0.075
)


@pytest.mark.parametrize("name", FRAMEWORKS)
def test_a_slow_rank_is_named(name):
    """Recorded in each framework, the slow rank comes first, with what it costs."""
    framework = FRAMEWORKS[name]
    if missing := framework.missing():
        pytest.skip(f"{', '.join(missing)} not installed: {framework.title} was not tried")
    cell = run_cell(name, dataclasses.replace(framework, steps=framework.steps // 2), "slow-rank")
    assert cell.is_right, describe(cell)


@pytest.mark.parametrize(
    ("framework", "fault", "lost_s"),
    [
        (Framework(title=""), "slow-rank", 0.6 * 0.15),
        (Framework(title=""), "gc-together", 0.6 * 0.15),
        (Framework(title=""), "loader-one", 0.6 * 0.15),
        (PIPELINE, "slow-rank", 4 * 0.6 * 0.125),  # the first microbatch is late on the first stage, which is not slow
        (PIPELINE, "loader-one", 0.6 * 5 * 0.125),
        # The last stage computes all microbatches; spread evenly, both stages have half of the excess, and five turns.
        (PIPELINE, "long-loss", (4 * 1.6 + 1 - 5 * 1.3) * 0.125),
    ],
)
def test_what_a_step_loses(framework, fault, lost_s):
    """The truth of a first step is what one adds up by hand."""
    plan = Plan(framework, FAULTS[fault])
    assert plan.lost_s(0) == pytest.approx(lost_s)
