"""Which pipeline stage is longer than the others, in which direction, and whether all dp ranks agree."""

import numpy as np

from diagnose.model.components import Breakdown
from diagnose.model.feature import Feature, Features
from diagnose.model.trace import Seconds
from diagnose.numerics.chance import TOSS_UP
from diagnose.numerics.robust import nan_median, robust_deviation

#: Each feature: what its values read as, and when it misleads.
READS_AS = {
    "stage.ratio": "usual compute time of the longest stage over the mean of the others; 1 even, 1.5 half as long again; misleads "
    "with one dp rank, where a slow worker is a slow stage",
    "stage.forward_ratio": "as stage.ratio, of the forward; embedding and loss make it larger than that of the backward",
    "stage.backward_ratio": "as stage.ratio, of the backward",
    "stage.contradicted_share": "part of the dp ranks on which another stage is the longest, and none that is nearly as long; 0 "
    "all alike, the layout, 0.9 one worker; misleads with one dp rank, which nobody contradicts",
    "stage.worker_doubt": "how probable it is that the long stage is its one worker, slow since the first step: with one dp rank "
    "they look the same; misleads where forward and backward are long by very different ratios, as with a loss",
    "stage.change_doubt": "how probable it is that the long stage is no layout, as it is far longer at one end of the trace than "
    "at the other, beyond noise, or on all dp ranks in some steps than in others; 0 where it is as long all the time; misleads "
    "beside a fault of this stage that begins later",
}
#: With one dp rank: a study has twenty uneven stages for each slow worker, but the slow workers are the severe ones.
WORKER_CHANCE = 0.3
#: A stage is as long in the last third of the steps as in the first, to this part of how much longer it is: uneven ones of 160 made
#: and recorded jobs to 0.66. Less is certain to be no layout from `CHANGED` on; so many deviations are no noise.
STEADY, CHANGED, CHANGE_DEVIATIONS = 0.5, 0.25, 5.0
MIN_THIRD = 3
#: Stages are even where the longest is by less longer (as the rule).
EVEN = 0.03
#: What all dp ranks have in common in how much longer it is from step to step, as part of that: of 48 uneven stages, recorded and
#: made, to 0.07, as layers do not move; of hot experts 0.3 (one job).
VARIES, MOVES = 0.2, 0.3
#: How much longer a stage is from step to step is taken with these parts of the steps cut off at either end.
CUT_SHARE = 0.1
#: Other stages are long, too, where they are above the usual one by this part of what the longest is, and are not most of all.
BESIDE_LONGEST_SHARE = 0.6
TINY_S = 1e-12
ORDINARY_QUANTILE = 0.25


def measure_stages(breakdown: Breakdown, n_stages: int) -> Features:
    """Measure the unevenness of stages.

    All are missing with one stage.
    """
    if n_stages == 1:
        reason = "the job has one pipeline stage"
        return {name: Feature.missing(reason) for name in READS_AS}
    load = _by_stage(breakdown.typical_s, n_stages)  # (n_directions, n_stages)
    long = long_stages(breakdown, n_stages)
    worst = long[0]
    others = np.arange(n_stages) != worst
    forward, backward = measure_excess(breakdown, n_stages)
    found = {
        "stage.ratio": Feature(float(load[:, worst].sum() / load[:, others].sum(axis=0).mean())),
        "stage.forward_ratio": Feature(1.0 + forward),
        "stage.backward_ratio": Feature(1.0 + backward),
    }
    n_dp = breakdown.compute_s.shape[-1]
    # A rank without any value has no median and contradicts nobody. Nor does a worker for being slow.
    as_peers_s = breakdown.compute_s / breakdown.worker_ratio[:, :, None]
    by_rank = np.nan_to_num(nan_median(as_peers_s, axis=(2, 3)))  # (2, n_virtual, n_dp)
    rank_load = by_rank.sum(axis=0).reshape(-1, n_stages, n_dp).sum(axis=0)
    contradicted = float(np.mean(~np.isin(rank_load.argmax(axis=0), long)))
    if n_dp == 1 and not breakdown.slow_workers.any():
        contradicted = (
            0.0  # of two stages about as long the median may find the other one longer; that is no contradiction
        )
    found["stage.contradicted_share"] = Feature(contradicted)
    found["stage.worker_doubt"] = Feature(WORKER_CHANCE if n_dp == 1 else 0.0)
    of_steps, of_ranks = (nan_median(as_peers_s, axis=axis).sum(axis=0) for axis in ((2, 4), 2))
    load_s = of_steps[:, np.argsort(breakdown.steps)].reshape(-1, n_stages, of_steps.shape[1]).sum(axis=0)
    rank_s = of_ranks.reshape(-1, n_stages, *of_ranks.shape[1:]).sum(axis=0)
    with np.errstate(divide="ignore", invalid="ignore"):
        excess, of_rank = (of[worst] / of[others].mean(axis=0) for of in (load_s, rank_s))
        found["stage.change_doubt"] = Feature(max(_doubt_change(excess - 1.0), _doubt_moving(np.log(of_rank))))
    return found


