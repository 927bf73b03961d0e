"""`diagnose what-if`: how fast a job would run with some fixes.

Enters: a trace, and fixes given by hand. Leaves: a page, or one JSON object, and timelines where asked for.
"""

from typing import Any

import click

from diagnose.cli.completion import complete_fixes
from diagnose.cli.drawings import write_perfetto
from diagnose.cli.inputs import check_jobs, open_job
from diagnose.cli.options import (
    EXIT_REFUSED,
    Options,
    format_option,
    look_options,
    output_option,
    perfetto_options,
    reading_options,
)
from diagnose.errors import UsageError


@click.command("what-if")
@click.argument("job", type=click.Path())
@click.option(
    "--fix",
    "fixes",
    metavar="NAME[:KEY=VALUE,...]",
    multiple=True,
    shell_complete=complete_fixes,
    help="Apply this fix (see `diagnose fixes`); several are applied one after the other.",
)
@click.option(
    "--set",
    "scales",
    metavar="'TYPE [stage=N] [dp=N] [step=N] xF'",
    multiple=True,
    help="Let operations of a type take F times as long, on some stages, dp ranks or steps.",
)
@format_option("terminal", "json", meaning="A page for people, or one JSON object (diagnose-what-if/1).")
@output_option
@reading_options
@perfetto_options
@look_options
def what_if_command(job: str, fixes: tuple[str, ...], scales: tuple[str, ...], **given: Any) -> int:
    """Say how fast a JOB would run with some fixes.

    Ends with exit code 1 where none of them is for this job.

    Such as --fix replace-worker:dp=0,pp=0 --fix planned-gc:every=200 --set 'forward-compute stage=3 x0.8'.
    """
    from diagnose.model.priced import HandFixes
    from diagnose.pipeline import price_job
    from diagnose.report import what_if

    options = Options(**given)
    check_jobs((job,), options)
    if not fixes and not scales:
        raise UsageError("nothing to price: give --fix (`diagnose fixes` lists them) or --set")
    with open_job(job, options) as request:
        found, data = price_job(request, HandFixes(fixes, scales))
    if options.perfetto is not None:
        write_perfetto(data, options.perfetto, options, fixed="the fixes given by hand")
    options.write(what_if, found)
    return EXIT_REFUSED if all(one.fix is None for one in found.asked) else 0
