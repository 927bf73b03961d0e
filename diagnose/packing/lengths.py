"""A stream of documents, cut into global batches.

Enters: lengths of whole documents. Leaves: the lengths of the pieces and the global batch in which each arrives.
"""

import dataclasses

import numpy as np

from diagnose.errors import UsageError
from diagnose.model.trace import Ints

#: The window of the published table.
WINDOW = 131_072
#: Global batches a file may make; beyond it the packers would take hours.
_MAX_BATCHES = 1_000_000


@dataclasses.dataclass(frozen=True, slots=True)
class Stream:
    """Documents in the order in which they are read."""

    #: Shape (n_docs,). Tokens, none above the window.
    lengths: Ints
    #: Shape (n_docs,). Global batch that each would be trained in without any packer: 0, 1, 2, ...
    arrives: Ints
    n_batches: int
    #: Tokens at the end that fill no whole global batch, left out.
    tokens_left: int = 0


def cut_stream(lengths: Ints, n_microbatches: int, *, window: int, n_batches: int | None = None) -> Stream:
    """Lay documents one after the other and cut them at every multiple of the window.

    Parameters
    ----------
    lengths : ndarray of int, shape (n,)
        Tokens of whole documents, in the order of the data.
    n_microbatches : int
        Of a global batch, all data-parallel ranks together.
    window : int
        Tokens of a microbatch.
    n_batches : int, optional
        Global batches to make; as many as the documents fill when left out.

    Returns
    -------
    Stream
        A document that crosses a window is two or more documents from here on: its parts do not attend to each other. Each global
        batch holds exactly `n_microbatches * window` tokens.

    Raises
    ------
    UsageError
        A number is below 1, or there are too many tokens.

    >>> cut_stream(np.array([3, 9, 4]), 2, window=4).lengths.tolist()
    [3, 1, 4, 4, 4]
    """
    if n_microbatches < 1 or window < 1:
        raise UsageError(f"{n_microbatches} microbatches of {window} tokens make no batch; expected at least 1 of each")
    lengths = np.asarray(lengths, dtype=np.int64)
    if len(lengths) and lengths.min() < 1:
        raise UsageError(f"a document of {lengths.min()} tokens makes no sense; expected lengths of 1 or more")
    ends = np.cumsum(lengths)
    total = int(ends[-1]) if len(ends) else 0
    per_batch = n_microbatches * window
    whole = total // per_batch
    n_batches = whole if n_batches is None else min(n_batches, whole)
    if n_batches > _MAX_BATCHES:
        raise UsageError(f"{n_batches:,} batches are more than {_MAX_BATCHES:,}; ask for fewer with --batches")
    used = n_batches * per_batch
    edges = np.unique(np.concatenate([[0], ends[ends < used], np.arange(0, used + 1, window)]))
    return Stream(np.diff(edges), edges[:-1] // per_batch, n_batches, total - used)
