"""What must hold for the pages of any diagnosis: for examples, fixtures and generated jobs."""

import re

from rich.cells import cell_len

from diagnose.model.diagnosis import Diagnosis
from diagnose.report import markdown, terminal, words
from diagnose.report.brief import MOST_LINES, render

#: How the one row begins that is never broken.
COMMAND = "More    diagnose explain "


def page_of(diagnosis: Diagnosis, *, width: int = 80, path: str | None = "jobs/AR.parquet") -> str:
    """Render the page that a user sees who asks for nothing else."""
    return render(diagnosis, width=width, color=False, path=path)


def assert_fits(page: str) -> None:
    """A page fits 80 columns but for a command to copy, and 24 lines with a prompt below."""
    lines = page.splitlines()
    assert len(lines) <= MOST_LINES < 24, page
    assert all(cell_len(line) <= 80 or line.startswith(COMMAND) for line in lines), page


def promised(text: str) -> set[str]:
    """Find the parts of a step that a text promises by a fix."""
    return set(re.findall(r"steps (?:of the next job are )?(\S+%) shorter", text)) | set(
        re.findall(r"\(-(\S+%)\)", text)
    )


def assert_promises_agree(diagnosis: Diagnosis) -> None:
    """The headline promises what its first fix gives, to the digit printed, on every page; else only what would be the most."""
    first = diagnosis.told[0]
    headline, page = words.headline(diagnosis), " ".join(page_of(diagnosis, width=110).split())
    if first.fixes and first.recoverable_after_others is None and words.price(first.fixes[0]) is not None:
        cut = words.percent(1 - 1 / first.fixes[0].predicted_speedup)
        assert promised(headline) == {cut}
        (told, *_) = re.findall(r"\(-(\S+%)\)", page)
        assert told == cut
        full = " ".join(terminal.render(diagnosis, width=200, color=False).split())
        assert f"steps {cut} shorter" in full.partition("What to do")[2]
        assert f"steps {cut} shorter" in " ".join(markdown.render(diagnosis).split())
    else:
        assert promised(headline) == set()
        assert words.bound(first) in page and words.bound(first) in headline
    assert "fixing it" not in headline
