"""Steps that were run again after a restart: the last attempt counts, and only what time parts is an attempt."""

import numpy as np
import pandas as pd
import pytest

from diagnose.errors import TraceError
from diagnose.model.diagnosis import Diagnosis
from tests.jobs import load
from tests.test_damage_end_to_end import absolute, diagnose_rows, rows_of

RESTART_S = 1000.0


def attempt(*, late_s: float = 0.0, name: str = "worker-fault") -> pd.DataFrame:
    """Give the rows of one attempt at steps 0 to 11, some seconds later than they were recorded."""
    rows = absolute(rows_of(name))
    return rows.assign(start_ts=rows.start_ts + late_s)


def summary(diagnosis: Diagnosis) -> list[tuple[str, tuple[object, ...], tuple[int, ...]]]:
    """List causes and their places."""
    return [(cause.cause, cause.where.workers, cause.where.stages) for cause in diagnosis.causes]


def says_restart(warnings: tuple[str, ...]) -> bool:
    """Tell whether a warning speaks of a restart."""
    return any("restart" in warning for warning in warnings)


@pytest.mark.parametrize("name", ["worker-fault", "stage-imbalance"])
def test_all_steps_again(name: str) -> None:
    """A job that ran all its steps again has the causes and the S of the last attempt alone, and a warning says so."""
    last = attempt(late_s=RESTART_S, name=name)
    found, alone = diagnose_rows(pd.concat([attempt(name=name), last])), diagnose_rows(last)
    assert summary(found) == summary(alone)
    assert found.what_if.slowdown == pytest.approx(alone.what_if.slowdown, rel=1e-6)
    assert found.step_time.recorded == pytest.approx(alone.step_time.recorded, rel=1e-6)
    assert any("12 steps" in warning and "restart" in warning for warning in found.warnings)
    assert not says_restart(alone.warnings)


def test_the_last_attempt_is_kept() -> None:
    """Of an attempt twice as slow and a later one, the later one's times are read."""
    first = attempt()
    first = first.assign(start_ts=first.start_ts * 2.0 - RESTART_S, duration=first.duration * 2.0)
    last = attempt(late_s=RESTART_S)
    both, alone = load(pd.concat([first, last])), load(last)
    assert both.n_ops == alone.n_ops
    np.testing.assert_allclose(both.blocks[0].end_s, alone.blocks[0].end_s, atol=1e-6)


def test_some_steps_again() -> None:
    """Steps 0 to 5, then 4 to 11: every step is there once, those run again as in the second run, and so says a warning."""
    first, last = attempt(), attempt(late_s=RESTART_S)
    trace = load(pd.concat([first[first.step <= 5], last[last.step >= 4]]))
    assert sorted(trace.steps.tolist()) == list(range(12))
    assert trace.n_ops == load(first).n_ops
    assert trace.restarted_steps == (4,)
    assert any("2 steps" in warning and "restart" in warning for warning in trace.warnings)
    assert trace.step_origin_s is not None
    assert trace.step_origin_s[4] - trace.step_origin_s[3] > RESTART_S - 100.0
    assert np.ptp(trace.step_origin_s[4:]) < 100.0


def test_operations_that_are_counted_on_are_told_by_their_microbatches() -> None:
    """Where the second run of a step counts its operations on, as one step with twice as many, it is a restart all the same."""
    first, last = attempt(), attempt(late_s=RESTART_S)
    key = ["step", "dp_rank", "stage", "optype"]
    rows = pd.concat([first[first.step <= 5], last[last.step >= 4]]).sort_values("start_ts")
    trace = load(rows.assign(seq_id=rows.groupby(key, observed=True).cumcount()))
    assert trace.n_ops == load(first).n_ops
    assert trace.restarted_steps == (4,)
    assert any("2 steps" in warning and "4-5" in warning and "restart" in warning for warning in trace.warnings)


def test_the_order_of_rows_says_nothing() -> None:
    """The last attempt is the later one, wherever its rows stand in the file."""
    first, last = attempt(), attempt(late_s=RESTART_S)
    rows = pd.concat([last[last.step >= 4], first[first.step <= 5]]).sample(frac=1.0, random_state=0)
    trace = load(rows)
    assert sorted(trace.steps.tolist()) == list(range(12))
    assert trace.restarted_steps == (4,)


