"""Lines over steps: step times, and what a culprit takes against its peers, with onsets, periods and checkpoints marked.

Enters: values by step. Leaves: a `Sheet`.
"""

import dataclasses
from collections.abc import Sequence

import numpy as np

from diagnose.model.cause import When
from diagnose.model.trace import Ints, Seconds
from diagnose.report.html.draw import Sheet, colour, round_ticks
from diagnose.report.html.picture import LEAD_WIDTH, UNITS, spread

_HEIGHT = 330.0
#: Points that answer to the pointer at most.
_MAX_POINTS = 700
#: Lines of a period at most: more would hide the curve.
_MAX_PERIODS = 60
#: Gaps between steps that break the curve at most; with more it would be in pieces.
_MAX_GAPS = 12
#: Steps that are all named at most.
_MAX_NAMED = 14
#: Steps that each have a mark on the curve at most.
_MAX_MARKS = 150


@dataclasses.dataclass(frozen=True, slots=True)
class Line:
    """One line, shape (n_steps,), of a colour; or the lower and upper end of a band, shape (2, n_steps)."""

    name: str
    values: Seconds
    of: str
    dashed: bool = False

    @property
    def legend(self) -> tuple[str, str]:
        """Its colour, and what it means."""
        return self.of, self.name + (" (dashed)" if self.dashed else "")


@dataclasses.dataclass(frozen=True, slots=True)
class Marks:
    """What is marked in time: causes by name, and steps in which a checkpoint was written."""

    causes: Sequence[tuple[str, When]] = ()
    saved: Sequence[int] = ()


