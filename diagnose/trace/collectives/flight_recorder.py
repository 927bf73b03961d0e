"""PyTorch's Flight Recorder: the last collectives of each rank, one dump a rank, as a pickle or as JSON.

A dump is a dictionary: `version` ("2.1" to "2.10" were looked at), `pg_config` (process groups by name, their ranks as text),
`pg_status` (by group id, text in JSON), `entries` in the order of the calls, each with `process_group` (name, description),
`collective_seq_id`, `p2p_seq_id`, `profiling_name` ("nccl:all_reduce", "nccl:send 0->3" with ranks in the group), times of the host
in nanoseconds (0 in JSON where there is none), `duration_ms` (with TORCH_NCCL_ENABLE_TIMING), `state`, `retired`, `frames` (the
innermost first; not in JSON). The world rank is in the name of the file alone. It is a ring: the beginning is lost.

Transfers sent as one have an entry each, whose state never changes, and a last one named `coalesced` that has state and duration.
Gloo never notices an end: there an entry that is `retired` is over.

Source: pytorch/pytorch, torch/csrc/distributed/c10d/FlightRecorder.hpp, FlightRecorderDetail.hpp, ProcessGroupNCCL.cpp and
tools/flight_recorder/components.
"""

import re
import zlib
from collections.abc import Callable, Sequence
from pathlib import Path, PurePosixPath
from typing import Any

import msgspec
import numpy as np

from diagnose.errors import TraceError
from diagnose.model.collectives import COMPLETED, NONE, SCHEDULED, STARTED, Collectives, Communicator
from diagnose.trace.collectives.gathered import Names, RankRows, gather, name_communicator
from diagnose.trace.collectives.unpickle import MAX_BYTES, MAX_CONTAINERS, unpickle
from diagnose.trace.input_files import InputFiles, name_in, open_unpacked

NAME = "PyTorch Flight Recorder"
#: What stands in a dump and in nothing else, near its beginning.
_MARKS = re.compile(rb"pg_config|pg_status|collective_seq_id|time_discovered_started")
_BEGINS = re.compile(rb"\A(?:\x80[\x02-\x05]|\s*\{)")
_RANK = re.compile(r"(\d+)")
_RANKS = re.compile(r"\d{1,9}")
_TRANSFER = re.compile(r"(\d{1,9})(->|<-)(\d{1,9})")
#: Entries of one rank at most, and numbers that are none any more.
MAX_ENTRIES = 1_000_000
_MAX_NUMBER = 1 << 62
#: Calls that are not over whose stack is kept, of one rank.
_MAX_FRAMES = 32
_STATES = {"scheduled": SCHEDULED, "started": STARTED, "completed": COMPLETED}
#: Frames inside of these are PyTorch's own.
_LIBRARY = ("/torch/", "torch\\", "<frozen", "<string>", "??")


def is_dump(head: bytes) -> bool:
    """Say whether a file begins as a dump of the Flight Recorder does."""
    return _BEGINS.match(head) is not None and _MARKS.search(head) is not None and b"distributedInfo" not in head


def read_rank(file: Path) -> int | None:
    """Give the rank that the name of a dump tells: the number behind `rank`, else the last one.

    >>> read_rank(Path("nccl_trace_rank_12")), read_rank(Path("rank3_20260101.json")), read_rank(Path("dump"))
    (12, 3, None)
    >>> read_rank(Path("job2.dump_5")), read_rank(Path("dump_5.20260101.json"))
    (5, 5)
    """
    is_whole = file.name.startswith(".") or re.search(r"_\d{1,9}$", file.name)
    stem = file.name if is_whole else file.name.split(".")[0]
    behind = stem.lower().rpartition("rank")[2]
    found = re.match(r"[_\-]?(\d{1,9})", behind) if "rank" in stem.lower() else None
    if found is not None:
        return int(found.group(1))
    numbers = _RANK.findall(stem)
    return int(numbers[-1]) if numbers and len(numbers[-1]) <= 9 else None


