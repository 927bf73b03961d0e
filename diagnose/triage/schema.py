"""The tables of the store, and how a store of an older version becomes one of this.

Enters: a connection inside a transaction. Leaves: the same database with the tables of this version, its data kept.
"""

from collections.abc import Callable
from typing import Any, get_type_hints

import sqlalchemy as sa

from diagnose.errors import ServiceError
from diagnose.model.ticket import Ack, Finding
from diagnose.triage.rows import CauseRow, JobRow, RunRow

METADATA = sa.MetaData()
_TYPES: dict[type, type[sa.types.TypeEngine[Any]]] = {str: sa.Text, int: sa.BigInteger, float: sa.Double}


def _table(table: str, keys: str, /, **columns: type[sa.types.TypeEngine[Any]]) -> sa.Table:
    """Describe a table that the migrations make: its name, the columns of its key, and all columns in order."""
    made = [sa.Column(name, kind, primary_key=name in keys.split()) for name, kind in columns.items()]
    return sa.Table(table, METADATA, *made)


def _table_of(row: type, table: str, keys: str) -> sa.Table:
    """Describe a table with a column for each field of a row."""
    kinds = {}
    for name, kind in get_type_hints(row).items():
        plain = next(one for one in getattr(kind, "__args__", (kind,)) if one is not type(None))
        kinds[name] = _TYPES[plain]
    return _table(table, keys, **kinds)


#: One row a job: its headline, or why it has none.
JOBS = _table_of(JobRow, "jobs", "location")
#: One row a cause of a job.
CAUSES = _table_of(CauseRow, "causes", "location place")
#: The diagnosis of a job as JSON.
DOCUMENTS = _table("documents", "location", location=sa.Text, document=sa.Text)
#: When a job was diagnosed (seconds since 1970), how long that took, the stamp of its file then, and when the triage run began that
#: first diagnosed this content, which is its night: apart from the results, because these differ from one triage run to the next.
TIMES = _table(
    *("times", "location"),
    location=sa.Text,
    diagnosed_at=sa.Double,
    took_s=sa.Double,
    stamp=sa.Text,
    came_at=sa.Double,
)
#: Triage runs at work (the tables call one a night): who they are, and until when they are believed without another sign of life.
NIGHTS = _table("nights", "night", night=sa.Text, machine=sa.Text, process=sa.Text, expires=sa.Double)
#: Jobs in work, and which triage does them.
CLAIMS = _table("claims", "location", location=sa.Text, night=sa.Text)
#: Jobs that `store prune` took out: they are not done again unless they change.
PRUNED = _table("pruned", "location", location=sa.Text, content=sa.Text, stamp=sa.Text)
#: Runs that `diagnose tickets` has taken note of: when they ran as far as their metadata says, and when they came.
RUNS = _table_of(RunRow, "runs", "location")
#: One row a fingerprint: what became of it.
FINDINGS = _table_of(Finding, "findings", "fingerprint")
#: Which run, by its content, was seen with which finding.
SIGHTINGS = _table("sightings", "fingerprint location", fingerprint=sa.Text, location=sa.Text, content=sa.Text)
#: Findings that somebody knows of.
ACKS = _table_of(Ack, "acks", "fingerprint")
#: What was told to whom: messages by their key. `night` is the triage run that claimed it, `sent_at` None until it has arrived.
#: For a target that is told states and not events, the key is that of the ticket, and `event` what it was told last.
DELIVERIES = _table(
    *("deliveries", "target key"),
    **dict.fromkeys(("target", "key", "ticket", "event", "night"), sa.Text),
    sent_at=sa.Double,
)
#: Moments worth keeping, seconds since 1970: `night-ended`.
MOMENTS = _table("moments", "name", name=sa.Text, at_s=sa.Double)
#: What `diagnose watch` keeps of a job that runs, as JSON, and when it was kept.
WATCHED = _table("watched", "location", location=sa.Text, state=sa.Text, saved_at=sa.Double)
_VERSION = _table("schema_version", "version", version=sa.Integer)


