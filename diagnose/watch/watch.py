"""The watch: round after round over all jobs, each diagnosed when enough of it is new.

Enters: what the user names, and a store. Leaves: events, and jobs as they are now, to whoever shows or tells them.
"""

import contextlib
import gc
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec
from msgspec.structs import replace

from diagnose.errors import DiagnoseError, RuleError, ServiceError, UsageError, asked_to_end
from diagnose.heap import give_back
from diagnose.model.live import LiveEvent, WatchedJob
from diagnose.model.request import Request
from diagnose.model.ticket import iso
from diagnose.report.live_words import describe_window
from diagnose.triage.store import Store
from diagnose.triage.watched import list_watched, read_watched, write_watched
from diagnose.watch.episodes import Episodes
from diagnose.watch.find import FoundSource, find_sources, refuse_where_none
from diagnose.watch.job import JobState, JobWatch
from diagnose.watch.request import WatchRequest
from diagnose.watch.tell import Teller
from diagnose.watch.views import View
from diagnose.watch.window import Diagnosed

#: Folders are searched for new jobs so many times less often than files are looked at.
SEARCH_EVERY = 12
#: A job of which nothing comes is looked at less and less often, down to once in so many seconds.
MAX_IDLE_S = 60.0
#: What a job is claimed as, so that two processes do not watch one with one store.
CLAIM = "watch "
#: Seconds after which everything is told again to who forgets.
TELL_ALL_S = 6 * 3600.0
#: A job of a folder that ended is shown for so long, and one of which nothing came is waited for for so long.
SHOWN_S, MISSED_S = 86_400.0, 7 * 86_400.0
#: Windows after which garbage is looked for: by itself a process of ours does so seldom (`diagnose.heap`).
GARBAGE_WINDOWS = 16
#: Looking may take this part of a core: where it takes more, it is done less often. What it waits for others on a machine that is
#: busy does not count: a job would be looked at minutes later.
LOOK_SHARE = 0.005


class _Followed:
    """A job, and when it is looked at next."""

    def __init__(self, job: JobWatch, *, is_named: bool) -> None:
        self.job = job
        self.is_named = is_named
        self.next_s = 0.0
        self.pause_s = 0.0
        self.complaint = ""
        self.told = Episodes()


