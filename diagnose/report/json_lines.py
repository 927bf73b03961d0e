"""The diagnosis as one line of JSON: the contract for programs; and how every other JSON is written."""

import json
from typing import Any

from diagnose.model.diagnosis import Diagnosis
from diagnose.model.plain import to_plain


def render(diagnosis: Diagnosis) -> str:
    """Write a diagnosis as one JSON object on one line, without the line end."""
    return to_json(diagnosis.to_document())


def to_json(value: Any) -> str:
    """Write a document, or plain values, as JSON on one line, without the line end.

    It is ASCII, so that the bytes are the same in every locale, with keys in the order of the fields; what is not a finite number
    is null.
    """
    return json.dumps(to_plain(value), allow_nan=False)
