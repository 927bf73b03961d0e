"""Time that rows of other types take: which of them keep their worker from computing, and what waits for them.

Enters: rows of types that the format does not name, and blocks without gaps on one clock. Leaves: the rows that occupy the compute
stream of their worker, their seconds before each operation, and the operations that meet in them. Costs a sort of the rows and of
the operations, and a look-up of each in the other.

A row inside a compute is a part of it. One that overlaps computes without being inside of one runs beside them, on another stream.
What is left, between operations, is busy time of the worker: what comes after waits for its end, wherever replays move it.
"""

import dataclasses
from collections.abc import Collection, Iterable, Sequence

import numpy as np

from diagnose.errors import TraceError
from diagnose.model.optype import COMPUTE, DIRECTIONS, Op, of_types
from diagnose.model.trace import Block, Bools, Evidence, Ints, Seconds
from diagnose.numerics.robust import median
from diagnose.whatif.barriers import BARRIER_TOLERANCE_S, WORTH_SHARE
from diagnose.whatif.batches import HELD_SHARE
from diagnose.whatif.graph import Barrier, Graph, add_barriers
from diagnose.whatif.levels import OfNodes

#: A row may overlap a compute by this part of itself, or by what clocks differ, and still lie beside it, or end with it.
OVERLAP_SHARE = 0.05
#: A type of which a larger part of the rows that are not inside computes overlaps some runs on a stream of its own.
BESIDE_SHARE = 0.1
#: Such work stands out from so many times the usual on.
UNEVEN_RATIO = 1.5
#: A row inside a compute that may have made it long takes this part of a usual one (as pauses do).
LONG_SHARE = 0.03
#: Rows end together where their ends differ by less than this part of what their starts differ by, and computes where theirs do by
#: less than this part of what they wait, in variance.
TOGETHER_RATIO = 0.3
#: Computes that are asked whether rows inside of them meet.
MAX_LOOKED_AT = 64
#: An operation follows such rows in this part of the lanes.
USUAL_SHARE = 0.5


@dataclasses.dataclass(frozen=True, slots=True)
class Busy:
    """Rows of one block that occupy the compute stream, those of a worker and step that touch as one."""

    #: The rows, steps by index.
    rows: Evidence
    #: Shape (n_nodes, n_steps, n_dp): seconds directly before an operation in which its worker was busy so, and had ended all
    #: else.
    before_s: Seconds
    keys: "Keys"
    #: The time that the rows cover, in these keys.
    union: "Union"

    def within(self, block: Block, delay_s: OfNodes, nodes: Iterable[int], kind: int | None = None) -> list[Seconds]:
        """Say which part of the launch delays of nodes such rows, or those of one type, fill: seconds, (n_steps, n_dp) each."""
        union = self.union if kind is None else Union.of(self.keys, self.rows.take(self.rows.op == kind))
        found = []
        for node in nodes:
            start_s = block.start_s[node]
            wait_s = np.broadcast_to(np.maximum(np.nan_to_num(delay_s[node]), 0.0), start_s.shape)
            lanes = self.keys.lanes(int(block.nodes.stage[node]))
            until = union.until(self.keys.at(lanes, start_s))
            found.append(np.minimum(until - union.until(self.keys.at(lanes, start_s - wait_s)), wait_s))
        return found


def find_occupying(others: Evidence, blocks: Sequence[Block]) -> tuple[Bools, Bools]:
    """Mark the rows that keep their worker from computing: those between computes, of types that never run beside one.

    Of these types mark also the rows inside computes.
    """
    if not len(others):
        return np.zeros(0, dtype=bool), np.zeros(0, dtype=bool)
    n_types = int(others.op.max()) + 1
    free = np.zeros(len(others), dtype=bool)
    crosses, inside = np.zeros((2, len(others)), dtype=bool)
    for block in blocks:
        here, rows = _rows_of(others, block)
        if len(rows):
            free[here], crosses[here], inside[here] = _place(rows, block)
    n_crossing, n_free = (np.bincount(others.op[which], minlength=n_types) for which in (crosses, free))
    beside = n_crossing > BESIDE_SHARE * (n_crossing + n_free)
    return free & ~beside[others.op], inside & ~beside[others.op]


