"""Breakdown removed by replay: alone, last, together; and the lost time shared out so that it adds up."""

import dataclasses
import itertools
from typing import Any

import numpy as np
import pandas as pd
import pytest

from diagnose.faults.sequence_imbalance import SequenceImbalance
from diagnose.faults.spec import JobSpec
from diagnose.faults.stage_imbalance import StageImbalance
from diagnose.faults.worker_fault import WorkerFault
from diagnose.model.change import Remove
from diagnose.whatif.removal import MATERIAL_SHARE, Removal
from tests.jobs import hand_job, to_table
from tests.judge.cases import Measured, measure, measured

SPEC = JobSpec(pp=4, dp=4, microbatches=8, steps=10, seed=51)
WORKER = WorkerFault(places=((1, 2),), slowdown=1.6)
STAGE = StageImbalance(forward_slowdown=1.7, backward_slowdown=1.4)
SEQUENCES = SequenceImbalance(quadratic_share=0.5)
JOBS = {
    "healthy": (),
    "worker": (WORKER,),
    "worker and stage": (WORKER, STAGE),
    "all three": (WORKER, STAGE, SEQUENCES),
}


def hand_ranks() -> Measured:
    """Measure two dp ranks of the hand-made job, of which the second has a stage 1 that takes twice as long.

    The first would be through after 9 s, the second after 15 s; the clip holds both until then.
    """
    fast, slow = hand_job().assign(dp_rank=0), hand_job(slow_stage=1).assign(dp_rank=1)
    clip, optimizer = fast.optype == "optimizer-clip-main-grad", fast.optype == "optimizer"
    fast.loc[clip, "duration"] = 15.0 - fast.loc[clip, "start_ts"]
    fast.loc[optimizer, "start_ts"] = 15.0
    meta = {"dp_size": 2, "pp_size": 2, "tp_size": 1, "cp_size": 1, "vpp_size": 1, "world_size": 4, "job_id": "hand"}
    return measure(to_table(pd.concat([fast, slow], ignore_index=True), meta))


def test_the_hand_made_worker() -> None:
    """One worker twice as long makes steps of 15 s; as fast as its peer they take 9 s, and all of the loss is its."""
    m = hand_ranks()
    assert np.argwhere(m.breakdown.slow_workers).tolist() == [[1, 1]]
    assert m.gains.recorded_s == pytest.approx(15.0)
    assert m.gains.alone_s["worker"] == pytest.approx(9.0)
    assert m.gains.recoverable("worker") == pytest.approx(0.4)
    assert m.gains.share["worker"] == pytest.approx(1.0)
    # Its two forwards are 1 s too long, its two backwards 2 s.
    np.testing.assert_allclose(m.gains.blame_s["worker"], [[0.0, 0.0], [0.0, 6.0]])


@pytest.mark.parametrize("name", JOBS)
def test_removing_nothing_changes_nothing(name: str) -> None:
    """The empty set gives every recorded step again, everything gives the clean job."""
    m = measured(SPEC, *JOBS[name])
    recorded = np.concatenate([o.block.end_s.max(axis=(0, 2)) for o in m.observed])
    np.testing.assert_allclose(m.removal.step_times([]), recorded, rtol=1e-9)
    assert m.gains.replayed_s == pytest.approx(m.gains.recorded_s)
    assert float(m.removal.step_times(m.removal.present()).mean()) == pytest.approx(m.gains.clean_s)


@pytest.mark.parametrize("name", JOBS)
def test_alone_and_last_are_replays_of_sets(name: str) -> None:
    """`alone` is the job without one component, `last` the job without all others."""
    m = measured(SPEC, *JOBS[name])
    names = m.removal.present()
    for component in names:
        alone = m.removal.step_times([component]).mean()
        last = m.removal.step_times([other for other in names if other != component]).mean()
        assert m.gains.alone_s[component] == pytest.approx(alone)
        assert m.gains.last_s[component] == pytest.approx(last)
        assert m.gains.recoverable(component) == pytest.approx(1.0 - alone / m.gains.recorded_s)
        assert m.gains.recoverable_last(component) == pytest.approx(1.0 - m.gains.clean_s / last)


