"""What `load_trace` makes of files that are right, however they are written."""

import dataclasses
import os
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from diagnose.errors import TraceError
from diagnose.faults.generate import generate
from diagnose.faults.spec import JobSpec
from diagnose.model.optype import Op
from diagnose.model.trace import Trace
from diagnose.model.whatif import WhatIf
from diagnose.trace.load import load_trace, parse_steps
from diagnose.whatif.replay import launch_delays, own_times, replay
from diagnose.whatif.scenarios import explore, prepare
from tests.jobs import Shape, hand_job, load, random_job, random_shape, to_file, to_table, write
from tests.naive import BACKWARD, FORWARD

SHAPE = Shape(n_steps=3, n_dp=2, n_stages=2, n_microbatches=3)
INTERLEAVED = Shape(n_steps=2, n_dp=2, n_stages=2, n_microbatches=4, n_chunks=2)
PROPERTY = settings(max_examples=25, derandomize=True)


def analyse(trace: Trace) -> WhatIf:
    """Run the what-if."""
    return explore(trace, prepare(trace))


def assert_same(found: WhatIf, expected: WhatIf, rel: float = 1e-9) -> None:
    """Compare the measures, whatever the labels are."""
    __tracebackhide__ = True
    assert found.slowdown == pytest.approx(expected.slowdown, rel=rel)
    assert found.by_optype == pytest.approx(expected.by_optype, rel=rel)
    np.testing.assert_allclose(found.by_stage, expected.by_stage, rtol=rel)
    np.testing.assert_allclose(found.by_dp, expected.by_dp, rtol=rel)
    np.testing.assert_allclose(found.by_worker, expected.by_worker, rtol=rel)
    np.testing.assert_allclose(found.by_step, expected.by_step, rtol=rel)


# ---------------------------------------------------------------------------------- a job made by hand


def test_a_job_made_by_hand_has_the_times_that_one_can_add() -> None:
    """2 steps x 2 stages x 2 microbatches, forward 1 s, backward 2 s: 9 s a step, nothing lost."""
    # GIVEN nobody slow
    found = analyse(load(hand_job()))
    # THEN recorded, simulated and ideal are all 9 s
    np.testing.assert_allclose(found.recorded_s, [9.0, 9.0])
    np.testing.assert_allclose(found.simulated_s, [9.0, 9.0])
    np.testing.assert_allclose(found.ideal_s, [9.0, 9.0])
    assert found.slowdown == pytest.approx(1.0)
    assert found.discrepancy == pytest.approx(0.0)
    assert found.m_w is None
    assert found.m_s is None


@pytest.mark.parametrize("slow", [0, 1])
def test_a_slow_stage_made_by_hand_costs_what_one_can_add(slow: int) -> None:
    """One of two stages takes twice as long: 15 s, where 1.5 s and 3 s everywhere would have taken 13.5 s."""
    # GIVEN forward 2 s and backward 4 s on one stage; the means are 1.5 s and 3 s, 1.5 times the 9 s of the healthy job
    found = analyse(load(hand_job(slow_stage=slow)))
    # THEN
    np.testing.assert_allclose(found.recorded_s, 15.0)
    np.testing.assert_allclose(found.simulated_s, 15.0)
    np.testing.assert_allclose(found.ideal_s, 13.5)
    assert found.slowdown == pytest.approx(15.0 / 13.5)
    assert found.by_dp == pytest.approx([15.0 / 13.5])
    # The slow stage alone, the other at 1.5 s and 3 s: 16.5 s. The healthy one alone: 12 s. One dp rank: a worker is a stage.
    assert found.by_stage[slow] == pytest.approx(16.5 / 13.5)
    assert found.by_stage[1 - slow] == pytest.approx(12.0 / 13.5)
    np.testing.assert_allclose(found.by_worker[0], found.by_stage)
    # With the slow stage ideal the step takes 12 s, with the healthy one ideal 16.5 s; 1.5 s were lost.
    assert found.m_w == pytest.approx((15.0 - 12.0) / 1.5)
    assert found.m_s == pytest.approx((15.0 - (12.0 if slow == 1 else 16.5)) / 1.5)


