"""Faults that stop a worker now and then: whom they hit, when, for how long, and what the trace says of it."""

import dataclasses

import numpy as np
import pytest

from diagnose.errors import UsageError
from diagnose.faults import allocator_stall, data_loading, garbage_collection
from diagnose.faults.allocator_stall import AllocatorStall
from diagnose.faults.data_loading import DataLoading
from diagnose.faults.fault import Fault
from diagnose.faults.garbage_collection import GarbageCollection
from diagnose.faults.generate import generate
from diagnose.faults.inputs import draw_inputs
from diagnose.faults.simulate import simulate
from diagnose.faults.spec import JobSpec, random_spec
from diagnose.faults.worker_fault import WorkerFault
from diagnose.model.optype import Op

SMALL = JobSpec(pp=3, dp=4, microbatches=4, steps=12, seed=5)
LONG = dataclasses.replace(SMALL, steps=60)
HEALTHY = draw_inputs(SMALL)
STRENGTH = {GarbageCollection: "pause_s", AllocatorStall: "stall_ratio", DataLoading: "wait_ratio"}
ROWS = {GarbageCollection: "gc", AllocatorStall: "cuda-malloc", DataLoading: "data-load"}
FAULTS: tuple[Fault, ...] = (
    GarbageCollection(worker_period_steps=4.0, inside_share=0.5, records=True),
    AllocatorStall(on_stages=(0, 1), inside_share=0.5, length_growth=1.0, records=True),
    DataLoading(records=True),
    DataLoading(is_common=True, every_microbatch=True, where="inside", records=True),
)
of_each_fault = pytest.mark.parametrize("fault", FAULTS, ids=lambda f: f.cause)


def pauses_s(fault, spec=SMALL, where=("inside", "before")):
    """Sum what a fault stops each task for, in seconds, shape (n_tasks, n_steps, n_dp)."""
    inputs = fault.apply(draw_inputs(spec))
    return sum((p.seconds for p in inputs.pauses if p.where in where), start=np.zeros_like(inputs.work_s))


@of_each_fault
def test_truth_is_the_job_without_the_fault(fault) -> None:
    """What comes back is the difference between the job with the pauses and the job that never had them."""
    truth = generate(SMALL, [fault]).truth
    with_it, without = (simulate(i).step_s.mean() for i in (fault.apply(HEALTHY), HEALTHY))
    assert truth.faults[0].recoverable == 1.0 - without / with_it > 0.01


@of_each_fault
def test_same_seed_same_bytes(fault) -> None:
    """The same seed gives the same trace and truth, another seed another trace."""
    first, second = generate(SMALL, [fault]), generate(SMALL, [fault])
    assert first.trace.equals(second.trace, check_metadata=True)
    assert first.truth.to_json() == second.truth.to_json()
    other = dataclasses.replace(SMALL, seed=6)
    assert not np.array_equal(np.sort(pauses_s(fault, other), axis=None), np.sort(pauses_s(fault), axis=None))
    assert not np.array_equal(pauses_s(fault, other) > 0, pauses_s(fault) > 0)


@of_each_fault
def test_pauses_do_not_know_of_other_faults(fault) -> None:
    """An operation's pause is the same whether its worker is slow or not, and whether other pauses exist or not."""
    others = [WorkerFault(places=((1, 0),), slowdown=2.0), *(f for f in FAULTS if f is not fault)]
    inputs = HEALTHY
    for other in others:
        inputs = other.apply(inputs)
    among, alone = fault.apply(inputs).pauses[len(inputs.pauses) :], fault.apply(HEALTHY).pauses
    assert len(among) == len(alone) > 0
    assert all(np.array_equal(a.seconds, b.seconds) for a, b in zip(among, alone, strict=True))


@of_each_fault
def test_pauses_happen_from_onset_to_recovery(fault) -> None:
    """Steps before the onset and from the recovery on are as they were, and some step between is longer."""
    timed = dataclasses.replace(fault, onset=4, recovery=9)
    longer = simulate(timed.apply(HEALTHY)).step_s > simulate(HEALTHY).step_s
    assert longer[4:9].any() and not longer[:4].any() and not longer[9:].any()


