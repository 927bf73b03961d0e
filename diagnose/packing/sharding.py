"""How context parallelism shares out the documents of one microbatch, and what each way costs.

Enters: document lengths of a microbatch, number of context-parallel ranks, a `Cost`, a `Kernel`. Leaves: a `Sharding`.

Causal attention makes the end of a document dearer than its beginning. Cutting the whole *sequence* into 2 x cp chunks and
giving rank r the chunks r and 2 cp - 1 - r evens that out for one document, but not for several: the rank whose chunks hold
the ends of long documents works longest. Cutting every *document* in this way is even for any documents, but makes short
chunks, on which attention kernels are slow. *Adaptive* predicts both and takes the faster one, microbatch by microbatch.

Source: arXiv 2503.17924, sharding on the level of context parallelism.
"""

import dataclasses
import math
from collections.abc import Iterable
from typing import Any

import numpy as np

from diagnose.errors import UsageError
from diagnose.model.trace import Ints, Seconds
from diagnose.packing.cost import Cost

PER_SEQUENCE = "per-sequence"
PER_DOCUMENT = "per-document"


@dataclasses.dataclass(frozen=True, slots=True)
class Kernel:
    """How an attention kernel slows down on chunks with few queries.

    Attributes
    ----------
    tile : int
        Queries that are computed together: a chunk costs as if its queries were rounded up to a multiple. 128 is the tile of
        FlashAttention on Hopper GPUs.
    full_speed : int
        Queries from which on a chunk runs at full speed. Below it keys and values that are loaded serve few tiles. 256: two tiles.
    slowest : float
        Speed of a chunk of a single tile or less, as part of full speed; in between it rises linearly with the queries.

    Notes
    -----
    time = 2 x quadratic x pairs x (queries rounded up / queries) / speed(queries), pairs being those of query and key that the
    causal mask of a document lets attend. The two effects are those that arXiv 2503.17924 names for short chunks; the numbers
    are defaults to be replaced by measured ones, for kernels differ.
    """

    tile: int = 128
    full_speed: int = 256
    slowest: float = 0.75

    def __post_init__(self) -> None:
        if self.tile < 1 or self.full_speed < self.tile or not 0 < self.slowest <= 1:
            raise UsageError(
                f"a kernel with tiles of {self.tile}, full speed from {self.full_speed} queries on and a least speed of "
                f"{self.slowest:g} makes no sense; expected 1 <= tile <= full_speed and 0 < slowest <= 1"
            )

    def loss(self, queries: Ints) -> Seconds:
        """Say how many times longer a chunk takes for its work than a long one, 1 = no loss.

        Parameters
        ----------
        queries : ndarray of int64
            1 or more.

        Returns
        -------
        ndarray of float64, same shape

        >>> Kernel().loss(np.array([16, 128, 192, 256, 300])).round(2).tolist()
        [10.67, 1.33, 1.52, 1.0, 1.28]
        """
        padded = np.ceil(queries / self.tile) * self.tile
        part = np.clip((queries - self.tile) / max(self.full_speed - self.tile, 1), 0.0, 1.0)
        part = np.where(queries >= self.full_speed, 1.0, part)
        loss: Seconds = padded / queries / (self.slowest + (1.0 - self.slowest) * part)
        return loss


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
    cost : Cost
    kernel : Kernel, optional
        The default one when left out.

    Returns
    -------
    Sharding
        A document that crosses chunks is a piece in each; tokens that cannot be divided lengthen the first chunks by one.
    """
    docs = _check(lengths, cp)
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
    docs = _check(lengths, cp)
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


def shard_adaptive(lengths: Any, cp: int, cost: Cost, kernel: Kernel | None = None) -> Sharding:
    """Predict both ways for this microbatch and take the one whose slowest rank is faster; per sequence where they are equal.

    Parameters
    ----------
    lengths, cp, cost, kernel
        As in `shard_per_sequence`.

    Returns
    -------
    Sharding
    """
    ways = (shard_per_sequence(lengths, cp, cost, kernel), shard_per_document(lengths, cp, cost, kernel))
    return min(ways, key=lambda sharding: sharding.slowest)


@dataclasses.dataclass(frozen=True, slots=True)
class ShardingTotals:
    """What each way costs over many microbatches.

    Attributes
    ----------
    per_sequence, per_document, adaptive : float
        Sum over microbatches of the slowest rank's cost.
    balanced : float
        The same if every rank had the mean and no chunk were short: what no way can beat.
    per_sequence_loss, per_document_loss : float
        Part of the attention time that goes to short chunks, mean over microbatches, 0..1.
    per_document_share : float
        Part of the microbatches for which adaptive chose to cut documents.
    n_microbatches : int
    """

    per_sequence: float
    per_document: float
    adaptive: float
    balanced: float
    per_sequence_loss: float
    per_document_loss: float
    per_document_share: float
    n_microbatches: int


def compare_sharding(microbatches: Iterable[Any], cp: int, cost: Cost, kernel: Kernel | None = None) -> ShardingTotals:
    """Cost many microbatches in all three ways.

    Parameters
    ----------
    microbatches : iterable of array_like of int
        Document lengths of each.
    cp, cost, kernel
        As in `shard_per_sequence`.
    """
    rows = []
    for lengths in microbatches:
        sequence, document = (
            shard_per_sequence(lengths, cp, cost, kernel),
            shard_per_document(lengths, cp, cost, kernel),
        )
        rows.append(
            (
                sequence.slowest,
                document.slowest,
                min(sequence.slowest, document.slowest),
                float(cost.of(lengths).sum()) / cp,
                sequence.kernel_loss,
                document.kernel_loss,
                float(document.slowest < sequence.slowest),
            )
        )
    if not rows:
        return ShardingTotals(0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0)
    table = np.array(rows)
    sums, means = table.sum(axis=0).tolist(), table.mean(axis=0).tolist()
    return ShardingTotals(sums[0], sums[1], sums[2], sums[3], means[4], means[5], means[6], len(rows))


def _check(lengths: Any, cp: int) -> Ints:
    """Refuse what cannot be shared out."""
    docs = np.asarray(lengths)
    if cp < 1:
        raise UsageError(f"{cp} context-parallel ranks make no sense; expected 1 or more")
    if docs.ndim != 1 or (len(docs) and (docs.dtype.kind not in "iu" or docs.min() < 1)):
        raise UsageError("the documents of a microbatch are one column of whole numbers of 1 or more")
    return docs.astype(np.int64)


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
