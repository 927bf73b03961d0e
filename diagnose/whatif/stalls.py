"""Attribute each stall of a compute: what evidence rows say first, then what its place and time say.

Enters: seconds inside computes and before them that their work does not explain, and evidence rows. Leaves: `Stalls`.
Costs a few passes over the computes, and what `evidence` costs.

Source of the order: the prototype's (evidence first, then a slow worker, input, the allocator, else collection).
"""

import dataclasses
import itertools
from collections.abc import Callable, Iterator, Sequence

import numpy as np

from diagnose.model.optype import P2P, of_types
from diagnose.model.stalls import MIN_STALLS, Kinds, StallKind, Stalls
from diagnose.model.trace import Bools, Evidence, Ints, Seconds
from diagnose.numerics.robust import fill_nan, median, weighted_median
from diagnose.whatif.components.attribution import CHANCE, MAX_QUIET_RATIO, TINY_S, LongStalls, assign
from diagnose.whatif.components.evaluation import attribute_planned_collections
from diagnose.whatif.components.gc_pause import attribute_to_collection, attribute_waits_to_collections
from diagnose.whatif.components.input_delay import attribute_to_input
from diagnose.whatif.components.malloc_pause import attribute_late_to_allocator, attribute_to_allocator
from diagnose.whatif.components.start_delay import attribute_to_saves, find_begun
from diagnose.whatif.components.step import attribute_to_plan
from diagnose.whatif.components.worker import attribute_to_workers
from diagnose.whatif.computes import Place, find_last, iterate_blocks, list_computes, place_of
from diagnose.whatif.evidence import attribute_by_rows, attribute_to_others
from diagnose.whatif.observed import Observed

#: Ordinary variation: this quantile of what stands out in the backwards of the quieter half of the workers ...
QUIET_QUANTILE = 0.995
#: Stalls are looked at by size: those of at least this part of the size in which half of the time is lost, then what is left, so
#: many times.
LARGE_SHARE = 0.1
MAX_SIZES = 3
#: ... after those in forwards that are so many times as long as any other stall: single collections stand out so (arXiv 2505.05713,
#: section 5.4, and a public trace of Primus: 240 to 280 ms beside 20 ms).
APART_RATIO = 4.0
#: Stands for a kind that nobody can tell while others are told.
_ANY = -1
#: In this order the place of a stall is asked what it says: each takes what the ones before it left, collections come last.
BY_PLACE = (attribute_to_plan, attribute_to_saves, attribute_to_input, attribute_to_allocator, attribute_to_collection)


