"""Say where slow transfers are: on which links, one direction of them, at which cards, in which groups; and whether that repeats.

Enters: observed blocks, and what each transfer took beyond ordinary ones. Leaves: `SlowPlaces`. Costs a few passes over the
communication. Seconds say where, not how many transfers. What is random hits other places in other steps: places are chosen by half
of the steps and must hold the lost seconds of the other half.
"""

import dataclasses
from collections.abc import Iterable, Iterator, Mapping, Sequence

import numpy as np

from diagnose.model.optype import DP_COLLECTIVES, Op, of_types
from diagnose.model.trace import Bools, Ints, Nodes, Seconds
from diagnose.model.transfers import SlowPlaces
from diagnose.numerics.period import keeps_interval
from diagnose.numerics.robust import lower_median, median, upper_level, upper_stretch, weighted_median
from diagnose.whatif.levels import OfNodes
from diagnose.whatif.observed import Observed
from diagnose.whatif.rings import Rings

#: A place is slow if it loses so many times the seconds that a quarter of its equals stay below: noise is on all of them.
OVER_EQUALS_RATIO = 3.0
EQUALS_QUANTILE = 0.25
#: ... and so many standard deviations above that, of what its equals lose in all steps together.
CHANCE_DEVIATIONS = 4.0
#: ... and this part of the seconds of the worst one of its kind, or of any kind.
BESIDE_WORST_SHARE = 0.2
BESIDE_ANY_SHARE = 0.02
#: A place is not worth mending that loses less than this part of the step, beside one that loses five times as much.
WORTH_SHARE = 0.01
#: Places are named where, chosen by half of the steps, they have this part of the lost seconds of the other half, beyond chance.
REPEATS_FROM = 0.5
#: So many standard deviations of chance are taken off: with a whole one real slow links of a few steps are in doubt (0.96 became
#: 0.69), with a half 7 of 80 made jobs whose messages are late together have a sure link, where transfers by themselves gave 16.
LUCK = 0.5
#: Of fewer slow transfers nobody can tell whether they repeat.
FEW_TRANSFERS = 6.0
#: In one place alone, transfers that get stuck are told from noise only where no larger part is slow.
SELDOM_SHARE = 0.15
#: A few stuck transfers are one fault's where one place has this part of the lost seconds.
IN_ONE_PLACE_SHARE = 0.8
#: ... and a link or a group is named, and no card, where it has this part of what all that touches the worker has.
ALL_OF_CARD_SHARE = 0.97
#: Steps that have this part of the lost seconds have them all.
NEARLY_ALL_SHARE = 0.95
#: Nothing is learned from a half of the steps that has less than this part of the lost seconds: beside a single late step it has
#: the ordinary ones alone (9% on a busy host), of two alike steps the other one.
MIN_HALF_SHARE = 0.15
#: So many slow transfers must be expected of a direction before that none is slow clears it.
MIN_EXPECTED = 5.0
#: A link is cleared where its transfers, alone in their batches, lose less than this part of what those of a link beside it do; and
#: a direction of a link beside the other one.
CLEARED_SHARE, CLEARED_WAY_SHARE = 0.2, 0.1
#: A slow link is slow for all that it moves. Where what its quickest message of a step took explains less than this part of what
#: the late ones lost, and these are the same ones in this part of the slow steps, of so many at least, they wait for others.
THROUGH_SHARE, SAME_SHARE, MIN_SLOW_STEPS = 0.5, 0.8, 3
#: Slow transfers at more than this part of the workers have no place: what all share makes them slow, a busy host as well as noise.
MOST_CARDS_SHARE = 0.5
#: A step is slow for a link that loses this part of its mean, and the link is steadily slow where so many steps are from its first
#: slow one to the last.
SLOW_STEP_SHARE, STEADY_SHARE = 0.25, 0.8
#: Two links of a worker that are steadily slow are so by themselves, and not by its card, where one loses so many times what the
#: other does, or in this part of the slow steps, and so many, one alone is slow.
UNLIKE_RATIO, ONE_ALONE_SHARE, ONE_ALONE_STEPS = 1.5, 0.25, 3
#: Others are where they are so many times apart by so many standard errors.
UNLIKE_ERRORS = 4.0
#: Slow steps are one or a few stretches if there are at most this part of the stretches that chance would make.
STRETCHES_SHARE = 0.6


@dataclasses.dataclass(frozen=True, slots=True)
class _Lost:
    """Seconds beyond ordinary transfers by place and step."""

    #: Shape (2, n_stages, n_dp, n_steps): of links by their first stage, by direction: 0 as forwards go.
    ways: Seconds
    #: Shape (n_stages, n_steps): of the collectives of a stage's dp ranks.
    groups: Seconds
    #: Shape (2, n_stages, n_dp): where anything moves between two stages.
    exists: Bools
    #: Shape (n_stages,).
    has_group: Bools
    #: Shape (n_steps,): their numbers.
    steps: Ints
    #: Slow transfers and collectives, by their seconds: so many alike would have them.
    n_transfers: float
    #: Places in a step, by their seconds, likewise: what makes one transfer late there makes others late.
    n_cells: float
    #: Part of all transfers and collectives that is slow at all.
    slow_share: float
    #: Seconds beyond over the spread of ordinary transfers: half of the lost seconds are in transfers above it.
    apart: float | None
    #: Shape (n_collectives, n_steps): of each collective of a step, on all stages.
    collectives: Seconds | None = None
    #: The mean step.
    step_s: float = 0.0


