"""Group laid-out steps by their structure, put their times on the step's own clock, and find what is no ordinary step.

Enters: `Dense` with all steps together. Leaves: blocks of steps that share one structure, and a warning for each damage.
"""

import dataclasses

import numpy as np

from diagnose.model.optype import DIRECTIONS, P2P, Op, of_types
from diagnose.model.trace import TOKEN_COLUMNS, Block, Bools, Evidence, Ints, Nodes, Seconds
from diagnose.numerics.figures import write_figure, write_percent
from diagnose.numerics.robust import nan_median, nan_quantile
from diagnose.trace.dense import Dense
from diagnose.trace.labels import number_combinations

#: A step with a larger part of its operations missing is dropped; below, the gaps are filled by usual values.
MAX_MISSING_SHARE = 0.20
#: Workers without rows that are named one by one.
MAX_ABSENT_NAMED = 8
#: On the clock of the job so many steps begin after the one before (a restart may set it back).
LATER_SHARE = 0.75
#: ... and from this correlation of their order on they begin later and later, also where several runs do so at a time.
IN_ORDER = 0.8
#: Where they do not, they wait at most this part of what all of them together last.
WAIT_SHARE = 0.25
#: Steps that begin further than this part of them from what their times count from are told: it may not be their begin.
ORIGIN_SHARE = 0.1
#: Recvs are usually early by more than this part of the step (as ordinary launch delays are).
EARLY_SHARE = 0.01
#: A clock is off by more than so many times what ends are late by in both directions, or vary by (as for gains).
MIN_OFFSET_SPREADS = 2.0
#: What more than this part of the lanes has, all should have.
USUAL_SHARE = 0.5
#: Steps needed to see that they run into each other.
MIN_STEPS_IN_TURN = 3
#: A first step this much longer than nearly all others is a warm-up.
WARM_UP_RATIO = 1.3
#: ... and its computes are so many times as long, unless the job has just started.
WARM_UP_PACE = 1.1
#: A job that begins at this step or before has just started.
LAST_START_UP_STEP = 2
#: Keeps a division by computes that take no time finite.
TINY_S = 1e-12
#: Nearly all later steps: a warm-up is longer than this quantile of them.
USUAL_QUANTILE = 0.9
#: Steps that a warm-up lasts at most, or this part of all where that is more; steps needed to tell one, and usual ones after it.
MAX_WARM_UP_STEPS = 3
MAX_WARM_UP_SHARE = 0.1
MIN_STEPS_FOR_WARM_UP = 8
MIN_USUAL_STEPS = 5
#: Rows after a worker's last compute may start this much before its end and still follow it.
TOLERANCE_S = 1e-3
#: Times that differ by less are the same.
ROUNDING_S = 1e-6

_PIPELINED = (*DIRECTIONS, *P2P)
#: What ends a step; reductions of gradients may run beside a collection.
_CLOSING = (Op.CLIP, Op.OPTIMIZER)


