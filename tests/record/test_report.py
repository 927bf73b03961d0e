"""`Recorder(report=True)`: the job diagnoses itself when it ends, and says so where people look."""

import json
import logging
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

pytest.importorskip("torch", reason="torch is not installed: nothing can be recorded")

from diagnose.record import report
from diagnose.record.parallel_state import ParallelState
from diagnose.record.write import RecordedRows, is_finished, write_rows
from tests.ports import free_port

JOB = Path(__file__).resolve().parents[1] / "torch_jobs" / "ends.py"
PATIENCE_S = 240


def start(folder, *options, rank=None, port=0):
    """Start the job, or one rank of two."""
    told = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(sys.path), "WANDB_SILENT": "true"}
    if rank is not None:
        told |= {"RANK": str(rank), "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    command = [sys.executable, str(JOB), str(folder), "--report", *options]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=told)


def test_the_first_rank_reports(tmp_path):
    """Of two ranks the first prints one page with the slow one, and leaves the page and its JSON in the folder."""
    port = free_port()
    jobs = [start(tmp_path / "job-7", "--slow-rank", "1", rank=rank, port=port) for rank in (0, 1)]
    said = [job.communicate(timeout=PATIENCE_S) for job in jobs]
    assert [job.returncode for job in jobs] == [0, 0]
    assert said[0][1].count("job-7  STRAGGLING") == 1 and "slow worker: dp 1" in said[0][1]
    assert said[0][0] == said[1][0] == "ready\n", "the page goes to the log, not among what the job prints"
    found = json.loads((tmp_path / "job-7" / "diagnosis.json").read_text())
    assert found["causes"][0]["cause"] == "worker-fault" and (tmp_path / "job-7" / "diagnosis.html").is_file()


def test_waiting_has_a_bound(tmp_path, monkeypatch):
    """A rank that never ends is waited for as long as others end, and no longer."""
    monkeypatch.setattr(report, "SILENCE_S", 0.2)
    monkeypatch.setattr(report, "LOOK_EVERY_S", 0.05)
    write_rows(tmp_path, RecordedRows(), ParallelState(rank=0, world=2), {"finished_at": "2026-11-23T00:00:00"})
    path = write_rows(tmp_path, RecordedRows(), ParallelState(rank=1, world=2), {})
    assert not is_finished(path) and not is_finished(tmp_path / "none")
    began = time.monotonic()
    assert report.wait_for_ranks(tmp_path, 2) == 1
    assert time.monotonic() - began >= 0.2
    write_rows(tmp_path, RecordedRows(), ParallelState(rank=1, world=2), {"finished_at": "2026-11-23T00:00:00"})
    assert report.wait_for_ranks(tmp_path, 2) == 2


def test_a_report_that_fails(tmp_path, monkeypatch, caplog):
    """What cannot be reported is one warning, and the job ends as it would."""
    import torch

    from diagnose.record import Recorder

    monkeypatch.setattr(sys, "executable", str(tmp_path / "no-python"))
    weight = torch.ones(2, requires_grad=True)
    caplog.set_level(logging.WARNING)
    with Recorder(tmp_path / "trace", sample=1.0, report=True) as recorder, recorder.step():
        weight.sum().backward()
    assert len(caplog.records) == 1 and "could not report" in caplog.text


@pytest.mark.filterwarnings("ignore")  # of the libraries that read what was logged
@pytest.mark.parametrize("tracker", ["tensorboard", "mlflow", "wandb"])
def test_trackers(tmp_path, tracker):
    """Where the job logs to a tracker, the verdict and the page are there, beside the job's own figures."""
    pytest.importorskip(tracker, reason=f"{tracker} is not installed")
    job = start(tmp_path / "job", "--tracker", tracker)
    said, warned = job.communicate(timeout=PATIENCE_S)
    assert job.returncode == 0, warned
    found = json.loads((tmp_path / "job" / "diagnosis.json").read_text())
    texts, figures = READ[tracker](tmp_path / "job.logs", said)
    assert texts == {"diagnose/summary": found["summary"], "diagnose/page": str(tmp_path / "job" / "diagnosis.html")}
    expected = {"diagnose/slowdown": found["slowdown"]}
    for cause in found["causes"]:
        expected[f"diagnose/{cause['cause']}/share"] = cause["share"]
        expected[f"diagnose/{cause['cause']}/recoverable"] = cause["recoverable"]
    assert figures == pytest.approx(expected)


def read_tensorboard(folder, _said):
    """Read what TensorBoard shows."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(folder))
    events.Reload()
    tags = events.Tags()
    assert "loss" in tags["scalars"]
    texts = {
        tag.removesuffix("/text_summary"): events.Tensors(tag)[0].tensor_proto.string_val[0].decode()
        for tag in tags["tensors"]
    }
    return texts, {tag: events.Scalars(tag)[0].value for tag in tags["scalars"] if tag != "loss"}


def read_mlflow(folder, _said):
    """Read what MLflow shows."""
    import mlflow

    mlflow.set_tracking_uri(f"sqlite:///{folder}.db")
    (run,) = mlflow.search_runs(output_format="list")
    assert "loss" in run.data.metrics
    return (
        {name: text for name, text in run.data.tags.items() if name.startswith("diagnose/")},
        {name: value for name, value in run.data.metrics.items() if name.startswith("diagnose/")},
    )


def read_wandb(_folder, said):
    """Read what the job says of the summary of its run."""
    import ast

    found = ast.literal_eval(said.splitlines()[-1])
    texts = {name: value for name, value in found.items() if isinstance(value, str)}
    return texts, {name: value for name, value in found.items() if name not in texts and name.startswith("diagnose/")}


READ = {"tensorboard": read_tensorboard, "mlflow": read_mlflow, "wandb": read_wandb}
