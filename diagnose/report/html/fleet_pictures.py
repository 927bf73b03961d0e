"""Pictures of a fleet: lost GPU hours by cause and day, waste beside the study's, operation types, slowdown by size.

Enters: a `Fleet`. Leaves: `Picture`s.
"""

from collections.abc import Callable, Sequence

import numpy as np

from diagnose.model.fleet import Fleet
from diagnose.model.fleet_document import Slice
from diagnose.report import words
from diagnose.report.escape import name
from diagnose.report.html.budget import draw_fleet_budget
from diagnose.report.html.draw import Sheet, colour, plain
from diagnose.report.html.picture import Picture

#: Pixels of a picture, and of a row in it.
_WIDTH = 760
_ROW = 28
#: Causes, and days, drawn at most; the table has all.
_MAX_BARS = 14
_MAX_DAYS = 60
#: The study's percentiles of waste.
_PUBLISHED = {"waste_p50": 0.5, "waste_p90": 0.9, "waste_p99": 0.99}
_SLICE_HEAD = ("", "GPU hours lost", "part of all", "recoverable", "jobs")


def draw_all(fleet: Fleet) -> list[Picture]:
    """Draw every picture that the fleet has figures for, in the order of the page."""
    draws: tuple[Callable[[Fleet], Picture | None], ...] = (draw_causes, draw_days, draw_waste, draw_types, draw_sizes)
    causes, *others = (draw(fleet) for draw in draws)
    return [picture for picture in (causes, draw_fleet_budget(fleet, _WIDTH), *others) if picture is not None]


def draw_causes(fleet: Fleet) -> Picture | None:
    """Draw the GPU hours that each cause lost, largest first; None where nothing is lost."""
    slices = fleet.by["cause"]
    lost = sum(entry.hours_wasted for entry in slices)
    if not lost > 0:
        return None
    known = [entry for entry in slices if entry.key is not None][:_MAX_BARS]
    rest = lost - sum(entry.hours_wasted for entry in known)
    bars = [(entry.key or "", entry.hours_wasted, "bad") for entry in known]
    if rest / lost >= 0.0005:
        bars.append(("no cause explains it", rest, "other"))
    sheet = Sheet("causes-lost", _WIDTH, _ROW * len(bars) + 60, (190, 110, 8, 46))
    top = max(value for _, value, _ in bars)
    sheet.axes.set_xlim(0, top)
    sheet.axes.set_ylim(len(bars), 0)
    sheet.ticks_y([row + 0.5 for row in range(len(bars))], [key for key, _, _ in bars])
    for row, (key, value, of) in enumerate(bars):
        said = f"{words.hours(value)} ({words.percent(value / lost)})"
        sheet.cells([(0, value, row + 0.14, row + 0.86)], of)
        sheet.write(value + 0.008 * top, row + 0.5, said)
        sheet.point(0, value, row + 0.14, row + 0.86, f"{plain(key)}: {said} GPU hours")
    sheet.name_axes("GPU hours lost")
    first = known[0] if known else None
    says = f"{words.hours(lost)} GPU hours are lost; each job's ledger shares its own out among its causes."
    if first is not None:
        says += f" Most of them, {words.percent(first.hours_wasted / lost)}, to {name(first.key or '')}."
    return Picture(
        "causes-lost",
        "What the GPU hours are lost to",
        says,
        sheet.svg(f"Bars: {'; '.join(f'{plain(key)} {words.hours(value)}' for key, value, _ in bars)}"),
        ("cause", *_SLICE_HEAD[1:]),
        slice_rows(slices, "no cause explains it"),
        probe=sheet.points,
    )