def find_slow_places(
    observed: Sequence[Observed],
    excesses: Sequence[Mapping[int, Seconds]],
    spreads: Sequence[Mapping[int, float]],
    n_stages: int,
) -> SlowPlaces:
    """Find the places that slow transfers lie on.

    Parameters
    ----------
    observed : sequence of Observed
    excesses : sequence of dict of int to ndarray of float64, shape (n_steps, n_dp), one a block
        What transfers took beyond ordinary ones, seconds by node.
    spreads : sequence of dict of int to float, one a block
        How far the upper end of ordinary ones is above the usual, seconds by node.
    n_stages : int

    Returns
    -------
    SlowPlaces
        No place at all where slow transfers are anywhere at random.
    """
    lost = _add_up(observed, excesses, spreads, n_stages)
    by_step, n_dp = _sum_steps(lost), lost.ways.shape[2]
    nowhere = SlowPlaces.nowhere(n_stages, n_dp)
    if (of_all := _find_shared(lost, _sum_shared(observed, excesses), nowhere)) is not None:
        return of_all
    if not by_step.any():
        return nowhere
    waiting = _find_waiting(observed, excesses, n_stages)
    nowhere = dataclasses.replace(nowhere, steps_share=_share_of_steps(by_step))
    if waiting.any():
        lost = dataclasses.replace(lost, ways=np.where(waiting[..., None], 0.0, lost.ways))
    (ways, groups), in_time = _stand_out(lost, slice(None)), _repeat_steps(lost)
    by_place = _repeat_places(lost, by_step)
    victims = _find_victims(observed, excesses, ways, n_stages)
    if (by_place or 0.0) < REPEATS_FROM:
        # Where transfers block, one slow link may make all others look slow: see what is left without these.
        slow = lost.ways.sum(axis=-1) > BESIDE_WORST_SHARE * float(lost.ways.sum(axis=-1).max())
        held_up = _find_victims(observed, excesses, slow, n_stages)
        if 0 < np.count_nonzero(slow & ~held_up) <= np.count_nonzero(held_up):
            freed = dataclasses.replace(lost, ways=np.where(held_up[..., None], 0.0, lost.ways))
            without = _repeat_places(freed, _sum_steps(freed))
            if (without or 0.0) >= REPEATS_FROM:
                by_place, victims, (ways, groups) = without, held_up, _stand_out(freed, slice(None))
    if (by_place or 0.0) < REPEATS_FROM and (links := _repeat_rank(lost) or _repeat_links(lost, by_step)) is not None:
        (by_place, ways, groups), victims = links, np.zeros_like(ways)
    turns = _list_turns(lost, by_step) if (by_place or 0.0) < REPEATS_FROM else []
    in_turns = min((_repeat_places(turn, _sum_steps(turn)) or 0.0 for turn in turns), default=0.0)
    if in_turns >= REPEATS_FROM:
        every = [_stand_out(turn, slice(None)) for turn in turns]
        ways, groups = (np.logical_or.reduce(marked) for marked in zip(*every, strict=True))
        by_place, victims = max(in_turns, in_time), np.zeros_like(ways)
    if np.count_nonzero(_find_cards(ways & ~victims, groups, lost)) > MOST_CARDS_SHARE * n_dp * n_stages:
        by_place = 0.0
    repeats = max(by_place or 0.0, in_time)
    is_one_place = np.count_nonzero(lost.exists.any(axis=0)) + np.count_nonzero(lost.has_group) == 1
    if repeats < REPEATS_FROM and not is_one_place and lost.n_transfers >= FEW_TRANSFERS:
        return dataclasses.replace(nowhere, repeats=repeats)
    if repeats < REPEATS_FROM:
        # Nobody can tell whether they repeat: how far they are from all others must say that they are no noise.
        ways, groups, cards = (lost.exists, lost.has_group, nowhere.cards) if is_one_place else _find_worst(lost)
        held_s = float(lost.ways[ways].sum() + lost.groups[groups].sum())
        if lost.slow_share > SELDOM_SHARE or held_s < IN_ONE_PLACE_SHARE * float(by_step.sum()):
            return dataclasses.replace(nowhere, repeats=repeats)
        found = dataclasses.replace(nowhere, ways=ways, groups=groups, cards=cards, apart=lost.apart)
        return dataclasses.replace(found, mended_ways=ways.astype(float), mended_groups=groups.astype(float))
    if (by_place or 0.0) < REPEATS_FROM:
        shared = bool(lost.groups.sum() >= lost.ways.sum())
        ways, groups = lost.exists & (not shared), lost.has_group & shared
        return dataclasses.replace(
            nowhere,
            ways=ways,
            groups=groups,
            mended_ways=ways.astype(float),
            mended_groups=groups.astype(float),
            repeats=in_time,
            in_time=True,
            at_interval=keeps_interval(lost.steps, upper_level(by_step)),
        )
    mended_ways = np.where(ways | victims, _above_noise(lost.ways.sum(axis=-1), lost.exists, ways | victims), 0.0)
    mended_ways = np.maximum(mended_ways, waiting)
    mended_groups = groups * _above_noise(lost.groups.sum(axis=-1), lost.has_group, groups)
    ways &= ~victims
    cards = _find_cards(ways, groups, lost) | _find_quiet_cards(groups, lost)
    # All that goes through a slow card is slow, however little of it there is beside the worst.
    more_ways = (cards.T | np.roll(cards.T, -1, axis=0)) & lost.exists & ~ways
    more_groups = cards.any(axis=0) & lost.has_group & ~groups
    return _leave_out_little(
        dataclasses.replace(
            nowhere,
            ways=ways | more_ways,
            groups=groups | more_groups,
            cards=cards,
            are_told=bool(groups[cards.any(axis=0)].all()),
            mended_ways=np.maximum(mended_ways, more_ways),
            mended_groups=np.maximum(mended_groups, more_groups),
            repeats=by_place,
        ),
        lost,
    )


