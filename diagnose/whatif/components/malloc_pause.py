"""Pauses of the memory allocator: workers whose memory is nearly full stop, in backwards too."""

import numpy as np

from diagnose.model.components import Traits
from diagnose.model.stalls import MIN_STALLS, StallKind, Stalls
from diagnose.model.trace import Bools, Ints, Seconds
from diagnose.numerics.chance import (
    chance_of_excess,
    chance_of_growth,
    chance_of_many,
    weigh_part_against_length,
    weigh_time_against_count,
)
from diagnose.numerics.robust import nan_median, nan_quantile
from diagnose.whatif.components.attribution import CHANCE, LIKE_RATIO, TINY_S, LongStalls, rate
from diagnose.whatif.components.component import Component, Part

#: Workers on whose backwards stalls are so many times as frequent as on a usual worker have a bad allocator.
ALLOCATOR_RATE_RATIO = 3.0
#: Workers that share an allocator's trouble without being a whole stage, at most.
MAX_MARKED_WORKERS = 64
#: Lengths of stalls are compared in levels, so many for each doubling; so many times as many forwards as
#: backwards are not the allocator's.
LEVELS_A_DOUBLING = 1
FORWARD_RATIO = 3.0
#: Microbatches are long by what is in them where so many of the stalls of the direction with fewer are in those of the other, too,
#: longer by a like part (of 80 real and simulated allocators at most 0.33; documents, or images, on one stage 0.85 and more).
OF_MICROBATCH = 0.5
#: Workers with fewer stalls than this part of the most have some by chance.
MUCH_SHARE = 0.25
#: Where computes without stalls are so many times as far apart as those of others they are longer by any part. From this quantile
#: on to their median: of 35 allocators, real, simulated and others, at most 1.3 times in both directions, jitter 1.9 and more.
WIDE_RATIO, LOW_QUANTILE = 1.6, 0.1


def attribute_to_allocator(found: LongStalls) -> None:
    """Attribute stalls in both directions to the allocator: on a fixed part of the workers, or more and more of them on all.

    Collections never stop a backward. What stalls on all workers alike, or on others in each burst, is nobody's.
    """
    long, there, n_stages = found.long, found.there, found.n_stages
    n_chunks = long.shape[1] // n_stages
    shape = (len(long), n_chunks, n_stages, *long.shape[2:])
    # Both (2, n_stages, n_steps, n_dp), in time: forwards, and all that is computed backwards.
    alone = np.concatenate([long[:1], long[1:] & ~found.reached_by(long[0])])
    counts = (a.reshape(shape).sum(axis=(1, 3))[:, :, found.in_time] for a in (alone, there))
    stalled, exists = (np.stack([count[0], count[1:].sum(axis=0)]) for count in counts)
    # Who stops as a slow machine does anyway is no reference.
    slow: Bools = np.any(found.stalls.seconds_of(StallKind.WORKER).reshape(shape), axis=(0, 1, 3, 4))
    marked = _find_subset(stalled[1], exists[1], slow)
    if not marked.any() and _attribute_to_machines(found, _find_alone(found, exists[1]), exists[1]):
        return
    if stalled[1].sum() < MIN_STALLS:
        return
    if not marked.any():
        # Few stalls say more with those of forwards, unless these are so many more that somebody else stops them.
        both = _find_subset(stalled.sum(axis=0), exists.sum(axis=0), slow)
        n_forward, n_backward = (int(of_direction.sum(axis=1)[both].sum()) for of_direction in stalled)
        if n_backward and chance_of_many(n_forward, n_forward + n_backward, 0.5) > CHANCE:
            marked = both
    if not marked.any():
        if not _grow(stalled.sum(axis=(1, 3)), exists.sum(axis=(1, 3))):
            return
        marked[:] = True
    mask = np.tile(marked, (n_chunks, 1))[:, None, None, :]
    at = long & mask[None]
    # Where forwards elsewhere start late as often, or stand still as often, collections do so here, too.
    for alike in found.late_or_long():
        kind = long[0] & alike[0]
        here, elsewhere = rate(kind & mask, there[0] & mask), rate(kind & ~mask, there[0] & ~mask)
        if here <= 2.0 * elsewhere:
            at[0] &= ~kind
    if _attribute_to_machines(found, at, exists[1]):
        return
    alike = at[0] & _as_long_as_backwards(at, found.stalls)
    # Far more forwards than backwards of their length: collections, which hold a backward up now and then.
    if (at[0] & ~alike).sum() > FORWARD_RATIO * at[1:].sum():
        return
    at[0] = alike
    most = _have_most(at, n_stages)
    # A slow machine, or one that another process shares now and then, lengthens a compute by a part; an allocator takes its time.
    # Of any size: those of one size take the same seconds. Where all ranks of a stage have it no single worker is slow.
    theirs = np.tile(most, (n_chunks, 1))[:, None, None, :] & (found.share > 0)
    odds = weigh_part_against_length(theirs, found.share, found.stalls.inside_s + found.stalls.before_s)
    against_chance = _choose_stages(most)
    is_slow = odds - against_chance > -np.log(CHANCE)
    # Memory fills up on the first stages, and ever more; else it is the machine, unless rows tell of the allocator, or more workers
    # lie on so few stages than chance puts there.
    has_rows = bool(np.any(found.stalls.told_of(StallKind.ALLOCATION)))
    is_told = has_rows or against_chance > -np.log(CHANCE)
    is_slow |= bool(most[1:].any()) and not is_told and not _grow(stalled.sum(axis=(1, 3)), exists.sum(axis=(1, 3)))
    is_slow &= not most.all(axis=1).any()
    # What stops processes by the clock, as a quota of their host, asks for no stages; each time it takes as long.
    # Nor does memory make the other computes of a stage longer by any part: there all of its machines are unsteady.
    is_slow |= odds > np.log(CHANCE) and not has_rows and _spread_widely(found, most)
    if odds < 0 and not is_told:
        is_slow |= _come_by_the_clock(found, np.tile(most, (n_chunks, 1))) > -np.log(CHANCE)
    found.assign(at, StallKind.WORKER if is_slow else StallKind.ALLOCATION)
    if is_slow:
        _attribute_beside(found, exists[1])


