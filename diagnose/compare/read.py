"""Read saved diagnoses, recognised by their content, and take from them what a comparison needs.

Enters: a file, or bytes, that may hold what `diagnose --format json` prints, for one job or several. Leaves: `Side`s. All doubts
about saved diagnoses are settled here.
"""

import json
import math
import re
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any, BinaryIO, get_args

import msgspec

from diagnose.errors import TraceError, UsageError, name_some
from diagnose.model.cause import Cause, Pattern, Severity, Source
from diagnose.model.comparison import Seen, Shape, Side
from diagnose.model.diagnosis_document import SCHEMA, SCHEMAS, DiagnosisDocument, JobFacts, VerdictName

#: A larger file is no list of diagnoses.
MAX_BYTES = 256 * 1024 * 1024
#: Jobs named when it is not clear which is meant.
_MAX_NAMED = 5
#: A step of the place that a validator names: a key, or a number in a list.
_STEP = re.compile(r"\.([^.\[\]`]+)|\[(\d+)\]")
#: What is expected, in words, by the name that a validator has for it; and of many of them.
_KINDS = {"float": "a number", "int": "a whole number", "str": "a text", "array": "a list", "object": "an object"}
_PLURAL = {"a number": "numbers", "a whole number": "whole numbers", "a text": "texts"}
#: Words that may stand at a key.
_CHOICES: dict[str | int, Any] = {"verdict": VerdictName, "severity": Severity, "pattern": Pattern, "source": Source}
_OURS = re.compile(rb'"schema"\s*:\s*"diagnose[/-]')


def read_saved(
    source: str | Path | BinaryIO, name: str, *, schemas: Collection[str] = SCHEMAS
) -> list[dict[str, Any]] | None:
    """Read all diagnoses of a file.

    Parameters
    ----------
    source : path, or open binary file that can seek
    name : str
        How errors call it.
    schemas : collection of str
        What its objects may be.

    Returns
    -------
    list of dict, or None
        One JSON object a job, not yet checked; None where the file holds something else, such as a trace.

    Raises
    ------
    TraceError
        It holds diagnoses, and cannot be read; or objects of another kind.
    """
    data = _read_json(Path(source) if isinstance(source, str) else source)
    if data is None:
        return None
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise TraceError(f"byte {error.start} is no UTF-8; save it again with --format json", where=name) from None
    found = _parse(text, name)
    for n, entry in enumerate(found, start=1):
        kind = entry.get("schema") if isinstance(entry, dict) else None
        if kind not in schemas:
            place = f"entry {n}: " if len(found) > 1 else ""
            raise TraceError(f"{place}it is {kind!r}, not {SCHEMA!r}; expected what --format json prints", where=name)
    return found


def choose(found: Sequence[dict[str, Any]], name: str, job: str | None) -> dict[str, Any]:
    """Take the diagnosis of one job, as it was saved.

    Parameters
    ----------
    name : str
        How errors call the file.
    job : str, optional
        Id of the job; must be given where there are several.

    Raises
    ------
    UsageError
        There is no such job, or it is not clear which one is meant.
    """
    ids = [job_id_of(entry) for entry in found]
    wanted = [entry for entry, job_id in zip(found, ids, strict=True) if job is None or job_id == job]
    if len(wanted) == 1:
        return wanted[0]
    named = name_some([repr(job_id) for job_id in ids], _MAX_NAMED)
    if not wanted:
        raise UsageError(f"{name}: there is no diagnosis of job {job!r}; it has {named}")
    if job is None:
        raise UsageError(f"{name}: it holds {len(found)} diagnoses ({named}); say which with --job ID")
    raise UsageError(f"{name}: it holds {len(wanted)} diagnoses of job {job!r}; keep one of them in the file")


def job_id_of(entry: dict[str, Any]) -> str:
    """Give the id of a job; empty where it has none."""
    job = entry.get("job")
    return str(job.get("job_id", "")) if isinstance(job, dict) else ""


def read_side(entry: dict[str, Any], name: str) -> Side:
    """Take from a diagnosis what a comparison needs.

    Raises
    ------
    TraceError
        Something is missing, or of a wrong type.
    """
    found = read_document(entry, name)
    recorded_s, clean_s = found.step_time.recorded, found.step_time.clean
    if math.isnan(recorded_s):  # a recording of collectives alone has no steps
        raise TraceError("step_time.recorded is missing; expected a number", where=name)
    if recorded_s <= 0:
        raise TraceError(f"step_time.recorded is {recorded_s:g}; expected seconds above 0", where=name)
    log = found.log if not found.job.ops else None
    if log is not None and log.of:
        raise TraceError("is a log of rates alone; expected step times, of which two can be compared", where=name)
    lost_s = None if clean_s is None else recorded_s - clean_s
    return Side(
        source=name,
        job_id=found.job.job_id,
        verdict=found.verdict,
        recorded_s=recorded_s,
        clean_s=clean_s,
        shape=_shape_of(found.job),
        made_by=found.made_by,
        causes=tuple(_seen(cause, recorded_s, lost_s) for cause in found.causes),
        not_checked={one.cause: one.reason for one in found.not_checked},
        plan=None
        if found.plan is None or not found.plan.steps
        else (tuple(step.cause for step in found.plan.steps), found.plan.predicted_step_time),
        is_log=log is not None,
    )


