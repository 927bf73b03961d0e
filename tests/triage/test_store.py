"""The store keeps each job once, whole or not at all, on SQLite and on PostgreSQL alike."""

import os
import random
import subprocess
import sys
import threading
from pathlib import Path

import pytest
import sqlalchemy as sa

from diagnose.errors import ServiceError, UsageError
from diagnose.triage import claims, schema
from diagnose.triage import store as store_module
from diagnose.triage.database import read_url
from diagnose.triage.machine import name_machine
from diagnose.triage.rows import CauseRow, JobRow
from diagnose.triage.store import FinishedJob, Store
from diagnose.triage.worker import Outcome

from .conftest import environment


def outcome(location: str, *, identity: str = "i", n_causes: int = 2, **fields: object) -> Outcome:
    """Make the outcome of a job."""
    row = JobRow(location, "diagnosed", identity=identity, content="c" + identity, slowdown=1.25, **fields)
    causes = tuple(
        CauseRow(location, i + 1, "worker-fault", "Slow worker", 0.9, 0.5, 0.1, "[]", "[]", "[]", "[]",
                 None, None, None, None, None, None, None, "f")
        for i in range(n_causes)
    )  # fmt: skip
    return Outcome(row, causes, '{"verdict": "straggling"}', stamp="s", took_s=0.5)


@pytest.fixture
def store(store_url: str):
    """Give a fresh store in which a triage run has begun."""
    with Store(store_url) as opened:
        opened.enter()
        yield opened


def count(store: Store, table: sa.Table) -> int:
    """Count the rows of a table."""
    with store._engine.connect() as connection:
        return connection.execute(sa.select(sa.func.count()).select_from(table)).scalar_one()


def finish(store: Store, location: str, **fields: object) -> None:
    """Claim a job and finish it."""
    assert store.claim([location])
    assert store.finish([FinishedJob(location, outcome(location, **fields))]) == [True]


def test_a_new_file_is_its_makers(tmp_path: Path) -> None:
    """Names of jobs, owners and hosts are for nobody else, in the file and in its log; a file that is there stays as it is."""
    with Store(f"sqlite:///{tmp_path}/a.db") as store:
        store.enter()
        assert {path.name for path in tmp_path.iterdir()} >= {"a.db", "a.db-wal"}
        assert {path.stat().st_mode & 0o777 for path in tmp_path.iterdir()} == {0o600}
    (tmp_path / "a.db").chmod(0o664)
    with Store(f"sqlite:///{tmp_path}/a.db"):
        assert (tmp_path / "a.db").stat().st_mode & 0o777 == 0o664


def test_a_finished_job_is_known(store: Store) -> None:
    """What was written comes back, and the claim is gone."""
    assert store.claim(["/a"]) == {"/a": None}
    assert store.finish([FinishedJob("/a", outcome("/a"))]) == [True]
    known = store.known(["/a", "/b"])
    assert set(known) == {"/a"}
    assert (known["/a"].identity, known["/a"].content, known["/a"].stamp) == ("i", "ci", "s")
    assert abs(known["/a"].diagnosed_at - store.now_s()) < 60
    assert count(store, schema.CLAIMS) == 0


def test_a_second_result_replaces_the_first(store: Store) -> None:
    """One row a job, and the causes of the last diagnosis only."""
    finish(store, "/a", n_causes=3)
    finish(store, "/a", identity="j", n_causes=1)
    assert (count(store, schema.JOBS), count(store, schema.CAUSES), count(store, schema.DOCUMENTS)) == (1, 1, 1)
    failed = Outcome(JobRow("/a", "failed", failure="input", reason="no"))
    assert store.claim(["/a"]) and store.finish([FinishedJob("/a", failed)]) == [True]
    assert (count(store, schema.JOBS), count(store, schema.CAUSES), count(store, schema.DOCUMENTS)) == (1, 0, 0)


