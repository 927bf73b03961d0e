"""Worlds of random jobs: every feature can be had and left out, and does to a job what its name says."""

import dataclasses

import numpy as np
import pytest

from diagnose.errors import UsageError
from diagnose.faults.compute_order import order_computes
from diagnose.faults.data_loading import DataLoading
from diagnose.faults.generate import draw_job, generate
from diagnose.faults.inputs import Inputs, Pause, draw_inputs
from diagnose.faults.programme import build_programme
from diagnose.faults.simulate import Times, simulate
from diagnose.faults.spec import P2P, JobSpec, Schedule, count_rows
from diagnose.faults.strength import estimate_step
from diagnose.faults.world import LATER, MOST_COST, WORLDS, draw_world, name_world
from diagnose.model.optype import NAMES, Op

SMALL = JobSpec(pp=3, dp=3, microbatches=5, steps=4, seed=3)
#: Nothing varies, and nothing but computes takes time.
EXACT = dataclasses.replace(
    SMALL,
    noise=0.0,
    forward_s=1.0,
    backward_ratio=2.0,
    transfer_s=0.0,
    collective_s=0.0,
    optimizer_s=0.0,
    host_gap_s=0.0,
)


def run(spec: JobSpec, *, late_s: float = 0.0) -> tuple[Inputs, Times]:
    """Run a job in which dp rank 1 waits for its first batch."""
    inputs = draw_inputs(spec)
    first = np.flatnonzero(inputs.programme.is_op(Op.FORWARD) & (inputs.programme.stage == 0))[0]
    seconds = np.zeros(inputs.work_s.shape)
    seconds[first, :, 1] = late_s
    inputs = inputs.with_pauses(Pause(Op.DATA_LOAD, seconds, "before", recorded=False))
    return inputs, simulate(inputs)


def starts(spec: JobSpec, op: Op, stage: int, *, late_s: float = 0.0) -> list[float]:
    """List when each dp rank starts its first operation of a type in the first step."""
    inputs, times = run(spec, late_s=late_s)
    task = np.flatnonzero(inputs.programme.is_op(op) & (inputs.programme.stage == stage))[0]
    return [round(x, 3) for x in times.start_s[task, 0].tolist()]


@pytest.mark.parametrize("name", list(WORLDS))
def test_every_feature_can_be_had_and_left_out(name: str) -> None:
    """A job that is asked for with a feature has it, and one without has not; it can be made, and its rows are counted."""
    for seed in range(3):
        spec = draw_world(np.random.default_rng(seed), only=name, max_rows=4000)
        assert name in name_world(spec)
        assert name not in name_world(draw_world(np.random.default_rng(seed), without=(name,), max_rows=4000))
        job = generate(spec)
        assert name in job.truth.world
        if spec.members == "one" and not spec.lost_share and not spec.merges_weights:
            assert job.trace.num_rows == count_rows(spec)


def test_every_feature_occurs() -> None:
    """Of 200 random worlds each feature is in at least three, and in none everything; but for schedules only drawn by name."""
    worlds = [name_world(draw_world(np.random.default_rng([8, i]))) for i in range(200)]
    by_name = {"zero-bubble", *LATER}
    n_jobs = {name: sum(name in world for world in worlds) for name in WORLDS if name not in by_name}
    assert min(n_jobs.values()) >= 3, n_jobs
    assert max(n_jobs.values()) < 175, n_jobs


def test_a_world_and_kinds_are_left_out_of_jobs() -> None:
    """What is left out is in no job, and the same job is drawn each time."""
    without = ("interleaved", "worker-fault/worker")
    for i in range(25):
        spec, faults, _ = draw_job(6, i, without=without)
        assert spec.vpp == 1
        assert "worker-fault/worker" not in {fault.full_kind for fault in faults}
    spec, faults, _ = draw_job(6, 1, causes=("worker-fault/worker",), world="gpipe")
    assert (spec.schedule, [fault.full_kind for fault in faults]) == ("gpipe", ["worker-fault/worker"])
    assert draw_job(6, 1, causes=("worker-fault/worker",), world="gpipe")[0] == spec


def test_a_world_that_is_not_is_refused() -> None:
    """A feature that does not exist, and one that is left out and asked for, are said to be so."""
    with pytest.raises(UsageError, match="no feature 'flat'; expected one of gpipe"):
        draw_world(np.random.default_rng(0), only="flat")
    with pytest.raises(UsageError, match="no job with gpipe and without gpipe"):
        draw_world(np.random.default_rng(0), only="gpipe", without=("gpipe",), max_rows=2000)


