"""What waits for what: the dependency graph of one model-parallel group in one step.

Enters: the nodes of a block. Leaves: a `Graph`, shared by all steps and dp ranks of the block, in topological order.
"""

import dataclasses
import functools
import heapq
import itertools
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from diagnose.errors import TraceError
from diagnose.model.optype import COMPUTE, DIRECTIONS, P2P, Op
from diagnose.model.placement import list_by_place, match_transfers, positions_of, stage_at
from diagnose.model.trace import Bools, Ints, Nodes, Seconds
from diagnose.whatif.overlaps import Overlaps

#: Cells (operation, step, dp rank) that are looked at at a time.
MAX_CELLS = 500_000


@dataclasses.dataclass(frozen=True, slots=True)
class Event:
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
        opened: Seconds = functools.reduce(np.maximum, [ends[source] for source in self.sources])
        if self.across_dp and self.groups is not None and opened.shape[1] > 1:
            latest = np.full((opened.shape[0], int(self.groups.max()) + 1), -np.inf)
            for rank, group in enumerate(self.groups.tolist()):
                latest[:, group] = np.maximum(latest[:, group], opened[:, rank])
            opened = latest[:, self.groups]
        elif self.across_dp:
            opened = opened.max(axis=1, keepdims=True)
        return opened if self.lanes is None else np.where(self.lanes, opened, -np.inf)


@dataclasses.dataclass(frozen=True, slots=True)
class Graph:
    """Dependencies of a block's nodes.

    Attributes
    ----------
    waits : tuple of tuple of int, length n_nodes
        For each node the nodes whose end it waits for.
    events : tuple of Event
        Every node once, in an order in which all that an event waits for comes before it.
    barriers : dict of int to tuple of Barrier
        Learned waits by waiter.
    last_use : tuple of tuple of int, length n_events
        Nodes whose end is not needed after that event; lets a replay forget them.
    finals : tuple of int
        Nodes whose latest end is the end of the step: the optimizers.
    openers : frozenset of int
        Nodes that wait for nothing but communication from the start of the step on; a negative transfer duration
        can let them start before it, and then the step is that much longer.
    """

    n_nodes: int
    waits: tuple[tuple[int, ...], ...]
    events: tuple[Event, ...]
    barriers: dict[int, tuple[Barrier, ...]]
    last_use: tuple[tuple[int, ...], ...]
    finals: tuple[int, ...]
    openers: frozenset[int]
    #: What `levels.levels_of` works out, once.
    levels: list[Any] = dataclasses.field(default_factory=list, init=False, compare=False, repr=False)


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
        self.position = positions_of(nodes)
        self.stage_at = stage_at(nodes)

    @functools.cached_property
    def served(self) -> dict[int, int]:
        """The compute of each send and recv, by node."""
        return match_transfers(self.nodes)

    @functools.cached_property
    def places(self) -> dict[tuple[int, int, int], int]:
        """The forward or backward of each (type, position in the model, microbatch)."""
        computes = np.flatnonzero(np.isin(self.nodes.op, (Op.FORWARD, Op.BACKWARD)))
        keys = (column[computes].tolist() for column in (self.nodes.op, self.position, self.nodes.microbatch))
        return dict(zip(zip(*keys, strict=True), computes.tolist(), strict=True))

    def beside(self, compute: int, ahead: int) -> int | None:
        """Find the compute on the same microbatch so many model chunks ahead."""
        nodes = self.nodes
        key = (int(nodes.op[compute]), int(self.position[compute]) + ahead, int(nodes.microbatch[compute]))
        return self.places.get(key)

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
    events: list[Event],
    barriers: dict[int, tuple[Barrier, ...]],
    batches: Sequence[tuple[int, ...]] = (),
) -> Graph:
    """Put events into topological order, ties by typical start, and say when each end was last needed.

    `batches` are operations of one worker that were launched in one blocking batch and end together.

    Raises
    ------
    TraceError
        Operations wait for each other in a circle; the message names them.
    """
    nodes, start_s = layout.nodes, layout.start_s.tolist()
    events = _join_batches(events, batches)
    key = [min(start_s[node] for node in event.completes or event.members) for event in events]
    moved = _sort_events(nodes, events, waits, barriers, key)
    ends_in = {node for event in events for node in event.completes}
    finals = tuple(node for stage in range(layout.n_stages) for node in layout.of(Op.OPTIMIZER, stage))
    finals = finals or tuple(node for node in _closing(layout) if node in ends_in)
    return Graph(
        n_nodes=len(nodes),
        waits=tuple(tuple(sorted(w & ends_in)) for w in waits),
        events=tuple(moved),
        barriers=barriers,
        last_use=_last_uses(moved, waits, barriers, finals),
        finals=finals,
        openers=_opening(layout, waits, moved),
    )


