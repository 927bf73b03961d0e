"""Start the ranks of one job as torchrun would, and wait for them.

Enters: a framework, a fault, an empty folder. Leaves: what the job wrote there. One job runs at a time.
"""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

from tests.ports import free_port
from tests.record.table.framework import Framework

ROOT = Path(__file__).resolve().parents[3]
PATIENCE_S = 300.0


class JobError(Exception):
    """A rank failed, or all of them took too long."""


def launch(name: str, framework: Framework, fault: str, out: Path) -> None:
    """Run one job.

    Raises
    ------
    JobError
        With the end of what the first rank that failed said.
    """
    out.mkdir(parents=True)
    port = free_port()
    known = {"python": sys.executable, "trace": str(out / "trace")}
    script = ROOT / "tests" / "record" / "table" / "jobs" / f"{name.replace('-', '_')}.py"
    command = [part.format(**known) for part in framework.command]
    command += [str(script), str(out), "--fault", fault, "--steps", str(framework.steps)]
    shared = os.environ | {
        "PYTHONPATH": str(ROOT),
        "OMP_NUM_THREADS": "1",
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
        "GLOO_SOCKET_IFNAME": "lo",
        **{key: value.format(**known) for key, value in framework.environment.items()},
    }
    n_ranks = len(framework.places)
    processes = []
    for rank in range(n_ranks if framework.is_started_by_rank else 1):
        own = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": n_ranks, "LOCAL_WORLD_SIZE": n_ranks, "GROUP_RANK": 0}
        environment = shared | ({k: str(v) for k, v in own.items()} if framework.is_started_by_rank else {})
        with (out / f"rank-{rank}.txt").open("w") as said:
            processes.append(
                subprocess.Popen(command, env=environment, cwd=out, stdout=said, stderr=said, start_new_session=True)
            )
    try:
        _wait(processes, out)
    finally:
        for process in processes:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()


def _wait(processes: list[subprocess.Popen], out: Path) -> None:
    """Wait until all have ended well, or one has not."""
    ends = time.monotonic() + PATIENCE_S
    while any(process.poll() is None for process in processes) and time.monotonic() < ends:
        if any(process.poll() for process in processes):
            break
        time.sleep(0.2)
    for rank, process in enumerate(processes):
        if process.poll():
            said = (out / f"rank-{rank}.txt").read_text(errors="replace")
            raise JobError(f"rank {rank} ended with {process.returncode}: {said[-2000:]}")
    if any(process.poll() is None for process in processes):
        raise JobError(f"still running after {PATIENCE_S:.0f} s")
