"""Prices of fixes against the truth: `python -m tests.scoring.prices --jobs 50`.

Enters: numbers of a seed. Leaves: for each fix, how far its predicted speedup is from that of the job simulated without the fault.
The fault is alone in half of the jobs and beside another one in the others. Truth comes from the generator's own event simulation.
"""

import dataclasses
import json
import tempfile
from collections import defaultdict
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import click
import numpy as np

from diagnose.faults.decoys import WarmUp
from diagnose.faults.generate import draw_job, generate, list_causes, write_job
from diagnose.faults.spec import NOISE
from diagnose.model.request import Request
from tests.scoring.score_tables import table

#: Fixes whose truth is another job, and not the job without the fault: their own tests simulate it.
ELSEWHERE = frozenset({"repartition-stages", "schedule", "rebalance-sequences", "shard-context", "swap-workers"})


@dataclasses.dataclass(frozen=True, slots=True)
class Price:
    """One predicted speedup and the true one."""

    fix: str
    cause: str
    seed: int
    index: int
    alone: bool
    predicted: float
    true: float

    @property
    def error(self) -> float:
        """Relative error of the speedup."""
        return abs(self.predicted / self.true - 1.0)


def price_one(seed: int, index: int, cause: str, noise: tuple[float, float]) -> list[Price]:
    """Diagnose job `index` of a cause, every second one with another cause beside it, and price what mends the cause."""
    from diagnose.pipeline import diagnose_job

    others = sorted(set(list_causes()) - {cause})
    causes = (cause,) if index % 2 == 0 else (cause, others[index // 2 % len(others)])
    spec, faults, decoys = draw_job(seed, index, noise=noise, causes=causes)
    # A warm-up counts in the truth's mean step and not in the diagnosis'.
    job = generate(spec, faults, [decoy for decoy in decoys if not isinstance(decoy, WarmUp)])
    truth = next((fault for fault in job.truth.faults if fault.cause == cause), None)
    if truth is None or not truth.tellable:
        return []
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "job.parquet"
        write_job(job, path)
        diagnosis = diagnose_job(Request(path))
    said = next((one for one in diagnosis.causes if one.cause == cause), None)
    return [
        Price(
            fix.fix,
            cause,
            seed,
            index,
            alone=len(job.truth.faults) == 1,
            predicted=fix.predicted_speedup,
            true=job.truth.step_time_s / truth.step_time_without_s,
        )
        for fix in (said.fixes if said else ())
        if fix.fix not in ELSEWHERE and fix.predicted_speedup is not None
    ]


def price_all(seed: int, jobs: int, noise: tuple[float, float], workers: int) -> Iterator[Price]:
    """Price the fixes of every cause on some jobs of each."""
    tasks = [(seed, i, cause, noise) for cause in sorted(list_causes()) for i in range(jobs)]
    with ProcessPoolExecutor(workers) as pool:
        for found in pool.map(price_one, *zip(*tasks, strict=True), chunksize=4):
            yield from found


@click.command()
@click.option("--jobs", type=click.IntRange(min=1), default=50, show_default=True, help="Jobs of each cause.")
@click.option("--seed", type=int, default=91, show_default=True)
@click.option("--noise", type=(float, float), default=NOISE, show_default=True)
@click.option("--workers", type=click.IntRange(min=1), default=2, show_default=True)
@click.option("--json", "path", type=click.Path(path_type=Path), help="Write every price there.")
def main(jobs: int, seed: int, noise: tuple[float, float], workers: int, path: Path | None) -> None:
    """Compare predicted speedups with true ones on generated jobs, fix by fix."""
    prices = list(price_all(seed, jobs, noise, workers))
    by_fix = defaultdict(list)
    for price in prices:
        by_fix[price.fix].append(price)
    rows = [["fix", "jobs", "alone", "median error", "90%", "largest", "of job"]]
    for fix, found in sorted(by_fix.items()):
        errors = np.array([price.error for price in found])
        quantiles = [f"{np.median(errors):.4f}", f"{np.quantile(errors, 0.9):.4f}", f"{errors.max():.3f}"]
        alone = sum(price.alone for price in found)
        rows.append([fix, str(len(found)), str(alone), *quantiles, str(found[int(errors.argmax())].index)])
    click.echo(table(rows, markdown=True), nl=False)
    if path is not None:
        path.write_text(json.dumps([dataclasses.asdict(price) for price in prices], indent=1) + "\n")


if __name__ == "__main__":
    main()
