"""Replay a block: from own times (and launch delays) to the end of every step, over all lanes at once.

Enters: a `Graph` and one array a node, each broadcastable to (n_steps, n_dp). Leaves: step times. A replay costs
O(operations) element operations and O(nodes) numpy calls; arrays that do not vary over steps or dp ranks stay
small, so the ideal part of a scenario costs nothing.
"""

import functools
import os
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

import numpy as np

from diagnose.model.optype import COMPUTE
from diagnose.model.trace import Block, Seconds
from diagnose.whatif.graph import Event, Graph, group_by_members, last_ends, split_nodes
from diagnose.whatif.levels import replay_levels

#: One array a node, each broadcastable to (n_steps, n_dp), or all in one array; seconds.
Lanes = Sequence[Seconds] | Seconds

#: Operations of up to so many lanes are measured many at a time: calls cost more there than what is copied.
FEW_LANES = 256
#: Transfer durations and launch delays below this count as 0 (arXiv 2505.05713): they are errors of the clock.
CLOCK_ERROR_S = -0.010
#: Threads that replay side by side at most.
MAX_THREADS = 4

What = TypeVar("What")
Found = TypeVar("Found")


def replay(graph: Graph, own: Lanes, delay: Lanes | None = None, *, from_first_start: bool = False) -> Seconds:
    """Say when each step ends, all dp ranks of it replayed together.

    Parameters
    ----------
    own : sequence of ndarray of float64, length n_nodes, each broadcastable to (n_steps, n_dp)
        Own time of each operation, seconds: duration, or transfer duration.
    delay : same, optional
        Launch delay of each operation, seconds; none when left out.
    from_first_start : bool
        Count from the first start where a negative transfer duration lets an operation start before the step (the
        published analyser does so for S itself, and counts from the start of the step in all its relatives).

    Returns
    -------
    ndarray of float64, shape (n_steps or 1, 1)
        Seconds from the start of the step to the end of the last optimizer.
    """
    (ends,), (opening,) = _walk(graph, [own], delay, keep_all=False)
    last = _latest([ends[node] for node in graph.finals]).max(axis=1, keepdims=True)
    return np.asarray(last - opening.min(axis=1, keepdims=True)) if from_first_start else np.asarray(last)


def replay_ends(graph: Graph, own: Lanes, delay: Lanes | None = None) -> list[Seconds | None]:
    """Say when each operation ends, as `replay` has it; None for nodes that the graph leaves out."""
    (ends,), _ = _walk(graph, [own], delay, keep_all=True)
    return [ends.get(node) for node in range(graph.n_nodes)]


def replay_each_rank(graph: Graph, own: Lanes, peer: Lanes) -> Seconds:
    """Replay once for each dp rank: that rank has `own` times, all others have `peer` times, the same for all of them.

    All others are alike, so two lanes say what all would: the rank and one peer, meeting in the collectives. One
    walk gives every dp rank's scenario: step times in seconds, shape broadcastable to (n_steps, n_dp).
    """
    n_dp = max(np.shape(array)[-1] for array in own)
    if n_dp == 1:
        return replay(graph, own)
    worlds, _ = _walk(graph, [own, peer], None, keep_all=False)
    return _latest([ends[node] for ends in worlds for node in graph.finals])


def side_by_side(do: Callable[[What], Found], each: Iterable[What], blocks: Iterable[Block]) -> list[Found]:
    """Do something with each of several scenarios: in threads where operations have many lanes, whose arrays leave room for others.

    The result does not depend on how many threads there are.
    """
    if all(block.start_s[0].size <= FEW_LANES for block in blocks):
        return [do(one) for one in each]
    with ThreadPoolExecutor(max_workers=min(MAX_THREADS, os.cpu_count() or 1)) as pool:
        return list(pool.map(do, each))


