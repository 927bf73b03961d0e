"""Waiting for input: forwards of the first stage start late, or stand still, until a batch is there."""

import math

import numpy as np

from diagnose.model.components import Traits
from diagnose.model.stalls import StallKind
from diagnose.model.trace import Bools
from diagnose.whatif.components.attribution import (
    CHANCE,
    CHANCE_DEVIATIONS,
    MANY_A_STEP,
    MAX_COLLECTIONS_A_STEP,
    MIN_STALLS,
    TINY_S,
    LongStalls,
    more_than_chance,
    rate,
)
from diagnose.whatif.components.component import Component, Part

#: The one worker that stalls at all, on the first stage, has a bad loader if it does so in more of its steps.
BAD_LOADER_SHARE = 0.36
#: Of the stalls in forwards of the first stage, so many times the rate elsewhere must be there to be attributed to input.
INPUT_RATE_RATIO = 3.0


def attribute_to_input(found: LongStalls) -> None:
    """Attribute stalls of the first stage's forwards to input: those of a step's first one, or of every one.

    Collections differ from worker to worker, so that a high rate says nothing; but they choose no microbatch, and stop a
    worker at most about once a step. The allocator stalls backwards, too.
    """
    if not found.long[0, 0].any():
        return
    at = np.zeros(found.long.shape, dtype=bool)
    at[0, 0, 0] = _firsts_of_steps(found)
    at[0, 0] |= _all_at_once(found)
    at[0, 0] |= _every_forward(found, at[0, 0])
    found.assign(at & found.long, StallKind.INPUT)


def _firsts_of_steps(found: LongStalls) -> Bools:
    """Mark the first forwards of steps that wait for input, shape (n_steps, n_dp)."""
    long, there, n_stages = found.long, found.there, found.n_stages
    forward, exists = long[0, 0], there[0, 0]  # of the first stage: (n_microbatches, n_steps, n_dp)
    at = np.zeros(forward[0].shape, dtype=bool)
    backward_rate = rate(long[1, 0], there[1, 0])
    first, first_n = int(forward[0].sum()), int(exists[0].sum())
    usual = max(rate(forward[1:], exists[1:]), backward_rate)
    if len(forward) > 1 and more_than_chance(first, first_n, usual, INPUT_RATE_RATIO):
        at[:] = 2.0 * rate(long[0, 1:n_stages, 0], there[0, 1:n_stages, 0]) < first / first_n
    elif len(forward) > 1 or n_stages > 1:
        # What else stalls there does so inside of computes: gaps before them may still be at the first alone.
        late = long & found.late_or_long()[0]
        at = late[0, 0, 0] & _are_late_at_first(late, there, n_stages)
    elif more_than_chance(first, first_n, backward_rate, INPUT_RATE_RATIO):
        # With one forward a step, only whether workers stall in the same ones tells waits from collections.
        for alike in found.late_or_long():
            some = forward[0] & alike[0, 0, 0]
            at |= some & _come_together(some, exists[0] & ~at.any(axis=1, keepdims=True))
    return np.asarray(at)


def _every_forward(found: LongStalls, known: Bools) -> Bools:
    """Mark the forwards of the first stage where every one waits for input, or those of single ranks with a bad loader.

    `known` are those that are known to wait. Shape of both (n_microbatches, n_steps, n_dp).
    """
    long, there, n_stages = found.long, found.there, found.n_stages
    forward, exists = long[0, 0], there[0, 0]
    backward_rate = rate(long[1, 0], there[1, 0])
    left = forward & ~known
    others = max(rate(long[0, 1:n_stages], there[0, 1:n_stages]), backward_rate)
    if more_than_chance(int(forward.sum()), int(exists.sum()), others, INPUT_RATE_RATIO):
        # A loader does mostly the one or the other: what does the other may be collections beside it.
        alike = left & found.late_or_long()[0][0, 0]
        alike = alike if 2 * alike.sum() > left.sum() else left & ~alike
        for each in (alike, left):
            if _is_each(each):
                return np.asarray(each)
        elsewhere = long[0, 1:n_stages]
        if n_stages > 1 and len(forward) == 1 and (_all_above(forward, elsewhere) or _only_here(found)):
            return np.ones(forward.shape, dtype=bool)
    # One bad loader: the first stage of one dp rank, far more often than a collection could.
    by_rank = left.any(axis=0).mean(axis=0)  # (n_dp,)
    alone = (by_rank > 0).sum() == 1 and not long[0, 1:n_stages].any()
    ranks = by_rank > (BAD_LOADER_SHARE if alone else MAX_COLLECTIONS_A_STEP)
    ranks &= by_rank * forward.shape[1] >= MIN_STALLS
    # The allocator of that rank alone would stop its backwards as often.
    backward = long[1, 0].sum(axis=(0, 1)) / np.maximum(there[1, 0].sum(axis=(0, 1)), 1)
    ranks &= np.maximum(backward, backward_rate) * INPUT_RATE_RATIO < by_rank / len(forward)
    return np.broadcast_to(ranks, forward.shape)


