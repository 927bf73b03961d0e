"""Pictures of a few amounts: the ledger as a waterfall, slowdown by operation type, times of the stages.

Enters: `ReportData`. Leaves: `Picture`s.
"""

import numpy as np

from diagnose.model.analysis import ReportData
from diagnose.model.components import COMPONENTS
from diagnose.model.diagnosis_document import Ledger, StepTime
from diagnose.report import words
from diagnose.report.html.draw import Sheet, colour, plain
from diagnose.report.html.picture import Picture, find_culprits, largest_first, spread

_WIDTH = 760
#: Height of a bar of the waterfall with its name, pixels.
_WATERFALL = 46
#: Stages drawn at most.
_MAX_STAGES = 128


def draw_waterfall(times: StepTime, ledger: Ledger | None) -> Picture | None:
    """Draw what lies between the recorded and the clean step time as a waterfall; None where no clean time is known."""
    if times.clean is None:
        return None
    lost_s = times.recorded - times.clean
    bars = [("recorded", 0.0, times.recorded, "muted", words.seconds(times.recorded))]
    level = times.recorded
    for name, share, of in _list_parts(lost_s, ledger):
        sign = "" if not share * lost_s else ("-" if share * lost_s > 0 else "+")
        said = sign + words.seconds(abs(share * lost_s)) + (f" ({words.percent(share)})" if ledger is not None else "")
        bars.append((name, level - share * lost_s, level, of, said))
        level -= share * lost_s
    bars.append(("clean", 0.0, times.clean, "good", words.seconds(times.clean)))
    sheet = Sheet("ledger", 440, _WATERFALL * len(bars) + 56, (14, 14, 4, 46))
    top = max(high for _, _, high, _, _ in bars)
    sheet.axes.set_xlim(0, top if top > 0 else 1.0)
    sheet.axes.set_ylim(len(bars), 0)
    sheet.axes.spines["left"].set_visible(False)
    sheet.ticks_y([])
    for row, (name, low, high, of, said) in enumerate(bars):
        sheet.cells([(low, high, row + 0.46, row + 0.92)], of)
        sheet.point(low, high, row + 0.46, row + 0.92, f"{plain(name)}: {said}")
        sheet.write(0, row + 0.24, f"{plain(name, 36)}: {said}", bold=of in {"bad", "good"})
        if row:
            at = high if row < len(bars) - 1 else level
            sheet.axes.plot([at, at], [row - 0.08, row + 0.46], color=colour("muted"), linewidth=1)
    sheet.name_axes("seconds a step")
    rows = [(name, said) for name, _, _, _, said in bars]
    if ledger is not None:
        rows += [
            (f"component: {COMPONENTS.get(name, name)}", f"{words.seconds(share * lost_s)} ({words.percent(share)})")
            for name, share in largest_first(ledger.components.items())
        ]
        rows.append(("component: too small to tell apart", words.percent(ledger.immaterial)))
    says = (
        f"From the recorded step time ({words.seconds(times.recorded)}) down to the clean one ({words.seconds(times.clean)}), "
        "which is the replay with every known fault removed and ordinary variation kept."
    )
    return Picture(
        "ledger",
        "Where the lost time went",
        says,
        sheet.svg(f"Waterfall: {'; '.join(f'{plain(name)} {said}' for name, said in rows[: len(bars)])}"),
        ("part", "seconds a step (share of the lost time)"),
        rows,
        probe=sheet.points,
    )


def _list_parts(lost_s: float, ledger: Ledger | None) -> list[tuple[str, float, str]]:
    """List what the lost time is made of: name, share, and colour."""
    if ledger is None:
        return [("no known cause", 1.0, "other")] if lost_s else []
    shares = [(name, share) for name, share in ledger.causes.items() if abs(share) >= words.NO_SHARE]
    return [
        *((name, share, "bad") for name, share in largest_first(shares)),
        ("unexplained", ledger.unexplained, "other"),
    ]


