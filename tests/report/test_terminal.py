"""Reports for people. UPDATE_GOLDEN=1 writes the golden files anew."""

import dataclasses
import os
import re
from pathlib import Path

import numpy as np
import pytest
from rich.cells import cell_len

from diagnose.judge.unknown import UNKNOWN_SHARE
from diagnose.model.cause import NotChecked
from diagnose.model.diagnosis import Diagnosis
from diagnose.model.diagnosis_document import Ledger
from diagnose.report import facts, junit, markdown, words
from diagnose.report.charts import draw_heat_map, draw_sparkline
from diagnose.report.escape import to_encoding
from diagnose.report.terminal import render
from tests.fixture_jobs import FIXTURES, diagnosed
from tests.report.examples import (
    EXAMPLES,
    MADE_BY,
    big,
    either,
    healthy,
    inconclusive,
    two_causes,
    unknown,
    worker_fault,
)
from tests.report.hostile import HOSTILE, hostile

GOLDEN = Path(__file__).parent / "golden"
WIDTHS = (80, 200)
FIXTURE_WIDTHS = (80, 160)


def diagnose_fixture(name: str) -> Diagnosis:
    """Diagnose a fixture; digests of rules and classifier change without any change of the page."""
    return dataclasses.replace(diagnosed(name), made_by=MADE_BY)


@pytest.mark.parametrize("width", FIXTURE_WIDTHS)
@pytest.mark.parametrize("name", FIXTURES)
def test_golden_of_each_cause(name: str, width: int) -> None:
    """The page of the fixture of each cause, and of the healthy one, is the one that was last read and agreed to."""
    path = GOLDEN / f"fixture-{name}-{width}.txt"
    report = render(diagnose_fixture(name), width=width, color=False)
    if os.environ.get("UPDATE_GOLDEN"):
        path.write_text(report, encoding="utf-8")
    assert report == path.read_text(encoding="utf-8"), "run with UPDATE_GOLDEN=1 and read the difference"


@pytest.mark.parametrize("name", FIXTURES)
def test_first_line_of_each_cause(name: str) -> None:
    """The first line of a cause has its number, severity, code, place and title."""
    diagnosis = diagnose_fixture(name)
    lines = render(diagnosis, width=200, color=False).splitlines()
    assert {cause.cause for cause in diagnosis.causes} == ({name} - {"healthy"})
    for n, cause in enumerate(diagnosis.causes, start=1):
        where = words.spot(cause.where, shape=diagnosis.shape)
        sign = "" if where.startswith("at ") else ","
        assert f"{n}. {cause.severity.upper()} {cause.cause}{sign} {where}: {cause.title}" in lines


def test_verbose_adds_rules_and_features() -> None:
    """A thorough page has every rule with values and thresholds, and every feature with its value or why it has none."""
    diagnosis = diagnose_fixture("worker-fault")
    page = render(diagnosis, width=120, color=False, thorough=True)
    short = render(diagnosis, width=120, color=False)
    assert "Rule worker-fault: said\n" in page and "Rule worker-fault" not in short
    assert re.search(r"  holds +worker.ratio at least 1.01\d*: it is 1.61\n", page)
    assert "Rule data-loading: does not hold" in page or "Rule data-loading: not said" in page
    for feature, value in diagnosis.features.items():
        found = re.search(rf"^  {re.escape(feature)}  +(.*)$", page, re.MULTILINE)
        assert found
        assert found[1].startswith("not measured: ") == (value is None)
    begin, end = short.split("\nHow far to trust this\n")
    assert page.startswith(begin.partition("\nWhere the step goes")[0]) and page.endswith(end)
    recipe, hint = "torchtitan: --parallelism", "-vv, or name the job's framework"
    assert (recipe in page, hint in page) == (True, False) and (recipe in short, hint in short) == (False, True)


@pytest.mark.parametrize("width", [40, 60, 80, 160])
def test_verbose_fits_width(width: int) -> None:
    """Neither rules nor features are wider than asked for."""
    for line in render(diagnose_fixture("data-loading"), width=width, color=False, thorough=True).splitlines():
        assert cell_len(line) <= width


