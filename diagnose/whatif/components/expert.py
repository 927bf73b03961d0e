"""Uneven experts: a compute is long forward and backward, by like ratios, and other stages of its microbatch do not share it.

A mixture of experts routes the tokens of each microbatch anew in each layer. Whether that is there is decided by prediction: does
one direction of a compute tell the other one, in steps that nothing was fitted on, beyond what other stages (documents) and the
neighbours in time (a moment of contention) tell? Where the trace counts the tokens of experts they are asked instead.
"""

import dataclasses
import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from diagnose.model.components import Experts
from diagnose.model.trace import Bools, Ints, Seconds
from diagnose.numerics.robust import (
    MAD_TO_SIGMA,
    keep_where,
    lower_median,
    nan_median,
    robust_deviation,
    take_where,
    weighted_median,
)
from diagnose.whatif.components.component import Component, Lanes, Part, mix
from diagnose.whatif.computes import Place, Places, iterate_blocks, list_computes, place_of
from diagnose.whatif.medians import TINY_RATIO, nearest_zero_center
from diagnose.whatif.observed import Observed

#: Experts are there from this part on of what is predicted where nothing was fitted: below, one more story explains nothing
#: (forward selection of stories on real recordings).
LEAST_EXPLAINED = 0.05
#: ... and beyond chance: the mean of the steps is this many of its standard errors above zero.
CHANCE_DEVIATIONS = 4.0
#: Fewer computes of a direction than this, or fewer steps, tell nothing; of so few steps each rank is one.
MIN_COMPUTES, MIN_STEPS = 32, 4
ENOUGH_STEPS = 8
#: With fewer microbatches each one's neighbours in time are all others.
MIN_FOR_NEIGHBOURS = 4
#: Directions further apart than so many of their robust deviations do not agree.
FAR_DEVIATIONS = 4.0
#: Each weight of a prediction is drawn to 0 as so many more computes without any effect would do.
PRICE_COMPUTES = 10.0
#: A pause is no work: beyond this many robust deviations it counts as so many.
CLIP_DEVIATIONS = 6.0
#: ... and where more than this part of computes pause, on this part of the stages, stages of a rank cannot be compared.
MANY_PAUSES, MANY_PAUSED_STAGES = 0.05, 0.5
#: ... of what tokens do not tell, as it is known after so many rounds.
N_ROUNDS = 4
#: Backwards are long by this much for each 1 of forwards (production jobs: 0.7 to 1.4), whatever noise makes of it.
SLOPES = (0.5, 2.0)
#: A stage is long with documents by so much less or more than all stages are, and so much less for each 1 that they are long:
#: half of its time may have nothing to do with them, and log(a exp(x) + b) bends by at most an eighth.
RESPONSES = (0.5, 0.125)
#: Tokens are moved where what ranks of a stage take in all varies by less than this part of what it would if each varied by itself
#: (1; jobs with experts that change have 0.005 to 0.05, one with even experts 1.1).
MOVED_SHARE = 0.3
#: A rank that is long all the time by so many times what the one that changes most does (standard deviation) is slow by itself.
STAYS_DEVIATIONS = 3.0
#: Ranks are as hot as the hottest where they are long by this part of what that is.
LONG_SHARE = 0.5
#: The first steps, in which all ranks warm up, do not tell whether the others make up for what one takes longer.
WARM_UP_STEPS = 3
#: As many workers, on this part of the stages, are not slow one by one where experts are uneven ...
MANY_WORKERS, MANY_STAGES = 3, 0.5
#: ... each by a factor of his own: those of one host or one fault are as slow as each other up to this part.
OWN_FACTORS = 0.25
#: A worker has it alone where it has so many times what the usual rank of its stage has (recorded experts up to 3.5, a worker that
#: is slow now and then 40 and more).
LONE_RATIO = 10.0
#: Members of a group share at least this part.
ALIKE_FROM = 0.5
#: ... and as much, up to chance, as a part of the group: two groups taken as one are at most half as much alike.
ALIKE_SHARE = 0.8


class ExpertPart(Part):
    """Without it the tokens are dealt evenly: each compute takes what it does with the mean of its virtual stage."""

    changes_work = True

    def is_present(self) -> bool:
        """Say whether experts explain anything."""
        return self.job.breakdown.experts.ratio is not None

    def ease_work(self, work: Seconds, place: Place | Places, steps: slice, lanes: Lanes) -> Seconds:
        """Give a compute the work that it has with evenly dealt tokens."""
        ratio = self.job.breakdown.experts.ratio
        if ratio is None:
            return work
        return work / mix(lanes, ratio[(*place, steps)], 1.0)


