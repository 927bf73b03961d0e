"""Time after the optimizer until the next step: from absolute times, from evidence rows, else unknown and 0."""

import dataclasses
from typing import Any

import numpy as np
import pandas as pd
import pytest

from diagnose.whatif.components.between_steps import blame_leads, explain_between, measure_between, measure_tails
from tests.jobs import hand_job, to_table
from tests.judge.cases import Measured, measure

META = {"dp_size": 1, "pp_size": 2, "tp_size": 1, "cp_size": 1, "vpp_size": 1, "world_size": 2, "job_id": "hand"}
#: What may lie between steps.
BETWEEN = ("gc-pause", "input-delay", "between-steps")
#: A hand-made step takes so long.
STEP_S = 9.0


def job(starts: dict[int, float], rows: list[tuple[Any, ...]] | None = None) -> Measured:
    """Measure a hand-made job whose steps begin at given times, with evidence rows (step, stage, type, start, duration)."""
    one = hand_job()
    one = one[one.step == 10]
    parts = [one.assign(step=step, start_ts=one.start_ts + start) for step, start in starts.items()]
    for step, stage, optype, start, duration in rows or []:
        parts.append(
            pd.DataFrame([(step, 0, stage, optype, start + starts[step], duration, 0, -1, -1)], columns=one.columns)
        )
    return measure(to_table(pd.concat(parts, ignore_index=True), META))


def between(m: Measured) -> dict[int, float]:
    """Give the seconds after each step, by step."""
    seconds = measure_between(m.trace, m.observed)
    return dict(zip(m.breakdown.steps.tolist(), seconds.tolist(), strict=True))


def test_a_gap_between_steps_is_measured_on_the_jobs_clock() -> None:
    """Steps of 9 s that begin at 1000, 1009.5 and 1023 s leave 0.5 s and 4.5 s between them."""
    m = job({10: 1000.0, 11: 1009.5, 12: 1023.0})
    found = between(m)
    assert (found[10], found[11]) == pytest.approx((0.5, 4.5))
    assert m.gains.recorded_s == pytest.approx(STEP_S + sum(found.values()) / 3)


def test_nobody_knows_what_follows_the_last_step() -> None:
    """After the last step, and where the next one was not sampled, the gap is taken to be the usual one, 1 s, and not 986 s."""
    assert between(job({10: 1000.0, 11: 1010.0, 40: 2000.0})) == pytest.approx({10: 1.0, 11: 1.0, 40: 1.0})


@pytest.mark.parametrize("origin_s", [0.0, 1000.0])
def test_a_row_long_after_the_last_step_is_no_time_of_it(origin_s: float) -> None:
    """Both workers save for 3 s, 50 s after two steps: of the last one only the 3 s are known to be time of the job."""
    rows = [(step, stage, "checkpoint", STEP_S + 50.0, 3.0) for step in (11, 12) for stage in (0, 1)]
    starts = {10: 0.0, 11: 0.0, 12: 0.0} if origin_s == 0.0 else {10: 1000.0, 11: 1009.0, 12: 1071.0}
    assert between(job(starts, rows)) == pytest.approx({10: 0.0, 11: 53.0, 12: 3.0}, abs=1e-6)


def test_a_row_long_after_the_last_step_before_a_restart_is_no_time_of_it() -> None:
    """A job that failed in step 11 logs that 50 s later: the steps before it, and after the restart, follow at once."""
    m = job(
        {10: 1000.0, 11: 1009.0, 12: 5000.0, 13: 5009.0}, [(11, stage, "log", STEP_S + 50.0, 0.0) for stage in (0, 1)]
    )
    trace = dataclasses.replace(m.trace, restarted_steps=(12,))
    assert measure_between(trace, m.observed).tolist() == pytest.approx([0.0] * 4, abs=1e-6)


def test_single_steps_know_no_gap() -> None:
    """Where no two sampled steps follow each other nothing is said of the time between them."""
    assert set(between(job({10: 1000.0, 20: 1100.0, 40: 2000.0})).values()) == {0.0}


