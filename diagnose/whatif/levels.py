"""Replay a graph of many operations on few lanes level by level: all that waits for nothing but earlier levels moves in one call.

Enters: a `Graph`, own times and launch delays. Leaves: when each operation ends, to the bit as a walk from operation to operation
has it. Costs a few calls a level instead of a few an operation, and one array of all nodes and lanes a set of times.
"""

import bisect
import dataclasses
import itertools
from collections.abc import Iterable, Sequence

import numpy as np

from diagnose.model.trace import Ints, Seconds
from diagnose.whatif.graph import Barrier, Events, Graph, Ragged, list_edges

#: Graphs of fewer events, and larger arrays (nodes x lanes), are walked: there calls cost less than what is copied.
MIN_EVENTS = 1_000
MAX_CELLS = 4_000_000
#: From so many operations that each wait for the one before alone they are added up, and are no levels of their own.
MIN_CHAIN = 16


#: One array a node, each broadcastable to (n_steps, n_dp), or all in one array; seconds.
OfNodes = Sequence[Seconds] | Seconds
#: The same, to be changed node by node.
Changing = list[Seconds] | Seconds
#: Columns of a ragged table whose longer rows come first: the n-th numbers of all rows that have so many, row by row.
Columns = tuple[Ints, ...]


@dataclasses.dataclass(frozen=True, slots=True)
class Level:
    """Events of one level that move alike, one after the other in each array.

    Attributes
    ----------
    sources : Columns
        Nodes whose ends members wait for, one row a member; behind all nodes stand the start of the step and minus infinity.
    members : ndarray of int64
        Nodes that start; none where events await others.
    member_at : Columns or None
        Which of the members start with each event, one row an event; None where each is an event of its own, in their order.
    awaits : Columns
        Events that are awaited, by their number among those that are anywhere, one row an event.
    completes, completes_of : ndarray of int64
        Nodes that end their own time after, and after which event of the level.
    events : ndarray of int64
        Positions in the graph.
    awaited, number : ndarray of int64
        Which of them others await, and their numbers.
    openers : ndarray of int64
        Which of the members are `Graph.openers`.
    barriers : tuple of (int, Barrier)
        Learned waits of members, by position in `members`.
    chains : tuple of ndarray of int64
        Nodes one after the other, each of which waits for the one before alone; the first of each is in `completes`.
    """

    sources: Columns
    members: Ints
    member_at: Columns | None
    awaits: Columns
    completes: Ints
    completes_of: Ints
    events: Ints
    awaited: Ints
    number: Ints
    openers: Ints
    barriers: tuple[tuple[int, Barrier], ...]
    across_dp: bool
    chains: tuple[Ints, ...]

    def start(self, ends: Seconds, moved: Seconds, delay: Seconds | None) -> tuple[Seconds, Seconds | None]:
        """Say when each event moves, and when each member starts (None where none does): shape (n, n_steps, n_dp)."""
        if self.awaits:
            return _latest_of(moved, self.awaits), None
        start = _latest_of(ends, self.sources)
        for at, barrier in self.barriers:
            start[at] = np.maximum(start[at], barrier.opens(ends))
        if delay is not None:
            start += delay.take(self.members, axis=0)
        return start if self.member_at is None else _latest_of(start, self.member_at), start


def _latest_of(seconds: Seconds, columns: Columns) -> Seconds:
    """Take the latest of the times that each row names; `reduceat` along the first axis costs ten times as much."""
    latest: Seconds = seconds.take(columns[0], axis=0)
    for column in columns[1:]:
        some = latest[: len(column)]
        np.maximum(some, seconds.take(column, axis=0), out=some)
    return latest


