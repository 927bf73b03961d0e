"""Which document is trained in which microbatch of which global batch; what all packers share.

Enters: lengths of documents and the global batch in which each arrives. Leaves: a `Packing`.
"""

import dataclasses
from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np

from diagnose.errors import UsageError
from diagnose.model.trace import Ints
from diagnose.packing.cost import Cost

#: Batch and microbatch of a document that still waits when the data ends.
WAITING = -1
#: Tokens beyond this are damage.
_MAX_TOKENS = 2**40
#: Microbatches of all batches together; beyond it the tables would not fit in memory.
_MAX_MICROBATCHES = 100_000_000


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class Packing:
    """Where every document goes."""

    #: Shape (n_docs,). Tokens, and global batch in which the document arrives; as the packer was given them.
    lengths: Ints
    arrives: Ints
    #: Shape (n_docs,). Where it is trained; -1 where it still waits after the last batch.
    batch: Ints
    microbatch: Ints
    #: Global batches, and microbatches in each (all data-parallel ranks together).
    n_batches: int
    n_microbatches: int
    #: Of an exact packer: problems solved, and how many of them to a proven optimum. None where nothing is proven.
    n_windows: int | None = None
    n_proven: int | None = None


@dataclasses.dataclass(slots=True)
class Documents:
    """Checked input of a packer, as lists where loops walk over them."""

    length_array: Ints
    arrival_array: Ints
    #: Tokens and cost of each document.
    lengths: list[int]
    costs: list[float]
    #: Place of each document when all are sorted longest first, ties by index.
    rank: list[int]
    n_batches: int
    n_microbatches: int
    max_tokens: int
    batch: Ints
    microbatch: Ints

    def arriving(self, together: int = 1) -> Iterator[tuple[int, list[int]]]:
        """Give the first batch of every run of so many batches, and the documents that arrive in the run."""
        order = np.argsort(self.arrival_array, kind="stable")
        starts = range(0, self.n_batches, together)
        bounds = np.searchsorted(self.arrival_array[order], [*starts, self.n_batches])
        for n, start in enumerate(starts):
            yield start, order[bounds[n] : bounds[n + 1]].tolist()

    def place(self, batch: int, placed: dict[int, int]) -> None:
        """Note the microbatch of each of some documents of a batch."""
        for doc, bin_ in placed.items():
            self.batch[doc], self.microbatch[doc] = batch, bin_

    def packing(self, *, n_windows: int | None = None, n_proven: int | None = None) -> Packing:
        """Give what has been placed as a packing."""
        for array in (self.batch, self.microbatch):
            array.setflags(write=False)
        return Packing(
            self.length_array,
            self.arrival_array,
            self.batch,
            self.microbatch,
            self.n_batches,
            self.n_microbatches,
            n_windows,
            n_proven,
        )


@dataclasses.dataclass(slots=True)
class Bins:
    """Microbatches being filled: cost and tokens of each so far."""

    costs: list[float]
    tokens: list[int]

    @classmethod
    def empty(cls, n: int) -> "Bins":
        """Give so many empty ones."""
        return cls([0.0] * n, [0] * n)

    def add(self, bin_: int, cost: float, tokens: int) -> None:
        """Put a document into one."""
        self.costs[bin_] += cost
        self.tokens[bin_] += tokens

    def cheapest_with_room(self, tokens: int, max_tokens: int) -> int:
        """Give the cheapest one that takes so many tokens more, the first of equals; -1 where none does."""
        cheapest = self.costs.index(min(self.costs))
        if self.tokens[cheapest] + tokens <= max_tokens:
            return cheapest
        limit = max_tokens - tokens
        return min((n for n, used in enumerate(self.tokens) if used <= limit), key=self.costs.__getitem__, default=-1)

    def fill(
        self, docs: Documents, ordered: Iterable[int], *, room: int | None = None
    ) -> tuple[dict[int, int], list[int]]:
        """Put each document into the cheapest one with room for it; give the one of each, and what fits nowhere.

        The room of each is what a microbatch holds where left out.
        """
        room = docs.max_tokens if room is None else room
        placed: dict[int, int] = {}
        waiting: list[int] = []
        for doc in ordered:
            bin_ = self.cheapest_with_room(docs.lengths[doc], room)
            if bin_ < 0:
                waiting.append(doc)
                continue
            self.add(bin_, docs.costs[doc], docs.lengths[doc])
            placed[doc] = bin_
        return placed, waiting


