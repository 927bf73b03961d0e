"""The gist of a diagnosis: what it is, what to do, why, what it costs, how to make sure, in as many rows as fit a screen.

Enters: a `Diagnosis`. Leaves: rows of text, user strings escaped. All step times are recorded ones against those without faults.
"""

import dataclasses
import math
import re
import shlex
import textwrap
from collections.abc import Iterator, Sequence

from diagnose.model.budget import Budget, Lever
from diagnose.model.cause import NO_SIGN, Cause, Fix
from diagnose.model.diagnosis import PROBABLE, Diagnosis
from diagnose.model.diagnosis_document import Plan
from diagnose.model.place import Shape
from diagnose.model.training_log import LogFacts
from diagnose.numerics.figures import write_steps
from diagnose.report import facts, words
from diagnose.report.budget import list_parts
from diagnose.report.escape import escape, prose

#: Causes told in full at most; the others are counted.
MOST_CAUSES = 3
#: Sentences of evidence in a row.
_SENTENCES = 4
#: Ends of the names of evidence that says how sure a cause is, not why it is there.
_DOUBTS = ("/silent", "/after", "/one-dp-rank", "/sequence.one_stage", "/rare", "/member", NO_SIGN)
#: Who is heard first.
_SOURCES = ("confirm", "telemetry", "rule", "collectives", "log", "change-point", "classifier")
#: Parts of a step that are told on the first page: so many at most, and none smaller than this.
_MOST_PARTS = 6
_PART_SHARE = 0.01
#: Characters of a warning, or of the reason why a cause could not be looked for.
_CLAUSE_LENGTH = 90
#: Warnings and reasons in more characters than this do not fit their three lines: causes are named without reasons.
_LONG_NOTE = 205
#: Parts of a step in more characters than this do not fit their two lines.
_LONG_PARTS = 138
#: Characters of what is said of all others: "; other 3.2%".
_OTHER_LENGTH = 12
#: A fix is told beside what its cause costs where it gives back less than this part of it, and leaves at least so much of the step.
_MOST_OF_IT, _WORTH_SAYING = 0.75, 0.01
#: What a recording lacks that has none of the ranks that its only one waits for.
_PEERS = "peers"
#: A collective that did not end, in the words of PyTorch, and what says who was missing.
_TIMEOUT = "collective operation timeout"
_ASK_DUMPS = "dumps of the Flight Recorder (TORCH_NCCL_TRACE_BUFFER_SIZE) say who was missing"


@dataclasses.dataclass(frozen=True, slots=True)
class Row:
    """A fact with its label, for a screen of 80 columns."""

    label: str
    text: str
    #: Stands at the right.
    aside: str = ""
    #: Lines that it may take.
    n_lines: int = 1
    #: Of a cause, in the row that names it.
    severity: str | None = None
    #: What comes of it, behind the text even where that is too long.
    result: str = ""
    #: Stands on one line whatever its length, to be copied.
    is_command: bool = False
    #: More sentences, each only where it fits as a whole.
    extras: tuple[str, ...] = ()


def describe_pace(diagnosis: Diagnosis) -> str:
    """Say how slow a job is, or why nobody can say.

    Recorded steps are compared with those without the faults that are named.
    """
    if diagnosis.verdict == "inconclusive":
        return words.why_inconclusive(diagnosis)
    if diagnosis.verdict == "noisy":
        return prose(diagnosis.why)
    if diagnosis.is_from_collectives or words.is_hang(diagnosis):
        return describe_collectives_pace(diagnosis)
    recorded, without_s = diagnosis.step_time.recorded, diagnosis.without_named_s
    now = f"{words.seconds(recorded)} a step"
    if diagnosis.verdict == "healthy":
        worth = words.best_gain(diagnosis)
        least = f"no known cause is worth a speedup of {diagnosis.min_speedup:g}"
        lever = words.describe_large_lever(diagnosis)
        nothing, among = ("no fault found", "in") if lever else ("nothing worth mending", "of")
        nothing += f" {among} what could be checked" if diagnosis.not_checked else ""
        nothing += f", but {lever}" if lever else ""
        return f"{nothing if worth is None else least}: {now}"
    from_log = _describe_log_pace(diagnosis.log) if diagnosis.is_from_log and diagnosis.log is not None else ""
    if from_log and diagnosis.log is not None:
        return from_log + words.describe_starts(diagnosis.log)
    if _list_absent(diagnosis):
        return now  # what a rank waits for others that are not there is not known to be a fault
    if without_s is None or words.seconds(without_s) == words.seconds(recorded):
        return now
    # What has no name may be more work: it is not called a fault.
    is_unknown = all(cause.cause == "unknown" for cause in diagnosis.causes)
    than = "for an unknown cause" if is_unknown else "than without faults"
    return f"{words.slower(recorded / without_s)} slower {than}: {now}, not {words.seconds(without_s)}"


