"""Slow transfers: communication that takes longer than on an ordinary link, or in ordinary steps."""

import dataclasses
import types
from collections.abc import Collection, Iterator, Mapping, Sequence

import numpy as np

from diagnose.model.components import Traits
from diagnose.model.feature import Features
from diagnose.model.optype import DIRECTIONS, DP_COLLECTIVES, P2P, Op, of_types
from diagnose.model.trace import Bools, Ints, Seconds
from diagnose.numerics.robust import lower_median, median, nan_median, nan_quantile, upper_level, upper_stretch
from diagnose.whatif.components.component import Component, Part
from diagnose.whatif.computes import DIRECTION_OF, gather_seconds
from diagnose.whatif.graph import flatten
from diagnose.whatif.levels import take
from diagnose.whatif.observed import Observed, are_gathered_anew
from diagnose.whatif.occupied import find_collectives_inside
from diagnose.whatif.rings import find_rings
from diagnose.whatif.slow_places import add_rings, find_slow_places, restrict, rows_of_ways, ways_of

#: A transfer is slow beyond this many times the upper end of its type on an ordinary link, and by seconds enough.
SLOW_TRANSFER_RATIO = 3.0
#: Collectives vary less.
SLOW_COLLECTIVE_RATIO = 1.5
SLOW_TRANSFER_SHARE = 5e-4
#: A link is slow, as a whole or in a step, when its median is this many times that of an ordinary link (the modes of healthy
#: links of a production job are 1.7 apart, but on every link), or beyond what many links differ by, and by so much at least.
SLOW_LINK_RATIO = 1.5
LEAST_SLOW_SHARE = 0.08
SLOW_LEVEL_SHARE = 1e-4
#: The spread of ordinary transfers counts as this part of the step at least.
LEAST_SPREAD_SHARE = 1e-5
#: Groups of healthy jobs differ by as much, as their buffers do.
GROUPS_DIFFER_RATIO = 3.0
#: A group is slow by the card that a link is slow by if both take about as many times as long.
ALIKE_RATIO = 1.3
#: A card is one dp rank's: the link that shows it is slow in so many times as many steps as that of half of the ranks.
FEW_RANKS_RATIO = 3.0
#: Who begins a collective last finds all that it needs where it ends in less than this part of the others' time, in so many steps.
FINDS_ALL_SHARE, FINDS_ALL_OFTEN = 0.5, 0.05
#: A single transfer is slow beyond this many times the upper end, and beyond this many times what that is above the usual.
SLOW_STEP_RATIO = 1.2
FAR_TOPS = 5.0
#: A transfer beside a collective of its own worker has this part of the card: what is late only by that is not slow. An equal share
#: is an argument; one real job needed it.
CARD_SHARE = 0.5
#: Of transfers that are so many times as long in one half of the lanes as in a tenth of them the shorter are the ordinary ones.
TWO_LEVELS_RATIO = 2.0
LOW_QUANTILE = 0.1
HIGH_QUANTILE = 0.95
#: Keeps the log of a transfer that takes no time finite.
TINY_S = 1e-12
#: From the usual to that quantile, in standard deviations of a normal distribution.
HIGH_QUANTILE_TO_SIGMA = 1.64
#: Of so many places at most the slow ones may be most: the links of a pipeline of four stages, and the one beside it.
FEW_PLACES = 4
#: ... and where fewer than this part of them is away from slow groups: slow cards make most links slow.
FEW_AWAY_SHARE = 0.25
#: From the lower half of the spread of a normal distribution to its standard deviation.
HALF_SPREAD_TO_SIGMA = 1.28
TOP_DEVIATIONS = 4.0
#: Two ways of sending, as over the network card and through the host's memory, differ by less than so many times.
FAR_BLOCK_RATIO = 10.0
#: What goes the other way on the same link.
OTHER_WAY = {
    Op.FORWARD_SEND: Op.BACKWARD_SEND,
    Op.BACKWARD_SEND: Op.FORWARD_SEND,
    Op.FORWARD_RECV: Op.BACKWARD_RECV,
    Op.BACKWARD_RECV: Op.FORWARD_RECV,
}
#: Transfers of a link in one step from which its median says something.
MIN_IN_STEP = 3
#: Steps from which it is learned what is usual on a link.
MAX_LINK_STEPS = 16