def hold_early_recvs(dense: Dense, evidence: Evidence, steps: Ints) -> tuple[Seconds, Evidence]:
    """Begin a worker's first recv in a step, in place, where its pipeline begins that step, if that is later.

    Where nothing closes a step on all stages, those that end it first gather their weights and wait for the next one while the
    first stage still works on this one. That wait belongs to no step: without this it would look as if the first stage began
    late, and steps would overlap. Times that count from such a recv count from the begin of the pipeline afterwards.

    Parameters
    ----------
    steps : ndarray of int64, shape (n_steps,)
        The number of each step in the file.

    Returns
    -------
    shift_s : ndarray of float64, shape (n_steps,)
        What was subtracted from the times of each step.
    evidence : Evidence
        With such times.
    """
    nodes, unmoved = dense.nodes, (np.zeros(len(steps)), evidence)
    feeds = nodes.stage == 0
    recvs = np.flatnonzero((nodes.op == Op.FORWARD_RECV) & ~feeds)
    if not len(recvs) or len(steps) < MIN_STEPS_IN_TURN or np.diff(steps).min() < 1:
        return unmoved
    # Of the stage that every microbatch enters, shape (n_steps, n_dp): when it ended each step, and when it began it.
    end_s = np.fmax.reduce(dense.end_s[feeds], axis=0)
    begin_s = np.fmin.reduce(dense.start_s[feeds], axis=0)
    waits = (evidence.op == Op.DATA_LOAD) & (evidence.stage == 0)
    np.minimum.at(begin_s, (evidence.step[waits], evidence.dp[waits]), evidence.start_s[waits])
    follows = np.flatnonzero(np.diff(steps) == 1) + 1
    if not len(follows):
        return unmoved
    # On the job's clock a step begins about where the one before ends; a member may begin it before another has ended that.
    later_s = begin_s[follows] - begin_s[follows - 1]
    of_job = bool(np.mean(later_s > USUAL_SHARE * (end_s - begin_s)[follows - 1]) >= LATER_SHARE)
    # Where times count from each step's begin, when the first stage had ended the last one is known about.
    least_s = 0.0 if of_job else EARLY_SHARE * float(np.median(end_s - begin_s))
    before_s = end_s[follows - 1] - (0.0 if of_job else _measure_turns(dense, follows)[:, None])
    ahead_s = _measure_clocks(dense, EARLY_SHARE * float(np.median(end_s - begin_s)))
    # Without a step before, as soon as the first pipeline begins: a late one has its own reason.
    opens_s = np.broadcast_to(np.fmin.reduce(begin_s, axis=1)[:, None], begin_s.shape).copy()
    opens_s[follows] = np.fmin(before_s, begin_s[follows])
    held = np.zeros(len(steps), dtype=bool)
    opened_s = np.fmin.reduce(dense.start_s, axis=(0, 2))
    for stage in range(1, int(nodes.stage.max()) + 1):
        here = nodes.stage == stage
        own = recvs[nodes.stage[recvs] == stage]
        if not len(own):
            continue
        # Steps run into each other where, usually, the stage has ended one and waits for the next before the first has ended it.
        first_s, by_own_s = np.fmin.reduce(dense.start_s[here], axis=0), opens_s + ahead_s[stage]
        early = first_s < by_own_s
        if early[follows].mean() < LATER_SHARE or np.median((by_own_s - first_s)[early]) < least_s:
            continue
        held |= _hold(dense, own, here & (nodes.op == Op.ALL_GATHER), here, np.where(early, by_own_s, first_s))
    if of_job:
        return unmoved
    shift = np.where(held, np.fmin.reduce(dense.start_s, axis=(0, 2)) - opened_s, 0.0)
    dense.start_s -= shift[:, None]
    dense.end_s -= shift[:, None]
    return shift, _move(evidence, shift)


def _hold(dense: Dense, recvs: Ints, gathers: Bools, here: Bools, by_s: Seconds) -> Bools:
    """Begin a stage's first recv, in place, no earlier than `by_s`, (n_steps, n_dp), and gathers until it ends as much later.

    All ranks gather together, and are moved together. Says in which steps a recv was held, (n_steps,).
    """
    start_s, end_s = dense.start_s, dense.end_s
    is_first = (start_s[recvs] <= np.fmin.reduce(start_s[here & ~gathers], axis=0)) & (start_s[recvs] < by_s)
    until_s = np.fmin.reduce(end_s[recvs], axis=0)
    early = (start_s[gathers] < np.fmin(until_s, by_s)) & is_first.any(axis=0)
    begin_s = np.fmin.reduce(np.where(early, start_s[gathers], np.inf), axis=0, initial=np.inf)
    through_s = np.fmax.reduce(np.where(early, end_s[gathers], -np.inf), axis=0, initial=-np.inf)
    moved_s = np.fmax(np.fmin.reduce(np.fmin(by_s - begin_s, until_s - through_s), axis=1), 0.0)[:, None]
    dense.start_s[gathers] += np.where(early, moved_s, 0.0)
    dense.end_s[gathers] += np.where(early, moved_s, 0.0)
    held_s = np.fmin(np.fmax(by_s, start_s[recvs] + moved_s), end_s[recvs])
    dense.start_s[recvs] = np.where(is_first, held_s, start_s[recvs])
    return np.asarray(is_first.any(axis=(0, 2)))