def _read_json(source: Path | BinaryIO) -> bytes | None:
    """Give the content of a file that holds objects of ours; None for any other, and for one that cannot be read."""
    try:
        if isinstance(source, Path):
            with source.open("rb") as file:
                return _read_json(file) if source.is_file() else None
        data = source.read(MAX_BYTES + 1) if _begins_as_json(source) else b""
        source.seek(0)
    except OSError:
        return None  # the reader of traces says what is wrong with it
    return data if len(data) <= MAX_BYTES and _OURS.search(data) else None


def _begins_as_json(source: BinaryIO) -> bool:
    """Look at the first bytes."""
    begin = source.read(64).removeprefix(b"\xef\xbb\xbf").lstrip()
    source.seek(0)
    return begin[:1] in (b"{", b"[")


def _parse(text: str, name: str) -> list[Any]:
    """Read one JSON value, or one a line."""
    try:
        found = json.loads(text, parse_float=_finite, parse_constant=_finite)
    except (ValueError, RecursionError):
        return [_parse_line(line, f"{name}:{n}") for n, line in enumerate(text.split("\n"), start=1) if line.strip()]
    return found if isinstance(found, list) else [found]


def _parse_line(line: str, where: str) -> Any:
    """Read one line."""
    try:
        return json.loads(line, parse_float=_finite, parse_constant=_finite)
    except (ValueError, RecursionError):
        message = "it is no JSON, or cut off; expected one diagnosis a line; save it again with --format json"
        raise TraceError(message, where=where) from None


def _finite(text: str) -> float | None:
    """Read a number; one that is larger than any float, or none at all, is null."""
    value = float(text)
    return value if math.isfinite(value) else None


def read_document(entry: dict[str, Any], name: str) -> DiagnosisDocument:
    """Read what `--format json` prints, and say what is wrong with anything else.

    Raises
    ------
    TraceError
        Something is missing, or of a wrong type.
    """
    try:
        return msgspec.convert(entry, DiagnosisDocument)
    except UnicodeEncodeError:
        what = "a text in it is no text (half of a surrogate pair)"
        raise TraceError(f"{what}; save it again with --format json", where=name) from None
    except msgspec.ValidationError as error:
        said, _, at = str(error).partition(" - at ")
        steps: list[str | int] = [key or int(n) for key, n in _STEP.findall(at)]
        if absent := re.match("Object missing required field `(.+)`", said):
            steps.append("job" if not at and "job" not in entry else absent[1])  # of several, what a diagnosis is of
    expected = _describe_expected(said, entry, steps)
    if isinstance(steps[-1] if steps else None, int) and expected in _PLURAL:
        expected = f"a list of {_PLURAL[expected]}"
        steps.pop()
    found = _look_up(entry, steps)
    path = "".join(f"[{step}]" if isinstance(step, int) else f".{step}" for step in steps).lstrip(".")
    what = "missing" if found is None else json.dumps(found)[:40]
    raise TraceError(
        f"{path or 'the diagnosis'} is {what}; expected {expected}; save it again with --format json", where=name
    )


def _describe_expected(said: str, entry: dict[str, Any], steps: list[str | int]) -> str:
    """Say what should stand at a place, by what the validator said of it."""
    if steps and steps[-1] in _CHOICES:
        return " or ".join(get_args(_CHOICES[steps[-1]]))
    if said.startswith("Object missing"):
        # The validator does not say what is missing: it does of null in its place.
        *before, key = steps
        _look_up(entry, before)[key] = None
        try:
            msgspec.convert(entry, DiagnosisDocument)
        except msgspec.ValidationError as error:
            said = str(error)
    if pattern := re.search(r"matching regex '\^(.+)\$'", said):
        return pattern[1]
    kind = re.search("[Ee]xpected `(\\w+)", said)
    return _KINDS.get(kind[1], kind[1]) if kind else "a number" if "range" in said else "a value"


def _look_up(found: Any, steps: list[str | int]) -> Any:
    """Give what stands at a place; None where there is nothing."""
    for step in steps:
        if isinstance(found, dict):
            found = found.get(str(step))
        elif isinstance(found, list) and isinstance(step, int):
            found = found[step]
    return found


def _shape_of(job: JobFacts) -> Shape:
    """Say what a job must have in common with another; a log may not say how it is laid out."""
    return Shape(
        gpus=job.world_size,
        dp=job.dp_size,
        pp=job.pp_size,
        tp=job.tp_size,
        cp=job.cp_size,
        vpp=job.vpp_size,
        n_layers=sum(job.layers_per_stage) if job.layers_per_stage else None,
        gpu_type=job.gpu_type or None,
        framework=job.framework or None,
    )


def _seen(cause: Cause, recorded_s: float, lost_s: float | None) -> Seen:
    """Take of a cause what is compared, its share turned into seconds a step."""
    priced = [(fix.fix, fix.predicted_step_time) for fix in cause.fixes]
    return Seen(
        cause=cause.cause,
        title=cause.title,
        severity=cause.severity,
        who=cause.who or "",
        lost_s=None if cause.share is None or lost_s is None else cause.share * lost_s,
        cost_s=cause.recoverable * recorded_s,
        where=cause.where,
        fingerprint=cause.fingerprint,
        fixes=tuple((fix, predicted) for fix, predicted in priced if predicted is not None),
    )
