"""Where `seq_id` is missing and rows were lost, labels say which operations the others are."""

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest

from diagnose.faults.generate import generate
from diagnose.faults.spec import JobSpec
from diagnose.model.optype import DIRECTIONS, P2P
from diagnose.trace.load import load_trace
from tests.jobs import to_file

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


def test_labels_that_come_twice_tell_nothing() -> None:
    """Where each microbatch is in two model chunks and no column tells them apart operations are counted by start."""
    spec = JobSpec(pp=2, dp=2, vpp=2, microbatches=4, steps=10, p2p="asynchronous", lacks="gmc,mc,seq_id")
    table = generate(spec).trace
    whole = computes_of(table)
    of_worker = pc.and_(pc.equal(table["optype"], "forward-compute"), pc.equal(table["stage"], 1))
    lost = int(np.flatnonzero(of_worker)[2])
    found = computes_of(table.filter(pa.array(np.arange(len(table)) != lost)))
    moved = np.argwhere(np.isfinite(found) & ~np.isclose(found, whole))
    assert len(moved) == 5  # those of the eight that followed, up to the last but one
    assert len({(step, dp) for _, step, dp in moved.tolist()}) == 1


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
