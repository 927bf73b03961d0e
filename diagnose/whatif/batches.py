"""Find point-to-point operations that were launched together and end together: blocking batches.

Enters: a block. Leaves: groups of nodes. What is asked of the times is asked of a few lanes only.
"""

import itertools
import math
import warnings

import numpy as np

from diagnose.model.optype import DIRECTIONS, P2P, Op, of_types
from diagnose.model.trace import Block, Ints, Nodes, Seconds
from diagnose.numerics.robust import median
from diagnose.whatif.graph import split_nodes
from diagnose.whatif.overlaps import find_overlaps

#: Lanes (step x dp rank) looked at when waits are learned; more would not change a share of 97%.
MAX_LANES = 512
#: A wait holds if it does in this part of the lanes (prototype, LESSONS: a launch delay that tracks an end is an edge).
HELD_SHARE = 0.97
#: Clock granularity: seconds, and part of a typical forward (production trace: starts up to 40 us before the end waited for
#: at forwards of 0.22 s).
TOLERANCE_S = 20e-6
TOLERANCE_SHARE = 1e-3
#: One batch is recorded with one start and one end; float32 seconds late in a long step are coarser than this.
GRANULARITY_S = 2e-7
#: What starts earlier than another ends by this part of the step does not wait for it: one such lane is as many.
FAR_SHARE, FAR_WEIGHT = 0.1, 3
#: Operations of one batch at most: a send and a recv in each direction.
MAX_BATCH = 4
#: Noise of timestamps: by how much the most overlapping computes overlap, and how many times that two of them may be apart.
JITTER_QUANTILE = 0.02
JITTER_DEVIATIONS = 2.0


