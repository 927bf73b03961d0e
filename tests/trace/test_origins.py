"""What times count from: the begin of the step, that of the job, or something else, which is told; and clocks that are coarse."""

import numpy as np
import pandas as pd
import pytest

from diagnose.model.optype import Op
from diagnose.model.request import Request
from diagnose.model.trace import Trace
from diagnose.pipeline import diagnose_job
from tests.fixture_jobs import FIXTURES
from tests.jobs import Shape, load, random_job, to_file

#: Five steps of about a second.
JOB = random_job(Shape(n_steps=5, n_dp=2, n_stages=2, n_microbatches=4), 3)


def on_clock_of_job(begin_s: float, dtype: type) -> pd.DataFrame:
    """Give the job with times that count from the begin of the job, at some time after it."""
    length = (JOB.start_ts + JOB.duration).groupby(JOB.step).max()
    begins = length.cumsum() - length + begin_s
    return JOB.assign(start_ts=(JOB.start_ts + JOB.step.map(begins)).astype(dtype))


def find_warning(trace: Trace, words: str) -> str:
    """Find the warning with some words; empty where there is none."""
    return next((text for text in trace.warnings if words in text), "")


@pytest.mark.parametrize("offset_s", [-1.0, 1000.0])
def test_steps_that_all_begin_elsewhere(offset_s: float) -> None:
    """Before its origin no step can begin, nor all of them far behind it: times are taken from the first operation, and told so."""
    shift_s = offset_s - (JOB.start_ts.min() if offset_s < 0 else 0.0)
    expected, found = load(JOB), load(JOB.assign(start_ts=JOB.start_ts + shift_s))
    words = "before what their times count from" if offset_s < 0 else "1,000 s after what their times count from"
    assert find_warning(found, words) and not find_warning(expected, "count from") and found.step_origin_s is None
    lengths = [np.nanmax(t.blocks[0].end_s, axis=(0, 2)) - np.nanmin(t.blocks[0].start_s) for t in (expected, found)]
    np.testing.assert_allclose(*lengths, rtol=1e-9)
    assert np.nanmin(found.blocks[0].start_s) == pytest.approx(0.0)


def test_steps_that_begin_late() -> None:
    """Where the first operation comes much later than what times count from, that time stays, and it is told what it counts as."""
    length_s = float((JOB.start_ts + JOB.duration).median())
    found = load(JOB.assign(start_ts=JOB.start_ts + 0.5 * length_s))
    assert find_warning(found, "that counts as lost at the begin of each step")
    assert np.nanmin(found.blocks[0].start_s) >= 0.5 * length_s


def test_most_steps_begin_later_than_they_last() -> None:
    """A loader that keeps most steps waiting for longer than the others take is no clock of the job: some begin at their begin."""
    length_s = float((JOB.start_ts + JOB.duration).groupby(JOB.step).max().median())
    steps = sorted(JOB.step.unique())
    late = JOB.assign(start_ts=JOB.start_ts + 2.0 * length_s * JOB.step.isin(steps[:3]))
    found = load(late)
    assert found.step_origin_s is None
    begins = np.nanmin(np.concatenate([block.start_s for block in found.blocks], axis=1), axis=(0, 2))
    assert np.sort(begins)[-3:] == pytest.approx(2.0 * length_s, rel=0.2)


def test_steps_that_begin_later_and_later_are_no_clock_of_the_job() -> None:
    """Waits that grow a little from step to step are waits: on the clock of the job a step begins where the one before ends."""
    length_s = float((JOB.start_ts + JOB.duration).groupby(JOB.step).max().median())
    waits_s = dict(zip(sorted(JOB.step.unique()), np.array([0.05, 1.3, 0.0, 0.1, 0.2]) * length_s, strict=True))
    found = load(JOB.assign(start_ts=JOB.start_ts + JOB.step.map(waits_s)))
    assert found.step_origin_s is None


