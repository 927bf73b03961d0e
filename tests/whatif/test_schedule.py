"""Blocks rebuilt under another schedule: the recorded one gives the recorded steps, others what the generator says."""

import dataclasses
from pathlib import Path

import numpy as np
import pytest

from diagnose.faults.generate import draw_job, generate
from diagnose.faults.spec import JobSpec
from diagnose.model.change import Reschedule, Scale, Work
from diagnose.model.optype import Op
from diagnose.model.schedule import count_in_flight, order_launches, refuse_schedule
from diagnose.whatif import levels
from diagnose.whatif.graph import Events
from diagnose.whatif.recorded import read_recorded
from diagnose.whatif.schedule import rebuild
from tests.fixes.layered import Layered, draw_layered, look, measure_layered, run_otherwise, true_step_s
from tests.jobs import to_file
from tests.uneven_layers import UnevenLayers

ARTIFACT = Path(__file__).parents[3] / "shared" / "artifact"
EXACT = JobSpec(pp=4, dp=2, microbatches=8, steps=3, noise=0.0, launch_delay_s=0.0, seed=8)
EVEN = UnevenLayers(layers=(4, 4, 4, 4))


def stay(job: Layered) -> Reschedule:
    """Run as now."""
    n_virtual = job.analysis.breakdown.typical_s.shape[1]
    chunks = n_virtual // job.analysis.trace.n_stages
    return Reschedule("interleaved" if chunks > 1 else "1f1b", chunks, np.stack([np.eye(n_virtual)] * 2))


def spread(job: Layered, schedule: str, chunks: int) -> Reschedule:
    """Run another schedule, the work of all virtual stages spread evenly."""
    n_before, n_after = job.analysis.breakdown.typical_s.shape[1], chunks * job.analysis.trace.n_stages
    return Reschedule(schedule, chunks, np.full((2, n_after, n_before), 1.0 / n_after))


def error_of_staying(job: Layered) -> float:
    """Compare the rebuilt recorded schedule with the recorded graph."""
    assert all(rebuild(read_recorded(o), stay(job)) is not None for o in job.observed)
    return abs(job.price(stay(job)) / job.price() - 1.0)


@pytest.mark.parametrize("name", ["ST", "AR"])
def test_production_jobs_stay_the_same(name: str) -> None:
    """The recorded schedule, built anew, gives the replayed steps of both production jobs again."""
    path = ARTIFACT / f"trace-{name}.parquet"
    if not path.exists():
        pytest.skip(f"{path} is not there")
    assert error_of_staying(look(path)) < 1e-6


def test_generated_jobs_stay_the_same() -> None:
    """The recorded schedule, built anew, gives the replayed steps again, whatever the shape and the fault."""
    errors = []
    for i in range(5, 15):
        # What is rebuilt is 1F1B, as the job's own framework launches it.
        spec, faults, decoys = draw_job(5, i, without=("gpipe", "eager", "pairs", "lazy-recvs", "optimizer-barrier"))
        if spec.pp > 1:
            errors.append(error_of_staying(look(to_file(generate(spec, faults, decoys).trace))))
    assert len(errors) >= 8
    assert max(errors) < 0.005


@pytest.mark.parametrize("p2p", ["blocking", "asynchronous"])
@pytest.mark.parametrize(
    ("schedule", "chunks"), [("gpipe", 1), ("zero-bubble", 1), ("interleaved", 2), ("interleaved", 4)]
)
def test_without_noise_other_schedules_are_exact(p2p: str, schedule: str, chunks: int) -> None:
    """Where nothing varies, the rebuilt schedule takes as long as the generator says."""
    spec = dataclasses.replace(EXACT, p2p=p2p)
    job = measure_layered(spec, EVEN)
    truth = true_step_s(*run_otherwise(spec, EVEN, schedule, chunks))
    change = stay(job) if chunks == 1 else spread(job, schedule, chunks)
    assert job.price(dataclasses.replace(change, schedule=schedule)) == pytest.approx(truth, rel=2e-3)


