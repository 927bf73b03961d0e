"""Say whose doing each stall of a compute was: what evidence rows say first, then what its place and time say.

Enters: seconds inside computes and before them that their work does not explain, and evidence rows. Leaves: `Stalls`.
Costs a few passes over the computes, and O(rows x computes of a worker) comparisons for evidence rows.

Source of the order: the prototype's (evidence first, then a slow worker, input, the allocator, else collection).
"""

import math
from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from diagnose.model.optype import Op
from diagnose.model.stalls import Kinds, Stalls, Whose
from diagnose.model.trace import Bools, Evidence, Seconds
from diagnose.whatif.observed import Observed

#: What the row of each type says of the operation that it lies in.
SAYS = {
    Op.GC: Whose.COLLECTION,
    Op.CUDA_MALLOC: Whose.ALLOCATION,
    Op.DATA_LOAD: Whose.INPUT,
    Op.CHECKPOINT: Whose.SAVING,
}
#: A row counts where it covers this part of the stall.
COVERED_SHARE = 0.3
#: Ordinary variation: this quantile of what stands out in the backwards of the quieter half of the workers ...
QUIET_QUANTILE = 0.995
#: ... but never more than this part of the operation: no compute varies so much by itself.
MAX_QUIET_RATIO = 0.35
#: A collection stops a worker at most about once a step; more than so many stalls a step are something else.
MAX_COLLECTIONS_A_STEP = 0.5
#: The one worker that stalls at all, on the first stage, has a bad loader if it does so in more of its steps.
BAD_LOADER_SHARE = 0.36
#: Of the stalls in forwards of the first stage, so many times the rate elsewhere must be there to be put down to input.
INPUT_RATE_RATIO = 3.0
#: A loader that is late before every forward stalls a worker so many times in the steps in which it does.
MANY_A_STEP = 1.4
#: Workers on whose backwards stalls are so many times as frequent as on a usual worker have a bad allocator.
ALLOCATOR_RATE_RATIO = 3.0
#: Fewer stalls are chance.
MIN_STALLS = 3
#: Expected by chance from the other workers, the number found must be this many standard deviations above.
CHANCE_DEVIATIONS = 4.0
#: ... or it happens with less than this probability (as for onsets, prototype).
CHANCE = 0.02
#: Workers that share an allocator's trouble without being a whole stage, at most.
MAX_MARKED_WORKERS = 64
#: Lengths of stalls are compared in levels, so many for each doubling; so many times as many forwards as
#: backwards are not the allocator's.
LEVELS_A_DOUBLING = 1
FORWARD_RATIO = 3.0
#: Without a fixed subset, stalls in backwards are so many of those in forwards.
EVERYWHERE_SHARE = 0.2
#: Stalls are looked at by size: those of at least this part of the size in which half of the time is lost, then what is left, so
#: many times.
LARGE_SHARE = 0.1
MAX_SIZES = 3
#: ... after those in forwards that are so many times as long as any other stall: single collections stand out so (arXiv 2505.05713,
#: section 5.4, and a public trace of Primus: 240 to 280 ms beside 20 ms).
APART_RATIO = 4.0
#: In one step and on this part of the workers: planned.
TOGETHER_SHARE = 0.6
MIN_TOGETHER = 4
#: Rows of this part of a compute tell whether it was longer for them.
TELLING_SHARE = 0.1
#: Without what its rows say a compute took at least this part of the usual: else they lie beside it.
LEAST_WORK_SHARE = 0.5
#: Evidence rows handled at a time.
CHUNK_ROWS = 4096
#: A stall on a slow worker is its own unsteadiness up to this part of its excess.
UNSTEADY_SHARE = 1.0
TINY_S = 1e-12


