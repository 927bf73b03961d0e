"""Follow a training log that grows.

Enters: a text file. Leaves: deliveries of its new lines, as soon as they tell of enough steps.
"""

import contextlib
import functools
import re
import tempfile
from collections.abc import Iterator
from pathlib import Path

from diagnose.errors import DiagnoseError
from diagnose.trace.input_files import InputFiles, forget_heads
from diagnose.trace.logs.load import load_log
from diagnose.watch.source import Delivery, Mark

#: Read at a time: a window of more than this is diagnosed in parts.
MOST_BYTES = 1 << 24
#: Read at first: most windows are in so much, and those of a log that is there whole should not each cost all of it.
LEAST_BYTES = 1 << 16
#: A whole line; a bar goes back to its beginning without a new one.
_LINE = re.compile(rb"[^\r\n]*(?:\r\n|\r|\n)")
#: Endings of tables, whose first line names the columns of all others.
_TABLES = (".csv", ".tsv")


class LogSource:
    """A training log. A file that gets shorter was begun anew; `once` where nobody will look again: what is left is given, too."""

    has_ended = False

    def __init__(self, path: Path, mark: Mark, *, window_steps: int, once: bool = False) -> None:
        self._path, self._once = path, once
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

    def deliver_again(self, first: int, last: int) -> Delivery | None:  # noqa: ARG002 - those of steps do
        """Give nothing: it is read once."""
        return None

    def _collect(self) -> Delivery | None:
        """Read the new lines of the next window, and no more; None where all there are tell of too few steps."""
        with self._path.open("rb") as file:
            head = file.readline() if self._path.suffix.lower() in _TABLES and self._position else b""
            n_bytes, found = LEAST_BYTES, b""
            while True:
                file.seek(self._position)
                found = file.read(n_bytes)
                lines = _LINE.findall(found)
                n_lines = self._find_window(head, lines)
                if n_lines or len(found) < n_bytes or n_bytes >= MOST_BYTES:
                    break
                n_bytes *= 4
        window = b"".join(lines[: n_lines or len(lines)]) or found
        n_steps = self._count_steps(head + window)
        is_last = self._once and n_steps and (not self._position or 2 * n_steps >= self._n_steps)
        if not n_lines and len(found) < MOST_BYTES and not is_last:
            return None
        return Delivery(
            n_rows=n_steps,
            silent=(),
            n_ranks=None,
            work=None,
            lay_out=functools.partial(_lay_out, self._path.name, head + window),
            mark=Mark(position=self._position + len(window)),
            restarts=self._restarts,
        )

    def _find_window(self, head: bytes, lines: list[bytes]) -> int:
        """Count the lines that tell of the steps of a window, as few as do; 0 where all of them tell of too few."""

        def tells(n_lines: int) -> bool:
            return self._count_steps(head + b"".join(lines[:n_lines])) >= self._n_steps

        if len(lines) < self._n_steps or not tells(len(lines)):  # a step has a line, at least
            return 0
        few, enough = self._n_steps - 1, self._n_steps
        while enough < len(lines) and not tells(enough):
            few, enough = enough, min(2 * enough, len(lines))
        while enough - few > 1:
            middle = (few + enough) // 2
            few, enough = (few, middle) if tells(middle) else (middle, enough)
        return enough

    def _count_steps(self, content: bytes) -> int:
        """Count the steps that lines tell of."""
        with _lay_out(self._path.name, content) as path:
            try:
                return len(load_log(InputFiles(path, (path,)), name=str(path)).iteration)
            except DiagnoseError:  # no line of a step yet
                return 0
            finally:
                forget_heads()


@contextlib.contextmanager
def _lay_out(name: str, lines: bytes) -> Iterator[Path]:
    """Write the lines of a window as a log of their own."""
    with tempfile.TemporaryDirectory(prefix="diagnose-") as folder:
        path = Path(folder, name)
        path.write_bytes(lines)
        yield path
