"""Find steps that a file holds twice: of a job that was restarted the last attempt is kept, and two runs at a time are refused.

So are steps whose numbers fall while time goes on.

Enters: rows whose step, dp rank and stage are numbered. Leaves: the same without earlier attempts. Costs one pass where no
operation appears twice.
"""

import dataclasses
from typing import Any, NoReturn

import numpy as np
from numpy.typing import NDArray

from diagnose.errors import TraceError
from diagnose.model.optype import Op, of_types
from diagnose.model.trace import Evidence, Ints, Seconds
from diagnose.trace.dense import Dense
from diagnose.trace.member_labels import MemberLabels
from diagnose.trace.rows import GridSizes, RowIndex, Rows, derive_seq, row_key, take_index, take_rows

#: A step was run again when at least this part of its forwards is there twice.
DOUBLED_SHARE = 0.3
#: Between two attempts lies more than this many times what either of them lasted.
GAP_RATIO = 0.5
#: A forward that covers this part of another one of its worker is of another run: a worker computes one microbatch at a time.
COVERED_SHARE = 0.5
#: Part of the steps that must hold two runs at a time before the file is refused: fewer are left out.
OVERLAID_SHARE = 0.05
#: Forwards that are looked at for that: beyond these, every so many steps.
MAX_FORWARDS = 1_000_000
#: Steps, and ranges of them, that a message names.
MAX_NAMED = 4
#: Part of the steps run again whose second time comes before the first time of the next: more than any restarts make.
MIN_TURNS_SHARE = 0.5
#: Steps of which at least are needed to see that they run one after the other.
MIN_STEPS = 4
#: A step of one run hardly reaches into the next one: computes of its worker that do are of another run.
REACHES_SHARE = 0.5
#: Of at least so many steps most end before the one before them begins where numbers fall: no waits do that to so many.
MIN_FALLING, FALLING_SHARE = 8, 0.9
#: Cells of (step, dp rank, stage, forward) allowed for each forward row, and in any case.
MAX_CELLS_PER_FORWARD = 8
SPARE_CELLS = 100_000
#: A job that stands still for so many usual steps, and then for a step slower by such a factor, was started again.
STOP_STEPS, SLOW_START_RATIO = 10.0, 1.3
#: So was one that stands still for so many steps and seconds, however the next step is: to start processes, connect them and load
#: what was saved takes minutes, and who saves for thirty steps saves so seldom that hardly a recording has it, and one of them
#: says nothing of the cost. Recorded saves without rows took up to 8 steps, drawn ones up to 27. Where saves have rows, a stop
#: without one is none, and the steps are enough.
LONG_STOP_STEPS, LONG_STOP_S = 30.0, 60.0
#: No other stop is longer than this part of it, and no row tells of this part of it.
OTHER_STOPS_SHARE, TOLD_SHARE = 0.2, 0.5


