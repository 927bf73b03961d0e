"""`diagnose compare`: what changed between two diagnoses.

Enters: two traces or saved diagnoses. Leaves: a page, one JSON object or Markdown, and an exit code for gates.
"""

from typing import Any

import click

from diagnose.cli.inputs import check_jobs, open_job
from diagnose.cli.options import EXIT_WORSE, Options, format_option, judging_options, look_options, output_option
from diagnose.cli.output import open_output


@click.command("compare")
@click.argument("before", metavar="A", type=click.Path())
@click.argument("after", metavar="B", type=click.Path())
@format_option(
    "terminal",
    "json",
    "markdown",
    meaning="A page for people, one JSON object (diagnose-compare/1), or Markdown for tickets.",
)
@output_option
@click.option("--job", metavar="ID", help="Compare the diagnoses of this job, where a file holds several.")
@click.option(
    "--fail-on",
    type=click.Choice(["worse", "came"]),
    help="End with exit code 1 when steps are at least 2% longer (worse), or when a cause came or grew (came).",
)
@judging_options
@look_options
def compare_command(before: str, after: str, job: str | None, fail_on: str | None, **given: Any) -> int:
    """Say what changed between two diagnoses A and B: causes that came, went, grew or shrank, and the step time.

    A and B are traces, or what --format json printed of them. For `was the fix worth it` and `what changed since yesterday`.
    """
    from diagnose.comparing import compare_jobs, find_diagnoses
    from diagnose.report import compare as page

    options = Options(**given)
    check_jobs((before, after), options)
    sides = []
    for path in (before, after):
        with open_job(path, options) as request:
            sides.append(find_diagnoses(request))
    found = compare_jobs(*sides, job=job)
    with open_output(options.output) as write:
        write(page.render_markdown(found) if options.output_format == "markdown" else options.render(page, found))
    is_worse = found.trend == "slower"
    came = any(change.change in ("came", "grew") for change in found.changes)
    return EXIT_WORSE if (fail_on == "worse" and is_worse) or (fail_on == "came" and came) else 0
