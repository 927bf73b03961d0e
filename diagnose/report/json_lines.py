"""The diagnosis as one line of JSON: the contract for programs."""

from diagnose.model.diagnosis import Diagnosis
from diagnose.model.plain import to_json


def render(diagnosis: Diagnosis) -> str:
    """Write a diagnosis as one JSON object on one line, without the line end."""
    return to_json(diagnosis.to_document())
