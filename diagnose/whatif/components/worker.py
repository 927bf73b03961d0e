"""Slow workers: one worker takes longer than its peers on the same stage, in all steps, from one on, or in single ones."""

import dataclasses
from collections.abc import Sequence

import numpy as np

from diagnose.model.components import Breakdown, Traits
from diagnose.model.members import Members
from diagnose.model.optype import Op
from diagnose.model.stalls import StallKind, Stalls
from diagnose.model.trace import Bools, Ints, Seconds
from diagnose.numerics.change_points import Positions, Rise, find_rise
from diagnose.numerics.robust import (
    MAD_TO_SIGMA,
    SMOOTHED,
    fill_nan,
    lower_median,
    median,
    nan_median,
    nan_quantile,
    noise_of_differences,
    robust_deviation,
    upper_stretch,
)
from diagnose.whatif.components.attribution import assign
from diagnose.whatif.components.component import ByNode, Component, Extent, Lanes, Part, cut, mix
from diagnose.whatif.computes import Place, Places, iterate_blocks
from diagnose.whatif.levels import Changing
from diagnose.whatif.medians import MEDIAN_ERROR, TINY_RATIO, find_shared, nearest_zero_center
from diagnose.whatif.observed import Observed

#: A worker is looked at when its usual pace is this much behind its peers: healthy ones of production jobs are 0.1 to 0.6% apart.
SLOW_RATIO = 0.015
#: A median over all steps is no chance beyond this many of its deviations (a median's is 1.25 sigma / sqrt(n)).
CHANCE_DEVIATIONS = 5.0
#: Around its usual pace a worker varies this many deviations.
ORDINARY_DEVIATIONS = 4.0
#: A single step is slow beyond this many deviations.
SLOW_STEP_DEVIATIONS = 6.0
#: Microbatches of one step differ so many times as much as on other ranks, forward and backward with this correlation, where one
#: rank alone has documents of different length.
DIFFER_RATIO, DIFFER_CORRELATION = 2.0, 0.7
#: A microbatch that is long, but not the longest.
LONG_QUANTILE = 0.99
#: ... and, where all stages of a rank share it, so many times the most that any other rank has.
BEYOND_OTHERS = 2.0
#: A level that lasts is looked for in values of at most this, or of so many deviations: one extreme step makes no level.
BOUND_RATIO = 0.10
#: Where so many microbatches of a step agree, one direction alone may be slow (`slow_throughout` asks them); else both are, each
#: by at least this part of their mean.
MIN_AGREEING = 4
BOTH_SHARE = 0.25
#: In its slow steps this part of a slow worker's computes take at least this part of its excess more than peers' quickest ones.
THROUGHOUT_SHARE = 0.85
THROUGHOUT_LEVEL = 0.35
#: Workers are slow together where they share so much of the steps in which either is, if these are no more than a part of the job.
TOGETHER_SHARE, FOR_A_WHILE = 0.6, 0.8
#: A direction that is slow by less than this part of what another is does not tell.
DIRECTION_SHARE = 0.5
#: How many deviations below the mean that part of normal values begins; and the standard error of where it does for n values, times
#: sqrt(n), in parts of that.
QUICK_DEVIATIONS = 1.04
QUICK_ERROR = 1.48
#: Where documents make some of them quick on the only stage, its forwards and backwards are apart by at most so many times as
#: much as those of its peers: pauses hit one of the two.
STEADY_RATIO = 1.5
#: ... and what other stages share leaves at most this part of its spread: its documents, and no experts of its own. Experts make
#: many ranks slow, a fault few.
SHARED_SPREAD, FEW_SHARE = 0.6, 1.0 / 3.0
#: A worker that falls behind from a step on was so in at most this part of the steps before.
BEFORE_SHARE = 0.25
#: Of so many ranks one alone does not move the middle.
MIN_RANKS = 3
#: A level lasts so many steps.
MIN_LEVEL_STEPS = 3
#: Where a worker is slow in stretches its levels are so many standard deviations of its steps apart.
STRETCHES_APART = 2.0
#: They leave at most this part of how far its steps are off: a busy processor makes some slow neighbours, too.
LEFT_SHARE = 2.0 / 3.0
#: A worker is slow in so many times as many single steps as others are.
HITS_RATIO = 3.0
#: ... who are slow by at least this part of what it is slow by.
LIKE_SHARE = 0.5
#: With one dp rank a worker's optimizer says that it is the worker and not the stage that is long, if forward, backward and
#: optimizer are long by at least this part of the longest (log).
ALIKE_SHARE = 0.6
MIN_TOLD_STAGES = 2
#: A worker is slow in its optimizers alone where nearly all of them take so many times as long as nearly all of its peers'.
LONG_OPTIMIZER, QUICK_OPTIMIZERS = 1.25, 0.2
#: A stall on a slow worker is its own unsteadiness up to this part of its excess.
UNSTEADY_SHARE = 1.0


