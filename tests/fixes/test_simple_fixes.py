"""Fixes that take a cause away: their price is that of the job simulated without the fault; who must not have them is told why."""

import dataclasses

import numpy as np
import pytest

from diagnose.errors import UsageError
from diagnose.faults.allocator_stall import AllocatorStall
from diagnose.faults.checkpoint_stall import CheckpointStall
from diagnose.faults.data_loading import DataLoading
from diagnose.faults.expert_imbalance import ExpertImbalance
from diagnose.faults.fault import Fault
from diagnose.faults.garbage_collection import GarbageCollection
from diagnose.faults.kernel_queue_contention import KernelQueueContention
from diagnose.faults.network_fault import NetworkFault
from diagnose.faults.spec import JobSpec
from diagnose.faults.worker_fault import WorkerFault
from diagnose.fixes import (
    async_checkpoint,
    expandable_segments,
    fix_link,
    planned_gc,
    prefetch_input,
    raise_connections,
    replace_worker,
)
from diagnose.fixes.catalogue import list_fixes
from diagnose.fixes.frameworks import choose_how
from diagnose.fixes.places import count_workers
from diagnose.model.analysis import Analysis
from diagnose.model.planned import find_interval
from diagnose.model.remedy import FaultLocation, Refusal, Remedy
from diagnose.model.trace import Loader
from tests.fixes.cases import analysis, at, best_fix, truth
from tests.judge.cases import built_in

SPEC = JobSpec(pp=4, dp=4, microbatches=8, steps=24, seed=71)
ONE_CLOCK = dataclasses.replace(SPEC, absolute_times=True)
ASYNCHRONOUS = dataclasses.replace(SPEC, p2p="asynchronous")
SLOW_LINKS = dataclasses.replace(SPEC, transfer_s=5e-3)
HOSTS = dataclasses.replace(SPEC, workers_per_host=4)

SLOW = WorkerFault(places=((1, 2),), slowdown=1.6)
TWO_SLOW = WorkerFault(places=((1, 2), (2, 0)), slowdown=1.6)
PAUSES = GarbageCollection(pause_s=0.4, worker_period_steps=6.0, records=True)
SAVES = CheckpointStall(period_steps=5, duration_s=1.5)
LOADS = DataLoading(wait_ratio=3.0)

#: A clear fault for each simple fix, and by how much of the speedup the prediction may be off.
FAULTS: dict[str, tuple[JobSpec, Fault]] = {
    "replace-worker": (SPEC, SLOW),
    "planned-gc": (SPEC, PAUSES),
    "expandable-segments": (SPEC, AllocatorStall(stall_ratio=6.0, probability=0.15, records=True)),
    "raise-connections": (ASYNCHRONOUS, KernelQueueContention(rivals="recvs", slowdown=20.0)),
    "fix-link": (SLOW_LINKS, NetworkFault(scope="link", dp_rank=1, stage=2, slowdown=15.0)),
    "prefetch-input": (SPEC, LOADS),
    "async-checkpoint": (ONE_CLOCK, SAVES),
    "balance-experts": (SPEC, ExpertImbalance(spread=0.3, records_tokens=True)),
}


@pytest.mark.parametrize("name", FAULTS)
def test_the_price_is_the_truth(name: str) -> None:
    """The predicted speedup is that of the generator's own simulation without the fault, to 1%."""
    spec, fault = FAULTS[name]
    (found,) = truth(spec, fault).faults
    fix = best_fix(spec, fault)
    assert fix.fix == name
    assert found.recoverable > 0.05
    assert fix.predicted_speedup == pytest.approx(1.0 / (1.0 - found.recoverable), rel=0.01)
    assert fix.summary
    assert fix.how


@pytest.mark.parametrize("name", FAULTS)
def test_settings_give_the_same_fix_again(name: str) -> None:
    """What a fix resolved can be given by hand, and gives the same price."""
    spec, fault = FAULTS[name]
    fix, job = best_fix(spec, fault), analysis(spec, fault)
    place = at((1, 2), period=5.0) if name in ("fix-link", "async-checkpoint") else FaultLocation()
    remedy = list_fixes()[name].propose(job, place, fix.settings)
    assert isinstance(remedy, Remedy)
    assert job.price(remedy.changes).mean() / job.gains.replayed_s == pytest.approx(
        1.0 / fix.predicted_speedup, rel=1e-3
    )


