"""Replay a graph of many operations on few lanes level by level: all that waits for nothing but earlier levels moves in one call.

Enters: a `Graph`, own times and launch delays. Leaves: when each operation ends, to the bit as a walk from operation to operation
has it. Costs a few calls a level instead of a few an operation, and one array of all nodes and lanes a set of times.
"""

import dataclasses
import itertools
from collections.abc import Iterable, Sequence

import numpy as np

from diagnose.model.trace import Ints, Seconds
from diagnose.whatif.graph import Barrier, Event, Graph, flatten

#: Graphs of fewer events, and larger arrays (nodes x lanes), are walked: there calls cost less than what is copied.
MIN_EVENTS = 1_000
MAX_CELLS = 2_000_000
#: From so many operations that each wait for the one before alone they are added up, and are no levels of their own.
MIN_CHAIN = 16


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
    chains : tuple of ndarray of int64
        Nodes one after the other, each of which waits for the one before alone; the first of each is in `completes`.
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
    chains: tuple[Ints, ...]

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
            for chain in level.chains:
                of_world[chain] = _run_chain(
                    of_world[chain[0]], own_s[chain[1:]], None if late is None else late[chain[1:]]
                )
    return ends, openings


def _run_chain(first: Seconds, own: Seconds, late: Seconds | None) -> Seconds:
    """Say when the operations of a chain end, the first of which does at `first`; added up in their order, as a walk does."""
    n = 1 if late is None else 2
    steps = np.empty((1 + n * len(own), *first.shape))
    steps[0], steps[n::n] = first, own
    if late is not None:
        steps[1::2] = late
    return np.add.accumulate(steps, axis=0)[::n]


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
    chains = {events[0]: events for events in _find_chains(graph)}
    inside = {i for events in chains.values() for i in events[1:]}
    level_of_node = [-1] * (graph.n_nodes + 1)
    level_of_event: list[int] = []
    kept: list[int] = []
    for i, event in enumerate(graph.events):
        if i in inside:
            level_of_event.append(-1)  # nothing awaits it
            continue
        before = -1
        if event.awaits:
            before = max([level_of_event[j] for j in event.awaits])
        for node in () if event.awaits else event.members:
            for source in graph.waits[node]:
                before = max(before, level_of_node[source])
            for barrier in graph.barriers.get(node, ()):
                before = max(before, *[level_of_node[source] for source in barrier.sources])
        level_of_event.append(before + 1)
        kept.append(i)
        for node in event.completes:
            level_of_node[node] = before + 1
        for j in chains.get(i, ())[1:]:
            level_of_node[graph.events[j].completes[0]] = before + 1
    at = np.array(kept, dtype=np.int64)
    level = np.array(level_of_event, dtype=np.int64)[at]
    awaits, across_dp = np.array([(bool(graph.events[i].awaits), graph.events[i].across_dp) for i in kept]).T
    order = np.lexsort((at, across_dp, awaits, level))
    kind = 4 * level + 2 * awaits + across_dp
    for group in np.split(order, np.flatnonzero(np.diff(kind[order])) + 1):
        of_group = at[group].tolist()
        nodes = tuple(_nodes_of(graph, chains[i]) for i in of_group if i in chains)
        yield _join(graph, of_group, [graph.events[i] for i in of_group], nodes, across_dp=bool(across_dp[group[0]]))


def _nodes_of(graph: Graph, events: Sequence[int]) -> Ints:
    """Give the nodes of a chain."""
    return np.array([graph.events[i].completes[0] for i in events], dtype=np.int64)


def _find_chains(graph: Graph) -> list[list[int]]:
    """Find long runs of single operations that wait for nothing but the one before, by their positions in the graph.

    Of several that wait for the same operation alone the first goes on its chain.
    """
    awaited = {j for event in graph.events for j in event.awaits}
    chain_at: dict[int, list[int]] = {}  # by the node that ends it
    found: list[list[int]] = []
    for i, event in enumerate(graph.events):
        if len(event.members) != 1 or event.completes != event.members or event.across_dp or i in awaited:
            continue
        node = event.members[0]
        sources = graph.waits[node]
        follows = len(sources) == 1 and node not in graph.barriers and node not in graph.openers
        chain = chain_at.pop(sources[0], None) if follows else None
        if chain is None:
            found.append(chain := [])
        chain.append(i)
        chain_at[node] = chain
    return [chain for chain in found if len(chain) >= MIN_CHAIN]


def _join(
    graph: Graph, at: Sequence[int], events: Sequence[Event], chains: tuple[Ints, ...], *, across_dp: bool
) -> Level:
    """Join events that move alike."""
    members = [node for event in events if not event.awaits for node in event.members]
    step, never = graph.n_nodes, graph.n_nodes + 1
    sources = [graph.waits[node] or ((never,) if node in graph.barriers else (step,)) for node in members]
    barriers = [(i, barrier) for i, node in enumerate(members) for barrier in graph.barriers.get(node, ())]
    completes = [event.completes for event in events]
    return Level(
        sources=flatten(sources),
        source_at=_begins(sources),
        members=np.array(members, dtype=np.int64),
        member_at=_begins([event.members for event in events if not event.awaits]),
        awaits=flatten([event.awaits for event in events]),
        await_at=_begins([event.awaits for event in events if event.awaits]),
        completes=flatten(completes),
        completes_of=np.repeat(np.arange(len(events)), [len(nodes) for nodes in completes]),
        events=np.array(at, dtype=np.int64),
        openers=np.array([i for i, node in enumerate(members) if node in graph.openers], dtype=np.int64),
        barriers=tuple(barriers),
        across_dp=across_dp,
        chains=chains,
    )


def _begins(rows: Sequence[Sequence[int]]) -> Ints:
    """Say where each row begins when they stand one after the other."""
    return np.array([0, *itertools.accumulate(map(len, rows))], dtype=np.int64)[: len(rows)]
