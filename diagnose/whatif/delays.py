"""Measure launch delays that are longer than what every job has.

Enters: observed blocks. Leaves: seconds by node, beyond the ordinary, and what workers still had to do of the step before. Costs a
few passes over the launch delays.
"""

from collections.abc import Iterator, Sequence

import numpy as np

from diagnose.model.optype import DP_COLLECTIVES, RECEIVES, Op, of_types
from diagnose.model.trace import Bools, Ints, Seconds, Trace
from diagnose.numerics.robust import median
from diagnose.whatif.computes import COMPUTES, find_last
from diagnose.whatif.levels import at_a_time, take
from diagnose.whatif.observed import Observed

#: A launch delay, or time between steps, that no job is without: part of the step (1% before reduce-scatter in a production job).
ORDINARY_SHARE = 0.01
#: Launch delays up to this many times the usual one of their type are ordinary.
ORDINARY_DELAY_RATIO = 3.0
#: ... and before the first forward of a step, where a loader that is always late must show.
ORDINARY_OPENING_RATIO = 1.5
#: What the steps of ranks end with.
ENDS_STEPS = (*DP_COLLECTIVES, Op.OPTIMIZER)
#: A collective that begins within computes does so in this part of the steps.
WITHIN_SHARE = 0.9
#: Shorter than this no delay is looked at, seconds.
SHORTEST_S = 1e-4


def measure_carried(trace: Trace, observed: Sequence[Observed]) -> list[Seconds]:
    """Say how long after the beginning of a step each worker is still busy with the step before.

    Where times are relative to the step nobody knows when it began: it is taken to follow directly, as `_measure_lengths` says. No
    worker waits for more than that then, whatever keeps it. Where computes alone are recorded nobody knows how steps end, either,
    and nothing is carried.

    Returns
    -------
    list of ndarray of float64, shape (n_stages, n_steps, n_dp), one a block
        Seconds after the step's origin. Where the step before was not sampled each is taken to end it as late, beside the others,
        as it usually ends those that were; 0 in the first and after a restart.
    """
    every_step = np.sort(trace.steps)
    shape = trace.n_stages, len(every_step), trace.n_dp
    (starts_s, waits_s), ends_s = np.full((2, *shape), np.inf), np.zeros(shape)
    for o in observed:
        at = np.searchsorted(every_step, o.block.steps)
        start_s, end_s = o.block.start_s, o.block.end_s
        if o.block.filled is not None:
            start_s, end_s = np.where(o.block.filled, np.inf, start_s), np.where(o.block.filled, 0.0, end_s)
        for stage in range(trace.n_stages):
            first_s, wait_s, last_s = starts_s[stage, at], waits_s[stage, at], ends_s[stage, at]
            for node in np.flatnonzero(o.block.nodes.stage == stage).tolist():
                # Who begins a step with a receive waits for who has begun it.
                begin_s = wait_s if o.block.nodes.op[node] in RECEIVES else first_s
                np.minimum(begin_s, start_s[node], out=begin_s)
                np.maximum(last_s, end_s[node], out=last_s)
            starts_s[stage, at], waits_s[stage, at], ends_s[stage, at] = first_s, wait_s, last_s
    follows = (np.diff(every_step) == 1) & ~np.isin(every_step[1:], trace.restarted_steps)
    first = starts_s.min(axis=(0, 2), keepdims=True) == starts_s
    if trace.step_origin_s is None:
        length_s = _measure_lengths(np.minimum(starts_s, waits_s), ends_s, first)
    else:
        length_s = np.diff(trace.step_origin_s)
    carried_s = np.zeros(shape)
    ends_known = any(of_types(o.block.nodes.op, ENDS_STEPS).any() for o in observed)
    if trace.step_origin_s is None and not ends_known:
        follows[:] = False
    if ends_known:
        # Who begins a step first had ended the one before.
        usual_s = median(ends_s - np.where(first, ends_s, 0.0).max(axis=(0, 2), keepdims=True), axis=1)
        carried_s[:, 1:] = np.maximum(usual_s, 0.0)[:, None]
        carried_s[:, np.isin(every_step, trace.restarted_steps)] = 0.0
    beyond_s = np.maximum(ends_s[:, :-1] - length_s[:, None], 0.0)
    carried_s[:, 1:] = np.where(follows[:, None], beyond_s, carried_s[:, 1:])
    return [carried_s[:, np.searchsorted(every_step, o.block.steps)] for o in observed]


def _measure_lengths(begins_s: Seconds, ends_s: Seconds, first: Bools) -> Seconds:
    """Say how long after a step the next one began, where nobody does: when who begins it first had ended the one before.

    Or else who begins it first and not with a wait for others, `first`: a wait may have been cut, as for `hold_early_recvs`. Then
    others would begin before they have ended. All have the shape (n_stages, n_steps, n_dp); seconds, shape (n_steps - 1,).
    """
    least_s = (ends_s[:, :-1] - begins_s[:, 1:]).max(axis=(0, 2))
    at_once = begins_s.min(axis=(0, 2), keepdims=True) == begins_s
    by_any_s, by_first_s = (np.where(who[:, 1:], ends_s[:, :-1], 0.0).max(axis=(0, 2)) for who in (at_once, first))
    tolerance_s = ORDINARY_SHARE * ends_s[:, :-1].max(axis=(0, 2))
    return np.asarray(np.where(by_any_s >= least_s - tolerance_s, by_any_s, by_first_s))


