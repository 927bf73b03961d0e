"""Replay a block: from own times (and launch delays) to the end of every step, over all lanes at once.

Enters: a `Graph` and one array a node, each broadcastable to (n_steps, n_dp). Leaves: step times. A replay costs
O(operations) element operations and O(nodes) numpy calls; arrays that do not vary over steps or dp ranks stay
small, so the ideal part of a scenario costs nothing.
"""

import dataclasses
import functools
import os
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

import numpy as np

from diagnose.model.optype import COMPUTE, of_types
from diagnose.model.trace import Block, Seconds
from diagnose.whatif.graph import Event, Graph, last_of, split_nodes
from diagnose.whatif.levels import OfNodes, levels_of, list_shapes, replay_levels

#: Operations of up to so many lanes are measured many at a time: calls cost more there than what is copied.
FEW_LANES = 256
#: Transfer durations and launch delays below this count as 0 (arXiv 2505.05713): they are errors of the clock.
CLOCK_ERROR_S = -0.010
#: Cells (operation, lane) of the scenarios replayed in one walk at most, and lanes: longer arrays leave the processor's cache.
MAX_WALK_CELLS, MAX_WALK_LANES = 4_000_000, 4_000
#: Threads that replay side by side at most, and where the environment says that a process has one core, as those of a night do.
MAX_THREADS = 4
THREADS = "OMP_NUM_THREADS"

What = TypeVar("What")
Found = TypeVar("Found")


def replay(graph: Graph, own: OfNodes, delay: OfNodes | None = None) -> Seconds:
    """Say when each step ends, all dp ranks of it replayed together.

    Parameters
    ----------
    own : sequence of ndarray of float64, length n_nodes, each broadcastable to (n_steps, n_dp)
        Own time of each operation, seconds: duration, or transfer duration.
    delay : same, optional
        Launch delay of each operation, seconds; none when left out.

    Returns
    -------
    ndarray of float64, shape (n_steps or 1, 1)
        Seconds from the start of the step to the end of the last optimizer.
    """
    (ends,), _ = _walk(graph, [own], delay, keep_all=False)
    return np.asarray(_latest([ends[node] for node in graph.finals]).max(axis=1, keepdims=True))


def replay_ends(graph: Graph, own: OfNodes, delay: OfNodes | None = None) -> list[Seconds | None]:
    """Say when each operation ends, as `replay` has it; None for nodes that the graph leaves out."""
    (ends,), _ = _walk(graph, [own], delay, keep_all=True)
    return [ends.get(node) for node in range(graph.n_nodes)]


@dataclasses.dataclass(frozen=True, slots=True)
class Ranks:
    """Step times with the own times of each dp rank alone, and of all together: seconds, broadcastable to (n_steps, n_dp).

    `from_first_s` are those of all counted from the first start where a negative transfer duration lets an operation start before
    the step (the published analyser does so for S itself, and counts from the start of the step in all its relatives).
    """

    alone_s: Seconds
    together_s: Seconds
    from_first_s: Seconds


def replay_each_rank(graph: Graph, own: OfNodes, peer: OfNodes) -> Ranks:
    """Replay once for each dp rank, which has `own` times while all others have the same `peer` times, and once with all own times.

    All others are alike, so two lanes say what all would: the rank and one peer, meeting in the collectives. One
    walk gives all scenarios: all ranks together are as each is among peers until they meet.
    """
    ends, openings = _walk(graph, [own, peer, own], None, keep_all=False)
    alone, peers, together = (_latest([of_world[node] for node in graph.finals]) for of_world in ends)
    together, opening = together.max(axis=1, keepdims=True), openings[2].min(axis=1, keepdims=True)
    alone = np.maximum(alone, peers) if any(n_dp > 1 for _, n_dp in list_shapes(own)) else together
    return Ranks(alone, together, np.asarray(together - opening))


def side_by_side(do: Callable[[What], Found], each: Iterable[What], blocks: Iterable[Block]) -> list[Found]:
    """Do something with each of several scenarios: in threads where operations have many lanes, whose arrays leave room for others.

    The result does not depend on how many threads there are.
    """
    if os.environ.get(THREADS) == "1" or all(block.start_s[0].size <= FEW_LANES for block in blocks):
        return [do(one) for one in each]
    with ThreadPoolExecutor(max_workers=min(MAX_THREADS, os.cpu_count() or 1)) as pool:
        return list(pool.map(do, each))


