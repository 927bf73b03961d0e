"""Gather a folder with one trace a rank, as a recorder in each process writes it, into one job.

Enters: Parquet files, in one folder or in one for each start of the job. Leaves: `Rows` of all of them, one after the other. What
the files say of the job agrees, or they are refused.
"""

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from diagnose.errors import TraceError
from diagnose.model.recording import Account
from diagnose.model.trace import TOKEN_COLUMNS, Ints
from diagnose.trace.input_files import name_in
from diagnose.trace.list_column import ListColumn
from diagnose.trace.parquet import read_parquet
from diagnose.trace.rows import Rows, take_rows

#: Folders of one start of a job, in which it goes on where the one before ended; in the order of their names.
START = "start-"
#: What makes a job another one: its steps are not those of the start before.
_SHAPE = ("job_id", "dp_size", "pp_size", "tp_size", "cp_size", "vpp_size", "world_size", "schedule")
#: Columns that may be missing in some files: -1 stands for unknown, and in those of tokens NaN.
_WHOLE = ("microbatch", "chunk", "position", "rank", "tp_rank", "cp_rank")
#: Each process writes these for itself, and they may differ: the job began with the first process and ended with the last.
_FIRST, _LAST = ("started_at",), ("finished_at", "steps_total")
#: Whether the job does something: it does where one process does.
_ANY = ("saves", "reads_input")
#: Settings of one process; those of the first that says them stand for all.
_OWN = ("loader", "alloc_conf")


def gather_traces(
    folder: Path,
    files: tuple[Path, ...],
    *,
    name: str,
    report: Callable[[str], None],
    n_others: int = 0,
    beside: str = "",
    steps: Ints | None = None,
) -> Rows:
    """Read all traces of a folder as those of one job; `n_others` files of the folder are no traces: `beside` names their kinds.

    Of `steps`, where it is given, no others are read.

    Raises
    ------
    TraceError
        A file cannot be read, or the files are not of one job.
    """
    starts = [_Start.read(folder, of_start, name, report, steps) for of_start in _part_starts(folder, files)[-1:]]
    for of_start in reversed(_part_starts(folder, files)[:-1]):
        before = _Start.read(folder, of_start, name, report, steps)
        if not before.goes_on_with(starts[0]):
            break
        starts.insert(0, before)
    rows = _join_starts(starts)
    warning = _describe_starts(folder, files, starts)
    if warning:
        rows = dataclasses.replace(rows, recording_warnings=(*rows.recording_warnings, warning))
    if n_others:
        left = f"{n_others} files of the folder are no traces, and are not read" + (f": {beside}" if beside else "")
        rows = dataclasses.replace(rows, recording_warnings=(*rows.recording_warnings, left))
    return rows


def _take_common(parts: list[Rows]) -> list[Rows]:
    """Take of ranks that recorded different parts of the steps those that all of them recorded.

    Each rank decides by itself whether it records fewer steps than it was asked to; what the others have beyond that is no job.
    """
    shares = [part.job.get("sample") for part in parts]
    said = [share for share in shares if isinstance(share, (int, float))]
    if not said or len(set(said)) == 1:
        return parts
    of_least = np.concatenate([part.step for part, share in zip(parts, shares, strict=True) if share == min(said)])
    return [
        dataclasses.replace(take_rows(part, np.isin(part.step, of_least)), job=part.job | {"sample": min(said)})
        for part in parts
    ]


def _part_starts(folder: Path, files: tuple[Path, ...]) -> list[tuple[Path, ...]]:
    """Part the files of a folder by start of the job, in order; all are of one where it has no folders of starts."""
    starts: dict[str, list[Path]] = {}
    for file in files:
        top = file.relative_to(folder).parts[0] if file != folder else ""
        starts.setdefault(top if top.startswith(START) else "", []).append(file)
    return [tuple(starts[start]) for start in sorted(starts)]


