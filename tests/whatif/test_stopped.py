"""Processes that something stops now and then: in computes of either direction and, at other times, in messages."""

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


def stall(*, at: tuple[tuple[int, int, int], ...], told: bool = False, ranks: tuple[int, ...] = (DP,)) -> Stalls:
    """Let computes of the worker, or of others, stand still."""
    stalls = measured(SPEC).breakdown.stalls
    inside_s, inside = np.zeros(stalls.inside_s.shape), np.zeros_like(stalls.inside)
    for direction, microbatch, step in at:
        inside_s[direction, STAGE, microbatch, step, list(ranks)] = STOP_S
    return dataclasses.replace(
        stalls,
        inside_s=inside_s,
        before_s=np.zeros(inside_s.shape),
        inside=inside,
        before=np.zeros_like(stalls.before),
        recorded_inside=inside_s > (0.0 if told else np.inf),
    )


def late(
    o: Observed, *, op: Op, dp: int, steps: tuple[int, ...], seconds: float, all_of_them: bool = False
) -> dict[int, Seconds]:
    """Let transfers of one type of the stage take longer in some steps, the first or all of them."""
    nodes = np.flatnonzero((o.block.nodes.op == op) & (o.block.nodes.stage == STAGE))
    longer = np.zeros(o.block.start_s[0].shape)
    longer[list(steps), dp] = seconds
    return {int(end): longer for node in nodes[: None if all_of_them else 1] for end in o.graph.members_of(int(node))}


def overlap(o: Observed, excess: dict[int, Seconds]) -> Observed:
    """Let late transfers be there from the beginning of their steps on, and all last longer, so that computes may wait for them."""
    start_s, end_s = o.block.start_s.copy(), o.block.end_s + STOP_S
    for node, seconds in excess.items():
        start_s[node] = np.where(seconds > 0, 0.0, start_s[node])
    return dataclasses.replace(o, block=dataclasses.replace(o.block, start_s=start_s, end_s=end_s))


@pytest.mark.parametrize(
    ("at", "told", "op", "dp", "steps", "seconds", "expected"),
    [
        pytest.param(BOTH, False, Op.FORWARD_SEND, DP, (4, 6), 0.45, True, id="its process"),
        pytest.param(
            BOTH, False, Op.REDUCE_SCATTER, 0, (4, 6), 0.45, True, id="in a collective, where all wait for it"
        ),
        pytest.param(BOTH, False, Op.FORWARD_SEND, 0, (4, 6), 0.45, False, id="messages of another rank"),
        pytest.param(BOTH, False, Op.FORWARD_SEND, DP, (4,), 0.45, False, id="a single one is chance"),
        pytest.param(BOTH, False, Op.FORWARD_SEND, DP, (0, 1), 0.45, True, id="in the same steps, at other times"),
        pytest.param(BOTH, False, Op.FORWARD_SEND, DP, (4, 6), 1.5, False, id="far longer: a link"),
        pytest.param(BOTH, False, Op.FORWARD_SEND, DP, (4, 5, 6, 7), 0.7, False, id="more in messages: a link"),
        pytest.param(BOTH, False, Op.FORWARD_SEND, DP, (0, 3, 4, 5, 6), 0.35, True, id="one of two in most steps"),
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


def test_link() -> None:
    """Where most messages of a type are late, as by a link, or computes may wait for those that are, nothing says what it is."""
    (o,) = measured(SPEC).observed
    stalls = stall(at=BOTH)
    excess = late(o, op=Op.FORWARD_SEND, dp=DP, steps=(0, 3, 4, 5, 6), seconds=0.35, all_of_them=True)
    assert not any(attribute_to_stopped([o], stalls, [excess], SPEC.pp))
    beside = late(o, op=Op.FORWARD_SEND, dp=DP, steps=(0, 2), seconds=0.45)
    assert not any(attribute_to_stopped([overlap(o, beside)], stalls, [beside], SPEC.pp))
    assert not stalls.seconds_of(StallKind.WORKER).any()


@pytest.mark.parametrize("case", ["at once", "at times of their own", "another has one, too"])
def test_host(case: str) -> None:
    """What stops several processes at once stops their host, where nobody else has any such stop."""
    (o,) = measured(SPEC).observed
    stalls, excess = (
        stall(at=BOTH, ranks=(0, DP)),
        late(o, op=Op.FORWARD_SEND, dp=DP, steps=(4, 6), seconds=0.45),
    )
    if case == "at times of their own":
        stalls.inside_s[..., 0] = np.roll(stalls.inside_s[..., 0], 3, axis=3)
    if case == "another has one, too":
        stalls.inside_s[0, 1, 0, 0, 0] = 0.7 * STOP_S
    (frozen,) = attribute_to_stopped([o], stalls, [excess], SPEC.pp)
    assert bool(frozen) is (case == "at once")
    assert stalls.seconds_of(StallKind.WORKER).sum() == (2 * STOP_S * len(BOTH) if case == "at once" else 0.0)


def test_noise() -> None:
    """Short pauses of many others, more seconds together than what the process stops for, hide it not."""
    (o,) = measured(SPEC).observed
    stalls, excess = stall(at=BOTH), late(o, op=Op.FORWARD_SEND, dp=DP, steps=(4, 6), seconds=0.45)
    stalls.inside_s[:, :, ..., 1 - DP] = stalls.inside_s[:, 1 - STAGE, ..., DP] = 0.04
    assert any(attribute_to_stopped([o], stalls, [excess], SPEC.pp))
    assert stalls.seconds_of(StallKind.WORKER).sum() == pytest.approx(STOP_S * len(BOTH))