def delay_excess(o: Observed, carried_s: Seconds | None = None) -> dict[int, Seconds]:
    """Say how much longer than usual each launch delay was, by node.

    Before forwards of the first stage, and of the model's end, the usual delay is that before computes elsewhere: a loader that is
    always slow leaves no ordinary delay there to compare with. What a worker begins a step with cannot begin before it has ended
    the step before: `carried_s` later, as `measure_carried` says. Seconds, shape (n_steps, n_dp); nodes that were never late are
    left out.
    """
    op, stage = o.block.nodes.op, o.block.nodes.stage
    n_stages = 1 + int(stage.max())
    reads = (stage == 0) | (np.maximum(o.block.nodes.chunk, 0) * n_stages + stage == find_last([o], n_stages))
    inputs = (op == Op.FORWARD) & reads
    simulated = o.graph.moves.members.flat
    computes = simulated[of_types(op[simulated], COMPUTES)]
    elsewhere = computes[~inputs[computes]] if not inputs[computes].all() else computes
    step_s = float(np.mean(o.block.step_ends_s))
    usual_compute = max(float(median(_medians(o, elsewhere))), 0.0) if len(elsewhere) else 0.0
    # A delay that is there in every step is no less lost; what no job is without is short.
    ordinary_s = np.full(len(op), max(usual_compute, ORDINARY_SHARE * step_s))
    ratio, opening = np.full(len(op), ORDINARY_DELAY_RATIO), _first_forward(o)
    ordinary_s[inputs & (np.arange(len(op)) != opening)] = usual_compute
    ratio[np.arange(len(op)) == opening] = ORDINARY_OPENING_RATIO
    found: dict[int, Seconds] = {}
    for part, delay_s in _take_delays(o, simulated, carried_s):
        late = delay_s.max(axis=(1, 2)) > SHORTEST_S
        if not late.any():
            continue
        nodes, delay = part[late], delay_s[late]
        # Of two ranks the quicker one says what is usual: the middle of both is neither's.
        by_rank = median(delay, axis=1, keepdims=True) if delay.shape[2] == 2 else None
        usual = median(delay, axis=(1, 2), keepdims=True) if by_rank is None else by_rank.min(axis=2, keepdims=True)
        usual = np.minimum(np.maximum(usual, 0.0), ordinary_s[nodes, None, None])
        excess = np.where(delay > ratio[nodes, None, None] * usual + SHORTEST_S, delay - usual, 0.0)
        if o.block.filled is not None:  # what was filled in is nobody's time
            excess = np.where(o.block.filled[nodes], 0.0, excess)
        lost = np.asarray(excess.any(axis=(1, 2)))
        for at in np.flatnonzero(lost & of_types(op[nodes], DP_COLLECTIVES) & np.isin(nodes, [*o.beside])).tolist():
            lost[at] = not _begins_within(o, int(nodes[at]))
        found |= zip(nodes[lost].tolist(), excess[lost], strict=True)
    return found


def _begins_within(o: Observed, node: int) -> bool:
    """Say whether a collective nearly always begins while its worker computes: as its gradients are there, and not when it may."""
    begins_s, compute = o.block.start_s[node], o.beside[node]
    within = (o.block.start_s[compute] <= begins_s) & (begins_s < o.block.end_s[compute])
    return bool(within.mean() >= WITHIN_SHARE)


def _take_delays(o: Observed, nodes: Ints, carried_s: Seconds | None) -> Iterator[tuple[Ints, Seconds]]:
    """Give nodes with the launch delays that no other rows fill: several at a time where they have few lanes."""
    opens, stage = o.graph.sources.lengths == 0, o.block.nodes.stage
    for some in at_a_time(o.delay, nodes):
        part = np.atleast_1d(some)
        delay = _idle(o, part)
        if carried_s is not None and (first := opens[part]).any():
            late = delay[first]
            delay[first] = np.maximum(late - carried_s[stage[part[first]]], np.minimum(late, 0.0))
        yield part, delay


def _idle(o: Observed, nodes: Ints) -> Seconds:
    """Give a copy of the launch delays of nodes as `Observed.idle` has them, shape (n_nodes, n_steps, n_dp)."""
    return take(o.delay, nodes) if o.busy is None else np.array([o.idle(node) for node in nodes.tolist()])


def _medians(o: Observed, nodes: Ints) -> Seconds:
    """Take the median launch delay of each node, seconds."""
    parts = (np.atleast_1d(some) for some in at_a_time(o.delay, nodes))
    return np.concatenate([median(_idle(o, part), axis=(1, 2)) for part in parts])


def _first_forward(o: Observed) -> int:
    """Find the first forward of the first stage: the host prepares the step before it."""
    forwards = np.flatnonzero((o.block.nodes.op == Op.FORWARD) & (o.block.nodes.stage == 0))
    return int(forwards[np.argmin(o.block.nodes.seq[forwards])]) if len(forwards) else -1


def recorded(o: Observed, node: int, excess: Seconds) -> Seconds:
    """Leave out what was filled in: it is nobody's time."""
    return excess if o.block.filled is None else np.where(o.block.filled[node], 0.0, excess)