def replay_levels(
    graph: Graph, worlds: Sequence[OfNodes], delay: OfNodes | None
) -> tuple[list[Seconds], list[Seconds]] | None:
    """Say when each node ends, in one set of lanes, or in three: ranks among peers, these peers, and all ranks together.

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
    shapes = [_widest(list_shapes(arrays)) for arrays in given]
    shape = _widest(shapes)
    if graph.n_nodes * shape[0] * shape[1] > MAX_CELLS:
        return None
    own, late = [stack(arrays, widest) for arrays, widest in zip(given, shapes, strict=True)], None
    if delay is not None:
        late = own.pop()
    # Peers are alike, and all ranks together are as each is among them, until ranks that differ meet.
    n_awaited = sum(len(level.number) for level in levels_of(graph))
    wide = [shape, *shapes[1:2]][: len(own)]
    ends, moved = ([np.zeros((n, *of_world)) for of_world in wide] for n in (graph.n_nodes + 2, n_awaited))
    for of_world in ends:
        of_world[-1] = -np.inf
    openings = [np.zeros((1, 1))] * len(own)
    for level in levels_of(graph):
        starts = []
        for w, (of_world, before) in enumerate(zip(ends, moved, strict=True)):
            start, of_members = level.start(of_world, before, late)
            if len(level.openers) and of_members is not None:
                openings[w] = np.minimum(openings[w], of_members[level.openers].min(axis=0))
            starts.append(start)
        if level.across_dp and len(own) == 1:
            starts = [starts[0].max(axis=2, keepdims=True)]
        elif level.across_dp and (len(ends) > 2 or (starts[0] != starts[1]).any()):
            if len(ends) == 2:
                ends, moved = _part(ends), _part(moved)
                starts, openings = [*starts, starts[0]], [*openings[:2], openings[0]]
            starts = [np.maximum(*starts[:2])] * 2 + [starts[2].max(axis=2, keepdims=True)]
        for own_s, of_world, before, start in zip(own, ends, moved, starts, strict=False):
            if len(level.awaited):
                before[level.number] = start[level.awaited]
            of_world[level.completes] = start.take(level.completes_of, axis=0) + own_s.take(level.completes, axis=0)
            for chain in level.chains:
                of_world[chain] = _run_chain(
                    of_world[chain[0]], own_s[chain[1:]], None if late is None else late[chain[1:]]
                )
    if len(ends) < len(own):
        ends, openings[2] = [*ends, ends[0]], openings[0]
    return ends, openings


def _part(two: list[Seconds]) -> list[Seconds]:
    """Let all ranks together no longer be as each is among its peers, and peers no longer be alike."""
    alone, peers = two
    return [alone, np.broadcast_to(peers, alone.shape).copy(), alone.copy()]


def _run_chain(first: Seconds, own: Seconds, late: Seconds | None) -> Seconds:
    """Say when the operations of a chain end, the first of which does at `first`; added up in their order, as a walk does."""
    n = 1 if late is None else 2
    steps = np.empty((1 + n * len(own), *first.shape))
    steps[0], steps[n::n] = first, own
    if late is not None:
        steps[1::2] = late
    return np.add.accumulate(steps, axis=0)[::n]


def list_shapes(arrays: OfNodes) -> set[tuple[int, ...]]:
    """List the shapes of one array a node."""
    return {arrays.shape[1:]} if isinstance(arrays, np.ndarray) else {array.shape for array in arrays}


def _widest(shapes: Iterable[tuple[int, ...]]) -> tuple[int, int]:
    """Give the shape (n_steps, n_dp) that arrays of several shapes have together."""
    n_steps, n_dp = map(max, zip(*shapes, strict=True))
    return n_steps, n_dp


def stack(arrays: OfNodes, shape: tuple[int, ...]) -> Seconds:
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
    n_awaits, across_dp = graph.moves.awaits.lengths, graph.moves.across_dp
    is_awaited = np.zeros(len(head), dtype=bool)
    is_awaited[graph.moves.awaits.flat] = True
    number = np.cumsum(is_awaited) - 1
    kind = 4 * _count_levels(graph, head) + 2 * (n_awaits > 0) + across_dp
    n_moving = np.maximum(graph.moves.members.lengths, n_awaits)
    order = kept[np.lexsort((kept, -n_moving[kept], kind[kept]))]
    _, begins, level = np.unique(kind[order], return_index=True, return_inverse=True)
    members, completes, awaited = (rows.take(order) for rows in _rows_of(graph.moves))
    completes_of = completes.row_of()
    # Members stand by how much they wait for, longest first; `at` is where each stands in its level.
    sources = _fill(graph.sources, hidden_nodes=list(graph.barriers))
    of_member = level[members.row_of()]
    moved = np.lexsort((-sources.lengths[members.flat], of_member))
    nodes, first = members.flat[moved], np.searchsorted(of_member[moved], np.arange(len(begins) + 1))
    at = np.empty(len(moved), dtype=np.int64)
    at[moved] = np.arange(len(moved)) - first[of_member[moved]]
    opens, hidden = (np.isin(nodes, list(some)) for some in (graph.openers, graph.barriers))
    source_columns = _columns(sources.take(nodes), of_member[moved], len(begins))
    member_columns = _columns(Ragged(at, members.begin), level, len(begins))
    await_columns = _columns(Ragged(number[awaited.flat], awaited.begin), level, len(begins))
    for i, (a, b) in enumerate(itertools.pairwise([*begins.tolist(), len(order)])):
        of_members, of_completes = slice(first[i], first[i + 1]), slice(completes.begin[a], completes.begin[b])
        events, of_events = order[a:b], member_columns[i]
        alone = len(of_events) == 1 and np.array_equal(of_events[0], np.arange(b - a))
        yield Level(
            sources=source_columns[i],
            members=nodes[of_members],
            member_at=None if alone else of_events,
            awaits=await_columns[i],
            completes=completes.flat[of_completes],
            completes_of=completes_of[of_completes] - a,
            events=events,
            awaited=np.flatnonzero(is_awaited[events]),
            number=number[events[is_awaited[events]]],
            openers=np.flatnonzero(opens[of_members]),
            barriers=tuple(
                (n, barrier)
                for n in np.flatnonzero(hidden[of_members]).tolist()
                for barrier in graph.barriers[int(nodes[first[i] + n])]
            ),
            across_dp=bool(across_dp[events[0]]),
            chains=tuple(chains[event] for event in events.tolist() if event in chains) if chains else (),
        )


def _columns(rows: Ragged, level: Ints, n_levels: int) -> list[Columns]:
    """Give the columns of the rows of each level; `level` is that of each row, and rises."""
    row, of_level = rows.row_of(), np.repeat(level, rows.lengths)
    column = np.arange(len(row)) - rows.begin[row]
    order = np.lexsort((row, column, of_level))
    flat, of_level, column = rows.flat[order], of_level[order], column[order]
    new = np.flatnonzero((np.diff(of_level) != 0) | (np.diff(column) != 0)) + 1
    found: list[list[Ints]] = [[] for _ in range(n_levels)]
    for a, b in itertools.pairwise([0, *new.tolist(), len(flat)]):
        if a < b:
            found[of_level[a]].append(flat[a:b])
    return list(map(tuple, found))


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
    last = np.full(len(head), -1)
    last[later] = earlier  # edges stand by the earlier one
    if (
        np.diff(last) >= 0
    ).all():  # each stands behind what waits for earlier ones: a level ends before the first that waits for it
        begins, waits_for = [0], last.tolist()
        while (end := bisect.bisect_left(waits_for, begins[-1])) < len(head):
            begins.append(end)
        return np.repeat(np.arange(len(begins)), np.diff([*begins, len(head)]))
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