@dataclasses.dataclass(frozen=True, slots=True)
class _Start:
    """The files of one start of a job."""

    folder: Path
    parts: list[Rows]
    job: dict[str, Any]
    first_step: int

    @classmethod
    def read(
        cls,
        folder: Path,
        files: tuple[Path, ...],
        name: str,
        report: Callable[[str], None],
        steps: Ints | None,
    ) -> "_Start":
        """Read the files, or refuse them where they are not of one job."""
        parts = []
        for n, file in enumerate(files, start=1):
            report(f"file {n} of {len(files)}")
            parts.append(read_parquet(file, name=name_in(folder, file, name), steps=steps))
        names = [name_in(folder, file, name) for file in files]
        parts = _take_common(parts)
        job = _merge_jobs([part.job for part in parts], names)
        if "job_id" not in job and "trial_name" not in job:
            _refuse_same_workers(parts, names)
        return cls(files[0].parent, parts, job, min((int(part.step.min()) for part in parts if len(part)), default=0))

    def goes_on_with(self, after: "_Start") -> bool:
        """Say whether a later start goes on with the steps of this one, instead of beginning anew or in another shape."""
        return self.first_step < after.first_step and all(self.job.get(key) == after.job.get(key) for key in _SHAPE)


def _join_starts(starts: list[_Start]) -> Rows:
    """Join the starts of one job; of each what came before the next one began again."""
    job = starts[-1].job | {key: starts[0].job[key] for key in _FIRST if key in starts[0].job}
    rows = _concatenate([part for start in starts for part in start.parts], job)
    if len(starts) == 1:
        return rows
    ends = [start.first_step for start in starts[1:]] + [np.iinfo(np.int64).max]
    kept = [part.step < end for start, end in zip(starts, ends, strict=True) for part in start.parts]
    restarts = tuple(start.first_step for start in starts[1:])
    return dataclasses.replace(take_rows(rows, np.concatenate(kept)), restarts=restarts)


def _describe_starts(folder: Path, files: tuple[Path, ...], starts: list[_Start]) -> str:
    """Say which starts of the job are read; empty where there is one."""
    n_all = len(_part_starts(folder, files))
    if n_all == 1:
        return ""
    read = " and ".join(start.folder.name for start in starts)
    left = n_all - len(starts)
    return f"the job was started {n_all} times; {read} " + (
        f"is read, and {left} before it left out: it began anew, or in another shape; to read one, name its folder"
        if left
        else "are read as one job, each up to the step with which the next one began"
    )


def _merge_jobs(jobs: list[dict[str, Any]], names: list[str]) -> dict[str, Any]:
    """Join what the files say of the job, or refuse what contradicts itself."""
    merged: dict[str, Any] = {}
    said_by: dict[str, str] = {}
    for job, name in zip(jobs, names, strict=True):
        for key, value in job.items():
            if value is None:
                continue
            if key in merged and merged[key] != value:
                if key in _ANY:
                    merged[key] = True
                    continue
                if key in _OWN:
                    continue
                if key in _FIRST or key in _LAST:
                    merged[key] = _further(merged[key], value, first=key in _FIRST)
                    continue
                raise TraceError(
                    f"says that {key} is {str(value)[:80]!r}, and {said_by[key]} says {str(merged[key])[:80]!r}; expected the "
                    "files of one job: name one file, or `diagnose triage` the folder",
                    where=f"{name}: metadata 'diagnose.job'",
                )
            merged[key] = value
            said_by.setdefault(key, name)
    return merged


def _further(a: Any, b: Any, *, first: bool) -> Any:
    """Take the smaller, or the larger, of two values where they can be compared; else the one that was there."""
    try:
        return min(a, b) if first else max(a, b)
    except TypeError:
        return a


def _refuse_same_workers(parts: list[Rows], names: list[str]) -> None:
    """Refuse files without the name of a job where two have the same steps of the same worker: they are two jobs."""
    seen: dict[tuple[int, ...], str] = {}
    for part, name in zip(parts, names, strict=True):
        columns = [part.step, part.dp, part.stage]
        columns += [column for column in (part.tp_rank, part.cp_rank, part.rank) if column is not None]
        for key in map(tuple, np.unique(np.stack([c.astype(np.int64) for c in columns]), axis=1).T.tolist()):
            if seen.setdefault(key, name) != name:
                raise TraceError(
                    f"and {seen[key]} both have step {key[0]} of dp rank {key[1]}, stage {key[2]}, and no job_id says that they "
                    "are of one job; expected one file a rank: name one file, or `diagnose triage` the folder",
                    where=name,
                )


