"""Read saved diagnoses, recognised by their content, and take from them what a comparison needs.

Enters: a file, or bytes, that may hold what `diagnose --format json` prints, for one job or several. Leaves: `Side`s. All doubts
about saved diagnoses are settled here.
"""

import json
import math
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any, BinaryIO

from diagnose.errors import TraceError, UsageError
from diagnose.model.comparison import Seen, Shape, Side
from diagnose.model.diagnosis import SCHEMA, MadeBy, Where, Worker

#: A larger file is no list of diagnoses.
MAX_BYTES = 256 * 1024 * 1024
#: Jobs named when it is not clear which is meant.
_MAX_NAMED = 5
_CAUSE_ID = "[a-z0-9]+(-[a-z0-9]+)*"
_OURS = re.compile(rb'"schema"\s*:\s*"diagnose[/-]')


def read_saved(source: str | Path | BinaryIO, name: str) -> list[dict[str, Any]] | None:
    """Read all diagnoses of a file.

    Parameters
    ----------
    source : path, or open binary file that can seek
    name : str
        How errors call it.

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
        if kind != SCHEMA:
            place = f"entry {n}: " if len(found) > 1 else ""
            raise TraceError(f"{place}it is {kind!r}, not {SCHEMA!r}; expected what --format json prints", where=name)
    return found


def choose(found: Sequence[dict[str, Any]], name: str, job: str | None) -> Side:
    """Take the diagnosis of one job.

    Parameters
    ----------
    found : sequence of dict
        At least one.
    name : str
        How errors call the file.
    job : str, optional
        Id of the job; must be given where there are several.

    Raises
    ------
    UsageError
        There is no such job, or it is not clear which one is meant.
    TraceError
        The diagnosis lacks what a comparison needs.
    """
    ids = [job_id_of(entry) for entry in found]
    wanted = [entry for entry, job_id in zip(found, ids, strict=True) if job is None or job_id == job]
    if len(wanted) == 1:
        return read_side(wanted[0], name)
    named = ", ".join(repr(job_id) for job_id in ids[:_MAX_NAMED])
    named += f" and {len(ids) - _MAX_NAMED} more" if len(ids) > _MAX_NAMED else ""
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
    top = _Node(entry, name, "")
    job, times, made = top.node("job"), top.node("step_time"), top.node("made_by")
    recorded_s, clean_s = times.number("recorded"), times.known("clean")
    if recorded_s <= 0:
        raise TraceError(f"step_time.recorded is {recorded_s:g}; expected seconds above 0", where=name)
    lost_s = None if clean_s is None else recorded_s - clean_s
    return Side(
        source=name,
        job_id=job.text("job_id"),
        verdict=top.word("verdict", "healthy|straggling|inconclusive"),
        recorded_s=recorded_s,
        clean_s=clean_s,
        shape=_read_shape(job),
        made_by=MadeBy(made.text("version"), made.text("rules"), made.text("classifier") or None),
        causes=tuple(_read_cause(cause, recorded_s, lost_s) for cause in top.nodes("causes")),
        not_checked={one.text("cause"): one.text("reason") for one in top.nodes("not_checked")},
        plan=_read_plan(top.maybe("plan")),
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
        found = json.loads(text)
    except (ValueError, RecursionError):
        return [_parse_line(line, f"{name}:{n}") for n, line in enumerate(text.split("\n"), start=1) if line.strip()]
    return found if isinstance(found, list) else [found]


def _parse_line(line: str, where: str) -> Any:
    """Read one line."""
    try:
        return json.loads(line)
    except (ValueError, RecursionError):
        message = "it is no JSON, or cut off; expected one diagnosis a line; save it again with --format json"
        raise TraceError(message, where=where) from None


class _Node:
    """An object of a diagnosis, and where it stands: gives what it holds, or says what is wrong."""

    def __init__(self, found: Any, name: str, path: str) -> None:
        self._name, self._path = name, path
        if not isinstance(found, dict):
            self.refuse("", found, "an object")
        self._found: dict[str, Any] = found

    def node(self, key: str) -> "_Node":
        """Give an object."""
        return _Node(self._found.get(key), self._name, f"{self._path}{key}.")

    def maybe(self, key: str) -> "_Node | None":
        """Give an object, or None where there is none."""
        return None if self._found.get(key) is None else self.node(key)

    def nodes(self, key: str) -> list["_Node"]:
        """Give a list of objects; empty where there is none."""
        return [_Node(one, self._name, f"{self._path}{key}[{n}].") for n, one in enumerate(self.items(key))]

    def items(self, key: str) -> list[Any]:
        """Give a list; empty where there is none."""
        found = self._found.get(key)
        if found is not None and not isinstance(found, list):
            self.refuse(key, found, "a list")
        return found or []

    def texts(self, key: str) -> tuple[str, ...]:
        """Give a list of texts."""
        found = self.items(key)
        if not all(isinstance(one, str) for one in found):
            self.refuse(key, found, "a list of texts")
        return tuple(found)

    def text(self, key: str) -> str:
        """Give a text; empty where there is none."""
        found = self._found.get(key)
        if found is not None and not isinstance(found, str):
            self.refuse(key, found, "a text")
        return found or ""

    def word(self, key: str, pattern: str) -> str:
        """Give a text of a certain form."""
        found = self.text(key)
        if not re.fullmatch(pattern, found):
            self.refuse(key, self._found.get(key), pattern.replace("|", " or "))
        return found

    def known(self, key: str) -> float | None:
        """Give a finite number, or None where it is not known."""
        return None if self._found.get(key) is None else self.number(key)

    def number(self, key: str) -> float:
        """Give a finite number."""
        found = self._found.get(key)
        is_number = isinstance(found, int | float) and not isinstance(found, bool)
        try:
            value = float(found) if is_number and found is not None else math.nan
        except OverflowError:
            value = math.nan
        if not math.isfinite(value):
            self.refuse(key, found, "a number")
        return value

    def integer(self, key: str) -> int:
        """Give a whole number."""
        value = self.number(key)
        if value != int(value):
            self.refuse(key, value, "a whole number")
        return int(value)

    def refuse(self, key: str, found: Any, expected: str) -> None:
        """Say what is wrong."""
        path = f"{self._path}{key}".rstrip(".") or "the diagnosis"
        what = "missing" if found is None else json.dumps(found)[:40]
        raise TraceError(f"{path} is {what}; expected {expected}; save it again with --format json", where=self._name)


def _read_shape(job: _Node) -> Shape:
    """Read what a job must have in common with another."""
    layers = job.items("layers_per_stage")
    known = layers and all(isinstance(n, int) for n in layers)
    return Shape(
        gpus=job.integer("world_size"),
        dp=job.integer("dp_size"),
        pp=job.integer("pp_size"),
        tp=job.integer("tp_size"),
        cp=job.integer("cp_size"),
        vpp=job.integer("vpp_size"),
        n_layers=sum(layers) if known else None,
        gpu_type=job.text("gpu_type") or None,
        framework=job.text("framework") or None,
    )


def _read_cause(cause: _Node, recorded_s: float, lost_s: float | None) -> Seen:
    """Read one cause, its share turned into seconds a step."""
    share, where = cause.known("share"), cause.node("where")
    ends = [(link.node("from"), link.node("to")) for link in where.nodes("links")]
    priced = [(fix.text("fix"), fix.known("predicted_step_time")) for fix in cause.nodes("fixes")]
    return Seen(
        cause=cause.word("cause", _CAUSE_ID),
        title=cause.text("title"),
        severity=cause.word("severity", "low|medium|high|"),
        who=cause.text("who"),
        lost_s=None if share is None or lost_s is None else share * lost_s,
        cost_s=cause.number("recoverable") * recorded_s,
        where=Where(
            workers=tuple(_read_worker(worker) for worker in where.nodes("workers")),
            stages=tuple(_read_stages(where)),
            hosts=where.texts("hosts"),
            links=tuple((_read_worker(a), _read_worker(b)) for a, b in ends),
        ),
        fingerprint=cause.text("fingerprint"),
        fixes=tuple((fix, predicted) for fix, predicted in priced if predicted is not None),
    )


def _read_worker(node: _Node) -> Worker:
    """Read one worker."""
    rank, tp, cp = (None if node.known(key) is None else node.integer(key) for key in ("rank", "tp", "cp"))
    return Worker(node.integer("dp"), node.integer("pp"), rank, node.text("host") or None, tp, cp)


def _read_stages(where: _Node) -> list[int]:
    """Read the stages of a place."""
    found = where.items("stages")
    if not all(isinstance(stage, int) for stage in found):
        where.refuse("stages", found, "a list of whole numbers")
    return found


def _read_plan(plan: _Node | None) -> tuple[tuple[str, ...], float] | None:
    """Read which causes a plan mends, and what it predicts."""
    if plan is None or not plan.nodes("steps"):
        return None
    return tuple(step.word("cause", _CAUSE_ID) for step in plan.nodes("steps")), plan.number("predicted_step_time")