def _describe_log_pace(log: LogFacts) -> str:
    """Say how slow the iterations of a log are, beside its own; empty where it shows nothing."""
    if log.of:
        slower = log.slow_s / log.usual_s if log.slow_s is not None and log.usual_s is not None else None
        if slower is None and log.ledger is not None and log.ledger.good_s > 0:
            slower = log.ledger.total_s / log.ledger.good_s
        return f"{words.slower(slower)} slower, by the log's rates: times are not known" if slower else ""
    if log.usual_s is not None and log.slow_s is not None:
        slow, usual = words.seconds(log.slow_s), words.seconds(log.usual_s)
        if log.ramps and log.when.recovery_step is None:
            now_s = max(log.slow_s, log.ramps[-1].to_step_time)
            return f"{words.slower(now_s / log.usual_s)} slower by its end: {words.seconds(now_s)} an iteration, {usual} at best"
        if log.when.recovery_step is not None:
            was = f"was {words.slower(log.slow_s / log.usual_s)} slower {words.since(log.when)}"
            return f"{was}: {slow} an iteration, {usual} otherwise"
        return f"{words.slower(log.slow_s / log.usual_s)} slower: {slow} an iteration, {usual} otherwise"
    if log.ledger is None or log.ledger.good_s <= 0:
        return ""
    ratio = log.ledger.total_s / log.ledger.good_s
    mean, good = words.seconds(log.ledger.good_pace * ratio), words.seconds(log.ledger.good_pace)
    if mean == good:
        is_steady = len(log.iterations) >= words.FEW_STEPS and words.log_varies(log) < words.VARYING
        return f"{mean} an iteration" + ", all alike" * is_steady
    return f"{words.slower(ratio)} slower than its own good pace: {mean} an iteration, not {good}"


def describe_collectives_pace(diagnosis: Diagnosis) -> str:
    """Say whether a job stands still, or how much of its time others wait."""
    assert diagnosis.collectives is not None
    hang = diagnosis.collectives.hang
    if hang is not None:
        return f"hangs: {words.count(hang.n_waiting, 'rank')} of {diagnosis.collectives.world_size:,} wait"
    first = diagnosis.told[0]
    return f"up to {words.percent(first.recoverable)} of the time is lost"


def list_rows(diagnosis: Diagnosis, n_causes: int = MOST_CAUSES, *, is_tight: bool = False) -> list[Row]:
    """List the rows below the headline, with so many causes told; where it is tight, why in a line."""
    causes = diagnosis.told[:n_causes]
    rows = [
        row
        for n, cause in enumerate(causes, start=1)
        for row in _about(diagnosis, cause, n if len(diagnosis.causes) > 1 else None, is_tight=is_tight)
    ]
    if left := diagnosis.told[n_causes:]:
        titles = ", ".join(f"{prose(cause.title)} ({words.bound(cause)})" for cause in left)
        rows.append(Row("", f"and {words.count(len(left), 'more cause')}: {titles}", n_lines=2))
    if diagnosis.plan is not None and len(diagnosis.plan.steps) > 1:
        rows.append(Row("All", _describe_plan(diagnosis.plan)))
    if not diagnosis.causes:
        if found := _describe_found(diagnosis):
            rows.append(Row("Found", found, n_lines=4 if is_tight else 7))
        if diagnosis.is_from_log and diagnosis.log is not None:
            rows.append(Row("Log", facts.describe_log(diagnosis.log), n_lines=3))
        if diagnosis.checked and diagnosis.verdict != "inconclusive":  # where no figure is trusted nothing is ruled out
            rows.append(Row("Looked", f"for {', '.join(escape(cause) for cause in diagnosis.checked)}", n_lines=3))
    if diagnosis.log is not None and (end := facts.describe_end(diagnosis.log)):
        rows.append(Row("End", end, n_lines=3))
        if _TIMEOUT in end:
            rows.append(Row("", _ASK_DUMPS, n_lines=2))
    if diagnosis.is_from_log and diagnosis.log is not None and (parts := facts.describe_ledger(diagnosis.log)):
        rows.append(Row("Time", "; ".join(f"{what} {words.percent(share)}" for what, _, share in parts), n_lines=2))
    if diagnosis.budget is not None:
        rows.append(Row("Step", _describe_budget(diagnosis.budget), n_lines=2))
    if diagnosis.causes and (exposed := facts.describe_exposed(diagnosis, facts.MOST_EXPOSED)):
        rows.append(Row("Besides", exposed, n_lines=3))
    if not diagnosis.causes and diagnosis.levers:
        rows.append(Row("Faster", _describe_lever(diagnosis.levers[0]), n_lines=2))
    if diagnosis.is_from_log and diagnosis.collectives is not None and diagnosis.causes and diagnosis.log is not None:
        rows.append(Row("Log", facts.describe_log(diagnosis.log), n_lines=3))
    if diagnosis.collectives is not None:
        rows.append(Row("Seen", facts.describe_collectives(diagnosis.collectives), n_lines=2))
        rows += [Row("Doubt", prose(doubt), n_lines=3) for doubt in diagnosis.collectives.doubts[:2]]
    rows.append(Row("Cost", _describe_cost(diagnosis), n_lines=2))
    rows += [Row("Check", prose(cause.check), n_lines=2) for cause in causes[:1] if cause.check]
    note = _describe_doubts(diagnosis, is_tight=is_tight)
    return [*rows, Row("Note", note, n_lines=2 if is_tight else 3)] if note else rows


