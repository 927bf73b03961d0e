"""Find slow links, and cards, between the dp ranks of a stage by the ends of their collectives.

Enters: observed blocks. Leaves: for each stage the slow link or card of its ring, and what its collectives take too long. Costs one
pass over the collectives. In a ring, which goes up or down the ranks, all data goes over every link: what a slow one holds up is
late first at the rank behind it, and at each further one a round later. So that rank ends late, and the one before the link has all
it needs before. But where a rank ends when all is sent, the one before the link ends with the one behind it; and behind a slow
card, which both its links go through, three ranks end together.
"""

import dataclasses
from collections.abc import Mapping, Sequence

import numpy as np

from diagnose.model.optype import Op
from diagnose.model.trace import Seconds
from diagnose.whatif.observed import Observed

#: A ring goes up the ranks, or down, as those of NCCL and Gloo do.
WAYS = (1, -1)
#: Of two ranks each is behind the other.
MIN_RANKS = 3
#: A rank is behind a slow link where it has this part of what collectives end apart: real ones had 0.76 to 1, others up to 0.6.
BEHIND_SHARE = 0.7
#: ... and at most this part of it is where a ring that goes the other way would have it: else nobody can tell which way it goes.
OTHER_WAY_SHARE = 0.5
#: ... and so many standard deviations more than chance gives it.
CHANCE_DEVIATIONS = 3.0
#: Ranks end together that do so but for this part of a round.
SAME_ROUND_SHARE = 0.5
#: One collective is its where it ends later than the rank before by this part of all that ranks do.
JUMP_SHARE = 0.7
#: So many collectives say it at least, as many as have as much of the seconds.
MIN_COLLECTIVES = 6.0
#: The quickest collectives are these part of them.
QUICK_QUANTILE = 0.25
#: Less than this part of the step is how processes are woken.
LEAST_SHARE = 0.01


@dataclasses.dataclass(frozen=True, slots=True)
class Rings:
    """Slow links and cards of rings; one a stage at most.

    Attributes
    ----------
    links : sequence of (int, int, int)
        Stage, the dp rank before the link and the one behind it.
    cards : sequence of (int, int)
        Stage and dp rank.
    share : float
        The most of what collectives of a stage end apart that is at such a place, beyond chance; 0 where there is none.
    excess_s : sequence of dict of int to ndarray of float64, shape (n_steps, n_dp)
        What collectives of these stages take beyond what they would without that place, seconds by node, one dict a block.
    """

    links: Sequence[tuple[int, int, int]]
    cards: Sequence[tuple[int, int]]
    share: float
    excess_s: Sequence[Mapping[int, Seconds]]

    @property
    def stages(self) -> list[int]:
        """List the stages whose ring has such a place."""
        return [place[0] for place in (*self.links, *self.cards)]


