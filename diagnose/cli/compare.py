"""`diagnose compare`: what changed between two diagnoses.

Enters: two traces or saved diagnoses. Leaves: a page, one JSON object or Markdown, and an exit code for gates.
"""

from typing import TYPE_CHECKING, Any

import click

from diagnose.cli.inputs import check_jobs, name_of, open_job
from diagnose.cli.options import EXIT_WORSE, Options, format_option, judging_options, look_options, output_option
from diagnose.cli.output import open_output

if TYPE_CHECKING:
    from diagnose.model.comparison import Comparison


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
    from diagnose.report import compare as page

    options = Options(**given)
    check_jobs((before, after), options)
    found = _compare_two(before, after, job, options)
    with open_output(options.output) as write:
        if options.output_format == "json":
            write(page.render_json(found) + "\n")
        elif options.output_format == "markdown":
            write(page.render_markdown(found))
        else:
            write(page.render(found, width=options.columns, color=options.color))
    is_worse = found.trend == "slower"
    came = any(change.change in ("came", "grew") for change in found.changes)
    return EXIT_WORSE if (fail_on == "worse" and is_worse) or (fail_on == "came" and came) else 0


def _compare_two(before: str, after: str, job: str | None, options: Options) -> "Comparison":
    """Read or make both diagnoses, and compare them."""
    from diagnose.compare.compare import compare
    from diagnose.compare.read import choose, job_id_of

    names = [name_of(given) for given in (before, after)]
    found = [_diagnoses_of(given, options) for given in (before, after)]
    for one, other in (found, found[::-1]):
        if job is None and len(one) > 1 and len(other) == 1:
            job = job_id_of(other[0])  # of several, the one that the other file is about
    wanted = [None if len(one) == 1 else job for one in found]
    return compare(*(choose(*side) for side in zip(found, names, wanted, strict=True)))


def _diagnoses_of(given: str, options: Options) -> list[dict[str, Any]]:
    """Read saved diagnoses, or diagnose a trace, as the content of the file says."""
    import json

    from diagnose.compare.read import read_saved

    with open_job(given, options) as request:
        saved = read_saved(request.source, name_of(given))
        if saved is not None:
            return saved
        from diagnose.pipeline import diagnose_job
        from diagnose.report import json_lines

        return [json.loads(json_lines.render(diagnose_job(request)))]
