"""What a night of 3,079 jobs costs: jobs a second, memory, the store's part, and how that compares with one job after the other.

Run with `pytest tests/benchmarks/test_night.py --benchmarks -s`; `NIGHT_JOBS=300` makes it a short night. Sizes are those of a
log-normal distribution (half of the jobs below 20,000 operations, the largest 8 million), at its quantiles. Every job is generated,
with a fault or none. Times are ratios within one run: half of the single diagnoses go before the nights, half after.
"""

import hashlib
import json
import math
import os
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path

import pytest
import sqlalchemy as sa

from diagnose.faults.generate import generate, list_causes, name_truth, write_job
from diagnose.faults.spec import JobSpec
from diagnose.triage.identity import Judge
from diagnose.triage.rows import CauseRow, JobRow
from diagnose.triage.run import run_triage
from diagnose.triage.settings import RunSettings
from diagnose.triage.source import FoundJob
from diagnose.triage.store import Store
from diagnose.triage.worker import Outcome, Task
from tests.triage.conftest import environment, fresh_database, postgres_server, start
from tests.triage.test_run import Here

pytestmark = pytest.mark.benchmark
__all__ = ["postgres_server"]
N_JOBS = int(os.environ.get("NIGHT_JOBS", "3079"))
MEDIAN_OPS, LARGEST_OPS, LARGEST_OF = 20_000, 8_000_000, 3079
#: From how many operations on a job has how many stages, dp ranks and microbatches.
SHAPES = ((1_000_000, 8, 64, 16), (200_000, 4, 32, 8), (10_000, 4, 4, 8), (0, 2, 2, 2))
#: The store's part of a night at most.
STORE_SHARE = 0.03
#: As long as that of a common job.
DOCUMENT = json.dumps({"found": "x" * 20_000})
#: Diagnoses the traces that standard input names, one after the other, and says what the imports and the rest took.
ONE_BY_ONE = """
import hashlib, json, sys, time
began = time.perf_counter()
from diagnose.model.request import Request
from diagnose.pipeline import diagnose_job
from diagnose.report import json_lines
imported = time.perf_counter()
found = {}
for line in sys.stdin:
    path = line.rstrip()
    found[path] = hashlib.sha256(json_lines.render(diagnose_job(Request(path))).encode()).hexdigest()
print(json.dumps([imported - began, time.perf_counter() - imported, found]))
"""


def sizes(n_jobs: int) -> list[int]:
    """Give the operations of each job: quantiles of a log-normal distribution, the largest first."""
    quantile = statistics.NormalDist().inv_cdf
    sigma = math.log(LARGEST_OPS / MEDIAN_OPS) / quantile(1 - 0.5 / LARGEST_OF)
    return [round(MEDIAN_OPS * math.exp(sigma * quantile(1 - (i + 0.5) / n_jobs))) for i in range(n_jobs)]


def shape(n_ops: int, seed: int) -> JobSpec:
    """Give a job of about so many operations."""
    pp, dp, microbatches = next(found for least, *found in SHAPES if n_ops >= least)
    a_step = dp * (2 * microbatches * pp + 4 * microbatches * (pp - 1) + 6 * pp + 2)
    steps = max(2, round(n_ops / a_step))
    return JobSpec(pp=pp, dp=dp, microbatches=microbatches, steps=steps, seed=seed, job_id=f"night-{seed:04}")


def make(folder: Path, i: int, n_ops: int) -> None:
    """Write one job, healthy or with one of the faults in turn, and the truth about it."""
    spec = shape(n_ops, i)
    causes = [None, *sorted(list_causes())]
    cause = causes[i % len(causes)]
    fault = None if cause is None else list_causes()[cause](spec, spec.random("fault"), strength=None, onset=None)
    path = folder / f"{spec.job_id}.parquet"
    write_job(generate(spec, [] if fault is None else [fault]), path)  # not every shape can have every fault
    os.utime(path, (1_700_000_000 + i, 1_700_000_000 + i))


