"""Whose clock is off: artificial offsets are estimated back, and where there are none, none are claimed."""

import dataclasses
import json
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

from diagnose.faults.spec import JobSpec
from diagnose.faults.worker_fault import WorkerFault
from diagnose.model.optype import Op
from diagnose.model.trace import Evidence, Seconds
from diagnose.whatif.clocks import Clocks, correct_clocks, correct_evidence
from diagnose.whatif.scenarios import explore, prepare
from tests.jobs import load
from tests.judge.cases import culprits, diagnose_table, diagnosed, make, measure, measured, measured_file, set_column
from tests.recorded.score import JOBS
from tests.whatif.test_observed import REAL, SEEDS, random_measured

SPECS = {
    "blocking": JobSpec(pp=4, dp=4, microbatches=8, steps=8, seed=31),
    "asynchronous": JobSpec(pp=4, dp=4, microbatches=8, steps=8, p2p="asynchronous", seed=32),
    "interleaved": JobSpec(pp=4, dp=2, vpp=2, microbatches=8, steps=8, p2p="asynchronous", seed=33),
    "blocking, interleaved": JobSpec(pp=4, dp=2, vpp=2, microbatches=8, steps=8, seed=34),
    "two stages": JobSpec(pp=2, dp=4, microbatches=8, steps=8, forward_s=0.1, seed=35),
    "one dp rank": JobSpec(pp=4, dp=1, microbatches=8, steps=8, forward_s=0.1, seed=36),
    "one stage": JobSpec(pp=1, dp=8, microbatches=8, steps=8, seed=37),
    "separate": JobSpec(pp=2, dp=4, microbatches=8, steps=8, separate=True, seed=38),
}
SIZES_S = (1e-3, 5e-3, 50e-3)


def skew(table: pa.Table, spec: JobSpec, size_s: float, seed: int = 0) -> tuple[pa.Table, Seconds]:
    """Let each worker's clock be off by up to `size_s`; give the offsets against the median, shape (n_dp, n_stages)."""
    rng = np.random.default_rng([seed, int(size_s * 1e6)])
    offset_s = rng.uniform(-size_s, size_s, size=(spec.dp, spec.pp))
    late = offset_s[table["dp_rank"].to_numpy(), table["stage"].to_numpy()]
    skewed = set_column(table, "start_ts", table["start_ts"].to_numpy().astype(np.float64) + late)
    return skewed, offset_s - np.median(offset_s)


@pytest.mark.parametrize("size_s", SIZES_S)
@pytest.mark.parametrize("kind", SPECS)
def test_offsets_are_estimated_back(kind: str, size_s: float) -> None:
    """Each worker's offset is found to 10% of the largest, or 50 us."""
    spec = SPECS[kind]
    skewed, true_s = skew(make(spec).trace, spec, size_s)
    found_s = measure(skewed).clocks.usual_s
    assert np.abs(found_s - true_s).max() <= max(0.1 * np.abs(true_s).max(), 50e-6)


def test_one_receiver_that_waited_tells_the_clocks() -> None:
    """Where sends are buffered and all receivers of forwards but a step's first come late, that one ends with its sender."""
    spec = dataclasses.replace(SPECS["asynchronous"], microbatches=16)
    table = make(spec).trace
    optypes = table["optype"].to_numpy(zero_copy_only=False).astype(str)
    late = (optypes == "forward-recv") & (table["seq_id"].to_numpy() > 0)
    late_s = late * np.random.default_rng(3).uniform(0.02, 0.05, len(table))
    skewed, true_s = skew(set_column(table, "duration", table["duration"].to_numpy() + late_s), spec, 0.02)
    assert np.abs(measure(skewed).clocks.usual_s - true_s).max() < 1e-3


@pytest.mark.parametrize("size_s", [5e-3, 2.0])
@pytest.mark.parametrize("kind", ["blocking", "asynchronous"])
def test_clocks_behind_a_worker_without_rows(kind: str, size_s: float) -> None:
    """No transfer ties stages behind a worker whose rows are lost to those before it; the gradient clip, which all end, does."""
    spec = SPECS[kind]
    skewed, true_s = skew(make(spec).trace, spec, size_s)
    lost = pc.and_(pc.equal(skewed["dp_rank"], 1), pc.equal(skewed["stage"], 1))
    apart_s = measure(skewed.filter(pc.invert(lost))).clocks.usual_s - true_s
    apart_s[1, 1] = np.nan
    assert np.nanmax(apart_s) - np.nanmin(apart_s) <= max(0.1 * np.abs(true_s).max(), 50e-6)


