"""StallKind clock is off: artificial offsets are estimated back, and where there are none, none are claimed."""

import dataclasses
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from diagnose.faults.spec import JobSpec
from diagnose.faults.worker_fault import WorkerFault
from diagnose.model.optype import Op
from diagnose.model.trace import Evidence, Seconds
from diagnose.whatif.clocks import correct_clocks, correct_evidence
from diagnose.whatif.scenarios import explore, prepare
from tests.jobs import load
from tests.judge.cases import culprits, diagnose_table, diagnosed, make, measure, measured, measured_file, set_column
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
    found_s = measure(skewed).offset_s
    assert np.abs(found_s - true_s).max() <= max(0.1 * np.abs(true_s).max(), 50e-6)


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
    (warning,) = [text for text in found.warnings if "clock" in text]
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


def test_the_slowdown_is_of_times_as_recorded() -> None:
    """S and its relatives are the paper's, on the times of the file, clocks off or not."""
    spec = SPECS["blocking"]
    skewed, _ = skew(make(spec).trace, spec, 20e-3)
    found, trace = diagnose_table(skewed), load(skewed)
    recorded = explore(trace, prepare(trace))
    assert found.what_if.slowdown == recorded.slowdown
    np.testing.assert_array_equal(found.what_if.by_worker, recorded.by_worker)
    np.testing.assert_array_equal(found.what_if.recorded_s, recorded.recorded_s)


def test_clocks_further_off_than_a_step_are_read() -> None:
    """Where transfers usually seem to end before they begin, they take no time, and not less."""
    spec = JobSpec(pp=1, dp=16, microbatches=1, steps=4, forward_s=1e-3, collective_s=1e-5, clock_s=5e-3, seed=3)
    found = diagnose_table(make(spec).trace)
    assert (found.what_if.ideal_s > 0).all()
    assert "clocks differ" in " ".join(found.warnings)


@pytest.mark.parametrize("name", [*REAL, "trace-AR", "trace-ST"])
def test_no_offset_is_claimed_in_real_jobs(shared: Path, name: str) -> None:
    """On one machine there is one clock, and the production traces were put on one by their authors."""
    path = shared / ("artifact" if name.startswith("trace") else "real") / f"{name}.parquet"
    assert not measured_file(path).offset_s.any()


def test_no_offset_is_claimed_in_generated_jobs() -> None:
    """Random jobs, healthy and faulty, have one clock."""
    for seed in SEEDS:
        spec, m = random_measured(seed)
        assert not m.offset_s.any(), spec


def test_correcting_undoes_the_skew() -> None:
    """A block whose workers' times are shifted by their offsets and then corrected is as before, but for the origin of steps."""
    spec = SPECS["blocking"]
    (o,) = measured(spec).observed
    rng = np.random.default_rng(1)
    offset_s = rng.uniform(-0.01, 0.01, size=(spec.dp, spec.pp))
    offset_s[0, 0] = 0.0  # one of them is right
    shift = offset_s.T[o.block.nodes.stage][:, None, :]
    late = dataclasses.replace(o.block, start_s=o.block.start_s + shift, end_s=o.block.end_s + shift)
    back = correct_clocks(late, offset_s)
    origin_s = (back.start_s - o.block.start_s).mean(axis=(0, 2))[None, :, None]
    np.testing.assert_allclose(back.start_s - origin_s, o.block.start_s, atol=1e-12)
    np.testing.assert_allclose(back.end_s - origin_s, o.block.end_s, atol=1e-12)
    assert correct_clocks(o.block, np.zeros((spec.dp, spec.pp))) is o.block


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
    row = correct_evidence(Evidence(np.array([Op.GC]), *place, *times), [block], offset_s)
    corrected = correct_clocks(block, offset_s)
    np.testing.assert_allclose((row.start_s[0], row.end_s[0]), (corrected.start_s[here], corrected.end_s[here]))
    assert row.start_s[0] != times[0][0]
