"""Deal microbatches out over dp ranks so that every rank has as much to do, and put those of a rank in a good order.

Enters: what each microbatch of each global batch costs. Leaves: which microbatch goes where. Costs a sort a round; rounds are as
many as a rank has microbatches.

A rank's part of a step takes about the sum of its microbatches, and once more the longest of them for every stage but one, while
the pipeline fills and drains. In between, stages work on neighbours at the same time: where these cost alike nobody waits. So
order is worth as much as evenness, and costs nothing: the gradients of a step are a sum.
"""

from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from diagnose.model.trace import Bools, Ints, Seconds

#: Order of the microbatches of a rank: as they come; longest first; or short ones first and last, the longest in the middle.
Order = Literal["arrival", "falling", "middle"]
#: Swaps between the busiest and the idlest rank that are tried for each rank.
SWAPS_PER_RANK = 4
MAX_SWAPS = 256
#: A swap that brings less than this part of the mean load is not worth its place.
LEAST_SWAP_SHARE = 1e-4


def deal_evenly(cost: Seconds, there: Bools, *, longest_weight: float) -> Ints:
    """Deal the microbatches of each step out anew.

    Parameters
    ----------
    cost : ndarray of float64, shape (n_microbatches, n_steps, n_dp)
        What each microbatch costs, in any unit; those that are not there do not matter.
    there : ndarray of bool, shape (n_microbatches, n_steps, n_dp)
        Which places there are: a rank runs as many microbatches as before.
    longest_weight : float
        How often a rank's longest microbatch counts beside the sum.

    Returns
    -------
    ndarray of int64, shape (n_microbatches, n_steps, n_dp)
        For each place the microbatch that goes there, as microbatch x n_dp + dp rank of where it was; each once. A rank runs
        them in the order in which they came.

    >>> cost = np.array([9.0, 1.0, 8.0, 2.0]).reshape(2, 1, 2)  # rank 0 has 9 and 8, rank 1 has 1 and 2
    >>> deal_evenly(cost, np.ones(cost.shape, dtype=bool), longest_weight=0.0)[:, 0].tolist()
    [[0, 2], [1, 3]]

    Source: longest processing time first (Graham 1969), as many to each rank.
    """
    n_steps, n_dp = cost.shape[1:]
    by_step = np.where(there, cost, -np.inf).transpose(1, 0, 2).reshape(n_steps, -1)
    of_rank = _deal_rounds(by_step, there.sum(axis=0), longest_weight)
    if n_dp > 1:
        _swap(by_step, of_rank, longest_weight)
    return _lay_out(np.sort(np.where(of_rank < 0, by_step.shape[1], of_rank), axis=2), there)