class TransferPart(Part):
    """Without it transfers take as long as ordinary ones of their type.

    Attributes
    ----------
    excess_s : sequence of dict of int to ndarray of float64, shape (n_steps, n_dp)
        What any transfer takes beyond ordinary ones, seconds by node, one dict a block.
    slow : SlowPlaces
        Where it lies, if it lies anywhere.
    """

    def find(self) -> None:
        """Find what transfers take beyond that of ordinary ones; where it lies on slow places, what is elsewhere is ordinary."""
        observed, measured = self.job.observed, self.job.breakdown.transfers
        self.excess_s = [excess for excess, _ in measured]
        spreads = [spread for _, spread in measured]
        slow = find_slow_places(observed, self.excess_s, spreads, self.job.n_stages)
        rings = find_rings(observed, self.job.n_stages)
        self.slow = add_rings(slow, rings, observed, self.excess_s, spreads)
        self.own_s = self.excess_s
        self.wait_s = self.job.breakdown.transfer_wait_s
        if self.slow.found:
            self.own_s = [restrict(o, excess, self.slow) for o, excess in zip(observed, self.excess_s, strict=True)]
            if self.wait_s is not None:
                left = [o.block.nodes.stage[[*excess]] for o, excess in zip(observed, self.own_s, strict=True)]
                stages = np.arange(self.wait_s.shape[1]) % self.job.n_stages
                self.wait_s = self.wait_s * np.isin(stages, np.concatenate(left))[:, None, None, None]


def find_waits_inside(
    observed: Sequence[Observed], excesses: Sequence[Mapping[int, Seconds]], shape: tuple[int, ...], n_stages: int
) -> Seconds | None:
    """Say by how much computes are longer as collectives that they wait for within take longer than ordinary ones.

    Where each layer's parameters are gathered anew, a compute gets longer by a part of that: all of it, or none where reductions
    run beside it. The part is the slope, over steps, for each stage and direction. `excesses` are as `transfer_excess` has them, by
    block. Axes as in `Breakdown`; None where none is.
    """
    anew = [are_gathered_anew(o.block.nodes) for o in observed]
    if not any(of_block.any() for of_block in anew):
        return None
    longer: list[dict[int, Seconds]] = [{} for _ in observed]  # what collectives inside take too long, by compute
    both, square = np.zeros((2, len(DIRECTIONS), n_stages))
    for o, of_block, excess, by_node in zip(observed, anew, excesses, longer, strict=True):
        # Who waits for other ranks within was cut to its work; the last of them waits for none.
        ends_s = np.broadcast_to(o.block.end_s.max(axis=2, keepdims=True), o.block.end_s.shape)
        for node, inside in find_collectives_inside(dataclasses.replace(o.block, end_s=ends_s), of_block).items():
            late = [excess[one] for one in inside.tolist() if one in excess]
            if late:
                by_node[node] = np.broadcast_to(sum(late), o.block.start_s[node].shape).max(axis=1, keepdims=True)
                late_s = by_node[node][:, 0] - by_node[node].mean()
                took_s = median(np.broadcast_to(o.own[node], o.block.start_s[node].shape), axis=1)
                at = DIRECTION_OF[int(o.block.nodes.op[node])], int(o.block.nodes.stage[node])
                both[at] += late_s @ took_s
                square[at] += late_s @ late_s
    part = np.clip(np.divide(both, square, out=np.zeros_like(both), where=square > 0), 0.0, 1.0)
    for o, by_node in zip(observed, longer, strict=True):
        for node, late_s in by_node.items():
            of_node = part[DIRECTION_OF[int(o.block.nodes.op[node])], int(o.block.nodes.stage[node])]
            by_node[node] = np.minimum(of_node * late_s, np.maximum(o.own[node], 0.0))
    return gather_seconds(observed, longer, shape, n_stages) if part.any() else None