class WorkerPart(Part):
    """Without it a slow worker takes as long as its peers: a fault adds work, and the work goes with it.

    Who is slow in its optimizers alone is one of them: the others wait for it in the next step.
    """

    changes_work = True

    def find(self) -> None:
        """Find what slow workers' optimizers would take: as long as those of their peers."""
        found = [self._peers_of(i, at) for i, (at, _) in enumerate(iterate_blocks(self.job.observed))]
        self._peers_s, self._longer_s = [peers_s for peers_s, _ in found], sum(longer_s for _, longer_s in found)

    def is_present(self) -> bool:
        """Say whether a worker is slow, or stalls as a slow one does."""
        slow = bool(self.job.breakdown.slow_workers.any())
        return slow or self.job.could_matter(float(np.max(self._longer_s))) or super().is_present()

    def ease_work(self, work: Seconds, place: Place | Places, steps: slice, lanes: Lanes) -> Seconds:
        """Give a compute of a slow worker the work of its peers'."""
        direction, virtual, _ = place
        c = self.job.breakdown
        return work / mix(lanes, c.worker_ratio[direction, virtual, steps], 1.0)

    def ease_block(self, i: int, own: Changing, delay: Changing, at: slice, extent: Extent) -> None:
        """Let the optimizers of slow workers take as long as their peers', too."""
        stage = self.job.observed[i].block.nodes.stage
        for node, peers_s in self._peers_s[i].items():
            quicker = np.minimum(own[node], cut(peers_s, at))
            own[node] = np.asarray(mix(extent.lanes(int(stage[node])), quicker, own[node]))
        super().ease_block(i, own, delay, at, extent)

    def blame(self) -> Seconds | None:
        """Add up what each worker takes longer than its peers, its stalls, and for how long its transfers stood still with it."""
        c = self.job.breakdown
        longer = fill_nan(c.compute_s) * (1.0 - 1.0 / c.worker_ratio[:, :, None])
        own_s = self.job.by_worker(longer + c.stalls.seconds_of(StallKind.WORKER)) + self._longer_s
        found = self.blame_stalls(self.job.by_worker(longer) + self._longer_s)
        # Whoever waits at the other ends of these is a victim.
        return None if found is None else np.where(own_s > 0, found, 0.0)

    def _peers_of(self, i: int, at: slice) -> tuple[ByNode, Seconds]:
        """Give the peers' optimizer time for the optimizers of slow workers of a block, infinite for others, by node.

        And how much longer those usually take who are slow in these alone, seconds, shape (n_dp, n_stages): what stops an optimizer
        now and then is no part of it. `at` are the steps of the block.
        """
        o, ratio = self.job.observed[i], self.job.breakdown.optimizer_ratio
        slow_workers = self.job.breakdown.slow_workers
        nodes, found, longer_s = o.block.nodes, ByNode(), np.zeros(slow_workers.shape)
        for node in np.flatnonzero(nodes.op == Op.OPTIMIZER).tolist():
            own, stage = np.broadcast_to(o.own[node], o.block.start_s[node].shape), int(nodes.stage[node])
            peers = np.maximum(lower_median(own, axis=1)[:, None], 0.0)
            slow = slow_workers[:, stage]
            alone = np.zeros(own.shape, dtype=bool) if ratio is None else ratio[at, :, stage] > 1.0
            if slow.any() or alone.any():
                usual = np.maximum(np.nan_to_num(nan_median(np.where(alone, own - peers, np.nan), axis=0)), 0.0)
                found[node] = np.where(alone, np.maximum(own - usual, peers), np.where(slow, peers, np.inf))
                longer_s[:, stage] += np.where(alone, np.minimum(own - peers, usual), 0.0).sum(axis=0)
        return found, longer_s


