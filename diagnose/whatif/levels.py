"""Replay a graph of many operations on few lanes level by level: all that waits for nothing but earlier levels moves in one call.

Enters: a `Graph`, own times and launch delays. Leaves: when each operation ends, to the bit as a walk from operation to operation
has it. Costs a few calls a level instead of a few an operation, and one array of all nodes and lanes a set of times.
"""

import bisect
import dataclasses
import itertools
from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from diagnose.model.trace import Ints, Seconds
from diagnose.whatif.graph import Events, Graph, Ragged, begins_of, list_edges, split_nodes

#: Graphs of fewer events, and larger arrays (nodes x lanes) of more lanes than that, are walked: there calls cost less than what is
#: copied.
MIN_EVENTS = 1_000
MIN_LANES, MAX_CELLS = 16, 4_000_000
#: From so many operations that each wait for the one before alone they are added up, and are no levels of their own.
MIN_CHAIN = 16


#: One array a node, each broadcastable to (n_steps, n_dp), or all in one array; seconds.
OfNodes = Sequence[Seconds] | Seconds
#: The same, to be changed node by node.
Changing = list[Seconds] | Seconds


@dataclasses.dataclass(frozen=True, slots=True)
class Columns:
    """Rows of numbers, longer rows first: the first numbers of all rows, then the second of all that have so many, and so on.

    `sizes` says how many rows have a first, a second, ...
    """

    flat: Ints
    sizes: tuple[int, ...]

    def latest(self, seconds: Seconds) -> Seconds:
        """Take the latest of the times that each row names; `reduceat` along the first axis costs ten times as much."""
        found = seconds.take(self.flat, axis=0)
        latest: Seconds = found[: self.sizes[0]]
        begin = self.sizes[0]
        for size in self.sizes[1:]:
            some = latest[:size]
            np.maximum(some, found[begin : begin + size], out=some)
            begin += size
        return latest


@dataclasses.dataclass(frozen=True, slots=True)
class Level:
    """Events of one level that move alike, one after the other in each array."""

    #: What members wait for, by number, one row a member; behind all nodes stand the start of the step and minus infinity.
    sources: Columns
    #: Places among `Levels.members` of nodes that start; none where events await others.
    members: slice
    #: Which of the members start with each event, one row an event; None where each is an event of its own, in their order.
    member_at: Columns | None
    #: Events that are awaited, by their place among those that are anywhere, one row an event.
    awaits: Columns | None
    #: Numbers of the nodes that end their own time after.
    numbers: slice
    #: After which event of the level; None where one ends after each, in their order.
    completes_of: Ints | None
    #: Which of the events others await.
    awaited: Ints
    #: Their places among those that are anywhere.
    awaited_at: slice
    #: Which of the members are `Graph.openers`.
    openers: Ints
    #: Members with learned waits: which of the members, node, and for each of
    #: its barriers the numbers of its sources.
    barriers: tuple[tuple[int, int, tuple[Ints, ...]], ...]
    across_dp: bool
    #: Nodes one after the other, each of which waits for the one before alone: number of the
    #: first, one of those that end, and numbers of the others and their places among `Levels.members`.
    chains: tuple[tuple[int, slice, slice], ...]

    def start(
        self, graph: Graph, ends: Seconds, moved: Seconds, delay: Seconds | None
    ) -> tuple[Seconds, Seconds | None]:
        """Say when each event moves, and when each member starts (None where none does): shape (n, n_steps, n_dp).

        `delay` is that of `Levels.members`, in their order.
        """
        if self.awaits is not None:
            return self.awaits.latest(moved), None
        start = self.sources.latest(ends)
        for at, node, every in self.barriers:
            for barrier, sources in zip(graph.barriers[node], every, strict=True):
                start[at] = np.maximum(start[at], barrier.opens_after(ends[sources]))
        if delay is not None:
            start += delay[self.members]
        return start if self.member_at is None else self.member_at.latest(start), start


