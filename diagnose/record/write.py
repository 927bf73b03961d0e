"""Keep the rows of one rank and write them as Parquet, off the training's thread.

Enters: the rows of each recorded step. Leaves: one file that is always whole.
"""

import dataclasses
import json
import os
from array import array
from pathlib import Path
from typing import Any

from diagnose.record.clock import Window
from diagnose.record.log import StepLog
from diagnose.record.place import Place
from diagnose.record.rows import Row


@dataclasses.dataclass(slots=True)
class Kept:
    """All rows of one rank so far, a list a column."""

    windows: list[Window] = dataclasses.field(default_factory=list)
    optype: list[str] = dataclasses.field(default_factory=list)
    on_device: list[bool] = dataclasses.field(default_factory=list)
    step: array = dataclasses.field(default_factory=lambda: array("q"))  # type: ignore[type-arg]
    start_ns: array = dataclasses.field(default_factory=lambda: array("q"))  # type: ignore[type-arg]
    duration_ns: array = dataclasses.field(default_factory=lambda: array("q"))  # type: ignore[type-arg]
    microbatch: array = dataclasses.field(default_factory=lambda: array("q"))  # type: ignore[type-arg]
    virtual: array = dataclasses.field(default_factory=lambda: array("q"))  # type: ignore[type-arg]
    lengths: list[tuple[float, float, list[int] | None] | None] = dataclasses.field(default_factory=list)
    n_left_out: int = 0

    def add(self, step: StepLog, rows: list[Row]) -> None:
        """Add the rows of one step."""
        for row in rows:
            self.windows.append(step.window)
            self.optype.append(row.optype)
            self.on_device.append(row.on_device)
            self.step.append(step.number)
            self.start_ns.append(row.start_ns)
            self.duration_ns.append(row.duration_ns)
            self.microbatch.append(row.microbatch)
            self.virtual.append(row.virtual)
            self.lengths.append(step.lengths.get(row.microbatch) if row.microbatch >= 0 else None)
        self.n_left_out += step.n_left_out

    def __len__(self) -> int:
        return len(self.optype)


def write_rows(folder: Path, kept: Kept, place: Place, metadata: dict[str, Any]) -> Path:
    """Write all rows so far beside the file and put it in its place.

    Parameters
    ----------
    folder : Path
    kept : Kept
    place : Place
    metadata : dict
        What the trace's metadata says beside the sizes of the job.

    Returns
    -------
    Path
        `rank-00003.parquet`.
    """
    import pyarrow.parquet as pq

    path = folder / f"rank-{place.rank:05}.parquet"
    beside = folder / f".{path.name}.{os.getpid()}"
    pq.write_table(_table(kept, place, metadata), beside)
    beside.replace(path)
    return path


def _table(kept: Kept, place: Place, metadata: dict[str, Any]) -> Any:
    """Lay the rows out in the columns of the trace format."""
    import numpy as np
    import pyarrow as pa

    n_rows = len(kept)
    relative = zip(kept.windows, kept.on_device, kept.start_ns, strict=True)
    unix_ns = np.array([window.unix_ns((on_device, ns)) for window, on_device, ns in relative], dtype=np.int64)
    start_s = unix_ns / 1e9
    virtual = np.array(kept.virtual, dtype=np.int64)
    chunk = np.where(virtual >= 0, virtual // place.pp_size, -1)
    columns: dict[str, Any] = {
        "step": pa.array(np.array(kept.step, dtype=np.int64)),
        "dp_rank": _constant(place.dp, n_rows),
        "stage": _constant(place.stage, n_rows),
        "optype": pa.array(kept.optype).dictionary_encode(),
        "start_ts": pa.array(start_s),
        "duration": pa.array(np.array(kept.duration_ns, dtype=np.int64) / 1e9),
        "mb_id": pa.array(np.array(kept.microbatch, dtype=np.int64)).cast(pa.int32()),
        "mc": pa.array(chunk).cast(pa.int32()),
        "gmc": pa.array(virtual).cast(pa.int32()),
        "rank": _constant(place.rank, n_rows),
        "host": pa.array([place.host] * n_rows, type=pa.string()).dictionary_encode(),
    }
    for name, size in (("tp_rank", place.tp_size), ("cp_rank", place.cp_size)):
        if size > 1:
            columns[name] = _constant(place.tp if name == "tp_rank" else place.cp, n_rows)
    if any(kept.lengths):
        columns["tokens"] = pa.array([None if found is None else found[0] for found in kept.lengths], pa.float64())
        columns["tokens_sq"] = pa.array([None if found is None else found[1] for found in kept.lengths], pa.float64())
        documents = [None if found is None else found[2] for found in kept.lengths]
        columns["doc_lengths"] = pa.array(documents, pa.list_(pa.int64()))
    said = {
        "diagnose.job": metadata | place.metadata(),
        "diagnose.recorder": {"collectives_within_computes": kept.n_left_out},  # of this rank alone
    }
    footer = {key: json.dumps(value, sort_keys=True) for key, value in said.items()}
    return pa.table(columns).replace_schema_metadata(footer)


def _constant(value: int, n_rows: int) -> Any:
    """Make a column of one value."""
    import numpy as np
    import pyarrow as pa

    return pa.array(np.full(n_rows, value, dtype=np.int32))
