"""`python -m diagnose.faults`: write one generated job, or a folder of random ones.

python -m diagnose.faults OUT.parquet --cause worker-fault --pp 4 --dp 4 --strength 1.5 --seed 1
python -m diagnose.faults FOLDER --jobs 100 --seed 1
"""

import dataclasses
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, get_args

import click
import numpy as np

from diagnose.errors import DiagnoseError, UsageError
from diagnose.faults.generate import Job, generate, list_causes, random_faults, write_job
from diagnose.faults.spec import P2P, JobSpec, random_spec


def add_spec_options(command: Callable[..., None]) -> Callable[..., None]:
    """Give a command one option for each field of a job."""
    for field in reversed(dataclasses.fields(JobSpec)):
        name = field.name.replace("_", "-")
        if field.type is bool:
            option = click.option(f"--{name}/--no-{name}", default=field.default, show_default=True)
        elif field.name == "p2p":
            option = click.option("--p2p", type=click.Choice(get_args(P2P)), default=field.default, show_default=True)
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
@add_spec_options
def main(
    out: Path, causes: tuple[str, ...], strength: float | None, onset: int | None, jobs: int | None, **fields: Any
) -> None:
    """Write a generated job to OUT (a Parquet file) with its truth beside it."""
    try:
        known = list_causes()
        for cause in causes:
            if cause not in known:
                raise UsageError(f"no cause {cause!r}; expected one of {', '.join(known)}", where="--cause")
        if jobs is not None:
            _write_jobs(out, jobs, causes, seed=fields["seed"])
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


def _write_jobs(folder: Path, n_jobs: int, causes: tuple[str, ...], *, seed: int) -> None:
    """Write random jobs, healthy or faulty; job i of a seed is the same however many there are."""
    folder.mkdir(parents=True, exist_ok=True)
    for i in range(n_jobs):
        rng = np.random.default_rng([seed, i])
        spec = dataclasses.replace(random_spec(rng), job_id=f"job-{seed}-{i:05d}")
        write_job(generate(spec, random_faults(spec, rng, causes)), folder / f"{spec.job_id}.parquet")


if __name__ == "__main__":
    main()