def add_barriers(nodes: Nodes, graph: Graph, barriers: dict[int, tuple[Barrier, ...]]) -> Graph:
    """Give a graph more waits that no row records, by waiter; their `lanes` may differ by step.

    Raises
    ------
    TraceError
        Operations would wait for each other in a circle.
    """
    together = {node: (*graph.barriers.get(node, ()), *barriers.get(node, ())) for node in {*graph.barriers, *barriers}}
    waits = [set(w) for w in graph.waits]
    events = _sort_events(nodes, graph.events, waits, together, range(len(graph.events)))
    return dataclasses.replace(
        graph,
        events=tuple(events),
        barriers=together,
        last_use=_last_uses(events, waits, together, graph.finals),
    )


def _sort_events(
    nodes: Nodes,
    events: Sequence[Event],
    waits: Sequence[set[int]],
    barriers: Mapping[int, tuple[Barrier, ...]],
    key: Sequence[float],
) -> list[Event]:
    """Put events into topological order, ties by their key, then as they stand."""
    earlier, later = _list_edges(len(nodes), events, waits, barriers)
    begin = np.searchsorted(earlier, np.arange(len(events) + 1)).tolist()
    after, open_waits = later.tolist(), np.bincount(later, minlength=len(events)).tolist()
    by_rank = np.argsort(np.asarray(key, dtype=np.float64), kind="stable")
    rank = np.empty(len(events), dtype=np.int64)
    rank[by_rank] = np.arange(len(events))
    at_rank, rank_of = by_rank.tolist(), rank.tolist()
    ready = [rank_of[i] for i, n in enumerate(open_waits) if not n]
    heapq.heapify(ready)
    ordered: list[int] = []
    while ready:
        i = at_rank[heapq.heappop(ready)]
        ordered.append(i)
        for j in after[begin[i] : begin[i + 1]]:
            open_waits[j] -= 1
            if not open_waits[j]:
                heapq.heappush(ready, rank_of[j])
    if len(ordered) < len(events):
        stuck = [nodes.name((event.completes or event.members)[0]) for i, event in enumerate(events) if open_waits[i]]
        raise TraceError(
            f"{len(stuck)} operations wait for each other in a circle: {', '.join(stuck[:4])}, ...; expected the "
            "launch order of a pipeline schedule: check start_ts, seq_id and mb_id",
            where="graph",
        )
    position = {i: at for at, i in enumerate(ordered)}
    found = [events[i] for i in ordered]
    return [
        dataclasses.replace(event, awaits=tuple(position[j] for j in event.awaits)) if event.awaits else event
        for event in found
    ]


def _list_edges(
    n_nodes: int,
    events: Sequence[Event],
    waits: Sequence[Collection[int]],
    barriers: Mapping[int, tuple[Barrier, ...]],
) -> tuple[Ints, Ints]:
    """List which event must have moved before which, each pair once: positions in `events`, by the earlier one."""
    starts_in, ends_in = np.full((2, n_nodes), -1)
    for of_node, nodes_of in (
        (starts_in, [event.members for event in events]),
        (ends_in, [event.completes for event in events]),
    ):
        of_node[flatten(nodes_of)] = np.repeat(np.arange(len(events)), [len(nodes) for nodes in nodes_of])
    hidden = [(source, node) for node, of_node in barriers.items() for barrier in of_node for source in barrier.sources]
    earlier = ends_in[np.r_[flatten(waits), flatten([(source,) for source, _ in hidden])]]
    waiter = np.repeat(np.arange(len(waits)), [len(w) for w in waits])
    later = starts_in[np.r_[waiter, flatten([(node,) for _, node in hidden])]]
    known = (earlier >= 0) & (later >= 0) & (earlier != later)
    awaits = [event.awaits for event in events]
    earlier = np.r_[earlier[known], flatten(awaits)]
    later = np.r_[later[known], np.repeat(np.arange(len(events)), [len(a) for a in awaits])]
    return np.divmod(np.unique(earlier * len(events) + later), max(len(events), 1))


