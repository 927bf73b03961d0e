"""Uneven microbatches: one microbatch takes longer on every stage, forward and backward, than the others of its step."""

import dataclasses
from collections.abc import Sequence

import numpy as np

from diagnose.model.trace import Bools, Seconds
from diagnose.numerics.robust import (
    MAD_TO_SIGMA,
    fill_nan,
    keep_where,
    median,
    nan_median,
    robust_deviation,
    take_where,
)
from diagnose.whatif.components.component import Component, Lanes, Part, mix
from diagnose.whatif.computes import Place, Places
from diagnose.whatif.medians import MEDIAN_ERROR, TINY_RATIO, nearest_zero_center

#: Forward and backward of uneven microbatches are long together.
MIN_CORRELATION = 0.5
#: Stages agree on which microbatches are long, by more than so many standard deviations of a correlation by chance.
CHANCE_DEVIATIONS = 4.0
#: Beyond so many robust deviations a microbatch counts as that far: a pause is no length.
BOUND_DEVIATIONS = 6.0
#: Fewer microbatches say nothing; nor do fewer of a rank of that rank by itself.
MIN_MICROBATCHES, MIN_OF_RANK = 8, 48
#: Backward grows with length at least this much as forward does (real: 0.7 to 1.4).
MIN_SLOPE = 0.1
#: Without documents, what puts forward and backward of a microbatch apart is this part of what they share (standard deviations:
#: 0.42 and 0.75 in the two production traces).
APART_RATIO = 0.57
#: Where this part of what microbatches share is ordinary, nobody can tell that the rest is not.
ALL_ORDINARY = 0.9
#: What is longer than by so many deviations is so by its documents: ordinary variation has no long tail.
ORDINARY_DEVIATIONS = 2.0
#: Forward and backward of microbatches without documents vary together by at most so much (standard deviation of the log): 0.02 in
#: production traces, up to 0.054 in jobs recorded on busy processors; 0.12 with one stage, where no other tells noise of the host.
MOST_ORDINARY, MOST_ORDINARY_OF_ONE = 0.05, 0.15
#: A rank is busy where neighbours are alike by this part of what the directions of one microbatch are (0.8 to 1.0 beside real busy
#: processes, up to 0.2 with documents), and these vary together so many times as much as on a third of the ranks.
BUSY_ALIKE, BUSY_RATIO = 0.6, 4.0
#: Microbatches, and the next ones.
AHEAD = (slice(None, -1), slice(1, None))


class MicrobatchPart(Part):
    """Without it all microbatches of a step take the mean of all: imbalance moves work, and the work is kept."""

    changes_work = True

    def find(self) -> None:
        """Weigh each microbatch, ordinary variation left out, against the mean that keeps the work of its step."""
        c = self.job.breakdown
        ordinary = _take_ordinary(c.microbatch_ratio / c.microbatch_told, c.microbatch_ordinary)
        weight = c.microbatch_ratio / ordinary
        there = ~np.isnan(c.compute_s).all(axis=1)
        work, even = (np.where(there, of, 0.0).sum(axis=(1, 3)) for of in (c.microbatch_ratio, ordinary))
        mean = np.divide(work, even, out=np.ones_like(work), where=even > 0)  # (2, n_steps)
        self._even, self._is_uneven = mean[:, None, :, None] / weight, bool((weight != 1.0).any())

    def is_present(self) -> bool:
        """Say whether any microbatch differs from the others."""
        return self._is_uneven

    def ease_work(self, work: Seconds, place: Place | Places, steps: slice, lanes: Lanes) -> Seconds:
        """Give a compute the work of a mean microbatch of its step."""
        direction, _, microbatch = place
        return work * mix(lanes, self._even[direction, microbatch, steps], 1.0)


