"""The diagnosis as one HTML file that needs no network: words, inline SVG, tables, and a small script for more.

Enters: a `ReportData`, or a diagnosis that was kept. Leaves: the text of the file, the same bytes for the same data. What comes
from the trace reaches the page only as text: `environment` disarms every value that the template prints, Jinja2 escapes it, and
the script's data cannot end its element.
"""

import dataclasses
import shlex
from collections.abc import Callable, Sequence
from itertools import zip_longest
from typing import Any

import jinja2
import matplotlib as mpl
import msgspec.structs
import numpy as np

from diagnose.model.analysis import ReportData
from diagnose.model.cause import Cause, Fix
from diagnose.model.diagnosis import Diagnosis
from diagnose.model.place import Shape
from diagnose.report import words
from diagnose.report.escape import escape, prose
from diagnose.report.explain import describe_why
from diagnose.report.facts import (
    NO_PREDICTION,
    describe_alternatives,
    describe_evidence,
    describe_log,
    describe_loss,
    describe_nothing,
    describe_recoverable,
    describe_share,
    explain_paper,
    predict,
    split_how,
)
from diagnose.report.html.budget import draw_budget, list_levers
from diagnose.report.html.draw import styled
from diagnose.report.html.environment import fill_in
from diagnose.report.html.ledger import draw_waterfall
from diagnose.report.html.log import draw_log
from diagnose.report.html.microbatches import draw_microbatches
from diagnose.report.html.network import draw_network
from diagnose.report.html.picture import FULL_WIDTH, LEAD_WIDTH, MAX_ROWS, Picture, largest_first
from diagnose.report.html.proof import draw_proof
from diagnose.report.html.steps import draw_steps
from diagnose.report.html.telemetry import draw_telemetry
from diagnose.report.html.timelines import draw_timeline
from diagnose.report.html.workers import draw_workers

#: Characters of the job's name on the page; what is longer is cut, and says so.
_MAX_NAME = 120
#: Causes whose figures are drawn; the others have them in the JSON.
_MAX_PROOFS = 4
#: A table: title, names of the columns, rows.
_Table = tuple[str, tuple[str, ...], list[tuple[str, ...]]]
#: What stands beside the picture of the first cause, by its kind, and where there is no cause; else it is the ledger.
_BESIDE: dict[str, Callable[[ReportData], Picture | None]] = {
    "pace": lambda data: draw_workers(data.diagnosis),
    "stages": lambda data: draw_workers(data.diagnosis),
    "transfers": draw_network,
    "ranks": draw_microbatches,
    "experts": draw_microbatches,
    "": lambda data: draw_workers(data.diagnosis),
}


def render(data: ReportData, *, options: str = "", in_site: bool = False) -> str:
    """Write the page of a job, a whole HTML document.

    Parameters
    ----------
    options : str
        Options of the command line that change the diagnosis, for the words on how to make it again.
    in_site : bool
        It lies in a folder beside the index of a site, and links to it.
    """
    diagnosis = data.diagnosis
    with styled():
        figures = _draw_proofs(diagnosis)
        proofs = [picture for picture in figures if picture is not None]
        narrow = [picture for picture in (_draw_beside(data), _draw_ledger(diagnosis)) if picture is not None]
        steps = None
        if all(picture.key != "steps" for picture in proofs):
            steps = draw_steps(data, LEAD_WIDTH if len(narrow) > len(proofs) else FULL_WIDTH)
        timeline = draw_timeline(data)
        counters = draw_telemetry(diagnosis.telemetry)
    rows = _pair([*proofs, steps], narrow)
    others = _explain_others(data)
    rows = [*rows[:1], *counters, *rows[1:], [timeline]]
    pictures, values = _collect(diagnosis, figures, rows, others, in_site=in_site, options=options)
    return fill_in("page.html.j2", pictures, **values)


def render_saved(diagnosis: Diagnosis, location: str = "TRACE", *, in_site: bool = True) -> str:
    """Write the page of a job whose trace, which was at `location`, is not at hand, for a folder beside the index of a site.

    It has the words of `render`, the pictures of what the diagnosis keeps, and tables in the place of the others.
    """
    pictures, values = describe_saved(diagnosis, location, in_site=in_site)
    return fill_in("page.html.j2", pictures, **values)


