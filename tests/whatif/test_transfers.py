"""How long each link takes for a transfer, on generated jobs with one link, or all links of one card, 5 times as slow."""

import dataclasses
from collections.abc import Sequence
from functools import cache
from types import SimpleNamespace
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from diagnose.faults import spec as specs
from diagnose.faults.generate import generate
from diagnose.faults.inputs import draw_inputs
from diagnose.faults.network_fault import NetworkFault
from diagnose.faults.record import record
from diagnose.faults.simulate import simulate
from diagnose.faults.spec import JobSpec
from diagnose.features.network import measure_network
from diagnose.features.suspects import list_ways
from diagnose.model.optype import DP_COLLECTIVES, P2P, Op
from diagnose.model.transfers import SlowPlaces, Transfers
from diagnose.whatif.components.transfer import _exceed_together, _Ordinary, _sample, _take_usual
from diagnose.whatif.transfers import measure_transfers
from tests.judge.cases import Measured, diagnosed, measure

DP, FACTOR = 1, 5.0
MODES: tuple[specs.P2P, ...] = ("blocking", "asynchronous")


@cache
def job(mode: specs.P2P, *links: int, group: int | None = None, steps: tuple[int, ...] = ()) -> Measured:
    """Measure a job some of whose links, by their first stage, are slow on one dp rank, in some steps or all.

    `group` is a stage whose collectives are slow, too.
    """
    spec = JobSpec(pp=4, dp=4, microbatches=8, steps=8, p2p=mode, seed=51)
    inputs = draw_inputs(spec)
    transfer_s = inputs.transfer_s.copy()
    when: Sequence[int] = steps or range(spec.steps)
    for meeting in inputs.programme.meetings:
        tasks = [inputs.programme.tasks[member] for member in meeting.members]
        if tasks[0].op in P2P and min(task.stage for task in tasks) in links:
            for member in meeting.members:
                transfer_s[member, list(when), DP] *= FACTOR
        if tasks[0].op in DP_COLLECTIVES and tasks[0].stage == group:
            for member in meeting.members:
                transfer_s[member, list(when)] *= FACTOR
    inputs = dataclasses.replace(inputs, transfer_s=transfer_s)
    return measure(record(inputs, simulate(inputs)))


def test_a_slow_link_of_few_microbatches() -> None:
    """Two transfers a step are too few for a median of a step; the link is slow all the same, and no other."""
    inputs = draw_inputs(JobSpec(pp=2, dp=4, microbatches=2, steps=8, seed=51))
    transfer_s = inputs.transfer_s.copy()
    for meeting in inputs.programme.meetings:
        if inputs.programme.tasks[meeting.members[0]].op in P2P:
            transfer_s[list(meeting.members), :, DP] *= FACTOR
    inputs = dataclasses.replace(inputs, transfer_s=transfer_s)
    found = slow_in(measure(record(inputs, simulate(inputs))))
    assert {*np.argwhere(found.ways)[:, 2].tolist()} == {DP}


@pytest.mark.parametrize("mode", MODES)
def test_one_slow_direction_of_the_only_link(mode: specs.P2P) -> None:
    """Nothing but the other direction is its equal; members of a batch end together, so alone in their batches they tell."""
    inputs = draw_inputs(JobSpec(pp=2, dp=1, microbatches=4, steps=8, p2p=mode, seed=51))
    transfer_s, tasks = inputs.transfer_s.copy(), inputs.programme.tasks
    for meeting in inputs.programme.meetings:
        if tasks[meeting.members[0]].op in (Op.BACKWARD_SEND, Op.BACKWARD_RECV):
            transfer_s[list(meeting.members)] *= 20 * FACTOR
    for spoilt, slow in ((inputs.transfer_s, []), (transfer_s, [[1, 0, 0]])):  # direction, link, rank
        job = dataclasses.replace(inputs, transfer_s=spoilt)
        assert np.argwhere(slow_in(measure(record(job, simulate(job)))).ways).tolist() == slow