@dataclasses.dataclass(frozen=True, slots=True)
class Microbatches:
    """How microbatches differ."""

    #: Shape (2, n_microbatches, n_steps, n_dp): what each takes against a typical one, on every stage; 1 where nothing says so.
    ratio: Seconds
    #: Shape (n_dp,): part of the ratio's logarithm that a job with even microbatches has, too, 0..1: by rank, as one alone may
    #: have documents.
    ordinary: Seconds
    #: `correlation`, `spread`: between forward and backward, and robust spread of the forward (log); None with too few.
    correlation: float | None = None
    spread: float | None = None
    #: Part of what forward and backward of a compute share that other stages share, about 0..1; None with one stage, too.
    stage_share: float | None = None
    #: Shape (n_microbatches, n_steps, n_dp), or one number: as `microbatch_told` of `Breakdown`.
    told: Seconds | float = 1.0
    #: Shape (n_dp,): ranks whose machines are slow for moments, whichever microbatch they are at; None: nobody asked.
    busy: Bools | None = None

    def uneven(self) -> Seconds:
        """Give the ratio without its ordinary part."""
        return self.ratio / _take_ordinary(self.ratio / self.told, self.ordinary)

    def error_of_step(self) -> float:
        """Say how far the usual microbatch of a step is off by which were drawn: standard deviation of the log."""
        n_drawn = self.ratio.shape[1] * self.ratio.shape[3]
        return MEDIAN_ERROR * float(np.std(np.log(self.uneven() / self.told))) / float(np.sqrt(n_drawn))


def _take_ordinary(ratio: Seconds, part: Seconds | float) -> Seconds:
    """Give what is ordinary of how microbatches differ, shape of `ratio`; `part` is which part of its logarithm that is."""
    logs = np.log(ratio)
    most = ORDINARY_DEVIATIONS * robust_deviation(logs[0])
    return np.exp(part * np.clip(logs, -most, most))


def find_microbatches(left: Seconds, told: Seconds | float = 1.0, *, turn_round: bool = False) -> Microbatches:
    """Find what a microbatch takes on every stage, forward and backward each with its own slope.

    However little they differ it is found: whether it matters is for the replay to say.

    Parameters
    ----------
    left : ndarray of float64, shape (2, n_virtual, n_microbatches, n_steps, n_dp)
        Durations over everything found before.
    told : ndarray of float64, shape (n_microbatches, n_steps, n_dp), or float
        How much longer microbatches are by their tokens.
    turn_round : bool
        Whether ranks that are slow in some steps are quick in others: then it is their documents, though a whole step has them.
    """
    logs = np.log(np.maximum(left, TINY_RATIO))
    forward, backward, *_ = nearest_zero_center(logs, axis=1)  # (n_microbatches, n_steps, n_dp)
    there = np.isfinite(forward) & np.isfinite(backward)
    none, whole = np.ones((len(left), *forward.shape)), np.zeros(forward.shape[-1])
    n = int(there.sum())
    if n < MIN_MICROBATCHES:
        return Microbatches(none, whole)
    f, b = forward[there], backward[there]
    f, b = f - median(f), b - median(b)
    spread = float(max(robust_deviation(f), np.std(f)))
    together = float(np.mean(f * b))
    correlation = together / max(float(np.sqrt(np.mean(f * f) * np.mean(b * b))), 1e-12)
    halves = _halve(logs)
    centered = [_center(of) for of in halves[:2]]
    stage_share, apart = _compare_stages(halves[:2], centered) if logs.shape[1] > 1 else (None, 0.0)
    agree = stage_share is None or apart * np.sqrt(n * _share_of_looks(*centered)) > CHANCE_DEVIATIONS
    if correlation < MIN_CORRELATION or not agree:
        return Microbatches(none, whole, correlation, spread, stage_share)
    if np.ndim(told):  # else 1
        logs = logs - np.log(told)
        halves = _halve(logs)
    # One length explains all directions on every stage; a pause in one of them does not move the median of all.
    centered += [_center(of) for of in halves[2:]]
    slopes = [1.0, *(_slope_of(centered[0], of) for of in centered[1:])]
    slope = slopes[1]
    shared = nearest_zero_center(np.concatenate([of / by for of, by in zip(logs, slopes, strict=True)]), axis=0)
    share = _share_of_stages(logs, slope, turn_round=turn_round)
    shared = shared * share
    busy = _find_busy(logs) & (not turn_round)
    shared = np.where(busy, 0.0, shared)
    ratio = told * np.exp(fill_nan(np.stack([shared * by for by in slopes])))
    ordinary = _measure_ordinary(halves, slope, one_stage=stage_share is None)
    return Microbatches(ratio, ordinary, correlation, spread, stage_share, told, busy)