def last_ends(graph: Graph, nodes: Sequence[int], end_s: Seconds) -> Seconds:
    """Say when the last of what each of some nodes waits for, at least one operation, ends: seconds, (n, n_steps, n_dp)."""
    sources = [graph.waits[node] for node in nodes]
    if not sources:
        return np.zeros((0, *end_s.shape[1:]))
    begins = np.array([0, *itertools.accumulate(map(len, sources))], dtype=np.int64)[:-1]
    return np.asarray(np.maximum.reduceat(end_s[flatten(sources)], begins, axis=0))


def group_by_members(events: Iterable[Event]) -> list[Ints]:
    """Give the members of events, an array of shape (n_events, n_members) for each number of members but none."""
    found: dict[int, list[tuple[int, ...]]] = {}
    for event in events:
        if event.members:
            found.setdefault(len(event.members), []).append(event.members)
    return [np.array(members, dtype=np.int64) for members in found.values()]


def split_nodes(nodes: Ints, n_lanes: int) -> list[Ints]:
    """Split nodes, each of so many lanes, into parts that are looked at at a time; none of no nodes."""
    return np.array_split(nodes, min(1 + len(nodes) * n_lanes // MAX_CELLS, len(nodes))) if len(nodes) else []


def flatten(rows: Sequence[Collection[int]]) -> Ints:
    """Put rows of numbers one after the other."""
    return np.fromiter(itertools.chain.from_iterable(rows), dtype=np.int64, count=sum(map(len, rows)))


def _join_batches(events: list[Event], batches: Sequence[tuple[int, ...]]) -> list[Event]:
    """Let the operations of each batch end together, after the last of their pairs has moved."""
    batched = {node for batch in batches for node in batch}
    if not batched:
        return events
    starts_in = {node: i for i, event in enumerate(events) for node in event.members}
    split = [
        event
        if batched.isdisjoint(event.completes)
        else dataclasses.replace(event, completes=tuple(n for n in event.completes if n not in batched))
        for event in events
    ]
    return split + [
        Event((), across_dp=False, completes=batch, awaits=tuple(sorted({starts_in[node] for node in batch})))
        for batch in batches
    ]


def _last_uses(
    events: list[Event], waits: list[set[int]], barriers: dict[int, tuple[Barrier, ...]], finals: tuple[int, ...]
) -> tuple[tuple[int, ...], ...]:
    """Say after which event the end of each node is not needed any more."""
    at = np.full(len(waits), -1)
    members = [event.members for event in events]
    at[flatten(members)] = np.repeat(np.arange(len(events)), [len(m) for m in members])
    completes = [event.completes for event in events]
    needed_last = np.full(len(waits), -1)
    needed_last[flatten(completes)] = np.repeat(np.arange(len(events)), [len(c) for c in completes])
    np.maximum.at(needed_last, flatten(waits), np.repeat(at, [len(w) for w in waits]))
    for node, of_node in barriers.items():
        sources = [source for barrier in of_node for source in barrier.sources]
        needed_last[sources] = np.maximum(needed_last[sources], at[node])
    needed_last[list(finals)] = -1
    order = np.argsort(needed_last, kind="stable")
    begin = np.searchsorted(needed_last[order], np.arange(len(events) + 1)).tolist()
    nodes = order.tolist()
    return tuple(tuple(nodes[a:b]) for a, b in itertools.pairwise(begin))


def _opening(layout: Layout, waits: list[set[int]], events: list[Event]) -> frozenset[int]:
    """Find the nodes that a negative transfer duration at the start of the step can reach before any compute."""
    compute = {int(op) for op in COMPUTE}
    passed: set[int] = set()
    openers: set[int] = set()
    ops = layout.nodes.op.tolist()
    for event in events:
        for node in event.members:
            if waits[node] <= passed:
                if waits[node]:
                    openers.add(node)
                if ops[node] not in compute:
                    passed.add(node)
    return frozenset(openers)


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
