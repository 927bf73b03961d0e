"""NCCL Inspector, a profiler plugin of NCCL (2.28 and later) and RCCL: JSON Lines, one file a process, one line an operation.

A line has `header` (`id` of the communicator, `rank` in it, `n_ranks`, `nnodes`, newer `comm_name`), `metadata` (`hostname`,
`pid`, `dump_timestamp_us`) and one of `coll_perf` or `p2p_perf`, with times in microseconds: `coll_exec_time_us` of the kernel,
others' lateness included; with NCCL_INSPECTOR_DUMP_VERBOSE also `event_trace_ts`. From version 4.3 on `header` and `metadata`
stand once, in a line with `dump_stats`, for the lines behind it. Only operations that are over are there. The world rank is not:
processes are told by host and process id, and have the rank that they have in a communicator of all of them, where there is one.

Source: NVIDIA/nccl, plugins/profiler/inspector (before 2.29 ext-profiler/inspector): README.md, inspector_json.cc,
inspector_json_reader.py; ROCm/rccl, ext-profiler/inspector/inspector.cc.
"""

import dataclasses
import re
import zlib
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from diagnose.errors import TraceError
from diagnose.model.collectives import NONE, Collectives, Communicator
from diagnose.trace.collectives.gathered import Names, RankRows, gather, name_communicator
from diagnose.trace.input_files import InputFiles, name_in, open_unpacked

NAME = "NCCL Inspector"
_MARK = re.compile(rb'\A\s*\{\s*"(?:header|metadata|coll_perf|p2p_perf|dump_stats)"\s*:')
_KEYS = re.compile(rb'"(?:coll_perf|p2p_perf|dump_stats)"\s*:')
#: Operations of all files that are kept, the last of each; and bytes of a file that are read, its last.
MAX_ROWS = 6_000_000
MAX_BYTES = 512 << 20
#: A line longer than this is none of Inspector's: a verbose one has a kernel event a channel, 64 at most.
_MAX_LINE = 1 << 16
_MAX_NAME = 256
_MAX_NUMBER = 1 << 62
#: communicator, kind, number, peer, whether it sends, size, content, called_s, duration_s
_Row = tuple[int, int, int, int, bool, int, int, float, float]


class _Header(msgspec.Struct):
    id: str | int
    rank: int
    n_ranks: int
    comm_name: str = ""


class _Metadata(msgspec.Struct):
    hostname: str = ""
    pid: int = 0
    dump_timestamp_us: int = 0


class _Times(msgspec.Struct):
    coll_start_ts: int = 0
    p2p_start_ts: int = 0


class _Collective(msgspec.Struct):
    coll: str
    coll_sn: int
    coll_msg_size_bytes: int = NONE
    coll_exec_time_us: float = -1.0
    event_trace_ts: _Times | None = None


class _Transfer(msgspec.Struct):
    p2p: str
    p2p_sn: int
    p2p_peer: int = NONE
    p2p_msg_size_bytes: int = NONE
    p2p_exec_time_us: float = -1.0
    event_trace_ts: _Times | None = None


class _Line(msgspec.Struct):
    header: _Header | None = None
    metadata: _Metadata | None = None
    coll_perf: _Collective | None = None
    p2p_perf: _Transfer | None = None
    dump_stats: dict[str, Any] | None = None


def is_inspector(head: bytes) -> bool:
    """Say whether a file begins as one of Inspector's does."""
    return _MARK.match(head) is not None and _KEYS.search(head) is not None


@dataclasses.dataclass(slots=True)
class _Process:
    """What one process left: rows, and its rank in each communicator."""

    rows: RankRows
    ranks: dict[int, int]
    first_us: int = 0
    last_us: int = 0


