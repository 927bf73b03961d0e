"""The store: what is known about all jobs, and who is at work on which. SQLite or PostgreSQL.

Enters: outcomes. Leaves: rows, each job's all together or none of them. Several triages may use one store at the same
time, on one machine or many: a job belongs to who claimed it, for as long as he lives.
"""

import contextlib
import dataclasses
import os
import sqlite3
import threading
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Self, TypeVar

import sqlalchemy as sa
from sqlalchemy.dialects import postgresql, sqlite

from diagnose.errors import ServiceError, UsageError
from diagnose.triage.machine import is_alive, name_machine, name_process
from diagnose.triage.schema import (
    CAUSES,
    CLAIMS,
    DOCUMENTS,
    JOBS,
    MOMENTS,
    NIGHTS,
    PRUNED,
    TIMES,
    migrate,
    read_version,
)
from diagnose.triage.work import Outcome

#: Environment variables with the password of the store, or the name of a file with it.
PASSWORD = "DIAGNOSE_STORE_PASSWORD"  # noqa: S105 - the name of a variable
PASSWORD_FILE = "DIAGNOSE_STORE_PASSWORD_FILE"  # noqa: S105 - the same
#: Seconds for which a triage is believed to live after its last sign, and between two signs.
LEASE_S = 120.0
SIGN_S = 15.0
#: Seconds to wait for others who write.
BUSY_S = 60.0
#: Seconds to wait before trying again when the database does not answer.
RETRY_S = (0.2, 1.0, 3.0, 10.0)
#: Locations asked for at a time, and rows read at a time.
CHUNK = 500
READ_ROWS = 5_000
#: The name under which the end of the last night is kept.
NIGHT_ENDED = "night-ended"
#: What databases say when the disk is full.
_FULL = ("disk is full", "No space left")
#: Any number: who migrates a PostgreSQL store holds this lock.
_MIGRATION_LOCK = 7_236_105

_Found = TypeVar("_Found")


class NoStoreError(ServiceError):
    """There is no store yet."""


@dataclasses.dataclass(frozen=True, slots=True)
class Known:
    """What the store says of a job; `status` is diagnosed, failed or pruned, `diagnosed_at` by the clock of the store."""

    status: str
    identity: str | None
    content: str | None
    stamp: str | None
    diagnosed_at: float


@dataclasses.dataclass(frozen=True, slots=True)
class Done:
    """A job that was done, and how it went; `is_new` where nothing was known of it when it was claimed."""

    location: str
    outcome: Outcome
    is_new: bool = False


@dataclasses.dataclass(frozen=True, slots=True)
class Info:
    """A store in numbers; `by_status` and `by_verdict` count jobs, `by_cause` causes."""

    url: str
    schema: int
    by_status: dict[str, int]
    by_verdict: dict[str, int]
    by_cause: dict[str, int]
    n_pruned: int
    n_nights: int
    n_claims: int


