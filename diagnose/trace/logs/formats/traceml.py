"""The summary that TraceML leaves at the end of a run, `final_summary.json`: mean times of each rank over its last steps.

Enters: a file. Leaves: one step, the mean of the window, with the forwards and the waiting for input of every rank.

Backwards end together in a data-parallel job, so a slow rank is no slower in them: only forwards and input are compared.

Source: traceopt-ai/traceml, tests/step_time/golden/step_time_public_schema.json, docs/user_guide/reading-output.md.
"""

import json
import math
from pathlib import Path

from diagnose.errors import TraceError
from diagnose.trace.logs.builder import LogBuilder
from diagnose.trace.logs.log_format import FileFormat

#: Of a summary so many bytes are read: one of a thousand ranks has a few mebibytes.
MAX_BYTES = 1 << 28
MS = 1e-3
#: The timers of ours that its metrics are.
_TIMERS = {"forward_ms": "forward-compute", "input_wait_ms": "batch-generator"}


def _recognise(head: bytes) -> bool:
    """Say whether a file begins as a summary does."""
    return head.lstrip()[:1] == b"{" and b'"step_time"' in head and b'"groups"' in head and b'"log_history"' not in head


def _read(file: Path, log: LogBuilder, name: str) -> None:
    """Read a summary."""
    try:
        with file.open("rb") as content:
            summary = json.loads(content.read(MAX_BYTES))
    except (OSError, ValueError, RecursionError) as error:
        raise TraceError(
            f"is no whole JSON ({str(error)[:80]}); expected final_summary.json: copy it again", where=name
        ) from None
    section = _part(summary, "step_time")
    mean, window = _part(section, "global", "average"), _part(section, "global", "window")
    step_s = MS * (_number(mean, "step_time_ms") + max(_number(mean, "input_wait_ms"), 0.0))
    end = _number(window, "end_step")
    if not (step_s > 0 and end >= 0):
        raise TraceError(
            "has no mean time of a step; expected the final_summary.json of a run whose steps were timed", where=name
        )
    log.add_step(int(end), step_s, stamp_s=math.nan)
    rows = _part(section, "groups", "rows")
    world = 0
    for row in rows.values():
        rank = _number(_part(row, "identity"), "global_rank")
        world = max(world, int(max(_number(_part(row, "identity"), "world_size"), 0)))
        for metric, timer in _TIMERS.items():
            seconds = MS * _number(_part(row, "metrics"), metric)
            if rank >= 0 and seconds >= 0:
                log.add_rank_time(timer, int(rank), seconds)
    if world and _part(section, "metadata").get("mode") == "ddp":
        log.sizes.update({"world_size": world, "pp_size": 1, "tp_size": 1, "cp_size": 1})


def _part(found: object, *keys: str) -> dict[str, object]:
    """Go down into an object; an empty one where it is not there."""
    for key in keys:
        found = found.get(key) if isinstance(found, dict) else None
    return found if isinstance(found, dict) else {}


def _number(found: dict[str, object], key: str) -> float:
    """Give a number; -1 where it is none."""
    value = found.get(key)
    return float(value) if isinstance(value, int | float) and math.isfinite(value) else -1.0


FORMAT = FileFormat(
    name="traceml-summary",
    title="TraceML",
    reads="mean of the window that final_summary.json tells",
    example='{"step_time": {"global": {"average": {"step_time_ms": ..}}, "groups": {"rows": ..}}}',
    recognise=_recognise,
    read=_read,
    is_mean=True,
)
