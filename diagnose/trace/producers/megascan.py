"""Pipeline timelines of MegatronApp (MegaScan, MegaDPP): raw, one file a rank, or aggregated into one Chrome list.

Enters: `benchmark-data-*` files of all ranks, or a list of events of all ranks (B and E pairs, or X). Leaves: a `Recording`. In raw
files each rank counts nanoseconds from where it began the iteration, so that ranks are aligned in each iteration; an iteration
has no number there but its place in the file. Where all tensor-parallel ranks are there, so are their rows.
"""

import dataclasses
import re
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence

import msgspec
import numpy as np

from diagnose.errors import TraceError
from diagnose.model.optype import Op
from diagnose.model.recording import Dropped, Recording, Unobserved
from diagnose.model.trace import Ints
from diagnose.trace.clocks import align
from diagnose.trace.input_files import InputFiles, name_in
from diagnose.trace.producers.absent import find_absent
from diagnose.trace.producers.catalogue import Report
from diagnose.trace.producers.contents import read_json

NAME = "megascan"
TITLE = "MegatronApp: MegaScan files (benchmark-data-*.json), or an aggregated timeline of MegaScan or MegaDPP"

#: What each scope is in a trace; an exchange sends one way and receives the other, in one batch.
MEANINGS: dict[str, tuple[Op, ...]] = {
    "forward": (Op.FORWARD,),
    "forward-warmup": (Op.FORWARD,),
    "backward": (Op.BACKWARD,),
    "backward-cooldown": (Op.BACKWARD,),
    "recv-warmup": (Op.FORWARD_RECV,),
    "recv-extra": (Op.FORWARD_RECV,),
    "recv-forward": (Op.FORWARD_RECV,),
    "send-warmup": (Op.FORWARD_SEND,),
    "send-forward": (Op.FORWARD_SEND,),
    "recv-cooldown": (Op.BACKWARD_RECV,),
    "recv-backward": (Op.BACKWARD_RECV,),
    "send-cooldown": (Op.BACKWARD_SEND,),
    "send-extra": (Op.BACKWARD_SEND,),
    "send-backward": (Op.BACKWARD_SEND,),
    "exchange-next": (Op.FORWARD_SEND, Op.BACKWARD_RECV),
    "exchange-prev": (Op.BACKWARD_SEND, Op.FORWARD_RECV),
    "allreduce": (Op.REDUCE_SCATTER,),
    "optimizer": (Op.OPTIMIZER,),
}
#: What the outermost stages have no peer for.
_FIRST_LACKS = (Op.FORWARD_RECV, Op.BACKWARD_SEND)
_LAST_LACKS = (Op.FORWARD_SEND, Op.BACKWARD_RECV)
#: Scopes within an operation, or that only enclose others.
_INSIDE = "part of the operation that it runs in, or around several"
#: Timelines that an error names.
MAX_NAMED = 3
#: Numbers beyond this are damage: iterations, microbatches, chunks, ranks.
MAX_NUMBER = 10**9
#: A wall-clock time beyond this (nanoseconds; a third of a year) is damage.
MAX_WALL_NS = 1e16
_RAW = re.compile(rb'"(?:rel_ts|pad_before)"\s*:')
_PLACE = re.compile(rb'"(?:pp_rk|g_rk)"\s*:')
_EVENT = re.compile(
    rb'"name"\s*:\s*"(?:iteration begin|forward|backward|forward-warmup)"[^{}]{0,400}"args"\s*:\s*\{[^{}]*"iteration"\s*:'
)


class _Numbers(msgspec.Struct):
    """Which operation of which rank an event is about."""

    iteration: int | None = None
    microbatch: int | None = None
    micro_batch_index: int | None = None
    model_chunk: int | None = None
    dp_rk: int | None = None
    pp_rk: int | None = None
    tp_rk: int | None = None
    g_rk: int | None = None


class _Args(_Numbers):
    """What an aggregated event says of itself; older ones say it at their end only."""

    pp_rank: int | None = None


class _Event(_Numbers):
    """An event of either form: `ts` and `dur` in microseconds, `rel_ts` in nanoseconds since its iteration began."""

    name: str = ""
    ph: str = ""
    ts: float | None = None
    dur: float | None = None
    pid: int | str | None = None
    tid: int | str | None = None
    args: _Args | None = None
    rel_ts: float | None = None
    pad_before: float | None = None
    duration_wall: float | None = None


class _Scope(msgspec.Struct):
    """One operation as it was recorded; times in seconds, unknown numbers None."""

    name: str
    start_s: float
    end_s: float
    iteration: int
    dp: int | None
    pp: int | None
    tp: int | None
    rank: int | None
    microbatch: int | None
    chunk: int | None


