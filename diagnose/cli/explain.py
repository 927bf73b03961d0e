"""`diagnose explain`: why one cause is said of a job, or why not.

Enters: a trace, and the id of a rule. Leaves: a page, or one JSON object.
"""

from typing import Any

import click

from diagnose.cli.completion import complete_causes
from diagnose.cli.inputs import check_jobs, open_job
from diagnose.cli.options import Options, format_option, look_options, output_option, reading_options


@click.command("explain")
@click.argument("job", type=click.Path())
@click.argument("cause", shell_complete=complete_causes)
@format_option("terminal", "json", meaning="A page for people, or one JSON object (diagnose-explain/1).")
@output_option
@reading_options
@look_options
def explain_command(job: str, cause: str, **given: Any) -> int:
    """Say why one CAUSE is said of a JOB, or why not.

    CAUSE is the id of a rule (see `diagnose rules list`), or `unknown` for time that no rule explains.
    """
    from diagnose.pipeline import explain_job
    from diagnose.report import explain

    options = Options(**given)
    check_jobs((job,), options)
    with open_job(job, options) as request:
        explanation = explain_job(request, cause)
    options.write(explain, explanation)
    return 0
