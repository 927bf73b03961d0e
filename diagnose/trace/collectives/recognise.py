"""Recognise what a communication library left, alone where a trace is expected, and read it.

Enters: a path. Leaves: `Collectives`.
"""

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO, Literal

from diagnose.errors import TraceError
from diagnose.trace.collectives.flight_recorder import is_dump
from diagnose.trace.collectives.inspector import is_inspector
from diagnose.trace.input_files import InputFiles, list_input_files

if TYPE_CHECKING:
    from diagnose.model.collectives import Collectives

#: Files that describe a job, or that lie beside dumps, and say nothing of operations.
_BESIDE = (".yaml", ".yml", ".md")
_BESIDE_NAMES = ("diagnosis.html", "diagnosis.json")


@dataclasses.dataclass(frozen=True, slots=True)
class Dumps:
    """Files of one job that a communication library left."""

    inputs: InputFiles
    files: tuple[Path, ...]
    kind: Literal["flight-recorder", "inspector"]


def name_dump(inputs: InputFiles, file: Path) -> Literal["flight-recorder", "inspector"] | None:
    """Say what kind of dump a file is; None where it is none."""
    head = inputs.head(file)
    return "flight-recorder" if is_dump(head) else "inspector" if is_inspector(head) else None


def find_dumps(source: str | Path | BinaryIO) -> Dumps | None:
    """Say whether a path holds dumps of a communication library, and nothing else that tells of a job; None where it does not.

    Never raises: what cannot be read is left to the reader of traces, which says why.
    """
    if not isinstance(source, (str, Path)):
        return None
    try:
        inputs = list_input_files(Path(source), name=str(source))
    except (TraceError, OSError):
        return None
    files = tuple(
        file for file in inputs.files if file.suffix.lower() not in _BESIDE and file.name not in _BESIDE_NAMES
    )
    if not files or name_dump(inputs, files[0]) is None:  # a folder of anything else costs one look
        return None
    kinds = {file: name_dump(inputs, file) for file in files}
    known = [kind for kind in kinds.values() if kind is not None]
    kind = max(set(known), key=lambda each: (known.count(each), each))
    picked = tuple(file for file, found in kinds.items() if found == kind)
    return Dumps(inputs, picked, kind) if 2 * len(picked) > len(files) else None


def load_collectives(dumps: Dumps, *, name: str, report: Callable[[str], None]) -> "Collectives":
    """Read the dumps of one job.

    Raises
    ------
    TraceError
        They are damaged, ask to run code, or hold no operation.
    """
    from diagnose.trace.collectives.flight_recorder import read_flight_recorder
    from diagnose.trace.collectives.inspector import read_inspector

    read = read_flight_recorder if dumps.kind == "flight-recorder" else read_inspector
    return read(dumps.inputs, dumps.files, name=name, report=report)
