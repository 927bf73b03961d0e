"""Context-parallel sharding of one microbatch, piece by piece: the oracle for the shares that `diagnose.fixes.shard_costs` sums up.

Source: arXiv 2503.17924, sharding on the level of context parallelism.
"""

import dataclasses
import math
from typing import Any

import numpy as np

from diagnose.model.trace import Ints, Seconds
from diagnose.packing.cost import Cost
from diagnose.packing.sharding import PER_DOCUMENT, PER_SEQUENCE, Kernel


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class Sharding:
    """One way to share out a microbatch.

    Attributes
    ----------
    way : str
        `PER_SEQUENCE` or `PER_DOCUMENT`.
    costs : ndarray of float64, shape (cp,)
        Cost of each rank, the kernel's loss included, in the unit of the `Cost`; the fixed part is left out.
    tokens : ndarray of int64, shape (cp,)
        Tokens of each rank.
    kernel_loss : float
        Part of the attention time of all ranks that goes to short chunks, 0..1.
    """

    way: str
    costs: Seconds
    tokens: Ints
    kernel_loss: float

    @property
    def slowest(self) -> float:
        """Cost of the slowest rank: all wait for it."""
        return float(self.costs.max())

    @property
    def imbalance(self) -> float:
        """Largest over mean cost of a rank, 1 = balanced."""
        mean = float(self.costs.mean())
        return self.slowest / mean if mean > 0 else 1.0


def shard_per_sequence(lengths: Any, cp: int, cost: Cost, kernel: Kernel | None = None) -> Sharding:
    """Cut the sequence of all documents into 2 x cp chunks; rank r takes the chunks r and 2 cp - 1 - r.

    Parameters
    ----------
    lengths : array_like of int, shape (n_docs,)
        Documents of one microbatch, in order.
    cp : int
        Context-parallel ranks.
    kernel : Kernel, optional
        The default one when left out.

    Returns
    -------
    Sharding
        A document that crosses chunks is a piece in each; tokens that cannot be divided lengthen the first chunks by one.
    """
    docs = np.asarray(lengths, dtype=np.int64)
    ends = np.cumsum(docs)
    edges = np.unique(np.concatenate([[0], ends, _chunk_edges(int(ends[-1]) if len(ends) else 0, cp)]))
    begin, end = edges[:-1], edges[1:]
    doc = np.searchsorted(ends, begin, side="right")
    chunk = np.searchsorted(_chunk_edges(int(edges[-1]), cp), begin, side="right") - 1
    start = ends[doc] - docs[doc] if len(docs) else begin
    return _sum(PER_SEQUENCE, begin - start, end - start, _rank_of(chunk, cp), cp, cost, kernel or Kernel())


def shard_per_document(lengths: Any, cp: int, cost: Cost, kernel: Kernel | None = None) -> Sharding:
    """Cut every document into 2 x cp chunks; rank r takes the chunks r and 2 cp - 1 - r of each.

    Parameters
    ----------
    lengths, cp, cost, kernel
        As in `shard_per_sequence`.

    Returns
    -------
    Sharding
        Tokens of a document that cannot be divided are dealt to the ranks in turn, across documents, one each: no padding, and no
        rank has more than one token more than another. They join the rank's last chunk, so that they start no tile of their own.
    """
    docs = np.asarray(lengths, dtype=np.int64)
    size, rest = np.divmod(docs, 2 * cp)
    chunk = np.tile(np.arange(2 * cp), len(docs))
    begin = chunk * np.repeat(size, 2 * cp)
    end = begin + np.repeat(size, 2 * cp)
    rank = _rank_of(chunk, cp)
    even = _sum(PER_DOCUMENT, begin, end, rank, cp, cost, kernel or Kernel())
    # the tokens left over: token i of all that are left goes to rank i mod cp
    doc = np.repeat(np.arange(len(docs)), rest)
    within = np.arange(len(doc)) - np.repeat(np.cumsum(rest) - rest, rest)
    position = 2 * cp * size[doc] + within
    odd_rank = np.arange(len(doc)) % cp
    odd = cost.linear + 2.0 * cost.quadratic * (position + 0.5)
    costs = even.costs + np.bincount(odd_rank, weights=odd, minlength=cp)
    tokens = even.tokens + np.bincount(odd_rank, minlength=cp)
    attention = float((even.costs - cost.linear * even.tokens).sum())
    more = float((odd - cost.linear).sum())
    share = even.kernel_loss * attention / (attention + more) if attention + more > 0 else 0.0
    return Sharding(PER_DOCUMENT, costs, tokens, share)


def _chunk_edges(tokens: int, cp: int) -> Ints:
    """Give the 2 x cp + 1 edges of nearly equal chunks."""
    size, rest = divmod(tokens, 2 * cp)
    chunks = np.arange(2 * cp + 1, dtype=np.int64)
    edges: Ints = chunks * size + np.minimum(chunks, rest)
    return edges


def _rank_of(chunk: Ints, cp: int) -> Ints:
    """Say which rank takes each chunk."""
    rank: Ints = np.minimum(chunk, 2 * cp - 1 - chunk)
    return rank


def _sum(way: str, begin: Ints, end: Ints, rank: Ints, cp: int, cost: Cost, kernel: Kernel) -> Sharding:
    """Add up the pieces of each rank; `begin` and `end` count from the start of their documents."""
    some = end > begin
    begin, end, rank = begin[some], end[some], rank[some]
    queries = end - begin
    squares = (end - begin) * (end + begin).astype(
        np.float64
    )  # twice the pairs under the causal mask: d^2 for a whole document
    plain = cost.quadratic * squares
    slow = plain * kernel.loss(queries)
    tokens: Ints = np.zeros(cp, dtype=np.int64)
    np.add.at(tokens, rank, queries)
    costs: Seconds = np.zeros(cp)
    np.add.at(costs, rank, slow)
    costs += cost.linear * tokens
    total = float(slow.sum())
    lost = 1.0 - float(plain.sum()) / total if total > 0 and math.isfinite(total) else 0.0
    return Sharding(way, costs, tokens, lost)