class _Reader:
    """Turns dumps into rows; what all ranks have in common is kept here."""

    def __init__(self) -> None:
        self.groups = Names()
        self.kinds = Names()
        self.contents = Names()
        self.timeout_ms = 0
        self.n_skipped = 0
        #: By profiling name: the kind, whether it is a transfer, whether it sends, and the rank in the group at its other end.
        self._operations: dict[Any, tuple[int, bool, bool, int]] = {}

    def read(self, dump: dict[str, Any], rows: RankRows) -> None:
        """Add the entries of one dump to the rows of its rank."""
        entries = dump.get("entries")
        if not isinstance(entries, list):
            entries = []
        ranks_of = _read_groups(dump.get("pg_config"))
        members: list[
            tuple[int, int, bool]
        ] = []  # (communicator, number, is a transfer) of each row, for what was sent as one
        for entry in entries[-MAX_ENTRIES:]:
            if type(entry) is not dict:
                self.n_skipped += 1
                continue
            group = self._number_group(entry.get("process_group"), ranks_of)
            kind, is_transfer, is_send, peer = self._read_operation(entry.get("profiling_name"))
            if NONE in (group, kind):
                self.n_skipped += 1
                continue
            is_transfer = is_transfer or entry.get("is_p2p") is True
            number = _whole(entry.get("p2p_seq_id" if is_transfer else "collective_seq_id", entry.get("seq_id")))
            members.append((group, number, is_transfer))
            self._add(rows, entry, group, kind, number, peer, is_send=is_send)
        _keep_frames(rows, entries)
        _join_batches(rows, members, self.kinds)

    def _add(
        self, rows: RankRows, entry: dict[str, Any], group: int, kind: int, number: int, peer: int, *, is_send: bool
    ) -> None:
        """Add one entry."""
        size = _count_elements(entry.get("input_sizes"))
        given = entry.get("input_dtypes")
        dtypes = tuple(map(str, given[:4])) if type(given) is list else ()
        duration = entry.get("duration_ms")
        known = float(duration) if isinstance(duration, float | int) and 0 <= duration < 1e12 else float("nan")
        state = entry.get("state")
        over = entry.get("retired") is True
        content = self.contents.number((kind, size, dtypes))
        called_s = _seconds(entry.get("time_created_ns"))
        noticed_s = _seconds(entry.get("time_discovered_completed_ns"))
        state = COMPLETED if over else _STATES.get(state, SCHEDULED) if type(state) is str else SCHEDULED
        rows.add(group, kind, number, peer, is_send, size, content, called_s, known / 1e3, noticed_s, state)
        self.timeout_ms = max(self.timeout_ms, _whole(entry.get("timeout_ms")))

    def _number_group(self, given: Any, ranks_of: dict[str, tuple[int, ...]]) -> int:
        """Give the number of a process group: the same name with other ranks is another group."""
        if type(given) not in (tuple, list) or not given or type(given[0]) is not str:
            return NONE
        name = given[0]
        described = given[1] if len(given) > 1 and type(given[1]) is str else ""
        return self.groups.number((name, described, ranks_of.get(name, ())))

    def _read_operation(self, profiling_name: Any) -> tuple[int, bool, bool, int]:
        """Read what an operation is from its name."""
        if type(profiling_name) is not str:
            return NONE, False, False, NONE
        known = self._operations.get(profiling_name)
        if known is None:
            name, _, ends = profiling_name.partition(":")[2].partition(" ")
            transfer = _TRANSFER.fullmatch(ends) if name in ("send", "recv") else None
            other = int(transfer.group(3)) if transfer is not None else NONE
            known = (self.kinds.number(name or profiling_name), transfer is not None, name == "send", other)
            self._operations[profiling_name] = known
        return known


