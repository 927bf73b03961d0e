"""Which causes of a job are episodes: since when, how much they cost by now, and when they are over.

Enters: the causes of one window after the other. Leaves: the episodes, and what became of them with this window.

One bad window is no episode. A cause opens one where it costs enough in two of four windows, or much and almost surely in one; it
is over where it is gone for longer than it ever was in between. What a window could not look for neither opens nor ends anything.
"""

import math
import statistics
from collections.abc import Callable, Sequence
from typing import Final

from msgspec import Struct
from msgspec.structs import replace

from diagnose.model.cause import KeptCause, Severity
from diagnose.model.live import Episode, Window
from diagnose.model.place import Where

#: A window counts for a cause from this gain and confidence on. Confidence is calibrated: at 0.5 it is as likely there as not.
#: Half of the 5% that are told always, so that a window in which it begins halfway counts.
COUNTED_GAIN: Final = 0.025
COUNTED_CONFIDENCE: Final = 0.5
#: So many such windows of the last so many open an episode, if one of them costs as much as this.
N_COUNTED, OF_LAST = 2, 4
OPENED_GAIN: Final = 0.04
#: One window alone opens one at this gain and confidence.
SURE_GAIN: Final = 0.10
SURE_CONFIDENCE: Final = 0.9
#: Windows without it before it is over, and how many times the longest gap that there was.
GONE_WINDOWS = 3
GONE_RATIO = 3
#: What comes back after so many windows or fewer comes and goes: it is not over sooner than it came back.
REMEMBERED_WINDOWS = 60
#: While an episode lasts, what else is found may be the same seconds under another name. It is told when steps take this much
#: longer than in the last so many windows of the episode; else not as long as that lasts, but for the job's first windows.
RISEN_SHARE: Final = 0.025
LEVEL_WINDOWS = 8
FIRST_WINDOWS = 5
#: An episode that is gone while another cause in its place costs as much, up to this ratio, goes on under that name.
RENAMED_RATIO: Final = 1.5
#: It is told again when it costs this much more than when it was told last, in two windows one after the other.
GROWN_RATIO: Final = 1.5
GROWN_GAIN: Final = 0.05
N_GROWN = 2
#: The cause that has no name, as the diagnosis calls it.
UNKNOWN = "unknown"
#: Episodes that are over, and are kept to be shown.
MOST_OVER = 50


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
    """An episode, and what decides what becomes of it.

    Attributes
    ----------
    episode : Episode
    particulars : KeptCause
        As the window said that had it last.
    first_window, last_window : int
        The first that counted for it, and that window.
    n_gone : int
        Windows that were looked at for it since, without it.
    longest_gap : int
        The most windows without it between two with it.
    told_gain : float
        What it cost when it was told last.
    n_grown : int
        Windows in a row, up to now, in which it costs much more than that.
    gone_step : int or None
        The first step of the first window without it.
    grown_s : tuple of float
        When it was told to have grown.
    told : Told
    levels : tuple of (int, float)
        The last windows that had it, and the seconds of a step in them.
    """

    episode: Episode
    particulars: KeptCause
    first_window: int
    last_window: int
    n_gone: int = 0
    longest_gap: int = 0
    told_gain: float
    n_grown: int = 0
    gone_step: int | None = None
    grown_s: tuple[float, ...] = ()
    told: Told
    levels: tuple[tuple[int, float], ...] = ()

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
    """A cause as a window has it.

    Attributes
    ----------
    gain : float
        Part of the step time of the window that comes back without it.
    lasting_gain : float
        The same of the steps that have it, where it begins or ends within the window: what a whole window with it would lose.
    first_step : int
        Its first step as far as the window can tell; it began and ended at `began_s` and `ended_s`, Unix seconds.
    recovered_step : int or None
        The first step without it again.
    since_turn : Found or None
        The same, dated by where the steps of the window get longer: for a cause that the windows before did not have.
    """

    cause: KeptCause
    gain: float
    lasting_gain: float
    first_step: int
    began_s: float | None = None
    ended_s: float | None = None
    recovered_step: int | None = None
    since_turn: "Found | None" = None

    def sighting(self, window: int) -> Sighting:
        """Keep what is needed of it later."""
        return Sighting(window, self.gain, self.first_step, self.began_s, self.ended_s)