class Watch:
    """All jobs that the sources name. One that is broken never stops the others."""

    def __init__(
        self,
        request: WatchRequest,
        store: Store,
        teller: Teller,
        *,
        views: Sequence[View] = (),
        write: Callable[[LiveEvent], None] = lambda _event: None,
        complain: Callable[[str], None] = lambda _line: None,
        now_s: Callable[[], float] = time.time,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._request = request
        self._store = store
        self._teller = teller
        self._views = list(views)
        self._write = write
        self._complain = complain
        self._now_s = now_s
        self._sleep = sleep
        self._jobs: dict[str, _Followed] = {}
        self._refused: set[str] = set()
        self._search_s = 0.0
        #: Jobs of whose episodes somebody may not have heard; all are told again at times, for who forgets.
        self._untold: set[str] = set()
        self._tell_all_s = 0.0
        self._complaint = ""
        self._round_s = 0.0
        self._n_windows = 0

    def run(self) -> None:
        """Go round after round: until nothing is left to diagnose where that is asked for, else until somebody ends it."""
        while True:
            is_busy = self.round()
            if is_busy:
                continue
            if self._request.once:
                return
            now_s = self._now_s()
            soonest = min((one.next_s for one in self._jobs.values()), default=now_s + self._request.interval_s)
            self._sleep(min(max(soonest - now_s, 0.05), self._request.interval_s))

    def round(self) -> bool:
        """Look at every job that is due, and diagnose a window of each that has one; True where one had."""
        now_s = self._now_s()
        if now_s < self._round_s:  # the clock was set back: nothing waits until it is again as late as it was
            self._search_s = 0.0
            for followed in self._jobs.values():
                followed.next_s = 0.0
        self._round_s = now_s
        self._search(now_s)
        events: list[LiveEvent] = []
        is_busy = False
        for followed in [one for one in self._jobs.values() if one.next_s <= now_s]:
            found, had_window = self._advance(followed, now_s)
            events += found
            is_busy = is_busy or had_window
            self._n_windows += had_window
            if followed.job.state.episodes != followed.told:
                self._untold.add(followed.job.location)
                followed.told = followed.job.state.episodes
        if self._n_windows >= GARBAGE_WINDOWS:
            self._n_windows = 0
            gc.collect()
        self._tell(now_s)
        if self._views:
            jobs = self.jobs()
            self._each_view(lambda view: view.show(jobs, events, now_s))
        return is_busy

    def jobs(self) -> list[WatchedJob]:
        """Give all jobs as they are now, by location."""
        return [self._jobs[location].job.show() for location in sorted(self._jobs)]

    def close(self) -> None:
        """End the views."""
        self._each_view(lambda view: view.close())

    def _tell(self, now_s: float) -> None:
        """Tell what is new of the jobs whose episodes have changed, and of all of them now and then."""
        repeats = now_s >= self._tell_all_s
        if repeats:
            self._tell_all_s = now_s + TELL_ALL_S
            self._untold |= set(self._jobs)
        if not self._untold:
            return
        try:
            news = [(at, self._jobs[at].job.state) for at in sorted(self._untold & set(self._jobs))]
            errors = self._teller.tell(news, now_s, repeats=repeats)
        except ServiceError as error:
            errors = [str(error)]
        if not errors and not self._teller.is_behind:
            self._untold = set()
        for line in errors:
            self._complain_once(line)

    def _complain_once(self, line: str) -> None:
        """Say what is wrong, once while it stays so."""
        if line != self._complaint:
            self._complain(line)
        self._complaint = line

    # ---- Jobs ----

    def _search(self, now_s: float) -> None:
        """Look for jobs that are new in the folders."""
        if now_s < self._search_s:
            return
        began_s = time.process_time()
        found, refused = find_sources(self._request, set(self._jobs), self._list_kept(), now_s)
        searched_s = time.process_time() - began_s
        self._search_s = now_s + max(SEARCH_EVERY * self._request.interval_s, searched_s / LOOK_SHARE)
        if not self._jobs and not self._refused:
            refuse_where_none(self._request, found, refused)
        for line in sorted(refused - self._refused):
            self._complain(line)
        self._refused |= refused
        for one in found:
            try:
                if not self._store.claim([CLAIM + one.location]):
                    self._complain_once(f"{one.location}: another process watches it")
                    continue
                self._jobs[one.location] = _Followed(self._open(one, now_s), is_named=one.is_named)
            except ServiceError as error:
                self._complain_once(str(error))
        self._let_go(now_s)
        if not self._jobs and self._request.once:
            raise UsageError(f"{', '.join(self._request.sources)}: no job that can be followed is there")

    def _list_kept(self) -> set[str]:
        """List the jobs that were watched before this watch began."""
        if self._jobs:
            return set()
        try:
            return list_watched(self._store)
        except ServiceError as error:
            self._complain_once(str(error))
            return set()

    def _let_go(self, now_s: float) -> None:
        """Forget jobs of folders that ended long ago, or of which nothing came for days, once everybody has heard of them."""
        past = [at for at, one in self._jobs.items() if not one.is_named and _is_past(one.job.state, now_s)]
        past = [] if self._request.once else [at for at in past if at not in self._untold]
        for location in past:
            del self._jobs[location]
        if past:
            with contextlib.suppress(ServiceError):  # they end with this process
                self._store.release([CLAIM + location for location in past])

    def _open(self, found: FoundSource, now_s: float) -> JobWatch:
        """Go on with a job where the store says how far it was read."""
        kept = read_watched(self._store, found.location)
        state = JobState(since_s=now_s)
        with contextlib.suppress(msgspec.MsgspecError):  # kept by another version: it is begun anew
            state = state if kept is None else msgspec.json.decode(kept, type=JobState)
        request = Request(
            Path(found.location),
            name=found.location,
            location=found.location,
            rules=self._request.rules,
            min_speedup=self._request.min_speedup,
            memory_bytes=self._request.memory_bytes,
            telemetry=self._request.telemetry,
            shares_telemetry=True,
        )
        return JobWatch(found.location, found.open(state.mark), state, request)

    def _advance(self, followed: _Followed, now_s: float) -> tuple[list[LiveEvent], bool]:
        """Diagnose the next window of a job, keep it, then show it."""
        job = followed.job
        before = job.state
        began_s = time.process_time()
        try:
            state, delivery, diagnosed = job.advance(now_s)
            if state != before:
                write_watched(self._store, job.location, msgspec.json.encode(state).decode())
        except RuleError:
            raise
        except Exception as error:
            if asked_to_end(error):
                raise
            self._put_off(followed, error, now_s)
            return [], False
        followed.complaint = ""
        job.settle(state, delivery, now_s)
        if diagnosed is None:
            self._wait(followed, time.process_time() - began_s, now_s)
        else:
            followed.pause_s = followed.next_s = 0.0
            give_back()
        events = self._list_events(job, before, diagnosed, now_s)
        for event in events:
            self._write(event)
        if diagnosed is not None and diagnosed.diagnosis is not None:
            shown, diagnosis, data = job.show(), diagnosed.diagnosis, diagnosed.data
            self._each_view(lambda view: view.diagnosed(shown, diagnosis, data))
        return events, diagnosed is not None

    def _wait(self, followed: _Followed, looked_s: float, now_s: float) -> None:
        """Say when a job is looked at next: less and less often where nothing comes, and never for much of the time."""
        longest = max(MAX_IDLE_S, self._request.interval_s)
        followed.pause_s = min(max(1.25 * followed.pause_s, self._request.interval_s), longest)
        followed.next_s = now_s + max(followed.pause_s, looked_s / LOOK_SHARE)

    def _put_off(self, followed: _Followed, error: Exception, now_s: float) -> None:
        """Say once what is wrong with a job, and try again later."""
        said = str(error) if isinstance(error, DiagnoseError) else f"{type(error).__name__}: {error}"
        if said != followed.complaint:
            self._complain(f"{followed.job.location}: {' '.join(said.split())}; tried again")
        followed.complaint = said
        followed.pause_s = min(max(2 * followed.pause_s, self._request.interval_s), MAX_IDLE_S)
        followed.next_s = now_s + followed.pause_s

    def _list_events(
        self, job: JobWatch, before: JobState, diagnosed: Diagnosed | None, now_s: float
    ) -> list[LiveEvent]:
        """Say what is new of a job, beside its episodes."""
        state, shown = job.state, job.show()
        event = LiveEvent(
            at=iso(now_s),
            event="state",
            location=job.location,
            name=shown.name,
            text=shown.state + (f": {shown.why}" if shown.why else ""),
            state=state.state,
        )
        events = [event] if state.state != before.state else []
        if diagnosed is not None:
            window = diagnosed.window
            events.insert(0, replace(event, event="window", text=describe_window(window), window=window))
        return events

    def _each_view(self, tell: Callable[[View], None]) -> None:
        """Tell every view; one that fails is told no more."""
        for view in list(self._views):
            try:
                tell(view)
            except Exception as error:
                if asked_to_end(error):
                    raise
                self._views.remove(view)
                said = str(error) if isinstance(error, DiagnoseError) else f"{type(error).__name__}: {error}"
                self._complain(f"{said}; shown no more")


def _is_past(state: JobState, now_s: float) -> bool:
    """Say whether a job is no longer worth showing: a watch of a folder goes on for months, and jobs come every day."""
    longest_s = {"ended": SHOWN_S, "blind": MISSED_S, "waiting": MISSED_S}.get(state.state)
    return longest_s is not None and now_s - state.since_s > longest_s
