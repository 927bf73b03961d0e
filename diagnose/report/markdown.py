"""The diagnosis as Markdown for tickets and pull requests: GitHub, GitLab, Jira.

Enters: a `Diagnosis`. Leaves: CommonMark with tables of GitHub's, without HTML. What comes from a trace is text there and nothing
else: no link, mention, reference to a ticket, picture, formula or markup.
"""

import re
import textwrap
from collections.abc import Iterator, Sequence

from diagnose.model.cause import Cause, Fix
from diagnose.model.diagnosis import Diagnosis
from diagnose.model.diagnosis_document import Plan
from diagnose.model.place import Shape
from diagnose.report import facts, gist, words
from diagnose.report.escape import escape, name, prose

#: Stands between the reports of several jobs.
BETWEEN = "\n---\n\n"
#: Columns of a block of instructions: a longer line would have to be scrolled.
_BLOCK_WIDTH = 88
#: Words that GitHub, GitLab or Jira would turn into links, mentions, references, emojis or formulas.
_ACTIVE = re.compile(
    r"[@$]|[#!&%~^]\w|[#!&%~^][\"']|://|www\.|mailto:|:\w+:|\[\w+:|\b[A-Z][A-Z0-9]+-\d|\b[0-9a-f]{7,40}\b",
    re.IGNORECASE,
)
#: Characters that mean something in Markdown wherever they stand.
_MARKS = re.compile(r"([\\`*_\[\]<|~&])")
#: What would begin a list, a heading, a quotation or a rule where a line begins.
_BEGINS = re.compile(r"^(\d+)([.)])(?=\s|$)|^([-+#>=])")
#: A word between quotes, brackets and the marks that end a sentence.
_WORD = re.compile(r"([(\"']*)(.*?)([)\"',.;:]*)", re.DOTALL)


def render(diagnosis: Diagnosis) -> str:
    """Write a diagnosis as lines of Markdown; blocks are parted by blank lines."""
    return "\n\n".join(_blocks(diagnosis)) + "\n"


def text(sentence: str) -> str:
    r"""Write a sentence so that Markdown shows it as it is; words that would become links and the like as code.

    >>> print(text("1. <b>slow</b> *worker* see #12, @all"))
    1\. \<b>slow\</b> \*worker\* see `#12`, `@all`
    """
    found = " ".join(map(_text_word, prose(sentence).split(" ")))
    return _BEGINS.sub(lambda m: f"{m[1]}\\{m[2]}" if m[1] else f"\\{m[3]}", found)


def _text_word(word: str) -> str:
    """Write one word as it is, or as code where it would become something else."""
    parts = _WORD.fullmatch(word)
    if not _ACTIVE.search(word) or parts is None or not parts[2]:
        return _MARKS.sub(r"\\\1", word)
    return f"{parts[1]}{code(parts[2])}{parts[3]}"


