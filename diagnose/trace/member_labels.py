"""How the rows of a trace name the tensor- and context-parallel members of a worker.

Enters: rows with their columns of ranks. Leaves: `MemberLabels`, which number the member of each row.
"""

import dataclasses

import numpy as np
from numpy.typing import NDArray

from diagnose.model.trace import Ints
from diagnose.trace.labels import MAX_LABEL_RANGE, cut_rows, number_labels
from diagnose.trace.rows import GridSizes, RowIndex, Rows


@dataclasses.dataclass(frozen=True, slots=True)
class MemberLabels:
    """How the rows of a trace name the members of a worker.

    `tp` and `cp` are the distinct labels of the columns, None where a column is missing or the same in all rows. Where only
    global ranks tell members apart, `ranks` are all of them, increasing, and `member_of_rank` says which member of its worker
    each is.
    """

    tp: Ints | None
    cp: Ints | None
    ranks: Ints | None = None
    member_of_rank: Ints | None = None

    @property
    def n_tp(self) -> int | None:
        """Members along tensor parallelism, or along both where only ranks tell; None where there is one."""
        if self.member_of_rank is not None:
            return int(self.member_of_rank.max()) + 1
        return None if self.tp is None else len(self.tp)

    @property
    def n_cp(self) -> int | None:
        """Members along context parallelism; None where there is one, or not known."""
        return None if self.cp is None else len(self.cp)

    @property
    def n_members(self) -> int:
        """Members of each worker."""
        return (self.n_tp or 1) * (self.n_cp or 1)

    def number(self, rows: Rows) -> Ints:
        """Say which member each row is of, shape (n_rows,); a row that does not say counts as the first one's."""
        if self.ranks is not None and self.member_of_rank is not None and rows.rank is not None:
            return np.asarray(self.member_of_rank[_position(self.ranks, rows.rank)])
        member = np.zeros(len(rows), dtype=np.int64)
        if self.cp is not None and rows.cp_rank is not None:
            member += _position(self.cp, rows.cp_rank) * (self.n_tp or 1)
        if self.tp is not None and rows.tp_rank is not None:
            member += _position(self.tp, rows.tp_rank)
        return member


def find_member_labels(rows: Rows, at: RowIndex, sizes: GridSizes) -> MemberLabels | None:
    """Say how rows name members; None where each worker is recorded once."""
    labels = [None if column is None else _distinct(column) for column in (rows.tp_rank, rows.cp_rank)]
    tp, cp = (found if found is not None and len(found) > 1 else None for found in labels)
    if tp is not None or cp is not None:
        return MemberLabels(tp, cp)
    if rows.rank is None or rows.tp_rank is not None:
        return None
    return _group_of_ranks(rows.rank, at, sizes)


def _group_of_ranks(rank: NDArray[np.generic], at: RowIndex, sizes: GridSizes) -> MemberLabels | None:
    """Tell members apart by global rank, where every rank belongs to one worker and all workers have equally many."""
    n_workers = sizes[1] * sizes[2]
    low, high = int(rank.min()), int(rank.max())
    if high - low < MAX_LABEL_RANGE:
        there = np.zeros(high - low + 1, dtype=np.bool_)
        for some in cut_rows(len(rank)):
            there[rank[some] - low] = True
        if np.count_nonzero(there) <= n_workers:  # as nearly always: no need to number them
            return None
    ranks, index, _ = number_labels(rank)
    if len(ranks) <= n_workers or len(ranks) % n_workers:
        return None
    worker = at[1].astype(np.int64) * sizes[2] + at[2]
    pairs, _, _ = number_labels(worker * len(ranks) + index)
    owner, position = np.divmod(pairs, len(ranks))
    counts = np.bincount(owner, minlength=n_workers)
    if len(pairs) != len(ranks) or (counts != counts[0]).any():
        return None
    member_of_rank = np.empty(len(ranks), dtype=np.int64)
    member_of_rank[position] = np.arange(len(pairs)) % counts[0]
    return MemberLabels(None, None, ranks, member_of_rank)


def _distinct(column: NDArray[np.generic]) -> Ints:
    """List the labels of a column; a row without one has -1."""
    labels, _, _ = number_labels(column)
    return labels[labels >= 0]


def _position(labels: Ints, column: NDArray[np.generic]) -> Ints:
    """Give each value's position among some labels; 0 where it is none of them."""
    at = np.minimum(np.searchsorted(labels, column), len(labels) - 1)
    return np.asarray(np.where(labels[at] == column, at, 0))