def test_every_fix_of_a_rule_can_be_priced() -> None:
    """No built-in rule names a fix that nobody can price, and every name is that of its file."""
    named = {fix.fix for rule in built_in().rules for fix in rule.fixes}
    assert named <= set(list_fixes())
    for name, fix in list_fixes().items():
        assert fix.__name__.rpartition(".")[2].replace("_", "-") == name


@pytest.mark.parametrize("name", sorted(FAULTS))
def test_a_healthy_job_needs_none(name: str) -> None:
    """Where there is nothing to mend a fix says so."""
    job = analysis(SPEC)
    refusal = list_fixes()[name].propose(job, FaultLocation(), {})
    if name in ("fix-link", "async-checkpoint", "expandable-segments", "prefetch-input", "planned-gc") and isinstance(
        refusal, Remedy
    ):
        # Ordinary variation has stalls and slow transfers, too; they are worth next to nothing.
        assert job.price(refusal.changes).mean() > 0.99 * job.gains.replayed_s
    else:
        assert isinstance(refusal, Refusal)


def propose(module: object, job: Analysis, place: FaultLocation | None = None, **settings: str) -> Remedy:
    """Ask a fix for its remedy."""
    remedy = module.propose(job, place or FaultLocation(), settings)
    assert isinstance(remedy, Remedy), remedy
    return remedy


def gain(job: Analysis, remedy: Remedy) -> float:
    """Price a remedy: part of the step that comes back."""
    return 1.0 - float(job.price(remedy.changes).mean()) / job.gains.replayed_s


def test_one_of_two_slow_workers() -> None:
    """Replacing one of two slow workers gives less than both, and what the simulation with only the other says."""
    job = analysis(SPEC, TWO_SLOW)
    both = gain(job, propose(replace_worker, job))
    one = gain(job, propose(replace_worker, job, dp="1", pp="2"))
    only_other = WorkerFault(places=((2, 0),), slowdown=1.6)
    after = truth(SPEC, only_other).step_time_s / truth(SPEC, TWO_SLOW).step_time_s
    assert one == pytest.approx(1.0 - after, abs=0.01)
    assert both > one + 0.02


def test_workers_are_named_by_their_place() -> None:
    """The place of the cause decides whom to replace."""
    job = analysis(SPEC, TWO_SLOW)
    assert "dp 2 stage 0" in propose(replace_worker, job, at((2, 0))).summary
    assert propose(replace_worker, job, at((2, 0))).figures["workers"] == 1.0


def test_who_has_recovered_is_not_replaced_now() -> None:
    """A worker that was slow for a while is replaced should it come back, and no job waits for its end for that."""
    fault = WorkerFault(places=((1, 2),), slowdown=2.0, onset=3, recovery=8)
    job = analysis(dataclasses.replace(SPEC, steps=24), fault)
    remedy = propose(replace_worker, job)
    assert remedy.summary.startswith("nothing now, it is over; should it come back, replace the worker at dp 1 stage 2")
    assert replace_worker.weigh(job, remedy, 1e-6).summary == remedy.summary
    assert (
        "nothing now" not in propose(replace_worker, analysis(SPEC, dataclasses.replace(fault, recovery=None))).summary
    )


def test_a_whole_job_is_not_replaced() -> None:
    """Where all workers are slow at some time and nobody is named there is no other worker to replace them by."""
    job = analysis(SPEC, TWO_SLOW)
    every = np.ones_like(job.breakdown.slow_workers)
    job = dataclasses.replace(job, breakdown=dataclasses.replace(job.breakdown, slow_workers=every))
    for settings in ({}, {"restart_s": "60"}):
        assert isinstance(replace_worker.propose(job, FaultLocation(), settings), Refusal)
    assert propose(replace_worker, job, at((2, 0))).figures["workers"] == 1.0


def test_draining_a_host() -> None:
    """All slow workers of a host go together, and the good ones beside them are counted."""
    fault = WorkerFault(places=((0, 0), (1, 0)), slowdown=1.6)
    job = analysis(HOSTS, fault)
    assert job.trace.hosts is not None
    remedy = propose(replace_worker, job, host=job.trace.hosts[0])
    assert remedy.figures["workers"] == 2.0
    assert remedy.figures["good_workers_drained"] == 2.0
    assert job.trace.hosts[0] in remedy.summary
    with pytest.raises(UsageError, match="no host 'elsewhere'"):
        replace_worker.propose(job, FaultLocation(), {"host": "elsewhere"})