def recognise(inputs: InputFiles) -> bool:
    """Say whether any of the files begins as a list of such events."""
    return any(_form(inputs.head(file)) is not None for file in inputs.files)


def read(inputs: InputFiles, *, name: str, report: Report) -> Recording:
    """Read all ranks: raw files, or one aggregated timeline of all."""
    forms = {file: _form(inputs.head(file)) for file in inputs.files}
    raw = [file for file in inputs.files if forms[file] == "raw"]
    lists = [file for file in inputs.files if forms[file] == "aggregated"]
    if len(lists) > 1 or (lists and raw):
        shown = "; ".join(file.relative_to(inputs.path).as_posix() for file in lists[:MAX_NAMED])
        more = "" if len(lists) <= MAX_NAMED else f"; and {len(lists) - MAX_NAMED} more"
        raise TraceError(
            f"has {len(lists)} aggregated timelines and {len(raw)} raw files; expected one timeline, or the raw files of all "
            f"ranks: name one file, or put each timeline into a folder of its own: {shown}{more}",
            where=name,
        )
    left_out: Counter[str] = Counter()
    scopes: list[_Scope] = []
    for n, file in enumerate(raw or lists, start=1):
        report(f"file {n} of {len(raw or lists)}")
        where = name_in(inputs.path, file, name)
        events = read_json(file, list[_Event], name=where, expected="a list of events of MegaScan or MegaDPP")
        scopes += _raw_scopes(events, left_out) if raw else _listed_scopes(events, left_out)
    if not scopes:
        raise TraceError("has no whole operation; expected pairs of B and E with an iteration", where=name)
    others = len(inputs.files) - len(raw or lists)
    dropped = [Dropped(what, n, _INSIDE) for what, n in sorted(left_out.items())]
    if others:
        dropped.append(Dropped("files", others, "hold no timeline of MegatronApp"))
    recording, per_rank = _record(scopes, dropped, is_raw=bool(raw))
    recording = dataclasses.replace(recording, unobserved=(*recording.unobserved, *find_absent(recording)))
    if not per_rank or not len(recording):
        return recording
    _, at = np.unique(recording.step, return_inverse=True)
    begun_s = np.full(int(at.max()) + 1, np.inf)
    np.minimum.at(begun_s, at, recording.start_s)
    aligned = align(recording, "rank", per_step=True)
    return dataclasses.replace(aligned, start_s=aligned.start_s + begun_s[at])


def _form(head: bytes) -> str | None:
    """Say whether a file begins as raw records, or as an aggregated timeline."""
    if head.lstrip()[:1] != b"[":
        return None
    if _RAW.search(head) and _PLACE.search(head):
        return "raw"
    return "aggregated" if _EVENT.search(head) else None


def _raw_scopes(events: Sequence[_Event], left_out: Counter[str]) -> Iterator[_Scope]:
    """Pair the records of one rank; between iterations lies what the wall clock says."""
    origin_s, iteration, duration_s = 0.0, -1, 0.0
    open_at: dict[str, list[float]] = defaultdict(list)
    for event in events:
        if event.name == "iteration" and event.ph == "B":
            origin_s += duration_s + _seconds(event.pad_before)
            iteration = event.iteration if event.iteration is not None else iteration + 1
            duration_s = 0.0
            open_at.clear()
        elif event.name == "iteration" and event.ph == "E":
            duration_s = _seconds(event.duration_wall)
        elif event.rel_ts is None or iteration < 0:
            left_out["records without a time or an iteration"] += 1
        elif event.ph == "B":
            open_at[event.name].append(origin_s + event.rel_ts * 1e-9)
        elif event.ph == "E" and open_at[event.name]:
            yield _Scope(
                event.name,
                open_at[event.name].pop(),
                origin_s + event.rel_ts * 1e-9,
                iteration,
                event.dp_rk,
                event.pp_rk,
                event.tp_rk,
                event.g_rk,
                event.micro_batch_index if event.microbatch is None else event.microbatch,
                event.model_chunk,
            )
        elif event.ph == "E":
            left_out["ends without a beginning"] += 1


def _seconds(nanoseconds: float | None) -> float:
    """Turn a duration of the wall clock into seconds; 0 where there is none, or none that can be."""
    return nanoseconds * 1e-9 if nanoseconds is not None and 0.0 <= nanoseconds < MAX_WALL_NS else 0.0


def _listed_scopes(events: Sequence[_Event], left_out: Counter[str]) -> Iterator[_Scope]:
    """Pair the events of an aggregated timeline, each process by itself."""
    open_at: dict[tuple[object, object, str], list[_Event]] = defaultdict(list)
    for event in events:
        place = (event.pid, event.tid, event.name)
        if event.ph == "M":
            continue
        if event.ts is None:
            left_out["events without a time"] += 1
        elif event.ph == "B":
            open_at[place].append(event)
        elif event.ph == "X" and event.dur is not None:
            yield from _listed_scope(event, event, event.ts + event.dur, left_out)
        elif event.ph == "E" and open_at[place]:
            yield from _listed_scope(open_at[place].pop(), event, event.ts, left_out)
        else:
            left_out["instants" if event.ph == "i" else "ends without a beginning"] += 1


