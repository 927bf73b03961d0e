"""Where the GPU hours of the fleet go: the budgets of its jobs, each weighted by its GPU hours.

Enters: jobs. Leaves: a `FleetBudget`.
"""

import math
from collections import defaultdict
from collections.abc import Sequence

from diagnose.model.fleet import FleetJob
from diagnose.model.fleet_document import FleetBudget


def add_up_budgets(jobs: Sequence[FleetJob]) -> FleetBudget | None:
    """Add up the budgets of jobs that have one; None where none has."""
    counted = [(job.budget, job.hours_analysed) for job in jobs if job.budget is not None and job.hours_analysed]
    if not counted:
        return None
    parts, lost = defaultdict[str, list[float]](list), defaultdict[str, list[float]](list)
    for budget, hours in counted:
        for found, shares in ((parts, budget.measured()), (lost, budget.lost)):
            for name, share in shares.items():
                found[name].append(share * hours)
    return FleetBudget(
        n_jobs=len(counted),
        hours_analysed=math.fsum(hours for _, hours in counted),
        parts={name: math.fsum(parts[name]) for name in budget.PARTS if name in parts},
        lost={name: math.fsum(values) for name, values in sorted(lost.items())},
    )