# -------------------------------------------------------------------- the same rows, written otherwise


@pytest.mark.parametrize("shape", [SHAPE, INTERLEAVED], ids=["plain", "interleaved"])
@pytest.mark.parametrize("seed", range(3))
def test_row_order_means_nothing(shape: Shape, seed: int) -> None:
    """Rows in any order give the same trace."""
    rows = random_job(shape, seed)
    shuffled = rows.sample(frac=1.0, random_state=seed)
    assert_same(analyse(load(shuffled, shape.meta)), analyse(load(rows, shape.meta)), rel=1e-15)


@pytest.mark.parametrize("width", ["int8", "uint8", "int16", "int32", "uint32", "uint64", "float32", "float64"])
def test_integer_width_means_nothing(width: str) -> None:
    """Ranks, steps and counts may have any width, whole floats included."""
    rows = random_job(SHAPE, 1)
    rows["step"] = rows.step.rank(method="dense").astype(int)  # small enough for 8 bits
    expected = analyse(load(rows, SHAPE.meta))
    signed = not width.startswith("u")
    columns = ["step", "dp_rank", "stage", "seq_id"] + (["mb_id", "mc"] if signed else [])
    assert_same(analyse(load(rows.astype(dict.fromkeys(columns, width)), SHAPE.meta)), expected, rel=1e-15)


def test_float_width_changes_nothing_but_rounding() -> None:
    """Times may be float32 or float64, each on its own."""
    rows = random_job(SHAPE, 2).astype({"start_ts": "float32", "duration": "float32"})
    expected = analyse(load(rows, SHAPE.meta))
    for columns in (["start_ts"], ["duration"], ["start_ts", "duration"]):
        assert_same(analyse(load(rows.astype(dict.fromkeys(columns, "float64")), SHAPE.meta)), expected, rel=1e-12)


@pytest.mark.parametrize(
    "kind", ["string", "large_string", "dictionary", "dictionary of large_string", "chunked dictionary"]
)
def test_operation_types_may_be_strings_or_a_dictionary(kind: str) -> None:
    """`optype` may be plain strings or a dictionary, with a dictionary of its own for each row group."""
    rows = random_job(SHAPE, 3)
    expected = analyse(load(rows, SHAPE.meta))
    table = to_table(rows, SHAPE.meta)
    column = table["optype"].cast(pa.large_string() if "large" in kind else pa.string())
    if kind == "chunked dictionary":
        half = len(rows) // 3
        column = pa.chunked_array(
            [part.combine_chunks().dictionary_encode() for part in (column.slice(0, half), column.slice(half))]
        ).unify_dictionaries()
    elif "dictionary" in kind:
        column = column.dictionary_encode()
    table = table.set_column(table.column_names.index("optype"), "optype", column)
    assert_same(analyse(load_trace(to_file(table), name="x")), expected, rel=1e-15)


def test_more_columns_and_more_types_in_the_dictionary_mean_nothing() -> None:
    """Columns that nobody asked for, and types in the dictionary that no row has, are passed over without a word."""
    rows = random_job(SHAPE, 3)
    more = rows.assign(
        gmc=0, note="x", optype=pd.Categorical(rows.optype, categories=[*sorted(set(rows.optype)), "first-op"])
    )
    trace = load(more, SHAPE.meta)
    assert trace.warnings == ()
    assert_same(analyse(trace), analyse(load(rows, SHAPE.meta)), rel=1e-15)


@pytest.mark.parametrize("origin_s", [100.0, 1.7e9])
def test_times_of_the_whole_job_are_made_relative_to_each_step(origin_s: float) -> None:
    """Absolute times, seconds since the job or the epoch began, give the same slowdown, and where each step began is kept."""
    rows = random_job(SHAPE, 4)
    number = rows.step.rank(method="dense").astype(int) - 1
    begins = origin_s + 10.0 * number
    trace = load(rows.assign(start_ts=rows.start_ts + begins), SHAPE.meta)
    expected = load(rows, SHAPE.meta)
    assert expected.step_origin_s is None
    assert trace.step_origin_s is not None
    np.testing.assert_allclose(np.diff(trace.step_origin_s), 10.0, atol=0.02)
    assert analyse(trace).slowdown == pytest.approx(analyse(expected).slowdown, rel=1e-4)


