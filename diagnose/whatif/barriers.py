"""Waits for other workers that no row records: a launch delay that tracks another operation's end.

Enters: a block and the graph of what is known. Leaves: a graph with barriers.
"""

import numpy as np

from diagnose.errors import TraceError
from diagnose.model.optype import COMPUTE, DIRECTIONS, Op
from diagnose.model.trace import Block, Bools, Nodes, Seconds
from diagnose.numerics.robust import keep_where
from diagnose.whatif.batches import HELD_SHARE
from diagnose.whatif.graph import Barrier, Events, Graph, Layout, last_of, order_graph, split_nodes

#: A barrier must explain more than this part of the launch delay.
EXPLAINED_SHARE = 0.5
#: Clocks of several workers agree no better than this.
BARRIER_TOLERANCE_S = 100e-6
#: ... nor do they all read the end of a long wait within this part of it.
EARLY_SHARE = 0.02
#: Two explanations that differ by less are the same.
ROUNDING_S = 1e-9
#: Means that are added up in another order differ by less than this part.
ROUNDING = 1e-9
#: Launch delays below this part of the step are not worth a barrier.
WORTH_SHARE = 0.01
#: A worker that waits for others may wait for more of them, which shows in few steps: delays of this part of the step, in so many.
RARE_SHARE = 0.1
RARE_STEPS = 2


def add_hidden_barriers(
    block: Block,
    layout: Layout,
    graph: Graph,
    waits: list[set[int]],
    events: Events,
    batches: list[tuple[int, ...]],
) -> Graph:
    """Add the waits for other workers that no row records: a launch delay that tracks another operation's end."""
    step_s = float(np.mean(block.step_ends_s))
    op, start_s, end_s = block.nodes.op, block.start_s, block.end_s
    if block.filled is not None:
        start_s, end_s = np.where(block.filled, np.nan, start_s), np.where(block.filled, np.nan, end_s)
    first_forwards = {
        layout.of(Op.FORWARD, stage)[0] for stage in range(layout.n_stages) if layout.of(Op.FORWARD, stage)
    }
    every = _barrier_sources(layout, graph)
    computes = [node for node in every if Op(int(block.nodes.op[node])) in COMPUTE]
    late = _list_late(graph, start_s, block.end_s, (WORTH_SHARE - ROUNDING) * step_s)
    opens = graph.sources.lengths == 0
    for sources in (every, computes):
        barriers: dict[int, tuple[Barrier, ...]] = {}
        for event in graph.events if late else ():
            for node in event.members:
                if node not in late:
                    continue
                delay = start_s[node] - np.max(block.end_s[list(graph.waits[node])], axis=0)
                lanes = _lane_mean(delay) > WORTH_SHARE * step_s
                if not lanes.any():
                    continue
                if node in first_forwards:  # a step begins: whoever begins it last keeps the others waiting
                    candidates = [source for source in graph.waits[node] if opens[source]]
                else:
                    candidates = [
                        source
                        for source in sources
                        if source not in event.members and (op[source] != Op.OPTIMIZER or op[node] == Op.ALL_GATHER)
                    ]
                found = _find_barriers(block.nodes, start_s, end_s, node, delay, lanes, candidates)
                if found:
                    left = _left_over(start_s[node], end_s, delay, found)
                    again = lanes & ((left > RARE_SHARE * step_s).sum(axis=0) >= RARE_STEPS)
                    known = {source for barrier in found for source in barrier.sources}
                    others = [source for source in candidates if source not in known]
                    barriers[node] = found + _find_barriers(block.nodes, start_s, end_s, node, left, again, others)
        if not barriers:
            return graph
        try:
            return order_graph(layout, waits, events, barriers, batches)
        except TraceError:
            continue  # operations that start together seem to wait for each other; computes never do
    return graph


def _list_late(graph: Graph, start_s: Seconds, end_s: Seconds, least_s: float) -> set[int]:
    """List the nodes that start by more than so much later than all that they wait for, on the mean of a dp rank or more."""
    waiting = np.flatnonzero(graph.sources.lengths)
    found: set[int] = set()
    for part in split_nodes(waiting, start_s[0].size):
        delay_s = np.moveaxis(start_s[part] - last_of(end_s, graph.sources.take(part)), 1, 0)  # steps first
        found.update(part[(_lane_mean(delay_s) > least_s).any(axis=1)].tolist())
    return found