def follow_episodes(
    before: Episodes,
    window: Window,
    found: Sequence[Found],
    checked: Callable[[Episode], bool],
    job: str,
    usual_s: float | None = None,
) -> Episodes:
    """Say what a window makes of the episodes of its job.

    Parameters
    ----------
    before : Episodes
        After the window before.
    window : Window
        Its `seen_s` plus `took_s` is when an episode is told.
    found : sequence of Found
        Its causes, the largest first.
    checked : callable
        Says whether the window was looked at for an episode: one that is then not found is not there.
    job : str
        What tells this job from all others: a fault of a machine has one fingerprint in all jobs.
    usual_s : float or None
        Seconds of a step that holds as much work, as the job usually takes; None where that is not known. What leaves steps as
        long as that is no new fault: something else got faster.

    """
    told_s = window.seen_s + window.took_s
    left = list(found)
    same = [_take_same(left, course.episode.cause, course.episode.where, course.episode.gain) for course in before.open]
    courses: list[Course] = []
    for course, here in zip(before.open, same, strict=True):
        if here is not None:
            courses.append(_go_on(course, here, window, told_s))
        elif _is_still_slow(course, left, window, usual_s):
            courses.append(_last_on(course, window))
        elif checked(course.episode):
            courses.append(_miss(course, left, window, told_s))
        else:
            courses.append(course)
    lasting = [course for course in courses if course.is_open]
    if usual_s is not None and not _has_risen(window, usual_s):
        left = []
    suspicions, opened = _suspect(before.suspicions, left, lasting, window, told_s, job, usual_s)
    opened = [_remember(course, before.over) for course in opened]
    over = [course for course in courses if not course.is_open]
    return Episodes(
        open=(*lasting, *opened),
        over=(*over, *before.over)[:MOST_OVER],
        suspicions=suspicions,
    )


def is_same(cause: str, where: Where, found: KeptCause) -> bool:
    """Say whether what a window found is the fault that is known: the same cause at a place that it shares with it.

    Which of several workers is named first differs from window to window; where nothing is named, it is spread over the job.
    """
    if cause != found.cause:
        return False
    return _may_share(where, found.where)


def counts(found: Found) -> bool:
    """Say whether a window counts for a cause."""
    return found.gain >= COUNTED_GAIN and found.cause.confidence >= COUNTED_CONFIDENCE


def _take_same(left: list[Found], cause: str, where: Where, gain: float) -> Found | None:
    """Take what is the same fault out of a list: the costliest where there are several, which are all taken."""
    same = [one for one in left if is_same(cause, where, one.cause)]
    if not same:
        same = [one for one in left if _is_renamed(cause, where, gain, one)]
    for one in same:
        left.remove(one)
    return max(same, key=lambda one: one.gain, default=None)


def _is_renamed(cause: str, where: Where, gain: float, found: Found) -> bool:
    """Say whether these are the same seconds under another name: one that is as likely, or none, in the same place.

    What has neither name nor place takes the name of what costs as much.
    """
    spots = _spots(where)
    if cause == UNKNOWN and not spots:
        return counts(found) and RENAMED_RATIO * found.lasting_gain >= gain
    shares_place = not spots.isdisjoint(_spots(found.cause.where))
    is_as_likely = any(other.cause == cause for other in found.cause.alternatives)
    return (is_as_likely and (shares_place or not spots)) or (shares_place and UNKNOWN in (cause, found.cause.cause))


def _go_on(course: Course, here: Found, window: Window, told_s: float) -> Course:
    """Go on with an episode that a window has."""
    old = course.episode
    is_much = here.lasting_gain >= max(GROWN_RATIO * course.told_gain, course.told_gain + GROWN_GAIN)
    n_grown = course.n_grown + 1 if is_much else 0
    has_grown = n_grown >= N_GROWN
    is_named = old.cause in (here.cause.cause, UNKNOWN)
    named = here.cause if is_named else course.particulars
    episode = replace(
        old,
        cause=named.cause,
        title=old.title if named.cause == old.cause else named.title,
        where=named.where,
        last_step=window.last_step,
        gain=here.lasting_gain,
        peak_gain=max(old.peak_gain, here.lasting_gain),
        confidence=here.cause.confidence,
    )
    return replace(
        course,
        episode=episode,
        particulars=named,
        last_window=window.number,
        longest_gap=max(course.longest_gap, course.n_gone),
        n_gone=0,
        gone_step=here.recovered_step,
        n_grown=0 if has_grown else n_grown,
        told_gain=here.lasting_gain if has_grown else course.told_gain,
        grown_s=(*course.grown_s, told_s) if has_grown else course.grown_s,
        levels=_add_level(course.levels, window),
    )


