"""Which documents or microbatches of a global batch each data-parallel rank takes.

Enters: documents, or a `Packing`, and the number of ranks. Leaves: microbatches numbered rank by rank.
"""

import dataclasses
from collections.abc import Iterable, Sequence

import numpy as np

from diagnose.model.trace import Ints, Seconds
from diagnose.packing.cost import Cost
from diagnose.packing.greedy import order_documents
from diagnose.packing.measure import sum_microbatches
from diagnose.packing.plan import Bins, Documents, Packing


def deal_ranks(packing: Packing, cost: Cost, n_ranks: int) -> Packing:
    """Deal the microbatches of every batch, which are those of all ranks together, to data-parallel ranks so that these cost alike.

    Returns
    -------
    Packing
        Microbatches `r * m .. r * m + m - 1` are those of rank r, m of them, dearest first. The dearest microbatch goes first,
        each to the cheapest rank that lacks one.
    """
    costs, _ = sum_microbatches(packing, cost)
    place = np.array([deal_microbatches(row, n_ranks) for row in costs.tolist()], dtype=np.int64).reshape(costs.shape)
    placed = packing.batch >= 0
    microbatch: Ints = packing.microbatch.copy()
    microbatch[placed] = place[packing.batch[placed], packing.microbatch[placed]]
    microbatch.setflags(write=False)
    return dataclasses.replace(packing, microbatch=microbatch)


def sum_ranks(costs: Seconds, n_ranks: int) -> Seconds:
    """Add up the microbatches of each rank.

    Parameters
    ----------
    costs : ndarray of float64, shape (n_batches, n_microbatches)
        Of a packing from `deal_ranks`.

    Returns
    -------
    ndarray of float64, shape (n_batches, n_ranks)
    """
    per_rank: Seconds = costs.reshape(costs.shape[0], n_ranks, costs.shape[1] // n_ranks).sum(axis=2)
    return per_rank


def deal_microbatches(costs: list[float], n_ranks: int) -> list[int]:
    """Give the new number of each microbatch of one batch: those of rank 0 first, dearest first, then those of rank 1."""
    size = len(costs) // n_ranks
    totals, taken = [0.0] * n_ranks, [0] * n_ranks
    place = [0] * len(costs)
    for n in sorted(range(len(costs)), key=lambda n: -costs[n]):
        rank = min((r for r in range(n_ranks) if taken[r] < size), key=totals.__getitem__)
        place[n] = rank * size + taken[rank]
        totals[rank] += costs[n]
        taken[rank] += 1
    return place


def fill_ranks(docs: Documents, ordered: Iterable[int], n_ranks: int) -> tuple[dict[int, int], list[int]]:
    """Deal documents to ranks by cost, and those of a rank to its microbatches.

    Ranks without pipeline stages wait for each other once a step, so that only their sums must be alike.

    Parameters
    ----------
    ordered : iterable of int
        The documents, the first to be placed first.

    Returns
    -------
    dict of int to int
        The microbatch of each document: those of rank 0 come first.
    list of int
        What fits nowhere.
    """
    n_each = docs.n_microbatches // n_ranks
    rank_of, waiting = Bins.empty(n_ranks).fill(docs, ordered, room=docs.max_tokens * n_each)
    placed: dict[int, int] = {}
    for rank in range(n_ranks):
        bin_of, left = Bins.empty(n_each).fill(docs, [doc for doc, its_rank in rank_of.items() if its_rank == rank])
        placed |= {doc: rank * n_each + bin_ for doc, bin_ in bin_of.items()}
        waiting += left
    return placed, waiting


@dataclasses.dataclass(slots=True)
class RanksPacker:
    """Deals one batch after the other to ranks first; documents that wait are named as in the `Documents` given."""

    n_ranks: int
    #: What fitted nowhere.
    waiting: list[int] = dataclasses.field(default_factory=list)

    def form(self, docs: Documents, batch: int, arriving: Sequence[int]) -> None:
        """Place documents in the next batch, longest first; what is left waits."""
        placed, self.waiting = fill_ranks(
            docs, order_documents(docs, self.waiting, arriving, batch, together=1), self.n_ranks
        )
        docs.place(batch, placed)
