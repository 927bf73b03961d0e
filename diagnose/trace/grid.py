"""Lay the rows out densely over (operation, step, dp rank) and group the steps that share one structure.

Enters: `Rows` in any order. Leaves: blocks of steps, evidence rows, and a warning for each kind of damage. Costs a
few passes over the rows; nothing is sorted unless `seq_id` is missing or wrong.
"""

import dataclasses
from typing import Any

import numpy as np

from diagnose.errors import TraceError
from diagnose.model.documents import Documents
from diagnose.model.members import ALL_TO_ALLS, GROUP_PREFIXES, WAITS, Members
from diagnose.model.optype import DIRECTIONS, EVIDENCE, NAMES, Op, of_types
from diagnose.model.trace import NO_ROWS, Block, Bools, Evidence, Ints, Nodes, Seconds
from diagnose.trace.dense import lay_out_rows
from diagnose.trace.documents import read_documents
from diagnose.trace.labels import number_labels
from diagnose.trace.member_labels import MemberLabels, find_member_labels
from diagnose.trace.members import add_waits, merge_members
from diagnose.trace.orders import part_orders
from diagnose.trace.overtaken import number_overtaken
from diagnose.trace.parts import join_parts
from diagnose.trace.restart import (
    find_silent_restart,
    keep_last_attempt,
    refuse_falling_steps,
    refuse_steps_at_a_time,
    refuse_two_runs,
)
from diagnose.trace.rows import GridSizes, RowIndex, Rows, take_index, take_rows
from diagnose.trace.steps import (
    add_collections,
    find_warm_up,
    hold_early_recvs,
    shift_origin,
    split_steps,
    take_out_evaluations,
)
from diagnose.trace.units import UNIT_NAMES, guess_unit

#: Longest duration, and latest start, that is taken for a measurement: a third of a year, and the year 5138 in unix time.
MAX_DURATION_S = 1e7
MAX_START_S = 1e11
#: A rank, stage or step with less than this part of the rows of a typical one is a stray.
STRAY_SHARE = 0.05
#: Rows of each worker that are asked for its global rank.
RANK_ROWS = 64
#: Planned work in a larger part of the steps has no period (as for pauses at a period).
STEADY_SHARE = 0.6
#: Types that are named where their rows are counted.
MAX_TYPES_NAMED = 5


@dataclasses.dataclass(frozen=True, slots=True)
class Grid:
    """Rows laid out densely: what a `Trace` needs from them."""

    blocks: tuple[Block, ...]
    evidence: Evidence
    others: Evidence
    other_types: tuple[str, ...]
    dp_labels: Ints
    stage_labels: Ints
    ranks: Ints
    has_ranks: bool
    hosts: tuple[str, ...] | None
    n_chunks: int | None
    n_tp: int | None
    n_cp: int | None
    members: Members | None
    step_origin_s: Seconds | None
    n_ops: int
    steps_dropped: int
    warm_up_steps: tuple[int, ...]
    restarted_steps: tuple[int, ...]
    documents: Documents | None
    warnings: tuple[str, ...]


