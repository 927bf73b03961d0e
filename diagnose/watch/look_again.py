"""Look again at an episode that has no sure name: diagnose its windows together with some before it.

Enters: the episodes after a window, and who diagnoses several windows together. Leaves: the episodes, with the names found.

A window of an episode that slows all ranks alike has nothing to compare them with, and twenty steps are too few for what comes
rarely, or grows. Windows since its onset have both, with those before it. This is done when an episode is told, and each time that
it has lasted twice as long, a few times in all.
"""

from collections.abc import Callable, Sequence
from typing import Final

from msgspec.structs import replace

from diagnose.model.live import Window
from diagnose.watch.episodes import Course, Episodes, Found, Told
from diagnose.watch.same import COUNTED_CONFIDENCE, RENAMED_RATIO, UNKNOWN, add_name, counts, is_same, list_rivals

#: Windows before an episode that are diagnosed with it, and windows of it after which that is done.
N_BEFORE: Final = 4
SPANS: Final = (2, 4, 8, 16)

#: Gives what is found in all steps of some windows, from the first to the last one; nothing where they can no more be read.
FindAll = Callable[[Window, Window], Sequence[Found]]


def look_again(episodes: Episodes, windows: Sequence[Window], job: str, find_all: FindAll) -> Episodes:
    """Look for the names of episodes.

    Parameters
    ----------
    episodes : Episodes
        After the last window.
    windows : sequence of Window
        The last windows of the job, oldest first.
    job : str
        What tells this job from all others.
    find_all : callable
        As `FindAll`; asked once for each episode that is due.

    """
    number = windows[-1].number
    courses = list(episodes.open)
    for i, course in enumerate(courses):
        is_new = course.episode.told_s == windows[-1].seen_s + windows[-1].took_s
        lasts = number - course.first_window + 1
        if _has_name(course) or not (is_new or lasts in SPANS):
            continue
        span = _list_span(windows, course.first_window - N_BEFORE)
        if span[0].number >= course.first_window:
            continue  # nothing before it to compare it with
        since = next(window for window in span if window.number >= course.first_window - 1)
        others = [*courses[:i], *courses[i + 1 :]]
        named = _find_name(course, find_all(span[0], span[-1]), since.first_step, others)
        if named is not None:
            courses[i] = _name(course, named, f"{job}-{number}" if is_new else None)
    return replace(episodes, open=tuple(courses))


def _has_name(course: Course) -> bool:
    """Say whether windows say by themselves what an episode is, more likely than not."""
    return course.episode.cause != UNKNOWN and course.particulars.confidence >= COUNTED_CONFIDENCE


def _list_span(windows: Sequence[Window], first: int) -> Sequence[Window]:
    """List the windows from one on, or since the job began again: steps go on from each to the next."""
    span = [window for window in windows if window.number >= first]
    breaks = [i for i in range(1, len(span)) if span[i].first_step <= span[i - 1].last_step]
    return span[max(breaks, default=0) :]


def _find_name(course: Course, found: Sequence[Found], since_step: int, others: Sequence[Course]) -> Found | None:
    """Find the cause that begins with an episode, costs as much, and is surer than what it is called; None where none is."""
    dated = [one.since_turn or one for one in found]
    fits = [
        one
        for one in dated
        if counts(one)
        and one.cause.cause != UNKNOWN
        and one.first_step >= since_step
        and RENAMED_RATIO * one.lasting_gain >= course.episode.gain
        and (course.episode.cause == UNKNOWN or one.cause.confidence > course.particulars.confidence)
        and not any(is_same(other.episode.cause, other.episode.where, one.cause) for other in others)
    ]
    return max(fits, key=lambda one: one.cause.confidence, default=None)


def _name(course: Course, named: Found, told_as: str | None) -> Course:
    """Give an episode a name; one that is told only now, as `told_as`, is told by it."""
    cause = named.cause
    episode = replace(
        course.episode,
        cause=cause.cause,
        title=cause.title,
        where=cause.where,
        confidence=cause.confidence,
        or_else=list_rivals(cause),
    )
    if told_as is None:
        return replace(course, episode=add_name(episode, course.episode.cause), particulars=cause)
    episode = replace(episode, name=f"{cause.fingerprint}-{told_as}", fingerprint=cause.fingerprint)
    return replace(course, episode=episode, particulars=cause, told=Told(cause.cause, cause.severity, cause.who))