@pytest.mark.parametrize("size_s", SIZES_S)
@pytest.mark.parametrize("kind", SPECS)
def test_clocks_change_neither_verdict_nor_gains(kind: str, size_s: float) -> None:
    """A healthy job on clocks that differ is healthy, no component gains from it, and the report says whose clock is off."""
    spec = SPECS[kind]
    skewed, true_s = skew(make(spec).trace, spec, size_s)
    found, before, after = diagnose_table(skewed), measured(spec).gains, measure(skewed).gains
    assert (found.verdict, found.causes) == ("healthy", ())
    for name in set(before.alone_s) | set(after.alone_s):
        assert after.recoverable(name) == pytest.approx(before.recoverable(name), abs=0.005), name
    dp, stage = np.unravel_index(int(np.abs(true_s).argmax()), true_s.shape)
    warnings = [text for text in found.warnings if "clock" in text]
    if kind == "one stage" and size_s < 0.02:  # its collectives take 60 ms
        assert not warnings
        return
    (warning,) = warnings
    if spec.dp * spec.pp > 2:  # of two workers either may be the one that is off
        assert f"dp {dp}, stage {stage}" in warning


@pytest.mark.parametrize("kind", ["blocking", "asynchronous", "two stages"])
def test_a_slow_worker_is_found_whatever_its_clock_says(kind: str) -> None:
    """Verdict, place and gain of a slow worker are those without skew."""
    spec, fault = SPECS[kind], WorkerFault(places=((1, 1),), slowdown=1.6)
    skewed, _ = skew(make(spec, fault).trace, spec, 5e-3)
    found, plain = diagnose_table(skewed), diagnosed(spec, fault)
    assert culprits(found, "worker-fault") == culprits(plain, "worker-fault") == [(1, 1)]
    assert [c.cause for c in found.causes] == ["worker-fault"]
    assert found.causes[0].recoverable == pytest.approx(plain.causes[0].recoverable, abs=0.005)


#: What the clock of a worker does within a trace, as parts of the most that it is off by; by the step, from 0 to 1.
MOVES = {
    "drift": lambda at: 2.0 * at - 1.0,
    "jump": lambda at: np.where(at < 0.4, 0.0, 1.0),
    "set back": lambda at: np.where((at > 0.3) & (at < 0.7), -1.0, 0.0),
}


def move(table: pa.Table, worker: tuple[int, int], off_s: Seconds) -> pa.Table:
    """Let the clock of a worker be off by so much in each step."""
    steps, at = np.unique(table["step"].to_numpy(), return_inverse=True)
    assert len(steps) == len(off_s)
    mine = (table["dp_rank"].to_numpy() == worker[0]) & (table["stage"].to_numpy() == worker[1])
    return set_column(
        table, "start_ts", table["start_ts"].to_numpy().astype(np.float64) + np.where(mine, off_s[at], 0.0)
    )


@pytest.mark.parametrize("how", MOVES)
@pytest.mark.parametrize("kind", [kind for kind in SPECS if kind != "one stage"])
def test_clocks_that_move_within_the_trace_change_nothing(kind: str, how: str) -> None:
    """A clock that drifts or is set is followed step by step: no transfer seems slow, and no gain is another."""
    spec = dataclasses.replace(SPECS[kind], steps=24)
    job, at = make(spec), np.linspace(0.0, 1.0, 24)
    off_s = 0.01 * MOVES[how](at)
    moved = move(job.trace, (0, spec.pp - 1), off_s)
    found, before, after = measure(moved), measured(spec).gains, measure(moved).gains
    assert (found.diagnosis.verdict, found.diagnosis.causes) == ("healthy", ())
    for name in set(before.alone_s) | set(after.alone_s):
        assert after.recoverable(name) == pytest.approx(before.recoverable(name), abs=0.005), name
    apart_s = found.clocks.at(found.clocks.steps)[:, 0, spec.pp - 1] - found.clocks.at(found.clocks.steps)[:, 0, 0]
    if spec.dp > 2:
        assert np.median(np.abs(apart_s - off_s)) < 0.001
    (warning,) = [text for text in found.diagnosis.warnings if "clock" in text]
    assert "in some steps, by less in others" in warning


@pytest.mark.parametrize("name", ["gpu-slow-p22", "mid-p41"])
@pytest.mark.parametrize("how", MOVES)
def test_a_moving_clock_is_no_slow_network(name: str, how: str) -> None:
    """Real jobs, with a slow worker and a long stage: what was found is found, and nothing else."""
    table = pq.read_table(JOBS / f"{name}.parquet")
    job = json.loads(table.schema.metadata[b"diagnose.job"])
    job.pop("n_hosts", None)  # on one host there is one clock
    table = table.drop_columns("host").replace_schema_metadata({"diagnose.job": json.dumps(job)})
    steps = np.unique(table["step"].to_numpy())
    off_s = 0.006 * MOVES[how](np.linspace(0.0, 1.0, len(steps)))
    found, plain = (diagnose_table(one) for one in (move(table, (0, 1), off_s), table))
    assert [cause.cause for cause in found.causes] == [cause.cause for cause in plain.causes]
    assert "network-fault" not in [cause.cause for cause in found.causes]
    for after, before in zip(found.causes, plain.causes, strict=True):
        assert after.recoverable == pytest.approx(before.recoverable, abs=0.005)