@pytest.mark.parametrize("name", JOBS)
def test_shares_add_up(name: str) -> None:
    """Shapley shares are efficient: with the part of what does not matter they are all of the lost time."""
    m = measured(SPEC, *JOBS[name])
    names, share = m.removal.present(), m.gains.share
    rest = [component for component in names if component not in share]
    lost = m.gains.replayed_s - m.gains.clean_s
    rest_alone = m.gains.replayed_s - m.removal.step_times(rest).mean()
    rest_last = m.removal.step_times(list(share)).mean() - m.gains.clean_s
    if share:
        assert abs((1.0 - sum(share.values())) * lost) <= max(abs(rest_alone), abs(rest_last)) + 1e-9
    else:
        assert lost < 0.05 * m.gains.replayed_s


def by_all_orders(m: Measured) -> dict[str, float]:
    """Share the lost time out as the definition says: average over every order in which components are removed."""
    players = [*[(name,) for name in m.gains.share], tuple(n for n in m.removal.present() if n not in m.gains.share)]
    orders = list(itertools.permutations(players))
    times: dict[frozenset[str], float] = {}

    def step_s(gone: frozenset[str]) -> float:
        if gone not in times:
            times[gone] = float(m.removal.step_times(gone).mean())
        return times[gone]

    parts = dict.fromkeys(players, 0.0)
    for order in orders:
        gone: frozenset[str] = frozenset()
        for player in order:
            parts[player] += (step_s(gone) - step_s(gone | set(player))) / len(orders)
            gone |= set(player)
    lost = m.gains.replayed_s - m.gains.clean_s
    return {player[0]: part / lost for player, part in parts.items() if len(player) == 1 and player[0] in m.gains.share}


@pytest.mark.parametrize("name", ["worker", "worker and stage", "all three"])
def test_shares_are_those_of_all_orders(name: str) -> None:
    """The shares equal the plain average over all orders of removing the components."""
    m = measured(SPEC, *JOBS[name])
    assert m.gains.share == pytest.approx(by_all_orders(m), rel=1e-9, abs=1e-12)


@pytest.mark.parametrize("name", JOBS)
def test_only_what_matters_has_a_share(name: str) -> None:
    """Each component with a share gives something back alone or last, and each that gives much has a share."""
    gains = measured(SPEC, *JOBS[name]).gains
    for component in gains.last_s:
        if "+" in component:
            continue
        worth = (
            max(gains.replayed_s - gains.alone_s[component], gains.last_s[component] - gains.clean_s) / gains.replayed_s
        )
        assert (component in gains.share) == (worth > MATERIAL_SHARE)


def test_components_of_one_cause_are_removed_together() -> None:
    """Two components that one cause stands for are also removed as one, under both names."""
    m = measured(SPEC, WORKER, STAGE)
    found = m.removal.gains([("worker", "stage"), ("worker",)])
    assert found.alone_s["worker+stage"] == pytest.approx(float(m.removal.step_times(["worker", "stage"]).mean()))
    assert "worker+stage" not in found.share
    assert found.recoverable("worker+stage") >= max(found.recoverable("worker"), found.recoverable("stage"))


def test_what_a_job_does_not_have_gives_nothing_back() -> None:
    """Removing a component that is not there changes no step, and it has no share."""
    m = measured(SPEC, WORKER)
    assert "malloc-pause" not in m.removal.present()
    assert m.gains.recoverable("malloc-pause") == m.gains.recoverable_last("malloc-pause") == 0.0
    np.testing.assert_array_equal(m.removal.step_times(["malloc-pause"]), m.removal.step_times([]))
    assert abs(m.gains.recoverable("microbatch")) < 0.002  # ordinary ones differ, too


