"""What is asked about one job."""

import dataclasses
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, Protocol, TypeAlias

if TYPE_CHECKING:
    import os

    import pandas as pd

    from diagnose.model.telemetry import Telemetry
    from diagnose.model.trace import Ints


class ArrowTable(Protocol):
    """A table that hands out its columns as Arrow does: of pyarrow, polars, DuckDB, and pandas from 2.2 on."""

    def __arrow_c_stream__(self, requested_schema: object | None = None) -> object:
        """Give the columns as a capsule."""


#: What a program may hand over as a job.
Source: TypeAlias = "str | os.PathLike[str] | bytes | bytearray | memoryview | BinaryIO | pd.DataFrame | ArrowTable"

#: What is worth a report where nobody says otherwise: a job that gets at least 2% faster.
MIN_SPEEDUP = 1.02


@dataclasses.dataclass(frozen=True, slots=True)
class Request:
    """One job to read, and what to make of it."""

    #: A path, or an open binary file that can seek.
    source: str | Path | BinaryIO
    #: How errors call the input.
    name: str | None = None
    #: YAML file with job metadata, or what would stand in one.
    meta: Path | Mapping[str, Any] | None = None
    #: Shape (n,): analyse only these steps.
    steps: "Ints | None" = None
    #: Folder with rules of the user's.
    rules: Path | None = None
    #: Report a cause when removing it makes the job at least this much faster.
    min_speedup: float = MIN_SPEEDUP
    #: Training log of the run that the trace is of.
    log: Path | None = None
    #: What the machines of the job measured of themselves: a file, a folder, the address of a Prometheus server, or what was
    #: read.
    telemetry: "str | Path | Telemetry | None" = None
    #: What the times of a trace are in: s, ms, us or ns. Of the column of a table also it/s, tokens/s, samples/s.
    unit: str | None = None
    #: Column that tells time, where the job is a table of steps.
    column: str | None = None
    #: Memory that the job may take; what the machine allows where nothing is said.
    memory_bytes: int | None = None
    #: Where the job lies, which names a job whose metadata does not; the source itself where left out.
    location: str | None = None
    #: It is of many jobs: where nothing in it is of this one a warning says so, and no error.
    shares_telemetry: bool = False
    #: Called with the name of each stage as it begins.
    progress: Callable[[str], None] | None = None

    def report(self, stage: str) -> None:
        """Pass the name of a stage to whoever watches."""
        if self.progress is not None:
            self.progress(stage)
