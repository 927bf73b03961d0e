"""Diagnose a job that has no operations: a training log alone, or dumps of collectives alone.

Enters: what the pipeline is asked. Leaves: a `Diagnosis`, or nothing where the job is a trace. It is asked before the pipeline is
imported: a log of 100 MB with few lines of steps is read in the time that this takes.
"""

import contextlib
import dataclasses
from collections.abc import Iterator
from pathlib import Path

from diagnose.errors import TraceError, UsageError
from diagnose.model.diagnosis import Diagnosis
from diagnose.model.job_names import locate
from diagnose.model.request import Request
from diagnose.trace.collectives.recognise import Dumps, find_dumps
from diagnose.trace.find_log import are_traces_among, find_log, find_log_among
from diagnose.trace.input_files import PARQUET, list_input_files
from diagnose.trace.streams import is_stream, read_pipe, write_down
from diagnose.trace.zips import open_zip


@contextlib.contextmanager
def unpacked(request: Request) -> Iterator[Request]:
    """Ask for the job that lies in a zip, or was piped in and is no Parquet, as files, until the end."""
    name = request.name or (str(request.source) if isinstance(request.source, (str, Path)) else "standard input")
    with _kept(request, name) as kept, open_zip(kept.source, name=name) as found:
        if found is None:
            yield kept
        else:
            location = found.location if kept is request else kept.location
            yield dataclasses.replace(kept, source=found.path, name=name, location=location)


@contextlib.contextmanager
def _kept(request: Request, name: str) -> Iterator[Request]:
    """Ask for a file in place of a stream that is no Parquet; what is a path already is asked for as it is."""
    source = request.source
    if isinstance(source, (str, Path)):
        if not is_stream(Path(source)):
            yield request
            return
        source = read_pipe(Path(source), name=name)  # <(zcat train.log.gz): it can be read once
        request = dataclasses.replace(request, source=source, name=name, location=request.location or locate(name))
    begin = source.tell()
    is_parquet = source.read(len(PARQUET)) == PARQUET
    source.seek(begin)
    if is_parquet:
        yield request
        return
    with write_down(source) as path:
        yield dataclasses.replace(request, source=path, name=name, location=request.location or name)


def diagnose_alone(request: Request) -> Diagnosis | None:
    """Diagnose a log or dumps; None where the job is something else.

    Raises
    ------
    TraceError
        A log or a dump cannot be read.
    RuleError
        A rule file is wrong.
    UsageError
        A column is asked for, of what is no table.
    """
    dumps = find_dumps(request.source)
    if dumps is not None and are_traces_among(dumps):
        return None  # the pipeline joins them
    log = find_log(request.source, column=request.column) if request.log is None and dumps is None else None
    if log is not None:
        from diagnose.log_alone import diagnose_log

        return _tell_unused(diagnose_log(log, request), request)
    if request.column is not None or "/" in (request.unit or ""):
        option = f"--column {request.column}" if request.column is not None else f"--unit {request.unit}"
        raise UsageError(
            f"{option}: {request.name or request.source} is no table of steps that has it; it is for CSV and JSON Lines"
        )
    if dumps is None:
        return None
    from diagnose.collectives_alone import diagnose_collectives

    return _tell_unused(_read_log(diagnose_collectives(dumps, request), dumps, request), request)


def _read_log(diagnosis: Diagnosis, dumps: Dumps, request: Request) -> Diagnosis:
    """Join the training log that lies beside dumps, or that somebody gives: it knows steps, and when they stopped."""
    if request.log is not None:
        log = list_input_files(request.log, name=str(request.log))
    else:
        found = find_log_among(dumps)
        if found is None:
            return diagnosis
        log = found
    from diagnose.judge.collectives_beside import join_collectives
    from diagnose.judges import read_rules
    from diagnose.log_alone import diagnose_log

    try:
        of_log = diagnose_log(log, dataclasses.replace(request, meta=None))
    except TraceError as error:
        if request.log is not None:
            raise
        warning = f"a training log of the folder is not used: {error}"
        return dataclasses.replace(diagnosis, warnings=(*diagnosis.warnings, warning))
    return join_collectives(of_log, diagnosis, read_rules(request.rules).severities)


def _tell_unused(diagnosis: Diagnosis, request: Request) -> Diagnosis:
    """Say of telemetry that somebody gives for what has no operations that it is of no use here, and where it is."""
    if request.telemetry is None or request.shares_telemetry:
        return diagnosis
    warning = (
        "telemetry is not used: it says why a machine is slow that a trace names, and this names none; `diagnose machines` "
        "finds the machine that differs from its peers by telemetry alone (--at, --minutes: when steps were slow)"
    )
    return dataclasses.replace(diagnosis, warnings=(*diagnosis.warnings, warning))
