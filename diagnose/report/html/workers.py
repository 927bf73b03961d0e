"""The heat map of workers: dp ranks across, stages down, for all steps together and for each.

Enters: a `Diagnosis`. Leaves: a `Picture` whose probe lets the script show any step.
"""

import base64
import dataclasses
from collections.abc import Sequence

import numpy as np

from diagnose.model.diagnosis import MAX_WORKERS_LISTED, Diagnosis
from diagnose.model.place import Worker
from diagnose.model.trace import Ints, Seconds
from diagnose.report import words
from diagnose.report.charts import scale_of
from diagnose.report.escape import escape
from diagnose.report.html.draw import N_LEVELS, Sheet
from diagnose.report.html.picture import SIDE_WIDTH, Culprits, Picture, find_culprits, level_of, spread

#: Dp ranks in a band; wider jobs have several bands, one below the other.
_BAND = 128
#: Values of single workers in single steps that a page carries at most, two bytes each.
_MAX_VALUES = 360_000
#: Culprits that get a frame.
_MAX_FRAMES = 64
#: A cell at least this wide shows its number.
_NUMBER_PX = 40
#: How a slowdown is written for the script: thousandths; the largest number stands for "not known".
_UNIT, _UNKNOWN = 1000, 65535
#: Characters of a host that the script gets.
_MAX_HOST = 48
_SAYS = "Slowdown of the whole job when only that worker keeps its own times."
_HEAD = ("dp", "stage", "rank", "host", "S")


@dataclasses.dataclass(frozen=True, slots=True)
class _Map:
    """Sizes in cells and pixels: `band` dp ranks side by side, `n_bands` of them, cells of `wide` x `high`."""

    n_dp: int
    n_stages: int
    band: int
    n_bands: int
    wide: float
    high: float

    def place(self, dp: int, stage: int) -> tuple[float, float, float, float]:
        """Give left, right, low and high of a cell."""
        x, y = dp % self.band, dp // self.band * (self.n_stages + 0.6) + stage
        return float(x), x + 1.0, float(y), y + 1.0


def draw_workers(diagnosis: Diagnosis) -> Picture | None:
    """Draw how long the job takes when only one worker keeps its own times, for each worker."""
    by_worker = diagnosis.what_if.by_worker
    if np.isnan(by_worker).all():
        return None
    low, high = scale_of(by_worker)
    culprits = find_culprits(diagnosis)
    sheet, grid = _draw_map(by_worker, diagnosis.dp_labels, diagnosis.stage_labels, culprits)
    worst = diagnosis.slowest_workers(MAX_WORKERS_LISTED)
    says = _describe(diagnosis, *worst[0], culprits)
    box = sheet.box(0, 1, 0, 1)
    return dataclasses.replace(
        _to_picture(sheet, by_worker, worst, says, culprits),
        probe={
            "kind": "grid",
            "x": round(box.x, 2),
            "y": round(box.y, 2),
            "w": grid.wide,
            "h": grid.high,
            "band": grid.band,
            "gap": 0.6,
            "low": low,
            "high": high,
            "dp": diagnosis.dp_labels.tolist(),
            "stage": diagnosis.stage_labels.tolist(),
            **_hosts(diagnosis),
            **_pack(diagnosis),
        },
    )


