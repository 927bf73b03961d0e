"""Keep what matters of the events of one rank, in columns.

Enters: the stream of one file. Leaves: `Collected`: annotations, operators, kernels, launches and communication, by start.
"""

import dataclasses
import enum
from array import array
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from diagnose.errors import TraceError, name_some
from diagnose.model.columns import ColumnTable
from diagnose.model.trace import Ints, Seconds
from diagnose.trace.producers.kineto.annotations import is_fetch, is_save, parse_annotation, parse_step
from diagnose.trace.producers.kineto.events import Args, Event, Stream, read_events

#: Names of events that are remembered, so that each is understood once.
MAX_NAMES = 100_000
#: Process groups of one rank that are remembered.
MAX_GROUPS = 1000
#: Processes that a message names.
MAX_NAMED = 8
#: Beyond these (microseconds) a time is damage: the year 5138, and a third of a year.
MAX_US = 1e17
MAX_DURATION_US = 1e13


class Kind(enum.IntEnum):
    """What an event is to this reader."""

    NOTHING = 0
    ANNOTATION = 1
    OPERATOR = 2
    AUTOGRAD = 3
    EXCHANGE = 4
    KERNEL = 5
    COMMUNICATION = 6
    LAUNCH = 7
    ALLOCATION = 8
    COLLECTION = 9
    GPU_ANNOTATION = 10
    SYNCHRONISATION = 11
    MODULE = 12
    SAVE = 13


_ANNOTATIONS = {"user_annotation"}
_OPERATORS = {"cpu_op", "operator"}
_ON_GPU = {"kernel", "gpu_memcpy", "gpu_memset", "memcpy", "memset", "concurrent_kernel"}
_RUNTIME = {"cuda_runtime", "cuda_driver", "runtime", "hip_runtime", "privateuse1_runtime"}
#: Blocking calls of the allocator.
_ALLOCATIONS = {"cudaMalloc", "cudaFree", "hipMalloc", "hipFree"}
#: How copies from the GPU to the host are called.
_TO_HOST = ("Memcpy DtoH", "Memcpy D2H", "MemcpyDtoH")
#: Calls that wait for the GPU.
_SYNCHRONISATIONS = {f"{who}{what}Synchronize" for who in ("cuda", "hip") for what in ("Stream", "Device", "Event")}
#: How modules are called among the functions of Python.
_MODULE = "nn.Module: "
#: Annotations that old versions file under the operators.
_NAMED = (
    "ProfilerStep#",
    "Optimizer.",
    "DistributedDataParallel.",
    "FullyShardedDataParallel",
    "FSDP::",
)
_AUTOGRAD = ("autograd::engine::evaluate_function", "torch::autograd::")
#: What a kernel or a call of a communication library is called, and the collective it is, in one spelling.
_COLLECTIVES = (
    ("reducescatter", "reduce_scatter"),
    ("allreduce", "all_reduce"),
    ("allgather", "all_gather"),
    ("alltoall", "all_to_all"),
    ("broadcast", "broadcast"),
    ("sendrecv", "send_recv"),
    ("coalesced", "send_recv"),
    ("isend", "send"),
    ("irecv", "recv"),
    ("send", "send"),
    ("recv", "recv"),
    ("reduce", "reduce"),
    ("gather", "gather"),
    ("scatter", "scatter"),
    ("barrier", "barrier"),
)


def name_collective(text: str) -> str:
    """Bring the name of a collective to one spelling; empty where it is none.

    >>> name_collective("ncclDevKernel_AllReduce_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>)")
    'all_reduce'
    >>> name_collective("c10d::_reduce_scatter_base_"), name_collective("gloo:all_gather")
    ('reduce_scatter', 'all_gather')
    """
    plain = text.split("(", 1)[0].lower().replace("_", "")
    return next((name for part, name in _COLLECTIVES if part in plain), "")