def _have_most(at: Bools, n_stages: int) -> Bools:
    """Mark the workers that have stalls but for a stray one, shape (n_stages, n_dp); `at` has the axes of durations."""
    by_worker = at.sum(axis=(0, 2, 3)).reshape(-1, n_stages, at.shape[-1]).sum(axis=0)
    return np.asarray(by_worker >= MUCH_SHARE * by_worker.max())


def _attribute_to_machines(found: LongStalls, at: Bools, exists: Ints) -> bool:
    """Say whether both directions of the same microbatches are longer by like parts, and attribute them to machines if those are.

    Documents are as long on all stages of a rank, and a stage's own work is on all of its ranks: what one worker has alone is slow.
    """
    if not _are_of_microbatches(at, found.share):
        return False
    most = _have_most(at, found.n_stages)
    if not (most.all(axis=0).any() or most.all(axis=1).any()) and min(at[0].sum(), at[1:].sum()) >= MIN_STALLS:
        found.assign(at, StallKind.WORKER)
        _attribute_beside(found, exists)
    return True


def _find_alone(found: LongStalls, exists: Ints) -> Bools:
    """Mark stalls of workers that stall far more often than the rest, on last stages, too, where backwards follow their forwards.

    `exists` counts what is computed backwards, shape (n_stages, n_steps, n_dp), in time; the result has the axes of durations.
    """
    slow_s, n_chunks = found.stalls.seconds_of(StallKind.WORKER), found.long.shape[1] // found.n_stages
    backward = found.long[1:] & ~found.reached_by(found.long[0], alike=False)
    by_stage = (len(found.long), n_chunks, found.n_stages, *found.long.shape[2:])
    stalled = backward.reshape(-1, *by_stage[1:]).sum(axis=(0, 1, 3))[:, found.in_time]
    slow: Bools = np.any(slow_s.reshape(by_stage), axis=(0, 1, 3, 4))
    subset, all_s = _find_subset(stalled, exists, slow), found.stalls.inside_s + found.stalls.before_s
    stalled_s = np.where(found.long, all_s, 0.0).reshape(by_stage).sum(axis=(0, 1, 3, 4))
    most = subset & (stalled_s > MUCH_SHARE * stalled_s.max(initial=0.0, where=subset))
    return np.asarray(found.long & np.tile(most, (n_chunks, 1))[:, None, None, :])


