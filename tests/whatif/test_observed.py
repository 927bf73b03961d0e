"""The graph that the times show: it replays what was recorded, and knows batches and barriers that no row records."""

import dataclasses
import itertools
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

from diagnose.faults.checkpoint_stall import CheckpointStall
from diagnose.faults.data_loading import DataLoading
from diagnose.faults.fault import Fault
from diagnose.faults.garbage_collection import GarbageCollection
from diagnose.faults.generate import generate, random_faults
from diagnose.faults.network_fault import NetworkFault
from diagnose.faults.sequence_imbalance import SequenceImbalance
from diagnose.faults.spec import JobSpec, random_spec
from diagnose.faults.worker_fault import WorkerFault
from diagnose.faults.world import draw_world
from diagnose.model.change import Remove
from diagnose.model.optype import Op
from diagnose.whatif.circles import drop_circles
from diagnose.whatif.graph import Event, Events
from diagnose.whatif.replay import launch_delays, replay
from tests.jobs import to_table
from tests.judge.cases import Measured, make, measure, measured, measured_file

REAL = [
    "checkpoint",
    "data-gap",
    "gc-rows",
    "healthy-pp2dp4-b",
    "healthy-pp4dp2-b",
    "net-nic",
    "stage-vocab",
    "worker-quota",
]
SEEDS = range(40)
#: As near as the predicted gain of removing a worker must come to the gain of truly removing it.
GAIN_TOLERANCE = 0.02


def assert_replays(m: Measured, about: object = "") -> None:
    """Replay own times with launch delays: every step ends when it ended."""
    for o in m.observed:
        replayed = np.broadcast_to(replay(o.graph, o.own, o.delay), (len(o.block.steps), 1))[:, 0]
        np.testing.assert_allclose(replayed, o.block.end_s.max(axis=(0, 2)), rtol=1e-9, err_msg=str(about))


@cache
def random_measured(seed: int) -> tuple[JobSpec, Measured]:
    """Measure a random job, healthy or faulty."""
    rng = np.random.default_rng([3, seed])
    spec = random_spec(rng)
    return spec, measure(generate(spec, random_faults(spec, rng)).trace)


def n_batches(m: Measured) -> int:
    """Count the batches of a job's graph."""
    return sum(bool(event.awaits) for o in m.observed for event in o.graph.events)


def barriers(m: Measured) -> list[tuple[int, int]]:
    """List the learned waits as (type, stage) of who waits."""
    return [
        (int(o.block.nodes.op[node]), int(o.block.nodes.stage[node])) for o in m.observed for node in o.graph.barriers
    ]


# ------------------------------------------------------------------------------------------ replay


@pytest.mark.parametrize("name", ["AR", "ST"])
def test_production_traces_are_replayed(shared: Path, name: str) -> None:
    """Every step of both production traces ends in the replay when it ended."""
    assert_replays(measured_file(shared / "artifact" / f"trace-{name}.parquet"))


@pytest.mark.parametrize("name", REAL)
def test_real_jobs_are_replayed(shared: Path, name: str) -> None:
    """Every step of the real jobs ends in the replay when it ended."""
    assert_replays(measured_file(shared / "real" / f"{name}.parquet"))


def test_shapes_are_replayed(shared: Path) -> None:
    """Every step of the published shapes, interleaved, overlapped, without pipeline or data parallelism, is replayed."""
    for i in range(18):
        assert_replays(measured_file(shared / "artifact" / "shapes" / f"shape-{i}.parquet"), f"shape {i}")


@pytest.mark.parametrize("seeds", [SEEDS[i : i + 10] for i in range(0, 40, 10)], ids=str)
def test_generated_jobs_are_replayed(seeds: range) -> None:
    """Random jobs, healthy and faulty, are replayed to the end of every step."""
    for seed in seeds:
        spec, m = random_measured(seed)
        assert_replays(m, spec)
        assert m.analysis.fidelity.replay_error < 1e-9


@pytest.mark.parametrize(
    "kind", ["p2p == 'blocking'", "p2p == 'asynchronous'", "vpp > 1", "separate", "dp == 1", "pp == 1", "rank_0_waits"]
)
def test_generated_jobs_cover(kind: str) -> None:
    """Each kind of job is among the random ones."""
    specs = [dataclasses.asdict(random_measured(seed)[0]) for seed in SEEDS]
    assert any(eval(kind, {}, spec) for spec in specs)


# ------------------------------------------------------------------------------------------ batches


