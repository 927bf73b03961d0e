"""How good a packing is: imbalance, delay, memory.

Enters: a `Packing` and a `Cost`. Leaves: a `Measured`.
"""

import dataclasses

import numpy as np

from diagnose.model.trace import Ints, Seconds
from diagnose.packing.cost import Cost
from diagnose.packing.plan import Packing


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class Measured:
    """What a packing costs and gives."""

    #: Shape (n_batches, n_microbatches). Cost of each microbatch.
    costs: Seconds
    #: Shape (n_batches, n_microbatches).
    tokens: Ints
    #: Largest over mean cost of the microbatches of a batch, 1 = balanced; over batches with documents, 1 where there is none.
    mean_imbalance: float
    max_imbalance: float
    #: Sum of the largest over sum of the mean costs: the same ratio with dear batches counting for what they cost.
    slowdown: float
    #: Share of all tokens that are trained in a later batch than the one in which they arrive, 0..1.
    delayed_share: float
    #: Batches that a token waits on average, all tokens counted, those without delay too. What still waits at the end
    #: counts as if trained in the batch after the last; what is trained early counts 0.
    mean_delay: float
    #: The same, each document counted once instead of by its tokens.
    mean_delay_documents: float
    #: Batches that the most delayed document waits.
    max_delay: int
    #: Batches that a token is trained before the one in which it would be without a packer; packers that read ahead only.
    mean_early: float
    #: What still waits after the last batch.
    waiting_documents: int
    waiting_tokens: int
    #: Tokens of the longest microbatch.
    max_tokens: int
    #: `max_tokens` over the window.
    memory_ratio: float


def measure(packing: Packing, cost: Cost, window: int) -> Measured:
    """Measure a packing; `window` are the tokens of a microbatch without a packer."""
    p = packing
    costs, tokens = sum_microbatches(p, cost)
    largest, mean = costs.max(axis=1, initial=0.0), costs.sum(axis=1) / p.n_microbatches
    used = tokens.sum(axis=1) > 0
    imbalance = largest[used] / mean[used]
    waits = p.batch < 0
    moved = np.where(waits, p.n_batches, p.batch) - p.arrives
    late, early = np.maximum(moved, 0), np.maximum(-moved, 0)
    all_tokens = max(int(p.lengths.sum()), 1)
    longest = int(tokens.max(initial=0))
    return Measured(
        costs,
        tokens,
        mean_imbalance=float(imbalance.mean()) if used.any() else 1.0,
        max_imbalance=float(imbalance.max()) if used.any() else 1.0,
        slowdown=float(largest[used].sum() / mean[used].sum()) if used.any() else 1.0,
        delayed_share=float(p.lengths[late > 0].sum()) / all_tokens,
        mean_delay=float((late * p.lengths).sum()) / all_tokens,
        mean_delay_documents=float(late.mean()) if len(late) else 0.0,
        max_delay=int(late.max(initial=0)),
        mean_early=float((early * p.lengths).sum()) / all_tokens,
        waiting_documents=int(waits.sum()),
        waiting_tokens=int(p.lengths[waits].sum()),
        max_tokens=longest,
        memory_ratio=longest / window,
    )


def sum_microbatches(packing: Packing, cost: Cost) -> tuple[Seconds, Ints]:
    """Add up cost and tokens of every microbatch; an empty one costs its fixed part where its batch has documents.

    Returns
    -------
    costs : ndarray of float64, shape (n_batches, n_microbatches)
    tokens : ndarray of int64, shape (n_batches, n_microbatches)
    """
    p = packing
    shape = (p.n_batches, p.n_microbatches)
    placed = p.batch >= 0
    bins = p.batch[placed] * p.n_microbatches + p.microbatch[placed]
    lengths = p.lengths[placed]
    size = shape[0] * shape[1]
    tokens = np.zeros(size, dtype=np.int64)
    np.add.at(tokens, bins, lengths)
    costs = np.bincount(bins, weights=cost.of(lengths), minlength=size).reshape(shape)
    tokens = tokens.reshape(shape)
    return costs + cost.fixed * (tokens.sum(axis=1, keepdims=True) > 0), tokens
