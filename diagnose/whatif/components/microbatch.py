"""Uneven microbatches: one microbatch takes longer on every stage, forward and backward, than the others of its step."""

import dataclasses

import numpy as np

from diagnose.model.trace import Seconds
from diagnose.numerics.robust import MAD_TO_SIGMA, nan_median, robust_deviation
from diagnose.whatif.components.component import Component, Lanes, Part, mix
from diagnose.whatif.computes import Place
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
#: Without documents, forward and backward of a microbatch vary together with a correlation of 0.86, the backward 1.25 times as much
#: (production traces): then they are this part of the forward's spread apart.
APART_RATIO = 0.64


class MicrobatchPart(Part):
    """Without it all microbatches of a step take the mean of all: imbalance moves work, and the work is kept."""

    changes_work = True

    def find(self) -> None:
        """Weigh each microbatch, ordinary variation left out, against the mean of its step."""
        c = self.job.breakdown
        self._weight = weight = c.microbatch_ratio ** (1.0 - c.microbatch_ordinary)
        there = ~np.isnan(c.compute_s).all(axis=1)
        self._mean = np.where(there, weight, 0.0).sum(axis=(1, 3)) / np.maximum(there.sum(axis=(1, 3)), 1)

    def is_present(self) -> bool:
        """Say whether any microbatch differs from the others."""
        return bool((self._weight != 1.0).any())

    def ease_work(self, work: Seconds, place: Place, steps: slice, lanes: Lanes) -> Seconds:
        """Give a compute the work of a mean microbatch of its step."""
        direction, _, microbatch = place
        even = self._mean[direction, steps, None] / self._weight[direction, microbatch, steps]
        return work * mix(lanes, even, 1.0)


@dataclasses.dataclass(frozen=True, slots=True)
class Microbatches:
    """How microbatches differ.

    Attributes
    ----------
    ratio : ndarray of float64, shape (2, n_microbatches, n_steps, n_dp)
        What each takes against a typical one, on every stage; 1 where nothing says so.
    ordinary : ndarray of float64, shape (n_dp,)
        Part of the ratio's logarithm that a job with even microbatches has, too, 0..1: by rank, as one alone may have documents.
    correlation, spread : float or None
        Between forward and backward, and robust spread of the forward (log); None with too few.
    stage_share : float or None
        Part of what forward and backward of a compute share that other stages share, about 0..1; None with one stage, too.
    """

    ratio: Seconds
    ordinary: Seconds
    correlation: float | None = None
    spread: float | None = None
    stage_share: float | None = None

    def uneven(self) -> Seconds:
        """Give the ratio without its ordinary part."""
        return np.asarray(self.ratio ** (1.0 - self.ordinary))

    def error_of_step(self) -> float:
        """Say how far the usual microbatch of a step is off by which were drawn: standard deviation of the log."""
        n_drawn = self.ratio.shape[1] * self.ratio.shape[3]
        return MEDIAN_ERROR * float(np.std(np.log(self.uneven()))) / float(np.sqrt(n_drawn))


def find_microbatches(left: Seconds) -> Microbatches:
    """Find what a microbatch takes on every stage, forward and backward each with its own slope.

    However little they differ it is found: whether it matters is for the replay to say.

    Parameters
    ----------
    left : ndarray of float64, shape (2, n_virtual, n_microbatches, n_steps, n_dp)
        Durations over everything found before.
    """
    logs = np.log(np.maximum(left, TINY_RATIO))
    forward, backward, *weight = nearest_zero_center(logs, axis=1)  # (n_microbatches, n_steps, n_dp)
    there = np.isfinite(forward) & np.isfinite(backward)
    none, whole = np.ones((len(left), *forward.shape)), np.zeros(forward.shape[-1])
    n = int(there.sum())
    if n < MIN_MICROBATCHES:
        return Microbatches(none, whole)
    f, b = forward[there], backward[there]
    f, b = f - np.median(f), b - np.median(b)
    spread = float(max(robust_deviation(f), np.std(f)))
    together = float(np.mean(f * b))
    correlation = together / max(float(np.sqrt(np.mean(f * f) * np.mean(b * b))), 1e-12)
    stage_share, apart = _compare_stages(logs)
    agree = stage_share is None or apart * np.sqrt(n) > CHANCE_DEVIATIONS
    if correlation < MIN_CORRELATION or not agree:
        return Microbatches(none, whole, correlation, spread, stage_share)
    # One length explains all directions on every stage; a pause in one of them does not move the median of all.
    slopes = [1.0, *(_slope_of(forward, other) for other in (backward, *weight))]
    slope = slopes[1]
    shared = nearest_zero_center(np.concatenate([of / by for of, by in zip(logs, slopes, strict=True)]), axis=0)
    share = _share_of_stages(logs, slope)
    shared = shared * share
    ratio = np.exp(np.nan_to_num(np.stack([shared * by for by in slopes])))
    return Microbatches(ratio, _measure_ordinary(forward, backward, slope), correlation, spread, stage_share)