class SampledLanes:
    """A few lanes of the block, evenly spread, on which waits are learned: shape (n_nodes, n_lanes).

    NaN where an operation was not recorded: nothing is learned from what was filled in.
    """

    def __init__(self, block: Block) -> None:
        n_nodes, n_steps, n_dp = block.start_s.shape
        stride = max(1, n_steps * n_dp // MAX_LANES)
        stride += 1 if stride > 1 and n_dp % stride == 0 else 0

        def lanes(values: Seconds) -> Seconds:
            return values.reshape(n_nodes, -1)[:, ::stride]

        self.start_s, self.end_s = lanes(block.start_s), lanes(block.end_s)
        if block.filled is not None:
            lost = block.filled.reshape(n_nodes, -1)[:, ::stride]
            self.start_s = np.where(lost, np.nan, self.start_s)
            self.end_s = np.where(lost, np.nan, self.end_s)
        #: Every operation was recorded in every lane.
        self.is_complete = not (np.isnan(self.start_s).any() or np.isnan(self.end_s).any())
        forwards = block.nodes.op == Op.FORWARD
        took_s = (self.end_s - self.start_s)[forwards]
        took_s = took_s[np.isfinite(took_s)]
        forward_s = float(median(took_s)) if len(took_s) else 0.0
        jitter_s = self._jitter(block)
        self.tolerance_s = max(TOLERANCE_S, TOLERANCE_SHARE * forward_s, JITTER_DEVIATIONS * jitter_s)
        self.far_s = max(FAR_SHARE * float(np.mean(block.step_ends_s)), self.tolerance_s)
        self.granularity_s = GRANULARITY_S + 4.0 * float(np.spacing(np.float32(np.nanmax(self.end_s))))
        self.blurred_s = max(self.granularity_s, JITTER_DEVIATIONS * jitter_s)

    def _jitter(self, block: Block) -> float:
        """Say how much computes of one worker, which run one after the other, seem to overlap: the noise of the timestamps.

        Computes that run side by side say nothing.
        """
        nodes, overlaps = block.nodes, [0.0]
        there = ~np.isnan(self.start_s)
        usual = np.where(there, self.start_s, 0.0).sum(axis=1) / np.maximum(there.sum(axis=1), 1)
        beside = find_overlaps(block, usual)
        for stage in range(int(nodes.stage.max()) + 1):
            computes = np.flatnonzero((nodes.stage == stage) & of_types(nodes.op, DIRECTIONS))
            order = computes[np.argsort(usual[computes], kind="stable")]
            gap = self.start_s[order[1:]] - self.end_s[order[:-1]]
            if beside:
                gap = gap[[not beside.get(a) and not beside.get(b) for a, b in itertools.pairwise(order.tolist())]]
            gap = gap[np.isfinite(gap)]
            if gap.size:
                overlaps.append(-float(np.quantile(gap, JITTER_QUANTILE)))
        return max(overlaps)

    def held_share(self, source: int, waiter: int) -> float:
        """Part of the lanes that recorded both in which `waiter` never started before `source` had ended."""
        gap = self.recorded(self.start_s[waiter] - self.end_s[source])
        return np.count_nonzero(gap >= -self.tolerance_s) / gap.size if gap.size else 0.0

    def held_shares(self, sources: Ints, waiters: Ints) -> Seconds:
        """Give `held_share` of many pairs, where starts that are far too early, which no clock explains, count as several."""
        found = np.zeros(len(sources))
        for part in split_nodes(np.arange(len(sources)), self.start_s.shape[1]):
            gap = self.start_s[waiters[part]] - self.end_s[sources[part]]
            held = np.count_nonzero(gap >= -self.tolerance_s, axis=1)
            found[part] = (held - FAR_WEIGHT * np.count_nonzero(gap < -self.far_s, axis=1)) / self.count(gap)
        return np.maximum(found, 0.0)

    def count(self, values: Seconds) -> Ints | int:
        """Count the lanes that recorded all that each row is made of, but at least one; `values` has shape (n, n_lanes)."""
        if self.is_complete:
            return max(int(values.shape[1]), 1)
        return np.asarray(np.maximum(np.count_nonzero(~np.isnan(values), axis=1), 1))

    def recorded(self, values: Seconds) -> Seconds:
        """Leave out the lanes that lack an operation; shape (n_lanes,) before."""
        return values if self.is_complete else values[~np.isnan(values)]


def find_all_batches(block: Block) -> list[tuple[int, ...]]:
    """Find the blocking batches of all workers, by what was recorded."""
    sample, nodes = SampledLanes(block), block.nodes
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # nodes that no lane recorded are in no batch
        start_s = np.nan_to_num(np.nanmean(sample.start_s, axis=1))
    order = np.argsort(start_s, kind="stable")
    on_stages = (order[nodes.stage[order] == stage] for stage in range(int(nodes.stage.max()) + 1))
    return [batch for on_stage in on_stages for batch in find_batches(nodes, sample, on_stage)]


def find_batches(nodes: Nodes, sample: SampledLanes, order: Ints) -> list[tuple[int, ...]]:
    """Find point-to-point operations of one worker that start and end as one: a blocking batch of several transfers.

    `order` lists the worker's nodes in launch order.
    """
    p2p = order[of_types(nodes.op[order], P2P)]
    batches = _group_alike(sample, p2p, sample.granularity_s)
    if not batches and sample.blurred_s > sample.granularity_s:
        # Timestamps with noise of their own: the members of a batch are recorded apart by as much.
        batches = _group_alike(sample, p2p, sample.blurred_s)
    return batches


def _group_alike(sample: SampledLanes, p2p: Ints, tolerance_s: float) -> list[tuple[int, ...]]:
    """Group operations near each other that start and end within a tolerance in nearly all lanes.

    A member without a peer moves nothing and ends at once: it may stand between the others.
    """
    alike = [_are_alike(sample, p2p, back, tolerance_s) for back in range(1, MAX_BATCH + 1)]
    if not any(map(any, alike)):
        return []
    groups: list[list[int]] = []
    for at in range(len(p2p)):
        for group in reversed(groups[-MAX_BATCH:]):
            back = at - group[0]
            while back > len(alike):
                alike.append(_are_alike(sample, p2p, len(alike) + 1, tolerance_s))
            if alike[back - 1][at]:
                group.append(at)
                break
        else:
            groups.append([at])
    every = p2p.tolist()
    return [tuple([every[at] for at in group]) for group in groups if len(group) > 1]


def _are_alike(sample: SampledLanes, p2p: Ints, back: int, tolerance_s: float) -> list[bool]:
    """Say of each operation whether it starts and ends with the one so many before it, in nearly all lanes that recorded both."""
    start_s, end_s = sample.start_s, sample.end_s
    found, at = np.full(len(p2p), fill_value=False), np.arange(back, len(p2p))
    if sample.is_complete:  # of so many lanes one tells, unless they are apart
        few = start_s[p2p, : 1 + math.floor((1.0 - HELD_SHARE) * start_s.shape[1])]
        at = at[(np.abs(few[back:] - few[:-back]) <= tolerance_s).any(axis=1)] if len(at) else at
    for part in split_nodes(at, start_s.shape[1]):
        first, second = p2p[part - back], p2p[part]
        apart = np.maximum(np.abs(start_s[first] - start_s[second]), np.abs(end_s[first] - end_s[second]))
        found[part] = np.count_nonzero(apart <= tolerance_s, axis=1) / sample.count(apart) >= HELD_SHARE
    alike: list[bool] = found.tolist()
    return alike
