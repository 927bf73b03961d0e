"""Computes of one direction that the schedule makes unlike.

They run beside another one, are whole backwards among split ones, weight gradients of several microbatches, or, where there is
no pipeline, what a step does first and what it does after that (two models in turns).

Enters: observed blocks and seconds of computes. Leaves: how long each place of the schedule is against the ordinary compute of its
stage, so that what compares computes compares like with like. Costs a median a kind and stage.
"""

from collections.abc import Sequence

import numpy as np

from diagnose.model.trace import Bools, Ints, Seconds
from diagnose.numerics.robust import MAD_TO_SIGMA, nan_median
from diagnose.whatif.computes import place_of
from diagnose.whatif.medians import MEDIAN_ERROR
from diagnose.whatif.observed import Observed, usual_start
from diagnose.whatif.overlaps import find_overlaps

#: A backward without weight gradients of its own is whole where it is so many times as long as those that have some.
WHOLE_RATIO = 1.25
#: A microbatch is unlike the others of a step where it is so many times as long, on all ranks alike, and beyond so many standard
#: errors of what documents do.
UNLIKE_RATIO, UNLIKE_DEVIATIONS = 1.25, 5.0
#: Microbatches are sorted where so many or more have lengths that follow their order on each rank: two kinds in turns never do, and
#: one kind after the other has no order of its own (a correlation of ranks of 0.84 for eight of them).
MIN_SORTED, IN_ORDER = 4, 0.9
#: Beyond this and so many standard errors one worker alone is slow in the same microbatch of all steps.
OWN_RATIO = 1.1
#: In fewer steps chance does that, too.
MIN_OWN_STEPS = 8
#: Kinds of computes; a whole backward may run beside another compute, too.
BESIDE, WHOLE = 1, 2
#: How readily a difference is taken for one of virtual stages, of microbatches, of kinds, where it may be any.
PREFERRED = (1e6, 1.0, 1e3)


def find_beside(observed: Sequence[Observed], shape: tuple[int, ...], n_stages: int) -> Bools:
    """Mark the places of the schedule that run beside another compute of their worker.

    `shape` is that of the arrays of `Breakdown`; the result has its first three axes.
    """
    found = np.zeros(shape[:3], dtype=bool)
    for o in observed:
        for node in find_overlaps(o.block, usual_start(o.block)):
            found[place_of(o.block.nodes, node, n_stages)] = True
    return found


def measure_variants(beside: Bools, work_s: Seconds) -> Seconds | None:
    """Say how long each place of the schedule is against the ordinary compute of its direction and virtual stage.

    Parameters
    ----------
    beside : ndarray of bool, shape (n_directions, n_virtual, n_microbatches)
        As `find_beside` gives it.
    work_s : ndarray of float64, axes as in `Breakdown`
        Seconds, NaN where there is no compute.

    Returns
    -------
    ndarray of float64, shape (n_directions, n_virtual, n_microbatches, 1, 1), or None
        None where all computes of a virtual stage are of one kind.
    """
    if work_s.shape[1] == 1 and len(work_s) == 2:
        return _compare_microbatches(work_s)
    kind = np.where(beside, BESIDE, 0)
    if len(work_s) == 2 and not kind.any():
        return None
    usual_s = nan_median(work_s, axis=(3, 4))  # (n_directions, n_virtual, n_microbatches)
    ratio = np.ones(kind.shape)
    if len(work_s) > 2:
        kind[1] |= _find_whole(usual_s)
        ratio[2] = _count_merged(usual_s, kind[1])
    if not kind.any() and (ratio == 1.0).all():
        return None
    for direction in range(2):
        ratio[direction] = _compare_kinds(usual_s[direction], kind[direction])
    return np.asarray(ratio[..., None, None])


def _compare_microbatches(work_s: Seconds) -> Seconds | None:
    """Say how long each microbatch of a step is where nothing is pipelined, if some are unlike the others in all steps.

    Without a pipeline no rank waits for that: each has the same in the same order. But where each is shorter than the one before,
    or longer, on all ranks, documents are sorted, and every rank has its own.
    """
    n_steps = work_s.shape[3]
    logs = np.log(work_s)
    of_step = logs - nan_median(logs, axis=2, keepdims=True)
    of_rank = nan_median(of_step, axis=3)  # (n_directions, 1, n_microbatches, n_dp)
    spread = MAD_TO_SIGMA * nan_median(np.abs(of_step - of_rank[:, :, :, None]), axis=3)
    least = np.maximum(np.log(UNLIKE_RATIO), UNLIKE_DEVIATIONS * MEDIAN_ERROR * spread / np.sqrt(n_steps))
    unlike = (of_rank > least).all(axis=-1) | (of_rank < -least).all(axis=-1)  # (n_directions, 1, n_microbatches)
    if not unlike.any() or _are_sorted(of_rank):
        return None
    ratio = np.where(unlike.any(axis=2, keepdims=True), np.exp(nan_median(of_rank, axis=3)), 1.0)
    return np.asarray(np.nan_to_num(ratio, nan=1.0)[..., None, None])