def test_the_time_in_between_is_not_the_jobs() -> None:
    """A quarter of an hour until the restart makes no step longer."""
    first, last = attempt(), attempt(late_s=RESTART_S)
    found = diagnose_rows(pd.concat([first[first.step <= 5], last[last.step >= 4]]))
    alone = diagnose_rows(first)
    assert found.step_time.recorded == pytest.approx(alone.step_time.recorded, rel=0.01)
    assert summary(found) == summary(alone)


def test_a_file_twice_is_no_restart() -> None:
    """Exact duplicates of all rows are no second attempt, and change nothing."""
    rows = attempt()
    found, alone = diagnose_rows(pd.concat([rows, rows])), diagnose_rows(rows)
    assert not says_restart(found.warnings)
    assert summary(found) == summary(alone)
    assert found.what_if.slowdown == pytest.approx(alone.what_if.slowdown, rel=1e-6)


def test_some_rows_twice_drop_no_step() -> None:
    """A few steps written twice over are duplicates: every step stays, with the times that it had."""
    rows = attempt()
    found, alone = load(pd.concat([rows, rows[rows.step.isin((3, 7))]])), load(rows)
    assert not says_restart(found.warnings)
    assert found.restarted_steps == ()
    assert found.n_ops == alone.n_ops
    np.testing.assert_array_equal(found.blocks[0].end_s, alone.blocks[0].end_s)


def test_attempts_that_overlap_in_time_are_left_alone() -> None:
    """Where no step's attempts are parted by time nothing is called a restart, and no row is dropped as one."""
    first, second = attempt(), attempt(late_s=0.3)
    trace = load(pd.concat([first, second]))
    assert not says_restart(trace.warnings)
    assert trace.restarted_steps == ()
    n_collections = int((first.optype == "gc").sum())  # one a worker and step is simulated, the others are evidence
    assert trace.n_ops == 2 * len(first) - n_collections
    assert len(trace.evidence) == 2 * n_collections
    assert any("counted again" in warning for warning in trace.warnings)


@pytest.mark.parametrize("lacking", [[], ["seq_id"], ["seq_id", "mb_id", "rank"]], ids=str)
@pytest.mark.parametrize("is_relative", [False, True])
def test_two_runs_at_the_same_time_are_told(lacking: list[str], is_relative: bool) -> None:
    """Rows of another run with the same steps are refused as that, whatever numbers the rows have, and the steps are named."""
    runs = [rows_of(name) if is_relative else absolute(rows_of(name)) for name in ("worker-fault", "network-fault")]
    runs = [run.assign(step=run.step.rank(method="dense").astype(int) + 30) for run in runs]
    both = pd.concat(runs).drop(columns=lacking, errors="ignore")
    with pytest.raises(
        TraceError, match=r"holds two runs: steps 31[-,\d]* are there twice(?: at the same time|, in turns); "
    ):
        load(both)


@pytest.mark.parametrize(
    "by",
    [["step", "rank", "start_ts"], ["step", "rank", "duration"], ["rank", "step", "start_ts"], ["start_ts"]],
    ids=str,
)
def test_two_runs_are_told_in_any_order_of_rows(by: list[str]) -> None:
    """Rows of one worker and step together, in time or not, or all in time."""
    both = pd.concat([absolute(rows_of(name)) for name in ("worker-fault", "network-fault")])
    with pytest.raises(TraceError, match=r"holds two runs: steps \d[-,\d ]* are there twice at the same time; "):
        load(both.sort_values(by))


def test_two_runs_of_other_steps_at_the_same_time_are_told() -> None:
    """On the clock of the job a worker does not run step 31 while it runs step 12."""
    first, second = attempt(), attempt(name="network-fault", late_s=0.1)
    with pytest.raises(TraceError, match=r"holds two runs: steps \d+-\d+, .* run at the same time as others; "):
        load(pd.concat([first, second.assign(step=second.step + 30)]))


def test_steps_that_are_counted_down_are_told() -> None:
    """They would all begin late, and late by less and less."""
    rows = attempt()
    with pytest.raises(TraceError, match=r"step \d+ ends before step \d+ begins, .* numbered against time; expected"):
        load(rows.assign(step=100 - rows.step))


@pytest.mark.parametrize("lost", ["rank 0", "stage 0"])
def test_lost_rows_of_the_first_worker_are_no_second_run(lost: str) -> None:
    """Where they are lost the next rank tells whether steps run at the same time; two runs are told all the same."""
    rows, dp = attempt(name="stage-imbalance"), (0,) if lost == "rank 0" else range(100)
    first = rows[(rows.stage > 0) | ~rows.dp_rank.isin(dp)]
    if lost == "stage 0":
        first = pd.concat([first, rows[(rows.stage == 0) & (rows.step == 4) & (rows.dp_rank == 1)]])
    assert len(load(first).steps) == 12
    with pytest.raises(TraceError, match="holds two runs: "):
        load(pd.concat([first, first.assign(step=first.step + 30, start_ts=first.start_ts + 0.1)]))


