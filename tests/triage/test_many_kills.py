"""Two hundred kills of a night on each database, quickly: forks of this process, whose jobs sleep instead of being diagnosed.

Claims, leases, batches and transactions are the real ones. `test_processes.py` kills the program as users start it.
"""

import contextlib
import multiprocessing
import os
import random
import signal
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import NoReturn

import pytest

from diagnose import pipeline
from diagnose.cli.main import main
from diagnose.model.request import Request
from diagnose.triage import run

from .conftest import dump
from .test_processes import count_done, is_running, wait_for

pytestmark = pytest.mark.benchmark
N_KILLS, N_JOBS = 200, 800
#: Seconds that a job takes, those for which results wait to be written, and those to a kill, most.
JOB_S, BATCH_S, KILL_S = 0.2, 0.2, 1.0


def begin(folder: Path, url: str) -> int:
    """Start a night in a process group of its own; give its number."""
    pid = os.fork()
    if pid == 0:
        end_with(folder, url)
    return pid


def end_with(folder: Path, url: str) -> NoReturn:
    """Be a night, and nothing else."""
    os.setsid()
    code = 1
    try:
        code = main(["triage", str(folder), "--store", url, "--workers", "2", "--quiet", "--output", os.devnull])
    finally:
        os._exit(code)


@pytest.fixture
def quick(make_folder: Callable[..., Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Give a folder of jobs that take as long as is said, and say what one of them says."""
    folder = make_folder(tmp_path / "jobs", N_JOBS)
    found = pipeline.diagnose_job(Request(folder / "job-0001.parquet"))
    log = tmp_path / "log"

    def diagnose_job(_request: Request) -> object:
        with log.open("a") as file:
            file.write("x")
        time.sleep(float(os.environ["JOB_S"]))
        return found

    monkeypatch.setattr(pipeline, "diagnose_job", diagnose_job)
    monkeypatch.setattr(run, "BATCH_S", BATCH_S)
    fork = multiprocessing.get_context("fork")
    monkeypatch.setattr(multiprocessing, "get_context", lambda _: fork)
    return folder


def test_nothing_is_lost(store_url: str, quick: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """After all kills, of the night alone (K) or with its workers (G), the store is that of an undisturbed night."""
    rng = random.Random(1)
    monkeypatch.setenv("JOB_S", str(JOB_S))
    hits, tenths = Counter[str](), [0] * 10
    for _ in range(N_KILLS):
        kind = rng.choice("KG")
        n_done = count_done(store_url) + rng.randint(0, 5)
        pid = begin(quick, store_url)
        if rng.random() < 0.7:  # however busy the machine is, the night goes on
            wait_for(
                lambda n_done=n_done, pid=pid: count_done(store_url) >= min(n_done, N_JOBS - 1) or not is_running(pid)
            )
        time.sleep(rng.uniform(0.0, KILL_S))
        is_working = os.waitpid(pid, os.WNOHANG) == (0, 0)
        if is_working:
            (os.kill if kind == "K" else os.killpg)(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
        with contextlib.suppress(ProcessLookupError):  # a fork does not see its parent's end as what is spawned does
            os.killpg(pid, signal.SIGKILL)
        hits[kind] += is_working
        tenths[min(9, 10 * count_done(store_url) // N_JOBS)] += is_working
    n_before, n_begun = count_done(store_url), (tmp_path / "log").stat().st_size
    monkeypatch.setenv("JOB_S", "0")
    for url in (store_url, f"sqlite:///{tmp_path}/undisturbed.db"):
        pid = begin(quick, url)
        assert os.waitpid(pid, 0)[1] == 0
    print(f"\n{dict(hits)} of {N_KILLS} kills hit a night at work, in each tenth of its progress {tenths}")
    print(f"{n_before} of {N_JOBS} jobs were done by then, {n_begun} were begun")
    assert dump(store_url) == dump(f"sqlite:///{tmp_path}/undisturbed.db")
    assert sum(hits.values()) > 0.8 * N_KILLS
