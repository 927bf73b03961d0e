"""Group laid-out steps by their structure, put their times on the step's own clock, and find what is no ordinary step.

Enters: `Dense` with all steps together. Leaves: blocks of steps that share one structure, and a warning for each damage.
"""

import dataclasses

import numpy as np

from diagnose.model.optype import Op
from diagnose.model.trace import Block, Bools, Evidence, Ints, Nodes, Seconds
from diagnose.trace.place import Dense

#: A step with a larger part of its operations missing is dropped; below, the gaps are filled by usual values.
MAX_MISSING_SHARE = 0.20
#: A first step this much longer than nearly all others is a warm-up.
WARM_UP_RATIO = 1.3
#: Steps that a warm-up lasts at most, and steps needed to tell one.
MAX_WARM_UP_STEPS = 3
MIN_STEPS_FOR_WARM_UP = 8
#: Rows after a worker's last compute may start this much before its end and still follow it.
TOLERANCE_S = 1e-3

_PIPELINED = (Op.FORWARD, Op.BACKWARD, Op.FORWARD_SEND, Op.FORWARD_RECV, Op.BACKWARD_SEND, Op.BACKWARD_RECV)


def shift_origin(dense: Dense, evidence: Evidence) -> tuple[Seconds | None, Evidence]:
    """Make times relative to the step in place; say where steps began if the file had times of the whole job."""
    first = np.fmin.reduce(np.fmin.reduce(dense.start_s, axis=0), axis=1)
    last = np.fmax.reduce(np.fmax.reduce(dense.end_s, axis=0), axis=1)
    length = float(np.median(last - first))
    if float(np.max(np.abs(first))) <= max(length, 1e-9):
        return None, evidence
    dense.start_s -= first[:, None]
    dense.end_s -= first[:, None]
    shift = first[evidence.step]
    moved = dataclasses.replace(evidence, start_s=evidence.start_s - shift, end_s=evidence.end_s - shift)
    return first, moved


def add_collections(dense: Dense, evidence: Evidence, n_stages: int) -> None:
    """Give each stage a `gc` node where collections follow the last compute; elsewhere they stay evidence."""
    rows = np.flatnonzero(evidence.op == Op.GC)
    if not len(rows):
        return
    nodes = dense.nodes
    compute = np.isin(nodes.op, (Op.FORWARD, Op.BACKWARD))
    step, dp, stage = evidence.step[rows], evidence.dp[rows], evidence.stage[rows]
    after = np.zeros(len(rows), dtype=bool)
    starts, ends = [], []
    for of_stage in range(n_stages):
        last = np.fmax.reduce(dense.end_s[compute & (nodes.stage == of_stage)], axis=0)
        here = stage == of_stage
        tail = here & (evidence.start_s[rows] >= last[step, dp] - TOLERANCE_S)
        after |= tail
        if not tail.any():
            continue
        start, end = last.copy(), last.copy()
        cell = (step[tail], dp[tail])
        start[cell] = evidence.start_s[rows[tail]]
        np.minimum.at(start, cell, evidence.start_s[rows[tail]])
        np.maximum.at(end, cell, evidence.end_s[rows[tail]])
        starts.append((of_stage, start))
        ends.append(end)
    if not starts:
        return
    n_new = len(starts)
    dense.nodes = Nodes(
        op=np.r_[nodes.op, np.full(n_new, int(Op.GC))],
        stage=np.r_[nodes.stage, [of_stage for of_stage, _ in starts]],
        seq=np.r_[nodes.seq, np.zeros(n_new, dtype=np.int64)],
        microbatch=np.r_[nodes.microbatch, np.full(n_new, -1)],
        chunk=np.r_[nodes.chunk, np.full(n_new, -1)],
    )
    dense.start_s = np.concatenate([dense.start_s, [start for _, start in starts]])
    dense.end_s = np.concatenate([dense.end_s, ends])
    for column in ("tokens", "tokens_sq"):
        values = getattr(dense, column)
        if values is not None:
            setattr(dense, column, np.concatenate([values, np.full((n_new, *values.shape[1:]), np.nan)]))