def build_grid(rows: Rows, *, name: str, vpp_size: int | None, pick_steps: Ints | None = None) -> Grid:
    """Lay out the rows of one job.

    `vpp_size` is the number of model chunks a worker by the metadata, used where the rows have no `mc`; of `pick_steps`, where
    it is given, no other step is analysed.

    Raises
    ------
    TraceError
        No forward and backward compute at all, more than half of the steps unusable, or none of the picked steps there.
    """
    warnings: list[str] = []
    others = _take_others(rows, warnings)
    rows = _usable(rows, name, warnings)
    if pick_steps is not None:
        rows = _take_steps(rows, pick_steps, name)
    rows, labels, at = _number(rows, warnings)
    steps, dp_labels, stage_labels = labels
    sizes = n_steps, n_dp, n_stages = len(steps), len(dp_labels), len(stage_labels)
    group = find_member_labels(rows, at, sizes)
    refuse_two_runs(rows, at, sizes, group, name=name)
    others, others_at = _place(others, labels)
    if len(others):
        lanes = (_number_lanes(*of, sizes, group) for of in ((rows, at), (others, others_at)))
        rows, at = join_parts(rows, at, next(lanes), others, next(lanes), warnings)
    rows, at, restarted, members = _merge_members(
        rows, at, sizes, labels[0], group, (others, others_at), warnings, name
    )
    restarted = tuple(sorted({*restarted, *np.searchsorted(steps, np.array(rows.restarts, dtype=np.int64)).tolist()}))
    ranks, has_ranks, hosts = _workers(rows, at, n_dp, n_stages, members)
    dense, rows, at = lay_out_rows(rows, at, sizes, name=name, vpp_size=vpp_size, warnings=warnings)
    _refuse_idle_stages(dense.nodes, stage_labels, name)
    documents = read_documents(rows, at, dense.nodes, (n_steps, n_dp), warnings=warnings)
    evidence = _take_evidence(rows, at)
    refuse_falling_steps(dense, steps, name=name)
    held_s, evidence = hold_early_recvs(dense, evidence, steps)
    origin, shift, evidence = shift_origin(dense, evidence, warnings)
    refuse_steps_at_a_time(dense, origin, steps, name=name)
    of_others = _list_others(others, others_at, held_s if shift is None else held_s + shift, group, members)
    restarted = restarted or find_silent_restart(dense, Evidence.join([evidence, of_others]), origin, steps, warnings)
    evidence, of_others, other_types = _move_steady(evidence, of_others, others.other_types, n_steps)
    if restarted:
        of_others = of_others.take(of_others.end_s > -np.fmax.reduce(dense.end_s, axis=None))
    evidence = take_out_evaluations(dense, evidence, n_stages)
    add_collections(dense, evidence)
    blocks, kept = split_steps(steps, dense, warnings)
    blocks = [number_overtaken(block) for block in part_orders(blocks, warnings)]
    warm_up_steps = find_warm_up(blocks, warnings)
    if 2 * int(kept.sum()) < n_steps:
        raise TraceError(
            f"{n_steps - int(kept.sum())} of {n_steps} steps are unusable (operations missing); expected at least half of "
            "the steps complete: check that every rank's rows are in the file",
            where=name,
        )
    return Grid(
        blocks=tuple(blocks),
        evidence=_evidence_of_steps(evidence, steps, kept),
        others=_evidence_of_steps(of_others, steps, kept),
        other_types=other_types,
        dp_labels=dp_labels,
        stage_labels=stage_labels,
        ranks=ranks,
        has_ranks=has_ranks,
        hosts=hosts,
        n_chunks=int(dense.nodes.chunk.max()) + 1 if dense.has_chunks else None,
        n_tp=None if group is None else group.n_tp,
        n_cp=None if group is None else group.n_cp,
        members=members,
        step_origin_s=None if origin is None else origin[kept],
        n_ops=int(sum(np.count_nonzero(~np.isnan(block.start_s)) for block in blocks)),
        steps_dropped=n_steps - int(kept.sum()),
        warm_up_steps=warm_up_steps,
        restarted_steps=tuple(int(steps[at]) for at in restarted if at < n_steps),
        documents=_documents_of_steps(documents, steps, kept),
        warnings=tuple(warnings),
    )


def _refuse_idle_stages(nodes: Nodes, stage_labels: Ints, name: str) -> None:
    """Refuse a trace with a stage that never computes."""
    for stage, label in enumerate(stage_labels.tolist()):
        if not of_types(nodes.op[nodes.stage == stage], DIRECTIONS).any():
            raise TraceError(
                f"stage {label} has no compute row; expected forward- and backward-compute on every stage", where=name
            )


