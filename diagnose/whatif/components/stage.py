"""Uneven pipeline stages: computes of one stage take longer than those of others, on all ranks and in all steps."""

from collections.abc import Sequence

import numpy as np

from diagnose.model.trace import Bools, Ints, Seconds
from diagnose.numerics.robust import (
    MAD_TO_SIGMA,
    lower_median,
    median,
    nan_median,
    nan_quantile,
    robust_deviation,
    upper_stretch,
)
from diagnose.whatif.components.component import Component, Lanes, Part, mix
from diagnose.whatif.components.worker import (
    CHANCE_DEVIATIONS,
    SLOW_RATIO,
    STRETCHES_APART,
    find_onsets,
    told_by_optimizer,
)
from diagnose.whatif.computes import Place, Places
from diagnose.whatif.medians import TINY_RATIO
from diagnose.whatif.observed import Observed

#: With one dp rank a worker's own fastest steps say what it can do.
FASTEST_SHARE = 0.1
#: Where more than half of a stage's ranks are slow the others are at least one in so many: one odd quick rank is no reference.
#: Fewer than a third are odd, too, unless this part of the slow ones were not so all the time, or other stages take what the quick
#: ones do, to this part of the difference.
LEAST_QUICK, MANY_QUICK, BEHIND_SHARE, LIKE_SHARE = 4, 1.0 / 3.0, 0.5, 0.25
#: A stage falls behind where others change by less than this part of it in the same steps: else work is what changed, or moved.
OTHERS_SHARE = 0.25
#: Computes at this quantile do not stall where up to three quarters do, and how far it is from the middle, in standard deviations.
QUICK_QUANTILE, QUARTILE_TO_SIGMA = 0.25, 0.674
#: A stage stalls, and has not more work, where less than this part of what it takes beyond others is in its quicker computes.
STALLED_SHARE = 0.5
#: Durations of 0 are recorded; nothing takes less than this.
TINY_S = 1e-12


class StagePart(Part):
    """Without it every virtual stage takes the mean of all: imbalance moves work, and the work is kept."""

    changes_work = True

    def find(self) -> None:
        """Compare each stage with the mean of all: forwards, and backwards with what they leave to weights.

        A layer takes both parts of its backward along, however a schedule splits it on each stage.
        """
        typical_s, variant_ratio = self.job.breakdown.typical_s, self.job.breakdown.variant_ratio
        work_s = np.stack([typical_s[0], *[typical_s[1:].sum(axis=0)] * (len(typical_s) - 1)])
        self._even_ratio = work_s.mean(axis=1, keepdims=True) / work_s
        self._varies: Bools | None = None
        if not isinstance(variant_ratio, float):
            # Whole backwards among split ones, and the like, are even among themselves: a stage may leave all to its weights.
            ratio = variant_ratio[..., 0, 0]  # (n_directions, n_virtual, n_microbatches)
            self._varies = ratio != 1.0
            long_s = typical_s * nan_median(np.where(self._varies, ratio, np.nan), axis=2)
            n_long = np.maximum(np.isfinite(long_s).sum(axis=1, keepdims=True), 1)
            self._even_variant = np.nansum(long_s, axis=1, keepdims=True) / n_long / long_s

    def is_present(self) -> bool:
        """Say whether there are several stages."""
        return bool(self.job.breakdown.typical_s.shape[1] > 1)

    def ease_work(self, work: Seconds, place: Place | Places, steps: slice, lanes: Lanes) -> Seconds:
        """Give a compute the work of a mean stage."""
        del steps
        direction, virtual, microbatch = place
        ratio = self._even_ratio[direction, virtual]
        if self._varies is not None:
            varies = self._varies[direction, virtual, microbatch]
            ratio = np.where(varies, self._even_variant[direction, virtual], ratio)
        return work * mix(lanes, ratio[..., None, None], 1.0)


