"""How far a worker is behind its peers, in both directions, in which steps."""

import dataclasses
from types import SimpleNamespace

import numpy as np
import pytest

from diagnose.features.workers import (
    DOCUMENTS_CHANCE,
    HOST_CHANCE,
    LAYERS_CHANCE,
    LAYOUT_CHANCE,
    PAUSE_CHANCE,
    STAGE_CHANCE,
    _doubt_layout,
    measure_workers,
    slow_steps,
    slow_workers,
)
from diagnose.model.stalls import StallKind
from tests.features.hand import N_STEPS, STEPS, components, slowed, stalled, what_if


def test_nobody_is_slow() -> None:
    """Where no worker is behind, all ratios are exactly 1 and the shares 0."""
    found = measure_workers(components(), what_if())
    for name in ("ratio", "forward_ratio", "backward_ratio"):
        assert found[f"worker.{name}"].value == 1.0
    assert found["worker.slow_share"].value == 0.0
    assert found["worker.slow_steps_share"].value == 0.0


def test_a_slow_worker_is_measured_in_both_directions() -> None:
    """Forward 3 times and backward twice as long is 2.5 times together; one of four workers is slow, in all steps."""
    found = measure_workers(slowed({(1, 0): 3.0}, backward=0.5), what_if())
    assert found["worker.forward_ratio"].value == pytest.approx(3.0)
    assert found["worker.backward_ratio"].value == pytest.approx(2.0)
    assert found["worker.ratio"].value == pytest.approx(2.5)
    assert found["worker.slow_share"].value == pytest.approx(0.25)
    assert found["worker.slow_steps_share"].value == pytest.approx(1.0)


@pytest.mark.parametrize("places", [2, 1])
def test_who_is_slow_now_and_then_is_measured(places: int) -> None:
    """Half of all computes take 1.5 times as long; where it is the same microbatch in each step the worker is not measured."""
    halves = {
        (way, 1, mb, step, 0): (0.5 * (1 + way), StallKind.WORKER)
        for way in (0, 1)
        for mb in range(places)
        for step in range(0, N_STEPS, 2)
    }
    found = {name: feature.value for name, feature in measure_workers(stalled(halves), what_if()).items()}
    told = [
        found[f"worker.{name}"]
        for name in ("ratio", "forward_ratio", "backward_ratio", "slow_steps_share", "slow_share")
    ]
    assert told == (pytest.approx([1.25, 1.25, 1.25, 0.5, 0.25]) if places == 2 else [1.0, 1.0, 1.0, 0.0, 0.0])


@pytest.mark.parametrize(("ranks", "doubt"), [((0, 1), STAGE_CHANCE), ((0,), 0.0)])
def test_a_whole_stage_that_is_slow_now_and_then_may_have_uneven_work(ranks: tuple[int, ...], doubt: float) -> None:
    """Half of the computes take 1.5 times as long, on all ranks of a stage, or on one."""
    halves = {
        (way, 1, mb, step, dp): (0.5 * (1 + way), StallKind.WORKER)
        for way in (0, 1)
        for mb in (0, 1)
        for step in range(0, N_STEPS, 2)
        for dp in ranks
    }
    assert measure_workers(stalled(halves), what_if())["worker.stage_doubt"].value == doubt


def test_who_is_slow_in_backwards_now_and_then_is_measured() -> None:
    """A cap of power slows backwards more than forwards, which may stay among the ordinary ones."""
    halves = {(1, 1, mb, step, 0): (1.0, StallKind.WORKER) for mb in range(2) for step in range(0, N_STEPS, 2)}
    found = measure_workers(stalled(halves), what_if())
    assert found["worker.forward_ratio"].value == 1.0
    assert found["worker.backward_ratio"].value == pytest.approx(1.25)


def test_the_ratio_is_of_the_steps_in_which_the_worker_is_slow() -> None:
    """Twice as long in the last three of ten steps is a ratio of 2 in 30% of the steps, not 1.3 in all."""
    found = measure_workers(slowed({(0, 1): 2.0}, steps=slice(7, None)), what_if())
    assert found["worker.ratio"].value == pytest.approx(2.0)
    assert found["worker.slow_steps_share"].value == pytest.approx(0.3)


