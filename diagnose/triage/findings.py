"""What became of every finding: new, seen again, back after it was fixed, fixed, or known to somebody.

Enters: the jobs and causes of a store, and what was known of its findings. Leaves: one `Finding` a fingerprint.

A run is a job's content at a place: diagnosed anew by newer rules it stays the run that it was. A finding is fixed when a later
run of its job, or on its host where the fault is a machine's, was looked at for its cause and does not have it; when the runs that
had it are diagnosed anew and have it no longer; or when nothing had it for long. A run is later when the triage that brought it
began after the finding was last noted, so that nothing is closed before it could be told, and, where the metadata of both say when
they ran, when it began after the last with the finding ended.
"""

import dataclasses
import json
import math
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import msgspec
import sqlalchemy as sa

from diagnose.errors import UsageError
from diagnose.model.cause import Cause, KeptCause
from diagnose.model.fingerprint import HOURS_A_DAY, sum_losses
from diagnose.model.fleet_document import COUNTED
from diagnose.model.plain import to_plain
from diagnose.model.ticket import Finding, JobWithFinding
from diagnose.triage.acks import end_acks
from diagnose.triage.database import in_chunks, plain_row, put_rows
from diagnose.triage.rows import RunRow
from diagnose.triage.schema import CAUSES, DOCUMENTS, FINDINGS, JOBS, RUNS, SIGHTINGS, TIMES
from diagnose.triage.sightings import Sighting, note_runs
from diagnose.triage.store import Store

#: Any number: who works out what became of findings in PostgreSQL holds this lock.
_LOCK = 7_236_106
#: Diagnoses read, the newest first, to find one that was looked at for a cause: the first nearly always was.
_MOST_LOOKED_AT = 20
#: GPU hours that a cause of a job loses a day while the job runs.
_LOST_A_DAY = HOURS_A_DAY * JOBS.c.n_gpus * CAUSES.c.recoverable
#: A cause that no rule names, so that no list of what was looked for does either.
_UNNAMED = "unknown"


class _Judged(msgspec.Struct, frozen=True):
    """What is read of a diagnosis: the causes that it names, and those that it was looked at for."""

    causes: tuple[KeptCause, ...] = ()
    checked: tuple[str, ...] = ()

    def clears(self, cause: str) -> bool:
        """Say whether it was looked at for a cause, and does not say that it may be that one as well as another."""
        was_looked_for = cause == _UNNAMED or cause in self.checked
        return was_looked_for and not any(cause == other.cause for found in self.causes for other in found.alternatives)


def update_findings(store: Store, now_s: float, gone_after_s: float, *, is_trial: bool = False) -> list[Finding]:
    """Work out what became of all findings since the last time; give all, by fingerprint.

    `now_s` is in seconds since 1970. A finding that no run had for `gone_after_s` is fixed. A trial leaves the store as it is,
    and works on a copy of one that can only be read.
    """
    if is_trial and store.only_reads:
        with store.copied() as copy:
            return update_findings(copy, now_s, gone_after_s)

    def update(connection: sa.Connection) -> list[Finding]:
        if connection.dialect.name == "postgresql":
            connection.execute(sa.select(sa.func.pg_advisory_xact_lock(_LOCK)))
        sightings = note_runs(connection, now_s)
        _see(connection, sightings)
        _close(connection, now_s, gone_after_s)
        _sum_up(connection)
        end_acks(connection, now_s)
        return [Finding(*row) for row in connection.execute(sa.select(FINDINGS).order_by(FINDINGS.c.fingerprint))]

    return store.transact(update, is_trial=is_trial)


def find_fingerprint(findings: Iterable[Finding], given: str) -> Finding:
    """Find the finding that is meant by a fingerprint or its beginning.

    Raises
    ------
    UsageError
        There is none, or several begin so.
    """
    found = [finding for finding in findings if given and finding.fingerprint.startswith(given.lower())]
    if len(found) == 1:
        return found[0]
    if found:
        raise UsageError(f"{len(found)} findings begin with {given!r}; expected more of the fingerprint")
    raise UsageError(f"{given!r} is the fingerprint of no finding; `diagnose tickets --all` lists them")