def _describe_found(diagnosis: Diagnosis) -> str:
    """Say what was found where no cause was; nothing where the headline has it."""
    if diagnosis.verdict == "healthy":
        return facts.describe_nothing(diagnosis)
    if diagnosis.verdict == "noisy":
        return facts.describe_exposed(diagnosis)
    return "nothing for sure: take every figure as a hint at most" if diagnosis.verdict == "inconclusive" else ""


def list_commands(diagnosis: Diagnosis, path: str | None) -> list[Row]:
    """Say where more is to be found; `path` is what the user called the job by."""
    more = "-v: all figures · --html FILE: a page for a browser"
    if not diagnosis.causes or not diagnosis.is_replayed:
        return [Row("More", more, n_lines=2)]
    return [Row("More", _explain(diagnosis.told[0], path), is_command=True), Row("", more, n_lines=2)]


def _about(diagnosis: Diagnosis, cause: Cause, n: int | None, *, is_tight: bool) -> Iterator[Row]:
    """Say which cause, where and since when; what to do and what that gives; and why."""
    yield Row(
        "Cause" if n is None else f"Cause {n}",
        _describe_cause(cause, is_placed=not diagnosis.is_from_log, shape=diagnosis.shape),
        _weigh(cause),
        2,
        cause.severity or "",
    )
    if diagnosis.is_over(cause):
        yield Row("Do", f"nothing now, it is over: {words.bound(cause)}", n_lines=2)
    else:
        who = f"who: {escape(cause.who)}" if cause.who else ""
        label = "If so" if cause.fixes and cause.confidence < PROBABLE else "Do"
        what, result = _describe_action(cause)
        yield Row(label, what, who, n_lines=2 if is_tight else 3, result=result)
    if why := list_reasons(cause):
        yield Row("Why", why[0], n_lines=1 if is_tight else 2, extras=tuple(why[1:]))
    against = [prose(item.text) for item in cause.evidence if item.id.endswith(NO_SIGN)]
    yield from (Row("But", text, n_lines=1 if is_tight else 3) for text in against)


def _describe_cause(cause: Cause, *, is_placed: bool, shape: Shape | None) -> str:
    """Say which cause, where, and since when; a log knows of a place only where it names one."""
    workers = cause.where.workers
    where = words.worker(workers[0]) if len(workers) == 1 else words.place(cause.where, shape)
    where = where or ("spread over the job" if is_placed else "")
    said = f"{prose(cause.title)}: {where}" if where else prose(cause.title)
    others = [
        f"or else {words.name_alternative(other, cause)} ({words.ratio(other.confidence)})"
        for other in cause.alternatives
    ]
    return ", ".join(part for part in (said, words.when(cause), *others) if part)


def _weigh(cause: Cause) -> str:
    """Say how severe a cause is, how much of the lost time it is, and how sure it is."""
    severity = [escape(cause.severity)] if cause.severity else []
    share = [] if cause.share is None else [f"{words.percent(cause.share)} of the loss"]
    after = [] if cause.recoverable_after_others is None else ["after the others"]
    return ", ".join([*severity, *share, *after, f"sure {words.ratio(cause.confidence)}"])


