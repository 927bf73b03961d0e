"""Waiting for input: workers begin a step late, or forwards of the stages that read data stand still, until a batch is there."""

import dataclasses
import math

import numpy as np

from diagnose.model.components import Traits
from diagnose.model.stalls import MIN_STALLS, StallKind, find_counted
from diagnose.model.trace import Bools, Seconds
from diagnose.numerics.chance import chance_of_many
from diagnose.numerics.robust import median
from diagnose.whatif.components.attribution import (
    CHANCE,
    CHANCE_DEVIATIONS,
    MANY_A_STEP,
    MAX_COLLECTIONS_A_STEP,
    TINY_S,
    LongStalls,
    more_than_chance,
    rate,
)
from diagnose.whatif.components.component import Component, Part

#: The one worker that stalls at all, on a stage that reads data, has a bad loader if it does so in more of its steps.
BAD_LOADER_SHARE = 0.36
#: Of the stalls in forwards of a stage that reads data, so many times the rate elsewhere must be there to be attributed to input.
INPUT_RATE_RATIO = 3.0
#: In the steps in which it collects a worker does so once or twice, whichever the forward; a late loader holds up more, or this
#: part of all forwards.
COLLECTIONS_A_STEP = 2.2
#: This part of the seconds by which computes begin late is nearly all of them.
NEARLY_ALL = 0.9
MOST_FORWARDS = 0.75
#: One wait at both ends may be a host that stood still.
MIN_BOTH = 2
#: Stalls of this part of the length of others may have the same reason.
OTHER_SIZE_SHARE = 0.2


