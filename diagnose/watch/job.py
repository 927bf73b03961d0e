"""One job that is watched: its windows, its history, and what state it is in.

Enters: a source, and what was kept of the job. Leaves: events, the job as it is now, and what is to be kept.
"""

import dataclasses
import hashlib
import itertools
import statistics

from msgspec import Struct
from msgspec.structs import replace

from diagnose.model.cause import KeptCause, When
from diagnose.model.diagnosis import Diagnosis
from diagnose.model.fingerprint import name_fault
from diagnose.model.live import Episode, LiveState, WatchedJob, Window
from diagnose.model.place import Where
from diagnose.model.request import Request
from diagnose.report.budget import PART_NAMES
from diagnose.report.live_words import moment
from diagnose.watch.course import Curve
from diagnose.watch.episodes import COUNTED_GAIN, RISEN_SHARE, UNKNOWN, Episodes, Found, counts, follow_episodes
from diagnose.watch.pace import MIN_WINDOWS, Pace, Paces
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
#: What a pace is known to be another one with: it differs by more than four deviations. One window alone is no episode: an
#: evaluation, or a save that no row records, lengthens one too.
PACE_CONFIDENCE = 0.85
SLOWER = "unknown cause: steps longer than before"  # and then in which part of them


class JobState(Struct, frozen=True, kw_only=True):
    """What is kept of a job in the store.

    Attributes
    ----------
    mark : Mark
    n_windows : int
        Diagnosed so far.
    windows : tuple of Window
        The last ones, oldest first.
    curve : Curve
        Slowdown by step since the start.
    episodes : Episodes
    paces : Paces
    state, since_s, why
        As of `WatchedJob`.
    new_s : float or None
        When the rows of its last window came, Unix seconds.
    name, owner, family, n_gpus
        Of the job, as its last diagnosis says; `family` is its framework and parallelism.
    """

    mark: Mark = Mark()
    n_windows: int = 0
    windows: tuple[Window, ...] = ()
    curve: Curve = Curve()
    episodes: Episodes = Episodes()
    paces: Paces = Paces()
    state: LiveState = "waiting"
    since_s: float = 0.0
    why: str = "nothing to diagnose yet"
    new_s: float | None = None
    name: str = ""
    owner: str | None = None
    family: str = ""
    n_gpus: int | None = None


@dataclasses.dataclass(frozen=True, slots=True)
class Compared:
    """What a window has, with what only the windows before it show.

    Attributes
    ----------
    found : list of Found
        Its causes, and one without a name where steps are longer than usual and no cause says why.
    paces : Paces
        With this window, where the job ran as usual in it.
    step_s : float or None
        Seconds of its steps, without planned work.
    usual_s : float or None
        The same of a usual step with its work; None where nobody knows.
    is_compared : bool
        True where a cause without a name that is not found is not there.
    """

    found: list[Found]
    paces: Paces
    step_s: float | None
    usual_s: float | None = None
    is_compared: bool = False


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
            compared = _compare(state, diagnosed, delivery)

            def checked(episode: Episode) -> bool:
                return compared.is_compared if _is_slower(episode) else episode.cause in diagnosed.checked

            at = replace(window, step_s=compared.step_s)
            episodes = follow_episodes(old.episodes, at, compared.found, checked, self._key, compared.usual_s)
            state = replace(state, paces=compared.paces, episodes=episodes)
        n_ranks = delivery.n_ranks or 0
        if window.silent and len(window.silent) >= BLIND_SHARE * n_ranks:
            return _enter(state, "blind", now_s, f"{len(window.silent)} of {n_ranks} ranks write nothing")
        return _enter(
            state, "running", now_s, f"{len(window.silent)} of {n_ranks} ranks silent" if window.silent else ""
        )

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
        n_gpus=job.world_size if diagnosis.parallelism_known else None,
    )


def _compare(state: JobState, diagnosed: Diagnosed, delivery: Delivery) -> Compared:
    """Compare the pace of a window with that of the windows before."""
    diagnosis, window, courses = diagnosed.diagnosis, diagnosed.window, state.episodes.open
    assert diagnosis is not None
    is_slow = any(_is_slower(course.episode) for course in courses)
    paces = Paces() if delivery.restarts and not is_slow else state.paces  # a new start is a new base
    found = list(diagnosed.found)
    if not window.step_s or window.silent or not (diagnosis.fidelity.ok or diagnosis.is_from_log):
        return Compared(found, paces, window.step_s)
    shares = {} if diagnosis.budget is None else diagnosis.budget.measured()
    step_s = window.step_s * (1.0 - shares.pop("evaluation", 0.0))  # planned work, in some windows and not in others
    usual_s, excess = paces.usual_s(delivery.work), paces.excess(step_s, delivery.work)
    has_risen = usual_s is not None and step_s >= (1.0 + RISEN_SHARE) * usual_s
    news = [one for one in found if counts(one) and one.gain >= paces.usual_gain(one.cause.cause) + COUNTED_GAIN]
    gains = {one.cause.cause: one.gain for one in reversed(found)}  # the largest first
    now = Pace(step_s, delivery.work or 1.0, gains, {part: share * window.step_s for part, share in shares.items()})
    has_name = any(course.first_window >= MIN_WINDOWS and not _is_slower(course.episode) for course in courses)
    if has_name or (has_risen and news):
        return Compared(found, paces, step_s, usual_s, is_compared=bool(news))
    if excess is not None and excess >= COUNTED_GAIN:
        found.append(_make_slower(diagnosis, window, excess, paces.find_longer(now)))
    elif not is_slow or excess is None:  # where the work is another, what was usual says nothing any more
        paces = paces.add(now)
    return Compared(found, paces, step_s, usual_s, is_compared=True)


def _is_slower(episode: Episode) -> bool:
    """Say whether an episode is of steps that are longer than before."""
    return episode.title.startswith(SLOWER)


def _make_slower(diagnosis: Diagnosis, window: Window, excess: float, part: str | None) -> Found:
    """Make a cause without a name of steps that are longer than before, most of it in a part of them."""
    cause = KeptCause(
        cause=UNKNOWN,
        title=SLOWER if part is None else f"{SLOWER}, most of it in {PART_NAMES[part]}",
        who=None,
        confidence=PACE_CONFIDENCE,
        share=None,
        recoverable=excess,
        recoverable_after_others=None,
        where=Where(),
        when=When(),
        evidence=(),
        fixes=(),
        fingerprint=name_fault(diagnosis.job, f"{UNKNOWN}-pace", None, Where()),
    )
    return Found(
        cause=cause,
        gain=excess,
        lasting_gain=excess,
        first_step=window.first_step,
        began_s=window.began_s,
        ended_s=window.began_s,
    )