def migrate(connection: sa.Connection) -> int:
    """Bring a database to the schema of this version; one that has it is left alone.

    The connection is in a transaction that nobody else can enter. Gives the version of the schema.

    Raises
    ------
    ServiceError
        A newer version of the program made the store.
    """
    version = read_version(connection)
    if version > len(MIGRATIONS):
        raise _newer(version, len(MIGRATIONS))
    if version == len(MIGRATIONS):
        return version
    if version == 0:
        connection.execute(sa.text("CREATE TABLE IF NOT EXISTS schema_version (version INTEGER NOT NULL PRIMARY KEY)"))
    for step in MIGRATIONS[version:]:
        step(connection)
    connection.execute(sa.delete(_VERSION))
    connection.execute(sa.insert(_VERSION).values(version=len(MIGRATIONS)))
    return len(MIGRATIONS)


def check_version(connection: sa.Connection, name: str) -> int:
    """Give the version of the schema where it is that of this version, and change nothing.

    Raises
    ------
    ServiceError
        It is another one.
    """
    version = read_version(connection)
    if version < len(MIGRATIONS):
        raise ServiceError(
            f"{name} has schema {version}, and this version reads {len(MIGRATIONS)}; what writes into the store, as "
            "`diagnose triage` does, brings it up to date"
        )
    if version > len(MIGRATIONS):
        raise _newer(version, len(MIGRATIONS))
    return version


def _newer(version: int, known: int) -> ServiceError:
    """Say that a newer version made the store."""
    return ServiceError(f"the store has schema {version}, and this version knows up to {known}: upgrade diagnose")


def read_version(connection: sa.Connection) -> int:
    """Say which version of the schema a database has; 0 where it has none."""
    if not sa.inspect(connection).has_table("schema_version"):
        return 0
    return connection.execute(sa.select(_VERSION.c.version)).scalar() or 0


def _run(connection: sa.Connection, statements: str) -> None:
    """Run statements, parted by semicolons."""
    for statement in statements.split(";"):
        if statement.strip():
            connection.execute(sa.text(statement))


def _first(connection: sa.Connection) -> None:
    """Make the tables of schema 1."""
    _run(
        connection,
        """
        CREATE TABLE jobs (
            location TEXT NOT NULL PRIMARY KEY, status TEXT NOT NULL, identity TEXT, content TEXT, version TEXT,
            rules TEXT, classifier TEXT, min_speedup DOUBLE PRECISION, failure TEXT, reason TEXT, size_bytes BIGINT,
            job_id TEXT, owner TEXT, framework TEXT, gpu_type TEXT, started_at TEXT, finished_at TEXT,
            n_gpus BIGINT, dp_size BIGINT, pp_size BIGINT, tp_size BIGINT, cp_size BIGINT, vpp_size BIGINT,
            n_steps BIGINT, n_ops BIGINT, verdict TEXT, slowdown DOUBLE PRECISION, waste DOUBLE PRECISION,
            recorded_step_s DOUBLE PRECISION, simulated_step_s DOUBLE PRECISION, ideal_step_s DOUBLE PRECISION,
            clean_step_s DOUBLE PRECISION, gpu_hours_analysed DOUBLE PRECISION, gpu_hours_wasted DOUBLE PRECISION,
            discrepancy DOUBLE PRECISION, replay_error DOUBLE PRECISION, m_w DOUBLE PRECISION, m_s DOUBLE PRECISION,
            n_causes BIGINT, top_cause TEXT, top_recoverable DOUBLE PRECISION
        );
        CREATE TABLE causes (
            location TEXT NOT NULL, place BIGINT NOT NULL, cause TEXT NOT NULL, title TEXT, confidence DOUBLE PRECISION,
            share DOUBLE PRECISION, recoverable DOUBLE PRECISION, workers TEXT, stages TEXT, hosts TEXT, links TEXT,
            pattern TEXT, onset_step BIGINT, recovery_step BIGINT, period_steps DOUBLE PRECISION, fix TEXT,
            predicted_step_s DOUBLE PRECISION, predicted_speedup DOUBLE PRECISION, fingerprint TEXT,
            PRIMARY KEY (location, place)
        );
        CREATE INDEX causes_by_cause ON causes (cause);
        CREATE INDEX causes_by_fingerprint ON causes (fingerprint);
        CREATE TABLE documents (location TEXT NOT NULL PRIMARY KEY, document TEXT NOT NULL);
        CREATE TABLE times (
            location TEXT NOT NULL PRIMARY KEY, diagnosed_at DOUBLE PRECISION, took_s DOUBLE PRECISION, stamp TEXT
        );
        CREATE TABLE nights (
            night TEXT NOT NULL PRIMARY KEY, machine TEXT, process TEXT, expires DOUBLE PRECISION
        );
        CREATE TABLE claims (location TEXT NOT NULL PRIMARY KEY, night TEXT NOT NULL);
        CREATE INDEX claims_by_night ON claims (night)
        """,
    )


