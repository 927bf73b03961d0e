"""The diagnosis as one HTML file that needs no network: words, inline SVG, tables, and a small script for more.

Enters: a `ReportData`, or a diagnosis that was kept. Leaves: the text of the file, the same bytes for the same data. What comes
from the trace reaches the page only as text: `environment` disarms every value that the template prints, Jinja2 escapes it, and
the script's data cannot end its element.
"""

import dataclasses
import shlex
from collections.abc import Callable, Mapping
from typing import Any

import jinja2
import matplotlib as mpl
import msgspec.structs
import numpy as np

from diagnose.model.analysis import ReportData
from diagnose.model.cause import Cause, Fix
from diagnose.model.diagnosis import Diagnosis
from diagnose.model.pictured import NO_RULE, Pictured
from diagnose.report import words
from diagnose.report.escape import escape, prose
from diagnose.report.facts import (
    NO_PREDICTION,
    describe_alternatives,
    describe_log,
    describe_nothing,
    describe_recoverable,
    describe_share,
)
from diagnose.report.html.bars import draw_optypes, draw_stages, draw_waterfall
from diagnose.report.html.draw import styled
from diagnose.report.html.environment import fill_in
from diagnose.report.html.pauses import draw_links, draw_pauses
from diagnose.report.html.picture import MAX_ROWS, Picture, largest_first
from diagnose.report.html.sequences import draw_forward_backward, draw_tokens
from diagnose.report.html.steps import draw_steps
from diagnose.report.html.timelines import draw_timeline
from diagnose.report.html.workers import draw_workers

#: Characters of the job's name on the page; what is longer is cut, and says so.
_MAX_NAME = 120
#: A table: title, names of the columns, rows.
_Table = tuple[str, tuple[str, ...], list[tuple[str, ...]]]
#: All pictures, in the order of the page.
_PICTURES: tuple[Callable[[ReportData], Picture | None], ...] = (
    draw_workers,
    draw_steps,
    draw_timeline,
    draw_stages,
    draw_pauses,
    draw_links,
    draw_forward_backward,
    draw_tokens,
    draw_optypes,
)


def render(data: ReportData, *, options: str = "", in_site: bool = False) -> str:
    """Write the page of a job, a whole HTML document.

    Parameters
    ----------
    options : str
        Options of the command line that change the diagnosis, for the words on how to make it again.
    in_site : bool
        It lies in a folder beside the index of a site, and links to it.
    """
    with styled():
        ledger = draw_waterfall(data.diagnosis.step_time, data.diagnosis.ledger)
        pictures = [picture for draw in _PICTURES if (picture := draw(data)) is not None]
    lead = _choose_lead(data, pictures)
    return _fill(data.diagnosis, lead, ledger, pictures, in_site=in_site, options=options, pictured=data.pictured)


def render_saved(diagnosis: Diagnosis, location: str = "TRACE", *, in_site: bool = True) -> str:
    """Write the page of a job whose trace, which was at `location`, is not at hand, for a folder beside the index of a site.

    It has the words and the ledger of `render`, and tables in the place of the other pictures, because a site has thousands of
    pages.
    """
    with styled():
        ledger = draw_waterfall(diagnosis.step_time, diagnosis.ledger)
    return _fill(diagnosis, None, ledger, [], in_site=in_site, location=location)


def _fill(
    diagnosis: Diagnosis,
    lead: Picture | None,
    ledger: Picture | None,
    pictures: list[Picture],
    *,
    in_site: bool,
    options: str = "",
    pictured: Mapping[str, Pictured] | None = None,
    location: str | None = None,
) -> str:
    """Fill in the template."""
    shown = [picture for picture in (lead, ledger, *pictures) if picture is not None]
    said = _describe(diagnosis, options, pictured or {})
    if location is not None:
        said["command"] = f"diagnose {shlex.quote(location)} --min-speedup {diagnosis.min_speedup:g} --html report.html"
        said["metadata"] = [("trace", location), *said["metadata"]]
    return fill_in(
        "page.html.j2",
        shown,
        lead=lead,
        shown={picture.key for picture in shown},
        ledger=ledger,
        pictures=[picture for picture in pictures if picture is not lead],
        in_site=in_site,
        measures=[] if location is None else _measures(diagnosis),
        **said,
    )


