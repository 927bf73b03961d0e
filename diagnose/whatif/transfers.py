"""Measure transfers by link and by group.

Enters: observed blocks. Leaves: `Transfers`. Costs a few passes over the communication.
"""

from collections.abc import Sequence

import numpy as np

from diagnose.model.optype import DP_COLLECTIVES, P2P
from diagnose.model.trace import Seconds
from diagnose.model.transfers import Transfers
from diagnose.whatif.observed import Observed

#: Beyond this many times the median of all links a single transfer is late (a flap is seconds against milliseconds).
LATE_RATIO = 3.0
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
    link_s = np.full((n_stages, n_dp), np.nan)
    late_s = np.full((n_stages, n_dp), np.nan)
    n_steps = sum(len(o.block.steps) for o in observed)
    for link, own in by_link.items():
        link_s[link] = np.median(np.concatenate([seconds[:: _stride(seconds)] for seconds in own]), axis=0)
    usual = float(np.nanmedian(link_s)) if by_link else 0.0
    for link, own in by_link.items():
        late = sum(np.where(seconds > LATE_RATIO * usual, seconds - usual, 0.0).sum(axis=0) for seconds in own)
        late_s[link] = late / n_steps
    group_s = np.full(n_stages, np.nan)
    for stage, places in by_group.items():
        group_s[stage] = sum(float(np.median(np.concatenate(own))) for own in places.values())
    step_s = float(np.concatenate([o.block.end_s.max(axis=(0, 2)) for o in observed]).mean())
    return Transfers(link_s, late_s, group_s, step_s)


def _stride(seconds: Seconds) -> int:
    """Say which steps of an array (n_steps, n_dp) are looked at for a median."""
    return -(-int(seconds.shape[0]) // MAX_LINK_STEPS)
