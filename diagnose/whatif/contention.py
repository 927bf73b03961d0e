"""Find computes that are held up by communication in flight: their kernels queue behind it.

Enters: observed blocks. Leaves: seconds of each compute in which it did no work because a transfer or collective of its
own worker had not ended. Where that is in every backward it is the median, so it must be known before any median is
taken. Costs nothing where no communication overlaps a compute (blocking transfers), else a few passes over the computes.
"""

import dataclasses
import warnings
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from diagnose.model.optype import DIRECTIONS, DP_COLLECTIVES, P2P, Op, of_types
from diagnose.model.trace import Bools, Ints, Nodes, Seconds
from diagnose.numerics.robust import median, nan_median, robust_deviation
from diagnose.whatif.batches import HELD_SHARE
from diagnose.whatif.computes import DIRECTION_OF, find_computes, iterate_blocks, place_of
from diagnose.whatif.graph import split_nodes
from diagnose.whatif.levels import stack
from diagnose.whatif.observed import Observed, are_gathered_anew

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
#: ... or, as its host may take a moment more, within this part of its wait.
EXPLAINED_LATE = 0.1
#: Operations before it that a late compute may have waited for.
MAX_LATE = 6
#: What would by chance end as a late compute starts is counted at these parts of its wait, where that is so many tolerances long.
SHIFTS = (0.25, 0.5, 0.75)
MIN_SHIFTED = 8.0
#: Lanes on which it is decided whether there is contention at all.
MAX_LANES = 512
#: Overlaps below this part of the compute say nothing, and from the second on they tell whether it was held.
MIN_OVERLAP_SHARE = 0.03
TELLING_SHARE = 0.2
#: At least so many computes say what is usual.
MIN_OVERLAPS = 12
#: A compute is held when its time beyond the overlap is usual within so many deviations, or this part.
HELD_DEVIATIONS = 4.0
HELD_RATIO = 0.10
MAX_SIGMA_RATIO = 0.08
#: Of the others beside communication those are held whose wait explains nearly all where at least this part of all is held.
MOST_HELD_SHARE = 0.8
#: More computes must end, or start, with communication in flight than by chance, by so many standard deviations: of counting, and
#: of chance itself, which is known to this part only, as computes beside communication vary otherwise than those that stand apart.
CHANCE_DEVIATIONS = 4.0
CHANCE_ERROR = 0.5
#: Computes are compared with those about as long: between these parts of all, as few are far longer than most.
SIZES = (0.5, 0.75, 0.9, 0.95)
#: Without the waits the computes must vary so much less, where all of them overlap.
MAX_SPREAD_RATIO = 0.5
#: ... or, where gathers are for the next compute, so that nearly all are beside some.
FEW_APART_RATIO = 0.8

#: One wait: block, node, seconds of shape (n_steps, n_dp), and what held it up.
_Wait = tuple[int, int, Seconds, "WaitedFor"]
_TYPES = (*P2P, *DP_COLLECTIVES)


@dataclasses.dataclass(frozen=True, slots=True)
class _InFlight:
    """One compute node of a block, and the nodes of one type that may be in flight when it starts."""

    node: int
    direction: int
    sources: tuple[int, ...]
    #: The gradients of its own chunk are among them.
    has_own: bool = False
    #: They are for the next compute: nearly all computes are beside some.
    prefetched: bool = False


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


def measure_waits(
    observed: Sequence[Observed], *, n_stages: int, variants: Seconds | None = None, paused_s: Seconds | None = None
) -> tuple[list[Waits], float]:
    """Say how long each compute was held up by communication in flight, block by block, and how far that is above chance.

    The latter is in standard deviations of the number that chance alone holds up; 0 where nothing is held up. `variants` as
    `measure_variants` gives them; `paused_s`, axes as in `Breakdown`, are pauses of computes that rows tell of.
    """
    found: dict[tuple[Op, int], tuple[float, float, list[_Wait]]] = {}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # medians of nothing are NaN, which is what is meant
        candidates = {}
        for op in _TYPES:
            pairs = [_in_flight(o, op, n_stages) for o in observed]
            for d in range(len(DIRECTIONS)):
                if any(p.direction == d for of_block in pairs for p in of_block):
                    candidates[op, d] = pairs

        def ask(key: tuple[Op, int]) -> tuple[float, float, list[_Wait]]:
            known = _add_waits(len(observed), [each for other, each in found.items() if other != key])
            if paused_s is not None:
                _add_pauses(known, observed, paused_s, n_stages)
            return _find_waits(observed, candidates[key], key[1], known, n_stages, variants)

        # What explains most comes first; what is left must still be explained by the next. All others are asked again: a backward
        # is told by its forward, and what held that is known only now.
        while len(found) < len(candidates):
            judged = {key: ask(key) for key in candidates if key not in found}
            best = max(judged, key=lambda key: judged[key][0])
            if judged[best][0] <= 0.0:
                break
            found[best] = judged[best]
        # ... and those that were found while less was known.
        for key in list(found)[:-1]:
            found[key] = ask(key)
        waits = _add_waits(len(observed), found.values())
        held = [key for key, (score, *_) in found.items() if score > 0.0]
        if {direction for _, direction in held} >= {0, 1}:
            _add_both(observed, [candidates[key] for key in held], waits, n_stages)
    return waits, max((deviations for _, deviations, _ in found.values()), default=0.0)


