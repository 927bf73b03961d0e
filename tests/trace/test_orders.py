"""Steps that run their computes in another order are replayed as a group of their own."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from diagnose.trace.load import load_trace
from tests.jobs import Shape, load, random_job
from tests.trace.producers.pipelines import Pipeline, write_event_timer

SHAPE = Shape(n_steps=6)


class ForwardsFirst(Pipeline):
    """A pipeline that runs all forwards before its first backward."""

    def _programme(self, stage: int) -> list[Any]:
        last = self.n_stages - 1
        items: list[Any] = []
        for op, source, to in (("F", stage - 1, stage < last), ("B", stage + 1, stage > 0)):
            for i in range(self.n_microbatches):
                items += [[(op, source, i)]] if 0 <= source <= last else []
                items += [(op, i)]
                items += [[(op, stage, i)]] if to else []
        return items


def test_one_order_is_one_group() -> None:
    """A job that never changes its schedule stays whole, however its times vary."""
    trace = load(random_job(SHAPE, 3), SHAPE.meta)
    assert len(trace.blocks) == 1 and trace.warnings == ()


@pytest.mark.parametrize("first", [2, 4, 6])
def test_a_schedule_that_changes_parts_the_steps(first: int, tmp_path: Path) -> None:
    """Steps of another order are told, and every step is in one group."""
    before, after = (kind(3, 6, 6).run() for kind in (Pipeline, ForwardsFirst))
    begun = min(span.start_s for span in after if span.step == first)
    ended = max(span.end_s for span in before if span.step == first - 1)
    later = [
        type(span)(
            span.op,
            span.step,
            span.stage,
            span.microbatch,
            *(t - begun + ended + 0.2 for t in (span.start_s, span.end_s)),
        )
        for span in after
        if span.step >= first
    ]
    trace = load_trace(write_event_timer(tmp_path, [span for span in before if span.step < first] + later))
    assert [block.steps.tolist() for block in trace.blocks] == [
        np.arange(1, first).tolist(),
        np.arange(first, 7).tolist(),
    ]
    assert any(f"({'1' if first == 2 else f'1-{first - 1}'}; " in warning for warning in trace.warnings)