def find_slow_optimizers(observed: Sequence[Observed], order: Ints, slow_workers: Bools) -> Seconds | None:
    """Say how many times as long as those of its peers the optimizers of a worker take in all steps, or from one on.

    Shape (n_steps, n_dp, n_stages), 1 where they are not long; `order` puts the steps in time, `slow_workers`, whose optimizers are
    known to be slow, has the shape (n_dp, n_stages). None where none are, or on more than a few of the workers: then nobody says
    how long they usually take.
    """
    n_dp, n_stages = slow_workers.shape
    own_s = np.zeros((len(order), n_dp, n_stages))
    for at, o in iterate_blocks(observed):
        for node in np.flatnonzero(o.block.nodes.op == Op.OPTIMIZER).tolist():
            own_s[at, :, o.block.nodes.stage[node]] += np.maximum(o.own[node], 0.0)
    peers_s = lower_median(own_s, axis=1)[:, None]  # (n_steps, 1, n_stages)
    if n_dp == 1 or not peers_s.any():
        return None
    ratio = np.maximum(own_s, TINY_RATIO) / np.maximum(peers_s, TINY_RATIO)
    in_time = np.log(ratio[order]).transpose(1, 2, 0)  # (n_dp, n_stages, n_steps)
    sigma = float(median(noise_of_differences(in_time)))
    since = find_onsets(in_time, sigma)
    after = np.arange(len(order)) >= np.where(since < len(order), since, 0)[..., None]
    after = after[..., np.argsort(order)].transpose(2, 0, 1)  # (n_steps, n_dp, n_stages)
    least = nan_quantile(np.where(after, own_s, np.nan), QUICK_OPTIMIZERS, axis=0)  # now and then one takes longer
    slow = (least > LONG_OPTIMIZER * np.quantile(peers_s, 1.0 - QUICK_OPTIMIZERS, axis=0)) & ~slow_workers
    if not slow.any() or slow.sum() > max(FEW_SHARE * slow.size, 1.0):
        return None
    return np.where(after & slow, np.maximum(ratio, 1.0), 1.0)


def told_by_optimizer(observed: Sequence[Observed], typical_s: Seconds, n_stages: int) -> Bools:
    """With one dp rank, find the one stage whose worker is slow: forward, backward and optimizer are long by like ratios.

    A long stage has more to compute for each microbatch, and mostly more in forward than in backward. Two stages that are long by
    like ratios have more layers than the others, whose optimizer takes longer, too.
    """
    told = np.zeros(n_stages, dtype=bool)
    optimizer_s = np.full(n_stages, np.nan)
    for o in observed:
        for node in np.flatnonzero(o.block.nodes.op == Op.OPTIMIZER).tolist():
            optimizer_s[o.block.nodes.stage[node]] = float(median(o.own[node]))
    if n_stages < MIN_TOLD_STAGES or not (optimizer_s > 0).all():
        return told
    by_stage = typical_s.reshape(len(typical_s), -1, n_stages).sum(axis=1)  # (2, n_stages)
    measures = np.log(np.concatenate([by_stage, optimizer_s[None]]))  # forward, backward, optimizer
    second, stage = (int(i) for i in np.argsort(measures.sum(axis=0), kind="stable")[-2:])
    every = measures - median(np.delete(measures, stage, axis=1), axis=1, keepdims=True)
    excess, next_one = every[:, stage], every[:, second]
    # A head and a loss take longer, and their optimizer hardly does.
    is_layout = next_one.sum() >= ALIKE_SHARE * excess.sum() and next_one[2] >= ALIKE_SHARE * next_one[:2].max()
    told[stage] = (
        excess.min() > np.log1p(SLOW_RATIO)
        and excess.min() > ALIKE_SHARE * excess.max()
        and not (is_layout and n_stages > MIN_TOLD_STAGES)
    )
    return told


def told_by_member(members: Members | None, compute_s: Seconds, steps: Ints, n_stages: int) -> Seconds:
    """With one dp rank, say which part of the computes of each stage one tensor- or context-parallel member makes longer.

    It is the one that waits least for the others within them, in nearly all steps: they compute the same, and a long stage makes
    all of them compute longer. By how much less than any other it waits is what it takes longer. 0 where nobody is that; shape
    (n_stages,).
    """
    longer = np.zeros(n_stages)
    if members is None or members.wait_s is None or members.n_members < 2:
        return longer
    wait_s = members.wait_s[np.searchsorted(members.steps, steps), 0]  # (n_steps, n_stages, n_members)
    computed_s = np.nansum(compute_s[..., 0], axis=(0, 2)).reshape(-1, n_stages, len(steps)).sum(axis=0)
    for stage in range(n_stages):
        known = np.isfinite(wait_s[:, stage]).all(axis=1)
        if known.sum() < MIN_LEVEL_STEPS:
            continue
        of_member = wait_s[known, stage]
        least, next_one = np.sort(of_member.sum(axis=0))[:2]
        is_least = of_member.argmin(axis=1) == of_member.sum(axis=0).argmin()
        if is_least.mean() >= THROUGHOUT_SHARE:
            longer[stage] = (next_one - least) / max(computed_s[stage, known].sum(), TINY_RATIO)
    return np.where(longer > SLOW_RATIO, longer, 0.0)


