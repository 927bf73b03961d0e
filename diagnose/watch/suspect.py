"""What may become an episode: the windows that count for a cause, until there are enough of them.

Enters: what a window has that belongs to no episode. Leaves: suspicions, and the episodes that were opened.
"""

import math
from collections.abc import Sequence
from typing import Final

from msgspec.structs import replace

from diagnose.model.live import Episode, Window
from diagnose.watch.episodes import LEVEL_WINDOWS, Course, Episodes, Found, Sighting, Suspicion, Told, add_level
from diagnose.watch.pace import highest_usual
from diagnose.watch.same import (
    RENAMED_RATIO,
    UNKNOWN,
    add_name,
    are_imbalances,
    be_sure,
    counts,
    has_no_name,
    has_risen,
    is_same,
    list_rivals,
    may_share,
    take_same,
)

#: So many such windows of the last so many open an episode, if one of them costs as much as this.
N_COUNTED, OF_LAST = 2, 4
OPENED_GAIN: Final = 0.04
#: One window alone opens one at this gain and confidence.
SURE_GAIN: Final = 0.10
SURE_CONFIDENCE: Final = 0.9
#: What comes back after so many windows or fewer comes and goes: it is not over sooner than it came back.
REMEMBERED_WINDOWS = 60
#: While an episode lasts, what else is found may be the same seconds under another name. It is told when steps are longer than in
#: the last windows of the episode, and what has no name when they are longer than in more of them, as steps vary with a fault; else
#: not as long as that lasts, but for the job's first windows.
FIRST_WINDOWS = 5


def suspect(
    before: Episodes,
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
    for known in sorted(before.suspicions, key=lambda one: one.cause == UNKNOWN):
        recent = tuple(one for one in known.sightings if one.window >= first)
        here = take_same(left, known.cause, known.where, max(one.gain for one in known.sightings))
        if here is not None and counts(here):
            recent = (*recent, here.sighting(window.number))
            where = here.cause.where
        else:
            where = known.where
        suspicion = Suspicion(cause=known.cause, where=where, sightings=recent)
        if here is not None and _opens(here, recent, rise):
            by = _find_explaining(here, recent[0].window, [*lasting, *opened], window, usual_s)
            if by is None:
                opened.append(_open(here, recent, window, told_s, job))
                continue
            _name_beside(by, here, lasting, opened)
        if recent:
            suspicions.append(suspicion)
    for here in sorted(left, key=has_no_name):
        if here not in left or not counts(here):
            continue
        taken = take_same(left, here.cause.cause, here.cause.where, here.gain) or here
        if window.number:
            taken = taken.since_turn or taken
        sightings = (taken.sighting(window.number),)
        if _opens(taken, sightings, rise):
            by = _find_explaining(taken, window.number, [*lasting, *opened], window, usual_s)
            if by is None:
                opened.append(_open(taken, sightings, window, told_s, job))
                continue
            _name_beside(by, taken, lasting, opened)
        suspicions.append(Suspicion(cause=taken.cause.cause, where=taken.cause.where, sightings=sightings))
    return tuple(suspicions), [_remember(course, before.over) for course in opened]


def _find_explaining(
    found: Found, began: int, lasting: Sequence[Course], window: Window, usual_s: float | None
) -> Course | None:
    """Find the episode that may cost what is found since a window: steps take no longer than with it, or longer than for this.

    Where both began at once, steps with it take as long as usual and what it costs. Of two imbalances one is the other's name: no
    layout of stages begins in a job, and what is uneven makes some windows longer than others. That it grows is told.
    """
    if began < FIRST_WINDOWS or window.step_s is None:
        return None
    is_rest = has_no_name(found)  # beside something that has one
    for course in lasting:
        levels_s = [step_s for number, step_s in course.levels if number < began]
        if levels_s or is_rest or usual_s is None:
            level_s = _highest(levels_s if is_rest else levels_s[-LEVEL_WINDOWS:])
            is_why = RENAMED_RATIO * found.gain * window.step_s >= window.step_s - level_s
        else:
            level_s, is_why = usual_s / (1.0 - course.episode.gain), True
        is_why &= not are_imbalances(course.episode.cause, found.cause.cause)
        may_be = course.n_gone or is_rest or may_share(course.episode.where, found.cause.where)
        if may_be and not (has_risen(window, level_s) and is_why):
            return course
    return None


def _highest(levels_s: Sequence[float]) -> float:
    """Say how long steps are with an episode, seconds: as in its longest window, or as its windows vary where that is more.

    One window does not tell how they vary, and it may begin with steps that do not have it yet.
    """
    return max(*levels_s, highest_usual(levels_s)) if len(levels_s) >= N_COUNTED else math.inf


def _name_beside(course: Course, found: Found, *lists: list[Course]) -> None:
    """Let an episode say what else is named while it lasts, in the list that it stands in."""
    for courses in lists:
        if course in courses:
            courses[courses.index(course)] = replace(course, episode=add_name(course.episode, found.cause.cause))


def _opens(found: Found, sightings: Sequence[Sighting], rise: float) -> bool:
    """Say whether a cause costs enough, and surely or often enough, to be an episode; `rise` is all that steps are longer by."""
    if found.gain >= SURE_GAIN and be_sure(found.cause) >= SURE_CONFIDENCE:
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
        or_else=list_rivals(cause),
    )
    return Course(
        episode=episode,
        particulars=cause,
        first_window=began.window,
        last_window=window.number,
        told_gain=found.lasting_gain,
        told=Told(cause.cause, cause.severity, cause.who),
        levels=add_level((), window),
        called=((cause.cause, cause.where),),
        gone_step=found.recovered_step,
    )


def _remember(opened: Course, over: Sequence[Course]) -> Course:
    """Let an episode know how long the same fault was gone before it came back: what is seldom, as a save, is one episode."""
    for known in over:  # the latest first
        if is_same(known.episode.cause, known.episode.where, opened.particulars):
            gap = opened.last_window - known.last_window - 1
            if gap > REMEMBERED_WINDOWS:
                return opened
            return replace(
                opened,
                longest_gap=max(known.longest_gap, gap),
                n_here=known.n_here + opened.n_here,
                n_between=known.n_between + gap,
            )
    return opened