def find_usual_durations(
    observed: Sequence[Observed], by_step: Seconds, order: Ints, n_stages: int, by_member: Seconds | None = None
) -> tuple[Seconds, Bools]:
    """Say what a compute usually takes on each virtual stage, and which stages are long for a slow worker alone.

    Parameters
    ----------
    by_step : ndarray of float64, shape (2, n_virtual, n_steps, n_dp)
        Median over the microbatches, seconds.
    order : ndarray of int64, shape (n_steps,)
        Puts the steps in time.
    by_member : ndarray of float64, shape (n_stages,), optional
        With one dp rank: what `told_by_member` says.

    Returns
    -------
    typical_s : ndarray of float64, shape (2, n_virtual)
        Seconds.
    told : ndarray of bool, shape (n_stages,)
        With one dp rank: stages whose optimizer, or one member, says that the worker is slow.
    """
    by_rank = nan_median(by_step, axis=2)  # (2, n_virtual, n_dp)
    usual = _usual_ranks(by_step[:, :, order], by_rank, n_stages)
    typical_s = lower_median(np.where(usual, by_rank, np.nan), axis=2)
    usual_s = np.maximum(np.nan_to_num(nan_median(typical_s, axis=1, keepdims=True)), TINY_S)
    typical_s = np.where(typical_s > 0, typical_s, usual_s)
    # Of most ranks of a stage, not of some: others would be peers.
    typical_s = _typical_while_quick(lower_median(by_step[:, :, order], axis=3), typical_s, n_stages)
    if by_step.shape[-1] > 1:
        return typical_s, np.zeros(n_stages, dtype=bool)
    if by_member is not None and by_member.any():
        return typical_s * np.tile(1.0 - by_member, typical_s.shape[1] // n_stages), by_member > 0
    told = told_by_optimizer(observed, typical_s, n_stages)
    for stage in np.flatnonzero(told).tolist():
        others = np.flatnonzero(np.arange(typical_s.shape[1]) % n_stages != stage)
        typical_s[:, stage::n_stages] = median(typical_s[:, others], axis=1, keepdims=True)
    return typical_s, told


def without_stalls(even_s: Seconds, typical_s: Seconds) -> Seconds:
    """Say what is usual on stages that stall in about half of their computes: what the quicker ones take against other stages'.

    Of a stage with more work all computes are longer, the quickest by as much. Asked of jobs with one dp rank, of whose stages no
    other rank tells; what stalls computes of one direction alone may be how these vary. `even_s` are durations, axes as in
    `Breakdown`; `typical_s`, and what comes back, have shape (2, n_virtual).
    """
    n_there = np.isfinite(even_s).sum(axis=(2, 3)).max(axis=2)
    low_s = lower_median(nan_quantile(even_s, QUICK_QUANTILE, axis=(2, 3)), axis=2)
    usual_of, low_of = (lower_median(s, axis=1)[:, None] for s in (typical_s, low_s))
    beyond, low = (np.log(np.maximum(s / of, TINY_RATIO)) for s, of in ((typical_s, usual_of), (low_s, low_of)))
    ordinary = np.log(np.maximum(usual_of / low_of, 1.0))
    chance = CHANCE_DEVIATIONS * ordinary / QUARTILE_TO_SIGMA / np.sqrt(np.maximum(n_there, 1))
    # Stalls are no ordinary variation: its computes vary by far more than those of others do.
    least = np.maximum(np.maximum(chance, ordinary), np.log1p(SLOW_RATIO))
    stalls = ((beyond - low > least) & (low < STALLED_SHARE * beyond)).all(axis=0)
    return np.where(stalls, usual_of * np.exp(low), typical_s)


def _usual_ranks(by_step: Seconds, by_rank: Seconds, n_stages: int) -> Bools:
    """Mark the dp ranks that say what is usual on each stage, where they are on two levels; else all.

    They are where the widest gap between neighbours is far wider than what is on both sides of it varies. Fewer than a third that
    are quicker say nothing of the others: it is they that are odd, unless most fall behind, or other stages take as long as they.
    Half of them, as one of two, are usual, unless other stages take as long as the other half, which did not fall behind. `by_step`
    has steps in time. Shape (1 or n_virtual, n_dp), broadcastable to `by_rank`.
    """
    n_dp = by_rank.shape[-1]
    first = -(-n_dp // LEAST_QUICK)
    if n_dp == 1:
        return np.ones((1, 1), dtype=bool)
    log = np.log(np.maximum(by_rank, TINY_S))
    over_steps = np.log(np.maximum(by_step, TINY_S)) - log[:, :, None]
    log -= lower_median(log, axis=2)[:, :, None]
    level = np.nan_to_num(np.nanmean(log.reshape(len(log), -1, n_stages, n_dp), axis=(0, 1)))  # (n_stages, n_dp)
    chance = CHANCE_DEVIATIONS * MAD_TO_SIGMA * float(np.nanmedian(np.abs(over_steps))) / np.sqrt(by_step.shape[2])
    in_time = np.log(np.maximum(by_step, TINY_S)).reshape(len(log), -1, n_stages, *by_step.shape[2:])
    pace = np.nan_to_num(np.nanmean(in_time, axis=1))  # (2, n_stages, n_steps, n_dp)
    found = np.ones((n_stages, n_dp), dtype=bool)
    for stage, row in enumerate(np.sort(level, axis=1)):
        gaps = np.diff(row)
        at = first - 1 + int(gaps[first - 1 : n_dp // 2].argmax())
        apart = np.concatenate([row[: at + 1] - row[: at + 1].mean(), row[at + 1 :] - row[at + 1 :].mean()])
        least = max(np.log1p(SLOW_RATIO), chance, CHANCE_DEVIATIONS * float(np.sqrt(np.mean(apart**2))))
        is_quick = level[stage] <= row[at]
        if gaps[at] <= least:
            continue
        behind = (pace[:, stage][..., ~is_quick] - median(pace[:, stage][..., is_quick], axis=2)[..., None]).mean(
            axis=0
        )
        falls_behind = _slow_steps(behind.T).any(axis=1).mean() >= BEHIND_SHARE
        if 2 * is_quick.sum() == n_dp and not falls_behind:
            found[stage] = np.logical_or(~is_quick, not _are_like_others(pace, stage, ~is_quick))
        elif falls_behind or is_quick.mean() >= MANY_QUICK or _are_like_others(pace, stage, is_quick):
            found[stage] = is_quick
    return np.tile(found, (by_rank.shape[1] // n_stages, 1))


def _are_like_others(pace: Seconds, stage: int, some: Bools) -> bool:
    """Say whether some dp ranks of a stage take what other stages do, forward and backward, and the rest something else.

    `pace` is the log of seconds, shape (2, n_stages, n_steps, n_dp).
    """
    if pace.shape[1] == 1:
        return False
    usual = median(pace, axis=2)  # (2, n_stages, n_dp)
    others = np.delete(usual, stage, axis=1).reshape(len(usual), -1)
    others = others - median(usual[:, stage, some], axis=1)[:, None]
    rest = median(usual[:, stage, ~some], axis=1) - median(usual[:, stage, some], axis=1)
    return bool((np.abs(median(others, axis=1)) < LIKE_SHARE * np.abs(rest)).all())


def _typical_while_quick(by_step: Seconds, typical_s: Seconds, n_stages: int) -> Seconds:
    """Where a whole stage falls behind nobody is a peer: what is usual is what it took before that, or between.

    Where the work of other stages changes in those steps, too, that is why; and if it is they that are quicker then, it is they
    that are slow otherwise.
    `by_step` has shape (2, n_virtual, n_steps) here; `typical_s`, and what comes back, (2, n_virtual).
    """
    if n_stages == 1:
        return typical_s
    log = np.log(np.maximum(by_step / typical_s[:, :, None], TINY_RATIO))
    pace = np.nan_to_num(log.reshape(len(log), -1, n_stages, log.shape[2]).mean(axis=(0, 1)))  # (n_stages, n_steps)
    others = np.stack([lower_median(np.delete(pace, stage, axis=0), axis=0) for stage in range(n_stages)])
    own = pace - others
    slow = _slow_steps(own)
    n_slow = slow.sum(axis=1, keepdims=True)
    weight = slow / np.maximum(n_slow, 1) - ~slow / np.maximum(slow.shape[1] - n_slow, 1)
    rise, of_others = (weight * own).sum(axis=1), (weight * others).sum(axis=1)
    slow &= (np.abs(of_others) < OTHERS_SHARE * rise)[:, None]
    log = log.reshape(len(log), -1, *others.shape) - others
    quick = np.where(slow, np.nan, log)
    # Where `typical_s` is that of a few quick ranks, what most of them take is longer than usual all the time.
    usual = np.minimum(nan_median(log, axis=3), 0.0)
    change = np.minimum(np.nan_to_num(nan_median(quick, axis=3) - usual), 0.0).reshape(typical_s.shape)
    return np.asarray(typical_s * np.exp(np.where(np.tile(slow.any(axis=1), len(change[0]) // n_stages), change, 0.0)))


def _slow_steps(own: Seconds) -> Bools:
    """Mark the steps in which series, shape (n, n_steps), are behind what they take in others: from one on, or in stretches."""
    own = own - np.quantile(own, FASTEST_SHARE, axis=1, keepdims=True)
    sigma = robust_deviation(np.diff(own, axis=1)) / np.sqrt(2.0)
    slow = np.arange(own.shape[1]) >= find_onsets(own, sigma)[:, None]
    on = upper_stretch(own, apart=STRETCHES_APART)
    slow = np.where(on.any(axis=1, keepdims=True), on, slow)
    # Who is as slow in the first steps as in the last, and in most between, is quick now and then: that is what it usually takes.
    return np.asarray(slow & ~(slow[:, :1] & slow[:, -1:] & (2 * slow.sum(axis=1, keepdims=True) > slow.shape[1])))


COMPONENT = Component("stage", StagePart)
