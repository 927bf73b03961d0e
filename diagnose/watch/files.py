"""The files that jobs write step by step, by start of the job.

Enters: a folder, or a file. Leaves: what follows each of its files, `GrowingTrace` or `GrowingLines`.
"""

import contextlib
import os
from collections import Counter
from pathlib import Path

from diagnose.trace.gather import START
from diagnose.trace.growing import GrowingTrace, TraceRows
from diagnose.trace.growing_lines import FORMATS, GrowingLines, StepLines
from diagnose.trace.input_files import HEAD_BYTES, InputFiles, forget_heads
from diagnose.trace.producers import event_timer
from diagnose.trace.producers.catalogue import find_producer
from diagnose.trace.read import DESCRIPTIONS
from diagnose.watch.source import Mark

#: Files looked at before a folder is taken for something else.
FILES_ASKED = 16


class TraceFiles:
    """Parquet files: one, or one a rank in the folder of a job, or of each of its starts."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._is_folder = path.is_dir()

    def list_starts(self) -> dict[str, list[Path]]:
        """List the files by start of the job; all are of one where it has no folders of starts."""
        if not self._is_folder:
            return {"": [self._path]} if self._path.exists() else {}
        found = {start: _list_traces(self._path / start) for start in ("", *_list_starts(self._path))}
        return {start: files for start, files in found.items() if files}

    def open(self, path: Path, start: str, mark: int) -> GrowingTrace:  # noqa: ARG002 - it is the folder of the file
        """Follow a file from a step on."""
        return GrowingTrace(path, mark)


class LineFiles:
    """Logs of operations: one, or one a rank, or one a rank and start of the job."""

    def __init__(self, path: Path, producer: str, mark: Mark) -> None:
        self._path = path
        self._producer = producer
        self._format = FORMATS[producer]
        #: Whether each file is such a log, and how long it was when it was asked, as far as that tells it.
        self._is_log: dict[Path, bool] = {}
        self._asked_bytes: dict[Path, int] = {}
        #: How many starts there were, and how many of them wrote into the files as they are now, so far as they were read.
        self._n_known = int(mark.start or 0) + 1
        self._n_before = self._n_known - 1
        self._opened: list[GrowingLines] = []

    def list_starts(self) -> dict[str, list[Path]]:
        """List the files by start of the job, so far as it is known to have been started again."""
        files = self._list_logs()
        named = self._format.file_of_rank
        if named is None:
            finished = [part.n_before for part in self._opened if part.is_finished]
            if finished:
                self._n_known, self._n_before, self._opened = self._n_known + 1, max(finished) + 1, []
            return {_name_start(n): files for n in range(self._n_known)} if files else {}
        starts: dict[str, list[Path]] = {}
        n_of: Counter[str] = Counter()
        for file in files:
            found = named.match(str(file))
            rank = found[0] if found else str(file)
            starts.setdefault(_name_start(n_of[rank]), []).append(file)
            n_of[rank] += 1
        return starts

    def open(self, path: Path, start: str, mark: int) -> GrowingLines:
        """Follow a file from a step of a start on."""
        del start
        part = GrowingLines(path, self._format, mark, self._n_before if self._format.file_of_rank is None else 0)
        self._opened.append(part)
        return part

    def _list_logs(self) -> list[Path]:
        """List the logs, in order; a file is asked what it is until it says it."""
        if not self._path.is_dir():
            return [self._path] if self._path.exists() else []
        found = list_files(self._path)
        for path, entry in found:
            n_bytes = min(entry.st_size, HEAD_BYTES)
            if not self._is_log.get(path) and n_bytes != self._asked_bytes.get(path):
                forget_heads()
                self._is_log[path], self._asked_bytes[path] = find_lines(path) == self._producer, n_bytes
        return [path for path, _ in found if self._is_log[path]]


#: A file that grows, what it has of some steps, and all such files of one job.
StepFile = GrowingTrace | GrowingLines
Rows = TraceRows | StepLines
StepFiles = TraceFiles | LineFiles


def list_files(folder: Path) -> list[tuple[Path, os.stat_result]]:
    """List the files of a folder and of the folders in it, in order; those that are hidden, or gone by now, are left out."""
    found = []
    for where, folders, files in os.walk(folder):
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        for name in sorted(files):
            if not name.startswith(".") and not name.lower().endswith(DESCRIPTIONS):
                with contextlib.suppress(OSError):
                    path = Path(where, name)
                    found.append((path, path.stat()))
    return found


def find_lines_in(path: Path) -> str | None:
    """Name the producer of the logs in a folder, by its first files, or of a file; None where they are no such logs."""
    files = [file for file, _ in list_files(path)][:FILES_ASKED] if path.is_dir() else [path]
    return next((found for found in map(find_lines, files) if found is not None), None)


def find_lines(path: Path) -> str | None:
    """Name the producer of a log of operations that grows line by line; None where a file is none.

    Of a scheduler that switches, each rank has a log for each of two modes, with iterations of their own: it is none.
    """
    inputs = InputFiles(path, (path,))
    producer = find_producer(inputs)
    if producer is None or producer.NAME not in FORMATS or event_timer.has_two_modes(path):
        return None
    return producer.NAME


def _name_start(number: int) -> str:
    """Name a start, so that names are in order."""
    return f"{number:06}"


def _list_starts(folder: Path) -> list[str]:
    """List the folders of starts, in order."""
    with contextlib.suppress(OSError), os.scandir(folder) as entries:
        return sorted(entry.name for entry in entries if entry.name.startswith(START) and entry.is_dir())
    return []


def _list_traces(folder: Path) -> list[Path]:
    """List the traces that lie in a folder itself, in order."""
    with contextlib.suppress(OSError), os.scandir(folder) as entries:
        names = sorted(entry.name for entry in entries if entry.name.endswith(".parquet"))
        paths = [folder / name for name in names if not name.startswith(".")]
        return [path for path in paths if os.path.isfile(path)]  # noqa: PTH113 - also where links go in a circle
    return []
