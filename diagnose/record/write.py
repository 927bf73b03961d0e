"""Keep the rows of one rank and write them as Parquet, off the training's thread.

Enters: the rows of each recorded step. Leaves: one file that is always whole.
"""

import dataclasses
import json
from array import array
from pathlib import Path
from typing import Any

from diagnose.files import appearing
from diagnose.record.clock import Window
from diagnose.record.log import StepLog
from diagnose.record.parallel_state import ParallelState
from diagnose.record.rows import OperationRow

#: Rows of a group: who reads the file again reads the groups that have new rows, and no others.
GROUP_ROWS = 1 << 15


@dataclasses.dataclass(slots=True)
class RecordedRows:
    """All rows of one rank so far, an array a column: millions of objects would slow down the training's collections."""

    #: Each once; `window` says which is a row's.
    windows: list[Window] = dataclasses.field(default_factory=list)
    #: Each once; `optype` says which is a row's.
    types: list[str] = dataclasses.field(default_factory=list)
    window: array = dataclasses.field(default_factory=lambda: array("i"))  # type: ignore[type-arg]
    optype: array = dataclasses.field(default_factory=lambda: array("b"))  # type: ignore[type-arg]
    on_device: array = dataclasses.field(default_factory=lambda: array("b"))  # type: ignore[type-arg]
    step: array = dataclasses.field(default_factory=lambda: array("q"))  # type: ignore[type-arg]
    start_ns: array = dataclasses.field(default_factory=lambda: array("q"))  # type: ignore[type-arg]
    duration_ns: array = dataclasses.field(default_factory=lambda: array("q"))  # type: ignore[type-arg]
    microbatch: array = dataclasses.field(default_factory=lambda: array("i"))  # type: ignore[type-arg]
    virtual: array = dataclasses.field(default_factory=lambda: array("i"))  # type: ignore[type-arg]
    #: Which of `tokens` is a row's, -1 for none.
    loads: array = dataclasses.field(default_factory=lambda: array("q"))  # type: ignore[type-arg]
    tokens: array = dataclasses.field(default_factory=lambda: array("d"))  # type: ignore[type-arg]
    tokens_sq: array = dataclasses.field(default_factory=lambda: array("d"))  # type: ignore[type-arg]
    has_documents: array = dataclasses.field(default_factory=lambda: array("b"))  # type: ignore[type-arg]
    documents: array = dataclasses.field(default_factory=lambda: array("q"))  # type: ignore[type-arg]
    #: Where in `documents` those of each of `tokens` end; `has_documents` is 0 where nothing is known of them.
    document_ends: array = dataclasses.field(default_factory=lambda: array("q"))  # type: ignore[type-arg]

    def add(self, step: StepLog, rows: list[OperationRow]) -> None:
        """Add the rows of one step."""
        if not self.windows or self.windows[-1] is not step.window:
            if self.windows:
                self.windows[-1].forget_anchor()
            self.windows.append(step.window)
        load_of = {}
        for microbatch, (tokens, tokens_sq, documents) in step.lengths.items():
            load_of[microbatch] = len(self.tokens)
            self.tokens.append(tokens)
            self.tokens_sq.append(tokens_sq)
            self.has_documents.append(documents is not None)
            self.documents.extend(documents or ())
            self.document_ends.append(len(self.documents))
        for row in rows:
            if row.optype not in self.types:
                self.types.append(row.optype)
            self.window.append(len(self.windows) - 1)
            self.optype.append(self.types.index(row.optype))
            self.on_device.append(row.on_device)
            self.step.append(step.number)
            self.start_ns.append(row.start_ns)
            self.duration_ns.append(row.duration_ns)
            self.microbatch.append(row.microbatch)
            self.virtual.append(row.virtual)
            self.loads.append(load_of.get(row.microbatch, -1) if row.microbatch >= 0 else -1)

    def __len__(self) -> int:
        return len(self.optype)


def prepare() -> None:
    """Import what writes: when the job is told to end there may be no time left for it."""
    import numpy as np  # noqa: F401
    import pyarrow.parquet as pq  # noqa: F401


def write_rows(folder: Path, kept: RecordedRows, state: ParallelState, metadata: dict[str, Any]) -> Path:
    """Write all rows so far to `rank-00003.parquet` or its like; `metadata` is what it says beside the sizes of the job."""
    import pyarrow.parquet as pq

    path = folder / f"rank-{state.rank:05}.parquet"
    with appearing(path) as beside:
        pq.write_table(_table(kept, state, metadata), beside, row_group_size=GROUP_ROWS)
    return path


