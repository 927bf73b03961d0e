"""What `load_trace` does with damage: mend it and say so, or refuse it and say what to do."""

import io
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

from diagnose.errors import TraceError
from diagnose.model.trace import Trace
from diagnose.model.whatif import WhatIf
from diagnose.trace.load import load_trace
from diagnose.whatif.scenarios import explore, prepare
from tests.jobs import Shape, hand_job, load, random_job, to_file, to_table, write

SHAPE = Shape(n_steps=6, n_dp=3, n_stages=2, n_microbatches=4)


@pytest.fixture(scope="module")
def rows() -> pd.DataFrame:
    """Give a healthy job of 6 steps."""
    return random_job(SHAPE, 0)


@pytest.fixture(scope="module")
def healthy(rows: pd.DataFrame) -> WhatIf:
    """Give the analysis of the healthy job."""
    return analyse(load(rows, SHAPE.meta))


def analyse(trace: Trace) -> WhatIf:
    """Run the what-if."""
    return explore(trace, prepare(trace))


def only_warning(trace: Trace) -> str:
    """Give the one warning that there must be."""
    __tracebackhide__ = True
    assert len(trace.warnings) == 1, trace.warnings
    return trace.warnings[0]


# ------------------------------------------------------------------------------- mended with a warning


@pytest.mark.parametrize("n", [1, 30])
def test_unknown_operation_types_are_counted_and_not_simulated(rows: pd.DataFrame, healthy: WhatIf, n: int) -> None:
    """Rows of a type that is not ours change nothing and are counted, with the type's name."""
    strange = rows.head(n).assign(optype="all-to-all", seq_id=0)
    trace = load(pd.concat([rows, strange]), SHAPE.meta)
    assert f"{n} rows of types that are not simulated are kept" in only_warning(trace)
    assert "all-to-all" in only_warning(trace)
    assert analyse(trace).slowdown == pytest.approx(healthy.slowdown, rel=1e-12)


@pytest.mark.parametrize("drop", [[], ["seq_id"]], ids=["with seq_id", "without"])
def test_duplicates_are_left_out(rows: pd.DataFrame, healthy: WhatIf, drop: list[str]) -> None:
    """The same row twice counts once, whether or not rows are numbered."""
    twice = pd.concat([rows, rows.sample(frac=0.1, random_state=1)]).drop(columns=drop)
    trace = load(twice, SHAPE.meta)
    assert f"{len(twice) - len(rows)} rows are duplicates" in only_warning(trace)
    assert analyse(trace).slowdown == pytest.approx(healthy.slowdown, rel=1e-12)


