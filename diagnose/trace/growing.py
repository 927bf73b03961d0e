"""Read a trace that is written while its job runs: each time only the rows that are new.

Enters: a Parquet file that is written anew with more rows each time. Leaves: the rows of some steps, as a file of their own.

The recorder writes new steps behind those before: in memory are steps that nobody has taken yet, as far as asked for, and a row
group at most. In what order anybody else writes rows is not known: of such a file all groups that have new steps are read again.
"""

import bisect
import dataclasses
import itertools
import json
import os
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from diagnose.model.optype import NAMES, Op
from diagnose.model.trace import Ints
from diagnose.trace.arrow_arrays import read_numbers
from diagnose.trace.list_column import UNREADABLE
from diagnose.trace.parquet import JOB_KEY, strings_in
from diagnose.trace.rank_files import RECORDER_KEY

#: Before the first step of a job.
NO_STEP = -(2**62)
#: Rows that are read together: memory then stays level while a row group fills.
PART_ROWS = 4096


@dataclasses.dataclass(frozen=True, slots=True)
class TraceRows:
    """Rows of a file, with what it says of its job."""

    table: pa.Table

    def __len__(self) -> int:
        return len(self.table)

    def ranks(self) -> set[int]:
        """List the global ranks; empty where they do not say it."""
        if "rank" not in self.table.column_names:
            return set()
        return {int(rank) for rank in np.unique(read_numbers(self.table["rank"].drop_null())[0]) if rank >= 0}

    def steps(self) -> Ints:
        """List the steps, sorted."""
        return np.unique(_steps_of(self.table))

    def work(self) -> tuple[float, int]:
        """Count tokens, where the rows tell them, and forward computes."""
        is_forward = pc.equal(self.table["optype"].cast(pa.string()), NAMES[Op.FORWARD])
        has_tokens = "tokens" in self.table.column_names
        tokens = pc.sum(self.table["tokens"].filter(is_forward)).as_py() if has_tokens else 0.0
        return tokens or 0.0, pc.sum(is_forward).as_py() or 0

    def write(self, path: Path) -> None:
        """Write them as a file of their own."""
        pq.write_table(self.table, path, compression="none", write_statistics=False)


