"""A local file that somebody may write or cut off while it is read.

Enters: a path. Leaves: what pyarrow reads, with plain reads: a file that is mapped into memory and cut off ends the process with
signal 7, and nobody can catch that.
"""

from pathlib import Path
from typing import Any, Self

import pyarrow as pa

from diagnose.errors import TraceError


class WatchedFile(pa.OSFile):  # type: ignore[misc]  # it brings no types
    """An open file that knows what it was like when it was opened."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._before = _look(path)

    def __new__(cls, path: Path) -> Self:
        """Open it."""
        opened: Self = super().__new__(cls, str(path))
        return opened

    def is_changed(self) -> bool:
        """Say whether the file was written since; one that another took the place of is as it was."""
        now = _look(self._path)
        return now[:1] == self._before[:1] and now != self._before


def refuse_changed(source: Any, name: str) -> None:
    """Refuse a file that was written while it was read: a part of it may be old and a part new."""
    if isinstance(source, WatchedFile) and source.is_changed():
        raise TraceError(
            "was written while it was read; expected a file that is complete: read it again when its writer is done",
            where=name,
        )


def _look(path: Path) -> tuple[int, ...]:
    """Say which file it is, how long, and when it was written; empty where it is gone."""
    try:
        found = path.stat()
    except OSError:
        return ()
    return found.st_ino, found.st_size, found.st_mtime_ns