def read_experts(observed: Sequence[Observed], work_s: Seconds, n_stages: int, ep_size: int | None) -> Experts:
    """Ask the tokens that experts were given how long each compute is; they count however small or constant it is.

    Parameters
    ----------
    work_s : ndarray of float64, axes as in `Breakdown`
        Computes without waits and recorded pauses, seconds.
    ep_size : int or None
        How many data-parallel ranks, one after the other, share the experts; None where nobody says.
    """
    tokens = _gather_tokens(observed, work_s.shape, n_stages)
    if tokens is None:
        return Experts()
    n_dp = work_s.shape[-1]
    known = [ep_size] if ep_size and n_dp % ep_size == 0 else [size for size in range(2, n_dp + 1) if n_dp % size == 0]
    even = np.nanmean(tokens, axis=(2, 3, 4), keepdims=True)
    found = Experts(tokens_fit=0.0)
    for size in dict.fromkeys([1, *known]):
        # Members that wait for each other inside the compute take as long as the busiest, and one may be slow by itself.
        busiest = np.fmax.reduce(tokens.reshape(*tokens.shape[:-1], -1, size), axis=-1)
        of_group_s = lower_median(work_s.reshape(*work_s.shape[:-1], -1, size), axis=5)
        fit, ratio = _fit_tokens(busiest / even - 1.0, of_group_s)
        if ratio is not None and fit > (found.tokens_fit or 0.0):
            found = Experts(np.repeat(ratio, size, axis=-1), tokens_fit=fit, group=size)
    return found


