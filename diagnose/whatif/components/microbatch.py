"""Uneven microbatches: one microbatch takes longer on every stage, forward and backward, than the others of its step."""

import numpy as np

from diagnose.model.trace import Seconds
from diagnose.numerics.robust import robust_deviation
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
    ratio = np.exp(np.nan_to_num(np.stack([shared, shared * slope])))
    apart = robust_deviation(f - b / slope - np.median(f - b / slope))
    return ratio, min(apart / (APART_RATIO * spread), 1.0), correlation, spread


COMPONENT = Component("microbatch", MicrobatchPart)