def describe_saved(
    diagnosis: Diagnosis, location: str, *, in_site: bool, options: str = ""
) -> tuple[list[Picture], dict[str, Any]]:
    """Give the pictures and the words of `render_saved`, for a page that has more than those."""
    with styled():
        figures = _draw_proofs(diagnosis)
        rows = [*_pair(figures, [_draw_ledger(diagnosis)]), *draw_telemetry(diagnosis.telemetry)]
    reasons = {entry.cause: prose(entry.reason) for entry in diagnosis.not_checked}
    found = {cause.cause for cause in diagnosis.causes}
    hint = f"looked for and not found; diagnose explain {shlex.quote(location)} CAUSE says why"
    others = {cause: hint for cause in diagnosis.checked if cause not in found} | reasons
    return _collect(
        diagnosis, figures, rows, sorted(others.items()), in_site=in_site, location=location, options=options
    )


def render_without_replay(diagnosis: Diagnosis, location: str, *, options: str = "") -> str:
    """Write the page of a job by its training log, or its dumps of collectives, alone; they were at `location`."""
    with styled():
        rows: list[list[Picture | None]] = [] if diagnosis.log is None else [[draw_log(diagnosis.log)]]
    others = [(entry.cause, prose(entry.reason)) for entry in diagnosis.not_checked]
    pictures, values = _collect(diagnosis, [], rows, others, in_site=False, options=options, location=location)
    return fill_in("page.html.j2", pictures, **values)


def _draw_proofs(diagnosis: Diagnosis) -> list[Picture | None]:
    """Draw what shows each cause, under keys that differ; None for a cause that keeps nothing to draw."""
    kinds = [cause.proof.kind if cause.proof is not None else "" for cause in diagnosis.told]
    keys = [f"{kind}-{n}" if (n := kinds[:i].count(kind)) else kind for i, kind in enumerate(kinds)]
    drawn = zip(diagnosis.told[:_MAX_PROOFS], keys, strict=False)
    return [draw_proof(diagnosis, cause, key) for cause, key in drawn]


def _draw_ledger(diagnosis: Diagnosis) -> Picture | None:
    """Draw the ledger of a job that has one."""
    return None if diagnosis.ledger is None else draw_waterfall(diagnosis.step_time, diagnosis.ledger)


def _draw_beside(data: ReportData) -> Picture | None:
    """Draw what stands beside the picture of the first cause; with no cause the map of workers."""
    causes = data.diagnosis.told
    kind = causes[0].proof.kind if causes and causes[0].proof is not None else ""
    return _BESIDE[kind](data) if kind in _BESIDE else None


def _pair(left: Sequence[Picture | None], right: Sequence[Picture | None]) -> list[list[Picture | None]]:
    """Put wide pictures beside narrow ones, row by row."""
    wide, narrow = ([picture for picture in some if picture is not None] for some in (left, right))
    return [list(row) for row in zip_longest(wide, narrow)]


def _explain_others(data: ReportData) -> list[tuple[str, str]]:
    """Say of every known cause that is not said why it is not."""
    found = {cause.cause for cause in data.diagnosis.causes}
    if data.explain is None:
        return []
    said = [(cause, describe_why(data.explain(cause))) for cause in sorted(data.pictured) if cause not in found]
    return [(cause, why.removeprefix("Not said: ")) for cause, why in said]


def _collect(
    diagnosis: Diagnosis,
    figures: Sequence[Picture | None],
    rows: Sequence[Sequence[Picture | None]],
    others: Sequence[tuple[str, str]],
    *,
    in_site: bool,
    options: str = "",
    location: str | None = None,
) -> tuple[list[Picture], dict[str, Any]]:
    """Collect what the template prints, with rows of pictures, one or two in each; `figures` are those of the causes, in order."""
    kept = [found for row in rows if (found := [picture for picture in row if picture is not None])]
    shown = [picture for row in kept for picture in row]
    with styled():
        budget = draw_budget(diagnosis)
    said = _describe(diagnosis, options)
    if location is not None:
        asked = options or f" --min-speedup {diagnosis.min_speedup:g}"
        said["command"] = f"diagnose {shlex.quote(location)}{asked} --html report.html"
        said["metadata"] = [("trace", location), *said["metadata"]]
    return [*shown, *([] if budget is None else [budget])], {
        "heading": "h1",
        "rows": kept,
        "budget": budget,
        "levers": list_levers(diagnosis),
        "figures": ["" if picture is None else picture.key for picture in figures],
        "others": others,
        "in_site": in_site,
        "is_saved": location is not None,
        "measures": _measures(diagnosis) if diagnosis.is_replayed else [],
        **said,
    }