def slow_throughout(
    compute_s: Seconds, typical_s: Seconds, step_ratio: Seconds, worker_log: Seconds, n_stages: int, drawn: "Draws"
) -> Bools:
    """Say which workers are slow on nearly all microbatches of their slow steps; shape (n_dp, n_stages).

    Stalls that come often make the median long, too, but leave some computes alone: then the quickest of a worker's computes are
    as quick as the quickest of its peers', which noise makes quicker than usual. Documents and experts make forward and backward of
    a microbatch quick together: that is no noise. A worker that is slower than the documents drawn explain is asked once more:
    where there are other stages they say which of its microbatches are short, else its forwards and backwards have to agree.
    """
    n_dp = compute_s.shape[-1]
    found = np.zeros((n_dp, n_stages), dtype=bool)
    for stage in range(n_stages):
        level = worker_log[:, stage::n_stages, None]  # (2, n_chunks, 1, n_steps, n_dp)
        slow = np.flatnonzero((level > 0).any(axis=(0, 1, 2, 3))).tolist()
        if not slow:
            continue
        usual = typical_s[:, stage::n_stages, None, None, None] * step_ratio[:, None, None, :, None]
        log = np.log(np.maximum(compute_s[:, stage::n_stages] / usual, TINY_RATIO))
        # Where all are slow nobody says how quick the quickest can be: then it is as quick as usual.
        peers = np.delete(log, slow, axis=-1)
        apart = peers[0] - peers[1]
        apart = apart[np.isfinite(apart)]
        noise = robust_deviation(apart) if apart.size else 0.0
        beyond = []  # what documents explain
        for dp in slow:
            most = level[..., dp].max(axis=(0, 1, 2))  # (n_steps,)
            usually = median(most[most > 0])  # one wild step does not say how slow it is
            there = np.isfinite(log[..., dp]) & (most > THROUGHOUT_LEVEL * usually)[None, None, None]
            there &= level[..., dp] > DIRECTION_SHARE * most
            if not there.any():
                continue
            least = np.where(there, THROUGHOUT_LEVEL * level[..., dp], 0.0)
            # A quantile of few computes is off by chance: then they must be beyond the usual, too.
            sure = max(1.0 - CHANCE_DEVIATIONS * QUICK_ERROR / np.sqrt(max(there.sum(), 1)), 0.0)
            least_quick = -sure * QUICK_DEVIATIONS * noise / np.sqrt(2.0)
            own = log[..., dp] - least
            found[dp, stage] = _quickest(own[there]) >= least_quick
            chance = CHANCE_DEVIATIONS * median(drawn.error[:, dp]) / np.sqrt((most > 0).sum())
            if sure > 0 and usually > max(chance, noise):
                beyond.append((dp, own, there, least_quick))
        if len(beyond) > max(FEW_SHARE * n_dp, 1.0):
            continue
        for dp, own, there, least_quick in beyond:
            if found[dp, stage]:
                continue
            if n_stages == 1:
                differ = (log[0, ..., dp] - log[1, ..., dp])[there.all(axis=0)]
                found[dp, stage] = differ.size > 0 and _spread(differ) <= STEADY_RATIO * noise
                continue
            others = np.arange(compute_s.shape[1]) % n_stages != stage
            ratio = compute_s[..., dp][:, others] / (typical_s[:, others, None, None] * step_ratio[:, None, None])
            alone = own - nan_median(np.log(np.maximum(ratio, TINY_RATIO)), axis=(0, 1))
            is_shared = _spread(alone[there]) < SHARED_SPREAD * _spread(own[there])
            found[dp, stage] = is_shared and _quickest(alone[there]) >= least_quick
    return found


def slow_with(sure: Bools, worker_log: Seconds, n_stages: int) -> Bools:
    """Say which workers are slow for a while, mostly in the steps in which a sure one is, as those of one host are.

    `sure` is of shape (n_dp, n_stages), as what is given back. A throttled process runs and stops: whether nearly all of its
    computes are slow is chance, and its neighbours tell.
    """
    slow: Bools = np.any(worker_log.reshape(-1, n_stages, *worker_log.shape[2:]) > 0, axis=0)
    on = np.moveaxis(slow, 2, 0)  # (n_dp, n_stages, n_steps)
    found = np.zeros_like(sure)
    for at in on[sure]:
        alike = (on & at).sum(axis=-1) > TOGETHER_SHARE * (on | at).sum(axis=-1)
        found |= alike & (at.mean() < FOR_A_WHILE)
    return found