def test_what_is_recorded_before_the_first_operation() -> None:
    """A wait for input that fills the time before says why steps begin late: nothing is told."""
    length_s = float((JOB.start_ts + JOB.duration).median())
    late = JOB.assign(start_ts=JOB.start_ts + 0.5 * length_s)
    first = late[(late.optype == "forward-compute") & (late.stage == 0)].groupby(["step", "dp_rank"]).head(1)
    waits = first.assign(optype="data-load", start_ts=0.0, duration=0.5 * length_s, mb_id=-1)
    assert not find_warning(load(pd.concat([late, waits])), "count from")


@pytest.mark.parametrize("stored_as", [np.float32, np.float64])
def test_a_clock_that_is_coarse_so_far_from_zero(stored_as: type) -> None:
    """A float32 28 hours into a job counts in 8 ms: said, whatever it is stored as, and taken out of the confidence."""
    rows = on_clock_of_job(1e5, np.float32)
    found = load(rows.assign(start_ts=rows.start_ts.astype(stored_as)))
    assert find_warning(found, "starts are told to 7.8 ms only")
    computes = JOB[JOB.optype.str.endswith("compute")].duration.median()
    assert found.coarse_share == pytest.approx(2.0**-7 / computes, rel=0.1)


@pytest.mark.parametrize(
    "rows", [on_clock_of_job(1e5, np.float64), JOB.assign(start_ts=JOB.start_ts.astype(np.float32))]
)
def test_clocks_that_are_fine(rows: pd.DataFrame) -> None:
    """Doubles, and floats near zero, cost no confidence."""
    found = load(rows)
    assert found.coarse_share == 0.0 and not find_warning(found, "are told to")


def test_what_a_coarse_clock_costs() -> None:
    """A cause that is found all the same is less sure for it."""
    rows = pd.read_parquet(FIXTURES["worker-fault"])
    length = (rows.start_ts + rows.duration).groupby(rows.step).max().astype(float)
    begins = rows.step.map(length.cumsum() - length) + 1e5
    sure = []
    for dtype in (np.float64, np.float32):
        found = diagnose_job(Request(to_file(rows.assign(start_ts=(rows.start_ts + begins).astype(dtype)))))
        assert [cause.cause for cause in found.causes] == ["worker-fault"]
        sure.append(found.causes[0].confidence)
    assert sure[1] == pytest.approx((1.0 - 0.092) * sure[0], abs=0.01)  # 7.8 ms, of computes of 85 ms


@pytest.mark.parametrize("per_second", [10, 30])
def test_times_in_whole_units_of_a_coarse_clock(per_second: int) -> None:
    """Most computes then take no time at all: nothing is said of them, and nothing is divided by none."""
    rows = pd.read_parquet(FIXTURES["worker-fault"])
    coarse = {column: np.floor(rows[column] * per_second) for column in ("start_ts", "duration")}
    assert diagnose_job(Request(to_file(rows.assign(**coarse)), unit="s")).verdict == "inconclusive"


def test_all_operations_at_once() -> None:
    """Steps that are simulated many times as long as recorded are not faithful: no figure of them is."""
    found = diagnose_job(Request(to_file(JOB.assign(start_ts=0.0))))
    assert found.fidelity.discrepancy < -0.5 and not found.fidelity.ok and found.verdict == "inconclusive"