def test_a_restart_is_no_gap() -> None:
    """A job that was down for 990 s before step 12 has the usual 1 s there, and not the outage."""
    m = job({10: 1000.0, 11: 1010.0, 12: 2009.0, 13: 2019.0})
    trace = dataclasses.replace(m.trace, restarted_steps=(12,))
    assert measure_between(trace, m.observed).tolist() == pytest.approx([1.0, 1.0, 1.0, 1.0])


def test_relative_times_know_no_gap() -> None:
    """Where every step begins at 0 nothing is said of the time between them."""
    assert set(between(job({10: 0.0, 11: 0.0, 12: 0.0})).values()) == {0.0}


def test_back_to_back_steps_leave_nothing() -> None:
    """Steps that follow at once have 0 s between them, never less."""
    assert between(job({10: 1000.0, 11: 1009.0, 12: 1018.0})) == pytest.approx({10: 0.0, 11: 0.0, 12: 0.0}, abs=1e-6)


@pytest.mark.parametrize("origin_s", [0.0, 1000.0])
def test_what_all_workers_do_after_the_optimizer_lies_between_steps(origin_s: float) -> None:
    """Both workers save for 3 s after step 11, from 9 s on: that is between the steps, whatever the clock."""
    rows = [(11, stage, "checkpoint", STEP_S, 3.0) for stage in (0, 1)]
    starts = {10: 0.0, 11: 0.0, 12: 0.0} if origin_s == 0.0 else {10: 1000.0, 11: 1009.0, 12: 1021.0}
    found = between(job(starts, rows))
    assert found[11] == pytest.approx(3.0, abs=1e-6)
    assert found[10] == pytest.approx(0.0, abs=1e-6)


def test_what_one_worker_does_alone_lies_between_steps_where_the_next_one_does_not_show_it() -> None:
    """One of two workers saves for 3 s, and begins the next step with the other: steps are counted from when both are ready."""
    found = between(job({10: 0.0, 11: 0.0, 12: 0.0}, [(11, 0, "checkpoint", STEP_S, 3.0)]))
    assert found == pytest.approx({10: 0.0, 11: 3.0, 12: 0.0}, abs=1e-6)


def test_the_order_of_blocks_does_not_matter() -> None:
    """A step with another structure is a block of its own; gaps are still between the steps that follow each other."""
    m = job({10: 1000.0, 11: 1010.0, 12: 1021.0, 13: 1033.0}, [(11, stage, "gc", 8.999, 0.001) for stage in (0, 1)])
    found = between(m)
    assert [found[step] for step in (10, 11, 12)] == pytest.approx([1.0, 2.0, 3.0], abs=0.01)
    np.testing.assert_array_equal(np.sort(m.breakdown.steps), [10, 11, 12, 13])


def test_the_gap_is_a_component() -> None:
    """Four of five gaps are 1 s, one is 21 s: removing `between-steps` gives the long one back, and at most all of them."""
    starts = np.cumsum([1000.0, 10.0, 10.0, 30.0, 10.0, 10.0])
    m = job({10 + i: float(start) for i, start in enumerate(starts)})
    assert "between-steps" in m.removal.present()
    assert 20.0 / 6 - 1e-6 <= m.gains.replayed_s - m.gains.alone_s["between-steps"] <= 26.0 / 6


#: Worker 0 alone saves for 3 s after steps 11 and 40.
SAVES = [(step, 0, "checkpoint", STEP_S, 3.0) for step in (11, 40)]


def test_what_one_worker_does_holds_up_all_where_known_steps_waited() -> None:
    """Step 12 began only when the worker that saved after 11 was done: then so did what followed step 40, which nobody recorded."""
    starts = {10: 1000.0, 11: 1009.0, 12: 1021.0, 40: 2000.0}
    assert between(job(starts, SAVES)) == pytest.approx({10: 0.0, 11: 3.0, 12: 0.0, 40: 3.0}, abs=1e-6)


