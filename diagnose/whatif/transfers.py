"""Measure transfers by link and by group, and what they take beyond that of ordinary ones.

Enters: observed blocks, and what each transfer took too long. Leaves: `Transfers`. Costs a few passes over the communication.
"""

from collections.abc import Mapping, Sequence

import numpy as np

from diagnose.model.trace import Seconds
from diagnose.model.transfers import Transfers
from diagnose.numerics.robust import median, weighted_median
from diagnose.whatif.components.transfer import TransferPart, stride_of
from diagnose.whatif.observed import Observed
from diagnose.whatif.removal import Removal
from diagnose.whatif.slow_places import pair_seconds, ways_of

#: Beyond this many times the median of all links a single transfer is late (a flap is seconds against milliseconds).
LATE_RATIO = 3.0


def measure_transfers(removal: Removal) -> Transfers:
    """Measure the transfers of a job."""
    observed, n_stages, n_steps = removal.observed, removal.n_stages, len(removal.breakdown.steps)
    part = removal.part_of(TransferPart)
    owns = [_own_of_pairs(o) for o in observed]
    by_block = [_by_link(o, own) for o, own in zip(observed, owns, strict=True)]
    link_s, late_s = _measure_links(by_block, n_stages, n_steps, observed[0].block.n_dp)
    everywhere = part.slow.in_time
    link_excess_s, group_excess_s, ratio, typical = _add_up_excess(
        observed, owns, part.excess_s, n_stages, n_steps, everywhere=everywhere
    )
    step_s = float(np.concatenate([o.block.step_ends_s for o in observed]).mean())
    group_s = _measure_groups(observed, n_stages)
    by_step = _measure_steps(observed, by_block, n_stages, n_steps)
    return Transfers(
        link_s, late_s, group_s, step_s, link_excess_s, group_excess_s, ratio, typical, part.slow, *by_step
    )


def _measure_links(
    by_block: Sequence[Mapping[int, Seconds]], n_stages: int, n_steps: int, n_dp: int
) -> tuple[Seconds, Seconds]:
    """Say how long a transfer of each link usually takes, and what late ones cost a step; shape (n_stages, n_dp)."""
    by_link: dict[int, list[Seconds]] = {}
    for own in by_block:
        for link, seconds in own.items():
            by_link.setdefault(link, []).append(seconds)
    link_s, late_s = np.full((2, n_stages, n_dp), np.nan)
    for link, every in by_link.items():
        sampled = [seconds[:, :: stride_of(seconds[0])].reshape(-1, n_dp) for seconds in every]
        link_s[link] = median(np.concatenate(sampled), axis=0)
    usual = max(float(np.nanmedian(link_s)), 0.0) if by_link else 0.0
    for link, every in by_link.items():
        late = sum(np.where(s > LATE_RATIO * usual, s - usual, 0.0).sum(axis=(0, 1)) for s in every)
        late_s[link] = late / n_steps
    return link_s, late_s


def _own_of_pairs(o: Observed) -> Seconds:
    """Say how long each transfer took; of shape (n_pairs, n_steps, n_dp)."""
    rows, took_s = pair_seconds(o, o.own)
    own = np.zeros((len(o.find_pairs()), *took_s.shape[1:]))
    own[rows] = took_s
    return own


def _by_link(o: Observed, own: Seconds) -> dict[int, Seconds]:
    """Give the times of the transfers of each link: seconds, shape (n_transfers, n_steps, n_dp)."""
    link, _ = ways_of(o.block.nodes, o.find_pairs())
    return {of_link: own[link == of_link] for of_link in np.unique(link).tolist()}


def _measure_groups(observed: Sequence[Observed], n_stages: int) -> Seconds:
    """Say how long the collectives of each stage's dp ranks usually take, together; shape (n_stages,)."""
    by_group: dict[int, dict[tuple[int, int], list[Seconds]]] = {}
    for o in observed:
        nodes = o.block.nodes
        for node in o.find_groups().tolist():
            place = int(nodes.op[node]), int(nodes.seq[node])
            group = by_group.setdefault(int(nodes.stage[node]), {})
            group.setdefault(place, []).append(o.own[node].min(axis=1))
    group_s = np.full(n_stages, np.nan)
    for stage, places in by_group.items():
        group_s[stage] = sum(float(median(np.concatenate(own))) for own in places.values())
    return group_s


