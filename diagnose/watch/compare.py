"""What only the windows before a window show: whether its steps are longer than usual.

Enters: a window as it was diagnosed, and the history of its job. Leaves: its causes, one without a name where none says why, and
the history with it.
"""

import dataclasses

from diagnose.model.cause import KeptCause, When
from diagnose.model.diagnosis import Diagnosis
from diagnose.model.fingerprint import name_fault
from diagnose.model.live import Episode, Window
from diagnose.model.place import Where
from diagnose.report.budget import PART_NAMES
from diagnose.watch.episodes import Episodes, Found
from diagnose.watch.pace import MIN_WINDOWS, Pace, Paces
from diagnose.watch.same import COUNTED_GAIN, RISEN_SHARE, UNKNOWN, counts
from diagnose.watch.source import Delivery
from diagnose.watch.window import Diagnosed

#: What a pace is known to be another one with: it differs by more than four deviations. One window alone is no episode: an
#: evaluation, or a save that no row records, lengthens one too.
PACE_CONFIDENCE = 0.85
SLOWER = "unknown cause: steps longer than before"  # and then in which part of them


@dataclasses.dataclass(frozen=True, slots=True)
class Compared:
    """What a window has, with what only the windows before it show."""

    #: Its causes, and one without a name where steps are longer than usual and no cause says why.
    found: list[Found]
    #: With this window, where the job ran as usual in it.
    paces: Paces
    #: Seconds of its steps, without planned work.
    step_s: float | None
    #: The same of a usual step with its work; None where nobody knows.
    usual_s: float | None = None
    #: True where a cause without a name that is not found is not there.
    is_compared: bool = False


def compare(before: Episodes, paces: Paces, diagnosed: Diagnosed, delivery: Delivery) -> Compared:
    """Compare the pace of a window with that of the windows before."""
    diagnosis, window, courses = diagnosed.diagnosis, diagnosed.window, before.open
    assert diagnosis is not None
    is_slow = any(is_slower(course.episode) for course in courses)
    paces = Paces() if delivery.restarts and not is_slow else paces  # a new start is a new base
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
    has_name = any(course.first_window >= MIN_WINDOWS and not is_slower(course.episode) for course in courses)
    if has_name or (has_risen and news):
        return Compared(found, paces, step_s, usual_s, is_compared=bool(news))
    if excess is not None and excess >= COUNTED_GAIN:
        found.append(_make_slower(diagnosis, window, excess, paces.find_longer(now)))
    elif not is_slow or excess is None:  # where the work is another, what was usual says nothing any more
        paces = paces.add(now)
    return Compared(found, paces, step_s, usual_s, is_compared=True)


def is_slower(episode: Episode) -> bool:
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
