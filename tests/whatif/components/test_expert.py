"""Uneven experts: found where forward and backward of a compute agree and other stages do not, and nowhere else."""

import dataclasses

import numpy as np
import pytest

from diagnose.faults.allocator_stall import AllocatorStall
from diagnose.faults.decoys import Evaluation
from diagnose.faults.expert_imbalance import ExpertImbalance, draw_fault
from diagnose.faults.fault import Fault
from diagnose.faults.generate import generate
from diagnose.faults.sequence_imbalance import SequenceImbalance
from diagnose.faults.spec import JobSpec
from diagnose.faults.worker_fault import WorkerFault
from diagnose.model.components import Experts
from diagnose.model.trace import Seconds
from diagnose.whatif.components.expert import _fit_tokens, find_experts, find_moved
from tests.judge.cases import causes, make, measure, measured

SPEC = JobSpec(pp=4, dp=4, microbatches=8, steps=16, seed=5)
SHAPE = (2, 4, 8, 16, 4)


def noise(spread: float = 0.01, seed: int = 0) -> Seconds:
    """Give what is left of computes in a healthy job."""
    return np.asarray(np.exp(spread * np.random.default_rng(seed).standard_normal(SHAPE)))


def found(left: Seconds, ep_size: int | None = None) -> Experts:
    """Look for experts in what is left."""
    return find_experts(left, np.ones(left[:, 0].shape), Experts(), ep_size)[0]


def test_both_directions_of_one_stage() -> None:
    """What forward and backward share on each stage by itself is found, to the percent, around the mean of the stage."""
    factor = np.exp(0.2 * np.random.default_rng(1).standard_normal(SHAPE[1:]))
    experts = found(noise() * factor)
    assert experts.ratio is not None and experts.explained is not None and experts.alone_share is not None
    assert experts.explained > 0.9 and experts.alone_share > 0.9
    mean = (factor / factor.mean(axis=(1, 2, 3), keepdims=True))[None]
    assert np.median(np.abs(experts.ratio / mean - 1.0)) < 0.02
    assert experts.ratio.mean(axis=(2, 3, 4)) == pytest.approx(1.0)


def test_groups_are_learned() -> None:
    """Ranks that wait for each other share a factor: two by two, unless the metadata say that others do."""
    factor = np.repeat(np.exp(0.2 * np.random.default_rng(1).standard_normal((4, 8, 16, 2))), 2, axis=3)
    experts = found(noise() * factor)
    assert experts.group == 2 and experts.alike == pytest.approx(1.0, abs=0.05)
    assert found(noise() * factor, ep_size=4).group == 1


@pytest.mark.parametrize(
    "axes",
    [
        pytest.param((1, 8, 16, 4), id="what all stages share"),
        pytest.param((4, 1, 16, 4), id="what a worker has in all microbatches of a step"),
        pytest.param((4, 8, 1, 1), id="what a place has in all steps"),
        pytest.param((4, 1, 1, 4), id="a slow worker"),
        pytest.param((4, 8, 1, 4), id="what a worker has in one microbatch of all steps"),
    ],
)
def test_what_is_no_expert(axes: tuple[int, ...]) -> None:
    """Documents, a pace, a place in the schedule and a slow worker are none, however large."""
    factor = np.exp(0.3 * np.random.default_rng(2).standard_normal(axes))
    assert found(noise() * factor).ratio is None


