"""`python -m diagnose.faults.score`: diagnose jobs whose truth is known, and say how good the diagnoses are.

python -m diagnose.faults.score FOLDER --workers 2
python -m diagnose.faults.score --jobs 300 --seed 7 --noise 0.3 3 --json score.json --worst 20

A cause is true where at least 2% of the step comes back with it mended (`figures` says all definitions).
"""

import dataclasses
import functools
import io
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
from diagnose.faults.figures import (
    NOTHING,
    UNKNOWN,
    CauseFigures,
    Figures,
    OnsetFigures,
    Rate,
    Row,
    SaidCause,
    TrueCause,
    describe,
    find_worst,
    hear,
    measure,
)
from diagnose.faults.generate import draw_job, generate, name_truth

if TYPE_CHECKING:
    from diagnose.model.diagnosis import Diagnosis

EXIT_BATCH = 5
#: A cell of a table without a figure.
NONE = "-"
Worker = tuple[int, int]


@click.command()
@click.argument(
    "folder", required=False, type=click.Path(exists=True, file_okay=False, path_type=Path), metavar="[FOLDER]"
)
@click.option(
    "--jobs", type=click.IntRange(min=1), help="Make that many random jobs in memory instead of reading some."
)
@click.option("--seed", type=click.IntRange(min=0), default=0, show_default=True, help="Seed of the jobs made.")
@click.option("--noise", type=float, nargs=2, metavar="LOW HIGH", help="Range of the noise of the jobs made.")
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
    heard = [hear(row, min_confidence) for row in rows if not row.error]
    for line in list_rows("Judged worst", [describe(row) for row in find_worst(heard, worst)]):
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
    no_evidence: bool,
    workers: int,
) -> list[Row]:
    """Diagnose all jobs of a folder, or random ones.

    Raises
    ------
    UsageError
        Neither a folder nor a number of jobs is given, or both; the folder has no jobs.
    """
    if (folder is None) == (jobs is None):
        raise UsageError("expected a folder of jobs, or --jobs N to make some", where="jobs")
    calls: list[functools.partial[Row]]
    if folder is not None:
        if noise or no_evidence:
            raise UsageError(
                "the jobs of a folder are as they are; --noise and --no-evidence go with --jobs", where="jobs"
            )
        paths = sorted(path for path in folder.glob("*.parquet") if name_truth(path).is_file())
        if not paths:
            raise UsageError("no *.parquet with a *.truth.json beside it", where=str(folder))
        calls = [functools.partial(judge_file, path) for path in paths]
    else:
        options: dict[str, Any] = {"noise": noise} if noise else {}
        options |= {"evidence": False} if no_evidence else {}
        calls = [functools.partial(judge_drawn, seed, i, options) for i in range(jobs or 0)]
    rows = []
    shown = sys.stderr.isatty()
    for row in run(calls, workers):
        rows.append(row)
        if shown:
            click.echo(f"\r{len(rows)} of {len(calls)} jobs ", nl=False, err=True)
    if shown:
        click.echo(err=True)
    return rows


def run(calls: Sequence[functools.partial[Row]], workers: int) -> Iterator[Row]:
    """Judge every job, in order, in some processes."""
    if workers == 1:
        for call in calls:
            yield call()
        return
    # Not forked: the libraries have threads by now.
    with ProcessPoolExecutor(workers, mp_context=multiprocessing.get_context("spawn")) as pool:
        futures = [pool.submit(call) for call in calls]
        yield from map(_result, futures, calls)


def _result(future: Future[Row], call: functools.partial[Row]) -> Row:
    """Wait for a row; where the process died, say so."""
    try:
        return future.result()
    except Exception as error:  # noqa: BLE001 - a process that died takes its job with it, not the others' rows
        return Row(" ".join(str(arg) for arg in call.args), error=_what(error))


def judge_file(path: Path) -> Row:
    """Read a job and its truth, and diagnose it."""
    row = Row(path.name.removesuffix(".parquet"))
    try:
        truth = json.loads(name_truth(path).read_text(encoding="utf-8"))
        row = read_truth(truth, np.unique(pq.read_table(path, columns=["step"])["step"].to_numpy()).tolist())
        return _diagnosed(row, path)
    except Exception as error:  # noqa: BLE001 - one broken job must not stop the others
        return dataclasses.replace(row, error=_what(error))