@pytest.fixture(scope="module")
def corpus() -> Iterator[Path]:
    """Give a folder with the jobs of a night."""
    with tempfile.TemporaryDirectory(prefix="diagnose-night-") as name:
        folder = Path(name, "jobs")
        folder.mkdir()
        began_s = time.perf_counter()
        with ProcessPoolExecutor(os.cpu_count(), mp_context=get_context("spawn")) as pool:
            done = [pool.submit(make, folder, i, n_ops) for i, n_ops in enumerate(sizes(N_JOBS))]
            for future in done:
                future.result()
        print(f"\n{N_JOBS} jobs generated in {time.perf_counter() - began_s:.0f} s")
        yield folder


def one_by_one(paths: list[Path]) -> tuple[float, float, dict[str, str]]:
    """Diagnose jobs one after the other in one process: seconds of its imports and of the jobs, and a digest of each document."""
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", ONE_BY_ONE],
        input="".join(f"{path}\n" for path in paths),
        env=environment(),
        capture_output=True,
        text=True,
        check=True,
    )
    return tuple(json.loads(done.stdout))


def resident_bytes(pid: int) -> int:
    """Give the memory of a process and of all below it; what they share is counted for each."""
    try:
        pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
        below = [
            int(child)
            for task in Path(f"/proc/{pid}/task").iterdir()
            for child in (task / "children").read_text().split()
        ]
    except OSError:
        return 0
    return pages * os.sysconf("SC_PAGE_SIZE") + sum(resident_bytes(child) for child in below)


def spend_night(source: Path, url: str) -> tuple[dict, float, int]:
    """Run a triage as a process: its summary, its seconds from start to end, and the peak memory of it and its workers."""
    peak, ended = [0], threading.Event()
    began_s = time.perf_counter()
    process = start("triage", str(source), "--store", url, "--workers", "2", "--format", "json", "--quiet")

    def watch() -> None:
        while not ended.wait(0.1):
            peak[0] = max(peak[0], resident_bytes(process.pid))

    watcher = threading.Thread(target=watch)
    watcher.start()
    try:
        out, err = process.communicate()
    finally:
        ended.set()
        watcher.join()
    assert process.returncode == 0, err
    return json.loads(out), time.perf_counter() - began_s, peak[0]


