"""Take compute durations apart: waits for communication in flight, then stage, step, worker, microbatch and stalls, robustly.

Enters: observed blocks on one clock. Leaves: `Components`. Costs a few passes over the computes; the medians are over
microbatches first, everything after works on arrays without that axis.
"""

import dataclasses
import warnings
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from diagnose.model.components import Components
from diagnose.model.optype import Op
from diagnose.model.trace import Bools, Evidence, Ints, Seconds
from diagnose.statistics.change_points import Rise, find_rise
from diagnose.statistics.robust import MAD_TO_SIGMA, lower_median, robust_deviation
from diagnose.whatif.contention import HeldBy, Holds, measure_holds, measure_late
from diagnose.whatif.delays import delay_excess
from diagnose.whatif.observed import Observed
from diagnose.whatif.stalls import put_down, without_recorded_pauses

#: A worker is slow when its usual pace is this much behind its peers (2% of a job's time needs about that).
SLOW_RATIO = 0.03
#: A median over all steps is no chance beyond this many of its deviations (a median's is 1.25 sigma / sqrt(n)).
CHANCE_DEVIATIONS = 5.0
#: Around its usual pace a worker varies this many deviations.
ORDINARY_DEVIATIONS = 4.0
#: ... or when it is this much behind, and this many robust deviations, in enough single steps.
SLOW_STEP_RATIO = 0.10
SLOW_STEP_DEVIATIONS = 6.0
#: Both directions of a slow worker are behind at least this part of their mean.
BOTH_SHARE = 0.25
#: In its slow steps this part of a slow worker's computes take at least this part of its excess.
THROUGHOUT_SHARE = 0.85
THROUGHOUT_LEVEL = 0.35
#: Steps in which a worker must be slow to be called so.
MIN_SLOW_STEPS = 3
MIN_SLOW_SHARE = 0.10
#: ... or the last ones.
MIN_LAST_STEPS = 2
#: ... and so many times as many as other workers are.
HITS_RATIO = 3.0
#: A step is slow as a whole beyond this.
SLOW_WHOLE_STEP_RATIO = 1.03
#: Microbatches are uneven when forward and backward agree and spread this much (real: 0.226 with, 0.016-0.027 without).
MIN_CORRELATION = 0.5
MIN_SPREAD = 0.06
#: Backward grows with length at least this much as forward does (real: 0.7 to 1.4).
MIN_SLOPE = 0.1
#: Without documents, forward and backward of a microbatch vary together with a correlation of 0.86, the backward 1.25 times as much
#: (production traces): then they are this part of the forward's spread apart.
APART_RATIO = 0.64
#: With one dp rank a worker's own fastest steps say what it can do.
FASTEST_SHARE = 0.1
#: ... and its optimizer says that it is the worker and not the stage that is long, if all three are long by at least this part
#: of the longest (log).
ALIKE_SHARE = 0.6
MIN_TOLD_STAGES = 2
#: A pause stands out by this many robust deviations, and by this part of the operation (prototype).
PAUSE_DEVIATIONS = 6.0
PAUSE_RATIO = 0.03
#: Durations of 0 are recorded; nothing takes less than this, and nothing is faster than its peers by more.
TINY_S = 1e-12
TINY_RATIO = 1e-9

#: What makes one backward of a worker longer in this part of its steps, of so many at least, belongs to the schedule.
STRUCTURE_SHARE = 0.9
MIN_STRUCTURE_STEPS = 5


