"""Golden numbers: what stands in a diagnosis, a file a job and a line a number; UPDATE_GOLDEN=1 writes it anew: read `git diff`."""

import json
import math
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from diagnose.model.diagnosis import Diagnosis
from diagnose.report import json_lines

GOLDEN = Path(__file__).with_name("golden")
#: What says nothing new, and what does so in words.
LEFT_OUT = {"check", "file", "fingerprint", "how", "not_measured", "proof", "source", "who"}
WORDS = {"assumes", "assumptions", "risks", "summary", "tells_apart", "text", "title"}
#: What of a diagnosis a trace is measured by.
MEASURED = ("verdict", "step_time", "budget", "features", "causes", "levers")
#: How far numbers may be apart: they are written with five digits.
CLOSE = 1e-4

Leaf = str | float | bool


def list_leaves(found: Any, left_out: set[str], name: str = "") -> Iterator[tuple[str, Leaf]]:
    """Give what stands in a document, each with the way to it, but for what is missing, empty or 0."""
    if isinstance(found, Mapping):
        for key in sorted(found.keys() - left_out):
            yield from list_leaves(found[key], left_out, f"{name}.{key}" if name else key)
    elif isinstance(found, list):
        for n, value in enumerate(found):
            yield from list_leaves(value, left_out, f"{name}.{n}")
    elif isinstance(found, float):
        if abs(found) > CLOSE:
            yield name, float(f"{found:.5g}")
    elif found:
        yield name, found


def is_same(one: Leaf | None, other: Leaf | None) -> bool:
    """Compare as exactly as numbers are written; one that is too small to be written is 0."""
    if isinstance(one or 0.0, float) and isinstance(other or 0.0, float):
        return math.isclose(one or 0.0, other or 0.0, rel_tol=CLOSE, abs_tol=2 * CLOSE)
    return one == other


def assert_unchanged(diagnosis: Diagnosis, kept: tuple[str, ...], name: str, *, words: bool = False) -> None:
    """Check that parts of a diagnosis are, number by number, as they were last read and agreed to."""
    found = json.loads(json_lines.render(diagnosis))
    now = dict(list_leaves({key: found[key] for key in kept}, LEFT_OUT if words else LEFT_OUT | WORDS))
    path = GOLDEN / f"{name}.json"
    if os.environ.get("UPDATE_GOLDEN"):
        path.write_text(json.dumps(now, indent=0) + "\n")
    then = json.loads(path.read_text())
    both = {key: (then.get(key), now.get(key)) for key in sorted(then.keys() | now.keys())}
    assert {key: pair for key, pair in both.items() if not is_same(*pair)} == {}, "(before, now)"