def test_links_stand_below_the_headline() -> None:
    """What else was written of a job is named at once, its path escaped."""
    links = [("Page", "out/AR.html"), ("Trace", "a\x1bb.json")]
    lines = render(worker_fault(), width=200, color=False, links=links).splitlines()
    assert lines[0].startswith("AR: straggling") and lines[1:4] == ["Page: out/AR.html", "Trace: a\\x1bb.json", ""]


@pytest.mark.parametrize("what", HOSTILE)
def test_hostile_names_are_harmless(what: str) -> None:
    """Whatever a trace holds, a page has no character that a terminal obeys, keeps its width, and stays readable."""
    for width in (40, 80):
        page = render(hostile(HOSTILE[what]), width=width, color=False, thorough=True)
        assert all(char.isprintable() or char == "\n" for char in page)
        assert all(cell_len(line) <= width for line in page.splitlines())
        assert len(page.splitlines()) < 3000


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("name", EXAMPLES)
def test_golden(name: str, width: int) -> None:
    """The report of each example is the one that was last read and agreed to."""
    path = GOLDEN / f"{name}-{width}.txt"
    report = render(EXAMPLES[name](), width=width, color=False)
    if os.environ.get("UPDATE_GOLDEN"):
        path.write_text(report, encoding="utf-8")
    assert report == path.read_text(encoding="utf-8"), "run with UPDATE_GOLDEN=1 and read the difference"


def test_golden_has_no_strangers() -> None:
    """Every golden file belongs to an example."""
    known = {f"{name}-{width}.txt" for name in EXAMPLES for width in WIDTHS}
    known |= {f"fixture-{name}-{width}.txt" for name in FIXTURES for width in FIXTURE_WIDTHS}
    assert {path.name for path in GOLDEN.iterdir()} == known


@pytest.mark.parametrize("width", [40, 60, 80, 100, 137, 200, 400])
@pytest.mark.parametrize("name", EXAMPLES)
def test_fits_width(name: str, width: int) -> None:
    """No line is wider than asked for, and none ends in blanks."""
    for line in render(EXAMPLES[name](), width=width, color=False).splitlines():
        assert cell_len(line) <= width
        assert line == line.rstrip()


@pytest.mark.parametrize("name", EXAMPLES)
def test_color_changes_only_color(name: str) -> None:
    """Without its colours the coloured report says the same, and the plain one holds no escape sequence."""
    plain = render(EXAMPLES[name](), width=100, color=False)
    colored = re.sub(r"\x1b\[[0-9;]*m", "", render(EXAMPLES[name](), width=100, color=True))
    assert "\x1b" not in plain
    assert [line.rstrip() for line in colored.splitlines()] == plain.splitlines()


def test_surroundings_change_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """What the environment says about the terminal does not reach a report."""
    before = render(worker_fault(), width=80, color=False)
    for name, value in {"COLUMNS": "50", "FORCE_COLOR": "1", "TERM": "dumb", "LINES": "3"}.items():
        monkeypatch.setenv(name, value)
    assert render(worker_fault(), width=80, color=False) == before


def test_verdict_first() -> None:
    """The first line says job, verdict, culprit and gain."""
    first = render(worker_fault(), width=200, color=False).splitlines()[0]
    assert first == "AR: straggling — slow worker (dp 0, stage 0); the fix makes steps 48% shorter"


def test_sections_in_order() -> None:
    """Money, causes, ledger, pictures, doubts, and the paper's measures stand in this order; in a cause, what to do comes early."""
    report = render(two_causes(), width=100, color=False)
    marks = [
        "Step time",
        "\n1. ",
        "What to do",
        "Recoverable",
        "Evidence",
        "\n2. ",
        "Where the lost time went",
        "\nWorkers",
        "\nSteps",
        "How far to trust",
        "Not checked",
        "\nAs in arXiv 2505.05713",
    ]
    places = [report.index(mark) for mark in marks]
    assert places == sorted(places)


def test_healthy_says_so() -> None:
    """A healthy job is cleared in plain words, and what was looked at is told."""
    report = render(healthy(), width=100, color=False)
    assert "healthy — nothing found that is worth mending" in report
    assert "16 workers, 20 steps, 5 operation types, 2 of 3 features measured" in report
    assert "lie within 1% of each other" in report


