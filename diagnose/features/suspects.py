"""Which workers, cards, links and stages stand out."""

from diagnose.features.members import find_late_members
from diagnose.features.network import slow_card, slow_group
from diagnose.features.stages import longest_stage
from diagnose.features.workers import slow_workers
from diagnose.model.analysis import Suspects
from diagnose.model.components import Breakdown
from diagnose.model.trace import Trace
from diagnose.model.transfers import Transfers


def find_suspects(trace: Trace, breakdown: Breakdown, transfers: Transfers) -> Suspects:
    """Find the places that stand out in the times of a job."""
    cards, links = slow_card(transfers)
    return Suspects(
        workers=slow_workers(breakdown),
        late_members=find_late_members(trace, breakdown),
        cards=cards,
        links=links,
        group=slow_group(transfers),
        longest_stage=longest_stage(breakdown, trace.n_stages) if trace.n_stages > 1 else None,
    )
