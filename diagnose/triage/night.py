"""A night: every job that is new or changed is diagnosed once, and its row written.

Enters: jobs, a store, and a place to work. Leaves: rows in the store, and what came of it as a `Night`.
"""

import concurrent.futures
import contextlib
import dataclasses
import time
from collections import Counter, deque
from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_COMPLETED, BrokenExecutor, CancelledError

from diagnose.errors import ServiceError
from diagnose.model.night import Costly, Failed, Headway, Night
from diagnose.triage.identity import Judge
from diagnose.triage.rows import JobRow
from diagnose.triage.source import Job
from diagnose.triage.store import Done, Known, Store
from diagnose.triage.work import Failure, Outcome, Task, describe_memory_limit, failed, gave_up, limit_key
from diagnose.triage.workplace import Futures, Workplace

#: Memory that a job takes for each byte of its file: 150 bytes an operation, of which 5 to 11 are in the file.
BYTES_PER_BYTE = 20
#: Seconds between two looks at what runs.
LOOK_S = 0.2
#: Seconds for which results wait for others to be written with, and for which small jobs are claimed ahead: however small
#: the jobs are, the store is asked a few times a second, and not a hundred times.
BATCH_S = 1.0
#: Jobs claimed ahead for each place at most, and seconds after which what was claimed and is not begun is given back.
AHEAD = 8
HOLD_S = 2.0
#: Weight of the last job in what a job is believed to take.
LAST_WEIGHT = 0.2
#: Jobs listed as the most wasteful.
N_COSTLY = 10


@dataclasses.dataclass(frozen=True, slots=True)
class Orders:
    """What is wanted of a night.

    Attributes
    ----------
    judge : Judge
    rules : str or None
        Folder with rules of the user's.
    memory_bytes : int
        What all jobs together may take.
    timeout_s : float
        Seconds for one job.
    since_s : float or None
        Leave out what was last modified before.
    limit : int or None
        Do at most so many jobs, the newest.
    force, retry_failed : bool
        Do known jobs too; do those that failed too.
    """

    judge: Judge
    rules: str | None
    memory_bytes: int
    timeout_s: float
    since_s: float | None = None
    limit: int | None = None
    force: bool = False
    retry_failed: bool = False

    @property
    def given_up(self) -> set[str]:
        """Identities of jobs that were given up under the same limits."""
        limits = [
            limit_key(Failure.TIMEOUT, self.timeout_s),
            limit_key(Failure.MEMORY, self.memory_bytes),
            limit_key(Failure.MEMORY),
            limit_key(Failure.CRASH),
        ]
        return {self.judge.identify(limit) for limit in limits}


@dataclasses.dataclass(slots=True)
class _Work:
    """One job on its way: the memory it may take (alone: all), when it is given up, what was known of it."""

    job: Job
    weight_bytes: int
    is_alone: bool = False
    deadline_s: float = 0.0
    task: Task | None = None
    known: Known | None = None


@dataclasses.dataclass(slots=True)
class _Tally:
    """Counts of a night as it goes on."""

    n_done: int = 0
    n_known: int = 0
    n_known_by_time: int = 0
    n_known_failed: int = 0
    n_elsewhere: int = 0
    verdicts: Counter[str] = dataclasses.field(default_factory=Counter)
    hours: float = 0.0
    wasted: float = 0.0
    failed: list[Failed] = dataclasses.field(default_factory=list)
    costly: list[Costly] = dataclasses.field(default_factory=list)

    def add(self, row: JobRow) -> None:
        """Count a job that was done."""
        if row.status == "failed":
            self.failed.append(Failed(row.location, row.failure or "", row.reason or ""))
            return
        self.verdicts[row.verdict or ""] += 1
        self.hours += row.gpu_hours_analysed or 0.0
        self.wasted += row.gpu_hours_wasted or 0.0
        if row.verdict == "straggling" and row.gpu_hours_wasted:
            cost = Costly(row.location, row.job_id or "", row.gpu_hours_wasted, row.slowdown or 0.0, row.top_cause)
            self.costly = sorted([*self.costly, cost], key=lambda job: (-job.gpu_hours_wasted, job.location))[:N_COSTLY]

    def count_known(self, known: Known | None, *, by_time: bool) -> None:
        """Count a job that was left alone."""
        self.n_known += 1
        self.n_known_by_time += by_time
        self.n_known_failed += known is not None and known.status == "failed"