def attribute_stalls(  # noqa: PLR0913 - all that may tell what a stall is
    observed: Sequence[Observed],
    evidence: Evidence,
    inside_s: Seconds,
    before_s: Seconds,
    work_s: Seconds,
    worker_ratio: Seconds,
    *,
    queued: Bools | None,
    late: tuple[Kinds, Bools],
    starts_late: Bools,
    n_stages: int,
    steps: Ints,
    reads_input: bool | None = None,
    slow_places: Bools | None = None,
    receiving: Bools | None = None,
) -> Stalls:
    """Attribute every stall to something, or to nobody.

    Parameters
    ----------
    inside_s, before_s, work_s : ndarray of float64, shape (2, n_virtual, n_microbatches, n_steps, n_dp)
        Seconds in computes and before them that their work does not explain, and that work; NaN where there is no compute.
    worker_ratio : ndarray of float64, shape (2, n_virtual, n_steps, n_dp)
    queued : ndarray of bool, shape as `before_s`, or None
        True where a compute started late because of communication in flight.
    steps : ndarray of int64, shape (n_steps,)
        Step numbers.
    reads_input : bool, optional
        Whether any worker reads data; None where nobody says.
    late : (ndarray of int8, ndarray of bool), shape as `before_s`
        What is known of the seconds before computes: their kind, and where a row says it.
    starts_late : ndarray of bool, shape (n_steps, n_dp)
        True where the workers begin the step late, whatever they begin it with.
    slow_places : ndarray of bool, broadcastable to `inside_s`, optional
        Places in which a worker alone is slow in all steps, and those of ranks that are slow for moments.
    receiving : ndarray of bool, broadcastable to `before_s`, optional
        As `find_receiving` says.
    """
    inside, recorded_inside = attribute_by_rows(observed, evidence, inside_s, n_stages)
    attribute_to_others(observed, inside_s, inside, n_stages)
    before: Kinds = np.where(before_s > 0, late[0], 0).astype(np.int8)
    recorded_before: Bools = np.asarray(late[1] & (before_s > 0))
    stalls = Stalls(inside_s, before_s, inside, before, recorded_inside, recorded_before)
    if not (inside_s.any() or before_s.any()):
        return stalls
    if queued is not None:
        before[queued & (before_s > 0) & (before == StallKind.NOBODY)] = StallKind.QUEUE
    # A forward that opens a step is late for what all others are late for, too.
    opens = before[0, 0, 0]
    opens[starts_late & (before_s[0, 0, 0] > 0) & (opens == StallKind.NOBODY)] = StallKind.SAVING
    share = (inside_s + before_s) / np.maximum(fill_nan(work_s, 1.0), TINY_S)
    attribute_to_workers(stalls, share, worker_ratio)
    if slow_places is not None:
        assign(stalls, np.broadcast_to(slow_places, inside_s.shape), StallKind.WORKER)
    follow = tuple(_list_followers(observed, n_stages))
    all_stalls = LongStalls(
        stalls,
        share > 0,
        np.isfinite(work_s),
        share,
        work_s,
        n_stages,
        steps,
        follow,
        reads_input,
        find_last(observed, n_stages),
        find_begun(observed, inside_s.shape, n_stages),
    )
    # Who begins late what another stage sends may wait for a transfer: where none was recorded no place tells.
    may_wait = (before_s > 0) & (before == 0) & (False if receiving is None else receiving)
    before[may_wait] = _ANY
    _attribute_by_place(all_stalls)
    before[may_wait] = StallKind.NOBODY
    attribute_waits_to_collections(stalls)
    job_s = sum(float(o.block.step_ends_s.sum()) for o in observed)
    attribute_planned_collections(stalls, steps, job_s, n_stages)
    return stalls


def find_receiving(observed: Sequence[Observed], shape: tuple[int, ...], n_stages: int) -> Bools | None:
    """Mark the computes that need what another stage sends, where no transfer between stages was recorded, nor derived.

    Broadcastable to `shape`, the axes of durations; None where transfers are there.
    """
    if any(of_types(o.block.nodes.op, P2P).any() for o in observed):
        return None
    found = np.zeros((*shape[:2], 1, 1, 1), dtype=bool)
    found[:2] = True
    found[0, 0] = found[1, find_last(observed, n_stages)] = False
    return found


def _list_followers(observed: Sequence[Observed], n_stages: int) -> Iterator[tuple[slice, Place, Place]]:
    """List the backwards that a worker usually runs right after a forward, with that forward, block by block."""
    for steps, o in iterate_blocks(observed):
        nodes, computes = o.block.nodes, np.array(list_computes(o.block.nodes), dtype=np.int64)
        computes = computes[np.argsort(o.block.start_s[computes].mean(axis=(1, 2)), kind="stable")]
        for stage in range(n_stages):
            places = [place_of(nodes, node, n_stages) for node in computes[nodes.stage[computes] == stage].tolist()]
            yield from (
                (steps, after, before) for before, after in itertools.pairwise(places) if before[0] == 0 < after[0]
            )


