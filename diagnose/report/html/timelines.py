"""The pipeline of the worst step: recorded above ideal above fixed, for the affected dp rank and a sound one.

Enters: `ReportData`. Leaves: a `Picture` whose probe lets the script draw any window of the step anew.
"""

import dataclasses
import math

import numpy as np

from diagnose.model.analysis import ReportData
from diagnose.model.optype import COMPUTE, DIRECTIONS, NAMES, Op
from diagnose.model.timeline import Timeline
from diagnose.report import words
from diagnose.report.html.draw import Sheet, colour, round_ticks
from diagnose.report.html.picture import FULL_WIDTH, UNITS, Picture, find_culprits

#: Marks of the axis at most, as in script.js.
_MAX_TICKS = 12
#: Bars that a page draws at most: above the first number communication is left out, above the second the picture.
_MAX_BARS, _MAX_COMPUTES = 9_000, 26_000
_KINDS = ("forward", "backward", "comm", "other")


@dataclasses.dataclass(frozen=True, slots=True)
class _Bars:
    """All bars of the picture: lane, kind, code of the operation, microbatch, start and end in seconds; one row a bar."""

    lane: np.ndarray
    kind: np.ndarray
    op: np.ndarray
    microbatch: np.ndarray
    start_s: np.ndarray
    end_s: np.ndarray


def draw_timeline(data: ReportData) -> Picture | None:
    """Draw one step three times, each for two dp ranks."""
    step = worst_step(data)
    affected, sound = choose_ranks(data, step)
    dp = np.array([affected] if sound is None else [affected, sound], dtype=np.int64)
    lines = [line for line in _three(data, step, dp) if line is not None]
    if not lines:
        return None
    bars = _gather(lines, data.analysis.trace.n_stages, comm=True)
    if len(bars.lane) > _MAX_BARS:
        bars = _gather(lines, data.analysis.trace.n_stages, comm=False)
    if not 0 < len(bars.lane) <= _MAX_COMPUTES:
        return None
    return _draw(data, lines, bars, step)


def worst_step(data: ReportData) -> int:
    """Give the step that was recorded furthest above its ideal; a warm-up does not count."""
    w = data.diagnosis.what_if
    over = np.where(np.isin(w.steps, data.analysis.breakdown.steps), w.recorded_s / w.ideal_s, -np.inf)
    return int(w.steps[int(np.nanargmax(over))])


def choose_ranks(data: ReportData, step: int) -> tuple[int, int | None]:
    """Choose the dp rank (index) that a cause names, or that lost most in a step, and the least slow of the others."""
    w = data.diagnosis.what_if
    culprits = find_culprits(data.diagnosis).workers
    in_step = np.nan_to_num(w.by_worker_step[:, :, int(np.flatnonzero(w.steps == step)[0])], nan=1.0).max(axis=1)
    if culprits:
        affected = culprits[0][0]
    else:
        stalls = data.analysis.breakdown.stalls
        paused_s = np.nan_to_num(stalls.inside_s + stalls.before_s).sum(axis=(0, 1, 2))
        at = data.analysis.breakdown.steps == step
        lost_s = paused_s[at].sum(axis=0)
        affected = int(lost_s.argmax()) if lost_s.any() else int(in_step.argmax())
    named = {place[0] for place in culprits} | {affected}
    others = [d for d in range(len(in_step)) if d not in named] or [d for d in range(len(in_step)) if d != affected]
    return affected, min(others, key=lambda d: (in_step[d], d)) if others else None


def _three(data: ReportData, step: int, dp: np.ndarray) -> list[Timeline | None]:
    """Give the step as recorded, ideal, and with the plan done, or without any fault where there is none."""
    fixed = data.analysis.timelines.changed("fixed", step, dp, data.plan) if data.plan else None
    return [
        data.analysis.timelines.recorded(step, dp),
        data.analysis.timelines.ideal(step, dp),
        fixed or data.analysis.timelines.clean(step, dp),
    ]


