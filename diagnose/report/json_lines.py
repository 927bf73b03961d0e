"""The diagnosis as one line of JSON: the contract for programs; and how every other JSON is written."""

import json
import math
from typing import Any

from diagnose.model.diagnosis import Diagnosis


def render(diagnosis: Diagnosis) -> str:
    """Write a diagnosis as one JSON object on one line, without the line end.

    Returns
    -------
    str
        ASCII, so that the bytes are the same in every locale; keys in the order of `Diagnosis.to_dict`; what is not a
        finite number is null.
    """
    return to_json(diagnosis.to_dict())


def to_json(value: Any) -> str:
    """Write plain values as JSON on one line, without the line end.

    Returns
    -------
    str
        ASCII, so that the bytes are the same in every locale; what is not a finite number is null.
    """
    return json.dumps(_plain(value), allow_nan=False)


def _plain(value: Any) -> Any:
    """Give plain Python values, and None where a number is not finite."""
    if isinstance(value, dict):
        return {str(key): _plain(entry) for key, entry in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(entry) for entry in value]
    if hasattr(value, "item"):
        value = value.item()
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value
