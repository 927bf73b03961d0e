"""Tell a training log from everything that holds operations.

Enters: a path. Leaves: its files, where they are a log.
"""

from pathlib import Path
from typing import BinaryIO

from diagnose.errors import TraceError
from diagnose.trace.collectives.recognise import Dumps
from diagnose.trace.input_files import InputFiles, is_trace, list_input_files


def find_log(source: str | Path | BinaryIO, *, column: str | None = None) -> InputFiles | None:
    """Say whether a path is a training log and nothing that holds operations; None where it is something else.

    A table of steps is one where its names tell it, or where it has the `column` that somebody says.

    Never raises: what cannot be read is left to the reader of traces, which says why.
    """
    if not isinstance(source, (str, Path)):
        return None
    try:
        if Path(source).is_file() and is_trace(Path(source)):
            return None
        from diagnose.trace.logs.load import has_column, has_steps
        from diagnose.trace.producers import training_log
        from diagnose.trace.producers.catalogue import find_producer

        inputs = list_input_files(Path(source), name=str(source))
        # A folder may hold both: operations say more than the log beside them.
        if any(is_trace(file) for file in inputs.files):
            return None
        producer = find_producer(inputs)
        if column is not None and producer is None and not inputs.is_folder and has_column(inputs.path, column):
            return inputs
        is_found = producer is training_log or (producer is None and not inputs.is_folder and has_steps(inputs.path))
    except (TraceError, OSError):
        return None
    return inputs if is_found else None


def find_log_among(dumps: Dumps) -> InputFiles | None:
    """Find the training logs that lie beside dumps of collectives; None where there are none."""
    from diagnose.trace.logs_beside import FILES_ASKED, is_log_beside, may_be_console

    asked = [file for file in dumps.others if may_be_console(file)][:FILES_ASKED]
    logs = tuple(file for file in asked if is_log_beside(file))
    return InputFiles(dumps.inputs.path, logs) if logs else None


def are_traces_among(dumps: Dumps) -> bool:
    """Say whether what lies beside dumps of collectives holds operations, which say more than they."""
    from diagnose.trace.producers import training_log
    from diagnose.trace.producers.catalogue import find_producer

    if not dumps.others:
        return False
    producer = find_producer(InputFiles(dumps.inputs.path, dumps.others))
    return producer not in (None, training_log) or any(is_trace(file) for file in dumps.others)
