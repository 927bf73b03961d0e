"""Markdown for tickets, read back by a library that knows the Markdown of GitHub."""

import dataclasses
import html
import re

import msgspec.structs
import pytest
from markdown_it import MarkdownIt

from diagnose.model.cause import NotChecked
from diagnose.model.diagnosis_document import Plan, PlanStep
from diagnose.report import gist, markdown
from diagnose.report.escape import name, prose
from diagnose.report.markdown import block, code, render, table, text
from tests.report.examples import EXAMPLES, healthy, two_causes, worker_fault
from tests.report.hostile import HOSTILE, hostile

#: What may stand in the HTML of a report: no link, no picture, nothing that a browser runs.
TAGS = {"h2", "h3", "p", "table", "thead", "tbody", "tr", "th", "td", "ul", "ol", "li", "strong", "code", "pre", "hr"}


def to_html(report: str) -> str:
    """Render Markdown as GitHub does: tables, strikethrough, raw HTML let through, bare addresses linked by hand below."""
    return MarkdownIt("commonmark", {"html": True}).enable(["table", "strikethrough"]).render(report)


def tags(page: str) -> set[str]:
    """Name all elements of a page."""
    return {found.lower() for found in re.findall(r"<\s*/?\s*([A-Za-z!?][\w-]*)", page)}


def said(page: str) -> str:
    """Give the text of a page."""
    return html.unescape(re.sub(r"<[^>]*>", "", page))


@pytest.mark.parametrize("example", EXAMPLES)
def test_examples_are_plain_markdown(example: str) -> None:
    """Every example becomes headings, tables, lists and code, and every cause has its place."""
    diagnosis = EXAMPLES[example]()
    report = render(diagnosis)
    page = to_html(report)
    assert tags(page) <= TAGS
    assert page.startswith("<h2>")
    assert page.count("<table>") == 2 + bool(diagnosis.causes)
    assert page.count("<h3>") >= len(diagnosis.causes)
    assert report.endswith("\n") and not report.endswith("\n\n")
    for cause in diagnosis.causes:
        assert f"<code>{cause.cause}</code>" in page


def test_a_cause_tells_all() -> None:
    """A cause says how severe, where, how sure, how much, why, what to do with the gain, how, and what to mind."""
    base = worker_fault()
    fix = msgspec.structs.replace(
        base.causes[0].fixes[0], risks=("the host is lost",), assumptions=("a spare is there",)
    )
    cause = msgspec.structs.replace(base.causes[0], severity="high", who="platform", fixes=(fix,))
    report = render(dataclasses.replace(base, causes=(cause,)))
    assert "### 1. HIGH `worker-fault` at dp 0, stage 0 (`gpu-17`): slow worker" in report
    row = "| 1 | high | `worker-fault` | dp 0, stage 0 (`gpu-17`) | all the time | 48% | 93% | almost certain (0.97) |"
    assert row in report
    assert "- Who acts: platform" in report
    assert "1. **Drain `gpu-17` and replace it** (`replace-node`)" in report
    assert "predicted: 6.35 s a step, 1.93x as fast, steps 48% shorter" in report
    assert "   ```text\n   Cordon the node" in report
    assert "   - mind: the host is lost" in report and "   - assumed: a spare is there" in report


def test_what_pays_only_after_others_stands_in_the_table() -> None:
    """Not the little that it gives back alone: that reads as a false alarm."""
    first, second = two_causes().causes
    hidden = msgspec.structs.replace(second, recoverable=0.001, recoverable_after_others=0.066)
    assert "| 6.6% after the others | 25% |" in render(dataclasses.replace(two_causes(), causes=(first, hidden)))


