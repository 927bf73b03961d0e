"""The picture that shows a cause, from the figures that a diagnosis keeps of it: it needs no trace.

Enters: a diagnosis and one of its causes. Leaves: a `Picture`.
"""

import numpy as np

from diagnose.model.cause import Cause
from diagnose.model.diagnosis import Diagnosis
from diagnose.model.proof import Proof
from diagnose.model.trace import Seconds
from diagnose.report import words
from diagnose.report.escape import prose
from diagnose.report.html.draw import N_LEVELS, Sheet, colour, round_ticks
from diagnose.report.html.lines import Line, Marks, draw_lines
from diagnose.report.html.picture import LEAD_WIDTH, MAX_ROWS, UNITS, Picture, level_of, spread

#: Colours of culprits, the worst first; the others have the last.
_OF_CULPRITS = ("bad", "backward", "other")
#: A cell of a map so wide has its number, and so wide a frame.
_NUMBER_PX, _FRAME_PX = 38, 8
#: What the figures of each kind are: title, and what to see in them.
_KINDS = {
    "pace": (
        "Compute time against peers",
        "Forward and backward of {culprits} over {peers}: the line lies above the band where it is slower.",
    ),
    "transfers": (
        "Transfers and collectives against ordinary ones",
        "How many times as long as ordinary ones the transfers of {culprits} take by themselves, waiting left out.",
    ),
    "ranks": (
        "Compute by data-parallel rank and step",
        (
            "Compute of each rank over the mean of all in that step. All others wait for the longest: it is another rank from step "
            "to step, as long documents are dealt; with a slow worker it would be the same one."
        ),
    ),
    "replica": (
        "Compute by data-parallel rank and step",
        (
            "Compute of each rank over the mean of all in that step. All others wait for the longest: in nearly every step it is "
            "the same one, whose documents are longer."
        ),
    ),
    "microbatches": (
        "Compute by microbatch and step",
        "Compute of each microbatch over the mean of all in that step: the long ones are others from step to step.",
    ),
    "experts": (
        "Compute by worker and step",
        (
            "Compute of each worker over the mean of its stage in that step. The busy ranks change from step to step, and from "
            "stage to stage, as the routing of tokens does."
        ),
    ),
    "pauses": ("Seconds lost by worker and step", "What {cause} cost each worker in each step."),
    "steps": ("Step times with and without it", "Recorded step times, and by replay the same steps without {cause}."),
    "stages": (
        "Compute time of each stage",
        "One microbatch, forward and backward, on each stage. The pipeline runs at the pace of the longest one.",
    ),
}


def draw_proof(diagnosis: Diagnosis, cause: Cause, key: str) -> Picture | None:
    """Draw the figures that show a cause; None where it has none."""
    proof = cause.proof
    if proof is None or not proof.columns or not any(value is not None for row in proof.values for value in row):
        return None
    table = np.array(proof.values, dtype=float)
    if proof.kind == "stages":
        return _draw_stages(diagnosis, cause, proof, table, key)
    if proof.kind in {"ranks", "experts", "pauses"}:
        return _draw_map(cause, proof, table, key)
    return _draw_lines(cause, proof, table, key)


def _draw_lines(cause: Cause, proof: Proof, table: Seconds, key: str) -> Picture:
    """Draw culprits as lines above the band of their peers."""
    ends = [i for i, name in enumerate(proof.rows) if name.endswith((", low end", ", high end"))]
    lines: list[Line] = []
    for i, name in enumerate(proof.rows):
        if i < max(proof.n_culprits, 1):  # with nobody named the median of all
            of = _OF_CULPRITS[min(i, len(_OF_CULPRITS) - 1)]
            lines.append(Line(name, table[i], of))
        elif i not in ends:
            of = "good" if proof.kind == "steps" else "muted"
            lines.append(Line(name.removesuffix(", median"), table[i], of, dashed=True))
    lines += [Line("the middle nine tenths of them (band)", table[ends], "muted")] if len(ends) == 2 else []
    steps = np.array(proof.columns, dtype=np.int64)
    marks = Marks([(cause.cause, cause.when)], proof.marked)
    sheet = draw_lines(key, steps, lines, proof.unit, marks)
    return _finish(cause, proof, table, sheet, legend=tuple(line.legend for line in lines))


