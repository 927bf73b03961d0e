"""Pictures of lost seconds by worker and step, and of links.

Enters: a `ReportData`. Leaves: `Picture`s.
"""

import numpy as np

from diagnose.model.analysis import ReportData
from diagnose.model.components import STALLED
from diagnose.model.optype import Op
from diagnose.model.pictured import NO_RULE
from diagnose.model.stalls import StallKind
from diagnose.model.trace import Ints, Seconds
from diagnose.report import words
from diagnose.report.html.draw import N_LEVELS, Sheet
from diagnose.report.html.picture import MAX_ROWS, Picture, level_of, spread, worker_name

_WIDTH = 640
#: Workers drawn at most: those that lost most.
_MAX_WORKERS = 64
#: Columns at most; where there are more steps, a column is the worst of several.
_MAX_COLUMNS = 320
#: What pauses of a kind are, and the rows of the trace that say so.
_KINDS: dict[StallKind, tuple[str, Op | None]] = {
    StallKind.COLLECTION: ("pauses for garbage collection", Op.GC),
    StallKind.ALLOCATION: ("pauses of the memory allocator", Op.CUDA_MALLOC),
    StallKind.INPUT: ("waiting for input", None),
    StallKind.SAVING: ("writing checkpoints", Op.CHECKPOINT),
}
_KIND_OF = {STALLED[kind]: kind for kind in _KINDS}
#: Breakdown that hold whole pauses: with one of them found, a picture of all pauses is worth its place.
_PAUSES = {"gc-pause", "malloc-pause", "input-delay", "pause"}


def pauses_by_worker_step(data: ReportData) -> tuple[str, Seconds] | None:
    """Give the seconds that the first cause with pauses, or none in particular, cost each worker in each step, with their name.

    They have the shape (n_dp, n_stages, n_steps), steps as in `breakdown.steps`; None where no pauses are worth a picture.
    """
    stalls = data.analysis.breakdown.stalls
    for cause in data.diagnosis.causes:
        components = data.pictured.get(cause.cause, NO_RULE).components
        if "queue" in components and data.analysis.breakdown.queue_wait_s is not None:
            found = _by_worker(data, data.analysis.breakdown.queue_wait_s)
            return "waiting behind communication in flight", found
        for kind in (_KIND_OF[component] for component in components if component in _KIND_OF):
            name, op = _KINDS[kind]
            found = _by_worker(data, stalls.seconds_of(kind))
            if not found.any() and op is not None:
                found = _by_rows(data, op)
            if found.any():
                return name, found
    ledger = data.diagnosis.ledger
    if ledger is None or not _PAUSES & {name for name, share in ledger.components.items() if share >= 0.05}:
        return None
    pauses = [kind for kind in StallKind if kind != StallKind.QUEUE]
    found = sum((_by_worker(data, stalls.seconds_of(kind)) for kind in pauses), start=np.zeros(1))
    return ("pauses of all kinds", np.asarray(found)) if found.any() else None