def put_down(  # noqa: PLR0913 - all that may tell whose a stall is
    observed: Sequence[Observed],
    evidence: Evidence,
    inside_s: Seconds,
    before_s: Seconds,
    work_s: Seconds,
    worker_ratio: Seconds,
    *,
    queued: Bools | None,
    starts_late: Bools | None = None,
    n_stages: int,
) -> Stalls:
    """Put every stall down to something, or to nobody.

    Parameters
    ----------
    observed : sequence of Observed
    evidence : Evidence
    inside_s, before_s, work_s : ndarray of float64, shape (2, n_virtual, n_microbatches, n_steps, n_dp)
        Seconds in computes and before them that their work does not explain, and that work; NaN where there is no compute.
    worker_ratio : ndarray of float64, shape (2, n_virtual, n_steps, n_dp)
    queued : ndarray of bool, shape as `before_s`, or None
        True where a compute started late because of communication in flight.
    starts_late : ndarray of bool, shape (n_steps, n_dp), optional
        True where the workers begin the step late, whatever they begin it with.
    n_stages : int

    Returns
    -------
    Stalls
    """
    inside, recorded_inside = _by_rows(observed, evidence, inside_s, n_stages, before=False)
    before, recorded_before = _by_rows(observed, evidence, before_s, n_stages, before=True)
    stalls = Stalls(inside_s, before_s, inside, before, recorded_inside, recorded_before)
    if not (inside_s.any() or before_s.any()):
        return stalls
    if queued is not None:
        before[queued & (before_s > 0)] = Whose.QUEUE
    # A forward that opens a step is late for what all others are late for, too.
    if starts_late is not None:
        opens = before[0, 0, 0]
        opens[starts_late & (before_s[0, 0, 0] > 0) & (opens == Whose.NOBODY)] = Whose.SAVING
    share = (inside_s + before_s) / np.maximum(np.nan_to_num(work_s, nan=1.0), TINY_S)
    _put_down_to_workers(stalls, share, worker_ratio)
    quiet = _quiet_ratio(share, stalls, n_stages)
    there = np.isfinite(work_s)
    seconds = inside_s + before_s
    left = (share > quiet) & (inside == 0) & (before == 0)
    apart_s = _length_apart(seconds, left)
    for size in range(MAX_SIZES + (apart_s is not None)):
        if not left.any():
            break
        # Large ones first, by themselves: beside them small ones are ordinary variation, or somebody else's.
        least_s = LARGE_SHARE * _usual_length(seconds[left]) if size or apart_s is None else apart_s
        long = left & (seconds >= least_s)
        left &= ~long
        puts = [_put_down_to_all, _put_down_to_input, _put_down_to_allocator, _put_down_to_collection]
        if size and apart_s is not None and (inside == Whose.COLLECTION).any():
            puts.pop()  # collections of one job do not differ so much
        for put in puts:
            put(stalls, long, there, share, n_stages)
            long &= (inside == 0) & (before == 0)
    return stalls


def _usual_length(seconds: Seconds) -> float:
    """Give the length of stall that splits the time lost to stalls in halves: a few long ones count for more than many short."""
    longest_first = np.sort(seconds)[::-1]
    lost = longest_first.cumsum()
    return float(longest_first[np.searchsorted(lost, lost[-1] / 2.0)])


def _length_apart(seconds: Seconds, left: Bools) -> float | None:
    """Give the length from which on there are stalls in forwards only, far longer than all others; None where none stand out."""
    lengths = np.sort(seconds[left])[::-1]
    gaps = np.flatnonzero(lengths[:-1] > APART_RATIO * lengths[1:])
    gaps = gaps[gaps + 1 >= MIN_STALLS]
    if not len(gaps):
        return None
    least_s = float(lengths[gaps[0]])
    return None if (left[1] & (seconds[1] >= least_s)).any() else least_s


