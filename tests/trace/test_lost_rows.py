"""Where `seq_id` is missing and rows were lost, labels or gaps say which operations the others are."""

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

from diagnose.faults.generate import generate
from diagnose.faults.spec import JobSpec
from diagnose.model.optype import DIRECTIONS, P2P, Op
from diagnose.trace.load import load_trace
from tests.jobs import Shape, load, random_job, to_file

SCHEDULES = {
    "1f1b": {},
    "interleaved": {"vpp": 2, "p2p": "asynchronous"},
    "zb-h1": {"schedule": "zero-bubble", "weight_share": 0.5, "p2p": "asynchronous"},
    "dualpipev": {"schedule": "dualpipev", "vpp": 2, "weight_share": 0.5, "p2p": "asynchronous"},
}


def computes_of(table: pa.Table) -> np.ndarray:
    """Give where each compute began, of a job whose steps are all alike: shape (n_computes, n_steps, n_dp)."""
    (block,) = load_trace(to_file(table)).blocks
    return np.asarray(block.start_s[np.isin(block.nodes.op, DIRECTIONS)])


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_lost_computes_are_missing_and_no_others(schedule: str) -> None:
    """Of a job without `seq_id` single computes and stretches of them are lost: all others stay where they were."""
    spec = JobSpec(pp=4, dp=2, microbatches=8, steps=10, lacks="seq_id", **SCHEDULES[schedule])
    table = generate(spec).trace
    whole = computes_of(table)
    rng = np.random.default_rng(3)
    of_compute = np.flatnonzero(
        pc.is_in(table["optype"], pa.array(["forward-compute", "backward-compute", "backward-input"]))
    )
    first = rng.choice(of_compute, 6, replace=False)
    lost = np.unique(np.concatenate([first, first[:2] + 1, first[:2] + 2]))
    found = computes_of(table.filter(pa.array(~np.isin(np.arange(len(table)), lost))))
    assert found.shape == whole.shape
    there = np.isfinite(found)
    np.testing.assert_allclose(found[there], whole[there], atol=1e-9)
    assert 0 < (~there).sum() <= len(lost)


#: Nothing names a microbatch, or each name is in two model chunks.
UNNAMED = {
    "1f1b": "mb_id,mc,gmc,seq_id",
    "interleaved": "gmc,mc,seq_id",
    "zb-h1": "mb_id,mc,gmc,seq_id",
    "dualpipev": "mb_id,mc,gmc,seq_id",
}


@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize("is_counted", [False, True])
def test_without_labels_gaps_say_which_computes_are_lost(schedule: str, *, is_counted: bool) -> None:
    """Stretches of rows of some workers are lost, and no label names the others: nearly all stay where they were.

    Where `is_counted` somebody has counted what was left.
    """
    spec = JobSpec(pp=4, dp=2, microbatches=8, steps=10, noise=0.05, lacks=UNNAMED[schedule], **SCHEDULES[schedule])
    table = generate(spec).trace.sort_by([(name, "ascending") for name in ("step", "dp_rank", "stage", "start_ts")])
    whole = computes_of(table)
    rng = np.random.default_rng(3)
    lost = np.zeros(len(table), dtype=bool)
    for first in rng.choice(len(table) - 12, 12, replace=False):
        lost[first : first + rng.integers(1, 12)] = True
    left = table.filter(pa.array(~lost))
    if is_counted:
        key = left.select(["step", "dp_rank", "stage", "optype"]).to_pandas()
        left = left.append_column("seq_id", pa.array(key.groupby(list(key), observed=True).cumcount()))
    found = computes_of(left)
    assert found.shape == whole.shape
    there = np.isfinite(found)
    moved = ~np.isclose(found[there], whole[there], atol=1e-9)
    assert 20 < (~there).sum() <= lost.sum()
    assert moved.sum() <= 2, moved.sum()


def test_what_is_lost_cannot_be_told_where_no_worker_has_all() -> None:
    """A row of each worker and step is lost, and no label names the others: they stay counted."""
    spec = JobSpec(pp=1, dp=2, microbatches=4, steps=10, lacks="mb_id,mc,gmc,seq_id")
    table = generate(spec).trace
    of_worker = pc.and_(pc.equal(table["optype"], "forward-compute"), pc.equal(table["dp_rank"], 1))
    keep = np.ones(len(table), dtype=bool)
    keep[np.flatnonzero(of_worker)[1::4]] = False
    found = computes_of(table.filter(pa.array(keep)))
    assert np.isfinite(found).sum() == (10 * 2 * 4 * 2) - 10


