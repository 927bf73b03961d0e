"""Jobs of the real DeepSpeed on the CPU: the rows are what its engines did. Those of the table say what is found in them.

Needs torch and deepspeed, and is skipped without.
"""

import json

import pandas as pd
import pyarrow.parquet as pq
import pytest

from tests.record.table.framework import list_frameworks
from tests.record.table.launch import launch

FRAMEWORKS = {name: found for name, found in list_frameworks().items() if name.startswith("deepspeed")}
if missing := {name for found in FRAMEWORKS.values() for name in found.missing()}:
    pytest.skip(f"{', '.join(sorted(missing))} not installed", allow_module_level=True)


def run(name, fault, out):
    """Run a job of the table; give its rows, and the metadata of one rank."""
    launch(name, FRAMEWORKS[name], fault, out)
    tables = [pq.read_table(path) for path in sorted((out / "trace").rglob("rank-*.parquet"))]
    job = json.loads(tables[0].schema.metadata[b"diagnose.job"])
    return pd.concat([table.to_pandas() for table in tables]), job


def count(rows, names):
    """Count the rows of these types a rank and step."""
    counts = rows.pivot_table(
        index=["rank", "step"], columns="optype", values="duration", aggfunc="size", observed=True
    )
    return counts[names]


def test_accumulation_is_one_step(tmp_path):
    """ZeRO-2 reduces after each backward: a step has all its microbatches, back to back, and one reduction after the last."""
    rows, _ = run("deepspeed-zero2", "accumulation", tmp_path / "job")
    assert (count(rows, ["forward-compute", "backward-compute"]) == 4).all(axis=None)
    assert (count(rows, ["grads-reduce-scatter", "optimizer-clip-main-grad", "optimizer"]) == 1).all(axis=None)
    for _, own in rows.groupby(["rank", "step"]):
        ends = own.start_ts + own.duration
        assert own.start_ts[own.optype == "grads-reduce-scatter"].iloc[0] >= ends[own.mb_id >= 0].max() - 1e-6
        assert (
            own.start_ts[own.optype == "optimizer"].iloc[0] >= ends[own.optype == "grads-reduce-scatter"].iloc[0] - 1e-6
        )


def test_an_evaluation_by_batch(tmp_path, monkeypatch):
    """Batches of an evaluation that are read outside `no_grad` are none of the training, although the engine has its own `eval`."""
    import deepspeed
    import torch

    from diagnose.record import Recorder

    alone = {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1", "LOCAL_SIZE": "1", "DS_ACCELERATOR": "cpu"}
    for name, value in alone.items():
        monkeypatch.setenv(name, value)
    deepspeed.init_distributed(
        "gloo", init_method=f"file://{tmp_path / 'store'}", rank=0, world_size=1, auto_mpi_discovery=False
    )
    try:
        model = torch.nn.Linear(2, 1)
        optimizer = torch.optim.SGD(model.parameters())
        engine, *_ = deepspeed.initialize(model=model, optimizer=optimizer, config={"train_batch_size": 2})
        with Recorder(tmp_path / "trace", sample=1.0) as recorder:
            recorder.follow_optimizer()
            for i, batch in enumerate(torch.utils.data.DataLoader(torch.ones(8, 2), batch_size=2)):
                engine.backward(engine(batch).sum())
                engine.step()
                if i == 1:
                    engine.eval()
                    for other in torch.utils.data.DataLoader(torch.ones(6, 2), batch_size=2):
                        with torch.no_grad():
                            engine(other)
                    engine.train()
    finally:
        torch.distributed.destroy_process_group()
    rows = pq.read_table(next((tmp_path / "trace").rglob("rank-00000.parquet"))).to_pandas()
    assert rows[rows.optype == "eval"].step.tolist() == [1]
    assert rows[rows.optype == "forward-compute"].step.tolist() == [0, 1, 2, 3]


def test_a_pipeline_is_one(tmp_path):
    """Each rank has its place of the grid, each microbatch its computes, and each message its row at both ends."""
    rows, job = run("deepspeed-pipeline", "evaluation", tmp_path / "job")
    assert (job["dp_size"], job["pp_size"]) == (2, 2)
    assert set(zip(rows["rank"], rows.dp_rank, rows.stage, strict=True)) == {
        (rank, rank % 2, rank // 2) for rank in range(4)
    }
    computes = rows[rows.mb_id >= 0]
    per_step = computes.groupby(["rank", "step", "optype"], observed=True).mb_id.apply(sorted)
    assert all(numbers == [0, 1, 2, 3] for numbers in per_step)
    moved = rows[rows.optype.str.contains("send|recv")].groupby(["stage", "optype"], observed=True).size()
    n_messages = 4 * 2 * rows.step.nunique()
    assert moved.to_dict() == {
        (0, "forward-send"): n_messages,
        (0, "backward-recv"): n_messages,
        (1, "forward-recv"): n_messages,
        (1, "backward-send"): n_messages,
    }
    evaluated = rows[rows.optype == "eval"]
    assert sorted(set(evaluated.step)) == [9, 19] and len(evaluated) == 2 * 4


def test_nothing_is_left_behind(tmp_path):
    """When the recorder is closed, the functions of DeepSpeed are those that they were before."""
    from deepspeed.runtime.engine import DeepSpeedEngine
    from deepspeed.runtime.pipe.engine import PipelineEngine

    from diagnose.record import Recorder

    def found():
        own = [DeepSpeedEngine.forward, DeepSpeedEngine._take_model_step, PipelineEngine.train_batch]
        return own + list(PipelineEngine._INSTRUCTION_MAP.values())

    before = found()
    with Recorder(tmp_path, sample=1.0):
        assert all(now is not then for now, then in zip(found()[:3], before[:3], strict=True))
    assert found() == before
