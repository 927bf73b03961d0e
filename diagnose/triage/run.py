"""A triage run: every job that is new or changed is diagnosed once, and its row written.

Enters: jobs, a store, and a pool of workers. Leaves: rows in the store, and what came of it as a `TriageRun`.
"""

import concurrent.futures
import contextlib
import dataclasses
import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_COMPLETED, BrokenExecutor, CancelledError

from diagnose.errors import ServiceError, asked_to_end
from diagnose.model.triage_run import Failed, Progress, TriageRun
from diagnose.triage.pools import OutcomeFuture, WorkerPool
from diagnose.triage.settings import RunSettings
from diagnose.triage.source import FoundJob
from diagnose.triage.store import FinishedJob, KnownJob, Store
from diagnose.triage.tally import Tally
from diagnose.triage.worker import Failure, Outcome, Task, describe_memory_limit, failed, give_up

#: Memory that a job takes for each byte of its file: 150 bytes an operation, of which 5 to 11 are in the file.
BYTES_PER_BYTE = 20
#: Seconds between two looks at what runs: a time limit may be passed by so much.
POLL_S = 0.2
#: Seconds for which results wait for others to be written with, and for which small jobs are claimed ahead: however small
#: the jobs are, the store is asked a few times a second, and not a hundred times.
BATCH_S = 1.0
#: Jobs claimed ahead for each place at most, and seconds after which what was claimed and is not begun is given back.
MAX_AHEAD = 8
CLAIM_AHEAD_S = 2.0
#: Weight of the last job in the running mean of what a job takes: about the last ten count.
LAST_WEIGHT = 0.2


@dataclasses.dataclass(slots=True)
class _QueuedJob:
    """One job on its way: the memory it may take (alone: all), when it is given up, what was known of it."""

    job: FoundJob
    weight_bytes: int
    is_alone: bool = False
    deadline_s: float = 0.0
    task: Task | None = None
    known: KnownJob | None = None


def run_triage(
    jobs: Sequence[FoundJob],
    store: Store,
    open_pool: Callable[[int], WorkerPool],
    settings: RunSettings,
    *,
    watch: Callable[[Progress], None] | None = None,
) -> TriageRun:
    """Diagnose all jobs that are new or changed.

    Parameters
    ----------
    open_pool : callable
        Takes the number of jobs to do, gives the workers for them; they are closed at the end.
    watch : callable, optional
        Called with how far it has come, a few times a second.

    Raises
    ------
    ServiceError
        The store or the cluster does not answer any longer. What was done until then is kept.
    """
    began_s = time.perf_counter()
    store.enter()
    runner = _Runner(store, settings, watch or _ignore)
    try:
        todo = runner.plan(jobs)
        if todo:
            with contextlib.closing(open_pool(len(todo))) as pool:
                runner.work(todo, pool)
        store.record_end()
    except BaseException:  # it ends here, also where it was asked to: what is done already is kept
        with contextlib.suppress(ServiceError):
            runner.save()
        raise
    finally:
        store.leave()
    return runner.tally.sum_up(
        len(jobs), store=store.name, took_s=time.perf_counter() - began_s, store_s=store.waited_s
    )


def plan_triage(jobs: Sequence[FoundJob], store: Store | None, settings: RunSettings) -> TriageRun:
    """Say what `run_triage` would do, and do nothing; a store that is not there knows nothing."""
    runner = _Runner(store, settings, _ignore)
    todo = runner.plan(jobs)
    wanted = tuple(sorted(work.job.location for work in todo))
    found = runner.tally.sum_up(len(jobs), store=store.name if store else "", took_s=0.0, store_s=0.0)
    return dataclasses.replace(found, wanted=wanted)