def judge_drawn(seed: int, i: int, options: dict[str, Any]) -> Row:
    """Make a job, and diagnose it."""
    row = Row(f"job-{seed}-{i:05d}")
    try:
        job = generate(*draw_job(seed, i, **options))
        row = read_truth(json.loads(job.truth.to_json()), job.truth.spec.step_numbers().tolist())
        file = io.BytesIO()
        pq.write_table(job.trace, file)
        file.seek(0)
        return _diagnosed(row, file)
    except Exception as error:  # noqa: BLE001 - one broken job must not stop the others
        return dataclasses.replace(row, error=_what(error))


def _what(error: Exception) -> str:
    """Write an exception in one line."""
    return " ".join(f"{type(error).__name__}: {error}".split())


def read_truth(truth: dict[str, Any], steps: Sequence[int]) -> Row:
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
        )
        other = causes.get(one.cause)
        if other is not None:
            more, less = sorted((one, other), key=lambda true: -true.worth)
            one = dataclasses.replace(more, workers=more.workers + less.workers, stages=more.stages + less.stages)
        causes[one.cause] = one
    return Row(
        job=truth["job_id"],
        dp=truth["spec"]["dp"],
        pp=truth["spec"]["pp"],
        steps=tuple(steps),
        decoys=tuple(truth.get("decoys", ())),
        truth=tuple(causes.values()),
    )


def _workers(pairs: Sequence[Sequence[int]]) -> tuple[Worker, ...]:
    """Read (dp rank, stage) pairs."""
    return tuple((int(dp), int(stage)) for dp, stage in pairs)


def _diagnosed(row: Row, source: Path | io.BytesIO) -> Row:
    """Diagnose a job and keep what was said."""
    from diagnose.pipeline import diagnose_job  # here, so that whoever looks for causes in this folder need not load it

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # as the command line does
        return add_diagnosis(row, diagnose_job(source, name=row.job))


def add_diagnosis(row: Row, diagnosis: "Diagnosis") -> Row:
    """Put what a diagnosis says beside what is true."""
    return dataclasses.replace(
        row,
        verdict=diagnosis.verdict,
        said=tuple(
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
            )
            for cause in diagnosis.causes
        ),
        slowdown=diagnosis.what_if.slowdown,
        m_w=diagnosis.features.get("worker.m_w"),
        m_s=diagnosis.features.get("stage.m_s"),
        correlation=diagnosis.features.get("sequence.correlation"),
    )


def list_rows(title: str, lines: Sequence[str]) -> list[str]:
    """Put a title above some lines; nothing where there are none."""
    return ["", title, *lines] if lines else []


def to_json(rows: Sequence[Row], figures: Figures) -> str:
    """Write rows and figures; same jobs, same bytes."""
    fields = {"figures": dataclasses.asdict(figures), "rows": [dataclasses.asdict(row) for row in rows]}
    return json.dumps(fields, indent=1) + "\n"


def render(figures: Figures, *, markdown: bool = False) -> str:
    """Write all figures as tables.

    Parameters
    ----------
    figures : Figures
    markdown : bool
        Tables in Markdown, else in aligned columns.
    """
    tables = [
        _render_causes(figures),
        _render_places(figures),
        _render_job_rates(figures),
        _render_published(figures),
        _render_calibration(figures),
        _render_confusion(figures),
    ]
    return "\n".join(f"{_title(title, markdown)}\n{table(cells, markdown=markdown)}" for title, cells in tables)


def _title(title: str, markdown: bool) -> str:  # noqa: FBT001 - passed on
    """Write what stands above a table."""
    return f"**{title}**\n" if markdown else title


Table = tuple[str, list[list[str]]]


def _render_causes(figures: Figures) -> Table:
    """Show how well each cause is found."""
    cells = [["cause", "jobs", "found", "missed", "made up", "precision", "recall", "F1"]]
    cells += [_cause_cells(cause) for cause in figures.causes]
    total = [sum(getattr(c, name) for c in figures.causes) for name in ("n", "found", "missed", "made_up")]
    cells.append(["all", *map(str, total), NONE, NONE, f"macro {ratio(figures.macro_f1)}"])
    said = (
        f"causes said with confidence {figures.min_confidence:g} or more" if figures.min_confidence else "causes said"
    )
    failed = f", {figures.n_failed} failed" if figures.n_failed else ""
    return f"Causes ({figures.n_jobs} jobs, {figures.n_healthy} of them healthy{failed}; {said})", cells


