"""From whatever holds one job to the rows of it: a trace, a folder of traces, or files of another producer.

Enters: a path or an open file. Leaves: `Rows`, with the account of what another producer's files could not bring along.
The content of a file, not its name, decides what it is.

In all of `diagnose.trace`, `name` (of one file: `where`) is how errors call the input, `report` is told what is being read, a line
at a time, and `warnings` is a list that is added to.
"""

import dataclasses
import functools
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, BinaryIO

from diagnose.errors import TraceError
from diagnose.model.memory import default_memory
from diagnose.model.trace import Ints
from diagnose.trace.input_files import PARQUET, InputFiles, is_trace, list_input_files
from diagnose.trace.parquet import read_parquet
from diagnose.trace.rows import Rows
from diagnose.trace.sample import choose_steps
from diagnose.trace.streams import is_stream, read_pipe, write_down

#: Files that describe a job and hold nothing of its operations.
DESCRIPTIONS = (".yaml", ".yml")
#: Files that lie beside traces: what a diagnosis leaves, and what tells a recorder to pause.
BESIDE = ("diagnosis.html", "diagnosis.json", "pause")

#: Chooses the steps of some files that fit into memory, and reads them.
_Choose = Callable[[Sequence[Any], Callable[[Ints | None], Rows]], Rows]


def read_rows(
    source: str | Path | BinaryIO,
    *,
    name: str,
    report: Callable[[str], None] | None = None,
    memory_bytes: int | None = None,
    steps: Ints | None = None,
) -> Rows:
    """Read the operations of one job: a trace, a folder with one trace a rank, or what a known producer wrote.

    Of traces with more rows than `memory_bytes` allow (by default what the machine does) whole steps are read, evenly spread, or
    some of `steps` where they are given; a warning says so.

    Raises
    ------
    TraceError
        Nobody knows what it is, or it cannot be read as what it is.
    """
    report = report or _ignore
    choose = functools.partial(_choose_steps, memory_bytes=memory_bytes or default_memory(), steps=steps, name=name)
    try:
        return _read_source(source, name, report, choose)
    except OSError as error:  # a link into a folder that may not be entered, a name that is too long, a disk that fails
        inside = f"{error.filename}: " if error.filename not in (None, source, str(source)) else ""
        said = error.strerror or error
        raise TraceError(f"{inside}cannot be read: {said}; expected a file that you may read", where=name) from None


def _read_source(source: str | Path | BinaryIO, name: str, report: Callable[[str], None], choose: _Choose) -> Rows:
    """Read what a path leads to, or an open file."""
    if not isinstance(source, (str, Path)):
        return _read_stream(source, name, report, choose)
    path = Path(source)
    if is_stream(path):  # it has no size and cannot be read twice
        return _read_stream(read_pipe(path, name=name), name, report, choose)
    if not path.exists() or (path.is_file() and is_trace(path)):
        return choose([path], lambda picked: read_parquet(path, name=name, steps=picked))
    return _read_inputs(list_input_files(path, name=name), name, report, choose)


def _choose_steps(
    sources: Sequence[Any],
    read: Callable[[Ints | None], Rows],
    *,
    memory_bytes: int,
    steps: Ints | None,
    name: str,
) -> Rows:
    """Read the steps of some files that fit into memory."""
    sample = choose_steps(sources, memory_bytes, steps, name=name)
    if sample is None:
        return read(None)
    rows = read(sample.steps)
    if len(sample.steps) == sample.n_steps:  # all that were asked for
        return rows
    return dataclasses.replace(rows, recording_warnings=(*rows.recording_warnings, sample.describe()))


def _read_stream(source: BinaryIO, name: str, report: Callable[[str], None], choose: _Choose) -> Rows:
    """Read what was piped in: a trace, or the one file of another producer."""
    first = source.tell()
    head = source.read(len(PARQUET))
    source.seek(first)
    if head == PARQUET:
        return choose([source], lambda picked: read_parquet(source, name=name, steps=picked))
    with write_down(source) as path:  # producers look at files
        return _read_inputs(list_input_files(path, name=name), name, report, choose)


def _read_inputs(inputs: InputFiles, name: str, report: Callable[[str], None], choose: _Choose) -> Rows:
    """Read files of another producer, else a folder with one trace a rank."""
    # A job in one Parquet file is answered without any of these.
    from diagnose.trace.collectives.recognise import pick_dumps
    from diagnose.trace.gather import gather_traces
    from diagnose.trace.logs_beside import is_log_beside
    from diagnose.trace.producers import training_log
    from diagnose.trace.producers.catalogue import find_producer, list_producers, read_with
    from diagnose.trace.recorded import make_rows
    from diagnose.trace.strangers import describe_strangers, refuse_strangers
    from diagnose.trace.zips import is_tar

    # What a communication library left beside traces has no operations to add.
    dumps = pick_dumps(inputs) if inputs.is_folder else None
    passed = frozenset(inputs.files if dumps is None else dumps.others)
    traces = tuple(file for file in inputs.files if is_trace(file))
    others = tuple(
        file
        for file in inputs.files
        if file not in set(traces)
        and file in passed
        and file.suffix.lower() not in DESCRIPTIONS
        and not (traces and (file.name in BESIDE or is_log_beside(file)))
    )
    loose = tuple(file for file in others if not is_tar(file))  # a tar of text looks like text
    producer = find_producer(InputFiles(inputs.path, loose)) if loose else None
    if producer is not None and not (
        traces and producer is training_log
    ):  # a log beside traces has no operations to add
        rows = make_rows(read_with(producer, InputFiles(inputs.path, loose), name=name, report=report), name=name)
        if traces:
            beside = f"{len(traces)} Parquet files beside those of {producer.NAME} are left out"
            rows = dataclasses.replace(rows, recording_warnings=(*rows.recording_warnings, beside))
        return rows
    if traces:
        beside = describe_strangers(inputs, others)
        read = functools.partial(
            gather_traces, inputs.path, traces, name=name, report=report, n_others=len(others), beside=beside
        )
        return choose(traces, lambda picked: read(steps=picked))
    locked = next((file for file in inputs.files if not os.access(file, os.R_OK)), None)
    if locked is not None:
        inside = f"{locked.relative_to(inputs.path)}: " if locked != inputs.path else ""
        raise TraceError(f"{inside}cannot be read: Permission denied; expected a file that you may read", where=name)
    unread = (
        others if dumps is None else tuple(file for file in inputs.files if file.suffix.lower() not in DESCRIPTIONS)
    )
    refused = refuse_strangers(InputFiles(inputs.path, unread), name=name) if unread else None
    if refused is not None:
        raise refused
    known = ", ".join(producer.NAME for producer in list_producers()) or "none"
    raise TraceError(
        f"is neither Parquet nor what a known producer writes ({known}); expected a trace, a folder with one trace a rank, or "
        "the files of one job: `diagnose convert --list` shows what can be read",
        where=name,
    )


def _ignore(line: str) -> None:
    """Ignore a line of progress."""
