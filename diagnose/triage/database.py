"""A database, SQLite or PostgreSQL, opened by its URL and asked again where it does not answer at once.

Enters: a URL, and what to do in a transaction. Leaves: its answer, or one line without secrets that says why there is none.
"""

import contextlib
import dataclasses
import functools
import os
import sqlite3
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import sqlalchemy as sa
from sqlalchemy.dialects import sqlite

from diagnose.addresses import read_secret
from diagnose.errors import ServiceError, UsageError

if TYPE_CHECKING:
    from sqlalchemy.dialects import postgresql

    Insert = sqlite.Insert | postgresql.Insert

#: Environment variable with the password of the store; with `_FILE` behind it, the name of a file that has it.
PASSWORD = "DIAGNOSE_STORE_PASSWORD"  # noqa: S105 - the name of a variable
#: Seconds to wait for others who write: longer than any transaction of ours takes.
BUSY_S = 60.0
#: Seconds to wait before trying again when the database does not answer: 14 s in all, as long as a restart takes.
RETRY_S = (0.2, 1.0, 3.0, 10.0)
#: Locations asked for at a time (databases limit the parameters of a query), and rows read at a time.
CHUNK = 500
READ_ROWS = 5_000
#: What databases say when the disk is full.
_FULL = ("disk is full", "No space left")

_Found = TypeVar("_Found")


class Database:
    """A database that is asked in transactions, or only read. `waited_s` adds up the seconds spent waiting for it."""

    def __init__(self, url: str, *, only_reads: bool = False) -> None:
        self._url = read_url(url)
        self.name = self._url.render_as_string(hide_password=True)
        self.waited_s = 0.0
        self.is_sqlite = self._url.get_backend_name() == "sqlite"
        self.only_reads = only_reads
        self.insert = _find_insert(self._url.get_backend_name())
        #: While False, a database that does not answer is not asked again: more likely its URL is wrong.
        self.asks_again = False
        self._engine = _make_engine(self._url, only_reads=only_reads)
        self._waits_s: tuple[float, ...] = RETRY_S

    @property
    def clock(self) -> sa.ColumnElement[float]:
        """The time of the database, seconds since 1970, for queries: it is the same for all machines."""
        if self.is_sqlite:
            return sa.literal_column("(julianday('now') - 2440587.5) * 86400.0", sa.Double)
        return sa.literal_column("CAST(extract(epoch FROM clock_timestamp()) AS DOUBLE PRECISION)", sa.Double)

    def upsert(self, table: sa.Table, **values: object) -> sa.Insert:
        """Make what writes a row, or rows where values are parameters, in the place of those with their key."""
        return _in_place(self.insert(table).values(values), values)

    def now_s(self) -> float:
        """Read the clock of the database."""
        return float(self.ask(lambda connection: connection.execute(sa.select(self.clock)).scalar_one()))

    def transact(self, action: Callable[[sa.Connection], _Found], *, is_trial: bool = False) -> _Found:
        """Do something in one transaction that writes; a trial is undone, so that only its answer is left."""

        def attempt(connection: sa.Connection) -> _Found:
            found = action(connection)
            if is_trial:
                connection.get_transaction().rollback()  # type: ignore[union-attr] # we are in one
            return found

        return self._within(attempt, reads=False)

    def ask(self, action: Callable[[sa.Connection], _Found]) -> _Found:
        """Ask something in one transaction that reads."""
        return self._within(action, reads=True)

    @contextlib.contextmanager
    def reading(self) -> Iterator[Callable[[sa.Select[Any]], Iterator[Sequence[sa.Row[Any]]]]]:
        """Give what runs queries on one unchanging state of the store; rows come in batches."""
        try:
            with self._engine.connect() as connection:
                level = {} if self.is_sqlite else {"isolation_level": "REPEATABLE READ"}
                connection.execution_options(reads=True, stream_results=True, **level)
                with connection.begin():
                    yield lambda query: connection.execute(query).partitions(READ_ROWS)
        except sa.exc.DBAPIError as error:
            raise self._explain(error) from None

    def execute_once(self, statement: sa.Executable) -> None:
        """Run one statement in a transaction of its own, and let its errors through."""
        with self._engine.begin() as connection:
            connection.execute(statement)

    def retry(self, action: Callable[[], _Found]) -> _Found:
        """Do something, again where the database did not answer, and add up the time."""
        began_s = time.perf_counter()
        try:
            for wait_s in self._waits_s:
                try:
                    return action()
                except sa.exc.OperationalError as error:
                    if not (self.asks_again or error.connection_invalidated) or _is_full(error):
                        raise
                    time.sleep(wait_s)
            return action()
        except sa.exc.SQLAlchemyError as error:
            self._waits_s = ()  # a database that did not answer in all that time is not waited for again
            raise self._explain(error) from None
        finally:
            self.waited_s += time.perf_counter() - began_s

    def _within(self, action: Callable[[sa.Connection], _Found], *, reads: bool) -> _Found:
        """Do something in one transaction, again where the database did not answer."""

        def attempt() -> _Found:
            with self._engine.connect().execution_options(reads=reads) as connection, connection.begin():
                return action(connection)

        return self.retry(attempt)

    def _explain(self, error: sa.exc.SQLAlchemyError) -> ServiceError:
        """Say what the database says, in one line and without secrets."""
        said = " ".join(str(getattr(error, "orig", None) or error).split())
        if self._url.password:
            said = said.replace(str(self._url.password), "***")
        advice = "; make room and start again: what is done is kept" if _is_full(error) else ""
        return ServiceError(f"{self.name}: {said[:300]}{advice}")


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
    password = read_secret(PASSWORD)
    return url.set(password=password) if password is not None else url


