"""Cut the time of one rank into steps: as the profiler marks them where that fits, else where the weights are updated.

Enters: the marks of the profiler, forwards and backwards, and updates of the weights. Leaves: `Steps`.

Trainers mark steps where it suits them: Lightning within each, between forward and backward; others once a microbatch. An iteration
is told by what it does: forwards and backwards, then an update. Marks that mostly lie inside iterations cut none of them.
"""

import dataclasses

import numpy as np

from diagnose.model.trace import Bools, Ints, Seconds

#: Marks of which more lie inside iterations mark no ends of steps; a step that skips its update, as loss scaling may, is rare.
MOST_INSIDE = 0.25
#: A step may hold so many updates in turn, as that of a generator and a discriminator does.
MAX_UPDATES = 4


@dataclasses.dataclass(frozen=True, slots=True)
class Steps:
    """Steps of one rank by start; shape (n_steps,) each, microseconds of the file."""

    numbers: Ints
    starts: Seconds
    ends: Seconds
    #: Who marks them: the "profiler", "updates" of weights, or "backwards" before forwards where no update is known.
    by: str = "profiler"
    #: The profiler's marks, where they are there, were set aside.
    moved: bool = False


@dataclasses.dataclass(frozen=True, slots=True)
class Computes:
    """Forwards and backwards of one rank by start; shape (n,) each, microseconds of the file."""

    start: Seconds
    end: Seconds
    forward: Bools
    #: What each does, as far as it is known: two that do the same have the same number.
    size: Ints


def cut_steps(
    marked: Steps, computes: Computes, updates: tuple[Seconds, Seconds], apart: Seconds, *, cycles: bool
) -> Steps:
    """Cut steps.

    Parameters
    ----------
    marked : Steps
        As the profiler marks them; may be empty.
    updates : tuple of two ndarray of float64, shape (n_updates,)
        Starts and ends of updates of the weights, none inside another.
    apart : ndarray of float64, shape (n,)
        When the host began to fetch input, or an update.
    cycles : bool
        Whether each forward after a backward begins a step where no update is known; in a pipeline it does not.
    """
    if len(marked.ends):  # one that goes on then was cut off
        whole = updates[1] <= marked.ends[-1]
        updates = updates[0][whole], updates[1][whole]
    found = _cut_at_updates(computes, updates) if len(updates[0]) else None
    if not len(marked.numbers):
        if found is None:
            return _cut_at_forwards(computes, apart) if cycles else marked
        return _join_updates(found, computes)
    if found is None or not _are_inside(marked.starts[1:], found, computes):
        return marked
    at = np.searchsorted(marked.starts, found.ends, side="right") - 1
    known = at >= 0
    numbers = marked.numbers[at[known]]
    if len(np.unique(numbers)) < len(numbers):
        numbers = np.arange(len(numbers))
    return Steps(numbers, found.starts[known], found.ends[known], by="updates", moved=True)


def _cut_at_updates(computes: Computes, updates: tuple[Seconds, Seconds]) -> Steps:
    """End a step with the last update before the next forward or backward; what begins or ends in the middle of one is none."""
    before = np.searchsorted(computes.start, updates[0])
    last = np.flatnonzero(np.append(np.diff(before) > 0, True) & (before > 0))
    ends, first = updates[1][last], np.r_[0, before[last][:-1]].astype(np.int64)
    starts = np.r_[-np.inf, ends[:-1]]
    n_forward = np.r_[0, np.cumsum(computes.forward)]
    n_all = before[last] - first
    forwards = n_forward[before[last]] - n_forward[first]
    whole = (forwards > 0) & (forwards < n_all)
    if len(whole) > 1:  # the recording may have begun in the middle of the first one
        whole[0] &= bool(computes.forward[0]) and n_all[0] == n_all[1]
    return Steps(np.arange(int(whole.sum())), starts[whole], ends[whole], by="updates")


def _cut_at_forwards(computes: Computes, apart: Seconds) -> Steps:
    """End a step where something else, or a forward, begins after a backward."""
    first = np.flatnonzero(computes.forward & np.r_[True, ~computes.forward[:-1]])  # forwards that begin a step
    if not len(first) or computes.forward.all():
        return Steps(np.zeros(0, dtype=np.int64), np.zeros(0), np.zeros(0))
    begins = computes.start[first]
    ended = np.r_[-np.inf, computes.end[first[1:] - 1]]
    at = np.searchsorted(apart, ended, side="right")
    begins = np.minimum(begins, np.r_[apart, np.inf][at])
    return Steps(np.arange(len(begins)), begins, np.r_[begins[1:], np.inf], by="backwards")


def _are_inside(marks: Seconds, found: Steps, computes: Computes) -> bool:
    """Say whether marks mostly lie between the first compute of an iteration and the end of its update."""
    if not len(marks) or not len(found.ends):
        return False
    at = np.searchsorted(found.ends, marks)
    of = np.minimum(at, len(found.ends) - 1)
    first = np.searchsorted(computes.start, found.starts[of])
    begun = computes.start[np.minimum(first, len(computes.start) - 1)] < marks
    inside = (at < len(found.ends)) & (found.starts[of] < marks) & begun
    return bool(inside.mean() > MOST_INSIDE)


def _join_updates(found: Steps, computes: Computes) -> Steps:
    """Put iterations together that take turns, exactly: one step updates several models, one after the other."""
    first, last = np.searchsorted(computes.start, found.starts), np.searchsorted(computes.start, found.ends)
    total = np.r_[0, np.cumsum(computes.size)]
    n_all = np.cumsum(np.r_[0, computes.size * computes.forward])
    does = np.stack([total[last] - total[first], n_all[last] - n_all[first]], axis=1)
    if (does == does[:1]).all():
        return found
    for n in range(2, MAX_UPDATES + 1):
        n_steps = len(does) // n
        if n_steps >= 2 and (does[n:] == does[:-n]).all():
            at = np.arange(n_steps) * n
            return Steps(np.arange(n_steps), found.starts[at], found.ends[at + n - 1], by="updates")
    return found