def test_the_night_in_which_a_job_came(store: Store, store_url: str) -> None:
    """It is when the triage began that first brought its content: diagnosed anew it stays, overwritten it is another run."""

    def came_at() -> float:
        with store.reading() as read:
            return next(read(sa.select(schema.TIMES.c.came_at).where(schema.TIMES.c.location == "/a")))[0].came_at

    before_s = store.now_s()
    finish(store, "/a")
    first_s = came_at()
    assert first_s <= before_s
    store.leave()
    with Store(store_url) as later:
        later.enter()
        finish(later, "/a", version="newer")
        assert came_at() == first_s
        finish(later, "/a", identity="overwritten")
        assert before_s < came_at() <= later.now_s()


def test_a_job_that_nobody_could_read_came_in_each_night_anew(store: Store, store_url: str) -> None:
    """Without content nobody knows whether it is the run of the last night."""

    def fail(opened: Store) -> float:
        row = JobRow("/a", "failed", failure="unreadable", reason="cannot be read")
        assert opened.claim(["/a"])
        assert opened.finish([FinishedJob("/a", Outcome(row))]) == [True]
        with opened.reading() as read:
            return next(read(sa.select(schema.TIMES.c.came_at)))[0].came_at

    first_s = fail(store)
    store.leave()
    with Store(store_url) as later:
        later.enter()
        assert fail(later) > first_s


def test_odd_text(store: Store) -> None:
    """NUL and bytes that are no UTF-8 are kept as escapes, and found again."""
    location = "/odd\udcff"
    assert store.claim([location])
    assert store.finish([FinishedJob(location, outcome(location, job_id="a\0b"))]) == [True]
    assert set(store.known([location])) == {location}


def test_numbers_of_any_size(store: Store) -> None:
    """Counts above 2^31 and doubles come back as they are."""
    finish(store, "/a", n_ops=2**40, waste=0.1 + 0.2)
    with store.reading() as read:
        row = next(read(sa.select(schema.JOBS)))[0]._mapping
    assert row["n_ops"] == 2**40 and row["waste"] == 0.1 + 0.2


def test_many_locations_at_once(store: Store) -> None:
    """More jobs than a database takes parameters can be asked for."""
    finish(store, "/a")
    assert set(store.known([f"/{i}" for i in range(1500)] + ["/a"])) == {"/a"}


def test_a_claim_is_held_by_one(store: Store, store_url: str) -> None:
    """While a triage lives, nobody else gets its job; afterwards he does."""
    with Store(store_url) as other:
        other.enter()
        assert store.claim(["/a"])
        assert other.claim(["/a"]) == {}
        store.leave()
        assert other.claim(["/a"]) == {"/a": None}


def test_a_dead_process_does_not_block(store: Store, store_url: str) -> None:
    """A claim of a process of this machine that is dead is free at once."""
    code = (
        "import os, signal, sys; from diagnose.triage.store import Store; s = Store(sys.argv[1]); s.enter();"
        "assert s.claim(['/a']); print('claimed', flush=True); os.kill(os.getpid(), signal.SIGKILL)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, store_url], env=environment(), capture_output=True, text=True, check=False
    )
    assert done.returncode == -9 and "claimed" in done.stdout, done.stderr
    assert store.claim(["/a"]) == {}
    store.expire_leases()
    assert store.claim(["/a"]) == {"/a": None}


def test_a_machine_that_is_gone_does_not_block_for_long(store: Store) -> None:
    """A claim from elsewhere ends with its lease."""
    with store._engine.begin() as connection:
        gone = {"night": "x", "machine": "elsewhere", "process": "1 1", "expires": store.now_s() + 1000}
        connection.execute(sa.insert(schema.NIGHTS).values(gone))
        connection.execute(sa.insert(schema.CLAIMS).values(location="/a", night="x"))
    store.expire_leases()
    assert store.claim(["/a"]) == {}
    with store._engine.begin() as connection:
        connection.execute(sa.update(schema.NIGHTS).where(schema.NIGHTS.c.night == "x").values(expires=1.0))
    assert store.claim(["/a"]) == {"/a": None}


