"""The job step by step: slowdown over time, with what the causes say of time marked.

Enters: a `ReportData`. Leaves: a `Picture`.
"""

import numpy as np

from diagnose.model.analysis import ReportData
from diagnose.model.cause import When
from diagnose.model.optype import Op
from diagnose.model.trace import Ints, Seconds
from diagnose.report import words
from diagnose.report.html.draw import Sheet, colour
from diagnose.report.html.picture import MAX_ROWS, Picture, spread

_WIDTH = 760
#: Points that answer to the pointer at most.
_MAX_POINTS = 700
#: Lines of a period at most: more would hide the curve.
_MAX_PERIODS = 60
#: Gaps between steps that break the curve at most; with more it would be in pieces.
_MAX_GAPS = 12
#: Steps that each have a mark on the curve at most.
_MAX_MARKS = 150


def draw_steps(data: ReportData) -> Picture | None:
    """Draw the slowdown of each step, and the recorded step time over the ideal one."""
    diagnosis = data.diagnosis
    w = diagnosis.what_if
    recorded = w.recorded_s / w.ideal_s
    if len(w.steps) == 0 or np.isnan(w.by_step).all():
        return None
    values = np.concatenate([w.by_step, recorded])
    low, high = min(1.0, float(np.nanmin(values))), max(1.1, float(np.nanmax(values)))
    room = (high - low) * 0.08
    sheet = Sheet("steps", _WIDTH, 320, (60, 20, 34, 46))
    axes = sheet.axes
    axes.set_xlim(-0.6, len(w.steps) - 0.4)
    axes.set_ylim(low - room * 1.8, high + room)
    axes.axhline(1.0, color=colour("line"), linewidth=1)
    said = _mark_times(data, sheet, low - room)
    _draw_curves(sheet, w.steps, recorded, w.by_step)
    worst = int(np.nanargmax(w.by_step))
    for i in _chosen(w.by_step):
        sheet.point(i - 0.5, i + 0.5, low, high, _describe_step(data, i), int(w.steps[i]))
    order = range(len(w.steps)) if len(w.steps) <= MAX_ROWS else _worst(w.by_step)
    says = f"Slowdown of each step, from {words.span(float(np.nanmin(w.by_step)), float(np.nanmax(w.by_step)))}; "
    says += f"most in step {w.steps[worst]}." + "".join(f" {sentence}" for sentence in said)
    return Picture(
        "steps",
        "Steps over time",
        says,
        sheet.svg(f"Curve over steps {w.steps[0]} to {w.steps[-1]}. {says}"),
        ("step", "recorded", "simulated", "ideal", "S"),
        [
            (
                str(w.steps[i]),
                *(words.seconds(float(series[i])) for series in (w.recorded_s, w.simulated_s, w.ideal_s)),
                words.ratio(float(w.by_step[i])),
            )
            for i in order
        ],
        note="" if len(w.steps) <= MAX_ROWS else f"the {MAX_ROWS} slowest of {len(w.steps):,} steps",
        legend=(("accent", "S: without launch delays"), ("muted", "recorded over ideal (dashed)")),
        probe=sheet.points | {"tall": True},
    )


def _draw_curves(sheet: Sheet, steps: Ints, recorded: Seconds, by_step: Seconds) -> None:
    """Draw both curves, broken where steps are missing, and name the steps."""
    gaps = _gaps(steps)
    runs = np.split(np.arange(len(steps)), gaps if len(gaps) <= _MAX_GAPS else [])
    for run in runs:
        sheet.axes.plot(run, recorded[run], color=colour("muted"), linewidth=1.2, linestyle=(0, (4, 2)))
        mark = "o" if len(steps) <= _MAX_MARKS or len(run) == 1 else None
        sheet.axes.plot(run, by_step[run], color=colour("accent"), linewidth=1.8, marker=mark, markersize=4)
    for run in runs[1:]:
        sheet.axes.axvline(run[0] - 0.5, color=colour("line"), linewidth=1)
    ticks = _ticks(steps)
    sheet.ticks_x(ticks, [str(steps[i]) for i in ticks])
    jumps = "step (numbers jump)" if len(runs) == 1 else "step (a grey line where steps are missing)"
    sheet.name_axes(jumps if len(gaps) else "step", "times the ideal step time")