def transfers_of(table: pa.Table) -> np.ndarray:
    """Give where each transfer began, of a job whose steps are all alike: shape (n_transfers, n_steps, n_dp)."""
    (block,) = load_trace(to_file(table)).blocks
    return np.asarray(block.start_s[np.isin(block.nodes.op, P2P)])


@pytest.mark.parametrize("p2p", ["blocking", "asynchronous"])
def test_lost_transfers_are_missing_and_no_others(p2p: str) -> None:
    """Of an interleaved job without `seq_id` single transfers are lost, which have no labels: all others stay where they were."""
    spec = JobSpec(pp=4, vpp=2, dp=2, microbatches=8, steps=10, lacks="seq_id", p2p=p2p)  # type: ignore[arg-type]  # one of its names
    table = generate(spec).trace
    whole = transfers_of(table)
    names = pa.array(["forward-send", "forward-recv", "backward-send", "backward-recv"])
    lost = np.random.default_rng(3).choice(np.flatnonzero(pc.is_in(table["optype"], names)), 8, replace=False)
    found = transfers_of(table.filter(pa.array(~np.isin(np.arange(len(table)), lost))))
    assert found.shape == whole.shape
    there = np.isfinite(found)
    assert (~there).sum() == (~np.isfinite(whole)).sum() + len(lost)
    np.testing.assert_allclose(found[there], whole[there], atol=1e-9)


BESIDE: dict[str, dict[str, Any]] = {
    "1f1b": {"pp": 4, "dp": 2, "p2p": "asynchronous"},
    "interleaved": {"pp": 4, "dp": 2, "vpp": 2, "p2p": "asynchronous"},
    "zb-h1": {"pp": 4, "dp": 2, "schedule": "zero-bubble", "weight_share": 0.5, "p2p": "asynchronous"},
    "dualpipev": {"pp": 4, "dp": 2, "schedule": "dualpipev", "vpp": 2, "weight_share": 0.5, "p2p": "asynchronous"},
    "shards": {"pp": 1, "dp": 8, "gather_s": 0.02},
    "shards of stages": {"pp": 2, "dp": 4, "gather_s": 0.02},
}


@pytest.mark.parametrize("job", BESIDE)
@pytest.mark.parametrize("is_named", [False, True])
def test_computes_tell_which_transfers_and_collectives_beside_them_are_lost(job: str, *, is_named: bool) -> None:
    """Stretches of rows are lost where transfers and gathers have no order among the computes: all others stay where they were.

    Unless `is_named` no label tells of the computes: the gaps between them do, and when their step begins for others.
    """
    spec = JobSpec(microbatches=8, steps=12, noise=0.05, seed=2, **BESIDE[job])
    (whole,) = load_trace(to_file(generate(spec).trace)).blocks
    lacks = "seq_id" if is_named or spec.vpp > 1 else "seq_id,mb_id,mc,gmc"
    (found,) = load_trace(to_file(generate(dataclasses.replace(spec, lost_share=0.01, lacks=lacks)).trace)).blocks
    assert found.start_s.shape == whole.start_s.shape
    there = np.isfinite(found.start_s)
    assert (~there).sum() > 30
    np.testing.assert_allclose(found.start_s[there], whole.start_s[there], atol=1e-6)


def test_labels_of_a_compute_that_the_fullest_worker_lost_are_those_of_others() -> None:
    """Each step of a V schedule loses another forward: all are named as where nothing is lost."""
    spec = JobSpec(pp=4, dp=1, microbatches=8, steps=4, schedule="zb-v", vpp=2, weight_share=0.5, lacks="seq_id,gmc")
    table = generate(spec).trace
    (whole,) = load_trace(to_file(table)).blocks
    is_forward = pc.equal(table["optype"], "forward-compute")
    steps = enumerate(pc.unique(table["step"]))
    lost = [np.flatnonzero(pc.and_(is_forward, pc.equal(table["step"], step)))[18 * i] for i, step in steps]
    (found,) = load_trace(to_file(table.filter(pa.array(~np.isin(np.arange(len(table)), lost))))).blocks
    np.testing.assert_array_equal(found.nodes.chunk, whole.nodes.chunk)
    np.testing.assert_array_equal(found.nodes.microbatch, whole.nodes.microbatch)
    np.testing.assert_array_equal(found.nodes.position, whole.nodes.position)