def test_duplicates_of_a_part_of_a_step_are_no_rows_that_others_lack(rows: pd.DataFrame, healthy: WhatIf) -> None:
    """The first rows of a worker again: the others lack none, and no row gets the number of another."""
    mine = rows[(rows.step == rows.step.min()) & (rows.dp_rank == 0) & (rows.stage == 0)]
    trace = load(pd.concat([rows, mine.head(len(mine) // 2)]), SHAPE.meta)
    assert only_warning(trace) == f"{len(mine) // 2} rows are duplicates and are left out"
    assert analyse(trace).slowdown == pytest.approx(healthy.slowdown, rel=1e-12)


@pytest.mark.parametrize("mostly", [False, True])
@pytest.mark.parametrize("n_twice", [0, 5])
def test_transfers_that_begin_together_are_no_duplicates(rows: pd.DataFrame, n_twice: int, *, mostly: bool) -> None:
    """On a coarse clock two recvs of one worker begin together: of transfers only those that others lack are left out."""
    # GIVEN recvs that began to wait with the one before them, in a third of the steps or in all others
    lane = ["step", "dp_rank", "stage", "optype"]
    before_s = rows.sort_values([*lane, "seq_id"]).groupby(lane).start_ts.shift().reindex(rows.index)
    waits = rows.optype.str.endswith("recv") & (rows.seq_id == 2) & (rows.step.isin(np.unique(rows.step)[:2]) ^ mostly)
    start_s = rows.start_ts.where(~waits, before_s)
    together = rows.assign(start_ts=start_s, duration=rows.start_ts + rows.duration - start_s)
    # WHEN rows lose their numbers and their order, and some of these recvs are there twice
    twice = pd.concat([together, together[waits].sample(n_twice, random_state=1)]).sample(frac=1.0, random_state=2)
    trace, wanted = load(twice.drop(columns="seq_id"), SHAPE.meta), load(together, SHAPE.meta)
    # THEN it is the job with numbers
    assert trace.warnings == ((f"{n_twice} rows are duplicates and are left out",) if n_twice else ())
    np.testing.assert_array_equal(trace.blocks[0].start_s, wanted.blocks[0].start_s)
    np.testing.assert_array_equal(trace.blocks[0].end_s, wanted.blocks[0].end_s)


@pytest.mark.parametrize("optype", ["forward-compute", "gc"])
def test_computes_and_evidence_that_begin_together_are_duplicates(rows: pd.DataFrame, optype: str) -> None:
    """What is no transfer is left out where it is there twice, also on a worker that lacks another one."""
    forwards = rows[rows.optype == "forward-compute"]
    collections = forwards.assign(optype="gc", duration=0.0) if optype == "gc" else forwards.head(0)
    rows = pd.concat([rows, collections], ignore_index=True)
    mine = rows[(rows.optype == optype) & (rows.step == rows.step.max()) & (rows.dp_rank == 1) & (rows.stage == 1)]
    twice = pd.concat([rows.drop(index=mine.index[-1]), mine.head(1)]).drop(columns="seq_id")
    assert load(twice, SHAPE.meta).warnings[0] == "1 rows are duplicates and are left out"


def test_a_whole_file_twice_counts_once(rows: pd.DataFrame, healthy: WhatIf) -> None:
    """Two copies of every row are one job."""
    trace = load(pd.concat([rows, rows]), SHAPE.meta)
    assert analyse(trace).slowdown == pytest.approx(healthy.slowdown, rel=1e-12)


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf, -0.5, 1e30])
@pytest.mark.parametrize("column", ["duration", "start_ts"])
def test_rows_without_a_usable_time_are_left_out(
    rows: pd.DataFrame, healthy: WhatIf, column: str, value: float
) -> None:
    """A time that cannot be is counted, its row left out and the gap filled: S hardly moves."""
    if column == "start_ts" and value == -0.5:
        pytest.skip("a start may lie before its step")
    broken = rows.copy()
    computes = np.flatnonzero(rows.optype == "forward-compute")
    broken.iloc[computes[[3, 20]], broken.columns.get_loc(column)] = value
    trace = load(broken, SHAPE.meta)
    assert any(warning.startswith("2 rows") for warning in trace.warnings), trace.warnings
    assert any("2 operations are missing" in warning for warning in trace.warnings), trace.warnings
    assert analyse(trace).slowdown == pytest.approx(healthy.slowdown, rel=0.05)


@pytest.mark.parametrize("column", ["step", "dp_rank", "stage", "optype", "start_ts", "duration"])
def test_null_in_a_required_column_costs_the_row(rows: pd.DataFrame, healthy: WhatIf, column: str) -> None:
    """A row without one of its required values is counted and left out; the rest is analysed."""
    table = to_table(rows, SHAPE.meta)
    hole = np.zeros(len(rows), dtype=bool)
    hole[np.flatnonzero(rows.optype == "backward-compute")[[5, 9]]] = True
    i = table.column_names.index(column)
    filled = pa.array(table[column].to_pylist(), mask=hole, type=table.schema.field(column).type)
    trace = load(table.set_column(i, column, filled))
    assert any(warning.startswith("2 rows") for warning in trace.warnings), trace.warnings
    assert analyse(trace).slowdown == pytest.approx(healthy.slowdown, rel=0.05)


@pytest.mark.parametrize("column", ["seq_id", "mb_id", "mc"])
@pytest.mark.parametrize("share", [0.05, 1.0])
def test_null_in_an_optional_column_costs_nothing(
    rows: pd.DataFrame, healthy: WhatIf, column: str, share: float
) -> None:
    """Where an optional value is null it is derived, and S stays."""
    table = to_table(rows, SHAPE.meta)
    hole = np.random.default_rng(3).random(len(rows)) < share
    i = table.column_names.index(column)
    trace = load(table.set_column(i, column, pa.array(rows[column].to_numpy(), mask=hole)))
    assert analyse(trace).slowdown == pytest.approx(healthy.slowdown, rel=1e-9)


def test_seq_ids_that_contradict_start_times_are_counted_again(rows: pd.DataFrame, healthy: WhatIf) -> None:
    """Numbers that run backwards are replaced by start order, with a warning."""
    last = rows.groupby(["step", "dp_rank", "stage", "optype"]).seq_id.transform("max")
    trace = load(rows.assign(seq_id=last - rows.seq_id), SHAPE.meta)
    assert "seq_id" in only_warning(trace)
    assert analyse(trace).slowdown == pytest.approx(healthy.slowdown, rel=1e-9)


@pytest.mark.parametrize("value", [-1, 2**31 - 1])
def test_seq_ids_that_cannot_be_are_counted_again(rows: pd.DataFrame, healthy: WhatIf, value: int) -> None:
    """A negative or huge number neither breaks nor fills memory."""
    odd = int(np.flatnonzero(rows.optype == "forward-compute")[2])
    broken = rows.assign(seq_id=np.where(np.arange(len(rows)) == odd, value, rows.seq_id))
    trace = load(broken, SHAPE.meta)
    assert "seq_id" in only_warning(trace)
    assert analyse(trace).slowdown == pytest.approx(healthy.slowdown, rel=1e-9)


@pytest.mark.parametrize("value", [-1, 2**31 - 1])
def test_seq_ids_of_evidence_do_not_matter(rows: pd.DataFrame, healthy: WhatIf, value: int) -> None:
    """The number of a collection is not used, so an odd one changes nothing and is no damage."""
    trace = load(rows.assign(seq_id=np.where(rows.optype == "gc", value, rows.seq_id)), SHAPE.meta)
    assert not trace.warnings
    assert analyse(trace).slowdown == healthy.slowdown


def test_seq_ids_that_count_on_over_steps_are_counted_again(rows: pd.DataFrame, healthy: WhatIf) -> None:
    """A counter that nobody reset at each step means the same order."""
    number = rows.step.rank(method="dense").astype(int) - 1
    longest = rows.groupby(["step", "dp_rank", "stage", "optype"]).seq_id.transform("size")
    trace = load(rows.assign(seq_id=rows.seq_id + number * longest), SHAPE.meta)
    assert trace.steps_dropped == 0
    assert analyse(trace).slowdown == pytest.approx(healthy.slowdown, rel=1e-9)


@pytest.mark.parametrize("share", [0.002, 0.02])
@pytest.mark.parametrize("seed", range(4))
def test_a_few_lost_rows_are_filled(share: float, seed: int) -> None:
    """With some rows lost at random, in no lane all of them there, every step is analysed and S moves by less than 5%."""
    shape = Shape(n_steps=6, n_dp=4, n_stages=4, n_microbatches=12)
    rows = random_job(shape, seed)
    lost = np.random.default_rng([seed, 4]).random(len(rows)) < share
    trace = load(rows[~lost], shape.meta)
    assert trace.steps_dropped == 0
    assert any("missing" in warning for warning in trace.warnings)
    full = analyse(load(rows, shape.meta))
    found = analyse(trace)
    assert found.slowdown == pytest.approx(full.slowdown, rel=0.05)
    np.testing.assert_allclose(found.by_stage, full.by_stage, rtol=0.05)


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("counted", [True, False], ids=["seq_id", "no seq_id"])
def test_a_few_lost_rows_are_filled_in_interleaved_jobs(seed: int, counted: bool) -> None:
    """The same where several model chunks share a stage and no lane has all of its rows."""
    shape = Shape(n_steps=6, n_dp=2, n_stages=4, n_microbatches=8, n_chunks=3)
    rows = random_job(shape, seed)
    rows = rows if counted else rows.drop(columns="seq_id")
    lost = np.random.default_rng([seed, 5]).random(len(rows)) < (0.02 if counted else 0.005)
    found, full = analyse(load(rows[~lost], shape.meta)), analyse(load(rows, shape.meta))
    assert found.slowdown == pytest.approx(full.slowdown, rel=0.05)


def test_an_operation_that_only_a_minority_kept_is_still_there(rows: pd.DataFrame, healthy: WhatIf) -> None:
    """One send whose row only a third of the lanes still have is filled, as later sends show that it was there."""
    lanes = rows.step.rank(method="dense").astype(int) * SHAPE.n_dp + rows.dp_rank
    gone = (rows.optype == "forward-send") & (rows.stage == 0) & (rows.seq_id == 1) & (lanes % 3 != 0)
    trace = load(rows[~gone], SHAPE.meta)
    assert analyse(trace).slowdown == pytest.approx(healthy.slowdown, rel=0.05)


def test_a_step_that_misses_too_much_is_dropped(rows: pd.DataFrame) -> None:
    """A step with half of its rows is dropped and named; the others are as if it had never been."""
    steps = np.unique(rows.step)
    half = (rows.step == steps[2]) & (np.random.default_rng(5).random(len(rows)) < 0.5)
    trace = load(rows[~half], SHAPE.meta)
    assert trace.steps_dropped == 1
    assert any(str(steps[2]) in warning and "dropped" in warning for warning in trace.warnings)
    assert trace.steps.tolist() == [step for step in steps.tolist() if step != steps[2]]
    without = analyse(load(rows[rows.step != steps[2]], SHAPE.meta))
    assert analyse(trace).slowdown == pytest.approx(without.slowdown, rel=1e-9)


@pytest.mark.parametrize("n_absent", [1, 2])
def test_a_worker_absent_from_some_steps_costs_no_more_than_those_steps(
    rows: pd.DataFrame, healthy: WhatIf, n_absent: int
) -> None:
    """Steps without one worker are filled or dropped, with a warning; the rest stays."""
    steps = np.unique(rows.step)[:n_absent]
    gone = rows.step.isin(steps) & (rows.dp_rank == 1) & (rows.stage == 1)
    trace = load(rows[~gone], SHAPE.meta)
    assert trace.warnings
    assert trace.steps_dropped <= n_absent
    assert analyse(trace).slowdown == pytest.approx(healthy.slowdown, rel=0.1)


def test_the_number_of_microbatches_may_change_between_steps() -> None:
    """Steps with 4 and with 6 microbatches are replayed as their own groups: each S is what it is alone."""
    few, many = Shape(n_steps=3, n_microbatches=4), Shape(n_steps=3, n_microbatches=6)
    first = random_job(few, 1).assign(step=lambda r: r.step.rank(method="dense").astype(int))
    second = random_job(many, 2).assign(step=lambda r: r.step.rank(method="dense").astype(int) + 10)
    trace = load(pd.concat([first, second]), few.meta)
    assert len(trace.blocks) == 2
    assert "number of microbatches changes" in only_warning(trace)
    found = analyse(trace)
    assert found.steps.tolist() == [1, 2, 3, 11, 12, 13]
    alone = [analyse(load(part, few.meta)) for part in (first, second)]
    np.testing.assert_allclose(found.simulated_s, np.concatenate([part.simulated_s for part in alone]), rtol=1e-9)


def test_one_dp_rank_may_have_fewer_microbatches() -> None:
    """A dp rank with 3 microbatches beside others with 4 is replayed as it is, its last one absent, not filled."""
    shape = Shape(n_steps=3, n_dp=3, n_stages=1, n_microbatches=4)
    rows = random_job(shape, 3)
    gone = (rows.dp_rank == 1) & rows.optype.isin(("forward-compute", "backward-compute")) & (rows.seq_id == 3)
    trace = load(rows[~gone], shape.meta)
    assert trace.steps_dropped == 0
    assert not any("missing" in warning for warning in trace.warnings)
    (block,) = trace.blocks
    assert block.absent is not None
    assert int(block.absent.sum()) == 2 * shape.n_steps
    analyse(trace)


@pytest.mark.parametrize("left", [0, 5])
def test_a_worker_that_lost_the_end_of_its_step_has_no_fewer_microbatches(left: int) -> None:
    """Of a dp rank's step the first rows are left, or the optimizer's alone: without what closes a step, computes were lost."""
    shape = Shape(n_steps=6, n_dp=8, n_stages=1, n_microbatches=4)
    rows = random_job(shape, 3)
    of_step = rows[(rows.dp_rank == 1) & (rows.step == rows.step.max())].sort_values("start_ts").index
    trace = load(rows.drop(of_step[left:] if left else of_step[:-1]), shape.meta)
    (block,) = trace.blocks
    assert block.absent is None
    assert np.isnan(block.start_s).sum() == len(of_step) - max(left, 1)


def test_a_last_step_cut_off_is_dropped(rows: pd.DataFrame) -> None:
    """The file of a job that was killed within its last step is good up to there."""
    steps = np.unique(rows.step)
    middle = rows[rows.step == steps[-1]].start_ts.median()
    cut = rows[(rows.step != steps[-1]) | (rows.start_ts < middle)]
    trace = load(cut, SHAPE.meta)
    assert trace.steps.tolist() == steps[:-1].tolist()
    assert trace.steps_dropped == 1
    assert analyse(trace).slowdown == pytest.approx(
        analyse(load(rows[rows.step != steps[-1]], SHAPE.meta)).slowdown, rel=1e-9
    )


@pytest.mark.parametrize("absolute", [False, True], ids=["relative", "absolute"])
def test_a_warm_up_step_is_named_and_kept(absolute: bool) -> None:
    """A first step three times as long counts in S as in the paper, and is named."""
    shape = Shape(n_steps=10)
    rows = random_job(shape, 4)
    steps = np.unique(rows.step)
    scale = np.where(rows.step == steps[0], 3.0, 1.0)
    rows = rows.assign(start_ts=rows.start_ts * scale, duration=rows.duration * scale)
    if absolute:
        rows = rows.assign(start_ts=rows.start_ts + 50.0 * rows.step.rank(method="dense"))
    trace = load(rows, shape.meta)
    assert trace.warm_up_steps == (steps[0],)
    assert "warm-up" in only_warning(trace)
    assert trace.steps.tolist() == steps.tolist()


@pytest.mark.parametrize(("n_steps", "n_slow", "n_found"), [(40, 4, 4), (39, 4, 3), (10, 3, 3)])
def test_a_warm_up_lasts_a_tenth_of_the_steps_or_three(n_steps: int, n_slow: int, n_found: int) -> None:
    """A longer one is a slow part of the job."""
    shape = Shape(n_steps=n_steps)
    rows = random_job(shape, 4)
    scale = np.where(rows.step.isin(np.unique(rows.step)[:n_slow]), 3.0, 1.0)
    trace = load(rows.assign(start_ts=rows.start_ts * scale, duration=rows.duration * scale), shape.meta)
    assert len(trace.warm_up_steps) == n_found


@pytest.mark.parametrize("later", [False, True], ids=["only at first", "later, too"])
@pytest.mark.parametrize("everybody", [False, True], ids=["one of four", "all"])
def test_what_a_few_workers_compute_is_no_warm_up_if_it_comes_again(everybody: bool, later: bool) -> None:
    """A job on a host that is shared at intervals begins while it is: its first steps are as long as many later ones."""
    shape = Shape(n_dp=4, n_stages=1, n_steps=1)
    steps = np.arange(40)
    rows = pd.concat([random_job(shape, 4).assign(step=step) for step in steps.tolist()], ignore_index=True)
    slow = rows.step.isin([*steps[:3], *(steps[15:30] if later else [])]) & (
        (rows.dp_rank == rows.dp_rank.min()) | everybody
    )
    scale = np.where(slow, 3.0, 1.0)
    trace = load(rows.assign(start_ts=rows.start_ts * scale, duration=rows.duration * scale), shape.meta)
    assert trace.warm_up_steps == (() if later and not everybody else tuple(steps[:3]))


def test_a_slow_step_in_the_middle_is_no_warm_up() -> None:
    """Only the first step can be a warm-up."""
    shape = Shape(n_steps=10)
    rows = random_job(shape, 4)
    scale = np.where(rows.step == np.unique(rows.step)[4], 3.0, 1.0)
    trace = load(rows.assign(start_ts=rows.start_ts * scale, duration=rows.duration * scale), shape.meta)
    assert trace.warm_up_steps == ()


@pytest.mark.parametrize("column", ["step", "dp_rank", "stage"])
@pytest.mark.parametrize("value", [-5, 2**31 - 1, 2**62])
def test_a_stray_rank_or_step_is_left_out(rows: pd.DataFrame, healthy: WhatIf, column: str, value: int) -> None:
    """One row with an absurd rank makes no rank of its own, and fills no memory."""
    broken = rows.astype({column: "int64"})
    broken.iloc[100, broken.columns.get_loc(column)] = value
    trace = load(broken, SHAPE.meta)
    assert any("hardly any rows" in warning for warning in trace.warnings), trace.warnings
    assert (len(trace.dp_labels), len(trace.stage_labels), len(trace.steps)) == (3, 2, 6)
    assert analyse(trace).slowdown == pytest.approx(healthy.slowdown, rel=0.05)


def test_one_step_and_one_rank_are_a_job() -> None:
    """A single worker and a single step are analysed; nothing can be lost there."""
    shape = Shape(n_steps=1, n_dp=1, n_stages=1, n_microbatches=1)
    trace = load(random_job(shape, 5), shape.meta)
    found = analyse(trace)
    assert found.slowdown == pytest.approx(1.0)
    assert found.by_worker.shape == (1, 1)


# --------------------------------------------------------------------------------------------- refused


def refused(source: Any, *words: str) -> str:
    """Load and analyse what must be refused; every word must be in the message."""
    __tracebackhide__ = True
    with pytest.raises(TraceError) as error:
        analyse(load_trace(source, name=None if isinstance(source, Path) else "job.parquet"))
    assert error.value.exit_code == 3
    for word in words:
        assert word in str(error.value)
    return str(error.value)


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"", "Parquet"),
        (b"PAR1", "Parquet"),
        (b"step,dp_rank\n1,2\n", "is text in which"),
        (b"PAR1" + bytes(100) + b"PAR1", "Parquet"),
        (b"\x1f\x8b" + bytes(50), "Parquet"),
    ],
    ids=repr,
)
def test_what_is_not_parquet_is_refused(tmp_path: Path, content: bytes, said: str) -> None:
    """Any other file is named and refused."""
    path = tmp_path / "job.parquet"
    path.write_bytes(content)
    refused(path, "job.parquet", said)
    refused(io.BytesIO(content), "job.parquet", said)


