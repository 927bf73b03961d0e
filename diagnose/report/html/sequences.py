"""For long sequences: forward against backward, and durations against squared tokens.

Enters: a `ReportData`. Leaves: a `Picture`.
"""

import numpy as np

from diagnose.model.analysis import ReportData
from diagnose.model.optype import Op
from diagnose.model.trace import Seconds
from diagnose.report import words
from diagnose.report.html.draw import Sheet, colour
from diagnose.report.html.picture import Picture

#: Points of a scatter at most, taken at even distances.
_MAX_POINTS = 1200
#: Rows of their table at most.
_MAX_ROWS = 120


def draw_forward_backward(data: ReportData) -> Picture | None:
    """Draw the forward of every microbatch of the first stage against its backward, where microbatches differ in both."""
    compute = data.analysis.breakdown.compute_s
    if not _about_sequences(data) or compute.shape[0] < 2:
        return None
    forward, backward = compute[0, 0].ravel(), compute[1, 0].ravel()
    found = data.analysis.breakdown.forward_backward_correlation
    says = "Each point is one microbatch on the first stage. Those long in both directions carry long documents, or busy experts"
    says += f"; correlation of their times {words.ratio(found)}." if found is not None else "."
    return _scatter(
        "forward-backward", "Forward against backward", says, backward, forward, "backward, seconds", "forward, seconds"
    )  # fmt: skip


def draw_tokens(data: ReportData) -> Picture | None:
    """Draw the forward of every microbatch of the first stage against its sum of squared document lengths, where that is known."""
    x, y = [], []
    for block in data.analysis.trace.blocks:
        if block.tokens_sq is None:
            continue
        nodes = np.flatnonzero((block.nodes.op == Op.FORWARD) & (block.nodes.stage == 0) & (block.nodes.chunk <= 0))
        x.append(block.tokens_sq[nodes].ravel())
        y.append((block.end_s - block.start_s)[nodes].ravel())
    if not x or not np.isfinite(np.concatenate(x)).any():
        return None
    says = "Each point is one forward on the first stage: time against the sum of its squared document lengths, "
    says += "which is what attention costs. Points on a line say that the documents explain the times."
    return _scatter(
        "tokens", "Duration against squared tokens", says, np.concatenate(x), np.concatenate(y),
        "sum of squared document lengths (tokens_sq)", "forward, seconds",
    )  # fmt: skip


def _about_sequences(data: ReportData) -> bool:
    """Say whether microbatches differ for a reason, or the trace knows the tokens."""
    return bool(data.causes_of("microbatch") or data.causes_of("expert")) or any(
        block.tokens_sq is not None for block in data.analysis.trace.blocks
    )


def _scatter(key: str, title: str, says: str, x: Seconds, y: Seconds, across: str, up: str) -> Picture | None:
    """Draw points, thinned evenly."""
    known = np.isfinite(x) & np.isfinite(y)
    x, y = x[known], y[known]
    if len(x) == 0:
        return None
    order = np.argsort(x, kind="stable")
    n_all = len(order)
    order = order[np.unique(np.linspace(0, n_all - 1, min(n_all, _MAX_POINTS)).astype(np.int64))]
    x, y = x[order], y[order]
    sheet = Sheet(key, 560, 380, (80, 20, 12, 50))
    for set_limits, values in ((sheet.axes.set_xlim, x), (sheet.axes.set_ylim, y)):
        top = float(values.max())
        set_limits(0.0, top * 1.04 if top > 0 else 1.0)
    sheet.axes.plot(
        x, y, color=colour("accent"), linestyle="none", marker="o", markersize=4, alpha=0.55, markeredgewidth=0
    )
    sheet.name_axes(across, up)
    said = [(_number(a, across), words.seconds(b)) for a, b in zip(x.tolist(), y.tolist(), strict=True)]
    centres = sheet.axes.transData.transform(np.stack([x, y], axis=1))
    short = [name.partition(",")[0] for name in (across, up)]
    items = [
        [round(cx - 4, 1), round(sheet.height - cy - 4, 1), 8, 8, f"{short[0]} {a}; {short[1]} {b}"]
        for (cx, cy), (a, b) in zip(centres.tolist(), said, strict=True)
    ]
    rows = said[:: max(1, -(-len(said) // _MAX_ROWS))]
    return Picture(
        key,
        title,
        says + (f" {len(x):,} of {n_all:,} are drawn." if len(x) < n_all else ""),
        sheet.svg(f"Scatter of {len(x):,} points: {up} against {across}. {says}"),
        (across, up),
        rows,
        note=f"{len(rows)} of {n_all:,} microbatches, at even distances" if len(rows) < n_all else "",
        probe={"kind": "points", "items": items},
    )


def _number(value: float, what: str) -> str:
    """Say a time, or a number of squared tokens."""
    return words.seconds(value) if "seconds" in what else f"{value:,.4g}"
