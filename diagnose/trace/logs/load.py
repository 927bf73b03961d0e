"""Read training logs: alone where a trace is expected, or beside one.

Enters: files. Leaves: a `TrainingLog` of the format that tells most steps.
"""

import contextlib
import dataclasses
import functools
import math
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from diagnose.errors import TraceError, name_some
from diagnose.model.trace import Ints
from diagnose.trace.input_files import InputFiles, is_trace, list_input_files, name_in
from diagnose.trace.logs.builder import LogBuilder
from diagnose.trace.logs.catalogue import list_formats, name_formats
from diagnose.trace.logs.formats import any_console
from diagnose.trace.logs.lines import PIECE_BYTES, normalise, read_blocks, read_sample
from diagnose.trace.logs.log_format import FileFormat, LogFormat
from diagnose.trace.logs.scan import Scan, has_marks, has_opening
from diagnose.trace.logs.stamps import find_stamp
from diagnose.trace.streams import is_stream, read_stream, write_down

if TYPE_CHECKING:
    from diagnose.model.training_log import TrainingLog

#: The first piece of a sample that is looked at; each next one is twice as long.
FIRST_BYTES = 1 << 12
#: Files looked at before a folder is taken for something else.
FILES_ASKED = 16
#: Blocks between two reports of progress.
REPORT_BLOCKS = 64

#: Called with what is being read, a line at a time.
Report = Callable[[str], None]


def _ignore(line: str) -> None:
    """Ignore a line of progress."""


def is_log(inputs: InputFiles) -> bool:
    """Say whether one of the first files is a training log, by a sample of each; never raises."""
    return any(_is_log(inputs, file) for file in inputs.files[:FILES_ASKED])


def has_steps(file: Path) -> bool:
    """Say whether some line anywhere in a file tells a step; never raises."""
    scans = [Scan(found, _make_builder(found)) for found in list_formats() if isinstance(found, LogFormat)]
    try:
        for block in read_blocks(file, name=str(file)):
            for scan in scans:
                if not has_marks(scan.format, (block,)):
                    continue
                scan.take(block)
                if scan.log.n_steps:
                    return True
    except TraceError:
        return False
    for scan in scans:
        scan.end()
    return any(scan.log.n_steps for scan in scans) or any_console.has_lines(file)


def has_column(file: Path, column: str) -> bool:
    """Say whether a file is a table of steps with this column; never raises."""
    head = normalise(InputFiles(file, (file,)).head(file))
    return any(isinstance(found, FileFormat) and _recognises(found, head, column) for found in list_formats())


def load_log(
    inputs: InputFiles,
    *,
    name: str,
    report: Report = _ignore,
    steps: Ints | None = None,
    column: str | None = None,
    unit: str | None = None,
) -> "TrainingLog":
    """Read a training log: a file, or a folder with the logs of all nodes; where `steps` are given, only their lines.

    `column` is the one of a table that tells time, and `unit` what it is in: s, ms, us, ns, it/s, tokens/s or samples/s.

    Raises
    ------
    TraceError
        It has no line of a step, none of the steps asked for, or cannot be read.
    """
    log = _read_logs(inputs, name, report, (column, unit))
    if steps is None:
        return log
    wanted = np.isin(log.iteration, steps)
    if not wanted.any():
        low, high = int(log.iteration.min()), int(log.iteration.max())
        raise TraceError(f"none of the steps asked for is in the log; expected some of {low}..{high}", where=name)
    lines = ("iteration", "step_s", "batch_size", "attempt", "stamp_s", "tokens", "n_steps")
    kept = {key: getattr(log, key)[wanted] for key in lines}
    return dataclasses.replace(log, **kept, parts={part: seconds[wanted] for part, seconds in log.parts.items()})