def test_steps_with_fewer_microbatches_lack_none() -> None:
    """A job begins with half of the microbatches, and nothing names them: there is no room where more could have been.

    Nor has the first half rows of collections.
    """
    few, many = (JobSpec(pp=4, dp=2, microbatches=n, steps=6, noise=0.05, lacks=UNNAMED["1f1b"]) for n in (4, 8))
    tables = [generate(spec).trace for spec in (few, many)]
    tables[0] = tables[0].filter(pc.not_equal(tables[0]["optype"], "gc"))
    at = tables[1].column_names.index("step")
    tables[1] = tables[1].set_column(at, "step", pc.add(tables[1]["step"], pc.max(tables[0]["step"])))
    trace = load_trace(to_file(pa.concat_tables([table.select(tables[0].column_names) for table in tables])))
    assert sorted(int(block.nodes.microbatch.max()) + 1 for block in trace.blocks) == [4, 8]
    assert not any(np.isnan(block.start_s).any() for block in trace.blocks)
    assert not any("missing" in warning for warning in trace.warnings)


def test_steps_of_backwards_in_reverse_may_have_fewer_microbatches() -> None:
    """The last microbatch's backward is the first: steps of 4 and 6 are groups of their own, and a lost row lacks in its own."""
    shape = Shape(n_steps=7, n_microbatches=6)
    rows = random_job(shape, 0).drop(columns="seq_id")
    number = rows.groupby(["step", "dp_rank", "stage", "optype"]).start_ts.rank(method="first").astype(int) - 1
    has_four = rows.step <= np.unique(rows.step)[3]
    gone = has_four & (number >= 4) & rows.optype.str.contains("forward|backward")
    rows, number, has_four = (of[~gone] for of in (rows, number, has_four))
    backward = rows.optype == "backward-compute"
    n_microbatches = np.where(has_four, 4, 6)
    rows["mb_id"] = np.where(backward, n_microbatches - 1 - number, number)
    lost = backward & (rows.step == rows.step.min()) & (rows.dp_rank == 0) & (rows.stage == 0) & (rows.mb_id == 2)
    trace = load(rows[~lost], shape.meta)
    for block, n in zip(trace.blocks, (4, 6), strict=True):
        nodes = block.nodes
        for stage, op in ((s, op) for s in range(shape.n_stages) for op in (Op.FORWARD, Op.BACKWARD)):
            of_op = nodes.microbatch[(nodes.op == op) & (nodes.stage == stage)].tolist()
            assert of_op == list(range(n))[:: -1 if op == Op.BACKWARD else 1]
    missing = np.argwhere(np.isnan(trace.blocks[0].start_s))
    assert [trace.blocks[0].nodes.microbatch[node] for node, _, _ in missing.tolist()] == [2]
    assert not np.isnan(trace.blocks[1].start_s).any()


@pytest.mark.parametrize("single", [False, True])
def test_of_a_production_trace_nearly_all_stay_where_they_were(shared: Path, single: bool) -> None:
    """A hundredth of the rows of a published trace is lost, one by one or in stretches, and nothing names the others: few move."""
    table = pq.read_table(shared / "artifact" / "trace-AR.parquet").drop_columns(["seq_id", "mb_id", "mc", "gmc"])
    table = table.sort_by([(name, "ascending") for name in ("step", "dp_rank", "stage", "start_ts")])
    rng = np.random.default_rng(1)
    lost = rng.random(len(table)) < 0.01
    if not single:
        lost[:] = False
        for first in rng.choice(len(table) - 30, 60, replace=False):
            lost[first : first + rng.integers(1, 30)] = True
    whole, found = (load_trace(to_file(part)).blocks[0] for part in (table, table.filter(pa.array(~lost))))
    there = np.isfinite(found.start_s)
    moved = ~np.isclose(found.start_s[there], whole.start_s[there], atol=1e-7)
    assert found.start_s.shape == whole.start_s.shape
    assert moved.sum() < 0.1 * lost.sum()