@of_each_fault
def test_strength_scales_the_pauses(fault) -> None:
    """Three times the strength is the same pauses, each three times as long."""
    name = STRENGTH[type(fault)]
    stronger = dataclasses.replace(fault, **{name: 3 * fault.strength})
    assert stronger.strength == 3 * fault.strength
    assert pauses_s(stronger) == pytest.approx(3 * pauses_s(fault), rel=1e-12)


@of_each_fault
def test_rows_cover_the_pauses(fault) -> None:
    """The evidence rows of each worker and step last exactly as long as its pauses, and there are none unless recorded."""
    expected = pauses_s(fault)
    frame = generate(SMALL, [fault]).trace.to_pandas()
    rows = frame[(frame["optype"] == ROWS[type(fault)]) & (frame["duration"] > 0)]
    assert len(rows) == np.count_nonzero(expected)
    recorded = np.zeros((SMALL.steps, SMALL.dp, SMALL.pp))
    step = np.searchsorted(SMALL.step_numbers(), rows["step"])
    np.add.at(recorded, (step, rows["dp_rank"], rows["stage"]), rows["duration"].astype(float))
    for stage in range(SMALL.pp):
        of_stage = expected[HEALTHY.programme.stage == stage].sum(axis=0)
        assert recorded[:, :, stage] == pytest.approx(of_stage, rel=1e-5)
    silent = generate(SMALL, [dataclasses.replace(fault, records=False)]).trace.to_pandas()
    assert not ((silent["optype"] == ROWS[type(fault)]) & (silent["duration"] > 0)).any()


@of_each_fault
def test_a_pause_is_inside_or_before(fault) -> None:
    """A pause inside makes its compute longer by its seconds, one before it does not, and no other compute changes."""
    healthy, paused = simulate(HEALTHY), simulate(fault.apply(HEALTHY))
    computes = HEALTHY.programme.is_op(Op.FORWARD, Op.BACKWARD, Op.OPTIMIZER)
    excess_s = ((paused.end_s - paused.start_s) - (healthy.end_s - healthy.start_s))[computes]
    assert excess_s == pytest.approx(pauses_s(fault, where=("inside",))[computes], abs=1e-9)


@pytest.mark.parametrize("fault", FAULTS[:2], ids=lambda f: f.cause)
def test_share_of_pauses_inside(fault) -> None:
    """As many pauses are inside as the share says, all others before, and the share changes no pause's length."""
    every_s = pauses_s(fault, LONG)
    for share, tolerance in ((0.0, 0.0), (0.3, 0.12), (1.0, 0.0)):
        shared = dataclasses.replace(fault, inside_share=share)
        inside_s, before_s = (pauses_s(shared, LONG, where=(where,)) for where in ("inside", "before"))
        assert np.count_nonzero(inside_s) / np.count_nonzero(every_s) == pytest.approx(share, abs=tolerance)
        assert np.array_equal(inside_s + before_s, every_s)


@pytest.mark.parametrize("where", ["inside", "before"])
def test_waits_for_data_are_where_the_fault_says(where) -> None:
    """All waits for data are inside the forward, or all before it."""
    assert {p.where for p in DataLoading(where=where).apply(HEALTHY).pauses} == {where}


def test_collections_hit_forwards_of_any_microbatch() -> None:
    """Collections hit forwards of all microbatches, one a step and worker at most, and never a backward."""
    fault = GarbageCollection(worker_period_steps=3.0, inside_share=0.5)
    hit = pauses_s(fault, LONG) > 0
    programme = draw_inputs(LONG).programme
    assert not hit[~programme.is_op(Op.FORWARD)].any()
    assert set(programme.microbatch[hit.any(axis=(1, 2))]) == {0, 1, 2, 3}
    assert all(hit[programme.stage == stage].sum(axis=0).max() == 1 for stage in range(3))


def test_every_worker_collects_in_its_own_rhythm() -> None:
    """Without jitter the steps of one worker's collections are whole periods apart, and workers differ in phase."""
    fault = GarbageCollection(worker_period_steps=5.0, period_spread=0.0, jitter=0.0)
    hit, programme = pauses_s(fault, LONG) > 0, draw_inputs(LONG).programme
    remainders = []
    for stage in range(3):
        for dp in range(4):
            steps = LONG.step_numbers()[hit[programme.stage == stage].any(axis=0)[:, dp]]
            assert len(steps) >= 3 and len(set(steps % 5)) == 1
            remainders.append(steps[0] % 5)
    assert len(set(remainders)) > 2