def _describe_action(cause: Cause) -> tuple[str, str]:
    """Say what to do first; and what a replay of it gives, and when it pays off, or what would come back at most."""
    if not cause.fixes:
        if not cause.refused_fixes:
            return "no fix is known", f", {words.bound(cause)}"
        refused = cause.refused_fixes[0]
        what = prose(refused.summary) or escape(refused.fix)
        return f"no fix is known, {words.bound(cause)}; not for this job: {what} ({prose(refused.reason)})", ""
    first = cause.fixes[0]
    what = prose(first.summary)
    if cause.recoverable_after_others is not None:
        return what, f": {words.bound(cause)}"
    gain = words.price(first)
    if gain is None:
        return what, f": no replay says what it gives, {words.bound(cause)}"
    step = f": {words.seconds(first.predicted_step_time)} a step"
    # What it leaves is said: a layer more or less, or one worker of two, is not all that a cause costs.
    is_part = gain < _MOST_OF_IT * cause.recoverable < _MOST_OF_IT and cause.recoverable - gain >= _WORTH_SAYING
    shorter = f"(-{words.percent(gain)})" + f" of the {words.percent(cause.recoverable)} it costs" * is_part
    if words.is_for_next_job(first):
        return what, f"{step} then {shorter}"
    return what, f"{step} {shorter}{_pays_off(first)}"


def _pays_off(fix: Fix) -> str:
    """Say after how many steps a restart has paid off."""
    steps, step_s = fix.figures.get("break_even_steps"), fix.predicted_step_time
    if steps is None or step_s is None:
        return ""
    return f", pays off after {write_steps(steps, step_s)} ({words.hours(steps * step_s / 3600)} h)"


def list_reasons(cause: Cause) -> list[str]:
    """Give the first sentences that speak for a cause."""
    told = facts.list_told(cause)
    items = [item for item in told if not item.id.endswith(_DOUBTS)] or told
    first = sorted(items, key=lambda item: _SOURCES.index(item.source))  # stable
    return [prose(item.text).rstrip(".") for item in first[:_SENTENCES]]


def _describe_plan(plan: Plan) -> str:
    """Say what the best fix of each cause gives together with those of the others."""
    faster = plan.predicted_speedup
    gain = f" (-{words.percent(1 - 1 / faster)})" if faster is not None and faster > 1 else ""
    return (
        f"the first fixes of {len(plan.steps)} causes together: {words.seconds(plan.predicted_step_time)} a step{gain}"
    )


def _describe_budget(budget: Budget) -> str:
    """Say where the GPU-seconds of a step go, the largest parts first, and how much is in none of them."""
    parts = sorted(list_parts(budget.measured(), budget.lost), key=lambda part: -part[1])
    large = [part for part in parts if part[1] >= _PART_SHARE][:_MOST_PARTS]
    said, left = _fit_parts(large, _LONG_PARTS)
    if left < _PART_SHARE:
        return said
    said, left = _fit_parts(large, _LONG_PARTS - _OTHER_LENGTH)
    return f"{said}; other {words.percent(left)}" if said else ""


def _fit_parts(parts: Sequence[tuple[str, float, bool]], most: int) -> tuple[str, float]:
    """Write the parts that have room in so many characters; give the rest of the step, too."""
    said, left = "", 1.0
    for name, share, _ in parts:
        longer = f"{said}; {escape(name)} {words.percent(share)}" if said else f"{escape(name)} {words.percent(share)}"
        if len(longer) <= most:
            said, left = longer, left - share
    return said, left


def _describe_lever(lever: Lever) -> str:
    """Say what would make a job faster that has no fault."""
    step = f"{words.seconds(lever.predicted_step_time)} a step (-{words.percent(1 - 1 / lever.predicted_speedup)})"
    return f"{prose(lever.summary)}: {'at best ' if lever.at_most else ''}{step}"


