"""Pipeline ranks whose files are not there."""

import numpy as np
import pytest

from diagnose.model.optype import Op
from diagnose.model.recording import Recording
from diagnose.trace.producers.absent import find_absent


def record(leads: dict[int, int], n_microbatches: int = 8) -> Recording:
    """Make two steps of stages that run so many forwards before their first backward."""
    rows = []
    for step in (1, 2):
        for stage, lead in leads.items():
            order = [Op.FORWARD] * lead + [Op.BACKWARD, Op.FORWARD] * (n_microbatches - lead) + [Op.BACKWARD] * lead
            rows += [(int(op), step, stage, 100.0 * step + n) for n, op in enumerate(order)]
    op, step_of, stage_of, start_s = (np.array(column) for column in zip(*rows, strict=True))
    return Recording(
        producer="test",
        op=op.astype(np.int8),
        step=step_of,
        dp=np.zeros(len(op), dtype=np.int64),
        stage=stage_of,
        start_s=start_s,
        duration_s=np.ones(len(op)),
    )


@pytest.mark.parametrize(
    "leads",
    [
        {0: 4, 1: 3, 2: 2, 3: 1},
        {0: 7, 1: 5, 2: 3, 3: 1},  # zero-bubble fills the warm-up
        {0: 8, 1: 8, 2: 8},  # all forwards first
        {0: 8, 1: 8, 2: 3, 3: 2, 4: 1},  # fewer microbatches than stages
        {0: 4, 2: 3, 4: 2, 6: 1},  # every second rank is of another tensor-parallel place
    ],
)
def test_whole_pipelines_lack_nothing(leads: dict[int, int]) -> None:
    """Nothing is missing in the schedules that are in use."""
    assert find_absent(record(leads), numbered=False) == ()


@pytest.mark.parametrize(
    ("leads", "said"),
    [
        ({1: 3, 2: 2, 3: 1}, "before the first"),
        ({0: 4, 1: 3, 3: 1}, "between two"),
        ({0: 4, 1: 3, 2: 2}, "after the last"),
        ({2: 2}, "before the first and after the last"),
    ],
)
def test_missing_ranks_show_in_the_order_of_the_others(leads: dict[int, int], said: str) -> None:
    """Where nothing numbers the pipeline ranks their warm-ups tell which are missing."""
    (found,) = find_absent(record(leads), numbered=False)
    assert f"there are ranks {said} of those" in found.reason


def test_numbers_and_sizes_tell_in_any_schedule() -> None:
    """With all forwards first a gap in the numbers, or a size that is larger, tells of missing ranks."""
    assert find_absent(record({0: 8, 1: 8}), n_stages=2) == ()
    assert "after the last" in find_absent(record({0: 8, 1: 8}), n_stages=3)[0].reason
    assert "between two" in find_absent(record({0: 8, 2: 8}), n_stages=3)[0].reason