def split_steps(steps: Ints, dense: Dense, warnings: list[str]) -> tuple[list[Block], Bools]:
    """Group the steps by their number of microbatches and drop those that miss too much."""
    nodes = dense.nodes
    there = ~np.isnan(dense.start_s)
    everything = np.ones(len(steps), dtype=bool)
    if there.all():
        return [Block(steps, nodes, dense.start_s, dense.end_s, None, dense.tokens, dense.tokens_sq)], everything
    compute = np.isin(nodes.op, (Op.FORWARD, Op.BACKWARD))
    pipelined = np.isin(nodes.op, _PIPELINED)
    n_seq = int(nodes.seq.max()) + 1
    n_stages = int(nodes.stage.max()) + 1
    runs = np.zeros((n_seq, *there.shape[1:]), dtype=np.int64)
    np.add.at(runs, nodes.seq[compute], there[compute])
    is_there = runs >= n_stages
    count = np.where(is_there.any(axis=0), n_seq - is_there[::-1].argmax(axis=0), 0)
    per_step = count.max(axis=1)
    blocks: list[Block] = []
    kept = everything.copy()
    n_missing = n_stray = 0
    for n_of_type in np.unique(per_step).tolist():
        at = np.flatnonzero(per_step == n_of_type)
        cells = there[:, at]
        share = cells.mean(axis=(1, 2))
        enough = per_step > nodes.seq[:, None]
        overall = np.where(
            enough.any(axis=1), (there.mean(axis=2) * enough).sum(axis=1) / np.maximum(enough.sum(axis=1), 1), 0.0
        )
        kept_node = (share >= 0.5) | (pipelined & (nodes.seq < n_of_type) & (overall >= 0.5))
        n_stray += int(np.count_nonzero(cells[~kept_node]))
        absent = pipelined[:, None, None] & (nodes.seq[:, None, None] >= count[None, at])
        missing = ~cells & ~absent
        dropped = (
            missing[kept_node].mean(axis=0).mean(axis=1) > MAX_MISSING_SHARE
            if kept_node.any()
            else np.ones(len(at), bool)
        )
        kept[at[dropped]] = False
        at = at[~dropped]
        if not len(at):
            continue
        absent, missing = absent[kept_node][:, ~dropped], missing[kept_node][:, ~dropped]
        n_missing += int(np.count_nonzero(missing))
        fields = [getattr(nodes, f.name)[kept_node] for f in dataclasses.fields(nodes)]
        pick = np.ix_(kept_node, at)
        blocks.append(
            Block(
                steps[at],
                Nodes(*fields),
                dense.start_s[pick],
                dense.end_s[pick],
                absent if absent.any() else None,
                None if dense.tokens is None else dense.tokens[pick],
                None if dense.tokens_sq is None else dense.tokens_sq[pick],
            )
        )
    if n_missing:
        warnings.append(f"{n_missing} operations are missing; filled by their usual own time and launch delay")
    if n_stray:
        warnings.append(f"{n_stray} operations that most ranks do not have are left out")
    if not kept.all():
        listed = ", ".join(str(int(step)) for step in steps[~kept][:8])
        warnings.append(f"{int((~kept).sum())} steps miss too many operations and are dropped ({listed})")
    if len(blocks) > 1:
        sizes = ", ".join(f"{len(block.steps)} with {int(block.nodes.microbatch.max()) + 1}" for block in blocks)
        warnings.append(
            f"the number of microbatches changes between steps ({sizes}); each is replayed as its own group"
        )
    return blocks, kept


def find_warm_up(blocks: list[Block], warnings: list[str]) -> tuple[int, ...]:
    """Name the first steps where they are a warm-up: much longer than nearly all others."""
    steps = np.concatenate([block.steps for block in blocks]) if blocks else np.zeros(0, dtype=np.int64)
    if len(steps) < MIN_STEPS_FOR_WARM_UP:
        return ()
    order = np.argsort(steps)
    length_s = np.concatenate([np.fmax.reduce(np.fmax.reduce(block.end_s, axis=0), axis=1) for block in blocks])[order]
    usual = float(np.quantile(length_s[MAX_WARM_UP_STEPS:], 0.9))
    long = length_s[:MAX_WARM_UP_STEPS] > WARM_UP_RATIO * usual
    n_long = MAX_WARM_UP_STEPS if long.all() else int(long.argmin())
    if n_long:
        times = float(length_s[:n_long].max() / np.median(length_s[n_long:]))
        warnings.append(
            f"the first {n_long} steps are a warm-up (up to {times:.1f} times the usual time): they count in the slowdown as in "
            "the paper, causes are sought without them"
        )
    return tuple(int(step) for step in steps[order][:n_long])
