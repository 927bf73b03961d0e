"""How fast traces of torch.profiler are read, and in how much memory: large ranks made by hand, and the answer checked."""

import json
import subprocess
import sys
import time
from pathlib import Path

import pytest

from diagnose.model.optype import Op
from diagnose.trace.input_files import list_input_files
from diagnose.trace.producers.kineto import job as kineto
from tests.trace.producers.kineto_traces import KinetoTrace, distributed

pytestmark = pytest.mark.benchmark

#: Text of one rank, and ranks.
RANK_BYTES = 200_000_000
N_RANKS = 2
#: What all processes that read may take together, as the largest of them times their number: 64 ranks are to stay below 2 GB.
MOST_BYTES = 2_000_000_000
STEP_US = 1_000_000.0
READER = """
import resource, sys
from pathlib import Path
from diagnose.trace.producers.kineto import job as kineto
from diagnose.trace.input_files import list_input_files
if __name__ == "__main__":
    recording = kineto.read(list_input_files(Path(sys.argv[1]), name="job"), name="job", report=lambda _: None)
    own, child = (resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    print(len(recording), own.ru_maxrss * 1024, child.ru_maxrss * 1024, own.ru_utime + child.ru_utime)
"""


def write_rank(path: Path, rank: int, *, n_bytes: int = RANK_BYTES) -> int:
    """Write a rank of steps with a forward, a backward and an update, each of many operators and kernels; say how many steps."""
    trace = KinetoTrace()
    trace.annotate("ProfilerStep#0", 0.0, STEP_US - 1)
    for begin, name in (
        (1_000.0, "forward-compute mb=0"),
        (400_000.0, "backward-compute mb=0"),
        (800_000.0, "optimizer"),
    ):
        trace.annotate(name, begin, 300_000.0 if name != "optimizer" else 100_000.0)
        for n in range(2000):
            at = begin + 40.0 * n
            trace.span(
                "cpu_op", "aten::addmm", at, 30.0, **{"External id": n, "Input Dims": [[4096, 4096], [4096, 1024]]}
            )
            trace.kernel(
                at + 5, at + 1000.0, 35.0, "void cutlass::Kernel2<cutlass_80_tensorop_bf16_s16816gemm_relu>(..)"
            )
    header = json.dumps({"schemaVersion": 1, **distributed(rank, N_RANKS)})[:-1]
    text = ",\n".join(json.dumps(event) for event in trace.events)
    n_steps = n_bytes // len(text)
    with path.open("w") as file:
        file.write(header + ', "traceEvents": [\n')
        for step in range(n_steps):
            if step:
                file.write(",\n")
            moved = [event | {"ts": event["ts"] + STEP_US * step} for event in trace.events]
            for event in moved:
                if "correlation" in event["args"]:
                    event["args"] = event["args"] | {"correlation": event["args"]["correlation"] + step * 1_000_000}
            moved[0]["name"] = f"ProfilerStep#{step}"
            file.write(",\n".join(json.dumps(event) for event in moved))
        file.write("\n]}")
    return n_steps


def test_large_ranks_are_streamed(tmp_path: Path) -> None:
    """Ranks of 200 MB each are read in bounded memory, several at a time, and every operation is there."""
    job = tmp_path / "job"
    job.mkdir()
    n_steps = [write_rank(job / f"rank{rank}.json", rank) for rank in range(N_RANKS)]
    began = time.perf_counter()
    recording = kineto.read(list_input_files(job, name="job"), name="job", report=lambda _: None)
    seconds = time.perf_counter() - began
    n_bytes = sum(file.stat().st_size for file in job.iterdir())
    assert [int((recording.op == op).sum()) for op in (Op.FORWARD, Op.BACKWARD, Op.OPTIMIZER)] == [sum(n_steps)] * 3
    forwards = recording.duration_s[recording.op == Op.FORWARD]
    assert forwards == pytest.approx((40.0 * 1999 + 35.0) / 1e6)
    script = tmp_path / "reader.py"
    script.write_text(READER)
    told = subprocess.run([sys.executable, str(script), str(job)], check=True, capture_output=True, text=True).stdout
    n_rows, own, child = (int(word) for word in told.split()[:3])
    cpu_s = float(told.split()[3])
    assert n_rows == len(recording)
    assert own + kineto.MAX_PROCESSES * child < MOST_BYTES
    print(
        f"\n{N_RANKS} ranks, {n_bytes / 1e6:.0f} MB of text: {seconds:.1f} s, {n_bytes / 1e6 / seconds:.0f} MB/s, "
        f"{n_bytes / 1e6 / cpu_s:.0f} MB a second of one processor; "
        f"this process {own / 1e6:.0f} MB, one that reads {child / 1e6:.0f} MB"
    )
