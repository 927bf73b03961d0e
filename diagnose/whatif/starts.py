"""Attribute launch delays: what rows say of them first, then what workers that begin a step late have in common.

Enters: observed blocks, evidence rows and launch delays beyond the ordinary. Leaves: the delays, raised to what rows explain, and
a `StallKind` for each. All that waits for one origin gets the origin's kind, so that it leaves together: behind a barrier at the
start of a step, which no row records, all workers begin when the last is ready. Costs O(rows x operations of a worker).
"""

import dataclasses
from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from diagnose.model.optype import Op, of_types
from diagnose.model.stalls import MIN_STALLS, TOGETHER_SHARE, Kinds, StallKind, Stalls
from diagnose.model.trace import Bools, Evidence, Ints, Seconds
from diagnose.numerics.period import MIN_HITS, find_period, is_interval
from diagnose.numerics.robust import median
from diagnose.whatif.barriers import BARRIER_TOLERANCE_S, EARLY_SHARE, EXPLAINED_SHARE
from diagnose.whatif.computes import COMPUTES, find_last, iterate_blocks, list_computes, place_of
from diagnose.whatif.evidence import CHUNK_ROWS, COVERED_SHARE, SAYS
from diagnose.whatif.frozen import find_held
from diagnose.whatif.levels import stack
from diagnose.whatif.observed import Observed

#: A step counts as begun late from this part of the latest step on (as for what is lost between steps) ...
HIT_SHARE = 0.3
#: ... the largest first, then what is left, so many times (as for stalls): waits of one loader differ by more than that ...
MAX_SIZES = 4
#: ... and a worker from this part of its step's latest worker on.
AS_LATE_SHARE = 0.5
#: Where nearly all of it is on the stages that read data, they wait for input.
READERS_SHARE = 0.9
#: Saves and planned work come at a period, exact to the first part, and not in more than the second part of the steps.
REGULAR, MAX_PERIODIC_SHARE = 0.8, 0.6
#: A row of a save counts from this part of a delay on: what it writes is gathered and copied before, which mostly no row tells
#: (9 to 28% of the gaps of a real job).
SAVED_SHARE = 0.02
#: Launches are late by collections where that is as long as those are, but for a factor, that have this part of all seconds; an
#: operation is so in the last part of the steps at most.
COLLECTION_ALIKE, NEARLY_ALL, SELDOM_LATE = 1.5, 0.9, 0.2
#: What is equally long in all steps, to this part, is how a step begins: without rows nobody can say what it is.
STEADY_SPREAD = 0.1


@dataclasses.dataclass(slots=True)
class Delays:
    """Launch delays of the operations of one block by node; all arrays have shape (n_steps, n_dp)."""

    #: Seconds beyond the ordinary, or that rows explain.
    late_s: dict[int, Seconds]
    #: What they are attributed to, where anything is.
    kinds: dict[int, Kinds]
    #: True where a row says so.
    recorded: dict[int, Bools]
    #: True where that row is of another worker.
    for_others: dict[int, Bools]

    def assign(
        self, node: int, at: Bools, kinds: Kinds, said_s: Seconds, *, by_row: bool, of_other: bool = False
    ) -> None:
        """Attribute a launch delay in some lanes where nothing is known of it yet; it is at least `said_s` long."""
        late_s = self.late_s.get(node, np.zeros(at.shape))
        known = self.kinds.setdefault(node, np.zeros(at.shape, dtype=np.int8))
        at = at & (known == StallKind.NOBODY)
        self.late_s[node] = np.where(at, np.maximum(late_s, said_s), late_s)
        self.kinds[node] = np.where(at, kinds, known).astype(np.int8)
        if by_row:
            self.recorded[node] = self.recorded.get(node, np.zeros(at.shape, dtype=bool)) | at
        if of_other:
            self.for_others[node] = at