def add_rings(
    found: SlowPlaces,
    rings: Rings,
    observed: Sequence[Observed],
    excesses: Sequence[Mapping[int, Seconds]],
    spreads: Sequence[Mapping[int, float]],
) -> SlowPlaces:
    """Name the slow links and cards of rings of groups that are slow, too; all but `rings` as for `find_slow_places`.

    A ring tells its place also where all steps are slow, so that nothing else says that the group is.
    """
    if not rings.stages:
        return found
    slow = np.isin(np.arange(len(found.groups)), rings.stages)
    if not found.groups[slow].all():
        lost = _add_up(observed, excesses, spreads, len(slow))
        if lost.groups[slow].sum() < REPEATS_FROM * _sum_steps(lost).sum():
            return found
        found = SlowPlaces.nowhere(len(slow), found.cards.shape[0])
        found = dataclasses.replace(found, groups=slow, mended_groups=slow.astype(float))
    has_card, cards = np.asarray(found.cards.any(axis=0)), found.cards.copy()
    links = [link for link in rings.links if not has_card[link[0]]]
    for stage, dp in rings.cards:
        cards[dp, stage] |= not has_card[stage]
    return dataclasses.replace(
        found, rings=links, in_ring=True, cards=cards, repeats=max(found.repeats or 0.0, rings.share)
    )


def restrict(o: Observed, excess: Mapping[int, Seconds], places: SlowPlaces) -> dict[int, Seconds]:
    """Keep of what transfers took beyond ordinary ones only what lies on slow places and their victims; seconds by node.

    Operations of one batch end together, so all of a batch that goes through a slow place are kept.
    """
    nodes, found = o.block.nodes, dict[int, Seconds]()
    batch_of = {node: batch for batch in o.graph.list_batches() for node in batch}
    way_at = {node: way for pair, way in list_ways(o).items() for node in pair}
    has_card = places.cards.any()
    for node, seconds in excess.items():
        op, stage = int(nodes.op[node]), int(nodes.stage[node])
        if node in way_at:
            share = np.zeros(seconds.shape[-1])
            for other in batch_of.get(node, (node,)):
                if other in way_at:
                    link, direction = way_at[other]
                    share = np.maximum(share, places.mended_ways[direction, link])
            kept = share * seconds
        elif op in DP_COLLECTIVES:
            kept = places.mended_groups[stage] * seconds
        else:  # what a card shares with all or some others, or by itself
            whole = places.in_time or places.groups.all() or (op == Op.CLIP and has_card)
            ends = nodes.stage[o.graph.members_of(node)]
            kept = seconds if whole else np.where(places.cards[:, ends].any(axis=1), seconds, 0.0)
        if kept.any():
            found[node] = kept
    return found


def ways_of(nodes: Nodes, pairs: Ints) -> tuple[Ints, Ints]:
    """Name the links of pairs, shape (n_pairs, 2), by their first stages, and their directions: 0 as forwards go."""
    first, second = nodes.stage[pairs].T
    link = np.where(np.abs(first - second) == 1, np.minimum(first, second), np.maximum(first, second))
    return link, of_types(nodes.op[pairs[:, 0]], (Op.BACKWARD_SEND, Op.BACKWARD_RECV)).astype(np.int64)


def list_ways(o: Observed) -> dict[tuple[int, ...], tuple[int, int]]:
    """Name the way of each pair of a block: link and direction, as `ways_of` has them."""
    pairs = o.find_pairs()
    ways = zip(*(axis.tolist() for axis in ways_of(o.block.nodes, pairs)), strict=True)
    return dict(zip(zip(*pairs.T.tolist(), strict=True), ways, strict=True))


def rows_of_ways(o: Observed, pairs: Ints) -> Iterator[tuple[tuple[int, int], Ints]]:
    """Give each way of pairs, shape (n_pairs, 2), and which of them take it, in their order; ways as `ways_of` has them."""
    link, direction = ways_of(o.block.nodes, pairs)
    key = 2 * link + direction
    order = np.argsort(key, kind="stable")
    begins = np.flatnonzero(np.diff(key[order], prepend=-1))
    for rows in np.split(order, begins[1:]) if len(order) else ():
        yield (int(link[rows[0]]), int(direction[rows[0]])), rows


def pair_seconds(o: Observed, seconds: Mapping[int, Seconds] | OfNodes) -> tuple[Ints, Seconds]:
    """Say what the message of each pair took of these seconds by node; pairs that took none are left out.

    A member of a batch ends with the batch, so of two ends the one that took less says it. But a send that fits into a buffer is
    over before its message is there: a recv says when that was, unless something else of its batch may have ended later, or its
    worker stood still, which makes one message late and not half of those of its step and way.

    Returns
    -------
    rows : ndarray of int64, shape (n_found,)
        Where in `Observed.find_pairs` these pairs are, rising.
    took_s : ndarray of float64, shape (n_found, n_steps, n_dp)
    """
    pairs, n_nodes = o.find_pairs(), len(o.block.nodes)
    recvs = pairs[:, 1]
    has = np.ones(n_nodes, dtype=bool)
    if isinstance(seconds, Mapping):
        has = np.zeros(n_nodes, dtype=bool)
        has[[*seconds]] = True
    beside, alone = _recvs_beside(o, pairs, recvs)
    alone &= has[recvs] & (not o.are_derived)
    both = np.all(has[pairs], axis=1)
    rows, found = [np.zeros(0, dtype=np.int64)], [np.zeros((0, *o.block.start_s.shape[1:]))]
    for _, of_way in rows_of_ways(o, pairs):
        told, by_one = both[of_way], alone[of_way]
        if not (told | by_one).any():
            continue
        took = np.zeros((len(of_way), *found[0].shape[1:]))
        if told.any():
            took[told] = np.minimum(*(_take(seconds, ends) for ends in pairs[of_way[told]].T))
        by_recv = took.copy()
        if by_one.any():
            by_recv[by_one] = _take(seconds, recvs[of_way[by_one]])
        for other in beside[of_way].T:
            # What it sent in this batch was there, at the latest, when the recv of that was over.
            at = np.flatnonzero(by_one & (other >= 0))
            later = o.block.end_s[other[at]] >= o.block.end_s[recvs[of_way[at]]]
            by_recv[at] = np.where(later, took[at], by_recv[at])
        took = np.maximum(took, np.minimum(by_recv, lower_median(by_recv, axis=0)))
        some = took.any(axis=(1, 2))
        rows.append(of_way[some])
        found.append(took[some])
    every = np.concatenate(rows)
    order = np.argsort(every)
    return every[order], np.concatenate(found)[order]