@pytest.mark.parametrize("name", ["network-tide", "unequal-links"])
def test_a_slower_network_costs_little(name: str) -> None:
    """What is usual in a job's network is no fault."""
    field = {"network-tide": "network_tide", "unequal-links": "link_ratio"}[name]
    none = {"network-tide": 0.0, "unequal-links": 1.0}[name]
    for seed in range(10):
        spec = dataclasses.replace(
            draw_world(np.random.default_rng(seed), only=name), noise=0.0, tail_noise=0.0, drift=0.0
        )
        slower, usual = (
            float(simulate(draw_inputs(s)).step_s.mean()) for s in (spec, dataclasses.replace(spec, **{field: none}))
        )
        assert slower / usual - 1.0 < 2 * MOST_COST


@pytest.mark.parametrize("schedule", ["1f1b", "gpipe"])
@pytest.mark.parametrize("p2p", ["pairs", "lazy", "asynchronous"])
def test_transfers_of_no_time_change_nothing(schedule: Schedule, p2p: P2P) -> None:
    """However transfers are launched: where they take no time, a step takes what its computes take."""
    usual = float(run(dataclasses.replace(EXACT, schedule=schedule))[1].step_s[0])
    assert usual == pytest.approx(3.0 * (5 + 3 - 1), abs=1e-3)
    assert float(run(dataclasses.replace(EXACT, schedule=schedule, p2p=p2p))[1].step_s[0]) == pytest.approx(
        usual, abs=1e-3
    )


def test_eager_starts_with_twice_the_forwards() -> None:
    """Eager 1F1B runs two forwards for each stage behind it before the first backward."""
    spec = dataclasses.replace(EXACT, schedule="eager", p2p="asynchronous")
    opening = [[c.op for c in order_computes(spec, stage)].index(Op.BACKWARD) for stage in range(3)]
    assert opening == [5, 3, 1]


def test_a_barrier_at_the_start_makes_all_wait_for_the_last_batch() -> None:
    """Without it the others begin at once; with it all ranks of the first stage begin with the one whose input is late."""
    assert starts(EXACT, Op.FORWARD, 0, late_s=2.0) == [0.0, 2.0, 0.0]
    assert starts(dataclasses.replace(EXACT, starts_together=True), Op.FORWARD, 0, late_s=2.0) == [2.0, 2.0, 2.0]


def test_behind_a_barrier_nobody_can_say_whose_batch_was_late() -> None:
    """Rows of loading can, and batches that come late to every forward."""
    held = dataclasses.replace(SMALL, starts_together=True)
    assert DataLoading(dp_ranks=(1,)).place_tellable(SMALL)
    assert not DataLoading(dp_ranks=(1,)).place_tellable(held)
    assert DataLoading(dp_ranks=(1,), records=True).place_tellable(held)
    assert DataLoading(dp_ranks=(1,), every_microbatch=True).place_tellable(held)


def test_barriers_before_gradients_and_optimizer() -> None:
    """A rank that is late holds up the gradients, or the optimizers, of all where the job has such a barrier."""
    bare = dataclasses.replace(EXACT, averages_loss=False, clip="none", gathers=False, dp=3)
    usual = starts(bare, Op.LAYERNORM, 0, late_s=2.0)
    assert (usual[1] - usual[0], usual[2]) == (pytest.approx(2.0, abs=1e-3), usual[0])
    held = starts(dataclasses.replace(bare, gradients_wait=True), Op.LAYERNORM, 0, late_s=2.0)
    assert held == [usual[1]] * 3
    at = starts(dataclasses.replace(bare, optimizer_waits=True), Op.OPTIMIZER, 0, late_s=2.0)
    assert at[0] == at[1] == at[2]


def test_clip_meets_whom_the_job_says() -> None:
    """Over stages, no rank waits for another in it; without, the trace has none; parameters that stay are not gathered."""
    rows = {
        way: generate(dataclasses.replace(SMALL, **fields)).trace["optype"].to_pylist()  # type: ignore[arg-type]
        for way, fields in {"none": {"clip": "none"}, "stages": {"clip": "stages"}, "kept": {"gathers": False}}.items()
    }
    assert NAMES[Op.CLIP] not in rows["none"]
    assert rows["stages"].count(NAMES[Op.CLIP]) == 3 * 3 * 4
    assert NAMES[Op.ALL_GATHER] not in rows["kept"]
    alone = dataclasses.replace(EXACT, clip="stages", averages_loss=False, dp=3)
    _, times = run(alone, late_s=0.0)
    assert np.isfinite(times.end_s).all()


def test_lost_rows_and_columns() -> None:
    """A trace lacks the columns and about the part of its rows that its world says; times are those of the same job."""
    whole = generate(dataclasses.replace(SMALL, steps=30)).trace
    bare = generate(dataclasses.replace(SMALL, steps=30, lost_share=0.02, lacks="rank,mb_id")).trace
    assert set(whole.column_names) - set(bare.column_names) == {"rank", "mb_id"}
    assert 0.97 < bare.num_rows / whole.num_rows < 0.99
    assert set(bare["start_ts"].to_pylist()) <= set(whole["start_ts"].to_pylist())


