"""The JSON output and its schema."""

import dataclasses
import json
import math
from typing import Any

import jsonschema
import msgspec.structs
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from diagnose.model.cause import EvidenceItem
from diagnose.model.diagnosis_document import Fidelity, StepTime
from diagnose.report.json_lines import render
from diagnose.report.schemas import make_schema
from tests.report.examples import EXAMPLES, healthy, worker_fault

SCHEMA = make_schema("diagnosis")
#: Keys of the contract, in its order.
KEYS = [
    *("schema", "made_by", "job", "verdict", "step_time", "slowdown", "waste", "gpu_hours", "fidelity", "what_if"),
    *("causes", "ledger", "not_checked", "features", "warnings"),
]
floats = st.floats(allow_nan=True, allow_infinity=True)


def load_strictly(line: str) -> Any:
    """Read JSON and refuse NaN and infinities."""

    def refuse(word: str) -> None:
        raise AssertionError(word)

    return json.loads(line, parse_constant=refuse)


def test_schema_is_a_schema() -> None:
    """The schema obeys JSON Schema 2020-12."""
    jsonschema.Draft202012Validator.check_schema(SCHEMA)
    assert SCHEMA["$schema"] == "https://json-schema.org/draft/2020-12/schema"


@pytest.mark.parametrize("name", EXAMPLES)
def test_examples_validate(name: str) -> None:
    """Every example is one line of ASCII that validates, with the keys of the contract in its order."""
    line = render(EXAMPLES[name]())
    assert line.isascii() and "\n" not in line
    found = load_strictly(line)
    jsonschema.validate(found, SCHEMA, cls=jsonschema.Draft202012Validator)
    assert [key for key in found if key in KEYS] == KEYS


@pytest.mark.parametrize("key", KEYS)
def test_every_key_is_required(key: str) -> None:
    """The schema refuses a diagnosis that lacks a key of the contract."""
    found = json.loads(render(worker_fault()))
    del found[key]
    assert not jsonschema.Draft202012Validator(SCHEMA).is_valid(found)


@pytest.mark.parametrize(
    ("path", "wrong"),
    [
        (("verdict",), "fine"),
        (("slowdown",), "1.9"),
        (("causes", 0, "confidence"), 1.2),
        (("causes", 0, "confidence"), None),
        (("causes", 0, "where"), []),
        (("causes", 0, "when", "pattern"), "often"),
        (("causes", 0, "evidence", 0, "source"), "guess"),
        (("causes",), []),
        (("ledger", "unexplained"), None),
        (("what_if", "by_worker", 0, "dp"), 0.5),
        (("job", "gpus"), 0),
        (("warnings",), [None]),
    ],
)
def test_schema_refuses(path: tuple[str | int, ...], wrong: object) -> None:
    """The schema refuses values of a wrong type or outside their range."""
    found = json.loads(render(worker_fault()))
    place = found
    for key in path[:-1]:
        place = place[key]
    place[path[-1]] = wrong
    assert not jsonschema.Draft202012Validator(SCHEMA).is_valid(found)


def test_other_keys_may_be_added() -> None:
    """A key that the contract does not know is no fault."""
    found = json.loads(render(worker_fault())) | {"new": 1}
    jsonschema.validate(found, SCHEMA)


@given(values=st.dictionaries(st.text(max_size=5), st.none() | floats, max_size=5), one=floats)
def test_no_nan(values: dict[str, float | None], one: float) -> None:
    """Whatever numbers a diagnosis holds, its JSON has no NaN or infinity, and finite floats come back to the bit."""
    item = EvidenceItem("rule", "x", "text", values)
    cause = msgspec.structs.replace(worker_fault().causes[0], evidence=(item,), share=one)
    diagnosis = dataclasses.replace(
        worker_fault(),
        features=values,
        causes=(cause,),
        step_time=StepTime(one, 1.0, 1.0, one),
        fidelity=Fidelity(one, one, ok=True),
        what_if=dataclasses.replace(worker_fault().what_if, by_stage=np.full(4, one)),
    )
    found = load_strictly(render(diagnosis))
    for name, value in values.items():
        assert found["features"][name] == (value if value is not None and math.isfinite(value) else None)


def test_numpy_numbers_are_numbers() -> None:
    """Numpy scalars that slip into a diagnosis are written as plain numbers."""
    diagnosis = dataclasses.replace(
        healthy(), features={"a": np.float64(0.1), "b": np.float32("nan")}, n_ops=np.int64(7)
    )
    found = load_strictly(render(diagnosis))
    assert found["features"] == {"a": 0.1, "b": None}
    assert found["job"]["ops"] == 7


def test_same_bytes() -> None:
    """The same diagnosis gives the same bytes."""
    assert render(worker_fault()) == render(worker_fault())
