"""The graph that the times themselves show: blocking batches, serial streams and hidden barriers.

Enters: a block without gaps. Leaves: a `Graph` for gains and fixes. The paper's graph lets point-to-point operations
run in streams of their own and knows no barrier that no row records; removing a delay in it moves too little or too
much. Costs O(nodes) comparisons over at most `MAX_LANES` lanes.
"""

import dataclasses
from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from diagnose.errors import TraceError
from diagnose.model.members import ALL_TO_ALLS, GROUP_PREFIXES, WAITS
from diagnose.model.optype import DIRECTIONS, DP_COLLECTIVES, P2P, RECEIVES, Op, of_types
from diagnose.model.trace import NO_ROWS, Block, Bools, Evidence, Ints, Nodes, Seconds, Trace
from diagnose.numerics.robust import nan_quantile
from diagnose.whatif.barriers import EXPLAINED_SHARE, add_hidden_barriers
from diagnose.whatif.batches import HELD_SHARE, SampledLanes, find_batches
from diagnose.whatif.circles import drop_circles
from diagnose.whatif.clocks import Clocks, carry_over, correct_clocks, correct_evidence, estimate_clocks
from diagnose.whatif.dependencies import N_TYPES, essential_waits, find_events, number_kinds
from diagnose.whatif.fill import fill_again
from diagnose.whatif.graph import (
    Events,
    Graph,
    Layout,
    Ragged,
    group_by_length,
    last_of,
    order_graph,
    split_nodes,
)
from diagnose.whatif.levels import OfNodes
from diagnose.whatif.occupied import (
    add_inner_waits,
    add_meetings,
    find_busy,
    find_gather_waits,
    find_inner_waits,
    find_occupying,
    measure_inside,
    without_busy,
)
from diagnose.whatif.overlaps import find_overlaps
from diagnose.whatif.replay import launch_delays, own_times
from diagnose.whatif.scenarios import Prepared, typical_start

#: Launch delays above this quantile count as that: pauses of the host are rarer.
USUAL_QUANTILE = 0.9
#: A wait explains at least this part of a launch delay where several waits come together.
PARTLY_EXPLAINED_SHARE = 0.1
#: How much a worker that was filled in counts, however many others there are.
WORST_WORKER_WEIGHT = 0.25
#: Times that were taken from each other are the same to this.
TIE_S = 1e-9
#: Operations before one on its worker that may explain when it was launched.
MAX_RECENT = 12
#: Computes next to a collective that may need it, or while which it may begin.
MAX_BESIDE = 4
#: Transfers run apart from computes where this part of them overlaps the next compute by this part of it.
APART_SHARE = 0.05
OVERLAP_SHARE = 0.1


_PIPELINED = (*DIRECTIONS, *P2P)