def test_some_workers_never_collect() -> None:
    """Only the workers that allocate much collect, one of them at least, and no place is true of it."""
    programme = draw_inputs(LONG).programme
    for share, least, most in ((0.0, 1, 1), (0.5, 2, 10), (1.0, 12, 12)):
        fault = GarbageCollection(worker_period_steps=3.0, allocating_share=share)
        hit = pauses_s(fault, LONG) > 0
        n_workers = sum(hit[programme.stage == stage].any(axis=(0, 1)).sum() for stage in range(3))
        assert least <= n_workers <= most
        assert fault.workers(LONG) == fault.stages(LONG) == ()


def test_pauses_grow_as_the_job_gets_old() -> None:
    """Without spread a collection or stall in the last step is as much longer as the growth says, in the first not at all."""
    collections = GarbageCollection(worker_period_steps=1.0, period_spread=0.0, jitter=0.0, spread=0.0, growth=1.0)
    stalls = AllocatorStall(probability=0.3, spread=0.0, length_growth=2.0, onset=3)
    for fault, first, typical_s, growth in ((collections, 0, 0.25, 1.0), (stalls, 3, 1.5 * LONG.forward_s, 2.0)):
        seconds = pauses_s(fault, LONG).max(axis=(0, 2))
        assert seconds[[first, -1]] == pytest.approx([typical_s, typical_s * (1.0 + growth)])


def test_stalls_hit_both_directions_of_their_place_alone() -> None:
    """Stalls hit forwards and backwards as often as their probability says, and no other stage or dp rank."""
    fault = AllocatorStall(on_stages=(1,), on_dp_ranks=(0, 2), probability=0.2)
    hit, programme = pauses_s(fault, LONG) > 0, draw_inputs(LONG).programme
    for op in (Op.FORWARD, Op.BACKWARD):
        tasks = programme.is_op(op) & (programme.stage == 1)
        assert hit[tasks][:, :, [0, 2]].mean() == pytest.approx(0.2, abs=0.05)
        hit[tasks] &= np.isin(np.arange(4), [1, 3])
    assert not hit.any()
    assert fault.workers(LONG) == ((0, 1), (2, 1)) and fault.stages(LONG) == ()
    everywhere = dataclasses.replace(fault, on_dp_ranks=None)
    assert everywhere.workers(LONG) == () and everywhere.stages(LONG) == (1,)


@pytest.mark.parametrize(
    ("stages", "dp_ranks", "growth", "tellable"),
    [((0, 1), None, 1.5, True), ((0, 1), None, 0.3, False), ((0,), None, 0.0, True), ((0,), (1,), 0.3, False)],
    ids=["everywhere", "everywhere, as often as ever", "a stage", "a worker, as often as ever"],
)
def test_an_allocator_is_told_by_its_place_or_its_growth(
    stages: tuple[int, ...], dp_ranks: tuple[int, ...] | None, growth: float, tellable: bool
) -> None:
    """What stalls all workers, or one, as often to the end as before looks like noise, or like stops of a process."""
    spec = JobSpec(pp=2, dp=8, microbatches=16, steps=40, evidence=False)
    fault = AllocatorStall(on_stages=stages, on_dp_ranks=dp_ranks, probability=0.02, frequency_growth=growth)
    assert fault.tellable(spec) == tellable
    assert dataclasses.replace(fault, records=True).tellable(dataclasses.replace(spec, evidence=True))


def test_stalls_become_more() -> None:
    """With a growth of 3 the last third of a trace has more than twice the stalls of the first, and without about as many."""
    for growth, low, high in ((3.0, 1.8, 5.0), (0.0, 0.6, 1.5)):
        fault = AllocatorStall(probability=0.1, frequency_growth=growth)
        n_stalls = (pauses_s(fault, LONG) > 0).sum(axis=(0, 2))
        assert low < n_stalls[40:].sum() / n_stalls[:20].sum() < high


