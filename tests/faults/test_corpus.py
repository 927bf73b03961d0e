"""A corpus of random jobs: its mixture, its shapes, and that the seed alone decides."""

import dataclasses
import json
import os
import subprocess
import sys
from collections import Counter
from functools import cache
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

from diagnose.faults.__main__ import main
from diagnose.faults.decoy import Decoy
from diagnose.faults.fault import Fault
from diagnose.faults.generate import draw_causes, draw_job, generate, list_causes
from diagnose.faults.inputs import draw_inputs
from diagnose.faults.programme import build_programme
from diagnose.faults.simulate import simulate
from diagnose.faults.spec import MAX_ROWS, JobSpec, count_rows, random_spec
from diagnose.model.optype import Op

N_JOBS = 80


@cache
def corpus() -> list[tuple[JobSpec, list[Fault], list[Decoy]]]:
    """Draw a corpus, without making its traces."""
    return [draw_job(3, i) for i in range(N_JOBS)]


@cache
def mixture() -> list[tuple[str, ...]]:
    """Draw the causes of many jobs."""
    return [draw_causes(np.random.default_rng([3, i])) for i in range(300)]


@cache
def shapes() -> list[JobSpec]:
    """Draw many shapes."""
    return [random_spec(np.random.default_rng([4, i])) for i in range(1500)]


def test_shares_of_causes() -> None:
    """A fifth of the jobs is healthy, about half have one cause, a third two or three, and never one twice."""
    shares = {n: count / len(mixture()) for n, count in Counter(len(causes) for causes in mixture()).items()}
    assert shares[0] == pytest.approx(0.2, abs=0.06)
    assert shares[1] == pytest.approx(0.47, abs=0.08)
    assert shares[2] + shares[3] == pytest.approx(0.33, abs=0.07)
    assert shares[2] > shares[3] > 0.05
    assert all(len(set(causes)) == len(causes) for causes in mixture())


def test_causes_are_equally_frequent() -> None:
    """No cause is drawn much less often than the mean of all."""
    counts = Counter(cause for causes in mixture() for cause in causes)
    known = list_causes()
    assert set(counts) == set(known)
    assert min(counts.values()) > 0.6 * counts.total() / len(known), counts


def test_shapes_are_found_for_causes() -> None:
    """Jobs have the causes that were drawn for them, but for one in fifty, as shapes are drawn until one can have them."""
    kept = [
        [fault.cause for fault in faults] == list(draw_causes(np.random.default_rng([3, i])))
        for i, (_, faults, _) in enumerate(corpus())
    ]
    assert np.mean(kept) >= 0.98


def test_a_job_does_not_depend_on_the_others() -> None:
    """Job i of a seed is the same drawn alone; other seeds and other jobs are others."""
    assert draw_job(3, 7) == corpus()[7]
    assert draw_job(4, 7)[0] != corpus()[7][0]
    assert len({spec.seed for spec, _, _ in corpus()}) == N_JOBS


def test_without_evidence_it_is_the_same_job() -> None:
    """Leaving out the evidence changes no draw."""
    spec, faults, decoys = draw_job(3, 7, evidence=False)
    assert not spec.evidence
    assert (dataclasses.replace(spec, evidence=True), faults, decoys) == corpus()[7]


def test_noise_keeps_to_its_range() -> None:
    """Noise is drawn from the range asked for, and another range changes the noise alone in the shape."""
    for i in range(50):
        loud = random_spec(np.random.default_rng([4, i]), noise=(5.0, 6.0))
        assert 5.0 <= loud.noise <= 6.0
        assert 0.3 <= shapes()[i].noise <= 3.0
        assert (loud.pp, loud.dp, loud.steps, loud.forward_s) == (
            shapes()[i].pp,
            shapes()[i].dp,
            shapes()[i].steps,
            shapes()[i].forward_s,
        )


@pytest.mark.parametrize(
    ("name", "low", "high"),
    [("pp", 1, 16), ("vpp", 1, 4), ("dp", 1, 256), ("microbatches", 1, 64), ("steps", 8, 60), ("forward_s", 1e-3, 0.5)],
)
def test_shapes_reach_their_limits(name: str, low: float, high: float) -> None:
    """Random jobs come in all sizes, up to both limits and not beyond."""
    values = [getattr(spec, name) for spec in shapes()]
    assert min(values) == pytest.approx(low, rel=0.02) and max(values) == pytest.approx(high, rel=0.05)
    assert low <= min(values) and max(values) <= high
    assert len(set(values)) >= 4


def test_ways_of_recording_and_noise_occur() -> None:
    """A quarter of the jobs records absolute times, half of them hosts, and some have heavy tails, drift, recomputation."""
    share = {
        "absolute": np.mean([spec.absolute_times for spec in shapes()]),
        "hosts": np.mean([spec.workers_per_host > 0 for spec in shapes()]),
        "tails": np.mean([spec.tail_noise > 0 for spec in shapes()]),
        "drift": np.mean([spec.drift > 0 for spec in shapes()]),
        "recompute": np.mean([spec.backward_ratio > 2.35 for spec in shapes()]),
    }
    expected = {"absolute": 0.25, "hosts": 0.5, "tails": 0.4, "drift": 0.4, "recompute": 0.25}
    assert share == pytest.approx(expected, abs=0.05)


