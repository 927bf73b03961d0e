"""Take note of runs, and of what they were seen with.

Enters: jobs and causes of a store. Leaves: rows of runs, and one `Sighting` a finding of a run that is new or was diagnosed anew.
"""

import dataclasses
from typing import Any

import sqlalchemy as sa

from diagnose.model.fingerprint import HOURS_A_DAY
from diagnose.triage.database import plain_row, put_rows
from diagnose.triage.rows import JobRow, RunRow
from diagnose.triage.schema import CAUSES, JOBS, RUNS, SIGHTINGS, TIMES
from diagnose.triage.times import read_time

#: A run that ends so much later than now has a wrong clock, and its times say nothing.
_CLOCK_ERROR_S = 86_400.0
_MOMENTS = ("began_at", "ended_at", "seen_at", "noted_at", "came_at")


@dataclasses.dataclass(frozen=True, slots=True)
class Sighting:
    """A run with a finding; `is_new` when that was not known. `parallelism` is in words, with the framework."""

    fingerprint: str
    place: int
    cause: str
    title: str
    confidence: float
    hours_lost: float | None
    owner: str | None
    name: str | None
    parallelism: str
    machine: str | None
    run: RunRow
    is_new: bool

    @property
    def compared_at(self) -> float:
        """When it was, to compare with when a finding was fixed."""
        return self.run.noted_at if self.run.ended_at is None else self.run.ended_at


def note_runs(connection: sa.Connection, now_s: float) -> list[Sighting]:
    """Take note of all jobs that are new or were diagnosed anew; give what they were seen with."""
    is_news = (JOBS.c.status == "diagnosed") & (
        RUNS.c.location.is_(None)
        | RUNS.c.content.is_distinct_from(JOBS.c.content)
        | RUNS.c.identity.is_distinct_from(JOBS.c.identity)
    )
    news = (
        sa.select(
            JOBS,
            *(TIMES.c.diagnosed_at, TIMES.c.came_at),
            *(RUNS.c[name].label(f"old_{name}") for name in ("content", *_MOMENTS)),
        )
        .join(TIMES, TIMES.c.location == JOBS.c.location)
        .outerjoin(RUNS, RUNS.c.location == JOBS.c.location)
        .where(is_news)
        .order_by(JOBS.c.location)
    )
    runs = {row.location: _make_run(row, now_s) for row in connection.execute(news)}
    seen = (
        sa.select(
            *(CAUSES.c.fingerprint, CAUSES.c.location, CAUSES.c.place, CAUSES.c.cause, CAUSES.c.title),
            *(
                CAUSES.c.confidence,
                CAUSES.c.recoverable,
                CAUSES.c.machine,
                JOBS,
                SIGHTINGS.c.content.label("seen_content"),
            ),
            RUNS.c.content.label("old_content"),
        )
        .join(JOBS, JOBS.c.location == CAUSES.c.location)
        .outerjoin(RUNS, RUNS.c.location == JOBS.c.location)
        .outerjoin(
            SIGHTINGS, (SIGHTINGS.c.location == CAUSES.c.location) & (SIGHTINGS.c.fingerprint == CAUSES.c.fingerprint)
        )
        .where(is_news, CAUSES.c.fingerprint.is_not(None))
        .order_by(CAUSES.c.location, CAUSES.c.place.desc())
    )
    sightings = {}  # a place further up in the report overwrites one below it with the same fingerprint
    for row in connection.execute(seen):
        run = runs.get(row.location)
        if run is not None:
            sightings[row.fingerprint, row.location] = _make_sighting(row, run)
    put_rows(connection, RUNS, [plain_row(run) for run in runs.values()])
    new = [
        {"fingerprint": one.fingerprint, "location": one.run.location, "content": one.run.content}
        for one in sightings.values()
        if one.is_new
    ]
    put_rows(connection, SIGHTINGS, new)
    return list(sightings.values())


def _make_run(row: Any, now_s: float) -> RunRow:
    """Say when a job ran; one whose content is the same keeps its times."""
    job = JobRow(**{column.name: getattr(row, column.name) for column in JOBS.c})
    same = (row.location, row.content, row.identity, job.family, row.verdict)
    if row.old_noted_at is not None and row.old_content == row.content:
        return RunRow(*same, *(getattr(row, f"old_{name}") for name in _MOMENTS))
    began_at, ended_at = _read_moment(row.started_at), _read_moment(row.finished_at)
    began_at, ended_at = (ended_at if began_at is None else began_at), (began_at if ended_at is None else ended_at)
    if began_at is None or ended_at is None or began_at > ended_at or ended_at > now_s + _CLOCK_ERROR_S:
        began_at = ended_at = None
    came_at = row.diagnosed_at if row.came_at is None else row.came_at
    return RunRow(*same, began_at, ended_at, row.diagnosed_at if ended_at is None else ended_at, now_s, came_at)


def _read_moment(text: str | None) -> float | None:
    """Read a moment of a job's metadata; one before 1970 is a clock that was never set."""
    at_s = read_time(text)
    return None if at_s is None or at_s < 0 else at_s


def _make_sighting(row: Any, run: RunRow) -> Sighting:
    """Say what a run was seen with."""
    sizes = [f"{kind} {getattr(row, f'{kind}_size')}" for kind in ("dp", "pp", "tp", "cp", "vpp")]
    lost = None if row.recoverable is None or row.n_gpus is None else HOURS_A_DAY * row.n_gpus * row.recoverable
    return Sighting(
        fingerprint=row.fingerprint,
        place=row.place,
        cause=row.cause,
        title=row.title or "",
        confidence=row.confidence or 0.0,
        hours_lost=lost,
        owner=row.owner,
        name=row.name or row.job_id,
        parallelism=", ".join([row.framework or "framework unknown", *sizes]),
        machine=row.machine,
        run=run,
        # The same content put back in the place of another is another run.
        is_new=row.seen_content is None or row.seen_content != run.content or row.old_content != run.content,
    )