def take_apart(observed: Sequence[Observed], evidence: Evidence, *, n_stages: int) -> Components:
    """Take the compute durations of a job apart.

    Parameters
    ----------
    observed : sequence of Observed, one a block
    evidence : Evidence
        Rows that say why an operation was long.
    n_stages : int

    Returns
    -------
    Components
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # lanes without any value give NaN, which is what is meant
        return _take_apart(observed, evidence, n_stages)


def _take_apart(observed: Sequence[Observed], evidence: Evidence, n_stages: int) -> Components:
    """Do the work of `take_apart`."""
    steps = np.concatenate([o.block.steps for o in observed])
    compute_s = gather_computes(observed, n_stages)
    holds, late = measure_holds(observed, n_stages=n_stages), measure_late(observed, n_stages=n_stages)
    hold_s = _gather(observed, [of_block.seconds for of_block in holds], compute_s.shape, n_stages)
    free_s = compute_s if hold_s is None else compute_s - hold_s
    before_s = _gather(observed, [delay_excess(o) for o in observed], compute_s.shape, n_stages)
    queued_s = _gather(observed, [of_block.seconds for of_block in late], compute_s.shape, n_stages)
    if queued_s is not None:
        before_s = queued_s if before_s is None else np.maximum(before_s, queued_s)
    # What rows say of an operation is no part of its work, whatever the medians would say.
    work_s = without_recorded_pauses(observed, evidence, free_s, n_stages)
    median = np.median if not np.isnan(work_s).any() else np.nanmedian
    by_step = median(work_s, axis=2)  # (2, n_virtual, n_steps, n_dp)
    typical_s = lower_median(median(by_step, axis=2), axis=2)  # (2, n_virtual)
    usual_s = np.maximum(np.nan_to_num(np.nanmedian(typical_s, axis=1, keepdims=True)), TINY_S)
    typical_s = np.where(typical_s > 0, typical_s, usual_s)
    told = np.zeros(n_stages, dtype=bool)
    if compute_s.shape[-1] == 1:
        typical_s = _typical_before_onset(by_step[:, :, np.argsort(steps, kind="stable"), 0], typical_s, n_stages)
        told = _told_by_optimizer(observed, typical_s, n_stages)
        for stage in np.flatnonzero(told).tolist():
            others = np.flatnonzero(np.arange(typical_s.shape[1]) % n_stages != stage)
            typical_s[:, stage::n_stages] = np.median(typical_s[:, others], axis=1, keepdims=True)

    order = np.argsort(steps, kind="stable")  # blocks come one after the other, steps in time
    pace = by_step / typical_s[:, :, None, None]
    step_ratio = _find_slow_steps(pace)
    parts = _find_workers_and_microbatches(work_s, typical_s, pace, step_ratio, order, told)
    if (parts.microbatch_ratio != 1.0).any():
        # Long documents make whole steps long, too: then a step is as long as its microbatches. What only one direction
        # has, as an evaluation, stays with the step.
        shared = nearest_zero_center(np.log(np.maximum(step_ratio, TINY_RATIO)), axis=0)
        step_ratio = step_ratio / np.exp(shared)
        step_ratio = np.where(step_ratio > SLOW_WHOLE_STEP_RATIO, step_ratio, 1.0)
        parts = _find_workers_and_microbatches(work_s, typical_s, pace, step_ratio, order, told)
    rest = parts.left - 1.0
    noise = _measure_noise(rest, n_stages)
    usual_s = work_s / np.where(parts.left > 0, parts.left, 1.0)
    rest_s = np.nan_to_num(free_s - usual_s)
    pause_s = np.where(rest_s > max(PAUSE_RATIO, PAUSE_DEVIATIONS * noise) * usual_s, rest_s, 0.0)
    _keep_in_work(pause_s, ~np.isnan(work_s))
    stalls = put_down(
        observed,
        evidence,
        pause_s,
        np.zeros_like(pause_s) if before_s is None else before_s,
        free_s - pause_s,
        parts.worker_ratio,
        queued=None if queued_s is None else queued_s > 0,
        starts_late=_find_late_starts(observed, pause_s.shape),
        n_stages=n_stages,
    )
    return Components(
        steps=steps,
        compute_s=compute_s,
        typical_s=typical_s,
        step_ratio=step_ratio,
        worker_ratio=parts.worker_ratio,
        slow_workers=parts.slow_workers,
        worker_excess=parts.worker_excess,
        microbatch_ratio=parts.microbatch_ratio,
        microbatch_ordinary=parts.microbatch_ordinary,
        hold_s=hold_s,
        stalls=stalls,
        noise_ratio=noise,
        forward_backward_correlation=parts.correlation,
        microbatch_spread=parts.spread,
        held_by=tuple(_merge_holds(*of_block) for of_block in zip(holds, late, strict=True)),
    )


def _measure_noise(rest: Seconds, n_stages: int) -> float:
    """Say how far computes vary by themselves, on the usual worker: where many stand still they are no ordinary variation."""
    if not rest.size:
        return 0.0
    by_worker = rest.reshape(2, -1, n_stages, *rest.shape[2:])  # direction, chunk, stage, microbatch, step, dp
    off = np.abs(by_worker - np.nanmedian(rest))
    median = np.nanmedian if np.isnan(off).any() else np.median
    mad = median(np.moveaxis(off, (2, 5), (0, 1)).reshape(n_stages * rest.shape[-1], -1), axis=1)
    mad = mad[np.isfinite(mad)]
    return float(MAD_TO_SIGMA * lower_median(mad)) if len(mad) else 0.0


def _merge_holds(long: Holds, late: Holds) -> dict[int, HeldBy]:
    """Bring together what made computes long and what made them late, by node."""
    merged = Holds({}, {})
    for holds in (long, late):
        for node, held_by in holds.by.items():
            merged.add(node, holds.seconds[node], held_by)
    return merged.by


@dataclasses.dataclass(frozen=True, slots=True)
class _Parts:
    """What workers and microbatches explain, and the ratio that is left: fields as in `Components`."""

    worker_ratio: Seconds
    slow_workers: Bools
    worker_excess: Seconds
    microbatch_ratio: Seconds
    microbatch_ordinary: float
    correlation: float | None
    spread: float | None
    left: Seconds


def _typical_before_onset(by_step: Seconds, typical_s: Seconds, n_stages: int) -> Seconds:
    """With one dp rank nobody is a peer but the worker itself: what is usual is what it took before it fell behind.

    Parameters
    ----------
    by_step : ndarray of float64, shape (2, n_virtual, n_steps)
    typical_s : ndarray of float64, shape (2, n_virtual)

    Returns
    -------
    ndarray of float64, shape (2, n_virtual)
    """
    if n_stages == 1:
        return typical_s
    pace = by_step / typical_s[:, :, None]
    step = lower_median(pace.reshape(-1, pace.shape[2]), axis=0)
    own = np.log(np.maximum(pace / np.where(step > 0, step, 1.0), TINY_RATIO))
    own = np.nan_to_num(own.reshape(2, -1, n_stages, own.shape[2]).mean(axis=(0, 1)))  # (n_stages, n_steps)
    own -= np.quantile(own, FASTEST_SHARE, axis=1, keepdims=True)
    sigma = robust_deviation(np.diff(own, axis=1)) / np.sqrt(2.0)
    since = _find_onsets(own[:, :, None], sigma)[:, 0]
    found = typical_s.copy()
    for virtual in range(typical_s.shape[1]):
        first = int(since[virtual % n_stages])
        if first < by_step.shape[2]:
            found[:, virtual] = np.nanmedian(by_step[:, virtual, :first], axis=1)
    return np.where(found > 0, found, typical_s)


def _told_by_optimizer(observed: Sequence[Observed], typical_s: Seconds, n_stages: int) -> Bools:
    """With one dp rank, find the one stage whose worker is slow: forward, backward and optimizer are long by like ratios.

    A long stage has more to compute for each microbatch, and mostly more in forward than in backward.
    """
    told = np.zeros(n_stages, dtype=bool)
    optimizer_s = np.full(n_stages, np.nan)
    for o in observed:
        for node in np.flatnonzero(o.block.nodes.op == Op.OPTIMIZER).tolist():
            optimizer_s[o.block.nodes.stage[node]] = float(np.median(o.own[node]))
    if n_stages < MIN_TOLD_STAGES or not (optimizer_s > 0).all():
        return told
    by_stage = typical_s.reshape(2, -1, n_stages).sum(axis=1)  # (2, n_stages)
    measures = np.log(np.concatenate([by_stage, optimizer_s[None]]))  # forward, backward, optimizer
    stage = int(measures.sum(axis=0).argmax())
    excess = measures[:, stage] - np.median(np.delete(measures, stage, axis=1), axis=1)
    told[stage] = excess.min() > np.log1p(SLOW_RATIO) and excess.min() > ALIKE_SHARE * excess.max()
    return told


def _find_slow_steps(pace: Seconds) -> Seconds:
    """Say how long all computes of a step are against the usual step: shape (2, n_steps)."""
    n_steps = pace.shape[2]
    ratio = lower_median(np.moveaxis(pace, 2, 1).reshape(2, n_steps, -1), axis=2)
    ratio = np.where(ratio > 0, ratio, 1.0)
    return np.asarray(ratio / np.median(ratio, axis=1, keepdims=True))


def _find_workers_and_microbatches(
    compute_s: Seconds, typical_s: Seconds, pace: Seconds, step_ratio: Seconds, order: Ints, told: Bools
) -> _Parts:
    """Take slow workers out of the times, and uneven microbatches out of what is left; `order` puts the steps in time."""
    n_stages = len(told)
    excess = np.log(np.maximum(pace / step_ratio[:, None, :, None], TINY_RATIO))  # (2, n_virtual, n_steps, n_dp)
    worker_log, slow, worker_excess = _find_slow_workers(excess[:, :, order], n_stages, told)
    back = np.argsort(order)
    worker_log, worker_excess = worker_log[:, :, back], worker_excess[:, :, back]
    if slow.any():
        slow &= _slow_throughout(compute_s, typical_s, step_ratio, worker_log, n_stages)
        worker_log = np.where(np.tile(slow.T, (worker_log.shape[1] // n_stages, 1))[None, :, None, :], worker_log, 0.0)
    worker_ratio = np.exp(worker_log)
    usual_s = typical_s[:, :, None, None, None] * step_ratio[:, None, None, :, None] * worker_ratio[:, :, None]
    left = compute_s / usual_s
    microbatch_ratio, ordinary, correlation, spread = _find_microbatches(left)
    left /= microbatch_ratio[:, None]
    return _Parts(worker_ratio, slow, worker_excess, microbatch_ratio, ordinary, correlation, spread, left)


def _keep_in_work(pause_s: Seconds, there: Bools) -> None:
    """Leave to the work, in place, what makes the same backward of a worker longer in nearly every step.

    A step's last backward also begins to reduce gradients; no stall chooses one microbatch of all.
    """
    if pause_s.shape[2] < 2 or pause_s.shape[3] < MIN_STRUCTURE_STEPS:
        return
    hit = pause_s[1] > 0  # (n_virtual, n_microbatches, n_steps, n_dp)
    always = hit.sum(axis=2) >= STRUCTURE_SHARE * np.maximum(there[1].sum(axis=2), 1)
    # Where other microbatches are hit as often the worker is at fault, not the place.
    alone = always & (always.sum(axis=1, keepdims=True) == 1)
    pause_s[1] = np.where(alone[:, :, None], 0.0, pause_s[1])


def _slow_throughout(
    compute_s: Seconds, typical_s: Seconds, step_ratio: Seconds, worker_log: Seconds, n_stages: int
) -> Bools:
    """Say which workers are slow on nearly all microbatches of their slow steps; shape (n_dp, n_stages).

    Stalls that come often make the median long, too, but leave some computes alone.
    """
    n_dp = compute_s.shape[-1]
    found = np.zeros((n_dp, n_stages), dtype=bool)
    for stage in range(n_stages):
        for dp in np.flatnonzero((worker_log[:, stage::n_stages] > 0).any(axis=(0, 1, 2))).tolist():
            level = worker_log[:, stage::n_stages, None, :, dp]
            usual = typical_s[:, stage::n_stages, None, None] * step_ratio[:, None, None, :]
            log = np.log(np.maximum(compute_s[:, stage::n_stages, :, :, dp] / usual, TINY_RATIO))
            there = np.isfinite(log) & (level > THROUGHOUT_LEVEL * level.max())
            slow = there & (log > THROUGHOUT_LEVEL * level)
            found[dp, stage] = slow.sum() >= THROUGHOUT_SHARE * there.sum()
    return found


def gather_computes(observed: Sequence[Observed], n_stages: int) -> Seconds:
    """Collect compute durations, shape (2, n_virtual, n_microbatches, n_steps, n_dp); NaN where there is none."""
    n_chunks = 1 + max(int(o.block.nodes.chunk.max(initial=0)) for o in observed)
    n_microbatches = 1 + max(int(o.block.nodes.microbatch.max(initial=0)) for o in observed)
    n_steps = sum(len(o.block.steps) for o in observed)
    compute_s = np.full((2, n_chunks * n_stages, n_microbatches, n_steps, observed[0].block.n_dp), np.nan)
    for place, node, at in compute_places(observed, n_stages):
        compute_s[place][at] = node
    return compute_s


def compute_places(observed: Sequence[Observed], n_stages: int) -> list[tuple[tuple[int, int, int], Seconds, slice]]:
    """List every compute node: its (direction, virtual stage, microbatch), own times, and steps of its block."""
    found = []
    first = 0
    for o in observed:
        nodes = o.block.nodes
        at = slice(first, first + len(o.block.steps))
        for node in np.flatnonzero(np.isin(nodes.op, (Op.FORWARD, Op.BACKWARD))).tolist():
            place = (
                int(nodes.op[node] == Op.BACKWARD),
                max(int(nodes.chunk[node]), 0) * n_stages + int(nodes.stage[node]),
                int(nodes.microbatch[node]),
            )
            # A rank that does not run the microbatch took no time for it, and what was filled in is nobody's.
            own = np.where(o.own[node] > 0, o.own[node], np.nan)
            found.append((place, own if o.block.filled is None else np.where(o.block.filled[node], np.nan, own), at))
        first = at.stop
    return found


def _gather(
    observed: Sequence[Observed], by_node: Sequence[dict[int, Seconds]], shape: tuple[int, ...], n_stages: int
) -> Seconds | None:
    """Collect seconds of compute nodes as `gather_computes` does; None where there are none."""
    found: Seconds | None = None
    first = 0
    for o, seconds in zip(observed, by_node, strict=True):
        nodes = o.block.nodes
        at = slice(first, first + len(o.block.steps))
        first = at.stop
        for node, of_node in seconds.items():
            if nodes.op[node] not in (Op.FORWARD, Op.BACKWARD):
                continue
            if found is None:
                found = np.zeros(shape)
            virtual = max(int(nodes.chunk[node]), 0) * n_stages + int(nodes.stage[node])
            found[int(nodes.op[node] == Op.BACKWARD), virtual, int(nodes.microbatch[node]), at] = of_node
    return found


def _find_late_starts(observed: Sequence[Observed], shape: tuple[int, ...]) -> Bools:
    """Say where most of what opens a step on the workers, computes left out, is late: shape (n_steps, n_dp)."""
    found = np.zeros(shape[3:], dtype=bool)
    first = 0
    for o in observed:
        at = slice(first, first + len(o.block.steps))
        first = at.stop
        late, nodes = delay_excess(o), o.block.nodes
        opening = [n for e in o.graph.events for n in e.members if not o.graph.waits[n] and nodes.op[n] != Op.FORWARD]
        if opening and any(n in late for n in opening):
            n_late = sum((late[n] > 0 for n in opening if n in late), np.zeros(found[at].shape))
            found[at] = n_late > len(opening) / 2
    return found


def nearest_zero_center(values: Seconds, *, axis: int) -> Seconds:
    """Take the median; of two values the one nearer to zero, of one that one."""
    if values.shape[axis] != 2:
        found: Seconds = np.nanmedian(values, axis=axis)
        return found
    first, second = np.take(values, 0, axis=axis), np.take(values, 1, axis=axis)
    same_side = np.sign(first) == np.sign(second)
    nearer = np.where(np.abs(first) < np.abs(second), first, second)
    nearer = np.where(np.isnan(first), second, np.where(np.isnan(second), first, nearer))
    return np.where(same_side | np.isnan(first) | np.isnan(second), nearer, 0.0)


def _find_slow_workers(excess: Seconds, n_stages: int, told: Bools) -> tuple[Seconds, Bools, Seconds]:
    """Find the workers that are behind their peers, constantly or in single steps.

    Parameters
    ----------
    excess : ndarray of float64, shape (2, n_virtual, n_steps, n_dp)
        Log of pace against the stage's and step's usual.
    told : ndarray of bool, shape (n_stages,)
        With one dp rank: stages whose optimizer says that the worker is slow.

    Returns
    -------
    worker_log : ndarray of float64, shape of `excess`
        Log of the slow workers' ratio, 0 for all others.
    slow : ndarray of bool, shape (n_dp, n_stages)
    worker_excess : ndarray of float64, shape (n_dp, n_stages, n_steps)
    """
    _, n_virtual, n_steps, n_dp = excess.shape
    n_chunks = n_virtual // n_stages
    worker_log = np.zeros_like(excess)
    # Both directions and all chunks of a worker: the forward and backward of a slow worker are both slow.
    by_worker = np.nanmean(
        excess.reshape(2, n_chunks, n_stages, n_steps, n_dp), axis=(0, 1)
    )  # (n_stages, n_steps, n_dp)
    if n_dp == 1 and n_stages == 1:
        return worker_log, np.zeros((n_dp, n_stages), dtype=bool), np.moveaxis(by_worker, 2, 0)
    common = np.zeros((n_steps, n_dp))
    if n_stages >= 2 and n_dp >= 2:
        # What a whole dp rank shares in one step is its microbatches; what it shares in all steps is not.
        common = np.nan_to_num(nearest_zero_center(by_worker, axis=0))
        steady = np.median(common, axis=0)
        # The standard deviation, not a robust one: documents have heavy tails, and a rank that drew a few is not slow.
        spread = float(np.std(common - steady))
        common = common - np.where(steady > CHANCE_DEVIATIONS * spread / np.sqrt(n_steps), steady, 0.0)
    own = np.nan_to_num(by_worker - common)
    both = _in_both_directions(excess, common, own, n_stages)
    usual = np.median(own, axis=1)  # (n_stages, n_dp)
    usual = np.where(np.median(both, axis=1), usual, np.minimum(usual, 0.0))
    around = own - usual[:, None]
    sigma = robust_deviation(around)
    constant = ((n_dp > 1) | told[:, None]) & (
        usual > max(np.log1p(SLOW_RATIO), CHANCE_DEVIATIONS * sigma / np.sqrt(n_steps))
    )
    since = _find_onsets(
        np.where(both, own, np.minimum(own, 0.0)), sigma
    )  # (n_stages, n_dp), n_steps where there is none
    after = np.arange(n_steps)[None, :, None] >= since[:, None]
    from_onset = np.where(after, own, np.nan)
    hits = both & (own > max(np.log1p(SLOW_STEP_RATIO), SLOW_STEP_DEVIATIONS * sigma))
    n_hits = hits.sum(axis=1)  # (n_stages, n_dp)
    # With one stage a long document is a slow step of its rank: all ranks draw some.
    expected = (n_hits.sum() - n_hits) / max(n_hits.size - 1, 1)
    least = max(MIN_SLOW_STEPS, MIN_SLOW_SHARE * n_steps)
    often = n_hits >= np.maximum(least, HITS_RATIO * expected)
    # Where many microbatches agree (`_slow_throughout` asks them), the last steps may be fewer.
    often |= (n_hits >= MIN_LAST_STEPS) & hits[:, -MIN_LAST_STEPS:].all(axis=1) & (n_hits > HITS_RATIO * expected)
    often &= (n_dp > 1) & (n_hits > expected + CHANCE_DEVIATIONS * np.sqrt(expected))
    changed = since < n_steps
    constant &= ~changed
    slow = constant | often | changed  # (n_stages, n_dp)
    # Ordinary variation stays with the work: only what differs from the worker's usual pace by more counts as its own.
    usual = np.where(changed, np.nan_to_num(np.nanmedian(from_onset, axis=1)), usual)
    constant = constant | changed
    pace = np.where(changed[:, None] & ~after, 0.0, usual[:, None])
    even = np.where(np.abs(own - pace) <= ORDINARY_DEVIATIONS * sigma, pace, own)
    level = np.where(constant[:, None], even, np.where(hits, own, 0.0))
    level = np.where(slow[:, None], np.maximum(level, 0.0), 0.0)  # (n_stages, n_steps, n_dp)
    direction = excess.reshape(2, n_chunks, n_stages, n_steps, n_dp)
    ratio = _direction_ratio(direction, level)
    worker_log = (level[None, None] * ratio).reshape(excess.shape)
    return worker_log, slow.T.copy(), np.moveaxis(own, 2, 0)


def _find_onsets(own: Seconds, sigma: float) -> NDArray[np.int64]:
    """Find the position of the step from which on each worker is behind, shape (n_stages, n_dp); n_steps where there is none."""
    rise = Rise(
        bound=(-ORDINARY_DEVIATIONS * sigma, float(np.maximum(ORDINARY_DEVIATIONS * sigma, np.log1p(SLOW_STEP_RATIO)))),
        least_level=float(np.log1p(SLOW_RATIO)),
        min_after=MIN_SLOW_STEPS,
        deviations=CHANCE_DEVIATIONS + 1.0,
    )
    return find_rise(np.moveaxis(own, 1, -1), sigma, rise)


def _in_both_directions(excess: Seconds, common: Seconds, own: Seconds, n_stages: int) -> Bools:
    """Say in which steps a worker's forwards and backwards are both behind; shape (n_stages, n_steps, n_dp).

    A slow clock slows both; pauses that hit most forwards of a step, or the only one, leave its backwards alone.
    """
    n_steps, n_dp = excess.shape[2:]
    by_direction = np.nanmean(excess.reshape(2, -1, n_stages, n_steps, n_dp), axis=1) - common
    least = np.nan_to_num(np.nanmin(by_direction, axis=0))
    return np.asarray(least > BOTH_SHARE * own)


def _direction_ratio(direction: Seconds, level: Seconds) -> Seconds:
    """Say how a worker's excess splits over forward and backward: a factor a (direction, chunk, worker), about 1."""
    weight = np.where(level > 0, level, np.nan)[None, None]
    ratio = np.nanmedian(direction / weight, axis=3, keepdims=True)
    return np.clip(np.nan_to_num(ratio, nan=1.0), 0.0, 2.0)


