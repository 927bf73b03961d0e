"""Where the step goes, in words."""

import dataclasses
import re

import msgspec.structs
import pytest

from diagnose.model.budget import Budget, HostWait
from diagnose.report import budget as words_of
from diagnose.report import words
from diagnose.report.gist import list_rows
from diagnose.report.terminal import render
from tests import fixture_jobs
from tests.report.hostile import HOSTILE


def test_every_part_has_a_name() -> None:
    """A part that is added to the budget has words."""
    assert tuple(words_of.PART_NAMES) == Budget.PARTS


def test_parts_come_in_order_and_add_up() -> None:
    """What workers do first, then causes by their size, and last what nobody explains; nothing that rounds to 0."""
    lost = {"unexplained": 0.3, "worker-fault": 0.1, "data-loading": 0.2}
    found = words_of.list_parts({"compute": 0.4, "bubble": 0.0}, lost)
    names = [name for name, _, _ in found]
    assert names == ["computing", "lost to data-loading", "lost to worker-fault", "lost, unexplained"]
    assert sum(share for _, share, _ in found) == pytest.approx(1.0)


def test_the_first_page_says_what_it_leaves_out() -> None:
    """Small parts, and those without room, are other: what is said sums to all; less than 1% is not worth it."""
    budget = fixture_jobs.diagnosed("expert-imbalance").budget
    assert budget is not None
    shares = dict.fromkeys(Budget.PARTS, 0.0) | {"compute": 0.6, "bubble": 0.2, "host": 0.004, "evaluation": 0.004}
    for lost, other in ((0.192, ""), (0.182, "other 1.8%")):
        one = msgspec.structs.replace(budget, **shares, lost={"unexplained": lost})
        row = _say_step(one)
        assert row.startswith("computing 60%; pipeline bubble 20%; lost, unexplained 1") and row.endswith(other or "%")
        assert ("other" in row) == bool(other)
    many = {f"a-rule-of-a-user-with-a-very-long-name-{n}": 0.05 for n in range(4)}
    row = _say_step(msgspec.structs.replace(budget, **shares, lost=many))
    assert row.endswith("; other 15%") and len(row) <= 138
    assert sum(map(float, re.findall(r"([0-9.]+)%", row))) == pytest.approx(100.0)


def _say_step(budget: Budget) -> str:
    """Give the row of the first page on where the step goes."""
    found = dataclasses.replace(fixture_jobs.diagnosed("expert-imbalance"), budget=budget)
    (row,) = (row.text for row in list_rows(found) if row.label == "Step")
    return row


def test_a_bound_is_said_alike_on_each_page() -> None:
    """No step gets shorter than that: it is the best, and not the most."""
    found = fixture_jobs.diagnosed("stage-imbalance")
    lever = next(lever for lever in found.levers if lever.at_most)
    (short,) = (
        row.text for row in list_rows(dataclasses.replace(found, causes=(), levers=(lever,))) if row.label == "Faster"
    )
    step = f"at best {words.seconds(lever.predicted_step_time)} a step"
    assert step in short and step in render(found, width=200, color=False)


@pytest.mark.parametrize("width", [40, 80, 200])
def test_the_section_fits_its_width(width: int) -> None:
    """Bars and names shrink before lines do."""
    page = render(fixture_jobs.diagnosed("healthy"), width=width, color=False, thorough=True)
    assert words_of.TITLE in page and "pipeline bubble" in page
    assert max(len(line) for line in page.splitlines()) <= width


def test_what_makes_the_host_wait_is_said() -> None:
    """Operator, call, module and cost in one sentence."""
    wait = HostWait("aten::item", "cudaStreamSynchronize", "nn.Module: Loss_0", 3.0, 0.31, 1)
    assert words_of.describe_host(wait) == (
        "aten::item calls cudaStreamSynchronize 3 times a step (in nn.Module: Loss_0); after it the GPU of rank 1 has nothing "
        "to do 31% of the time"
    )


@pytest.mark.parametrize("name", HOSTILE)
def test_names_of_operators_are_escaped(name: str) -> None:
    """They come from the trace, and may hold anything."""
    wait = HostWait(HOSTILE[name], HOSTILE[name], HOSTILE[name], 1.0, 0.5)
    said = words_of.describe_host(wait)
    assert said.isprintable() and "\x1b" not in said


def test_a_diagnosis_of_an_earlier_version_has_no_section() -> None:
    """Its page is as it was."""
    old = dataclasses.replace(fixture_jobs.diagnosed("healthy"), budget=None, levers=())
    page = render(old, width=80, color=False, thorough=True)
    assert words_of.TITLE not in page and words_of.LEVERS_TITLE not in page