def attribute_delays(
    observed: Sequence[Observed],
    evidence: Evidence,
    late_s: Sequence[Mapping[int, Seconds]],
    n_stages: int,
    *,
    reads_input: bool | None = None,
) -> tuple[Delays, ...]:
    """Attribute launch delays to what the worker did meanwhile, or to what all that begin a step late wait for.

    Parameters
    ----------
    late_s : sequence of dict of int to ndarray of float64, shape (n_steps, n_dp), one a block
        Launch delays beyond the ordinary, seconds by node.
    reads_input : bool, optional
        Whether any worker reads data; None where nobody says.
    """
    found = []
    for o, late in zip(observed, late_s, strict=True):
        delays = Delays(dict(late), {}, {}, {})
        members = list_members(o, n_stages)
        opening = [list_opening(o, of_stage) for of_stage in members]
        latest = _LatestRows.none(len(o.block.steps))
        for stage in range(n_stages):
            _ask_rows(o, evidence, delays, latest, stage, members[stage], opening[stage])
            _ask_others(o, latest, stage, opening[stage])
        _follow_rows(o, delays, opening, latest)
        found.append(delays)
    if reads_input is not False:
        _ask_places(observed, found, n_stages, _list_readers(evidence, find_last(observed, n_stages) % n_stages))
    return tuple(found)


def gather_delays(
    observed: Sequence[Observed], delays: Sequence[Delays], shape: tuple[int, ...], n_stages: int
) -> tuple[Kinds, Bools]:
    """Collect what is known of the launch delays of computes, and where rows say it; both with the axes of `Breakdown`."""
    kinds, recorded = np.zeros(shape, dtype=np.int8), np.zeros(shape, dtype=bool)
    for (at, o), of_block in zip(iterate_blocks(observed), delays, strict=True):
        nodes = o.block.nodes
        for node in list_computes(nodes):
            place = (*place_of(nodes, node, n_stages), at)
            if node in of_block.kinds:
                kinds[place] = of_block.kinds[node]
            if node in of_block.recorded:
                recorded[place] = of_block.recorded[node]
    return kinds, recorded


def gather_starts(
    observed: Sequence[Observed], delays: Sequence[Delays], n_stages: int, kind: StallKind = StallKind.INPUT
) -> tuple[Seconds, Bools] | tuple[None, None]:
    """Collect the seconds by which workers begin a step late for what is of a kind, computes left out, and where rows say it.

    Both have the shape (n_stages, n_steps, n_dp); None where nobody does.
    """
    late_s, recorded = [], []
    for o, of_block in zip(observed, delays, strict=True):
        seconds = np.zeros((n_stages, *o.block.start_s.shape[1:]))
        told = np.zeros(seconds.shape, dtype=bool)
        for node, kinds in of_block.kinds.items():
            if o.block.nodes.op[node] not in COMPUTES:
                stage = int(o.block.nodes.stage[node])
                at = kinds == kind
                seconds[stage] = np.maximum(seconds[stage], np.where(at, of_block.late_s[node], 0.0))
                told[stage] |= at & of_block.recorded.get(node, False)
        late_s.append(seconds)
        recorded.append(told)
    if not any(seconds.any() for seconds in late_s):
        return None, None
    return np.concatenate(late_s, axis=1), np.concatenate(recorded, axis=1)


@dataclasses.dataclass(frozen=True, slots=True)
class Opening:
    """What a worker begins a step with: what waits for nothing, and the first of its pipeline where that waits for such."""

    free: tuple[int, ...]
    first: tuple[int, ...]

    @property
    def nodes(self) -> tuple[int, ...]:
        """List both."""
        return (*self.free, *self.first)


@dataclasses.dataclass(frozen=True, slots=True)
class _LatestRows:
    """In each step the row, of any worker, that kept the beginning of the step waiting longest; arrays of shape (n_steps,)."""

    begins_s: Seconds
    ends_s: Seconds
    kind: Kinds

    @classmethod
    def none(cls, n_steps: int) -> "_LatestRows":
        return cls(np.full(n_steps, np.inf), np.full(n_steps, -np.inf), np.zeros(n_steps, dtype=np.int8))

    def add(self, step: Ints, begins_s: Seconds, ends_s: Seconds, kind: StallKind) -> None:
        """Look at some rows of one kind."""
        order = np.argsort(ends_s, kind="stable")
        step, begins_s, ends_s = step[order], begins_s[order], ends_s[order]
        later = ends_s > self.ends_s[step]
        at = step[later]
        self.begins_s[at], self.ends_s[at], self.kind[at] = begins_s[later], ends_s[later], kind


def list_members(o: Observed, n_stages: int) -> list[Ints]:
    """List the nodes of each stage that are replayed, in the order in which they move."""
    members = o.graph.moves.members.flat
    stage = o.block.nodes.stage[members]
    return [members[stage == s] for s in range(n_stages)]


