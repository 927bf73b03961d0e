"""Saved diagnoses are known by their content, and wrong ones are refused in one line that says where."""

import io
import json
from pathlib import Path
from typing import Any

import pytest

from diagnose.compare.read import choose, read_saved, read_side
from diagnose.errors import DiagnoseError, TraceError, UsageError
from diagnose.report.json_lines import render
from tests.compare.sides import saved
from tests.report.examples import EXAMPLES, healthy, two_causes, worker_fault
from tests.report.hostile import HOSTILE, hostile


def read(text: str | bytes) -> list[dict[str, Any]] | None:
    """Read from memory."""
    return read_saved(io.BytesIO(text.encode() if isinstance(text, str) else text), "a.json")


@pytest.mark.parametrize("example", EXAMPLES)
def test_examples_can_be_read(example: str) -> None:
    """Every saved diagnosis gives back its step times, and its causes with the seconds that a step loses to each."""
    diagnosis = EXAMPLES[example]()
    found = read_side(saved(diagnosis), "a.json")
    assert found.recorded_s == diagnosis.step_time.recorded
    assert [cause.cause for cause in found.causes] == [cause.cause for cause in diagnosis.causes]
    assert [cause.where for cause in found.causes] == [cause.where for cause in diagnosis.causes]
    for new, old in zip(found.causes, diagnosis.causes, strict=True):
        lost_s = diagnosis.step_time.recorded - (diagnosis.step_time.clean or 0.0)
        assert new.lost_s == (None if old.share is None else pytest.approx(old.share * lost_s))


@pytest.mark.parametrize("what", HOSTILE)
def test_hostile_names_can_be_read(what: str) -> None:
    """Names come back as they were."""
    assert read_side(saved(hostile(HOSTILE[what])), "a.json").job_id == HOSTILE[what]


def test_known_by_content() -> None:
    """One object, one a line, a list, sorted or laid out otherwise: all are diagnoses; traces are not."""
    one, two = saved(healthy()), saved(worker_fault())
    assert read(json.dumps(one)) == read(json.dumps(one, indent=2, sort_keys=True)) == [one]
    assert read("\ufeff" + json.dumps(one)) == [one]
    assert read(f"{json.dumps(one)}\n\n{json.dumps(two)}\n") == read(json.dumps([one, two])) == [one, two]
    for other in ("PAR1...", "", '{"traceEvents": []}', "[1, 2]", "no JSON", b"\x00\xff"):
        assert read(other) is None


def test_what_cannot_be_opened_is_left_to_the_reader_of_traces(tmp_path: Path) -> None:
    """A missing file, and a folder, are no saved diagnoses."""
    assert read_saved(tmp_path / "none.json", "none.json") is None
    assert read_saved(tmp_path, "folder") is None


def test_standard_input_can_be_read_again() -> None:
    """What is no diagnosis is left at its begin."""
    source = io.BytesIO(b'{"traceEvents": []}')
    assert read_saved(source, "-") is None and source.tell() == 0


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ('{"schema": "diagnose-explain/1"}', "a.json: it is 'diagnose-explain/1', not 'diagnose/2'"),
        ('{"schema": "diagnose/3"}', "a.json: it is 'diagnose/3', not 'diagnose/2'"),
        ('{"schema": "diagnose/1"', "a.json:1: it is no JSON, or cut off"),
        (render(healthy()) + "\n" + render(healthy())[:-9], "a.json:2: it is no JSON, or cut off"),
        ('[{"schema": "diagnose/1"}, 3]', "a.json: entry 2: it is None, not 'diagnose/2'"),
        (b'{"schema": "diagnose/1", "x": "\xff"}', "a.json: byte 31 is no UTF-8"),
        ('{"schema": "diagnose/1", "x": ' + "[" * 100_000, "a.json:1: it is no JSON, or cut off"),
    ],
)
def test_what_is_no_diagnosis_is_refused(text: str | bytes, says: str) -> None:
    """Objects of another kind, and files that are cut off, are one line that says where."""
    with pytest.raises(TraceError) as error:
        read(text)
    assert str(error.value).startswith(says) and "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("path", "wrong", "says"),
    [
        (("step_time",), None, "step_time is missing; expected an object"),
        (("step_time", "recorded"), None, "step_time.recorded is missing; expected a number"),
        (("step_time", "recorded"), 0, "step_time.recorded is 0; expected seconds above 0"),
        (("step_time", "recorded"), 10**400, "expected a number"),
        (("step_time", "recorded"), True, "step_time.recorded is true; expected a number"),
        (("verdict",), "fine", 'verdict is "fine"; expected healthy or noisy or straggling or inconclusive'),
        (("causes",), {}, "causes is {}; expected a list"),
        (("causes", 0), 3, "causes[0] is 3; expected an object"),
        (("causes", 0, "cause"), "<b>", 'causes[0].cause is "<b>"'),
        (("causes", 0, "share"), "a", 'causes[0].share is "a"; expected a number'),
        (
            ("causes", 0, "where", "workers", 0, "dp"),
            0.5,
            "causes[0].where.workers[0].dp is 0.5; expected a whole number",
        ),
        (("causes", 0, "where", "stages"), ["a"], "causes[0].where.stages"),
        (("causes", 0, "where", "hosts"), [1], "causes[0].where.hosts is [1]; expected a list of texts"),
        (("job", "job_id"), 7, "job.job_id is 7; expected a text"),
        (("job", "gpus"), "\ud800", "a text in it is no text (half of a surrogate pair)"),
    ],
)
def test_wrong_values_are_named(path: tuple[str | int, ...], wrong: object, says: str) -> None:
    """A value of a wrong type is named by its path, with what was expected."""
    found = saved(worker_fault())
    place: Any = found
    for key in path[:-1]:
        place = place[key]
    place[path[-1]] = wrong
    with pytest.raises(TraceError) as error:
        read_side(found, "a.json")
    assert str(error.value).startswith("a.json: ") and says in str(error.value)


@pytest.mark.parametrize("number", [float("nan"), float("inf"), -float("inf")])
def test_what_is_no_number_is_missing(number: float) -> None:
    """JSON knows no NaN and no infinity, but programs write them."""
    found = saved(worker_fault())
    found["causes"][0]["confidence"] = number
    (entry,) = read(json.dumps(found)) or []
    with pytest.raises(TraceError, match=r"causes\[0\]\.confidence is missing; expected a number"):
        read_side(entry, "a.json")


def test_one_of_several_is_chosen_by_its_job() -> None:
    """Of several diagnoses the job says which; where it does not, the error lists them."""
    several = [saved(healthy()), saved(worker_fault()), saved(two_causes())]
    assert choose(several, "a.json", "AR")["job"]["job_id"] == "AR"
    for job, says in [
        (None, "a.json: it holds 3 diagnoses ('pretrain-7b', 'AR', 'moe-32b'); say which with --job ID"),
        ("x", "a.json: there is no diagnosis of job 'x'; it has 'pretrain-7b', 'AR', 'moe-32b'"),
    ]:
        with pytest.raises(UsageError) as error:
            choose(several, "a.json", job)
        assert str(error.value) == says
    with pytest.raises(DiagnoseError, match="it holds 2 diagnoses of job 'AR'"):
        choose([saved(worker_fault())] * 2, "a.json", "AR")
