"""Find out whose clock is off, from operations that end together on several workers, and correct it.

Enters: prepared blocks with times as recorded. Leaves: one offset a worker, and one a step where its clock moves within the
trace; blocks on one clock for the component what-if. S and its relatives stay on times as recorded, unless clocks are far apart.
"""

import dataclasses
from collections.abc import Sequence

import numpy as np

from diagnose.model.optype import DP_COLLECTIVES, Op, of_types
from diagnose.model.trace import Block, Evidence, Ints, Seconds, Trace
from diagnose.numerics.robust import median, nan_median, nan_quantile
from diagnose.whatif.batches import find_all_batches
from diagnose.whatif.graph import Graph, flatten
from diagnose.whatif.replay import CLOCK_ERROR_S

#: Offsets below this, and below this part of a typical forward, are the timers' granularity and are left alone.
MIN_OFFSET_S = 100e-6
MIN_OFFSET_SHARE = 2e-3
#: An offset counts when it is this many times the half interquartile range of what it was estimated from; on one machine
#: with one clock, buffered sends alone give offsets up to 1 ms, but with as much spread.
MIN_OFFSET_SPREADS = 2.0
#: Clocks that are off by this part of a step make transfers, and with them S, wrong by about as much: as much as gains may be off.
APART_SHARE = 0.005
#: Steps looked at, evenly spread, for where clocks usually are, and for whether they move.
MAX_STEPS = 16
MAX_STEPS_MOVING = 64
#: A clock moves where steps differ from their neighbours by no more than this part of what they differ from the median by: load
#: makes ends late in single steps, or a few.
MAX_LEFT = 0.4
#: Dp ranks meet once a step: what their clocks move by below this part of it costs no more, and those who share a GPU end apart.
MIN_MOVED_SHARE = 0.02
#: Dp ranks' clocks are told by what they end together, up to so many times as far apart as what ends the least apart.
NEAREST_RATIO = 3.0
#: ... where it takes no more than so many times as long as in the quickest quarter of the steps.
LONGER_RATIO, QUICK_QUANTILE = 2.0, 0.25
#: Steps on either side, and those that it takes to see a clock move.
NEIGHBOURS = 2
MIN_STEPS_MOVING = 8


@dataclasses.dataclass(frozen=True, slots=True)
class Clocks:
    """How much later than the job's each worker's clock reads.

    Attributes
    ----------
    usual_s : ndarray of float64, shape (n_dp, n_stages)
        Seconds, median 0; all 0 where no worker is off by more than the timers' granularity.
    steps : ndarray of int64, shape (n_steps,)
        All steps of the job in order, where a clock moves; else empty.
    moved_s : ndarray of float64, shape (n_steps, n_dp, n_stages)
        What the clocks of these steps read later than usual, as where they drift over hours or are set in between.
    """

    usual_s: Seconds
    steps: Ints = dataclasses.field(default_factory=lambda: np.zeros(0, dtype=np.int64))
    moved_s: Seconds = dataclasses.field(default_factory=lambda: np.zeros((0, 0, 0)))

    @property
    def agree(self) -> bool:
        """True where there is nothing to correct."""
        return not self.usual_s.any() and not len(self.steps)

    def are_apart(self, step_s: float) -> bool:
        """Say whether clocks are off by so much of a step that figures on times as recorded mean little."""
        return float(np.abs(self.find_extremes()).max(initial=0.0)) > APART_SHARE * step_s

    def find_extremes(self) -> Seconds:
        """Say how far off each clock is where it is furthest off: seconds, shape (n_dp, n_stages)."""
        if not len(self.steps):
            return self.usual_s
        off_s = self.usual_s + self.moved_s
        return np.asarray(np.take_along_axis(off_s, np.abs(off_s).argmax(axis=0)[None], axis=0)[0])

    def at(self, steps: Ints) -> Seconds:
        """Give the offsets of some steps: (n_steps, n_dp, n_stages), or (1, n_dp, n_stages) where they are those of all."""
        if not len(self.steps):
            return self.usual_s[None]
        nearest = np.minimum(np.searchsorted(self.steps, steps), len(self.steps) - 1)
        return np.asarray(self.usual_s + self.moved_s[nearest])