def _measure_clocks(dense: Dense, least_s: float) -> Seconds:
    """Say how far clocks of later stages are ahead of the first one's, where it is more than so much: shape (n_stages, n_dp).

    A send and its recv end together; what is late in both directions, or now and then, is no clock's.
    """
    op, stage, seq = dense.nodes.op, dense.nodes.stage, dense.nodes.seq
    n_dp = dense.start_s.shape[2]
    ahead_s = np.zeros((int(stage.max()) + 1, n_dp))
    for later in range(1, len(ahead_s)):
        ways = []
        for send, recv, begin, end in (
            (Op.FORWARD_SEND, Op.FORWARD_RECV, later - 1, later),
            (Op.BACKWARD_SEND, Op.BACKWARD_RECV, later, later - 1),
        ):
            sends, recvs = (np.flatnonzero((op == o) & (stage == s)) for o, s in ((send, begin), (recv, end)))
            n = min(len(sends), len(recvs))
            sends, recvs = sends[np.argsort(seq[sends])][:n], recvs[np.argsort(seq[recvs])][:n]
            apart_s = (dense.end_s[recvs] - dense.end_s[sends]).reshape(-1, n_dp)
            ways.append(
                [nan_quantile(apart_s, q, axis=0) for q in (0.25, 0.5, 0.75)] if n else np.full((3, n_dp), np.nan)
            )
        low_s, usual_s, high_s = np.moveaxis(np.array(ways), 1, 0)  # of both directions
        off_s, late_s = (usual_s[0] - usual_s[1]) / 2.0, np.abs(usual_s.sum(axis=0)) / 2.0
        late_s = np.maximum(late_s, (high_s - low_s).max(axis=0) / 2.0)
        ahead_s[later] = ahead_s[later - 1] + np.where(np.abs(off_s) > MIN_OFFSET_SPREADS * late_s, off_s, 0.0)
    return np.where(np.abs(ahead_s) > least_s, ahead_s, 0.0)


def _measure_turns(dense: Dense, follows: Ints) -> Seconds:
    """Say by how much less times of a step count than those of the step before, at least, where they count from each step's begin.

    No worker begins a step before it has ended the last one, and the one that waits least in between begins at once. Seconds, one
    for each step that follows another.
    """
    first_s, last_s = _span_workers(dense)
    turns_s: Seconds = np.fmax.reduce(last_s[:, follows - 1] - first_s[:, follows], axis=(0, 2), initial=-np.inf)
    return turns_s


def _span_workers(dense: Dense) -> tuple[Seconds, Seconds]:
    """Say when each worker begins and ends each step, by its own clock: shape (n_stages, n_steps, n_dp) both."""
    nodes = dense.nodes
    first_s, last_s = np.full((2, int(nodes.stage.max()) + 1, *dense.start_s.shape[1:]), np.nan)
    for node, stage in enumerate(nodes.stage.tolist()):
        np.fmin(first_s[stage], dense.start_s[node], out=first_s[stage])
        np.fmax(last_s[stage], dense.end_s[node], out=last_s[stage])
    return first_s, last_s


def shift_origin(
    dense: Dense, evidence: Evidence, warnings: list[str]
) -> tuple[Seconds | None, Seconds | None, Evidence]:
    """Make times relative to the step in place.

    Gives where steps began if the file had times of the whole job, what was subtracted in each step, shape (n_steps,) both and None
    where there is none, and the evidence with such times.
    """
    first_s, last_s = _span_workers(dense)
    first = np.fmin.reduce(first_s, axis=(0, 2))
    # As long as it takes who is longest at it: clocks may be further apart than a step is long.
    length_s = np.fmax.reduce(last_s - first_s, axis=(0, 2))
    limit = max(float(np.median(length_s)), 1e-9)
    later = nan_median(np.diff(first_s, axis=1), axis=(0, 2)) > USUAL_SHARE * length_s[:-1]
    # Some steps may begin late, or most of them, but on the clock of the job nearly all begin about where the one before ends.
    near_s = float(np.median(np.abs(first))), float(np.min(np.abs(first))) / ORIGIN_SHARE
    some_late = bool(later.size) and later.mean() < LATER_SHARE and min(near_s) <= limit
    if float(np.max(np.abs(first))) <= limit or (some_late and not _are_in_turn(dense, limit)):
        origin_s, shift = None, _find_other_origin(first, limit, evidence, warnings)
        if shift is None:
            return None, None, evidence
    elif len(first) >= MIN_STEPS_IN_TURN and later.mean() < LATER_SHARE and _are_near(first, limit):
        # That is not when they began, but a window, or the process.
        origin_s, shift = None, _take_from_first(first, limit, warnings)
    else:
        origin_s = shift = first
    dense.start_s -= shift[:, None]
    dense.end_s -= shift[:, None]
    return origin_s, shift, _move(evidence, shift)


