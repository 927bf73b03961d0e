"""`python -m tests.scoring.score`: diagnose jobs whose truth is known, and say how good the diagnoses are.

python -m tests.scoring.score FOLDER --workers 2
python -m tests.scoring.score --jobs 300 --seed 7 --noise 0.3 3 --json score.json --worst 20

A cause is true where at least 2% of the step comes back with it mended (`figures` says all definitions).
"""

import dataclasses
import functools
import io
import itertools
import json
import multiprocessing
import sys
import warnings
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
import numpy as np
import pyarrow.parquet as pq

from diagnose.errors import DiagnoseError, UsageError
from diagnose.faults.fault import Worker
from diagnose.faults.generate import Job, draw_job, generate, name_truth
from diagnose.model.request import Request
from tests.scoring.figures import Figures, drop_unsure, measure
from tests.scoring.judged import JudgedJob, SaidCause, TrueCause, describe, find_worst
from tests.scoring.score_tables import render

if TYPE_CHECKING:
    from diagnose.model.cause import Cause
    from diagnose.model.diagnosis import Diagnosis

EXIT_BATCH = 5


@click.command()
@click.argument(
    "folder", required=False, type=click.Path(exists=True, file_okay=False, path_type=Path), metavar="[FOLDER]"
)
@click.option(
    "--jobs", type=click.IntRange(min=1), help="Make that many random jobs in memory instead of reading some."
)
@click.option("--seed", type=click.IntRange(min=0), default=0, show_default=True, help="Seed of the jobs made.")
@click.option("--noise", type=float, nargs=2, metavar="LOW HIGH", help="Range of the noise of the jobs made.")
@click.option(
    "--cause", "causes", multiple=True, help="Make jobs with these causes, or kinds (worker-fault/replica), alone."
)
@click.option("--world", help="Make jobs whose worlds have this feature.")
@click.option("--healthy", is_flag=True, help="Of the jobs made, take those without a fault.")
@click.option("--no-evidence", is_flag=True, help="Make jobs without evidence rows (gc, data-load, ...).")
@click.option(
    "--workers", type=click.IntRange(min=1), default=1, show_default=True, help="Processes; they change nothing."
)
@click.option(
    "--min-confidence",
    type=click.FloatRange(0.0, 1.0),
    default=0.0,
    show_default=True,
    help="A cause is said from this confidence on.",
)
@click.option(
    "--json", "json_path", type=click.Path(dir_okay=False, path_type=Path), help="Write rows and figures there."
)
@click.option("--worst", type=click.IntRange(min=0), default=0, metavar="N", help="List the N jobs judged worst.")
@click.option("--markdown", is_flag=True, help="Tables in Markdown.")
def main(
    folder: Path | None, json_path: Path | None, min_confidence: float, worst: int, *, markdown: bool, **given: Any
) -> None:
    """Diagnose the jobs in FOLDER (`*.parquet` with `*.truth.json` beside them), or some made in memory."""
    try:
        rows = judge_jobs(folder, **given)
    except DiagnoseError as error:
        click.echo(f"error: {error}", err=True)
        sys.exit(error.exit_code)
    figures = measure(rows, min_confidence=min_confidence)
    click.echo(render(figures, markdown=markdown), nl=False)
    sure = [drop_unsure(row, min_confidence) for row in rows if not row.error]
    for line in list_rows("Judged worst", [describe(row) for row in find_worst(sure, worst)]):
        click.echo(line)
    for line in list_rows("Failed", [f"{row.job}: {row.error}" for row in rows if row.error]):
        click.echo(line)
    if json_path is not None:
        json_path.write_text(to_json(rows, figures), encoding="utf-8")
    sys.exit(EXIT_BATCH if figures.n_failed else 0)


