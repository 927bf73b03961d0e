"""The store: what is known about all jobs.

Enters: outcomes. Leaves: rows, each job's all together or none of them. Several triages may use one store at the same
time, on one machine or many: see `claims`.
"""

import contextlib
import dataclasses
import functools
import sqlite3
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Self

import sqlalchemy as sa

from diagnose.errors import ServiceError
from diagnose.model.ticket import Finding
from diagnose.triage.claims import Claims
from diagnose.triage.database import Database, in_chunks, plain_row, plain_text, read_url
from diagnose.triage.schema import (
    CAUSES,
    CLAIMS,
    DELIVERIES,
    DOCUMENTS,
    FINDINGS,
    JOBS,
    METADATA,
    MOMENTS,
    NIGHTS,
    PRUNED,
    RUNS,
    SIGHTINGS,
    TIMES,
    check_version,
    migrate,
    read_version,
)
from diagnose.triage.worker import Outcome

#: The name under which the table of moments keeps when the last triage run ended.
RUN_ENDED = "night-ended"
#: Any number: who migrates a PostgreSQL store holds this lock.
_MIGRATION_LOCK = 7_236_105


class NoStoreError(ServiceError):
    """There is no store yet."""


@dataclasses.dataclass(frozen=True, slots=True)
class KnownJob:
    """What the store says of a job; `status` is diagnosed, failed or pruned, `diagnosed_at` by the clock of the store."""

    status: str
    identity: str | None
    content: str | None
    stamp: str | None
    diagnosed_at: float


@dataclasses.dataclass(frozen=True, slots=True)
class FinishedJob:
    """A job that was done, and how it went; `is_new` where nothing was known of it when it was claimed."""

    location: str
    outcome: Outcome
    is_new: bool = False


@dataclasses.dataclass(frozen=True, slots=True)
class PrunedRows:
    """How many rows of each kind were taken out."""

    n_jobs: int
    n_runs: int
    n_sightings: int
    n_deliveries: int


@dataclasses.dataclass(frozen=True, slots=True)
class StoreInfo:
    """A store in numbers; `by_status` and `by_verdict` count jobs, `by_cause` causes."""

    url: str
    schema: int
    by_status: dict[str, int]
    by_verdict: dict[str, int]
    by_cause: dict[str, int]
    n_pruned: int
    n_runs: int
    n_claims: int