@dataclasses.dataclass(frozen=True, slots=True)
class Levels:
    """All levels of a graph, in order."""

    levels: tuple[Level, ...]
    #: Shape (n_nodes + 2,): where each node's end stands among all, which are in the order in which levels give them; behind
    #: those of nodes stand the start of the step and minus infinity.
    number: Ints
    #: Shape (n_nodes,): the nodes in the order of their numbers.
    nodes: Ints
    #: The nodes that start, level by level; then those behind the first of a chain.
    members: Ints
    #: Events that others await.
    n_awaited: int


def replay_levels(
    graph: Graph, worlds: Sequence[OfNodes], delay: OfNodes | None
) -> tuple[list[Seconds], list[Seconds]] | None:
    """Say when each node ends, in one set of lanes, or in three: ranks among peers, these peers, and all ranks together.

    Returns
    -------
    ends : list of ndarray of float64, shape (n_nodes + 2, n_steps, n_dp)
        Seconds, one array a world; each node's at its `Levels.number`.
    openings : list of ndarray of float64, shape broadcastable to (n_steps, n_dp)
        The earliest start where it lies before the step.
    None where the graph is small, or there are many lanes.
    """
    if len(graph.moves) < MIN_EVENTS:
        return None
    given = worlds if delay is None else (*worlds, delay)
    shapes = [_widest(list_shapes(arrays)) for arrays in given]
    shape = _widest(shapes)
    n_lanes = shape[0] * shape[1]
    if n_lanes > MIN_LANES and graph.n_nodes * n_lanes > MAX_CELLS:
        return None
    plan = levels_of(graph)
    # Each level finds its times side by side.
    late = None if delay is None else _stack_in_order(delay, plan.members, shapes[-1])
    own = [_stack_in_order(arrays, plan.nodes, widest) for arrays, widest in zip(worlds[:2], shapes, strict=False)]
    own += own[:1] * (len(worlds) - len(own))  # all ranks together have the times of each
    # Peers are alike, and all ranks together are as each is among them, until ranks that differ meet.
    wide = [shape, *shapes[1:2]][: len(own)]
    ends, moved = ([np.empty((n, *of_world)) for of_world in wide] for n in (graph.n_nodes + 2, plan.n_awaited))
    for of_world in ends:
        of_world[-2], of_world[-1] = 0.0, -np.inf
    openings = [np.zeros((1, 1))] * len(own)
    for level in plan.levels:
        starts = []
        for w, (of_world, before) in enumerate(zip(ends, moved, strict=True)):
            start, of_each = level.start(graph, of_world, before, late)
            if len(level.openers) and of_each is not None:
                openings[w] = np.minimum(openings[w], of_each[level.openers].min(axis=0))
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
                before[level.awaited_at] = start[level.awaited]
            begin = start if level.completes_of is None else start.take(level.completes_of, axis=0)
            np.add(begin, own_s[level.numbers], out=of_world[level.numbers])
            for first, others, at in level.chains:
                of_world[others] = _run_chain(of_world[first], own_s[others], None if late is None else late[at])
    if len(ends) < len(own):
        ends, openings[2] = [*ends, ends[0]], openings[0]
    return ends, openings


def _part(two: list[Seconds]) -> list[Seconds]:
    """Let all ranks together no longer be as each is among its peers, and peers no longer be alike."""
    alone, peers = two
    return [alone, np.broadcast_to(peers, alone.shape).copy(), alone.copy()]


def _run_chain(first: Seconds, own: Seconds, late: Seconds | None) -> Seconds:
    """Say when the operations of a chain after the first end, which does at `first`; added up in their order, as a walk does."""
    n = 1 if late is None else 2
    steps = np.empty((1 + n * len(own), *first.shape))
    steps[0], steps[n::n] = first, own
    if late is not None:
        steps[1::2] = late
    return np.add.accumulate(steps, axis=0)[n::n]


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