def _measures(diagnosis: Diagnosis) -> list[_Table]:
    """List the paper's measures: title, names of the columns, rows."""
    w = diagnosis.what_if
    known = [(name, value) for name, value in w.by_optype.items() if np.isfinite(value)]
    n_known = min(int(np.isfinite(w.by_worker).sum()), MAX_ROWS)
    workers = [(f"{who.dp}", f"{who.pp}", words.ratio(value)) for who, value in diagnosis.slowest_workers(n_known)]
    stages = zip(diagnosis.stage_labels.tolist(), w.by_stage.tolist(), strict=True)
    steps = sorted(zip(w.steps.tolist(), w.by_step.tolist(), strict=True), key=lambda row: (-row[1], row[0]))
    cut = f", the {MAX_ROWS} slowest" if len(steps) > MAX_ROWS else ""
    return [
        ("The job as a whole", ("measure", "value"), [*explain_paper(diagnosis)]),
        ("S of operation types", ("type", "S"), [(name, words.ratio(value)) for name, value in largest_first(known)]),
        ("S of workers, slowest first", ("dp", "stage", "S"), [*workers]),
        ("S of stages", ("stage", "S"), [(f"{label}", words.ratio(value)) for label, value in stages]),
        (
            f"S of steps{cut}",
            ("step", "S"),
            [(f"{step}", words.ratio(value)) for step, value in sorted(steps[:MAX_ROWS])],
        ),
    ]


def _describe(diagnosis: Diagnosis, options: str) -> dict[str, Any]:
    """Put into words what the template prints."""
    name = _short(escape(diagnosis.job.job_id)) or "job"
    short = dataclasses.replace(diagnosis, job=dataclasses.replace(diagnosis.job, job_id="job"))
    said = words.headline(short).removeprefix("job: ").removeprefix(f"{escape(diagnosis.verdict)} — ")
    causes = [
        _about_cause(cause, is_placed=not diagnosis.is_from_log, shape=diagnosis.shape) for cause in diagnosis.told
    ]
    return {
        "name": name,
        "headline": said[:1].upper() + said[1:],
        "verdict": diagnosis.verdict,
        "facts": _facts(diagnosis),
        "causes": causes,
        "nothing": None if causes else describe_nothing(diagnosis),
        "left": _about_left(diagnosis),
        "plan": _about_plan(diagnosis),
        "doubts": _doubts(diagnosis),
        "warnings": [prose(text) for text in diagnosis.warnings],
        "features": [(key, _figure(value)) for key, value in sorted(diagnosis.features.items())],
        "metadata": _metadata(diagnosis),
        "versions": _versions(diagnosis),
        "command": f"diagnose TRACE{options} --html report.html",
        "n_features": sum(value is not None for value in diagnosis.features.values()),
    }


def _facts(diagnosis: Diagnosis) -> list[tuple[str, str, str]]:
    """Give the figures that stand beside the verdict: name, value, what it means."""
    times = diagnosis.step_time
    rates_alone = diagnosis.is_from_log and diagnosis.log is not None and bool(diagnosis.log.of)
    facts = (
        []
        if diagnosis.is_from_collectives or rates_alone
        else [("Step time", words.seconds(times.recorded), "recorded, mean")]
    )
    if (without_s := diagnosis.without_named_s) is not None:
        facts.append(("Without known faults", words.seconds(without_s), "by replay"))
        facts.append(("Slower by", f"{words.ratio(times.recorded / without_s)}x", "recorded over that"))
    if diagnosis.gpu_hours_lost is not None and diagnosis.verdict != "inconclusive":
        whole, what = words.hours(diagnosis.gpu_hours_analysed), describe_loss(diagnosis)
        facts.append(("GPU hours", words.hours(diagnosis.gpu_hours_lost), f"{what}, of {whole} analysed"))
    if diagnosis.is_from_log and diagnosis.log is not None and diagnosis.log.ledger is not None:
        ledger = diagnosis.log.ledger
        return [
            *facts,
            *(
                []
                if rates_alone
                else [("Good pace", words.seconds(ledger.good_pace), "of an iteration, the lowest that lasts")]
            ),
            (
                "Above its good pace" if rates_alone else "Above it",
                words.percent(1.0 - ledger.good_s / ledger.total_s),
                "of all time that the log tells of",
            ),
        ]
    if diagnosis.log is not None:
        pace_s = float(diagnosis.log.step_s.mean()) if diagnosis.log.slow_s is None else diagnosis.log.slow_s
        facts.append(("By the log", words.seconds(pace_s), describe_log(diagnosis.log)))
    if not diagnosis.is_replayed:
        return facts
    replay = "faithful" if diagnosis.fidelity.ok else "NOT faithful"
    return [*facts, ("Replay", replay, f"{words.describe_miss(diagnosis.fidelity)}; trusted up to 5%")]


