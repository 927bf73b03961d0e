"""Which causes of a job are episodes: since when, how much they cost by now, and when they are over.

Enters: the causes of one window after the other. Leaves: the episodes, and what became of them with this window.

One bad window is no episode. A cause opens one where it costs enough in two of four windows, or much and almost surely in one; it
is over where it is gone for longer than it ever was in between. What a window could not look for neither opens nor ends anything.
Nor does one window name what others had no name for: most of the last ones do.
"""

import math
import statistics
from collections.abc import Callable, Sequence
from typing import Final

from msgspec.structs import replace

from diagnose.model.live import Episode, Window
from diagnose.model.place import Where
from diagnose.watch.episodes import LEVEL_WINDOWS, Course, Episodes, Found, add_level
from diagnose.watch.same import (
    RENAMED_RATIO,
    RISEN_SHARE,
    UNKNOWN,
    add_name,
    are_imbalances,
    counts,
    has_no_name,
    has_risen,
    is_everywhere,
    join,
    list_rivals,
    may_share,
    take_same,
)
from diagnose.watch.suspect import suspect

#: Windows without it before it is over: at least; how many times the longest gap that there was, at most; so many more than that
#: gap, where chance makes no gap as long once in so many times.
GONE_WINDOWS = 3
GONE_RATIO: Final = 3
LONGER: Final = 2
CHANCE: Final = 1e-3
#: It is told again when it costs this much more than when it was told last, in two windows one after the other.
GROWN_RATIO: Final = 1.5
GROWN_GAIN: Final = 0.05
N_GROWN = 2
#: Episodes that are over, and are kept to be shown.
MOST_OVER = 50


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
    most = _most_lost(window, usual_s)
    # What has no name takes what those that have one leave.
    named_first = sorted(before.open, key=lambda course: course.episode.cause == UNKNOWN)
    same = {course.episode.name: _take(left, course, most) for course in named_first}
    courses: list[Course] = []
    for course in before.open:
        here = same[course.episode.name]
        if here is not None:
            courses.append(_go_on(course, here, window, told_s))
        elif _is_still_slow(course, left, window, usual_s):
            courses.append(_last_on(course, window))
        elif checked(course.episode):
            courses.append(_miss(course, left, window, told_s))
        else:
            courses.append(course)
    lasting = [course for course in courses if course.is_open]
    if usual_s is not None and not has_risen(window, usual_s):
        left = []
    suspicions, opened = suspect(before, left, lasting, window, told_s, job, usual_s)
    over = [course for course in courses if not course.is_open]
    return Episodes(
        open=(*lasting, *opened),
        over=(*over, *before.over)[:MOST_OVER],
        suspicions=suspicions,
    )


def _take(left: list[Found], course: Course, most: float) -> Found | None:
    """Take what an episode is in a window out of what was found there.

    Of a fault of several places a window may show one, and the next one another.
    """
    old = course.episode
    where = old.where if is_everywhere(old.where) else join((old.where, *(where for _, where in course.called)))
    gain = min(old.gain, most)
    here = take_same(left, old.cause, where, gain, old.or_else)
    if here is None:  # what is named beside it may be all that a window shows of it
        beside = [one for one in left if one.cause.cause in old.beside and may_share(old.where, one.cause.where)]
        fits = [one for one in beside if are_imbalances(old.cause, one.cause.cause) or _is_heir(old.where, gain, one)]
        here = fits[0] if fits else None
        left[:] = [one for one in left if one is not here]
    return here


def _most_lost(window: Window, usual_s: float | None) -> float:
    """Say which part of a step time a window may lose at most: what its steps are longer by than usual, where they are."""
    if usual_s is None or window.step_s is None or not has_risen(window, usual_s):
        return 1.0
    return 1.0 - usual_s / window.step_s


