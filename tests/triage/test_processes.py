"""Real processes: killed, hung, crashed and greedy ones, many at once, and a Dask cluster. Nothing is lost, nothing done twice."""

import contextlib
import json
import os
import random
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
import sqlalchemy as sa
from pyarrow import parquet

from diagnose.errors import DiagnoseError
from diagnose.triage import pools
from diagnose.triage.database import read_url
from diagnose.triage.identity import Judge
from diagnose.triage.machine import is_alive
from diagnose.triage.source import list_jobs
from diagnose.triage.worker import Task
from tests.small_disk import mount_small_disk

from .conftest import dump, environment, start, triage

#: Makes jobs misbehave by their names, in every process that has this folder on its path; one line a diagnosis goes to a log.
MISCHIEF = """
import os, signal, sys, time
import importlib.abc, importlib.machinery

def spoil(pipeline):
    diagnose = pipeline.diagnose_job
    def diagnose_job(request):
        source = request.source
        name = os.path.basename(str(source))
        if log := os.environ.get("MISCHIEF_LOG"):
            with open(log, "a") as file:
                file.write(name + chr(10))
        if name.startswith("hang"):
            time.sleep(1000)
        if name.startswith("crash"):
            os.kill(os.getpid(), signal.SIGSEGV)
        if name.startswith("slow"):
            time.sleep(0.5)
        if name.startswith("once") and not os.path.exists(str(source) + ".seen"):
            open(str(source) + ".seen", "w").close()
            os.kill(os.getpid(), signal.SIGKILL)
        if name.startswith("raise"):
            raise RuntimeError("a fault of ours")
        if name.startswith("hog"):
            held = [bytes(b"x" * (1 << 26)) for _ in range(200)]
        return diagnose(request)
    pipeline.diagnose_job = diagnose_job

class Finder(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path, target=None):
        if name != "diagnose.pipeline":
            return None
        spec = importlib.machinery.PathFinder.find_spec(name, path)
        run = spec.loader.exec_module
        def exec_module(module):
            run(module)
            spoil(module)
        spec.loader.exec_module = exec_module
        return spec

sys.meta_path.insert(0, Finder())
"""


@pytest.fixture
def mischief(tmp_path: Path) -> dict[str, str]:
    """Give the environment in which jobs misbehave."""
    folder = tmp_path / "mischief"
    folder.mkdir()
    (folder / "sitecustomize.py").write_text(MISCHIEF)
    return {"first": str(folder), "MISCHIEF_LOG": str(tmp_path / "log")}


def done_in(mischief: dict[str, str]) -> list[str]:
    """Name the jobs whose diagnosis began, as often as it did."""
    path = Path(mischief["MISCHIEF_LOG"])
    return sorted(path.read_text().split()) if path.exists() else []


def rename(folder: Path, number: int, name: str) -> None:
    """Give a job a name that means something."""
    (folder / f"job-{number:04}.parquet").rename(folder / f"{name}.parquet")


def test_what_misbehaves_becomes_a_row(mischief, make_folder, tmp_path: Path) -> None:
    """A job that hangs, crashes, raises or eats memory fails alone, with its reason; one that crashed by chance is done."""
    folder = make_folder(tmp_path / "jobs", 9)
    for number, name in enumerate(("hang", "crash", "raise", "hog", "once")):
        rename(folder, number, name)
    url = f"sqlite:///{tmp_path}/a.db"
    options = (str(folder), "--store", url, "--timeout", "15", "--memory", "1G", "--workers", "2")
    found = triage(*options, rc=5, **mischief)
    kinds = {Path(failed["location"]).stem: failed["failure"] for failed in found["failed"]}
    assert kinds == {"hang": "timeout", "crash": "crash", "raise": "internal", "hog": "memory"}
    reasons = {Path(failed["location"]).stem: failed["reason"] for failed in found["failed"]}
    assert reasons["hang"] == "not done after 15 s; raise --timeout"
    assert reasons["raise"] == "internal error: RuntimeError: a fault of ours"
    assert reasons["hog"].endswith("raise --memory")
    assert found["n_diagnosed"] == 5
    first = dump(url)
    before = len(done_in(mischief))
    found = triage(*options, **mischief)
    assert (found["n_known"], found["n_known_failed"]) == (9, 4)
    assert len(done_in(mischief)) == before and dump(url) == first


