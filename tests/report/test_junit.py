"""JUnit XML for gates: read back by a parser, and held against the grammar that Jenkins, GitLab and others share."""

import dataclasses
from xml.etree import ElementTree as ET

import msgspec.structs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from diagnose.model.cause import NotChecked
from diagnose.report.junit import AFTER, BEFORE, render, render_error
from tests.report.examples import EXAMPLES, healthy, inconclusive, noisy, two_causes, worker_fault
from tests.report.hostile import HOSTILE, hostile

#: What an element may hold, and its attributes: needed, and allowed beside those.
GRAMMAR: dict[str, tuple[set[str], set[str], set[str]]] = {
    "testsuites": ({"testsuite"}, set(), {"name", "tests", "failures", "errors", "time"}),
    "testsuite": ({"properties", "testcase"}, {"name", "tests", "failures", "errors"}, {"skipped"}),
    "properties": ({"property"}, set(), set()),
    "property": (set(), {"name", "value"}, set()),
    "testcase": ({"failure", "error", "skipped"}, {"name"}, {"classname", "time"}),
    "failure": (set(), set(), {"type", "message"}),
    "error": (set(), set(), {"type", "message"}),
    "skipped": (set(), set(), {"type", "message"}),
}


def read(*suites: str) -> ET.Element:
    """Read a document, and check that it keeps to the grammar and counts right."""
    document = BEFORE + "".join(suites) + AFTER
    assert document.isascii()
    root = ET.fromstring(document.encode())
    for element in root.iter():
        children, needed, allowed = GRAMMAR[element.tag]
        assert {child.tag for child in element} <= children
        assert needed <= element.attrib.keys() <= needed | allowed
        assert element.tag == "failure" or not (element.text or "").strip()
    for suite in root:
        cases = suite.findall("testcase")
        assert int(suite.get("tests", "")) == len(cases)
        for attribute, tag in (("failures", "failure"), ("errors", "error"), ("skipped", "skipped")):
            assert int(suite.get(attribute, "")) == len(suite.findall(f"testcase/{tag}"))
        assert len({case.get("name") for case in cases}) == len(cases)
    return root


def outcomes(root: ET.Element) -> dict[str, str]:
    """Say of each case of the first suite how it ended."""
    return {case.get("name", ""): case[0].tag if len(case) else "passed" for case in root[0].findall("testcase")}


@pytest.mark.parametrize("example", EXAMPLES)
def test_examples_keep_to_the_grammar(example: str) -> None:
    """Every example is a suite, and every cause that is said is a failure."""
    diagnosis = EXAMPLES[example]()
    root = read(render(diagnosis))
    assert {cause for cause, outcome in outcomes(root).items() if outcome == "failure"} == {
        cause.cause for cause in diagnosis.causes
    }


def test_three_outcomes() -> None:
    """A cause is said, not there, or could not be looked for: failed, passed, skipped."""
    diagnosis = dataclasses.replace(worker_fault(), not_checked=(NotChecked("data-loading", "no rows"),))
    root = read(render(diagnosis))
    assert outcomes(root) == {
        "trace": "passed",
        "data-loading": "skipped",
        "sequence-imbalance": "passed",
        "stage-imbalance": "passed",
        "unknown": "passed",
        "worker-fault": "failure",
    }
    assert root.find(".//skipped").attrib == {"message": "no rows"}


def test_failure_says_what_to_do() -> None:
    """A failure has severity, cause, place and what the fix gives in its message, and evidence and fixes below."""
    cause = msgspec.structs.replace(worker_fault().causes[0], severity="high")
    failure = read(render(dataclasses.replace(worker_fault(), causes=(cause,)))).find(".//failure")
    assert failure.get("type") == "high"
    message = "HIGH worker-fault at dp 0, stage 0 (gpu-17): slow worker; the fix makes steps 48% shorter"
    assert failure.get("message") == message
    assert "Evidence: Its own waits in collectives are the shortest of all." in failure.text
    assert "What to do: Drain gpu-17 and replace it (replace-node); predicted: 6.35 s a step" in failure.text


def test_noise_fails_nothing() -> None:
    """A job whose steps merely vary has passed, as a healthy one has."""
    assert outcomes(read(render(noisy()))) == outcomes(read(render(healthy())))


def test_inconclusive_passes_nothing() -> None:
    """Where nobody can judge, no case has passed, and none has failed."""
    found = outcomes(read(render(inconclusive())))
    assert set(found.values()) == {"skipped"}
    assert "trace" in found


def test_a_job_that_cannot_be_read_is_an_error() -> None:
    """What stands on standard error stands in the document, too."""
    root = read(
        render(healthy()), render_error("a/b.parquet", "a/b.parquet: no column\nduration"), render(two_causes())
    )
    assert [suite.get("name") for suite in root] == ["pretrain-7b", "a/b.parquet", "moe-32b"]
    assert root[1].find("testcase/error").get("message") == "a/b.parquet: no column duration"


@pytest.mark.parametrize("what", HOSTILE)
def test_hostile_names_are_text(what: str) -> None:
    """Whatever a trace holds, the document can be read and has no element of its making."""
    text = HOSTILE[what]
    suites = [render(hostile(text)), render_error(text, text)]
    root = read(*suites)
    assert len(root) == 2
    assert sum(map(len, suites)) < 100_000


@given(text=st.text(st.characters(), max_size=30))
def test_any_text_is_legal(text: str) -> None:
    """No character of Unicode, legal in XML or not, breaks the document."""
    read(render(hostile(text)), render_error(text, text))


@pytest.mark.parametrize("example", EXAMPLES)
def test_same_bytes(example: str) -> None:
    """The same diagnosis gives the same bytes: no time and no date."""
    assert render(EXAMPLES[example]()) == render(EXAMPLES[example]())