def is_finished(path: Path) -> bool:
    """Say whether a rank has written its file for the last time."""
    return "finished_at" in _read_metadata(path)


def count_ranks(path: Path) -> int:
    """Say how many ranks the job has that a rank wrote this file of; 1 where nothing says it."""
    return int(_read_metadata(path).get("world_size", 1))


def _read_metadata(path: Path) -> dict[str, Any]:
    """Read what a file says of its job; empty where it is not there yet."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        footer = pq.read_schema(path).metadata or {}
    except (OSError, pa.ArrowException):
        return {}
    said: dict[str, Any] = json.loads(footer.get(b"diagnose.job", b"{}"))
    return said


def _table(kept: RecordedRows, state: ParallelState, metadata: dict[str, Any]) -> Any:
    """Lay the rows out in the columns of the trace format."""
    import numpy as np
    import pyarrow as pa

    n_rows = len(kept)
    # No loop over rows: it would hold the interpreter's lock for seconds, and the training with it.
    zero_ns = np.array(
        [[w.unix_ns((on_device, 0)) for on_device in (False, True)] for w in kept.windows], dtype=np.int64
    )
    zero_ns = zero_ns.reshape(-1, 2)[np.array(kept.window, dtype=np.int32), np.array(kept.on_device, dtype=np.int8)]
    start_s = (zero_ns + np.array(kept.start_ns, dtype=np.int64)) / 1e9
    virtual = np.array(kept.virtual, dtype=np.int64)
    held = np.array(state.held, dtype=np.int64)
    order = np.argsort(held)
    nearest = order[np.minimum(np.searchsorted(held, virtual, sorter=order), len(held) - 1)]
    chunk = np.where(held[nearest] == virtual, nearest, -1)
    columns: dict[str, Any] = {
        "step": pa.array(np.array(kept.step, dtype=np.int64)),
        "dp_rank": _constant(state.dp, n_rows),
        "stage": _constant(state.stage, n_rows),
        "optype": _named(np.array(kept.optype, dtype=np.int32), kept.types),
        "start_ts": pa.array(start_s),
        "duration": pa.array(np.array(kept.duration_ns, dtype=np.int64) / 1e9),
        "mb_id": pa.array(np.array(kept.microbatch, dtype=np.int64)).cast(pa.int32()),
        "mc": pa.array(chunk).cast(pa.int32()),
        "gmc": pa.array(virtual).cast(pa.int32()),
        "rank": _constant(state.rank, n_rows),
        "host": _named(np.zeros(n_rows, dtype=np.int32), [state.host]),
    }
    for name, size in (("tp_rank", state.tp_size), ("cp_rank", state.cp_size)):
        if size > 1:
            columns[name] = _constant(state.tp if name == "tp_rank" else state.cp, n_rows)
    loads = np.array(kept.loads, dtype=np.int64)
    if (loads >= 0).any():
        of_row = pa.array(loads, mask=loads < 0)
        columns["tokens"] = pa.array(np.array(kept.tokens)).take(of_row)
        columns["tokens_sq"] = pa.array(np.array(kept.tokens_sq)).take(of_row)
        ends = pa.array(np.concatenate([[0], kept.document_ends]).astype(np.int32))
        documents = pa.ListArray.from_arrays(ends, pa.array(np.array(kept.documents, dtype=np.int64)))
        is_known = np.array(kept.has_documents, dtype=bool)
        columns["doc_lengths"] = documents.take(pa.array(loads, mask=~((loads >= 0) & is_known[loads])))
    said = {
        "diagnose.job": {"unit": "s"} | metadata | state.metadata(),
        "diagnose.recorder": {},  # that this is one rank of several
    }
    footer = {key: json.dumps(value, sort_keys=True, default=str) for key, value in said.items()}
    return pa.table(columns).replace_schema_metadata(footer)


def _named(codes: Any, names: list[str]) -> Any:
    """Make a column of names from their numbers."""
    import pyarrow as pa

    return pa.DictionaryArray.from_arrays(pa.array(codes), pa.array(names, pa.string()))


def _constant(value: int, n_rows: int) -> Any:
    """Make a column of one value."""
    import numpy as np
    import pyarrow as pa

    return pa.array(np.full(n_rows, value, dtype=np.int32))
