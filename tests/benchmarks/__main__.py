"""What the program costs, in one table: `python -m tests.benchmarks`.

    python -m tests.benchmarks                         # ten minutes of CPU; --quick: one, without large jobs
    python -m tests.benchmarks --docs                  # writes docs/about/benchmarks.md as well
    python -m tests.benchmarks --against FOLDER        # beside another version: a folder that has its `diagnose`

Each row is a whole process. Its CPU time stands beside that of a process that only reads the same input (numpy, pyarrow and
`read_table`; JSON: the standard library), run in turn with it, so that what else the machine does hits both alike. Figures are
medians; a ratio to another version has its least and most, too. What is slower than that version by more than 15%, in every
single turn slower at all, is told in a last line that begins with `slower`. The answers are checked.

Not in the table, as they are no single process: nights of thousands of jobs, the recorder beside torch, a page in a browser, and
packers one by one (`python -m pytest tests/benchmarks --benchmarks -s`).
"""

import argparse
import dataclasses
import importlib.metadata
import os
import platform
import statistics
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

import pyarrow.parquet as pq

from diagnose._version import __version__
from diagnose.faults.generate import generate, write_job
from diagnose.faults.spec import JobSpec
from diagnose.faults.worker_fault import WorkerFault
from tests.benchmarks.processes import Cost, Process, Ratio, in_turn
from tests.benchmarks.test_ar64 import repeat
from tests.benchmarks.test_kineto import write_rank
from tests.packing.streams import draw_lengths

ROOT = Path(__file__).resolve().parents[2]
SHARED = ROOT.parent / "shared"
PAGE = ROOT / "docs/about/benchmarks.md"
#: Told from here on.
SLOWER = 1.15
READ = "import sys, numpy, pyarrow.parquet as pq\nfor path in sys.argv[1:]: pq.read_table(path)"
READ_JSON = "import sys, json\nfor path in sys.argv[1:]: json.load(open(path))"
INTRODUCTION = """# What it costs

Each row is a whole process, imports included. `x reading` is its CPU time beside that of a process that only reads the same input,
run in turn with it: numpy, pyarrow and `read_table`; for JSON and text the standard library. Medians of
{machine}.

To repeat it: `python -m tests.benchmarks --docs` in a clone. [How fast it is](how-fast.md) has what is no single process.

"""
WHAT_IF = (
    "import sys; from diagnose.heap import reuse_freed_memory; reuse_freed_memory();"  # as the program does
    "from diagnose.trace.load import load_trace; from diagnose.whatif.scenarios import explore, prepare;"
    "trace = load_trace(sys.argv[1]); print(explore(trace, prepare(trace)).slowdown)"
)


@dataclasses.dataclass(frozen=True, slots=True)
class Task:
    """A row: what is done, on how many operations, by which arguments of Python, and what its output says."""

    name: str
    n_ops: int
    arguments: Sequence[str]
    says: str
    codes: tuple[int, ...] = (0,)


@dataclasses.dataclass(frozen=True, slots=True)
class Group:
    """Rows of one input, and the arguments with which Python only reads it."""

    reading: Sequence[str]
    tasks: Sequence[Task]


def diagnose(name: str, n_ops: int, *arguments: str | Path, says: str, codes: tuple[int, ...] = (0,)) -> Task:
    """Give a row of a command line."""
    return Task(name, n_ops, ("-m", "diagnose", *map(str, arguments)), says, codes)


def count(*paths: Path) -> int:
    """Count the operations of traces."""
    return sum(pq.read_metadata(path).num_rows for path in paths)


def of_a_trace(name: str, path: Path, *, few: bool, says: str = '"worker-fault"') -> Group:
    """Give the rows of one trace."""
    n = count(path)
    tasks = [diagnose(f"{name}: diagnosis, JSON", n, "--format", "json", path, says=says)]
    if not few:
        tasks += [
            Task(f"{name}: loading and what-if, every worker's slowdown", n, ("-c", WHAT_IF, str(path)), "1."),
            diagnose(f"{name}: with a page", n, path, "--quiet", "--html", "page.html", says=""),
            diagnose(f"{name}: one fix by hand", n, "what-if", path, "--fix", "replace-worker", says="replace"),
        ]
    return Group(("-c", READ, str(path)), tasks)


