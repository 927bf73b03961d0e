"""Which documents each microbatch was made of, where the trace says so (`doc_lengths`)."""

import dataclasses

import numpy as np
from numpy.typing import NDArray


@dataclasses.dataclass(frozen=True, slots=True)
class Documents:
    """The documents of every microbatch that the trace knows, one list a (step, dp rank, microbatch), sorted by these.

    A microbatch whose documents are unknown is not among them; one that has an empty list held none.
    """

    #: Shape (n_lists,): step number.
    step: NDArray[np.int64]
    #: `dp`, `microbatch`: shape (n_lists,): indices, as in the blocks of a `Trace`.
    dp: NDArray[np.int64]
    microbatch: NDArray[np.int64]
    #: Shape (n_lists + 1,): where each list begins in `lengths`, and at last its end.
    offsets: NDArray[np.int64]
    #: Shape (n_documents,): tokens of each document.
    lengths: NDArray[np.int32]

    def __len__(self) -> int:
        return len(self.step)

    def list_of_document(self) -> NDArray[np.int64]:
        """Say to which list each document belongs, shape (n_documents,)."""
        return np.repeat(np.arange(len(self)), np.diff(self.offsets))

    def tokens(self) -> NDArray[np.float64]:
        """Add up the lengths of each list, shape (n_lists,)."""
        return np.asarray(np.bincount(self.list_of_document(), self.lengths, len(self)), dtype=np.float64)

    def tokens_sq(self) -> NDArray[np.float64]:
        """Add up the squared lengths of each list, shape (n_lists,)."""
        squares = self.lengths.astype(np.float64) ** 2
        return np.asarray(np.bincount(self.list_of_document(), squares, len(self)), dtype=np.float64)

    def take(self, lists: NDArray[np.int64]) -> "Documents":
        """Keep some lists, in the order given.

        >>> two = np.arange(2)
        >>> found = Documents(two, two, two, np.array([0, 2, 3]), np.array([7, 8, 9], dtype=np.int32))
        >>> found.take(np.array([1, 0])).lengths.tolist()
        [9, 7, 8]
        """
        n_each = np.diff(self.offsets)[lists]
        offsets = np.r_[0, np.cumsum(n_each)]
        at = np.repeat(self.offsets[lists] - offsets[:-1], n_each) + np.arange(offsets[-1])
        return Documents(self.step[lists], self.dp[lists], self.microbatch[lists], offsets, self.lengths[at])
