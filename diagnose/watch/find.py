"""Find the jobs that can be followed, and say how each of them grows.

Enters: folders, files and globs. Leaves: a source each, and a line for what cannot be followed.
"""

import contextlib
import dataclasses
import os
import re
from collections.abc import Callable, Collection
from pathlib import Path

from diagnose.errors import UsageError
from diagnose.trace.find_log import find_log
from diagnose.trace.gather import START
from diagnose.trace.input_files import InputFiles, forget_heads, is_trace
from diagnose.trace.logs.load import is_binary_log
from diagnose.triage.source import FoundJob, is_remote, list_jobs
from diagnose.watch.files import FILES_ASKED, LineFiles, StepFiles, TraceFiles, find_lines, find_lines_in, list_files
from diagnose.watch.log import LogSource
from diagnose.watch.request import WatchRequest
from diagnose.watch.sessions import SessionSource, is_of_sessions
from diagnose.watch.source import Mark, Source
from diagnose.watch.steps import StepSource

#: What differs in the names of the folders of sessions.
_NUMBERED = re.compile(r"\d+")
#: A job in a folder that was not written for so long when it is found has ended: it is for `diagnose triage`.
ENDED_S = 3600.0


#: Sources named where none of them can be followed.
MOST_REFUSED = 3


@dataclasses.dataclass(frozen=True, slots=True)
class FoundSource:
    """A job, and what follows it from a mark on."""

    location: str
    open: Callable[[Mark], Source]
    is_named: bool


def find_sources(
    request: WatchRequest, known: Collection[str], kept: Collection[str], now_s: float
) -> tuple[list[FoundSource], set[str]]:
    """List the jobs that are not known yet, by location, and say of what cannot be followed why not.

    Of the jobs in a folder those are left out that had ended before they were found, unless all that is there is wanted once, or
    they are `kept`: watched before, as a job that hangs may have been for hours.

    Raises
    ------
    UsageError
        A source is not there.
    """
    forget_heads()  # files have grown since they were looked at
    found: dict[str, FoundSource] = {}
    refused: set[str] = set()
    for source in request.sources:
        if is_remote(source):
            raise UsageError(f"{source}: object stores cannot be followed; expected a folder or a file")
        named = Path(source).resolve()
        for job in list_jobs([source]) or _list_lone(named):
            location = _name_job(job, named)
            if location in known or location in found:
                continue
            if job.refused or not Path(location).exists():
                refused.add(f"{location}: {job.refused or 'is not there'}")
                continue
            is_named = named == Path(location)
            is_old = job.modified_s is not None and now_s - job.modified_s > ENDED_S
            if is_old and not (is_named or request.once or location in kept):
                continue
            followed = _open_source(Path(location), request)
            if followed is None and Path(location).is_file() and not Path(location).stat().st_size:
                continue  # it may become anything
            if followed is None:
                refused.add(
                    f"{location}: holds nothing that can be followed; expected what the recorder writes, a trace in one file, "
                    "sessions of a profiler, or a training log"
                )
            else:
                found[location] = FoundSource(location, followed, is_named)
    return [found[location] for location in sorted(found)], refused


def refuse_where_none(request: WatchRequest, found: Collection[FoundSource], refused: Collection[str]) -> None:
    """Refuse sources of which nothing can be followed, now or later.

    Raises
    ------
    UsageError
        All that is there is refused; or nothing is there, and only that is wanted.
    """
    if refused and not found:
        raise UsageError("; ".join(sorted(refused)[:MOST_REFUSED]))
    if request.once and not found:
        raise UsageError(f"{', '.join(request.sources)}: no job that can be followed is there")


def _list_lone(folder: Path) -> list[FoundJob]:
    """Give a folder that is named and has one log of operations, as of one GPU or of all ranks, as its job."""
    files = [file for file, _ in list_files(folder) if file.parent == folder] if folder.is_dir() else []
    return [FoundJob(str(folder), is_folder=True)] if any(map(find_lines, files[:FILES_ASKED])) else []


def _name_job(job: FoundJob, named: Path) -> str:
    """Give the folder of a job: that of all its starts, or sessions, where this is one of them; `named` is what the user named."""
    folder, _, name = job.location.rpartition("/")
    if name.startswith(START):
        return folder
    at = Path(job.location)
    may_be_session = job.is_folder and _NUMBERED.search(name) and not any(at.glob("*.parquet"))
    if not may_be_session or not (Path(folder) == named or _has_siblings(at)) or find_lines_in(at) is not None:
        return job.location
    return folder


def _has_siblings(folder: Path) -> bool:
    """Say whether a folder beside this one has the same name but for its number: they are sessions of one job."""
    kind = _NUMBERED.sub("", folder.name)
    with contextlib.suppress(OSError), os.scandir(folder.parent) as entries:
        return any(entry.name != folder.name and _NUMBERED.sub("", entry.name) == kind for entry in entries)
    return False


def _open_source(path: Path, request: WatchRequest) -> Callable[[Mark], Source] | None:
    """Give what follows the files at a path; None where nothing does."""
    files = [path] if path.is_file() else [*path.glob("*.parquet"), *path.glob(f"{START}*/*.parquet")]
    if any(is_trace(file) for file in files):
        return lambda mark: _follow_steps(path, mark, TraceFiles(path), request)
    if path.is_dir() and is_of_sessions(path):
        return lambda mark: SessionSource(path, mark)
    if (producer := find_lines_in(path)) is not None:
        return lambda mark: _follow_steps(path, mark, LineFiles(path, producer, mark), request)
    if path.is_file() and find_log(path) is not None and not is_binary_log(InputFiles(path, (path,)).head(path)):
        return lambda mark: LogSource(path, mark, window_steps=request.window_steps, once=request.once)
    return None


def _follow_steps(path: Path, mark: Mark, files: StepFiles, request: WatchRequest) -> Source:
    """Follow files that are written step by step."""
    return StepSource(path, mark, files=files, window_steps=request.window_steps, once=request.once)
