"""Let one row stand for all tensor- and context-parallel members of a worker, and keep who of them was late.

Enters: rows of all members, in any order. Leaves: one row an operation, from where all members can start to the last end on the
clock of the first member, and `Members`. Costs one sort of the rows (N log N for N operations of all members) and a few passes;
keeps a few numbers for each step and member. A trace without members never comes here.

A constant difference between two members is a difference of their clocks, or one of them is always late: a row alone cannot tell.
But a late member is late on one side only. Members either start together, and whoever computes slowly ends late; or they wait for
each other within the operation, end together, and whoever was held up started late. The side on which their differences vary least
is the one on which they meet; it shows the clocks, and the other side, clocks taken out, shows who is late. Members of one host
have one clock.
"""

import dataclasses

import numpy as np

from diagnose.model.columns import begins_run
from diagnose.model.members import Members
from diagnose.model.optype import DIRECTIONS, EVIDENCE, Op, of_types
from diagnose.model.trace import Bools, Ints, Seconds
from diagnose.trace.dense import MAX_CELLS_PER_ROW
from diagnose.trace.member_labels import MemberLabels
from diagnose.trace.rows import GridSizes, RowIndex, Rows, derive_seq, row_key, take_index, take_rows

#: More members than any group has: the labels are damaged, and nothing is said of single ones.
MAX_MEMBERS = 1024
#: A member that has less than this part of its worker's computes has lost its rows: the others are compared without it.
PRESENT_SHARE = 0.5
#: Rows that say the same member, type and number for more than this part: the numbers count something else.
MAX_REPEATED_SHARE = 0.1
#: Clocks that differ by less than this part of a compute are left as they are: the merged row is longer by no more than that.
CLOCK_SHARE = 0.005
#: Clocks drift slowly: they are compared over so many neighbouring steps.
CLOCK_STEPS = 5
#: Resolution of a float32 of seconds within a long step; differences below it are none.
TINY_S = 1e-6


def merge_members(
    rows: Rows, at: RowIndex, sizes: GridSizes, group: MemberLabels, steps: Ints, warnings: list[str]
) -> tuple[Rows, RowIndex, Members | None]:
    """Merge the rows of all members of a worker, clocks corrected: one row an operation.

    Of evidence, rows of members that overlap in time are one. `steps`, shape (n_steps,), are the numbers of the steps. The
    `Members` are None where the labels are damaged; their `wait_s` is not measured here.
    """
    member = group.number(rows)
    key = row_key(rows, at, sizes)
    seq = _count(rows, key, member, group.n_members, warnings)
    order = np.lexsort((member, seq, key))  # the group goes by its first member, in whatever order the rows come
    rows, at, member, key, seq = take_rows(rows, order), take_index(at, order), member[order], key[order], seq[order]
    rows = dataclasses.replace(
        rows, start_s=rows.start_s.astype(np.float64), duration_s=rows.duration_s.astype(np.float64), seq=seq
    )
    simulated = rows.op < int(min(EVIDENCE))
    first = np.flatnonzero(simulated & begins_run(key, seq))
    n_simulated = int(simulated.sum())
    members = None
    n_cells = max(len(first), sizes[0] * sizes[1] * sizes[2]) * group.n_members
    if group.n_members <= MAX_MEMBERS and n_cells <= MAX_CELLS_PER_ROW * len(rows):
        members, offset_s = _compare(rows, at, sizes, group, member, steps)
        if offset_s is not None:
            rows = dataclasses.replace(rows, start_s=rows.start_s - offset_s[(*at, member)])
    else:
        warnings.append(
            "tp_rank, cp_rank or rank name more members than there are rows for; none is looked at by itself"
        )
    # Evidence goes behind what is simulated: one stable partition, then runs are reduced.
    split = np.r_[np.flatnonzero(simulated), np.flatnonzero(~simulated)]
    place = np.cumsum(simulated) - 1
    end_s = (rows.start_s + rows.duration_s)[split[:n_simulated]]
    start_s = rows.start_s[split[:n_simulated]]
    if len(first):
        first_s = np.minimum.reduceat(start_s, place[first])
        last_s = np.maximum.reduceat(start_s, place[first])
        end_s = np.maximum.reduceat(end_s, place[first])
        place_of = np.ravel_multi_index(take_index(at, first), sizes)
        start_s = _find_starts(place_of, of_types(rows.op[first], DIRECTIONS), first_s, last_s, end_s)
    kept, evidence_s = _join_overlapping(rows, key, split[n_simulated:])
    keep = np.r_[first, kept]
    merged = dataclasses.replace(
        take_rows(rows, keep),
        start_s=np.r_[start_s, evidence_s[0]],
        duration_s=np.r_[end_s, evidence_s[1]] - np.r_[start_s, evidence_s[0]],
    )
    return merged, take_index(at, keep), members


