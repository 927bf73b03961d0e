"""Form global batches one after the other, as documents come in: for a training job that runs.

Enters: documents of one global batch after the other. Leaves: which of them, and of those that waited, are trained together.
"""

import copy
import dataclasses
from collections.abc import Sequence
from typing import Any, Literal

import numpy as np

from diagnose.errors import UsageError
from diagnose.model.trace import Ints
from diagnose.packing.balanced import BalancedPacker
from diagnose.packing.cost import PUBLISHED_COST, Cost
from diagnose.packing.greedy import GreedyPacker
from diagnose.packing.plan import Documents, check_documents
from diagnose.packing.queues import QueuesPacker
from diagnose.packing.ranks import RanksPacker, deal_microbatches

PackerName = Literal["greedy", "ranks", "queues", "balanced"]
#: Thresholds of the queues where nobody gives them, as parts of what a microbatch may hold (arXiv 2503.17924, two queues).
QUEUES = (0.25, 0.5)
#: What is kept of the documents that wait.
_WAITING = ("waiting", "lengths", "arrived")


@dataclasses.dataclass(frozen=True, slots=True)
class BatchPlan:
    """What a global batch is, and how its documents are packed."""

    #: Documents that come in with each global batch, those of all data-parallel ranks together.
    batch_documents: int
    #: Microbatches of one rank in a global batch.
    n_microbatches: int
    #: Tokens that a microbatch may hold: what memory allows.
    max_tokens: int
    #: `rank`, `n_ranks`: data-parallel rank, and how many there are.
    rank: int = 0
    n_ranks: int = 1
    #: `greedy`: every document is trained in its own batch, if it fits, and all microbatches cost alike: for pipelines.
    #: `ranks`: as `greedy`, but the sums of the ranks cost alike, which is closer: without pipeline stages nothing else counts.
    #: `queues`: long ones wait until each microbatch gets one. `balanced`: they wait where that buys more balance than it
    #: costs.
    packer: PackerName = "greedy"
    #: What a document costs.
    cost: Cost = PUBLISHED_COST
    #: Of `queues`, tokens from which on documents wait; a quarter and half of `max_tokens` where left out.
    thresholds: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        if self.n_microbatches < 1 or not 0 <= self.rank < self.n_ranks:
            raise UsageError(
                f"{self.n_microbatches} microbatches on rank {self.rank} of {self.n_ranks}; expected at least 1, and a rank below "
                "their number"
            )
        if self.batch_documents < self.n_bins:
            raise UsageError(
                f"{self.batch_documents} documents for {self.n_bins} microbatches of all ranks; expected at least one each"
            )
        self.make_packer()  # refuses what it cannot work with

    @property
    def n_bins(self) -> int:
        """Microbatches of a global batch, all ranks together."""
        return self.n_microbatches * self.n_ranks

    def make_packer(self) -> GreedyPacker | RanksPacker | QueuesPacker | BalancedPacker:
        """Make the packer of one run of data."""
        if self.packer == "greedy":
            return GreedyPacker()
        if self.packer == "ranks":
            return RanksPacker(self.n_ranks)
        if self.packer == "queues":
            parts = sorted({max(1, round(part * self.max_tokens)) for part in QUEUES})
            return QueuesPacker(list(self.thresholds or parts))
        if self.packer == "balanced":
            return BalancedPacker()
        raise UsageError(f"no packer {self.packer!r}; expected greedy, ranks, queues or balanced")


@dataclasses.dataclass(frozen=True, slots=True)
class PackingReport:
    """What packing did to the data so far."""

    #: `n_batches`, `n_documents`: global batches formed, and the documents in them.
    n_batches: int = 0
    n_documents: int = 0
    #: `imbalance`, `rank_imbalance`: largest over mean cost of a global batch's microbatches, and of its ranks; means over
    #: batches, 1 = balanced.
    imbalance: float = 1.0
    rank_imbalance: float = 1.0
    #: Part of the tokens trained in a later global batch than the one they came with, 0..1.
    delayed_share: float = 0.0
    #: `mean_delay`, `max_delay`: global batches that a token waited on average, all tokens counted, and the longest.
    mean_delay: float = 0.0
    max_delay: int = 0
    #: Part of the documents trained before one that came with an earlier global batch, 0..1; within a global batch order is
    #: free.
    reordered_share: float = 0.0
    #: Documents that still wait.
    n_waiting: int = 0


@dataclasses.dataclass(slots=True)
class _Totals:
    """Sums over all batches and tokens so far."""

    n_batches: int = 0
    n_documents: int = 0
    n_reordered: int = 0
    max_delay: int = 0
    tokens: int = 0
    delayed: int = 0
    delay: int = 0
    imbalance: float = 0.0
    rank_imbalance: float = 0.0


