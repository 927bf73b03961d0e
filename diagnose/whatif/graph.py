"""What waits for what: the dependency graph of one model-parallel group in one step.

Enters: the nodes of a block. Leaves: a `Graph`, shared by all steps and dp ranks of the block, in topological order.
"""

import dataclasses
import functools
import itertools
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any, NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

from diagnose.errors import TraceError
from diagnose.model.optype import COMPUTE, DIRECTIONS, P2P, Op, of_types
from diagnose.model.placement import list_by_place, match_transfers, positions_of, stage_at
from diagnose.model.trace import Bools, Ints, Nodes, Seconds
from diagnose.whatif.overlaps import Overlaps

#: Cells (operation, step, dp rank) that are looked at at a time.
MAX_CELLS = 500_000


class Event(NamedTuple):
    """Operations that move together: a point-to-point pair, a collective, or one operation alone.

    It moves when the last of `members` has started; `across_dp` says that the members of all dp ranks belong to it.
    Operations of a blocking batch end together: none before the last of their pairs has moved. Their end is an event
    without members of its own that moves with the last of the events `awaits` (positions in `Graph.events`).
    `completes` are the nodes that end their own time after the event has moved.
    """

    members: tuple[int, ...]
    across_dp: bool
    completes: tuple[int, ...]
    awaits: tuple[int, ...] = ()


@dataclasses.dataclass(frozen=True, slots=True)
class Barrier:
    """A wait that no row records: a node starts once `sources` have ended on all dp ranks, or on its own rank only.

    `lanes` says for which dp ranks the wait holds (None: all); shape (n_dp,), or (n_steps, n_dp) where steps differ. `groups`,
    shape (n_dp,), numbers the dp ranks that wait for each other where these are not all.
    """

    sources: tuple[int, ...]
    across_dp: bool
    lanes: Bools | None
    groups: Ints | None = None

    def opens(self, ends: Mapping[int, Seconds] | Seconds) -> Seconds:
        """Say when it opens for each lane; -inf where it does not hold. `ends` are those of the sources, by node."""
        return self.opens_after([ends[source] for source in self.sources])

    def opens_after(self, ends: Sequence[Seconds] | Seconds) -> Seconds:
        """Say when it opens, by the ends of its sources in their order."""
        opened: Seconds = functools.reduce(np.maximum, ends)
        if self.across_dp and self.groups is not None and opened.shape[1] > 1:
            opened = self.over_group(opened)
        elif self.across_dp:
            opened = opened.max(axis=1, keepdims=True)
        return opened if self.lanes is None else np.where(self.lanes, opened, -np.inf)

    def over_group(self, values: NDArray[Any], choose: np.ufunc = np.maximum) -> NDArray[Any]:
        """Choose one of the values, shape (n_steps, n_dp), of those that wait for each other: the largest, or what is said."""
        groups = [0] * values.shape[1] if self.groups is None else self.groups.tolist()
        chosen: dict[int, NDArray[Any]] = {}
        for rank, group in enumerate(groups):
            chosen[group] = choose(chosen[group], values[:, rank]) if group in chosen else values[:, rank]
        return np.stack([chosen[group] for group in groups], axis=1)


