"""Clocks of single ranks and hosts are put on one, by what the rows themselves say."""

import dataclasses

import numpy as np
import pytest

from diagnose.model.optype import Op
from diagnose.model.recording import Recording
from diagnose.trace.clocks import align
from diagnose.trace.parquet import read_parquet
from tests.trace.producers.pipelines import Pipeline

FIXTURE = "fixtures/healthy.parquet"


def recording_of(path: str, *, computes_only: bool = False) -> Recording:
    """Read a trace as an adapter would give it."""
    rows = read_parquet(path, name=path)
    keep = np.isin(rows.op, (Op.FORWARD, Op.BACKWARD)) if computes_only else np.ones(len(rows), dtype=bool)
    assert rows.microbatch is not None and rows.rank is not None
    step, dp, stage, microbatch, rank = (
        column[keep].astype(np.int64) for column in (rows.step, rows.dp, rows.stage, rows.microbatch, rows.rank)
    )
    return Recording(
        "test",
        rows.op[keep],
        step,
        dp,
        stage,
        rows.start_s[keep].astype(np.float64),
        rows.duration_s[keep].astype(np.float64),
        microbatch=microbatch,
        rank=rank,
    )


def take(recording: Recording, keep: np.ndarray) -> Recording:
    """Keep some rows."""
    fields = ("op", "step", "dp", "stage", "start_s", "duration_s", "microbatch", "rank")
    return dataclasses.replace(recording, **{field: getattr(recording, field)[keep] for field in fields})


@pytest.mark.parametrize("per_step", [False, True])
@pytest.mark.parametrize("computes_only", [False, True])
def test_offsets_that_were_put_in_are_taken_out(computes_only: bool, per_step: bool) -> None:
    """Seconds of difference between the ranks are found, by ends that match or by the schedule, in every step if need be."""
    recording = recording_of(FIXTURE, computes_only=computes_only)
    rng = np.random.default_rng(1)
    assert recording.rank is not None
    _, step = np.unique(recording.step, return_inverse=True)
    put_in = rng.normal(0.0, 2.0, (int(recording.rank.max()) + 1, int(step.max()) + 1 if per_step else 1))
    shift = put_in[recording.rank, step if per_step else 0]
    found = align(dataclasses.replace(recording, start_s=recording.start_s + shift), "rank", per_step=per_step)
    left = found.start_s - recording.start_s
    for at in range(int(step.max()) + 1) if per_step else (slice(None),):
        of_step = left[step == at] if per_step else left[at]
        assert np.ptp(of_step) < 0.001  # a transfer takes 0.5 ms in this job, a forward 50
    assert {offset.how for offset in found.offsets} <= (
        {"schedule"} if computes_only else {"collectives", "matched pairs"}
    )


def test_clocks_that_may_agree_are_left_alone() -> None:
    """What no operation contradicts moves nothing: a link that is slow one way is no clock."""
    recording = recording_of(FIXTURE, computes_only=True)
    alone = take(recording, recording.dp == 0)
    late = np.where((alone.stage == 1) & (alone.op == Op.BACKWARD), 0.0, 0.0002)
    found = align(dataclasses.replace(alone, start_s=alone.start_s + late), "rank")
    assert np.array_equal(found.start_s, alone.start_s + late)
    assert found.offsets == ()


def test_hosts_share_a_clock() -> None:
    """Ranks of one host move together, and the host is named."""
    recording = recording_of(FIXTURE)
    host = (recording.stage >= 2).astype(np.int64)
    moved = dataclasses.replace(
        recording, start_s=recording.start_s + 3.0 * host, host=host, host_names=("near", "far")
    )
    found = align(moved, "host")
    assert np.ptp(found.start_s - recording.start_s) < 1e-4
    by_host = {offset.of: offset.offset_s for offset in found.offsets}
    assert by_host["far"] - by_host["near"] == pytest.approx(3.0, abs=1e-4)


def test_a_step_with_one_way_only_is_moved_no_more_than_it_asks_for() -> None:
    """Without backwards a forward that begins too early bounds the clock from one side."""
    spans = [span for span in Pipeline(2, 4, 3).run() if span.op == "F"]
    stage = np.array([span.stage for span in spans])
    recording = Recording(
        "test",
        np.zeros(len(spans), dtype=np.int8),
        np.array([span.step for span in spans]),
        np.zeros(len(spans), dtype=np.int64),
        stage,
        np.array([span.start_s for span in spans]) - 1.0 * stage,
        np.array([span.end_s - span.start_s for span in spans]),
        microbatch=np.array([span.microbatch for span in spans]),
    )
    found = align(recording, "rank")
    assert {offset.how for offset in found.offsets} == {"schedule"}
    for span_step in (1, 2, 3):
        at = (recording.step == span_step) & (recording.microbatch == 0)
        first, second = found.start_s[at & (stage == 0)][0], found.start_s[at & (stage == 1)][0]
        assert second >= first + recording.duration_s[at & (stage == 0)][0] - 0.01


def test_ranks_that_nothing_ties_begin_their_steps_together() -> None:
    """Data-parallel ranks without a collective are set side by side by where their steps begin."""
    recording = recording_of(FIXTURE, computes_only=True)
    recording = take(recording, recording.stage == 0)
    found = align(dataclasses.replace(recording, start_s=recording.start_s + 100.0 * recording.dp), "rank")
    assert np.ptp(found.start_s - recording.start_s) < 0.01
    assert {offset.how for offset in found.offsets} == {"step starts"}
