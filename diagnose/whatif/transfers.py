"""Measure transfers by link and by group, and what they take beyond that of ordinary ones.

Enters: observed blocks. Leaves: `Transfers`, and seconds by node. Costs a few passes over the communication.
"""

from collections.abc import Sequence

import numpy as np

from diagnose.model.optype import DP_COLLECTIVES, P2P, Op
from diagnose.model.trace import Nodes, Seconds
from diagnose.model.transfers import Transfers
from diagnose.statistics.robust import nan_median, nan_quantile
from diagnose.whatif.delays import recorded
from diagnose.whatif.observed import Observed

#: A transfer is slow beyond this many times the upper end of its type on an ordinary link, and by seconds enough.
SLOW_TRANSFER_RATIO = 3.0
#: Collectives vary less.
SLOW_COLLECTIVE_RATIO = 1.5
SLOW_TRANSFER_SHARE = 5e-4
#: A link is slow, as a whole or in a step, when its median is this many times that of an ordinary link (the modes of healthy
#: links of a production job are 1.7 apart, but on every link).
SLOW_LINK_RATIO = 1.5
#: ... and in a step, of the upper end.
SLOW_STEP_RATIO = 1.2
#: Of transfers that are so many times as long in one half of the lanes as in a tenth of them the shorter are the ordinary ones.
TWO_LEVELS_RATIO = 2.0
LOW_QUANTILE = 0.1
BETWEEN_SHARE = 0.1
HIGH_QUANTILE = 0.95
#: Of so many places at most the slow ones may be most: the links of a pipeline of four stages, and the one beside it.
FEW_PLACES = 4
#: From the lower half of the spread of a normal distribution to its standard deviation.
HALF_SPREAD_TO_SIGMA = 1.28
TOP_DEVIATIONS = 4.0
#: Transfers of a link in one step from which its median says something.
MIN_IN_STEP = 3
#: Beyond this many times the median of all links a single transfer is late (a flap is seconds against milliseconds).
LATE_RATIO = 3.0
#: A link may be at fault if it has this part of the seconds beyond ordinary transfers that the worst link has.
SUSPECT_SHARE = 0.2
#: Steps from which it is learned what is usual on a link.
MAX_LINK_STEPS = 16


