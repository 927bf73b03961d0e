"""No packer: documents in their order, one microbatch after the other.

Enters: lengths and arrivals of documents. Leaves: a `Packing`, the one that the others are compared with.
"""

from typing import Any

from diagnose.packing.cost import Cost
from diagnose.packing.plan import Packing, check_documents


def pack_original(
    lengths: Any, arrives: Any, n_microbatches: int, cost: Cost, max_tokens: int, *, n_batches: int | None = None
) -> Packing:
    """Fill one microbatch after the other in the order of the data; what does not fit starts the next.

    Parameters
    ----------
    lengths, arrives, n_microbatches, cost, max_tokens, n_batches
        See `plan.check_documents`.

    Returns
    -------
    Packing
        On a stream from `cut_stream` with `max_tokens` its window, every microbatch is full and nothing is late: this is the
        reading of *original* in the published table.
    """
    docs = check_documents(lengths, arrives, n_microbatches, cost, max_tokens, n_batches=n_batches)
    bin_, used = -1, max_tokens  # counted over all batches
    for start, arriving in docs.arriving():
        for doc in arriving:
            tokens = docs.lengths[doc]
            if bin_ < start * n_microbatches:
                bin_, used = start * n_microbatches, 0
            if used + tokens > max_tokens:
                bin_, used = bin_ + 1, 0
            if bin_ >= docs.n_batches * n_microbatches:
                return docs.packing()
            docs.batch[doc], docs.microbatch[doc] = divmod(bin_, n_microbatches)
            used += tokens
    return docs.packing()