def _are_in_turn(dense: Dense, length_s: float) -> bool:
    """Say whether workers begin nearly each step after their own last one, as on the clock of the job, however far they are apart.

    Those that average their weights every few steps only are steps apart in between.
    """
    turns_s = _measure_turns(dense, np.arange(1, dense.start_s.shape[1]))
    return bool((turns_s <= ORIGIN_SHARE * length_s).mean() >= LATER_SHARE)


def _are_near(first_s: Seconds, length_s: float) -> bool:
    """Say whether steps begin at about the same time, or as late as each waits, shape (n_steps,).

    On the clock of the job they begin later and later, also those of runs at the same time, but where it is set back.
    """
    if np.ptp(first_s) <= length_s:
        return True
    ranks = np.argsort(np.argsort(first_s))
    grow = float(np.corrcoef(ranks, np.arange(len(ranks)))[0, 1]) >= IN_ORDER
    return not grow and float(np.ptp(first_s)) <= len(first_s) * WAIT_SHARE * length_s


def _move(evidence: Evidence, shift: Seconds) -> Evidence:
    """Let times of evidence be earlier by what each step is shifted, shape (n_steps,)."""
    of_rows = shift[evidence.step]
    return dataclasses.replace(evidence, start_s=evidence.start_s - of_rows, end_s=evidence.end_s - of_rows)


def _find_other_origin(first_s: Seconds, length_s: float, evidence: Evidence, warnings: list[str]) -> Seconds | None:
    """Look whether steps begin where their times count from; give by how much they are to be moved, None where they stay.

    Before it nothing can begin. What lies between it and the first operation is lost time, if nothing else was counted from.
    """
    usual_s = float(np.median(first_s))
    if usual_s < -ORIGIN_SHARE * length_s:
        return _take_from_first(first_s, length_s, warnings)
    begin_s = first_s.copy()
    np.minimum.at(begin_s, evidence.step, evidence.start_s)
    usual_s = float(np.median(begin_s))
    if usual_s > ORIGIN_SHARE * length_s:
        warnings.append(
            f"steps begin {write_figure(usual_s, 2)} s after what their times count from, {write_percent(usual_s / length_s)} of "
            "their length, and nothing is recorded before: that counts as lost at the begin of each step; if times count from "
            "something else than the begin of the step, subtract that"
        )
    return None


def _take_from_first(first_s: Seconds, length_s: float, warnings: list[str]) -> Seconds:
    """Take times from the step that begins first after, or longest before, what they count from."""
    least_s = float(first_s.min())
    side = "after" if least_s > 0 else "before"
    warnings.append(
        f"all steps begin {write_figure(abs(least_s), 2)} s {side} what their times count from, and take "
        f"{write_figure(length_s, 2)} s: that is not their begin, and times are taken from the first operation; expected times "
        "from the begin of each step, or of the job"
    )
    return np.full(len(first_s), least_s)