@pytest.mark.parametrize("n_dp", [2, 4])
def test_who_is_long_alone_on_its_stage_is_no_expert(n_dp: int) -> None:
    """A worker that is slow in half of its microbatches; beside experts these are found without it, and a hot rank is one."""
    rng = np.random.default_rng(4)
    slow, experts = np.ones((*SHAPE[1:4], n_dp)), np.exp(0.06 * rng.standard_normal((*SHAPE[1:4], n_dp)))
    slow[2, ..., 1] = np.where(rng.random(SHAPE[2:4]) < 0.5, 1.7, 1.0)
    alone = found(noise()[..., :n_dp] * slow)
    assert alone.ratio is None and (alone.explained or 0.0) < 0.05
    both = found(noise()[..., :n_dp] * slow * experts)
    assert both.ratio is not None
    assert (both.ratio[:, 2, ..., 1] == 1.0).all()
    assert np.median(np.abs(both.ratio[:, :2] / experts[:2] - 1.0)) < 0.05
    # What one has more of the others have less of.
    slow[2] += (1.0 - slow[2, ..., 1:2]) / n_dp
    assert found(noise()[..., :n_dp] * slow).ratio is not None


def from_the_middle(*factors: float) -> Seconds:
    """Let the ranks of the second stage take so many times as long in the second half of the steps."""
    factor = np.ones(SHAPE[1:])
    factor[1, :, 8:] = factors
    return factor


def test_what_some_take_longer_and_others_shorter_is_moved() -> None:
    """Tokens that stay with a rank for steps are found, those of the metadata's groups by themselves."""
    for factor, ep_size in ((from_the_middle(1.5, 0.9, 0.8, 0.8), None), (from_the_middle(1.5, 0.5, 0.8, 1.2), 2)):
        moved, ratio = find_moved(noise() * factor, ep_size, np.arange(SHAPE[3]))
        assert moved is not None and moved > 0.9
        assert ratio is not None
        assert np.abs(ratio / factor - 1.0).max() < 0.05


@pytest.mark.parametrize(
    "factors",
    [(1.5, 1.0, 1.0, 1.0), (1.3, 1.2, 1.0, 1.0), (1.4, 1.4, 1.4, 1.4), (1.0, 1.0, 1.0, 1.0)],
    ids=["a worker", "two workers", "all", "nobody"],
)
def test_who_is_slow_makes_nobody_quicker(factors: tuple[float, ...]) -> None:
    """Slow workers, slow steps and noise move nothing, and one rank has nobody to move it to; too few steps tell nothing."""
    work_s = noise() * from_the_middle(*factors)
    moved, ratio = find_moved(work_s, None, np.arange(SHAPE[3]))
    assert moved is not None and ratio is None
    assert find_moved(work_s[:, :, :, :4], None, np.arange(4)) == (None, None)
    assert find_moved(work_s[..., :1], None, np.arange(SHAPE[3])) == (0.0, None)


def test_a_worker_that_is_slow_all_the_time_stays_slow_beside_moved_work() -> None:
    """Experts that come and go never make a rank as long as it is: that is left to the worker."""
    work_s = noise() * from_the_middle(1.06, 0.98, 0.98, 0.98)
    work_s[:, 1, ..., 2] *= 1.5
    _, ratio = find_moved(work_s, None, np.arange(SHAPE[3]))
    assert ratio is not None
    assert np.abs(ratio - 1.0).max() < 0.1


@pytest.mark.parametrize("one_stage", [True, False], ids=["groups", "stages"])
def test_experts_that_are_hot_all_the_time_are_told_by_what_other_groups_take(*, one_stage: bool) -> None:
    """Others of its group are quicker than those of another one by what a rank takes longer: no worker is slow by itself."""
    factor = from_the_middle(1.12, 0.96, 0.96, 0.96)
    factor[1] *= [0.8, 0.8, 1.6, 0.8]
    work_s = noise() * factor
    if one_stage:
        work_s = np.concatenate(np.split(work_s, 4, axis=1), axis=-1)
    moved, ratio = find_moved(work_s, 4, np.arange(SHAPE[3]))
    assert moved is not None and moved > 0.7
    assert ratio is not None
    of_group = ratio[:, 0, ..., 4:8] if one_stage else ratio[:, 1]
    assert np.abs(of_group / factor[1] - 1.0).max() < 0.05


