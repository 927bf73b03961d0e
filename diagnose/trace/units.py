"""In which unit a trace has its times: seconds, unless somebody says another, whether that can be, and how finely they count.

Enters: rows, what was said of their unit, and the blocks that they became. Leaves: rows in seconds, the doubt in a sentence, and
the resolution of the clock.
"""

import dataclasses
import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from diagnose.model.optype import DIRECTIONS, of_types
from diagnose.model.trace import Block
from diagnose.numerics.figures import write_figure, write_percent
from diagnose.trace.rows import Rows

#: The key in metadata, and what it may say: seconds in one of each.
KEY = "unit"
UNITS = {"s": 1.0, "ms": 1e-3, "us": 1e-6, "ns": 1e-9}
UNIT_NAMES = {"s": "seconds", "ms": "milliseconds", "us": "microseconds", "ns": "nanoseconds"}
#: No training job has shorter or longer steps, or computes of one microbatch, than these, in seconds.
STEP_S = (1e-3, 3600.0)
COMPUTE_S = (1e-6, 100.0)
#: Hardly any has longer ones than these, and none both, in seconds.
LONG_STEP_S, LONG_COMPUTE_S = 1200.0, 20.0
#: A step as it usually is, in seconds: of several units that may be meant, the one that comes next to it is likely.
USUAL_STEP_S = 2.0
#: Steps looked at, evenly over the trace: what is usual shows in a few.
STEPS_ASKED = 8
#: Unix times of 1990 and 2100, in seconds.
UNIX_S = (6.3e8, 4.1e9)
#: Rows looked at, evenly over the trace, to tell whether its starts fit into 32 bits.
ROWS_ASKED = 4096
#: A clock that counts in less than this part of a typical compute is fine enough: as little as gains may be off.
FINE_SHARE = 0.01


def read_unit(found: dict[str, Any], warnings: list[str]) -> str | None:
    """Read the unit of times from the metadata; None where nothing says it."""
    said = found.get(KEY)
    if said is None or (isinstance(said, str) and said in UNITS):
        return said
    warnings.append(f"metadata: {KEY} is {str(said)[:40]!r}, expected one of {', '.join(UNITS)}; ignored")
    return None


def convert_rows(rows: Rows, unit: str) -> Rows:
    """Give rows with times in seconds."""
    if unit == "s":
        return rows
    factor = UNITS[unit]
    return dataclasses.replace(rows, start_s=rows.start_s * factor, duration_s=rows.duration_s * factor)


def guess_unit(rows: Rows) -> str:
    """Name the unit of times of which most cannot be seconds; empty where none fits.

    Starts may be unix times of our days in it, or durations those of computes.
    """
    with np.errstate(over="ignore", invalid="ignore"):  # absurd ones may add up to infinity
        start, duration = float(np.median(np.abs(rows.start_s))), float(np.median(rows.duration_s))
    finer = [(unit, factor) for unit, factor in UNITS.items() if factor < 1]
    clocks = [unit for unit, factor in finer if UNIX_S[0] <= start * factor <= UNIX_S[1]]
    return next(
        iter(clocks or [unit for unit, factor in finer if COMPUTE_S[0] <= duration * factor <= LONG_COMPUTE_S]), ""
    )


def doubt_unit(blocks: Sequence[Block]) -> str:
    """Say that times cannot be seconds, and what they are likely to be; empty where they can, or where no compute tells.

    Reads a few steps of each block.
    """
    step_s, compute_s = _measure(blocks)
    if math.isnan(compute_s) or _can_be(step_s, compute_s):
        return ""
    likely = [unit for unit, factor in UNITS.items() if _can_be(step_s * factor, compute_s * factor)]
    likely.sort(key=lambda unit: abs(math.log(step_s * UNITS[unit] / USUAL_STEP_S)))
    taken = f"in seconds a step would take {write_figure(step_s, 2)} and a compute {write_figure(compute_s, 2)}"
    if not likely:
        return f"times can be in no unit: {taken}; mend what writes the trace, or say --unit s if they are right"
    unit = likely[0]
    return (
        f"times are likely in {UNIT_NAMES[unit]}, and no figure is to be trusted before you say --unit {unit}, or --unit s if they "
        f"are in seconds (in the metadata `{KEY}: {unit}`): {taken}"
    )


def measure_coarseness(rows: Rows, blocks: Sequence[Block]) -> tuple[float, str]:
    """Say which part of a typical compute the clock cannot tell, and that in a sentence; 0 and empty where it is fine enough.

    A float32 counts in steps of 8 ms a day after its zero. Starts that all fit into one were such once, whatever they are now.
    """
    some = rows.start_s[:: max(1, len(rows) // ROWS_ASKED)]
    some = some[np.isfinite(some)]
    if some.dtype.kind != "f" or not len(some):
        return 0.0, ""
    with np.errstate(over="ignore"):
        was_float32 = bool((some == some.astype(np.float32)).all())
    if not was_float32:
        return 0.0, ""
    resolution_s = float(np.spacing(np.float32(np.median(np.abs(some)))))
    _, compute_s = _measure(blocks)
    share = resolution_s / compute_s if compute_s > 0 else 0.0
    if not share > FINE_SHARE:
        return 0.0, ""
    return share, (
        f"starts are told to {write_figure(1e3 * resolution_s, 2)} ms only, {write_percent(share)} of a compute, as float32 so far "
        "from zero does: every cause is less sure for it; write start_ts as float64, or from the begin of each step"
    )


def _measure(blocks: Sequence[Block]) -> tuple[float, float]:
    """Give the seconds that a step and a compute typically take, by a few steps of each block; NaN where none has a compute."""
    steps, computes = [], []
    for block in blocks:
        some = slice(None, None, max(1, len(block.steps) // STEPS_ASKED))
        start_s, end_s = block.start_s[:, some], block.end_s[:, some]
        steps.append(np.fmax.reduce(end_s, axis=(0, 2)) - np.fmin.reduce(start_s, axis=(0, 2)))
        at = of_types(block.nodes.op, DIRECTIONS)
        taken_s = (end_s[at] - start_s[at]).ravel()
        computes.append(taken_s[~np.isnan(taken_s)])
    if not any(map(len, computes)):
        return math.nan, math.nan
    step_s, compute_s = (float(np.nanmedian(np.concatenate(values))) for values in (steps, computes))
    return step_s, compute_s


def _can_be(step_s: float, compute_s: float) -> bool:
    """Say whether a job may have such steps and computes."""
    is_long = step_s > LONG_STEP_S and compute_s > LONG_COMPUTE_S
    return not is_long and STEP_S[0] <= step_s <= STEP_S[1] and COMPUTE_S[0] <= compute_s <= COMPUTE_S[1]