def test_what_is_lost_together_happened_together() -> None:
    """Runs of lost rows are of one worker and step, or begin with its last and go on with the first of the next."""
    whole, left = (
        generate(dataclasses.replace(SMALL, steps=30, lost_share=share)).trace.to_pandas() for share in (0.0, 0.01)
    )
    order = ["step", "dp_rank", "stage", "start_ts"]
    lost = whole.sort_values(order, kind="stable").merge(left, how="left", indicator=True)["_merge"] == "left_only"
    runs = lost.ne(lost.shift()).cumsum()[lost].value_counts()
    assert lost.sum() > 30
    assert runs.mean() > 3


def test_parameters_are_gathered_before_each_compute() -> None:
    """While the compute before runs; reductions begin within their backward, and the step ends with the last of them."""
    spec = dataclasses.replace(
        EXACT, pp=1, dp=2, microbatches=3, gather_s=0.25, scatters_within=0.5, launch_delay_s=0.0
    )
    programme, times = build_programme(spec), simulate(draw_inputs(spec))
    start_s, end_s = times.start_s[:, 0, 0], times.end_s[:, 0, 0]
    gather, scatter, backward = (programme.is_op(op) for op in (Op.ALL_GATHER, Op.REDUCE_SCATTER, Op.BACKWARD))
    computes = np.flatnonzero(programme.is_op(Op.FORWARD) | backward)
    computes = computes[np.argsort(start_s[computes])]
    assert (gather.sum(), scatter.sum()) == (6, 3)
    np.testing.assert_allclose(start_s[gather][2:], end_s[computes[:-2]])
    assert (start_s[computes] >= end_s[gather]).all()
    np.testing.assert_allclose(start_s[scatter], (start_s + end_s)[backward] / 2)


def test_clocks_are_off_by_a_constant() -> None:
    """Each worker's rows are moved by the same seconds in every step; durations stay."""
    right, wrong = generate(SMALL).trace, generate(dataclasses.replace(SMALL, clock_s=0.01)).trace
    off_s = wrong["start_ts"].to_numpy() - right["start_ts"].to_numpy()
    worker = right["stage"].to_numpy() * 3 + right["dp_rank"].to_numpy()
    assert all(np.ptp(off_s[worker == w]) < 1e-5 for w in range(9))
    assert np.ptp(off_s) > 1e-3
    assert wrong["duration"].equals(right["duration"])


def test_hosts_drift_by_themselves() -> None:
    """Workers of one host take the same course over the steps, those of another another."""
    spec = dataclasses.replace(SMALL, noise=0.0, steps=20, workers_per_host=3, host_drift=0.05)
    inputs = draw_inputs(spec)
    work_s = [
        inputs.work_s[np.flatnonzero(inputs.programme.is_op(Op.FORWARD) & (inputs.programme.stage == s))[0]]
        for s in (0, 1)
    ]
    assert np.ptp(work_s[0] / work_s[0][:, :1]) < 1e-9  # a stage of three ranks is a host
    assert np.ptp(work_s[1] / work_s[0]) > 0.01
    assert estimate_step(spec) == pytest.approx(estimate_step(dataclasses.replace(spec, host_drift=0.0)))


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"schedule": "eager"}, "sends that do not block"),
        ({"p2p": "pairs", "vpp": 2, "microbatches": 6}, "expected vpp 1"),
        ({"lacks": "duration"}, "expected some of rank"),
        ({"lost_share": 1.0}, "expected less than 1"),
        ({"gather_s": 0.1, "vpp": 2, "microbatches": 6}, "expected one chunk and whole backwards"),
        ({"scatters_within": 1.5}, "expected at most 1"),
        ({"clip": "some"}, "expected one of all, stages, none"),
    ],
)
def test_worlds_that_cannot_be_are_refused(fields: dict[str, object], message: str) -> None:
    """What would never end, or could not be read, is refused."""
    with pytest.raises(UsageError, match=message):
        dataclasses.replace(SMALL, **fields)  # type: ignore[arg-type]


@pytest.mark.parametrize("name", ["interleaved", "looped", "zb-v", "dualpipev", "zero-bubble"])
def test_chunks_have_their_column(name: str) -> None:
    """However many columns a world leaves out: that of model chunks stays where there are several."""
    for seed in range(40):
        spec = draw_world(np.random.default_rng(seed), only=name, max_rows=8000)
        assert spec.vpp == 1 or "mc" not in spec.lacked
