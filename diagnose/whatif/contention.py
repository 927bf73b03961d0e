"""Find computes that are held up by communication in flight: their kernels queue behind it.

Enters: observed blocks. Leaves: seconds of each compute in which it did no work because a transfer or collective of its
own worker had not ended. Where that is in every backward it is the median, so it must be known before any median is
taken. Costs nothing where no communication overlaps a compute (blocking transfers), else a few passes over the computes.
"""

import dataclasses
import warnings
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from diagnose.model.optype import DP_COLLECTIVES, P2P, Op
from diagnose.model.trace import Bools, Ints, Seconds
from diagnose.numerics.robust import robust_deviation
from diagnose.whatif.observed import Observed

#: Communication of each type that a compute may queue behind: the last ones launched before it.
MAX_IN_FLIGHT = 3
#: Chunks whose parameters are gathered one after the other, at most.
MAX_CHUNKS = 16
#: Communication launched together with a compute may be recorded a little after it: part of the compute.
LAUNCH_TOLERANCE = 0.02
#: A compute that starts when communication ends does so within this part of itself, or these seconds.
LATE_TOLERANCE = 0.01
LATE_TOLERANCE_S = 3e-5
#: Before the first forward of a step parameters explain a late start that they take up the larger part of.
GATHER_SHARE = 0.3
#: Operations before it that a late compute may have waited for.
MAX_LATE = 6
#: Of the late computes of a direction this part must have waited for communication in flight.
MIN_LATE_SHARE = 0.5
#: Lanes on which it is decided whether there is contention at all.
MAX_LANES = 512
#: Overlaps below this part of the compute say nothing, and from the second on they tell whether it was held.
MIN_OVERLAP_SHARE = 0.03
TELLING_SHARE = 0.2
#: At least so many overlaps must tell.
MIN_OVERLAPS = 12
#: A compute is held when its time beyond the overlap is usual within so many deviations, or this part.
HELD_DEVIATIONS = 4.0
HELD_RATIO = 0.10
MAX_SIGMA_RATIO = 0.08
#: Of the overlaps long enough to tell, this part must have held the compute: chance leaves few.
MIN_HELD_SHARE = 0.1
#: Overlapping computes that are neither usual nor held: at most this part.
MAX_ODD_SHARE = 0.4
#: Without the waits the computes must vary so much less, where all of them overlap.
MAX_SPREAD_RATIO = 0.5

#: One wait: block, node, seconds of shape (n_steps, n_dp), and what held it up.
_Wait = tuple[int, int, Seconds, "WaitedFor"]
_TYPES = (*P2P, *DP_COLLECTIVES)


@dataclasses.dataclass(frozen=True, slots=True)
class _InFlight:
    """One compute node of a block, and the nodes of one type that may be in flight when it starts."""

    node: int
    direction: int
    sources: tuple[int, ...]


#: What held a compute up: the communication nodes, each with its lanes, shape (n_steps, n_dp).
WaitedFor = dict[int, Bools]


@dataclasses.dataclass(frozen=True, slots=True)
class Waits:
    """How long computes of one block waited for communication in flight, and for which, by node.

    Seconds have shape (n_steps, n_dp); nodes that never waited are left out.
    """

    seconds: dict[int, Seconds]
    by: dict[int, WaitedFor]

    def add(self, node: int, seconds: Seconds, sources: WaitedFor) -> None:
        """Note one more wait of a node."""
        self.seconds[node] = self.seconds.get(node, 0.0) + seconds
        waited_for = self.by.setdefault(node, {})
        for source, lanes in sources.items():
            waited_for[source] = waited_for[source] | lanes if source in waited_for else lanes


