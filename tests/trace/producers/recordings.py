"""Turn a recording into the Parquet file that `diagnose convert` would write."""

import io
import json
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq

from diagnose.model.optype import NAMES, Op
from diagnose.model.recording import Recording
from diagnose.trace.input_files import list_input_files
from diagnose.trace.producers.catalogue import Producer


def say_nothing(line: str) -> None:
    """Take a line and do nothing."""


def read(producer: Producer, path: Path) -> Recording:
    """Read a path with one producer, which must know it."""
    inputs = list_input_files(path, name=str(path))
    assert producer.recognise(inputs)
    return producer.read(inputs, name=path.name, report=say_nothing)


def frame(recording: Recording) -> pd.DataFrame:
    """Give the rows of a recording under the names of the trace format."""
    optional = {
        "rank": recording.rank,
        "tp_rank": recording.tp_rank,
        "mb_id": recording.microbatch,
        "mc": recording.chunk,
    }
    rows = pd.DataFrame(
        {
            "step": recording.step,
            "dp_rank": recording.dp,
            "stage": recording.stage,
            "optype": _name_types(recording),
            "start_ts": recording.start_s,
            "duration": recording.duration_s,
        }
        | {name: values for name, values in optional.items() if values is not None}
    )
    if recording.host is not None:
        rows["host"] = np.array([*recording.host_names, None], dtype=object)[recording.host]
    if recording.tokens is not None:
        rows["tokens"] = recording.tokens
    return rows


def _name_types(recording: Recording) -> list[str]:
    """Name the type of each row."""
    other = np.full(len(recording), -1) if recording.other is None else recording.other
    pairs = zip(recording.op.tolist(), other.tolist(), strict=True)
    return [recording.other_types[n] if n >= 0 else NAMES[Op(op)] for op, n in pairs]


def to_parquet(recording: Recording) -> io.BytesIO:
    """Write a recording as a trace."""
    table = pa.Table.from_pandas(frame(recording), preserve_index=False)
    file = io.BytesIO()
    pq.write_table(table.replace_schema_metadata({"diagnose.job": json.dumps(recording.job)}), file)
    file.seek(0)
    return file
