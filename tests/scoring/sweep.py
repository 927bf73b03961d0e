"""`python -m tests.scoring.sweep`: how large must a fault be to be found, kind by kind, and what is said of what is none.

python -m tests.scoring.sweep --kind worker-fault/worker --kind data-loading --jobs 20 --workers 2
python -m tests.scoring.sweep --decoy longer-computes --decoy evaluation --jobs 50 --rows /tmp/healthy.jsonl

A fault is made as strong as it must be to lose a given part of the mean step time, in jobs of varied worlds: the same jobs at every
strength. Job i of a seed is the same however many there are.
"""

import dataclasses
import functools
import json
import multiprocessing
import sys
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from pathlib import Path
from typing import Any, TypeVar

import click

from diagnose.errors import DiagnoseError, UsageError
from diagnose.faults.catalogue import list_cause_files
from tests.scoring.score_tables import table
from tests.scoring.sweep_tables import list_worst, table_of_decoys, table_of_faults
from tests.scoring.swept import DECOYS, Point, SweptJob, read_row, sweep_one

Done = TypeVar("Done")

#: Parts of the step that are lost, as far as a fault can cost as much.
LOST = (0.03, 0.06, 0.12, 0.30)


@click.command()
@click.option(
    "--kind", "kinds", multiple=True, help="A kind of fault, as worker-fault/replica, or a cause: all its kinds."
)
@click.option("--decoy", "decoys", multiple=True, type=click.Choice(list(DECOYS)), help="A decoy, in healthy jobs.")
@click.option(
    "--lost", multiple=True, type=click.FloatRange(0.0, 0.95), default=LOST, show_default=True, help="Parts lost."
)
@click.option("--jobs", type=click.IntRange(min=1), default=20, show_default=True, help="Jobs a kind and strength.")
@click.option("--seed", type=click.IntRange(min=0), default=0, show_default=True)
@click.option("--no-evidence", is_flag=True, help="Make jobs without evidence rows and token columns.")
@click.option("--world", help="A feature that all worlds have.")
@click.option(
    "--rows",
    "path",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Keep rows there; those that are there stay.",
)
@click.option(
    "--worst", type=click.IntRange(min=0), default=0, metavar="N", help="List up to N wrong jobs of each point."
)
@click.option(
    "--workers", type=click.IntRange(min=1), default=1, show_default=True, help="Processes; they change nothing."
)
@click.option("--markdown", is_flag=True, help="Tables in Markdown.")
def main(
    kinds: tuple[str, ...],
    decoys: tuple[str, ...],
    lost: tuple[float, ...],
    jobs: int,
    path: Path | None,
    worst: int,
    workers: int,
    *,
    markdown: bool,
    **given: Any,
) -> None:
    """Sweep kinds of faults, all of them where none is named, and decoys over strengths."""
    try:
        swept = sweep(list_points(kinds, decoys, lost, **given), jobs, path=path, workers=workers)
    except DiagnoseError as error:
        click.echo(f"error: {error}", err=True)
        sys.exit(error.exit_code)
    for title, cells in (table_of_faults(swept), table_of_decoys(swept)):
        if len(cells) > 1:
            click.echo(f"{title}\n{table(cells, markdown=markdown)}")
    for line in list_worst(swept, worst):
        click.echo(line)


def list_points(
    kinds: Sequence[str],
    decoys: Sequence[str],
    strengths: Sequence[float],
    *,
    seed: int,
    no_evidence: bool,
    world: str | None,
) -> list[Point]:
    """List what is swept: all kinds where nothing is named.

    Raises
    ------
    UsageError
        There is no such kind.
    """
    named = list_kinds(kinds) if kinds or not decoys else []
    both = [*((name, False) for name in named), *((name, True) for name in decoys)]
    return [Point(name, part, is_decoy, seed, not no_evidence, world) for name, is_decoy in both for part in strengths]


def sweep(points: Sequence[Point], n_jobs: int, *, path: Path | None = None, workers: int = 1) -> list[SweptJob]:
    """Diagnose some jobs of each point, those left out that the file `path` has already."""
    known = {(job.point, job.index): job for job in _read_rows(path)}
    wanted = [(point, i) for point in points for i in range(n_jobs)]
    left = [order for order in wanted if order not in known]
    for n_done, job in enumerate(
        run_in_any_order([functools.partial(sweep_one, *order) for order in left], workers), start=1
    ):
        known[job.point, job.index] = job
        if path is not None:
            with path.open("a", encoding="utf-8") as file:
                file.write(json.dumps(dataclasses.asdict(job)) + "\n")
        if sys.stderr.isatty():
            click.echo(f"\r{n_done} of {len(left)} jobs ", nl=n_done == len(left), err=True)
    return [known[order] for order in wanted]


def run_in_any_order(calls: Sequence[functools.partial[Done]], workers: int) -> Iterator[Done]:
    """Call all in some processes; what is done first comes first."""
    if workers == 1:
        for call in calls:
            yield call()
        return
    # Not forked: the libraries have threads by now.
    with ProcessPoolExecutor(workers, mp_context=multiprocessing.get_context("spawn")) as pool:
        for future in as_completed([pool.submit(call) for call in calls]):
            yield future.result()


def list_kinds(names: Sequence[str] = ()) -> list[str]:
    """List kinds as `cause/kind`: those given, all of a cause given, or all there are.

    Raises
    ------
    UsageError
        There is no such kind.
    """
    known = [f"{cause}/{kind}" for cause, file in list_cause_files().items() for kind in file.kinds]
    found = [kind for kind in known if not names or kind in names or kind.partition("/")[0] in names]
    if unknown := [name for name in names if not any(name in (kind, kind.partition("/")[0]) for kind in found)]:
        raise UsageError(f"no kind {', '.join(unknown)}; expected some of {', '.join(known)}", where="--kind")
    return found


def _read_rows(path: Path | None) -> Iterator[SweptJob]:
    """Read the rows of an earlier sweep; a last line that is half written is left out."""
    for line in path.read_text(encoding="utf-8").splitlines() if path is not None and path.exists() else ():
        try:
            fields = json.loads(line)
        except ValueError:
            return
        yield SweptJob(**{**fields, "point": Point(**fields["point"]), "judged": read_row(fields["judged"])})


if __name__ == "__main__":
    main()