@pytest.mark.parametrize("sizes", [{}, {"pp": 1}, {"pp": 2, "vpp": 2}])
def test_loader_delays_the_first_stage(sizes) -> None:
    """The first forward of the first stage waits, or every forward of its first model chunk, also where it is the only stage."""
    spec = dataclasses.replace(SMALL, **sizes)
    programme = draw_inputs(spec).programme
    reads = programme.is_op(Op.FORWARD) & (programme.stage == 0) & (programme.chunk == 0)
    for every, expected in ((True, reads), (False, reads & (programme.microbatch == 0))):
        fault = DataLoading(probability=1.0, is_common=True, every_microbatch=every)
        assert np.array_equal((pauses_s(fault, spec) > 0).any(axis=(1, 2)), expected)


def test_who_waits_for_data() -> None:
    """One rank with a bad loader, another rank in each step, or all alike: as the fault says."""
    late = {
        who: pauses_s(DataLoading(probability=0.8, **who_fields), LONG).sum(axis=0)
        for who, who_fields in {"bad": {"dp_ranks": (2,)}, "changing": {}, "common": {"is_common": True}}.items()
    }
    assert (late["bad"] > 0).any(axis=0).tolist() == [False, False, True, False]
    assert DataLoading(dp_ranks=(2,)).workers(LONG) == ((2, 0),) and DataLoading().workers(LONG) == ()
    assert (late["changing"] > 0).any(axis=0).all() and (late["changing"] > 0).sum(axis=1).max() == 1
    assert (late["common"] == late["common"][:, :1]).all()
    n_late = {who: (seconds > 0).any(axis=1).mean() for who, seconds in late.items()}
    assert n_late == pytest.approx(dict.fromkeys(late, 0.8), abs=0.15)


def test_shards_are_opened_every_few_steps() -> None:
    """With shards of 4 steps all ranks wait in the steps whose number is a multiple of 4, and in no other."""
    late = pauses_s(DataLoading(period_steps=4, is_common=True, probability=0.0), LONG).sum(axis=0) > 0
    assert np.array_equal(late, np.broadcast_to((LONG.step_numbers() % 4 == 0)[:, None], late.shape))


@pytest.mark.parametrize(
    "fault",
    [AllocatorStall(on_stages=(3,)), AllocatorStall(on_dp_ranks=(0, 4)), DataLoading(dp_ranks=(-1,))],
    ids=["stage", "dp-rank", "loader"],
)
def test_places_that_the_job_does_not_have_are_refused(fault) -> None:
    """A stage or rank that does not exist is refused with a message that says how many there are."""
    with pytest.raises(UsageError, match=r"the job has [34]"):
        generate(SMALL, [fault])


def test_no_fault_where_none_would_ever_happen() -> None:
    """A trace too small for a single collection or stall has no such fault; every job can wait for its data."""
    tiny, rng = JobSpec(pp=1, dp=1, microbatches=1, steps=1), np.random.default_rng(1)
    assert garbage_collection.draw_fault(tiny, rng) is None
    assert allocator_stall.draw_fault(tiny, rng) is None
    assert data_loading.draw_fault(tiny, rng) is not None
    wider = dataclasses.replace(tiny, dp=4)
    assert garbage_collection.draw_fault(wider, rng) is not None
    assert allocator_stall.draw_fault(wider, rng) is not None


@pytest.mark.parametrize("module", [garbage_collection, allocator_stall, data_loading])
def test_drawn_faults_vary(module) -> None:
    """Faults drawn for random jobs can happen, half of them are recorded, a third begin later, and few cost almost nothing."""
    faults, recoverable = [], []
    for seed in range(60):
        rng = np.random.default_rng([seed, 77])
        spec = dataclasses.replace(random_spec(rng), steps=12)
        fault = module.draw_fault(spec, rng)
        healthy = draw_inputs(spec)
        faults.append(fault)
        recoverable.append(1.0 - simulate(healthy).step_s.mean() / simulate(fault.apply(healthy)).step_s.mean())
    assert 0.3 < np.mean([f.records for f in faults]) < 0.7
    assert 0.1 < np.mean([f.onset is not None for f in faults]) < 0.5
    assert any(f.recovery for f in faults) and all(
        f.recovery is None or (f.onset or 0) < f.recovery < 12 for f in faults
    )
    assert np.mean(np.array(recoverable) > 0.01) > 0.7
    assert np.min(recoverable) > -0.005 and np.quantile(recoverable, 0.9) > 0.15
    given = module.draw_fault(spec, np.random.default_rng(1), strength=0.7, onset=5)
    assert (given.strength, given.onset) == (0.7, 5)