def _stack_in_order(arrays: OfNodes, nodes: Ints, shape: tuple[int, ...]) -> Seconds:
    """Put the arrays of some nodes one after the other, (n_nodes, n_steps, n_dp)."""
    return stack(arrays[nodes] if isinstance(arrays, np.ndarray) else [arrays[n] for n in nodes.tolist()], shape)


def at_a_time(arrays: OfNodes, nodes: Ints) -> Sequence[int | Ints]:
    """Give the nodes that are looked at at a time: one by one where each has its own array."""
    return split_nodes(nodes, arrays[0].size) if isinstance(arrays, np.ndarray) else nodes.tolist()


def take(arrays: OfNodes, nodes: Ints, steps: slice = slice(None)) -> Seconds:
    """Give a copy of some steps of the arrays of some nodes, which are alike: shape (n_nodes, n_steps, n_dp)."""
    if isinstance(arrays, np.ndarray):
        return arrays[nodes, steps]
    return np.array([arrays[node][steps] for node in nodes.tolist()])


def levels_of(graph: Graph) -> Levels:
    """Put the events of a graph into levels, worked out once a graph."""
    if not graph.levels:
        graph.levels[:] = [_build(graph)]  # at once, as several threads replay a graph
    found: Levels = graph.levels[0]
    return found


def _build(graph: Graph) -> Levels:
    """Work out the levels."""
    head, chains = _find_chains(graph)
    kept = np.flatnonzero(head == np.arange(len(head)))
    n_awaits, across_dp = graph.moves.awaits.lengths, graph.moves.across_dp
    n_moving = np.maximum(graph.moves.members.lengths, n_awaits)
    most = int(n_moving.max())
    kind = 4 * _count_levels(graph, head) + 2 * (n_awaits > 0) + across_dp
    order = kept[np.argsort((kind * (most + 1) + most - n_moving)[kept], kind="stable")]
    _, begins, level = np.unique(kind[order], return_index=True, return_inverse=True)
    n_levels, begin = len(begins), [*begins.tolist(), len(order)]
    members, completes, awaits = (rows.take(order) for rows in _rows_of(graph.moves))
    completes_of, of_event = completes.row_of(), np.arange(len(order)) - begins[level]
    one_each = np.ones(n_levels, dtype=bool)
    one_each[level[completes.lengths != 1]] = False
    number, others = _number_nodes(graph.n_nodes, completes.flat, chains)
    # Members stand by how much they wait for, longest first; `at` is where each stands in its level.
    sources = _fill(graph.sources, hidden_nodes=[n for n in graph.barriers if not graph.starts_step(n)])
    of_member, n_sources = level[members.row_of()], sources.lengths[members.flat]
    longest = int(n_sources.max(initial=0))
    moved = np.argsort(of_member * (longest + 1) + longest - n_sources, kind="stable")
    nodes, first = members.flat[moved], np.searchsorted(of_member[moved], np.arange(n_levels + 1)).tolist()
    at = np.empty(len(moved), dtype=np.int64)
    at[moved] = np.arange(len(moved)) - np.array(first)[of_member[moved]]
    alone = np.ones(n_levels, dtype=bool)
    alone[level[members.lengths != 1]] = False
    alone[of_member[at != of_event[members.row_of()]]] = False
    is_awaited = np.zeros(len(head), dtype=bool)
    is_awaited[graph.moves.awaits.flat] = True
    awaited = np.flatnonzero(is_awaited[order])
    place = np.full(len(head), -1)
    place[order[awaited]] = np.arange(len(awaited))
    source_columns = _columns(Ragged(number[sources.flat], sources.begin).take(nodes), of_member[moved], n_levels)
    member_columns = _columns(Ragged(at, members.begin), level, n_levels)
    await_columns = _columns(Ragged(place[awaits.flat], awaits.begin), level, n_levels)
    opens, hidden = (
        _split(np.flatnonzero(np.isin(nodes, list(some))), first) for some in (graph.openers, graph.barriers)
    )
    awaited_begin, ends = np.searchsorted(awaited, begin).tolist(), completes.begin[begin].tolist()
    after, shift = of_event[completes_of], len(nodes) - len(completes.flat)
    with_chains = np.flatnonzero(np.isin(order, list(chains)))
    found = []
    for i, of_chains in enumerate(_split(with_chains, begin)):
        of_completes = slice(ends[i], ends[i + 1])
        found.append(
            Level(
                sources=source_columns[i],
                members=slice(first[i], first[i + 1]),
                member_at=None if alone[i] else member_columns[i],
                awaits=await_columns[i] if await_columns[i].sizes else None,
                numbers=of_completes,
                completes_of=None if one_each[i] else after[of_completes],
                awaited=of_event[awaited[awaited_begin[i] : awaited_begin[i + 1]]],
                awaited_at=slice(awaited_begin[i], awaited_begin[i + 1]),
                openers=opens[i] - first[i],
                barriers=tuple(
                    (n - first[i], node := int(nodes[n]), tuple(number[[*b.sources]] for b in graph.barriers[node]))
                    for n in hidden[i].tolist()
                ),
                across_dp=bool(across_dp[order[begin[i]]]),
                chains=tuple(
                    (head_number, numbers, slice(numbers.start + shift, numbers.stop + shift))
                    for head_number, numbers in map(others.__getitem__, order[of_chains].tolist())
                ),
            )
        )
    by_number, n_behind = np.argsort(number[:-2]), sum(numbers.stop - numbers.start for _, numbers in others.values())
    members_of_all = np.r_[nodes, by_number[len(completes.flat) : len(completes.flat) + n_behind]]
    return Levels(tuple(found), number, by_number, members_of_all, len(awaited))


