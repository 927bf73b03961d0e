"""Number operations where rows were lost: counted by start alone, all that follow a lost row would pass for the one before.

Enters: rows whose `seq` was counted by start. Leaves: them, as their labels of microbatch and model chunk say; transfers, which
have none, as the compute says that had ended before them.
"""

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from diagnose.model.optype import DIRECTIONS, EVIDENCE, P2P, Op, of_types
from diagnose.model.trace import Ints
from diagnose.trace.labels import number_combinations
from diagnose.trace.rows import GridSizes, RowIndex, Rows, row_key


def number_by_labels(rows: Rows, at: RowIndex, sizes: GridSizes) -> Rows:
    """Leave out the numbers of lost rows, in workers and steps whose labels are those of a fuller one, in order, with gaps.

    Others stay counted: without labels, where a label comes twice, or where a worker runs in another order.
    """
    labels = [column for column in (rows.microbatch, rows.chunk, rows.position) if column is not None]
    if not labels or rows.seq is None:
        return rows
    key = row_key(rows, at, sizes)
    n_steps, n_dp, n_stages = sizes
    n_kinds = n_stages * len(Op)
    counts = np.bincount(key, minlength=n_steps * n_dp * n_kinds).reshape(n_steps * n_dp, n_kinds)
    op = np.arange(n_kinds) % len(Op)
    rows = _leave_gaps(rows, key, np.where(op < int(min(EVIDENCE)), counts, 0), lambda _: labels)
    return _leave_gaps(rows, key, np.where(of_types(op, P2P), counts, 0), lambda now: [_computed_before(now, key)])


def _computed_before(rows: Rows, key: Ints) -> Ints:
    """Name the last compute of its worker and step that had ended when each operation began, by type and number; 0 none."""
    assert rows.seq is not None
    is_compute = of_types(rows.op, DIRECTIONS)
    when_s = np.where(is_compute, rows.start_s + rows.duration_s, rows.start_s)
    worker = key // len(Op)
    order = np.lexsort((~is_compute, when_s, worker))
    name = np.where(is_compute, rows.seq * len(Op) + rows.op + 1, 0)[order]
    last = np.maximum.accumulate(np.where(name > 0, np.arange(len(order)), 0))
    first = np.searchsorted(worker[order], worker[order])  # of its worker and step
    found = np.zeros(len(order), dtype=np.int64)
    found[order] = np.where(last >= first, name[last], 0)
    return found


def _leave_gaps(rows: Rows, key: Ints, counts: Ints, find_labels: Callable[[Rows], Sequence[NDArray[Any]]]) -> Rows:
    """Number the rows of workers and steps with fewer of a type as those of the fullest with the same labels.

    `counts` has the shape (n_steps * n_dp, n_stages * n_types), 0 where a type is not asked about. Labels are found if needed.
    """
    assert rows.seq is not None
    n_kinds = counts.shape[1]
    short = (counts > 0) & (counts < counts.max(axis=0))
    if not short.any():
        return rows
    labels = find_labels(rows)
    fullest = np.zeros_like(short)
    fullest[counts.argmax(axis=0), np.arange(n_kinds)] = short.any(axis=0)
    in_short, in_fullest = (np.flatnonzero(where.reshape(-1)[key]) for where in (short, fullest))
    both = np.concatenate([in_fullest, in_short])
    label = number_combinations(key[both] % n_kinds, *(column[both] for column in labels))
    n_of_label = np.bincount(label[: len(in_fullest)], minlength=int(label.max()) + 1)
    seq_of_label = np.zeros(len(n_of_label), dtype=np.int64)
    seq_of_label[label[: len(in_fullest)]] = rows.seq[in_fullest]
    # In order of start, one worker, step and type after the other.
    order = np.lexsort((rows.seq[in_short], key[in_short]))
    of_row, lane, mine = in_short[order], key[in_short][order], label[len(in_fullest) :][order]
    number = seq_of_label[mine]
    wrong = n_of_label[mine] != 1
    wrong[1:] |= (lane[1:] == lane[:-1]) & (number[1:] <= number[:-1])
    is_known = ~np.isin(lane, lane[wrong])
    seq = rows.seq.copy()
    seq[of_row[is_known]] = number[is_known]
    return dataclasses.replace(rows, seq=seq)