def _gather(lines: list[Timeline], n_stages: int, *, comm: bool) -> _Bars:
    """Put the operations of all timelines into one table; lanes count timelines, then dp ranks, then stages."""
    parts: list[list[np.ndarray]] = []
    for n, line in enumerate(lines):
        nodes = line.nodes
        kind = np.full(len(nodes), _KINDS.index("comm"))
        kind[np.isin(nodes.op, [int(op) for op in COMPUTE])] = _KINDS.index("other")
        kind[nodes.op == Op.FORWARD], kind[np.isin(nodes.op, (Op.BACKWARD, Op.WEIGHT))] = 0, 1
        for d in range(len(line.dp)):
            keep = (
                np.isfinite(line.start_s[:, d])
                & np.isfinite(line.end_s[:, d])
                & (line.end_s[:, d] > line.start_s[:, d])
            )
            keep &= comm | (kind != _KINDS.index("comm"))
            lane = (n * len(line.dp) + d) * n_stages + nodes.stage
            parts.append(
                [a[keep] for a in (lane, kind, nodes.op, nodes.microbatch, line.start_s[:, d], line.end_s[:, d])]
            )
    return _Bars(*(np.concatenate(column) for column in zip(*parts, strict=True)))


def _draw(data: ReportData, lines: list[Timeline], bars: _Bars, step: int) -> Picture:
    """Lay the lanes out, and draw the bars of each kind as one path."""
    diagnosis, n_stages = data.diagnosis, data.analysis.trace.n_stages
    dp = lines[0].dp
    lane_px = float(np.clip(620 // (len(lines) * len(dp) * n_stages), 10, 22))
    head_px = 24.0
    tops, heads, y = [], [], 0.0
    for line in lines:
        for d, rank in enumerate(dp.tolist()):
            heads.append((y + head_px / 2, _head(data, line, rank, affected=d == 0)))
            y += head_px
            tops += [y + lane_px * stage for stage in range(n_stages)]
            y += lane_px * n_stages
        y += 8
    end_s = max(*(line.step_s for line in lines), float(bars.end_s.max()))
    sheet = Sheet("timeline", FULL_WIDTH, y + 36, (66, 24, 4, 32))
    sheet.axes.set_xlim(0, end_s)
    sheet.axes.set_ylim(y, 0)
    sheet.axes.spines["left"].set_visible(False)
    _draw_bars(sheet, bars, np.array(tops)[bars.lane], lane_px)
    for at, text in heads:
        sheet.write(0, at, text, size=12, bold=True)
    for n, line in enumerate(lines):
        first = tops[n * len(dp) * n_stages] - head_px
        last = tops[(n + 1) * len(dp) * n_stages - 1] + lane_px
        sheet.axes.plot([line.step_s] * 2, [first, last], color=colour("ink"), linewidth=1.5, gid=f"end{n}")
    every = max(1, math.ceil(11 / lane_px))
    labelled = [i for i in range(len(tops)) if i % n_stages % every == 0]
    labels = [f"stage {diagnosis.stage_labels[i % n_stages]}" for i in labelled]
    sheet.ticks_y([tops[i] + lane_px / 2 for i in labelled], labels)
    sheet.axes.tick_params(axis="y", length=0, labelsize=10)
    ticks = round_ticks(0.0, end_s, _MAX_TICKS)
    sheet.ticks_x(ticks, UNITS["seconds"].label(ticks))
    frame = sheet.box(0, end_s, 0, y)
    unit = 10.0 ** (math.floor(math.log10(end_s)) - 5)  # six digits of the times are left
    rows = [_row(data, line, rank) for line in lines for rank in dp.tolist()]
    says = f"Step {step}, the one furthest above its ideal time, as recorded, ideal, and {_fixed_words(data, lines)}; "
    who = [f"dp {diagnosis.dp_labels[rank]}" for rank in dp]
    if diagnosis.causes:
        says += f"{who[0]} is affected" + (f", {who[1]} is a sound one for comparison." if len(who) > 1 else ".")
    else:
        says += f"{' and '.join(who)} of {len(diagnosis.dp_labels)} dp ranks."
    return Picture(
        "timeline",
        f"The pipeline in step {step}",
        says,
        sheet.svg(f"Timeline of forwards and backwards by stage. {says} {'; '.join(' '.join(row[:4]) for row in rows)}"),
        ("timeline", "dp", "step ends after", "forward + backward, longest stage", "of the step time"),
        rows,
        legend=(
            ("forward", "forward"), ("backward", "backward"), ("comm", "communication, waiting included (thin)"),
            ("other", "optimizer, collections"),
        ),
        probe={
            "kind": "bars",
            "frame": frame.listed(),
            "end": end_s,
            "unit": unit,
            "lane": [round(frame.y + top, 2) for top in tops],
            "high": lane_px,
            "names": [
                f"{line.name}, dp {diagnosis.dp_labels[rank]}, stage {label}"
                for line in lines
                for rank in dp.tolist()
                for label in diagnosis.stage_labels
            ],
            "ops": {str(int(op)): NAMES[op] for op in Op},
            "bars": _pack(bars, unit),
        },
    )  # fmt: skip


def _draw_bars(sheet: Sheet, bars: _Bars, tops_px: np.ndarray, lane_px: float) -> None:
    """Draw the bars of each kind as one path; communication is thin, at the foot of its lane."""
    is_comm = bars.kind == _KINDS.index("comm")
    low = np.where(is_comm, tops_px + lane_px * 0.72, tops_px + 0.5)
    high = np.where(is_comm, tops_px + lane_px * 0.95, tops_px + lane_px * 0.70)
    rectangles = np.stack([bars.start_s, bars.end_s, low, high], axis=1)
    for kind, name in enumerate(_KINDS):
        sheet.cells(rectangles[bars.kind == kind], name, f"kind{kind}")


def _pack(bars: _Bars, unit: float) -> list[int]:
    """Give all bars to the script, one after the other, times in a unit of seconds."""
    flat = np.stack([bars.lane, bars.kind, bars.op, bars.microbatch], axis=1)
    times = np.round(np.stack([bars.start_s, bars.end_s], axis=1) / unit).astype(np.int64)
    packed: list[int] = np.concatenate([flat, times], axis=1).ravel().tolist()
    return packed


def _fixed_words(data: ReportData, lines: list[Timeline]) -> str:
    """Say what the last of the timelines is."""
    if any(line.name == "fixed" for line in lines):
        return "with all fixes of the plan"
    return "without any known fault" if data.diagnosis.causes else "clean"


def _head(data: ReportData, line: Timeline, rank: int, *, affected: bool) -> str:
    """Name a timeline of a dp rank."""
    who = f"dp {data.diagnosis.dp_labels[rank]}"
    role = "affected" if affected else "sound"
    return f"{line.name.capitalize()}: {words.seconds(line.step_s)} - {who}" + (
        f" ({role})" if data.diagnosis.causes else ""
    )


def _row(data: ReportData, line: Timeline, rank: int) -> tuple[str, ...]:
    """Say how long the stages of a dp rank worked."""
    lane = line.dp.tolist().index(rank)
    busy = np.zeros(data.analysis.trace.n_stages)
    mine = np.isin(line.nodes.op, DIRECTIONS)
    spans = np.nan_to_num(line.end_s[:, lane] - line.start_s[:, lane])
    np.add.at(busy, line.nodes.stage[mine], spans[mine])
    longest = float(busy.max())
    share = words.percent(longest / line.step_s) if line.step_s > 0 else words.NOT_KNOWN
    label = str(data.diagnosis.dp_labels[rank])
    return line.name, label, words.seconds(line.step_s), words.seconds(longest), share
