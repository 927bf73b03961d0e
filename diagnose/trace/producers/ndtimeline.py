"""Traces of ndtimeline (veScale, and the Megatron-LM it came from): Chrome events a host, or its raw log lines.

Enters: `trace_step{a}_{b}` files, or logs with `metric_name: .., recent_elapsed_raw_parts: [..] ..` lines; one, or a folder of all
hosts. Leaves: a `Recording` whose operations carry the names of the trace format, which descends from this one.

Every event is placed by what its `args` say, never by `pid` or `tid`. The format counts no microbatches and no model chunks: the
loader takes the n-th operation of a type in launch order, and chunks from the schedule where metadata give `vpp_size`.
"""

import re
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import msgspec
import numpy as np
from numpy.typing import NDArray

from diagnose.errors import TraceError
from diagnose.model.columns import begins_run
from diagnose.model.optype import BY_NAME, Op
from diagnose.model.recording import Dropped, Recording, Unobserved
from diagnose.model.trace import Ints
from diagnose.trace.input_files import InputFiles, name_in
from diagnose.trace.logs.lines import read_lines
from diagnose.trace.producers.catalogue import Report
from diagnose.trace.producers.contents import read_json

NAME = "ndtimeline"
TITLE = "veScale or Megatron ndtimeline: Chrome events a host (trace_step*_*), or raw log lines"

#: Files looked at before a folder is taken for something else.
FILES_ASKED = 16
#: Whole numbers beyond this are damage.
MAX_NUMBER = 2**53

#: Names beside those of the trace format, and the operations that each stands for: a batch is all its parts at once.
ALIASES: dict[str, tuple[Op, ...]] = {
    "forward-send-backward-recv": (Op.FORWARD_SEND, Op.BACKWARD_RECV),
    "backward-send-forward-recv": (Op.BACKWARD_SEND, Op.FORWARD_RECV),
    "forward-send-forward-recv": (Op.FORWARD_SEND, Op.FORWARD_RECV),
    "backward-send-backward-recv": (Op.BACKWARD_SEND, Op.BACKWARD_RECV),
    "forward-backward-send-forward-backward-recv": (
        Op.FORWARD_SEND,
        Op.BACKWARD_SEND,
        Op.FORWARD_RECV,
        Op.BACKWARD_RECV,
    ),
    "grad-reduce-scatter": (Op.REDUCE_SCATTER,),
    "grad-all-reduce": (Op.REDUCE_SCATTER,),
    "grads-reduce-scatter-nonoverlapping": (Op.REDUCE_SCATTER,),
    "unshard-all-gather": (Op.ALL_GATHER,),
    "params-all-gather-nonoverlapping": (Op.ALL_GATHER,),
}
MEANINGS: dict[str, tuple[Op, ...]] = {name: (op,) for name, op in BY_NAME.items()} | ALIASES
#: Parts of the optimizer: used where there is no `optimizer` that holds them.
OPTIMIZER_PARTS = ("optimizer-inner-step", "optimizer-copy-to-main-grad", "optimizer-copy-main-to-model-params")
#: Other parts of it begin so, and are left out. All other names are types that the format does not name.
OPTIMIZER_PART = "optimizer-"

_ARGS = re.compile(rb'"args"\s*:\s*\{([^{}]*)\}')
_KEYS = (b'"rank"', b'"step"', b'"tp"', b'"pp"')
_RAW = re.compile(rb"metric_name: [^,\n]{1,200}, elapsed: [^,\n]{1,60}, recent_elapsed_raw_parts: \[")
_LINE = re.compile(
    rb"metric_name: (?P<metric>[^,]{1,200}), elapsed: [^,]{1,60}, recent_elapsed_raw_parts: \[(?P<elapsed>[^\]]*)\], "
    rb"recent_since_start_raw_parts: \[(?P<start>[^\]]*)\], tags: \[(?P<tags>.*)\], "
    rb"step_range: range\((?P<low>\d{1,15}), (?P<high>\d{1,15})\), world_info: WorldInfo: TopoInfo\((?P<topo>[^)]*)\)"
)
_STEP = re.compile(rb"'_inner_global_step': (\d{1,15})\b")
_FIELD = re.compile(rb"(\w+)=(?:(\d{1,15})\b|'([^']{0,253})')")
_PLACE = (b"rank", b"dp_rank", b"tp_rank", b"pp_rank")
_SIZES = (b"dp_size", b"tp_size", b"pp_size", b"world_size")