def _take_steps(rows: Rows, wanted: Ints, name: str) -> Rows:
    """Take the rows of the steps that were asked for, or refuse where none is there."""
    there = np.isin(rows.step, wanted)
    if not there.any():
        low, high = int(rows.step.min()), int(rows.step.max())
        raise TraceError(f"none of the steps asked for is in the trace; expected some of {low}..{high}", where=name)
    return take_rows(rows, there)


def _take_evidence(rows: Rows, at: RowIndex) -> Evidence:
    """Take the rows that explain others; steps by index, times as recorded."""
    picked = np.flatnonzero(rows.op >= int(min(EVIDENCE)))
    start_s = rows.start_s[picked].astype(np.float64)
    step, dp, stage = (index[picked].astype(np.int64) for index in at)
    return Evidence(rows.op[picked].astype(np.int64), step, dp, stage, start_s, start_s + rows.duration_s[picked])


def _move_steady(
    evidence: Evidence, others: Evidence, types: tuple[str, ...], n_steps: int
) -> tuple[Evidence, Evidence, tuple[str, ...]]:
    """Count planned work that is there in most steps as other work: it has no steps to stand out from."""
    for op in (Op.EVAL, Op.LOG):
        mine = evidence.op == op
        if len(np.unique(evidence.step[mine])) > STEADY_SHARE * n_steps:
            moved = dataclasses.replace(evidence.take(mine), op=np.full(int(mine.sum()), len(types)))
            evidence, others, types = evidence.take(~mine), Evidence.join([others, moved]), (*types, NAMES[op])
    return evidence, others, types


def _evidence_of_steps(evidence: Evidence, steps: Ints, kept: Bools) -> Evidence:
    """Keep the evidence of the steps that stay, and call the steps as the file does."""
    found = evidence.take(kept[evidence.step])
    return dataclasses.replace(found, step=steps[found.step])


def _documents_of_steps(documents: Documents | None, steps: Ints, kept: Bools) -> Documents | None:
    """Keep the documents of the steps that stay, and call the steps as the file does."""
    if documents is None:
        return None
    found = documents.take(np.flatnonzero(kept[documents.step]))
    return dataclasses.replace(found, step=steps[found.step]) if len(found) else None


def _take_others(rows: Rows, warnings: list[str]) -> Rows:
    """Take the rows of types that are not known out, as far as they can be placed and measured."""
    if rows.other is None or not (rows.other >= 0).any():
        return take_rows(rows, np.zeros(0, dtype=np.int64))
    counts = np.bincount(rows.other[rows.other >= 0], minlength=len(rows.other_types))
    counts[[name in (*WAITS, *ALL_TO_ALLS) for name in rows.other_types]] = (
        0  # known: ranks wait for each other in them
    )
    most = [at for at in np.argsort(-counts, kind="stable").tolist() if counts[at]]
    named = [f"{rows.other_types[at]!r} ({counts[at]})" for at in most[:MAX_TYPES_NAMED]]
    if len(most) > MAX_TYPES_NAMED:
        named.append(f"{len(most) - MAX_TYPES_NAMED} more")
    if most:
        warnings.append(
            f"{int(counts.sum())} rows of types that are not simulated are kept: their worker is busy meanwhile, unless it "
            f"computes: {', '.join(named)}"
        )
    with np.errstate(invalid="ignore"):
        usable = (rows.other >= 0) & (rows.duration_s >= 0) & (rows.duration_s <= MAX_DURATION_S)
        usable &= np.abs(rows.start_s) <= MAX_START_S
    # What such rows never have, or nobody asks of them, is not kept: there may be many more of them than operations.
    unasked = ("seq", "microbatch", "chunk", "host", "tokens", "tokens_sq", "expert_tokens", "number", "bad")
    none: dict[str, Any] = dict.fromkeys(unasked)
    slim = dataclasses.replace(rows, **none)
    return take_rows(slim, usable if rows.bad is None else usable & ~rows.bad)


