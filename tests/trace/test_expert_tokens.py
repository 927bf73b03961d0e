"""The column `expert_tokens`: lists that are added up, each way a trace is read; what is damaged is not known."""

from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from diagnose.errors import TraceError
from diagnose.faults.expert_imbalance import ExpertImbalance
from diagnose.faults.spec import JobSpec
from diagnose.model.optype import Op
from diagnose.trace.convert import write_trace
from diagnose.trace.load import load_trace
from diagnose.trace.read import read_rows
from tests.jobs import Shape, load, random_job, to_file, to_table
from tests.judge.cases import make

SHAPE = Shape(n_steps=3, n_dp=2, n_stages=2, n_microbatches=2)


@pytest.fixture(scope="module")
def rows() -> pd.DataFrame:
    """Give a healthy job."""
    return random_job(SHAPE, 0)


def counted(rows: pd.DataFrame) -> pd.DataFrame:
    """Count tokens of two experts on each compute: as many as its microbatch and dp rank say."""
    lists = [
        [10, 100 * int(dp) + int(mb)] if mb >= 0 else None for dp, mb in zip(rows.dp_rank, rows.mb_id, strict=True)
    ]
    return rows.assign(expert_tokens=lists)


def test_lists_are_added_up(rows: pd.DataFrame) -> None:
    """Each compute has the sum of its experts; nothing else has any."""
    (block,) = load(counted(rows), SHAPE.meta).blocks
    assert block.expert_tokens is not None
    computes = np.isin(block.nodes.op, (Op.FORWARD, Op.BACKWARD))
    wanted = 10.0 + 100.0 * np.arange(2) + block.nodes.microbatch[computes, None, None]
    assert block.expert_tokens[computes] == pytest.approx(np.broadcast_to(wanted, (int(computes.sum()), 3, 2)))
    assert np.isnan(block.expert_tokens[~computes]).all()


def test_none(rows: pd.DataFrame) -> None:
    """Without the column, or with nothing in it, there are no tokens."""
    assert load(rows, SHAPE.meta).blocks[0].expert_tokens is None
    empty = load(rows.assign(expert_tokens=None), SHAPE.meta).blocks[0].expert_tokens
    assert empty is None or np.isnan(empty).all()


@pytest.mark.parametrize("damaged", [[-1, 5], [None, 5], [2**60]])
def test_what_cannot_be_is_not_known(rows: pd.DataFrame, damaged: list[int | None]) -> None:
    """A negative, missing or impossible number makes that compute unknown, and no other."""
    lists = list(counted(rows).expert_tokens)
    lists[int(np.flatnonzero(rows.mb_id >= 0)[0])] = damaged
    (block,) = load(rows.assign(expert_tokens=lists), SHAPE.meta).blocks
    assert block.expert_tokens is not None
    computes = np.isin(block.nodes.op, (Op.FORWARD, Op.BACKWARD))
    assert int(np.isnan(block.expert_tokens[computes]).sum()) == 1


def test_another_type_is_refused(rows: pd.DataFrame) -> None:
    """Text or numbers alone are refused, with the column and what was expected."""
    with pytest.raises(TraceError, match="lists of whole numbers") as error:
        load(rows.assign(expert_tokens="many"), SHAPE.meta)
    assert "expert_tokens" in str(error.value)


def test_a_conversion_keeps_the_sums(rows: pd.DataFrame, tmp_path: Path) -> None:
    """A trace that was converted has the same tokens; lists become one number each."""
    path = tmp_path / "job.parquet"
    path.write_bytes(to_file(to_table(counted(rows), SHAPE.meta)).read())
    again = tmp_path / "again.parquet"
    again.write_bytes(write_trace(read_rows(path, name="job"), SHAPE.meta))
    before, after = load_trace(path).blocks[0].expert_tokens, load_trace(again).blocks[0].expert_tokens
    assert before is not None and after is not None
    assert after == pytest.approx(before, nan_ok=True)


def test_generated_jobs_have_the_column() -> None:
    """A job whose experts are counted has lists on computes alone, and the number of ranks in its metadata."""
    spec = JobSpec(pp=2, dp=2, microbatches=2, steps=4)
    table = make(spec, ExpertImbalance(records_tokens=True, says_ep_size=True)).trace
    assert pa.types.is_list(table.schema.field("expert_tokens").type)
    sink = pa.BufferOutputStream()
    pq.write_table(table, sink)
    trace = load_trace(pa.BufferReader(sink.getvalue()), name="job")
    assert trace.job.ep_size == 2
    tokens = trace.blocks[0].expert_tokens
    assert tokens is not None
    assert np.isfinite(tokens).any(axis=(1, 2)).sum() == np.isin(trace.blocks[0].nodes.op, (0, 1)).sum()