def _find_microbatches(left: Seconds) -> tuple[Seconds, float, float | None, float | None]:
    """Find what a microbatch takes on every stage, forward and backward each with its own slope.

    Parameters
    ----------
    left : ndarray of float64, shape (2, n_virtual, n_microbatches, n_steps, n_dp)
        Durations over everything found before.

    Returns
    -------
    ratio : ndarray of float64, shape (2, n_microbatches, n_steps, n_dp)
    ordinary : float
        Part of the ratio's logarithm that a job with even microbatches has, too, 0..1.
    correlation, spread : float or None
        Between forward and backward, and robust spread of the forward (log).
    """
    logs = np.log(np.maximum(left, TINY_RATIO))
    over_stages = nearest_zero_center(logs, axis=1)  # (2, n_microbatches, n_steps, n_dp)
    forward, backward = over_stages[0], over_stages[1]
    there = np.isfinite(forward) & np.isfinite(backward)
    ones = np.ones_like(over_stages)
    if there.sum() < 8:
        return ones, 0.0, None, None
    f, b = forward[there], backward[there]
    f, b = f - np.median(f), b - np.median(b)
    spread = float(max(robust_deviation(f), np.std(f)))
    correlation = float(np.mean(f * b) / max(np.sqrt(np.mean(f * f) * np.mean(b * b)), 1e-12))
    if correlation < MIN_CORRELATION or spread < MIN_SPREAD:
        return ones, 0.0, correlation, spread
    slope = float(np.sum(f * b) / max(np.sum(f * f), 1e-12))
    # One length explains both directions on every stage; a pause in one of them does not move the median of all.
    slope = max(slope, MIN_SLOPE)
    shared = nearest_zero_center(np.concatenate([logs[0], logs[1] / slope]), axis=0)
    ratio = np.exp(np.nan_to_num(np.stack([shared, shared * slope])))
    apart = robust_deviation(f - b / slope - np.median(f - b / slope))
    return ratio, min(apart / (APART_RATIO * spread), 1.0), correlation, spread