def _left_over(start_s: Seconds, end_s: Seconds, delay: Seconds, barriers: tuple[Barrier, ...]) -> Seconds:
    """Say which part of a launch delay some barriers leave: seconds, (n_steps, n_dp)."""
    for barrier in barriers:
        opened = end_s[barrier.sources[0]]
        if barrier.across_dp:
            opened = np.fmax.reduce(opened, axis=1, keepdims=True)
        beyond = np.clip(start_s - opened, 0.0, np.maximum(delay, 0.0))
        delay = beyond if barrier.lanes is None else np.where(barrier.lanes, beyond, delay)
    return delay


def _barrier_sources(layout: Layout, graph: Graph) -> list[int]:
    """List the ends that a hidden barrier may wait for: the last compute of each stage and what closes the step.

    An optimizer closes it for gathers alone: other ends say the same of what runs before it.
    """
    sources: list[int] = []
    for stage in range(layout.n_stages):
        sources += layout.by_start(DIRECTIONS, stage)[-1:]
        for op in (
            Op.ALL_GATHER,
            Op.GC,
            Op.LAYERNORM,
            Op.EMBEDDING,
            Op.REDUCE_SCATTER,
            Op.SEPARATE,
            Op.CLIP,
            Op.OPTIMIZER,
        ):
            sources += layout.of(op, stage)[-1:]
    known = np.zeros(graph.n_nodes, dtype=bool)
    known[graph.moves.completes.flat] = True
    return [source for source in sources if known[source]]


def _find_barriers(
    nodes: Nodes, start_s: Seconds, end_s: Seconds, node: int, delay: Seconds, lanes: Bools, sources: list[int]
) -> tuple[Barrier, ...]:
    """Find the waits of one node, each for the dp ranks that the ones before did not explain."""
    found: list[Barrier] = []
    while lanes.any():
        barrier = _find_barrier(nodes, start_s, end_s, node, delay, lanes, sources)
        if barrier is None:
            break
        found.append(barrier)
        lanes = lanes & ~barrier.lanes if barrier.lanes is not None else np.zeros_like(lanes)
    return tuple(found)


def _find_barrier(
    nodes: Nodes, start_s: Seconds, end_s: Seconds, node: int, delay: Seconds, lanes: Bools, sources: list[int]
) -> Barrier | None:
    """Find the one wait that explains most of a launch delay, if it holds in nearly all steps and explains half of it."""
    best: tuple[float, Barrier] | None = None
    for source in sources:
        for across_dp in (False, True):
            opened = end_s[source]
            if across_dp:
                if opened.shape[1] == 1:
                    continue
                opened = np.fmax.reduce(opened, axis=1, keepdims=True)
            elif nodes.stage[source] == nodes.stage[node]:
                continue  # on its own worker it would be a serial wait
            beyond = start_s[node] - opened
            holds = _holds(beyond, delay, lanes)
            if not holds.any():
                continue
            unexplained = np.clip(beyond, 0.0, np.maximum(delay, 0.0))
            left = float(_lane_mean(unexplained)[holds].sum() + _lane_mean(delay)[lanes & ~holds].sum())
            if best is None or left < best[0] - ROUNDING_S:
                best = left, Barrier((source,), across_dp, None if holds.all() else holds)
    return None if best is None else best[1]


def _holds(beyond: Seconds, delay: Seconds, lanes: Bools) -> Bools:
    """Say for which dp ranks a wait holds: never started earlier, and most of the delay explained."""
    tolerance_s = np.maximum(EARLY_SHARE * delay, BARRIER_TOLERANCE_S)
    early = _lane_mean(np.where(np.isnan(beyond), np.nan, beyond < -tolerance_s))
    # Of the delay itself: where something else is waited for in most steps, the rest of them is nobody's.
    unexplained = np.clip(beyond, 0.0, np.maximum(delay, 0.0))
    explained = _lane_mean(unexplained) < (1.0 - EXPLAINED_SHARE) * _lane_mean(np.maximum(delay, 0.0))
    return np.asarray(lanes & (early <= 1.0 - HELD_SHARE) & explained)


def _lane_mean(values: Seconds) -> Seconds:
    """Take the mean over the steps that recorded it, shape (n_dp,); 0 where none did."""
    there = ~np.isnan(values)
    return np.asarray(keep_where(there, values).sum(axis=0) / np.maximum(there.sum(axis=0), 1))
