"""Replay a graph of many operations on few lanes level by level: all that waits for nothing but earlier levels moves in one call.

Enters: a `Graph`, own times and launch delays. Leaves: when each operation ends, to the bit as a walk from operation to operation
has it. Costs a few calls a level instead of a few an operation, and one array of all nodes and lanes a set of times.
"""

import dataclasses
import itertools
from collections.abc import Iterable, Sequence

import numpy as np

from diagnose.model.trace import Ints, Seconds
from diagnose.whatif.graph import Barrier, Events, Graph, Ragged, list_edges

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
    graph: Graph, worlds: Sequence[Sequence[Seconds] | Seconds], delay: Sequence[Seconds] | Seconds | None
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
    if len(graph.moves) < MIN_EVENTS:
        return None
    given = worlds if delay is None else (*worlds, delay)
    shapes = {shape for arrays in given for shape in list_shapes(arrays)}
    shape = (max(n_steps for n_steps, _ in shapes), max(n_dp for _, n_dp in shapes))
    if graph.n_nodes * shape[0] * shape[1] * len(worlds) > MAX_CELLS:
        return None
    own = [stack(arrays, shape) for arrays in worlds]
    late = None if delay is None else stack(delay, shape)
    ends = [np.zeros((graph.n_nodes + 2, *shape)) for _ in worlds]
    for of_world in ends:
        of_world[-1] = -np.inf
    moved = [np.zeros((len(graph.moves), *shape)) for _ in worlds]
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


def list_shapes(arrays: Sequence[Seconds] | Seconds) -> set[tuple[int, ...]]:
    """List the shapes of one array a node."""
    return {arrays.shape[1:]} if isinstance(arrays, np.ndarray) else {array.shape for array in arrays}


def stack(arrays: Sequence[Seconds] | Seconds, shape: tuple[int, ...]) -> Seconds:
    """Put one array a node into one of shape (n_nodes, n_steps, n_dp)."""
    if isinstance(arrays, np.ndarray):
        return np.asarray(np.broadcast_to(arrays, (len(arrays), *shape)))
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
    head, chains = _find_chains(graph)
    position = np.arange(len(head))
    kept = np.flatnonzero(head == position)
    awaits, across_dp = graph.moves.awaits.lengths > 0, graph.moves.across_dp
    level = _count_levels(graph, head)
    order = kept[np.lexsort((kept, across_dp[kept], awaits[kept], level[kept]))]
    kind = 4 * level[order] + 2 * awaits[order] + across_dp[order]
    begins = np.r_[0, np.flatnonzero(np.diff(kind)) + 1, len(order)].tolist()
    members, completes, awaited = (rows.take(order) for rows in _rows_of(graph.moves))
    completes_of = completes.row_of()
    opens = np.isin(members.flat, list(graph.openers))
    hidden = np.isin(members.flat, list(graph.barriers))
    sources = _fill(graph.sources, hidden_nodes=list(graph.barriers)).take(members.flat)
    for a, b in itertools.pairwise(begins):
        of_members, of_completes, of_awaits = (slice(r.begin[a], r.begin[b]) for r in (members, completes, awaited))
        of_sources = slice(sources.begin[of_members.start], sources.begin[of_members.stop])
        nodes, at = members.flat[of_members], order[a:b]
        yield Level(
            sources=sources.flat[of_sources],
            source_at=sources.begin[of_members] - of_sources.start,
            members=nodes,
            member_at=members.begin[a:b] - of_members.start,
            awaits=awaited.flat[of_awaits],
            await_at=awaited.begin[a:b] - of_awaits.start,
            completes=completes.flat[of_completes],
            completes_of=completes_of[of_completes] - a,
            events=at,
            openers=np.flatnonzero(opens[of_members]),
            barriers=tuple(
                (i, barrier)
                for i in np.flatnonzero(hidden[of_members]).tolist()
                for barrier in graph.barriers[int(nodes[i])]
            ),
            across_dp=bool(across_dp[at[0]]),
            chains=tuple(chains[i] for i in at.tolist() if i in chains) if chains else (),
        )


def _rows_of(events: Events) -> tuple[Ragged, Ragged, Ragged]:
    """Give what events consist of."""
    return events.members, events.completes, events.awaits


def _fill(sources: Ragged, hidden_nodes: Sequence[int]) -> Ragged:
    """Let nodes that wait for nothing wait for the start of the step, or not even that where a barrier says when they start."""
    step, never = len(sources), len(sources) + 1
    begin = np.r_[0, np.cumsum(np.maximum(sources.lengths, 1))]
    alone = np.full(len(sources), step)
    alone[hidden_nodes] = never
    flat = np.empty(begin[-1], dtype=np.int64)
    waiting = sources.lengths > 0
    flat[begin[:-1][~waiting]] = alone[~waiting]
    flat[np.repeat(waiting, np.diff(begin))] = sources.flat
    return Ragged(flat, begin)


def _count_levels(graph: Graph, head: Ints) -> Ints:
    """Count the levels before each event, shape (n_events,); a chain has that of its first."""
    earlier, later = list_edges(graph.moves, graph.sources, graph.barriers)
    between = head[earlier] != head[later]
    earlier, later = earlier[between], head[later[between]]
    begin = np.searchsorted(earlier, np.arange(len(head) + 1)).tolist()
    after, level = later.tolist(), [0] * len(head)
    for of_head, a, b in zip(head.tolist(), begin, begin[1:], strict=False):
        beyond = level[of_head] + 1
        for j in after[a:b]:
            level[j] = max(level[j], beyond)
    return np.array(level, dtype=np.int64)


def _find_chains(graph: Graph) -> tuple[Ints, dict[int, Ints]]:
    """Find long runs of single operations that wait for nothing but the one before.

    Of several that wait for the same operation alone the first goes on its chain.

    Returns
    -------
    head : ndarray of int64, shape (n_events,)
        The first event of the chain that each is on, itself where it is on none.
    chains : dict of int to ndarray of int64
        The nodes of each chain, by its first event.
    """
    members, completes, awaits = _rows_of(graph.moves)
    head = np.arange(len(graph.moves))
    alone = (members.lengths == 1) & (completes.lengths == 1) & ~graph.moves.across_dp
    alone[awaits.flat] = False
    node = np.full(len(head), -1)
    node[alone] = members.flat[members.begin[:-1][alone]]
    alone[alone] = completes.flat[completes.begin[:-1][alone]] == node[alone]
    goes_on = graph.sources.lengths == 1
    goes_on[[*graph.barriers, *graph.openers]] = False
    after = np.flatnonzero(alone)
    after = after[goes_on[node[after]]]
    ends_in = graph.moves.find(completes, graph.n_nodes)
    before = ends_in[graph.sources.flat[graph.sources.begin[node[after]]]]
    known = (before >= 0) & alone[before]
    before, first = np.unique(before[known], return_index=True)
    head[after[known][first]] = before
    while (ahead := head[head] != head).any():
        head[ahead] = head[head[ahead]]
    n_on = np.bincount(head, minlength=len(head))
    short = n_on[head] < MIN_CHAIN
    head[short] = np.flatnonzero(short)
    on = np.flatnonzero(~short)
    on = on[np.argsort(head[on], kind="stable")]
    starts = np.flatnonzero(np.r_[True, np.diff(head[on]) != 0][: len(on)])
    return head, dict(zip(head[on[starts]].tolist(), np.split(node[on], starts[1:]) if len(on) else (), strict=True))