def _place(rows: Rows, labels: tuple[Ints, Ints, Ints]) -> tuple[Rows, RowIndex]:
    """Say where rows stand among known steps, dp ranks and stages, and leave out those that stand nowhere."""
    columns = (rows.step, rows.dp, rows.stage)
    at = [np.minimum(np.searchsorted(known, c), len(known) - 1) for known, c in zip(labels, columns, strict=True)]
    found = np.ones(len(rows), dtype=bool)
    for known, place, column in zip(labels, at, columns, strict=True):
        found &= known[place] == column
    return take_rows(rows, found), take_index((at[0], at[1], at[2]), found)


def _number_lanes(rows: Rows, at: RowIndex, sizes: GridSizes, group: MemberLabels | None) -> Ints:
    """Number step and worker of each row, or step and member of a worker."""
    lane = (at[0].astype(np.int64) * sizes[1] + at[1]) * sizes[2] + at[2]
    return lane if group is None else lane * group.n_members + group.number(rows)


def _list_others(
    rows: Rows, at: RowIndex, shift_s: Seconds, group: MemberLabels | None, members: Members | None
) -> Evidence:
    """List placed rows of other types, on the clock of the step; steps by index."""
    if rows.other is None or not len(rows):
        return NO_ROWS
    step, dp, stage = (index.astype(np.int64) for index in at)
    start_s = rows.start_s.astype(np.float64) - shift_s[step]
    if group is not None and members is not None:
        start_s -= members.clock_s[dp, stage, group.number(rows)]
    return Evidence(rows.other.astype(np.int64), step, dp, stage, start_s, start_s + rows.duration_s)


def _usable(rows: Rows, name: str, warnings: list[str]) -> Rows:
    """Leave out rows that cannot be placed or measured, and refuse a trace without computes."""
    bad = rows.bad
    with np.errstate(invalid="ignore"):
        start_ok = np.abs(rows.start_s) <= MAX_START_S
        duration_ok = (rows.duration_s >= 0) & (rows.duration_s <= MAX_DURATION_S)
    unmeasured = ~(start_ok & duration_ok)
    if bad is not None:
        unmeasured &= ~bad
        warnings.append(f"{int(bad.sum())} rows lack a required value and are left out")
    n_unmeasured = int(np.count_nonzero(unmeasured))
    if 2 * n_unmeasured > len(rows) and (unit := guess_unit(rows)):
        raise TraceError(
            f"{n_unmeasured} of {len(rows)} rows have times that are no seconds; expected seconds: they look like "
            f"{UNIT_NAMES[unit]}, for which say --unit {unit}, or `unit: {unit}` in the metadata",
            where=name,
        )
    if n_unmeasured:
        warnings.append(
            f"{n_unmeasured} rows have a start or duration that is negative, not a number or absurd; left out"
        )
    drop = unmeasured if bad is None else unmeasured | bad
    if rows.other is not None:
        drop = drop | (rows.op < 0)
    if drop.any():
        rows = dataclasses.replace(take_rows(rows, ~drop), bad=None, other=None)
    for op in (Op.FORWARD, Op.BACKWARD):
        if not (rows.op == int(op)).any():
            raise TraceError(
                f"has no usable {NAMES[op]} row; expected one for each microbatch: see the operation types of the trace format",
                where=name,
            )
    if not (rows.duration_s > 0).any():
        raise TraceError("is 0 in every row; expected seconds from start to end", where=f"{name}: column 'duration'")
    return rows