class Forming:
    """Forms the global batches of one run of data, the same on all ranks.

    Documents are known by numbers that the caller gives them.

    Parameters
    ----------
    plan : BatchPlan
    state : dict, optional
        What `state_dict` gave of a run with the same plan: go on from there.
    """

    def __init__(self, plan: BatchPlan, state: dict[str, Any] | None = None) -> None:
        self.plan = plan
        self._packer = plan.make_packer()
        self._totals = _Totals()
        #: Documents that wait, in the order in which they came: number, tokens, and the global batch they came with.
        self.waiting: list[int] = []
        self._lengths: list[int] = []
        self._arrived: list[int] = []
        if state is not None:
            self._packer = type(self._packer)(**copy.deepcopy(state["packer"]))
            self._totals = _Totals(**state["totals"])
            self.waiting, self._lengths, self._arrived = (list(state[name]) for name in _WAITING)

    def state_dict(self) -> dict[str, Any]:
        """Give what goes on is made from: plain numbers, lists and names."""
        waiting = zip(_WAITING, (self.waiting, self._lengths, self._arrived), strict=True)
        return {
            "packer": dataclasses.asdict(self._packer),
            "totals": dataclasses.asdict(self._totals),
            **{name: list(values) for name, values in waiting},
        }

    def form(self, numbers: Sequence[int], lengths: Sequence[int]) -> list[list[int]]:
        """Form the next global batch when these documents have come in.

        Returns
        -------
        list of list of int
            The documents of each microbatch, none empty: those of rank 0 first. Within one they stand in the order in which
            they came.
        """
        n_waited, n_bins, now = len(self.waiting), self.plan.n_bins, self._totals.n_batches
        every = [*self.waiting, *numbers]
        arrived = [*self._arrived, *([now] * len(numbers))]
        first = arrived[0]
        batch = now - first
        docs = check_documents(
            [*self._lengths, *lengths],
            [n - first for n in arrived],
            n_bins,
            self.plan.cost,
            self.plan.max_tokens,
            n_batches=batch + 1,
        )
        self._packer.form(docs, batch, range(n_waited, len(every)))
        self._fill_empty(docs, batch)
        costs, members = self._sum(docs)
        place = self._deal(costs)
        self._note(docs, np.array(arrived), costs, place)
        found: list[list[int]] = [[] for _ in range(n_bins)]
        for bin_, docs_of_bin in enumerate(members):
            found[place[bin_]] = [every[doc] for doc in docs_of_bin]
        self._keep_waiting(docs, every, arrived)
        return found

    def report(self) -> PackingReport:
        """Say what was done so far."""
        total = self._totals
        if not total.n_batches:
            return PackingReport()
        return PackingReport(
            n_batches=total.n_batches,
            n_documents=total.n_documents,
            imbalance=total.imbalance / total.n_batches,
            rank_imbalance=total.rank_imbalance / total.n_batches,
            delayed_share=total.delayed / total.tokens,
            mean_delay=total.delay / total.tokens,
            max_delay=total.max_delay,
            reordered_share=total.n_reordered / total.n_documents,
            n_waiting=len(self.waiting),
        )

    def _fill_empty(self, docs: Documents, batch: int) -> None:
        """Give each microbatch that got nothing a document: one that waits, the oldest first, else a short one of the fullest."""
        counts = np.bincount(docs.microbatch[docs.batch >= 0], minlength=docs.n_microbatches)
        for bin_ in np.flatnonzero(counts == 0).tolist():
            waiting = np.flatnonzero(docs.batch < 0)
            if len(waiting):
                doc = int(waiting[0])
            else:
                fullest = np.flatnonzero(docs.microbatch == counts.argmax())
                doc = int(fullest[docs.length_array[fullest].argmin()])
                counts[docs.microbatch[doc]] -= 1
            docs.place(batch, {doc: bin_})
            counts[bin_] = 1

    def _sum(self, docs: Documents) -> tuple[list[float], list[list[int]]]:
        """Give cost and documents of each microbatch."""
        costs, members = [self.plan.cost.fixed] * docs.n_microbatches, [list[int]() for _ in range(docs.n_microbatches)]
        for doc in np.flatnonzero(docs.batch >= 0).tolist():
            bin_ = int(docs.microbatch[doc])
            costs[bin_] += docs.costs[doc]
            members[bin_].append(doc)
        return costs, members

    def _deal(self, costs: list[float]) -> list[int]:
        """Give the place of each microbatch: those of rank 0 come first."""
        if isinstance(self._packer, RanksPacker):
            return list(range(len(costs)))  # they were filled in their places
        return deal_microbatches(costs, self.plan.n_ranks)

    def _note(self, docs: Documents, arrived: Ints, costs: list[float], place: list[int]) -> None:
        """Add a batch to the report."""
        total, placed = self._totals, docs.batch >= 0
        delay, tokens = total.n_batches - arrived[placed], docs.length_array[placed]
        oldest = int(arrived[~placed].min(initial=total.n_batches))
        ranks = np.bincount(np.array(place) // self.plan.n_microbatches, costs)
        total.n_batches += 1
        total.n_documents += int(placed.sum())
        total.n_reordered += int((arrived[placed] > oldest).sum())
        total.max_delay = max(total.max_delay, int(delay.max()))
        total.tokens += int(tokens.sum())
        total.delayed += int(tokens[delay > 0].sum())
        total.delay += int((tokens * delay).sum())
        total.imbalance += max(costs) / (sum(costs) / len(costs))
        total.rank_imbalance += float(ranks.max() / ranks.mean())

    def _keep_waiting(self, docs: Documents, every: list[int], arrived: list[int]) -> None:
        """Keep what waits, and name it anew in the packer."""
        left = np.flatnonzero(docs.batch < 0).tolist()
        renamed = {old: new for new, old in enumerate(left)}

        def rename(documents: list[int]) -> list[int]:
            return [renamed[doc] for doc in documents if doc in renamed]

        packer = self._packer
        if isinstance(packer, BalancedPacker):
            packer.long, packer.short = rename(packer.long), rename(packer.short)
        else:
            packer.waiting = rename(packer.waiting)
        if isinstance(packer, QueuesPacker):
            packer.queues = [rename(queue) for queue in packer.queues]
        self.waiting = [every[doc] for doc in left]
        self._lengths = [docs.lengths[doc] for doc in left]
        self._arrived = [arrived[doc] for doc in left]