def find_rings(observed: Sequence[Observed], n_stages: int) -> Rings:
    """Find the slow links and cards of the rings of all stages."""
    n_dp = observed[0].block.n_dp
    by_rank_s, (total_s, squares) = np.zeros((len(WAYS), n_stages, n_dp)), np.zeros((2, n_stages))
    ends_s = np.zeros((n_stages, n_dp))
    for o in observed:
        for node in o.find_groups().tolist():
            stage, own_s = int(o.block.nodes.stage[node]), np.maximum(o.own[node], 0.0)
            apart_s = np.ptp(own_s, axis=1)
            ends_s[stage] += own_s.sum(axis=0)
            total_s[stage] += apart_s.sum()
            squares[stage] += (apart_s**2).sum()
            for of_way, way in zip(by_rank_s, WAYS, strict=True):
                later_s = own_s - np.roll(own_s, way, axis=1)
                is_one = later_s.max(axis=1) >= JUMP_SHARE * np.maximum(later_s, 0.0).sum(axis=1)
                np.add.at(of_way[stage], later_s.argmax(axis=1)[is_one], apart_s[is_one])
    tiny, step_s = np.finfo(float).tiny, sum(float(o.block.step_ends_s.sum()) for o in observed)
    share, n_alike = by_rank_s / np.maximum(total_s, tiny)[:, None], total_s**2 / np.maximum(squares, tiny)
    chance = 1.0 / n_dp
    by_luck = chance + CHANCE_DEVIATIONS * np.sqrt(chance * (1.0 - chance) / np.maximum(n_alike, 1.0))
    told = (total_s > LEAST_SHARE * step_s) & (n_alike >= MIN_COLLECTIVES) & (n_dp >= MIN_RANKS)
    told &= share.max(axis=2).min(axis=0) <= OTHER_WAY_SHARE
    behind = told[:, None] & (share >= np.maximum(BEHIND_SHARE, by_luck)[:, None])
    links, cards, n_together = list[tuple[int, int, int]](), list[tuple[int, int]](), dict[int, int]()
    for way, stage, rank in np.argwhere(behind).tolist():
        around = (rank + WAYS[way] * np.arange(n_dp)) % n_dp  # from the jump on
        first, second, *_, before = around.tolist()
        # So do ranks end to which the first one hands out, one after the other.
        if 0 in (before, first) and _end_always_so(observed, stage, before, first):
            continue
        beside = ends_s[stage, first] - ends_s[stage, around] <= SAME_ROUND_SHARE * total_s[stage] / (n_dp - 1)
        n_together[stage] = together = int(beside.argmin())
        links += [(stage, before, first)] * (together == 1) + [(stage, first, second)] * (together == 2)
        cards += [(stage, second)] * (together == 3)
    found = Rings(links, cards, 0.0, [])
    beyond = max((float(share[behind].max()) - chance) / (1.0 - chance), 0.0) if found.stages else 0.0
    of_places = {stage: n_together[stage] for stage in found.stages}
    return Rings(links, cards, beyond, [_find_excess(o, of_places) for o in observed])


def _end_always_so(observed: Sequence[Observed], stage: int, before: int, behind: int) -> bool:
    """Say whether the rank behind a link ends later than the one before it, by most that ranks do, in quick collectives, too."""
    n_such = n_quick = 0
    for o in observed:
        nodes = o.find_groups()
        for node in nodes[o.block.nodes.stage[nodes] == stage].tolist():
            own_s = np.maximum(o.own[node], 0.0)
            apart_s = np.ptp(own_s, axis=1)
            quick = own_s[apart_s <= np.quantile(apart_s, QUICK_QUANTILE)]
            n_quick += len(quick)
            n_such += int(np.count_nonzero(quick[:, behind] - quick[:, before] >= JUMP_SHARE * np.ptp(quick, axis=1)))
    return 2 * n_such >= n_quick


def _find_excess(o: Observed, n_together: Mapping[int, int]) -> dict[int, Seconds]:
    """Say what collectives of stages with a slow link or card take too long; `n_together` ranks of a stage end together.

    A gather, or a reduction to parts, goes once around, in a round less than there are ranks, and the place holds up each of them;
    members end apart by what it does so in as many rounds as there are ranks beside those that end together. An all-reduce goes
    twice.
    """
    nodes, found, n_dp = o.block.nodes, dict[int, Seconds](), o.block.n_dp
    gathers = nodes.stage[nodes.op == Op.ALL_GATHER]
    for node in o.find_groups().tolist():
        stage = int(nodes.stage[node])
        if stage not in n_together:
            continue
        own_s = np.maximum(o.own[node], 0.0)
        times = 1.0 if nodes.op[node] != Op.SEPARATE and stage in gathers else 2.0
        times *= (n_dp - 1.0) / (n_dp - n_together[stage])
        last_s, apart_s = own_s.max(axis=1), np.ptp(own_s, axis=1)
        ordinary_s = np.maximum(last_s - times * apart_s, 0.0)
        ordinary_s = np.maximum(ordinary_s, ordinary_s[apart_s.argmin()])  # what got stuck once was held up once
        found[node] = np.maximum(own_s - ordinary_s[:, None], 0.0)
    return found