class _Reader:
    """Turns lines into rows; what all processes have in common is kept here."""

    def __init__(self, n_files: int) -> None:
        self.communicators = Names()
        self.sizes: dict[int, int] = {}
        self.names: dict[int, str] = {}
        self.kinds = Names()
        self.contents = Names()
        self.n_skipped = 0
        self.n_lost = 0
        self._limit = max(1, MAX_ROWS // n_files)
        self._decoder = msgspec.json.Decoder(_Line, strict=True)

    def read(self, lines: Iterator[bytes], written_s: float) -> dict[tuple[str, int], _Process]:
        """Read the lines of one file; there is one process in it, unless somebody joined files."""
        found: dict[tuple[str, int], _Process] = {}
        kept: deque[tuple[_Process, _Row]] = deque(maxlen=self._limit)
        header: _Header | None = None
        metadata: _Metadata | None = None
        for line in lines:
            if line.isspace():
                continue
            try:
                said = self._decoder.decode(line)
            except (msgspec.DecodeError, RecursionError, UnicodeDecodeError):
                self.n_skipped += 1
                continue
            if said.dump_stats is not None:
                header, metadata = said.header, said.metadata
                continue
            of, by = said.header or header, said.metadata or metadata
            operation = said.coll_perf or said.p2p_perf
            if of is None or by is None or operation is None or not 0 <= of.rank < of.n_ranks < 1 << 24:
                self.n_skipped += operation is not None or said.header is None
                continue
            key = (by.hostname[:_MAX_NAME], by.pid)
            process = found.get(key)
            if process is None:
                process = found[key] = _Process(RankRows(NONE, written_s=written_s, host=key[0]), {})
            self.n_lost += len(kept) == self._limit
            kept.append(self._read_operation(process, of, by, operation))
        for process, row in kept:
            process.rows.add(*row)
        for process in found.values():
            _share_out(process.rows)
        return found

    def _read_operation(
        self, process: _Process, of: _Header, by: _Metadata, operation: _Collective | _Transfer
    ) -> tuple[_Process, _Row]:
        """Read one operation."""
        communicator = self.communicators.number(str(of.id)[:_MAX_NAME])
        self.sizes[communicator] = of.n_ranks
        if of.comm_name and of.comm_name != "unknown":
            self.names[communicator] = of.comm_name
        process.ranks[communicator] = of.rank
        stamp = by.dump_timestamp_us
        process.first_us = min(process.first_us or stamp, stamp)
        process.last_us = max(process.last_us, stamp)
        times = operation.event_trace_ts
        if isinstance(operation, _Collective):
            kind, number, size, took_us = (
                operation.coll,
                operation.coll_sn,
                operation.coll_msg_size_bytes,
                operation.coll_exec_time_us,
            )
            peer, called_us = NONE, times.coll_start_ts if times else 0
        else:
            kind, number, size, took_us = (
                operation.p2p,
                operation.p2p_sn,
                operation.p2p_msg_size_bytes,
                operation.p2p_exec_time_us,
            )
            peer, called_us = operation.p2p_peer, times.p2p_start_ts if times else 0
        kind_number = self.kinds.number(kind[:_MAX_NAME])
        size = size if 0 <= size < _MAX_NUMBER else NONE
        row = (
            communicator,
            kind_number,
            number if abs(number) < _MAX_NUMBER else NONE,
            peer if 0 <= peer < of.n_ranks else NONE,
            kind == "Send",
            size,
            self.contents.number((kind_number, size)),
            called_us / 1e6 if 0 < called_us < _MAX_NUMBER else float("nan"),
            took_us / 1e6 if 0 <= took_us < 1e12 else float("nan"),
        )
        return process, row


def _share_out(rows: RankRows) -> None:
    """Give each of several transfers that were sent as one, under one number, its part of the time; in place."""
    sent: dict[tuple[int, int], list[int]] = {}
    for row, peer in enumerate(rows.peer):
        if peer != NONE:
            sent.setdefault((rows.communicator[row], rows.number[row]), []).append(row)
    for batch in sent.values():
        for row in batch:
            rows.duration_s[row] /= len(batch)


def read_inspector(
    inputs: InputFiles, files: Sequence[Path], *, name: str, report: Callable[[str], None]
) -> Collectives:
    """Read what Inspector wrote in all processes.

    Raises
    ------
    TraceError
        A file cannot be read, or there is no operation in them.
    """
    reader = _Reader(len(files))
    processes: dict[tuple[str, int], _Process] = {}
    for i, file in enumerate(files):
        report(f"{file.name} ({i + 1} of {len(files)})")
        try:
            found = reader.read(_list_lines(file), file.stat().st_mtime)
        except (OSError, EOFError, zlib.error) as error:
            where = name_in(inputs.path, file, name)
            raise TraceError(f"cannot be read: {error}; expected a file that was copied whole", where=where) from None
        for key, process in found.items():
            if key not in processes or len(process.rows.number) > len(processes[key].rows.number):
                processes[key] = process
    listed = [process for _, process in sorted(processes.items()) if process.rows.number]
    if not listed:
        raise TraceError(
            "has no operation in it; expected lines with coll_perf: was NCCL_INSPECTOR_ENABLE=1 set, and did the job end itself, "
            "or write on its way (NCCL_INSPECTOR_DUMP_THREAD_INTERVAL_MICROSECONDS)?",
            where=name,
        )
    warnings = []
    if reader.n_skipped:
        warnings.append(f"{reader.n_skipped} lines are no operations that can be read; they are left out")
    if reader.n_lost:
        warnings.append(f"of a long recording the last {MAX_ROWS // len(files):,} operations a process are taken")
    are_known = _number_ranks(listed, reader.sizes)
    listed.sort(key=lambda process: process.rows.rank)
    has_times = any(np.isfinite(process.rows.called_s).any() for process in listed)
    stamps_us = (min(process.first_us for process in listed), max(process.last_us for process in listed))
    return gather(
        [process.rows for process in listed],
        [_list_members(number, str(key), listed, reader) for key, number in reader.communicators.numbers.items()],
        [str(kind) for kind in reader.kinds.numbers],
        name=name,
        format_name=NAME,
        are_ranks_known=are_known,
        is_ordered=False,
        span_s=None if has_times else (stamps_us[1] - stamps_us[0]) / 1e6,
        warnings=warnings,
    )


def _list_lines(file: Path) -> Iterator[bytes]:
    """Give the lines of a file, of a very long one the last; lines that are far too long are left out."""
    with open_unpacked(file) as content:
        size = file.stat().st_size
        if size > MAX_BYTES and content.seekable() and not hasattr(content, "fileobj"):
            content.seek(size - MAX_BYTES)
            content.readline(_MAX_LINE)
        read = 0
        while read < MAX_BYTES and (line := content.readline(_MAX_LINE)):
            read += len(line)
            yield line


def _number_ranks(processes: Sequence[_Process], sizes: dict[int, int]) -> bool:
    """Give each process its world rank: that in a communicator of all processes; else numbers by host and process id, and False."""
    for communicator, size in sorted(sizes.items()):
        ranks = {process.ranks[communicator] for process in processes if communicator in process.ranks}
        if size >= len(processes) == len(ranks) and size == max(sizes.values()):
            for process in processes:
                process.rows.rank = process.ranks[communicator]
            return True
    for rank, process in enumerate(processes):
        process.rows.rank = rank
    return False


def _list_members(communicator: int, key: str, processes: Sequence[_Process], reader: _Reader) -> Communicator:
    """Say who is in a communicator, by their ranks in it."""
    members = np.full(min(reader.sizes[communicator], 1 << 16), NONE, dtype=np.int64)
    for process in processes:
        rank = process.ranks.get(communicator, NONE)
        if 0 <= rank < len(members):
            members[rank] = process.rows.rank
    return Communicator(name_communicator(reader.names.get(communicator, key)), members, is_stated=True)
