"""`python -m diagnose.train`: make jobs with known faults, measure them, and train the classifier on them.

python -m diagnose.train
python -m diagnose.train --jobs 60 --calibrate 30 --out /tmp/classifier.json
python -m diagnose.train --leave-out interleaved --out /tmp/classifier.json

`python -m tests.scoring.leave_out` leaves out one after the other.
"""

import importlib.util
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from diagnose.errors import DiagnoseError, UsageError
from diagnose.judge.classifier import PACKAGED, load_classifier
from diagnose.judge.rules import load_rules
from diagnose.train.fit import train, write_model
from diagnose.train.measure import MeasuredJob, RandomJobs, measure_jobs, measuring_digest

#: Noise of the jobs for the trees, and of those for the calibration: beyond it on both sides.
NOISE = (0.3, 3.0)
CALIBRATION_NOISE = (0.15, 4.5)
#: Seed of the jobs for the calibration, after that of the jobs for the trees.
CALIBRATION_SEED = 1000


class Progress:
    """One line on a terminal: how far, how many failed, how long still."""

    def __init__(self, what: str, n_jobs: int) -> None:
        self.what, self.n_jobs = what, n_jobs
        self.n_done = self.n_failed = 0
        self.began_s = time.monotonic()

    def __call__(self, job: MeasuredJob, n_left: int) -> None:
        """Count a job, with so many still to come."""
        self.n_done += 1
        self.n_failed += bool(job.error)
        if sys.stderr.isatty():
            left_s = (time.monotonic() - self.began_s) / self.n_done * n_left
            text = (
                f"measuring jobs for the {self.what}: {self.n_jobs - n_left}/{self.n_jobs}, {self.n_failed} failed, "
                f"{left_s:.0f} s left"
            )
            click.echo(f"\r{text}\x1b[K" + ("" if n_left else "\n"), err=True, nl=False)


def measure_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options that say which jobs are measured, and how."""
    options = (
        click.option("--jobs", "n_jobs", **_count(800), help="Jobs for the trees."),
        click.option("--calibrate", "n_calibrate", **_count(320), help="Jobs for the calibration."),
        click.option(
            "--seed", type=click.IntRange(min=0), default=0, show_default=True, help="Other seed, other jobs."
        ),
        click.option(
            "--cache",
            type=click.Path(file_okay=False, path_type=Path),
            default=Path("build/train"),
            show_default=True,
            help="Folder that keeps what was measured of jobs.",
        ),
        click.option(
            "--workers",
            **_count(os.cpu_count() or 1) | {"show_default": "all cores"},
            help="Processes; they change nothing but the time.",
        ),
    )
    for option in reversed(options):
        command = option(command)
    return command


def _count(default: int) -> dict[str, Any]:
    """Say what an option takes that is a number of things."""
    return {"type": click.IntRange(min=1), "default": default, "show_default": True}


@click.command()
@measure_options
@click.option("--out", type=click.Path(dir_okay=False, path_type=Path), help="Write there instead of into the package.")
@click.option(
    "--leave-out",
    "name",
    metavar="NAME",
    help="Train without jobs that have a kind of fault (worker-fault/replica) or a feature (gpipe), and rate them apart.",
)
def main(**options: Any) -> None:
    """Train the classifier and write it."""
    try:
        n_failed = run(**options)
    except DiagnoseError as error:
        click.echo(f"error: {error}", err=True)
        sys.exit(error.exit_code)
    sys.exit(5 if n_failed else 0)


def run(
    *, n_jobs: int, n_calibrate: int, seed: int, out: Path | None, cache: Path, workers: int, name: str | None
) -> int:
    """Measure, train, write and print; give the number of jobs that failed."""
    if name and out is None:
        raise UsageError(
            "--leave-out trains no classifier to ship; say with --out where to write it", where="--leave-out"
        )
    if importlib.util.find_spec("sklearn") is None:
        raise UsageError("training needs scikit-learn: pip install 'diagnose-training[train]'")
    path = out or PACKAGED
    wanted = {
        "trees": RandomJobs(seed, n_jobs, NOISE),
        "calibration": RandomJobs(seed + CALIBRATION_SEED, n_calibrate, CALIBRATION_NOISE),
    }
    began_s, digest = time.monotonic(), measuring_digest()
    measured = {
        name: measure_jobs(part, cache=cache, workers=workers, progress=Progress(name, part.n_jobs))
        for name, part in wanted.items()
    }
    measured_s = time.monotonic() - began_s
    if measuring_digest() != digest:
        raise UsageError("the code that measures changed meanwhile; run again", where="diagnose")
    failed = [job for jobs in measured.values() for job in jobs if job.error]
    left_out: list[MeasuredJob] = []
    if name:
        left_out = [job for jobs in measured.values() for job in jobs if job.features and job.has(name)]
        measured = {part: [job for job in jobs if not job.has(name)] for part, jobs in measured.items()}
        if not left_out:
            click.echo(f"warning: no job has {name}", err=True)
    rules = load_rules().rules
    model = train(measured["trees"], measured["calibration"], rules, seed=seed, left_out=left_out)
    model["training"] |= {
        "seeds": {name: part.seed for name, part in wanted.items()},
        "noise": {name: list(part.noise) for name, part in wanted.items()},
        "failed": len(failed),
        "left_out_name": name,
        "measured_by": digest,
    }
    write_model(model, path)
    took = f"measured in {measured_s:.0f} s, trained in {time.monotonic() - began_s - measured_s:.0f} s"
    click.echo(_render(model["training"], path, took), nl=False)
    for job in failed:
        click.echo(f"failed: job {job.index} of seed {job.seed}: {job.error}", err=True)
    return len(failed)


def _render(figures: dict[str, Any], path: Path, took: str) -> str:
    """Write the figures as a page."""
    jobs, classifier = figures["jobs"], load_classifier(path)
    assert classifier is not None
    lines = [
        f"{path}: {path.stat().st_size:,} bytes, digest {classifier.digest}, {len(classifier.inputs)} inputs",
        f"{jobs['trees']} jobs for the trees, {jobs['calibration']} others for the calibration, {figures['failed']} failed; {took}",
        *_render_part("on the others", figures["held_out"]),
    ]
    if "left_out" in figures:
        part = figures["left_out"]
        lines += _render_part(f"on {part['jobs']} jobs with {figures['left_out_name']}, left out", part)
    if figures["causes_without_jobs"]:
        lines.append(f"no job with (or without): {', '.join(figures['causes_without_jobs'])}")
    return "".join(f"{line}\n" for line in lines)


def _render_part(title: str, part: dict[str, Any]) -> list[str]:
    """Write the figures on some jobs."""
    loss, ece, said = part["log_loss"], part["ece"], part["said"]
    return [
        f"{title}: macro-F1 {part['macro_f1']}",
        *(f"  {cause:26}{'-' if f1 is None else f1}" for cause, f1 in part["f1"].items()),
        f"  log loss {loss['before']} -> {loss['after']}, calibration error {ece['before']} -> {ece['after']}",
        f"  {said['n']} causes said, with {said['mean_probability']} on average; {said['true_share']} of them true",
    ]


if __name__ == "__main__":
    main()
