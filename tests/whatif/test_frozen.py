"""Transfers that stood still with a process of one of their ends, by rows of collections and by pauses in computes."""

import dataclasses

import numpy as np
import pytest

from diagnose.faults.spec import JobSpec
from diagnose.model.optype import Op
from diagnose.model.stalls import StallKind
from diagnose.model.trace import Evidence, Seconds
from diagnose.whatif.frozen import STOPPING, find_frozen
from diagnose.whatif.observed import Observed
from diagnose.whatif.starts import Delays, attribute_held
from tests.judge.cases import measured

SPEC = JobSpec(pp=2, dp=2, microbatches=2, steps=4, seed=1)
STEP, DP, LONGER_S = 2, 1, 0.5


def slow_send() -> tuple[Observed, int, int, dict[int, Seconds]]:
    """Let a message of stage 0 take half a second longer in one step of one dp rank, at both of its ends."""
    (o,) = measured(SPEC).observed
    send = int(np.flatnonzero(o.block.nodes.op == Op.FORWARD_SEND)[0])
    (recv,) = set(o.graph.members_of(send).tolist()) - {send}
    longer = np.zeros(o.block.start_s[send].shape)
    longer[STEP, DP] = LONGER_S
    end_s = o.block.end_s.copy()
    end_s[[send, recv]] += longer
    block = dataclasses.replace(o.block, end_s=end_s)
    return dataclasses.replace(o, block=block), send, recv, {send: longer, recv: longer}


def collected(o: Observed, stage: int, begins_s: float, seconds: float, op: Op = Op.GC) -> Evidence:
    """Give one row, in the step and on the dp rank of the slow message."""
    at = [np.array([value]) for value in (int(op), int(o.block.steps[STEP]), DP, stage)]
    return Evidence(*at, np.array([begins_s]), np.array([begins_s + seconds]))


@pytest.mark.parametrize(
    ("stage", "seconds", "op", "expected"),
    [
        pytest.param(0, 0.2, Op.GC, 0.2, id="the sender"),
        pytest.param(1, 0.2, Op.GC, 0.2, id="the receiver"),
        pytest.param(0, 3.0, Op.GC, LONGER_S, id="no more than it took longer"),
        pytest.param(0, 0.2, Op.DATA_LOAD, 0.0, id="a loader stops no other thread"),
    ],
)
def test_rows_of_collections(stage: int, seconds: float, op: Op, expected: float) -> None:
    """A message is as long as the collection of one of its ends, at both ends, and in that step alone."""
    o, send, recv, excess = slow_send()
    begins_s = float(o.block.start_s[[send, recv], STEP, DP].max()) + 0.01
    rows = collected(o, stage, begins_s, seconds, op)
    found = find_frozen(o, slice(0, 4), rows, measured(SPEC).breakdown.stalls, excess, SPEC.pp)[StallKind.COLLECTION]
    assert set(found) <= {send, recv}
    for node in (send, recv):
        frozen_s = found.get(node, np.zeros((4, 2)))
        assert frozen_s[STEP, DP] == pytest.approx(expected, abs=0.01)
        assert np.count_nonzero(frozen_s) == (expected > 0)


@pytest.mark.parametrize("kind", STOPPING)
@pytest.mark.parametrize("n_alone", [0, 1])
def test_stalls_of_computes_without_rows(n_alone: int, kind: StallKind) -> None:
    """A compute that stands still while a message is in flight tells as much, if others do so without one, whatever it is for."""
    o, send, recv, excess = slow_send()
    stalls = measured(SPEC).breakdown.stalls
    inside_s, inside = stalls.inside_s.copy(), stalls.inside.copy()
    for place in [(0, 0, 1, STEP, DP), (0, 0, 1, 0, 0)][: 1 + n_alone]:
        inside_s[place], inside[place] = 0.3, kind
    stalls = dataclasses.replace(stalls, inside_s=inside_s, inside=inside)
    (second,) = np.flatnonzero(
        (o.block.nodes.op == Op.FORWARD) & (o.block.nodes.stage == 0) & (o.block.nodes.microbatch == 1)
    )
    end_s = o.block.end_s.copy()
    end_s[second, STEP, DP] = o.block.end_s[send, STEP, DP]
    o = dataclasses.replace(o, block=dataclasses.replace(o.block, end_s=end_s))
    nothing = Evidence(*(np.zeros(0, dtype=np.int64),) * 4, *(np.zeros(0),) * 2)
    found = find_frozen(o, slice(0, 4), nothing, stalls, excess, SPEC.pp)
    assert set(found[kind]) == ({send, recv} if n_alone else set())
    assert not any(found[other] for other in STOPPING if other != kind)
    for seconds in found[kind].values():
        assert seconds[STEP, DP] == pytest.approx(0.3, abs=0.05)


@pytest.mark.parametrize(
    ("stage", "late_s", "held"),
    [
        pytest.param(0, 0.3, True, id="as long as the collection"),
        pytest.param(0, 3.0, False, id="far longer"),
        pytest.param(1, 0.3, False, id="of another worker"),
    ],
)
def test_launches_late_beside_a_collection(stage: int, late_s: float, *, held: bool) -> None:
    """A forward stands still for 0.3 s; a message of its worker that is launched as it ends is late by it, however many are."""
    o, send, recv, _ = slow_send()
    stalls = measured(SPEC).breakdown.stalls
    inside_s, inside = stalls.inside_s.copy(), stalls.inside.copy()
    inside_s[0, stage, 1, STEP, DP], inside[0, stage, 1, STEP, DP] = 0.3, StallKind.COLLECTION
    stalls = dataclasses.replace(stalls, inside_s=inside_s, inside=inside)
    (forward,) = np.flatnonzero(
        (o.block.nodes.op == Op.FORWARD) & (o.block.nodes.stage == stage) & (o.block.nodes.microbatch == 1)
    )
    begins_s, end_s = o.block.start_s.copy(), o.block.end_s.copy()
    end_s[forward, STEP, DP] = begins_s[forward, STEP, DP] + 0.35
    begins_s[send, STEP, DP] = end_s[forward, STEP, DP]
    o = dataclasses.replace(o, block=dataclasses.replace(o.block, start_s=begins_s, end_s=end_s))
    late = np.zeros(end_s[send].shape)
    late[STEP, DP] = late_s
    delays = Delays({send: late, recv: 0.0 * late, forward: late}, {}, {}, {})
    attribute_held([o], [delays], stalls, SPEC.pp)
    assert set(delays.kinds) == ({send} if held else set())
    assert not held or np.argwhere(delays.kinds[send] == StallKind.COLLECTION).tolist() == [[STEP, DP]]