class Columns:
    """Spans of one kind as they are found."""

    def __init__(self) -> None:
        self.start = array("d")
        self.end = array("d")
        self.thread = array("q")
        self.key = array("q")

    def add(self, start: float, duration: float, thread: int, key: int) -> None:
        """Add one span."""
        self.start.append(start)
        self.end.append(start + duration)
        self.thread.append(thread)
        self.key.append(key)


@dataclasses.dataclass(frozen=True, slots=True)
class Spans(ColumnTable):
    """Spans of one kind, by start; shape (n,) each."""

    start: Seconds  # microseconds of the file
    end: Seconds
    thread: Ints  # number of the thread, or of the stream
    key: Ints  # number of the name, or what launched it; -1 where unknown

    def ranges(self) -> Iterator[tuple[float, float]]:
        """Give start and end of each."""
        return zip(self.start.tolist(), self.end.tolist(), strict=True)


@dataclasses.dataclass(frozen=True, slots=True)
class Exchange:
    """A call of the communication library, or its kernel."""

    collective: str  # in one spelling: `"all_reduce"`, `"send"`
    start: float  # microseconds of the file
    end: float
    thread: int
    correlation: int  # -1 where unknown
    group: str  # of the process group, as `description`; empty where unknown
    description: str
    seq: int  # count of the collective in its group; -1 where unknown
    by: str  # "kernel", "call" (an operator of c10d) or "work" (an annotation over all of its life, as gloo makes them)


@dataclasses.dataclass(frozen=True, slots=True)
class Collected:
    """What is kept of the events of one file."""

    stream: Stream
    names: tuple[str, ...]
    annotations: Spans
    gpu_annotations: Spans
    operators: Spans
    autograd: Spans
    kernels: Spans
    launches: Spans
    allocations: Spans
    collections: Spans
    saves: Spans
    communication: Spans  # kernels of the communication library, as `kernels`
    synchronisations: Spans
    modules: Spans
    operator_names: tuple[str, ...]  # what keys of operators, of autograd and synchronisations stand for
    exchanges: tuple[Exchange, ...]
    forward_marks: Spans
    groups: tuple[dict[str, str], ...]
    longest_to_host_us: float | None  # of the copies from the GPU; None where no copy at all is recorded
    records_collections: bool
    dropped: Counter[str]