def test_a_file_that_is_not_there_is_refused(tmp_path: Path) -> None:
    """A wrong path is named."""
    refused(tmp_path / "nowhere.parquet", "nowhere.parquet", "no such file")


def test_a_folder_is_refused(tmp_path: Path) -> None:
    """A folder is no trace."""
    refused(tmp_path, tmp_path.name)


@pytest.mark.parametrize("share", [0.1, 0.5, 0.9, 0.999])
def test_a_truncated_file_is_refused(rows: pd.DataFrame, tmp_path: Path, share: float) -> None:
    """A file that was not copied to its end says so."""
    path = write(tmp_path / "job.parquet", rows)
    content = path.read_bytes()
    path.write_bytes(content[: int(len(content) * share)])
    refused(path, "copy it again")


@pytest.mark.parametrize("column", ["step", "dp_rank", "stage", "optype", "start_ts", "duration"])
def test_a_missing_column_is_named(rows: pd.DataFrame, column: str) -> None:
    """The message names the column that is missing and those that are there."""
    found = [name for name in rows.columns if name != column]
    refused(to_file(rows.drop(columns=[column])), f"'{column}'", found[0])


@pytest.mark.parametrize(
    ("column", "change"),
    [
        ("step", lambda column: column.astype(str)),
        ("dp_rank", lambda column: column > 0),
        ("stage", lambda column: pd.to_datetime(column, unit="s")),
        ("optype", lambda column: column.map(len)),
        ("start_ts", lambda column: column.map(str)),
        ("duration", lambda column: column.map(lambda x: [x])),
        ("duration", lambda column: pd.to_timedelta(column, unit="s")),
        ("seq_id", lambda column: column.map(lambda x: {"a": x})),
        ("host", lambda _: 3),
    ],
)
def test_a_column_of_the_wrong_type_is_named(rows: pd.DataFrame, column: str, change: Callable[[Any], Any]) -> None:
    """The message names the column, the type found and what was expected."""
    refused(
        to_file(rows.assign(host="h").assign(**{column: change(rows.get(column))})),
        f"'{column}'",
        "has type",
        "expected",
    )