class Store(Database):
    """A database with the tables of this version, at `sqlite:///FILE` or `postgresql://USER@HOST/DATABASE`.

    The password comes from `DIAGNOSE_STORE_PASSWORD`, or the file that `DIAGNOSE_STORE_PASSWORD_FILE` names, or what libpq reads.
    Where a store may not be created, one that is not there is an error, and nothing is made. One that is only read serves where
    nothing can be written, as a replica does; it is not migrated.

    Raises
    ------
    UsageError
        The URL makes no sense, or what it needs is not installed.
    ServiceError
        The database does not answer, or is not a store.
    """

    def __init__(self, url: str, *, may_create: bool = True, only_reads: bool = False) -> None:
        file = read_url(url)
        may_create = may_create and not only_reads
        if file.get_backend_name() == "sqlite" and not may_create and not Path(file.database or "").is_file():
            raise NoStoreError(f"{file.render_as_string(hide_password=True)} is not there; `diagnose triage` makes it")
        super().__init__(url, only_reads=only_reads)
        # Made once: to make a statement takes SQLAlchemy longer than the database takes to run it.
        self._upserts = {
            table: self.upsert(table, **{column.name: sa.bindparam(column.name) for column in table.c} | moments)
            for table, moments in ((JOBS, {}), (TIMES, {"diagnosed_at": self.clock}))
        }
        self._claims = Claims(self)
        self._entered_at: float | None = None
        self.schema = self._open(may_create=may_create, only_reads=only_reads)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None:
        self.close()

    def close(self) -> None:
        """Give all claims back and close the connections."""
        try:
            self.leave()
        finally:
            self._engine.dispose()

    # ---- The triage run ----

    @property
    def run_id(self) -> str:
        """The name of this triage run, after `enter`."""
        return self._claims.run_id

    def enter(self) -> None:
        """Begin a triage run: from now on jobs can be claimed."""
        self._claims.enter()
        self._entered_at = self.now_s()

    def leave(self) -> None:
        """End the triage run and give all claims back."""
        self._claims.leave()

    def expire_leases(self) -> None:
        """Free the jobs of triages that have died."""
        self.transact(self._claims.expire)

    def record_end(self) -> None:
        """Write down that a triage run has ended, for those who watch whether runs still come."""
        ended = self.upsert(MOMENTS, name=RUN_ENDED, at_s=self.clock)
        self.transact(lambda connection: connection.execute(ended))

    # ---- Jobs ----

    def known(self, locations: Sequence[str]) -> dict[str, KnownJob]:
        """Say what is known of these jobs; those that nothing is known of are left out."""

        def ask(connection: sa.Connection) -> dict[str, KnownJob]:
            found: dict[str, KnownJob] = {}
            for some in in_chunks(locations):
                found |= self._look_up(connection, some)
            return found

        return self.ask(ask)

    def claim(self, locations: Sequence[str]) -> dict[str, KnownJob | None]:
        """Claim jobs for this triage run; give what the store says of those that are ours now.

        Jobs that another living triage has are left out.
        """

        def take(connection: sa.Connection) -> dict[str, KnownJob | None]:
            mine = self._claims.take(connection, locations)
            known = self._look_up(connection, mine) if mine else {}
            return {location: known.get(location) for location in mine}

        return self.transact(take)

    def finish(self, done: Sequence[FinishedJob]) -> list[bool]:
        """Write how jobs went, and give their claims back, all in one transaction.

        For each, False where another triage has taken the job over, because this one did not renew its lease; nothing is
        written of it then.
        """

        def write(connection: sa.Connection) -> list[bool]:
            kept = self._claims.end(connection, [job.location for job in done])
            is_mine = [job.location in kept or self._is_free(connection, job) for job in done]
            mine = [job for job, is_so in zip(done, is_mine, strict=True) if is_so]
            unchanged = [
                {"at": plain_text(job.location), "seen": job.outcome.stamp} for job in mine if job.outcome.row is None
            ]
            for table in (TIMES, PRUNED) if unchanged else ():
                at = table.c.location == sa.bindparam("at")
                connection.execute(sa.update(table).where(at).values(stamp=sa.bindparam("seen")), unchanged)
            made = [job for job in mine if job.outcome.row is not None]
            self._put(connection, made, [job.location for job in made if not (job.is_new and job.location in kept)])
            return is_mine

        return self.transact(write)

    def release(self, locations: Sequence[str]) -> None:
        """Give claims back without a result."""
        self.transact(lambda connection: self._claims.end(connection, locations))

    # ---- The whole store ----

    def prune(self, before_s: float) -> PrunedRows:
        """Take out what is older than a moment, and count it.

        Jobs that were diagnosed before it are done again only when they change. With them goes what was noted of their runs, and
        what was told of findings that were fixed before it; findings stay, so that one that comes back is known.
        """
        old = sa.select(TIMES.c.location).where(TIMES.c.diagnosed_at < before_s)

        def take_out(connection: sa.Connection) -> PrunedRows:
            kept = sa.select(JOBS.c.location, JOBS.c.content, TIMES.c.stamp).join(
                TIMES, JOBS.c.location == TIMES.c.location
            )
            add = self.insert(PRUNED).from_select(
                ["location", "content", "stamp"],
                kept.where((TIMES.c.diagnosed_at < before_s) & JOBS.c.content.is_not(None)),
            )
            new = {"content": add.excluded.content, "stamp": add.excluded.stamp}
            connection.execute(add.on_conflict_do_update(index_elements=["location"], set_=new))
            for table in (CAUSES, DOCUMENTS):
                connection.execute(sa.delete(table).where(table.c.location.in_(old)))
            n_jobs = connection.execute(sa.delete(JOBS).where(JOBS.c.location.in_(old))).rowcount
            connection.execute(sa.delete(TIMES).where(TIMES.c.diagnosed_at < before_s))
            # A run whose job is still here stays noted: it would be taken for a new one.
            in_store = sa.select(JOBS.c.location)
            n_runs = connection.execute(
                sa.delete(RUNS).where((RUNS.c.noted_at < before_s) & RUNS.c.location.not_in(in_store))
            ).rowcount
            noted = sa.select(RUNS.c.location)
            n_sightings = connection.execute(sa.delete(SIGHTINGS).where(SIGHTINGS.c.location.not_in(noted))).rowcount
            return PrunedRows(n_jobs, n_runs, n_sightings, _prune_deliveries(connection, before_s))

        pruned = self.transact(take_out)
        if self.is_sqlite and any(dataclasses.astuple(pruned)):
            vacant = contextlib.suppress(sqlite3.OperationalError)  # not while others work
            with vacant, contextlib.closing(self._engine.raw_connection()) as connection:
                connection.cursor().execute("VACUUM")
        return pruned

    @contextlib.contextmanager
    def copied(self) -> "Iterator[Store]":
        """Copy the store to a file of its own, to try something that is not to stay; it is deleted at the end."""
        with tempfile.TemporaryDirectory(prefix="diagnose-") as folder, Store(f"sqlite:///{folder}/copy.db") as copy:
            tables = [table for table in METADATA.sorted_tables if table.name != "schema_version"]
            with self.reading() as read:
                for table in tables:
                    add = sa.insert(table)
                    for rows in read(sa.select(table)):
                        copied = [dict(row._mapping) for row in rows]  # noqa: SLF001 - its name in the library's documentation
                        copy.transact(functools.partial(sa.Connection.execute, statement=add, parameters=copied))
            yield copy

    def info(self) -> StoreInfo:
        """Count what is there."""

        def count(connection: sa.Connection, column: sa.Column[Any]) -> dict[str, int]:
            rows = connection.execute(
                sa.select(column, sa.func.count()).where(column.is_not(None)).group_by(column).order_by(column)
            )
            return {str(name): int(n) for name, n in rows}

        def total(connection: sa.Connection, table: sa.Table) -> int:
            return int(connection.execute(sa.select(sa.func.count()).select_from(table)).scalar_one())

        def ask(connection: sa.Connection) -> StoreInfo:
            return StoreInfo(
                url=self.name,
                schema=self.schema,
                by_status=count(connection, JOBS.c.status),
                by_verdict=count(connection, JOBS.c.verdict),
                by_cause=count(connection, CAUSES.c.cause),
                n_pruned=total(connection, PRUNED),
                n_runs=total(connection, NIGHTS),
                n_claims=total(connection, CLAIMS),
            )

        return self.ask(ask)

    # ---- Inside ----

    def _open(self, *, may_create: bool, only_reads: bool) -> int:
        """Make the tables where they are missing or old; where it is only read, refuse a store that lacks them."""

        def prepare(connection: sa.Connection) -> int:
            if not self.is_sqlite and not only_reads:
                connection.execute(sa.select(sa.func.pg_advisory_xact_lock(_MIGRATION_LOCK)))
            if not may_create and read_version(connection) == 0:
                raise NoStoreError(f"{self.name} is no store; `diagnose triage` makes one there")
            return check_version(connection, self.name) if only_reads else migrate(connection)

        try:
            return self.ask(prepare) if only_reads else self.transact(prepare)
        except BaseException:
            self._engine.dispose()
            raise

    def _is_free(self, connection: sa.Connection, job: FinishedJob) -> bool:
        """Say of a job that is mine no longer whether at least nobody else has done or does it."""
        if not self._claims.take(connection, [job.location]):
            return False
        self._claims.end(connection, [job.location])
        known = self._look_up(connection, [job.location]).get(job.location)
        return known is None or job.outcome.row is None or known.identity != job.outcome.row.identity

    def _put(self, connection: sa.Connection, done: Sequence[FinishedJob], replaced: Sequence[str]) -> None:
        """Write all rows of jobs, of some in the place of older ones."""
        if not done:
            return
        old = [plain_text(location) for location in replaced]
        came_at = _when_they_came(connection, old)
        for table in (CAUSES, DOCUMENTS, PRUNED) if old else ():
            connection.execute(sa.delete(table).where(table.c.location.in_(old)))
        connection.execute(self._upserts[JOBS], [plain_row(job.outcome.row) for job in done])
        if causes := [plain_row(cause) for job in done for cause in job.outcome.causes]:
            connection.execute(sa.insert(CAUSES), causes)
        if documents := [
            {"location": plain_text(job.location), "document": job.outcome.document}
            for job in done
            if job.outcome.document is not None
        ]:
            connection.execute(sa.insert(DOCUMENTS), documents)
        rows = [
            {
                "location": (at := plain_text(job.location)),
                "took_s": job.outcome.took_s,
                "stamp": job.outcome.stamp,
                "came_at": came_at.get((at, job.outcome.row.content if job.outcome.row else None), self._entered_at),
            }
            for job in done
        ]
        connection.execute(self._upserts[TIMES], rows)

    def _look_up(self, connection: sa.Connection, locations: Sequence[str]) -> dict[str, KnownJob]:
        """Read what is known of a few jobs."""
        given = {plain_text(location): location for location in locations}
        jobs = (
            sa.select(
                JOBS.c.location, JOBS.c.status, JOBS.c.identity, JOBS.c.content, TIMES.c.stamp, TIMES.c.diagnosed_at
            )
            .join(TIMES, JOBS.c.location == TIMES.c.location)
            .where(JOBS.c.location.in_(given))
        )
        gone = sa.literal_column("'pruned'", sa.Text), sa.literal_column("NULL", sa.Text)
        pruned = sa.select(
            PRUNED.c.location, *gone, PRUNED.c.content, PRUNED.c.stamp, sa.literal_column("0.0", sa.Double)
        ).where(PRUNED.c.location.in_(given))
        return {given[key]: KnownJob(*rest) for key, *rest in connection.execute(jobs.union_all(pruned))}