class Collector:
    """Sorts events into kinds as they come."""

    def __init__(self) -> None:
        self.names: dict[str, int] = {}
        self.operator_names: dict[str, int] = {}
        self.kinds: dict[tuple[str | None, str], Kind] = {}
        self.threads: dict[Any, int] = {}
        self.threads_by_text: dict[tuple[str, str], int] = {}
        self.columns = {kind: Columns() for kind in Kind}
        self.marks = Columns()
        self.exchanges: list[Exchange] = []
        self.groups: dict[tuple[str, str], str] = {}
        self.dropped: Counter[str] = Counter()
        self.longest_to_host_us: float | None = None

    def take(self, events: Iterable[Event]) -> None:
        """Sort some events."""
        kinds, columns = self.kinds, self.columns
        for event in events:
            if event.ph != "X":
                if event.ph == "s" and event.name == "fwdbwd" and event.ts is not None and abs(event.ts) < MAX_US:
                    self.marks.add(event.ts, 0.0, self._thread(event), -1)
                continue
            kind = kinds.get((event.cat, event.name))
            if kind is None:
                kind = self._classify(event.cat or "", event.name)
                if len(kinds) > MAX_NAMES:
                    kinds.clear()
                kinds[event.cat, event.name] = kind
            if kind == Kind.NOTHING:
                continue
            start, duration = event.ts, event.dur
            if start is None or duration is None or not (abs(start) < MAX_US and 0 <= duration < MAX_DURATION_US):
                self.dropped["events without a time, or with an absurd one"] += 1
                continue
            args = event.args
            if (
                kind == Kind.OPERATOR
                and args is not None
                and isinstance(args.forward_thread, int)
                and args.forward_thread > 0
            ):
                kind = Kind.AUTOGRAD
            if kind == Kind.KERNEL and event.name.startswith("Memcpy"):
                to_host_us = duration if event.name.startswith(_TO_HOST) else 0.0
                self.longest_to_host_us = max(self.longest_to_host_us or 0.0, to_host_us)
            if kind in (Kind.EXCHANGE, Kind.COMMUNICATION):
                self._exchange(event, start, duration, kind)
            key = -1
            if kind in (Kind.ANNOTATION, Kind.GPU_ANNOTATION, Kind.MODULE):
                key = self.names.setdefault(event.name, len(self.names))
            elif kind in (Kind.OPERATOR, Kind.AUTOGRAD, Kind.SYNCHRONISATION):
                key = self.operator_names.setdefault(event.name, len(self.operator_names))
            elif kind in (Kind.KERNEL, Kind.COMMUNICATION, Kind.LAUNCH) and args is not None:
                key = _whole(args.correlation)
            columns[kind].add(start, duration, self._thread(event), key)

    def _thread(self, event: Event) -> int:
        """Number a thread, which is a number or a string of it."""
        place = (event.pid, event.tid)
        try:
            return self.threads[place]
        except (KeyError, TypeError) as error:  # a new one; or a list, in a damaged file
            text = (str(event.pid), str(event.tid))
            number = self.threads_by_text.setdefault(text, len(self.threads_by_text))
            if isinstance(error, KeyError):
                self.threads[place] = number
            return number

    @staticmethod
    def _classify(category: str, name: str) -> Kind:  # noqa: PLR0911 - one line a kind of event
        """Say what kind of event goes by a name."""
        category = category.lower()
        if category in (*_ANNOTATIONS, "python_function") and is_save(name):
            return Kind.SAVE
        if category in _ANNOTATIONS:
            return Kind.EXCHANGE if _is_work(name) else Kind.ANNOTATION
        if category in _OPERATORS:
            if name.startswith(("c10d::", "record_param_comms", "gloo:", "nccl:")):
                return Kind.EXCHANGE
            if name.startswith(_AUTOGRAD):
                return Kind.AUTOGRAD
            if name.startswith(_NAMED) or is_fetch(name) or any(e.dialect != "phases" for e in parse_annotation(name)):
                return Kind.ANNOTATION
            if name.startswith(("torch.distributed", "torch::distributed")):
                return Kind.NOTHING
            return Kind.OPERATOR
        if category in _ON_GPU:
            return Kind.COMMUNICATION if name.startswith(("nccl", "rccl", "ncclDev")) else Kind.KERNEL
        if category in _RUNTIME:
            if name in _ALLOCATIONS:
                return Kind.ALLOCATION
            if name in _SYNCHRONISATIONS:
                return Kind.SYNCHRONISATION
            return Kind.LAUNCH if any(part in name for part in ("Launch", "Memcpy", "Memset")) else Kind.NOTHING
        if category == "gpu_user_annotation":
            return Kind.NOTHING if _is_work(name) else Kind.GPU_ANNOTATION
        if category == "python_function":
            return Kind.COLLECTION if name == "Python GC" else Kind.MODULE if name.startswith(_MODULE) else Kind.NOTHING
        return Kind.NOTHING

    def _exchange(self, event: Event, start: float, duration: float, kind: Kind) -> None:
        """Keep what a call or kernel of the communication library says."""
        args = event.args or Args()
        said = args.collective if isinstance(args.collective, str) and args.collective else event.name
        collective = name_collective(said) or name_collective(event.name)
        if not collective:
            return
        group = args.group if isinstance(args.group, str) else ""
        description = args.description if isinstance(args.description, str) else ""
        if isinstance(args.ranks, str) and args.ranks and len(self.groups) < MAX_GROUPS:
            self.groups.setdefault((group, description), args.ranks)
        by = "kernel" if kind == Kind.COMMUNICATION else ("work" if _is_work(event.name) else "call")
        self.exchanges.append(
            Exchange(
                collective=collective,
                start=start,
                end=start + duration,
                thread=self._thread(event),
                correlation=_whole(args.correlation),
                group=group,
                description=description,
                seq=_whole(args.seq),
                by=by,
            )
        )

    def list_trainers(self) -> list[str]:
        """List the processes that compute backwards."""
        threads = set(self.columns[Kind.AUTOGRAD].thread)
        return sorted({process for (process, _), number in self.threads_by_text.items() if number in threads})

    def result(self, stream: Stream) -> Collected:
        """Give everything that was kept, by start."""
        spans = {kind: _order(columns) for kind, columns in self.columns.items()}
        if stream.n_unreadable:
            self.dropped["entries that are no events"] += stream.n_unreadable
        return Collected(
            stream=stream,
            names=tuple(self.names),
            annotations=spans[Kind.ANNOTATION],
            gpu_annotations=spans[Kind.GPU_ANNOTATION],
            operators=spans[Kind.OPERATOR],
            autograd=spans[Kind.AUTOGRAD],
            kernels=spans[Kind.KERNEL],
            launches=spans[Kind.LAUNCH],
            allocations=spans[Kind.ALLOCATION],
            collections=spans[Kind.COLLECTION],
            saves=spans[Kind.SAVE],
            communication=spans[Kind.COMMUNICATION],
            synchronisations=spans[Kind.SYNCHRONISATION],
            modules=spans[Kind.MODULE],
            operator_names=tuple(self.operator_names),
            exchanges=tuple(sorted(self.exchanges, key=lambda found: (found.start, -found.end))),
            forward_marks=_order(self.marks),
            groups=tuple({"pg_name": g, "pg_desc": d, "ranks": ranks} for (g, d), ranks in self.groups.items()),
            longest_to_host_us=self.longest_to_host_us,
            records_collections=bool(len(spans[Kind.COLLECTION])),
            dropped=self.dropped,
        )


