"""A trace of one rank of several: what it waits for is not there."""

from collections.abc import Sequence

import numpy as np

from diagnose.model.analysis import Analysis
from diagnose.model.optype import DP_COLLECTIVES, P2P, of_types
from diagnose.model.trace import Trace

#: What a rank that waits for others shows, or does, between its computes: no row of its own says which of them it was.
WAITS = frozenset({"transfer", "start-delay", "end-delay", "launch-delay", "between-steps"})
#: Stalls of which at least this part has rows are the rank's own.
RECORDED_SHARE = 0.5


def is_lone_rank(trace: Trace) -> bool:
    """Say whether one data-parallel rank of several was recorded."""
    if trace.n_dp > 1:
        return False
    entries = trace.recording.unobserved if trace.recording else ()
    if trace.ranks_told > trace.job.world_size or any("peers" in entry.lacks for entry in entries):
        return True
    return trace.n_stages == 1 and _works_with_others(trace)


def _works_with_others(trace: Trace) -> bool:
    """Say whether the rows of one worker show that there are others: it sends to stages, or reduces with who knows how many."""
    op = np.concatenate([block.nodes.op for block in trace.blocks])
    return bool(of_types(op, P2P).any() or (not trace.ranks_told and of_types(op, DP_COLLECTIVES).any()))


def only_waits(analysis: Analysis, components: Sequence[str]) -> bool:
    """Say whether components may be nothing but waits for ranks that were not recorded."""
    recorded = analysis.features["stall.checkpoint_share"].value
    return WAITS.issuperset(components) and (recorded or 0.0) < RECORDED_SHARE