def test_a_column_twice_is_named(rows: pd.DataFrame) -> None:
    """Which of two columns is meant cannot be guessed."""
    table = to_table(rows)
    refused(to_file(table.append_column("duration", table["start_ts"])), "'duration'", "more than once")


def test_a_file_without_rows_is_refused(rows: pd.DataFrame) -> None:
    """No rows are no job."""
    refused(to_file(rows.head(0).astype({"optype": "string"})), "no rows")


@pytest.mark.parametrize("optype", ["forward-compute", "backward-compute"])
def test_a_trace_without_computes_is_refused(rows: pd.DataFrame, optype: str) -> None:
    """Without any forward, or any backward, there is nothing to replay; the message names the type."""
    refused(to_file(rows[rows.optype != optype]), optype)


def test_rows_that_are_all_unusable_are_refused(rows: pd.DataFrame) -> None:
    """A trace whose durations are all NaN is refused, not analysed as empty."""
    refused(to_file(rows.assign(duration=np.nan)), "forward-compute")


def test_a_trace_in_which_nothing_took_any_time_is_refused(rows: pd.DataFrame) -> None:
    """Durations that are all 0 (another unit, rounded down) have no slowdown; the message names the column."""
    refused(to_file(rows.assign(duration=0, start_ts=0.0), SHAPE.meta), "duration")