def draw_lines(
    key: str, steps: Ints, lines: Sequence[Line], unit: str, marks: Marks, width: float = LEAD_WIDTH
) -> Sheet:
    """Draw lines over steps; the scale begins at 0 where values are seconds, and where ratios are far above 1."""
    values = np.concatenate([line.values.ravel() for line in lines])
    low, high = float(np.nanmin(values)), float(np.nanmax(values))
    low = 0.0 if unit == "seconds" else min(low, 1.0) if high / max(low, 1e-9) < 3 else 0.0
    high = max(high, low * 1.02, low + 1e-9)
    room = (high - low) * 0.06
    sheet = Sheet(key, width, _HEIGHT, (64, 16, 30, 46))
    axes = sheet.axes
    axes.set_xlim(-0.6, len(steps) - 0.4)
    axes.set_ylim(low - room * (2.2 if len(marks.saved) else 0.6), high + room)
    _draw_lines(sheet, steps, lines)
    _mark_times(
        sheet,
        steps,
        marks,
        low - room,
        np.nanmax(np.stack([line.values for line in lines if line.values.ndim == 1]), axis=0),
    )
    ticks = [tick for tick in round_ticks(low, high, 6) if tick >= low - room / 2]
    sheet.rule_y(ticks, UNITS[unit].label(ticks))
    size = max(1, -(-len(steps) // _MAX_POINTS))
    shown = [line for line in lines if line.values.ndim == 1]
    for start in range(0, len(steps), size):
        i = start + int(np.argmax(np.nan_to_num(shown[0].values[start : start + size])))
        said = "; ".join(f"{line.name} {UNITS[unit].say(line.values[i])}" for line in shown)
        sheet.point(i - 0.5, i + 0.5, low, high, f"step {steps[i]}: {said}", int(steps[i]))
    return sheet


def _draw_lines(sheet: Sheet, steps: Ints, lines: Sequence[Line]) -> None:
    """Draw every line, broken where steps are missing, and name the steps."""
    gaps = _gaps(steps)
    runs = np.split(np.arange(len(steps)), gaps if len(gaps) <= _MAX_GAPS else [])
    for line in lines:
        for run in runs:
            if line.values.ndim == 2:
                low, high = line.values[:, run]
                sheet.axes.fill_between(run, low, high, color=colour(line.of), alpha=0.3, linewidth=0, step=None)
                continue
            mark = "o" if not line.dashed and (len(steps) <= _MAX_MARKS or len(run) == 1) else None
            style = (0, (4, 2)) if line.dashed else "-"
            sheet.axes.plot(
                run, line.values[run], color=colour(line.of), linewidth=1.4 if line.dashed else 2.2, linestyle=style,
                marker=mark, markersize=4,
            )  # fmt: skip
    for run in runs[1:]:
        sheet.axes.axvline(run[0] - 0.5, color=colour("line"), linewidth=1)
    ticks = _ticks(steps)
    sheet.ticks_x(ticks, [str(steps[i]) for i in ticks])
    jumps = "step (numbers jump)" if len(runs) == 1 else "step (a grey line where steps are missing)"
    sheet.name_axes(jumps if len(gaps) else "step")


def _mark_times(sheet: Sheet, steps: Ints, marks: Marks, foot: float, values: Seconds) -> None:
    """Mark onsets, recoveries, periods and checkpoints."""
    top = sheet.axes.get_ylim()[1]
    lift = (top - foot) * 0.05
    for name, when in marks.causes:
        ends = {"begins": when.onset_step, "ends": when.recovery_step}
        shown = {what: step for what, step in ends.items() if step is not None and steps[0] <= step <= steps[-1]}
        for at in (float(np.searchsorted(steps, step)) - 0.5 for step in shown.values()):
            sheet.axes.axvline(at, color=colour("bad"), linewidth=2, linestyle=(0, (6, 3)))
        if shown:  # in one line: two would overlap where they are near
            at = float(np.searchsorted(steps, next(iter(shown.values())))) - 0.5
            across = "right" if at > len(steps) / 2 else "left"
            said = ", ".join(f"{what}: step {step}" for what, step in shown.items())
            sheet.write(at, top + lift, f"{name} {said}", of="bad", across=across, bold=True)
        for i in _periods(steps, values, when):
            sheet.axes.axvline(i, color=colour("warn"), linewidth=1, linestyle=(0, (2, 3)))
    if len(marks.saved):
        saved = np.searchsorted(steps, np.asarray(marks.saved), side="right") - 1
        sheet.axes.plot(
            saved, np.full(len(saved), foot), color=colour("other"), linestyle="none", marker="^", markersize=8
        )


def _periods(steps: Ints, values: Seconds, when: When) -> list[int]:
    """Give the positions of the steps that lie whole periods from the longest one."""
    if when.period_steps is None or when.period_steps < 2:
        return []
    away = (steps - steps[int(np.nanargmax(values))]) / when.period_steps
    found: list[int] = np.flatnonzero(np.abs(away - np.round(away)) * when.period_steps < 0.5).tolist()
    return found if len(found) <= _MAX_PERIODS else []


def _gaps(steps: Ints) -> Ints:
    """Give the positions of steps whose number does not follow the one before as most do."""
    away = np.diff(steps)
    return np.flatnonzero(away != (np.median(away) if len(away) else 1)) + 1


def _ticks(steps: Ints) -> list[int]:
    """Choose about a dozen positions to name: round numbers, or the first after each gap."""
    gaps = [0, *_gaps(steps).tolist()]
    if len(steps) <= _MAX_NAMED:
        return list(range(len(steps)))
    if len(gaps) == 1 and len(steps) > 1:
        wanted = round_ticks(float(steps[0]), float(steps[-1]), 12)
        found = [int(i) for i in np.flatnonzero(np.isin(steps, np.round(wanted)))]
        return found if len(found) > 2 else spread(steps, 12)
    if 1 < len(gaps) <= 14:
        least = len(steps) / 16
        kept = [gap for gap, after in zip(gaps, [*gaps[1:], len(steps)], strict=True) if after - gap >= least]
        return sorted({*kept, len(steps) - 1})
    return spread(steps, 12)