def without_recorded_pauses(
    observed: Sequence[Observed], evidence: Evidence, compute_s: Seconds, n_stages: int
) -> Seconds:
    """Take the seconds of evidence rows out of the computes that they lie in, where they did make them longer.

    A loader may write rows of what it does beside the compute: then the compute is no longer than others, and stays.

    Parameters
    ----------
    observed : sequence of Observed
    evidence : Evidence
    compute_s : ndarray of float64, shape (2, n_virtual, n_microbatches, n_steps, n_dp)
        Seconds.
    n_stages : int

    Returns
    -------
    ndarray of float64, shape of `compute_s`
    """
    rows = np.flatnonzero((evidence.end_s > evidence.start_s) & np.isin(evidence.op, [int(op) for op in SAYS]))
    if not len(rows):
        return compute_s
    found = compute_s
    for op in SAYS:
        said_s = np.zeros(compute_s.shape)
        of_type = rows[evidence.op[rows] == op]
        for part, place, start_s, end_s in _computes_of(observed, evidence, of_type, n_stages):
            overlap = np.minimum(end_s, evidence.end_s[part]) - np.maximum(start_s, evidence.start_s[part])
            hit = np.nonzero(overlap > 0)
            np.add.at(said_s, tuple(np.broadcast_to(axis, overlap.shape)[hit] for axis in place), overlap[hit])
        if not said_s.any():
            continue
        for direction in (0, 1):
            d, e = found[direction], said_s[direction]
            usual = np.nanmedian(d - e, axis=(1, 2, 3), keepdims=True)  # a stage
            telling = e > TELLING_SHARE * usual
            if not telling.any():
                continue
            shorter = np.abs(d - e - usual)[telling] < np.abs(d - usual)[telling]
            explained = np.nanmedian(np.abs(d - e - usual)[telling]) < np.nanmedian(np.abs(d - usual)[telling])
            if shorter.mean() > 0.5 and explained:
                found = found.copy() if found is compute_s else found
                found[direction] = np.where(d - e > LEAST_WORK_SHARE * usual, d - e, d)
    return found


def _computes_of(
    observed: Sequence[Observed], evidence: Evidence, rows: NDArray[np.int64], n_stages: int
) -> Iterator[tuple[NDArray[np.int64], tuple[NDArray[np.int64], ...], Seconds, Seconds]]:
    """Set evidence rows against the computes of their worker and step, some rows at a time.

    Yields
    ------
    rows : ndarray of int64, shape (n_rows,)
    place : tuple of five ndarray, broadcastable to (n_computes, n_rows)
        Where each compute stands in arrays as `Components` has them.
    start_s, end_s : ndarray of float64, shape (n_computes, n_rows)
    """
    first = 0
    for o in observed:
        block, nodes = o.block, o.block.nodes
        at = np.minimum(np.searchsorted(block.steps, evidence.step[rows]), len(block.steps) - 1)
        here = block.steps[at] == evidence.step[rows]
        for stage in range(n_stages):
            computes = np.flatnonzero((nodes.stage == stage) & np.isin(nodes.op, (Op.FORWARD, Op.BACKWARD)))[:, None]
            mine = np.flatnonzero(here & (evidence.stage[rows] == stage))
            for start in range(0, len(mine), CHUNK_ROWS):
                part = mine[start : start + CHUNK_ROWS]
                step, dp = at[part], evidence.dp[rows[part]]
                place = (
                    (nodes.op[computes] == Op.BACKWARD).astype(np.int64),
                    np.maximum(nodes.chunk[computes], 0) * n_stages + stage,
                    nodes.microbatch[computes],
                    step + first,
                    dp,
                )
                yield rows[part], place, block.start_s[computes, step, dp], block.end_s[computes, step, dp]
        first += len(block.steps)


def _assign(stalls: Stalls, at: Bools, whose: Whose) -> None:
    """Put the stalls at some places down to somebody."""
    stalls.inside[at & (stalls.inside_s > 0) & (stalls.inside == 0)] = whose
    stalls.before[at & (stalls.before_s > 0) & (stalls.before == 0)] = whose