def _concatenate(parts: list[Rows], job: dict[str, Any]) -> Rows:
    """Put the rows of all files one after the other."""
    columns: dict[str, Any] = {}
    for column in ("step", "dp", "stage", "op", "start_s", "duration_s"):
        columns[column] = np.concatenate([getattr(part, column) for part in parts])
    for column in _WHOLE:
        columns[column] = _join(parts, column, -1)
    for column in TOKEN_COLUMNS:
        columns[column] = _join(parts, column, np.nan)
    numbered = all(part.seq is not None for part in parts)
    columns["seq"] = np.concatenate([part.seq for part in parts if part.seq is not None]) if numbered else None
    host, host_names = _join_hosts(parts)
    bad = None
    if any(part.bad is not None for part in parts):
        bad = np.concatenate([np.zeros(len(part), dtype=bool) if part.bad is None else part.bad for part in parts])
    other, other_types = _join_others(parts)
    lists = _join_lists(parts)
    return Rows(
        **columns,
        host=host,
        host_names=host_names,
        bad=bad,
        job=job,
        other=other,
        other_types=other_types,
        number=None if lists is None else np.arange(len(columns["op"]), dtype=np.int32),
        lists=lists,
        recording=_join_accounts(parts),
        recording_warnings=tuple(dict.fromkeys(warning for part in parts for warning in part.recording_warnings)),
    )


def _join(parts: list[Rows], column: str, unknown: float) -> NDArray[Any] | None:
    """Join a column that some files may lack; None where all do."""
    found = [getattr(part, column) for part in parts]
    if all(values is None for values in found):
        return None
    return np.concatenate(
        [np.full(len(part), unknown) if values is None else values for part, values in zip(parts, found, strict=True)]
    ).astype(np.float64 if column in TOKEN_COLUMNS else np.int64)


def _join_hosts(parts: list[Rows]) -> tuple[NDArray[Any] | None, tuple[str, ...]]:
    """Join the hosts, each numbered once."""
    if all(part.host is None for part in parts):
        return None, ()
    names = {text: n for n, text in enumerate(dict.fromkeys(text for part in parts for text in part.host_names))}
    found = []
    for part in parts:
        if part.host is None:
            found.append(np.full(len(part), -1))
        else:
            found.append(np.array([names[text] for text in part.host_names] + [-1])[part.host])
    return np.concatenate(found), tuple(names)


def _join_others(parts: list[Rows]) -> tuple[NDArray[Any] | None, tuple[str, ...]]:
    """Join the types that are not known, each numbered once."""
    types = tuple(dict.fromkeys(text for part in parts for text in part.other_types))
    if not types:
        return None, ()
    position = {text: n for n, text in enumerate(types)}
    found = []
    for part in parts:
        of_part = np.array([position[text] for text in part.other_types] + [-1], dtype=np.int32)
        found.append(np.full(len(part), -1, dtype=np.int32) if part.other is None else of_part[part.other])
    return np.concatenate(found), types


def _join_lists(parts: list[Rows]) -> ListColumn | None:
    """Join the columns of document lengths of the files that have one."""
    found = []
    first = 0
    for part in parts:
        if part.lists is not None:
            found.append(dataclasses.replace(part.lists, first=first))
        first += len(part)
    return dataclasses.replace(found[0], others=tuple(found[1:])) if found else None


def _join_accounts(parts: list[Rows]) -> Account | None:
    """Join what the files say about what they were converted from."""
    found = [part.recording for part in parts if part.recording is not None]
    if not found:
        return None
    return Account(
        producer=", ".join(dict.fromkeys(account.producer for account in found)),
        dropped=tuple(dict.fromkeys(entry for account in found for entry in account.dropped)),
        unobserved=tuple(dict.fromkeys(entry for account in found for entry in account.unobserved)),
        offsets=tuple(dict.fromkeys(entry for account in found for entry in account.offsets)),
        host=max((account.host for account in found if account.host), key=lambda host: host.share, default=None),
    )
