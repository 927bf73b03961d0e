"""Microbatches one by one: durations against squared tokens where these are known, else forward against backward.

Enters: a `ReportData`. Leaves: a `Picture`.
"""

import numpy as np

from diagnose.model.analysis import ReportData
from diagnose.model.optype import Op
from diagnose.model.trace import Seconds
from diagnose.report import words
from diagnose.report.html.draw import Sheet, colour, round_ticks
from diagnose.report.html.picture import SIDE_WIDTH, UNITS, Picture

#: Points of a scatter at most, taken at even distances.
_MAX_POINTS = 1200
#: Rows of their table at most.
_MAX_ROWS = 120


def draw_microbatches(data: ReportData) -> Picture | None:
    """Draw the microbatches of the first stage as points: what costs time is in all of them, and in both directions."""
    return _draw_tokens(data) or _draw_directions(data)


def _draw_directions(data: ReportData) -> Picture | None:
    """Draw forward against backward."""
    compute = data.analysis.breakdown.compute_s
    if compute.shape[0] < 2:
        return None
    found = data.analysis.breakdown.forward_backward_correlation
    says = "Each point is one microbatch on the first stage. Those long in both directions carry long documents, or busy experts"
    says += f"; correlation of their times {words.ratio(found)}." if found is not None else "."
    title, names = "Forward against backward", ("backward", "forward")
    return _scatter(title, says, compute[1, 0].ravel(), compute[0, 0].ravel(), names)


def _draw_tokens(data: ReportData) -> Picture | None:
    """Draw forwards against their sums of squared document lengths; None where no block knows them."""
    x, y = [], []
    for block in data.analysis.trace.blocks:
        if block.tokens_sq is None:
            continue
        nodes = np.flatnonzero((block.nodes.op == Op.FORWARD) & (block.nodes.stage == 0) & (block.nodes.chunk <= 0))
        x.append(block.tokens_sq[nodes].ravel())
        y.append((block.end_s - block.start_s)[nodes].ravel())
    if not x or not np.isfinite(np.concatenate(x)).any():
        return None
    says = "Each point is one forward on the first stage: its time against the sum of its squared document lengths, "
    says += "which is what attention costs. Points on a line say that the documents explain the times."
    names = ("squared document lengths, summed", "forward")
    return _scatter("Duration against squared tokens", says, np.concatenate(x), np.concatenate(y), names)


def _scatter(title: str, says: str, x: Seconds, y: Seconds, names: tuple[str, str]) -> Picture | None:
    """Draw points, thinned evenly; `names` are those of the axis across and of the one up, which has seconds."""
    known = np.isfinite(x) & np.isfinite(y)
    x, y = x[known], y[known]
    n_all = len(x)
    if n_all == 0:
        return None
    order = np.argsort(x, kind="stable")
    order = order[np.unique(np.linspace(0, n_all - 1, min(n_all, _MAX_POINTS)).astype(np.int64))]
    x, y = x[order], y[order]
    sheet = Sheet("microbatches", SIDE_WIDTH, 340, (70, 16, 10, 50))
    units = ("seconds" if "squared" not in names[0] else "", "seconds")
    for set_limits, ticks_of, values, unit in (
        (sheet.axes.set_xlim, sheet.ticks_x, x, units[0]),
        (sheet.axes.set_ylim, sheet.ticks_y, y, units[1]),
    ):
        top = max(float(values.max()), 1e-9)
        set_limits(0.0, top * 1.04)
        ticks = round_ticks(0.0, top, 6)
        ticks_of(ticks, UNITS[unit].label(ticks) if unit else [_count(tick) for tick in ticks])
    sheet.axes.plot(
        x, y, color=colour("accent"), linestyle="none", marker="o", markersize=5, alpha=0.5, markeredgewidth=0
    )
    sheet.name_axes(*names)
    said = [
        (words.seconds(a) if units[0] else _count(a), words.seconds(b))
        for a, b in zip(x.tolist(), y.tolist(), strict=True)
    ]
    centres = sheet.axes.transData.transform(np.stack([x, y], axis=1))
    items = [
        [round(cx - 4, 1), round(sheet.height - cy - 4, 1), 8, 8, f"{names[0]} {a}; {names[1]} {b}"]
        for (cx, cy), (a, b) in zip(centres.tolist(), said, strict=True)
    ]
    rows = said[:: max(1, -(-len(said) // _MAX_ROWS))]
    return Picture(
        "microbatches",
        title,
        says + (f" {len(x):,} of {n_all:,} are drawn." if len(x) < n_all else ""),
        sheet.svg(f"Scatter of {len(x):,} points: {names[1]} against {names[0]}. {says}"),
        names,
        rows,
        note=f"{len(rows)} of {n_all:,} microbatches, at even distances" if len(rows) < n_all else "",
        probe={"kind": "points", "items": items},
    )


def _count(value: float) -> str:
    """Write a large number.

    >>> _count(3.5e9), _count(20_000.0)
    ('3.5 billion', '20 thousand')
    """
    for unit, scale in ((" billion", 1e9), (" million", 1e6), (" thousand", 1e3)):
        if value >= scale:
            return f"{value / scale:.3g}{unit}"
    return f"{value:.3g}"