def jobs_with(store: Store, fingerprints: Sequence[str], most: int) -> dict[str, tuple[int, list[JobWithFinding]]]:
    """Give, by fingerprint, the number of jobs that have a finding now, and the costliest of them, at most `most`."""
    lost = _LOST_A_DAY
    rank = sa.func.row_number().over(
        partition_by=CAUSES.c.fingerprint, order_by=[sa.func.coalesce(lost, 0).desc(), JOBS.c.location, CAUSES.c.place]
    )
    n_jobs = sa.func.count().over(partition_by=CAUSES.c.fingerprint)
    ranked = (
        sa.select(
            CAUSES.c.fingerprint,
            n_jobs.label("n_jobs"),
            rank.label("rank"),
            *(JOBS.c.job_id, JOBS.c.location, JOBS.c.owner, JOBS.c.n_gpus, lost.label("lost")),
            sa.func.coalesce(RUNS.c.seen_at, TIMES.c.diagnosed_at).label("seen_at"),
        )
        .join(JOBS, JOBS.c.location == CAUSES.c.location)
        .join(TIMES, TIMES.c.location == JOBS.c.location)
        .outerjoin(RUNS, RUNS.c.location == JOBS.c.location)
    )
    found: dict[str, tuple[int, list[JobWithFinding]]] = {}
    with store.reading() as read:
        for some in in_chunks(list(fingerprints)):
            of_these = ranked.where(CAUSES.c.fingerprint.in_(some)).subquery()
            query = sa.select(of_these).where(of_these.c.rank <= most).order_by(of_these.c.fingerprint, of_these.c.rank)
            for rows in read(query):
                for row in rows:
                    job = JobWithFinding(row.job_id, row.location, row.owner, row.n_gpus, row.lost, row.seen_at)
                    found.setdefault(row.fingerprint, (row.n_jobs, []))[1].append(job)
    return found


def _see(connection: sa.Connection, sightings: list[Sighting]) -> None:
    """Bring findings up to what was seen."""
    by_fingerprint: dict[str, list[Sighting]] = defaultdict(list)
    for sighting in sightings:
        by_fingerprint[sighting.fingerprint].append(sighting)
    for some in in_chunks(sorted(by_fingerprint)):
        known = sa.select(FINDINGS).where(FINDINGS.c.fingerprint.in_(some))
        old = {row[0]: Finding(*row) for row in connection.execute(known)}
        merged = [_merge(old.get(fingerprint), by_fingerprint[fingerprint]) for fingerprint in some]
        worst = {(one.run.location, one.place) for _, one in merged if one is not None}
        particulars = _read_particulars(connection, worst)
        found = [
            finding if one is None else _describe(finding, one, particulars.get((one.run.location, one.place)))
            for finding, one in merged
        ]
        put_rows(connection, FINDINGS, [plain_row(finding) for finding in found])


def _merge(old: Finding | None, sightings: list[Sighting]) -> tuple[Finding, Sighting | None]:
    """Join what was known of a finding with what was seen; give the run that describes it where that is another or changed."""
    new = [one for one in sightings if one.is_new]
    if old is None:
        return _begin(None, new)
    known = dataclasses.replace(
        old, n_seen=old.n_seen + len(new), first_seen_at=min([old.first_seen_at, *(one.run.seen_at for one in new)])
    )
    if old.state == "fixed":
        back = [one for one in new if one.compared_at > (old.fixed_at or 0.0)]
        return _begin(known, back) if back else (known, None)
    again = [one for one in sightings if not one.is_new and one.run.location == old.worst_location]
    worst = _worst(new) or _worst(again)
    ends = [old.last_ended_at, *(one.run.ended_at for one in new)]
    seen = dataclasses.replace(
        known,
        last_seen_at=max([old.last_seen_at, *(one.run.seen_at for one in new)]),
        last_ended_at=_latest(ends),
        last_noted_at=max([old.last_noted_at, *(one.run.noted_at for one in new)]),
        confidence=max([old.confidence, *(one.confidence for one in new)]),
    )
    return (seen if worst is None else _now_worst(seen, worst)), worst


def _begin(old: Finding | None, sightings: list[Sighting]) -> tuple[Finding, Sighting]:
    """Begin an episode of a finding."""
    worst = _worst(sightings)
    assert worst is not None, "a finding begins with a run that has it"
    first_at = min(one.run.seen_at for one in sightings)
    finding = Finding(
        fingerprint=worst.fingerprint,
        cause=worst.cause,
        title=worst.title,
        family=worst.parallelism,
        state="open",
        event="opened" if old is None else "reopened",
        opened_at=first_at if old is None else max(first_at, old.opened_at + 1),  # two episodes, two tickets
        reminded_at=None,
        first_seen_at=first_at if old is None else old.first_seen_at,
        last_seen_at=max(one.run.seen_at for one in sightings),
        last_ended_at=_latest([one.run.ended_at for one in sightings]),
        last_noted_at=max(one.run.noted_at for one in sightings),
        n_seen=len(sightings) if old is None else old.n_seen,
        severity=None,
        who=None,
        owner=worst.owner,
        worst_location="",
        gpu_hours_lost_per_day=None,
        confidence=max(one.confidence for one in sightings),
        particulars="",
        machine=worst.machine,
    )
    return _now_worst(finding, worst), worst