def _by_rows(
    observed: Sequence[Observed], evidence: Evidence, stall_s: Seconds, n_stages: int, *, before: bool
) -> tuple[Kinds, Bools]:
    """Ask the evidence rows that cover each stall."""
    whose, said = np.zeros(stall_s.shape, dtype=np.int8), np.zeros(stall_s.shape, dtype=bool)
    rows = np.flatnonzero(evidence.end_s > evidence.start_s)
    if not len(rows) or not stall_s.any():
        return whose, said
    covered = np.zeros(stall_s.shape)
    kinds = np.array([SAYS.get(Op(int(op)), Whose.NOBODY) for op in evidence.op], dtype=np.int8)
    rows = rows[kinds[rows] > 0]
    for part, place, start_s, end_s in _computes_of(observed, evidence, rows, n_stages):
        seconds = stall_s[place]
        low, high = (start_s - seconds, start_s) if before else (start_s, end_s)
        overlap = np.minimum(high, evidence.end_s[part]) - np.maximum(low, evidence.start_s[part])
        hit = np.nonzero((seconds > 0) & (overlap > COVERED_SHARE * seconds))
        # Where several rows cover one stall, the longest says: it comes last.
        order = np.argsort(overlap[hit], kind="stable")
        to = tuple(np.broadcast_to(axis, seconds.shape)[hit][order] for axis in place)
        longer = overlap[hit][order] > covered[to]
        to = tuple(axis[longer] for axis in to)
        covered[to] = overlap[hit][order][longer]
        whose[to] = kinds[part[hit[1][order][longer]]]
        said[to] = True
    return whose, said


def _put_down_to_workers(stalls: Stalls, share: Seconds, worker_ratio: Seconds) -> None:
    """Put what is no longer than a slow worker's own excess down to it: a throttled clock is unsteady."""
    excess = (worker_ratio - 1.0)[:, :, None]
    unsteady = (excess > 0) & (share <= UNSTEADY_SHARE * excess)
    _assign(stalls, unsteady, Whose.WORKER)


def _quiet_ratio(share: Seconds, stalls: Stalls, n_stages: int) -> float:
    """Say how far ordinary variation reaches: what stands out in backwards of the quieter half of the workers."""
    backward = np.where((stalls.inside[1] == 0) & (stalls.before[1] == 0), share[1], 0.0)
    by_worker = backward.sum(axis=(1, 2)).reshape(-1, n_stages, share.shape[-1]).sum(axis=0)  # (n_stages, n_dp)
    quiet = by_worker <= np.median(by_worker)
    n_chunks = share.shape[1] // n_stages
    mask = np.tile(quiet, (n_chunks, 1))[:, None, None, :]
    sample = backward[np.broadcast_to(mask, backward.shape)]
    return min(float(np.quantile(sample, QUIET_QUANTILE)), MAX_QUIET_RATIO)