def check_documents(
    lengths: Any, arrives: Any, n_microbatches: int, cost: Cost, max_tokens: int, *, n_batches: int | None = None
) -> Documents:
    """Check what is to be packed; each packer needs documents of its own, as it notes in them where they go.

    Parameters
    ----------
    lengths : array_like of int, shape (n_docs,)
        Tokens, 1 or more, none above `max_tokens`.
    arrives : array_like of int, shape (n_docs,)
        Global batch in which each arrives, 0 or more, in any order.
    n_microbatches : int
        Microbatches of a global batch, all data-parallel ranks together.
    max_tokens : int
        Tokens that a microbatch may hold.
    n_batches : int, optional
        Global batches to form; up to the last in which a document arrives when left out.

    Raises
    ------
    UsageError
        Anything else.
    """
    tokens, batches = _whole(lengths, "lengths"), _whole(arrives, "arrives")
    if len(tokens) != len(batches):
        raise UsageError(f"{len(tokens)} document lengths and {len(batches)} arrivals; expected as many of each")
    if n_microbatches < 1 or max_tokens < 1:
        raise UsageError(
            f"{n_microbatches} microbatches of at most {max_tokens} tokens hold nothing; expected at least 1 of each"
        )
    needed = int(batches.max()) + 1 if len(batches) else 0
    n_batches = needed if n_batches is None else n_batches
    if len(tokens):
        _check_values(tokens, batches, max_tokens, n_batches)
    if n_batches < 0 or n_batches * n_microbatches > _MAX_MICROBATCHES:
        raise UsageError(f"{n_batches} batches of {n_microbatches} microbatches cannot be packed; expected fewer")
    order = np.argsort(-tokens, kind="stable")
    rank = np.empty(len(tokens), dtype=np.int64)
    rank[order] = np.arange(len(tokens))
    return Documents(
        tokens,
        batches,
        tokens.tolist(),
        cost.of(tokens).tolist(),
        rank.tolist(),
        n_batches,
        n_microbatches,
        max_tokens,
        np.full(len(tokens), WAITING, dtype=np.int64),
        np.full(len(tokens), WAITING, dtype=np.int64),
    )


def _whole(values: Any, name: str) -> Ints:
    """Take a column of whole numbers as a read-only copy."""
    array = np.asarray(values)
    if array.ndim != 1 or (len(array) and array.dtype.kind not in "iu"):
        raise UsageError(f"{name}: found {array.dtype} of shape {array.shape}; expected one column of whole numbers")
    if len(array) and int(array.max()) > _MAX_TOKENS:
        raise UsageError(f"{name}: {int(array.max())} is too large; expected at most {_MAX_TOKENS}")
    whole = array.astype(np.int64)
    whole.setflags(write=False)
    return whole


def _check_values(tokens: Ints, batches: Ints, max_tokens: int, n_batches: int) -> None:
    """Refuse lengths and arrivals that cannot be."""
    if tokens.min() < 1:
        raise UsageError(f"document {tokens.argmin()} has {tokens.min()} tokens; expected 1 or more")
    if tokens.max() > max_tokens:
        raise UsageError(
            f"document {tokens.argmax()} has {tokens.max()} tokens, and a microbatch holds {max_tokens}; "
            "cut documents first, or allow more"
        )
    if batches.min() < 0 or batches.max() >= n_batches:
        raise UsageError(f"arrivals from {batches.min()} to {batches.max()}; expected 0 to {n_batches - 1}")
