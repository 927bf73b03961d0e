"""Event files of TensorBoard (`events.out.tfevents.*`), which nearly all trainers can write.

Enters: a file. Leaves: steps.

Scalars are taken as a table with a column a tag: the time of a step or a rate where a tag is called so (`iteration-time` of
Megatron-LM, `perf/step_time`), else the clock at which those of the most frequent tag were written.

TensorBoard reads them: the extra `tensorboard`, imported when there is such a file. What it costs: 10 us a value.

Source: tensorboard/backend/event_processing/event_file_loader.py, tensorboard/compat/proto/event.proto and summary.proto.
"""

import math
import struct
from array import array
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from diagnose.errors import TraceError
from diagnose.model.trace import Seconds
from diagnose.trace.input_files import GZIP
from diagnose.trace.logs.builder import MAX_STEPS, LogBuilder
from diagnose.trace.logs.formats.tables import (
    MAX_COLUMNS,
    OTHERS,
    Plan,
    list_columns,
    plan_columns,
    tell_clock,
    tell_rows,
)
from diagnose.trace.logs.log_format import FileFormat

#: What the first record of a file has; before it are its length and a checksum, and the time in it.
_VERSION = b"brain.Event:"
_WITHIN = 64
#: How a tag ends that counts samples in place of steps (Megatron-LM).
_BY_SAMPLES = " vs samples"
#: Values of all tags at most.
MAX_VALUES = 4 * MAX_STEPS

_Series = tuple["array[int]", "array[float]", "array[float]"]


def _recognise(head: bytes) -> bool:
    """Say whether the first record tells the version of the format."""
    return _VERSION in head[:_WITHIN]


def _read(file: Path, log: LogBuilder, name: str) -> None:
    """Read the scalars of one file."""
    series, warning = _collect(file, name)
    if warning:
        log.notes.append(f"{name}: {warning}")
    tags = [tag for tag in series if not tag.endswith(_BY_SAMPLES)][:MAX_COLUMNS]
    plan = plan_columns(["step", *tags], log.column, log.unit)
    if plan is not None and plan.kind != "clock":
        tell_rows([_join(series, list_columns(plan))], plan, log, name)
        return
    usable = [tag for tag in tags if not OTHERS.search(tag.lower())]
    if log.column is not None or not usable:
        some = ", ".join(tags[:12]) or "none"
        raise TraceError(
            f"has no scalar {log.column or 'of training'}; its scalars are {some}: name one with --column", where=name
        )
    most = max(usable, key=lambda tag: len(series[tag][0]))
    step, _, wall_s = (np.array(values, dtype=np.float64) for values in series[most])
    tell_clock(step, wall_s, Plan("step", f"Wall time of {most}", "clock"), log)


def _join(series: dict[str, _Series], columns: list[str]) -> Seconds:
    """Give the values of some tags at the steps of the second column, shape (n_steps, n_columns); the first are the steps."""
    steps = np.array(series[columns[1]][0], dtype=np.int64)
    table = np.full((len(steps), len(columns)), np.nan)
    table[:, 0], table[:, 1] = steps, series[columns[1]][1]
    for n, tag in enumerate(columns[2:], start=2):
        values = dict(zip(*series[tag][:2], strict=True))
        table[:, n] = [values.get(step, math.nan) for step in steps.tolist()]
    return table


def _collect(file: Path, name: str) -> tuple[dict[str, _Series], str]:
    """Give steps, values and moments of each scalar, and what is not read of the file."""
    series: dict[str, _Series] = {}
    n_values = n_records = 0
    for event in _load_events(file, name):
        n_records += 1
        for value in event.summary.value if event.HasField("summary") else ():
            scalar = _read_scalar(value)
            if scalar is None or n_values >= MAX_VALUES:
                continue
            n_values += 1
            found = series.setdefault(value.tag, (array("q"), array("d"), array("d")))
            found[0].append(event.step)
            found[1].append(scalar)
            found[2].append(event.wall_time)
    n_bytes, n_whole = _count_records(file)
    if n_records < n_whole or n_bytes:
        return series, f"is damaged or cut after {n_records:,} records: what comes behind is not read"
    if n_values >= MAX_VALUES:
        return series, f"values after the first {MAX_VALUES:,} are left out"
    return series, ""


def _load_events(file: Path, name: str) -> Iterator[Any]:
    """Load the records of a file, up to the first that is damaged."""
    try:
        from google.protobuf.message import DecodeError
        from tensorboard.backend.event_processing.event_file_loader import RawEventFileLoader
        from tensorboard.compat.proto.event_pb2 import Event
    except ImportError:
        raise TraceError(
            "has events of TensorBoard, which TensorBoard alone reads; expected it: pip install 'diagnose-training[tensorboard]'; "
            "or let it show download links, and give the CSV of a step time, or of any curve that has a point a step",
            where=name,
        ) from None
    with file.open("rb") as content:
        if content.read(len(GZIP)) == GZIP:
            raise TraceError("is packed; expected event files as they are: gunzip it", where=name)
    try:
        for record in RawEventFileLoader(str(file)).Load():
            yield Event.FromString(record)
    except DecodeError:
        return


def _read_scalar(value: Any) -> float | None:
    """Give the number of a summary; None where it is a picture, a histogram, or not finite."""
    number = math.nan
    if value.HasField("simple_value"):
        number = value.simple_value
    elif value.HasField("tensor") and not value.tensor.tensor_shape.dim:
        tensor = value.tensor
        held = next((values for values in (tensor.float_val, tensor.double_val) if len(values)), None)
        if held is not None:
            number = held[0]
        elif len(tensor.tensor_content) in (4, 8):
            number = struct.unpack("<f" if len(tensor.tensor_content) == 4 else "<d", tensor.tensor_content)[0]
    return float(number) if math.isfinite(number) else None


def _count_records(file: Path) -> tuple[int, int]:
    """Count the bytes behind the last whole record of a file, and its whole records, by their lengths.

    A record is 8 bytes of length, a checksum of 4, the data, and a checksum of 4 (TFRecord).
    """
    size, at, n = file.stat().st_size, 0, 0
    with file.open("rb") as content:
        while at + 16 <= size:
            content.seek(at)
            following = at + 16 + int.from_bytes(content.read(8), "little")
            if following > size:
                break
            at, n = following, n + 1
    return size - at, n


FORMAT = FileFormat(
    name="tensorboard-events",
    title="TensorBoard events",
    reads="a scalar",
    example="events.out.tfevents.*, with a scalar such as `iteration-time`",
    recognise=_recognise,
    read=_read,
    is_mean=True,
    is_binary=True,
)