def measure_transfers(observed: Sequence[Observed], *, n_stages: int) -> Transfers:
    """Measure the transfers of a job.

    Parameters
    ----------
    observed : sequence of Observed
    n_stages : int

    Returns
    -------
    Transfers
    """
    n_dp = observed[0].block.n_dp
    by_link: dict[int, list[Seconds]] = {}
    by_group: dict[int, dict[tuple[int, int], list[Seconds]]] = {}
    for o in observed:
        nodes = o.block.nodes
        for event in o.graph.events:
            ops = {int(nodes.op[node]) for node in event.members}
            if len(event.members) == 2 and ops <= {int(op) for op in P2P}:
                a, b = (int(nodes.stage[node]) for node in event.members)
                link = min(a, b) if abs(a - b) == 1 else max(a, b)
                # A member of a batch ends with the batch; the other end of the pair says when this transfer did.
                by_link.setdefault(link, []).append(np.minimum(o.own[event.members[0]], o.own[event.members[1]]))
            elif event.across_dp and ops <= {int(op) for op in DP_COLLECTIVES}:
                node = event.members[0]
                place = int(nodes.op[node]), int(nodes.seq[node])
                group = by_group.setdefault(int(nodes.stage[node]), {})
                group.setdefault(place, []).append(o.own[node].min(axis=1))
    n_steps = sum(len(o.block.steps) for o in observed)
    link_excess_s, group_excess_s, ratios = np.zeros((n_stages, n_dp)), np.zeros(n_stages), []
    excesses = [transfer_excess(o) for o in observed]
    for o, excess in zip(observed, excesses, strict=True):
        nodes = o.block.nodes
        for event in o.graph.events:
            slow = [excess[node] for node in event.members if node in excess]
            if not slow:
                continue
            seconds = np.max(np.stack(slow), axis=0)
            ratios.append((seconds / np.maximum(o.own[event.members[0]] - seconds, 1e-9))[seconds > 0])
            if len(event.members) == 2 and int(nodes.op[event.members[0]]) in {int(op) for op in P2P}:
                a, b = (int(nodes.stage[node]) for node in event.members)
                link_excess_s[min(a, b) if abs(a - b) == 1 else max(a, b)] += seconds.sum(axis=0) / n_steps
            elif event.across_dp and len(event.members) == 1:
                group_excess_s[int(nodes.stage[event.members[0]])] += float(seconds.max(axis=1).sum()) / n_steps
    link_s = np.full((n_stages, n_dp), np.nan)
    late_s = np.full((n_stages, n_dp), np.nan)
    for link, own in by_link.items():
        link_s[link] = np.median(np.concatenate([seconds[:: _stride(seconds)] for seconds in own]), axis=0)
    usual = max(float(np.nanmedian(link_s)), 0.0) if by_link else 0.0
    for link, own in by_link.items():
        late = sum(np.where(seconds > LATE_RATIO * usual, seconds - usual, 0.0).sum(axis=0) for seconds in own)
        late_s[link] = late / n_steps
    group_s = np.full(n_stages, np.nan)
    for stage, places in by_group.items():
        group_s[stage] = sum(float(np.median(np.concatenate(own))) for own in places.values())
    step_s = float(np.concatenate([o.block.end_s.max(axis=(0, 2)) for o in observed]).mean())
    excess_ratio = float(np.median(np.concatenate(ratios))) if ratios else None
    alone_s = _measure_alone(observed, excesses, link_excess_s) if link_excess_s.any() else None
    return Transfers(link_s, late_s, group_s, step_s, link_excess_s, group_excess_s, excess_ratio, alone_s)


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
        pairs = [e.members for e in o.graph.events if len(e.members) == 2 and int(nodes.op[e.members[0]]) in P2P]
        by_batch: dict[int, set[tuple[int, int]]] = {}
        slow = np.zeros((suspect.shape[0], *o.block.start_s.shape[1:]), dtype=bool)
        for pair in pairs:
            for node in pair:
                by_batch.setdefault(batch_of.get(node, -1), set()).add(_way(nodes, pair))
                if node in excess:
                    slow[_way(nodes, pair)[0]] |= excess[node] > 0
        for pair in pairs:
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


def transfer_excess(o: Observed) -> dict[int, Seconds]:
    """Say how much longer than on an ordinary link, or in ordinary steps, each transfer took; only where it stands out.

    Parameters
    ----------
    o : Observed

    Returns
    -------
    dict of int to ndarray of float64, shape (n_steps, n_dp)
        Seconds by node.
    """
    nodes = o.block.nodes
    found: dict[int, Seconds] = {}
    step_s = float(np.mean(o.block.end_s.max(axis=(0, 2))))
    for op in (*P2P, *DP_COLLECTIVES, Op.EMBEDDING, Op.CLIP, Op.LAYERNORM):
        by_stage: dict[int, list[int]] = {}
        for event in o.graph.events:
            for node in event.completes:
                if nodes.op[node] == op:
                    by_stage.setdefault(int(nodes.stage[node]), []).append(node)
        if not by_stage:
            continue
        sampled = {
            stage: np.stack([o.own[n][:: _stride(o.own[n])] for n in at]) for stage, at in by_stage.items()
        }  # (n_nodes, n_steps, n_dp)
        if op in DP_COLLECTIVES:  # all members move together: a stage's group is one place
            usual, top = _ordinary([s.min(axis=2, keepdims=True) for s in sampled.values()])
        else:
            usual, top = _ordinary(list(sampled.values()))
        ratio = SLOW_TRANSFER_RATIO if op in P2P else SLOW_COLLECTIVE_RATIO
        longest = max(ratio * top, top + SLOW_TRANSFER_SHARE * step_s)
        slow_level = SLOW_LINK_RATIO * usual + 1e-4 * step_s
        slow_step = max(slow_level, SLOW_STEP_RATIO * top)
        for stage, at in by_stage.items():
            own = np.stack([np.broadcast_to(o.own[n], o.block.start_s[n].shape) for n in at])
            level = np.broadcast_to(np.median(sampled[stage], axis=(0, 1)), own.shape[1:])  # (n_steps, n_dp)
            if len(at) >= MIN_IN_STEP and (own > slow_step).any():
                in_step = np.median(own, axis=0)
                level = np.where(in_step > slow_step, np.maximum(level, in_step), level)
            slow = level > slow_level
            if not slow.any() and not (own > longest).any():
                continue
            for node, seconds in zip(at, own, strict=True):
                excess = np.where(seconds > longest, seconds - usual, 0.0)
                excess = np.where(slow, np.maximum(excess, np.minimum(level, seconds) - usual), excess)
                excess = recorded(o, node, np.maximum(excess, 0.0))
                if excess.any():
                    found[node] = excess
    return found