@pytest.mark.parametrize(("share", "moves"), [(0.015, False), (0.03, True)])
def test_ranks_that_end_apart_by_little_of_a_step(share: float, *, moves: bool) -> None:
    """Dp ranks meet once a step: what they end apart by costs no more than that, and may be a GPU that they share."""
    job = make(dataclasses.replace(SPECS["one stage"], steps=24))
    off_s = share * float(np.median(job.truth.step_time_s)) * MOVES["jump"](np.linspace(0.0, 1.0, 24))
    assert bool(len(measure(move(job.trace, (2, 0), off_s)).clocks.steps)) == moves


@pytest.mark.parametrize("is_ring", [True, False])
def test_a_slow_ring_moves_no_clock(*, is_ring: bool) -> None:
    """Ranks of a ring with a slow link end its collectives one after the other; that these take longer no clock does."""
    spec = dataclasses.replace(SPECS["one stage"], steps=24)
    table = make(spec).trace
    rows = table.to_pandas()
    rows = rows[~rows["optype"].isin(["params-all-gather", "optimizer-clip-main-grad"])]
    later = rows["step"] >= np.unique(rows["step"])[10]
    reduces, behind_s = rows["optype"] == "grads-reduce-scatter", 0.05 * rows["dp_rank"]
    after = rows["optype"] == "optimizer"
    longer_s = np.where(later, behind_s + (1.0 if is_ring else 0.0), 0.0)
    rows["duration"] += np.where(reduces & is_ring, longer_s, 0.0)
    rows["start_ts"] += np.where(after | (not is_ring), longer_s, 0.0)
    changed = pa.Table.from_pandas(rows, schema=table.schema, preserve_index=False, safe=False)
    assert measure(changed).clocks.agree == is_ring


def test_one_host_has_one_clock() -> None:
    """Ranks of one host that end apart for some steps share something else."""
    spec = dataclasses.replace(SPECS["two stages"], steps=24)
    moved = move(make(spec).trace, (0, 1), 0.01 * MOVES["jump"](np.linspace(0.0, 1.0, 24)))
    one_host = moved.append_column("host", pa.array(["a"] * len(moved)))
    assert [len(measure(table).clocks.steps) for table in (moved, one_host)] == [24, 0]


@pytest.mark.parametrize("size_s", [1e-3, 0.5, 5.0])
def test_the_slowdown_is_of_times_as_recorded_unless_clocks_are_far_apart(size_s: float) -> None:
    """Within half a percent of a step S is what the paper gives for the file, clocks and all; else what it is without."""
    spec, fault = SPECS["blocking"], WorkerFault(places=((1, 1),), slowdown=1.6)
    table = make(spec, fault).trace
    skewed, _ = skew(table, spec, size_s)
    found, trace = diagnose_table(skewed), load(skewed if size_s < 0.01 else table)
    as_paper = explore(trace, prepare(trace))
    tolerance = 1e-9 if size_s < 0.01 else 0.005
    assert found.what_if.slowdown == pytest.approx(as_paper.slowdown, rel=tolerance)
    np.testing.assert_allclose(found.what_if.by_worker, as_paper.by_worker, rtol=tolerance)
    assert found.what_if.discrepancy == pytest.approx(as_paper.discrepancy, abs=tolerance)


def test_clocks_further_off_than_a_step_are_read() -> None:
    """Where transfers usually seem to end before they begin, they take no time, and not less."""
    spec = JobSpec(pp=1, dp=16, microbatches=1, steps=4, forward_s=1e-3, collective_s=1e-5, clock_s=5e-3, seed=3)
    found = diagnose_table(make(spec).trace)
    assert (found.what_if.ideal_s > 0).all()
    assert "clocks differ" in " ".join(found.warnings)


@pytest.mark.parametrize("name", [*REAL, "trace-ST"])
def test_no_offset_is_claimed_in_real_jobs(shared: Path, name: str) -> None:
    """On one machine there is one clock, and the production traces were put on one by their authors."""
    path = shared / ("artifact" if name.startswith("trace") else "real") / f"{name}.parquet"
    assert measured_file(path).clocks.agree


def test_clocks_of_a_production_trace_drift(shared: Path) -> None:
    """Its authors put it on one clock, but three workers of AR still go from 0.8 ms behind to 0.2 ms ahead, smoothly."""
    clocks = measured_file(shared / "artifact" / "trace-AR.parquet").clocks
    range_s = np.ptp(clocks.moved_s, axis=0)
    assert not clocks.usual_s.any()
    assert np.count_nonzero(range_s) == 3
    assert 0.0005 < range_s.max() < 0.001


