"""Traces that are larger than memory allows: whole steps are read, evenly spread, or the job is refused in one line."""

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from diagnose.errors import MemoryShortageError
from diagnose.model.memory import BYTES_AT_START, BYTES_PER_OP
from diagnose.model.request import Request
from diagnose.pipeline import diagnose_job
from diagnose.trace import load
from diagnose.trace.load import load_trace
from diagnose.trace.read import read_rows
from diagnose.trace.sample import Sample, choose_steps

FIXTURE = Path(__file__).parents[2] / "fixtures" / "worker-fault.parquet"


def memory_for(n_rows: float) -> int:
    """Say how much memory so many rows need."""
    return BYTES_AT_START + int(n_rows * BYTES_PER_OP)


def n_rows_of(path: Path) -> int:
    """Count the rows of a trace."""
    return int(pq.read_metadata(path).num_rows)


def test_what_fits_is_read_whole() -> None:
    """A job that fits is not sampled; one row more than fits is."""
    n_rows = n_rows_of(FIXTURE)
    assert choose_steps([FIXTURE], memory_for(n_rows), None, name="job") is None
    assert choose_steps([FIXTURE], memory_for(n_rows - 1), None, name="job") is not None


def test_steps_are_read_whole_and_evenly_spread() -> None:
    """Of a job of twice the size about half of the steps are read, each with all of its rows, from the first to the last."""
    whole = read_rows(FIXTURE, name="job")
    rows = read_rows(FIXTURE, name="job", memory_bytes=memory_for(len(whole) / 2))
    steps = np.unique(whole.step)
    picked = np.unique(rows.step)
    assert 0.8 * len(steps) / 2 <= len(picked) <= len(steps) / 2
    assert len(rows) == np.isin(whole.step, picked).sum() <= len(whole) / 2
    assert picked[0] == steps[0]
    assert picked[-1] == steps[-1]
    gaps = np.diff(np.searchsorted(steps, picked))
    assert gaps.max() <= 3 * len(steps) / len(picked)
    assert (gaps == 1).mean() > 0.5  # runs, so that what lies between two steps is seen
    assert any(f"{len(picked)} of {len(steps)} steps are analysed" in line for line in rows.recording_warnings)


def test_a_fault_is_found_in_the_sample() -> None:
    """The same cause in the same place, with a warning that says what was left out."""
    whole = diagnose_job(Request(FIXTURE))
    part = diagnose_job(Request(FIXTURE, memory_bytes=memory_for(n_rows_of(FIXTURE) / 2)))
    assert [cause.cause for cause in part.causes] == [cause.cause for cause in whole.causes]
    assert part.causes[0].where == whole.causes[0].where
    assert any("evenly spread" in warning for warning in part.warnings)
    assert not any("evenly spread" in warning for warning in whole.warnings)


def test_steps_asked_for_are_all_read() -> None:
    """Steps of a job that is too large, but that fit themselves, are no sample."""
    trace = load_trace(FIXTURE)
    asked = trace.blocks[0].steps[3:9]
    few = load_trace(FIXTURE, steps=asked, memory_bytes=memory_for(n_rows_of(FIXTURE) / 2))
    assert np.concatenate([block.steps for block in few.blocks]).tolist() == asked.tolist()
    assert not any("evenly spread" in warning for warning in few.warnings)


def test_files_of_ranks_are_sampled_alike(tmp_path: Path) -> None:
    """A folder with one file a rank: of all files the same steps."""
    table = pq.read_table(FIXTURE)
    ranks = table["dp_rank"].to_numpy()
    for rank in np.unique(ranks):
        pq.write_table(table.filter(pa.array(ranks == rank)), tmp_path / f"rank-{rank}.parquet")
    rows = read_rows(tmp_path, name="job", memory_bytes=memory_for(table.num_rows / 2))
    n_of = [np.unique(rows.step[rows.dp == rank]).tolist() for rank in np.unique(ranks)]
    assert len(rows) <= table.num_rows / 2
    assert all(steps == n_of[0] for steps in n_of)


def test_the_lists_of_a_sample_are_its_own(tmp_path: Path) -> None:
    """Document lengths are read later, by the number of their row in the file."""
    table = pq.read_table(FIXTURE)
    lists = pa.array([[n] for n in range(table.num_rows)], type=pa.list_(pa.int32()))
    pq.write_table(table.append_column("doc_lengths", lists), tmp_path / "job.parquet")
    rows = read_rows(tmp_path / "job.parquet", name="job", memory_bytes=memory_for(table.num_rows / 2))
    assert rows.number is not None
    assert (table["step"].to_numpy()[rows.number] == rows.step).all()
    assert len(rows.number) <= table.num_rows / 2


def test_too_little_for_a_few_steps_is_refused() -> None:
    """One line says what a few steps need, and what to do."""
    with pytest.raises(MemoryShortageError, match=r"a step has \d+ rows, and 3 steps need .* raise --memory"):
        choose_steps([FIXTURE], BYTES_AT_START + 10, None, name="job")


def test_steps_of_too_many_different_operations_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """What waits for what does not fit: said before it is worked out."""
    monkeypatch.setattr(load, "BYTES_PER_NODE", 2**40)
    monkeypatch.setattr(load, "MANY_NODES", 10)
    with pytest.raises(
        MemoryShortageError, match=r"steps have \d+ different operations, which need about .* raise --memory"
    ):
        load_trace(FIXTURE)


def test_runs_are_spread_over_the_job() -> None:
    """As many steps as fit, whatever their number."""
    for n_steps in (3, 10, 44, 1000):
        for n_fit in range(3, min(n_steps, 60)):
            sample = choose_of(n_steps, n_fit)
            assert n_fit - 4 < len(sample.steps) <= n_fit
            assert sample.n_steps == n_steps


def choose_of(n_steps: int, n_fit: int) -> Sample:
    """Choose of a job of one row a step."""
    content = pa.BufferOutputStream()
    pq.write_table(pa.table({"step": np.arange(n_steps)}), content)
    sample = choose_steps([pa.BufferReader(content.getvalue())], memory_for(n_fit), None, name="job")
    assert sample is not None
    return sample
