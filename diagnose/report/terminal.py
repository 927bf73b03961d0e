"""The diagnosis as a page of text for people: verdict first, then the money, the causes, the pictures, the doubts.

Enters: a `Diagnosis`. Leaves: text that reads at any width from 40 columns, with or without colour.
"""

import itertools
from collections.abc import Iterator, Mapping, Sequence

import numpy as np
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from diagnose.model.cause import Cause, Fix
from diagnose.model.components import COMPONENTS
from diagnose.model.diagnosis import Diagnosis
from diagnose.model.diagnosis_document import Ledger, Plan
from diagnose.model.explanation import RuleCheck
from diagnose.model.telemetry_document import TelemetryDocument
from diagnose.model.training_log import LogFacts
from diagnose.report import facts, words
from diagnose.report.budget import draw_budget
from diagnose.report.charts import CULPRIT, are_alike, draw_heat_map, draw_shares, draw_sparkline, scale_of
from diagnose.report.conditions import draw_conditions, format_number
from diagnose.report.escape import escape, name, prose
from diagnose.report.layout import (
    PROSE_WIDTH,
    draw,
    draw_bullets,
    draw_facts,
    draw_marked,
    print_sections,
)
from diagnose.report.styles import SEVERITY_STYLES, VERDICT_STYLES

#: Facts of a cause that stand before what to do.
_PLACE = {"Where", "When"}
#: The two components of a ledger and its causes say the same when no share differs by more than this.
_SAME_SHARE = 0.005
#: Sections that take the whole width.
_PICTURES = {"Workers", "Steps", "Training log"}


def render(
    diagnosis: Diagnosis, *, width: int, color: bool, thorough: bool = False, links: Sequence[tuple[str, str]] = ()
) -> str:
    """Write all figures of a diagnosis as a page for a terminal or a plain file; `brief` writes the gist of it.

    Where thorough, with every rule and its conditions, every feature, and how to do each fix on every framework. `links` are what
    else was written of this job: what it is, and its path.
    """
    sections = _sections(diagnosis, width, thorough=thorough, links=links)
    return draw(lambda console: print_sections(console, sections, _PICTURES), width=width, color=color)


def _sections(
    diagnosis: Diagnosis, width: int, *, thorough: bool = False, links: Sequence[tuple[str, str]] = ()
) -> Iterator[tuple[str | Text, RenderableType]]:
    """Give the sections in the order of the report: title and body. What is to be done comes first, then the figures."""
    headline = Text(words.headline(diagnosis), style=VERDICT_STYLES.get(diagnosis.verdict, "bold"))
    yield "", Group(headline, *(Text(f"{name(what)}: {escape(path)}") for what, path in links))
    yield "", draw_facts(facts.summarize(diagnosis))
    for n, cause in enumerate(diagnosis.told, start=1):
        title = Text(
            f"{n}. {facts.head(cause, is_placed=not diagnosis.is_from_log, shape=diagnosis.shape)}",
            style=SEVERITY_STYLES.get(cause.severity or "", "bold"),
        )
        yield title, draw_facts(_about_cause(cause, thorough=thorough))
    if not diagnosis.causes:
        yield "What was found", draw_facts(_about_nothing(diagnosis))
    if diagnosis.plan is not None and len(diagnosis.plan.steps) > 1:
        yield "In which order", _draw_plan(diagnosis.plan)
    if diagnosis.ledger is not None:
        yield _ledger_title(diagnosis), _draw_ledger(diagnosis.ledger, min(width, PROSE_WIDTH))
    yield from draw_budget(diagnosis, min(width, PROSE_WIDTH), thorough=thorough)
    if diagnosis.collectives is not None:
        yield "Collectives", draw_facts(facts.list_collectives(diagnosis.collectives))
    if diagnosis.log is not None:
        yield "Training log", _draw_log(diagnosis.log, facts.list_slow_ranks(diagnosis), width - 2)
    if diagnosis.is_replayed:
        yield "Workers", _draw_workers(diagnosis, width - 2)
        yield "Steps", _draw_steps(diagnosis, width - 2)
    if thorough:
        yield from _thorough(diagnosis)
    yield "How far to trust this", draw_facts(_doubts(diagnosis))
    if diagnosis.is_replayed:
        yield "As in arXiv 2505.05713", draw_facts(facts.explain_paper(diagnosis))


