"""What a profile of a job on CPUs says of transfers: they are known to be over once they were waited for. Hand-made operations."""

from pathlib import Path

import numpy as np
import pytest

from diagnose.model.optype import Op
from diagnose.trace.producers.kineto import evidence
from diagnose.trace.producers.kineto.collect import Collector
from diagnose.trace.producers.kineto.events import Stream
from diagnose.trace.producers.kineto.gpu import GpuTime
from diagnose.trace.producers.kineto.operations import OperationList
from diagnose.trace.producers.kineto.table import OperationTable, begin_receives
from tests.trace.producers.kineto_traces import distributed, unannotated_pipeline_rank
from tests.trace.producers.test_kineto import read, rows_of


def table_of(*rows: tuple[int, Op, float, float]) -> OperationTable:
    """Make a table of (rank, type, start, end)."""
    rank, op, start_s, end_s = map(np.array, zip(*rows, strict=True))
    columns = {name: np.zeros(len(rank), dtype=np.int64) for name in OperationTable.__annotations__}
    return OperationTable(**(columns | {"rank": rank, "op": op.astype(np.int8), "start_s": start_s, "end_s": end_s}))


def test_a_recv_begins_once_its_worker_has_nothing_else_to_do() -> None:
    """Posted before a compute and waited for after it, it may have come while that ran; another rank's computes say nothing."""
    table = table_of(
        (0, Op.FORWARD_RECV, 0.0, 1.0),
        (0, Op.FORWARD, 1.0, 2.0),
        (0, Op.FORWARD_RECV, 1.1, 3.1),
        (0, Op.FORWARD_RECV, 1.2, 3.2),
        (0, Op.BACKWARD, 2.0, 3.0),
        (1, Op.BACKWARD_RECV, 0.5, 3.5),
    )
    assert begin_receives(table).start_s == pytest.approx([0.0, 1.0, 3.0, 3.0, 2.0, 0.5], abs=1e-6)
    begun = begin_receives(table).start_s
    assert begun[2] < begun[3], "and their order is kept"


@pytest.mark.parametrize(("received", "starts"), [((110.0, 290.0), 300.0), (None, 50.0)])
def test_a_wait_for_input_ends_where_another_stage_is_waited_for(
    received: tuple[float, float] | None, starts: float
) -> None:
    """It lengthens the forward that follows, but not by what that waits for after it."""
    made = OperationList(np.array([0]), np.array([0.0]), np.array([1000.0]))
    forward = made.add(Op.FORWARD, 100.0, 500.0)
    assert forward is not None
    if received:
        forward.start = 300.0
        made.add(Op.FORWARD_RECV, *received)
    by_start = sorted(made.listed, key=lambda o: o.asked)
    asked = np.array([operation.asked for operation in by_start])
    gpu = GpuTime(Collector().result(Stream()))
    evidence._add_wait_for_input(made, gpu, (50.0, 90.0), by_start, asked)
    assert forward.start == starts
    assert [(o.start, o.end) for o in made.listed if o.op == Op.DATA_LOAD] == [(50.0, 90.0)]


def test_on_the_cpu_a_wait_for_input_is_waited_whatever_collective_is_under_way() -> None:
    """No GPU has work meanwhile: the wait lengthens the forward that follows, however long a reduction on another thread takes."""
    made = OperationList(np.array([0]), np.array([0.0]), np.array([1000.0]))
    made.add(Op.REDUCE_SCATTER, 10.0, 95.0)
    forward = made.add(Op.FORWARD, 100.0, 500.0)
    assert forward is not None
    by_start = sorted(made.listed, key=lambda o: o.asked)
    asked = np.array([operation.asked for operation in by_start])
    evidence._add_wait_for_input(made, GpuTime(Collector().result(Stream())), (50.0, 90.0), by_start, asked)
    assert forward.start == 50.0 and not made.dropped
    assert [(o.start, o.end) for o in made.listed if o.op == Op.DATA_LOAD] == [(50.0, 90.0)]


def test_what_stages_tell_each_other_before_the_first_step_is_no_forward(tmp_path: Path) -> None:
    """A first stage that receives once, the shapes of tensors, is the first one: it receives for none of its other forwards."""
    for stage in range(2):
        trace = unannotated_pipeline_rank(stage)
        if stage == 0:
            trace.span("cpu_op", "c10d::recv_", 900.0, 15.0)
            trace.span("cpu_op", "record_param_comms", 902.0, 10.0, **{"Collective name": "recv"})
            trace.kernel(905.0, 906.0, 50.0, "ncclDevKernel_SendRecv(ncclDevKernelArgsStorage<4096ul>)")
        trace.write(tmp_path / f"rank{stage}.json", **distributed(stage, 2))
    recording = read(tmp_path)
    for stage in range(2):
        assert len(rows_of(recording, Op.FORWARD, stage=stage)) == 2
