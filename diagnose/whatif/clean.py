"""Take the clean step apart: how much of it is computing, the pipeline's shape, communication, the host.

Enters: a `Removal`. Leaves: a `CleanStep`. Costs six replays of the clean job on an even sample of the steps, no more than one
each of what a large job has.

Transfers, collectives, meetings of data-parallel ranks, launch delays and other rows are taken away one after the other. Each time
the step gets shorter by what that part is: no second counts twice, and none is left out. What remains is a pipeline in which only
computes take time: its workers compute or stand in the bubble.
"""

import dataclasses
from collections.abc import Sequence

import numpy as np

from diagnose.model.budget import CleanStep
from diagnose.model.change import Remove
from diagnose.model.optype import COMPUTE, P2P, Op
from diagnose.model.trace import Bools, Seconds
from diagnose.whatif.graph import Barrier, Graph
from diagnose.whatif.observed import Observed
from diagnose.whatif.removal import Removal
from diagnose.whatif.replay import replay, replay_ends

#: What the worker computes; a collection that all have at a planned place is the host's.
WORK = sorted(int(op) for op in COMPUTE - {Op.GC})

_ZERO = np.zeros((1, 1))


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
    o: Observed, graph: Graph, own: Sequence[Seconds], delay: Sequence[Seconds], at: slice, n_steps: int
) -> tuple[float, Seconds]:
    """Say what the mean worker computes in some steps of a block, and how long these are with less and less: seconds, all steps.

    With everything; without transfers; without collectives; data-parallel ranks by themselves; without launch delays; without other
    rows before operations.
    """
    op, shape = o.block.nodes.op, (n_steps, o.block.n_dp)

    def without(kept: Sequence[Seconds], gone: Bools) -> list[Seconds]:
        return [_ZERO if is_gone else array for array, is_gone in zip(kept, gone.tolist(), strict=True)]

    works, transfers, collects = np.isin(op, WORK), np.isin(op, P2P), op == Op.GC
    still, computes = without(own, transfers), without(own, ~works & ~collects)
    long_s = [_add_up(replay(graph, times, delay), shape) for times in (own, still, computes)]
    apart, delay = _separate(graph, shape), [_flatten(array, shape) for array in delay]
    computes = [_flatten(array, shape) for array in computes]
    long_s.append(_add_up(replay(apart, computes, delay), shape))
    computes = without(computes, collects)
    if o.busy is not None:
        busy = [_flatten(array[at] if len(array) > 1 else array, shape) for array in o.busy]
        long_s.append(
            _add_up(replay(apart, computes, [np.minimum(*both) for both in zip(delay, busy, strict=True)]), shape)
        )
    ends = replay_ends(apart, computes)
    last = [end for node in graph.finals if (end := ends[node]) is not None]
    long_s.append(_add_up(np.max(np.broadcast_arrays(*last), axis=0) if last else _ZERO, shape))
    if o.busy is None:
        long_s.append(long_s[-1])
    n_stages = int(o.block.nodes.stage.max()) + 1
    worked_s = sum(
        _add_up(
            _unite([(ends[n], computes[n]) for n in np.flatnonzero(works & (o.block.nodes.stage == stage)).tolist()]),
            shape,
        )
        for stage in range(n_stages)
    )
    return worked_s / n_stages, np.array(long_s)


def _add_up(seconds: Seconds, shape: tuple[int, int]) -> float:
    """Add up lanes, shape (n_steps, n_dp) or (n_steps x n_dp, 1) or what is broadcast to it, the mean dp rank of each step."""
    return float(seconds.mean()) * shape[0]


def _flatten(array: Seconds, shape: tuple[int, int]) -> Seconds:
    """Make a step of every lane, so that data-parallel ranks do not meet: shape (n_steps x n_dp, 1)."""
    return array if array.size == 1 else np.broadcast_to(array, shape).reshape(-1, 1)


def _separate(graph: Graph, shape: tuple[int, int]) -> Graph:
    """Give the graph in which lanes are steps."""
    barriers: dict[int, tuple[Barrier, ...]] = {
        node: tuple(
            dataclasses.replace(
                b, lanes=None if b.lanes is None else np.broadcast_to(b.lanes, shape).reshape(-1, 1), groups=None
            )
            for b in of_node
        )
        for node, of_node in graph.barriers.items()
    }
    return dataclasses.replace(graph, barriers=barriers)


def _unite(spans: Sequence[tuple[Seconds | None, Seconds]]) -> Seconds:
    """Say how long some of the spans, each an end and a length, last in each lane, side by side or one after the other."""
    known = [(end, own) for end, own in spans if end is not None]
    if not known:
        return _ZERO
    ends = np.stack(np.broadcast_arrays(*(end for end, _ in known)))
    starts = ends - np.stack([np.broadcast_to(own, ends.shape[1:]) for _, own in known])
    order = np.argsort(starts, axis=0)
    starts, ends = (np.take_along_axis(times, order, axis=0) for times in (starts, ends))
    covered = np.maximum.accumulate(ends, axis=0)
    begins = np.maximum(starts[1:], covered[:-1])
    return np.asarray(covered[0] - starts[0] + np.maximum(ends[1:] - begins, 0.0).sum(axis=0))