def test_a_tiny_file_of_a_huge_job(make_folder, tmp_path: Path) -> None:
    """A few kilobytes that claim forty million operations are not let loose beside others, and then given up."""
    folder = make_folder(tmp_path / "jobs", 2)
    n_rows = 40_000_000
    columns = {name: pa.array(np.zeros(n_rows, np.int64)) for name in ("step", "dp_rank", "stage")}
    columns |= {name: pa.array(np.ones(n_rows)) for name in ("start_ts", "duration")}
    columns["optype"] = pa.DictionaryArray.from_arrays(pa.array(np.zeros(n_rows, np.int8)), ["forward-compute"])
    parquet.write_table(pa.table(columns), folder / "huge.parquet", row_group_size=n_rows)
    assert (folder / "huge.parquet").stat().st_size < 2_000_000
    url = f"sqlite:///{tmp_path}/a.db"
    found = triage(str(folder), "--store", url, "--memory", "512M", "--workers", "2", "--timeout", "60", rc=5)
    assert [failed["failure"] for failed in found["failed"]] == ["memory"] and found["n_diagnosed"] == 2


@pytest.fixture
def full_disk(tmp_path: Path) -> Iterator[Path]:
    """Give a folder on a disk that is full after some of 200 jobs, which write for a second at a time; or skip the test."""
    with mount_small_disk(tmp_path / "disk", "1800k") as folder:
        yield folder


def test_a_full_disk(full_disk: Path, make_folder, tmp_path: Path) -> None:
    """One line and exit code 74; what was written is whole, and with room the next triage goes on from there at once.

    Giving claims back takes room, too, so that some may stay: they are those of a dead process, and hold up nobody.
    """
    folder = make_folder(tmp_path / "jobs", 200)
    url = f"sqlite:///{full_disk}/a.db"
    options = (str(folder), "--store", url, "--workers", "2")
    process = start("triage", *options)
    out, err = process.communicate(timeout=120)
    assert process.returncode == 74 and out == ""
    assert "is full; make room and start again" in err and err.count("\n") == 1
    with contextlib.closing(sqlite3.connect(full_disk / "a.db")) as database:
        assert database.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
    with contextlib.closing(sqlite3.connect(full_disk / "a.db")) as database:
        nights = dict(database.execute("SELECT night, process FROM nights"))
        claimed_by = {night for (night,) in database.execute("SELECT night FROM claims")}
    assert claimed_by <= nights.keys() and not any(is_alive(process) for process in nights.values())
    n_done = count_done(url)
    assert 0 < n_done < 200
    subprocess.run(["mount", "-o", "remount,size=20m", str(full_disk)], check=True)
    found = triage(*options)
    assert (found["n_known"], found["n_diagnosed"]) == (n_done, 200 - n_done)
    triage(str(folder), "--store", f"sqlite:///{tmp_path}/other.db", "--workers", "2")
    assert dump(url) == dump(f"sqlite:///{tmp_path}/other.db")


def count_done(url: str) -> int:
    """Count the jobs that a store has, which may not be there yet."""
    engine = sa.create_engine(read_url(url), poolclass=sa.NullPool)
    try:
        with engine.connect() as connection:
            return connection.execute(sa.text("SELECT count(*) FROM jobs")).scalar_one()
    except sa.exc.DBAPIError:
        return 0
    finally:
        engine.dispose()