@dataclasses.dataclass(frozen=True, slots=True)
class Ragged:
    """Rows of numbers, each of its own length, one after the other: row i is `flat[begin[i] : begin[i + 1]]`."""

    flat: Ints
    begin: Ints

    @classmethod
    def of(cls, rows: Sequence[Collection[int]]) -> Self:
        """Put rows one after the other."""
        return cls(flatten(rows), np.array([0, *itertools.accumulate(map(len, rows))], dtype=np.int64))

    @classmethod
    def of_pairs(cls, rows: Ints, values: Ints, n_rows: int) -> Self:
        """Gather the values of each row, each once, in rising order."""
        n_values = 1 + int(values.max(initial=0))
        rows, values = np.divmod(_distinct(rows * n_values + values), n_values)
        return cls(values, np.searchsorted(rows, np.arange(n_rows + 1)))

    @classmethod
    def join(cls, parts: Sequence["Ragged"]) -> Self:
        """Put the rows of several one after the other."""
        lengths = np.concatenate([part.lengths for part in parts])
        return cls(np.concatenate([part.flat for part in parts]), begins_of(lengths))

    @classmethod
    def empty(cls, n_rows: int) -> Self:
        """Give so many rows with nothing in them."""
        return cls(np.zeros(0, dtype=np.int64), np.zeros(n_rows + 1, dtype=np.int64))

    def __len__(self) -> int:
        return len(self.begin) - 1

    @property
    def lengths(self) -> Ints:
        """How long each row is."""
        return self.begin[1:] - self.begin[:-1]

    def row_of(self) -> Ints:
        """Say in which row each number stands."""
        return np.repeat(np.arange(len(self)), self.lengths)

    def take(self, rows: Ints) -> "Ragged":
        """Give some of the rows."""
        lengths = self.begin[rows + 1] - self.begin[rows]
        begin = begins_of(lengths)
        return Ragged(self.flat[np.repeat(self.begin[rows] - begin[:-1], lengths) + np.arange(begin[-1])], begin)

    def rows(self) -> tuple[tuple[int, ...], ...]:
        """Give each row by itself."""
        flat = self.flat.tolist()
        return tuple(tuple(flat[a:b]) for a, b in itertools.pairwise(self.begin.tolist()))


@dataclasses.dataclass(frozen=True, slots=True)
class Events:
    """All events of a graph, one row each; what they are says `Event`."""

    members: Ragged
    completes: Ragged
    awaits: Ragged
    across_dp: Bools

    @classmethod
    def of(cls, events: Sequence[Event]) -> Self:
        """Put events one after the other."""
        return cls(
            members=Ragged.of([event.members for event in events]),
            completes=Ragged.of([event.completes for event in events]),
            awaits=Ragged.of([event.awaits for event in events]),
            across_dp=np.array([event.across_dp for event in events], dtype=bool),
        )

    def __len__(self) -> int:
        return len(self.across_dp)

    def take(self, order: Ints) -> "Events":
        """Put all events into another order."""
        position = np.empty(len(self), dtype=np.int64)
        position[order] = np.arange(len(self))
        awaits = self.awaits.take(order)
        awaits = Ragged(position[awaits.flat], awaits.begin)
        return Events(self.members.take(order), self.completes.take(order), awaits, self.across_dp[order])

    def rows(self) -> tuple[Event, ...]:
        """Give each event by itself."""
        columns = (self.members.rows(), self.across_dp.tolist(), self.completes.rows(), self.awaits.rows())
        return tuple(itertools.starmap(Event, zip(*columns, strict=True)))

    def find(self, rows: Ragged, n_nodes: int) -> Ints:
        """Say in the row of which event each node stands, -1 where in none: shape (n_nodes,)."""
        found = np.full(n_nodes, -1)
        found[rows.flat] = rows.row_of()
        return found