def transfers_of(found: Measured) -> Transfers:
    """Measure the transfers of a job."""
    return measure_transfers(found.removal)


@pytest.mark.parametrize("slow", [(), (3,), (2,)], ids=["none", "one between hosts", "one within a host"])
def test_links_between_hosts_are_slower_by_nature(slow: tuple[int, ...]) -> None:
    """GIVEN two stages a host and all links between hosts slow, THEN only one that is slower than its like is named."""
    inputs = draw_inputs(JobSpec(pp=8, dp=2, microbatches=8, steps=8, workers_per_host=4, seed=51))
    transfer_s = inputs.transfer_s.copy()
    for meeting in inputs.programme.meetings:
        tasks = [inputs.programme.tasks[member] for member in meeting.members]
        link = min(task.stage for task in tasks)
        if tasks[0].op in P2P:
            transfer_s[list(meeting.members)] *= FACTOR if link % 2 else 1.0
            transfer_s[list(meeting.members), :, DP] *= FACTOR**2 if link in slow else 1.0
    inputs = dataclasses.replace(inputs, transfer_s=transfer_s)
    found = slow_in(measure(record(inputs, simulate(inputs))))
    assert {(link, dp) for _, link, dp in np.argwhere(found.ways).tolist()} == {(link, DP) for link in slow}


@pytest.mark.parametrize("slow", [(), ((Op.FORWARD_SEND, 2),), ((Op.BACKWARD_SEND, 4),)])
def test_messages_that_are_sent_before_they_are_asked_for(slow: tuple[tuple[Op, int], ...]) -> None:
    """A message has a part of its way left, or all of it where its receiver waits: such a link is no slower than others."""
    spec = JobSpec(pp=8, dp=1, microbatches=12, steps=8, p2p="lazy", transfer_s=2e-4, seed=51)
    inputs = draw_inputs(spec)
    under_way_s = np.zeros_like(inputs.delay_s)
    for send in np.flatnonzero(inputs.programme.is_op(Op.FORWARD_SEND, Op.BACKWARD_SEND)):
        task = inputs.programme.tasks[send]
        under_way_s[send] = 1.5e-3 * (FACTOR if (task.op, task.stage) in slow else 1.0)
    inputs = dataclasses.replace(inputs, delay_s=inputs.delay_s + under_way_s)
    times = simulate(inputs)
    sent = dataclasses.replace(times, start_s=times.start_s - under_way_s)
    ways = [[int(op == Op.BACKWARD_SEND), stage - (op == Op.BACKWARD_SEND), 0] for op, stage in slow]
    assert np.argwhere(slow_in(measure(record(inputs, sent))).ways).tolist() == ways


@pytest.mark.parametrize(
    ("awaited", "expected"), [((), 2.0), ((0, 1), 2.0), ((0, 1, 2), 8.0), (range(7), 2.0), ((3, 5, 6), 2.0)]
)
def test_awaited_transfers_are_usual(awaited: Sequence[int], expected: float) -> None:
    """Three say what a link takes, however many others were there before; fewer say nothing, nor do any that are quicker."""
    seconds = np.array([9.0, 8.0, 7.0, 1.0, 2.0, 1.0, 1.0])
    assert _take_usual(seconds, np.isin(np.arange(7), awaited), axis=0) == expected


@pytest.mark.parametrize(("late_s", "n_ordinary"), [(0.5, 6), (2.0, 12), (8.0, 12)])
def test_transfers_that_nobody_waits_for_are_ordinary_unless_shorter(late_s: float, n_ordinary: int) -> None:
    """A message that was there before took a part of its time unseen; where each waits for both of its ends, none did."""
    awaited = np.broadcast_to(np.arange(4)[:, None, None] < 2, (4, 3, 1))
    block = SimpleNamespace(start_s=np.zeros((4, 3, 1)))
    own = np.where(awaited, 2.0, late_s)
    o: Any = SimpleNamespace(block=block, own=own, are_derived=False, find_awaited=lambda: awaited)
    found = _sample(o, {0: np.arange(4)}, {0: np.ones(1, dtype=bool)})
    assert np.count_nonzero(np.isfinite(found[0])) == n_ordinary