def test_rows_without_a_single_simulated_cell_are_refused(rows: pd.DataFrame) -> None:
    """Computes on stray workers only, collections on all others: there is nothing to lay out."""
    collections = rows.head(200).assign(
        optype="gc", step=1, dp_rank=0, stage=0, seq_id=range(200), start_ts=[0.01 * i for i in range(200)]
    )
    computes = rows[rows.optype.isin(("forward-compute", "backward-compute"))].head(2).assign(step=99)
    other = rows[rows.optype == "backward-compute"].head(1).assign(step=99)
    refused(to_file(pd.concat([collections, computes, other])), "forward-compute")


def test_a_stage_without_computes_is_refused(rows: pd.DataFrame) -> None:
    """A stage of which only collections and communication are recorded cannot be replayed; the message names it."""
    computes = rows.optype.isin(("forward-compute", "backward-compute"))
    refused(to_file(rows[(rows.stage == 0) | ~computes], SHAPE.meta), "stage 1")


@pytest.mark.parametrize("value", [2**62, 2**31, 1000])
def test_a_model_chunk_that_cannot_be_is_no_crash(rows: pd.DataFrame, healthy: WhatIf, value: int) -> None:
    """An absurd `mc` is treated as unknown: with a warning or without, S stays."""
    broken = rows.assign(mc=np.where(rows.mc >= 0, value, -1))
    assert analyse(load(broken, SHAPE.meta)).slowdown == pytest.approx(healthy.slowdown, rel=1e-9)