def measure_waits(observed: Sequence[Observed], *, n_stages: int) -> list[Waits]:
    """Say how long each compute was held up by communication in flight, block by block."""
    found = [Waits({}, {}) for _ in observed]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # medians of nothing are NaN, which is what is meant
        candidates = []
        for op in _TYPES:
            pairs = [_in_flight(o, op, n_stages) for o in observed]
            candidates += [
                (op, d, pairs) for d in (0, 1) if any(p.direction == d for of_block in pairs for p in of_block)
            ]
        # What explains most comes first; what is left must still be explained by the next.
        while candidates:
            judged = [(_find_waits(observed, pairs, d, found, n_stages), (op, d, pairs)) for op, d, pairs in candidates]
            (score, waits), best = max(judged, key=lambda item: item[0][0])
            if score <= 0.0:
                break
            for i, node, wait_s, waited_for in waits:
                found[i].add(node, wait_s, waited_for)
            candidates = [c for (h, _), c in judged if h > 0.0 and c is not best]
    return found


def measure_late_starts(observed: Sequence[Observed], *, n_stages: int) -> list[Waits]:
    """Say how long computes started late because communication in flight on their worker had not ended, block by block."""
    marked = [Waits({}, {}) for _ in observed]
    n_late, n_held = [0, 0], [0, 0]
    for o, of_block in zip(observed, marked, strict=True):
        block, nodes = o.block, o.block.nodes
        usual_s = block.start_s.mean(axis=(1, 2))
        for stage in range(n_stages):
            sources = np.flatnonzero(
                (nodes.stage == stage) & np.isin(nodes.op, (*P2P, Op.REDUCE_SCATTER, Op.ALL_GATHER))
            )
            sources = sources[np.argsort(usual_s[sources], kind="stable")]
            for node in np.flatnonzero((nodes.stage == stage) & np.isin(nodes.op, (Op.FORWARD, Op.BACKWARD))).tolist():
                start = block.start_s[node]
                tolerance_s = late_tolerance(o, node)
                delay = np.broadcast_to(o.delay[node], start.shape)
                is_late = delay > 2.0 * tolerance_s
                if o.block.filled is not None:
                    is_late &= ~o.block.filled[node]
                if not is_late.any():
                    continue
                last = int(np.searchsorted(usual_s[sources], usual_s[node]))
                held = np.zeros(start.shape, dtype=bool)
                waited_for: WaitedFor = {}
                for source in sources[max(0, last - MAX_LATE) : last + 1].tolist():
                    in_flight = block.start_s[source] <= start - delay + tolerance_s
                    after_s = start - block.end_s[source]
                    ends_then = np.abs(after_s) <= tolerance_s
                    if nodes.op[source] == Op.ALL_GATHER:
                        # Those of later chunks follow each other, and the host prepares the step before its first forward.
                        in_flight = block.start_s[source] <= start
                        ends_then |= (after_s >= 0) & (after_s <= GATHER_SHARE * delay)
                    ends_then &= is_late & in_flight & ~held
                    if ends_then.any():
                        waited_for[source] = ends_then
                        held |= ends_then
                direction = int(nodes.op[node] == Op.BACKWARD)
                n_late[direction] += int(is_late.sum())
                n_held[direction] += int(held.sum())
                if held.any():
                    of_block.add(node, np.where(held, delay - tolerance_s, 0.0), waited_for)
    told = [n_held[d] >= max(MIN_OVERLAPS, MIN_LATE_SHARE * n_late[d]) for d in (0, 1)]
    kept = []
    for o, of_block in zip(observed, marked, strict=True):
        sure = [n for n in of_block.seconds if told[int(o.block.nodes.op[n] == Op.BACKWARD)]]
        kept.append(Waits({n: of_block.seconds[n] for n in sure}, {n: of_block.by[n] for n in sure}))
    return kept


def late_tolerance(o: Observed, node: int) -> Seconds:
    """Say how far a compute's start may be from the end of what it waited for: seconds, shape (n_steps, n_dp)."""
    return np.asarray(np.maximum(LATE_TOLERANCE * (o.block.end_s[node] - o.block.start_s[node]), LATE_TOLERANCE_S))