@dataclasses.dataclass(frozen=True, slots=True)
class Observed:
    """A block on one clock with the graph its times show, own times and launch delays."""

    block: Block
    graph: Graph
    own: OfNodes
    delay: OfNodes
    #: The part of the launch delays that rows of other types fill; None: nowhere.
    busy: list[Seconds] | None = None
    #: These rows; `step` is the step number.
    others: Evidence = NO_ROWS
    #: Seconds by which such rows fill more of a compute than usual, by type and node.
    inside_s: Mapping[int, Mapping[int, Seconds]] = dataclasses.field(default_factory=dict)
    #: Its transfers were derived from its computes.
    are_derived: bool = False
    #: Ranks exchange the tokens of experts: they share these.
    has_all_to_alls: bool = False
    #: The types of other rows, of those between operations, in which members of a group wait for the last.
    met: frozenset[int] = frozenset()
    #: As `find_beside` has them.
    beside: Mapping[int, int] = dataclasses.field(default_factory=dict)
    #: Waits that times seem to show and that are left out, as they close a circle.
    n_dropped: int = 0

    def idle(self, node: int) -> Seconds:
        """Give the launch delay of a node without the time in which its worker was busy with other rows."""
        return self.delay[node] if self.busy is None else self.delay[node] - self.busy[node]

    @property
    def pairs(self) -> list[tuple[int, int]]:
        """The point-to-point pairs."""
        send, recv = self.find_pairs().T.tolist()
        return list(zip(send, recv, strict=True))

    def find_pairs(self) -> Ints:
        """Give the point-to-point pairs, shape (n_pairs, 2): each a send and its recv."""
        members = self.graph.moves.members
        pairs = members.take(np.flatnonzero(members.lengths == 2)).flat.reshape(-1, 2)
        return pairs[of_types(self.block.nodes.op[pairs[:, 0]], P2P)]

    def find_groups(self) -> Ints:
        """Give the collectives of all dp ranks of a stage."""
        moves = self.graph.moves
        alone = moves.members.take(np.flatnonzero(moves.across_dp & (moves.members.lengths == 1))).flat
        return alone[of_types(self.block.nodes.op[alone], DP_COLLECTIVES)]

    def find_awaited(self) -> Bools:
        """Mark the transfers that began with a recv that was there: shape (n_nodes, n_steps, n_dp).

        Only these take as long as the link needs: where a message may be sent before it is asked for, others have a part left.
        Not told apart, and all marked, are derived ones and what is no transfer of a pair.
        """
        awaited = np.ones(self.block.start_s.shape, dtype=bool)
        if not self.are_derived:
            send, recv = (pairs := self.find_pairs()).T
            awaited[pairs] = (self.block.start_s[recv] <= self.block.start_s[send])[:, None]
        return awaited

    def through(self, pairs: Ints) -> Seconds:
        """Say how long after its send began each recv was over, at least as long as the transfer took: (n_pairs, n_steps, n_dp)."""
        return np.asarray(self.block.end_s[pairs[:, 1]] - self.block.start_s[pairs[:, 0]])


def observe(trace: Trace, prepared: Sequence[Prepared]) -> tuple[tuple[Observed, ...], Evidence, Clocks]:
    """Put the blocks of a job on one clock and measure them with the graph that their times show.

    Warm-up steps are left out, and blocks of which none is left.

    Returns
    -------
    observed : tuple of Observed
    evidence : Evidence
        The trace's, on the same clock.
    clocks : Clocks
        How much later than the job's each worker's clock reads.
    """
    clocks = estimate_clocks([(p.block, p.graph) for p in prepared], may_move=not trace.is_on_one_host)
    recorded = [p.block for p in prepared]
    evidence, others = (correct_evidence(rows, recorded, clocks) for rows in (trace.evidence, trace.others))
    blocks = [_without_steps(block, trace.warm_up_steps) for block in recorded]
    blocks = [correct_clocks(block, clocks) for block in blocks if len(block.steps)]
    carried = carry_over(others, trace)
    occupies, inside = find_occupying(carried, blocks)
    # Members of a worker wait for each other inside of what one of them does.
    within = np.array([name.startswith(GROUP_PREFIXES) for name in trace.other_types], dtype=bool)
    inside[inside] = ~within[carried.op[inside]]
    waits = np.isin(trace.other_types, (*WAITS, *ALL_TO_ALLS))
    meet = np.flatnonzero(waits & ~within).tolist()
    has_all_to_alls = not set(ALL_TO_ALLS).isdisjoint(trace.other_types)
    occupying, parts, others = carried.take(occupies), carried.take(inside), others.take(occupies[: len(others)])
    found = []
    for filled in blocks:
        busy = find_busy(occupying, filled)
        graph, n_dropped = build_observed_graph(
            without_busy(filled, busy), usual_start(filled), has_dp=trace.job.has_dp
        )
        block = fill_again(filled, graph)
        graph, met = add_meetings(block, graph, busy, meet)
        inner = find_inner_waits(parts, block, meet) or find_gather_waits(block, are_gathered_anew(block.nodes))
        worked, graph = add_inner_waits(block, graph, inner)
        delay = launch_delays(worked, graph)
        of_delay = None if busy is None else busy.within(worked, delay, range(len(block.nodes)))
        rows = others.take(np.isin(others.step, block.steps))
        own, inside_s = own_times(worked, graph), measure_inside(parts, worked)
        beside = find_beside(worked.nodes, SampledLanes(worked), usual_start(worked))
        found.append(
            Observed(
                worked,
                graph,
                own,
                delay,
                of_delay,
                rows,
                inside_s,
                trace.are_derived,
                has_all_to_alls,
                met,
                beside,
                n_dropped,
            )
        )
    return tuple(found), evidence, clocks


