"""Files that are written, cut off or replaced while they are read: an error or the old content, never a signal or a mixture."""

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from diagnose.errors import TraceError
from diagnose.trace.load import load_trace
from tests.fixture_jobs import FIXTURES
from tests.jobs import hand_job, write


def cut(path: Path) -> None:
    """Cut a file off in its middle."""
    with path.open("r+b") as file:
        file.truncate(path.stat().st_size // 2)


def empty(path: Path) -> None:
    """Cut a file off at its beginning."""
    with path.open("r+b") as file:
        file.truncate(0)


def rewrite(path: Path) -> None:
    """Write the file again in its place."""
    shutil.copyfile(FIXTURES["healthy"], path)


def replace(path: Path) -> None:
    """Put another file in its place, as who writes carefully does."""
    other = path.with_suffix(".new")
    shutil.copyfile(FIXTURES["healthy"], other)
    other.replace(path)


def spoil(monkeypatch: pytest.MonkeyPatch, method: str, path: Path, change: Callable[[Path], Any]) -> None:
    """Let something happen to a file between its footer and its rows."""
    original = getattr(pq.ParquetFile, method)

    def first_change(self: pq.ParquetFile, *args: Any, **more: Any) -> Any:
        change(path)
        return original(self, *args, **more)

    monkeypatch.setattr(pq.ParquetFile, method, first_change)


@pytest.mark.parametrize("method", ["read", "iter_batches"])  # of all columns, and of the lists, which are read later
@pytest.mark.parametrize("change", [cut, empty, rewrite])
def test_a_file_that_is_written(
    change: Callable[[Path], Any], method: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is refused as that, whether or not its content can still be read."""
    rows = hand_job()
    documents = [[300, 200] if name.endswith("compute") else None for name in rows.optype]
    path = write(tmp_path / "job.parquet", rows.assign(doc_lengths=documents))
    assert load_trace(path).documents is not None
    spoil(monkeypatch, method, path, change)
    with pytest.raises(
        TraceError, match=r"job\.parquet.*: was written while it was read; expected a file that is complete"
    ):
        load_trace(path)


@pytest.mark.parametrize("change", [replace, Path.unlink])
def test_a_file_that_another_takes_the_place_of(
    change: Callable[[Path], Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What was opened is read to its end."""
    path = tmp_path / "job.parquet"
    shutil.copyfile(FIXTURES["sequence-imbalance"], path)
    expected = load_trace(path)
    spoil(monkeypatch, "read", path, change)
    found = load_trace(path)
    assert found.n_ops == expected.n_ops and (found.blocks[0].end_s == expected.blocks[0].end_s).all()


def test_too_little_memory_is_no_damage(monkeypatch: pytest.MonkeyPatch) -> None:
    """Who is told that a file is damaged copies it again, and again."""

    def fail(*_: Any, **__: Any) -> None:
        raise MemoryError("malloc of size 1 failed")

    monkeypatch.setattr(pq.ParquetFile, "read", fail)
    with pytest.raises(TraceError, match="needs more memory to be read than there is; expected memory"):
        load_trace(FIXTURES["healthy"])
