"""Find steps that a file holds twice, because the job was restarted from a checkpoint, and keep the last attempt.

Enters: rows whose step, dp rank and stage are numbered. Leaves: the same without earlier attempts. Costs one pass where no
operation appears twice.
"""

import numpy as np

from diagnose.model.optype import Op
from diagnose.model.trace import Ints
from diagnose.trace.rows import RowIndex, Rows, take_index, take_rows

#: A step was run again when at least this part of its forwards is there twice.
DOUBLED_SHARE = 0.3
#: Between two attempts lies more than this many times what either of them lasted.
GAP_RATIO = 0.5
#: Cells of (step, dp rank, stage, forward) allowed for each forward row, and in any case.
MAX_CELLS_PER_FORWARD = 8
SPARE_CELLS = 100_000


def keep_last_attempt(
    rows: Rows, at: RowIndex, n_steps: int, warnings: list[str]
) -> tuple[Rows, RowIndex, tuple[int, ...]]:
    """Drop all but the last attempt at each step.

    Steps whose attempts cannot be told apart by time are dropped, if they are less than half. Gives also the index of the first
    step of each attempt but the first, where it is known.
    """
    forwards = np.flatnonzero(rows.op == Op.FORWARD)
    if rows.seq is None or not len(forwards) or rows.seq[forwards].min() < 0:
        return rows, at, ()
    again = _steps_run_again(rows, at, forwards, n_steps)
    if not len(again):
        return rows, at, ()
    drop = np.zeros(len(rows), dtype=bool)
    n_unclear = 0
    for step in again.tolist():
        of_step = np.flatnonzero(at[0] == step)
        split_s = _find_split(rows, of_step)
        if split_s is None:
            n_unclear += 1
            drop[of_step] = True
        else:
            drop[of_step[rows.start_s[of_step] < split_s]] = True
    if 2 * n_unclear > n_steps or drop.all():
        return rows, at, ()  # the attempts cannot be told apart: the loader counts the operations again and warns
    warnings.append(
        f"{len(again)} steps are in the file more than once (a restart): the last attempt is analysed"
        + (f"; {n_unclear} whose attempts overlap in time are left out" if n_unclear else "")
    )
    return take_rows(rows, ~drop), take_index(at, ~drop), (int(again.min()),)


def _steps_run_again(rows: Rows, at: RowIndex, forwards: Ints, n_steps: int) -> Ints:
    """Find the steps most of whose forwards are there twice under the same number, at different times."""
    if rows.seq is None:
        return np.zeros(0, dtype=np.int64)
    n_dp, n_stages, n_seq = (int(values.max()) + 1 for values in (at[1], at[2], rows.seq[forwards]))
    n_cells = n_steps * n_dp * n_stages * n_seq
    if n_cells > MAX_CELLS_PER_FORWARD * len(forwards) + SPARE_CELLS:
        return np.zeros(0, dtype=np.int64)  # damaged numbers; they are counted again later
    if n_cells == len(forwards):
        return np.zeros(0, dtype=np.int64)  # every forward once, or rows lost for each that is there twice
    cell = ((at[0][forwards].astype(np.int64) * n_dp + at[1][forwards]) * n_stages + at[2][forwards]) * n_seq
    cell += rows.seq[forwards]
    counts = np.bincount(cell)
    if counts.max() <= 1:
        return np.zeros(0, dtype=np.int64)
    # The same row twice is a duplicate and no second attempt: that one starts at another time.
    suspects = counts[cell] > 1
    starts = np.unique(np.stack([cell[suspects].astype(np.float64), rows.start_s[forwards][suspects]]), axis=1)[0]
    doubled = np.unique(starts[1:][starts[1:] == starts[:-1]]).astype(np.int64)
    per_step = np.bincount(doubled // (n_dp * n_stages * n_seq), minlength=n_steps)
    there = np.bincount(np.flatnonzero(counts > 0) // (n_dp * n_stages * n_seq), minlength=n_steps)
    return np.flatnonzero(per_step >= np.maximum(DOUBLED_SHARE * there, 1.0))


def _find_split(rows: Rows, of_step: Ints) -> float | None:
    """Say when the last attempt at a step began; None where no gap in time parts it from the one before."""
    start_s = np.sort(rows.start_s[of_step].astype(np.float64))
    gap_s = np.diff(start_s)
    if not len(gap_s):
        return None
    at = int(gap_s.argmax())
    longest = max(start_s[at] - start_s[0], start_s[-1] - start_s[at + 1])
    return float(start_s[at + 1]) if gap_s[at] > GAP_RATIO * longest else None