def _in_flight(o: Observed, op: Op, n_stages: int) -> list[_InFlight]:
    """List the computes that usually start while communication of a type is in flight on their worker."""
    block, nodes = o.block, o.block.nodes
    n_nodes = len(nodes)
    stride = max(1, block.start_s[0].size // MAX_LANES)
    start_s = block.start_s.reshape(n_nodes, -1)[:, ::stride]
    end_s = block.end_s.reshape(n_nodes, -1)[:, ::stride]
    usual_s = start_s.mean(axis=1)
    found = []
    for stage in range(n_stages):
        here = nodes.stage == stage
        sources = np.flatnonzero(here & (nodes.op == op))
        computes = np.flatnonzero(here & np.isin(nodes.op, (Op.FORWARD, Op.BACKWARD)))
        if not len(sources):
            continue
        sources = sources[np.argsort(usual_s[sources], kind="stable")]
        if op == Op.ALL_GATHER:
            sources = sources[-MAX_CHUNKS:]
        at = np.searchsorted(usual_s[sources], usual_s[computes]) - np.arange(MAX_IN_FLIGHT - 2, -2, -1)[:, None]
        near = sources[np.clip(at, 0, len(sources) - 1)]  # (MAX_IN_FLIGHT, n_computes)
        least_s = start_s[computes] + MIN_OVERLAP_SHARE * (end_s[computes] - start_s[computes])
        long = np.zeros(len(computes), dtype=bool)
        for of_each in near:
            begun = start_s[of_each] <= start_s[computes] + LAUNCH_TOLERANCE * (end_s[computes] - start_s[computes])
            long |= (begun & (end_s[of_each] > least_s)).any(axis=1)
        for i in np.flatnonzero(long).tolist():
            node = int(computes[i])
            direction = int(nodes.op[node] == Op.BACKWARD)
            in_flight = sources.tolist() if op == Op.ALL_GATHER else list(dict.fromkeys(near[:, i].tolist()))
            found.append(_InFlight(node, direction, tuple(in_flight)))
    return found


def _find_waits(
    observed: Sequence[Observed],
    pairs: Sequence[Sequence[_InFlight]],
    direction: int,
    known: Sequence[Waits],
    n_stages: int,
) -> tuple[float, list[_Wait]]:
    """Decide for one type of communication and direction whether it holds computes up.

    What a compute takes without is read off the same microbatch's compute of the other direction on the same stage: long
    documents, long stages and slow workers are the same for both. The score says how many usual computes long all waits are; 0
    where nothing is held up.
    """
    places: list[tuple[int, int, int]] = []
    ratios, waits = [], []
    for i, (o, of_block) in enumerate(zip(observed, pairs, strict=True)):
        in_flight = {p.node: p for p in of_block if p.direction == direction}
        for node, partner, place in _partners(o, direction, n_stages):
            other = np.maximum(_duration(o, partner, known[i].seconds), 1e-12)
            places.append((i, node, place))
            ratios.append(_duration(o, node, known[i].seconds) / other)
            p = in_flight.get(node)
            waits.append(np.zeros(other.shape) if p is None else _overlap(o, p)[0] / other)
    nothing = (0.0, list[_Wait]())
    if not places:
        return nothing
    y, x = (np.concatenate([a.ravel() for a in arrays]) for arrays in (ratios, waits))
    virtual = np.concatenate([np.full(r.size, v) for r, (_, _, v) in zip(ratios, places, strict=True)])
    there = np.isfinite(y)
    overlapping = there & (x > MIN_OVERLAP_SHARE * y) & (x < y)
    apart = there & (x <= 0)
    if overlapping.sum() < MIN_OVERLAPS:
        return nothing
    usual, sigma = _usual_ratio(y, x, apart, overlapping, virtual)
    if usual is None:
        return nothing
    telling = overlapping & (x > TELLING_SHARE * usual)
    beyond = np.abs(y - x - usual)
    held = (
        overlapping & (beyond < np.abs(y - usual)) & (beyond <= np.maximum(HELD_DEVIATIONS * sigma, HELD_RATIO * usual))
    )
    odd = telling & ~held & (np.abs(y - usual) > TELLING_SHARE * usual)
    n_held = int((held & telling).sum())
    if n_held < MIN_OVERLAPS or n_held < MIN_HELD_SHARE * telling.sum() or odd.sum() > MAX_ODD_SHARE * telling.sum():
        return nothing
    first, holds = 0, []
    for (i, node, _), ratio in zip(places, ratios, strict=True):
        at = slice(first, first + ratio.size)
        first = at.stop
        is_held = held[at].reshape(ratio.shape)
        if is_held.any():
            p = next(p for p in pairs[i] if p.node == node)
            seconds, last = _overlap(observed[i], p)
            waited_for = {source: is_held & (last == source) for source in np.unique(last[is_held]).tolist()}
            holds.append((i, node, np.where(is_held, seconds, 0.0), waited_for))
    return float((x[held] / usual[held]).sum()), holds


def _partners(o: Observed, direction: int, n_stages: int) -> list[tuple[int, int, int]]:
    """Pair each compute of a direction with that of the other on the same stage and microbatch: (node, partner, virtual stage)."""
    nodes = o.block.nodes
    key = np.stack([np.maximum(nodes.chunk, 0) * n_stages + nodes.stage, nodes.microbatch])
    ops = (Op.FORWARD, Op.BACKWARD)
    partners = {(int(key[0, n]), int(key[1, n])): int(n) for n in np.flatnonzero(nodes.op == ops[1 - direction])}
    found = []
    for node in np.flatnonzero(nodes.op == ops[direction]).tolist():
        place = (int(key[0, node]), int(key[1, node]))
        if place in partners:
            found.append((node, partners[place], place[0]))
    return found


def _usual_ratio(
    y: Seconds, x: Seconds, apart: Bools, overlapping: Bools, virtual: NDArray[np.int64]
) -> tuple[Seconds | None, Seconds]:
    """Say what a compute takes over its partner without any wait, and how that varies: of its stage, or of the job.

    Known from the computes that nothing overlaps. Where there are none, the waits must explain most of the variation.
    """
    if apart.sum() >= MIN_OVERLAPS:
        sample = y[apart]
    else:
        sample = (y - x)[overlapping]
        if _spread(sample) > MAX_SPREAD_RATIO * _spread(y[overlapping]):
            return None, y
    center = float(np.median(sample))
    usual, sigma = np.full(y.shape, center), np.full(y.shape, _spread(sample))
    for v in np.unique(virtual):
        own = y[apart & (virtual == v)]
        if len(own) >= MIN_OVERLAPS:
            usual[virtual == v] = np.median(own)
            sigma[virtual == v] = _spread(own)
    return np.maximum(usual, 1e-12), np.minimum(sigma, MAX_SIGMA_RATIO * usual)


def _spread(values: Seconds) -> float:
    """Take the robust spread."""
    return robust_deviation(values - np.median(values))


def _duration(o: Observed, node: int, known: dict[int, Seconds]) -> Seconds:
    """Give a compute's durations, what is known to be waiting left out; NaN where it was filled in."""
    seconds: Seconds = np.broadcast_to(o.own[node], o.block.start_s[node].shape) - known.get(node, 0.0)
    return seconds if o.block.filled is None else np.where(o.block.filled[node], np.nan, seconds)


def _overlap(o: Observed, p: _InFlight) -> tuple[Seconds, Ints]:
    """Say how long after a compute's start the last communication in flight ended, and which; 0 where it outlasts the compute."""
    block = o.block
    start, end = block.start_s[p.node], block.end_s[p.node]
    overlap: Seconds = np.zeros(start.shape)
    last = np.full(start.shape, -1, dtype=np.int64)
    tolerance_s = LAUNCH_TOLERANCE * (end - start)
    for source in p.sources:
        # Parameters of the next chunks are gathered one right after the other: that is one wait.
        chained = bool(block.nodes.op[source] == Op.ALL_GATHER) * overlap
        begun = block.start_s[source] <= start + tolerance_s + chained
        in_flight = begun & (block.end_s[source] > start) & (block.end_s[source] < end)
        longer = in_flight & (block.end_s[source] - start > overlap)
        overlap = np.where(longer, block.end_s[source] - start, overlap)
        last = np.where(longer, source, last)
    return overlap, last
