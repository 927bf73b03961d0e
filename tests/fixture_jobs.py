"""The fixtures and what is found in them, diagnosed once a process: for tests that only read the answer."""

from functools import cache
from pathlib import Path

from diagnose.model.diagnosis import Diagnosis
from diagnose.model.request import Request
from diagnose.pipeline import diagnose_job

FIXTURES = {path.stem: path for path in sorted((Path(__file__).resolve().parents[1] / "fixtures").glob("*.parquet"))}


@cache
def diagnosed(name: str) -> Diagnosis:
    """Diagnose a fixture, as `diagnose fixtures/NAME.parquet` does; nobody may change the answer."""
    return diagnose_job(Request(FIXTURES[name]))