def _attribute_beside(found: LongStalls, exists: Ints) -> None:
    """Attribute stalls to machines that are slow beside others that are known to be; `exists` is as for `_find_alone`."""
    at = _find_alone(found, exists)
    if not _are_of_microbatches(at, found.share):
        at[0] &= _as_long_as_backwards(at, found.stalls)
    found.assign(at, StallKind.WORKER)


def attribute_late_to_allocator(found: LongStalls) -> None:
    """Attribute stalls in forwards that begin late for something else to the allocator, where it stops backwards for as long."""
    long, n_stages = found.long, found.n_stages
    stopped = found.stalls.of_kind(StallKind.ALLOCATION)[0]
    n_chunks = long.shape[1] // n_stages
    marked = stopped[1:].any(axis=(0, 2, 3)).reshape(n_chunks, n_stages, -1).any(axis=0)  # (n_stages, n_dp)
    at = np.concatenate([long[:1] & np.tile(marked, (n_chunks, 1))[:, None, None, :], stopped[1:]])
    longest_s = found.stalls.inside_s[1:].max(initial=0.0, where=stopped[1:])
    at[0] &= _as_long_as_backwards(at, found.stalls) & (found.stalls.inside_s[0] <= longest_s)
    at[1:] = False
    found.assign(at, StallKind.ALLOCATION)


def _are_of_microbatches(at: Bools, share: Seconds) -> bool:
    """Say whether both directions of the same microbatches are longer, by like parts: no allocator strikes so, what they hold does.

    Both arrays have the axes of durations, `share` the part by which each is longer.
    """
    ratio = np.divide(share[0], share[1], out=np.zeros_like(share[0]), where=at[0] & at[1] & (share[1] > 0))
    alike = (ratio > 1.0 / LIKE_RATIO) & (ratio < LIKE_RATIO)
    return bool(alike.sum() > OF_MICROBATCH * min(at[0].sum(), at[1].sum()))


