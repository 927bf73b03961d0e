"""Long or late optimizers: what ends a step starts late, or takes longer than its worker's usual."""

import numpy as np

from diagnose.model.components import Traits
from diagnose.model.optype import Op
from diagnose.model.trace import Bools
from diagnose.whatif.components.component import ByNode, Component, Part
from diagnose.whatif.computes import iterate_blocks
from diagnose.whatif.delays import recorded
from diagnose.whatif.observed import Observed

#: An optimizer stands out beyond this many deviations, and this part of the usual one.
LONG_OPTIMIZER_DEVIATIONS = 6.0
LONG_OPTIMIZER_RATIO = 0.25
#: Between the quantiles 0.05 and 0.3 of a normal distribution, in standard deviations.
LOW_SPREAD_TO_SIGMA = 1.12


class EndDelayPart(Part):
    """Without it optimizers take as long as usual, and start as soon."""

    def find(self) -> None:
        """Find what optimizers take beyond their worker's usual."""
        ratio = self.job.breakdown.optimizer_ratio
        self.own_s = [
            _long_optimizers(o, None if ratio is None else ratio[at] > 1.0)
            for at, o in iterate_blocks(self.job.observed)
        ]


def _long_optimizers(o: Observed, slow: Bools | None) -> ByNode:
    """Say how much longer than its worker's usual each optimizer took, by node; only where it stands out; seconds.

    `slow` marks where a worker's optimizers are slow in all steps, or from one on, shape (n_steps, n_dp, n_stages).
    """
    found = ByNode()
    for node in np.flatnonzero(o.block.nodes.op == Op.OPTIMIZER).tolist():
        own = np.broadcast_to(o.own[node], o.block.start_s[node].shape)
        # Of every second step the longer ones may be what is wrong: the shorter half says what is usual.
        usual, low = np.quantile(own, 0.3, axis=0), np.quantile(own, 0.05, axis=0)
        sigma = (usual - low) / LOW_SPREAD_TO_SIGMA
        least = np.maximum(LONG_OPTIMIZER_DEVIATIONS * sigma, LONG_OPTIMIZER_RATIO * usual)
        stands_out = own - usual > least
        stands_out = stands_out if slow is None else stands_out & ~slow[..., o.block.nodes.stage[node]]
        excess = recorded(o, node, np.where(stands_out, own - usual, 0.0))
        if excess.any():
            found[node] = excess
    return found


COMPONENT = Component(
    "end-delay",
    EndDelayPart,
    owns_delay=lambda o, node: bool(o.block.nodes.op[node] == Op.OPTIMIZER),
    traits=Traits(border="end"),
)