@dataclasses.dataclass(frozen=True, eq=False)
class Graph:
    """Dependencies of a block's nodes."""

    #: Ragged, n_nodes rows: for each node the nodes whose end it waits for.
    sources: Ragged
    #: Every node once, in an order in which all that an event waits for comes before it.
    moves: Events
    #: Learned waits by waiter.
    barriers: dict[int, tuple[Barrier, ...]]
    #: Nodes whose latest end is the end of the step: the optimizers.
    finals: tuple[int, ...]
    #: Nodes that wait for nothing but communication from the start of the step on; a negative transfer duration can let them
    #: start before it, and then the step is that much longer.
    openers: frozenset[int]
    #: What `levels.levels_of` works out, once; graphs that differ in lanes alone have it together.
    levels: list[Any] = dataclasses.field(default_factory=list, repr=False)

    @property
    def n_nodes(self) -> int:
        """Number of nodes of the block."""
        return len(self.sources)

    @functools.cached_property
    def starts_in(self) -> Ints:
        """In which event each node starts, by its place in `moves`; -1 for nodes that the graph leaves out: shape (n_nodes,)."""
        return self.moves.find(self.moves.members, self.n_nodes)

    def starts_step(self, node: int) -> bool:
        """Say whether a node waits for nothing at all, or on some lanes for nothing: there it waits for the start of the step."""
        always = any(barrier.lanes is None for barrier in self.barriers.get(node, ()))
        return not always and self.sources.begin[node] == self.sources.begin[node + 1]

    def members_of(self, node: int) -> Ints:
        """Give the nodes that move together with one."""
        members, event = self.moves.members, self.starts_in[node]
        return members.flat[members.begin[event] : members.begin[event + 1]] if event >= 0 else np.array([node])

    def list_batches(self) -> tuple[tuple[int, ...], ...]:
        """List the operations that end together, as they were launched in one blocking batch."""
        moves = self.moves
        return moves.completes.take(np.flatnonzero(moves.awaits.lengths)).rows()

    @functools.cached_property
    def waits(self) -> tuple[tuple[int, ...], ...]:
        """`sources`, row by row."""
        return self.sources.rows()

    @functools.cached_property
    def events(self) -> tuple[Event, ...]:
        """`moves`, event by event."""
        return self.moves.rows()

    @functools.cached_property
    def last_use(self) -> tuple[tuple[int, ...], ...]:
        """Nodes whose end is not needed after each event; lets a replay forget them."""
        at = self.starts_in
        needed_last = self.moves.find(self.moves.completes, self.n_nodes)
        np.maximum.at(needed_last, self.sources.flat, at[self.sources.row_of()])
        for node, of_node in self.barriers.items():
            sources = [source for barrier in of_node for source in barrier.sources]
            needed_last[sources] = np.maximum(needed_last[sources], at[node])
        needed_last[list(self.finals)] = -1
        order = np.argsort(needed_last, kind="stable")
        return Ragged(order, np.searchsorted(needed_last[order], np.arange(len(self.moves) + 1))).rows()


class Layout:
    """Where the nodes of each type stand on each stage, in launch order.

    Streams are ordered by `start_s`, the typical start of each node: seconds, shape (n_nodes,). `overlaps` are computes that run
    beside others.
    """

    def __init__(self, nodes: Nodes, start_s: Seconds, overlaps: Overlaps | None = None) -> None:
        self.nodes = nodes
        self.overlaps = overlaps or {}
        self.n_stages = int(nodes.stage.max()) + 1 if len(nodes) else 0
        self.start_s = start_s
        self._by_place = list_by_place(nodes)

    @functools.cached_property
    def position(self) -> Ints:
        """Where in the model the chunk of each node stands."""
        return positions_of(self.nodes)

    @functools.cached_property
    def stage_at(self) -> dict[int, int]:
        """Which stage holds each position of the model."""
        return stage_at(self.nodes)

    @functools.cached_property
    def served(self) -> dict[int, int]:
        """The compute of each send and recv, by node."""
        return match_transfers(self.nodes)

    @functools.cached_property
    def _keys(self) -> tuple[list[int], list[int], list[int]]:
        """Type, position in the model and microbatch of each node."""
        return self.nodes.op.tolist(), self.position.tolist(), self.nodes.microbatch.tolist()

    @functools.cached_property
    def places(self) -> dict[tuple[int, int, int], int]:
        """The forward or backward of each (type, position in the model, microbatch)."""
        computes = np.flatnonzero(of_types(self.nodes.op, (Op.FORWARD, Op.BACKWARD)))
        keys = (column[computes].tolist() for column in (self.nodes.op, self.position, self.nodes.microbatch))
        return dict(zip(zip(*keys, strict=True), computes.tolist(), strict=True))

    def beside(self, compute: int, ahead: int) -> int | None:
        """Find the compute on the same microbatch so many model chunks ahead."""
        op, position, microbatch = self._keys
        return self.places.get((op[compute], position[compute] + ahead, microbatch[compute]))

    def of(self, op: Op, stage: int) -> list[int]:
        """List the nodes of one type on one stage by `seq`."""
        return self._by_place.get((int(op), stage), [])

    def by_start(self, ops: Iterable[Op], stage: int) -> list[int]:
        """List the nodes of several types on one stage in launch order."""
        found = np.array([node for op in ops for node in self.of(op, stage)], dtype=np.int64)
        order = np.lexsort((self.nodes.seq[found], self.nodes.op[found], self.start_s[found]))
        in_order: list[int] = found[order].tolist()
        return in_order

    def chunk(self, node: int) -> int:
        """Model chunk of a node, 0 where it has none."""
        return max(int(self.nodes.chunk[node]), 0)