def _recvs_beside(o: Observed, pairs: Ints, recvs: Ints) -> tuple[Ints, Bools]:
    """Find the other recvs of what was launched in one batch with each recv: shape (n_pairs, n_most), -1 for none.

    And say which recvs are the only ones of their batches.
    """
    recv_of = np.full(len(o.block.nodes), -1)
    recv_of[pairs] = recvs[:, None]
    moves = o.graph.moves
    batches = moves.completes.take(np.flatnonzero(moves.awaits.lengths))
    batch_of = np.full(len(o.block.nodes), -1)
    batch_of[batches.flat] = batches.row_of()
    beside = np.full((len(pairs), int(batches.lengths.max(initial=0))), -1)
    for column in range(beside.shape[1]):
        has = np.flatnonzero((batch_of[recvs] >= 0) & (np.append(batches.lengths, 0)[batch_of[recvs]] > column))
        member = batches.flat[batches.begin[batch_of[recvs[has]]] + column]
        beside[has, column] = np.where(member == recvs[has], -1, recv_of[member])
    own = np.where(batch_of < 0, -2, batch_of)[recvs]
    return beside, ~np.any((beside >= 0) & (batch_of[beside] == own[:, None]), axis=1)


def _take(seconds: Mapping[int, Seconds] | OfNodes, nodes: Ints) -> Seconds:
    """Give the seconds of some nodes, shape (n_nodes, n_steps, n_dp)."""
    return seconds[nodes] if isinstance(seconds, np.ndarray) else np.array([seconds[node] for node in nodes.tolist()])


def _add_up(
    observed: Sequence[Observed],
    excesses: Sequence[Mapping[int, Seconds]],
    spreads: Sequence[Mapping[int, float]],
    n_stages: int,
) -> _Lost:
    """Add up the lost seconds by place and step."""
    n_dp, n_steps = observed[0].block.n_dp, sum(len(o.block.steps) for o in observed)
    ways, groups = np.zeros((2, n_stages, n_dp, n_steps)), np.zeros((n_stages, n_steps))
    exists, has_group = np.zeros((2, n_stages, n_dp), dtype=bool), np.zeros(n_stages, dtype=bool)
    first, n_all, every, apart = 0, 0, [np.zeros(0)], [np.zeros(0)]
    collectives: dict[tuple[int, int], Seconds] = {}
    for o, excess, spread in zip(observed, excesses, spreads, strict=True):
        nodes, at = o.block.nodes, slice(first, first + len(o.block.steps))
        first = at.stop
        pairs = o.find_pairs()
        link, direction = ways_of(nodes, pairs)
        n_all += n_dp * len(o.block.steps) * len(pairs)
        exists[direction, link] = True
        rows, lost_s = pair_seconds(o, excess)
        np.add.at(ways[..., at], (direction[rows], link[rows]), lost_s.swapaxes(1, 2))
        every.append(lost_s[lost_s > 0])
        spread_s = np.array([spread[recv] for recv in pairs[rows, 1].tolist()])
        apart.append(every[-1] / np.repeat(spread_s, np.count_nonzero(lost_s > 0, axis=(1, 2))))
        for node in o.find_groups().tolist():
            has_group[nodes.stage[node]] = True
            n_all += len(o.block.steps)
            of_kind = collectives.setdefault((int(nodes.op[node]), int(nodes.seq[node])), np.zeros(n_steps))
            if node in excess:  # all members move together: one that ends late for itself is no slow group
                seconds = median(excess[node], axis=1)
                groups[nodes.stage[node], at] += seconds
                of_kind[at] += seconds
                every.append(seconds[seconds > 0])
                apart.append(every[-1] / spread[node])
    seconds_s = np.concatenate(every)
    n_transfers, n_cells = (_count_alike(of) for of in (seconds_s, np.concatenate([ways.ravel(), groups.ravel()])))
    slow_share = len(seconds_s) / max(n_all, 1)
    steps = np.concatenate([o.block.steps for o in observed])
    far = weighted_median(np.concatenate(apart), seconds_s)
    by_kind = np.array([collectives[kind] for kind in sorted(collectives)]).reshape(-1, n_steps)
    step_s = float(np.mean(np.concatenate([o.block.step_ends_s for o in observed])))
    return _Lost(ways, groups, exists, has_group, steps, n_transfers, n_cells, slow_share, far, by_kind, step_s)


def _count_alike(seconds: Seconds) -> float:
    """Say how many that are all alike would vary as little as these."""
    return float(seconds.sum() ** 2 / max(float((seconds**2).sum()), np.finfo(float).tiny))


def _sum_steps(lost: _Lost) -> Seconds:
    """Add up the lost seconds of each step, shape (n_steps,)."""
    return np.asarray(lost.ways.sum(axis=(0, 1, 2)) + lost.groups.sum(axis=0))


