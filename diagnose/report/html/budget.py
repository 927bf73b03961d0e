"""The budget of a step as one bar, and a row for each part of it below.

Enters: a `Diagnosis` with a budget. Leaves: a `Picture`, and the levers in words.
"""

from diagnose.model.budget import Budget
from diagnose.model.diagnosis import Diagnosis
from diagnose.report import words
from diagnose.report.budget import LOST_UNEXPLAINED, PART_NAMES, TITLE, describe_host, describe_lever, list_parts
from diagnose.report.escape import prose
from diagnose.report.html.draw import Sheet, plain
from diagnose.report.html.picture import FULL_WIDTH, Picture

#: Height of a row, pixels.
_ROW = 26
#: Colours of the parts; what is lost is `bad`.
_COLOURS = {
    "computing": "good",
    "pipeline bubble": "muted",
    "exposed transfers": "comm",
    "exposed collectives": "comm",
    "collectives of tp and cp members": "comm",
    "host launches late": "warn",
}
_OTHER = "other"
#: Fewer GPU hours in all are not shared out beside the bars.
LEAST_HOURS = 1.0


def draw_budget(diagnosis: Diagnosis, width: float = FULL_WIDTH) -> Picture | None:
    """Draw all parts as one bar, and each alone where it stands in it; None where there is no budget."""
    budget = diagnosis.budget
    if budget is None:
        return None
    parts = list_parts(budget)
    whole_h = diagnosis.gpu_hours_analysed
    sheet = Sheet("budget", width, _ROW * (len(parts) + 2) + 36, (230, 150, 4, 30))
    sheet.axes.set_xlim(0, 1)
    sheet.axes.set_ylim(len(parts) + 1.6, -0.4)
    sheet.axes.spines["left"].set_visible(False)
    at, rows = 0.0, []
    for row, (part, share, lost) in enumerate(parts):
        of = "bad" if lost and part != LOST_UNEXPLAINED else _COLOURS.get(part, _OTHER)
        said = words.percent(share)
        y = row + 1.5
        for low, high in ((0.0, 1.0), (y, y + 0.66)):
            sheet.cells([(at, at + share, low, high)], of, edge="panel")
            sheet.point(at, at + share, low, high, f"{plain(part)}: {said}")
        sheet.write(1.012, y + 0.33, f"{said}, {words.hours(share * whole_h)} h" if whole_h >= LEAST_HOURS else said)
        rows.append((part, said, words.hours(share * whole_h)))
        at += share
    sheet.ticks_y([0.5, *(row + 1.83 for row in range(len(parts)))], ["whole step", *(part for part, _, _ in parts)])
    sheet.axes.tick_params(axis="y", length=0, labelsize=12)
    sheet.ticks_x([0.0, 0.25, 0.5, 0.75, 1.0], ["0%", "25%", "50%", "75%", "100%"])
    missing = [
        (f"{PART_NAMES[part]} (not measured)", words.NOT_KNOWN, prose(why)) for part, why in budget.not_measured.items()
    ]
    largest = max(parts, key=lambda part: part[1])
    return Picture(
        "budget",
        TITLE,
        _describe(budget, largest, whole_h),
        sheet.svg(f"Bars: {'; '.join(f'{plain(part)} {said}' for part, said, _ in rows)}"),
        ("part", "share", "GPU hours"),
        [*rows, *missing],
        probe=sheet.points,
    )


def list_levers(diagnosis: Diagnosis) -> list[dict[str, str]]:
    """Put the levers into words."""
    return [
        {
            "summary": prose(lever.summary[:1].upper() + lever.summary[1:]),
            "gain": describe_lever(lever),
            "how": prose(lever.how),
            "assumes": prose("; ".join(lever.assumes)),
        }
        for lever in diagnosis.levers
    ]


def _describe(budget: Budget, largest: tuple[str, float, bool], whole_h: float) -> str:
    """Say what to see in it."""
    computing = "" if largest[0] == PART_NAMES["compute"] else f"; {words.percent(budget.compute)} is computing"
    said = f"Of {words.hours(whole_h)} GPU hours {words.percent(largest[1])} is {largest[0]}{computing}. All parts sum to 100%."
    return f"{said} The host waits: {describe_host(budget.host_wait)}." if budget.host_wait else said
