"""Whether what a window has is what is known already: the same cause in the same place, or the same seconds under another name.

Enters: causes and places. Leaves: yes or no.
"""

from collections.abc import Collection, Iterable
from typing import Final

from msgspec.structs import replace

from diagnose.model.cause import CauseId, KeptCause
from diagnose.model.live import Episode, Window
from diagnose.model.place import Where
from diagnose.watch.episodes import Found

#: A window counts for a cause from this gain and confidence on. Confidence is calibrated: at 0.5 it is as likely there as not.
#: Half of the 5% that are told always, so that a window in which it begins halfway counts.
COUNTED_GAIN: Final = 0.025
COUNTED_CONFIDENCE: Final = 0.5
#: Steps are longer than they were where they take this much more.
RISEN_SHARE: Final = 0.025
#: An episode that is gone while another cause in its place costs as much, up to this ratio, goes on under that name.
RENAMED_RATIO: Final = 1.5
#: Computes that are longer here and there go by several of these names, by one window more by this and by the next by that.
IMBALANCES: Final = frozenset({"stage-imbalance", "sequence-imbalance", "expert-imbalance"})
#: The cause that has no name, as the diagnosis calls it.
UNKNOWN = "unknown"


def counts(found: Found) -> bool:
    """Say whether a window counts for a cause."""
    return found.gain >= COUNTED_GAIN and be_sure(found.cause) >= COUNTED_CONFIDENCE


def be_sure(cause: KeptCause) -> float:
    """Say how sure it is that time is lost as a finding says, whichever of its names is right: they share its confidence."""
    return cause.confidence + sum(other.confidence for other in cause.alternatives)


def list_rivals(cause: KeptCause) -> tuple[str, ...]:
    """List what a cause is if it is not that; itself in another place is none."""
    return tuple(dict.fromkeys(other.cause for other in cause.alternatives if other.cause != cause.cause))


def has_no_name(found: Found) -> bool:
    """Say whether it is time that no cause explains."""
    return found.cause.cause == UNKNOWN


def has_risen(window: Window, level_s: float) -> bool:
    """Say whether the steps of a window take longer than they did."""
    return window.step_s is not None and window.step_s >= (1.0 + RISEN_SHARE) * level_s


def is_same(cause: str, where: Where, found: KeptCause) -> bool:
    """Say whether what a window found is the fault that is known: the same cause at a place that it shares with it.

    Which of several workers is named first differs from window to window; where nothing is named, it is spread over the job.
    """
    if cause != found.cause:
        return False
    return may_share(where, found.where)


def take_same(left: list[Found], cause: str, where: Where, gain: float, or_else: Collection[str] = ()) -> Found | None:
    """Take what is the same fault out of a list: the costliest where there are several, which are all taken.

    `or_else` are the causes that are as likely, as far as known.
    """
    same = [one for one in left if is_same(cause, where, one.cause)]
    if not same:
        same = [one for one in left if _is_renamed(cause, where, gain, one, or_else)]
    for one in same:
        left.remove(one)
    return max(same, key=lambda one: one.gain, default=None)


def _is_renamed(cause: str, where: Where, gain: float, found: Found, or_else: Collection[str]) -> bool:
    """Say whether these are the same seconds under another name: one that is as likely, or none, in the same place.

    What has neither name nor place takes the name of what costs as much, and what is spread over the job may lose its name so.
    """
    spots, others = _spots(where), _spots(found.cause.where)
    costs_as_much = counts(found) and RENAMED_RATIO * found.lasting_gain >= gain
    if cause == UNKNOWN and not spots:
        return costs_as_much
    if found.cause.cause == UNKNOWN and not spots and not others and costs_as_much:
        return True
    shares_place = not spots.isdisjoint(others)
    is_as_likely = found.cause.cause in or_else or any(other.cause == cause for other in found.cause.alternatives)
    return (is_as_likely and (shares_place or not spots)) or (shares_place and UNKNOWN in (cause, found.cause.cause))


def are_imbalances(*causes: str) -> bool:
    """Say whether causes may be names of one imbalance."""
    return IMBALANCES.issuperset(causes)


def is_everywhere(where: Where) -> bool:
    """Say whether a fault is spread over the job: no place is named."""
    return not _spots(where)


def join(places: Iterable[Where]) -> Where:
    """Make one place of several."""
    known = list(places)
    return Where(*(tuple({x: None for one in known for x in getattr(one, field)}) for field in Where.__struct_fields__))


def may_share(a: Where, b: Where) -> bool:
    """Say whether two places may be one: what is spread over the job is everywhere."""
    spots, others = _spots(a), _spots(b)
    return not spots or not others or not spots.isdisjoint(others)


def _spots(where: Where) -> set[tuple[str, object]]:
    """Name the places of a fault so that two ways to say the same place meet; a link is both of its ends."""
    spots: set[tuple[str, object]] = {("worker", (worker.dp, worker.pp)) for worker in where.all_workers}
    spots |= {("host", worker.host) for worker in where.all_workers if worker.host}
    return spots | {("host", host) for host in where.hosts} | {("stage", stage) for stage in where.stages}


def add_name(episode: Episode, cause: CauseId) -> Episode:
    """Let an episode say that windows also name a cause, or did so before it was called what it is now."""
    names = dict.fromkeys((*episode.beside, cause))
    return replace(episode, beside=tuple(one for one in names if one not in (episode.cause, UNKNOWN)))