def transfer_excess(
    o: Observed,
    observed: Sequence[Observed],
    between_hosts: Bools | None = None,
    in_rings_s: Mapping[int, Seconds] = types.MappingProxyType({}),
) -> tuple[dict[int, Seconds], dict[int, float]]:
    """Say how much longer than on an ordinary link, or in ordinary steps, each transfer took; only where it stands out.

    A schedule that changes when most links get slow leaves nothing ordinary in the block of the slow ones: that is then learned
    from all blocks, `observed`. `between_hosts`, shape (n_stages, n_dp), says which links, by their first stages, are between
    hosts: these are slower than those within one by nature, and each other's equals. None: nobody knows. `in_rings_s` is what
    collectives take longer by a slow link of their ring.

    Returns
    -------
    excess_s : dict of int to ndarray of float64, shape (n_steps, n_dp)
        Seconds by node.
    spread_s : dict of int to float
        How far the upper end of ordinary ones is above the usual, seconds by node.
    """
    found: dict[int, Seconds] = {}
    spread_s: dict[int, float] = {}
    slow_links: dict[int, float] = {}  # how many times as long the slow links of a stage take
    step_s = float(np.mean(o.block.step_ends_s))
    of_types, awaited = _list_transfers(o), o.find_awaited()
    least: dict[Op, _Ordinary] = {}
    slow_groups = _list_slow_groups(o, of_types)
    for op, by_stage, lanes in _split_by_hosts(o, of_types, between_hosts):
        sampled = _sample_groups(o, by_stage) if op in DP_COLLECTIVES else _sample(o, by_stage, lanes)
        places = list(by_stage.items())
        group_s: dict[int, float] = {}
        if op in DP_COLLECTIVES:
            places, group_s = _list_collectives(by_stage, sampled, slow_links)
        equals = _measure_ordinary(
            list(sampled.values()), most_slow=op in P2P and _touch_most(o, by_stage, slow_groups)
        )
        if op in P2P and len(sampled) == o.block.n_dp == 1:
            equals = _ask_other_way(o, equals, of_types, op)
        if op in P2P and len(observed) > 1:
            equals = _ask_others(equals, sampled, lanes, [other for other in observed if other is not o], op)
        # Links between hosts come first: none within one is slower by nature.
        equals = least[op] = min(equals, least.get(op, equals), key=lambda ordinary: ordinary.usual_s)
        for stage, at in places:
            ordinary, through = equals, None
            if op in DP_COLLECTIVES:
                (through,) = _through(o, at)
                ordinary = _measure_group(through, group_s[int(at[0])], equals, slow_links.get(stage))
            usual, top = ordinary.usual_s, ordinary.top_s
            slow_level = ordinary.slow_s + SLOW_LEVEL_SHARE * step_s
            slow_step = max(slow_level, top)
            far = SLOW_TRANSFER_RATIO if op in P2P else SLOW_COLLECTIVE_RATIO
            longest = max(min(far * top, ordinary.far_s), top + SLOW_TRANSFER_SHARE * step_s)
            own = take(o.own, at)
            own[..., ~lanes[stage]] = 0.0
            level = _measure_level(own, awaited[at], slow_step)
            slow = level > slow_level
            if ordinary.stretch is not None:
                slow |= ordinary.stretch[:, None]
                level = np.where(ordinary.stretch[:, None], np.maximum(level, own.max(axis=0)), level)
            if not slow.any() and not (own > longest).any():
                continue
            if op in P2P and usual > 0 and _is_of_few_ranks(slow[:, lanes[stage]]):
                slow_links[stage] = max(slow_links.get(stage, 0.0), float(median(level[slow])) / usual)
            spread = max(top - usual, LEAST_SPREAD_SHARE * step_s)
            for node, seconds in zip(at.tolist(), own, strict=True):
                excess = np.where(_are_late(o, node, seconds, longest), seconds - usual, 0.0)
                excess = np.where(slow, np.maximum(excess, np.minimum(level, seconds) - usual), excess)
                if through is not None:
                    excess = _exceed_together(excess, seconds, through, ordinary)
                excess = _recorded(o, node, np.maximum(excess, 0.0))
                if excess.any():
                    found[node] = excess + found.get(node, 0.0)
                    spread_s[node] = max(spread, spread_s.get(node, 0.0))
    for node, seconds in in_rings_s.items():
        found[node] = np.maximum(found.get(node, 0.0), _recorded(o, node, seconds))
        spread_s.setdefault(node, LEAST_SPREAD_SHARE * step_s)
    return found, spread_s


