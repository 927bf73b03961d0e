"""Where jobs are done: processes on this machine, or a Dask cluster. Both give `concurrent.futures` futures.

Enters: tasks. Leaves: futures of outcomes. A process that hangs, dies or grows takes only its own job with it.
"""

import concurrent.futures
import contextlib
import multiprocessing
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from pathlib import Path
from typing import Any

from diagnose.errors import ServiceError, UsageError
from diagnose.triage.worker import Outcome, Task, do_job, prepare_process

#: A process makes room for a fresh one when it has kept so much memory from its jobs; where that cannot be known, after so many
#: jobs. A start costs as much as ten small jobs, or 3,000 that have not changed.
KEPT_BYTES = 256 << 20
JOBS_PER_PROCESS = 500
#: Seconds in which a process must have started.
START_S = 300.0
#: Processes that may die one after the other before they could begin.
MAX_FALSE_STARTS = 5
#: Seconds in which a Dask scheduler must answer, and kinds of addresses it may have.
CONNECT_S = 15.0
SCHEMES = frozenset({"", "tcp", "tls", "ucx", "ws", "wss"})

OutcomeFuture = Future[Outcome]


class ProcessPool:
    """Processes on this machine, each an executor of its own, so that one can be killed without the others."""

    limits_memory = True

    def __init__(self, n_workers: int) -> None:
        self.n_workers = n_workers
        self._idle: list[_Process] = []
        self._busy: dict[OutcomeFuture, _Process] = {}
        self._false_starts = 0

    def has_room(self) -> bool:
        """Say whether a process is ready for a task; starts those that are missing."""
        while len(self._idle) + len(self._busy) < self.n_workers:
            self._idle.append(_Process())
        for process in [process for process in self._idle if process.has_failed()]:
            self._idle.remove(process)
            process.kill()
            self._false_starts += 1
            if self._false_starts >= MAX_FALSE_STARTS:
                raise ServiceError("worker processes die as they start; is there enough memory?")
        return any(process.is_ready() for process in self._idle)

    def submit(self, task: Task) -> OutcomeFuture:
        """Begin a task in a process that is ready."""
        process = next(process for process in self._idle if process.is_ready())
        self._false_starts = 0
        self._idle.remove(process)
        future = process.submit(task)
        self._busy[future] = process
        return future

    def end(self, future: OutcomeFuture, *, kill: bool) -> None:
        """Free the process of a task, or kill it; a process that has done its share ends."""
        process = self._busy.pop(future)
        if kill:
            process.kill()
        elif process.has_kept_much():
            process.retire()
        else:
            self._idle.append(process)

    def memory_of(self, future: OutcomeFuture) -> int | None:
        """Say how much the process of a task has grown since it began."""
        return self._busy[future].grown_bytes()

    def close(self) -> None:
        """Kill all processes."""
        for process in [*self._idle, *self._busy.values()]:
            process.kill()
        self._idle.clear()
        self._busy.clear()


class _Process:
    """One process: an executor with a single worker."""

    def __init__(self) -> None:
        self.n_jobs = 0
        self._began_s = time.monotonic()
        self._fresh_bytes: int | None = None
        self._begin_bytes = 0
        before = set(multiprocessing.active_children())
        self._executor = ProcessPoolExecutor(
            1, mp_context=multiprocessing.get_context("spawn"), initializer=prepare_process
        )
        with _no_interrupts():
            self._ready = self._executor.submit(os.getpid)
        self._processes = set(multiprocessing.active_children()) - before

    def is_ready(self) -> bool:
        """Say whether it has started."""
        return self._ready.done() and self._ready.exception() is None

    def has_failed(self) -> bool:
        """Say whether it died before it could begin, or while nobody used it, or never will start."""
        if self._ready.done():
            return self._ready.exception() is not None or any(not p.is_alive() for p in self._processes)
        return time.monotonic() - self._began_s > START_S

    def submit(self, task: Task) -> OutcomeFuture:
        """Begin a task."""
        self.n_jobs += 1
        now = self._resident_bytes()
        self._begin_bytes = now or 0
        if self.n_jobs == 1:
            self._fresh_bytes = now
        try:
            return self._executor.submit(do_job, task)
        except concurrent.futures.BrokenExecutor as error:  # it died a moment ago
            future: OutcomeFuture = Future()
            future.set_exception(error)
            return future

    def grown_bytes(self) -> int | None:
        """Say how much more memory it has than when its task began."""
        now = self._resident_bytes()
        return None if now is None else now - self._begin_bytes

    def has_kept_much(self) -> bool:
        """Say whether it has, with no task, much more memory than when it was fresh."""
        now = self._resident_bytes()
        if now is None or self._fresh_bytes is None:
            return self.n_jobs >= JOBS_PER_PROCESS
        return now - self._fresh_bytes > KEPT_BYTES

    def retire(self) -> None:
        """End it in order."""
        self._executor.shutdown(wait=False)

    def kill(self) -> None:
        """End it at once."""
        for process in self._processes:
            with contextlib.suppress(ValueError, OSError):
                process.kill()
        self._executor.shutdown(wait=True, cancel_futures=True)

    def _resident_bytes(self) -> int | None:
        """Say how much memory it has."""
        for process in self._processes:
            with contextlib.suppress(OSError, ValueError, IndexError):
                pages = int(Path(f"/proc/{process.pid}/statm").read_text().split()[1])
                return pages * os.sysconf("SC_PAGE_SIZE")
        return None