def run_night(
    jobs: Sequence[Job],
    store: Store,
    open_workplace: Callable[[int], Workplace],
    orders: Orders,
    *,
    watch: Callable[[Headway], None] | None = None,
) -> Night:
    """Diagnose all jobs that are new or changed.

    Parameters
    ----------
    jobs : sequence of Job
    store : Store
    open_workplace : callable
        Takes the number of jobs to do, gives the place to do them; closed again at the end.
    orders : Orders
    watch : callable, optional
        Told how far it has come, a few times a second.

    Returns
    -------
    Night

    Raises
    ------
    ServiceError
        The store or the cluster does not answer any longer. What was done until then is kept.
    """
    began_s = time.perf_counter()
    store.enter()
    shift = _Shift(store, orders, watch or _ignore)
    try:
        todo = shift.plan(jobs)
        if todo:
            with contextlib.closing(open_workplace(len(todo))) as workplace:
                shift.work(todo, workplace)
        store.note_end()
    except BaseException:  # it ends here, also where it was asked to: what is done already is kept
        with contextlib.suppress(ServiceError):
            shift.save()
        raise
    finally:
        store.leave()
    return shift.sum_up(len(jobs), time.perf_counter() - began_s)


def plan_night(jobs: Sequence[Job], store: Store | None, orders: Orders) -> Night:
    """Say what `run_night` would do, and do nothing; a store that is not there knows nothing."""
    shift = _Shift(store, orders, _ignore)
    todo = shift.plan(jobs)
    wanted = tuple(sorted(work.job.location for work in todo))
    return dataclasses.replace(shift.sum_up(len(jobs), 0.0, store_s=0.0), wanted=wanted)