class Store:
    """A database with the tables of this version.

    Parameters
    ----------
    url : str
        `sqlite:///FILE` or `postgresql://USER@HOST/DATABASE`. The password comes from `DIAGNOSE_STORE_PASSWORD`, or the file
        that `DIAGNOSE_STORE_PASSWORD_FILE` names, or what libpq reads.
    may_create : bool
        When False, a store that is not there is an error, and nothing is made.

    Raises
    ------
    UsageError
        The URL makes no sense, or what it needs is not installed.
    ServiceError
        The database does not answer, or is not a store.
    """

    def __init__(self, url: str, *, may_create: bool = True) -> None:
        self._url = read_url(url)
        self.name = self._url.render_as_string(hide_password=True)
        self.spent_s = 0.0
        self._is_sqlite = self._url.get_backend_name() == "sqlite"
        self._insert = sqlite.insert if self._is_sqlite else postgresql.insert
        # Statements of every job are made once: to make one takes SQLAlchemy longer than the database takes to run it.
        self._claiming = self._make_claim()
        self._upserts = {JOBS: self._make_upsert(JOBS), TIMES: self._make_upsert(TIMES, diagnosed_at=self._now())}
        if self._is_sqlite and not may_create and not Path(self._url.database or "").is_file():
            raise NoStoreError(f"{self.name} is not there; `diagnose triage` makes it")
        self._engine = _make_engine(self._url)
        self._night: _Night | None = None
        self._waits_s: tuple[float, ...] = RETRY_S
        self.schema = self._open(may_create=may_create)

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

    def transact(self, action: Callable[[sa.Connection], _Found], *, is_trial: bool = False) -> _Found:
        """Do something in one transaction that writes; a trial is undone, so that only its answer is left."""

        def attempt(connection: sa.Connection) -> _Found:
            found = action(connection)
            if is_trial:
                connection.get_transaction().rollback()  # type: ignore[union-attr] # we are in one
            return found

        return self._write(attempt)

    # ---- Who is at work ----

    @property
    def night(self) -> str:
        """The name of this night, after `enter`."""
        return self._name()

    @property
    def clock(self) -> sa.ColumnElement[float]:
        """The time of the database, for queries."""
        return self._now()

    def note_end(self) -> None:
        """Write down that a night has ended, for who watches whether nights still come."""
        add = self._insert(MOMENTS).values(name=NIGHT_ENDED, at_s=self._now())
        new = {"at_s": add.excluded.at_s}
        self._write(lambda connection: connection.execute(add.on_conflict_do_update(index_elements=["name"], set_=new)))

    def enter(self) -> None:
        """Begin a night: from now on jobs can be claimed."""
        self._night = self._try(lambda: _Night(self._show_life))
        self._write(self._bury)

    def leave(self) -> None:
        """End the night and give all claims back."""
        night, self._night = self._night, None
        if night is None:
            return
        night.stop()

        def end(connection: sa.Connection) -> None:
            connection.execute(sa.delete(CLAIMS).where(CLAIMS.c.night == night.name))
            connection.execute(sa.delete(NIGHTS).where(NIGHTS.c.night == night.name))

        with contextlib.suppress(ServiceError):  # then the lease runs out by itself
            self._write(end)

    def bury_dead(self) -> None:
        """Free the jobs of triages that have died."""
        self._write(self._bury)

    def now_s(self) -> float:
        """Say what time it is by the clock of the database."""
        return float(self._read(lambda connection: connection.execute(sa.select(self._now())).scalar_one()))

    # ---- Jobs ----

    def known(self, locations: Sequence[str]) -> dict[str, Known]:
        """Say what is known of these jobs; those that nothing is known of are left out."""

        def ask(connection: sa.Connection) -> dict[str, Known]:
            found: dict[str, Known] = {}
            for start in range(0, len(locations), CHUNK):
                found |= self._look_up(connection, locations[start : start + CHUNK])
            return found

        return self._read(ask)

    def claim(self, locations: Sequence[str]) -> dict[str, Known | None]:
        """Claim jobs for this night.

        Parameters
        ----------
        locations : sequence of str

        Returns
        -------
        dict of str to Known or None
            Of the jobs that are mine now, what the store says of them. Those that a triage that lives has are left out.
        """

        def take(connection: sa.Connection) -> dict[str, Known | None]:
            mine = self._take(connection, locations)
            known = self._look_up(connection, mine) if mine else {}
            return {location: known.get(location) for location in mine}

        return self._write(take)

    def finish(self, done: Sequence[Done]) -> list[bool]:
        """Write how jobs went, and give their claims back, all in one transaction.

        Parameters
        ----------
        done : sequence of Done
            Each job once.

        Returns
        -------
        list of bool
            For each, False where another triage has taken the job over, because this one showed no life for long; nothing is
            written of it then.
        """

        def write(connection: sa.Connection) -> list[bool]:
            kept = self._end_claims(connection, [job.location for job in done])
            is_mine = [job.location in kept or self._is_free(connection, job) for job in done]
            mine = [job for job, is_so in zip(done, is_mine, strict=True) if is_so]
            unchanged = [
                {"at": _text(job.location), "seen": job.outcome.stamp} for job in mine if job.outcome.row is None
            ]
            for table in (TIMES, PRUNED) if unchanged else ():
                at = table.c.location == sa.bindparam("at")
                connection.execute(sa.update(table).where(at).values(stamp=sa.bindparam("seen")), unchanged)
            made = [job for job in mine if job.outcome.row is not None]
            self._put(connection, made, [job.location for job in made if not (job.is_new and job.location in kept)])
            return is_mine

        return self._write(write)

    def release(self, locations: Sequence[str]) -> None:
        """Give claims back without a result."""
        self._write(lambda connection: self._end_claims(connection, locations))

    # ---- The whole store ----

    def prune(self, before_s: float) -> int:
        """Take out all jobs diagnosed before a moment; they are done again only when they change.

        Returns
        -------
        int
            Jobs taken out.
        """
        old = sa.select(TIMES.c.location).where(TIMES.c.diagnosed_at < before_s)

        def take_out(connection: sa.Connection) -> int:
            kept = sa.select(JOBS.c.location, JOBS.c.content, TIMES.c.stamp).join(
                TIMES, JOBS.c.location == TIMES.c.location
            )
            add = self._insert(PRUNED).from_select(
                ["location", "content", "stamp"],
                kept.where((TIMES.c.diagnosed_at < before_s) & JOBS.c.content.is_not(None)),
            )
            new = {"content": add.excluded.content, "stamp": add.excluded.stamp}
            connection.execute(add.on_conflict_do_update(index_elements=["location"], set_=new))
            for table in (CAUSES, DOCUMENTS):
                connection.execute(sa.delete(table).where(table.c.location.in_(old)))
            n_jobs = connection.execute(sa.delete(JOBS).where(JOBS.c.location.in_(old))).rowcount
            connection.execute(sa.delete(TIMES).where(TIMES.c.diagnosed_at < before_s))
            return n_jobs

        n_jobs = self._write(take_out)
        if self._is_sqlite and n_jobs:
            vacant = contextlib.suppress(sqlite3.OperationalError)  # not while others work
            with vacant, contextlib.closing(self._engine.raw_connection()) as connection:
                connection.cursor().execute("VACUUM")
        return n_jobs

    def info(self) -> Info:
        """Count what is there."""

        def count(connection: sa.Connection, column: sa.Column[Any]) -> dict[str, int]:
            rows = connection.execute(
                sa.select(column, sa.func.count()).where(column.is_not(None)).group_by(column).order_by(column)
            )
            return {str(name): int(n) for name, n in rows}

        def total(connection: sa.Connection, table: sa.Table) -> int:
            return int(connection.execute(sa.select(sa.func.count()).select_from(table)).scalar_one())

        def ask(connection: sa.Connection) -> Info:
            return Info(
                url=self.name,
                schema=self.schema,
                by_status=count(connection, JOBS.c.status),
                by_verdict=count(connection, JOBS.c.verdict),
                by_cause=count(connection, CAUSES.c.cause),
                n_pruned=total(connection, PRUNED),
                n_nights=total(connection, NIGHTS),
                n_claims=total(connection, CLAIMS),
            )

        return self._read(ask)

    @contextlib.contextmanager
    def reading(self) -> Iterator[Callable[[sa.Select[Any]], Iterator[Sequence[sa.Row[Any]]]]]:
        """Give what runs queries on one unchanging state of the store; rows come in batches."""
        try:
            with self._engine.connect() as connection:
                level = {} if self._is_sqlite else {"isolation_level": "REPEATABLE READ"}
                connection.execution_options(reads=True, stream_results=True, **level)
                with connection.begin():
                    yield lambda query: connection.execute(query).partitions(READ_ROWS)
        except sa.exc.DBAPIError as error:
            raise self._explain(error) from None

    # ---- Inside ----

    def _open(self, *, may_create: bool) -> int:
        """Make the tables where they are missing or old."""

        def prepare(connection: sa.Connection) -> int:
            if not self._is_sqlite:
                connection.execute(sa.select(sa.func.pg_advisory_xact_lock(_MIGRATION_LOCK)))
            if not may_create and read_version(connection) == 0:
                raise NoStoreError(f"{self.name} is no store; `diagnose triage` makes one there")
            return migrate(connection)

        try:
            return self._write(prepare)
        except BaseException:
            self._engine.dispose()
            raise

    def _name(self) -> str:
        """Name this night."""
        assert self._night is not None, "enter() comes first"
        return self._night.name

    def _now(self) -> sa.ColumnElement[float]:
        """Give the time of the database, which is the same for all machines."""
        if self._is_sqlite:
            return sa.literal_column("(julianday('now') - 2440587.5) * 86400.0", sa.Double)
        return sa.literal_column("CAST(extract(epoch FROM clock_timestamp()) AS DOUBLE PRECISION)", sa.Double)

    def _show_life(self, name: str) -> None:
        """Say that this triage lives."""
        sign = {"machine": name_machine(), "process": name_process(os.getpid()), "expires": self._now() + LEASE_S}
        add = self._insert(NIGHTS).values(night=name, **sign)
        with self._engine.begin() as connection:
            connection.execute(add.on_conflict_do_update(index_elements=["night"], set_=sign))

    def _bury(self, connection: sa.Connection) -> None:
        """Remove nights whose process is dead, or that have shown no life for long, and their claims."""
        here = sa.select(NIGHTS.c.night, NIGHTS.c.process).where(NIGHTS.c.machine == name_machine())
        dead = [name for name, process in connection.execute(here) if not is_alive(process)]
        connection.execute(sa.delete(NIGHTS).where(NIGHTS.c.night.in_(dead) | (NIGHTS.c.expires < self._now())))
        connection.execute(sa.delete(CLAIMS).where(CLAIMS.c.night.not_in(sa.select(NIGHTS.c.night))))

    def _make_claim(self) -> sa.Executable:
        """Make what claims jobs that nobody who lives has, and gives those that it got."""
        alive = sa.select(NIGHTS.c.night).where(NIGHTS.c.expires > self._now())
        add = self._insert(CLAIMS)
        new = {"night": add.excluded.night}
        take = add.on_conflict_do_update(index_elements=["location"], set_=new, where=CLAIMS.c.night.not_in(alive))
        return take.returning(CLAIMS.c.location)

    def _make_upsert(self, table: sa.Table, **always: sa.ColumnElement[Any]) -> sa.Insert:
        """Make what writes rows in the place of those with their locations."""
        add = self._insert(table).values({column.name: sa.bindparam(column.name) for column in table.c} | always)
        new = {column.name: add.excluded[column.name] for column in table.c if column.name != "location"}
        return add.on_conflict_do_update(index_elements=["location"], set_=new)

    def _take(self, connection: sa.Connection, locations: Sequence[str]) -> list[str]:
        """Claim jobs that nobody who lives has; give those that are mine now."""
        # In order: two triages that claim the same jobs, each in an order of its own, would wait for each other.
        keys = sorted({_text(location) for location in locations})
        rows = [{"location": key, "night": self._name()} for key in keys]
        mine = set(connection.execute(self._claiming, rows).scalars())
        return [location for location in locations if _text(location) in mine]

    def _end_claims(self, connection: sa.Connection, locations: Sequence[str]) -> set[str]:
        """End claims; give those of the jobs that were mine until now."""
        given = {_text(location): location for location in locations}
        ended = sa.delete(CLAIMS).where(CLAIMS.c.location.in_(given) & (CLAIMS.c.night == self._name()))
        return {given[key] for key in connection.execute(ended.returning(CLAIMS.c.location)).scalars()}

    def _is_free(self, connection: sa.Connection, job: Done) -> bool:
        """Say of a job that is mine no longer whether at least nobody else has done or does it."""
        if not self._take(connection, [job.location]):
            return False
        self._end_claims(connection, [job.location])
        known = self._look_up(connection, [job.location]).get(job.location)
        return known is None or job.outcome.row is None or known.identity != job.outcome.row.identity

    def _put(self, connection: sa.Connection, done: Sequence[Done], replaced: Sequence[str]) -> None:
        """Write all rows of jobs, of some in the place of older ones."""
        if not done:
            return
        old = [_text(location) for location in replaced]
        for table in (CAUSES, DOCUMENTS, PRUNED) if old else ():
            connection.execute(sa.delete(table).where(table.c.location.in_(old)))
        self._upsert(connection, JOBS, [_plain(job.outcome.row) for job in done])
        if causes := [_plain(cause) for job in done for cause in job.outcome.causes]:
            connection.execute(sa.insert(CAUSES), causes)
        documents = [(_text(job.location), job.outcome.document) for job in done if job.outcome.document is not None]
        if documents:
            connection.execute(sa.insert(DOCUMENTS), [{"location": at, "document": text} for at, text in documents])
        times = [(_text(job.location), job.outcome.took_s, job.outcome.stamp) for job in done]
        self._upsert(connection, TIMES, [{"location": at, "took_s": took, "stamp": s} for at, took, s in times])

    def _upsert(self, connection: sa.Connection, table: sa.Table, rows: list[dict[str, Any]]) -> None:
        """Write rows in the place of those with their locations."""
        connection.execute(self._upserts[table], rows)

    def _look_up(self, connection: sa.Connection, locations: Sequence[str]) -> dict[str, Known]:
        """Read what is known of a few jobs."""
        given = {_text(location): location for location in locations}
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
        return {given[key]: Known(*rest) for key, *rest in connection.execute(jobs.union_all(pruned))}

    def _write(self, action: Callable[[sa.Connection], _Found]) -> _Found:
        """Do something in one transaction, again where the database did not answer."""
        return self._try(lambda: self._within(action, reads=False))

    def _read(self, action: Callable[[sa.Connection], _Found]) -> _Found:
        """Ask something, again where the database did not answer."""
        return self._try(lambda: self._within(action, reads=True))

    def _within(self, action: Callable[[sa.Connection], _Found], *, reads: bool) -> _Found:
        """Do something in one transaction."""
        with self._engine.connect().execution_options(reads=reads) as connection, connection.begin():
            return action(connection)

    def _try(self, action: Callable[[], _Found]) -> _Found:
        """Do something, again where the database did not answer, and add up the time."""
        began_s = time.perf_counter()
        try:
            for wait_s in self._waits_s:
                try:
                    return action()
                except sa.exc.OperationalError as error:
                    if not (self._night or error.connection_invalidated) or _is_full(error):
                        raise  # a store that does not answer at first is named wrongly, more likely
                    time.sleep(wait_s)
            return action()
        except sa.exc.SQLAlchemyError as error:
            self._waits_s = ()  # who has waited in vain does not wait again to say goodbye
            raise self._explain(error) from None
        finally:
            self.spent_s += time.perf_counter() - began_s

    def _explain(self, error: sa.exc.SQLAlchemyError) -> ServiceError:
        """Say what the database says, in one line and without secrets."""
        said = " ".join(str(getattr(error, "orig", None) or error).split())
        if self._url.password:
            said = said.replace(str(self._url.password), "***")
        advice = "; make room and start again: what is done is kept" if _is_full(error) else ""
        return ServiceError(f"{self.name}: {said[:300]}{advice}")


