"""What a worker of Ray Train does with a loop that is recorded; the table has jobs of the real Ray."""

from pathlib import Path

import pyarrow.parquet as pq
import pytest

torch = pytest.importorskip("torch", reason="torch is not installed: nothing can be recorded")


def test_a_worker_records_its_loop(tmp_path, monkeypatch):
    """The folder is where the trainer was made, wherever the worker runs; the loop gets its config, and its result comes back."""
    from diagnose.record.ray import recorded

    weight = torch.ones(2, requires_grad=True)
    optimizer = torch.optim.SGD([weight], lr=0.1)

    def train_loop(config):
        for _ in range(config["steps"]):
            for _ in range(2):
                weight.sum().backward()
            optimizer.step()
        return Path.cwd()

    monkeypatch.chdir(tmp_path)
    loop = recorded(train_loop, "trace", sample=1.0)
    worker = tmp_path / "worker"
    worker.mkdir()
    monkeypatch.chdir(worker)
    assert loop({"steps": 3}) == worker
    rows = pq.read_table(next(tmp_path.glob("trace/start-*/rank-00000.parquet"))).to_pandas()
    assert rows[rows.optype == "backward-compute"].groupby("step").size().tolist() == [2, 2, 2]
