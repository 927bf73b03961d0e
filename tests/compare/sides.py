"""Diagnoses for comparisons: saved ones, made from the examples by hand."""

import dataclasses
import json
from typing import Any

from diagnose.compare.read import read_side
from diagnose.model.comparison import Seen, Side
from diagnose.model.diagnosis import Diagnosis
from diagnose.model.place import Where
from diagnose.report.json_lines import render
from tests.report.examples import healthy


def saved(diagnosis: Diagnosis) -> dict[str, Any]:
    """Give what `--format json` saves of a diagnosis."""
    return json.loads(render(diagnosis))


def side(*causes: Seen, recorded_s: float = 2.0, clean_s: float | None = 1.5, **other: Any) -> Side:
    """Make one side of a comparison."""
    base = read_side(saved(healthy()), "a.json")
    verdict = other.pop("verdict", "straggling" if causes else "healthy")
    return dataclasses.replace(base, recorded_s=recorded_s, clean_s=clean_s, causes=causes, verdict=verdict, **other)


def seen(cause: str, lost_s: float | None, where: Where | None = None, **other: Any) -> Seen:
    """Make a cause that costs so many seconds a step."""
    base = Seen(cause, f"title of {cause}", "high", "job owner", lost_s, lost_s or 0.0, where or Where(), "", ())
    return dataclasses.replace(base, **other)
