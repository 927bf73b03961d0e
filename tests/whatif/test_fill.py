"""What stands in for lost operations, on a job whose times can be added in the head."""

import dataclasses
from types import SimpleNamespace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest

from diagnose.faults.generate import generate
from diagnose.faults.network_fault import NetworkFault
from diagnose.faults.spec import JobSpec
from diagnose.faults.worker_fault import WorkerFault
from diagnose.model.optype import Op
from diagnose.model.trace import Block, Trace
from diagnose.whatif.batches import SampledLanes, find_batches
from diagnose.whatif.dependencies import build_graph
from diagnose.whatif.fill import _usual, fill_block
from diagnose.whatif.observed import measure_filled, observe
from diagnose.whatif.replay import replay
from diagnose.whatif.scenarios import prepare, typical_start
from tests.jobs import Shape, hand_job, load, random_job
from tests.judge.cases import diagnose_table, make

Cell = tuple[Op, int, int]  # type, stage, seq
FIRST = (0, 0)  # the step that loses something, twice as fast as the other; its only dp rank


@pytest.fixture
def block() -> Block:
    """Give the hand-made job, its first step at twice the speed: F 0.5 s, B 1 s, 4.5 s in all."""
    whole = load(hand_job()).blocks[0]
    speed = np.array([0.5, 1.0])[None, :, None]
    return dataclasses.replace(whole, start_s=whole.start_s * speed, end_s=whole.end_s * speed)


def node_of(block: Block, cell: Cell) -> int:
    """Find an operation."""
    op, stage, seq = cell
    nodes = block.nodes
    return int(np.flatnonzero((nodes.op == op) & (nodes.stage == stage) & (nodes.seq == seq))[0])


def fill(block: Block, *lost: Cell) -> Block:
    """Lose operations in the first step, and fill them in; nothing that was recorded may change."""
    start_s, end_s = block.start_s.copy(), block.end_s.copy()
    gone = np.zeros(start_s.shape, dtype=bool)
    for cell in lost:
        gone[node_of(block, cell)][FIRST] = True
    start_s[gone] = end_s[gone] = np.nan
    graph = build_graph(block.nodes, typical_start(block), has_dp=False)
    filled = fill_block(dataclasses.replace(block, start_s=start_s, end_s=end_s), graph)
    assert filled.filled is not None
    np.testing.assert_array_equal(filled.filled, gone)
    np.testing.assert_array_equal(filled.start_s[~gone], block.start_s[~gone])
    np.testing.assert_array_equal(filled.end_s[~gone], block.end_s[~gone])
    assert np.isfinite(filled.start_s).all()
    assert (filled.start_s <= filled.end_s).all()
    assert (filled.end_s.max(axis=(0, 2)) <= np.nanmax(end_s, axis=(0, 2))).all()
    return filled


def span(block: Block, cell: Cell) -> tuple[float, float]:
    """Give start and end of an operation in the first step."""
    node = node_of(block, cell)
    return float(block.start_s[node][FIRST]), float(block.end_s[node][FIRST])


def test_nothing_lost(block: Block) -> None:
    """A block without gaps comes back as the same object."""
    assert fill_block(block, build_graph(block.nodes, typical_start(block), has_dp=False)) is block


@pytest.mark.parametrize("seq", [0, 1])
@pytest.mark.parametrize(
    ("lost", "other"),
    [
        ((Op.FORWARD_RECV, 1), (Op.FORWARD_SEND, 0)),
        ((Op.FORWARD_SEND, 0), (Op.FORWARD_RECV, 1)),
        ((Op.BACKWARD_RECV, 0), (Op.BACKWARD_SEND, 1)),
        ((Op.BACKWARD_SEND, 1), (Op.BACKWARD_RECV, 0)),
    ],
)
def test_a_lost_half_of_a_pair_ends_with_the_other(
    block: Block, lost: tuple[Op, int], other: tuple[Op, int], seq: int
) -> None:
    """A transfer of which one side was lost ends on both sides when it did on the recorded one."""
    filled = fill(block, (*lost, seq))
    assert span(filled, (*lost, seq))[1] == span(block, (*other, seq))[1]


def test_a_lost_compute_ends_before_what_waited_for_it(block: Block) -> None:
    """A forward that usually takes 1 s ended after 0.5 s when the send that waited for it started then."""
    assert span(fill(block, (Op.FORWARD, 0, 0)), (Op.FORWARD, 0, 0)) == (0.0, 0.5)


def test_a_lost_compute_and_its_send(block: Block) -> None:
    """Where the send is lost with its forward, the recorded recv says when both had ended."""
    filled = fill(block, (Op.FORWARD, 0, 0), (Op.FORWARD_SEND, 0, 0))
    assert span(filled, (Op.FORWARD_SEND, 0, 0))[1] == 0.5
    assert span(filled, (Op.FORWARD, 0, 0))[1] <= 0.5