def _are_sorted(of_rank: Seconds) -> bool:
    """Say whether microbatches get shorter, or longer, in their order; shape (n_directions, 1, n_microbatches, n_dp)."""
    n = of_rank.shape[2]
    if n < MIN_SORTED or not np.isfinite(of_rank).all():
        return False
    places = np.argsort(np.argsort(of_rank, axis=2), axis=2) - (n - 1) / 2.0
    order = np.arange(n)[None, None, :, None] - (n - 1) / 2.0
    together = (places * order).sum(axis=2) / float((order**2).sum())
    return bool((together >= IN_ORDER).all() or (together <= -IN_ORDER).all())


def find_own_places(left: Seconds, n_stages: int) -> Seconds | None:
    """Say how long the same microbatches of all steps are on single workers, forward and backward, where other ranks have no such.

    Documents are drawn anew in each step, and so is what experts get: neither chooses the same microbatch of each step, on one
    worker alone. Where all stages of a rank have it, its documents may be sorted.

    Parameters
    ----------
    left : ndarray of float64, shape (n_directions, n_virtual, n_microbatches, n_steps, n_dp)
        Durations over what is usual for stage, step and worker; NaN where there is no compute.

    Returns
    -------
    ndarray of float64, shape (n_directions, n_virtual, n_microbatches, 1, n_dp), or None
        1 where a place is no worker's own; None where none is.
    """
    n_microbatches, n_steps, n_dp = left.shape[2:]
    if n_dp < 2 or n_microbatches < 2 or n_steps < MIN_OWN_STEPS:
        return None
    logs = np.log(left)
    of_step = logs - nan_median(logs, axis=2, keepdims=True)
    usual = nan_median(of_step, axis=3)  # (n_directions, n_virtual, n_microbatches, n_dp)
    if not (usual[:2] > np.log(OWN_RATIO)).all(axis=0).any():
        return None
    spread = MAD_TO_SIGMA * nan_median(np.abs(of_step - usual[:, :, :, None]), axis=3)
    error = MEDIAN_ERROR * spread / np.sqrt(n_steps)
    # The most that any other rank has there, with its error; NaN where one has no such compute.
    upper = usual + error
    second, first = np.moveaxis(np.sort(upper, axis=-1)[..., -2:, None], -2, 0)
    most = np.where(upper >= first, second, first)
    beyond = usual - np.maximum(most, 0.0)
    own = (beyond[:2] > np.maximum(np.log(OWN_RATIO), UNLIKE_DEVIATIONS * error[:2])).all(axis=0)
    if n_stages > 1:
        own &= ~own.all(axis=0)
    return np.where(own[None], np.exp(np.maximum(np.nan_to_num(usual), 0.0)), 1.0)[:, :, :, None] if own.any() else None


def _find_whole(usual_s: Seconds) -> Ints:
    """Mark the whole backwards, shape (n_virtual, n_microbatches): without weight gradients, and longer than those with some."""
    there, split = np.isfinite(usual_s[1]), np.isfinite(usual_s[2])
    of_split = nan_median(np.where(split, usual_s[1], np.nan), axis=1, keepdims=True)
    whole = there & ~split & ((usual_s[1] > WHOLE_RATIO * of_split) | ~split.any(axis=1, keepdims=True))
    return np.where(whole, WHOLE, 0)


def _count_merged(usual_s: Seconds, kind: Ints) -> Seconds:
    """Say of how many microbatches each weight gradient is, shape (n_virtual, n_microbatches): together of all split backwards."""
    n_split = (np.isfinite(usual_s[1]) & (kind & WHOLE == 0)).sum(axis=1)
    weight_s, there = np.nan_to_num(usual_s[2]), np.isfinite(usual_s[2])
    total_s = np.maximum(weight_s.sum(axis=1, keepdims=True), np.finfo(float).tiny)
    each = np.where(there.sum(axis=1) < n_split, n_split, there.sum(axis=1))[:, None] * weight_s / total_s
    merged = (there.sum(axis=1) < n_split)[:, None] & there
    return np.where(merged, np.maximum(np.round(each), 1.0), 1.0)


def _compare_kinds(usual_s: Seconds, kind: Ints) -> Seconds:
    """Say how many times as long as the ordinary kind each kind is.

    Virtual stages and microbatches have factors of their own beside those of kinds: slow stages and long documents are no kind.
    Shape of both, and of the result, (n_virtual, n_microbatches).
    """
    there = np.isfinite(usual_s) & (usual_s > 0)
    ratio = np.ones(usual_s.shape)
    others = np.unique(kind[there])[1:]
    if not len(others):
        return ratio
    virtual, microbatch = np.nonzero(there)
    columns = (
        virtual[:, None] == np.arange(usual_s.shape[0]),
        microbatch[:, None] == np.arange(usual_s.shape[1]),
        kind[there][:, None] == others,
    )
    # The least solution is taken where several fit: what may be a stage is one, and what may be a kind is no microbatch.
    design = np.concatenate([preferred * column for preferred, column in zip(PREFERRED, columns, strict=True)], axis=1)
    found, *_ = np.linalg.lstsq(design, np.log(usual_s[there]), rcond=None)
    for of_kind, log in zip(others.tolist(), (PREFERRED[2] * found[-len(others) :]).tolist(), strict=True):
        ratio[there & (kind == of_kind)] = np.exp(log)
    return ratio
