"""What tests of triage share: small jobs, a PostgreSQL server of their own, and the program as a process."""

import json
import os
import pwd
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import sqlalchemy as sa

from diagnose.triage.store import Store
from tests.ports import free_port

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="session")
def small_jobs(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Give four small traces that are diagnosed in a moment: healthy, a slow worker, pauses, a slow link."""
    from diagnose.faults.generate import generate, list_causes, write_job
    from diagnose.faults.spec import JobSpec

    folder = tmp_path_factory.mktemp("small")
    paths = []
    for seed, cause in enumerate((None, "worker-fault", "garbage-collection", "network-fault")):
        spec = JobSpec(pp=2, dp=2, microbatches=2, steps=4, seed=seed)
        kind = "flaps" if cause == "network-fault" else None  # one that four steps show
        faults = [] if cause is None else [list_causes()[cause](spec, spec.random("fault"), kind=kind)]
        path = folder / f"small-{seed}.parquet"
        write_job(generate(spec, faults), path)
        paths.append(path)
    return paths


@pytest.fixture(scope="session")
def make_folder(small_jobs: list[Path]) -> Callable[..., Path]:
    """Give what fills a folder with traces, all old enough that nobody doubts the times of their files."""

    def make(folder: Path, n_jobs: int) -> Path:
        folder.mkdir(parents=True, exist_ok=True)
        for i in range(n_jobs):
            path = folder / f"job-{i:04}.parquet"
            shutil.copy(small_jobs[i % len(small_jobs)], path)
            os.utime(path, (1_700_000_000 + i, 1_700_000_000 + i))
        return folder

    return make


def _unprivileged() -> dict[str, int]:
    """Give the user that PostgreSQL runs as: it refuses to run as root."""
    if os.geteuid() != 0:
        return {}
    for name in ("postgres", "nobody"):
        try:
            found = pwd.getpwnam(name)
        except KeyError:
            continue
        return {"user": found.pw_uid, "group": found.pw_gid}
    return {}


@pytest.fixture(scope="session")
def postgres_server() -> Iterator[str]:
    """Start a PostgreSQL server of our own, and give the URL of its server without a database; skip where there is none."""
    pytest.importorskip("psycopg")
    binaries = sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"))
    if not binaries:
        pytest.skip("no PostgreSQL server here (/usr/lib/postgresql is empty)")
    where = binaries[-1].parent
    as_user = _unprivileged()
    folder = Path(
        subprocess.run(
            ["mktemp", "-d", "/tmp/diagnose-pg-XXXXXX"], capture_output=True, text=True, check=True
        ).stdout.strip()
    )
    if as_user:
        os.chown(folder, as_user["user"], as_user["group"])
    port = free_port()
    data = folder / "data"

    def run(*command: str) -> None:
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False, timeout=120, **as_user)
        assert done.returncode == 0, done.stdout + done.stderr

    try:
        run(str(where / "initdb"), "-D", str(data), "-U", "night", "--auth=trust", "--encoding=UTF8", "--no-sync")
        options = f"-p {port} -c listen_addresses=127.0.0.1 -c unix_socket_directories={folder} -c fsync=off"
        run(str(where / "pg_ctl"), "-D", str(data), "-o", options, "-l", str(folder / "log"), "-w", "start")
        try:
            yield f"postgresql://night@127.0.0.1:{port}"
        finally:
            run(str(where / "pg_ctl"), "-D", str(data), "-m", "immediate", "stop")
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture(params=["sqlite", pytest.param("postgresql", marks=pytest.mark.long)])
def store_url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """Give the URL of a fresh store, of each kind of database."""
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path / 'store.db'}"
    return fresh_database(request.getfixturevalue("postgres_server"))


def fresh_database(server: str) -> str:
    """Make a database, and give its URL."""
    name = f"t{os.urandom(6).hex()}"
    engine = sa.create_engine(
        server.replace("postgresql:", "postgresql+psycopg:") + "/postgres", isolation_level="AUTOCOMMIT"
    )
    with engine.connect() as connection:
        connection.exec_driver_sql(f"CREATE DATABASE {name}")
    engine.dispose()
    return f"{server}/{name}"


def environment(**more: str) -> dict[str, str]:
    """Give the environment of a process of ours."""
    kept = {key: value for key, value in os.environ.items() if not key.startswith(("DIAGNOSE_", "AWS_"))}
    return kept | {"PYTHONPATH": os.pathsep.join([*more.pop("first", "").split(), str(ROOT)])} | more


#: Lets SIGINT do what it does, and becomes the program: a shell lets what it starts in the background ignore it, and children
#: inherit that.
HEED = """
import os, signal, sys
signal.signal(signal.SIGINT, signal.SIG_DFL)
os.execv(sys.executable, [sys.executable, *sys.argv[1:]])
"""


def start(*args: str, **more: str) -> subprocess.Popen[str]:
    """Start the program, able to be interrupted even where the tests run in the background and are not."""
    command = [sys.executable, "-c", HEED, "-m", "diagnose", *args]
    pipe = subprocess.PIPE
    return subprocess.Popen(command, env=environment(**more), stdout=pipe, stderr=pipe, text=True, cwd="/")


def triage(*args: str, rc: int = 0, **more: str) -> dict:
    """Run a triage to its end, and give its summary."""
    process = start("triage", "--format", "json", *args, **more)
    out, err = process.communicate(timeout=300)
    assert process.returncode == rc, out + err
    return json.loads(out)


def dump(url: str) -> dict[str, list]:
    """Give all results in a store, without what differs from run to run."""
    found = {}
    with Store(url, may_create=False) as store, store.reading() as read:
        for table, order in (("jobs", "location"), ("causes", "location, place"), ("documents", "location")):
            query = sa.text(f"SELECT * FROM {table} ORDER BY {order}")
            found[table] = [dict(row._mapping) for rows in read(query) for row in rows]
        for table in ("nights", "claims"):
            found[table] = [tuple(row) for rows in read(sa.text(f"SELECT * FROM {table}")) for row in rows]
    assert not found.pop("claims") and not found.pop("nights"), "something was left behind"
    return found