def _are_late(o: Observed, node: int, seconds: Seconds, longest_s: float) -> Bools:
    """Mark where transfers take longer, (n_steps, n_dp); messages by more than their share of a card beside collectives."""
    nodes, end_s, late = o.block.nodes, o.block.end_s[node], np.asarray(seconds > longest_s)
    if nodes.op[node] not in P2P or not late.any():
        return late
    beside_s, groups = np.zeros(seconds.shape), o.find_groups()
    for stage in np.unique(nodes.stage[o.graph.members_of(node)]).tolist():
        at = groups[nodes.stage[groups] == stage]
        group_end_s, took_s = o.block.end_s[at], take(o.own, at)
        both_s = np.minimum(end_s, group_end_s) - np.maximum(end_s - seconds, group_end_s - took_s)
        beside_s = np.maximum(beside_s, np.maximum(both_s, 0.0).sum(axis=0))
    return late & (seconds - CARD_SHARE * np.minimum(beside_s, seconds) > longest_s)


def _list_collectives(
    by_stage: Mapping[int, Ints], sampled: Mapping[int, Seconds], slow_links: Collection[int]
) -> tuple[list[tuple[int, Ints]], dict[int, float]]:
    """List collectives of one type as places of their own, each with its stage; and say what those of its equals take, by node.

    All members move together: a stage's group is one place. Those of a stage, one after the other, have buffers of their own sizes:
    the same one of other stages is its equal. Where most take far longer than the quickest one, that is the equal of those whose
    stage has a slow link: through slow cards most groups may be slow.
    """
    group_s: dict[int, float] = {}
    for i in range(max(len(at) for at in by_stage.values())):
        there = {stage: int(at[i]) for stage, at in by_stage.items() if i < len(at)}
        seconds = np.array([float(nan_median(sampled[stage][i], axis=(0, 1))) for stage in there])
        usual, quickest = float(lower_median(seconds)), float(seconds.min())
        by_cards = quickest if usual > GROUPS_DIFFER_RATIO * quickest else usual
        group_s |= {node: by_cards if stage in slow_links else usual for stage, node in there.items()}
    return [(stage, at[i : i + 1]) for stage, at in by_stage.items() for i in range(len(at))], group_s


def _exceed_together(excess: Seconds, seconds: Seconds, through: Seconds, ordinary: "_Ordinary") -> Seconds:
    """Say what members of a collective take beyond an ordinary one, shape (n_steps, n_dp), where most exceed it: all of them.

    Who leaves a slow one before most others is in it all the same. A member usually takes longer than the quickest, after which
    ordinary ones are named: as it does where `through`, shape (n_steps,), how long the collective took at least, is ordinary.
    """
    of_members = nan_median(np.where(through[:, None] <= ordinary.top_s, seconds, np.nan), axis=(0, 1))
    usual = min(max(ordinary.usual_s, float(np.nan_to_num(of_members))), ordinary.top_s)
    taken = np.where(median(excess, axis=1)[:, None] > 0, seconds, np.where(excess > 0, excess + ordinary.usual_s, 0.0))
    return np.asarray(taken - usual)


def _list_slow_groups(o: Observed, by_type: Mapping[int, Mapping[int, Ints]]) -> set[int]:
    """List the stages whose collectives take far longer than those of most others do, as through a slow card."""
    found = set[int]()
    for op in DP_COLLECTIVES:
        group_s = {
            stage: float(nan_median(s, axis=(0, 1, 2)))
            for stage, s in _sample_groups(o, by_type.get(int(op), {})).items()
        }
        usual = lower_median(np.array([*group_s.values()])) if group_s else 0.0
        found |= {stage for stage, seconds in group_s.items() if seconds > GROUPS_DIFFER_RATIO * usual > 0}
    return found


def _touch_most(o: Observed, by_stage: Mapping[int, Ints], slow_groups: Collection[int]) -> bool:
    """Say whether nearly all links that transfers of one type take, by the stage they end at, have an end in a slow group."""
    nodes, n_stages = o.block.nodes, int(o.block.nodes.stage.max()) + 1
    others = [
        stage + (1 if nodes.op[at[0]] in (Op.FORWARD_SEND, Op.BACKWARD_RECV) else -1) for stage, at in by_stage.items()
    ]
    touch = [
        stage in slow_groups or other % n_stages in slow_groups for stage, other in zip(by_stage, others, strict=True)
    ]
    return sum(touch) > (1.0 - FEW_AWAY_SHARE) * len(touch)


