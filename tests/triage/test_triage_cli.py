"""`diagnose triage` and `diagnose store`: what a user sees."""

import json
import os
import pty
import select
import subprocess
import sys
import time
from pathlib import Path

import pytest

from diagnose.cli.main import main
from diagnose.triage import triage as triages
from diagnose.triage.source import FoundJob
from diagnose.triage.store import Store
from tests.trace.foreign_files import FOREIGN, write

from .conftest import environment
from .test_run import Here


@pytest.fixture
def cli(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], make_folder):
    """Give what runs a command in a folder with three traces, without processes."""
    make_folder(tmp_path / "jobs", 3)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(triages, "_open_pool", lambda *_: Here())

    def run(*args: str) -> tuple[int, str, str]:
        code = main(list(args))
        return code, *capsys.readouterr()

    return run


def test_a_night_for_people(cli, tmp_path: Path) -> None:
    """A summary on standard output, the store in the working folder, and nothing on standard error."""
    code, out, err = cli("triage", "jobs", "--width", "80")
    assert (code, err) == (0, "") and out.startswith("3 jobs diagnosed\n") and "sqlite:///diagnose.db" in out
    assert (tmp_path / "diagnose.db").is_file()
    code, out, _ = cli("triage", "jobs")
    assert code == 0 and "3 unchanged and not done again: 3 by size and time of their files" in out


@pytest.mark.parametrize("width", [40, 80, 200])
def test_failures(cli, tmp_path: Path, width: int) -> None:
    """Exit code 5, and the reasons, safe to show at any width."""
    (tmp_path / "jobs" / "bad\x1b[31m.parquet").write_bytes(b"no")
    code, out, err = cli("triage", "jobs", "--width", str(width))
    assert (code, err) == (5, "") and out.startswith("3 jobs diagnosed, 1 failed\n")
    assert "\x1b" not in out and max(map(len, out.splitlines())) <= width