def test_healthy_names_the_most_that_could_be_gained() -> None:
    """A job cleared because much is asked of a cause is told what it could gain all the same."""
    features: dict[str, float | None] = {"gain.worker": 0.15, "gain.stage": 0.04, "gain.pause": None, "gain.all": 0.3}
    report = render(dataclasses.replace(healthy(), features=features, min_speedup=5.0), width=200, color=False)
    assert "healthy — no known cause that is worth a speedup of 5" in report
    said = " ".join(report.split())
    assert "would make the job at least 5 times as fast; the most, slow workers, would give back 15% of" in said
    more = facts.describe_nothing(dataclasses.replace(healthy(), features=features))
    assert more.endswith(" as fast. 15% of the step time is lost to slow workers; no cause can be named for it.")


@pytest.mark.parametrize(
    ("component", "said"),
    [
        (
            "pause",
            "is lost to pauses in forwards or backwards; no cause can be named for it, and below 5% that counts as",
        ),
        ("evaluation", "goes to evaluation, logging and other planned work, which is no fault."),
    ],
)
def test_healthy_says_why_a_loss_beside_it_is_no_finding(component: str, said: str) -> None:
    """What a healthy job loses all the same is said with the reason why it is healthy."""
    assert words.UNNAMED_FROM == UNKNOWN_SHARE
    job = dataclasses.replace(healthy(), features={f"gain.{component}": 0.038})
    assert f"times as fast. 3.8% of the step time {said}" in facts.describe_nothing(job)


def test_percentages_are_never_cut() -> None:
    """On the narrowest page names wrap, and every share is there."""
    ledger = Ledger({"unknown": 0.912}, {"input-delay": 0.871, "launch-delay": 0.0412}, 0.088, 0.0878)
    report = render(dataclasses.replace(unknown(), ledger=ledger), width=40, color=False)
    for share in ("91%", "8.8%", "87%", "4.1%"):
        assert f" {share} " in report


def test_reasons_stand_once_and_without_features() -> None:
    """What could not be checked shows each reason once, and no feature by its internal name."""
    why = "fewer than 5 steps; stall.period_steps: fewer than 5 steps; note: other"
    diagnosis = dataclasses.replace(
        healthy(),
        features={"stall.share": None, "stall.period_steps": None},
        not_checked=(NotChecked("allocator-stall", f"stall.share: {why}"), NotChecked("checkpoint-stall", why)),
    )
    report = render(diagnosis, width=200, color=False)
    assert "• allocator-stall, checkpoint-stall: fewer than 5 steps; note: other\n" in report


def test_paper_measures_are_explained() -> None:
    """S, M_W and the like stand under the name of the paper with what they mean, and nowhere else; unknown ones are left out."""
    why = "part of S's lost time that comes back with the slowest 3% of workers ideal; no percentage, may pass 1"
    w = dataclasses.replace(worker_fault().what_if, m_w=1.05, m_s=-0.02)
    report = render(dataclasses.replace(worker_fault(), what_if=w), width=250, color=False)
    before, paper = report.split("\nAs in arXiv 2505.05713\n")
    assert f"M_W 1.05: {why}" in " ".join(paper.split()) and "M_S          -0.02: " in paper
    assert [line.split()[0] for line in paper.splitlines()[:5]] == ["simulated", "ideal", "S", "waste", "discrepancy"]
    assert not re.search(r"\b(S|M_W|M_S|simulated|ideal|discrepancy|waste)\b", before)
    report = render(
        dataclasses.replace(worker_fault(), what_if=dataclasses.replace(w, m_s=None)), width=250, color=False
    )
    assert "M_W " in report and "M_S" not in report


@pytest.mark.parametrize("name", EXAMPLES)
def test_ascii_keeps_the_picture(name: str) -> None:
    """Where an encoding knows ASCII only, each mark has a stand-in of the same width, and no escape is needed."""
    report = render(EXAMPLES[name](), width=100, color=False)
    plain = to_encoding(report, "ascii")
    assert plain.isascii()
    assert [len(line) for line in plain.splitlines()] == [len(line) for line in report.splitlines()]
    assert to_encoding(report, "utf-8") == report