def load_log_beside(path: Path, *, report: Report) -> "TrainingLog":
    """Read the training log that belongs to a trace, also from a pipe; raises as `load_log` does, and where it is missing."""
    name = str(path)
    if is_stream(path):  # <(kubectl logs pod): it can be read once
        with path.open("rb") as pipe, write_down(read_stream(pipe, name=name)) as kept:
            return load_log(InputFiles(kept, (kept,)), name=name, report=report)
    return load_log(list_input_files(path, name=name), name=name, report=report)


def _is_log(inputs: InputFiles, file: Path) -> bool:
    """Say whether a file is a log, by a sample of it."""
    head = normalise(inputs.head(file))
    if is_binary_log(inputs.head(file)):
        return True
    if not head or head.startswith(b"PAR1") or not _is_text(head):
        return False
    if any(isinstance(found, FileFormat) and found.recognise(head) for found in list_formats()):
        return True
    glance = _glance(file)
    return bool(glance.formats or glance.opened)


def _tells_steps(log_format: LogFormat | FileFormat, sample: Sequence[bytes]) -> bool:
    """Say whether a sample has steps of a format."""
    if not isinstance(log_format, LogFormat) or not has_marks(log_format, sample):
        return False
    scan = Scan(log_format, _make_builder(log_format))
    size = FIRST_BYTES
    for block in sample:
        at = 0
        while at < len(block):
            end = block.find(b"\n", at + size) + 1 or len(block)
            scan.take(block[at:end])
            if scan.log.n_steps:
                return True
            at, size = end, min(2 * size, PIECE_BYTES)
    scan.end()
    return scan.log.n_steps > 0


def _read_logs(inputs: InputFiles, name: str, report: Report, said: tuple[str | None, str | None]) -> "TrainingLog":
    """Read the files by the formats that samples show; only where these tell no step, by all others."""
    if not inputs.is_folder and is_trace(inputs.path):
        raise TraceError("is a trace (Parquet) and no training log; expected what the trainer printed", where=name)
    texts = [file for file in inputs.files if not inputs.is_folder or _is_text(inputs.head(file))]
    glances = {file: _glance(file) for file in texts or _list_binary(inputs, name)}
    inputs = dataclasses.replace(inputs, files=_order_files(glances))
    likely = [
        found
        for found in list_formats()
        if isinstance(found, FileFormat) or any(found.name in glance.formats for glance in glances.values())
    ]
    others = [found for found in list_formats() if found not in likely]
    for formats in (likely, others, [any_console.FORMAT]):
        logs = _read_with(formats, inputs, name, report, said)
        if logs:
            return _choose(logs)
    opened = next((f for f in list_formats() for glance in glances.values() if f.name in glance.opened), None)
    if opened is not None:
        raise TraceError(
            f"is a log of {opened.title} and has no line of a step; expected `{opened.example}`: give the log of the rank "
            "that prints it, or of all ranks",
            where=name,
        )
    raise TraceError(
        f"has no line that tells how long a step took; looked for those of {name_formats()}: give a log of one of these",
        where=name,
    )


def _list_binary(inputs: InputFiles, name: str) -> list[Path]:
    """List the files of a folder that are logs and no text: of one writer, as several tell the same steps again."""
    found = [file for file in inputs.files if is_binary_log(inputs.head(file))]
    folders = sorted({file.parent.relative_to(inputs.path).as_posix() for file in found})
    if len(folders) > 1:
        raise TraceError(
            f"has events of several runs, or writers, in {name_some(folders, 4)}; expected those of one: name its folder",
            where=name,
        )
    return found


def is_binary_log(head: bytes) -> bool:
    """Say whether a file is of a format that is no text, by its first bytes."""
    return any(isinstance(found, FileFormat) and found.is_binary and found.recognise(head) for found in list_formats())


@dataclasses.dataclass(frozen=True, slots=True)
class _Glance:
    """What a sample of a file shows: names of formats with steps, and of those that it is of in any case; its first stamp."""

    formats: frozenset[str]
    opened: frozenset[str]
    began_s: float


