"""What is known of jobs that still run: their windows, their episodes, and whether anybody can see them.

Enters: what `diagnose watch` measured. Leaves: its lines of JSON, its page, its view in the terminal, its gauges.
"""

from typing import Annotated, Final, Literal

from msgspec import Meta, Struct

from diagnose.model.cause import CauseId
from diagnose.model.place import Where
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
    """Steps that came together and were diagnosed together; every time in Unix seconds.

    Attributes
    ----------
    number : int
        From 0, in the order in which they were diagnosed.
    first_step, last_step : int
        Of the steps analysed.
    began_s, ended_s : float or None
        When the first of them began and the last ended, by the trace's own clock; None where that is not the time of day.
    seen_s : float
        When all of it was there to be read.
    took_s : float
        Seconds of wall time that its diagnosis took.
    n_rows : int
        Rows read for it.
    verdict : str
        As in the diagnosis.
    step_s, clean_s, slowdown : float or None
        Mean seconds a step as recorded, and without what its causes cost; slowdown against the ideal.
    steps : tuple of int
        The steps analysed, or a part of them, evenly spaced, where many.
    step_slowdowns : tuple of (float or None)
        Their slowdowns, shape (n_steps,).
    worker_slowdowns : tuple of tuple of (float or None)
        Slowdown with everything ideal but this worker, shape (n_dp, n_stages); empty where ranks were not told apart.
    silent : tuple of int
        Ranks whose rows are missing in it.
    why : str
        Why it could not be diagnosed; empty where it was. Its verdict is then `inconclusive`.
    """

    number: int
    first_step: int
    last_step: int
    began_s: float | None
    ended_s: float | None
    seen_s: float
    took_s: float
    n_rows: int
    verdict: str
    step_s: float | None
    slowdown: float | None
    steps: tuple[int, ...]
    step_slowdowns: tuple[float | None, ...]
    worker_slowdowns: tuple[tuple[float | None, ...], ...]
    silent: tuple[int, ...] = ()
    why: str = ""
    clean_s: float | None = None


class Episode(Struct, frozen=True, kw_only=True):
    """A cause at a place from its first slow step until it is over.

    Attributes
    ----------
    name : str
        Of this episode alone: the fingerprint of its cause, its job, and the number of the window that it was told after.
    fingerprint, cause, title : str
        Of the cause, as the diagnosis gives them.
    where : Where
        As the last window that had it says.
    first_step : int
        The first step that it cost time in, as far as known now.
    last_step : int
        The last one so far.
    began_s : float or None
        Unix seconds of the first step, where the trace's clock is the time of day.
    told_s : float
        When it was told.
    delay_windows : int
        Windows between the one with its first step and the one that it was told after; 0: at once.
    delay_s : float or None
        Seconds from the end of its first step until it was told.
    recovered_step : int or None
        The first step without it; None while it lasts.
    recovered_s : float or None
        When that was told.
    gain, peak_gain : float
        Part of the step time that comes back when it is mended: in the last window with it, and at most.
    confidence : float
        Of the last window that had it.
    or_else : tuple of str
        What it is if it is not that: causes that explain the same seconds nearly as well, and share the confidence.
    beside : tuple of str
        Causes that windows also name while it lasts, in what may be the same seconds: they have no episode of their own.
    """

    name: str
    fingerprint: str
    cause: CauseId
    title: str
    where: Where
    first_step: int
    last_step: int
    began_s: float | None
    told_s: float
    delay_windows: Annotated[int, Meta(ge=0)]
    delay_s: float | None
    recovered_step: int | None
    recovered_s: float | None
    gain: float
    peak_gain: float
    confidence: float
    or_else: tuple[CauseId, ...] = ()
    beside: tuple[CauseId, ...] = ()


class WatchedJob(Struct, frozen=True, kw_only=True):
    """One job as it is now.

    Attributes
    ----------
    location, name : str
        Its file or folder, and what the job is called.
    state : str
        See `LiveState`.
    since_s : float
        Unix seconds at which this state began.
    why : str
        One sentence on the state: "no new rows since 2026-11-23 12:04:31 UTC; a window came every 20 s".
    windows : tuple of Window
        The last ones, oldest first; bounded.
    course_steps : tuple of int
        Steps since the start of the job; thinned so that it stays bounded, oldest first.
    course_slowdowns : tuple of (float or None)
        The slowdown of each, shape (n_course,): the mean of the steps that it stands for.
    episodes : tuple of Episode
        All that are open, then those that are over, the latest first; bounded.
    """

    location: str
    name: str
    state: LiveState
    since_s: float
    why: str
    windows: tuple[Window, ...]
    course_steps: tuple[int, ...]
    course_slowdowns: tuple[float | None, ...]
    episodes: tuple[Episode, ...]


class LiveEvent(Struct, frozen=True, kw_only=True):
    """One line that `diagnose watch --format json` prints; what it is not about is null."""

    schema: Literal["diagnose-watch/1"] = SCHEMA
    at: Moment
    event: LiveEventName
    location: str
    name: str
    text: Annotated[str, Meta(description="one line for people; nothing in it that a terminal would obey")]
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
