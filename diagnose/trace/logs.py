"""Training logs: alone where a trace is expected, or beside one.

Enters: a path. Leaves: a `TrainingLog`.
"""

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

import numpy as np

from diagnose.errors import TraceError
from diagnose.model.trace import Ints
from diagnose.trace.parquet import is_trace
from diagnose.trace.producers.input_files import InputFiles, list_input_files

if TYPE_CHECKING:
    from diagnose.model.training_log import TrainingLog


def find_log(source: str | Path | BinaryIO) -> InputFiles | None:
    """Say whether a path is a training log and nothing that holds operations; None where it is something else.

    Never raises: what cannot be read is left to the reader of traces, which says why.
    """
    if not isinstance(source, (str, Path)):
        return None
    try:
        if Path(source).is_file() and is_trace(Path(source)):
            return None
        from diagnose.trace.producers import megatron_log
        from diagnose.trace.producers.catalogue import find_producer

        inputs = list_input_files(Path(source), name=str(source))
        # A folder may hold both: operations say more than the log beside them.
        is_log = megatron_log.recognise(inputs) and find_producer(inputs) is megatron_log
        is_log = is_log and not any(is_trace(file) for file in inputs.files)
    except (TraceError, OSError):
        return None
    return inputs if is_log else None


def load_log(
    inputs: InputFiles, *, name: str, report: Callable[[str], None], steps: Ints | None = None
) -> "TrainingLog":
    """Read a training log: a file, or a folder with the logs of all nodes; where `steps` are given, only their lines.

    Raises
    ------
    TraceError
        It has no line of an iteration, none of the steps asked for, or cannot be read.
    """
    from diagnose.trace.producers import megatron_log

    log = megatron_log.read_log(inputs, name=name, report=report)
    if steps is None:
        return log
    wanted = np.isin(log.iteration, steps)
    if not wanted.any():
        low, high = int(log.iteration.min()), int(log.iteration.max())
        raise TraceError(f"none of the steps asked for is in the log; expected some of {low}..{high}", where=name)
    lines = ("iteration", "step_s", "batch_size", "attempt", "stamp_s", "tokens")
    kept = {key: getattr(log, key)[wanted] for key in lines}
    return dataclasses.replace(log, **kept, parts={part: seconds[wanted] for part, seconds in log.parts.items()})


def load_log_beside(path: Path, *, report: Callable[[str], None]) -> "TrainingLog":
    """Read the training log that belongs to a trace; raises as `load_log` does, and where it is missing."""
    name = str(path)
    return load_log(list_input_files(path, name=name), name=name, report=report)
