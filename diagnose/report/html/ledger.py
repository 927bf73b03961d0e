"""The ledger as a waterfall: what lies between the recorded step time and the one without any known fault.

Enters: parts of a diagnosis. Leaves: a `Picture`.
"""

from diagnose.model.budget import UNEXPLAINED
from diagnose.model.components import COMPONENTS
from diagnose.model.diagnosis_document import Ledger, StepTime
from diagnose.report import words
from diagnose.report.html.draw import Sheet, colour, plain, round_ticks
from diagnose.report.html.picture import SIDE_WIDTH, UNITS, Picture, largest_first

#: Height of a bar of the waterfall with its name, pixels.
_WATERFALL = 46


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
    bars.append(("without any loss", 0.0, times.clean, "good", words.seconds(times.clean)))
    sheet = Sheet("ledger", SIDE_WIDTH, _WATERFALL * len(bars) + 40, (14, 14, 4, 30))
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
    ticks = round_ticks(0.0, top, 6)
    sheet.ticks_x(ticks, UNITS["seconds"].label(ticks))
    rows = [(name, said) for name, _, _, _, said in bars]
    if ledger is not None:
        rows += [
            (f"component: {COMPONENTS.get(name, name)}", f"{words.seconds(share * lost_s)} ({words.percent(share)})")
            for name, share in largest_first(ledger.components.items())
        ]
        rows.append(("component: too small to tell apart", words.percent(ledger.immaterial)))
    says = (
        f"From the recorded step time, {words.seconds(times.recorded)}, down to {words.seconds(times.clean)}: "
        "the replay with every component of lost time removed. Where no cause claims one it stands as unexplained."
    )
    return Picture(
        "ledger",
        "What the lost time went to",
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
        (UNEXPLAINED, ledger.unexplained, "other"),
    ]