def test_alternatives_are_told_everywhere() -> None:
    """Each report for people has what else a cause may be, how surely, and what would tell."""
    told = "sequence-imbalance, possible (0.37); what would tell: the documents that dp 0 reads, or its optimizer"
    pages = [render(either(), width=200, color=False), markdown.render(either()), junit.render(either())]
    for page in pages:
        assert told in " ".join(page.split()).replace("\\", "")
    (cause,) = either().to_dict()["causes"]
    assert cause["alternatives"] == [
        {
            "cause": "sequence-imbalance",
            "confidence": 0.37,
            "tells_apart": "the documents that dp 0 reads, or its optimizer",
        }
    ]
    assert worker_fault().to_dict()["causes"][0]["alternatives"] == []


def test_inconclusive_says_why() -> None:
    """An inconclusive report names the replay error as its reason."""
    report = render(inconclusive(), width=100, color=False)
    assert "inconclusive — the replay is off by 12%, too far to be trusted" in report


@pytest.mark.parametrize("char", ["\x1b", "\x07", "\u202e", "\r"])
def test_hostile_names_are_shown(char: str) -> None:
    """Control characters in names are written as escapes, and square brackets stay what they are."""
    job = dataclasses.replace(healthy().job, job_id=f"a{char}b[red]", gpu_type=f"H{char}")
    diagnosis = dataclasses.replace(unknown(), job=job, warnings=(f"w{char}", "[/nothing]"))
    report = render(diagnosis, width=100, color=False)
    assert char not in report
    assert "b[red]: straggling" in report
    assert "[/nothing]" in report


def test_line_ends_of_rules_are_blanks() -> None:
    """Folded YAML ends in a line end; a report shows neither it nor an escape for it."""
    assert "\\x0a" not in render(worker_fault(), width=80, color=False)


def test_heat_map_bins_by_largest() -> None:
    """A slow worker among 4,096 is seen at its place however narrow the page."""
    by_worker = np.ones((256, 16))
    by_worker[200, 5] = 1.5
    lines = [line.plain for line in draw_heat_map(by_worker, np.arange(256), np.arange(16), 78)]
    row = next(line for line in lines if line.startswith("stage 5 "))
    assert row.split()[2].index("█") == 200 // 4
    assert sum("█" in line for line in lines[1:17]) == 1
    assert lines[-1] == "each mark is the largest of 4 dp ranks"


def test_heat_map_names_ranks_as_the_file_does() -> None:
    """Axes carry the labels of the file, not positions."""
    by_worker = np.array([[1.0, 1.0], [1.0, 2.0]])
    lines = [line.plain for line in draw_heat_map(by_worker, np.array([6, 9]), np.array([3, 12]), 80)]
    assert lines[0].split() == ["dp", "6", "9"]
    assert lines[2].split() == ["stage", "12", "·1.00", "█2.00"]


def test_heat_map_bins_stages() -> None:
    """Many stages share rows, named by their range."""
    by_worker = np.ones((1, 100))
    by_worker[0, 99] = 3.0
    lines = [line.plain for line in draw_heat_map(by_worker, np.arange(1), np.arange(100), 80)]
    assert lines[25].split() == ["stage", "96-99", "█"]


def test_small_slowdowns_look_cool() -> None:
    """A job whose worst worker costs 3% shows no hot mark."""
    lines = [line.plain for line in draw_heat_map(np.array([[1.0, 1.03]]), np.arange(1), np.arange(2), 80)]
    assert "░1.03" in lines[2]
    assert not set("▒▓█") & set("".join(lines[:3]))


def test_sparkline_bins_by_largest() -> None:
    """One slow step among a thousand is seen in forty characters."""
    values = np.ones(1000)
    values[777] = 2.0
    line = draw_sparkline(values, 40)
    assert len(line) == 40
    assert line.index("█") == 777 // 25


def test_big_job_is_bounded() -> None:
    """A job of 4,096 workers and 400 steps fits on a page."""
    assert len(render(big(), width=80, color=False).splitlines()) < 90
