"""One job that is watched: its windows, its history, and what state it is in.

Enters: a source, and what was kept of the job. Leaves: events, the job as it is now, and what is to be kept.
"""

import hashlib
import itertools
import statistics
from collections.abc import Sequence

from msgspec import Struct
from msgspec.structs import replace

from diagnose.model.diagnosis import Diagnosis
from diagnose.model.live import Episode, LiveState, WatchedJob, Window
from diagnose.model.request import Request
from diagnose.report.live_words import moment
from diagnose.watch.compare import compare, is_slower
from diagnose.watch.course import Curve
from diagnose.watch.episodes import Episodes, Found
from diagnose.watch.follow import follow_episodes
from diagnose.watch.look_again import look_again
from diagnose.watch.pace import Paces
from diagnose.watch.source import Delivery, Mark, Source
from diagnose.watch.window import Diagnosed, diagnose_window

#: Windows that are kept, and the workers of one that is not the last, at most.
MOST_WINDOWS = 60
MOST_WORKERS = 256
#: Nothing new for so many times as long as windows take, and at least for so long, is no delay any more. The recorder writes once
#: a minute, and after a large file less often.
BLIND_WINDOWS = 3.0
BLIND_S = 300.0
#: With this part of the ranks silent nobody sees the job.
BLIND_SHARE = 0.5


class JobState(Struct, frozen=True, kw_only=True):
    """What is kept of a job in the store."""

    mark: Mark = Mark()
    #: Diagnosed so far.
    n_windows: int = 0
    #: The last ones, oldest first.
    windows: tuple[Window, ...] = ()
    #: Slowdown by step since the start.
    curve: Curve = Curve()
    episodes: Episodes = Episodes()
    paces: Paces = Paces()
    #: `state`, `since_s`, `why`: as of `WatchedJob`.
    state: LiveState = "waiting"
    since_s: float = 0.0
    why: str = "nothing to diagnose yet"
    #: When the rows of its last window came, Unix seconds.
    new_s: float | None = None
    #: `name`, `owner`, `family`, `n_gpus`: of the job, as its last diagnosis says; `family` is its framework and parallelism.
    name: str = ""
    owner: str | None = None
    family: str = ""
    n_gpus: int | None = None