def list_opening(o: Observed, members: Ints) -> Opening:
    """List what the workers of a stage begin a step with; `members` are its nodes."""
    free = tuple(members[o.graph.sources.lengths[members] == 0].tolist())
    pipelined = members[of_types(o.block.nodes.op[members], (Op.FORWARD, Op.FORWARD_RECV))]
    first = None
    if len(pipelined):
        start_s = median(o.block.start_s[pipelined].reshape(len(pipelined), -1), axis=1)
        first = int(pipelined[start_s.argmin()])
    return Opening(free, () if first is None or first in free else (first,))


def _ask_rows(
    o: Observed,
    evidence: Evidence,
    delays: Delays,
    latest: _LatestRows,
    stage: int,
    nodes: Ints,
    opening: Opening,
) -> None:
    """Attribute the launch delays of a stage, which has these nodes, to the rows of their worker that lie in them."""
    told = list(_rows_of(o, evidence, stage)) if len(nodes) else []
    if not told:
        return
    is_opening = np.isin(nodes, opening.nodes)
    shape = o.block.start_s.shape[1:]
    start_s = o.block.start_s[nodes]
    delay_s = o.delay[nodes] if isinstance(o.delay, np.ndarray) else [o.delay[n] for n in nodes.tolist()]
    wait_s = np.maximum(stack(delay_s, shape), 0.0)
    if o.block.filled is not None:
        wait_s = np.where(o.block.filled[nodes], 0.0, wait_s)
    # What rows of other types fill is known.
    idle_s = wait_s if o.busy is None else np.maximum(wait_s - np.stack([o.busy[n] for n in nodes.tolist()]), 0.0)
    covered_s: dict[StallKind, Seconds] = {}
    for kind, rows, step in told:
        dp, row_begins_s, row_ends_s = evidence.dp[rows], evidence.start_s[rows], evidence.end_s[rows]
        starts, waits = start_s[:, step, dp], wait_s[:, step, dp]
        overlap = np.minimum(starts, row_ends_s) - np.maximum(starts - waits, row_begins_s)
        which, row = np.nonzero(overlap > 0)
        into = covered_s.setdefault(kind, np.zeros(wait_s.shape))
        np.add.at(into, (which, step[row], dp[row]), overlap[which, row])
        opens = np.unique(row[is_opening[which]])
        latest.add(step[opens], row_begins_s[opens], row_ends_s[opens], kind)
    for kind in sorted(covered_s, key=lambda kind: -float(covered_s[kind].sum())):
        for i in np.flatnonzero(covered_s[kind].any(axis=(1, 2))).tolist():
            node, said_s = int(nodes[i]), np.minimum(covered_s[kind][i], idle_s[i])
            least = SAVED_SHARE if kind == StallKind.SAVING else COVERED_SHARE
            at = (said_s > 0) & (said_s >= least * delays.late_s.get(node, 0.0))
            if at.any():
                delays.assign(node, at, np.full(shape, kind, dtype=np.int8), said_s, by_row=True)


def _ask_others(o: Observed, latest: _LatestRows, stage: int, opening: Opening) -> None:
    """Look for rows of other types that keep workers of a stage from beginning a step; others may wait for these."""
    rows = o.others.take(o.others.stage == stage)
    if not len(rows):
        return
    step = np.searchsorted(o.block.steps, rows.step)
    opens = np.zeros(len(rows), dtype=bool)
    for node in opening.nodes:
        start_s = o.block.start_s[node][step, rows.dp]
        wait_s = np.broadcast_to(o.delay[node], o.block.start_s.shape[1:])[step, rows.dp]
        opens |= np.minimum(start_s, rows.end_s) > np.maximum(start_s - wait_s, rows.start_s)
    latest.add(step[opens], rows.start_s[opens], rows.end_s[opens], StallKind.OTHER)


def _rows_of(o: Observed, evidence: Evidence, stage: int) -> Iterator[tuple[StallKind, Ints, Ints]]:
    """Give the evidence rows of a stage by kind, some at a time, each with the position of its step in the block."""
    at = np.minimum(np.searchsorted(o.block.steps, evidence.step), len(o.block.steps) - 1)
    here = (o.block.steps[at] == evidence.step) & (evidence.stage == stage) & (evidence.end_s > evidence.start_s)
    for op, kind in SAYS.items():
        rows = np.flatnonzero(here & (evidence.op == op))
        for first in range(0, len(rows), CHUNK_ROWS):
            part = rows[first : first + CHUNK_ROWS]
            yield kind, part, at[part]