@pytest.mark.parametrize(
    ("row", "component"), [("gc", "gc-pause"), ("data-load", "input-delay"), ("checkpoint", "between-steps")]
)
def test_rows_before_a_step_say_what_the_time_is_lost_to(row: str, component: str) -> None:
    """Both workers are busy for 20 s before the first operation of a step: that is what their rows say, and nothing else."""
    starts = np.cumsum([1000.0, 10.0, 10.0, 30.0, 10.0, 10.0])
    rows = [(13, stage, row, -20.5, 20.0) for stage in (0, 1)]
    m = job({10 + i: float(start) for i, start in enumerate(starts)}, rows)
    back_s = {name: m.gains.replayed_s - m.gains.alone_s.get(name, m.gains.replayed_s) for name in BETWEEN}
    # Of the time between steps that no row tells of nine tenths of a second are more than ordinary.
    unexplained_s = 0.91
    assert back_s.pop(component) == pytest.approx(20.0 / 6 + unexplained_s * (component == "between-steps"), abs=0.01)
    assert back_s.pop("between-steps", 0.0) <= unexplained_s + 1e-6
    assert max(back_s.values()) == pytest.approx(0.0, abs=1e-6)


def test_a_wait_before_a_step_ends_where_that_begins() -> None:
    """Of loaders the one is late for 20 s, and the other for 10 s and half a second of the step, which is no time before it."""
    starts = np.cumsum([1000.0, 10.0, 10.0, 30.0, 10.0, 10.0])
    rows = [(13, 0, "data-load", -20.0, 20.0), (13, 1, "data-load", -10.0, 10.5)]
    m = job({10 + i: float(start) for i, start in enumerate(starts)}, rows)
    explained_s = explain_between(m.trace, m.observed, measure_between(m.trace, m.observed))
    led_s = blame_leads(m.trace, m.observed, explained_s)
    assert led_s is not None
    np.testing.assert_allclose(6 * led_s, [[20.0, 10.0]], atol=1e-6)


def test_what_one_worker_does_holds_up_all_where_nothing_speaks_against_it() -> None:
    """It saves for 20 s after the last step of a sample, and no step that has a successor has such a worker."""
    starts = {10: 1000.0, 11: 1010.0, 40: 2000.0, 41: 2010.0}
    found = between(job(starts, [(11, 0, "checkpoint", STEP_S, 20.0)]))
    assert found == pytest.approx({10: 1.0, 11: 21.0, 40: 1.0, 41: 1.0}, abs=1e-6)


def test_what_one_worker_does_holds_up_nobody_where_known_steps_did_not_wait() -> None:
    """Step 12 began at once: the delay shows within it, and nothing is known of what followed step 40."""
    starts = {10: 1000.0, 11: 1009.0, 12: 1018.0, 40: 2000.0}
    assert between(job(starts, SAVES)) == pytest.approx(dict.fromkeys(starts, 0.0), abs=1e-6)


def test_rows_say_who_was_busy_after_the_step() -> None:
    """3 s of worker 0 after two of four steps are 1.5 s a step on it, and nothing on the other."""
    m = job({10: 1000.0, 11: 1009.0, 12: 1021.0, 40: 2000.0}, SAVES)
    tails = measure_tails(m.trace, m.observed)
    assert tails is not None
    np.testing.assert_allclose(tails[:, 0].sum(axis=0), [6.0, 0.0], atol=1e-6)
    np.testing.assert_allclose(m.gains.blame_s["between-steps"], [[1.5, 0.0]], atol=1e-6)


def test_without_rows_nobody_is_known_to_be_busy() -> None:
    """A gap that no row tells of lies on nobody."""
    m = job({10: 1000.0, 11: 1009.0, 12: 1021.0, 13: 1030.0})
    assert measure_tails(m.trace, m.observed) is None
    assert "between-steps" not in m.gains.blame_s


def test_what_precedes_the_first_step_is_no_time_of_a_step() -> None:
    """A batch takes 2 s before each step and 30 s before the first, while the job starts: that is no time of any step."""
    starts = {10: 1000.0, 11: 1011.0, 12: 1022.0, 40: 2000.0}
    rows = [
        (step, stage, "data-load", -2.0 if step > 10 else -30.0, 2.0 if step > 10 else 30.0)
        for step in starts
        for stage in (0, 1)
    ]
    m = job(starts, rows)
    assert between(m) == pytest.approx({10: 2.0, 11: 2.0, 12: 0.0, 40: 2.0}, abs=1e-6)