def _listed_scope(begin: _Event, end: _Event, end_us: float, left_out: Counter[str]) -> Iterator[_Scope]:
    """Join the two ends of an operation; what one does not say the other may."""
    assert begin.ts is not None

    def said(key: str) -> int | None:
        values = (getattr(event.args, key) for event in (end, begin) if event.args is not None)
        return next((value for value in values if value is not None), None)

    iteration = said("iteration")
    if iteration is None:
        left_out["operations without an iteration"] += 1
        return
    pid = begin.pid if isinstance(begin.pid, int) else None
    rank = pid if said("g_rk") is None else said("g_rk")
    stage = next((place for place in (said("pp_rk"), said("pp_rank")) if place is not None), pid)
    microbatch = said("micro_batch_index") if said("microbatch") is None else said("microbatch")
    yield _Scope(
        begin.name,
        begin.ts * 1e-6,
        end_us * 1e-6,
        iteration,
        said("dp_rk"),
        stage,
        said("tp_rk"),
        rank,
        microbatch,
        said("model_chunk"),
    )


def _record(scopes: Sequence[_Scope], dropped: list[Dropped], *, is_raw: bool) -> tuple[Recording, bool]:
    """Turn scopes into operations; and say whether each rank has a clock of its own."""
    kept: list[tuple[Op, _Scope]] = []
    others: list[_Scope] = []
    broken = 0
    for scope in scopes:
        numbers = (scope.iteration, scope.dp, scope.pp, scope.tp, scope.rank, scope.microbatch, scope.chunk)
        if scope.pp is None or not all(n is None or 0 <= n <= MAX_NUMBER for n in numbers):
            broken += 1
        elif scope.name not in MEANINGS:
            others.append(scope)
        else:
            kept += [(op, scope) for op in MEANINGS[scope.name]]
    if broken:
        dropped = [*dropped, Dropped("operations", broken, "have no place in the pipeline, or numbers that cannot be")]
    stages = sorted({scope.pp for _, scope in kept if scope.pp is not None})
    chunked = max((scope.chunk or 0 for _, scope in kept), default=0) > 0
    if not chunked and stages:
        # The first stage receives nothing, and the last sends nothing; their scopes are empty.
        first, last = stages[0], stages[-1]
        kept = [
            (op, scope)
            for op, scope in kept
            if not (scope.pp == first and op in _FIRST_LACKS) and not (scope.pp == last and op in _LAST_LACKS)
        ]

    def column(values: Iterator[int | None]) -> Ints:
        return np.array([-1 if value is None else value for value in values], dtype=np.int64)

    found = [*(scope for _, scope in kept), *others]
    types = {name: n for n, name in enumerate(dict.fromkeys(scope.name for scope in others))}
    tp = column(scope.tp for scope in found)
    start_s = np.array([scope.start_s for scope in found], dtype=np.float64)
    recording = Recording(
        producer=NAME,
        op=np.array([int(op) for op, _ in kept] + [-1] * len(others), dtype=np.int8),
        other=np.array([-1] * len(kept) + [types[scope.name] for scope in others], dtype=np.int64),
        other_types=tuple(types),
        step=column(scope.iteration for scope in found),
        dp=np.maximum(column(scope.dp for scope in found), 0),
        stage=column(scope.pp for scope in found),
        start_s=start_s,
        duration_s=np.array([scope.end_s for scope in found], dtype=np.float64) - start_s,
        microbatch=column(scope.microbatch for scope in found),
        chunk=column(scope.chunk for scope in found) if chunked else None,
        rank=column(scope.rank for scope in found),
        tp_rank=tp if (tp >= 0).all() else None,
        job={"framework": "MegatronApp"},
        dropped=tuple(dropped),
        unobserved=_list_unobserved(kept, is_raw=is_raw),
    )
    return recording, is_raw or bool((tp >= 0).any())


def _list_unobserved(kept: Sequence[tuple[Op, _Scope]], *, is_raw: bool) -> tuple[Unobserved, ...]:
    """Say what these files lack."""
    ops = {op for op, _ in kept}
    found = []
    if Op.REDUCE_SCATTER not in ops:
        found.append(Unobserved("collectives", "no allreduce is in the files", ("communication-in-flight",)))
    else:
        found.append(Unobserved("when gradients are reduced", "the scope of the allreduce is after the last backward"))
    if is_raw:
        found.append(Unobserved("iterations", "records have no number; iterations are counted from 0"))
    return tuple(found)