def _mark_times(data: ReportData, sheet: Sheet, foot: float) -> list[str]:
    """Mark onsets, recoveries, periods and checkpoints; say the same in sentences."""
    steps, said = data.diagnosis.what_if.steps, []
    top = sheet.axes.get_ylim()[1]
    for cause in data.diagnosis.causes:
        when = cause.when
        for step, name in ((when.onset_step, "begins"), (when.recovery_step, "ends")):
            if step is not None and steps[0] <= step <= steps[-1]:
                at = float(np.searchsorted(steps, step)) - 0.5
                sheet.axes.axvline(at, color=colour("bad"), linewidth=2, linestyle=(0, (6, 3)))
                late = at > len(steps) / 2
                text = f"{cause.cause} {name}: step {step}"
                sheet.write(
                    at, top + (top - foot) * 0.05, text, of="bad", across="right" if late else "left", bold=True
                )
        for step in _periods(data, when):
            sheet.axes.axvline(step, color=colour("warn"), linewidth=1, linestyle=(0, (2, 3)))
        since = words.since(when)
        if since:
            said.append(f"{cause.title.strip().capitalize()}: {since}.")
    saved = _checkpoints(data)
    if len(saved):
        sheet.axes.plot(
            np.searchsorted(steps, saved),
            np.full(len(saved), foot),
            color=colour("other"),
            linestyle="none",
            marker="^",
            markersize=8,
        )
        named = words.some_of([str(step) for step in saved])
        said.append(f"Triangles: checkpoints were written in step {', '.join(named)}.")
    return said


def _periods(data: ReportData, when: When) -> list[int]:
    """Give the positions of the steps that lie whole periods from the longest one."""
    w = data.diagnosis.what_if
    if when.period_steps is None or when.period_steps < 2:
        return []
    away = (w.steps - w.steps[int(np.nanargmax(w.recorded_s))]) / when.period_steps
    found: list[int] = np.flatnonzero(np.abs(away - np.round(away)) * when.period_steps < 0.5).tolist()
    return found if len(found) <= _MAX_PERIODS else []


def _checkpoints(data: ReportData) -> Ints:
    """Give the steps in which a row says that a checkpoint was written."""
    evidence = data.analysis.trace.evidence
    saved = np.unique(evidence.step[evidence.op == Op.CHECKPOINT])
    return saved[np.isin(saved, data.diagnosis.what_if.steps)]


def _describe_step(data: ReportData, i: int) -> str:
    """Say what is known of a step."""
    w = data.diagnosis.what_if
    times = f"recorded {words.seconds(float(w.recorded_s[i]))}, ideal {words.seconds(float(w.ideal_s[i]))}"
    return f"step {w.steps[i]}: S {words.ratio(float(w.by_step[i]))}, {times}"


def _chosen(by_step: Seconds) -> list[int]:
    """Choose the steps that answer to the pointer: of neighbours that share a place the slowest."""
    size = max(1, -(-len(by_step) // _MAX_POINTS))
    known = np.nan_to_num(by_step, nan=0.0)
    return [start + int(np.argmax(known[start : start + size])) for start in range(0, len(by_step), size)]


def _worst(by_step: Seconds) -> list[int]:
    """Give the slowest steps, slowest first."""
    found: list[int] = np.argsort(-np.nan_to_num(by_step, nan=0.0), kind="stable")[:MAX_ROWS].tolist()
    return found


def _gaps(steps: Ints) -> Ints:
    """Give the positions of steps whose number does not follow the one before."""
    return np.flatnonzero(np.diff(steps) != 1) + 1


def _ticks(steps: Ints) -> list[int]:
    """Choose about a dozen positions to name: the first after each gap, or even ones."""
    gaps = [0, *_gaps(steps).tolist()]
    if 1 < len(gaps) <= 14:
        least = len(steps) / 18
        kept = [gap for gap, after in zip(gaps, [*gaps[1:], len(steps)], strict=True) if after - gap >= least]
        return sorted({*kept, len(steps) - 1})
    return spread(steps, 14)
