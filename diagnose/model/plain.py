"""Plain values, as JSON knows them, of the types that documents are made of."""

import json
import math
from typing import Any

import msgspec


def says(meaning: str, **limits: Any) -> msgspec.Meta:
    """Give what the JSON Schema says of a field, and the limits of its values."""
    return msgspec.Meta(description=meaning, **limits)


def to_plain(found: Any) -> Any:
    """Give dicts, lists, texts and numbers of any type that a document is made of; None where a number is not finite."""
    return _finite(msgspec.to_builtins(found, str_keys=True, enc_hook=_to_number))


def to_json(value: Any) -> str:
    """Write a document, or plain values, as JSON on one line, without the line end.

    It is ASCII, so that the bytes are the same in every locale, with keys in the order of the fields; what is not a finite number
    is null.
    """
    return json.dumps(to_plain(value), allow_nan=False)


def _to_number(value: Any) -> Any:
    """Give the number of a numpy scalar."""
    if hasattr(value, "item"):
        return value.item()
    raise TypeError(f"{type(value).__name__} has no place in JSON")


def _finite(value: Any) -> Any:
    """Give None for numbers that are not finite, and lists for tuples."""
    if isinstance(value, dict):
        return {key: _finite(entry) for key, entry in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(entry) for entry in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value
