"""Read one rank: who it is, from the header and the name of its file, and what it did, from its events.

Enters: one file. Leaves: `Rank`. Which place in the job it has is not known here: that takes all ranks.
"""

import dataclasses
import json
import re
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np

from diagnose.errors import TraceError
from diagnose.model.groups import is_described
from diagnose.model.optype import P2P
from diagnose.trace.producers.kineto.collect import collect
from diagnose.trace.producers.kineto.host_time import HostTime
from diagnose.trace.producers.kineto.operations import Operations
from diagnose.trace.producers.kineto.reader import OperationReader

#: How the name of a file gives its rank, the surest first.
_RANK_IN_NAME = (re.compile(r"rank[-_.]?(\d{1,7})"), re.compile(r"(?:worker|device|gpu)[-_.]?(\d{1,7})"))


#: The time in the name that tensorboard_trace_handler gives.
_WRITTEN_AT = re.compile(r"\.\d{10,}(?=\.pt\.trace\.json)")


@dataclasses.dataclass(frozen=True, slots=True)
class ProcessGroup:
    """A process group that the header or a collective names."""

    name: str
    description: str
    ranks: tuple[int, ...]

    @property
    def is_pipeline(self) -> bool:
        """True where its ranks are the stages of a pipeline, of which there are several."""
        return is_described(self.description, "pp") and len(self.ranks) > 1


@dataclasses.dataclass(frozen=True, slots=True)
class Rank:
    """What one file says."""

    where: str
    worker: str  # its name without the time that the profiler's handler adds: one process has a file for each time it was on
    rank: int | None
    rank_from_name: bool
    world: int | None
    host: str
    base_ns: int | None  # to be added to its times; None where the file does not say
    alone: bool  # it says of no other rank, and exchanges nothing with any
    groups: tuple[ProcessGroup, ...]
    dialect: str  # whose annotations name the operations, or "runs": its operators show them
    operations: Operations
    exchanges_with_peers: bool
    expert_group: str | None  # the process group that shares experts; "" where it has no name
    sharded: bool  # parameters are gathered inside forwards and backwards (FSDP)
    on_gpu: bool
    has_gpu: bool | None  # the machine has one; None where the file does not say
    longest_to_host_us: float | None  # of the copies from the GPU; None where no copy is recorded
    host_time: HostTime  # without its gaps
    n_on_host: int  # computes timed by the host though there is a GPU
    records_collections: bool
    steps: tuple[int, ...]
    steps_by: str  # who marks them: "profiler", "updates", "backwards"
    steps_moved: bool  # though the profiler marks them
    gpu_type: str | None
    dropped: Counter[tuple[str, str]]
    warnings: tuple[str, ...]


def read_rank(path: Path, where: str) -> Rank:
    """Read the file of one rank."""
    found = collect(path, where=where)
    header = found.stream.header
    info = _object(header.get("distributedInfo"))
    world = _whole(info.get("world_size"))
    rank = _whole(info.get("rank"))
    from_name = rank is None
    if rank is None:
        rank = _rank_of_name(path.name)
    warnings = []
    if found.stream.truncated:
        warnings.append(f"{where} ends in the middle; what comes before is read")
    groups = _groups(info.get("pg_config"))
    reader = OperationReader(found, in_pipeline=any(group.is_pipeline for group in groups))
    reader.read()
    return Rank(
        where=where,
        worker=_WRITTEN_AT.sub("", where),
        rank=rank,
        rank_from_name=from_name,
        world=world,
        host=_text(header.get("host_name")),
        base_ns=_whole(header.get("baseTimeNanoseconds")),
        alone=(world or 1) < 2 and not found.exchanges and not reader.collectives.parallel,
        groups=(*groups, *_groups(list(found.groups))),
        dialect=reader.dialect,
        operations=Operations.of(reader.made.listed),
        exchanges_with_peers=bool(reader.operators.calls) or any(o.op in P2P for o in reader.made.listed),
        expert_group=reader.collectives.expert_group,
        sharded=reader.collectives.sharded,
        on_gpu=reader.gpu.is_there,
        has_gpu=True
        if reader.gpu.is_there
        else (None if "deviceProperties" not in header else bool(header["deviceProperties"])),
        longest_to_host_us=found.longest_to_host_us,
        host_time=dataclasses.replace(reader.host_time, gaps=(np.zeros(0), np.zeros(0))),
        n_on_host=reader.n_on_host,
        records_collections=found.records_collections,
        steps=tuple(dict.fromkeys(reader.made.numbers.tolist())),
        steps_by=reader.steps.by,
        steps_moved=reader.steps.moved,
        gpu_type=_gpu_type(header.get("deviceProperties")),
        dropped=reader.made.dropped + Counter({(what, "not understood"): n for what, n in found.dropped.items()}),
        warnings=tuple(warnings),
    )


def _rank_of_name(name: str) -> int | None:
    """Read the rank from the name of a file."""
    for pattern in _RANK_IN_NAME:
        found = pattern.findall(name.lower())
        if found:
            return int(found[-1])
    return None


def _groups(value: Any) -> tuple[ProcessGroup, ...]:
    """Read the process groups of the header."""
    value = _decoded(value)
    groups = []
    for entry in value if isinstance(value, list) else ():
        if not isinstance(entry, dict):
            continue
        ranks = _decoded(entry.get("ranks"))
        if isinstance(ranks, list) and all(isinstance(rank, int) for rank in ranks):
            groups.append(ProcessGroup(_text(entry.get("pg_name")), _text(entry.get("pg_desc")), tuple(ranks)))
    return tuple(groups)


def _gpu_type(value: Any) -> str | None:
    """Read the name of the first GPU; old versions write a Python literal instead of JSON."""
    if isinstance(value, str):
        found = re.search(r"'name': '([^']{1,80})'", value)
        return found[1] if found else None
    first = value[0] if isinstance(value, list) and value else None
    return _text(first.get("name")) or None if isinstance(first, dict) else None


def _object(value: Any) -> dict[str, Any]:
    """Read an object, which may be a string with one."""
    value = _decoded(value)
    return value if isinstance(value, dict) else {}


def _decoded(value: Any) -> Any:
    """Decode a string with JSON in it; None where it holds none. What is no string is decoded already."""
    try:
        return json.loads(value) if isinstance(value, str) else value
    except (ValueError, RecursionError):
        return None


def _whole(value: Any) -> int | None:
    """Read a whole number, which may be a string; None where it is none."""
    if isinstance(value, bool):
        return None
    if isinstance(value, str) and value.isascii() and value.isdigit() and len(value) < 20:
        value = int(value)
    if isinstance(value, float) and value.is_integer() and abs(value) < 1 << 63:
        value = int(value)
    return value if isinstance(value, int) and 0 <= value < 1 << 63 else None


def _text(value: Any) -> str:
    """Read a short text."""
    return value[:200] if isinstance(value, str) else ""


def read_rank_safely(path: Path, where: str) -> Rank | TraceError:
    """Read the file of one rank in another process: an error comes back as a value, whole."""
    try:
        return read_rank(path, where)
    except TraceError as error:
        return error
