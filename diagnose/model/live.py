"""What is known of jobs that still run: their windows, their episodes, and whether anybody can see them.

Enters: what `diagnose watch` measured. Leaves: its lines of JSON, its page, its view in the terminal, its gauges.
"""

from typing import Annotated, Final, Literal

from msgspec import Meta, Struct

from diagnose.model.cause import CauseId
from diagnose.model.place import Where
from diagnose.model.plain import says
from diagnose.model.ticket import Moment

SCHEMA: Final = "diagnose-watch/1"
STATES_SCHEMA: Final = "diagnose-watch-states/1"
#: `waiting`: nothing to diagnose came yet. `blind`: it should have come, and did not, or not from everybody.
LiveState = Literal["waiting", "running", "blind", "ended"]
#: What became of an episode: it began, it costs more than when it was told, it is over.
EpisodeEvent = Literal["began", "grew", "recovered"]
#: What a line tells: a window was diagnosed, an episode came on, the state of the job is another one.
LiveEventName = Literal["window", "began", "grew", "recovered", "state"]


class Window(Struct, frozen=True, kw_only=True):
    """Steps that came together and were diagnosed together; every time in Unix seconds."""

    #: From 0, in the order in which they were diagnosed.
    number: int
    #: `first_step`, `last_step`: of the steps analysed.
    first_step: int
    last_step: int
    #: `began_s`, `ended_s`: when the first of them began and the last ended, by the trace's own clock; None where that is not
    #: the time of day.
    began_s: float | None
    ended_s: float | None
    #: When all of it was there to be read.
    seen_s: float
    #: Seconds of wall time that its diagnosis took.
    took_s: float
    #: Rows read for it.
    n_rows: int
    #: As in the diagnosis.
    verdict: str
    #: `step_s`, `clean_s`, `slowdown`: mean seconds a step as recorded, and without what its causes cost; slowdown against the
    #: ideal.
    step_s: float | None
    slowdown: float | None
    #: The steps analysed, or a part of them, evenly spaced, where many.
    steps: tuple[int, ...]
    #: Their slowdowns, shape (n_steps,).
    step_slowdowns: tuple[float | None, ...]
    #: Slowdown with everything ideal but this worker, shape (n_dp, n_stages); empty where ranks were not told apart.
    worker_slowdowns: tuple[tuple[float | None, ...], ...]
    #: Ranks whose rows are missing in it.
    silent: tuple[int, ...] = ()
    #: Why it could not be diagnosed; empty where it was. Its verdict is then `inconclusive`.
    why: str = ""
    clean_s: float | None = None


class Episode(Struct, frozen=True, kw_only=True):
    """A cause at a place from its first slow step until it is over."""

    #: Of this episode alone: the fingerprint of its cause, its job, and the number of the window that it was told after.
    name: str
    #: `fingerprint`, `cause`, `title`: of the cause, as the diagnosis gives them.
    fingerprint: str
    cause: CauseId
    title: str
    #: As the last window that had it says.
    where: Where
    #: The first step that it cost time in, as far as known now.
    first_step: int
    #: The last one so far.
    last_step: int
    #: Unix seconds of the first step, where the trace's clock is the time of day.
    began_s: float | None
    #: When it was told.
    told_s: float
    #: Windows between the one with its first step and the one that it was told after; 0: at once.
    delay_windows: Annotated[int, Meta(ge=0)]
    #: Seconds from the end of its first step until it was told.
    delay_s: float | None
    #: The first step without it; None while it lasts.
    recovered_step: int | None
    #: When that was told.
    recovered_s: float | None
    #: `gain`, `peak_gain`: part of the step time that comes back when it is mended: in the last window with it, and at most.
    gain: float
    peak_gain: float
    #: Of the last window that had it.
    confidence: float
    #: What it is if it is not that: causes that explain the same seconds nearly as well, and share the confidence.
    or_else: tuple[CauseId, ...] = ()
    #: Causes that windows also name while it lasts, in what may be the same seconds: they have no episode of their own.
    beside: tuple[CauseId, ...] = ()


class WatchedJob(Struct, frozen=True, kw_only=True):
    """One job as it is now."""

    #: `location`, `name`: its file or folder, and what the job is called.
    location: str
    name: str
    #: See `LiveState`.
    state: LiveState
    #: Unix seconds at which this state began.
    since_s: float
    #: One sentence on the state: "no new rows since 2026-11-23 12:04:31 UTC; a window came every 20 s".
    why: str
    #: The last ones, oldest first; bounded.
    windows: tuple[Window, ...]
    #: Steps since the start of the job; thinned so that it stays bounded, oldest first.
    course_steps: tuple[int, ...]
    #: The slowdown of each, shape (n_course,): the mean of the steps that it stands for.
    course_slowdowns: tuple[float | None, ...]
    #: All that are open, then those that are over, the latest first; bounded.
    episodes: tuple[Episode, ...]


class LiveEvent(Struct, frozen=True, kw_only=True):
    """One line that `diagnose watch --format json` prints; what it is not about is null."""

    schema: Literal["diagnose-watch/1"] = SCHEMA
    at: Moment
    event: LiveEventName
    location: str
    name: str
    text: Annotated[str, says("one line for people; nothing in it that a terminal would obey")]
    state: LiveState
    window: Window | None = None
    episode: Episode | None = None


class WatchedPage(Struct, frozen=True, kw_only=True):
    """A job with the path of its page; of its windows it has the last one."""

    page: str
    job: WatchedJob


class WatchStates(Struct, frozen=True, kw_only=True):
    """What `diagnose watch` prints into `watch.json`, beside its pages: all jobs as they are now."""

    schema: Literal["diagnose-watch-states/1"] = STATES_SCHEMA
    jobs: tuple[WatchedPage, ...]