@pytest.mark.parametrize(("schedule", "chunks"), [("gpipe", 1), ("zero-bubble", 1), ("1f1b", 1), ("interleaved", 3)])
def test_work_stays_the_same(schedule: str, chunks: int) -> None:
    """Whatever the schedule, the seconds of all computes add up to what they were."""
    spec = JobSpec(pp=3, vpp=2, dp=2, microbatches=6, steps=8, seed=4)
    job = measure_layered(spec, UnevenLayers(layers=(3,) * 6))
    (observed,) = job.observed
    rebuilt = rebuild(read_recorded(observed), spread(job, schedule, chunks))
    assert rebuilt is not None
    own, _ = rebuilt.times(observed.own, observed.delay, spread(job, schedule, chunks))
    before = sum(float(observed.own[n].mean()) for n in np.flatnonzero(observed.block.nodes.op <= Op.BACKWARD))
    assert sum(float(own[node].mean()) for node in rebuilt.computes[rebuilt.computes >= 0]) == pytest.approx(
        before, rel=5e-3
    )


@pytest.mark.parametrize("p2p", ["blocking", "asynchronous"])
@pytest.mark.parametrize(
    ("schedule", "chunks", "pieces"), [("1f1b", 1, 2), ("zero-bubble", 1, 1), ("interleaved", 2, 1)]
)
def test_levels_of_what_is_laid_out_anew(
    p2p: str, schedule: str, chunks: int, pieces: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A graph that was written has each operation once, after all it waits for, and takes as long by levels as by a walk."""
    job = measure_layered(dataclasses.replace(JobSpec(pp=4, dp=2, microbatches=8, steps=3, seed=5), p2p=p2p), EVEN)
    (observed,) = job.observed
    change = dataclasses.replace(spread(job, schedule, chunks), pieces=pieces)
    rebuilt = rebuild(read_recorded(observed), change)
    assert rebuilt is not None
    graph = rebuilt.graph
    assert sorted(graph.moves.completes.flat.tolist()) == list(range(graph.n_nodes))
    after = graph.moves.find(graph.moves.completes, graph.n_nodes)[graph.sources.flat]
    assert (after < graph.moves.find(graph.moves.members, graph.n_nodes)[graph.sources.row_of()]).all()
    monkeypatch.setattr(levels, "MIN_EVENTS", np.inf)
    walked = job.removal.price([change])
    monkeypatch.setattr(levels, "MIN_EVENTS", 0)
    assert (job.removal.price([change]) == walked).all()


def test_transfers_of_some_types_alone_cannot_be_laid_out_anew() -> None:
    """Where only what backwards send is recorded, nobody knows how long other transfers would take."""
    job = measure_layered(EXACT, EVEN)
    (observed,) = job.observed
    recorded = read_recorded(observed)
    assert recorded is not None
    assert (recorded.moves >= 0).any(axis=(1, 2)).all()
    moves = observed.graph.moves
    forwards = np.isin(observed.block.nodes.op, (Op.FORWARD_SEND, Op.FORWARD_RECV))
    apart = [
        event._replace(members=event.members[:1]) if forwards[list(event.members)].any() else event
        for event in moves.rows()
    ]
    without = dataclasses.replace(observed.graph, moves=Events.of(apart))
    assert read_recorded(dataclasses.replace(observed, graph=without)) is None


def test_it_comes_after_all_other_changes() -> None:
    """Half of the work under another schedule: nearly half of its pipeline."""
    job = measure_layered(JobSpec(pp=4, dp=2, microbatches=8, steps=8, seed=12), EVEN)
    change = dataclasses.replace(stay(job), schedule="zero-bubble")
    half = (Work(np.full((1, 1, 1, 1, 1), 0.5)), change)
    also = (Scale(frozenset({int(Op.FORWARD), int(Op.BACKWARD)}), np.full((1, 1, 1), 0.5)), change)
    assert job.price(*half) == pytest.approx(job.price(*also), rel=1e-9)
    assert 0.5 < job.price(*half) / job.price(change) < 0.6


def test_interleaving_needs_whole_groups_of_microbatches() -> None:
    """A block that cannot run a schedule stays as it is."""
    job = measure_layered(JobSpec(pp=4, dp=2, microbatches=6, steps=8, seed=12), EVEN)
    assert rebuild(read_recorded(job.observed[0]), spread(job, "interleaved", 2)) is None
    assert job.price(spread(job, "interleaved", 2)) == job.price()


@pytest.mark.parametrize(
    ("schedule", "chunks", "first", "last"),
    [("1f1b", 1, 4.0, 1.0), ("gpipe", 1, 8.0, 8.0), ("zero-bubble", 1, 4.0, 4.0), ("interleaved", 2, 5.5, 2.5)],
)
def test_memory_in_flight(schedule: str, chunks: int, first: float, last: float) -> None:
    """Four stages, eight microbatches: what the first and the last stage hold, as the papers say."""
    sizes = {"n_stages": 4, "chunks": chunks, "n_microbatches": 8}
    held = [count_in_flight(order_launches(schedule, stage, **sizes), chunks) for stage in (0, 3)]
    assert held == [first, last]


@pytest.mark.parametrize(
    ("schedule", "sizes", "why"),
    [
        ("1f1b", (1, 1, 4), "one pipeline stage"),
        ("gpipe", (2, 2, 4), "one model chunk"),
        ("interleaved", (2, 1, 4), "at least 2"),
        ("interleaved", (4, 2, 6), "multiple of 4"),
        ("gippe", (2, 1, 4), "expected one of"),
    ],
)
def test_what_cannot_run_is_refused(schedule: str, sizes: tuple[int, int, int], why: str) -> None:
    """Each refusal says what is missing."""
    n_stages, chunks, n_microbatches = sizes
    reason = refuse_schedule(schedule, n_stages=n_stages, chunks=chunks, n_microbatches=n_microbatches)
    assert reason is not None and why in reason


def speedup_errors(schedule: str, jobs: range) -> list[float]:
    """Compare predicted speedups with the truth of running the job so; only jobs that can."""
    errors = []
    for i in jobs:
        spec, fault = draw_layered(i)
        chunks = (3 if spec.vpp == 2 else 2) if schedule == "interleaved" else 1
        job = measure_layered(spec, fault)
        model = job.analysis.breakdown.typical_s
        runs = refuse_schedule(schedule, n_stages=spec.pp, chunks=chunks, n_microbatches=spec.microbatches) is None
        if not runs or (schedule == "1f1b" and spec.vpp == 1):
            continue
        share = share_out(fault, spec.pp * chunks) if model.shape[1] != spec.pp * chunks else stay(job).share
        truth = true_step_s(spec, fault) / true_step_s(*run_otherwise(spec, fault, schedule, chunks))
        errors.append(abs(job.price() / job.price(Reschedule(schedule, chunks, share)) / truth - 1.0))
    return errors


def share_out(fault: UnevenLayers, n_after: int) -> np.ndarray:
    """Split the layers evenly over other virtual stages, embedding and loss at the ends: in tenths of a layer, one by one."""
    found = []
    for first, last in zip(fault.first, fault.last, strict=True):
        total, before = sum(fault.layers), len(fault.layers)
        share = np.zeros((n_after, before))
        slices = np.repeat(np.arange(before), np.array(fault.layers) * 420)
        np.add.at(share, (np.arange(len(slices)) * n_after // len(slices), slices), total / len(slices))
        share[0, 0] += first
        share[-1, -1] += last
        found.append(share / share.sum(axis=0))
    return np.stack(found)


@pytest.mark.parametrize(("n_jobs", "least"), [(20, 1), pytest.param(200, 20, marks=pytest.mark.benchmark)])
@pytest.mark.parametrize("schedule", ["1f1b", "interleaved", "gpipe", "zero-bubble"])
def test_speedups_are_those_of_truly_running_so(schedule: str, n_jobs: int, least: int) -> None:
    """On generated jobs the predicted speedup is that of the simulation, within 1% mostly and 3% nearly always; it is printed."""
    errors = speedup_errors(schedule, range(n_jobs))
    print(schedule, len(errors), "median, 90%, worst:", np.quantile(errors, [0.5, 0.9, 1.0]).round(5))
    assert len(errors) >= least
    assert np.median(errors) <= 0.01 and np.quantile(errors, 0.9) <= 0.03
