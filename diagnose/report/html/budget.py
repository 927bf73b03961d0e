"""The budget of a step, or of a fleet, as one bar, and a row for each part of it below.

Enters: a `Diagnosis` or a `Fleet` with a budget. Leaves: a `Picture`, and the levers in words.
"""

import dataclasses
from collections.abc import Sequence

from diagnose.model.diagnosis import Diagnosis
from diagnose.model.fleet import Fleet
from diagnose.report import words
from diagnose.report.budget import (
    LOST_UNEXPLAINED,
    PART_NAMES,
    TITLE,
    describe_host,
    describe_lever,
    list_fleet_parts,
    list_parts,
)
from diagnose.report.escape import prose
from diagnose.report.html.draw import Sheet, plain
from diagnose.report.html.picture import FULL_WIDTH, Picture

FLEET_TITLE = "Where the time of all jobs goes"
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
#: What the colours mean.
_MEANINGS = {
    "good": "computing",
    "muted": "waiting for the pipeline",
    "comm": "communicating",
    "warn": "waiting for the host",
    _OTHER: "other work, and ordinary variation",
    "bad": "lost to causes",
}
#: Fewer GPU hours in all are not shared out beside the bars.
LEAST_HOURS = 1.0


def draw_budget(diagnosis: Diagnosis) -> Picture | None:
    """Draw where the step of a job goes; None where there is no budget."""
    budget = diagnosis.budget
    if budget is None:
        return None
    whole_h = diagnosis.gpu_hours_analysed
    missing = [
        (f"{PART_NAMES[part]} (not measured)", words.NOT_KNOWN, prose(why)) for part, why in budget.not_measured.items()
    ]
    parts = list_parts(budget.measured(), budget.lost)
    picture = _draw_parts(TITLE, parts, whole_h, f"Of {words.hours(whole_h)} GPU hours", "whole step", FULL_WIDTH)
    waits = f" The host waits: {describe_host(budget.host_wait)}." if budget.host_wait else ""
    return dataclasses.replace(picture, says=picture.says + waits, rows=[*picture.rows, *missing])


def draw_fleet_budget(fleet: Fleet, width: float) -> Picture | None:
    """Draw where the GPU hours of a fleet go; None where no job has a budget."""
    budget = fleet.budget
    if budget is None:
        return None
    begin = f"Of {words.hours(budget.hours_analysed)} GPU hours of {words.count(budget.n_jobs, 'job')}"
    return _draw_parts(FLEET_TITLE, list_fleet_parts(budget), budget.hours_analysed, begin, "all jobs", width)


def _draw_parts(
    title: str, parts: Sequence[tuple[str, float, bool]], whole_h: float, begin: str, whole: str, width: float
) -> Picture:
    """Draw all parts as one bar, and each alone where it stands in it."""
    right = 150 if whole_h >= LEAST_HOURS else 60
    sheet = Sheet("budget", width, _ROW * (len(parts) + 2) + 36, (230, right, 4, 30))
    sheet.axes.set_xlim(0, 1)
    sheet.axes.set_ylim(len(parts) + 1.6, -0.4)
    sheet.axes.spines["left"].set_visible(False)
    at, rows = 0.0, []
    colours = ["bad" if lost and part != LOST_UNEXPLAINED else _COLOURS.get(part, _OTHER) for part, _, lost in parts]
    for row, ((part, share, _), of) in enumerate(zip(parts, colours, strict=True)):
        said, hours, y = words.percent(share), words.hours(share * whole_h), row + 1.5
        for low, high in ((0.0, 1.0), (y, y + 0.66)):
            sheet.cells([(at, at + share, low, high)], of, edge="panel")
            sheet.point(at, at + share, low, high, f"{plain(part)}: {said}")
        sheet.write(1.012, y + 0.33, f"{said}, {hours} h" if whole_h >= LEAST_HOURS else said)
        rows.append((part, said, hours))
        at += share
    sheet.ticks_y([0.5, *(row + 1.83 for row in range(len(parts)))], [whole, *(part for part, _, _ in parts)])
    sheet.axes.tick_params(axis="y", length=0, labelsize=12)
    sheet.ticks_x([0.0, 0.25, 0.5, 0.75, 1.0], ["0%", "25%", "50%", "75%", "100%"])
    return Picture(
        "budget",
        title,
        _describe(parts, begin),
        sheet.svg(f"Bars: {'; '.join(f'{plain(part)} {said}' for part, said, _ in rows)}"),
        ("part", "share", "GPU hours"),
        rows,
        legend=tuple((of, meaning) for of, meaning in _MEANINGS.items() if of in colours),
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


def _describe(parts: Sequence[tuple[str, float, bool]], begin: str) -> str:
    """Say what to see in it: the largest part, and how much is computing."""
    name, share, _ = max(parts, key=lambda part: part[1])
    computing = [(part, of) for part, of, _ in parts if part == PART_NAMES["compute"] != name]
    rest = "".join(f"; {words.percent(of)} is {part}" for part, of in computing)
    return f"{begin}, {words.percent(share)} is {name}{rest}. All parts sum to 100%."
