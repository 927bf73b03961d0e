"""A disk without room, for everything that is written: one line, exit code 74, and nothing half-written.

A full disk under a store is in `triage/test_processes.py`.
"""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

import diagnose
from diagnose.cli.main import main
from diagnose.errors import OutputError
from diagnose.triage.export import export_store
from diagnose.triage.store import Store
from tests.fixture_jobs import FIXTURES
from tests.fleet.stores import fill
from tests.small_disk import mount_small_disk

JOB = str(FIXTURES["worker-fault"])


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    """Give a folder on a small disk, or skip where such a disk cannot be had."""
    with mount_small_disk(tmp_path / "disk", "256k") as folder:
        yield folder


def fill_up(disk: Path) -> None:
    """Leave 4 kB of room."""
    found = os.statvfs(disk)
    (disk / "other").write_bytes(b"x" * (found.f_bavail * found.f_frsize - 4096))


def fill_store(tmp_path: Path) -> str:
    """Make a store with three jobs."""
    url = f"sqlite:///{tmp_path}/a.db"
    fill(url, 3)
    return url


@pytest.mark.parametrize("option", ["--html", "--perfetto", "--json", "-o"])
def test_reports(option: str, disk: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """What was there stays, and no part of the new is left."""
    target = disk / "out"
    target.write_text("old")
    fill_up(disk)
    assert main([JOB, option, str(target), "--format", "json"]) == 74
    _, err = capsys.readouterr()
    assert "No space left on device" in err and err.count("\n") == 1
    assert target.read_text() == "old" and {path.name for path in disk.iterdir()} == {"other", "out"}


def test_a_page_that_a_program_writes(disk: Path) -> None:
    """The same for the methods of what the functions give."""
    fill_up(disk)
    found = diagnose.diagnose(JOB)
    with pytest.raises(OutputError, match="No space left on device; expected a disk with room"):
        found.to_html(disk / "out.html")
    assert [path.name for path in disk.iterdir()] == ["other"]


def test_a_site(disk: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Pages that are there are whole."""
    url = fill_store(tmp_path)
    fill_up(disk)
    assert main(["fleet", "--store", url, "--site", str(disk / "site")]) == 74
    err = capsys.readouterr().err
    assert err.startswith("diagnose: error: --site: cannot write ") and err.count("\n") == 1
    assert all(page.read_text().rstrip().endswith("</html>") for page in disk.rglob("*.html"))
    assert not list(disk.rglob(".*"))


def test_an_export_is_whole_or_as_it_was(disk: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """No file of it is new beside others that are old."""
    url = fill_store(tmp_path)
    old = tmp_path / "old.db"
    with Store(f"sqlite:///{old}") as empty:
        export_store(empty, disk)
    fill_up(disk)
    before = {path.name: path.read_bytes() for path in disk.iterdir()}
    assert main(["store", "export", str(disk), "--store", url]) == 74
    assert "No space left on device" in capsys.readouterr().err
    assert {path.name: path.read_bytes() for path in disk.iterdir()} == before


def test_a_converted_job(disk: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A trace that did not fit is not there."""
    fill_up(disk)
    assert main(["convert", JOB, "-o", str(disk / "job.parquet"), "--quiet"]) == 74
    assert capsys.readouterr().err.count("\n") == 1 and [path.name for path in disk.iterdir()] == ["other"]


def test_a_place_that_is_none(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """To write where nothing can be written is bad usage, as before."""
    (tmp_path / "file").touch()
    assert main([JOB, "-o", str(tmp_path / "file" / "out")]) == 2
    assert "-o: cannot write" in capsys.readouterr().err