@pytest.mark.filterwarnings("error")
def test_half_precision_numbers_are_read_without_a_warning_of_numpy(rows: pd.DataFrame, healthy: WhatIf) -> None:
    """Ranks as float16 are whole numbers still."""
    table = to_table(rows, SHAPE.meta)
    for column in ("dp_rank", "stage", "seq_id"):
        table = table.set_column(
            table.column_names.index(column), column, pa.array(rows[column].to_numpy().astype(np.float16))
        )
    assert analyse(load(table)).slowdown == pytest.approx(healthy.slowdown, rel=1e-9)


def test_a_trace_of_which_most_steps_are_unusable_is_refused(rows: pd.DataFrame) -> None:
    """With more than half of the steps dropped, what is left says nothing of the job."""
    steps = np.unique(rows.step)
    half = rows.step.isin(steps[:4]) & (np.random.default_rng(6).random(len(rows)) < 0.5)
    refused(to_file(rows[~half], SHAPE.meta), "4 of 6 steps")


THREE_STAGES = Shape(n_steps=3, n_dp=2, n_stages=3, n_microbatches=3)


def test_a_send_without_a_recv_is_named() -> None:
    """All forward-recv rows of stage 1 lost: the send that has no peer is named, and its stage."""
    rows = random_job(THREE_STAGES, 0)
    lost = (rows.optype == "forward-recv") & (rows.stage == 1)
    refused(to_file(rows[~lost], THREE_STAGES.meta), "forward-send 0 of stage 0", "no recv on stage 1")