class _Args(msgspec.Struct):
    """What an event is about."""

    rank: int | None = None
    step: int | None = None
    tp: int | None = None
    pp: int | None = None


class _Event(msgspec.Struct):
    """One event of a Chrome list; microseconds."""

    name: str = ""
    ph: str = ""
    ts: float | None = None
    dur: float | None = None
    args: _Args | None = None


class _Found:
    """Columns that grow: one entry an operation as the producer names it."""

    def __init__(self) -> None:
        self.names: dict[str, int] = {}
        self.hosts: dict[str, int] = {}
        self.columns: dict[str, list[NDArray[np.float64]]] = {
            column: [] for column in ("name", "step", "rank", "dp", "tp", "pp", "host", "start", "duration")
        }
        self.broken: Counter[str] = Counter()
        self.sizes: dict[str, int] = {}

    def add(self, **columns: NDArray[np.float64]) -> None:
        """Add operations; all columns have the same length."""
        for column, values in columns.items():
            self.columns[column].append(values)

    def take(self, column: str) -> NDArray[np.float64]:
        """Give a whole column."""
        parts = self.columns[column]
        return np.concatenate(parts) if parts else np.zeros(0)


def recognise(inputs: InputFiles) -> bool:
    """Say whether one of the first files holds events with rank, step, tp and pp, or raw log lines."""
    return any(_is_events(head) or bool(_RAW.search(head)) for head in map(inputs.head, inputs.files[:FILES_ASKED]))


def read(inputs: InputFiles, *, name: str, report: Report) -> Recording:
    """Read all files of one job, of which one must hold an operation."""
    found = _Found()
    for n, file in enumerate(inputs.files):
        report(f"file {n + 1} of {len(inputs.files)}")
        head = inputs.head(file)
        where = name_in(inputs.path, file, name)
        if _is_events(head):
            has_folder = inputs.is_folder and file.parent != inputs.path  # of its host
            _read_events(file, file.parent.name if has_folder else "", where, found)
        elif _RAW.search(head):
            _read_log(file, where, found)
        else:
            found.broken["files that hold neither events nor raw lines"] += 1
    if not found.columns["start"]:
        raise TraceError(
            "holds no whole event; expected ndtimeline events with rank, step, tp and pp: check that the job flushed its timers",
            where=name,
        )
    return _record(found)


def _is_events(head: bytes) -> bool:
    """Say whether a file begins with a list of events placed as ndtimeline does."""
    if head.lstrip()[:1] != b"[":
        return False
    return any(all(key in args for key in _KEYS) for args in _ARGS.findall(head)[:64])


def _read_events(file: Path, host: str, where: str, found: _Found) -> None:
    """Read the Chrome events of one file."""
    events = read_json(file, list[_Event], name=where, expected="a whole list of events")
    code = found.hosts.setdefault(host, len(found.hosts)) if host else -1
    columns: dict[str, list[float]] = {key: [] for key in ("name", "step", "rank", "tp", "pp", "start", "duration")}
    for event in events:
        if event.ph != "X":
            continue
        args = event.args
        numbers = (args.step, args.rank, args.tp, args.pp) if args else (None,)
        if event.ts is None or event.dur is None or not all(n is not None and 0 <= n < MAX_NUMBER for n in numbers):
            found.broken["events without time, rank, step, tp or pp"] += 1
            continue
        values = (found.names.setdefault(event.name, len(found.names)), *numbers, event.ts / 1e6, event.dur / 1e6)
        for column, value in zip(columns.values(), values, strict=True):
            column.append(float(value or 0.0))
    arrays = {key: np.array(values) for key, values in columns.items()}
    n_events = len(columns["start"])
    if n_events:
        found.add(**arrays, dp=np.full(n_events, -1.0), host=np.full(n_events, float(code)))