def judge_jobs(
    folder: Path | None,
    *,
    jobs: int | None,
    seed: int,
    noise: tuple[float, float] | None,
    causes: tuple[str, ...] = (),
    world: str | None = None,
    healthy: bool = False,
    no_evidence: bool,
    workers: int,
) -> list[JudgedJob]:
    """Diagnose all jobs of a folder, or random ones.

    Raises
    ------
    UsageError
        Neither a folder nor a number of jobs is given, or both; the folder has no jobs.
    """
    if (folder is None) == (jobs is None):
        raise UsageError("expected a folder of jobs, or --jobs N to make some", where="jobs")
    if healthy and causes:
        raise UsageError("a healthy job has no cause; expected one of --healthy and --cause", where="jobs")
    calls: list[functools.partial[JudgedJob]]
    if folder is not None:
        if noise or no_evidence or causes or world or healthy:
            raise UsageError(
                "the jobs of a folder are as they are; --noise, --cause, --world, --healthy and --no-evidence go with --jobs",
                where="jobs",
            )
        paths = sorted(path for path in folder.glob("*.parquet") if name_truth(path).is_file())
        if not paths:
            raise UsageError("no *.parquet with a *.truth.json beside it", where=str(folder))
        calls = [functools.partial(judge_file, path) for path in paths]
    else:
        options: dict[str, Any] = {"noise": noise} if noise else {}
        options |= {"evidence": False} if no_evidence else {}
        options |= {"causes": causes} if causes else {}
        options |= {"world": world} if world else {}
        drawn = (i for i in itertools.count() if not healthy or not draw_job(seed, i, **options)[1])
        calls = [functools.partial(judge_drawn, seed, i, options) for i in itertools.islice(drawn, jobs)]
    rows = []
    shown = sys.stderr.isatty()
    for row in run(calls, workers):
        rows.append(row)
        if shown:
            click.echo(f"\r{len(rows)} of {len(calls)} jobs ", nl=False, err=True)
    if shown:
        click.echo(err=True)
    return rows


def run(calls: Sequence[functools.partial[JudgedJob]], workers: int) -> Iterator[JudgedJob]:
    """Judge every job, in order, in some processes."""
    if workers == 1:
        for call in calls:
            yield call()
        return
    # Not forked: the libraries have threads by now.
    with ProcessPoolExecutor(workers, mp_context=multiprocessing.get_context("spawn")) as pool:
        futures = [pool.submit(call) for call in calls]
        yield from map(_result, futures, calls)


def _result(future: Future[JudgedJob], call: functools.partial[JudgedJob]) -> JudgedJob:
    """Wait for a row; where the process died, say so."""
    try:
        return future.result()
    except Exception as error:  # noqa: BLE001 - a process that died takes its job with it, not the others' rows
        return JudgedJob(" ".join(str(arg) for arg in call.args), error=what(error))


def judge_file(path: Path) -> JudgedJob:
    """Read a job and its truth, and diagnose it."""
    row = JudgedJob(path.name.removesuffix(".parquet"))
    try:
        truth = json.loads(name_truth(path).read_text(encoding="utf-8"))
        row = read_truth(truth, np.unique(pq.read_table(path, columns=["step"])["step"].to_numpy()).tolist())
        return _diagnosed(row, path)
    except Exception as error:  # noqa: BLE001 - one broken job must not stop the others
        return dataclasses.replace(row, error=what(error))


def judge_drawn(seed: int, i: int, options: dict[str, Any]) -> JudgedJob:
    """Make a job, and diagnose it."""
    row = JudgedJob(f"job-{seed}-{i:05d}")
    try:
        job = generate(*draw_job(seed, i, **options))
    except Exception as error:  # noqa: BLE001 - one broken job must not stop the others
        return dataclasses.replace(row, error=what(error))
    return judge_generated(job)


def judge_generated(job: Job) -> JudgedJob:
    """Diagnose a job that was made."""
    row = read_truth(json.loads(job.truth.to_json()), job.truth.spec.step_numbers().tolist())
    try:
        file = io.BytesIO()
        pq.write_table(job.trace, file)
        file.seek(0)
        return _diagnosed(row, file)
    except Exception as error:  # noqa: BLE001 - one broken job must not stop the others
        return dataclasses.replace(row, error=what(error))