def describe_dropped(observed: Sequence[Observed]) -> list[str]:
    """Say that waits are left out that closed a circle."""
    n = sum(o.n_dropped for o in observed)
    what, are = ("a wait", "is") if n == 1 else (f"{n} waits", "are")
    told = f"{what} that the times seem to show would close a circle and {are} left out, as where timestamps vary by more than"
    return [f"{told} what runs in between takes: gains beside {'it' if n == 1 else 'them'} are less sure"] if n else []


def measure_filled(observed: Sequence[Observed]) -> float:
    """Say which part of the job was missing and filled in: of all operations, or a quarter of the worst worker's.

    One worker without rows is a small part of a large job, but its waits cannot be learned, and gains beside it are too small.
    """
    filled = np.zeros((observed[0].block.n_dp, 1 + int(max(o.block.nodes.stage.max() for o in observed))))
    n_ops = np.zeros_like(filled)
    for o in observed:
        np.add.at(n_ops.T, o.block.nodes.stage, len(o.block.steps))
        if o.block.filled is not None:
            np.add.at(filled.T, o.block.nodes.stage, o.block.filled.sum(axis=1))
    worst = float((filled / np.maximum(n_ops, 1)).max())
    return max(float(filled.sum() / n_ops.sum()), WORST_WORKER_WEIGHT * worst)


def usual_start(block: Block) -> Seconds:
    """Say when each node usually starts, by what was recorded: seconds, shape (n_nodes,)."""
    if block.filled is None:
        return typical_start(block)
    return typical_start(dataclasses.replace(block, start_s=np.where(block.filled, np.nan, block.start_s)))


def _without_steps(block: Block, steps: tuple[int, ...]) -> Block:
    """Leave some steps out of a block."""
    keep = ~np.isin(block.steps, steps)
    return block if keep.all() else block.take_steps(keep)


def build_observed_graph(block: Block, start_s: Seconds, *, has_dp: bool) -> tuple[Graph, int]:
    """Build the graph of the waits that the recorded times of a block without gaps, on one clock, bear out.

    Gives also how many of these, or of the batches, closed a circle and are left out.

    `start_s` and `has_dp` are as for `build_graph`.
    """
    layout = Layout(block.nodes, start_s, find_overlaps(block, start_s))
    sample = SampledLanes(block)
    events = find_events(layout, has_dp=has_dp)
    members = events.members.flat
    waits = essential_waits(layout, has_dp=has_dp)
    by_start = np.unique(members)
    by_start = by_start[np.argsort(start_s[by_start], kind="stable")]
    order = [by_start[block.nodes.stage[by_start] == stage] for stage in range(layout.n_stages)]
    moving = np.zeros(len(block.nodes), dtype=bool)
    moving[members] = (events.members.lengths > 1)[events.members.row_of()]
    # Transfers to nobody last no time: that they end together says nothing.
    batches = [b for stage in order for b in find_batches(block.nodes, sample, stage) if moving[list(b)].any()]
    _drop_broken_waits(block, sample, waits, members)
    starts_at, ends_at = _moving_times(sample, start_s, events, batches)
    for stage_order in order:
        _await_gathers(block.nodes, sample, waits, stage_order, starts_at, ends_at)
    for stage_order in order:
        _add_tied_waits(block.nodes, sample, waits, stage_order, starts_at, ends_at)
    may = _look_before(block.nodes, number_kinds(layout), sample, order, batches, starts_at, ends_at)
    # What closes a step may wait for its worker's last transfer and for other workers: each explains a part.
    pipelined = of_types(block.nodes.op[members], _PIPELINED)
    part = np.where(pipelined, EXPLAINED_SHARE, PARTLY_EXPLAINED_SHARE)
    for source, node in list(_explain_delays(sample, members, waits, may[members], part)):
        waits[node].add(source)
    for stage_order in order:
        _add_serial_waits(block, sample, waits, stage_order, starts_at, ends_at)
    _launch_beside(block.nodes, sample, waits, find_beside(block.nodes, sample, start_s), starts_at, ends_at)
    for batch in batches:
        # Launched in one call: what keeps one of them from being launched keeps all.
        together = set().union(*(waits[node] for node in batch)).difference(batch)
        for node in batch:
            waits[node] |= together
    n_dropped = 0
    try:
        graph = order_graph(layout, waits, events, {}, batches)
    except TraceError:
        known = essential_waits(layout, has_dp=has_dp)
        try:
            n_dropped = drop_circles(waits, known, events, batches, ends_at)
        except TraceError:
            n_dropped = len(batches) + drop_circles(waits, known, events, (), ends_at)
            batches = []
        graph = order_graph(layout, waits, events, {}, batches)
    graph = add_hidden_barriers(block, layout, graph, waits, events, batches)
    return dataclasses.replace(graph, finals=(*graph.finals, *_list_last_gathers(layout, graph))), n_dropped


