"""Rows of every tensor- and context-parallel member: one row for all, and who of them was late."""

from typing import Any

import numpy as np
import pandas as pd
import pytest

from diagnose.faults.generate import generate
from diagnose.faults.spec import JobSpec
from diagnose.faults.worker_fault import WorkerFault
from diagnose.model.members import Members
from diagnose.model.optype import Op
from diagnose.model.trace import Trace
from diagnose.trace.load import load_trace
from tests.jobs import hand_job, load, to_file

SIZES = {"dp_size": 1, "pp_size": 2}


def two_members(*, early: float = 0.25, clock_s: float = 0.0) -> pd.DataFrame:
    """Make the hand-made job with two members: computes of the first end early by a part, the second's clock is off."""
    rows = hand_job()
    compute = rows.optype.str.endswith("-compute")
    quick = rows.assign(duration=np.where(compute, (1.0 - early) * rows.duration, rows.duration), tp_rank=0)
    return pd.concat([quick, rows.assign(start_ts=rows.start_ts + clock_s, tp_rank=1)], ignore_index=True)


def members_of(trace: Trace) -> Members:
    """Give the members that a trace must have."""
    assert trace.members is not None
    return trace.members


def assert_times(found: Trace, expected: Trace, tolerance_s: float) -> None:
    """Compare the times of all operations."""
    assert len(found.blocks) == len(expected.blocks)
    for a, b in zip(found.blocks, expected.blocks, strict=True):
        np.testing.assert_allclose(a.start_s, b.start_s, atol=tolerance_s, rtol=0)
        np.testing.assert_allclose(a.end_s, b.end_s, atol=tolerance_s, rtol=0)


@pytest.mark.parametrize("clock_s", [0.0, 0.5, -3.0])
def test_lateness_that_one_can_add(clock_s: float) -> None:
    """A member that ends a quarter early in computes of 1 and 2 s leaves the other 0.375 s late, whatever its clock says."""
    trace = load(two_members(clock_s=clock_s))
    members = members_of(trace)
    np.testing.assert_allclose(members.late_s, np.broadcast_to([-0.375, 0.375], (2, 1, 2, 2)))
    np.testing.assert_array_equal(members.last_share, np.broadcast_to([0.0, 1.0], (2, 1, 2, 2)))
    assert (members.n_compared == 4).all()
    assert not members.starts_late.any()
    np.testing.assert_allclose(members.clock_s[..., 1], clock_s)
    assert_times(trace, load(hand_job()), 1e-9)


@pytest.mark.parametrize(
    ("hosts", "late_s"),
    [(("node-1", "node-1"), 0.5), (("node-1", "node-2"), 0.0), (("localhost", "localhost"), 0.0)],
)
def test_members_of_one_host_have_one_clock(hosts: tuple[str, str], late_s: float) -> None:
    """A member that is always half a second behind is late where both are on one host, and has another clock else."""
    rows = two_members(early=0.0, clock_s=0.5)
    trace = load(rows.assign(host=[hosts[tp] for tp in rows.tp_rank]))
    block, alone = trace.blocks[0], load(hand_job()).blocks[0]
    np.testing.assert_allclose((block.end_s - alone.end_s)[block.nodes.op == Op.BACKWARD], late_s, atol=1e-9)
    assert members_of(trace).clock_s.any() == (late_s == 0.0)


@pytest.mark.parametrize(("clock_s", "is_moved"), [(0.007, False), (0.008, True)])
def test_a_clock_that_is_hardly_off_stays(clock_s: float, is_moved: bool) -> None:
    """A clock that is off by less than half a percent of a compute, here of 1.5 s, is left as it is."""
    trace = load(two_members(early=0.0, clock_s=clock_s))
    assert members_of(trace).clock_s.any() == is_moved
    assert_times(trace, load(hand_job()), 1e-9 if is_moved else 2 * clock_s)


@pytest.mark.parametrize(("n_left", "n_compared"), [(3, 8), (4, 4)])
def test_a_member_that_lost_most_of_its_rows_is_left_out(n_left: int, n_compared: int) -> None:
    """With fewer than half of its 8 computes a member is not compared, and the others are in all of theirs; with more it is."""
    rows = two_members().query("stage == 0")
    third = rows[rows.tp_rank == 1].assign(tp_rank=2)
    computes = third.index[third.optype.str.endswith("-compute")]
    members = members_of(
        load(pd.concat([rows, third.drop(computes[n_left:])], ignore_index=True), {"dp_size": 1, "pp_size": 1})
    )
    assert members.n_compared.sum() == n_compared
    assert np.isnan(members.late_s[..., 2]).all() == (n_left == 3)


