"""The command without a name: diagnose jobs.

Enters: traces. Leaves: a report each, drawings where asked for, and the exit code of all of them.
"""

import dataclasses
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from diagnose.cli.drawings import write_html, write_json, write_perfetto
from diagnose.cli.fail_on import fail_on_option, parse_gate
from diagnose.cli.inputs import check_jobs, import_pipeline, open_job
from diagnose.cli.options import (
    EXIT_BATCH,
    EXIT_INTERNAL,
    EXIT_STRAGGLING,
    Options,
    format_option,
    log_option,
    look_options,
    output_option,
    parse_numbers,
    perfetto_options,
    quiet_option,
    reading_options,
    telemetry_option,
    version_option,
)
from diagnose.cli.output import open_output, print_error, print_internal_error
from diagnose.errors import DiagnoseError, MetadataError, RuleError, asked_to_end

if TYPE_CHECKING:
    from collections.abc import Callable

    from diagnose.model.diagnosis import Diagnosis
    from diagnose.report.overview import JobInBrief

#: Name in the group of the command that diagnoses: no file and no command can have it.
JOBS = ""


class _JobsCommand(click.Command):
    """The command without a name; its help is the help of the program."""

    def get_help(self, ctx: click.Context) -> str:
        """Give the help of the group."""
        return ctx.find_root().command.get_help(ctx)


@click.command(JOBS, cls=_JobsCommand, hidden=True)
@click.argument("jobs", metavar="JOB...", nargs=-1, type=click.Path())
@format_option(
    "terminal",
    "json",
    "markdown",
    "junit",
    meaning="A page for people, one JSON object a job and line (see `diagnose schema`), Markdown for tickets, "
    "or JUnit XML for gates.",
)
@output_option
@reading_options
@log_option
@telemetry_option
@fail_on_option
@click.option(
    "-v",
    "--verbose",
    count=True,
    help="All figures of the job; twice: every rule with its conditions, every feature, too.",
)
@click.option(
    "--html", metavar="FILE", type=click.Path(), help="Draw the job on a page for a browser: one file, no network."
)
@click.option("--json", metavar="FILE", type=click.Path(), help="Write what `--format json` prints there, too.")
@perfetto_options
@look_options
@quiet_option
@version_option
def jobs_command(jobs: tuple[str, ...], fail_on: tuple[str, ...], **given: Any) -> int:
    """Diagnose every job, write its report or its error, and give the exit code."""
    options = Options(**given)
    check_jobs(jobs, options)
    parse_numbers("--steps", options.steps)  # refused before any work
    gate = parse_gate(fail_on)
    names = _call_jobs(jobs)
    failures: list[int] = []
    is_tripped = False
    with open_output(options.output) as write:
        reports = _Reports(write, options, len(jobs))
        for job in jobs:
            try:
                diagnosis = _diagnose_one(job, options)
                if options.json is not None:
                    write_json(diagnosis, options.json)
                if options.output_format != "json":
                    diagnosis = _rename(diagnosis, job, names)
                report = _render(diagnosis, job, options)
            except DiagnoseError as error:
                if isinstance(error, RuleError) and not isinstance(error, MetadataError):
                    raise
                said = str(error) if len(jobs) == 1 or job in str(error) else f"{job}: {error}"
                print_error(said)
                failures.append(error.exit_code)
                reports.add_failed(job, said)
            except Exception as error:
                if asked_to_end(error):
                    raise
                print_internal_error(error, job)
                failures.append(EXIT_INTERNAL)
                reports.add_failed(job, f"internal error: {type(error).__name__}")
            else:
                is_tripped = is_tripped or (gate is not None and gate.trips(diagnosis))
                reports.add(diagnosis, report)
        reports.end()
    return _exit_code(len(jobs), failures, is_tripped=is_tripped)


def _diagnose_one(job: str, options: Options) -> "Diagnosis":
    """Run the pipeline on one job, with progress on a terminal."""
    with open_job(job, options) as asked:
        from diagnose.alone import diagnose_alone, unpacked

        with unpacked(asked) as request:
            diagnosis = diagnose_alone(request) if options.perfetto is None else None
            data = None
            if diagnosis is None:
                import_pipeline()
                from diagnose.pipeline import prepare_report

                data = prepare_report(request)
                diagnosis = data.diagnosis
            if options.perfetto is None and options.html is None:
                return diagnosis
            request.report("drawing")
            if options.perfetto is not None and data is not None:
                write_perfetto(data, options.perfetto, options)
            if options.html is not None:
                write_html(diagnosis if data is None else data, job, options.html, options)
    return diagnosis