def order_graph(
    layout: Layout,
    waits: list[set[int]],
    events: Events,
    barriers: dict[int, tuple[Barrier, ...]],
    batches: Sequence[tuple[int, ...]] = (),
) -> Graph:
    """Put events into topological order.

    `batches` are operations of one worker that were launched in one blocking batch and end together.

    Raises
    ------
    TraceError
        Operations wait for each other in a circle; the message names them.
    """
    events = join_batches(events, Ragged.of(batches), len(layout.nodes))
    ends_in = np.zeros(len(waits), dtype=bool)
    ends_in[events.completes.flat] = True
    pairs = Ragged.of(waits)
    known = ends_in[pairs.flat]
    sources = Ragged.of_pairs(pairs.row_of()[known], pairs.flat[known], len(waits))
    finals = find_finals(layout, events.completes.flat)
    return arrange(layout.nodes, sources, events, barriers, finals)


def arrange(
    nodes: Nodes,
    sources: Ragged,
    events: Events,
    barriers: dict[int, tuple[Barrier, ...]],
    finals: tuple[int, ...],
) -> Graph:
    """Make a graph of its parts, its events in topological order.

    Raises
    ------
    TraceError
        Operations wait for each other in a circle; the message names them.
    """
    events = events.take(_sort_events(nodes, events, sources, barriers))
    return Graph(sources, events, barriers, finals, _opening(nodes, sources, events))


def add_barriers(nodes: Nodes, graph: Graph, barriers: dict[int, tuple[Barrier, ...]]) -> Graph:
    """Give a graph more waits that no row records, by waiter; their `lanes` may differ by step.

    Raises
    ------
    TraceError
        Operations would wait for each other in a circle.
    """
    together = {node: (*graph.barriers.get(node, ()), *barriers.get(node, ())) for node in {*graph.barriers, *barriers}}
    order = _sort_events(nodes, graph.moves, graph.sources, together)
    return dataclasses.replace(graph, moves=graph.moves.take(order), barriers=together, levels=[])


def repeat_lanes(graph: Graph, n_times: int, shape: tuple[int, int]) -> Graph:
    """Give the graph for so many sets of lanes, each (n_steps, n_dp), in turn on the axis of steps."""
    if n_times == 1:
        return graph
    return change_lanes(graph, lambda lanes: np.tile(np.broadcast_to(lanes, shape), (n_times, 1)))


def change_lanes(graph: Graph, change: Callable[[Bools], Bools]) -> Graph:
    """Give the graph whose barriers hold for other lanes: itself where all hold for all."""
    if all(barrier.lanes is None for of_node in graph.barriers.values() for barrier in of_node):
        return graph
    barriers: dict[int, tuple[Barrier, ...]] = {
        node: tuple(b if b.lanes is None else dataclasses.replace(b, lanes=change(b.lanes)) for b in of_node)
        for node, of_node in graph.barriers.items()
    }
    return dataclasses.replace(graph, barriers=barriers)