def test_steps_that_begin_late_are_no_times_of_the_whole_job() -> None:
    """Where some steps open later than a step lasts, as after a checkpoint, times stay relative and the wait stays in the step."""
    rows = random_job(dataclasses.replace(SHAPE, n_steps=6), 4)
    number = rows.step.rank(method="dense").astype(int) - 1
    length_s = float((rows.start_ts + rows.duration).max())
    trace = load(rows.assign(start_ts=rows.start_ts + 3.0 * length_s * (number % 3 == 1)), SHAPE.meta)
    assert trace.step_origin_s is None
    ends_s = np.concatenate([block.end_s.max(axis=(0, 2)) for block in trace.blocks])
    assert (ends_s > 3.0 * length_s).sum() == 2


def test_steps_that_all_begin_late_are_no_two_runs() -> None:
    """Where every step waits longer than it lasts, one more than another, steps that count from their own begin stay one run."""
    rows = random_job(dataclasses.replace(SHAPE, n_steps=24), 4)
    number = rows.step.rank(method="dense").astype(int) - 1
    length_s = float((rows.start_ts + rows.duration).max())
    trace = load(rows.assign(start_ts=rows.start_ts + length_s * (1.5 + 2.0 * (number % 3))), SHAPE.meta)
    assert trace.step_origin_s is None
    assert any("that is not their begin" in warning for warning in trace.warnings)