def _attribute_by_place(found: LongStalls) -> None:
    """Attribute the stalls that stand out by where they lie.

    What begins late for something that is known may stand still besides: of that only collections choose no place, and where the
    allocator stops backwards is known.
    """
    stalls = found.stalls
    stands_out = found.share > _quiet_ratio(found.share, stalls, found.n_stages)
    _attribute_sizes(found, stands_out & (stalls.inside == 0) & (stalls.before == 0), BY_PLACE)
    within_s = np.where((stalls.inside == 0) & (stalls.before != 0), stalls.inside_s, 0.0)
    stands_out = found.share * within_s > _quiet_ratio(found.share, stalls, found.n_stages) * (
        stalls.inside_s + stalls.before_s
    )
    n_within = np.count_nonzero(stalls.inside == StallKind.COLLECTION)
    _attribute_sizes(found, stands_out, (attribute_late_to_allocator, attribute_to_collection))
    if np.count_nonzero(stalls.inside == StallKind.COLLECTION) > n_within:
        # Now that it is known that workers collect in first forwards, the others are asked again.
        stands_out = found.share > _quiet_ratio(found.share, stalls, found.n_stages)
        _attribute_sizes(found, stands_out & (stalls.inside == 0) & (stalls.before == 0), (attribute_to_collection,))


def _attribute_sizes(found: LongStalls, left: Bools, by_place: Sequence[Callable[[LongStalls], None]]) -> None:
    """Ask what some stalls say by their place, those of one size at a time; `left`, of the shape of all, is used up."""
    stalls = found.stalls
    seconds = np.where(stalls.inside == 0, stalls.inside_s, 0.0) + np.where(stalls.before == 0, stalls.before_s, 0.0)
    apart_s = _length_apart(seconds, left)
    for size in range(MAX_SIZES + (apart_s is not None)):
        if not left.any():
            break
        # Large ones first, by themselves: beside them small ones are ordinary variation, or somebody else's.
        # The usual length splits the time lost in halves: a few long ones count for more than many short.
        usual_s = weighted_median(seconds[left], seconds[left])
        least_s = LARGE_SHARE * (usual_s or 0.0) if size or apart_s is None else apart_s
        long = left & (seconds >= least_s)
        left &= ~long
        for attribute in by_place:
            attribute(dataclasses.replace(found, long=long))
            long &= ((stalls.inside == 0) & (stalls.inside_s > 0)) | ((stalls.before == 0) & (stalls.before_s > 0))


def _length_apart(seconds: Seconds, left: Bools) -> float | None:
    """Give the length from which on stalls are in forwards only, and far longer than others, or most of all; None where none are.

    Most of all: more seconds than the others together, while no chance, which strikes backwards as often, explains it.
    """
    lengths = np.sort(seconds[left])[::-1]
    n_longer = int((lengths > seconds[1:].max(initial=0.0, where=left[1:])).sum())  # than any backward
    gaps = np.flatnonzero(lengths[:-1] > APART_RATIO * lengths[1:])
    gaps = gaps[gaps + 1 >= MIN_STALLS]
    if len(gaps) and gaps[0] < n_longer:
        return float(lengths[gaps[0]])
    is_most = bool(2.0 * lengths[:n_longer].sum() > lengths.sum()) and n_longer < len(lengths)
    is_chance = (np.count_nonzero(left[0]) / max(len(lengths), 1)) ** n_longer > CHANCE
    return float(lengths[n_longer - 1]) if is_most and not is_chance else None


def _quiet_ratio(share: Seconds, stalls: Stalls, n_stages: int) -> float:
    """Say how far ordinary variation reaches: what stands out in backwards of the quieter half of the workers."""
    backward = np.where((stalls.inside[1:] == 0) & (stalls.before[1:] == 0), share[1:], 0.0)
    by_worker = backward.sum(axis=(0, 2, 3)).reshape(-1, n_stages, share.shape[-1]).sum(axis=0)  # (n_stages, n_dp)
    quiet = by_worker <= median(by_worker)
    n_chunks = share.shape[1] // n_stages
    mask = np.tile(quiet, (n_chunks, 1))[:, None, None, :]
    sample = backward[np.broadcast_to(mask, backward.shape)]
    return min(float(np.quantile(sample, QUIET_QUANTILE)), MAX_QUIET_RATIO)
