"""The pipeline as a graph: stages down, dp ranks across, each link and each group's collectives in the colour of what they cost.

Enters: a `ReportData`. Leaves: a `Picture`.
"""

import numpy as np

from diagnose.model.analysis import ReportData
from diagnose.report import words
from diagnose.report.html.draw import N_LEVELS, Sheet
from diagnose.report.html.picture import MAX_ROWS, SIDE_WIDTH, Picture, level_of, spread

#: Dp ranks drawn at most: those whose links cost most.
_MAX_RANKS = 24
#: Height of a worker with the link below it, pixels.
_ROW_PX = (18.0, 62.0)


def draw_network(data: ReportData) -> Picture | None:
    """Draw what transfers cost beyond ordinary ones, on the way that they take."""
    transfers, diagnosis = data.analysis.transfers, data.diagnosis
    links_s, groups_s = np.nan_to_num(transfers.link_excess_s), np.nan_to_num(transfers.group_excess_s)
    if not links_s.any() and not groups_s.any():
        return None
    n_stages, n_dp = links_s.shape
    shown = np.sort(np.argsort(-links_s.sum(axis=0), kind="stable")[:_MAX_RANKS])
    around = bool(np.isfinite(transfers.link_s[-1]).any()) and n_stages > 1  # the last stage sends to the first
    n_links = n_stages if around else n_stages - 1
    high = float(np.clip(400 / n_stages, *_ROW_PX))
    margins = (70.0, 16.0, 30.0, 14.0)
    sheet = Sheet("network", SIDE_WIDTH, n_stages * high + (high * 0.5 if around else 0) + 44, margins)
    sheet.bare()
    sheet.axes.set_xlim(0, len(shown))
    sheet.axes.set_ylim(n_stages + (0.5 if around else 0.0), 0)
    top = float(max(links_s.max(), groups_s.max()))
    labels, dp_labels = diagnosis.stage_labels, diagnosis.dp_labels
    named = {(w.dp, w.pp) for cause in data.causes_of("transfer") for w in cause.where.workers}
    wide = (SIDE_WIDTH - margins[0] - margins[1]) / len(shown)
    for stage in range(n_stages):
        # The box of a stage's workers is crossed by a bar: their collectives.
        sheet.cells(
            [(0.1, len(shown) - 0.1, stage + 0.24, stage + 0.32)],
            _heat(groups_s[stage], top),
            f"group{stage}",
            edge="line",
        )
        said = words.seconds(float(groups_s[stage]))
        sheet.point(
            0.1, len(shown) - 0.1, stage + 0.24, stage + 0.32, f"collectives of stage {labels[stage]}: {said} a step"
        )
    boxes = [(x + 0.3, x + 0.7, stage + 0.08, stage + 0.48) for stage in range(n_stages) for x in range(len(shown))]
    sheet.cells(boxes, "panel", "boxes", edge="muted")
    found: list[tuple[float, str, str]] = [
        (float(groups_s[s]), f"collectives of stage {labels[s]}", "all") for s in range(n_stages)
    ]
    for stage in range(n_links):
        name = f"stage {labels[stage]} - {labels[(stage + 1) % n_stages]}"
        for x, dp in enumerate(shown.tolist()):
            lost = float(links_s[stage, dp])
            place = (x + 0.44, x + 0.56, stage + 0.48, stage + 1.08)
            sheet.cells([place], _heat(lost, top), f"link{dp}-{stage}", edge="line")
            sheet.point(
                x + 0.2,
                x + 0.8,
                stage + 0.48,
                stage + 1.08,
                f"dp {dp_labels[dp]}, {name}: {words.seconds(lost)} a step",
            )
            found.append((lost, name, str(dp_labels[dp])))
            if lost >= top / 20 and wide >= 70 and high >= 36:
                sheet.write(x + 0.6, stage + 0.76, words.seconds(lost), of="bad", size=11, bold=True)
    for stage in range(n_stages):
        for x, dp in enumerate(shown.tolist()):
            if (int(dp_labels[dp]), int(labels[stage])) in named:
                sheet.outline(x + 0.3, x + 0.7, stage + 0.08, stage + 0.48)
    for x in spread(shown, int(sheet.width // 44)):
        sheet.write(x + 0.5, -13 / high, f"dp {dp_labels[shown[x]]}", of="muted", across="center")
    for stage in spread(labels, int(n_stages * high // 13)):
        sheet.write(-6 / wide, stage + 0.28, f"stage {labels[stage]}", of="muted", across="right")
    found = sorted((row for row in found if row[0] > 0), key=lambda row: (-row[0], row[1], row[2]))
    rows = [(name, dp, words.seconds(lost)) for lost, name, dp in found]
    says = "Boxes are workers, lines between stages links, bars across collectives; coloured is what takes longer than usual. "
    says += f"Worst: {rows[0][0]}, dp {rows[0][1]}, {rows[0][2]} a step beyond ordinary transfers."
    edges = [("heat0", "nothing"), *((f"heat{n}", f"from {words.seconds(top * n / N_LEVELS)}") for n in (2, 5, 8))]
    return Picture(
        "network",
        "Where in the pipeline",
        says,
        sheet.svg(f"Graph of stages and dp ranks. {says}"),
        ("link or group", "dp", "beyond ordinary, a step"),
        rows[:MAX_ROWS],
        note=f"{len(shown)} of {n_dp:,} dp ranks" if len(shown) < n_dp else "",
        legend=(*edges, *([("outline", "culprit")] if named else [])),
        probe=sheet.points,
    )


def _heat(lost_s: float, top_s: float) -> str:
    """Give the colour of what a link or a group loses."""
    level = int(level_of(np.array([lost_s]), 0.0, top_s)[0])
    return f"heat{max(level, 1) if lost_s > top_s / 100 else 0}"