def _number(rows: Rows, warnings: list[str]) -> tuple[Rows, tuple[Ints, Ints, Ints], RowIndex]:
    """Number steps, dp ranks and stages, leaving out those with hardly any rows."""
    columns = {"step": rows.step, "dp rank": rows.dp, "stage": rows.stage}
    numbered = [number_labels(column) for column in columns.values()]
    drop: Bools | None = None
    for word, (labels, index, counts) in zip(columns, numbered, strict=True):
        stray = counts < STRAY_SHARE * np.median(counts)
        if stray.any():
            listed = ", ".join(str(int(label)) for label in labels[stray][:5])
            warnings.append(
                f"{int(counts[stray].sum())} rows of {int(stray.sum())} {word}s with hardly any rows are left out ({listed})"
            )
            drop = stray[index] if drop is None else drop | stray[index]
    if drop is not None:
        rows = take_rows(rows, ~drop)
        numbered = [number_labels(column) for column in (rows.step, rows.dp, rows.stage)]
    (steps, step_at, _), (dps, dp_at, _), (stages, stage_at, _) = numbered
    return rows, (steps, dps, stages), (step_at, dp_at, stage_at)


def _merge_members(
    rows: Rows,
    at: RowIndex,
    sizes: GridSizes,
    steps: Ints,
    group: MemberLabels | None,
    others: tuple[Rows, RowIndex],
    warnings: list[str],
    name: str,
) -> tuple[Rows, RowIndex, tuple[int, ...], Members | None]:
    """Leave one row of each operation: of a step run again the last attempt, and one for all members of a worker.

    `steps` are the numbers of the steps, and `others` placed rows of other types: collectives within a member group
    (`tp-allreduce`) say who waited. Gives also the indices of the first steps after restarts, and what is known of members.
    """
    if group is None:
        return *keep_last_attempt(rows, at, sizes[0], warnings, name=name), None
    lanes = (at[0], at[1].astype(np.int64) * group.n_members + group.number(rows), at[2])
    rows, lanes, restarted = keep_last_attempt(rows, lanes, sizes[0], warnings, name=name)
    at = (lanes[0], lanes[1] // group.n_members, lanes[2])
    rows, at, members = merge_members(rows, at, sizes, group, steps, warnings)
    within = np.array([text.startswith(GROUP_PREFIXES) for text in rows.other_types], dtype=bool)
    if members is not None and within.any():
        waits = within[others[0].other]
        members = add_waits(members, take_rows(others[0], waits), take_index(others[1], waits), group)
    return rows, at, restarted, members


def _workers(
    rows: Rows, at: RowIndex, n_dp: int, n_stages: int, members: Members | None
) -> tuple[Ints, bool, tuple[str, ...] | None]:
    """Say which global rank and host each worker is: those of its first member."""
    ranks = np.arange(n_dp * n_stages, dtype=np.int64).reshape(n_stages, n_dp).T.copy()
    has_ranks = rows.rank is not None
    _, dp_at, stage_at = at
    if rows.rank is not None:
        # Every stride-th row names every worker in all but the smallest jobs; the others are asked only if one is missing.
        stride = max(1, len(rows) // (RANK_ROWS * ranks.size))
        found = np.full(ranks.shape, -1, dtype=np.int64)
        found[dp_at[::stride], stage_at[::stride]] = rows.rank[::stride]
        if (found < 0).any():
            found[dp_at, stage_at] = rows.rank
        ranks = np.where(found < 0, ranks, found)
    if members is not None and members.ranks is not None:
        known = np.where(members.ranks < 0, np.iinfo(np.int64).max, members.ranks).min(axis=2)
        ranks = np.where((members.ranks < 0).all(axis=2), ranks, known)
    if members is not None and members.hosts is not None:
        places = np.ndindex(n_dp, n_stages)
        return ranks, has_ranks, tuple(next(iter(members.hosts_of(dp, stage)), "") for dp, stage in places)
    hosts = None
    if rows.host is not None:
        codes = np.full((n_dp, n_stages), -1, dtype=np.int64)
        codes[dp_at, stage_at] = rows.host
        hosts = tuple("" if code < 0 else rows.host_names[code] for code in codes.ravel().tolist())
    return ranks, has_ranks, hosts
