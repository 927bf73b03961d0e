"""Read training logs as the command does, without progress."""

from pathlib import Path

from diagnose.model.training_log import TrainingLog
from diagnose.trace.find_log import find_log
from diagnose.trace.logs.load import load_log
from tests.trace.producers.recordings import say_nothing


def read_log(path: Path, *, column: str | None = None, unit: str | None = None) -> TrainingLog:
    """Read a file or a folder as people give it."""
    inputs = find_log(path, column=column)
    assert inputs is not None
    return load_log(inputs, name=path.name, report=say_nothing, column=column, unit=unit)


def read_content(folder: Path, content: bytes, name: str = "job.out", **asked: str) -> TrainingLog:
    """Write a file and read it."""
    path = folder / name
    path.write_bytes(content)
    return read_log(path, **asked)
