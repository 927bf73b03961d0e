"""Tell a training log from everything that holds operations.

Enters: a path. Leaves: its files, where they are a log.
"""

from pathlib import Path
from typing import BinaryIO

from diagnose.errors import TraceError
from diagnose.trace.input_files import InputFiles, list_input_files
from diagnose.trace.parquet import is_trace


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
