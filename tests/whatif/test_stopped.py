"""The process that something stops now and then: in computes of either direction and, in other steps, in messages."""

import dataclasses

import numpy as np
import pytest

from diagnose.faults.spec import JobSpec
from diagnose.model.optype import Op
from diagnose.model.stalls import StallKind, Stalls
from diagnose.model.trace import Seconds
from diagnose.whatif.observed import Observed
from diagnose.whatif.stopped import attribute_to_stopped
from tests.judge.cases import measured

SPEC = JobSpec(pp=2, dp=2, microbatches=2, steps=8, seed=1)
STOP_S, DP, STAGE = 0.5, 1, 0
#: Direction, microbatch and step of the stalls of one worker.
BOTH = ((0, 0, 0), (1, 1, 1), (0, 1, 2))
FORWARDS = ((0, 0, 0), (0, 1, 1), (0, 1, 2))


def stall(*, at: tuple[tuple[int, int, int], ...], told: bool = False) -> Stalls:
    """Let computes of the worker stand still."""
    stalls = measured(SPEC).breakdown.stalls
    inside_s, inside = np.zeros(stalls.inside_s.shape), np.zeros_like(stalls.inside)
    for direction, microbatch, step in at:
        inside_s[direction, STAGE, microbatch, step, DP] = STOP_S
    return dataclasses.replace(
        stalls,
        inside_s=inside_s,
        before_s=np.zeros(inside_s.shape),
        inside=inside,
        before=np.zeros_like(stalls.before),
        recorded_inside=inside_s > (0.0 if told else np.inf),
    )


def late(o: Observed, *, op: Op, dp: int, steps: tuple[int, ...], seconds: float) -> dict[int, Seconds]:
    """Let transfers of one type take longer in some steps."""
    node = int(np.flatnonzero(o.block.nodes.op == op)[0])
    longer = np.zeros(o.block.start_s[node].shape)
    longer[list(steps), dp] = seconds
    return {int(end): longer for end in o.graph.members_of(node)}


@pytest.mark.parametrize(
    ("at", "told", "op", "dp", "steps", "seconds", "expected"),
    [
        pytest.param(BOTH, False, Op.FORWARD_SEND, DP, (4, 6), 0.45, True, id="its process"),
        pytest.param(
            BOTH, False, Op.REDUCE_SCATTER, 0, (4, 6), 0.45, True, id="in a collective, where all wait for it"
        ),
        pytest.param(BOTH, False, Op.FORWARD_SEND, 0, (4, 6), 0.45, False, id="messages of another rank"),
        pytest.param(BOTH, False, Op.FORWARD_SEND, DP, (4,), 0.45, False, id="a single one is chance"),
        pytest.param(BOTH, False, Op.FORWARD_SEND, DP, (0, 1), 0.45, False, id="computes may wait for these"),
        pytest.param(BOTH, False, Op.FORWARD_SEND, DP, (4, 6), 1.5, False, id="far longer: a link"),
        pytest.param(BOTH, False, Op.FORWARD_SEND, DP, (4, 5, 6, 7), 0.7, False, id="more in messages: a link"),
        pytest.param(BOTH, False, Op.FORWARD_SEND, DP, (0, 3, 4, 5, 6), 0.35, False, id="in most steps: a link"),
        pytest.param(FORWARDS, False, Op.FORWARD_SEND, DP, (4, 6), 0.45, False, id="collections of a slow link"),
        pytest.param(BOTH[:2], False, Op.FORWARD_SEND, DP, (4, 6), 0.45, False, id="too few"),
        pytest.param(BOTH, True, Op.FORWARD_SEND, DP, (4, 6), 0.45, False, id="rows say what they are"),
    ],
)
def test_stops(
    at: tuple[tuple[int, int, int], ...],
    told: bool,
    op: Op,
    dp: int,
    steps: tuple[int, ...],
    seconds: float,
    expected: bool,
) -> None:
    """What stops computes of both directions and, in other steps, messages of the same worker for as long stops its process."""
    (o,) = measured(SPEC).observed
    stalls, excess = stall(at=at, told=told), late(o, op=op, dp=dp, steps=steps, seconds=seconds)
    (frozen,) = attribute_to_stopped([o], stalls, [excess], SPEC.pp)
    stopped = stalls.seconds_of(StallKind.WORKER)
    assert stopped.sum() == pytest.approx(STOP_S * len(at) if expected else 0.0)
    assert sum(s.sum() for s in frozen.values()) == pytest.approx(
        sum(s.sum() for s in excess.values()) if expected else 0
    )


def test_two_workers() -> None:
    """Where others stand still as often it is no single process."""
    (o,) = measured(SPEC).observed
    stalls, excess = stall(at=BOTH), late(o, op=Op.FORWARD_SEND, dp=DP, steps=(4, 6), seconds=0.45)
    stalls.inside_s[..., 0] = stalls.inside_s[..., DP]
    assert not any(attribute_to_stopped([o], stalls, [excess], SPEC.pp))
    assert not stalls.seconds_of(StallKind.WORKER).any()
