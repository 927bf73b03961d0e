"""Backwards split into gradients of inputs and of weights: computes like all others, in the worker's own order."""

import dataclasses

import numpy as np
import pyarrow as pa
import pytest

from diagnose.faults.fault import Fault
from diagnose.faults.generate import generate
from diagnose.faults.network_fault import NetworkFault
from diagnose.faults.sequence_imbalance import SequenceImbalance
from diagnose.faults.spec import JobSpec
from diagnose.faults.stage_imbalance import StageImbalance
from diagnose.faults.worker_fault import WorkerFault
from diagnose.model.change import Reschedule
from diagnose.model.optype import Op
from tests.jobs import load, to_table
from tests.judge.cases import Measured, measure

SPLIT = JobSpec(pp=4, dp=4, microbatches=8, steps=12, schedule="zero-bubble", p2p="asynchronous", seed=3)
#: A job without noise, so that what is simulated is what was recorded.
EXACT = dataclasses.replace(SPLIT, noise=0.0, launch_delay_s=0.0, host_gap_s=0.0)


def diagnose(spec: JobSpec, *faults: Fault) -> Measured:
    """Diagnose a job with some faults."""
    return measure(generate(spec, faults).trace)


def nodes_of(m: Measured, op: Op, stage: int) -> list[int]:
    """List the operations of one type on one stage by number."""
    nodes = m.observed[0].block.nodes
    return np.flatnonzero((nodes.op == op) & (nodes.stage == stage)).tolist()


def test_waits() -> None:
    """A weight gradient waits for the one gradient of its input, on its worker; no send waits for it, and the step's end does."""
    m = diagnose(EXACT)
    graph, nodes = m.prepared[0].graph, m.prepared[0].block.nodes
    weights = nodes_of(m, Op.WEIGHT, 1)
    assert len(weights) == 8
    inputs = {int(nodes.microbatch[n]): n for n in nodes_of(m, Op.BACKWARD, 1)}
    after: dict[int, set[int]] = {}
    for node, waits in enumerate(graph.waits):
        for source in waits:
            after.setdefault(source, set()).add(node)
    for node in weights:
        assert inputs[int(nodes.microbatch[node])] in graph.waits[node]
        assert {int(nodes.op[n]) for n in after[node]} <= {Op.FORWARD, Op.BACKWARD, Op.WEIGHT, Op.GC, Op.LAYERNORM}
    last = max(weights, key=lambda n: float(m.prepared[0].block.start_s[n].mean()))
    assert {int(nodes.op[n]) for n in after[last]} & {Op.GC, Op.LAYERNORM}


def test_a_healthy_job() -> None:
    """Its replay takes as long as the job did, and nothing is said of it: neither idle time nor waiting for input."""
    for seed in range(4):
        m = diagnose(dataclasses.replace(SPLIT, seed=seed, pp=2 + seed, microbatches=6 + seed))
        assert m.breakdown.compute_s.shape[0] == 3
        assert m.gains.replayed_s == pytest.approx(m.gains.recorded_s, rel=0.005)
        assert abs(m.analysis.what_if.discrepancy) < 0.02
        assert (m.diagnosis.verdict, m.diagnosis.causes) == ("healthy", ())


@pytest.mark.parametrize(
    "fault",
    [
        WorkerFault(places=((1, 2),), slowdown=1.4),
        StageImbalance(stage=3, forward_slowdown=1.5, backward_slowdown=1.5),
        SequenceImbalance(),
        NetworkFault(),
    ],
    ids=lambda fault: fault.cause,
)
def test_faults_are_named_and_priced(fault: Fault) -> None:
    """The cause is the right one alone, and gives back what mending it truly does."""
    job = generate(SPLIT, [fault])
    m = measure(job.trace)
    assert [cause.cause for cause in m.diagnosis.causes] == [fault.cause]
    assert m.diagnosis.causes[0].recoverable == pytest.approx(job.truth.faults[0].recoverable, abs=0.02)


