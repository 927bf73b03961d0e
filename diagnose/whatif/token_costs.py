"""What token columns tell of how long each microbatch takes: proof, where they predict times that they were not fitted to.

Enters: observed blocks, and the work of computes. Leaves: how many times as long as a mean one each microbatch should take. Costs
one pass over the computes.
"""

import dataclasses
from collections.abc import Sequence

import numpy as np

from diagnose.model.optype import Op
from diagnose.model.trace import Bools, Seconds
from diagnose.numerics.robust import MAD_TO_SIGMA, lower_median, nan_median, robust_deviation
from diagnose.whatif.computes import iterate_blocks
from diagnose.whatif.medians import TINY_RATIO
from diagnose.whatif.observed import Observed

#: Fewer microbatches, of a step or in all, or fewer steps tell nothing: half of them has to give two prices.
MIN_OF_STEP, MIN_MICROBATCHES, MIN_STEPS = 2, 16, 4
#: Tokens tell where they predict this part of how microbatches differ that were not fitted to, as `ExpertPart` asks it.
LEAST_EXPLAINED = 0.05
#: ... and this part where a step has one microbatch alone, as what else changes from step to step is not taken off.
LEAST_OF_STEPS = 0.5
#: A pause is no work: what is off by more than this many robust deviations counts as so many, in some rounds of fitting.
CLIP_DEVIATIONS, N_ROUNDS = 6.0, 4
#: A rank has more than others all the time, or less, by this part at least, and so many deviations of its own microbatches.
LEAST_MORE, APART_DEVIATIONS = 0.015, 3.0
#: An optimizer that takes so many times as long as others' is that of a slow machine.
SLOW_OPTIMIZER = 1.1


@dataclasses.dataclass(frozen=True, slots=True)
class TokenCosts:
    """What tokens say."""

    #: Shape (n_microbatches, n_steps, n_dp): how many times as long as a mean one each microbatch takes; 1 where its tokens are
    #: not known.
    ratio: Seconds
    #: Which ranks have more all the time agrees with which are slow, and that is all that tells: they may be slow by
    #: themselves.
    of_ranks: bool


def read_token_costs(observed: Sequence[Observed], work_s: Seconds) -> TokenCosts | None:
    """Say how many times as long as a mean one each microbatch takes by its tokens and their squares.

    What they cost is learned from what microbatches of one worker and step differ by, or of one worker, where a step has one: so a
    slow worker is not taken for long documents, nor long documents for a slow worker. It is checked on the steps that were not
    fitted to. Where ranks differ by far more than their microbatches do, all the time, who has more may be as slow as that.

    Parameters
    ----------
    observed : sequence of Observed
    work_s : ndarray of float64, axes as in `Breakdown`
        Computes without waits and recorded pauses, seconds.

    Returns
    -------
    TokenCosts or None
        None where no column is there, or none tells.
    """
    columns = _gather(observed, work_s.shape[2:])
    if not len(columns):
        return None
    of_stages = np.nanmean(work_s[:2] / np.nanmean(work_s[:2], axis=(2, 3, 4), keepdims=True), axis=0)
    cost = lower_median(of_stages, axis=0)  # a slow worker pays more for each token than its documents cost
    there = np.isfinite(cost) & np.isfinite(columns).all(axis=0)
    if cost.shape[1] < MIN_STEPS or there.sum() < MIN_MICROBATCHES:
        return None
    ratio = _fit_microbatches(columns, cost, there)
    if ratio is not None:
        return TokenCosts(ratio, of_ranks=False)
    ratio = _fit_ranks(np.where(there, columns, np.nan), work_s[:2], _compare_optimizers(observed, cost.shape[2]))
    return None if ratio is None else TokenCosts(ratio, of_ranks=True)


def _fit_microbatches(columns: Seconds, cost: Seconds, there: Bools) -> Seconds | None:
    """Say how long microbatches are by what those of one worker and step, or worker, differ by; None where it predicts nothing.

    Where those of one worker and step are alike, as where a batch is padded to its longest document, by what the workers of a step
    differ by that do not always differ so.
    """
    x = np.stack([column / column[there].mean() - 1.0 for column in columns])
    if len(cost) < MIN_OF_STEP:
        price = _find_price(_within(x, there, 1), _within(cost[None], there, 1)[0], there, LEAST_OF_STEPS)
    else:
        within = _within(x, there, 0)
        price = _find_price(within, _within(cost[None], there, 0)[0], there, LEAST_EXPLAINED)
        of_rank = _between(np.stack([*x, cost]), there)
        # Documents that are drawn one by one make microbatches of a worker differ at least as much as workers.
        if price is None and (within**2).sum() < len(cost) * (of_rank[:-1] ** 2).sum():
            known = np.asarray(there.any(axis=0, keepdims=True))
            price = _find_price(of_rank[:-1], of_rank[-1], known, LEAST_OF_STEPS)
    if price is None:
        return None
    return np.asarray(np.maximum(1.0 + np.tensordot(price, np.where(there, x, 0.0), 1), TINY_RATIO))


def _find_price(x: Seconds, y: Seconds, there: Bools, least: float) -> Seconds | None:
    """Say what each column costs, shape (n_columns,); None where it predicts less than `least` of steps it was not fitted to."""
    width = CLIP_DEVIATIONS * robust_deviation(y[there])
    even, odd = slice(0, None, 2), slice(1, None, 2)
    missed = 0.0
    for fitted, seen in ((even, odd), (odd, even)):
        price = _fit_work(x[:, :, fitted], y[:, fitted], there[:, fitted])
        missed += _measure_loss(y[:, seen] - np.tensordot(price, x[:, :, seen], 1), width)
    return None if missed >= (1.0 - least) * _measure_loss(y, width) else _fit_work(x, y, there)


