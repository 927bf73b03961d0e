"""Slow transfers: communication that takes longer than on an ordinary link, or in ordinary steps."""

from collections.abc import Collection, Sequence

import numpy as np

from diagnose.model.components import Traits
from diagnose.model.feature import Features
from diagnose.model.optype import DP_COLLECTIVES, P2P, Op
from diagnose.model.trace import Seconds
from diagnose.numerics.robust import lower_median, nan_median, nan_quantile
from diagnose.whatif.components.component import Component, Part
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
#: Steps from which it is learned what is usual on a link.
MAX_LINK_STEPS = 16


class TransferPart(Part):
    """Without it transfers take as long as ordinary ones of their type."""

    def find(self) -> None:
        """Find what transfers take beyond that of ordinary ones."""
        self.own_s = [transfer_excess(o) for o in self.job.observed]


def transfer_excess(o: Observed) -> dict[int, Seconds]:
    """Say how much longer than on an ordinary link, or in ordinary steps, each transfer took; only where it stands out."""
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
            stage: np.stack([o.own[n][:: stride_of(o.own[n])] for n in at]) for stage, at in by_stage.items()
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
    usual = float(lower_median(medians))
    if 1 < len(medians) <= FEW_PLACES and usual > TWO_LEVELS_RATIO**2 * float(medians.min()) > 0:
        # A slow link makes its neighbours look slow: of few places most may be, but none looks quicker than it is.
        quick = medians <= TWO_LEVELS_RATIO * medians.min()
        usual = float(lower_median(medians[quick]))
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
    return usual, max(usual, float(lower_median(tops)))


def _quick_steps(seconds: Seconds) -> Seconds:
    """Leave out the slow steps of places that are on two levels over the steps, NaN in their stead: the quick ones are ordinary.

    Where transfers block, a slow link makes its neighbours look slow, and of few links most are then slow together.
    """
    if seconds.shape[1] < 2 * MIN_IN_STEP:
        return seconds
    by_step = np.median(seconds, axis=0)  # (n_steps, n_dp)
    low = np.quantile(by_step, LOW_QUANTILE, axis=0)
    slow = by_step > TWO_LEVELS_RATIO * low
    high = nan_median(np.where(slow.any(axis=0) & ~slow, np.nan, by_step), axis=0)
    between = (by_step > TWO_LEVELS_RATIO * low) & (by_step < high / TWO_LEVELS_RATIO)
    apart = (low > 0) & slow.any(axis=0) & (between.mean(axis=0) < BETWEEN_SHARE)
    return np.where((slow & apart)[None], np.nan, seconds) if apart.any() else seconds


def stride_of(seconds: Seconds) -> int:
    """Say which steps of an array (n_steps, n_dp) are looked at for a median."""
    return -(-int(seconds.shape[0]) // MAX_LINK_STEPS)


def _are_held_up(features: Features, explained: Collection[str]) -> bool:
    """Say whether transfers are slow for what slows their workers, or for the contention that computes wait for, too."""
    by_worker = features.get("network.by_slow_worker")
    return "queue" in explained or ("worker" in explained and by_worker is not None and by_worker.value == 1.0)


COMPONENT = Component("transfer", TransferPart, traits=Traits(whom="links", is_excused=_are_held_up))
