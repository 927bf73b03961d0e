"""Write the rows of a job as one trace file, whatever they were read from.

Enters: `Rows`. Leaves: the bytes of a Parquet file, the same for the same rows.
"""

import io
import json
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from diagnose.model.optype import NAMES, Op
from diagnose.trace.account import write_account
from diagnose.trace.list_column import LISTS
from diagnose.trace.parquet import EXPERT_TOKENS, JOB_KEY, RECORDING_KEY
from diagnose.trace.rows import Rows

#: Columns of whole numbers: name in the file, and in `Rows`.
_WHOLE = {
    "step": "step",
    "dp_rank": "dp",
    "stage": "stage",
    "seq_id": "seq",
    "mb_id": "microbatch",
    "mc": "chunk",
    "gmc": "position",
    "rank": "rank",
    "tp_rank": "tp_rank",
    "cp_rank": "cp_rank",
}


def write_trace(rows: Rows, job: dict[str, Any]) -> bytes:
    """Write rows, and the metadata of their job, as a Parquet file.

    Rows that cannot be measured are left out as they are when it is read.
    """
    op = rows.op.astype(np.int32)
    if rows.other is not None:
        op = np.where(rows.other >= 0, len(Op) + rows.other, op)
    keep = op >= 0
    if rows.bad is not None:
        keep = keep & ~rows.bad
    columns: dict[str, pa.Array] = {}
    for column, field in _WHOLE.items():
        values = getattr(rows, field)
        if values is not None:
            columns[column] = pa.array(values[keep].astype(np.int64))
    names = pa.array([*(NAMES[known] for known in Op), *rows.other_types])
    columns["optype"] = pa.DictionaryArray.from_arrays(pa.array(op[keep]), names)
    # Seconds as they were read: halved digits would change a verdict on the edge.
    columns["start_ts"] = pa.array(rows.start_s[keep].astype(np.float64))
    columns["duration"] = pa.array(rows.duration_s[keep].astype(np.float64))
    for column in ("tokens", "tokens_sq"):
        values = getattr(rows, column)
        if values is not None:
            columns[column] = pa.array(values[keep].astype(np.float64), from_pandas=True)
    if rows.expert_tokens is not None:
        given = rows.expert_tokens[keep]
        known = np.isfinite(given)
        each = pa.ListArray.from_arrays(
            np.arange(len(given) + 1, dtype=np.int32), np.where(known, given, 0).astype(np.int64)
        )
        columns[EXPERT_TOKENS] = each.take(pa.array(np.arange(len(given)), mask=~known))
    if rows.host is not None:
        host = rows.host[keep]
        codes = pa.array(np.maximum(host, 0).astype(np.int32), mask=host < 0)
        columns["host"] = pa.DictionaryArray.from_arrays(codes, pa.array(rows.host_names, type=pa.string()))
    if rows.lists is not None:
        columns[LISTS] = _read_lists(rows).filter(pa.array(keep))
    metadata = {JOB_KEY: json.dumps(job, sort_keys=True)}
    if rows.recording is not None:
        metadata[RECORDING_KEY] = json.dumps(write_account(rows.recording, rows.recording_warnings), sort_keys=True)
    table = pa.table(columns).replace_schema_metadata(metadata)
    content = io.BytesIO()
    pq.write_table(table, content, compression="zstd")
    return content.getvalue()


def _read_lists(rows: Rows) -> pa.ChunkedArray:
    """Read the lists of all rows; null where a file has none."""
    assert rows.lists is not None
    kind = pa.list_(pa.int64())
    chunks = []
    at = 0
    for first, lists in rows.lists.batches():
        chunks += [pa.nulls(first - at, kind), lists.cast(kind)]
        at = first + len(lists)
    return pa.chunked_array([*chunks, pa.nulls(len(rows) - at, kind)], type=kind)
