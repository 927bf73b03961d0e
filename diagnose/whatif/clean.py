"""Take the clean step apart: how much of it is computing, the pipeline's shape, communication, the host.

Enters: a `Removal`. Leaves: a `CleanStep`. Costs two walks of the clean job, each over three times an even sample of its steps.

Transfers, collectives, meetings of data-parallel ranks, launch delays and other rows are taken away one after the other. Each time
the step gets shorter by what that part is: no second counts twice, and none is left out. What remains is a pipeline in which only
computes take time: its workers compute or stand in the bubble.
"""

import functools
from collections.abc import Sequence

import numpy as np

from diagnose.model.budget import CleanStep
from diagnose.model.change import Remove
from diagnose.model.optype import COMPUTE, P2P, Op, of_types
from diagnose.model.trace import Bools, Seconds
from diagnose.whatif.graph import Graph, change_lanes, repeat_lanes
from diagnose.whatif.levels import OfNodes, stack
from diagnose.whatif.observed import Observed
from diagnose.whatif.removal import Removal
from diagnose.whatif.replay import replay, replay_ends

#: What the worker computes; a collection that all have at a planned place is the host's.
WORK = sorted(int(op) for op in COMPUTE - {Op.GC})


def split_clean(removal: Removal, clean_s: float) -> CleanStep:
    """Take apart the step that is left without any component, of `clean_s` seconds with the time after it; means of a worker."""
    gone = [Remove(name) for name in removal.present()]
    worked_s, steps_s, n_steps = 0.0, np.zeros(6), 0
    for i, at in enumerate(removal.sample_steps()):
        n = len(range(len(removal.observed[i].block.steps))[at])
        of_block = _measure_block(removal.observed[i], *removal.change_steps(i, gone, at), at, n)
        worked_s, steps_s, n_steps = worked_s + of_block[0], steps_s + of_block[1], n_steps + n
    # Clocks err by some milliseconds: without a negative transfer or delay a step may come out longer.
    levels = np.maximum.accumulate(np.r_[worked_s, steps_s[::-1]] / n_steps)
    between_s = min(float(removal.between_without(gone).mean()), clean_s)
    scale = (clean_s - between_s) / levels[-1] if levels[-1] > 0 else 0.0
    parts_s: list[float] = (np.diff(levels, prepend=0.0) * scale).tolist()
    compute_s, bubble_s, others_s, host_s, meetings_s, collectives_s, transfers_s = parts_s
    return CleanStep(
        compute_s=compute_s,
        bubble_s=bubble_s,
        transfers_s=transfers_s,
        collectives_s=collectives_s + meetings_s,
        host_s=host_s,
        others_s=others_s,
        between_s=between_s,
    )


def _measure_block(
    o: Observed, graph: Graph, own: OfNodes, delay: OfNodes, at: slice, n_steps: int
) -> tuple[float, Seconds]:
    """Say what the mean worker computes in some steps of a block, and how long these are with less and less: seconds, all steps.

    With everything; without transfers; without collectives; data-parallel ranks by themselves; without launch delays; without other
    rows before operations. One walk has the first three side by side, as if they were steps, and one the others.
    """
    op, shape = o.block.nodes.op, (n_steps, o.block.n_dp)
    # A collection of all workers at a planned place counts as a late launch.
    works, late = of_types(op, WORK), op == Op.GC
    own_s, delay_s = stack(own, shape), stack(delay, shape)
    kept = np.stack([np.ones(len(op), dtype=bool), ~of_types(op, P2P), works | late], axis=1)
    met = replay(
        repeat_lanes(graph, 3, shape),
        _lay_out(own_s, kept),
        _lay_out(delay_s, np.ones_like(kept)),
    )
    # Lanes become steps, so that data-parallel ranks do not meet.
    apart = (shape[0] * shape[1], 1)
    own_s = _lay_out(own_s.reshape(-1, *apart), np.stack([works | late, works, works], axis=1))
    delay_s = _lay_out(delay_s.reshape(-1, *apart), np.broadcast_to([True, False, False], (len(op), 3)))
    if o.busy is not None:
        for worlds, busy in zip(delay_s.reshape(-1, 3, *apart), o.busy, strict=True):
            worlds[1] = np.minimum(worlds[0], _flatten(busy[at] if len(busy) > 1 else busy, shape))
    ends = replay_ends(
        change_lanes(graph, lambda lanes: np.tile(np.broadcast_to(lanes, shape).reshape(apart), (3, 1))),
        own_s,
        delay_s,
    )
    last = functools.reduce(np.maximum, [end for node in graph.finals if (end := ends[node]) is not None])
    long_s = [*met.reshape(3, -1).mean(axis=1), *last.reshape(3, -1).mean(axis=1)]
    worked_s = []
    for stage in range(int(o.block.nodes.stage.max()) + 1):
        nodes = np.flatnonzero(works & (o.block.nodes.stage == stage)).tolist()
        # In the last world nothing but computes takes time.
        spans = [(end[-apart[0] :, 0], own_s[n][-apart[0] :, 0]) for n in nodes if (end := ends[n]) is not None]
        worked_s.append(_unite(spans))
    return float(np.mean(worked_s)) * n_steps, np.array(long_s) * n_steps


def _lay_out(seconds: Seconds, kept: Bools) -> Seconds:
    """Put times of nodes, or 0 where they are not kept (shape (n_nodes, n_worlds)), world behind world on the axis of steps."""
    found = np.where(kept[:, :, None, None], seconds[:, None], 0.0)
    return found.reshape(len(seconds), -1, seconds.shape[2])


def _flatten(array: Seconds, shape: tuple[int, int]) -> Seconds:
    """Make a step of every lane: shape (n_steps x n_dp, 1)."""
    if array.size == 1:
        return array
    return (array if array.shape == shape else np.broadcast_to(array, shape)).reshape(-1, 1)


def _unite(spans: Sequence[tuple[Seconds, Seconds]]) -> float:
    """Say how long some of the spans, each an end and a length of shape (n_lanes,), last, whatever runs beside it; mean lane."""
    if not spans:
        return 0.0
    ends = np.stack([end for end, _ in spans])
    starts = ends - np.stack([own for _, own in spans])
    order = np.argsort(starts, axis=0)
    starts, ends = (np.take_along_axis(times, order, axis=0) for times in (starts, ends))
    covered = np.maximum.accumulate(ends, axis=0)
    fresh = np.maximum(ends[1:] - np.maximum(starts[1:], covered[:-1]), 0.0)
    return float((covered[0] - starts[0] + fresh.sum(axis=0)).mean())
