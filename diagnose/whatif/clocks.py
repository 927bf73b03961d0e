"""Find out whose clock is off, from operations that end together on several workers, and correct it.

Enters: prepared blocks with times as recorded. Leaves: one offset a worker; blocks on one clock for the component
what-if. S and its relatives stay on times as recorded.
"""

import dataclasses
from collections.abc import Sequence

import numpy as np

from diagnose.model.optype import DP_COLLECTIVES, Op, of_types
from diagnose.model.trace import Block, Evidence, Seconds, Trace
from diagnose.numerics.robust import median
from diagnose.whatif.batches import find_all_batches
from diagnose.whatif.graph import Graph, flatten

#: Offsets below this, and below this part of a typical forward, are the timers' granularity and are left alone.
MIN_OFFSET_S = 100e-6
MIN_OFFSET_SHARE = 2e-3
#: An offset counts when it is this many times the half interquartile range of what it was estimated from; on one machine
#: with one clock, buffered sends alone give offsets up to 1 ms, but with as much spread.
MIN_OFFSET_SPREADS = 2.0
#: Steps looked at; a clock does not drift within the minutes of a trace by more than the timers' granularity.
MAX_STEPS = 16


def estimate_offsets(blocks: Sequence[tuple[Block, Graph]]) -> Seconds:
    """Say how much later than the job's each worker's clock reads.

    A send and its recv end together, and so do all dp ranks of a collective. Over both directions of a link what one side
    reports late cancels out, as in the network time protocol; medians over all pairs and steps leave the clocks.

    `blocks` have no gaps, and the paper's graph.

    Returns
    -------
    ndarray of float64, shape (n_dp, n_stages)
        Seconds, median 0; all 0 where no worker is off by more than the timers' granularity.
    """
    n_stages = 1 + max(int(block.nodes.stage.max()) for block, _ in blocks)
    along = _along_stages(blocks, n_stages)
    offset_s = along + _across_ranks(blocks, along)[:, None]
    offset_s = offset_s - median(offset_s)
    forward_s = min(_typical_forward(block) for block, _ in blocks)
    if np.abs(offset_s).max() < max(MIN_OFFSET_S, MIN_OFFSET_SHARE * forward_s):
        return np.zeros_like(offset_s)
    return np.asarray(offset_s)


def correct_clocks(block: Block, offset_s: Seconds) -> Block:
    """Put all workers of a block on one clock; `offset_s` as `estimate_offsets` gives it."""
    if not offset_s.any():
        return block
    shift = offset_s.T[block.nodes.stage][:, None, :]
    origin_s = _move_origin(block, offset_s)[None, :, None]
    return dataclasses.replace(block, start_s=block.start_s - shift - origin_s, end_s=block.end_s - shift - origin_s)


def correct_evidence(evidence: Evidence, blocks: Sequence[Block], offset_s: Seconds) -> Evidence:
    """Put evidence rows on the clock that `correct_clocks` puts blocks on; `blocks` are as recorded."""
    if not offset_s.any() or not len(evidence):
        return evidence
    steps = np.concatenate([block.steps for block in blocks])
    origin_s = np.concatenate([_move_origin(block, offset_s) for block in blocks])[np.argsort(steps)]
    at = np.minimum(np.searchsorted(np.sort(steps), evidence.step), len(steps) - 1)
    shift = offset_s[evidence.dp, evidence.stage] + origin_s[at]
    return dataclasses.replace(evidence, start_s=evidence.start_s - shift, end_s=evidence.end_s - shift)


def carry_over(rows: Evidence, trace: Trace) -> Evidence:
    """Give rows of a job, and behind them those that go on when the next step has begun as rows of that step, too.

    Only the job's own clock shows it: a save after the optimizer, which some workers still write when others begin.
    """
    origin_s = trace.step_origin_s
    if origin_s is None or not len(rows):
        return rows
    every_step = np.sort(trace.steps)
    at = np.minimum(np.searchsorted(every_step, rows.step + 1), len(every_step) - 1)
    before = np.minimum(np.searchsorted(every_step, rows.step), len(every_step) - 1)
    shift_s = origin_s[at] - origin_s[before]
    over = (every_step[at] == rows.step + 1) & (rows.end_s > shift_s)
    over &= ~np.isin(rows.step + 1, trace.restarted_steps)
    again, by_s = rows.take(over), shift_s[over]
    moved = dataclasses.replace(again, step=again.step + 1, start_s=again.start_s - by_s, end_s=again.end_s - by_s)
    return Evidence.join([rows, moved])


def _move_origin(block: Block, offset_s: Seconds) -> Seconds:
    """Say what to take from a step's corrected times, so that it begins as late as it was recorded to; seconds, shape (n_steps,).

    Relative times begin a step before its first operation where all workers waited, as for a save; never after it.
    """
    corrected_s = (block.start_s - offset_s.T[block.nodes.stage][:, None, :]).min(axis=(0, 2))
    return np.asarray(corrected_s - np.maximum(block.start_s.min(axis=(0, 2)), 0.0))