def _spread(values: Seconds) -> float:
    """Give the standard deviation around the median, but for tails; 0 of nothing."""
    values = values[np.isfinite(values)]
    return robust_deviation(values - median(values)) if values.size else 0.0


def _quickest(values: Seconds) -> float:
    """Give what nearly all of them exceed."""
    return float(nan_quantile(values, 1.0 - THROUGHOUT_SHARE, axis=0))


@dataclasses.dataclass(frozen=True, slots=True)
class Draws:
    """What the microbatches that a rank draws do to its pace."""

    #: How many say what the pace of a step is.
    n_microbatches: int
    #: Shape (n_steps, n_dp): how far the pace is off by which microbatches were drawn: standard deviation of its log.
    error: Seconds
    #: Shape (n_dp,): log of the microbatch that one in a hundred exceeds over the usual one.
    longest: Seconds
    #: Shape (n_dp,): ranks whose microbatches of one step differ far more than those of others, forward and backward alike:
    #: documents do that, and no slow machine.
    differ: Bools


def measure_draws(compute_s: Seconds) -> Draws:
    """Measure by the computes of one stage, shape (2, n_microbatches, n_steps, n_dp), steps in time."""
    n_microbatches = compute_s.shape[1]
    logs = np.log(np.maximum(compute_s, TINY_RATIO))
    usual = nan_median(logs, axis=1, keepdims=True)
    longest = nan_quantile(logs[0] - nan_median(usual[0, 0], axis=0), LONG_QUANTILE, axis=(0, 1))
    within = logs - usual
    spread = MAD_TO_SIGMA * nan_median(np.abs(within[0]), axis=0)
    error = MEDIAN_ERROR * spread / np.sqrt(n_microbatches)
    of_rank = np.nan_to_num(np.nanstd(within, axis=(1, 2)))  # (2, n_dp)
    together = np.nanmean(within[0] * within[1], axis=(0, 1)) / np.maximum(of_rank[0] * of_rank[1], TINY_RATIO)
    differ = (of_rank[0] > DIFFER_RATIO * _lower_third(of_rank[0])) & (np.nan_to_num(together) > DIFFER_CORRELATION)
    return Draws(n_microbatches, np.nan_to_num(error), np.nan_to_num(longest), differ)


