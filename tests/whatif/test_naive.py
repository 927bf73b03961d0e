"""The fast what-if equals plain loops over named operations: on published traces, their shapes, and random jobs."""

import dataclasses
from functools import cache
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from diagnose.faults.spec import JobSpec
from diagnose.model.trace import Trace
from diagnose.model.whatif import WhatIf
from diagnose.trace.load import load_trace
from diagnose.whatif.replay import launch_delays, replay, replay_ends
from diagnose.whatif.scenarios import Prepared, explore, prepare
from tests.jobs import Shape, block_rows, load, random_job, random_shape
from tests.judge.cases import measured
from tests.naive import NaiveJob, closing_collections

REL = 1e-9
SEEDS = range(200)
#: Seeds of one parametrised test: few tests, so that collecting them costs little.
BATCHES = [range(20), *(pytest.param(range(i, i + 20), marks=pytest.mark.long) for i in range(20, 200, 20))]


def assert_equal(found: WhatIf, naive: NaiveJob, *, about: str) -> None:
    """Compare every measure of the paper."""
    __tracebackhide__ = True
    steps = found.steps.tolist()
    assert steps == naive.steps, about
    for name, ours, theirs in (
        ("recorded", found.recorded_s, naive.recorded_s),
        ("simulated", found.simulated_s, naive.simulated_s),
        ("ideal", found.ideal_s, naive.ideal_s),
    ):
        np.testing.assert_allclose(ours, [theirs[step] for step in steps], rtol=REL, err_msg=f"{about}: {name}")
    by_step = [naive.simulated_s[step] / naive.ideal_s[step] for step in steps]
    np.testing.assert_allclose(found.by_step, by_step, rtol=REL, err_msg=f"{about}: by step")
    assert found.slowdown == pytest.approx(sum(naive.simulated_s.values()) / sum(naive.ideal_s.values()), rel=REL), (
        about
    )
    simulated_from_zero = sum(naive.step_times(naive.own).values())
    assert 1 + found.discrepancy == pytest.approx(sum(naive.recorded_s.values()) / simulated_from_zero, rel=REL), about
    assert found.by_optype == pytest.approx(naive.by_optype(), rel=REL), about
    np.testing.assert_allclose(found.by_stage, naive.by_stage(), rtol=REL, err_msg=f"{about}: by stage")
    np.testing.assert_allclose(found.by_dp, naive.by_dp(), rtol=REL, err_msg=f"{about}: by dp rank")
    by_worker = naive.by_worker()
    np.testing.assert_allclose(found.by_worker, by_worker, rtol=REL, err_msg=f"{about}: by worker")
    np.testing.assert_allclose(
        (found.by_worker_step * found.ideal_s).sum(axis=2) / found.ideal_s.sum(),
        by_worker,
        rtol=REL,
        err_msg=f"{about}: by worker and step",
    )
    _assert_same_part(found.m_s, naive.m_s(), about)
    ranked = np.sort(np.ravel(by_worker))[::-1]
    n_fixed = -(-3 * len(ranked) // 100)
    if len(ranked) == n_fixed or ranked[n_fixed - 1] - ranked[n_fixed] > 1e-9:  # else either worker may be the one
        _assert_same_part(found.m_w, naive.m_w(by_worker), about)


def _assert_same_part(found: float | None, naive: float | None, about: str) -> None:
    """Compare M_W or M_S; both None where no time was lost."""
    __tracebackhide__ = True
    if found is None or naive is None:
        assert found is naive, about
    else:
        assert found == pytest.approx(naive, rel=1e-6, abs=1e-7), about


def analyse(trace: Trace) -> tuple[WhatIf, tuple[Prepared, ...]]:
    """Run the fast path."""
    prepared = prepare(trace)
    return explore(trace, prepared), prepared


def published_rows(path: Path, steps: list[int] | None = None) -> pd.DataFrame:
    """Read a published trace without our loader."""
    rows = pd.read_parquet(path)
    rows["optype"] = rows.optype.astype(str)
    return rows if steps is None else rows[rows.step.isin(steps)]


def test_three_steps_of_ar_equal_plain_loops(shared: Path) -> None:
    """On 4 x 4 workers of a real job every exact S_w is what replaying all of them, one at a time, says."""
    path = shared / "artifact" / "trace-AR.parquet"
    steps = [16, 404, 821]
    trace = load_trace(path, steps=np.array(steps))
    assert_equal(analyse(trace)[0], NaiveJob(closing_collections(published_rows(path, steps)), has_dp=True), about="AR")


def test_st_equals_plain_loops(shared: Path) -> None:
    """On the whole of ST every exact S_w is what replaying all of them, one at a time, says."""
    path = shared / "artifact" / "trace-ST.parquet"
    assert_equal(
        analyse(load_trace(path))[0], NaiveJob(closing_collections(published_rows(path)), has_dp=True), about="ST"
    )


@pytest.mark.parametrize("i", range(18))
def test_shapes_equal_plain_loops(shared: Path, i: int) -> None:
    """On the shapes that the authors' analyser was asked about, four steps each, plain loops agree."""
    path = shared / "artifact" / "shapes" / f"shape-{i}.parquet"
    steps = np.unique(published_rows(path).step)[:4].tolist()
    trace = load_trace(path, steps=np.array(steps))
    naive = NaiveJob(closing_collections(published_rows(path, steps)), has_dp=trace.job.has_dp)
    assert_equal(analyse(trace)[0], naive, about=f"shape {i}")


@pytest.mark.parametrize("batch", BATCHES, ids=lambda batch: f"seeds {batch[0]}-{batch[-1]}")
def test_random_jobs_equal_plain_loops(batch: range) -> None:
    """Whatever the shape of the job, the fast path and plain loops agree on every measure, and nothing is warned of."""
    for seed in batch:
        shape = random_shape(seed)
        rows = random_job(shape, seed)
        trace = load(rows, shape.meta)
        assert trace.warnings == (), (seed, shape)
        naive = NaiveJob(closing_collections(rows), has_dp=shape.has_dp)
        assert_equal(analyse(trace)[0], naive, about=f"seed {seed}, {shape}")


@cache
def _covered() -> list[object]:
    return [random_shape(seed) for seed in SEEDS]


@pytest.mark.parametrize(
    "kind",
    [
        "n_chunks > 1",
        "overlapped",
        "overlapped and n_chunks > 1",
        "n_dp == 1 and cp == 1",
        "n_dp == 1 and cp == 2",
        "n_stages == 1",
        "blocking",
        "compute_only",
        "skip_first_recv and n_chunks > 1",
        "clock_error_s > 0",
        "not collections",
    ],
)
def test_random_jobs_cover(kind: str) -> None:
    """Each kind of job that could break the graph is among the random ones at least three times."""
    n_found = sum(bool(eval(kind, {}, dataclasses.asdict(shape))) for shape in _covered())  # type: ignore[call-overload]
    assert n_found >= 3


@pytest.mark.parametrize("batch", BATCHES[:5], ids=lambda batch: f"seeds {batch[0]}-{batch[-1]}")
def test_replay_with_launch_delays_gives_what_was_recorded(batch: range) -> None:
    """Replaying recorded own times with recorded launch delays ends every operation when it ended, clocks being right."""
    for seed in batch:
        shape = dataclasses.replace(random_shape(seed), clock_error_s=0.0)
        for p in prepare(load(random_job(shape, seed), shape.meta)):
            ends = replay_ends(p.graph, p.own, launch_delays(p.block, p.graph))
            for node, end in enumerate(ends):
                if end is not None:
                    recorded = p.block.end_s[node]
                    np.testing.assert_allclose(
                        np.broadcast_to(end, recorded.shape), recorded, rtol=REL, atol=1e-9, err_msg=f"seed {seed}"
                    )
            last = replay(p.graph, p.own, launch_delays(p.block, p.graph))[:, 0]
            np.testing.assert_allclose(last, p.block.end_s.max(axis=(0, 2)), rtol=REL)


@pytest.mark.parametrize("batch", BATCHES[:5], ids=lambda batch: f"seeds {batch[0]}-{batch[-1]}")
def test_jobs_with_lost_rows_equal_plain_loops_on_the_filled_rows(batch: range) -> None:
    """However gaps are filled, from there on the fast path and plain loops agree."""
    n_filled = 0
    for seed in batch:
        shape = dataclasses.replace(random_shape(seed), n_steps=3, clock_error_s=0.0)
        rows = random_job(shape, seed)
        rng = np.random.default_rng([seed, 3])
        rows = rows[rng.random(len(rows)) >= 0.02]
        trace = load(rows, shape.meta)
        found, prepared = analyse(trace)
        n_filled += sum("missing" in warning for warning in trace.warnings)
        naive = NaiveJob(block_rows(trace, [p.block for p in prepared]), has_dp=trace.job.has_dp)
        assert_equal(found, naive, about=f"seed {seed}, {shape}, {trace.warnings}")
    assert n_filled > len(batch) / 2


@pytest.mark.parametrize(
    "optype", ["optimizer-clip-main-grad", "embedding-grads-all-reduce", "layernorm-grads-all-reduce", "optimizer"]
)
def test_a_closing_operation_may_come_twice(optype: str) -> None:
    """A worker with two clips, or two of any other closing operation, chains them; seconds move with seconds."""
    shape = Shape(n_steps=2, n_dp=2, n_stages=3, n_microbatches=3)
    rows = random_job(shape, 1)
    second = rows[rows.optype == optype]
    second = second.assign(seq_id=1, start_ts=second.start_ts + second.duration)
    rows = pd.concat([rows, second], ignore_index=True)
    naive = NaiveJob(closing_collections(rows), has_dp=True)
    assert_equal(analyse(load(rows, shape.meta))[0], naive, about=optype)


def test_an_ideal_step_is_one_that_was_analysed() -> None:
    """Its timeline ends with the ideal step, whichever block it is of; of others there is none."""
    found = measured(JobSpec(pp=2, dp=2, microbatches=2, steps=8, seed=1))
    timelines, (block, *_) = found.analysis.timelines, (p.block for p in found.prepared)
    for step in block.steps.tolist():
        assert timelines.ideal(step, np.arange(2)) is not None
    assert timelines.ideal(int(block.steps.max()) + 1, np.arange(2)) is None