def with_long_rank(longer: Seconds, shorter: Seconds) -> Seconds:
    """Let the second rank take longer by a part of an ordinary compute, and the others shorter, in each step of one stage."""
    factor = np.ones((1, *SHAPE[2:]))
    factor[..., [0, 2, 3]] -= shorter[:, None] / 3.0
    factor[..., 1] += longer
    factor[:, :, :2] *= 1.5  # all ranks warm up
    return noise()[:, :1] * factor


def test_experts_that_are_hot_all_the_time_are_told_by_what_the_others_of_one_group_take() -> None:
    """In steps in which the hot rank takes longer the others take shorter by as much: all that it takes longer is its tokens'."""
    longer = 1.2 + 0.2 * np.random.default_rng(9).standard_normal(SHAPE[3])
    moved, ratio = find_moved(with_long_rank(longer, longer), 4, np.arange(SHAPE[3]))
    assert moved is not None and moved > 0.9
    assert ratio is not None
    assert np.median(ratio[..., 1]) == pytest.approx(2.2, rel=0.05)


@pytest.mark.parametrize("routed", [0.0, 0.1], ids=["a machine", "a machine with experts that come and go"])
def test_a_slow_worker_is_made_up_for_by_less_than_it_takes_longer(routed: float) -> None:
    """What makes a worker slow, all the time or more in some steps, makes nobody quicker, and its tokens take twice as long."""
    rng = np.random.default_rng(9)
    tokens = routed * rng.standard_normal(SHAPE[3])
    longer = 1.0 + (0.2 * rng.standard_normal(SHAPE[3]) if not routed else 0.0) + 2.0 * tokens
    _, ratio = find_moved(with_long_rank(longer, tokens), 4, np.arange(SHAPE[3]))
    assert ratio is None or np.median(ratio[..., 1]) < 1.1


def test_one_direction_is_no_expert() -> None:
    """Pauses of forwards, however long, and random longer computes in both directions are none."""
    pauses, rng = np.ones(SHAPE), np.random.default_rng(3)
    pauses[0][rng.random(SHAPE[1:]) < 0.1] = 4.0
    assert found(noise() * pauses).ratio is None
    assert found(noise() * np.where(rng.random(SHAPE) < 0.4, 1.2, 1.0)).ratio is None


def test_a_moment_of_contention_is_no_expert() -> None:
    """On the last stage the backward follows its forward: what lasts for two computes is in both, and in the neighbours."""
    rng = np.random.default_rng(4)
    course = rng.standard_normal((4, 18, 16, 4))  # forward 0, backward 0, forward 1, ...
    course = np.exp(0.1 * (course[:, 1:-1] + course[:, 2:] + course[:, :-2]))
    left = noise() * np.stack([course[:, 0::2], course[:, 1::2]])
    assert found(left).ratio is None
    assert found(left * np.exp(0.2 * rng.standard_normal(SHAPE[1:]))).ratio is not None


def test_too_few() -> None:
    """One stage, one microbatch or three steps of one rank tell nothing: it is not known, and nothing is taken out."""
    for left in (noise()[:, :1], noise()[:, :, :1], noise()[:, :, :, :3, :1]):
        experts, same = find_experts(left, np.ones(left[:, 0].shape), Experts(), None)
        assert experts == Experts()
        assert same is left


def test_few_steps() -> None:
    """Of three steps each rank counts as one: experts are found, and in noise none are."""
    factor = np.exp(0.2 * np.random.default_rng(1).standard_normal(SHAPE[1:]))
    assert found((noise() * factor)[:, :, :, :3]).ratio is not None
    assert all(found(noise(seed=seed)[:, :, :, :3]).ratio is None for seed in range(20))