@pytest.mark.parametrize("n_runs", [2, 4, 8])
def test_steps_of_several_runs_at_a_time_are_refused(n_runs: int) -> None:
    """However many runs share a file, their steps begin later and later, and at the same time as others."""
    rows = random_job(dataclasses.replace(SHAPE, n_steps=24), 4)
    number = rows.step.rank(method="dense").astype(int) - 1
    length_s = float((rows.start_ts + rows.duration).max())
    with pytest.raises(TraceError, match="holds two runs"):
        load(rows.assign(start_ts=rows.start_ts + 100.0 + length_s * (number // n_runs)), SHAPE.meta)


def test_a_clock_that_is_set_back_leaves_the_steps_as_long_as_they_are() -> None:
    """On a clock of the whole job that jumps back once, no step lasts longer than it did."""
    rows = random_job(dataclasses.replace(SHAPE, n_steps=4), 4)
    begins = np.array([500.0, 503.0, 10.0, 13.0])[rows.step.rank(method="dense").astype(int) - 1]
    trace = load(rows.assign(start_ts=rows.start_ts + begins), SHAPE.meta)
    longest_s = max(float(block.end_s.max()) for block in trace.blocks)
    assert longest_s <= float((rows.start_ts + rows.duration).max()) + 1e-6


@pytest.mark.parametrize(
    "missing", [["seq_id"], ["mb_id"], ["mc"], ["mb_id", "mc"], ["seq_id", "mb_id", "mc"]], ids="+".join
)
@pytest.mark.parametrize("shape", [SHAPE, INTERLEAVED], ids=["plain", "interleaved"])
def test_optional_columns_are_derived(shape: Shape, missing: list[str]) -> None:
    """Without `seq_id`, `mb_id` and `mc` the launch order says the same, and no measure changes."""
    rows = random_job(shape, 5)
    trace = load(rows.drop(columns=missing), shape.meta)
    assert trace.warnings == ()
    assert_same(analyse(trace), analyse(load(rows, shape.meta)), rel=1e-12)


@pytest.mark.parametrize("seed", range(40))
def test_optional_columns_are_derived_in_jobs_of_every_shape(seed: int) -> None:
    """Whatever the shape, required columns and metadata alone give the same S."""
    shape = random_shape(seed)
    rows = random_job(shape, seed)
    bare = load(rows.drop(columns=["seq_id", "mb_id", "mc"]), shape.meta)
    assert_same(analyse(bare), analyse(load(rows, shape.meta)), rel=1e-9)


@pytest.mark.parametrize("name", ["AR", "ST"])
def test_derived_columns_leave_published_slowdown_unchanged(shared: Path, name: str) -> None:
    """The real traces without their optional columns have the same S, to the last digit."""
    path = shared / "artifact" / f"trace-{name}.parquet"
    rows = pd.read_parquet(path).drop(columns=["seq_id", "mb_id", "mc", "gmc", "rank"])
    assert_same(analyse(load(rows)), analyse(load_trace(path)), rel=1e-12)


def test_ranks_need_not_start_at_zero_nor_be_contiguous() -> None:
    """Labels are kept as the file has them, everything else goes by position."""
    rows = random_job(SHAPE, 6)
    renamed = rows.assign(dp_rank=rows.dp_rank.map({0: 7, 1: 40}), stage=rows.stage.map({0: 3, 1: 9}))
    trace = load(renamed, SHAPE.meta)
    assert trace.dp_labels.tolist() == [7, 40]
    assert trace.stage_labels.tolist() == [3, 9]
    assert_same(analyse(trace), analyse(load(rows, SHAPE.meta)), rel=1e-15)


@pytest.mark.skipif(os.name != "posix", reason="a pipe with a name")
def test_a_pipe_is_read_as_the_file_would_be(tmp_path: Path) -> None:
    """What has no size and cannot seek, as `<(cat job.parquet)`, gives the same measures."""
    content = to_file(random_job(SHAPE, 3), SHAPE.meta).getvalue()
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    writer = threading.Thread(target=pipe.write_bytes, args=(content,))
    writer.start()
    found = load_trace(pipe)
    writer.join()
    assert_same(analyse(found), analyse(load(random_job(SHAPE, 3), SHAPE.meta)))


def test_an_empty_folder_is_no_trace(tmp_path: Path) -> None:
    """A folder without any file is refused in words."""
    with pytest.raises(TraceError, match="is an empty folder; expected the files of one job"):
        load_trace(tmp_path)


def test_steps_can_be_picked() -> None:
    """Only the steps asked for are analysed."""
    rows = random_job(SHAPE, 7)
    steps = np.unique(rows.step)
    trace = load_trace(to_file(rows, SHAPE.meta), name="x", steps=steps[:2])
    assert trace.steps.tolist() == steps[:2].tolist()
    assert_same(analyse(trace), analyse(load(rows[rows.step.isin(steps[:2])], SHAPE.meta)), rel=1e-15)


@pytest.mark.parametrize(
    ("text", "expected"),
    [("3", [3]), ("3-5", [3, 4, 5]), ("3-5,80", [3, 4, 5, 80]), ("5,3, 4", [3, 4, 5]), ("2,2-2", [2])],
)
def test_lists_of_steps(text: str, expected: list[int]) -> None:
    """Steps are numbers and ranges, in any order, each once."""
    assert parse_steps(text).tolist() == expected


@pytest.mark.parametrize("text", ["", "x", "5-3", "1-", "1,,2", "0-99999999999"])
def test_lists_of_steps_that_are_none(text: str) -> None:
    """Anything else is refused."""
    with pytest.raises(ValueError):  # noqa: PT011 - the caller names the option
        parse_steps(text)


# ------------------------------------------------------------------------------------- ranks and hosts


@pytest.mark.parametrize("column", ["tp_rank", "cp_rank", "rank"])
def test_all_members_of_a_tensor_parallel_group_may_be_recorded(column: str) -> None:
    """Rows of every member count as one operation, from the first start to the last end."""
    rows = random_job(SHAPE, 8)
    rng = np.random.default_rng(8)
    members = []
    for member in range(2):
        early = rng.uniform(0.0, 1e-4, len(rows)) * member
        members.append(
            rows.assign(
                start_ts=rows.start_ts + early,
                duration=rows.duration - 2 * early * (rows.duration > 1e-3),
                **{column: member},
            )
        )
    both = pd.concat(members, ignore_index=True)
    if column == "rank":
        both["rank"] = (both.stage * 2 + both.dp_rank) * 2 + both["rank"]
    trace = load(
        both,
        SHAPE.meta
        | {"world_size": 8, "tp_size": None if column == "cp_rank" else 2, "cp_size": 2 if column == "cp_rank" else 1},
    )
    assert trace.n_ops == len(rows)
    found, expected = analyse(trace), analyse(load(rows, SHAPE.meta))
    assert found.slowdown == pytest.approx(expected.slowdown, rel=0.02)
    np.testing.assert_allclose(found.recorded_s, expected.recorded_s, rtol=0.01)


def test_every_member_alike_changes_nothing() -> None:
    """Members with equal times give exactly what one member gives."""
    rows = random_job(SHAPE, 8)
    both = pd.concat([rows.assign(tp_rank=member) for member in range(4)], ignore_index=True)
    trace = load(both, SHAPE.meta | {"tp_size": 4, "world_size": 16})
    assert trace.job.tp_size == 4
    assert_same(analyse(trace), analyse(load(rows, SHAPE.meta)), rel=1e-12)


def test_ranks_and_hosts_are_kept() -> None:
    """Each worker has the global rank and the host that its rows name."""
    rows = random_job(SHAPE, 9)
    rank = rows.stage * 2 + rows.dp_rank
    trace = load(rows.assign(rank=rank, host="node-" + rank.astype(str)), SHAPE.meta)
    assert trace.ranks.tolist() == [[0, 2], [1, 3]]
    assert trace.hosts == ("node-0", "node-2", "node-1", "node-3")


# ---------------------------------------------------------------------------------- garbage collection


def _with_gc(rows: pd.DataFrame, spans: list[tuple[int, int, int, float, float]]) -> pd.DataFrame:
    """Add collections: (step, dp, stage, start, duration)."""
    added = [
        (step, dp, stage, "gc", start, duration, i, -1, -1)
        for i, (step, dp, stage, start, duration) in enumerate(spans)
    ]
    return pd.concat([rows, pd.DataFrame(added, columns=list(rows.columns))], ignore_index=True)


def test_a_collection_inside_a_compute_is_evidence_only() -> None:
    """A collection inside a forward says why it was long; S is what it was without the row."""
    rows = hand_job(slow_stage=0)
    trace = load(_with_gc(rows, [(10, 0, 0, 0.5, 1.0)]))
    assert not any(Op.GC in block.nodes.op for block in trace.blocks)
    assert (trace.evidence.op == Op.GC).sum() == 1
    assert_same(analyse(trace), analyse(load(rows)), rel=1e-15)


def test_a_collection_after_the_last_compute_is_replayed() -> None:
    """1 s of collection between the last backward (9 s) and the optimizer makes a 10 s step of a 9 s one."""
    rows = hand_job()
    late = rows.optype.isin(("optimizer",)) | ((rows.optype == "optimizer-clip-main-grad") & (rows.stage == 0))
    rows = rows.assign(
        start_ts=rows.start_ts + late,
        duration=rows.duration + ((rows.optype == "optimizer-clip-main-grad") & (rows.stage == 1)),
    )
    trace = load(_with_gc(rows, [(step, 0, 0, 9.0, 1.0) for step in (10, 11)]))
    found = analyse(trace)
    np.testing.assert_allclose(found.recorded_s, 10.0)
    np.testing.assert_allclose(found.simulated_s, 10.0)
    assert found.by_optype["gc"] == pytest.approx(1.0)


def test_a_collection_of_zero_that_starts_with_the_compute_s_end_rounded_down_took_nothing() -> None:
    """A collection recorded as having taken nothing has own time 0, even when it starts half a millisecond early."""
    trace = load(_with_gc(hand_job(), [(step, 0, 0, 9.0 - 0.0005, 0.0) for step in (10, 11)]))
    for p in prepare(trace):
        gc = np.flatnonzero(p.block.nodes.op == Op.GC)
        assert len(gc) == 1
        np.testing.assert_allclose(p.own[gc[0]], 0.0, atol=1e-12)


# ---------------------------------------------------------------------------------------- compute only


@pytest.mark.parametrize("seed", range(6))
def test_a_trace_of_computes_alone_is_analysed(seed: int) -> None:
    """Forward and backward rows alone are enough: stages wait for each other by microbatch."""
    shape = Shape(n_steps=2, n_dp=2, n_stages=3, n_microbatches=4, compute_only=True)
    rows = random_job(shape, seed)
    assert set(rows.optype) == {FORWARD, BACKWARD}
    trace = load(rows, shape.meta)
    assert trace.warnings == ()
    found = analyse(trace)
    assert set(found.by_optype) == {FORWARD, BACKWARD}
    assert found.slowdown > 1.0


# ------------------------------------------------------------------------------------------ properties


def jobs() -> st.SearchStrategy[tuple[Shape, int]]:
    """Draw a job by its seed."""
    return st.integers(0, 10_000).map(lambda seed: (dataclasses.replace(random_shape(seed), clock_error_s=0.0), seed))


@PROPERTY
@given(jobs())
def test_replaying_what_was_recorded_gives_what_was_recorded(job: tuple[Shape, int]) -> None:
    """With own times and launch delays as recorded, each step takes as long as it did."""
    shape, seed = job
    for p in prepare(load(random_job(shape, seed), shape.meta)):
        last = replay(p.graph, own_times(p.block, p.graph), launch_delays(p.block, p.graph))[:, 0]
        np.testing.assert_allclose(last, p.block.end_s.max(axis=(0, 2)), rtol=1e-9)


@PROPERTY
@given(jobs(), st.data())
def test_shortening_an_operation_never_lengthens_a_step(job: tuple[Shape, int], data: st.DataObject) -> None:
    """Whichever operation becomes shorter, no step becomes longer."""
    shape, seed = job
    (p,) = prepare(load(random_job(shape, seed), shape.meta))
    node = data.draw(st.integers(0, p.graph.n_nodes - 1))
    factor = data.draw(st.floats(0.0, 1.0))
    own = list(p.own)
    own[node] = own[node] * factor
    before, after = replay(p.graph, p.own), replay(p.graph, own)
    assert (after <= before + 1e-12).all()


@PROPERTY
@given(jobs(), st.randoms(use_true_random=False))
def test_renaming_dp_ranks_only_renames(job: tuple[Shape, int], random: Any) -> None:
    """Another order of the dp ranks permutes S_dp and S_w and leaves the rest."""
    shape, seed = job
    rows = random_job(shape, seed)
    new = list(range(shape.n_dp))
    random.shuffle(new)
    renamed = analyse(load(rows.assign(dp_rank=rows.dp_rank.map(dict(enumerate(new)))), shape.meta))
    expected = analyse(load(rows, shape.meta))
    assert renamed.slowdown == pytest.approx(expected.slowdown, rel=1e-12)
    np.testing.assert_allclose(renamed.by_dp[new], expected.by_dp, rtol=1e-12)
    np.testing.assert_allclose(renamed.by_worker[new], expected.by_worker, rtol=1e-12)
    np.testing.assert_allclose(renamed.by_stage, expected.by_stage, rtol=1e-12)
    assert renamed.by_optype == pytest.approx(expected.by_optype, rel=1e-12)


@PROPERTY
@given(jobs(), st.sampled_from([0.01, 0.5, 4.0, 1000.0]))
def test_a_unit_of_time_changes_no_ratio(job: tuple[Shape, int], unit: float) -> None:
    """Times in another unit change no slowdown (in jobs whose collections and clocks have no tolerance to meet)."""
    shape, seed = job
    shape = dataclasses.replace(shape, collections=False)
    rows = random_job(shape, seed)
    scaled = rows.assign(start_ts=rows.start_ts * unit, duration=rows.duration * unit)
    found, expected = analyse(load(scaled, shape.meta)), analyse(load(rows, shape.meta))
    assert_same(found, expected, rel=1e-9)
    assert found.discrepancy == pytest.approx(expected.discrepancy, rel=1e-9, abs=1e-12)
    np.testing.assert_allclose(found.ideal_s, expected.ideal_s * unit, rtol=1e-9)


def test_the_same_file_twice_gives_the_same_arrays(tmp_path: Path) -> None:
    """Nothing depends on threads or on hashing: two runs are equal bit by bit."""
    path = write(tmp_path / "job.parquet", random_job(INTERLEAVED, 11), INTERLEAVED.meta)
    first, second = analyse(load_trace(path)), analyse(load_trace(path))
    for field in dataclasses.fields(WhatIf):
        a, b = getattr(first, field.name), getattr(second, field.name)
        assert np.array_equal(a, b) if isinstance(a, np.ndarray) else a == b, field.name


@pytest.mark.parametrize("n_forwards", [1, 3])
def test_forwards_after_the_last_backward_are_an_evaluation(n_forwards: int) -> None:
    """Two workers run forwards that nothing is trained by after a step: rows of evaluation, and the step stays."""
    rows = hand_job()
    step = rows["step"].max()
    end_s = float((rows["start_ts"] + rows["duration"])[rows["step"] == step].max())
    first = rows[(rows["step"] == step) & (rows["optype"] == "forward-compute") & (rows["seq_id"] == 0)]
    n_microbatches = int(rows["seq_id"][rows["optype"] == "forward-compute"].max()) + 1
    more = [
        first.assign(
            start_ts=end_s + i,
            duration=1.0,
            seq_id=n_microbatches + i,
            mb_id=n_microbatches + i if "mb_id" in first else -1,
        )
        for i in range(n_forwards)
    ]
    trace = load(pd.concat([rows, *more]))
    plain = load(rows)
    assert trace.steps_dropped == 0
    assert [len(block.nodes) for block in trace.blocks] == [len(block.nodes) for block in plain.blocks]
    assert trace.evidence.op.tolist() == [int(Op.EVAL)] * len(first)
    np.testing.assert_allclose(trace.evidence.end_s - trace.evidence.start_s, n_forwards)


@pytest.mark.parametrize("n_dp", [1, 2])
def test_stages_that_wait_early_for_the_next_step(n_dp: int) -> None:
    """Where no norm closes steps, the last stage waits for the next while the first still works: that wait is of no step.

    Ranks that gather their weights do so before they wait.
    """
    shape = dataclasses.replace(SHAPE, n_steps=6, n_dp=n_dp)
    rows = random_job(shape, 4)
    number = rows.step.rank(method="dense").astype(int) - 1
    first = rows.stage == rows.stage.min()
    ends_s = (rows.start_ts + rows.duration)[first].groupby(number[first]).max()
    begins_s = 100.0 + np.concatenate([[0.0], np.cumsum(ends_s.to_numpy())[:-1]])
    rows = rows.assign(start_ts=rows.start_ts + begins_s[number], step=number)
    recvs = (
        rows[(rows.optype == "forward-recv") & ~first]
        .sort_values("start_ts")
        .groupby(["step", "dp_rank"])
        .head(1)
        .index
    )
    gathers = (rows.optype == "params-all-gather") & ~first
    assert gathers.any() == (n_dp > 1)
    early = rows.copy()
    early_s = 0.2 * ends_s.median()
    early.loc[gathers, "start_ts"] -= early_s
    early.loc[recvs, "start_ts"] -= early_s
    early.loc[recvs, "duration"] += early_s
    expected, trace = load(rows, shape.meta), load(early, shape.meta)
    assert expected.step_origin_s is not None and trace.step_origin_s is not None
    # Of two ranks the first stages end apart, by up to a tenth of that.
    np.testing.assert_allclose(trace.step_origin_s, expected.step_origin_s, atol=(0.02 if n_dp == 1 else 0.1) * early_s)
    found, usual = analyse(trace), analyse(expected)
    np.testing.assert_allclose(found.recorded_s, usual.recorded_s, rtol=5e-3 if n_dp == 1 else 0.02)
    # On the clock of each step the same rows would mean that the first stage began late.
    relative = load(early.assign(start_ts=early.start_ts - begins_s[early.step] + early_s), shape.meta)
    assert relative.step_origin_s is None
    assert analyse(relative).recorded_s.mean() > 1.1 * usual.recorded_s.mean()


def test_what_runs_beside_a_step_counts_from_where_it_is_held() -> None:
    """Times of each step count from a stage that gathers and waits early: rows of other types stay beside what they ran beside."""
    spec = JobSpec(pp=3, dp=2, microbatches=4, steps=6, clip="none", averages_loss=False, contiguous=True, seed=1)
    rows = generate(spec).trace.to_pandas()
    rows = rows.assign(optype=rows.optype.astype(str), step=rows.step - rows.step.min())
    rows["start_ts"] -= rows.groupby("step").start_ts.transform("min")
    inside = rows[rows.optype == "forward-compute"].assign(optype="ep-dispatch", mb_id=-1)
    rows = pd.concat([rows, inside.assign(duration=0.1 * inside.duration)])
    ends_s = (rows.start_ts + rows.duration).groupby([rows.step, rows.stage]).max().to_numpy().reshape(6, 3)
    early_s = (ends_s[:, :1] - ends_s)[rows.step - 1, rows.stage]
    early_s = np.where(rows.step > 0, early_s, 0.0)
    assert (early_s >= 0).all()
    gathers = rows.optype == "params-all-gather"
    recvs = (rows.optype == "forward-recv") & (rows.seq_id == 0)
    early = rows.assign(
        start_ts=rows.start_ts - np.where(gathers | recvs, early_s, 0.0),
        duration=rows.duration + np.where(recvs, early_s, 0.0),
    )
    early["start_ts"] -= early.groupby("step").start_ts.transform("min")
    plain, found = load(rows), load(early)
    np.testing.assert_allclose(found.others.start_s, plain.others.start_s, atol=1e-3)
    np.testing.assert_allclose(analyse(found).recorded_s, analyse(plain).recorded_s, rtol=1e-2)


def test_a_stage_whose_clock_is_behind_does_not_wait_early() -> None:
    """Its first recv seems to begin before the first stage has ended the step before; it takes as long as on a right clock."""
    shape = dataclasses.replace(SHAPE, n_steps=6, n_dp=1)
    rows = random_job(shape, 4)
    number = rows.step.rank(method="dense").astype(int) - 1
    ends_s = (rows.start_ts + rows.duration).groupby(number).max()
    begins_s = 100.0 + np.concatenate([[0.0], np.cumsum(ends_s.to_numpy())[:-1]])
    rows = rows.assign(start_ts=rows.start_ts + begins_s[number], step=number)
    behind = rows.assign(start_ts=rows.start_ts - np.where(rows.stage == rows.stage.min(), 0.0, 0.2 * ends_s.median()))
    (right,), (found,) = load(rows, shape.meta).blocks, load(behind, shape.meta).blocks
    recvs = found.nodes.op == Op.FORWARD_RECV
    assert recvs.any()
    np.testing.assert_allclose((found.end_s - found.start_s)[recvs], (right.end_s - right.start_s)[recvs], atol=1e-6)


@pytest.mark.parametrize("seed", [1, 2, 3, 5])
def test_a_step_that_begins_late_does_so_where_clocks_differ(seed: int) -> None:
    """Recvs seem early by a percent of a step because clocks differ: all wait as long as before, as for a save, before one step."""
    table = generate(JobSpec(pp=4, dp=1, microbatches=4, steps=8, forward_s=0.001, clock_s=0.0005, seed=seed)).trace
    waits = pc.equal(table["step"], table["step"][len(table) // 2])
    start_s = pc.add(table["start_ts"], pc.multiply(pc.cast(waits, pa.float64()), 0.3))
    (block,) = load_trace(to_file(table.set_column(table.column_names.index("start_ts"), "start_ts", start_s))).blocks
    begin_s = block.start_s.min(axis=(0, 2))
    assert begin_s.max() - np.median(begin_s) == pytest.approx(0.3, abs=0.001)