def _sample_groups(o: Observed, by_stage: Mapping[int, Ints]) -> dict[int, Seconds]:
    """Take the times of collectives of some steps: shape (n_nodes, n_steps, 1) for each stage."""
    found = dict[int, Seconds]()
    for stage, at in by_stage.items():
        through = _through(o, at)
        sampled = through[:, :: stride_of(o.block.start_s[0])]
        none = np.isnan(sampled).all(axis=1, keepdims=True)
        found[stage] = np.where(none, nan_median(through, axis=1, keepdims=True), sampled)[..., None]
    return found


def _through(o: Observed, at: Ints) -> Seconds:
    """Say how long collectives took at least: for who waits for the last to begin where that one may find there all it needs.

    Shape (n_nodes, n_steps); NaN where all rows were lost, but not in all steps: what stands for them says nothing.
    """
    start_s, own = o.block.start_s[at], take(o.own, at)
    if o.block.filled is not None:
        gone = o.block.filled[at]
        own = np.where(gone & ~gone.all(axis=(1, 2), keepdims=True), np.nan, own)
    is_last = start_s == start_s.max(axis=2, keepdims=True)
    is_last &= ~is_last.all(axis=2, keepdims=True)
    of_all, of_others = np.fmin.reduce(own, axis=2), np.fmin.reduce(np.where(is_last, np.nan, own), axis=2)
    finds_all = (of_all < FINDS_ALL_SHARE * of_others).mean(axis=1, keepdims=True) > FINDS_ALL_OFTEN
    return np.asarray(np.where(finds_all, of_others, of_all))


def _recorded(o: Observed, node: int, excess: Seconds) -> Seconds:
    """Leave out what was filled in at all ends: any end that was recorded says how long all of them took."""
    if o.block.filled is None:
        return excess
    gone = np.all(o.block.filled[o.graph.members_of(node)], axis=0)
    if o.graph.moves.across_dp[o.graph.starts_in[node]]:
        gone = np.all(gone, axis=1, keepdims=True)
    return np.where(gone, 0.0, excess)