def group_walks(scenarios: Sequence[What], blocks: Sequence[Block]) -> list[Sequence[What]]:
    """Group scenarios that are replayed in one walk, as more lanes; a walk costs its calls where lanes are few."""
    n_cells, n_lanes = (
        max(1, *sizes) for sizes in zip(*((b.start_s.size, b.start_s[0].size) for b in blocks), strict=True)
    )
    size = max(1, min(MAX_WALK_CELLS // n_cells, MAX_WALK_LANES // n_lanes))
    return [scenarios[first : first + size] for first in range(0, len(scenarios), size)]


def _walk(
    graph: Graph, worlds: list[OfNodes], delay: OfNodes | None, *, keep_all: bool
) -> tuple[list[dict[int, Seconds]], list[Seconds]]:
    """Walk the graph once; `worlds` are one set of lanes, or three: ranks among peers, these peers, and all ranks together.

    Gives the ends by node, and the earliest start where it lies before the step, for each world.
    """
    if (by_level := replay_levels(graph, worlds, delay)) is not None:
        kept = graph.moves.completes.flat.tolist() if keep_all else graph.finals
        at = levels_of(graph).number[[*kept]].tolist()
        return [dict(zip(kept, map(of_world.__getitem__, at), strict=True)) for of_world in by_level[0]], by_level[1]
    ends: list[dict[int, Seconds]] = [{} for _ in worlds]
    moved: list[dict[int, Seconds]] = [{} for _ in worlds]
    openings = [np.zeros((1, 1))] * len(worlds)
    awaited = {i for event in graph.events for i in event.awaits}
    first_two = list(zip(ends[:2], moved[:2], strict=True))
    for i, (event, forget) in enumerate(zip(graph.events, graph.last_use, strict=True)):
        moves = [_move(graph, event, *world, delay) for world in first_two]
        if len(worlds) > 2:
            apart = not _is_shared(graph, event, ends, moved)
            moves.append(_move(graph, event, ends[2], moved[2], delay) if apart else moves[0])
        starts = [start for start, _ in moves]
        for w, (_, early) in enumerate(moves):
            openings[w] = openings[w] if early is None else np.minimum(openings[w], early)
        if event.across_dp and len(worlds) == 1:
            starts = [np.maximum.reduce(starts[0], axis=1, keepdims=True)]
        elif event.across_dp and (starts[2] is not starts[0] or starts[0].size > 1 or starts[0] != starts[1]):
            starts = [np.maximum(*starts[:2])] * 2 + [np.maximum.reduce(starts[2], axis=1, keepdims=True)]
        for w, (own, start) in enumerate(zip(worlds, starts, strict=True)):
            if i in awaited:
                moved[w][i] = start
            is_own = delay is not None and not event.awaits and i not in awaited  # nobody else has these starts
            for node in event.completes:
                if w == 2 and start is starts[0]:
                    ends[w][node] = ends[0][node]
                else:
                    is_last = is_own and node == event.completes[-1] and start.shape == own[node].shape
                    ends[w][node] = np.add(start, own[node], out=start if is_last else None)
        for node in () if keep_all else forget:
            for world in ends:
                world.pop(node, None)
    return ends, openings


def _move(
    graph: Graph, event: Event, ends: dict[int, Seconds], moved: dict[int, Seconds], delay: OfNodes | None
) -> tuple[Seconds, Seconds | None]:
    """Say when an event moves on each dp rank, and the earliest start of those of its members that can start before the step."""
    if event.awaits:
        return _latest([moved[i] for i in event.awaits]), None
    starts, early = [], []
    for node in event.members:
        sources = [ends[source] for source in graph.waits[node]]
        if node in graph.barriers:
            sources += [barrier.opens(ends) for barrier in graph.barriers[node]]
        if graph.starts_step(node):
            sources.append(np.zeros((1, 1)))
        start = _latest(sources)
        if delay is not None:
            is_own = len(sources) > 1 and start.shape == delay[node].shape
            start = np.add(start, delay[node], out=start if is_own else None)
        if node in graph.openers:
            early.append(start)
        starts.append(start)
    return _latest(starts) if starts else np.zeros((1, 1)), functools.reduce(np.minimum, early) if early else None


def _is_shared(graph: Graph, event: Event, ends: list[dict[int, Seconds]], moved: list[dict[int, Seconds]]) -> bool:
    """Say whether all ranks together have done all that an event waits for as each has among peers."""
    if event.awaits:
        return all(moved[2][i] is moved[0][i] for i in event.awaits)
    sources = [source for node in event.members for source in graph.waits[node]]
    sources += [s for node in event.members for barrier in graph.barriers.get(node, ()) for s in barrier.sources]
    return all(ends[2][source] is ends[0][source] for source in sources)


def _latest(arrays: Sequence[Seconds]) -> Seconds:
    """Elementwise maximum of a few arrays; of several a new one."""
    latest = arrays[0]
    for n, other in enumerate(arrays[1:]):
        latest = np.maximum(latest, other, out=latest if n and latest.shape == other.shape else None)
    return latest


def own_times(block: Block, graph: Graph) -> OfNodes:
    """Say how long each operation took by itself: a compute its duration, a communication its transfer duration.

    The transfer duration is the end minus the latest start among the peers; below -10 ms it counts as 0. One array a node,
    shape (n_steps, n_dp), seconds, all in one where lanes are few; NaN where the operation is missing.

    Source: arXiv 2505.05713, section 3.2.
    """
    if block.start_s[0].size <= FEW_LANES:
        return _own_of_few_lanes(block, graph)
    own: list[Seconds] = [np.zeros((1, 1))] * graph.n_nodes
    moved: dict[int, Seconds] = {}
    awaited = {i for event in graph.events for i in event.awaits}
    is_compute = of_types(block.nodes.op, COMPUTE)
    for i, event in enumerate(graph.events):
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
    return own


def _own_of_few_lanes(block: Block, graph: Graph) -> Seconds:
    """Give `own_times` where lanes are few: all events at a time."""
    events, n_lanes = graph.moves, block.start_s[0].size
    moved = np.full((len(events), *block.start_s.shape[1:]), np.nan)
    for part in split_nodes(np.flatnonzero(events.members.lengths), n_lanes):
        moved[part] = last_of(block.start_s, events.members.take(part), np.fmax)
    moved[events.across_dp] = np.fmax.reduce(moved[events.across_dp], axis=2, keepdims=True)
    for part in split_nodes(np.flatnonzero(events.awaits.lengths), n_lanes):
        moved[part] = last_of(moved, events.awaits.take(part), np.fmax)
    own, ending = np.zeros((graph.n_nodes, *block.start_s.shape[1:])), events.completes.flat
    own[ending] = block.end_s[ending] - moved[events.completes.row_of()]
    passes = ~of_types(block.nodes.op, COMPUTE)
    own[(own < CLOCK_ERROR_S) & passes[:, None, None]] = 0.0
    return own


def launch_delays(block: Block, graph: Graph) -> OfNodes:
    """Say how long after all that it waited for each operation started; below -10 ms it counts as 0.

    As `own_times` has it; NaN where the operation or what it waited for is missing.
    """
    few_lanes = block.start_s[0].size <= FEW_LANES
    delays: list[Seconds] | Seconds = (
        np.zeros((graph.n_nodes, *block.start_s.shape[1:])) if few_lanes else [np.zeros((1, 1))] * graph.n_nodes
    )
    members, alone = graph.moves.members.flat, np.full(graph.n_nodes, few_lanes)
    alone[[*graph.barriers]] = False
    alone &= graph.sources.lengths > 0
    for node in members[~alone[members]].tolist():
        sources = [block.end_s[source] for source in graph.waits[node]]
        sources += [barrier.opens(block.end_s) for barrier in graph.barriers.get(node, ())]
        if graph.starts_step(node):
            sources.append(np.zeros((1, 1)))
        delay = block.start_s[node] - _latest(sources)
        delay[delay < CLOCK_ERROR_S] = 0.0
        delays[node] = delay
    for part in split_nodes(members[alone[members]], block.start_s[0].size):
        late = block.start_s[part] - last_of(block.end_s, graph.sources.take(part))
        late[late < CLOCK_ERROR_S] = 0.0
        delays[part] = late
    return delays