def take_out_evaluations(dense: Dense, evidence: Evidence, n_stages: int) -> Evidence:
    """Make evidence of forwards that follow their worker's last backward, in place: nothing is ever trained by them.

    Every microbatch that is trained has its backward after its forward, so that the last compute of a worker is a backward. What
    most workers run after it in a step is an evaluation: one row of each worker, with the transfers in between.
    """
    nodes = dense.nodes
    forward = of_types(nodes.op, (Op.FORWARD, Op.FORWARD_SEND, Op.FORWARD_RECV))
    last = np.full((n_stages, *dense.start_s.shape[1:]), np.inf)
    for stage in range(n_stages):
        backward = (nodes.op == Op.BACKWARD) & (nodes.stage == stage)
        if backward.any():
            ends = np.fmax.reduce(dense.end_s[backward], axis=0)
            # What starts before the last backward does, as where all of them are short, does not follow it.
            follows = np.fmax(ends - TOLERANCE_S, np.fmax.reduce(dense.start_s[backward], axis=0))
            last[stage] = np.where(np.isnan(ends), np.inf, follows)
    at = np.zeros(dense.start_s.shape, dtype=bool)
    at[forward] = dense.start_s[forward] >= last[nodes.stage[forward]]
    evaluates = np.stack([at[(nodes.op == Op.FORWARD) & (nodes.stage == s)].any(axis=0) for s in range(n_stages)])
    planned = evaluates.mean(axis=(0, 2)) >= USUAL_SHARE
    evaluates &= planned[None, :, None]
    if not evaluates.any():
        return evidence
    at &= evaluates[nodes.stage]
    begins = np.full(evaluates.shape, np.inf)
    ends = np.full(evaluates.shape, -np.inf)
    for stage in range(n_stages):
        mine = nodes.stage == stage
        begins[stage] = np.where(at[mine], dense.start_s[mine], np.inf).min(axis=0)
        ends[stage] = np.where(at[mine], dense.end_s[mine], -np.inf).max(axis=0)
    dense.start_s[at], dense.end_s[at] = np.nan, np.nan
    of_stage, step, dp = np.nonzero(evaluates)
    op = np.full(len(step), int(Op.EVAL))
    return Evidence.join([evidence, Evidence(op, step, dp, of_stage, begins[evaluates], ends[evaluates])])


def add_collections(dense: Dense, evidence: Evidence) -> None:
    """Give each stage a `gc` node where collections follow the last compute; elsewhere they stay evidence.

    So do those that begin when the step is being closed, as after the optimizer: nothing of the step waits for them.
    """
    rows = np.flatnonzero(evidence.op == Op.GC)
    if not len(rows):
        return
    nodes = dense.nodes
    compute, closing = of_types(nodes.op, DIRECTIONS), of_types(nodes.op, _CLOSING)
    step, dp, stage = evidence.step[rows], evidence.dp[rows], evidence.stage[rows]
    after = np.zeros(len(rows), dtype=bool)
    starts, ends = [], []
    for of_stage in np.unique(nodes.stage[compute]).tolist():
        end_s = dense.end_s[compute & (nodes.stage == of_stage)]
        last = np.fmax.reduce(end_s, axis=0)
        here = stage == of_stage
        tail = here & (evidence.start_s[rows] >= last[step, dp] - TOLERANCE_S)
        begins = dense.start_s[closing & (nodes.stage == of_stage)]
        closes = np.fmin.reduce(np.where(begins >= last - TOLERANCE_S, begins, np.inf), axis=0, initial=np.inf)
        tail &= evidence.start_s[rows] <= closes[step, dp] + ROUNDING_S
        after |= tail
        if not tail.any():
            continue
        # Where the row of the last compute was lost nobody knows when that ended; where it never was, nobody asks.
        start = np.where(np.isnan(end_s[_find_last(end_s)]), np.nan, last)
        end = start.copy()
        cell = (step[tail], dp[tail])
        start[cell], end[cell] = evidence.start_s[rows[tail]], evidence.end_s[rows[tail]]
        np.minimum.at(start, cell, evidence.start_s[rows[tail]])
        np.maximum.at(end, cell, evidence.end_s[rows[tail]])
        starts.append((of_stage, start))
        ends.append(end)
    if not starts:
        return
    n_new = len(starts)
    stages = np.array([of_stage for of_stage, _ in starts], dtype=np.int64)
    dense.nodes = nodes.add(np.full(n_new, int(Op.GC)), stages, np.zeros(n_new, dtype=np.int64))
    dense.start_s = np.concatenate([dense.start_s, [start for _, start in starts]])
    dense.end_s = np.concatenate([dense.end_s, ends])
    for column in TOKEN_COLUMNS:
        values = getattr(dense, column)
        if values is not None:
            setattr(dense, column, np.concatenate([values, np.full((n_new, *values.shape[1:]), np.nan)]))


def _find_last(end_s: Seconds) -> int:
    """Find the operation that ends last where most are there; `end_s` has the shape (n, n_steps, n_dp)."""
    of_lane = end_s.reshape(len(end_s), -1)
    return int(np.nanargmax(of_lane[:, (~np.isnan(of_lane)).sum(axis=0).argmax()]))