@pytest.mark.parametrize("p2p", ["blocking", "asynchronous"])
def test_batches_are_found_where_calls_block(p2p: Any) -> None:
    """Among the random jobs, batches are found in all with blocking calls that have any, and in none without."""
    for seed in SEEDS:
        spec, m = random_measured(seed)
        if spec.p2p != p2p:
            continue
        steady = spec.pp > 1 and spec.microbatches > 1  # else no send stands beside a recv
        assert (n_batches(m) > 0) == (p2p == "blocking" and steady), spec


@pytest.mark.parametrize("p2p", ["blocking", "asynchronous"])
@pytest.mark.parametrize("place", [(1, 0), (2, 1), (0, 3)], ids=str)
@pytest.mark.parametrize("vpp", [1, 2])
def test_the_gain_is_right_however_calls_block(p2p: Any, place: tuple[int, int], vpp: int) -> None:
    """Removing a slow worker gives back what it truly cost, in blocking and asynchronous jobs, interleaved or not."""
    spec = JobSpec(pp=4, dp=4, vpp=vpp, microbatches=8, steps=8, p2p=p2p, seed=21)
    assert_gain(spec, WorkerFault(places=(place,), slowdown=1.8))


def assert_gain(spec: JobSpec, fault: WorkerFault) -> None:
    """Compare the predicted gain of removing slow workers with that of making the job without them."""
    truth = generate(spec, [fault]).truth.faults[0].recoverable
    found = measured(spec, fault).gains.recoverable("worker")
    assert found == pytest.approx(truth, abs=GAIN_TOLERANCE), spec


@pytest.mark.parametrize("within", [0.0, 0.6])
@pytest.mark.parametrize(("pp", "p2p"), [(1, "blocking"), (4, "blocking"), (4, "asynchronous")])
def test_the_gain_is_right_where_parameters_are_gathered_anew(pp: int, p2p: Any, within: float) -> None:
    """Each gather is launched beside the compute before its own, each reduction behind or within a backward; all are replayed."""
    spec = JobSpec(pp=pp, dp=4, microbatches=6, steps=12, p2p=p2p, gather_s=0.01, scatters_within=within, seed=24)
    assert_gain(spec, WorkerFault(places=((1, 0),), slowdown=2.0))
    job = generate(spec, [GarbageCollection()])
    found = measure(job.trace).gains.recoverable("gc-pause")
    assert found == pytest.approx(job.truth.faults[0].recoverable, abs=GAIN_TOLERANCE / 2)


@pytest.mark.parametrize("pp", [1, 4])
@pytest.mark.parametrize("within", [0.0, 0.6])
def test_a_slower_network_is_felt_where_parameters_are_gathered_anew(pp: int, within: float) -> None:
    """Gathers that get longer than computes are waited for each time: what they cost is what their component gives back."""
    spec = JobSpec(pp=pp, dp=4, microbatches=6, steps=12, gather_s=0.02, scatters_within=within, seed=24)
    job = generate(spec, [NetworkFault(scope="group", slowdown=8.0, onset=6)])
    found = measure(job.trace).gains.recoverable("transfer")
    assert found == pytest.approx(job.truth.faults[0].recoverable, abs=GAIN_TOLERANCE)


@pytest.mark.parametrize("within", [0.0, 0.6])
def test_the_first_forward_waits_for_its_own_gather_alone(within: float) -> None:
    """Where one stage's network is slow the next gathers end after its first forward has begun; in other steps before."""
    spec = JobSpec(pp=2, dp=4, microbatches=6, steps=12, gather_s=0.005, scatters_within=within, seed=24)
    job = generate(spec, [NetworkFault(scope="group", stage=1, slowdown=12.0, onset=4)])
    found = measure(job.trace).gains
    assert found.replayed_s == pytest.approx(found.recorded_s, rel=0.001)
    assert found.recoverable("transfer") == pytest.approx(job.truth.faults[0].recoverable, abs=GAIN_TOLERANCE)


def test_recvs_that_began_long_before_a_late_gather_do_not_wait_for_it() -> None:
    """A worker that collects between steps gathers late, in few steps, while its recvs are posted: they never waited."""
    spec = JobSpec(pp=8, vpp=2, dp=2, steps=38, forward_s=1e-3, p2p="asynchronous", averages_loss=False, seed=16)
    spec = dataclasses.replace(spec, transfer_s=6e-6, collective_s=9e-4, clip="stages")
    pauses = GarbageCollection(
        pause_s=0.075, between_steps=True, inside_share=0.0, worker_period_steps=34.0, records=False, growth=0.9
    )
    assert_replays(measured(spec, pauses))