def test_the_slowest_worker_is_measured_and_all_are_listed_worst_first() -> None:
    """Of two slow workers the one that loses more comes first, and the features are its."""
    parts = slowed({(0, 0): 1.2, (1, 1): 1.5})
    assert slow_workers(parts) == [(1, 1), (0, 0)]
    found = measure_workers(parts, what_if())
    assert found["worker.ratio"].value == pytest.approx(1.5)
    assert found["worker.slow_share"].value == pytest.approx(0.5)


@pytest.mark.parametrize(
    ("worker", "backward", "doubts"),
    [((1, 0), 0.0, True), ((1, 0), 0.01, True), ((1, 0), 0.5, False), ((1, 1), 0.0, False)],
)
def test_long_forwards_of_the_first_stage_may_be_its_loader(
    worker: tuple[int, int], backward: float, doubts: bool
) -> None:
    """Forwards 3 times as long may wait for input, also where noise lets backwards take 1.02 times; not on another stage."""
    found = measure_workers(slowed({worker: 3.0}, backward=backward), what_if())
    assert (found["worker.loader_doubt"].value > 0) is doubts


@pytest.mark.parametrize(("dp", "backward", "doubts"), [(1, 0.0, True), (0, 0.0, False), (1, 0.5, False)])
def test_long_forwards_of_both_ends_may_wait_for_inputs_and_labels(dp: int, backward: float, doubts: bool) -> None:
    """Forwards of the model's end take longer than those of its begin, on the same dp rank: one loader gives both."""
    found = measure_workers(slowed({(1, 0): 2.0, (dp, 1): 5.0}, backward=backward), what_if())
    assert (found["worker.loader_doubt"].value > 0) is doubts


@pytest.mark.parametrize(("middle", "doubts"), [(1.0, True), (1.4, True), (2.0, False)])
def test_a_loader_holds_up_no_stage_between_inputs_and_labels(middle: float, doubts: bool) -> None:
    """Of three stages: forwards of a whole replica are slow, or those of both ends far more than what is between them."""
    ends = slowed({(1, 0): 2.0, (1, 1): 2.0}, backward=0.0)
    ratio = ends.worker_ratio[:, [0, 0, 1]].copy()
    ratio[0, 1, :, 1] = middle
    slow, compute_s = ratio[0].max(axis=1).T > 1.0, ratio[:, :, None] * np.ones((1, 1, 2, 1, 1))
    whole = components(worker_ratio=ratio, slow_workers=slow, compute_s=compute_s)
    assert bool(measure_workers(whole, what_if())["worker.loader_doubt"].value) == doubts


def test_who_is_slow_by_far_less_is_no_second_one() -> None:
    """Beside a worker that is four times as slow one of 1.06 times is noise: they are neither half of the workers, nor a stage."""
    parts = slowed({(0, 1): 4.0, (1, 1): 1.06}, steps=slice(4, None))
    found = measure_workers(parts, what_if())
    assert (found["worker.slow_share"].value, found["worker.stage_doubt"].value) == (0.25, 0.0)


@pytest.mark.parametrize(("factor", "doubts"), [(1.5, True), (6.0, False)])
def test_another_slow_worker_says_nothing_of_a_loader_that_costs_more(factor: float, doubts: bool) -> None:
    """A worker of another stage takes half as long again beside forwards 3 times as long; or is what costs most."""
    found = measure_workers(slowed({(1, 0): 3.0, (0, 1): factor}, backward=0.0), what_if())
    assert (found["worker.loader_doubt"].value > 0) is doubts


@pytest.mark.parametrize(
    ("backward", "doubt"), [(0.0, 0.0), (0.05, 0.0), (0.1, HOST_CHANCE), (0.2, HOST_CHANCE), (0.5, 0.0)]
)
def test_what_slows_forwards_most_may_stop_the_process(backward: float, doubt: float) -> None:
    """Forwards 3 times as long: with usual backwards a slow processor, with backwards twice as long a slow device; else unknown."""
    found = measure_workers(slowed({(1, 1): 3.0}, backward=backward), what_if())
    assert found["worker.host_doubt"].value == doubt
    assert measure_workers(components(), what_if())["worker.host_doubt"].value == 0.0