def estimate_clocks(blocks: Sequence[tuple[Block, Graph]], *, may_move: bool = True) -> Clocks:
    """Say how much later than the job's each worker's clock reads.

    A send and its recv end together, and so do all dp ranks of a collective. Over both directions of a link what one side
    reports late cancels out, as in the network time protocol; medians over all pairs and steps leave the clocks. A clock that
    moves is late in one direction by what it is early in the other.

    `blocks` have no gaps, and the paper's graph. On one host nothing moves (`may_move`): ranks that share a GPU in slices of time
    end apart by as much for several steps. Costs a few steps' transfers and collectives, and those of all steps where a clock
    moves.
    """
    forward_s = min(_typical_forward(block) for block, _ in blocks)
    least_s = max(MIN_OFFSET_S, MIN_OFFSET_SHARE * forward_s)
    if may_move:
        usual_s, moved_s = _estimate(blocks, least_s, MAX_STEPS_MOVING)
        if moved_s.any() and any(len(block.steps) > MAX_STEPS_MOVING for block, _ in blocks):
            usual_s, moved_s = _estimate(blocks, least_s, None)
        if moved_s.any():
            return Clocks(usual_s, np.sort(np.concatenate([block.steps for block, _ in blocks])), moved_s)
    return Clocks(_estimate(blocks, least_s, MAX_STEPS)[0])