def test_missing_computes() -> None:
    """A hole in the times changes nothing elsewhere."""
    factor = np.exp(0.2 * np.random.default_rng(1).standard_normal(SHAPE[1:]))
    left = noise() * factor
    holes = np.where(np.random.default_rng(5).random(SHAPE) < 0.05, np.nan, left)
    whole, some = found(left), found(holes)
    assert whole.ratio is not None and some.ratio is not None
    there = np.isfinite(holes).all(axis=0)
    assert np.isfinite(some.ratio).all()
    assert np.median(np.abs(some.ratio / whole.ratio - 1.0)[:, there]) < 0.02
    # What lacks its other direction has no experts to be taken out.
    rest = find_experts(holes, np.ones(holes[:, 0].shape), Experts(), None)[1]
    np.testing.assert_array_equal(rest[:, ~there], holes[:, ~there])


# ------------------------------------------------------------------------------------------- whole jobs


@pytest.mark.parametrize("spread", [0.15, 0.4])
@pytest.mark.parametrize(
    "shape", [{}, {"pp": 2, "dp": 8, "microbatches": 4}, {"pp": 2, "vpp": 2}, {"dp": 1, "steps": 30}]
)
def test_its_gain_is_the_true_one(spread: float, shape: dict[str, int]) -> None:
    """Uneven experts are named, alone, and what dealing tokens evenly gives back is what it truly does."""
    spec, fault = dataclasses.replace(SPEC, **shape), ExpertImbalance(spread=spread)
    said = measured(spec, fault).diagnosis
    assert causes(said) == ["expert-imbalance"]
    assert said.causes[0].recoverable == pytest.approx(make(spec, fault).truth.faults[0].recoverable, abs=0.02)


def test_columns_prove_what_times_do_not() -> None:
    """Hot experts that stay look like slow workers; where the column counts their tokens no worker is slow."""
    hot = ExpertImbalance(spread=0.2, hot_share=0.95, drift_steps=200, records_tokens=True)
    analysis = measured(SPEC, hot).analysis
    fit = analysis.features["expert.tokens_fit"].value
    assert fit is not None and fit > 0.9
    assert causes(measured(SPEC, hot).diagnosis) == ["expert-imbalance"]
    assert not analysis.breakdown.slow_workers.any()
    true = make(SPEC, hot).truth.faults[0].recoverable
    assert analysis.gains.recoverable("expert") == pytest.approx(true, abs=0.01)