def _draw_map(cause: Cause, proof: Proof, table: Seconds, key: str) -> Picture:
    """Draw a heat map of places and steps; what is not longer than usual has no heat."""
    n_rows, n_columns = table.shape
    is_ratio = proof.unit == "ratio"
    low, top = 1.0 if is_ratio else 0.0, float(np.nanmax(table))
    high_px = float(np.clip(330 / n_rows, 13, 60))
    margins = (118.0, 10.0, 24.0, 46.0)
    sheet = Sheet(key, LEAD_WIDTH, n_rows * high_px + margins[2] + margins[3], margins)
    wide_px = (LEAD_WIDTH - margins[0] - margins[1]) / n_columns
    sheet.bare()
    sheet.axes.set_xlim(0, n_columns)
    sheet.axes.set_ylim(n_rows, 0)
    levels = np.where(table > low, np.maximum(level_of(table, low, top), 1), 0)
    sheet.heat(np.where(np.isnan(table), -1, levels), edge="line" if wide_px > 6 else "")
    if wide_px >= _NUMBER_PX and high_px >= 13:
        for y, x in np.argwhere(np.isfinite(table) & (is_ratio | (table > top / 10))).tolist():
            text = UNITS[proof.unit].brief(float(table[y, x]))
            sheet.write(x + 0.5, y + 0.5, text, of=f"heat{levels[y, x]}-ink", size=11, across="center")
    framed = proof.kind == "ranks" and wide_px >= _FRAME_PX and not proof.left_out
    if framed:
        for x in np.flatnonzero(np.isfinite(table).any(axis=0)).tolist():
            y = int(np.nanargmax(table[:, x]))
            sheet.outline(x, x + 1, y, y + 1, grow=0.0)
    steps = np.array(proof.columns)
    marked = spread(steps, int(n_columns * wide_px // 44))
    sheet.ticks_x([x + 0.5 for x in marked], [str(steps[x]) for x in marked])
    rows_marked = spread(np.arange(n_rows), int(n_rows * high_px // 13))
    sheet.ticks_y([y + 0.5 for y in rows_marked], [proof.rows[y] for y in rows_marked])
    sheet.name_axes(
        "step" if proof.steps_each == 1 else f"first of {proof.steps_each} steps; a cell is the worst of them"
    )
    if cause.when.onset_step is not None and steps[0] < cause.when.onset_step <= steps[-1]:
        at = int(np.searchsorted(steps, cause.when.onset_step))
        sheet.axes.axvline(at, color=colour("bad"), linewidth=2.5, linestyle=(0, (6, 3)))
        text, across = f"begins: step {cause.when.onset_step}", "right" if at > n_columns / 2 else "left"
        sheet.write(at, -13 / high_px, text, of="bad", across=across, bold=True)
    for y, x in np.argwhere(np.isfinite(table) & (table != 0.0)).tolist():
        said = UNITS[proof.unit].say(float(table[y, x]))
        sheet.point(x, x + 1, y, y + 1, f"{proof.rows[y]}, step {steps[x]}: {said}", int(steps[x]))
    edges = [(n, low + (top - low) * n / N_LEVELS) for n in (2, 4, 6, 8)]
    legend = [("heat0", "none" if low == 0.0 else "up to the mean")]
    legend += [(f"heat{n}", f"from {UNITS[proof.unit].say(value)}") for n, value in edges]
    legend += [("outline", "the longest of its step")] if framed else []
    return _finish(cause, proof, table, sheet, legend=tuple(legend))


def _draw_stages(diagnosis: Diagnosis, cause: Cause, proof: Proof, table: Seconds, key: str) -> Picture:
    """Draw forward and backward of every stage one above the other, and how much longer the culprit is than the others."""
    labels, n = diagnosis.stage_labels, table.shape[1]
    names = [f"{labels[v % len(labels)]}" + (f".{v // len(labels)}" if n > len(labels) else "") for v in range(n)]
    names = names if len(labels) else [str(v) for v in range(n)]
    total = np.nansum(table, axis=0)
    named = {v for v in range(n) if len(labels) and int(labels[v % len(labels)]) in cause.where.stages}
    others = [total[v] for v in range(n) if v not in named]
    usual = float(np.mean(others)) if others and named else 0.0
    top = float(total.max())
    sheet = Sheet(key, LEAD_WIDTH, 330, (64, 16, 30, 46))
    sheet.axes.set_xlim(-0.5, n - 0.5)
    sheet.axes.set_ylim(0, top * 1.04)
    ticks = round_ticks(0.0, top, 6)
    sheet.ticks_y(ticks, UNITS["seconds"].label(ticks))
    for which, of in enumerate(("forward", "backward")):
        base = np.zeros(n) if which == 0 else np.nan_to_num(table[0])
        sheet.cells([(v - 0.36, v + 0.36, base[v], base[v] + np.nan_to_num(table[which, v])) for v in range(n)], of)
    for v in range(n):
        said = f"forward {words.seconds(table[0, v])}, backward {words.seconds(table[1, v])}"
        sheet.point(v - 0.36, v + 0.36, 0.0, float(total[v]), f"stage {names[v]}: {said}")
        over = f" (+{words.percent(total[v] / usual - 1)})" if v in named and usual else ""
        if v in named:
            sheet.outline(v - 0.36, v + 0.36, 0.0, float(total[v]))
        if n <= 12 or v in named:
            text = f"{words.seconds(float(total[v]))}{over}"
            sheet.write(
                v,
                float(total[v]) + top * 0.05,
                text,
                of="bad" if v in named else "ink",
                across="center",
                bold=v in named,
            )
    if usual:
        sheet.axes.axhline(usual, color=colour("ink"), linewidth=1.5, linestyle=(0, (4, 2)))
    marked = spread(np.arange(n), 16)
    sheet.ticks_x(marked, [names[v] for v in marked])
    sheet.name_axes("stage" if n <= len(labels) else "stage.chunk")
    legend = [("forward", "forward"), ("backward", "backward")]
    legend += [("ink", "mean of the other stages (dashed)"), ("outline", "culprit")] if usual else []
    rows = [(names[v], *(words.seconds(float(value)) for value in table[:, v])) for v in range(n)]
    says = _KINDS["stages"][1]
    if named and usual:
        worst = max(named, key=lambda v: total[v])
        says += f" Stage {names[worst]} takes {words.seconds(float(total[worst]))}, the others {words.seconds(usual)} on average."
    title = _KINDS["stages"][0]
    return Picture(
        key,
        title,
        says,
        sheet.svg(f"{title}. {says}"),
        ("stage", *proof.rows),
        rows,
        legend=tuple(legend),
        probe=sheet.points,
    )


def _finish(
    cause: Cause, proof: Proof, table: Seconds, sheet: Sheet, *, legend: tuple[tuple[str, str], ...]
) -> Picture:
    """Add title, sentences and the table of what a drawing shows."""
    kind = "replica" if proof.kind == "ranks" and cause.where.workers else proof.kind
    title, says = _KINDS["microbatches" if proof.rows[0].startswith("microbatch ") else kind]
    named = words.some_of(proof.rows[: proof.n_culprits])
    says = says.format(
        culprits="; ".join(named) or "all places",
        peers="those of the peers" if len(proof.rows) > proof.n_culprits else "the usual time",
        cause=prose(cause.title).removeprefix("unknown cause: "),
    )
    says += _describe_values(cause, proof, table)
    if proof.left_out:
        says += f" Shown are the {len(proof.rows)} that show most; {proof.left_out:,} more are not."
    rows = [
        (str(step), *(UNITS[proof.unit].say(float(value)) for value in column))
        for step, column in zip(proof.columns, table.T, strict=True)
    ]
    return Picture(
        sheet.key,
        title,
        says,
        sheet.svg(f"{title}. {says}"),
        ("step", *proof.rows),
        rows[:MAX_ROWS],
        legend=legend,
        probe=sheet.points,
    )


def _describe_values(cause: Cause, proof: Proof, table: Seconds) -> str:
    """Say the figure that one sees first."""
    say, culprits = UNITS[proof.unit].say, table[: proof.n_culprits or None]
    row, column = np.unravel_index(int(np.nanargmax(culprits)), culprits.shape)
    most = say(float(culprits[row, column]))
    if proof.kind == "steps":
        without = say(float(table[1, column]))
        said = f" The longest is step {proof.columns[column]} with {most}, {without} without it."
        saved = ", ".join(words.some_of([str(step) for step in proof.marked]))
        return f"{said} Triangles: checkpoints were written in step {saved}." if saved else said
    if proof.kind in {"pace", "transfers"} and proof.n_culprits:
        return _describe_course(cause, proof, table[0])
    said = f"{proof.rows[row]} in step {proof.columns[column]} with {most}"
    if proof.kind != "pauses":
        return f" Most: {said}."
    n = int((np.nan_to_num(table) > 0).any(axis=0).sum())
    what = "steps" if proof.steps_each == 1 else f"columns of {proof.steps_each} steps"
    return f" In {n} of {table.shape[1]} {what}; most: {said}."


def _describe_course(cause: Cause, proof: Proof, first: Seconds) -> str:
    """Say how far the worst culprit is from its peers while the cause is there, and before or after."""
    say, when = UNITS[proof.unit].say, cause.when
    there = np.array([when.covers(step) for step in proof.columns])
    inside, outside = (first[part & np.isfinite(first)] for part in (there, ~there))
    if len(inside) and len(outside):
        return f" {proof.rows[0]}: {say(float(np.median(inside)))} {words.since(when)}, {say(float(np.median(outside)))} otherwise."
    known = first[np.isfinite(first)]
    return f" {proof.rows[0]}: {say(float(np.median(known)))} in the median step, {say(float(known.max()))} at most."
