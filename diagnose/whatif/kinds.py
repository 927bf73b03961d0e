"""What a compute is besides its direction: with its weight gradients or without, of one microbatch or of several, beside another.

Enters: observed blocks and their compute times. Leaves: how many times as long as the usual kind each compute is, whatever is wrong
with the job. A schedule that mixes kinds on a stage (DualPipeV; weight gradients that are merged) would look uneven without it.
"""

import itertools
from collections.abc import Sequence

import numpy as np

from diagnose.model.optype import Op
from diagnose.model.trace import Bools, Ints, Seconds
from diagnose.numerics.robust import lower_median, nan_median
from diagnose.whatif.computes import DIRECTION_OF, list_computes, place_of
from diagnose.whatif.observed import Observed

#: Two computes of a worker are beside each other where they share this part of the shorter one.
SHARED = 0.3
_BACKWARD, _WEIGHT = DIRECTION_OF[int(Op.BACKWARD)], DIRECTION_OF[int(Op.WEIGHT)]


def measure_kinds(observed: Sequence[Observed], compute_s: Seconds, n_stages: int) -> Seconds | None:
    """Say how many times as long as the usual kind of its direction each compute is; None where there is one kind of each.

    Virtual stages and microbatches have factors of their own beside those of kinds: long documents and slow stages are no kind.

    Parameters
    ----------
    compute_s : ndarray of float64, shape (2, n_virtual, n_microbatches, n_steps, n_dp)
        3 in the first axis where there are weight gradients.

    Returns
    -------
    ndarray of float64, shape (2, n_virtual, n_microbatches, 1, 1), or None
    """
    usual_s = nan_median(nan_median(compute_s, axis=4), axis=3)  # (2, n_virtual, n_microbatches)
    kind = np.where(_find_beside(observed, usual_s.shape, n_stages), 1, 0)
    if len(usual_s) > _WEIGHT:
        merged = _count_merged(usual_s)
        kind[_WEIGHT] += 2 * merged
        kind[_BACKWARD] += 2 * _is_whole(usual_s, merged)
    there = np.isfinite(usual_s)
    ratio = np.ones(usual_s.shape)
    for direction, kinds in enumerate(kind):
        known, counts = np.unique(kinds[there[direction]], return_counts=True)
        if len(known) < 2:
            continue
        others = known[known != known[counts.argmax()]]
        factors = _fit_kinds(usual_s[direction], kinds, others)
        for kind_of, factor in zip(others.tolist(), factors.tolist(), strict=True):
            ratio[direction][kinds == kind_of] = factor
    return None if (ratio == 1.0).all() else ratio[..., None, None]


def _fit_kinds(usual_s: Seconds, kinds: Ints, others: Ints) -> Seconds:
    """Fit a factor for each virtual stage, each microbatch and each kind but the usual one; gives those of the kinds.

    `usual_s` and `kinds` have shape (n_virtual, n_microbatches), `others` and what comes back (n_kinds - 1,).
    """
    virtual, microbatch = np.nonzero(np.isfinite(usual_s) & (usual_s > 0))
    columns = (
        virtual[:, None] == np.arange(usual_s.shape[0]),
        microbatch[:, None] == np.arange(usual_s.shape[1]),
        kinds[virtual, microbatch][:, None] == others,
    )
    logs = np.log(usual_s[virtual, microbatch])
    found, *_ = np.linalg.lstsq(np.concatenate(columns, axis=1).astype(np.float64), logs, rcond=None)
    return np.asarray(np.exp(found[-len(others) :]))


def _find_beside(observed: Sequence[Observed], shape: tuple[int, ...], n_stages: int) -> Bools:
    """Mark the computes that run at the same time as another one of their worker, shape (2, n_virtual, n_microbatches)."""
    beside = np.zeros(shape, dtype=bool)
    for o in observed:
        nodes = o.block.nodes
        start_s, end_s = (nan_median(t.reshape(len(t), -1), axis=1) for t in (o.block.start_s, o.block.end_s))
        computes = list_computes(nodes)
        by_start = np.array(computes)[np.lexsort((start_s[computes], nodes.stage[computes]))].tolist()
        for a, b in itertools.pairwise(by_start):
            shorter = min(end_s[a] - start_s[a], end_s[b] - start_s[b])
            if nodes.stage[a] == nodes.stage[b] and min(end_s[a], end_s[b]) - start_s[b] > SHARED * shorter:
                beside[place_of(nodes, a, n_stages)] = beside[place_of(nodes, b, n_stages)] = True
    return beside


def _count_merged(usual_s: Seconds) -> Ints:
    """Say of how many microbatches more than one each weight gradient is, shape (n_virtual, n_microbatches).

    Where each backward has its own, however long, none is merged.
    """
    weight_s = usual_s[_WEIGHT]
    fewer = np.isfinite(weight_s).sum(axis=1) < np.isfinite(usual_s[_BACKWARD]).sum(axis=1)
    share = weight_s / usual_s[_BACKWARD]  # long documents are long in both
    n = np.nan_to_num(np.rint(share / lower_median(share, axis=1)[:, None]), nan=1.0)
    return np.asarray(np.where(fewer[:, None], np.maximum(n - 1, 0), 0).astype(np.int64))


def _is_whole(usual_s: Seconds, merged: Ints) -> Bools:
    """Mark the backwards that compute their weight gradients, too: those without a row of them.

    Where some gradients are merged, backwards without a row must be as long as both.
    """
    input_s, weight_s = usual_s[_BACKWARD], usual_s[_WEIGHT]
    is_split = np.isfinite(weight_s)
    n_covered = (is_split + merged).sum(axis=1)
    alone_s = nan_median(np.where(is_split, input_s, np.nan), axis=1)[:, None]
    longer = input_s > alone_s + lower_median(weight_s, axis=1)[:, None] / 2.0
    longer |= ~merged.any(axis=1, keepdims=True)
    return np.asarray(~is_split & longer & (n_covered < np.isfinite(input_s).sum(axis=1))[:, None])