def _sort_events(
    nodes: Nodes,
    events: Events,
    sources: Ragged,
    barriers: Mapping[int, tuple[Barrier, ...]],
) -> Ints:
    """Put events into topological order, by the last event that each waits for."""
    earlier, later = list_edges(events, sources, barriers)
    begin = np.searchsorted(earlier, np.arange(len(events) + 1)).tolist()
    after, open_waits = later.tolist(), np.bincount(later, minlength=len(events)).tolist()
    ordered = [i for i, n in enumerate(open_waits) if not n]
    for i in ordered:  # which grows meanwhile
        for j in after[begin[i] : begin[i + 1]]:
            n = open_waits[j] = open_waits[j] - 1
            if not n:
                ordered.append(j)
    if len(ordered) < len(events):
        at = np.flatnonzero(open_waits)
        of_events = zip(events.completes.take(at).rows(), events.members.take(at).rows(), strict=True)
        stuck = [nodes.name((completes or members)[0]) for completes, members in of_events]
        raise TraceError(
            f"{len(stuck)} operations wait for each other in a circle: {', '.join(stuck[:4])}, ...; expected the "
            "launch order of a pipeline schedule: check start_ts, seq_id and mb_id",
            where="graph",
        )
    return np.array(ordered, dtype=np.int64)


def list_edges(events: Events, sources: Ragged, barriers: Mapping[int, tuple[Barrier, ...]]) -> tuple[Ints, Ints]:
    """List which event must have moved before which, each pair once: positions in `events`, by the earlier one."""
    starts_in, ends_in = (events.find(rows, len(sources)) for rows in (events.members, events.completes))
    hidden = [(source, node) for node, of_node in barriers.items() for barrier in of_node for source in barrier.sources]
    source, waiter = np.array(hidden, dtype=np.int64).reshape(-1, 2).T
    earlier = ends_in[np.concatenate([sources.flat, source])]
    later = starts_in[np.concatenate([sources.row_of(), waiter])]
    known = (earlier >= 0) & (later >= 0) & (earlier != later)
    earlier = np.concatenate([earlier[known], events.awaits.flat])
    later = np.concatenate([later[known], events.awaits.row_of()])
    return np.divmod(_distinct(earlier * len(events) + later), max(len(events), 1))


def begins_of(lengths: Ints) -> Ints:
    """Say where rows of these lengths begin, one after the other, and where the last one ends."""
    begin = np.zeros(len(lengths) + 1, dtype=np.int64)
    np.cumsum(lengths, out=begin[1:])
    return begin


def _distinct(numbers: Ints) -> Ints:
    """Give each number once, in rising order; `np.unique` of many integers takes ten times as long."""
    numbers = np.sort(numbers)
    is_first = np.ones(len(numbers), dtype=bool)
    is_first[1:] = numbers[1:] != numbers[:-1]
    distinct: Ints = numbers[is_first]
    return distinct


def last_of(seconds: Seconds, rows: Ragged, latest: np.ufunc = np.maximum) -> Seconds:
    """Take the latest of the times that each row of nodes, none empty, names: seconds, (n_rows, ...).

    `reduceat` along the first axis costs ten times as much.
    """
    lengths, begin = rows.lengths, rows.begin[:-1]
    order = np.argsort(-lengths, kind="stable")
    longest = lengths[order]
    found: Seconds = seconds.take(rows.flat[begin[order]], axis=0)
    for n in range(1, int(longest[0]) if len(longest) else 0):
        some = found[: np.searchsorted(-longest, -n)]
        latest(some, seconds.take(rows.flat[begin[order[: len(some)]] + n], axis=0), out=some)
    back = np.empty_like(found)
    back[order] = found
    return back


