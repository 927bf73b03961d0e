"""What is said above the timelines: the verdict, the causes, and the figures of each step.

Enters: what was measured of a job, and where its steps are drawn. Leaves: slices and counters on a page.
"""

import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np

from diagnose.model.analysis import ReportData
from diagnose.model.cause import Cause
from diagnose.model.timeline import Timeline
from diagnose.report import words
from diagnose.report.escape import escape, prose
from diagnose.report.perfetto_choice import Choice
from diagnose.report.perfetto_events import Page, Slice, Thread, finite, listed, to_ns
from diagnose.report.perfetto_step import DpTrack

#: Process of what is said about the job.
ABOUT = 1


@dataclasses.dataclass(frozen=True, slots=True)
class StepSlot:
    """One step, with its place on the time axis, and its timelines from the top down."""

    step: int
    begin_ns: int
    length_ns: int
    lost_between_s: float
    timelines: tuple[Timeline, ...]


def _at(data: ReportData, step: int) -> int:
    """Say where a step stands in the what-if analysis."""
    return int(np.flatnonzero(data.diagnosis.what_if.steps == step)[0])


def count_workers(page: Page, data: ReportData, row: DpTrack, step: int) -> None:
    """Draw S_w of the workers of a dp rank in a step."""
    slowdown = data.diagnosis.what_if.by_worker_step[row.dp, :, _at(data, step)]
    labels = data.diagnosis.stage_labels.tolist()
    values = {f"stage {label}": float(value) for label, value in zip(labels, slowdown, strict=True)}
    page.counter(row.pid, "slowdown S_w", row.begin_ns, values)


def draw_summary(page: Page, data: ReportData, choice: Choice, slot: StepSlot) -> None:
    """Draw the length of a step with its figures, and what was lost between it and the next."""
    w, at = data.diagnosis.what_if, _at(data, slot.step)
    lengths = {f"{timeline.name}_s": timeline.step_s for timeline in slot.timelines}
    figures = {"slowdown": float(w.by_step[at]), "simulated_s": float(w.simulated_s[at])} | lengths
    suffix = " (the worst drawn)" if len(choice.steps) > 1 and slot.step == choice.steps[0] else ""
    end_ns = slot.begin_ns + to_ns(slot.timelines[0].step_s)
    thread = Thread(ABOUT, "steps", 1)
    page.slice(
        thread, Slice(f"step {slot.step}{suffix}", "step", slot.begin_ns, end_ns, finite({"step": slot.step} | figures))
    )
    if slot.lost_between_s > 0:
        args = {"step": slot.step, "lost_s": slot.lost_between_s}
        after_ns = end_ns + to_ns(slot.lost_between_s)
        page.slice(thread, Slice("lost between steps", "between-steps", end_ns, after_ns, args))
    page.counter(ABOUT, "slowdown S", slot.begin_ns, {"of the step": figures["slowdown"]})
    page.counter(ABOUT, "step time [s]", slot.begin_ns, {t.name: t.step_s for t in slot.timelines})


def draw_about(page: Page, data: ReportData, slots: Sequence[StepSlot]) -> None:
    """Draw verdict and causes over all the time drawn, each with the steps in which it acts."""
    diagnosis = data.diagnosis
    begin_ns, end_ns = slots[0].begin_ns, max(slot.begin_ns + slot.length_ns for slot in slots)
    args = {
        "verdict": escape(diagnosis.verdict),
        "slowdown": diagnosis.what_if.slowdown,
        "recorded_step_s": diagnosis.step_time.recorded,
        "clean_step_s": diagnosis.step_time.clean,
        "warnings": listed([prose(warning) for warning in diagnosis.warnings]),
    }
    headline = Slice(words.headline(diagnosis), "verdict", begin_ns, end_ns, finite(args))
    page.slice(Thread(ABOUT, "verdict", 0), headline)
    for place, cause in enumerate(diagnosis.told):
        thread = Thread(ABOUT, f"{place + 1}. {prose(cause.title)}", 2 + place)
        page.slice(thread, Slice(words.titled(cause, diagnosis.shape), "cause", begin_ns, end_ns, _explain(cause)))
        for slot in slots:
            if _acts(cause, slot.step):
                name = f"{prose(cause.title)} in step {slot.step}"
                last_ns = slot.begin_ns + to_ns(slot.timelines[0].step_s)
                page.slice(thread, Slice(name, "cause", slot.begin_ns, last_ns, {"step": slot.step}), depth=1)


def _explain(cause: Cause) -> dict[str, Any]:
    """Say what is known of a cause."""
    return finite(
        {
            "cause": escape(cause.cause),
            "confidence": cause.confidence,
            "recoverable": cause.recoverable,
            "share": cause.share,
            "where": listed(words.places(cause.where)),
            "when": words.since(cause.when) or None,
            "evidence": listed([prose(item.text) for item in cause.evidence]),
            "fixes": listed([prose(f"{fix.fix}: {fix.summary}") for fix in cause.fixes]),
        }
    )


def _acts(cause: Cause, step: int) -> bool:
    """Say whether a cause acts in a step, as far as its pattern tells: of what comes and goes only stalls do."""
    return cause.when.pattern not in ("periodic", "sporadic") and cause.when.covers(step)
