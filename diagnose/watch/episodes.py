"""What is kept of the causes of a job: episodes, what may become one, and what a window has."""

from msgspec import Struct

from diagnose.model.cause import KeptCause, Severity
from diagnose.model.live import Episode, Window
from diagnose.model.place import Where

#: The last windows of an episode, which say how long steps are with it and what it is called; and those whose step times are kept.
LEVEL_WINDOWS = 8
MOST_LEVELS = 60


class Sighting(Struct, frozen=True):
    """A cause in one window; `began_s` and `ended_s` are of its first step there, Unix seconds."""

    window: int
    gain: float
    first_step: int
    began_s: float | None = None
    ended_s: float | None = None


class Suspicion(Struct, frozen=True, kw_only=True):
    """A cause at a place that may become an episode: the windows of the last few that count for it."""

    cause: str
    where: Where
    sightings: tuple[Sighting, ...]


class Told(Struct, frozen=True):
    """What alerts are known by: as when the episode was told, whatever its cause is called later."""

    cause: str
    severity: Severity | None
    who: str | None


class Course(Struct, frozen=True, kw_only=True):
    """An episode, and what decides what becomes of it."""

    episode: Episode
    #: As the window said that had it last.
    particulars: KeptCause
    #: `first_window`, `last_window`: the first that counted for it, and that window.
    first_window: int
    last_window: int
    #: Windows that were looked at for it since, without it.
    n_gone: int = 0
    #: The most windows without it between two with it.
    longest_gap: int = 0
    #: `n_here`, `n_between`: windows with it, and without it between two with it.
    n_here: int = 1
    n_between: int = 0
    #: What it cost when it was told last.
    told_gain: float
    #: Windows in a row, up to now, in which it costs much more than that.
    n_grown: int = 0
    #: The first step of the first window without it.
    gone_step: int | None = None
    #: When it was told to have grown.
    grown_s: tuple[float, ...] = ()
    told: Told
    #: The last windows that had it, and the seconds of a step in them.
    levels: tuple[tuple[int, float], ...] = ()
    #: What the last windows that had it call it, and where they place it.
    called: tuple[tuple[str, Where], ...] = ()

    @property
    def is_open(self) -> bool:
        """True while it lasts."""
        return self.episode.recovered_step is None


class Episodes(Struct, frozen=True, kw_only=True):
    """All episodes of a job: those that are open, those that are over (the latest first), and what may become one."""

    open: tuple[Course, ...] = ()
    over: tuple[Course, ...] = ()
    suspicions: tuple[Suspicion, ...] = ()

    def list_all(self) -> tuple[Episode, ...]:
        """List the episodes, those that are open first."""
        return tuple(course.episode for course in (*self.open, *self.over))


class Found(Struct, frozen=True, kw_only=True):
    """A cause as a window has it."""

    cause: KeptCause
    #: Part of the step time of the window that comes back without it.
    gain: float
    #: The same of the steps that have it, where it begins or ends within the window: what a whole window with it would lose.
    lasting_gain: float
    #: Its first step as far as the window can tell; it began and ended at `began_s` and `ended_s`, Unix seconds.
    first_step: int
    began_s: float | None = None
    ended_s: float | None = None
    #: The first step without it again.
    recovered_step: int | None = None
    #: The same, dated by where the steps of the window get longer: for a cause that the windows before did not have.
    since_turn: "Found | None" = None

    def sighting(self, window: int) -> Sighting:
        """Keep what is needed of it later."""
        return Sighting(window, self.gain, self.first_step, self.began_s, self.ended_s)


def add_level(levels: tuple[tuple[int, float], ...], window: Window) -> tuple[tuple[int, float], ...]:
    """Add how long the steps of a window are."""
    return levels if window.step_s is None else (*levels, (window.number, window.step_s))[-MOST_LEVELS:]
