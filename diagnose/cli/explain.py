"""`diagnose explain`: why one cause is said of a job, or why not.

Enters: a trace, and the id of a rule. Leaves: a page, or one JSON object.
"""

from typing import TYPE_CHECKING, Any

import click

from diagnose.cli.inputs import check_jobs, open_job
from diagnose.cli.options import Options, format_option, look_options, parse_numbers, reading_options
from diagnose.cli.output import write_stdout

if TYPE_CHECKING:
    from diagnose.model.explanation import Explanation
    from diagnose.model.trace import Ints


@click.command("explain")
@click.argument("job", type=click.Path())
@click.argument("cause")
@format_option("terminal", "json", meaning="A page for people, or one JSON object (diagnose-explain/1).")
@reading_options
@look_options
def explain_command(job: str, cause: str, **given: Any) -> int:
    """Say why one CAUSE is said of a JOB, or why not.

    CAUSE is the id of a rule (see `diagnose rules list`), or `unknown` for time that no rule explains.
    """
    from diagnose.report import explain

    options = Options(**given)
    check_jobs((job,), options)
    explanation = _explain_one(job, cause, parse_numbers("--steps", options.steps), options)
    write_stdout(options.render(explain, explanation))
    return 0


def _explain_one(job: str, cause: str, steps: "Ints | None", options: Options) -> "Explanation":
    """Run the pipeline on one job, and explain one cause."""
    from diagnose.pipeline import explain_job

    with open_job(job, steps, options) as request:
        return explain_job(request, cause)