@pytest.mark.parametrize("pp", [1, 4])
def test_gathers_at_the_end_wait_for_the_last_optimizer(pp: int) -> None:
    """Each rank saves within its optimizer for as long as it takes, and all gather behind a barrier, when the last is through."""
    spec = JobSpec(pp=pp, dp=8, microbatches=4, steps=14, gathers_last=True, optimizer_waits=True, seed=28)
    job = generate(spec, [CheckpointStall(period_steps=6, where="inside", duration_s=20.0, spread=0.2, recorded=False)])
    gains, truth = measure(job.trace).gains, job.truth.faults[0].recoverable
    assert truth > 0.3 and gains.recoverable("end-delay") == pytest.approx(truth, abs=GAIN_TOLERANCE)


@pytest.mark.parametrize(("pp", "vpp"), [(1, 1), (4, 1), (2, 2)])
@pytest.mark.parametrize(
    "fault", [WorkerFault(places=((1, 0),), slowdown=1.5), NetworkFault(scope="group", slowdown=9.0, onset=6)]
)
def test_the_gain_is_right_where_gathers_end_the_step(pp: int, vpp: int, fault: Any) -> None:
    """Parameters are gathered when the optimizer is through: the step lasts until then, and gets shorter with these gathers."""
    spec = JobSpec(pp=pp, vpp=vpp, dp=4, microbatches=8, steps=12, gathers_last=True, collective_s=0.02, seed=27)
    job = generate(spec, [fault])
    found = measure(job.trace)
    component = "worker" if isinstance(fault, WorkerFault) else "transfer"
    assert found.gains.recoverable(component) == pytest.approx(job.truth.faults[0].recoverable, abs=GAIN_TOLERANCE)


@pytest.mark.parametrize(
    ("fault", "component"),
    [
        (WorkerFault(places=((1, 0),), slowdown=2.0), "worker"),
        (DataLoading(wait_ratio=4.0, probability=1.0, every_microbatch=True), "input-delay"),
    ],
    ids=["slow worker", "loader"],
)
@pytest.mark.parametrize("schedule", ["1f1b", "looped"])
def test_the_gain_is_right_where_recvs_are_posted_ahead(schedule: Any, fault: Fault, component: str) -> None:
    """Forwards that wait for a slow stage are asked for as the compute before begins, and wait for what that compute waited for.

    A compute that waits for its input begins later, and so does every recv that is asked for as it begins.
    """
    spec = JobSpec(pp=4, vpp=2, dp=2, microbatches=8, steps=10, p2p="asynchronous", schedule=schedule, seed=26)
    job = generate(spec, [fault])
    rows, worker = job.trace.to_pandas().astype({"optype": str}), ["step", "dp_rank", "stage"]
    computes = rows[rows.optype.isin(["forward-compute", "backward-compute"])].sort_values([*worker, "start_ts"])
    computes["before_s"] = computes.groupby(worker).start_ts.shift()
    waits = (rows.optype == "forward-recv") & (rows.duration > 3 * spec.transfer_s)
    if component == "input-delay":
        waits = rows.optype.str.endswith("recv")
    own = rows.assign(optype=rows.optype.str.replace("recv", "compute"))
    before_s = own.merge(computes, "left", [*worker, "optype", "seq_id"])["before_s"]
    start_s = np.where(waits, np.fmin(before_s, rows.start_ts), rows.start_ts).astype("float32")
    assert (start_s < rows.start_ts).sum() > 200
    rows["duration"] += rows.start_ts - start_s
    rows["start_ts"] = start_s
    table = pa.Table.from_pandas(rows, preserve_index=False).replace_schema_metadata(job.trace.schema.metadata)
    found = measure(table).gains.recoverable(component)
    assert found == pytest.approx(job.truth.faults[0].recoverable, abs=GAIN_TOLERANCE)


@pytest.mark.parametrize("microbatches", [1, 3])
def test_a_reduction_begins_when_as_much_of_the_last_backward_is_done(microbatches: int) -> None:
    """It begins within the last backward, on a slow worker as much later as that is longer."""
    spec = JobSpec(pp=1, dp=4, microbatches=microbatches, steps=8, scatters_within=0.5, collective_s=0.05, seed=25)
    assert_gain(spec, WorkerFault(places=((1, 0),), slowdown=2.0))