def _is_each(forward: Bools) -> bool:
    """Say whether workers stall in most of their steps, or several times in one; shape (n_microbatches, n_steps, n_dp)."""
    per_step = forward.sum(axis=0)
    by_rank = (per_step > 0).mean(axis=0)
    if not by_rank.any():
        return False
    many = float(per_step[per_step > 0].mean())
    return many > MANY_A_STEP or float(np.median(by_rank[by_rank > 0])) > MAX_COLLECTIONS_A_STEP


def _are_late_at_first(late: Bools, there: Bools, n_stages: int) -> bool:
    """Say whether the first forwards of the first stage start late where others do not.

    A collection chooses none of its worker's forwards, and no worker of a stage: a few that are all there are no chance, either.
    """
    first, first_n = int(late[0, 0, 0].sum()), int(there[0, 0, 0].sum())
    other = rate(late[0, 1:n_stages, 0], there[0, 1:n_stages, 0])
    usual = max(rate(late[0, 0, 1:], there[0, 0, 1:]), rate(late[1, 0], there[1, 0]))
    if late.shape[2] == 1:
        usual = max(usual, other)
    if more_than_chance(first, first_n, usual, INPUT_RATE_RATIO):
        return bool(2.0 * other < first / first_n)
    n_forwards = late.shape[2] * (late.shape[1] // n_stages)
    n_workers = int(late[0, 0, 0].any(axis=0).sum())
    return 0 < first == int(late.sum()) and n_forwards**-first * n_stages**-n_workers < CHANCE


def _all_at_once(found: LongStalls) -> Bools:
    """Mark the forwards of the first stage that so many dp ranks wait for at once that no collections explain it.

    They would stop each worker in every second step at most, at any of its forwards; a plan would stop other stages, too, and the
    allocator backwards. Shape (n_microbatches, n_steps, n_dp).
    """
    long, there, n_stages = found.long, found.there, found.n_stages
    together = np.zeros(long[0, 0].shape, dtype=bool)
    if n_stages == 1:
        return together
    n_forwards = long.shape[2] * (long.shape[1] // n_stages)
    backward = long[1, 0].sum(axis=(0, 2)) / np.maximum(there[1, 0].sum(axis=(0, 2)), 1)  # (n_steps,)
    rate = np.minimum(np.maximum(MAX_COLLECTIONS_A_STEP / n_forwards, 2.0 * backward), 1.0 - TINY_S)
    elsewhere = long[0, 1:n_stages].any(axis=1).mean(axis=(0, 2))  # (n_steps,): of the workers
    n = there[0, 0].sum(axis=2)  # (n_microbatches, n_steps)
    for alike in found.late_or_long():
        some = long[0, 0] & alike[0, 0]
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
    return len(here) >= MIN_STALLS and float(np.median(here)) > float(np.quantile(there, 0.9))


def _only_here(found: LongStalls) -> bool:
    """Say whether no other stage's forwards stall, and those of the first on several ranks or before: with one microbatch."""
    long, stalls = found.long, found.stalls
    if long[0, 1 : found.n_stages].any():
        return False
    if long[0, 0].any(axis=(0, 1)).sum() > 1:
        return True
    before_s = float(np.where(long[0, 0], stalls.before_s[0, 0], 0.0).sum())
    return before_s > float(np.where(long[0, 0], stalls.inside_s[0, 0], 0.0).sum())


COMPONENT = Component(
    "input-delay",
    Part,
    inside=StallKind.INPUT,
    before=StallKind.INPUT,
    traits=Traits(first_stage_only=True, stall_kind=StallKind.INPUT),
)