def _typical_forward(block: Block) -> float:
    """Take the median over the forward nodes of their median durations, seconds."""
    forwards = block.nodes.op == Op.FORWARD
    if not forwards.any():
        return 0.0  # nothing to measure by
    return float(median(median(block.end_s[forwards] - block.start_s[forwards], axis=(1, 2))))


def _along_stages(blocks: Sequence[tuple[Block, Graph]], n_stages: int) -> Seconds:
    """Estimate each worker's offset against stage 0 of its dp rank, shape (n_dp, n_stages)."""
    seen: dict[tuple[int, int], list[Seconds]] = {}
    for block, graph in blocks:
        stride, stages, moves = -(-len(block.steps) // MAX_STEPS), block.nodes.stage, graph.moves
        pairs = moves.members.take(np.flatnonzero((moves.members.lengths == 2) & ~moves.across_dp)).flat.reshape(-1, 2)
        # The end of a batch says when its last transfer ended, not when this one did.
        batched = np.isin(pairs, flatten(find_all_batches(block))).any(axis=1)
        send, recv = pairs[~batched & (block.nodes.op[pairs[:, 0]] != Op.EMBEDDING)].T
        link = stages[send] * n_stages + stages[recv]
        for one in np.unique(link).tolist():
            ends = [block.end_s[nodes[link == one], ::stride] for nodes in (recv, send)]
            seen.setdefault(divmod(one, n_stages), []).append((ends[0] - ends[1]).reshape(-1, block.n_dp))
    between = {link: _center_and_spread(np.concatenate(ends)) for link, ends in seen.items()}
    n_dp = blocks[0][0].n_dp
    offset_s = np.zeros((n_dp, n_stages))
    clips = _clip_ends(blocks, n_stages)
    for stage in range(1, n_stages):
        there, back = between.get((stage - 1, stage)), between.get((stage, stage - 1))
        step, spread = np.zeros(n_dp), np.zeros(n_dp)
        if there is not None and back is not None:
            step = (there[0] - back[0]) / 2.0
            # A batch that waits for another transfer is late in both directions; a clock is early in one and late in the other.
            both_late = np.abs(there[0] + back[0]) / 2.0
            spread = np.maximum(np.maximum(there[1], back[1]), both_late)
        elif clips is not None:
            # Where every transfer is part of a batch, the gradient clip is left: it ends everywhere at once.
            step, spread = _center_and_spread(clips[stage] - clips[stage - 1])
        offset_s[:, stage] = offset_s[:, stage - 1] + np.where(np.abs(step) > MIN_OFFSET_SPREADS * spread, step, 0.0)
    return offset_s


def _clip_ends(blocks: Sequence[tuple[Block, Graph]], n_stages: int) -> list[Seconds] | None:
    """Collect when the gradient clip ended on each stage, each (n_steps, n_dp); None where it was not recorded everywhere."""
    ends: list[list[Seconds]] = [[] for _ in range(n_stages)]
    for block, _ in blocks:
        for node in np.flatnonzero((block.nodes.op == Op.CLIP) & (block.nodes.seq == 0)).tolist():
            ends[int(block.nodes.stage[node])].append(block.end_s[node])
    lengths = {sum(len(e) for e in found) for found in ends}
    return [np.concatenate(found) for found in ends] if len(lengths) == 1 and all(ends) else None


def _across_ranks(blocks: Sequence[tuple[Block, Graph]], along: Seconds) -> Seconds:
    """Estimate each dp rank's offset at stage 0 against the median rank, shape (n_dp,); 0 without dp collectives."""
    n_dp = blocks[0][0].n_dp
    ends: list[Seconds] = []
    for block, graph in blocks:
        stride = -(-len(block.steps) // MAX_STEPS)
        members = graph.moves.members
        first = members.flat[members.begin[:-1][graph.moves.across_dp]]
        nodes = first[of_types(block.nodes.op[first], DP_COLLECTIVES)]
        end_s = block.end_s[nodes, ::stride] - along.T[block.nodes.stage[nodes], None]
        ends.append((end_s - median(end_s, axis=2, keepdims=True)).reshape(-1, n_dp))
    if not any(map(len, ends)) or n_dp == 1:
        return np.zeros(n_dp)
    center, spread = _center_and_spread(np.concatenate(ends))
    return np.where(np.abs(center) > MIN_OFFSET_SPREADS * spread, center, 0.0)


def _center_and_spread(values: Seconds) -> tuple[Seconds, Seconds]:
    """Take the median and the half interquartile range over the first axis."""
    low, center, high = np.quantile(values, [0.25, 0.5, 0.75], axis=0)
    return center, (high - low) / 2.0
