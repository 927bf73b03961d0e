"""Follow a training log that grows.

Enters: a text file. Leaves: deliveries of its new lines, as soon as they tell of enough steps.
"""

import contextlib
import functools
import tempfile
from collections.abc import Iterator
from pathlib import Path

from diagnose.errors import DiagnoseError
from diagnose.trace.input_files import InputFiles
from diagnose.trace.logs.load import load_log
from diagnose.watch.source import Delivery, Mark

#: Read at a time: a window of more than this is diagnosed in parts.
MOST_BYTES = 1 << 24
#: Endings of tables, whose first line names the columns of all others.
_TABLES = (".csv", ".tsv")


class LogSource:
    """A training log. A file that gets shorter was begun anew."""

    kind = "log"
    has_ended = False

    def __init__(self, path: Path, mark: Mark, *, window_steps: int) -> None:
        self._path = path
        self._n_steps = window_steps
        self._position = mark.position or 0
        self._size = -1
        self.written_s: float | None = None
        self._restarts = False
        self._has_new = False
        self._delivery: Delivery | None = None

    def look(self) -> bool:
        """Look whether the file is longer than before, or shorter."""
        try:
            found = self._path.stat()
        except OSError:
            return False
        size, self.written_s = found.st_size, found.st_mtime
        if size == self._size:
            return False
        if size < self._position:
            self._position, self._restarts, self._delivery = 0, True, None
        self._size, self._has_new = size, True
        return True

    def deliver(self, now_s: float) -> Delivery | None:  # noqa: ARG002 - others wait for ranks that are late
        """Give the new lines where they tell of enough steps."""
        if self._delivery is None and self._has_new:
            self._delivery = self._collect()
            self._has_new = self._delivery is not None
        return self._delivery

    def take(self, delivery: Delivery, now_s: float) -> None:  # noqa: ARG002 - as above
        """Take what was delivered."""
        assert delivery.mark.position is not None
        self._position = delivery.mark.position
        self._delivery, self._restarts = None, False

    def _collect(self) -> Delivery | None:
        """Read the new lines; None where they tell of too few steps."""
        with self._path.open("rb") as file:
            head = file.readline() if self._path.suffix.lower() in _TABLES and self._position else b""
            file.seek(self._position)
            found = file.read(MOST_BYTES)
        whole = found[: max(found.rfind(b"\n"), found.rfind(b"\r")) + 1]
        if whole.count(b"\n") + whole.count(b"\r") < self._n_steps:  # a step has a line, at least
            return None
        lay_out = functools.partial(_lay_out, self._path.name, head + whole)
        with lay_out() as path:
            try:
                n_steps = len(load_log(InputFiles(path, (path,)), name=str(path), report=_ignore).iteration)
            except DiagnoseError:  # no line of a step yet
                n_steps = 0
        if n_steps < self._n_steps and len(found) < MOST_BYTES:
            return None
        return Delivery(
            n_rows=n_steps,
            silent=(),
            n_ranks=None,
            work=None,
            lay_out=lay_out,
            mark=Mark(position=self._position + len(whole)),
            restarts=self._restarts,
        )


def _ignore(line: str) -> None:
    """Ignore a line of progress."""


@contextlib.contextmanager
def _lay_out(name: str, lines: bytes) -> Iterator[Path]:
    """Write the lines of a window as a log of their own."""
    with tempfile.TemporaryDirectory(prefix="diagnose-") as folder:
        path = Path(folder, name)
        path.write_bytes(lines)
        yield path
