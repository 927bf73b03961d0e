"""Megatron-LM's schedules, by a stand-in with the names and signatures of its functions, in either shape that they had."""

import json

import pyarrow.parquet as pq
import pytest

from tests.record import megatron_stand_in as stand_in

pytest.importorskip("torch", reason="torch is not installed: nothing can be recorded")


@pytest.mark.parametrize("as_class", [False, True])
def test_without_interleaving(monkeypatch, tmp_path, as_class):
    """Computes, blocking batches and the reduction of gradients are recorded, whichever way transfers are called."""
    from diagnose.record import Recorder

    train = stand_in.install(monkeypatch, as_class=as_class)
    with Recorder(tmp_path, sample=1.0) as recorder:
        for _ in range(3):
            with recorder.step():
                train(4)
    table = pq.read_table(next(tmp_path.glob("start-*/rank-00000.parquet")))
    rows = table.to_pandas()
    assert (
        (rows[rows.optype != "gc"].groupby(["step", "optype"], observed=True).size().unstack() == 4)
        .drop(columns="grads-reduce-scatter")
        .all(axis=None)
    )
    one = rows[rows.step == 1]
    forwards = one[one.optype == "forward-compute"].sort_values("start_ts")
    backwards = one[one.optype == "backward-compute"].sort_values("start_ts")
    assert forwards.mb_id.tolist() == backwards.mb_id.tolist() == [0, 1, 2, 3]
    assert set(rows.stage) == {1} and set(rows.dp_rank) == {1}
    assert (forwards.duration >= stand_in.FORWARD_S).all()
    together = one[one.optype.isin(["forward-send", "backward-recv"])].groupby("start_ts").size()
    assert (together == 2).sum() == 3, "a send and a recv of one call have one start"
    assert (one.optype == "grads-reduce-scatter").sum() == 1
    job = json.loads(table.schema.metadata[b"diagnose.job"])
    assert (job["dp_size"], job["pp_size"], job["vpp_size"]) == (2, 3, 1)


def test_evaluation_is_no_training(monkeypatch, tmp_path):
    """What runs without gradients is one row, from its first operation to its last."""
    import torch

    from diagnose.record import Recorder

    train = stand_in.install(monkeypatch, as_class=False)
    with Recorder(tmp_path, sample=1.0) as recorder, recorder.step(), torch.no_grad():
        train(2)
    rows = pq.read_table(next(tmp_path.glob("start-*/rank-00000.parquet"))).to_pandas()
    assert rows[rows.optype != "gc"].optype.tolist() == ["eval"]
    assert rows.duration.max() >= 2 * stand_in.FORWARD_S


def test_imported_after_the_recorder_was_made(monkeypatch, tmp_path):
    """Megatron-LM is found when it is imported later, with the second step at the latest."""
    from diagnose.record import Recorder

    with Recorder(tmp_path, sample=1.0) as recorder:
        train = stand_in.install(monkeypatch, as_class=True)
        for _ in range(2):
            with recorder.step():
                train(2)
    rows = pq.read_table(next(tmp_path.glob("start-*/rank-00000.parquet"))).to_pandas()
    assert ((rows.optype == "forward-compute") & (rows.step == 1)).sum() == 2
    assert set(rows.stage) == {1}


def test_a_step_is_one_of_its_optimizer(monkeypatch, tmp_path):
    """Steps follow Megatron-LM's optimizer, though it runs torch's twice, or not at all where gradients overflow."""
    import torch

    from diagnose.record.megatron import record

    train = stand_in.install(monkeypatch, as_class=True)
    optimizer = stand_in.ChainedOptimizer(torch.optim.SGD([torch.ones(2, requires_grad=True)], lr=0.1))
    with record(tmp_path, sample=1.0, first_step=7):
        for n_runs in (2, 0, 2):
            train(2)
            optimizer.step(n_runs)
    rows = pq.read_table(next(tmp_path.glob("start-*/rank-00000.parquet"))).to_pandas()
    counts = rows.groupby(["step", "optype"], observed=True).size().unstack()
    assert counts.index.tolist() == [7, 8, 9]
    assert (counts["forward-compute"] == 2).all() and (counts["optimizer"] == 1).all()
    last = rows[rows.step == 9].set_index("optype")
    reduced = last.loc["grads-reduce-scatter"]
    assert last.loc["optimizer"].start_ts >= reduced.start_ts + reduced.duration + stand_in.TRANSFER_S, (
        "the norm is no part"
    )