def split_steps(steps: Ints, dense: Dense, warnings: list[str]) -> tuple[list[Block], Bools]:
    """Group the steps by their number of microbatches and drop those that miss too much; say which are kept, (n_steps,)."""
    nodes = dense.nodes
    there = ~np.isnan(dense.start_s)
    kept = np.ones(len(steps), dtype=bool)
    if there.all():
        tokens = dense.tokens, dense.tokens_sq
        return [Block(steps, nodes, dense.start_s, dense.end_s, None, *tokens, expert_tokens=dense.expert_tokens)], kept
    count = _count_operations(nodes, there)
    per_step = count.max(axis=1)
    cut_off = _find_cut_off(nodes, there)
    pipelined = of_types(nodes.op, _PIPELINED)
    blocks: list[Block] = []
    n_missing = n_stray = 0
    for n_of_type in np.unique(per_step).tolist():
        at = np.flatnonzero(per_step == n_of_type)
        kept_node = _choose_nodes(nodes, there, per_step, n_of_type)
        n_stray += int(np.count_nonzero(there[:, at][~kept_node]))
        # A worker that has fewer microbatches ends the step as others do: one that lacks what they have there has lost its rows.
        lost = ~there[np.ix_(kept_node & ~(pipelined | (nodes.op == Op.GC)), at)].all(axis=0)
        n_run = np.where(lost, n_of_type, count[at])
        absent = pipelined[kept_node, None, None] & (nodes.seq[kept_node, None, None] >= n_run)
        missing = ~there[np.ix_(kept_node, at)] & ~absent
        computes = kept_node & of_types(nodes.op, DIRECTIONS)  # what has none is no step
        missing_share = missing.mean(axis=(0, 2)) if computes.any() else np.ones(len(at))
        dropped = (missing_share > MAX_MISSING_SHARE) | cut_off[at]
        kept[at[dropped]] = False
        if dropped.all():
            continue
        n_missing += int(np.count_nonzero(missing[:, ~dropped]))
        blocks.append(_cut_block(steps, dense, kept_node, at[~dropped], absent[:, ~dropped]))
    if n_missing:
        warnings.append(f"{n_missing} operations are missing; filled by their usual own time and launch delay")
    warnings += _absent_workers(blocks)
    if n_stray:
        warnings.append(f"{n_stray} operations that most ranks do not have are left out")
    evaluates = ~there[nodes.op == Op.BACKWARD].any(axis=(0, 2)) & ~kept
    if evaluates.any():
        listed = ", ".join(str(int(step)) for step in steps[evaluates][:8])
        warnings.append(f"{int(evaluates.sum())} steps have no backward, as an evaluation, and are left out ({listed})")
    if not (kept | evaluates).all():
        listed = ", ".join(str(int(step)) for step in steps[~(kept | evaluates)][:8])
        n_dropped = int((~(kept | evaluates)).sum())
        miss, are = ("step misses", "is") if n_dropped == 1 else ("steps miss", "are")
        warnings.append(f"{n_dropped} {miss} too many operations and {are} dropped ({listed})")
    if len(blocks) > 1:
        sizes = ", ".join(f"{len(block.steps)} with {int(block.nodes.microbatch.max()) + 1}" for block in blocks)
        warnings.append(
            f"the number of microbatches changes between steps ({sizes}); each is replayed as its own group"
        )
    return blocks, kept


def _absent_workers(blocks: list[Block]) -> list[str]:
    """Name the workers that have no row at all in some of the steps, by index."""
    said = []
    for block in blocks:
        there = ~np.isnan(block.start_s)
        for stage in range(int(block.nodes.stage.max()) + 1):
            gone = ~there[block.nodes.stage == stage].any(axis=0)  # (n_steps, n_dp)
            lost = gone.sum(axis=0)
            said += [(dp, stage, int(lost[dp]), len(block.steps)) for dp in np.flatnonzero(lost).tolist()]
    return [
        f"the worker at dp index {dp}, stage index {stage} has no row in {n} of {of} steps; it is filled in from its neighbours, "
        "nothing is said of it, and gains beside it may be too small"
        for dp, stage, n, of in said[:MAX_ABSENT_NAMED]
    ]


