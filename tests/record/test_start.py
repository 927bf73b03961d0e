"""Each start of a job has its folder, the same on all ranks, and a job that was started again is read as one."""

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest

import diagnose
from diagnose.record.clock import Window
from diagnose.record.log import StepLog
from diagnose.record.parallel_state import ParallelState
from diagnose.record.rows import OperationRow
from diagnose.record.write import RecordedRows, write_rows
from diagnose.trace.load import load_trace

PATIENCE_S = 240
SECOND_NS = 1_000_000_000


def write_start(folder, name, steps, *, world=2, begun_s=0.0):
    """Write what the ranks of one start leave: a forward, a backward and an optimizer a step, a second long."""
    for rank in range(world):
        kept = RecordedRows()
        for n, step in enumerate(steps):
            window = Window()
            window.wall_ns = round((1_763_800_000 + begun_s + n) * SECOND_NS)
            rows = [
                OperationRow("forward-compute", False, 0, 300_000_000, 0, 0),
                OperationRow("backward-compute", False, 300_000_000, 600_000_000, 0, 0),
                OperationRow("grads-reduce-scatter", False, 900_000_000, 50_000_000),
                OperationRow("optimizer", False, 950_000_000, 50_000_000),
            ]
            kept.add(StepLog(step, window, 0), rows)
        (folder / name).mkdir(parents=True, exist_ok=True)
        state = ParallelState(rank=rank, world=world, dp=rank, dp_size=world)
        write_rows(
            folder / name, kept, state, {"job_id": "job-7", "started_at": f"2026-11-23T0{int(begun_s) // 3600}:00"}
        )


def test_a_restart_continues_the_job(tmp_path):
    """Of each start that is read which came before the next one began; the time between them is no time of the job."""
    write_start(tmp_path, "start-1", range(20))
    write_start(tmp_path, "start-2", range(14, 30), begun_s=3600.0)
    trace = load_trace(tmp_path)
    assert trace.steps.tolist() == list(range(30)) and trace.restarted_steps == (14,)
    assert trace.job.started_at == "2026-11-23T00:00"
    (warning,) = [text for text in trace.warnings if "started 2 times" in text]
    assert "start-1 and start-2 are read as one job" in warning
    found = diagnose.diagnose(tmp_path)
    assert found.verdict == "healthy" and found.step_time.recorded == pytest.approx(1.0, rel=0.01)


def test_a_start_that_begins_exactly_where_the_last_ended(tmp_path):
    """Nothing says it in the rows: no step is there twice. The time between is no time of the job all the same."""
    write_start(tmp_path, "start-1", range(20))
    write_start(tmp_path, "start-2", range(20, 40), begun_s=3600.0)
    found = diagnose.diagnose(tmp_path)
    assert found.step_time.recorded == pytest.approx(1.0, rel=0.01) and found.verdict == "healthy"


def test_a_start_that_began_anew(tmp_path):
    """Steps that are counted from 0 again are another attempt: the last one is read alone, and so says a warning."""
    write_start(tmp_path, "start-1", range(20))
    write_start(tmp_path, "start-2", range(10), begun_s=3600.0)
    trace = load_trace(tmp_path)
    assert trace.steps.tolist() == list(range(10)) and trace.restarted_steps == ()
    assert any("start-2 is read, and 1 before it left out" in text for text in trace.warnings)
    assert load_trace(tmp_path / "start-1").steps.tolist() == list(range(20))


def test_ranks_of_a_larger_world(tmp_path):
    """Of a job that goes on with fewer ranks none of the former ones is left in the trace."""
    write_start(tmp_path, "start-1", range(20), world=4)
    write_start(tmp_path, "start-2", range(14, 30), begun_s=3600.0)
    trace = load_trace(tmp_path)
    assert trace.job.dp_size == 2 and trace.steps.tolist() == list(range(14, 30))
    assert np.asarray(trace.ranks).max() == 1


