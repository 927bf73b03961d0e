"""Comparisons as pages, Markdown and JSON."""

import dataclasses
import json
import re

import jsonschema
import pytest
from markdown_it import MarkdownIt
from rich.cells import cell_len

from diagnose.compare.compare import compare
from diagnose.compare.read import read_side
from diagnose.model.comparison import Comparison
from diagnose.report.compare import render, render_json, render_markdown
from diagnose.report.schemas import make_schema
from tests.compare.sides import saved, seen, side
from tests.report.examples import EXAMPLES, healthy, worker_fault
from tests.report.hostile import HOSTILE, hostile
from tests.report.test_markdown import TAGS, tags

SCHEMA = make_schema("compare")


def pair(before: str, after: str) -> Comparison:
    """Compare two examples."""
    return compare(*(read_side(saved(EXAMPLES[name]()), f"{name}.json") for name in (before, after)))


def mixed() -> Comparison:
    """Compare two jobs of which one cause came, one grew, one went, and one nobody looked for."""
    before = side(
        seen("worker-fault", 0.3, fixes=(("replace-worker", 1.6),)), seen("data-loading", 0.05), seen("x", 0.1)
    )
    after = side(
        seen("garbage-collection", 0.2), seen("data-loading", 0.15), recorded_s=1.9, not_checked={"x": "no rows"}
    )
    return compare(before, after)


def test_schema_is_a_schema() -> None:
    """The schema obeys JSON Schema 2020-12, and knows places as the schema of diagnoses does."""
    jsonschema.Draft202012Validator.check_schema(SCHEMA)
    other = make_schema("diagnosis")
    for name in ("Worker", "Where", "MadeBy"):
        assert SCHEMA["$defs"][name] == other["$defs"][name]


@pytest.mark.parametrize("after", EXAMPLES)
@pytest.mark.parametrize("before", EXAMPLES)
def test_examples_validate(before: str, after: str) -> None:
    """Every pair of examples is one line of ASCII that validates, with the same bytes each time."""
    line = render_json(pair(before, after))
    assert line.isascii() and "\n" not in line
    jsonschema.validate(json.loads(line), SCHEMA, cls=jsonschema.Draft202012Validator)
    assert line == render_json(pair(before, after))


def test_mixed_validates() -> None:
    """Every kind of change validates."""
    found = json.loads(render_json(mixed()))
    jsonschema.validate(found, SCHEMA, cls=jsonschema.Draft202012Validator)
    assert [change["change"] for change in found["changes"]] == ["came", "grew", "unclear", "went"]


def test_page() -> None:
    """The page says what became of the step time and of each cause, and where the change comes from."""
    page = render(mixed(), width=100, color=False)
    first = (
        "faster: 2.00 s -> 1.90 s a step, 5.0% shorter; garbage-collection came; data-loading grew; worker-fault went"
    )
    assert " ".join(page.split("\n\n")[0].split()) == first
    assert "came     HIGH garbage-collection, spread over the job: title of garbage-collection" in page
    assert "0 s -> 200 ms lost a step" in page
    assert "the second diagnosis could not look for it: no rows" in page
    assert "= -100.0 ms" in page
    assert "worth a part of it: replace-worker (for worker-fault): 1.60 s" in page.replace("\n    ", " ")


@pytest.mark.parametrize("after", EXAMPLES)
@pytest.mark.parametrize("before", EXAMPLES)
def test_the_sum_on_the_page_adds_up(before: str, after: str) -> None:
    """Whoever adds the column up gets its last line, rounding or not."""
    page = render(pair(before, after), width=100, color=False)
    if {"inconclusive", "overlapping"} & {before, after}:
        assert "Where the change comes from" not in page
        return
    rows = page.split("Where the change comes from\n")[1].split("\n\n")[0].splitlines()
    values = [float(row.removesuffix(" ms").split()[-1].replace(",", "")) for row in rows]
    assert sum(values[:-1]) == pytest.approx(values[-1], abs=1e-6)


def test_alike() -> None:
    """Two diagnoses of one job are alike, and nothing is said to have changed."""
    page = render(pair("worker-fault", "worker-fault"), width=100, color=False)
    assert page.startswith("as fast as before: 12.27 s -> 12.27 s a step\n")
    assert "  same  HIGH worker-fault at dp 0, stage 0 (gpu-17): slow worker" in page
    assert "Mind" not in page and "Was it worth it" not in page
    assert "neither diagnosis says any cause" in render(pair("healthy", "healthy"), width=100, color=False)


@pytest.mark.parametrize("width", [40, 60, 80, 160])
def test_fits_width(width: int) -> None:
    """No line is wider than asked for, and none ends in blanks; colours change nothing else."""
    plain = render(mixed(), width=width, color=False)
    assert all(cell_len(line) <= width and line == line.rstrip() for line in plain.splitlines())
    colored = re.sub(r"\x1b\[[0-9;]*m", "", render(mixed(), width=width, color=True))
    assert [line.rstrip() for line in colored.splitlines()] == plain.splitlines()


@pytest.mark.parametrize("what", HOSTILE)
def test_hostile_names_are_text(what: str) -> None:
    """Whatever a saved diagnosis holds, page, Markdown and JSON are harmless."""
    evil = dataclasses.replace(read_side(saved(hostile(HOSTILE[what])), HOSTILE[what]), not_checked={})
    for found in (compare(evil, side()), compare(side(not_checked={"worker-fault": HOSTILE[what]}), evil)):
        page = render(found, width=80, color=False)
        assert all(char.isprintable() or char == "\n" for char in page)
        assert all(cell_len(line) <= 80 for line in page.splitlines()) and len(page) < 20_000
        html = (
            MarkdownIt("commonmark", {"html": True}).enable(["table", "strikethrough"]).render(render_markdown(found))
        )
        assert tags(html) <= TAGS and "<a" not in html
        assert html.count("<table>") == 3
        assert render_json(found).isascii()


def test_markdown() -> None:
    """Markdown has the same in tables."""
    report = render_markdown(mixed())
    assert "| **came** | high | `garbage-collection` | spread over the job | 0 s | 200 ms |" in report
    assert "| worker-fault | -300.0 ms |" in report
    assert "- `x`: the second diagnosis could not look for it: no rows" in report


def test_a_job_without_a_name() -> None:
    """A job that has no name is called so."""
    nameless = dataclasses.replace(healthy(), job=dataclasses.replace(healthy().job, job_id=""))
    found = compare(read_side(saved(nameless), "a"), read_side(saved(worker_fault()), "b"))
    assert "a job without a name, healthy" in render(found, width=100, color=False)