def _add_level(levels: tuple[tuple[int, float], ...], window: Window) -> tuple[tuple[int, float], ...]:
    """Add how long the steps of a window are."""
    return levels if window.step_s is None else (*levels, (window.number, window.step_s))[-LEVEL_WINDOWS:]


def _has_risen(window: Window, level_s: float) -> bool:
    """Say whether the steps of a window take longer than they did."""
    return window.step_s is not None and window.step_s >= (1.0 + RISEN_SHARE) * level_s


def _is_still_slow(course: Course, left: Sequence[Found], window: Window, usual_s: float | None) -> bool:
    """Say whether steps are as long as with an episode that a window does not show: what slows all alike shows at its onset.

    Where another cause may explain that, nobody knows.
    """
    if usual_s is None or window.step_s is None or not course.levels or any(map(counts, left)):
        return False
    level_s = statistics.median(step_s for _, step_s in course.levels)
    return level_s >= (1.0 + RISEN_SHARE) * usual_s and 2 * window.step_s >= level_s + usual_s


def _last_on(course: Course, window: Window) -> Course:
    """Let an episode last for a window that does not show it."""
    return replace(course, episode=replace(course.episode, last_step=window.last_step), n_gone=0, gone_step=None)


def _miss(course: Course, left: list[Found], window: Window, told_s: float) -> Course:
    """Count a window without an episode; after some it is over, or goes on under another name."""
    n_gone = course.n_gone + 1
    gone_step = window.first_step if course.gone_step is None else course.gone_step
    course = replace(course, n_gone=n_gone, gone_step=gone_step, n_grown=0)
    if n_gone < max(GONE_WINDOWS, GONE_RATIO * course.longest_gap + 1):
        return course
    heir = next((one for one in left if counts(one) and _is_heir(course, one)), None)
    if heir is None:
        return replace(course, episode=replace(course.episode, recovered_step=gone_step, recovered_s=told_s))
    left.remove(heir)
    named = replace(course.episode, cause=heir.cause.cause, title=heir.cause.title, where=heir.cause.where)
    return _go_on(replace(course, episode=named, n_gone=0), heir, window, told_s)


def _is_heir(course: Course, found: Found) -> bool:
    """Say whether a cause may be what an episode was, under another name."""
    shares_place = _may_share(course.episode.where, found.cause.where)
    return shares_place and RENAMED_RATIO * found.lasting_gain >= course.episode.gain


def _may_share(a: Where, b: Where) -> bool:
    """Say whether two places may be one: what is spread over the job is everywhere."""
    spots, others = _spots(a), _spots(b)
    return not spots or not others or not spots.isdisjoint(others)


def _find_explaining(found: Found, began: int, lasting: Sequence[Course], window: Window) -> Course | None:
    """Find the episode that may cost what is found since a window: steps take no longer than with it, or longer than for this."""
    if began < FIRST_WINDOWS or window.step_s is None:
        return None
    is_rest = _has_no_name(found)  # beside something that has one
    for course in lasting:
        level_s = max((step_s for number, step_s in course.levels if number < began), default=math.inf)
        is_why = RENAMED_RATIO * found.gain * window.step_s >= window.step_s - level_s
        may_be = course.n_gone or is_rest or _may_share(course.episode.where, found.cause.where)
        if may_be and not (_has_risen(window, level_s) and is_why):
            return course
    return None


def _name_beside(course: Course, found: Found) -> Course:
    """Let an episode say what else is named while it lasts."""
    known, cause = course.episode.beside, found.cause.cause
    if cause in (*known, course.episode.cause, UNKNOWN):
        return course
    return replace(course, episode=replace(course.episode, beside=(*known, cause)))