def code(word: str) -> str:
    """Write text as code: nothing in it means anything.

    >>> print(code("a`b"), code("`"), code(""))
    ``a`b`` `` ` `` ` `
    """
    shown = prose(word) or " "
    fence = "`" * (max((len(run) for run in re.findall(r"`+", shown)), default=0) + 1)
    pad = " " if shown.startswith("`") or shown.endswith("`") else ""
    return f"{fence}{pad}{shown}{pad}{fence}"


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Lay out cells that are Markdown already; a bar that stands bare in code would part a cell."""
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(map(_cell, line))} |" for line in lines)


def bullets(sentences: Sequence[str]) -> str:
    """Write a list of sentences that are Markdown already."""
    return "\n".join(f"- {sentence}" for sentence in sentences)


def _cell(content: str) -> str:
    """Escape the bars of a cell, where they are not yet: those behind an even number of backslashes."""
    return re.sub(r"(\\*)\|", lambda m: m[0] if len(m[1]) % 2 else f"{m[1]}\\|", content.replace("\n", "; "))


def _blocks(diagnosis: Diagnosis) -> Iterator[str]:
    """Give the blocks in the order of the report."""
    yield f"## {code(name(diagnosis.job.job_id) or 'job')}: {text(words.finding(diagnosis))}"
    yield f"{text(gist.describe_pace(diagnosis))}."
    rows = gist.list_rows(diagnosis)
    yield table(
        ["", "In short"],
        [[row.label, text("; ".join(filter(None, (row.text, *row.extras, row.aside))))] for row in rows],
    )
    yield table(["Figure", "Value"], [[label, text(fact)] for label, fact in facts.summarize(diagnosis)])
    if diagnosis.causes:
        head = ["", "Severity", "Cause", "Place", "Since when", "Recoverable", "Share", "Confidence"]
        yield table(
            head,
            [
                _row(n, cause, is_placed=not diagnosis.is_from_log, shape=diagnosis.shape)
                for n, cause in enumerate(diagnosis.told, start=1)
            ],
        )
    for n, cause in enumerate(diagnosis.told, start=1):
        yield from _about_cause(n, cause, is_placed=not diagnosis.is_from_log, shape=diagnosis.shape)
    if diagnosis.plan is not None and len(diagnosis.plan.steps) > 1:
        yield "### In which order"
        yield _list_plan(diagnosis.plan)
    if slow_ranks := facts.list_slow_ranks(diagnosis):
        yield "### Ranks that the training log sets apart"
        yield bullets([text(line) for line in facts.first_of(slow_ranks)])
    if diagnosis.not_checked:
        yield "### What could not be checked"
        yield bullets([text(line) for line in facts.first_of(facts.list_reasons(diagnosis))])
    if diagnosis.warnings:
        yield "### Warnings"
        yield bullets([text(line) for line in facts.first_of([prose(warning) for warning in diagnosis.warnings])])
    if diagnosis.is_replayed:
        yield "### As in arXiv 2505.05713"
        yield bullets([f"{label}: {text(meaning)}" for label, meaning in facts.explain_paper(diagnosis)])
    yield f"Made by {text(facts.describe_makers(diagnosis.made_by))}."


def _row(n: int, cause: Cause, *, is_placed: bool, shape: Shape | None) -> list[str]:
    """Give the line of a cause in the overview."""
    after = cause.recoverable_after_others
    return [
        str(n),
        escape(cause.severity or "-"),
        code(cause.cause),
        text(words.spot(cause.where, is_placed=is_placed, shape=shape).removeprefix("at ")) or words.NOT_KNOWN,
        text(words.when(cause)) or words.NOT_KNOWN,
        words.percent(cause.recoverable) if after is None else f"{words.percent(after)} after the others",
        words.percent(cause.share),
        words.confidence(cause.confidence),
    ]


def _about_cause(n: int, cause: Cause, *, is_placed: bool, shape: Shape | None) -> Iterator[str]:
    """Say of one cause what there is beside the overview: all places, evidence, fixes."""
    severity = f"{escape(cause.severity.upper())} " if cause.severity else ""
    where = words.spot(cause.where, is_placed=is_placed, shape=shape)
    place = f"{'' if where.startswith('at ') else ','} {text(where)}" if where else ""
    yield f"### {n}. {severity}{code(cause.cause)}{place}: {text(cause.title)}"
    yield bullets([f"{label}: {'; '.join(map(text, fact.splitlines()))}" for label, fact in facts.measure(cause)])
    if cause.evidence:
        yield "**Evidence**"
        yield bullets([text(sentence) for sentence in facts.describe_evidence(cause)])
    if cause.fixes:
        yield "**What to do**"
        yield "\n\n".join(_list_fix(m, fix) for m, fix in enumerate(cause.fixes, start=1))
    if cause.refused_fixes:
        yield "**Not for this job**"
        yield bullets([f"{code(fix.fix)}: {text(fix.reason)}" for fix in cause.refused_fixes])


def _list_fix(n: int, fix: Fix) -> str:
    """Write one fix as an item of a list: what, how much faster, how, and what to mind."""
    parts = [f"**{text(fix.summary)}** ({code(fix.fix)})"]
    parts.append(text(facts.predict(fix) or facts.NO_PREDICTION))
    how = facts.choose_how(fix)
    parts += [block(how)] if how else []
    notes = [f"assumed: {text('; '.join(fix.assumptions))}"] if fix.assumptions else []
    notes += [f"mind: {text(risk)}" for risk in fix.risks]
    parts += [bullets(notes)] if notes else []
    mark = f"{n}. "
    return mark + textwrap.indent("\n\n".join(parts), " " * len(mark)).lstrip()


def block(how: Sequence[str]) -> str:
    """Write instructions as a block that is copied as it stands."""
    lines = [part for line in how for part in textwrap.wrap(line, _BLOCK_WIDTH, break_on_hyphens=False)]
    longest = max((len(run) for line in how for run in re.findall(r"`+", line)), default=0)
    fence = "`" * max(3, longest + 1)
    return "\n".join([f"{fence}text", *lines, fence])


def _list_plan(plan: Plan) -> str:
    """Say what the best fix of each cause gives after those before it."""
    lines = []
    for n, step in enumerate(plan.steps, start=1):
        gain = words.pace(step.predicted_step_time, step.predicted_speedup)
        note = f"; {text(step.note)}" if step.note else ""
        lines.append(f"{n}. {code(step.fix)} ({code(step.cause)}): {gain}{note}")
    return "\n".join(lines)