def test_members_that_start_apart_and_end_together() -> None:
    """A member held up before its computes is late with their starts, and the group's operation begins with the others."""
    rows = two_members(early=0.0)
    held = (rows.tp_rank == 1) & rows.optype.str.endswith("-compute")
    by_s = 0.25 * rows.duration
    rows = rows.assign(start_ts=rows.start_ts + held * by_s, duration=rows.duration - held * by_s)
    trace = load(rows)
    assert members_of(trace).starts_late.all()
    np.testing.assert_allclose(members_of(trace).late_s[..., 1], 0.375)
    assert_times(trace, load(hand_job()), 1e-9)


def test_equal_members_are_not_late() -> None:
    """Of members with equal times nobody is late, and nobody last."""
    members = members_of(load(two_members(early=0.0)))
    assert not members.late_s.any()
    assert not members.last_share.any()


@pytest.mark.parametrize("kind", ["ends", "starts", "waits"])
def test_the_group_is_its_first_start_and_last_end(kind: Any) -> None:
    """Rows of all members, each with its own noise, give the times of the group to the microsecond that a trace resolves."""
    fields = {"pp": 2, "dp": 2, "microbatches": 3, "steps": 6, "tp_size": 2, "cp_size": 2, "seed": 4}
    fault = [WorkerFault(places=((1, 0),), member=2)]
    one, every = (generate(spec, fault).trace for spec in (JobSpec(**fields), JobSpec(**fields, members=kind)))
    assert_times(load_trace(to_file(every)), load_trace(to_file(one)), 2e-6)


def test_clocks_that_drift() -> None:
    """A clock that gains a millisecond a step is followed: no operation of the group is longer than it was."""
    spec = JobSpec(pp=2, dp=2, microbatches=4, steps=12, tp_size=2, members="ends", seed=4)
    rows = generate(spec).trace.to_pandas()
    order = np.searchsorted(np.unique(rows.step), rows.step)
    off = rows.assign(start_ts=rows.start_ts + np.where(rows.tp_rank == 1, 1e-3 * order, 0.0))
    found, expected = load(off), load(rows)
    lasts = [block.end_s - block.start_s for trace in (found, expected) for block in trace.blocks]
    np.testing.assert_allclose(lasts[0][:, 2:-2], lasts[1][:, 2:-2], atol=1e-4)
    np.testing.assert_allclose(lasts[0], lasts[1], atol=3e-3)


def test_evidence_of_members_is_joined_where_it_overlaps() -> None:
    """Collections of two members at the same time are one; those at other times, and of one member alone, stay."""
    rows = two_members(early=0.0)
    pauses = [(0, 0.5, 0.2), (1, 0.6, 0.3), (1, 2.0, 0.1), (0, 5.5, 0.1), (0, 5.7, 0.1)]
    added = pd.DataFrame(
        [(10, 0, 0, "gc", start, seconds, i, -1, -1, tp) for i, (tp, start, seconds) in enumerate(pauses)],
        columns=list(rows.columns),
    )
    evidence = load(pd.concat([rows, added], ignore_index=True)).evidence
    assert (evidence.op == Op.GC).all()
    np.testing.assert_allclose(evidence.start_s, [0.5, 2.0, 5.5, 5.7])
    np.testing.assert_allclose(evidence.end_s, [0.9, 2.1, 5.6, 5.8])


def test_waits_of_members_are_added_up() -> None:
    """Seconds in collectives of the group are summed by member and step; where a member has fewer rows they say nothing."""
    rows = two_members(early=0.0)
    computes = rows[rows.optype.str.endswith("-compute")]
    waits = computes.assign(optype="tp-allreduce", duration=np.where(computes.tp_rank == 0, 0.3, 0.1))
    lost = (waits.step == 11) & (waits.stage == 1) & (waits.tp_rank == 0) & (waits.mb_id == 0)
    trace = load(pd.concat([rows, waits[~lost]], ignore_index=True))
    wait_s = members_of(trace).wait_s
    assert wait_s is not None
    np.testing.assert_allclose(wait_s[0, 0], [[1.2, 0.4], [1.2, 0.4]])
    assert np.isnan(wait_s[1, 0, 1]).all()
    assert any(
        "are kept: their worker is busy meanwhile, unless it computes: 'tp-allreduce'" in text
        for text in trace.warnings
    )