def test_who_lost_his_claim_does_not_write(store: Store, store_url: str) -> None:
    """A triage that slept too long keeps its result to itself, once another has the job or has done it."""
    with Store(store_url) as other:
        assert store.claim(["/a"])
        with store._engine.begin() as connection:
            connection.execute(sa.delete(schema.NIGHTS))
        other.enter()
        assert other.claim(["/a"])
        assert store.finish([FinishedJob("/a", outcome("/a"))]) == [False]
        assert other.finish([FinishedJob("/a", outcome("/a"))]) == [True]
        assert store.finish([FinishedJob("/a", outcome("/a"))]) == [False]
        assert count(store, schema.JOBS) == 1 and count(store, schema.CLAIMS) == 0


def test_who_lost_his_claim_to_nobody_writes(store: Store) -> None:
    """Nothing is lost when the claim ran out and nobody took it."""
    assert store.claim(["/a"])
    with store._engine.begin() as connection:
        connection.execute(sa.delete(schema.CLAIMS))
    assert store.finish([FinishedJob("/a", outcome("/a"))]) == [True]
    assert count(store, schema.JOBS) == 1 and count(store, schema.CLAIMS) == 0


def test_an_unfinished_write_leaves_nothing(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """A job is written whole or not at all."""

    def fail(*_args: object) -> None:
        raise KeyboardInterrupt

    finish(store, "/a")
    assert store.claim(["/a"])
    with monkeypatch.context() as patch:
        patch.setattr(store_module, "plain_row", fail)
        with pytest.raises(KeyboardInterrupt):
            store.finish([FinishedJob("/a", outcome("/a", identity="j", n_causes=0))])
    assert store.known(["/a"])["/a"].identity == "i"
    assert count(store, schema.CAUSES) == 2 and count(store, schema.CLAIMS) == 1


def test_threads_share_jobs(store_url: str) -> None:
    """Each job goes to one of them."""
    taken: list[str] = []

    def work() -> None:
        with Store(store_url) as mine:
            mine.enter()
            for i in range(60):
                if mine.claim([f"/{i}"]) and not mine.known([f"/{i}"]):
                    taken.append(f"/{i}")
                    assert mine.finish([FinishedJob(f"/{i}", outcome(f"/{i}"))]) == [True]
                mine.release([f"/{i}"])

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(taken) == sorted({f"/{i}" for i in range(60)})


def test_several_at_once(store: Store, store_url: str) -> None:
    """A batch of new, changed, unchanged, failed and lost jobs leaves of each what it would have left alone."""
    finish(store, "/changed", n_causes=3)
    finish(store, "/unchanged")
    finish(store, "/broken")
    with Store(store_url) as other:
        other.enter()
        assert other.claim(["/theirs"]) == {"/theirs": None}
        names = ["/new", "/unchanged", "/theirs", "/broken", "/lost", "/changed"]
        found = store.claim(names)
        assert list(found) == ["/new", "/unchanged", "/broken", "/lost", "/changed"]
        assert {name for name, known in found.items() if known is None} == {"/new", "/lost"}
        store.leave()
        store.enter()
        assert list(store.claim(names)) == list(found)
        with store._engine.begin() as connection:
            connection.execute(sa.delete(schema.CLAIMS).where(schema.CLAIMS.c.location == "/lost"))
        assert other.claim(["/lost"])
        done = [
            FinishedJob("/new", outcome("/new", n_causes=1), is_new=True),
            FinishedJob("/unchanged", Outcome(stamp="t")),
            FinishedJob("/broken", Outcome(JobRow("/broken", "failed", failure="input", reason="no"))),
            FinishedJob("/lost", outcome("/lost"), is_new=True),
            FinishedJob("/changed", outcome("/changed", identity="j", n_causes=1)),
        ]
        assert store.finish(done) == [True, True, True, False, True]
    known = store.known(names)
    assert {name: (job.status, job.identity, job.stamp) for name, job in known.items()} == {
        "/new": ("diagnosed", "i", "s"),
        "/unchanged": ("diagnosed", "i", "t"),
        "/broken": ("failed", None, None),
        "/changed": ("diagnosed", "j", "s"),
    }
    assert (count(store, schema.CAUSES), count(store, schema.DOCUMENTS), count(store, schema.CLAIMS)) == (4, 3, 0)


def test_threads_share_batches(store_url: str) -> None:
    """Who claims several at a time, in an order of his own, gets each only where nobody else has it, and nobody waits for ever."""
    names = [f"/{i}" for i in range(120)]
    taken: list[str] = []
    faults: list[BaseException] = []

    def work(seed: int) -> None:
        mine = random.Random(seed).sample(names, len(names))
        try:
            with Store(store_url) as store:
                store.enter()
                for start in range(0, len(mine), 8):
                    fresh = [name for name, known in store.claim(mine[start : start + 8]).items() if known is None]
                    taken.extend(fresh)
                    assert all(store.finish([FinishedJob(name, outcome(name), is_new=True) for name in fresh]))
                    store.release(mine[start : start + 8])
        except BaseException as error:  # noqa: BLE001 - a thread cannot raise it where anyone sees it
            faults.append(error)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not faults and sorted(taken) == sorted(set(taken)) == sorted(names)


def test_prune(store: Store) -> None:
    """What is old goes, and is remembered by its content alone."""
    finish(store, "/old")
    finish(store, "/new")
    with store._engine.begin() as connection:
        connection.execute(sa.update(schema.TIMES).where(schema.TIMES.c.location == "/old").values(diagnosed_at=5.0))
    assert store.prune(10.0).n_jobs == 1
    assert store.prune(10.0).n_jobs == 0
    known = store.known(["/old", "/new"])
    assert (known["/old"].status, known["/old"].content, known["/old"].stamp) == ("pruned", "ci", "s")
    assert known["/new"].status == "diagnosed"
    assert (count(store, schema.JOBS), count(store, schema.CAUSES), count(store, schema.DOCUMENTS)) == (1, 2, 1)
    finish(store, "/old", identity="k")
    assert store.known(["/old"])["/old"].status == "diagnosed" and count(store, schema.PRUNED) == 0


def test_info(store: Store) -> None:
    """The store can be counted."""
    finish(store, "/a", verdict="straggling")
    store.claim(["/b"])
    found = store.info()
    assert (found.by_status, found.by_verdict) == ({"diagnosed": 1}, {"straggling": 1})
    assert (found.by_cause, found.n_runs, found.n_claims, found.schema) == ({"worker-fault": 2}, 1, 1, 5)


def test_the_tables_are_as_the_code_thinks(store: Store) -> None:
    """The migrations make exactly the columns that queries use."""
    found = sa.inspect(store._engine)
    for table in schema.METADATA.sorted_tables:
        columns = {column["name"]: column["type"] for column in found.get_columns(table.name)}
        assert list(columns) == [column.name for column in table.columns]
        for column in table.columns:
            assert columns[column.name]._type_affinity is column.type._type_affinity, (table.name, column.name)


def test_an_old_store_keeps_its_data(store_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A store of schema 1 becomes one of this version with all its rows."""
    with monkeypatch.context() as patch:
        patch.setattr(schema, "MIGRATIONS", schema.MIGRATIONS[:1])
        old = Store(store_url)
        assert old.schema == 1
        with old._engine.begin() as connection:
            connection.execute(sa.text("INSERT INTO jobs (location, status, slowdown) VALUES ('/a', 'diagnosed', 1.5)"))
            connection.execute(sa.text("INSERT INTO times VALUES ('/a', 1.0, 2.0, 's')"))
        old.close()
    with Store(store_url) as new:
        assert new.schema == len(schema.MIGRATIONS)
        assert new.known(["/a"])["/a"].stamp == "s"
    with Store(store_url) as again:
        assert again.schema == len(schema.MIGRATIONS)


def test_a_newer_store_is_refused(store: Store, store_url: str) -> None:
    """A program does not write into what it does not understand."""
    with store._engine.begin() as connection:
        connection.execute(sa.text("UPDATE schema_version SET version = 99"))
    with pytest.raises(ServiceError, match="schema 99, and this version knows up to 5: upgrade"):
        Store(store_url)


def test_opened_by_many_at_once(store_url: str) -> None:
    """Whoever comes first makes the tables."""
    faults: list[BaseException] = []

    def work() -> None:
        try:
            Store(store_url).close()
        except BaseException as error:  # noqa: BLE001
            faults.append(error)

    threads = [threading.Thread(target=work) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not faults


def test_signs_of_life(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """A triage run that somebody expired by mistake comes back with its next sign."""
    with store._engine.begin() as connection:
        connection.execute(sa.delete(schema.NIGHTS))
    store._claims.renew(store.run_id)
    with store._engine.connect() as connection:
        machine, process, expires = connection.execute(
            sa.select(schema.NIGHTS.c.machine, schema.NIGHTS.c.process, schema.NIGHTS.c.expires)
        ).one()
    assert machine == name_machine() and process.startswith(f"{os.getpid()} ")
    assert expires > store.now_s() + claims.LEASE_S / 2


class TestUrl:
    """A URL without secrets, and passwords from where they are kept."""

    @pytest.mark.parametrize("url", ["nonsense", "mysql://a/b", "sqlite://", "sqlite:///:memory:", ""])
    def test_refused(self, url: str) -> None:
        """What is no store of ours is bad usage."""
        with pytest.raises(UsageError, match="--store"):
            read_url(url)

    def test_no_folder(self, tmp_path: Path) -> None:
        """A folder that is not there is named."""
        with pytest.raises(UsageError, match="no folder"):
            Store(f"sqlite:///{tmp_path}/none/a.db")

    def test_not_a_database(self, tmp_path: Path) -> None:
        """A file of another kind is left alone."""
        (tmp_path / "a.db").write_text("these are notes, and no database at all" * 100)
        with pytest.raises(ServiceError, match="not a database"):
            Store(f"sqlite:///{tmp_path}/a.db")
        assert (tmp_path / "a.db").read_text().startswith("these are notes")

    def test_nothing_is_made_to_look_into(self, tmp_path: Path) -> None:
        """Who only looks makes no file."""
        with pytest.raises(ServiceError, match="is not there"):
            Store(f"sqlite:///{tmp_path}/a.db", may_create=False)
        assert not list(tmp_path.iterdir())
        (tmp_path / "a.db").touch()
        with pytest.raises(ServiceError, match="is no store; `diagnose triage` makes one there"):
            Store(f"sqlite:///{tmp_path}/a.db", may_create=False)

    def test_passwords(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """From a file or the environment, never shown."""
        (tmp_path / "pw").write_text("from/file\n")
        monkeypatch.setenv("DIAGNOSE_STORE_PASSWORD_FILE", str(tmp_path / "pw"))
        assert read_url("postgresql://me@host/db").password == "from/file"
        monkeypatch.setenv("DIAGNOSE_STORE_PASSWORD", "s3cret")
        assert read_url("postgresql://me@host/db").password == "s3cret"
        assert "s3cret" not in read_url("postgresql://me@host/db").render_as_string(hide_password=True)

    def test_a_server_that_is_not_there(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """One line says which, and not the password."""
        pytest.importorskip("psycopg")
        monkeypatch.setenv("DIAGNOSE_STORE_PASSWORD", "s3cret")
        with pytest.raises(ServiceError) as error:
            Store("postgresql://me@127.0.0.1:9/db")
        assert "127.0.0.1:9" in str(error.value) and "s3cret" not in str(error.value) and "\n" not in str(error.value)


def test_pruning_gives_space_back(tmp_path: Path) -> None:
    """Where anything was taken out, jobs alone for example, no page is left free; what was diagnosed at that moment stays."""
    with Store(f"sqlite:///{tmp_path / 'store.db'}") as store:
        store.enter()
        for n in range(20):
            assert store.claim([f"/{n}"])
            assert store.finish([FinishedJob(f"/{n}", outcome(f"/{n}", owner="x" * 50_000))]) == [True]
        assert (
            store.prune(min(job.diagnosed_at for job in store.known([f"/{n}" for n in range(20)]).values())).n_jobs == 0
        )
        found = store.prune(1e12)
        assert (found.n_jobs, found.n_sightings, found.n_deliveries) == (20, 0, 0)
        with store._engine.connect() as connection:
            assert connection.exec_driver_sql("PRAGMA freelist_count").scalar_one() == 0