def find_moved(work_s: Seconds, ep_size: int | None, order: Ints) -> tuple[float | None, Seconds | None]:
    """Find work that goes from rank to rank of a stage and stays there for steps: what one takes longer others take shorter.

    A slow worker makes nobody quicker. It is for jobs that are known to have experts, where tokens do not tell.

    Parameters
    ----------
    work_s : ndarray of float64, axes as in `Breakdown`
        Computes without waits and recorded pauses, seconds.
    ep_size : int or None
        As for `read_experts`; None: all ranks.
    order : ndarray of int64, shape (n_steps,)
        Puts the steps in time.

    Returns
    -------
    moved : float or None
        Which part of what ranks vary by from step to step, or those that stay long, the others of their group make up for, 0..1;
        None where nobody can tell.
    ratio : ndarray of float64, or None
        How long the computes of each rank and step are against those of its group, axes as `work_s`; None where nothing is moved.
    """
    n_dp = work_s.shape[-1]
    size = ep_size if ep_size and n_dp % ep_size == 0 else n_dp
    if size < 2:
        return 0.0, None
    level_s = nan_median(work_s[:2], axis=2)  # (2, n_virtual, n_steps, n_dp)
    level_s = level_s.reshape(*level_s.shape[:3], n_dp // size, size)
    if level_s.shape[2] < ENOUGH_STEPS or not (level_s > 0).all():
        return None, None
    changes = level_s / level_s.mean(axis=(2, 4), keepdims=True)
    changes -= changes.mean(axis=2, keepdims=True)
    alone, together = float((changes**2).sum()), float((changes.sum(axis=-1) ** 2).sum())
    if not alone > 0:
        return None, None
    of_hot, hot = _measure_made_up(level_s[:, :, order[WARM_UP_STEPS:]])
    moved = max(1.0 - together / alone, of_hot)
    if not of_hot and together > MOVED_SHARE * alone:
        return moved, None
    own = np.log(level_s / level_s.mean(axis=-1, keepdims=True))
    both, slope = _agree_on(own)  # (n_virtual, n_steps, n_groups, size)
    stays = both.mean(axis=1, keepdims=True)
    most = STAYS_DEVIATIONS * both.std(axis=1, keepdims=True).max(axis=-1, keepdims=True)
    slow = (stays > most) & ~_are_made_up_for(level_s, stays > most) & ~hot
    both = np.where(slow.any(axis=-1, keepdims=True), both - stays, both)
    return moved, _lengthen(work_s, both.reshape(*both.shape[:2], n_dp), slope)


def find_hot(work_s: Seconds, slow: Bools) -> Seconds | None:
    """Find experts that stay hot, in a job whose experts are uneven from microbatch to microbatch: nobody is slow by himself there.

    Many workers here and there, each by his own factor, are not slow one by one beside a cause that makes all of them so.

    Parameters
    ----------
    work_s : ndarray of float64, axes as in `Breakdown`
        Computes without waits and recorded pauses, seconds.
    slow : ndarray of bool, shape (n_dp, n_stages)
        Who looks slow.

    Returns
    -------
    ratio : ndarray of float64, or None
        How long the computes of each rank and step are against those of their virtual stage, axes as `work_s`; None where those
        who look slow, but for whole replicas of one pace, are few or one pace.
    """
    n_dp, n_stages = slow.shape
    are_replicas = bool((slow.any(axis=1) == slow.all(axis=1)).all())
    if n_dp < 2 or slow.sum() < MANY_WORKERS or slow.any(axis=0).mean() < MANY_STAGES or are_replicas:
        return None
    level_s = nan_median(work_s[:2], axis=2)  # (2, n_virtual, n_steps, n_dp)
    if not (level_s > 0).all():
        return None
    own = np.log(level_s)
    own -= np.median(own, axis=(2, 3), keepdims=True)
    own -= np.median(own, axis=(1, 3), keepdims=True)  # slow steps of the job
    both, slope = _agree_on(own - np.log(np.exp(own).mean(axis=(2, 3), keepdims=True)))
    pace, stays = both.mean(axis=1), np.median(both, axis=1)  # (n_virtual, n_dp)
    is_slow = np.tile(slow.T, (len(stays) // n_stages, 1))
    # Against those that are not slow: where most of a stage are, its mean is that of the slow.
    usual = np.nan_to_num(nan_median(np.where(is_slow, np.nan, stays), axis=1))[:, None]
    pace, stays = pace - usual, stays - usual
    replicas = slow.all(axis=1) & (pace.std(axis=0) < OWN_FACTORS * np.median(pace, axis=0))
    who = is_slow & ~replicas
    theirs = stays[who]
    if who[:n_stages].sum() < MANY_WORKERS:
        return None
    if robust_deviation(theirs - np.median(theirs)) < OWN_FACTORS * np.median(theirs):
        return None
    by_itself = stays > np.median(stays) + FAR_DEVIATIONS * robust_deviation(stays - np.median(stays))
    both = np.where(by_itself[:, None], both - stays[:, None], both)
    return _lengthen(work_s, np.where(replicas, 0.0, both), slope)


def _agree_on(own: Seconds) -> tuple[Seconds, float]:
    """Take what forwards and backwards (first axis) agree on, as forwards have it, and how much longer backwards are for each 1."""
    scale = np.sqrt((own**2).mean(axis=tuple(range(1, own.ndim))))
    slope = float(np.clip(scale[1] / scale[0], *SLOPES)) if scale[0] > 0 else 1.0
    return _agree(own[0], own[1] / slope), slope


def _lengthen(work_s: Seconds, both: Seconds, slope: float) -> Seconds:
    """Say how much longer all computes are where forwards are by `both` (log), shape (n_virtual, n_steps, n_dp)."""
    of_all = np.broadcast_to(both[:, None], work_s.shape[1:])
    slopes = [1.0, slope, *(_slope_of_weights(of_all, of_weights) for of_weights in work_s[2:])]
    return np.exp(np.stack([of_all * by for by in slopes]))


def _measure_made_up(level_s: Seconds) -> tuple[float, Bools]:
    """Say which part of what the longest ranks vary by from step to step the others of their group make up for; and who is hot.

    A token that a hot rank gets one of the others lacks: these get shorter by as much. By what a slow worker's tokens vary they do
    so by less, as it is slower, and what makes it slow they do not follow at all. Both vary by themselves as well, so that neither
    is regressed on the other.

    Parameters
    ----------
    level_s : ndarray of float64, shape (2, n_virtual, n_steps, n_groups, size)

    Returns
    -------
    share : float
        0..1; 0 where nothing shows that the longest are hot.
    hot : ndarray of bool, shape (n_virtual, 1, n_groups, size)
    """
    pace = (level_s / level_s.mean(axis=(2, 4), keepdims=True)).mean(axis=0)  # (n_virtual, n_steps, n_groups, size)
    usual = pace.mean(axis=1, keepdims=True)
    long: Bools = np.asarray(usual - 1.0 >= LONG_SHARE * (usual.max() - 1.0))
    nobody = np.zeros_like(long)
    if pace.shape[1] < ENOUGH_STEPS or long.all(axis=-1).any():
        return 0.0, nobody
    changes, at = pace - usual, np.broadcast_to(long, pace.shape)
    own = changes[at]
    others = np.broadcast_to(-np.where(long, 0.0, changes).sum(axis=-1, keepdims=True), pace.shape)[at]
    own_2, others_2, both = (float((one * two).sum()) for one, two in ((own, own), (others, others), (own, others)))
    if not both > 0:
        return 0.0, nobody
    share = (others_2 - own_2 + math.hypot(others_2 - own_2, 2.0 * both)) / (2.0 * both)
    error = share * math.sqrt(max(own_2 * others_2 / both**2 - 1.0, 0.0) / len(own))
    of_slow = float(usual[~long].mean() / usual[long].mean())
    if share <= (1.0 + of_slow) / 2.0 or share - of_slow <= CHANCE_DEVIATIONS * error:
        return 0.0, nobody
    return min(share, 1.0), long


def _are_made_up_for(level_s: Seconds, long: Bools) -> Bools:
    """Say in which groups others are quicker than ranks of other groups by what some, which are long all the time, take longer.

    A group with hot experts takes as long in all as another one; a slow worker makes nobody quicker. `level_s` has the shape (2,
    n_virtual, n_steps, n_groups, size), `long` and what comes back are broadcastable to one direction of it; the groups of all
    stages are compared, and nothing is said where there is one.
    """
    usual_s = level_s.mean(axis=2).sum(axis=0)  # (n_virtual, n_groups, size)
    of_group = usual_s.mean(axis=-1).ravel()
    if len(of_group) == 1:
        return np.zeros((1, 1, 1, 1), dtype=bool)
    others = np.array([np.median(np.delete(of_group, at)) for at in range(len(of_group))]).reshape(usual_s.shape[:-1])
    quick = ~long[:, 0]
    rest = np.where(quick, usual_s, 0.0).sum(axis=-1) / np.maximum(quick.sum(axis=-1), 1)
    of_group = of_group.reshape(others.shape)
    made_up = np.abs(of_group - others) <= MOVED_SHARE * np.abs(of_group - rest)
    return np.asarray(made_up[:, None, :, None])


def find_experts(
    left: Seconds, microbatch_ratio: Seconds, told: Experts, ep_size: int | None
) -> tuple[Experts, Seconds]:
    """Find the computes that are long in both directions and on their own stage alone.

    Parameters
    ----------
    left : ndarray of float64, shape (2, n_virtual, n_microbatches, n_steps, n_dp)
        Durations over all that was found before, microbatches among it.
    microbatch_ratio : ndarray of float64, shape (2, n_microbatches, n_steps, n_dp)
        What all stages of a microbatch share.
    told : Experts
        What `read_experts` found: where tokens tell, times are not asked.
    ep_size : int or None
        As for `read_experts`.

    Returns
    -------
    experts : Experts
    left : ndarray of float64
        What is left without them.
    """
    whole_left, left, weight = left, left[:2], left[2:]
    there: Bools = np.asarray((np.isfinite(left) & (left > 0)).all(axis=0))
    n_virtual, n_microbatches, n_steps, n_dp = there.shape
    if n_virtual < 2 or n_microbatches < 2 or n_steps * n_dp < MIN_STEPS or there.sum() < MIN_COMPUTES:
        return told, whole_left
    logs = keep_where(there, np.log(np.maximum(left, TINY_RATIO)), np.nan)
    steady = _are_steady(logs)
    asked = steady if steady.any() else ~steady
    documents = np.log(microbatch_ratio)[:2, None]
    has_documents = bool(documents.any())
    whole = _contrast(logs + documents if has_documents else logs, there)
    contrast = whole
    if has_documents:
        logs = _without_documents(logs, documents.mean(axis=0), there, asked)
        contrast = _contrast(logs, there)
    scale = np.sqrt((contrast**2).mean(axis=(1, 2, 3, 4)))
    if not (scale > 0).all():
        return told, whole_left
    trials = [_count_ranks(values[..., asked]) for values in (contrast, whole, there)]
    alone_share, chance = _share_alone(trials[1], trials[2]), _beyond_chance(trials[0], trials[2])
    explained = _predict_other_direction(trials[0], trials[2]) if chance >= CHANCE_DEVIATIONS and steady.any() else 0.0
    found = dataclasses.replace(told, explained=explained, alone_share=alone_share)
    if told.ratio is not None or explained < LEAST_EXPLAINED:
        return found, whole_left
    if (lone := _find_lone(contrast, there)).any():
        at = lone[:, None, None]
        found, left = find_experts(np.where(at, np.nan, whole_left), microbatch_ratio, told, ep_size)
        return found, np.where(at, whole_left, left)
    group, alike = _find_group(contrast, ep_size)
    slope = float(np.clip(scale[1] / scale[0], *SLOPES))
    own = logs - _shared_by_stages(logs, contrast, there)
    own = nan_median(own.reshape(2, n_virtual, n_microbatches, n_steps, n_dp // group, group), axis=-1, keepdims=True)
    both = _agree(own[0], own[1] / slope)
    # Two pauses that met in one microbatch are none either.
    width = CLIP_DEVIATIONS * robust_deviation(both[np.isfinite(both)])
    both = np.clip(both, -width, width)
    both = np.broadcast_to(both, (*both.shape[:-1], group)).reshape(there.shape)
    slopes = [1.0, slope, *(_slope_of_weights(both, of_weights) for of_weights in weight)]
    ratio = np.where(there & np.isfinite(whole_left), np.exp(np.stack([both * by for by in slopes])), np.nan)
    even = np.nan_to_num(ratio / np.nanmean(ratio, axis=(2, 3, 4), keepdims=True), nan=1.0)
    return dataclasses.replace(found, ratio=even, group=group, alike=alike), whole_left / np.nan_to_num(ratio, nan=1.0)


def _find_lone(contrast: Seconds, there: Bools) -> Bools:
    """Mark the workers that alone on their stage are long in both directions, shape (n_virtual, n_dp): slow now and then.

    Tokens are dealt out among ranks: all have more now, less then, or get quicker by what a busy one takes longer.
    """
    known = there.any(axis=(1, 2))
    own = np.where(known, (contrast[0] * contrast[1]).sum(axis=(1, 2)), np.nan)
    with_all = (contrast[0] * contrast[1].sum(axis=-1, keepdims=True)).sum(axis=(1, 2))
    # Whoever has no more than its even part says nothing.
    least = np.maximum(LONE_RATIO * lower_median(own, axis=1)[:, None], np.nanmean(own))
    return np.asarray(known & (own > least) & (2.0 * with_all > own))


def _slope_of_weights(both: Seconds, weight: Seconds) -> float:
    """Say how much longer weight gradients are for each 1 that experts make their forward longer (logs)."""
    there = np.isfinite(both) & (weight > 0)
    logs = np.log(np.where(there, weight, 1.0))
    logs = np.where(there, logs - nan_median(np.where(there, logs, np.nan), axis=(1, 2, 3), keepdims=True), 0.0)
    x = np.where(there, both, 0.0)
    return float(np.clip((x * logs).sum() / max(float((x * x).sum()), TINY_RATIO), 0.0, SLOPES[1]))


def _count_ranks(values: NDArray[Any]) -> NDArray[Any]:
    """Let each rank of a step count as a step where there are few steps; the last two axes are steps and ranks."""
    return values if values.shape[-2] >= ENOUGH_STEPS else values.reshape(*values.shape[:-2], -1, 1)


def _gather_tokens(observed: Sequence[Observed], shape: tuple[int, ...], n_stages: int) -> Seconds | None:
    """Lay out the tokens of experts, for each token of the microbatch, as computes are; None where there are none, or even ones."""
    if all(o.block.expert_tokens is None for o in observed):
        return None
    found = np.full(shape, np.nan)
    for steps, o in iterate_blocks(observed):
        given = o.block.expert_tokens
        if given is None:
            continue
        if o.block.tokens is not None:  # more tokens in all are a longer microbatch
            given = given / np.where(o.block.tokens > 0, o.block.tokens, np.nan)
        for node in list_computes(o.block.nodes):
            found[(*place_of(o.block.nodes, node, n_stages), steps)] = given[node]
    known = np.isfinite(found)
    return found if known.any() and np.ptp(found[known]) > 0 else None


def _fit_tokens(load: Seconds, work_s: Seconds) -> tuple[float, Seconds | None]:
    """Fit, in each direction, how much longer a compute is for each part that its load is above that of evenly dealt tokens.

    Gives the part of the variance that is predicted in steps that were not fitted, and how long each compute is against one with
    evenly dealt tokens; None where nothing is. Both arrays have the axes of `Breakdown`, groups in place of ranks.
    """
    shape = load.shape
    load, excess = _count_ranks(load), _count_ranks(work_s / np.nanmean(work_s, axis=(2, 3, 4), keepdims=True) - 1.0)
    there = np.isfinite(load) & np.isfinite(excess)
    if there.sum() < MIN_COMPUTES or load.shape[3] < MIN_STEPS:
        return 0.0, None
    load = np.where(there, load, np.nan)
    of_all, of_steps = _fit_loads(load, excess, (2, 3, 4)), _fit_loads(load, excess, 2)
    # The microbatches of a step of one rank are paced alike: who is slow is so with few tokens, too. If that makes no difference
    # all computes tell more.
    apart = np.abs(of_steps.slope - of_all.slope) > CHANCE_DEVIATIONS * of_steps.error
    best = of_steps if of_all.ratio is None or (of_steps.ratio is not None and apart.any()) else of_all
    return best.fit, None if best.ratio is None else best.ratio.reshape(shape)


class _Fit(NamedTuple):
    """How much longer a compute of each direction is for each 1 of load, how sure that is, and what `_fit_tokens` gives."""

    slope: NDArray[np.float64]
    error: NDArray[np.float64]
    fit: float = 0.0
    ratio: Seconds | None = None


def _fit_loads(load: Seconds, excess: Seconds, of_each: int | tuple[int, ...]) -> _Fit:
    """Fit as `_fit_tokens` does, NaN for no load; `of_each` are the axes over which computes are compared with their mean."""
    there, n_steps = np.isfinite(load), load.shape[3]
    mean = np.nan_to_num(np.nanmean(load, axis=(2, 3, 4)))  # (2, n_virtual)
    x = np.nan_to_num(load - np.nanmean(load, axis=of_each, keepdims=True))
    squares = (x * x).sum(axis=(2, 4))  # (2, n_virtual, n_steps)
    far, high = (values - nan_median(values, axis=of_each, keepdims=True) for values in (load, excess))
    usual = there & (far != 0)
    # What is far above the others tells most: where one stage alone is uneven, what the others vary by tells nothing.
    slope = weighted_median(high[usual] / far[usual], np.abs(far[usual]))
    predicted = excess - high + far * (slope or 0.0)
    for _ in range(N_ROUNDS):
        width = CLIP_DEVIATIONS * robust_deviation((excess - predicted)[there])
        y = np.clip(excess, predicted - width, predicted + width)  # a pause is no work, the longest of experts is
        own = np.nanmean(np.where(there, y, np.nan), axis=of_each, keepdims=True)
        y = np.where(there, y - own, 0.0)
        products = (x * y).sum(axis=(2, 4))
        ratio = 1.0 + _price(products, squares, mean)[:, None, None, None, None] * np.nan_to_num(load)
        predicted = ratio / np.nanmean(np.where(there, ratio, np.nan), axis=(2, 3, 4), keepdims=True) - 1.0
        predicted = predicted - np.nanmean(np.where(there, predicted, np.nan), axis=of_each, keepdims=True) + own
    price = np.stack([_price(products[:, :, part], squares[:, :, part], mean) for part in _halves(n_steps)])
    slope = price[:, :, None] / (1.0 + price[:, :, None] * mean)
    slope = np.where(np.arange(n_steps) % 2 == 0, slope[1][..., None], slope[0][..., None])  # of the other half
    gain = (2.0 * slope * products - slope**2 * squares).sum(axis=(0, 1))
    varies = (y * y).sum(axis=(0, 1, 2, 4))
    in_all = np.maximum(squares.sum(axis=(1, 2)), TINY_RATIO)
    usual_slope = products.sum(axis=(1, 2)) / in_all
    missed = (products - usual_slope[:, None, None] * squares).sum(axis=1)  # (2, n_steps)
    found = _Fit(usual_slope, np.sqrt((missed**2).sum(axis=1)) / in_all)
    # Each step votes: with few tokens far above all others one would outweigh the rest.
    if _deviations_above_zero(gain / np.maximum(varies, TINY_RATIO)) < CHANCE_DEVIATIONS:
        return found
    return found._replace(fit=float(gain.sum() / varies.sum()), ratio=np.maximum(ratio, TINY_RATIO))


def _price(products: Seconds, squares: Seconds, mean: Seconds) -> Seconds:
    """Say how much longer than with even tokens computes are for each 1 of load above these: 0..1, no token costs more than others.

    Times are known against the mean of their virtual stage, which has `mean` load, shape (n_directions, n_virtual), itself; sums of
    products with what loads are off it, and of their squares, by step.
    """
    products = products.sum(axis=2)
    own = squares.sum(axis=2).sum(axis=1) - (mean * products).sum(axis=1)
    price = products.sum(axis=1) / np.maximum(own, TINY_RATIO)
    return np.asarray(np.clip(price, 0.0, 1.0))


def _halves(n_steps: int) -> tuple[slice, slice]:
    """Give every second step, and the others."""
    return slice(0, n_steps, 2), slice(1, n_steps, 2)


def _deviations_above_zero(by_step: Seconds) -> float:
    """Say how many of its standard errors the mean over steps is above zero."""
    return float(by_step.mean() / max(by_step.std(ddof=1) / math.sqrt(len(by_step)), TINY_RATIO))


def _are_steady(logs: Seconds) -> Bools:
    """Mark the ranks that stages can be compared on, shape (n_dp,): on half of the stages of others pauses are frequent.

    There what stages share cannot be told from what they do not: a pause is in one direction.
    """
    forward, backward = (robust_deviation(of[np.isfinite(of)]) for of in logs)
    apart = logs[0] - logs[1] * np.clip(forward / max(backward, TINY_RATIO), 1.0 / SLOPES[1], 1.0 / SLOPES[0])
    apart = np.abs(apart - nan_median(apart, axis=(1, 2, 3), keepdims=True))
    n_far = (apart > CLIP_DEVIATIONS * MAD_TO_SIGMA * np.nanmedian(apart)).sum(axis=(1, 2))
    often = n_far > MANY_PAUSES * np.isfinite(apart).sum(axis=(1, 2))  # (n_virtual, n_dp)
    return np.asarray(often.mean(axis=0) < MANY_PAUSED_STAGES)


def _without_documents(logs: Seconds, documents: Seconds, there: Bools, asked: Bools) -> Seconds:
    """Take out how stages respond to longer documents than others do: one with work of another kind is long by less.

    `documents` is the log of what all stages of a microbatch share, shape (1, n_microbatches, n_steps, n_dp); `asked` are the ranks
    that tell how, shape (n_dp,).
    """
    lengths, fitted = keep_where(there, documents - documents.mean()), there & asked
    left, n = np.array(logs), np.maximum(fitted.sum(axis=(1, 2, 3), keepdims=True), 1)
    for power, most in enumerate(RESPONSES, start=1):
        x = lengths**power
        x = keep_where(there, x - keep_where(fitted, x).sum(axis=(1, 2, 3), keepdims=True) / n)
        of_fitted = keep_where(fitted, x)
        products = keep_where(fitted, left * of_fitted).sum(axis=(2, 3, 4))
        response = np.clip(products / np.maximum((of_fitted**2).sum(axis=(1, 2, 3)), TINY_RATIO), -most, most)
        left -= response[:, :, None, None, None] * x
    return left


def _contrast(logs: Seconds, there: Bools) -> Seconds:
    """Say how each microbatch differs from the others of its worker and step (log); 0 where a compute is missing."""
    # What a place has in every step belongs to the schedule, or to its worker: each step is routed anew.
    of_each = 3 if logs.shape[3] >= ENOUGH_STEPS else (3, 4)
    logs = keep_where(there, logs - nan_median(logs, axis=of_each, keepdims=True))
    width = np.array([robust_deviation(take_where(there, of_direction)) for of_direction in logs])[
        :, None, None, None, None
    ]
    clipped = np.clip(logs, -CLIP_DEVIATIONS * width, CLIP_DEVIATIONS * width)
    # What all microbatches of a worker share in a step is its pace.
    pace = clipped.sum(axis=2, keepdims=True) / np.maximum(there.sum(axis=1)[None, :, None], 1)
    return keep_where(there, clipped - pace)


def _of_others(values: Seconds, there: Bools) -> Seconds:
    """Take the mean of all other virtual stages, 0 where there is none; shape (2, n_virtual, ...)."""
    n = len(there) - 1 if there.all() else there.sum(axis=0) - there
    return np.asarray((values.sum(axis=1, keepdims=True) - values) / np.maximum(n, 1))


def _share_alone(whole: Seconds, there: Bools) -> float:
    """Say which part of what forward and backward share is the stage's own.

    What a stage has alone is the covariance of its own two directions, less that with the other direction of other stages.
    """
    within, across = _share_within(whole, there)
    return float(np.clip(1.0 - across.sum() / within.sum(), 0.0, 1.0)) if within.sum() > 0 else 0.0


def _share_within(whole: Seconds, there: Bools) -> tuple[Seconds, Seconds]:
    """Multiply each forward by its own backward, and by that of other stages; sums, shape (n_steps,)."""
    within = (whole[0] * whole[1]).sum(axis=(0, 1, 3))
    return within, (whole[0] * _of_others(whole[1:2], there)[0]).sum(axis=(0, 1, 3))


def _beyond_chance(whole: Seconds, there: Bools) -> float:
    """Say how many standard errors what a stage has alone is above zero.

    It must be more than what it shares with the other direction of the microbatch before or after, too.
    """
    within, across = _share_within(whole, there)
    chance = _deviations_above_zero(within - across)
    if whole.shape[2] >= MIN_FOR_NEIGHBOURS:
        # A forward may stand between its own backward and another one: a moment of contention is in both.
        later, earlier = whole[0][:, 1:] * whole[1][:, :-1], whole[0][:, :-1] * whole[1][:, 1:]
        n_pairs = later.shape[1]
        beside = max((later, earlier), key=np.sum).sum(axis=(0, 1, 3)) * (n_pairs + 1) / n_pairs
        chance = min(chance, _deviations_above_zero(within - beside))
    return chance


def _predict_other_direction(whole: Seconds, there: Bools) -> float:
    """Say which part of what other stages and neighbours in time leave one direction tells of the other, in steps not fitted."""
    n_steps = whole.shape[3]
    others = _of_others(whole, there)
    without, with_other = np.zeros(n_steps), np.zeros(n_steps)  # squares that are missed
    for direction in range(2):
        target, other = whole[direction], whole[1 - direction]
        known = [others[0], others[1]]
        if whole.shape[2] >= MIN_FOR_NEIGHBOURS:
            before, after = np.zeros_like(other), np.zeros_like(other)
            before[:, 1:], after[:, :-1] = other[:, :-1], other[:, 1:]
            known += [before, after]
        scale = max(float((target**2).mean()), TINY_RATIO)
        gram = _multiply_columns([target, *known, other])
        n_fitted = target.size / 2.0 / len(target)
        without += _miss(gram[:, :, :-1, :-1], n_fitted) / scale
        with_other += _miss(gram, n_fitted) / scale
    return float(1.0 - with_other.sum() / max(without.sum(), TINY_RATIO))


def _multiply_columns(columns: Sequence[Seconds]) -> Seconds:
    """Sum the products of columns two by two in each step and virtual stage: shape (n_steps, n_virtual, n, n).

    All have shape (n_virtual, n_microbatches, n_steps, n_dp).
    """
    n_virtual, n_microbatches, n_steps, n_dp = columns[0].shape
    laid = np.empty((n_steps, n_virtual, len(columns), n_microbatches, n_dp))
    for at, column in enumerate(columns):
        laid[:, :, at] = column.transpose(2, 0, 1, 3)
    rows = laid.reshape(n_steps, n_virtual, len(columns), -1)
    return np.asarray(rows @ rows.swapaxes(2, 3))


def _miss(gram: Seconds, n_fitted: float) -> Seconds:
    """Fit the first column on the others, each virtual stage by itself, and give the squares of what is missed by step, not fitted.

    `gram` is what `_multiply_columns` gives, `n_fitted` how many computes of a virtual stage a fit looks at.
    """
    missed = np.zeros(len(gram))
    halves = _halves(len(gram))
    for fitted, tested in (halves, halves[::-1]):
        fit = gram[fitted].sum(axis=0)  # (n_virtual, n, n)
        spread = np.maximum(np.diagonal(fit, axis1=1, axis2=2), TINY_RATIO)
        price = PRICE_COMPUTES / max(n_fitted, 1.0) * spread[:, 1:]
        inner = fit[:, 1:, 1:] + price[:, :, None] * np.eye(fit.shape[1] - 1)
        weight = np.linalg.solve(inner, fit[:, 1:, :1])[..., 0]
        signed = np.concatenate([np.ones((len(weight), 1)), -weight], axis=1)
        missed[tested] = np.einsum("vi,svij,vj->s", signed, gram[tested], signed)
    return missed


def _find_group(contrast: Seconds, ep_size: int | None) -> tuple[int, float | None]:
    """Find how many ranks, one after the other, are long together, and which part of it they share; largest sizes first."""
    n_dp = contrast.shape[-1]
    sizes = [size for size in range(n_dp, 1, -1) if n_dp % size == 0 and (ep_size is None or size == ep_size)]
    within = float((contrast[0] * contrast[1]).sum())
    shared: dict[int, float] = {}
    for size in sizes:
        forward, backward = contrast.reshape(len(contrast), -1, size).sum(axis=2)
        both = (float((forward * backward).sum()) - within) / (size - 1) / within
        shared[size] = min(max(both, 0.0), 1.0)
    best = max(shared.values(), default=0.0)
    if best < ALIKE_FROM:
        return 1, best if shared else None
    # A part of a group is as much alike as the group, and several groups are less so.
    return next((size, both) for size, both in shared.items() if both >= ALIKE_SHARE * best)


def _agree(forward: Seconds, backward: Seconds) -> Seconds:
    """Take what two directions agree on: their mean, as far as it is no chance; what lengthens one alone is no expert's."""
    apart = forward - backward
    apart -= np.nanmedian(apart)
    far = np.abs(apart) > FAR_DEVIATIONS * robust_deviation(apart[np.isfinite(apart)])
    mean = (forward + backward) / 2.0
    near = np.isfinite(mean) & ~far
    total = float((mean[near] ** 2).sum())
    # The mean of two has half the variance that noise gives their difference, halved.
    share = max(1.0 - float((apart[near] ** 2).sum()) / 4.0 / total, 0.0) if total > 0 else 0.0
    return np.where(far, nearest_zero_center(np.stack([forward, backward]), axis=0), mean * share)


def _shared_by_stages(logs: Seconds, contrast: Seconds, there: Bools) -> Seconds:
    """Estimate what the stages of a microbatch share, shrunk as far as their mean is chance; shape (2, 1, ...)."""
    n = there.sum(axis=0)
    mean = contrast.sum(axis=1) / np.maximum(n, 1)
    apart = (mean**2).sum() * len(there)
    across = float((contrast * _of_others(contrast, there)).sum())
    share = min(max(across / apart, 0.0), 1.0) if apart > 0 else 0.0
    return np.asarray(share * nan_median(logs, axis=1, keepdims=True))


COMPONENT = Component("expert", ExpertPart)