def _estimate(blocks: Sequence[tuple[Block, Graph]], least_s: float, most_steps: int | None) -> tuple[Seconds, Seconds]:
    """Estimate usual offsets, (n_dp, n_stages), and what is more in each step looked at, (n_steps, n_dp, n_stages)."""
    n_stages = 1 + max(int(block.nodes.stage.max()) for block, _ in blocks)
    strides = [1 if most_steps is None else -(-len(block.steps) // most_steps) for block, _ in blocks]
    along, along_moved = _along_stages(blocks, n_stages, strides, least_s)
    step_s = min(_typical_step(block) for block, _ in blocks)
    across, across_moved = _across_ranks(blocks, along, along_moved, strides, max(least_s, MIN_MOVED_SHARE * step_s))
    offset_s = along + across[:, None]
    offset_s = offset_s - median(offset_s)
    if np.abs(offset_s).max() < least_s:
        offset_s = np.zeros_like(offset_s)
    moved_s = along_moved + across_moved[:, :, None]
    return np.asarray(offset_s), moved_s - median(moved_s, axis=(1, 2), keepdims=True)


def correct_clocks(block: Block, clocks: Clocks) -> Block:
    """Put all workers of a block on one clock, on which no step begins after its first operation."""
    if clocks.agree and not _begins_early(block):
        return block
    shift = _shift(block, clocks)
    origin_s = _move_origin(block, clocks)[None, :, None]
    return dataclasses.replace(block, start_s=block.start_s - shift - origin_s, end_s=block.end_s - shift - origin_s)


def correct_evidence(evidence: Evidence, blocks: Sequence[Block], clocks: Clocks) -> Evidence:
    """Put evidence rows on the clock that `correct_clocks` puts blocks on; `blocks` are as recorded."""
    if (clocks.agree and not any(map(_begins_early, blocks))) or not len(evidence):
        return evidence
    steps = np.concatenate([block.steps for block in blocks])
    origin_s = np.concatenate([_move_origin(block, clocks) for block in blocks])[np.argsort(steps)]
    at = np.minimum(np.searchsorted(np.sort(steps), evidence.step), len(steps) - 1)
    offset_s = clocks.at(evidence.step)
    shift = offset_s[np.arange(len(evidence)) % len(offset_s), evidence.dp, evidence.stage] + origin_s[at]
    return dataclasses.replace(evidence, start_s=evidence.start_s - shift, end_s=evidence.end_s - shift)


def _shift(block: Block, clocks: Clocks) -> Seconds:
    """Say how much later each operation was recorded: seconds, shape (n_nodes, n_steps or 1, n_dp)."""
    return np.asarray(clocks.at(block.steps).transpose(2, 0, 1)[block.nodes.stage])


def carry_over(rows: Evidence, trace: Trace) -> Evidence:
    """Give rows of a job, and behind them those that go on when the next step has begun as rows of that step, too.

    The job's own clock shows it: a save after the optimizer, which some workers still write when others begin. Where times count
    from the start of each step, the next one begins as the first worker is through with what it did in this one.
    """
    if not len(rows):
        return rows
    every_step = np.sort(trace.steps)
    at = np.minimum(np.searchsorted(every_step, rows.step + 1), len(every_step) - 1)
    before = np.minimum(np.searchsorted(every_step, rows.step), len(every_step) - 1)
    over = (every_step[at] == rows.step + 1) & ~np.isin(rows.step + 1, trace.restarted_steps)
    first_s = np.full(len(rows), np.inf)
    if trace.step_origin_s is not None:
        shift_s = trace.step_origin_s[at] - trace.step_origin_s[before]
    else:
        begins_s, ends_s = _span_steps(rows, trace, every_step)
        shift_s = np.fmin.reduce(ends_s, axis=(1, 2))[before]
        # A worker that has begun is through, and how far a step is from the next is known by the ends alone.
        first_s = begins_s[at, rows.dp, rows.stage]
    over &= rows.end_s > shift_s
    again, by_s = rows.take(over), shift_s[over]
    start_s, end_s = again.start_s - by_s, np.fmin(again.end_s - by_s, first_s[over])
    return Evidence.join(
        [rows, dataclasses.replace(again, step=again.step + 1, start_s=np.minimum(start_s, end_s), end_s=end_s)]
    )


def _span_steps(rows: Evidence, trace: Trace, every_step: Ints) -> tuple[Seconds, Seconds]:
    """Say when each worker begins and ends each step, its rows included: shape (n_steps, n_dp, n_stages), NaN if unknown."""
    begins_s, ends_s = np.full((2, len(every_step), trace.n_dp, trace.n_stages), np.nan)
    for block in trace.blocks:
        at = np.searchsorted(every_step, block.steps)
        # Rows are told from the first operation on.
        first_s = np.fmin.reduce(np.fmin.reduce(block.start_s, axis=0), axis=1)[:, None]
        early_s = np.fmin(first_s, 0.0) if _begins_early(block) else np.zeros(1)
        for stage in np.unique(block.nodes.stage).tolist():
            mine = block.nodes.stage == stage
            begins_s[at, :, stage], ends_s[at, :, stage] = (
                block.start_s[mine].min(axis=0) - early_s,
                block.end_s[mine].max(axis=0) - early_s,
            )
    known = np.isin(rows.step, every_step)
    place = np.searchsorted(every_step, rows.step[known]), rows.dp[known], rows.stage[known]
    np.maximum.at(ends_s, place, rows.end_s[known])
    return begins_s, ends_s


def _move_origin(block: Block, clocks: Clocks) -> Seconds:
    """Say what to take from a step's corrected times, so that it begins as late as it was recorded to; seconds, shape (n_steps,).

    Relative times begin a step before its first operation where all workers waited, as for a save; never after it.
    """
    if clocks.agree and not _begins_early(block):
        return np.zeros(len(block.steps))
    corrected_s = np.fmin.reduce(block.start_s - _shift(block, clocks), axis=(0, 2))
    return np.asarray(corrected_s - np.maximum(np.fmin.reduce(block.start_s, axis=(0, 2)), 0.0))


def _begins_early(block: Block) -> bool:
    """Say whether operations stand before the begin of their step: times then count from when the last worker was there.

    That one was still busy with the step before, while others had begun this one.
    """
    return bool(np.fmin.reduce(block.start_s, axis=None) < CLOCK_ERROR_S)


def _typical_forward(block: Block) -> float:
    """Take the median over the forward nodes of their median durations, seconds."""
    forwards = block.nodes.op == Op.FORWARD
    if not forwards.any():
        return 0.0  # nothing to measure by
    return float(median(median(block.end_s[forwards] - block.start_s[forwards], axis=(1, 2))))


def _typical_step(block: Block) -> float:
    """Take the median step, seconds."""
    return float(median(block.end_s.max(axis=(0, 2)) - block.start_s.min(axis=(0, 2))))


def _along_stages(
    blocks: Sequence[tuple[Block, Graph]], n_stages: int, strides: Sequence[int], least_s: float
) -> tuple[Seconds, Seconds]:
    """Estimate each worker's offset against stage 0 of its dp rank, shape (n_dp, n_stages), and how it moves, a step more."""
    seen: dict[tuple[int, int], list[tuple[Seconds, Seconds, Seconds]]] = {}
    for (block, graph), stride in zip(blocks, strides, strict=True):
        stages, moves = block.nodes.stage, graph.moves
        pairs = moves.members.take(np.flatnonzero((moves.members.lengths == 2) & ~moves.across_dp)).flat.reshape(-1, 2)
        # The end of a batch says when its last transfer ended, not when this one did.
        batched = np.isin(pairs, flatten(find_all_batches(block))).any(axis=1)
        send, recv = pairs[~batched & (block.nodes.op[pairs[:, 0]] != Op.EMBEDDING)].T
        link = stages[send] * n_stages + stages[recv]
        for one in np.unique(link).tolist():
            apart_s = np.subtract(*(block.end_s[nodes[link == one], ::stride] for nodes in (recv, send)))
            if block.filled is not None:
                filled = np.logical_or(*(block.filled[nodes[link == one], ::stride] for nodes in (recv, send)))
                apart_s[filled] = np.nan
            # Of a link's transfers in one step one at least is waited for, though senders do not wait: the first one.
            waited_s, by_step = np.fmin.reduce(apart_s, axis=0), nan_median(apart_s, axis=0)
            seen.setdefault(divmod(one, n_stages), []).append((apart_s.reshape(-1, block.n_dp), by_step, waited_s))
    order = _order(blocks, strides)
    of_link = {link: tuple(map(np.concatenate, zip(*found, strict=True))) for link, found in seen.items()}
    n_dp = blocks[0][0].n_dp
    offset_s, moved_s = np.zeros((n_dp, n_stages)), np.zeros((len(order), n_dp, n_stages))
    clips = _clip_ends(blocks, n_stages)
    begin = np.cumsum([0, *(len(block.steps) for block, _ in blocks)])
    looked_at = np.concatenate([np.arange(begin[n], begin[n + 1], stride) for n, stride in enumerate(strides)])[order]
    # When the clip ended on the last stage whose worker has rows, and how far the clock of that one is off.
    clip_s, clip_offset_s = (clips or [np.zeros((0, n_dp))])[0], np.zeros(n_dp)
    for stage in range(1, n_stages):
        ways = [of_link[way] for way in ((stage - 1, stage), (stage, stage - 1)) if way in of_link]
        step, spread, by_step = np.zeros(n_dp), np.zeros(n_dp), np.zeros((0, 0, 0))
        base_s = offset_s[:, stage - 1]
        if len(ways) == 2:
            step, spread, by_step = _find_meeting(*ways)
        if clips is not None:
            # Where every transfer is part of a batch, or a neighbour's rows are lost, the gradient clip is left: it ends at once.
            unknown = np.isnan(step) if len(ways) == 2 else np.ones(n_dp, dtype=bool)
            by_clip, clip_spread = _center_and_spread(clips[stage] - clip_s)
            base_s = np.where(unknown, clip_offset_s, base_s)
            step, spread = np.where(unknown, by_clip, step), np.where(unknown, clip_spread, spread)
        moved = np.zeros((len(order), n_dp))
        if by_step.shape[1] == len(order):
            forth_s, back_s = by_step[:, order]
            moved, step, spread = _find_movement(
                (forth_s - back_s) / 2.0, (forth_s + back_s) / 2.0, step, spread, least_s
            )
        elif clips is not None:
            apart_s = (clips[stage] - clip_s)[looked_at]
            moved, step, spread = _find_movement(apart_s, np.zeros_like(apart_s), step, spread, least_s)
        offset_s[:, stage] = base_s + np.where(np.abs(step) > MIN_OFFSET_SPREADS * spread, step, 0.0)
        moved_s[:, :, stage] = moved_s[:, :, stage - 1] + moved
        if clips is not None:
            has_rows = ~np.isnan(clips[stage]).all(axis=0)
            clip_s = np.where(has_rows, clips[stage], clip_s)
            clip_offset_s = np.where(has_rows, offset_s[:, stage], clip_offset_s)
    return offset_s, moved_s


def _find_meeting(*ways: tuple[Seconds, ...]) -> tuple[Seconds, Seconds, Seconds]:
    """Say how far the clock of a link's second stage is ahead, by how much later receivers of both directions end than senders.

    Where a send is buffered, a receiver that comes late ends late, and only one that waited ends with it, as the first one does. A
    clock is as early in one direction as it is late in the other: what is late in both is no clock's. The surer of the two counts.

    Parameters
    ----------
    ways : tuples of ndarray of float64
        Seconds of all transfers, (n_transfers, n_dp); in the middle of each step, and of its soonest one, (n_steps, n_dp).

    Returns
    -------
    usual_s, spread_s : ndarray of float64, shape (n_dp,)
    by_step_s : ndarray of float64, shape (2, n_steps, n_dp)
        Seconds of both directions; without steps where they have not as many.
    """
    every, middle, waited = zip(*ways, strict=True)
    (usual_s, spread_s), (waited_s, waited_spread_s) = map(_compare_ways, (every, waited))
    by_waited = waited_spread_s < spread_s
    usual_s, spread_s = np.where(by_waited, [waited_s, waited_spread_s], [usual_s, spread_s])
    if len(middle[0]) != len(middle[1]):
        return usual_s, spread_s, np.zeros((2, 0, len(by_waited)))
    return usual_s, spread_s, np.where(by_waited, waited, middle)


def _compare_ways(ways: Sequence[Seconds]) -> tuple[Seconds, Seconds]:
    """Say how far a clock is ahead by both directions, each (n_any, n_dp), and how much that varies or is late: (n_dp,)."""
    (there, back) = map(_center_and_spread, ways)
    # A batch that waits for another transfer is late in both directions; a clock is early in one and late in the other.
    both_late = np.abs(there[0] + back[0]) / 2.0
    return (there[0] - back[0]) / 2.0, np.maximum(np.maximum(there[1], back[1]), both_late)


def _order(blocks: Sequence[tuple[Block, Graph]], strides: Sequence[int]) -> Ints:
    """Put the steps that are looked at, block by block, in order."""
    return np.argsort(
        np.concatenate([block.steps[::stride] for (block, _), stride in zip(blocks, strides, strict=True)])
    )


def _find_movement(
    apart_s: Seconds, both_late_s: Seconds, usual_s: Seconds, spread_s: Seconds, least_s: float
) -> tuple[Seconds, Seconds, Seconds]:
    """Say how far clocks are from where they usually are, in each step.

    Parameters
    ----------
    apart_s : ndarray of float64, shape (n_steps, n_dp)
        How far the clock seems to be ahead in each step.
    both_late_s : ndarray of float64, shape (n_steps, n_dp)
        What is late in both directions. A clock does not move that; a transfer that is late in one direction moves both alike.
    usual_s, spread_s : ndarray of float64, shape (n_dp,)
        Where a clock usually is, taken over the whole trace, and how much that varies.
    least_s : float
        Movements below do not count.

    Returns
    -------
    moved_s : ndarray of float64, shape (n_steps, n_dp)
        Seconds; all 0 for a clock that does not move.
    usual_s, spread_s : ndarray of float64, shape (n_dp,)
        As given; for a clock that moves, what is left when its movement is taken out.
    """
    if len(apart_s) < MIN_STEPS_MOVING:
        return np.zeros_like(apart_s), usual_s, spread_s
    around = _windows(apart_s)
    center, smooth_s = median(apart_s, axis=0), median(around, axis=2)
    late_s = median(_windows(both_late_s), axis=2)
    range_s = np.ptp(smooth_s, axis=0)
    by_others = median(np.delete(around, NEIGHBOURS, axis=2), axis=2)
    left_s, all_s = (np.minimum(np.abs(apart_s - by), range_s).mean(axis=0) for by in (by_others, center))
    # What is late may be so in one direction alone, which looks as far apart.
    proven_s = (smooth_s - np.abs(late_s)).max(axis=0) - (smooth_s + np.abs(late_s)).min(axis=0)
    moves = (range_s > least_s) & (left_s < MAX_LEFT * all_s) & (proven_s > range_s / 2.0)
    smooth_s = smooth_s - center
    left_s = _center_and_spread(apart_s - smooth_s)[1]
    left_s = np.maximum(left_s, np.abs(median(both_late_s, axis=0)))
    return np.where(moves, smooth_s, 0.0), np.where(moves, center, usual_s), np.where(moves, left_s, spread_s)


def _windows(values: Seconds) -> Seconds:
    """Put beside each step those around it: shape (n_steps, n_dp, n_window)."""
    padded = np.pad(values, ((NEIGHBOURS, NEIGHBOURS), (0, 0)), mode="reflect")
    return np.lib.stride_tricks.sliding_window_view(padded, 2 * NEIGHBOURS + 1, axis=0)


def _clip_ends(blocks: Sequence[tuple[Block, Graph]], n_stages: int) -> list[Seconds] | None:
    """Collect when the gradient clip ended on each stage, each (n_steps, n_dp); None where it was not recorded everywhere."""
    ends: list[list[Seconds]] = [[] for _ in range(n_stages)]
    for block, _ in blocks:
        for node in np.flatnonzero((block.nodes.op == Op.CLIP) & (block.nodes.seq == 0)).tolist():
            ends[int(block.nodes.stage[node])].append(_recorded_ends(block, node))
    lengths = {sum(len(e) for e in found) for found in ends}
    return [np.concatenate(found) for found in ends] if len(lengths) == 1 and all(ends) else None


def _recorded_ends(block: Block, node: int) -> Seconds:
    """Say when an operation ended, (n_steps, n_dp); NaN where its row is lost."""
    ends_s = block.end_s[node]
    return ends_s if block.filled is None else np.where(block.filled[node], np.nan, ends_s)


def _across_ranks(
    blocks: Sequence[tuple[Block, Graph]], along: Seconds, moved: Seconds, strides: Sequence[int], least_s: float
) -> tuple[Seconds, Seconds]:
    """Estimate each dp rank's offset at stage 0 against the median rank, shape (n_dp,), and how it moves, a step more.

    A clock makes all that ranks do together end apart alike; a slow link makes the members of a ring end apart, too, and no clock
    makes a collective longer. So of all of it that counts which ends least apart, in steps in which it is quick. 0 without dp
    collectives.
    """
    n_dp, order = blocks[0][0].n_dp, _order(blocks, strides)
    place, seen = np.argsort(order), 0
    ends: dict[tuple[int, int, int], list[Seconds]] = {}
    took: dict[tuple[int, int, int], list[Seconds]] = {}
    of_steps: dict[tuple[int, int, int], list[Ints]] = {}
    for (block, graph), stride in zip(blocks, strides, strict=True):
        nodes = block.nodes
        here = place[seen : seen + len(block.steps[::stride])]
        seen += len(here)
        for node in _find_together(block, graph):
            stage = int(nodes.stage[node])
            end_s = block.end_s[node, ::stride] - along[:, stage] - moved[here][:, :, stage]
            kind = (int(nodes.op[node]), stage, int(nodes.seq[node]))
            ends.setdefault(kind, []).append(end_s - median(end_s, axis=1, keepdims=True))
            took.setdefault(kind, []).append((block.end_s[node] - block.start_s[node])[::stride].min(axis=1))
            of_steps.setdefault(kind, []).append(here)
    moved_s = np.zeros((len(order), n_dp))
    if n_dp == 1 or not ends:
        return np.zeros(n_dp), moved_s
    late_s = np.full((len(ends), len(order), n_dp), np.nan)
    for n, kind in enumerate(ends):
        took_s = np.concatenate(took[kind])
        is_quick = took_s <= LONGER_RATIO * max(float(np.quantile(took_s, QUICK_QUANTILE)), least_s)
        late_s[n, np.concatenate(of_steps[kind])] = np.where(is_quick[:, None], np.concatenate(ends[kind]), np.nan)
    n_steps = np.array([sum(map(len, of_kind)) for of_kind in of_steps.values()])
    late_s = late_s[2 * n_steps >= n_steps.max()]
    by_kind, spread_by_kind = _center_and_spread(late_s.swapaxes(0, 1))
    apart_s = np.nanmean(np.abs(late_s), axis=(1, 2))
    late_s = late_s[apart_s <= NEAREST_RATIO * apart_s.min()]
    center, spread = _center_and_spread(late_s.reshape(-1, n_dp))
    by_step, every = nan_median(late_s, axis=0), np.arange(len(order))
    told = np.isfinite(by_step).all(axis=1)
    if told.any():
        by_step = np.stack([np.interp(every, every[told], of_rank[told]) for of_rank in by_step.T], axis=1)
        moved_s, center, spread = _find_movement(by_step, np.zeros_like(by_step), center, spread, least_s)
    # Who lets the others go ends first, but only there.
    on_time = (np.abs(by_kind) < np.abs(center) / 2.0) & (np.abs(by_kind - center) > spread_by_kind)
    known = (np.abs(center) > MIN_OFFSET_SPREADS * spread) & ~on_time.any(axis=0)
    return np.where(known, center, 0.0), moved_s


def _find_together(block: Block, graph: Graph) -> list[int]:
    """Find what ends at once on all dp ranks of a stage: their collectives and, where they have some, the gradient clip.

    Those of a stage where the rows of a rank are lost count only where there are no others.
    """
    members = graph.moves.members
    first = members.flat[members.begin[:-1][graph.moves.across_dp]]
    found = first[of_types(block.nodes.op[first], DP_COLLECTIVES)].tolist()
    clips = np.flatnonzero((block.nodes.op == Op.CLIP) & (block.nodes.seq == 0))
    together = [*found, *clips.tolist()] if found else []
    whole = [node for node in together if not np.isnan(_recorded_ends(block, node)).all(axis=0).any()]
    return whole or together


def _center_and_spread(values: Seconds) -> tuple[Seconds, Seconds]:
    """Take the median and the half interquartile range over the first axis."""
    low, center, high = (nan_quantile(values, q, axis=0) for q in (0.25, 0.5, 0.75))
    return center, (high - low) / 2.0