def _go_on(course: Course, here: Found, window: Window, told_s: float) -> Course:
    """Go on with an episode that a window has."""
    old = course.episode
    is_much = here.lasting_gain >= max(GROWN_RATIO * course.told_gain, course.told_gain + GROWN_GAIN)
    n_grown = course.n_grown + 1 if is_much else 0
    has_grown = n_grown >= N_GROWN
    called = (*course.called, (here.cause.cause, here.cause.where))[-LEVEL_WINDOWS:]
    is_most = 2 * sum(name == here.cause.cause for name, _ in called) > len(called)
    is_named = old.cause == here.cause.cause or (is_most and (old.cause == UNKNOWN or here.cause.cause in old.beside))
    named = here.cause if is_named else course.particulars
    episode = replace(
        old,
        cause=named.cause,
        title=old.title if named.cause == old.cause else named.title,
        where=named.where,
        last_step=window.last_step,
        gain=here.lasting_gain,
        peak_gain=max(old.peak_gain, here.lasting_gain),
        confidence=named.confidence,
        or_else=list_rivals(named),
    )
    return replace(
        course,
        episode=add_name(episode, old.cause),
        particulars=named,
        last_window=window.number,
        longest_gap=max(course.longest_gap, course.n_gone),
        n_here=course.n_here + 1,
        n_between=course.n_between + course.n_gone,
        n_gone=0,
        gone_step=here.recovered_step,
        n_grown=0 if has_grown else n_grown,
        told_gain=here.lasting_gain if has_grown else course.told_gain,
        grown_s=(*course.grown_s, told_s) if has_grown else course.grown_s,
        levels=add_level(course.levels, window),
        called=called,
    )


def _is_still_slow(course: Course, left: Sequence[Found], window: Window, usual_s: float | None) -> bool:
    """Say whether steps are as long as with an episode that a window does not show: what slows all alike shows at its onset.

    Where another cause may explain that, nobody knows; time without a name may be what a window shows of the episode.
    """
    place = course.episode.where
    others = [one for one in left if counts(one) and not (has_no_name(one) and may_share(place, one.cause.where))]
    if usual_s is None or window.step_s is None or not course.levels or others:
        return False
    level_s = statistics.median(step_s for _, step_s in course.levels[-LEVEL_WINDOWS:])
    return level_s >= (1.0 + RISEN_SHARE) * usual_s and 2 * window.step_s >= level_s + usual_s


def _last_on(course: Course, window: Window) -> Course:
    """Let an episode last for a window that does not show it."""
    return replace(course, episode=replace(course.episode, last_step=window.last_step), n_gone=0, gone_step=None)


def _miss(course: Course, left: list[Found], window: Window, told_s: float) -> Course:
    """Count a window without an episode; after some it is over, or goes on under another name."""
    n_gone = course.n_gone + 1
    gone_step = window.first_step if course.gone_step is None else course.gone_step
    course = replace(course, n_gone=n_gone, gone_step=gone_step, n_grown=0)
    if n_gone < _gap_that_ends(course):
        return course
    heir = next((one for one in left if _is_heir(course.episode.where, course.episode.gain, one)), None)
    if heir is None:
        return replace(course, episode=replace(course.episode, recovered_step=gone_step, recovered_s=told_s), levels=())
    left.remove(heir)
    course = replace(course, n_gone=0)
    if not has_no_name(heir):  # else the name that it had says more
        named = replace(course.episode, cause=heir.cause.cause, title=heir.cause.title, where=heir.cause.where)
        course = replace(course, episode=add_name(named, course.episode.cause))
    return _go_on(course, heir, window, told_s)


def _gap_that_ends(course: Course) -> int:
    """Say after how many windows without it an episode is over.

    One gap may be the first of many that get longer; what was there all the time but for a window or two does not stay away by
    chance.
    """
    absent = (course.n_between + 1) / (course.n_here + course.n_between + 2)
    by_chance = math.ceil(math.log(CHANCE) / math.log(absent))
    most = GONE_RATIO * course.longest_gap + 1
    return max(GONE_WINDOWS, min(most, max(course.longest_gap + LONGER, by_chance)))


def _is_heir(where: Where, gain: float, found: Found) -> bool:
    """Say whether a cause may be what an episode was, under another name."""
    return counts(found) and may_share(where, found.cause.where) and RENAMED_RATIO * found.lasting_gain >= gain