def test_jobs_are_small_enough() -> None:
    """No job has more rows than it may, and the mean is about forty thousand."""
    rows = np.array([count_rows(spec) for spec in shapes()])
    assert rows.max() <= MAX_ROWS
    assert 30_000 < rows.mean() < 45_000
    assert max(count_rows(random_spec(np.random.default_rng(i), max_rows=3000)) for i in range(50)) <= 3000


@pytest.mark.parametrize("seed", range(0, 60, 2))
def test_rows_are_counted_before_they_are_made(seed: int) -> None:
    """The count from a job's sizes is the number of its operations."""
    spec = shapes()[seed]
    assert count_rows(spec) == len(build_programme(spec).tasks) * spec.steps * spec.dp


def test_heavy_tails_lengthen_a_few_computes() -> None:
    """With heavy tails three computes in a hundred take longer, none by more than thrice the size, and none is shorter."""
    spec = JobSpec(pp=2, dp=4, microbatches=8, steps=20)
    computes = build_programme(spec).is_op(Op.FORWARD, Op.BACKWARD)
    plain, tailed = (draw_inputs(s).work_s for s in (spec, dataclasses.replace(spec, tail_noise=0.1)))
    ratio = tailed[computes] / plain[computes]
    assert ratio.min() == 1.0 and 1.2 < ratio.max() <= 1.3 + 1e-12
    assert (ratio > 1.0).mean() == pytest.approx(0.03, abs=0.01)
    assert np.array_equal(tailed[~computes], plain[~computes])


def test_drift_moves_all_workers_together() -> None:
    """Drift changes step times slowly and all workers alike, by the standard deviation asked for."""
    spec = JobSpec(pp=2, dp=4, microbatches=8, steps=40, noise=0.0, drift=0.05)
    drifting = draw_inputs(spec)
    log = np.log(drifting.work_s[drifting.programme.is_op(Op.FORWARD)] / spec.forward_s)
    shared = log.mean(axis=(0, 2))
    assert shared.std() == pytest.approx(0.05, rel=0.2)
    assert (log - shared[None, :, None]).std() == pytest.approx(0.0125, rel=0.3)
    step_s = simulate(drifting).step_s
    assert np.corrcoef(step_s[1:], step_s[:-1])[0, 1] > 0.5


def small(*arguments: str) -> None:
    """Run the command."""
    result = CliRunner().invoke(main, list(arguments))
    assert result.exit_code == 0, result.output


def contents(folder: Path) -> dict[str, bytes]:
    """Read all files of a folder."""
    return {path.name: path.read_bytes() for path in folder.iterdir()}


@pytest.mark.skipif((os.cpu_count() or 1) < 2, reason="one processor: no more processes are allowed")
def test_same_bytes_whatever_the_number_of_processes(tmp_path: Path) -> None:
    """Two processes write the corpus that one writes, byte for byte."""
    options = ("--jobs", "3", "--seed", "8", "--noise-range", "0.5", "0.6")
    small(str(tmp_path / "one"), *options)
    command = [sys.executable, "-m", "diagnose.faults", str(tmp_path / "two"), *options, "--workers", "2"]
    subprocess.run(command, check=True, capture_output=True, cwd=Path(__file__).parents[2])
    assert len(contents(tmp_path / "one")) == 6
    assert contents(tmp_path / "one") == contents(tmp_path / "two")
    truth = json.loads((tmp_path / "one" / "job-8-00002.truth.json").read_text())
    assert 0.5 <= truth["spec"]["noise"] <= 0.6


def test_an_interrupted_corpus_is_gone_on_with(tmp_path: Path) -> None:
    """Whole jobs are left alone, half-written ones and those of other options are made again."""
    options = (str(tmp_path), "--jobs", "3", "--seed", "8")
    small(*options)
    before = contents(tmp_path)
    (tmp_path / "job-8-00001.truth.json").unlink()
    (tmp_path / "job-8-00001.parquet").write_bytes(b"half")
    (tmp_path / "job-8-00002.parquet").write_bytes(b"kept")
    small(*options)
    assert contents(tmp_path) == before | {"job-8-00002.parquet": b"kept"}
    small(*options, "--no-evidence")
    assert contents(tmp_path).keys() == before.keys()
    assert all(content != before[name] for name, content in contents(tmp_path).items())


def test_a_range_of_noise_is_checked(tmp_path: Path) -> None:
    """A range that is none is refused before anything is written."""
    result = CliRunner().invoke(main, [str(tmp_path / "x"), "--jobs", "1", "--noise-range", "2", "1"])
    assert result.exit_code == 2
    assert not (tmp_path / "x").exists()


def test_truth_of_what_comes_back_last() -> None:
    """For each of two faults the part that comes back last is that of mending it once the other is mended."""
    for spec, faults, decoys in corpus():
        if len(faults) == 2 and count_rows(spec) < 20_000:
            truth = generate(spec, faults, decoys).truth
            first, second = truth.faults
            assert first.recoverable_last == 1.0 - truth.step_time_without_any_s / second.step_time_without_s
            assert second.recoverable_last == 1.0 - truth.step_time_without_any_s / first.step_time_without_s
            return
    pytest.fail("no small job with two faults")