def draw_pauses(data: ReportData) -> Picture | None:
    """Draw workers down and steps across, hot where a worker stood still."""
    found = pauses_by_worker_step(data)
    if found is None:
        return None
    name, lost_s = found
    diagnosis = data.diagnosis
    n_dp, n_stages, _ = lost_s.shape
    order = np.argsort(data.analysis.breakdown.steps, kind="stable")
    steps, table = data.analysis.breakdown.steps[order], lost_s[:, :, order].reshape(n_dp * n_stages, -1)
    shown = np.argsort(-table.sum(axis=1), kind="stable")[:_MAX_WORKERS]
    shown = np.sort(shown) if len(table) <= _MAX_WORKERS else shown
    size = -(-len(steps) // _MAX_COLUMNS)
    starts = np.arange(0, len(steps), size)
    cells = np.maximum.reduceat(table[shown], starts, axis=1)
    who = [worker_name(diagnosis, int(i) // n_stages, int(i) % n_stages) for i in shown]
    return _draw(name, cells, steps[starts], who, n_left_out=len(table) - len(shown), size=size)


def _draw(name: str, cells: Seconds, steps: Ints, who: list[str], *, n_left_out: int, size: int) -> Picture:
    """Draw the raster; `size` steps share a column."""
    n_rows, n_columns = cells.shape
    high_px = float(np.clip(420 // n_rows, 9, 22))
    top = float(cells.max())
    sheet = Sheet("pauses", _WIDTH + 136, n_rows * high_px + 62, (120, 16, 8, 54))
    sheet.bare()
    sheet.axes.set_xlim(0, n_columns)
    sheet.axes.set_ylim(n_rows, 0)
    levels = np.where(cells > 0, np.maximum(level_of(cells, 0.0, top), 1), 0)
    sheet.heat(levels, edge="line" if _WIDTH / n_columns > 6 else "")
    marked = spread(steps, 16)
    sheet.ticks_x([x + 0.5 for x in marked], [str(steps[x]) for x in marked])
    rows_marked = spread(np.arange(n_rows), int(n_rows * high_px // 13))
    sheet.ticks_y([y + 0.5 for y in rows_marked], [who[y] for y in rows_marked])
    sheet.name_axes("step" if size == 1 else f"first of {size} steps; a cell is the worst of them")
    hit = sorted(((-float(cells[y, x]), int(x), int(y)) for y, x in np.argwhere(cells > 0)))
    found = [(who[y], str(steps[x]), words.seconds(-lost)) for lost, x, y in hit]
    for lost, x, y in hit[:4000]:
        sheet.point(x, x + 1, y, y + 1, f"{who[y]}, step {steps[x]}: {words.seconds(-lost)}")
    n_steps = int((cells > 0).any(axis=0).sum())
    says = f"Seconds lost to {name}, by worker and step: in {n_steps} of {n_columns} {'steps' if size == 1 else 'columns'}, "
    says += f"{words.seconds(top)} at most at once ({found[0][0]}, step {found[0][1]})." if found else "none."
    if n_left_out:
        says += f" Shown are the {n_rows} workers that lost most, worst first; {n_left_out:,} more are not."
    edges = [(n, top * n / N_LEVELS) for n in (2, 4, 6, 8)]
    return Picture(
        "pauses",
        f"Worker by step: {name}",
        says,
        sheet.svg(f"Raster of workers and steps. {says}"),
        ("worker", "step", "lost"),
        found[:MAX_ROWS],
        note=f"the {MAX_ROWS} longest of {len(found):,}" if len(found) > MAX_ROWS else "",
        legend=(("heat0", "none"), *((f"heat{n}", f"from {words.seconds(value)}") for n, value in edges)),
        probe=sheet.points,
    )


def draw_links(data: ReportData) -> Picture | None:
    """Draw what transfers between neighbouring stages cost beyond ordinary ones, where a cause sits in the network."""
    excess = data.analysis.transfers.link_excess_s
    if not data.causes_of("transfer") or not np.nan_to_num(excess).any():
        return None
    diagnosis = data.diagnosis
    n_stages, n_dp = excess.shape
    shown = np.sort(np.argsort(-np.nan_to_num(excess).sum(axis=0), kind="stable")[:_MAX_WORKERS])
    cells = np.nan_to_num(excess[:, shown])
    wide, high = float(np.clip(_WIDTH // len(shown), 9, 90)), float(np.clip(600 // n_stages, 9, 34))
    sheet = Sheet("links", max(len(shown) * wide, 200) + 150, n_stages * high + 40, (134, 16, 30, 10))
    sheet.bare()
    sheet.axes.set_xlim(0, max(len(shown) * wide, 200) / wide)
    sheet.axes.set_ylim(n_stages, 0)
    top = float(cells.max())
    levels = np.where(cells > 0, level_of(cells, 0.0, top), 0)
    labels = diagnosis.stage_labels
    names = [f"stage {labels[s]} - {labels[(s + 1) % n_stages]}" for s in range(n_stages)]
    sheet.heat(levels, edge="line")
    if wide >= 52:
        for y, x in np.argwhere(cells >= top / 100).tolist():
            of = f"heat{levels[y, x]}-ink"
            sheet.write(x + 0.5, y + 0.5, words.seconds(float(cells[y, x])), of=of, size=11, across="center")
    for at in spread(shown, int(sheet.width // 40)):
        sheet.write(at + 0.5, -13 / high, f"dp {diagnosis.dp_labels[shown[at]]}", of="muted", across="center")
    for at in spread(labels, int(n_stages * high // 13)):
        sheet.write(-6 / wide, at + 0.5, names[at], of="muted", across="right")
    found = sorted((-float(cells[y, x]), y, x) for y, x in np.ndindex(cells.shape) if cells[y, x] > 0)
    rows = [(names[y], str(diagnosis.dp_labels[shown[x]]), words.seconds(-lost)) for lost, y, x in found]
    says = "Seconds a step that transfers between two stages took beyond ordinary ones. "
    says += f"The worst link is {rows[0][0]} of dp {rows[0][1]}: {rows[0][2]} a step." if rows else ""
    for y, x in np.ndindex(cells.shape):
        lost = words.seconds(float(cells[y, x]))
        sheet.point(x, x + 1, y, y + 1, f"dp {diagnosis.dp_labels[shown[x]]}, {names[y]}: {lost}")
    return Picture(
        "links",
        "Links between stages",
        says,
        sheet.svg(f"Heat map of links. {says}"),
        ("link", "dp", "beyond ordinary, a step"),
        rows[:MAX_ROWS],
        note=f"{len(shown)} of {n_dp:,} dp ranks" if len(shown) < n_dp else "",
        legend=(("heat0", "none"), *((f"heat{n}", f"from {words.seconds(top * n / N_LEVELS)}") for n in (2, 5, 8))),
        probe=sheet.points,
    )


def _by_worker(data: ReportData, values: Seconds) -> Seconds:
    """Add up values of computes (2, n_virtual, n_microbatches, n_steps, n_dp) by worker and step."""
    n_stages = data.analysis.trace.n_stages
    by_virtual = np.nansum(values, axis=(0, 2))
    folded = by_virtual.reshape(-1, n_stages, *by_virtual.shape[1:]).sum(axis=0)
    return np.transpose(folded, (2, 0, 1))


def _by_rows(data: ReportData, op: Op) -> Seconds:
    """Add up the rows of one kind of evidence by worker and step."""
    evidence, steps = data.analysis.trace.evidence, data.analysis.breakdown.steps
    found = np.zeros((data.analysis.trace.n_dp, data.analysis.trace.n_stages, len(steps)))
    at = {int(step): i for i, step in enumerate(steps)}
    for i in np.flatnonzero(evidence.op == op).tolist():
        step = at.get(int(evidence.step[i]))
        if step is not None:
            found[evidence.dp[i], evidence.stage[i], step] += max(0.0, float(evidence.end_s[i] - evidence.start_s[i]))
    return found