def test_a_recv_without_a_send_is_named() -> None:
    """All backward-send rows of stage 1 lost: the recv that has no peer is named, and its stage."""
    rows = random_job(THREE_STAGES, 0)
    lost = (rows.optype == "backward-send") & (rows.stage == 1)
    refused(to_file(rows[~lost], THREE_STAGES.meta), "backward-recv 0 of stage 0", "no send on stage 1")


@pytest.mark.parametrize("end", ["send", "recv"])
def test_transfers_of_which_no_other_end_was_recorded_are_left_out(rows: pd.DataFrame, end: str) -> None:
    """A recorder that writes one end of all transfers leaves a trace as good as one without them, and a warning says so."""
    is_end = rows.optype.isin([f"forward-{end}", f"backward-{end}"])
    without = rows[~rows.optype.str.contains("-send|-recv")]
    trace = load(pd.concat([without, rows[is_end]]), SHAPE.meta)
    assert f"forward-{end} and backward-{end} rows without those of the other end" in only_warning(trace)
    assert analyse(trace).slowdown == pytest.approx(analyse(load(without, SHAPE.meta)).slowdown, rel=1e-12)


def test_operations_that_wait_in_a_circle_are_named() -> None:
    """Stage 0 says that it ran backward 0 before forward 1, stage 1 that it ran forward 1 before backward 0: some are named."""
    rows = hand_job()
    # GIVEN stage 0 in the order F0 B0 F1 B1 while stage 1 runs F0 F1 B0 B1
    swapped = rows.copy()
    late = (rows.stage == 0) & (rows.optype == "forward-compute") & (rows.seq_id == 1)
    swapped.loc[late, "start_ts"] = 7.0
    # THEN B0 of stage 0 waits for B0 of stage 1, that for F1 of stage 1, that for F1 of stage 0, that for B0 of stage 0
    refused(to_file(swapped), "circle", "of stage")


def test_steps_that_are_not_there_are_refused(rows: pd.DataFrame) -> None:
    """Asking for steps that the trace does not have says which it has."""
    with pytest.raises(TraceError, match="none of the steps asked for"):
        load_trace(to_file(rows), name="x", steps=np.array([10**6]))