def _thorough(diagnosis: Diagnosis) -> Iterator[tuple[str, RenderableType]]:
    """Give what few ask for: every rule with its conditions, and every feature with its value or why it has none."""
    details = diagnosis.details
    for rule in details.rules if details else ():
        title = f"Rule {escape(rule.cause)}: {_describe_outcome(rule, diagnosis)}"
        yield title, draw_conditions(rule.conditions, brief=True)
    yield "Features", _draw_features(diagnosis.features, details.missing if details else {})


def _describe_outcome(rule: RuleCheck, diagnosis: Diagnosis) -> str:
    """Say in a few words what came of a rule."""
    if any(cause.cause == rule.cause for cause in diagnosis.causes):
        return "said"
    if rule.fires is False:
        return "does not hold"
    if rule.cause in diagnosis.checked:
        return "not said, as too little is lost to it" if rule.fires is None else "holds, but is not said"
    return "cannot be judged"


def _draw_features(features: Mapping[str, float | None], missing: Mapping[str, str]) -> Table:
    """Draw one line a feature: name, and value or the reason why there is none."""
    table = Table.grid(padding=(0, 2))
    table.add_column(style="dim", overflow="fold")
    table.add_column(overflow="fold")
    for feature, value in sorted(features.items()):
        known = value is not None and np.isfinite(value)
        why = Text(f"not measured: {prose(missing.get(feature, 'no reason kept'))}", style="dim")
        table.add_row(escape(feature), format_number(float(value)) if value is not None and known else why)
    return table


def _ledger_title(diagnosis: Diagnosis) -> str:
    """Say how much time the ledger shares out."""
    times = diagnosis.step_time
    if times.clean is None:
        return "Where the lost time went"
    lost_s = times.recorded - times.clean
    return f"Where the lost time went ({words.seconds(lost_s)} of each {words.seconds(times.recorded)} step)"


def _draw_ledger(ledger: Ledger, width: int) -> RenderableType:
    """Draw a bar a cause, the unexplained rest, and the components where they say more."""
    rows = [*_largest_first(ledger.causes, "red"), ("unexplained", ledger.unexplained, "dim")]
    named = {COMPONENTS.get(name, name): share for name, share in ledger.components.items()}
    parts = (
        [] if _same_shares(ledger) else [*_largest_first(named, ""), ("too small to tell", ledger.immaterial, "dim")]
    )
    of_causes, of_parts = draw_shares(width, rows, parts)
    return Group(of_causes, Text("The same time by component:", style="dim"), of_parts) if parts else of_causes


def _same_shares(ledger: Ledger) -> bool:
    """Say whether the components only repeat what the causes say."""
    by_cause = sorted(ledger.causes.values())
    by_part = sorted(v for v in ledger.components.values() if abs(v) >= words.NO_SHARE)
    same_length = len(by_cause) == len(by_part) or not by_part
    return same_length and all(abs(a - b) <= _SAME_SHARE for a, b in zip(by_cause, by_part, strict=False))


def _largest_first(shares: dict[str, float], style: str) -> list[tuple[str, float, str]]:
    """Order what is not nothing, largest first, ties by name."""
    found = [(name, share, style) for name, share in shares.items() if abs(share) >= words.NO_SHARE]
    return sorted(found, key=lambda entry: (-entry[1], entry[0]))


def _about_cause(cause: Cause, *, thorough: bool) -> list[tuple[str, RenderableType]]:
    """Say where, since when, what to do, how much, how sure, and why."""
    measures = facts.measure(cause)
    place = [row for row in measures if row[0] in _PLACE]
    rows: list[tuple[str, RenderableType]] = [*place]
    if cause.fixes:
        fixes = [_draw_fix(n, fix, thorough=thorough) for n, fix in enumerate(cause.fixes, start=1)]
        rows.append(("What to do", Group(*fixes)))
    if cause.refused_fixes:
        refused = [f"{facts.name_refused(fix)}: {prose(fix.reason)}" for fix in cause.refused_fixes]
        rows.append(("Not for this job", draw_bullets(refused)))
    rows += [row for row in measures if row not in place]
    if cause.evidence:
        rows.append(("Evidence", draw_bullets(facts.describe_evidence(cause))))
    return rows


def _draw_fix(n: int, fix: Fix, *, thorough: bool) -> Table:
    """Say what to change, how, and what a replay of it predicts."""
    first, *rest = fix_lines(fix, thorough=thorough)
    first.append(f" ({escape(fix.fix)})", style="not bold dim")
    return draw_marked([(f"{n}.", first), *(("", line) for line in rest)])


