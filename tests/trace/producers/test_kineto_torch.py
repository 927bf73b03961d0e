"""Traces that torch.profiler has just made, against what the job truly did: `tests/torch_jobs/profiled_job.py` says both."""

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from diagnose.model.optype import BY_NAME, DIRECTIONS, Op
from diagnose.model.recording import Recording
from diagnose.model.request import Request
from diagnose.pipeline import diagnose_job
from diagnose.trace.input_files import list_input_files
from diagnose.trace.producers.kineto import job as kineto
from diagnose.trace.producers.kineto.rank import read_rank

PROGRAM = Path(__file__).resolve().parents[2] / "torch_jobs" / "profiled_job.py"
#: torch may live in another environment than the tests do.
PYTHON = os.environ.get("DIAGNOSE_TORCH_PYTHON", sys.executable)


@pytest.fixture(scope="module")
def torch_python() -> str:
    """Give an interpreter that has torch, or skip."""
    found = subprocess.run(
        [PYTHON, "-c", "import torch.distributed.pipelining"], capture_output=True, check=False, cwd="/"
    )
    if found.returncode:
        pytest.skip(f"torch is not installed for {PYTHON}; DIAGNOSE_TORCH_PYTHON names an interpreter that has it")
    return PYTHON


def run_job(python: str, out: Path, *options: str) -> Recording:
    """Run a job of four processes and read its traces."""
    subprocess.run(
        [python, str(PROGRAM), "--out", str(out), "--steps", "3", *options],
        check=True,
        capture_output=True,
        cwd="/",
        timeout=300,
    )
    traces = out / "traces"
    traces.mkdir()
    for file in out.glob("rank*.json.gz"):
        file.rename(traces / file.name)
    return kineto.read(list_input_files(traces, name="job"), name="job", report=lambda _: None)


