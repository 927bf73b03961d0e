"""The job step by step: recorded step times and those without any known fault, with what the causes say of time marked.

Enters: a `ReportData`. Leaves: a `Picture`.
"""

import numpy as np

from diagnose.model.analysis import ReportData
from diagnose.model.optype import Op
from diagnose.report import words
from diagnose.report.html.lines import Line, Marks, draw_lines
from diagnose.report.html.picture import MAX_ROWS, Picture


def draw_steps(data: ReportData, width: float) -> Picture | None:
    """Draw the step times, so many pixels wide."""
    gains, order = data.analysis.gains, np.argsort(data.analysis.breakdown.steps, kind="stable")
    steps = data.analysis.breakdown.steps[order]
    recorded_s, clean_s = gains.replayed_steps_s[order], gains.clean_steps_s[order]
    if len(steps) == 0 or not np.isfinite(recorded_s).any():
        return None
    evidence = data.analysis.trace.evidence
    saved = np.unique(evidence.step[evidence.op == Op.CHECKPOINT])
    saved = saved[np.isin(saved, steps)]
    lines = [Line("recorded", recorded_s, "accent"), Line("without any loss", clean_s, "good", dashed=True)]
    causes = data.diagnosis.causes
    marks = Marks([(cause.cause, cause.when) for cause in causes], saved.tolist())
    sheet = draw_lines("steps", steps, lines, "seconds", marks, width)
    worst = int(np.nanargmax(recorded_s))
    says = f"Step times from {words.seconds(float(np.nanmin(recorded_s)))} to {words.seconds(float(recorded_s[worst]))}"
    says += f", the longest is step {steps[worst]}; without any loss {words.seconds(gains.clean_s)} on average."
    says += "".join(
        f" {cause.title.strip().capitalize()}: {since}." for cause in causes if (since := words.since(cause.when))
    )
    if len(saved):
        says += (
            f" Triangles: checkpoints were written in step {', '.join(words.some_of([str(step) for step in saved]))}."
        )
    shown = np.sort(np.argsort(-np.nan_to_num(recorded_s), kind="stable")[:MAX_ROWS])
    return Picture(
        "steps",
        "Steps over time",
        says,
        sheet.svg(f"Lines over steps {steps[0]} to {steps[-1]}. {says}"),
        ("step", "recorded", "without any loss"),
        [(str(steps[i]), words.seconds(float(recorded_s[i])), words.seconds(float(clean_s[i]))) for i in shown],
        note="" if len(steps) <= MAX_ROWS else f"the {MAX_ROWS} slowest of {len(steps):,} steps",
        legend=tuple(line.legend for line in lines),
        probe=sheet.points | {"tall": True},
    )