def read_flight_recorder(
    inputs: InputFiles, files: Sequence[Path], *, name: str, report: Callable[[str], None]
) -> Collectives:
    """Read the dumps of all ranks.

    Raises
    ------
    TraceError
        One of them is damaged or asks to run code, names do not tell ranks, or nothing was recorded.
    """
    reader = _Reader()
    by_rank: dict[int, RankRows] = {}
    again: set[int] = set()
    for i, file in enumerate(files):
        report(f"{file.name} ({i + 1} of {len(files)})")
        where = name_in(inputs.path, file, name)
        rank = read_rank(file)
        if rank is None and len(files) > 1:
            raise TraceError(
                "has no rank in its name; expected one file a rank, each with its rank at the end of its name, as PyTorch writes "
                "them (nccl_trace_rank_0)",
                where=where,
            )
        rows = RankRows(rank or 0, written_s=file.stat().st_mtime)
        reader.read(_load(file, where), rows)
        if rows.rank in by_rank:
            again.add(rows.rank)
            if rows.last_s() <= by_rank[rows.rank].last_s():
                continue
        by_rank[rows.rank] = rows
    ranks = [by_rank[rank] for rank in sorted(by_rank)]
    if not any(rows.number for rows in ranks):
        raise TraceError(
            "has no collective in it; expected some: was the recorder on (TORCH_FR_BUFFER_SIZE=2000) and the job under way?",
            where=name,
        )
    warnings = []
    if again:
        warnings.append(f"{len(again)} ranks have several dumps; of each the newest is taken")
    if reader.n_skipped:
        warnings.append(f"{reader.n_skipped} entries are no operations that can be read; they are left out")
    communicators = _list_communicators(reader.groups, ranks)
    return gather(
        ranks,
        communicators,
        [str(kind) for kind in reader.kinds.numbers],
        name=name,
        format_name=NAME,
        is_ordered=True,
        timeout_s=reader.timeout_ms / 1e3 if reader.timeout_ms > 0 else float("nan"),
        warnings=warnings,
    )


def _load(file: Path, where: str) -> dict[str, Any]:
    """Load one dump as plain values."""
    try:
        with open_unpacked(file) as content:
            data = content.read(MAX_BYTES + 1)
    except (OSError, EOFError, zlib.error) as error:
        raise TraceError(f"cannot be read: {error}; expected a dump that was copied whole", where=where) from None
    if data[:1] == b"\x80":
        dump = unpickle(data, name=where)
    else:
        if len(data) > MAX_BYTES or data.count(b"[") + data.count(b"{") > MAX_CONTAINERS:
            raise TraceError(f"is larger than {MAX_BYTES >> 20} MB; expected the dump of one rank", where=where)
        try:
            dump = msgspec.json.decode(data)
        except (msgspec.DecodeError, RecursionError, UnicodeDecodeError):
            raise TraceError("is damaged JSON; expected a dump that was written to its end", where=where) from None
    if not isinstance(dump, dict):
        raise TraceError(
            f"holds a {type(dump).__name__}; expected the dictionary of a Flight Recorder dump", where=where
        )
    return dump


def _read_groups(config: Any) -> dict[str, tuple[int, ...]]:
    """Read which ranks are in which process group; groups without a list are left out."""
    found: dict[str, tuple[int, ...]] = {}
    for name, group in config.items() if isinstance(config, dict) else ():
        ranks = group.get("ranks") if isinstance(group, dict) else None
        if isinstance(ranks, str):
            listed = tuple(int(text) for text in _RANKS.findall(ranks))
        elif isinstance(ranks, list):
            listed = tuple(rank for rank in ranks if type(rank) is int and 0 <= rank < 10**9)
        else:
            listed = ()
        if isinstance(name, str) and listed:
            found[name] = listed
    return found


def _list_communicators(groups: Names, ranks: Sequence[RankRows]) -> list[Communicator]:
    """Say who is in each process group: as it was stated, else whoever took part in it."""
    took_part: dict[int, list[int]] = {}
    for rows in ranks:
        for group in set(rows.communicator):
            took_part.setdefault(group, []).append(rows.rank)
    stated = {(name, rank): listed for name, _, listed in groups.numbers for rank in listed}
    numbers: dict[Any, int] = {}
    same: list[int] = []
    communicators: list[Communicator] = []
    for key, number in groups.numbers.items():
        name, described, listed = key
        there = took_part.get(number, [])
        if not listed and there:  # another rank states who is in it
            listed = stated.get((name, there[0]), ())
        if not listed and described == "default_pg":
            listed = tuple(range(max(rows.rank for rows in ranks) + 1))
        at = numbers.setdefault((name, listed or described), len(communicators))
        same.append(at)
        if at == len(communicators):
            shown = name_communicator(described if described and described != "undefined" else f"group {name}")
            members = np.array(listed or sorted(there), dtype=np.int64)
            communicators.append(Communicator(shown, members, bool(listed)))
        elif not communicators[at].is_stated:
            members = np.union1d(communicators[at].ranks, np.array(there, dtype=np.int64))
            communicators[at] = Communicator(communicators[at].name, members, is_stated=False)
    for rows in ranks:
        rows.communicator = [same[group] for group in rows.communicator]
    return communicators


