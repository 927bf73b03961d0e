"""Read the whole store as the jobs of a fleet.

Enters: a store. Leaves: a `FleetJob` for every job, failed ones too; or diagnoses, one at a time, for pages.
"""

import dataclasses
import json
from collections.abc import Collection, Iterator
from typing import Any

import sqlalchemy as sa

from diagnose.model.cause import Cause
from diagnose.model.diagnosis import Diagnosis
from diagnose.model.fleet import FleetCause, FleetJob
from diagnose.model.request import MIN_SPEEDUP
from diagnose.model.saved import restore
from diagnose.triage.rows import is_from_log
from diagnose.triage.schema import DOCUMENTS, JOBS, TIMES
from diagnose.triage.store import Store
from diagnose.triage.times import read_time

#: Documents read at a time: 10 KB each, 100 KB of the largest jobs.
CHUNK = 500
#: Kind of failure of a job whose diagnosis cannot be read.
UNREADABLE = "document"


def collect(store: Store) -> list[FleetJob]:
    """Read all jobs of a store, in one state of it, by location.

    A job whose diagnosis cannot be read has failed, with the reason.
    """
    return sorted((_read_job(row) for row in _rows(store)), key=lambda job: job.location)


@dataclasses.dataclass(frozen=True, slots=True)
class StoredDiagnosis:
    """The diagnosis of a job as the store keeps it."""

    location: str
    document: str
    min_speedup: float

    def restore(self) -> Diagnosis:
        """Make the diagnosis again."""
        return restore(json.loads(self.document), min_speedup=self.min_speedup)


def read_diagnoses(store: Store, locations: Collection[str]) -> Iterator[StoredDiagnosis]:
    """Read what is kept of some jobs, one at a time."""
    for row in _rows(store):
        if row.location in locations and row.document is not None:
            yield StoredDiagnosis(row.location, row.document, row.min_speedup or MIN_SPEEDUP)


def _rows(store: Store) -> Iterator[sa.Row[Any]]:
    """Read the rows of all jobs, a chunk of locations at a time: documents are large."""
    query = (
        sa.select(*JOBS.c, TIMES.c.diagnosed_at, TIMES.c.came_at, DOCUMENTS.c.document)
        .outerjoin(TIMES, JOBS.c.location == TIMES.c.location)
        .outerjoin(DOCUMENTS, JOBS.c.location == DOCUMENTS.c.location)
        .order_by(JOBS.c.location)
        .limit(CHUNK)
    )
    with store.reading() as read:
        last: str | None = None
        while True:
            after = query if last is None else query.where(JOBS.c.location > last)
            found = [row for rows in read(after) for row in rows]
            yield from found
            if len(found) < CHUNK:
                return
            last = found[-1].location


def _read_job(row: sa.Row[Any]) -> FleetJob:
    """Make the job of a row."""
    diagnosed_at_s = row.diagnosed_at or 0.0
    finished_s = read_time(row.finished_at)
    job = {
        "location": row.location,
        "folder": row.location.rpartition("/")[0] or "/",
        "when_s": diagnosed_at_s if finished_s is None else min(finished_s, diagnosed_at_s),
        "diagnosed_at_s": diagnosed_at_s,
        "came_s": diagnosed_at_s if row.came_at is None else row.came_at,
        "content": row.content,
    }
    if row.status != "diagnosed":
        return FleetJob(**job, failure=row.failure or row.status, reason=row.reason or "no reason is known")
    try:
        found = json.loads(row.document or "null")
        diagnosis = restore(found, min_speedup=row.min_speedup or MIN_SPEEDUP)
        return _join(job, diagnosis, found)
    except ValueError as error:
        return FleetJob(**job, failure=UNREADABLE, reason=f"its diagnosis in the store cannot be read: {error}")


def _join(job: dict[str, Any], diagnosis: Diagnosis, found: dict[str, Any]) -> FleetJob:
    """Add to a job what its diagnosis says."""
    facts, w = diagnosis.job, diagnosis.what_if
    hosts, slowdown = found["job"].get("hosts"), _known(found["slowdown"])
    return FleetJob(
        **job,
        job_id=facts.job_id,
        name=facts.name or facts.job_id,
        owner=facts.owner,
        framework=facts.framework,
        gpu_type=facts.gpu_type,
        n_gpus=facts.world_size,
        sizes=(facts.dp_size, facts.pp_size, facts.tp_size, facts.cp_size, facts.vpp_size),
        verdict=diagnosis.verdict,
        slowdown=slowdown,
        hours_analysed=_known(found["gpu_hours"]["analysed"]),
        hours_wasted=_known(found["gpu_hours"]["wasted"]),
        hours_recoverable=_recoverable_hours(diagnosis),
        discrepancy=_known(found["fidelity"]["discrepancy"]),
        m_w=w.m_w,
        m_s=w.m_s,
        correlation=diagnosis.features.get("sequence.correlation"),
        by_optype={name: float(value) for name, value in w.by_optype.items() if value == value},  # noqa: PLR0124 - no NaN
        step_ratio=tuple((w.by_step[w.by_step > 0] / slowdown).tolist()) if slowdown else (),
        causes=tuple(
            _read_cause(cause, is_over=is_from_log(found) and cause.when.is_past) for cause in diagnosis.causes
        ),
        hosts=None if hosts is None else tuple(hosts),
        unseen=frozenset(entry.cause for entry in diagnosis.not_checked),
        budget=diagnosis.budget,
    )


def _read_cause(cause: Cause, *, is_over: bool) -> FleetCause:
    """Keep of a cause what adds up."""
    best = cause.fixes[0] if cause.fixes else None
    return FleetCause(
        cause=cause.cause,
        title=cause.title,
        where=cause.where,
        share=cause.share,
        recoverable=cause.recoverable,
        who=cause.who or "",
        fingerprint=cause.fingerprint,
        fix=None if best is None else best.fix,
        is_over=is_over,
    )


def _recoverable_hours(diagnosis: Diagnosis) -> float | None:
    """Say how many of the lost GPU hours all fixes of the plan give back together; a layout may beat the job without faults."""
    if not diagnosis.causes:
        return 0.0
    if diagnosis.plan is None or not diagnosis.step_time.recorded > 0:
        return None
    share = 1.0 - diagnosis.plan.predicted_step_time / diagnosis.step_time.recorded
    back = diagnosis.gpu_hours_analysed * max(share, 0.0)
    return back if diagnosis.gpu_hours_wasted is None else min(back, diagnosis.gpu_hours_wasted)


def _known(value: float | None) -> float | None:
    """Take a number as it is, and null as not known."""
    return None if value is None else float(value)