class _Shift:
    """The work of one night."""

    def __init__(self, store: Store | None, orders: Orders, watch: Callable[[Headway], None]) -> None:
        self._store = store
        self._orders = orders
        self._watch = watch
        self._began_at = store.now_s() if store else 0.0
        self._given_up = orders.given_up
        self._tally = _Tally()
        self._n_older = 0
        self._n_jobs = 0
        self._ready: deque[_Work] = deque()  # claimed, not begun
        self._ready_s = 0.0
        self._running: dict[Futures, _Work] = {}
        self._unwritten: list[tuple[_Work, Outcome]] = []
        self._unwritten_s = 0.0
        self._job_s: float | None = None  # what a job took of late
        self._again: deque[_Work] = deque()
        self._held: list[_Work] = []
        self._work_began_s = 0.0

    def plan(self, jobs: Sequence[Job]) -> list[_Work]:
        """Choose the jobs that are new or changed, as far as can be told without reading them; the largest first."""
        since_s = self._orders.since_s
        young = [job for job in jobs if since_s is None or job.modified_s is None or job.modified_s >= since_s]
        self._n_older = len(jobs) - len(young)
        known = self._store.known([job.location for job in young]) if self._store else {}
        todo = []
        for job in young:
            if self._is_done(job, known.get(job.location)):
                self._tally.count_known(known.get(job.location), by_time=True)
            else:
                todo.append(job)
        if self._orders.limit is not None:
            todo = sorted(todo, key=lambda job: (-(job.modified_s or 0.0), job.location))[: self._orders.limit]
        todo.sort(key=lambda job: (-job.size_bytes, job.location))
        return [_Work(job, job.size_bytes * BYTES_PER_BYTE) for job in todo]

    def work(self, todo: list[_Work], workplace: Workplace) -> None:
        """Do all jobs; then those that were tried in vain, each alone; then those that other triages have given up."""
        self._n_jobs, self._work_began_s = len(todo), time.perf_counter()
        self._do(todo, workplace)
        self._do_again(workplace)
        held, self._held = self._held, []
        if held:
            assert self._store is not None
            self._store.bury_dead()
            self._do(held, workplace)
            self._do_again(workplace)
        self._tally.n_elsewhere += len(self._held)
        self._tell(is_final=True)

    def sum_up(self, n_found: int, took_s: float, *, store_s: float | None = None) -> Night:
        """Say what came of the night."""
        tally = self._tally
        n_diagnosed, n_failed = sum(tally.verdicts.values()), len(tally.failed)
        n_seen = n_diagnosed + n_failed + tally.n_known + tally.n_elsewhere + self._n_older
        return Night(
            store=self._store.name if self._store else "",
            n_found=n_found,
            n_diagnosed=n_diagnosed,
            n_failed=n_failed,
            n_known=tally.n_known,
            n_known_by_time=tally.n_known_by_time,
            n_known_failed=tally.n_known_failed,
            n_elsewhere=tally.n_elsewhere,
            n_older=self._n_older,
            n_left=n_found - n_seen,
            by_verdict=dict(sorted(tally.verdicts.items())),
            gpu_hours_analysed=tally.hours,
            gpu_hours_wasted=tally.wasted,
            took_s=took_s,
            store_s=(self._store.spent_s if self._store else 0.0) if store_s is None else store_s,
            failed=tuple(sorted(tally.failed, key=lambda job: job.location)),
            costly=tuple(tally.costly),
        )

    # ---- What is known ----

    def _is_done(self, job: Job, known: Known | None) -> bool:
        """Say whether a job is as it was, by the stamp of its file."""
        is_same = known is not None and job.stamp is not None and job.stamp == known.stamp
        return is_same and known is not None and self._counts(known)

    def _counts(self, known: Known) -> bool:
        """Say whether what is known of a job needs not be done again while its content is the same."""
        orders = self._orders
        if orders.force or (orders.retry_failed and known.status == "failed"):
            return False
        if known.status == "pruned":
            return True
        if known.content is None:
            return known.identity in self._given_up
        return orders.judge.identify(known.content) == known.identity

    def _is_done_elsewhere(self, known: Known | None) -> bool:
        """Say whether another triage has done a job, with the same judge, since this night began."""
        if known is None or known.status == "pruned" or known.diagnosed_at < self._began_at:
            return False
        return known.content is None or self._orders.judge.identify(known.content) == known.identity

    # ---- Doing jobs ----

    def _do(self, todo: list[_Work], workplace: Workplace) -> None:
        """Do jobs, as many at a time as there are places and memory."""
        waiting = deque(todo)
        while waiting or self._ready or self._running:
            while (waiting or self._ready) and workplace.has_room():
                work = self._next(waiting, workplace)
                if work is None:
                    break
                self._begin(work, workplace)
            if self._ready and time.monotonic() - self._ready_s > HOLD_S:
                self._give_back(waiting)
            self._look(workplace)
        self.save()

    def _do_again(self, workplace: Workplace) -> None:
        """Do jobs again that failed beside others, each alone."""
        while self._again:
            work = self._again.popleft()
            work.is_alone = True
            self._do([work], workplace)

    def _next(self, waiting: deque[_Work], workplace: Workplace) -> _Work | None:
        """Take the first job that is claimed and fits; where none is, claim some."""
        while True:
            i = self._first_that_fits(self._ready, workplace)
            if i is not None:
                work = self._ready[i]
                del self._ready[i]
                return work
            i = self._first_that_fits(waiting, workplace)
            if i is None:
                return None
            self._claim(waiting, i, workplace)

    def _first_that_fits(self, queue: deque[_Work], workplace: Workplace) -> int | None:
        """Find the first job for which there is memory beside those that run."""
        share = self._orders.memory_bytes // workplace.n_places
        free = self._orders.memory_bytes - sum(work.weight_bytes for work in self._running.values())
        for i, work in enumerate(queue):
            wanted = self._orders.memory_bytes if work.is_alone else max(share, work.weight_bytes)
            weight = min(wanted, self._orders.memory_bytes)
            if weight <= free or not self._running:
                work.weight_bytes = weight
                return i
            if free < share:
                return None
        return None

    def _claim(self, waiting: deque[_Work], i: int, workplace: Workplace) -> None:
        """Claim a job, and those behind it that will begin in a moment; leave those that another triage has or has done."""
        assert self._store is not None
        ahead = 0 if not self._job_s else min(AHEAD, int(BATCH_S / self._job_s)) * workplace.n_places
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
                self._held.append(work)
                continue
            work.known = mine[location]
            if self._is_done_elsewhere(work.known) or self._is_done(work.job, work.known):
                done.append(location)
            else:
                self._ready.append(work)
        if done:
            self._store.release(done)
            self._tally.n_elsewhere += len(done)
            self._tally.n_done += len(done)

    def _give_back(self, waiting: deque[_Work]) -> None:
        """Let others have what was claimed too early, because jobs take longer than those before them."""
        assert self._store is not None
        self._store.release([work.job.location for work in self._ready])
        waiting.extendleft(reversed(self._ready))
        self._ready.clear()

    def _begin(self, work: _Work, workplace: Workplace) -> None:
        """Begin a job that is claimed."""
        known = work.known
        content = known.content if known is not None and self._counts(known) else None
        memory = work.weight_bytes if workplace.limits_memory else None
        is_last = work.is_alone or work.weight_bytes >= self._orders.memory_bytes
        work.task = Task(work.job, self._orders.judge, self._orders.rules, content, memory, is_last)
        work.deadline_s = time.monotonic() + self._orders.timeout_s
        self._running[workplace.submit(work.task)] = work

    def _look(self, workplace: Workplace) -> None:
        """Wait a moment, and deal with what has ended, hangs, or takes too much memory."""
        if self._unwritten and time.monotonic() - self._unwritten_s > BATCH_S:
            self.save()
        if not self._running:
            time.sleep(LOOK_S / 4)  # a process is starting
            return
        done, _ = concurrent.futures.wait(self._running, timeout=LOOK_S, return_when=FIRST_COMPLETED)
        for future in done:
            self._end(future, workplace)
        for future in [future for future in self._running if not future.done()]:
            work = self._running[future]
            assert work.task is not None
            grown = workplace.memory_of(future)
            if time.monotonic() > work.deadline_s:
                reason = f"not done after {self._orders.timeout_s:g} s; raise --timeout"
                outcome = gave_up(work.task, Failure.TIMEOUT, reason, limit=self._orders.timeout_s)
                self._give_up(future, workplace, outcome)
            elif grown is not None and grown > work.weight_bytes:
                self._give_up(future, workplace, _too_large(work, self._orders))
        self._tell()

    def _end(self, future: Futures, workplace: Workplace) -> None:
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
            outcome = gave_up(work.task, Failure.CRASH, "the process that diagnosed it died, twice")
        except Exception as error:  # noqa: BLE001 - what Dask says of a worker that died again and again
            said = type(error).__name__
            is_dead = said == "KilledWorker"
            if is_dead:
                outcome = gave_up(work.task, Failure.CRASH, "the workers that diagnosed it died")
            else:
                outcome = failed(work.task, Failure.INTERNAL, f"internal error: {said}: {error}")
        kill = is_dead or outcome.needs_bytes is not None or _failure(outcome) == Failure.MEMORY
        if kill:
            self._give_up(future, workplace, outcome)
            return
        del self._running[future]
        workplace.end(future, kill=False)
        self._settle(work, outcome)

    def _give_up(self, future: Futures, workplace: Workplace, outcome: Outcome) -> None:
        """End what cannot go on; a job that took too much or died beside others gets another try, alone."""
        work = self._running.pop(future)
        workplace.end(future, kill=outcome.needs_bytes is None)
        store = self._store
        assert store is not None
        if outcome.needs_bytes is not None or (
            not work.is_alone and workplace.limits_memory and _failure(outcome) in {Failure.MEMORY, Failure.CRASH}
        ):
            store.release([work.job.location])
            self._again.append(work)
            return
        self._settle(work, outcome)

    def _settle(self, work: _Work, outcome: Outcome) -> None:
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
            [Done(work.job.location, outcome, is_new=work.known is None) for work, outcome in self._unwritten]
        )
        done, self._unwritten = self._unwritten, []
        self._tally.n_done += len(done)
        for (work, outcome), is_so in zip(done, is_mine, strict=True):
            if not is_so:
                self._tally.n_elsewhere += 1
            elif outcome.row is None:
                self._tally.count_known(work.known, by_time=False)
            else:
                self._tally.add(outcome.row)

    def _tell(self, *, is_final: bool = False) -> None:
        """Say how far it has come."""
        took_s = time.perf_counter() - self._work_began_s
        tally = self._tally
        self._watch(Headway(self._n_jobs, tally.n_done, len(tally.failed), len(self._running), took_s, is_final))


def _failure(outcome: Outcome) -> str | None:
    """Say of which kind the failure of an outcome is."""
    return None if outcome.row is None else outcome.row.failure


def _too_large(work: _Work, orders: Orders) -> Outcome:
    """Make the outcome of a job that takes too much memory."""
    assert work.task is not None
    limit = min(work.weight_bytes, orders.memory_bytes)
    return gave_up(work.task, Failure.MEMORY, describe_memory_limit(limit), limit=limit)


def _ignore(_headway: Headway) -> None:
    """Nobody watches."""