def test_one_stage_whose_hot_experts_move() -> None:
    """On other stages all have nearly as many tokens, which show no cost: what is far from the mean tells what a token costs."""
    rng = np.random.default_rng(7)
    load = 0.02 * rng.standard_normal((2, 4, 12, 12, 8))
    hot = np.zeros((12, 8), dtype=bool)
    hot[np.arange(12), np.arange(12) // 3] = hot[np.arange(12), 4 + np.arange(12) // 3] = True
    load[:, 1] += np.where(hot, 2.4, -0.8) * (1.0 + 0.3 * rng.standard_normal((12, 12, 8)))
    work_s = 1.0 + 0.004 * rng.standard_normal(load.shape)
    work_s[:, 1] *= 1.0 + 0.5 * load[:, 1]
    fit, ratio = _fit_tokens(load, work_s)
    assert fit > 0.95 and ratio is not None
    assert np.ptp(np.median(np.log(work_s / ratio)[0, 1], axis=0)) < 0.05


def test_columns_tell_with_one_stage() -> None:
    """With one stage nothing but the column parts experts from documents; a column that predicts nothing proves nothing."""
    spec = dataclasses.replace(SPEC, pp=1, dp=8, steps=20)
    fault = ExpertImbalance(spread=0.3, records_tokens=True)
    assert causes(measured(spec, fault).diagnosis) == ["expert-imbalance"]
    others = measured(spec, ExpertImbalance(spread=1e-6, records_tokens=True), SequenceImbalance()).analysis
    assert others.breakdown.experts.ratio is None


@pytest.mark.parametrize(("spread", "group"), [(0.7, 1), (1.5, 1), (1.5, 4)])
def test_a_few_experts_with_most_of_the_tokens(spread: float, group: int) -> None:
    """Loads far above all others are experts, too, and no documents are beside them: the columns tell of all."""
    spec = dataclasses.replace(SPEC, pp=1, dp=8, steps=20)
    fault = ExpertImbalance(spread=spread, group=group, records_tokens=True)
    found = measured(spec, fault)
    assert causes(found.diagnosis) == ["expert-imbalance"]
    true = make(spec, fault).truth.faults[0].recoverable
    assert found.gains.recoverable("expert") == pytest.approx(true, abs=0.02)


@pytest.mark.parametrize(
    ("group", "shape"), [(2, {}), (4, {}), (2, {"pp": 2, "vpp": 2}), (4, {"pp": 1, "dp": 8, "steps": 30})]
)
@pytest.mark.parametrize("said", [False, True])
def test_members_that_wait_inside_the_compute(group: int, shape: dict[str, int], *, said: bool) -> None:
    """All take as long as the busiest: what that costs is against the mean of the tokens, and no stage is long by itself."""
    spec = dataclasses.replace(SPEC, **shape)
    fault = ExpertImbalance(
        spread=0.5, group=group, waits=True, hot_share=0.8, drift_steps=200, records_tokens=True, says_ep_size=said
    )
    found = measured(spec, fault)
    assert causes(found.diagnosis) == ["expert-imbalance"]
    assert found.analysis.breakdown.experts.group == group
    true = make(spec, fault).truth.faults[0].recoverable
    assert true > 0.1
    assert found.analysis.gains.recoverable("expert") == pytest.approx(true, rel=0.1)


def test_a_drawn_group_that_waits_has_the_column() -> None:
    """Without it, it is an uneven stage by all that a trace tells; and nobody waits where ranks make no group."""
    fault = draw_fault(SPEC, np.random.default_rng(0), kind="inside")
    assert fault is not None
    assert fault.waits and fault.group > 1 and fault.records_tokens
    assert fault.tellable(SPEC) and not fault.tellable(dataclasses.replace(SPEC, evidence=False))
    assert draw_fault(dataclasses.replace(SPEC, dp=3), np.random.default_rng(0), kind="inside") is None


@pytest.mark.parametrize("recorded", [False, True])
def test_a_stage_with_hot_experts_is_not_surely_uneven(*, recorded: bool) -> None:
    """Without the column, hot experts that all wait for may as well be layers: the finding names both."""
    fault = ExpertImbalance(
        spread=0.6, group=4, waits=True, hot_share=0.98, drift_steps=2000, records_tokens=recorded, says_ep_size=True
    )
    stages = [c for c in measured(SPEC, fault).diagnosis.causes if c.cause == "stage-imbalance"]
    assert bool(stages) != recorded
    for said in stages:
        assert said.confidence < 0.5
        assert "expert-imbalance" in {other.cause for other in said.alternatives}


@pytest.mark.parametrize("onset", [None, 8])
def test_a_slow_worker_among_members_that_wait(onset: int | None) -> None:
    """What the others of its group take tells what tokens cost; the worker is slow beside, on its own."""
    experts = ExpertImbalance(spread=0.5, group=2, waits=True, hot_share=0.8, records_tokens=True)
    said = measured(SPEC, experts, WorkerFault(places=((1, 2),), slowdown=1.6, onset=onset)).diagnosis
    assert set(causes(said)) == {"expert-imbalance", "worker-fault"}


@pytest.mark.parametrize(
    "fault",
    [
        pytest.param(SequenceImbalance(quadratic_share=0.5), id="documents"),
        pytest.param(WorkerFault(places=((1, 2),), slowdown=1.6), id="worker"),
        pytest.param(None, id="healthy"),
    ],
)
@pytest.mark.parametrize("level", [0.3, 3.0])
def test_other_jobs_have_none(fault: Fault | None, level: float) -> None:
    """Removing experts gives nothing back in a job whose documents are long, whose worker is slow, or that is healthy."""
    spec = dataclasses.replace(SPEC, noise=level)
    analysis = measured(spec, *([] if fault is None else [fault])).analysis
    assert abs(analysis.gains.recoverable("expert")) < 0.005


@pytest.mark.parametrize(
    ("shape", "group", "place"),
    [
        ({"pp": 4, "microbatches": 8, "steps": 8, "seed": 244}, 2, (0, 3)),
        ({"pp": 3, "microbatches": 4, "steps": 16, "seed": 934}, 4, (0, 0)),
    ],
)
def test_a_slow_worker_beside_experts_that_ranks_share(
    shape: dict[str, int], group: int, place: tuple[int, int]
) -> None:
    """Mending it gives back what it truly does, and no stage is blamed for it."""
    spec, experts = JobSpec(dp=4, **shape), ExpertImbalance(spread=0.2, group=group)
    found = measure(make(spec, experts, WorkerFault(places=(place,), slowdown=1.5)).trace)
    assert found.gains.alone_s["worker"] == pytest.approx(make(spec, experts).truth.step_time_s, rel=0.003)
    assert set(causes(found.diagnosis)) <= {"worker-fault", "expert-imbalance"}
    assert found.breakdown.worker_ratio[:, place[1], :, place[0]].mean() == pytest.approx(1.5, rel=0.01)


def test_a_load_that_tells_in_every_second_step_alone_tells_nothing() -> None:
    """What half of the steps say is asked of the other half: there the same load makes computes shorter."""
    load = np.random.default_rng(1).normal(size=(2, 1, 4, 40, 2))
    way = np.where(np.arange(40) % 2 == 0, 0.01, -0.01)[:, None]
    assert _fit_tokens(load, 1.0 + load * way) == (0.0, None)
    explained, ratio = _fit_tokens(load, 1.0 + load * 0.01)
    assert explained > 0.9
    assert ratio is not None


@pytest.mark.parametrize("onset", [0, 8])
def test_a_slow_worker_with_few_tokens_makes_none_cheaper(onset: int) -> None:
    """Its own microbatches tell what a token costs: it is as slow with each, and who has many tokens is slow by these alone."""
    rng = np.random.default_rng(3)
    hot = np.array([0.3, 0.2, -0.1, -0.4])
    load = hot + 0.1 * rng.standard_normal((1, 1, 6, 20, 4)) + np.zeros((2, 2, 1, 1, 1))
    slow = np.where((np.arange(4) == 3) & (np.arange(20) >= onset)[:, None], 1.5, 1.0)
    fit, ratio = _fit_tokens(load, (1.0 + 0.5 * load) * slow * np.exp(0.02 * rng.standard_normal(load.shape)))
    assert fit > 0.5
    assert ratio is not None
    assert ratio == pytest.approx(1.0 + 0.5 * load, rel=0.02)


@pytest.mark.parametrize(("dp", "hot_share"), [(3, 0.8), (6, 0.6)])
def test_experts_that_stay_hot_on_many_workers_are_no_slow_workers(dp: int, hot_share: float) -> None:
    """Where experts are uneven anyway many workers here and there, each by his own factor, are theirs, with what that costs."""
    spec = JobSpec(pp=3, dp=dp, microbatches=6, steps=30, seed=7)
    experts = ExpertImbalance(spread=0.25, hot_share=hot_share, drift_steps=40.0)
    said = measured(spec, experts).diagnosis
    assert causes(said) == ["expert-imbalance"]
    assert said.causes[0].recoverable == pytest.approx(make(spec, experts).truth.faults[0].recoverable, abs=0.03)


@pytest.mark.parametrize(
    "places",
    [((1, 0), (1, 1), (1, 2)), ((1, 0), (2, 0), (1, 1), (2, 1)), ((0, 2),), ((0, 2), (2, 0))],
    ids=["a replica", "a host", "one", "two"],
)
def test_slow_workers_beside_uneven_experts_are_slow(places: tuple[tuple[int, int], ...]) -> None:
    """Workers of one pace, or few, stay who they are."""
    spec = JobSpec(pp=3, dp=4, microbatches=6, steps=30, seed=7)
    fault = WorkerFault(places=places, slowdown=1.4)
    found = measure(make(spec, ExpertImbalance(spread=0.2), fault).trace)
    assert causes(found.diagnosis)[0] == "worker-fault"
    assert {tuple(at) for at in np.argwhere(found.breakdown.slow_workers).tolist()} == set(places)


def test_a_host_with_most_of_a_stage_beside_uneven_experts_is_slow() -> None:
    """What a stage takes usually is what its slow workers take: against that, they had each a factor of his own."""
    spec = JobSpec(pp=3, dp=3, microbatches=8, steps=24, seed=5)
    places = ((0, 0), (0, 1), (0, 2), (1, 0))
    job = make(spec, WorkerFault(places=places, slowdown=2.4), ExpertImbalance(spread=0.15))
    found = measure(job.trace)
    assert {tuple(at) for at in np.argwhere(found.breakdown.slow_workers).tolist()} == set(places)
    assert found.diagnosis.causes[0].recoverable == pytest.approx(job.truth.faults[0].recoverable, abs=0.02)


def test_a_replica_that_falls_behind_beside_hot_experts_is_slow() -> None:
    """Others who look slow are hot; who is slow on all stages is not, though he was not so from the start."""
    spec = JobSpec(pp=2, dp=8, microbatches=8, steps=10, seed=2)
    experts = ExpertImbalance(spread=0.24, group=4, hot_share=0.4, drift_steps=7.0, says_ep_size=True)
    job = make(spec, experts, WorkerFault(places=((1, 0), (1, 1)), slowdown=3.0, onset=6))
    found = measure(job.trace)
    assert causes(found.diagnosis)[0] == "worker-fault"
    assert found.diagnosis.causes[0].recoverable == pytest.approx(job.truth.faults[1].recoverable, abs=0.02)
    assert found.breakdown.slow_workers[1].all()


def test_an_evaluation_beside_experts_that_all_ranks_share_is_planned() -> None:
    """What all ranks of a stage share in a step is no expert of a group where all stages have it, as an evaluation."""
    spec = JobSpec(pp=3, dp=4, microbatches=8, steps=24, contiguous=True, seed=3)
    job = generate(spec, [ExpertImbalance(spread=0.15, group=4)], decoys=[Evaluation(period_steps=3, slowdown=1.8)])
    found = measure(job.trace)
    forwards, evaluates = found.breakdown.step_ratio[0], found.breakdown.steps % 3 == 0
    assert forwards[evaluates].mean() / forwards[~evaluates].mean() == pytest.approx(1.8, rel=0.05)
    assert causes(found.diagnosis) == ["expert-imbalance"]


@pytest.mark.parametrize("seed", [3, 4])
def test_documents_beside_many_stalls_of_some_ranks_are_no_experts(seed: int) -> None:
    """Where a stage of two stalls in every seventh compute of a rank nothing tells what both share: the other ranks are asked."""
    spec = JobSpec(pp=2, dp=4, microbatches=32, steps=24, noise=2.5, evidence=False, seed=seed)
    stalls = AllocatorStall(on_stages=(0,), on_dp_ranks=(0, 2), stall_ratio=9.0, probability=0.15, spread=0.6)
    documents = SequenceImbalance(packed_tokens=16384, median_tokens=2400.0, length_spread=1.07, quadratic_share=0.36)
    found = measure(make(spec, stalls, documents).trace)
    assert found.breakdown.experts.explained == 0.0
    assert "expert-imbalance" not in causes(found.diagnosis)