def test_plan_and_doubts() -> None:
    """Several fixes have an order, and what could not be checked and the warnings are lists."""
    steps = (
        PlanStep("balance", "sequence-imbalance", 6.9, 1.19, 0.18, 0.18, None),
        PlanStep("async", "checkpoint-stall", 6.4, 1.28, 0.07, 0.07, "less alone"),
    )
    diagnosis = dataclasses.replace(two_causes(), plan=Plan(steps, 6.4, 1.28))
    report = render(diagnosis)
    assert "2. `async` (`checkpoint-stall`): 6.40 s a step, 1.28x as fast, steps 22% shorter; less alone" in report
    assert "### What could not be checked\n\n- network-fault, kernel-queue-contention: the trace has" in report
    assert "### Warnings\n\n- step 16 is a warm-up step" in report


def test_healthy_names_what_was_looked_for() -> None:
    """A healthy job says so, and what was looked for."""
    report = render(healthy())
    assert report.startswith("## `pretrain-7b`: healthy — nothing found that is worth mending\n")
    assert "| Looked | for sequence-imbalance, stage-imbalance, worker-fault |" in report


@pytest.mark.parametrize("what", HOSTILE)
def test_hostile_names_are_text(what: str) -> None:
    """Whatever a trace holds, the report has no element, link or character in it that is not the report's own."""
    report = render(hostile(HOSTILE[what]))
    page = to_html(report)
    assert tags(page) <= TAGS
    assert not re.search(r"<[^>]+\s(?!class=\"language-text\"|style=\"text-align)[a-z-]+=", page)
    assert report.isprintable() or all(char.isprintable() or char == "\n" for char in report)
    assert page.count("<table>") == 3
    assert page.count("<h2>") == 1 and page.count("<h3>") == 5
    n_rows = len(gist.list_rows(hostile(HOSTILE[what])))
    assert len(re.findall(r"<tr>", page)) == (1 + n_rows) + (1 + 4) + (1 + 2)
    assert all(row.count("<td") in (2, 8) for row in re.findall(r"<tr>.*?</tr>", page, re.DOTALL) if "<td" in row)
    assert len(report) < 60_000


@pytest.mark.parametrize("what", HOSTILE)
def test_nothing_is_lost(what: str) -> None:
    """A sentence comes back from its Markdown word by word."""
    sentence = HOSTILE[what]
    page = to_html(f"- {text(sentence)}\n")
    assert said(page).split() == prose(sentence).split()
    in_table = said(to_html(table(["a"], [[text(sentence)]])))
    if "\\|" not in sentence.replace("\\\\", ""):
        assert in_table.split() == ["a", *prose(sentence).split()]


@pytest.mark.parametrize("what", HOSTILE)
def test_nothing_active_outside_of_code(what: str) -> None:
    """Outside of code there is no mention, no reference and no address that GitHub, GitLab or Jira would link."""
    page = re.sub(r"<code.*?</code>", "", to_html(render(hostile(HOSTILE[what]))), flags=re.DOTALL)
    shown = said(page)
    assert not re.search(r"@\w|#\d|!\d|GH-\d|JIRA-\d|https?://|www\.|\b[0-9a-f]{40}\b|\$\w|:tada:", shown)


def test_code_holds_any_ticks() -> None:
    """Code is fenced by more ticks than it holds; so are blocks."""
    assert to_html(code("a``b`c")) == "<p><code>a``b`c</code></p>\n"
    assert said(to_html(block(["```", "evil ````"]))).split() == ["```", "evil", "````"]
    assert said(to_html(code(name("`")))).strip() == "`"


def test_many_notes_are_counted() -> None:
    """A report does not list hundreds of reasons."""
    notes = tuple(NotChecked(f"cause-{n}", f"reason {n}") for n in range(300))
    assert "- and 288 more\n" in render(dataclasses.replace(healthy(), not_checked=notes))


def test_several_reports_are_parted() -> None:
    """Between two reports stands a rule, and no heading is made of the line before it."""
    page = to_html(render(healthy()) + markdown.BETWEEN + render(worker_fault()))
    assert page.count("<hr") == 1 and page.count("<h2>") == 2


@pytest.mark.parametrize("example", EXAMPLES)
def test_same_bytes(example: str) -> None:
    """The same diagnosis gives the same bytes."""
    assert render(EXAMPLES[example]()) == render(EXAMPLES[example]())