def attribute_to_input(found: LongStalls) -> None:
    """Attribute stalls of forwards to input on the stages that read data: those of a step's first one, or of every one.

    Collections differ from worker to worker, so that a high rate says nothing; but they choose no microbatch, and stop a
    worker at most about once a step, or by a count of its own. The allocator stalls backwards, too.
    """
    if found.reads_input is False:
        return
    at = np.zeros(found.long.shape, dtype=bool)
    _mark_both_ends(found, at)
    readers = _find_readers(found)
    for reader in readers:
        here = _Reader(found, reader, [v for v in range(found.n_stages) if v not in readers])
        if here.forward.any():
            at[0, reader, 0] |= _firsts_of_steps(here)
            at[0, reader] |= _all_at_once(here)
            at[0, reader] |= _every_forward(here, at[0, reader])
    *_, last = readers
    if last and _is_each(at[0, 0] | found.stalls.of_kind(StallKind.INPUT)[1][0, 0]):
        # Where inputs are late for every microbatch so are labels, as far as they are seen to be.
        at[0, last] |= found.late_or_long(0, last)[0]
    if at.any():
        counted = find_counted(found.stalls, found.steps, found.n_stages)
        at &= ~np.tile(counted, (found.long.shape[1] // found.n_stages, 1))[:, None, None]
    found.assign(at & found.long, StallKind.INPUT)


@dataclasses.dataclass(frozen=True, slots=True)
class _Reader:
    """The computes of a virtual stage that reads data, and the virtual stages of the first chunk that do not."""

    found: LongStalls
    stage: int
    others: list[int]

    @property
    def forward(self) -> Bools:
        """Mark its forwards that stall, shape (n_microbatches, n_steps, n_dp)."""
        return np.asarray(self.found.long[0, self.stage])

    @property
    def exists(self) -> Bools:
        """Mark the forwards that there are, same shape."""
        return np.asarray(self.found.there[0, self.stage])

    @property
    def stalled_backwards(self) -> Bools:
        """Mark its backwards that stall, those of another size too, shape (n_directions - 1, n_microbatches, n_steps, n_dp)."""
        stalls, here = self.found.stalls, (slice(1, None), self.stage)
        seconds, long = stalls.inside_s + stalls.before_s, self.found.long
        least_s = (
            OTHER_SIZE_SHARE * float(median(seconds[0, self.stage][self.forward])) if self.forward.any() else np.inf
        )
        untold = (stalls.inside[here] == 0) & (stalls.before[here] == 0)
        return np.asarray(long[here] | (untold & (seconds[here] >= least_s)))

    @property
    def backward_rate(self) -> float:
        """How frequent stalls of its backwards are: of the direction that has most."""
        there = self.found.there[1:, self.stage]
        return max(rate(*of) for of in zip(self.stalled_backwards, there, strict=True))

    @property
    def stopped_both_ways(self) -> Bools:
        """Mark the dp ranks whose backwards stall about as often as their forwards, shape (n_dp,): a loader does not stop those.

        However many ranks beside them stall in forwards alone, and for what else.
        """
        n_stalled = self.stalled_backwards.sum(axis=(1, 2))  # (n_directions - 1, n_dp)
        backward = n_stalled / np.maximum(self.found.there[1:, self.stage].sum(axis=(1, 2)), 1)
        forward = self.forward.sum(axis=(0, 1)) / np.maximum(self.exists.sum(axis=(0, 1)), 1)
        return np.asarray(((n_stalled >= MIN_STALLS) & (forward <= INPUT_RATE_RATIO * backward)).any(axis=0))


def _find_readers(found: LongStalls) -> list[int]:
    """List the virtual stages that read data: the first, and what ends the model, for labels, where it stalls as the first does."""
    long = found.long
    last = found.last % long.shape[1]
    if found.n_stages == 1 or not long[0, last].any():
        return [0]
    # What is known to wait, of another size or by rows, reads data all the same.
    long = np.logical_or.reduce([long, *found.stalls.of_kind(StallKind.INPUT)])
    middle = [v for v in range(1, found.n_stages) if v != last % found.n_stages]
    for only_first in (True, False):
        pick = slice(0, 1) if only_first else slice(None)
        usual = max(
            rate(long[0, middle, pick], found.there[0, middle, pick]),
            *(rate(long[1:, v], found.there[1:, v]) for v in (0, last)),
        )
        if only_first:
            rests = [(long[0, v, 1:], found.there[0, v, 1:]) for v in (0, last)]
            usual = max(usual, *(rate(*rest) for rest in rests))
        elif not middle and not all(_is_each(np.asarray(long[0, v])) for v in (0, last)):
            continue  # nothing to compare with, and no more often than workers collect
        stalled = [(int(long[0, v, pick].sum()), int(found.there[0, v, pick].sum())) for v in (0, last)]
        if all(more_than_chance(n_stalled, n, usual, INPUT_RATE_RATIO) for n_stalled, n in stalled):
            return [0, last]
    return [0, last] if _are_labels_late(found, last) else [0]


def _are_labels_late(found: LongStalls, last: int) -> bool:
    """Say whether ranks of the stage that ends the model alone begin forwards late, in most steps the first, or every one.

    Or more of them than chance puts on that stage, and at the first microbatch: collections choose none.
    """
    late_s = np.where(found.long & (found.stalls.before_s > found.stalls.inside_s), found.stalls.before_s, 0.0)
    # Stages whose backwards stall, too, have something else: as the allocator, which lets some computes begin late.
    seconds = np.where(found.long, found.stalls.inside_s + found.stalls.before_s, 0.0).sum(axis=(2, 3, 4))
    by_stage = seconds.reshape(len(seconds), -1, found.n_stages).sum(axis=1)
    stalls_both = by_stage[1:].sum(axis=0) > (1.0 - NEARLY_ALL) * by_stage[0]
    quiet = np.tile(~stalls_both, late_s.shape[1] // found.n_stages)
    own_s = late_s[0, last]
    if not own_s.any() or own_s.sum() < NEARLY_ALL * late_s[:, quiet].sum() or not quiet[last]:
        return False
    # A stray one here or there says nothing: it is weighed by its seconds.
    late: Bools = own_s > (1.0 - NEARLY_ALL) * own_s.max()
    in_steps = late.any(axis=0).sum(axis=0)  # (n_dp,)
    chance = float(np.count_nonzero(~stalls_both)) ** (1 - np.count_nonzero(in_steps))
    at_first = own_s[0].sum() >= NEARLY_ALL * own_s.sum()
    if at_first:
        chance *= float(len(late)) ** (1 - int(late[0].sum()))
    if chance < CHANCE:
        return True
    if in_steps.sum() >= MIN_STALLS and _are_many_a_step(late):
        return True
    often = (in_steps >= MIN_STALLS) & (in_steps > MAX_COLLECTIONS_A_STEP * late.shape[1])
    return bool(often[in_steps > 0].all() and (at_first or _is_each(late)))


def _mark_both_ends(found: LongStalls, at: Bools) -> None:
    """Mark, in place, first forwards of steps that stall on the stages that begin and end the model, if most do so.

    One rank's inputs and labels come from one loader; no two workers collect at once, and what stops all stops others, too. They
    stall so often in the same steps that neither how often their rank does nor how many others do then explains it.
    """
    last = found.last % found.long.shape[1]
    first = found.long[0, :, 0]  # (n_virtual, n_steps, n_dp)
    middle = [v for v in range(len(first)) if v % found.n_stages not in (0, last % found.n_stages)]
    both: Bools = first[0] & first[last] & ~np.any(first[middle], axis=0)
    n_both, n_begun, n_dp = int(both.sum()), int(first[0].sum()), first.shape[-1]
    if n_both < MIN_BOTH or last % found.n_stages == 0 or not (middle or n_dp > 1):
        return
    of_others = (first[last].sum(axis=1, keepdims=True) - first[last]) / max(n_dp - 1, 1)
    often = (np.broadcast_to(first[last].mean(axis=0), both.shape), of_others)
    by_chance = max(float(of[first[0]].mean()) for of in often)
    is_most = 2 * n_both > max(n_begun, int(first[last].sum()))
    if is_most and chance_of_many(n_both, n_begun, by_chance) < CHANCE:
        at[0, [0, last], 0] |= both


def _firsts_of_steps(here: _Reader) -> Bools:
    """Mark the first forwards of steps that wait for input, shape (n_steps, n_dp)."""
    found, forward, exists = here.found, here.forward, here.exists
    long, there, n_stages = found.long, found.there, found.n_stages
    at = np.zeros(forward[0].shape, dtype=bool)
    first, first_n = int(forward[0].sum()), int(exists[0].sum())
    usual = max(rate(forward[1:], exists[1:]), here.backward_rate)
    if len(forward) > 1 and more_than_chance(first, first_n, usual, INPUT_RATE_RATIO):
        at[:] = 2.0 * rate(long[0, here.others, 0], there[0, here.others, 0]) < rate(forward[0], exists[0])
    elif len(forward) > 1 or n_stages > 1:
        # What else stalls there does so inside of computes: gaps before them may still be at the first alone.
        late = long & (found.stalls.before_s > found.stalls.inside_s)
        at = late[0, here.stage, 0] & _are_late_at_first(late, here)
    elif more_than_chance(first, first_n, here.backward_rate, INPUT_RATE_RATIO):
        # With one forward a step, only whether workers stall in the same ones tells waits from collections.
        for alike in found.late_or_long(0, 0, 0):
            some = forward[0] & alike
            at |= some & _come_together(some, exists[0] & ~at.any(axis=1, keepdims=True))
    return np.asarray(at)


def _every_forward(here: _Reader, known: Bools) -> Bools:
    """Mark the forwards where every one waits for input, or those of single ranks with a bad loader.

    `known` are those that are known to wait. Shape of both (n_microbatches, n_steps, n_dp).
    """
    found, forward, exists = here.found, here.forward & ~here.stopped_both_ways, here.exists
    long, there = found.long, found.there
    left = forward & ~known
    elsewhere = long[0, here.others]
    others = max(rate(elsewhere, there[0, here.others]), here.backward_rate)
    if more_than_chance(int(forward.sum()), int(exists.sum()), others, INPUT_RATE_RATIO):
        # A loader does mostly the one or the other: what does the other may be collections beside it.
        alike = left & found.late_or_long(0, here.stage)[0]
        alike = alike if 2 * alike.sum() > left.sum() else left & ~alike
        for each in (alike, left):
            if _is_each(each):
                return np.asarray(each)
        is_one = len(forward) == 1
        if here.others and (
            _are_all_here(forward, elsewhere) or (is_one and (_all_above(forward, elsewhere) or _only_here(here)))
        ):
            return forward
    # One bad loader: one dp rank, far more often than a collection could.
    by_rank = left.any(axis=0).mean(axis=0)  # (n_dp,)
    alone = (by_rank > 0).sum() == 1 and not elsewhere.any()
    ranks = by_rank > (BAD_LOADER_SHARE if alone else MAX_COLLECTIONS_A_STEP)
    ranks &= by_rank * forward.shape[1] >= MIN_STALLS
    # The allocator of that rank alone would stop its backwards as often.
    n_stalled, n_backward = (a[1:, here.stage].sum(axis=(0, 1, 2)) for a in (long, there))
    backward = n_stalled / np.maximum(n_backward, 1)
    ranks &= np.maximum(backward, here.backward_rate) * INPUT_RATE_RATIO < by_rank / len(forward)
    return np.broadcast_to(ranks, forward.shape)


def _is_each(forward: Bools) -> bool:
    """Say whether workers stall in most of their steps, or several times in one; shape (n_microbatches, n_steps, n_dp)."""
    by_rank = forward.any(axis=0).mean(axis=0)
    often = bool(by_rank.any()) and float(median(by_rank[by_rank > 0])) > MAX_COLLECTIONS_A_STEP
    return often or _are_many_a_step(forward)


def _are_many_a_step(forward: Bools) -> bool:
    """Say whether a worker that stalls does so several times in one step, as none collects; shape as for `_is_each`."""
    per_step = forward.sum(axis=0)
    most = min(COLLECTIONS_A_STEP, MOST_FORWARDS * len(forward))
    return bool(per_step.any()) and float(per_step[per_step > 0].mean()) > max(MANY_A_STEP, most)


def _are_late_at_first(late: Bools, here: _Reader) -> bool:
    """Say whether a step's first forwards start late where others do not.

    A collection chooses none of its worker's forwards, and no worker of a stage: a few that are all there are no chance, either.
    """
    there, n_stages, stage = here.found.there, here.found.n_stages, here.stage
    first, first_n = int(late[0, stage, 0].sum()), int(there[0, stage, 0].sum())
    other = rate(late[0, here.others, 0], there[0, here.others, 0])
    usual = max(rate(late[0, stage, 1:], there[0, stage, 1:]), rate(late[1:, stage], there[1:, stage]))
    if late.shape[2] == 1:
        usual = max(usual, other)
    if more_than_chance(first, first_n, usual, INPUT_RATE_RATIO):
        return bool(2.0 * other < first / first_n)
    n_forwards = late.shape[2] * (late.shape[1] // n_stages)
    n_workers = int(late[0, stage, 0].any(axis=0).sum())
    return 0 < first == int(late.sum()) and n_forwards**-first * n_stages**-n_workers < CHANCE


def _all_at_once(here: _Reader) -> Bools:
    """Mark the forwards that so many dp ranks wait for at once that no collections explain it.

    They would stop each worker in every second step at most, at any of its forwards; a plan would stop other stages, too, and the
    allocator backwards. Shape (n_microbatches, n_steps, n_dp).
    """
    long, there, n_stages, stage = here.found.long, here.found.there, here.found.n_stages, here.stage
    together = np.zeros(here.forward.shape, dtype=bool)
    if not here.others:
        return together
    n_forwards = long.shape[2] * (long.shape[1] // n_stages)
    n_stalled, n_backward = (a[1:, stage].sum(axis=(0, 1, 3)) for a in (long, there))  # (n_steps,)
    backward = n_stalled / np.maximum(n_backward, 1)
    rate = np.minimum(np.maximum(MAX_COLLECTIONS_A_STEP / n_forwards, 2.0 * backward), 1.0 - TINY_S)
    elsewhere = long[0, here.others].any(axis=1).mean(axis=(0, 2))  # (n_steps,): of the workers
    n = here.exists.sum(axis=2)  # (n_microbatches, n_steps)
    for alike in here.found.late_or_long(0, stage):
        some = here.forward & alike
        share = some.sum(axis=2) / np.maximum(n, 1)
        least = np.clip(share, rate, 1.0)
        # Chernoff's bound of the chance that so large a part stalls, were it by themselves.
        less = np.where(least < 1.0, (1.0 - least) * np.log(np.maximum(1.0 - least, TINY_S) / (1.0 - rate)), 0.0)
        chance = np.exp(-n * (least * np.log(least / rate) + less))
        together |= some & ((chance * share.size < CHANCE) & (2.0 * elsewhere < share))[:, :, None]
    return together


def _come_together(stalled: Bools, there: Bools) -> bool:
    """Say whether workers, shape (n_steps, n_dp), stall in the same steps far more than if they did not know of each other.

    By how much their number differs from one step to the next, as stalls may get more frequent with time, from the first to the
    last: before and after that what makes them stall is not there. Those that are not there count neither way. Ranks whose
    collections keep step would look the same; those of real jobs do not (arXiv 2505.05713, section 5.4).
    """
    at = np.flatnonzero(stalled.any(axis=1))
    if len(at) < MIN_STALLS:
        return False
    span = slice(int(at[0]), int(at[-1]) + 1)
    found, n = (stalled & there)[span].sum(axis=1), there[span].sum(axis=1)
    found, n = found[n > 1], n[n > 1]
    rate = float(found.sum()) / max(float(n.sum()), 1.0)
    if len(n) < MIN_STALLS or not 0.0 < rate < 1.0:
        return False
    by_chance = rate * (1.0 - rate) * (1.0 / n[1:] + 1.0 / n[:-1])
    scatter = float((np.diff(found / n) ** 2 / by_chance).sum())
    expected = (
        len(n) - 1
    )  # with a variance of three times that: each square has two, and neighbours have one step in common
    return scatter > expected + CHANCE_DEVIATIONS * math.sqrt(3.0 * expected)


def _all_above(forward: Bools, elsewhere: Bools) -> bool:
    """Say whether most workers of the first stage stall more often than nearly all others: with one microbatch."""
    here, there = forward.sum(axis=(0, 1)), elsewhere.sum(axis=(1, 2)).ravel()
    return len(here) >= MIN_STALLS and float(median(here)) > float(np.quantile(there, 0.9))


def _are_all_here(forward: Bools, elsewhere: Bools) -> bool:
    """Say whether the workers of the stage stall, and hardly any elsewhere: collections choose no stage."""
    here, there = forward.any(axis=(0, 1)), elsewhere.any(axis=(1, 2))  # (n_dp,), (n_others, n_dp)
    by_luck = (1.0 + len(elsewhere)) ** -float(here.sum())
    return more_than_chance(int(here.sum()), here.size, float(there.mean()), INPUT_RATE_RATIO) and by_luck < CHANCE


def _only_here(here: _Reader) -> bool:
    """Say whether no other stage's forwards stall, and those of this one on several ranks or before: with one microbatch."""
    stalls = here.found.stalls
    if here.found.long[0, here.others].any():
        return False
    if here.forward.any(axis=(0, 1)).sum() > 1:
        return True
    before_s = float(np.where(here.forward, stalls.before_s[0, here.stage], 0.0).sum())
    return before_s > float(np.where(here.forward, stalls.inside_s[0, here.stage], 0.0).sum())


class InputDelayPart(Part):
    """What all workers wait for before a step is theirs as well as what they then begin late."""

    def blame(self) -> Seconds | None:
        """Add up the seconds by worker, those before steps too."""
        led_s = self.job.breakdown.led_s
        return self.blame_stalls(None if led_s is None else led_s.copy())


COMPONENT = Component(
    "input-delay",
    InputDelayPart,
    inside=StallKind.INPUT,
    before=StallKind.INPUT,
    traits=Traits(few_stages=True, stall_kind=StallKind.INPUT),
)