class GrowingTrace:
    """One file, of one rank or of several."""

    def __init__(self, path: Path, mark: int = NO_STEP) -> None:
        self.path = path
        #: The last step that was taken; nothing up to it is read again.
        self.mark = mark
        #: What the file says of its job.
        self.job: dict[str, Any] = {}
        #: The last step that is whole in the file; `NO_STEP` where none is.
        self.last_step = NO_STEP
        #: True where the last look found the file of another start of the job in its place.
        self.has_restarted = False
        #: True where rows could not be read because the file was written anew since the last look.
        self.is_outdated = False
        self._stamp: tuple[int, int, int] | None = None
        #: Rows up to the end of each row group, its last step, and the columns that are read as dictionaries: the footer itself
        #: takes 15 kB a row group.
        self._ends: list[int] | None = None
        self._lasts: list[int] = []
        self._strings: list[str] = []
        self._metadata: dict[bytes, bytes] = {}
        self._n_read = 0
        self._pending: list[pa.Table] = []

    def look(self) -> bool:
        """Look whether the file is another one than before; True where it is, and can be read. Costs a stat where it is not."""
        try:
            found = self.path.stat()
        except OSError:
            self._stamp = None
            return False
        if not stat.S_ISREG(found.st_mode):  # a pipe would be waited for
            return False
        stamp = _stamp_of(found)
        if stamp == self._stamp:
            return False
        self.is_outdated = False
        try:
            with pq.ParquetFile(self.path, page_checksum_verification=False) as file:
                footer = file.metadata
                metadata = footer.metadata or {}
                job = json.loads(metadata.get(JOB_KEY.encode(), b"{}"))
                job = job if isinstance(job, dict) else {}
                is_another = self._ends is not None and job.get("started_at") != self.job.get("started_at")
                is_shorter = self._ends is not None and footer.num_rows < self._n_read
                goes_on = RECORDER_KEY in metadata and not is_another and not is_shorter
                lasts = _read_lasts(file, self._lasts[:-1] if goes_on else [])
                groups = map(footer.row_group, range(footer.num_row_groups))
                ends = list(itertools.accumulate(group.num_rows for group in groups))
                strings = strings_in(footer)
        except (*UNREADABLE, OSError, ValueError, RecursionError):  # half-written, or no trace: it is looked at again
            return False
        self._stamp, self._metadata, self.job = stamp, metadata, job
        self._ends, self._lasts, self._strings = ends, lasts, strings
        self.last_step = self._find_last()
        self.has_restarted = is_another or (is_shorter and "started_at" not in job and self.last_step < self.mark)
        if self.has_restarted or is_shorter or not self._appends:
            self.start_again(NO_STEP if self.has_restarted else self.mark)
        return True

    @property
    def is_finished(self) -> bool:
        """True where the job has said that it ended."""
        return "finished_at" in self.job

    @property
    def _n_rows(self) -> int:
        """Rows of the file when it was looked at."""
        return self._ends[-1] if self._ends else 0

    @property
    def _appends(self) -> bool:
        """True where new rows stand behind those before, whole steps at a time."""
        return RECORDER_KEY in self._metadata

    @property
    def written_s(self) -> float:
        """When it was written last, Unix seconds; 0 where it is gone."""
        return self._stamp[0] / 1e9 if self._stamp is not None else 0.0

    @property
    def started_at(self) -> str | None:
        """When the process began that writes it, as it says."""
        said = self.job.get("started_at")
        return said if isinstance(said, str) else None

    @property
    def n_ranks(self) -> int | None:
        """Ranks of the whole job, as the file says; None where it does not."""
        said = self.job.get("world_size")
        return said if isinstance(said, int) and not isinstance(said, bool) and said > 0 else None

    def start_again(self, mark: int) -> None:
        """Forget what is in memory, and read from the first row on what comes after a step."""
        self.mark, self._n_read, self._pending = mark, 0, []

    def skip_all(self) -> None:
        """Take what the file has now for nothing: it is of an earlier attempt."""
        self._pending = []
        self._n_read = self._n_rows
        self.last_step = NO_STEP

    def steps(self, n_steps: int) -> Ints:
        """List the whole steps that nobody has taken, sorted: as many as asked for, or all that there are."""
        while True:
            found = self._list_steps()
            if (len(found) > n_steps and self._appends) or not self._read_group():
                return found[:n_steps]

    def read_through(self, step: int) -> None:
        """Have all rows up to a step in memory."""
        while not (self._appends and self._pending and _last(self._pending[-1]) > step):
            if not self._read_group():
                return

    def rows_through(self, step: int) -> "TraceRows | None":
        """Give the rows up to a step that nobody has taken; None where there are none."""
        self.read_through(step)
        parts = [_keep(table, table_steps <= step) for table, table_steps in self._with_steps()]
        parts = [part for part in parts if len(part)]
        return TraceRows(pa.concat_tables(parts).replace_schema_metadata(self._metadata)) if parts else None

    def read_again(self, first: int, last: int) -> "TraceRows | None":
        """Read the rows of some steps that were taken once more; None where there are none. Nothing of it stays in memory."""
        again = GrowingTrace(self.path, first - 1)
        return again.rows_through(last) if again.look() else None

    def drop_through(self, step: int) -> None:
        """Take the rows up to a step: they are not given again."""
        self.read_through(step)
        left = [_keep(table, table_steps > step) for table, table_steps in self._with_steps()]
        self._pending = [table for table in left if len(table)]
        self.mark = max(self.mark, step)

    def _with_steps(self) -> Iterator[tuple[pa.Table, Ints]]:
        """Give the tables in memory with the step of each row."""
        for table in self._pending:
            yield table, _steps_of(table)

    def _list_steps(self) -> Ints:
        """List the whole steps in memory, sorted."""
        if not self._pending:
            return np.zeros(0, dtype=np.int64)
        found = np.unique(np.concatenate([steps for _, steps in self._with_steps()]))
        return found[found <= self.last_step]

    def _read_group(self) -> bool:
        """Read the next row group that has new rows; False where there is none, or it cannot be read now."""
        ends = self._ends or []
        group = bisect.bisect_right(ends, self._n_read)
        if group == len(ends):
            return False
        first = ends[group - 1] if group else 0
        if self._lasts[group] > self.mark:
            try:
                with pq.ParquetFile(self.path, read_dictionary=self._strings, page_checksum_verification=False) as file:
                    if file.metadata.num_rows != self._n_rows:
                        self.is_outdated = True
                        return False
                    table = _read_from(file, group, self._n_read - first)
            except (*UNREADABLE, OSError):
                self.is_outdated = self._has_changed()
                return False
            table = _keep(table, _steps_of(table) > self.mark)
            if len(table):
                self._pending.append(table)
        self._n_read = ends[group]
        return True

    def _has_changed(self) -> bool:
        """Say whether the file is another one than when it was looked at."""
        try:
            return _stamp_of(self.path.stat()) != self._stamp
        except OSError:
            return False

    def _find_last(self) -> int:
        """Find the last whole step: the last one may go on, unless who writes it adds whole steps alone."""
        last = max(self._lasts, default=NO_STEP)
        return last if last == NO_STEP or self._appends or self.is_finished else last - 1


def _read_lasts(file: Any, known: list[int]) -> list[int]:
    """Say the last step of each row group, of which those of the first groups may be known.

    The rows say so: what a footer tells of single columns ends the process where it is damaged (pyarrow 26).
    """
    groups = range(len(known), file.metadata.num_row_groups)
    return known + [_last(file.read_row_group(group, columns=["step"])) for group in groups]


def _read_from(file: Any, group: int, n_known: int) -> pa.Table:
    """Read a row group from some row on, in parts of one size: those of a group that grows would each need new room."""
    parts, first = [], 0
    for batch in file.iter_batches(PART_ROWS, row_groups=[group]):
        if first + len(batch) > n_known:
            parts.append(batch.slice(max(n_known - first, 0)))
        first += len(batch)
    return pa.Table.from_batches(parts, parts[0].schema if parts else file.schema_arrow)


def _stamp_of(found: os.stat_result) -> tuple[int, int, int]:
    """Give what changes when a file is written."""
    return found.st_mtime_ns, found.st_size, found.st_ino


def _steps_of(table: pa.Table) -> Ints:
    """Give the step of each row."""
    found, missing = read_numbers(table["step"])
    steps = found.astype(np.int64) if found.dtype.kind != "f" else np.nan_to_num(found, nan=NO_STEP).astype(np.int64)
    return steps if missing is None else np.where(missing, NO_STEP, steps)


def _keep(table: pa.Table, rows: Any) -> pa.Table:
    """Keep some rows."""
    return table if rows.all() else table.filter(pa.array(rows))


def _last(table: pa.Table) -> int:
    """Say the last step of some rows."""
    return int(_steps_of(table).max(initial=NO_STEP))