def _read_log(file: Path, where: str, found: _Found) -> None:
    """Read the raw lines of one log."""
    for line in read_lines(file, name=where):
        begun = line.count(b"metric_name: ")
        if not begun or b"recent_elapsed_raw_parts: [" not in line:
            continue
        # Where two ranks wrote into one line, only the last can be whole.
        match = _LINE.match(line, line.rindex(b"metric_name: "))
        whole = match is not None and _add_line(match, found)
        if begun > whole:
            found.broken["raw lines that are cut off or mixed with others"] += begun - whole


def _add_line(match: re.Match[bytes], found: _Found) -> bool:
    """Add the operations of one raw line; False where the line contradicts itself."""
    try:
        duration = np.array([float(part) for part in match["elapsed"].split(b",") if part.strip()])
        start = np.array([float(part) for part in match["start"].split(b",") if part.strip()])
    except ValueError:
        return False
    if len(start) != len(duration):
        return False
    if not len(start):
        return True
    fields = {key: value for key, *value in _FIELD.findall(match["topo"])}
    if not all(fields.get(key, [b""])[0] for key in _PLACE):
        return False
    rank, dp, tp, pp = (float(fields[key][0]) for key in _PLACE)
    steps = [float(step) for step in _STEP.findall(match["tags"])]
    if not steps:
        low, high = int(match["low"]), int(match["high"])
        if not 0 < high - low <= len(start) or len(start) % (high - low):
            return False
        steps = np.repeat(np.arange(low, high, dtype=np.float64), len(start) // (high - low)).tolist()
    if len(steps) != len(start):
        return False
    host = fields.get(b"ip", [b"", b""])[1].decode("utf-8", "replace")
    code = found.hosts.setdefault(host, len(found.hosts)) if host and host != "0.0.0.0" else -1  # noqa: S104 - no address: the producer's default
    name = found.names.setdefault(match["metric"].decode("utf-8", "replace"), len(found.names))
    found.sizes |= {key.decode(): int(fields[key][0]) for key in _SIZES if fields.get(key, [b""])[0]}
    same = {"name": name, "rank": rank, "dp": dp, "tp": tp, "pp": pp, "host": code}
    found.add(
        start=start,
        duration=duration,
        step=np.array(steps),
        **{key: np.full(len(start), float(value)) for key, value in same.items()},
    )
    return True


def _record(found: _Found) -> Recording:
    """Turn the producer's names into operations, and account for what is left out."""
    name = found.take("name").astype(np.int64)
    columns = {key: found.take(key).astype(np.int64) for key in ("step", "rank", "dp", "tp", "pp", "host")}
    start_s, duration_s = found.take("start"), found.take("duration")
    names = list(found.names)
    merged = _join_optimizer(names, name, columns, start_s, duration_s)
    pick, op, other, dropped = _pick_operations(names, name, OPTIMIZER_PARTS if merged is not None else ())
    dropped += [Dropped(what, n, "damaged") for what, n in found.broken.items()]
    start, duration = start_s[pick], duration_s[pick]
    if merged is not None:
        pick, start, duration = (
            np.r_[values, more] for values, more in zip((pick, start, duration), merged, strict=True)
        )
        op = np.r_[op, np.full(len(merged[0]), int(Op.OPTIMIZER), dtype=np.int8)]
        other = np.r_[other, np.full(len(merged[0]), -1)]
    finite = start[np.isfinite(start)]
    dp, warnings = _dp_ranks(columns)
    return Recording(
        producer=NAME,
        op=op,
        other=other,
        other_types=tuple(names),
        step=columns["step"][pick],
        dp=dp[pick],
        stage=columns["pp"][pick],
        start_s=start - (float(np.floor(finite.min())) if len(finite) else 0.0),
        duration_s=duration,
        rank=columns["rank"][pick],
        tp_rank=columns["tp"][pick],
        host=columns["host"][pick] if found.hosts else None,
        host_names=tuple(found.hosts),
        job=dict(found.sizes) | {"framework": "veScale"},
        dropped=tuple(dropped),
        unobserved=(
            Unobserved(
                "microbatches and model chunks",
                "ndtimeline counts neither; the n-th operation of a type on a worker is taken for the n-th microbatch, and chunks "
                "follow the interleaved schedule where metadata give vpp_size",
            ),
        ),
        warnings=warnings,
    )


def _pick_operations(
    names: list[str], name: Ints, known: Sequence[str]
) -> tuple[Ints, NDArray[np.int8], Ints, list[Dropped]]:
    """Give the row and the type of each operation that the names stand for, or which other name it has, and the names left out.

    The names `known` stand for operations that are told otherwise.
    """
    picks, ops, dropped = [np.zeros(0, dtype=np.int64)], [np.zeros(0, dtype=np.int8)], []
    others = [np.zeros(0, dtype=np.int64)]
    for code, text in enumerate(names):
        rows, is_part = np.flatnonzero(name == code), text.startswith(OPTIMIZER_PART)
        if text not in MEANINGS and is_part:
            dropped += [] if text in known else [Dropped(text, len(rows), "part of the optimizer")]
            continue
        for op in MEANINGS.get(text, (-1,)):
            picks.append(rows)
            ops.append(np.full(len(rows), int(op), dtype=np.int8))
            others.append(np.full(len(rows), code if op < 0 else -1))
    return np.concatenate(picks), np.concatenate(ops), np.concatenate(others), dropped


def _join_optimizer(
    names: list[str],
    name: Ints,
    columns: dict[str, Ints],
    start_s: NDArray[np.float64],
    duration_s: NDArray[np.float64],
) -> tuple[Ints, NDArray[np.float64], NDArray[np.float64]] | None:
    """Make one optimizer of its parts on each rank and step: a row of it, start and duration; None where it is recorded itself."""
    parts = np.flatnonzero(np.isin(name, [names.index(part) for part in OPTIMIZER_PARTS if part in names]))
    if "optimizer" in names or not len(parts):
        return None
    order = parts[np.lexsort((columns["step"][parts], columns["rank"][parts]))]
    rank, step = columns["rank"][order], columns["step"][order]
    first = np.flatnonzero(begins_run(rank, step))
    start = np.minimum.reduceat(start_s[order], first)
    end = np.maximum.reduceat((start_s + duration_s)[order], first)
    return order[first], start, end - start


def _dp_ranks(columns: dict[str, Ints]) -> tuple[Ints, tuple[str, ...]]:
    """Give every row its dp rank: as said, else the place of its rank among those with the same stage and tensor-parallel rank."""
    dp = columns["dp"].copy()
    unobserved = dp < 0
    if not unobserved.any():
        return dp, ()
    workers, at = np.unique(
        np.stack([columns["pp"], columns["tp"], columns["rank"]])[:, unobserved], axis=1, return_inverse=True
    )
    first = np.flatnonzero(begins_run(*workers[:2]))
    sizes = np.diff(np.r_[first, workers.shape[1]])
    dp[unobserved] = (np.arange(workers.shape[1]) - np.repeat(first, sizes))[at.ravel()]
    if len(set(sizes.tolist())) == 1:
        return dp, ()
    text = f"stages have from {int(sizes.min())} to {int(sizes.max())} data-parallel ranks: files of some hosts are missing"
    return dp, (f"{text}, and dp ranks are counted among those that are there",)
