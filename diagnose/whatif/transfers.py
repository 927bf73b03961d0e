"""Measure transfers by link and by group, and what they take beyond that of ordinary ones.

Enters: observed blocks, and what each transfer took too long. Leaves: `Transfers`. Costs a few passes over the communication.
"""

from collections.abc import Mapping, Sequence

import numpy as np

from diagnose.model.optype import DP_COLLECTIVES
from diagnose.model.trace import Seconds
from diagnose.model.transfers import Transfers
from diagnose.numerics.robust import weighted_median
from diagnose.whatif.components.transfer import TransferPart, stride_of
from diagnose.whatif.observed import Observed
from diagnose.whatif.removal import Removal
from diagnose.whatif.slow_places import pair_seconds, way_of

#: Beyond this many times the median of all links a single transfer is late (a flap is seconds against milliseconds).
LATE_RATIO = 3.0


def measure_transfers(removal: Removal) -> Transfers:
    """Measure the transfers of a job."""
    observed, n_stages, n_steps = removal.observed, removal.n_stages, len(removal.breakdown.steps)
    part = removal.part_of(TransferPart)
    link_s, late_s = _measure_links(observed, n_stages, n_steps)
    link_excess_s, group_excess_s, ratio, typical = _add_up_excess(observed, part.excess_s, n_stages, n_steps)
    step_s = float(np.concatenate([o.block.end_s.max(axis=(0, 2)) for o in observed]).mean())
    group_s = _measure_groups(observed, n_stages)
    by_step = _measure_steps(observed, n_stages, n_steps)
    return Transfers(
        link_s, late_s, group_s, step_s, link_excess_s, group_excess_s, ratio, typical, part.slow, *by_step
    )


def _measure_links(observed: Sequence[Observed], n_stages: int, n_steps: int) -> tuple[Seconds, Seconds]:
    """Say how long a transfer of each link usually takes, and what late ones cost a step; shape (n_stages, n_dp)."""
    by_link: dict[int, list[Seconds]] = {}
    for o in observed:
        for pair, own in _own_of_pairs(o).items():
            by_link.setdefault(way_of(o.block.nodes, pair)[0], []).append(own)
    link_s, late_s = np.full((2, n_stages, observed[0].block.n_dp), np.nan)
    for link, owns in by_link.items():
        link_s[link] = np.median(np.concatenate([seconds[:: stride_of(seconds)] for seconds in owns]), axis=0)
    usual = max(float(np.nanmedian(link_s)), 0.0) if by_link else 0.0
    for link, owns in by_link.items():
        late = sum(np.where(seconds > LATE_RATIO * usual, seconds - usual, 0.0).sum(axis=0) for seconds in owns)
        late_s[link] = late / n_steps
    return link_s, late_s


def _own_of_pairs(o: Observed) -> dict[tuple[int, int], Seconds]:
    """Say how long each transfer took; of shape (n_steps, n_dp)."""
    own = pair_seconds(o, {node: o.own[node] for pair in o.pairs for node in pair})
    return {pair: own.get(pair, np.zeros(o.block.start_s.shape[1:])) for pair in o.pairs}


def _measure_groups(observed: Sequence[Observed], n_stages: int) -> Seconds:
    """Say how long the collectives of each stage's dp ranks usually take, together; shape (n_stages,)."""
    by_group: dict[int, dict[tuple[int, int], list[Seconds]]] = {}
    for o in observed:
        nodes = o.block.nodes
        for node in (event.members[0] for event in o.graph.events if event.across_dp):
            if nodes.op[node] in DP_COLLECTIVES:
                place = int(nodes.op[node]), int(nodes.seq[node])
                group = by_group.setdefault(int(nodes.stage[node]), {})
                group.setdefault(place, []).append(o.own[node].min(axis=1))
    group_s = np.full(n_stages, np.nan)
    for stage, places in by_group.items():
        group_s[stage] = sum(float(np.median(np.concatenate(own))) for own in places.values())
    return group_s


def _measure_steps(observed: Sequence[Observed], n_stages: int, n_steps: int) -> tuple[Seconds, Seconds]:
    """Say how long transfers of each link, and collectives of each stage, took in each step."""
    links_s = np.full((n_stages, n_steps, observed[0].block.n_dp), np.nan)
    groups_s, has_group = np.zeros((n_stages, n_steps)), np.zeros((n_stages, n_steps), dtype=bool)
    first = 0
    for o in observed:
        nodes, steps = o.block.nodes, slice(first, first + len(o.block.steps))
        first = steps.stop
        n_transfers = np.zeros(n_stages)
        for pair, own in _own_of_pairs(o).items():
            link = way_of(nodes, pair)[0]
            links_s[link, steps] = own if not n_transfers[link] else links_s[link, steps] + own
            n_transfers[link] += 1
        links_s[:, steps] /= np.maximum(n_transfers, 1)[:, None, None]
        for node in (event.members[0] for event in o.graph.events if event.across_dp):
            if nodes.op[node] in DP_COLLECTIVES:
                groups_s[int(nodes.stage[node]), steps] += o.own[node].min(axis=1)
                has_group[int(nodes.stage[node]), steps] = True
    return np.moveaxis(links_s, 2, 1), np.where(has_group, groups_s, np.nan)


def _add_up_excess(
    observed: Sequence[Observed], excesses: Sequence[Mapping[int, Seconds]], n_stages: int, n_steps: int
) -> tuple[Seconds, Seconds, float | None, float | None]:
    """Add up what transfers took beyond ordinary ones by link and by group, seconds a step, and say how many times as long.

    First as a typical second of that time has it, for a flap is few transfers and most of the seconds; then as a typical transfer.
    """
    link_excess_s, group_excess_s = np.zeros((n_stages, observed[0].block.n_dp)), np.zeros(n_stages)
    ratios, weights = [], []
    for o, excess in zip(observed, excesses, strict=True):
        nodes, of_pairs, own_of = o.block.nodes, pair_seconds(o, excess), _own_of_pairs(o)
        for event in o.graph.events:
            pair = event.members if event.members in own_of else None
            slow = [excess[node] for node in event.members if node in excess]
            if not slow or (pair and pair not in of_pairs):
                continue
            seconds, own = np.max(np.stack(slow), axis=0), o.own[event.members[0]]
            if pair:
                seconds, own = of_pairs[pair], own_of[pair]
            late = seconds > 0
            ratios.append((seconds / np.maximum(own - seconds, 1e-9))[late])
            weights.append(seconds[late])
            if pair:
                link_excess_s[way_of(nodes, pair)[0]] += seconds.sum(axis=0) / n_steps
            elif event.across_dp and len(event.members) == 1:
                group_excess_s[int(nodes.stage[event.members[0]])] += float(seconds.max(axis=1).sum()) / n_steps
    ratio, weight = np.concatenate([[], *ratios]), np.concatenate([[], *weights])
    typical = float(np.median(ratio)) if len(ratio) else None
    return link_excess_s, group_excess_s, weighted_median(ratio, weight), typical
