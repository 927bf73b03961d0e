"""`python -m diagnose.faults`: make the fixtures that are missing, one generated job, or a folder of random ones, a corpus.

python -m diagnose.faults
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
from diagnose.faults.fixtures import make_job, write_fixtures
from diagnose.faults.generate import list_causes, write_job
from diagnose.faults.spec import NOISE, JobSpec

#: Where the fixtures lie, from the root of the repository.
FIXTURES = Path("fixtures")


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
@click.argument("out", required=False, type=click.Path(path_type=Path))
@click.option("--cause", "causes", multiple=True, help="Cause of a fault in the job; may be repeated. None: healthy.")
@click.option("--strength", type=float, help="Strength of the faults, in the unit of the cause; drawn when left out.")
@click.option("--onset", type=int, help="Index of the sampled step from which on the faults happen.")
@click.option("--kind", help="Kind of the faults, one of the cause's; drawn when left out.")
@click.option("--jobs", type=click.IntRange(min=1), help="Write that many random jobs into the folder OUT instead.")
@click.option(
    "--noise-range", type=(float, float), default=NOISE, show_default=True, help="Limits of the noise of random jobs."
)
@click.option("--workers", type=click.IntRange(1, os.cpu_count() or 1), default=1, help="Processes for random jobs.")
@add_spec_options
def main(
    out: Path | None,
    causes: tuple[str, ...],
    strength: float | None,
    onset: int | None,
    kind: str | None,
    jobs: int | None,
    noise_range: tuple[float, float],
    workers: int,
    **fields: Any,
) -> None:
    """Write a generated job to OUT (a Parquet file) with its truth beside it, or with --jobs many into the folder OUT.

    Without OUT: make the fixtures that the folder `fixtures` lacks, and its README.

    Of the options of a job, --seed and --no-evidence hold for random jobs too.
    """
    try:
        if out is None:
            _make_fixtures()
            return
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
        write_job(make_job(spec, causes, strength=strength, onset=onset, kind=kind), out)
    except DiagnoseError as error:
        click.echo(f"error: {error}", err=True)
        sys.exit(error.exit_code)


def _make_fixtures() -> None:
    """Make what the folder of the fixtures lacks, and say what."""
    if not FIXTURES.is_dir():
        raise UsageError("no such folder here; run it at the root of the repository, or say OUT", where=str(FIXTURES))
    for path in write_fixtures(FIXTURES):
        click.echo(path)


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