def _measures(diagnosis: Diagnosis) -> list[_Table]:
    """List the measures that a saved diagnosis has no picture of: title, names of the columns, rows."""
    w = diagnosis.what_if
    known = [(name, value) for name, value in w.by_optype.items() if np.isfinite(value)]
    optypes = largest_first(known)
    n_known = int(np.isfinite(w.by_worker).sum())
    workers = [(f"{who.dp}", f"{who.pp}", words.ratio(value)) for who, value in diagnosis.slowest_workers(n_known)]
    stages = zip(diagnosis.stage_labels.tolist(), w.by_stage.tolist(), strict=True)
    steps = sorted(zip(w.steps.tolist(), w.by_step.tolist(), strict=True), key=lambda row: (-row[1], row[0]))
    slowest = sorted(steps[:MAX_ROWS])
    cut = f", the {MAX_ROWS} slowest" if len(steps) > MAX_ROWS else ""
    return [
        (
            "Slowdown by operation type",
            ("operation type", "S"),
            [(name, words.ratio(value)) for name, value in optypes],
        ),
        ("Slowdown of the job with only that worker as recorded, slowest first", ("dp", "stage", "S"), [*workers]),
        ("Slowdown by stage", ("stage", "S"), [(f"{label}", words.ratio(value)) for label, value in stages]),
        (f"Slowdown by step{cut}", ("step", "S"), [(f"{step}", words.ratio(value)) for step, value in slowest]),
    ]


def _describe(diagnosis: Diagnosis, options: str, pictured: Mapping[str, Pictured]) -> dict[str, Any]:
    """Put into words what the template prints."""
    name = _short(escape(diagnosis.job.job_id)) or "job"
    short = dataclasses.replace(diagnosis, job=dataclasses.replace(diagnosis.job, job_id="job"))
    said = words.headline(short).removeprefix("job: ").removeprefix(f"{escape(diagnosis.verdict)} — ")
    return {
        "name": name,
        "headline": said[:1].upper() + said[1:],
        "verdict": diagnosis.verdict,
        "facts": _facts(diagnosis),
        "causes": [_about_cause(c, pictured.get(c.cause, NO_RULE).pictures) for c in diagnosis.causes],
        "nothing": None if diagnosis.causes else describe_nothing(diagnosis),
        "plan": _about_plan(diagnosis),
        "doubts": _doubts(diagnosis),
        "warnings": [prose(text) for text in diagnosis.warnings],
        "not_checked": [(entry.cause, prose(entry.reason)) for entry in diagnosis.not_checked],
        "checked": list(diagnosis.checked),
        "features": [(key, _figure(value)) for key, value in sorted(diagnosis.features.items())],
        "metadata": _metadata(diagnosis),
        "versions": _versions(diagnosis),
        "command": f"diagnose TRACE{options} --html report.html",
        "n_features": sum(value is not None for value in diagnosis.features.values()),
    }


def _facts(diagnosis: Diagnosis) -> list[tuple[str, str, str]]:
    """Give the figures that stand beside the verdict: name, value, what it means."""
    times, w = diagnosis.step_time, diagnosis.what_if
    facts = [("Step time", words.seconds(times.recorded), "recorded, mean")]
    if times.clean is not None:
        facts.append(("Clean", words.seconds(times.clean), "without any known fault, by replay"))
    facts.append(
        ("Slowdown S", words.ratio(w.slowdown), f"against ideal times; waste {words.percent(1 - 1 / w.slowdown)}")
    )
    if diagnosis.gpu_hours_wasted is not None:
        whole = words.hours(diagnosis.gpu_hours_analysed)
        facts.append(("GPU hours wasted", words.hours(diagnosis.gpu_hours_wasted), f"of {whole} analysed"))
    if diagnosis.log is not None:
        pace_s = float(diagnosis.log.step_s.mean()) if diagnosis.log.slow_s is None else diagnosis.log.slow_s
        facts.append(("By the log", words.seconds(pace_s), describe_log(diagnosis.log)))
    replay = "faithful" if diagnosis.fidelity.ok else "NOT faithful"
    return [*facts, ("Replay", replay, f"{words.describe_miss(diagnosis.fidelity)}; trusted up to 5%")]