def _add_waits(n_blocks: int, found: Iterable[tuple[float, float, list[_Wait]]]) -> list[Waits]:
    """Bring together what was found for each type of communication and direction, block by block."""
    waits = [Waits({}, {}) for _ in range(n_blocks)]
    for _score, _deviations, of_type in found:
        for i, node, wait_s, waited_for in of_type:
            waits[i].add(node, wait_s, waited_for)
    return waits


def _add_pauses(known: Sequence[Waits], observed: Sequence[Observed], paused_s: Seconds, n_stages: int) -> None:
    """Add, in place, pauses that are known otherwise: what communication ends with may have stood still as long."""
    for (steps, o), of_block in zip(iterate_blocks(observed), known, strict=True):
        for node in find_computes(o.block.nodes).tolist():
            seconds = paused_s[(*place_of(o.block.nodes, node, n_stages), steps)]
            if seconds.any():
                of_block.add(node, seconds, {})


def _add_both(
    observed: Sequence[Observed], found: Sequence[Sequence[Sequence[_InFlight]]], waits: Sequence[Waits], n_stages: int
) -> None:
    """Add, in place, the waits of forwards whose backward waits, too: neither tells then what the other takes by itself.

    `found` lists, block by block, the computes beside each type of communication that holds computes up. Both of a pair are held
    where they are nearer to the usual then, each by itself and one over the other.
    """
    pairs: list[tuple[int, int]] = []  # block and node of the forwards and the backwards, in turn
    took, overlaps, known, lasts, stages = [], [], [], [], []
    for i, o in enumerate(observed):
        beside: dict[int, _InFlight] = {}
        for p in (p for of_type in found for p in of_type[i]):
            sources = (*beside[p.node].sources, *p.sources) if p.node in beside else p.sources
            beside[p.node] = dataclasses.replace(p, sources=tuple(dict.fromkeys(sources)))
        for backward, forward, stage in _partners(o, 1, n_stages):
            for node in (forward, backward) if forward in beside and backward in beside else ():
                overlap_s, _, last = _overlap(o, beside[node])
                took.append(_duration(o, node, waits[i].seconds).ravel())
                overlaps.append(overlap_s.ravel())
                known.append(np.broadcast_to(waits[i].seconds.get(node, 0.0), last.shape).ravel() > 0)
                lasts.append(last)
                pairs.append((i, node))
                stages.append(np.full(last.size, stage))
    if not pairs:
        return
    take_s, wait_s = (np.stack([np.concatenate(each[way::2]) for way in (0, 1)]) for each in (took, overlaps))
    is_known: Bools = np.stack([np.concatenate(known[way::2]) for way in (0, 1)])
    held = _are_both_held(take_s, wait_s, is_known, np.concatenate(stages[::2]))
    first = 0
    for n in range(0, len(pairs), 2):
        at = held[first : first + lasts[n].size].reshape(lasts[n].shape)
        first += at.size
        for (i, node), last, seconds in zip(pairs[n : n + 2], lasts[n : n + 2], overlaps[n : n + 2], strict=True):
            if at.any():
                of_node = {source: at & (last == source) for source in np.unique(last[at]).tolist()}
                waits[i].add(node, np.where(at, seconds.reshape(at.shape), 0.0), of_node)


