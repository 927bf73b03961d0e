"""The iterations of a training log over time: their seconds, slow windows shaded, slow iterations and restarts marked.

Enters: a diagnosis with a log. Leaves: a `Picture`.
"""

import numpy as np

from diagnose.model.training_log import LogFacts
from diagnose.report import words
from diagnose.report.facts import describe_end, describe_ledger, describe_log
from diagnose.report.html.draw import Sheet, colour, round_ticks
from diagnose.report.html.picture import FULL_WIDTH, UNITS, Picture

_HEIGHT = 360.0
#: Columns that lines are gathered in: each shows the least and the most of its lines.
_MAX_COLUMNS = 600
#: Slow lines marked one by one, restarts and windows at most.
_MAX_MARKS = 300


def draw_log(log: LogFacts) -> Picture:
    """Draw the step times of a log."""
    x, y = log.iterations.astype(np.float64), log.step_s
    good_s = log.ledger.good_pace if log.ledger is not None else float(np.median(y))
    unit = UNITS["ratio" if log.of else "seconds"]  # rates alone: how many times as long as at the good pace
    if log.of:
        y, good_s = y / good_s, 1.0
    top = float(y.max()) * 1.08
    sheet = Sheet("log", FULL_WIDTH, _HEIGHT, (64, 16, 30, 46))
    sheet.axes.set_xlim(x[0] - log.interval, x[-1] + log.interval)
    sheet.axes.set_ylim(0.0, top)
    ticks = round_ticks(0.0, top, 6)
    sheet.rule_y(ticks, unit.label(ticks))
    for window in log.windows[:_MAX_MARKS]:
        sheet.axes.axvspan(window.first, window.last, color=colour("bad"), alpha=0.14, linewidth=0)
    size = max(1, -(-len(x) // _MAX_COLUMNS))
    at = np.arange(0, len(x), size)
    low, high = np.minimum.reduceat(y, at), np.maximum.reduceat(y, at)
    if size > 1:
        sheet.axes.fill_between(x[at], low, high, color=colour("accent"), alpha=0.35, linewidth=0)
    middle = y if size == 1 else np.array([np.median(y[i : i + size]) for i in at.tolist()])
    sheet.axes.plot(x[at], middle, color=colour("accent"), linewidth=1.6)
    slow = np.unique(np.concatenate([np.zeros(0, dtype=np.int64), *log.spike_lines]))
    if len(slow) <= _MAX_MARKS:
        sheet.axes.plot(x[slow], y[slow], color=colour("warn"), linestyle="none", marker="o", markersize=5)
    for restart in log.restarts[:_MAX_MARKS]:
        sheet.axes.axvline(restart.resumed_at, color=colour("other"), linewidth=2, linestyle=(0, (6, 3)))
    sheet.axes.axhline(good_s, color=colour("good"), linewidth=1.4, linestyle=(0, (4, 2)))
    sheet.name_axes("iteration")
    for i, start in enumerate(at.tolist()):
        last = min(start + size, len(x)) - 1
        span = f"iteration {int(x[start])}" + (f" to {int(x[last])}" if last > start else "")
        most = f", at most {unit.say(float(high[i]))}" if size > 1 else ""
        half = log.interval * size / 2
        sheet.point(
            x[start] - half,
            x[start] + half,
            0.0,
            top,
            f"{span}: {unit.say(float(middle[i]))}{most}",
            int(x[start]),
        )
    ended = f" Ended with {end}." if (end := describe_end(log)) else ""
    says = f"{describe_log(log)}.{ended}"
    rows = [(what, seconds, words.percent(share)) for what, seconds, share in describe_ledger(log)]
    what = "iterations, times as long as at the good pace" if log.of else "seconds of an iteration"
    legend = [("accent", what), ("good", "the job's own good pace (dashed)")]
    legend += [("bad", "slow windows")] if log.windows else []
    legend += [("warn", "single slow iterations")] if 0 < len(slow) <= _MAX_MARKS else []
    legend += [("other", "restarts (dashed)")] if log.restarts else []
    return Picture(
        "log",
        "The training log",
        says,
        sheet.svg(f"{what[:1].upper()}{what[1:]}. {says}"),
        ("where the time went", "seconds", "part of all"),
        rows,
        legend=tuple(legend),
        probe=sheet.points | {"tall": True},
    )
