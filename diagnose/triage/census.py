"""Count the store: what the gauges of a fleet show.

Enters: a store. Leaves: a `Census`.
"""

from typing import Any

import sqlalchemy as sa

from diagnose.model.census import Census
from diagnose.model.fleet_document import COUNTED
from diagnose.triage.schema import CAUSES, JOBS, MOMENTS
from diagnose.triage.store import RUN_ENDED, Store


def take_census(store: Store) -> Census:
    """Count jobs, and GPU hours by cause, in one state of the store."""
    diagnosed = JOBS.c.status == "diagnosed"
    counted = diagnosed & JOBS.c.verdict.in_(COUNTED)  # as in `diagnose fleet`
    verdicts = sa.select(JOBS.c.verdict, sa.func.count()).where(diagnosed).group_by(JOBS.c.verdict)
    failures = sa.select(JOBS.c.failure, sa.func.count()).where(~diagnosed).group_by(JOBS.c.failure)
    hours = [
        sa.select(sa.literal(name), sa.func.sum(JOBS.c[name])).where(counted)
        for name in ("gpu_hours_analysed", "gpu_hours_wasted")
    ]
    by_cause = (
        sa.select(CAUSES.c.cause, sa.func.sum(CAUSES.c.share * JOBS.c.gpu_hours_wasted))
        .join(JOBS, JOBS.c.location == CAUSES.c.location)
        .where(counted)
        .group_by(CAUSES.c.cause)
    )
    ended = sa.select(MOMENTS.c.name, MOMENTS.c.at_s).where(MOMENTS.c.name == RUN_ENDED)
    with store.reading() as read:

        def ask(query: Any) -> dict[str, Any]:
            return {str(name): number for rows in read(query) for name, number in map(tuple, rows)}

        totals = {name: number or 0.0 for query in hours for name, number in ask(query).items()}
        return Census(
            jobs_by_verdict=ask(verdicts),
            failed_by_kind=ask(failures),
            wasted_by_cause={cause: lost or 0.0 for cause, lost in ask(by_cause).items()},
            night_ended_at=ask(ended).get(RUN_ENDED),
            **totals,
        )