def draw_days(fleet: Fleet) -> Picture | None:
    """Draw the GPU hours that were lost each day; None with fewer than two days."""
    slices = fleet.by["day"]
    shown = slices[-_MAX_DAYS:]
    top = max((entry.hours_wasted for entry in shown), default=0.0)
    if len(shown) < 2 or not top > 0:
        return None
    sheet = Sheet("days", _WIDTH, 240)
    sheet.axes.set_xlim(-0.6, len(shown) - 0.4)
    sheet.axes.set_ylim(0, top * 1.05)
    sheet.cells([(i - 0.4, i + 0.4, 0, entry.hours_wasted) for i, entry in enumerate(shown)], "bad")
    every = max(1, -(-len(shown) // 8))
    sheet.ticks_x(list(range(0, len(shown), every)), [entry.key or "" for entry in shown][::every])
    sheet.name_axes("day on which a job ended, or was diagnosed (UTC)", "GPU hours lost")
    for i, entry in enumerate(shown):
        share = words.percent(entry.hours_wasted / entry.hours_analysed if entry.hours_analysed else None)
        said = f"{entry.key}: {words.hours(entry.hours_wasted)} GPU hours lost, {share} of {entry.n_jobs:,} jobs' time"
        sheet.point(i - 0.4, i + 0.4, 0, entry.hours_wasted, said)
    worst = max(shown, key=lambda entry: entry.hours_wasted)
    return Picture(
        "days",
        "Lost GPU hours by day",
        f"Most, {words.hours(worst.hours_wasted)}, on {worst.key}. Days without a job are left out.",
        sheet.svg(f"Bars of {len(shown)} days; most on {worst.key}"),
        ("day", *_SLICE_HEAD[1:]),
        slice_rows(slices, ""),
        probe=sheet.points,
    )


def draw_waste(fleet: Fleet) -> Picture | None:
    """Draw the distribution of waste with the three points that the study published; None with fewer than two jobs."""
    study = fleet.study
    quantiles = np.array(study.waste_quantiles)
    if study.n_jobs < 2:
        return None
    published = [
        (figure.published or 0.0, _PUBLISHED[figure.key]) for figure in study.figures if figure.key in _PUBLISHED
    ]
    sheet = Sheet("waste", _WIDTH, 320)
    low, high = min(0.0, float(quantiles.min())), max(0.5, float(quantiles.max()))
    sheet.axes.set_xlim(100 * low, 100 * high)
    sheet.axes.set_ylim(0, 102)
    sheet.axes.plot(100 * quantiles, np.arange(101), color=colour("accent"), linewidth=2.5, gid="waste-ours")
    for waste, at in published:
        sheet.axes.plot(
            [100 * waste], [100 * at], marker="D", markersize=9, color=colour("backward"), markeredgecolor=colour("ink")
        )
    sheet.name_axes("waste, 1 - 1/S, % of the time", "jobs that waste no more, %")
    wide, tall = 0.006 * 100 * (high - low), 1.5
    for percent in range(0, 101, 5):
        x = 100 * float(quantiles[percent])
        said = f"{percent}% of the jobs here waste {words.percent(quantiles[percent])} or less"
        sheet.point(x - wide, x + wide, percent - tall, percent + tall, said)
    for waste, at in published:
        said = f"the study: {at:.0%} of the jobs waste {words.percent(waste)} or less"
        sheet.point(100 * waste - 0.5, 100 * waste + 0.5, 100 * at - 2, 100 * at + 2, said)
    middle, tenth = float(quantiles[50]), float(quantiles[90])
    study_says = " and ".join(words.percent(waste) for waste, part in published if part < 0.95)
    rows = [(f"{at}%", words.percent(float(quantiles[at])), "") for at in (0, 10, 25)]
    for at in (50, 75, 90, 99, 100):
        known = next((words.percent(waste) for waste, part in published if round(100 * part) == at), "")
        rows.append((f"{at}%", words.percent(float(quantiles[at])), known))
    return Picture(
        "waste",
        "How much jobs waste",
        f"The median of {study.n_jobs:,} jobs wastes {words.percent(middle)}, one in ten more than {words.percent(tenth)}; "
        f"in the study {study_says}.",
        sheet.svg("Distribution of waste over jobs, with three points of the study"),
        ("jobs", "waste here, at most", "in the study"),
        rows,
        legend=(("accent", "jobs here"), ("backward", "published points of the study")),
        probe=sheet.points,
    )


def draw_types(fleet: Fleet) -> Picture | None:
    """Draw the waste by type of operation: the median job and the 90th percentile."""
    found = fleet.study.optypes
    if not found:
        return None
    sheet = Sheet("types", _WIDTH, _ROW * len(found) + 60, (220, 60, 8, 46))
    low = 100 * min(0.0, *(min(entry.p50, entry.p90) for entry in found))
    high = 100 * max(0.02, *(max(entry.p50, entry.p90) for entry in found))
    sheet.axes.set_xlim(low, high)
    sheet.axes.set_ylim(len(found), 0)
    sheet.ticks_y([row + 0.5 for row in range(len(found))], [entry.optype for entry in found])
    for row, entry in enumerate(found):
        p50, p90 = 100 * entry.p50, 100 * entry.p90
        sheet.cells([(min(0.0, p90), max(0.0, p90), row + 0.2, row + 0.8)], "heat3")
        sheet.cells([(min(0.0, p50), max(0.0, p50), row + 0.2, row + 0.8)], "bad")
        sheet.write(max(p90, 0.0) + 0.008 * high, row + 0.5, words.percent(entry.p90))
        said = f"{plain(entry.optype)}: median {words.percent(entry.p50)}, 90th percentile {words.percent(entry.p90)}"
        sheet.point(0, max(p90, 0.5), row + 0.2, row + 0.8, said)
    sheet.name_axes("waste with only this type as recorded, %")
    return Picture(
        "types",
        "Waste by type of operation",
        f"{name(found[0].optype)} wastes most. The study: computation costs more than communication, without numbers.",
        sheet.svg(f"Bars: {'; '.join(f'{plain(entry.optype)} {words.percent(entry.p90)}' for entry in found)}"),
        ("operation type", "median job", "90th percentile", "of all GPU hours", "jobs"),
        [
            (entry.optype, *map(words.percent, (entry.p50, entry.p90, entry.of_hours)), f"{entry.n_jobs:,}")
            for entry in found
        ],
        legend=(("bad", "median job"), ("heat3", "90th percentile")),
        probe=sheet.points,
    )


def draw_sizes(fleet: Fleet) -> Picture | None:
    """Draw the slowdown of jobs by their number of GPUs; None with jobs of one size."""
    bins = fleet.study.sizes
    if len(bins) < 2:
        return None
    sheet = Sheet("sizes", _WIDTH, 300)
    low, high = min(1.0, *(entry.p10 for entry in bins)), max(1.1, *(entry.p90 for entry in bins))
    sheet.axes.set_xlim(-0.6, len(bins) - 0.4)
    sheet.axes.set_ylim(low - 0.03 * (high - low), high + 0.03 * (high - low))
    sheet.axes.axhline(1.1, color=colour("muted"), linewidth=1, linestyle="--")
    sheet.cells([(i - 0.25, i + 0.25, entry.p10, entry.p90) for i, entry in enumerate(bins)], "heat2", edge="line")
    for i, entry in enumerate(bins):
        sheet.axes.plot([i - 0.25, i + 0.25], [entry.p50] * 2, color=colour("ink"), linewidth=3)
        said = f"{_gpus(entry.least, entry.most)}: median S {words.ratio(entry.p50)}, 10th to 90th percentile "
        said += f"{words.span(entry.p10, entry.p90)}, {entry.n_jobs:,} jobs"
        sheet.point(i - 0.25, i + 0.25, entry.p10, entry.p90, said)
    sheet.ticks_x(range(len(bins)), [f"{entry.least:,}-" for entry in bins])
    sheet.name_axes("GPUs of the job", "slowdown S")
    figure = next(figure for figure in fleet.study.figures if figure.key == "size_correlation")
    known = "is not known" if figure.ours is None else f"is {words.ratio(figure.ours)}"
    return Picture(
        "sizes",
        "Slowdown by size of the job",
        f"Median and 10th to 90th percentile. The rank correlation of S with size {known}; the study found none.",
        sheet.svg("Slowdown by number of GPUs: median and 10th to 90th percentile"),
        ("GPUs", "10th percentile", "median", "90th percentile", "jobs"),
        [
            (_gpus(entry.least, entry.most), *map(words.ratio, (entry.p10, entry.p50, entry.p90)), f"{entry.n_jobs:,}")
            for entry in bins
        ],
        probe=sheet.points,
    )


def slice_rows(slices: Sequence[Slice], unknown: str) -> list[tuple[str, ...]]:
    """Write slices as the rows of a table: key, GPU hours lost, their part of all, recoverable, jobs."""
    total = sum(entry.hours_wasted for entry in slices)
    return [
        (
            unknown if entry.key is None else entry.key,
            words.hours(entry.hours_wasted),
            words.percent(entry.hours_wasted / total if total else 0.0),
            words.hours(entry.hours_recoverable),
            f"{entry.n_jobs:,}",
        )
        for entry in slices
    ]


def _gpus(least: int, most: int) -> str:
    """Write a range of sizes."""
    return f"{least:,}" if least == most else f"{least:,} to {most:,}"