def test_a_trace_of_one_row_for_all_has_no_members() -> None:
    """Without members' rows nothing is said of members, with or without a column of equal labels."""
    assert load(hand_job()).members is None
    assert load(hand_job().assign(tp_rank=0)).members is None


def test_labels_that_are_damaged() -> None:
    """Labels all over the place are merged, and nothing is said of single members."""
    rows = hand_job().assign(tp_rank=np.arange(len(hand_job())) * 1000)
    trace = load(rows)
    assert trace.members is None
    assert any("more members than there are rows for" in text for text in trace.warnings)


def test_each_member_has_its_rank_and_host() -> None:
    """A worker goes by its first member's rank and host; each member has its own, as the rows name them."""
    rows = two_members()
    rank = rows.stage * 2 + rows.tp_rank + 10
    trace = load(rows.assign(rank=rank, host="node-" + rank.astype(str)).sample(frac=1.0, random_state=1))
    members = members_of(trace)
    assert trace.ranks.tolist() == [[10, 12]]
    assert trace.hosts == ("node-10", "node-12")
    assert members.ranks is not None
    assert members.ranks.tolist() == [[[10, 11], [12, 13]]]
    assert members.hosts_of(0, 1) == ("node-12", "node-13")


def test_a_rank_that_members_share_is_not_theirs() -> None:
    """Where all members of a worker carry one rank nobody knows which of them it is."""
    members = members_of(load(two_members().assign(rank=lambda rows: rows.stage)))
    assert members.ranks is None


def test_ranks_are_derived_with_members_that_are_not_recorded() -> None:
    """Context-parallel members of a job with tp 4 lie four ranks apart."""
    rows = two_members().rename(columns={"tp_rank": "cp_rank"})
    members = members_of(load(rows, SIZES | {"tp_size": 4, "cp_size": 2, "world_size": 16}))
    assert members.ranks is not None
    assert members.ranks.tolist() == [[[0, 4], [8, 12]]]


def test_numbers_that_repeat_are_counted_again() -> None:
    """A seq_id that is 0 everywhere is counted again for each member, and the times are those of the group."""
    trace = load(two_members().assign(seq_id=0))
    assert any("seq_id repeats within the operations of a member" in text for text in trace.warnings)
    assert_times(trace, load(hand_job()), 1e-9)


def members_out_of_step() -> pd.DataFrame:
    """Make a worker whose two members do not wait for each other within computes: the second is behind in one, ahead in another."""
    names = ["forward-compute"] * 2 + ["backward-compute"] * 2 + ["grads-reduce-scatter"]
    times = [
        ([0.0, 1.0, 2.0, 3.0, 4.0], [1.0, 2.0, 3.0, 4.0, 5.0]),
        ([0.0, 1.5, 2.0, 2.5, 4.5], [1.5, 2.0, 2.5, 4.0, 5.0]),
    ]
    parts = []
    for step in range(4):
        for member, (start_s, end_s) in enumerate(times):
            part = pd.DataFrame({"optype": names, "microbatch": [0, 1, 0, 1, -1], "start_ts": start_s})
            part = part.assign(duration=np.subtract(end_s, start_s), tp_rank=member, step=step, stage=0, dp_rank=0)
            parts.append(part.assign(start_ts=part.start_ts + 10.0 * step))
    return pd.concat(parts, ignore_index=True)


def test_members_out_of_step_do_not_overlap_themselves() -> None:
    """A merged compute begins where the one before it has ended; a merged collective begins with its last member."""
    (block,) = load(members_out_of_step()).blocks
    assert block.start_s.shape == (5, 4, 1)
    for step in range(4):
        order = np.argsort(block.start_s[:, step, 0])
        begins_s = block.start_s[order[0], step, 0]
        np.testing.assert_allclose(block.start_s[order, step, 0] - begins_s, [0.0, 1.5, 2.0, 3.0, 4.5])
        np.testing.assert_allclose(block.end_s[order, step, 0] - begins_s, [1.5, 2.0, 3.0, 4.0, 5.0])
