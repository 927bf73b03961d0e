"""Which member of a slow worker is named: the one that the others wait for, and nobody on thin evidence."""

import dataclasses
from typing import Any

import numpy as np
import pytest

from diagnose.features.members import count_members, find_late_members, measure_members
from diagnose.model.members import LateMember, Members
from diagnose.model.trace import Job, Trace
from tests.features.hand import N_STEPS, STEPS, evidence, slowed

#: A worker that is 50% slower: 4 computes a step of 1 and 2 s lose 0.75 s each.
SLOW = slowed({(1, 0): 1.5})
LOST_S = 0.75
SHAPE = (N_STEPS, 2, 2, 3)


def members(late: list[float], last: list[float], **changes: Any) -> Members:
    """Give three members of every worker, with seconds late and share of being last of each."""
    parts: dict[str, Any] = {
        "tp": np.arange(3),
        "cp": None,
        "ranks": None,
        "hosts": None,
        "steps": STEPS,
        "late_s": np.broadcast_to(np.asarray(late), SHAPE),
        "last_share": np.broadcast_to(np.asarray(last), SHAPE),
        "n_compared": np.full(SHAPE[:3], 4),
        "starts_late": np.zeros((2, 2), dtype=bool),
        "tightness": np.full((2, 2), 50.0),
        "clock_s": np.zeros((2, 2, 3)),
        "wait_s": None,
    }
    return Members(**(parts | changes))


def waits(seconds: list[float]) -> np.ndarray:
    """Give the seconds a step that each member waits."""
    return np.broadcast_to(np.asarray(seconds), SHAPE)


def trace_with(found: Members | None) -> Trace:
    """Give a trace of which only the members count."""
    job = Job("job", dp_size=2, pp_size=2, tp_size=3, cp_size=1, vpp_size=1, world_size=12)
    none = np.zeros(0, dtype=np.int64)
    return Trace(job, (), evidence(), none, none, None, none, None, 0, 0, (), (), (), members=found)


def judge(found: Members) -> LateMember:
    """Judge the slow worker."""
    return find_late_members(trace_with(found), SLOW)[1, 0]


LATE = members([-0.7, 0.7, -0.7], [0.0, 1.0, 0.0])


def test_how_many_members_one_is_slow_among() -> None:
    """Where one is named, all count; where nobody is, or no worker is slow, the worker is taken as a whole."""
    assert count_members(trace_with(LATE), SLOW) == 3
    assert count_members(trace_with(members([0.0, 0.0, 0.0], [0.3, 0.3, 0.4])), SLOW) == 1
    assert count_members(trace_with(LATE), slowed({})) == count_members(trace_with(None), SLOW) == 1


def test_the_last_member_is_named() -> None:
    """A member that is always last, by nearly all that the worker loses, is the one."""
    found = judge(LATE)
    assert (found.member, found.how, found.reason) == (1, "ends", "")
    assert found.late_share == pytest.approx(0.7 / LOST_S)
    assert found.last_share == 1.0


def test_a_late_start() -> None:
    """The same of starts, where members end together."""
    assert judge(dataclasses.replace(LATE, starts_late=np.ones((2, 2), dtype=bool))).how == "starts"


@pytest.mark.parametrize(
    ("found", "reason"),
    [
        (members([-0.1, 0.1, -0.1], [0.0, 1.0, 0.0]), "none is later than the others by more than 0.1 s"),
        (members([-0.7, 0.7, -0.7], [0.3, 0.4, 0.3]), "none is last in more than 0.4"),
        (dataclasses.replace(LATE, tightness=np.full((2, 2), 1.1)), "cannot be told from a clock"),
        (dataclasses.replace(LATE, n_compared=np.ones(SHAPE[:3], dtype=np.int64)), "rows of only 10 computes"),
        (dataclasses.replace(LATE, wait_s=waits([1.0, 4.0, 1.0])), "waits longer than the others"),
        (dataclasses.replace(LATE, wait_s=waits([0.0, 4.0, 4.0])), "is not the one that waits least"),
    ],
)
def test_nobody_is_named_on_thin_evidence(found: Members, reason: str) -> None:
    """Too little lateness, no leader, clocks in doubt, few rows, or waits that contradict: nobody, and the reason says why."""
    late = judge(found)
    assert late.member is None
    assert reason in late.reason


def test_who_waits_least_is_named_where_all_end_together() -> None:
    """With equal starts and ends the member that waits 3 s a step less than the others is the one, never one that waited."""
    found = judge(members([0.0, 0.0, 0.0], [0.0, 0.0, 0.0], wait_s=waits([3.1, 3.1, 0.1])))
    assert (found.member, found.how) == (2, "waits")
    assert found.late_share == pytest.approx(3.0 / 4 / LOST_S)


def test_only_slow_steps_count() -> None:
    """A member late in the steps in which the worker is slow is named, whoever was late before."""
    late, last = np.zeros(SHAPE), np.zeros(SHAPE)
    late[:6, :, :, 0], last[:6, :, :, 0] = 0.7, 1.0
    late[6:, :, :, 2], last[6:, :, :, 2] = 0.7, 1.0
    found = members([0.0] * 3, [0.0] * 3, late_s=late, last_share=last)
    (judged,) = find_late_members(trace_with(found), slowed({(1, 0): 1.5}, steps=slice(6, None))).values()
    assert judged.member == 2


def test_a_member_without_rows_is_passed_over() -> None:
    """A member whose rows are lost is not named; the others are compared."""
    found = judge(members([np.nan, 0.7, -0.7], [np.nan, 1.0, 0.0]))
    assert found.member == 1


def test_features() -> None:
    """The features are what the judgement rests on, and missing with the reason where there is none."""
    found = measure_members(trace_with(LATE), SLOW)
    assert found["member.last_share"].value == 1.0
    assert found["member.late_share"].value == pytest.approx(0.7 / LOST_S)
    assert "one by one" in measure_members(trace_with(None), SLOW)["member.late_share"].reason
    assert "no worker is slow" in measure_members(trace_with(LATE), slowed({}))["member.late_share"].reason


def test_waits_of_a_few_steps_are_no_evidence() -> None:
    """Waits that contradict lateness count from three slow steps on."""
    for n_steps, member in ((2, 1), (3, None)):
        wait_s = waits([0.0, 4.0, 4.0]).copy()
        wait_s[n_steps:] = np.nan
        assert judge(dataclasses.replace(LATE, wait_s=wait_s)).member == member