@pytest.mark.parametrize(
    ("stop", "slower", "saved", "by", "found"),
    [
        (12.0, 1.5, 0.0, 6, (7,)),
        (9.0, 1.5, 0.0, 6, ()),
        (12.0, 1.2, 0.0, 6, ()),
        (12.0, 1.5, 0.4, 6, (7,)),
        (12.0, 1.5, 0.6, 6, ()),
        (12.0, 1.5, 0.4, 7, (7,)),
        (12.0, 1.5, 0.6, 7, ()),
        (40.0, 1.0, 0.0, 6, (7,)),
        (29.0, 1.0, 0.0, 6, ()),
        (40.0, 1.0, 0.6, 6, ()),
    ],
    ids=[
        "a long stop and a slow step",
        "too short a stop",
        "no slow step",
        "a row for less than half",
        "a row for most of it",
        "a row of the next step for less than half",
        "a row of the next step for most of it",
        "more than thirty steps and a minute",
        "less than thirty steps",
        "a row for most of more than thirty steps",
    ],
)
@pytest.mark.parametrize("optype", ["checkpoint", "saving"])
def test_a_restart_that_runs_no_step_again(
    stop: float, slower: float, saved: float, by: int, optype: str, found: tuple[int, ...]
) -> None:
    """After a stop of more than ten usual steps without rows a slow step tells it, or thirty do: what lies between is no step's."""
    rows = attempt()
    began = rows.groupby("step").start_ts.min()
    usual_s = float(np.median(np.diff(began)))
    late = rows.step == 7
    rows.loc[late, "start_ts"] = began[7] + slower * (rows.start_ts[late] - began[7])
    rows.loc[late, "duration"] *= slower
    rows.loc[rows.step > 7, "start_ts"] += (slower - 1.0) * usual_s
    rows.loc[rows.step >= 7, "start_ts"] += stop * usual_s
    if saved:
        save = rows[rows.step == by].iloc[:1].assign(optype=optype, start_ts=began[7], duration=saved * stop * usual_s)
        rows = pd.concat([rows, save])
    trace = load(rows)
    assert trace.restarted_steps == found
    assert says_restart(trace.warnings) == bool(found)


@pytest.mark.parametrize(("faster", "found"), [(1.0, (7,)), (2.0, ())])
def test_a_stop_of_less_than_a_minute_may_be_a_save(faster: float, found: tuple[int, ...]) -> None:
    """Of forty steps in 78 s and of as many in 39 s the first alone is a restart."""
    rows = attempt()
    began = rows.groupby("step").start_ts.min()
    rows.loc[rows.step >= 7, "start_ts"] += 40.0 * float(np.median(np.diff(began)))
    rows = rows.assign(start_ts=rows.start_ts / faster, duration=rows.duration / faster)
    assert load(rows).restarted_steps == found


@pytest.mark.parametrize(("stop", "found"), [(40.0, (7,)), (29.0, ())])
def test_where_saves_have_rows_a_stop_without_one_is_none(stop: float, found: tuple[int, ...]) -> None:
    """GIVEN rows of short saves, THEN a stop of forty steps in 39 s is a restart, and one of less than thirty steps is not."""
    rows = attempt()
    began = rows.groupby("step").start_ts.min()
    usual_s = float(np.median(np.diff(began)))
    saves = rows[rows.step.isin([3, 9])].groupby("step").head(1)
    saves = saves.assign(optype="checkpoint", start_ts=saves.step.map(began), duration=0.01 * usual_s)
    rows = pd.concat([rows, saves])
    rows.loc[rows.step >= 7, "start_ts"] += stop * usual_s
    rows = rows.assign(start_ts=rows.start_ts / 2.0, duration=rows.duration / 2.0)
    assert load(rows).restarted_steps == found


def test_a_restart_names_its_steps() -> None:
    """The warning says which steps are there twice."""
    first, last = attempt(), attempt(late_s=RESTART_S)
    trace = load(pd.concat([first[first.step <= 6], last[last.step >= 4]]))
    assert any("(a restart, or two runs: 4-6)" in warning for warning in trace.warnings)