def test_all_of_a_slow_workers_computes_are_slow() -> None:
    """Its weight gradients are blamed as its other computes are: twice their share of the work, twice the seconds."""
    m = diagnose(SPLIT, WorkerFault(places=((1, 2),), slowdown=1.5))
    ratio = m.breakdown.worker_ratio[:, 2, :, 1].mean(axis=1)
    assert ratio == pytest.approx([1.5, 1.5, 1.5], abs=0.05)


def test_a_pause_in_a_weight_gradient() -> None:
    """Half a second in one of them is a stall there, and nowhere else."""
    rows = generate(dataclasses.replace(SPLIT, noise=0.3)).trace.to_pandas()
    at = (rows.optype == "backward-weight") & (rows.dp_rank == 2) & (rows.stage == 0) & (rows.mb_id == 7)
    at &= rows.step == rows.step.min() + 5
    assert at.sum() == 1
    late = (rows.step == rows.step.min() + 5) & (rows.start_ts > float(rows.start_ts[at].iloc[0]))
    rows.loc[late & ~at, "start_ts"] += 0.5
    rows.loc[at, "duration"] += 0.5
    m = measure(to_table(rows))
    stalled = np.argwhere(m.breakdown.stalls.inside_s > 0.25)
    assert stalled.tolist() == [[2, 0, 7, 5, 2]]


def test_either_name_of_the_input_gradient() -> None:
    """`backward-input` reads as `backward-compute` beside `backward-weight`, also where a job has both."""
    rows = generate(EXACT).trace.to_pandas()
    rows["optype"] = rows.optype.astype(str)
    renamed = (rows.optype == "backward-compute") & (rows.mb_id % 2 == 0)
    other = rows.assign(optype=rows.optype.where(~renamed, "backward-input"))
    other.loc[other.optype == "backward-input", "seq_id"] //= 2
    one, two = load(rows), load(other)
    assert np.array_equal(one.blocks[0].nodes.op, two.blocks[0].nodes.op)
    assert np.array_equal(one.blocks[0].nodes.microbatch, two.blocks[0].nodes.microbatch)
    assert np.array_equal(one.blocks[0].start_s, two.blocks[0].start_s)
    assert one.warnings == two.warnings


def test_another_schedule() -> None:
    """A job that splits its backwards now takes as long under 1F1B as one that never did, and stays as it is under its own."""
    job, whole = diagnose(EXACT), diagnose(dataclasses.replace(EXACT, schedule="1f1b"))
    stay = np.stack([np.eye(4)] * 3)
    now = job.gains.replayed_s
    assert float(job.removal.price([Reschedule("zero-bubble", 1, stay)]).mean()) == pytest.approx(now, rel=2e-3)
    assert float(job.removal.price([Reschedule("1f1b", 1, stay)]).mean()) == pytest.approx(
        whole.gains.replayed_s, rel=2e-3
    )


def test_a_stage_that_leaves_all_to_its_weights() -> None:
    """The beginning of the model may need no gradient of its input: whole backwards of the stage are no longer than elsewhere."""
    table = generate(dataclasses.replace(EXACT, schedule="dualpipev", vpp=2, microbatches=8), ()).trace
    rows = table.to_pandas()
    first = (rows.stage == 0) & (rows.mc == 0)
    of_weights = set(rows.mb_id[first & (rows.optype == "backward-weight")])
    backwards = first & rows.optype.isin(["backward-compute", "backward-input"])
    split = backwards & rows.mb_id.isin(of_weights)
    assert 0 < split.sum() < backwards.sum()
    rows.loc[split, "duration"] = 1e-5
    m = measure(pa.Table.from_pandas(rows, schema=table.schema, preserve_index=False))
    assert m.gains.clean_s == pytest.approx(m.gains.recorded_s, rel=0.1)
    assert m.gains.alone_s["stage"] == pytest.approx(m.gains.recorded_s, rel=0.1)