def draw_optypes(data: ReportData) -> Picture | None:
    """Draw the slowdown when only one type of operation keeps its own times, largest first."""
    by_type = {name: value for name, value in data.diagnosis.what_if.by_optype.items() if np.isfinite(value)}
    found = largest_first(by_type.items())
    if not found:
        return None
    bars = [
        (name, min(value, 1.0), max(value, 1.0), "bad" if value >= 1.1 else "accent", f"S {words.ratio(value)}")
        for name, value in found
    ]
    sheet = Sheet("optypes", _WIDTH, 28 * len(bars) + 60, (210, 90, 8, 46))
    low = min(1.0, *(value for _, value in found))
    _draw_rows(sheet, bars, low, max(1.1, found[0][1]))
    sheet.name_axes("S when only this type keeps its own times")
    return Picture(
        "optypes",
        "Slowdown by operation type",
        f"{found[0][0]} alone makes the job {words.ratio(found[0][1])} times as long as with ideal times; 1.00 is no slowdown.",
        sheet.svg(f"Bars: {'; '.join(f'{plain(name)} {words.ratio(value)}' for name, value in found)}"),
        ("operation type", "S"),
        [(name, words.ratio(value)) for name, value in found],
        probe=sheet.points,
    )


def draw_stages(data: ReportData) -> Picture | None:
    """Draw the usual forward and backward time of every stage, or of every model chunk of every stage."""
    by_direction = data.analysis.breakdown.typical_s
    typical = np.stack([by_direction[0], by_direction[1:].sum(axis=0)])  # weight gradients are a part of the backward
    n_virtual = typical.shape[1]
    if n_virtual > _MAX_STAGES or np.isnan(typical).all():
        return None
    labels = data.diagnosis.stage_labels
    n_stages = len(labels)
    culprits = set(find_culprits(data.diagnosis).stages)
    names = [
        f"{labels[v % n_stages]}" + (f".{v // n_stages}" if n_virtual > n_stages else "") for v in range(n_virtual)
    ]
    sheet = Sheet("stages", _WIDTH, 300, (70, 16, 46, 46))
    axes = sheet.axes
    top = float(np.nanmax(typical))
    axes.set_xlim(-0.6, n_virtual - 0.4)
    axes.set_ylim(0, top * 1.06)
    for which, (name, of, shift) in enumerate((("forward", "forward", -0.37), ("backward", "backward", 0.02))):
        known = [(v, float(typical[which, v])) for v in range(n_virtual) if np.isfinite(typical[which, v])]
        sheet.cells([(v + shift, v + shift + 0.35, 0.0, value) for v, value in known], of)
        for v, value in known:
            sheet.point(v + shift, v + shift + 0.35, 0.0, value, f"stage {names[v]} {name}: {words.seconds(value)}")
            if n_virtual <= 8:
                sheet.write(v + shift + 0.175, value + top * 0.03, words.seconds(value), size=11, across="center")
    for stage in culprits:
        for v in range(stage, n_virtual, n_stages):
            worst = float(np.nanmax(typical[:, v]))
            sheet.outline(v - 0.42, v + 0.42, 0.0, worst, "ink")
            sheet.write(v, top * 1.17, "culprit", of="bad", bold=True, across="center")
    marked = spread(np.arange(n_virtual), 24)
    sheet.ticks_x(marked, [names[v] for v in marked])
    sheet.name_axes("stage" if n_virtual == n_stages else "stage.chunk", "seconds a microbatch")
    rows = [
        (names[v], words.seconds(float(typical[0, v])), words.seconds(float(typical[1, v]))) for v in range(n_virtual)
    ]
    longest = int(np.nanargmax(np.nansum(typical, axis=0)))
    return Picture(
        "stages",
        "Forward and backward by stage",
        f"Usual time of one microbatch on each stage; stage {names[longest]} is the longest.",
        sheet.svg(f"Bars: {'; '.join(f'stage {name}: forward {f}, backward {b}' for name, f, b in rows)}"),
        ("stage", "forward", "backward"),
        rows,
        legend=(("forward", "forward"), ("backward", "backward")),
        probe=sheet.points,
    )


def _draw_rows(sheet: Sheet, bars: list[tuple[str, float, float, str, str]], low: float, high: float) -> None:
    """Draw named bars (from, to, colour, what it says), one below the other."""
    axes = sheet.axes
    axes.set_xlim(low, high if high > low else low + 1.0)
    axes.set_ylim(len(bars) - 0.4, -0.6)
    axes.spines["left"].set_visible(False)
    for row, (name, start, end, of, said) in enumerate(bars):
        sheet.cells([(start, end, row - 0.36, row + 0.36)], of)
        sheet.point(start, end, row - 0.36, row + 0.36, f"{plain(name)}: {said}")
        sheet.write(end + (high - low) * 0.012, row, said, size=12)
    sheet.ticks_y(range(len(bars)), [plain(name, 24) for name, *_ in bars])
    axes.tick_params(axis="y", length=0, labelsize=12, labelcolor=colour("ink"))