def test_buckets_follow_each_other_on_a_coarse_clock() -> None:
    """Reductions of four buckets, one right behind the other within the last backward, in times of whole milliseconds."""
    rng, rows = np.random.default_rng(5), []
    for step, rank in np.ndindex(40, 2):
        ends_s = np.cumsum([0.1, 0.2, *rng.uniform(0.03, 0.05, 4)])
        ends_s[2:] -= 0.11
        spans = [("forward-compute", 0.0, ends_s[0]), ("backward-compute", ends_s[0], ends_s[1])]
        spans += [("grads-reduce-scatter", a, b) for a, b in itertools.pairwise([ends_s[1] - 0.11, *ends_s[2:]])]
        spans.append(("optimizer", max(ends_s[1], ends_s[-1]), max(ends_s[1], ends_s[-1]) + 0.01))
        for n, (name, start_s, end_s) in enumerate(spans):
            ms = np.floor(1000 * start_s), np.rint(1000 * (end_s - start_s))
            rows.append((step, rank, 0, name, ms[0] / 1000, ms[1] / 1000, max(n - 2, 0) % 4, 0 if n < 2 else -1, -1))
    columns = ["step", "dp_rank", "stage", "optype", "start_ts", "duration", "seq_id", "mb_id", "mc"]
    sizes = {"dp_size": 2, "pp_size": 1, "tp_size": 1, "cp_size": 1, "vpp_size": 1, "world_size": 2, "job_id": "ms"}
    found = measure(to_table(pd.DataFrame(rows, columns=columns), sizes))
    graph, op = found.observed[0].graph, found.observed[0].block.nodes.op
    scatters = np.flatnonzero(op == Op.REDUCE_SCATTER).tolist()
    assert all(before in graph.waits[after] for before, after in itertools.pairwise(scatters))
    assert found.diagnosis.causes == ()


# ------------------------------------------------------------------------------------------ hidden barriers


@pytest.mark.parametrize("place", [(0, 0), (1, 1), (2, 3), (3, 3)], ids=str)
@pytest.mark.parametrize(
    ("averages_loss", "rank_0_waits"), [(True, False), (False, True), (True, True), (False, False)]
)
def test_hidden_waits_are_learned(place: tuple[int, int], averages_loss: bool, rank_0_waits: bool) -> None:
    """Where loss is averaged, or rank 0 waits, that wait becomes an edge of layernorm, and the gain is the true one."""
    spec = JobSpec(pp=4, dp=4, microbatches=8, steps=8, averages_loss=averages_loss, rank_0_waits=rank_0_waits, seed=22)
    fault = WorkerFault(places=(place,), slowdown=2.0)
    assert_gain(spec, fault)
    found = barriers(measured(spec, fault))
    assert {op for op, _ in found} <= {Op.LAYERNORM}
    if averages_loss and place[1] == 3:
        assert (Op.LAYERNORM, 3) in found
    if not averages_loss and not rank_0_waits:
        assert found == []


def test_random_slow_workers_beside_hidden_waits() -> None:
    """Over random jobs with hidden waits the predicted gain of removing one slow worker is the true one on average."""
    errors = []
    for seed in range(16):
        rng = np.random.default_rng([4, seed])
        spec = dataclasses.replace(random_spec(rng), averages_loss=True, rank_0_waits=bool(seed % 2), steps=10)
        spec = dataclasses.replace(spec, dp=max(spec.dp, 3))
        place = (int(rng.integers(spec.dp)), int(rng.integers(spec.pp)))
        job = generate(spec, [WorkerFault(places=(place,), slowdown=float(rng.uniform(1.3, 3.0)))])
        truth = job.truth.faults[0].recoverable
        errors.append(abs(measure(job.trace).gains.recoverable("worker") - truth))
    assert np.mean(errors) < GAIN_TOLERANCE / 4
    assert np.max(errors) < GAIN_TOLERANCE, np.argmax(errors)


def test_the_barrier_of_the_production_trace_is_found(shared: Path) -> None:
    """Without AR's slow worker its step would take about half as long: T / T' - 1 is 0.9, not the 0.05 without barriers."""
    m = measured_file(shared / "artifact" / "trace-AR.parquet")
    with_it, without = m.removal.step_times([]).sum(), m.removal.step_times(["worker"]).sum()
    assert 0.85 < with_it / without - 1.0 < 1.1
    assert {op for op, _ in barriers(m)} == {Op.LAYERNORM}


