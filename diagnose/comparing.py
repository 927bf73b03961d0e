"""Compare two jobs, whether they are traces, saved diagnoses, or diagnoses at hand.

Enters: two of these. Leaves: a `Comparison`.
"""

import dataclasses
import json
from collections.abc import Mapping, Sequence
from typing import Any

from diagnose.compare.compare import compare
from diagnose.compare.read import choose, job_id_of, read_saved, read_side
from diagnose.model.comparison import Comparison
from diagnose.model.diagnosis import Diagnosis
from diagnose.model.plain import to_json
from diagnose.model.request import Request
from diagnose.pipeline import diagnose_job


@dataclasses.dataclass(frozen=True, slots=True)
class Candidates:
    """The diagnoses that one side of a comparison holds, as they are saved; `name` is how errors and reports call it."""

    name: str
    diagnoses: Sequence[dict[str, Any]]


def find_diagnoses(given: Request | Diagnosis | Mapping[str, Any]) -> Candidates:
    """Take a diagnosis, or what its `to_dict` gives, or read saved ones, or diagnose a trace: as the content of the file says.

    Raises
    ------
    TraceError
        It is neither a trace nor a diagnosis.
    RuleError
        A rule file is wrong.
    """
    if isinstance(given, Mapping):
        return Candidates("diagnosis", [dict(given)])
    name = given.job.job_id if isinstance(given, Diagnosis) else given.name or str(given.source)
    if isinstance(given, Request):
        saved = read_saved(given.source, name)
        if saved is not None:
            return Candidates(name, saved)
        given = diagnose_job(given)
    return Candidates(name, [json.loads(to_json(given.to_document()))])


def compare_jobs(before: Candidates, after: Candidates, *, job: str | None = None) -> Comparison:
    """Say what changed between two jobs; `job` is the id of the one that is meant, where a side holds several.

    Raises
    ------
    TraceError
        A diagnosis lacks what a comparison needs.
    UsageError
        It is not clear which job is meant.
    """
    for one, other in ((before, after), (after, before)):
        if job is None and len(one.diagnoses) > 1 and len(other.diagnoses) == 1:
            job = job_id_of(other.diagnoses[0])  # of several, the one that the other side is about
    return compare(
        *(
            read_side(choose(side.diagnoses, side.name, None if len(side.diagnoses) == 1 else job), side.name)
            for side in (before, after)
        )
    )