def _list_last_gathers(layout: Layout, graph: Graph) -> list[int]:
    """List the gathers that wait for an optimizer: they end the step then, and not the optimizers."""
    op, waits = layout.nodes.op, graph.waits
    last = dict.fromkeys(np.flatnonzero(op == Op.OPTIMIZER).tolist())
    in_order = graph.moves.members.flat
    for node in in_order[op[in_order] == Op.ALL_GATHER].tolist():
        if not last.keys().isdisjoint(waits[node]):
            last[node] = None
    return [node for node in last if op[node] == Op.ALL_GATHER]


def _look_before(
    nodes: Nodes,
    kinds: Sequence[int],
    sample: SampledLanes,
    order: Sequence[Ints],
    batches: Sequence[tuple[int, ...]],
    starts_at: Seconds,
    ends_at: Seconds,
) -> Ints:
    """Find what each operation may wait for on its worker: the last of each kind before it, if it never overtakes it.

    That one must move earlier, too, so that no circle can arise. Being never earlier is not enough: beside a slow worker
    everything is late, and would wait for everything.

    Returns
    -------
    ndarray of int64, shape (n_nodes, n_kinds)
        Nodes, -1 for none.
    """
    values, kind = np.unique(np.asarray(kinds), return_inverse=True)
    every = np.arange(len(values))
    last = np.full((len(kinds), len(values)), -1)
    for of_stage in order:
        at = np.where(kind[of_stage[:-1], None] == every, np.arange(len(of_stage) - 1)[:, None], -1)
        at = np.maximum.accumulate(at, axis=0)
        last[of_stage[1:]] = np.where(at < 0, -1, of_stage[at])
    waiter, of_kind = (last >= 0).nonzero()
    source = last[waiter, of_kind]
    share = sample.held_shares(source, waiter)
    held = _held_classes(kind[waiter], of_kind, share, _share_batch(source, waiter, batches, len(kinds)), len(values))
    ops, computes = values % N_TYPES, [int(op) for op in DIRECTIONS]
    apart = of_types(ops, _types_apart(nodes, sample, order))
    held &= ~(apart[:, None] & np.isin(values, computes))
    may = held[of_kind, kind[waiter]] & (ends_at[source] < starts_at[waiter]) & (share >= HELD_SHARE)
    # What nothing in the pipeline needs yet, nothing in it waits for.
    may &= ~(_are_idle_gathers(nodes)[source] & of_types(nodes.op[waiter], _PIPELINED))
    last[waiter[~may], of_kind[~may]] = -1
    return last


