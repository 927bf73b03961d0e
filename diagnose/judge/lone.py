"""A trace of one rank of several: what it waits for is not there."""

from collections.abc import Sequence

from diagnose.model.analysis import Analysis
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
    return trace.ranks_told > trace.job.world_size or any("peers" in entry.lacks for entry in entries)


def only_waits(analysis: Analysis, components: Sequence[str]) -> bool:
    """Say whether components may be nothing but waits for ranks that were not recorded."""
    recorded = analysis.features["stall.checkpoint_share"].value
    return WAITS.issuperset(components) and (recorded or 0.0) < RECORDED_SHARE