def _worst(sightings: list[Sighting]) -> Sighting | None:
    """Give the run that loses most."""
    return min(sightings, key=lambda one: (-(one.hours_lost or 0.0), one.run.location), default=None)


def _now_worst(finding: Finding, worst: Sighting) -> Finding:
    """Let a run describe a finding."""
    return dataclasses.replace(
        finding,
        title=worst.title,
        worst_location=worst.run.location,
        name=worst.name,
        job=worst.run.family,
    )


def _latest(moments: list[float | None]) -> float | None:
    """Give the latest moment; None where one is not known."""
    known = [moment for moment in moments if moment is not None]
    return max(known) if len(known) == len(moments) else None


def _describe(finding: Finding, worst: Sighting, worst_cause: Cause | None) -> Finding:
    """Add what the diagnosis of the worst run says; who and how severe stay through an episode."""
    begins = not finding.particulars
    return dataclasses.replace(
        finding,
        severity=worst_cause.severity if begins and worst_cause else finding.severity,
        who=worst_cause.who if begins and worst_cause else finding.who,
        owner=worst.owner if begins else finding.owner,
        particulars=json.dumps(to_plain(worst_cause or {})),
    )


def _read_particulars(connection: sa.Connection, places: set[tuple[str, int]]) -> dict[tuple[str, int], KeptCause]:
    """Read entries of `causes` from diagnoses: by location and place in the report."""
    wanted: dict[str, list[int]] = defaultdict(list)
    for location, place in places:
        wanted[location].append(place)
    found = {}
    for location, diagnosis in _read_diagnoses(connection, sorted(wanted)):
        for place in wanted[location]:
            if place <= len(diagnosis.causes):
                found[location, place] = diagnosis.causes[place - 1]
    return found


def _read_diagnoses(connection: sa.Connection, locations: Sequence[str]) -> Iterator[tuple[str, _Judged]]:
    """Read diagnoses, a few at a time; those that are not there, or no longer diagnoses, are left out."""
    for some in in_chunks(locations):
        query = sa.select(DOCUMENTS.c.location, DOCUMENTS.c.document).where(DOCUMENTS.c.location.in_(some))
        for location, document in connection.execute(query):
            try:
                judged = msgspec.convert(json.loads(document), _Judged)
            except (msgspec.ValidationError, UnicodeEncodeError):
                continue
            yield location, judged


def _close(connection: sa.Connection, now_s: float, gone_after_s: float) -> None:
    """Close what is fixed."""
    fixed = []
    looked_at: dict[str, _Judged] = {}
    has_it = sa.exists().where(CAUSES.c.fingerprint == FINDINGS.c.fingerprint)
    rows = connection.execute(sa.select(FINDINGS, has_it).where(FINDINGS.c.state == "open")).all()
    for *fields, is_there in rows:
        finding = Finding(*fields)
        if run := _later_run_without(connection, finding, looked_at):
            fixed_at = run.noted_at if run.began_at is None else run.began_at
            because = f"a later run does not have it: {run.location}"
        elif not is_there and _all_diagnosed_anew(connection, finding):
            fixed_at, because = now_s, "the runs that had it were diagnosed anew, and do not have it"
        elif finding.last_noted_at < now_s - gone_after_s:
            fixed_at, because = now_s, f"no run had it for {gone_after_s / 86_400:g} days"
        else:
            continue
        fixed.append(dataclasses.replace(finding, state="fixed", fixed_at=fixed_at, fixed_because=because))
    put_rows(connection, FINDINGS, [plain_row(finding) for finding in fixed])


def _later_run_without(connection: sa.Connection, finding: Finding, looked_at: dict[str, _Judged]) -> RunRow | None:
    """Give the newest run of the job, or on the host, later than the last with a finding, that was looked at for it and has it not.

    `looked_at` keeps what was read of runs, by location.
    """
    host = json.dumps(finding.machine)
    given = {
        "fingerprint": finding.fingerprint,
        "noted_at": finding.last_noted_at,
        "ended_at": -math.inf if finding.last_ended_at is None else finding.last_ended_at,
        **(
            {"job": finding.job}
            if finding.machine is None
            else {"host": f"%{_escape_like(host)}%", "cause": finding.cause}
        ),
    }
    for row in connection.execute(_LATER_OF_JOB if finding.machine is None else _LATER_ON_HOST, given).all():
        run = RunRow(*row)
        if run.location not in looked_at:
            read = dict(_read_diagnoses(connection, [run.location]))
            looked_at[run.location] = read.get(run.location, _Judged())
        if looked_at[run.location].clears(finding.cause):
            return run
    return None