def _share_batch(source: Ints, waiter: Ints, batches: Sequence[tuple[int, ...]], n_nodes: int) -> Bools:
    """Say of pairs of operations whether both are of one batch."""
    batch_of, together = np.full(n_nodes, -1), Ragged.of(batches)
    batch_of[together.flat] = together.row_of()
    return np.asarray((batch_of[waiter] >= 0) & (batch_of[source] == batch_of[waiter]))


def _held_classes(waiter: Ints, source: Ints, share: Seconds, together: Bools, n_kinds: int) -> Bools:
    """Find the kinds (earlier, later) where the later operation always waits for the last one of the earlier kind.

    Operations of one batch are launched together: that they do not wait for each other says nothing of those that are not.
    """
    pair, shape = (source * n_kinds + waiter)[~together], (n_kinds, n_kinds)
    total, n = (np.bincount(pair, weights, minlength=n_kinds**2) for weights in (share[~together], None))
    return np.asarray((n > 0) & (total / np.maximum(n, 1) >= HELD_SHARE)).reshape(shape)


def _types_apart(nodes: Nodes, sample: SampledLanes, order: Sequence[Ints]) -> list[int]:
    """Find the types of communication that run apart from computes, so that a compute which waits does so by contention.

    Gradients are never needed by a compute of their step. Transfers run apart if any of them overlaps a compute; where none
    does they block the worker.
    """
    transfers, followers = [], []
    for of_stage in order:
        computes = np.flatnonzero(of_types(nodes.op[of_stage], DIRECTIONS))
        at = np.flatnonzero(of_types(nodes.op[of_stage], P2P))
        next_at = np.append(computes, len(of_stage) + MAX_RECENT)[np.searchsorted(computes, at)]
        near = next_at - at <= MAX_RECENT
        transfers.append(of_stage[at[near]])
        followers.append(of_stage[next_at[near]])
    transfer, following = np.concatenate(transfers), np.concatenate(followers)
    n_apart = 0
    for part in split_nodes(np.arange(len(transfer)), sample.start_s.shape[1]):
        start_s, end_s = sample.start_s[following[part]], sample.end_s[following[part]]
        overlap = sample.end_s[transfer[part]] - start_s
        begun = sample.start_s[transfer[part]] <= start_s
        n_apart += int(np.count_nonzero(begun & (overlap > OVERLAP_SHARE * (end_s - start_s))))
    blocks = n_apart <= APART_SHARE * len(transfer) * sample.start_s.shape[1]
    return [int(op) for op in ((Op.REDUCE_SCATTER,) if blocks else (Op.REDUCE_SCATTER, *P2P))]


def _drop_broken_waits(block: Block, sample: SampledLanes, waits: list[set[int]], members: Ints) -> None:
    """Take out waits that the times contradict: another framework closes its steps in another order, or gathers more than once."""
    op = block.nodes.op
    closing = (Op.LAYERNORM, Op.EMBEDDING, Op.REDUCE_SCATTER, Op.SEPARATE, Op.CLIP, Op.OPTIMIZER, Op.GC)
    in_graph, may_be_broken = np.zeros((2, len(waits)), dtype=bool)
    anew = are_gathered_anew(block.nodes)
    in_graph[members] = True
    may_be_broken[members] = of_types(op[members], closing)
    for node in members[of_types(op[members], (*closing, *DIRECTIONS))].tolist():
        for source in list(waits[node]):
            asked = in_graph[source] and (may_be_broken[node] or op[source] == Op.ALL_GATHER)
            # A reduction that begins within computes does so where nothing else is late; of gathers for each compute most are not
            # the first one's.
            within = op[node] == Op.REDUCE_SCATTER and op[source] in DIRECTIONS
            of_another = op[source] == Op.ALL_GATHER and anew[node]
            least = HELD_SHARE if within or of_another else 1.0 - HELD_SHARE
            if asked and sample.held_share(source, node) < least:
                waits[node].discard(source)


