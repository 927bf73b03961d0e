"""No packer: documents in their order, one microbatch after the other.

Enters: documents. Leaves: a `Packing`, the one that the others are compared with.
"""

from diagnose.packing.plan import Documents, Packing


def pack_original(docs: Documents) -> Packing:
    """Fill one microbatch after the other in the order of the data; what does not fit starts the next.

    On a stream from `cut_stream` with `max_tokens` its window, every microbatch is full and nothing is late: this is the reading of
    *original* in the published table.
    """
    n_microbatches, max_tokens = docs.n_microbatches, docs.max_tokens
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
