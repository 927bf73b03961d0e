"""Swap two workers until a slow card is mended: where less traffic goes through it, it costs less.

The replay takes what the card costs where it is, and lets the transfers of another stage of the same dp rank take as many times as
long.
"""

from collections.abc import Mapping

import numpy as np

from diagnose.fixes.frameworks import choose_how
from diagnose.fixes.places import labels_of, mask_workers, read_labels, read_worker
from diagnose.model.analysis import Analysis
from diagnose.model.change import Change, Remove, Scale
from diagnose.model.optype import DP_COLLECTIVES, P2P, Op
from diagnose.model.remedy import FaultLocation, Refusal, Remedy
from diagnose.model.trace import Seconds

NAME = "swap-workers"
TITLE = "swap a worker with a slow card with one that carries less traffic"
SETTINGS = {
    "dp": "dp rank of the worker with the slow card",
    "pp": "its stage",
    "to": "stage that it goes to, on the same dp rank; the best one where left out",
}
#: A card whose transfers take fewer times as long as their equals is no slow one.
SLOWER = 1.25
#: A swap that gives back less than this part of the step is not worth a restart.
WORTH = 0.01
_HOW = {
    "any": "Restart with the two hosts exchanged in the host list (hostfile, MASTER_ADDR stays), so that the ranks of that worker "
    "run on the other host; the card stays slow, so have it mended all the same",
}
_COLLECTIVES = frozenset({int(op) for op in DP_COLLECTIVES} | {int(Op.LAYERNORM)})


def propose(analysis: Analysis, place: FaultLocation, settings: Mapping[str, str]) -> Remedy | Refusal:
    """Try every other stage of the dp rank, or the one named."""
    trace = analysis.trace
    named = read_worker(settings, trace, NAME) or [(worker.dp, worker.pp) for worker in place.where.workers]
    if len(named) != 1:
        return Refusal("it takes one worker with a slow card", obvious=True)
    if analysis.trace.job.n_hosts == 1:
        return Refusal("all workers are on one host: no network card lies between them")
    if trace.n_stages < 2:
        return Refusal("with one stage every worker carries the same traffic", obvious=True)
    mask = mask_workers(trace, named)
    ((dp, stage),) = np.argwhere(mask).tolist()
    ratios = _ratios(analysis, dp, stage)
    if max(ratios) < SLOWER:
        return Refusal("its transfers are no slower than their equals", obvious=True)
    others = read_labels(settings, "to", trace.stage_labels, NAME) if "to" in settings else trace.stage_labels.tolist()
    targets = [int(np.flatnonzero(trace.stage_labels == label)[0]) for label in others if label != named[0][1]]
    if not targets:
        return Refusal("it is on that stage already")
    moves = {to: _move(analysis, mask, dp, to, ratios) for to in targets}
    step_s = {to: float(analysis.price(changes).mean()) for to, changes in moves.items()}
    best = min(targets, key=step_s.__getitem__)
    if step_s[best] > (1.0 - WORTH) * analysis.gains.replayed_s and "to" not in settings:
        return Refusal(
            "no other stage of its dp rank carries so much less traffic that a restart would pay", obvious=True
        )
    (who,) = labels_of(trace, mask)
    to = int(trace.stage_labels[best])
    return Remedy(
        summary=f"swap the workers of stages {who[1]} and {to} of dp {who[0]}: less traffic goes through the slow card there",
        how=choose_how(_HOW, trace.job),
        changes=moves[best],
        settings={"dp": str(who[0]), "pp": str(who[1]), "to": str(to)},
        assumptions=("the slow card, and not a cable or switch port of its place, makes the transfers slow",),
        risks=("it is a restart that mends nothing: only until the card can be replaced",),
        figures={"slower_p2p": ratios[0], "slower_collectives": ratios[1]},
    )


def _ratios(analysis: Analysis, dp: int, stage: int) -> tuple[float, float]:
    """Say how many times as long transfers of a worker, and collectives of its group, take as their equals do."""
    t = analysis.transfers
    links = t.link_s[[stage - 1, stage], dp]
    others = np.delete(t.link_s, dp, axis=1) if t.link_s.shape[1] > 1 else t.link_s
    group = np.delete(t.group_s, stage)
    return _over(links, others), _over(t.group_s[[stage]], group)


def _over(slow_s: Seconds, equal_s: Seconds) -> float:
    """Divide the largest of some times by the median of their equals; 1 where nothing is known."""
    slow_s, equal_s = slow_s[np.isfinite(slow_s)], equal_s[np.isfinite(equal_s)]
    if not len(slow_s) or not len(equal_s) or np.median(equal_s) <= 0:
        return 1.0
    return max(float(slow_s.max() / np.median(equal_s)), 1.0)


def _move(analysis: Analysis, mask: np.ndarray, dp: int, to: int, ratios: tuple[float, float]) -> tuple[Change, ...]:
    """Say what a card costs no more where it was, and costs where it goes."""
    n_stages, n_dp = analysis.trace.n_stages, analysis.trace.n_dp
    wraps = analysis.breakdown.typical_s.shape[1] > n_stages

    def at(stage: int, ratio: float, *, all_ranks: bool = False) -> Seconds:
        factor = np.ones((n_stages, 1, n_dp))
        if wraps or 0 <= stage < n_stages:
            factor[stage % n_stages, 0, slice(None) if all_ranks else dp] = ratio
        return factor

    p2p, collective = ratios
    return (
        Remove("transfer", mask),
        Scale(frozenset(int(op) for op in P2P), at(to, p2p)),
        Scale(frozenset({int(Op.FORWARD_SEND), int(Op.BACKWARD_RECV)}), at(to - 1, p2p)),
        Scale(frozenset({int(Op.FORWARD_RECV), int(Op.BACKWARD_SEND)}), at(to + 1, p2p)),
        Scale(_COLLECTIVES, at(to, collective, all_ranks=True)),
    )
