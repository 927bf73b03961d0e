"""What every context-parallel rank has to do of each microbatch, under each way to shard; all microbatches at once.

Enters: documents. Leaves: tokens, and squared tokens with the loss of short chunks, of each rank. Costs a few passes over the
documents and chunks, and a sort of both.
"""

import dataclasses
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from diagnose.model.documents import Documents
from diagnose.model.trace import Ints, Seconds
from diagnose.packing.cost import Cost
from diagnose.packing.sharding import Kernel

#: Pieces worked on at a time.
MAX_PIECES = 2_000_000


@dataclasses.dataclass(frozen=True, slots=True)
class Shares:
    """What each rank has to do."""

    #: Shape (n_lists, cp).
    tokens: Seconds
    #: Shape (n_lists, cp): twice the pairs of query and key that attend, times the loss of the kernel on short chunks.
    squares: Seconds
    #: Shape (n_lists,): the same over all ranks without that loss: the sum of squared lengths.
    plain: Seconds

    def slowest(self, cost: Cost) -> Seconds:
        """Give the cost of the slowest rank of each microbatch, shape (n_lists,): all wait for it."""
        return np.asarray((cost.linear * self.tokens + cost.quadratic * self.squares).max(axis=1))

    @property
    def kernel_loss_share(self) -> float:
        """Part of the attention that goes to short chunks, over all microbatches."""
        total = float(self.squares.sum())
        return 1.0 - float(self.plain.sum()) / total if total > 0 else 0.0


def share_sequences(documents: Documents, cp: int, kernel: Kernel) -> Shares:
    """Cut the sequence of each microbatch into 2 x cp chunks; rank r takes the chunks r and 2 cp - 1 - r.

    `cp` is the number of context-parallel ranks.
    """
    return _join([_share_sequences(part, cp, kernel) for part in _parts(documents, cp)], cp)


def share_documents(documents: Documents, cp: int, kernel: Kernel) -> Shares:
    """Cut every document into 2 x cp chunks; rank r takes the chunks r and 2 cp - 1 - r of each.

    Tokens that cannot be divided are dealt to the ranks in turn; they join a chunk, and start no tile of their own.

    `cp` is the number of context-parallel ranks.
    """
    return _join([_share_documents(part, cp, kernel) for part in _parts(documents, cp)], cp)


def _parts(documents: Documents, cp: int) -> Iterator[Documents]:
    """Cut the lists into parts of not too many pieces, so that memory stays small."""
    pieces = (documents.offsets + np.arange(len(documents) + 1)) * 2 * cp
    first = 0
    while first < len(documents):
        last = max(int(np.searchsorted(pieces, pieces[first] + MAX_PIECES, side="right")) - 1, first + 1)
        yield documents.take(np.arange(first, min(last, len(documents))))
        first = last


def _join(parts: Sequence[Shares], cp: int) -> Shares:
    """Put the parts together again."""
    empty = Shares(np.zeros((0, cp)), np.zeros((0, cp)), np.zeros(0))
    names = [field.name for field in dataclasses.fields(Shares)]
    return Shares(*(np.concatenate([getattr(part, name) for part in (empty, *parts)]) for name in names))


def _share_sequences(documents: Documents, cp: int, kernel: Kernel) -> Shares:
    """Do the work of `share_sequences` for a part of the lists."""
    lengths = documents.lengths.astype(np.int64)
    ends = np.cumsum(lengths)
    borders = np.r_[0, ends][documents.offsets]  # of the microbatches, in one long row of tokens
    size, rest = np.divmod(np.diff(borders), 2 * cp)
    number = np.arange(2 * cp)
    chunks = (
        borders[:-1, None] + number * size[:, None] + np.minimum(number, rest[:, None])
    ).ravel()  # where each begins
    edges = np.unique(np.concatenate([borders, ends, chunks]))
    begin, end = edges[:-1], edges[1:]
    start = (ends - lengths)[np.searchsorted(ends, begin, side="right")]
    chunk = np.searchsorted(chunks, begin, side="right") - 1
    of_list, number = np.divmod(chunk, 2 * cp)
    lane = of_list * cp + np.minimum(number, 2 * cp - 1 - number)
    queries = end - begin
    squares = queries * (begin + end - 2 * start) * kernel.loss(queries)
    return _add_up(documents, cp, lane, queries, squares)


def _share_documents(documents: Documents, cp: int, kernel: Kernel) -> Shares:
    """Do the work of `share_documents` for a part of the lists.

    The two chunks of a rank, of q tokens each, have 4 cp q^2 squares together, whichever rank it is.
    """
    of_document = documents.list_of_document()
    size, rest = np.divmod(documents.lengths.astype(np.int64), 2 * cp)
    squares = 4.0 * cp * size.astype(np.float64) ** 2 * kernel.loss(np.maximum(size, 1))
    even = [np.bincount(of_document, values, len(documents))[:, None] for values in (2.0 * size, squares)]
    # Tokens left over: the i-th of a microbatch goes to rank i mod cp.
    document = np.repeat(np.arange(len(size)), rest)
    first = np.cumsum(rest) - rest
    position = 2 * cp * size[document] + np.arange(len(document)) - first[document]
    left_before = np.r_[0, np.cumsum(rest)][documents.offsets[:-1]]
    turn = (np.arange(len(document)) - left_before[of_document[document]]) % cp
    more = _add_up(documents, cp, of_document[document] * cp + turn, np.ones(len(turn)), 2.0 * position + 1.0)
    return dataclasses.replace(more, tokens=more.tokens + even[0], squares=more.squares + even[1])


def _add_up(documents: Documents, cp: int, lane: Ints, tokens: NDArray[Any], squares: Seconds) -> Shares:
    """Add up the pieces of each rank of each list."""
    sums = [np.bincount(lane, values, len(documents) * cp).astype(np.float64) for values in (tokens, squares)]
    return Shares(sums[0].reshape(-1, cp), sums[1].reshape(-1, cp), documents.tokens_sq())
