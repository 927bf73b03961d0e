"""The graph that the times themselves show: blocking batches, serial streams and hidden barriers.

Enters: a block without gaps. Leaves: a `Graph` for gains and fixes. The paper's graph lets point-to-point operations
run in streams of their own and knows no barrier that no row records; removing a delay in it moves too little or too
much. Costs O(nodes) comparisons over at most `MAX_LANES` lanes.
"""

import dataclasses
from collections.abc import Mapping, Sequence

import numpy as np

from diagnose.errors import TraceError
from diagnose.model.members import GROUP_PREFIXES
from diagnose.model.optype import DIRECTIONS, P2P, Op
from diagnose.model.trace import NO_ROWS, Block, Evidence, Nodes, Seconds, Trace
from diagnose.numerics.robust import quantile
from diagnose.whatif.barriers import EXPLAINED_SHARE, add_hidden_barriers
from diagnose.whatif.batches import HELD_SHARE, SampledLanes, find_batches
from diagnose.whatif.clocks import carry_over, correct_clocks, correct_evidence, estimate_offsets
from diagnose.whatif.dependencies import N_TYPES, essential_waits, find_events, number_kinds
from diagnose.whatif.graph import Event, Graph, Layout, Ragged, group_by_members, last_of, order_graph, split_nodes
from diagnose.whatif.levels import OfNodes
from diagnose.whatif.occupied import (
    add_inner_waits,
    add_meetings,
    find_busy,
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
#: Transfers run apart from computes where this part of them overlaps the next compute by this part of it.
APART_SHARE = 0.05
OVERLAP_SHARE = 0.1


_PIPELINED = {int(op) for op in (*DIRECTIONS, *P2P)}
_RECEIVES = (Op.FORWARD_RECV, Op.BACKWARD_RECV)


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

    def idle(self, node: int) -> Seconds:
        """Give the launch delay of a node without the time in which its worker was busy with other rows."""
        return self.delay[node] if self.busy is None else self.delay[node] - self.busy[node]

    @property
    def pairs(self) -> list[tuple[int, int]]:
        """The point-to-point pairs."""
        events, moves = self.graph.events, np.isin(self.block.nodes.op, P2P).tolist()
        return [(e.members[0], e.members[1]) for e in events if len(e.members) == 2 and moves[e.members[0]]]

    def through(self, pair: tuple[int, int]) -> Seconds:
        """Say how long after its send began a recv was over: as long as the transfer took, at least."""
        send, recv = sorted(pair, key=lambda node: int(self.block.nodes.op[node]) in _RECEIVES)
        return np.asarray(self.block.end_s[recv] - self.block.start_s[send])


def observe(trace: Trace, prepared: Sequence[Prepared]) -> tuple[tuple[Observed, ...], Evidence, Seconds]:
    """Put the blocks of a job on one clock and measure them with the graph that their times show.

    Warm-up steps are left out, and blocks of which none is left.

    Returns
    -------
    observed : tuple of Observed
    evidence : Evidence
        The trace's, on the same clock.
    offset_s : ndarray of float64, shape (n_dp, n_stages)
        How much later than the job's each worker's clock reads, seconds.
    """
    offset_s = estimate_offsets([(p.block, p.graph) for p in prepared])
    recorded = [p.block for p in prepared]
    evidence, others = (correct_evidence(rows, recorded, offset_s) for rows in (trace.evidence, trace.others))
    blocks = [_without_steps(block, trace.warm_up_steps) for block in recorded]
    blocks = [correct_clocks(block, offset_s) for block in blocks if len(block.steps)]
    carried = carry_over(others, trace)
    occupies, inside = find_occupying(carried, blocks)
    # Members of a worker wait for each other inside of what one of them does.
    within = np.array([name.startswith(GROUP_PREFIXES) for name in trace.other_types], dtype=bool)
    inside[inside] = ~within[carried.op[inside]]
    occupying, parts, others = carried.take(occupies), carried.take(inside), others.take(occupies[: len(others)])
    found = []
    for block in blocks:
        busy = find_busy(occupying, block)
        graph = build_observed_graph(without_busy(block, busy), usual_start(block), has_dp=trace.job.has_dp)
        graph = add_meetings(block, graph, busy)
        worked, graph = add_inner_waits(block, graph, find_inner_waits(parts, block))
        delay = launch_delays(worked, graph)
        of_delay = None if busy is None else busy.within(worked, delay, range(len(block.nodes)))
        rows = others.take(np.isin(others.step, block.steps))
        own, inside_s = own_times(worked, graph), measure_inside(parts, worked)
        found.append(Observed(worked, graph, own, delay, of_delay, rows, inside_s, trace.are_derived))
    return tuple(found), evidence, offset_s


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


def build_observed_graph(block: Block, start_s: Seconds, *, has_dp: bool) -> Graph:
    """Build the graph of the waits that the recorded times of a block without gaps, on one clock, bear out.

    `start_s` and `has_dp` are as for `build_graph`.
    """
    layout = Layout(block.nodes, start_s, find_overlaps(block, start_s))
    sample = SampledLanes(block)
    events = find_events(layout, has_dp=has_dp)
    in_graph = {node for event in events for node in event.members}
    waits = essential_waits(layout, has_dp=has_dp)
    order = [
        sorted(
            in_graph.intersection(np.flatnonzero(block.nodes.stage == stage).tolist()), key=lambda n: (start_s[n], n)
        )
        for stage in range(layout.n_stages)
    ]
    moving = {node for event in events if len(event.members) > 1 for node in event.members}
    # Transfers to nobody last no time: that they end together says nothing.
    batches = [b for stage in order for b in find_batches(block.nodes, sample, stage) if moving.intersection(b)]
    kinds = number_kinds(layout)
    shares = _measure_shares(kinds, sample, order)
    apart = _types_apart(block.nodes, sample, order)
    held = {pair for pair in _held_classes(kinds, shares, batches) if (pair[0] % N_TYPES, pair[1]) not in apart}
    _drop_broken_waits(block, sample, waits, in_graph)
    starts_at, ends_at = _moving_times(sample, start_s, events, batches)
    for stage_order in order:
        _add_tied_waits(block.nodes, sample, waits, stage_order, starts_at, ends_at)
        _add_serial_waits(block, sample, waits, stage_order, _Kinds(kinds, held, shares), starts_at, ends_at)
    for batch in batches:
        # Launched in one call: what keeps one of them from being launched keeps all.
        together = set().union(*(waits[node] for node in batch)).difference(batch)
        for node in batch:
            waits[node] |= together
    try:
        graph = order_graph(layout, waits, events, {}, batches)
    except TraceError:
        batches, waits = [], essential_waits(layout, has_dp=has_dp)
        graph = order_graph(layout, waits, events, {}, batches)
    return add_hidden_barriers(block, layout, graph, waits, events, batches)


#: How often an operation never started before another one had ended, by (earlier, later): `SampledLanes.held_share`.
_Shares = dict[tuple[int, int], float]


@dataclasses.dataclass(frozen=True, slots=True)
class _Kinds:
    """The kind of each node, the pairs of kinds (earlier, later) of which the later one waits, and how often each node did."""

    of: Sequence[int]
    held: set[tuple[int, int]]
    shares: _Shares


def _measure_shares(kinds: Sequence[int], sample: SampledLanes, order: list[list[int]]) -> _Shares:
    """Measure how often each operation waited for the last one of each type before it on its worker."""
    pairs: list[tuple[int, int]] = []
    for stage_order in order:
        last: dict[int, int] = {}
        for node in stage_order:
            pairs += [(source, node) for source in last.values()]
            last[kinds[node]] = node
    return dict(zip(pairs, sample.held_shares(pairs), strict=True))


def _held_classes(kinds: Sequence[int], shares: _Shares, batches: list[tuple[int, ...]]) -> set[tuple[int, int]]:
    """Find the pairs of types (earlier, later) where the later operation always waits for the last one of the earlier type.

    Operations of one batch are launched together: that they do not wait for each other says nothing of those that are not.
    """
    batch_of = {node: i for i, batch in enumerate(batches) for node in batch}
    found: dict[tuple[int, int], list[float]] = {}
    for (source, node), share in shares.items():
        if node not in batch_of or batch_of.get(source) != batch_of[node]:
            found.setdefault((kinds[source], kinds[node]), []).append(share)
    return {pair for pair, of_types in found.items() if np.mean(of_types) >= HELD_SHARE}


def _types_apart(nodes: Nodes, sample: SampledLanes, order: list[list[int]]) -> set[tuple[int, int]]:
    """Find the pairs of types (communication, compute) that run apart, so that a compute which waits does so by contention.

    Gradients are never needed by a compute of their step. Transfers run apart if any of them overlaps a compute; where none
    does they block the worker.
    """
    ops, computes, transfers = nodes.op.tolist(), {int(op) for op in DIRECTIONS}, {int(op) for op in P2P}
    found = {(int(Op.REDUCE_SCATTER), op) for op in computes}
    n_apart = n_looked = 0
    for stage_order in order:
        for at, node in enumerate(stage_order):
            if ops[node] not in transfers:
                continue
            following = next((n for n in stage_order[at + 1 : at + 1 + MAX_RECENT] if ops[n] in computes), None)
            if following is None:
                continue
            overlap = sample.end_s[node] - sample.start_s[following]
            begun = sample.start_s[node] <= sample.start_s[following]
            n_apart += int(
                (begun & (overlap > OVERLAP_SHARE * (sample.end_s[following] - sample.start_s[following]))).sum()
            )
            n_looked += overlap.size
    if n_apart > APART_SHARE * n_looked:
        found |= {(transfer, op) for transfer in transfers for op in computes}
    return found


def _drop_broken_waits(block: Block, sample: SampledLanes, waits: list[set[int]], in_graph: set[int]) -> None:
    """Take out waits of the step's end that the times contradict (another framework closes its steps in another order)."""
    closing = {Op.LAYERNORM, Op.EMBEDDING, Op.REDUCE_SCATTER, Op.SEPARATE, Op.CLIP, Op.OPTIMIZER, Op.GC}
    for node in in_graph:
        if Op(int(block.nodes.op[node])) not in closing:
            continue
        for source in list(waits[node]):
            if source in in_graph and sample.held_share(source, node) < 1.0 - HELD_SHARE:
                waits[node].discard(source)


def _moving_times(
    sample: SampledLanes, start_s: Seconds, events: list[Event], batches: list[tuple[int, ...]]
) -> tuple[dict[int, float], dict[int, float]]:
    """Say when each node's event usually moves, and when the last event that its end waits for does.

    One whose rows are missing in some lanes is compared with others as if these were lanes like the rest: a late one moves all.
    """
    moves: dict[int, float] = {}
    recorded = ~np.isnan(sample.start_s)
    lanes_s = np.where(recorded, sample.start_s, 0.0).sum(axis=0) / np.maximum(recorded.sum(axis=0), 1)
    for members in group_by_members(events):
        for part in split_nodes(members, sample.start_s.shape[1] * members.shape[1]):
            starts = sample.start_s[part].max(axis=1)  # NaN where one member is
            moved = starts.mean(axis=1)
            for i in np.flatnonzero(np.isnan(moved)).tolist():
                there = ~np.isnan(starts[i])
                late_s = starts[i][there] - lanes_s[there]
                moved[i] = late_s.mean() + lanes_s.mean() if there.any() else np.max(start_s[part[i]])
            for of_event, seconds in zip(part.tolist(), moved.tolist(), strict=True):
                moves.update(dict.fromkeys(of_event, seconds))
    ends = dict(moves)
    for batch in batches:
        ends.update(dict.fromkeys(batch, max(moves[node] for node in batch)))
    return moves, ends


def _add_tied_waits(
    nodes: Nodes,
    sample: SampledLanes,
    waits: list[set[int]],
    order: list[int],
    starts_at: dict[int, float],
    ends_at: dict[int, float],
) -> None:
    """Let each recv wait for what it starts with the end of, where in every lane that is one of a few before it, and never later.

    Where transfers were derived a recv is begun as its worker goes on: after a compute in some steps, after a send in others.
    """
    at = np.asarray(order, dtype=np.int64)
    start_s, end_s = sample.start_s[at], sample.end_s[at]
    moved_s, ended_s = (np.array([times[node] for node in order]) for times in (starts_at, ends_at))
    receives = np.isin(nodes.op[at], _RECEIVES)
    explained, pairs = np.isnan(start_s), []
    for ahead in range(1, min(MAX_RECENT, len(order) - 1) + 1):
        gap_s = start_s[ahead:] - end_s[:-ahead]
        ties = np.abs(gap_s) <= TIE_S
        held = receives[ahead:] & (ended_s[:-ahead] < moved_s[ahead:]) & ~(gap_s < -TIE_S).any(axis=1)
        explained[ahead:] |= ties & held[:, None]
        found = np.flatnonzero(held & ties.any(axis=1))
        pairs += list(zip(at[found].tolist(), found + ahead, strict=True))
    for source, waiter in pairs:
        if explained[waiter].all():
            waits[at[waiter]].add(source)


def _add_serial_waits(
    block: Block,
    sample: SampledLanes,
    waits: list[set[int]],
    order: list[int],
    kinds: _Kinds,
    starts_at: dict[int, float],
    ends_at: dict[int, float],
) -> None:
    """Let each operation wait for those before it on its worker that explain why it did not start earlier.

    Candidates are the last operation of every type that the operation never overtakes and that moves earlier, so that no
    circle can arise. Being never earlier is not enough: beside a slow worker everything is late, and would wait for everything.
    Waits that follow from others on the same worker are left out.
    """
    last: dict[int, int] = {}
    ops, idle = block.nodes.op.tolist(), _list_idle_gathers(block.nodes)
    place = {node: at for at, node in enumerate(order)}
    known: dict[int, set[int]] = {}  # node -> what it waits for directly on this worker
    prompt = _list_prompt(sample, waits, order)
    for at, node in enumerate(order):
        op = ops[node]
        # What nothing in the pipeline needs yet, nothing in it waits for.
        skipped = idle if op in _PIPELINED else ()
        if node not in prompt:
            candidates = {
                source
                for of_source, source in last.items()
                if (of_source, kinds.of[node]) in kinds.held
                and source not in skipped
                and ends_at[source] < starts_at[node]
                and kinds.shares[source, node] >= HELD_SHARE
            }
            # What closes a step may wait for its worker's last transfer and for other workers: each explains a part.
            part = EXPLAINED_SHARE if op in _PIPELINED else PARTLY_EXPLAINED_SHARE
            waits[node] |= _explain_delay(sample, node, waits[node], candidates, part)
        if not waits[node]:
            # The first transfers of a direction are posted before the last computes have ended: ask all that came shortly before.
            recent = {
                source
                for source in order[max(0, at - MAX_RECENT) : at]
                if ends_at[source] < starts_at[node]
                and source not in skipped
                and sample.held_share(source, node) >= HELD_SHARE
            }
            waits[node] |= _explain_delay(sample, node, waits[node], recent, EXPLAINED_SHARE)
        found = {source for source in waits[node] if source in known}
        for source in sorted(found) if len(found) > 1 else ():
            if any(_follows(other, source, known, place) for other in found - {source}):
                found.discard(source)
        waits[node] = {source for source in waits[node] if source not in known} | found
        known[node] = found
        last[kinds.of[node]] = node


def _list_prompt(sample: SampledLanes, waits: Sequence[set[int]], order: Sequence[int]) -> set[int]:
    """List the operations of a worker that start as soon as what they are known to wait for has ended: nothing explains more."""
    waiting = np.array([node for node in order if waits[node]], dtype=np.int64)
    if not sample.is_complete or not len(waiting) or not sample.start_s.shape[1]:
        return set()
    found: set[int] = set()
    for part in split_nodes(waiting, sample.start_s.shape[1]):
        ready_s = last_of(sample.end_s, Ragged.of([waits[node] for node in part.tolist()]))
        delay_s = np.add.reduce(np.maximum(sample.start_s[part] - ready_s, 0.0), axis=1) / sample.start_s.shape[1]
        found.update(part[delay_s <= sample.tolerance_s].tolist())
    return found


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


def _list_idle_gathers(nodes: Nodes) -> set[int]:
    """List the gathers of the parameters of later chunks: what needs a chunk's parameters waits for them anyway."""
    return set(np.flatnonzero((nodes.op == Op.ALL_GATHER) & (nodes.seq > 0)).tolist())


def _explain_delay(sample: SampledLanes, node: int, known: set[int], candidates: set[int], part: float) -> set[int]:
    """Choose the waits that take away at least a part of what is left of a node's launch delay, one after the other."""
    chosen: set[int] = set()
    if not candidates:
        return chosen
    start_s = sample.start_s[node]
    ready_s = np.max(sample.end_s[list(known)], axis=0) if known else np.zeros_like(start_s)
    if _mean_delay(sample, start_s, ready_s, np.inf) <= sample.tolerance_s:
        return chosen
    delay_s = sample.recorded(start_s - ready_s)
    # A few long pauses before it must not hide what it waits for in all other steps.
    most_s = quantile(delay_s, USUAL_QUANTILE) if delay_s.size else 0.0
    for most in (most_s, np.inf):  # then what binds in a few lanes only
        left = _mean_delay(sample, start_s, ready_s, most)
        while candidates and left > sample.tolerance_s:
            sources = sorted(candidates)
            beyond = _mean_delays(sample, start_s, np.maximum(ready_s, sample.end_s[sources]), most)
            at = min(range(len(sources)), key=beyond.__getitem__)  # the first of equals
            if beyond[at] > (1.0 - part) * left:
                break
            chosen.add(sources[at])
            candidates = candidates - {sources[at]}
            ready_s, left = np.maximum(ready_s, sample.end_s[sources[at]]), beyond[at]
    return chosen


def _mean_delays(sample: SampledLanes, start_s: Seconds, ready_s: Seconds, most_s: float) -> list[float]:
    """Take the mean launch delay, as `_mean_delay` does, for each of several waits: `ready_s` has shape (n_sources, n_lanes)."""
    if not sample.is_complete:
        return [_mean_delay(sample, start_s, ready, most_s) for ready in ready_s]
    delays = np.minimum(np.maximum(start_s - ready_s, 0.0), max(most_s, 0.0))
    total: list[float] = np.add.reduce(delays, axis=1).tolist()
    return [seconds / len(start_s) for seconds in total] if len(start_s) else total


def _mean_delay(sample: SampledLanes, start_s: Seconds, ready_s: Seconds, most_s: float) -> float:
    """Take the mean launch delay over the lanes that recorded both, each counted as at most so many seconds."""
    delay = sample.recorded(np.minimum(np.maximum(start_s - ready_s, 0.0), max(most_s, 0.0)))
    return float(np.add.reduce(delay)) / delay.size if delay.size else 0.0
