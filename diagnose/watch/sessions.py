"""Follow files that appear whole, as a profiler writes one a rank at the end of each session: a session is a window.

Enters: the folder of a job: a folder in it for each session, or the sessions of all ranks beside each other, their names in order.
Leaves: deliveries of the files of one session, as soon as every rank has one that no longer grows.
"""

import contextlib
import functools
import re
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

from diagnose.trace.input_files import InputFiles
from diagnose.trace.producers.catalogue import find_producer
from diagnose.watch.files import list_files
from diagnose.watch.source import Delivery, Mark
from diagnose.watch.steps import PATIENCE_S, PATIENCE_WINDOWS

#: Who writes a JSON document at once. Logs a rank that grow line by line are not followed: their last steps are half there.
WHOLE = ("kineto", "megascan", "ndtimeline", "primus")
#: A file that did not change for so long is whole: traces are written in one go.
WHOLE_AFTER_S = 10.0
#: What differs in the names of one rank's files: the session's number or time, which stands last.
_LAST_NUMBER = re.compile(r"\d+(?=\D*$)")


class SessionSource:
    """The sessions of one job."""

    has_ended = False

    def __init__(self, path: Path, mark: Mark) -> None:
        self._path = path
        self._n_taken = mark.position or 0
        self._files: dict[Path, tuple[int, int]] = {}
        self._late_since_s: float | None = None
        self._taken_s: float | None = None
        self._interval_s = 0.0
        self._n_ranks = 0
        self._delivery: Delivery | None = None

    def look(self) -> bool:
        """Look whether a file is new or has changed."""
        found = {path: (entry.st_size, entry.st_mtime_ns) for path, entry in list_files(self._path)}
        has_changed = found != self._files
        self._files = found
        return has_changed

    @property
    def written_s(self) -> float | None:
        """When a file was written last."""
        return max((modified_ns / 1e9 for _, modified_ns in self._files.values()), default=None)

    def deliver(self, now_s: float) -> Delivery | None:
        """Give the files of the next session where every rank has written its own, or is not waited for any more."""
        if self._delivery is None:
            self._delivery = self._collect(now_s)
        return self._delivery

    def take(self, delivery: Delivery, now_s: float) -> None:  # noqa: ARG002 - sessions are counted
        """Take a session."""
        self._n_taken += 1
        if self._taken_s is not None:
            self._interval_s = now_s - self._taken_s
        self._taken_s = now_s
        self._delivery = None

    def deliver_again(self, first: int, last: int) -> Delivery | None:  # noqa: ARG002 - those of steps do
        """Give nothing: it is read once."""
        return None

    def _collect(self, now_s: float) -> Delivery | None:
        """Find the next session; None where it is not all there."""
        sessions = _part_sessions(self._path, list(self._files))
        if len(sessions) <= self._n_taken:
            return None
        files = sessions[self._n_taken]
        has_next = len(sessions) > self._n_taken + 1
        expected = max(self._n_ranks, *(len(session) for session in sessions))
        is_whole = all(now_s - self._files[file][1] / 1e9 >= WHOLE_AFTER_S for file in files)
        if not is_whole or (len(files) < expected and not has_next):
            if self._late_since_s is None:
                self._late_since_s = now_s
            if not is_whole or now_s - self._late_since_s < max(PATIENCE_S, PATIENCE_WINDOWS * self._interval_s):
                return None
        self._late_since_s, self._n_ranks = None, max(self._n_ranks, len(files))
        return Delivery(
            n_rows=sum(self._files[file][0] for file in files),
            silent=(),
            n_ranks=expected,
            work=None,
            lay_out=functools.partial(_lay_out, self._path, files),
            mark=Mark(position=self._n_taken + 1),
        )


def is_of_sessions(path: Path) -> bool:
    """Say whether a folder holds sessions of a profiler, by its first file."""
    first = next((file for file, _ in list_files(path)), None)
    if first is None:
        return False
    inputs = InputFiles(first, (first,))
    producer = find_producer(inputs)
    return producer is not None and producer.NAME in WHOLE and inputs.head(first).lstrip()[:1] in (b"[", b"{")


def _part_sessions(folder: Path, files: Sequence[Path]) -> list[tuple[Path, ...]]:
    """Part files by session, in order: by the folder in which they lie, or the n-th of each rank."""
    if all(file.parent != folder for file in files):
        by_folder: dict[Path, list[Path]] = {}
        for file in files:
            by_folder.setdefault(folder / file.relative_to(folder).parts[0], []).append(file)
        return [tuple(by_folder[at]) for at in sorted(by_folder, key=_in_order)]
    ranks: dict[str, list[Path]] = {}
    for file in sorted(files, key=_in_order):
        ranks.setdefault(_LAST_NUMBER.sub("", file.name), []).append(file)
    n_sessions = max(map(len, ranks.values()), default=0)
    return [tuple(of[n] for of in ranks.values() if len(of) > n) for n in range(n_sessions)]


def _in_order(path: Path) -> tuple[list[tuple[int, str]], str]:
    """Put names in order, numbers in them by their value."""
    parts = re.split(r"(\d+)", path.name)
    return [(int(part), "") if part.isdigit() else (-1, part) for part in parts], str(path)


@contextlib.contextmanager
def _lay_out(path: Path, files: Sequence[Path]) -> Iterator[Path]:
    """Lay links to the files of a session into a folder of their own."""
    with tempfile.TemporaryDirectory(prefix="diagnose-") as folder:
        at = Path(folder, path.name)
        for file in files:
            link = at / file.relative_to(path)
            link.parent.mkdir(parents=True, exist_ok=True)
            link.symlink_to(file.absolute())
        yield at
