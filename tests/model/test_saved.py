"""Diagnoses made again from their JSON."""

import json

import pytest

from diagnose.model.plain import to_json
from diagnose.model.saved import restore
from diagnose.report import words
from tests.fleet.stores import FIXTURES, diagnosed
from tests.report.examples import EXAMPLES
from tests.report.hostile import HOSTILE, hostile


@pytest.mark.parametrize("name", FIXTURES)
def test_a_saved_diagnosis_says_what_it_said(name: str) -> None:
    """The JSON of the diagnosis made again is the JSON that it was made from, but for ranks beside slowdowns."""
    found = json.loads(diagnosed(name))
    again = json.loads(to_json(restore(found, min_speedup=1.02).to_dict()))
    for one in (found, again):
        for worker in one["what_if"]["by_worker"]:
            del worker["rank"]
    assert again.pop("slowdown") == pytest.approx(found.pop("slowdown"), rel=1e-14)
    assert again.pop("waste") == pytest.approx(found.pop("waste"), rel=1e-12)
    assert again == found


def test_a_diagnosis_of_the_first_schema_is_read() -> None:
    """Before there was a budget a diagnosis was of schema 1; a store keeps such ones."""
    found = json.loads(diagnosed("worker-fault"))
    old = {key: value for key, value in found.items() if key not in {"budget", "levers"}} | {"schema": "diagnose/1"}
    again = restore(old, min_speedup=1.02)
    assert again.budget is None and again.levers == ()
    assert again.causes == restore(found, min_speedup=1.02).causes


@pytest.mark.parametrize("name", EXAMPLES)
def test_its_headline_is_the_same(name: str) -> None:
    """The words of the page come from what is saved."""
    diagnosis = EXAMPLES[name]()
    again = restore(json.loads(to_json(diagnosis.to_dict())), min_speedup=diagnosis.min_speedup)
    assert words.headline(again) == words.headline(diagnosis)


@pytest.mark.parametrize("name", HOSTILE)
def test_any_text_is_kept(name: str) -> None:
    """Names of any content come back as they were."""
    found = json.loads(to_json(hostile(HOSTILE[name]).to_dict()))
    again = restore(found, min_speedup=1.02)
    assert again.job.owner == HOSTILE[name] and again.causes[0].where.hosts[0] == HOSTILE[name]


@pytest.mark.parametrize(
    "change",
    [
        lambda found: found.pop("causes"),
        lambda found: found.update(schema="diagnose/3"),
        lambda found: found.update(job=None),
        lambda found: found["what_if"].update(by_step=[1]),
        lambda found: found["causes"][0].pop("where"),
        lambda found: found["causes"][0].update(recoverable="much"),
        lambda found: found["what_if"]["by_worker"][0].update(dp=77),
        lambda found: found.pop("schema"),
    ],
)
def test_what_is_no_diagnosis_is_refused(change: object) -> None:
    """A document that lacks or distorts something is one error, and no other."""
    found = json.loads(diagnosed("worker-fault"))
    change(found)
    with pytest.raises(ValueError, match=r"lacks or distorts|its schema is|could not convert"):
        restore(found, min_speedup=1.02)


def test_older_documents_are_read() -> None:
    """What later versions added may be missing."""
    found = json.loads(diagnosed("worker-fault"))
    for key in ("plan", "checked"):
        del found[key]
    for key in ("severity", "who", "refused_fixes"):
        del found["causes"][0][key]
    del found["job"]["hosts"]
    again = restore(found, min_speedup=1.02)
    assert again.plan is None and again.causes[0].who is None