def _are_both_held(take_s: Seconds, wait_s: Seconds, known: Bools, virtual: NDArray[np.int64]) -> Bools:
    """Mark the pairs of a forward and a backward that are nearer to the usual without their waits, shape (n,).

    `take_s` and `wait_s`, shape (2, n), are how long they take, known waits left out, and what overlaps them.
    """
    held = np.zeros(len(virtual), dtype=bool)
    asked = np.isfinite(take_s).all(axis=0)
    logs, free = (np.log(np.maximum(s, 1e-12)) for s in (take_s, take_s - wait_s))
    logs, free = (np.stack([*each, each[1] - each[0]]) for each in (logs, free))  # and one over the other
    alone = asked & (known | (wait_s <= 0))
    for v in np.unique(virtual):
        of_stage = virtual == v
        usual = [alone[0] & of_stage, alone[1] & of_stage, alone.all(axis=0) & of_stage]
        if min(each.sum() for each in usual) < MIN_OVERLAPS:
            continue
        center = np.array([median(of[at]) for of, at in zip(logs, usual, strict=True)])[:, None]
        sigma = np.array([max(_spread(of[at]), LATE_TOLERANCE) for of, at in zip(logs, usual, strict=True)])[:, None]
        at = of_stage & asked & ~known.any(axis=0) & (wait_s > 0).all(axis=0)
        off, left = (np.abs(of[:, at] - center) / sigma for of in (logs, free))
        held[at] = (left <= HELD_DEVIATIONS).all(axis=0) & (left.sum(axis=0) < off.sum(axis=0))
    return held


def measure_late_starts(observed: Sequence[Observed], *, n_stages: int) -> tuple[list[Waits], float]:
    """Say how long computes started late because communication in flight on their worker had not ended; as `measure_waits`."""
    marked = [Waits({}, {}) for _ in observed]
    n_held, n_chance = np.zeros((2, len(DIRECTIONS)))
    for o, of_block in zip(observed, marked, strict=True):
        block, nodes = o.block, o.block.nodes
        usual_s = block.start_s.mean(axis=(1, 2))
        late = _mark_late(o)
        rivals = of_types(nodes.op, P2P) | _are_rival_collectives(nodes)
        rivals |= (nodes.op == Op.REDUCE_SCATTER) & _are_prefetched(o)
        for stage in range(n_stages):
            sources = np.flatnonzero((nodes.stage == stage) & rivals)
            sources = sources[np.argsort(usual_s[sources], kind="stable")]
            # One gather follows the other: who waits for parameters in flight waits until all are there.
            is_gather = nodes.op[sources] == Op.ALL_GATHER
            last_gather, sources = sources[is_gather][-1:].tolist(), sources[~is_gather]
            for node in np.flatnonzero((nodes.stage == stage) & late).tolist():
                start = block.start_s[node]
                tolerance_s = late_tolerance(o, node)
                delay = np.broadcast_to(o.idle(node), start.shape)
                is_late = delay > 2.0 * tolerance_s
                if o.block.filled is not None:
                    is_late &= ~o.block.filled[node]
                last = int(np.searchsorted(usual_s[sources], usual_s[node]))
                near = [*sources[max(0, last - MAX_LATE) : last + 1].tolist(), *last_gather]
                within_s = tolerance_s, np.maximum(tolerance_s, EXPLAINED_LATE * delay)
                waited_for = _ends_then(o, near, start, delay, within_s, is_late)
                direction = DIRECTION_OF[int(nodes.op[node])]
                shifted = is_late & (delay > MIN_SHIFTED * tolerance_s)
                n_held[direction] += sum(int((at & shifted).sum()) for at in waited_for.values())
                for shift in SHIFTS if shifted.any() else ():
                    by_chance = _ends_then(o, near, start - shift * delay, (1.0 - shift) * delay, within_s, shifted)
                    n_chance[direction] += sum(int(at.sum()) for at in by_chance.values()) / len(SHIFTS)
                if waited_for:
                    held = np.any(list(waited_for.values()), axis=0)
                    of_block.add(node, np.where(held, delay - tolerance_s, 0.0), waited_for)
    deviations = _deviations(n_held, n_chance)
    told = deviations >= CHANCE_DEVIATIONS
    kept = []
    for o, of_block in zip(observed, marked, strict=True):
        sure = [n for n in of_block.seconds if told[DIRECTION_OF[int(o.block.nodes.op[n])]]]
        kept.append(Waits({n: of_block.seconds[n] for n in sure}, {n: of_block.by[n] for n in sure}))
    return kept, float(deviations[told].max(initial=0.0))


