"""What the whole process costs: `diagnose --format json` on AR x 64 and on AR; no time is asserted, answers are.

Run with `pytest tests/benchmarks --benchmarks -s`. Figures are ratios to a process that reads the same file with pyarrow, taken
in turn in the same run.
"""

import dataclasses
import json
import statistics
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from tests.benchmarks.test_ar64 import repeat

pytestmark = pytest.mark.benchmark
DIAGNOSE = [sys.executable, "-m", "diagnose"]
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
READ = "import numpy, pyarrow.parquet as pq; pq.read_table({path!r})"


@dataclasses.dataclass(frozen=True, slots=True)
class Cost:
    """What one process cost; seconds and bytes."""

    wall_s: float
    cpu_s: float
    peak_bytes: int
    output: str


def spend(command: Sequence[str], output: Path) -> Cost:
    """Run a process and say what it alone cost."""
    done = subprocess.run(
        [sys.executable, "-S", "-c", LAUNCHER, str(output), *command],
        cwd=Path(__file__).parents[2],
        capture_output=True,
        text=True,
        check=True,
    )
    code, wall_s, cpu_s, peak_kib, *error = done.stdout.split("\n", 4)
    assert code == "0", error
    return Cost(float(wall_s), float(cpu_s), int(peak_kib) * 1024, output.read_text())


def in_turn(commands: dict[str, Sequence[str]], n_runs: int, output: Path) -> dict[str, list[Cost]]:
    """Run several processes in turn, so that whatever else the machine does hits all alike."""
    found: dict[str, list[Cost]] = {name: [] for name in commands}
    for _ in range(n_runs):
        for name, command in commands.items():
            found[name].append(spend(command, output))
    return found


def print_table(title: str, costs: dict[str, list[Cost]], *, against: str) -> None:
    """Print the medians, and their ratio to one of the processes."""
    print(f"\n\n{title}\n  {'':28} {'wall':>9} {'CPU':>9} {'peak':>9} {'wall/':>7} {'CPU/':>7}")
    base = {field: statistics.median(getattr(c, field) for c in costs[against]) for field in ("wall_s", "cpu_s")}
    for name, runs in costs.items():
        wall, cpu = (statistics.median(getattr(c, field) for c in runs) for field in ("wall_s", "cpu_s"))
        peak = max(c.peak_bytes for c in runs) / 2**20
        ratios = f"{wall / base['wall_s']:7.2f} {cpu / base['cpu_s']:7.2f}"
        print(f"  {name:28} {wall:8.3f}s {cpu:8.3f}s {peak:6.0f}MiB {ratios}")


@pytest.fixture(scope="module")
def ar(shared: Path) -> Path:
    """Give the real trace."""
    return shared / "artifact" / "trace-AR.parquet"


def assert_names_the_slow_worker(output: str, *, copies: int, n_dp: int) -> None:
    """Check the answer: AR's slowed worker, in each copy, costs half of the step."""
    found = json.loads(output)
    assert found["verdict"] == "straggling"
    assert found["causes"][0]["cause"] == "worker-fault"
    assert {(w["dp"], w["pp"]) for w in found["causes"][0]["where"]["workers"]} == {
        (n_dp * k, 0) for k in range(copies)
    }
    assert 0.45 < found["causes"][0]["recoverable"] < 0.55


def test_the_whole_process_on_ar_64_times(ar: Path, tmp_path: Path) -> None:
    """On 7.5 million operations the process names all 64 copies of the slow worker; its time and peak memory are printed."""
    path = repeat(ar, tmp_path / "ar64.parquet", 64)
    read = [sys.executable, "-c", READ.format(path=str(path))]
    timed = READ.format(path=str(path)).replace("pq.read_table", "import time; t = time.perf_counter(); pq.read_table")
    inside = [sys.executable, "-c", timed + "; print(time.perf_counter() - t)"]
    commands = {
        "process: read_table": read,
        "read_table alone": inside,
        "diagnose": [*DIAGNOSE, "--format", "json", str(path)],
    }
    costs = in_turn(commands, 3, tmp_path / "output")
    print_table(
        f"AR x 64: {pq.read_metadata(path).num_rows:,} operations, 3 runs", costs, against="process: read_table"
    )
    alone = statistics.median(float(c.output) for c in costs["read_table alone"])
    whole = statistics.median(c.wall_s for c in costs["diagnose"])
    print(f"  read_table inside its process {alone:.3f} s; whole diagnose process / that: {whole / alone:.2f}")
    for cost in costs["diagnose"]:
        assert_names_the_slow_worker(cost.output, copies=64, n_dp=4)


def test_the_whole_process_on_ar(ar: Path, tmp_path: Path) -> None:
    """On AR the process names the slow worker; its CPU time beside that of reading the file is printed."""
    read = [sys.executable, "-c", READ.format(path=str(ar))]
    diagnosis = [*DIAGNOSE, "--format", "json", str(ar)]
    costs = in_turn({"process: read_table": read, "diagnose": diagnosis}, 5, tmp_path / "output")
    print_table(f"AR: {pq.read_metadata(ar).num_rows:,} operations, 5 runs", costs, against="process: read_table")
    for cost in costs["diagnose"]:
        assert_names_the_slow_worker(cost.output, copies=1, n_dp=4)


def test_help(tmp_path: Path) -> None:
    """`diagnose --help` says what the options are; its CPU time is printed beside that of an empty process."""
    commands = {"python -c pass": [sys.executable, "-c", "pass"], "diagnose --help": [*DIAGNOSE, "--help"]}
    costs = in_turn(commands, 5, tmp_path / "output")
    print_table("diagnose --help, 5 runs", costs, against="python -c pass")
    assert all("--min-speedup" in cost.output for cost in costs["diagnose --help"])