def arrange(cost: Seconds, there: Bools, order: Order) -> Ints:
    """Put the microbatches of each rank in order; every rank keeps its own. Takes and gives arrays as `deal_evenly`.

    >>> cost = np.array([1.0, 4.0, 2.0, 3.0]).reshape(4, 1, 1)
    >>> source = arrange(cost, np.ones(cost.shape, dtype=bool), "middle")
    >>> take_dealt(cost, source).ravel().tolist()
    [1.0, 3.0, 4.0, 2.0]
    """
    n_microbatches, n_steps, n_dp = cost.shape
    own = np.arange(n_microbatches * n_dp).reshape(n_microbatches, 1, n_dp)
    if order == "arrival":
        return np.broadcast_to(own, cost.shape).copy()
    n_there = there.sum(axis=0)[:, :, None]
    rising = np.argsort(np.where(there, cost, np.inf), axis=0, kind="stable")
    items = np.moveaxis(np.take_along_axis(np.broadcast_to(own, cost.shape), rising, axis=0), 0, 2)
    at = np.arange(n_microbatches)
    to = n_there - 1 - at if order == "falling" else np.where(at % 2 == 0, at // 2, n_there - 1 - at // 2)
    placed = np.empty((n_steps, n_dp, n_microbatches), dtype=np.int64)
    np.put_along_axis(placed, np.where(at < n_there, to, at), items, axis=2)
    return _lay_out(placed, there)


def take_dealt(values: NDArray[Any], source: Ints) -> NDArray[Any]:
    """Give each place the value of the microbatch that goes there, shape (n_microbatches, n_steps, n_dp)."""
    n_steps = values.shape[1]
    by_step = values.transpose(1, 0, 2).reshape(n_steps, -1)
    found: NDArray[Any] = by_step[np.arange(n_steps)[None, :, None], source]
    return found


def measure_load(cost: Seconds, there: Bools, *, longest_weight: float = 0.0) -> Seconds:
    """Say how much each rank has to do in each step, shape (n_steps, n_dp)."""
    known = np.where(there, cost, 0.0)
    return np.asarray(known.sum(axis=0) + longest_weight * known.max(axis=0))


def measure_imbalance(cost: Seconds, there: Bools) -> float:
    """Say how uneven microbatches are: the longest of a step over the mean of that step, mean over the steps."""
    n_there = np.maximum(there.sum(axis=(0, 2)), 1)
    known = np.where(there, cost, 0.0)
    return float(np.mean(known.max(axis=(0, 2)) / np.maximum(known.sum(axis=(0, 2)) / n_there, 1e-12)))


def _lay_out(of_rank: Ints, there: Bools) -> Ints:
    """Put the items of each rank, those that are used first, into the places that it has; shape of `there`."""
    n_microbatches, _, n_dp = there.shape
    own = np.arange(n_microbatches * n_dp).reshape(n_microbatches, 1, n_dp)
    source = np.broadcast_to(own, there.shape).copy()
    slots = np.argsort(~there, axis=0, kind="stable")  # those that are there, in order, then the others
    used = np.arange(n_microbatches)[:, None, None] < there.sum(axis=0)
    items = np.where(used, np.moveaxis(of_rank, 2, 0), np.take_along_axis(source, slots, axis=0))
    np.put_along_axis(source, slots, items, axis=0)
    return source


def _deal_rounds(by_step: Seconds, places: Ints, longest_weight: float) -> Ints:
    """Give in each round every rank one microbatch, the longest to who has least; shape (n_steps, n_dp, n_rounds), -1 unused."""
    n_steps, n_dp = places.shape
    n_rounds = by_step.shape[1] // n_dp
    order = np.argsort(-by_step, axis=1, kind="stable")
    ordered = np.take_along_axis(by_step, order, axis=1)
    of_rank = np.full((n_steps, n_dp, n_rounds), -1, dtype=np.int64)
    load = np.zeros((n_steps, n_dp))
    first = np.zeros((n_steps, 1), dtype=np.int64)
    for turn in range(n_rounds):
        takes = places > turn
        rank = np.argsort(np.where(takes, load, np.inf), axis=1, kind="stable")
        n_takers = takes.sum(axis=1, keepdims=True)
        item = np.minimum(first + np.arange(n_dp), by_step.shape[1] - 1)
        given = np.arange(n_dp) < n_takers
        weight = 1.0 + (longest_weight if turn == 0 else 0.0)
        seconds = np.where(given, np.take_along_axis(ordered, item, axis=1) * weight, 0.0)
        np.put_along_axis(load, rank, np.take_along_axis(load, rank, axis=1) + seconds, axis=1)
        np.put_along_axis(
            of_rank[:, :, turn], rank, np.where(given, np.take_along_axis(order, item, axis=1), -1), axis=1
        )
        first += n_takers
    return of_rank


def _swap(by_step: Seconds, of_rank: Ints, longest_weight: float) -> None:
    """Swap microbatches between the busiest and the idlest rank of each step while that helps; changes `of_rank`."""
    n_steps, n_dp, n_rounds = of_rank.shape
    unused = of_rank < 0
    by_rank = np.take_along_axis(by_step, np.maximum(of_rank, 0).reshape(n_steps, -1), axis=1)
    cost = np.where(unused, 0.0, by_rank.reshape(of_rank.shape))
    load = cost.sum(axis=2) + longest_weight * cost.max(axis=2)
    least = LEAST_SWAP_SHARE * load.mean(axis=1)
    going = np.arange(n_steps)
    for _ in range(min(SWAPS_PER_RANK * n_dp, MAX_SWAPS)):
        busy, idle = load[going].argmax(axis=1), load[going].argmin(axis=1)
        one, other = cost[going, busy], cost[going, idle]  # (n_going, n_rounds)
        less = one[:, :, None] - other[:, None, :]
        longest_one = np.maximum(_longest_without(one)[:, :, None], other[:, None, :])
        longest_other = np.maximum(_longest_without(other)[:, None, :], one[:, :, None])
        after_one = one.sum(axis=1)[:, None, None] - less + longest_weight * longest_one
        after_other = other.sum(axis=1)[:, None, None] + less + longest_weight * longest_other
        possible = ~unused[going, busy][:, :, None] & ~unused[going, idle][:, None, :]
        after = np.where(possible, np.maximum(after_one, after_other), np.inf).reshape(len(going), -1)
        best = after.argmin(axis=1)
        helps = np.take_along_axis(after, best[:, None], axis=1)[:, 0] < load[going, busy] - least[going]
        if not helps.any():
            return
        going, busy, idle, best = going[helps], busy[helps], idle[helps], best[helps]
        at_one, at_other = np.divmod(best, n_rounds)
        one_place, other_place = (going, busy, at_one), (going, idle, at_other)
        for values in (of_rank, cost):
            values[one_place], values[other_place] = values[other_place], values[one_place]
        for rank in (busy, idle):
            load[going, rank] = cost[going, rank].sum(axis=1) + longest_weight * cost[going, rank].max(axis=1)


def _longest_without(cost: Seconds) -> Seconds:
    """Give for each of a rank's microbatches the longest of its others; shape (n_steps, n_rounds), 0 where there is none."""
    if cost.shape[1] == 1:
        return np.zeros_like(cost)
    second, first = np.moveaxis(np.partition(cost, -2, axis=1)[:, -2:], 1, 0)
    is_first = np.arange(cost.shape[1]) == cost.argmax(axis=1)[:, None]
    found: Seconds = np.where(is_first, second[:, None], first[:, None])
    return found