def _follow_rows(o: Observed, delays: Delays, opening: Sequence[Opening], latest: _LatestRows) -> None:
    """Let workers that begin a step when another's row ends, never earlier, wait for what that row says: a hidden barrier."""
    ends_s, begins_s = latest.ends_s[:, None], latest.begins_s[:, None]
    if not np.isfinite(ends_s).any():
        return
    kinds = np.broadcast_to(latest.kind[:, None], o.block.start_s.shape[1:])
    for of_stage in opening:
        for node in of_stage.nodes:
            start_s, wait_s = o.block.start_s[node], np.maximum(np.broadcast_to(o.idle(node), kinds.shape), 0.0)
            beyond_s = start_s - ends_s
            said_s = np.minimum(start_s, ends_s) - np.maximum(start_s - wait_s, begins_s)
            early_s = np.maximum(EARLY_SHARE * wait_s, BARRIER_TOLERANCE_S)
            held = (beyond_s >= -early_s) & (beyond_s < (1.0 - EXPLAINED_SHARE) * wait_s)
            held &= said_s > np.maximum(COVERED_SHARE * delays.late_s.get(node, 0.0), BARRIER_TOLERANCE_S)
            if held.any():
                delays.assign(node, held, kinds, said_s, by_row=True, of_other=True)


def _list_readers(evidence: Evidence, last: int) -> list[int]:
    """List the stages that read data: those with rows that say so, else the first and that of the model's end, for labels."""
    told = np.unique(evidence.stage[evidence.op == Op.DATA_LOAD]).tolist()
    return told or sorted({0, last})


def _ask_places(observed: Sequence[Observed], delays: Sequence[Delays], n_stages: int, readers: Sequence[int]) -> None:
    """Attribute late starts that no row explains to input, where place and time say so; the largest first, then what is left.

    On the stages that read data alone, it is input. Where all workers, or all of one pipeline, begin late together somebody
    holds them up, and no row says who: at a period it may be a save, or planned work, and is left alone.
    """
    steps = np.concatenate([o.block.steps for o in observed])
    order = np.argsort(steps, kind="stable")
    openings = [[list_opening(o, of_stage) for of_stage in list_members(o, n_stages)] for o in observed]
    for _ in range(MAX_SIZES):
        late_s = np.concatenate(
            [_late_starts(o, d, of_block) for o, d, of_block in zip(observed, delays, openings, strict=True)], axis=1
        )
        latest_s = late_s.max(axis=(0, 2))  # (n_steps,)
        hits = latest_s > HIT_SHARE * latest_s.max(initial=0.0)
        if not hits.any():
            return
        late = (late_s > AS_LATE_SHARE * latest_s[:, None]) & hits[:, None]
        if not _is_input(steps[order], late_s[:, order], late[:, order], readers):
            return
        first = 0
        for o, d, of_block in zip(observed, delays, openings, strict=True):
            span = slice(first, first + len(o.block.steps))
            first = span.stop
            for stage, opening in enumerate(of_block):
                for node in opening.nodes:
                    at = (late_s[stage, span] > 0) & hits[span, None] & (d.late_s.get(node, 0.0) > 0)
                    if at.any():
                        d.assign(
                            node,
                            at,
                            np.full(at.shape, StallKind.INPUT, dtype=np.int8),
                            np.zeros(at.shape),
                            by_row=False,
                        )