def _sum_shared(observed: Sequence[Observed], excesses: Sequence[Mapping[int, Seconds]]) -> Seconds:
    """Add up what collectives of all workers lost in each step, shape (n_steps,): those that clip gradients."""
    found = [np.zeros(0)]
    for o, excess in zip(observed, excesses, strict=True):
        clips = [median(seconds, axis=1) for node, seconds in excess.items() if o.block.nodes.op[node] == Op.CLIP]
        found.append(np.max(clips, axis=0) if clips else np.zeros(len(o.block.steps)))
    return np.concatenate(found)


def _find_shared(lost: _Lost, shared_s: Seconds, nowhere: SlowPlaces) -> SlowPlaces | None:
    """Say that what all workers share is slow, for all of them, where that is most and comes in stretches; None where it is not.

    Whoever is slow in it alone is far slower in what moves more bytes.
    """
    if shared_s.sum() <= _sum_steps(lost).sum():
        return None
    n_stages = len(lost.groups)
    everywhere = dataclasses.replace(
        lost,
        ways=np.zeros_like(lost.ways),
        groups=np.tile(shared_s, (n_stages, 1)),
        has_group=np.ones(n_stages, dtype=bool),
        collectives=None,
    )
    repeats = _repeat_steps(everywhere)
    if repeats < REPEATS_FROM:
        return None
    mended, share = lost.has_group.astype(float), _share_of_steps(shared_s)
    return dataclasses.replace(
        nowhere, groups=lost.has_group, mended_groups=mended, repeats=repeats, in_time=True, steps_share=share
    )


def _share_of_steps(by_step: Seconds) -> float:
    """Say which part of the steps has nearly all of the lost seconds."""
    held = np.cumsum(np.sort(by_step)[::-1]) / by_step.sum()
    return float(np.mean(held < NEARLY_ALL_SHARE))


def _repeat_links(lost: _Lost, by_step: Seconds) -> tuple[float, Bools, Bools] | None:
    """Say as `_repeat_places` does how far slow links repeat, whichever way, and mark them and groups; None where they do not.

    What a link loses now and then is one way in one half of the steps, by chance, and the other way in the other.
    """
    ways, exists = np.zeros_like(lost.ways), np.zeros_like(lost.exists)
    ways[0], exists[0] = lost.ways.sum(axis=0), lost.exists.any(axis=0)
    n_cells = _count_alike(np.concatenate([ways.ravel(), lost.groups.ravel()]))
    either = dataclasses.replace(lost, ways=ways, exists=exists, n_cells=n_cells)
    repeats = _repeat_places(either, by_step) or 0.0
    links, groups = _stand_out(either, slice(None))
    return (repeats, links.any(axis=0) & lost.exists, groups) if repeats >= REPEATS_FROM else None


def _repeat_rank(lost: _Lost) -> tuple[float, Bools, Bools] | None:
    """Say as `_repeat_places` does how far slow links of one dp rank repeat by themselves, and mark them and the groups they touch.

    Through the cards of such a rank all groups are slow at the same times, so that none stands out. None where groups are slow at
    other times, too, or elsewhere.
    """
    alone = dataclasses.replace(lost, groups=np.zeros_like(lost.groups), n_cells=_count_alike(lost.ways))
    by_step = _sum_steps(alone)
    if not by_step.any() or (repeats := _repeat_places(alone, by_step) or 0.0) < REPEATS_FROM:
        return None
    ways, _ = _stand_out(alone, slice(None))
    links = np.asarray(ways.any(axis=(0, 2)))
    touched = (links | np.roll(links, 1)) & lost.has_group
    theirs_s = lost.groups[touched][:, _find_slow_steps(by_step)].sum()
    if np.count_nonzero(ways.any(axis=(0, 1))) != 1 or not theirs_s or theirs_s < SAME_SHARE * lost.groups.sum():
        return None
    return repeats, ways, touched


def _list_turns(lost: _Lost, by_step: Seconds) -> list[_Lost]:
    """Part the slow steps where another link, or group, begins to lose most: faults that take turns. None where any is short."""
    time = np.argsort(lost.steps, kind="stable")
    slow = time[_find_slow_steps(by_step[time])]
    by_place = np.concatenate([lost.ways.sum(axis=0).reshape(-1, len(time)), lost.groups])
    turns = np.split(slow, np.flatnonzero(np.diff(by_place[:, slow].argmax(axis=0))) + 1)
    if len(turns) < 2 or min(map(len, turns)) < MIN_SLOW_STEPS:
        return []
    return [
        dataclasses.replace(lost, ways=lost.ways[..., turn], groups=lost.groups[:, turn], steps=lost.steps[turn])
        for turn in turns
    ]


def _stand_out(lost: _Lost, steps: Ints | slice) -> tuple[Bools, Bools]:
    """Mark the places that lose far more than their equals in some steps: ways (2, n_stages, n_dp), and groups (n_stages,)."""
    of_ways, of_groups = lost.ways[..., steps], lost.groups[:, steps]
    ways_s, groups_s = of_ways.sum(axis=-1), of_groups.sum(axis=-1)
    least = BESIDE_ANY_SHARE * max(float(ways_s.max(initial=0.0)), float(groups_s.max(initial=0.0)))
    ways, groups = ways_s > least, groups_s > least
    groups[lost.has_group] &= _above_equals(of_groups[lost.has_group])
    away = np.broadcast_to(~(groups | np.roll(groups, -1))[:, None], lost.exists.shape)[lost.exists]
    # Slow cards make most links slow: no more are ordinary than are away from slow groups, and the quickest.
    equals = min(EQUALS_QUANTILE, float(away.mean())) if away.size else EQUALS_QUANTILE
    ways[lost.exists] &= _above_equals(of_ways[lost.exists], equals)
    return ways & lost.exists, groups & lost.has_group