@pytest.mark.parametrize(
    ("places", "spread", "has_tokens", "steps", "doubt"),
    [
        ([(1, 0), (1, 1)], 0.3, False, slice(None), DOCUMENTS_CHANCE),
        ([(1, 0), (1, 1)], 0.3, True, slice(None), 0.0),  # the tokens say that it has no more of them
        ([(1, 0), (1, 1)], 0.3, False, slice(4, None), 0.0),  # it was not slow before
        ([(1, 0), (1, 1)], 0.01, False, slice(None), 0.0),  # documents differ by far less
        ([(1, 0)], 0.3, False, slice(None), 0.0),  # documents are long on all stages
    ],
)
def test_a_slow_replica_may_have_longer_documents(
    places: list[tuple[int, int]], spread: float, has_tokens: bool, steps: slice, doubt: float
) -> None:
    """A whole replica 1.5 times as slow in all steps, where microbatches differ as much: nothing but tokens tells which."""
    parts = slowed(dict.fromkeys(places, 1.5), steps=steps)
    ratio = np.exp(np.random.default_rng(5).normal(0.0, spread, parts.microbatch_ratio.shape))
    parts = dataclasses.replace(parts, microbatch_ratio=ratio, has_token_costs=has_tokens)
    assert measure_workers(parts, what_if())["worker.documents_doubt"].value == doubt


