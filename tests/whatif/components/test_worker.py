"""Slow workers: who is slow on nearly all that it computes, and who only stands still often."""

from types import SimpleNamespace

import numpy as np
import pyarrow as pa
import pytest

from diagnose.faults.expert_imbalance import ExpertImbalance
from diagnose.faults.generate import draw_job, generate
from diagnose.faults.spec import JobSpec
from diagnose.faults.worker_fault import WorkerFault
from diagnose.model.optype import Op
from diagnose.model.trace import Bools, Seconds
from diagnose.numerics.slow_steps import find_slow_steps
from diagnose.whatif.components.stage import find_usual_durations
from diagnose.whatif.components.worker import (
    find_onsets,
    find_slow_workers,
    measure_draws,
    slow_throughout,
    slow_with,
    told_by_optimizer,
)
from diagnose.whatif.medians import find_shared
from tests.judge.cases import measure, measured

N_MICROBATCHES, N_STEPS, N_DP = 8, 40, 4
LEVEL = 0.06


def is_slow(factor: Seconds, noise: float, *, n_slow: int = 1) -> bool:
    """Ask whether the first ranks of one stage are slow throughout whose computes take `factor` times as long."""
    rng = np.random.default_rng(0)
    compute_s = np.exp(noise * rng.standard_normal((2, 1, N_MICROBATCHES, N_STEPS, N_DP)))
    compute_s[..., :n_slow] *= factor[..., None]
    worker_log = np.zeros((2, 1, N_STEPS, N_DP))
    worker_log[..., :n_slow] = LEVEL
    drawn = measure_draws(compute_s[:, 0])
    return bool(slow_throughout(compute_s, np.ones((2, 1)), np.ones((2, N_STEPS)), worker_log, 1, drawn)[0, 0])


def unsteady(spread: float) -> Seconds:
    """Give a clock's factors: `LEVEL` slower, and each compute by more or less."""
    shape = (2, 1, N_MICROBATCHES, N_STEPS)
    return np.asarray(np.exp(LEVEL + spread * np.random.default_rng(1).standard_normal(shape)))


def paused(share: float) -> Seconds:
    """Give factors of a worker that stands still in some computes, long enough to be as late as a slow one."""
    at = np.random.default_rng(2).random((2, 1, N_MICROBATCHES, N_STEPS)) < share
    return np.exp(np.where(at, LEVEL / share, 0.0))


@pytest.mark.parametrize("noise", [0.002, 0.02, 0.06])
def test_a_slow_clock_is_slow_throughout_whatever_the_noise(noise: float) -> None:
    """Noise that peers have, too, hides how many computes are long, but not that the quickest are less quick."""
    assert is_slow(unsteady(0.0), noise)
    assert is_slow(unsteady(0.03), noise)


@pytest.mark.parametrize(("noise", "share"), [(0.002, 0.5), (0.002, 0.75), (0.02, 0.5)])
def test_pauses_leave_some_computes_alone(noise: float, share: float) -> None:
    """A worker that stands still in half or three quarters of its computes is as quick as its peers in the others."""
    assert not is_slow(paused(share), noise)


@pytest.mark.parametrize("n_stages", [1, 2])
@pytest.mark.parametrize(("factor", "slow"), [(np.exp(0.2), True), (paused(0.5) ** (0.2 / LEVEL), False)])
def test_short_documents_hide_no_slow_worker(factor: Seconds | float, n_stages: int, *, slow: bool) -> None:
    """Where documents make some microbatches quick on all stages, a worker of one is slow throughout, or only pauses often."""
    rng = np.random.default_rng(3)
    documents = np.exp(0.5 * rng.standard_normal((1, 1, N_MICROBATCHES, N_STEPS, N_DP)))
    compute_s = documents * np.exp(0.01 * rng.standard_normal((2, n_stages, N_MICROBATCHES, N_STEPS, N_DP)))
    drawn = measure_draws(compute_s[:, 0])
    typical_s = np.exp(rng.standard_normal((2, n_stages)))
    compute_s *= typical_s[:, :, None, None, None]
    compute_s[:, -1:, ..., 0] *= factor
    worker_log = np.zeros((2, n_stages, N_STEPS, N_DP))
    worker_log[:, -1, :, 0] = 0.2
    found = slow_throughout(compute_s, typical_s, np.ones((2, N_STEPS)), worker_log, n_stages, drawn)
    assert (found[0, -1], found.sum()) == (slow, slow)


