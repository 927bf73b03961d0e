"""Recognise what a communication library left, alone where a trace is expected, and read it.

Enters: a path. Leaves: `Collectives`.
"""

import dataclasses
import functools
import re
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
#: Kinds of names of which a file is looked at.
KINDS_ASKED = 256
_NUMBER = re.compile(r"\d+")


@dataclasses.dataclass(frozen=True, slots=True)
class Dumps:
    """Files of one job that a communication library left, all of one kind.

    `others` lie beside them and tell of the job, or of nothing; `second` are those of the other kind, where a job has both.
    """

    inputs: InputFiles
    files: tuple[Path, ...]
    kind: Literal["flight-recorder", "inspector"]
    others: tuple[Path, ...] = ()
    second: "Dumps | None" = None


def name_dump(inputs: InputFiles, file: Path) -> Literal["flight-recorder", "inspector"] | None:
    """Say what kind of dump a file is; None where it is none."""
    head = inputs.head(file)
    return "flight-recorder" if is_dump(head) else "inspector" if is_inspector(head) else None


def find_dumps(source: str | Path | BinaryIO) -> Dumps | None:
    """Find the dumps of a communication library, alone or among the other files of a job; None where there are none.

    Never raises: what cannot be read is left to the reader of traces, which says why.
    """
    if not isinstance(source, (str, Path)):
        return None
    try:
        inputs = list_input_files(Path(source), name=str(source))
    except (TraceError, OSError):
        return None
    return pick_dumps(inputs)


@functools.lru_cache(maxsize=4)
def pick_dumps(inputs: InputFiles) -> Dumps | None:
    """Pick the dumps among the files of a job; None where there are none.

    Of files that are called alike but for their numbers, as those of all ranks are, one is looked at before the others. A job is
    asked for them up to three times: what it is, which of its files hold operations, and what to join to these.
    """
    alike: dict[tuple[Path, str], list[Path]] = {}
    for file in inputs.files:
        if file.suffix.lower() not in _BESIDE and file.name not in _BESIDE_NAMES:
            alike.setdefault((file.parent, _NUMBER.sub("#", file.name)), []).append(file)
    kinds: dict[Path, Literal["flight-recorder", "inspector"] | None] = {}
    for files in list(alike.values())[:KINDS_ASKED]:
        if name_dump(inputs, files[0]) is not None:
            kinds |= {file: name_dump(inputs, file) for file in files}
    known = [kind for kind in kinds.values() if kind is not None]
    if not known:
        return None
    dumps = {file for file, found in kinds.items() if found is not None}
    others = tuple(file for files in alike.values() for file in files if file not in dumps)
    picked: Dumps | None = None
    for kind in sorted(set(known), key=lambda each: (known.count(each), each)):  # those of which there are most at last
        picked = Dumps(inputs, tuple(file for file, found in kinds.items() if found == kind), kind, others, picked)
    return picked


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