def draw_kept_workers(by_worker: Seconds) -> Picture | None:
    """Draw the same of a window whose diagnosis is not at hand: slowdowns alone, shape (n_dp, n_stages), ranks from 0."""
    if not by_worker.size or np.isnan(by_worker).all():
        return None
    n_dp, n_stages = by_worker.shape
    nobody = Culprits((), ())
    sheet, _ = _draw_map(by_worker, np.arange(n_dp), np.arange(n_stages), nobody)
    order = np.argsort(-np.nan_to_num(by_worker, nan=-np.inf), axis=None, kind="stable")[:MAX_WORKERS_LISTED].tolist()
    worst = [(Worker(i // n_stages, i % n_stages), float(by_worker.flat[i])) for i in order]
    says = f"{_SAYS} {_say_worst(*worst[0])} Ranks are counted from 0."
    return _to_picture(sheet, by_worker, worst, says, nobody)


def _to_picture(
    sheet: Sheet, by_worker: Seconds, worst: Sequence[tuple[Worker, float]], says: str, culprits: Culprits
) -> Picture:
    """Put the map beside its table of the worst workers."""
    return Picture(
        "workers",
        "Workers",
        says,
        sheet.svg(f"Heat map of {by_worker.size:,} workers. {says}"),
        _HEAD,
        [_row(who, value) for who, value in worst],
        note=f"the {MAX_WORKERS_LISTED} worst of {by_worker.size:,} workers" if by_worker.size > len(worst) else "",
        legend=_legend(*scale_of(by_worker), framed=bool(culprits.workers or culprits.stages)),
    )


def _draw_map(by_worker: Seconds, dp_labels: Ints, stage_labels: Ints, culprits: Culprits) -> tuple[Sheet, _Map]:
    """Draw the cells with their numbers, and the names of ranks beside them."""
    low, high = scale_of(by_worker)
    grid = _lay_out(*by_worker.shape)
    n_rows = grid.n_bands * (grid.n_stages + 0.6) - 0.6
    margins = (80.0, 20.0, 26.0, 30.0)
    sheet = Sheet("workers", max(grid.band * grid.wide + 100, SIDE_WIDTH), n_rows * grid.high + 56, margins)
    sheet.axes.set_xlim(0, (sheet.width - 100) / grid.wide)
    sheet.axes.set_ylim(n_rows, 0)
    sheet.bare()
    levels = level_of(by_worker, low, high)
    for level in range(N_LEVELS):
        places = [grid.place(int(dp), int(stage)) for dp, stage in np.argwhere(levels == level)]
        sheet.cells(places, f"heat{level}", f"heat{level}", edge="line" if grid.wide >= 5 else "")
    _mark(sheet, grid, culprits)
    if grid.wide >= _NUMBER_PX:
        _write_numbers(sheet, grid, by_worker, levels, culprits)
    _name_ranks(sheet, grid, dp_labels, stage_labels)
    return sheet, grid


def _say_worst(who: Worker, slowdown: float) -> str:
    """Name the worst worker, where there is one."""
    is_any = words.ratio(max(slowdown, 1.0)) != words.ratio(1.0)
    return f"The worst is {words.worker(who)} with {words.ratio(slowdown)}." if is_any else "No worker slows the job."


def _describe(diagnosis: Diagnosis, worst: Worker, slowdown: float, culprits: Culprits) -> str:
    """Say what to see in the map."""
    says = f"{_SAYS} {_say_worst(worst, slowdown)}"
    if culprits.workers:
        dps, stages = diagnosis.dp_labels, diagnosis.stage_labels
        names = [f"dp {int(dps[dp])}, stage {int(stages[stage])}" for dp, stage in culprits.workers]
        says += f" Framed: {'; '.join(words.some_of(names))}, named by a cause."
    return says


def _lay_out(n_dp: int, n_stages: int) -> _Map:
    """Choose sizes at which every worker can be seen, and the map fits on a screen where that is possible."""
    band = min(n_dp, _BAND)
    n_bands = -(-n_dp // band)
    wide = float(max((SIDE_WIDTH - 100) // band, 5))
    high = float(np.clip(330 // (n_bands * (n_stages + 0.6)), 6, 56))
    return _Map(n_dp, n_stages, band, n_bands, wide, high)


def _mark(sheet: Sheet, grid: _Map, culprits: Culprits) -> None:
    """Frame the culprits."""
    for dp, stage in culprits.workers[:_MAX_FRAMES]:
        sheet.outline(*grid.place(dp, stage))
    for stage in culprits.stages:
        for band in range(grid.n_bands):
            left, _, low, high = grid.place(band * grid.band, stage)
            right = min(grid.band, grid.n_dp - band * grid.band)
            sheet.outline(left, float(right), low, high)


def _write_numbers(sheet: Sheet, grid: _Map, by_worker: Seconds, levels: Ints, culprits: Culprits) -> None:
    """Write the slowdown into each cell, and whose fault it is where there is room."""
    named = set(culprits.workers) if grid.high >= 32 else set()
    for dp in range(grid.n_dp):
        for stage in range(grid.n_stages):
            left, right, low, high = grid.place(dp, stage)
            level = int(levels[dp, stage])
            of = f"heat{level}-ink" if level >= 0 else "ink"
            bold = (dp, stage) in named
            up = 0.35 if bold else 0.5
            text = words.ratio(float(by_worker[dp, stage])) if level >= 0 else "?"
            x, y = (left + right) / 2, low + (high - low) * up
            sheet.write(x, y, text, of=of, across="center", bold=bold, key=f"n{dp}-{stage}")
            if bold:
                y = low + (high - low) * 0.74
                sheet.write(x, y, "culprit", of=of, size=10.5, across="center", key=f"c{dp}-{stage}")


def _name_ranks(sheet: Sheet, grid: _Map, dp_labels: Ints, stage_labels: Ints) -> None:
    """Write dp ranks above the map, and stages (or the ranks of a band) beside it."""
    first = dp_labels[: grid.band]
    for at in spread(first, int(sheet.width // 40)):
        name = f"dp {first[at]}" if grid.wide > 36 else str(first[at])
        sheet.write(at + 0.5, -13 / grid.high, name, of="muted", across="center")
    if grid.n_bands == 1:
        for at in spread(stage_labels, int(grid.n_stages * grid.high // 14)):
            sheet.write(-6 / grid.wide, at + 0.5, f"stage {stage_labels[at]}", of="muted", across="right")
        return
    for band in range(grid.n_bands):
        _, _, low, _ = grid.place(band * grid.band, 0)
        labels = dp_labels[band * grid.band : (band + 1) * grid.band]
        name = f"dp {labels[0]}-{labels[-1]}"
        sheet.write(-6 / grid.wide, low + grid.n_stages / 2, name, of="muted", across="right", size=11)


def _row(who: Worker, slowdown: float) -> tuple[str, ...]:
    """Give the line of a worker in the table."""
    return str(who.dp), str(who.pp), "" if who.rank is None else str(who.rank), who.host or "", words.ratio(slowdown)


def _legend(low: float, high: float, *, framed: bool) -> tuple[tuple[str, str], ...]:
    """Say which slowdown has which colour."""
    edges = np.linspace(low, high, N_LEVELS + 1)
    marks = [
        (f"heat{n}", words.ratio(float(edges[n])) + (" or more" if n == N_LEVELS - 1 else ""))
        for n in range(0, N_LEVELS, 2)
    ]
    return (*marks, *([("outline", "culprit")] if framed else []))


def _hosts(diagnosis: Diagnosis) -> dict[str, object]:
    """Give each host once, and its number for each worker."""
    if diagnosis.hosts is None:
        return {}
    names = [escape(host)[:_MAX_HOST] for host in diagnosis.hosts]
    known = {name: n for n, name in enumerate(dict.fromkeys(names))}
    return {"hosts": list(known), "host": [known[name] for name in names]}


def _pack(diagnosis: Diagnosis) -> dict[str, object]:
    """Write the slowdowns of all workers in all steps, or of the steps that fit, for the script."""
    w = diagnosis.what_if
    n_steps = len(w.steps)
    keep = max(1, min(n_steps, _MAX_VALUES // max(w.by_worker.size, 1)))
    slowest = np.argsort(-np.nan_to_num(w.by_step, nan=0.0), kind="stable")[:keep]
    chosen = np.sort(slowest)
    values = np.concatenate([w.by_worker[:, :, None], w.by_worker_step[:, :, chosen]], axis=2)
    whole = np.where(np.isfinite(values), np.clip(np.round(values * _UNIT), 0, _UNKNOWN - 1), _UNKNOWN).astype("<u2")
    packed = base64.b64encode(np.ascontiguousarray(np.moveaxis(whole, 2, 0)).tobytes()).decode("ascii")
    return {"steps": w.steps[chosen].tolist(), "values": packed, "unit": _UNIT, "left_out": n_steps - keep}
