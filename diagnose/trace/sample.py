"""Choose whole steps of a trace that is larger than memory allows.

Enters: Parquet files, and the memory that the job may take. Leaves: the steps to read, evenly spread, or None where all fit.
Costs a look at the footers, and where not all fit a pass over the column of steps, a piece at a time.
"""

import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow.parquet as pq

from diagnose.errors import MemoryShortageError
from diagnose.model.memory import BYTES_AT_START, BYTES_PER_OP, write_bytes
from diagnose.model.trace import Ints
from diagnose.trace.arrow_arrays import read_numbers
from diagnose.trace.list_column import UNREADABLE

#: Rows read at a time.
BATCH_ROWS = 1 << 17
#: Steps come in runs of so many where there is room for several: what lies between steps shows where one follows another.
RUN_STEPS = 4
#: Fewer steps tell too little of a job.
MIN_STEPS = 3


@dataclasses.dataclass(frozen=True, slots=True)
class Sample:
    """The steps to read, of so many, sorted; `memory_bytes` is what the job may take."""

    steps: Ints
    n_steps: int
    memory_bytes: int

    def describe(self) -> str:
        """Say what was left out, and why."""
        return (
            f"{len(self.steps)} of {self.n_steps} steps are analysed, evenly spread: more do not fit into "
            f"{write_bytes(self.memory_bytes)} of memory; raise --memory, or choose with --steps"
        )


def choose_steps(sources: Sequence[Any], memory_bytes: int, asked: Ints | None, *, name: str) -> Sample | None:
    """Choose as many steps as fit; of `asked`, where it is given, no others.

    Parameters
    ----------
    sources : sequence of path or open file
        The files of one job.
    asked : ndarray of int64, or None
        Steps that the user wants.

    Returns
    -------
    Sample or None
        None where all rows fit, and where a file cannot be read: whoever reads it says why.

    Raises
    ------
    MemoryShortageError
        Not even a few steps fit.
    """
    room = max((memory_bytes - BYTES_AT_START) // BYTES_PER_OP, 0)
    try:
        if sum(_count_rows(source) for source in sources) <= room:
            return None
        steps, n_rows = _count_by_step(sources)
    except UNREADABLE:
        return None
    if asked is not None:
        wanted = np.isin(steps, asked)
        steps, n_rows = steps[wanted], n_rows[wanted]
    if not len(steps):
        return None
    n_fit = int(room // int(n_rows.max()))
    if n_fit >= len(steps) and asked is not None:
        return Sample(steps, len(steps), memory_bytes)
    n_fit = min(n_fit, int(len(steps) * room // int(n_rows.sum())), len(steps))
    if n_fit < min(MIN_STEPS, len(steps)):
        needs = BYTES_AT_START + MIN_STEPS * int(n_rows.max()) * BYTES_PER_OP
        raise MemoryShortageError(
            f"a step has {int(n_rows.max())} rows, and {MIN_STEPS} steps need {write_bytes(needs)} of memory; the job may take "
            f"{write_bytes(memory_bytes)}: raise --memory",
            where=name,
        )
    return Sample(steps[_spread(len(steps), n_fit)], len(steps), memory_bytes)


def _spread(n_steps: int, n_fit: int) -> Ints:
    """Choose so many of some steps, by position: in short runs, evenly spread."""
    run = max(1, min(RUN_STEPS, n_fit // MIN_STEPS))
    n_runs = n_fit // run
    first = np.linspace(0, n_steps - run, n_runs).astype(np.int64)
    return np.unique(first[:, None] + np.arange(run))


def _count_rows(source: Any) -> int:
    """Count the rows that a footer claims."""
    with pq.ParquetFile(source) as file:
        return int(file.metadata.num_rows)


def _count_by_step(sources: Sequence[Any]) -> tuple[Ints, Ints]:
    """List the steps of all files, sorted, and count the rows of each."""
    found: dict[int, int] = {}
    for source in sources:
        with pq.ParquetFile(source, page_checksum_verification=False) as file:
            for batch in file.iter_batches(batch_size=BATCH_ROWS, columns=["step"]):
                steps, n_rows = np.unique(read_numbers(batch.column(0).drop_null())[0], return_counts=True)
                for step, n in zip(steps.tolist(), n_rows.tolist(), strict=True):
                    found[int(step)] = found.get(int(step), 0) + n
    order = sorted(found)
    return np.array(order, dtype=np.int64), np.array([found[step] for step in order], dtype=np.int64)
