"""Find processes that something stops now and then: in computes of either direction, and as long in what they send.

Enters: observed blocks, stalls, and what transfers take beyond ordinary ones. Leaves: the stalls of that worker, or of those of one
host, as their own, in place, and for how long their transfers stood still. An allocator holds up no message, a link no compute, a
collection no backward: what holds up all of these, now one and, at other times, another, stops the process, as whatever else its
host runs may.
"""

import dataclasses
from collections import Counter
from collections.abc import Mapping, Sequence

import numpy as np

from diagnose.model.optype import of_types
from diagnose.model.stalls import AS_LONG_RATIO, LONG_SHARE, MIN_STALLS, MOSTLY_SHARE, UNTOLD, StallKind, Stalls
from diagnose.model.trace import Bools, Ints, Seconds
from diagnose.numerics.robust import weighted_median
from diagnose.whatif.components.attribution import assign
from diagnose.whatif.computes import iterate_blocks
from diagnose.whatif.frozen import BESIDE_SHARE, Pauses, read_stalls
from diagnose.whatif.observed import Observed

#: Seconds that transfers stand still, of shape (n_steps, n_dp), by node, one dict a block.
_Frozen = tuple[dict[int, Seconds], ...]
#: One late transfer may be as long as stalls by chance.
LEAST_LATE = 2


def attribute_to_stopped(
    observed: Sequence[Observed], stalls: Stalls, excesses: Sequence[Mapping[int, Seconds]], n_stages: int
) -> _Frozen:
    """Attribute what stops processes to their workers, in place, and give for how long their transfers stood still with them.

    `excesses` are as `transfer_excess` has them, by block; so is what is given, empty where no process is so.
    """
    nothing = tuple(dict[int, Seconds]() for _ in observed)
    at, own = _find_stops(stalls, n_stages)
    if not at.any():
        return nothing
    kinds = np.where(at, np.int8(StallKind.WORKER), np.int8(StallKind.NOBODY))
    marked = dataclasses.replace(stalls, inside=kinds, before=kinds)
    pauses = [read_stalls(o, steps, marked, n_stages, StallKind.WORKER) for steps, o in iterate_blocks(observed)]
    # What stops a host stops all that runs there at once.
    if own.sum() > 1 and not _are_at_once(pauses):
        return nothing
    stopped_s = (stalls.inside_s + stalls.before_s)[at]
    usual_s = weighted_median(stopped_s, stopped_s) or 0.0
    late = _find_late(observed, excesses, own, pauses, usual_s / AS_LONG_RATIO)
    # Where most messages of a type are late they are so by a slow link, or as processes take turns on a device.
    alone_s = late.alone_s[late.alone_s * AS_LONG_RATIO > usual_s]
    if len(alone_s) < LEAST_LATE or 2.0 * late.often > 1.0 or late.own_s.sum() < MOSTLY_SHARE * late.all_s.sum():
        return nothing
    # Computes take most of a step: who stops for longer in messages has a slow link besides.
    if float(np.median(alone_s)) >= AS_LONG_RATIO * usual_s or late.own_s.sum() >= AS_LONG_RATIO * stopped_s.sum():
        return nothing
    for kinds in (stalls.inside, stalls.before):
        kinds[at & of_types(kinds, UNTOLD)] = StallKind.NOBODY
    assign(stalls, at, StallKind.WORKER)
    return late.frozen