def _is_full(error: sa.exc.SQLAlchemyError) -> bool:
    """Say whether an error says that the disk is full: waiting makes no room."""
    # Without the rows that were to be written: they may speak of disks too.
    said = str(getattr(error, "orig", None) or "")
    return any(full in said for full in _FULL)


def _make_engine(url: sa.URL, *, only_reads: bool) -> sa.Engine:
    """Make an engine whose transactions are what they seem."""
    if url.get_backend_name() == "postgresql":
        try:
            connect = {"connect_timeout": 10, "application_name": "diagnose"}
            return sa.create_engine(url, connect_args=connect, execution_options={"postgresql_readonly": only_reads})
        except ImportError:
            raise UsageError("--store postgresql:// needs psycopg: pip install 'diagnose-training[postgres]'") from None
    file = Path(url.database or "")
    if not file.parent.is_dir():
        raise UsageError(f"--store: there is no folder {file.parent}")
    if only_reads:
        engine = sa.create_engine(url, creator=lambda: _read_sqlite(file))
    else:
        with contextlib.suppress(OSError):  # who opens it says what is wrong; what SQLite puts beside it is as closed
            os.close(os.open(file, os.O_CREAT | os.O_EXCL, 0o600))
        engine = sa.create_engine(url, connect_args={"timeout": BUSY_S})
        sa.event.listen(engine, "connect", _set_up_sqlite)
    sa.event.listen(engine, "begin", _begin_sqlite)
    return engine


def _read_sqlite(file: Path) -> sqlite3.Connection:
    """Open a file that is only read, and leave nothing beside it that could keep those out who write it.

    Who may write it shares it with them as they do. Who may not reads the log beside it where there is one; where there is none,
    nobody writes, and the file is taken as it is.
    """
    address = file.absolute().as_uri()
    connect = functools.partial(
        sqlite3.connect, uri=True, timeout=BUSY_S, isolation_level=None, check_same_thread=False
    )
    if os.access(file, os.W_OK) and os.access(file.parent, os.W_OK):
        connection = connect(f"{address}?mode=rw")
        connection.execute("PRAGMA query_only = ON")
        return connection
    log = file.with_name(f"{file.name}-wal")
    if not log.exists():
        return connect(f"{address}?mode=ro&immutable=1")
    connection = connect(f"{address}?mode=ro&readonly_shm=1")
    try:
        connection.execute("PRAGMA schema_version")
    except sqlite3.OperationalError:
        connection.close()
        if log.stat().st_size:
            raise sqlite3.OperationalError(
                f"{log.name} holds what is not in the file yet, and cannot be read; open the store once as who writes it"
            ) from None
        return connect(f"{address}?mode=ro&immutable=1")
    return connection


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


def plain_row(row: Any) -> dict[str, Any]:
    """Make columns of a row, with text that every database takes."""
    return {
        field.name: plain_text(value) if isinstance(value := getattr(row, field.name), str) else value
        for field in dataclasses.fields(row)
    }


def plain_text(text: str) -> str:
    r"""Write what no database takes as text as escapes: NUL, and bytes of file names that are no UTF-8.

    >>> plain_text("job\0" + chr(0xdcff))
    'job\\x00\\udcff'
    """
    return text.replace("\0", "\\x00").encode("utf-8", "backslashreplace").decode("utf-8")


def _find_insert(kind: str) -> "Callable[[sa.Table], Insert]":
    """Give what makes INSERTs that may say what to do in a conflict, for a kind of database; one not used is not imported."""
    if kind == "sqlite":
        return sqlite.insert
    from sqlalchemy.dialects import postgresql

    return postgresql.insert


def put_rows(connection: sa.Connection, table: sa.Table, rows: list[dict[str, Any]]) -> None:
    """Write rows in the place of those with their key."""
    if rows:
        connection.execute(_in_place(_find_insert(connection.dialect.name)(table), rows[0]), rows)


def _in_place(add: "Insert", columns: Iterable[str]) -> "Insert":
    """Let an INSERT of these columns take the place of the row with its key."""
    key = [column.name for column in add.table.primary_key]
    return add.on_conflict_do_update(
        index_elements=key, set_={name: add.excluded[name] for name in columns if name not in key}
    )


def in_chunks(values: Sequence[str]) -> Iterator[Sequence[str]]:
    """Give a few at a time: no query takes any number."""
    for start in range(0, len(values), CHUNK):
        yield values[start : start + CHUNK]