def _keep_pruned(connection: sa.Connection) -> None:
    """Schema 2: remember what was pruned; find jobs by when they were diagnosed."""
    _run(
        connection,
        """
        CREATE TABLE pruned (location TEXT NOT NULL PRIMARY KEY, content TEXT, stamp TEXT);
        CREATE INDEX times_by_diagnosed_at ON times (diagnosed_at)
        """,
    )


def _keep_findings(connection: sa.Connection) -> None:
    """Schema 3: what was found again and again, who knows of it, and what was told to whom."""
    _run(
        connection,
        """
        CREATE TABLE runs (
            location TEXT NOT NULL PRIMARY KEY, content TEXT, identity TEXT, family TEXT NOT NULL, verdict TEXT,
            began_at DOUBLE PRECISION, ended_at DOUBLE PRECISION, seen_at DOUBLE PRECISION NOT NULL,
            noted_at DOUBLE PRECISION NOT NULL
        );
        CREATE INDEX runs_by_family ON runs (family, noted_at);
        CREATE TABLE findings (
            fingerprint TEXT NOT NULL PRIMARY KEY, cause TEXT NOT NULL, title TEXT NOT NULL, family TEXT NOT NULL,
            state TEXT NOT NULL, event TEXT NOT NULL, opened_at DOUBLE PRECISION NOT NULL,
            reminded_at DOUBLE PRECISION, first_seen_at DOUBLE PRECISION NOT NULL,
            last_seen_at DOUBLE PRECISION NOT NULL, last_ended_at DOUBLE PRECISION,
            last_noted_at DOUBLE PRECISION NOT NULL, n_seen BIGINT NOT NULL, severity TEXT, who TEXT, owner TEXT,
            worst_location TEXT NOT NULL, gpu_hours_lost_per_day DOUBLE PRECISION, confidence DOUBLE PRECISION NOT NULL,
            particulars TEXT NOT NULL, fixed_at DOUBLE PRECISION, fixed_because TEXT
        );
        CREATE INDEX findings_by_state ON findings (state);
        CREATE TABLE sightings (
            fingerprint TEXT NOT NULL, location TEXT NOT NULL, content TEXT, PRIMARY KEY (fingerprint, location)
        );
        CREATE TABLE acks (
            fingerprint TEXT NOT NULL PRIMARY KEY, reason TEXT NOT NULL, until_at DOUBLE PRECISION,
            acked_at DOUBLE PRECISION NOT NULL
        );
        CREATE TABLE deliveries (
            target TEXT NOT NULL, key TEXT NOT NULL, ticket TEXT NOT NULL, event TEXT NOT NULL, night TEXT,
            sent_at DOUBLE PRECISION, PRIMARY KEY (target, key)
        );
        CREATE TABLE moments (name TEXT NOT NULL PRIMARY KEY, at_s DOUBLE PRECISION NOT NULL)
        """,
    )


def _keep_names(connection: sa.Connection) -> None:
    """Schema 4: jobs by name and hosts, faults by machine, and in which night a job came."""
    _run(
        connection,
        """
        ALTER TABLE jobs ADD COLUMN name TEXT;
        ALTER TABLE jobs ADD COLUMN hosts TEXT;
        ALTER TABLE causes ADD COLUMN machine TEXT;
        ALTER TABLE times ADD COLUMN came_at DOUBLE PRECISION;
        UPDATE times SET came_at = diagnosed_at;
        ALTER TABLE runs ADD COLUMN came_at DOUBLE PRECISION;
        UPDATE runs SET came_at = noted_at;
        ALTER TABLE findings ADD COLUMN name TEXT;
        ALTER TABLE findings ADD COLUMN job TEXT;
        ALTER TABLE findings ADD COLUMN machine TEXT
        """,
    )


def _keep_watched(connection: sa.Connection) -> None:
    """Schema 5: jobs that are watched while they run."""
    _run(
        connection,
        "CREATE TABLE watched (location TEXT NOT NULL PRIMARY KEY, state TEXT NOT NULL, saved_at DOUBLE PRECISION)",
    )


#: The i-th makes schema i + 1 of schema i. Never edit one that was released: add another.
MIGRATIONS: tuple[Callable[[sa.Connection], None], ...] = (
    _first,
    _keep_pruned,
    _keep_findings,
    _keep_names,
    _keep_watched,
)
