"""Measure transfers by link and by group, and what they take beyond that of ordinary ones.

Enters: observed blocks, and what each transfer took too long. Leaves: `Transfers`. Costs a few passes over the communication.
"""

from collections.abc import Sequence

import numpy as np

from diagnose.model.optype import DP_COLLECTIVES, Op
from diagnose.model.trace import Nodes, Seconds
from diagnose.model.transfers import Transfers
from diagnose.whatif.components.transfer import COMPONENT, stride_of
from diagnose.whatif.observed import Observed
from diagnose.whatif.removal import Removal

#: Beyond this many times the median of all links a single transfer is late (a flap is seconds against milliseconds).
LATE_RATIO = 3.0
#: A link may be at fault if it has this part of the seconds beyond ordinary transfers that the worst link has.
SUSPECT_SHARE = 0.2


def measure_transfers(removal: Removal) -> Transfers:
    """Measure the transfers of a job."""
    observed, n_stages, n_steps = removal.observed, removal.n_stages, len(removal.breakdown.steps)
    excesses = removal.own_excess(COMPONENT.name)
    link_s, late_s = _measure_links(observed, n_stages, n_steps)
    link_excess_s, group_excess_s, excess_ratio = _add_up_excess(observed, excesses, n_stages, n_steps)
    step_s = float(np.concatenate([o.block.end_s.max(axis=(0, 2)) for o in observed]).mean())
    alone_s = _measure_alone(observed, excesses, link_excess_s) if link_excess_s.any() else None
    group_s = _measure_groups(observed, n_stages)
    return Transfers(link_s, late_s, group_s, step_s, link_excess_s, group_excess_s, excess_ratio, alone_s)


def _measure_links(observed: Sequence[Observed], n_stages: int, n_steps: int) -> tuple[Seconds, Seconds]:
    """Say how long a transfer of each link usually takes, and what late ones cost a step; shape (n_stages, n_dp)."""
    by_link: dict[int, list[Seconds]] = {}
    for o in observed:
        for pair in o.pairs:
            # A member of a batch ends with the batch; the other end of the pair says when this transfer did.
            by_link.setdefault(_way(o.block.nodes, pair)[0], []).append(np.minimum(o.own[pair[0]], o.own[pair[1]]))
    link_s, late_s = np.full((2, n_stages, observed[0].block.n_dp), np.nan)
    for link, own in by_link.items():
        link_s[link] = np.median(np.concatenate([seconds[:: stride_of(seconds)] for seconds in own]), axis=0)
    usual = max(float(np.nanmedian(link_s)), 0.0) if by_link else 0.0
    for link, own in by_link.items():
        late = sum(np.where(seconds > LATE_RATIO * usual, seconds - usual, 0.0).sum(axis=0) for seconds in own)
        late_s[link] = late / n_steps
    return link_s, late_s


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


def _add_up_excess(
    observed: Sequence[Observed], excesses: Sequence[dict[int, Seconds]], n_stages: int, n_steps: int
) -> tuple[Seconds, Seconds, float | None]:
    """Add up what transfers took beyond ordinary ones by link and by group, seconds a step, and say how many times as long."""
    link_excess_s, group_excess_s, ratios = np.zeros((n_stages, observed[0].block.n_dp)), np.zeros(n_stages), []
    for o, excess in zip(observed, excesses, strict=True):
        nodes, pairs = o.block.nodes, set[tuple[int, ...]](o.pairs)
        for event in o.graph.events:
            slow = [excess[node] for node in event.members if node in excess]
            if not slow:
                continue
            seconds = np.max(np.stack(slow), axis=0)
            ratios.append((seconds / np.maximum(o.own[event.members[0]] - seconds, 1e-9))[seconds > 0])
            if event.members in pairs:
                link_excess_s[_way(nodes, event.members)[0]] += seconds.sum(axis=0) / n_steps
            elif event.across_dp and len(event.members) == 1:
                group_excess_s[int(nodes.stage[event.members[0]])] += float(seconds.max(axis=1).sum()) / n_steps
    return link_excess_s, group_excess_s, float(np.median(np.concatenate(ratios))) if ratios else None


def _measure_alone(
    observed: Sequence[Observed], excesses: Sequence[dict[int, Seconds]], link_excess_s: Seconds
) -> Seconds:
    """Say how slow the quicker direction of each link is while the link is slow, by transfers that nothing else holds up.

    Of two transfers of one batch that go both ways over a link nobody can tell which was slow; and the one that comes over a
    healthy link ends as late as the one of the same batch that goes over a slow one.
    """
    suspect = link_excess_s > SUSPECT_SHARE * link_excess_s.max()  # (n_stages, n_dp)
    seconds, count = np.zeros((2, 2, *suspect.shape))
    for o, excess in zip(observed, excesses, strict=True):
        nodes = o.block.nodes
        batch_of = {node: i for i, event in enumerate(o.graph.events) if event.awaits for node in event.completes}
        by_batch: dict[int, set[tuple[int, int]]] = {}
        slow = np.zeros((suspect.shape[0], *o.block.start_s.shape[1:]), dtype=bool)
        for pair in o.pairs:
            for node in pair:
                by_batch.setdefault(batch_of.get(node, -1), set()).add(_way(nodes, pair))
                if node in excess:
                    slow[_way(nodes, pair)[0]] |= excess[node] > 0
        for pair in o.pairs:
            link, direction = _way(nodes, pair)
            recv = next(node for node in pair if nodes.op[node] in (Op.FORWARD_RECV, Op.BACKWARD_RECV))
            others = by_batch[batch_of[recv]] - {(link, direction)} if recv in batch_of else set()
            alone = slow[link].copy()  # (n_steps, n_dp)
            for other, _ in others:
                alone &= ~suspect[other] if other != link else False
            seconds[direction, link] += np.where(alone, excess.get(recv, 0.0), 0.0).sum(axis=0)
            count[direction, link] += alone.sum(axis=0)
    mean_s = np.where(count > 0, seconds / np.maximum(count, 1), np.inf).min(axis=0)
    return np.asarray(np.where(np.isfinite(mean_s), mean_s, np.nan))


def _way(nodes: Nodes, pair: tuple[int, ...]) -> tuple[int, int]:
    """Name the link of a pair by its first stage, and its direction: 0 as forwards go."""
    a, b = (int(nodes.stage[node]) for node in pair)
    link = min(a, b) if abs(a - b) == 1 else max(a, b)
    return link, int(int(nodes.op[pair[0]]) in (Op.BACKWARD_SEND, Op.BACKWARD_RECV))