class _Night:
    """Shows life for as long as this process lives."""

    def __init__(self, show_life: Callable[[str], None]) -> None:
        self.name = uuid.uuid4().hex
        self._show_life = show_life
        self._ended = threading.Event()
        show_life(self.name)
        self._thread = threading.Thread(target=self._keep, daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Show no more life."""
        self._ended.set()
        self._thread.join()

    def _keep(self) -> None:
        """Show life every few seconds; what fails once is tried again before the lease runs out."""
        while not self._ended.wait(SIGN_S):
            with contextlib.suppress(sa.exc.SQLAlchemyError):
                self._show_life(self.name)


def read_url(text: str) -> sa.URL:
    """Read the URL of a store, and find its password.

    Raises
    ------
    UsageError
        It is no URL, of another database, or the file with the password cannot be read.
    """
    try:
        url = sa.make_url(text)
    except sa.exc.ArgumentError:
        raise UsageError("--store is no URL; expected sqlite:///FILE or postgresql://USER@HOST/DATABASE") from None
    kind = url.get_backend_name()
    if kind not in {"sqlite", "postgresql"}:
        raise UsageError(f"--store: {kind} is not known; expected sqlite:///FILE or postgresql://USER@HOST/DATABASE")
    if kind == "sqlite":
        if url.database in {None, "", ":memory:"}:
            raise UsageError("--store: a store in memory is gone at once; expected sqlite:///FILE")
        return url
    if url.drivername in {"postgresql", "postgres"}:
        url = url.set(drivername="postgresql+psycopg")
    password = _find_password()
    return url.set(password=password) if password is not None else url


def has_password(text: str) -> bool:
    """Say whether a URL has a password in it."""
    try:
        return sa.make_url(text).password is not None
    except sa.exc.ArgumentError:
        return False


def _is_full(error: sa.exc.SQLAlchemyError) -> bool:
    """Say whether an error says that the disk is full: waiting makes no room."""
    said = str(
        getattr(error, "orig", None) or ""
    )  # without the rows that were to be written: they may speak of disks too
    return any(full in said for full in _FULL)


def _find_password() -> str | None:
    """Read the password of the store where it is kept."""
    if found := os.environ.get(PASSWORD):
        return found
    if file := os.environ.get(PASSWORD_FILE):
        try:
            return Path(file).read_text(encoding="utf-8").rstrip("\r\n")
        except (OSError, UnicodeDecodeError) as error:
            raise UsageError(
                f"{PASSWORD_FILE}: cannot read {file}: {getattr(error, 'strerror', None) or error}"
            ) from None
    return None


def _make_engine(url: sa.URL) -> sa.Engine:
    """Make an engine whose transactions are what they seem."""
    if url.get_backend_name() == "postgresql":
        try:
            return sa.create_engine(url, connect_args={"connect_timeout": 10, "application_name": "diagnose"})
        except ImportError:
            raise UsageError("--store postgresql:// needs psycopg: pip install 'diagnose-training[postgres]'") from None
    folder = Path(url.database or "").parent
    if not folder.is_dir():
        raise UsageError(f"--store: there is no folder {folder}")
    engine = sa.create_engine(url, connect_args={"timeout": BUSY_S})
    sa.event.listen(engine, "connect", _set_up_sqlite)
    sa.event.listen(engine, "begin", _begin_sqlite)
    return engine


def _set_up_sqlite(connection: Any, _record: object) -> None:
    """Let readers and one writer work side by side, and let us say where transactions begin."""
    connection.isolation_level = None
    connection.execute(f"PRAGMA busy_timeout = {int(BUSY_S * 1000)}")
    connection.execute("PRAGMA synchronous = NORMAL")
    until_s = time.monotonic() + BUSY_S
    while True:
        try:
            connection.execute("PRAGMA journal_mode = WAL")
        except sqlite3.OperationalError as error:  # two that open a new store at once: SQLite does not wait here
            if "locked" not in str(error) or time.monotonic() > until_s:
                raise
            time.sleep(0.05)
        else:
            return


def _begin_sqlite(connection: sa.Connection) -> None:
    """Begin a transaction; one that will write takes its turn at once, because later it may be too late."""
    reads = connection.get_execution_options().get("reads", False)
    connection.exec_driver_sql("BEGIN" if reads else "BEGIN IMMEDIATE")


def _plain(row: Any) -> dict[str, Any]:
    """Make columns of a row, with text that every database takes."""
    return {
        field.name: _text(value) if isinstance(value := getattr(row, field.name), str) else value
        for field in dataclasses.fields(row)
    }


def _text(text: str) -> str:
    r"""Write what no database takes as text as escapes: NUL, and bytes of file names that are no UTF-8.

    >>> _text("job\0" + chr(0xdcff))
    'job\\x00\\udcff'
    """
    return text.replace("\0", "\\x00").encode("utf-8", "backslashreplace").decode("utf-8")