def test_a_closed_folder(cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It stands among the failed, the rest is done, and no row is left of it: it is no job. So it is in a dry run."""
    listed = triages.list_jobs
    closed = FoundJob("/closed", refused="the folder cannot be listed: Permission denied")
    monkeypatch.setattr(triages, "list_jobs", lambda sources, logs: [*listed(sources, logs), closed])
    for n_diagnosed in (3, 0):
        code, out, _ = cli("triage", "jobs", "--format", "json")
        found = json.loads(out)
        assert (code, found["n_found"], found["n_diagnosed"], found["n_failed"]) == (5, 4, n_diagnosed, 1)
        assert found["failed"] == [{"location": "/closed", "failure": "unreadable", "reason": closed.refused}]
    code, out, err = cli("triage", "jobs", "--dry-run")
    assert (code, err) == (5, "") and "/closed: the folder cannot be listed: Permission denied" in out
    assert "/closed" not in cli("store", "info")[1]
    with Store(f"sqlite:///{tmp_path}/diagnose.db") as store:
        assert "/closed" not in store.known(["/closed"])


def test_what_another_tool_recorded(cli, tmp_path: Path) -> None:
    """A folder of dumps is a job; a file that is named itself stands among the failed with what it is."""
    for called, folder in (("PyTorch Flight Recorder dump", "dumps"), ("NCCL log", "logs")):
        for name, content in FOREIGN[called]:
            write(tmp_path / "jobs" / folder, name, content() if callable(content) else content)
    code, out, err = cli("triage", "jobs", "jobs/logs/nccl.log", "--format", "json")
    assert (code, err) == (5, "")
    found = json.loads(out)
    assert (found["n_diagnosed"], found["n_failed"]) == (4, 1)
    said = {Path(failed["location"]).name: failed["reason"] for failed in found["failed"]}
    assert "is no trace but an NCCL log, which has the topology" in said["nccl.log"]
    assert {failed["failure"] for failed in found["failed"]} == {"input"}
    assert set(said) == {"nccl.log"}


def test_for_programs(cli) -> None:
    """One JSON object whose counts sum to what was found."""
    code, out, _ = cli("triage", "jobs", "--format", "json", "--limit", "2")
    found = json.loads(out)
    assert code == 0 and found["schema"] == "diagnose-triage/1" and out.count("\n") == 1
    parts = ("n_diagnosed", "n_failed", "n_known", "n_elsewhere", "n_older", "n_left")
    assert sum(found[part] for part in parts) == found["n_found"] == 3 and found["n_left"] == 1


def test_dry_run(cli, tmp_path: Path) -> None:
    """It lists, and leaves no trace of itself."""
    code, out, _ = cli("triage", "jobs", "--dry-run")
    assert code == 0 and out.startswith("3 jobs would be diagnosed; nothing was done") and "job-0002" in out
    assert not (tmp_path / "diagnose.db").exists()


def test_store_commands(cli, tmp_path: Path) -> None:
    """StoreInfo, export and prune of a store."""
    cli("triage", "jobs")
    code, out, _ = cli("store", "info")
    assert code == 0 and "jobs: 3 diagnosed" in out and "at work: 0 triages, 0 jobs claimed" in out
    code, out, _ = cli("store", "export", "tables")
    assert code == 0 and f"{Path('tables', 'jobs.parquet')}: 3 rows" in out
    from pyarrow import parquet

    jobs = parquet.read_table(tmp_path / "tables" / "jobs.parquet").to_pylist()
    documents = parquet.read_table(tmp_path / "tables" / "documents.parquet").to_pylist()
    assert [job["location"] for job in jobs] == [document["location"] for document in documents]
    assert jobs[0]["slowdown"] == json.loads(documents[0]["document"])["slowdown"]
    assert sorted(path.name for path in (tmp_path / "tables").iterdir()) == [
        "causes.parquet",
        "documents.parquet",
        "jobs.parquet",
    ]
    assert (
        cli("store", "prune", "--older", "90d")[1]
        == "sqlite:///diagnose.db: 0 jobs taken out; 0 runs, 0 sightings, 0 messages forgotten\n"
    )
    assert (
        cli("store", "prune", "--older", "2100-01-01")[1]
        == "sqlite:///diagnose.db: 3 jobs taken out; 0 runs, 0 sightings, 0 messages forgotten\n"
    )
    assert "jobs: none" in cli("store", "info")[1]


@pytest.mark.parametrize(
    ("args", "code", "said"),
    [
        (["triage"], 2, "Missing argument"),
        (["triage", "nowhere"], 2, "nowhere is not there"),
        (["triage", "jobs", "--store", "mysql://x/y"], 2, "mysql is not known"),
        (["triage", "jobs", "--since", "soon"], 2, "'soon' is no age"),
        (["triage", "jobs", "--memory", "much"], 2, "'much' is no amount"),
        (["triage", "jobs", "--rules", "jobs"], 4, "no rule files"),
        (["store", "info"], 74, "is not there; `diagnose triage` makes it"),
        (["store", "prune"], 2, "--older"),
    ],
)
def test_mistakes(cli, args: list[str], code: int, said: str) -> None:
    """One line that says what to do."""
    found, out, err = cli(*args)
    assert (found, out) == (code, "") and said in err and err.count("\n") == 1


def test_a_password_is_never_shown(cli, monkeypatch: pytest.MonkeyPatch) -> None:
    """Refused on the command line, hidden in errors and in all that is written."""
    pytest.importorskip("psycopg")
    code, out, err = cli("triage", "jobs", "--store", "postgresql://me:s3cret@127.0.0.1:9/db")
    assert code == 2 and "s3cret" not in out + err and "DIAGNOSE_STORE_PASSWORD" in err
    monkeypatch.setenv("DIAGNOSE_STORE", "postgresql://me:s3cret@127.0.0.1:9/db")
    code, out, err = cli("triage", "jobs")
    assert code == 74 and "s3cret" not in out + err and "postgresql+psycopg://me:***@127.0.0.1:9/db" in err


def test_progress_on_a_terminal(make_folder, tmp_path: Path) -> None:
    """A terminal sees how many jobs are done, how fast, and how long it will take; a file does not."""
    folder = make_folder(tmp_path / "jobs", 12)
    command = [sys.executable, "-m", "diagnose", "triage", str(folder), "--store", f"sqlite:///{tmp_path}/a.db"]
    ours, theirs = pty.openpty()
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=theirs, env=environment(TERM="xterm"))
    os.close(theirs)
    seen, until = b"", time.monotonic() + 120
    while process.poll() is None and time.monotonic() < until:
        if select.select([ours], [], [], 0.2)[0]:
            try:
                seen += os.read(ours, 4096)
            except OSError:
                break
    assert process.wait(timeout=60) == 0
    os.close(ours)
    assert b"of 12 jobs" in seen and b"a second" in seen and b"left" in seen
