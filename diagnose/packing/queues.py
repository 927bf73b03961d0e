"""Variable-length packing in which very long documents wait for others of their kind.

Enters: documents, thresholds. Leaves: a `Packing`.
"""

import bisect
import dataclasses
import itertools
from collections.abc import Sequence

from diagnose.errors import UsageError
from diagnose.packing.plan import Bins, Documents, Packing


def pack_queues(docs: Documents, *, thresholds: Sequence[int] = ()) -> Packing:
    """Balance cost instead of tokens, and let documents above a threshold wait until each microbatch gets one.

    Parameters
    ----------
    docs : Documents
        `max_tokens` is the bound that memory sets, above the window.
    thresholds : sequence of int
        Tokens, rising. A document of at least the first waits in the queue of the highest threshold that it reaches; in every
        batch each queue that is long enough gives its oldest `n_microbatches`. Without thresholds none waits.

    Returns
    -------
    Packing
        Longest first, each document goes to the microbatch of least cost if it fits, else to that of fewest tokens if it fits,
        else it is packed with the next batch.

    Raises
    ------
    UsageError
        Thresholds that do not rise.

    Source: arXiv 2503.17924, variable-length packing with outlier delay.
    """
    packer = QueuesPacker(list(thresholds))
    for batch, arriving in docs.arriving():
        packer.form(docs, batch, arriving)
    return docs.packing()


@dataclasses.dataclass(slots=True)
class QueuesPacker:
    """Forms one batch after the other; documents that wait are named as in the `Documents` given."""

    thresholds: list[int] = dataclasses.field(default_factory=list)
    #: One of each threshold, oldest first.
    queues: list[list[int]] = dataclasses.field(default_factory=list)
    #: What fitted nowhere.
    waiting: list[int] = dataclasses.field(default_factory=list)

    def __post_init__(self) -> None:
        bounds = self.thresholds
        if any(low >= high for low, high in itertools.pairwise(bounds)) or any(bound < 1 for bound in bounds):
            raise UsageError(
                f"queues at {', '.join(map(str, bounds))} tokens; expected thresholds of 1 or more that rise"
            )
        self.queues = self.queues or [[] for _ in bounds]

    def form(self, docs: Documents, batch: int, arriving: Sequence[int]) -> None:
        """Place documents in the next batch; what is left waits."""
        for doc in arriving:
            level = bisect.bisect_right(self.thresholds, docs.lengths[doc])
            (self.queues[level - 1] if level else self.waiting).append(doc)
        for queue in self.queues:
            if len(queue) >= docs.n_microbatches:
                self.waiting += queue[: docs.n_microbatches]
                del queue[: docs.n_microbatches]
        self.waiting.sort(key=docs.rank.__getitem__)
        self.waiting = _fill(docs, self.waiting, batch)


def _fill(docs: Documents, longest_first: list[int], batch: int) -> list[int]:
    """Fill the microbatches of one batch and give what fits nowhere."""
    bins = Bins.empty(docs.n_microbatches)
    costs, tokens = bins.costs, bins.tokens
    left = []
    for doc in longest_first:
        length = docs.lengths[doc]
        bin_ = costs.index(min(costs))
        if tokens[bin_] + length > docs.max_tokens:
            bin_ = tokens.index(min(tokens))
            if tokens[bin_] + length > docs.max_tokens:
                left.append(doc)
                continue
        bins.add(bin_, docs.costs[doc], length)
        docs.batch[doc], docs.microbatch[doc] = batch, bin_
    return left
