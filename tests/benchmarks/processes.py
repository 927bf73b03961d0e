"""What whole processes cost, run in turn: CPU time and peak memory of each, as the operating system counts them."""

import dataclasses
import statistics
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

#: A small process that starts the one to be measured: a child's peak memory begins with that of its parent, and pytest is large.
LAUNCHER = """
import os, sys, time
read, write = os.pipe()
start = time.perf_counter()
child = os.fork()
if not child:
    os.dup2(os.open(sys.argv[1], os.O_WRONLY | os.O_CREAT | os.O_TRUNC), 1)
    os.dup2(write, 2)
    os.execv(sys.argv[2], sys.argv[2:])
os.close(write)
error = os.fdopen(read).read()
_, status, usage = os.wait4(child, 0)
wall = time.perf_counter() - start
print(os.waitstatus_to_exitcode(status), wall, usage.ru_utime + usage.ru_stime, usage.ru_maxrss, error, sep="\\n")
"""


@dataclasses.dataclass(frozen=True, slots=True)
class Process:
    """A command to be measured: where it runs, its environment, and how it may end."""

    command: Sequence[str]
    folder: Path
    environment: Mapping[str, str]
    codes: tuple[int, ...] = (0,)


@dataclasses.dataclass(frozen=True, slots=True)
class Cost:
    """What one process cost; seconds and bytes."""

    wall_s: float
    cpu_s: float
    peak_bytes: int
    output: str


def spend(process: Process, output: Path) -> Cost:
    """Run a process and say what it alone cost."""
    done = subprocess.run(
        [sys.executable, "-S", "-c", LAUNCHER, str(output), *process.command],
        cwd=process.folder,
        env=process.environment,
        capture_output=True,
        text=True,
        check=True,
    )
    code, wall_s, cpu_s, peak_kib, *error = done.stdout.split("\n", 4)
    assert int(code) in process.codes, (process.command, code, error)
    return Cost(float(wall_s), float(cpu_s), int(peak_kib) * 1024, output.read_text())


def in_turn(processes: Mapping[str, Process], n_runs: int, output: Path) -> dict[str, list[Cost]]:
    """Run several processes in turn, so that whatever else the machine does hits all alike; a first turn counts for nothing."""
    found: dict[str, list[Cost]] = {name: [] for name in processes}
    for turn in range(n_runs + 1):
        for name, process in processes.items():
            cost = spend(process, output)
            if turn:
                found[name].append(cost)
    return found


@dataclasses.dataclass(frozen=True, slots=True)
class Ratio:
    """How much CPU time one process takes of another's, pair by pair: the median, the least and the most."""

    middle: float
    low: float
    high: float

    @classmethod
    def of(cls, costs: Sequence[Cost], others: Sequence[Cost]) -> "Ratio":
        """Compare runs of one turn with each other."""
        pairs = [cost.cpu_s / other.cpu_s for cost, other in zip(costs, others, strict=True)]
        return cls(statistics.median(pairs), min(pairs), max(pairs))