def fix_lines(fix: Fix, *, thorough: bool = False) -> list[Text]:
    """Say in a few lines what a fix changes, what a replay of it predicts, how to do it, and what to mind.

    Where thorough, how to do it on every framework, if that of the job is not known.
    """
    lines = [Text(prose(fix.summary), style="bold")]
    gain = facts.predict(fix)
    lines.append(Text(facts.NO_PREDICTION, style="dim") if gain is None else Text(gain, style="green"))
    lines += [Text(line) for line in (facts.split_how(fix) if thorough else facts.choose_how(fix))]
    if fix.assumptions:
        lines.append(Text(f"assumed: {prose('; '.join(fix.assumptions))}", style="dim"))
    lines += [Text(f"mind: {prose(risk)}", style="dim") for risk in fix.risks]
    return lines


def _draw_plan(plan: Plan) -> Table:
    """Say what the best fix of each cause gives after those before it."""
    rows: list[tuple[str, RenderableType]] = []
    for n, step in enumerate(plan.steps, start=1):
        gain = words.pace(step.predicted_step_time, step.predicted_speedup)
        text = Text(escape(step.fix), style="bold").append(f" ({escape(step.cause)}): {gain}", style="not bold")
        if step.note:
            text.append(f"; {prose(step.note)}", style="not bold yellow")
        rows.append((f"{n}.", text))
    return draw_marked(rows)


def _about_nothing(diagnosis: Diagnosis) -> list[tuple[str, RenderableType]]:
    """Say plainly that nothing was found, or why nobody can say, and what was looked at."""
    w = diagnosis.what_if
    measured = sum(value is not None for value in diagnosis.features.values())
    looked = [
        words.count(w.by_worker.size, "worker"),
        words.count(len(w.steps), "step"),
        words.count(len(w.by_optype), "operation type"),
    ]
    if diagnosis.features:
        looked.append(f"{measured} of {words.count(len(diagnosis.features), 'feature')} measured")
    rows: list[tuple[str, RenderableType]] = [("Verdict", facts.describe_nothing(diagnosis))]
    if diagnosis.is_replayed:
        rows.append(("Looked at", ", ".join(looked)))
    if diagnosis.checked and diagnosis.verdict != "inconclusive":  # where no figure is trusted nothing is ruled out
        rows.append(("Looked for", ", ".join(escape(cause) for cause in diagnosis.checked)))
    largest = _largest_slowdowns(diagnosis)
    return [*rows, ("Slowest", "; ".join(largest))] if largest else rows


def _largest_slowdowns(diagnosis: Diagnosis) -> list[str]:
    """Name the slowest of each kind, with the slowdown when only it keeps its own times."""
    w = diagnosis.what_if
    kinds = [
        ("stage", diagnosis.stage_labels, w.by_stage),
        ("dp rank", diagnosis.dp_labels, w.by_dp),
        ("step", w.steps, w.by_step),
    ]
    found = [
        f"{kind} {labels[int(np.nanargmax(values))]} {words.ratio(float(np.nanmax(values)))}"
        for kind, labels, values in kinds
        if len(values) > 1 and not np.isnan(values).all()
    ]
    by_optype = {optype: value for optype, value in w.by_optype.items() if np.isfinite(value)}
    if by_optype:
        slowest = max(by_optype, key=lambda key: by_optype[key])
        found.insert(0, f"{name(slowest)} {words.ratio(by_optype[slowest])}")
    return found


def _draw_workers(diagnosis: Diagnosis, width: int) -> RenderableType:
    """Draw the heat map of workers, or say in words that there is nothing to see."""
    by_worker = diagnosis.what_if.by_worker
    if np.isnan(by_worker).all():
        return "Slowdown by worker is not known."
    if by_worker.size == 1:
        return f"There is one worker; it has no peers to be compared with ({words.ratio(float(by_worker.flat[0]))})."
    if are_alike(by_worker):
        span = words.span(float(np.nanmin(by_worker)), float(np.nanmax(by_worker)))
        return f"All {by_worker.size:,} workers lie within 1% of each other: slowdown {span}."
    culprits = diagnosis.find_culprits()
    lines = draw_heat_map(by_worker, diagnosis.dp_labels, diagnosis.stage_labels, width, culprits=culprits)
    marked = f"; {CULPRIT} is a culprit" if culprits.any() else ""
    intro = Text(f"Slowdown of the job when only that worker keeps its own times{marked}:", style="dim")
    return Group(intro, *lines)


