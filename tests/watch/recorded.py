"""Generated jobs, written while they run as the recorder's own writer does; and a clock that nobody waits for."""

import dataclasses
import math
import os
from pathlib import Path

import numpy as np
import pyarrow as pa

from diagnose.record.clock import Window
from diagnose.record.log import StepLog
from diagnose.record.parallel_state import ParallelState
from diagnose.record.rows import OperationRow
from diagnose.record.write import RecordedRows, write_rows

#: When the first step of every job begins, Unix seconds.
BEGAN_S = 1.8e9


class SimulatedClock:
    """A clock that stands until somebody moves it on; who sleeps has slept."""

    def __init__(self, now_s: float = BEGAN_S) -> None:
        self.at_s = now_s

    def now_s(self) -> float:
        """Give seconds since 1970."""
        return self.at_s

    def sleep(self, seconds: float) -> None:
        """Move on."""
        self.at_s += seconds


@dataclasses.dataclass
class _Rank:
    """One rank: what it has recorded, and where the rows of each step stand among its columns."""

    state: ParallelState
    kept: RecordedRows
    window: Window
    columns: dict[str, np.ndarray]
    rows_of: dict[int, tuple[int, int]]
    written: int = -1


class RecordedJob:
    """A job whose trace is known to its end, of which more and more is written; `shift` is added to all step numbers."""

    def __init__(
        self, trace: pa.Table, folder: Path, *, shift: int = 0, began_s: float = BEGAN_S, start: str = "start-1"
    ):
        self.folder = folder / start
        self.folder.mkdir(parents=True, exist_ok=True)
        self.metadata = {"job_id": folder.name, "sample": 1.0, "started_at": f"2026-{start}"}
        columns = _read_columns(trace)
        columns["step"] = columns["step"] + shift
        self.types: list[str] = (
            trace["optype"].combine_chunks().cast(pa.string()).dictionary_encode().dictionary.to_pylist()
        )
        dp, stage, steps = columns["dp_rank"], columns["stage"], columns["step"]
        n_dp, n_stages = int(dp.max()) + 1, int(stage.max()) + 1
        vpp = int(columns["mc"].max()) + 1 if "mc" in columns else 1
        hosts = trace["host"].cast(pa.string()) if "host" in trace.column_names else None
        first_s = float(columns["start_ts"].min())
        self.ranks: list[_Rank] = []
        for rank in range(n_dp * n_stages):
            of = (rank % n_dp, rank // n_dp)
            at = np.flatnonzero((dp == of[0]) & (stage == of[1]))
            at = at[np.argsort(steps[at], kind="stable")]
            host = f"node-{rank}" if hosts is None else hosts[int(at[0])].as_py()
            state = ParallelState(rank, n_dp * n_stages, of[0], n_dp, of[1], n_stages, vpp=vpp, is_said=True, host=host)
            window = Window()
            window.wall_ns = round((began_s - first_s) * 1e9)
            found, first = np.unique(steps[at], return_index=True)
            ends = [*first[1:].tolist(), len(at)]
            rows_of = {int(s): (int(a), int(b)) for s, a, b in zip(found, first, ends, strict=True)}
            picked = {name: column[at] for name, column in columns.items()}
            self.ranks.append(_Rank(state, RecordedRows(), window, picked, rows_of))
        order = np.argsort(steps, kind="stable")
        self.steps, first = np.unique(steps[order], return_index=True)
        ends_s = np.maximum.reduceat((columns["start_ts"] + columns["duration"])[order], first) - first_s + began_s
        #: When each step ended, Unix seconds.
        self.ends_s = dict(zip(self.steps.tolist(), ends_s.tolist(), strict=True))

    def write(self, through: int, *, ranks: list[int] | None = None, ended: bool = False) -> None:
        """Write the files of some ranks anew, with all steps up to one."""
        metadata = self.metadata | ({"finished_at": "2026-11-23T12:00:00+00:00"} if ended else {})
        for number, rank in enumerate(self.ranks):
            if ranks is not None and number not in ranks:
                continue
            for step in self.steps[np.searchsorted(self.steps, rank.written, side="right") :].tolist():
                if step > through:
                    break
                if step in rank.rows_of:
                    rank.kept.add(*self._step(rank, step))
                rank.written = step
            path = write_rows(self.folder, rank.kept, rank.state, metadata)
            written_s = self.ends_s.get(rank.written, self.ends_s[int(self.steps[0])])
            os.utime(path, (written_s, written_s))

    def _step(self, rank: _Rank, step: int) -> tuple[StepLog, list[OperationRow]]:
        """Make what the recorder has of a step."""
        first, last = rank.rows_of[step]
        log = StepLog(step, rank.window, 0)
        of = {name: column[first:last].tolist() for name, column in rank.columns.items()}
        n_rows = last - first
        none = [-1] * n_rows
        microbatches = of.get("mb_id", none)
        rows = [
            OperationRow(self.types[op], False, round(start_s * 1e9), round(duration_s * 1e9), microbatch, virtual)
            for op, start_s, duration_s, microbatch, virtual in zip(
                of["optype"], of["start_ts"], of["duration"], microbatches, of.get("gmc", none), strict=True
            )
        ]
        if "tokens" in of:
            squares = of.get("tokens_sq", [math.nan] * n_rows)
            for microbatch, tokens, tokens_sq in zip(microbatches, of["tokens"], squares, strict=True):
                if microbatch >= 0 and not math.isnan(tokens):
                    log.lengths[microbatch] = (tokens, tokens_sq, None)
        return log, rows


def _read_columns(trace: pa.Table) -> dict[str, np.ndarray]:
    """Read what the recorder records of a trace: -1 and NaN stand for nothing."""
    found = {}
    for name in ("step", "dp_rank", "stage", "mb_id", "mc", "gmc"):
        if name in trace.column_names:
            found[name] = trace[name].cast(pa.int64()).fill_null(-1).to_numpy()
    for name in ("start_ts", "duration", "tokens", "tokens_sq"):
        if name in trace.column_names:
            found[name] = trace[name].cast(pa.float64()).fill_null(math.nan).to_numpy()
    found["optype"] = trace["optype"].combine_chunks().cast(pa.string()).dictionary_encode().indices.to_numpy()
    return found