def collect(path: Path, *, where: str) -> Collected:
    """Read the events of one file.

    Raises
    ------
    TraceError
        It is damaged, or several ranks are merged in it.
    """
    stream, collector = Stream(), Collector()
    for events in read_events(path, stream, where=where):
        collector.take(events)
    if len(trainers := collector.list_trainers()) > 1:
        raise TraceError(
            f"has {len(trainers)} processes that train ({name_some(trainers, MAX_NAMED)}); expected one rank a file: give a folder "
            "with the files that were merged",
            where=where,
        )
    return collector.result(stream)


def list_steps(found: Collected) -> tuple[Ints, Seconds, Seconds, int]:
    """Give number, start and end of each step by start, and the thread that runs them (-1: no step is annotated)."""
    numbers = np.array([-1 if (step := parse_step(name)) is None else step for name in found.names], dtype=np.int64)
    spans = found.annotations
    if not (numbers[spans.key] >= 0).any():
        spans = found.gpu_annotations
    of = numbers[spans.key]
    at = np.flatnonzero(of >= 0)
    _, first = np.unique(of[at], return_index=True)
    at = np.sort(at[first])
    return of[at], spans.start[at], spans.end[at], int(spans.thread[at[0]]) if len(at) else -1


def _is_work(name: str) -> bool:
    """Say whether an annotation spans the life of a collective."""
    return name.startswith(("gloo:", "nccl:", "mpi:", "ucc:", "xccl:"))


def _whole(value: Any) -> int:
    """Read a whole number, which may be a string; -1 where it is none."""
    if isinstance(value, str) and value.isascii() and value.isdigit() and len(value) < 19:
        return int(value)
    return value if isinstance(value, int) and -1 <= value < 1 << 63 else -1


def _order(columns: Columns) -> Spans:
    """Sort spans by start, the longest first where they start together."""
    start, end = np.array(columns.start), np.array(columns.end)
    order = np.lexsort((-end, start))
    thread, key = np.array(columns.thread, dtype=np.int64), np.array(columns.key, dtype=np.int64)
    return Spans(start[order], end[order], thread[order], key[order])