def _count_operations(nodes: Nodes, there: Bools) -> Ints:
    """Say how many forwards and backwards a stage runs in each lane: shape (n_steps, n_dp), lost rows counted."""
    compute = of_types(nodes.op, (Op.FORWARD, Op.BACKWARD))
    n_seq = int(nodes.seq.max()) + 1
    runs = np.zeros((n_seq, *there.shape[1:]), dtype=np.int64)
    np.add.at(runs, nodes.seq[compute], there[compute])
    is_there = runs > int(nodes.stage.max())  # half of the forwards and backwards of that number, over all stages
    return np.where(is_there.any(axis=0), n_seq - is_there[::-1].argmax(axis=0), 0)


def _choose_nodes(nodes: Nodes, there: Bools, per_step: Ints, n_of_type: int) -> Bools:
    """Choose the operations that steps of one kind have: what most lanes have, and what other steps of that size have."""
    share = there[:, per_step == n_of_type].mean(axis=(1, 2))
    enough = per_step > nodes.seq[:, None]
    in_others = (there.mean(axis=2) * enough).sum(axis=1) / np.maximum(enough.sum(axis=1), 1)
    pipelined = of_types(nodes.op, _PIPELINED)
    kept: Bools = (share >= USUAL_SHARE) | (pipelined & (nodes.seq < n_of_type) & (in_others >= USUAL_SHARE))
    # Whatever counts up to a kept operation is there, too: its rows were lost.
    place = nodes.op * (int(nodes.stage.max()) + 1) + nodes.stage
    highest = np.full(int(place.max()) + 1, -1, dtype=np.int64)
    np.maximum.at(highest, place[kept], nodes.seq[kept])
    return np.asarray(kept | (nodes.seq < highest[place]))


def _cut_block(steps: Ints, dense: Dense, kept_node: Bools, at: Ints, absent: Bools) -> Block:
    """Cut some nodes and steps out of the whole."""
    pick = np.ix_(kept_node, at)
    return Block(
        steps=steps[at],
        nodes=_count_from_first(dense.nodes.take(kept_node)),
        start_s=dense.start_s[pick],
        end_s=dense.end_s[pick],
        absent=absent if absent.any() else None,
        tokens=None if dense.tokens is None else dense.tokens[pick],
        tokens_sq=None if dense.tokens_sq is None else dense.tokens_sq[pick],
        expert_tokens=None if dense.expert_tokens is None else dense.expert_tokens[pick],
    )


def _count_from_first(nodes: Nodes) -> Nodes:
    """Count microbatches from the first that there is: where the last one's backward is the first, fewer lack the first ones.

    Operations were named in a step that has all.
    """
    at = np.flatnonzero(nodes.microbatch >= 0)
    place = number_combinations(nodes.op[at] == Op.FORWARD, nodes.stage[at], nodes.chunk[at])
    whole = of_types(nodes.op[at], (Op.FORWARD, Op.BACKWARD))  # a weight gradient need not be of each
    microbatch = nodes.microbatch.copy()
    first = np.full(int(place.max(initial=-1)) + 1, microbatch.max(initial=0))
    np.minimum.at(first, place[whole], microbatch[at[whole]])
    is_told = np.bincount(place[whole], minlength=len(first)) > 0
    microbatch[at] -= np.where(is_told, first - first.min(initial=np.iinfo(np.int64).max), 0)[place]
    return dataclasses.replace(nodes, microbatch=microbatch)


def _find_cut_off(nodes: Nodes, there: Bools) -> Bools:
    """Mark the steps whose end is missing: nothing of what closes other steps, or many more forwards than backwards."""
    closing = of_types(nodes.op, (Op.REDUCE_SCATTER, Op.SEPARATE, Op.LAYERNORM, Op.EMBEDDING, Op.CLIP, Op.OPTIMIZER))
    has: Bools = np.asarray(there.any(axis=2))
    closing &= has.mean(axis=1) >= USUAL_SHARE
    cut = np.zeros(there.shape[1], dtype=bool)
    if closing.any():
        cut |= ~has[closing].any(axis=0)
    forwards, backwards = (there[nodes.op == op].sum(axis=(0, 2)) for op in (Op.FORWARD, Op.BACKWARD))
    most = np.maximum(forwards, backwards)
    odd = np.abs(forwards - backwards) > np.maximum(MAX_MISSING_SHARE * most, there.shape[2])
    return np.asarray(cut | odd)


