"""What a worker does with one job: fetch it, digest it, diagnose it, and say how it went.

Enters: a `Task`. Leaves: an `Outcome`; nothing is raised, because one broken job must not stop the others. Runs in a
process of its own on this machine, or on a Dask worker: it needs no database.
"""

import contextlib
import dataclasses
import enum
import errno
import os
import signal
import tempfile
import threading
import time
import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path

from diagnose.errors import DiagnoseError, MemoryShortageError, MetadataError, TraceError
from diagnose.heap import import_to_stay, reuse_freed_memory
from diagnose.model.memory import BYTES_AT_START, BYTES_PER_OP
from diagnose.model.plain import to_json
from diagnose.model.request import Request
from diagnose.triage.identity import SETTLED_S, Judge, digest_files
from diagnose.triage.rows import CauseRow, JobRow, cause_rows, job_row
from diagnose.triage.source import FoundJob, is_remote, list_again, list_pieces, open_remote

#: Address space that libraries reserve and never touch: thread stacks, arenas.
SLACK_BYTES = 512 << 20
#: A reason longer than this helps nobody.
MAX_REASON = 500
#: Times a file that changes while it is read is read again.
READS = 2
#: Where a worker's libraries learn that it has one core.
THREADS = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")


class Failure(enum.StrEnum):
    """Why a job has no diagnosis."""

    INPUT = "input"  # no trace, or a damaged one
    METADATA = "metadata"  # its metadata file is wrong
    UNREADABLE = "unreadable"  # not there, not allowed, or the disk fails
    CHANGED = "changed"  # somebody writes it
    TIMEOUT = "timeout"
    MEMORY = "memory"
    CRASH = "crash"  # its process died
    INTERNAL = "internal"  # an error of ours


@dataclasses.dataclass(frozen=True, slots=True)
class Task:
    """One job to do."""

    job: FoundJob
    judge: Judge
    rules: str | None = None  # Folder with rules of the user's
    known: str | None = None  # Digest of the content that need not be diagnosed again
    memory_bytes: int | None = None  # What the job may take; None where somebody else sees to that
    is_last_try: bool = True  # When False, a job that needs more memory than that is handed back at once


@dataclasses.dataclass(frozen=True, slots=True)
class Outcome:
    """How a job went."""

    row: JobRow | None = None  # None where the job is as it was, or needs more memory
    #: Rows of the causes, and the diagnosis as JSON; empty and None where it failed.
    causes: tuple[CauseRow, ...] = ()
    document: str | None = None
    stamp: str | None = None  # Of the file as it was read; None where it may change without showing it
    needs_bytes: int | None = None  # Memory that it needs, where that is more than it may take
    took_s: float = 0.0


@dataclasses.dataclass(frozen=True, slots=True)
class _Fetched:
    """The files of a job on this machine."""

    source: Path  # What is diagnosed: the trace, or the folder with one file a rank
    #: Files that hold the job, and metadata files.
    traces: tuple[Path, ...]
    beside: tuple[Path, ...]


class _TooLargeError(Exception):
    """The job needs more memory than it may take; the argument says how much."""


class _ChangedError(Exception):
    """The file was written while it was read."""