def _late_starts(o: Observed, delays: Delays, opening: Sequence[Opening]) -> Seconds:
    """Say how late each worker begins a step, beyond the ordinary and beyond what is known: seconds, (n_stages, n_steps, n_dp).

    Where forwards alone are late in a step they have a reason of their own, which their place among other forwards tells.
    """
    zero = np.zeros(o.block.start_s.shape[1:])

    def unknown(nodes: Sequence[int]) -> list[Seconds]:
        known = {node: delays.kinds[node] != StallKind.NOBODY for node in nodes if node in delays.kinds}
        return [np.where(known.get(node, False), 0.0, delays.late_s.get(node, zero)) for node in nodes]

    found, others = [], zero
    for of_stage in opening:
        # Of what could start at once most is late where the worker is; one alone has a reason of its own.
        free = np.sort(unknown(of_stage.free) or [zero], axis=0)
        found.append(free[(len(free) - 1) // 2] + sum(unknown(of_stage.first), start=zero))
        others = others + sum(unknown([n for n in of_stage.nodes if o.block.nodes.op[n] not in COMPUTES]), start=zero)
    late = np.any(np.asarray(others), axis=1)
    return np.where(late[None, :, None], np.stack(found), 0.0)


def _is_input(steps: Ints, late_s: Seconds, late: Bools, readers: Sequence[int]) -> bool:
    """Say whether workers that begin steps late, shape (n_stages, n_steps, n_dp), wait for input."""
    n_stages = late.shape[0]
    hits: Bools = np.asarray(late.any(axis=(0, 2)))
    lost_s = np.where(late, late_s, 0.0)
    on_readers = lost_s[list(readers)].sum() >= READERS_SHARE * lost_s.sum()
    if late.any(axis=1).sum() == 1 < late[:, 0].size and is_interval(steps, hits):
        return False  # one worker alone, every so many steps: it saves, or writes a log
    if on_readers and n_stages > len(readers):
        return int(hits.sum()) >= MIN_HITS
    if hits.sum() < MIN_STALLS:
        return False
    regularity = find_period(steps, hits)[1]
    if regularity >= REGULAR and hits.mean() <= MAX_PERIODIC_SHARE:
        return False
    longest_s = lost_s.max(axis=(0, 2))[hits]
    if hits.all() and longest_s.std() < STEADY_SPREAD * longest_s.mean():
        return False
    if on_readers:
        return True
    together = late.mean(axis=(0, 2))[hits] >= TOGETHER_SHARE
    pipelines = late.mean(axis=0)[late.any(axis=0)] >= TOGETHER_SHARE  # of the dp ranks that are late
    if not late[:, :, 1:].any() and late.shape[2] > 1:
        return False  # the first data-parallel rank is also the one that saves
    return bool(together.mean() > AS_LATE_SHARE or pipelines.mean() > AS_LATE_SHARE)


def attribute_held(observed: Sequence[Observed], delays: Sequence[Delays], stalls: Stalls, n_stages: int) -> None:
    """Attribute launches of other operations that are late for as long as a compute of their worker collects, to that."""
    for (steps, o), of_block in zip(iterate_blocks(observed), delays, strict=True):
        for node, held in find_held(o, steps, stalls, of_block.late_s, n_stages).items():
            if held.any():
                kinds = np.full(held.shape, StallKind.COLLECTION, dtype=np.int8)
                of_block.assign(node, held, kinds, of_block.late_s[node], by_row=False)


def attribute_launches(observed: Sequence[Observed], delays: Sequence[Delays], stalls: Stalls, n_stages: int) -> None:
    """Attribute launches of other operations that are as late as collections in forwards are long to these, unless rows tell.

    A collector stops its process wherever that is: between a compute and its send, too. Only on workers that collect, each
    operation in a few steps, and fewer in all than in forwards.
    """
    inside = stalls.inside == StallKind.COLLECTION
    told = (stalls.recorded_inside & inside) | (stalls.recorded_before & (stalls.before == StallKind.COLLECTION))
    if inside.sum() < MIN_STALLS or told.any():
        return
    lengths = np.sort(stalls.inside_s[inside])[::-1]
    shortest = lengths[np.searchsorted(np.cumsum(lengths), NEARLY_ALL * lengths.sum())]
    low, high = shortest / COLLECTION_ALIKE, lengths[0] * COLLECTION_ALIKE
    collects = inside.any(axis=(0, 2, 3)).reshape(-1, n_stages, inside.shape[-1]).any(axis=0)  # (n_stages, n_dp)
    n_steps, found = inside.shape[3], list[tuple[Delays, int, Bools]]()
    for o, of_block in zip(observed, delays, strict=True):
        for node, late_s in of_block.late_s.items():
            if o.block.nodes.op[node] in COMPUTES:
                continue
            at = (late_s >= low) & (late_s <= high) & collects[o.block.nodes.stage[node]]
            if node in of_block.kinds:
                at &= of_block.kinds[node] == StallKind.NOBODY
            if at.any() and at.sum(axis=0).max() <= max(SELDOM_LATE * n_steps, 1.0):
                found.append((of_block, node, at))
    if sum(int(at.sum()) for _, _, at in found) > inside.sum():
        return
    for of_block, node, at in found:
        kinds = np.full(at.shape, StallKind.COLLECTION, dtype=np.int8)
        of_block.assign(node, at, kinds, of_block.late_s[node], by_row=False)
