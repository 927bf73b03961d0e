"""A stream of documents, cut into global batches.

Enters: lengths of whole documents. Leaves: the lengths of the pieces and the global batch in which each arrives.
"""

import dataclasses

import numpy as np

from diagnose.model.trace import Ints

#: The window of the published table.
WINDOW = 131_072


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

    >>> cut_stream(np.array([3, 9, 4]), 2, window=4).lengths.tolist()
    [3, 1, 4, 4, 4]
    """
    ends = np.cumsum(np.asarray(lengths, dtype=np.int64))
    total = int(ends[-1]) if len(ends) else 0
    per_batch = n_microbatches * window
    whole = total // per_batch
    n_batches = whole if n_batches is None else min(n_batches, whole)
    used = n_batches * per_batch
    edges = np.unique(np.concatenate([[0], ends[ends < used], np.arange(0, used + 1, window)]))
    return Stream(np.diff(edges), edges[:-1] // per_batch, n_batches, total - used)