def refuse_two_runs(rows: Rows, at: RowIndex, sizes: GridSizes, group: MemberLabels | None, *, name: str) -> None:
    """Refuse rows in which a worker runs two forwards of a step at a time: they are of two runs.

    Raises
    ------
    TraceError
        The steps are named.
    """
    n_steps, n_dp, n_stages = sizes
    forwards = np.flatnonzero(rows.op == int(Op.FORWARD))
    stride = -(-len(forwards) // MAX_FORWARDS)
    if stride > 1:
        forwards = forwards[at[0][forwards] % stride == 0]
    lane = (at[0][forwards].astype(np.int64) * n_dp + at[1][forwards]) * n_stages + at[2][forwards]
    if group is not None:
        lane = lane * group.n_members + group.number(rows)[forwards]
    start_s = rows.start_s[forwards].astype(np.float64)
    duration_s = rows.duration_s[forwards].astype(np.float64)
    step = at[0][forwards]
    if not _is_in_turn(lane, start_s):
        order = np.lexsort((start_s, lane))
        lane, start_s, duration_s, step = lane[order], start_s[order], duration_s[order], step[order]
    # The same row twice is a duplicate, and no second run.
    beside = (lane[1:] == lane[:-1]) & (start_s[1:] > start_s[:-1])
    covered_s = start_s[:-1] + duration_s[:-1] - start_s[1:]
    beside &= covered_s > COVERED_SHARE * np.minimum(duration_s[1:], duration_s[:-1])
    n_beside = np.bincount(step[1:][beside], minlength=n_steps)
    n_forwards = np.bincount(step, minlength=n_steps)
    overlaid = np.flatnonzero((n_beside > 0) & (n_beside >= DOUBLED_SHARE * n_forwards))
    if len(overlaid) and len(overlaid) >= OVERLAID_SHARE * np.count_nonzero(n_forwards):
        _refuse(_label_steps(rows, at, n_steps)[overlaid], "are there twice at the same time", name)


def _is_in_turn(lane: Ints, start_s: Seconds) -> bool:
    """Say whether rows come one lane after the other, each in the order of time, as most files have them."""
    begins = np.diff(lane, prepend=-1) != 0
    later = start_s[1:] >= start_s[:-1]
    return bool(np.bincount(lane[begins]).max(initial=0) <= 1 and later[~begins[1:]].all())


def refuse_falling_steps(dense: Dense, labels: Ints, *, name: str) -> None:
    """Refuse a file whose later steps come first, as where steps are counted down.

    Raises
    ------
    TraceError
        Two of the steps are named.
    """
    first_s, last_s = np.fmin.reduce(dense.start_s, axis=(0, 2)), np.fmax.reduce(dense.end_s, axis=(0, 2))
    falls = last_s[1:] < first_s[:-1]
    if len(labels) < MIN_FALLING or falls.mean() < FALLING_SHARE:
        return
    at = int(falls.argmax())
    raise TraceError(
        f"step {labels[at + 1]} ends before step {labels[at]} begins, and so on: steps are numbered against time; expected numbers "
        "that grow with time: if they count down, take them from the largest",
        where=name,
    )


def refuse_steps_at_a_time(dense: Dense, origin_s: Seconds | None, labels: Ints, *, name: str) -> None:
    """Refuse a file in which a worker runs steps at the same time: they are of two runs.

    `origin_s` is when each step began, None where times are of the step; `labels` are the numbers of the steps.

    Raises
    ------
    TraceError
        The steps are named.
    """
    computes = (dense.nodes.stage == 0) & of_types(dense.nodes.op, (Op.FORWARD, Op.BACKWARD))
    if origin_s is None or len(origin_s) < MIN_STEPS or not computes.any():
        return
    # The first rank of the first stage, or where its rows are lost the one that has most.
    dp = int(np.isfinite(dense.start_s[computes]).sum(axis=(0, 1)).argmax())
    begins = origin_s + np.fmin.reduce(dense.start_s[computes, :, dp], axis=0)
    ends = origin_s + np.fmax.reduce(dense.end_s[computes, :, dp], axis=0)
    order = np.argsort(begins, kind="stable")[: np.count_nonzero(np.isfinite(begins))]
    lasts = (ends - begins)[order]
    reach_s = np.maximum.accumulate(ends[order])[:-1] - begins[order[1:]]
    reaches = reach_s > REACHES_SHARE * np.minimum(np.median(lasts), lasts[1:])
    if np.count_nonzero(reaches) >= DOUBLED_SHARE * len(order):
        _refuse(labels[np.sort(order[1:][reaches])], "run at the same time as others", name)


def find_silent_restart(
    dense: Dense, evidence: Evidence, origin_s: Seconds | None, labels: Ints, warnings: list[str]
) -> tuple[int, ...]:
    """Find the step, by index, before which the job stood still once, far longer than ever, or then started slowly.

    Whoever starts a job again where a save ended leaves no step twice. `evidence` has rows of all types with times of their
    steps, which began at `origin_s`, None where times are of the step; `labels` are the numbers of the steps.
    """
    if origin_s is None or len(origin_s) < MIN_STEPS:
        return ()
    length_s = np.fmax.reduce(dense.end_s, axis=(0, 2))
    usual_s = float(np.nanmedian(length_s))
    stop_s = np.where(np.diff(labels) == 1, np.diff(origin_s) - length_s[:-1], 0.0)
    at = int(np.nan_to_num(stop_s).argmax())
    after, before = evidence.take(evidence.step == at), evidence.take(evidence.step == at + 1)
    told_s = max(
        (after.end_s - np.maximum(after.start_s, length_s[at])).max(initial=0.0),
        (np.minimum(before.end_s, 0.0) - before.start_s).max(initial=0.0),
    )
    starts_slowly = stop_s[at] > STOP_STEPS * usual_s and length_s[at + 1] > SLOW_START_RATIO * usual_s
    least_s = 0.0 if (evidence.op == Op.CHECKPOINT).any() else LONG_STOP_S
    if (
        not (starts_slowly or stop_s[at] > max(LONG_STOP_STEPS * usual_s, least_s))
        or np.nan_to_num(np.delete(stop_s, at)).max(initial=0.0) > OTHER_STOPS_SHARE * stop_s[at]
        or told_s > TOLD_SHARE * stop_s[at]
    ):
        return ()
    warnings.append(
        f"the job stood still for {stop_s[at]:.3g} s between steps {labels[at]} and {labels[at + 1]}, far longer than ever: taken "
        "for a restart, and for no part of the steps"
    )
    return (at + 1,)


def _refuse(steps: Ints, what: str, name: str) -> NoReturn:
    """Refuse two runs in one file, and name the steps."""
    raise TraceError(
        f"holds two runs: steps {describe_steps(steps)} {what}; expected the rows of one run: give each a file of "
        "its own, or name tp_rank where tensor-parallel ranks were recorded",
        where=name,
    )


def describe_steps(steps: Ints) -> str:
    """Name steps in ranges.

    >>> describe_steps(np.array([16, 17, 18, 40]))
    '16-18, 40'
    """
    runs = np.split(steps, np.flatnonzero(np.diff(steps) != 1) + 1)
    named = [f"{run[0]}-{run[-1]}" if len(run) > 1 else f"{run[0]}" for run in runs[:MAX_NAMED]]
    return ", ".join(named) + (", ..." if len(runs) > MAX_NAMED else "")


def _label_steps(rows: Rows, at: RowIndex, n_steps: int) -> Ints:
    """Give the number of each step, shape (n_steps,)."""
    labels = np.zeros(n_steps, dtype=np.int64)
    labels[at[0]] = rows.step
    return labels


def keep_last_attempt(
    rows: Rows, at: RowIndex, n_steps: int, warnings: list[str], *, name: str
) -> tuple[Rows, RowIndex, tuple[int, ...]]:
    """Drop all but the last attempt at each step.

    Steps whose attempts cannot be told apart by time are dropped, if they are less than half. Gives also the index of the first
    step of each attempt but the first, where it is known.

    Raises
    ------
    TraceError
        The attempts take turns: they are two runs at a time.
    """
    forwards = np.flatnonzero(rows.op == int(Op.FORWARD))
    again, goes_on = _steps_run_again(rows, at, forwards, rows.seq, n_steps), False
    if not len(again):
        # Where operations are counted on, microbatches begin anew. Evaluations have some, too, and no backwards.
        backwards = np.flatnonzero(rows.op == int(Op.BACKWARD))
        again, goes_on = _steps_run_again(rows, at, backwards, _number_microbatches(rows), n_steps), True
    if not len(again) or (goes_on and 2 * len(again) > n_steps):
        return rows, at, ()
    drop = np.zeros(len(rows), dtype=bool)
    n_unclear = 0
    first_s, last_s = np.full(n_steps, np.nan), np.full(n_steps, np.nan)
    for step in again.tolist():
        of_step = np.flatnonzero(at[0] == step)
        split_s = _find_split(rows, of_step)
        if split_s is None:
            n_unclear += 1
            drop[of_step] = True
        else:
            drop[of_step[rows.start_s[of_step] < split_s]] = True
            first_s[step], last_s[step] = rows.start_s[of_step].min(), split_s
    if 2 * n_unclear > n_steps or drop.all():
        return rows, at, ()  # the attempts cannot be told apart: the loader counts the operations again and warns
    labels = _label_steps(rows, at, n_steps)
    # After a restart no step begins for the first time before the one before it is run again.
    pairs = np.isfinite(last_s[:-1]) & np.isfinite(first_s[1:])
    turns = np.count_nonzero(last_s[:-1][pairs] < first_s[1:][pairs])
    if turns > MIN_TURNS_SHARE * np.count_nonzero(pairs):
        if goes_on:
            return rows, at, ()
        _refuse(labels[again], "are there twice, in turns", name)
    warnings.append(
        f"{len(again)} steps are in the file more than once (a restart, or two runs: {describe_steps(labels[again])}): the last "
        "attempt is analysed" + (f"; {n_unclear} whose attempts overlap in time are left out" if n_unclear else "")
    )
    rows, at = take_rows(rows, ~drop), take_index(at, ~drop)
    return (_count_anew(rows, at, again) if goes_on else rows), at, (int(again.min()),)


def _number_microbatches(rows: Rows) -> NDArray[Any] | None:
    """Number the microbatches of all chunks; None where the file does not."""
    if rows.microbatch is None or not len(rows):
        return None
    chunk = 0 if rows.chunk is None else np.unique(np.maximum(rows.chunk, 0), return_inverse=True)[1]
    every, number = np.unique(rows.microbatch, return_inverse=True)  # files may give any number
    return np.where(rows.microbatch >= 0, number + chunk * len(every), -1)


def _count_anew(rows: Rows, at: RowIndex, steps: Ints) -> Rows:
    """Count the operations of some steps from 0 on, where an attempt that is gone was counted with them."""
    if rows.seq is None:
        return rows
    of_steps = np.flatnonzero(np.isin(at[0], steps))
    seq = rows.seq.copy()
    sizes = (int(at[0].max()) + 1, int(at[1].max()) + 1, int(at[2].max()) + 1)
    key = row_key(rows, at, sizes)[of_steps]
    seq[of_steps] = derive_seq(key, rows.start_s[of_steps], rows.duration_s[of_steps])
    return dataclasses.replace(rows, seq=seq)


def _steps_run_again(rows: Rows, at: RowIndex, forwards: Ints, numbers: NDArray[Any] | None, n_steps: int) -> Ints:
    """Find the steps most of whose computes of a type, `forwards`, are there twice under the same number at different times."""
    seq = None if numbers is None else numbers[forwards]
    if seq is None or not len(seq) or seq.min() < 0:
        return np.zeros(0, dtype=np.int64)
    n_dp, n_stages, n_seq = (int(values.max()) + 1 for values in (at[1], at[2], seq))
    n_cells = n_steps * n_dp * n_stages * n_seq
    if n_cells > MAX_CELLS_PER_FORWARD * len(forwards) + SPARE_CELLS:
        return np.zeros(0, dtype=np.int64)  # damaged numbers; they are counted again later
    if n_cells == len(forwards):
        return np.zeros(0, dtype=np.int64)  # every forward once, or rows lost for each that is there twice
    cell = ((at[0][forwards].astype(np.int64) * n_dp + at[1][forwards]) * n_stages + at[2][forwards]) * n_seq
    cell += seq
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