def test_time_between_steps_is_kept_until_it_is_removed() -> None:
    """Seconds between steps add to each step; removed, only the few milliseconds stay that no job is without."""
    m = measured(SPEC)
    between_s = np.full(SPEC.steps, 0.005)
    between_s[[2, 7]] = 4.005
    removal = Removal(m.observed, m.breakdown, n_stages=SPEC.pp, between_s=between_s)
    plain = m.removal.step_times([])
    np.testing.assert_allclose(removal.step_times([]), plain + between_s)
    np.testing.assert_allclose(removal.step_times(["between-steps"]), plain + 0.005)
    gains = removal.gains()
    assert gains.recorded_s == pytest.approx(plain.mean() + between_s.mean())
    assert gains.recoverable("between-steps") == pytest.approx(0.8 / gains.recorded_s)


def test_time_between_all_steps_is_lost_too() -> None:
    """Half a second between each step and the next is lost time, though no gap is longer than another."""
    m = measured(SPEC)
    removal = Removal(m.observed, m.breakdown, n_stages=SPEC.pp, between_s=np.full(SPEC.steps, 0.5))
    gains = removal.gains()
    assert 0.45 < gains.replayed_s - gains.alone_s["between-steps"] <= 0.5


@pytest.mark.parametrize("fault", [STAGE, SEQUENCES], ids=lambda fault: fault.cause)
def test_removing_imbalance_keeps_the_work(fault: Any) -> None:
    """Imbalance moves work: spread evenly, all computes of a step together are as long as before."""
    m = measured(SPEC, fault)
    component = "stage" if fault is STAGE else "microbatch"
    for i, o in enumerate(m.observed):
        _, own, _ = m.removal.change_steps(i, [Remove(component)], slice(0, len(o.block.steps)))
        before = sum(float(a.sum()) for a, op in zip(o.own, o.block.nodes.op, strict=True) if op in (0, 1))
        after = sum(float(a.sum()) for a, op in zip(own, o.block.nodes.op, strict=True) if op in (0, 1))
        assert after == pytest.approx(before, rel=0.01)


def test_removing_a_fault_takes_its_work_away() -> None:
    """A slow worker's computes and optimizer become its peers', everybody else's stay as they are."""
    m = measured(SPEC, WORKER)
    (o,) = m.observed
    _, own, _ = m.removal.change_steps(0, [Remove("worker")], slice(0, SPEC.steps))
    for node, (before, after) in enumerate(zip(o.own, own, strict=True)):
        op, stage = int(o.block.nodes.op[node]), int(o.block.nodes.stage[node])
        if op in (0, 1, 12) and stage == 2:
            peers = np.delete(before, 1, axis=1)
            np.testing.assert_array_equal(np.delete(after, 1, axis=1), peers)
            assert after[:, 1].mean() == pytest.approx(peers.mean(), rel=0.04)
        else:
            np.testing.assert_array_equal(after, before)


def test_a_sample_of_steps_has_its_own_times() -> None:
    """Replaying every third step gives what replaying all of them gives there."""
    m = measured(SPEC, WORKER, STAGE)
    for removed in ([], ["worker"], ["worker", "stage"]):
        whole = m.removal.step_times(removed)
        np.testing.assert_allclose(m.removal.step_times(removed, [slice(0, SPEC.steps, 3)]), whole[::3], rtol=1e-12)


def test_large_jobs_are_shared_out_on_a_sample(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where a job is too large for all steps, shares from an even sample are near those from all."""
    m = measured(dataclasses.replace(SPEC, steps=24), WORKER, STAGE)
    n_ops = sum(o.block.start_s.size for o in m.observed)
    monkeypatch.setattr("diagnose.whatif.removal.MAX_SHAPLEY_OPS", n_ops // 3)
    sampled = m.removal.gains().share
    assert sampled != m.gains.share
    assert sampled == pytest.approx(m.gains.share, abs=0.05)