def test_a_lost_pair_moves_when_both_are_ready(block: Block) -> None:
    """A transfer lost on both sides takes its usual time, 0 s, after the forward that it waited for."""
    filled = fill(block, (Op.FORWARD_SEND, 0, 0), (Op.FORWARD_RECV, 1, 0))
    assert span(filled, (Op.FORWARD_SEND, 0, 0)) == (0.5, 0.5)
    assert span(filled, (Op.FORWARD_RECV, 1, 0))[1] == 0.5


def test_what_was_lost_cannot_outlast_the_step(block: Block) -> None:
    """The last backward of a worker, usually 2 s, lost with all after it, ends when the recorded step does, at 4.5 s."""
    lost = [(Op.BACKWARD, 0, 1), (Op.CLIP, 0, 0), (Op.OPTIMIZER, 0, 0)]
    filled = fill(block, *lost)
    assert filled.end_s.max(axis=(0, 2)).tolist() == [4.5, 9.0]
    assert span(filled, lost[0])[1] == 4.5


def test_what_does_not_exist_takes_no_time_and_is_not_filled(block: Block) -> None:
    """An operation that a rank does not have gets no time, and `filled` marks the lost one only."""
    absent = np.zeros(block.start_s.shape, dtype=bool)
    cells = [(Op.FORWARD, 0, 1), (Op.FORWARD_SEND, 0, 1), (Op.FORWARD_RECV, 1, 1), (Op.FORWARD, 1, 1)]
    nodes = [node_of(block, cell) for cell in cells]
    absent[nodes, 0] = True
    lost = node_of(block, (Op.BACKWARD, 0, 0))
    gone = absent.copy()
    gone[lost, 0] = True
    start_s, end_s = np.where(gone, np.nan, block.start_s), np.where(gone, np.nan, block.end_s)
    graph = build_graph(block.nodes, typical_start(block), has_dp=False)
    filled = fill_block(dataclasses.replace(block, start_s=start_s, end_s=end_s, absent=absent), graph)
    assert filled.absent is None
    assert (filled.end_s[nodes, 0] == filled.start_s[nodes, 0]).all()
    assert filled.filled is not None
    assert np.argwhere(filled.filled).tolist() == [[lost, 0, 0]]


@pytest.fixture(scope="module")
def blocking() -> Trace:
    """Give a job whose workers send and receive in one blocking call."""
    return load(make(JobSpec(pp=2, dp=2, microbatches=4, steps=6, seed=41)).trace)


def test_a_lost_member_of_a_batch_has_the_times_of_the_batch(blocking: Trace) -> None:
    """Each transfer of a blocking call that is lost alone gets the start and end of the call."""
    (block,) = blocking.blocks
    n_batches = 0
    start = typical_start(block)
    for stage in (0, 1):
        order = np.argsort(start)
        order = order[block.nodes.stage[order] == stage]
        for batch in find_batches(block.nodes, SampledLanes(block), order):
            n_batches += 1
            for lost in batch:
                start_s, end_s = block.start_s.copy(), block.end_s.copy()
                start_s[lost, 2, 1] = end_s[lost, 2, 1] = np.nan
                damaged = dataclasses.replace(block, start_s=start_s, end_s=end_s)
                (prepared,) = prepare(dataclasses.replace(blocking, blocks=(damaged,)))
                found = prepared.block
                assert found.start_s[lost, 2, 1] == pytest.approx(block.start_s[lost, 2, 1], abs=1e-6)
                assert found.end_s[lost, 2, 1] == pytest.approx(block.end_s[lost, 2, 1], abs=1e-6)
                assert found.filled is not None
                assert np.argwhere(found.filled).tolist() == [[lost, 2, 1]]
    assert n_batches > 0


@pytest.mark.parametrize("stage", range(4))
def test_a_worker_lost_beside_batches_does_not_make_the_step_longer(stage: int) -> None:
    """What a blocking call sends is there long before the call is over: it waits for the backward, too."""
    trace = load(make(JobSpec(pp=4, dp=2, microbatches=1, steps=6, schedule="gpipe", p2p="blocking", seed=5)).trace)
    (block,) = trace.blocks
    start_s, end_s = block.start_s.copy(), block.end_s.copy()
    start_s[block.nodes.stage == stage, 2, 1] = end_s[block.nodes.stage == stage, 2, 1] = np.nan
    damaged = dataclasses.replace(trace, blocks=(dataclasses.replace(block, start_s=start_s, end_s=end_s),))
    ((whole,), *_), ((filled,), *_) = (observe(one, prepare(one)) for one in (trace, damaged))
    recorded_s, replayed_s = (replay(o.graph, o.own, o.delay)[:, 0] for o in (whole, filled))
    assert replayed_s == pytest.approx(recorded_s, rel=0.02)


