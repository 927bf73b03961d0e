"""From what an adapter read to the rows of a trace.

Enters: a `Recording`, of an adapter of this package or of another one. Leaves: `Rows`, checked as those of a file are.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from diagnose.errors import TraceError
from diagnose.model.optype import Op
from diagnose.model.recording import Recording
from diagnose.trace.rows import Rows

#: Columns of a recording that a format may not have.
OPTIONAL = ("microbatch", "chunk", "position", "rank", "tp_rank", "cp_rank", "host", "other")


def make_rows(recording: Recording, *, name: str) -> Rows:
    """Turn a recording into rows.

    Raises
    ------
    TraceError
        It has no operations, or its columns do not fit together, which is the adapter's fault.
    """
    n_rows = len(recording)
    if n_rows == 0:
        raise TraceError(
            f"has no operation that a trace can hold (read as {recording.producer}); expected forwards and backwards",
            where=name,
        )
    columns: dict[str, NDArray[Any] | None] = {
        column: _column(recording, column, np.int64, name) for column in ("op", "step", "dp", "stage")
    }
    columns |= {column: _column(recording, column, np.float64, name) for column in ("start_s", "duration_s")}
    for column in OPTIONAL:
        columns[column] = None if getattr(recording, column) is None else _column(recording, column, np.int64, name)
    for column in ("tokens", "tokens_sq"):
        columns[column] = None if getattr(recording, column) is None else _column(recording, column, np.float64, name)
    op, host, other = columns["op"], columns["host"], columns["other"]
    assert op is not None
    is_other = np.zeros(n_rows, dtype=bool) if other is None else (other >= 0) & (other < len(recording.other_types))
    if (op < 0).any(where=~is_other) or op.max() >= len(Op):
        raise TraceError(f"op has a code that is none of `Op`; mend the adapter {recording.producer!r}", where=name)
    if host is not None and not -1 <= int(host.min()) <= int(host.max()) < len(recording.host_names):
        raise TraceError(f"host points beyond host_names; mend the adapter {recording.producer!r}", where=name)
    columns["op"] = np.where(is_other, -1, op).astype(np.int8)
    columns["other"] = None if other is None else other.astype(np.int32)
    return Rows(
        **columns,  # type: ignore[arg-type]  # the required ones are there
        expert_tokens=None,
        seq=None,
        host_names=tuple(recording.host_names),
        other_types=tuple(recording.other_types),
        bad=None,
        job=dict(recording.job),
        recording=recording.account,
        recording_warnings=tuple(recording.warnings),
    )


def _column(recording: Recording, column: str, dtype: type, name: str) -> NDArray[Any]:
    """Check one column: as long as the others, and of the right kind."""
    values = np.asarray(getattr(recording, column))
    kinds = "iufb" if dtype is np.float64 else "iub"
    if values.shape != (len(recording),) or values.dtype.kind not in kinds:
        raise TraceError(
            f"{column} has shape {values.shape} and type {values.dtype}; expected ({len(recording)},) and "
            f"{np.dtype(dtype).name}: mend the adapter {recording.producer!r}",
            where=name,
        )
    return values.astype(dtype, copy=False)