def _measure_steps(
    observed: Sequence[Observed], by_block: Sequence[Mapping[int, Seconds]], n_stages: int, n_steps: int
) -> tuple[Seconds, Seconds]:
    """Say how long transfers of each link, and collectives of each stage, took in each step."""
    links_s = np.full((n_stages, n_steps, observed[0].block.n_dp), np.nan)
    groups_s, has_group = np.zeros((n_stages, n_steps)), np.zeros((n_stages, n_steps), dtype=bool)
    first = 0
    for o, by_link in zip(observed, by_block, strict=True):
        nodes, steps = o.block.nodes, slice(first, first + len(o.block.steps))
        first = steps.stop
        for link, seconds in by_link.items():
            links_s[link, steps] = seconds.mean(axis=0)
        for node in o.find_groups().tolist():
            groups_s[int(nodes.stage[node]), steps] += o.own[node].min(axis=1)
            has_group[int(nodes.stage[node]), steps] = True
    return np.moveaxis(links_s, 2, 1), np.where(has_group, groups_s, np.nan)


def _add_up_excess(
    observed: Sequence[Observed],
    owns: Sequence[Seconds],
    excesses: Sequence[Mapping[int, Seconds]],
    n_stages: int,
    n_steps: int,
    *,
    everywhere: bool,
) -> tuple[Seconds, Seconds, float | None, float | None]:
    """Add up what transfers took beyond ordinary ones by link and by group, seconds a step, and say how many times as long.

    What all workers clip together is of each group where transfers are slow everywhere, and of none else.
    First as a typical second of that time has it, for a flap is few transfers and most of the seconds; then as a typical transfer.
    """
    link_excess_s, group_excess_s = np.zeros((n_stages, observed[0].block.n_dp)), np.zeros(n_stages)
    ratios, weights = [], []
    for o, own_of, excess in zip(observed, owns, excesses, strict=True):
        nodes, moves, pairs = o.block.nodes, o.graph.moves, o.find_pairs()
        row_of = dict(zip(map(tuple, pairs.tolist()), range(len(pairs)), strict=True))
        rows, lost_s = pair_seconds(o, excess)
        of_pairs, link = dict(zip(rows.tolist(), lost_s, strict=True)), ways_of(nodes, pairs)[0].tolist()
        beyond = np.zeros(len(nodes), dtype=bool)
        beyond[[*excess]] = True
        late_events = np.unique(moves.members.row_of()[beyond[moves.members.flat]])
        for members, across_dp in zip(
            moves.members.take(late_events).rows(), moves.across_dp[late_events].tolist(), strict=True
        ):
            row = row_of.get(members)
            if row is None:
                seconds, own = np.max(np.stack([excess[n] for n in members if n in excess]), axis=0), o.own[members[0]]
            elif row in of_pairs:
                seconds, own = of_pairs[row], own_of[row]
            else:
                continue
            late = seconds > 0
            ratios.append((seconds / np.maximum(own - seconds, 1e-9))[late])
            weights.append(seconds[late])
            if row is not None:
                link_excess_s[link[row]] += seconds.sum(axis=0) / n_steps
            elif across_dp and len(members) == 1:
                group_excess_s[int(nodes.stage[members[0]])] += float(seconds.max(axis=1).sum()) / n_steps
            elif everywhere and across_dp:
                group_excess_s += float(seconds.max(axis=1).sum()) / n_steps / n_stages
    ratio, weight = np.concatenate([[], *ratios]), np.concatenate([[], *weights])
    typical = float(median(ratio)) if len(ratio) else None
    return link_excess_s, group_excess_s, weighted_median(ratio, weight), typical