@pytest.mark.parametrize(
    ("others", "varies", "doubt"), [(1.5, True, DOCUMENTS_CHANCE), (1.5, False, 0.0), (1.0, True, 0.0)]
)
def test_a_worker_that_is_as_slow_as_its_replica_may_have_its_documents(
    others: float, varies: bool, doubt: float
) -> None:
    """One of two stages is over the limit, the other is as slow in the same steps: where steps differ as much documents do that."""
    parts, factors = slowed({(1, 1): 1.5}), np.tile([0.6, 1.4], N_STEPS // 2) if varies else np.ones(N_STEPS)
    compute_s = parts.compute_s.copy()
    compute_s[..., 1] *= factors
    compute_s[:, 0, ..., 1] *= others
    found = measure_workers(dataclasses.replace(parts, compute_s=compute_s), what_if())
    assert found["worker.documents_doubt"].value == doubt


@pytest.mark.parametrize(
    ("workers", "doubt"), [([(0, 1), (1, 1)], STAGE_CHANCE), ([(1, 1)], 0.0), ([(0, 1), (1, 1), (1, 0)], 0.0)]
)
def test_a_whole_stage_that_falls_behind_may_have_more_work(workers: list[tuple[int, int]], doubt: float) -> None:
    """Where all ranks of a stage fall behind, and nobody else; a single rank of it has peers that say that it is slow."""
    parts = slowed(dict.fromkeys(workers, 1.5), steps=slice(4, None))
    assert measure_workers(parts, what_if())["worker.stage_doubt"].value == doubt


@pytest.mark.parametrize(
    ("stage", "backward", "doubt"), [(0, 0.0, 0.0), (0, 0.5, STAGE_CHANCE), (1, 0.0, STAGE_CHANCE)]
)
def test_a_stage_whose_forwards_alone_wait_for_input_has_no_more_work(
    stage: int, backward: float, doubt: float
) -> None:
    """All ranks of a stage fall behind in forwards alone: where data is read that is a loader, or a processor, and no layer."""
    parts = slowed({(0, stage): 3.0, (1, stage): 3.0}, steps=slice(4, None), backward=backward)
    assert measure_workers(parts, what_if())["worker.stage_doubt"].value == doubt


def test_a_worker_slow_in_one_step_says_nothing_of_a_whole_stage() -> None:
    """Beside a whole stage that falls behind another worker may be slow now and then."""
    parts = slowed({(0, 1): 1.5, (1, 1): 1.5}, steps=slice(4, None))
    ratio, slow = parts.worker_ratio.copy(), parts.slow_workers.copy()
    ratio[:, 0, 5, 0], slow[0, 0] = 1.5, True
    beside = dataclasses.replace(parts, worker_ratio=ratio, slow_workers=slow)
    assert measure_workers(beside, what_if())["worker.stage_doubt"].value == STAGE_CHANCE


def test_older_machines_are_slow_in_all_steps() -> None:
    """Half of all workers are the job's layout where they are slow throughout, and not where they were quick in some steps."""
    for steps, doubt in ((slice(None), LAYOUT_CHANCE), (slice(3, None), 0.0)):
        parts = slowed({(0, 1): 1.5, (1, 1): 1.5}, steps=steps)
        assert measure_workers(parts, what_if())["worker.layout_doubt"].value == doubt


@pytest.mark.parametrize(
    ("dp_ranks", "stages", "per_host", "doubt"),
    [
        (range(0, 40, 2), (0, 1), 1, LAYOUT_CHANCE),
        (range(0, 40, 2), (0, 1), None, 0.0),
        (range(40), (0, 2), None, LAYOUT_CHANCE),
        (range(0, 40, 2), (0,), 1, 0.0),
        (range(0, 40, 8), (0, 1, 2, 3), 1, 0.0),
        (range(4), (0, 1), 1, 0.0),
    ],
    ids=["forty hosts", "five hosts maybe", "ten at least", "of one stage", "replicas", "eight hosts"],
)
def test_many_machines_that_are_slow_at_once_have_something_in_common(
    dp_ranks: range, stages: tuple[int, ...], per_host: int | None, doubt: float
) -> None:
    """From a step on, and neither replicas nor of one stage: hundreds of machines do not fail at once."""
    slow = np.zeros((80, 4), dtype=bool)
    slow[np.ix_(dp_ranks, stages)] = True
    ratio = np.ones((2, 4, 10, 80))
    ratio[:, :, 5:] = np.where(slow.T[:, None], 1.5, 1.0)
    parts = SimpleNamespace(slow_workers=slow, worker_ratio=ratio)
    hosts = None if per_host is None else [f"host-{at // per_host}" for at in range(slow.size)]
    assert _doubt_layout(parts, hosts) == doubt  # type: ignore[arg-type] # of it nothing else is asked


def test_a_worker_that_is_slow_for_one_of_its_members() -> None:
    """It is one of two workers, and a quarter of that; and no stage is longer, and no batch, for one of them."""
    parts = dataclasses.replace(slowed({(0, 0): 1.5}), slow_workers=np.array([[True, False]]))
    alone = dataclasses.replace(parts, worker_ratio=parts.worker_ratio[..., :1], compute_s=parts.compute_s[..., :1])
    found, by_member = (measure_workers(alone, what_if(), n_members=n) for n in (1, 4))
    assert found["worker.stage_doubt"].value and by_member["worker.stage_doubt"].value == 0.0
    assert by_member["worker.slow_share"].value == found["worker.slow_share"].value / 4  # type: ignore[operator]


@pytest.mark.parametrize(("n_steps", "doubt"), [(N_STEPS, LAYERS_CHANCE), (N_STEPS // 2, 0.0)])
def test_layers_are_long_in_each_step(n_steps: int, doubt: float) -> None:
    """With one dp rank: what is slow in half of the steps, the first among them, is no long stage."""
    parts = slowed({(0, 1): 1.5}, steps=slice(0, n_steps))
    alone = dataclasses.replace(
        parts,
        slow_workers=np.array([[False, True]]),
        worker_ratio=parts.worker_ratio[..., :1],
        compute_s=parts.compute_s[..., :1],
    )
    assert measure_workers(alone, what_if())["worker.stage_doubt"].value == doubt


def test_who_began_beside_the_slowest_does_not_tell_it_from_a_long_stage() -> None:
    """With one dp rank: stage 0 is long from the start, stage 1 a little from a later step on; and the other way round."""
    for late, doubt in ((1, LAYERS_CHANCE), (0, 0.0)):
        parts = slowed({(0, late): 1.3}, steps=slice(4, None))
        ratio = parts.worker_ratio[..., :1].copy()
        ratio[:, 0] = np.maximum(ratio[:, 0], 1.0 if late == 0 else 1.7)
        ratio[:, 1] = np.maximum(ratio[:, 1], 1.0 if late == 1 else 1.05)
        alone = dataclasses.replace(
            parts,
            slow_workers=np.array([[True, True]]),
            worker_ratio=ratio,
            compute_s=parts.compute_s[..., :1] * ratio[:, :, None],
        )
        assert measure_workers(alone, what_if())["worker.stage_doubt"].value == doubt


def test_without_peers_nothing_can_be_said() -> None:
    """With one dp rank every feature of a worker against its peers is missing, with the reason."""
    found = measure_workers(components(n_dp=1), what_if())
    for name in ("ratio", "forward_ratio", "backward_ratio", "slow_steps_share", "slow_share"):
        assert found[f"worker.{name}"].value is None
        assert "dp rank" in found[f"worker.{name}"].reason


def test_the_papers_measures_are_passed_on() -> None:
    """M_W and M_S are the paper's, and missing with a reason where no time was lost."""
    found = measure_workers(components(), what_if(m_w=0.9, m_s=-0.1))
    assert (found["worker.m_w"].value, found["stage.m_s"].value) == (0.9, -0.1)
    missing = measure_workers(components(), what_if())
    assert missing["worker.m_w"].value is None
    assert missing["worker.m_w"].reason
    assert missing["stage.m_s"].reason


def test_steps_of_a_slow_worker_come_in_their_order() -> None:
    """Blocks may be in any order; the series is by step, with the log of the ratio where the worker is behind."""
    parts = slowed({(1, 0): 2.0}, steps=slice(6, None))
    order = np.array([9, 8, 7, 6, 5, 4, 3, 2, 1, 0])
    shuffled = components(
        steps=STEPS[order],
        worker_ratio=parts.worker_ratio[:, :, order],
        slow_workers=parts.slow_workers,
    )
    steps, behind = slow_steps(shuffled, (1, 0))
    assert steps.tolist() == STEPS.tolist()
    np.testing.assert_allclose(behind, [0.0] * 6 + [np.log(2.0)] * (N_STEPS - 6))


@pytest.mark.parametrize(
    ("workers", "grows", "doubt"),
    [
        ([(1, 0)], False, 0.0),
        ([(1, 0), (1, 1)], False, 0.0),
        ([(0, 0), (0, 1)], False, PAUSE_CHANCE),
        ([(1, 0)], True, PAUSE_CHANCE),
    ],
    ids=["a worker", "the last stage", "the first stage", "ever more"],
)
def test_an_allocator_does_not_stop_workers_by_the_clock(
    workers: list[tuple[int, int]], grows: bool, doubt: float
) -> None:
    """Three of ten forwards stop for 5 s and six of ten backwards; a few before others that are the more the later."""
    n = 20
    inside = {
        (way, stage, mb, step, dp): (5.0, StallKind.WORKER)
        for stage, dp in workers
        for way in (0, 1)
        for mb in range(n)
        for step in range(N_STEPS)
        if (7 * mb + 3 * step) % 10 < 3 * (1 + way) and (not grows or mb < step * step // 4)
    }
    found = measure_workers(stalled(inside, n_microbatches=n), what_if())
    assert found["worker.pause_doubt"].value == doubt


@pytest.mark.parametrize(
    ("on_all", "factor", "doubt"), [(False, 3.0, PAUSE_CHANCE), (False, 1.3, 0.0), (True, 3.0, 0.0)]
)
def test_computes_of_a_slow_machine_are_long_by_a_like_factor(*, on_all: bool, factor: float, doubt: float) -> None:
    """Of two microbatches of a slow worker one takes far longer: an allocator may stall it, where peers have none such."""
    found = slowed({(1, 0): 3.0})
    found.compute_s[:, :, 0, :, slice(None) if on_all else 1] *= factor
    assert measure_workers(found, what_if())["worker.pause_doubt"].value == doubt


@pytest.mark.parametrize(("n_dp", "is_frozen"), [(2, True), (2, False), (1, True)])
def test_a_few_stops_make_a_worker_slow_where_its_messages_stood_still_too(n_dp: int, *, is_frozen: bool) -> None:
    """Three computes of one worker stand still for 5 s: few, but its messages tell that its process stops; with a peer or not."""
    inside = dict.fromkeys(((0, 1, 0, 2, 0), (1, 1, 1, 4, 0), (0, 1, 0, 7, 0)), (5.0, StallKind.WORKER))
    found = stalled(inside, n_microbatches=8, n_dp=n_dp)
    frozen_s = {StallKind.WORKER: ({3: np.full((N_STEPS, n_dp), 5.0)} if is_frozen else {},)}
    measured = measure_workers(dataclasses.replace(found, frozen_s=frozen_s), what_if())
    assert (measured["worker.ratio"].value or 0.0) == pytest.approx(
        1.0 + (10.0 / 80.0 + 5.0 / 160.0) / 2 if is_frozen else 1.0
    )
    assert measured["worker.pause_doubt"].value == 0.0


@pytest.mark.parametrize(("n_long", "doubt"), [(1, PAUSE_CHANCE), (8, 0.0)])
def test_a_few_long_computes_make_no_slow_machine(n_long: int, doubt: float) -> None:
    """A worker that is behind by one compute of eight in a step may stall in it; a slow one is behind in all of them."""
    found = slowed({(1, 0): 1.02})
    compute_s = np.repeat(found.compute_s[:, :, :1], 8, axis=2)
    compute_s[:, 0, :n_long, :, 1] *= 1.5
    found = dataclasses.replace(found, compute_s=compute_s)
    assert measure_workers(found, what_if())["worker.pause_doubt"].value == doubt
