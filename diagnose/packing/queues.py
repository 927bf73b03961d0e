"""Variable-length packing in which very long documents wait for others of their kind.

Enters: documents, thresholds. Leaves: a `Packing`.
"""

import bisect
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
    bounds, n_microbatches = list(thresholds), docs.n_microbatches
    if any(low >= high for low, high in itertools.pairwise(bounds)) or any(bound < 1 for bound in bounds):
        raise UsageError(f"queues at {', '.join(map(str, bounds))} tokens; expected thresholds of 1 or more that rise")
    queues: list[list[int]] = [[] for _ in bounds]
    waiting: list[int] = []
    for batch, arriving in docs.arriving():
        for doc in arriving:
            level = bisect.bisect_right(bounds, docs.lengths[doc])
            (queues[level - 1] if level else waiting).append(doc)
        for queue in queues:
            if len(queue) >= n_microbatches:
                waiting += queue[:n_microbatches]
                del queue[:n_microbatches]
        waiting.sort(key=docs.rank.__getitem__)
        waiting = _fill(docs, waiting, batch)
    return docs.packing()


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