def _glance(file: Path) -> _Glance:
    """Look at a sample of a file: once, though it is asked first what the file is, and then how to read it."""
    with contextlib.suppress(OSError):
        stat = file.stat()
        return _glance_once(file, stat.st_size, stat.st_mtime_ns)
    return _Glance(frozenset(), frozenset(), math.nan)


@functools.lru_cache(maxsize=1024)
def _glance_once(file: Path, size: int, mtime_ns: int) -> _Glance:  # noqa: ARG001 - a file that grew is another one
    sample = read_sample(file)
    return _Glance(
        formats=frozenset(found.name for found in list_formats() if _tells_steps(found, sample)),
        opened=frozenset(found.name for found in list_formats() if has_opening(found, sample)),
        began_s=find_stamp(b"".join(sample[:1]), within=PIECE_BYTES),
    )


def _order_files(glances: dict[Path, _Glance]) -> tuple[Path, ...]:
    """Put files in the order in which they were begun, where all say when: `slurm-9.out` is before `slurm-10.out`."""
    if any(math.isnan(glance.began_s) for glance in glances.values()):
        return tuple(glances)
    return tuple(sorted(glances, key=lambda file: glances[file].began_s))


def _is_text(head: bytes) -> bool:
    """Say whether a file can be a log, by its first bytes: what is beside the log of a job may be weights."""
    return b"\0" not in normalise(head)[:1024]


def _read_with(
    formats: Iterable[LogFormat | FileFormat],
    inputs: InputFiles,
    name: str,
    report: Report,
    said: tuple[str | None, str | None],
) -> list["TrainingLog"]:
    """Read the files by some formats; give the logs of those that tell steps, the one that tells most first."""
    builders = [(found, _make_builder(found)) for found in formats]
    for _, log in builders:
        log.column, log.unit = said
    scans = [Scan(found, log) for found, log in builders if isinstance(found, LogFormat)]
    refused: list[TraceError] = []
    for file in inputs.files:
        where = name_in(inputs.path, file, name)
        head = normalise(inputs.head(file))
        for _, log in builders:
            log.file = where
        readers = [
            (found, log)
            for found, log in builders
            if isinstance(found, FileFormat) and _recognises(found, head, said[0])
        ]
        for found, log in readers:
            try:
                found.read(file, log, where)
            except TraceError as error:
                if not inputs.is_folder:  # beside a log may lie what tells no time
                    raise
                refused += [error] if found.is_binary else []
        if readers or not scans:
            continue
        for n, block in enumerate(read_blocks(file, name=where)):
            if not n % REPORT_BLOCKS:
                report(f"{file.name}, MiB {n:,}")
            for scan in scans:
                scan.take(block)
    for scan in scans:
        scan.end()
    logs = [log.finish(name) for _, log in builders if log.n_steps]
    if refused and not any(logs):
        raise refused[0]
    return sorted((log for log in logs if log is not None), key=lambda log: -len(log.iteration))


def _recognises(found: FileFormat, head: bytes, column: str | None) -> bool:
    """Say whether a file is of a format, by its first bytes, and by a column that it is said to have."""
    return found.recognise(head) or (
        column is not None and found.has_column is not None and found.has_column(head, column)
    )


def _choose(logs: Sequence["TrainingLog"]) -> "TrainingLog":
    """Give the first log, and let it say what was passed over for it."""
    first, *others = logs
    over = tuple(
        f"{len(log.iteration):,} {'step lines' if len(log.iteration) > 1 else 'step line'} of {log.format} in it "
        f"{'are' if len(log.iteration) > 1 else 'is'} passed over: {first.format} tells {len(first.iteration):,}"
        for log in others
    )
    return dataclasses.replace(first, notes=(*over, *first.notes))


def _make_builder(log_format: LogFormat | FileFormat) -> LogBuilder:
    """Make an empty builder for a format."""
    return LogBuilder(log_format.title, log_format.reads, is_mean=log_format.is_mean)
