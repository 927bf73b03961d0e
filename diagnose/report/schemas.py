"""The JSON Schemas of what the program prints, made of the types that it is made of.

Enters: the name of a document. Leaves: its schema, draft 2020-12.
"""

import inspect
import json
import uuid
from typing import Any

import msgspec

from diagnose.model.comparison import ComparisonDocument
from diagnose.model.diagnosis_document import DiagnosisDocument
from diagnose.model.fleet_document import FleetDocument
from diagnose.model.live import LiveEvent, WatchStates
from diagnose.model.machines import MachinesDocument
from diagnose.model.place import Worker
from diagnose.model.ticket import TicketDocument

#: Name of each document, its type, and the name of its schema, from which its `$id` is made.
_DOCUMENTS: dict[str, tuple[type[msgspec.Struct], str, str]] = {
    "diagnosis": (DiagnosisDocument, "Diagnosis", "diagnosis-1"),
    "compare": (ComparisonDocument, "Comparison", "diagnose-compare-1"),
    "fleet": (FleetDocument, "Fleet", "diagnose-fleet-1"),
    "ticket": (TicketDocument, "Ticket", "ticket-1"),
    "machines": (MachinesDocument, "Machines", "diagnose-machines-1"),
    "watch": (LiveEvent, "Event", "diagnose-watch-1"),
    "watch-states": (WatchStates, "States", "diagnose-watch-states-1"),
}
#: Names the schemas of this project. The project has no web address of its own to put them at; a URN is a URI that nobody else can
#: own, and stays the same wherever the schemas are kept. Random, once and for all.
_NAMESPACE = uuid.UUID("6f0c9d1e-5b7a-4f2c-9a43-1d2e8b60c7f5")
#: What the types cannot say: which verdict has causes and a ledger.
_VERDICTS = [
    {"if": {"properties": {"verdict": {"const": "straggling"}}}, "then": {"properties": {"causes": {"minItems": 1}}}},
    {
        "if": {"properties": {"verdict": {"enum": ["healthy", "noisy"]}}},
        "then": {"properties": {"causes": {"maxItems": 0}, "ledger": {"type": "null"}}},
    },
]


def render_schema(what: str) -> str:
    """Write the schema of a document: one of the names above."""
    return json.dumps(make_schema(what), indent=2) + "\n"


def make_schema(what: str) -> dict[str, Any]:
    """Make the schema of a document: one of the names above."""
    document, title, file = _DOCUMENTS[what]
    parts = {name: _tidy(part, name) for name, part in msgspec.json.schema(document)["$defs"].items()}
    whole = parts.pop(document.__name__)
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "$id": uuid.uuid5(_NAMESPACE, file).urn,
        **whole,
        "title": title,
        **({"allOf": _VERDICTS} if document is DiagnosisDocument else {}),
        "$defs": parts,
    }


def _tidy(part: dict[str, Any], name: str) -> dict[str, Any]:
    """Say of a type what is printed, where its defaults say what may be missing when it is read."""
    said = inspect.cleandoc(part["description"])
    part["description"] = said.replace("\n", " ").replace("  ", " ")
    required = part.get("required", [])
    printed = [key for key, field in part["properties"].items() if key in required or "default" in field]
    for field in part["properties"].values():
        is_left_out = name == Worker.__name__ and "default" in field
        field.pop("default", None)
        kinds = field.get("anyOf", [])
        if is_left_out:
            # What is not known of a worker is no null, but left out.
            del field["anyOf"]
            field.update(kinds[0])
        elif len(kinds) == 2 and kinds[1] == {"type": "null"} and isinstance(kinds[0].get("type"), str):
            del field["anyOf"]
            field.update(kinds[0] | {"type": [kinds[0]["type"], "null"]})
    if name != Worker.__name__:
        part["required"] = printed
    return part
