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
    """One job to read, and what to make of it.

    Attributes
    ----------
    source : path, or open binary file that can seek
    name : str or None
        How errors call the input.
    location : str or None
        Where the job lies, which names a job whose metadata does not; the source itself where left out.
    meta : Path, mapping or None
        YAML file with job metadata, or what would stand in one.
    rules : Path or None
        Folder with rules of the user's.
    steps : ndarray of int64, shape (n,), or None
        Analyse only these steps.
    unit : str or None
        What the times of a trace are in: s, ms, us or ns. Of the column of a table also it/s, tokens/s, samples/s.
    column : str or None
        Column that tells time, where the job is a table of steps.
    memory_bytes : int or None
        Memory that the job may take; what the machine allows where nothing is said.
    min_speedup : float
        Report a cause when removing it makes the job at least this much faster.
    log : Path or None
        Training log of the run that the trace is of.
    telemetry : str, Path, Telemetry or None
        What the machines of the job measured of themselves: a file, a folder, the address of a Prometheus server, or what was read.
    shares_telemetry : bool
        It is of many jobs: where nothing in it is of this one a warning says so, and no error.
    progress : callable or None
        Called with the name of each stage as it begins.
    """

    source: str | Path | BinaryIO
    name: str | None = None
    meta: Path | Mapping[str, Any] | None = None
    steps: "Ints | None" = None
    rules: Path | None = None
    min_speedup: float = MIN_SPEEDUP
    log: Path | None = None
    telemetry: "str | Path | Telemetry | None" = None
    unit: str | None = None
    column: str | None = None
    memory_bytes: int | None = None
    location: str | None = None
    shares_telemetry: bool = False
    progress: Callable[[str], None] | None = None

    def report(self, stage: str) -> None:
        """Pass the name of a stage to whoever watches."""
        if self.progress is not None:
            self.progress(stage)