def _describe_cost(diagnosis: Diagnosis) -> str:
    """Say how many GPU hours were lost, of how many, and how many a day."""
    analysed, lost = diagnosis.gpu_hours_analysed, diagnosis.gpu_hours_lost
    if diagnosis.is_from_log and not diagnosis.parallelism_known:
        return "GPU hours are not known: the log does not say on how many GPUs it ran"
    if diagnosis.is_from_collectives:
        return f"not known: a recording of collectives has no steps; {words.count(diagnosis.job.world_size, 'GPU')} wait or work"
    if not math.isfinite(analysed):
        return f"GPU hours are not known, {facts.describe_extent(diagnosis)}"
    if diagnosis.verdict == "inconclusive":
        return f"not known; {words.gpu_hours(analysed)} analysed, {facts.describe_extent(diagnosis)}"
    if lost is None or not analysed:
        return f"{words.gpu_hours(analysed)} analysed, {facts.describe_extent(diagnosis)}"
    said = f"{words.gpu_hours(lost, analysed)} {facts.describe_loss(diagnosis)}"
    if diagnosis.verdict in ("healthy", "noisy"):
        return f"{said}, in {facts.describe_extent(diagnosis)}"
    said += f" in {facts.describe_extent(diagnosis)}"
    a_day = hours_lost_a_day(diagnosis)
    if a_day is None:
        return f"{said}; over since step {max(cause.when.recovery_step or 0 for cause in diagnosis.causes)}"
    without = " without what is over" if any(map(diagnosis.is_over, diagnosis.causes)) else ""
    return f"{said}; {words.hours(a_day)} GPU hours a day{without}"


def hours_lost_a_day(diagnosis: Diagnosis) -> float | None:
    """Say how many GPU hours a job loses a day at this pace, without what is over; None where nobody knows, or all is over."""
    analysed, lost = diagnosis.gpu_hours_analysed, diagnosis.gpu_hours_lost
    over = [cause for cause in diagnosis.causes if diagnosis.is_over(cause)]
    if lost is None or not analysed > 0 or (over and len(over) == len(diagnosis.causes)):
        return None
    left = max(1.0 - sum(cause.share or 0.0 for cause in over), 0.0)
    return 24.0 * diagnosis.job.world_size * lost * left / analysed


def _list_absent(diagnosis: Diagnosis) -> list[str]:
    """List the ranks, as a recording says it, that others wait for and of which it has nothing."""
    return (
        [entry.what for entry in diagnosis.recording.unobserved if _PEERS in entry.lacks] if diagnosis.recording else []
    )


def _describe_doubts(diagnosis: Diagnosis, *, is_tight: bool) -> str:
    """Say the first warning and how many more there are, and what could not be looked for and why, each in short."""
    said = [f"not there: {prose(what)}" for what in _list_absent(diagnosis)]
    if warnings := [text for text in diagnosis.warnings if text != diagnosis.why]:  # the headline has that
        first = prose(warnings[0])
        more = f" (+ {len(warnings) - 1} more)" if warnings[1:] else ""
        # Of a log it is what of a folder, or of a table, was not used.
        said.append((first if diagnosis.is_from_log else f"warning: {_shorten(first)}") + more)
    named = {other.cause for cause in diagnosis.causes for other in cause.alternatives}
    unchecked = [entry for entry in diagnosis.not_checked if entry.cause not in named]
    if unchecked and diagnosis.is_replayed:
        by_reason = facts.group_reasons(unchecked, diagnosis)
        names = ", ".join(escape(entry.cause) for entry in unchecked)
        full = "; ".join(f"{', '.join(causes)} ({_shorten(reason)})" for reason, causes in by_reason.items())
        said.append(f"could not be checked: {names if is_tight else full}")
        if len("; ".join(said)) > _LONG_NOTE:
            said[-1] = f"could not be checked: {names}"
    return "; ".join(said)


def _shorten(text: str) -> str:
    """Keep the first clause of a sentence, and of that the first parts, or words."""
    clause = re.split(r"; |, so that ", prose(text), maxsplit=1)[0]
    words_left = textwrap.shorten(clause, _CLAUSE_LENGTH, placeholder="…")
    part, comma, _ = words_left.rpartition(", ")
    return f"{part} …" if words_left != clause and comma and len(part) >= _CLAUSE_LENGTH // 2 else words_left


def _explain(cause: Cause, path: str | None) -> str:
    """Give the command that says why a cause is said."""
    job = shlex.quote(path) if path and path.isprintable() else "JOB"
    return f"diagnose explain {job} {escape(cause.cause)}"


def name_causes(causes: Sequence[Cause], shape: Shape | None = None) -> str:
    """Name the first cause with its place, and count the others."""
    more = f" and {len(causes) - 1} more" if len(causes) > 1 else ""
    return f"{words.titled(causes[0], shape)}{more}" if causes else ""