def _find_subset(stalled: Ints, there: Ints, slow: Bools) -> Bools:
    """Mark the stages, and workers, whose backwards stall far more often than those of all that are not marked, burst by burst.

    Counts have shape (n_stages, n_steps, n_dp), in time; `slow`, whom nobody is compared with, and the result (n_stages, n_dp).
    """
    n_stages, _, n_dp = stalled.shape
    marked = np.zeros((n_stages, n_dp), dtype=bool)
    of_stage = stalled.sum(axis=(1, 2))
    order = np.argsort(-of_stage, kind="stable")
    # As many as there are, together against the rest: where half of the stages stall, none does far more often than all others.
    # More than half have no full memory: it gets emptier from stage to stage.
    for n_marked in range(n_stages // 2 + n_stages % 2, 0, -1) if n_stages > 1 else ():
        rest, least = np.zeros_like(marked), np.zeros_like(marked)
        rest[order[n_marked:]], least[order[n_marked - 1]] = True, True
        if _is_apart(stalled, there, least, rest & ~slow, n_stages):
            marked[order[:n_marked]] = True
            return marked
    # Not a whole stage: single workers, or a host, or a replica, all of which stall far more often than the rest.
    order = np.argsort(-stalled.sum(axis=1), axis=None, kind="stable")
    for n_marked in range(min(MAX_MARKED_WORKERS, (marked.size + 1) // 2), 0, -1):
        rest, least = np.ones_like(marked), np.zeros_like(marked)
        rest.flat[order[:n_marked]], least.flat[order[n_marked - 1]] = False, True
        if _is_apart(stalled, there, least, rest & ~slow, marked.size):
            return ~rest
    return marked


def _come_by_the_clock(found: LongStalls, theirs: Bools) -> float:
    """Give the log odds that workers, shape (n_virtual, n_dp), stop by the clock, and not in a part of their computes.

    All that stands out counts, and no compute of which is known what holds it up.
    """
    stalls, at = found.stalls, np.broadcast_to(theirs[:, None, None, :], found.long.shape)
    known = ((stalls.inside > 0) & (stalls.inside_s > 0)) | ((stalls.before > 0) & (stalls.before_s > 0))
    stopped_s = np.where(found.long, stalls.inside_s + stalls.before_s, 0.0)
    return weigh_time_against_count(at & ~known, stopped_s, np.nan_to_num(found.work_s))


def _spread_widely(found: LongStalls, most: Bools) -> bool:
    """Say whether computes of workers with stalls are longer by any part, up to a stall's: an allocator leaves most as they were.

    In both directions those that do not stall are, below the usual of them, far further apart than on the other workers; `most` has
    shape (n_stages, n_dp).
    """
    if most.all():
        return False
    # Of weight gradients their input's tell.
    quiet = np.log(np.where(found.share > 0, np.nan, np.maximum(found.work_s, TINY_S))[:2])
    below = nan_median(quiet, axis=(2, 3)) - nan_quantile(quiet, LOW_QUANTILE, axis=(2, 3))
    below = below.reshape(2, -1, *most.shape)  # direction, chunk, stage, dp
    here, elsewhere = (nan_median(below[:, :, mask], axis=(1, 2)) for mask in (most, ~most))
    return bool((here > WIDE_RATIO * elsewhere).all())


def _choose_stages(most: Bools) -> float:
    """Give the log odds against chance that several workers lie on so few stages; shape (n_stages, n_dp).

    Machines choose no stage, memory does. Neighbours on a stage may be of one host, and are one.
    """
    n_apart = int((most & ~np.roll(most, 1, axis=1)).sum())
    return max(n_apart - 1, 0) * float(np.log(len(most) / max(most.any(axis=1).sum(), 1)))


def _grow(stalled: Ints, there: Ints) -> bool:
    """Say whether stalls of both directions get more frequent with time; shape of both (2, n_steps), in time."""
    halves = [
        rates[:, half].sum(axis=1)
        for rates in (stalled, there)
        for half in np.array_split(np.arange(stalled.shape[1]), 2)
    ]
    both = bool((halves[0] / np.maximum(halves[2], 1) < halves[1] / np.maximum(halves[3], 1)).all())
    return both and chance_of_growth(stalled.sum(axis=0), there.sum(axis=0)) < CHANCE


def _is_apart(stalled: Ints, there: Ints, here: Bools, elsewhere: Bools, n_asked: int) -> bool:
    """Say whether workers stall far more often than others, and no chance explains it though so many places are asked."""
    counts = [np.where(mask[:, None], a, 0).sum(axis=(0, 2)) for mask in (here, elsewhere) for a in (stalled, there)]
    found, n, found_elsewhere, n_elsewhere = (int(count.sum()) for count in counts)
    if found < MIN_STALLS or not n_elsewhere:
        return False
    often = found / max(n, 1) > ALLOCATOR_RATE_RATIO * (found_elsewhere + 0.5) / n_elsewhere
    return often and chance_of_excess(*counts) * n_asked < CHANCE


def _as_long_as_backwards(at: Bools, stalls: Stalls) -> Bools:
    """Mark the forward stalls of a length that backward stalls have, too; longer or shorter ones are somebody else's.

    Shape (n_virtual, n_microbatches, n_steps, n_dp).
    """
    seconds = np.maximum(stalls.inside_s + stalls.before_s, TINY_S)
    level = np.floor(LEVELS_A_DOUBLING * np.log2(seconds))
    backward = level[1:][at[1:]]
    if not len(backward):
        return np.zeros(at[0].shape, dtype=bool)
    levels, forward_n = np.unique(level[0][at[0]], return_counts=True)
    # Neighbouring levels help: a handful of stalls falls on few of them.
    near = np.array([float((np.abs(backward - one) <= 1).sum()) / 2.0 for one in levels])
    too_many = levels[forward_n > FORWARD_RATIO * (near + 1.0)]
    return ~np.isin(level[0], too_many)


COMPONENT = Component(
    "malloc-pause",
    Part,
    inside=StallKind.ALLOCATION,
    before=StallKind.ALLOCATION,
    traits=Traits(stall_kind=StallKind.ALLOCATION),
)