def _fit_ranks(columns: Seconds, work_s: Seconds, machine: Seconds) -> Seconds | None:
    """Say how long microbatches are where ranks have more than others all the time: by one price, at most as many times as long.

    The price is what the quicker half of these ranks pays: another one may be slow beside. A rank is as slow as its quickest stage,
    and by as much less as its `machine` is, shape (n_dp,).
    None where no rank has more, or who has is not slow.
    """
    of_step = lower_median(nan_median(columns, axis=1), axis=2)
    usual = np.where(of_step > 0, of_step, np.nan)[:, None, :, None]
    most = (columns / usual).max(axis=0)  # (n_microbatches, n_steps, n_dp)
    more = nan_median(most, axis=(0, 1)) - 1.0
    spread = MAD_TO_SIGMA * nan_median(np.abs(most - 1.0 - more), axis=(0, 1))
    of_ranks = np.abs(more) > np.maximum(APART_DEVIATIONS * spread, LEAST_MORE)
    if not of_ranks.any():
        return None
    pace = nan_median(work_s, axis=2)  # (2, n_virtual, n_steps, n_dp)
    slower = nan_median(pace / lower_median(pace, axis=3)[..., None], axis=2).mean(axis=0).min(axis=0) / machine - 1.0
    price = min(float(lower_median(slower[of_ranks] / more[of_ranks], axis=0)), 1.0)
    if not price * np.abs(more[of_ranks]).max() >= LEAST_MORE:
        return None
    return np.asarray(np.nan_to_num(1.0 + price * (most - 1.0), nan=1.0))


def _compare_optimizers(observed: Sequence[Observed], n_dp: int) -> Seconds:
    """Say how many times as long as others' the optimizers of a rank take, of the stage where least: no token makes them longer."""
    least = np.full(n_dp, np.inf)
    for o in observed:
        for node in np.flatnonzero(o.block.nodes.op == Op.OPTIMIZER).tolist():
            usual = nan_median(np.broadcast_to(o.own[node], o.block.start_s.shape[1:]), axis=0)
            least = np.fmin(least, usual / max(float(lower_median(usual)), TINY_RATIO))
    return np.where(np.isfinite(least) & (least > SLOW_OPTIMIZER), least, 1.0)


def _gather(observed: Sequence[Observed], shape: tuple[int, ...]) -> Seconds:
    """Lay out the columns that differ between microbatches, shape (n_columns, n_microbatches, n_steps, n_dp), NaN where unknown."""
    if all(o.block.tokens is None and o.block.tokens_sq is None for o in observed):
        return np.zeros((0, *shape))
    found = np.full((2, *shape), np.nan)
    for steps, o in iterate_blocks(observed):
        nodes = o.block.nodes
        first = (nodes.op == Op.FORWARD) & (nodes.stage == 0) & (nodes.chunk <= 0)
        for of_column, given in zip(found, (o.block.tokens, o.block.tokens_sq), strict=True):
            if given is not None:
                for node in np.flatnonzero(first).tolist():
                    of_column[int(nodes.microbatch[node]), steps] = given[node]
    spread = nan_median(found, axis=(1, 2, 3)) > 0
    differ = [
        bool(known) and np.nanmax(column) > np.nanmin(column) for column, known in zip(found, spread, strict=True)
    ]
    return found[differ]


def _between(values: Seconds, there: Bools) -> Seconds:
    """Say by how much each worker has more in a step than others have in it and itself in others: (n, 1, n_steps, n_dp)."""
    n_there = np.maximum(there.sum(axis=0, keepdims=True), 1)
    of_rank = np.where(there, values, 0.0).sum(axis=1, keepdims=True) / n_there
    known = np.asarray(there.any(axis=0, keepdims=True))
    return _within(_within(of_rank, known, 2), known, 1)


def _within(values: Seconds, there: Bools, over: int) -> Seconds:
    """Take off what microbatches, 0, steps, 1, or ranks, 2, share: arrays (n, n_microbatches, n_steps, n_dp), 0 where unknown."""
    n_there = np.maximum(there.sum(axis=over, keepdims=True), 1)
    mean = np.where(there, values, 0.0).sum(axis=1 + over, keepdims=True) / n_there
    return np.where(there, values - mean, 0.0)


def _measure_loss(missed: Seconds, width: float) -> float:
    """Add up the squares of what was missed, none by more than a width."""
    return float((np.clip(missed, -width, width) ** 2).sum())


def _fit_work(x: Seconds, y: Seconds, there: Bools) -> Seconds:
    """Say what each column costs, at least 0, whatever pauses lie within: shape (n_columns,).

    Long documents are as rare as pauses are: what is clipped is not the time but by how much it is off what the columns say.
    """
    price = _fit(x, y)
    for _ in range(N_ROUNDS):
        told = np.tensordot(price, x, 1)
        width = CLIP_DEVIATIONS * robust_deviation((y - told)[there])
        price = _fit(x, told + np.clip(y - told, -width, width))
    return price


def _fit(x: Seconds, y: Seconds) -> Seconds:
    """Say what each column costs, at least 0: shape (n_columns,)."""
    rows, target = x.reshape(len(x), -1), y.ravel()
    cost = np.linalg.lstsq(rows.T, target, rcond=None)[0]
    if (cost >= 0.0).all():
        return np.asarray(cost)
    # Tokens and their squares grow together: where both do not cost something, one does.
    alone = np.maximum(rows @ target / np.maximum((rows**2).sum(axis=1), TINY_RATIO), 0.0)
    best = int(np.argmax(alone**2 * (rows**2).sum(axis=1)))
    return np.where(np.arange(len(alone)) == best, alone, 0.0)