@pytest.mark.parametrize("kind", ["sqlite", "postgresql"])
def test_a_night(kind: str, request: pytest.FixtureRequest, corpus: Path, tmp_path: Path) -> None:
    """Every job has its row once, with what `diagnose` alone says of it; what the night costs is printed."""
    paths = sorted(corpus.glob("*.parquet"))
    assert len(paths) == N_JOBS
    quarter = tmp_path / "quarter.txt"
    quarter.write_text("".join(f"{path}\n" for path in paths[::4]))
    url = f"sqlite:///{tmp_path}/night.db"
    if kind == "postgresql":
        url = fresh_database(request.getfixturevalue("postgres_server"))
    import_s, first_s, alone = one_by_one(paths[::2])
    _, quarter_s, _ = spend_night(quarter, f"sqlite:///{tmp_path}/quarter.db")
    night, night_s, peak_bytes = spend_night(corpus, url)
    _, second_s, others = one_by_one(paths[1::2])
    alone |= others
    single_s = import_s + first_s + second_s

    with Store(url, may_create=False) as store, store.reading() as read:
        rows = [row for rows in read(sa.text("SELECT location, document FROM documents")) for row in rows]
        top = dict(row for rows in read(sa.text("SELECT location, top_cause FROM jobs")) for row in rows)
        n_ops = sum(row[0] for rows in read(sa.text("SELECT n_ops FROM jobs")) for row in rows)
        worked_s = sum(row[0] for rows in read(sa.text("SELECT took_s FROM times")) for row in rows)
    found = {location: hashlib.sha256(document.encode()).hexdigest() for location, document in rows}
    assert len(rows) == len(found) == night["n_diagnosed"] == N_JOBS
    assert found == alone
    truth = {
        str(path): [fault["cause"] for fault in json.loads(name_truth(path).read_text())["faults"]] for path in paths
    }
    n_right = sum(top[path] == (causes[0] if causes else None) for path, causes in truth.items())
    assert n_right > N_JOBS / 2, "the faults that were put in are not what is found"

    share = night["store_s"] / night["took_s"]
    growth = (night_s / N_JOBS) / (quarter_s / len(paths[::4]))
    busy = worked_s / 2 / night_s
    print(f"\n\n{N_JOBS} jobs, {n_ops / 1e6:.0f} million operations, 2 workers, {kind}")
    print(f"  night                        {night_s:8.1f} s  {N_JOBS / night_s:6.2f} jobs a second")
    print(
        f"  a night of every fourth job  {quarter_s:8.1f} s  a job of the whole night takes {growth:.2f} of one there"
    )
    print(f"  one after the other          {single_s:8.1f} s  the night takes {night_s / single_s:.2f} of that")
    print(f"    of which imports, once     {import_s:8.1f} s")
    print(
        f"  both workers at work         {worked_s:8.1f} s  {busy:.2f} of the night twice, {worked_s / single_s:.2f} of one by one"
    )
    print(
        f"  store                        {night['store_s']:8.1f} s  {share:.2%}, {1e3 * night['store_s'] / N_JOBS:.2f} ms a job"
    )
    print(f"  peak memory of all processes {peak_bytes / 2**20:8.0f} MiB")
    print(f"  the fault is said first      {n_right / N_JOBS:8.1%}    of jobs (also those too small to tell)")
    assert share < STORE_SHARE


class Nowhere(Here):
    """A place where every job is done at once, with a document and causes as of a common job: the night's own part is left."""

    def submit(self, task: Task) -> Future[Outcome]:
        """Make something up."""
        location = task.job.location
        row = JobRow(
            location, "diagnosed", identity=location, content=location, verdict="healthy", gpu_hours_analysed=1.0
        )
        causes = tuple(CauseRow(location, i, "worker-fault", *[None] * 15, "f") for i in (1, 2))
        future: Future[Outcome] = Future()
        future.set_result(Outcome(row, causes, DOCUMENT, stamp="s", took_s=0.05))
        return future


@pytest.mark.parametrize("kind", ["sqlite", "postgresql"])
def test_what_the_night_itself_costs(kind: str, request: pytest.FixtureRequest, tmp_path: Path) -> None:
    """With nothing to diagnose, a job costs about the same in a night of 1,000 jobs as in one of 16,000."""
    server = None if kind == "sqlite" else request.getfixturevalue("postgres_server")
    settings = RunSettings(Judge("v", "r", None, 1.02), None, 2**40, 600.0)
    print(f"\n\n{kind}: the night without the diagnoses\n  {'jobs':>8} {'ms a job':>9} {'of which store':>15}")
    costs = []
    for n_jobs in (1_000, 4_000, 16_000):
        jobs = [FoundJob(f"/jobs/{i:06}.parquet", size_bytes=1000 + i, stamp=str(i)) for i in range(n_jobs)]
        url = f"sqlite:///{tmp_path}/{n_jobs}.db" if server is None else fresh_database(server)
        with Store(url) as store:
            began_s = time.perf_counter()
            night = run_triage(jobs, store, lambda _: Nowhere(), settings)
            costs.append((time.perf_counter() - began_s) / n_jobs)
        assert night.n_diagnosed == n_jobs
        print(f"  {n_jobs:8} {1e3 * costs[-1]:9.2f} {1e3 * night.store_s / n_jobs:15.2f}")
    assert costs[-1] < 3 * costs[0], "it grows faster than the number of jobs"