def _about_cause(cause: Cause, pictures: tuple[str, ...]) -> dict[str, Any]:
    """Put a cause into words."""
    return {
        "id": cause.cause,
        "title": words.titled(msgspec.structs.replace(cause, title=cause.title[:1].upper() + cause.title[1:])),
        "confidence": words.confidence(cause.confidence),
        "confidence_value": f"{min(max(cause.confidence, 0.0), 1.0):.3f}",
        "rows": [
            ("Share", describe_share(cause)),
            ("Recoverable", describe_recoverable(cause)),
            ("Where", "; ".join(words.places(cause.where)) or "spread over the job"),
            ("When", words.since(cause.when) or words.NOT_KNOWN),
            *(("Or else", line) for line in describe_alternatives(cause.alternatives)),
        ],
        "evidence": [
            (prose(item.text), item.source, item.id, [(key, _figure(value)) for key, value in item.values.items()])
            for item in cause.evidence
        ],
        "fixes": [_about_fix(fix) for fix in cause.fixes],
        "refused": [(fix.fix, prose(fix.reason)) for fix in cause.refused_fixes],
        "lead": pictures,
        "fingerprint": cause.fingerprint,
    }


def _about_fix(fix: Fix) -> dict[str, Any]:
    """Put a fix into words."""
    gain = NO_PREDICTION
    if fix.predicted_step_time is not None and fix.predicted_speedup is not None:
        gain = f"predicted: {words.pace(fix.predicted_step_time, fix.predicted_speedup)}"
    settings = ",".join(f"{key}={value}" for key, value in fix.settings.items())
    return {
        "fix": fix.fix,
        "summary": prose(fix.summary),
        "how": prose(fix.how) if fix.how and fix.how != fix.summary else "",
        "gain": gain,
        "priced": fix.predicted_step_time is not None,
        "assumptions": [prose(text) for text in fix.assumptions],
        "risks": [prose(text) for text in fix.risks],
        "figures": [(key, _figure(value)) for key, value in fix.figures.items() if value is not None],
        "by_hand": f"diagnose what-if TRACE --fix {fix.fix}" + (f":{settings}" if settings else ""),
    }


def _about_plan(diagnosis: Diagnosis) -> list[tuple[str, str, str, str]]:
    """Say in which order to do the fixes; empty where there is one at most."""
    plan = diagnosis.plan
    if plan is None or len(plan.steps) < 2:
        return []
    return [
        (step.fix, step.cause, words.pace(step.predicted_step_time, step.predicted_speedup), prose(step.note or ""))
        for step in plan.steps
    ]


def _doubts(diagnosis: Diagnosis) -> list[str]:
    """Say how far to trust the replay."""
    fidelity = diagnosis.fidelity
    error = words.percent(fidelity.replay_error)
    return [
        f"With launch delays the replay is off by {error} from the recorded step times; trusted up to 5%.",
        f"S leaves launch delays out; they, and what the graph misses, come to {words.percent(fidelity.discrepancy)}"
        + (
            "; below zero operations run side by side that it puts one after the other."
            if fidelity.discrepancy < 0
            else "."
        ),
    ]


def _metadata(diagnosis: Diagnosis) -> list[tuple[str, str]]:
    """List what is known of the job."""
    job = dataclasses.asdict(diagnosis.job)
    known = [(key, value) for key, value in job.items() if value is not None]
    rows = [(key, _figure(value) if isinstance(value, int | float) else str(value)) for key, value in known]
    steps, dropped = diagnosis.what_if.steps, f"{diagnosis.steps_dropped:,} dropped"
    analysed = f"{len(steps):,} ({steps[0]} to {steps[-1]}), {dropped}" if len(steps) else "none"
    return [*rows, ("steps analysed", analysed), ("operations", f"{diagnosis.n_ops:,}")]


def _versions(diagnosis: Diagnosis) -> list[tuple[str, str]]:
    """List what made this page."""
    made = diagnosis.made_by
    return [
        ("diagnose", made.version),
        ("rules", made.rules),
        ("classifier", made.classifier or "none"),
        ("matplotlib", mpl.__version__),
        ("Jinja2", jinja2.__version__),
        ("least speedup of a cause", f"{diagnosis.min_speedup:g}"),
    ]


def _choose_lead(data: ReportData, pictures: list[Picture]) -> Picture | None:
    """Choose the picture that makes the first cause obvious."""
    causes = data.diagnosis.causes
    by_key = {picture.key: picture for picture in pictures}
    wanted = data.pictured.get(causes[0].cause, NO_RULE).pictures if causes else ()
    return next((by_key[key] for key in (*wanted, "workers", "steps") if key in by_key), None)


def _figure(value: float | None) -> str:
    """Write a number as it is, to six digits."""
    if value is None:
        return words.NOT_KNOWN
    return f"{value:,}" if isinstance(value, int) else f"{value:.6g}"


def _short(text: str) -> str:
    """Cut a name."""
    return text if len(text) <= _MAX_NAME else f"{text[:_MAX_NAME]}... ({len(text):,} characters)"