def kill_once(rng: random.Random, url: str, wanted: float, mischief: dict[str, str], *args: str) -> tuple[str, bool]:
    """Start a triage and end it, one time in four as it starts, else among its jobs once so many are in the store.

    Gives how it was ended, K for kill -9, G for kill -9 of its workers too, T for SIGTERM, and whether it was still at work.
    """
    sign, letter = rng.choice([(signal.SIGKILL, "K"), (signal.SIGKILL, "G"), (signal.SIGTERM, "T")])
    process = start("triage", *args, "--store", url, **mischief)
    before = len(done_in(mischief))
    if rng.random() < 0.25:
        time.sleep(rng.uniform(0.0, 2.0))
    else:
        wait_for(lambda: len(done_in(mischief)) > before or process.poll() is not None)
        wait_for(lambda: count_done(url) >= wanted or process.poll() is not None)
        time.sleep(rng.uniform(0.0, 0.7))
    is_working = process.poll() is None
    workers = children(process.pid) if letter == "G" else []
    process.send_signal(sign)
    for worker in workers:
        with contextlib.suppress(ProcessLookupError):
            os.kill(worker, sign)
    _, err = process.communicate(timeout=60)
    expected = (
        {-sign, 143} if sign == signal.SIGTERM else {-sign}
    )  # one that has not come to its handlers yet just ends
    assert not is_working or process.returncode in expected | {0}, err
    assert "Traceback" not in err or process.returncode == -sign
    return letter, is_working


@pytest.mark.parametrize(("n_jobs", "n_kills"), [(24, 6), pytest.param(300, 200, marks=pytest.mark.benchmark)])
def test_killed_and_started_again(
    store_url: str, mischief, make_folder, tmp_path: Path, n_jobs: int, n_kills: int
) -> None:
    """After kills all over the night, kill -9 or SIGTERM, the store is that of an undisturbed night."""
    folder, other = make_folder(tmp_path / "jobs", n_jobs), f"sqlite:///{tmp_path}/other.db"
    rng = random.Random(n_kills)
    names = sorted(path.name for path in folder.iterdir())
    for name in names:
        (folder / name).rename(folder / f"slow-{name}")  # so that a night is long enough for all kills
    options = (str(folder), "--workers", "2", "--quiet")
    kills, tenths = [], [0] * 10
    for i in range(n_kills):
        wanted = len(names) * (i + rng.random()) / (n_kills + 1)
        letter, is_working = kill_once(rng, store_url, wanted, mischief, *options)
        done = count_done(store_url) / len(names)
        kills.append(f"{letter}{done:.0%}" if is_working else f"({letter}{done:.0%})")
        tenths[min(9, int(10 * done))] += is_working
    left = triage(*options, "--store", store_url)["n_diagnosed"]
    n_begun = len(done_in(mischief))
    print(f"\n{sum(tenths)} of {n_kills} kills hit a triage at work; at a progress of {' '.join(kills)}")
    print(f"kills in each tenth of the night: {tenths}; {left} of {len(names)} jobs were left for the last triage")
    print(f"{n_begun} diagnoses were begun for {len(names)} jobs")
    assert sum(tenths) > 0.8 * n_kills and left < len(names) / 2
    assert all(sum(tenths[first : first + 5]) for first in (0, 5))
    triage(*options, "--store", other)
    assert dump(store_url) == dump(other)