def test_a_worker_without_rows_counts_however_large_the_job() -> None:
    """A worker filled in throughout counts a quarter however many others there are; scattered gaps count as their share."""
    shape = Shape(n_steps=4, n_dp=8, n_stages=4, n_microbatches=4)
    rows = random_job(shape, 3)
    silent = rows[~((rows.dp_rank == 5) & (rows.stage == 2))]
    scattered = rows[np.random.default_rng(0).random(len(rows)) >= 0.02]
    for kept, low, high in ((rows, 0.0, 0.0), (silent, 0.25, 0.25), (scattered, 0.005, 0.05)):
        trace = load(kept, shape.meta)
        observed, _, _ = observe(trace, prepare(trace))
        assert low <= measure_filled(observed) <= high + 1e-12


def test_the_usual_time_of_what_no_lane_has_is_that_of_its_type() -> None:
    """0 where no other of its type was recorded."""
    op = np.array([Op.FORWARD, Op.FORWARD, Op.FORWARD, Op.BACKWARD])
    block: Any = SimpleNamespace(nodes=SimpleNamespace(op=op))
    gone = np.full((2, 1), np.nan)
    assert _usual(block, [np.full((2, 1), 1.0), np.full((2, 1), 3.0), gone, gone]) == [1.0, 3.0, 2.0, 0.0]


@pytest.mark.parametrize("collects", [True, False])
@pytest.mark.parametrize(
    ("pp", "dp", "microbatches", "p2p"),
    [(4, 2, 8, "blocking"), (4, 4, 8, "asynchronous"), (4, 1, 8, "lazy"), (1, 8, 8, "blocking"), (5, 4, 1, "blocking")],
)
def test_stretches_of_lost_rows_leave_the_step_as_long(
    pp: int, dp: int, microbatches: int, p2p: Any, *, collects: bool
) -> None:
    """A twentieth of all rows is lost, 15 at a time, and with them who waited for other workers, or for its last compute."""
    spec = JobSpec(pp=pp, dp=dp, microbatches=microbatches, steps=24, noise=0.5, clip="all", p2p=p2p, rank_0_waits=True)
    table = generate(spec, [WorkerFault(places=((dp - 1, 0),), slowdown=1.5)]).trace
    table = table.sort_by([(name, "ascending") for name in ("step", "dp_rank", "stage", "start_ts")])
    rng = np.random.default_rng(1)
    lost = np.zeros(len(table), dtype=bool)
    for first in rng.choice(len(table) - 15, len(table) // 300, replace=False):
        lost[first : first + 15] = True
    if not collects:
        lost |= np.asarray(pc.equal(table["optype"], "gc"))
    fidelity = diagnose_table(table.filter(pa.array(~lost))).fidelity
    assert fidelity.replay_error < 0.005


@pytest.mark.parametrize("p2p", ["asynchronous", "blocking"])
def test_a_slow_link_costs_as_much_where_a_tenth_of_the_rows_is_lost(p2p: Any) -> None:
    """A lost end of a message takes as long as the other end says, and the link is mended for it, too."""
    spec = JobSpec(pp=4, dp=2, microbatches=8, steps=24, noise=0.3, p2p=p2p, clip="all")
    table = generate(spec, [NetworkFault(scope="link", dp_rank=1, stage=1, slowdown=20.0)]).trace
    kept = np.random.default_rng(1).random(len(table)) >= 0.1
    (whole,), (left,) = (diagnose_table(each).causes for each in (table, table.filter(pa.array(kept))))
    assert left.cause == whole.cause == "network-fault"
    assert left.recoverable == pytest.approx(whole.recoverable, rel=0.05)


@pytest.mark.parametrize("vpp", [1, 2])
def test_where_sends_are_buffered_a_lost_recv_does_not_end_with_its_send(vpp: int) -> None:
    """A lost recv begins when its worker is there, long after the send has ended; else all that was lost would run too early."""
    spec = JobSpec(pp=4, dp=4, vpp=vpp, microbatches=8, steps=24, noise=0.3, p2p="lazy", clip="all")
    table = generate(spec).trace
    is_send = pc.is_in(table["optype"], pa.array(["forward-send", "backward-send"]))
    took_s = pc.if_else(is_send, pc.min_element_wise(table["duration"], spec.transfer_s), table["duration"])
    table = table.set_column(table.column_names.index("duration"), "duration", took_s)
    table = table.sort_by([(name, "ascending") for name in ("step", "dp_rank", "stage", "start_ts")])
    lost = np.zeros(len(table), dtype=bool)
    for first in np.random.default_rng(1).choice(len(table) - 30, len(table) // 800, replace=False):
        lost[first : first + 30] = True
    trace = load(table.filter(pa.array(~lost)))
    (o,) = observe(trace, prepare(trace))[0]
    ends_s = o.block.end_s.max(axis=(0, 2))
    np.testing.assert_allclose(replay(o.graph, o.own, o.delay)[:, 0], ends_s, rtol=0.001)