def _count(rows: Rows, key: Ints, member: Ints, n_members: int, warnings: list[str]) -> Ints:
    """Number the operations of each member by type; again where the numbers of the file repeat."""
    own = key * n_members + member
    if rows.seq is None:
        return derive_seq(own, rows.start_s)
    seq = rows.seq.astype(np.int64)
    looked_at = np.flatnonzero(rows.op < int(min(EVIDENCE)))
    order = np.lexsort((seq[looked_at], own[looked_at]))
    own_at, seq_at = own[looked_at][order], seq[looked_at][order]
    repeated = np.count_nonzero((own_at[1:] == own_at[:-1]) & (seq_at[1:] == seq_at[:-1]))
    if repeated <= MAX_REPEATED_SHARE * len(looked_at):
        return seq
    warnings.append("seq_id repeats within the operations of a member; counted again by start time")
    return derive_seq(own, rows.start_s)


def _find_starts(place: Ints, is_compute: Bools, first_s: Seconds, last_s: Seconds, end_s: Seconds) -> Seconds:
    """Say when each merged operation starts, shape (n_operations,); `place` is its step and worker.

    A collective starts with the last member: until then the worker is not ready for it. A compute starts with the first one, but
    not before the compute before it has ended: members that do not wait for each other within computes are not in step.
    """
    start_s = np.where(is_compute, first_s, last_s)
    computes = np.flatnonzero(is_compute)
    computes = computes[np.lexsort((last_s[computes], place[computes]))]
    before, after = computes[:-1], computes[1:]
    overlap_s = np.where(place[before] == place[after], end_s[before] - first_s[after], 0.0)
    overlap_s[overlap_s < 2.0 * CLOCK_SHARE * (end_s - first_s)[after]] = 0.0  # clocks are off by as much
    start_s[after] = np.minimum(first_s[after] + overlap_s, last_s[after])
    return start_s


def _join_overlapping(rows: Rows, key: Ints, at: Ints) -> tuple[Ints, tuple[Seconds, Seconds]]:
    """Join evidence rows of one worker, step and type that overlap in time: the first row of each run, its start and end."""
    if not len(at):
        return at, (np.zeros(0), np.zeros(0))
    order = at[np.lexsort((rows.start_s[at], key[at]))]
    start_s, end_s = rows.start_s[order], rows.start_s[order] + rows.duration_s[order]
    is_key = begins_run(key[order])
    # The latest end so far within a key, by whole numbers: times of another key are always earlier.
    moments = np.unique(np.r_[start_s, end_s])
    base = (np.cumsum(is_key) - 1) * (len(moments) + 1)
    latest = np.maximum.accumulate(base + np.searchsorted(moments, end_s))
    begins = base + np.searchsorted(moments, start_s)
    first = np.flatnonzero(np.r_[True, is_key[1:] | (begins[1:] > latest[:-1])])
    return order[first], (start_s[first], np.maximum.reduceat(end_s, first))


