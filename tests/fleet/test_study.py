"""The study's figures, and ours on the same axes."""

import pytest

from diagnose.fleet.study import compare_with_study
from diagnose.model.fleet_document import Study

from .jobs import job


def figures(study: Study) -> dict[str, tuple[float | None, float | None, int]]:
    """Give ours, theirs and the count by key."""
    return {figure.key: (figure.ours, figure.published, figure.n) for figure in study.figures}


def test_published_figures_are_those_of_the_paper() -> None:
    """What is shown as published is what arXiv 2505.05713 says, and says where."""
    found = compare_with_study([], 0)
    assert {figure.key: figure.published for figure in found.figures} == {
        "straggling": 0.425,
        "waste_of_hours": 0.104,
        "waste_p50": 0.078,
        "waste_p90": 0.213,
        "waste_p99": 0.45,
        "step_p50": 1.0,
        "step_p90": 1.06,
        "size_correlation": None,
        "by_workers": 0.017,
        "slowdown_by_workers": 3.04,
        "by_last_stage": 0.393,
        "by_sequences": 0.214,
        "slowdown_by_sequences": 1.34,
        "discrepancy_p50": 0.013,
        "discrepancy_p90": 0.055,
        "coverage": 0.382,
    }
    assert all(figure.source.startswith("arXiv 2505.05713") for figure in found.figures)


def test_no_jobs_no_figures() -> None:
    """Without jobs ours are not known, and never 0."""
    found = compare_with_study([], 0)
    assert all(figure.ours is None for figure in found.figures)
    assert (found.waste_quantiles, found.optypes, found.sizes) == ((), (), ())


def test_by_hand() -> None:
    """Four jobs: two straggle, one for its worker, one for its last stage; the fifth does not pass the gate."""
    jobs = [
        job("/1", slowdown=2.0, m_w=0.9, n_gpus=128, hours_analysed=300.0, step_ratio=(1.0, 1.2)),
        job("/2", slowdown=1.25, m_s=0.5, n_gpus=256, step_ratio=(1.0,), correlation=0.1),
        job("/3", slowdown=1.0, correlation=0.95, n_gpus=512, step_ratio=(9.0,)),
        job("/4", slowdown=1.0, n_gpus=1024),
        job("/5", slowdown=9.0, discrepancy=0.2, n_gpus=128),
    ]
    study = compare_with_study(jobs, 8)
    found = {key: ours for key, (ours, _, _) in figures(study).items()}
    assert (study.n_jobs, study.n_gated) == (4, 1)
    assert (found["straggling"], found["by_workers"], found["slowdown_by_workers"]) == (0.5, 0.5, 2.0)
    assert (found["by_last_stage"], found["by_sequences"]) == (0.25, 0.5)  # two jobs say their correlation
    assert found["slowdown_by_sequences"] == 1.0
    assert found["waste_p50"] == pytest.approx(0.1)  # of 0, 0, 0.2, 0.5
    assert found["waste_of_hours"] == pytest.approx((0.5 * 300 + 0.2 * 100) / 600)
    assert found["step_p50"] == 1.0 and figures(study)["step_p50"][2] == 3  # of straggling jobs only
    assert found["coverage"] == 0.5
    assert found["size_correlation"] == pytest.approx(-0.9486832980505139)  # larger jobs are faster here, one tie
    assert figures(study)["discrepancy_p90"][2] == 5  # before the gate


def test_operation_types() -> None:
    """Each type is said over the jobs that have it, the most wasteful first."""
    jobs = [job("/1", by_optype={"forward-compute": 1.25, "gc": 1.0}), job("/2", by_optype={"forward-compute": 2.0})]
    first, second = compare_with_study(jobs, 2).optypes
    assert (first.optype, first.n_jobs, first.p50, first.of_hours) == ("forward-compute", 2, 0.35, 0.35)
    assert (second.optype, second.n_jobs, second.p90) == ("gc", 1, 0.0)


def test_sizes_are_powers_of_two() -> None:
    """Jobs of 128 to 255 GPUs stand together."""
    jobs = [job("/1", n_gpus=128, slowdown=1.0), job("/2", n_gpus=255, slowdown=2.0), job("/3", n_gpus=256)]
    bins = compare_with_study(jobs, 3).sizes
    assert [(entry.least, entry.most, entry.n_jobs, entry.p50) for entry in bins] == [
        (128, 255, 2, 1.5),
        (256, 511, 1, 1.25),
    ]


def test_quantiles() -> None:
    """The distribution of waste has 101 points and never falls."""
    jobs = [job(f"/{i}", slowdown=1 + i / 10) for i in range(20)]
    quantiles = compare_with_study(jobs, 20).waste_quantiles
    assert len(quantiles) == 101 and list(quantiles) == sorted(quantiles)
    assert quantiles[0] == 0.0 and quantiles[-1] == pytest.approx(1 - 1 / 2.9)