def _when_they_came(connection: sa.Connection, locations: Sequence[str]) -> dict[tuple[str, str | None], float]:
    """Give the night in which jobs came, by location and content: one that is diagnosed anew stays the run that it was."""
    known = sa.select(JOBS.c.location, JOBS.c.content, TIMES.c.came_at).join(TIMES, JOBS.c.location == TIMES.c.location)
    there = (JOBS.c.location.in_(locations)) & JOBS.c.content.is_not(None) & TIMES.c.came_at.is_not(None)
    return {(at, content): came for at, content, came in connection.execute(known.where(there))} if locations else {}


def _prune_deliveries(connection: sa.Connection, before_s: float) -> int:
    """Forget what was told of tickets that are over, and count it: what is open, or was fixed since, would be told again."""
    findings = [Finding(*row) for row in connection.execute(sa.select(FINDINGS))]
    kept = {one.ticket for one in findings if one.state == "open" or (one.fixed_at or 0.0) >= before_s}
    is_old = DELIVERIES.c.sent_at.is_(None) | (DELIVERIES.c.sent_at < before_s)
    tickets = set(connection.execute(sa.select(DELIVERIES.c.ticket).where(is_old).distinct()).scalars())
    return sum(
        connection.execute(sa.delete(DELIVERIES).where(is_old & DELIVERIES.c.ticket.in_(some))).rowcount
        for some in in_chunks(sorted(tickets - kept))
    )