def _mark_late(o: Observed) -> Bools:
    """Mark the computes that ever started late, shape (n_nodes,)."""
    found = np.zeros(len(o.block.nodes), dtype=bool)
    computes = np.flatnonzero(of_types(o.block.nodes.op, DIRECTIONS))
    for part in split_nodes(computes, o.block.start_s[0].size):
        delay_s = stack([o.idle(node) for node in part.tolist()], o.block.start_s[0].shape)
        late = delay_s > 2.0 * late_tolerance(o, part)
        found[part] = (late if o.block.filled is None else late & ~o.block.filled[part]).any(axis=(1, 2))
    return found


def _ends_then(
    o: Observed, sources: Sequence[int], start: Seconds, delay: Seconds, within_s: tuple[Seconds, Seconds], among: Bools
) -> WaitedFor:
    """Say which communication in flight ends at some times, after a wait of `delay`; shape of all (n_steps, n_dp).

    `within_s` says by how much it may seem to end after them, as clocks differ, and by how much before.
    """
    block, found, held = o.block, WaitedFor(), np.zeros(start.shape, dtype=bool)
    too_soon_s, behind_s = within_s
    for source in sources:
        in_flight = block.start_s[source] <= start - delay + behind_s
        after_s = start - block.end_s[source]
        ends_then = (-too_soon_s <= after_s) & (after_s <= behind_s)
        if block.nodes.op[source] == Op.ALL_GATHER:
            # Those of later chunks follow each other, and the host prepares the step before its first forward.
            in_flight = block.start_s[source] <= start
            ends_then |= (after_s >= 0) & (after_s <= GATHER_SHARE * delay)
        ends_then &= among & in_flight & ~held
        if ends_then.any():
            found[source] = ends_then
            held |= ends_then
    return found


def late_tolerance(o: Observed, node: int | Ints) -> Seconds:
    """Say how far starts of computes may be from the end of what they waited for: seconds, shape ([n_nodes,] n_steps, n_dp)."""
    return np.asarray(np.maximum(LATE_TOLERANCE * (o.block.end_s[node] - o.block.start_s[node]), LATE_TOLERANCE_S))


def _are_rival_collectives(nodes: Nodes) -> Bools:
    """Mark the collectives that may hold computes up by contention: where parameters are gathered anew computes wait on purpose."""
    return of_types(nodes.op, (Op.REDUCE_SCATTER, Op.ALL_GATHER)) & ~are_gathered_anew(nodes)


def _are_prefetched(o: Observed) -> Bools:
    """Mark gathers and reductions of workers that gather parameters for the next compute, which finds them there; shape (n_nodes,).

    There are as many gathers as computes: the first one ends before the first of these, each other begins as the one before runs.
    """
    block, nodes = o.block, o.block.nodes
    found, anew = np.zeros(len(nodes), dtype=bool), are_gathered_anew(nodes)
    usual_s = block.start_s.mean(axis=(1, 2))
    for stage in np.unique(nodes.stage[anew]).tolist():
        gathers, computes = (
            np.flatnonzero((nodes.stage == stage) & of)
            for of in (nodes.op == Op.ALL_GATHER, of_types(nodes.op, DIRECTIONS))
        )
        if len(gathers) != len(computes):
            continue
        gathers, computes = (of[np.argsort(usual_s[of], kind="stable")] for of in (gathers, computes))
        begin_s, there_s = block.start_s[computes], block.end_s[gathers]
        ready = there_s <= begin_s + LAUNCH_TOLERANCE * (block.end_s[computes] - begin_s)
        ahead = block.start_s[gathers[1:]] >= begin_s[:-1]
        if min(float(ready.mean()), float(ahead.mean())) >= HELD_SHARE:
            found |= (nodes.stage == stage) & of_types(nodes.op, (Op.REDUCE_SCATTER, Op.ALL_GATHER))
    return found