class _Runner:
    """The work of one triage run."""

    def __init__(self, store: Store | None, settings: RunSettings, watch: Callable[[Progress], None]) -> None:
        self._store = store
        self._settings = settings
        self._watch = watch
        self._began_at = store.now_s() if store else 0.0
        self.tally = Tally()
        self._n_jobs = 0
        self._ready: deque[_QueuedJob] = deque()  # claimed, not begun
        self._ready_s = 0.0
        self._running: dict[OutcomeFuture, _QueuedJob] = {}
        self._unwritten: list[tuple[_QueuedJob, Outcome]] = []
        self._unwritten_s = 0.0
        self._job_s: float | None = None  # what a job took of late
        self._retries: deque[_QueuedJob] = deque()
        self._taken_elsewhere: list[_QueuedJob] = []
        self._work_began_s = 0.0

    def plan(self, jobs: Sequence[FoundJob]) -> list[_QueuedJob]:
        """Choose the jobs that are new or changed, as far as can be told without reading them; the largest first."""
        since_s = self._settings.since_s
        for refused in (job for job in jobs if job.refused):
            self.tally.failed.append(Failed(refused.location, Failure.UNREADABLE.value, refused.refused))
        jobs = [job for job in jobs if not job.refused]
        young = [job for job in jobs if since_s is None or job.modified_s is None or job.modified_s >= since_s]
        self.tally.n_older = len(jobs) - len(young)
        known = self._store.known([job.location for job in young]) if self._store else {}
        todo = []
        for job in young:
            if self._settings.is_unchanged(job, known.get(job.location)):
                self.tally.count_known(known.get(job.location), by_time=True)
            else:
                todo.append(job)
        if self._settings.limit is not None:
            todo = sorted(todo, key=lambda job: (-(job.modified_s or 0.0), job.location))[: self._settings.limit]
        todo.sort(key=lambda job: (-job.size_bytes, job.location))
        return [_QueuedJob(job, job.size_bytes * BYTES_PER_BYTE) for job in todo]

    def work(self, todo: list[_QueuedJob], pool: WorkerPool) -> None:
        """Do all jobs; then those that were tried in vain, each alone; then those that other triages have given up."""
        self._n_jobs, self._work_began_s = len(todo), time.perf_counter()
        self._do(todo, pool)
        self._do_retries(pool)
        elsewhere, self._taken_elsewhere = self._taken_elsewhere, []
        if elsewhere:
            assert self._store is not None
            self._store.expire_leases()
            self._do(elsewhere, pool)
            self._do_retries(pool)
        self.tally.n_elsewhere += len(self._taken_elsewhere)
        self._show_progress()

    # ---- Doing jobs ----

    def _do(self, todo: list[_QueuedJob], pool: WorkerPool) -> None:
        """Do jobs, as many at a time as there are workers and memory."""
        waiting = deque(todo)
        while waiting or self._ready or self._running:
            while (waiting or self._ready) and pool.has_room():
                work = self._next(waiting, pool)
                if work is None:
                    break
                self._begin(work, pool)
            if self._ready and time.monotonic() - self._ready_s > CLAIM_AHEAD_S:
                self._give_back(waiting)
            self._poll(pool)
        self.save()

    def _do_retries(self, pool: WorkerPool) -> None:
        """Do jobs again that failed beside others, each alone."""
        while self._retries:
            work = self._retries.popleft()
            work.is_alone = True
            self._do([work], pool)

    def _next(self, waiting: deque[_QueuedJob], pool: WorkerPool) -> _QueuedJob | None:
        """Take the first job that is claimed and fits; where none is, claim some."""
        while True:
            i = self._first_that_fits(self._ready, pool)
            if i is not None:
                work = self._ready[i]
                del self._ready[i]
                return work
            i = self._first_that_fits(waiting, pool)
            if i is None:
                return None
            self._claim(waiting, i, pool)

    def _first_that_fits(self, queue: deque[_QueuedJob], pool: WorkerPool) -> int | None:
        """Find the first job for which there is memory beside those that run."""
        share = self._settings.memory_bytes // pool.n_workers
        free = self._settings.memory_bytes - sum(work.weight_bytes for work in self._running.values())
        for i, work in enumerate(queue):
            wanted = self._settings.memory_bytes if work.is_alone else max(share, work.weight_bytes)
            weight = min(wanted, self._settings.memory_bytes)
            if weight <= free or not self._running:
                work.weight_bytes = weight
                return i
            if free < share:
                return None
        return None

    def _claim(self, waiting: deque[_QueuedJob], i: int, pool: WorkerPool) -> None:
        """Claim a job, and those behind it that will begin in a moment; leave those that another triage has or has done."""
        assert self._store is not None
        ahead = 0 if not self._job_s else min(MAX_AHEAD, int(BATCH_S / self._job_s)) * pool.n_workers
        waiting.rotate(-i)
        chosen = [waiting.popleft() for _ in range(min(1 + ahead, len(waiting) - i))]
        waiting.rotate(i)
        mine = self._store.claim([work.job.location for work in chosen])
        if not self._ready:
            self._ready_s = time.monotonic()
        done = []
        for work in chosen:
            location = work.job.location
            if location not in mine:
                self._taken_elsewhere.append(work)
                continue
            work.known = mine[location]
            if self._settings.is_done_since(self._began_at, work.known) or self._settings.is_unchanged(
                work.job, work.known
            ):
                done.append(location)
            else:
                self._ready.append(work)
        if done:
            self._store.release(done)
            self.tally.n_elsewhere += len(done)
            self.tally.n_done += len(done)

    def _give_back(self, waiting: deque[_QueuedJob]) -> None:
        """Let others have what was claimed too early, because jobs take longer than those before them."""
        assert self._store is not None
        self._store.release([work.job.location for work in self._ready])
        waiting.extendleft(reversed(self._ready))
        self._ready.clear()

    def _begin(self, work: _QueuedJob, pool: WorkerPool) -> None:
        """Begin a job that is claimed."""
        known = work.known
        content = known.content if known is not None and self._settings.is_current(known) else None
        memory = work.weight_bytes if pool.limits_memory else None
        is_last = work.is_alone or work.weight_bytes >= self._settings.memory_bytes
        work.task = Task(work.job, self._settings.judge, self._settings.rules, content, memory, is_last)
        work.deadline_s = time.monotonic() + self._settings.timeout_s
        self._running[pool.submit(work.task)] = work

    def _poll(self, pool: WorkerPool) -> None:
        """Wait a moment, and deal with what has ended, hangs, or takes too much memory."""
        if self._unwritten and time.monotonic() - self._unwritten_s > BATCH_S:
            self.save()
        if not self._running:
            time.sleep(POLL_S / 4)  # a process is starting
            return
        done, _ = concurrent.futures.wait(self._running, timeout=POLL_S, return_when=FIRST_COMPLETED)
        for future in done:
            self._end(future, pool)
        for future in [future for future in self._running if not future.done()]:
            work = self._running[future]
            assert work.task is not None
            grown = pool.memory_of(future)
            if time.monotonic() > work.deadline_s:
                reason = f"not done after {self._settings.timeout_s:g} s; raise --timeout"
                outcome = give_up(work.task, Failure.TIMEOUT, reason, limit=self._settings.timeout_s)
                self._give_up(future, pool, outcome)
            elif grown is not None and grown > work.weight_bytes:
                self._give_up(future, pool, _too_large(work, self._settings))
        self._show_progress()

    def _end(self, future: OutcomeFuture, pool: WorkerPool) -> None:
        """Take the outcome of a job."""
        work = self._running[future]
        assert work.task is not None
        is_dead = False
        try:
            outcome = future.result()
        except CancelledError:
            raise ServiceError("the workers are gone; the next triage goes on from here") from None
        except BrokenExecutor:
            is_dead = True
            outcome = give_up(work.task, Failure.CRASH, "the process that diagnosed it died, twice")
        except Exception as error:
            if asked_to_end(error):
                raise
            said = type(error).__name__
            is_dead = said == "KilledWorker"
            if is_dead:
                outcome = give_up(work.task, Failure.CRASH, "the workers that diagnosed it died")
            else:
                outcome = failed(work.task, Failure.INTERNAL, f"internal error: {said}: {error}")
        kill = is_dead or outcome.needs_bytes is not None or _failure(outcome) == Failure.MEMORY
        if kill:
            self._give_up(future, pool, outcome)
            return
        del self._running[future]
        pool.end(future, kill=False)
        self._keep_outcome(work, outcome)

    def _give_up(self, future: OutcomeFuture, pool: WorkerPool, outcome: Outcome) -> None:
        """End what cannot go on; a job that took too much or died beside others gets another try, alone."""
        work = self._running.pop(future)
        pool.end(future, kill=outcome.needs_bytes is None)
        store = self._store
        assert store is not None
        if outcome.needs_bytes is not None or (
            not work.is_alone and pool.limits_memory and _failure(outcome) in {Failure.MEMORY, Failure.CRASH}
        ):
            store.release([work.job.location])
            self._retries.append(work)
            return
        self._keep_outcome(work, outcome)

    def _keep_outcome(self, work: _QueuedJob, outcome: Outcome) -> None:
        """Keep how a job went until it is written, with others."""
        if not self._unwritten:
            self._unwritten_s = time.monotonic()
        self._unwritten.append((work, outcome))
        recent_s = self._job_s if self._job_s is not None else outcome.took_s
        self._job_s = recent_s + LAST_WEIGHT * (outcome.took_s - recent_s)

    def save(self) -> None:
        """Write how jobs went that are done."""
        if not self._unwritten:
            return
        assert self._store is not None
        is_mine = self._store.finish(
            [FinishedJob(work.job.location, outcome, is_new=work.known is None) for work, outcome in self._unwritten]
        )
        done, self._unwritten = self._unwritten, []
        self.tally.n_done += len(done)
        for (work, outcome), is_so in zip(done, is_mine, strict=True):
            if not is_so:
                self.tally.n_elsewhere += 1
            elif outcome.row is None:
                self.tally.count_known(work.known, by_time=False)
            else:
                self.tally.add(outcome.row, outcome.causes)

    def _show_progress(self) -> None:
        """Say how far it has come."""
        took_s = time.perf_counter() - self._work_began_s
        tally = self.tally
        self._watch(Progress(self._n_jobs, tally.n_done, len(tally.failed), len(self._running), took_s))


def _failure(outcome: Outcome) -> str | None:
    """Say of which kind the failure of an outcome is."""
    return None if outcome.row is None else outcome.row.failure


def _too_large(work: _QueuedJob, settings: RunSettings) -> Outcome:
    """Make the outcome of a job that takes too much memory."""
    assert work.task is not None
    limit = min(work.weight_bytes, settings.memory_bytes)
    return give_up(work.task, Failure.MEMORY, describe_memory_limit(limit), limit=limit)


def _ignore(_headway: Progress) -> None:
    """Nobody watches."""