def _cause_cells(cause: CauseFigures) -> list[str]:
    """Show one cause."""
    counts = [str(n) for n in (cause.n, cause.found, cause.missed, cause.made_up)]
    return [cause.cause, *counts, ratio(cause.precision), ratio(cause.recall), ratio(cause.f1)]


def _render_places(figures: Figures) -> Table:
    """Show how right place, time and gain of the causes found are."""
    cells = [
        ["of causes found", "worker", "stage", "onset exact", "median off", "missing", "made up", "gain off", "p90"],
    ]
    parts: list[tuple[str, CauseFigures | Figures]] = [(cause.cause, cause) for cause in figures.causes]
    for name, part in [*parts, ("all", figures)]:
        gain = [ratio(part.gain.mean, 4), ratio(part.gain.p90, 4)]
        cells.append([name, _of(part.worker), _of(part.stage), *_onset_cells(part.onset), *gain])
    return "Places (named first), onsets (in sampled steps), absolute error of recoverable (part of the step)", cells


def _onset_cells(onset: OnsetFigures) -> list[str]:
    """Show the figures of onsets."""
    dated = onset.n - onset.n_missing
    exact = f"{ratio(onset.exact)} of {dated}" if dated else NONE
    missing = f"{onset.n_missing} of {onset.n}" if onset.n else NONE
    return [exact, NONE if onset.median is None else f"{onset.median:g}", missing, str(onset.n_made_up)]


def _render_job_rates(figures: Figures) -> Table:
    """Show what is counted by job."""
    cells = [["by job", "share", "jobs"]]
    for name, found in (
        ("largest cause said first", figures.primary),
        ("healthy with anything said", figures.false_alarms),
        (f"faulty with `{UNKNOWN}` said", figures.unknown),
    ):
        cells.append([name, ratio(found.share), f"{found.hits} of {found.n}"])
    return "Jobs", cells


def _render_published(figures: Figures) -> Table:
    """Show what the published thresholds would make of the same jobs."""
    cells = [["cause", "jobs", "found", "missed", "made up", "precision", "recall", "F1"]]
    cells += [_cause_cells(cause) for cause in figures.published]
    cells.append(["all", NONE, NONE, NONE, NONE, NONE, NONE, f"macro {ratio(figures.published_macro_f1)}"])
    return (
        "Published thresholds on the same jobs (arXiv 2505.05713: S >= 1.1, M_W or M_S >= 0.5, correlation >= 0.9)",
        cells,
    )


def _render_calibration(figures: Figures) -> Table:
    """Show how often what is said with some confidence is there."""
    cells = [["confidence", "said", "mean", "there"]]
    for found in figures.bins:
        span = f"{found.lowest:.3f} - {found.highest:.3f}"
        cells.append([span, str(found.n), ratio(found.confidence), ratio(found.right)])
    return f"Confidence (expected calibration error {ratio(figures.calibration_error)}, all confidences)", cells


def _render_confusion(figures: Figures) -> Table:
    """Show what is taken for what."""
    said = {name for row in figures.confusion.values() for name in row}
    columns = sorted(said - {UNKNOWN, NOTHING}) + [name for name in (UNKNOWN, NOTHING) if name in said]
    cells = [["true \\ said first", *columns]]
    for cause, row in figures.confusion.items():
        cells.append([cause, *(str(row.get(name, "")) for name in columns)])
    return "Jobs with exactly one cause", cells


def ratio(value: float | None, digits: int = 3) -> str:
    """Write a number; None where there is none."""
    return NONE if value is None else f"{value:.{digits}f}"


def _of(found: Rate) -> str:
    """Write a share with what it is a share of."""
    return f"{ratio(found.share)} of {found.n}" if found.n else NONE


def table(cells: Sequence[Sequence[str]], *, markdown: bool = False) -> str:
    """Write a table whose first row is its head; the first column stands left, the others right.

    >>> print(table([["cause", "n"], ["network-fault", "7"]]), end="")
    cause          n
    network-fault  7
    """
    if markdown:
        rule = ["---"] + ["--:"] * (len(cells[0]) - 1)
        return "".join(f"| {' | '.join(row)} |\n" for row in [cells[0], rule, *cells[1:]])
    widths = [max(len(row[i]) for row in cells) for i in range(len(cells[0]))]
    lines = []
    for row in cells:
        rest = [cell.rjust(width) for cell, width in zip(row[1:], widths[1:], strict=True)]
        lines.append("  ".join([row[0].ljust(widths[0]), *rest]).rstrip() + "\n")
    return "".join(lines)


if __name__ == "__main__":
    main()
