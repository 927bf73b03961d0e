"""Paths that nobody can open: links into closed folders, names that are too long, NUL. One line each, never an internal error."""

import json
import os
import shutil
from pathlib import Path

import pytest

from diagnose.cli.main import main
from diagnose.files import appearing
from diagnose.triage.source import list_jobs
from tests.fixture_jobs import FIXTURES
from tests.unprivileged import run_without_privileges

JOB = str(FIXTURES["healthy"])
LONG = "a" * 300


@pytest.mark.parametrize(
    ("args", "code"),
    [
        ([LONG], 3),
        ([JOB, "-o", LONG], 2),
        ([JOB, "--html", LONG], 2),
        ([JOB, "--json", LONG], 2),
        ([JOB, "--meta", LONG], 2),
        ([JOB, "--rules", LONG], 2),
        ([JOB, "--log", LONG], 2),
        (["explain", LONG, "worker-fault"], 3),
        (["convert", LONG, "-o", "x"], 3),
        (["convert", JOB, "-o", LONG], 2),
        (["compare", LONG, LONG], 3),
        (["pack", LONG], 2),
        (["rules", "test", LONG], 2),
        (["triage", LONG], 2),
    ],
)
def test_names_that_are_too_long(
    args: list[str], code: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """More than 255 bytes: which path it is, and how the program ends."""
    monkeypatch.chdir(tmp_path)
    assert main(args) == code
    err = capsys.readouterr().err
    assert "File name too long" in err and LONG in err and "internal error" not in err and err.count("\n") == 1
    assert not list(tmp_path.iterdir())


def test_a_name_as_long_as_may_be(tmp_path: Path) -> None:
    """A report whose name leaves no room for another ending is written all the same."""
    target = tmp_path / ("a" * 255)
    assert main([JOB, "--format", "json", "-o", str(target)]) == 0
    assert json.loads(target.read_text())["verdict"] == "healthy"


def test_a_link_into_a_closed_folder(tmp_path: Path) -> None:
    """As a job, in the folder of a job, and in a night, where the others are done."""
    closed, jobs = tmp_path / "closed", tmp_path / "jobs"
    for folder in (closed, jobs):
        folder.mkdir()
        shutil.copy(JOB, folder / "job.parquet")
    (jobs / "link.parquet").symlink_to(closed / "job.parquet")
    closed.chmod(0o000)
    code = (
        "import sys; from diagnose.cli.main import main; sys.stderr = sys.stdout\n"
        "for source in sys.argv[1:3]: print(main([source]))\n"
        "from diagnose.triage.identity import Judge; from diagnose.triage.source import list_jobs\n"
        "from diagnose.triage.worker import Task, do_job\n"
        "for job in list_jobs([sys.argv[2]]):\n"
        "    row = do_job(Task(job, Judge('1', '2', None, 1.02))).row; print(row.status, row.failure, row.reason)"
    )
    said = run_without_privileges(code, jobs / "link.parquet", jobs).splitlines()
    closed.chmod(0o755)
    why = "cannot be read: Permission denied; expected a file that you may read"
    assert said == [
        f"diagnose: error: {jobs}/link.parquet: {why}",
        "3",
        f"diagnose: error: {jobs}: {jobs}/link.parquet: {why}",
        "3",
        "diagnosed None None",
        "failed unreadable cannot be read: Permission denied",
    ]


def test_a_list_with_lines_that_are_no_paths(tmp_path: Path) -> None:
    """NUL, and names that are too long, are named; the others are done."""
    (tmp_path / "list.txt").write_text(f"{JOB}\na\0b\n{LONG}\n")
    found = {job.location: job.refused for job in list_jobs([str(tmp_path / "list.txt")])}
    assert found == {
        JOB: "",
        "a\0b": "cannot be listed: it has a NUL in it; expected a path",
        LONG: "cannot be listed: File name too long; expected a path",
    }


def test_a_link_where_a_file_is_written_beside_its_target(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Even if somebody guessed its name: it is not followed, and stays."""
    monkeypatch.setattr(os, "urandom", bytes)
    (tmp_path / "theirs").write_text("theirs")
    link = tmp_path / f".diagnose-{bytes(8).hex()}.tmp"
    link.symlink_to(tmp_path / "theirs")
    with pytest.raises(FileExistsError), appearing(tmp_path / "page.html"):
        raise AssertionError("it was opened")
    assert link.is_symlink() and (tmp_path / "theirs").read_text() == "theirs"