def _call_jobs(jobs: tuple[str, ...]) -> dict[str, str]:
    """Call the jobs of a list by enough of their paths to be told apart."""
    from diagnose.model.job_names import id_of_path, tell_apart

    paths = {job: Path(job) for job in jobs if job != "-"}
    names = tell_apart((os.path.abspath(job), id_of_path(path)) for job, path in paths.items())  # noqa: PTH100 - no links
    return {job: names[os.path.abspath(job)] for job in paths}  # noqa: PTH100


def _rename(diagnosis: "Diagnosis", job: str, names: dict[str, str]) -> "Diagnosis":
    """Call a job on a page as it is called in the list; what its metadata calls it stays."""
    from diagnose.model.job_names import id_of_path

    if job not in names or diagnosis.job.job_id != id_of_path(Path(job)):
        return diagnosis
    return dataclasses.replace(diagnosis, job=dataclasses.replace(diagnosis.job, job_id=names[job]))


def _render(diagnosis: "Diagnosis", job: str, options: Options) -> str:
    """Write one report in the format asked for."""
    if options.output_format == "json":
        from diagnose.report import json_lines

        return json_lines.render(diagnosis) + "\n"
    if options.output_format == "markdown":
        from diagnose.report import markdown

        return markdown.render(diagnosis)
    if options.output_format == "junit":
        from diagnose.report import junit

        return junit.render(diagnosis)
    written = (("Page", options.html), ("Timelines", options.perfetto))
    links = [(what, path) for what, path in written if path is not None]
    if not options.verbose:
        from diagnose.report import brief

        shown = None if job == "-" else job
        return brief.render(diagnosis, width=options.columns, color=options.color, path=shown, links=links)
    from diagnose.report import terminal

    thorough = options.verbose > 1
    return terminal.render(diagnosis, width=options.columns, color=options.color, thorough=thorough, links=links)


class _Reports:
    """The reports of all jobs as one document, written as they come; pages of several jobs end with a table of them."""

    def __init__(self, write: "Callable[[str], object]", options: Options, n_jobs: int) -> None:
        self._write = write
        self._options = options
        self._n_written = 0
        #: What stands before the first report, between two, and after the last.
        self._before, self._between, self._after = _list_joints(options)
        self._has_table = n_jobs > 1 and options.output_format in ("terminal", "markdown")
        self._jobs: list[JobInBrief] = []

    def add(self, diagnosis: "Diagnosis", report: str) -> None:
        """Write the report of a job."""
        if self._has_table:
            from diagnose.report.overview import sum_up

            self._jobs.append(sum_up(diagnosis))
        self._put(report)

    def add_failed(self, job: str, message: str) -> None:
        """Take note of a job that could not be diagnosed; only a document for gates has a place for why."""
        if self._has_table:
            from diagnose.report.overview import fail

            self._jobs.append(fail(job))
        if self._options.output_format == "junit":
            from diagnose.report import junit

            self._put(junit.render_error(job, message))

    def end(self) -> None:
        """Write what comes after the last."""
        if self._n_written:
            self._write(self._after)
        if not self._has_table:
            return
        from diagnose.report import overview

        options = self._options
        if options.output_format == "markdown":
            self._put(overview.render_markdown(self._jobs))
        else:
            self._put(overview.render(self._jobs, width=options.columns, color=options.color))

    def _put(self, report: str) -> None:
        """Write a part of the document."""
        self._write((self._between if self._n_written else self._before) + report)
        self._n_written += 1


def _list_joints(options: Options) -> tuple[str, str, str]:
    """Give what makes one document of several reports: what stands before the first, between two, and after the last."""
    match options.output_format:
        case "json":
            return "", "", ""
        case "markdown":
            from diagnose.report import markdown

            return "", markdown.BETWEEN, ""
        case "junit":
            from diagnose.report import junit

            return junit.BEFORE, "", junit.AFTER
    return "", "\n" + "─" * options.columns + "\n\n", ""


def _exit_code(n_jobs: int, failures: list[int], *, is_tripped: bool) -> int:
    """Give the exit code of a batch: failures first, then what `--fail-on` asks for."""
    if failures:
        return failures[0] if len(failures) == n_jobs and len(set(failures)) == 1 else EXIT_BATCH
    return EXIT_STRAGGLING if is_tripped else 0