def test_no_offset_is_claimed_in_generated_jobs() -> None:
    """Random jobs, healthy and faulty, have one clock."""
    for seed in SEEDS:
        spec, m = random_measured(seed)
        assert m.clocks.agree, spec


def test_correcting_undoes_the_skew() -> None:
    """A block whose workers' times are shifted by their offsets and then corrected is as before, but for the origin of steps."""
    spec = SPECS["blocking"]
    (o,) = measured(spec).observed
    rng = np.random.default_rng(1)
    offset_s = rng.uniform(-0.01, 0.01, size=(spec.dp, spec.pp))
    offset_s[0, 0] = 0.0  # one of them is right
    shift = offset_s.T[o.block.nodes.stage][:, None, :]
    late = dataclasses.replace(o.block, start_s=o.block.start_s + shift, end_s=o.block.end_s + shift)
    back = correct_clocks(late, Clocks(offset_s))
    origin_s = (back.start_s - o.block.start_s).mean(axis=(0, 2))[None, :, None]
    np.testing.assert_allclose(back.start_s - origin_s, o.block.start_s, atol=1e-12)
    np.testing.assert_allclose(back.end_s - origin_s, o.block.end_s, atol=1e-12)
    assert correct_clocks(o.block, Clocks(np.zeros((spec.dp, spec.pp)))) is o.block


@pytest.mark.parametrize("early_s", [0.009, 0.06])
def test_times_from_when_the_last_worker_was_there(early_s: float) -> None:
    """They begin before zero in all steps but the first, as one worker is still busy with the step before: the job is the same."""
    spec, fault = SPECS["blocking"], WorkerFault(places=((1, 1),), slowdown=1.3)
    table = make(spec, fault).trace
    plain = measured(spec, fault)
    steps = table["step"].to_numpy()
    starts = table["start_ts"].to_numpy().astype(np.float64) - early_s * (steps > steps.min())
    m = measure(set_column(table, "start_ts", starts))
    assert m.diagnosis.fidelity.replay_error < 0.001
    (found,), (as_before,) = m.diagnosis.causes, plain.diagnosis.causes
    assert (found.cause, found.where.workers) == (as_before.cause, as_before.where.workers)
    assert found.recoverable == pytest.approx(as_before.recoverable, abs=0.005)
    assert m.gains.recorded_s == pytest.approx(plain.gains.recorded_s, abs=0.01)


def test_rows_before_the_begin_of_their_step_move_with_it() -> None:
    """Where steps begin before what times count from rows stay beside their operations; within 10 ms nothing moves."""
    spec = SPECS["blocking"]
    (o,) = measured(spec).observed
    here, agree = (3, 2, 1), Clocks(np.zeros((spec.dp, spec.pp)))
    for early_s, moves in ((0.005, False), (0.2, True)):
        block = dataclasses.replace(o.block, start_s=o.block.start_s - early_s, end_s=o.block.end_s - early_s)
        place = (np.array([int(block.steps[2])]), np.array([1]), np.array([int(block.nodes.stage[3])]))
        times = np.array([block.start_s[here]]), np.array([block.end_s[here]])
        row = correct_evidence(Evidence(np.array([Op.GC]), *place, *times), [block], agree)
        corrected = correct_clocks(block, agree)
        assert (row.start_s[0], row.end_s[0]) == (corrected.start_s[here], corrected.end_s[here])
        assert (corrected is not block) == moves
        np.testing.assert_allclose(corrected.start_s.min(axis=(0, 2)), 0.0 if moves else block.start_s.min(axis=(0, 2)))


def test_rows_are_put_on_the_clock_of_their_computes() -> None:
    """A row that lies just where a compute lies does so after both are corrected, whatever begins the step then."""
    spec = SPECS["blocking"]
    (o,) = measured(spec).observed
    block = dataclasses.replace(o.block, start_s=o.block.start_s + 1.0, end_s=o.block.end_s + 1.0)
    offset_s = np.random.default_rng(1).uniform(0.1, 0.2, size=(spec.dp, spec.pp))
    node, step, dp = 3, 2, 1
    here = (node, step, dp)
    place = (np.array([int(block.steps[step])]), np.array([dp]), np.array([int(block.nodes.stage[node])]))
    times = np.array([block.start_s[here]]), np.array([block.end_s[here]])
    row = correct_evidence(Evidence(np.array([Op.GC]), *place, *times), [block], Clocks(offset_s))
    corrected = correct_clocks(block, Clocks(offset_s))
    np.testing.assert_allclose((row.start_s[0], row.end_s[0]), (corrected.start_s[here], corrected.end_s[here]))
    assert row.start_s[0] != times[0][0]
