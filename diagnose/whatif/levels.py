"""Replay a graph of many operations on few lanes level by level: all that waits for nothing but earlier levels moves in one call.

Enters: a `Graph`, own times and launch delays. Leaves: when each operation ends, to the bit as a walk from operation to operation
has it. Costs a few calls a level instead of a few an operation, and one array of all nodes and lanes a set of times.
"""

import dataclasses
from collections import defaultdict
from collections.abc import Iterable, Sequence

import numpy as np

from diagnose.model.trace import Ints, Seconds
from diagnose.whatif.graph import Barrier, Event, Graph

#: Graphs of fewer events, and larger arrays (nodes x lanes), are walked: there calls cost less than what is copied.
MIN_EVENTS = 1_000
MAX_CELLS = 2_000_000


@dataclasses.dataclass(frozen=True, slots=True)
class Level:
    """Events of one level that move alike, one after the other in each array.

    Attributes
    ----------
    sources, source_at : ndarray of int64
        Nodes whose ends members wait for, and where those of each member begin; two rows behind all nodes are the start of the
        step, and minus infinity.
    members, member_at : ndarray of int64
        Nodes that start, and where those of each event begin; none where events await others.
    awaits, await_at : ndarray of int64
        Events that are awaited, and where those of each event begin.
    completes, completes_of : ndarray of int64
        Nodes that end their own time after, and after which event of the level.
    events : ndarray of int64
        Positions in the graph.
    openers : ndarray of int64
        Which of the members are `Graph.openers`.
    barriers : tuple of (int, Barrier)
        Learned waits of members, by position in `members`.
    """

    sources: Ints
    source_at: Ints
    members: Ints
    member_at: Ints
    awaits: Ints
    await_at: Ints
    completes: Ints
    completes_of: Ints
    events: Ints
    openers: Ints
    barriers: tuple[tuple[int, Barrier], ...]
    across_dp: bool

    def start(self, ends: Seconds, moved: Seconds, delay: Seconds | None) -> tuple[Seconds, Seconds | None]:
        """Say when each event moves, and when each member starts (None where none does): shape (n, n_steps, n_dp)."""
        if len(self.awaits):
            return np.maximum.reduceat(moved[self.awaits], self.await_at, axis=0), None
        start = np.maximum.reduceat(ends[self.sources], self.source_at, axis=0)
        for at, barrier in self.barriers:
            start[at] = np.maximum(start[at], barrier.opens(ends))
        if delay is not None:
            start += delay[self.members]
        return np.maximum.reduceat(start, self.member_at, axis=0), start


def replay_levels(
    graph: Graph, worlds: Sequence[Sequence[Seconds]], delay: Sequence[Seconds] | None
) -> tuple[list[Seconds], list[Seconds]] | None:
    """Say when each node ends in each of one or two sets of lanes, which meet in the collectives over dp ranks.

    Returns
    -------
    ends : list of ndarray of float64, shape (n_nodes + 2, n_steps, n_dp)
        Seconds, one array a world.
    openings : list of ndarray of float64, shape broadcastable to (n_steps, n_dp)
        The earliest start where it lies before the step.
    None where the graph is small, or there are many lanes.
    """
    if len(graph.events) < MIN_EVENTS:
        return None
    shapes = {array.shape for arrays in (*worlds, delay or ()) for array in arrays}
    shape = (max(n_steps for n_steps, _ in shapes), max(n_dp for _, n_dp in shapes))
    if graph.n_nodes * shape[0] * shape[1] * len(worlds) > MAX_CELLS:
        return None
    own = [_stack(arrays, shape) for arrays in worlds]
    late = None if delay is None else _stack(delay, shape)
    ends = [np.zeros((graph.n_nodes + 2, *shape)) for _ in worlds]
    for of_world in ends:
        of_world[-1] = -np.inf
    moved = [np.zeros((len(graph.events), *shape)) for _ in worlds]
    openings = [np.zeros((1, 1))] * len(worlds)
    for level in levels_of(graph):
        starts = []
        for w, (of_world, before) in enumerate(zip(ends, moved, strict=True)):
            start, of_members = level.start(of_world, before, late)
            if len(level.openers) and of_members is not None:
                openings[w] = np.minimum(openings[w], of_members[level.openers].min(axis=0))
            starts.append(start)
        if level.across_dp and len(starts) == 1:
            starts = [starts[0].max(axis=2, keepdims=True)]
        elif level.across_dp:
            starts = [np.maximum(*starts)] * 2
        for own_s, of_world, before, start in zip(own, ends, moved, starts, strict=True):
            before[level.events] = start
            of_world[level.completes] = start[level.completes_of] + own_s[level.completes]
    return ends, openings


def _stack(arrays: Sequence[Seconds], shape: tuple[int, int]) -> Seconds:
    """Put one array a node into one of shape (n_nodes, n_steps, n_dp)."""
    found = np.empty((len(arrays), *shape))
    for node, array in enumerate(arrays):
        found[node] = array
    return found


def levels_of(graph: Graph) -> list[Level]:
    """Put the events of a graph into levels, worked out once a graph."""
    if not graph.levels:
        graph.levels[:] = list(_build(graph))  # at once, as several threads replay a graph
    return graph.levels


def _build(graph: Graph) -> Iterable[Level]:
    """Give the levels in order."""
    level_of_node = [-1] * graph.n_nodes
    level_of_event: list[int] = []
    kinds: dict[tuple[int, bool, bool], list[int]] = defaultdict(list)
    for i, event in enumerate(graph.events):
        before = max((level_of_event[j] for j in event.awaits), default=-1)
        for node in () if event.awaits else event.members:
            sources = [*graph.waits[node], *(s for b in graph.barriers.get(node, ()) for s in b.sources)]
            before = max(before, max((level_of_node[source] for source in sources), default=-1))
        level_of_event.append(before + 1)
        for node in event.completes:
            level_of_node[node] = before + 1
        kinds[before + 1, bool(event.awaits), event.across_dp].append(i)
    for (_, _, across_dp), at in sorted(kinds.items()):
        yield _join(graph, at, [graph.events[i] for i in at], across_dp=across_dp)


def _join(graph: Graph, at: Sequence[int], events: Sequence[Event], *, across_dp: bool) -> Level:
    """Join events that move alike."""
    members = [node for event in events if not event.awaits for node in event.members]
    step, never = graph.n_nodes, graph.n_nodes + 1
    sources = [graph.waits[node] or ((never,) if node in graph.barriers else (step,)) for node in members]
    barriers = [(i, barrier) for i, node in enumerate(members) for barrier in graph.barriers.get(node, ())]
    return Level(
        sources=_flatten(sources),
        source_at=_begins(sources),
        members=np.array(members, dtype=np.int64),
        member_at=_begins([event.members for event in events if not event.awaits]),
        awaits=_flatten([event.awaits for event in events]),
        await_at=_begins([event.awaits for event in events if event.awaits]),
        completes=_flatten([event.completes for event in events]),
        completes_of=np.repeat(np.arange(len(events)), [len(event.completes) for event in events]),
        events=np.array(at, dtype=np.int64),
        openers=np.flatnonzero([node in graph.openers for node in members]),
        barriers=tuple(barriers),
        across_dp=across_dp,
    )


def _flatten(rows: Iterable[Sequence[int]]) -> Ints:
    """Put rows of numbers one after the other."""
    return np.array([value for row in rows for value in row], dtype=np.int64)


def _begins(rows: Sequence[Sequence[int]]) -> Ints:
    """Say where each row begins when they stand one after the other."""
    return np.cumsum([0, *(len(row) for row in rows)], dtype=np.int64)[: len(rows)]