def slow_in(found: Measured) -> SlowPlaces:
    """Say where the slow transfers of a job are."""
    slow = transfers_of(found).slow
    assert slow is not None
    return slow


@pytest.mark.parametrize("mode", MODES)
def test_without_a_fault_all_links_take_the_same(mode: specs.P2P) -> None:
    """Links and groups of a healthy job are within 20% of what the job is made of, and no card is slow."""
    transfers = transfers_of(job(mode))
    assert np.isnan(transfers.link_s[-1]).all()  # no link leaves the last stage
    np.testing.assert_allclose(transfers.link_s[:-1], 5e-4, rtol=0.2)
    assert not slow_in(job(mode)).found
    assert transfers.link_steps_s is not None and transfers.group_steps_s is not None
    np.testing.assert_allclose(np.median(transfers.link_steps_s, axis=2), transfers.link_s, rtol=0.2)
    np.testing.assert_allclose(np.median(transfers.group_steps_s, axis=1), transfers.group_s, rtol=0.2)


@pytest.mark.parametrize("link", [0, 1, 2])
@pytest.mark.parametrize("mode", MODES)
def test_one_slow_link(mode: specs.P2P, link: int) -> None:
    """A link of 5 times the transfer is measured as 5 times the others, and the link is named and no worker."""
    found = job(mode, link)
    transfers = transfers_of(found)
    features = measure_network(transfers, found.breakdown)
    assert features["network.link_ratio"].value == pytest.approx(FACTOR, rel=0.15)
    assert list_ways(slow_in(found)) == [(2, link, DP)]
    assert not slow_in(found).cards.any()


@pytest.mark.parametrize("stage", [1, 2])
@pytest.mark.parametrize("mode", MODES)
def test_a_slow_card(mode: specs.P2P, stage: int) -> None:
    """A worker both of whose links are slow, and the collectives of its stage, is named, and no link."""
    found = job(mode, stage - 1, stage, group=stage)
    transfers = transfers_of(found)
    features = measure_network(transfers, found.breakdown)
    assert features["network.link_ratio"].value == pytest.approx(FACTOR, rel=0.15)
    assert np.argwhere(slow_in(found).cards).tolist() == [[DP, stage]]
    assert list_ways(slow_in(found)) == []


@pytest.mark.parametrize("stage", [1, 2])
@pytest.mark.parametrize("mode", MODES)
def test_two_slow_links_of_a_worker_whose_collectives_are_quick(mode: specs.P2P, stage: int) -> None:
    """Collectives go through the same card: where they are as quick as others, the two links are slow by themselves."""
    slow = slow_in(job(mode, stage - 1, stage))
    assert not slow.cards.any()
    assert list_ways(slow) == [(2, stage - 1, DP), (2, stage, DP)]


@pytest.mark.parametrize("mode", MODES)
def test_a_link_that_is_slow_in_few_steps_is_late(mode: specs.P2P) -> None:
    """What single late transfers cost is on the link that has them, and its median stays what it was."""
    transfers = transfers_of(job(mode, 1, steps=(2, 5)))
    assert int(np.nanargmax(transfers.link_late_s)) == 4 + DP  # stage 1 of 4 dp ranks
    assert transfers.link_s[1, DP] == pytest.approx(5e-4, rel=0.2)
    late_s = 2 / 8 * 16 * (FACTOR - 1.0) * 5e-4  # steps with it, transfers a step, seconds beyond the usual of each
    assert transfers.link_late_s[1, DP] == pytest.approx(late_s, rel=0.25)
    assert np.delete(transfers.link_late_s[:3].ravel(), 4 + DP).max() == 0.0