class JobWatch:
    """One job: what is new of it is diagnosed, a window at a time."""

    def __init__(self, location: str, source: Source, state: JobState, request: Request) -> None:
        self.location = location
        self.source = source
        self.state = state
        self._request = request
        self._seen_s: float | None = None
        self._key = hashlib.blake2b(location.encode("utf-8", "surrogateescape"), digest_size=3).hexdigest()

    def advance(self, now_s: float) -> tuple[JobState, Delivery | None, Diagnosed | None]:
        """Diagnose the next window where it is all there; give what is to be kept then. `settle` comes when that is kept.

        Raises
        ------
        RuleError
            A rule file is wrong.
        OSError
            There is no room for the rows of a window.
        """
        if self.source.look():
            is_first = self._seen_s is None  # what is there already may be old
            self._seen_s = min(self.source.written_s or now_s, now_s) if is_first else now_s
        delivery = self.source.deliver(now_s)
        if delivery is None:
            return self._rest(now_s), None, None
        diagnosed = diagnose_window(delivery, self._request, number=self.state.n_windows, seen_s=now_s)
        return self._note(diagnosed, delivery, now_s), delivery, diagnosed

    def settle(self, state: JobState, delivery: Delivery | None, now_s: float) -> None:
        """Go on from what was kept."""
        self.state = state
        if delivery is not None:
            self.source.take(delivery, now_s)

    def show(self) -> WatchedJob:
        """Give the job as it is now."""
        state = self.state
        return WatchedJob(
            location=self.location,
            name=state.name or self.location.rpartition("/")[2],
            state=state.state,
            since_s=state.since_s,
            why=state.why,
            windows=state.windows,
            course_steps=state.curve.steps,
            course_slowdowns=state.curve.slowdowns(),
            episodes=state.episodes.list_all(),
        )

    # ---- A window ----

    def _note(self, diagnosed: Diagnosed, delivery: Delivery, now_s: float) -> JobState:
        """Take note of a window."""
        old, window = self.state, diagnosed.window
        state = replace(
            old,
            mark=delivery.mark,
            n_windows=old.n_windows + 1,
            windows=(*map(_slim, old.windows), window)[-MOST_WINDOWS:],
            curve=old.curve.add(window.steps, window.step_slowdowns),
            new_s=self._seen_s,
        )
        if diagnosed.diagnosis is not None:
            state = _name(state, diagnosed.diagnosis)
            compared = compare(state.episodes, state.paces, diagnosed, delivery)

            def checked(episode: Episode) -> bool:
                return compared.is_compared if is_slower(episode) else episode.cause in diagnosed.checked

            at = replace(window, step_s=compared.step_s)
            episodes = follow_episodes(old.episodes, at, compared.found, checked, self._key, compared.usual_s)
            episodes = look_again(episodes, state.windows, self._key, self._find_all)
            state = replace(state, paces=compared.paces, episodes=episodes)
        n_ranks = delivery.n_ranks or 0
        if window.silent and len(window.silent) >= BLIND_SHARE * n_ranks:
            return _enter(state, "blind", now_s, f"{len(window.silent)} of {n_ranks} ranks write nothing")
        return _enter(
            state, "running", now_s, f"{len(window.silent)} of {n_ranks} ranks silent" if window.silent else ""
        )

    def _find_all(self, first: Window, last: Window) -> Sequence[Found]:
        """Diagnose the steps of several windows together; nothing where they cannot be read again."""
        delivery = self.source.deliver_again(first.first_step, last.last_step)
        if delivery is None:
            return ()
        return diagnose_window(delivery, self._request, number=last.number, seen_s=last.seen_s).found

    # ---- No window ----

    def _rest(self, now_s: float) -> JobState:
        """Say what state a job is in of which no window came."""
        state = self.state
        if self.source.has_ended and state.n_windows:
            return _enter(state, "ended", now_s, "the job has ended")
        since_s = state.new_s if self._seen_s is None else self._seen_s
        is_silent = state.state == "blind" and any(window.silent for window in state.windows[-1:])
        if since_s is None or state.state == "ended" or is_silent:
            return state
        usual_s = _interval(state.windows)
        if now_s - since_s < max(BLIND_S, BLIND_WINDOWS * (usual_s or 0.0)):
            return (
                _enter(state, "running" if state.n_windows else "waiting", now_s, "")
                if state.state == "blind"
                else state
            )
        if state.state == "blind":
            return state
        every = f"; a window came every {usual_s:.0f} s" if usual_s else ""
        return _enter(state, "blind", now_s, f"no new rows since {moment(since_s)}{every}")


def _slim(window: Window) -> Window:
    """Keep of a window that is not the last one what is not large."""
    n_workers = sum(map(len, window.worker_slowdowns))
    return replace(window, worker_slowdowns=()) if n_workers > MOST_WORKERS else window


def _enter(state: JobState, name: LiveState, now_s: float, why: str) -> JobState:
    """Go to a state; one that it is in already goes on."""
    return replace(state, state=name, since_s=state.since_s if name == state.state else now_s, why=why)


def _interval(windows: tuple[Window, ...]) -> float | None:
    """Say how many seconds lie between two windows, as a rule.

    Windows of what was there already are seen one right after the other: when their steps ended, or how long these took, says more.
    """
    lasting = [(window.step_s or 0.0) * (window.last_step - window.first_step + 1) for window in windows]
    found = [statistics.median(lasting)] if windows else []
    for times in ([window.seen_s for window in windows], [window.ended_s for window in windows if window.ended_s]):
        gaps = [b - a for a, b in itertools.pairwise(times) if b > a]
        found += [statistics.median(gaps)] if gaps else []
    return max(found, default=0.0) or None


def _name(state: JobState, diagnosis: Diagnosis) -> JobState:
    """Take over what a diagnosis says of the job."""
    job = diagnosis.job
    sizes = (job.dp_size, job.pp_size, job.tp_size, job.cp_size, job.vpp_size)
    parallelism = " ".join(f"{key} {size}" for key, size in zip(("dp", "pp", "tp", "cp"), sizes, strict=False))
    return replace(
        state,
        name=job.name or job.job_id,
        owner=job.owner,
        family=f"{job.framework or 'unknown'}, {parallelism}",
        n_gpus=job.world_size if diagnosis.parallelism_known else state.n_gpus,  # a log says it at its beginning
    )
