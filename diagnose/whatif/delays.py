"""Measure launch delays that are longer than what every job has.

Enters: observed blocks. Leaves: seconds by node, beyond the ordinary. Costs a few passes over the launch delays.
"""

from collections.abc import Iterator, Sequence

import numpy as np

from diagnose.model.optype import Op
from diagnose.model.trace import Ints, Seconds
from diagnose.whatif.computes import COMPUTES
from diagnose.whatif.observed import Observed

#: A launch delay, or time between steps, that no job is without: part of the step (1% before reduce-scatter in a production job).
ORDINARY_SHARE = 0.01
#: Launch delays up to this many times the usual one of their type are ordinary.
ORDINARY_DELAY_RATIO = 3.0
#: ... and before the first forward of a step, where a loader that is always late must show.
ORDINARY_OPENING_RATIO = 1.5
#: Nodes looked at at a time.
CHUNK_NODES = 256
#: Shorter than this no delay is looked at, seconds.
SHORTEST_S = 1e-4


def delay_excess(o: Observed) -> dict[int, Seconds]:
    """Say how much longer than usual each launch delay was, by node.

    Before forwards of the first stage the usual delay is that before computes elsewhere: a loader that is always slow
    leaves no ordinary delay there to compare with. Seconds, shape (n_steps, n_dp); nodes that were never late are left out.
    """
    op = o.block.nodes.op.tolist()
    inputs = set(np.flatnonzero((o.block.nodes.op == Op.FORWARD) & (o.block.nodes.stage == 0)).tolist())
    simulated = [n for event in o.graph.events for n in event.members]
    computes = [n for n in simulated if op[n] in COMPUTES]
    elsewhere = [n for n in computes if n not in inputs] or computes
    step_s = float(np.mean(o.block.end_s.max(axis=(0, 2))))
    usual_compute = max(float(np.median(_medians(o, elsewhere))), 0.0) if elsewhere else 0.0
    # A delay that is there in every step is no less lost; what no job is without is short.
    ordinary_s = np.full(len(op), max(usual_compute, ORDINARY_SHARE * step_s))
    ratio, opening = np.full(len(op), ORDINARY_DELAY_RATIO), _first_forward(o)
    ordinary_s[list(inputs - {opening})] = usual_compute
    ratio[np.arange(len(op)) == opening] = ORDINARY_OPENING_RATIO
    found: dict[int, Seconds] = {}
    for part, delay_s in _take_delays(o, simulated):
        late = delay_s.max(axis=(1, 2)) > SHORTEST_S
        if not late.any():
            continue
        nodes, delay = part[late], delay_s[late]
        usual = np.minimum(np.maximum(np.median(delay, axis=(1, 2), keepdims=True), 0.0), ordinary_s[nodes, None, None])
        excess = np.where(delay > ratio[nodes, None, None] * usual + SHORTEST_S, delay - usual, 0.0)
        if o.block.filled is not None:  # what was filled in is nobody's time
            excess = np.where(o.block.filled[nodes], 0.0, excess)
        lost = excess.any(axis=(1, 2))
        found |= zip(nodes[lost].tolist(), excess[lost], strict=True)
    return found


def _take_delays(o: Observed, nodes: Sequence[int]) -> Iterator[tuple[Ints, Seconds]]:
    """Give nodes with the launch delays that no other rows fill: several at a time where they have few lanes."""
    for at in range(0, len(nodes), CHUNK_NODES):
        part = nodes[at : at + CHUNK_NODES]
        delays = [o.idle(n) for n in part]
        if len({delay.shape for delay in delays}) > 1 or delays[0].size > CHUNK_NODES:
            yield from ((np.array([n]), delay[None]) for n, delay in zip(part, delays, strict=True))
        else:
            yield np.array(part, dtype=np.int64), np.array(delays)


def _medians(o: Observed, nodes: Sequence[int]) -> Seconds:
    """Take the median launch delay of each node, seconds."""
    parts = (nodes[at : at + CHUNK_NODES] for at in range(0, len(nodes), CHUNK_NODES))
    return np.concatenate([np.median([o.idle(n).ravel() for n in part], axis=1) for part in parts])


def _first_forward(o: Observed) -> int:
    """Find the first forward of the first stage: the host prepares the step before it."""
    forwards = np.flatnonzero((o.block.nodes.op == Op.FORWARD) & (o.block.nodes.stage == 0))
    return int(forwards[np.argmin(o.block.nodes.seq[forwards])]) if len(forwards) else -1


def recorded(o: Observed, node: int, excess: Seconds) -> Seconds:
    """Leave out what was filled in: it is nobody's time."""
    return excess if o.block.filled is None else np.where(o.block.filled[node], 0.0, excess)