def _escape_like(text: str) -> str:
    """Write text so that LIKE takes it as it is."""
    return text.replace("/", "//").replace("%", "/%").replace("_", "/_")


def _newest_without(which: sa.ColumnElement[bool], has_it: sa.ColumnElement[bool]) -> sa.Select[Any]:
    """Make the query for the newest later runs that do not have a finding; made once, for all findings."""
    ran_later = RUNS.c.began_at.is_(None) | (RUNS.c.began_at > sa.bindparam("ended_at"))
    has_it = (CAUSES.c.location == RUNS.c.location) & has_it
    return (
        sa.select(RUNS)
        .join(JOBS, JOBS.c.location == RUNS.c.location)
        .where(
            which,
            RUNS.c.verdict.in_(COUNTED),  # causes were looked for
            RUNS.c.came_at > sa.bindparam("noted_at"),
            ran_later,
            ~sa.exists().where(has_it),
        )
        .order_by(RUNS.c.noted_at.desc(), RUNS.c.seen_at.desc(), RUNS.c.location)
        .limit(_MOST_LOOKED_AT)
    )


def _names_host(column: sa.Column[Any]) -> sa.ColumnElement[bool]:
    """Say whether a JSON text names a host."""
    return column.like(sa.bindparam("host"), escape="/")


_THIS = CAUSES.c.fingerprint == sa.bindparam("fingerprint")
_LATER_OF_JOB = _newest_without(RUNS.c.family == sa.bindparam("job"), _THIS)
#: A host that is blamed beside a worse one is still at fault, though the fingerprint is that of the other.
_LATER_ON_HOST = _newest_without(
    _names_host(JOBS.c.hosts),
    _THIS | ((CAUSES.c.cause == sa.bindparam("cause")) & (_names_host(CAUSES.c.hosts) | _names_host(CAUSES.c.workers))),
)


def _sum_up(connection: sa.Connection) -> None:
    """Say what open findings lose a day over all jobs that have them, as the fleet does; what the store has no job of stays."""
    is_open = sa.select(FINDINGS.c.fingerprint, FINDINGS.c.gpu_hours_lost_per_day).where(FINDINGS.c.state == "open")
    known = dict(map(tuple, connection.execute(is_open)))
    query = (
        sa.select(CAUSES.c.fingerprint, CAUSES.c.location, RUNS.c.family, RUNS.c.came_at, _LOST_A_DAY)
        .join(JOBS, JOBS.c.location == CAUSES.c.location)
        .join(RUNS, RUNS.c.location == CAUSES.c.location)
        .order_by(CAUSES.c.location, CAUSES.c.place.desc())  # a cause further up in the report overwrites one below it
    )
    runs: dict[str, dict[str, tuple[str, float, float | None]]] = defaultdict(dict)
    for some in in_chunks(sorted(known)):
        for fingerprint, location, job, came_at, lost in connection.execute(
            query.where(CAUSES.c.fingerprint.in_(some))
        ):
            runs[fingerprint][location] = (job, came_at, lost)
    losses = {fingerprint: sum_losses(found.values()) for fingerprint, found in runs.items()}
    changed = [{"at": at, "lost": lost} for at, lost in losses.items() if lost != known[at]]
    if changed:
        at = FINDINGS.c.fingerprint == sa.bindparam("at")
        connection.execute(sa.update(FINDINGS).where(at).values(gpu_hours_lost_per_day=sa.bindparam("lost")), changed)


def _all_diagnosed_anew(connection: sa.Connection, finding: Finding) -> bool:
    """Say whether all runs that were seen with a finding are still in the store, as they were."""
    same = (JOBS.c.status == "diagnosed") & (JOBS.c.content == SIGHTINGS.c.content)
    seen = sa.select(sa.func.count(), sa.func.count(JOBS.c.location)).select_from(
        SIGHTINGS.outerjoin(JOBS, (JOBS.c.location == SIGHTINGS.c.location) & same)
    )
    n_seen, n_same = connection.execute(seen.where(SIGHTINGS.c.fingerprint == finding.fingerprint)).one()
    return bool(0 < n_seen == n_same)  # none where they were pruned
