"""Read the documents of each microbatch: one list for all the compute rows that repeat it.

Enters: rows that are in their places, with the column of lists still in the file. Leaves: `Documents`, or None where nothing
is known. The column is read a piece at a time, and of each microbatch the list of the first stage that has one is kept; where
the file has no such column nothing is done.
"""

import dataclasses
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from diagnose.model.documents import Documents
from diagnose.model.optype import Op
from diagnose.model.trace import Bools, Ints, Nodes
from diagnose.trace.arrow_arrays import find_nulls, read_numbers
from diagnose.trace.list_column import LISTS, ListColumn
from diagnose.trace.rows import RowIndex, Rows

#: Longest document that is taken for one: what int32 holds.
MAX_TOKENS = 2**31 - 1
#: Sums that differ by more than this part are another number of tokens.
SAME_TOKENS_SHARE = 1e-6


@dataclasses.dataclass(frozen=True, slots=True)
class _Candidates:
    """Forward rows, by their number in the file; all arrays have shape (n_candidates,)."""

    row: Ints  # where the row stands in `Rows`
    number: Ints  # which row of the file it is, increasing
    key: Ints  # of its microbatch: (step x n_dp + dp) x n_microbatches + microbatch
    turn: Ints  # virtual stage: of several rows the one with the lowest is asked


def read_documents(
    rows: Rows, at: RowIndex, nodes: Nodes, sizes: tuple[int, int], *, warnings: list[str]
) -> Documents | None:
    """Read the documents of every microbatch that has a list; None where none of the rows has one.

    `rows` have neither duplicates nor earlier attempts, their `seq` is right, and `nodes` are their operations; `sizes` are the
    numbers of steps and dp ranks. `step` of the documents is an index.

    Raises
    ------
    TraceError
        The column is damaged.
    """
    if rows.lists is None or rows.number is None:
        return None
    n_microbatches = int(nodes.microbatch.max()) + 1
    candidates = _find_candidates(rows, at, nodes, sizes[1], n_microbatches)
    which, n_each, lengths, is_wrong = _read_lists(rows.lists, candidates)
    lane, microbatch = np.divmod(candidates.key[which], n_microbatches)
    step, dp = np.divmod(lane, sizes[1])
    found = Documents(step, dp, microbatch, np.r_[0, np.cumsum(n_each)], lengths)
    # Where a list was met after one of a later stage, the one of the earlier stage came last and counts.
    last = len(which) - 1 - np.unique(candidates.key[which][::-1], return_index=True)[1]
    if is_wrong[last].any():
        warnings.append(
            f"{int(is_wrong[last].sum())} lists of {LISTS} hold a negative length, a null or an absurd one; the documents of "
            "these microbatches are unknown"
        )
        last = last[~is_wrong[last]]
    if not len(last):
        return None
    found = found.take(last)
    if rows.tokens is not None:
        _compare_tokens(found, rows.tokens[candidates.row[which[last]]], warnings)
    return found


def _find_candidates(rows: Rows, at: RowIndex, nodes: Nodes, n_dp: int, n_microbatches: int) -> _Candidates:
    """List the forward rows with their microbatches, in the order of the file."""
    assert rows.seq is not None
    assert rows.number is not None
    n_stages, n_seq = int(nodes.stage.max()) + 1, int(nodes.seq.max()) + 1
    forwards = np.flatnonzero(nodes.op == Op.FORWARD)
    microbatch_of, turn_of = (np.full((n_stages, n_seq), -1, dtype=np.int64) for _ in range(2))
    place = nodes.stage[forwards], nodes.seq[forwards]
    microbatch_of[place] = nodes.microbatch[forwards]
    turn_of[place] = np.maximum(nodes.chunk[forwards], 0) * n_stages + nodes.stage[forwards]
    row = np.flatnonzero((rows.op == Op.FORWARD) & (rows.seq < n_seq))
    place = at[2][row], rows.seq[row]
    row, turn, microbatch = (
        values[microbatch_of[place] >= 0] for values in (row, turn_of[place], microbatch_of[place])
    )
    key = (at[0][row].astype(np.int64) * n_dp + at[1][row]) * n_microbatches + microbatch
    order = np.argsort(rows.number[row], kind="stable")
    return _Candidates(row[order], rows.number[row[order]].astype(np.int64), key[order], turn[order])


def _read_lists(lists: ListColumn, candidates: _Candidates) -> tuple[Ints, Ints, NDArray[np.int32], Bools]:
    """Read the list of the first stage that has one, for each microbatch; some of a later stage may come before it.

    Gives the candidate that each list is of, the number of its documents, and whether any of its lengths is none: shape
    (n_lists,) each, with the lengths of all documents third.
    """
    best = np.full(int(candidates.key.max(initial=-1)) + 1, np.iinfo(np.int64).max)
    found = [(np.zeros(0, np.int64), np.zeros(0, np.int64), np.zeros(0, np.int32), np.zeros(0, np.bool_))]
    for first, column in lists.batches():
        low, high = np.searchsorted(candidates.number, (first, first + len(column)))
        if low == high:
            continue
        there = ~find_nulls(column)
        which = np.arange(low, high)[there[candidates.number[low:high] - first]]
        which = which[candidates.turn[which] < best[candidates.key[which]]]
        which = which[np.argsort(candidates.turn[which], kind="stable")]
        which = which[np.unique(candidates.key[which], return_index=True)[1]]
        best[candidates.key[which]] = candidates.turn[which]
        found.append((which, *_take_lengths(column, candidates.number[which] - first)))
    which, n_each, lengths, is_wrong = (np.concatenate(parts) for parts in zip(*found, strict=True))
    return which, n_each, lengths, is_wrong


def _take_lengths(column: Any, rows: Ints) -> tuple[Ints, NDArray[np.int32], Bools]:
    """Take some lists out of a piece of the column: how many documents each has, their lengths, and which lists are wrong."""
    import pyarrow.compute as pc  # makes all of its functions when it is imported; only such jobs need it

    taken = column.take(pa.array(rows))
    n_each = read_numbers(pc.list_value_length(taken))[0].astype(np.int64)
    values = taken.flatten()
    if pa.types.is_null(values.type):
        numbers, odd = np.zeros(len(values), dtype=np.int64), np.ones(len(values), dtype=np.bool_)
    else:
        numbers, missing = read_numbers(values)
        odd = (numbers < 0) | (numbers > MAX_TOKENS)
        odd = odd if missing is None else odd | missing
    wrong = np.zeros(len(rows), dtype=np.bool_)
    wrong[np.repeat(np.arange(len(rows)), n_each)[odd]] = True
    return n_each, np.where(odd, 0, numbers).astype(np.int32), wrong


def _compare_tokens(documents: Documents, tokens: NDArray[Any], warnings: list[str]) -> None:
    """Warn where a microbatch's documents are not as long together as its tokens."""
    said = tokens.astype(np.float64)
    with np.errstate(invalid="ignore"):
        differs = np.abs(documents.tokens() - said) > SAME_TOKENS_SHARE * np.maximum(said, 1.0)
        differs &= said >= 0
    if differs.any():
        warnings.append(
            f"in {int(differs.sum())} of {len(documents)} microbatches {LISTS} does not add up to tokens; the documents are "
            "taken as they stand"
        )
