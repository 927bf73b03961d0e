"""The fleet on the axes of the study of 3,079 production jobs, with the study's figures where they were published.

Enters: jobs. Leaves: a `Study`. Published numbers stand here with their place in arXiv 2505.05713 (OSDI '25) and nowhere
else; what only a drawing shows is not guessed.
"""

import math
from collections.abc import Sequence

import numpy as np

from diagnose.model.fleet import FleetJob
from diagnose.model.fleet_document import Figure, OpType, SizeBin, Study, Unit
from diagnose.model.trace import Bools, Seconds

PAPER = "arXiv 2505.05713"
#: The study leaves out jobs whose replay without launch delays is further off than this.
GATE = 0.05
#: From this slowdown on the study calls a job straggling.
STRAGGLING = 1.1
#: More than this part of the lost time makes workers, or the last stage, the reason.
MAJORITY = 0.5
#: From this correlation of forward and backward on the study puts a job down to uneven sequences.
CORRELATED = 0.9
#: What the study shows and this page cannot put beside it: only numbers that were published as such stand here.
LEFT_OUT = (
    "Waste by operation type: of the study only its words are at hand, that computation costs more than communication.",
    "The whole distributions of waste, M_W and M_S: of the first three points are at hand, of the others the jobs above one half.",
    "Slowdown against job size: only the study's words, that they do not correlate.",
    "Slowdown against sequence length: no trace says the longest sequence of its job, and no numbers of the study are at hand.",
)


def compare_with_study(jobs: Sequence[FleetJob], n_all: int) -> Study:
    """Put the jobs whose figures count beside the study; `n_all` counts those that could not be analysed, too."""
    known = [job for job in jobs if job.slowdown is not None and job.slowdown > 0 and job.discrepancy is not None]
    gated = [job for job in known if abs(job.discrepancy or 0.0) <= GATE]
    waste = 1.0 - 1.0 / _column(gated, "slowdown")
    return Study(
        n_jobs=len(gated),
        n_gated=len(jobs) - len(gated),
        figures=(*_of_jobs(gated, waste), *_of_reasons(gated), *_of_trust(known, len(gated), n_all)),
        waste_quantiles=tuple(np.quantile(waste, np.linspace(0, 1, 101)).tolist()) if len(waste) else (),
        optypes=_waste_by_optype(gated),
        sizes=_bin_sizes(gated),
        left_out=LEFT_OUT,
    )


def _of_jobs(jobs: Sequence[FleetJob], waste: Seconds) -> list[Figure]:
    """Say how much is wasted, by how many, and how evenly over the steps."""
    slowdown = _column(jobs, "slowdown")
    weight = np.array([job.hours_analysed or 0.0 for job in jobs])
    of_hours = float(np.average(waste, weights=weight)) if weight.sum() > 0 else None
    straggling = [job for job in jobs if (job.slowdown or 0.0) >= STRAGGLING]
    ratios = np.array([ratio for job in straggling for ratio in job.step_ratio])
    n = len(jobs)
    return [
        _share("straggling", "jobs with S of at least 1.1", slowdown >= STRAGGLING, 0.425, "4.1"),
        Figure("waste_of_hours", "GPU hours wasted, 1 - 1/S", of_hours, 0.104, n, "share", f"{PAPER}, section 4.1"),
        _quantile("waste_p50", "waste of the median job", waste, 0.5, 0.078),
        _quantile("waste_p90", "waste that one job in ten exceeds", waste, 0.9, 0.213),
        _quantile("waste_p99", "waste that one job in a hundred exceeds", waste, 0.99, 0.45),
        _quantile("step_p50", "slowdown of a step over its job's, straggling jobs, median", ratios, 0.5, 1.0, "ratio"),
        _quantile("step_p90", "the same, 90th percentile", ratios, 0.9, 1.06, "ratio"),
        Figure(
            "size_correlation",
            "rank correlation of S with the number of GPUs",
            _rank_correlation(slowdown, _column(jobs, "n_gpus")),
            None,
            n,
            "correlation",
            f"{PAPER}: no correlation, without a number",
        ),
    ]