def _draw_steps(diagnosis: Diagnosis, width: int) -> RenderableType:
    """Draw the slowdown of every step, or say in words that there is nothing to see."""
    w = diagnosis.what_if
    if len(w.steps) == 0 or np.isnan(w.by_step).all():
        return "Slowdown by step is not known."
    low, high = float(np.nanmin(w.by_step)), float(np.nanmax(w.by_step))
    if len(w.steps) == 1:
        return f"There is one step, number {w.steps[0]}: slowdown {words.ratio(high)}."
    span = f"{w.steps[0]} to {w.steps[-1]}"
    if are_alike(w.by_step):
        return f"All {len(w.steps):,} steps ({span}) lie within 1% of each other: slowdown {words.span(low, high)}."
    first, last = f"{w.steps[0]} ", f" {w.steps[-1]}"
    line = draw_sparkline(w.by_step, max(8, min(width, 160) - len(first) - len(last)))
    slowest = int(w.steps[int(np.nanargmax(w.by_step))])
    scale = words.span(*scale_of(w.by_step))
    legend = f"slowdown {words.span(low, high)}, most in step {slowest}; heights from {scale}"
    return Group(Text(first + line + last), Text(legend, style="dim"))


def _draw_log(log: LogFacts, slow_ranks: Sequence[str], width: int) -> RenderableType:
    """Draw the seconds of each iteration, and name the ranks that the log sets apart."""
    first, last = f"{int(log.iterations[0])} ", f" {int(log.iterations[-1])}"
    n_columns = max(8, min(width, 160) - len(first) - len(last))
    # A median for each column: a lone slow step would stand for all around it.
    edges = np.unique(np.linspace(0, len(log.step_s), min(n_columns, len(log.step_s)) + 1).astype(np.int64))
    values = np.array([np.median(log.step_s[a:b]) for a, b in itertools.pairwise(edges.tolist())])
    low, high = (facts.write_pace(log, float(value)) for value in (values.min(), values.max()))
    what = "iterations by their rates" if log.of else "seconds of an iteration"
    span = f"{what}, medians from {low} to {high}" if low != high else f"{low} an iteration, all along"
    lines: list[RenderableType] = [
        Text(first + draw_sparkline(values / float(values.min()), n_columns) + last),
        Text(span, style="dim"),
    ]
    if slow_ranks:
        lines.append(draw_bullets(facts.first_of(slow_ranks)))
    return Group(*lines)


def _doubts(diagnosis: Diagnosis) -> list[tuple[str, RenderableType]]:
    """Say how faithful the replay is, what the input lacks, and what could not be checked."""
    error = words.percent(diagnosis.fidelity.replay_error)
    rows: list[tuple[str, RenderableType]] = [
        ("Replay", f"with launch delays it is off by {error} from the recorded step times; trusted up to 5%"),
    ]
    if diagnosis.is_from_collectives:
        rows = [("Replay", "none: a recording of collectives has no steps to be replayed")]
    if diagnosis.is_from_log:
        rows = [("Replay", "none: a log has no operations to be replayed")]
    if diagnosis.warnings:
        rows.append(("Warnings", draw_bullets(facts.first_of([prose(text) for text in diagnosis.warnings]), mark="!")))
    if diagnosis.telemetry is not None:
        rows.append(
            ("Telemetry", _describe_telemetry(diagnosis.telemetry, {c.cause: c.title for c in diagnosis.causes}))
        )
    if diagnosis.not_checked:
        rows.append(("Not checked", draw_bullets(facts.first_of(facts.list_reasons(diagnosis)))))
    rows.append(("Made by", facts.describe_makers(diagnosis.made_by)))
    return rows


def _describe_telemetry(telemetry: TelemetryDocument, titles: Mapping[str, str]) -> str:
    """Say what was read of the machines, and what it says for or against the causes."""
    n_hosts = len(telemetry.hosts) + len(telemetry.missing)
    has = f"counters of {len(telemetry.hosts)} of {words.count(n_hosts, 'machine')}"
    has += f" ({', '.join(telemetry.formats)})" if telemetry.formats else ""
    if telemetry.begin_s is None:
        return f"{has}; none were compared"
    said = [
        f"{'against' if finding.kind is None else 'for'} {titles.get(finding.cause, finding.cause)}"
        for finding in telemetry.findings
    ]
    return f"{has}; they speak {', '.join(dict.fromkeys(said)) or 'neither for nor against a cause'}"