def _is_of_few_ranks(slow: Bools) -> bool:
    """Say whether a link that is slow in some steps, shape (n_steps, n_dp), is so on few dp ranks: noise is on all alike."""
    n_slow = slow.sum(axis=0)
    usual = int(np.sort(n_slow)[(len(n_slow) - 1) // 2])
    return bool(n_slow.max() > (FEW_RANKS_RATIO * usual if len(n_slow) > 1 else 0))


def _split_by_hosts(
    o: Observed, by_type: Mapping[int, dict[int, Ints]], between_hosts: Bools | None
) -> Iterator[tuple[Op, dict[int, Ints], dict[int, Bools]]]:
    """Give the nodes of each type by stage, and the dp ranks, (n_dp,), of each stage: of links between hosts, then of others."""
    pairs = o.find_pairs()
    link_of = np.full(len(o.block.nodes), -1)
    link_of[pairs] = ways_of(o.block.nodes, pairs)[0][:, None]
    for op in (*P2P, *DP_COLLECTIVES, Op.EMBEDDING, Op.CLIP, Op.LAYERNORM):
        by_stage = by_type.get(int(op), {})
        kinds = [np.ones((1, o.block.n_dp), dtype=bool)]
        if op in P2P and between_hosts is not None:
            kinds = [between_hosts, ~between_hosts]
        for kind in kinds:
            of_kind = {stage: at[kind[link_of[at] % len(kind)].any(axis=1)] for stage, at in by_stage.items()}
            of_kind = {stage: at for stage, at in of_kind.items() if len(at)}
            if of_kind:
                yield op, of_kind, {s: kind[link_of[at] % len(kind)].any(axis=0) for s, at in of_kind.items()}


def _list_transfers(o: Observed) -> dict[int, dict[int, Ints]]:
    """List the nodes by type and stage, in the order in which they move."""
    op, stage, completes = o.block.nodes.op, o.block.nodes.stage, o.graph.moves.completes.flat
    moves = ~of_types(op, P2P)
    moves[o.find_pairs()] = True  # what an outer model chunk records moves nothing
    nodes = completes[moves[completes]]
    nodes = nodes[np.lexsort((stage[nodes], op[nodes]))]
    found: dict[int, dict[int, Ints]] = {}
    apart = (np.diff(op[nodes]) != 0) | (np.diff(stage[nodes]) != 0)
    for of_place in np.split(nodes, np.flatnonzero(apart) + 1) if len(nodes) else ():
        found.setdefault(int(op[of_place[0]]), {})[int(stage[of_place[0]])] = of_place
    return found


def _sample(o: Observed, by_stage: Mapping[int, Ints], lanes: Mapping[int, Bools]) -> dict[int, Seconds]:
    """Take the times of transfers of some steps, own ones where recorded: shape (n_nodes, n_steps, n_dp) for each stage.

    Where those that were awaited take longer only these count, and of the others NaN is left: a part of these was over before.
    """
    steps = slice(None, None, stride_of(o.block.start_s[0]))
    least, are_awaited = _least_through(o) if o.are_derived else {}, o.find_awaited()
    found, awaited = dict[int, Seconds](), dict[int, Seconds]()
    for stage, at in by_stage.items():
        if stage not in lanes:
            continue
        seconds = np.stack([least.get(n, o.own[n])[steps] for n in at.tolist()]) if least else take(o.own, at, steps)
        found[stage], of_stage = seconds[..., lanes[stage]], are_awaited[at, steps][..., lanes[stage]]
        of_stage = of_stage & (of_stage.sum(axis=(0, 1)) >= MIN_IN_STEP)
        awaited[stage] = np.where(of_stage, found[stage], np.nan)
    usual = [[nan_median(s, axis=(0, 1)) for s in kind.values()] for kind in (found, awaited)]
    of_all, of_awaited = (lower_median(np.concatenate([*of_kind, [np.nan]])) for of_kind in usual)
    return awaited if of_awaited > of_all else found


def _measure_level(own: Seconds, awaited: Bools, slow_step: float) -> Seconds:
    """Say what transfers of a place usually take, (n_steps, n_dp): in all steps, or in each that is slow and has enough of them."""
    steps = slice(None, None, stride_of(own[0]))
    level = _take_usual(own[:, steps], awaited[:, steps], axis=(0, 1))
    level = np.broadcast_to(level, own.shape[1:])
    if len(own) >= MIN_IN_STEP and (own > slow_step).any():
        in_step = _take_usual(own, awaited, axis=0)
        level = np.where(in_step > slow_step, np.maximum(level, in_step), level)
    return level


def _take_usual(seconds: Seconds, awaited: Bools, axis: int | tuple[int, ...]) -> Seconds:
    """Take medians of transfers, or of those that were awaited where these take longer and are enough to say something."""
    enough = awaited & (awaited.sum(axis=axis, keepdims=True) >= MIN_IN_STEP)
    of_awaited = nan_median(np.where(enough, seconds, np.nan), axis=axis)
    return np.asarray(np.fmax(of_awaited, median(seconds, axis=axis)))


def _least_through(o: Observed) -> dict[int, Seconds]:
    """Say how long the quickest transfer of the same way and step was under way, seconds of shape (n_steps, n_dp) by node.

    A derived transfer that was there before its worker asked for it takes no time, and one that waits for something else of its
    worker takes that long: the quickest of all takes what a transfer takes.
    """
    pairs, found = o.find_pairs(), dict[int, Seconds]()
    for _, rows in rows_of_ways(o, pairs):
        least_s = o.through(pairs[rows]).min(axis=0)
        found.update((node, least_s) for node in pairs[rows].ravel().tolist())
    return found


def _ask_others(
    own: "_Ordinary",
    sampled: Mapping[int, Seconds],
    lanes: Mapping[int, Bools],
    others: Sequence[Observed],
    op: Op,
) -> "_Ordinary":
    """Take what is ordinary in all blocks where that is far below what is ordinary in one: nothing is in that one.

    Other blocks count that have as many transfers on each stage.
    """
    shapes = {stage: len(s) for stage, s in sampled.items()}
    of_others = [_sample(other, _list_transfers(other).get(int(op), {}), lanes) for other in others]
    together = [also for also in of_others if {stage: len(s) for stage, s in also.items()} == shapes]
    if not together:
        return own
    every = _measure_ordinary(
        [np.concatenate([s, *(also[stage] for also in together)], axis=1) for stage, s in sampled.items()]
    )
    return every if own.top_s > FAR_BLOCK_RATIO * every.top_s > 0 else own


def _ask_other_way(o: Observed, own: "_Ordinary", by_type: Mapping[int, Mapping[int, Ints]], op: Op) -> "_Ordinary":
    """Take what is ordinary on the quicker direction of the only link, where the other takes far longer: as much goes each way.

    Members of a batch end together, so those count that move alone.
    """
    batched = flatten(o.graph.list_batches())
    ways: list[Seconds] = []
    for way in (op, OTHER_WAY[op]):
        alone = {stage: at[~np.isin(at, batched)] for stage, at in by_type.get(way, {}).items()}
        lanes = {stage: np.ones(1, dtype=bool) for stage, at in alone.items() if len(at)}
        ways += _sample(o, alone, lanes).values()
    if len(ways) != 2:
        return own
    every = (0, 1, 2)
    quick, slow = sorted(ways, key=lambda seconds: float(nan_median(seconds, axis=every)))
    if nan_median(slow, axis=every) <= TWO_LEVELS_RATIO * max(nan_median(quick, axis=every), 0.0):
        return own
    return dataclasses.replace(_measure_place(quick), stretch=None)


#: This part of the step is still lost to transfers where contention does not explain them; generated contention alone leaves 0.003.
LEFT_SHARE = 0.02


@dataclasses.dataclass(frozen=True, slots=True)
class _Ordinary:
    """How long a transfer of one type takes where nothing is wrong, seconds."""

    #: `usual_s`, `top_s`: usually, and at most.
    usual_s: float
    top_s: float
    #: A place whose median is above is slow: beyond what places differ by.
    slow_s: float
    #: Steps, shape (n_steps,), in which the only place that it was measured on is slow, one after the other.
    stretch: Bools | None = None

    @property
    def far_s(self) -> float:
        """A single transfer that takes as long is far above the upper end, by how far that is above the usual."""
        return max(SLOW_STEP_RATIO * self.top_s, self.usual_s + FAR_TOPS * (self.top_s - self.usual_s))


def _measure_ordinary(by_stage: Sequence[Seconds], *, most_slow: bool = False) -> _Ordinary:
    """Measure transfers of one type on their places, which are equals: each of shape (n_nodes, n_steps, n_dp), NaN left out.

    Of several places the ordinary ones are in the middle, by their medians and by their upper ends apart: a link that flaps has the
    median of any other. Of few, or where slow cards may touch most (`most_slow`), the quick ones are, and of one place the shorter
    of two levels. Places without any value are none.
    """
    known = [s[..., ~np.isnan(s).all(axis=(0, 1))] for s in by_stage]
    by_stage = [s for s in known if s.size]
    quick = [_quick_steps(s) for s in by_stage]
    on_two_levels = np.concatenate(
        [(np.isnan(q) > np.isnan(s)).any(axis=(0, 1)) for q, s in zip(quick, by_stage, strict=True)]
    )
    if 2 * np.count_nonzero(on_two_levels) > len(on_two_levels):
        by_stage = quick  # the middle of the places is no longer ordinary; of a minority it still is
    medians = np.concatenate([nan_median(s, axis=(0, 1)) for s in by_stage])
    usual = float(lower_median(medians))
    may_be_most = most_slow or len(medians) <= FEW_PLACES
    if len(medians) > 1 and may_be_most and usual > TWO_LEVELS_RATIO * float(medians.min()) > 0:
        # A slow link makes its neighbours look slow: of few places most may be, but none looks quicker than it is.
        quickest = medians <= TWO_LEVELS_RATIO * medians.min()
        usual = float(lower_median(medians[quickest]))
        by_stage = [s[:, :, nan_median(s, axis=(0, 1)) <= TWO_LEVELS_RATIO * usual] for s in by_stage]
    if len(medians) == 1:
        return dataclasses.replace(_measure_place(by_stage[0]), stretch=None)  # of some steps only
    tops = np.concatenate([nan_quantile(s, HIGH_QUANTILE, axis=(0, 1)) for s in by_stage])
    usual = max(usual, 0.0)
    top = max(usual, float(lower_median(tops)))
    slow = SLOW_LINK_RATIO * usual
    if len(medians) > FEW_PLACES:
        between = max(usual - float(np.quantile(medians, LOW_QUANTILE)), 0.0) / HALF_SPREAD_TO_SIGMA
        n_seconds = median(np.concatenate([np.isfinite(s).sum(axis=(0, 1)) for s in by_stage]))
        within = (top - usual) / HIGH_QUANTILE_TO_SIGMA / np.sqrt(n_seconds)
        slow = min(slow, usual + max(TOP_DEVIATIONS * float(np.hypot(between, within)), LEAST_SLOW_SHARE * usual))
    return _Ordinary(usual, top, slow)


def _measure_place(seconds: Seconds) -> _Ordinary:
    """Measure transfers of one type on their only place, shape (n_nodes, n_steps, 1) or (n_steps,): by the lower of two levels.

    Levels are told by the times, or by how their medians go from step to step.
    """
    seconds = seconds.reshape(-1, len(seconds) if seconds.ndim == 1 else seconds.shape[1])  # (n_nodes, n_steps)
    row = seconds[np.isfinite(seconds)]
    by_step = nan_median(seconds, axis=0)
    known = np.isfinite(by_step)
    slow = np.zeros(len(by_step), dtype=bool)
    slow[known] = upper_stretch(np.sqrt(np.maximum(by_step[known], 0.0)))
    if not slow.any() or nan_median(by_step[slow], axis=0) <= SLOW_STEP_RATIO * nan_median(by_step[~slow], axis=0):
        slow[:] = False
    upper = upper_level(row)
    if upper.any():
        row = row[~upper]
    elif slow.any():
        row = seconds[:, ~slow][np.isfinite(seconds[:, ~slow])]
    usual = max(float(median(row)), 0.0)
    sigma = max(usual - float(np.quantile(row, LOW_QUANTILE)), 0.0) / HALF_SPREAD_TO_SIGMA
    top = usual + TOP_DEVIATIONS * sigma
    return _Ordinary(usual, top, SLOW_LINK_RATIO * usual, slow if slow.any() else None)


def _measure_group(seconds: Seconds, group_s: float, equals: _Ordinary, link_ratio: float | None) -> _Ordinary:
    """Measure a collective of one stage, shape (n_steps,), against itself, unless it takes far longer than those of other stages.

    Stages have buffers of different sizes, so how long a group takes says nothing by itself; one usually takes `group_s`. But where
    a link of the stage takes as many times as long, it is one card.
    """
    own = _measure_place(seconds)
    ratio = own.usual_s / group_s if group_s > 0 else 1.0
    is_card = link_ratio is not None and link_ratio / ALIKE_RATIO < ratio < link_ratio * ALIKE_RATIO
    if ratio > GROUPS_DIFFER_RATIO or is_card:
        return equals
    return dataclasses.replace(own, slow_s=max(own.slow_s, own.top_s))


def _quick_steps(seconds: Seconds) -> Seconds:
    """Leave out the slow steps of places that are on two levels over the steps, NaN in their stead: the quick ones are ordinary.

    Where transfers block, a slow link makes its neighbours look slow, and of few links most are then slow together.
    """
    if seconds.shape[1] < 2 * MIN_IN_STEP:
        return seconds
    by_step = nan_median(seconds, axis=0)  # (n_steps, n_dp)
    by_step = np.where(np.isnan(by_step), nan_median(by_step, axis=0), by_step)
    logs = np.log(np.maximum(by_step, TINY_S))
    slow = upper_level(logs.T).T
    low, high = (nan_median(np.where(at, by_step, np.nan), axis=0) for at in (~slow, slow))
    apart = (low > 0) & (high > TWO_LEVELS_RATIO * low)
    return np.where((slow & apart)[None], np.nan, seconds) if apart.any() else seconds


def stride_of(seconds: Seconds) -> int:
    """Say which steps of an array (n_steps, n_dp) are looked at for a median."""
    return -(-int(seconds.shape[0]) // MAX_LINK_STEPS)


def _are_held_up(features: Features, explained: Collection[str]) -> bool:
    """Say whether transfers are slow for what slows their workers, or for the contention that computes wait for, too.

    Without contention nothing is lost to the transfers that it holds up; what is still lost then has another reason.
    """
    by_worker, left = features.get("network.by_slow_worker"), features.get("last.transfer")
    is_left = left is not None and (left.value or 0.0) >= LEFT_SHARE
    return ("queue" in explained and not is_left) or (
        "worker" in explained and by_worker is not None and by_worker.value == 1.0
    )


COMPONENT = Component("transfer", TransferPart, traits=Traits(whom="links", is_excused=_are_held_up))