def _find_busy(logs: Seconds) -> Bools:
    """Mark ranks that alone have uneven microbatches, and of which one is as like the next as forward and backward of one are.

    Documents are drawn one by one; what else runs on a machine slows what comes one after the other, on all of its stages.
    """
    of_rank = nan_median(logs, axis=(2, 3), keepdims=True)
    both = np.nan_to_num(np.nanmean(logs[:2] - of_rank[:2], axis=1))  # (2, n_microbatches, n_steps, n_dp)
    if both.shape[1] < 2 or both.shape[3] < 2:
        return np.zeros(both.shape[3], dtype=bool)
    own = (both[0] * both[1]).mean(axis=(0, 1))
    together = own >= MIN_CORRELATION * np.sqrt((both[0] ** 2).mean(axis=(0, 1)) * (both[1] ** 2).mean(axis=(0, 1)))
    beside = sum((both[0, a] * both[1, b]).mean(axis=(0, 1)) for a, b in (AHEAD, AHEAD[::-1])) / 2.0
    others = np.sort(own)[(len(own) - 1) // 3]
    return np.asarray(together & (beside > BUSY_ALIKE * own) & (own > BUSY_RATIO * max(others, TINY_RATIO)))


def _halve(logs: Seconds) -> Seconds:
    """Give what every other stage says of each microbatch, and what the others do; with one stage both are what that says.

    Shape (n_directions, 2, n_microbatches, n_steps, n_dp).
    """
    firsts, there = (0, 1) if logs.shape[1] > 1 else (0, 0), np.isfinite(logs)
    if there.all():  # as in most jobs
        return np.stack([logs[:, first::2].mean(axis=1) for first in firsts], axis=1)
    known = np.where(there, logs, 0.0)
    n = np.stack([there[:, first::2].sum(axis=1) for first in firsts], axis=1)
    total = np.stack([known[:, first::2].sum(axis=1) for first in firsts], axis=1)
    return np.where(n > 0, total / np.maximum(n, 1), np.nan)


def _slope_of(forward: Seconds, other: Seconds) -> float:
    """Say how much another direction grows with the length of a microbatch for each 1 that its forward does (centered halves).

    By what the halves agree on: forwards that are long by themselves would make it too small.
    """
    growth, _ = _in_common(forward, other[::-1])
    by, _ = _in_common(forward, forward[::-1])
    return max(float(growth / by), MIN_SLOPE) if by > 0 and np.isfinite(other).any() else 1.0


def _measure_ordinary(halves: Seconds, slope: float, *, one_stage: bool) -> Seconds:
    """Say which part of what microbatches differ by is ordinary variation, 0..1, on each rank; shape (n_dp,).

    That forward and backward are apart tells how much they vary without documents, though never more than any job without
    does. Only what the halves of the stages agree on counts, and a standard error more: computes that are long by themselves put
    forward and backward apart, too, and say nothing of microbatches. With one stage all counts. On ranks with few microbatches
    all are asked.
    """
    few = halves.shape[2] * halves.shape[3] < MIN_OF_RANK
    axis = (1, 2, 3) if few else (1, 2)
    forward, backward = halves[0], halves[1] / slope
    apart = _center(forward - backward, axis)
    together, _ = _in_common(_center(forward, axis), _center(backward, axis)[::-1], axis)
    residual, error = _in_common(apart, apart[::-1], axis)
    most = MOST_ORDINARY_OF_ONE if one_stage else MOST_ORDINARY
    ordinary = np.minimum(np.maximum(residual + error, 0.0) / APART_RATIO**2, most**2)
    part = np.sqrt(np.clip(ordinary / np.maximum(together, TINY_RATIO), 0.0, 1.0))
    return np.broadcast_to(np.where(part >= ALL_ORDINARY, 1.0, part), halves.shape[-1:])


def _center(halves: Seconds, axis: tuple[int, ...] = (1, 2, 3)) -> Seconds:
    """Put each half around its median, and what is a pause at `BOUND_DEVIATIONS`, or as far as the other half is."""
    halves = halves - nan_median(halves, axis=axis, keepdims=True)
    bound = BOUND_DEVIATIONS * MAD_TO_SIGMA * nan_median(np.abs(halves), axis=axis, keepdims=True)
    # Half of the stages do not pause as the others do; of one stage both halves are the same, and say nothing of each other.
    others = halves[::-1] if not np.array_equal(halves[0], halves[1], equal_nan=True) else 0.0
    return np.asarray(np.clip(halves, np.fmin(-bound, others), np.fmax(bound, others)))


def _in_common(halves: Seconds, others: Seconds, axis: tuple[int, ...] = (1, 2, 3)) -> tuple[Seconds, Seconds]:
    """Give the covariance of two halves with the other halves, and its standard error; without what either lacks."""
    products = (halves * others).mean(axis=0)
    along = tuple(a - 1 for a in axis)
    n = np.maximum(np.isfinite(products).sum(axis=along), 1)
    products = fill_nan(products)
    mean = products.sum(axis=along) / n
    deviation = np.sqrt(np.maximum((products**2).sum(axis=along) / n - mean**2, 0.0))
    return np.asarray(mean), np.asarray(deviation / np.sqrt(n))


def _compare_stages(halves: Seconds, centered: Sequence[Seconds]) -> tuple[float, float]:
    """Say which part of what forward and backward share other stages share, and how one half of them predicts the other's.

    What forward and backward of a compute have in common is no noise of single operations; documents are the same on all stages,
    what a stage's own experts were given is not. The second value is a correlation.
    """
    there = np.isfinite(halves).all(axis=(0, 1))
    forward, backward = centered if there.all() else (_center(np.where(there, of, np.nan)) for of in halves)
    same, _ = _in_common(forward, backward)
    other, _ = _in_common(forward, backward[::-1])
    deviations = [np.sqrt(np.nanmean(of**2, axis=(1, 2, 3))) for of in (forward, backward[::-1])]
    scale = float(np.mean(deviations[0] * deviations[1]))
    return float(other / same) if same > 0 else 0.0, float(other) / scale if scale > 0 else 0.0


def _share_of_looks(forward: Seconds, backward: Seconds) -> float:
    """Say which part of the microbatches are looks of their own at what stages share, 0..1; centered halves.

    Ranks that share experts are long together: all of them are one look.
    """
    products = (forward * backward[::-1]).mean(axis=0)  # (n_microbatches, n_steps, n_dp)
    there = np.isfinite(products).any(axis=-1)
    if there.sum() < MIN_MICROBATCHES:
        return 1.0
    of_all = np.nanmean(products[there], axis=-1)
    error = float(np.var(of_all)) / len(of_all)
    alone = float(np.nanvar(products)) / int(np.isfinite(products).sum())
    return min(alone / error, 1.0) if error > 0 else 1.0


def _share_of_stages(logs: Seconds, slope: float, *, turn_round: bool = False) -> Seconds | float:
    """Say which part of the mean over stages is what they share, 0..1: the rest is the mean of what each stage has by itself.

    Of each rank, shape (n_dp,), where it has microbatches enough.

    Documents are the same on all stages. With one stage nobody can tell, and all of it counts.
    """
    both = _mean_of_directions(logs, slope)  # (n_virtual, n_microbatches, n_steps, n_dp)
    there = np.isfinite(both)
    n = there.sum(axis=0)
    if len(both) < 2 or both.shape[1] < 2 or not (n >= 2).any():
        return 1.0
    width = BOUND_DEVIATIONS * robust_deviation(take_where(there, both))
    both = keep_where(there, np.clip(both, -width, width))
    if not turn_round:  # else microbatches of one worker and step must differ, not steps or workers
        both = keep_where(
            there, both - both.sum(axis=1, keepdims=True) / np.maximum(there.sum(axis=1, keepdims=True), 1)
        )
    squares, total = both**2, both.sum(axis=0)
    pairs = (total**2 - squares.sum(axis=0)) / np.maximum(n * (n - 1), 1)  # mean product of two stages
    axis = None if both.shape[1] * both.shape[2] < MIN_OF_RANK else (0, 1)
    mean_squares = ((total / np.maximum(n, 1)) ** 2).sum(axis=axis)
    return np.asarray(np.clip(pairs.sum(axis=axis) / np.maximum(mean_squares, TINY_RATIO), 0.0, 1.0))


def _mean_of_directions(logs: Seconds, slope: float) -> Seconds:
    """Take the mean of forward and backward of each compute, each around its usual value on its stage."""
    centered = logs - nan_median(logs, axis=(2, 3, 4), keepdims=True)
    return np.asarray((centered[0] + centered[1] / slope) / 2.0)


COMPONENT = Component("microbatch", MicrobatchPart)