def test_without_learned_waits_the_gain_is_lost(shared: Path) -> None:
    """In the paper's graph of AR most of that time is launch delay, so removing the slow worker would gain next to nothing."""
    m = measured_file(shared / "artifact" / "trace-AR.parquet")
    p = m.prepared[0]
    delay = launch_delays(p.block, p.graph)
    _, own, _ = m.removal.change_steps(0, [Remove("worker")], slice(0, len(m.observed[0].block.steps)))
    computes = np.isin(p.block.nodes.op, (Op.FORWARD, Op.BACKWARD))
    mended = [own[node] if computes[node] else p.own[node] for node in range(len(p.own))]
    gain = replay(p.graph, p.own, delay).sum() / replay(p.graph, mended, delay).sum() - 1.0
    assert gain < 0.3


@pytest.mark.parametrize("starts_together", [True, False])
def test_who_begins_a_step_late_keeps_the_others_waiting(starts_together: bool) -> None:
    """Where all begin together, behind recvs that were posted before: the wait leaves with the save of rank 0."""
    spec = JobSpec(pp=2, vpp=2, dp=3, steps=12, p2p="asynchronous", gathers_last=True, seed=25)
    spec = dataclasses.replace(spec, starts_together=starts_together)
    fault = CheckpointStall(
        period_steps=4, duration_s=10.0 * spec.forward_s, first_rank_only=True, where="before", recorded=False
    )
    job = generate(spec, [fault])
    m = measure(job.trace)
    assert ((Op.FORWARD, 0) in barriers(m)) == starts_together
    assert abs(m.gains.recoverable("start-delay") - job.truth.faults[0].recoverable) < GAIN_TOLERANCE


# ------------------------------------------------------------------------------------------ what must not be learned


@pytest.mark.parametrize("p2p", ["blocking", "asynchronous"])
def test_a_late_worker_makes_no_barrier_of_everything(p2p: Any) -> None:
    """Beside a worker that keeps all others waiting no compute waits for another worker's compute by a learned edge."""
    spec = JobSpec(pp=4, dp=2, microbatches=8, steps=8, p2p=p2p, averages_loss=False, seed=23)
    m = measured(spec, WorkerFault(places=((1, 1),), slowdown=3.0))
    assert barriers(m) == []


def test_long_documents_make_no_barrier() -> None:
    """Where another rank is late in each step nothing is learned that does not hold in all steps."""
    spec = JobSpec(pp=4, dp=4, microbatches=8, steps=12, averages_loss=False, seed=24)
    assert barriers(measured(spec, SequenceImbalance(quadratic_share=0.6))) == []


#: Fewer microbatches than stages: the first stages send all their forwards before they receive the first gradient.
FEW_MICROBATCHES = JobSpec(pp=8, dp=8, microbatches=2, steps=20, forward_s=0.002, seed=18)


@pytest.mark.parametrize(
    ("fault", "component"),
    [
        (GarbageCollection(pause_s=0.07, worker_period_steps=5.0, records=True), "gc-pause"),
        (NetworkFault(scope="link", dp_rank=5, stage=0, slowdown=1.0, stall_s=0.06, share=0.07), "transfer"),
    ],
    ids=["collections", "flaps"],
)
def test_pauses_in_short_pipelines_give_back_what_they_cost(fault: Fault, component: str) -> None:
    """A recv alone waits for the send before it though batches elsewhere do not; a barrier of two groups waits for both."""
    (true,) = make(FEW_MICROBATCHES, fault).truth.faults
    assert true.recoverable > 0.1
    assert measured(FEW_MICROBATCHES, fault).gains.recoverable(component) == pytest.approx(true.recoverable, abs=0.01)


def test_a_worker_that_waits_for_two_groups() -> None:
    """What waits for its own ranks in most steps, and for all dp ranks in few, does both: a flap is worth what it costs."""
    spec = JobSpec(
        pp=8,
        dp=32,
        microbatches=2,
        steps=21,
        forward_s=1.8e-3,
        transfer_s=7e-5,
        collective_s=2.7e-4,
        optimizer_s=4e-5,
        launch_delay_s=1.2e-5,
        host_gap_s=1.8e-4,
        noise=1.4,
        rank_0_waits=True,
        drift=0.02,
        seed=146661175,
    )
    flap = NetworkFault(scope="link", dp_rank=29, stage=0, slowdown=1.0, stall_s=0.063, share=0.07, onset=11)
    (true,) = make(spec, flap).truth.faults
    assert true.recoverable > 0.1
    assert measured(spec, flap).gains.recoverable("transfer") == pytest.approx(true.recoverable, abs=0.01)