def find_beside(nodes: Nodes, sample: SampledLanes, start_s: Seconds) -> dict[int, int]:
    """Find the last compute of its worker that has always begun when a collective or recv does, for each that there is one for.

    Collectives begin as gradients are there, or as the next parameters are asked for, and recvs are posted ahead, and not when they
    may. `start_s` is when each node usually starts.
    """
    found: dict[int, int] = {}
    in_order = np.argsort(start_s, kind="stable")
    for stage in np.unique(nodes.stage).tolist():
        of_stage = in_order[nodes.stage[in_order] == stage]
        is_compute = of_types(nodes.op[of_stage], DIRECTIONS)
        computes, n_before = of_stage[is_compute], np.cumsum(is_compute)
        for at in np.flatnonzero(of_types(nodes.op[of_stage], (*DP_COLLECTIVES, *RECEIVES))).tolist():
            near = computes[max(n_before[at] - MAX_BESIDE, 0) : n_before[at] + 1]
            begun_s = sample.start_s[of_stage[at]] - sample.start_s[near]
            begun = np.count_nonzero(begun_s >= -sample.tolerance_s, axis=1) / sample.count(begun_s)
            found |= {int(of_stage[at]): compute for compute in near[begun >= HELD_SHARE][-1:].tolist()}
    return found


def are_gathered_anew(nodes: Nodes) -> Bools:
    """Mark the nodes of workers that gather parameters more often than they have chunks: for each compute, or each layer."""
    gathers = np.bincount(nodes.stage[nodes.op == Op.ALL_GATHER], minlength=1 + int(nodes.stage.max(initial=0)))
    return np.asarray((gathers > 1 + nodes.chunk.max(initial=0))[nodes.stage])


def _await_gathers(
    nodes: Nodes, sample: SampledLanes, waits: list[set[int]], order: Ints, starts_at: Seconds, ends_at: Seconds
) -> None:
    """Let computes wait for their parameters where they are gathered anew: each gather is for the next compute to begin.

    As in `_look_before` it moves earlier, too.
    """
    is_gather, is_compute = nodes.op[order] == Op.ALL_GATHER, of_types(nodes.op[order], DIRECTIONS)
    is_gather &= are_gathered_anew(nodes)[order]
    computes, n_before = order[is_compute], np.cumsum(is_compute)
    for at in np.flatnonzero(is_gather).tolist():
        near = computes[n_before[at] : n_before[at] + MAX_BESIDE]
        near = near[ends_at[order[at]] < starts_at[near]]
        ready = near[sample.held_shares(np.full_like(near, order[at]), near) >= HELD_SHARE]
        for compute in ready[:1].tolist():
            waits[compute].add(int(order[at]))


def _launch_beside(
    nodes: Nodes,
    sample: SampledLanes,
    waits: list[set[int]],
    beside: Mapping[int, int],
    starts_at: Seconds,
    ends_at: Seconds,
) -> None:
    """Let what begins after a compute does wait for its end, or for what it waited for, if that explains when.

    Gradients are there once their backward has begun, whatever explains when: their reduction waits for all that it waited for.
    As in `_look_before` that moves earlier, too, so that no circle can arise.
    """
    launched = np.array([*beside], dtype=np.int64)
    may = Ragged.of([({c} | waits[c]) - waits[node] - {node} for node, c in beside.items()])
    source, waiter = may.flat, launched[may.row_of()]
    held = (ends_at[source] < starts_at[waiter]) & (sample.held_shares(source, waiter) >= HELD_SHARE)
    sources = np.full((len(launched), int(may.lengths.max(initial=0))), -1, dtype=np.int64)
    place = np.arange(len(source)) - may.begin[may.row_of()]
    sources[may.row_of()[held], place[held]] = source[held]
    explained = _explain_delays(sample, launched, waits, sources, np.full(len(launched), PARTLY_EXPLAINED_SHARE))
    begun = held & (nodes.op[waiter] == Op.REDUCE_SCATTER)
    for one, node in [*explained, *zip(source[begun].tolist(), waiter[begun].tolist(), strict=True)]:
        waits[node].add(one)