@pytest.mark.parametrize("level", [0.04, 0.2])
def test_a_worker_falls_behind_from_a_step_on(level: float) -> None:
    """By little more than the least that counts, too, where paces hardly vary."""
    own = np.zeros((2, N_STEPS))
    own[1, 25:] = level
    assert find_onsets(own, 0.01).tolist() == [N_STEPS, 25]


def test_who_is_a_little_behind_before_falls_far_behind() -> None:
    """The bound that keeps single steps from making a level hides none that all steps after it are on, and none before."""
    own = np.full((3, 14), 0.1)
    own[0, 9:] = own[1, 9:11] = own[2, 9:] = 1.1
    own[2, 3] = 0.8
    assert find_onsets(own, 0.04).tolist() == [9, 14, 14]


def test_documents_of_many_ranks_make_no_worker_slow() -> None:
    """Where half of the ranks are slower than their documents explain, it is what they were given, and no machine."""
    rng = np.random.default_rng(4)
    documents = np.exp(0.5 * rng.standard_normal((1, 1, N_MICROBATCHES, N_STEPS, N_DP)))
    compute_s = documents * np.exp(0.01 * rng.standard_normal((2, 2, N_MICROBATCHES, N_STEPS, N_DP)))
    drawn = measure_draws(compute_s[:, 0])
    compute_s[:, 1, ..., :2] *= np.exp(0.2)
    worker_log = np.zeros((2, 2, N_STEPS, N_DP))
    worker_log[:, 1, :, :2] = 0.2
    assert not slow_throughout(compute_s, np.ones((2, 2)), np.ones((2, N_STEPS)), worker_log, 2, drawn).any()


def test_experts_that_stay_hot_are_no_slow_workers() -> None:
    """What a rank's stages do not share is no document: a router that keeps some ranks busy is not a slow machine on each."""
    spec, *_ = draw_job(27112811, 206, evidence=False)
    fault = ExpertImbalance(
        kind="hot", spread=0.36, group=2, hot_share=0.345, drift_steps=25.8, records_tokens=True, says_ep_size=True
    )
    assert "expert-imbalance" in [cause.cause for cause in measured(spec, fault).diagnosis.causes]


def test_without_peers_the_quickest_are_as_quick_as_usual() -> None:
    """Where all ranks of a stage are late nobody shows what noise does to the quickest."""
    assert is_slow(unsteady(0.0), 0.002, n_slow=N_DP)
    assert not is_slow(paused(0.75), 0.002, n_slow=N_DP)


@pytest.mark.parametrize(("first", "end"), [(4, 14), (12, 24), (26, 36)])
def test_a_worker_is_slow_for_a_while(first: int, end: int) -> None:
    """What falls behind and comes back is slow between, on busy processors too, and no more than that."""
    excess = 0.06 * np.random.default_rng(3).standard_normal((2, 4, N_STEPS, 2))
    excess[:, 2, first:end, 0] += 0.3
    level, slow = _find(excess)
    assert np.argwhere(slow).tolist() == [[0, 2]]
    assert np.flatnonzero(level[:, 2, :, 0].mean(axis=0) > 0.15).tolist() == list(range(first, end))


def test_a_worker_is_slow_for_a_few_steps_at_a_time() -> None:
    """Between them it is as quick as its peers, and not a little behind all the time."""
    rng = np.random.default_rng(11)
    excess = 0.02 * rng.standard_normal((2, 1, N_STEPS, 4))
    slow_steps = np.arange(N_STEPS) % 6 < 2
    excess[..., 0] += np.where(slow_steps, 0.5, 0.025)
    level, slow = _find(excess)
    assert np.argwhere(slow).tolist() == [[0, 0]]
    assert (level[..., ~slow_steps, 0] == 0.0).all()
    np.testing.assert_allclose(level[..., slow_steps, 0].mean(), 0.5, atol=0.03)


@pytest.mark.parametrize(("first", "end"), [(8, 18), (14, 25), (20, 30)])
def test_a_lone_worker_is_slow_for_a_while(first: int, end: int) -> None:
    """With one dp rank it is compared with itself, also where all computed slowly up to the middle of that while."""
    rng = np.random.default_rng(5)
    by_step = np.exp(0.06 * rng.standard_normal((2, 4, N_STEPS, 1)))
    by_step[:, :, :20] *= 1.5
    by_step[:, 2, first:end] *= 1.7
    typical_s, told = find_usual_durations([], by_step, np.arange(N_STEPS), 4)
    pace = by_step / typical_s[:, :, None, None]
    level, slow = _find(np.log(pace / find_slow_steps(pace)[:, None, :, None]))
    assert not told.any()
    assert np.argwhere(slow).tolist() == [[0, 2]]
    assert np.flatnonzero(level[:, 2, :, 0].mean(axis=0) > 0.25).tolist() == list(range(first, end))