def _in_flight(o: Observed, op: Op, n_stages: int) -> list[_InFlight]:
    """List the computes that usually start while communication of a type is in flight on their worker."""
    block, nodes = o.block, o.block.nodes
    n_nodes = len(nodes)
    stride = max(1, block.start_s[0].size // MAX_LANES)
    start_s = block.start_s.reshape(n_nodes, -1)[:, ::stride]
    end_s = block.end_s.reshape(n_nodes, -1)[:, ::stride]
    rivals = _are_rival_collectives(nodes) if op in DP_COLLECTIVES else True
    # Where each gather is for the next compute reductions and gathers move one after the other: that is one wait.
    prefetched = _are_prefetched(o) if op == Op.ALL_GATHER else np.zeros(n_nodes, dtype=bool)
    of_type, computing = (
        np.flatnonzero((nodes.op == op) & rivals | prefetched),
        np.flatnonzero(of_types(nodes.op, DIRECTIONS)),
    )
    if not len(of_type):
        return []
    usual_s = start_s.mean(axis=1)
    found = []
    for stage in range(n_stages):
        sources, computes = (some[nodes.stage[some] == stage] for some in (of_type, computing))
        if not len(sources):
            continue
        sources = sources[np.argsort(usual_s[sources], kind="stable")]
        in_turn = op == Op.ALL_GATHER and not prefetched[sources].any()
        if in_turn:
            sources = sources[-MAX_CHUNKS:]
        at = np.searchsorted(usual_s[sources], usual_s[computes]) - np.arange(MAX_IN_FLIGHT - 2, -2, -1)[:, None]
        near = sources[np.clip(at, 0, len(sources) - 1)]  # (MAX_IN_FLIGHT, n_computes)
        # One after the other, which is in flight differs from step to step; parts of gradients are all of one backward.
        if in_turn or (op == Op.REDUCE_SCATTER and len(sources) <= MAX_CHUNKS):
            near = np.broadcast_to(sources[:, None], (len(sources), len(computes)))
        begin_s, took_s = start_s[computes], end_s[computes] - start_s[computes]
        latest_s, least_s = begin_s + LAUNCH_TOLERANCE * took_s, begin_s + MIN_OVERLAP_SHARE * took_s
        long = np.zeros(len(computes), dtype=bool)
        for of_each in near:
            begun = start_s[of_each] <= latest_s
            begun |= are_own_gradients(nodes, of_each, computes)[:, None] & (start_s[of_each] < end_s[computes])
            long |= (begun & (end_s[of_each] > least_s)).any(axis=1)
        for i in np.flatnonzero(long).tolist():
            node = int(computes[i])
            direction = DIRECTION_OF[int(nodes.op[node])]
            in_flight = list(dict.fromkeys(near[:, i].tolist()))
            has_own = bool(are_own_gradients(nodes, np.array(in_flight), node).any())
            found.append(_InFlight(node, direction, tuple(in_flight), has_own, bool(prefetched[in_flight].any())))
    return found


def _compare_with_partners(
    observed: Sequence[Observed],
    pairs: Sequence[Sequence[_InFlight]],
    direction: int,
    known: Sequence[Waits],
    n_stages: int,
    variants: Seconds | None,
) -> tuple[list[tuple[int, int, int]], list[Seconds], list[Seconds], list[Seconds], list[Seconds]]:
    """List the computes of a direction as (block, node, virtual stage), and what their partners take, seconds.

    Then, over that, how long they take themselves, how long communication in flight overlaps them, and outlasts their start.
    """
    places: list[tuple[int, int, int]] = []
    ratios, waits, outlasting, partners = [], [], [], []
    for i, (o, of_block) in enumerate(zip(observed, pairs, strict=True)):
        in_flight = {p.node: p for p in of_block if p.direction == direction}
        beside = {p.node for p in of_block if p.prefetched}
        for node, partner, place in _partners(o, direction, n_stages):
            other = np.maximum(_duration(o, partner, known[i].seconds), 1e-12)
            if partner in beside:  # it may wait as well
                other = np.broadcast_to(nan_median(other, axis=0), other.shape)
            # Without a pipeline the last microbatch is unlike the others, too, where only its backward waits for gradients.
            awaits_own = (
                node in in_flight and in_flight[node].has_own and variants is not None and variants.shape[1] == 1
            )
            if variants is not None and not awaits_own:
                here, there = (variants[place_of(o.block.nodes, n, n_stages)] for n in (node, partner))
                other = other * (here / there)
            places.append((i, node, place))
            partners.append(other)
            ratios.append(_duration(o, node, known[i].seconds) / other)
            p = in_flight.get(node)
            overlap_s, outlasting_s, _ = _overlap(o, p) if p is not None else (np.zeros(other.shape),) * 3
            waits.append(overlap_s / other)
            outlasting.append(outlasting_s / other)
    return places, partners, ratios, waits, outlasting


def _find_waits(
    observed: Sequence[Observed],
    pairs: Sequence[Sequence[_InFlight]],
    direction: int,
    known: Sequence[Waits],
    n_stages: int,
    variants: Seconds | None,
) -> tuple[float, float, list[_Wait]]:
    """Decide for one type of communication and direction whether it holds computes up.

    What a compute takes without is read off the same microbatch's compute of another direction on the same stage: long
    documents, long stages and slow workers are the same for both. The score says how many usual computes long all waits are; 0
    where no more are held up than by chance. Beside it by how many standard deviations they are more.
    """
    places, partners, ratios, waits, outlasting = _compare_with_partners(
        observed, pairs, direction, known, n_stages, variants
    )
    nothing = (0.0, 0.0, list[_Wait]())
    if not places:
        return nothing
    y, x, outlasts = (np.concatenate([a.ravel() for a in arrays]) for arrays in (ratios, waits, outlasting))
    virtual = np.concatenate([np.full(r.size, v) for r, (_, _, v) in zip(ratios, places, strict=True)])
    rank = np.concatenate([np.tile(np.arange(r.shape[1]), len(r)) for r in ratios])
    there = np.isfinite(y)
    overlapping = there & (x > MIN_OVERLAP_SHARE * y) & (x < y)
    # Where gathers are for the next compute the last one of a step alone stands apart, and says nothing of others.
    prefetched = any(p.prefetched for of_block in pairs for p in of_block)
    apart = there & (x <= 0) & (not prefetched)
    if overlapping.sum() < MIN_OVERLAPS:
        return nothing
    most = FEW_APART_RATIO if prefetched else MAX_SPREAD_RATIO
    usual, sigma = _usual_ratio(y, x, apart, overlapping, virtual, rank, most)
    within = np.maximum(HELD_DEVIATIONS * sigma, HELD_RATIO * usual)
    telling = overlapping & (x > TELLING_SHARE * usual)
    held = overlapping & _is_held(y - usual, x, within)
    held &= ~_end_by_themselves(observed, pairs, places, partners, held)
    n_held = int((held & telling).sum())
    if not n_held:
        return nothing
    # What is still in flight as a compute ends did not hold it, but could have.
    asked = there & (np.where(telling, x, outlasts) > TELLING_SHARE * usual)
    parts = (y - usual) / usual, np.where(telling, x, outlasts) / usual, within / usual
    step = np.concatenate(
        [i * 2**32 + np.repeat(np.arange(len(r)), r.shape[1]) for r, (i, _, _) in zip(ratios, places, strict=True)]
    )
    # Computes may be long, and communication late, in the same steps: then those of other steps do not say what chance does.
    of_step = np.unique(np.stack([virtual, step]), axis=1, return_inverse=True)[1].ravel()
    # Long ones may be longer than their partners say, and may be the ones that communication runs beside.
    of_size = _size_of(np.concatenate([seconds.ravel() for seconds in partners]), virtual)
    by_chance = max(_count_by_chance(*parts, asked, apart, group) for group in (virtual, of_step, of_size))
    deviations = float(_deviations(n_held, by_chance))
    if prefetched:
        deviations = max(deviations, _deviations_of_spread(y[overlapping], x[overlapping]))
    if deviations < CHANCE_DEVIATIONS:
        return nothing
    if n_held >= MOST_HELD_SHARE * int((overlapping & telling).sum()):
        # Where most are held those are, too, that took more or less work themselves.
        held |= overlapping & _is_held(y - usual, x, EXPLAINED_LATE * x)
    first, holds = 0, []
    for (i, node, _), ratio in zip(places, ratios, strict=True):
        at = slice(first, first + ratio.size)
        first = at.stop
        is_held = held[at].reshape(ratio.shape)
        if is_held.any():
            p = next(p for p in pairs[i] if p.node == node)
            seconds, _, last = _overlap(observed[i], p)
            waited_for = {source: is_held & (last == source) for source in np.unique(last[is_held]).tolist()}
            holds.append((i, node, np.where(is_held, seconds, 0.0), waited_for))
    return float((x[held] / usual[held]).sum()), deviations, holds


def _end_by_themselves(
    observed: Sequence[Observed],
    pairs: Sequence[Sequence[_InFlight]],
    places: Sequence[tuple[int, int, int]],
    partners: Sequence[Seconds],
    held: Bools,
) -> Bools:
    """Mark computes beside their own gradients that do not end with these, though they are about as much longer, shape (n,).

    Only the last one of a step has such, always: it may be long for its place alone. Held ones end as long after the communication
    as what is left of their work takes, however long that was; others end as long after their own start. All workers run the same
    software: they are asked together.
    """
    found, first, spreads = np.zeros(len(held), dtype=bool), 0, []
    for (i, node, _), other in zip(places, partners, strict=True):
        at = slice(first, first + other.size)
        first = at.stop
        p = next((p for p in pairs[i] if p.node == node and p.has_own), None)
        if p is None or not held[at].any():
            continue
        block, (*_, last) = observed[i].block, _overlap(observed[i], p)
        of_lanes = held[at].reshape(other.shape)
        after_s = block.end_s[node] - np.take_along_axis(block.end_s, np.maximum(last, 0)[None], axis=0)[0]
        took_s = block.end_s[node] - block.start_s[node]
        spreads.append([_spread((seconds / other)[of_lanes]) for seconds in (after_s, took_s)])
        found[at] = True
    after, whole = np.square(spreads).sum(axis=0) if spreads else (0.0, 0.0)
    return found & (after > whole)


def _size_of(seconds: Seconds, virtual: NDArray[np.int64]) -> NDArray[np.int64]:
    """Say how long each is among those of its virtual stage, by the parts in `SIZES`: 0 the shortest."""
    order = np.lexsort((seconds, virtual))
    place = np.empty(len(order), dtype=np.int64)
    place[order] = np.arange(len(order))
    n_own = np.bincount(virtual)
    return np.searchsorted(SIZES, (place - (np.cumsum(n_own) - n_own)[virtual]) / n_own[virtual], side="right")


def _deviations(n_held: Any, by_chance: Any) -> Any:
    """Say by how many standard deviations more are held than by chance; one more by chance than was counted."""
    return (n_held - by_chance) / np.sqrt(by_chance + (CHANCE_ERROR * by_chance) ** 2 + 1.0)


def _deviations_of_spread(y: Seconds, x: Seconds) -> float:
    """Say by how many standard deviations of chance computes vary less without their overlaps; 0 where it is not far less.

    Where nearly all are beside communication none tells what chance does: those that wait end as long after it as their work takes.
    """
    without, whole = _spread(y - x), _spread(y)
    return float(np.sqrt(len(y)) * np.log(whole / without)) if 0 < without <= FEW_APART_RATIO * whole else 0.0


def _count_by_chance(
    excess: Seconds, overlap: Seconds, within: Seconds, asked: Bools, apart: Bools, group: NDArray[np.int64]
) -> float:
    """Say how many computes would be held if their overlaps were those of others: of such of their group that nothing is beside.

    All in parts of the usual. Where too few stand apart those of all stages do, and where these are too few, the overlapping ones.
    """
    of_all = excess[apart if apart.sum() >= MIN_OVERLAPS else asked]
    found = 0.0
    for v in np.unique(group[asked]):
        here, own = asked & (group == v), excess[apart & (group == v)]
        pool = np.sort(own if len(own) >= MIN_OVERLAPS else of_all)
        low, high = np.maximum(overlap[here] - within[here], overlap[here] / 2.0), overlap[here] + within[here]
        n_alike = np.searchsorted(pool, high, side="right") - np.searchsorted(pool, low)
        found += float(np.maximum(n_alike / len(pool), 1.0 / (len(of_all) + 1)).sum())
    return found


def _is_held(excess: Seconds, overlap: Seconds, within: Seconds) -> Bools:
    """Mark the computes that are as much longer than usual as communication in flight overlaps them, and not as long as usual."""
    beyond = np.abs(excess - overlap)
    return np.asarray((beyond < np.abs(excess)) & (beyond <= within))


def _partners(o: Observed, direction: int, n_stages: int) -> list[tuple[int, int, int]]:
    """Pair each compute of a direction with one of the same stage and microbatch: (node, partner, virtual stage).

    A forward with its backward, all others with their forward.
    """
    nodes = o.block.nodes
    key = np.stack([np.maximum(nodes.chunk, 0) * n_stages + nodes.stage, nodes.microbatch])
    partner = Op.FORWARD if direction else Op.BACKWARD
    partners = {(int(key[0, n]), int(key[1, n])): int(n) for n in np.flatnonzero(nodes.op == partner)}
    found = []
    for node in np.flatnonzero(nodes.op == DIRECTIONS[direction]).tolist():
        place = (int(key[0, node]), int(key[1, node]))
        if place in partners:
            found.append((node, partners[place], place[0]))
    return found


def _usual_ratio(
    y: Seconds,
    x: Seconds,
    apart: Bools,
    overlapping: Bools,
    virtual: NDArray[np.int64],
    rank: NDArray[np.int64],
    most: float = MAX_SPREAD_RATIO,
) -> tuple[Seconds, Seconds]:
    """Say what a compute takes over its partner without any wait, and how that varies: of its stage, or of the job.

    A worker that has computes enough, and is unlike its stage, says it for itself: it may be slow in one direction alone.

    Known from the computes that nothing overlaps. Where there are none, most wait if that explains most of the variation, or few.
    Those of a stage that vary far more than its others without their waits wait for something else, and say nothing.
    """
    by_itself, among = y, apart
    if apart.sum() < MIN_OVERLAPS:
        among = overlapping
        if _spread((y - x)[among]) <= most * _spread(y[among]):
            by_itself = y - x
    center = float(median(by_itself[among]))
    usual, sigma = np.full(y.shape, center), np.full(y.shape, _spread(by_itself[among]))
    for v in np.unique(virtual):
        of_stage = virtual == v
        by, at = by_itself, among & of_stage
        if at.sum() < MIN_OVERLAPS:
            continue
        beside = overlapping & of_stage
        if beside.sum() >= MIN_OVERLAPS and _spread((y - x)[beside]) <= MAX_SPREAD_RATIO * _spread(by[at]):
            by, at = y - x, beside
        usual[of_stage], sigma[of_stage] = of_all, spread = median(by[at]), _spread(by[at])
        for r in np.unique(rank):
            own = at & (rank == r)
            if own.sum() >= MIN_OVERLAPS and abs((of_own := median(by[own])) - of_all) > spread:
                usual[of_stage & (rank == r)] = of_own
    return np.maximum(usual, 1e-12), np.minimum(sigma, MAX_SIGMA_RATIO * usual)


def _spread(values: Seconds) -> float:
    """Take the robust spread."""
    return robust_deviation(values - median(values))


def _duration(o: Observed, node: int, known: dict[int, Seconds]) -> Seconds:
    """Give a compute's durations, what is known to be waiting left out; NaN where it was filled in."""
    seconds: Seconds = np.broadcast_to(o.own[node], o.block.start_s[node].shape) - known.get(node, 0.0)
    return seconds if o.block.filled is None else np.where(o.block.filled[node], np.nan, seconds)


def _overlap(o: Observed, p: _InFlight) -> tuple[Seconds, Seconds, Ints]:
    """Say how long after a compute's start the last communication in flight ended while it ran, or after, and which ended while."""
    block = o.block
    start, end = block.start_s[p.node], block.end_s[p.node]
    overlap, until = np.zeros(start.shape), start
    outlasting: Seconds = np.zeros(start.shape)
    last = np.full(start.shape, -1, dtype=np.int64)
    tolerance_s = LAUNCH_TOLERANCE * (end - start)
    for source in p.sources:
        # Parameters, and gradients of the chunks that are through, are moved one right after the other: that is one wait.
        chained = _was_launched(block.nodes, source, p.node) * overlap
        begun = block.start_s[source] <= start + tolerance_s + chained
        length, last_s = block.end_s[source] - start, end
        if are_own_gradients(block.nodes, source, p.node):
            # What began as a part of them was there: until then the compute worked, and so it did between two parts. With the
            # last part it ends.
            begun = block.start_s[source] < end
            length = overlap + np.maximum(block.end_s[source] - np.maximum(block.start_s[source], until), 0.0)
            until = np.where(begun, np.maximum(until, block.end_s[source]), until)
            last_s = end + tolerance_s
        longer = begun & (length > overlap) & (block.end_s[source] < last_s)
        overlap = np.where(longer, length, overlap)
        last = np.where(longer, source, last)
        outlasting = np.where(begun & (block.end_s[source] >= last_s), np.maximum(outlasting, length), outlasting)
    return overlap, outlasting, last


def are_own_gradients(nodes: Nodes, source: int | Ints, node: int | Ints) -> Any:
    """Say whether communication is the reduction of the gradients of a compute's own chunk, so that the compute launches it."""
    return (nodes.op[source] == Op.REDUCE_SCATTER) & (nodes.chunk[source] == nodes.chunk[node])


def _was_launched(nodes: Nodes, source: int, node: int) -> bool:
    """Say whether communication that begins while a compute runs was launched before it, and waited for its own turn."""
    if nodes.op[source] == Op.REDUCE_SCATTER:  # that of a chunk that the compute is no part of
        return bool(nodes.chunk[source] != nodes.chunk[node])
    return bool(nodes.op[source] == Op.ALL_GATHER)