def _ordinary(by_stage: Sequence[Seconds]) -> tuple[float, float]:
    """Say how long a transfer of one type usually takes, and at most, where nothing is wrong; seconds.

    Of several places the ordinary ones are in the middle, by their medians and by their upper ends apart: a link that flaps has the
    median of any other. Of one place, it is the shorter of two levels.
    """
    by_stage = [_quick_steps(s) for s in by_stage]
    medians = np.concatenate([nan_median(s, axis=(0, 1)) for s in by_stage])
    usual = float(np.sort(medians)[(len(medians) - 1) // 2])
    if 1 < len(medians) <= FEW_PLACES and usual > TWO_LEVELS_RATIO**2 * float(medians.min()) > 0:
        # A slow link makes its neighbours look slow: of few places most may be, but none looks quicker than it is.
        quick = medians <= TWO_LEVELS_RATIO * medians.min()
        usual = float(np.sort(medians[quick])[(int(quick.sum()) - 1) // 2])
        by_stage = [s[:, :, nan_median(s, axis=(0, 1)) <= TWO_LEVELS_RATIO * usual] for s in by_stage]
    if len(medians) == 1:
        row = by_stage[0][np.isfinite(by_stage[0])]
        # With nothing to compare with, what is wrong may be most of it: then there are two levels, and little between them.
        low = float(np.quantile(row, LOW_QUANTILE))
        between = (row > TWO_LEVELS_RATIO * low) & (row < usual / TWO_LEVELS_RATIO)
        if usual > TWO_LEVELS_RATIO**2 * low > 0 and float(between.mean()) < BETWEEN_SHARE:
            row = row[row <= TWO_LEVELS_RATIO * low]
            usual = float(np.median(row))
        usual = max(usual, 0.0)
        sigma = max(usual - float(np.quantile(row, LOW_QUANTILE)), 0.0) / HALF_SPREAD_TO_SIGMA
        return usual, usual + TOP_DEVIATIONS * sigma
    tops = np.concatenate([nan_quantile(s, HIGH_QUANTILE, axis=(0, 1)) for s in by_stage])
    usual = max(usual, 0.0)
    return usual, max(usual, float(np.sort(tops)[(len(tops) - 1) // 2]))


def _quick_steps(seconds: Seconds) -> Seconds:
    """Leave out the slow steps of places that are on two levels over the steps, NaN in their stead: the quick ones are ordinary.

    Where transfers block, a slow link makes its neighbours look slow, and of few links most are then slow together.
    """
    if seconds.shape[1] < 2 * MIN_IN_STEP:
        return seconds
    by_step = np.median(seconds, axis=0)  # (n_steps, n_dp)
    low = np.quantile(by_step, LOW_QUANTILE, axis=0)
    slow = by_step > TWO_LEVELS_RATIO * low
    high = np.nanmedian(np.where(slow.any(axis=0) & ~slow, np.nan, by_step), axis=0)
    between = (by_step > TWO_LEVELS_RATIO * low) & (by_step < high / TWO_LEVELS_RATIO)
    apart = (low > 0) & slow.any(axis=0) & (between.mean(axis=0) < BETWEEN_SHARE)
    return np.where((slow & apart)[None], np.nan, seconds) if apart.any() else seconds


def _stride(seconds: Seconds) -> int:
    """Say which steps of an array (n_steps, n_dp) are looked at for a median."""
    return -(-int(seconds.shape[0]) // MAX_LINK_STEPS)