def _moving_times(
    sample: SampledLanes, start_s: Seconds, events: Events, batches: list[tuple[int, ...]]
) -> tuple[Seconds, Seconds]:
    """Say when each node's event usually moves, and when the last event that its end waits for does: (n_nodes,), NaN for none.

    One whose rows are missing in some lanes is compared with others as if these were lanes like the rest: a late one moves all.
    """
    moves = np.full(len(start_s), np.nan)
    recorded = ~np.isnan(sample.start_s)
    lanes_s = np.where(recorded, sample.start_s, 0.0).sum(axis=0) / np.maximum(recorded.sum(axis=0), 1)
    for members in group_by_length(events.members):
        for part in split_nodes(members, sample.start_s.shape[1] * members.shape[1]):
            starts = sample.start_s[part].max(axis=1)  # NaN where one member is
            moved = starts.mean(axis=1)
            for i in np.flatnonzero(np.isnan(moved)).tolist():
                there = ~np.isnan(starts[i])
                late_s = starts[i][there] - lanes_s[there]
                moved[i] = late_s.mean() + lanes_s.mean() if there.any() else np.max(start_s[part[i]])
            moves[part] = moved[:, None]
    ends, together = moves.copy(), Ragged.of(batches)
    ends[together.flat] = np.repeat(last_of(moves, together), together.lengths)
    return moves, ends


def _add_tied_waits(
    nodes: Nodes,
    sample: SampledLanes,
    waits: list[set[int]],
    order: Ints,
    starts_at: Seconds,
    ends_at: Seconds,
) -> None:
    """Let each recv wait for what it starts with the end of, where in every lane that is one of a few before it, and never later.

    Where transfers were derived a recv is begun as its worker goes on: after a compute in some steps, after a send in others.
    """
    start_s, end_s = sample.start_s[order], sample.end_s[order]
    moved_s, ended_s = starts_at[order], ends_at[order]
    receives = of_types(nodes.op[order], RECEIVES)
    explained, pairs = np.isnan(start_s), []
    for ahead in range(1, min(MAX_RECENT, len(order) - 1) + 1):
        gap_s = start_s[ahead:] - end_s[:-ahead]
        ties = np.abs(gap_s) <= TIE_S
        held = receives[ahead:] & (ended_s[:-ahead] < moved_s[ahead:]) & ~(gap_s < -TIE_S).any(axis=1)
        explained[ahead:] |= ties & held[:, None]
        found = np.flatnonzero(held & ties.any(axis=1))
        pairs += list(zip(order[found].tolist(), (found + ahead).tolist(), strict=True))
    for source, waiter in pairs:
        if explained[waiter].all():
            waits[order[waiter]].add(source)


def _add_serial_waits(
    block: Block, sample: SampledLanes, waits: list[set[int]], order: Ints, starts_at: Seconds, ends_at: Seconds
) -> None:
    """Let what waits for nothing yet wait for operations shortly before it on its worker that explain why it did not start earlier.

    The first transfers of a direction are posted before the last computes have ended. Waits that follow from others on the same
    worker are left out.
    """
    launched: list[int] = order.tolist()
    place = {node: at for at, node in enumerate(launched)}
    pipelined, idle = of_types(block.nodes.op, _PIPELINED), _are_idle_gathers(block.nodes)
    known: dict[int, set[int]] = {}  # node -> what it waits for directly on this worker
    for at, node in enumerate(launched):
        if not waits[node]:
            recent = order[max(0, at - MAX_RECENT) : at]
            recent = recent[(ends_at[recent] < starts_at[node]) & ~(pipelined[node] & idle[recent])]
            recent = recent[sample.held_shares(recent, np.full_like(recent, node)) >= HELD_SHARE]
            some = _explain_delays(sample, order[at : at + 1], waits, recent[None], np.array([EXPLAINED_SHARE]))
            waits[node].update([source for source, _ in some])
        found = {source for source in waits[node] if source in known}
        for source in sorted(found):
            if any(_follows(other, source, known, place) for other in found - {source}):
                found.discard(source)
                waits[node].discard(source)
        known[node] = found