def test_a_whole_stage_is_replaced_by_its_name() -> None:
    """Workers that are all of a stage or dp rank are named by it, others by label, whichever is the worst."""
    trace = analysis(SPEC, SLOW).trace
    stage, rank = ([(dp, 1) for dp in range(trace.n_dp)], [(2, stage) for stage in range(trace.n_stages)])
    assert count_workers(stage[::-1], trace) == f"the {trace.n_dp} workers of stage 1"
    assert count_workers(rank, trace) == f"the {trace.n_stages} workers of dp 2"
    assert count_workers([(3, 0), (0, 1)], trace) == "2 workers: dp 0 stage 1, dp 3 stage 0"
    larger = dataclasses.replace(trace, job=dataclasses.replace(trace.job, dp_size=2 * trace.n_dp))
    assert count_workers(stage, larger).startswith(
        f"{trace.n_dp} workers: dp 0 stage 1, dp 1 stage 1"
    )  # of a part of it


def test_a_restart_pays_off_after() -> None:
    """Seconds of a restart over seconds gained a step, rounded up; a job that ends sooner is told, and so is one that is over."""
    job = analysis(SPEC, SLOW)
    remedy = propose(replace_worker, job, restart_s="100")
    weighed = replace_worker.weigh(job, remedy, 0.3)
    assert weighed.figures["break_even_steps"] == 334
    last = int(job.breakdown.steps.max())
    short, over = (
        replace_worker.weigh(
            dataclasses.replace(
                job,
                trace=dataclasses.replace(job.trace, job=dataclasses.replace(job.trace.job, steps_total=total)),
            ),
            remedy,
            0.3,
        )
        for total in (last + 11, last + 1)
    )
    assert short.figures["steps_left"] == 10
    assert short.summary.startswith("let it finish; before the next job replace the worker")
    assert short.risks == ("10 steps are left, and a restart pays off after 334 steps",)
    assert over.summary.startswith("before the next job replace the worker")
    job = dataclasses.replace(
        job, trace=dataclasses.replace(job.trace, job=dataclasses.replace(job.trace.job, steps_total=last + 1))
    )
    nothing = replace_worker.weigh(job, remedy, 1e-6)
    assert nothing.risks[0].endswith("days") and nothing.figures["break_even_steps"] == 1e8


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"dp": "9"}, "there is no dp 9; the trace has 0 to 3"),
        ({"pp": "x"}, "expected a whole number"),
        ({"restart_s": "-1"}, "expected a number above 0"),
        ({"restart_s": "nan"}, "expected a number above 0"),
    ],
)
def test_bad_settings(settings: dict[str, str], said: str) -> None:
    """What is no worker and no number is refused with what was expected."""
    with pytest.raises(UsageError, match=said):
        replace_worker.propose(analysis(SPEC, SLOW), FaultLocation(), settings)


def test_a_good_worker_is_not_replaced() -> None:
    """A user who names a worker that is not slow is told so."""
    refusal = replace_worker.propose(analysis(SPEC, SLOW), FaultLocation(), {"dp": "0", "pp": "0"})
    assert isinstance(refusal, Refusal)
    assert "dp 0 stage 0 is not slower" in refusal.reason


def test_planned_pauses_cost_what_they_cost() -> None:
    """Every step pays its part of a planned pause; the interval that is chosen makes that next to nothing."""
    job = analysis(SPEC, PAUSES)
    often, seldom = propose(planned_gc, job, every="2"), propose(planned_gc, job, every="1000")
    pause_s = often.figures["planned_pause_s"]
    assert pause_s == pytest.approx(0.4 * 1.2, rel=0.3)
    assert job.price(often.changes).mean() - job.price(seldom.changes).mean() == pytest.approx(
        pause_s * (1 / 2 - 1 / 1000)
    )
    chosen = propose(planned_gc, job).figures["every_steps"]
    assert pause_s / chosen <= planned_gc.PLANNED_SHARE * job.gains.replayed_s
    assert chosen in planned_gc.INTERVALS