def _suspect(
    before: tuple[Suspicion, ...],
    left: list[Found],
    lasting: list[Course],
    window: Window,
    told_s: float,
    job: str,
    usual_s: float | None,
) -> tuple[tuple[Suspicion, ...], list[Course]]:
    """Count windows for causes that are no episode; give those that go on to be suspected, and those that became one.

    What an episode explains stands beside it in `lasting`.
    """
    first = window.number - OF_LAST + 1
    rise = 1.0 - usual_s / window.step_s if usual_s is not None and window.step_s else 0.0
    suspicions: list[Suspicion] = []
    opened: list[Course] = []
    for known in before:
        recent = tuple(one for one in known.sightings if one.window >= first)
        here = _take_same(left, known.cause, known.where, max(one.gain for one in known.sightings))
        if here is not None and counts(here):
            recent = (*recent, here.sighting(window.number))
            where = here.cause.where
        else:
            where = known.where
        suspicion = Suspicion(cause=known.cause, where=where, sightings=recent)
        if here is not None and _opens(here, recent, rise):
            by = _find_explaining(here, recent[0].window, lasting, window)
            if by is None:
                opened.append(_open(here, recent, window, told_s, job))
                continue
            lasting[lasting.index(by)] = _name_beside(by, here)
        if recent:
            suspicions.append(suspicion)
    for here in sorted(left, key=_has_no_name):
        if here not in left or not counts(here):
            continue
        taken = _take_same(left, here.cause.cause, here.cause.where, here.gain) or here
        if window.number:
            taken = taken.since_turn or taken
        sightings = (taken.sighting(window.number),)
        if _opens(taken, sightings, rise):
            beside = [*lasting, *opened] if _has_no_name(taken) else lasting
            by = _find_explaining(taken, window.number, beside, window)
            if by is None:
                opened.append(_open(taken, sightings, window, told_s, job))
                continue
            if by in lasting:
                lasting[lasting.index(by)] = _name_beside(by, taken)
        suspicions.append(Suspicion(cause=taken.cause.cause, where=taken.cause.where, sightings=sightings))
    return tuple(suspicions), opened


def _has_no_name(found: Found) -> bool:
    """Say whether it is time that no cause explains."""
    return found.cause.cause == UNKNOWN


def _opens(found: Found, sightings: Sequence[Sighting], rise: float) -> bool:
    """Say whether a cause costs enough, and surely or often enough, to be an episode; `rise` is all that steps are longer by."""
    if found.gain >= SURE_GAIN and found.cause.confidence >= SURE_CONFIDENCE:
        return True
    return len(sightings) >= N_COUNTED and max(rise, *(one.gain for one in sightings)) >= OPENED_GAIN


def _open(found: Found, sightings: Sequence[Sighting], window: Window, told_s: float, job: str) -> Course:
    """Make an episode of a cause."""
    cause, began = found.cause, sightings[0]
    episode = Episode(
        name=f"{cause.fingerprint}-{job}-{window.number}",
        fingerprint=cause.fingerprint,
        cause=cause.cause,
        title=cause.title,
        where=cause.where,
        first_step=began.first_step,
        last_step=window.last_step,
        began_s=began.began_s,
        told_s=told_s,
        delay_windows=window.number - began.window,
        delay_s=None if began.ended_s is None else max(told_s - began.ended_s, 0.0),
        recovered_step=None,
        recovered_s=None,
        gain=found.lasting_gain,
        peak_gain=max(found.lasting_gain, *(one.gain for one in sightings)),
        confidence=cause.confidence,
    )
    return Course(
        episode=episode,
        particulars=cause,
        first_window=began.window,
        last_window=window.number,
        told_gain=found.lasting_gain,
        told=Told(cause.cause, cause.severity, cause.who),
        levels=_add_level((), window),
        gone_step=found.recovered_step,
    )


def _remember(opened: Course, over: Sequence[Course]) -> Course:
    """Let an episode know how long the same fault was gone before it came back: what is seldom, as a save, is one episode."""
    for known in over:  # the latest first
        if is_same(known.episode.cause, known.episode.where, opened.particulars):
            gap = opened.last_window - known.last_window - 1
            return replace(opened, longest_gap=max(known.longest_gap, gap) if gap <= REMEMBERED_WINDOWS else 0)
    return opened


def _spots(where: Where) -> set[tuple[str, object]]:
    """Name the places of a fault so that two ways to say the same place meet; a link is both of its ends."""
    workers = [*where.workers, *(end for link in where.links for end in link.ends)]
    spots: set[tuple[str, object]] = {("worker", (worker.dp, worker.pp)) for worker in workers}
    spots |= {("host", worker.host) for worker in workers if worker.host}
    return spots | {("host", host) for host in where.hosts} | {("stage", stage) for stage in where.stages}