def find_inner_waits(rows: Evidence, block: Block, meet: Collection[int] = ()) -> tuple[Seconds, Ints] | None:
    """Say how long each operation waits for other dp ranks in rows inside of it: an all-to-all of experts within computes.

    Whoever comes early waits in them for the last of a group, who waits least; rows of the types `meet` are known to be waits.
    Seconds, shape (n_nodes, n_steps, n_dp), and the group of each dp rank; None where no such rows are, or waits are less than what
    varies anyway.
    """
    if block.n_dp == 1 or not len(rows):
        return None
    _, rows = _rows_of(rows, block)
    computes = np.flatnonzero(of_types(block.nodes.op, DIRECTIONS))
    keys, found_s, found_groups = Keys.of(block), np.zeros(block.start_s.shape), None
    for kind in np.flatnonzero(np.bincount(rows.op) >= USUAL_SHARE * block.start_s[0].size).tolist():
        union = Union.of(keys, rows.take(rows.op == kind))
        _, begins_s, ends_s = _look_inside(block, keys, union, computes[:: -(-len(computes) // MAX_LOOKED_AT)])
        groups = _find_groups(begins_s, ends_s, is_wait=kind in meet)
        if groups is None:
            continue
        fills_s, _, _ = _look_inside(block, keys, union, computes)
        for group in np.unique(groups):
            ranks = np.flatnonzero(groups == group)
            of_group = fills_s[..., ranks]
            of_group[(~np.isnan(of_group)).mean(axis=(1, 2)) < HELD_SHARE] = np.nan
            wait_s = np.nan_to_num(of_group - of_group.min(axis=-1, keepdims=True))
            found_s[np.ix_(computes, np.arange(len(block.steps)), ranks)] += wait_s
        found_groups = groups
    if found_groups is None or found_s.sum() < WORTH_SHARE * (block.end_s - block.start_s)[computes].sum():
        return None
    return found_s, found_groups


def find_gather_waits(block: Block, anew: Bools) -> tuple[Seconds, Ints] | None:
    """Say how long computes wait for other dp ranks within, where each layer's parameters are gathered anew, as `find_inner_waits`.

    Who comes early waits in gathers, and in reductions before them, for the last; if computes wait, too, they end together. `anew`
    marks the nodes of workers that gather so, shape (n_nodes,).
    """
    op, inside = block.nodes.op, find_collectives_inside(block, anew)
    found_s = np.zeros(block.start_s.shape)
    for direction in DIRECTIONS if block.n_dp > 1 else ():
        computes = np.flatnonzero((op == direction) & anew)
        for node in computes.tolist():
            until_s, fills_s = block.start_s[node], np.zeros(block.start_s[node].shape)
            for one in inside[node].tolist():
                begin_s = np.clip(block.start_s[one], until_s, block.end_s[node])
                until_s = np.clip(block.end_s[one], begin_s, block.end_s[node])
                fills_s = fills_s + until_s - begin_s
            found_s[node] = fills_s - fills_s.min(axis=1, keepdims=True)
        if np.var(block.end_s[computes], axis=2).sum() >= TOGETHER_RATIO * np.var(found_s[computes], axis=2).sum():
            found_s[computes] = 0.0
    if found_s.sum() < WORTH_SHARE * (block.end_s - block.start_s)[of_types(op, DIRECTIONS)].sum():
        return None
    return found_s, np.zeros(block.n_dp, dtype=np.int64)


def find_collectives_inside(block: Block, anew: Bools) -> dict[int, Ints]:
    """Find the gathers and reductions that each compute may wait for within, in their order; as for `find_gather_waits`."""
    op, stage, usual_s = block.nodes.op, block.nodes.stage, block.start_s.mean(axis=(1, 2))
    usual_end_s = block.end_s.mean(axis=(1, 2))
    collectives = np.flatnonzero(anew & of_types(op, (Op.ALL_GATHER, Op.REDUCE_SCATTER)))
    collectives = collectives[np.argsort(usual_s[collectives], kind="stable")]
    found: dict[int, Ints] = {}
    for node in np.flatnonzero(anew & of_types(op, DIRECTIONS)).tolist():
        inside = collectives[stage[collectives] == stage[node]]
        inside = inside[(usual_s[inside] < usual_end_s[node]) & (usual_end_s[inside] > usual_s[node])]
        # What outlasts a compute is not waited for there.
        found[node] = inside[(block.end_s[inside] <= block.end_s[node]).mean(axis=(1, 2)) >= HELD_SHARE]
    return found


def _look_inside(block: Block, keys: "Keys", union: "Union", nodes: Ints) -> tuple[Seconds, Seconds, Seconds]:
    """Say how many seconds of some operations rows fill, and when the last of these begins and ends: shape (n, n_steps, n_dp).

    Seconds in the lane; NaN where there are none.
    """
    fills_s, begins_s, ends_s = np.full((3, len(nodes), *block.start_s.shape[1:]), np.nan)
    for n, node in enumerate(nodes.tolist()):
        lanes = keys.lanes(int(block.nodes.stage[node]))
        start, end = keys.at(lanes, block.start_s[node]), keys.at(lanes, block.end_s[node])
        begin, ends = union.last(end)
        there = begin >= start - BARRIER_TOLERANCE_S
        fills_s[n] = np.where(there, union.until(end) - union.until(start), np.nan)
        begins_s[n], ends_s[n] = (np.where(there, key - lanes * keys.width_s, np.nan) for key in (begin, ends))
    return fills_s, begins_s, ends_s


def add_inner_waits(block: Block, graph: Graph, waits: tuple[Seconds, Ints] | None) -> tuple[Block, Graph]:
    """Let computes end where their work does, and what follows them wait for the whole group."""
    if waits is None:
        return block, graph
    wait_s, groups = waits
    held = set(np.flatnonzero(wait_s.any(axis=(1, 2))).tolist())
    barriers: dict[int, tuple[Barrier, ...]] = {
        node: (Barrier(tuple(before), across_dp=True, lanes=None, groups=groups),)
        for node, sources in enumerate(graph.waits)
        if (before := [source for source in sources if source in held])
    }
    return dataclasses.replace(block, end_s=block.end_s - wait_s), add_barriers(block.nodes, graph, barriers)


def measure_inside(rows: Evidence, block: Block) -> dict[int, dict[int, Seconds]]:
    """Say by how much more of each compute than usual such rows fill: seconds by type and node, (n_steps, n_dp) each.

    What is there in most steps, and hardly varies, is part of the work.
    """
    _, rows = _rows_of(rows, block)
    if not len(rows):
        return {}
    computes = np.flatnonzero(of_types(block.nodes.op, COMPUTE)).tolist()
    keys, found = Keys.of(block), dict[int, dict[int, Seconds]]()
    usual_s = float(median((block.end_s - block.start_s)[computes])) if computes else 0.0
    rows = rows.take(rows.end_s - rows.start_s >= LONG_SHARE * usual_s)
    for kind in np.unique(rows.op).tolist():
        union = Union.of(keys, rows.take(rows.op == kind))
        for node in computes:
            lanes = keys.lanes(int(block.nodes.stage[node]))
            fills_s = union.until(keys.at(lanes, block.end_s[node])) - union.until(keys.at(lanes, block.start_s[node]))
            usual_s = float(median(fills_s))
            stands_out = fills_s > UNEVEN_RATIO * usual_s + BARRIER_TOLERANCE_S
            if stands_out.any():
                found.setdefault(kind, {})[node] = np.where(stands_out, fills_s - usual_s, 0.0)
    return found


def measure_types(observed: Sequence[tuple[Block, Evidence]], n_types: int, n_stages: int) -> list[Seconds]:
    """Say how long rows of each type keep each worker busy, between steps too; some overlap, as those of several members.

    Takes blocks with rows that `find_occupying` marks. Seconds a step by type, shape (n_dp, n_stages) each.
    """
    n_steps = sum(len(block.steps) for block, _ in observed)
    found = [np.zeros((observed[0][0].n_dp, n_stages)) for _ in range(n_types)]
    for block, others in observed:
        _, rows = _rows_of(others, block)
        if not len(rows):
            continue
        keys = Keys.over(block, float(rows.start_s.min()), float(rows.end_s.max()))
        for kind in np.unique(rows.op).tolist():
            union = Union.of(keys, rows.take(rows.op == kind))
            for stage in range(n_stages):
                lanes = keys.lanes(stage)
                begin, end = (keys.at(lanes, np.full(lanes.shape, s)) for s in (-np.inf, np.inf))
                found[kind][:, stage] += (union.until(end) - union.until(begin)).sum(axis=0) / n_steps
    return found


def find_busy(occupying: Evidence, block: Block) -> Busy | None:
    """Lay the rows that `find_occupying` marks along a block; None where it has none."""
    _, rows = _rows_of(occupying, block)
    if not len(rows):
        return None
    keys = Keys.of(block)
    union = Union.of(keys, rows)
    before_s = np.zeros(block.start_s.shape)
    for stage in np.unique(rows.stage).tolist():
        mine = np.flatnonzero(block.nodes.stage == stage)
        lanes = keys.lanes(stage)
        start, end = keys.at(lanes, block.start_s[mine]), keys.at(lanes, block.end_s[mine])
        lasts = end > start
        sends = of_types(block.nodes.op[mine], (Op.FORWARD_SEND, Op.BACKWARD_SEND))[:, None, None]
        base = keys.at(lanes, np.full(lanes.shape, keys.first_s))
        last = _last_before(np.sort(end[lasts]), start, base)
        # A send goes on beside what the worker does next.
        last_own = _last_before(np.sort(end[lasts & ~sends]), start, base)
        row_ends = union.last(start)[1]
        # An operation that started while a row went on does not wait for it.
        follows = (row_ends >= last) & (row_ends <= start + BARRIER_TOLERANCE_S)
        before_s[mine] = np.where(follows, union.until(start) - union.until(last_own), 0.0)
    return Busy(rows, before_s, keys, union)


def without_busy(block: Block, busy: Busy | None) -> Block:
    """Let every operation start as soon as it would without the busy time directly before it: what it waits for shows then."""
    return block if busy is None else dataclasses.replace(block, start_s=block.start_s - busy.before_s)


def add_meetings(
    block: Block, graph: Graph, busy: Busy | None, meet: Collection[int] = ()
) -> tuple[Graph, frozenset[int]]:
    """Let what follows rows that end together on several dp ranks wait for what comes before them on all of these.

    Such rows are collectives (an all-to-all of experts): whoever comes early waits in them for the last. `meet` is as for
    `find_inner_waits`. Gives also the types of these rows.
    """
    if busy is None or block.n_dp == 1:
        return graph, frozenset()
    met = set()
    found: dict[int, tuple[Barrier, ...]] = {}
    follows = np.flatnonzero(busy.before_s.any(axis=(1, 2)))
    nodes = [node for node in follows.tolist() if graph.waits[node]]
    least = USUAL_SHARE * block.start_s[0].size
    for kind in np.flatnonzero(np.bincount(busy.rows.op) >= least).tolist():
        for node, barrier in _find_meetings(block, graph, busy, kind, nodes, is_wait=kind in meet).items():
            found[node] = (*found.get(node, ()), barrier)
            met.add(kind)
    try:
        return (add_barriers(block.nodes, graph, found) if found else graph), frozenset(met)
    except TraceError:
        return graph, frozenset()


def _find_meetings(
    block: Block, graph: Graph, busy: Busy, kind: int, among: Sequence[int], *, is_wait: bool
) -> dict[int, Barrier]:
    """Find the operations, of some, that wait for all dp ranks of a group in rows of one type."""
    keys = busy.keys
    union = Union.of(keys, busy.rows.take(busy.rows.op == kind))
    nodes, begins_s, ends_s = [], [], []
    for node in among:
        lanes = keys.lanes(int(block.nodes.stage[node]))
        ready_s = block.end_s[list(graph.waits[node])].max(axis=0)
        begin, end = union.last(keys.at(lanes, block.start_s[node] - BARRIER_TOLERANCE_S))
        begin_s, end_s = (found - lanes * keys.width_s + keys.first_s for found in (begin, end))
        there = (begin_s >= keys.first_s - BARRIER_TOLERANCE_S) & (end_s > ready_s)
        there &= end_s <= block.start_s[node] + BARRIER_TOLERANCE_S
        if there.mean() >= USUAL_SHARE:
            nodes.append(node)
            begins_s.append(np.where(there, begin_s, np.nan))
            ends_s.append(np.where(there, end_s, np.nan))
    if not nodes:
        return {}
    groups = _find_groups(np.stack(begins_s), np.stack(ends_s), is_wait=is_wait)
    if groups is None:
        return {}
    found = {}
    for node, begin_s in zip(nodes, begins_s, strict=True):
        there = ~np.isnan(begin_s)
        before = tuple(
            source
            for source in graph.waits[node]
            if (block.end_s[source] <= begin_s + BARRIER_TOLERANCE_S)[there].mean() >= HELD_SHARE
        )
        barrier = Barrier(before, across_dp=True, lanes=None, groups=groups)
        # Who lacks a row of a wait in which others are has lost it. Else it is in each step, or the others would wait for nobody.
        held = barrier.over_group(there, np.logical_or) if is_wait else there.mean(axis=0) >= HELD_SHARE
        if before and held.any():
            found[node] = barrier if held.all() else dataclasses.replace(barrier, lanes=held)
    return found


def _find_groups(begins_s: Seconds, ends_s: Seconds, *, is_wait: bool) -> Ints | None:
    """Find the dp ranks whose rows, shape (n_nodes, n_steps, n_dp), end together though they begin apart: a group number each.

    The largest groups, of neighbours or of every n-th rank; None where none do.
    """
    n_dp = ends_s.shape[-1]
    ranks = np.arange(n_dp)
    for size in range(n_dp, 1, -1):
        if n_dp % size:
            continue
        for groups in (ranks // size, ranks % (n_dp // size)):
            order = np.argsort(groups, kind="stable")
            begin_s, end_s = (values[..., order].reshape(-1, size) for values in (begins_s, ends_s))
            known = ~np.isnan(begin_s + end_s).any(axis=1)
            if _end_together(begin_s[known], end_s[known], is_wait=is_wait):
                return groups
    return None


def _end_together(begin_s: Seconds, end_s: Seconds, *, is_wait: bool) -> bool:
    """Say whether rows, shape (n, size) of a group each, end together though they begin apart.

    Nearly all are no further apart at their ends than at their begins. Rows that are known to be waits may be, as messages to each
    member arrive one by one: it is enough that hardly any of them ends before the last of its group has begun.
    """
    apart_s, together_s = np.ptp(begin_s, axis=1), np.ptp(end_s, axis=1)
    told = apart_s > BARRIER_TOLERANCE_S
    if not told.any():
        return False
    most_s = TOGETHER_RATIO * apart_s[told].sum()
    together = bool(together_s[told].sum() <= most_s)
    if not is_wait:
        held = together_s <= np.maximum(apart_s, BARRIER_TOLERANCE_S)
        return together and bool(held.mean() >= HELD_SHARE)
    early_s = np.maximum(begin_s.max(axis=1) - end_s.min(axis=1), 0.0)
    return together or bool((early_s <= BARRIER_TOLERANCE_S).mean() >= HELD_SHARE and early_s.sum() <= most_s)


def _rows_of(others: Evidence, block: Block) -> tuple[Ints, Evidence]:
    """Take the rows of a block, steps by index; give also where they stand among all."""
    order = np.argsort(block.steps, kind="stable")
    at = order[np.minimum(np.searchsorted(block.steps[order], others.step), len(order) - 1)]
    here = np.flatnonzero(block.steps[at] == others.step)
    return here, dataclasses.replace(others.take(here), step=at[here])


def _place(rows: Evidence, block: Block) -> tuple[Bools, Bools, Bools]:
    """Say which rows of a block lie between computes, which overlap some without being inside of one, and which are inside."""
    # Rows may reach beyond the step on both sides.
    first_s = min(float(np.nanmin(block.start_s)), float(rows.start_s.min()))
    keys = Keys.over(block, first_s, max(float(np.nanmax(block.end_s)), float(rows.end_s.max())))
    computes = np.flatnonzero(of_types(block.nodes.op, COMPUTE))
    lane = np.stack([keys.lanes(int(stage)) for stage in block.nodes.stage[computes].tolist()])
    long = block.end_s[computes] > block.start_s[computes]
    start, end = (keys.at(lane, times[computes])[long] for times in (block.start_s, block.end_s))
    order = np.argsort(start, kind="stable")
    start, end = np.r_[-np.inf, start[order], np.inf], np.r_[-np.inf, np.maximum.accumulate(end[order]), np.inf]
    lanes = keys.lane(rows.stage, rows.step, rows.dp)
    begins, ends = keys.at(lanes, rows.start_s), keys.at(lanes, rows.end_s)
    before = np.searchsorted(start, begins, side="right") - 1
    # The last compute that began before a row, or the first after it: of another worker they lie far apart.
    slack = np.maximum(OVERLAP_SHARE * (ends - begins), BARRIER_TOLERANCE_S)
    inside = (end[before] >= ends - slack) & (end[before] > begins + slack)
    inside |= (start[before + 1] <= begins + slack) & (end[before + 1] >= ends - slack) & (start[before + 1] < ends)
    overlaps = (end[before] > begins + slack) | (start[before + 1] < ends - slack)
    return ~inside & ~overlaps, ~inside & overlaps, inside


def _last_before(ends: Seconds, at: Seconds, base: Seconds) -> Seconds:
    """Give the last of some sorted ends up to some times, all as keys; where a lane has none, its begin."""
    found = np.r_[-np.inf, ends][np.searchsorted(ends, at, side="right")]
    return np.asarray(np.maximum(found, base))


@dataclasses.dataclass(frozen=True, slots=True)
class Keys:
    """Times of all workers on one axis, one lane (worker and step) after the other, so that one sorted array holds all."""

    first_s: float
    width_s: float
    n_steps: int
    n_dp: int

    @classmethod
    def of(cls, block: Block) -> "Keys":
        """Make room for the times of a block, from where its steps begin: rows may come before all operations."""
        return cls.over(block, min(float(np.nanmin(block.start_s)), 0.0), float(np.nanmax(block.end_s)))

    @classmethod
    def over(cls, block: Block, first_s: float, last_s: float) -> "Keys":
        """Make room for some times of the workers of a block."""
        return cls(first_s, 2.0 * (last_s - first_s) + 1.0, *block.start_s.shape[1:])

    def lane(self, stage: Ints, step: Ints, dp: Ints) -> Ints:
        """Number lanes."""
        return np.asarray((stage * self.n_steps + step) * self.n_dp + dp)

    def lanes(self, stage: int) -> Ints:
        """Number the lanes of a stage, shape (n_steps, n_dp)."""
        first = stage * self.n_steps * self.n_dp
        return np.arange(first, first + self.n_steps * self.n_dp).reshape(self.n_steps, self.n_dp)

    def at(self, lane: Ints, seconds: Seconds) -> Seconds:
        """Place times in their lanes; what lies before or after the block is cut to it."""
        return np.asarray(lane * self.width_s + np.clip(seconds - self.first_s, 0.0, self.width_s / 2.0))


@dataclasses.dataclass(frozen=True, slots=True)
class Union:
    """The time that some rows cover, as intervals that do not touch; arrays of shape (n_intervals + 1,), the first one empty.

    `begin`, `end` are keys; `covered_s` is what all intervals before cover together.
    """

    begin: Seconds
    end: Seconds
    covered_s: Seconds

    @classmethod
    def of(cls, keys: Keys, rows: Evidence) -> "Union":
        """Join the rows of each lane that overlap or touch."""
        lane = keys.lane(rows.stage, rows.step, rows.dp)
        begin, end = keys.at(lane, rows.start_s), keys.at(lane, rows.end_s)
        order = np.argsort(begin, kind="stable")
        begin, end = begin[order], np.maximum.accumulate(end[order])
        first = np.flatnonzero(np.r_[True, begin[1:] > end[:-1]]) if len(begin) else np.zeros(0, dtype=np.int64)
        begin, end = begin[first], end[np.r_[first[1:], len(end)] - 1] if len(first) else end
        return cls(np.r_[-np.inf, begin], np.r_[-np.inf, end], np.r_[0.0, 0.0, np.cumsum(end - begin)][:-1])

    def until(self, at: Seconds) -> Seconds:
        """Say how many seconds lie before some keys, in all lanes up to theirs."""
        which = np.searchsorted(self.begin, at, side="right") - 1
        into = np.where(which > 0, np.minimum(at, self.end[which]) - np.where(which > 0, self.begin[which], 0.0), 0.0)
        return np.asarray(self.covered_s[which] + into)

    def last(self, at: Seconds) -> tuple[Seconds, Seconds]:
        """Give begin and end of the last interval that begins before some keys, wherever that lies."""
        which = np.searchsorted(self.begin, at, side="left") - 1
        which = np.maximum(which, 0)
        return self.begin[which], self.end[which]