def _about_cause(cause: Cause, *, is_placed: bool, shape: Shape | None) -> dict[str, Any]:
    """Put a cause into words."""
    where = "; ".join(words.places(cause.where)) or ("spread over the job" if is_placed else "the log does not say")
    since = words.when(cause) or words.NOT_KNOWN
    values = {key: value for item in cause.evidence for key, value in item.values.items()}
    return {
        "id": cause.cause,
        "title": words.titled(msgspec.structs.replace(cause, title=cause.title[:1].upper() + cause.title[1:]), shape),
        "severity": cause.severity,
        "who": prose(cause.who or ""),
        "spot": words.spot(cause.where, is_placed=is_placed, shape=shape).removeprefix("at "),
        "since": since,
        "confidence": words.confidence(cause.confidence),
        "confidence_value": f"{min(max(cause.confidence, 0.0), 1.0):.3f}",
        "rows": [
            ("Where", where),
            ("When", since),
            ("Share", describe_share(cause)),
            ("Recoverable", describe_recoverable(cause)),
            *(("Or else", line) for line in describe_alternatives(cause.alternatives)),
        ],
        "evidence": describe_evidence(cause),
        "measured": [(key, _figure(value)) for key, value in values.items()],
        "check": prose(cause.check or ""),
        "fixes": [_about_fix(fix) for fix in cause.fixes],
        "refused": [(fix.fix, prose(fix.reason)) for fix in cause.refused_fixes],
        "fingerprint": cause.fingerprint,
    }


def _about_fix(fix: Fix) -> dict[str, Any]:
    """Put a fix into words."""
    settings = ",".join(f"{key}={value}" for key, value in fix.settings.items())
    return {
        "fix": fix.fix,
        "summary": prose(fix.summary),
        "how": split_how(fix),
        "gain": predict(fix) or NO_PREDICTION,
        "priced": fix.predicted_step_time is not None,
        "assumptions": [prose(text) for text in fix.assumptions],
        "risks": [prose(text) for text in fix.risks],
        "figures": [(key, _figure(value)) for key, value in fix.figures.items() if value is not None],
        "by_hand": f"diagnose what-if TRACE --fix {fix.fix}" + (f":{settings}" if settings else ""),
    }


def _about_left(diagnosis: Diagnosis) -> list[tuple[str, str, str]]:
    """Say what `unknown` and `unexplained` mean, and how much each is of this job's lost time: name, meaning, amount."""
    ledger, times = diagnosis.ledger, diagnosis.step_time
    unknown = [cause for cause in diagnosis.causes if cause.cause == "unknown"]
    found = "; ".join(f"{prose(cause.title)}: {describe_share(cause)}" for cause in unknown) or "none in this job"
    rest = "nothing was shared out in this job"
    if ledger is not None and times.clean is not None:
        lost_s = ledger.unexplained * (times.recorded - times.clean)
        rest = f"{words.percent(ledger.unexplained)} of the lost time, {words.seconds(lost_s)} a step"
        if ledger.unexplained < 0:
            rest = f"nothing in this job: the findings overlap by {words.percent(-ledger.unexplained)} of the lost time"
    return [
        ("unknown", "a finding: one kind of lost time, 5% of a step or more, that no known cause explains.", found),
        (
            "unexplained",
            "no finding: what is left of the lost time beside all findings, ordinary variation included.",
            rest,
        ),
    ]


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
    if diagnosis.is_from_log:
        return [
            "A log has no operations: nothing was replayed. What could come back is what its own times show, a bound."
        ]
    if diagnosis.is_from_collectives:
        return ["Nothing was replayed: there are collectives, and no computes. What could come back is a bound."]
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
    """List what is known of the job; where nobody knows how it is laid out, no size."""
    has_sizes = diagnosis.is_replayed or diagnosis.parallelism_known
    job = dataclasses.asdict(diagnosis.job)
    known = [(key, job[key]) for key in job if job[key] is not None and (has_sizes or not key.endswith("_size"))]
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


def _figure(value: float | None) -> str:
    """Write a number as it is, to six digits."""
    if value is None:
        return words.NOT_KNOWN
    return f"{value:,}" if isinstance(value, int) else f"{value:.6g}"


def _short(text: str) -> str:
    """Cut a name."""
    return text if len(text) <= _MAX_NAME else f"{text[:_MAX_NAME]}... ({len(text):,} characters)"