def _compute_pace(blocks: list[Block]) -> Seconds:
    """Say how long the computes of each step are against those of a usual step; ratio, shape (n_steps,)."""
    paces = []
    for block in blocks:
        computes = of_types(block.nodes.op, DIRECTIONS)
        seconds = (block.end_s - block.start_s)[computes]
        seconds = seconds[~np.isnan(seconds).all(axis=(1, 2))]
        pace = seconds / np.maximum(np.nanmedian(seconds, axis=(1, 2), keepdims=True), TINY_S)
        pace = np.where(np.isnan(pace), 1.0, pace)
        paces.append(np.median(pace, axis=(0, 2)) if len(pace) else np.ones(len(block.steps)))
    return np.concatenate(paces)


def _come_again(blocks: list[Block], order: Ints, n_first: int) -> Bools:
    """Mark those of the first steps that are long for what a few workers compute, which do so again in many later ones, too.

    A warm-up is all workers', and comes once. Shape (n_first,).
    """
    found = []
    for block in blocks:
        computes = of_types(block.nodes.op, DIRECTIONS)
        seconds, stage = (block.end_s - block.start_s)[computes], block.nodes.stage[computes]
        slow = []
        for here in np.unique(stage).tolist():
            own = seconds[stage == here]
            pace = own / np.maximum(nan_median(own, axis=1)[:, None], TINY_S)
            slow.append(nan_median(pace, axis=0).T > WARM_UP_RATIO)
        found.append(np.concatenate(slow) if slow else np.zeros((1, len(block.steps)), dtype=bool))
    n_workers = max(map(len, found))
    slow_at = np.concatenate([np.pad(each, ((0, n_workers - len(each)), (0, 0))) for each in found], axis=1)[:, order]
    again = np.zeros(n_first, dtype=bool)
    for step in range(n_first):
        these = slow_at[:, step]
        if 0 < these.sum() < USUAL_SHARE * n_workers:
            again[step] = slow_at[these, n_first:].all(axis=0).mean() >= 1.0 - USUAL_QUANTILE
    return again


def find_warm_up(blocks: list[Block], warnings: list[str]) -> tuple[int, ...]:
    """Name the first steps where they are a warm-up: much longer than nearly all others.

    In the middle of a job a first step whose computes are as short as ever is long for another reason; anywhere one that is no
    longer than later ones with the same few slow workers is so.
    """
    steps = np.concatenate([block.steps for block in blocks]) if blocks else np.zeros(0, dtype=np.int64)
    if len(steps) < MIN_STEPS_FOR_WARM_UP:
        return ()
    order = np.argsort(steps)
    length_s = np.concatenate([np.fmax.reduce(np.fmax.reduce(block.end_s, axis=0), axis=1) for block in blocks])[order]
    n_most = max(MAX_WARM_UP_STEPS, int(MAX_WARM_UP_SHARE * len(steps)))
    usual = np.full(n_most, np.quantile(length_s[n_most:], USUAL_QUANTILE))
    if steps[order][0] <= LAST_START_UP_STEP:
        # What makes later steps long does not make a job's first step shorter, unless it is what makes that long.
        least = np.fmin(usual, length_s[n_most : n_most + MIN_USUAL_STEPS].max())
        usual = np.where(_come_again(blocks, order, n_most), usual, least) if (least < usual).any() else usual
    long = length_s[:n_most] > WARM_UP_RATIO * usual
    if long[0] and steps[order][0] > LAST_START_UP_STEP:
        long &= _compute_pace(blocks)[order][:n_most] > WARM_UP_PACE
    n_long = n_most if long.all() else int(long.argmin())
    if n_long:
        times = float(length_s[:n_long].max() / np.median(length_s[n_long:]))
        # Of steps of two lengths most may be as long as the first: then the figure says nothing.
        longer = f" (up to {times:.1f} times as long)" if times > WARM_UP_RATIO else ""
        first, them = ("first step is", "it") if n_long == 1 else (f"first {n_long} steps are", "them")
        warnings.append(f"the {first} a warm-up{longer}: causes are sought without {them}; S counts {them}")
    return tuple(int(step) for step in steps[order][:n_long])
