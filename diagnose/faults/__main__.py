"""`python -m diagnose.faults`: write one generated job, or a folder of random ones, a corpus.

python -m diagnose.faults OUT.parquet --cause worker-fault --pp 4 --dp 4 --strength 1.5 --seed 1
python -m diagnose.faults FOLDER --jobs 100 --seed 1 --noise-range 0.5 2 --no-evidence --workers 4

Job i of a seed is the same however many there are and whoever writes it. Jobs that the folder has already are left alone,
so that a corpus which was interrupted is gone on with by the same command.
"""

import dataclasses
import os
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, get_args

import click

from diagnose.errors import DiagnoseError, UsageError
from diagnose.faults.corpus import Corpus, write_corpus
from diagnose.faults.generate import Job, generate, list_causes, write_job
from diagnose.faults.spec import NOISE, JobSpec


def add_spec_options(command: Callable[..., None]) -> Callable[..., None]:
    """Give a command one option for each field of a job."""
    for field in reversed(dataclasses.fields(JobSpec)):
        name = field.name.replace("_", "-")
        if field.type is bool:
            option = click.option(f"--{name}/--no-{name}", default=field.default, show_default=True)
        elif choices := get_args(field.type):
            option = click.option(f"--{name}", type=click.Choice(choices), default=field.default, show_default=True)
        else:
            option = click.option(f"--{name}", type=field.type, default=field.default, show_default=True)
        command = option(command)
    return command


@click.command()
@click.argument("out", type=click.Path(path_type=Path))
@click.option("--cause", "causes", multiple=True, help="Cause of a fault in the job; may be repeated. None: healthy.")
@click.option("--strength", type=float, help="Strength of the faults, in the unit of the cause; drawn when left out.")
@click.option("--onset", type=int, help="Index of the sampled step from which on the faults happen.")
@click.option("--jobs", type=click.IntRange(min=1), help="Write that many random jobs into the folder OUT instead.")
@click.option(
    "--noise-range", type=(float, float), default=NOISE, show_default=True, help="Limits of the noise of random jobs."
)
@click.option("--workers", type=click.IntRange(1, os.cpu_count() or 1), default=1, help="Processes for random jobs.")
@add_spec_options
def main(
    out: Path,
    causes: tuple[str, ...],
    strength: float | None,
    onset: int | None,
    jobs: int | None,
    noise_range: tuple[float, float],
    workers: int,
    **fields: Any,
) -> None:
    """Write a generated job to OUT (a Parquet file) with its truth beside it, or with --jobs many into the folder OUT.

    Of the options of a job, --seed and --no-evidence hold for random jobs too.
    """
    try:
        known = list_causes()
        for cause in causes:
            if cause not in known:
                raise UsageError(f"no cause {cause!r}; expected one of {', '.join(known)}", where="--cause")
        if jobs is not None:
            if not 0 < noise_range[0] <= noise_range[1]:
                raise UsageError(f"{noise_range}; expected two numbers above 0, the lower first", where="--noise-range")
            corpus = Corpus(out, fields["seed"], noise_range, fields["evidence"], causes)
            _watch(write_corpus(corpus, jobs, workers), jobs)
            return
        spec = JobSpec(**fields)
        write_job(_make(spec, causes, strength, onset), out)
    except DiagnoseError as error:
        click.echo(f"error: {error}", err=True)
        sys.exit(error.exit_code)


def _make(spec: JobSpec, causes: tuple[str, ...], strength: float | None, onset: int | None) -> Job:
    """Make the one job that the options describe."""
    rng = spec.random("fault")
    faults = []
    for cause in causes:
        fault = list_causes()[cause](spec, rng, strength=strength, onset=onset)
        if fault is None:
            raise UsageError(
                "a job of this shape cannot have it; use more stages, dp ranks or microbatches", where=cause
            )
        faults.append(fault)
    return generate(spec, faults)


def _watch(jobs: Iterable[None], n_jobs: int) -> None:
    """Let the jobs be written, and show on a terminal how far they are."""
    if sys.stderr.isatty():
        from rich.console import Console
        from rich.progress import track

        jobs = track(jobs, "Writing jobs", total=n_jobs, console=Console(stderr=True), transient=True)
    for _ in jobs:
        pass


if __name__ == "__main__":
    main()