def find_slow_workers(
    excess: Seconds, n_stages: int, told: Bools, drawn: Draws, known: Seconds | None = None
) -> tuple[Seconds, Bools]:
    """Find the workers that are behind their peers: constantly, from a step on, or in single steps.

    Parameters
    ----------
    excess : ndarray of float64, shape (2, n_virtual, n_steps, n_dp)
        Log of pace against the stage's and step's usual, steps in time.
    told : ndarray of bool, shape (n_stages,)
        With one dp rank: stages whose optimizer, or one member, says that the worker is slow.
    drawn : Draws
        Steps in time.
    known : ndarray of float64, shape of `excess`, optional
        What an earlier look found: no part of what the stages of a rank share.

    Returns
    -------
    worker_log : ndarray of float64, shape of `excess`
        Log of the slow workers' ratio, 0 for all others.
    slow : ndarray of bool, shape (n_dp, n_stages)
    """
    n_directions, n_virtual, n_steps, n_dp = excess.shape
    direction = excess.reshape(n_directions, n_virtual // n_stages, n_stages, n_steps, n_dp)
    if n_dp == 1 and n_stages == 1 and not told.any():
        return np.zeros_like(excess), np.zeros((n_dp, n_stages), dtype=bool)
    # All directions and all chunks of a worker: the forward and backward of a slow worker are mostly both slow.
    by_worker = np.nanmean(direction, axis=(0, 1))  # (n_stages, n_steps, n_dp)
    slow = np.zeros_like(by_worker) if known is None else known.reshape(direction.shape).mean(axis=(0, 1))
    common = _shared_by_microbatches(by_worker - slow, drawn)
    own = np.moveaxis(np.nan_to_num(by_worker - common), 1, -1)  # (n_stages, n_dp, n_steps)
    agree = np.ones(own.shape, dtype=bool)
    if drawn.n_microbatches < MIN_AGREEING:
        # A slow clock slows both; pauses that hit most forwards of a step, or the only one, leave its backwards alone.
        least = np.nan_to_num(np.nanmin(np.nanmean(direction, axis=1) - common, axis=0))
        agree = np.moveaxis(least, 1, -1) > BOTH_SHARE * own
    # A fault may change most series, none so often that it would be most of the differences between neighbours.
    apart = MAD_TO_SIGMA * median(np.abs(own - median(own, axis=-1, keepdims=True)), axis=-1)
    sigma = max(_lower_third(apart.ravel()), float(median(noise_of_differences(own))))
    has_peers = np.broadcast_to((n_dp > 1) | told[:, None], own.shape[:-1])
    chance = np.hypot(sigma, drawn.error.T) if n_stages == 1 else np.full(own.shape[1:], sigma)
    level = _find_levels(own, agree, sigma, chance, has_peers)
    level = np.moveaxis(level, -1, 1)
    if n_stages == 1:
        level = np.where(drawn.differ, 0.0, level)
    worker_log = np.reshape(level[None, None] * _direction_ratio(direction - common, level), excess.shape)
    return worker_log, np.asarray((level > 0).any(axis=1).T)


def _shared_by_microbatches(by_worker: Seconds, drawn: Draws) -> Seconds:
    """Say what the stages of a dp rank share in one step for the microbatches that it drew, shape (n_steps, n_dp).

    Documents are drawn anew in each step. What a whole rank has in all steps, from one on, or in some steps beyond what documents
    do to other ranks is its machines': then it stays with its workers.
    """
    n_stages, n_steps, n_dp = by_worker.shape
    if n_stages < 2:
        return np.zeros((n_steps, n_dp))
    if n_dp < 2:  # no rank tells apart what is its machines'
        return np.nan_to_num(find_shared(by_worker, apart=float(np.log1p(SLOW_RATIO))))
    common = np.nan_to_num(nearest_zero_center(by_worker, axis=0))
    # What all ranks have in some steps is those steps'; what most of them have in all is theirs.
    of_step = np.sort(common, axis=1)[
        :, max((n_dp - 1) // 3, 1) if n_dp > 2 else 0
    ]  # more than half of them may be slow
    own = common - (of_step - _lower_third(of_step))[:, None] if n_dp >= MIN_RANKS else common
    apart = np.std(own - median(own, axis=0), axis=0)
    # Not a robust deviation: documents have heavy tails. That of the other ranks: its own is what is asked about.
    sigma = np.maximum(_lower_third_of_others(apart), float(median(noise_of_differences(own, axis=0))))  # (n_dp,)
    chance = np.hypot(sigma[:, None], drawn.error.T)
    usual = np.maximum(median(chance, axis=1), TINY_RATIO)  # without any noise it is 0
    # One step is nothing special where other ranks have such steps, or such microbatches: a long document may fill a step.
    longest = _most_of_others(np.maximum(np.abs(common).max(axis=0), drawn.longest))
    chance = np.maximum(chance, BEYOND_OTHERS * longest[:, None] / SLOW_STEP_DEVIATIONS)
    every = np.ones((1, n_dp, n_steps), dtype=bool)
    scaled = _find_levels(
        (own.T / usual[:, None])[None], every, 1.0, chance / usual[:, None], every[..., 0], unit=1.0 / usual
    )
    return np.asarray(common - np.where(drawn.differ, 0.0, (scaled[0] * usual[:, None]).T))


def _lower_third(values: Seconds) -> float:
    """Give the value that a third of them do not exceed: a fault may have more than half of them."""
    return float(np.sort(values)[(len(values) - 1) // 3])


def _lower_third_of_others(values: Seconds) -> Seconds:
    """Give for each value the lower third of all others; there are two values at least."""
    order = np.argsort(values, kind="stable")
    at = (len(values) - 2) // 3
    ordered = values[order]
    found = np.full(len(values), ordered[at])
    found[order[: at + 1]] = ordered[at + 1]  # without one of the lower ones the next one has its place
    return found


def _most_of_others(values: Seconds) -> Seconds:
    """Give for each value the largest of all others; there are two values at least."""
    second, first = np.sort(values)[-2:]
    found = np.full(len(values), first)
    found[int(values.argmax())] = second
    return found


def _find_levels(
    own: Seconds, agree: Bools, sigma: float, chance: Seconds, has_peers: Bools, unit: Seconds | float = 1.0
) -> Seconds:
    """Find on which level above 0 each series is in each step; 0 where it is on none.

    Parameters
    ----------
    own : ndarray of float64, shape (..., n_dp, n_steps)
        How far it is behind (log), in `unit`.
    agree : ndarray of bool, same shape
        Where both directions, or enough microbatches, say so.
    sigma : float
        How far values vary.
    chance : ndarray of float64, shape (n_dp, n_steps)
        How far single values are off by chance.
    has_peers : ndarray of bool, shape (..., n_dp)
        Series that can be behind from the first step on: there is somebody to be behind.
    """
    n_steps = own.shape[-1]
    unit = np.broadcast_to(unit, own.shape[:-1])
    usual = median(own, axis=-1)
    least = np.maximum(np.log1p(SLOW_RATIO) * unit, CHANCE_DEVIATIONS * sigma / np.sqrt(n_steps))
    since = find_onsets(own, sigma, unit)
    after = np.arange(n_steps) >= since[..., None]
    usual_after = np.nan_to_num(nan_median(np.where(after, own, np.nan), axis=-1))
    hits = agree & (own > np.maximum(SLOW_STEP_DEVIATIONS * chance, np.log1p(SLOW_RATIO) * unit[..., None]))
    changed = (since < n_steps) & (usual_after > np.log1p(SLOW_RATIO) * unit)  # else it was slow in a few steps
    # What came as a burst of single steps before is no new level: others may have such steps, too.
    before = np.where(after, 0, hits).sum(axis=-1) / np.maximum((~after).sum(axis=-1), 1)
    changed &= before <= BEFORE_SHARE
    after &= changed[..., None]
    constant = (has_peers & (usual > least)) | changed
    often = _are_slow_often(own, hits)
    slow = constant | often
    # Ordinary variation stays with the work: only what differs from the worker's usual pace by more counts as its own.
    usual = np.where(changed, usual_after, usual)
    pace = np.where(changed[..., None] & ~after, 0.0, usual[..., None])
    on, usual_on = _find_stretches(own, np.log1p(SLOW_RATIO) * unit, chance)
    # Stretches of a few steps are none; the steps themselves tell where they say more than a pace does.
    usual_hit = np.nan_to_num(nan_median(np.where(hits, own, np.nan), axis=-1))
    single = often & ~on.any(axis=-1)
    single &= _misses(own, np.where(hits, usual_hit[..., None], 0.0)) < LEFT_SHARE * _misses(own, pace)
    on, usual_on = np.where(single[..., None], hits, on), np.where(single, usual_hit, usual_on)
    # It fell behind once and for all, or came back: what is nearer to the steps.
    came_back = (np.logical_or.accumulate(on, axis=-1) & ~on).sum(axis=-1) >= SMOOTHED
    misses = _misses(own, np.where(on, usual_on[..., None], 0.0))
    on &= (misses < LEFT_SHARE * _misses(own, 0.0))[..., None]
    on &= (~changed | (came_back & (misses < _misses(own, pace))))[..., None]
    is_on_off = np.asarray(on.any(axis=-1))
    constant, slow = constant | is_on_off, slow | is_on_off
    pace = np.where(is_on_off[..., None], np.where(on, usual_on[..., None], 0.0), pace)
    even = np.where(np.abs(own - pace) <= ORDINARY_DEVIATIONS * sigma, pace, own)
    level = np.where(constant[..., None], even, np.where(hits, own, 0.0))
    return np.where(slow[..., None], np.maximum(level, 0.0), 0.0)


def _misses(own: Seconds, pace: Seconds | float) -> Seconds:
    """Say how far a pace is from the steps, all in all: one wild step does not count more than another."""
    return np.asarray(np.abs(own - pace).sum(axis=-1))


def _find_stretches(own: Seconds, least: Seconds, chance: Seconds) -> tuple[Bools, Seconds]:
    """Find in which steps each series is behind where it is so in stretches, and its usual level there; none where it is always.

    Between them it is no more behind than by `THROUGHOUT_LEVEL` of that.
    """
    on = upper_stretch(own, apart=STRETCHES_APART)
    level = np.nan_to_num(nan_median(np.where(on, own, np.nan), axis=-1))
    off = np.nan_to_num(nan_median(np.where(on, np.nan, own), axis=-1))
    n_on = on.sum(axis=-1)
    apart = median(chance, axis=-1) * np.sqrt(1.0 / np.maximum(n_on, 1) + 1.0 / np.maximum(own.shape[-1] - n_on, 1))
    told = (level - off > CHANCE_DEVIATIONS * apart) & (level > least) & (off < THROUGHOUT_LEVEL * level)
    return on & told[..., None], level


def _are_slow_often(own: Seconds, hits: Bools) -> Bools:
    """Say which workers are slow in more single steps than others, shape (..., n_dp); `hits` are these steps, `own` says how slow.

    With one stage a long document is a slow step of its rank, and a busy host slows now one worker, now another: all have some.
    Those of other ranks count that are about as slow, of its stage, or of all. Other stages of its rank may share its fault, and so
    may whoever is slow in the same steps, as workers of one host are.
    """
    n_dp = hits.shape[-2]
    flat = hits.reshape(-1, n_dp, hits.shape[-1])
    stage, dp, _ = np.nonzero(flat)
    slow = own.reshape(flat.shape)[flat]
    counts, n_hits = flat.astype(np.float32), flat.sum(axis=-1)
    often = np.zeros(flat.shape[:-1], dtype=bool)
    for p, d in np.argwhere(flat.any(axis=-1)).tolist():
        mine = slow[(stage == p) & (dp == d)]
        both = counts @ counts[p, d]
        with_it = (both >= MIN_LEVEL_STEPS) & (both > TOGETHER_SHARE * (n_hits + n_hits[p, d] - both))
        others = (dp != d) & ~with_it[stage, dp] & (slow > LIKE_SHARE * median(mine))
        n_others = max(int((others & (stage == p)).sum()), int(others.sum()) / len(flat))
        expected = n_others / max(n_dp - 1, 1)
        often[p, d] = len(mine) >= HITS_RATIO * expected and len(mine) > expected + CHANCE_DEVIATIONS * np.sqrt(
            expected
        )
    return often.reshape(hits.shape[:-1])


def find_onsets(own: Seconds, sigma: float, unit: Seconds | float = 1.0) -> Positions:
    """Find the position of the step from which on each worker is behind; n_steps where it does not fall behind.

    `own` is the log of pace against peers in `unit`, time last, and `sigma` its ordinary variation over steps.
    """
    least = np.log1p(SLOW_RATIO) * np.broadcast_to(unit, own.shape[:-1])[..., None]
    rise = Rise(
        bound=(
            -ORDINARY_DEVIATIONS * sigma,
            max(ORDINARY_DEVIATIONS * sigma, float(np.log1p(BOUND_RATIO) * np.min(unit))),
        ),
        least_level=least,
        min_after=MIN_LEVEL_STEPS,
        deviations=CHANCE_DEVIATIONS + 1.0,
    )
    since, n_steps = find_rise(own, sigma, rise), own.shape[-1]
    if n_steps < 2 * MIN_LEVEL_STEPS or (since < n_steps).all():
        return since
    # The bound keeps single steps from making a level, and hides one of few steps: where all after are far, and none before is half
    # as far, it is no single steps.
    low, high = rise.bound
    far = np.maximum(np.partition(own, -MIN_LEVEL_STEPS, axis=-1)[..., -MIN_LEVEL_STEPS, None], high)
    again = find_rise(own, sigma, rise._replace(bound=(low, far)))
    after = np.arange(n_steps) >= again[..., None]
    half = nan_median(np.where(after, own, np.nan), axis=-1)[..., None] / 2.0
    is_apart = ((own > np.maximum(half, high)) == after).all(axis=-1)
    return np.where((since == n_steps) & is_apart, again, since)


def _direction_ratio(direction: Seconds, level: Seconds) -> Seconds:
    """Say how a worker's excess splits over forward and backward: a factor a (direction, chunk, worker), about 1."""
    weight = np.where(np.isnan(direction), 0.0, level[None, None])
    ratio = (weight * np.nan_to_num(direction)).sum(axis=3, keepdims=True) / np.maximum(
        (weight**2).sum(axis=3, keepdims=True), TINY_RATIO
    )
    return np.asarray(np.clip(ratio, 0.0, 2.0))


def attribute_to_workers(stalls: Stalls, share: Seconds, worker_ratio: Seconds) -> None:
    """Attribute what is no longer than a slow worker's own excess to it: a throttled clock is unsteady."""
    excess = (worker_ratio - 1.0)[:, :, None]
    unsteady = (excess > 0) & (share <= UNSTEADY_SHARE * excess)
    assign(stalls, unsteady, StallKind.WORKER)


def _why_unmeasured(breakdown: Breakdown) -> str:
    """Say that no worker can be compared with another, and none is known to be slow."""
    if breakdown.compute_s.shape[-1] > 1 or breakdown.slow_workers.any() or breakdown.is_stopped:
        return ""
    return "with one dp rank no worker has peers on its stage, and none fell behind itself"


COMPONENT = Component(
    "worker",
    WorkerPart,
    inside=StallKind.WORKER,
    before=StallKind.WORKER,
    traits=Traits(whom="workers", why_unmeasured=_why_unmeasured),
)
