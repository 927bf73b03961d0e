"""Context-parallel sharding of one microbatch in plain loops: the oracle for `diagnose.fixes.shard_costs`.

Source: arXiv 2503.17924, sharding on the level of context parallelism.
"""

from collections.abc import Iterable, Sequence

import numpy as np

from diagnose.model.trace import Seconds
from diagnose.packing.cost import Cost
from diagnose.packing.sharding import Kernel

#: A kernel that loses nothing.
IDEAL = Kernel(tile=1, full_speed=1, slowest=1.0)
#: A rank, and what it has of a document: from one token to another.
Piece = tuple[int, int, int]


def shard_per_sequence(lengths: Sequence[int], cp: int, cost: Cost, kernel: Kernel) -> tuple[Seconds, Seconds]:
    """Cut the sequence of all documents into 2 x cp chunks; rank r takes the chunks r and 2 cp - 1 - r.

    Tokens that cannot be divided lengthen the first chunks by one. Gives the tokens and the costs of all ranks, shape (cp,), the
    loss of the kernel included, in the unit of `cost`.
    """
    size, rest = divmod(sum(lengths), 2 * cp)
    edges = [chunk * size + min(chunk, rest) for chunk in range(2 * cp + 1)]
    pieces, start = [], 0
    for length in lengths:
        for chunk in range(2 * cp):
            begin, end = max(edges[chunk], start), min(edges[chunk + 1], start + length)
            if begin < end:
                pieces.append((min(chunk, 2 * cp - 1 - chunk), begin - start, end - start))
        start += length
    return _add_up(pieces, cp, cost, kernel)


def shard_per_document(lengths: Sequence[int], cp: int, cost: Cost, kernel: Kernel) -> tuple[Seconds, Seconds]:
    """Cut every document into 2 x cp chunks; rank r takes the chunks r and 2 cp - 1 - r of each. Gives the same.

    Tokens of a document that cannot be divided are dealt to the ranks in turn, across documents, and start no tile of their own.
    """
    pieces: list[Piece] = []
    dealt: list[Piece] = []
    for length in lengths:
        size = length // (2 * cp)
        chunks = range(2 * cp if size else 0)
        pieces += [(min(chunk, 2 * cp - 1 - chunk), chunk * size, (chunk + 1) * size) for chunk in chunks]
        for token in range(2 * cp * size, length):
            dealt.append((len(dealt) % cp, token, token + 1))
    even, odd = _add_up(pieces, cp, cost, kernel), _add_up(dealt, cp, cost, IDEAL)
    return even[0] + odd[0], even[1] + odd[1]


def _add_up(pieces: Iterable[Piece], cp: int, cost: Cost, kernel: Kernel) -> tuple[Seconds, Seconds]:
    """Add up the tokens and the costs of the pieces of each rank."""
    rank, begin, end = np.array(list(pieces), dtype=np.int64).reshape(-1, 3).T
    queries = end - begin
    squares = queries * (begin + end) * kernel.loss(queries)  # twice the pairs under the causal mask
    tokens = np.bincount(rank, queries, cp)
    return tokens, cost.linear * tokens + cost.quadratic * np.bincount(rank, squares, cp)
