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
    assert (forwards.duration >= stand_in.FORWARD_S).all() and (forwards.duration < 2 * stand_in.FORWARD_S).mean() > 0.4
    together = one[one.optype.isin(["forward-send", "backward-recv"])].groupby("start_ts").size()
    assert (together == 2).sum() == 3, "a send and a recv of one call have one start"
    assert (one.optype == "grads-reduce-scatter").sum() == 1
    job = json.loads(table.schema.metadata[b"diagnose.job"])
    assert (job["dp_size"], job["pp_size"], job["vpp_size"]) == (2, 3, 1)


def test_evaluation_is_no_training(monkeypatch, tmp_path):
    """What runs without gradients is not recorded."""
    import torch

    from diagnose.record import Recorder

    train = stand_in.install(monkeypatch, as_class=False)
    with Recorder(tmp_path, sample=1.0) as recorder, recorder.step(), torch.no_grad():
        train(2)
    assert not list(tmp_path.glob("*.parquet"))