def match_truth(recording: Recording, out: Path) -> dict[str, list[tuple[float, float]]]:
    """Pair each compute and update that truly happened with its row: seconds by which start and end are apart, by type.

    Every one has exactly one row, on its rank, with its step, model chunk and microbatch, and there are no others.
    """
    assert recording.microbatch is not None
    assert recording.chunk is not None
    assert recording.rank is not None
    zero_s = []
    apart: dict[str, list[tuple[float, float]]] = {}
    n_rows = 0
    pairs = []
    for rank in range(4):
        base_ns = read_rank(out / "traces" / f"rank{rank}.json.gz", "x").base_ns
        for true in json.loads((out / f"truth{rank}.json").read_text()):
            if true["step"] not in recording.step or true["op"] in ("gc", "data-load"):
                continue
            keep = (recording.op == BY_NAME[true["op"]]) & (recording.rank == rank) & (recording.step == true["step"])
            if "microbatch" in true:
                keep &= (recording.microbatch == true["microbatch"]) & (recording.chunk == true["stage"] // 4)
            (row,) = np.flatnonzero(keep)
            n_rows += 1
            start_s, end_s = ((true[side] - base_ns) / 1e9 for side in ("start_ns", "end_ns"))
            pairs.append((true["op"], row, start_s, end_s))
            zero_s.append(start_s - recording.start_s[row])
    zero = float(np.median(zero_s))  # the recording counts from its first operation
    for op, row, start_s, end_s in pairs:
        start = float(recording.start_s[row]) + zero
        apart.setdefault(op, []).append((start - start_s, start + float(recording.duration_s[row]) - end_s))
    assert n_rows == int(np.isin(recording.op, [*DIRECTIONS, Op.OPTIMIZER]).sum())
    return apart


@pytest.mark.parametrize("schedule", ["gpipe", "1f1b", "interleaved", "interleaved-zb", "zbv", "dualpipev"])
def test_operations_of_pipelining_are_those_of_the_job(torch_python: str, tmp_path: Path, schedule: str) -> None:
    """Every forward and backward of a real pipeline is read, half of them closer than 0.5 ms to what hooks around them say."""
    recording = run_job(torch_python, tmp_path, "--schedule", schedule)
    assert np.unique(recording.stage).tolist() == [0, 1, 2, 3]
    for op, apart in match_truth(recording, tmp_path).items():
        assert np.median(np.abs(np.array(apart)), axis=0).max() < 0.5e-3, op
    in_v = schedule in ("zbv", "dualpipev")
    assert (recording.position is not None) == in_v
    if in_v:
        assert {(int(s), int(p)) for s, p in zip(recording.stage, recording.position, strict=True) if p >= 0} == {
            (stage, position) for stage in range(4) for position in (stage, 7 - stage)
        }
        return
    pairs = ((Op.FORWARD_SEND, Op.FORWARD_RECV), (Op.BACKWARD_SEND, Op.BACKWARD_RECV))
    for send, recv in pairs:
        assert (recording.op == send).sum() == (recording.op == recv).sum() > 0


def test_operations_of_data_parallelism_are_those_of_the_job(torch_python: str, tmp_path: Path) -> None:
    """With two microbatches a step, all computes of a real DDP job have their rows, and no backward holds the reduction."""
    recording = run_job(torch_python, tmp_path, "--schedule", "ddp", "--accumulate", "2")
    apart = match_truth(recording, tmp_path)
    assert np.median(np.abs(np.array(apart["optimizer"])), axis=0).max() < 0.5e-3
    ends = np.array(apart["backward-compute"])[:, 1]
    assert (ends < 0.5e-3).all()
    assert (recording.op == Op.SEPARATE).sum() == 12
    assert (recording.op == Op.DATA_LOAD).sum() == 24


def test_a_slow_stage_of_a_real_job_is_slow_in_its_recording(torch_python: str, tmp_path: Path) -> None:
    """A stage that stands still for 30 ms in each compute is that much longer than the others in both directions."""
    recording = run_job(torch_python, tmp_path, "--schedule", "1f1b", "--slow-stage", "2", "--slow-s", "0.03")
    for op in (Op.FORWARD, Op.BACKWARD):
        usual = [
            np.median(recording.duration_s[(recording.op == op) & (recording.stage == stage)]) for stage in range(4)
        ]
        assert usual[2] - max(usual[:2] + usual[3:]) > 0.02


def test_collections_and_a_slow_rank_are_seen(torch_python: str, tmp_path: Path) -> None:
    """A sharded job whose rank 2 is slow waits on every other rank, and collections of rank 1 are rows inside its forwards."""
    options = ("--schedule", "fsdp", "--slow-rank", "2", "--slow-s", "0.1", "--collect-rank", "1")
    recording = run_job(torch_python, tmp_path, *options)
    backward = [
        np.median(recording.duration_s[(recording.op == Op.BACKWARD) & (recording.dp == dp)]) for dp in range(4)
    ]
    assert int(np.argmax(backward)) == 2
    collections = recording.op == Op.GC
    assert collections.any()
    assert np.unique(recording.dp[collections]).tolist() == [1]


@pytest.mark.parametrize(
    ("kind", "api", "computes", "steps"),
    [
        ("plain", "profiler", 1, 10),
        ("plain", "steps", 1, 10),
        ("plain", "autograd", 1, 10),
        ("closure", "profiler", 1, 10),
        ("closure", "steps", 1, 8),  # the recording begins and ends in the middle of a step
        ("accumulate", "profiler", 3, 10),
        ("accumulate", "steps", 3, 10),
        ("microbatches", "steps", 2, 5),
        ("by_hand", "profiler", 1, 10),
        ("two_models", "profiler", 2, 10),
        ("evaluating", "profiler", 1, 10),
        ("evaluating", "steps", 1, 10),
        ("recomputing", "steps", 1, 10),
        ("in_hooks", "profiler", 1, 10),
        ("lbfgs", "steps", 3, 10),
    ],
)
def test_loops_of_any_trainer_have_their_steps(
    torch_python: str, tmp_path: Path, kind: str, api: str, computes: int, steps: int
) -> None:
    """Without annotations of its own each step of a real loop has its forwards, as many backwards, and its update after them."""
    file = tmp_path / "trace.json"
    subprocess.run(
        [torch_python, str(PROGRAM.with_name("loops.py")), kind, "--out", str(file), "--api", api],
        check=True,
        capture_output=True,
        cwd="/",
        timeout=300,
    )
    recording = kineto.read(list_input_files(file, name="job"), name="job", report=lambda _: None)
    counts = [
        [int((recording.op[recording.step == step] == op).sum()) for op in (Op.FORWARD, Op.BACKWARD, Op.OPTIMIZER)]
        for step in np.unique(recording.step)
    ]
    assert counts == [[computes, computes, int(kind != "in_hooks")]] * steps
    assert (recording.op == Op.DATA_LOAD).sum() >= steps
    if kind == "evaluating":
        assert (recording.op == Op.EVAL).sum() in (2, 3)
    found = diagnose_job(Request(file))
    assert "worker-fault" not in {cause.cause for cause in found.causes}
