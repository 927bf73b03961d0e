"""The schemas: made of the types, as strict as what is printed, and no looser than they were when they were written by hand."""

import copy
import json
import uuid
from collections.abc import Iterator
from typing import Any

import jsonschema
import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from diagnose.model.cause import Cause
from diagnose.model.diagnosis_document import DiagnosisDocument
from diagnose.model.plain import to_plain
from diagnose.report.json_lines import render
from diagnose.report.schemas import make_schema
from tests.report.examples import EXAMPLES, worker_fault

DOCUMENTS = ("diagnosis", "compare", "fleet", "ticket", "watch", "watch-states")


def is_valid(found: object) -> bool:
    """Say whether something is a diagnosis by its schema."""
    return jsonschema.Draft202012Validator(make_schema("diagnosis")).is_valid(found)


def fields_of(schema: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    """Give the fields of all types of a schema, by type and name."""
    for name, part in (("", schema), *schema["$defs"].items()):
        yield from ((f"{name}.{key}", field) for key, field in part["properties"].items())


@pytest.mark.parametrize("what", DOCUMENTS)
def test_a_schema_is_one(what: str) -> None:
    """It obeys JSON Schema 2020-12, says what it is of, and leaves room for other keys."""
    schema = make_schema(what)
    jsonschema.Draft202012Validator.check_schema(schema)
    assert schema["$schema"] == "https://json-schema.org/draft/2020-12/schema"
    assert (schema["title"] and "prints" in schema["description"]) or "diagnose tickets" in schema["description"]
    assert "additionalProperties" not in schema and not any("default" in field for _, field in fields_of(schema))


def test_each_schema_has_a_name_of_its_own() -> None:
    """`$id` is a URI that is nobody's address, and the same in every run: a registry may keep schemas by it."""
    ids = [make_schema(what)["$id"] for what in DOCUMENTS]
    assert len(set(ids)) == len(DOCUMENTS) and ids == [make_schema(what)["$id"] for what in DOCUMENTS]
    assert all(uuid.UUID(one.removeprefix("urn:uuid:")).urn == one for one in ids)
    assert make_schema("ticket")["$id"] == "urn:uuid:2eec6ec8-72c6-5ff0-8ffb-6c7bf5e40c56"


@pytest.mark.parametrize("what", DOCUMENTS)
def test_every_key_that_is_printed_is_required(what: str) -> None:
    """All keys are there, but what is not known of a worker, or what nobody asked for, which is left out and never null."""
    schema = make_schema(what)
    for name, part in (("", schema), *schema["$defs"].items()):
        if name != "Worker":
            asked_for = {"telemetry", "subcause", "confirmed"}
            assert part["required"] == [key for key in part["properties"] if key not in asked_for]
    if worker := schema["$defs"].get("Worker"):
        assert worker["required"] == ["dp", "pp"]
        assert {key: field["type"] for key, field in worker["properties"].items()} == {
            **dict.fromkeys(("dp", "pp", "rank", "tp", "cp"), "integer"),
            "host": "string",
        }


def places(found: object, path: tuple[str | int, ...] = ()) -> Iterator[tuple[str | int, ...]]:
    """Give the path of every key of a document whose name the contract sets."""
    if isinstance(found, dict):
        for key, value in found.items():
            yield (*path, key)
            if key not in {
                "features",
                "values",
                "settings",
                "figures",
                "by_optype",
                "by_stage",
                "by_dp_rank",
                "by_step",
            }:
                yield from places(value, (*path, key))
    elif isinstance(found, list) and found:
        yield from places(found[0], (*path, 0))


def at(found: Any, path: tuple[str | int, ...]) -> Any:
    """Give what stands at a place."""
    for step in path:
        found = found[step]
    return found


def test_broken_documents_are_refused() -> None:
    """Without any one of its keys, or with a value of a wrong type in its place, nothing is a diagnosis."""
    found = json.loads(render(worker_fault()))
    assert is_valid(found)
    free = {("ledger", "causes"), ("ledger", "components")}
    for path in places(found):
        if path[:2] in free and len(path) > 2:
            continue
        broken = copy.deepcopy(found)
        at(broken, path[:-1])[path[-1]] = "yes" if path == ("fidelity", "ok") else True
        assert not is_valid(broken), f"a wrong value at {path}"
        del at(broken, path[:-1])[path[-1]]
        may_be_missing = ("workers" in path and path[-1] in {0, "rank", "host"}) or path[-1] == 0
        assert is_valid(broken) == may_be_missing or path == ("causes", 0), f"nothing at {path}"


@pytest.mark.parametrize("name", EXAMPLES)
def test_documents_come_back_as_they_were(name: str) -> None:
    """What is printed can be read, and printed again byte for byte."""
    line = render(EXAMPLES[name]())
    again = msgspec.convert(json.loads(line), DiagnosisDocument)
    assert json.dumps(to_plain(again)) == line


@given(
    values=st.dictionaries(st.text(max_size=5), st.none() | st.floats(allow_nan=False, allow_infinity=False)),
    more=st.text(),
)
def test_any_values_come_back(values: dict[str, float | None], more: str) -> None:
    """Names and numbers of evidence come back to the bit, and keys of later versions are passed over."""
    found = json.loads(render(worker_fault()))["causes"][0]
    found["evidence"][0]["values"] = values
    again = msgspec.convert(found | {f"later {more}": more}, Cause)
    assert json.dumps(to_plain(again)) == json.dumps(found)
