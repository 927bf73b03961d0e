"""What is answered to each question now; docs/about/questions.md has it as a table.

`UPDATE_GOLDEN=1 python -m pytest tests/questions` writes the table anew.
"""

import json
import os
from functools import cache
from pathlib import Path

import pytest

from diagnose.errors import DiagnoseError
from diagnose.model.request import Request
from diagnose.pipeline import diagnose_job
from diagnose.report import json_lines
from tests.questions.questions import NOT_FOUND, QUESTIONS, Found, Question

PAGE = Path(__file__).resolve().parents[2] / "docs" / "about" / "questions.md"
GRADES = ("no", "part", "right")
#: Questions that are answered right, and in part or right, at least.
RIGHT, PART = 18, 19


def answer(question: Question, folder: Path) -> tuple[str, str]:
    """Make the input, diagnose it, and give the grade with what is said."""
    if question.make is None:
        return "no", question.asked
    try:
        found: Found = json.loads(json_lines.render(diagnose_job(Request(question.make(folder), name="job"))))
    except DiagnoseError as error:
        return "no", str(error).removeprefix("job: ").partition(";")[0]
    grade = "right" if question.right(found) else "part" if question.part(found) else "no"
    return grade, question.say(found)


@cache
def answers(folder: Path) -> dict[str, tuple[str, str]]:
    """Answer all questions."""
    found = {}
    for n, question in enumerate(QUESTIONS):
        place = folder / str(n)
        place.mkdir()
        found[question.thread] = answer(question, place)
    return found


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[str, str]]:
    """Give the answers."""
    return answers(tmp_path_factory.mktemp("questions"))


def write_table(found: dict[str, tuple[str, str]]) -> str:
    """Write the table of the page."""
    rows = ["| thread | asked | input | truth | said now | |", "| --- | --- | --- | --- | --- | --- |"]
    for question in QUESTIONS:
        grade, said = found[question.thread]
        cells = (question.thread, question.asked, question.given, question.truth, said, f"**{grade}**")
        rows.append("| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |")
    counts = {grade: sum(each == grade for each, _ in found.values()) for grade in GRADES}
    total = f"\nRight: {counts['right']} of {len(found)}. In part: {counts['part']}. Not: {counts['no']}.\n"
    return "\n".join(rows) + "\n" + total


def test_there_are_as_many_as_were_collected() -> None:
    """Each thread is there once."""
    assert len({question.thread for question in QUESTIONS}) == len(QUESTIONS) == 22
    assert sum(question.asked == NOT_FOUND for question in QUESTIONS) == 2


def test_so_many_are_answered(found: dict[str, tuple[str, str]]) -> None:
    """No change takes an answer away."""
    grades = [grade for grade, _ in found.values()]
    assert grades.count("right") >= RIGHT
    assert len(grades) - grades.count("no") >= PART


def test_the_page_says_what_is_answered(found: dict[str, tuple[str, str]]) -> None:
    """The table of the page is what is answered now."""
    page = PAGE.read_text(encoding="utf-8")
    begins = page.index("| thread |")
    written = page[:begins] + write_table(found)
    if os.environ.get("UPDATE_GOLDEN"):
        PAGE.write_text(written, encoding="utf-8")
        page = written
    assert page == written