def prepare_process() -> None:
    """Prepare a process for its work: quiet, one thread, first to go when memory is short, gone when its parent is."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    warnings.simplefilter("ignore")
    for name in THREADS:
        os.environ.setdefault(name, "1")
    with contextlib.suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text("500")
    threading.Thread(target=_follow_parent, daemon=True).start()
    reuse_freed_memory()
    with import_to_stay():
        import diagnose.pipeline  # noqa: F401 - so that the first job does not pay for it


def do_job(task: Task) -> Outcome:
    """Diagnose one job; a failure is an outcome with its kind and its reason in the row."""
    began_s = time.perf_counter()
    try:
        with _limited(task.memory_bytes):
            outcome = _do_settled(task)
    except _TooLargeError as error:
        outcome = Outcome(needs_bytes=int(error.args[0]))
    except MemoryError:
        outcome = give_up(task, Failure.MEMORY, describe_memory_limit(task.memory_bytes), limit=task.memory_bytes)
    return dataclasses.replace(outcome, took_s=time.perf_counter() - began_s)


def give_up(task: Task, kind: Failure, reason: str, *, limit: float | None = None) -> Outcome:
    """Make the outcome of a job that nobody has read to its end; it is not tried again under the same limit."""
    stamp = settled_stamp(task.job)
    outcome = failed(task, kind, reason)
    assert outcome.row is not None
    row = dataclasses.replace(outcome.row, identity=task.judge.identify(limit_key(kind, limit)))
    return Outcome(row, stamp=stamp)


def limit_key(kind: Failure, limit: float | None = None) -> str:
    """Say under which limit a job was given up, for its identity: there is no content to make one of."""
    return f"{kind.value} {limit}"


def failed(task: Task, kind: Failure, reason: str, *, content: str | None = None) -> Outcome:
    """Make the outcome of a job that has no diagnosis, and why; without `content` the next triage run tries it again."""
    judge = task.judge
    row = JobRow(
        location=task.job.location,
        status="failed",
        identity=None if content is None else judge.identify(content),
        content=content,
        version=judge.version,
        rules=judge.rules,
        classifier=judge.classifier,
        min_speedup=judge.min_speedup,
        failure=kind.value,
        reason=" ".join(reason.split())[:MAX_REASON],
        size_bytes=task.job.size_bytes,
    )
    return Outcome(row)


def describe_memory_limit(memory_bytes: int | None) -> str:
    """Say that a job takes too much memory."""
    if memory_bytes is None:
        return "it needs more memory than there is"
    return f"it needs more than {memory_bytes / 2**30:.3g} GiB of memory, which is all it may take; raise --memory"


def _do_settled(task: Task) -> Outcome:
    """Diagnose a job, again where somebody wrote the file meanwhile."""
    for _ in range(READS):
        job = list_again(task.job)
        if not is_remote(job.location) and not job.is_folder and _is_odd(Path(job.location)):
            return failed(
                task,
                Failure.UNREADABLE,
                "cannot be read: it is no file but a pipe, a device or a folder that holds no job",
            )
        now = dataclasses.replace(task, job=job)
        try:
            with _fetched(job) as here:
                outcome = _do_files(now, here)
        except _ChangedError:
            continue
        except (MemoryError, _TooLargeError):
            raise
        except OSError as error:
            return failed(now, Failure.UNREADABLE, f"cannot be read: {error.strerror or error}")
        except Exception as error:  # noqa: BLE001 - object stores raise what they like
            return failed(now, Failure.UNREADABLE, f"cannot be read: {type(error).__name__}: {error}")
        return outcome
    return failed(task, Failure.CHANGED, "the file changes while it is read; the next triage reads it again")


def _is_odd(path: Path) -> bool:
    """Say whether something is there that is no file; of what may not be looked at, who reads it says so."""
    try:
        return path.exists() and not path.is_file()
    except OSError:
        return False


def _do_files(task: Task, here: _Fetched) -> Outcome:
    """Diagnose a job whose files are here."""
    stamp = settled_stamp(task.job)
    content = digest_files((*here.traces, *here.beside), names_all=task.job.is_folder)
    if content == task.known:
        return Outcome(stamp=stamp)
    _check_size(task, here.traces)
    try:
        outcome = _diagnose(task, here.source, content)
    except (MemoryError, _TooLargeError):
        raise
    except MemoryShortageError as error:
        if not task.is_last_try:
            raise MemoryError from None
        return give_up(task, Failure.MEMORY, error.message, limit=task.memory_bytes)
    except DiagnoseError as error:
        if _is_short_of_memory(error) and (
            not task.is_last_try or _claimed_bytes(here.traces) > (task.memory_bytes or 0)
        ):
            raise MemoryError from None
        said = str(error).replace(str(here.source.parent), task.job.location.rpartition("/")[0])
        outcome = failed(task, _kind(error), said, content=content)
    except Exception as error:  # noqa: BLE001 - a fault of ours is the fate of this job alone
        if _is_short_of_memory(error):
            raise MemoryError from None
        outcome = failed(task, Failure.INTERNAL, f"internal error: {type(error).__name__}: {error}", content=content)
    if list_again(task.job) != task.job:
        raise _ChangedError
    return dataclasses.replace(outcome, stamp=stamp)


def _diagnose(task: Task, path: Path, content: str) -> Outcome:
    """Run the pipeline, and make the rows."""
    from diagnose.pipeline import diagnose_job

    location, judge = task.job.location, task.judge
    rules = None if task.rules is None else Path(task.rules)
    diagnosis = diagnose_job(
        Request(
            path,
            name=location,
            rules=rules,
            min_speedup=judge.min_speedup,
            telemetry=judge.telemetry,
            shares_telemetry=True,
            memory_bytes=None if task.memory_bytes is None else task.memory_bytes + BYTES_AT_START,
        )
    )
    found = diagnosis.to_dict()
    row = dataclasses.replace(
        job_row(location, found),
        identity=judge.identify(content),
        content=content,
        min_speedup=judge.min_speedup,
        size_bytes=task.job.size_bytes,
    )
    return Outcome(row, cause_rows(location, found), to_json(found))


def _kind(error: DiagnoseError) -> Failure:
    """Say what kind of failure an error of the pipeline is."""
    match error:
        case TraceError():
            return Failure.INPUT
        case MetadataError():
            return Failure.METADATA
    return Failure.INTERNAL


def _is_short_of_memory(error: BaseException) -> bool:
    """Say whether an error says that memory is short, or came of one that does, as for a file that seems damaged."""
    if isinstance(error, MemoryError) or getattr(error, "errno", None) == errno.ENOMEM:
        return True
    if isinstance(error, RuntimeError) and "can't start new thread" in str(error):
        return True
    found = error.__cause__ or error.__context__
    return found is not None and _is_short_of_memory(found)


def _check_size(task: Task, traces: Sequence[Path]) -> None:
    """Hand a job back that needs more memory than it may take; on its last try as many of its steps are read as fit."""
    if task.memory_bytes is None or task.is_last_try:
        return
    needs = _claimed_bytes(traces)
    if needs > task.memory_bytes:
        raise _TooLargeError(needs)


def _claimed_bytes(traces: Sequence[Path]) -> int:
    """Say how much memory a job needs, by the rows that its footers claim; 0 where it has none."""
    from pyarrow import parquet

    n_rows = 0
    for path in traces:
        with contextlib.suppress(Exception):  # the pipeline will say what is wrong with it
            n_rows += int(parquet.read_metadata(path).num_rows)
    return n_rows * BYTES_PER_OP


def settled_stamp(job: FoundJob) -> str | None:
    """Give the stamp of a file, or None where it was written so recently that it may change and keep it."""
    if job.stamp is None or is_remote(job.location):
        return job.stamp
    return job.stamp if job.modified_s is not None and time.time() - job.modified_s > SETTLED_S else None


@contextlib.contextmanager
def _fetched(job: FoundJob) -> Iterator[_Fetched]:
    """Give the files of a job; those of an object store are copied here and deleted afterwards.

    The pieces of a folder are linked into one without anything else: what lies beside and below them are other jobs, or no
    trace.
    """
    if not is_remote(job.location) and not job.is_folder:
        path = Path(job.location)
        yield _Fetched(path, (path,), tuple(map(Path, job.beside)))
        return
    with tempfile.TemporaryDirectory(prefix="diagnose-") as place:
        if job.is_folder:
            folder = Path(place, Path(job.location).name or "job")
            folder.mkdir()
            traces = [_link(Path(job.location, name), folder) for name in list_pieces(job.location)]
            beside = [_link(Path(location), Path(place)) for location in job.beside]
            yield _Fetched(folder, tuple(traces), tuple(beside))
            return
        paths = []
        for location in (job.location, *job.beside):
            files, inside = open_remote(location)
            path = Path(place, inside.rsplit("/", 1)[-1])
            files.get_file(inside, str(path))
            paths.append(path)
        yield _Fetched(paths[0], (paths[0],), tuple(paths[1:]))


def _link(path: Path, folder: Path) -> Path:
    """Link a file into a folder under its name."""
    link = folder / path.name
    link.symlink_to(path)
    return link


@contextlib.contextmanager
def _limited(memory_bytes: int | None) -> Iterator[None]:
    """Let this process take that much more memory, as far as the operating system can see to it."""
    taken = _address_space()
    if memory_bytes is None or taken is None:
        yield
        return
    import resource

    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    limit = taken + memory_bytes + SLACK_BYTES
    resource.setrlimit(resource.RLIMIT_AS, (limit if hard == resource.RLIM_INFINITY else min(limit, hard), hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))


def _address_space() -> int | None:
    """Say how much address space this process has; None where only Linux would know."""
    try:
        return int(Path("/proc/self/statm").read_text().split()[0]) * os.sysconf("SC_PAGE_SIZE")
    except (OSError, ValueError):
        return None


def _follow_parent() -> None:
    """End this process when its parent has ended, however that happened: it must not stay behind and hold memory."""
    import multiprocessing
    from multiprocessing.connection import wait

    parent = multiprocessing.parent_process()
    if parent is not None:
        wait([parent.sentinel])
        os.kill(os.getpid(), signal.SIGKILL)