def _of_reasons(jobs: Sequence[FleetJob]) -> list[Figure]:
    """Say how many jobs are slow for the study's reasons, by its own measures."""
    straggling = [job for job in jobs if (job.slowdown or 0.0) >= STRAGGLING]
    by_worker = [job for job in straggling if (job.m_w or 0.0) > MAJORITY]
    measured = [job for job in jobs if job.correlation is not None]
    by_length = [job for job in measured if (job.correlation or 0.0) >= CORRELATED]
    return [
        _share(
            "by_workers",
            "straggling jobs that lose more than half to the slowest 3% of workers (M_W)",
            np.array([(job.m_w or 0.0) > MAJORITY for job in straggling]),
            0.017,
            "5.1",
        ),
        _mean("slowdown_by_workers", "mean S of these", by_worker, 3.04, "5.1"),
        _share(
            "by_last_stage",
            "jobs that lose at least half to the last stage (M_S)",
            np.array([(job.m_s or 0.0) >= MAJORITY for job in jobs]),
            0.393,
            "5.2",
        ),
        _share(
            "by_sequences",
            "jobs whose forwards and backwards correlate at 0.9 or more",
            np.array([(job.correlation or 0.0) >= CORRELATED for job in measured]),
            0.214,
            "5.3",
        ),
        _mean("slowdown_by_sequences", "mean S of these", by_length, 1.34, "5.3"),
    ]


def _of_trust(known: Sequence[FleetJob], n_gated: int, n_all: int) -> list[Figure]:
    """Say how many jobs the figures are of."""
    off = np.abs(_column(known, "discrepancy"))
    covered = n_gated / n_all if n_all else None
    return [
        _quantile("discrepancy_p50", "discrepancy of the median job, before the gate", off, 0.5, 0.013),
        _quantile("discrepancy_p90", "the same, 90th percentile", off, 0.9, 0.055),
        Figure("coverage", "jobs that these figures are of", covered, 0.382, n_all, "share", PAPER),
    ]


def _waste_by_optype(jobs: Sequence[FleetJob]) -> tuple[OpType, ...]:
    """Say what each type of operation wastes, over the jobs that have it."""
    found = []
    for name in sorted({name for job in jobs for name in job.by_optype}):
        rows = [(job.by_optype[name], job.hours_analysed or 0.0) for job in jobs if job.by_optype.get(name, 0.0) > 0]
        if not rows:
            continue
        slowdown, hours = np.array(rows).T
        waste = 1.0 - 1.0 / slowdown
        weighted = float(np.average(waste, weights=hours)) if hours.sum() > 0 else math.nan
        p50, p90 = np.quantile(waste, [0.5, 0.9]).tolist()
        found.append(OpType(name, len(rows), p50, p90, weighted))
    return tuple(sorted(found, key=lambda entry: (-entry.p90, entry.optype)))


def _bin_sizes(jobs: Sequence[FleetJob]) -> tuple[SizeBin, ...]:
    """Put jobs into bins by their number of GPUs, each twice the one before."""
    bins: dict[int, list[float]] = {}
    for job in jobs:
        if job.n_gpus and job.slowdown:
            bins.setdefault(1 << (job.n_gpus.bit_length() - 1), []).append(job.slowdown)
    return tuple(
        SizeBin(least, 2 * least - 1, len(found), *np.quantile(found, [0.1, 0.5, 0.9]).tolist())
        for least, found in sorted(bins.items())
    )


def _share(key: str, meaning: str, holds: Bools, published: float, section: str) -> Figure:
    """Say in what part of the jobs something holds."""
    ours = float(holds.mean()) if len(holds) else None
    return Figure(key, meaning, ours, published, len(holds), "share", f"{PAPER}, section {section}")


def _mean(key: str, meaning: str, jobs: Sequence[FleetJob], published: float, section: str) -> Figure:
    """Say the mean slowdown of some jobs."""
    ours = float(_column(jobs, "slowdown").mean()) if jobs else None
    return Figure(key, meaning, ours, published, len(jobs), "ratio", f"{PAPER}, section {section}")


def _quantile(key: str, meaning: str, values: Seconds, at: float, published: float, unit: Unit = "share") -> Figure:
    """Say a quantile."""
    ours = float(np.quantile(values, at)) if len(values) else None
    return Figure(key, meaning, ours, published, len(values), unit, PAPER)


def _rank_correlation(a: Seconds, b: Seconds) -> float | None:
    """Give Spearman's correlation; None where one of them does not vary."""
    both = np.isfinite(a) & np.isfinite(b)
    a, b = a[both], b[both]
    if len(a) < 3 or np.ptp(a) == 0 or np.ptp(b) == 0:
        return None
    from scipy.stats import spearmanr

    return float(spearmanr(a, b).statistic)


def _column(jobs: Sequence[FleetJob], name: str) -> Seconds:
    """Give one figure of all jobs; NaN where it is not known."""
    return np.array([math.nan if (value := getattr(job, name)) is None else value for job in jobs], dtype=np.float64)