def _doubt_moving(longer: Seconds) -> float:
    """Say how probable it is that a stage is no layout, as it is longer in some steps than in others on all dp ranks.

    `longer` are logarithms of how many times as long as the others it is, shape (n_steps, n_dp).
    """
    longer = longer[np.isfinite(longer).all(axis=1)]
    n_steps, n_dp = longer.shape
    if n_steps < 2 * MIN_THIRD or n_dp == 1:
        return 0.0
    usual = float(np.median(longer))
    if usual < EVEN:
        return 0.0
    longer = np.clip(longer, *np.quantile(longer, [CUT_SHARE, 1.0 - CUT_SHARE], axis=0))
    of_pairs = np.cov(longer.T)
    in_common = (of_pairs.sum() - np.trace(of_pairs)) / (n_dp * (n_dp - 1))
    moves = np.sqrt(max(float(in_common), 0.0)) / usual
    return TOSS_UP * float(np.clip((moves - VARIES) / (MOVES - VARIES), 0.0, 1.0))


def _doubt_change(excess: Seconds) -> float:
    """Say how probable it is that a stage that takes so much longer than the others, step by step, is no layout."""
    excess = excess[np.isfinite(excess)]
    third = len(excess) // 3
    if third < MIN_THIRD:
        return 0.0
    ends = [float(np.median(excess[:third])), float(np.median(excess[-third:]))]
    # Of differences between neighbours, which what changes slowly does not widen.
    deviation = robust_deviation(np.diff(excess)) / np.sqrt(third)
    if max(ends) <= 0.0 or max(ends) - min(ends) < CHANGE_DEVIATIONS * deviation:
        return 0.0
    steady = max(min(ends), 0.0) / max(ends)
    return TOSS_UP * float(np.clip((STEADY - steady) / (STEADY - CHANGED), 0.0, 1.0))


def measure_excess(breakdown: Breakdown, n_stages: int) -> tuple[float, float]:
    """Say by which part forward and backward of the longest stage are longer than the mean of the others."""
    load = _by_stage(breakdown.typical_s, n_stages)
    worst = long_stages(breakdown, n_stages)[0]
    forward, backward = (of[worst] / np.delete(of, worst).mean() - 1.0 for of in (load[0], load[1:].sum(axis=0)))
    return float(forward), float(backward)


def long_stages(breakdown: Breakdown, n_stages: int) -> list[int]:
    """Name the stage whose forward and backward of all its model chunks take longest, and those that are nearly as long."""
    load_s = _by_stage(breakdown.typical_s, n_stages).sum(axis=0)
    above_s = load_s - np.quantile(load_s, ORDINARY_QUANTILE, method="lower")
    longest_first = np.argsort(-load_s, kind="stable")
    n_long = int(np.count_nonzero(above_s >= BESIDE_LONGEST_SHARE * above_s.max()))
    return [int(stage) for stage in longest_first[: n_long if 2 * n_long <= n_stages else 1]]


def _by_stage(typical_s: Seconds, n_stages: int) -> Seconds:
    """Add the model chunks of each stage: shape (n_directions, n_stages), seconds a microbatch."""
    return np.asarray(typical_s.reshape(len(typical_s), -1, n_stages).sum(axis=1))