def _leave_out_little(found: SlowPlaces, lost: _Lost) -> SlowPlaces:
    """Name no links and groups that are not worth mending beside the worst place; those of cards are mended with these."""
    ways_s, groups_s = lost.ways.sum(axis=-1), lost.groups.sum(axis=-1)
    worst = max(float(ways_s.max(initial=0.0)), float(groups_s.max(initial=0.0)))
    least = min(WORTH_SHARE * lost.step_s * len(lost.steps), BESIDE_WORST_SHARE * worst)
    cards = found.cards.T
    ways = found.ways & (ways_s < least) & ~(cards | np.roll(cards, -1, axis=0))
    groups = found.groups & (groups_s < least) & ~cards.any(axis=1)
    return dataclasses.replace(
        found,
        ways=found.ways & ~ways,
        groups=found.groups & ~groups,
        mended_ways=np.where(ways, 0.0, found.mended_ways),
        mended_groups=np.where(groups, 0.0, found.mended_groups),
    )


def _above_equals(seconds: Seconds, quantile: float = EQUALS_QUANTILE) -> Bools:
    """Mark the places that are far above a part of their equals, by more than chance, and not far below the worst.

    Parameters
    ----------
    seconds : ndarray of float64, shape (n_places, n_steps)
    """
    total_s = seconds.sum(axis=1)
    if not total_s.any():
        return np.zeros(total_s.shape, dtype=bool)
    equals = float(np.quantile(total_s, quantile, method="lower"))
    chance = float(np.quantile(seconds.std(axis=1), quantile, method="lower") * np.sqrt(seconds.shape[1]))
    far = max(OVER_EQUALS_RATIO * equals, equals + CHANCE_DEVIATIONS * chance)
    return np.asarray(total_s > max(far, BESIDE_WORST_SHARE * float(total_s.max())))


def _above_noise(seconds: Seconds, exists: Bools, slow: Bools) -> Seconds:
    """Say which part of the seconds of each place its ordinary equals do not lose, 0..1."""
    equals = seconds[exists & ~slow]
    noise = float(median(equals)) if len(equals) else 0.0
    return np.clip(1.0 - noise / np.maximum(seconds, np.finfo(float).tiny), 0.0, 1.0)


def _repeat_places(lost: _Lost, by_step: Seconds) -> float | None:
    """Say which part of the lost seconds lies where the other half of the steps says, beyond chance; None where no half can say.

    The halves take turns with the steps that lost most, so that each has its part of them. Chance is what as many places
    would hold, and `LUCK` standard deviations of that more, for as many slow places in a step as there are.
    """
    order = np.argsort(-by_step, kind="stable")
    halves = order[::2], order[1::2]
    if min(float(by_step[half].sum()) for half in halves) < MIN_HALF_SHARE * float(by_step.sum()):
        return None
    found = []
    for chosen_by, seen_in in (halves, halves[::-1]):
        ways, groups = _stand_out(lost, chosen_by)
        ways_s, groups_s = lost.ways[..., seen_in].sum(axis=-1), lost.groups[:, seen_in].sum(axis=-1)
        total = float(ways_s.sum() + groups_s.sum())
        if not total:
            return None
        held = float(ways_s[ways].sum() + groups_s[groups].sum()) / total
        chance = (
            float(ways_s.sum()) * ways.sum() / max(lost.exists.sum(), 1)
            + float(groups_s.sum()) * groups.sum() / max(lost.has_group.sum(), 1)
        ) / total
        luck = LUCK * float(np.sqrt(chance * max(1.0 - chance, 0.0) / (lost.n_cells / 2.0)))
        found.append((held - chance - luck) / (1.0 - chance) if chance < 1.0 else 0.0)
    return max(float(np.mean(found)), 0.0)


def _repeat_steps(lost: _Lost) -> float:
    """Say which part of the lost seconds lies in the slow steps that half of the places say, beyond chance.

    Slow steps are on another level than the others, and come in stretches, or every so many steps: what is slow at random in many
    places is noise. Of a group alone half of its collectives say it.
    """
    shared = lost.groups.sum() >= lost.ways.sum()
    by_place = lost.groups[lost.has_group] if shared else lost.ways[lost.exists]  # (n_places, n_steps)
    if shared and len(by_place) == 1 and lost.collectives is not None:
        by_place = lost.collectives
    time = np.argsort(lost.steps, kind="stable")
    by_place = by_place[:, time]
    halves = (by_place[::2], by_place[1::2]) if len(by_place) > 1 else (by_place, by_place)
    found = []
    for chosen_by, seen_in in (halves, halves[::-1]):
        lost_s = chosen_by.sum(axis=0)
        slow = upper_stretch(np.sqrt(lost_s))
        slow = slow if slow.any() else upper_level(lost_s)
        total = float(seen_in.sum())
        in_turn = _is_stretch(slow) or keeps_interval(lost.steps[time], slow)
        if not slow.any() or total <= 0.0 or not in_turn:
            return 0.0
        chance = float(slow.mean())
        found.append((float(seen_in[:, slow].sum()) / total - chance) / (1.0 - chance))
    return max(float(np.mean(found)), 0.0)


def _is_stretch(slow: Bools) -> bool:
    """Say whether steps in the order of time come in stretches rather than here and there."""
    n_stretches = int(slow[0]) + int(np.count_nonzero(slow[1:] & ~slow[:-1]))
    by_chance = float(slow.sum()) * float(1.0 - slow.mean()) + float(slow.mean())
    return 1 < slow.sum() < len(slow) and n_stretches <= max(1.0, STRETCHES_SHARE * by_chance)