def _walk(
    graph: Graph, worlds: list[Lanes], delay: Lanes | None, *, keep_all: bool
) -> tuple[list[dict[int, Seconds]], list[Seconds]]:
    """Walk the graph once; several worlds are sets of lanes that meet in the collectives over dp ranks.

    Gives the ends by node, and the earliest start where it lies before the step, for each world.
    """
    if (by_level := replay_levels(graph, worlds, delay)) is not None:
        kept = graph.moves.completes.flat.tolist() if keep_all else graph.finals
        return [{node: of_world[node] for node in kept} for of_world in by_level[0]], by_level[1]
    zero = np.zeros((1, 1))
    ends: list[dict[int, Seconds]] = [{} for _ in worlds]
    moved: list[dict[int, Seconds]] = [{} for _ in worlds]
    openings = [zero] * len(worlds)
    awaited = {i for event in graph.events for i in event.awaits}
    for i, (event, forget) in enumerate(zip(graph.events, graph.last_use, strict=True)):
        starts = []
        for w, world in enumerate(ends):
            if event.awaits:
                starts.append(_latest([moved[w][j] for j in event.awaits]))
                continue
            latest: Seconds | None = None
            for node in event.members:
                sources = [world[source] for source in graph.waits[node]]
                sources += [barrier.opens(world) for barrier in graph.barriers.get(node, ())]
                start = _latest(sources) if sources else zero
                if delay is not None:
                    start = start + delay[node]
                if node in graph.openers:
                    openings[w] = np.minimum(openings[w], start)
                latest = start if latest is None else np.maximum(latest, start)
            starts.append(zero if latest is None else latest)
        if event.across_dp:
            if len(worlds) == 1:
                starts[0] = starts[0].max(axis=1, keepdims=True)
            else:
                starts = [np.maximum(starts[0], starts[1])] * 2
        for w, (own, start) in enumerate(zip(worlds, starts, strict=True)):
            if i in awaited:
                moved[w][i] = start
            for node in event.completes:
                ends[w][node] = start + own[node]
            if not keep_all:
                for node in forget:
                    ends[w].pop(node, None)
    return ends, openings


def _latest(arrays: Sequence[Seconds]) -> Seconds:
    """Elementwise maximum of a few arrays."""
    return functools.reduce(np.maximum, arrays)


def own_times(block: Block, graph: Graph) -> list[Seconds]:
    """Say how long each operation took by itself: a compute its duration, a communication its transfer duration.

    The transfer duration is the end minus the latest start among the peers; below -10 ms it counts as 0. One array a node,
    shape (n_steps, n_dp), seconds; NaN where the operation is missing.

    Source: arXiv 2505.05713, section 3.2.
    """
    own: list[Seconds] = [np.zeros((1, 1))] * graph.n_nodes
    moved: dict[int, Seconds] = {}
    awaited = {i for event in graph.events for i in event.awaits}
    is_compute = np.isin(block.nodes.op, [int(op) for op in COMPUTE])
    few_lanes = block.start_s[0].size <= FEW_LANES
    together: list[Event] = []
    for i, event in enumerate(graph.events):
        if few_lanes and event.completes == event.members and not event.across_dp and i not in awaited:
            together.append(event)
            continue
        if event.awaits:
            start = functools.reduce(np.fmax, [moved[j] for j in event.awaits])
        else:
            start = functools.reduce(np.fmax, [block.start_s[node] for node in event.members])
            if event.across_dp:
                start = np.fmax.reduce(start, axis=1, keepdims=True)
        if i in awaited:
            moved[i] = start
        for node in event.completes:
            own[node] = block.end_s[node] - start
            if not is_compute[node]:
                own[node][own[node] < CLOCK_ERROR_S] = 0.0
    for members in group_by_members(together):
        for part in split_nodes(members, block.start_s[0].size * members.shape[1]):
            took = block.end_s[part] - np.fmax.reduce(block.start_s[part], axis=1, keepdims=True)
            took[(took < CLOCK_ERROR_S) & ~is_compute[part][..., None, None]] = 0.0
            for nodes, of_event in zip(part.T.tolist(), np.moveaxis(took, 1, 0), strict=True):
                for node, array in zip(nodes, of_event, strict=True):
                    own[node] = array
    return own


def launch_delays(block: Block, graph: Graph) -> list[Seconds]:
    """Say how long after all that it waited for each operation started; below -10 ms it counts as 0.

    As `own_times` has it; NaN where the operation or what it waited for is missing.
    """
    delays: list[Seconds] = [np.zeros((1, 1))] * graph.n_nodes
    few_lanes = block.start_s[0].size <= FEW_LANES
    together: list[int] = []
    for event in graph.events:
        for node in event.members:
            if few_lanes and graph.waits[node] and node not in graph.barriers:
                together.append(node)
                continue
            sources = [block.end_s[source] for source in graph.waits[node]]
            sources += [barrier.opens(block.end_s) for barrier in graph.barriers.get(node, ())]
            delay = block.start_s[node] - _latest(sources) if sources else block.start_s[node].copy()
            delay[delay < CLOCK_ERROR_S] = 0.0
            delays[node] = delay
    for part in split_nodes(np.array(together, dtype=np.int64), block.start_s[0].size):
        late = block.start_s[part] - last_ends(graph, part.tolist(), block.end_s)
        late[late < CLOCK_ERROR_S] = 0.0
        for node, delay in zip(part.tolist(), late, strict=True):
            delays[node] = delay
    return delays