def group_by_length(rows: Ragged) -> list[Ints]:
    """Give rows as arrays, one of shape (n_rows, length) for each length but none."""
    lengths = rows.lengths
    every = np.unique(lengths[lengths > 0]).tolist()
    return [rows.take(np.flatnonzero(lengths == length)).flat.reshape(-1, length) for length in every]


def split_nodes(nodes: Ints, n_lanes: int) -> list[Ints]:
    """Split nodes, each of so many lanes, into parts that are looked at at a time; none of no nodes."""
    return np.array_split(nodes, min(1 + len(nodes) * n_lanes // MAX_CELLS, len(nodes))) if len(nodes) else []


def flatten(rows: Sequence[Collection[int]]) -> Ints:
    """Put rows of numbers one after the other."""
    return np.fromiter(itertools.chain.from_iterable(rows), dtype=np.int64, count=sum(map(len, rows)))


def join_batches(events: Events, batches: Ragged, n_nodes: int) -> Events:
    """Let the operations of each batch end together, after the last of their pairs has moved."""
    if not len(batches):
        return events
    batched = np.zeros(n_nodes, dtype=bool)
    batched[batches.flat] = True
    kept, starts_in, n = ~batched[events.completes.flat], events.find(events.members, n_nodes), len(events)
    given = Ragged(events.completes.flat[kept], begins_of(np.bincount(events.completes.row_of()[kept], minlength=n)))
    return Events(
        Ragged.join([events.members, Ragged.empty(len(batches))]),
        Ragged.join([given, batches]),
        Ragged.of_pairs(n + batches.row_of(), starts_in[batches.flat], n + len(batches)),
        np.concatenate([events.across_dp, np.zeros(len(batches), dtype=bool)]),
    )


def _opening(nodes: Nodes, sources: Ragged, events: Events) -> frozenset[int]:
    """Find the nodes that a negative transfer duration at the start of the step can reach before any compute."""
    passes = ~of_types(nodes.op, COMPUTE)
    left = sources.lengths.tolist()
    order = np.argsort(sources.flat, kind="stable")
    begin = np.searchsorted(sources.flat[order], np.arange(len(sources) + 1)).tolist()
    waiters, can_pass = sources.row_of()[order].tolist(), passes.tolist()
    first = events.members.flat[(sources.lengths == 0)[events.members.flat]]
    passed: list[int] = first[passes[first]].tolist()
    openers: set[int] = set()
    while passed:
        source = passed.pop()
        for node in waiters[begin[source] : begin[source + 1]]:
            left[node] -= 1
            if not left[node]:
                openers.add(node)
                if can_pass[node]:
                    passed.append(node)
    return frozenset(openers)


def find_finals(layout: Layout, in_graph: Ints) -> tuple[int, ...]:
    """Find the nodes whose latest end is the end of the step: the optimizers, or whatever can end it."""
    finals = [node for stage in range(layout.n_stages) for node in layout.of(Op.OPTIMIZER, stage)]
    if finals:
        return tuple(finals)
    closing = np.array(_closing(layout), dtype=np.int64)
    return tuple(closing[np.isin(closing, in_graph)].tolist())


def _closing(layout: Layout) -> list[int]:
    """List the nodes that can end a step without an optimizer: the last of every stream, and all after the last compute."""
    closing: list[int] = []
    for stage in range(layout.n_stages):
        closing += layout.by_start(DIRECTIONS, stage)[-1:]
        for op in P2P:
            closing += layout.of(op, stage)[-1:]
        for op in (Op.GC, Op.LAYERNORM, Op.EMBEDDING, Op.REDUCE_SCATTER, Op.SEPARATE, Op.CLIP):
            closing += layout.of(op, stage)
    return closing


def chain_waits(waits: list[set[int]], stream: Sequence[int]) -> None:
    """Let each operation of a stream wait for the one before it."""
    for earlier, later in itertools.pairwise(stream):
        waits[later].add(earlier)