def _slope_of(forward: Seconds, other: Seconds) -> float:
    """Say how much another direction grows with the length of a microbatch for each 1 that its forward does (logs)."""
    there = np.isfinite(forward) & np.isfinite(other)
    if not there.any():
        return 1.0
    f, b = forward[there], other[there]
    f, b = f - np.median(f), b - np.median(b)
    return max(float(np.sum(f * b) / max(np.sum(f * f), 1e-12)), MIN_SLOPE)


def _measure_ordinary(forward: Seconds, backward: Seconds, slope: float) -> Seconds:
    """Say which part of what microbatches differ by is ordinary variation, 0..1, on each rank; shape (n_dp,).

    That forward and backward are apart tells how much they vary without documents. On ranks with few microbatches all are asked.
    """
    few = forward.shape[0] * forward.shape[1] < MIN_OF_RANK
    axis = (0, 1, 2) if few else (0, 1)
    f = forward - nan_median(forward, axis=axis, keepdims=True)
    apart = f - backward / slope
    residual = MAD_TO_SIGMA * nan_median(np.abs(apart - nan_median(apart, axis=axis, keepdims=True)), axis=axis)
    spread = np.maximum(MAD_TO_SIGMA * nan_median(np.abs(f), axis=axis), np.nanstd(f, axis=axis))
    ordinary = np.clip(residual / np.maximum(APART_RATIO * spread, TINY_RATIO), 0.0, 1.0)
    return np.broadcast_to(np.nan_to_num(ordinary), forward.shape[-1:])


def _compare_stages(logs: Seconds) -> tuple[float | None, float]:
    """Say which part of what forward and backward share other stages share, and how one stage's half predicts the other's.

    What forward and backward of a compute have in common is no noise of single operations; documents are the same on all stages,
    what a stage's own experts were given is not. The second value is a correlation, 0 with one stage.
    """
    if logs.shape[1] < 2:
        return None, 0.0
    halves = np.stack([nearest_zero_center(logs[:2, first::2], axis=1) for first in (0, 1)])  # (half, direction, ...)
    there = np.isfinite(halves).all(axis=(0, 1))
    values = halves[:, :, there]
    values = values - np.median(values, axis=2, keepdims=True)
    bound = BOUND_DEVIATIONS * MAD_TO_SIGMA * np.median(np.abs(values), axis=2, keepdims=True)
    values = np.clip(values, -bound, bound)
    same = float(np.mean(values[:, 0] * values[:, 1]))
    other = float(np.mean(values[:, 0] * values[::-1, 1]))
    deviations = np.sqrt(np.mean(values**2, axis=2))
    scale = float(np.mean(deviations[:, 0] * deviations[::-1, 1]))
    return (other / same if same > 0 else 0.0), (other / scale if scale > 0 else 0.0)


def _share_of_stages(logs: Seconds, slope: float) -> Seconds | float:
    """Say which part of the mean over stages is what they share, 0..1: the rest is the mean of what each stage has by itself.

    Of each rank, shape (n_dp,), where it has microbatches enough.

    Documents are the same on all stages. With one stage nobody can tell, and all of it counts.
    """
    both = _mean_of_directions(logs, slope)  # (n_virtual, n_microbatches, n_steps, n_dp)
    there = np.isfinite(both)
    n = there.sum(axis=0)
    if len(both) < 2 or both.shape[1] < 2 or not (n >= 2).any():
        return 1.0
    width = BOUND_DEVIATIONS * robust_deviation(both[there])
    both = np.where(there, np.clip(both, -width, width), 0.0)
    # Microbatches of one worker and step must differ, not steps or workers.
    both = np.where(
        there, both - both.sum(axis=1, keepdims=True) / np.maximum(there.sum(axis=1, keepdims=True), 1), 0.0
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