def what(error: Exception) -> str:
    """Write an exception in one line."""
    return " ".join(f"{type(error).__name__}: {error}".split())


def read_truth(truth: dict[str, Any], steps: Sequence[int]) -> JudgedJob:
    """Take what is needed from the file `*.truth.json`, one entry a cause: the fault that costs most, in all its places."""
    causes: dict[str, TrueCause] = {}
    for fault in truth["faults"]:
        one = TrueCause(
            cause=fault["cause"],
            workers=_workers(fault["workers"]),
            stages=tuple(fault["stages"]),
            onset_step=fault["onset_step"],
            recoverable=fault["recoverable"],
            recoverable_last=fault.get("recoverable_last", fault["recoverable"]),
            tellable=fault.get("tellable", True),
            place_tellable=fault.get("place_tellable", True),
            kind=fault.get("kind", ""),
        )
        other = causes.get(one.cause)
        if other is not None:
            more, less = sorted((one, other), key=lambda true: -true.worth)
            one = dataclasses.replace(more, workers=more.workers + less.workers, stages=more.stages + less.stages)
        causes[one.cause] = one
    return JudgedJob(
        job=truth["job_id"],
        dp=truth["spec"]["dp"],
        pp=truth["spec"]["pp"],
        steps=tuple(steps),
        decoys=tuple(truth.get("decoys", ())),
        world=tuple(truth.get("world", ())),
        truth=tuple(causes.values()),
    )


def _workers(pairs: Sequence[Sequence[int]]) -> tuple[Worker, ...]:
    """Read (dp rank, stage) pairs."""
    return tuple((int(dp), int(stage)) for dp, stage in pairs)


def _diagnosed(row: JudgedJob, source: Path | io.BytesIO) -> JudgedJob:
    """Diagnose a job and keep what was said."""
    from diagnose.pipeline import diagnose_job  # here, so that whoever looks for causes in this folder need not load it

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # as the command line does
        return add_diagnosis(row, diagnose_job(Request(source, name=row.job)))


def add_diagnosis(row: JudgedJob, diagnosis: "Diagnosis") -> JudgedJob:
    """Put what a diagnosis says beside what is true."""
    return dataclasses.replace(
        row,
        verdict=diagnosis.verdict,
        said=read_said(diagnosis.causes),
        slowdown=diagnosis.what_if.slowdown,
        m_w=diagnosis.features.get("worker.m_w"),
        m_s=diagnosis.features.get("stage.m_s"),
        correlation=diagnosis.features.get("sequence.correlation"),
    )


def read_said(causes: "Sequence[Cause]") -> tuple[SaidCause, ...]:
    """Take what is needed from the causes of a diagnosis."""
    return tuple(
        SaidCause(
            cause=cause.cause,
            confidence=cause.confidence,
            share=cause.share,
            recoverable=cause.recoverable,
            workers=tuple((worker.dp, worker.pp) for worker in cause.where.workers),
            stages=cause.where.stages,
            links=tuple(
                ((link.source.dp, link.source.pp), (link.target.dp, link.target.pp)) for link in cause.where.links
            ),
            onset_step=cause.when.onset_step,
            pattern=cause.when.pattern,
            alternatives={other.cause: other.confidence for other in cause.alternatives},
        )
        for cause in causes
    )


def list_rows(title: str, lines: Sequence[str]) -> list[str]:
    """Put a title above some lines; nothing where there are none."""
    return ["", title, *lines] if lines else []


def to_json(rows: Sequence[JudgedJob], figures: Figures) -> str:
    """Write rows and figures; same jobs, same bytes."""
    fields = {"figures": dataclasses.asdict(figures), "rows": [dataclasses.asdict(row) for row in rows]}
    return json.dumps(fields, indent=1) + "\n"


if __name__ == "__main__":
    main()