def _put_down_to_all(stalls: Stalls, long: Bools, _there: Bools, _share: Seconds, n_stages: int) -> None:
    """Put stalls that nearly all workers have in one step down to a plan."""
    n_virtual, n_dp = long.shape[1], long.shape[-1]
    n_workers = n_stages * n_dp
    if n_workers < MIN_TOGETHER:
        return
    shape = (2, n_virtual // n_stages, n_stages, *long.shape[2:])
    by_worker: Bools = np.any(long.reshape(shape)[0], axis=0)  # (n_stages, n_microbatches, n_steps, n_dp)
    at_once = by_worker.sum(axis=(0, 3))  # (n_microbatches, n_steps): workers
    by_step = at_once.max(axis=0)
    planned = by_step >= TOGETHER_SHARE * n_workers
    planned &= by_step > np.median(by_step) + TOGETHER_SHARE / 2 * n_workers
    if not planned.any():
        return
    # A plan stops the same microbatch everywhere, once; a batch that all wait for stops the first, or all.
    total = by_worker[:, :, planned].sum()
    if n_stages == 1 and (total > MANY_A_STEP * by_step[planned].sum() or at_once[0, planned].sum() > total / 2):
        at = long & planned[None, None, None, :, None]
        at[1] = False
        # If most start late, or most stand still, whoever does the other has a reason of its own.
        for alike in (stalls.before_s > stalls.inside_s, stalls.before_s <= stalls.inside_s):
            if (at & alike).sum() >= TOGETHER_SHARE * at.sum():
                at &= alike
                break
        _assign(stalls, at, Whose.INPUT)
        return
    at = long & planned[None, None, None, :, None] & (at_once == by_step)[None, None, :, :, None]
    _assign(stalls, at, Whose.TOGETHER)


def _put_down_to_input(stalls: Stalls, long: Bools, there: Bools, _share: Seconds, n_stages: int) -> None:
    """Put stalls of the first stage's forwards down to input: those of a step's first one, or of every one.

    Collections differ from worker to worker, so that a high rate says nothing; but they choose no microbatch, and stop a
    worker at most about once a step. The allocator stalls backwards, too.
    """
    forward, exists = long[0, 0], there[0, 0]  # of the first stage: (n_microbatches, n_steps, n_dp)
    if not forward.any():
        return
    n_steps = forward.shape[1]
    backward_rate = _rate(long[1, 0], there[1, 0])
    at = np.zeros(long.shape, dtype=bool)
    first, first_n = int(forward[0].sum()), int(exists[0].sum())
    rest_rate = _rate(forward[1:], exists[1:])
    other_first = _rate(long[0, 1:n_stages, 0], there[0, 1:n_stages, 0])
    if len(forward) > 1 and _more_than_chance(first, first_n, max(rest_rate, backward_rate), INPUT_RATE_RATIO):
        at[0, 0, 0] = 2.0 * other_first < first / first_n
    elif len(forward) > 1 or n_stages > 1:
        # What else stalls there does so inside of computes: gaps before them may still be at the first alone.
        late = long & (stalls.before_s > stalls.inside_s)
        at[0, 0, 0] = late[0, 0, 0] & _are_late_at_first(late, there, n_stages)
    elif _more_than_chance(first, first_n, backward_rate, INPUT_RATE_RATIO):
        # With one forward a step, only whether workers stall in the same ones tells waits from collections.
        for alike in (stalls.before_s > stalls.inside_s, stalls.before_s <= stalls.inside_s):
            some = forward[0] & alike[0, 0, 0]
            at[0, 0, 0] |= some & _come_together(some, exists[0] & ~at[0, 0, 0].any(axis=1, keepdims=True))
    at[0, 0] |= _all_at_once(stalls, long, there, n_stages)
    left = forward & ~at[0, 0]
    by_rank = left.any(axis=0).mean(axis=0)  # (n_dp,)
    hit = by_rank > 0
    others = max(_rate(long[0, 1:n_stages], there[0, 1:n_stages]), backward_rate)
    rate_ok = _more_than_chance(int(forward.sum()), int(exists.sum()), others, INPUT_RATE_RATIO)
    # A loader does mostly the one or the other: what does the other may be collections beside it.
    alike = left & (stalls.before_s > stalls.inside_s)[0, 0]
    alike = alike if 2 * alike.sum() > left.sum() else left & ~alike
    each = next((kind for kind in (alike, left) if _is_each(kind)), None)
    only = n_stages > 1 and len(forward) == 1
    only = only and (_all_above(forward, long[0, 1:n_stages]) or _only_here(stalls, long, n_stages))
    if rate_ok and each is not None:
        at[0, 0] |= each
    elif rate_ok and only:
        at[0, 0] = True
    else:
        # One bad loader: the first stage of one dp rank, far more often than a collection could.
        alone = hit.sum() == 1 and not long[0, 1:n_stages].any()
        ranks = (by_rank > (BAD_LOADER_SHARE if alone else MAX_COLLECTIONS_A_STEP)) & (by_rank * n_steps >= MIN_STALLS)
        at[0, 0] |= ranks & (_rate(long[1, 0], there[1, 0]) * INPUT_RATE_RATIO < by_rank / len(forward))
    _assign(stalls, at & long, Whose.INPUT)


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
    other = _rate(late[0, 1:n_stages, 0], there[0, 1:n_stages, 0])
    usual = max(_rate(late[0, 0, 1:], there[0, 0, 1:]), _rate(late[1, 0], there[1, 0]))
    if late.shape[2] == 1:
        usual = max(usual, other)
    if _more_than_chance(first, first_n, usual, INPUT_RATE_RATIO):
        return bool(2.0 * other < first / first_n)
    n_forwards = late.shape[2] * (late.shape[1] // n_stages)
    n_workers = int(late[0, 0, 0].any(axis=0).sum())
    return 0 < first == int(late.sum()) and n_forwards**-first * n_stages**-n_workers < CHANCE


def _all_at_once(stalls: Stalls, long: Bools, there: Bools, n_stages: int) -> Bools:
    """Mark the forwards of the first stage that so many dp ranks wait for at once that no collections explain it.

    They would stop each worker in every second step at most, at any of its forwards; a plan would stop other stages, too, and the
    allocator backwards. Shape (n_microbatches, n_steps, n_dp).
    """
    found = np.zeros(long[0, 0].shape, dtype=bool)
    if n_stages == 1:
        return found
    n_forwards = long.shape[2] * (long.shape[1] // n_stages)
    backward = long[1, 0].sum(axis=(0, 2)) / np.maximum(there[1, 0].sum(axis=(0, 2)), 1)  # (n_steps,)
    rate = np.minimum(np.maximum(MAX_COLLECTIONS_A_STEP / n_forwards, 2.0 * backward), 1.0 - TINY_S)
    elsewhere = long[0, 1:n_stages].any(axis=1).mean(axis=(0, 2))  # (n_steps,): of the workers
    n = there[0, 0].sum(axis=2)  # (n_microbatches, n_steps)
    for alike in (stalls.before_s > stalls.inside_s, stalls.before_s <= stalls.inside_s):
        some = long[0, 0] & alike[0, 0]
        share = some.sum(axis=2) / np.maximum(n, 1)
        least = np.clip(share, rate, 1.0)
        # Chernoff's bound of the chance that so large a part stalls, were it by themselves.
        less = np.where(least < 1.0, (1.0 - least) * np.log(np.maximum(1.0 - least, TINY_S) / (1.0 - rate)), 0.0)
        chance = np.exp(-n * (least * np.log(least / rate) + less))
        found |= some & ((chance * share.size < CHANCE) & (2.0 * elsewhere < share))[:, :, None]
    return found


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


def _only_here(stalls: Stalls, long: Bools, n_stages: int) -> bool:
    """Say whether no other stage's forwards stall, and those of the first on several ranks or before: with one microbatch."""
    if long[0, 1:n_stages].any():
        return False
    if long[0, 0].any(axis=(0, 1)).sum() > 1:
        return True
    before_s = float(np.where(long[0, 0], stalls.before_s[0, 0], 0.0).sum())
    return before_s > float(np.where(long[0, 0], stalls.inside_s[0, 0], 0.0).sum())


def _rate(stalled: Bools, there: Bools) -> float:
    """Say how frequent stalls are among the computes that there are."""
    return float(stalled.sum()) / max(float(there.sum()), 1.0)


def _put_down_to_allocator(stalls: Stalls, long: Bools, there: Bools, share: Seconds, n_stages: int) -> None:
    """Put stalls on workers whose backwards stall, too, down to the allocator; collections never stop a backward."""
    n_virtual, _, _, n_dp = long.shape[1:]
    shape = (n_virtual // n_stages, n_stages)
    backward = long[1].sum(axis=(1, 2)).reshape(*shape, n_dp).sum(axis=0)  # (n_stages, n_dp)
    exists = there[1].sum(axis=(1, 2)).reshape(*shape, n_dp).sum(axis=0)
    forward = long[0].sum(axis=(1, 2)).reshape(*shape, n_dp).sum(axis=0)
    total = int(backward.sum())
    if total < MIN_STALLS:
        return
    marked = _find_subset(backward, exists)
    if not marked.any():
        # No subset: everywhere, if backwards stall about as often as forwards, and by more than they vary.
        beyond = int((long[1] & (share[1] > MAX_QUIET_RATIO)).sum())
        if beyond < max(MIN_STALLS, EVERYWHERE_SHARE * float(forward.sum())):
            return
        marked[:] = True
    mask = np.tile(marked, (shape[0], 1))[:, None, None, :]
    at = long & mask[None]
    # Where forwards elsewhere start late as often, or stand still as often, collections do so here, too.
    for alike in (stalls.before_s > stalls.inside_s, stalls.before_s <= stalls.inside_s):
        kind = long[0] & alike[0]
        here, elsewhere = _rate(kind & mask, there[0] & mask), _rate(kind & ~mask, there[0] & ~mask)
        if here <= 2.0 * elsewhere:
            at[0] &= ~kind
    if at[0].any():
        at[0] &= _as_long_as_backwards(at, stalls)
    _assign(stalls, at, Whose.ALLOCATION)


def _find_subset(stalled: NDArray[np.int64], there: NDArray[np.int64]) -> Bools:
    """Mark the stages, and workers, whose backwards stall far more often than those of all that are not marked.

    Counts have shape (n_stages, n_dp).
    """
    marked = np.zeros(stalled.shape, dtype=bool)
    of_stage, n_of_stage = stalled.sum(axis=1), there.sum(axis=1)
    order = np.argsort(-of_stage, kind="stable")
    # As many as there are, together against the rest: where half of the stages stall, none does far more often than all others.
    # More than half have no full memory: it gets emptier from stage to stage.
    for n_marked in range(len(order) // 2 + len(order) % 2, 0, -1) if len(order) > 1 else ():
        rest, least = order[n_marked:], order[n_marked - 1]
        rate = (float(of_stage[rest].sum()) + 0.5) / max(float(n_of_stage[rest].sum()), 1.0)
        if _more_than_chance(int(of_stage[least]), int(n_of_stage[least]), rate, ALLOCATOR_RATE_RATIO):
            marked[order[:n_marked]] = True
            return marked
    # Not a whole stage: single workers, most stalled first.
    for worker in np.argsort(-stalled, axis=None, kind="stable")[:MAX_MARKED_WORKERS].tolist():
        mask = np.zeros(marked.shape, dtype=bool)
        mask.flat[worker] = True
        others = ~(marked | mask)
        rate = (float(stalled[others].sum()) + 0.5) / max(float(there[others].sum()), 1.0)
        if not (
            others.any()
            and _more_than_chance(int(stalled[mask].sum()), int(there[mask].sum()), rate, ALLOCATOR_RATE_RATIO)
        ):
            break
        marked = marked | mask
    return marked


def _as_long_as_backwards(at: Bools, stalls: Stalls) -> Bools:
    """Mark the forward stalls of a length that backward stalls have, too; longer or shorter ones are somebody else's.

    Shape (n_virtual, n_microbatches, n_steps, n_dp).
    """
    seconds = np.maximum(stalls.inside_s + stalls.before_s, TINY_S)
    level = np.floor(LEVELS_A_DOUBLING * np.log2(seconds))
    backward = level[1][at[1]]
    if not len(backward):
        return np.zeros(at[0].shape, dtype=bool)
    levels, forward_n = np.unique(level[0][at[0]], return_counts=True)
    # Neighbouring levels help: a handful of stalls falls on few of them.
    near = np.array([float((np.abs(backward - one) <= 1).sum()) / 2.0 for one in levels])
    too_many = levels[forward_n > FORWARD_RATIO * (near + 1.0)]
    return ~np.isin(level[0], too_many)


def _put_down_to_collection(stalls: Stalls, long: Bools, _there: Bools, _share: Seconds, n_stages: int) -> None:
    """Put what is left in forwards down to collections, on workers where it is no more frequent than they are."""
    forward = long[0].any(axis=1)  # (n_virtual, n_steps, n_dp): one a step counts once
    n_virtual, n_steps, n_dp = forward.shape
    count = long[0].sum(axis=(1, 2)).reshape(n_virtual // n_stages, n_stages, n_dp).sum(axis=0)
    sparse = count <= MAX_COLLECTIONS_A_STEP * max(n_steps, 1)  # (n_stages, n_dp)
    mask = np.tile(sparse, (n_virtual // n_stages, 1))[:, None, None, :]
    at = long & mask[None]
    at[1] = False
    _assign(stalls, at, Whose.COLLECTION)


def _more_than_chance(found: int, n: int, rate: float, ratio: float) -> bool:
    """Say whether so many of n are far more than a rate explains."""
    expected = rate * n
    return found >= MIN_STALLS and found > ratio * expected and found > expected + CHANCE_DEVIATIONS * np.sqrt(expected)
