"""Stores that can only be read: a replica, a read-only mount, somebody else's file; reading commands change none of them."""

import contextlib
import shutil
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import sqlalchemy as sa

from diagnose.errors import ServiceError
from diagnose.triage.database import read_url
from diagnose.triage.schema import MIGRATIONS, migrate
from diagnose.triage.store import Store
from tests.unprivileged import drop_privileges

from .conftest import environment, fresh_database, triage

#: What only reads, with a part of what it prints.
COMMANDS = {
    "info": (["store", "info"], "jobs: 4 diagnosed"),
    "fleet": (["fleet"], "Jobs        4"),
    "tickets": (["tickets", "--all", "--min-gpu-hours", "0"], '"diagnose-ticket/1"'),
    "dry run": (["triage", "/no-folder-*", "--dry-run"], "Found  0 jobs"),
}


@pytest.fixture(scope="module")
def folder(make_folder, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Give a folder with a store of four jobs, which is not to be changed."""
    folder = tmp_path_factory.mktemp("kept")
    jobs = make_folder(tmp_path_factory.mktemp("jobs"), 4)
    triage(str(jobs), "--store", f"sqlite:///{folder}/a.db", "--workers", "1")
    return folder


def say(url: str, *args: str, before: tuple[str, ...] = ()) -> str:
    """Run a command as a process, and give what it prints."""
    command = [*before, sys.executable, "-m", "diagnose", *args, "--store", url]
    done = subprocess.run(command, env=environment(), capture_output=True, text=True, check=False, cwd="/tmp")
    assert done.returncode == 0 and not done.stderr, done.stdout + done.stderr
    return done.stdout


@pytest.fixture
def mounted(folder: Path, tmp_path: Path) -> Iterator[Path]:
    """Give the folder of a store on a read-only mount, or skip where none can be had."""
    place = tmp_path / "mounted"
    place.mkdir()
    if (
        shutil.which("mount") is None
        or subprocess.run(["mount", "-t", "tmpfs", "tmpfs", place], check=False).returncode
    ):
        pytest.skip("a read-only mount needs the right to mount")
    try:
        shutil.copy(folder / "a.db", place)
        subprocess.run(["mount", "-o", "remount,ro", place], check=True)
        yield place
    finally:
        subprocess.run(["umount", place], check=True)


@pytest.mark.parametrize("name", COMMANDS)
def test_a_read_only_mount(name: str, mounted: Path, tmp_path: Path) -> None:
    """It serves as any other store does; so does an export."""
    args, said = COMMANDS[name]
    assert said in say(f"sqlite:///{mounted}/a.db", *args)
    if name == "info":
        assert "jobs.parquet: 4 rows" in say(f"sqlite:///{mounted}/a.db", "store", "export", str(tmp_path / "out"))


@pytest.mark.parametrize("name", COMMANDS)
def test_a_file_of_somebody_else(name: str, folder: Path, tmp_path: Path) -> None:
    """Who may read the file and no more reads it, and leaves nothing beside it, which its owner could not write."""
    shutil.copy(folder / "a.db", tmp_path)
    (tmp_path / "a.db").chmod(0o444)
    args, said = COMMANDS[name]
    assert said in say(f"sqlite:///{tmp_path}/a.db", *args, before=tuple(drop_privileges()))
    assert [path.name for path in tmp_path.iterdir()] == ["a.db"]


def test_somebody_who_writes_meanwhile(folder: Path, tmp_path: Path) -> None:
    """What is still in the log of a store that somebody has open is read, by who may not write, too."""
    shutil.copy(folder / "a.db", tmp_path)
    with contextlib.closing(sqlite3.connect(tmp_path / "a.db", isolation_level=None)) as writer:
        writer.execute("DELETE FROM jobs WHERE location LIKE '%job-0000.parquet'")
        assert (tmp_path / "a.db-wal").stat().st_size
        for path in tmp_path.iterdir():
            path.chmod(0o444)
        assert "jobs: 3 diagnosed" in say(
            f"sqlite:///{tmp_path}/a.db", "store", "info", before=tuple(drop_privileges())
        )


def test_no_byte_is_changed(folder: Path) -> None:
    """Who may write the store and only reads it leaves the file, and the folder, as they were."""
    before = (folder / "a.db").read_bytes()
    for args, said in COMMANDS.values():
        assert said in say(f"sqlite:///{folder}/a.db", *args)
    assert [path.name for path in folder.iterdir()] == ["a.db"] and (folder / "a.db").read_bytes() == before
    with Store(f"sqlite:///{folder}/a.db", only_reads=True) as store, pytest.raises(ServiceError, match="readonly"):
        store.record_end()


def test_an_old_store(store_url: str) -> None:
    """It is refused with what to do, and not brought up to date by who only reads it."""
    with Store(store_url):
        pass
    engine = sa.create_engine(read_url(store_url))
    with engine.begin() as connection:
        connection.exec_driver_sql("UPDATE schema_version SET version = 2")
    match = (
        f"has schema 2, and this version reads {len(MIGRATIONS)}; what writes into the store, .*brings it up to date"
    )
    with pytest.raises(ServiceError, match=match):
        Store(store_url, only_reads=True)
    with engine.begin() as connection:
        assert connection.exec_driver_sql("SELECT version FROM schema_version").scalar_one() == 2
        connection.exec_driver_sql("UPDATE schema_version SET version = 1000")
    with pytest.raises(ServiceError, match=r"knows up to .*: upgrade diagnose"):
        Store(store_url, only_reads=True)
    engine.dispose()


@pytest.mark.long
def test_a_replica(folder: Path, postgres_server: str) -> None:
    """A PostgreSQL database that refuses every write serves all reading commands."""
    url = fresh_database(postgres_server)
    with Store(f"sqlite:///{folder}/a.db", only_reads=True) as store, store.copied() as copy, copy.reading() as read:
        engine = sa.create_engine(read_url(url))
        with engine.begin() as connection:
            migrate(connection)
            metadata = sa.MetaData()
            metadata.reflect(connection)
            for table in metadata.sorted_tables:
                for rows in read(sa.select(table)) if table.name != "schema_version" else ():
                    connection.execute(sa.insert(table), [dict(row._mapping) for row in rows])
        with engine.execution_options(isolation_level="AUTOCOMMIT").connect() as connection:
            name = read_url(url).database
            connection.exec_driver_sql(f"ALTER DATABASE {name} SET default_transaction_read_only = on")
        engine.dispose()
    for args, said in COMMANDS.values():
        assert said in say(url, *args)