def test_a_process_that_keeps_memory_is_replaced(make_folder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Small jobs share a process, because a start costs more than they do; one that has kept too much memory ends."""
    job = list_jobs([str(make_folder(tmp_path / "jobs", 1))])[0]
    task = Task(job, Judge("v", "r", None, 1.02))
    place = pools.ProcessPool(1)

    def do() -> pools._Process:
        wait_for(place.has_room)
        future = place.submit(task)
        assert future.result(timeout=60).row.status == "diagnosed"
        process = place._busy[future]
        place.end(future, kill=False)
        return process

    with contextlib.closing(place):
        first = do()
        assert do() is first
        monkeypatch.setattr(pools, "KEPT_BYTES", -(1 << 40))
        assert do() is first
        assert do() is not first
        wait_for(lambda: not any(process.is_alive() for process in first._processes))


def test_a_killed_triage_does_not_block_and_leaves_no_process(mischief, make_folder, tmp_path: Path) -> None:
    """The jobs it had claimed are free at once, and its workers end with it."""
    folder = make_folder(tmp_path / "jobs", 2)
    rename(folder, 0, "hang")
    url = f"sqlite:///{tmp_path}/a.db"
    process = start("triage", str(folder), "--store", url, "--workers", "1", **mischief)
    wait_for(lambda: "hang.parquet" in done_in(mischief))
    group = children(process.pid)
    assert group
    process.kill()
    process.communicate()
    wait_for(lambda: not any(is_running(pid) for pid in group))
    (folder / "hang.parquet").rename(folder / "job-0000.parquet")
    found = triage(str(folder), "--store", url)
    assert found["n_elsewhere"] == 0 and found["n_left"] == 0 and found["n_failed"] == 0


@pytest.mark.parametrize(("sign", "rc"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_stopped_in_order(sign: int, rc: int, mischief, make_folder, tmp_path: Path) -> None:
    """Asked to stop, it stops within moments, and gives its claims back."""
    folder = make_folder(tmp_path / "jobs", 3)
    rename(folder, 0, "hang")
    url = f"sqlite:///{tmp_path}/a.db"
    process = start("triage", str(folder), "--store", url, "--workers", "1", **mischief)
    wait_for(lambda: "hang.parquet" in done_in(mischief))
    process.send_signal(sign)
    out, err = process.communicate(timeout=30)
    assert process.returncode == rc and out == "", err
    assert "Traceback" not in err
    dump(url)  # nothing is claimed


@pytest.mark.parametrize(("n_triages", "n_jobs"), [(3, 24), pytest.param(4, 500, marks=pytest.mark.benchmark)])
def test_many_at_once(store_url: str, mischief, make_folder, tmp_path: Path, n_triages: int, n_jobs: int) -> None:
    """Triages share the jobs of one store: each is diagnosed exactly once."""
    folder = make_folder(tmp_path / "jobs", n_jobs)
    options = ("triage", str(folder), "--store", store_url, "--workers", "1", "--format", "json")
    processes = [start(*options, **mischief) for _ in range(n_triages)]
    nights = []
    for process in processes:
        out, err = process.communicate(timeout=600)
        assert process.returncode == 0, err
        nights.append(json.loads(out))
    assert sum(night["n_diagnosed"] for night in nights) == n_jobs
    assert len(done_in(mischief)) == len(set(done_in(mischief))) == n_jobs
    assert len(dump(store_url)["jobs"]) == n_jobs


def test_the_same_whatever_the_number_of_workers(make_folder, tmp_path: Path) -> None:
    """One worker or three, in any order: the same rows, byte for byte."""
    folder = make_folder(tmp_path / "jobs", 9)
    for n in (1, 3):
        triage(str(folder), "--store", f"sqlite:///{tmp_path}/{n}.db", "--workers", str(n))
    assert dump(f"sqlite:///{tmp_path}/1.db") == dump(f"sqlite:///{tmp_path}/3.db")


@pytest.mark.benchmark
def test_100_broken_files_among_300(make_folder, store_url: str, tmp_path: Path) -> None:
    """300 diagnoses, 100 rows with reasons, exit code 5; the store's part of the time is small."""
    folder = make_folder(tmp_path / "jobs", 300)
    good = (folder / "job-0000.parquet").read_bytes()
    rng = random.Random(1)
    for i in range(100):
        path = folder / f"broken-{i:03}.parquet"
        match i % 5:
            case 0:
                path.write_bytes(b"")
            case 1:
                path.write_bytes(good[: rng.randrange(1, len(good))])
            case 2:
                path.write_bytes(rng.randbytes(5000))
            case 3:
                with path.open("wb") as file:
                    file.truncate(200 << 20)
            case 4:
                path.symlink_to("/nowhere")
    found = triage(str(folder), "--store", store_url, "--workers", "2", rc=5)
    assert (found["n_diagnosed"], found["n_failed"]) == (300, 100)
    rows = dump(store_url)["jobs"]
    assert sum(row["status"] == "failed" and bool(row["reason"]) for row in rows) == 100
    print(f"\n{400 / found['took_s']:.1f} jobs a second, store {found['store_s'] / found['took_s']:.2%}")


@pytest.fixture
def cluster(mischief) -> Iterator[tuple[str, list[subprocess.Popen[str]]]]:
    """Start a Dask scheduler and two workers as processes on this machine."""
    pytest.importorskip("distributed")
    env = environment(**mischief)
    port = 0
    processes: list[subprocess.Popen[str]] = []

    def run(*args: str) -> subprocess.Popen[str]:
        process = subprocess.Popen(
            [sys.executable, "-m", "distributed.cli." + args[0], *args[1:]],
            env=env,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        processes.append(process)
        return process

    try:
        scheduler = run("dask_scheduler", "--host", "127.0.0.1", "--port", str(port), "--no-dashboard")
        address = ""
        for line in scheduler.stdout:
            if "Scheduler at:" in line:
                address = line.split()[-1]
                break
        assert address.startswith("tcp://")
        workers = [
            run("dask_worker", address, "--nthreads", "1", "--no-dashboard", "--no-nanny", "--host", "127.0.0.1")
            for _ in range(2)
        ]
        from distributed import Client

        with Client(address, timeout=30, set_as_default=False) as client:
            client.wait_for_workers(2, timeout=60)
        yield address, workers
    finally:
        for process in processes:
            process.kill()
            process.communicate()


def test_dask(cluster, mischief, make_folder, tmp_path: Path) -> None:
    """On a cluster: the same rows as here, byte for byte; a worker killed in the middle loses nothing."""
    address, workers = cluster
    folder = make_folder(tmp_path / "jobs", 16)
    for number in range(8):
        rename(folder, number, f"slow-{number}")
    (folder / "bad.parquet").write_bytes(b"no trace")
    here, there = f"sqlite:///{tmp_path}/here.db", f"sqlite:///{tmp_path}/there.db"
    triage(str(folder), "--store", here, "--workers", "2", rc=5)
    process = start("triage", str(folder), "--store", there, "--dask", address, "--format", "json")
    wait_for(lambda: len(done_in(mischief)) >= 3)
    workers[0].kill()
    out, err = process.communicate(timeout=120)
    assert process.returncode == 5, err
    found = json.loads(out)
    assert (found["n_diagnosed"], found["n_failed"]) == (16, 1)
    assert dump(there) == dump(here)


@pytest.mark.parametrize(("address", "rc"), [("nonsense://x", 2), ("tcp://127.0.0.1:9", 74)])
def test_no_dask_there(address: str, rc: int, make_folder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A cluster that does not answer is one line."""
    pytest.importorskip("distributed")
    monkeypatch.setattr(pools, "CONNECT_S", 1.0)
    with pytest.raises(DiagnoseError, match=address.rpartition("/")[2]) as error:
        pools.DaskPool(address, lambda: None, None)
    assert error.value.exit_code == rc and "\n" not in str(error.value)


def wait_for(is_so: Callable[[], bool], seconds: float = 60.0) -> None:
    """Wait until something is so."""
    until = time.monotonic() + seconds
    while not is_so():
        assert time.monotonic() < until, "it never came to be"
        time.sleep(0.05)


def children(pid: int) -> list[int]:
    """Name all processes below one."""
    listed = subprocess.run(["ps", "-eo", "pid=,ppid="], capture_output=True, text=True, check=True).stdout.split()
    parents = dict(zip(map(int, listed[::2]), map(int, listed[1::2]), strict=True))
    found = [pid]
    for _ in parents:
        found += [child for child, parent in parents.items() if parent in found and child not in found]
    return found[1:]


def is_running(pid: int) -> bool:
    """Say whether a process is there, and no zombie."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False