def _join_batches(rows: RankRows, members: Sequence[tuple[int, int, bool]], kinds: Names) -> None:
    """Give operations that were sent as one the state and the time of what ended them, and drop that; in place.

    Of collectives sent as one the last entry stands for all, with the name of the first.
    """
    batches: dict[tuple[int, int, bool], list[int]] = {}
    for row, key in enumerate(members):
        batches.setdefault(key, []).append(row)
    if len(batches) == len(members):
        return
    ends = {number for name, number in kinds.numbers.items() if str(name).endswith("coalesced")}
    dropped: set[int] = set()
    for (_, _, is_transfer), batch in batches.items():
        if len(batch) == 1:
            continue
        last = batch[-1]
        if not is_transfer:
            rows.kind[last], rows.content[last] = rows.kind[batch[0]], rows.content[batch[0]]
            dropped.update(batch[:-1])
            continue
        has_end = rows.kind[last] in ends
        parts = batch[:-1] if has_end else batch
        for row in parts:
            rows.state[row] = rows.state[last]
            rows.noticed_s[row] = rows.noticed_s[last]
            rows.duration_s[row] = rows.duration_s[last] / len(parts)
        if has_end:
            dropped.add(last)
    if not dropped:
        return
    kept = [row for row in range(len(rows.number)) if row not in dropped]
    place = {row: i for i, row in enumerate(kept)}
    ended = {last: batch[-2] for batch in batches.values() if (last := batch[-1]) in dropped}
    rows.frames = {place[at]: text for row, text in rows.frames.items() if (at := ended.get(row, row)) in place}
    for column in (
        "communicator",
        "kind",
        "number",
        "peer",
        "is_send",
        "size",
        "content",
        "called_s",
        "noticed_s",
        "duration_s",
        "state",
    ):
        values = getattr(rows, column)
        setattr(rows, column, [values[row] for row in kept])


def _keep_frames(rows: RankRows, entries: Sequence[Any]) -> None:
    """Keep where the last call, and those that are not over, were made."""
    readable = [entry for entry in entries[-MAX_ENTRIES:] if type(entry) is dict]
    if len(readable) != len(rows.number):  # some were left out: rows and entries do not stand side by side
        return
    open_rows = [row for row, state in enumerate(rows.state) if state != COMPLETED][:_MAX_FRAMES]
    for row in {*open_rows, len(readable) - 1} - {-1}:
        text = _read_frame(readable[row].get("frames"))
        if text:
            rows.frames[row] = text


def _read_frame(frames: Any) -> str:
    """Name the innermost frame that is not PyTorch's own: file, line, function."""
    known = [frame for frame in frames if isinstance(frame, dict)] if isinstance(frames, list) else []
    own = [frame for frame in known if not any(part in str(frame.get("filename")) for part in _LIBRARY)]
    for frame in [*own, *known][:1]:
        file = PurePosixPath(str(frame.get("filename"))[:1000].replace("\\", "/")).name
        return f"{file}:{_whole(frame.get('line'))} ({str(frame.get('name'))[:80]})"
    return ""


def _whole(value: Any) -> int:
    """Give a whole number, also one that is text; -1 where it is none."""
    if type(value) is int:
        return value if -_MAX_NUMBER < value < _MAX_NUMBER else NONE
    if type(value) is str and len(value) < 19 and value.isascii() and value.isdigit():
        return int(value)
    return NONE


def _seconds(nanoseconds: Any) -> float:
    """Give a time in seconds; NaN where there is none."""
    number = _whole(nanoseconds)
    return number / 1e9 if number > 0 else float("nan")


def _count_elements(sizes: Any) -> int:
    """Count the elements of all tensors; -1 where their shapes cannot be read."""
    if type(sizes) is not list:
        return NONE
    total = 0
    for shape in sizes:
        if type(shape) is not list:
            return NONE
        elements = 1
        for n in shape[:16]:
            if type(n) is not int or not 0 <= n < 1 << 40:
                return NONE
            elements = min(elements * n, 1 << 60)
        total = min(total + elements, 1 << 60)
    return total