def _find_waiting(observed: Sequence[Observed], excesses: Sequence[Mapping[int, Seconds]], n_stages: int) -> Bools:
    """Mark the links whose late messages wait for other workers, by the schedule: shape (n_stages, n_dp).

    Where transfers were derived a message is late that could not be sent, or fetched, before: always the same ones, while others of
    the link are through at once. Recorded ones say themselves since when both of their ends were there.
    """
    all_s, own_s, same_s, n_slow = np.zeros((4, n_stages, observed[0].block.n_dp))
    for o, excess in zip(observed, excesses, strict=True):
        if not o.are_derived:
            continue
        pairs = o.find_pairs()
        rows, lost_s = pair_seconds(o, excess)
        every = np.zeros((len(pairs), *lost_s.shape[1:]))
        every[rows] = lost_s
        for (link, _), of_way in rows_of_ways(o, pairs):
            through, beyond = o.through(pairs[of_way]), every[of_way]
            usual = np.minimum(*(_take(o.own, ends) for ends in pairs[of_way].T)) - beyond
            in_step = beyond.sum(axis=0)  # (n_steps, n_dp)
            often = ((beyond > 0) * in_step).sum(axis=1) >= SAME_SHARE * in_step.sum(axis=0)  # (n_messages, n_dp)
            all_s[link] += in_step.sum(axis=0)
            own_s[link] += np.clip(through.min(axis=0) - usual, 0.0, beyond).sum(axis=(0, 1))
            same_s[link] += (beyond.sum(axis=1) * often).sum(axis=0)
            n_slow[link] += np.count_nonzero(in_step, axis=0)
    waiting = (own_s < THROUGH_SHARE * all_s) & (same_s >= SAME_SHARE * all_s) & (n_slow >= MIN_SLOW_STEPS)
    return np.asarray(waiting)


def _find_victims(
    observed: Sequence[Observed], excesses: Sequence[Mapping[int, Seconds]], ways: Bools, n_stages: int
) -> Bools:
    """Mark directions of links that are slow only in company of those at fault: shape (2, n_stages, n_dp).

    All transfers of a batch end together: which was slow is told by those that share none with another slow one.
    """
    seconds, count, n_slow, n_all = np.zeros((4, 2, n_stages, observed[0].block.n_dp))
    if not ways.any():
        return np.zeros(ways.shape, dtype=bool)
    for o, excess in zip(observed, excesses, strict=True):
        batch_of = {node: i for i, batch in enumerate(o.graph.list_batches()) for node in batch}
        pairs, way_of, ways_in = o.find_pairs(), list_ways(o), dict[int, set[tuple[int, int]]]()
        rows, lost_s = pair_seconds(o, excess)
        slow = np.zeros((n_stages, *o.block.start_s.shape[1:]), dtype=bool)  # (n_stages, n_steps, n_dp)
        np.logical_or.at(slow, ways_of(o.block.nodes, pairs[rows])[0], lost_s > 0)
        for pair, way in way_of.items():
            for node in pair:
                ways_in.setdefault(batch_of.get(node, -1), set()).add(way)
        by_pair = dict(zip(map(tuple, pairs[rows].tolist()), lost_s, strict=True))
        for pair, (link, direction) in way_of.items():
            beyond = by_pair.get(pair)
            here = slow[link] & ways[direction, link]
            if not here.any():
                continue
            others = _in_each(pair, batch_of, ways_in, (link, direction))
            alone = here.copy()
            for other, other_direction in others:
                alone &= ~ways[other_direction, other]
            lost = np.zeros(here.shape) if beyond is None else beyond
            seconds[direction, link] += np.where(alone, lost, 0.0).sum(axis=0)
            count[direction, link] += alone.sum(axis=0)
            n_slow[direction, link] += (here & (lost > 0)).sum(axis=0)
            n_all[direction, link] += here.sum(axis=0)
    expected = count * n_slow / np.maximum(n_all, 1.0)
    mean_s = np.where(expected >= MIN_EXPECTED, seconds / np.maximum(count, 1.0), np.nan)
    return _find_innocent(ways, mean_s)


def _find_innocent(ways: Bools, mean_s: Seconds) -> Bools:
    """Mark slow ways that are quick when measured alone: shape (2, n_stages, n_dp).

    A worker that blocks in a slow transfer is late for its other transfers, so that its other link looks slow, but in one direction
    only. Of a link by itself, the quick direction is cleared.
    """
    innocent = np.zeros(ways.shape, dtype=bool)
    quicker = np.where(np.isnan(mean_s), np.inf, mean_s).min(
        axis=0
    )  # (n_stages, n_dp), of the directions that are known
    known, links = np.isfinite(quicker), np.asarray(ways.any(axis=0))
    for shift in (1, -1):
        beside = np.roll(quicker, shift, axis=0)
        both = links & known & np.roll(links & known, shift, axis=0)
        innocent |= both & (quicker < CLEARED_SHARE * np.where(both, beside, 0.0))
    other_way = mean_s[::-1]
    innocent |= ways[::-1] & ~innocent[::-1] & (mean_s < CLEARED_WAY_SHARE * other_way)
    return innocent


def _in_each(
    pair: tuple[int, ...],
    batch_of: Mapping[int, int],
    ways_in: Mapping[int, Iterable[tuple[int, int]]],
    own: tuple[int, int],
) -> set[tuple[int, int]]:
    """List the other ways that hold up both ends of a pair: those in the batch of either end, if both are in one."""
    if not all(node in batch_of for node in pair):
        return set()
    first, second = (set(ways_in[batch_of[node]]) - {own} for node in pair)
    return first & second