class DaskPool:
    """A Dask cluster that is there already; what hangs there cannot be killed, and its place is not used again."""

    limits_memory = False

    def __init__(self, address: str, check: Callable[[], Any], expected: Any, *, at_most: int | None = None) -> None:
        self._client = _connect(address)
        self._check(check, expected, address)
        self._executor = self._client.get_executor()
        n_threads = sum(self._client.ncores().values())
        self.n_workers = n_threads if at_most is None else min(n_threads, at_most)
        self._busy: set[OutcomeFuture] = set()

    def _check(self, check: Callable[[], Any], expected: Any, address: str) -> None:
        """Make sure that all workers judge as we do."""
        try:
            said = self._client.run(check)
        except Exception as error:  # noqa: BLE001 - whatever went wrong there comes back
            self._client.close()
            reason = " ".join(f"{type(error).__name__}: {error}".split())[:200]
            raise UsageError(f"the Dask workers at {address} cannot run diagnose: {reason}") from None
        if not said:
            self._client.close()
            raise ServiceError(f"the Dask cluster at {address} has no workers")
        for worker, found in sorted(said.items()):
            if found != expected:
                self._client.close()
                raise UsageError(f"the Dask worker {worker} judges otherwise: it has {found}, here is {expected}")

    def has_room(self) -> bool:
        """Say whether fewer tasks run than the cluster has threads."""
        return bool(len(self._busy) < self.n_workers)

    def submit(self, task: Task) -> OutcomeFuture:
        """Begin a task on the cluster; Dask gives it to another worker when its worker dies."""
        future: OutcomeFuture = self._executor.submit(do_job, task)
        self._busy.add(future)
        return future

    def end(self, future: OutcomeFuture, *, kill: bool) -> None:
        """Forget a task; the thread of one that hangs is lost."""
        self._busy.discard(future)
        if kill and not future.done():
            future.cancel()
            self.n_workers = max(1, self.n_workers - 1)

    def memory_of(self, future: OutcomeFuture) -> int | None:  # noqa: ARG002 - the same as other places
        """Leave memory to Dask, which restarts a worker that takes too much."""
        return None

    def close(self) -> None:
        """Cancel what runs, and leave the cluster as it was."""
        for future in self._busy:
            future.cancel()
        self._executor.shutdown(wait=False)
        self._client.close()


#: Takes as many tasks as it has room for.
WorkerPool = ProcessPool | DaskPool


def _connect(address: str) -> Any:
    """Give a client of a Dask cluster."""
    try:
        import distributed
    except ImportError:
        raise UsageError("--dask needs distributed: pip install 'diagnose-training[dask]'") from None
    scheme, _, rest = address.rpartition("://")
    if scheme not in SCHEMES or not rest:
        raise UsageError(f"--dask: {address!r} is no address; expected one such as tcp://host:8786")
    found: list[Any] = []

    def connect() -> None:
        try:
            found.append(distributed.Client(address, timeout=CONNECT_S, set_as_default=False))
        except Exception as error:  # noqa: BLE001 - whatever it is goes into the message
            found.append(error)

    thread = threading.Thread(target=connect, daemon=True)  # some who answer are no scheduler, and it waits for ever
    thread.start()
    thread.join(2 * CONNECT_S)
    if found and not isinstance(found[0], Exception):
        return found[0]
    said = " ".join(str(found[0]).split())[:200] if found else "who answers is none"
    raise ServiceError(f"no Dask scheduler answers at {address}: {said}")


@contextlib.contextmanager
def _no_interrupts() -> Iterator[None]:
    """Start processes that Ctrl-C does not reach: this one ends them."""
    if not hasattr(signal, "pthread_sigmask"):
        yield
        return
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