def _find_stops(stalls: Stalls, n_stages: int) -> tuple[Bools, Bools]:
    """Mark the long stalls of the workers that have most of them, each in both directions; with these, shape (n_stages, n_dp)."""
    stalled_s = np.zeros(stalls.inside_s.shape)
    for seconds, kinds, told in (
        (stalls.inside_s, stalls.inside, stalls.recorded_inside),
        (stalls.before_s, stalls.before, stalls.recorded_before),
    ):
        stalled_s += np.where(of_types(kinds, UNTOLD) & ~told, seconds, 0.0)
    # How long a process stops is its own: beside it noise of many others may have as many seconds.
    of_worker = _by_worker(stalled_s, n_stages)
    stage, dp = (int(i) for i in np.unravel_index(int(of_worker.argmax()), of_worker.shape))
    lengths = stalled_s[:, stage::n_stages, ..., dp]
    long = stalled_s * AS_LONG_RATIO >= max(
        weighted_median(lengths.ravel(), lengths.ravel()) or 0.0, np.finfo(float).tiny
    )
    forward_s, backward_s = (
        _by_worker(np.where(long, stalled_s, 0.0)[of], n_stages) for of in (slice(0, 1), slice(1, None))
    )
    by_worker = forward_s + backward_s
    # Some of many workers have more than the others by chance: of several that are stopped nobody else has any.
    is_one = by_worker.max() >= MOSTLY_SHARE * by_worker.sum()
    own = by_worker >= (1.0 if is_one else LONG_SHARE) * by_worker.max()
    at = long & np.tile(own, (long.shape[1] // n_stages, 1))[:, None, None]
    is_part = 2 * own.sum() <= max(own.size, 2) and bool(((forward_s > 0) & (backward_s > 0))[own].all())
    return at & (is_part and at.sum() >= MIN_STALLS), own


def _by_worker(seconds: Seconds, n_stages: int) -> Seconds:
    """Add up over all computes of each worker, shape (n_stages, n_dp)."""
    return np.asarray(seconds.sum(axis=(0, 2, 3)).reshape(-1, n_stages, seconds.shape[-1]).sum(axis=0))


def _are_at_once(pauses: Sequence[Pauses]) -> bool:
    """Say whether most pauses of several workers, by block, overlap with those of others among them."""
    n_met = 0
    for stages, steps, ranks, begins_s, ends_s, _ in pauses:
        for step in np.unique(steps).tolist():
            here = steps == step
            begin_s, end_s, others = begins_s[here], ends_s[here], _differ(stages[here]) | _differ(ranks[here])
            meets = others & (begin_s[:, None] < end_s) & (begin_s < end_s[:, None])
            n_met += int(meets.any(axis=1).sum())
    return 2 * n_met >= sum(len(steps) for _, steps, *_ in pauses)


def _differ(values: Ints) -> Bools:
    """Mark the pairs of values that differ."""
    return np.asarray(values[:, None] != values)


@dataclasses.dataclass(frozen=True, slots=True)
class _Late:
    """What transfers with an end at some workers take too long, by block and node; the most of that, and of all, in each step."""

    frozen: _Frozen
    own_s: Seconds
    all_s: Seconds
    #: Likewise of those that no stopped compute lies beside: it may wait for them.
    alone_s: Seconds
    #: Which part of those of one type on one stage is late, the largest.
    often: float


def _find_late(
    observed: Sequence[Observed],
    excesses: Sequence[Mapping[int, Seconds]],
    own: Bools,
    all_pauses: Sequence[Pauses],
    least_s: float,
) -> _Late:
    """Find the transfers of some workers, (n_stages, n_dp), that are late; `least_s` is how long for one that is often so."""
    frozen = tuple(dict[int, Seconds]() for _ in observed)
    own_s, all_s, alone_s = np.zeros((3, sum(len(o.block.steps) for o in observed)))
    late_of, all_of = Counter[tuple[int, int]](), Counter[tuple[int, int]]()
    for (steps, o), excess, pauses, of_block in zip(
        iterate_blocks(observed), excesses, all_pauses, frozen, strict=True
    ):
        nodes, across_dp = o.block.nodes, o.graph.moves.across_dp[o.graph.starts_in]
        all_of.update(
            {
                of: n * len(o.block.steps)
                for of, n in Counter(zip(nodes.op.tolist(), nodes.stage.tolist(), strict=True)).items()
            }
        )
        for node, seconds in excess.items():
            all_s[steps] = np.maximum(all_s[steps], seconds.max(axis=1))
            whose = own[np.unique(nodes.stage[o.graph.members_of(node)])].any(axis=0)
            if not whose.any():
                continue
            theirs = of_block[node] = np.where(across_dp[node] | whose, seconds, 0.0)
            own_s[steps] = np.maximum(own_s[steps], theirs.max(axis=1))
            late_s = theirs.max(axis=1, keepdims=True) if across_dp[node] else theirs
            late_s = np.where(own[nodes.stage[node]], late_s, 0.0)
            beside_s = _find_beside(o, node, pauses)
            alone_s[steps] = np.maximum(
                alone_s[steps], np.where(beside_s <= BESIDE_SHARE * late_s, late_s, 0.0).max(axis=1)
            )
            of_type = int(nodes.op[node]), int(nodes.stage[node])
            late_of[of_type] += int((late_s.max(axis=1) > least_s).sum())
    often = max((n / all_of[of_type] for of_type, n in late_of.items()), default=0.0)
    return _Late(frozen, own_s, all_s, alone_s, often)


def _find_beside(o: Observed, node: int, pauses: Pauses) -> Seconds:
    """Say for how long pauses of the worker of a transfer lie beside it, the longest; shape (n_steps, n_dp)."""
    stages, *of_all = pauses
    steps, ranks, begins_s, ends_s, _ = (of[stages == o.block.nodes.stage[node]] for of in of_all)
    begin_s, end_s = o.block.start_s[node], o.block.end_s[node]
    found = np.zeros(begin_s.shape)
    both_s = np.minimum(end_s[steps, ranks], ends_s) - np.maximum(begin_s[steps, ranks], begins_s)
    np.maximum.at(found, (steps, ranks), both_s)
    return found