def _follows(node: int, source: int, known: Mapping[int, set[int]], place: Mapping[int, int]) -> bool:
    """Say whether an operation waits for another one of its worker, directly or not; `place` is where each stands on it."""
    seen, ahead = {node}, [node]
    while ahead:
        for before in known[ahead.pop()]:
            if before == source:
                return True
            if before not in seen and place[before] > place[source]:
                seen.add(before)
                ahead.append(before)
    return False


def _are_idle_gathers(nodes: Nodes) -> Bools:
    """Mark the gathers of the parameters of later chunks: what needs a chunk's parameters waits for them anyway."""
    return np.asarray((nodes.op == Op.ALL_GATHER) & (nodes.seq > 0))


def _explain_delays(
    sample: SampledLanes, nodes: Ints, waits: Sequence[set[int]], sources: Ints, part: Seconds
) -> Iterator[tuple[int, int]]:
    """Choose the waits that take away at least a part of what is left of launch delays, one after the other.

    Gives pairs (source, waiter). `sources`, shape (n_nodes, n_sources), are what each of the nodes may wait for, -1 for nothing;
    `part` is that of each node.
    """
    if not sources.shape[1]:
        return
    sources = np.sort(sources, axis=1)  # of equals the first is taken
    for rows in split_nodes(np.arange(len(nodes)), max(sample.start_s.shape[1], 1)):
        of_rows, start_s = sources[rows], sample.start_s[nodes[rows]]
        ready_s, known = np.zeros_like(start_s), Ragged.of([waits[node] for node in nodes[rows].tolist()])
        waiting = np.flatnonzero(known.lengths)
        ready_s[waiting] = last_of(sample.end_s, known.take(waiting))
        left = _mean_delays(sample, start_s, ready_s, np.inf)
        free = (of_rows >= 0) & (left > sample.tolerance_s)[:, None]
        # A few long pauses before it must not hide what a node waits for in all other steps; then what binds in a few lanes only.
        for most_s in (np.maximum(nan_quantile(start_s - ready_s, USUAL_QUANTILE, axis=1), 0.0)[:, None], np.inf):
            left = _mean_delays(sample, start_s, ready_s, most_s)
            at = np.flatnonzero(free.any(axis=1) & (left > sample.tolerance_s))
            while len(at):
                beyond = np.full((len(at), sources.shape[1]), np.inf)
                for k in np.flatnonzero(free[at].any(axis=0)).tolist():
                    asked = np.flatnonzero(free[at, k])
                    i = at[asked]
                    ended_s = np.maximum(ready_s[i], sample.end_s[of_rows[i, k]])
                    most = most_s if isinstance(most_s, float) else most_s[i]
                    beyond[asked, k] = _mean_delays(sample, start_s[i], ended_s, most)
                best = beyond.argmin(axis=1)
                least = beyond[np.arange(len(at)), best]
                explains = least <= (1.0 - part[rows[at]]) * left[at]
                at, best = at[explains], best[explains]
                left[at] = least[explains]
                yield from zip(of_rows[at, best].tolist(), nodes[rows[at]].tolist(), strict=True)
                free[at, best] = False
                ready_s[at] = np.maximum(ready_s[at], sample.end_s[of_rows[at, best]])
                at = at[free[at].any(axis=1) & (left[at] > sample.tolerance_s)]


def _mean_delays(sample: SampledLanes, start_s: Seconds, ready_s: Seconds, most_s: Seconds | float) -> Seconds:
    """Take the mean launch delay of each row over the lanes that recorded both, each counted as at most so many seconds."""
    delays = np.minimum(np.maximum(start_s - ready_s, 0.0), most_s)
    count = sample.count(delays)
    return np.asarray((delays if sample.is_complete else np.nan_to_num(delays)).sum(axis=1) / count)