def list_groups(folder: Path, *, quick: bool) -> Iterator[Group]:
    """Give all rows, inputs made in the folder."""
    fixtures = sorted((ROOT / "fixtures").glob("*.parquet"))
    small = ROOT / "fixtures/worker-fault.parquet"
    group = of_a_trace("a fixture", small, few=quick)
    yield dataclasses.replace(group, tasks=[diagnose("--help", 0, "--help", says="--min-speedup"), *group.tasks])
    fixtures = fixtures[:3] if quick else fixtures
    night, n = folder / "night", count(*fixtures)
    night.mkdir()
    for path in fixtures:
        (night / path.name).write_bytes(path.read_bytes())
    store = ("--store", "sqlite:///store.db")
    triage = ("triage", night, *store, "--workers", "1")
    tasks = [
        diagnose(f"triage of {len(fixtures)} jobs", n, *triage, "--force", says="diagnosed"),
        diagnose("triage, nothing new", n, *triage, says=""),
        diagnose("fleet of these", n, "fleet", *store, says="worst"),
    ]
    yield Group(("-c", READ, *map(str, fixtures)), tasks[:1] if quick else tasks)
    job = folder / "job.parquet"
    spec = JobSpec(pp=4, dp=8, microbatches=8, steps=60, seed=1)
    write_job(generate(spec, [WorkerFault(places=((1, 2),), slowdown=1.6)]), job)
    yield of_a_trace("a generated job", job, few=quick)
    if quick:
        return
    ar = SHARED / "artifact" / "trace-AR.parquet"
    if ar.exists():
        yield of_a_trace("AR", ar, few=False)
        for copies in (8, 64):
            yield of_a_trace(f"AR x {copies}", repeat(ar, folder / f"ar{copies}.parquet", copies), few=False)
    wide = folder / "wide.parquet"
    write_job(generate(JobSpec(pp=64, dp=2, microbatches=64, steps=3, seed=1), []), wide)
    yield of_a_trace("64 stages x 64 microbatches", wide, few=True, says='"healthy"')
    ranks = folder / "ranks"
    ranks.mkdir()
    for rank in range(2):
        write_rank(ranks / f"rank{rank}.json", rank, n_bytes=20_000_000)
    trace = folder / "ranks.parquet"
    yield Group(
        ("-c", READ_JSON, *map(str, sorted(ranks.iterdir()))),
        [diagnose("torch.profiler, 40 MB: convert", 0, "convert", ranks, "--output", trace, says="")],
    )
    lengths = folder / "lengths.txt"
    lengths.write_text("\n".join(map(str, draw_lengths(100_000, seed=1).tolist())))
    yield Group(
        ("-c", "import sys; [int(line) for line in open(sys.argv[1])]", str(lengths)),
        [diagnose("packing documents", 0, "pack", lengths, says="")],
    )


def describe_machine() -> str:
    """Say where the figures come from."""
    cpus = [line for line in Path("/proc/cpuinfo").read_text().splitlines() if line.startswith("model name")]
    model = cpus[0].partition(":")[2].strip() if cpus else platform.machine()
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    libraries = ", ".join(f"{name} {importlib.metadata.version(name)}" for name in ("numpy", "pyarrow"))
    return (
        f"{os.cpu_count()} cores ({model}), {memory:.0f} GiB, {platform.system()}, Python {platform.python_version()}, "
        f"{libraries}, diagnose {__version__}"
    )


def measure(
    group: Group, folder: Path, n_runs: int, against: Path | None
) -> Iterator[tuple[Task, list[Cost], list[Cost], Ratio | None]]:
    """Run the rows of a group in turn with their reading process, and with another version; check what they say."""
    base = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    base |= {"PYTHONPYCACHEPREFIX": str(folder / "compiled")}
    versions = {"": ROOT} | ({"release": against} if against else {})
    processes = {"reading": Process([sys.executable, *group.reading], folder, base)}
    for task in group.tasks:
        for version, path in versions.items():
            own = folder / (version or "this")  # with a store of its own: an older version cannot read a newer one's
            own.mkdir(exist_ok=True)
            environment = base | {"PYTHONPATH": str(path)}
            processes[f"{task.name} {version}"] = Process([sys.executable, *task.arguments], own, environment)
    costs = in_turn(processes, n_runs, folder / "output")
    for task in group.tasks:
        mine = costs[f"{task.name} "]
        assert all(task.says in cost.output for cost in mine), (task.name, mine[0].output[:500])
        yield task, mine, costs["reading"], Ratio.of(mine, costs[f"{task.name} release"]) if against else None


def main() -> None:
    """Measure everything, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="small jobs alone")
    parser.add_argument("--runs", type=int, default=5, metavar="N", help="turns that count (default 5)")
    parser.add_argument(
        "--against", type=Path, metavar="FOLDER", help="another version: a folder that has its `diagnose`"
    )
    parser.add_argument("--docs", action="store_true", help=f"write {PAGE.relative_to(ROOT)}")
    options = parser.parse_args()
    against = options.against.resolve() if options.against else None
    if against and not (against / "diagnose/__init__.py").is_file():
        parser.error(f"{against} has no package `diagnose`")

    head = ["what", "operations", "CPU s", "x reading", "peak MiB", *(["x the other version"] if against else [])]
    lines = [f"| {' | '.join(head)} |", "|---" + "|---:" * (len(head) - 1) + "|"]
    print(*lines, sep="\n", flush=True)
    slower = []
    with tempfile.TemporaryDirectory(prefix="benchmarks-") as name:
        folder = Path(name)
        for group in list_groups(folder, quick=options.quick):
            for task, mine, reading, ratio in measure(group, folder, options.runs, against):
                cpu_s, peak = statistics.median(c.cpu_s for c in mine), max(c.peak_bytes for c in mine) / 2**20
                cells = [task.name, f"{task.n_ops:,}" if task.n_ops else "", f"{cpu_s:.2f}"]
                cells += [f"{Ratio.of(mine, reading).middle:.2f}", f"{peak:.0f}"]
                if ratio is not None:
                    cells.append(f"{ratio.middle:.2f} ({ratio.low:.2f} to {ratio.high:.2f})")
                    if ratio.middle > SLOWER and ratio.low > 1.0:
                        slower.append(f"{task.name} ({ratio.middle:.2f} x)")
                lines.append(f"| {' | '.join(cells)} |")
                print(lines[-1], flush=True)
    machine = f"{options.runs} runs in turn on {describe_machine()}"
    print(f"\n{machine}")
    if against:
        print(f"slower than the other version by more than 15%: {', '.join(slower) or 'nothing'}")
    if options.docs:
        PAGE.write_text(INTRODUCTION.format(machine=machine) + "\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