SPAWNED = """
import sys, time
import torch, torch.distributed as dist, torch.multiprocessing as mp
from diagnose.record import Recorder

def train(rank, folder, meeting):
    torch.set_num_threads(1)
    recorder = Recorder(folder, sample=1.0)  # nobody knows yet which rank this is
    dist.init_process_group("gloo", init_method=f"file://{meeting}", rank=rank, world_size=2)
    time.sleep(1.2 * rank)
    weight = torch.ones(2, requires_grad=True)
    optimizer = torch.optim.SGD([weight], lr=0.1)
    for _ in range(5):
        with recorder.step():
            weight.sum().backward()
            dist.all_reduce(weight.grad)
            optimizer.step()
    dist.destroy_process_group()

if __name__ == "__main__":
    mp.start_processes(train, args=(sys.argv[1], sys.argv[2]), nprocs=2, start_method=sys.argv[3])
"""


@pytest.mark.parametrize("method", ["spawn", "fork"])
def test_made_before_the_process_group(tmp_path, method):
    """Recorders of spawned processes that know no rank yet take it later: a file each, in one folder; nobody closes them."""
    pytest.importorskip("torch", reason="torch is not installed: nothing can be recorded")
    (tmp_path / "train.py").write_text(SPAWNED)
    told = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, "train.py", "traces", str(tmp_path / "meeting"), method]
    done = subprocess.run(
        command, cwd=tmp_path, env=told, capture_output=True, text=True, timeout=PATIENCE_S, check=False
    )
    assert done.returncode == 0, done.stderr
    files = sorted((tmp_path / "traces").rglob("*.parquet"))
    assert [file.name for file in files] == ["rank-00000.parquet", "rank-00001.parquet"]
    assert files[0].parent == files[1].parent and files[0].parent.name.startswith("start-")
    for rank, file in enumerate(files):
        table = pq.read_table(file)
        assert set(table["rank"].to_pylist()) == set(table["dp_rank"].to_pylist()) == {rank}
        assert json.loads(table.schema.metadata[b"diagnose.job"])["dp_size"] == 2
        assert set(table["step"].to_pylist()) == set(range(5))


def test_two_jobs_of_one_process(tmp_path):
    """Jobs that are no ranks of each other never write into one file, however close together they start."""
    pytest.importorskip("torch", reason="torch is not installed: nothing can be recorded")
    from diagnose.record.start import find_start

    starts = [find_start(tmp_path, n_ranks=1) for _ in range(3)]
    assert len(set(starts)) == 3 and starts == sorted(starts) and all(Path(start).is_dir() for start in starts)


def test_recording_is_turned_off_and_on(tmp_path, monkeypatch):
    """While a file `pause` is in the folder nothing is recorded; the job runs on, and the steps keep their numbers."""
    torch = pytest.importorskip("torch", reason="torch is not installed: nothing can be recorded")
    from diagnose.record import Recorder, writer_thread

    monkeypatch.setattr(writer_thread, "LOOK_EVERY_S", 0.01)
    pause = tmp_path / "pause"
    pause.touch()
    weight = torch.ones(2, requires_grad=True)
    optimizer = torch.optim.SGD([weight], lr=0.1)
    with Recorder(tmp_path, sample=1.0) as recorder:
        for step in range(24):
            if step == 8:
                pause.unlink()
            if step == 16:
                pause.touch()
            if step in (8, 16):
                while recorder._steps.is_paused == (step == 8):
                    time.sleep(0.01)
            with recorder.step():
                weight.sum().backward()
                optimizer.step()
    (file,) = tmp_path.glob("start-*/rank-00000.parquet")
    assert set(pq.read_table(file)["step"].to_pylist()) == set(range(8, 16))
    assert not any("pause" in warning for warning in load_trace(tmp_path).warnings)


def test_ranks_that_paused_at_different_steps(tmp_path):
    """Steps that only some ranks recorded are left out, and the others are read."""
    write_start(tmp_path, "start-1", range(40))
    (tmp_path / "start-1" / "rank-00001.parquet").unlink()
    other = tmp_path / "other"
    write_start(other, "start-1", range(36))
    (other / "start-1" / "rank-00001.parquet").rename(tmp_path / "start-1" / "rank-00001.parquet")
    (other / "start-1" / "rank-00000.parquet").unlink()
    trace = load_trace(tmp_path)
    assert trace.steps.tolist() == list(range(36)) and trace.steps_dropped == 4