def without_closing(late_s: float, *, of_step: bool) -> pd.DataFrame:
    """Make six steps that nothing closes on both stages: the second one waits for the next step while the first still works.

    The first stage begins each step `late_s` after it could, and ends it 5.2 s later; the second ends at 3.2 s.
    """
    here = [
        (0, "forward-compute", 0.0, 1.0), (0, "forward-send", 1.0, 1.1), (0, "backward-recv", 1.1, 3.1),
        (0, "backward-compute", 3.1, 5.1), (0, "optimizer", 5.1, 5.2), (1, "forward-recv", -2.0 - late_s, 1.1),
        (1, "forward-compute", 1.1, 2.1), (1, "backward-compute", 2.1, 3.0), (1, "backward-send", 3.0, 3.1),
        (1, "optimizer", 3.1, 3.2),
    ]  # fmt: skip
    rows = [
        (step, dp, stage, optype, (5.2 + late_s) * step + start_s, end_s - start_s, 0 if "compute" in optype else -1)
        for step in range(6)
        for dp in range(2)
        for stage, optype, start_s, end_s in here
    ]
    columns = ["step", "dp_rank", "stage", "optype", "start_ts", "duration", "mb_id"]
    found = pd.DataFrame(rows, columns=columns)
    return found.assign(start_ts=found.start_ts - found.groupby("step").start_ts.transform("min") * of_step)


@pytest.mark.parametrize("late_s", [0.0, 0.5])
def test_steps_that_nothing_closes(late_s: float) -> None:
    """That a stage waits for the next step before the first stage has ended this one is no late start, whatever times count from.

    What the first stage begins after it could is late.
    """
    for of_step in (False, True):
        (block,) = load(without_closing(late_s, of_step=of_step)).blocks
        start_s = {
            (int(stage), Op(int(op))): block.start_s[n, 1:]
            for n, (op, stage) in enumerate(zip(block.nodes.op, block.nodes.stage, strict=True))
        }
        np.testing.assert_allclose(start_s[0, Op.FORWARD], late_s, atol=1e-9)
        np.testing.assert_allclose(start_s[1, Op.FORWARD_RECV], 0.0, atol=1e-9)
        np.testing.assert_allclose(start_s[1, Op.FORWARD], 1.1 + late_s, atol=1e-9)


def test_steps_that_a_member_begins_before_another_ends() -> None:
    """Where members of a worker are one, it begins a step before it has ended the last: times of the job stay times of the job."""
    rows = without_closing(0.0, of_step=False)
    rows.loc[(rows.stage == 0) & (rows.optype == "optimizer"), "duration"] = 0.4
    trace = load(rows.assign(start_ts=rows.start_ts + 1000.0))
    assert trace.step_origin_s is not None
    np.testing.assert_allclose(np.diff(trace.step_origin_s)[1:], 5.2, atol=1e-6)
    assert max(block.end_s.max() for block in trace.blocks) < 10.0


def test_ranks_that_are_steps_apart_have_times_of_the_job() -> None:
    """Weights are averaged every fourth step: one rank takes 1.6 s a step, the other waits for it then, two steps ahead before."""
    rows: list[tuple[object, ...]] = []
    for step in range(12):
        synced_s = 1.6 * 4 * (step // 4)
        for dp, unit_s in ((0, 0.5), (1, 0.8)):
            begins_s = synced_s + 2.0 * unit_s * (step % 4)
            for optype, at_s in (("forward-compute", 0.0), ("backward-compute", unit_s)):
                rows.append((step, dp, 0, optype, begins_s + at_s, unit_s, 0, 0, dp))
    job = pd.DataFrame(
        rows, columns=["step", "dp_rank", "stage", "optype", "start_ts", "duration", "mb_id", "mc", "rank"]
    )
    trace = load(job)
    assert trace.step_origin_s is not None
    assert not [warning for warning in trace.warnings if "count from" in warning]


@pytest.mark.parametrize("begin_s", [0.0, 100.0])
def test_clocks_further_apart_than_a_step_have_times_of_the_job(begin_s: float) -> None:
    """How long a step is no two clocks tell: by its own one, each worker begins a step after the last, as on the job's clock."""
    job = on_clock_of_job(begin_s, np.float64)
    found = load(job.assign(start_ts=job.start_ts + 30.0 * job.dp_rank))
    assert found.step_origin_s is not None
    expected = load(job).step_origin_s
    assert expected is not None
    np.testing.assert_allclose(np.diff(found.step_origin_s), np.diff(expected), atol=0.01)
    assert not find_warning(found, "count from")