def test_pauses_that_grow_are_told() -> None:
    """Pauses that get longer with the steps are a leak, and the risk says so."""
    grows = GarbageCollection(pause_s=0.4, worker_period_steps=3.0, growth=2.0, records=True)
    assert any("leak" in risk for risk in propose(planned_gc, analysis(SPEC, grows)).risks)


def test_one_long_pause_is_no_growth() -> None:
    """A single pause of seconds near the end of the trace does not make all others grow."""
    steps, pause_s = np.arange(20), np.full(20, 0.1)
    assert planned_gc._length_now(steps, pause_s + 0.01 * steps)[1] == pytest.approx(0.01)
    pause_s[17] = 5.0
    assert planned_gc._length_now(steps, pause_s)[1] == 0.0


@pytest.mark.parametrize(("growth_s", "leaks"), [(0.0, False), (0.01, True)])
def test_pauses_that_vary_are_no_leak(growth_s: float, leaks: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Pauses of very different lengths have some slope in any short trace; by chance alone that is no growth."""
    steps = np.arange(40)
    pause_s = np.random.default_rng(1).uniform(0.0, 0.2, 40) + growth_s * steps
    monkeypatch.setattr(planned_gc, "_pauses", lambda _analysis: (steps, pause_s))
    found = propose(planned_gc, analysis(SPEC, PAUSES))
    assert found.figures["growth_s_per_step"] * 1000 > 0.1 * found.figures["planned_pause_s"]
    assert any("leak" in risk for risk in found.risks) == leaks


@pytest.mark.parametrize(
    ("gpu", "tp", "framework", "forbidden"),
    [
        ("NVIDIA H100 80GB HBM3", 2, None, "requires CUDA_DEVICE_MAX_CONNECTIONS=1"),
        ("A100-SXM4-80GB", 8, "Megatron-LM", "requires CUDA_DEVICE_MAX_CONNECTIONS=1"),
        ("H100", 1, None, None),
        ("H100", 2, "torchtitan", None),
        ("A800", 2, "PyTorch FSDP", None),
        ("GB200", 1, None, "ignore"),
        ("B200", 8, "torchtitan", "ignore"),
        (None, 2, None, None),
        ("MI300X", 2, None, None),
    ],
)
def test_who_may_raise_connections(gpu: str | None, tp: int, framework: str | None, forbidden: str | None) -> None:
    """The generation of the GPU, the parallelism and the framework decide whether more connections are allowed."""
    job = analysis(*FAULTS["raise-connections"])
    about = dataclasses.replace(job.trace.job, gpu_type=gpu, tp_size=tp, framework=framework)
    job = dataclasses.replace(job, trace=dataclasses.replace(job.trace, job=about))
    found = raise_connections.propose(job, FaultLocation(), {})
    if forbidden:
        assert isinstance(found, Refusal)
        assert forbidden in found.reason
    else:
        assert isinstance(found, Remedy)
        assert ("Blackwell ignores it" in found.risks[0]) == (gpu in (None, "MI300X") and tp > 1)


def test_computes_that_begin_late_have_connections_to_raise() -> None:
    """Whether a compute stands still or begins late for what is in flight, the fix is the same, and gives back the waits."""
    spec, fault = FAULTS["raise-connections"]
    job = analysis(spec, dataclasses.replace(fault, late=True))  # type: ignore[call-arg] # it is contention
    assert job.breakdown.queue_wait_s is None or not job.breakdown.queue_wait_s.any()
    found = propose(raise_connections, job, at())
    assert gain(job, found) == pytest.approx(job.gains.recoverable("queue"), abs=0.001)
    assert found.figures["held_computes"] > 0


def test_garbage_that_all_collect_is_so_many_steps_apart() -> None:
    """Three times in 32 steps, ten apart, is every ten, and not every eleven; where steps are left out, by their numbers."""
    steps = np.arange(32)
    assert find_interval(steps, np.isin(steps, [9, 19, 29])) == 10.0
    assert find_interval(3 * steps, np.isin(steps, [9, 19])) == 30.0
    assert find_interval(steps, steps == 9) == 32.0


def test_longer_intervals_of_checkpoints() -> None:
    """Half as often costs half; Young and Daly's interval is the square root of twice the save times the time between failures."""
    job, place = analysis(ONE_CLOCK, SAVES), at(period=5.0)
    gone = gain(job, propose(async_checkpoint, job, place))
    half = gain(job, propose(async_checkpoint, job, place, every="10"))
    assert half == pytest.approx(gone / 2, rel=0.01)
    young = propose(async_checkpoint, job, place, mtbf_hours="24")
    save_s = young.figures["save_s"]
    assert save_s == pytest.approx(1.5, rel=0.25)
    assert young.figures["young_daly_s"] == pytest.approx(np.sqrt(2 * save_s * 24 * 3600))
    assert f"save every {young.figures['young_daly_steps']:.0f} steps" in young.summary


def test_no_period_no_interval() -> None:
    """Where nothing shows how often it saves, no longer interval is priced."""
    refusal = async_checkpoint.propose(analysis(ONE_CLOCK, SAVES), FaultLocation(), {"every": "10"})
    assert isinstance(refusal, Refusal)


def test_only_the_named_card_is_mended() -> None:
    """The transfers of a worker whose card is fine are left alone: that gives nothing back."""
    spec, fault = FAULTS["fix-link"]
    job = analysis(spec, fault)
    assert gain(job, propose(fix_link, job, dp="1", pp="2")) > 0.05
    assert gain(job, propose(fix_link, job, dp="3", pp="0")) < 0.01
    everywhere = propose(fix_link, job)
    assert (
        isinstance(everywhere, Remedy)
        and everywhere.summary == "mend the network: transfers between stages are slow everywhere"
    )


@pytest.mark.parametrize("module", [expandable_segments, prefetch_input])
def test_these_have_no_settings(module: object) -> None:
    """What has no settings lists none."""
    assert not module.SETTINGS


@pytest.mark.parametrize(
    ("framework", "said"),
    [
        ("Megatron-LM 0.9", "Look. Megatron-LM: --a."),
        ("torch-gloo-1f1b", "Look."),
        ("DeepSpeed", "Look."),
        (None, "Look. Megatron-LM: --a. torchtitan: b."),
    ],
)
def test_only_the_recipe_of_the_jobs_framework(framework: str | None, said: str) -> None:
    """What everybody does comes first; a framework that has no recipe gets none of another."""
    job = dataclasses.replace(analysis(SPEC, SLOW).trace.job, framework=framework)
    assert choose_how({"megatron": "--a", "torchtitan": "b", "any": "Look"}, job) == said


def told(job: Analysis, **known: object) -> Analysis:
    """Give the same job, of which the metadata say more."""
    return dataclasses.replace(
        job, trace=dataclasses.replace(job.trace, job=dataclasses.replace(job.trace.job, **known))
    )


def test_a_loader_that_is_known_gets_as_many_workers_as_keep_up() -> None:
    """Six workers that leave the training waiting are too few: as many more as the steps become shorter."""
    job = analysis(SPEC, LOADS)
    n_needed = int(np.ceil(6 * job.gains.replayed_s / job.gains.clean_s))
    remedy = propose(prefetch_input, told(job, loader=Loader(6, 2, pin_memory=False)))
    assert remedy.figures["loader_workers_needed"] == n_needed > 6
    assert remedy.how.startswith("Now: num_workers=6, prefetch_factor=2, pin_memory=False. ")
    assert f"DataLoader(num_workers={n_needed}" in remedy.how
    assert "DataLoader(num_workers=4" in propose(prefetch_input, job).how


def test_segments_that_grow_already_are_no_fix() -> None:
    """Where the environment says that segments are expandable memory is full; other settings are told."""
    job = analysis(*FAULTS["expandable-segments"])
    said = "expandable_segments:True,garbage_collection_threshold:0.8"
    refused = expandable_segments.propose(told(job, alloc_conf=said), at(), {})
    assert isinstance(refused, Refusal) and "already" in refused.reason
    assert propose(expandable_segments, told(job, alloc_conf="expandable_segments:False")).how.startswith("Now: ")


def test_no_card_lies_between_workers_of_one_host() -> None:
    """On one host a slow link is one within it; on several it may be a card, a port or a cable."""
    job = analysis(*FAULTS["fix-link"])
    one, several = (propose(fix_link, told(job, n_hosts=n), dp="1", pp="2") for n in (1, 2))
    assert "within the host" in one.summary and "port" not in one.summary + one.how.replace("report", "")
    assert "card, port or cable" in several.summary
