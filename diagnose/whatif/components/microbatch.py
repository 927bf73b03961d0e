"""Uneven microbatches: one microbatch takes longer on every stage, forward and backward, than the others of its step."""

import numpy as np

from diagnose.model.trace import Seconds
from diagnose.numerics.robust import nan_median, robust_deviation
from diagnose.whatif.components.component import Component, Lanes, Part, mix
from diagnose.whatif.computes import Place
from diagnose.whatif.medians import TINY_RATIO, nearest_zero_center

#: Microbatches are uneven when forward and backward agree and spread this much (real: 0.226 with, 0.016-0.027 without).
MIN_CORRELATION = 0.5
MIN_SPREAD = 0.06
#: Backward grows with length at least this much as forward does (real: 0.7 to 1.4).
MIN_SLOPE = 0.1
#: Without documents, forward and backward of a microbatch vary together with a correlation of 0.86, the backward 1.25 times as much
#: (production traces): then they are this part of the forward's spread apart.
APART_RATIO = 0.64
#: Beyond so many robust deviations a pause counts as so many; stages agree beyond so many standard errors over steps.
CLIP_DEVIATIONS = 6.0
CHANCE_DEVIATIONS = 3.0


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
        return bool((self.job.breakdown.microbatch_ratio != 1.0).any())

    def ease_work(self, work: Seconds, place: Place, steps: slice, lanes: Lanes) -> Seconds:
        """Give a compute the work of a mean microbatch of its step."""
        direction, _, microbatch = place
        even = self._mean[direction, steps, None] / self._weight[direction, microbatch, steps]
        return work * mix(lanes, even, 1.0)


def find_microbatches(left: Seconds) -> tuple[Seconds, float, float | None, float | None]:
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
    share = _share_of_stages(logs, slope)
    shared = shared * share
    ratio = np.exp(np.nan_to_num(np.stack([shared, shared * slope])))
    apart = robust_deviation(f - b / slope - np.median(f - b / slope))
    return ratio, min(apart / (APART_RATIO * spread), 1.0), correlation, spread * float(np.sqrt(share))


def _share_of_stages(logs: Seconds, slope: float) -> float:
    """Say which part of the mean over stages is what they share, 0..1: the rest is the mean of what each stage has by itself.

    Documents are the same on all stages. With one stage nobody can tell, and all of it counts.
    """
    both = _mean_of_directions(logs, slope)  # (n_virtual, n_microbatches, n_steps, n_dp)
    there = np.isfinite(both)
    n = there.sum(axis=0)
    if len(both) < 2 or both.shape[1] < 2 or not (n >= 2).any():
        return 1.0
    width = CLIP_DEVIATIONS * robust_deviation(both[there])
    both = np.clip(both, -width, width)
    # Microbatches of one worker and step must differ, not steps or workers.
    both = np.where(
        there, both - both.sum(axis=1, keepdims=True) / np.maximum(there.sum(axis=1, keepdims=True), 1), 0.0
    )
    squares, total = both**2, both.sum(axis=0)
    pairs = (total**2 - squares.sum(axis=0)) / np.maximum(n * (n - 1), 1)  # mean product of two stages
    by_step = pairs.sum(axis=(0, 2))
    error = by_step.std(ddof=1) * np.sqrt(len(by_step)) if len(by_step) > 1 else 0.0
    if by_step.sum() <= CHANCE_DEVIATIONS * error:
        return 0.0
    mean_squares = ((total / np.maximum(n, 1)) ** 2).sum()
    return float(min(by_step.sum() / max(mean_squares, TINY_RATIO), 1.0))


def _mean_of_directions(logs: Seconds, slope: float) -> Seconds:
    """Take the mean of forward and backward of each compute, each around its usual value on its stage."""
    centered = logs - nan_median(logs, axis=(2, 3, 4), keepdims=True)
    return np.asarray((centered[0] + centered[1] / slope) / 2.0)


COMPONENT = Component("microbatch", MicrobatchPart)