def _number_nodes(n_nodes: int, ending: Ints, chains: Mapping[int, Ints]) -> tuple[Ints, dict[int, tuple[int, slice]]]:
    """Number the nodes: those that end level by level, those behind the first of a chain, all others.

    Gives them as `Levels` has them, and for the event of each chain the number of its first node and those of the others.
    """
    number = np.full(n_nodes + 2, -1)
    number[ending] = np.arange(len(ending))
    n, others = len(ending), {}
    for event, (head, *behind) in ((event, chain.tolist()) for event, chain in chains.items()):
        number[behind] = np.arange(n, n + len(behind))
        others[event] = int(number[head]), slice(n, n + len(behind))
        n += len(behind)
    number[number < 0] = np.arange(n, n_nodes + 2)
    return number, others


def _split(places: Ints, begins: Sequence[int]) -> list[Ints]:
    """Split rising places by the level that they lie in."""
    return np.split(places, np.searchsorted(places, begins[1:-1]))


def _columns(rows: Ragged, level: Ints, n_levels: int) -> list[Columns]:
    """Give the columns of the rows of each level; `level` is that of each row, and rises."""
    row, of_level = rows.row_of(), np.repeat(level, rows.lengths)
    column = np.arange(len(row)) - rows.begin[row]
    key = of_level * (int(column.max(initial=0)) + 1) + column
    order = np.argsort(key, kind="stable")
    flat, key = rows.flat[order], key[order]
    begins = np.flatnonzero(np.diff(key, prepend=-1))
    sizes, of_columns = np.diff(begins, append=len(key)).tolist(), of_level[order][begins]
    first = np.searchsorted(of_columns, np.arange(n_levels + 1)).tolist()
    begin = [*begins.tolist(), len(key)]
    return [Columns(flat[begin[a] : begin[b]], tuple(sizes[a:b])) for a, b in itertools.pairwise(first)]


def _rows_of(events: Events) -> tuple[Ragged, Ragged, Ragged]:
    """Give what events consist of."""
    return events.members, events.completes, events.awaits


def _fill(sources: Ragged, hidden_nodes: Sequence[int]) -> Ragged:
    """Let nodes that wait for nothing wait for the start of the step, or not even that where a barrier says when they start."""
    step, never = len(sources), len(sources) + 1
    begin = begins_of(np.maximum(sources.lengths, 1))
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