@pytest.mark.parametrize(("n_stages", "slow_stages"), [(4, [2, 3]), (4, [0, 2]), (6, [1, 2, 4])])
def test_half_of_the_stages_of_a_lone_rank_fall_behind(n_stages: int, slow_stages: list[int]) -> None:
    """As on one host of two: what they have in common is no work that all stages share."""
    rng = np.random.default_rng(5)
    by_step = np.exp(0.02 * rng.standard_normal((2, n_stages, N_STEPS, 1)))
    by_step[:, slow_stages] *= np.linspace(0.0, 2.0, N_STEPS).clip(1.0)[:, None]
    typical_s, _ = find_usual_durations([], by_step, np.arange(N_STEPS), n_stages)
    pace = by_step / typical_s[:, :, None, None]
    level, slow = _find(np.log(pace / find_slow_steps(pace)[:, None, :, None]))
    assert np.argwhere(slow).tolist() == [[0, stage] for stage in slow_stages]
    np.testing.assert_allclose(level[:, slow_stages, -1].mean(), np.log(2.0), atol=0.1)


@pytest.mark.parametrize("n_stages", [2, 3])
@pytest.mark.parametrize("n_slow", [1, 2])
def test_a_whole_stage_falls_behind(n_slow: int, n_stages: int) -> None:
    """Where all ranks of a stage get slow they are compared with what they were; where one does, with the other.

    Of two stages the other one was not slow before.
    """
    rng = np.random.default_rng(8)
    by_step = np.exp(0.06 * rng.standard_normal((2, n_stages, N_STEPS, 2)))
    by_step[:, 1, N_STEPS // 3 :, :n_slow] *= 1.5
    typical_s, _ = find_usual_durations([], by_step, np.arange(N_STEPS), n_stages)
    np.testing.assert_allclose(typical_s, 1.0, atol=0.08)
    pace = by_step / typical_s[:, :, None, None]
    level, slow = _find(np.log(pace / find_slow_steps(pace)[:, None, :, None]))
    assert np.argwhere(slow).tolist() == [[dp, 1] for dp in range(n_slow)]
    assert level[:, 1, : N_STEPS // 3, :n_slow].mean() < 0.03
    np.testing.assert_allclose(level[:, 1, N_STEPS // 3 :, :n_slow].mean(axis=(0, 1)), np.log(1.5), atol=0.15)


def test_most_of_a_stage_that_gets_a_little_slower_still_is_slow_all_the_time() -> None:
    """Six of eight ranks of a stage take twice as long, and all eight a little more in the last steps: two say what is usual."""
    by_step = np.exp(0.005 * np.random.default_rng(8).standard_normal((2, 3, N_STEPS, 8)))
    by_step[:, 1, :, :6] *= 2.0
    by_step[:, 1, N_STEPS // 2 :] *= 1.05
    typical_s, _ = find_usual_durations([], by_step, np.arange(N_STEPS), 3)
    np.testing.assert_allclose(typical_s, 1.0, atol=0.06)


def test_a_stage_that_is_quick_for_a_while_is_not_slow_otherwise() -> None:
    """What it takes at the begin, and again at the end, is usual: tokens went elsewhere for a while."""
    by_step = np.exp(0.02 * np.random.default_rng(8).standard_normal((2, 2, N_STEPS, 2)))
    by_step[:, 0, N_STEPS // 4 : N_STEPS // 2] *= 0.7
    typical_s, _ = find_usual_durations([], by_step, np.arange(N_STEPS), 2)
    np.testing.assert_allclose(typical_s, 1.0, atol=0.03)


@pytest.mark.parametrize("n_dp", [1, 2])
def test_longer_sequences_are_no_stage_that_falls_behind(n_dp: int) -> None:
    """Where sequences double all stages take longer, and the last, with its head, by less: it was no slower before."""
    rng = np.random.default_rng(9)
    length = np.where(np.arange(N_STEPS) < 2 * N_STEPS // 3, 0.5, 1.0)
    body_s, head_s = 0.6 * length + 0.4 * length**2, 0.5 * length
    usual_s = np.array([body_s, body_s, body_s, body_s + head_s])
    by_step = usual_s[:, :, None] * np.exp(0.005 * rng.standard_normal((2, 4, N_STEPS, n_dp)))
    typical_s, _ = find_usual_durations([], by_step, np.arange(N_STEPS), 4)
    np.testing.assert_allclose(typical_s, np.median(usual_s, axis=1) * np.ones((2, 1)), rtol=0.01)


@pytest.mark.parametrize(("optimizer", "told"), [(1.02, True), (1.45, False)])
def test_a_long_head_beside_a_slow_worker_is_no_second_stage_of_more_layers(optimizer: float, told: bool) -> None:
    """With one dp rank: what has more layers has a longer optimizer; a head that takes 1.45 times as long has not."""
    typical_s = np.array([1.0, 1.5, 1.0, 1.0, 1.45]) * np.ones((2, 1))
    optimizer_s = [1.0, 1.5, 1.0, 1.0, optimizer]
    nodes = SimpleNamespace(op=np.full(5, Op.OPTIMIZER), stage=np.arange(5))
    o = SimpleNamespace(block=SimpleNamespace(nodes=nodes), own=[np.full((3, 1), s) for s in optimizer_s])
    assert told_by_optimizer([o], typical_s, 5).tolist() == [False, told, False, False, False]  # type: ignore[list-item]


@pytest.mark.parametrize(
    ("backward", "optimizer", "told"), [(1.02, 1.02, True), (1.013, 1.02, False), (1.02, 1.013, False)]
)
def test_a_stage_is_told_by_all_that_it_takes_longer_for(backward: float, optimizer: float, told: bool) -> None:
    """By 1.5% at least, computes of both directions and the optimizer alike."""
    typical_s = np.ones((2, 4))
    typical_s[:, 2] = 1.02, backward
    nodes = SimpleNamespace(op=np.full(4, Op.OPTIMIZER), stage=np.arange(4))
    o = SimpleNamespace(
        block=SimpleNamespace(nodes=nodes), own=[np.full((3, 1), optimizer if i == 2 else 1.0) for i in range(4)]
    )
    assert told_by_optimizer([o], typical_s, 4).tolist() == [False, False, told, False]  # type: ignore[list-item]


@pytest.mark.parametrize("n_slow", [1, 2])
def test_half_of_the_replicas_fall_behind(n_slow: int) -> None:
    """What half of four ranks have from a step on is theirs, and no step's, nor their documents'."""
    excess = 0.02 * np.random.default_rng(7).standard_normal((2, 3, N_STEPS, 4))
    excess[:, :, N_STEPS // 2 :, :n_slow] += 0.3
    level, slow = _find(excess)
    assert slow.tolist() == [[dp < n_slow] * 3 for dp in range(4)]
    np.testing.assert_allclose(level[:, :, N_STEPS // 2 :, :n_slow].mean(axis=(0, 1, 2)), 0.3, atol=0.03)


def test_most_replicas_are_slow_all_the_time() -> None:
    """What two of three ranks have in all steps is theirs, and no step's."""
    rng = np.random.default_rng(6)
    excess = 0.02 * rng.standard_normal((2, 3, N_STEPS, 3)) + 0.02 * rng.standard_normal((N_STEPS, 3))
    excess[..., 1:] += 0.3
    level, slow = _find(excess)
    assert np.argwhere(slow.all(axis=1)).ravel().tolist() == [1, 2]
    np.testing.assert_allclose(level[..., 1:].mean(axis=(0, 1, 2)), 0.3, atol=0.05)


def test_a_few_slow_neighbours_on_a_busy_processor_are_no_level() -> None:
    """Beside noise that lasts for some steps, here and there, five slow steps of one worker are none of its own."""
    rng = np.random.default_rng(4)
    noise = np.repeat(0.12 * rng.standard_normal((4, N_STEPS // 2, 2)), 2, axis=1)
    noise[2, 10:15, 0] += 0.2
    _, slow = _find(np.broadcast_to(noise, (2, *noise.shape)).copy())
    assert not slow.any()


def test_a_replica_falls_behind_while_a_machine_gets_quiet() -> None:
    """What all ranks have in the first steps hides no rank whose workers are slow from a step on."""
    rng = np.random.default_rng(5)
    shared = np.where(np.arange(N_STEPS) < N_STEPS // 2, 0.25, 0.0)[:, None]
    excess = 0.06 * rng.standard_normal((2, 3, N_STEPS, 3)) + 0.05 * rng.standard_normal((N_STEPS, 3)) + shared
    excess[:, :, N_STEPS // 2 :, 2] += 0.25
    level, slow = _find(excess)
    assert slow[2].all()
    assert (level[:, :, : N_STEPS // 2, 2] == 0.0).all()
    assert (level[:, :, N_STEPS // 2 :, 2].mean(axis=(0, 1)) > 0.1).all()


def _find(excess: Seconds) -> tuple[Seconds, Bools]:
    """Find slow workers where microbatches are all alike."""
    n_stages, n_steps, n_dp = excess.shape[1:]
    drawn = measure_draws(np.ones((2, N_MICROBATCHES, n_steps, n_dp)))
    return find_slow_workers(excess, n_stages, np.zeros(n_stages, dtype=bool), drawn)


@pytest.mark.parametrize("told", [False, True])
def test_the_only_worker_is_slow_where_a_member_tells(*, told: bool) -> None:
    """It has no peers, and no other stages; one of its members may hold up the others."""
    drawn = measure_draws(np.ones((2, N_MICROBATCHES, N_STEPS, 1)))
    level, slow = find_slow_workers(np.full((2, 1, N_STEPS, 1), 0.3), 1, np.array([told]), drawn)
    assert slow.tolist() == [[told]]
    assert level == pytest.approx(0.3 if told else 0.0)


@pytest.mark.parametrize(
    ("sure_in", "other_in", "together"),
    [
        ((10, 20), (11, 21), True),
        ((10, 20), (16, 26), False),
        ((0, 40), (0, 40), False),
    ],
)
def test_a_worker_is_slow_with_another(sure_in: tuple[int, int], other_in: tuple[int, int], *, together: bool) -> None:
    """Who only seems to pause is slow, too, where a sure one is so in nearly the same steps; who always is tells of nobody else."""
    worker_log = np.zeros((2, 2, N_STEPS, N_DP))
    worker_log[:, 0, slice(*sure_in), 1] = worker_log[0, 1, slice(*other_in), 2] = 0.5
    sure = np.zeros((N_DP, 2), dtype=bool)
    sure[1, 0] = True
    found = slow_with(sure, worker_log, 2)
    assert found[2, 1] == together
    assert not found[[0, 3]].any()


@pytest.mark.parametrize(
    ("values", "shared"),
    [
        ([0.06, 0.1, 0.11], 0.1),
        ([0.01, 0.1, 0.11], 0.01),
        ([-0.1, 0.1, 0.2, 0.3], 0.15),
        ([-0.1, -0.1, 0.2, 0.3], 0.0),
        ([0.001, 0.009, 0.01], 0.009),
        ([np.nan, 0.1, np.nan], 0.1),
    ],
    ids=["half of it and more", "hardly", "a third has it", "on both sides", "too little to tell", "one is there"],
)
def test_what_stages_share_a_third_of_them_have_too(values: list[float], shared: float) -> None:
    """The median, unless a third of the stages has less than half of it."""
    assert find_shared(np.array(values), apart=0.015) == pytest.approx(shared)


@pytest.mark.parametrize(("n_beside", "spread", "named"), [(2, 0.0, True), (4, 0.0, False), (2, 0.4, False)])
def test_a_stage_and_half_of_another_are_slow_workers(n_beside: int, spread: float, *, named: bool) -> None:
    """From a late step on: who is not slow says that the steps are not. All are slow, or by no like factor: nobody."""
    places = [(dp, 1) for dp in range(4)] + [(dp, 0) for dp in range(n_beside)]
    fault = WorkerFault(places=tuple(places), slowdown=1.3, onset=20, spread=spread, slows_optimizer=False)
    found = measure(generate(JobSpec(pp=2, dp=4, microbatches=4, steps=30, noise=0.02, seed=3), [fault]).trace)
    slow = {(dp, stage) for dp, stage in np.argwhere(found.breakdown.slow_workers).tolist()}
    assert slow == (set(places) if named else set())


def test_an_optimizer_that_is_long_is_found_beside_workers_that_are_a_little_slow() -> None:
    """Who computes 3% slower elsewhere is no reason not to look at optimizers; one whose optimizer is 30 times as long is named."""
    spec = JobSpec(pp=4, dp=4, microbatches=4, steps=16, seed=5)
    table = generate(spec, [WorkerFault(places=((2, 1),), slowdown=1.03)]).trace.to_pandas()
    long = (table.optype == "optimizer") & (table.dp_rank == 0) & (table.stage == 3)
    table.loc[long, "duration"] *= 30.0
    found = measure(pa.Table.from_pandas(table, preserve_index=False))
    ratio = found.breakdown.optimizer_ratio
    assert ratio is not None and np.argwhere(ratio.max(axis=0) > 1.0).tolist() == [[0, 3]]
    assert found.breakdown.slow_workers[2, 1]
    assert found.diagnosis.features["worker.optimizer_ratio"] == pytest.approx(30.0, rel=0.1)