@dataclasses.dataclass(frozen=True, slots=True)
class _ComputeTimes:
    """The computes of which all present members of the worker have a row; one entry a compute, by step and worker.

    `start_s`, `end_s` have shape (n_computes, n_members), NaN where a worker lacks a member; `first` is where the computes of each
    (step, worker) begin, `step`, `worker` say whose they are.
    """

    start_s: Seconds
    end_s: Seconds
    first: Ints
    step: Ints
    worker: Ints


def _compare(
    rows: Rows, at: RowIndex, sizes: GridSizes, group: MemberLabels, member: Ints, steps: Ints
) -> tuple[Members, Seconds | None]:
    """Compare members; `offset_s`, shape (n_steps, n_dp, n_stages, n_members), says what to take off their clocks."""
    n_workers, n_members = sizes[1] * sizes[2], group.n_members
    table = _lay_out(rows, at, sizes, member, n_members)
    shape = (sizes[0], n_workers, n_members)
    late_s, last_share = np.full(shape, np.nan), np.full(shape, np.nan)
    n_compared = np.zeros(shape[:2], dtype=np.int64)
    clock_s, tightness, starts_late = np.zeros(shape), np.full(n_workers, np.nan), np.zeros(n_workers, dtype=bool)
    correct = False
    ranks, hosts = _name_members(rows, at, sizes, member, n_members)
    if len(table.first):
        clock_s, tightness, starts_late = _find_clocks(table, shape)
        if hosts is not None:
            clock_s = _share_clocks(clock_s, hosts)
        segment = np.repeat(np.arange(len(table.first)), np.diff(np.r_[table.first, len(table.start_s)]))
        worker = table.worker[segment]
        side_s = np.where(starts_late[worker, None], table.start_s, table.end_s)
        side_s -= clock_s[table.step[segment], worker]
        counts = np.bincount(segment)
        where = (table.step, table.worker)
        late_s[where] = np.add.reduceat(_behind_others(side_s), table.first, axis=0) / counts[:, None]
        last_share[where] = np.add.reduceat(_is_last(side_s), table.first, axis=0) / counts[:, None]
        n_compared[where] = counts
        typical_s = np.nanmedian(table.end_s - table.start_s)
        off = np.abs(clock_s).max(axis=0) > max(CLOCK_SHARE * float(typical_s), TINY_S)
        correct = bool(off.any())
        clock_s = np.where(off, clock_s, 0.0)
    full, of_worker = (*sizes, n_members), (*sizes[1:], n_members)
    clock_s = clock_s.reshape(full)
    n_tp = group.n_tp or 1
    number = np.arange(n_members)
    members = Members(
        tp=None if group.tp is None else group.tp[number % n_tp],
        cp=None if group.cp is None else group.cp[number // n_tp],
        ranks=ranks,
        hosts=hosts,
        steps=steps,
        late_s=late_s.reshape(full),
        last_share=last_share.reshape(full),
        n_compared=n_compared.reshape(sizes),
        starts_late=starts_late.reshape(sizes[1:]),
        tightness=tightness.reshape(sizes[1:]),
        clock_s=np.median(clock_s, axis=0).reshape(of_worker),
        wait_s=None,
    )
    return members, clock_s if correct else None


def _find_clocks(table: _ComputeTimes, shape: tuple[int, int, int]) -> tuple[Seconds, Seconds, Bools]:
    """Say how far each member's clock is off, which `shape` this has; how sure that is, and who starts late, (n_workers,)."""
    sides = [_difference(side_s) for side_s in (table.start_s, table.end_s)]
    usual = [_segment_median(side, table.first) for side in sides]
    spread = [_spread(side, middle, table, shape[1]) for side, middle in zip(sides, usual, strict=True)]
    starts_late = spread[1] < spread[0]
    tightness = (np.maximum(*spread) + TINY_S) / (np.minimum(*spread) + TINY_S)
    clock_s, compared = np.zeros(shape), np.zeros(shape[:2], dtype=bool)
    clock_s[table.step, table.worker] = np.where(starts_late[table.worker, None], usual[1], usual[0])
    compared[table.step, table.worker] = True
    return _smooth(clock_s, compared), tightness, starts_late


def _share_clocks(clock_s: Seconds, hosts: tuple[str, ...]) -> Seconds:
    """Give members on one host the clock of the first of them: they have no other, and whoever always differs is always late.

    Every machine is its own `localhost`.
    """
    _, code = np.unique(hosts, return_inverse=True)
    place = np.arange(len(hosts))
    nameless = [host.partition(".")[0] in ("", "localhost") for host in hosts]
    named = np.where(nameless, -1 - place, place // clock_s.shape[2] * len(hosts) + code)
    _, first, of_host = np.unique(named, return_index=True, return_inverse=True)
    return clock_s.reshape(len(clock_s), -1)[:, first[of_host]].reshape(clock_s.shape)


def _lay_out(rows: Rows, at: RowIndex, sizes: GridSizes, member: Ints, n_members: int) -> _ComputeTimes:
    """Lay the computes out over members, and keep those of which every member that is there has a row."""
    n_workers = sizes[1] * sizes[2]
    picked = np.flatnonzero(of_types(rows.op, DIRECTIONS))
    assert rows.seq is not None
    key, seq = row_key(rows, at, sizes)[picked], rows.seq[picked]
    is_first = begins_run(key, seq)
    number = np.cumsum(is_first) - 1
    cell = (number, member[picked])
    start_s = np.full((int(number[-1]) + 1, n_members), np.nan)
    end_s = start_s.copy()
    start_s[cell] = rows.start_s[picked]
    end_s[cell] = rows.start_s[picked] + rows.duration_s[picked]
    step, worker = np.divmod(key[is_first] // len(Op), n_workers)
    there = ~np.isnan(start_s)
    n_there = np.zeros((n_workers, n_members))
    np.add.at(n_there, worker, there)
    present = n_there >= PRESENT_SHARE * np.maximum(n_there.max(axis=1, keepdims=True), 1.0)
    whole = (there | ~present[worker]).all(axis=1) & (present[worker].sum(axis=1) > 1)
    keep = np.flatnonzero(whole)
    step, worker = step[keep], worker[keep]
    segment = np.flatnonzero(begins_run(step, worker))
    unseen = ~present[worker]
    return _ComputeTimes(
        np.where(unseen, np.nan, start_s[keep]),
        np.where(unseen, np.nan, end_s[keep]),
        segment,
        step[segment],
        worker[segment],
    )


def _difference(side_s: Seconds) -> Seconds:
    """Say how far each member is behind the first one that is there; same shape."""
    reference = np.isnan(side_s).argmin(axis=1)
    return side_s - np.take_along_axis(side_s, reference[:, None], axis=1)


def _segment_median(values: Seconds, first: Ints) -> Seconds:
    """Give the median of each column within each run of rows, shape (n_runs, n_columns); NaN where a run has none."""
    sizes = np.diff(np.r_[first, len(values)])
    if (sizes == sizes[0]).all():
        ordered = np.sort(values.reshape(len(first), int(sizes[0]), -1), axis=1)
        return np.asarray((ordered[:, (sizes[0] - 1) // 2] + ordered[:, sizes[0] // 2]) / 2)
    run = np.repeat(np.arange(len(first)), sizes)
    found = np.empty((len(first), values.shape[1]))
    for column in range(values.shape[1]):
        ordered = values[np.lexsort((values[:, column], run)), column]
        found[:, column] = (ordered[first + (sizes - 1) // 2] + ordered[first + sizes // 2]) / 2
    return found


def _spread(side: Seconds, usual: Seconds, table: _ComputeTimes, n_workers: int) -> Seconds:
    """Say how much members' differences vary within steps, and from step to step; seconds, shape (n_workers,)."""
    segment = np.repeat(np.arange(len(table.first)), np.diff(np.r_[table.first, len(side)]))
    worker = table.worker[segment]
    within = np.nan_to_num(np.abs(side - usual[segment])).sum(axis=1)
    n_within = np.maximum(np.bincount(worker, minlength=n_workers), 1)
    spread = np.bincount(worker, within, n_workers) / n_within
    order = np.lexsort((table.step, table.worker))
    same = table.worker[order][1:] == table.worker[order][:-1]
    moved = np.nan_to_num(np.abs(np.diff(usual[order], axis=0))).sum(axis=1)[same]
    of_worker = table.worker[order][1:][same]
    n_moved = np.maximum(np.bincount(of_worker, minlength=n_workers), 1)
    return np.asarray(spread + np.bincount(of_worker, moved, n_workers) / n_moved)


def _smooth(clock_s: Seconds, compared: Bools) -> Seconds:
    """Give the median over neighbouring steps; where nothing was compared the worker's median, 0 where it has none."""
    known = np.where(compared[:, :, None], np.nan_to_num(clock_s), np.nan)
    has_any = compared.any(axis=0)
    usual = np.zeros(clock_s.shape[1:])
    usual[has_any] = np.nanmedian(known[:, has_any], axis=0)
    known = np.where(np.isnan(known), usual, known)
    half = CLOCK_STEPS // 2
    padded = np.pad(known, ((half, half), (0, 0), (0, 0)), mode="edge")
    windows = np.lib.stride_tricks.sliding_window_view(padded, CLOCK_STEPS, axis=0)
    return np.asarray(np.median(windows, axis=-1))


def _behind_others(side_s: Seconds) -> Seconds:
    """Say how far each member is behind the median of the others, seconds; NaN where it is not there."""
    order = np.argsort(side_s, axis=1, kind="stable")  # NaN last
    ordered = np.take_along_axis(side_s, order, axis=1)
    position = np.empty_like(order)
    np.put_along_axis(position, order, np.arange(side_s.shape[1])[None, :], axis=1)
    n_others = (~np.isnan(side_s)).sum(axis=1, keepdims=True) - 1
    low, high = (n_others - 1) // 2, n_others // 2
    of_others = [np.take_along_axis(ordered, at + (at >= position), axis=1) for at in (low, high)]
    return np.asarray(side_s - (of_others[0] + of_others[1]) / 2)


def _is_last(side_s: Seconds) -> Seconds:
    """Mark the member that is last, 1 or 0; none where two are last together. NaN where a member is not there."""
    latest = np.nanmax(side_s, axis=1, keepdims=True)
    at_last = side_s >= latest - TINY_S
    alone = at_last.sum(axis=1, keepdims=True) == 1
    return np.where(np.isnan(side_s), np.nan, at_last & alone)


def _name_members(
    rows: Rows, at: RowIndex, sizes: GridSizes, member: Ints, n_members: int
) -> tuple[Ints | None, tuple[str, ...] | None]:
    """Say which global rank and host each member is; no ranks where members share one."""
    shape = (*sizes[1:], n_members)
    ranks: Ints | None = None
    if rows.rank is not None:
        ranks = np.full(shape, -1, dtype=np.int64)
        ranks[at[1], at[2], member] = rows.rank
        known = ranks[ranks >= 0]
        if len(np.unique(known)) < len(known):
            ranks = None
    if rows.host is None:
        return ranks, None
    codes = np.full(shape, -1, dtype=np.int64)
    said = rows.host >= 0
    codes[at[1][said], at[2][said], member[said]] = rows.host[said]
    return ranks, tuple("" if code < 0 else rows.host_names[code] for code in codes.ravel().tolist())


def add_waits(members: Members, rows: Rows, at: RowIndex, group: MemberLabels) -> Members:
    """Add the time that members spend in the collectives of their group; `rows` are those collectives alone."""
    shape = members.late_s.shape
    cell = np.ravel_multi_index((*at, group.number(rows)), shape)
    n_cells = int(np.prod(shape))
    counts = np.bincount(cell, minlength=n_cells).reshape(shape)
    seconds = np.bincount(cell, rows.duration_s, n_cells).reshape(shape)
    equal = (counts == counts[..., :1]) & (counts > 0)
    return dataclasses.replace(members, wait_s=np.where(equal.all(axis=3, keepdims=True), seconds, np.nan))