@pytest.mark.parametrize("pp", [1, 2, 4])
@pytest.mark.parametrize("kind", ["pauses", "worker"])
def test_gradients_are_reduced_once_their_backward_has_begun(kind: str, pp: int) -> None:
    """Reductions that begin within backwards begin sooner if these do: all ranks wait in them for who paused before."""
    spec = JobSpec(pp=pp, dp=8, microbatches=6, steps=24, gather_s=0.02, scatters_within=0.12, p2p="lazy", seed=3)
    pauses = GarbageCollection(pause_s=2.5 * spec.forward_s, worker_period_steps=8)
    fault = pauses if kind == "pauses" else WorkerFault(places=((3, 0),), slowdown=1.5)
    (true,) = make(spec, fault).truth.faults
    assert true.recoverable > 0.1
    (said,) = measured(spec, fault).diagnosis.causes
    assert (said.cause, said.recoverable) == (true.cause, pytest.approx(true.recoverable, abs=0.016))


def blur(world: str, seed: int, deviation_s: float) -> pa.Table:
    """Make a healthy job whose starts are told wrong by so much."""
    rng = np.random.default_rng([seed, sum(map(ord, world))])
    table = generate(draw_world(rng, only=world, max_rows=3000)).trace
    start_s = np.asarray(table["start_ts"].to_numpy(), dtype=np.float64)
    start_s = start_s + rng.normal(0.0, deviation_s, len(start_s))
    return table.set_column(table.column_names.index("start_ts"), "start_ts", pa.array(start_s))


@pytest.mark.parametrize(("world", "seed", "deviation_s"), [("interleaved", 2, 1e-4), ("streams", 4, 1e-4)])
def test_what_is_launched_beside_computes_makes_no_circle(world: str, seed: int, deviation_s: float) -> None:
    """Timestamps that vary by more than transfers take leave it open which comes first: no wait need be left out for that."""
    assert not any(o.n_dropped for o in measure(blur(world, seed, deviation_s)).observed)


@pytest.mark.parametrize(("world", "seed"), [("shards", 1), ("overlapped-last", 6)])
def test_of_waits_in_a_circle_one_is_left_out(world: str, seed: int) -> None:
    """All others stay: the replay takes as long as the job did. It is told."""
    m = measure(blur(world, seed, 1e-3))
    assert [o.n_dropped for o in m.observed] == [1]
    assert m.gains.replayed_s == pytest.approx(m.gains.recorded_s, rel=0.001)
    assert [w[:48] for w in m.diagnosis.warnings if "circle" in w] == [
        "a wait that the times seem to show would close a"
    ]
    assert (m.diagnosis.verdict, m.diagnosis.causes) == ("healthy", ())


def test_waits_in_circles_are_left_out_alone() -> None:
    """Of random waits none that is known is left out, none outside of all circles, and what is left is in order."""
    rng = np.random.default_rng(3)
    n_circular = 0
    for _ in range(300):
        n = int(rng.integers(2, 12))
        waits: list[set[int]] = [{int(s) for s in rng.integers(0, n, 2) if s != node} for node in range(n)]
        known = [{s for s in of if s < node and rng.random() < 0.5} for node, of in enumerate(waits)]
        before = [set(of) for of in waits]
        events = Events.of([Event((node,), across_dp=False, completes=(node,)) for node in range(n)])
        n_dropped = drop_circles(waits, known, events, (), rng.random(n))
        gone = [(s, node) for node in range(n) for s in before[node] - waits[node]]
        n_circular += n_dropped > 0
        assert len(gone) == n_dropped and not any(s in known[node] for s, node in gone)
        assert not _in_circle(waits) and {node for wait in gone for node in wait} <= _in_circle(before)
    assert 50 < n_circular < 300


def _in_circle(waits: list[set[int]]) -> set[int]:
    """List what waits for itself, over others."""
    reach = np.zeros((len(waits), len(waits)), dtype=bool)
    for node, of in enumerate(waits):
        reach[node, list(of)] = True
    for middle in range(len(waits)):
        reach |= reach[:, [middle]] & reach[middle]
    return set(np.flatnonzero(reach.diagonal()).tolist())