def test_the_step_time_is_that_of_the_job() -> None:
    """The mean step time beside the transfers is the recorded one."""
    found = job("blocking")
    assert transfers_of(found).step_s == pytest.approx(found.diagnosis.step_time.recorded, rel=1e-6)


@pytest.mark.parametrize("stage", range(4))
def test_a_group_that_flaps_is_measured_against_the_others(stage: int) -> None:
    """Two of eight collectives of one group take half a second longer: all that is beyond the ordinary, whichever group it is."""
    spec = JobSpec(pp=4, dp=4, microbatches=4, steps=8, seed=52)
    inputs = draw_inputs(spec)
    stall_s = inputs.stall_s.copy()
    scatter = np.flatnonzero(inputs.programme.is_op(Op.REDUCE_SCATTER) & (inputs.programme.stage == stage))
    stall_s[scatter[0], [2, 6], DP] = 0.5
    inputs = dataclasses.replace(inputs, stall_s=stall_s)
    found = transfers_of(measure(record(inputs, simulate(inputs))))
    assert found.group_excess_s[stage] == pytest.approx(2 / 8 * 0.5, rel=0.05)
    assert np.delete(found.group_excess_s, stage).max() < 1e-3


@pytest.mark.parametrize("p2p", ["blocking", "asynchronous"])
def test_the_only_link_is_slower_from_a_step_on(p2p: Any) -> None:
    """By two thirds, in a job of more steps than are looked at to learn what is usual."""
    spec = JobSpec(pp=2, dp=1, microbatches=4, steps=40, forward_s=0.01, transfer_s=0.02, p2p=p2p, seed=1)
    slow = NetworkFault(scope="link", stage=0, slowdown=1.7, onset=20)
    assert "network-fault" in [cause.cause for cause in diagnosed(spec, slow).causes]


def test_who_comes_last_to_a_collective_may_find_all_that_it_needs() -> None:
    """Two ranks exchange messages: the first waits for the one of the last, which reads what is long there, and goes on."""
    spec = JobSpec(pp=4, dp=2, microbatches=4, steps=24, collective_s=0.04, noise=3.0, seed=51)
    rows = generate(spec, []).trace.to_pandas()
    rows["optype"] = rows["optype"].astype(str)
    exchanges = rows[rows.optype.isin(["params-all-gather", "grads-reduce-scatter"])]
    first, last = (
        getattr(exchanges.groupby(["optype", "stage", "step"]).start_ts, of)() for of in ("idxmin", "idxmax")
    )
    late = (rows.start_ts[last].to_numpy() - rows.start_ts[first].to_numpy()) > 0.2 * rows.duration[last].to_numpy()
    assert late.mean() > 0.2
    rows.loc[last[late], "duration"] *= 0.02
    m = measure(pa.Table.from_pandas(rows, preserve_index=False))
    assert m.gains.recoverable("transfer") < 0.005
    assert not m.diagnosis.causes


@pytest.mark.parametrize(
    ("last", "expected"),
    [([30.0, 40.0, 40.0, 16.0], [18.0, 28.0, 28.0, 4.0]), ([12.0, 40.0, 16.0, 10.0], [0.0, 28.0, 0.0, 0.0])],
)
def test_who_leaves_a_slow_collective_early_is_in_it_too(last: list[float], expected: list[float]) -> None:
    """Members take 10 to 14 ms, the quickest 10. In the last step most, or one, are late: all had been quicker, or one."""
    seconds = np.array([*[[10.0, 12.0, 12.0, 14.0]] * 9, last])
    excess = np.where(seconds > 20.0, seconds - 10.0, 0.0)
    beyond = _exceed_together(excess, seconds, seconds.min(axis=1), _Ordinary(usual_s=10.0, top_s=13.0, slow_s=15.0))
    assert np.maximum(beyond, 0.0).tolist() == [*[[0.0] * 4] * 9, expected]