def _find_worst(lost: _Lost) -> tuple[Bools, Bools, Bools]:
    """Find the one link, group or card that has most of the lost seconds: ways, groups and cards as in `SlowPlaces`."""
    ways_s, groups_s = lost.ways.sum(axis=-1), lost.groups.sum(axis=-1)  # (2, n_stages, n_dp), (n_stages,)
    links_s = ways_s.sum(axis=0)
    cards_s = links_s + np.roll(links_s, 1, axis=0) + groups_s[:, None]
    ways, groups = np.zeros_like(lost.exists), np.zeros_like(lost.has_group)
    cards = np.zeros(links_s.T.shape, dtype=bool)
    stage, dp = np.unravel_index(int(cards_s.argmax()), cards_s.shape)
    if max(float(links_s.max()), float(groups_s.max())) >= ALL_OF_CARD_SHARE * float(cards_s.max()):
        if links_s.max() >= groups_s.max():
            link, rank = np.unravel_index(int(links_s.argmax()), links_s.shape)
            ways[:, link, rank] = lost.exists[:, link, rank]
        else:
            groups[int(groups_s.argmax())] = True
    else:
        cards[dp, stage] = True
        ways[:, [stage - 1, stage], dp] = lost.exists[:, [stage - 1, stage], dp]
        groups[stage] = lost.has_group[stage]
    return ways, groups, cards


def _find_cards(ways: Bools, groups: Bools, lost: _Lost) -> Bools:
    """Mark the workers all of whose network is slow: shape (n_dp, n_stages).

    Both links of a worker are slow alike, and no further one; or a link, and the group of one of its ends.
    """
    links, has_link = np.asarray(ways.any(axis=0)), np.asarray(lost.exists.any(axis=0))  # (n_stages, n_dp)
    n_stages, n_dp = links.shape
    cards = np.zeros((n_dp, n_stages), dtype=bool)
    for stage in range(n_stages):
        before, after = links[stage - 1], links[stage]  # (n_dp,)
        both = has_link[stage - 1] & has_link[stage] & before & after
        alone = ~links[stage - 2] & ~links[(stage + 1) % n_stages] if n_stages > 3 else np.ones(n_dp, dtype=bool)
        touched = before | after
        cards[:, stage] = touched & groups[stage] if groups[stage] else both & alone & (n_stages > 2)
        for dp in np.flatnonzero(cards[:, stage] & ~groups[stage]).tolist():
            seconds = lost.ways[:, [stage - 1, stage], dp].sum(axis=(0, 1))[np.argsort(lost.steps, kind="stable")]
            # Collectives go through the card, too: those of a card that is always slow are.
            told = bool(lost.has_group[stage]) and _is_steady(_find_slow_steps(seconds))
            cards[dp, stage] = not told and _are_alike(lost, stage, dp)
    for stage, dp in np.argwhere(cards.T & groups[:, None]).tolist():
        # One with a quick link, whose slow one has such a card at its other end, and whose group has another, explains nothing.
        slow, quick = ([at for at in (stage - 1, stage) if of[at, dp]] for of in (links, has_link & ~links))
        others = [cards[dp, (stage - 1 if at == stage - 1 else stage + 1) % n_stages] for at in slow]
        cards[dp, stage] = not (quick and all(others) and cards[:, stage].sum() > 1)
    return cards


def _find_quiet_cards(groups: Bools, lost: _Lost) -> Bools:
    """Mark the workers whose links are slow in the steps in which their group is, however little these move: (n_dp, n_stages).

    One worker of a group at most, and no link elsewhere: then its card makes the group slow, which loses far more.
    """
    cards = np.zeros((lost.ways.shape[2], len(groups)), dtype=bool)
    ways = np.zeros_like(lost.exists)
    ways[lost.exists] = _above_equals(lost.ways[lost.exists])
    links = np.asarray(ways.any(axis=0))  # (n_stages, n_dp)
    ranks = np.flatnonzero(links.any(axis=0))
    if len(cards) <= 2 or len(ranks) != 1:
        return cards
    dp = int(ranks[0])
    for stage in np.flatnonzero(groups).tolist():
        touching = np.isin(np.arange(len(groups)), [(stage - 1) % len(groups), stage])
        if (links[:, dp] == (touching & lost.exists[:, :, dp].any(axis=0))).all():
            slow = [_find_slow_steps(of) for of in (lost.ways[:, touching, dp].sum(axis=(0, 1)), lost.groups[stage])]
            cards[dp, stage] = np.sum(slow[0] & slow[1]) >= SAME_SHARE * np.sum(slow[0] | slow[1])
    return cards


def _are_alike(lost: _Lost, stage: int, dp: int) -> bool:
    """Say whether the two links of a worker lose as much, at the same times, as those of a slow card do."""
    both = lost.ways[:, [stage - 1, stage], dp].sum(axis=0)[:, np.argsort(lost.steps, kind="stable")]  # (2, n_steps)
    if not both.any(axis=1).all():
        return False
    slow = np.array([_find_slow_steps(of_link) for of_link in both])
    if not all(_is_steady(of_link) for of_link in slow):
        n_slow = both.sum(axis=1) ** 2 / (both**2).sum(axis=1)
        error = UNLIKE_ERRORS * float(np.sqrt((1.0 / n_slow).sum()))
        return bool(abs(np.log(both[0].sum() / both[1].sum())) <= max(np.log(UNLIKE_RATIO), error))
    alone, together = slow[0] != slow[1], slow.all(axis=0)
    if alone.sum() >= max(ONE_ALONE_STEPS, ONE_ALONE_SHARE * slow.any(axis=0).sum()):
        return False
    ratio = float(median(both[0, together] / both[1, together])) if together.any() else np.inf
    return 1.0 / UNLIKE_RATIO <= ratio <= UNLIKE_RATIO


def _find_slow_steps(seconds: Seconds) -> Bools:
    """Mark the steps in which a place loses a part of what it does on the mean of those in which it loses anything."""
    return np.asarray(seconds > SLOW_STEP_SHARE * seconds[seconds > 0].mean())


def _is_steady(slow: Bools) -> bool:
    """Say whether nearly all steps are slow from the first slow one to the last, in the order of time."""
    first, last = np.flatnonzero(slow)[[0, -1]]
    return bool(slow[first : last + 1].mean() >= STEADY_SHARE)
