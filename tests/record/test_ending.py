"""Jobs that end in other ways than at their end: signals, kills, full disks, errors. What was recorded is there."""

import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pyarrow.parquet as pq
import pytest

torch = pytest.importorskip("torch", reason="torch is not installed: nothing can be recorded")

from diagnose.record import Recorder, writer_thread  # noqa: E402 - only where there is torch
from diagnose.record.cost import Cost  # noqa: E402
from diagnose.record.ending import Ending  # noqa: E402
from diagnose.record.sampling import Sampling  # noqa: E402
from diagnose.trace.load import load_trace  # noqa: E402
from tests.ports import free_port  # noqa: E402

JOB = Path(__file__).resolve().parents[1] / "torch_jobs" / "ends.py"
PATIENCE_S = 120


def start(folder, *options, rank=None, port=0):
    """Start the job, and wait until its steps are done."""
    environment = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(sys.path)}
    if rank is not None:
        environment |= {"RANK": str(rank), "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    command = [sys.executable, str(JOB), str(folder), *options]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment)


def wait_until_ready(job):
    """Wait for the job's word."""
    assert job.stdout.readline() == "ready\n", job.stderr.read()


def steps_of(folder, rank=0):
    """List the steps that a rank recorded."""
    (file,) = folder.glob(f"start-*/rank-{rank:05}.parquet")
    return set(pq.read_table(file)["step"].to_pylist())


def files_in(folder):
    """Name the files of a folder, those of the start of a job too, whatever its time."""
    return sorted(path.name for path in folder.rglob("*") if path.is_file())


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_a_scheduler_ends_the_job(tmp_path, number):
    """A job that is told to end has its file, and ends as the signal ends a process."""
    job = start(tmp_path, "--then", "wait")
    wait_until_ready(job)
    job.send_signal(number)
    _, said = job.communicate(timeout=PATIENCE_S)
    assert (job.returncode, said) == (-number, "")
    assert steps_of(tmp_path) == set(range(20))


def test_told_to_end_in_a_collective(tmp_path):
    """A rank that waits in C++ for one that never comes has its file, and ends at once all the same."""
    port = free_port()
    jobs = [start(tmp_path, "--then", "collective", rank=rank, port=port) for rank in (0, 1)]
    try:
        for job in jobs:
            wait_until_ready(job)
        jobs[0].send_signal(signal.SIGTERM)
        assert jobs[0].wait(timeout=PATIENCE_S) == -signal.SIGTERM
        assert steps_of(tmp_path) >= set(range(19))  # the last step waits for the next to begin
    finally:
        for job in jobs:
            job.kill()
            job.communicate()


def test_the_jobs_own_handler(tmp_path):
    """A handler that the job has is called as before, and the job ends as the handler says."""
    job = start(tmp_path, "--then", "wait", "--handler")
    wait_until_ready(job)
    job.send_signal(signal.SIGTERM)
    said, _ = job.communicate(timeout=PATIENCE_S)
    assert (job.returncode, said) == (7, "saved\n") and steps_of(tmp_path) == set(range(20))


def test_control_c(tmp_path):
    """Ctrl-C raises what it raises without a recorder, and the file is there."""
    job = start(tmp_path, "--then", "wait")
    wait_until_ready(job)
    job.send_signal(signal.SIGINT)
    _, said = job.communicate(timeout=PATIENCE_S)
    assert said.rstrip().endswith("KeyboardInterrupt") and steps_of(tmp_path) == set(range(20))


@pytest.mark.parametrize("kill", [True, False], ids=["SIGKILL", "os._exit"])
def test_killed(tmp_path, kill):
    """Of a job that is killed, or that leaves without a word, all is there that was written before."""
    job = start(tmp_path, "--write-every-s", "0.5", "--then", "wait" if kill else "exit-at-once")
    wait_until_ready(job)
    while not list(tmp_path.rglob("rank-*")) and job.poll() is None:
        threading.Event().wait(0.1)
    if kill:
        job.kill()
    job.communicate(timeout=PATIENCE_S)
    assert job.returncode == (-signal.SIGKILL if kill else 3)
    assert len(steps_of(tmp_path)) >= 1 and files_in(tmp_path) == ["rank-00000.parquet"]


def test_killed_while_it_trains(tmp_path):
    """As often as the file is written by default, a job that is killed loses no more than it did since then."""
    job = start(tmp_path, "--then", "train")
    wait_until_ready(job)
    threading.Event().wait(1.3 * writer_thread.WRITE_EVERY_S)
    killed_s = time.time()
    job.kill()
    job.communicate(timeout=PATIENCE_S)
    (file,) = tmp_path.rglob("rank-*")
    rows = pq.read_table(file).to_pandas()
    assert set(rows.step) == set(range(rows.step.max() + 1))
    assert killed_s - rows.start_ts.max() < writer_thread.WRITE_EVERY_S


def test_a_full_disk(tmp_path):
    """A job whose file does not fit trains on to its end, with one warning, and leaves no half of a file."""
    job = start(tmp_path, "--file-limit", "2000")
    said, warned = job.communicate(timeout=PATIENCE_S)
    assert (job.returncode, said) == (0, "ready\n") and files_in(tmp_path) == []
    assert len(warned.splitlines()) == 1 and "could not write" in warned


def test_an_error_of_the_job(tmp_path):
    """A job that ends in an error ends in that error, and its file is there."""
    job = start(tmp_path, "--then", "raise")
    _, said = job.communicate(timeout=PATIENCE_S)
    assert job.returncode == 1 and said.rstrip().endswith("ZeroDivisionError")
    assert steps_of(tmp_path) == set(range(20))


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_workers_of_a_loader(tmp_path, method):
    """Workers that are forked or spawned write nothing; a job that ends them ends no recording."""
    job = start(tmp_path, "--workers", method)
    said, warned = job.communicate(timeout=PATIENCE_S)
    assert (job.returncode, said, warned) == (0, "ready\n", "")
    assert files_in(tmp_path) == ["rank-00000.parquet"] and steps_of(tmp_path) == set(range(20))


class KnownCost(Cost):
    """Says what recording costs, however long it takes on this machine."""

    def __init__(self, share):
        super().__init__()
        self.share = share

    def stop(self):
        """Give it."""
        return self.share


@pytest.mark.parametrize(("cost_share", "at_least"), [(0.04, 2_000), (0.08, 600)])
def test_a_hundred_thousand_steps(tmp_path, cost_share, at_least):
    """A long job of short steps ends as it would; what is kept of it stays small, and reaches from its beginning to its end."""
    weight = torch.ones(2, requires_grad=True)
    optimizer = torch.optim.SGD([weight], lr=0.1)
    weight.grad = torch.zeros(2)
    with Recorder(tmp_path) as recorder:
        recorder._steps.cost = KnownCost(cost_share)
        for _ in range(100_000):
            with recorder.step():
                optimizer.step()
    steps = steps_of(tmp_path)
    assert at_least < len(steps) < 12_000 and min(steps) < 100 and max(steps) > 99_000
    sampling = Sampling(0.1).cut(cost_share)
    assert steps == {step for step in range(100_000) if sampling.span(step)[0] is not None}


def test_ranks_with_uneven_steps(tmp_path):
    """A rank whose data end early has fewer steps than its peers; those that all have are read, and nothing is refused."""
    port = free_port()
    jobs = [start(tmp_path, "--steps", str(steps), rank=rank, port=port) for rank, steps in enumerate((24, 20))]
    assert [job.communicate(timeout=PATIENCE_S) and job.returncode for job in jobs] == [0, 0]
    assert set(range(20)) <= set(load_trace(tmp_path).steps.tolist())


def test_a_folder_that_cannot_be_written(tmp_path):
    """A job whose folder is taken away while it trains ends as it would, with one warning."""
    job = start(tmp_path / "trace", "--then", "wait")
    wait_until_ready(job)
    shutil.rmtree(tmp_path / "trace")
    (tmp_path / "trace").write_text("")
    job.send_signal(signal.SIGTERM)
    _, warned = job.communicate(timeout=PATIENCE_S)
    assert job.returncode == -signal.SIGTERM and len(warned.splitlines()) == 1 and "could not write" in warned


def test_handlers_are_put_back():
    """When nothing is recorded any more every handler is the one it was, but for what others put in place since."""
    numbers = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
    before, threads = [signal.getsignal(number) for number in numbers], threading.active_count()
    ending = Ending(pytest.fail)
    ending.listen()
    assert signal.getsignal(signal.SIGTERM) != before[0] and signal.getsignal(signal.SIGINT) == before[1]
    ending.stop()
    assert [signal.getsignal(number) for number in numbers] == before
    assert signal.set_wakeup_fd(-1) == -1
    for thread in threading.enumerate():
        if thread.name == "diagnose-signals":
            thread.join(PATIENCE_S)
    assert threading.active_count() == threads


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork")
@pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")
def test_a_signal_to_a_child(tmp_path):
    """A process that the job forked ends by a signal as it would, and the job hears nothing of it."""
    recorder = Recorder(tmp_path)
    heard = []
    recorder._ending._flush = heard.append
    child = os.fork()
    if not child:
        signal.pause()
    threading.Event().wait(0.3)
    os.kill(child, signal.SIGTERM)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGTERM
    threading.Event().wait(1.0)
    recorder.close()
    assert heard == []
